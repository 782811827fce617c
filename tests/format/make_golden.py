"""Writes the golden logs of this version of the format: `python tests/format/make_golden.py`.

Each case is a log and what is in it, as the independent reader finds it. Clock and ids are fixed,
so that the same releases of clog and pyarrow write the same bytes. Logs that a released clog wrote
are never written again: they are what it left on people's disks.
"""

import json
import random
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import independent_reader as ir
import numpy as np
import pyarrow as pa
from fsspec.implementations.memory import MemoryFileSystem

from clog.cleaner import Cleaner
from clog.storage import Log, ManualClock
from clog.storage.commit import committer as committing
from clog.storage.commit.appends import Writer
from clog.storage.cuts import drop_cut, name_cut
from clog.storage.env import SeededIds
from clog.storage.format import chunks as storage_bitmaps
from clog.storage.format import columns as storage_columns
from clog.storage.format import commits, writers
from clog.storage.format import manifest as snapshots
from clog.storage.format.log_info import FeatureNames
from clog.storage.objects import writer
from clog.storage.objects.records import to_records
from clog.storage.objects.writer import DataObject
from clog.storage.store import open_store
from clog.storage.types import columns as columns_of_logs
from clog_testing.clocked import ClockedStore
from clog_testing.crash import discard
from clog_testing.older import as_before

GOLDEN = Path(__file__).parent / "golden"
START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
Case = Callable[[Path], None]


def create(
    root: Path,
    partitions: int = 2,
    schema: dict | None = None,
    features: Sequence[str] = (),
    **config: str,
) -> Log:
    names = {name.replace("_", "."): value for name, value in config.items()}
    made = {"clock": ManualClock(START_MS), "ids": SeededIds(20_231_114)}
    return Log.create(str(root), partitions, names, schema=schema, features=features, **made)


def plain(root: Path) -> None:
    """Tombstones, empty values and keys, headers; a config set and reset; a start in mid-chunk."""
    log = create(root, partitions=2)
    log.append(
        [
            {
                "key": "a",
                "value": "1",
                "headers": [("h", b"x"), ("h", None)],
                "timestamp": START_MS,
            },
            {"key": "b", "value": None, "timestamp": START_MS - 5},
            {"key": b"\x00\xff", "value": b"", "timestamp": START_MS},
            {"key": "", "value": "ü", "timestamp": START_MS + 1},
        ],
        partition=[0, 0, 0, 1],
    )
    log.alter({"retention.ms": "86400000", "compression.type": "snappy"})
    log.append([{"key": "c", "value": "2"}, {"key": "a", "value": "3"}], partition=[1, 0])
    log.roll(0)
    log.alter({"compression.type": None})
    log.append([{"key": "d", "value": "4"}], partition=0)
    log.delete_records({0: 2})


def append_time(root: Path) -> None:
    """Records without key; LogAppendTime between two times of CreateTime."""
    log = create(root, partitions=1, cleanup_policy="delete")
    log.append([{"key": None, "value": "1", "timestamp": START_MS - 7}])
    log.alter({"message.timestamp.type": "LogAppendTime"})
    log.handle.clock.advance(50)
    log.append([{"key": None, "value": "2", "timestamp": 3}, {"key": "k", "value": None}])
    log.alter({"message.timestamp.type": "CreateTime"})
    log.append([{"key": None, "value": "3", "timestamp": START_MS}])


def paged(root: Path) -> None:
    """Snapshots and pages, edits in separate documents, producers."""
    log = create(root, partitions=3)
    for n in range(28):
        log.handle.clock.advance(10)
        records = [{"key": f"{n}-{i}", "value": f"{n}"} for i in range(4)]
        with patch.object(commits, "INLINE_EDIT_BYTES_MAX", 1 << 20 if n % 12 else 0):
            log.append(records, producer=(f"producer-{n % 9}", n))
        if n % 4 == 3:
            log.roll()
    log.delete_records({2: 11})


