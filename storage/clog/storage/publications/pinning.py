"""When a pin comes and when it may go (FORMAT.md §14, COMMIT.md U2 and U4), and what pins keep.
Pure.

A pin stays until the version of the view that the next pin is for was written
``file.delete.delay.ms`` ago: nobody may begin to read an older one since then. Never by time alone,
as its publisher may be asleep. So that heads stay short, of pins that came within an eighth of that
delay only the first stays, and holds for the versions of the others, too.

A view that is withdrawn needs no pin: its newest version names nothing, and has the number that a
publisher who is asleep would create. Those of the versions before it stay for the delay.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from clog.storage.format.manifest import Manifest
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


def after_withdrawal(
    pins: Sequence[Pin], view: int, written_ms: int, *, before_ms: int
) -> tuple[Pin, ...]:
    """Returns the pins that are left where the view's newest version, ``view``, shows nothing since
    ``written_ms``. Those of versions to come stay.
    """
    is_old = written_ms <= before_ms
    return tuple(pin for pin in pins if pin.view > view or (pin.view < view and not is_old))


def with_pin(pins: Sequence[Pin], pin: Pin, *, delay_ms: int) -> tuple[Pin, ...]:
    """Returns the pins with a new one, in place of those of later versions of the view: it was
    taken away, or others published them since this one was prepared. So it has the lowest version
    of them all, as each of their publishers may create what it is for.
    """
    before = [one for one in pins if one.view < pin.view]
    same = [one for one in pins if one.view == pin.view and one.version <= pin.version]
    lowest = min((one.version for one in pins if one.view > pin.view), default=pin.version)
    if same and same[0].version <= lowest:
        return (*before, *same)
    if len(before) > 1 and pin.time_ms - before[-2].time_ms < delay_ms // PARTS:
        del before[-1]
    return (*before, replace(pin, version=min(pin.version, lowest)))


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept for the published view of a format, and for nothing else.

    Attributes:
        version: the oldest version of the log that it needs.
        table_version: the newest version of the view that was begun.
        since_ms: when the oldest pin was committed.
        objects: how many objects would have been deleted but for it.
        size_bytes: their size.
        overdue_ms: for how long the first of them.
    """

    version: int
    table_version: int
    since_ms: int
    objects: int
    size_bytes: int
    overdue_ms: int

    def is_stuck(self, delay_ms: int) -> bool:
        """Tells whether the pin should have gone: whoever keeps the view up to date moves it at
        least each ``file.delete.delay.ms``, and the former one goes as long after that.
        """
        return self.overdue_ms > PATIENCE * delay_ms + PATIENCE_MS


PATIENCE, PATIENCE_MS = 2, 3_600_000
"""A pin moves within so many delays and rounds of the cleaner."""


def kept_for_views(manifest: Manifest, delay_ms: int, *, now_ms: int) -> Mapping[str, Kept]:
    """Returns what published views keep, by format; nothing of a log without pins."""
    if not manifest.head.pins:
        return {}
    alive = manifest.files()
    last = {r.path: r for r in manifest.released if r.path not in alive}
    due = [r for r in last.values() if now_ms - r.time_ms > delay_ms]
    found = {}
    for name, pins in manifest.head.pins.items():
        held = [r for r in due if r.version > pins[0].version]
        since_ms = min((r.time_ms + delay_ms for r in held), default=now_ms)
        found[name] = Kept(
            version=pins[0].version,
            table_version=pins[-1].view,
            since_ms=pins[0].time_ms,
            objects=len(held),
            size_bytes=sum(r.size_bytes for r in held),
            overdue_ms=now_ms - since_ms,
        )
    return found
