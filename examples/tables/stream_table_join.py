"""A stream of orders, each with the address that its customer has when it is processed.

    python examples/tables/stream_table_join.py [folder]

Spark plans a DataFrame at its first action and keeps that plan: a table that was loaded before the
query started shows the same version for good, and so would a stream joined with it.
``beside_table`` gives each batch the table as it is then.
"""

import sys
import tempfile

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from clog.connector import beside_table
from clog.storage import Log


def enrich(spark: SparkSession, folder: str) -> StreamingQuery:
    """Starts the query: orders, joined with addresses, into the log `shipments`."""

    def each_batch(orders: DataFrame, table: DataFrame, batch_id: int) -> None:
        addresses = table.selectExpr("key AS customer", "string(value) AS address")
        joined = orders.selectExpr("string(key) AS number", "value AS customer").join(
            addresses, "customer", "left"
        )
        shipments = joined.selectExpr("number AS key", "coalesce(address, 'to be asked') AS value")
        # A batch that is run again after a crash is written once.
        write = shipments.write.format("clog").mode("append")
        write.option("txnAppId", "enrich").option("txnVersion", batch_id).save(
            f"{folder}/shipments"
        )

    # At once, not within a second: main() waits for what is there now (processAllAvailable).
    options = {"startingOffsets": "earliest", "pollInterval": "0s"}
    orders = spark.readStream.format("clog").options(**options).load(f"{folder}/orders")
    writer = orders.writeStream.foreachBatch(beside_table(f"{folder}/addresses", each_batch))
    return writer.option("checkpointLocation", f"{folder}/checkpoint").start()


def main(spark: SparkSession, folder: str) -> dict[str, str]:
    addresses = Log.create(f"{folder}/addresses", partitions=2)
    orders = Log.create(f"{folder}/orders", partitions=2)
    addresses.append([{"key": "alice", "value": "Paris"}, {"key": "bob", "value": "Roma"}])
    orders.append([{"key": "order 1", "value": "alice"}, {"key": "order 2", "value": "bob"}])
    query = enrich(spark, folder)
    query.processAllAvailable()
    addresses.append([{"key": "alice", "value": "Lyon"}, {"key": "bob", "value": None}])
    orders.append([{"key": "order 3", "value": "alice"}, {"key": "order 4", "value": "bob"}])
    query.processAllAvailable()
    query.stop()
    rows = Log.open(f"{folder}/shipments").table().to_arrow().to_pylist()
    shipped = {row["key"].decode(): row["value"].decode() for row in rows}
    print(dict(sorted(shipped.items())))
    return shipped


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        session = SparkSession.builder.master("local[2]").getOrCreate()
        main(session, sys.argv[1] if len(sys.argv) > 1 else temporary)