def older_writers(root: Path) -> None:
    """Pages of older writers above pages; writers that returned, one id of several kinds."""
    with (
        patch.object(writers, "WRITERS_MAX", 4),
        patch.object(writers, "PAGE_BYTES_MAX", 500),
    ):
        log = create(root, partitions=1)
        for n in range(22):
            kind = ("txn", "producer")[n % 2]
            writer = Writer(f"writer-{n * 7 % 9}", kind, n, content=f"{n:032x}")
            log.append_objects(objects_of(log, n), writer)


def objects_of(log: Log, n: int) -> list[DataObject]:
    records, _ = to_records([{"key": f"k{n}", "value": "v", "timestamp": START_MS + n}], now_us=0)
    writer = log.object_writer()
    writer.add(records, np.zeros(1, np.int32))
    return writer.finish()


def cleaned(root: Path) -> None:
    """Superseded records, gaps, merged segments, tombstones with horizons, some that are gone."""
    log = create(root, delete_retention_ms="1000", min_cleanable_dirty_ratio="0")
    cleaner = Cleaner(log, clock=log.handle.clock)
    log.append([{"key": f"gone{i}", "value": "x" if i else None} for i in range(4)])
    log.append([{"key": f"gone{i}", "value": None} for i in range(4)])
    for n in range(4):
        log.append([{"key": f"k{i}", "value": f"{n}.{i}"} for i in range(8)])
        log.append([{"key": "k0", "value": None}, {"key": "k5", "value": None if n % 2 else "x"}])
        log.roll()
        log.handle.clock.advance(700)
        cleaner.run_once(force=True)
    log.append([{"key": "k0", "value": "last"}])


def indexed(root: Path) -> None:
    """Key indexes of several blocks, one with a key that is null; snapshots that know of them."""
    with (
        patch.object(writer, "WHOLE_BYTES", 0),
        patch.object(writer, "GROUP_ROWS", 10),
    ):
        log = create(root, min_cleanable_dirty_ratio="0")
        for n in range(6):
            log.append([{"key": f"k{i % 23}", "value": f"{n}.{i}"} for i in range(n, 40)])
            log.roll()
            log.handle.clock.advance(700)
            Cleaner(log, clock=log.handle.clock).run_once(force=True)
        log.alter({"cleanup.policy": "delete"})
        log.append([{"key": None if i == 2 else f"d{i}", "value": "x"} for i in range(9)])
        log.roll()
        Cleaner(log, clock=log.handle.clock).run_once(force=True)


def dead_rows(root: Path) -> None:
    """Bitmaps inline and in files, one that took the place of another, one whose chunk is gone."""
    names = {"delete_retention_ms": "1000", "min_cleanable_dirty_ratio": "0"}
    log = create(root, partitions=1, object_bytes="1200", segment_bytes="4000", **names)
    cleaner = Cleaner(log, clock=log.handle.clock)
    log.append([{"key": f"k{i:02}", "value": f"{i}" * 8} for i in range(99)])
    log.roll()
    for keys, limit in (
        ((3, 4), 1024),
        ((50, 5), 0),
        ((51,), 0),
        (range(60, 90), 0),
        ((95,), 1024),
    ):
        log.handle.clock.advance(10)
        log.append([{"key": f"k{i:02}", "value": "new" if i % 2 else None} for i in keys])
        log.roll()
        with patch.object(storage_bitmaps, "INLINE_BYTES_MAX", limit):
            cleaner.run_once(force=True)


