"""Measures writing a log in Spark beside writing Parquet files with the same rows and codec.

    python benchmarks/spark_write.py --rows 4000000 --repeat 5

Both take their rows from the same Parquet files, on local[2], in turn within each round; what
counts is the ratio within each round. `clog` writes batches, `stream` one micro-batch with a new
checkpoint, which starts its query's processes too. `noop` is what reading the rows takes: the time
of all others holds it.
"""

import argparse
import shutil
import tempfile

import pyarrow.parquet as pq
from spark_local import in_turn, print_rates, records, session


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table = records(args.rows)
        for i in range(8):
            part = table.slice(i * args.rows // 8, args.rows // 8)
            pq.write_table(part, f"{folder}/rows-{i}.parquet", compression="zstd")
        spark = session()
        rows = spark.read.parquet(f"{folder}/rows-*.parquet")
        changes = spark.readStream.schema("key binary, value binary").parquet(f"{folder}/rows-*")

        def to_parquet():
            rows.write.mode("overwrite").parquet(f"{folder}/out")

        def to_log():
            shutil.rmtree(f"{folder}/log", ignore_errors=True)
            rows.write.format("clog").mode("append").save(f"{folder}/log")

        def to_stream():
            for name in ("stream", "checkpoint"):
                shutil.rmtree(f"{folder}/{name}", ignore_errors=True)
            writer = changes.writeStream.format("clog").trigger(availableNow=True)
            writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
            writer.start(f"{folder}/stream").awaitTermination()

        candidates = {
            "noop": lambda: rows.write.format("noop").mode("overwrite").save(),
            "parquet": to_parquet,
            "clog": to_log,
            "stream": to_stream,
        }
        rounds = in_turn(candidates, args.repeat)
        spark.stop()
    print_rates(rounds, args.rows, lambda _: "parquet")


if __name__ == "__main__":
    main()
