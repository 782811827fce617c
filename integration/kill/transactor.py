"""A read-process-write job over three logs, until it is told to stop, or killed.

    python transactor.py WORLD NAME PAUSE_MS TIMEOUT_MS

All processes of this program work under one transaction id: whoever begins takes it over, and who
was fenced takes it back after a while. What is to be done next is what the positions say.
"""

import random
import signal
import sys
import time

import switch

switch.arm()

import steps  # noqa: E402
from transacted import (  # noqa: E402
    HOME,
    JOB,
    LOGS,
    PARTICIPANTS,
    PLAIN,
    SOURCE,
    STEP,
    opened,
    outputs_of,
)
from world import World  # noqa: E402

from clog.storage import Log  # noqa: E402
from clog.storage.errors import (  # noqa: E402
    CommitConflictError,
    CommitStateUnknownError,
    StoreUnavailableError,
    TransactionFencedError,
    TransactionTimeoutError,
)

FENCED_S = (0.5, 3.0)
ABORTS_EVERY, PLAIN_EVERY = 7, 3


def main() -> None:
    world, name = World.load(sys.argv[1]), sys.argv[2]
    pause_ms, timeout_ms = (int(given) for given in sys.argv[3:])
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    steps.watch()
    logs: dict[str, Log] = {}
    done = 0

    def told(n: int) -> None:
        world.acknowledge(name, HOME, {"n": n})

    while not stopping:
        try:
            if not logs:
                logs = {log: opened(world, log) for log in (SOURCE, *LOGS)}
                told(next_of(logs) - 1)
            n = one(logs, timeout_ms, is_aborted=done % ABORTS_EVERY == ABORTS_EVERY - 1)
        except TransactionFencedError as e:
            print(f"fenced: {e}", file=sys.stderr)
            logs = {}
            time.sleep(random.uniform(*FENCED_S))
            continue
        except TransactionTimeoutError as e:
            print(f"timeout: {e}", file=sys.stderr)
            continue
        except (CommitConflictError, CommitStateUnknownError, StoreUnavailableError) as e:
            print(f"again: {e}", file=sys.stderr)
            logs = {}
            continue
        done += 1
        if n is not None:
            told(n)
        time.sleep(pause_ms / 1000)


def next_of(logs: dict[str, Log]) -> int:
    """Which transaction comes next, as far as the positions say."""
    return logs[HOME].positions(JOB).get(logs[SOURCE].id, {}).get(0, 0) // STEP


def one(logs: dict[str, Log], timeout_ms: int, *, is_aborted: bool) -> int | None:
    """Does the next transaction, and returns its number; None: it was aborted."""
    home, source = logs[HOME], logs[SOURCE]
    t = home.transaction(JOB, timeout_ms=timeout_ms)
    n = next_of(logs)
    start = n * STEP
    batches = source.read(partition=0, start=start, end=start + STEP)
    read = [int(row["value"]) for batch in batches for row in batch.to_pylist()]
    rows = outputs_of(n, read)
    t.append(rows)
    for log in PARTICIPANTS:
        t.append(rows, log=logs[log])
    t.positions(source, {0: start + STEP})
    if is_aborted:
        t.abort()
        return None
    if n % PLAIN_EVERY == 0:
        logs["kept"].append([{"key": PLAIN, "value": str(n)}])
    t.commit()
    return n


if __name__ == "__main__":
    main()