def field_ids(root: Path) -> None:
    """Objects whose columns have no field ids, as before there were any, and such as have; some
    rewritten together.
    """
    log = create(root, delete_retention_ms="1000", dead_rows_delay_ms="0")
    cleaner = Cleaner(log, clock=log.handle.clock)
    for n in range(6):
        before = patch.object(columns_of_logs, "with_ids", lambda field: field)
        with before if n < 3 else nullcontext():
            log.append([{"key": f"k{i % 11}", "value": f"{n}.{i}"} for i in range(n, 15)])
            log.append([{"key": f"k{n}", "value": None, "headers": [("h", b"x"), ("h", None)]}])
            log.roll()
        log.handle.clock.advance(400)
        if n == 4:
            cleaner.run_once(force=True)


def masks(root: Path) -> None:
    """Masks inline and in files, of clean and dirty chunks, some carried over by rewrites; a bitmap
    that took the place of another; rows without key; chunks that came after."""
    names = {"delete_retention_ms": "1000", "min_cleanable_dirty_ratio": "0"}
    log = create(root, partitions=2, segment_bytes="3000", **names)
    log.alter({"table.masks": "true"})
    cleaner = Cleaner(log, clock=log.handle.clock)
    for n in range(9):
        log.handle.clock.advance(400)
        rows = [(f"k{(n * 7 + i) % 40:02}", None if i % 5 == n % 5 else f"{n}") for i in range(20)]
        log.append([{"key": k, "value": v} for k, v in rows])
        if n % 3 == 1:
            log.roll()
        with patch.object(storage_bitmaps, "INLINE_BYTES_MAX", 1024 * (n % 2)):
            cleaner.run_once(force=n % 4 == 2)
    log.delete_records({0: 11})
    log.alter({"cleanup.policy": "delete"})
    log.append([{"key": None if i == 2 else f"k{i:02}", "value": "x"} for i in range(9)])
    cleaner.run_once()
    log.append([{"key": "k03", "value": "after"}])


def order_values(root: Path) -> None:
    """By offset, then by timestamp: late records dropped and to be dropped, several pairs."""
    names = {"delete_retention_ms": "0", "min_cleanable_dirty_ratio": "0"}
    log = create(root, partitions=2, segment_bytes="600", **names)
    log.alter({"table.masks": "true"})
    cleaner = Cleaner(log, clock=log.handle.clock)
    draw = random.Random(7)
    for n in range(16):
        log.handle.clock.advance(10)
        rows = [(f"k{draw.randrange(12)}", draw.randrange(1000)) for _ in range(12)]
        at = {"timestamp": START_MS - 2000} if n < 3 else {}
        made = [
            {"key": k, "value": None if t % 4 == 0 else f"{t}", "timestamp": START_MS - 2000 + t}
            for k, t in rows
        ]
        log.append([row | at for row in made])
        if n % 3 == 2:
            log.roll()
        if n == 3:
            log.alter({"compaction.strategy": "timestamp"})
        if n == 8:
            log.alter({"compaction.late": "drop"})
        cleaner.run_once(force=True)


def columns(root: Path) -> None:
    """Heads that hold the columns of some partitions, and refer to those of all; one with all."""
    with patch.object(storage_columns, "INLINE_PARTITIONS_MAX", 8):
        log = create(root, partitions=20, segment_chunks="3")
        for n in range(34):
            log.handle.clock.advance(10)
            partitions = range(20) if n == 17 else [n % 5, n % 3 + 6]
            log.append(
                [{"key": f"{n}-{p}", "value": f"{n}"} for p in partitions], partition=partitions
            )
            if n % 11 == 5:
                log.delete_records({1: -1, 4: 1})
        log.roll(7)


def transactions(root: Path) -> None:
    """Ids taken up again and again, one aborted; positions inline and in a document."""
    log, source = create(root), create(root.parent / "source", partitions=200)
    for n in range(3):
        clock, ids = log.handle.clock, SeededIds(n)
        holder = Log.open(str(root), clock=clock, ids=ids)
        with holder.transaction("copy") as t:
            t.append([{"key": f"a{n}", "value": "1"}, {"key": f"b{n}", "value": "2"}])
            t.append([{"key": f"c{n}", "value": None}], partition=0)
            t.positions(source, {n: 100 * n})
        left = holder.transaction("copy")
        left.append([{"key": "never", "value": "seen"}])
        left.abort()
        with holder.transaction("large", timeout_ms=1_000) as t:
            t.positions(source, {p: 10**9 + p + n for p in range(200)})
    shutil.rmtree(root.parent / "source")


