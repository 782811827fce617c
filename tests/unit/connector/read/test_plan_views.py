"""The views in a batch read, without Spark: plans, slices, versions, positions."""

import json
import logging
import pickle

import pytest

from clog.cleaner import Cleaner
from clog.connector import ClogDataSource, explain
from clog.connector.read import plan, task_read
from clog.connector.read.plan import SLICES_OF_DIRTY, slices
from clog.storage import Log, ManualClock, snapshot
from clog.storage.errors import (
    NotFoundError,
    OffsetOutOfRangeError,
    OptionError,
    VersionExpiredError,
)
from clog.storage.format.commits import Edit
from clog.storage.keys.latest import ROW_BYTES
from clog.storage.read.table import plan_table, table_batches
from clog_testing.crash import expire
from clog_testing.model import rows_in

CONFIG = {"min.cleanable.dirty.ratio": "0", "delete.retention.ms": "1000"}


@pytest.fixture
def clock():
    return ManualClock(now_ms=1_700_000_000_000)


@pytest.fixture
def log(tmp_path, clock):
    return Log.create(str(tmp_path / "orders"), partitions=2, config=CONFIG, clock=clock)


def put(log, partition=0, **values):
    return log.append([{"key": k, "value": v} for k, v in values.items()], partition).version


def clean(log):
    log.roll()
    Cleaner(log).run_once(force=True)


def tasks(url, **options):
    source = ClogDataSource({"path": url, **{k: str(v) for k, v in options.items()}})
    reader = source.reader(source.schema())
    return reader, pickle.loads(pickle.dumps(reader.partitions()))


def rows(url, **options):
    """(partition, offset, key, value) of what the tasks yield."""
    reader, partitions = tasks(url, **options)
    columns = ("partition", "offset", "key", "value")
    batches = [batch for p in partitions for batch in reader.read(p)]
    return sorted(tuple(row[c] for c in columns) for b in batches for row in b.to_pylist())


def values(url, **options):
    return {key.decode(): value and value.decode() for *_, key, value in rows(url, **options)}


@pytest.fixture
def history(log):
    """A log whose first half was cleaned; 60 keys in partition 0, of which every third is gone."""
    for i in range(4):
        log.append([{"key": str(j), "value": f"{i}"} for j in range(40)], partition=0)
    clean(log)
    for i in range(4, 8):
        log.append([{"key": str(j), "value": f"{i}"} for j in range(20, 60)], partition=0)
        log.append([{"key": str(j), "value": None} for j in range(0, 60, 3)], partition=0)
    return log


