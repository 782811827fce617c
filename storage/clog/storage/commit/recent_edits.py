"""The edits of the newest versions, in memory: what the next commit carries along, and what a
manifest needs to catch up.
"""

from collections.abc import Sequence

from clog.storage.commit.versions import check_open
from clog.storage.format.commits import Commit, EditRecord, read_commit
from clog.storage.format.documents import body_json
from clog.storage.format.snapshots import mixed_histories
from clog.storage.store.base import Store


class RecentEdits:
    """Edits without gap up to a tip, reaching back about two snapshots. Not safe for threads."""

    def __init__(self, tip: Commit) -> None:
        self._tip = tip
        self._records = [*tip.earlier, tip.record]
        self._weights: dict[int, int] = {}

    def see(self, tip: Commit) -> None:
        """Goes on to another commit, as a rule a newer one. What does not connect with it is
        dropped: a gap, or a version that was never committed (COMMIT.md §4).
        """
        if tip.record.commit_id == self._tip.record.commit_id:
            return
        fresh = [*tip.earlier, tip.record]
        known = {r.version: r.commit_id for r in self._records}
        before = fresh[0].version - 1
        follows = tip.parent == self._tip.record.commit_id
        overlaps = any(known.get(r.version) == r.commit_id for r in fresh)
        if follows:
            self._records.append(tip.record)
        elif overlaps:
            self._records = [*(r for r in self._records if r.version <= before), *fresh]
        else:
            self._records = fresh
        if tip.head.snapshot != self._tip.head.snapshot and self._tip.head.snapshot is not None:
            self._forget(self._tip.head.snapshot.version)
        self._tip = tip

    def known(self) -> Sequence[EditRecord]:
        """Returns the newest edits, all that are here, oldest first. No request."""
        return self._records

    def after(self, version: int) -> list[EditRecord] | None:
        """Returns the edits from ``version`` + 1 to the tip where all of them are here, else None.
        No request.
        """
        if version < self._records[0].version - 1:
            return None
        return [record for record in self._records if record.version > version]

    def since(self, store: Store, first: int) -> list[EditRecord]:
        """Returns the edits from version ``first`` to the tip; reads the commits that carry those
        which are not here, and the file of the oldest one's block.

        Raises:
            VersionExpiredError: the block was closed meanwhile; what was read is forgotten.
        CorruptionError: a version is not the one that the newer ones go on from.
        """
        records, oldest = self._records, None
        while records[0].version > first:
            # An even version carries the one before it, a multiple of 4 all since the snapshot.
            oldest = read_commit(store, records[0].version - 1)
            if records[0].parent not in (None, oldest.record.commit_id):
                check_open(store, oldest.version)
                raise mixed_histories(store.url, f"version {oldest.version}")
            records = [*oldest.earlier, oldest.record, *records]
        if oldest is not None:
            check_open(store, oldest.version)
            self._records = records
        return [record for record in records if record.version >= first]

    def weight(self, record: EditRecord) -> int:
        """Returns the bytes of the edit, as JSON or as the document that holds it."""
        if record.version not in self._weights:
            at = record.stored.get("edit_at")
            self._weights[record.version] = at["bytes"] if at else len(body_json(record.stored))
        return self._weights[record.version]

    def _forget(self, version: int) -> None:
        self._records = [r for r in self._records if r.version > version] or self._records[-1:]
        self._weights = {v: weight for v, weight in self._weights.items() if v > version}