def undecided(root: Path) -> None:
    """Visible transactions committed, aborted and open beside plain appends; one over two logs in
    which this one takes part, and the outcome of one of which another log has not heard; markers,
    some with horizons; aborted rows that a pass drops, and some in pages.
    """
    names = {"delete_retention_ms": "1000", "min_cleanable_dirty_ratio": "0"}
    log, clock = create(root, segment_chunks="2", **names), ManualClock(START_MS)
    elsewhere = open_store("memory://golden/other")  # Its URL stands in the log.
    other = Log.create(elsewhere, 2, clock=clock, ids=SeededIds(7))
    cleaner = Cleaner(log, clock=log.handle.clock)
    for n in range(6):
        log.handle.clock.advance(10)
        with suppress(_UndoneError), log.transaction("visible", visible=True) as t:
            t.append([{"key": f"k{i % 5}", "value": f"{n}.{i}"} for i in range(n, 9)])
            log.append([{"key": "k1", "value": f"plain {n}"}, {"key": "k2", "value": None}])
            t.append([{"key": "k0", "value": None}], partition=n % 2)
            if n % 3 == 1:
                raise _UndoneError
        if n % 2:
            log.roll(0)
        if n == 3:
            cleaner.run_once(force=True)
    t = other.transaction("several")
    t.append([{"key": "there", "value": "1"}])
    t.append([{"key": "here", "value": "1"}, {"key": "k4", "value": "1"}], log=log)
    t.commit()
    t = log.transaction("home")
    t.append([{"key": "home", "value": "1"}])
    t.append([{"key": "there", "value": "2"}], log=other)
    t._work.several.finish = lambda _: {}
    t.commit()
    t = log.transaction("open", visible=True)
    t.append([{"key": "k0", "value": "open"}], partition=1)
    log.append([{"key": f"k{i}", "value": "last"} for i in range(5)])
    discard(elsewhere)


def whole(root: Path) -> None:
    """Visible transactions that began between appends of others, one after the other: the last one
    holds back all of them, and deferred ones and their other partitions with them.
    """
    log, clock = create(root, segment_chunks="3"), ManualClock(START_MS)
    logs = [Log.open(str(root), clock=clock, ids=SeededIds(n)) for n in range(20, 24)]
    begun = []
    for n, each in enumerate(logs):
        begun.append(each.transaction(f"visible-{n}", visible=True))
        begun[n].append([{"key": "k", "value": f"{n} begins"}], partition=n % 2)
        with log.transaction("deferred") as t:
            t.append([{"key": f"d{i}", "value": f"{n}.{i}"} for i in range(4)])
        if n:
            begun[n - 1].append([{"key": "k", "value": f"{n - 1} goes on"}], partition=n % 2)
            begun[n - 1].append([{"key": "k", "value": f"{n - 1} goes on"}], partition=0)
            begun[n - 1].commit() if n < 3 else begun[n - 1].abort()
    log.append([{"key": "k", "value": "plain"}], partition=0)


class _UndoneError(Exception):
    """What makes a transaction abort."""


def upgraded(root: Path) -> None:
    """Made without features: a pass that marks, and one is added, as of a release before 0.1.0."""
    names = {"delete_retention_ms": "1000", "min_cleanable_dirty_ratio": "0"}
    with as_before():
        log = create(root, partitions=1, object_bytes="1200", segment_bytes="4000", **names)
        cleaner = Cleaner(log, clock=log.handle.clock)
        log.append([{"key": f"k{i:02}", "value": f"{i}" * 8} for i in range(99)])
        log.roll()
        for keys in ((3, 4), (50, 5)):
            log.handle.clock.advance(10)
            log.append([{"key": f"k{i:02}", "value": "new"} for i in keys])
            log.roll()
            cleaner.run_once(force=True)
            log.upgrade(["dead-rows"])


