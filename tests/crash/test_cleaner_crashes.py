"""Crash enumeration of the cleaner: every call of the store that a round makes, before and after
(COMMIT.md §3, §5).

Each scenario is run once to count its calls, then again for each call with the process killed
before it, killed after it, or with the call's reply lost, or a create refused. Whatever is left is
reopened and checked as a whole: the table is right, every readable version reads as it did, and the
work done again ends where an undisturbed run ends. Days later the sweep leaves only what is needed.
Many runs leave the same behind, byte by byte (killed after one call, or before the next): that is
checked once.
"""

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties.layout import coalesce, trim
from clog.cleaner.duties.retention import apply_retention, seal_idle
from clog.cleaner.duties.sweep import sweep_orphans, sweep_released
from clog.cleaner.masks import keep_masks
from clog.storage import Log, ManualClock
from clog.storage.env import SeededIds
from clog.storage.objects.records import to_records
from clog.storage.read.scan import KeyIndexCache
from clog.storage.read.table import table_batches
from clog.storage.types.columns import BYTES
from clog_testing.crash import contents, copy_of, crash_runs, discard, inside, memory_store
from clog_testing.invariants import check_log
from clog_testing.model import rows_in

BEGIN_MS = 1_000_000_000
HOUR_MS = 3_600_000
LATER_MS = 50 * HOUR_MS
CONFIG = {"segment.bytes": 42, "delete.retention.ms": 1000, "file.delete.delay.ms": 5000}


def open_at(store, now_ms, seed=50):
    return Log.open(store, clock=ManualClock(now_ms), ids=SeededIds(seed))


TYPED = {"key": pa.string(), "value": pa.struct([("n", pa.int64()), ("t", pa.string())])}
"""Of values as long as those of bytes: only text counts where there is no number."""


def value_of(log, text):
    return text if log.schema == BYTES else {"t": text}


def put(log, *texts):
    """Appends the words of each text: ``a=1``, or ``a``, a tombstone."""
    for text in texts:
        words = [word.partition("=") for word in text.split()]
        rows = [{"key": k, "value": value_of(log, v) if eq else None} for k, eq, v in words]
        log.append(rows, partition=0)


def dirty(store, **config):
    """Three groups of segments with dead records, tombstones in segments that are left alone, an
    active segment, an object of both partitions."""
    given = CONFIG | {name.replace("_", "."): value for name, value in config.items()}
    log = Log.create(store, 2, given, clock=ManualClock(BEGIN_MS), ids=SeededIds(1))
    put(log, "a=1 b=1 b=2", "c=1 d=1 d=2", "e f g", "h=1 h=2 i=1")
    rows = [{"key": k, "value": value_of(log, "1")} for k in "xxyyxx"]
    log.append(rows, partition=np.array([0, 1] * 3))
    log.roll()
    put(log, "a=9 z=1")


def with_horizons(store):
    """Tombstones that have had their time, and objects that have been replaced."""
    dirty(store)
    log = open_at(store, BEGIN_MS, seed=2)
    Cleaner(log).run_once(force=True)
    put(log, "b=3 q=1")


def unneeded(store):
    """Replaced objects and one that was never committed."""
    with_horizons(store)
    log = open_at(store, BEGIN_MS + HOUR_MS, seed=3)
    writer = log.object_writer()
    records, _ = to_records([{"key": "a", "value": "1"}], now_us=5)
    writer.add(records, np.zeros(1, np.int32))
    writer.finish()
    put(log, "k=1")
    Cleaner(log).run_once(force=True)
    log.handle.clock.advance(1)
    put(log, "k=2")


def expired(store):
    """Segments that have had their time, and a log start in the middle of one."""
    dirty(store, cleanup_policy="compact,delete", retention_ms=HOUR_MS)
    open_at(store, BEGIN_MS, seed=4).delete_records({0: 4, 1: 1})


def below_the_start(store):
    dirty(store)
    open_at(store, BEGIN_MS, seed=4).delete_records({0: 4, 1: 1})


