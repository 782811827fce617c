"""What a transaction does in many logs it does in all of them at the same time (COMMIT.md §9, X2,
X4), and its objects are written together (T1).
"""

from threading import Event

import pytest

from clog.storage import InvalidInputError, Log, ManualClock, StoreUnavailableError
from clog.storage.env import SeededIds
from clog.storage.store import contract
from clog.storage.store.contract import WrappingStore, begin_in_thread, together
from clog.storage.transactions import deferred
from clog_testing.crash import Folder, discard, memory_store
from clog_testing.delaying import DelayingStore
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log

ROUND_TRIP_MS = 100


class Threaded(WrappingStore):
    """Starts calls in threads, as stores with latency do; ``interrupts`` waits end at once."""

    interrupts = 0

    def begin(self, call):
        result = begin_in_thread(call)

        def wait():
            if self.interrupts:
                self.interrupts -= 1
                raise KeyboardInterrupt
            return result()

        return wait


@pytest.fixture
def disk():
    store = memory_store()
    yield store
    discard(store)


def logs_in(store, count):
    clock = ManualClock(now_ms=1_000_000)
    return [
        Log.create(Folder(store, f"log{i:03}"), 1, clock=clock, ids=SeededIds(i))
        for i in range(count)
    ]


def reopened(store, logs):
    clock = logs[0].handle.clock
    return [Log.open(Folder(store, f"log{i:03}"), clock=clock) for i in range(len(logs))]


def begun(logs, value="v"):
    t = logs[0].transaction("job")
    for log in logs:
        t.append([{"key": "k", "value": value}], log=log)
    return t


def values(log):
    return [v.decode() for b in log.read() for v in b.column("value").to_pylist()]


@pytest.mark.parametrize("count", [1, 3, 10, pytest.param(200, marks=pytest.mark.nightly)])
def test_as_long_as_over_two(disk, count):
    """Four commits one after the other, whatever the number of logs; 200 of them are accepted."""
    store = DelayingStore(disk, ROUND_TRIP_MS)
    logs = logs_in(store, 1 + count)
    begun(logs).commit()
    t = begun(logs)
    before_ms, before = store.now_ms, store.requests
    t.commit()
    hints = 4  # At most, where versions are divisible by 4.
    assert store.now_ms - before_ms <= (4 * 2 + hints) * ROUND_TRIP_MS
    assert store.requests - before >= 4 * (1 + count)
    assert all(values(log) == ["v", "v"] for log in logs)


def test_the_names_have_a_bound(disk, monkeypatch):
    """What the home repeats in each commit stays small: one log too many is refused with
    a message.
    """
    monkeypatch.setattr(deferred, "PARTICIPANTS_BYTES_MAX", 300)
    with pytest.raises(InvalidInputError, match="use fewer logs in a transaction"):
        begun(logs_in(disk, 9))


def test_threads_far_away(disk):
    """S50: all or nothing where each log has a thread; none is left behind."""
    logs = logs_in(Threaded(disk), 8)
    begun(logs, "a").commit()
    t = begun(logs, "b")
    logs[5].alter({"max.message.bytes": 5})
    with pytest.raises(InvalidInputError, match=r"max\.message\.bytes"):
        t.commit()
    assert not t.is_open
    for log in reopened(disk, logs):
        assert values(log) == ["a"]
        assert not log.transactions() or log.transactions()[0].state == "aborted"
        check_log(Folder(disk, log.url.rpartition("/")[2]))


def test_a_refusal_outweighs_what_passes(disk):
    """S50: one log is unavailable, another refuses for good: the holder learns which step fails."""
    away = FaultyStore(disk)
    clock = ManualClock(now_ms=1_000_000)
    logs = logs_in(disk, 3)
    first = Log.open(Folder(away, "log001"), clock=clock, ids=SeededIds(50))
    t = begun([logs[0], first, logs[2]])
    logs[2].alter({"max.message.bytes": 5})
    away.plan = Faults(Fault(FaultKind.FAIL_BEFORE, "create", "*/commits/*", times=99))
    with pytest.raises(InvalidInputError, match=r"max\.message\.bytes"):
        t.commit()
    assert not t.is_open


@pytest.mark.parametrize("waits", range(1, 3))
def test_an_interrupt_while_it_waits(disk, waits):
    """S65: the threads continue, and the holder commits again: all of it is there, once."""
    store = Threaded(disk)
    logs = logs_in(store, 4)
    t = begun(logs)
    store.interrupts = waits
    for _ in range(waits):
        with pytest.raises(KeyboardInterrupt):
            t.commit()
    t.commit()
    assert all(values(log) == ["v"] for log in reopened(disk, logs))
    for log in logs:
        check_log(Folder(disk, log.url.rpartition("/")[2]))


def test_all_are_begun_before_one_is_waited_for(disk):
    """Calls of one step wait for nobody; a failed one does not stop another from being made."""
    store, last = Threaded(disk), Event()

    def first():
        assert last.wait(timeout=60), "the last call was not begun"
        return 1

    def failing():
        raise ValueError

    def ending():
        last.set()
        return 3

    done = together([(store, first), (store, failing), (store, ending)])
    assert (done[0], done[2]) == (1, 3)
    assert isinstance(done[1], ValueError)


