"""Reads by Spark's own scan: which files, and which of their rows."""
