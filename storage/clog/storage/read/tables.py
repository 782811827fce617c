"""The tables of an open log: what one version's table knows serves the next one's.

Kept are the key indexes, the pieces as they were last planned, and the table that was asked for
last.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from clog.storage.format.manifest import Manifest
from clog.storage.read.changes import plan_changes
from clog.storage.read.key_index_cache import KeyIndexCache
from clog.storage.read.table import Table
from clog.storage.read.table_plan import KnownPieces, plan_table
from clog.storage.store.base import Store


class Tables:
    """Tables of one log; ``seed`` is the log's."""

    def __init__(self, store: Store, *, seed: int) -> None:
        self._indexes = KeyIndexCache(store, seed=seed)
        self._last: tuple[Manifest, object, Table] | None = None
        self._pieces: defaultdict[int, KnownPieces] = defaultdict(KnownPieces)

    def at(self, manifest: Manifest, parts: Sequence[int], starts: Sequence[int]) -> Table:
        """Returns the table of these partitions at the manifest's version, without what lies below
        ``starts``, the log start offsets of now, by partition.
        """
        head = manifest.head
        asked, known = (parts, starts), self._last
        if known is not None and known[0] is manifest and known[1] == asked:
            return known[2]
        plans = [plan_table(manifest, p, starts[p], self._pieces[p]) for p in parts]
        shown = {p: max(head.stable_offset(p), starts[p]) for p in parts}
        schema = manifest.head.log.schema
        table = Table(self._indexes, manifest.version, plans, shown, schema=schema)
        self._last = manifest, asked, table
        return table

    def changes(self, manifest: Manifest, ranges: Mapping[int, tuple[int, int]]) -> Table:
        """Returns what changed in the range of offsets of each partition.

        Raises:
            OffsetOutOfRangeError: a start below the log start or beyond the end.
        """
        url, schema = self._indexes.url, manifest.head.log.schema
        plans = [plan_changes(manifest, p, start, url=url) for p, (start, _) in ranges.items()]
        ends = {p: end for p, (_, end) in ranges.items()}
        return Table(self._indexes, manifest.version, plans, ends, schema=schema)