def appended(log, count, *, partition=None):
    """A transaction of this many appends to one log, each an object."""
    t = log.transaction("job")
    for i in range(count):
        t.append([{"key": f"k{i}", "value": f"v{i}"}], partition)
    return t


@pytest.mark.parametrize("count", [1, 40])
def test_objects_of_many_appends_take_as_long_as_one(disk, count):
    """T1: one round trip for all objects, then those of the commit."""
    store = DelayingStore(disk, ROUND_TRIP_MS)
    (log,) = logs_in(store, 1)
    appended(log, 1).commit()
    before_ms, before = store.now_ms, store.requests
    appended(log, count).commit()
    hint = 1
    assert store.now_ms - before_ms <= (1 + 2 + hint) * ROUND_TRIP_MS
    assert store.requests - before >= count + 2
    assert len(values(log)) == 1 + count
    check_log(Folder(disk, "log000"))


def test_objects_of_many_logs_take_as_long_as_one(disk):
    """T1: the objects of 20 logs are written at the same time too."""
    store = DelayingStore(disk, ROUND_TRIP_MS)
    logs = logs_in(store, 21)
    begun(logs).commit()
    before_ms = store.now_ms
    t = begun(logs)
    assert store.now_ms == before_ms, "an append waited"
    t.commit()
    hints = 4
    assert store.now_ms - before_ms <= (1 + 4 * 2 + hints) * ROUND_TRIP_MS
    assert all(values(log) == ["v", "v"] for log in logs)


def test_bytes_under_way_have_a_bound(disk, monkeypatch):
    """Objects wait for earlier ones if memory is short."""
    store = DelayingStore(disk, ROUND_TRIP_MS)
    (log,) = logs_in(store, 1)
    appended(log, 1).commit()
    monkeypatch.setattr(contract, "BYTES_MAX", 4000)
    store.begun.clear()
    appended(log, 30).commit()
    assert 1 < store.most_at_once < 10
    assert len(values(log)) == 31


def failing(disk, *faults):
    """A log whose puts run in threads, some of which fail."""
    store = FaultyStore(disk)
    (log,) = logs_in(Threaded(store), 1)
    appended(log, 1).commit()
    store.plan = Faults(*faults)
    return log


def test_a_put_that_fails_is_told_by_the_commit(disk):
    """T1: nothing is committed without an object; committed again, all is there, once."""
    log = failing(disk, Fault(FaultKind.FAIL_BEFORE, "put", "*data/*", 2))
    t = appended(log, 4)
    with pytest.raises(StoreUnavailableError):
        t.commit()
    assert t.is_open
    assert values(*reopened(disk, [log])) == ["v0"]
    t.append([{"key": "late", "value": "late"}])
    t.commit()
    assert sorted(values(log)) == ["late", "v0", "v0", "v1", "v2", "v3"]
    check_log(Folder(disk, "log000"))


def test_a_put_that_fails_and_is_aborted_leaves_nothing(disk):
    """T1: what was being written is an orphan."""
    log = failing(disk, Fault(FaultKind.FAIL_BEFORE, "put", "*data/*"))
    t = appended(log, 2)
    with pytest.raises(StoreUnavailableError):
        t.commit()
    t.abort()
    appended(log, 1).commit()
    assert values(log) == ["v0", "v0"]
    check_log(Folder(disk, "log000"))


def test_an_append_that_fails_for_another_may_be_made_again(disk, monkeypatch):
    """T1: an append that finds no space gets the earlier error; nothing of it is there."""
    monkeypatch.setattr(contract, "BYTES_MAX", 1)
    log = failing(disk, Fault(FaultKind.FAIL_BEFORE, "put", "*data/*"))
    t = appended(log, 1)
    with pytest.raises(StoreUnavailableError):
        t.append([{"key": "b", "value": "b"}])
    t.append([{"key": "b", "value": "b"}])
    t.commit()
    assert sorted(values(log)) == ["b", "v0", "v0"]
    check_log(Folder(disk, "log000"))


def test_an_append_that_fails_is_forgotten(disk, monkeypatch):
    """T1: if an append raised, no object is put again: nothing would name it."""
    log = failing(disk, Fault(FaultKind.FAIL_BEFORE, "put", "*data/*"))
    log.alter({"object.bytes": "1m"})
    large = [{"key": str(i), "value": bytes(600_000)} for i in range(3)]
    monkeypatch.setattr(contract, "BYTES_MAX", 1)
    t = log.transaction("job")
    with pytest.raises(StoreUnavailableError):
        t.append(large)
    t.append(large)
    t.commit()
    stored = [one for one in disk.list("log000/") if "/data/" in one.path]
    assert len(stored) == 1 + 3
    assert log.end_offsets() == {0: 4}
    check_log(Folder(disk, "log000"))


@pytest.mark.parametrize("waits", range(1, 4))
def test_an_interrupt_while_objects_are_under_way(disk, waits):
    """S65: none is named before it is there; committed again, all are there, once."""
    store = Threaded(disk)
    (log,) = logs_in(store, 1)
    t = appended(log, 4)
    store.interrupts = waits
    for _ in range(waits):
        with pytest.raises(KeyboardInterrupt):
            t.commit()
    assert values(*reopened(disk, [log])) == []
    t.commit()
    assert values(log) == ["v0", "v1", "v2", "v3"]
    check_log(Folder(disk, "log000"))
