"""Crash enumeration of the commit protocol (COMMIT.md §3): every call of the store, before and
after.

Each scenario is run once to count its calls, then again for each call with the process killed
before it, killed after it, or with the call's reply lost, or a create refused. Whatever is left is
reopened, checked as a whole, and must be the old state or the new one, nothing else; then the work
is done again.
"""

from collections import Counter
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest

from clog.storage import AlreadyExistsError, ClogError, Log, ManualClock, NotFoundError
from clog.storage.commit.appends import Writer
from clog.storage.env import Clock, SeededIds
from clog.storage.errors import CommitStateUnknownError
from clog.storage.format import documents
from clog.storage.objects.records import to_records
from clog.storage.store.contract import WrappingStore
from clog_testing.crash import crash_runs, discard, inside, memory_store, unlike
from clog_testing.invariants import check_log
from clog_testing.model import rows_in
from clog_testing.older import as_before

CLOCK: Clock = ManualClock(now_ms=5_000)
ONE = [{"key": "a", "value": "1", "timestamp": 1}]
TWO = [{"key": k, "value": "2", "timestamp": 2} for k in "bcd"]


def create(store, seed=1, partitions=2, **options):
    return Log.create(store, partitions, clock=ManualClock(5_000), ids=SeededIds(seed), **options)


def reopen(store, seed):
    return Log.open(store, clock=ManualClock(5_000), ids=SeededIds(seed))


def state_of(store):
    """What a user can see of a log; None if there is none."""
    try:
        log = reopen(store, 99)
    except NotFoundError:
        return None
    head = log.handle.tip.head
    names = ("me", *(f"w{i}" for i in range(12)))
    found = {name: log.handle.find_writer("producer", name) for name in names}
    entries = {name: one and one.sequence for name, one in found.items()}
    return (
        head.partitions.start,
        head.partitions.end,
        rows_in(log.read()),
        [s.base_offset for p in range(2) for s in log.segments(p)],
        dict(head.config),
        head.log.schema,
        head.log.features,
        entries,
    )


def filled(store):
    """A log with a few versions; the next is not divisible by 4."""
    log = create(store)
    for _ in range(4):
        log.append(ONE, partition=0)


def typed(store):
    """A log with a schema; the next version is not divisible by 4."""
    schema = {"key": pa.struct([("k", pa.string())]), "value": pa.struct([("n", pa.int32())])}
    log = create(store, schema=schema)
    for n in range(4):
        log.append([{"key": {"k": "a"}, "value": {"n": n}}], partition=0)


def without_features(store):
    """A log of the time before there were any; the next version is not divisible by 4."""
    with as_before():
        filled(store)


def before_a_snapshot(store):
    """A log of sealed segments whose next version is divisible by 4."""
    log = create(store, config={"segment.chunks": 1})
    for _ in range(7):
        log.append(ONE, partition=0)


def four_writers(store):
    """A log whose head knows four writers; the next version is not divisible by 4."""
    log = create(store)
    for i in range(5):
        log.append(ONE, partition=0, producer=(f"w{i % 4}", i))


def of_many_partitions(store):
    """A log whose commits change few partitions; the next version is not divisible by 4."""
    log = create(store, partitions=8)
    log.append(ONE, partition=0)


