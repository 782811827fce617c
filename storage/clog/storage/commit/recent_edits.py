"""The edits of the newest versions, in memory: what the next commit carries along, and what a
manifest needs to catch up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from clog.storage.commit.versions import check_open, edits_back_to
from clog.storage.format.commits import Commit, EditRecord, read_commit
from clog.storage.format.documents import body_json
from clog.storage.store.base import Store


@dataclass(frozen=True, slots=True)
class RecentEdits:
    """Edits without gap up to a tip, reaching back about two snapshots. A value.

    Attributes:
        known: all that are here, oldest first.
    """

    tip: Commit
    known: Sequence[EditRecord]
    _weights: dict[str, int] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, tip: Commit) -> "RecentEdits":
        """Returns those that a commit carries, and its own."""
        return cls(tip, (*tip.earlier, tip.record))

    def then(self, tip: Commit) -> "RecentEdits":
        """Returns those up to another commit, as a rule a newer one. What does not connect with it
        is dropped: a gap, or a version that was never committed (COMMIT.md §4).
        """
        if tip.record.commit_id == self.tip.record.commit_id:
            return self
        fresh = (*tip.earlier, tip.record)
        known = {r.version: r.commit_id for r in self.known}
        before = fresh[0].version - 1
        if tip.parent == self.tip.record.commit_id:
            records = (*self.known, tip.record)
        elif any(known.get(r.version) == r.commit_id for r in fresh):
            records = (*(r for r in self.known if r.version <= before), *fresh)
        else:
            records = fresh
        weights, last = self._weights, self.tip.head.snapshot
        if last is not None and tip.head.snapshot != last:
            records = tuple(r for r in records if r.version > last.version) or records[-1:]
            weights = {r.commit_id: weights[r.commit_id] for r in records if r.commit_id in weights}
        return RecentEdits(tip, records, weights)

    def after(self, version: int) -> list[EditRecord] | None:
        """Returns the edits from ``version`` + 1 to the tip where all of them are here, else None.
        No request.
        """
        if version < self.known[0].version - 1:
            return None
        return [record for record in self.known if record.version > version]

    def back_to(self, store: Store, first: int) -> "RecentEdits":
        """Returns those from version ``first`` on, or earlier ones; reads the commits that carry
        what is not here, and the file of the oldest one's block.

        Raises:
            VersionExpiredError: the block was closed meanwhile.
            CorruptionError: a version is not the one that the newer ones go on from.
        """
        if self.known[0].version <= first:
            return self
        known, oldest = edits_back_to(store, self.known, first, partial(read_commit, store))
        check_open(store, oldest)
        return replace(self, known=known)

    def weight(self, record: EditRecord) -> int:
        """Returns the bytes of the edit, as JSON or as the document that holds it."""
        if record.commit_id not in self._weights:
            at = record.stored.get("edit_at")
            self._weights[record.commit_id] = at["bytes"] if at else len(body_json(record.stored))
        return self._weights[record.commit_id]
