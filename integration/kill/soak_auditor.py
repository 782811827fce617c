"""A named reader of a soak's log that reads everything, and asks the cleaner to wait for it.

    python soak_auditor.py WORLD

It fails if offsets do not rise, or if it goes back behind what it told the log.
"""

import signal
import sys
import time
from functools import partial

import switch

switch.arm()

from soaked import READER, SOAK, opened  # noqa: E402
from world import World, at_last  # noqa: E402

from clog.storage.errors import (  # noqa: E402
    NotFoundError,
    OffsetOutOfRangeError,
    StoreUnavailableError,
)

HOLD_MS = 60_000
INTERVAL_MS = 1000


def main() -> None:
    world = World.load(sys.argv[1])
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    log = at_last(partial(opened, world, SOAK))
    named = partial(log.reader, READER, interval_ms=INTERVAL_MS, hold_ms=HOLD_MS)
    with at_last(named) as reader:
        position = dict(reader.position)
        while not stopping:
            for p, low in at_last(log.start_offsets).items():
                start = max(low, position.get(p, 0))
                try:
                    for batch in log.read(partition=p, start=start):
                        offsets = batch.column("offset").to_pylist()
                        assert offsets == sorted({*offsets}), f"offsets of {p} do not rise"
                        assert offsets[0] >= start, f"offset {offsets[0]} of {p} was read before"
                        start = offsets[-1] + 1
                except (NotFoundError, OffsetOutOfRangeError, StoreUnavailableError) as e:
                    print(f"again: {e}", file=sys.stderr)  # deleted, or swept, in the middle
                position[p] = start
            at_last(partial(reader.commit, position))
            time.sleep(0.3)


if __name__ == "__main__":
    main()