@contextmanager
def small_pages_of_writers():
    """A head that may hold four writers, and pages of two or three."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clog.storage.format.writers.WRITERS_MAX", 4)
        patch.setattr("clog.storage.format.writers.PAGE_BYTES_MAX", 300)
        yield


def twelve_writers(store):
    """A log whose head is full; eight older writers are in a tree of three levels."""
    log = create(store)
    with small_pages_of_writers():
        for i in range(12):
            log.append(ONE, partition=0, producer=(f"w{i}", i))
    assert log.handle.tip.head.older_writers.level == 2


def append(log):
    return log.append(TWO, partition=1, producer=("me", 7))


def append_columns(log):
    rows = [{"key": {"k": k}, "value": {"n": 2}} for k in "bcd"]
    return log.append(rows, partition=1, producer=("me", 7))


def evolve(log):
    """Once: done again, nothing is left to do."""
    if "later" not in [field.name for field in log.schema.field("value").type]:
        log.evolve(add={"value.later": pa.int8()}, widen={"value.n": pa.int64()})


def append_several_objects(log):
    """Like the tasks of a batch: three objects, one commit."""
    objects = []
    for p in (0, 1, 1):
        records, _ = to_records(TWO, now_us=0)
        writer = log.object_writer()
        writer.add(records, np.full(3, p, np.int32))
        objects += writer.finish()
    return log.append_objects(objects, Writer("me", "stream", 7, "query", "aa"))


def append_with_a_large_edit(log):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clog.storage.format.commits.INLINE_EDIT_BYTES_MAX", 10)
        return append(log)


def append_with_a_snapshot(log):
    """Small limits, so that the edits outweigh the snapshot and its segments fill a page."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clog.storage.commit.committer.SNAPSHOT_EDIT_BYTES_MIN", 10)
        patch.setattr("clog.storage.format.manifest.PAGE_CHUNKS_MIN", 3)
        return append(log)


def append_with_a_full_head(log):
    """A head that may hold four writers: this append moves three of them to pages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clog.storage.format.writers.WRITERS_MAX", 4)
        result = append(log)
    assert log.handle.tip.head.older_writers.count == 3
    return result


def append_beside_a_tree_of_writers(log):
    """Each page on the path of the writer that leaves the head is rewritten, and one is split."""
    with small_pages_of_writers():
        return append(log)


def append_with_columns(log):
    """A head that holds all columns of few partitions: this append writes them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clog.storage.format.columns.INLINE_PARTITIONS_MAX", 4)
        return append(log)


