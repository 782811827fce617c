"""Virtual time: clog's own code in threads of which one runs at a time, on a store of which each
request takes so long by a clock that jumps from event to event. What code itself takes counts for
nothing; a minute of two hundred writers is over when its requests are made.

An actor is a thread that gives the baton away where it sleeps or waits for a request; whose moment
comes next gets it. Equal seeds make equal runs. A request comes to effect half-way: the actor
learns of it as long after that as it took to get there.
"""

import builtins
import errno
import heapq
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from clog.storage.store.contract import ObjectExistsError, StoredObject, coalesce, not_found
from clog_testing.delaying import result_of

TIME_MS = 1_790_000_000_000
PAGE_NAMES = 1000
"""Names that one LIST request shows, as S3's."""


class _Baton:
    """What an actor waits for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()


@dataclass(slots=True)
class Connections:
    """How many requests of one process may still go out, and who waits for another to end."""

    free: int = 128
    waiting: deque[_Baton] = field(default_factory=deque)


class World:
    """Time, and who waits for which moment. ``failure``: what the first actor that failed raised.

    A clock (`clog.storage.env.Clock`), too: all actors have the same one.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.failure: BaseException | None = None
        self._events: list[tuple[float, int, _Baton | Callable[[], None]]] = []
        self._numbers = count()
        self._threads: list[threading.Thread] = []
        self._runs = False
        self._over = threading.Lock()
        self._local = threading.local()

    def add(self, body: Callable[[], None], at_ms: float = 0) -> None:
        """An actor, which begins at that moment."""
        baton = _Baton()

        def run() -> None:
            baton.lock.acquire()
            self._local.baton = baton
            try:
                body()
            except BaseException as e:  # noqa: BLE001 - the run ends with it
                self.failure = self.failure or e
            self._pass_on(None)

        thread = threading.Thread(target=run, daemon=True)
        self.at(at_ms, baton)
        if self._runs:
            thread.start()
        else:
            self._threads.append(thread)

    def begin(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """Begins a call in an actor of its own; what is returned waits for its result."""
        done: list[Callable[[], Any]] = []
        waiting: list[_Baton] = []

        def body() -> None:
            done.append(result_of(call))
            for baton in waiting:
                self.at(self.now, baton)

        def wait() -> Any:
            if not done:
                waiting.append(self._local.baton)
                self._pass_on(self._local.baton)
            return done[0]()

        self.add(body)
        return wait

    def run(self) -> None:
        """Runs until every actor has ended, or one failed; raises what it raised."""
        self._over.acquire()
        stack = threading.stack_size(1 << 20)
        self._runs = True
        for thread in self._threads:
            thread.start()
        self._pass_on(None)
        self._over.acquire()
        threading.stack_size(stack)
        if self.failure is not None:
            raise self.failure

    def at(self, moment: float, what: _Baton | Callable[[], None]) -> None:
        """What happens then: somebody gets the baton, or something comes to effect."""
        heapq.heappush(self._events, (max(moment, self.now), next(self._numbers), what))

    def wait(self, ms: float) -> None:
        """Waits as the actor that runs; who builds a world waits for nothing."""
        baton = getattr(self._local, "baton", None)
        if baton is not None:
            self.at(self.now + ms, baton)
            self._pass_on(baton)

    def take(self, connections: Connections) -> None:
        """Takes one, as soon as one is free."""
        if connections.free:
            connections.free -= 1
        else:
            connections.waiting.append(self._local.baton)
            self._pass_on(self._local.baton)

    def give(self, connections: Connections) -> None:
        """Gives one back, to whoever waits for it."""
        if connections.waiting:
            self.at(self.now, connections.waiting.popleft())
        else:
            connections.free += 1

    @property
    def is_acting(self) -> bool:
        """Whether an actor asks."""
        return hasattr(self._local, "baton")

    def _pass_on(self, mine: _Baton | None) -> None:
        while self._events and self.failure is None:
            self.now, _, what = heapq.heappop(self._events)
            if what is mine:
                return
            if not isinstance(what, _Baton):
                what()
                continue
            what.lock.release()
            if mine is not None:
                mine.lock.acquire()
            return
        self._over.release()
        if mine is not None:
            mine.lock.acquire()

    def now_ms(self) -> int:
        return TIME_MS + int(self.now)

    def now_us(self) -> int:
        return TIME_MS * 1000 + int(self.now * 1000)

    def monotonic_ms(self) -> int:
        return int(self.now)

    def sleep_ms(self, ms: int) -> None:
        self.wait(ms)


class Disk:
    """What is stored: bytes and time of writing by path, and the paths of each folder."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self._folders: dict[str, dict[str, None]] = {}

    def write(self, path: str, data: bytes, now_ms: int) -> None:
        self.objects[path] = (data, now_ms)
        self._folders.setdefault(path.rpartition("/")[0], {})[path] = None

    def delete(self, path: str) -> None:
        if self.objects.pop(path, None) is not None:
            del self._folders[path.rpartition("/")[0]][path]

    @property
    def commits(self) -> int:
        """How many there are."""
        return sum(len(paths) for name, paths in self._folders.items() if name.endswith("/commits"))

    def list(self, prefix: str) -> list[StoredObject]:
        folder = prefix.rpartition("/")[0]
        places = [paths for name, paths in self._folders.items() if name.startswith(folder)]
        found = sorted(path for paths in places for path in paths if path.startswith(prefix))
        return [StoredObject(p, len(self.objects[p][0]), self.objects[p][1]) for p in found]


def usual_ms(dice: random.Random) -> float:
    """How long a request takes: 80 to 130 ms, one in a hundred three to six times as long."""
    took = dice.uniform(80, 130)
    return took * dice.uniform(3, 6) if dice.random() < 0.01 else took


class FarStore:
    """A disk as one process reaches it. ``counts``: its requests by kind; a LIST is one for each
    thousand names.
    """

    create_is_proven = True

    def __init__(
        self,
        world: World,
        disk: Disk,
        *,
        seed: int,
        takes_ms: Callable[[random.Random], float] = usual_ms,
        counts: Counter[str] | None = None,
    ) -> None:
        self.url = "virtual://log"
        self.counts = Counter() if counts is None else counts
        self._world, self._disk = world, disk
        self._dice, self._takes_ms = random.Random(seed), takes_ms
        self._connections = Connections()

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        return self._request("GET", lambda: self._read(path, start, end))

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        requests = len(coalesce(ranges))
        if not requests:
            return [b"" for _ in ranges]
        read = lambda: [self._read(path, *bounds) for bounds in ranges]  # noqa: E731
        return self._request("GET", read, requests=requests)

    def begin(self, call: Callable[[], Any]) -> Callable[[], Any]:
        return self._world.begin(call) if self._world.is_acting else call

    def put(self, path: str, data: bytes | memoryview) -> None:
        self._request("PUT", lambda: self._disk.write(path, bytes(data), self._world.now_ms()))

    def create(self, path: str, data: bytes) -> None:
        def do() -> None:
            if path in self._disk.objects:
                raise ObjectExistsError(errno.EEXIST, f"exists in {self.url}", path)
            self._disk.write(path, bytes(data), self._world.now_ms())

        self._request("PUT", do)

    def delete(self, path: str) -> None:
        self._request("DELETE", lambda: self._disk.delete(path))

    def list(self, prefix: str) -> Iterator[StoredObject]:
        found = self._request("LIST", lambda: self._disk.list(prefix))
        for _ in range(PAGE_NAMES, len(found), PAGE_NAMES):
            self._request("LIST", lambda: None)
        return iter(found)

    def list_temporary(self, _prefix: str) -> Iterator[StoredObject]:
        return iter(())

    def _read(self, path: str, start: int | None, end: int | None) -> bytes:
        found = self._disk.objects.get(path)
        if found is None:
            raise not_found(path, self.url)
        return found[0][start:end]

    def _request(self, kind: str, do: Callable[[], Any], *, requests: int = 1) -> Any:
        self.counts[kind] += requests
        took = max(self._takes_ms(self._dice) for _ in range(requests))
        if not self._world.is_acting:
            return do()
        done: list[Callable[[], Any]] = []
        self._world.take(self._connections)
        self._world.at(self._world.now + took / 2, lambda: done.append(result_of(do)))
        self._world.wait(took)
        self._world.give(self._connections)
        return done[0]()


def shares(counts: Mapping[str, int], appends: int) -> dict[str, float]:
    """Requests of each kind for each append."""
    return {kind: number / max(1, appends) for kind, number in sorted(counts.items())}
