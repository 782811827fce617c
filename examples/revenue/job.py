"""The job: revenue by city, of orders and customers that change, in a log that is never wrong.

    python examples/revenue/job.py FOLDER [--once]

A sum cannot be corrected by the new row alone: it must give back what the old one had added. So the
job reads *changes*, in which each update has its image before and its image after, and the sum of a
city grows by the images after and shrinks by those before. For two tables that are joined,

    changes(orders JOIN customers) =
        changes(orders) JOIN customers before  +  orders after JOIN changes(customers)

where *before* and *after* are the versions between which the batch lies. The row `ALL` of the
result names them, so a version of the result says of which tables it is the revenue.
"""

import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from clog.connector import upsert_batches
from clog.storage import Log, NotFoundError

ALL = "(all)"
LOGS = ("orders", "customers")
COLUMNS = "city string, cents long, count long, orders long, customers long, batch long"


def changes(spark: SparkSession, folder: str, name: str, *columns: str) -> DataFrame:
    """Changes of a log, with 1 for a row that came and -1 for one that went."""
    options = {"view": "changes", "readerId": "revenue", "pollInterval": "100ms"}
    came = f.col("_change_type").isin("insert", "update_postimage")
    told = spark.readStream.format("clog").options(**options).load(f"{folder}/{name}")
    sign = f.when(came, 1).otherwise(-1).alias("sign")
    version = f.col("_commit_version").alias("version")
    return told.selectExpr(*columns, "*").select(
        f.lit(name).alias("log"), *[c.split()[-1] for c in columns], sign, version
    )


def table(spark: SparkSession, folder: str, name: str, version: int | None) -> DataFrame:
    """A table at a version; without one, before the first batch, it has no rows."""
    read = spark.read.format("clog").option("view", "table")
    if version is not None:
        return read.option("asOfVersion", version).load(f"{folder}/{name}")
    return read.load(f"{folder}/{name}").where("false")


def known(url: str) -> dict[str, dict[str, Any]]:
    """The revenue that the log has, by city."""
    try:
        rows = Log.open(url).table().to_arrow().to_pylist()
    except NotFoundError:
        return {}
    return {row["city"]: row for row in rows}


def start(spark: SparkSession, folder: str, *, once: bool = False) -> StreamingQuery:
    """Starts the query; ``once``: it ends when it has read what is there."""
    result = f"{folder}/revenue"
    upsert = upsert_batches(result, "city", deleted=f"count = 0 AND city <> '{ALL}'")

    def each_batch(batch: DataFrame, number: int) -> None:
        before = known(result)
        total = before.get(ALL, dict.fromkeys((*LOGS, "batch")))
        if total["batch"] == number:
            return  # It was committed, and Spark does not know: adding it again would be wrong.
        batch.persist()
        after = {name: total[name] for name in LOGS}
        for row in batch.groupBy("log").agg(f.max("version").alias("version")).collect():
            after[row.log] = row.version
        orders, customers = (batch.where(f.col("log") == name) for name in LOGS)
        old = table(spark, folder, "customers", total["customers"])
        new = table(spark, folder, "orders", after["orders"])
        parts = (
            orders.drop("city").join(old, f.col("customer") == old.id).select(*WANTED),
            customers.drop("cents").join(new, "customer").select(*WANTED),
        )
        added = (
            parts[0]
            .union(parts[1])
            .groupBy("city")
            .agg(f.sum(f.col("sign") * f.col("cents")).alias("cents"), f.sum("sign").alias("count"))
        )
        rows, cents, count = [], 0, 0
        for row in added.collect():
            was = before.get(row.city, {"cents": 0, "count": 0})
            rows.append((row.city, was["cents"] + row.cents, was["count"] + row["count"]))
            cents, count = cents + row.cents, count + row["count"]
        was = before.get(ALL, {"cents": 0, "count": 0})
        rows.append((ALL, was["cents"] + cents, was["count"] + count))
        at = (after["orders"] or 0, after["customers"] or 0, number)
        upsert(spark.createDataFrame([(*row, *at) for row in rows], COLUMNS), number)
        batch.unpersist()

    told = changes(spark, folder, "orders", "customer", "cents").unionByName(
        changes(spark, folder, "customers", "id AS customer", "city"), allowMissingColumns=True
    )
    writer = told.writeStream.foreachBatch(each_batch)
    if once:
        writer = writer.trigger(availableNow=True)
    return writer.option("checkpointLocation", f"{folder}/checkpoint").start()


WANTED = ("city", "cents", "sign")

if __name__ == "__main__":
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    start(session, sys.argv[1], once="--once" in sys.argv).awaitTermination()
