"""Spark reads and writes logs: ``format("clog")``, found by Spark itself once clog is installed.

What is exported here is public, and so is everything its signatures mention; the rest may change
with any release.
"""

from clog.storage.env import from_extra

with from_extra("spark", "clog.connector", "pyspark", "py4j", "pandas"):
    from clog.connector.batches import (
        BatchTransaction,
        append_batches,
        transact_batches,
        upsert_batches,
    )
    from clog.connector.datasource import ClogDataSource
    from clog.connector.tools import (
        Explanation,
        Lag,
        Share,
        Snapshot,
        beside_table,
        count_log,
        count_table,
        explain,
        lag,
        read_log,
        read_table,
        snapshot_and_stream,
    )

__all__ = [
    "BatchTransaction",
    "ClogDataSource",
    "Explanation",
    "Lag",
    "Share",
    "Snapshot",
    "append_batches",
    "beside_table",
    "count_log",
    "count_table",
    "explain",
    "lag",
    "read_log",
    "read_table",
    "snapshot_and_stream",
    "transact_batches",
    "upsert_batches",
]
