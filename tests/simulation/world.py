"""A small world in one thread: actors on one log, whose store calls are interrupted by one another.

A seed decides all: which actor acts next, and at each of its store calls whether the call fails,
is done twice, or loses its reply, whether time passes, and whether another actor does its whole
work right there, in the middle. So calls of several actors mix as those of processes do, and the
same seed does the same again.

After each step the log is opened anew, and must hold what was acknowledged, once and in order.
"""

import hashlib
from dataclasses import dataclass, field

from clog.cleaner import Cleaner
from clog.cleaner.blocks import close_blocks
from clog.cleaner.sweep import sweep_orphans, sweep_released
from clog.storage import Log, ManualClock
from clog.storage.errors import ClogError, CommitStateUnknownError, StoreUnavailableError
from clog.storage.ids import SeededIds
from clog.storage.testing.clocked import ClockedStore
from clog.storage.testing.crash import discard, memory_store
from clog.storage.testing.faults import Fault, FaultKind, FaultyStore
from clog.storage.testing.model import rows_in
from clog.storage.verify import verify_log

START_MS = 1_000_000_000
KEYS = 5
DEPTH_MAX = 2
RETRIES_MAX = 60
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BROKEN = (FaultKind.FAIL_BEFORE, FaultKind.FAIL_AFTER, FaultKind.REPEAT)


@dataclass
class World:
    """One run. ``trace`` has a line for each store call and each step."""

    seed: int
    records: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)
    interruptions: int = 0
    zombies: int = 0

    def __post_init__(self):
        self.dice = SeededIds(self.seed)
        self.clock = ManualClock(START_MS)
        self.memory = memory_store()
        self.store = ClockedStore(self.memory, self.clock)
        self.active = []
        self.sequences = {}
        config = {
            "segment.bytes": "200",
            "min.cleanable.dirty.ratio": "0",
            "file.delete.delay.ms": str(HOUR_MS),
            "delete.retention.ms": str(HOUR_MS),
        }
        Log.create(self.store, 1, config, clock=self.clock, ids=SeededIds(self.seed))
        self.actors = {
            "writer-1": self.write,
            "writer-2": self.write,
            "zombie": self.write,
            "cleaner": self.clean,
            "sweeper": self.sweep,
        }
        self.logs = {name: self.open(name) for name in self.actors}

    def open(self, name):
        """The log as an actor sees it, on a store that goes wrong."""
        faulty = FaultyStore(self.store, Interruptions(self, name), clock=self.clock)
        faulty.plan.quiet = True
        try:
            return Log.open(faulty, clock=self.clock, ids=SeededIds(self.roll(1 << 30)))
        finally:
            faulty.plan.quiet = False

    def roll(self, sides):
        """A number below ``sides``."""
        return int(self.dice.uniform() * sides)

    def run(self, steps):
        """So many steps, each checked; returns the hash of the trace."""
        for step in range(steps):
            idle = sorted(set(self.actors) - set(self.active))
            self.act(idle[self.roll(len(idle))])
            if self.roll(6) == 0:
                self.clock.advance((1 + self.roll(30)) * HOUR_MS)
            self.check(step)
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()

    def act(self, name):
        """One actor does its work, whatever happens in between."""
        self.active.append(name)
        self.trace.append(f"{name} acts at {self.clock.now_ms()}")
        try:
            self.actors[name](name)
        finally:
            self.active.remove(name)

    def write(self, name):
        """Appends until it is acknowledged, by one sequence number."""
        sequence = self.sequences.get(name, 0)
        rows = [
            (f"k{self.roll(KEYS)}", None if self.roll(5) == 0 else f"{name}:{sequence}:{i}")
            for i in range(1 + self.roll(3))
        ]
        data = [{"key": k, "value": v, "timestamp": self.clock.now_ms()} for k, v in rows]
        for _ in range(RETRIES_MAX):
            try:
                result = self.logs[name].append(data, producer=(name, sequence))
                break
            except (CommitStateUnknownError, StoreUnavailableError):
                continue
            except ClogError as e:
                if "floor" not in str(e):  # it slept so long that its objects may be gone
                    raise
        else:
            raise AssertionError(f"{name} was never acknowledged")
        self.sequences[name] = sequence + 1
        ((base, end),) = result.offsets.values() if result.offsets else ((None, None),)
        assert base is not None, f"{name} lost the result of {sequence}"
        assert end - base == len(rows), (base, end, rows)
        for offset, row in zip(range(base, end), rows, strict=True):
            assert offset not in self.records, f"offset {offset} was given twice"
            self.records[offset] = row

    def clean(self, name):
        """A round of the cleaner; what fails is repeated at its next turn."""
        try:
            Cleaner(self.logs[name]).run_once(force=True)
        except StoreUnavailableError:
            pass

    def sweep(self, name):
        """All that deletes."""
        handle = self.logs[name].handle
        try:
            handle.refresh()
            sweep_released(handle, now_ms=self.clock.now_ms())
            sweep_orphans(handle, now_ms=self.clock.now_ms())
            close_blocks(handle, now_ms=self.clock.now_ms())
        except (CommitStateUnknownError, StoreUnavailableError):
            pass

    def check(self, step):
        """The log, opened from cold, is what was acknowledged."""
        where = f"seed={self.seed} step={step}; python -m tests.simulation --seed {self.seed}"
        log = Log.open(self.store, clock=self.clock, ids=SeededIds(1))
        assert log.end_offsets() == {0: max(self.records, default=-1) + 1}, where
        read = {offset: _text(record) for _, offset, record in rows_in(log.read())}
        for offset, row in read.items():
            assert self.records[offset] == row, f"{where}: offset {offset} is {row}"
        last = {self.records[offset][0]: offset for offset in sorted(self.records)}
        for key, offset in last.items():
            gone = self.records[offset][1] is None  # a tombstone may have had its time
            assert gone or offset in read, f"{where}: the last record of {key} is gone"
            olds = [o for o in read if self.records[o][0] == key and o < offset]
            assert not (olds and offset not in read), f"{where}: {key} came back to life"
        assert verify_log(self.store).findings == (), where

    def close(self):
        """Frees the memory."""
        discard(self.memory)


class Interruptions:
    """Decides at each store call of one actor what happens to it."""

    def __init__(self, world, name):
        self.world, self.name, self.quiet = world, name, False

    def fault(self, call):
        """By chance: nothing mostly, a fault, a while, or another actor's work."""
        world = self.world
        if self.quiet:
            return None
        world.trace.append(f"{self.name} {call.operation} {call.path}")
        chance = world.roll(1000)
        if chance < 30:
            return Fault(BROKEN[chance % 3])
        if chance < 36 and self.name == "zombie":
            world.zombies += 1
            return Fault(FaultKind.DELAY, delay_ms=(1 + world.roll(60)) * HOUR_MS)
        idle = sorted(set(world.actors) - set(world.active))
        if chance < 90 and len(world.active) <= DEPTH_MAX and idle:
            world.interruptions += 1
            other = idle[world.roll(len(idle))]
            return Fault(FaultKind.MEANWHILE, run=lambda: world.act(other))
        return None


def _text(record):
    return record.key.decode(), None if record.value is None else record.value.decode()
