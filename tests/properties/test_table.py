"""The table view, changes and state tables against the model.

For random histories, cleaning states, versions and budgets of the map.
"""

from hypothesis import event, given, settings
from hypothesis import strategies as st

from clog.cleaner import Cleaner
from clog.cleaner.passes.offset_map import SLOT_BYTES
from clog.connector.read.plan import slices
from clog.state.table import StateTable
from clog.storage import Log, ManualClock
from clog.storage.env import SeededIds
from clog.storage.publications.source import view_masks
from clog.storage.read.scan import missed_deletes
from clog.storage.read.table import (
    ROW_BYTES,
    latest_batches,
    plan_table,
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


def slots_for(entries):
    """The budget of an offset map for this many keys."""
    return (entries * 10 // 9 + 1) * SLOT_BYTES


class World:
    """A log and its model."""

    def __init__(self):
        self.clock = ManualClock(now_ms=TIME_MS_MAX)
        self.store = memory_store()
        self.model = ModelLog(PARTITIONS)
        self.log = Log.create(self.store, PARTITIONS, CONFIG, clock=self.clock, ids=SeededIds(1))
        self.seed = 1

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
                self.seed += 1
                log = Log.open(self.store, clock=self.clock, ids=SeededIds(self.seed))
                Cleaner(log, dedupe_buffer_bytes=slots_for(argument)).run_once(force=True)
            case "delete":
                ends = self.log.end_offsets()
                self.log.delete_records({p: int(end * argument) for p, end in ends.items()})
                self.model.starts = list(self.log.start_offsets().values())

    def expected(self):
        """The view of the model, by partition and key."""
        tables = [self.model.table(p) for p in range(PARTITIONS)]
        return {(p, key): row for p in range(PARTITIONS) for key, row in tables[p].items()}


def view(store, manifest, starts, entries, tasks):
    """All rows of the view, each key once, in slices for this many tasks."""
    rows = [
        row
        for p, start in starts.items()
        for part in slices(plan_table(manifest, p, start), min_tasks=tasks)
        for row in rows_in(table_batches(store, part, map_bytes=entries * ROW_BYTES))
    ]
    found = {(row[0], row[2].key): row for row in rows}
    assert len(found) == len(rows)
    return found


APPENDS = st.tuples(st.just("append"), placed_records(PARTITIONS))
KEEPING = st.one_of(
    *(APPENDS, APPENDS),
    st.tuples(st.just("roll"), st.none()),
    st.tuples(st.just("clean"), st.sampled_from([1, 3, 1000])),
    st.tuples(st.just("advance"), st.sampled_from([1, 500, 1500])),
)
ANY = st.one_of(KEEPING, KEEPING, st.tuples(st.just("delete"), st.floats(0, 1)))


@settings(max_examples=3 * settings().max_examples // 5)
@given(
    st.lists(ANY, min_size=1, max_size=16),
    st.sampled_from([1, 2, 3, 5, 1000]),
    st.sampled_from([1, 2, 5]),
)
def test_the_view_is_the_models(operations, entries, tasks):
    """At every version, whatever the cleaner has done by then or since, with any budget, in any
    number of tasks; without what was deleted since (S36)."""
    world = World()
    try:
        then = {0: {}}
        for name, argument in operations:
            world.perform(name, argument)
            then[world.log.version] = world.expected()
        starts = world.log.start_offsets()
        for version, expected in then.items():
            manifest = world.log.handle.manifest_at(version)
            kept = {key: row for key, row in expected.items() if row[1] >= starts[row[0]]}
            assert view(inside(world.store), manifest, starts, entries, tasks) == kept
    finally:
        discard(world.store)


@settings(max_examples=3 * settings().max_examples // 5)
@given(st.lists(ANY, min_size=1, max_size=16))
def test_the_view_is_what_masks_leave_of_the_objects(operations):
    """At every version, whatever the cleaner has done by then or since: the rows that any
    reader of Parquet finds in the objects, without those that are hidden."""
    world = World()
    try:
        then = {0: {}}
        for name, argument in operations:
            world.perform(name, argument)
            then[world.log.version] = world.expected()
        starts = list(world.log.start_offsets().values())
        for version, expected in then.items():
            manifest = world.log.handle.manifest_at(version)
            kept = [row[2] for row in expected.values() if row[1] >= starts[row[0]]]
            masks = list(view_masks(inside(world.store), manifest, starts))
            assert {mask.object for mask in masks} == {c.object for _, c in manifest.chunks()}
            assert len({mask.object.path for mask in masks}) == len(masks)
            found = [row for mask in masks for row in shown_rows(inside(world.store), mask)]
            assert sorted(found) == sorted((r.key, r.value, r.timestamp_ms) for r in kept)
            assert sum(mask.shown for mask in masks) == len(found)
    finally:
        discard(world.store)


@settings(max_examples=3 * settings().max_examples // 5)
@given(st.lists(KEEPING, max_size=8), st.lists(KEEPING, min_size=1, max_size=10))
def test_a_view_and_what_follows_it(before, after):
    """S2: reading on from the view's offsets meets every record after it, none twice; and the two
    together give the final value of each key, unless a tombstone was lost, which S41 reports.
    """
    world = World()
    try:
        for name, argument in before:
            world.perform(name, argument)
        table = world.log.table()
        state = {(row[0], row[2].key): row[2].value for row in rows_in(table.to_batches())}
        position, followed = dict(table.offsets), []
        first = {p: world.model.end(p) for p in range(PARTITIONS)}
        assert position == first
        for name, argument in after:
            world.perform(name, argument)
            if name == "append":  # a reader that keeps up
                followed += rows_in(world.log.read(start=position))
                position = world.log.end_offsets()
        by_partition = [row for p in range(PARTITIONS) for row in followed if row[0] == p]
        assert by_partition == [
            row for p in range(PARTITIONS) for row in world.model.read(p, start=first[p])
        ]
        # A reader that comes when all is done.
        manifest = world.log.handle.manifest()
        for row in rows_in(world.log.read(start=table.offsets)):
            state[row[0], row[2].key] = row[2].value
        state = {key: value for key, value in state.items() if value is not None}
        final = {key: row[2].value for key, row in world.expected().items()}
        missed = missed_deletes(manifest.tombstones_removed, table.offsets, table.version)
        event(f"tombstones lost: {bool(missed)}")
        assert missed or state == final
        assert final.items() <= state.items()
    finally:
        discard(world.store)


@settings(max_examples=3 * settings().max_examples // 5)
@given(st.lists(ANY, min_size=1, max_size=12), st.sampled_from([1, 3, 1000]), st.data())
def test_any_columns(operations, entries, data):
    """Unrequested columns are left out, and the rows are the same."""
    world = World()
    try:
        for operation in operations:
            world.perform(*operation)
        columns = data.draw(st.lists(st.sampled_from(["offset", "key", "value"]), min_size=1))
        columns = sorted(set(columns))
        manifest = world.log.handle.manifest()
        for p in range(PARTITIONS):
            plan = plan_table(manifest, p)
            rows = [
                row
                for batch in table_batches(
                    inside(world.store), plan, columns=columns, map_bytes=entries * ROW_BYTES
                )
                for row in batch.to_pylist()
            ]
            expected = [
                {"offset": o, "key": r.key, "value": r.value}
                for _, o, r in world.model.table(p).values()
            ]
            kept = [{name: row[name] for name in columns} for row in expected]
            assert sorted(map(str, rows)) == sorted(map(str, kept))
    finally:
        discard(world.store)


@settings(max_examples=3 * settings().max_examples // 5)
@given(
    st.lists(ANY, min_size=1, max_size=12),
    st.sampled_from([1, 3, 1000]),
    st.lists(st.floats(0, 1), min_size=PARTITIONS, max_size=PARTITIONS),
)
def test_changes_are_the_last_records_since(operations, entries, shares):
    """The latest record of each key from any position on, tombstones included; those whose horizon
    has passed are missing, and nothing else.
    """
    world = World()
    try:
        for operation in operations:
            world.perform(*operation)
        manifest = world.log.handle.manifest()
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
    finally:
        discard(world.store)


@settings(max_examples=3 * settings().max_examples // 10)
@given(st.lists(st.one_of(ANY, st.tuples(st.just("refresh"), st.booleans())), max_size=16))
def test_a_state_table_is_the_model(tmp_path_factory, operations):
    """S41: after any refresh, whatever it missed in between and whether it was opened again."""
    world = World()
    folder = tmp_path_factory.mktemp("state")
    table = StateTable(world.store, folder, clock=world.clock)
    try:
        for name, argument in [*operations, ("refresh", False)]:
            if name != "refresh":
                world.perform(name, argument)
                continue
            before = dict(table.scan())
            if argument:
                table.close()
                table = StateTable(world.store, folder, clock=world.clock)
            refreshed = table.refresh()
            found = dict(table.scan())
            expected = {}
            for row in sorted(world.expected().values(), key=lambda r: (r[2].timestamp_ms, r[0])):
                expected[row[2].key] = row[2].value
            assert found == expected
            assert table.get_many(list(found)) == found
            assert table.version == refreshed.version == world.log.version
            if refreshed.changed is not None and not argument:
                unchanged = before.keys() - set(refreshed.changed)
                assert {k: before[k] for k in unchanged} == {k: found[k] for k in unchanged}
    finally:
        table.close()
        discard(world.store)
