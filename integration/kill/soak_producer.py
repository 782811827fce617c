"""A producer of a soak, until it is told to stop, or killed; then a whole lap more.

    python soak_producer.py WORLD PRODUCER PAUSE_MS

PRODUCER says how: ``plain`` by numbered appends, ``visible`` and ``deferred`` by transactions of
two appends each, of which some are aborted. It goes on after what it was told of last; what is in
doubt is sent again.
"""

import signal
import sys
import time

import switch

switch.arm()

from soaked import (  # noqa: E402
    ABORTED,
    KEYS,
    PART,
    PLAIN,
    SOAK,
    TIMEOUT_MS,
    VISIBLE,
    opened,
    records_of,
    told,
)
from world import World  # noqa: E402

from clog.storage import Log  # noqa: E402
from clog.storage.errors import (  # noqa: E402
    CommitConflictError,
    CommitStateUnknownError,
    StoreUnavailableError,
    TransactionTimeoutError,
)

ABORTS_EVERY = 7


def main() -> None:
    world, producer, pause_ms = World.load(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    stopping: list[int] = []
    switch.take_interrupts()
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    log, end = None, told(world, producer)
    send = plain if producer == PLAIN else transaction
    until = sys.maxsize
    while end < until:
        if stopping and until == sys.maxsize:
            until = end + KEYS + 2 * PART
        try:
            with switch.interruptible():
                log = log or opened(world, SOAK)
                after = send(log, producer, end)
        except KeyboardInterrupt:  # In doubt, and the handle lives on.
            continue
        except (
            CommitConflictError,
            CommitStateUnknownError,
            StoreUnavailableError,
            TransactionTimeoutError,
        ) as e:
            print(f"again: {e}", file=sys.stderr)
            log = None
            continue
        end = after
        world.acknowledge(producer, SOAK, {"end": end})
        if not stopping:
            time.sleep(pause_ms / 1000)


def plain(log: Log, producer: str, start: int) -> int:
    log.append(records_of(producer, start, PART), producer=(producer, start // PART))
    return start + PART


def transaction(log: Log, producer: str, start: int) -> int:
    number = start // (2 * PART)
    if number % ABORTS_EVERY == 0:
        aborted = [
            {**record, "value": {"producer": producer, "n": -1, "text": ABORTED}}
            for record in records_of(producer, start, PART)
        ]
        with_nothing = log.transaction(producer, TIMEOUT_MS, visible=producer == VISIBLE)
        with_nothing.append(aborted)
        with_nothing.abort()
    work = log.transaction(producer, TIMEOUT_MS, visible=producer == VISIBLE, sequence=number)
    if work.is_open:  # Else it was committed, and its holder died before it knew.
        for part in range(2):
            work.append(records_of(producer, start + part * PART, PART))
        work.commit()
    return start + 2 * PART


if __name__ == "__main__":
    main()
