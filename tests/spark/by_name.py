"""Statements of a session that has the catalog, one line of JSON each: rows, or what was refused.

`python by_name.py JAR WAREHOUSE NAME < statements`, the catalog being of that name.
"""

import json
import sys

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession


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
    for statement in sys.stdin:
        try:
            told = [list(row) for row in spark.sql(statement).collect()]
        except PySparkException as e:
            told = str(e)
        print(json.dumps(told, default=str), flush=True)


if __name__ == "__main__":
    main()
