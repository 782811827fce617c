"""State tables: the latest values of a log in a local file that follows it and survives
restarts.
"""

import logging
import os
import shutil
import subprocess
import sys
import threading

import pytest

from clog.cleaner import Cleaner
from clog.state import local_file
from clog.state import table as following
from clog.storage import (
    CorruptionError,
    InvalidInputError,
    Log,
    LogReplacedError,
    ManualClock,
    NotFoundError,
    StateTable,
)
from clog.storage.commit.tip import block_body
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog.storage.format.commits import Edit, read_commit
from clog_testing.counting import CountingStore
from clog_testing.crash import copy_of, discard, inside, memory_store

SOON_GONE = {"delete.retention.ms": "0", "min.cleanable.dirty.ratio": "0"}


@pytest.fixture
def open_table(store, clock, tmp_path):
    """Opens a table of the test's log; closes it at the end."""
    opened = []

    def make(on=None, folder=tmp_path / "cache", **options):
        opened.append(StateTable(on or store, folder, clock=clock, **options))
        return opened[-1]

    yield make
    for table in opened:
        table.close()


def put(log, **values):
    log.append([{"key": key, "value": value} for key, value in values.items()])


def clean_all(log, clock, passes=3):
    """Waits until tombstones are gone."""
    for _ in range(passes):
        log.roll()
        Cleaner(log).run_once(force=True)
        clock.advance(1)


def database(folder):
    (path,) = folder.glob("*.state")
    return path


def test_get_and_scan(make_log, open_table):
    """The latest value of each key; deleted keys are absent, an empty value is a value (S4)."""
    log = make_log(partitions=3)
    put(log, a="1", ab="2", b="3", c="4")
    put(log, a="5", b=None, c="")
    table = open_table()
    assert (table.get("a"), table.get(b"b"), table.get("c"), table.get("x")) == (
        b"5",
        None,
        b"",
        None,
    )
    assert table.get_many(["a", b"ab", "b", "x"]) == {b"a": b"5", b"ab": b"2"}
    assert table.get_many([]) == {}
    assert list(table.scan()) == [(b"a", b"5"), (b"ab", b"2"), (b"c", b"")]
    assert list(table.scan("a")) == [(b"a", b"5"), (b"ab", b"2")]
    assert (len(table), table.version, table.offsets) == (3, 2, log.end_offsets())


def test_prefixes_of_the_last_byte(make_log, open_table):
    """A prefix of 0xff has no key after it; its keys are found all the same."""
    log = make_log()
    log.append([{"key": key, "value": "1"} for key in (b"a\xff", b"a\xff\x00", b"b", b"\xff\xff")])
    table = open_table()
    assert [key for key, _ in table.scan(b"a\xff")] == [b"a\xff", b"a\xff\x00"]
    assert [key for key, _ in table.scan(b"\xff")] == [b"\xff\xff"]


def test_a_key_that_is_no_text(make_log, open_table):
    """Half of a surrogate pair is a clog error, in look-ups of one key and of many, and as a
    prefix.
    """
    make_log()
    table = open_table()
    asks = (table.get, lambda key: table.get_many([key]), lambda key: list(table.scan(key)))
    for ask in asks:
        with pytest.raises(InvalidInputError, match="a lone surrogate at character 0"):
            ask("\ud800")


def test_many_keys_at_once(make_log, open_table):
    """All rows are of the same version."""
    log = make_log()
    keys = [f"{i:05}" for i in range(1501)]
    log.append([{"key": key, "value": key} for key in keys])
    found = open_table().get_many(keys)
    assert found == {key.encode(): key.encode() for key in keys}


def test_refresh_takes_in_what_is_new(make_log, open_table):
    """And returns the changed keys."""
    log = make_log(partitions=2)
    put(log, a="1", b="1")
    table = open_table()
    assert table.refresh().changed == ()
    put(log, a="2", c="1")
    put(log, a="3", b=None)
    assert table.get("a") == b"1"
    refreshed = table.refresh()
    assert (refreshed.version, sorted(refreshed.changed)) == (3, [b"a", b"b", b"c"])
    assert dict(table.scan()) == {b"a": b"3", b"c": b"1"}
    assert table.offsets == log.end_offsets()
    log.alter({"segment.ms": 5})
    assert (table.refresh().changed, table.version) == ((), 4)


