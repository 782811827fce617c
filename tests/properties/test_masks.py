"""Masks of superseded rows against the model (FORMAT.md §13), for random histories.

With passes, coalescing, deletions, rewrites that were planned before masks were set, and masks that
lag behind: tables, changes and state tables are the model's, and no bit is wrong, at any version.
"""

from unittest.mock import patch

from hypothesis import Phase, event, given, settings
from hypothesis import strategies as st

from clog.cleaner import Cleaner, masks
from clog.cleaner.duties import Work
from clog.cleaner.duties.layout import coalesce
from clog.cleaner.masks import keep_masks, offsets_of
from clog.storage import Log, ManualClock
from clog.storage.diagnostics.verify import mask_findings, verify_log
from clog.storage.env import SeededIds
from clog.storage.format import chunks
from clog.storage.format.chunks import read_bitmap
from clog.storage.publications.source import view_masks
from clog.storage.read.scan import KeyIndexCache
from clog.storage.read.table import (
    ROW_BYTES,
    latest_batches,
    plan_table,
    small_view_batches,
    table_batches,
)
from clog_testing.crash import discard, inside, memory_store
from clog_testing.model import ModelLog, fields_of, rows_in
from clog_testing.published import shown_rows
from clog_testing.strategies import TIME_MS_MAX, placed_records

PARTITIONS = 2
CONFIG = {
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "1000",
    "file.delete.delay.ms": "1000000",
    "segment.bytes": "300",
}


class GapModel(ModelLog):
    """The model of a log whose records may be None: offsets without a record."""

    def read(self, p, start=None, end=None):
        return [row for row in super().read(p, start, end) if row[2] is not None]


class World:
    """A log with masks, and its model."""

    features = ()

    def __init__(self, nulls):
        self.clock = ManualClock(now_ms=TIME_MS_MAX)
        self.store = memory_store()
        self.model = GapModel(PARTITIONS)
        config = {"cleanup.policy": "delete", "retention.ms": "-1"} if nulls else {}
        self.log = Log.create(
            *(self.store, PARTITIONS, {**CONFIG, **config}),
            clock=self.clock,
            features=self.features,
            ids=SeededIds(1),
        )
        self.log.alter({"table.masks": "true"})
        self.seed = 1

    def opened(self):
        self.seed += 1
        return Log.open(self.store, clock=self.clock, ids=SeededIds(self.seed))

    def perform(self, name, argument):
        match name:
            case "append":
                self.log.append(
                    [fields_of(r) for _, r in argument], partition=[p for p, _ in argument]
                )
                self.model.append(argument)
            case "roll":
                self.log.roll()
            case "advance":
                self.clock.advance(argument)
            case "clean":
                log = self.opened()
                Cleaner(log).run_once(force=True)
                assert not log.handle.manifest().uncleanable
            case "coalesce":
                handle = self.opened().handle
                coalesce(Work(handle, self.clock.now_ms()), force=True)
            case "mask":
                masked(self.opened(), argument)
            case "late":
                self.late(argument)
            case "delete":
                ends = self.log.end_offsets()
                self.log.delete_records({p: int(end * argument) for p, end in ends.items()})
                self.model.starts = list(self.log.start_offsets().values())

    def late(self, what):
        """A rewrite, or masks, planned before masks are set or chunks rewritten, commits after."""
        handle, other = self.opened().handle, self.opened()
        commit, done = handle.commit, []

        def late(prepare, *, operation):
            if not done and operation == what:
                done.append(operation)
                if what == "mask":
                    Cleaner(other).run_once(force=True)
                else:
                    masked(other, 1000)
            return commit(prepare, operation=operation)

        handle.commit = late
        if what == "mask":
            masked(Log(handle), 1000)
        elif what == "clean":
            Cleaner(Log(handle)).run_once(force=True)
        else:
            coalesce(Work(handle, self.clock.now_ms()), force=True)

    def check_reads(self):
        """What is read are records of the model, including all that its table has."""
        for p in range(PARTITIONS):
            found = rows_in(self.log.read(p))
            rows = self.model.read(p)
            assert [row for row in rows if row in found] == found
            assert {*self.model.table(p).values()} <= {*found}
        assert list(self.log.end_offsets().values()) == [*map(self.model.end, range(PARTITIONS))]

    def expected(self):
        tables = [self.model.table(p) for p in range(PARTITIONS)]
        return {(p, key): row for p in range(PARTITIONS) for key, row in tables[p].items()}