def marked(store):
    """A chunk with a dead row, one more that is to die, in a bitmap file each."""
    given = CONFIG | {"segment.bytes": 2000, "object.bytes": 800}
    log = Log.create(store, 2, given, clock=ManualClock(BEGIN_MS), ids=SeededIds(1))
    put(log, " ".join(f"{key}=1" for key in "abcdefghijklmnopqrstuvwx"))
    log.roll()
    put(log, "a=2")
    log.roll()
    clean(log)
    put(log, "b=2 y")
    log.roll()


def late(store):
    """Records that came after a tombstone of a higher order was removed, some of keys that the log
    has no other record of; one chunk has none but these."""
    order = {"compaction.strategy": "timestamp", "compaction.late": "drop"}
    given = CONFIG | order | {"segment.bytes": 200}
    log = Log.create(store, 2, given, clock=ManualClock(BEGIN_MS), ids=SeededIds(1))
    put_in_order(log, ("gone", None, 90), ("a", "1", 50))
    for now_ms in (BEGIN_MS, BEGIN_MS + 1000):
        log.roll()
        clean(open_at(store, now_ms, seed=8 + now_ms % 7))
    assert open_at(store, BEGIN_MS).handle.manifest().orders_removed
    put_in_order(log, ("gone", "late", 80), ("a", "2", 60), ("a", "0", 40), ("b", None, 95))
    put_in_order(log, ("other", "late", 70))
    log.roll()
    put_in_order(log, ("b", "loser", 94), ("gone", "later", 79))


def put_in_order(log, *rows):
    """Appends rows of key, value and order."""
    at_ms = BEGIN_MS - 1000
    made = [{"key": k, "value": v, "timestamp": at_ms + order} for k, v, order in rows]
    log.append(made, partition=0)


def to_mask(store):
    """Chunks with masks, and some that came since and supersede some of theirs."""
    dirty(store)
    log = open_at(store, BEGIN_MS, seed=5)
    log.alter({"table.masks": "true"})
    mask(log)
    put(log, "b=3 h", "z=2 b=4")


def masked(store):
    """All chunks have masks, some of which are carried over, others go."""
    to_mask(store)
    mask(open_at(store, BEGIN_MS, seed=6))


def shared(store):
    """Micro-batches, each an object of both partitions, in one segment of each."""
    given = CONFIG | {"segment.bytes": 200}
    log = Log.create(store, 2, given, clock=ManualClock(BEGIN_MS), ids=SeededIds(1))
    for keys in ("abAB", "acAC", "bdBD"):
        rows = [{"key": k, "value": value_of(log, "1") if k != "c" else None} for k in keys]
        log.append(rows, partition=np.array([0, 0, 1, 1]))
    log.roll()
    put(log, "d=2")


def shared_and_masked(store):
    shared(store)
    log = open_at(store, BEGIN_MS, seed=5)
    log.alter({"table.masks": "true"})
    mask(log)


def mask(log):
    handle = log.handle
    handle.refresh()
    keep_masks(handle, KeyIndexCache(handle.store, seed=handle.tip.head.log.key_seed))


def clean(log):
    Cleaner(log, dedupe_buffer_bytes=1 << 12).run_once(force=True)


def clean_with_a_small_map(log):
    cleaner = Cleaner(log, dedupe_buffer_bytes=9 * 24)
    while cleaner.run_once(force=True):
        pass