_OF_0_2_0 = FeatureNames(("dead-rows", "undecided-records"), ("transactions",))


def one_kind(root: Path) -> None:
    """A log of 0.2.0 with an open visible transaction, which holds back what comes after its own
    records, of the others only what this release adds; and a mask.
    """
    with as_before(_OF_0_2_0):
        log, clock = create(root, segment_chunks="3"), ManualClock(START_MS)
        logs = [Log.open(str(root), clock=clock, ids=SeededIds(n)) for n in range(20, 23)]
        begun = [each.transaction(f"t{n}", visible=True) for n, each in enumerate(logs)]
        for n, t in enumerate(begun):
            t.append([{"key": "k", "value": f"{n} begins"}], partition=n % 2)
        begun[1].append([{"key": "k", "value": "1 goes on"}], partition=0)
        begun[1].commit()
    with log.transaction("deferred") as t:
        t.append([{"key": f"d{i}", "value": f"{i}"} for i in range(4)])
    begun[2].append([{"key": "k", "value": "2 goes on"}], partition=1)
    begun[2].commit()
    log.alter({"table.masks": "true"})
    log.append([{"key": "k", "value": "plain"}], partition=0)
    begun[0].commit()
    log.append([{"key": "k", "value": "after"}], partition=1)
    Cleaner(log, clock=clock).run_once()


def typed(root: Path) -> None:
    """Columns of many types, schemas that evolve, objects of each, some rewritten, key indexes."""
    with patch.object(writer, "WHOLE_BYTES", 0):
        kinds = [
            *(("n", pa.int32()), ("x", pa.float32()), ("s", pa.string()), ("b", pa.binary())),
            *(("d", pa.decimal128(6, 2)), ("t", pa.timestamp("us", "UTC")), ("ok", pa.bool_())),
            ("l", pa.list_(pa.struct([("q", pa.int8()), ("w", pa.string())]))),
            ("m", pa.map_(pa.string(), pa.int64())),
            pa.field("id", pa.uint16(), nullable=False),
        ]
        key = pa.struct([("a", pa.int32()), ("b", pa.string())])
        schema = {"key": key, "value": pa.struct(kinds)}
        log = create(root, schema=schema, min_cleanable_dirty_ratio="0")
        for n in range(8):
            log.append([typed_record(n, i) for i in range(n, 30)])
            log.handle.clock.advance(700)
            if n == 2:
                add = {"value.more": pa.list_(pa.string()), "value.l.element.z": pa.int8()}
                log.evolve(add=add)
            if n == 4:
                widen = {"value.n": pa.int64(), "value.x": pa.float64(), "key.a": pa.int64()}
                log.evolve(widen=widen | {"value.d": pa.decimal128(9, 2)}, relax=["value.id"])
            if n % 3 == 1:
                log.roll(0)
                Cleaner(log, clock=log.handle.clock).run_once(force=True)


def typed_record(n: int, i: int) -> dict:
    key = {"a": i % 7 - 3, "b": None if i % 5 == 0 else "\0" * (i % 3)}
    if (n + i) % 11 == 0:
        return {"key": key, "value": None, "headers": [("h", b"x")]}
    value = {
        "n": i - 9,
        "x": i / 4,
        "s": "é" * (i % 4),
        "b": bytes([i]),
        "d": Decimal(i) / 4,
        "t": datetime(2020, 1, 1, tzinfo=UTC) + timedelta(microseconds=i),
        "ok": i % 2 == 0,
        "l": [{"q": i, "w": None}, None],
        "m": {f"k{i}": n},
        "id": i,
    }
    present = {name: v for j, (name, v) in enumerate(value.items()) if (i + j) % 4 or name == "id"}
    return {"key": key, "value": present}


