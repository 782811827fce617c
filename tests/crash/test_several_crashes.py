"""Crash enumeration of transactions with undecided records (COMMIT.md §9, X1 to X5, Z1, Z2): every
call of every log's store, before and after.

Three logs lie in three folders of one store, so that their calls are one sequence. The holder dies
at each of them, or lives on with a reply that was lost. Then somebody else comes by: who takes the
id up, or who finishes what was left, from the home or from a participant, once the timeout has
passed. In each case all logs show all of the transaction, or none of it, and nothing is undecided.
"""

from collections import Counter

import pytest

from clog.storage import ClogError, CommitStateUnknownError, Log, ManualClock
from clog.storage.env import SeededIds
from clog.storage.transactions.several import finish_all
from clog_testing.crash import Folder, crash_runs, discard, unlike
from clog_testing.invariants import check_log

NAMES = ("home", "left", "right")
START_MS, TIMEOUT_MS = 5_000, 60_000
NONE, ALL = [[], [], []], [["a"], ["b"], ["c"]]


def opened(store, seed, *, at_ms=START_MS, names=NAMES):
    """The logs, as one process opens them; each finds the others by their URLs."""
    clock = ManualClock(at_ms)
    logs = []
    for i, name in enumerate(names):
        log = Log.open(Folder(store, name), clock=clock, ids=SeededIds(seed * 10 + i))
        log.handle.reach = lambda url: Folder(store, url.rpartition("/")[2])
        logs.append(log)
    return logs


def begin(store):
    for i, name in enumerate(NAMES):
        log = Log.create(Folder(store, name), 1, clock=ManualClock(START_MS), ids=SeededIds(i))
        if name == "home":
            log.transaction("job").abort()


def run(store):
    logs = opened(store, 2)
    t = transaction_of_all(logs)
    t.positions(logs[0], {0: 1})
    return t.commit()


def transaction_of_all(logs):
    """One that appends to each log, not yet committed."""
    t = logs[0].transaction("job", timeout_ms=TIMEOUT_MS)
    for log, value in zip(logs, "abc", strict=True):
        t.append([{"key": "k", "value": value}], log=log)
    return t


def seen(logs):
    return [[v.decode() for b in log.read() for v in b.column("value").to_pylist()] for log in logs]


def unended(logs):
    return [e for log in logs for e in log.handle.refresh().head.unended if e.first]


def check_end(crash, logs):
    """All of it or nothing, in all logs, as its holder was told, and as the positions say."""
    found = seen(logs)
    assert found in (NONE, ALL), f"{crash}: {found}"
    assert not unended(logs), str(crash)
    happened = found == ALL
    assert bool(logs[0].positions("job")) == happened, str(crash)
    if crash.result is not None:
        assert happened, str(crash)
    if crash.error is not None and not isinstance(crash.error, CommitStateUnknownError):
        assert not happened, f"{crash}: {crash.error}"
    for name in NAMES:
        check_log(Folder(crash.store, name), every_version=False)
    return happened


def run_in_vain(store):
    """All but the last participant prepare; that one no longer accepts such a record; the holder
    aborts what they hold.
    """
    logs = opened(store, 2)
    t = transaction_of_all(logs)
    logs[2].alter({"max.message.bytes": 5})
    with pytest.raises(ClogError):
        t.commit()
    t.abort()


def test_an_abort_leaves_nothing_after_every_crash():
    """S50: X3 and X4 of an abort; whoever comes later ends what its holder did not."""
    left = Counter()
    for crash in unlike(crash_runs(begin, run_in_vain)):
        left[len(unended(opened(crash.store, 6)))] += 1
        late_ms = START_MS + TIMEOUT_MS + 1
        for log in opened(crash.store, 3, at_ms=late_ms):
            finish_all(log.handle)
        assert not check_end(crash, opened(crash.store, 4, at_ms=late_ms)), str(crash)
        discard(crash.store)
    assert left.keys() == {0, 1}, left


def begin_with_an_ended_one(store):
    """A transaction of which all have been informed is in the home's list: it is removed with the
    next X1.
    """
    begin(store)
    logs = opened(store, 6)
    t = logs[0].transaction("job", timeout_ms=TIMEOUT_MS)
    t.append([{"key": "x", "value": "before"}], log=logs[1])
    t.commit()
    logs[1].delete_records({0: -1})
    assert logs[0].handle.refresh().head.unended


@pytest.mark.nightly
def test_the_next_transaction_after_every_crash():
    """X5, C16: the outcome of the previous one is removed, whatever happens to this one; neither is
    confused with the other.
    """
    outcomes = Counter()

    for crash in unlike(crash_runs(begin_with_an_ended_one, run)):
        late_ms = START_MS + TIMEOUT_MS + 1
        for log in opened(crash.store, 3, at_ms=late_ms):
            finish_all(log.handle)
        logs = opened(crash.store, 4, at_ms=late_ms)
        outcomes[check_end(crash, logs)] += 1
        discard(crash.store)
    assert min(outcomes[True], outcomes[False]) > 10


