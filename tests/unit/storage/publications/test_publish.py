"""`Log.publish("delta")`: what the view shows, who may write, what expires (S63)."""

import json
from collections import Counter

import pytest

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties.sweep import sweep_released
from clog.storage import InvalidInputError, Log, LogReplacedError, NotFoundError
from clog.storage.diagnostics.verify import Check, verify_log
from clog.storage.env import SeededIds
from clog.storage.publications.delta import CHECKPOINT_VERSIONS
from clog.storage.publications.publish import Publications, view_of, views_in
from clog.storage.view_formats import FORMATS
from clog_testing.clocked import ClockedStore
from clog_testing.counting import CountingStore
from clog_testing.published import (
    delta_adds,
    delta_rows,
    delta_versions,
    iceberg_rows,
    iceberg_versions,
)

pytest.importorskip("pyroaring")
pytest.importorskip("fastavro")
DAY_MS = 86_400_000


def put(log, numbers, value="1", **where):
    rows = [{"key": f"k{i}", "value": value, "timestamp": 1} for i in numbers]
    return log.append(rows, **where)


def rows_of(log, at=None):
    table = log.table(at=at).to_arrow(columns=["key", "value"])
    return sorted(
        zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True)
    )


READERS = {"delta": (delta_rows, delta_versions), "iceberg": (iceberg_rows, iceberg_versions)}
FIRST = {"delta": 0, "iceberg": 1}
both = pytest.mark.parametrize("name", READERS)


def check(log, store, version=None, name="delta"):
    """The view is the table at the version that it states."""
    at = None if version is None else version + FIRST[name]
    rows, stated = READERS[name][0](store, at)
    assert rows == rows_of(log, stated)
    return stated


def versions(store, name):
    """Counted from 0, like all version numbers in these tests."""
    return [version - FIRST[name] for version in READERS[name][1](store)]


def actions_of(store, version):
    lines = store.get(f"_delta_log/{version:020d}.json").splitlines()
    found = Counter(next(iter(json.loads(line))) for line in lines)
    return {name: n for name, n in found.items() if name in ("add", "remove")}


def clean(log):
    log.roll()
    Cleaner(log).run_once(force=True)


@both
def test_the_view_is_the_table(name, make_log, store, clock):
    """S63: superseded rows, tombstones, rows without key, deleted ones, several partitions; before
    and after a pass.
    """
    log = make_log(partitions=2, config={"cleanup.policy": ""})
    put(log, range(20))
    put(log, range(5, 12), "2")
    put(log, [30], "")
    log.append([{"key": "k6", "value": None, "timestamp": 1}])
    log.append([{"key": None, "value": "none", "timestamp": 1}])
    put(log, [7], "other", partition=0)
    result = log.publish(name)
    assert (result.version, result.table_version, result.published) == (6, FIRST[name], True)
    assert check(log, store, name=name) == 6
    log.delete_records({0: 3, 1: 2})
    log.publish(name)
    check(log, store, name=name)
    log.alter({"cleanup.policy": "compact"})
    put(log, range(3, 9), "3")
    clean(log)
    assert log.publish(name).published
    check(log, store, name=name)


def test_an_empty_log_is_an_empty_table(make_log, store):
    """S63: and so is one in which all is deleted."""
    log = make_log()
    log.publish("delta")
    assert check(log, store) == 0
    put(log, [1])
    log.publish("delta")
    log.append([{"key": "k1", "value": None, "timestamp": 1}])
    log.publish("delta")
    check(log, store)
    assert delta_adds(store)[0] == {}


@both
def test_publishing_again_changes_nothing(name, make_log, store, open_log):
    """S63: whoever does it, and after commits that change no table."""
    log = make_log()
    put(log, range(9))
    first = log.publish(name)
    before = {found.path: store.get(found.path) for found in store.list("")}
    again = open_log().publish(name)
    assert (again.version, again.published) == (first.version, False)
    assert again.table_version == first.table_version == FIRST[name]
    assert {found.path: store.get(found.path) for found in store.list("")} == before
    log.alter({"segment.ms": "1000"})
    log.roll()
    assert open_log().publish(name).version == first.version
    assert versions(store, name) == [0]


def test_a_publication_is_the_difference(make_log, store):
    """S63: its size depends on what changed, not on the log's size."""
    log = make_log()
    for i in range(8):
        put(log, range(10 * i, 10 * i + 10))
    log.publish("delta")
    assert actions_of(store, 0) == {"add": 8}
    put(log, [3], "2")
    log.publish("delta")
    assert actions_of(store, 1) == {"add": 2, "remove": 1}
    check(log, store)


@both
def test_two_publishers_make_one_version(name, make_log, store, open_log, monkeypatch):
    """S63: the second finds the first one's, and publishes what is newer, if there is anything."""
    log, other = make_log(), open_log()
    put(log, range(3))
    view, done = type(view_of(log.handle.standing, name)), []
    real = view.create

    def slow(self, version, lowest_view):
        if not done:
            done.append(None)
            done[:] = [other.publish(name)]
        return real(self, version, lowest_view)

    monkeypatch.setattr(view, "create", slow)
    result = log.publish(name)
    assert versions(store, name) == [0]
    assert (result.published, done[0].published) == (False, True)
    check(log, store, name=name)


