"""Measures `view=table` in Spark beside what one would write without it: the last value of each key
by `groupBy`, over the same log; and beside reading all of the log.

    python benchmarks/table_view_spark.py --records 4000000 --keys 1000000 --repeat 5

The log is that of `table_view.py`: records of 100 bytes, the first half cleaned, the second dirty,
one partition. All three go to the sink `noop` on local[2], with the columns key and value, in turn
within each round; what counts is the ratio within each round.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

from table_view import make_log


def session():
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.memory", "2g").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def grouped(read, url):
    from pyspark.sql.functions import max_by

    log = read.option("columns", "key,value,offset").load(url)
    latest = log.groupBy("key").agg(max_by("value", "offset").alias("value"))
    return latest.where("value is not null")


def seconds(frame):
    start = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("view-bench"))
    given = parser.parse_args()
    url = make_log(given.folder, given.records, given.keys).url
    spark = session()

    def read():
        return spark.read.format("clog")

    frames = {
        "view": lambda: read().option("view", "table").option("columns", "key,value").load(url),
        "grouped": lambda: grouped(read(), url),
        "log": lambda: read().option("columns", "key,value").load(url),
    }
    counts = {name: frame().count() for name, frame in frames.items()}
    print(f"{counts}; tasks: {frames['view']().rdd.getNumPartitions()}")
    assert counts["view"] == counts["grouped"]
    rounds = []
    for _ in range(given.repeat):
        rounds.append({name: seconds(frame()) for name, frame in frames.items()})
        print({name: round(s, 2) for name, s in rounds[-1].items()}, flush=True)
    spark.stop()
    for name in frames:
        times = sorted(r[name] for r in rounds)
        ratios = sorted(r[name] / r["view"] for r in rounds)
        print(
            f"{name:8} {statistics.median(times):6.2f} s ({times[0]:.2f} to {times[-1]:.2f}),"
            f" {statistics.median(ratios):.2f} of the view's time ({ratios[0]:.2f} to"
            f" {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
