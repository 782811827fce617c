"""Named cuts under random transactions, compared with what each transaction meant (S74).

Coordinators of several ids, at two homes, prepare, decide and end their transactions in steps that
come in any order; some die between two steps, and others take their ids up. After each step another
process names a cut, in a copy of all logs, while further steps come between its requests. Of each
transaction all logs of the cut show its records or none does, and what all logs had shown before is
shown.
"""

import random
from collections import Counter

import pytest

from clog.cleaner.cleaner import Cleaner
from clog.storage import CommitConflictError, Log, ManualClock
from clog.storage.cuts import name_cut
from clog.storage.env import SeededIds
from clog.storage.format.transactions import COMMITTED
from clog.storage.store.contract import Within
from clog.storage.transactions.ids import OPERATION, ended_part
from clog_testing.crash import copy_of, discard, memory_store
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log

MEMBERS = ("home", "left", "right", "far")
JOBS = [("home", "a"), ("home", "b"), ("home", "c"), ("foreign", "d")]
TIME_MS, DAY_MS = 1_000_000_000_000, 86_400_000
STEPS = 24


class Folder(Within):
    """A folder with its own URL, as each log has."""

    def __init__(self, inner, name):
        super().__init__(inner, name)
        self.name = name

    @property
    def url(self):
        return f"memory://logs/{self.name}"


def opened(store, name, seed, clock):
    log = Log.open(Folder(store, name), clock=clock, ids=SeededIds(seed))
    log.handle.reach = lambda url: Folder(store, url.rpartition("/")[2])
    return log


class Coordinator:
    """A process that commits transactions of one id, step by step."""

    def __init__(self, world, home, job):
        self.world, self.home, self.job = world, home, job
        self.name, self.t, self.waiting = None, None, []
        self.logs = {}

    def log(self, name):
        if name not in self.logs:
            self.logs[name] = self.world.open(name)
        return self.logs[name]

    def step(self):
        """The next step of its transaction, or another transaction."""
        if self.t is None:
            self.begin()
        elif self.name is None:
            self.t._work.several.prepare(self.t._work.check_time, self.t._work.holder.closable)
            self.name = self.t._work.ours
        elif not self.t._work.several.ended:
            self.t._work.several.finish = lambda _: {}
            self.t.commit()
            self.t._work.several.ended = True
        elif self.waiting:
            self.waiting.sort(key=lambda _: self.world.dice.random())
            part = self.waiting.pop()
            ended = ended_part(part.handle, self.name, COMMITTED)
            part.handle.commit(ended, operation=OPERATION)
        else:
            self.t._work.holder.closable.add(self.name)
            self.t = None

    def begin(self):
        world = self.world
        others = [name for name in MEMBERS[1:] if world.dice.random() < 0.7] or ["left"]
        self.t = self.log(self.home).transaction(self.job, timeout_ms=DAY_MS)
        key = f"{self.job}{world.number}"
        world.number += 1
        world.meant[key] = {*others, *({"home"} if self.home == "home" else ())}
        for name in others:
            self.t.append([{"key": key, "value": "v"}], log=self.log(name))
        if self.home == "home":
            self.t.append([{"key": key, "value": "v"}])
        self.name, self.waiting = None, self.t._work.several.parts


class World:
    """Logs, and coordinators with what they mean."""

    def __init__(self, seed, store=None):
        self.dice = random.Random(seed)
        self.store = store or memory_store()
        self.clock = ManualClock(TIME_MS)
        self.seed = 1000 * seed
        self.number = 0
        self.meant = {}
        self.workers = {}

    def open(self, name, store=None):
        self.seed += 1
        return opened(store or self.store, name, self.seed, self.clock)

    def create(self):
        for i, name in enumerate((*MEMBERS, "foreign")):
            Log.create(Folder(self.store, name), 1, clock=self.clock, ids=SeededIds(i))
        with self.open("home").transaction("first") as t:
            for name in MEMBERS[1:]:
                t.append([{"key": "first", "value": "v"}], log=self.open(name))

    def step(self):
        home, job = JOBS[self.dice.randrange(len(JOBS))]
        worker = self.workers.get(job)
        if worker is None or self.dice.random() < 0.08:  # The one before died.
            worker = self.workers[job] = Coordinator(self, home, job)
        try:
            worker.step()
        except CommitConflictError:
            self.workers[job] = None  # What another left could not be ended yet.

    def shown(self, cut=None, store=None):
        """By log the keys that it shows."""
        return {
            name: {row["key"].decode() for row in self.open(name, store).table(at=cut).to_pylist()}
            for name in MEMBERS
        }


def torn(shown, meant):
    """The transactions that are shown in some of their logs, but not in others."""
    return {
        key: {name: key in shown[name] for name in logs}
        for key, logs in meant.items()
        if len({key in shown[name] for name in logs}) > 1
    }


def everywhere(shown, meant):
    return {key for key, logs in meant.items() if all(key in shown[name] for name in logs)}


def check_cut_after(world, seen, name="c"):
    """A cut in a copy of the world, while the world continues in its own way."""
    copy = World(world.dice.randrange(1 << 30), copy_of(world.store))
    copy.number, copy.meant = 10_000 + 100 * len(seen), dict(world.meant)
    before = copy.shown()
    seen["torn at the newest versions"] += bool(torn(before, copy.meant))
    undecided = any(copy.open(name).handle.tip.head.unended for name in MEMBERS[1:])
    seen["undecided"] += undecided
    busy = FaultyStore(copy.store)

    def go_on():
        for _ in range(copy.dice.randrange(6)):
            copy.step()

    busy.plan = Faults(
        *(Fault(FaultKind.MEANWHILE, nth=n, run=go_on) for n in copy.dice.sample(range(1, 60), 6))
    )
    cut = name_cut(copy.open("home", busy).handle, name, None)
    shown = copy.shown(cut)
    assert torn(shown, copy.meant) == {}, cut
    for key in everywhere(before, world.meant) if not undecided else ():
        assert all(key in shown[log] for log in world.meant[key]), key
    seen["newer than before"] += everywhere(shown, copy.meant) > everywhere(before, copy.meant)
    seen["behind the newest"] += any(
        copy.open(log).version - 1 > cut.logs[f"memory://logs/{log}"] + 1 for log in MEMBERS
    )
    return copy, cut


def run(seed, seen, steps=STEPS):
    world = World(seed)
    world.create()
    try:
        for _ in range(steps):
            world.step()
            copy, _ = check_cut_after(world, seen)
            discard(copy.store)
        copy, cut = check_cut_after(world, seen)
        shown = copy.shown(cut)
        for _ in range(3):
            for name in MEMBERS:
                log = copy.open(name)
                log.append([{"key": "first", "value": "w"}])
                log.roll()
                Cleaner(log).run_once(force=True)
            copy.clock.advance(10 * DAY_MS)
        assert copy.shown(cut) == shown
        for name in MEMBERS:
            check_log(Folder(copy.store, name), every_version=False)
        discard(copy.store)
    finally:
        discard(world.store)


def test_a_cut_is_whole_at_every_step():
    """S74, S69: whichever ids wrote, whoever died; and after thirty days of cleaning."""
    seen = Counter()
    run(0, seen, steps=14)
    assert min(seen[what] for what in ("torn at the newest versions", "newer than before")) > 3, (
        seen
    )


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(100, 130, 3))
def test_a_cut_is_whole_at_every_step_of_many(first):
    """S74: the same, for longer."""
    seen = Counter()
    for seed in range(first, first + 3):
        run(seed, seen)
    assert seen["behind the newest"] > 3, seen
