"""A table as people get it: frames of several kinds, versions by number and by time."""

import os
import sys
from dataclasses import replace
from threading import current_thread, main_thread

import pyarrow as pa
import pytest

from clog.cleaner import Cleaner
from clog.storage import (
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    VersionExpiredError,
)
from clog.storage.commit.versions import version_at_time
from clog.storage.format.commits import Edit
from clog.storage.keys.latest import ROW_BYTES
from clog.storage.objects import reader
from clog.storage.read.scan import READ_SCHEMA, stored_columns
from clog.storage.read.table import plan_table, table_batches
from clog_testing.counting import CountingStore
from clog_testing.crash import inside
from clog_testing.model import rows_in

FRAMES = [("to_pandas", "pandas"), ("to_polars", "polars"), ("to_duckdb", "duckdb")]


def put(log, **values):
    log.append([{"key": key, "value": value} for key, value in values.items()])


def as_dict(table):
    return {row["key"]: row["value"] for row in table.to_arrow().to_pylist()}


def test_the_latest_of_each_key(make_log):
    """Tombstoned keys are absent, an empty value is a value (S4), and the schema is that of reads,
    whatever the contents.
    """
    log = make_log(partitions=2)
    assert log.table().to_arrow().schema == READ_SCHEMA
    put(log, a="1", b="2", c="3")
    put(log, a=None, b="", d="4")
    table = log.table()
    assert as_dict(table) == {b"b": b"", b"c": b"3", b"d": b"4"}
    assert sum(batch.num_rows for batch in table.to_batches()) == 3
    assert (table.version, table.offsets) == (2, log.end_offsets())
    assert repr(table) == f"Table({log.url!r}, version=2)"


def test_a_table_keeps_its_own_offsets(make_log):
    """A caller may modify the offsets that a table returned: neither that table nor the next one of
    the version changes, though they are one object.
    """
    log = make_log(partitions=2)
    put(log, a="1", b="2", c="3")
    table, expected = log.table(), log.end_offsets()
    table.offsets[0] = 1_000_000
    assert table.offsets == log.table().offsets == expected


def test_deleted_and_put_in_one_append(make_log):
    """The order of the append decides (S44), whatever is cleaned."""
    log = make_log(partitions=1)
    log.append([{"key": k, "value": v} for k, v in (("a", None), ("a", "1"), ("b", "1"))])
    log.append([{"key": k, "value": v} for k, v in (("b", "2"), ("b", None), ("a", "2"))])
    assert as_dict(log.table()) == {b"a": b"2"}
    log.roll()
    Cleaner(log).run_once(force=True)
    assert as_dict(log.table()) == {b"a": b"2"}


@pytest.mark.parametrize(("method", "package"), FRAMES)
def test_frames_hold_the_same(make_log, method, package):
    """pandas, Polars and DuckDB see the columns and rows that Arrow does."""
    pytest.importorskip(package)
    log = make_log()
    put(log, a="1", b="2")
    put(log, b="3")
    frame = getattr(log.table(), method)()
    assert list(frame.columns) == READ_SCHEMA.names
    if package == "duckdb":
        found = dict(frame.project("key, value").fetchall())
    else:
        found = dict(zip(list(frame["key"]), list(frame["value"]), strict=True))
    assert found == {b"a": b"1", b"b": b"3"}


def test_a_duckdb_connection_of_ones_own(make_log):
    """The relation lives where the caller's tables do."""
    duckdb = pytest.importorskip("duckdb")
    log = make_log()
    put(log, a="1", b="2")
    with duckdb.connect() as connection:
        relation = log.table().to_duckdb(connection=connection)
        relation.create("prices")
        assert connection.sql("select count(*) from prices").fetchall() == [(2,)]


@pytest.mark.parametrize(("method", "package"), FRAMES)
def test_a_package_that_is_missing_is_named(make_log, monkeypatch, method, package):
    """With the command that installs it; nothing is read before."""
    monkeypatch.setitem(sys.modules, package, None)
    table = make_log().table()
    with pytest.raises(ModuleNotFoundError, match=f"needs {package}.*pip install {package}") as e:
        getattr(table, method)()
    assert e.value.name == package


