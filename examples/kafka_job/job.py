"""A streaming job that was made for Kafka: raw readings of smart plugs in, clean ones out.

    python job.py --kafka broker:9092 --checkpoint DIR
    python job.py --logs s3://bucket/plugs --checkpoint DIR

Only `stream_from` and `stream_to` know where the data is: a format and its connection options. A
raw record holds a line of CSV inside JSON; lines that do not parse are dropped, and so are readings
that were sent twice within a minute.
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming.query import StreamingQuery

RAW, PREPARED = "readings_raw", "readings_prepared"
SENT_TWICE_WITHIN = "1 minute"
FIELDS = {
    "message_id": "string",
    "reading_ts": "timestamp",
    "reading_value": "float",
    "reading_type": "int",
    "plug_id": "int",
    "household_id": "int",
    "house_id": "int",
}
"""Of the CSV, in its order; the time is in seconds since 1970."""


def stream_from(spark: SparkSession, topic: str, args: argparse.Namespace) -> DataFrame:
    """The source: Kafka's columns, whatever the format."""
    if args.kafka:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", args.kafka)
        reader = reader.option("subscribe", topic)
    else:
        reader = spark.readStream.format("clog").option("path", f"{args.logs}/{topic}")
    return reader.option("startingOffsets", "earliest").option("failOnDataLoss", "false").load()


def stream_to(records: DataFrame, topic: str, args: argparse.Namespace) -> StreamingQuery:
    """The sink."""
    if args.kafka:
        writer = records.writeStream.format("kafka").option("kafka.bootstrap.servers", args.kafka)
        writer = writer.option("topic", topic)
    else:
        writer = records.writeStream.format("clog").option("path", f"{args.logs}/{topic}")
    trigger = {"availableNow": True} if args.once else {"processingTime": "1 second"}
    return writer.option("checkpointLocation", args.checkpoint).trigger(**trigger).start()


def prepared(raw: DataFrame) -> DataFrame:
    """What the job is about; it knows neither Kafka nor clog."""
    line = F.from_json(F.col("value").cast("string"), "data string")["data"]
    parts = F.split(line, ",")
    readings = raw.select("timestamp", *_columns(parts)).dropna()
    once = readings.withWatermark("reading_ts", SENT_TWICE_WITHIN).dropDuplicates([*FIELDS])
    return once.select(
        F.col("timestamp").cast("string").alias("key"), F.to_json(F.struct("*")).alias("value")
    )


def _columns(parts: F.Column) -> list[F.Column]:
    found = []
    for i, (name, kind) in enumerate(FIELDS.items()):
        text = F.trim(F.get(parts, F.lit(i)))
        text = text.try_cast("bigint") if kind == "timestamp" else text
        found.append((text.cast(kind) if kind == "timestamp" else text.try_cast(kind)).alias(name))
    return found


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--kafka", metavar="SERVERS", help="bootstrap servers")
    where.add_argument("--logs", metavar="URL", help="the folder or bucket of the logs")
    parser.add_argument("--checkpoint", required=True, metavar="DIR")
    parser.add_argument("--once", action="store_true", help="ends when all is read")
    return parser.parse_args(given)


def run(spark: SparkSession, args: argparse.Namespace) -> StreamingQuery:
    """Starts the job."""
    return stream_to(prepared(stream_from(spark, RAW, args)), PREPARED, args)


def main() -> None:
    args = arguments()
    spark = SparkSession.builder.appName("readings").getOrCreate()
    run(spark, args).awaitTermination()


if __name__ == "__main__":
    main()
