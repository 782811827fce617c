"""Step 2 of a pass: what is dead in each sealed segment (S21, S23).

Only keys are read, and values only of chunks that hold tombstones: the manifest counts them. Chunks wholly below the log start, or beyond what
the map covers, are judged without reading anything.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.cleaner.mapping import KeyHasher
from clog.storage.chunks import NONE, Chunk
from clog.storage.data_object import RECORD_OVERHEAD
from clog.storage.manifest import Segment
from clog.storage.offset_map import OffsetMap
from clog.storage.reader import DELETE_HORIZON, piece_of, read_pieces
from clog.storage.store.base import Store
from clog.storage.survivors import Verdict, survivors


@dataclass(frozen=True, slots=True)
class Judged:
    """A batch and what becomes of its rows: ``keep``, and of those the tombstones that get a horizon now, ``stamp``.

    ``trimmed`` rows go because they lie below the log start, whatever the verdict says of them.
    """

    batch: pa.RecordBatch
    verdict: Verdict
    keep: np.ndarray  # type: ignore[type-arg]
    stamp: np.ndarray  # type: ignore[type-arg]
    trimmed: int


@dataclass(frozen=True, slots=True)
class Judge:
    """Decides on records: the map, the log start below which all is dead (S37), the clock at the pass's start."""

    offset_map: OffsetMap
    hasher: KeyHasher
    log_start: int
    now_ms: int

    def judge(self, batch: pa.RecordBatch) -> Judged:
        """Judges a batch with offset and key, and with value and `DELETE_HORIZON` where there may be tombstones."""
        offsets = batch.column("offset").to_numpy()
        valid = batch.column("key").is_valid()
        key_valid = valid.to_numpy(zero_copy_only=False)
        hashes = np.zeros((len(offsets), 2), np.uint64)
        hashes[key_valid] = self.hasher(batch.column("key").filter(valid))
        tombstone = np.zeros(len(offsets), np.bool_)
        horizon = np.full(len(offsets), NONE, np.int64)
        if DELETE_HORIZON in batch.schema.names:
            tombstone = batch.column("value").is_null().to_numpy(zero_copy_only=False)
            horizon = pc.fill_null(batch.column(DELETE_HORIZON), NONE).to_numpy()
        above = offsets >= self.log_start
        verdict = survivors(
            offsets=offsets,
            hashes=hashes,
            key_valid=key_valid,
            is_tombstone=tombstone,
            delete_horizon_ms=horizon,
            offset_map=self.offset_map,
            now_ms=self.now_ms,
        )
        trimmed = int(np.count_nonzero(~above))
        return Judged(batch, verdict, verdict.keep & above, verdict.stamp & above, trimmed)


@dataclass(frozen=True, slots=True)
class JudgedChunk:
    """A chunk and what is dead in it. ``size_bytes_max`` bounds the record bytes of what stays from above.

    ``stamps`` says that a tombstone in it gets its horizon by this pass.
    """

    chunk: Chunk
    dead: int
    size_bytes_max: int
    stamps: bool


@dataclass(frozen=True, slots=True)
class JudgedSegment:
    segment: Segment
    chunks: tuple[JudgedChunk, ...]

    @property
    def dead(self) -> int:
        return sum(c.dead for c in self.chunks)

    @property
    def size_bytes_max(self) -> int:
        return sum(c.size_bytes_max for c in self.chunks)


def judge_segment(store: Store, partition: int, segment: Segment, judge: Judge) -> JudgedSegment:
    chunks = tuple(_judge_chunk(store, partition, c, judge) for c in segment.chunks)
    return JudgedSegment(segment, chunks)


def columns_for(chunk: Chunk, columns: tuple[str, ...]) -> tuple[str, ...]:
    """The columns, and what tells tombstones where the chunk has any."""
    return (*columns, "value", DELETE_HORIZON) if chunk.tombstones else columns


def _judge_chunk(store: Store, partition: int, chunk: Chunk, judge: Judge) -> JudgedChunk:
    if chunk.next <= judge.log_start:
        return JudgedChunk(chunk, chunk.rows, 0, stamps=False)
    if chunk.base > judge.offset_map.latest_offset and chunk.base >= judge.log_start:
        return JudgedChunk(chunk, 0, chunk.size_bytes, stamps=False)
    dead = dead_bytes = 0
    stamps = False
    piece = piece_of(partition, chunk, chunk.base, chunk.next)
    for batch in read_pieces(store, [piece], columns=columns_for(chunk, ("offset", "key"))):
        judged = judge.judge(batch)
        gone = ~judged.keep
        dead += int(np.count_nonzero(gone))
        # Keys are known exactly, values are not read: so much at least is freed.
        keys = pc.binary_length(batch.column("key").filter(pa.array(gone)))
        dead_bytes += int(np.count_nonzero(gone)) * RECORD_OVERHEAD + (pc.sum(keys).as_py() or 0)
        stamps = stamps or bool(judged.stamp.any())
    return JudgedChunk(chunk, dead, chunk.size_bytes - dead_bytes, stamps)
