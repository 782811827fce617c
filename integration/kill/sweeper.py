"""The sweep, over and over, with ages of seconds instead of a day.

    python sweeper.py WORLD WHAT AGE_MS [LOG …]

WHAT is ``released`` (COMMIT.md §5, W4 to W6), ``orphans`` (W1 to W3) or ``both``.
"""

import signal
import sys
import time
from functools import partial

import switch

switch.arm()

from world import IN_DOUBT, LOGS, World, at_last  # noqa: E402

from clog.cleaner.duties import Work  # noqa: E402
from clog.cleaner.duties.sweep import sweep_orphans, sweep_released  # noqa: E402
from clog.storage.commit.handle import Handle  # noqa: E402


def main() -> None:
    world, what, age_ms = World.load(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    opened = [at_last(partial(world.open, log)) for log in sys.argv[4:] or LOGS]
    handles = [log.handle for log in opened]
    while not stopping:
        for handle in handles:
            try:
                sweep(handle, what, age_ms)
            except IN_DOUBT as e:
                print(f"again: {e}", file=sys.stderr)
        time.sleep(0.2)


def sweep(handle: Handle, what: str, age_ms: int) -> None:
    handle.refresh()
    now_ms = handle.clock.now_ms()
    if what in ("released", "both"):
        sweep_released(Work(handle, now_ms))
    if what in ("orphans", "both"):
        sweep_orphans(Work(handle, now_ms), age_ms=age_ms)


if __name__ == "__main__":
    main()
