"""The changelog slice: of each key that changed since a position, only the latest record,
tombstones included.

It is the table view of the range of offsets alone, in which nothing is known to be clean: keys are
read once more than the records that are delivered, and what comes out is as many records as keys
changed. Who applies it to a state of that position has the state of now, if no tombstone was
removed in between (`tombstone_loss`).
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from clog.storage.manifest import Manifest
from clog.storage.offsets import check_start
from clog.storage.reader import COLUMNS, plan_range
from clog.storage.store.base import Store
from clog.storage.table import MAP_BYTES, TablePlan, table_batches


def plan_changes(manifest: Manifest, partition: int, start: int, *, url: str) -> TablePlan:
    """The plan of one partition's changes from the offset to the manifest's end.

    Raises:
        OffsetOutOfRangeError: the offset is below the log start or beyond the end (S38).
    """
    check_start(manifest.head, partition, start, url=url)
    end = manifest.head.partitions.end[partition]
    changed = tuple(plan_range(manifest, partition, start, end))
    seed = manifest.head.log.key_seed
    return TablePlan(partition, manifest.version, seed, (), changed, tombstones=True)


def changes_batches(
    store: Store,
    manifest: Manifest,
    starts: Mapping[int, int],
    *,
    columns: Sequence[str] = COLUMNS,
    map_bytes: int = MAP_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The latest record of each key changed from ``starts`` (an offset by partition) on, partition
    by partition, as batches of these columns of `READ_SCHEMA`; records without a key are left out.

    Raises:
        OffsetOutOfRangeError: a start that is no position; nothing is yielded.
        VersionExpiredError: the manifest's version expired while it was read.
    """
    plans = [plan_changes(manifest, p, start, url=store.url) for p, start in starts.items()]
    for plan in plans:
        yield from table_batches(store, plan, columns=columns, map_bytes=map_bytes)
