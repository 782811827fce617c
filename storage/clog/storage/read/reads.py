"""What is read of an open log: records, tables, changes and times, each planned at a version.

Each call looks for newer versions first, which costs one GET when there is none, and then plans
from the manifest and the log start offsets of the newest.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from clog.storage.commit.handle import Handle
from clog.storage.read import offsets
from clog.storage.read.as_of import version_asked
from clog.storage.read.scan import columns_asked, read_records
from clog.storage.read.table import Table
from clog.storage.read.tables import Tables


class Reads:
    """The reads of one handle; what one table knows serves the next one's."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._tables = Tables(handle.store, seed=handle.tip.head.log.key_seed)

    def records(
        self,
        partition: int | None,
        start: int | Mapping[int, int] | None,
        end: int | Mapping[int, int] | None,
        isolation: str,
        columns: Sequence[str] | None,
    ) -> Iterator[pa.RecordBatch]:
        """Plans now, and yields the records of these ranges; see `Log.read`."""
        shown = offsets.isolation_named(isolation)
        handle = self._handle
        handle.refresh()
        manifest = handle.manifest()
        head, url = manifest.head, handle.store.url
        ranges = offsets.ranges(head, partition, start, end, url=url, isolation=shown)
        asked = columns_asked(head.log.schema, columns)
        return read_records(handle.store, manifest, ranges, columns=asked, isolation=shown)

    def table(self, partition: int | None, at: int | None, at_time_ms: int | None) -> Table:
        """Returns the table at a version; see `Log.table`."""
        handle = self._handle
        tip = handle.refresh()
        manifest = handle.manifest_at(version_asked(handle.store, tip, at, at_time_ms))
        parts = offsets.partitions_named(tip.head, partition, url=handle.store.url)
        return self._tables.at(manifest, parts, tip.head.partitions.start)

    def changes(self, start: int | Mapping[int, int], partition: int | None) -> Table:
        """Returns what changed since a position; see `Log.changes`."""
        handle = self._handle
        handle.refresh()
        manifest = handle.manifest()
        ranges = offsets.ranges(manifest.head, partition, start, None, url=handle.store.url)
        return self._tables.changes(manifest, ranges)

    def offsets_for_times(self, ts_ms: int | Mapping[int, int]) -> dict[int, int | None]:
        """Returns the first offsets that are not earlier; see `Log.offsets_for_times`."""
        handle = self._handle
        handle.refresh()
        manifest = handle.manifest()
        times = offsets.by_partition(manifest.head, ts_ms, "timestamp", url=handle.store.url)
        return offsets.for_times(handle.store, manifest, times)
