"""The cleaner against a log that is obviously right, over random histories.

Cleaning is not one result but a relation: what a pass leaves must be legal (S1-S4, S21-S23), and
with a map that holds all keys it must be what the model retains.
"""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clog.cleaner import Cleaner, threads
from clog.cleaner.duties import Work
from clog.cleaner.duties.sweep import sweep_orphans
from clog.cleaner.passes import offset_map, rewriter
from clog.cleaner.passes.offset_map import SLOT_BYTES
from clog.storage import Log, ManualClock, VersionExpiredError
from clog.storage.config.log_config import LogConfig
from clog.storage.env import SeededIds
from clog.storage.format.commits import read_commit
from clog.storage.objects import writer
from clog.storage.read import copy as read_row_groups
from clog.storage.read.cleanable import cleanable_bounds
from clog.storage.read.scan import DELETE_HORIZON, plan_range, read_pieces
from clog.storage.read.table import plan_table, table_batches
from clog_testing.crash import discard, inside, memory_store
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log
from clog_testing.model import ModelLog, fields_of, rows_in
from clog_testing.strategies import TIME_MS_MAX, placed_records

PARTITIONS = 2
BIG = 1 << 16
CONFIG = {
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "1000",
    "file.delete.delay.ms": "5000",
    "segment.bytes": "300",
    "retention.ms": "-1",
    "dead.rows.delay.ms": "3000",
}


