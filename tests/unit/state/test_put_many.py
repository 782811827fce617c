"""`StateStore.put_many`: rows are put as one by one, made column by column."""

import pandas as pd
import pyarrow as pa
import pytest

from clog.state import cache
from clog.storage import InvalidInputError, Log, StateFileError
from clog.storage.env import SeededIds

VALUE = pa.struct([("n", pa.int32()), ("tags", pa.list_(pa.string()))])


@pytest.mark.parametrize("memory", [1, 1 << 20])
def test_rows_are_put_as_one_by_one(make_log, open_store, memory):
    """S54: null deletes, the last row of a key counts, and the commit has a record for each key."""
    log = make_log(partitions=2)
    s = open_store(memory_bytes=memory)
    s.put_many([{"key": "a", "value": "1"}, {"key": "b", "value": "2"}])
    s.put_many(pa.table({"key": ["b", "c", "c"], "value": [None, "3", "4"]}))
    s.put_many(pd.DataFrame({"key": [b"d"], "value": [b""]}))
    s.put_many(pa.RecordBatch.from_pylist([], pa.schema({"key": "string", "value": "string"})))
    expected = {b"a": b"1", b"c": b"4", b"d": b""}
    assert dict(s.scan()) == expected
    assert s.get("c") == b"4"
    result = s.commit()
    assert sum(end - base for base, end in result.offsets.values()) == 4  # with b's tombstone
    table = {row["key"]: row["value"] for row in log.table().to_arrow().to_pylist()}
    assert dict(s.scan()) == table == expected


def test_typed_rows(store, clock, open_store):
    """They equal those that `put` makes, and follow a schema that evolved (S61, S62)."""
    key = pa.struct([("city", pa.string()), ("n", pa.int16())])
    log = Log.create(store, 2, clock=clock, schema={"key": key, "value": VALUE}, ids=SeededIds(1))
    one, many = open_store(id="one"), open_store(id="many")
    rows = {
        ("Riga", 1): {"n": 5, "tags": ["a", None]},
        ("Riga", None): {"n": None, "tags": []},
        ("Oslo", -1): {"n": -7, "tags": None},
    }
    for row in rows.items():
        one.put(*row)
    named = [{"city": city, "n": n} for city, n in rows]
    many.put_many(pa.table({"key": pa.array(named, key), "value": pa.array(rows.values(), VALUE)}))
    assert list(many.scan()) == list(one.scan())
    assert dict(many.scan()) == rows
    many.rollback()
    log.evolve(add={"value.more": pa.int8()})
    many.put_many([{"key": named[0], "value": {"n": 1, "more": 2}}])
    many.commit()
    assert log.table().get(("Riga", 1)) == {"n": 1, "tags": None, "more": 2}


def test_rows_of_a_table_with_key_columns(store, clock, open_store):
    schema = pa.schema([("id", pa.int64()), ("city", pa.string())])
    log = Log.create(store, 1, clock=clock, like=schema, key=["id"], ids=SeededIds(1))
    s = open_store()
    s.put_many(pa.table({"id": [2, 1], "city": ["Riga", "Oslo"]}))
    s.commit()
    rows = log.table().to_arrow(columns=["id", "city"]).sort_by("id").to_pylist()
    assert rows == [{"id": 1, "city": "Oslo"}, {"id": 2, "city": "Riga"}]


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([{"key": "a", "value": "1"}, {"key": None, "value": "2"}], "row 1 has no key"),
        ([{"key": "a", "value": "1", "timestamp": 7}], "timestamps or headers"),
        ([{"key": "a", "value": "1", "headers": [("h", b"x")]}], "timestamps or headers"),
        ([{"key": "a", "value": "1", "more": 7}], "'more'"),
        ([{"key": "a", "value": {1}}], "value"),
        ("ab", "cannot append"),
    ],
)
def test_refused_rows_put_nothing(make_log, open_store, rows, what):
    make_log()
    s = open_store()
    s.put("a", "before")
    with pytest.raises(InvalidInputError, match=what):
        s.put_many(rows)
    assert dict(s.scan()) == {b"a": b"before"}


def test_a_generator_may_close_the_store(make_log, open_store):
    make_log()
    s = open_store()

    def rows():
        yield {"key": "a", "value": "1"}
        s.close()

    with pytest.raises(InvalidInputError, match="was closed"):
        s.put_many(rows())


def test_no_room_for_all_rows(make_log, open_store, monkeypatch):
    """The rows that there was room for are kept; putting all of them again completes them."""
    log = make_log()
    s = open_store(memory_bytes=2_000)
    rows = [{"key": f"{n:03}", "value": f"{n:0100}"} for n in range(300)]
    private = cache._private

    def small():
        connection = private()
        connection.execute("pragma max_page_count = 4")
        return connection

    monkeypatch.setattr(cache, "_private", small)
    with pytest.raises(StateFileError, match="no space in"):
        s.put_many(rows)
    kept = len(dict(s.scan()))
    assert 0 < kept < len(rows)
    s.commit()
    monkeypatch.setattr(cache, "_private", private)
    s.put_many(rows)
    s.commit()
    table = {row["key"]: row["value"] for row in log.table().to_arrow().to_pylist()}
    assert table == {row["key"].encode(): row["value"].encode() for row in rows}
