"""The cleaner as a daemon: its config by Kafka's broker names, the logs it finds, what it shows."""
