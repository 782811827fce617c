"""S46: how long the bytes of a deleted key stay, counted with a manual clock, in every file."""

import pytest

from clog.cleaner import Cleaner
from clog.cleaner.duties.layout import WAIT_MS_MAX
from clog.cleaner.selection import TOMBSTONE_WAIT_MS_MAX
from clog_testing.invariants import check_log

HOUR_MS = 3_600_000
LAG, RETENTION, DEAD_ROWS, DELETE = (hours * HOUR_MS for hours in (10, 5, 70, 3))
CONFIG = {
    "max.compaction.lag.ms": LAG,
    "delete.retention.ms": RETENTION,
    "dead.rows.delay.ms": DEAD_ROWS,
    "file.delete.delay.ms": DELETE,
    "segment.bytes": "100000",
    "compression.type": "none",
}
ROUND = HOUR_MS
BOUND = (
    max(LAG, WAIT_MS_MAX) + (2 * RETENTION + TOMBSTONE_WAIT_MS_MAX + DEAD_ROWS) + DELETE + 3 * ROUND
)
"""The sum that docs/semantics.md states."""


def files_with(store, *words):
    """Paths of the files that contain any of the words."""
    return [
        found.path
        for folder in ("_clog/",)
        for found in store.list(folder)
        if any(word in store.get(found.path) for word in words)
    ]


def secret_and(log, count, partitions):
    """A key to be deleted among others, in one object."""
    keys = ["secret-key", *(f"k{i:03}" for i in range(count))]
    values = ["secret-value", *("x" * 20 for _ in range(count))]
    rows = [{"key": k, "value": v} for k, v in zip(keys, values, strict=True)]
    log.append(rows, partition=[i % partitions for i in range(len(rows))])


@pytest.mark.parametrize("traffic", [False, True], ids=["a quiet log", "a log that is written"])
@pytest.mark.parametrize(
    ("partitions", "object_bytes", "is_marked"),
    [(1, 6000, True), (1, 64 << 20, False), (2, 64 << 20, False)],
    ids=["big chunk", "small chunk", "shared object"],
)
def test_the_bytes_of_a_deleted_key_go(
    make_log, store, clock, partitions, object_bytes, is_marked, traffic
):
    """S46: key and value, in every object and document, by the stated sum; and not for lack of a
    bitmap on the way.
    """
    log = make_log(partitions, **CONFIG, object_bytes=object_bytes)
    secret_and(log, 120, partitions)
    cleaner = Cleaner(log)
    log.roll()
    cleaner.run_once(force=True)
    log.append([{"key": "secret-key", "value": None}], partition=0)
    deleted_ms, seen = clock.now_ms(), 0
    assert files_with(store, b"secret-key")
    while files_with(store, b"secret-key", b"secret-value"):
        clock.advance(ROUND)
        if traffic:
            log.append([{"key": "busy", "value": str(clock.now_ms())}], partition=0)
        cleaner.run_once()
        seen += sum(c.dead is not None for _, c in log.handle.manifest().chunks())
        assert clock.now_ms() - deleted_ms <= BOUND
    assert (seen > 0) == is_marked
    assert b"secret-key" not in {row["key"] for row in log.table().to_arrow().to_pylist()}
    check_log(store, every_version=False)