@both
def test_versions_that_a_view_needs_are_not_swept(name, make_log, store, clock):
    """S63: replaced objects stay while a published version within its retention names them; then
    they are deleted.
    """
    log = make_log(config={"file.delete.delay.ms": "1000", "min.cleanable.dirty.ratio": "0"})
    put(log, range(9))
    put(log, range(9), "2")
    log.publish(name)
    clean(log)
    for _ in range(3):
        clock.advance(DAY_MS)
        assert sweep_released(Work(log.handle, clock.now_ms())).objects == ()
        check(log, store, name=name)
    log.publish(name)
    clock.advance(999)
    Publications(log.handle).release(name)
    assert sweep_released(Work(log.handle, clock.now_ms())).objects == ()
    check(log, store, 0, name)
    clock.advance(1)
    Publications(log.handle).release(name)
    assert len(sweep_released(Work(log.handle, clock.now_ms())).objects) == 2
    assert [pin.view - FIRST[name] for pin in log.handle.tip.head.pins[name]] == [1]
    if name == "delta":  # Of Iceberg's, the version itself goes at once.
        with pytest.raises(FileNotFoundError):
            delta_rows(store, 0)
    check(log, store, name=name)


@both
def test_a_start_that_moves_expires_older_versions(name, make_log, store):
    """S63: an old version never shows what was deleted."""
    log = make_log()
    for i in range(4):
        put(log, [i])
        log.publish(name)
    log.delete_records({0: 2})
    log.publish(name)
    assert versions(store, name) == [4]
    check(log, store, name=name)
    put(log, [9])
    log.publish(name)
    assert versions(store, name) == [4, 5]
    assert check(log, store, 4, name) < check(log, store, 5, name)


def test_checkpoints_come_and_old_versions_go(make_log, store, clock):
    """S63: what is published stays as long as what it shows may be read, and no longer."""
    log = make_log(config={"file.delete.delay.ms": "100000"})
    for i in range(4 * CHECKPOINT_VERSIONS):
        put(log, [i % 7], str(i))
        clock.advance(10_000)
        log.publish("delta")
        check(log, store)
    versions = delta_versions(store)
    assert versions[-1] == 4 * CHECKPOINT_VERSIONS - 1
    assert CHECKPOINT_VERSIONS < len(versions) < 3 * CHECKPOINT_VERSIONS
    assert len([f for f in store.list("_delta_log/") if "checkpoint.parquet" in f.path]) <= 3
    for version in versions[-10:]:
        check(log, store, version)


def test_a_table_of_somebody_else_is_left_alone(make_log, store):
    """S63: nothing is written over what clog did not write."""
    log = make_log()
    put(log, [1])
    action = {"metaData": {"id": "x", "configuration": {}}}
    store.put("_delta_log/00000000000000000000.json", json.dumps(action).encode())
    with pytest.raises(InvalidInputError, match="that clog did not write"):
        log.publish("delta")
    assert log.handle.tip.head.pins == {}


def test_a_writer_who_came_in_all_the_same_is_undone(make_log, store):
    """S63: a publication is the whole difference to what the view says, whoever wrote that."""
    log = make_log()
    put(log, range(5))
    log.publish("delta")
    ((path, add),) = delta_adds(store)[0].items()
    strange = {**add, "path": "part-0.parquet"}
    actions = [{"commitInfo": {}}, {"remove": {"path": path}}, {"add": strange}]
    body = "\n".join(map(json.dumps, actions)).encode()
    store.put("_delta_log/00000000000000000001.json", body)
    assert log.publish("delta").table_version == 2
    assert list(delta_adds(store)[0]) == [path]
    check(log, store)


@both
def test_a_log_that_was_recreated_takes_the_view_over(name, make_log, store, open_log):
    """S47, S63: everything of the old log's is removed, and an old handle publishes
    nothing more.
    """
    old = make_log()
    put(old, range(5))
    old.publish(name)
    for found in list(store.list("_clog/")):  # as `rm -r` does: `delete_log` takes the view along
        store.delete(found.path)
    new = make_log()
    put(new, [77])
    result = new.publish(name)
    assert (result.published, versions(store, name)) == (True, [1])
    check(new, store, name=name)
    with pytest.raises((LogReplacedError, NotFoundError)):
        old.publish(name)
    assert versions(store, name) == [1]


@both
def test_times_that_objects_do_not_say_are_refused(name, make_log, store):
    """S63: readers of the objects would see other timestamps than the table's."""
    log = make_log(config={"message.timestamp.type": "LogAppendTime"})
    put(log, [1])
    with pytest.raises(InvalidInputError, match="time of their commit as timestamp"):
        log.publish(name)
    assert versions(store, name) == []