def typed_keys(root: Path) -> None:
    """Keys that are dates, decimals and truth values in a struct; one gets wider; key indexes."""
    with patch.object(writer, "WHOLE_BYTES", 0):
        key = pa.struct([("d", pa.date32()), ("p", pa.decimal128(9, 2)), ("ok", pa.bool_())])
        schema = {"key": key, "value": pa.struct([("n", pa.int32())])}
        log = create(root, schema=schema, min_cleanable_dirty_ratio="0")
        for n in range(6):
            log.append([keyed_record(n, i) for i in range(n, 30)])
            log.handle.clock.advance(700)
            if n == 2:
                log.evolve(widen={"key.p": pa.decimal128(38, 2)})
            if n % 3 == 1:
                log.roll(0)
                Cleaner(log, clock=log.handle.clock).run_once(force=True)


def keyed_record(n: int, i: int) -> dict:
    price = None if i % 6 == 0 else (i % 5 - 2) * Decimal("1234567.89")
    day, ok = date(1969, 12, 30) + timedelta(days=i % 4), (True, False, None)[i % 3]
    key = {"d": day, "p": price, "ok": ok}
    return {"key": key, "value": None if (n + i) % 11 == 0 else {"n": n}}


def table_columns(root: Path) -> None:
    """Objects with a table's columns, some with names that records have; a value of nulls beside
    tombstones, a required column, one that is added later; passes and key indexes.
    """
    like = pa.schema(
        [
            pa.field("id", pa.int32()),
            *(pa.field("offset", pa.string()), pa.field("key", pa.float64())),
            pa.field("value", pa.struct([("n", pa.int8())]), nullable=False),
        ]
    )
    with patch.object(writer, "WHOLE_BYTES", 0):
        config = {"min.cleanable.dirty.ratio": "0", "delete.retention.ms": "1500"}
        made = {"clock": ManualClock(START_MS), "ids": SeededIds(20_231_114)}
        log = Log.create(str(root), 2, config, key=["id", "offset"], like=like, **made)
        for n in range(7):
            log.append([table_record(n, i) for i in range(n, 24)])
            log.handle.clock.advance(700)
            if n == 3:
                log.evolve(add={"value.more": pa.string()}, widen={"key.id": pa.int64()})
            if n % 3 == 1:
                log.roll(0)
                Cleaner(log, clock=log.handle.clock).run_once(force=True)


def table_record(n: int, i: int) -> dict:
    key = {"id": i % 5 - 2, "offset": f"{i % 3}"}
    value = {"key": None if i % 4 else float("nan"), "value": {"n": None if i % 2 else n}}
    headers = [("h", b"x")] if i % 7 == 0 else None
    return {"key": key, "value": None if (n + i) % 9 == 0 else value, "headers": headers}


def by_ids(root: Path) -> None:
    """Fields that are renamed and dropped, nested ones and one of the key, a name that is used
    again; objects of each schema, some rewritten.
    """
    fields = pa.struct(
        [("a", pa.int32()), ("b", pa.string()), ("s", pa.struct([("q", pa.int8())]))]
    )
    schema = {"key": pa.struct([("k", pa.string()), ("l", pa.int8())]), "value": fields}
    log = create(root, schema=schema, min_cleanable_dirty_ratio="0")
    k, value = "k", {"a": 1, "b": "x", "s": {"q": 2}}
    for n in range(8):
        keys = ({k: f"{i % 5}", "l": i % 2} for i in range(n, 20))
        rows = [{"key": key, "value": value if (n + i) % 7 else None} for i, key in enumerate(keys)]
        log.append(rows)
        log.handle.clock.advance(700)
        if n == 1:
            log.evolve(rename={"value.a": "z", "value.s.q": "r"}, drop=["value.b"])
            value = {"z": 3, "s": {"r": 4}}
        if n == 4:
            log.evolve(rename={"key.k": "id", "value.z": "b"}, add={"value.a": pa.float64()})
            k, value = "id", {"a": 0.5, "b": 6, "s": {"r": None}}
        if n % 3 == 2:
            log.roll(0)
            Cleaner(log, clock=log.handle.clock).run_once(force=True)


