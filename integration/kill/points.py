"""The named points; numbers are those of COMMIT.md."""

from dataclasses import dataclass
from typing import Literal

from clog_testing.killing import KillPoint

COMMITS = "*/commits/*"
BLOCKS = "*/blocks/*"
SNAPSHOTS = "*/snapshots/*"
PAGES = "*/pages/*"
LATEST = "*/latest"
DATA = "*/data/*"

Program = Literal["writer", "cleaner", "sweeper", "driver"]


@dataclass(frozen=True, slots=True)
class Named:
    """A point with its name.

    Attributes:
        program: who dies.
        name: as the report shows it.
        point: where.
        spread: ``nth`` is drawn from so many, so that not each round dies at the first chance.
        committed: whether what the process was doing is in a log afterwards; None: not asked.
        sweep: what the sweeper sweeps.
    """

    program: Program
    name: str
    point: KillPoint
    spread: int = 1
    committed: bool | None = None
    sweep: str = ""


def _writer(name: str, point: KillPoint, spread: int = 1, *, committed: bool) -> Named:
    return Named("writer", name, point, spread, committed)


_AFTER_CREATE = ("create", COMMITS)
_AFTER_OBJECT = ("put", DATA)
_AFTER_DELETE = ("delete", DATA)
# Opening a log anew after lost races looks at the block, too: only the look after a create is it.
_BLOCK_CHECKED = KillPoint("after", "get", BLOCKS, since=_AFTER_CREATE, directly=True)

_WRITER = (
    _writer("C1 after the nth object", KillPoint("after", "put", DATA, nth=2), 5, committed=False),
    _writer(
        "C2 before the commit's create", KillPoint("before", "create", COMMITS), 6, committed=False
    ),
    _writer("C3 between pages and snapshot", KillPoint("after", "put", PAGES), committed=False),
    _writer(
        "C4 between snapshot and commit", KillPoint("after", "create", SNAPSHOTS), committed=False
    ),
    _writer(
        "C6 after the create, before the block check",
        KillPoint("after", "create", COMMITS),
        6,
        committed=True,
    ),
    _writer(
        "C7 after the block check",
        _BLOCK_CHECKED,
        6,
        committed=True,
    ),
    _writer("C7 before the hint", KillPoint("before", "put", LATEST), 2, committed=True),
    _writer("C7 after the hint", KillPoint("after", "put", LATEST), 2, committed=True),
)

_CLEANER = (
    Named("cleaner", "after the nth object", KillPoint("after", "put", DATA), 4),
    Named(
        "cleaner",
        "before a group's create",
        KillPoint("before", "create", COMMITS, since=_AFTER_OBJECT),
        3,
    ),
    Named(
        "cleaner",
        "after a group's create, before the block check",
        KillPoint("after", "create", COMMITS, since=_AFTER_OBJECT),
        3,
    ),
    Named("cleaner", "between groups of a pass", KillPoint("after", "place", "between groups"), 2),
    Named(
        "cleaner",
        "between snapshot and commit",
        KillPoint("after", "create", SNAPSHOTS),
    ),
)


def _sweeps(sweep: str, *points: tuple[str, KillPoint]) -> tuple[Named, ...]:
    return tuple(Named("sweeper", name, point, sweep=sweep) for name, point in points)


_SWEEPER = (
    *_sweeps(
        "orphans",
        ("before W1, the floor's commit", KillPoint("before", "create", COMMITS)),
        ("after W1", KillPoint("after", "create", COMMITS)),
        ("before W2, the listing", KillPoint("before", "list", DATA[:-1], since=_AFTER_CREATE)),
        ("after W2", KillPoint("after", "list", DATA[:-1], since=_AFTER_CREATE)),
        ("before W3, the orphans' deletion", KillPoint("before", "delete", DATA)),
        ("in W3, after the nth deletion", KillPoint("after", "delete", DATA, nth=2)),
    ),
    *_sweeps(
        "released",
        ("before W4, the oldest readable version", KillPoint("before", "create", COMMITS)),
        ("after W4", KillPoint("after", "create", COMMITS)),
        ("before W5, the deletion", KillPoint("before", "delete", DATA)),
        ("in W5, after the nth deletion", KillPoint("after", "delete", DATA, nth=2)),
        ("before W6, the forgetting", KillPoint("before", "create", COMMITS, since=_AFTER_DELETE)),
        ("after W6", KillPoint("after", "create", COMMITS, since=_AFTER_DELETE)),
    ),
)

_DRIVER = (
    Named("driver", "after the nth object", KillPoint("after", "put", DATA), 3),
    Named("driver", "before the commit's create", KillPoint("before", "create", COMMITS), 2),
    Named(
        "driver",
        "after the create, before the block check",
        KillPoint("after", "create", COMMITS),
        2,
        committed=True,
    ),
    Named(
        "driver",
        "after the block check, in the sink's commit",
        _BLOCK_CHECKED,
        2,
        committed=True,
    ),
    Named(
        "driver",
        "after the sink's commit, before Spark's commit file",
        KillPoint("after", "place", "sink committed"),
        2,
        committed=True,
    ),
)

POINTS = (*_WRITER, *_CLEANER, *_SWEEPER, *_DRIVER)