def clean_coalescing_first(log):
    """Of three objects that both partitions share, whatever it costs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clog.cleaner.duties.layout.is_worth_coalescing", bool)
        clean(log)


def seal(log):
    seal_idle(Work(log.handle, log.handle.clock.now_ms()))


def retain(log):
    apply_retention(Work(log.handle, log.handle.clock.now_ms()))


def trim_it(log):
    trim(Work(log.handle, 0))


def coalesce_it(log):
    coalesce(Work(log.handle, log.handle.clock.now_ms()), force=True)


def sweep_replaced(log):
    sweep_released(Work(log.handle, log.handle.clock.now_ms()))


def sweep_the_rest(log):
    sweep_orphans(Work(log.handle, log.handle.clock.now_ms()))


SCENARIOS = {
    "clean": (dirty, clean, BEGIN_MS),
    "clean, map of 8 keys": (dirty, clean_with_a_small_map, BEGIN_MS),
    "clean, tombstones go": (with_horizons, clean, BEGIN_MS + 1000),
    "clean, all maintenance": (unneeded, clean, BEGIN_MS + LATER_MS),
    "clean, few rows are dead": (marked, clean, BEGIN_MS + 1),
    "clean, dead rows have waited": (marked, clean, BEGIN_MS + 8 * 24 * HOUR_MS),
    "clean, what was coalesced first": (shared, clean_coalescing_first, BEGIN_MS),
    "clean, what was coalesced first, with masks": (
        *(shared_and_masked, clean_coalescing_first),
        BEGIN_MS,
    ),
    "clean, late ones go": (late, clean, BEGIN_MS + 2000),
    "seal": (dirty, seal, BEGIN_MS + 8 * 24 * HOUR_MS),
    "retention": (expired, retain, BEGIN_MS + 2 * HOUR_MS),
    "trim": (below_the_start, trim_it, BEGIN_MS),
    "coalesce": (shared, coalesce_it, BEGIN_MS),
    "masks": (to_mask, mask, BEGIN_MS),
    "clean, with masks": (masked, clean, BEGIN_MS),
    "coalesce, with masks": (shared_and_masked, coalesce_it, BEGIN_MS),
    "sweep of replaced objects": (unneeded, sweep_replaced, BEGIN_MS + LATER_MS),
    "sweep of orphans": (unneeded, sweep_the_rest, BEGIN_MS + LATER_MS),
}


def typed_too(name):
    """A scenario over a log with a schema, which evolved before the cleaner came."""
    begin, act, now_ms = SCENARIOS[name]

    def begin_typed(store):
        made = partial(Log.create, schema=TYPED)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Log, "create", made)
            begin(store)
        open_at(store, now_ms, seed=7).evolve(add={"value.later": pa.int8()})

    return begin_typed, act, now_ms


OF_TYPED = (
    "clean, tombstones go",
    "clean, what was coalesced first",
    "clean, few rows are dead",
    "clean, dead rows have waited",
    "trim",
    "coalesce",
)
SCENARIOS |= {f"typed: {name}": typed_too(name) for name in OF_TYPED}


def rows_of(batches):
    """Rows that can stand in sets."""
    return [
        (p, offset, replace(record, value=str(record.value)))
        if isinstance(record.value, dict)
        else (p, offset, record)
        for p, offset, record in rows_in(batches)
    ]


def table_of(log, at=None):
    return sorted(rows_of(log.table(at=at).to_batches()), key=str)


def tables(store, now_ms, since=0):
    """What each readable version says."""
    log = open_at(store, now_ms)
    oldest = max(since, log.handle.tip.head.oldest_readable)
    return {at: table_of(log, at) for at in range(oldest, log.version + 1)}


def state(store, now_ms):
    """What a user can see."""
    log = open_at(store, now_ms)
    segments = [[s.base_offset for s in log.segments(p)] for p in range(2)]
    return rows_of(log.read()), log.start_offsets(), log.end_offsets(), segments


def outcome(begun, act, now_ms):
    """What an undisturbed run makes of it."""
    copy = copy_of(begun)
    act(open_at(copy, now_ms, seed=60))
    made = state(copy, now_ms), set(tables(copy, now_ms)[open_at(copy, now_ms).version])
    discard(copy)
    return made


@pytest.fixture(autouse=True)
def small_maps(monkeypatch):
    """A table's map of 128 MiB would be cleared for each partition of each version."""
    small = partial(table_batches, map_bytes=1 << 12)
    monkeypatch.setattr("clog.storage.read.table.table_batches", small)


SURVIVED = ("lost_reply", "refused", "denied")


@pytest.fixture(autouse=True)
def bitmap_files(monkeypatch):
    """However short a bitmap is."""
    monkeypatch.setattr("clog.storage.format.chunks.INLINE_BYTES_MAX", 0)


