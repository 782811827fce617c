"""Statements of a session that has the catalog, one line of JSON each: rows, or what was refused.

`python by_name.py JAR WAREHOUSE NAME < statements`, the catalog being of that name. A statement
`STREAM TABLE {options}` is what a stream of the table's changes tells until it has all; the
function `appended(URL, ROW)` appends a row in JSON, as another writer may in the middle of it.
"""

import json
import sys

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession


def streamed(spark: SparkSession, name: str, options: str) -> DataFrame:
    """Returns the rows of all batches of `readStream.changes`."""
    changes = spark.readStream.options(**json.loads(options)).changes(name)
    to_memory = changes.writeStream.format("memory").queryName("told")
    query = to_memory.trigger(availableNow=True).start()
    query.awaitTermination()
    return spark.table("told")


def appended(url: str, row: str) -> str:
    """Appends a row, and returns the log's URL."""
    from clog.storage import Log

    Log.open(url).append([json.loads(row)])
    return url


def main() -> None:
    jar, warehouse, name = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraClassPath", jar)
        .config("spark.sql.warehouse.dir", warehouse)
        .config(f"spark.sql.catalog.{name}", "clog.ClogCatalog")
        .getOrCreate()
    )
    spark.udf.register("appended", appended)
    for statement in sys.stdin:
        try:
            is_stream = statement.startswith("STREAM ")
            rows = (
                streamed(spark, *statement.split(" ", 2)[1:]) if is_stream else spark.sql(statement)
            )
            told = [list(row) for row in rows.collect()]
        except PySparkException as e:
            told = str(e)
        print(json.dumps(told, default=str), flush=True)


if __name__ == "__main__":
    main()
