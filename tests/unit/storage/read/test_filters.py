"""Filters of reads: what is left unread, and what is refused. That nothing is lost is a property
(`tests/properties/test_filters.py`).
"""

import datetime as dt
import pickle
from decimal import Decimal

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from polars.testing import assert_frame_equal

from clog.storage import InvalidInputError, Log
from clog.storage.objects import writer
from clog.storage.read import filters
from clog.storage.store import store_at
from clog_testing.counting import CountingStore

ROWS = 4000


@pytest.fixture(scope="module")
def ascending(tmp_path_factory):
    """A log in which one object has 8 row groups, ids and prices ascending, of 3 MB."""
    found = CountingStore(store_at(str(tmp_path_factory.mktemp("filters") / "log"), None))
    rng = np.random.default_rng(1)
    rows = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "price": pa.array([i / 10 for i in range(ROWS)]),
            "city": [f"city {i // 500}" for i in range(ROWS)],
            "day": pa.array([i // 100 for i in range(ROWS)], pa.date32()),
            "body": [rng.bytes(800) for _ in range(ROWS)],
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "GROUP_ROWS", 500)
        patch.setattr(writer, "GROUP_BYTES_MIN", 1)
        Log.create(found, 1, key="id", like=rows).append(rows)
    return found


def read_bytes(store, read):
    """What a read returns, and how many bytes it took; with its own handle, whose caches
    are empty.
    """
    log = Log.open(store)
    log.table()
    store.reset()
    return read(log), store.bytes_in


@pytest.mark.parametrize(
    ("condition", "rows", "groups"),
    [
        (("price", "<", 10.0), 100, 1),
        (("city", "==", "city 3"), 500, 1),
        (("id", ">=", 3400), 600, 2),
        (("day", "in", [dt.date(1970, 1, 3), dt.date(1970, 1, 30)]), 200, 2),
        (("price", ">", 1e9), 0, 0),
    ],
)
def test_row_groups_that_cannot_fit_are_not_fetched(ascending, condition, rows, groups):
    """For a table, a read and a lazy frame alike; the keys of the dirty part are added."""
    _, everything = read_bytes(ascending, lambda log: log.table().to_arrow())
    path = {"id": "key"}.get(condition[0], f"value.{condition[0]}")
    found, table_bytes = read_bytes(ascending, lambda log: log.table(filter=[condition]).to_arrow())
    records, read_in = read_bytes(ascending, lambda log: log.read(filter=[(path, *condition[1:])]))
    assert found.num_rows == rows
    assert sum(batch.num_rows for batch in records) == rows
    keys_and_footer = 120_000
    assert table_bytes <= everything * groups / 8 + keys_and_footer
    assert read_in <= everything * groups / 8 + keys_and_footer


def test_other_columns_are_not_read_for_a_filter(ascending):
    """Only those that the filter names, and the requested ones."""
    found, read_in = read_bytes(
        ascending, lambda log: log.table(filter=pc.field("price") >= 0, columns=["city"]).to_arrow()
    )
    assert found.schema.names == ["city"]
    assert found.num_rows == ROWS
    assert read_in < 200_000


def test_keys_that_a_filter_rules_out_are_not_mapped(ascending):
    """A condition on keys alone also applies to the dirty part's keys: nothing of other row groups
    is fetched.
    """
    _, by_value = read_bytes(
        ascending, lambda log: log.table(filter=[("price", "<", 1.0)], columns=["price"]).to_arrow()
    )
    found, by_key = read_bytes(
        ascending, lambda log: log.table(filter=[("id", "<", 10)], columns=["price"]).to_arrow()
    )
    assert found.num_rows == 10
    assert by_key < by_value


def test_an_older_row_that_fits_does_not_come_back(make_log):
    """A filter tests the latest row of each key, however it is found."""
    rows = [{"id": 1, "price": 5, "city": "Riga"}]
    log = make_log(key="id", like=rows)
    log.append(rows)
    log.append([{"id": 1, "price": 1, "city": "Riga"}, {"id": 2, "price": 9, "city": None}])
    assert log.table(filter=[("price", ">", 3)]).to_pylist() == [
        {"id": 2, "price": 9, "city": None}
    ]
    assert log.table(at=1, filter=[("price", ">", 3)]).to_pylist() == rows
    assert len(log.table(filter=[[("price", "<", 3)], [("id", "==", 2)]])) == 2
    asked = log.table(filter=pc.field("city").is_valid())
    assert asked.get(1) == {"price": 1, "city": "Riga"}
    assert asked.get(2) is None
    assert asked.to_pandas()["id"].tolist() == [1]
    assert asked["id"].to_pylist() == [1]


def test_conditions_on_records(make_log):
    """Partition, offset and timestamp are columns too, also for a table of rows."""
    rows = [{"id": i, "city": f"c{i}"} for i in range(20)]
    log = make_log(partitions=2, key="id", like=rows)
    log.append(rows)
    everything = log.read().to_arrow()
    for condition in (
        pc.field("partition") == 1,
        (pc.field("offset") >= 3) & (pc.field("offset") < 5),
        pc.field("timestamp") < pa.scalar(0, pa.timestamp("us", "UTC")),
        pc.field("value", "city") == "c3",
    ):
        expected = everything.filter(condition)
        assert log.read(filter=condition).to_arrow() == expected
        assert len(log.table(filter=condition)) == expected.num_rows


def test_a_log_of_bytes(make_log):
    """Text is compared with keys and values as its UTF-8."""
    log = make_log()
    log.append([{"key": "a", "value": "1"}, {"key": "b", "value": "2"}])
    (row,) = log.table(filter=[("value", "==", "2")]).to_pylist()
    assert row["key"] == b"b"
    assert [row["offset"] for row in log.read(filter=pc.field("key") == b"a").to_pylist()] == [0]


LONG = ["é" * 100 + end for end in "abc"]


def chosen_ids(log, condition):
    """The ids of the rows that a condition chooses, asked as its kind is asked."""
    if isinstance(condition, pl.Expr):
        return sorted(log.table().to_polars(lazy=True).filter(condition).collect()["id"].to_list())
    where = [condition] if isinstance(condition, tuple) else condition
    return sorted(log.table(filter=where)["id"].to_pylist())


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        (("city", "in", LONG[:2]), [0, 1]),
        (("city", "not in", LONG[:2]), [2]),
        (pc.field("city").isin(LONG[1:]), [1, 2]),
        (~pc.field("city").isin([LONG[2], "ü" * 300]), [0, 1]),
        (pc.struct_field(pc.field("place"), "city").isin(LONG[:1]), [0]),
        (pl.col("city").is_in(LONG[:2]), [0, 1]),
        (~pl.col("city").is_in(LONG[:2]), [2]),
    ],
)
def test_a_filter_has_texts_of_any_length(make_log, condition, ids):
    """Its own text, which Arrow shortens in the middle of a letter, means nothing."""
    rows = [{"id": i, "city": text, "place": {"city": text}} for i, text in enumerate(LONG)]
    log = make_log(key="id", like=rows)
    log.append(rows)
    assert chosen_ids(log, condition) == ids