class Mirror(World):
    """A log with masks that takes offsets (FORMAT.md §16); a record's time says how many offsets
    without a record are before it.
    """

    features = ("given-offsets",)

    def perform(self, name, argument):
        match name:
            case "append":
                ends = [self.model.end(p) for p in range(PARTITIONS)]
                offsets = []
                for p, record in argument:
                    ends[p] += (0, 0, 0, 1, 5)[record.timestamp_ms % 5]
                    offsets.append(ends[p])
                    ends[p] += 1
                self._commit(argument, offsets, {}, {})
            case "skip":
                p, count, begins = argument
                ends = {p: self.model.end(p) + count}
                self._commit([], [], ends, {p: ends[p] - 1} if begins else {})
            case "both":
                (p, count, begins), records = argument
                first = self.model.end(p) + count
                mine = [(p, record) for _, record in records]
                offsets = range(first, first + len(mine))
                ends = {p: first + len(mine) + count}
                self._commit(mine, offsets, ends, {p: first + 1} if begins else {})
            case _:
                super().perform(name, argument)

    def _commit(self, placed, offsets, ends, starts):
        model = self.model
        with self.log.transaction("mirror") as t:
            if ends:
                t.cover(ends, start=starts)
            if placed:
                rows = [fields_of(record) for _, record in placed]
                t.append(rows, [p for p, _ in placed], offsets=list(offsets))
        for (p, record), offset in zip(placed, offsets, strict=True):
            model.records[p] += [None] * (offset - model.end(p))
            model.records[p].append(record)
        for p, end in ends.items():
            model.records[p] += [None] * (end - model.end(p))
        for p, start in starts.items():
            model.starts[p] = max(model.starts[p], start)
        assert list(self.log.start_offsets().values()) == model.starts
        self.check_reads()


def masked(log, step_rows):
    handle = log.handle
    handle.refresh()
    with patch.object(masks, "STEP_ROWS", step_rows):
        keep_masks(handle, KeyIndexCache(handle.store, seed=handle.tip.head.log.key_seed))


def appends(nulls):
    return st.tuples(st.just("append"), placed_records(PARTITIONS, nulls=nulls))


def operations(nulls):
    return st.one_of(
        *(appends(nulls), appends(nulls)),
        st.tuples(st.just("mask"), st.sampled_from([1, 3, 1000])),
        st.tuples(st.just("late"), st.sampled_from(["mask", "clean", "coalesce"])),
        st.tuples(st.just("coalesce"), st.none()),
        st.tuples(st.just("roll"), st.none()),
        st.tuples(st.just("clean"), st.none()),
        st.tuples(st.just("advance"), st.sampled_from([1, 500, 1500])),
        st.tuples(st.just("delete"), st.floats(0, 1)),
    )


SKIPS = st.tuples(st.integers(0, PARTITIONS - 1), st.integers(1, 9), st.booleans())


def mirrored(nulls):
    """Operations on a `Mirror`."""
    return st.one_of(
        operations(nulls),
        st.tuples(st.just("skip"), SKIPS),
        st.tuples(st.just("both"), st.tuples(SKIPS, placed_records(PARTITIONS, nulls=nulls))),
    )


def masked_offsets(store, manifest):
    """By partition, the offsets that masks mark as superseded, and as tombstones; checks that
    covered chunks are where they must be.
    """
    found = {}
    for p, segments in enumerate(manifest.segments):
        superseded, tombstones, known = set(), set(), set()
        for chunk in (c for s in segments for c in s.chunks):
            if chunk.mask is None:
                continue
            assert chunk.next <= manifest.covered[p] <= manifest.head.partitions.end[p]
            offsets = offsets_of(store, chunk, None)
            known |= set(offsets.tolist())
            for bits, into in (
                (chunk.mask.superseded, superseded),
                (chunk.mask.tombstones, tombstones),
            ):
                if bits is not None:
                    into |= set(offsets[read_bitmap(store, bits, chunk.rows)].tolist())
        found[p] = superseded, tombstones, known
    return found


