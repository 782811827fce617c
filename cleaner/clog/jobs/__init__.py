"""The cleaner as Spark jobs: what needs both the cleaner and the connector's executors."""

from clog.jobs.cleaning import clean_with_spark

__all__ = ["clean_with_spark"]
