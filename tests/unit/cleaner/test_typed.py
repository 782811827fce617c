"""Passes and rewriting over typed logs."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clog.cleaner import Cleaner
from clog.storage import Log
from clog.storage.diagnostics.verify import verify_log
from clog.storage.env import SeededIds
from clog.storage.objects import writer
from clog.storage.read import copy
from clog_testing.counting import CountingStore
from clog_testing.crash import inside

SCHEMA = {
    "key": pa.struct([("a", pa.int32()), ("b", pa.string())]),
    "value": pa.struct([pa.field("n", pa.int32(), nullable=False), ("text", pa.string())]),
}


def key(n):
    return {"a": n, "b": f"b{n}"}


@pytest.fixture
def log(store, clock):
    config = {"min.cleanable.dirty.ratio": "0", "delete.retention.ms": "1000"}
    return Log.create(store, 1, config, clock=clock, schema=SCHEMA, ids=SeededIds(1))


def put(log, n, value):
    log.append([{"key": key(n), "value": value}])


def rows(log):
    return [(row["key"]["a"], row["value"]) for batch in log.read() for row in batch.to_pylist()]


def stored_types(log, store):
    """The value's type in each object that the log refers to."""
    chunks = [chunk for s in log.handle.manifest().segments[0] for chunk in s.chunks]
    return [
        pq.read_schema(io.BytesIO(inside(store).get(chunk.object.path))).field("value").type
        for chunk in chunks
    ]


def test_a_pass_compares_canonical_keys(log, clock):
    """S21, S23, S61: superseded records go, a tombstone after its horizon, gaps stay."""
    for n, value in [(1, 10), (2, 20), (1, 11), (2, None), (3, 30)]:
        put(log, n, value and {"n": value})
    log.roll()
    cleaner = Cleaner(log)
    cleaner.run_once(force=True)
    kept = {"text": None}
    assert rows(log) == [(1, {"n": 11} | kept), (2, None), (3, {"n": 30} | kept)]
    clock.advance(2000)
    put(log, 4, {"n": 40})
    log.roll()
    cleaner.run_once(force=True)
    assert [a for a, _ in rows(log)] == [1, 3, 4]
    assert log.end_offsets() == {0: 6}


def test_what_is_rewritten_is_in_the_newest_schema(log, store):
    """S61: the cleaner moves records from the schemas of long ago to the one of now."""
    put(log, 1, {"n": 1})
    put(log, 1, {"n": 2, "text": "x"})
    put(log, 2, {"n": 3})
    log.evolve(add={"value.more": pa.list_(pa.int8())}, widen={"value.n": pa.int64()})
    log.roll()
    before = rows(log)
    assert set(stored_types(log, store)) == {SCHEMA["value"]}
    Cleaner(log).run_once(force=True)
    newest = log.schema.field("value").type
    assert [t.field("n").type for t in stored_types(log, store)] == [pa.int64()]
    assert stored_types(log, store) == [newest]
    assert rows(log) == before[1:]
    assert verify_log(log.handle.standing.root).findings == ()


def test_tombstones_are_found_without_reading_the_values(store, clock):
    """Only the leaf that costs least tells where a value is null."""
    config = {"min.cleanable.dirty.ratio": "0", "object.bytes": "10000000"}
    log = Log.create(store, 1, config, clock=clock, schema=SCHEMA, ids=SeededIds(1))
    count = 20_000
    keys = [
        pa.array([{"a": n + first, "b": ""} for n in range(count)], SCHEMA["key"])
        for first in (0, count - 1)
    ]
    octets = np.random.default_rng(1).bytes(64 * count).hex()
    texts = pa.array([octets[128 * n : 128 * (n + 1)] for n in range(count)])
    fields = [pa.array(range(count), pa.int32()), texts]
    deleted = pa.array([n == 7 for n in range(count)])
    value = pa.StructArray.from_arrays(fields, fields=list(SCHEMA["value"]), mask=deleted)
    for some in keys:
        log.append(pa.table({"key": some, "value": value}))
    log.roll()
    (chunk, *_) = [c for s in log.handle.manifest().segments[0] for c in s.chunks]
    assert chunk.object.size_bytes > 1 << 20
    counting = CountingStore(store)
    result = Cleaner(Log.open(counting, clock=clock)).run_once(force=True)
    assert sum(r.stats.tombstones_stamped for r in result) == 2
    assert [r.stats.records_marked for r in result] == [1]
    assert counting.bytes_in < chunk.object.size_bytes / 2


def test_masks_are_carried_over_by_a_pass(log):
    """S61, FORMAT.md §13: from objects that hold offsets beside typed columns, too."""
    log.alter({"table.masks": "true"})
    cleaner = Cleaner(log)
    for values in ((1, 2, 3, 1), (2,), (3, 4)):
        for n in values:
            put(log, n, {"n": n})
        log.roll()
        cleaner.run_once(force=True)  # The first pass leaves a gap, the next ones have bits.
    put(log, 4, {"n": 5})
    cleaner.run_once()
    log.roll()
    cleaner.run_once(force=True)
    assert log.describe()["partition_details"][0]["uncleanable"] is None
    assert [value["n"] for _, value in rows(log)] == [1, 2, 3, 5]


FLOATS = pa.schema(
    [
        *(("id", pa.int64()), ("d", pa.float64()), ("f", pa.float32()), ("h", pa.float16())),
        *(("all", pa.float64()), ("s", pa.struct([("x", pa.float64())])), ("text", pa.string())),
    ]
)


def with_bounds(log):
    """The columns of values with a least and a greatest value, of each object."""
    found = []
    for path in {c.object.path for s in log.handle.manifest().segments[0] for c in s.chunks}:
        data = pa.BufferReader(log.handle.store.get(path))
        group = pq.ParquetFile(data).metadata.row_group(0)
        columns = [group.column(i) for i in range(group.num_columns)]
        has = {c.path_in_schema for c in columns if c.statistics and c.statistics.has_min_max}
        found.append(has - {"id", "_clog_offset", "_clog_timestamp"})
    return found


@pytest.mark.parametrize("earlier", [False, True])
def test_floats_with_nan_have_no_bounds(store, clock, monkeypatch, earlier):
    """Which leave NaN out, and which others take for bounds of all values (FORMAT.md §12.2): a row
    group that has them from an earlier release is not copied.
    """
    for module in (writer, copy):
        monkeypatch.setattr(module, "GROUP_BYTES_MIN", 1)
        monkeypatch.setattr(module, "GROUP_ROWS", 4)
    log = Log.create(store, 1, {}, clock=clock, key="id", like=FLOATS, ids=SeededIds(1))
    numbers = [1.0, float("nan"), -0.0, 5.0] * 2
    rows = [
        {"id": i, "d": n, "f": 1.5, "h": n, "all": float("nan"), "s": {"x": n}, "text": "x" * 1000}
        for i, n in enumerate(numbers)
    ]
    with monkeypatch.context() as released:
        if earlier:
            released.setattr(writer, "nan_in", lambda _: set())
        log.append(pa.Table.from_pylist(rows, FLOATS))
        log.append(pa.Table.from_pylist(rows[-1:], FLOATS))
    bounds = {"d", "f", "h", "s.x", "text"} if earlier else {"f", "text"}
    assert bounds in with_bounds(log)
    log.roll()
    Cleaner(log).run_once(force=True)
    assert with_bounds(log) == [{"f", "text"}]