def check_bits(world, store, manifest):
    """Each bit is set where it must be, and nowhere else; below the log start they have
    no meaning.
    """
    for p, (superseded, tombstones, known) in masked_offsets(store, manifest).items():
        records = world.model.records[p]
        covered = manifest.covered[p] if manifest.covered else 0
        last = {r.key: o for o, r in enumerate(records[:covered]) if r is not None}
        start = manifest.head.partitions.start[p]
        for offset in (o for o in known if o >= start):
            record = records[offset]
            must = record.key is None or last[record.key] != offset
            assert (offset in superseded) == must, (p, offset)
            assert (offset in tombstones) == (record.value is None), (p, offset)


def view(store, manifest, starts, entries):
    rows = [
        row
        for p, start in enumerate(starts)
        for row in rows_in(
            table_batches(store, plan_table(manifest, p, start), map_bytes=entries * ROW_BYTES)
        )
    ]
    found = {(row[0], row[2].key): row for row in rows}
    assert len(found) == len(rows)
    return found


@settings(
    max_examples=4 * settings().max_examples // 5,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(
    st.booleans().flatmap(
        lambda nulls: st.tuples(
            st.just(nulls), st.lists(operations(nulls), min_size=1, max_size=14)
        )
    ),
    st.sampled_from([1, 3, 1000]),
    st.booleans(),
)
def test_tables_by_masks_are_the_models(given_, entries, inline):
    """At every version, whatever was done by then or since, with any budget of the map; nothing
    that was deleted is shown (S36).
    """
    nulls, history = given_
    check_history(World(nulls), history, entries, inline=inline)


