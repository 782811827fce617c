"""Cleaners of several stores beside each other."""

import threading

import pytest

from clog.cleaner import Cleaner
from clog.cleaner.daemon import by_store
from clog.cleaner.daemon.by_store import ByStore
from clog.cleaner.daemon.metrics import ailments, neglects, notices
from clog.storage import Log
from clog.storage.store.contract import WrappingStore
from clog_testing.crash import discard, memory_store

CONFIG = {"min.cleanable.dirty.ratio": 0}


class Silent(WrappingStore):
    """Does not answer requests for records until it is told to."""

    def __init__(self, inner):
        super().__init__(inner)
        self.answers = threading.Event()
        self.asked = threading.Event()

    def get(self, path, start=None, end=None):
        if "data/" in path:
            self.asked.set()
            self.answers.wait(60)
        return super().get(path, start, end)

    def get_ranges(self, path, ranges):
        return [self.get(path, start, end) for start, end in ranges]


class After(WrappingStore):
    """Answers once another store has been asked."""

    def __init__(self, inner, other):
        super().__init__(inner)
        self._other = other

    def get(self, path, start=None, end=None):
        self._other.asked.wait(60)
        return super().get(path, start, end)


@pytest.fixture
def dirty():
    """Makes a log, in a store of its own, of which a pass removes a record."""
    stores = []

    def dirty(store=None, partitions=1):
        stores.append(store or memory_store())
        made = Log.create(stores[-1], partitions, CONFIG)
        for p in range(partitions):
            made.append([{"key": "a", "value": v} for v in ("1", "2")], partition=p)
        made.roll()
        return made

    yield dirty
    for store in stores:
        discard(getattr(store, "inner", store))


def beside(logs, **given):
    """Their cleaners, by name."""
    cleaners = {}
    for name, log in logs.items():
        other = next(iter(cleaners.values()), None)
        cleaners[name] = Cleaner(log, backoff_ms=1, beside=other, **given)
    return ByStore(cleaners)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("method", ["run", "run_once"])
def test_a_silent_store_stops_no_other(dirty, monkeypatch, threads, method):
    """S29: its pass has the only thread, or all of them, and gives them to the other stores as long
    as it is silent. It is named by both health checks, and makes only the second fail; when it
    answers, its pass ends.
    """
    for name in ("SILENT_MS", "LENT_MS"):
        monkeypatch.setattr(by_store, name, 1)
    store = Silent(memory_store())
    store.answers.set()
    silent = dirty(store, threads)
    store.answers.clear()
    store.asked.set()
    well = dirty(After(memory_store(), store))
    store.asked.clear()
    done, seen = [], {}

    def on_pass(log, _):
        done.append(log.url)
        if log is well:
            seen.update(ill=ailments(daemon), told=notices(daemon), unready=neglects(daemon))
            store.answers.set()
        elif done.count(silent.url) == threads and method == "run":
            daemon.stop()

    daemon = beside({"silent": silent, "well": well}, threads=threads, on_pass=on_pass)
    getattr(daemon, method)()
    assert done[0] == well.url
    assert sorted(done[1:]) == [silent.url] * threads
    assert seen["ill"] == []
    for told in (seen["told"], seen["unready"]):
        assert "silent has not answered" in {text.split(" for ")[0] for text in told}
    assert daemon.silences() == {}


def test_passes_of_several_stores_take_turns(dirty):
    """However many stores there are, one thread does one pass at a time, of each store in turn."""
    logs = {name: dirty(partitions=3) for name in ("a", "b", "c")}
    done, under_way = [], []

    def on_pass(log, _):
        under_way.append(len(daemon.monitor.activities()))
        done.append(log.url)

    daemon = beside(logs, on_pass=on_pass)
    assert len(daemon.run_once()) == 9
    assert set(under_way) == {1}
    assert {url: done.count(url) for url in done} == {log.url: 3 for log in logs.values()}


def test_what_fails_ends_all(dirty):
    """A log that the command line names and that is not there ends the daemon, whichever store it
    is of.
    """
    daemon = beside({"a": dirty(), "b": dirty()})

    def begin(store):
        if store == "b":
            raise LookupError("no such log")

    with pytest.raises(LookupError):
        daemon.run(begin)
