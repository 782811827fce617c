"""What does it cost to write row groups into another object, copied and encoded anew?

CPU seconds of the process, medians of alternating runs: of a dense object of 64 MiB, read from
memory and written to memory, with its key index.
"""

import argparse
import statistics
import time

import numpy as np
import pyarrow as pa

from clog.storage.config.units import ZSTD
from clog.storage.env import SeededIds
from clog.storage.objects.composing import CopiedGroup, write_rewritten
from clog.storage.objects.writer import rewritten_chunk
from clog.storage.read.copy import Wanted, read_or_copy
from clog.storage.read.scan import COLUMNS, DELETE_HORIZON, piece_of, read_pieces
from clog.storage.types.columns import REWRITTEN_SCHEMA
from clog_testing.crash import memory_store

READ = (*COLUMNS, DELETE_HORIZON)
TOTAL_BYTES = 64 << 20


def batches(value_bytes: int) -> list[pa.RecordBatch]:
    """Records of half-random values."""
    rows = TOTAL_BYTES // (value_bytes + 30)
    random = np.random.default_rng(1)
    half = value_bytes // 2
    noise = random.integers(0, 256, (rows, half), np.uint8)
    values = [noise[i].tobytes() + b"x" * half for i in range(rows)]
    columns = [
        pa.array([b"user-%012d" % i for i in random.permutation(rows)], pa.binary()),
        pa.array(values, pa.binary()),
        pa.nulls(rows, REWRITTEN_SCHEMA.field("headers").type),
        pa.array(np.arange(rows) * 1000, pa.timestamp("us", "UTC")),
        pa.array(np.arange(rows)),
        pa.nulls(rows, pa.int64()),
    ]
    return pa.Table.from_arrays(columns, schema=REWRITTEN_SCHEMA).to_batches()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    for value_bytes in (70, 1000):
        store, ids = memory_store(), SeededIds(1)
        common = {"partition": 0, "stamp": 0, "key_seed": 7, "new_id": ids.new_id}
        (obj,) = write_rewritten(store, batches(value_bytes), **common, object_bytes=1 << 30)
        chunk = rewritten_chunk(obj, version=1)
        piece = piece_of(0, chunk, chunk.base, chunk.next)
        taken: dict[str, list[float]] = {"copied": [], "encoded": []}
        for _ in range(runs):
            for name, seconds in taken.items():
                begun = time.process_time()
                if name == "copied":
                    options = {"columns": READ, "compression": ZSTD, "key_seed": 7}
                    parts = list(read_or_copy(store, [Wanted(piece, chunk)], **options))
                    assert all(isinstance(part, CopiedGroup) for part in parts)
                else:
                    parts = [
                        b.drop_columns(["partition"])
                        for b in read_pieces(store, [piece], columns=READ)
                    ]
                (made,) = write_rewritten(store, parts, **common, object_bytes=1 << 30)
                seconds.append(time.process_time() - begun)
                store.delete(made.ref.path)
        for name, seconds in taken.items():
            median = statistics.median(seconds)
            rate = chunk.size_bytes / median / 1e6
            print(f"{value_bytes:5} B values, {name:8}: {median:.3f} s, {rate:,.0f} MB/s")


if __name__ == "__main__":
    main()