def mirrored(root: Path) -> None:
    """Offsets that were given, with gaps and ends behind them, a start where the source begins, and
    positions in what is no log; then the log gives its own, and a pass.
    """
    log = create(root, features=["given-offsets"])
    for n in range(7):
        log.handle.clock.advance(700)
        with log.transaction("mirror") as t:
            for p in range(2):
                base, rows = 40 * n + p, [{"key": f"k{i % 5}", "value": f"{n}"} for i in range(n)]
                if n == 1:
                    t.cover({p: base + 30}, start={p: base + 30 * p})
                    continue
                t.append(rows, p, offsets=[base + i * (1 + n % 3) for i in range(n)])
                t.cover({p: base + 30})
            marks = {p: (10**9 + n, None if p % 2 else f"{n}") for p in range(90 if n == 5 else 3)}
            t.positions(f"kafka:cluster/topic-{n % 2}", marks)
    log.give_offsets()
    log.append([{"key": f"k{i}", "value": None if i % 3 else "own"} for i in range(5)])
    log.roll()
    Cleaner(log, clock=log.handle.clock).run_once(force=True)


def combined(root: Path) -> None:
    """Appends that another writer committed, some of one commit; answers that were forgotten."""

    class Passed(ManualClock):
        """A clock by which the next sleeper is passed by another, once."""

        then: Callable[[], Any] | None = None

        def sleep_ms(self, ms: int) -> None:
            super().sleep_ms(ms)
            then, self.then = self.then, None
            if then is not None:
                then()

    create(root, segment_chunks="8")
    seeds = iter(range(1, 1000))
    for n in range(30):
        at_ms = START_MS + 4_000 * n
        clocks = [Passed(at_ms) for _ in range(3)]
        a, b, c = (Log.open(str(root), clock=one, ids=SeededIds(next(seeds))) for one in clocks)
        b.append([{"key": "b", "value": f"{n}"}], n % 2, ("p", n))
        clocks[2].advance(n % 5)
        clocks[0].then = lambda c=c, n=n: c.append([{"key": f"c{n % 3}", "value": f"{n}"}], n % 2)
        a.append([{"key": f"a{n % 7}", "value": None if n % 4 == 0 else "a"}], 0)


def kept(root: Path) -> None:
    """Named cuts over two logs, one dropped, and what each keeps; transactions over both."""
    clock = ManualClock(START_MS)
    home, member = "memory://golden/home", "memory://golden/member"  # They stand in the logs.
    log, other = create_clocked(home, clock, 20_231_114), create_clocked(member, clock, 7)
    for n in range(5):
        clock.advance(700)
        t = log.transaction("several")
        t.append([{"key": f"k{i}", "value": f"{n}.{i}"} for i in range(n, 9)])
        t.append([{"key": "there", "value": f"{n}"}], log=other)
        t.commit()
        name_cut(log.handle, f"cut-{n}", 9 * DAY_MS)
        if n == 3:
            drop_cut(log.handle, "cut-1")
    log.roll()
    Cleaner(log, clock=clock).run_once(force=True)
    MemoryFileSystem().get("/golden/home", str(root), recursive=True)
    for url in (home, member):
        discard(open_store(url))


def create_clocked(url: str, clock: ManualClock, seed: int) -> Log:
    """Creates a log whose store has the same clock: its times stand in the log."""
    names = {"delete.retention.ms": "1000", "min.cleanable.dirty.ratio": "0"}
    store = ClockedStore(open_store(url), clock)
    return Log.create(store, 2, names, clock=clock, ids=SeededIds(seed))


