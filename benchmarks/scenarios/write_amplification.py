"""Write amplification: bytes written for each byte of keys and values.

A stream of 1,000 records of 100 bytes a second, over `seconds` seconds and 20,000 keys, is
committed each second or each minute. clog's figure counts every byte that it puts: objects,
commits, snapshots, pages, and what its cleaner writes. Kafka's counts the broker's files of the
topic, and what its cleaner reports as written. Both compress with zstd, have segments of the same
size, and clean when half of a log is dirty; clog checks every ten minutes of the stream, Kafka all
the time. Delta Lake (delta-rs) and PyIceberg only append, and nothing of theirs is compacted; a
`MERGE` would write far more. Only bytes are counted, so ten minutes of a stream take seconds.
"""

import time
from pathlib import Path

import pyarrow as pa
from harness import data
from harness.measure import Result
from peers.environments import VERSIONS
from peers.kafka import Broker, produce

from clog.cleaner import Cleaner
from clog.storage import Log
from clog.storage.store import open_store
from clog_testing.counting import CountingStore
from scenarios.table_libraries import DeltaTable, IcebergTable

TITLE = "Write amplification"
ENVIRONMENT = "tables"
ENGINE = "Python; Kafka: the broker"
SIZES = {
    "smallest": {"seconds": 120, "records_a_second": 20},
    "quick": {"seconds": 600, "records_a_second": 1_000},
    "full": {"seconds": 1_800, "records_a_second": 1_000},
}
RECORD_BYTES = 100
KEYS = 20_000
CLEAN_S = 600
SEGMENT_BYTES = 4 << 20
PAUSE_S = 1.5


def run(size: dict[str, int], folder: Path, result: Result) -> None:
    result.versions |= {"Apache Kafka": VERSIONS["kafka"]}
    seconds, each = size["seconds"], size["records_a_second"]
    stream = pa.concat_tables(data.batches(seconds * each, KEYS, RECORD_BYTES)).combine_chunks()
    user_bytes = stream.num_rows * RECORD_BYTES
    for trigger_s in (1, 60):
        place = folder / str(trigger_s)
        place.mkdir()
        commits = [
            stream.slice(first, trigger_s * each)
            for first in range(0, stream.num_rows, trigger_s * each)
        ]
        what = f"write amplification, commits of {trigger_s} s"
        written, cleaned = _clog(place / "clog", commits, CLEAN_S // trigger_s)
        result.add(
            what,
            "clog",
            "times",
            written / user_bytes,
            lower=True,
            note=_parts(cleaned, user_bytes),
        )
        written, cleaned = _kafka(place / "kafka", commits, CLEAN_S // trigger_s)
        note = _parts(cleaned, user_bytes)
        result.add(what, "Apache Kafka", "times", written / user_bytes, lower=True, note=note)
        for who, table in (
            ("delta-rs, appending", DeltaTable(place / "delta")),
            ("PyIceberg, appending", IcebergTable(place / "iceberg")),
        ):
            table.fill(commits[0])
            limit = min(len(commits), 300)
            for rows in commits[1:limit]:
                table.append(rows)
            share = limit / len(commits)
            size_bytes = data.size_mb(table.folder) * 1e6
            note = f"the first {limit} commits"
            times = size_bytes / (user_bytes * share)
            result.add(what, who, "times", times, lower=True, note=note)


def _parts(cleaned: float, user_bytes: int) -> str:
    return f"{cleaned / user_bytes:.2f} of it by the cleaner"


def _clog(folder: Path, commits: list[pa.Table], clean_each: int) -> tuple[float, float]:
    """Bytes written in all, and by the cleaner."""
    store = CountingStore(open_store(str(folder)))
    config = {"segment.bytes": SEGMENT_BYTES, "min.cleanable.dirty.ratio": 0.5}
    log = Log.create(store, partitions=1, config=config)
    by_cleaner = 0
    for number, rows in enumerate(commits, 1):
        log.append(rows, partition=0)
        if number % clean_each == 0:
            before = store.bytes_out
            Cleaner(log).run_once()
            by_cleaner += store.bytes_out - before
    return store.bytes_out, by_cleaner


def _kafka(folder: Path, commits: list[pa.Table], clean_each: int) -> tuple[float, float]:
    """Bytes of the topic's logs, without their indexes: in all, and by the cleaner.

    What was appended is what is there, and what passes took away; a pass writes all that it leaves.
    """
    config = {
        "log.cleanup.policy": "compact",
        "num.partitions": 1,
        "log.segment.bytes": SEGMENT_BYTES,
        "log.cleaner.min.cleanable.ratio": 0.5,
        "log.cleaner.backoff.ms": 200,
        "log.segment.delete.delay.ms": 0,
    }
    with Broker(folder, config) as broker:
        for first in range(0, len(commits), clean_each):
            produce(broker.address, "t", commits[first : first + clean_each])
            time.sleep(PAUSE_S)  # the cleaner looks five times a second
        passes = broker.passes()
    by_cleaner = sum(p.end_mb for p in passes) * 1e6
    there = sum(path.stat().st_size for path in (folder / "data" / "t-0").glob("*.log"))
    taken = sum(p.start_mb - p.end_mb for p in passes) * 1e6
    return there + taken + by_cleaner, by_cleaner
