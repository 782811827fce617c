"""Counting and throttling the bytes of the cleaner (S29)."""

import threading

import pytest

from clog.cleaner import Cleaner
from clog.cleaner.threads import NAP_MS, MeteredStore, StoppedError, Throttle
from clog.storage import InvalidInputError, ManualClock


def test_the_rate(clock):
    """S29: this many bytes per second: a caller that is ahead sleeps."""
    throttle = Throttle(1000, clock)
    start = clock.monotonic_ms()
    for _ in range(10):
        throttle.take(500)
    assert clock.monotonic_ms() - start >= 4000
    assert clock.monotonic_ms() - start <= 5000


def test_idle_time_is_not_saved_up(clock):
    """S29: after an hour without work no burst follows."""
    throttle = Throttle(1000, clock)
    clock.advance(3_600_000)
    start = clock.monotonic_ms()
    throttle.take(5000)
    assert clock.monotonic_ms() - start == 4000


def test_a_rate_that_is_next_to_nothing():
    """S29: a wait beyond all numbers is a wait, not an error of a pass."""

    class Stopped(ManualClock):
        def sleep_ms(self, ms):
            naps.append(ms)

    naps = []
    with pytest.raises(StoppedError):
        Throttle(5e-324, Stopped(0), lambda: len(naps) > 3).take(1)
    assert len(naps) > 3


def test_no_limit(clock):
    """S29: None is no limit."""
    Throttle(None, clock).take(1 << 60)
    assert clock.monotonic_ms() == 0


def test_all_threads_together(clock):
    """S29: the limit is for all threads together, not for each."""
    slept = []

    class Counting(ManualClock):
        def sleep_ms(self, ms):
            slept.append(ms)

    throttle = Throttle(1000, Counting(0))
    threads = [threading.Thread(target=throttle.take, args=(1000,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(slept) == 1000 * sum(range(1, 9))


def test_stopping_ends_a_throttled_wait():
    """S29: SIGTERM within seconds, however long the limit would make it sleep; so does the next
    request without a limit.
    """
    slept = []

    class Sleeping(ManualClock):
        def sleep_ms(self, ms):
            slept.append(ms)

    throttle = Throttle(1, Sleeping(0), stopping=lambda: len(slept) == 3)
    with pytest.raises(StoppedError):
        throttle.take(1_000_000)
    assert slept == [NAP_MS] * 3
    with pytest.raises(StoppedError):
        Throttle(None, Sleeping(0), stopping=lambda: True).take(1)


def test_reads_and_writes_count(store, clock):
    """S29: both directions, by bytes that went to and from the store."""
    metered = MeteredStore(store, Throttle(1000, clock))
    metered.put("data/x", b"1234567890")
    assert metered.get("data/x", 2, 6) == b"3456"
    assert metered.get_ranges("data/x", [(0, 2), (4, 5)]) == [b"12", b"5"]
    assert (metered.bytes_written, metered.bytes_read) == (10, 7)
    assert clock.monotonic_ms() == 17


def test_sweeping_is_moving(store, clock):
    """A long sweep is not a hung cleaner: deletions and listings move no bytes, but count."""
    throttle = Throttle(None, clock)
    metered = MeteredStore(store, throttle)
    metered.put("data/x", b"1")
    for act in lambda: list(metered.list("data/")), lambda: metered.delete("data/x"):
        clock.advance(1)
        act()
        assert throttle.moved_ms == clock.monotonic_ms()


def test_a_pass_takes_its_time(make_log, put, clock):
    """S29: the bytes in the counts are those that were throttled."""
    log = make_log()
    put(log, "a=1 b=1 a=2")
    log.roll()
    (result,) = Cleaner(log, io_bytes_per_second=100).run_once(force=True)
    moved = result.stats.bytes_read + result.stats.bytes_written
    assert clock.monotonic_ms() == pytest.approx(moved * 10, abs=20)


def test_a_limit_of_nothing(make_log):
    """A rate that would never end is refused."""
    with pytest.raises(InvalidInputError, match="io_bytes_per_second=0 is out of range"):
        Cleaner(make_log(), io_bytes_per_second=0)
