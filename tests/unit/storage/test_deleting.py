"""`Log.delete`: one append of tombstones, for keys as `get_many` takes them."""

import struct

import pyarrow as pa
import pytest

from clog.storage import InvalidInputError, Log
from clog_testing.crash import memory_store

NAMES = ["a", b"b", "c"]
PAIRS = pa.struct([("year", pa.int32()), ("city", pa.string())])


@pytest.mark.parametrize(
    "given",
    [
        NAMES,
        iter(NAMES),
        pa.array(["a", "b", "c"]),
        pa.chunked_array([["a"], ["b", "c"]]),
        {"a": 1, "b": 2, "c": 3}.keys(),
    ],
)
def test_keys_are_deleted_by_one_append(make_log, given):
    """All forms of keys are taken, those that do not exist are no error, others stay (S4)."""
    log = make_log(partitions=3)
    log.append([{"key": k, "value": "1"} for k in "abd"])
    done = log.delete(given)
    assert (done.version, sum(e - s for s, e in done.offsets.values())) == (2, 3)
    assert log.table().to_pylist(columns=["key"]) == [{"key": b"d"}]


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("id", [1, 2, 2]),
        ("id", pa.array([1, 2], pa.int16())),
        (["id", "city"], [(1, "Riga"), {"id": 2, "city": "Oslo"}]),
        (["id", "city"], pa.array([{"id": i, "city": c} for i, c in [(1, "Riga"), (2, "Oslo")]])),
    ],
)
def test_keys_of_tables_are_deleted(key, given):
    """A key twice is one tombstone; structs are tuples, dicts, or Arrow's structs."""
    rows = [{"id": 1, "city": "Riga", "n": 1}, {"id": 2, "city": "Oslo", "n": 2}]
    log = Log.create(memory_store(), key=key, like=rows)
    log.append([*rows, {"id": 3, "city": "Riga", "n": 3}])
    done = log.delete(given)
    assert sum(e - s for s, e in done.offsets.values()) == 2
    assert [row["id"] for row in log.table()] == [3]


@pytest.mark.parametrize("given", ["alice", b"alice", 7, None, [None], ["alice", 7]])
def test_what_is_no_list_of_keys_is_refused(make_log, given):
    """Text is not a list of one-letter keys, here as in look-ups and erasures; nothing changes."""
    log = make_log()
    log.append([{"key": "a", "value": "1"}])
    for call in (log.delete, log.erase, log.table().get_many, log.table().of_keys):
        with pytest.raises(InvalidInputError):
            call(given)
    assert log.version == 1


@pytest.mark.parametrize("by", ["timestamp", "header"])
def test_deletes_win_where_an_order_decides(make_log, clock, by):
    """A tombstone has the highest order of its key's records, also one that is in the future."""
    config = {"compaction.strategy": by}
    log = make_log(config=config | ({"compaction.strategy.header": "n"} if by == "header" else {}))
    soon = clock.now_ms() + 300_000
    log.append(
        [
            {"key": k, "value": "1", "timestamp": soon, "headers": [("n", struct.pack(">q", 7))]}
            for k in "ab"
        ]
    )
    log.delete(["a", "missing"])
    assert log.table().to_pylist(columns=["key"]) == [{"key": b"b"}]


def test_nothing_to_delete_commits_nothing(make_log):
    """As an append of no records (S4)."""
    log = make_log()
    assert log.delete([]).version == log.version == 0


def test_a_mirror_refuses_deletes(make_log):
    """Its offsets come from its source (S75)."""
    log = make_log(features=["given-offsets"])
    with pytest.raises(InvalidInputError, match="offsets"):
        log.delete(["a"])


@pytest.mark.parametrize("delete", [Log.delete, Log.erase])
@pytest.mark.parametrize("names", [("key", "value"), ("KEY", "Value")])
def test_a_table_with_columns_called_key_and_value(delete, names, tmp_path):
    """A tombstone is no row of it, whose value would be null."""
    rows = [dict(zip(names, row, strict=True)) for row in (("a", "x"), ("b", "y"))]
    log = Log.create(str(tmp_path / "log"), 1, key=names[0], like=rows)
    log.append(rows)
    delete(log, ["a"])
    assert log.table().to_pylist() == rows[1:]
    assert log.read(start=2).to_pylist()[0]["value"] is None
