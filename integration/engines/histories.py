"""Logs with random histories, for engines to read their published views."""

from pathlib import Path
from random import Random
from typing import Any

from clog.cleaner import Cleaner
from clog.storage import Clock, Log

CONFIG = {
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "0",
    "segment.bytes": "2k",
    "file.delete.delay.ms": "1h",
}
FORMATS = ("delta", "iceberg")


def history(path: Path, seed: int, clock: Clock | None = None) -> Log:
    """Returns a log that was appended to, cleaned, cut and published, in a random order."""
    random = Random(seed)
    partitions = random.randint(1, 3)
    log = Log.create(str(path), partitions, CONFIG, {"fsync": False}, clock=clock)
    for _ in range(random.randint(3, 12)):
        match random.choice(["append", "append", "append", "clean", "delete", "publish"]):
            case "append":
                log.append([_record(random) for _ in range(random.randint(1, 40))])
            case "clean":
                log.roll()
                Cleaner(log).run_once(force=True)
            case "delete":
                ends = log.end_offsets()
                log.delete_records({p: random.randint(0, end) for p, end in ends.items()})
            case "publish":
                for name in FORMATS:
                    log.publish(name)
    return log


def rows_of(log: Log, version: int | None = None) -> list[list[Any]]:
    """Returns the sorted rows of the log's table: key and value in hex, milliseconds."""
    table = log.table(at=version).to_arrow(columns=["key", "value", "timestamp"])
    table = table.set_column(2, "timestamp", table.column("timestamp").cast("int64"))
    columns = [column.to_pylist() for column in table.columns]
    return sorted(
        [key.hex(), value.hex(), time_us // 1000]
        for key, value, time_us in zip(*columns, strict=True)
    )


def _record(random: Random) -> dict[str, Any]:
    value = None if random.random() < 0.1 else str(random.random())
    return {
        "key": f"k{random.randint(0, 30)}",
        "value": value,
        "timestamp": random.randint(1, 10**9),
        "headers": {"trace": b"1"} if random.random() < 0.2 else None,
    }
