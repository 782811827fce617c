"""The changes between any two versions of random histories, against a model of sets (S79 to S82).

The log is cleaned, trimmed by offset and by time, erased from, evolved, and written by transactions
that others see or not. After each operation the model, which is a list of records for each
partition, says what the table is; the versions in between are as they were read at once.
"""

import random
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from clog.cleaner import Cleaner
from clog.storage import InvalidInputError, Log, ManualClock
from clog.storage.env import SeededIds
from clog.storage.read import changes
from clog_testing.crash import discard, memory_store

PARTITIONS, KEYS, STEPS = 2, 9, 22
HOUR_MS = 3_600_000
COLUMNS = {"_change_type", "_commit_version", "_commit_timestamp"}
KINDS = ("bytes", "plain", "ordered")


class History:
    """A log with a random history, and what its table was at each version."""

    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.kind = KINDS[seed % len(KINDS)]
        self.clock, self.ids = ManualClock(1_700_000_000_000), SeededIds(seed)
        self.store = memory_store()
        config = {
            "min.cleanable.dirty.ratio": 0,
            "delete.retention.ms": 2 * HOUR_MS,
            "file.delete.delay.ms": self.dice.choice([1000 * HOUR_MS, 12 * HOUR_MS]),
            "segment.bytes": self.dice.choice([60, 400, 4000]),
            "dead.rows.delay.ms": self.dice.choice([0, HOUR_MS]),
        }
        if self.kind == "ordered":
            config |= {"compaction.strategy": "timestamp"}
            config |= {"compaction.late": self.dice.choice(["keep", "drop"])}
        elif self.dice.random() < 0.3:
            config |= {"cleanup.policy": "compact,delete", "retention.ms": 5 * HOUR_MS}
        own = {"clock": self.clock, "ids": self.ids}
        if self.kind == "plain":
            schema = {"id": pa.int64(), "n": pa.int32(), "tags": pa.list_(pa.string())}
            self.log = Log.create(self.store, PARTITIONS, config, key="id", schema=schema, **own)
        else:
            self.log = Log.create(self.store, PARTITIONS, config, **own)
        self.records = [[] for _ in range(PARTITIONS)]
        self.open = None
        self.tables, self.number = {}, 0
        self.note()

    def run(self, steps=STEPS):
        for _ in range(steps):
            self.clock.advance(self.dice.choice([1, 1000, HOUR_MS]))
            names = ["append"] * 6 + ["clean", "clean", "roll", "trim", "transact", "erase"]
            getattr(self, self.dice.choice([*names, "evolve", "alter"]))()
            self.note()
        return self

    def note(self):
        """Takes down the table at each version since the last one that was."""
        newest = self.log.version
        for version in range(max(self.tables, default=-1) + 1, newest + 1):
            self.tables[version] = self.rows(self.log.table(at=version))

    def rows(self, table):
        """The rows of a table, by where they are: for a table of records with all columns."""
        columns = ["partition", "offset", "timestamp", "key", "value", "headers"]
        found = {}
        for record in table.to_batches(columns=columns):
            for row in record.to_pylist():
                place = row["partition"], str(row["key"])
                assert place not in found, "a table has two rows of a key"
                found[place] = row
        return found

    def made(self):
        rows = []
        for _ in range(self.dice.randrange(1, 6)):
            key = self.dice.randrange(KEYS)
            self.number += 1
            is_gone = self.dice.random() < 0.25
            n = self.dice.randrange(3)
            at = self.clock.now_ms() - self.dice.choice([0, 0, 10, HOUR_MS])
            if self.kind == "plain":
                value = None if is_gone else {"n": n, "tags": [None, [], ["a"]][n]}
                rows.append({"key": key, "value": value})
            else:
                value = None if is_gone else str(self.dice.choice([n, self.number]))
                rows.append({"key": str(key), "value": value, "timestamp": at})
        return rows

    def append(self):
        self.log.append(self.made())

    def clean(self):
        with suppress(InvalidInputError):
            cleaner = Log.open(self.store, clock=self.clock, ids=self.ids)
            Cleaner(cleaner, dedupe_buffer_bytes=self.dice.choice([200, 1 << 20])).run_once(
                force=self.dice.random() < 0.8
            )

    def roll(self):
        self.log.roll()

    def trim(self):
        ends = self.log.stable_offsets()
        starts = self.log.start_offsets()
        before = {p: self.dice.randint(starts[p], end) for p, end in ends.items()}
        with suppress(InvalidInputError):
            self.log.delete_records({p: before[p] for p in ends if self.dice.random() < 0.5})

    def transact(self):
        day_ms = 24 * HOUR_MS
        if self.open is None:
            self.open = self.log.transaction("t", day_ms, visible=self.dice.random() < 0.7)
        if self.dice.random() < 0.6:
            self.open.append(self.made())
        elif self.dice.random() < 0.7:
            self.open = self.open.commit() and None
        else:
            self.open = self.open.abort()

    def erase(self):
        keys = self.dice.sample(range(KEYS), self.dice.randrange(1, 3))
        keys = keys if self.kind == "plain" else list(map(str, keys))
        self.log.erase(keys, notify=self.dice.random() < 0.5)

    def evolve(self):
        if self.kind == "plain" and "note" not in self.log.table().schema.names:
            self.log.evolve(add={"value.note": pa.string()}, widen={"value.n": pa.int64()})

    def alter(self):
        if self.kind == "ordered" and self.dice.random() < 0.3:
            with suppress(InvalidInputError):
                strategy = self.dice.choice(["offset", "timestamp"])
                self.log.alter({"compaction.strategy": strategy})


