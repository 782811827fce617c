"""Requests that go ahead: in order, bounded, and none where requests are short."""

import gc
import multiprocessing
import os
import threading
import weakref
from contextlib import suppress
from functools import partial

import pytest

from clog.cleaner.duties import Work
from clog.cleaner.duties.layout import coalesce
from clog.cleaner.threads import MeteredStore, StoppedError, Throttle
from clog.storage import Log, ManualClock
from clog.storage.diagnostics.verify import verify_log
from clog.storage.env import SeededIds
from clog.storage.read import lookup
from clog.storage.read.lookup import pieces_of_keys
from clog.storage.read.scan import plan_range, read_pieces
from clog.storage.store import contract
from clog.storage.store.contract import BYTES_MAX, CALLS_MAX, ahead, begin_in_thread
from clog_testing.crash import discard, inside, memory_store
from clog_testing.delaying import DelayingStore


@pytest.fixture
def near():
    made = memory_store()
    yield made
    discard(made)


@pytest.fixture
def far(near):
    return DelayingStore(near)


def log_of(near, appends, partitions=1):
    """A log of this many small objects."""
    log = Log.create(near, partitions, clock=ManualClock(1_000_000), ids=SeededIds(1))
    for i in range(appends):
        log.append([{"key": f"k{i}", "value": "v"}], partition=i % partitions)
    return log


def calls(store, count, size_bytes=1):
    store.inner.put("x", b"x")
    return [(partial(lambda i: (i, store.get("x"))[0], i), size_bytes) for i in range(count)]


def test_results_come_in_order_and_no_more_than_the_bound_are_under_way(far):
    assert list(ahead(far, calls(far, 100))) == list(range(100))
    assert far.most_at_once == CALLS_MAX
    assert far.now_ms <= 1000


