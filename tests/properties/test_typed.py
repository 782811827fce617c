"""A typed log beside one of bytes that went through the same: their tables are the same, S61.

For random histories, with passes, deletions and schemas that evolve in between.
"""

from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties.layout import coalesce
from clog.storage import Log, ManualClock, StateTable
from clog.storage.diagnostics.verify import verify_log
from clog.storage.env import SeededIds
from clog_testing.crash import discard, memory_store

PARTITIONS = 2
CONFIG = {
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "1000",
    "file.delete.delay.ms": "1000000",
    "segment.bytes": "300",
}
PAIR = pa.struct([("n", pa.int32()), ("s", pa.string())])
VALUE = pa.struct(
    [
        pa.field("n", pa.int32(), nullable=False),
        ("t", pa.string()),
        ("l", pa.list_(pa.struct([pa.field("q", pa.int8(), nullable=False)]))),
    ]
)
KEYS = {
    "string": (pa.string(), lambda n: f"key-{n}"),
    "integer": (pa.int32(), lambda n: n - 3),
    "struct": (PAIR, lambda n: {"n": n if n % 3 else None, "s": "\0" * (n % 2)}),
}


def value_of(n):
    """One value of many shapes, or a tombstone."""
    if n % 5 == 0:
        return None
    lists = (None, [], [{"q": n}], [None, {"q": 1}])
    return {"n": n, "t": None if n % 2 else "x" * n, "l": lists[n % 4]}


class Twins:
    """The same records as bytes and typed; bytes are Python's text for the typed ones."""

    def __init__(self, kind):
        self.key_type, self.key_of = KEYS[kind]
        self.clock = ManualClock(now_ms=10**9)
        self.stores = memory_store(), memory_store()
        schemas = None, {"key": self.key_type, "value": VALUE}
        self.logs = [
            Log.create(store, PARTITIONS, CONFIG, clock=self.clock, schema=schema, ids=SeededIds(1))
            for store, schema in zip(self.stores, schemas, strict=True)
        ]
        self.fields = 0

    def perform(self, name, argument):
        plain, typed = self.logs
        match name:
            case "append":
                rows = [(self.key_of(k), value_of(v)) for k, v, _ in argument]
                parts = [p for _, _, p in argument]
                words = [(repr(k), None if v is None else repr(v)) for k, v in rows]
                plain.append([{"key": k, "value": v} for k, v in words], partition=parts)
                typed.append([{"key": k, "value": v} for k, v in rows], partition=parts)
            case "roll":
                [log.roll() for log in self.logs]
            case "advance":
                self.clock.advance(argument)
            case "clean":
                [Cleaner(log).run_once(force=True) for log in self.logs]
            case "coalesce":
                for log in self.logs:
                    handle, now_ms = log.handle, self.clock.now_ms()
                    coalesce(Work(handle, now_ms), force=True)
            case "evolve":
                self.fields += 1
                typed.evolve(add={f"value.f{self.fields}": pa.int64()})
                if self.fields == 1:
                    widen = {"value.n": pa.int64(), "value.l.element.q": pa.int16()}
                    typed.evolve(widen=widen, relax=["value.n"])
                if self.fields == 2 and pa.types.is_integer(self.key_type):
                    typed.evolve(widen={"key": pa.int64()})

    def words(self, row):
        """A row of the typed log as the other one has it: without fields that were added later."""
        value = row["value"]
        if value is not None:
            assert not any(value.pop(f"f{i + 1}") for i in range(self.fields))
        key = repr(row["key"]).encode()
        return (
            row["partition"],
            row["offset"],
            key,
            value if value is None else repr(value).encode(),
        )

    def rows(self, table):
        return sorted(self.words(row) for row in table.to_arrow().to_pylist())

    def close(self):
        [discard(store) for store in self.stores]


def plain_rows(table):
    names = ("partition", "offset", "key", "value")
    return sorted(tuple(row[name] for name in names) for row in table.to_arrow().to_pylist())


APPEND = st.tuples(
    st.just("append"),
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 30), st.integers(0, PARTITIONS - 1)),
        min_size=1,
        max_size=8,
    ),
)
OPERATIONS = st.one_of(
    *(APPEND, APPEND, APPEND),
    st.tuples(st.sampled_from(["roll", "clean", "coalesce", "evolve"]), st.none()),
    st.tuples(st.just("advance"), st.sampled_from([1, 500, 1500])),
)


@pytest.mark.parametrize("kind", KEYS)
@settings(max_examples=settings().max_examples // 4)
@given(st.lists(OPERATIONS, min_size=1, max_size=14))
def test_a_typed_log_is_what_one_of_bytes_is(kind, operations):
    """S61, S62: tables, changes, look-ups and offsets, whatever was cleaned and evolved; and every
    object is sound.
    """
    twins = Twins(kind)
    try:
        for operation in operations:
            twins.perform(*operation)
        plain, typed = twins.logs
        assert plain.end_offsets() == typed.end_offsets()
        assert twins.rows(typed.table()) == plain_rows(plain.table())
        starts = dict.fromkeys(range(PARTITIONS), 0)
        latest = [row for row in plain_rows(plain.latest(starts)) if row[3] is not None]
        changed = [row for row in twins.rows(typed.latest(starts)) if row[3] is not None]
        assert changed == latest
        with TemporaryDirectory() as folder, StateTable(twins.stores[1], folder) as state:
            for n in range(7):
                found = typed.table().get(twins.key_of(n))
                assert (found is None) == (plain.table().get(repr(twins.key_of(n))) is None)
                assert state.get(twins.key_of(n)) == found
        assert verify_log(typed.handle.standing.root).findings == ()
    finally:
        twins.close()
