"""COMMIT.md §7: what each operation costs in requests, at 10, 1,000 and 10,000 commits.

Requests are counted, absent objects included; nothing is timed. The commits that make a log old
refer to one and the same object: their number matters here, not what is in it.
"""

import itertools
from collections import Counter

import numpy as np
import pytest

from clog.storage import Log, ManualClock
from clog.storage.commit.appends import Writer
from clog.storage.commit.combining import RECENT_VERSIONS
from clog.storage.env import SeededIds
from clog.storage.format.writers import WRITERS_MAX
from clog.storage.objects.records import to_records
from clog_testing.counting import CountingStore
from clog_testing.crash import discard, memory_store
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore

_seeds = itertools.count()
ONE = [{"key": "k", "value": "v"}]
PAGES_MAX = 7
"""Pages of the sealed segments of 10,000 commits: a binary counter of them has at most 6, and one
more as they are compared by their bytes, which depend on the release of the compressor.
"""


def objects_of(log):
    records, _ = to_records(ONE, now_us=0)
    writer = log.object_writer()
    writer.add(records, np.zeros(len(ONE), np.int32))
    return writer.finish()


@pytest.fixture(scope="module", params=[10, 1_000, pytest.param(10_000, marks=pytest.mark.nightly)])
def aged(request):
    """A log of that many commits and a counter of all requests to it."""
    store = CountingStore(memory_store())
    config = {"segment.chunks": 32}
    log = Log.create(
        store, partitions=2, config=config, clock=ManualClock(), ids=SeededIds(next(_seeds))
    )
    objects = objects_of(log)
    for _ in range(request.param):
        log.append_objects(objects)
    yield store
    discard(store)


@pytest.fixture
def log(aged):
    return open_log(aged)


def open_log(store):
    return Log.open(store, clock=ManualClock(), ids=SeededIds(next(_seeds)))


def cost(store, act):
    """The requests of an act."""
    with store.count() as counts:
        act()
    return dict(counts)


def append(log):
    log.append(ONE, partition=0)


def until(log, residue):
    """Appends until the next version is ``residue`` modulo 4."""
    while (log.handle.tip.version + 1) % 4 != residue:
        append(log)


class ProbedStore(CountingStore):
    """A store whose exclusive create is not known to be one."""

    create_is_proven = False


def test_a_warm_append_where_the_create_is_only_probed(aged, log):
    """1 GET more, which reads the commit back."""
    until(log, 1)
    store = ProbedStore(aged.inner)
    weak = open_log(store)
    assert cost(store, lambda: append(weak)) == {"put": 1, "create": 1, "get": 2}


@pytest.mark.parametrize("residue", [1, 2, 3])
def test_a_warm_append(aged, log, residue):
    """1 PUT for the object, 1 PUT for the commit, 1 GET for the block; LIST nowhere."""
    until(log, residue)
    assert cost(aged, lambda: append(log)) == {"put": 1, "create": 1, "get": 1}


def test_every_fourth_version(aged, log):
    """One more PUT, the hint; a snapshot may be due, which costs 2 PUTs and 1 GET and the pages
    that it merges.
    """
    until(log, 0)
    until(log, 1)  # by now this handle knows all edits since the snapshot
    until(log, 0)
    plain = Counter({"put": 2, "create": 1, "get": 1})
    assert_at_most(
        cost(aged, lambda: append(log)), plain + Counter(put=1, create=1, get=1 + PAGES_MAX)
    )


def assert_at_most(found, allowed):
    assert not Counter(found) - allowed, (found, allowed)


def test_snapshots_are_rare(aged, log):
    """Amortised over many commits they are less than a fifth of a request each."""
    objects = objects_of(log)
    count = 400
    with aged.count() as counts:
        for _ in range(count):
            log.append_objects(objects)
    hints, blocks = count // 4, count
    assert counts["create"] + counts["put"] - hints - count < count / 10
    assert counts["get"] - blocks < count / 10
    assert counts["list"] == counts["delete"] == 0


def test_an_append_of_nothing(aged, log):
    assert cost(aged, lambda: log.append([])) == {}


def test_an_idle_poll(aged, log):
    """One GET; the first one after opening also reads the block that opening skipped."""
    assert cost(aged, log.end_offsets) == {"get": 2}
    assert cost(aged, log.end_offsets) == {"get": 1}
    assert cost(aged, lambda: log.version) == {"get": 1}


@pytest.mark.parametrize("age", [1, 2, 3, 4])
def test_an_older_version(aged, log, age):
    """After the search for the newest version: its commit and at most 2 that carry earlier edits,
    the snapshot and its pages, and the block, which may have been closed in the meantime.
    """
    version = log.version - age
    assert_at_most(
        cost(aged, lambda: log.table(at=version)), Counter(get=1 + 3 + 1 + PAGES_MAX + 1)
    )