def test_what_is_fetched_and_not_taken_is_bounded(far):
    """Two of them fit the bound; a larger one is fetched alone."""
    list(ahead(far, calls(far, 10, BYTES_MAX // 2)))
    assert far.most_at_once == 2
    far.begun.clear()
    assert list(ahead(far, calls(far, 3, 2 * BYTES_MAX))) == [0, 1, 2]
    assert far.most_at_once == 1


def test_who_stops_early_has_asked_for_little(far):
    """The bound grows with what is taken."""
    results = ahead(far, calls(far, 100))
    assert [next(results), next(results)] == [0, 1]
    results.close()
    assert far.requests <= 9


def test_errors_come_in_their_turn(far):
    def fail():
        raise FileNotFoundError("x")

    results = ahead(far, [*calls(far, 3), (fail, 1), *calls(far, 3)])
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(FileNotFoundError):
        next(results)


def test_nothing_is_begun_where_requests_are_short(near):
    """No thread, and no request before its turn."""
    made = []
    results = ahead(near, [(partial(made.append, i), 1) for i in range(5)])
    next(results)
    assert made == [0]


def test_a_thread_brings_what_the_call_returns_or_raises():
    assert begin_in_thread(lambda: 7)() == 7
    with pytest.raises(StoppedError):
        begin_in_thread(partial(_raise, StoppedError()))()


def _raise(error):
    raise error


@pytest.fixture
def reused(monkeypatch):
    """Threads that wait long for calls; one of them has already made two."""
    monkeypatch.setattr(contract, "_IDLE_S", 5)
    monkeypatch.setattr(contract, "_THREADS", contract._Threads())
    seen = [begin_in_thread(threading.current_thread)() for _ in range(50)]
    assert len(set(seen)) < len(seen)
    return seen


def test_threads_are_made_for_calls_that_wait_for_each_other(reused):
    both = threading.Barrier(60)
    assert {wait() for wait in [begin_in_thread(both.wait) for _ in range(60)]} == {*range(60)}


def test_a_forked_child_has_threads_of_its_own(reused):
    """It does not wait for those of its parent."""

    def child():
        assert begin_in_thread(threading.current_thread)() not in reused

    forked = multiprocessing.get_context("fork").Process(target=child)
    forked.start()
    forked.join(60)
    assert forked.exitcode == 0


def test_a_call_may_fork_and_go_on_in_the_child(reused):
    def answered():
        for _ in range(50):
            begin_in_thread(int)()
        both = threading.Barrier(60)
        os._exit(len({wait() for wait in [begin_in_thread(both.wait) for _ in range(60)]}))

    def forking():
        pid = os.fork()
        if not pid:
            threading.Thread(target=answered).start()
        return pid

    _, status = os.waitpid(begin_in_thread(forking)(), 0)
    assert os.waitstatus_to_exitcode(status) == 60


def test_a_call_that_failed_is_held_no_longer_than_its_error():
    """What it was to write may be large, and no collector of garbage counts bytes."""
    held = DelayingStore(None)
    gone = weakref.ref(held)

    def fail(_):
        raise StoppedError

    wait = begin_in_thread(partial(fail, held))
    gc.disable()
    try:
        with suppress(StoppedError):
            wait()
        del wait, held
        assert gone() is None
    finally:
        gc.enable()


def test_a_thread_that_made_another_call_holds_nothing_of_its_first(monkeypatch):
    monkeypatch.setattr(contract, "_IDLE_S", 5)
    monkeypatch.setattr(contract, "_THREADS", contract._Threads())
    held = DelayingStore(None)
    gone = weakref.ref(held)
    thread = begin_in_thread(partial(_thread_and, held))()
    del held
    while begin_in_thread(threading.current_thread)() is not thread:
        pass  # It still ends its call, or another one is idle, too.
    assert gone() is None


def test_a_thread_ends_soon_after_its_call(monkeypatch):
    """And holds nothing that its call held."""
    monkeypatch.setattr(contract, "_IDLE_S", 0)
    held = DelayingStore(None)
    gone = weakref.ref(held)
    thread = begin_in_thread(partial(_thread_and, held))()
    thread.join()
    del held
    assert gone() is None


def _thread_and(_):
    return threading.current_thread()


def test_a_hundred_small_objects(near, far):
    """At 100 ms a request, opening and reading them takes no more than 1.5 s."""
    log_of(near, 100)
    log = Log.open(far, clock=ManualClock(1_000_000))
    assert sum(batch.num_rows for batch in log.read()) == 100
    assert far.now_ms <= 1500
    assert far.most_at_once == CALLS_MAX


def test_objects_of_several_partitions_go_ahead_together(near, far):
    """Not partition by partition: 64 partitions of one small object each."""
    log_of(near, 64, partitions=64)
    log = Log.open(far, clock=ManualClock(1_000_000))
    assert sum(batch.num_rows for batch in log.read()) == 64
    assert far.now_ms <= 1500


def test_the_first_look_up_of_a_key(near, far):
    """Of a hundred objects without an index: their keys are read, all in 1.5 s, and only once."""
    log_of(near, 100, partitions=3)
    log = Log.open(far, clock=ManualClock(1_000_000))
    before = far.now_ms
    table = log.table()
    assert table.get("k57") == b"v"
    assert far.now_ms - before <= 1500
    assert far.most_at_once == CALLS_MAX
    before = far.requests
    assert (table.get("k58"), table.get("none")) == (b"v", None)
    assert far.requests - before <= 1


def test_a_task_that_looks_for_keys(near, far, monkeypatch):
    """In large objects keys are read first, and then the rest of those that contain one."""
    monkeypatch.setattr(lookup, "WHOLE_BYTES", 10)
    log = log_of(near, 100)
    pieces = plan_range(log.handle.manifest(), 0, 0, 100)
    found = [*pieces_of_keys(inside(far), pieces, [b"k57"], seed=1)]
    assert [(piece.base, piece.rows) for piece in found] == [(57, 1)]
    assert far.now_ms <= 1000
    assert far.most_at_once == CALLS_MAX


def test_coalescing_small_objects(near, far):
    """Their reads go ahead, all partitions of an object in one visit."""
    log_of(near, 40)
    log = Log.open(far, clock=ManualClock(1_000_000))
    log.handle.manifest()
    before = far.now_ms
    assert coalesce(Work(log.handle, 1_000_000))
    assert far.now_ms - before <= 1500


def test_verifying_hundreds_of_commits(near, far):
    """At 100 ms a request it takes no more than 4 s, their two hundred objects included."""
    log_of(near, 200)
    assert verify_log(far).findings == ()
    assert far.now_ms <= 4_000
    assert far.requests > 400


def test_an_append_takes_three_round_trips(near, far):
    """The object, the commit, the block's file."""
    log_of(near, 1)
    log = Log.open(far, clock=ManualClock(1_000_000))
    log.append([{"key": "a", "value": "1"}])  # Version 2: it looks at the block, too.
    before = far.now_ms
    log.append([{"key": "a", "value": "1"}])
    assert far.now_ms - before <= 300


def test_who_is_to_stop_begins_no_more(near, far):
    """SIGTERM, and the throttle, also apply to requests that went ahead (S29)."""
    log = log_of(near, 100)
    pieces = plan_range(log.handle.manifest(), 0, 0, 100)
    clock = ManualClock(0)
    store = inside(far)
    metered = MeteredStore(store, Throttle(None, clock, lambda: far.requests >= 20))
    with pytest.raises(StoppedError):
        list(read_pieces(metered, pieces))
    assert far.requests <= 20 + CALLS_MAX
