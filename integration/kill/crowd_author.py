"""An author of a crowd, forked from a process that has loaded all modules and done nothing else.

It appends, waits for `pause_ms` on average, and appends again, until it is told to stop, or killed;
what it is about to do, and what it was told, stands in its file of acknowledgements.
"""

import multiprocessing
import os
import random
import signal
import sys
import time
from pathlib import Path

from crowded import (
    CROWD,
    DEFERRED,
    NUMBERED,
    PLAIN,
    ROWS,
    TIMEOUT_MS,
    kind_of,
    opened,
    records_of,
    told,
)
from processes import SAYS_WHO
from switch import follow_clock, interruptible, take_interrupts
from world import World

from clog.storage import Log
from clog.storage.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    StoreUnavailableError,
    TransactionFencedError,
    TransactionTimeoutError,
)

IN_DOUBT = (
    *(CommitStateUnknownError, StoreUnavailableError),
    *(TransactionFencedError, TransactionTimeoutError),
)
Offsets = dict[int, tuple[int, int]]


def write(world: World, author: str, pause_ms: int, clock: Path) -> None:
    """Appends until SIGTERM."""
    stopping: list[int] = []
    os.environ[SAYS_WHO] = "crowd_author"
    take_interrupts()
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    follow_clock(clock)
    out = os.open(Path(world.work, f"{author}.out"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(out, stream)
    known, kind, log = told(world, author), kind_of(author), None
    n = 1 + max(known.began, default=-1)
    if kind != PLAIN and known.in_doubt:
        n = max(known.in_doubt)
    is_again, run = n in known.began, multiprocessing.parent_process()
    while (is_again or not stopping) and (run is None or run.is_alive()):
        note(world, author, "began", n)
        try:
            with interruptible():
                log = log or opened(world)
                offsets = append(log, author, kind, n)
            note(world, author, "done", n, offsets)
            is_again = False
        except CommitConflictError as e:
            is_again = kind != PLAIN
            note(world, author, "again" if is_again else "refused", n, why=str(e))
        except IN_DOUBT as e:
            is_again, log = kind != PLAIN, None
            note(world, author, "in doubt", n, why=f"{type(e).__name__}: {e}")
        except KeyboardInterrupt:  # In doubt, and the handle lives on.
            is_again = kind != PLAIN
            note(world, author, "in doubt", n, why="interrupted")
        n += not is_again
        if not stopping:
            time.sleep(random.expovariate(1000 / pause_ms))
    sys.stdout.flush()
    os._exit(0)  # What it shares with who forked it is not its own to end.


def append(log: Log, author: str, kind: str, n: int) -> Offsets:
    """Appends as its kind does; returns where, as far as that is told."""
    rows = records_of(author, n)
    if kind == DEFERRED:
        work = log.transaction(author, TIMEOUT_MS, sequence=n)
        if not work.is_open:
            return {}  # It was committed, and its holder died before it knew.
        for part in (rows[: ROWS // 2], rows[ROWS // 2 :]):
            work.append(part)
        return dict(work.commit().offsets)
    return dict(log.append(rows, producer=(author, n) if kind == NUMBERED else None).offsets)


def note(
    world: World, author: str, what: str, n: int, offsets: Offsets | None = None, why: str = ""
) -> None:
    line: dict[str, object] = {"what": what, "n": n, "at": round(time.time(), 3)}
    if offsets is not None:
        line["offsets"] = {str(p): place for p, place in offsets.items()}
    world.acknowledge(author, CROWD, {**line, **({"why": why} if why else {})})
