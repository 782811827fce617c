"""State tables of typed logs: rows are Python values, and follow the schema (S61)."""

import pyarrow as pa
import pytest

from clog.state import row_bytes
from clog.storage import InvalidInputError, Log, StateStore, StateTable
from clog.storage.env import SeededIds

VALUE = pa.struct([("n", pa.int32()), ("text", pa.string())])
PAIR = pa.struct([("a", pa.int32()), ("b", pa.string())])


@pytest.fixture
def make(store, clock):
    def make(key=PAIR):
        schema = {"key": key, "value": VALUE}
        return Log.create(store, 2, clock=clock, schema=schema, ids=SeededIds(1))

    return make


def put(log, **values):
    """Keys are pairs: a2x is (2, "x")."""
    rows = [
        {"key": {"a": int(name[1]), "b": name[2:]}, "value": n and {"n": n}}
        for name, n in values.items()
    ]
    log.append(rows)


def test_it_follows_the_log(make, store, clock, tmp_path):
    """Look-ups, scans in the order of keys and by their first fields, and changed keys."""
    log = make()
    put(log, a2x=1, a1y=2, a1x=3)
    with StateTable(store, tmp_path, clock=clock) as table:
        assert table.get((1, "y")) == table.get({"a": 1, "b": "y"}) == {"n": 2, "text": None}
        assert table.get((7, "y")) is None
        assert [key for key, _ in table.scan()] == [(1, "x"), (1, "y"), (2, "x")]
        assert [value["n"] for _, value in table.scan((1,))] == [3, 2]
        assert table.get_many([(2, "x"), (3, "x")]) == {(2, "x"): {"n": 1, "text": None}}
        put(log, a1x=None, a2x=5)
        assert set(table.refresh().changed) == {(1, "x"), (2, "x")}
        assert table.get((1, "x")) is None
        assert table.get((2, "x"))["n"] == 5


@pytest.mark.parametrize(
    ("kind", "keys", "prefix", "found"),
    [
        (pa.string(), ["b", "ab", "aa"], "a", ["aa", "ab"]),
        (pa.binary(), [b"b", b"a\xff", b"a"], b"a", [b"a", b"a\xff"]),
        (pa.int32(), [3, -5, 0], None, [-5, 0, 3]),
        (PAIR, [{"a": None, "b": "x"}, {"a": -1, "b": None}], None, [(None, "x"), (-1, None)]),
    ],
)
def test_keys_are_in_their_own_order(make, store, clock, tmp_path, kind, keys, prefix, found):
    """Not in the order of some text for them."""
    make(kind).append([{"key": key, "value": {"n": 1}} for key in keys])
    with StateTable(store, tmp_path, clock=clock) as table:
        assert [key for key, _ in table.scan(prefix)] == found


@pytest.mark.parametrize(("kind", "prefix"), [(pa.int32(), 3), (PAIR, "x"), (pa.string(), b"x")])
def test_a_prefix_that_keys_have_not_is_refused(make, store, clock, tmp_path, kind, prefix):
    make(kind)
    with (
        StateTable(store, tmp_path, clock=clock) as table,
        pytest.raises(InvalidInputError, match="prefix"),
    ):
        list(table.scan(prefix))


def test_a_schema_that_evolved_builds_it_anew(make, store, clock, tmp_path):
    """S61: the contents of the file are of the schema under which it was built; another process
    that has the older file open switches to the new one.
    """
    log = make()
    put(log, a1x=1)
    with (
        StateTable(store, tmp_path, clock=clock) as table,
        StateTable(store, tmp_path, clock=clock) as other,
    ):
        log.evolve(add={"value.more": pa.list_(pa.int8())}, widen={"value.n": pa.int64()})
        log.append([{"key": {"a": 2}, "value": {"n": 2**40, "more": [1]}}])
        assert table.refresh().changed is None
        assert table.get((1, "x")) == {"n": 1, "text": None, "more": None}
        assert table.get((2, None)) == {"n": 2**40, "text": None, "more": [1]}
        assert other.get((2, None))["more"] == [1]
    with StateTable(store, tmp_path, clock=clock) as again:
        assert again.get((2, None))["n"] == 2**40


def test_a_key_and_its_value_are_of_one_schema(make, store, clock, tmp_path, monkeypatch, noting):
    """A look-up encodes, reads and decodes with the schema of the file, whatever another thread
    refreshes meanwhile: switching to another file waits for it.
    """
    put(make(), a1x=1)
    free = []
    with StateTable(store, tmp_path, clock=clock) as table:
        stored_key = noting(row_bytes.RowCodec.stored_key, table._file._cache._lock, free)
        monkeypatch.setattr(row_bytes.RowCodec, "stored_key", stored_key)
        assert table.get((1, "x"))["n"] == 1
    assert free == [False]


def test_a_store_takes_what_the_newest_schema_allows(make, store, clock, tmp_path):
    """Also where another process changed it: before anything is put, and after each
    commit (S62).
    """
    log = make(pa.string())
    with StateStore(store, tmp_path, "a", clock=clock, ids=SeededIds(2)) as state:
        log.evolve(add={"value.more": pa.int8()})
        state.put("a", {"n": 1, "more": 2})
        log.evolve(widen={"value.n": pa.int64()})
        with pytest.raises(InvalidInputError, match="does not fit int32"):
            state.put("b", {"n": 1 << 40})  # What waits to be committed is of the schema before.
        state.commit()
        state.put("b", {"n": 1 << 40})
        state.commit()
        with pytest.raises(InvalidInputError, match=r"value\.zz"):
            state.put("c", {"zz": 1})
        assert state.get("a") == {"n": 1, "text": None, "more": 2}
    assert log.table().get("b")["n"] == 1 << 40
