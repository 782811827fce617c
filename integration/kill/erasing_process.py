"""A process of a log from which keys are erased, by a clock on which a day takes some minutes.

    python erasing_process.py WORLD author|eraser|cleaner

An author appends keys that nobody wrote before; an eraser has some of them erased that were
acknowledged; a cleaner does its rounds.
"""

import json
import random
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from world import IN_DOUBT, World

from clog.cleaner import Cleaner
from clog.storage import Log, ManualClock

ERASED = "erased"
AUTHOR, ERASER, CLEANER = "author", "eraser", "cleaner"
SPEED = 300
"""How much faster than others this log's clock is: a day takes 4.8 minutes."""
ROWS, SOME = 20, 3
APPEND = re.compile(rb"customer-(\d{7})")
"""How each key begins, with the number of its append."""
PAUSES_S = {AUTHOR: 1.0, ERASER: 40.0, CLEANER: 2.0}


class FastClock(ManualClock):
    """A wall clock that runs fast from some moment on, so that nobody compares it with the store's,
    and durations that are real.
    """

    def __init__(self, began_s: float) -> None:
        super().__init__()
        self._began_s = began_s

    def now_us(self) -> int:
        return int((self._began_s + SPEED * (time.time() - self._began_s)) * 1_000_000)

    def now_ms(self) -> int:
        return self.now_us() // 1000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def sleep_ms(self, ms: float) -> None:
        time.sleep(ms / 1000)


def clock_of(world: World) -> FastClock:
    """The clock of a run, which begins when somebody first asks."""
    path = Path(world.work, "began.json")
    if not path.exists():
        path.write_text(json.dumps(time.time()))
    return FastClock(json.loads(path.read_text()))


def opened(world: World) -> Log:
    return Log.open(world.url_of(ERASED), world.storage_options, clock=clock_of(world))


def records_of(n: int) -> list[dict[str, object]]:
    """Append n: each key twice, with personal data in its value."""
    keys = [f"customer-{n:07d}-{i:03d}@example.org" for i in range(ROWS)]
    return [{"key": key, "value": f"{key} lives at {at}"} for at in (1, 2) for key in keys]


def author(world: World) -> None:
    n = 1 + max((line["n"] for line in world.acknowledged(AUTHOR, ERASED)), default=-1)
    opened(world).append(records_of(n), producer=(AUTHOR, n))
    world.acknowledge(AUTHOR, ERASED, {"n": n})


def eraser(world: World) -> None:
    known = [line["n"] for line in world.acknowledged(AUTHOR, ERASED)]
    asked = {n for line in world.acknowledged(ERASER, ERASED) for n in line["appends"]}
    if left := [n for n in known if n not in asked]:
        some = random.sample(left, min(SOME, len(left)))
        world.acknowledge(ERASER, ERASED, {"appends": some})  # Whether it is done or not.
        keys = sorted({str(record["key"]) for n in some for record in records_of(n)})
        notify = bool(random.randrange(2))
        request = opened(world).erase(keys, notify=notify)
        made = {"appends": some, "id": request.id, "secret": request.secret, "notify": notify}
        world.acknowledge(ERASER, ERASED, made)


def cleaner(world: World) -> None:
    Cleaner(opened(world)).run_once()


def main() -> None:
    world, role = World.load(sys.argv[1]), sys.argv[2]
    work: Callable[[World], None] = {AUTHOR: author, ERASER: eraser, CLEANER: cleaner}[role]
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    while not stopping:
        try:
            work(world)
        except IN_DOUBT as e:
            print(f"again: {type(e).__name__}: {e}", file=sys.stderr)
        end = time.monotonic() + PAUSES_S[role]
        while not stopping and time.monotonic() < end:
            time.sleep(0.1)


if __name__ == "__main__":
    main()
