"""When pins are set and removed (FORMAT.md §14)."""

from clog.storage.format.commits import Pin
from clog.storage.publications.publish import PARTS, after_withdrawal, with_pin, without_expired


def pins(*rows):
    return tuple(Pin(*row) for row in rows)


def test_a_pin_stays_until_the_view_after_it_is_old():
    """S63: by the time at which that view was written, not at which its pin was committed: its
    publisher may have been delayed.
    """
    three = pins((0, 10, 100), (1, 20, 200), (2, 30, 300))
    written = {0: 110, 1: 900, 2: 950}
    left = [without_expired(three, written.get, before_ms=t) for t in (199, 899, 900, 949, 950)]
    assert [len(some) for some in left] == [3, 3, 2, 2, 1]


def test_a_view_that_is_not_there_holds_the_pin_before_it():
    """S63: its publisher may be delayed, and create it later."""
    two = pins((0, 10, 100), (1, 20, 200))
    assert without_expired(two, lambda _: None, before_ms=10**9) == two


def test_the_last_pin_stays():
    assert without_expired(pins((4, 9, 1)), lambda _: 0, before_ms=10**9) == pins((4, 9, 1))


def test_pins_stay_few_however_often_a_log_is_published():
    """Each holds for those that were left out after it."""
    kept, delay_ms = (), 80_000
    for view in range(1000):
        time_ms = view * 1_000
        kept = without_expired(kept, lambda v: v * 1_000, before_ms=time_ms - delay_ms)
        kept = with_pin(kept, Pin(view, view, time_ms), delay_ms=delay_ms)
        assert [pin.view for pin in kept] == sorted({pin.view for pin in kept})
        # Whatever was published within the delay is held by one that is not younger.
        assert kept[0].view <= max(0, view - 80)
        assert kept[-1].view == view
    assert len(kept) <= PARTS + 3


def test_of_two_publishers_the_lower_version_is_pinned():
    """Either may create the view."""
    one = pins((0, 10, 100), (1, 20, 200))
    assert with_pin(one, Pin(1, 25, 300), delay_ms=0) == one
    assert with_pin(one, Pin(1, 15, 300), delay_ms=0) == pins((0, 10, 100), (1, 15, 300))


def test_a_pin_holds_for_the_later_versions_that_it_replaces():
    """S63: others published them since it was prepared, or the view was removed."""
    later = pins((7, 10, 100), (8, 11, 200))
    assert with_pin(later, Pin(0, 12, 300), delay_ms=0) == pins((0, 10, 300))
    assert with_pin(later, Pin(7, 12, 300), delay_ms=0) == pins((7, 10, 100))


def test_a_withdrawn_view_needs_no_pin_after_the_delay():
    """S63, S69: its own at once, as nobody can read that version, or create it; those of earlier
    versions when their readers are done; those of future versions stay.
    """
    some = pins((1, 10, 100), (2, 20, 200), (4, 30, 900))
    assert after_withdrawal(some, 2, 500, before_ms=499) == pins((1, 10, 100), (4, 30, 900))
    assert after_withdrawal(some, 2, 500, before_ms=500) == pins((4, 30, 900))