@pytest.mark.parametrize("more", [1, 5, pytest.param(20, marks=pytest.mark.nightly)])
def test_tasks_together_deliver_the_view(history, more):
    """However many there are (`minPartitions`): each key once, with its latest value."""
    expected = {str(j): "3" if j < 20 else "7" for j in range(60) if j % 3}
    assert len(tasks(history.url, view="table")[1]) == 1
    found = rows(history.url, view="table", minPartitions=more)
    assert len(found) == len(expected)
    assert {key.decode(): value.decode() for *_, key, value in found} == expected
    count = len(tasks(history.url, view="table", minPartitions=more)[1])
    assert count >= min(more, 5)
    at_most = rows(history.url, view="table", maxRecordsPerPartition=50 // more + 1)
    assert at_most == found


@pytest.fixture
def many(tmp_path, clock):
    """Two records of each of 150 keys, in 60 partitions; every third key is deleted."""
    log = Log.create(str(tmp_path / "many"), partitions=60, config=CONFIG, clock=clock)
    for value in ("0", "1"):
        log.append([{"key": str(j), "value": value if j % 3 else None} for j in range(150)])
    return log


@pytest.mark.parametrize(
    ("options", "tasks_min", "tasks_max"),
    [
        ({}, 1, 1),
        ({"minPartitions": 4}, 4, 8),
        pytest.param({"minPartitions": 300}, 60, 300, marks=pytest.mark.nightly),
        ({"maxRecordsPerPartition": 50}, 6, 12),
    ],
)
def test_small_partitions_share_tasks(many, options, tasks_min, tasks_max):
    """A task costs Spark more than several thousand records; each key is there once all
    the same.
    """
    expected = {str(j): "1" for j in range(150) if j % 3}
    for part in (slice(None), slice(3, 6)):
        keys = {"keys": json.dumps(list(expected)[part])} if part.start else {}
        found = rows(many.url, view="table", **options, **keys)
        assert len(found) == len({key for *_, key, _ in found})
        assert {k.decode(): v.decode() for *_, k, v in found} == dict(list(expected.items())[part])
        assert len(rows(many.url, view="latest", **options, **keys)) == (3 if keys else 150)
        assert len(tasks(many.url, view="table", **options, **keys)[1]) <= tasks_max
    assert len(tasks(many.url, view="table", **options)[1]) >= tasks_min


def test_partitions_that_share_a_task_may_be_too_large_to_be_read_at_once(many, monkeypatch):
    """Then they are read one after the other, with the same result."""
    at_once = rows(many.url, view="table")
    monkeypatch.setattr(task_read, "SMALL_ROWS", 100)
    assert rows(many.url, view="table") == at_once


def test_partitions_that_share_a_task_expire_together(many):
    """A missing object of theirs is reported as any other."""
    reader, (task,) = tasks(many.url, view="table")
    expire(many)
    with pytest.raises(VersionExpiredError, match=r"version 2 .*load\(\) again"):
        list(reader.read(task))


@pytest.mark.parametrize("entries", [pytest.param(1, marks=pytest.mark.nightly), 7, 1000])
def test_slices_with_a_small_map(history, entries):
    """More dirty keys than the map holds: the slices of the plan yield what the plan does."""
    store = history.handle.store
    plan = plan_table(history.handle.manifest(), 0)
    whole = rows_in(table_batches(store, plan))
    budget = entries * ROW_BYTES
    parts = slices(plan, min_tasks=4)
    assert len(parts) >= 4
    found = [row for part in parts for row in rows_in(table_batches(store, part, map_bytes=budget))]
    assert found == whole


def test_a_clean_object_is_shared_by_several_tasks(log, monkeypatch):
    """A cleaned partition is often one object: its rows are distributed, each once."""
    log.append([{"key": str(j), "value": "0"} for j in range(100)], partition=0)
    clean(log)
    monkeypatch.setattr(plan, "TASK_ROWS", 30)
    _, partitions = tasks(log.url, view="table")
    pieces = [piece for task in partitions for plan in task.plans for piece in plan.clean]
    assert len({piece.object.path for piece in pieces}) == 1
    assert [piece.rows for piece in pieces] == [25] * 4
    assert values(log.url, view="table") == {str(j): "0" for j in range(100)}


@pytest.mark.parametrize(("clean_rows", "dirty_rows"), [(4000, 100), (500, 2000), (0, 3000)])
def test_keys_are_read_a_few_times_only(log, monkeypatch, clean_rows, dirty_rows):
    """Tasks of a large partition map what follows them: a clean row costs at most 5 reads of a key,
    a dirty one 3.5, plus one row for each task.
    """
    if clean_rows:
        log.append([{"key": str(j), "value": "0"} for j in range(clean_rows)], partition=0)
        clean(log)
    for _ in range(10):
        log.append([{"key": str(j), "value": "1"} for j in range(dirty_rows // 10)], partition=0)
    monkeypatch.setattr(plan, "TASK_ROWS", 50)
    _, partitions = tasks(log.url, view="table")
    assert 1 < len(partitions) <= (clean_rows + dirty_rows) // (dirty_rows // SLICES_OF_DIRTY)
    plans = [plan for task in partitions for plan in task.plans]
    mapped = sum(p.rows for plan in plans for p in (*plan.dirty, *plan.later))
    delivered = sum(p.rows for plan in plans for p in (*plan.clean, *plan.dirty))
    assert delivered == clean_rows + dirty_rows
    factor = 5 * clean_rows + 3.5 * dirty_rows + len(partitions)
    assert mapped + delivered <= factor


def test_a_plan_does_not_grow_with_keys(log):
    """What the driver creates and sends depends on the objects, not on their contents."""
    sizes = []
    for count in (10, 5000):
        log.append([{"key": f"{count} {j}", "value": "1"} for j in range(count)], partition=0)
        sizes.append(len(pickle.dumps(tasks(log.url, view="table")[1])))
    assert sizes[1] < 2 * sizes[0]


def test_as_of_a_version_and_a_time(log, clock):
    """The table as it was, cleaned since or not; before the oldest readable version the error names
    the bound.
    """
    seen = {}
    for i in range(6):
        clock.advance(10)
        version = put(log, a=str(i), **{f"k{i}": "x"})
        seen[version] = (clock.now_ms(), values(log.url, view="table"))
    clean(log)
    for version, (ms, expected) in seen.items():
        assert values(log.url, view="table", asOfVersion=version) == expected
        assert values(log.url, view="table", asOfTimestamp=ms + 9) == expected
    log.handle.commit(lambda tip, ms: Edit(oldest_readable=3), operation="sweep")
    newest = log.version
    with pytest.raises(VersionExpiredError, match=f"readable versions are 3 to {newest}"):
        rows(log.url, view="table", asOfVersion=2)
    with pytest.raises(
        VersionExpiredError, match=rf"version 3 was committed at time_ms={seen[3][0]} \(.*Z\)"
    ):
        rows(log.url, view="table", asOfTimestamp=seen[3][0] - 1)
    assert explain(log.url, view="table", asOfVersion=3).version == 3


def test_as_of_shows_nothing_deleted(log):
    """S36: what `delete_records` removed is gone from old versions too."""
    version = put(log, a="1", b="1")
    put(log, c="1")
    log.delete_records({0: 1})
    assert values(log.url, view="table", asOfVersion=version) == {"b": "1"}


def test_keys_of_an_old_version(history):
    """`keys` prunes a view of any version; few rows need no more than one task per partition."""
    for more in ({}, {"minPartitions": 4}):
        found = values(history.url, view="table", keys='["1", "3", "50"]', **more)
        assert found == {"1": "3", "50": "7"}
        found = tasks(history.url, view="table", keys='["1"]', maxRecordsPerPartition=10, **more)
        assert (len(found[1]) > 1) == bool(more)
    found = values(history.url, view="table", keys='["1", "3", "50"]', asOfVersion=1)
    assert found == {"1": "0", "3": "0"}


def test_latest_is_the_changelog_slice(log):
    """For each key changed since the position its latest record, tombstones included; whatever is
    cleaned.
    """
    put(log, a="1", b="1", c="1")
    ends = {str(p): end for p, end in log.end_offsets().items()}
    version = log.version
    put(log, a="2", b="2", d="1")
    put(log, a="3", b=None)
    expected = [(0, 5, b"d", b"1"), (0, 6, b"a", b"3"), (0, 7, b"b", None)]
    everything = [(0, 2, b"c", b"1"), *expected]
    for _ in range(2):
        for since in ({"startingOffsets": json.dumps(ends)}, {"sinceVersion": version}):
            for more in (1, 3):
                assert rows(log.url, view="latest", minPartitions=more, **since) == expected
        assert rows(log.url, view="latest") == everything
        assert rows(log.url, view="latest", keys='["b"]') == [expected[-1]]
        assert explain(log.url, view="latest", sinceVersion=log.version).objects.read == 0
        clean(log)


def test_latest_says_when_a_tombstone_was_lost(log, clock, caplog):
    """S41: applying the slice to a state of that position would keep a deleted key."""
    put(log, a="1", b="1")
    version, ends = log.version, json.dumps({"0": 2, "1": 0})
    put(log, a=None)
    put(log, b="2")
    clean(log)
    clock.advance(2000)
    put(log, c="1")
    clean(log)
    put(log, d="1")
    for since in ({"startingOffsets": ends}, {"sinceVersion": version}):
        with pytest.raises(NotFoundError, match="tombstones up to offset 2"):
            rows(log.url, view="latest", **since)
        with caplog.at_level(logging.WARNING, "clog.connector"):
            found = values(log.url, view="latest", failOnDataLoss="false", **since)
        assert found == {"b": "2", "c": "1", "d": "1"}
        assert "may lack deletes" in caplog.text
        caplog.clear()
    assert values(log.url, view="latest") == {"b": "2", "c": "1", "d": "1"}, "starts afresh"
    assert values(log.url, view="latest", sinceVersion=log.version - 1) == {"d": "1"}


def test_latest_from_offsets_that_are_gone(log):
    """S38, as for every read."""
    put(log, a="1", b="1")
    put(log, c="1")
    log.delete_records({0: 2})
    start = '{"0": 1, "1": 0}'
    with pytest.raises(OffsetOutOfRangeError, match="below the log start offset 2"):
        rows(log.url, view="latest", startingOffsets=start)
    assert values(log.url, view="latest", startingOffsets=start, failOnDataLoss="false") == {
        "c": "1"
    }
    with pytest.raises(NotFoundError, match="version 99"):
        rows(log.url, view="latest", sinceVersion=99)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": "table", "sinceVersion": 1}, "without startingOffsets or"),
        ({"view": "table", "asOfVersion": 1, "asOfTimestamp": 1}, "give one"),
        ({"view": "table", "asOfVersion": -1}, "a whole number"),
        ({"view": "log", "asOfVersion": 1}, 'for view "table"'),
        ({"view": "latest", "asOfTimestamp": 1}, 'for view "table"'),
        ({"view": "log", "sinceVersion": 1}, "for streams and"),
        ({"view": "latest", "endingTimestamp": 5}, "always ends at the newest version"),
        (
            {"view": "latest", "sinceVersion": 1, "startingOffsets": "earliest"},
            "give only one of them",
        ),
    ],
)
def test_what_a_view_refuses(log, options, message):
    """With what to do instead."""
    with pytest.raises(OptionError, match=message):
        rows(log.url, **options)
    with pytest.raises(OptionError, match=message):
        explain(log.url, **options)


def test_a_log_at_a_named_cut(log, tmp_path, clock):
    """S74: the version of this log that belongs to those of the others."""
    stock = Log.create(str(tmp_path / "stock"), partitions=1, clock=clock)
    for value in ("a", "b"):
        with log.transaction("job") as t:
            t.append([{"key": "k", "value": value}], partition=0)
            t.append([{"key": "k", "value": value}], log=stock)
        if value == "a":
            snapshot(log.url, "month-end")
    cut = f"{log.url}#month-end"
    for url in (log.url, stock.url):
        assert [row[3] for row in rows(url, view="table", asOfCut=cut)] == [b"a"]
        assert [row[3] for row in rows(url, view="table")] == [b"b"]
    with pytest.raises(NotFoundError, match="has no cut 'other'; it has month-end"):
        rows(stock.url, view="table", asOfCut=f"{log.url}#other")
    with pytest.raises(OptionError, match="HOME_URL#NAME"):
        rows(stock.url, view="table", asOfCut="month-end")
    with pytest.raises(OptionError, match="more than one of the options"):
        rows(stock.url, view="table", asOfCut=cut, asOfVersion=1)
    with pytest.raises(OptionError, match='are for view "table"'):
        rows(stock.url, asOfCut=cut)
