"""Two writers carry the changes of one database into a log, and retry: the same changes arrive
again, later, in another order. Compared by the source's log position, the table is right all the
same; compared by timestamps, it is wrong where two changes of a key are of one millisecond.

    python examples/tables/out_of_order_cdc.py [folder]
"""

import random
import struct
import sys
import tempfile
from dataclasses import dataclass

from clog.cleaner import Cleaner
from clog.storage import Log

CHANGES, KEYS, BATCH = 600, 12, 10
START_MS = 1_700_000_000_000
QUICK = {"min.cleanable.dirty.ratio": "0", "segment.bytes": "8k"}
BY_POSITION = {"compaction.strategy": "header", "compaction.strategy.header": "lsn"}
BY_TIME = {"compaction.strategy": "timestamp"}


@dataclass(frozen=True)
class Change:
    """What the database's log says: at a position, a key got a value, or None: it was deleted."""

    lsn: int
    time_ms: int
    key: str
    value: str | None

    def as_record(self) -> dict[str, object]:
        return {
            "key": self.key,
            "value": self.value,
            "timestamp": self.time_ms,
            "headers": [("lsn", struct.pack(">q", self.lsn))],
        }


def history(draw: random.Random) -> list[Change]:
    """The changes in the order of the database, some eight to a millisecond."""
    changes, time_ms = [], START_MS
    for lsn in range(1, CHANGES + 1):
        time_ms += draw.random() < 1 / 8
        value = None if draw.random() < 0.2 else f"value {lsn}"
        changes.append(Change(lsn, time_ms, f"key {draw.randrange(KEYS)}", value))
    return changes


def deliveries(changes: list[Change], draw: random.Random) -> list[list[Change]]:
    """What the writers append: each batch at least once, by one of the two, which are not equally
    fast; a batch whose answer was lost comes again, after others.
    """
    batches = [changes[i : i + BATCH] for i in range(0, len(changes), BATCH)]
    arrivals = []
    for number, batch in enumerate(batches):
        is_slow = number % 2
        arrivals.append((number + is_slow * draw.uniform(0, 4), batch))
        if draw.random() < 0.3:
            arrivals.append((number + draw.uniform(1, 8), batch))
    return [batch for _, batch in sorted(arrivals, key=lambda arrival: arrival[0])]


def state(changes: list[Change]) -> dict[bytes, bytes]:
    """The rows of the database after its changes."""
    rows = {c.key.encode(): c.value for c in sorted(changes, key=lambda c: c.lsn)}
    return {key: value.encode() for key, value in rows.items() if value is not None}


def table(log: Log) -> dict[bytes, bytes]:
    return {row["key"]: row["value"] for row in log.table().to_arrow().to_pylist()}


def carried(url: str, config: dict[str, str], batches: list[list[Change]]) -> tuple[int, int]:
    """Carries the changes into a new log, which is cleaned on the way; returns for how many keys
    the table was wrong in the end, and after how many appends it was wrong for any.
    """
    log = Log.create(url, partitions=2, config={**QUICK, **config})
    seen: list[Change] = []
    wrong_versions = 0
    for number, batch in enumerate(batches):
        log.append([change.as_record() for change in batch])
        seen += batch
        if number % 10 == 9:
            log.roll()
            Cleaner(log).run_once()
        wrong_versions += table(log) != state(seen)
    shown, wanted = table(log), state(seen)
    wrong = {key for key in shown.keys() | wanted.keys() if shown.get(key) != wanted.get(key)}
    return len(wrong), wrong_versions


def main(folder: str, seed: int = 21) -> dict[str, tuple[int, int]]:
    """Returns, by strategy, what `carried` does."""
    draw = random.Random(seed)
    batches = deliveries(history(draw), draw)
    ways = {"offset": {}, "timestamp": BY_TIME, "header": BY_POSITION}
    return {way: carried(f"{folder}/{way}", config, batches) for way, config in ways.items()}


if __name__ == "__main__":
    results = main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    for way, (keys, versions) in results.items():
        print(f"compared by {way}: {keys} keys wrong in the end; wrong after {versions} appends")
