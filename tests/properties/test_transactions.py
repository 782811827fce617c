"""Transactions under random use, held against a model, while the log is cleaned.

Handles share a log and some ids; each may take an id up, leave transactions open, come back to old
ones, die, and be opened again. The model knows which epoch of an id counts, and applies what was
committed at that moment. Replies of commits get lost, so that their holders are in doubt.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from clog.cleaner import Cleaner
from clog.storage import (
    CommitStateUnknownError,
    InvalidInputError,
    Log,
    ManualClock,
    TransactionFencedError,
    TransactionTimeoutError,
)
from clog.storage.env import SeededIds
from clog.storage.transactions.transaction import Transaction
from clog_testing.crash import discard, memory_store
from clog_testing.faults import HAPPENED, NEVER_CAME, Faults, FaultyStore
from clog_testing.invariants import check_log

HANDLES, PARTITIONS = 3, 2
IDS, KEYS = ("a", "b"), tuple("uvwxyz")
TIMEOUT_MS = 60_000

handles = st.integers(0, HANDLES - 1)
ids = st.sampled_from(IDS)
records = st.lists(
    st.tuples(
        st.integers(0, PARTITIONS - 1), st.sampled_from(KEYS), st.none() | st.text("01", max_size=2)
    ),
    min_size=1,
    max_size=4,
)


@dataclass
class Open:
    """A transaction that was started, and what the model knows about it."""

    name: str
    real: Transaction
    epoch: int
    began_ms: int
    rows: list = field(default_factory=list)
    positions: dict = field(default_factory=dict)
    committed: bool = False
    in_doubt: bool = False


class TransactionMachine(RuleBasedStateMachine):
    """The log, what was committed in order, and the epochs."""

    @initialize(seed=st.integers(0, 2**32))
    def create(self, seed):
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("clog.storage.format.writers.WRITERS_MAX", 2)
        self.patch.setattr("clog.storage.format.transactions.POSITIONS_BYTES_MAX", 80)
        self.clock, self.seeds = ManualClock(10_000_000), SeededIds(seed)
        self.store = memory_store()
        config = {"segment.bytes": 60, "min.cleanable.dirty.ratio": 0}
        Log.create(self.store, PARTITIONS, config, clock=self.clock, ids=self.seeds)
        self.faulty = [FaultyStore(self.store, clock=self.clock) for _ in range(HANDLES)]
        self.handles = [self.opened(h) for h in range(HANDLES)]
        self.reader = Log.open(self.store, clock=self.clock, ids=self.seeds)
        self.held = [{} for _ in range(HANDLES)]
        self.begun: list[Open] = []
        self.epochs = dict.fromkeys(IDS, -1)
        self.rows: list[list[tuple]] = [[] for _ in range(PARTITIONS)]
        self.positions: dict[str, dict[int, int]] = {name: {} for name in IDS}

    def opened(self, h):
        return Log.open(self.faulty[h], clock=self.clock, ids=self.seeds)

    def teardown(self):
        try:
            check_log(self.store, every_version=False)
        finally:
            discard(self.store)
            self.patch.undo()

    @rule(h=handles, given=records)
    def append(self, h, given):
        self.handles[h].append(as_dicts(given), partition=[p for p, _, _ in given])
        self.apply(given)

    @rule(h=handles, name=ids)
    def begin(self, h, name):
        """An id is taken over once for each handle, and again if its last one is open."""
        held = self.held[h].get(name)
        try:
            real = self.handles[h].transaction(name, timeout_ms=TIMEOUT_MS)
        except TransactionFencedError:
            assert held is not None
            assert held != self.epochs[name]
            return
        if real.epoch != held:
            self.epochs[name] += 1
            assert real.epoch == self.epochs[name]
        self.held[h][name] = real.epoch
        self.begun.append(Open(name, real, real.epoch, self.clock.now_ms()))

    @precondition(lambda self: self.begun)
    @rule(data=st.data(), given=records)
    def append_to_one(self, data, given):
        t = self.drawn(data)
        try:
            t.real.append(as_dicts(given), partition=[p for p, _, _ in given])
        except TransactionFencedError:
            assert t.epoch != self.epochs[t.name]
        except TransactionTimeoutError:
            assert self.is_late(t)
        except InvalidInputError:
            assert t.committed or t.in_doubt or not t.real.is_open
        else:
            t.rows += given

    @precondition(lambda self: self.begun)
    @rule(data=st.data(), p=st.integers(0, PARTITIONS - 1), offset=st.integers(0, 99))
    def add_positions(self, data, p, offset):
        t = self.drawn(data)
        try:
            t.real.positions(self.handles[0], {p: offset}, missed_deletes=True)
        except (InvalidInputError, TransactionFencedError):
            assert t.committed or t.in_doubt or not t.real.is_open
        else:
            t.positions[p] = offset

    @precondition(lambda self: self.begun)
    @rule(data=st.data())
    def commit(self, data):
        t = self.drawn(data)
        counts = self.counts(t)
        try:
            result = t.real.commit()
        except TransactionFencedError:
            assert not t.committed
            assert not counts
        except TransactionTimeoutError:
            assert not t.committed
            assert self.is_late(t)
            self.note_taken(t)
        except InvalidInputError:
            assert not t.committed
            assert not t.real.is_open
        except CommitStateUnknownError:
            assert t.in_doubt
            assert not counts
        else:
            if not t.committed:
                assert counts
                assert not self.is_late(t)
                self.take(t)
            ends = [len(rows) for rows in self.rows]
            assert all(end <= ends[p] for p, (_, end) in result.offsets.items())
        t.in_doubt = t.in_doubt and t.real.is_open

    @precondition(lambda self: self.begun)
    @rule(data=st.data(), happens=st.booleans())
    def commit_with_a_lost_reply(self, data, happens):
        t = self.drawn(data)
        assume(t.real.is_open and not t.committed and not t.in_doubt)
        assume(t.epoch == self.epochs[t.name] and not self.is_late(t))
        assume(t.rows or t.positions)
        h = next(h for h, log in enumerate(self.handles) if log.handle is t.real._handle)
        self.handles[h].version  # noqa: B018 - it looks for newer versions: no race is lost
        self.faulty[h].plan = Faults(*(HAPPENED if happens else NEVER_CAME))
        with pytest.raises(CommitStateUnknownError):
            t.real.commit()
        self.faulty[h].plan = Faults()
        t.in_doubt = True
        if happens:
            self.take(t)

    @precondition(lambda self: self.begun)
    @rule(data=st.data())
    def abort(self, data):
        t = self.drawn(data)
        try:
            t.real.abort()
        except InvalidInputError:
            assert t.committed
        except CommitStateUnknownError:
            assert t.in_doubt
            return
        else:
            assert not t.committed
            self.note_taken(t)
        t.in_doubt = False

    @rule(h=handles)
    def die(self, h):
        """A process that is gone, with everything that it started."""
        handle = self.handles[h].handle
        self.begun = [t for t in self.begun if t.real._handle is not handle]
        self.handles[h], self.held[h] = self.opened(h), {}

    @rule()
    def clean(self):
        self.clock.advance(5)
        Cleaner(Log.open(self.store, clock=self.clock, ids=self.seeds)).run_once(force=True)

    @rule(ms=st.sampled_from([1, 20_000, 50_000, 700_000]))
    def time_passes(self, ms):
        self.clock.advance(ms)

    @invariant()
    def the_log_is_what_was_committed(self):
        log = self.reader
        assert list(log.end_offsets().values()) == [len(rows) for rows in self.rows]
        for p, rows in enumerate(self.rows):
            last = {k: v for k, v in dict(rows).items() if v is not None}
            found = log.table(p).to_arrow().to_pylist()
            assert {r["key"].decode(): r["value"].decode() for r in found} == last
            for batch in log.read(p):
                for row in batch.to_pylist():
                    value = None if row["value"] is None else row["value"].decode()
                    assert (row["key"].decode(), value) == rows[row["offset"]]
        for name, offsets in self.positions.items():
            assert log.positions(name).get(log.id, {}) == offsets

    def drawn(self, data):
        return self.begun[data.draw(st.integers(0, len(self.begun) - 1))]

    def is_late(self, t):
        return self.clock.now_ms() - t.began_ms > TIMEOUT_MS

    def counts(self, t):
        """Whether its commit would be, or was, one of the epoch that counts."""
        return t.committed or (t.epoch == self.epochs[t.name] and not self.is_late(t))

    def note_taken(self, t):
        """What was in doubt, and will never be committed: its id was taken over."""
        if t.in_doubt and not t.committed and t.epoch == self.epochs[t.name]:
            self.epochs[t.name] += 1

    def apply(self, given):
        for p, key, value in given:
            self.rows[p].append((key, value))

    def take(self, t):
        t.committed = True
        self.apply(t.rows)
        self.positions[t.name] = {**self.positions[t.name], **t.positions}


def as_dicts(given):
    return [{"key": key, "value": value} for _, key, value in given]


TransactionMachine.TestCase.settings = settings(
    max_examples=3 * settings().max_examples // 25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
test_transactions_and_their_model_agree = TransactionMachine.TestCase
