"""Databases of MySQL, captured into logs by Debezium's engine in this process."""