HIGH, DECIMAL = 2**63, pa.decimal128(10, 2)


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        (("n", ">", 5), [1, 2]),
        (("n", ">=", HIGH), [1, 2]),
        (("n", "<", 2**64), [0, 1, 2]),
        (("n", ">", -(10**50)), [0, 1, 2]),
        (("n", "in", [HIGH, -1, 2**64]), [1]),
        (("n", "not in", {np.uint64(HIGH), None}), [0, 2]),
        (("s.n", "==", 2**64 - 1), [2]),
        (("n", ">", 2.5), [1, 2]),
        (("i", ">", 2.5), [1, 2]),
        (("i", "<", HIGH), [0, 1, 2]),
        (("i", "==", 2.0**63), []),
        (("d", ">=", 2), [1, 2]),
        (pc.field("n") < 2.0**64, [0, 1, 2]),
        (pc.field("s", "n") == 2.0**63, [1]),
        (pc.field("n") > 5, [1, 2]),
        (pc.field("s", "n") > 5, [1, 2]),
        ((pc.field("n") > 5) & (pc.field("n") == pa.scalar(HIGH, pa.uint64())), [1]),
        (pc.field("n").isin(pa.array([1, HIGH], pa.uint64())), [0, 1]),
        (pl.col("n") > 5, [1, 2]),
        (pl.col("n").is_in([1, HIGH]), [0, 1]),
        (pl.col("n").is_between(2, HIGH), [1]),
    ],
)
def test_integers_are_compared_exactly(make_log, condition, ids):
    """With values of any type and size, also unsigned ones from 2^63 on, which Arrow takes for
    signed ones, and those that a float has no bits for.
    """
    numbers = [1, HIGH, 2**64 - 1]
    kind = pa.struct([("n", pa.uint64())])
    rows = pa.table(
        {
            "id": pa.array([0, 1, 2, 3], pa.int64()),
            "n": pa.array([*numbers, None], pa.uint64()),
            "i": pa.array([1, 2**24 + 1, HIGH - 1, None], pa.int64()),
            "d": pa.array([Decimal("1.99"), Decimal(2), Decimal("2.01"), None], DECIMAL),
            "s": pa.array([*({"n": n} for n in numbers), None], kind),
        }
    )
    log = make_log(key="id", like=rows)
    log.append(rows)
    assert chosen_ids(log, condition) == ids


