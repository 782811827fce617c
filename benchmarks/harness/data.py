"""The records that all candidates get: the same for the same arguments.

A key is 16 bytes, hexadecimal; half of a value is random and half repeats, so that zstd makes about
half of it, as of real ones.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

KEY_BYTES = 16
BATCH = 250_000
WORDS = 1000


def _fixed(block: np.ndarray) -> pa.Array:
    """A binary column whose values are the rows of a matrix of bytes."""
    rows, width = block.shape
    ends = np.arange(rows + 1, dtype=np.int32) * width
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(block).tobytes())]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def keys(ids: np.ndarray) -> pa.Array:
    """The keys with these numbers; spread, so that they come in no order."""
    spread = (ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).astype(">u8")
    nibbles = np.frombuffer(spread.tobytes(), np.uint8).reshape(-1, 8)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    pairs = np.stack([digits[nibbles >> 4], digits[nibbles & 15]], axis=2)
    return _fixed(pairs.reshape(-1, KEY_BYTES))


def values(random: np.random.Generator, rows: int, record_bytes: int) -> pa.Array:
    width = record_bytes - KEY_BYTES
    words = np.random.default_rng(7).integers(0, 256, (WORDS, width - width // 2), np.uint8)
    noise = random.integers(0, 256, (rows, width // 2), np.uint8)
    return _fixed(np.hstack([noise, words[random.integers(0, WORDS, rows)]]))


def noise(random: np.random.Generator, rows: int, width: int) -> pa.Array:
    """Values that do not compress."""
    return _fixed(random.integers(0, 256, (rows, width), np.uint8))


def batches(rows: int, key_count: int, record_bytes: int, *, seed: int = 1) -> Iterator[pa.Table]:
    """Rows in tables of `BATCH`; keys at random, or each once where there are as many as rows."""
    random = np.random.default_rng(seed)
    for start in range(0, rows, BATCH):
        count = min(BATCH, rows - start)
        each_once = key_count >= rows
        ids = np.arange(start, start + count) if each_once else random.integers(0, key_count, count)
        yield pa.table({"key": keys(ids), "value": values(random, count, record_bytes)})


def write_parquet(folder: Path, tables: Iterator[pa.Table]) -> None:
    """A Parquet file for each table, zstd: what the Spark scenarios start from."""
    folder.mkdir(parents=True)
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"{number:05}.parquet", compression="zstd")


def size_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