def test_an_unknown_format_is_refused(make_log):
    with pytest.raises(
        InvalidInputError, match="'hudi' is unknown; a log is published as delta or iceberg"
    ):
        make_log().publish("hudi")


def test_long_vectors_are_in_a_file_that_the_sweep_takes(make_log, store, clock):
    """S63: of many scattered rows; once the versions that name it have expired."""
    log = make_log(config={"file.delete.delay.ms": "1000"}, on=ClockedStore(store, clock))
    put(log, range(4000))
    files = []
    for step in (3, 5):
        put(log, range(0, 4000, step), str(step))
        log.publish("delta")
        check(log, store)
        files.append({f.path for f in store.list("_clog/") if "deletion_vector" in f.path})
        clock.advance(3 * DAY_MS)
    assert (len(files[0]), len(files[1])) == (1, 2)
    for _ in range(CHECKPOINT_VERSIONS):
        put(log, [1], "x")
        log.publish("delta")
        clock.advance(3 * DAY_MS)
    log._part(Publications).release("delta")
    put(log, [1], "y")
    log.publish("delta")
    Cleaner(log).run_once()
    Cleaner(log).run_once()
    left = {f.path for f in store.list("_clog/") if "deletion_vector" in f.path}
    assert left
    assert not files[0] & left
    check(log, store)


def test_what_publishing_costs(make_log, store, clock):
    """S63: a published log costs its writers nothing; an unpublished one has no trace of it."""
    counting = CountingStore(store)
    log = make_log(on=counting)
    put(log, [1])
    assert b"pins" not in store.get(f"_clog/{log.id}/commits/{1:020d}.json")
    log.publish("delta")  # version 2
    with counting.count() as again:
        log.publish("delta")
    assert again == {"get": 1, "list": 1}
    for _ in range(3):
        with counting.count() as published:
            put(log, [2])
        if log.version % 4:
            assert published == {"create": 1, "put": 1, "get": 1}


@both
def test_a_publisher_that_fell_asleep(name, make_log, store, clock, open_log, monkeypatch):
    """S63: its pin holds what it is about to publish; its create is refused once others made the
    view's version, and then it publishes the newest.
    """
    log = make_log(config={"file.delete.delay.ms": "1000", "min.cleanable.dirty.ratio": "0"})
    put(log, range(9))
    view, slept = type(view_of(log.handle.standing, name)), []
    real, pinned = view.create, log.version

    def sleepy(self, version, lowest_view):
        if not slept:
            slept.append(version)
            other = open_log()
            put(other, range(9), "2")
            clean(other)
            clock.advance(3 * DAY_MS)
            assert sweep_released(Work(other.handle, clock.now_ms())).objects == ()
            assert other.handle.tip.head.oldest_readable <= pinned
            other.publish(name)
            put(other, [3], "3")
        return real(self, version, lowest_view)

    monkeypatch.setattr(view, "create", sleepy)
    result = log.publish(name)
    assert slept
    assert (result.table_version - FIRST[name], versions(store, name)) == (1, [0, 1])
    check(log, store, name=name)


@both
def test_a_version_that_expired_while_it_was_prepared(
    name, make_log, store, clock, open_log, monkeypatch
):
    """S63: it is no longer pinned: the newest one is published instead."""
    log = make_log(config={"file.delete.delay.ms": "0", "min.cleanable.dirty.ratio": "0"})
    put(log, range(9))
    view, slept = type(view_of(log.handle.standing, name)), []
    real = view.prepared

    def sleepy(self, seen, state, **about):
        if not slept:
            slept.append(version := state.source.version)
            other = Log.open(store, clock=clock, ids=SeededIds(77))
            put(other, range(9), "2")
            clean(other)
            clock.advance(10)
            Cleaner(other).run_once()
            assert other.handle.tip.head.oldest_readable > version
        return real(self, seen, state, **about)

    monkeypatch.setattr(view, "prepared", sleepy)
    assert log.publish(name).version > slept[0]
    check(log, store, name=name)


def test_verify_checks_what_views_name(make_log, store):
    """S63: a missing object, and an unreadable view, are found; a removed view is not damage."""
    log = make_log(config={"min.cleanable.dirty.ratio": "0"})
    put(log, range(5))
    log.publish("delta")
    clean(log)
    put(log, range(5), "2")
    clean(log)
    log.publish("delta")
    assert verify_log(store).findings == ()
    (path,) = delta_adds(store, 0)[0]
    data = store.get(path)
    store.delete(path)
    found = [(f.check, f.where) for f in verify_log(store).findings if f.check is Check.VIEW]
    assert found == [(Check.VIEW, "delta")]
    store.put(path, data)
    store.put("_delta_log/00000000000000000001.json", b"{")
    assert "is not a version of a Delta table" in verify_log(store).findings[0].message
    for listed in list(store.list("_delta_log/")):
        store.delete(listed.path)
    assert verify_log(store).findings == ()


def test_each_format_has_a_row_and_a_view():
    """Every format that configs, paths and the command line offer can be published."""
    assert all(views_in(name).row is row for name, row in FORMATS.items())
