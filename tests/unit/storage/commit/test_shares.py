"""Who appends beside others gets a share (COMMIT.md §14), in a world whose time is counted: each
request and each sleep takes its while, and exactly one writer runs at a time.
"""

import heapq
import statistics
import threading
from collections import deque

import pytest

from clog.storage import Log
from clog.storage.env import SeededIds
from clog.storage.store.contract import WrappingStore
from clog_testing.crash import discard, memory_store


class OverError(BaseException):
    """The time is over."""


class World:
    """Writers in threads of their own; the baton goes to the one whose time comes first.

    ``servers`` requests are served at once, others wait: two cores with a disk.
    """

    def __init__(self, *, end_ms, servers):
        self.now_ms, self.end_ms, self.free = 1_000_000, 1_000_000 + end_ms, servers
        self.events, self.queue, self.batons, self.threads = [], deque(), {}, []
        self.local, self.order = threading.local(), iter(range(10**9))
        self.done = threading.Semaphore(0)

    def run(self, *writers):
        for name, write in enumerate(writers):
            self.batons[name] = threading.Semaphore(0)
            self.threads.append(threading.Thread(target=self._live, args=(name, write)))
            heapq.heappush(self.events, (self.now_ms, next(self.order), name, False))
        for thread in self.threads:
            thread.start()
        self._pass_on()
        for thread in self.threads:
            thread.join()

    def _live(self, name, write):
        self.local.name = name
        self.batons[name].acquire()
        try:
            if self.now_ms < self.end_ms:
                write()
        except OverError:
            pass
        self._pass_on()

    def sleep(self, ms, *, served=False):
        """Lets time pass for the running writer; a request may have to wait for a server."""
        name = self.local.name
        if served and not self.free:
            self.queue.append((name, ms))
        else:
            self.free -= served
            heapq.heappush(self.events, (self.now_ms + ms, next(self.order), name, served))
        self._pass_on()
        self.batons[name].acquire()
        if self.now_ms >= self.end_ms:
            raise OverError

    def _pass_on(self):
        if not self.events:
            return
        self.now_ms, _, name, served = heapq.heappop(self.events)
        if served and self.queue:
            waiting, ms = self.queue.popleft()
            heapq.heappush(self.events, (self.now_ms + ms, next(self.order), waiting, True))
        else:
            self.free += served
        self.batons[name].release()


class WorldClock:
    def __init__(self, world):
        self.world = world

    def now_ms(self):
        return self.world.now_ms

    monotonic_ms = now_ms

    def now_us(self):
        return self.world.now_ms * 1000

    def sleep_ms(self, ms):
        if ms:
            self.world.sleep(ms)


class SlowStore(WrappingStore):
    """A create takes 4 ms of a server, a read 1."""

    def __init__(self, inner, world):
        super().__init__(inner)
        self.world, self.creates = world, 0

    def get(self, path, start=None, end=None):
        self.world.sleep(1, served=True)
        return self.inner.get(path, start, end)

    def put(self, path, data):
        self.world.sleep(4, served=True)
        self.inner.put(path, data)

    def create(self, path, data):
        self.creates += 1
        self.world.sleep(4, served=True)
        self.inner.create(path, data)


def shares(count, *, end_ms):
    """The number of commits by each of this many writers, and of creates in all."""
    world, inner = World(end_ms=end_ms, servers=2), memory_store()
    Log.create(inner, partitions=1, ids=SeededIds(1))
    made, stores = [0] * count, []

    def writer(name):
        def write():
            store = SlowStore(inner, world)
            stores.append(store)
            log = Log.open(store, clock=WorldClock(world), ids=SeededIds(name + 2))
            while True:
                log.append([{"key": "k", "value": str(name)}])
                made[name] += 1

        return write

    world.run(*map(writer, range(count)))
    discard(inner)
    return sorted(made), sum(store.creates for store in stores)


@pytest.mark.parametrize(
    ("count", "seconds"), [(2, 2), (16, 2), pytest.param(32, 15, marks=pytest.mark.nightly)]
)
def test_everybody_gets_a_share(count, seconds):
    """The slowest makes at least a third of the appends of the median, and many make nearly as many
    as one alone; also where all begin at once, and one of them never loses a race (F2).
    """
    made, creates = shares(count, end_ms=1000 * seconds)
    assert made[0] >= statistics.median(made) / 3
    assert sum(made) >= 65 * seconds  # one alone: 100
    assert creates <= 4 * sum(made)
