"""Captures PostgreSQL databases into logs: all tables as of one transaction of the source."""