@pytest.mark.parametrize(
    "order",
    [
        pytest.param((0, 1, 2), id="home first"),
        pytest.param((2, 1, 0), id="home last", marks=pytest.mark.nightly),
    ],
)
def test_anybody_finishes_after_every_crash(order):
    """S50, C14 to C16: past the timeout whoever comes later ends it; what was decided stays
    decided.
    """
    outcomes = Counter()
    for crash in unlike(crash_runs(begin, run)):
        late_ms = START_MS + TIMEOUT_MS + 1
        logs = opened(crash.store, 3, at_ms=late_ms)
        for i in order:
            finish_all(logs[i].handle)
        outcomes[check_end(crash, opened(crash.store, 4, at_ms=late_ms))] += 1
        discard(crash.store)
    assert outcomes[True] > 10
    assert outcomes[False] > 10


@pytest.mark.nightly
def test_a_takeover_after_every_crash():
    """S48, S50: at once, without waiting; then the job is repeated if it was not done."""
    outcomes = Counter()
    for crash in unlike(crash_runs(begin, run)):
        logs = opened(crash.store, 3)
        t = logs[0].transaction("job")
        outcomes[check_end(crash, opened(crash.store, 4))] += 1
        if not logs[0].positions("job"):
            for log, value in zip(logs, "abc", strict=True):
                t.append([{"key": "k", "value": value}], log=log)
            t.positions(logs[0], {0: 1})
            t.commit()
        assert seen(opened(crash.store, 5)) == ALL, str(crash)
        discard(crash.store)
    assert outcomes[True] > 10
    assert outcomes[False] > 10


@pytest.mark.nightly
def test_every_crash_of_who_finishes():
    """C15: a finisher dies as well, at each of its calls, and the next one continues."""

    def left(store):
        begin(store)
        logs = opened(store, 2)
        t = logs[0].transaction("job", timeout_ms=TIMEOUT_MS)
        for log, value in zip(logs, "abc", strict=True):
            t.append([{"key": "k", "value": value}], log=log)
        t.positions(logs[0], {0: 1})
        t._work.several.finish = lambda _: {}
        t.commit()

    def finish(store):
        for log in opened(store, 3):
            finish_all(log.handle)

    for crash in unlike(crash_runs(left, finish)):
        for log in opened(crash.store, 4):
            finish_all(log.handle)
        logs = opened(crash.store, 5)
        assert (seen(logs), unended(logs)) == (ALL, []), str(crash)
        for name in NAMES:
            check_log(Folder(crash.store, name), every_version=False)
        discard(crash.store)


def run_visible(store):
    (log,) = opened(store, 2, names=["home"])
    t = log.transaction("job", timeout_ms=TIMEOUT_MS, visible=True)
    t.append([{"key": "k", "value": "a"}])
    log.append([{"key": "k", "value": "plain"}])
    t.append([{"key": "k", "value": "b"}])
    return t.commit()


def abort_visible(store):
    (log,) = opened(store, 2, names=["home"])
    t = log.transaction("job", timeout_ms=TIMEOUT_MS, visible=True)
    t.append([{"key": "k", "value": "a"}])
    t.abort()


def test_every_crash_of_a_visible_abort():
    """S51, C17, Z2: nothing of it, ever."""
    left = Counter()
    for crash in unlike(crash_runs(begin, abort_visible)):
        left[len(unended(opened(crash.store, 6, names=["home"])))] += 1
        (log,) = opened(crash.store, 3, at_ms=START_MS + TIMEOUT_MS + 1, names=["home"])
        finish_all(log.handle)
        assert (seen([log]), unended([log])) == ([[]], []), str(crash)
        check_log(Folder(crash.store, "home"), every_version=False)
        discard(crash.store)
    assert left.keys() == {0, 1}, left


@pytest.mark.parametrize(
    "takes_over",
    [
        pytest.param(True, id="takeover"),
        pytest.param(False, id="timeout", marks=pytest.mark.nightly),
    ],
)
def test_every_crash_of_a_visible_one(takes_over):
    """S51, C17: all of it or nothing, together with what others append."""
    outcomes = Counter()
    for crash in unlike(crash_runs(begin, run_visible)):
        late_ms = START_MS if takes_over else START_MS + TIMEOUT_MS + 1
        (log,) = opened(crash.store, 3, at_ms=late_ms, names=["home"])
        if takes_over:
            log.transaction("job")
        else:
            finish_all(log.handle)
        assert not unended([log]), str(crash)
        (values,) = seen([log])
        mine = [value for value in values if value != "plain"]
        assert mine in ([], ["a", "b"]), f"{crash}: {mine}"
        if crash.result is not None:
            assert mine, str(crash)
        outcomes[bool(mine)] += 1
        check_log(Folder(crash.store, "home"), every_version=False)
        discard(crash.store)
    assert outcomes[True]
    assert outcomes[False]
