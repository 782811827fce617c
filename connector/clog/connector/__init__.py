"""Spark reads and writes logs: ``format("clog")``, found by Spark itself once clog is installed."""

from clog.connector.datasource import ClogDataSource
from clog.connector.lag import Lag, lag

__all__ = ["ClogDataSource", "Lag", "lag"]
