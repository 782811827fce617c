"""The manual clock moves only on request; the system clock is the host's."""

import time

import pytest

from clog.storage.env import ManualClock, SystemClock
from clog.storage.errors import InvalidInputError


def test_a_manual_clock_stands_still():
    """No reading moves it."""
    clock = ManualClock(now_ms=1_700_000_000_000)
    assert clock.now_ms() == clock.now_ms() == 1_700_000_000_000
    assert clock.now_us() == 1_700_000_000_000_000
    assert clock.monotonic_ms() == 0


def test_advancing_moves_wall_clock_and_monotonic_time_alike():
    """Both move by the same number of milliseconds."""
    clock = ManualClock(now_ms=100)
    clock.advance(7)
    clock.advance(0)
    assert (clock.now_ms(), clock.now_us(), clock.monotonic_ms()) == (107, 107_000, 7)


def test_sleeping_is_advancing():
    """A sleep on a manual clock returns immediately, at a later time."""
    clock = ManualClock()
    clock.sleep_ms(86_400_000)
    assert clock.now_ms() == clock.monotonic_ms() == 86_400_000


def test_a_manual_clock_refuses_to_go_back():
    """The clock does not change."""
    clock = ManualClock(now_ms=5)
    with pytest.raises(InvalidInputError, match="back by 1 ms"):
        clock.advance(-1)
    assert clock.now_ms() == 5


def test_the_system_clock_is_the_hosts():
    """Milliseconds and microseconds of the same wall clock, between two readings of it."""
    clock = SystemClock()
    before = time.time_ns()
    now_ms, now_us = clock.now_ms(), clock.now_us()
    after = time.time_ns()
    assert before // 1_000_000 <= now_ms <= after // 1_000_000
    assert before // 1_000 <= now_us <= after // 1_000


def test_the_system_clock_sleeps_at_least_as_long_as_asked():
    """Measured on its own monotonic time."""
    clock = SystemClock()
    start_ms = clock.monotonic_ms()
    clock.sleep_ms(2)
    assert clock.monotonic_ms() - start_ms >= 2
