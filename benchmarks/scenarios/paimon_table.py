"""Paimon's primary-key table in Spark 3.5, beside Parquet in the same Spark.

The newest connector of Paimon that was available here is one for Spark 3.5, which has no Python
data sources, so clog cannot run beside it. What can be compared is each one's share of the Parquet
floor in its own Spark; clog's is in *Upserts and table reads in Spark*, with the same rows and
upserts. Paimon merges by key when it reads.
"""

import random
from pathlib import Path

import numpy as np
from harness import data
from harness.measure import Result, rate, timed
from harness.spark import drain, session
from peers.environments import VERSIONS

TITLE = "A primary-key table: Paimon in Spark 3.5"
ENVIRONMENT = "paimon"
ENGINE = "Spark 3.5"
SIZES = {
    "smallest": {"rows": 2_000, "record_bytes": 100, "rounds": 1},
    "quick": {"rows": 1_000_000, "record_bytes": 100, "rounds": 3},
    "full": {"rows": 10_000_000, "record_bytes": 100, "rounds": 5},
}
SCHEMA = "key binary, value binary"
TABLE = "paimon.d.t"


def run(size: dict[str, int], folder: Path, result: Result) -> None:
    rows = size["rows"]
    result.versions |= {"Apache Paimon": VERSIONS["paimon"]}
    data.write_parquet(folder / "parquet", data.batches(rows, rows, size["record_bytes"]))
    config = {
        "spark.sql.catalog.paimon": "org.apache.paimon.spark.SparkCatalog",
        "spark.sql.catalog.paimon.warehouse": str(folder / "warehouse"),
    }
    chosen = random.Random(1)
    with session("paimon", config) as spark:
        spark.sql("CREATE DATABASE paimon.d")
        spark.sql(
            f"CREATE TABLE {TABLE} (key string NOT NULL, value binary) TBLPROPERTIES ("
            "'primary-key' = 'key', 'bucket' = '2', 'file.format' = 'parquet',"
            " 'file.compression' = 'zstd')"
        )
        plain = spark.read.schema(SCHEMA).parquet(str(folder / "parquet"))
        plain.selectExpr("string(key)", "value").writeTo(TABLE).append()

        def upsert() -> None:
            keys = data.keys(np.array(chosen.sample(range(rows), 20))).to_pylist()
            changed = [(key.decode(), bytearray(b"changed")) for key in keys]
            spark.createDataFrame(changed, "key string, value binary").writeTo(TABLE).append()

        result.compare(
            "upsert of 20 rows, Spark 3.5",
            "ms",
            {"Apache Paimon": timed(upsert, 1e-3)},
            rounds=size["rounds"],
            lower=True,
        )
        assert spark.table(TABLE).count() == rows
        result.compare(
            "table read, Spark 3.5",
            "million rows/s",
            {
                "Parquet files (floor)": rate(rows / 1e6, lambda: drain(plain)),
                "Apache Paimon": rate(rows / 1e6, lambda: drain(spark.table(TABLE))),
            },
            rounds=size["rounds"],
        )
