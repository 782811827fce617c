"""The log's objects as Spark's own Parquet scan names them, where the JVM can reach them."""

import re
from typing import TYPE_CHECKING

from clog.connector.native.reasons import CannotScanError
from clog.storage.format.paths import folder_of
from clog.storage.store.urls import LOCAL, parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_SCHEMES = {"s3": "s3a", "gs": "gs", "gcs": "gs", "hdfs": "hdfs"}
"""What Hadoop calls fsspec's protocols."""
_GLOB = re.compile(r"[*?{}\[\]\\]")
ROW, FILE = "clog row", "clog file"
"""Columns that say which row of which file a row is: its number, and a hash of the file's name."""
_V1_SOURCES = "spark.sql.sources.useV1SourceList"
_OPTIONS = {
    # A session may tell Spark to pass over what is gone or damaged: rows would be missing.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
    "parquet.page.verify-checksum.enabled": "true",
}


def folder_in_jvm(url: str, log_id: str) -> str:
    """Returns the log's folder by the name that the JVM has for it.

    Raises:
        CannotScanError: it has none.
    """
    there = parse(url)
    if _GLOB.search(there.root):
        raise CannotScanError("Spark takes one of *?{}[]\\ in a path for a pattern")
    if there.protocol in LOCAL:
        root = f"file://{there.root}"
    elif there.protocol in _SCHEMES:
        root = f"{_SCHEMES[there.protocol]}://{there.root}"
    elif there.protocol in ("abfs", "abfss") and "@" in there.root.partition("/")[0]:
        root = there.url
    else:
        raise CannotScanError(f"Spark's JVM has no filesystem for {there.protocol} URLs like this")
    return f"{root}/{folder_of(log_id)}"


def scan(spark: "SparkSession", paths: "Sequence[str]", schema: "StructType") -> "DataFrame":
    """Returns the rows of these files, which Spark looks for now, with `ROW` and `FILE`.

    Raises:
        CannotScanError: it does not find them, or does not number their rows.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    try:
        if "parquet" not in (spark.conf.get(_V1_SOURCES) or "").lower().split(","):
            raise CannotScanError(
                f"the session's {_V1_SOURCES} lacks parquet, and only that scan numbers its rows"
            )
        frame = spark.read.options(**_OPTIONS).schema(schema).parquet(*paths)
        frame = frame.select(
            "*",
            F.col("_metadata.row_index").alias(ROW),
            F.xxhash64("_metadata.file_name").alias(FILE),
        )
        assert frame.schema is not None  # By Spark Connect only this asks.
    except (Py4JError, PySparkException) as e:
        raise CannotScanError(f"Spark's JVM does not read its objects ({_what(e)})") from e
    return frame


def _what(error: Exception) -> str:
    """Returns what kind of error it was: its text may hold more than is to be shown."""
    cause = getattr(error, "java_exception", None)
    if cause is not None:
        return str(cause.getClass().getSimpleName())
    condition = getattr(error, "getCondition", lambda: None)()
    return condition or type(error).__name__