def test_a_system_without_fdatasync(make_log, open_table, monkeypatch):
    """L4: macOS has none; what comes before the header is synced all the same."""
    synced, fsync = [], os.fsync
    monkeypatch.delattr(os, "fdatasync", raising=False)
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(number) or fsync(number))
    log = make_log()
    put(log, a="1")
    table = open_table()
    put(log, a="2")
    synced.clear()
    table.refresh()
    assert len(synced) == 1
    assert table.get("a") == b"2"


@pytest.mark.parametrize("slept", [lambda log: put(log, gone="1"), lambda log: log.roll()])
def test_what_was_never_committed_is_not_shown(
    make_log, open_table, store, tmp_path, monkeypatch, slept
):
    """COMMIT.md §4: an old hint leads to what a delayed committer left in a block that was closed
    since, with records or without. A file that is new, or was not updated for long, shows the log
    all the same.
    """
    monkeypatch.setattr(documents, "BLOCK_VERSIONS", 8)
    log = make_log()
    for i in range(3):
        put(log, a=str(i))
    open_table().close()
    early = copy_of(store)
    asleep = Log.open(early, ids=SeededIds(1))
    slept(asleep)
    slept(asleep)
    while log.version < 20:
        put(log, a=str(log.version))
    folder = inside(store)
    ids = {v: read_commit(folder, v).record.commit_id for v in range(8)}
    folder.put(documents.block_path(0), documents.encode("block", block_body(0, ids)))
    for version in range(8):
        folder.delete(documents.commit_path(version))
    for version in range(4, asleep.version + 1):
        path = documents.commit_path(version)
        folder.put(path, inside(early).get(path))
    folder.put(documents.LATEST, documents.body_json({"version": 4}))
    for table in (open_table(folder=tmp_path / "new"), open_table()):
        assert (table.version, dict(table.scan())) == (20, {b"a": b"19"})
        assert table.refresh().changed == ()
    discard(early)


def test_many_changed_keys_are_not_named(make_log, open_table, monkeypatch):
    monkeypatch.setattr(following, "CHANGED_MAX", 2)
    log = make_log()
    table = open_table()
    put(log, a="1", b="1")
    assert len(table.refresh().changed) == 2
    put(log, a="1", b="1", c="2")
    assert table.refresh().changed is None
    assert len(table) == 3


def test_a_restart_reads_only_the_tail(make_log, open_table, store):
    """The file is continued where it was left, whatever the size of the log before that."""
    log = make_log()
    for i in range(20):
        put(log, **{f"k{i}": "x" * 1000})
    open_table().close()
    put(log, k3="new")
    counting = CountingStore(store)
    table = open_table(counting)
    data = counting.bytes_in
    assert (table.get("k3"), len(table), table.version) == (b"new", 20, 21)
    with counting.count() as idle:
        table.refresh()
    assert idle == {"get": 1}
    fresh = CountingStore(store)
    log.handle.store.get("latest")
    again = open_table(fresh)
    assert again.get("k3") == b"new"
    assert fresh.bytes_in < data


def test_a_refresh_is_all_or_nothing(make_log, open_table, monkeypatch):
    """A crash before the commit leaves rows, offsets and version as they were."""
    log = make_log()
    put(log, a="1")
    table = open_table()
    put(log, a="2", b="2")

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(local_file, "_append_footer", crash)
        with pytest.raises(KeyboardInterrupt):
            table.refresh()
    assert (dict(table.scan()), table.version) == ({b"a": b"1"}, 1)
    table.close()
    assert dict(open_table().scan()) == {b"a": b"2", b"b": b"2"}


