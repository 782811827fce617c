"""A log's configuration: Kafka's names, their values and ranges."""
