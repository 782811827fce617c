"""A `Log` under random use, held against the model: whatever several handles do, in whatever order.

Handles share one store and know different versions; the clock goes on in jumps, sometimes past
the time after which a handle must not trust what it knows. After the steps, the whole log is
checked (`invariants`), and every version that was noted reads as it read then.
"""

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from clog.storage import InvalidInputError, Log, ManualClock, OffsetOutOfRangeError
from clog.storage.env import SeededIds
from clog.storage.read.scan import COLUMNS
from clog_testing.crash import discard, memory_store
from clog_testing.invariants import check_log
from clog_testing.model import ModelLog, Record, fields_of, rows_in
from clog_testing.strategies import TIME_MS_MAX, placed_records

HANDLES = 3
PRODUCERS = ("p", "q", "r", "s", "t", "u", "v")
START_MS = 10_000_000

handles = st.integers(0, HANDLES - 1)
producers = st.sampled_from(PRODUCERS)


class LogMachine(RuleBasedStateMachine):
    """The log, its model, and what must be the same."""

    schema = None
    key_columns = ""
    may_lack_keys = True

    @staticmethod
    def fields_of(record):
        return fields_of(record)

    @staticmethod
    def rows_in(batches):
        return rows_in(batches)

    @initialize(partitions=st.integers(1, 3), seed=st.integers(0, 2**32))
    def create(self, partitions, seed):
        # Small limits, so that short histories have snapshots, pages and pages of writers.
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("clog.storage.commit.committer.SNAPSHOT_EDIT_BYTES_MIN", 10)
        self.patch.setattr("clog.storage.format.manifest.PAGE_CHUNKS_MIN", 3)
        self.patch.setattr("clog.storage.format.writers.WRITERS_MAX", 2)
        self.patch.setattr("clog.storage.format.writers.PAGE_BYTES_MAX", 300)
        self.clock = ManualClock(START_MS)
        self.ids = SeededIds(seed)
        self.store = memory_store()
        self.partitions = partitions
        self.model = ModelLog(partitions)
        self.noted = {}
        self.append_time = False
        self.null_keys = False
        config = {"segment.bytes": 200, "segment.ms": 1_000_000}
        config |= {"table.key.columns": self.key_columns} if self.key_columns else {}
        first = Log.create(
            *(self.store, partitions, config),
            schema=self.schema,
            clock=self.clock,
            ids=self.ids,
        )
        self.handles = [first, *(self.opened() for _ in range(HANDLES - 1))]

    def opened(self):
        return Log.open(self.store, clock=self.clock, ids=self.ids)

    def teardown(self):
        try:
            check_log(self.store)
            cold = self.opened()
            for version in self.noted:
                assert self.tables(cold, version) == self.as_of(version)
        finally:
            discard(self.store)
            self.patch.undo()

    def tables(self, log, version=None):
        return sorted(self.rows_in(log.table(at=version).to_batches(columns=COLUMNS)))

    def as_of(self, version):
        """The table noted at a version, without what was deleted since (decision 0005)."""
        return [row for row in self.noted[version] if row[1] >= self.model.starts[row[0]]]

    def draw_records(self, data):
        drawn = data.draw(placed_records(self.partitions, nulls=self.null_keys))
        return [p for p, _ in drawn], [self.fields_of(r) for _, r in drawn], drawn

    def in_the_model(self, log, drawn):
        """What the log makes of the records: with LogAppendTime, the time of their commit (S9)."""
        if not self.append_time:
            return drawn
        now_ms = log.handle.tip.record.time_ms
        return [(p, replace(r, timestamp_ms=now_ms)) for p, r in drawn]

    @rule(h=handles, data=st.data())
    def append(self, h, data):
        parts, fields, drawn = self.draw_records(data)
        result = self.handles[h].append(fields, partition=parts)
        expected = self.model.append(self.in_the_model(self.handles[h], drawn))
        assert (result.offsets, result.duplicate) == (expected, False)

    @rule(h=handles, producer=producers, step=st.integers(1, 3), data=st.data())
    def append_once(self, h, producer, step, data):
        parts, fields, drawn = self.draw_records(data)
        sequence = self.model.producers.get(producer, (-1,))[0] + step
        result = self.handles[h].append(fields, partition=parts, producer=(producer, sequence))
        placed = self.in_the_model(self.handles[h], drawn)
        assert result.offsets == self.model.append(placed, (producer, sequence))
        self.model.producers[producer] = (sequence, drawn, result.offsets)

    @rule(h=handles, producer=producers)
    def append_again(self, h, producer):
        assume(producer in self.model.producers)
        sequence, drawn, offsets = self.model.producers[producer]
        assume(self.null_keys or all(r.key is not None for _, r in drawn))
        fields = [self.fields_of(r) for _, r in drawn]
        parts = [p for p, _ in drawn]
        result = self.handles[h].append(fields, partition=parts, producer=(producer, sequence))
        assert (result.offsets, result.duplicate) == (offsets, True)

    @rule(h=handles, producer=producers, back=st.integers(0, 2))
    def append_out_of_turn(self, h, producer, back):
        """Other records under the last sequence, or an older sequence: refused."""
        assume(producer in self.model.producers)
        sequence = self.model.producers[producer][0] - back
        assume(sequence >= 0)
        with pytest.raises(InvalidInputError, match="sequence"):
            self.handles[h].append(
                [self.fields_of(Record(b"other", b"x", self.clock.now_ms()))],
                *(0, (producer, sequence)),
            )

    @rule(h=handles, p=st.integers(0, 2), data=st.data())
    def delete_records(self, h, p, data):
        assume(p < self.partitions)
        offset = data.draw(st.integers(-1, self.model.end(p)))
        assert self.handles[h].delete_records({p: offset}) == self.model.delete_records({p: offset})

    @rule(h=handles, p=st.integers(0, 2), beyond=st.integers(1, 5))
    def delete_too_much(self, h, p, beyond):
        assume(p < self.partitions)
        for wrong in (self.model.end(p) + beyond, -1 - beyond):
            with pytest.raises(OffsetOutOfRangeError):
                self.handles[h].delete_records({p: wrong})

    @rule(h=handles)
    def roll(self, h):
        self.handles[h].roll()

    @rule(h=handles, size=st.sampled_from([14, 60, 200, None]), chunks=st.integers(1, 4))
    def alter_segments(self, h, size, chunks):
        self.handles[h].alter({"segment.bytes": size, "segment.chunks": chunks})

    @rule(h=handles, on=st.booleans())
    def alter_timestamps(self, h, on):
        kind = "LogAppendTime" if on else "CreateTime"
        self.handles[h].alter({"message.timestamp.type": kind})
        self.append_time = on

    @rule(h=handles, on=st.booleans())
    def alter_policy(self, h, on):
        self.handles[h].alter({"cleanup.policy": "delete" if on else "compact"})
        self.null_keys = on and self.may_lack_keys

    @precondition(lambda self: self.may_lack_keys)
    @rule(h=handles)
    def append_without_key(self, h):
        record = Record(None, b"v", self.clock.now_ms())
        if self.null_keys:
            drawn = [(0, record)]
            result = self.handles[h].append([self.fields_of(record)], partition=0)
            placed = self.in_the_model(self.handles[h], drawn)
            assert result.offsets == self.model.append(placed)
        else:
            with pytest.raises(InvalidInputError, match="no key"):
                self.handles[h].append([self.fields_of(record)], partition=0)

    @rule(h=handles)
    def reopen(self, h):
        self.handles[h] = self.opened()

    @rule(ms=st.sampled_from([1, 1_000, 500_000, 700_000]))
    def advance(self, ms):
        self.clock.advance(ms)

    @rule(h=handles, p=st.integers(0, 2), data=st.data())
    def read_a_range(self, h, p, data):
        assume(p < self.partitions)
        start = data.draw(st.integers(self.model.starts[p], self.model.end(p)))
        end = data.draw(st.none() | st.integers(0, self.model.end(p) + 2))
        rows = self.rows_in(self.handles[h].read(partition=p, start=start, end=end))
        assert rows == self.model.read(p, start, end)

    @rule(h=handles, p=st.integers(0, 2), beyond=st.integers(1, 3))
    def read_out_of_range(self, h, p, beyond):
        assume(p < self.partitions)
        for wrong in (self.model.starts[p] - beyond, self.model.end(p) + beyond):
            with pytest.raises(OffsetOutOfRangeError) as caught:
                self.handles[h].read(partition=p, start=wrong)
            assert (caught.value.start, caught.value.end) == (
                self.model.starts[p],
                self.model.end(p),
            )

    @rule(h=handles, time_ms=st.integers(0, TIME_MS_MAX))
    def find_a_time(self, h, time_ms):
        expected = {p: self.model.offset_for_time(p, time_ms) for p in range(self.partitions)}
        assert self.handles[h].offsets_for_times(time_ms) == expected

    @rule(h=handles)
    def read_the_table(self, h):
        expected = [row for p in range(self.partitions) for row in self.model.table(p).values()]
        found = self.tables(self.handles[h])
        assert found == sorted(expected)
        self.noted[self.handles[h].handle.tip.version] = found

    @precondition(lambda self: self.noted)
    @rule(data=st.data(), h=handles)
    def read_an_old_table(self, data, h):
        version = data.draw(st.sampled_from(sorted(self.noted)))
        assert self.tables(self.handles[h], version) == self.as_of(version)

    @rule(h=handles, p=st.integers(0, 2))
    def look_at_segments(self, h, p):
        assume(p < self.partitions)
        infos = self.handles[h].segments(p)
        assert [s.active for s in infos] == [False] * (len(infos) - 1) + [True]
        assert sum(s.records for s in infos) == self.model.end(p)

    @invariant()
    def offsets_agree(self):
        starts, ends = self.handles[0].start_offsets(), self.handles[0].end_offsets()
        assert starts == dict(enumerate(self.model.starts))
        assert ends == {p: self.model.end(p) for p in range(self.partitions)}