def test_as_of_a_time(make_log, clock, open_log):
    """The newest version committed by then; every later time gives the newest version."""
    log = make_log()
    start_ms, then = clock.now_ms(), {}
    for i in range(21):
        then[clock.now_ms()] = log.version
        clock.advance(0 if i % 3 == 0 else 10)  # some commits have the same time
        put(log, k=str(i))
    then[clock.now_ms()] = log.version
    cold = open_log()
    for ms, version in then.items():
        assert cold.table(at_time_ms=ms).version == version
    assert cold.table(at_time_ms=start_ms + 15).version == then[start_ms + 10]
    assert cold.table(at_time_ms=1 << 60).version == 21
    assert as_dict(cold.table(at_time_ms=start_ms + 10)) == as_dict(
        cold.table(at=then[start_ms + 10])
    )


def test_a_time_costs_a_search(make_log, store, clock):
    """One GET for each halving of the readable versions."""
    log = make_log()
    for i in range(64):
        clock.advance(1)
        put(log, k=str(i))
    tip = log.handle.refresh()
    counting = CountingStore(inside(store))
    assert version_at_time(counting, tip.record.time_ms - 20, tip) == 44
    assert counting.counts["get"] <= 1 + 6


def test_before_the_oldest_readable_version(make_log, clock):
    """The error names the bound, for versions and for times."""
    log = make_log()
    for i in range(5):
        clock.advance(10)
        put(log, k=str(i))
    log.handle.commit(lambda tip, ms: Edit(oldest_readable=3), operation="sweep")
    oldest_ms = clock.now_ms() - 20
    assert log.table(at_time_ms=oldest_ms).version == 3
    assert as_dict(log.table(at=3)) == {b"k": b"2"}
    with pytest.raises(
        VersionExpiredError, match=f"version 3 was committed at time_ms={oldest_ms}"
    ):
        log.table(at_time_ms=oldest_ms - 1)
    with pytest.raises(VersionExpiredError, match=r"version 2 .* readable versions are 3 to 6"):
        log.table(at=2)
    with pytest.raises(NotFoundError, match="the newest is 6; ask for 3 to 6"):
        log.table(at=7)


@pytest.mark.parametrize(
    "arguments", [{"at": 0, "at_time_ms": 5}, {"at": b"0"}, {"at_time_ms": 1.5}, {"at": True}]
)
def test_what_names_no_version(make_log, arguments):
    with pytest.raises(InvalidInputError, match="at"):
        make_log().table(**arguments)


def test_a_table_of_one_partition(make_log):
    log = make_log(partitions=3)
    log.append([{"key": str(i), "value": str(i)} for i in range(30)], partition=[0, 1, 2] * 10)
    table = log.table(partition=1)
    assert isinstance(table.to_arrow(), pa.Table)
    assert table.offsets == {1: 10}
    assert set(as_dict(table)) == {str(i).encode() for i in range(1, 30, 3)}


