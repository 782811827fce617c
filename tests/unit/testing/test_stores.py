"""The test kit's stores do what they say: a fault that does not happen would prove nothing."""

import pytest

from clog.storage import ManualClock, StoreUnavailableError
from clog.storage.store import open_store
from clog.storage.store.contract import ObjectExistsError, StoreFullError, StoreRefusedError
from clog_testing.clocked import ClockedStore
from clog_testing.counting import CountingStore
from clog_testing.faults import (
    CrashAt,
    CrashedError,
    Fault,
    FaultKind,
    Faults,
    FaultyStore,
    RandomFaults,
)


@pytest.fixture
def inner(tmp_path):
    store = open_store(f"{tmp_path}/log", {"fsync": False})
    store.put("a", b"0123456789")
    return store


def test_requests_are_counted_also_those_that_fail(inner):
    """404s and conflicts cost as much as any."""
    store = CountingStore(inner)
    store.get("a", 2, 5)
    for operation in (
        lambda: store.get("absent"),
        lambda: store.create("a", b"123"),
        lambda: store.get_ranges("absent", [(0, 1)]),
    ):
        with pytest.raises((FileNotFoundError, FileExistsError)):
            operation()
    store.put("b", memoryview(b"12"))
    store.get_ranges("a", [(0, 1), (3, 4), (5 << 20, 6 << 20)])
    store.delete("b")
    list(store.list(""))
    assert store.counts == {
        "get": 2,
        "create": 1,
        "get_ranges": 3,
        "put": 1,
        "delete": 1,
        "list": 1,
    }
    assert (store.bytes_in, store.bytes_out) == (5, 5)
    store.reset()
    assert (store.counts, store.bytes_in, store.bytes_out) == ({}, 0, 0)


def test_a_block_has_its_own_count(inner):
    """Requests before and after it do not count."""
    store = CountingStore(inner)
    store.get("a")
    with store.count() as during:
        store.get("a")
        store.put("b", b"1")
    store.get("a")
    assert during == {"get": 1, "put": 1}


def test_times_follow_the_clock(inner):
    """Of what is written through it."""
    clock = ManualClock(now_ms=1_000)
    store = ClockedStore(inner, clock)
    store.create("b", b"1")
    clock.advance(500)
    store.put("c", b"1")
    times = {o.path: o.modified_ms for o in store.list("")}
    assert (times["b"], times["c"]) == (1_000, 1_500)
    assert times["a"] > 1_000_000


def faulty(inner, kind, **rule):
    return FaultyStore(inner, Faults(Fault(kind, **rule)), clock=ManualClock())


def test_fail_before_does_nothing(inner):
    """The error is the store's, and nothing was written."""
    store = faulty(inner, FaultKind.FAIL_BEFORE)
    with pytest.raises(StoreUnavailableError):
        store.create("b", b"1")
    with pytest.raises(FileNotFoundError):
        inner.get("b")


def test_fail_after_loses_the_reply(inner):
    """The same error, and it was written."""
    store = faulty(inner, FaultKind.FAIL_AFTER)
    with pytest.raises(StoreUnavailableError):
        store.create("b", b"1")
    assert inner.get("b") == b"1"


def test_refuse_does_nothing(inner):
    """And says that nothing was done."""
    with pytest.raises(StoreRefusedError) as raised:
        faulty(inner, FaultKind.REFUSE).put("b", b"1")
    assert raised.value.certain
    with pytest.raises(FileNotFoundError):
        inner.get("b")


def test_a_full_store_does_nothing(inner):
    """And what is there can be read."""
    store = faulty(inner, FaultKind.FULL, operation="[pc]*")
    with pytest.raises(StoreFullError):
        store.create("b", b"1")
    assert [found.path for found in store.list("")] == ["a"]


def test_refuse_after_was_done(inner):
    """And does not say that nothing was."""
    with pytest.raises(StoreRefusedError) as raised:
        faulty(inner, FaultKind.REFUSE_AFTER).create("b", b"1")
    assert not raised.value.certain
    assert inner.get("b") == b"1"


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_dead_do_nothing_more(inner, when):
    """A crash is not an `Exception`, and every later call crashes too, unseen by the store."""
    store = FaultyStore(inner, CrashAt(1, when))
    store.get("a")
    with pytest.raises(CrashedError):
        store.put("b", b"1")
    with pytest.raises(CrashedError):
        store.delete("a")
    assert not issubclass(CrashedError, Exception)
    assert inner.get("a") == b"0123456789"
    assert [o.path for o in inner.list("b")] == ([] if when == "before" else ["b"])
    assert [(c.index, c.operation, c.path) for c in store.calls] == [
        (0, "get", "a"),
        (1, "put", "b"),
    ]


def test_crash_at_can_lose_a_reply_instead(inner):
    """The process stays, and the next call succeeds."""
    store = FaultyStore(inner, CrashAt(0, "lost_reply"))
    with pytest.raises(StoreUnavailableError):
        store.create("b", b"1")
    assert store.get("b") == b"1"


def test_a_repeated_create_conflicts_with_itself(inner):
    """As a client's silent retry does."""
    with pytest.raises(ObjectExistsError):
        faulty(inner, FaultKind.REPEAT).create("b", b"1")
    assert inner.get("b") == b"1"


def test_a_delay_advances_the_clock(inner):
    """And the call is done."""
    clock = ManualClock()
    store = FaultyStore(inner, Faults(Fault(FaultKind.DELAY, delay_ms=70)), clock=clock)
    store.put("b", b"1")
    assert clock.now_ms() == 70
    assert inner.get("b") == b"1"


def test_meanwhile_comes_first(inner):
    """Another writer wins the race in which this one is."""
    store = faulty(inner, FaultKind.MEANWHILE, run=lambda: inner.create("b", b"other"))
    with pytest.raises(ObjectExistsError):
        store.create("b", b"ours")
    assert inner.get("b") == b"other"


def test_tearing(inner):
    """Half is read; half is written by a process that is then gone."""
    store = FaultyStore(
        inner,
        Faults(Fault(FaultKind.TEAR_READ, "get*", times=2), Fault(FaultKind.TEAR_WRITE, "put")),
    )
    assert store.get("a") == b"01234"
    assert store.get_ranges("a", [(0, 4), (6, 8)]) == [b"01", b"6"]
    with pytest.raises(CrashedError):
        store.put("b", b"1234")
    assert inner.get("b") == b"12"


def test_rules_count_what_matches_them(inner):
    """From the nth matching call, this many times, then everything works: throttling."""
    rule = Fault(FaultKind.FAIL_BEFORE, "get", "data/*", nth=2, times=2)
    store = FaultyStore(inner, Faults(rule))
    inner.put("data/x/y", b"1")
    outcomes = []
    for path in ("data/x/y", "a", "data/x/y", "a", "data/x/y", "data/x/y"):
        try:
            store.get(path)
            outcomes.append("ok")
        except StoreUnavailableError:
            outcomes.append("failed")
    assert outcomes == ["ok", "ok", "failed", "ok", "failed", "ok"]


def test_chance_follows_from_the_seed(inner):
    """The same seed, the same faults; another, others; about as many as asked for."""

    def outcomes(seed):
        store = FaultyStore(inner, RandomFaults(seed, 0.3, (FaultKind.FAIL_BEFORE,)))
        found = []
        for _ in range(300):
            try:
                store.get("a")
                found.append(True)
            except StoreUnavailableError:
                found.append(False)
        return found

    assert outcomes(1) == outcomes(1)
    assert outcomes(1) != outcomes(2)
    assert 60 < outcomes(1).count(False) < 120
