"""What commits took out of a log, and what they wrote for it: passes, retention, relayouts.

A commit says what stands where something stood; how much stood there the manifest before it knows.
So this walks: the manifest before the first commit, then each edit in turn.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from clog.storage.commit.handle import Handle
from clog.storage.commit.versions import first_open_version
from clog.storage.diagnostics.history import CommitInfo, info_of
from clog.storage.format.commits import edit_of, read_commit
from clog.storage.format.edits import Edit
from clog.storage.format.manifest import Manifest, apply


@dataclass(frozen=True, slots=True)
class CommitEffect:
    """What one commit did beside appending.

    Attributes:
        version: the version that it made.
        removed_records: that readers saw before it and do not see after it; those below the log
            start count until their segment goes.
        removed_bytes: record bytes of these.
        rewritten_bytes: size of the data objects that it brought in place of others.
    """

    version: int
    removed_records: int
    removed_bytes: int
    rewritten_bytes: int


class CommitWalk:
    """The commits of a log from a version on, with their effects, each once, as they come.

    Args:
        handle: of the log; who walks refreshes it.
        start: the first version to tell.
    """

    def __init__(self, handle: Handle, start: int) -> None:
        self._handle = handle
        self._next = start
        self._before: Manifest | None = None

    def new(self) -> Iterator[tuple[CommitInfo, CommitEffect | None]]:
        """Yields the commits up to the handle's tip that were not told yet, oldest first; one GET
        each, and the first time those of a manifest. Those whose predecessor is not readable any
        more have no effect; those deleted with their block are left out.

        Raises:
            VersionExpiredError: versions expired meanwhile.
        """
        store, tip = self._handle.store, self._handle.tip
        for version in range(max(self._next, first_open_version(store)), tip.version + 1):
            if self._before is None and version > tip.head.oldest_readable:
                self._before = self._handle.manifest_at(version - 1)
            record = read_commit(store, version).record
            edit = edit_of(store, record)
            effect = None
            if self._before is not None:
                before = self._before
                self._before = apply(
                    before, edit, commit_id=record.commit_id, time_ms=record.time_ms
                )
                effect = _effect(before, edit, self._before)
            self._next = version + 1
            yield info_of(record, edit), effect


def _effect(before: Manifest, edit: Edit, after: Manifest) -> CommitEffect:
    touched = edit.rewritten_partitions()
    appended = [c for p, c in (edit.add.chunks if edit.add else ()) if p in touched]
    old = {path for r in edit.replace for path, _ in r.sources}
    made = {c.object for r in edit.replace for c in r.chunks if c.object.path not in old}
    records, size_bytes = _seen(before, touched), _seen_bytes(before, touched)
    return CommitEffect(
        version=after.version,
        removed_records=records + sum(c.rows for c in appended) - _seen(after, touched),
        removed_bytes=size_bytes
        + sum(c.size_bytes for c in appended)
        - _seen_bytes(after, touched),
        rewritten_bytes=sum(o.size_bytes for o in made),
    )


def _seen(manifest: Manifest, partitions: set[int]) -> int:
    return sum(s.rows for p in partitions for s in manifest.segments[p])


def _seen_bytes(manifest: Manifest, partitions: set[int]) -> int:
    return sum(s.size_bytes for p in partitions for s in manifest.segments[p])
