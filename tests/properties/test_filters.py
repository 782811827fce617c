"""Reads with a filter compared with the same reads filtered afterwards, for random histories."""

from dataclasses import replace
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import event, given, settings
from hypothesis import strategies as st

from clog.cleaner import Cleaner
from clog.storage import Log, ManualClock
from clog.storage.env import SeededIds
from clog.storage.objects import writer
from clog.storage.read.filters import RowFilter
from clog.storage.read.table import ROW_BYTES, plan_table, table_batches
from clog.storage.types.columns import rows_of
from clog_testing.crash import memory_store
from clog_testing.strategies import TIME_MS_MAX

NAN = float("nan")
COLUMNS = pa.schema(
    [
        ("id", pa.int32()),
        ("price", pa.float64()),
        ("city", pa.string()),
        ("place", pa.struct([("zone", pa.int16()), ("when", pa.timestamp("ns", "UTC"))])),
    ]
)
CONFIG = {
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "1000",
    "file.delete.delay.ms": "1000000",
    "segment.bytes": "400",
}
IDS, PRICES, ZONES = range(6), (None, NAN, -0.0, 0.0, 1.5, 9.0), (None, 0, 1, 2)
CITIES = (None, "", "Oslo", "Rīga", "é")
PLACES = st.none() | st.fixed_dictionaries(
    {"zone": st.sampled_from(ZONES), "when": st.sampled_from([None, 0, 1, 10**9])}
)
ROWS = st.fixed_dictionaries(
    {
        "id": st.sampled_from(IDS),
        "price": st.sampled_from(PRICES),
        "city": st.sampled_from(CITIES),
        "place": PLACES,
    }
)
APPEND = st.tuples(st.just("append"), st.lists(ROWS, min_size=4, max_size=16))
OPERATIONS = st.one_of(
    *(APPEND, APPEND, APPEND),
    st.tuples(st.just("delete key"), st.sampled_from(IDS)),
    st.tuples(st.just("roll"), st.none()),
    st.tuples(st.just("clean"), st.none()),
    st.tuples(st.just("advance"), st.sampled_from([1, 1500])),
    st.tuples(st.just("trim"), st.floats(0, 1)),
)


def compared(field, values):
    """Comparisons of a column with one of the values."""
    made = [v for v in values if v is not None]
    by = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])

    def condition(operator, value):
        return {
            "==": field == value,
            "!=": field != value,
            "<": field < value,
            "<=": field <= value,
            ">": field > value,
            ">=": field >= value,
        }[operator]

    return st.one_of(
        st.builds(condition, by, st.sampled_from(made)),
        st.builds(field.isin, st.lists(st.sampled_from(made), min_size=1, max_size=3)),
        st.just(field.is_null()),
        st.just(field.is_valid()),
    )


def combined(conditions):
    """Conditions joined by and, or, not."""
    return st.recursive(
        conditions,
        lambda some: st.one_of(
            st.builds(lambda a, b: a & b, some, some),
            st.builds(lambda a, b: a | b, some, some),
            st.builds(lambda a: ~a, some),
        ),
        max_leaves=4,
    )


def of_rows():
    """Filters over the plain columns of the table."""
    return combined(
        st.one_of(
            compared(pc.field("id"), IDS),
            compared(pc.field("price"), PRICES),
            compared(pc.field("city"), CITIES),
            compared(pc.field("place", "zone"), ZONES),
            st.just(pc.field("place").is_null()),
            st.just(pc.field("place", "when") > pa.scalar(0, pa.timestamp("ns", "UTC"))),
        )
    )


def of_records():
    """Filters over the columns of records."""
    times = [pa.scalar(TIME_MS_MAX * 1000 + us, pa.timestamp("us", "UTC")) for us in (0, 10**6)]
    return combined(
        st.one_of(
            compared(pc.field("key"), IDS),
            compared(pc.field("partition"), (0, 1)),
            compared(pc.field("offset"), range(0, 30, 5)),
            compared(pc.field("timestamp"), times),
            compared(pc.field("value", "price"), PRICES),
            compared(pc.field("value", "city"), CITIES),
            st.just(pc.field("value").is_null()),
        )
    )


def made(operations, config, features):
    """A log with such a history."""
    clock, store = ManualClock(now_ms=TIME_MS_MAX), memory_store()
    log = Log.create(
        *(store, 2, {**CONFIG, **config}, None, clock),
        key="id",
        like=COLUMNS,
        features=features,
        ids=SeededIds(1),
    )
    for seed, (name, argument) in enumerate(operations):
        match name:
            case "append":
                log.append(pa.Table.from_pylist(argument, COLUMNS))
            case "delete key":
                log.append([{"key": argument, "value": None}])
            case "roll":
                log.roll()
            case "advance":
                clock.advance(argument)
            case "clean":
                own = Log.open(store, clock=clock, ids=SeededIds(100 + seed))
                Cleaner(own).run_once(force=True)
            case "trim" if not config:
                ends = log.end_offsets()
                starts = log.start_offsets()
                log.delete_records(
                    {p: starts[p] + int((end - starts[p]) * argument) for p, end in ends.items()}
                )
    return log


def told(batches):
    """The rows of batches, in a fixed order; NaN equals NaN."""
    return sorted(repr(row) for batch in batches for row in batch.to_pylist())


@settings(deadline=None, max_examples=2 * settings().max_examples // 5)
@given(
    st.lists(OPERATIONS, min_size=4, max_size=10),
    st.sampled_from(
        [({}, []), ({}, ["superseded-rows"]), ({"compaction.strategy": "timestamp"}, [])]
    ),
    st.lists(st.one_of(of_rows(), of_records()), min_size=6, max_size=6),
    st.sampled_from([1, 3, 1000]),
    st.data(),
)
def test_a_filter_gives_what_is_left_of_all(operations, kind, expressions, entries, data):
    """A row is selected or not as it is at the version: whatever the statistics of older rows, the
    cleaner, masks, the strategy and the budget of the map.
    """
    with patch.object(writer, "GROUP_ROWS", 3):
        log = made(operations, *kind)
    manifest = log.handle.manifest_at(data.draw(st.integers(0, log.version)))
    head, starts = manifest.head, log.start_offsets()
    columns = rows_of(head.log.schema, ("id",))
    plans = [plan_table(manifest, p, starts[p]) for p in range(2)]
    whole = [batch for plan in plans for batch in table_batches(log.handle.store, plan)]
    for expression in expressions:
        where = RowFilter.of(expression, head.log.schema, columns)
        expected = told(map(where.kept, whole))
        filtered = [replace(plan, where=where) for plan in plans]
        budget = {"map_bytes": entries * ROW_BYTES}
        found = (b for p in filtered for b in table_batches(log.handle.store, p, **budget))
        assert told(found) == expected
        event("some rows, not all" if 0 < len(expected) < len(told(whole)) else "none or all")


@settings(deadline=None, max_examples=settings().max_examples // 5)
@given(st.lists(OPERATIONS, min_size=2, max_size=6), st.lists(of_records(), min_size=6, max_size=6))
def test_a_read_with_a_filter_is_the_read_filtered(operations, expressions):
    """For records, each by itself; the order is kept."""
    with patch.object(writer, "GROUP_ROWS", 3):
        log = made(operations, {}, [])
    whole = log.read().to_arrow()
    for expression in expressions:
        expected = [repr(row) for row in whole.filter(expression).to_pylist()]
        assert [repr(row) for row in log.read(filter=expression).to_pylist()] == expected
