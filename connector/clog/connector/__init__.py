"""Spark reads and writes logs through a Python data source."""
