"""The round, and what becomes of it when something fails."""

import sys
import threading

import numpy as np
import pytest

from clog.cleaner import Cleaner
from clog.cleaner.cleaner import FoundLogs
from clog.cleaner.duties.retention import BACKOFF_MS, RETRY_MS_MAX, is_resting
from clog.cleaner.passes import offset_map
from clog.cleaner.passes.run_pass import run_pass
from clog.storage import (
    CommitConflictError,
    CommitStateUnknownError,
    InvalidInputError,
    Log,
    NotFoundError,
    OutOfMemoryError,
    StoreUnavailableError,
)
from clog.storage.commit.committer import CREATES_MAX, LOSSES_MAX
from clog.storage.env import SeededIds
from clog_testing.crash import discard, inside, memory_store
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log


def damage(log, partition=0):
    """Makes the first object of a partition unreadable."""
    path = log.handle.manifest().segments[partition][0].chunks[0].object.path
    data = log.handle.store.get(path)
    log.handle.store.put(path, b"\0" * len(data))
    return path, data


def two_partitions(make_log, put, **config):
    log = make_log(2, min_cleanable_dirty_ratio=0, **config)
    for p in range(2):
        put(log, "a=1 b=1 a=2", partition=p)
    log.roll()
    return log


def test_a_pass_that_fails(make_log, put, store, there):
    """S28: it leaves the log as it was; the partition is marked with the reason, others go on."""
    log = two_partitions(make_log, put)
    damage(log)
    passes = Cleaner(log).run_once()
    assert [result.partition for result in passes] == [1]
    assert f"partitions [0] of {log.url} are uncleanable" in repr(passes)
    assert f"partitions [0] of {log.url} are uncleanable" in passes._repr_html_()
    assert there(log, 1) == "1:b=1 2:a=2"
    manifest = log.handle.manifest()
    assert "is damaged" in manifest.uncleanable[0].reason
    assert manifest.first_dirty == (0, 3)
    assert "is damaged" in log.describe()["partition_details"][0]["uncleanable"]


def test_a_round_whose_passes_failed_says_so(make_log, put):
    """Not that nothing was due: what it returns is empty, and prints which partitions failed; also
    while they rest before the next try.
    """
    log = make_log()
    put(log, "a=1 b=1 a=2")
    log.roll()
    damage(log)
    cleaner = Cleaner(log)
    for force in (True, True, False):
        passes = cleaner.run_once(force=force)
        assert passes == []
        for shown in (repr(passes), passes._repr_html_()):
            assert (
                shown == f"[]: partitions [0] of {log.url} are uncleanable, Log.describe says why"
            )


def test_it_is_retried_with_back_off(make_log, put, store, clock, there):
    """S28: 15 s at first, doubled each time; a pass that succeeds clears the mark."""
    log = two_partitions(make_log, put)
    path, data = damage(log)
    cleaner = Cleaner(log)
    cleaner.run_once()
    waited = []
    for attempt in range(3):
        assert log.handle.manifest().uncleanable[0].attempts == attempt + 1
        before = clock.now_ms()
        while log.handle.manifest().uncleanable[0].attempts == attempt + 1:
            clock.advance(5000)
            cleaner.run_once()
        waited.append(clock.now_ms() - before)
    assert waited == [BACKOFF_MS, 2 * BACKOFF_MS, 4 * BACKOFF_MS]
    log.handle.store.put(path, data)
    clock.advance(8 * BACKOFF_MS)
    assert [r.partition for r in cleaner.run_once()] == [0]
    assert log.handle.manifest().uncleanable == {}
    assert there(log) == "1:b=1 2:a=2"


def test_the_longest_back_off(make_log, put, store, clock):
    """S28: however often it failed, an hour later it is tried again."""
    log = two_partitions(make_log, put)
    damage(log)
    cleaner = Cleaner(log)
    for _ in range(12):
        clock.advance(RETRY_MS_MAX)
        cleaner.run_once()
    manifest = log.handle.manifest()
    assert manifest.uncleanable[0].attempts == 12
    now = clock.now_ms()
    assert is_resting(manifest, 0, now_ms=now + RETRY_MS_MAX - 1)
    assert not is_resting(manifest, 0, now_ms=now + RETRY_MS_MAX)


