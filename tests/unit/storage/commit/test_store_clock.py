"""A clock far ahead of the store's stamps no commit: times of commits never decrease (K2)."""

import pytest

from clog.storage import Log, ManualClock, NotFoundError, StoreUnavailableError
from clog.storage.commit.committer import AHEAD_MS_MAX, ClockSkewError
from clog.storage.format import documents
from clog_testing.clocked import ClockedStore, WallClock
from clog_testing.counting import CountingStore
from clog_testing.crash import inside
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore

YEARS_MS = 70 * 365 * 86_400_000
ONE = [{"key": "k", "value": "v", "timestamp": 1}]
APPEND = {"put": 1, "create": 1, "get": 1}


@pytest.fixture
def wall():
    return WallClock(ManualClock(1_700_000_000_000))


@pytest.fixture
def counting(store, wall):
    return CountingStore(ClockedStore(store, wall.right))


def test_one_append_from_a_clock_70_years_ahead(counting, wall):
    """It is refused, with both times and what to do, and nothing is committed; the same for a new
    log.
    """
    ahead = WallClock(wall.right, YEARS_MS)
    with pytest.raises(ClockSkewError):
        Log.create(counting, clock=ahead)
    with pytest.raises(NotFoundError):
        Log.open(counting)
    log = Log.create(counting, clock=wall)
    with pytest.raises(ClockSkewError, match=f"clock is {YEARS_MS} ms ahead of the store's.*NTP"):
        Log.open(counting, clock=ahead).append(ONE)
    assert log.version == 0
    assert not list(inside(counting).list("clock"))


@pytest.mark.parametrize("by_ms", [AHEAD_MS_MAX, 0, -AHEAD_MS_MAX, -YEARS_MS])
def test_clocks_that_stamp_commits(counting, wall, by_ms):
    """A quarter of an hour is tolerated; a slow clock does no harm: the parent's time counts."""
    Log.create(counting, clock=wall)
    wall.right.advance(86_400_000)
    assert Log.open(counting, clock=WallClock(wall.right, by_ms)).append(ONE).version == 1


def test_the_store_is_asked_once(counting, wall):
    """COMMIT.md §7: not beside a newest commit of now; then the monotonic clock decides, until the
    clock was set, or the machine slept.
    """

    def cost():
        with counting.count() as counts:
            log.append(ONE)
        return dict(counts)

    log = Log.create(counting, clock=wall)
    assert cost() == APPEND
    wall.right.advance(AHEAD_MS_MAX + 1)
    # Beside them four for a look after so long (§1, §4).
    assert cost() == {"put": 2, "create": 1, "get": 5, "list": 1, "delete": 1}
    wall.right.advance(86_400_000)
    assert "list" not in cost()
    wall.by_ms = 2 * AHEAD_MS_MAX
    with pytest.raises(ClockSkewError):
        log.append(ONE)
    wall.by_ms = 0
    assert cost()["create"] == 1


def test_a_clock_that_goes_ahead_step_by_step(counting, wall):
    """K2: each commit is near the one before, and all use the same clock: the store is asked all
    the same, once the clock was advanced by a quarter of an hour in all.
    """
    log = Log.create(counting, clock=wall)

    def step():
        wall.right.advance(60_000)
        wall.by_ms += AHEAD_MS_MAX // 2
        log.append(ONE)

    step()
    step()
    with pytest.raises(ClockSkewError):
        step()
    ahead_ms = log.handle.tip.record.time_ms - wall.right.now_ms()
    assert ahead_ms <= AHEAD_MS_MAX


@pytest.mark.parametrize("operation", ["put", "list"])
def test_a_store_that_does_not_answer_now_is_asked_again(counting, wall, operation):
    """A clock that is far ahead is not trusted because one request failed."""
    Log.create(counting, clock=wall)
    fails = Faults(Fault(FaultKind.FAIL_BEFORE, operation, "*/clock-*"))
    log = Log.open(FaultyStore(counting, fails), clock=wall)
    wall.by_ms = 2 * AHEAD_MS_MAX
    with pytest.raises(StoreUnavailableError, match="as planned"):
        log.append(ONE)
    with pytest.raises(ClockSkewError):
        log.append(ONE)
    assert Log.open(counting, clock=wall).version == 0


def test_a_store_that_does_not_tell_the_time_is_no_obstacle(counting, wall):
    """A handle that may not list, or not delete, is trusted."""
    Log.create(counting, clock=wall)
    wall.right.advance(86_400_000)
    for operation in ("list", "delete"):
        plan = Faults(Fault(FaultKind.REFUSE, operation, "*/clock-*", times=9))
        assert Log.open(FaultyStore(counting, plan), clock=wall).append(ONE).version > 0


@pytest.mark.parametrize("operation", ["put", "list"])
def test_who_sleeps_while_the_store_is_asked(counting, wall, operation):
    """Days that pass before the answer are not taken for the lead of the store's clock."""
    Log.create(counting, clock=wall)
    sleeps = Fault(
        FaultKind.MEANWHILE, operation, "*/clock-*", run=lambda: wall.right.advance(4 * 86_400_000)
    )
    log = Log.open(FaultyStore(counting, Faults(sleeps)), clock=wall)
    wall.by_ms = 3 * 86_400_000
    for _ in range(2):
        with pytest.raises(ClockSkewError):
            log.append(ONE)
    assert Log.open(counting, clock=wall).version == 0


@pytest.mark.parametrize("stands", [False, True])
def test_who_sleeps_until_the_sweep_takes_what_the_store_was_asked_by(counting, wall, stands):
    """It is asked again: that it lists nothing does not mean that it tells no time. The monotonic
    clock may stand still meanwhile.
    """
    Log.create(counting, clock=wall)
    folder = inside(counting)

    def swept():
        if stands:
            before_ms = wall.monotonic_ms()
            wall.monotonic_ms = lambda: before_ms
        wall.right.advance(4 * 86_400_000)
        for found in list(folder.list(documents.CLOCKS)):
            folder.delete(found.path)

    sleeps = Fault(FaultKind.MEANWHILE, "list", "*/clock-*", run=swept)
    log = Log.open(FaultyStore(counting, Faults(sleeps)), clock=wall)
    wall.by_ms = 3 * 86_400_000
    with pytest.raises(ClockSkewError):
        log.append(ONE)
    assert log.version == 0


def test_a_store_that_lists_late_is_no_obstacle(counting, wall):
    """A4: what is not listed at once is not asked for again."""
    Log.create(counting, clock=wall)
    wall.right.advance(86_400_000)
    folder = inside(counting)

    def hidden():
        for found in list(folder.list(documents.CLOCKS)):
            folder.delete(found.path)

    late = Fault(FaultKind.MEANWHILE, "list", "*/clock-*", run=hidden)
    faulty = FaultyStore(counting, Faults(late))
    assert Log.open(faulty, clock=wall).append(ONE).version == 1
    assert sum(call.operation == "list" for call in faulty.calls) == 1
