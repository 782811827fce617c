"""What masks hide, compared with what keys say (FORMAT.md §13).

The table of each partition that has masks is made twice, by its masks and without: a record that
only one of them shows is a finding.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from clog.storage.errors import CorruptionError
from clog.storage.format.bitmaps.bitmap import read_bitmap
from clog.storage.format.manifest import Manifest
from clog.storage.numpy_arrays import Offsets, to_numpy
from clog.storage.read.table_plan import plan_table
from clog.storage.read.table_scan import table_batches
from clog.storage.store.base import Store


def mask_problems(store: Store, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yields path and message for each mask that cannot be read, and for each partition whose masks
    hide something else than what was superseded or is a tombstone.
    """
    if not manifest.covered:
        return
    broken = set()
    for p, chunk in manifest.chunks():
        mask = chunk.mask
        for bitmap in (mask.superseded, mask.tombstones) if mask else ():
            try:
                if bitmap is not None:
                    read_bitmap(store, bitmap, chunk.rows)
            except (CorruptionError, FileNotFoundError) as e:
                broken.add(p)
                where = f"the mask of [{chunk.base}, {chunk.next}) of partition {p}"
                yield chunk.object.path, f"{where} cannot be read: {e}"
    bare = _without_masks(manifest)
    for p, covered in enumerate(manifest.covered):
        if covered and p not in broken:
            by_masks, by_keys = (_shown(store, one, p) for one in (manifest, bare))
            lost, extra = np.setdiff1d(by_keys, by_masks), np.setdiff1d(by_masks, by_keys)
            if len(lost) or len(extra):
                message = (
                    f"its masks hide {len(lost)} records that its table has, and show {len(extra)}"
                    f" that it has not; the first at offset {min([*lost[:1], *extra[:1]])}"
                )
                yield f"partition {p}", message


def _without_masks(manifest: Manifest) -> Manifest:
    segments = tuple(
        tuple(replace(s, chunks=tuple(replace(c, mask=None) for c in s.chunks)) for s in mine)
        for mine in manifest.segments
    )
    return replace(manifest, segments=segments, covered=())


def _shown(store: Store, manifest: Manifest, partition: int) -> Offsets:
    """Returns the offsets of a partition's table."""
    batches = table_batches(store, plan_table(manifest, partition), columns=("offset",))
    parts = [to_numpy(batch.column("offset")) for batch in batches]
    return np.concatenate([np.empty(0, np.int64), *parts])