def test_a_build_that_crashed_is_not_looked_at(make_log, open_table, tmp_path, monkeypatch):
    """What a killed process left is overwritten by the next one; a process that fails leaves
    nothing: otherwise a full disk would stay full.
    """
    log = make_log()
    put(log, a="1")
    folder = tmp_path / "cache"

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(local_file, "_append_footer", crash)
        with pytest.raises(KeyboardInterrupt):
            open_table()
    (lock,) = folder.iterdir()
    assert lock.suffix == ".lock"
    lock.with_suffix(".building").write_bytes(b"half a file")
    assert open_table().get("a") == b"1"
    assert not list(folder.glob("*.building*"))


def test_a_missed_tombstone_resyncs(make_log, open_table, clock, caplog):
    """S41: a table that was not refreshed while a tombstone was written and removed does not keep
    the key.
    """
    log = make_log(config=SOON_GONE)
    put(log, a="1", b="1")
    table = open_table()
    put(log, a=None)
    clean_all(log, clock)
    assert log.handle.manifest().tombstones_removed
    with caplog.at_level(logging.WARNING):
        assert table.refresh().changed is None
    assert dict(table.scan()) == {b"b": b"1"}
    assert "tombstones up to offset 2 of partitions [0]" in caplog.text
    assert table.refresh().changed == ()


def test_a_missed_tombstone_fails_when_asked(make_log, open_table, clock):
    """S41: the table stays as it was, and reports it each time, also when it is opened again."""
    log = make_log(config=SOON_GONE)
    put(log, a="1", b="1")
    table = open_table(on_loss="fail")
    put(log, a=None)
    clean_all(log, clock)
    for _ in range(2):
        with pytest.raises(NotFoundError, match="removed before the state table, at version 1"):
            table.refresh()
    assert (table.version, table.get("a")) == (1, b"1")
    with pytest.raises(NotFoundError, match="on_loss='resync'"):
        open_table(on_loss="fail")
    assert dict(open_table().scan()) == {b"b": b"1"}


def test_a_tombstone_that_was_read_is_not_missed(make_log, open_table, clock):
    """S41: if it is removed afterwards, nothing is lost."""
    log = make_log(config=SOON_GONE)
    put(log, a="1", b="1")
    put(log, a=None)
    table = open_table(on_loss="fail")
    clean_all(log, clock)
    put(log, c="1")
    assert table.refresh().changed == (b"c",)
    assert dict(table.scan()) == {b"b": b"1", b"c": b"1"}


def test_a_rising_log_start(make_log, open_table):
    """S36: what is below it is gone from the table, even where the table was behind it."""
    log = make_log()
    put(log, a="1", b="1")
    table = open_table()
    put(log, c="1", d="1")
    log.delete_records({0: 1})
    assert table.refresh().changed is None
    assert sorted(dict(table.scan())) == [b"b", b"c", b"d"]
    put(log, e="1")
    put(log, f="1")
    log.delete_records({0: 5})
    table.refresh()
    assert dict(table.scan()) == {b"f": b"1"}


def test_another_log_at_the_url(make_log, open_table, store, clock, caplog, tmp_path):
    """The rows of the earlier log are not shown, and the error says why."""
    log = make_log()
    put(log, old="1")
    open_table().close()
    other = memory_store()
    try:
        put(make_log(on=other), new="1")
        shutil.copytree(tmp_path / "cache", tmp_path / "copy")
        path = database(tmp_path / "copy")
        name = following.xxhash.xxh3_64_hexdigest(other.url.encode())
        path.rename(path.with_name(f"{name}.1.state"))
        with caplog.at_level(logging.WARNING):
            table = open_table(other, folder=tmp_path / "copy")
        assert dict(table.scan()) == {b"new": b"1"}
        assert "another log is at its URL now" in caplog.text
    finally:
        discard(other)


