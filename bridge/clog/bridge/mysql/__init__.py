"""Captures MySQL databases into logs with Debezium's engine, which runs in this process."""
