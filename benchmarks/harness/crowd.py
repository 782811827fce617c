"""Writers of one log in virtual time: what their appends take, and what they ask of the store."""

import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

from clog.cleaner import Cleaner
from clog.storage import Log
from clog.storage.commit import combining, committer, tip
from clog.storage.env import SeededIds
from clog.storage.format.commits import Commit, read_commit
from clog.storage.format.documents import BODY_BYTES_MAX, commit_path
from clog.storage.store.contract import Store
from harness.virtual import Disk, FarStore, World, usual_ms

WARM_MS = 10_000.0
"""Before anything is counted: all begin at once, and race until they have met."""
ROWS = 10
SLOW_MS = 1000.0


@dataclass(frozen=True, slots=True)
class Crowd:
    """Who writes, and how: ``producers`` name themselves; ``combine``: those that meet share a
    commit;
    ``busy``: one more takes ``slow_ms`` for each request, and a cleaner works beside them, which
    begins with a pass, half-way to what is counted from ``warm_ms`` on.
    """

    writers: int
    seconds: int
    partitions: int = 1
    producers: bool = False
    combine: bool = True
    busy: bool = False
    seed: int = 0
    warm_ms: float = WARM_MS
    cleaner_ms: Callable[[random.Random], float] = usual_ms
    slow_ms: float = SLOW_MS
    writers_ms: Callable[[random.Random], float] = usual_ms
    pause_ms: int = 1000


@dataclass(slots=True)
class Found:
    """What appends took, in ms; ``slow``: those of the slow author; requests by kind; what
    each round of the cleaner took; of each of its commits the operation, the time from when it
    was to be made, and how many versions others made meanwhile; the log's versions and objects at
    the end.
    """

    seconds: int
    took: list[float] = field(default_factory=list)
    slow: list[float] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)
    rounds: list[float] = field(default_factory=list)
    commits: list[tuple[str, float, int]] = field(default_factory=list)
    versions: int = 0
    objects: int = 0

    @property
    def rate(self) -> float:
        return len(self.took) / self.seconds

    def quantile(self, q: float) -> float:
        return sorted(self.took)[min(len(self.took) - 1, int(q * len(self.took)))]

    @property
    def unfair(self) -> float:
        """The longest append, in medians."""
        return max(self.took) / statistics.median(self.took)

    def each(self, *kinds: str) -> float:
        """Requests of these kinds for an append."""
        return sum(self.requests[kind] for kind in kinds) / len(self.took)


def measure(crowd: Crowd) -> Found:
    """Runs a crowd for its time, and until those have ended that began in it."""
    if crowd.combine:
        return _measured(crowd)
    with patch.object(combining.Combiner, "_begun", lambda *_, **__: None):  # Nobody proposes.
        return _measured(crowd)


def _measured(crowd: Crowd) -> Found:
    world, disk, found = World(), Disk(), Found(crowd.seconds)
    end = crowd.warm_ms + crowd.seconds * 1000
    ids = partial(SeededIds, crowd.seed)
    log = Log.create(FarStore(world, disk, seed=0), crowd.partitions, clock=world, ids=ids())
    if crowd.busy:
        leave_dirty(log)

    def counting(name: int, takes_ms: Callable[[random.Random], float], counts: Counter) -> Log:
        store = FarStore(world, disk, seed=crowd.seed + name, takes_ms=takes_ms, counts=counts)
        return Log.open(store, clock=world, ids=SeededIds(crowd.seed + 1000 + name))

    def write(name: int, took: list[float], takes_ms: Callable[[random.Random], float]) -> None:
        dice, number = random.Random(crowd.seed + name), 0
        log = counting(name, takes_ms, requests)
        while True:
            world.wait(dice.expovariate(1 / crowd.pause_ms))
            began = world.now
            if began >= end:
                return
            rows = [{"key": f"{name}-{number}-{k}", "value": "v" * 90} for k in range(ROWS)]
            place = (name + number) % crowd.partitions
            producer = (f"writer-{name}", number) if crowd.producers else None
            log.append(rows, partition=place, producer=producer)
            number += 1
            if began >= crowd.warm_ms:
                took.append(world.now - began)

    def clean() -> None:
        log = counting(crowd.writers + 1, crowd.cleaner_ms, Counter())
        log.handle.commit = noted(log.handle.commit, world, disk, found)
        while world.now < end:
            world.wait(crowd.warm_ms / 2)
            began = world.now
            Cleaner(log).run_once(force=True)
            found.rounds.append(world.now - began)

    requests: Counter[str] = Counter()
    first = random.Random(crowd.seed)
    for name in range(crowd.writers):
        world.add(partial(write, name, found.took, crowd.writers_ms), at_ms=first.uniform(0, 2000))
    if crowd.busy:
        world.add(partial(write, crowd.writers, found.slow, lambda _: crowd.slow_ms))
        world.add(clean)
    world.at(crowd.warm_ms, requests.clear)
    world.at(end, lambda: found.requests.update(requests))
    with parsed_once():
        world.run()
    newest = Log.open(FarStore(world, disk, seed=0), clock=world, ids=ids())
    found.versions = newest.version
    found.objects = len({chunk.object.path for _, chunk in newest.handle.manifest().chunks()})
    return found


def leave_dirty(log: Log) -> None:
    """Leaves something to a pass."""
    for number in range(2):
        log.append([{"key": f"old-{k}", "value": str(number)} for k in range(ROWS)])
    log.roll()


def noted(commit: Callable[..., Any], world: World, disk: Disk, found: Found) -> Callable[..., Any]:
    """Returns the same, which notes what each commit took."""

    def commits(*given: Any, operation: str) -> Any:
        began, before = world.now, disk.commits
        made = commit(*given, operation=operation)
        if isinstance(made, Commit):
            found.commits.append((operation, world.now - began, made.version - before))
        return made

    return commits


@contextmanager
def parsed_once() -> Iterator[None]:
    """Has a commit parsed once, whoever reads it: it is a value, and virtual time does not count
    what code takes. Each still asks the store for it.
    """
    known: dict[str, Commit] = {}

    class Fetched:
        """A store that has one document."""

        def __init__(self, url: str, data: bytes) -> None:
            self.url, self._data = url, data

        def get(self, *_: object) -> bytes:
            return self._data

    def read(store: Store, version: int) -> Commit:
        path = commit_path(version)
        data = store.get(path, 0, BODY_BYTES_MAX["commit"])
        if path not in known:
            known[path] = read_commit(Fetched(store.url, data), version)
        return known[path]

    with (
        patch.object(tip, "read_commit", read),
        patch.object(committer, "read_commit", read),
        patch.object(combining, "read_commit", read),
    ):
        yield
