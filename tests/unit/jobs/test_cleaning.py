"""A round with passes as Spark tasks, without Spark: what the driver makes of what tasks did."""

import pickle

import pytest

from clog.cleaner.rewrite.relayout import Run, relayout
from clog.cleaner.sweep.objects import sweep_released
from clog.jobs import clean_with_spark, cleaning
from clog.storage import CorruptionError, Log, ManualClock, StoreUnavailableError
from clog.storage.testing.model import rows_in


@pytest.fixture
def clean_while(monkeypatch):
    """A round in whose tasks' time somebody else does something, perhaps before they began."""

    def clean(log, act=lambda: None, before=lambda: None):
        def run(_, task):
            task = pickle.loads(pickle.dumps(task))
            before()
            done = [task.execute(i) for i in range(len(task.plans))]
            act()
            return done

        monkeypatch.setattr(cleaning, "_run", run)
        return clean_with_spark(None, log, force=True)

    return clean


def coalesce_all(url):
    handle = Log.open(url).handle
    manifest = handle.manifest()
    runs = [Run(0, s.chunks, 0) for s in manifest.segments[0][:-1]]
    assert len(relayout(handle, handle.store, manifest, runs, operation="coalesce")) == len(runs)


def test_what_was_coalesced_meanwhile(url, clean_while):
    """Design: the driver needs no map to go on where the rows lie in other objects, with all groups
    of the pass and its horizons."""
    log = Log.create(url, 1, {"segment.bytes": 60}, clock=ManualClock(1_000_000_000))
    for text in "ab", "ac", "bd", "fe", "f", "g":
        log.append([{"key": key, "value": "1"} for key in text])
    log.append([{"key": "h", "value": None}])
    log.roll()
    (result,) = clean_while(log, lambda: coalesce_all(url))
    assert result.complete
    assert result.next_dirty_offset == 11
    assert (result.stats.records_superseded, result.stats.tombstones_stamped) == (3, 1)
    assert result.stats.groups_committed == 2
    left = [f"{offset}:{row.key.decode()}" for _, offset, row in rows_in(log.read())]
    assert left == ["2:a", "3:c", "4:b", "5:d", "7:e", "8:f", "9:g", "10:h"]


def test_what_was_coalesced_and_swept_meanwhile(url, clean_while):
    """S28: that says nothing about the partition, which is planned anew."""
    log = Log.create(url, 1, {"file.delete.delay.ms": 0}, clock=ManualClock(1_000_000_000))
    for key in "aab":
        log.append([{"key": key, "value": "1"}])
    log.roll()

    def replace_and_sweep():
        coalesce_all(url)
        handle = Log.open(url).handle
        sweep_released(handle, now_ms=handle.manifest().time_ms + 1)

    (result,) = clean_while(log, before=replace_and_sweep)
    assert not result.complete
    assert log.handle.manifest().uncleanable == {}
    (result,) = clean_while(log)
    assert result.complete


def test_an_edit_that_does_not_fit(url, clean_while, monkeypatch):
    """S28: the partition is marked with the reason; the driver commits those of the others."""
    log = Log.create(url, 2, clock=ManualClock(1_000_000_000))
    for p in range(2):
        log.append([{"key": "a", "value": "1"}] * 2, partition=p)
    log.roll()
    real = cleaning.commit_published

    def commit(handle, plan, *given):
        if plan.partition == 0:
            raise CorruptionError("as planned")
        real(handle, plan, *given)

    monkeypatch.setattr(cleaning, "commit_published", commit)
    (result,) = clean_while(log)
    assert (result.partition, result.complete) == (1, True)
    assert log.handle.manifest().uncleanable[0].reason == "CorruptionError: as planned"


def test_a_store_that_fails_in_one_task(url, clean_while, monkeypatch):
    """S28: it says nothing about the partition, which is cleaned by the next round; the others'
    passes are committed, the round comes to its end, and the error is the store's, not Spark's.
    """
    log = Log.create(url, 2, clock=ManualClock(1_000_000_000))
    for p in range(2):
        log.append([{"key": "a", "value": "1"}] * 2, partition=p)
    log.roll()
    real, ended = cleaning.execute_pass, []

    def execute(store, plan, *given):
        if plan.partition == 0:
            raise StoreUnavailableError("as planned")
        return real(store, plan, *given)

    end = cleaning.LogRound.end
    monkeypatch.setattr(cleaning.LogRound, "end", lambda it: (ended.append(it), end(it))[1])
    monkeypatch.setattr(cleaning, "execute_pass", execute)
    with pytest.raises(StoreUnavailableError, match="as planned"):
        clean_while(log)
    assert ended
    log.handle.refresh()
    assert log.handle.manifest().uncleanable == {}
    assert [row[:2] for row in rows_in(log.read())] == [(0, 0), (0, 1), (1, 1)]
    monkeypatch.setattr(cleaning, "execute_pass", real)
    (result,) = clean_while(log)
    assert (result.partition, result.complete) == (0, True)
