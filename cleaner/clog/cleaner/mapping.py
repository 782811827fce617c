"""Step 1 of a pass: the offset map over the dirty sealed range, as far as its memory goes (S18,
S20).
"""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from clog.cleaner.stats import PassStats
from clog.cleaner.superseded import MappedRange
from clog.cleaner.untouched import Untouched
from clog.storage.key_hash import hash_keys
from clog.storage.manifest import Manifest
from clog.storage.offset_map import SLOT_BYTES, Hashes, OffsetMap
from clog.storage.reader import plan_range, read_pieces
from clog.storage.store.base import Store


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


def map_bytes_for(manifest: Manifest, partition: int, dirty: tuple[int, int], share: int) -> int:
    """Memory for the map of a range: no more than a thread's share, and no more than its records
    can use. Touching the pages of a large map that stays almost empty takes longer than filling it.
    """
    records = sum(piece.rows for piece in plan_range(manifest, partition, *dirty))
    # Half full is as fast as empty, 0.9 is not.
    return min(share, (2 * records + 2) * SLOT_BYTES)


def build_map(
    store: Store,
    manifest: Manifest,
    partition: int,
    dirty: tuple[int, int],
    *,
    offset_map: OffsetMap,
    hasher: KeyHasher,
    stats: PassStats,
    untouched: Untouched | None = None,
) -> MappedRange:
    """Fills the map with the last offset of each key in the range ``dirty``; returns what it
    covers of it.

    That is all, or less when the map is full: up to the offset of the first record whose key did
    not fit. Only keys are read, and noted for ``untouched``.
    """
    start, end = dirty
    covered = end
    keyless: tuple[int, int] | None = None
    pieces = plan_range(manifest, partition, start, end)
    for batch in read_pieces(store, pieces, columns=("offset", "key")):
        keys, offsets = batch.column("key"), batch.column("offset")
        stats.map_records += batch.num_rows
        if keys.null_count:
            valid = keys.is_valid()
            without = offsets.filter(pc.invert(valid))
            first = without[0].as_py() if keyless is None else keyless[0]
            keyless = (first, without[-1].as_py())
            keys, offsets = keys.filter(valid), offsets.filter(valid)
        if untouched is not None:
            untouched.note(keys)
        taken = offset_map.put(hasher(keys), offsets.to_numpy())
        if taken < len(offsets):
            covered = offsets[taken].as_py()
            break
    # Gaps and records without a key at the end are covered too, else a pass over nothing else
    # would never end (KAFKA-8764).
    offset_map.advance(covered - 1)
    stats.maps += 1
    stats.map_entries += offset_map.entries
    return MappedRange(offset_map, start, covered, keyless)