class TypedLogMachine(LogMachine):
    """The same with keys and values in columns, under a schema that evolves (S61)."""

    schema = pa.schema(
        [
            ("key", pa.struct([("k", pa.binary())])),
            ("value", pa.struct([pa.field("v", pa.binary(), nullable=False), ("n", pa.int8())])),
        ]
    )
    added = 0

    @staticmethod
    def fields_of(record):
        key = None if record.key is None else {"k": record.key}
        value = None if record.value is None else {"v": record.value, "n": len(record.value)}
        return fields_of(record) | {"key": key, "value": value}

    @staticmethod
    def rows_in(batches):
        rows = []
        for p, offset, found in rows_in(batches):
            key, value = found.key, found.value
            if value is not None:
                assert value["n"] == len(value["v"])
            bare = replace(found, key=key and key["k"], value=value and value["v"])
            rows.append((p, offset, bare))
        return rows

    @precondition(lambda self: self.added < 5)
    @rule(h=handles)
    def evolve(self, h):
        self.added += 1
        self.handles[h].evolve(add={f"value.f{self.added}": pa.int64()})


class TableLogMachine(TypedLogMachine):
    """The same in objects with table columns (FORMAT.md §22)."""

    schema = pa.schema(
        [
            pa.field("key", pa.struct([("k", pa.binary())]), nullable=False),
            TypedLogMachine.schema.field("value"),
        ]
    )
    key_columns = "k"
    may_lack_keys = False


LogMachine.TestCase.settings = settings(
    max_examples=2 * settings().max_examples // 5,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestLog = LogMachine.TestCase
TypedLogMachine.TestCase.settings = settings(
    LogMachine.TestCase.settings, max_examples=3 * settings().max_examples // 20
)
TestTypedLog = TypedLogMachine.TestCase
TableLogMachine.TestCase.settings = TypedLogMachine.TestCase.settings
TestTableLog = TableLogMachine.TestCase
