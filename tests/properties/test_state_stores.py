"""Stores compared with a dict: whatever is done, by whichever host, in whatever order
(S48, S54).
"""

import random
import shutil

import pytest

from clog.cleaner import Cleaner
from clog.storage import (
    CommitStateUnknownError,
    Log,
    ManualClock,
    StateFencedError,
    StateStore,
    StoreUnavailableError,
)
from clog.storage.env import SeededIds
from clog_testing.crash import discard, memory_store
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log

KEYS = [b"%02d" % i for i in range(24)]
STEPS = 40


class World:
    """Two hosts, of which the one that took over the id last holds it, and what must be true."""

    def __init__(self, seed, folder):
        self.chance, self.folder, self.seeds = random.Random(seed), folder, iter(range(100, 10_000))
        self.clock, self.store = ManualClock(1_000_000), memory_store()
        self.faulty = FaultyStore(self.store)
        config = {"min.cleanable.dirty.ratio": "0", "delete.retention.ms": "5000"}
        self.log = Log.create(
            self.store, 3, config, clock=self.clock, ids=SeededIds(next(self.seeds))
        )
        self.committed, self.uncommitted, self.position = {}, {}, 0
        self.hosts = [self.opened(0), self.opened(1, standby=True)]
        self.active = 0

    def opened(self, host, *, standby=False):
        memory = self.chance.choice([300, 3000, 1 << 20])
        return StateStore(
            *(self.faulty, self.folder / str(host), "job"),
            clock=self.clock,
            standby=standby,
            memory_bytes=memory,
            ids=SeededIds(next(self.seeds)),
        )

    @property
    def held(self):
        return self.hosts[self.active]

    def state(self):
        return dict(
            sorted(
                {
                    k: v for k, v in (self.committed | self.uncommitted).items() if v is not None
                }.items()
            )
        )

    def change(self):
        for _ in range(self.chance.randrange(5)):
            key = self.chance.choice(KEYS)
            if self.chance.random() < 0.3:
                self.held.delete(key)
                self.uncommitted[key] = None
            else:
                self.uncommitted[key] = b"%d" % self.chance.randrange(1000)
                self.held.put(key, self.uncommitted[key])

    def change_many(self):
        keys = [self.chance.choice(KEYS) for _ in range(self.chance.randrange(8))]
        values = [
            self.chance.choice([None, b"", b"%d" % self.chance.randrange(1000)]) for _ in keys
        ]
        self.held.put_many([{"key": k, "value": v} for k, v in zip(keys, values, strict=True)])
        self.uncommitted |= zip(keys, values, strict=True)

    def commit(self):
        self.position = min(self.position + 1, self.log.end_offsets()[0])
        if self.chance.random() < 0.3:
            self.faulty.plan = Faults(
                Fault(FaultKind.FAIL_AFTER, "create", "*commits/*"),
                Fault(FaultKind.FAIL_BEFORE, "get", "*commits/*", times=60),
            )
        try:
            self.held.commit({self.log: {0: self.position}})
        except (CommitStateUnknownError, StoreUnavailableError):
            self.faulty.plan = Faults()
            self.held.commit({self.log: {0: self.position}})
        self.faulty.plan = Faults()
        self.done()

    def done(self):
        self.committed, self.uncommitted = self.committed | self.uncommitted, {}

    def roll_back(self):
        self.held.rollback()
        self.uncommitted = {}

    def other_takes_over(self):
        before, self.active = self.held, 1 - self.active
        self.hosts[self.active].take_over()
        with pytest.raises(StateFencedError):
            before.commit({self.log: {0: 0}})
        before.close()
        if self.chance.random() < 0.3:
            shutil.rmtree(self.folder / str(1 - self.active))
        self.hosts[1 - self.active] = self.opened(1 - self.active, standby=True)
        self.uncommitted = {}

    def killed(self):
        self.hosts[self.active] = self.opened(self.active)  # The one before is just left.
        self.uncommitted = {}

    def cleaned(self):
        self.log.roll()
        Cleaner(self.log).run_once(force=True)
        self.clock.advance(self.chance.choice([1, 3000, 90_000_000]))

    def followed(self):
        self.hosts[1 - self.active].refresh()
        shown = dict(self.hosts[1 - self.active].scan())
        assert shown == {k: v for k, v in self.committed.items() if v is not None}

    def check(self):
        expected, held = self.state(), self.held
        assert list(held.scan()) == sorted(expected.items())
        assert held.get_many(KEYS) == expected
        key = self.chance.choice(KEYS)
        assert held.get(key) == expected.get(key)
        assert list(held.scan(b"1")) == sorted((k, v) for k, v in expected.items() if k[:1] == b"1")
        positions = held.positions.get(self.log.id, {})
        assert positions.get(0, 0) <= self.position


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_done_the_store_is_a_dict(tmp_path, seed):
    """S48, S54: puts, commits with a lost reply, kills, takeovers, lost disks, passes, spilling:
    each look-up is that of a dict, and the log's table that of everything that was committed.
    """
    world = World(seed, tmp_path)
    steps = [
        *([world.change] * 6 + [world.change_many] * 2 + [world.commit] * 6),
        *(world.roll_back, world.other_takes_over, world.killed, world.cleaned, world.followed),
    ]
    for _ in range(STEPS):
        world.chance.choice(steps)()
        world.check()
    table = {row["key"]: row["value"] for row in world.log.table().to_arrow().to_pylist()}
    assert table == {k: v for k, v in world.committed.items() if v is not None}
    check_log(world.store, every_version=False)
    for host in world.hosts:
        host.close()
    discard(world.store)