def test_an_operator_need_not_wait(make_log, put, store):
    """S17, S28: a forced round tries a marked partition."""
    log = two_partitions(make_log, put)
    path, data = damage(log)
    Cleaner(log).run_once()
    log.handle.store.put(path, data)
    assert [r.partition for r in Cleaner(log).run_once(force=True)] == [0]


def test_retention_of_an_uncleanable_partition_goes_on(make_log, put, store, clock):
    """S28."""
    log = two_partitions(make_log, put, cleanup_policy="compact,delete", retention_ms=1000)
    damage(log)
    cleaner = Cleaner(log)
    cleaner.run_once()
    clock.advance(1001)
    cleaner.run_once()
    assert log.start_offsets() == {0: 3, 1: 3}


def test_an_object_that_is_missing(make_log, put, store):
    """S28: the daemon survives it, and it is told."""
    log = two_partitions(make_log, put)
    inside(store).delete(log.handle.manifest().segments[0][0].chunks[0].object.path)
    assert [r.partition for r in Cleaner(log).run_once()] == [1]
    reason = log.handle.manifest().uncleanable[0].reason
    assert reason.startswith("CorruptionError: data/")
    assert "is missing, and clog did not delete it" in reason


def test_too_little_memory_for_a_map(make_log, put, monkeypatch):
    """S28: NumPy's own error is told in our words, with the remedy, and marks no partition; a
    cleaner whose threads cannot have their share is not made.
    """
    log = two_partitions(make_log, put)
    cleaner = Cleaner(log)

    def fails(*_, **__):
        raise np._core._exceptions._ArrayMemoryError((1 << 24,), np.dtype(np.uint64))

    with monkeypatch.context() as m:
        m.setattr(offset_map.np, "zeros", fails)
        with pytest.raises(OutOfMemoryError, match=r"the cleaning of .*dedupe.buffer.size") as e:
            cleaner.run_once()
        with pytest.raises(OutOfMemoryError, match=r"a map of 134217728 bytes needs more memory"):
            Cleaner(log)
    assert "ArrayMemoryError" not in str(e.value)
    assert log.handle.manifest().uncleanable == {}
    assert len(cleaner.run_once()) == 2


def test_a_store_that_fails_says_nothing_about_a_partition(make_log, put, store, open_log, there):
    """S28: no mark; the other partitions have their turn before it is told."""
    log = two_partitions(make_log, put)
    path = log.handle.manifest().segments[0][0].chunks[0].object.path
    faulty = FaultyStore(store, Faults(Fault(FaultKind.FAIL_BEFORE, "get*", f"*/{path}", times=9)))
    with pytest.raises(StoreUnavailableError, match="failed as planned"):
        Cleaner(open_log(faulty)).run_once()
    log.handle.refresh()
    assert log.handle.manifest().uncleanable == {}
    assert there(log, 1) == "1:b=1 2:a=2"


@pytest.mark.parametrize(
    ("kind", "times", "error"),
    [
        (FaultKind.FAIL_BEFORE, CREATES_MAX, CommitStateUnknownError),
        pytest.param(
            *(FaultKind.MEANWHILE, LOSSES_MAX, CommitConflictError), marks=pytest.mark.nightly
        ),
    ],
)
def test_the_store_and_other_writers_mark_no_partition(
    make_log, put, store, open_log, there, kind, times, error
):
    """S28: five creates that failed, or 200 lost races, are no fault of the partition: no mark, and
    the next round cleans it."""
    log = two_partitions(make_log, put)
    rival = open_log()
    run = lambda: rival.append([{"key": "x", "value": "1"}], partition=1)  # noqa: E731
    fault = Fault(kind, "create", "*/commits/*", times=times, run=run)
    cleaner = Cleaner(open_log(FaultyStore(store, Faults(fault))))
    with pytest.raises(error):
        cleaner.run_once()
    log.handle.refresh()
    assert log.handle.manifest().uncleanable == {}
    assert 0 in [r.partition for r in cleaner.run_once()]
    assert there(log) == "1:b=1 2:a=2"