@pytest.mark.parametrize("times", [2, 4, 7])
def test_more_dirty_keys_than_the_budget_holds(make_log, store, times):
    """Exact, each key once; for each map-full of records the keys are read once more, and so are
    the yielded rows: each object twice here, as one holds more than a map-full.
    """
    capacity = 500
    budget = capacity * ROW_BYTES
    log = make_log()
    keys = [f"{i:06}" for i in range(times * capacity)]
    for round_ in range(2):
        log.append([{"key": key, "value": str(round_)} for key in keys])
    log.append([{"key": key, "value": None} for key in keys[::3]])
    log.segments(0)
    counting = CountingStore(store)
    plan = plan_table(log.handle.manifest(), 0)
    rows = rows_in(table_batches(inside(counting), plan, map_bytes=budget))
    expected = [key.encode() for i, key in enumerate(keys) if i % 3]
    assert sorted(row[2].key for row in rows) == expected
    assert {row[2].value for row in rows} == {b"1"}
    maps = -(-(2 * len(keys) + len(keys[::3])) // capacity)
    assert counting.counts["get"] <= len(plan.dirty) * (2 * maps + 2)


@pytest.mark.parametrize("columns", [None, ["value"], ["offset"], ["key", "timestamp"]])
def test_small_objects_are_read_once(make_log, store, columns):
    """One request for each: what was fetched for their keys is used, other columns too, unless the
    budget has no space for it; offsets of dense objects are known without.
    """
    log = make_log(partitions=2)
    for i in range(6):
        log.append([{"key": f"{j}", "value": f"{i} {j}"} for j in range(i, 20)])
    counting = inside(CountingStore(store))
    asked = {"columns": columns} if columns else {}
    for p in (0, 1):
        plan = plan_table(log.handle.manifest(), p)
        at = log.table(partition=p).to_arrow().sort_by("offset")
        rows = sum(piece.rows for piece in plan.dirty)
        for budget, is_once in ((1 << 20, True), (rows * ROW_BYTES, False)):
            with counting.inner.count() as requests:
                found = [*table_batches(counting, plan, map_bytes=budget, **asked)]
            once = is_once or columns == ["offset"]
            assert (requests["get"] == requests.total() == 6) is once
            assert pa.Table.from_batches(found).equals(at.select(columns or at.schema.names))


def test_few_superseded_rows_leave_the_others_where_they_are(make_log):
    """In order, wherever those are that are left out: at the ends, side by side, anywhere."""
    log = make_log()
    log.append([{"key": f"{i}", "value": "old"} for i in range(9_000)])
    gone = [0, 1, 4_000, 8_999]
    log.append([{"key": f"{i}", "value": "new"} for i in gone])
    log.append([{"key": "4001", "value": None}])
    rows = log.table().to_arrow()
    kept = [i for i in range(9_000) if i not in (*gone, 4_001)]
    assert rows["offset"].to_pylist() == [*kept, *range(9_000, 9_004)]
    assert rows["key"].to_pylist() == [str(i).encode() for i in (*kept, *gone)]
    assert rows["value"].to_pylist() == [b"old"] * len(kept) + [b"new"] * 4


def test_a_slice_of_the_view(make_log):
    """The slices of a view together are the view, whatever the map's budget: what follows a slice
    is mapped, not yielded.
    """
    log = make_log()
    for i in range(12):
        log.append([{"key": str(j), "value": f"{i} {j}"} for j in range(i, 20)])
        if i == 5:
            log.roll()
            Cleaner(log).run_once(force=True)
    plan = plan_table(log.handle.manifest(), 0)
    assert plan.clean
    assert plan.dirty
    own = [replace(plan, dirty=(), later=plan.dirty)] + [
        replace(plan, clean=(), dirty=plan.dirty[i : i + 2], later=plan.dirty[i + 2 :])
        for i in range(0, len(plan.dirty), 2)
    ]
    whole = rows_in(table_batches(log.handle.store, plan))
    assert len(whole) == 20
    for entries in (1, 3, 1000):
        budget = entries * ROW_BYTES
        parts = [rows_in(table_batches(log.handle.store, p, map_bytes=budget)) for p in own]
        assert [row for part in parts for row in part] == whole


@pytest.mark.parametrize("name", ["delete_records", "retention"])
def test_an_old_version_does_not_show_what_was_deleted_since(make_log, clock, name):
    """S36: no read planned after the commit sees a record below the log start, at any version."""
    log = make_log(config={"cleanup.policy": "compact,delete", "retention.ms": "1000"})
    put(log, a="1", b="1")
    log.roll()
    clock.advance(500)
    put(log, b="2")
    before = log.table()
    if name == "delete_records":
        log.delete_records({0: 2})
    else:
        clock.advance(600)
        Cleaner(log).run_once()
    assert log.start_offsets() == {0: 2}
    assert as_dict(log.table(at=before.version)) == {b"b": b"2"}
    assert log.table(at=1).to_arrow().num_rows == 0
    assert log.table(at=1).offsets == {0: 2}
    assert as_dict(before) == {b"a": b"1", b"b": b"2"}, "one planned before may finish"


def test_a_key_that_is_no_text(make_log):
    """Half of a surrogate pair and what is neither bytes nor text: a clog error, without
    the key.
    """
    log = make_log()
    put(log, a="1")
    table = log.table()
    assert table.get(bytearray(b"a")) == b"1"
    for key, why in (("a\ud800", "a lone surrogate at character 1"), (7, "has type int")):
        for ask in (table.get, lambda key: table.get_many(["a", key])):
            with pytest.raises(InvalidInputError, match=why) as raised:
                ask(key)
            assert "ud800" not in str(raised.value)


def test_rows_are_counted_without_reading_them(make_log, store):
    """For dense objects whose masks say which rows show nothing is fetched, for rewritten ones only
    the offsets.
    """
    counting = CountingStore(store)
    log = make_log(partitions=1, on=counting, config={"min.cleanable.dirty.ratio": "0"})
    log.alter({"table.masks": "true"})
    put(log, **{f"k{i}": "1" for i in range(50)})
    put(log, k3="2", k4=None)
    Cleaner(log).run_once()
    plan = plan_table(log.handle.manifest(), 0)
    assert not plan.dirty
    with counting.count() as requests:
        batches = list(table_batches(log.handle.store, plan, columns=("offset",)))
    assert sum(batch.num_rows for batch in batches) == 49
    assert requests == {}
    log.roll()
    Cleaner(log).run_once(force=True)
    pieces = plan_table(log.handle.manifest(), 0).clean
    assert not pieces[0].object.dense
    assert stored_columns(pieces, ("offset",)) == ["offset"]
    assert log.table().to_arrow(columns=["partition"]).num_rows == 49


def large(log, rows, first=0, value_bytes=40):
    """Appends an object of several row groups."""
    keys = [b"%08d" % i for i in range(first, first + rows)]
    log.append(pa.table({"key": keys, "value": [os.urandom(value_bytes) for _ in keys]}))


def test_no_values_are_read_for_tombstones_where_there_are_none(make_log, store):
    """Counting an uncleaned table reads its keys, and values only if one of its objects contains a
    tombstone.
    """
    counting = CountingStore(store)
    log = make_log(partitions=1, on=counting)
    put(log, a="1")
    large(log, 10_000, value_bytes=500)  # Row groups end at no multiple of a batch.
    put(log, a="2", b="1")
    large(log, 10_000, value_bytes=500)
    table = log.table()
    before = counting.bytes_in
    assert len(table) == 10_002
    values_bytes = 10_000 * 500
    assert counting.bytes_in - before < values_bytes / 10
    keys = [row["key"] for row in table.to_arrow(columns=["key"]).to_pylist()]
    assert sorted(keys) == [*(b"%08d" % i for i in range(10_000)), b"a", b"b"]
    log.append(pa.table({"key": [b"%08d" % i for i in range(3)], "value": [None] * 3}))
    assert len(log.table()) == 9_999
    Cleaner(log).run_once(force=True)
    assert len(log.table()) == 9_999


def test_a_thread_decodes_large_objects_that_are_wanted_whole(make_log, monkeypatch):
    """Collecting all rows in memory gives those that come one by one, in order: of large objects a
    thread decodes row groups beside the caller; for small ones no thread is started.
    """
    threads, decode = set(), reader._Source.decode

    def watched(*arguments):
        threads.add(current_thread())
        return decode(*arguments)

    monkeypatch.setattr(reader._Source, "decode", watched)
    log = make_log(partitions=1)
    for i in range(20):
        put(log, **{f"k{j}": str(i) for j in range(10)})
    assert log.table().to_arrow().num_rows == 10
    assert threads == {main_thread()}
    for _ in range(2):
        large(log, 70_000)
    large(log, 70_000, 60_000)
    table = log.table()
    expected = pa.Table.from_batches(table.to_batches(), table.schema)
    assert expected.num_rows == 10 + 130_000
    assert threads == {main_thread()}
    assert table.to_arrow().equals(expected)
    assert threads > {main_thread()}


def test_damage_that_a_thread_finds(make_log):
    """It is raised in the caller that requested the rows: for the pages of a column, and for a
    whole object.
    """
    log = make_log(partitions=1)
    large(log, 70_000)
    ((_, chunk),) = log.handle.manifest().chunks()
    path, inside = chunk.object.path, log.handle.store
    data = bytearray(inside.get(path))
    data[len(data) // 2] ^= 1  # Of a value.
    data[100] ^= 1  # Of a key.
    inside.put(path, bytes(data))
    for columns in (["key"], ["key", "value"]):
        with pytest.raises(CorruptionError, match="is damaged"):
            log.table().to_arrow(columns=columns)