def erased(root: Path) -> None:
    """Keys that are erased, with receipts, in two requests; one whose erasure goes on."""
    clock = ManualClock(START_MS)
    log = create_clocked(str(root), clock, 20_231_114)
    for n in range(4):
        log.append([{"key": f"k{i}", "value": f"{n}.{i}"} for i in range(n, 9)], producer=("p", n))
    for n, key in enumerate(("k3", "k6")):
        log.erase([key], notify=n == 0)
        for _ in range(4):
            clock.advance(10 * DAY_MS)
            Cleaner(log, clock=clock).run_once(force=True)
    log.append([{"key": "k7", "value": "last"}])
    log.erase(["k7"])


CASES: dict[str, Case] = {
    "plain": plain,
    "append-time": append_time,
    "paged": paged,
    "older-writers": older_writers,
    "cleaned": cleaned,
    "indexed": indexed,
    "dead-rows": dead_rows,
    "masks": masks,
    "order-values": order_values,
    "upgraded": upgraded,
    "field-ids": field_ids,
    "columns": columns,
    "transactions": transactions,
    "undecided": undecided,
    "whole": whole,
    "one-kind": one_kind,
    "typed": typed,
    "typed-keys": typed_keys,
    "table-columns": table_columns,
    "by-ids": by_ids,
    "mirrored": mirrored,
    "combined": combined,
    "kept": kept,
    "erased": erased,
}


def make(case: str, folder: Path) -> None:
    """Writes the log of a case, and what is in it."""
    with (
        patch.object(committing, "SNAPSHOT_EDIT_BYTES_MIN", 2_000),
        patch.object(snapshots, "PAGE_CHUNKS_MIN", 6),
    ):
        CASES[case](folder / "log")
    expected = contents(folder / "log", ir.replay(folder / "log"))
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in expected.items())
    (folder / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def contents(root: Path, state: ir.State) -> dict:
    """What is in a log, as plain JSON."""
    partitions = range(len(state["segments"]))
    names = ("version", "start", "end", "first_dirty", "config", "tombstones_removed")
    return {
        **{name: state[name] for name in names},
        "segments": [[[s["base"], s["next"]] for s in state["segments"][p]] for p in partitions],
        "released": [r[0] for r in state["released"]],
        **{name: state[name] for name in ("unended", "markers") if state[name]},
        "writers": sorted(state["writers"].values()),
        "records": [[plainly(row) for row in ir.records(root, state, p)] for p in partitions],
    }


def plainly(row: tuple) -> list:
    offset, time, key, value, headers, horizon = row
    pairs = [[name, text(header)] for name, header in headers]
    return [offset, time, text(key), text(value), pairs, horizon]


def text(data: Any) -> Any:
    """Bytes in hex; a typed key or value as JSON has it."""
    if isinstance(data, bytes):
        return data.hex()
    return json.loads(json.dumps(data, default=str))


def another(log: Log, n: int) -> dict:
    """One more record of a log."""
    if log.schema.field("value").type == "binary":
        return {"key": b"new", "value": str(n)}
    if log.schema.field("key").type.get_field_index("l") >= 0:
        return {"key": {"id": "new", "l": 1}, "value": {"a": n / 2, "b": n, "s": None}}
    if log.schema.field("key").type.get_field_index("id") >= 0:
        return table_record(1, n)
    is_price = log.schema.field("key").type.num_fields == 3
    return keyed_record(1, n) if is_price else typed_record(1, n)


def main() -> int:
    """Writes the cases that are not there."""
    for case in CASES:
        folder = GOLDEN / "v1" / case
        if folder.exists():
            print(f"{folder}: is there, stays")
            continue
        folder.mkdir(parents=True)
        try:
            make(case, folder)
        except BaseException:
            shutil.rmtree(folder)
            raise
        print(f"{folder}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
