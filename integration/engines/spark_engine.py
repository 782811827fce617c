"""Runs in the environment of one engine of Spark's: reads views and tries to write to them, as it
is told on standard input, and prints what came of each as a line of JSON.
"""

import json
import os
import sys

from pyspark.sql import SparkSession

ANSWER = "answer: "
CONFIG = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.databricks.delta.snapshotPartitions": "1",
    },
    "iceberg": {
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        "spark.sql.catalog.c": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.c.type": "hadoop",
    },
}


def main() -> None:
    asked = json.load(sys.stdin)
    engine = asked["engine"]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
        "spark.sql.codegen.wholeStage": "false",  # Tiny tables do not repay it.
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.jars": ",".join(asked["jars"]),
        **CONFIG[engine],
    }
    if engine == "iceberg":
        settings["spark.sql.catalog.c.warehouse"] = asked["warehouse"]
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.sql("CREATE TEMPORARY VIEW strangers AS SELECT binary('z') AS key, binary('z') AS value")
    for read in asked["reads"]:
        _say(_read(spark, engine, **read))
    for write in asked["writes"]:
        _say(_tried(spark, write))


def _say(found: object) -> None:
    print(f"\n{ANSWER}{json.dumps(found)}", flush=True)


def _read(spark: SparkSession, engine: str, path: str, version: int | None) -> list[list[object]]:
    """Returns the sorted rows of a view, of its version where one is given."""
    reader = spark.read.format(engine)
    if version is not None:
        reader = reader.option("versionAsOf", version)
    frame = reader.load(path).selectExpr("hex(key)", "hex(value)", "unix_millis(timestamp)")
    return sorted([key.lower(), value.lower(), time] for key, value, time in frame.collect())


def _tried(spark: SparkSession, sql: str) -> str | None:
    """Returns the error of a statement; None where there was none."""
    try:
        spark.sql(sql).collect()
    except Exception as e:  # noqa: BLE001 - whatever refuses
        return str(e)[:2000]
    return None


main()
