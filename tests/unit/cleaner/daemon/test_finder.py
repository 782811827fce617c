"""Which logs a daemon maintains."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from clog.cleaner import Cleaner
from clog.cleaner.cleaner import FoundLogs
from clog.cleaner.daemon import broker_config as finder_module
from clog.cleaner.daemon.broker_config import DISCOVER_MS, Finder
from clog.cleaner.log_round import REST_MS_MAX
from clog.storage import ClogError, Log, ManualClock, NotFoundError, StoreUnavailableError
from clog.storage.env import SeededIds
from clog.storage.format.commits import Edit
from clog.storage.store.opening import find_logs


@pytest.fixture
def finder(clock):
    return lambda *urls, below=(): Finder(urls, below, clock=clock, ids=SeededIds(3))


def test_logs_below_a_prefix(tmp_path, finder, clock):
    """Later ones are found too, each once; the inside of a log is not searched."""
    first = Log.create(str(tmp_path / "a"), 1, clock=ManualClock())
    (tmp_path / "a" / "inner" / "_clog").mkdir(parents=True)
    find = finder(below=[str(tmp_path)])
    assert [log.url for log in find().logs] == [first.url]
    later = Log.create(str(tmp_path / "b" / "c"), 1, clock=ManualClock())
    assert find() == FoundLogs([], [])
    clock.advance(DISCOVER_MS)
    assert [log.url for log in find().logs] == [later.url]
    assert set(find.stores) == {first.url, later.url}


def test_a_log_by_two_names(tmp_path, finder, monkeypatch):
    """Given in one spelling and found in another, it is maintained, and counted, once."""
    log = Log.create(str(tmp_path / "a"), 1, clock=ManualClock())
    monkeypatch.chdir(tmp_path)
    assert [found.url for found in finder("./a/", below=["."])().logs] == [log.url]


def test_what_is_left_of_a_deleted_log_stops_nothing(tmp_path, finder, caplog):
    """Versioned buckets of some servers list a folder in which everything was deleted."""
    (tmp_path / "deleted" / "_clog").mkdir(parents=True)
    log = Log.create(str(tmp_path / "a"), 1, clock=ManualClock())
    assert [found.url for found in finder(below=[str(tmp_path)]).first(patient=False)] == [log.url]
    assert "no log at" in caplog.text
    found = finder(below=[str(tmp_path)])()
    assert (found.unopened, found.unlisted) == ({}, {})
    with pytest.raises(NotFoundError):  # one that was named is missed
        finder(str(tmp_path / "deleted")).first(patient=True)


def test_the_prefix_may_be_a_log(tmp_path):
    """Then it is the one; a missing folder has none."""
    log = Log.create(str(tmp_path / "a"), 1, clock=ManualClock())
    assert find_logs(log.url).urls == [log.url]
    assert find_logs(str(tmp_path / "nowhere")).urls == []


def test_a_folder_that_cannot_be_listed(tmp_path, finder, clock, forbidden, caplog):
    """One below the prefix hides what is in it, and nothing else; it is reported once, and searched
    again. What was found in it before stays. A prefix itself is retried.
    """
    url = Log.create(str(tmp_path / "a"), 1, clock=ManualClock()).url
    inside = Log.create(str(tmp_path / "b" / "c"), 1, clock=ManualClock()).url
    forbidden.add(str(tmp_path / "b"))
    find = finder(below=[str(tmp_path)])
    assert [log.url for log in find.first(patient=False)] == [url]
    for _ in range(3):
        found = find()
        (reason,) = found.unlisted.items()
        assert (reason[0], found.gone) == (str(tmp_path / "b"), [])
        assert reason[1].startswith(f"StoreRefusedError: list of '' in {tmp_path}/b was refused")
        clock.advance(DISCOVER_MS)
    assert caplog.text.count("Permission denied") == 1
    forbidden.clear()
    assert [log.url for log in find().logs] == [inside]
    forbidden.update((str(tmp_path / "b"), str(tmp_path)))
    clock.advance(DISCOVER_MS)
    found = find()
    assert (found.gone, set(found.unlisted)) == ([], {str(tmp_path)})
    forbidden.remove(str(tmp_path))
    clock.advance(DISCOVER_MS)
    found = find()
    assert (found.gone, set(found.unlisted)) == ([], {str(tmp_path / "b")})


def test_what_repairs_of_a_disk_leave(tmp_path, finder, forbidden):
    """``lost+found`` is on each ext4 disk, and belongs to the system: it is not searched, so a
    daemon without permission for it is ready.
    """
    url = Log.create(str(tmp_path / "a"), 1, clock=ManualClock()).url
    (tmp_path / "lost+found").mkdir()
    forbidden.add(str(tmp_path / "lost+found"))
    found = finder(below=[str(tmp_path)])()
    assert ([log.url for log in found.logs], found.unlisted) == ([url], {})


def _damaged(path):
    newest = max(Path(path).rglob("commits/*.json"))
    newest.write_bytes(newest.read_bytes()[:-5] + b"xxxxx")


def _newer(path):
    """As a later release writes it: with a feature that this one does not know."""
    handle = Log.open(str(path)).handle
    features = replace(handle.tip.head.log.features, read=frozenset({"quill"}))
    handle.commit(lambda _tip, _ms: Edit(features=features), operation="upgrade")


def _foreign(path):
    shutil.rmtree(path)
    (Path(path) / "_clog" / "cache").mkdir(parents=True)
    (Path(path) / "_clog" / "cache" / "index").write_bytes(b"another program's")


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (_damaged, "CorruptionError: "),
        (_newer, "UnsupportedFormatError: "),
        (_foreign, "NotFoundError: the folder _clog of "),
    ],
)
def test_a_bad_log_below_a_prefix(tmp_path, finder, clock, caplog, harm, reason):
    """It is left out with the reason, reported once, and tried again at growing intervals; the
    others are found, and so is it once it is sound. One that the command line names is an error.
    """
    good = Log.create(str(tmp_path / "a"), 1, clock=ManualClock()).url
    bad = Log.create(str(tmp_path / "b"), 1, clock=ManualClock()).url
    shutil.copytree(bad, tmp_path / ".kept")
    harm(bad)
    find = finder(below=[str(tmp_path)])
    assert [log.url for log in find.first(patient=False)] == [good]
    found = find()
    assert [log.url for log in found.logs] == [good]
    for _ in range(5):
        assert found.unopened[bad].startswith(reason)
        clock.advance(DISCOVER_MS)
        found = find()
        assert found.logs == []
    assert caplog.text.count(reason) == 1
    with pytest.raises(ClogError, match=re.escape(bad)):
        finder(bad).first(patient=True)
    shutil.rmtree(bad)
    shutil.move(tmp_path / ".kept", bad)
    clock.advance(REST_MS_MAX)
    found = find()
    assert ([log.url for log in found.logs], found.unopened) == ([bad], {})


def test_stores_that_keep_it_waiting(tmp_path, finder, clock, monkeypatch):
    """While one does not respond, no call tries a second one, and each has its turn: the open logs
    are cleaned in between.
    """
    asked = []

    def silent(url, *_, **__):
        asked.append(url)
        clock.advance(200_000)
        raise StoreUnavailableError("no answer")

    monkeypatch.setattr(finder_module, "open_store", silent)
    find = finder("/a", "/b", "/c")
    for _ in range(3):
        find()
    assert asked == ["/a", "/b", "/c"]


def test_a_memory_folder(clock):
    """Through fsspec, as on any other filesystem."""
    log = Log.create("memory://finder/x/orders", 1, clock=clock)
    assert find_logs("memory://finder").urls == ["memory://finder/x/orders"]
    for found in list(log.handle.store.list("")):
        log.handle.store.delete(found.path)


def test_a_store_that_is_away_at_the_start(tmp_path, finder, clock, monkeypatch):
    """S28: it is tried again at growing intervals, unless the caller has no time; a missing log is
    reported at once.
    """
    url = Log.create(str(tmp_path / "a"), 1, clock=ManualClock()).url
    tries = []

    def away(*_, **__):
        tries.append(clock.monotonic_ms())
        raise StoreUnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(finder_module, "open_store", away)
        find = finder(url)
        assert find.first(patient=True) == []
        with pytest.raises(StoreUnavailableError):
            finder(url).first(patient=False)
        for _ in range(20):
            clock.advance(5000)
            found = find()
            assert (found.logs, found.unopened) == ([], {url: "StoreUnavailableError: away"})
    assert len(tries) in (5, 6)
    clock.advance(300_000)
    assert [log.url for log in find().logs] == [url]
    with pytest.raises(NotFoundError):
        finder(str(tmp_path / "b")).first(patient=True)


def test_the_cleaner_takes_what_is_found(tmp_path, finder, clock):
    """It may start with no log at all; a new log is cleaned from the next round on."""
    done = []

    def on_pass(log, _):
        done.append(log.url)
        cleaner.stop()

    find = finder(below=[str(tmp_path)])
    cleaner = Cleaner((), clock=clock, find=find, on_pass=on_pass)
    log = Log.create(str(tmp_path / "a"), 1, {"min.cleanable.dirty.ratio": 0}, clock=clock)
    log.append([{"key": "a", "value": "1"}, {"key": "a", "value": "2"}])
    log.roll()
    cleaner.run()
    assert done == [log.url]


def test_a_found_log_that_is_deleted(tmp_path, finder, clock, caplog):
    """It is dropped within a minute, reported once, and the round that meets it says so in a line,
    not with a traceback; earlier failures no longer make the daemon unhealthy. A given one stays,
    and a new log in place of the first is found.
    """
    given, found = (Log.create(str(tmp_path / d), 1, clock=ManualClock()) for d in ("a", "b/c"))
    find = finder(given.url, below=[str(tmp_path / "b")])
    changes = []

    def around():
        changes.append(find())
        if len(changes) == 1:
            shutil.rmtree(tmp_path / "a")
            shutil.rmtree(tmp_path / "b")
        if len(changes) == 5:
            cleaner.stop()
        clock.advance(DISCOVER_MS // 2)
        return changes[-1]

    cleaner = Cleaner((), clock=clock, find=around, backoff_ms=1)
    cleaner.run()
    assert {log.url for log in changes[0].logs} == {given.url, found.url}
    assert [list(change.gone) for change in changes[1:]] == [[], [found.url], [], []]
    assert caplog.text.count("was deleted") == 1
    assert "Traceback" not in caplog.text
    for url in (given.url, found.url):
        assert f"a round over {url} failed, and will be retried: no log at {url}" in caplog.text
    assert set(cleaner.monitor.logs()) == set(find.stores) == {given.url}
    again = Log.create(found.url, 1, clock=ManualClock())
    clock.advance(DISCOVER_MS)
    assert [log.url for log in find().logs] == [again.url]


@pytest.mark.parametrize("is_given", [True, False], ids=["given", "found"])
def test_a_log_that_is_recreated_is_cleaned(tmp_path, finder, clock, is_given):
    """A log that is deleted and recreated between two rounds is opened again, whether it was given
    or found, and cleaned (S47).
    """
    url, config = str(tmp_path / "a"), {"min.cleanable.dirty.ratio": 0}
    made, done = [], []

    def recreate():
        shutil.rmtree(url, ignore_errors=True)
        log = Log.create(url, 1, config, clock=clock)
        log.append([{"key": "a", "value": "1"}, {"key": "a", "value": "2"}])
        log.roll()
        made.append(log.handle.standing.log_id)

    def on_pass(log, _):
        done.append(log.handle.standing.log_id)
        if len(made) == 1:
            recreate()
        else:
            cleaner.stop()

    def around():
        rounds.append(1)
        if len(rounds) == 10:
            cleaner.stop()
        return find()

    recreate()
    rounds = []
    find = finder(url) if is_given else finder(below=[str(tmp_path)])
    cleaner = Cleaner((), clock=clock, find=around, on_pass=on_pass)
    cleaner.run()
    assert done == made
    assert sum(batch.num_rows for batch in Log.open(url).read()) == 1