def test_the_daemon_survives_a_store_that_fails(make_log, put, store, open_log, clock, there):
    """S28, S29: a round that failed is repeated after the back-off; `stop` ends it."""
    log = two_partitions(make_log, put)
    faulty = FaultyStore(store)
    hit = open_log(faulty)
    faulty.plan = Faults(Fault(FaultKind.FAIL_BEFORE, "*", "*", times=40))
    done = []

    def on_pass(_, result):
        done.append(result.partition)
        if len(done) == 2:
            cleaner.stop()

    cleaner = Cleaner(hit, on_pass=on_pass)
    start = clock.monotonic_ms()
    cleaner.run()
    assert sorted(done) == [0, 1]
    assert clock.monotonic_ms() - start >= BACKOFF_MS
    assert there(log) == "1:b=1 2:a=2"


@pytest.mark.parametrize("again", ["run", "run_once"])
def test_a_round_that_an_interrupt_ended_is_begun_anew(make_log, put, there, again):
    """A pass that Ctrl-C ended does not go on for ever: the log's next round comes, and ends."""
    log = make_log(min_cleanable_dirty_ratio=0)
    done, rounds = [], []

    def on_pass(*_):
        done.append(1)
        if len(done) == 1:
            raise KeyboardInterrupt

    def find():
        rounds.append(1)
        if len(rounds) == 5:
            cleaner.stop()
        return FoundLogs()

    cleaner = Cleaner(log, on_pass=on_pass, find=find)
    put(log, "a=1 b=1 a=2")
    log.roll()
    with pytest.raises(KeyboardInterrupt):
        cleaner.run()
    put(log, "a=3")
    log.roll()
    getattr(cleaner, again)()
    assert len(done) == 2
    assert there(log) == "1:b=1 3:a=3"


def test_a_second_signal_may_strike_as_the_cleaner_stops(make_log):
    """Its handler runs within the first one's, so `stop` takes no lock and calls nothing."""
    cleaner, called = Cleaner(make_log()), []
    sys.setprofile(lambda frame, event, _: called.append((frame.f_code.co_name, event)))
    cleaner.stop()
    sys.setprofile(None)
    assert [name for name, event in called if event == "call"] == ["stop"]


def test_one_log_that_fails_does_not_stop_the_others(make_log, put, store, clock):
    """S28: nor does a log that is gone."""
    other = memory_store()
    gone = Log.create(other, 1, clock=clock, ids=SeededIds(5))
    log = two_partitions(make_log, put)
    done = []

    def on_pass(cleaned, _):
        done.append(cleaned)
        cleaner.stop()

    put(gone, "a=1 a=2")
    gone.roll()
    gone.alter({"min.cleanable.dirty.ratio": 0})
    for found in list(inside(other).list("data/")):
        inside(other).delete(found.path)
    discard(other)
    cleaner = Cleaner([gone, log], on_pass=on_pass)
    cleaner.run()
    assert done[0] is log


def test_it_sleeps_when_there_is_nothing_to_clean(make_log, clock):
    """S29: log.cleaner.backoff.ms between rounds without work."""
    log = make_log()
    rounds = []
    cleaner = Cleaner(log, backoff_ms=60_000)
    real = log.handle.refresh

    def refresh():
        rounds.append(clock.monotonic_ms())
        if len(rounds) == 3:
            cleaner.stop()
        return real()

    log.handle.refresh = refresh
    cleaner.run()
    assert rounds == [0, 60_000, 120_000]


