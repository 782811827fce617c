"""Combining in random histories (COMMIT.md §14): who was told that it is there finds it once, where
it was told; who was told that it is not never finds it; all others once at most.

All authors are handles of one thread. Whenever one of them asks the store for anything, others may
come in between and do whole appends of their own, around which others may come in again. So any
step of one may fall between any two of another. Besides replies get lost, requests fail, authors
are interrupted, fork, sleep, and proposals vanish.
"""

import random
from collections import Counter

import pytest

from clog.storage import (
    ClogError,
    CommitStateUnknownError,
    Log,
    ManualClock,
    StoreUnavailableError,
)
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog.storage.store.contract import WrappingStore
from clog_testing.crash import discard, memory_store
from clog_testing.model import rows_in

AUTHORS = 5


class Meanwhile(WrappingStore):
    """A store beside which, at each request, something else may happen first, or afterwards."""

    def __init__(self, inner, world):
        super().__init__(inner)
        self.world = world

    def get(self, path, start=None, end=None):
        self.world.before()
        data = self.inner.get(path, start, end)
        self.world.after()
        return data

    def put(self, path, data):
        self.world.before()
        self.inner.put(path, data)
        self.world.after()

    def create(self, path, data):
        self.world.before()
        self.inner.create(path, data)
        self.world.after()

    def list(self, prefix):
        self.world.before()
        found = list(self.inner.list(prefix))
        self.world.after()
        return iter([one for one in found if self.world.draw.random() > self.world.misses])


class World:
    """Authors, their results, and what goes wrong."""

    def __init__(self, seed, store):
        self.draw = draw = random.Random(seed)  # it is to be repeatable
        self.store, self.now_ms = store, 1_000_000
        self.misses = draw.choice([0, 0, 0.3])
        self.faults = draw.choice([0, 0, 0.01])
        self.visits = draw.choice([0.02, 0.1])
        self.depth, self.left = 0, 40
        self.told, self.numbers = {}, Counter()
        ids = SeededIds(seed + 500)
        self.log = Log.create(store, draw.choice([1, 2]), clock=ManualClock(self.now_ms), ids=ids)
        self.busy, self.is_on = set(), False
        behind = Meanwhile(store, self)
        self.authors = [
            Log.open(
                behind, clock=ManualClock(self.now_ms + draw.randrange(900)), ids=SeededIds(number)
            )
            for number in range(seed * 100, seed * 100 + AUTHORS)
        ]
        self.is_on = True

    def before(self):
        """What happens before a request."""
        if self.draw.random() < self.faults and self.is_on:
            raise StoreUnavailableError("planted: not done")
        self.visit()

    def after(self):
        """What happens after it was done."""
        if self.draw.random() < self.faults and self.is_on:
            raise StoreUnavailableError("planted: no reply")
        if self.draw.random() < self.faults / 4 and self.is_on:
            raise KeyboardInterrupt
        self.visit()

    def visit(self):
        """Lets another author come in."""
        if self.is_on and self.depth < 3 and self.left > 0 and self.draw.random() < self.visits:
            free = [n for n in range(AUTHORS) if n not in self.busy]
            if free:
                self.act(self.draw.choice(free))

    def act(self, n):
        """Lets an author perform one complete action."""
        self.left -= 1
        self.busy.add(n)
        self.depth += 1
        try:
            self.do(n)
        finally:
            self.depth -= 1
            self.busy.discard(n)

    def do(self, n):
        draw, log = self.draw, self.authors[n]
        log.handle.clock.advance(draw.choice([0, 5, 5, 5, 900, 62_000]))
        what = draw.choices(
            ["append", "producer", "alter", "fork", "sweep", "limit", "many", "sequence"],
            [12, 4, 1, 1, 1, 1, 1, 2],
        )[0]
        if what == "fork":
            log.handle._committing[1].after_fork()
        if what == "sweep":
            for found in list(self.store_of().list(documents.PROPOSALS)):
                if draw.random() < 0.5:
                    self.store_of().delete(found.path)
        if what == "many":
            for _ in range(66):
                self.log.append([{"key": "k", "value": None}])
        if what in ("alter", "limit"):
            bytes_max = draw.choice(["60", None]) if what == "limit" else None
            with_suppressed(lambda: self.log.alter({"max.message.bytes": bytes_max}))
        if what == "sequence":  # Withdraws what others wait for.
            with_suppressed(lambda: log.sequence(f"p{draw.randrange(AUTHORS)}"))
        if what in ("append", "producer"):
            self.append(n, log, what == "producer")

    def store_of(self):
        return self.log.handle.store

    def append(self, n, log, has_producer):
        number = len(self.told)
        value = f"v{number:06d}" + "x" * self.draw.choice([0, 0, 80])
        partition = self.draw.randrange(log.partitions)
        self.told[value] = "unknown"
        producer = None
        if has_producer:
            self.numbers[n] += 1
            producer = (f"p{n}", self.numbers[n])
        try:
            done = log.append([{"key": "k", "value": value}], partition, producer)
        except CommitStateUnknownError:
            return
        except KeyboardInterrupt:
            return
        except StoreUnavailableError:
            # As ever: before the commit was sent nothing is there; whatever is told otherwise.
            self.told[value] = "not there"
        except ClogError:
            self.told[value] = "not there"
        else:
            self.told[value] = (partition, *done.offsets[partition])


def with_suppressed(do):
    try:
        do()
    except (ClogError, KeyboardInterrupt):
        pass


def history(seed):
    """Runs one, and checks what each author was told."""
    store = memory_store()
    try:
        world = World(seed, store)
        while world.left > 0:
            world.act(world.draw.randrange(AUTHORS))
        world.is_on = False
        for _ in range(3):  # What was left waiting may come now.
            a, b = (
                Log.open(store, clock=world.log.handle.clock, ids=SeededIds(7 + i)) for i in (1, 2)
            )
            b.append([{"key": "k", "value": None}])
            a.append([{"key": "k", "value": None}])
        found = Counter()
        places = {}
        for row in rows_in(world.log.read()):
            value = row[2].value
            if value is not None:
                found[value.decode()] += 1
                places[value.decode()] = (row[0], row[1])
        for value, told in world.told.items():
            if told == "unknown":
                assert found[value] <= 1, value
            elif told == "not there":
                assert found[value] == 0, value
            else:
                assert found[value] == 1, (value, told)
                assert places[value] == told[:2], (value, told)
        return world, found
    finally:
        discard(store)


@pytest.mark.parametrize("seed", range(4))
def test_everybody_is_told_the_truth(seed):
    """Exactly once, whatever happens (the rules of `tests/models/combining.py`)."""
    history(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("ten", range(1, 31))
def test_everybody_is_told_the_truth_for_longer(ten):
    """The same in three hundred more histories."""
    for seed in range(ten * 10, ten * 10 + 10):
        history(seed)
