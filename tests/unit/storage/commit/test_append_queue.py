"""Group commit: appends that wait together on one handle are one commit, and each gets its result
as if it had been alone (COMMIT.md §2, H-T8).
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from clog.storage import (
    CommitStateUnknownError,
    CorruptionError,
    InvalidInputError,
    StoreUnavailableError,
)
from clog.storage.commit import appends
from clog.storage.format import documents
from clog.storage.format.commits import edit_of, read_commit
from clog.storage.objects.records import to_records
from clog.storage.store.contract import WrappingStore
from clog_testing.counting import CountingStore
from clog_testing.crash import inside
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log

LATE_MS = 10**12
"""Far ahead of the clock: refused when the append is prepared, not before."""


class Gate(WrappingStore):
    """Holds the create of one commit until the gate is opened."""

    def __init__(self, inner):
        super().__init__(inner)
        self.version, self.raises = -1, None
        self.reached, self.opened = threading.Event(), threading.Event()

    def create(self, path, data):
        if path.endswith(documents.commit_path(self.version)) and not self.opened.is_set():
            self.reached.set()
            self.opened.wait()
            if self.raises is not None:
                raise self.raises
        self.inner.create(path, data)


class Queue(dict):
    """Counts those that arrived."""

    def __init__(self):
        super().__init__()
        self.came = threading.Semaphore(0)

    def __setitem__(self, one, nothing):
        super().__setitem__(one, nothing)
        self.came.release()


class Company:
    """A log on which the first append is held in its create while others queue in order."""

    def __init__(self, log, gate):
        self.log, self.gate = log, gate
        gate.version = log.handle.tip.version + 1
        self.queue = log.handle._appends._waiting = Queue()
        self.pool = ThreadPoolExecutor(64)

    def append(self, *calls):
        """The results of a first append and of those that queue behind it, in this order."""
        made = [self.pool.submit(self.log.append, [row("first")])]
        self.gate.reached.wait()
        self.queue.came.acquire()
        for call in calls:
            is_append = isinstance(call, tuple)
            begun = partial(self.log.append, call[0], **call[1]) if is_append else call
            made.append(self.pool.submit(begun))
            self.queue.came.acquire()
        self.gate.opened.set()
        return [future.exception() or future.result() for future in made]


def row(value, key="k", **more):
    return {"key": key, "value": value, **more}


@pytest.fixture
def gate(store):
    return Gate(store)


@pytest.fixture
def company(make_log, gate):
    made = []

    def make(**named):
        made.append(Company(make_log(on=gate, **named), gate))
        return made[-1]

    yield make
    gate.opened.set()
    for one in made:
        one.pool.shutdown()


def test_those_that_wait_become_one_commit(company, values_of):
    """In their order, each with its own offsets; the commit is an append like any other."""
    made = company(partitions=2)
    first, *others = made.append(*(([row(n)], {"partition": 0}) for n in "abc"))
    assert first.version == 1
    base = others[0].offsets[0][0]
    assert [(r.version, r.offsets) for r in others] == [
        (2, {0: (at, at + 1)}) for at in (base, base + 1, base + 2)
    ]
    commit = read_commit(made.log.handle.store, 2)
    assert commit.record.operation == "append"
    assert made.log.version == 2
    assert values_of(made.log, partition=0)[-3:] == [b"a", b"b", b"c"]
    check_log(made.log.handle.standing.root)


def test_a_group_keeps_the_positions_of_its_members(company):
    """S73: positions in a source that is no log are committed together with another append."""
    made = company()
    log, begun = made.log, []
    for name in ("a", "b"):
        made.gate.version += 1  # That of its taking up.
        t = log.transaction(name)
        t.append([row(name)])
        t.positions("kafka:c/t", {0: (1, "7")})
        begun.append(t.commit)
    outcomes = made.append(*begun, ([row("c")], {}))
    assert [r.version for r in outcomes] == [3, 4, 4, 4]
    assert log.positions("a") == log.positions("b") == {"kafka:c/t": {0: 1}}
    check_log(log.handle.standing.root)


def test_a_lone_append_costs_what_it_did(make_log, store):
    """COMMIT.md §7: it does not wait for others, and makes no further requests."""
    counting = CountingStore(store)
    log = make_log(on=counting)
    with counting.count() as counts:
        log.append([row("a")])
    assert counts == {"put": 1, "create": 1, "get": 1}


def test_one_bad_append_fails_alone(company, values_of):
    """S9: with its own error; the others are committed."""
    made = company()
    outcomes = made.append(
        ([row("a")], {}),
        ([row("b", timestamp=LATE_MS)], {}),
        ([row("c")], {"producer": ("p", 7)}),
        ([row("d")], {"producer": ("p", 6)}),
        ([row("e")], {}),
    )
    assert isinstance(outcomes[2], InvalidInputError)
    assert "ahead of the clock" in str(outcomes[2])
    assert isinstance(outcomes[4], InvalidInputError)
    assert "sequence 6 is lower" in str(outcomes[4])
    assert values_of(made.log) == [b"first", b"a", b"c", b"e"]
    assert made.log.version == 2


def test_the_same_sequence_twice_in_a_group(company, make_log):
    """The second is a duplicate of the first, and gets its offsets; so does one that
    comes later.
    """
    made = company()
    mine = [row("x")], {"producer": ("p", 1)}
    _, _, one, two, other = made.append(
        ([row("a"), row("b")], {}), mine, mine, ([row("y")], {"producer": ("p", 2)})
    )
    assert (one.version, one.offsets, one.duplicate) == (2, {0: (3, 4)}, False)
    assert (two.version, two.offsets, two.duplicate) == (2, {0: (3, 4)}, True)
    assert (other.version, other.offsets) == (2, {0: (4, 5)})
    later = made.log.append([row("y")], producer=("p", 2))
    assert (later.version, later.offsets, later.duplicate) == (2, {0: (4, 5)}, True)
    entries = edit_of(made.log.handle.store, read_commit(made.log.handle.store, 2).record).writers
    assert [(by.entry.sequence, by.first, by.next) for by in entries] == [(1, 1, 2), (2, 2, 3)]


def test_rolls_are_decided_one_after_the_other(company):
    """S7: each append sees the segment as the earlier ones in the group leave it."""
    made = company(config={"segment.chunks": 2})
    made.append(*(([row(n)], {}) for n in "abcd"))
    assert made.log.version == 2
    assert [s.base_offset for s in made.log.segments(0)] == [0, 2, 4]


def test_a_group_is_bounded(company, monkeypatch):
    """Those that do not fit into one commit are in the next; the order is kept."""
    monkeypatch.setattr(appends, "GROUP_APPENDS_MAX", 3)
    made = company()
    results = made.append(*(([row(str(n))], {}) for n in range(7)))
    assert [r.version for r in results] == [1, 2, 2, 2, 3, 3, 3, 4]
    monkeypatch.setattr(appends, "GROUP_CHUNKS_MAX", 4)
    again = Company(made.log, made.gate)
    made.gate.opened.clear()
    made.gate.reached.clear()
    wide = [row(str(n), key=str(n)) for n in range(3)]
    results = again.append(*((wide, {}) for _ in range(3)))
    assert [r.version for r in results] == [5, 6, 6, 6]


def test_an_unknown_outcome_is_told_to_all(make_log, store, gate):
    """Each with an error of its own; an append that was refused for itself gets that error."""
    lost = FaultyStore(
        gate,
        Faults(
            Fault(FaultKind.FAIL_BEFORE, "create", f"*/{documents.commit_path(2)}", times=99),
        ),
    )
    made = Company(make_log(on=lost), gate)
    _, bad, one, two = made.append(
        ([row("x", timestamp=LATE_MS)], {}), ([row("a")], {}), ([row("b")], {"producer": ("p", 1)})
    )
    made.pool.shutdown()
    assert isinstance(bad, InvalidInputError)
    for outcome in (one, two):
        assert isinstance(outcome, CommitStateUnknownError)
    assert one is not two


def test_a_duplicate_of_one_whose_commit_fails_is_asked_again(make_log, store, gate):
    """Nothing was reported to it yet: alone it is the first of its kind."""
    plan = Faults(Fault(FaultKind.REFUSE, "create", f"*/{documents.commit_path(2)}"))
    made = Company(make_log(on=FaultyStore(gate, plan)), gate)
    mine = [row("x")], {"producer": ("p", 1)}
    _, one, two = made.append(mine, mine)
    made.pool.shutdown()
    assert isinstance(one, StoreUnavailableError)
    assert (two.version, two.offsets, two.duplicate) == (2, {0: (1, 2)}, False)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_leader_that_is_interrupted_hands_over(company, error, values_of):
    """Those that were not in its commit continue; the interrupt is raised in its own thread."""
    made = company()
    made.gate.raises = error("stop")
    first, *others = made.append(*(([row(n)], {}) for n in "ab"))
    assert isinstance(first, error)
    assert [r.version for r in others] == [1, 1]
    assert values_of(made.log) == [b"a", b"b"]


def test_a_leader_that_is_interrupted_while_it_gathers_its_group(company, monkeypatch, values_of):
    """The others are still in the queue, and continue without it."""
    made = company()
    group = appends.Group

    def interrupted(members):
        if len(members) == 3:
            raise KeyboardInterrupt
        return group(members)

    monkeypatch.setattr(appends, "Group", interrupted)
    _, *others = made.append(*(([row(n)], {}) for n in "abc"))
    kinds = sorted(type(outcome).__name__ for outcome in others)
    assert kinds == ["AppendResult", "AppendResult", "KeyboardInterrupt"]
    assert len(values_of(made.log)) == 3


def test_company_of_an_interrupted_leader_is_told_that_it_may_have_happened(company, monkeypatch):
    """The interrupt came during the create: the result is unknown, so none of them
    reports success.
    """
    made = company()
    committer = made.log.handle._committer
    commit, calls = committer.commit, iter(range(9))

    def interrupted(prepare, **how):
        if next(calls) != 1:
            return commit(prepare, **how)
        prepare(made.log.handle.tip, 5_000_000)
        raise KeyboardInterrupt

    monkeypatch.setattr(committer, "commit", interrupted)
    _, *others = made.append(*(([row(n)], {}) for n in "abc"))
    kinds = sorted(type(outcome).__name__ for outcome in others)
    assert kinds == ["CommitStateUnknownError", "CommitStateUnknownError", "KeyboardInterrupt"]
    assert made.log.append([row("d")]).version == 2


def test_objects_that_are_appended_twice_at_once(company):
    """An edit names an object once: the second append is in the next commit."""
    made = company()
    writer = made.log.object_writer()
    records, _ = to_records([row("o")], now_us=0)
    writer.add(records, np.zeros(1, np.int32))
    objects = writer.finish()
    made.log.append = lambda rows, **named: made.log.append_objects(objects)
    results = made.append(([], {}), ([], {}))
    assert [r.version for r in results] == [1, 2, 3]
    check_log(made.log.handle.standing.root)


def test_a_group_is_committed_once_where_nobody_can_say_whether_it_was(make_log, store, gate):
    """K5: if the file of its block is missing all get that error, and nothing is written again."""
    faulty = FaultyStore(gate)
    made = Company(make_log(on=faulty), gate)
    folder = inside(store)
    lost = partial(folder.delete, documents.block_path(0))
    faulty.plan = Faults(Fault(FaultKind.MEANWHILE, "get", "*/blocks/*", nth=2, run=lost))
    first, *others = made.append(([row("a")], {}), ([row("b")], {}))
    made.pool.shutdown()
    assert first.version == 1
    for outcome in others:
        assert isinstance(outcome, CorruptionError)
        assert "it is unknown whether version 2 was committed" in str(outcome)
    assert others[0] is not others[1]
    assert len([*folder.list(documents.COMMITS)]) == 3