def test_a_cast_struct_is_read_whole(make_log):
    """Its fields are not taken for missing ones, which Arrow fills with null."""
    rows = [{"id": i, "place": {"zone": i, "city": "Riga"}} for i in range(3)]
    log = make_log(key="id", like=rows)
    log.append(rows)
    kind = pa.struct([("zone", pa.int32()), ("city", pa.string())])
    where = pc.struct_field(pc.field("place").cast(kind), "zone") > 0
    assert len(log.table(filter=where)) == 2


@pytest.mark.parametrize(
    "given",
    [
        "price > 3",
        [],
        [("price", "~", 3)],
        [("price", ">")],
        [("none", "==", 4711)],
        pc.field("city") > 4711,
        pc.field("price") + 4711,
        pc.field(0) == 4711,
    ],
)
def test_what_is_no_filter_is_refused(make_log, given):
    """With a message, and without the values."""
    log = make_log(key="id", like=[{"id": 1, "price": 2.0, "city": ""}])
    for call in (log.table, log.read):
        with pytest.raises(InvalidInputError, match="filter") as refused:
            call(filter=given)
        assert "4711" not in str(refused.value)
    with pytest.raises(InvalidInputError, match="there is no column 'none'"):
        log.table(columns=["none"])


def test_a_filtered_table_travels(tmp_path):
    """A pickled table has its rows and columns at its version."""
    rows = [{"id": 1, "city": "Riga"}, {"id": 2, "city": "Oslo"}]
    log = Log.create(str(tmp_path / "log"), key="id", like=rows)
    log.append(rows)
    table = log.table(filter=pc.field("id") > 1, columns=["city"])
    log.append([{"id": 2, "city": "Rome"}])
    assert pickle.loads(pickle.dumps(table)).to_pylist() == [{"city": "Oslo"}]


LAZY = [
    (pl.col("id") > 3990, True),
    ((pl.col("id") < 20) & pl.col("city").str.ends_with("0"), True),
    (pl.col("id").is_in([1, 4000]) | pl.col("day").is_null(), True),
    (pl.col("id").is_between(5, 7), True),
    (pl.col("day") == dt.date(1970, 1, 2), True),
    (pl.lit(3990) < pl.col("id"), True),
    ((pl.col("id") < 20) | pl.col("city").str.ends_with("0"), False),
    (pl.col("price") > 399, False),
    (pl.col("id") == pl.col("price"), False),
]


@pytest.mark.parametrize(("predicate", "is_known"), LAZY)
def test_a_lazy_frame_reads_what_its_query_asks(ascending, monkeypatch, predicate, is_known):
    """It gives what the frame in memory gives, and pushes down what it can."""
    log, pushed, plan = Log.open(ascending), [], filters._as_filter
    monkeypatch.setattr(filters, "_as_filter", lambda *of: pushed.append(plan(*of)) or pushed[-1])
    expected = log.table().to_polars().filter(predicate).select("id", "price").sort("id")
    lazy = log.table().to_polars(lazy=True).filter(predicate).select("id", "price")
    assert_frame_equal(lazy.collect().sort("id"), expected)
    assert [expression is not None for expression in pushed] == [is_known]


def test_a_lazy_frame_reads_little(ascending):
    """The requested columns, and no more rows than requested."""
    total, read_in = read_bytes(
        ascending,
        lambda log: log.table().to_polars(lazy=True).select(pl.col("price").sum()).collect(),
    )
    assert total.item() == pytest.approx(sum(i / 10 for i in range(ROWS)))
    assert read_in < 200_000
    lazy = Log.open(ascending).table(filter=[("id", "<", 50)]).to_polars(lazy=True, columns=["id"])
    assert lazy.collect_schema() == {"id": pl.Int64}
    assert lazy.head(3).collect().height == 3
    assert lazy.head(45).filter(pl.col("id") > 40).collect().height == 4


def test_polars_counts_nan_as_the_largest(make_log):
    """As Polars means it, not as Arrow does: conditions on floats are Polars' own."""
    rows = [{"id": 1, "price": float("nan")}, {"id": 2, "price": 1.0}]
    log = make_log(key="id", like=rows)
    log.append(rows)
    found = log.table().to_polars(lazy=True).filter(pl.col("price") > 5).collect()
    assert found["id"].to_list() == [1]
    assert log.table(filter=[("price", ">", 5)]).to_pylist() == []
