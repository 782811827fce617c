"""When a snapshot is due (COMMIT.md, K3).

Each commit whose version is divisible by 4 carries all edits since the snapshot. A new one is due
when what was carried since weighs as much as it: then neither costs more than the other, however
large.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from clog.storage.commit.recent_edits import RecentEdits
from clog.storage.errors import CorruptionError, InvalidInputError, StoreUnavailableError
from clog.storage.format.commits import HINT_STRIDE, EditRecord, edit_of
from clog.storage.format.head import SnapshotRef
from clog.storage.format.manifest import Manifest
from clog.storage.format.snapshots import read_named_snapshot
from clog.storage.store.base import Store

HARMLESS = (StoreUnavailableError, FileNotFoundError, CorruptionError, InvalidInputError)
"""What a snapshot may fail of: the commit goes on without."""


@dataclass(frozen=True, slots=True)
class Due:
    """The edits since the last snapshot, which outweigh it, and their bytes."""

    since: Sequence[EditRecord]
    weight: int


def due_edits(
    recent: RecentEdits, since: Sequence[EditRecord], last: SnapshotRef | None, *, bytes_min: int
) -> Due | None:
    """Returns the edits since the last snapshot where they have more than ``bytes_min`` and a new
    one is due; None where it is not.
    """
    weight = sum(recent.weight(record) for record in since)
    carried = weight * len(since) // (2 * HINT_STRIDE)
    is_due = weight > bytes_min and carried > (last.size_bytes if last else 0)
    return Due(since, weight) if is_due else None


def paged_bytes(store: Store, base: Manifest, since: Sequence[EditRecord]) -> int:
    """Returns the bytes of pages that applying the edits brings in, to be written anew."""
    touched = {p for record in since for p in edit_of(store, record).rewritten_partitions()}
    return sum(page.size_bytes for page in base.pages if touched & page.ranges.keys())


class OwedSnapshots:
    """Tells whether a snapshot is due that appends leave to others. Not safe for threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._base: Manifest | None = None

    def is_owed(
        self, recent: RecentEdits, last: SnapshotRef | None, *, bytes_min: int, paged_min: int
    ) -> bool:
        """Tells whether one is due that brings in more than ``paged_min`` bytes of pages. No
        request where the edits since the last one are not known here, or none is due; else one
        GET, once for a snapshot.
        """
        since = None if last is None else recent.after(last.version)
        if last is None or since is None:
            return False
        if due_edits(recent, since, last, bytes_min=bytes_min) is None:
            return False
        try:
            if self._base is None or self._base.version != last.version:
                self._base = read_named_snapshot(self._store, last)
            return paged_bytes(self._store, self._base, since) > paged_min
        except HARMLESS:
            return False
