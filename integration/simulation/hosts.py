"""Hosts of two jobs that keep state in stores of one log (`StateStore`), and take them from each
other.

Each host has a local disk, which outlives its processes, and is lost now and then. It follows as a
standby, takes over, puts and deletes, commits or rolls back, and does not know what became of some
commits. Whatever a store shows must be what is committed at the version that it says, with what
its host has put since; and whoever holds an id sees all that was ever committed under it. That
commits are the holder's, and positions and state come together, `taken` sees.
"""

import shutil
import tempfile
from pathlib import Path

from actors import told
from records import PARTITIONS
from transactors import Transactor

from clog.storage import AppendResult, Log, StateFencedError, StateStore
from clog.storage.env import SeededIds
from clog.storage.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    InvalidInputError,
    OffsetOutOfRangeError,
    StoreUnavailableError,
    TransactionTimeoutError,
)
from clog.storage.keys.hashing import partitions_for
from clog.storage.numpy_arrays import of_bytes
from clog_testing.faults import FaultKind

_KEYS = 4
_FAILED = (CommitConflictError, StoreUnavailableError, TransactionTimeoutError)


class Host(Transactor):
    """One of the hosts of a job."""

    works_on_log = False
    may_be_off = False
    _held: StateStore | None = None

    def __init__(self, world, name: str, clock) -> None:
        super().__init__(world, name, clock)
        self._disk = Path(tempfile.mkdtemp())

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._power_off()
            shutil.rmtree(self._disk, ignore_errors=True)

    def start_process(self) -> None:
        super().start_process()
        self._power_off()

    def close(self) -> None:
        if self._held is not None:
            self._held.close()
        super().close()
        self._power_off()

    def _power_off(self) -> None:
        """Ends without another word."""
        if self._held is not None:
            self._held._file.close()
        self._held, self._intent = None, None
        self._put: dict[bytes, bytes | None] = {}

    def act(self) -> None:
        try:
            if self._held is None:
                self._open()
            elif self._held.is_standby:
                self._held.refresh()
                if self.world.roll(3) == 0:
                    self._held.take_over()
            elif self._intent is not None:
                self._find_out()
            else:
                self._work()
            self._check_shown()
        except StateFencedError:
            self._check_fenced()
            self.close()
        else:
            if self.world.roll(16) == 0:
                self.close()

    def _open(self) -> None:
        world = self.world
        if world.roll(6) == 0:
            shutil.rmtree(self._disk, ignore_errors=True)
        ids = SeededIds(world.roll(1 << 40))
        self._held = StateStore(
            *(self.store, self._disk, self.job), clock=self.clock, ids=ids, standby=True
        )
        self._opened[self.site.number] = Log(self._held._file.handle)
        if world.roll(3):
            self._held.take_over()

    def _work(self) -> None:
        held, world = self._held, self.world
        done = held.positions.get(self.log.id, {}).get(0, 0)
        for n in range(1 + world.roll(4)):
            key = f"s/{self.job}/{world.roll(_KEYS)}".encode()
            value = None if world.roll(4) == 0 else f"{self.name} {done} {n}".encode()
            if value is None:
                held.delete(key)
            else:
                held.put(key, value)
            self._put[key] = value
        key, value = f"s/{self.job}".encode(), str(done + 1).encode()
        held.put(key, value)
        self._put[key] = value
        self._check_shown()
        if world.roll(8) == 0:
            held.rollback()
            self._put = {}
            return
        self._attempt += 1
        self._intent = self.oracle.intent(f"{self.name} item {done} attempt {self._attempt}")
        self.putting = self._intent, self._rows()
        self._commit(done + 1)

    def _rows(self) -> dict[int, list[tuple]]:
        """What the commit appends, by partition."""
        keys, log = sorted(self._put), self._held._file.handle.tip.head.log
        given = partitions_for(of_bytes(keys), partitions=PARTITIONS, algorithm=log.partitioner)
        rows: dict[int, list[tuple]] = {}
        for key, p in zip(keys, given.tolist(), strict=True):
            rows.setdefault(p, []).append((key, self._put[key]))
        return dict(sorted(rows.items()))

    def _commit(self, done: int) -> None:
        intent, world = self._intent, self.world
        kinds = (None, None, FaultKind.FAIL_BEFORE, FaultKind.FAIL_AFTER)
        self._storm = kinds[world.roll(len(kinds))]
        try:
            result = self._held.commit({self.log: {0: done}}, missed_deletes=True)
        except (*_FAILED, OffsetOutOfRangeError) as e:
            assert not intent.commits, f"{intent.name} happened, and was told {e}"
            self._intent = None
            return
        finally:
            self._storm = None
        told(self, intent, AppendResult(result.version, result.offsets, duplicate=True))
        self._intent, self._put = None, {}

    def _find_out(self) -> None:
        """The outcome of the last commit is not known: it is committed again, or rolled back."""
        held, intent = self._held, self._intent
        try:
            held.put(b"s/early", b"")
            raise AssertionError(f"the outcome of {intent.name} is not known, and it goes on")
        except InvalidInputError:
            pass
        if self.world.roll(2):
            self._commit(0)  # With what was given at first.
            return
        try:
            held.rollback()
            assert not intent.commits, f"{intent.name} is rolled back, and is there"
        except InvalidInputError:
            assert intent.commits, f"{intent.name} is said to be committed, and is not there"
        self._intent, self._put = None, {}

    def _check_shown(self) -> None:
        held, oracle = self._held, self.oracle
        try:
            shown = dict(held.scan("s"))
        except (CommitConflictError, CommitStateUnknownError, StoreUnavailableError):
            return
        version = held.version
        there = committed(oracle, version) | self._put
        expected = {key: value for key, value in there.items() if value is not None}
        assert shown == expected, f"{self.name} shows {shown} at {version}, it is {expected}"
        for key in there:
            assert held.get(key) == expected.get(key), f"{self.name} gets another {key}"
        if held.is_standby or oracle.taken.states[self.job][0] > self._epoch():
            return
        newest = oracle.last_version(f"{self.job}/")
        assert version >= newest, f"{self.name} shows {version}, its job committed {newest}"
        done = oracle.taken.states[self.job][1] if self._intent is None else None
        mine = held.positions.get(self.log.id, {}).get(0, 0)
        assert done in (None, mine), f"{self.name} is at {mine}, its job has done {done}"

    def _check_fenced(self) -> None:
        epoch, mine = self.oracle.taken.states[self.job][0], self._epoch()
        assert epoch > mine, f"{self.name} is fenced at epoch {mine}, the newest is {epoch}"
        try:
            self._held.get(b"s")
            raise AssertionError(f"{self.name} is fenced, and goes on")
        except StateFencedError:
            pass

    def _epoch(self) -> int:
        return self._held._holding._epoch


class ZombieHost(Host):
    """One that sleeps for days before it creates a version, while another takes over."""

    sleeps = True


def committed(oracle, version: int) -> dict[bytes, bytes | None]:
    """The state at a version: of each key of stores its last record."""
    return {
        key: oracle.records[p][offset][1]
        for p in range(PARTITIONS)
        for key, offset in oracle.keys_at(version, p).items()
        if key.startswith(b"s")
    }