def test_threads_share_the_work(make_log, put, store, there):
    """S30: several partitions at once, on one handle."""
    log = make_log(8, min_cleanable_dirty_ratio=0)
    for p in range(8):
        put(log, "a=1 b=1 a=2", partition=p)
    log.roll()
    names = set()
    cleaner = Cleaner(log, threads=4, on_pass=lambda *_: names.add(threading.get_ident()))
    results = cleaner.run_once()
    assert sorted(r.partition for r in results) == list(range(8))
    assert threading.get_ident() not in names
    check_log(store)
    assert all(there(log, p) == "1:b=1 2:a=2" for p in range(8))


@pytest.mark.parametrize(
    ("request_of", "groups", "left"),
    [
        # During the first commit: the second group is not written.
        (("create", 1), 1, "0:a=1 2:b=2 3:c=1 4:d=1 5:d=2 6:e=1 7:e=2 8:f=1"),
        # When the second group is written: it waits for its commit, and gets it.
        (("put", 2), 2, "0:a=1 2:b=2 3:c=1 5:d=2 6:e=1 7:e=2 8:f=1"),
    ],
)
def test_stopping_within_a_pass(make_log, put, store, open_log, there, request_of, groups, left):
    """A pass ends before its next request; what it committed stays, and what is written whole is
    committed. The next pass does the rest."""
    log = make_log()
    put(log, "a=1 b=1 b=2 c=1 d=1 d=2 e=1 e=2 f=1")
    log.roll()
    operation, number = request_of
    path = "*/commits/*" if operation == "create" else "*/data/*"
    stop = lambda: cleaner.stop()  # noqa: E731, PLW0108 - made below
    fault = Fault(FaultKind.MEANWHILE, operation, path, nth=number, run=stop)
    cleaner = Cleaner(open_log(FaultyStore(store, Faults(fault))))
    (result,) = cleaner.run_once(force=True)
    assert not result.complete
    assert (result.next_dirty_offset, result.stats.groups_committed) == (0, groups)
    check_log(store)
    assert there(log) == left
    (result,) = Cleaner(open_log()).run_once(force=True)
    assert result.complete
    assert there(log) == "0:a=1 2:b=2 3:c=1 5:d=2 7:e=2 8:f=1"


def test_what_was_chosen_is_looked_at_again(make_log, put, open_log, store, clock):
    """S30: a partition that somebody else cleaned since it was chosen is left alone."""
    log = two_partitions(make_log, put)
    cleaner = Cleaner(log, on_pass=lambda *_: Cleaner(open_log()).run_once())
    assert [r.partition for r in cleaner.run_once()] == [0]
    assert log.handle.manifest().first_dirty == (3, 3)


def test_an_alter_counts_from_the_next_pass_on(make_log, put, clean, there, clock):
    """S42: configs are read at each use."""
    log = make_log(delete_retention_ms=1000)
    put(log, "a=1 a")
    log.roll()
    log.alter({"delete.retention.ms": 5})
    clean(log)
    clock.advance(5)
    clean(log)
    assert there(log) == ""
    put(log, "b=1 b=2")
    log.roll()
    log.alter({"cleanup.policy": "delete"})
    assert clean(log) == []


def test_the_checkpoint_outlives_another_policy(make_log, put, clean, there):
    """S42: compact -> delete -> compact goes on where it was."""
    log = make_log()
    put(log, "a=1 b=1 c=1")
    log.roll()
    clean(log)
    log.alter({"cleanup.policy": "delete", "retention.ms": -1})
    put(log, "a=2 d=1 e=1")
    log.roll()
    Cleaner(log).run_once()
    log.alter({"cleanup.policy": "compact"})
    result = clean(log)
    assert (result.first_dirty_offset, result.next_dirty_offset) == (3, 6)
    assert there(log) == "1:b=1 2:c=1 3:a=2 4:d=1 5:e=1"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"threads": 0}, "threads=0"),
        ({"logs": []}, "logs"),
        ({"logs": "orders"}, r"logs has a str in place of a log; give Log\.open"),
        ({"logs": ["orders"]}, "logs has a str in place of a log"),
    ],
)
def test_arguments_that_make_no_sense(make_log, given, message):
    """What is wrong, and what is allowed."""
    with pytest.raises(InvalidInputError, match=message):
        Cleaner(**({"logs": make_log()} | given))