def shown(history, row):
    """A row as its table shows it: plain columns, or those of records."""
    if row is None or history.kind != "plain":
        return row
    later = {"note": None} if history.has_note else {}
    return {"id": row["key"], **row["value"], **later}


def check(history, pairs):
    log = history.log
    newest = log.start_offsets()
    readable = range(log.handle.tip.head.oldest_readable, log.version + 1)
    for _ in range(pairs):
        a, b = sorted(history.dice.choices(readable, k=2))
        head = log.handle.manifest_at(b).head
        starts = head.partitions.start
        history.has_note = history.kind == "plain" and "note" in log.table(at=b).schema.names
        was, now = history.tables[a], history.tables[b]
        was, now = (
            {
                place: shown(history, row)
                for place, row in table.items()
                if not starts[place[0]] <= row["offset"] < newest[place[0]]
            }
            for table in (was, now)
        )
        about = f"{a} to {b} of {history.kind}"
        check_net(history, a, b, was, now, about)
        check_each(history, a, b, was, now, about)


def check_net(history, a, b, was, now, about):
    """The fewest changes that lead from one table to the other."""
    wanted = []
    for place in was.keys() | now.keys():
        old, new = was.get(place), now.get(place)
        if old != new:
            both = old is not None and new is not None
            wanted += [("update_preimage" if both else "delete", old)] * (old is not None)
            wanted += [("update_postimage" if both else "insert", new)] * (new is not None)
    found = history.log.changes(since=a, until=b).to_pylist()
    time = history.log.handle.manifest_at(b).time_ms
    for change in found:
        assert change["_commit_version"] == b, about
        assert change["_commit_timestamp"].timestamp() * 1000 == time, about
    told = [(change["_change_type"], bare(change)) for change in found]
    assert sorted(map(str, told)) == sorted(map(str, wanted)), about
    for (kind, row), (then, after) in pairwise([*told, (None, None)]):
        assert (kind == "update_preimage") == (then == "update_postimage"), about
        if kind == "update_preimage":
            assert key_of(row) == key_of(after), about


def check_each(history, a, b, was, now, about):
    """One after the other they lead from each version to the next, each from what there was."""
    log = history.log
    found = log.changes(since=a, until=b, mode="each").to_pylist()
    versions = [change["_commit_version"] for change in found]
    assert versions == sorted(versions), about
    assert all(a < version <= b for version in versions), about
    rows = sorted(map(str, was.values()))
    for change in found:
        row = str(bare(change))
        if change["_change_type"] in ("delete", "update_preimage"):
            rows.remove(row)
        else:
            rows.append(row)
    assert sorted(rows) == sorted(map(str, now.values())), about


def bare(change):
    return {name: value for name, value in change.items() if name not in COLUMNS}


def key_of(row):
    return row.get("id", (row.get("partition"), row.get("key")))


@pytest.mark.parametrize("seed", range(6))
def test_changes_are_the_difference_of_the_tables(seed):
    history = History(seed)
    try:
        check(history.run(), 12)
    finally:
        discard(history.store)


@pytest.mark.nightly
@pytest.mark.parametrize("some", range(50))
def test_five_hundred_histories(some):
    for seed in range(10 * some, 10 * some + 10):
        history = History(seed)
        try:
            check(history.run(), 12)
        finally:
            discard(history.store)


def one_image_too_many(patch):
    """A key that ends as it began gives a pair of images."""
    patch.setattr(changes, "_are_equal", lambda some, _: np.zeros(len(some), np.bool_))


def an_image_of_the_wrong_version(patch):
    """The former rows are those of the later version."""
    plan = changes._plan

    def later(before, after, p, hidden):
        found = plan(before, after, p, hidden)
        return replace(found, before=changes.plan_table(after, p))

    patch.setattr(changes, "_plan", later)


def a_missed_retention(patch):
    """Rows that left as the log start rose are no deletes."""
    patch.setattr(changes, "_has_risen", lambda *_: False)


@pytest.mark.parametrize(
    "plant", [one_image_too_many, an_image_of_the_wrong_version, a_missed_retention]
)
def test_planted_bugs_are_found(plant, monkeypatch):
    """Within twelve histories, each of which is right without the bug."""
    plant(monkeypatch)
    for seed in range(12):
        history = History(seed)
        try:
            check(history.run(), 6)
        except (AssertionError, ValueError):
            return
        finally:
            discard(history.store)
    pytest.fail("it was not found")
