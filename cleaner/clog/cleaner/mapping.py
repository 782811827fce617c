"""Step 1 of a pass: the offset map over the dirty sealed range, only as far as its memory goes (S18, S20)."""

from dataclasses import dataclass

import numpy as np

from clog.cleaner.stats import PassStats
from clog.storage.key_hash import hash_keys
from clog.storage.manifest import Manifest
from clog.storage.offset_map import OffsetMap
from clog.storage.reader import plan_range, read_pieces
from clog.storage.store.base import Store


@dataclass(frozen=True, slots=True)
class KeyHasher:
    """How keys become map entries: one seed for each pass, so that collisions cannot be prepared (S19).

    ``width_bits`` below 128 exists for the test that shows what the width is for.
    """

    seed: int
    algorithm: str = "xxh3_128"
    width_bits: int = 128

    def __call__(self, keys: object) -> np.ndarray:  # type: ignore[type-arg]
        return hash_keys(
            keys, seed=self.seed, width_bits=self.width_bits, algorithm=self.algorithm
        )


def build_map(
    store: Store,
    manifest: Manifest,
    partition: int,
    dirty: tuple[int, int],
    offset_map: OffsetMap,
    hasher: KeyHasher,
    stats: PassStats,
) -> int:
    """Fills the map with the last offset of each key in the range ``dirty``; returns the exact offset it covers the range up to.

    That is the range's end, or less when the map is full: then the first offset whose key did not fit. Only keys are read.
    """
    start, end = dirty
    covered = end
    for batch in read_pieces(
        store, plan_range(manifest, partition, start, end), columns=("offset", "key")
    ):
        stats.map_records += batch.num_rows
        valid = batch.column("key").is_valid()
        keys = batch.column("key").filter(valid)
        offsets = batch.column("offset").filter(valid).to_numpy()
        taken = offset_map.put(hasher(keys), offsets)
        if taken < len(offsets):
            covered = int(offsets[taken])
            break
    # Gaps and records without a key at the end of the range are covered too (KAFKA-8764: no endless loop on gaps).
    offset_map.advance(covered - 1)
    stats.map_entries = offset_map.entries
    stats.map_utilization = offset_map.utilization
    return covered