@pytest.fixture(autouse=True, scope="module")
def _settings():
    """Every rewritten object has a key index: results do not depend on it (S19). Row groups are
    copied, however small, and threads do however little. There are too few records here for many to
    live beside one that died.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "WHOLE_BYTES", 0)
        patch.setattr(rewriter, "REWRITE_FACTOR", 1)
        patch.setattr(writer, "GROUP_ROWS", 2)
        patch.setattr(threads, "WORTH_BYTES", 0)
        patch.setattr(offset_map, "PORTION_ROWS", 2)
        patch.setattr(read_row_groups, "GROUP_BYTES_MIN", 1)
        yield


@dataclass
class World:
    """A log, its model, and what was seen of both."""

    clock: ManualClock = field(default_factory=lambda: ManualClock(now_ms=TIME_MS_MAX))
    store: object = field(default_factory=memory_store)
    model: ModelLog = field(default_factory=lambda: ModelLog(PARTITIONS))
    horizons: dict = field(default_factory=dict)
    tables: dict = field(default_factory=dict)
    replaced_ms: dict = field(default_factory=dict)
    seed: int = 1

    def __post_init__(self):
        self.log = Log.create(
            self.store, PARTITIONS, CONFIG, clock=self.clock, ids=SeededIds(self.seed)
        )

    def another(self, store=None):
        """The log as another process opens it."""
        self.seed += 1
        return Log.open(store or self.store, clock=self.clock, ids=SeededIds(self.seed))

    def append(self, records, log=None):
        parts = [p for p, _ in records]
        log = log or self.log
        result = log.append([fields_of(r) for _, r in records], partition=parts)
        if log.config["message.timestamp.type"] == "LogAppendTime":
            time_ms = read_commit(inside(self.store), result.version).record.time_ms
            records = [(p, replace(r, timestamp_ms=time_ms)) for p, r in records]
        self.model.append(records)

    def table(self, at=None):
        """The rows of the table view; with a small map, which is faster to make."""
        manifest = self.log.handle.manifest() if at is None else self.log.handle.manifest_at(at)
        plans, store = [plan_table(manifest, p) for p in range(PARTITIONS)], inside(self.store)
        return rows_in(b for plan in plans for b in table_batches(store, plan, map_bytes=999))

    def present(self):
        """By partition the existing records, by offset."""
        rows = rows_in(self.log.read())
        return [{o: r for q, o, r in rows if q == p} for p in range(PARTITIONS)]

    def given_horizons(self):
        """(partition, offset) of each tombstone -> its horizon, if it has one."""
        found = {}
        for p, end in self.log.end_offsets().items():
            pieces = plan_range(self.log.handle.manifest(), p, 0, end)
            for batch in read_pieces(
                inside(self.store), pieces, columns=("offset", "value", DELETE_HORIZON)
            ):
                for row in batch.to_pylist():
                    if row["value"] is None and row[DELETE_HORIZON] is not None:
                        found[p, row["offset"]] = row[DELETE_HORIZON]
        return found

    def settle(self):
        """Checks everything that is true at any moment, and records what must stay so."""
        check_log(self.store, every_version=False)
        self.model.starts = list(self.log.start_offsets().values())
        present = self.present()
        self.check_present(present)
        self.check_horizons()
        self.check_tables()

    def check_present(self, present):
        """S1, S2: the existing records were appended, and nothing that must stay is missing."""
        manifest = self.log.handle.manifest()
        config = LogConfig.from_overrides(manifest.head.config)
        for p, there in enumerate(present):
            appended = {o: r for _, o, r in self.model.read(p)}
            assert there.items() <= appended.items()
            b = cleanable_bounds(manifest, p, config, now_ms=self.clock.now_ms())
            last = {r.key: o for o, r in appended.items()}
            for offset, record in appended.items():
                is_latest = record.key is not None and last[record.key] == offset
                had_its_time = (
                    record.value is None
                    and self.horizons.get((p, offset), 1 << 62) <= self.clock.now_ms()
                )
                # S10, S11: not cleanable; S21: the latest of its key; S23: a tombstone in time.
                if offset >= b.first_uncleanable or (is_latest and not had_its_time):
                    assert offset in there, (p, offset)

    def check_horizons(self):
        """S23: once set a horizon never changes."""
        now = self.given_horizons()
        assert {place: now[place] for place in now if place in self.horizons} == {
            place: ms for place, ms in self.horizons.items() if place in now
        }
        self.horizons.update(now)

    def check_tables(self):
        """The table is the model's, and old versions stay as they were until they expire (S27)."""
        version = self.log.version
        expected = {}
        for p in range(PARTITIONS):
            expected |= {(p, key): row for key, row in self.model.table(p).items()}
        rows = self.table()
        assert {(row[0], row[2].key): row for row in rows} == expected
        assert len(rows) == len(expected)
        keys = {row[2].key for row in rows if row[2].key is not None} | {b"nobody"}
        found = rows_in(self.log.table().of_keys(keys).to_batches())
        assert {(row[0], row[2].key): row for row in found} == expected
        for older in self.tables:
            self.replaced_ms.setdefault(older, self.clock.now_ms())
        self.replaced_ms.pop(version, None)
        delay_ms = int(self.log.config["file.delete.delay.ms"])
        for older, seen in list(self.tables.items()):
            try:
                assert sorted(self.table(at=older), key=str) == seen
            except VersionExpiredError:
                assert self.clock.now_ms() - self.replaced_ms[older] > delay_ms
                del self.tables[older]
        self.tables[version] = sorted(rows, key=str)

    def clean(self, entries, *, force=True, meanwhile=None, nth=1):
        """A round by a separate process; ``meanwhile`` happens before its nth commit."""
        memory = BIG if entries is None else (entries * 10 // 9 + 1) * SLOT_BYTES
        before = self.present(), self.log.handle.manifest().first_dirty
        store = self.store
        if meanwhile is not None:
            fault = Fault(FaultKind.MEANWHILE, "create", "*commits*", nth, run=meanwhile)
            store = FaultyStore(self.store, Faults(fault))
        count = 1 + self.seed % 2  # Every other one has a thread to spare.
        cleaner = Cleaner(self.another(store), count, dedupe_buffer_bytes=memory * count)
        results = cleaner.run_once(force=force)
        for result in results:
            stats = result.stats
            assert stats.records_read == stats.records_written + stats.records_removed
        assert self.log.handle.refresh()
        assert not self.log.handle.manifest().uncleanable
        if meanwhile is None:
            self.check_dead_rows()
        if meanwhile is None and force:
            self.check_exact(*before, {r.partition for r in results})

    def check_dead_rows(self):
        """S46: after a round no dead row has waited longer than it may."""
        delay_ms = int(self.log.config["dead.rows.delay.ms"])
        for _, chunk in self.log.handle.manifest().chunks():
            assert chunk.dead is None or self.clock.now_ms() - chunk.dead.since_ms < delay_ms

    def check_exact(self, before, first_dirty_before, cleaned):
        """As far as the maps went, however many: exactly what is to stay, S20-S23."""
        now_ms = self.clock.now_ms()
        starts = self.log.start_offsets()
        for p in cleaned:
            end = self.log.handle.manifest().first_dirty[p]
            range_ = {o: r for o, r in before[p].items() if starts[p] <= o < end}
            last = {r.key: o for o, r in range_.items() if r.key is not None}
            expected = {
                o: r
                for o, r in range_.items()
                if last.get(r.key) == o
                and not (r.value is None and self.horizons.get((p, o), 1 << 62) <= now_ms)
            }
            found = {o: r for o, r in self.present()[p].items() if o < end}
            assert found == expected
            assert end >= first_dirty_before[p]
            # Every tombstone in the clean part has its horizon (S23).
            horizons = self.given_horizons()
            assert all((p, o) in horizons for o, r in found.items() if r.value is None)


APPENDS = placed_records(PARTITIONS)
ENTRIES = st.sampled_from([None, None, 1, 2, 3, 5])
OPERATIONS = st.one_of(
    st.tuples(st.just("append"), APPENDS),
    st.tuples(st.just("append"), APPENDS),
    st.tuples(st.just("roll"), st.just(0)),
    st.tuples(st.just("advance"), st.sampled_from([1, 500, 1000, 2500, 6000])),
    st.tuples(st.just("clean"), ENTRIES),
    st.tuples(st.just("clean"), ENTRIES),
    st.tuples(st.just("due"), ENTRIES),
    st.tuples(st.just("append meanwhile"), st.tuples(ENTRIES, APPENDS, st.integers(1, 3))),
    st.tuples(st.just("clean meanwhile"), st.tuples(ENTRIES, ENTRIES, st.integers(1, 3))),
    st.tuples(st.just("delete meanwhile"), st.tuples(ENTRIES, st.floats(0, 1), st.integers(1, 3))),
    st.tuples(st.just("delete"), st.floats(0, 1)),
    st.tuples(
        st.just("alter"),
        st.sampled_from(
            [
                {"cleanup.policy": "compact,delete", "retention.bytes": "400"},
                {"cleanup.policy": "compact", "retention.bytes": None},
                {"delete.retention.ms": "0"},
                {"delete.retention.ms": "3000"},
                {"segment.bytes": "60"},
                {"segment.bytes": "2000"},
                {"min.compaction.lag.ms": "1000"},
                {"min.compaction.lag.ms": "0"},
                {"message.timestamp.type": "LogAppendTime"},
                {"message.timestamp.type": "CreateTime"},
                {"object.bytes": "40"},
                {"object.bytes": "100"},
                {"dead.rows.delay.ms": "0"},
                {"dead.rows.delay.ms": "3000"},
            ]
        ),
    ),
    st.tuples(st.just("sweep"), st.just(0)),
)


def perform(world, name, argument):
    log = world.log
    match name:
        case "append":
            world.append(argument)
        case "roll":
            log.roll()
        case "advance":
            world.clock.advance(argument)
        case "clean":
            world.clean(argument)
        case "due":
            world.clean(argument, force=False)
        case "append meanwhile":
            entries, records, nth = argument
            run = lambda: world.append(records, world.another())  # noqa: E731
            world.clean(entries, meanwhile=run, nth=nth)
        case "clean meanwhile":
            entries, others, nth = argument
            run = lambda: world.clean(others)  # noqa: E731
            world.clean(entries, meanwhile=run, nth=nth)
        case "delete meanwhile":
            entries, share, nth = argument
            run = lambda: delete(world.another(), share)  # noqa: E731
            world.clean(entries, meanwhile=run, nth=nth)
        case "delete":
            delete(log, argument)
        case "alter":
            log.alter(argument)
        case "sweep":
            sweep_orphans(Work(world.another().handle, world.clock.now_ms()), age_ms=2000)


def delete(log, share):
    log.delete_records({p: int(end * share) for p, end in log.end_offsets().items()})


@settings(max_examples=6 * settings().max_examples // 5)
@given(st.lists(OPERATIONS, min_size=4, max_size=24))
def test_cleaning_is_legal(operations):
    """S1-S4, S10, S11, S20-S23, S27: at every moment, whatever happens in whatever order."""
    world = World()
    try:
        for name, argument in operations:
            perform(world, name, argument)
            world.settle()
    finally:
        discard(world.store)


@settings(max_examples=3 * settings().max_examples // 5)
@given(st.lists(APPENDS, min_size=1, max_size=8), st.integers(1, 4), st.integers(0, 60))
def test_reading_from_anywhere(batches, entries, offset):
    """S1, S2: after cleaning a reader from any offset sees a suffix, and the right final values."""
    world = World()
    try:
        for records in batches:
            world.append(records)
            world.log.roll()
        world.clean(entries)
        for p, end in world.log.end_offsets().items():
            start = min(offset, end)
            rows = rows_in(world.log.read(partition=p, start=start))
            assert rows == [row for row in rows_in(world.log.read(partition=p)) if row[1] >= start]
            final = {row[2].key: row[2].value for row in rows}
            expected = {row[2].key: row[2].value for row in world.model.read(p, start=start)}
            assert final == expected
    finally:
        discard(world.store)


@settings(max_examples=settings().max_examples // 5)
@given(st.lists(APPENDS, min_size=2, max_size=8))
def test_any_size_of_map_leads_to_the_same(batches):
    """S20: with a map of one key, pass after pass ends with the result of one pass with a large
    map.
    """
    worlds = World(), World()
    try:
        for world in worlds:
            for records in batches:
                world.append(records)
                world.log.roll()
        worlds[0].clean(None)
        rounds = 0
        while any(
            d < e
            for d, e in zip(
                worlds[1].log.handle.manifest().first_dirty,
                worlds[1].log.end_offsets().values(),
                strict=True,
            )
        ):
            worlds[1].clean(1)
            worlds[1].log.handle.refresh()
            rounds += 1
            assert rounds <= sum(map(len, batches)), "every pass makes progress"
        assert worlds[0].present() == worlds[1].present()
    finally:
        for world in worlds:
            discard(world.store)