AT_NIGHT = {
    *("clean, map of 8 keys", "clean, with masks", "clean, all maintenance"),
    "clean, what was coalesced first, with masks",
    *(name for name in SCENARIOS if name.startswith("typed: ") and name != "typed: trim"),
}
"""They pass the points of the others, with more calls between."""


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(scenario, id=name, marks=[pytest.mark.nightly] * (name in AT_NIGHT))
        for name, scenario in SCENARIOS.items()
    ],
)
def test_every_crash_point(scenario):
    """A killed round leaves the log right at every point, and another one finishes its work (masks:
    C24 to C26)."""
    begin, act, now_ms = scenario
    seen, checked = Counter(), set()
    before, expected = {}, []

    def begin_once(store):
        begin(store)
        before.update(tables(store, now_ms))
        expected.extend(outcome(store, act, now_ms))

    for run in crash_runs(begin_once, lambda store: act(open_at(store, now_ms, seed=60))):
        seen[run.when] += 1
        assert run.killed or run.error is not None or run.when in SURVIVED
        left = contents(run.store)
        if left not in checked:
            checked.add(left)
            check(run, before, expected, act, now_ms)
        discard(run.store)
    assert seen["before"] == seen["after"] == seen["lost_reply"] > 3
    assert seen["refused"] == seen["denied"] > 0


def check(run, before, expected, act, now_ms):
    manifest = check_log(run.store, every_version=False)
    # Old versions show nothing below the log start (S36).
    starts = manifest.head.partitions.start
    before = {at: [row for row in rows if row[1] >= starts[row[0]]] for at, rows in before.items()}
    # Two versions of before are enough: it is the objects of both that a pass lets go.
    since = max(max(before) - 1, manifest.head.oldest_readable)
    found = tables(run.store, now_ms, since)
    assert {at: found[at] for at in before if at in found} == {
        at: before[at] for at in before if at >= since
    }, run
    newest = set(found[manifest.version])
    assert newest in (set(before[max(before)]), expected[1]), run
    # Again, by another process.
    act(open_at(run.store, now_ms, seed=61))
    assert state(run.store, now_ms) == expected[0], run
    # Days later nothing is left that is not needed.
    later_ms = now_ms + LATER_MS
    log = open_at(run.store, later_ms, seed=62)
    put(log, "last=1")
    log.handle.clock.advance(LATER_MS)
    sweep_released(Work(log.handle, log.handle.clock.now_ms()))
    sweep_orphans(Work(log.handle, log.handle.clock.now_ms()))
    needed = set(check_log(run.store, every_version=False).files())
    assert {found.path for found in inside(run.store).list("data/")} == needed, run


def test_the_scenario_of_shared_objects_has_some():
    """Else it would enumerate nothing of the kind: they are coalesced, and first."""
    store = memory_store()
    shared(store)
    log = open_at(store, BEGIN_MS)
    assert len(log.handle.manifest().segments[0][0].chunks) == 3
    version = log.version
    clean_coalescing_first(log)
    operations = [c.operation for c in log.history() if c.version > version]
    assert operations == ["coalesce", "clean", "clean"]
    discard(store)


def test_the_scenarios_of_dead_rows_have_some():
    """Else they would enumerate nothing of the kind: a bitmap takes another's place, or goes."""
    for now_ms, left in ((BEGIN_MS + 1, [2]), (BEGIN_MS + 8 * 24 * HOUR_MS, [])):
        store = memory_store()
        marked(store)
        assert dead_rows_in(store) == [1]
        clean(open_at(store, now_ms))
        assert dead_rows_in(store) == left
        assert len([f for f in inside(store).list("data/") if f.path.endswith(".dead")]) == 1 + len(
            left
        )
        discard(store)


def dead_rows_in(store):
    chunks = check_log(store, every_version=False).chunks()
    return [c.dead.rows for _, c in chunks if c.dead is not None]


def test_the_crash_points_of_the_sweep_are_hit():
    """W1-W6: floor, listing, deletions, oldest readable version, deletions, forgetting."""
    hit = set()
    for act in (sweep_replaced, sweep_the_rest):
        for run in crash_runs(unneeded, lambda s, a=act: a(open_at(s, BEGIN_MS + LATER_MS, 60))):
            hit.add(run.call.operation)
            discard(run.store)
    assert {"create", "delete", "list"} <= hit
