"""Writing in Spark: tasks make objects, the driver commits them once."""
