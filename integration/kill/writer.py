"""A producer: appends its batches to both logs until it is told to stop, or killed.

    python writer.py WORLD NAME PAUSE_MS

It goes on after the last acknowledged batch, so the one in doubt is sent again.
"""

import signal
import sys
import time

import switch

switch.arm()

from records import batch_of  # noqa: E402
from world import LOGS, World  # noqa: E402

from clog.storage.errors import (  # noqa: E402
    CommitConflictError,
    CommitStateUnknownError,
    StoreUnavailableError,
)


def main() -> None:
    world, name, pause_ms = World.load(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    logs = {log: world.open(log) for log in LOGS}
    done = {log: len({a["sequence"] for a in world.acknowledged(name, log)}) for log in LOGS}
    while not stopping:
        for log in sorted(LOGS, key=lambda log: done[log]):
            try:
                result = logs[log].append(batch_of(name, done[log]), producer=(name, done[log]))
            except (CommitConflictError, CommitStateUnknownError, StoreUnavailableError) as e:
                print(f"again: {e}", file=sys.stderr)
                logs[log] = world.open(log)
                continue
            offsets = {str(p): list(bounds) for p, bounds in result.offsets.items()}
            line = {"sequence": done[log], "offsets": offsets, "duplicate": result.duplicate}
            world.acknowledge(name, log, line)
            done[log] += 1
        time.sleep(pause_ms / 1000)


if __name__ == "__main__":
    main()
