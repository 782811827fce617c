"""When a pin comes and when it may go (FORMAT.md §14, COMMIT.md U2 and U4). Pure.

A pin stays until the version of the view that the next pin is for was written
``file.delete.delay.ms`` ago: nobody may begin to read an older one since then. Never by time alone,
as its publisher may be asleep. So that heads stay short, of pins that came within an eighth of that
delay only the first stays, and holds for the versions of the others, too.
"""

from collections.abc import Callable, Sequence

from clog.storage.format.views.pins import Pin

PARTS = 8
"""Pins stand apart by this part of the delay, at least."""


def without_expired(
    pins: Sequence[Pin], written_ms: Callable[[int], int | None], *, before_ms: int
) -> tuple[Pin, ...]:
    """Returns the pins that are left.

    Args:
        pins: those that are there.
        written_ms: tells when a version of the view was written; None where it is not there.
        before_ms: ``file.delete.delay.ms`` ago.
    """
    left = list(pins)
    while len(left) > 1 and left[1].time_ms <= before_ms:
        at_ms = written_ms(left[1].view)
        if at_ms is None or at_ms > before_ms:
            break
        del left[0]
    return tuple(left)


def with_pin(pins: Sequence[Pin], pin: Pin, *, delay_ms: int) -> tuple[Pin, ...]:
    """Returns the pins with a new one. Those of later versions go: somebody took the view away.
    Where its view has one already, the lower version counts: both publishers may create it.
    """
    before = [one for one in pins if one.view < pin.view]
    same = [one for one in pins if one.view == pin.view and one.version <= pin.version]
    if same:
        return (*before, *same)
    if len(before) > 1 and pin.time_ms - before[-2].time_ms < delay_ms // PARTS:
        del before[-1]
    return (*before, pin)
