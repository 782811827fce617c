"""A partition as a bar: which part of its bytes is clean, cleanable, uncleanable, active. Pure.

Each part has a glyph of its own, so that the bar reads without colour; in a terminal that has
only ASCII, other glyphs. A part that holds bytes is never invisible: it gets at least one cell.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from clog.storage import PartitionDescription


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of bytes in a bar."""

    name: str
    glyph: str
    ascii_glyph: str
    style: str
    meaning: str


PARTS = (
    Part("clean", "█", "#", "green", "each key once"),
    Part("cleanable", "▓", "+", "yellow", "dirty: the next pass cleans it"),
    Part("uncleanable", "▒", "-", "magenta", "dirty, but too young to clean"),
    Part("active", "░", ".", "cyan", "being written"),
)
POINT = Part("retention", "│", "|", "bold red", "tombstones are kept from here on")
EMPTY = Part("empty", "·", " ", "dim", "no records")


def part_bytes(detail: "PartitionDescription") -> tuple[int, int, int, int]:
    """Returns the bytes of `PARTS`, from one of `describe()`'s ``partition_details``."""
    clean, cleanable = detail["clean_bytes"], detail["cleanable_bytes"]
    active = detail["active_bytes"]
    rest = detail["size_bytes"] - clean - cleanable - active
    return clean, cleanable, max(0, rest), active


def cells(amounts: Sequence[int], width: int) -> list[int]:
    """Divides ``width`` cells in proportion; whatever is not 0 gets at least one.

    >>> cells([1, 1, 1000, 0], 10)
    [1, 1, 8, 0]
    """
    total = sum(amounts)
    if total == 0:
        return [0] * len(amounts)
    out = [amount * width // total for amount in amounts]
    by_remainder = sorted(range(len(amounts)), key=lambda i: -(amounts[i] * width % total))
    for i in by_remainder[: width - sum(out)]:
        out[i] += 1
    for i, amount in enumerate(amounts):
        if amount and not out[i]:
            out[out.index(max(out))] -= 1
            out[i] = 1
    return out


def bar(detail: "PartitionDescription", width: int, *, ascii_only: bool = False) -> Text:
    """Returns the bar of a partition, with the delete retention point where it has one."""
    amounts = part_bytes(detail)
    if not any(amounts):
        return Text(_glyph(EMPTY, ascii_only=ascii_only) * width, style=EMPTY.style)
    text = Text()
    for part, count in zip(PARTS, cells(amounts, width), strict=True):
        text.append(_glyph(part, ascii_only=ascii_only) * count, style=part.style)
    below = detail["delete_retention_bytes"]
    if below is None:
        return text
    at = min(width - 1, width * below // detail["size_bytes"])
    point = Text(_glyph(POINT, ascii_only=ascii_only), style=POINT.style)
    return text[:at] + point + text[at + 1 :]


def legend(*, ascii_only: bool = False) -> Text:
    """Returns what the glyphs mean, on two lines."""
    text = Text()
    for i, part in enumerate((*PARTS, POINT)):
        if i:
            text.append("\n" if i in (2, 4) else "   ")
        text.append(_glyph(part, ascii_only=ascii_only) * (1 if part is POINT else 2), part.style)
        text.append(f" {part.name}", style="bold")
        text.append(f" {part.meaning}")
    return text


def _glyph(part: Part, *, ascii_only: bool) -> str:
    return part.ascii_glyph if ascii_only else part.glyph
