"""What Spark tells code in ``foreachBatch`` of the query that it runs in."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY_ID = "sql.streaming.queryId"
"""Of the query, over all its restarts."""
RUN_ID = "spark.jobGroup.id"
"""Of this run of it."""


def local_property(df: "DataFrame", name: str) -> str | None:
    """Returns what Spark says of the micro-batch; None with Spark Connect, which has no such thing
    here.
    """
    try:
        value: str | None = df.sparkSession.sparkContext.getLocalProperty(name)
    except Exception:  # noqa: BLE001 -- Connect raises one of several kinds
        return None
    return value
