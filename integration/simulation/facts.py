"""What an oracle notes: what actors mean to append, and what readers see."""

from dataclasses import dataclass, field


@dataclass(eq=False)
class Intent:
    """What an actor means to append once, however often it tries.

    Attributes:
        objects: the rows of each object that it put, by path and partition.
        commits: (version, offsets by partition) of each time that it happened.
        strays: the versions that it created where nothing was left of the log.
        given: by partition the offsets that its records come with, where they do (`mirrors`).
        deal: of records that are undecided for a time, the transaction (`deals`).
        place: the handle that appends it, and how many it appended before.
        is_denied: its actor was told that it did not happen.
    """

    name: str
    objects: dict[str, dict[int, list[tuple]]] = field(default_factory=dict)
    commits: list[tuple[int, dict[int, tuple[int, int]]]] = field(default_factory=list)
    strays: list[int] = field(default_factory=list)
    given: dict[int, list[int]] = field(default_factory=dict)
    deal: object = None
    place: tuple[object, int] | None = None
    is_denied: bool = False


@dataclass(frozen=True)
class Seen:
    """What readers see at one version: by partition (offset, delete horizon), and bounds. Undecided
    rows are among them, at and above ``stable``. ``pairs``: of the orders of tombstones that went.
    """

    rows: tuple[tuple[tuple[int, int], ...], ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    stable: tuple[int, ...]
    removed: tuple[tuple[int, int, int], ...]
    pairs: tuple[tuple[int, int, int], ...] = ()
