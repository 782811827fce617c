"""Crash enumeration of named cuts (COMMIT.md §12, C27 to C30): every call of every log's store.

Three logs lie in three folders of one store, so that their calls are one sequence. Who names or
drops a cut dies at each of them, or lives on with a reply that was lost. In each case there is the
whole cut, every log of which keeps its version, or none; and what is kept for none goes, once the
cleaners of the logs have come by.
"""

from collections import Counter

import pytest

from clog.cleaner.duties import Work
from clog.cleaner.duties.retention import LEFT_AGE_MS, let_go
from clog.storage import AlreadyExistsError, CommitStateUnknownError, Log, ManualClock
from clog.storage.cuts import cuts_of, drop_cut, name_cut, views_of
from clog.storage.env import SeededIds
from clog_testing.crash import Folder, crash_runs, discard, unlike
from clog_testing.invariants import check_log
from clog_testing.published import delta_rows

NAMES = ("home", "left", "right")
START_MS = 5_000


def opened(store, seed, *, at_ms=START_MS):
    """The logs, as one process opens them; each finds the others by their URLs."""
    clock = ManualClock(at_ms)

    def reach(url):
        return Folder(store, url.rpartition("/")[2])

    logs = []
    for i, name in enumerate(NAMES):
        log = Log.open(Folder(store, name), clock=clock, ids=SeededIds(seed * 10 + i))
        log.handle.reach = reach
        logs.append(log)
    return logs


def begin(store):
    for i, name in enumerate(NAMES):
        Log.create(Folder(store, name), 1, clock=ManualClock(START_MS), ids=SeededIds(i))
    put(opened(store, 1), "a")


def put(logs, value):
    with logs[0].transaction("job") as t:
        for log in logs:
            t.append([{"key": "k", "value": value}], log=log)


def named(store):
    return name_cut(opened(store, 2)[0].handle, "c", None)


def named_and_published(store):
    return name_cut(opened(store, 2)[0].handle, "c", None, publish=["delta"])


def begin_with_a_cut(store):
    begin(store)
    named(store)


def dropped(store):
    drop_cut(opened(store, 3)[0].handle, "c")


def kept(logs):
    return [set(log.handle.refresh().head.kept) for log in logs]


def values(logs, cut):
    return [log.table(at=cut).get("k") for log in logs]


def check_whole(crash, logs):
    """An existing cut is kept in all logs, and shows a consistent state."""
    found = cuts_of(logs[0].handle)
    for cut in found:
        (entry,) = logs[0].handle.tip.head.cuts.values()
        assert all(entry.cut_id in mine for mine in kept(logs)), str(crash)
        assert values(logs, cut) == [b"a"] * 3, str(crash)
    return bool(found)


def house_is_kept(logs):
    """Each cleaner releases what nobody needs, the home's first, or last."""
    for log in logs:
        let_go(Work(log.handle, log.handle.clock.now_ms(), log.handle.store))


@pytest.mark.parametrize(
    "order",
    [
        pytest.param((0, 1, 2), id="home first"),
        pytest.param((2, 1, 0), id="home last", marks=pytest.mark.nightly),
    ],
)
def test_naming_is_all_or_nothing(order):
    """S68, S74: N1 to N5; whoever comes later sees a cut that is kept everywhere, or none."""
    outcomes = Counter()
    for crash in unlike(crash_runs(begin, named)):
        logs = opened(crash.store, 4)
        is_there = check_whole(crash, logs)
        left = sum(map(len, kept(logs)))
        if crash.result is not None:
            assert is_there, str(crash)
        if crash.error is not None and not isinstance(crash.error, CommitStateUnknownError):
            assert not is_there, f"{crash}: {crash.error}"
            assert not left, f"{crash}: {crash.error}"
        outcomes[is_there, left] += 1
        for _ in range(2):  # The others ask the home, which lets go of its own first.
            late = opened(crash.store, 5, at_ms=START_MS + LEFT_AGE_MS + 1)
            house_is_kept([late[i] for i in order])
        logs = opened(crash.store, 6)
        assert check_whole(crash, logs) == is_there, str(crash)
        assert sum(map(len, kept(logs))) == 3 * is_there, str(crash)
        if not is_there:
            named(crash.store)
        else:
            with pytest.raises(AlreadyExistsError):
                named(crash.store)
        for name in NAMES:
            check_log(Folder(crash.store, name), every_version=False)
        discard(crash.store)
    assert {n for is_there, n in outcomes if not is_there} == {0, 1, 2, 3}, outcomes
    assert {n for is_there, n in outcomes if is_there} == {3}, outcomes


@pytest.mark.nightly
def test_a_cut_with_a_name_is_published_whole():
    """H-S1: once it has its name, each log's view shows it, wherever its creator died."""
    outcomes = Counter()
    for crash in unlike(crash_runs(begin, named_and_published)):
        logs = opened(crash.store, 4)
        found = cuts_of(logs[0].handle)
        for cut in found:
            for url, views in views_of(logs[0].handle, cut).items():
                rows = delta_rows(Folder(crash.store, url.rpartition("/")[2]), views["delta"])
                assert rows == ([(b"k", b"a")], cut.logs[url]), str(crash)
            assert len(cut.logs) == len(NAMES)
        outcomes[bool(found)] += 1
        house_is_kept(opened(crash.store, 5, at_ms=START_MS + LEFT_AGE_MS + 1))
        house_is_kept(opened(crash.store, 6, at_ms=START_MS + LEFT_AGE_MS + 1))
        if not found:
            assert named_and_published(crash.store).name == "c", str(crash)
        for name in NAMES:
            check_log(Folder(crash.store, name), every_version=False)
        discard(crash.store)
    assert set(outcomes) == {False, True}


def test_dropping_ends_in_nothing_kept():
    """N6: the cut is whole until the home's commit, and gone after it; leftovers are removed."""
    outcomes = Counter()
    for crash in unlike(crash_runs(begin_with_a_cut, dropped)):
        logs = opened(crash.store, 4)
        is_there = check_whole(crash, logs)
        outcomes[is_there, sum(map(len, kept(logs)))] += 1
        house_is_kept(logs)
        assert sum(map(len, kept(opened(crash.store, 5)))) == 3 * is_there, str(crash)
        if is_there:
            dropped(crash.store)
        assert not any(kept(opened(crash.store, 6))), str(crash)
        discard(crash.store)
    assert {(True, 3), (False, 2), (False, 1), (False, 0)} == set(outcomes), outcomes