def test_a_round_with_nothing_to_do_commits_nothing(make_log, put, store):
    """An idle log costs no versions."""
    log = make_log()
    put(log, "a=1 b=1")
    version = log.version
    for _ in range(3):
        Cleaner(log).run_once(force=True)
    assert log.version == version


def test_a_log_that_is_deleted_during_its_pass(make_log, put):
    """With two threads others go on meanwhile; what the pass says at its end is of no log."""
    log = make_log(1, min_cleanable_dirty_ratio=0)
    put(log, "a=1 a=2")
    log.roll()
    runs, dropped = threading.Event(), threading.Event()
    looks = iter(([], [log.url], []))

    def on_pass(*_):
        runs.set()
        assert dropped.wait(60)
        cleaner.stop()

    def look():
        gone = next(looks)
        if gone:
            assert runs.wait(60)
        elif runs.is_set():
            assert log.url not in cleaner.monitor.logs()
            dropped.set()
        return FoundLogs(gone=gone)

    cleaner = Cleaner([log], threads=2, backoff_ms=1, on_pass=on_pass, find=look)
    cleaner.run()
    assert cleaner.monitor.logs() == {}


@pytest.mark.parametrize("is_recreated", [False, True])
def test_a_log_that_is_deleted_under_its_pass(
    make_log, put, store, monkeypatch, caplog, is_recreated
):
    """S47: the round says so; no partition is called uncleanable because its objects are gone."""
    log = make_log(1, min_cleanable_dirty_ratio=0)
    put(log, "a=1 a=2")
    log.roll()

    def deleted(*given):
        for found in list(store.list("")):
            store.delete(found.path)
        if is_recreated:
            Log.create(store, 1, ids=SeededIds(5))
        return run_pass(*given)

    monkeypatch.setattr("clog.cleaner.log_round.run_pass", deleted)
    with pytest.raises(
        NotFoundError, match="was deleted and recreated" if is_recreated else "no log"
    ):
        Cleaner(log).run_once()
    assert "uncleanable" not in caplog.text


def test_no_log_waits_for_the_pass_of_another(make_log, put, clock):
    """With two threads the rounds of a log go on while a pass over another one takes its time."""
    long = make_log(1, min_cleanable_dirty_ratio=0)
    other = Log.create(memory_store(), 1, clock=clock, ids=SeededIds(5))
    put(long, "a=1 a=2")
    long.roll()
    rounds = threading.Event()

    def on_pass(*_):
        assert rounds.wait(60)
        cleaner.stop()

    def look():
        clock.advance(1)
        totals = {url: state.totals["rounds"] for url, state in cleaner.monitor.logs().items()}
        if totals.get(other.url, 0) >= 2:
            assert totals[long.url] == 0
            rounds.set()
        return FoundLogs()

    cleaner = Cleaner([long, other], threads=2, backoff_ms=1, on_pass=on_pass, find=look)
    cleaner.run()
    assert cleaner.monitor.logs()[long.url].totals["rounds"] == 1
    discard(other.handle.store)


def test_what_passes_did_prints_as_a_table(make_log, put):
    """For people at a prompt or in a notebook; it stays a list of results."""
    log = two_partitions(make_log, put)
    passes = Cleaner(log).run_once(force=True)
    head, *rows = repr(passes).splitlines()
    assert " ".join(head.split()) == "partition clean to removed kept bytes before after seconds"
    assert [row.split()[:4] for row in rows] == [["0", "3", "1", "2"], ["1", "3", "1", "2"]]
    assert [result.stats.records_removed for result in passes] == [1, 1]
    assert "<td>3</td>" in passes._repr_html_()
    nothing = Cleaner(log).run_once()
    assert nothing == []
    assert "nothing was due" in repr(nothing)
