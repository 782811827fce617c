"""The changelog slice: of each key that changed since a position, only the latest record,
tombstones included.

It is the table view of the range of offsets alone, in which nothing is known to be clean but what
has masks: keys are read once more than the records that are delivered, and what comes out is as
many records as keys changed. Applied to the state at that position it gives the state now, if no
tombstone was removed in between (`missed_deletes`).
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from clog.storage.format.manifest import Manifest
from clog.storage.read.left_out import Hidden
from clog.storage.read.offsets import check_start
from clog.storage.read.scan import COLUMNS, plan_range
from clog.storage.read.table_plan import TablePlan, masked_below
from clog.storage.read.table_scan import MAP_BYTES, table_batches
from clog.storage.store.base import Store


def plan_changes(manifest: Manifest, partition: int, start: int, *, url: str) -> TablePlan:
    """Returns the plan of one partition's changes from the offset on, as far as all is decided.

    Raises:
        OffsetOutOfRangeError: the offset is below the log start or beyond the end (S38).
    """
    check_start(manifest.head, partition, start, url=url)
    end = manifest.head.stable_offset(partition)
    dirty = max(start, min(masked_below(manifest, partition)[0], end))
    clean = plan_range(manifest, partition, start, dirty, hidden=Hidden.SUPERSEDED)
    changed = plan_range(manifest, partition, dirty, end)
    version, log = manifest.version, manifest.head.log
    own = (partition, version, log.key_seed, log.schema, tuple(clean), tuple(changed))
    return TablePlan(*own, tombstones=True)


def changes_batches(
    store: Store,
    manifest: Manifest,
    starts: Mapping[int, int],
    *,
    columns: Sequence[str] = COLUMNS,
    map_bytes: int = MAP_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yields the latest record of each key changed from ``starts`` (an offset by partition) on,
    partition by partition, as batches of these columns of `read_schema`; records without a key are
    left out.

    Raises:
        OffsetOutOfRangeError: a start that is no position; nothing is yielded.
        VersionExpiredError: the manifest's version expired while it was read.
    """
    plans = [plan_changes(manifest, p, start, url=store.url) for p, start in starts.items()]
    for plan in plans:
        yield from table_batches(store, plan, columns=columns, map_bytes=map_bytes)
