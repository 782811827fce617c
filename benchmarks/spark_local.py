"""What the benchmarks of Spark have in common: a session on two cores, and turns of several
candidates, whose spread is shown.
"""

import os
import statistics
import sys
import time

import numpy as np
import pyarrow as pa

VALUE_WORDS, WORD_BYTES = 4, 21


def session():
    """``local[2]``, Parquet with the codec that logs have."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.numRecentProgressUpdates": "2000",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def records(rows):
    """Records of about 100 bytes that compress by about 2.5."""
    random = np.random.default_rng(1)
    letters = random.integers(97, 123, (5000, WORD_BYTES), dtype=np.uint8)
    values = letters[random.integers(0, 5000, (rows, VALUE_WORDS))].reshape(rows, -1)
    keys = np.char.add("key-", np.char.zfill(random.integers(0, 10**9, rows).astype("U"), 12))
    offsets = np.arange(rows + 1, dtype=np.int32) * values.shape[1]
    value = pa.Array.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(values.tobytes())]
    )
    return pa.table({"key": pa.array(keys).cast(pa.binary()), "value": value})


def in_turn(candidates, repeat):
    """Runs each once to warm up, then all in each round; returns the rounds, seconds by name."""
    rounds = []
    for _ in range(repeat + 1):
        seconds = {}
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            seconds[name] = time.perf_counter() - start
        rounds.append(seconds)
    return rounds[1:]


def print_rates(rounds, rows, base_of):
    """Rows per second, and the ratio to the base within each round: medians and spread."""
    for name in rounds[0]:
        rates = sorted(rows / r[name] / 1e6 for r in rounds)
        ratios = sorted(r[base_of(name)] / r[name] for r in rounds)
        print(
            f"{name:16} {statistics.median(rates):6.2f} M rows/s"
            f" ({rates[0]:.2f} to {rates[-1]:.2f}),"
            f" {statistics.median(ratios):.2f} of {base_of(name)}"
            f" ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )
