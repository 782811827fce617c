"""Logs in which the record with the highest order wins, against what their records say, after each
commit (S56, S57).

Records arrive in any order, while passes stop short of the end, meet appends, and remove
tombstones. Every version that a step made is read: its table is that of the records that had come
by then, whatever a pass had done to them. No two records of a key have one order here.
"""

import struct
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clog.cleaner import Cleaner
from clog.state import StateTable
from clog.storage import Log, ManualClock
from clog.storage.env import SeededIds
from clog.storage.keys.latest import RANKED_ROW_BYTES
from clog.storage.publications.source import view_masks
from clog.storage.read.scan import plan_range, read_pieces
from clog.storage.read.table import MAP_BYTES, plan_table, table_batches
from clog_testing.crash import inside, memory_store
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log

BIG = 1 << 16
CONFIG = {
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "1000",
    "segment.bytes": "120",
    "dead.rows.delay.ms": "3000",
    "file.delete.delay.ms": "1000000",
}
STRATEGIES = {
    "timestamp": {"compaction.strategy": "timestamp"},
    "header": {"compaction.strategy": "header", "compaction.strategy.header": "lsn"},
}
NOW_MS = 1_700_000_000_000
KEYS = "abcd"


@dataclass
class World:
    """A log, the records that came, and what is known of them from outside.

    ``gone`` is the highest order of a tombstone that was removed while it was the best of its key,
    ``late`` the records that came after one of their order or a higher one, of a key of which the
    log had no other.
    """

    strategy: str
    drop: bool
    clock: ManualClock = field(default_factory=lambda: ManualClock(now_ms=NOW_MS))
    store: object = field(default_factory=memory_store)
    came: list = field(default_factory=list)
    late: set = field(default_factory=set)
    late_keys: set = field(default_factory=set)
    used: set = field(default_factory=set)
    gone: int = -1
    seed: int = 1
    checked: int = 0

    def __post_init__(self):
        config = {**CONFIG, **STRATEGIES[self.strategy]}
        if self.drop:
            config["compaction.late"] = "drop"
            if self.strategy == "header":
                config["compaction.late.scope"] = "log"
        self.log = Log.create(self.store, 1, config, clock=self.clock, ids=SeededIds(self.seed))

    def another(self, store=None):
        self.seed += 1
        return Log.open(store or self.store, clock=self.clock, ids=SeededIds(self.seed))

    def append(self, records):
        fresh = [r for r in dict.fromkeys(records) if (r[0], r[1]) not in self.used]
        fresh = list({(key, order): (key, order, dies) for key, order, dies in fresh}.values())
        self.used |= {(key, order) for key, order, _ in fresh}
        if not fresh:
            return
        version = self.log.append([self.row(*r) for r in fresh]).version
        self.check_to(version - 1)
        self.check_versions(fresh)

    def row(self, key, order, dies):
        row = {"key": key, "value": None if dies else f"{key}{order}"}
        if self.strategy == "header":
            return row | {"headers": [("lsn", b"?"), ("lsn", struct.pack(">q", order))]}
        return row | {"timestamp": NOW_MS - 1000 + order}

    def rows(self, version):
        """(key, order) of the existing records, by offset."""
        manifest = self.log.handle.manifest_at(version)
        pieces = plan_range(manifest, 0, 0, 1 << 40)
        return {
            row["offset"]: (row["key"].decode(), self.order_of(row), row["value"] is None)
            for batch in read_pieces(inside(self.store), pieces)
            for row in batch.to_pylist()
        }

    def order_of(self, row):
        if self.strategy == "header":
            return struct.unpack(">q", row["headers"][-1]["value"])[0]
        return row["timestamp"].microsecond // 1000

    def arrive(self, fresh, before):
        """Records what arrives; ``before``: what is there."""
        there = {r for r in before.values() if r not in self.late}
        for record in fresh:
            known = record[0] in {key for key, _, _ in there}
            if record[1] <= self.gone and not known:
                self.late.add(record)
            else:
                there.add(record)
            if record[1] <= self.gone:
                self.late_keys.add(record[0])
            self.came.append(record)

    def expected(self):
        records = [r for r in self.came if not (self.drop and r in self.late)]
        best = {}
        for record in records:
            if record[0] not in best or best[record[0]][1] < record[1]:
                best[record[0]] = record
        return {key: f"{key}{order}" for key, order, dies in best.values() if not dies}

    def check_to(self, version):
        """Checks each version that was made by something other than an append."""
        for at in range(self.checked + 1, version + 1):
            self.note_gone(self.rows(at - 1), self.rows(at))
            self.check_table(at)
        self.checked = max(self.checked, version)

    def note_gone(self, before, after):
        best = {}
        for record in self.came:
            if record[0] not in best or best[record[0]][1] < record[1]:
                best[record[0]] = record
        for offset, record in before.items():
            if offset not in after and record[2] and record not in self.late:
                others = {r for r in after.values() if r[0] == record[0] and r[1] > record[1]}
                if not others:
                    self.gone = max(self.gone, record[1])

    def check_versions(self, fresh):
        version = self.checked + 1
        self.arrive(fresh, self.rows(version - 1))
        self.check_table(version)
        self.checked = version

    def check_table(self, version):
        manifest = self.log.handle.manifest_at(version)
        shown = [
            {
                row["key"].decode(): row["value"].decode()
                for batch in table_batches(
                    inside(self.store), plan_table(manifest, 0), map_bytes=map_bytes
                )
                for row in batch.to_pylist()
            }
            for map_bytes in (MAP_BYTES, 99)
        ]
        assert shown[0] == shown[1]
        ours, theirs = self.compared(shown[0]), self.compared(self.expected())
        assert ours == theirs, (version, ours, theirs)

    def compared(self, table):
        """What is guaranteed for a table: with late records kept, nothing for keys that
        have any.
        """
        return {k: v for k, v in table.items() if self.drop or k not in self.late_keys}

    def clean(self, entries, meanwhile=(), nth=1):
        memory = BIG if entries is None else entries * RANKED_ROW_BYTES
        store = self.store
        if meanwhile:
            fault = Fault(
                FaultKind.MEANWHILE, "create", "*commits*", nth, run=lambda: self.meant(meanwhile)
            )
            store = FaultyStore(self.store, Faults(fault))
        Cleaner(self.another(store), dedupe_buffer_bytes=memory).run_once(force=True)
        self.log.handle.refresh()
        assert not self.log.handle.manifest().uncleanable
        self.check_to(self.log.version)
        check_log(self.store, every_version=False)

    def meant(self, records):
        self.log.handle.refresh()
        self.check_to(self.log.version)
        self.append(records)

    def check_copies(self, table, before):
        """Look-ups, what changed since the step, a copy that follows, and what a published view
        would hide say the same.
        """
        shown = {r["key"].decode(): r["value"].decode() for r in _rows(self.log.table())}
        found = self.log.table().get_many(list(KEYS))
        assert {k.decode(): v.decode() for k, v in found.items()} == shown
        table.refresh()
        followed = {key.decode(): value.decode() for key, value in table.scan()}
        assert followed == shown
        views = view_masks(inside(self.store), self.log.handle.manifest(), [0])
        assert sum(mask.shown for mask in views) == len(shown)
        version, end, state = before
        missed = [
            o
            for _, v, o in self.log.handle.manifest().tombstones_removed
            if v > version and o >= end
        ]
        if not missed:
            for row in _rows(self.log.latest({0: end})):
                state.pop(row["key"].decode(), None)
                if row["value"] is not None:
                    state[row["key"].decode()] = row["value"].decode()
            assert state == shown
        return self.log.version, self.log.end_offsets()[0], shown


def _rows(table):
    return table.to_arrow().to_pylist()


RECORDS = st.lists(
    st.tuples(st.sampled_from(KEYS), st.integers(1, 12), st.booleans()), min_size=1, max_size=4
)
STEPS = st.one_of(
    st.tuples(st.just("append"), RECORDS),
    st.tuples(st.just("roll"), st.just(())),
    st.tuples(st.just("clean"), st.sampled_from([None, None, 1, 2])),
    st.tuples(st.just("clean"), st.tuples(RECORDS, st.integers(1, 4))),
    st.tuples(st.just("wait"), st.integers(500, 3000)),
)


def run(tmp_path_factory, strategy, drop, steps):
    world = World(strategy, drop)
    copy = StateTable(world.store, tmp_path_factory.mktemp("copy"), clock=world.clock)
    before = 0, 0, {}
    with copy:
        for name, given_ in steps:
            if name == "append":
                world.append(given_)
            elif name == "roll":
                world.log.roll()
                world.check_to(world.log.version)
            elif name == "wait":
                world.clock.advance(given_)
            elif isinstance(given_, tuple):
                world.clean(None, *given_)
            else:
                world.clean(given_)
            before = world.check_copies(copy, before)
    return world


@pytest.mark.parametrize(
    ("strategy", "drop"),
    [
        pytest.param("timestamp", True, id="timestamp-drop"),
        pytest.param("header", False, id="header-keep"),
        pytest.param("timestamp", False, id="timestamp-keep", marks=pytest.mark.nightly),
        pytest.param("header", True, id="header-drop", marks=pytest.mark.nightly),
    ],
)
@given(steps=st.lists(STEPS, min_size=1, max_size=14))
def test_each_version_shows_the_records_that_win(tmp_path_factory, strategy, drop, steps):
    """S57: all arrival orders give one table; no deleted key reappears if late ones are dropped."""
    run(tmp_path_factory, strategy, drop, steps)
