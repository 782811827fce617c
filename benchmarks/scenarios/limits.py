"""What the machine allows: append, read, clean and table beside disk, zstd, hash and Arrow alone.

All use one thread, one partition, the local disk and the same bytes. `disk` writes as many bytes as
clog's objects have, and syncs them; `zstd` compresses the keys and values as one stream; `Parquet`
writes and reads the same columns with pyarrow alone; `Arrow` finds the last row of each key by its
hash and takes those rows.
"""

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import data
from harness.measure import Result, rate

from clog.cleaner import Cleaner
from clog.storage import Log
from clog.storage.config.units import ZSTD_LEVEL
from clog.storage.keys.hashing import hash_keys

TITLE = "Beside what the machine allows"
ENVIRONMENT = "own"
ENGINE = "Python"
SIZES = {
    "smallest": {"rows": 2_000, "rows_1k": 500, "rounds": 1},
    "quick": {"rows": 500_000, "rows_1k": 100_000, "rounds": 3},
    "full": {"rows": 2_000_000, "rows_1k": 400_000, "rounds": 5},
}
CONFIG = {"min.cleanable.dirty.ratio": 0, "compression.type": "zstd"}
_LIKE_CLOG = {"compression": "zstd", "compression_level": ZSTD_LEVEL, "use_dictionary": False}
STORED = ("key", "value", "timestamp", "offset")


def run(size: dict[str, int], folder: Path, result: Result) -> None:
    threads = pa.cpu_count(), pa.io_thread_count()
    pa.set_cpu_count(1)
    try:
        for record_bytes, rows in ((100, size["rows"]), (1024, size["rows_1k"])):
            place = folder / str(record_bytes)
            place.mkdir()
            case = _Case(place, rows, record_bytes)
            case.measure(result, size["rounds"])
            shutil.rmtree(place)
    finally:
        pa.set_cpu_count(threads[0])


class _Case:
    """One size of records; a key stands in it twice on average."""

    def __init__(self, folder: Path, rows: int, record_bytes: int) -> None:
        self.folder = folder
        self.rows = rows
        self.record_bytes = record_bytes
        self.tables = list(data.batches(rows, rows // 2, record_bytes))
        self.stamped = [
            table.append_column(
                "timestamp", pa.array([1] * table.num_rows, pa.int64())
            ).append_column("offset", pa.array(range(table.num_rows), pa.int64()))
            for table in self.tables
        ]
        self.log = self._filled(folder / "log")
        self.disk_bytes = int(data.size_mb(folder / "log") * 1e6)
        self.cleaned = 0

    def measure(self, result: Result, rounds: int) -> None:
        of = f"{self.record_bytes} B"
        result.compare(
            f"append, {of}",
            "thousand records/s",
            {
                "clog": self._rate(self.append),
                "Parquet alone": self._rate(self.write_parquet),
                "zstd alone": self._rate(self.compress),
                "disk alone": self._rate(self.write_bytes),
            },
            rounds=rounds,
        )
        result.compare(
            f"read, {of}",
            "thousand records/s",
            {
                "clog": self._rate(lambda: _drain(self.log.read())),
                "Parquet alone": self._rate(self.read_parquet),
            },
            rounds=rounds,
        )
        result.compare(
            f"table, {of}",
            "thousand records/s",
            {
                "clog": self._rate(lambda: _drain(self.log.table().to_batches())),
                "Parquet, hash and Arrow alone": self._rate(lambda: self.latest(write=False)),
            },
            rounds=rounds,
        )
        result.compare(
            f"clean, {of}",
            "thousand records/s",
            {
                "clog": self.clean,
                "Parquet, hash and Arrow alone": self._rate(lambda: self.latest(write=True)),
            },
            rounds=rounds,
        )

    def _rate(self, act):
        return rate(self.rows / 1e3, act)

    def _filled(self, place: Path) -> Log:
        log = Log.create(str(place), partitions=1, config=CONFIG)
        for table in self.tables:
            log.append(table, partition=0)
        return log

    def append(self) -> None:
        place = self.folder / "appended"
        shutil.rmtree(place, ignore_errors=True)
        self._filled(place)

    def write_parquet(self) -> None:
        place = self.folder / "plain"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for number, table in enumerate(self.stamped):
            path = place / f"{number}.parquet"
            pq.write_table(table, path, **_LIKE_CLOG)
            _sync(path)

    def compress(self) -> None:
        codec = pa.Codec("zstd", compression_level=ZSTD_LEVEL)
        for table in self.tables:
            for column in table.columns:
                for chunk in column.chunks:
                    codec.compress(chunk.buffers()[2])

    def write_bytes(self) -> None:
        path = self.folder / "bytes"
        path.write_bytes(bytes(self.disk_bytes))
        _sync(path)

    def read_parquet(self) -> None:
        for path in sorted((self.folder / "plain").iterdir()):
            pq.read_table(path, use_threads=False)

    def latest(self, *, write: bool) -> None:
        paths = sorted((self.folder / "plain").iterdir())
        table = pa.concat_tables([pq.read_table(path, use_threads=False) for path in paths])
        words = hash_keys(table.column("key").combine_chunks(), seed=1)
        columns = {
            "high": np.ascontiguousarray(words[:, 0]),
            "low": np.ascontiguousarray(words[:, 1]),
            "row": np.arange(len(words)),
        }
        groups = pa.table(columns).group_by(["high", "low"], use_threads=False)
        rows = groups.aggregate([("row", "max")]).column("row_max")
        left = table.take(pa.array(np.sort(rows.to_numpy())))
        if write:
            path = self.folder / "left.parquet"
            pq.write_table(left, path, **_LIKE_CLOG)
            _sync(path)

    def clean(self) -> float:
        place = self.folder / "cleaned"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.folder / "log", place)
        log = Log.open(str(place))
        log.roll()
        start = time.perf_counter()
        assert Cleaner(log).run_once(force=True)
        return self.rows / 1e3 / (time.perf_counter() - start)


def _drain(batches) -> None:
    for _ in batches:
        pass


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