@pytest.mark.parametrize("value_bytes", [100, 1024, 3000, 6000, 11_000, 20_000])
def test_a_file_is_little_larger_than_its_rows(make_log, open_table, tmp_path, value_bytes):
    """Whatever the length of the values."""
    rows = min(4000, (4 << 20) // value_bytes)
    log = make_log()
    log.append([{"key": f"{i:016}", "value": bytes(value_bytes)} for i in range(rows)])
    open_table().close()
    size = database(tmp_path / "cache").stat().st_size
    assert size < 1.35 * rows * (16 + value_bytes + 24)


@pytest.mark.parametrize("damage", ["truncated", "overwritten", "empty", "older schema"])
def test_a_damaged_file_is_built_anew(make_log, open_table, tmp_path, caplog, damage, monkeypatch):
    """When it is opened, and with a message."""
    log = make_log()
    log.append([{"key": f"{i:04}", "value": "x" * 100} for i in range(500)])
    open_table().close()
    path = database(tmp_path / "cache")
    data = path.read_bytes()
    if damage == "older schema":
        monkeypatch.setattr(local_file, "SCHEMA", 99)
    else:
        left = {"truncated": data[:5000], "overwritten": b"\x55" * len(data), "empty": b""}
        path.write_bytes(left[damage])
    with caplog.at_level(logging.WARNING):
        table = open_table()
    assert (len(table), table.get("0400")) == (500, b"x" * 100)
    assert ": its file is damaged" in caplog.text
    assert database(tmp_path / "cache") != path


@pytest.mark.parametrize("rows", [40, 300])
def test_a_file_that_was_cut(make_log, open_table, tmp_path, rows):
    """However it ended."""
    log = make_log()
    log.append([{"key": f"{i:04}", "value": "x" * 100} for i in range(rows)])
    for cut in (1, 100, 3000, 9000):
        open_table().close()
        path = database(tmp_path / "cache")
        path.write_bytes(path.read_bytes()[:-cut])
        table = open_table()
        assert len(dict(table.scan())) == len(table) == rows
        table.close()


def test_zeros_in_a_file(make_log, open_table, tmp_path):
    """A sector of zeros is detected by a scan."""
    log = make_log()
    log.append([{"key": f"{i:04}", "value": "x" * 100} for i in range(1000)])
    right = [(f"{i:04}".encode(), b"x" * 100) for i in range(1000)]
    open_table().close()
    good = database(tmp_path / "cache").read_bytes()
    met = 0
    for at in range(len(good) // 2 // 512 * 512, len(good), 512 * 11):
        database(tmp_path / "cache").write_bytes(good[:at] + bytes(512) + good[at + 512 :])
        table = open_table()
        try:
            assert list(table.scan()) == right
        except CorruptionError:
            met += 1
            assert list(table.scan()) == right
        table.close()
    assert met > 3


def test_damage_that_a_get_meets(make_log, open_table, tmp_path, caplog):
    """The answer is right all the same; a scan says what to do, and doing it helps."""
    log = make_log()
    log.append([{"key": f"{i:06}", "value": "x" * 100} for i in range(20_000)])
    open_table().close()
    path = database(tmp_path / "cache")
    size = path.stat().st_size

    def spoil():
        with database(tmp_path / "cache").open("r+b") as file:
            file.seek(size // 4)
            file.write(b"\x55" * (size // 2))

    spoil()
    table = open_table()
    rows = table.scan()  # Which meets it before it has shown anything.
    next(rows)
    spoil()
    with pytest.raises(CorruptionError, match="was rebuilt: scan again"):
        list(rows)
    assert len(list(table.scan())) == 20_000
    table.close()
    spoil()
    table = open_table()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert table.get("010000") == b"x" * 100
    assert ": its file is damaged" in caplog.text
    assert len(list(table.scan())) == 20_000
    table.close()
    spoil()
    assert len(open_table()) == 20_000
    spoil()
    assert len(open_table().get_many([f"{i:06}" for i in range(20_000)])) == 20_000


def test_a_scan_shows_the_table_as_it_was_asked_for(make_log, open_table):
    """Not the state at the time when its first row is requested."""
    log = make_log()
    put(log, a="1", b="1")
    table = open_table()
    rows = table.scan()
    put(log, a="2", b=None)
    table.refresh()
    assert list(rows) == [(b"a", b"1"), (b"b", b"1")]
    assert list(table.scan()) == [(b"a", b"2")]


def test_a_table_that_is_closed(make_log, open_table):
    """Each call is refused in the user's terms; a scan that has started continues."""
    log = make_log()
    put(log, a="1", b="1")
    table = open_table()
    rows = table.scan()
    next(rows)
    table.close()
    table.close()
    for use in (
        *(lambda: table.get("a"), lambda: table.get_many(["a"]), table.scan, table.refresh),
        *(lambda: len(table), lambda: next(table.follow()), lambda: table.version),
        lambda: table.offsets,
    ):
        with pytest.raises(InvalidInputError, match=r"was closed; open it again"):
            use()
    assert table.url in repr(table)
    assert list(rows) == [(b"b", b"1")]


def test_two_tables_on_one_folder(make_log, open_table):
    """One refreshes; the other sees it and returns the changes that it has not returned yet."""
    log = make_log()
    put(log, a="1")
    first, second = open_table(), open_table()
    put(log, a="2")
    assert first.refresh().changed == (b"a",)
    assert second.refresh().changed is None
    assert (second.get("a"), second.version) == (b"2", 2)
    assert second.refresh().changed == ()
    put(log, a="3")
    first.refresh()
    put(log, b="1")
    assert second.refresh().changed is None  # It reads `b` alone, and `a` has changed, too.
    assert dict(second.scan()) == {b"a": b"3", b"b": b"1"}


def test_a_file_that_another_one_built(make_log, open_table, tmp_path, clock):
    """A process that has the older one open notices, and switches to the new one; older ones are
    deleted.
    """
    log = make_log(config=SOON_GONE)
    put(log, a="1", b="1")
    first, second = open_table(), open_table()
    put(log, a=None)
    clean_all(log, clock)
    assert first.refresh().changed is None
    assert (second.get("b"), second.version) == (b"1", first.version)
    assert second.refresh().changed == ()
    assert (second.get("a"), dict(second.scan())) == (None, {b"b": b"1"})
    third = open_table()
    database(tmp_path / "cache").unlink()
    assert dict(third.scan()) == {b"b": b"1"}
    assert dict(second.scan()) == {b"b": b"1"}


def test_a_folder_that_was_emptied(make_log, open_table, tmp_path):
    """A refresh rebuilds the table."""
    log = make_log()
    put(log, a="1")
    table = open_table()
    database(tmp_path / "cache").unlink()
    assert table.refresh().changed == ()  # The same state as before.
    assert table.get("a") == b"1"
    assert database(tmp_path / "cache").exists()
    database(tmp_path / "cache").unlink()
    put(log, a="2")
    assert (table.refresh().changed, table.get("a")) == (None, b"2")


def test_a_scan_sees_one_state(make_log, open_table):
    """A refresh in the middle of it changes nothing for the scan, and everything for `get`."""
    log = make_log()
    log.append([{"key": f"{i:03}", "value": "1"} for i in range(900)])
    table = open_table()
    scan = table.scan()
    rows = [next(scan)]
    log.append([{"key": f"{i:03}", "value": "2"} for i in range(900)])
    table.refresh()
    assert table.get("800") == b"2"
    assert {value for _, value in [*rows, *scan]} == {b"1"}


def test_follow(make_log, open_table, clock):
    """Yields the refreshes that returned something new; waits in between."""
    log = make_log()
    table = open_table()
    following = table.follow(poll_ms=250)
    put(log, a="1")
    assert next(following).changed == (b"a",)
    start_ms = clock.now_ms()
    sleep_ms = clock.sleep_ms

    def appended_while_it_sleeps(ms):
        sleep_ms(ms)
        if clock.now_ms() == start_ms + 1000:
            put(log, b="1")

    clock_type = type(clock)
    original, clock_type.sleep_ms = clock_type.sleep_ms, lambda _, ms: appended_while_it_sleeps(ms)
    sleep_ms = original.__get__(clock)
    try:
        assert next(following).changed == (b"b",)
    finally:
        clock_type.sleep_ms = original
    assert clock.now_ms() == start_ms + 1000
    assert table.get("b") == b"1"


def test_a_key_in_several_partitions(make_log, open_table):
    """The latest timestamp wins, and a tombstone removes only the value of its own partition."""
    log = make_log(partitions=2)
    row = {"key": "a", "value": "early", "timestamp": 1000}
    log.append([row, {**row, "value": "late", "timestamp": 2000}], partition=[1, 0])
    table = open_table()
    assert (table.get("a"), table.get_many(["a"])) == (b"late", {b"a": b"late"})
    assert list(table.scan()) == [(b"a", b"late")]
    log.append([{"key": "a", "value": None, "timestamp": 3000}], partition=0)
    table.refresh()
    assert table.get("a") == b"early"


def test_gets_while_the_table_is_built_anew(make_log, open_table, tmp_path):
    """Threads that read never get an error."""
    log = make_log()
    put(log, a="1")
    table = open_table()
    stop, failures = threading.Event(), []

    def read():
        try:
            while not stop.is_set():
                assert table.get("a") == b"1"
        except BaseException as e:
            failures.append(e)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(20):
            database(tmp_path / "cache").unlink()
            table.refresh()
    finally:
        stop.set()
        reader.join()
    assert failures == []


def test_a_sweep_in_the_middle_of_a_refresh(make_log, open_table, monkeypatch):
    """The planned objects are gone: the read is planned again, from the same offsets."""
    log = make_log()
    put(log, a="1")
    table = open_table()
    put(log, a="2")
    read = following.latest_batches
    calls = []

    def gone_once(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 1:
            log.handle.commit(lambda tip, ms: Edit(config={"segment.ms": "5"}), operation="alter")
            raise following.VersionExpiredError("gone")
        return read(*arguments, **options)

    monkeypatch.setattr(following, "latest_batches", gone_once)
    assert table.refresh().changed == (b"a",)
    assert (table.get("a"), table.version, len(calls)) == (b"2", 3, 2)


def test_wrong_arguments(make_log, open_table, tmp_path):
    make_log()
    with pytest.raises(InvalidInputError, match="on_loss='ignore'; allowed: resync, fail"):
        open_table(on_loss="ignore")
    with pytest.raises(NotFoundError, match="no log at"):
        StateTable(str(tmp_path / "nothing"), tmp_path / "cache")


def test_version_and_rows_of_one_file_agree(make_log, open_table):
    """Another table's refresh of the shared file moves the version with the rows; this one still
    returns what changed.
    """
    log = make_log()
    first, second = open_table(), open_table()
    put(log, a="1")
    first.refresh()
    assert (second.get("a"), second.version) == (b"1", first.version)
    assert second.offsets == first.offsets
    assert second.refresh().changed is None


def test_processes_on_one_folder(tmp_path):
    """Four processes that open, refresh and read while the log grows end with the same rows; one
    file is left, and nothing of the builds.
    """
    url, folder = str(tmp_path / "log"), tmp_path / "cache"
    log = Log.create(url, partitions=2)
    put(log, **{f"k{i}": "0" for i in range(200)})
    code = (
        "import sys; from clog.storage import StateTable\n"
        "table = StateTable(sys.argv[1], sys.argv[2])\n"
        "while table.get('end') is None: table.refresh()\n"
        "rows = dict(table.scan())\n"
        "print(table.get_many(rows) == rows)\n"
        "print(table.version, len(table))\n"
    )
    arguments = [sys.executable, "-c", code, url, str(folder)]
    processes = [
        subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for i in range(30):
        put(log, **{f"k{i}": str(i), f"n{i}": "1"})
    put(log, end="1", k199=None)
    ends = [process.communicate(timeout=120) for process in processes]
    assert ends == [("True\n32 230\n", "")] * 4
    assert sorted(path.suffix for path in folder.iterdir()) == [".lock", ".state"]


def restored(log, root, backup, records):
    """Puts a copy back in place of a log, which then continues with other records."""
    shutil.rmtree(root)
    shutil.copytree(backup, root)
    other = Log.open(str(root), clock=log.handle.clock)
    for key in records:
        other.append([{"key": key, "value": "v"}])


@pytest.mark.parametrize("records", [("bak",), ("bak", "more", "most")])
def test_a_log_that_was_restored_while_the_table_was_away(tmp_path, records):
    """S47: its version is a different one there, whether equal or overtaken: the file is
    rebuilt.
    """
    root, backup = tmp_path / "log", tmp_path / "backup"
    log = Log.create(str(root), partitions=1, clock=ManualClock())
    log.append([{"key": "old", "value": "v"}])
    shutil.copytree(root, backup)
    log.append([{"key": "late", "value": "v"}])
    with StateTable(str(root), tmp_path / "cache", clock=ManualClock()):
        pass
    restored(log, root, backup, records)
    with StateTable(str(root), tmp_path / "cache", clock=ManualClock()) as table:
        assert {key for key, _ in table.scan()} == {b"old", *(r.encode() for r in records)}


@pytest.mark.parametrize("records", [(), ("bak",), ("bak", "more", "most")])
def test_a_log_that_was_restored_to_what_one_of_two_tables_saw_last(tmp_path, records):
    """S47: the file, which the other has moved since, is rebuilt for both."""
    root, backup, clock = tmp_path / "log", tmp_path / "backup", ManualClock()
    log = Log.create(str(root), partitions=1, clock=clock)
    log.append([{"key": "old", "value": "v"}])
    shutil.copytree(root, backup)
    with (
        StateTable(str(root), tmp_path / "cache", clock=clock) as slow,
        StateTable(str(root), tmp_path / "cache", clock=clock) as fast,
    ):
        log.append([{"key": "late", "value": "v"}])
        fast.refresh()
        restored(log, root, backup, records)
        clock.advance(60_000)
        for table in (slow, fast):
            table.refresh()
            assert {key for key, _ in table.scan()} == {b"old", *(r.encode() for r in records)}
            assert table.offsets == {0: 1 + len(records)}


@pytest.mark.parametrize("on_loss", ["resync", "fail"])
def test_a_log_that_is_recreated_while_the_table_is_open(tmp_path, on_loss):
    """S47: it gets an error, or rebuilds the table from the new log; it never mixes the two."""
    root, clock = tmp_path / "log", ManualClock()
    Log.create(str(root), partitions=1, clock=clock).append([{"key": "old", "value": "v"}])
    with StateTable(str(root), tmp_path / "cache", clock=clock, on_loss=on_loss) as table:
        shutil.rmtree(root)
        Log.create(str(root), partitions=1, clock=clock).append([{"key": "new", "value": "v"}])
        clock.advance(60_000)
        if on_loss == "fail":
            with pytest.raises(LogReplacedError):
                table.refresh()
        else:
            assert table.refresh().changed is None
            assert {key for key, _ in table.scan()} == {b"new"}
            assert table.refresh().changed == ()


def test_a_table_with_a_name(make_log, open_table, clock):
    """S64: it reports its position to the log, at most every ten seconds, and at its end."""
    log = make_log()
    put(log, a="1")
    table = open_table(reader="prices", reader_hold_ms=1000)
    assert [(dict(r.position), r.hold_ms) for r in log.readers()] == [({0: 1}, 1000)]
    put(log, b="1")
    table.refresh()
    assert [dict(r.position) for r in log.readers()] == [{0: 1}]
    table.close()
    (told,) = log.readers()
    assert (dict(told.position), told.version, told.lag_records) == ({0: 2}, 2, 0)
    with pytest.raises(InvalidInputError, match="not a valid reader name"):
        open_table(reader="a/b")


def test_a_file_of_an_older_release(make_log, open_table, tmp_path):
    """0.1 kept tables in SQLite: they are rebuilt from the log, and deleted."""
    log = make_log()
    put(log, a="1")
    folder = tmp_path / "cache"
    folder.mkdir()
    name = following.xxhash.xxh3_64_hexdigest(log.url.encode())
    for older in (".7.sqlite3", ".7.sqlite3-wal", ".7.sqlite3-shm"):
        (folder / f"{name}{older}").write_bytes(b"SQLite format 3")
    (folder / "another.7.sqlite3").write_bytes(b"of another log")
    assert dict(open_table().scan()) == {b"a": b"1"}
    assert sorted(path.suffix for path in folder.iterdir()) == [".lock", ".sqlite3", ".state"]