@settings(max_examples=4 * settings().max_examples // 5)
@given(
    st.booleans().flatmap(
        lambda nulls: st.tuples(st.just(nulls), st.lists(mirrored(nulls), min_size=1, max_size=14))
    ),
    st.sampled_from([1, 3, 1000]),
    st.booleans(),
)
def test_tables_of_given_offsets_are_the_models(given_, entries, inline):
    """S75: gaps between, before and after records, and partitions that are empty at an offset:
    reads, tables, views and masks are right at every version, whatever was cleaned, coalesced,
    sealed or deleted.
    """
    nulls, history = given_
    check_history(Mirror(nulls), history, entries, inline=inline)


def check_history(world, history, entries, *, inline):
    """Performs a history, and compares all versions with the model as it was then."""
    try:
        with patch.object(chunks, "INLINE_BYTES_MAX", 1024 if inline else 0):
            then = {0: {}}
            for name, argument in history:
                world.perform(name, argument)
                then[world.log.version] = world.expected()
        world.check_reads()
        starts = list(world.log.start_offsets().values())
        store = inside(world.store)
        before = {}
        for version, expected in then.items():
            manifest = world.log.handle.manifest_at(version)
            kept = {key: row for key, row in expected.items() if row[1] >= starts[row[0]]}
            assert view(store, manifest, starts, entries) == kept
            plans = [plan_table(manifest, p, starts[p]) for p in range(PARTITIONS)]
            assert {(r[0], r[2].key): r for r in rows_in(small_view_batches(store, plans))} == kept
            check_bits(world, store, manifest)
            now = masked_offsets(store, manifest)
            for p, (superseded, _, _) in before.items():
                assert superseded & now[p][2] <= now[p][0], "a row that was superseded stays so"
            before = now
            masked = view_masks(store, manifest, starts)
            shown = [row for mask in masked for row in shown_rows(store, mask)]
            assert sorted(shown) == sorted(
                (r[2].key, r[2].value, r[2].timestamp_ms) for r in kept.values()
            )
        event(f"masked: {bool(world.log.handle.manifest().covered)}")
        assert verify_log(world.log.handle.standing.root).findings == ()
    finally:
        discard(world.store)


@settings(max_examples=3 * settings().max_examples // 5)
@given(
    st.lists(operations(nulls=False), min_size=1, max_size=14),
    st.sampled_from([1, 3, 1000]),
    st.lists(st.floats(0, 1), min_size=PARTITIONS, max_size=PARTITIONS),
)
def test_changes_by_masks_are_the_last_records_since(history, entries, shares):
    """From any position on, tombstones included; those whose horizon has passed are missing, and
    nothing else.
    """
    check_changes(World(nulls=False), history, entries, shares)


@settings(max_examples=3 * settings().max_examples // 5)
@given(
    st.lists(mirrored(nulls=False), min_size=1, max_size=14),
    st.sampled_from([1, 3, 1000]),
    st.lists(st.floats(0, 1), min_size=PARTITIONS, max_size=PARTITIONS),
)
def test_changes_of_given_offsets_are_the_last_records_since(history, entries, shares):
    """S75: the same, also from positions in gaps."""
    check_changes(Mirror(nulls=False), history, entries, shares)


def check_changes(world, history, entries, shares):
    """Performs a history, and compares changes since some positions with the model."""
    try:
        for name, argument in history:
            world.perform(name, argument)
        manifest = world.log.handle.manifest_at(world.log.version)
        starts = {
            p: world.model.starts[p] + int((world.model.end(p) - world.model.starts[p]) * share)
            for p, share in enumerate(shares)
        }
        batches = latest_batches(
            inside(world.store), manifest, starts, map_bytes=entries * ROW_BYTES
        )
        rows = rows_in(batches)
        found = {(row[0], row[2].key): row for row in rows}
        assert len(found) == len(rows)
        last = {(p, row[2].key): row for p in starts for row in world.model.read(p, starts[p])}
        assert found.items() <= last.items()
        lost = [row for key, row in last.items() if key not in found]
        removed = {p: offset for p, _, offset in manifest.tombstones_removed}
        assert all(row[2].value is None and row[1] <= removed[row[0]] for row in lost)
        keys = [key for _, key in last]
        table = world.log.table()
        assert table.get_many(keys) == {
            key: row[2].value
            for (_, key), row in sorted(
                world.expected().items(), key=lambda pair: (pair[1][2].timestamp_ms, pair[1][0])
            )
            if key in keys
        }
    finally:
        discard(world.store)


class Undecided(World):
    """A log with masks, to which visible and other transactions write."""

    def __init__(self):
        super().__init__(nulls=False)
        self.open = None

    def perform(self, name, argument):
        if name == "begin" and self.open is None:
            self.open = self.opened().transaction("t", visible=True)
        if name in ("begin", "more") and self.open is not None:
            rows = [fields_of(record) for _, record in argument]
            self.open.append(rows, partition=[p for p, _ in argument])
        elif name == "end" and self.open is not None:
            ended, self.open = self.open, None
            ended.commit() if argument else ended.abort()
        elif name not in ("begin", "more", "end", "delete"):
            super().perform(name, argument)


PLACED = placed_records(PARTITIONS)
UNDECIDED = st.one_of(
    operations(nulls=False),
    st.tuples(st.just("begin"), PLACED),
    st.tuples(st.just("more"), PLACED),
    st.tuples(st.just("end"), st.booleans()),
)


@settings(max_examples=3 * settings().max_examples // 5)
@given(st.lists(UNDECIDED, min_size=1, max_size=16))
def test_masks_beside_transactions(history):
    """S51, S52: at every version the table by masks is that by keys; undecided records are not
    covered, and aborted ones supersede nothing.
    """
    world = Undecided()
    try:
        for name, argument in history:
            world.perform(name, argument)
        store = inside(world.store)
        for version in range(world.log.version + 1):
            manifest = world.log.handle.manifest_at(version)
            assert list(mask_findings(store, manifest)) == []
            for p, covered in enumerate(manifest.covered):
                assert covered <= manifest.head.stable_offset(p)
        event(f"undecided: {world.open is not None}, masked: {bool(manifest.covered)}")
        assert verify_log(world.log.handle.standing.root).findings == ()
    finally:
        discard(world.store)