def append_that_begins_a_block(log):
    """The first commit of a block, whose file is made before it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clog.storage.format.documents.BLOCK_VERSIONS", 8)
        result = append(log)
    assert result.version == 8
    return result


SCENARIOS = {
    "append": (filled, append),
    "append of several objects": (filled, append_several_objects),
    "append with a large edit": (filled, append_with_a_large_edit),
    "append with snapshot, page and hint": (before_a_snapshot, append_with_a_snapshot),
    "append that pages writers out": (four_writers, append_with_a_full_head),
    "append with columns": (of_many_partitions, append_with_columns),
    "append beside a tree of writers": (twelve_writers, append_beside_a_tree_of_writers),
    "append that begins a block": (before_a_snapshot, append_that_begins_a_block),
    "append to a typed log": (typed, append_columns),
    "evolve": (typed, evolve),
    "alter": (filled, lambda log: log.alter({"segment.chunks": 1})),
    "delete_records": (filled, lambda log: log.delete_records({0: 2})),
    "roll": (filled, lambda log: log.roll()),
    "the first commit to an older log": (without_features, append),
    "upgrade": (without_features, lambda log: log.upgrade(["proposals"])),
}
IDEMPOTENT = {name for name in SCENARIOS if "append" not in name}


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_crash_leaves_the_old_or_the_new_state(name):
    """C1 to C7, C10: after each, the log opens, is whole, and shows one of the two states;
    repeating the work gives exactly the new one, since the producer's entry answers for what had
    happened.
    """
    begin, act = SCENARIOS[name]
    states = {}
    seen = Counter()
    for run in unlike(crash_runs(begin, lambda store: act(reopen(store, 2)))):
        if not states:
            states = expected_states(begin, act)
        check_log(run.store, every_version=False)
        state = state_of(run.store)
        assert state in states.values(), str(run)
        happened = state == states["new"]
        seen[run.point] += 1
        if run.killed:
            assert happened == (run.point in ("C6", "C7")), str(run)
        elif run.error is not None and not isinstance(run.error, CommitStateUnknownError):
            assert not happened, f"{run}: {run.error}"
        elif run.error is None:
            assert happened, str(run)
            assert name in IDEMPOTENT or not run.result.duplicate
        again = act(reopen(run.store, 3))
        assert state_of(run.store) == states["new"], str(run)
        if name not in IDEMPOTENT:
            assert again.duplicate == happened
        check_log(run.store, every_version=False)
        discard(run.store)
    expected = {"C1", "C2", "C5", "C6", "C7"} if "append" in name else {"C5", "C6", "C7"}
    assert expected <= set(seen), seen
    if "snapshot" in name:
        assert {"C3", "C4"} <= set(seen), seen
    if "columns" in name:
        assert "C10" in seen, seen


def expected_states(begin, act):
    """The state before and after, undisturbed."""
    store = memory_store()
    begin(store)
    old = state_of(store)
    act(reopen(store, 2))
    states = {"old": old, "new": state_of(store)}
    discard(store)
    assert states["old"] != states["new"]
    return states


def test_every_crash_of_create():
    """C5, C8, C9: there is a log or there is none; creating again makes one, or finds it (S47)."""
    seen = Counter()
    for run in crash_runs(lambda store: None, create):
        state = state_of(run.store)
        happened = state is not None
        seen[run.point] += 1
        if run.killed:
            assert happened == (run.point == "C9"), str(run)
        elif run.error is None:
            assert happened, str(run)
        elif not isinstance(run.error, CommitStateUnknownError):
            # What failed after the creation was only the opening.
            assert not happened or run.point == "C9", f"{run}: {run.error}"
        if happened:
            check_log(run.store)
            with pytest.raises(AlreadyExistsError):
                create(run.store, seed=4)
        else:
            create(run.store, seed=4)
        assert reopen(run.store, 5).append(ONE, partition=0).version == 1
        discard(run.store)
    assert {"C5", "C8", "C9"} <= set(seen), seen


class LookedTooEarly(WrappingStore):
    """The store of a creator that looked for a log before there was one."""

    looked = False

    def get(self, path, start=None, end=None):
        data = self.inner.get(path, start, end)
        if path == documents.LOG_FILE and not self.looked:
            self.looked = True
            raise FileNotFoundError(path)
        return data


def test_every_crash_of_a_creator_that_came_second():
    """S47: whatever it left, the log that is there is the first one's, and whole."""

    def act(store):
        with pytest.raises(AlreadyExistsError):
            create(LookedTooEarly(store), seed=2)

    standing, operations = set(), Counter()
    for run in crash_runs(filled, act):
        operations[run.call.operation] += 1
        assert state_of(run.store)[1] == (4, 0), str(run)
        check_log(run.store)
        standing.add(reopen(run.store, 5).handle.standing.log_id)
        assert reopen(run.store, 5).append(ONE, partition=0).version == 5
        discard(run.store)
    assert len(standing) == 1
    assert operations["create"] >= 3 * 5
    assert operations["delete"] == 2 * 3


@pytest.mark.parametrize(
    "name",
    [
        "append with snapshot, page and hint",
        "append with a large edit",
        "append with columns",
        "append beside a tree of writers",
    ],
)
def test_crashes_leave_only_garbage_that_the_sweep_knows(name):
    """C1 to C4, C10: what is left of a commit that did not happen is where the sweep looks."""
    swept = (
        documents.DATA,
        documents.PAGES,
        documents.EDITS,
        documents.SNAPSHOTS,
        documents.COLUMNS,
    )
    begin, act = SCENARIOS[name]
    store = memory_store()
    begin(store)
    before = {found.path.partition("-")[0] for found in inside(store).list("")}
    discard(store)
    for run in crash_runs(begin, lambda store: act(reopen(store, 2))):
        if run.point in ("C1", "C2", "C3", "C4", "C5", "C10") and run.killed:
            found = {found.path for found in inside(run.store).list("")}
            left = {path for path in found if path.partition("-")[0] not in before}
            assert all(path.startswith(swept) for path in left), (str(run), left)
        discard(run.store)


def test_a_crash_of_a_reader_leaves_nothing():
    """Reading, the table, describe: none of their calls writes."""

    def act(store):
        log = reopen(store, 2)
        list(log.read())
        log.table().to_arrow()
        log.offsets_for_times(0)
        return log.describe()

    for run in crash_runs(filled, act):
        assert run.call.operation in ("get", "get_ranges")
        assert run.killed or run.error is None or isinstance(run.error, ClogError)
        assert state_of(run.store)[1] == (4, 0)
        discard(run.store)
