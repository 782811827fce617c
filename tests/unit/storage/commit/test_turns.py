"""Who commits beside others takes turns with them (COMMIT.md §2), in a world whose time is counted:
each request and each sleep takes its while, and exactly one writer runs at a time.
"""

import heapq
import statistics
import threading
from collections import deque

import pytest

from clog.storage import Log
from clog.storage.commit.committer import RIVAL_MS, WINDOW_MS_MAX, Turns
from clog.storage.env import SeededIds
from clog.storage.format.commits import Edit, EditRecord
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
                world.sleep(4, served=True)  # the object of an append
                log.handle.commit(lambda _tip, _ms: Edit(), operation="append")
                made[name] += 1

        return write

    world.run(*map(writer, range(count)))
    discard(inner)
    return sorted(made), sum(store.creates for store in stores)


@pytest.mark.parametrize(
    ("count", "seconds"), [(2, 4), pytest.param(32, 15, marks=pytest.mark.nightly)]
)
def test_everybody_gets_a_share(count, seconds):
    """The slowest makes at least a third of the commits of the median, and the throughput of many
    is not far below that of few.
    """
    made, creates = shares(count, end_ms=1000 * seconds)
    assert made[0] >= statistics.median(made) / 3
    assert sum(made) >= 40 * seconds  # one alone: 100
    assert creates <= 4 * sum(made)


def record(version, mark, time_ms):
    return EditRecord(version, mark * 8 + "0" * 24, time_ms, "append", {})


class Sleeps(list):
    """A clock that records sleeps; a request takes 10 ms."""

    def __init__(self):
        super().__init__()
        self.now = 0

    def monotonic_ms(self):
        self.now += 10
        return self.now

    def sleep_ms(self, ms):
        self.append(ms)


class Ones(SeededIds):
    """Draws the largest number each time."""

    def uniform(self):
        return 0.999999


def turns_after(records, *tries):
    """A handle that tried this often, and saw these commits."""
    clock = Sleeps()
    turns = Turns("f" * 32, clock=clock, ids=Ones(1))
    for won in tries:
        turns.begin_try()
        turns.end_try(won=won)
    if records:
        turns.saw(records)
    return clock, turns


def test_who_is_alone_does_not_wait():
    """One's own commits, and those of long ago, are not rivals; nor is a writer that never wins a
    race.
    """
    old = [record(v, "a", 5 + v) for v in range(9)]
    clock, turns = turns_after(old, True, True)
    assert not turns.yield_turn()
    clock, turns = turns_after(old, False, True)
    mine = EditRecord(9, turns.new_id(), 6 + RIVAL_MS + 9, "append", {})
    turns.saw([*old, mine])
    assert not turns.yield_turn()
    clock, turns = turns_after(old, False, True)
    clock.now += RIVAL_MS
    assert not turns.yield_turn()
    assert clock == []


def test_the_window_grows_with_rivals_and_not_with_losses():
    """There is room for one try of each, up to a bound; a writer that has lost more often waits
    less.
    """
    two = [record(1, "a", 5), record(2, "b", 6), record(3, "a", 7)]
    clock, turns = turns_after(two, False)
    for losses in range(1, 5):
        turns.wait_after_loss(losses)
    assert clock == [19, 9, 6, 4]  # two tries of 10 ms
    assert not turns.yield_turn()  # it never won
    clock, turns = turns_after([record(v, f"{v:x}", v) for v in range(1, 7)], False, True)
    assert turns.yield_turn()
    assert clock == [49]  # of 60, 10 have passed
    many = [EditRecord(v, f"{v:08x}" + "0" * 24, v, "append", {}) for v in range(999)]
    clock, turns = turns_after(many, False)
    turns.wait_after_loss(1)
    assert clock == [WINDOW_MS_MAX - 1]


def test_ids_of_a_handle_begin_alike():
    """FORMAT.md §3.1: and no two are the same."""
    turns = Turns("f" * 32, clock=Sleeps(), ids=SeededIds(1))
    ids = {turns.new_id() for _ in range(9)}
    assert len(ids) == 9
    assert len({i[:8] for i in ids}) == 1
    assert all(len(i) == 32 for i in ids)