@pytest.mark.parametrize("residue", range(4))
def test_opening(aged, log, residue):
    """At most 5 GETs, whatever the age: which log is there, the hint, at most 3 probes."""
    until(log, residue)
    found = cost(aged, lambda: open_log(aged))
    assert set(found) == {"get"}
    assert found["get"] <= 5


@pytest.mark.parametrize("residue", range(4))
def test_the_first_look_at_the_segments(aged, log, residue):
    """After opening: the block, the commit at the hint if it was not read, the snapshot and its
    pages.
    """
    until(log, residue)
    cold = open_log(aged)
    found = cost(aged, cold.handle.manifest)
    snapshot = cold.handle.tip.head.snapshot
    assert_at_most(found, Counter(get=2 + (snapshot is not None) + PAGES_MAX))
    assert cost(aged, cold.handle.manifest) == {}


def test_segments_of_a_warm_handle_cost_a_poll(aged, log):
    """A handle that has seen the edits applies them, and reads nothing else."""
    log.segments(0)
    append(log)
    assert cost(aged, lambda: log.segments(0)) == {"get": 1}


@pytest.mark.parametrize("residue", range(4))
def test_the_first_commit_after_opening(aged, log, residue):
    """A version divisible by 4 carries all edits since the snapshot: 2 GETs for those not seen."""
    until(log, residue)
    cold = open_log(aged)
    objects = objects_of(cold)
    found = cost(aged, lambda: cold.append_objects(objects))
    allowed = Counter(create=1, get=1)
    if residue == 0:
        allowed += Counter(put=2, create=1, get=2 + 1 + PAGES_MAX)
    assert_at_most(found, allowed)


@pytest.mark.parametrize("between", [1, 3])
def test_a_lost_race(aged, between):
    """1 PUT, and 1 GET for each version in between and for the one that does not exist; then the
    append is proposed, and those of others are looked for (COMMIT.md §14).
    """
    log = open_log(aged)
    until(log, 1)
    objects = objects_of(log)

    def others():
        for _ in range(between):
            append(log)

    late = FaultyStore(
        aged.inner, Faults(Fault(FaultKind.MEANWHILE, "create", "*/commits/*", run=others))
    )
    loser = open_log(late)
    loser.end_offsets()
    before = len(late.calls)
    loser.append_objects(objects)
    hint = (loser.handle.tip.version % 4 == 0) * 1
    counts = Counter(call.operation for call in late.calls[before:])
    lost = Counter(create=2, get=between + 2, list=2)
    extra = Counter(put=2, create=1, get=3 + PAGES_MAX) if hint else Counter()
    assert_at_most(counts, Counter(create=1, get=1) + lost + extra)


def test_changes_by_an_operator(aged, log):
    """A check of the newest version, then one commit."""
    for _ in range(RECENT_VERSIONS + 1):  # Nobody combines any more.
        append(log)
    changes = [
        lambda: log.alter({"retention.ms": log.handle.tip.version + 1}),
        lambda: log.delete_records({0: log.start_offsets()[0] + 1}),
        lambda: log.roll(0),
    ]
    for change in changes:
        while log.handle.tip.version % 4 == 3:
            append(log)
        found = cost(aged, change)
        assert_at_most(found, Counter(create=1, get=3))
    assert cost(aged, lambda: log.delete_records({0: 0})) == {"get": 1}


def test_a_duplicate(aged, log):
    """A GET for the first result; nothing is written, not even an object."""
    log.append(ONE, producer=("p", log.handle.tip.version))
    sequence = log.handle.tip.head.writers[-1].sequence
    assert cost(aged, lambda: log.append(ONE, producer=("p", sequence))) == {"get": 1}


def test_a_handle_that_was_idle(aged):
    """After ten minutes it reads the block before it trusts a probe; after ten seconds, which log
    is there, and whether its newest known commit still is.
    """
    clock = ManualClock()
    log = Log.open(aged, clock=clock)
    assert cost(aged, lambda: log.version) == {"get": 2}  # The first look after opening: the block.
    clock.advance(600_001)
    assert cost(aged, lambda: log.version) == {"get": 4}
    assert cost(aged, lambda: log.version) == {"get": 1}


def test_many_writers():
    """While the older ones are one page, each 33rd new writer rewrites it; the writer of the page
    knows it.
    """
    store = CountingStore(memory_store())
    log = Log.create(store, partitions=1, clock=ManualClock(), ids=SeededIds(next(_seeds)))
    objects = objects_of(log)
    for i in range(WRITERS_MAX + 1):
        log.append_objects(objects, Writer(f"w{i}", "txn", 1))
    with store.count() as counts:
        for i in range(320):
            log.append_objects(objects, Writer(f"v{i}", "txn", 1))
    plain = Counter(create=320, put=80, get=320)
    snapshots = Counter(create=20, put=20, get=20)
    assert_at_most(counts, plain + Counter(put=320 // (WRITERS_MAX // 2)) + snapshots)
    discard(store)
