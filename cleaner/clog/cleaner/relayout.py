"""Rewriting runs of chunks without judging them: what coalescing, trimming and
materialising have in common.

1. Read the objects of all runs, each once for all its partitions, in the order of their rows.
2. Write the rows of each run as objects of its partition alone: offsets, timestamps (those of
   LogAppendTime become real) and delete horizons as they are; dead rows, and those below ``low``,
   are left out.
3. One commit replaces all runs whose chunks are still exactly those planned. A run that somebody
   else changed meanwhile is left out; its new objects are orphans. Appends never conflict: they add
   behind, and a replacement inside the active segment names its chunks.

Crash before 3: orphans. After: done. Where fewer or more rows are read than the manifest says,
nothing is committed.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import pyarrow as pa

from clog.cleaner.committing import objects_may_be_gone, tried
from clog.storage.chunks import Chunk
from clog.storage.commit import Answer
from clog.storage.commits import Commit
from clog.storage.config import LogConfig
from clog.storage.data_object import DataObject, rewritten_chunk
from clog.storage.edits import Edit, Replacement
from clog.storage.errors import CorruptionError
from clog.storage.handle import Handle
from clog.storage.manifest import Manifest
from clog.storage.object_writer import write_rewritten
from clog.storage.reader import COLUMNS, DELETE_HORIZON, piece_of, read_pieces
from clog.storage.store.base import Store


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring chunks of one segment; rows below ``low`` go."""

    partition: int
    chunks: tuple[Chunk, ...]
    low: int

    @property
    def base(self) -> int:
        return self.chunks[0].base

    @property
    def next(self) -> int:
        return self.chunks[-1].next

    @property
    def live_rows(self) -> int:
        return sum(c.live_rows for c in self.chunks)


def relayout(
    handle: Handle, store: Store, manifest: Manifest, runs: Sequence[Run], *, operation: str
) -> list[Run]:
    """Rewrites the runs, planned from ``manifest``, and commits; returns those it replaced."""
    rows = _read(store, runs)
    made = [
        (run, _replacement(run, _write(handle, store, run, rows.pop(i, []), manifest)))
        for i, run in enumerate(runs)
    ]
    done: list[Run] = []

    def prepare(tip: Commit, time_ms: int) -> Edit:
        now = handle.manifest()
        late = objects_may_be_gone(manifest, tip)
        there = [(run, r) for run, r in made if not late and _is_as_planned(run, now)]
        done[:] = [run for run, _ in there]
        if not there:
            raise Answer(None)
        return tried(Edit(replace=tuple(r for _, r in there)), now, time_ms=time_ms)

    try:
        handle.commit(prepare, operation=operation)
    except Answer:
        return []
    return done


def _read(store: Store, runs: Sequence[Run]) -> dict[int, list[pa.RecordBatch]]:
    """The rows of each run in offset order, by the run's index; each object is read once."""
    by_object: dict[str, list[tuple[Run, Chunk]]] = defaultdict(list)
    bases: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for i, run in enumerate(runs):
        bases[run.partition].append((run.base, i))
        for chunk in run.chunks:
            by_object[chunk.object.path].append((run, chunk))
    for starts in bases.values():
        starts.sort()
    rows: dict[int, list[tuple[int, pa.RecordBatch]]] = defaultdict(list)
    for pairs in by_object.values():
        pairs.sort(key=lambda pair: pair[1].first_row)
        pieces = [piece_of(r.partition, c, max(c.base, r.low), c.next) for r, c in pairs]
        for batch in read_pieces(store, pieces, columns=(*COLUMNS, DELETE_HORIZON)):
            first = batch.column("offset")[0].as_py()
            starts = bases[batch.column("partition")[0].as_py()]
            at = bisect_right(starts, first, key=lambda pair: pair[0]) - 1
            rows[starts[at][1]].append((first, batch.drop_columns(["partition"])))
    return {i: [b for _, b in sorted(found, key=itemgetter(0))] for i, found in rows.items()}


def _write(
    handle: Handle, store: Store, run: Run, rows: list[pa.RecordBatch], manifest: Manifest
) -> list[DataObject]:
    config = LogConfig.from_overrides(manifest.head.config)
    least, most = _rows_above(run)
    if not least <= (found := sum(batch.num_rows for batch in rows)) <= most:
        raise CorruptionError(
            f"partition {run.partition} of {store.url} has {found} records in"
            f" [{max(run.base, run.low)}, {run.next}), the manifest says {least} to {most};"
            " nothing was changed"
        )
    return write_rewritten(
        store,
        rows,
        partition=run.partition,
        stamp=manifest.version,
        key_seed=manifest.head.log.key_seed,
        new_id=handle.ids.new_id,
        compression=config.compression,
        object_bytes=config.object_bytes,
    )


def _rows_above(run: Run) -> tuple[int, int]:
    """Bounds of the number of live rows at or above ``low``; only a chunk with gaps or dead rows
    that ``low`` cuts leaves a choice.
    """
    least = most = 0
    for c in run.chunks:
        if c.base >= run.low:
            least, most = least + c.live_rows, most + c.live_rows
            continue
        above = max(0, c.next - run.low)
        if c.object.dense:
            above = max(0, c.base + c.rows - run.low)
            least += max(0, above - (c.rows - c.live_rows))
        most += min(c.live_rows, above)
    return least, most


def _replacement(run: Run, objects: Sequence[DataObject]) -> Replacement:
    version = max(c.version for c in run.chunks)
    return Replacement(
        partition=run.partition,
        base=run.base,
        next=run.next,
        sources=tuple(c.identity for c in run.chunks),
        chunks=tuple(rewritten_chunk(obj, version=version) for obj in objects),
    )


def _is_as_planned(run: Run, now: Manifest) -> bool:
    there = [
        c
        for s in now.segments[run.partition]
        if s.base < run.next and s.next > run.base
        for c in s.chunks
        if run.base <= c.base < run.next
    ]
    return there == list(run.chunks)
