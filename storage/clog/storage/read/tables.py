"""The tables of one handle: what was planned for a version saves work at the next.

A table of a manifest that was asked for before is the same `Table`, whose runs are planned already;
a newer one goes on from the pieces of the segments that both have.
"""

from collections import defaultdict
from collections.abc import Sequence

from clog.storage.format.manifest import Manifest
from clog.storage.read.key_index_cache import KeyIndexCache
from clog.storage.read.table import Table
from clog.storage.read.table_plan import KnownPieces, plan_table


class Tables:
    """Plans tables, and remembers the last one."""

    def __init__(self, indexes: KeyIndexCache) -> None:
        self._indexes = indexes
        self._last: tuple[Manifest, object, Table] | None = None
        self._pieces: defaultdict[int, KnownPieces] = defaultdict(KnownPieces)

    def planned(
        self, manifest: Manifest, partitions: Sequence[int], starts: Sequence[int]
    ) -> Table:
        """Returns the table of these partitions at the manifest's version, without what lies below
        ``starts``, the log start offsets of now (S36).
        """
        asked, last = (partitions, starts), self._last
        if last is not None and last[0] is manifest and last[1] == asked:
            return last[2]
        plans = [plan_table(manifest, p, starts[p], self._pieces[p]) for p in partitions]
        ends = manifest.head.partitions.end
        reached = {p: max(ends[p], starts[p]) for p in partitions}
        table = Table(self._indexes, manifest.version, plans, reached)
        self._last = manifest, asked, table
        return table
