"""A Spark job of five queries, under either release.

    python job.py ROOT RELEASE old|new RUNS

Each run takes what it appended before; in the last one, commits are counted (`sitecustomize`). It
prints how each query of the last one ended: null, or its error.
"""

import json
import os
import sys
from pathlib import Path

KEYS, BATCHES, BATCH = 5, 2, 6


def worker_of(_):
    """Where a worker of Spark has clog from."""
    import clog.storage

    return clog.storage.__file__


def stages(spark, root):
    """Each query by its name, what it writes, not started, and where to; those of a stage run
    together.
    """
    from clog import connector

    def read(log):
        rows = spark.readStream.format("clog").option("startingOffsets", "earliest")
        return rows.option("maxOffsetsPerTrigger", BATCH).load(f"{root}/{log}")

    options = {"config.segment.ms": "1", "keyColumns": "key"}

    def pair(df, t, _):
        t.write(df, f"{root}/home")
        t.write(df, f"{root}/other")

    if hasattr(connector, "upsert_batches"):
        counted = connector.upsert_batches(f"{root}/counts", "key", **options)
        paired = connector.transact_batches(f"{root}/home", pair, writerId="job")
    else:

        def counted(df, batch_id):
            connector.upsert(df, f"{root}/counts", "key", batch_id=batch_id, options=options)

        def paired(df, batch_id):
            with connector.transaction("job", batch_id, home=f"{root}/home") as t:
                pair(df, t, batch_id)

    def typed(df, batch_id):
        rows = df.selectExpr("cast(string(value) as int) as n", "string(key) as k")
        rows.write.format("clog").mode("append").options(
            keyColumns="n", txnAppId="typed", txnVersion=batch_id
        ).save(f"{root}/typed")

    source = read("source").select("key", "value")
    of_key = source.selectExpr("string(key) as key").groupBy("key").count()
    yield {
        "copy": (source.writeStream.format("clog"), f"{root}/copy"),
        "counts": (of_key.writeStream.outputMode("update").foreachBatch(counted), None),
        "pair": (source.writeStream.foreachBatch(paired), None),
        "typed": (source.writeStream.foreachBatch(typed), None),
    }
    changes = read("counts").selectExpr("cast(key as binary) key", "string(value.count) value")
    changes = changes.selectExpr("key", "cast(value as binary) value")
    yield {"follow": (changes.writeStream.format("clog"), f"{root}/follow")}


def run(spark, root):
    """Appends what two batches take, and runs each query until it has it."""
    from pyspark.sql.streaming import StreamingQueryException

    from clog.cleaner import Cleaner
    from clog.storage import Log

    url = f"{root}/source"
    source = Log.open(url) if Path(url).exists() else Log.create(url, 2)
    start = sum(source.end_offsets().values())
    numbers = range(start, start + BATCHES * BATCH)
    source.append([{"key": f"k{n % KEYS}", "value": str(n)} for n in numbers])
    ended = {}
    for queries in stages(spark, root):
        running = {}
        for name, (writer, target) in queries.items():
            started = writer.option("checkpointLocation", f"{root}/checkpoints/{name}")
            running[name] = started.trigger(availableNow=True).start(target)
        for name, query in running.items():
            try:
                query.awaitTermination()
                ended[name] = None
            except StreamingQueryException as e:
                ended[name] = str(e)
    Cleaner(Log.open(f"{root}/counts")).run_once(force=True)
    return ended


def main():
    root, release, how, runs = sys.argv[1:]
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("FATAL")
    Path(root, "pids").write_text(f"{spark.sparkContext._gateway.proc.pid} {os.getpid()}")
    (theirs,) = spark.sparkContext.parallelize([0], 1).map(worker_of).collect()
    for file in (worker_of(None), theirs):
        assert Path(file).is_relative_to(release) is (how == "old"), file

    for _ in range(int(runs) - 1):
        assert not any(run(spark, root).values())
    Path(root, "begun").touch()
    print(json.dumps(run(spark, root)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
