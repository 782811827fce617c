"""The columns of heads: rows first, and the documents that contain the rest (FORMAT.md §3.4)."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clog.storage.env import SeededIds
from clog.storage.errors import CorruptionError
from clog.storage.format import columns as columns_module
from clog.storage.format import documents
from clog.storage.format.columns import (
    COLUMNS,
    PartitionColumns,
    columns_from_json,
    columns_to_json,
    resolved,
    with_rest,
)
from clog_testing.counting import CountingStore
from clog_testing.crash import memory_store

COUNT = 400
NUMBERS = st.integers(-1, 2**63 - 1)
ROWS = st.tuples(*[NUMBERS] * len(COLUMNS))
CHANGES = st.dictionaries(st.integers(0, COUNT - 1), ROWS, max_size=12)
ZEROS = PartitionColumns.of(dict.fromkeys(COLUMNS, (0,) * COUNT))


def as_lists(columns):
    return [list(getattr(columns, name)) for name in COLUMNS]


def through_json(columns, count=COUNT):
    return columns_from_json(json.loads(json.dumps(columns_to_json(columns))), count)


@pytest.fixture
def counted():
    return CountingStore(memory_store())


@given(st.lists(CHANGES, max_size=12), st.data())
def test_rows_go_before_the_rest(changes, data):
    """As in lists of numbers; also if the rest absorbs many rows."""
    columns, expected = ZEROS, [[0] * COUNT for _ in COLUMNS]
    for changed in changes:
        columns = columns.with_rows(changed)
        for p, row in changed.items():
            for i, number in enumerate(row):
                expected[i][p] = number
    assert as_lists(columns) == columns.folded().tolist() == expected
    p = data.draw(st.integers(0, COUNT - 1))
    assert columns.row(p) == tuple(column[p] for column in expected)
    assert (columns.end[p], columns.end[-1], columns.end[p:]) == (
        *(expected[1][p], expected[1][-1]),
        tuple(expected[1][p:]),
    )
    assert columns == PartitionColumns.of(dict(zip(COLUMNS, expected, strict=True)))
    assert columns != columns.with_rows({p: tuple(n ^ 1 for n in columns.row(p))})


@given(st.lists(CHANGES, min_size=1, max_size=30))
def test_every_head_says_the_same_with_or_without_its_document(changes):
    """Read from the document, or from what a follower knows: its parent's columns are enough, and
    then nothing is read.
    """
    store = CountingStore(memory_store())
    new_id = SeededIds(1).new_id
    before = follower = ZEROS
    for version, changed in enumerate(changes):
        after = before.with_rows(changed)
        held = with_rest(store, before, after, version=version, new_id=new_id)
        assert held == after
        read = through_json(held)
        assert read.ref == held.ref
        assert resolved(store, read, COUNT) == after
        with store.count() as requests:
            follower = resolved(store, read, COUNT, (version, follower))
        assert not requests
        assert follower == after
        before = held


def test_a_document_costs_as_much_as_the_heads_that_need_it(counted):
    """Neither outweighs the other by more than half: what commits carry, and the documents."""
    rng, new_id = np.random.default_rng(5), SeededIds(1).new_id
    count = 10_000
    before = PartitionColumns(rest=rng.integers(0, 1 << 24, (len(COLUMNS), count)))
    carried = 0
    for version in range(400):
        rows = rng.integers(0, 1 << 24, (10, len(COLUMNS))).tolist()
        some = rng.integers(0, count, 10).tolist()
        after = before.with_rows(dict(zip(some, map(tuple, rows), strict=True)))
        before = with_rest(counted, before, after, version=version, new_id=new_id)
        carried += len(documents.encode("commit", columns_to_json(before)))
    written = counted.bytes_out
    assert counted.counts["put"] > 5
    assert 2 / 3 < carried / written < 3 / 2
    assert (carried + written) / 400 < 20_000


def test_few_partitions_and_large_changes_need_no_document(counted):
    """All columns are in the head: for 256 partitions always, for more if a quarter changes."""
    new_id = SeededIds(1).new_id

    def held(count, changed):
        before = PartitionColumns.of(dict.fromkeys(COLUMNS, (0,) * count))
        rows = {p: (1,) * len(COLUMNS) for p in range(changed)}
        return with_rest(counted, before, before.with_rows(rows), version=0, new_id=new_id).ref

    assert held(256, 1) is None
    assert held(257, 65) is None
    assert not counted.counts
    assert held(257, 64) is not None
    assert counted.counts == {"put": 1}


def test_who_was_not_there_reads_the_document(counted):
    """One GET; none from columns that refer to the same one."""
    after = ZEROS.with_rows({3: (7,) * len(COLUMNS)})
    held = with_rest(counted, ZEROS, after, version=5, new_id=SeededIds(1).new_id)
    read = through_json(held)
    for known, gets in [((), 1), (((5, after),), 1), (((6, after),), 1), (((9, held),), 0)]:
        with counted.count() as requests:
            assert resolved(counted, read, COUNT, *known) == after
        assert requests["get"] == gets


def test_nothing_is_asked_of_columns_that_were_not_read(counted):
    """A bug would be noticed, not be a wrong number."""
    after = ZEROS.with_rows({3: (7,) * len(COLUMNS)})
    held = with_rest(counted, ZEROS, after, version=5, new_id=SeededIds(1).new_id)
    with pytest.raises(AssertionError, match="were not read"):
        assert through_json(held).end[9]


@pytest.mark.parametrize("junk", [None, "x", 1.5, True, [], {}, [None], [-1], [COUNT], [1, 1, 1]])
def test_a_head_of_some_columns_that_is_wrong(junk, counted):
    """Each field in turn, including those of the reference."""
    after = ZEROS.with_rows({3: (7,) * len(COLUMNS), 5: (8,) * len(COLUMNS)})
    held = with_rest(counted, ZEROS, after, version=5, new_id=SeededIds(1).new_id)
    sound = columns_to_json(held)
    assert columns_from_json(sound, COUNT).ref == held.ref
    for name in ("p", *COLUMNS, "rest"):
        with pytest.raises((KeyError, TypeError, ValueError)):
            columns_from_json({**sound, name: junk}, COUNT)
    rest = {**sound["rest"], "path": "../x" if junk == "x" else junk}
    with pytest.raises((TypeError, ValueError)):
        columns_from_json({**sound, "rest": rest}, COUNT)


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.update(version=6),
        lambda body: body.pop("partitions"),
        lambda body: body["partitions"].pop("end"),
        lambda body: body["partitions"]["end"].pop(),
        lambda body: body["partitions"]["end"].__setitem__(9, 1),
        lambda body: body["partitions"]["end"].__setitem__(9, 1.0),
        lambda body: body["partitions"]["end"].__setitem__(9, 1 << 64),
    ],
)
def test_a_document_that_is_not_what_the_head_refers_to(change, counted):
    """Its envelope may agree all the same."""
    after = ZEROS.with_rows({3: (7,) * len(COLUMNS)})
    held = with_rest(counted, ZEROS, after, version=5, new_id=SeededIds(1).new_id)
    body = documents.decode("columns", counted.get(held.ref.path), where="x")
    change(body)
    data = documents.encode("columns", body)
    counted.put(held.ref.path, data)
    unread = replace(through_json(held), ref=replace(held.ref, size_bytes=len(data)))
    with pytest.raises(CorruptionError, match=r"columns/0{19}5-"):
        resolved(counted, unread, COUNT)


def test_numbers_that_no_document_holds_are_corruption():
    """An edit may add up to more than 64 bits."""
    over = ZEROS.with_rows({3: (1 << 63,) * len(COLUMNS)})
    with pytest.raises(CorruptionError, match="64 bits"):
        columns_to_json(over)


def test_what_is_written_of_10_000_partitions_is_within_what_is_allowed():
    """FORMAT.md §2: a document with the maximum that a log may have."""
    array = np.full((len(COLUMNS), 1 << 16), (1 << 63) - 1)
    body = {"version": 1, "partitions": columns_module._columns_json(array)}
    assert len(documents.body_json(body)) < documents.BODY_BYTES_MAX["columns"]
