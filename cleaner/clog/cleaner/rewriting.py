"""Step 4 of a pass: one group becomes one segment (S25, S26).

Chunks in which nothing died stay as they are and are referred to again, if they are large and alone in their object; runs of the others are written
anew: survivors only, with their offsets, timestamps and headers, in order, and the horizons of their tombstones in a column.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import pyarrow as pa

from clog.cleaner.grouping import Group, needs_own_horizon
from clog.cleaner.judging import Judge, Judged, JudgedChunk
from clog.cleaner.stats import PassStats
from clog.storage.chunks import NONE, Chunk
from clog.storage.config import LogConfig
from clog.storage.data_object import DataObject
from clog.storage.edits import Replacement
from clog.storage.object_writer import write_rewritten
from clog.storage.reader import COLUMNS, DELETE_HORIZON, piece_of, read_pieces
from clog.storage.store.base import Store

SMALL_SHARE = 8
"""A chunk below 1/8 of ``object.bytes`` is small: when segments merge it is written together with its neighbours."""


@dataclass(frozen=True, slots=True)
class Rewriter:
    """Writes groups of one pass. ``horizon_ms`` is what the pass stamps: its start + ``delete.retention.ms``."""

    store: Store
    partition: int
    judge: Judge
    config: LogConfig
    stamp: int
    horizon_ms: int
    new_id: Callable[[], str]
    stats: PassStats

    def rewrite(self, group: Group) -> tuple[Replacement, int]:
        """The replacement for a group, its objects written; and the highest offset of a tombstone it removes, -1 for none."""
        chunks: list[Chunk] = []
        removed = NONE
        for is_rewritten, run in groupby(_fates(group, self.config), key=lambda pair: pair[0]):
            judged = [c for _, c in run]
            if is_rewritten:
                made, highest = self._write_run(judged)
                chunks.extend(made)
                removed = max(removed, highest)
            else:
                chunks.extend(self._kept(c) for c in judged)
        created_ms = max(s.segment.created_ms for s in group.segments)
        replacement = Replacement(
            partition=self.partition,
            base=group.base,
            next=group.next,
            sources=tuple(c.chunk.identity for c in group.chunks),
            chunks=tuple(chunks),
            segments=((group.base, group.next, created_ms),),
        )
        return replacement, removed

    def _kept(self, c: JudgedChunk) -> Chunk:
        if not c.stamps:
            return c.chunk
        return replace(c.chunk, horizon=self.horizon_ms, up_to=self.judge.offset_map.latest_offset + 1)

    def _write_run(self, run: list[JudgedChunk]) -> tuple[list[Chunk], int]:
        removed = _Removed()
        objects = write_rewritten(
            self.store,
            self._survivors(run, removed),
            partition=self.partition,
            stamp=self.stamp,
            new_id=self.new_id,
            compression=self.config.compression_type,
            object_bytes=self.config.object_bytes,
        )
        version = max(c.chunk.version for c in run)
        return [_chunk(obj, version) for obj in objects], removed.tombstone

    def _survivors(self, run: list[JudgedChunk], removed: "_Removed") -> Iterator[pa.RecordBatch]:
        for c in run:
            piece = piece_of(self.partition, c.chunk, c.chunk.base, c.chunk.next)
            for batch in read_pieces(self.store, [piece], columns=(*COLUMNS, DELETE_HORIZON)):
                judged = self.judge.judge(batch)
                self._count(judged)
                removed.note(batch, judged.keep)
                if judged.stamp.any():
                    batch = _stamped(batch, judged.stamp, self.horizon_ms)
                kept = batch.filter(pa.array(judged.keep)).drop_columns(["partition"])
                if kept.num_rows:
                    yield kept

    def _count(self, judged: Judged) -> None:
        stats, verdict = self.stats, judged.verdict
        stats.records_read += len(judged.keep)
        stats.records_written += int(np.count_nonzero(judged.keep))
        stats.records_trimmed += judged.trimmed
        stats.records_superseded += verdict.superseded
        stats.tombstones_expired += verdict.expired_tombstones
        stats.records_without_key += verdict.invalid
        stats.tombstones_stamped += int(np.count_nonzero(judged.stamp))


@dataclass(slots=True)
class _Removed:
    """The highest offset of a tombstone that was removed (S41); -1 for none."""

    tombstone: int = NONE

    def note(self, batch: pa.RecordBatch, keep: np.ndarray) -> None:  # type: ignore[type-arg]
        is_tombstone = batch.column("value").is_null().to_numpy(zero_copy_only=False)
        gone = np.flatnonzero(is_tombstone & ~keep)
        if gone.size:
            self.tombstone = max(self.tombstone, batch.column("offset")[int(gone[-1])].as_py())


def _chunk(obj: DataObject, version: int) -> Chunk:
    """The chunk that is all of a rewritten object."""
    (stats,) = obj.chunks
    return Chunk(
        object=obj.ref,
        first_row=0,
        rows=obj.rows,
        base=stats.first_offset,
        next=stats.last_offset + 1,
        size_bytes=stats.size_bytes,
        first_timestamp_ms=stats.first_timestamp_ms,
        max_timestamp_ms=stats.max_timestamp_ms,
        tombstones=stats.tombstones,
        version=version,
        horizon_min=stats.horizon_min,
        horizon_max=stats.horizon_max,
    )


def _fates(group: Group, config: LogConfig) -> list[tuple[bool, JudgedChunk]]:
    """Which chunks are written anew. A lone small one between others that stay is not worth it."""
    must = [c.dead > 0 or needs_own_horizon(c) for c in group.chunks]
    would = [
        m or c.chunk.rows != c.chunk.object.rows or c.chunk.size_bytes < config.object_bytes // SMALL_SHARE
        for m, c in zip(must, group.chunks, strict=True)
    ]
    fates = []
    for i, c in enumerate(group.chunks):
        neighbour = (i > 0 and would[i - 1]) or (i + 1 < len(would) and would[i + 1])
        shared = c.chunk.rows != c.chunk.object.rows
        fates.append((must[i] or (would[i] and (neighbour or shared)), c))
    return fates


def _stamped(
    batch: pa.RecordBatch, stamp: np.ndarray, horizon_ms: int  # type: ignore[type-arg]
) -> pa.RecordBatch:
    column = batch.column(DELETE_HORIZON).fill_null(NONE).to_numpy()
    values = np.where(stamp, horizon_ms, column)
    index = batch.schema.get_field_index(DELETE_HORIZON)
    return batch.set_column(index, batch.schema.field(index), pa.array(values, mask=values == NONE))
