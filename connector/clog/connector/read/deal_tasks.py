"""How the rows of a plan are dealt out to Spark tasks. Pure: storage's `ReadPiece`s in, lists of
them out.

A fresh object holds rows of all partitions, so reading a recent range partition by partition opens
each object once for each partition. Therefore:

D1. Pieces are ordered by object; objects such that in each partition offsets still rise from task
    to task and inside a task. So a job that writes back what it read keeps the order of each
    partition (S44).
D2. The list is cut into runs of about equal size; a piece larger than that is cut too, where its
    offsets are dense.

Where no order of the objects suits all partitions (an object of which only parts are left), the
order is partition by partition.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clog.storage.read.scan import ReadPiece

TASK_BYTES = 64 << 20
"""Stored bytes that are worth a task of their own."""
TASK_ROWS = 1_000_000
"""Likewise rows: small records compress well and still take their time, but a Python task costs
Spark as much as some 100,000 of them (``benchmarks/scenarios/spark_parquet.py``).
"""
PARALLEL_ROWS_MIN = 10_000
"""A range of fewer rows for each partition does not gain from running in parallel."""


def deal(
    pieces: Mapping[int, Sequence["ReadPiece"]],
    *,
    min_tasks: int | None = None,
    max_records: int | None = None,
    max_tasks: int | None = None,
    by_row: bool = False,
) -> list[tuple["ReadPiece", ...]]:
    """Returns pieces by partition, in offset order, dealt out to tasks; at least one piece each.

    ``max_tasks`` is passed where ``max_records`` demands it. ``by_row``: pieces of cleaned objects
    are cut too. Which offsets a part has is not known then, so a plan that is to be made anew for
    the rest must not ask for it.
    """
    ordered = _by_object(pieces)
    rows = sum(piece.rows for piece in ordered)
    if not rows:
        return []
    tasks = max(worth_tasks(pieces), min(min_tasks or 1, rows))
    tasks = min(tasks, max_tasks or tasks)
    rows_each = -(-rows // tasks)
    if max_records is not None:
        rows_each = min(rows_each, max_records)
    return [tuple(run) for run in _runs(ordered, rows_each, by_row=by_row)]


def worth_tasks(pieces: Mapping[int, Sequence["ReadPiece"]]) -> int:
    """Returns how many tasks the pieces by partition are worth; 0 for no rows."""
    rows = sum(piece.rows for run in pieces.values() for piece in run)
    stored = sum(_stored_bytes(piece) for run in pieces.values() for piece in run)
    busy = sum(1 for run in pieces.values() if run)
    by_size = max(-(-rows // TASK_ROWS), -(-stored // TASK_BYTES))
    return max(by_size, min(busy, rows // PARALLEL_ROWS_MIN))


def _stored_bytes(piece: "ReadPiece") -> int:
    return piece.object.size_bytes * piece.rows // max(1, piece.object.rows)


def _runs(
    pieces: Iterable["ReadPiece"], rows_each: int, *, by_row: bool
) -> Iterator[list["ReadPiece"]]:
    run: list[ReadPiece] = []
    room = rows_each
    for whole in pieces:
        piece = whole
        while piece.rows > room and _is_divisible(piece, by_row=by_row):
            first, piece = _cut(piece, room)
            run.append(first)
            yield run
            run, room = [], rows_each
        if run and piece.rows > room:
            yield run
            run, room = [], rows_each
        run.append(piece)
        room -= piece.rows
        if room <= 0:
            yield run
            run, room = [], rows_each
    if run:
        yield run


def _is_divisible(piece: "ReadPiece", *, by_row: bool) -> bool:
    return by_row or piece.object.dense


def _cut(piece: "ReadPiece", rows: int) -> tuple["ReadPiece", "ReadPiece"]:
    """Cuts a piece in two. Only in a dense one the offset of a row is known."""
    if not piece.object.dense:
        rest = replace(piece, first_row=piece.first_row + rows, rows=piece.rows - rows)
        return replace(piece, rows=rows), rest
    middle = piece.base + rows
    first = replace(piece, rows=rows, end=middle)
    rest = replace(
        piece,
        first_row=piece.first_row + rows,
        rows=piece.rows - rows,
        base=middle,
        start=middle,
    )
    return first, rest


def _by_object(pieces: Mapping[int, Sequence["ReadPiece"]]) -> list["ReadPiece"]:
    """Does D1: returns a topological order of the objects, of several possible ones that which
    follows partitions.
    """
    plan = {p: [piece for piece in pieces[p] if piece.rows] for p in sorted(pieces)}
    held: dict[str, list[ReadPiece]] = {}
    successors: dict[str, set[str]] = {}
    waits: dict[str, int] = {}
    for partition in plan.values():
        before = ""
        for piece in partition:
            path = piece.object.path
            held.setdefault(path, []).append(piece)
            waits.setdefault(path, 0)
            if before not in ("", path) and path not in successors.setdefault(before, set()):
                successors[before].add(path)
                waits[path] += 1
            before = path
    rank = {path: i for i, path in enumerate(held)}
    ready = [(rank[path], path) for path, count in waits.items() if count == 0]
    heapify(ready)
    order = []
    while ready:
        _, path = heappop(ready)
        order.append(path)
        for successor in successors.get(path, ()):
            waits[successor] -= 1
            if waits[successor] == 0:
                heappush(ready, (rank[successor], successor))
    if len(order) < len(held):
        return [piece for partition in plan.values() for piece in partition]
    return [p for path in order for p in sorted(held[path], key=lambda p: p.first_row)]
