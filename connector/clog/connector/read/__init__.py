"""Reading in Spark: plans on the driver, tasks on executors, batch and stream."""
