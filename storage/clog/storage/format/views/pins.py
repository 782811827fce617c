"""Pins: which versions of the log published views still need (FORMAT.md §14).

A pin holds for the versions of its view from its own up to that of the next pin. The head has the
pins of each format, so whoever expires versions decides from the head alone.

Not here: when a pin may go (`publications.pinning`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clog.storage.errors import CorruptionError
from clog.storage.format.chunks import whole
from clog.storage.format.features import PUBLICATIONS, FeatureNames


@dataclass(frozen=True, slots=True)
class Pin:
    """``version`` of the log is needed by versions of a view from ``view`` on; committed at
    ``time_ms``.
    """

    view: int
    version: int
    time_ms: int


Pins = Mapping[str, tuple[Pin, ...]]
"""By format of the view."""


def pins_after(before: Pins, given: Pins, features: FeatureNames) -> Pins:
    """Returns the pins after an edit that gives these, in place of those of the same formats.

    Raises:
        CorruptionError: the log lacks the feature, or pins are not in order.
    """
    if not given:
        return before
    if PUBLICATIONS not in features:
        raise CorruptionError(f"an edit has pins, but the log lacks feature {PUBLICATIONS!r}")
    for name, pins in given.items():
        views = [pin.view for pin in pins]
        if views != sorted({*views}):
            raise CorruptionError(f"pins of {name!r} name views {views}, which do not ascend")
    return {name: pins for name, pins in {**before, **given}.items() if pins}


def lowest_pinned(pins: Pins) -> int | None:
    """Returns the lowest version that is pinned, None where none is."""
    return min((pin.version for some in pins.values() for pin in some), default=None)


def pins_to_json(pins: Pins) -> dict[str, Any]:
    """Returns the pins as in edits and heads."""
    return {
        name: [[pin.view, pin.version, pin.time_ms] for pin in some]
        for name, some in sorted(pins.items())
    }


def pins_from_json(value: Mapping[str, Sequence[Sequence[Any]]]) -> Pins:
    """Reads what `pins_to_json` made.

    Raises:
        ValueError, TypeError, AttributeError: it violates the format.
    """
    return {
        str(name): tuple(Pin(*_numbers(view, version, ms)) for view, version, ms in some)
        for name, some in value.items()
    }


def _numbers(*values: Any) -> tuple[int, ...]:
    numbers = tuple(map(whole, values))
    if min(numbers) < 0:
        raise ValueError(f"a pin of negative numbers: {list(numbers)}")
    return numbers
