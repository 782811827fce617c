"""A host of a soak's state: a store whose state is the table of the log that it reads.

    python soak_host.py WORLD FOLDER

It works until it is killed, or told to stop; then it takes in what is left.
"""

import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import switch

switch.arm()

from soaked import SOAK, STATE, opened  # noqa: E402
from world import World, at_last  # noqa: E402

from clog.storage import Log, StateStore  # noqa: E402
from clog.storage.errors import (  # noqa: E402
    CommitConflictError,
    CommitStateUnknownError,
    InvalidInputError,
    OffsetOutOfRangeError,
    StoreUnavailableError,
)

ID = "folding"
HOLD_MS = 60_000
AGAIN = (
    *(CommitConflictError, StoreUnavailableError, KeyboardInterrupt),
    OffsetOutOfRangeError,  # Records were deleted between the question where to start and the read.
)


def main() -> None:
    world, folder = World.load(sys.argv[1]), Path(sys.argv[2])
    stopping: list[int] = []
    switch.take_interrupts()
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    source = at_last(partial(opened, world, SOAK))
    with at_last(partial(store_of, world, folder)) as store:
        before: Callable[[], object] = list
        while True:
            try:
                with switch.interruptible():
                    before()
                    before = list
                    has_worked = work(store, source)
                if not has_worked:
                    if stopping:
                        return
                    time.sleep(0.1)
            except CommitStateUnknownError:
                before = store.commit
            except AGAIN as e:
                print(f"again: {e}", file=sys.stderr)
                before = partial(undo, store)


def undo(store: StateStore) -> None:
    """Discards what was put, unless it is committed: an interrupted commit may have happened."""
    with suppress(InvalidInputError):
        store.rollback()


def store_of(world: World, folder: Path) -> StateStore:
    return StateStore(
        world.url_of(STATE), folder, ID, world.storage_options, reader=ID, reader_hold_ms=HOLD_MS
    )


def work(store: StateStore, source: Log) -> bool:
    """Takes in what there is; False: nothing."""
    lowest = source.start_offsets()
    try:
        start = store.next_offsets(source)
    except OffsetOutOfRangeError:  # Somebody deleted what was not read.
        start = store.positions.get(source.id, {})
    start = {p: max(low, start.get(p, 0)) for p, low in lowest.items()}
    end = {p: max(offset, start[p]) for p, offset in source.stable_offsets().items()}
    if start == end:
        return False
    for p in start:
        for batch in source.read(partition=p, start=start[p], end=end[p]):
            for row in batch.to_pylist():
                if row["value"] is None:
                    store.delete(row["key"])
                else:
                    store.put(row["key"], row["value"])
    store.commit(positions={source: end}, missed_deletes=True)
    return True


if __name__ == "__main__":
    main()
