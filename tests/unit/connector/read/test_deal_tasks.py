"""How pieces are distributed to tasks."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clog.connector.read import plan
from clog.connector.read.plan import deal
from clog.storage.format.chunks import ObjectRef
from clog.storage.read.scan import ReadPiece


def objects_of(appends):
    """Pieces by partition of fresh objects: ``appends[i][p]`` rows of partition p in object i."""
    ends: dict[int, int] = {}
    pieces: dict[int, list[ReadPiece]] = {}
    for i, rows_by_partition in enumerate(appends):
        rows = sum(rows_by_partition)
        ref = ObjectRef(f"data/{i}", 100 * rows, 10, "", rows, 0, dense=True)
        first_row = 0
        for p, count in enumerate(rows_by_partition):
            base = ends.get(p, 0)
            ends[p] = base + count
            pieces.setdefault(p, [])
            if count:
                piece = ReadPiece(p, ref, first_row, count, base, base, base + count)
                pieces[p].append(piece)
            first_row += count
    return pieces


def offsets_read(tasks):
    """What the tasks yield, one after the other, as (partition, offset)."""
    return [
        (piece.partition, piece.base + i)
        for task in tasks
        for piece in task
        for i in range(piece.rows)
    ]


APPENDS = st.integers(1, 4).flatmap(
    lambda partitions: st.lists(
        st.lists(st.integers(0, 30), min_size=partitions, max_size=partitions), max_size=12
    )
)


@given(APPENDS, st.none() | st.integers(1, 20), st.none() | st.integers(1, 50))
def test_each_offset_is_read_once_in_order(appends, min_tasks, max_records):
    """In each partition, offsets rise from task to task and in a task; none is missing (S44)."""
    pieces = objects_of(appends)
    tasks = deal(pieces, min_tasks=min_tasks, max_records=max_records)
    read = offsets_read(tasks)
    for p, mine in pieces.items():
        expected = sum(piece.rows for piece in mine)
        assert [offset for q, offset in read if q == p] == list(range(expected))
    assert len(read) == sum(piece.rows for mine in pieces.values() for piece in mine)
    for task in tasks:
        assert task
        if max_records is not None:
            assert sum(piece.rows for piece in task) <= max_records
    for piece in (piece for task in tasks for piece in task):
        assert (piece.start, piece.end) == (piece.base, piece.base + piece.rows)


@given(APPENDS)
def test_an_object_is_opened_once(appends):
    """A small range is one task, which reads each object with all its partitions, rows rising."""
    tasks = deal(objects_of(appends))
    assert len(tasks) <= 1
    for task in tasks:
        paths = [piece.object.path for piece in task]
        assert len([1 for a, b in pairwise(paths) if a != b]) + 1 == len(set(paths))
        for one, two in pairwise(task):
            if one.object == two.object:
                assert one.first_row < two.first_row


@pytest.mark.parametrize("worth", ["TASK_ROWS", "TASK_BYTES"])
def test_a_large_range_is_read_in_parallel(monkeypatch, worth):
    """At least one task for this many rows, or stored bytes (100 per row here), of about equal
    size.
    """
    monkeypatch.setattr(plan, "TASK_ROWS", 250_000 if worth == "TASK_ROWS" else 1 << 40)
    monkeypatch.setattr(plan, "TASK_BYTES", 25_000_000 if worth == "TASK_BYTES" else 1 << 40)
    tasks = deal(objects_of([[600_000, 400_000]]))
    rows = [sum(piece.rows for piece in task) for task in tasks]
    assert len(tasks) == 4
    assert max(rows) - min(rows) <= 1


def test_min_partitions_is_a_wish():
    """As with Kafka's source: about this many tasks, never an empty one."""
    assert len(deal(objects_of([[100, 100]]), min_tasks=8)) == 8
    assert len(deal(objects_of([[1, 1]]), min_tasks=8)) == 2


def test_rewritten_objects_are_not_cut():
    """Rows and offsets do not increase together there."""
    pieces = objects_of([[1000]])
    (piece,) = pieces[0]
    sparse = replace(piece, object=replace(piece.object, dense=False), end=5000)
    assert deal({0: [sparse]}, max_records=10) == [(sparse,)]


def test_parts_of_objects_that_interleave_are_read_by_partition():
    """A before B in one partition, B before A in the other: no order of objects suits both."""
    pieces = objects_of([[5, 5], [5, 5]])
    a, b = pieces[1]
    pieces[1] = [replace(b, base=0, start=0, end=5), replace(a, base=5, start=5, end=10)]
    (task,) = deal(pieces)
    assert [piece.partition for piece in task] == [0, 0, 1, 1]
