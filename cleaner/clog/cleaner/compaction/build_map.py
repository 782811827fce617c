"""P1: the offset map over the dirty sealed range, as far as its memory goes (S18,
S20).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.cleaner.compaction.index_filter import IndexFilter
from clog.cleaner.compaction.mapped_range import MappedRange
from clog.cleaner.compaction.memory import MORE_MEMORY
from clog.cleaner.compaction.offset_map import SLOT_BYTES, OffsetMap
from clog.cleaner.compaction.stats import PassStats
from clog.cleaner.threads import ALONE, CleanerThreads
from clog.storage.errors import enough_memory
from clog.storage.format.manifest import Manifest
from clog.storage.keys.hashing import hash_keys
from clog.storage.numpy_arrays import Hashes, Offsets, to_numpy
from clog.storage.read.scan import ReadPiece, plan_range, read_pieces
from clog.storage.store.base import Store

PUT_ROWS = 1 << 18
"""About so many rows are put into the map together; 24 bytes each wait for it. What a call costs
beside its rows is small then (`offset_map`).
"""
PORTION_ROWS = 1 << 18
"""So many rows, or those of an object, are hashed by one of several threads together."""
HASHED_BYTES = 32
"""What a row takes then, about."""


@dataclass(frozen=True, slots=True)
class KeyHasher:
    """How keys become map entries: one seed for each pass, so that collisions cannot be prepared
    (S19).

    ``width_bits`` below 128 exists for the test that shows what the width is for.
    """

    seed: int
    algorithm: str = "xxh3_128"
    width_bits: int = 128

    def __call__(self, keys: pa.Array) -> Hashes:
        return hash_keys(keys, seed=self.seed, width_bits=self.width_bits, algorithm=self.algorithm)


def check_share(memory_bytes: int) -> None:
    """Raises InvalidInputError where a thread's share of memory holds no key (S18), and
    OutOfMemoryError where there is not as much.
    """
    with enough_memory(f"a map of {memory_bytes} bytes", MORE_MEMORY):
        OffsetMap(memory_bytes=memory_bytes)


def empty_map(
    manifest: Manifest, partition: int, dirty: tuple[int, int], share_bytes: int
) -> OffsetMap:
    """Makes the map of a range: no larger than a thread's share, and no larger than its records can
    use. Touching the pages of a large map that stays almost empty takes longer than filling it.
    """
    records = sum(piece.rows for piece in plan_range(manifest, partition, *dirty))
    # Half full is as fast as empty, 0.9 is not.
    return OffsetMap(memory_bytes=min(share_bytes, (2 * records + 2) * SLOT_BYTES))


def build_map(
    store: Store,
    manifest: Manifest,
    partition: int,
    dirty: tuple[int, int],
    *,
    offset_map: OffsetMap,
    hasher: KeyHasher,
    stats: PassStats,
    index_filter: IndexFilter | None = None,
    threads: CleanerThreads = ALONE,
    judged: tuple[int, int] | None = None,
) -> MappedRange:
    """Fills the map with the last offset of each key in the range ``dirty``; returns what it
    covers of it.

    That is all, or less when the map is full: up to the offset of the first record whose key did
    not fit. Only keys are read, and noted for ``index_filter``; ``threads`` hash those of the next
    objects meanwhile. ``judged`` is the range of the segments that will be judged by the map, where
    these are not all; their keys are in the map all the same.
    """
    start, end = dirty
    waiting = _Waiting(offset_map, judged or dirty)
    stopped: int | None = None
    keyless: tuple[int, int] | None = None
    pieces = plan_range(manifest, partition, start, end)
    calls = (
        (partial(_hashed, store, some, hasher, index_filter), HASHED_BYTES * rows)
        for some, rows in _portions(pieces, PORTION_ROWS if threads.count > 1 else None)
    )
    with threads.in_turn(calls, settled=lambda hashed: [*hashed]) as turns:
        for hashed in chain.from_iterable(turn() for turn in turns):
            stats.map_records += hashed.rows
            if hashed.keyless is not None:
                first, last = hashed.keyless
                keyless = (first if keyless is None else keyless[0], last)
            stopped = waiting.add(hashed.hashes, hashed.offsets)
            if stopped is not None:
                break
        else:
            stopped = waiting.put()
    covered = end if stopped is None else stopped
    # Gaps and records without a key at the end are covered too, else a pass over nothing else
    # would never end (KAFKA-8764).
    offset_map.advance(covered - 1)
    stats.maps += 1
    stats.map_entries += offset_map.entries
    return MappedRange(offset_map, start, covered, keyless, records=waiting.taken, judged=judged)


@dataclass(frozen=True, slots=True, eq=False)
class _Hashed:
    """Rows of the range: how many, the hashes and offsets of those with a key, the first and the
    last offset of those without one.
    """

    rows: int
    hashes: Hashes
    offsets: Offsets
    keyless: tuple[int, int] | None


def _portions(
    pieces: Sequence[ReadPiece], rows_min: int | None
) -> Iterator[tuple[list[ReadPiece], int]]:
    """Yields the pieces in portions of at least so many rows, and how many each has; None: all."""
    some: list[ReadPiece] = []
    rows = 0
    for piece in pieces:
        some.append(piece)
        rows += piece.rows
        if rows_min is not None and rows >= rows_min:
            yield some, rows
            some, rows = [], 0
    if some:
        yield some, rows


def _hashed(
    store: Store, pieces: Sequence[ReadPiece], hasher: KeyHasher, index_filter: IndexFilter | None
) -> Iterator[_Hashed]:
    for batch in read_pieces(store, pieces, columns=("offset", "key")):
        keys, offsets = batch.column("key"), batch.column("offset")
        keyless: tuple[int, int] | None = None
        if keys.null_count:
            valid = keys.is_valid()
            without = offsets.filter(pc.invert(valid))
            keyless = without[0].as_py(), without[-1].as_py()
            keys, offsets = keys.filter(valid), offsets.filter(valid)
        if index_filter is not None:
            index_filter.note(keys)
        yield _Hashed(batch.num_rows, hasher(keys), to_numpy(offsets), keyless)


@dataclass(slots=True)
class _Waiting:
    """Rows on their way into a map, so many that a put is worth it; ``taken`` of those that are
    judged are in it.
    """

    offset_map: OffsetMap
    judged: tuple[int, int]
    hashes: list[Hashes] = field(default_factory=list)
    offsets: list[Offsets] = field(default_factory=list)
    rows: int = 0
    taken: int = 0

    def add(self, hashes: Hashes, offsets: Offsets) -> int | None:
        """Adds rows; the offset of the first one that did not fit, None where all did so far."""
        self.hashes.append(hashes)
        self.offsets.append(offsets)
        self.rows += len(offsets)
        return self.put() if self.rows >= PUT_ROWS else None

    def put(self) -> int | None:
        """Puts what waits; returns as `add` does."""
        if not self.rows:
            return None
        hashes, offsets = np.concatenate(self.hashes), np.concatenate(self.offsets)
        self.hashes, self.offsets, self.rows = [], [], 0
        taken = self.offset_map.put(hashes, offsets)
        first, behind = np.searchsorted(offsets[:taken], self.judged)
        self.taken += int(behind - first)
        return int(offsets[taken]) if taken < len(offsets) else None
