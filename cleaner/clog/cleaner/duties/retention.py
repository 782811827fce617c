"""Sealing idle segments (S8); retention and the start offset rule (S31-S35), which remove by rule,
not by key; versions that no named cut needs any more (FORMAT.md §20); and partitions that cannot be
cleaned for now, which are retried with back-off (S28).

Each duty is one commit for all partitions, and none if nothing is due.

Rules run in the order start offset, size, time; each walks from the oldest segment and stops at the
first to which it does not apply. The start offset rule holds under every policy, the others if it
has ``delete``. The start moves before objects go (S35): these are released now, deleted later.

A keep of a cut is removed when its time is up, and so is a cut in its home. A keep left by a crash
has no cut in its home: in the home itself it is removed once it is old; elsewhere, when the home
has neither a cut nor a keep with its id. If the home cannot be read nothing is guessed: the keep
stays, as `Log.describe` shows.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from clog.cleaner.duties import Work, commit_due
from clog.storage.commit.committer import NothingToCommit
from clog.storage.commit.handle import Handle
from clog.storage.config.log_config import LogConfig
from clog.storage.cuts import OPERATION
from clog.storage.env import dataclass
from clog.storage.errors import (
    ClogError,
    CommitConflictError,
    CommitStateUnknownError,
    StoreUnavailableError,
)
from clog.storage.format.chunks import Segment, Uncleanable
from clog.storage.format.columns import new_jitter_ms
from clog.storage.format.commits import Commit, Edit, Head
from clog.storage.format.documents import NONE
from clog.storage.format.manifest import Manifest
from clog.storage.transactions.several import open_other

LEFT_AGE_MS = 86_400_000
"""By this time a cut has normally been named; one whose keep is gone is refused."""
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Expired:
    """Whole segments of a partition that retention or a start offset above them removed or would
    remove: ``records``, with ``size_bytes`` together. The rest starts at ``start_offset``.
    """

    partition: int
    start_offset: int
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """What sealing and retention did to a log: ``sealed`` are partitions, ``expired`` is what was
    removed; ``published`` counts versions of views that were made, ``withdrawn`` views, and
    ``refused`` views that could not be brought up to date.
    """

    sealed: Sequence[int] = ()
    expired: Sequence[Expired] = ()
    published: int = 0
    withdrawn: int = 0
    refused: int = 0

    def __bool__(self) -> bool:
        """Returns whether there was anything to do."""
        return bool(self.sealed or self.expired)


def idle_partitions(work: Work) -> list[int]:
    """Returns partitions whose active segment is older than its ``segment.ms`` (S8)."""
    head, segment_ms = work.head, work.config.effective_segment_ms
    created_ms, jitter_ms = head.partitions.created_ms, head.partitions.jitter_ms
    return [
        p
        for p in range(head.log.partitions)
        if created_ms[p] != NONE and work.now_ms - created_ms[p] > segment_ms - jitter_ms[p]
    ]


def sealing(work: Work, partitions: Sequence[int]) -> Edit:
    """Returns the edit that seals the active segments of these partitions."""
    return Edit(seal=tuple((p, _new_jitter_ms(work)) for p in partitions))


def seal_idle(work: Work) -> list[int]:
    """Seals the active segments of `idle_partitions`; returns these partitions."""
    return commit_due(work, "seal", idle_partitions, sealing)


@dataclass(frozen=True, slots=True)
class Removal:
    """What retention does to one partition: segments below ``drop`` are removed; the log starts at
    ``start`` (None: unchanged). ``seal``: the active segment is removed, too, so an empty one takes
    its place first (S34). ``records`` and ``size_bytes`` are those of the segments.
    """

    partition: int
    drop: int
    start: int | None
    seal: bool
    records: int
    size_bytes: int

    @property
    def expired(self) -> Expired:
        return Expired(self.partition, self.drop, self.records, self.size_bytes)


def _removal(
    manifest: Manifest, partition: int, config: LogConfig, *, now_ms: int
) -> Removal | None:
    """Returns what is removed from one partition now; None if nothing is."""
    segments = manifest.segments[partition]
    start = manifest.head.partitions.start[partition]
    # The active one, too: it would keep its dead records until it rolls (S37).
    gone = _oldest(segments, lambda s: s.next <= start)
    if config.delete and config.retention_bytes >= 0:
        gone += _over_size(segments[gone:], config.retention_bytes)
    if config.delete and config.retention_ms >= 0:
        before_ms = now_ms - config.retention_ms
        gone += _oldest(segments[gone:], lambda s: s.max_timestamp_ms < before_ms)  # S32
    if not gone:
        return None
    last = segments[gone - 1]
    return Removal(
        partition,
        last.next,
        last.next if last.next > start else None,
        seal=last is segments[-1],
        records=sum(s.rows for s in segments[:gone]),
        size_bytes=sum(s.size_bytes for s in segments[:gone]),
    )


def _over_size(segments: Sequence[Segment], bytes_max: int) -> int:
    """Returns how many of the oldest can go while the rest still has ``retention.bytes`` (S32)."""
    left = sum(s.size_bytes for s in segments)

    def is_removed(segment: Segment) -> bool:
        nonlocal left
        left -= segment.size_bytes
        return left >= bytes_max

    return _oldest(segments, is_removed)


def _oldest(segments: Sequence[Segment], is_removed: Callable[[Segment], bool]) -> int:
    """Returns how many of the oldest go, up to the first that does not, or is active and empty."""
    for count, segment in enumerate(segments):
        is_empty_active = segment is segments[-1] and not segment.chunks
        if is_empty_active or not is_removed(segment):
            return count
    return len(segments)


def due_removals(work: Work) -> list[Removal]:
    """Returns what retention and the start offset rule remove now."""
    manifest, config = work.manifest, work.config
    partitions = range(manifest.head.log.partitions)
    found = (_removal(manifest, p, config, now_ms=work.now_ms) for p in partitions)
    return [one for one in found if one is not None]


def removing(work: Work, removals: Sequence[Removal]) -> Edit:
    """Returns the removals as one edit."""
    return Edit(
        start={r.partition: r.start for r in removals if r.start is not None},
        seal=tuple((r.partition, _new_jitter_ms(work)) for r in removals if r.seal),
        drop={r.partition: r.drop for r in removals},
    )


def apply_retention(work: Work) -> list[Removal]:
    """Moves log starts and drops segments whose time is up; returns what was removed."""
    return commit_due(work, "retention", due_removals, removing)


def _new_jitter_ms(work: Work) -> int:
    return new_jitter_ms(work.config, uniform=work.handle.ids.uniform)


BACKOFF_MS = 15_000
"""Default of ``log.cleaner.backoff.ms``; how long a failed partition waits at first."""
RETRY_MS_MAX = 3_600_000
"""A partition that keeps failing is tried again at least this often."""

PASSING_TROUBLE = (StoreUnavailableError, CommitConflictError, CommitStateUnknownError, MemoryError)
"""Failures of a pass because of the store, other writers or a machine that is too small. They say
nothing about the partition, so they do not make it uncleanable: the round fails, and the log is
tried again with back-off.
"""


def is_resting(manifest: Manifest, partition: int, *, now_ms: int) -> bool:
    """Returns whether a failed partition still waits: 15 s, doubled each time, an hour at most."""
    found = manifest.uncleanable.get(partition)
    if found is None:
        return False
    return now_ms - found.time_ms < min(RETRY_MS_MAX, BACKOFF_MS << min(found.attempts - 1, 10))


def set_uncleanable(handle: Handle, partition: int, reason: str | None, *, now_ms: int) -> None:
    """Notes in the log why a partition cannot be cleaned; None: it can be cleaned again."""

    def prepare(_tip: Commit, _ms: int) -> Edit | NothingToCommit:
        before = handle.manifest().uncleanable.get(partition)
        if reason is None:
            return NothingToCommit() if before is None else Edit(uncleanable={partition: None})
        attempts = before.attempts + 1 if before else 1
        return Edit(uncleanable={partition: Uncleanable(reason, now_ms, attempts)})

    handle.commit(prepare, operation="clean")


def let_go(work: Work) -> int:
    """Removes keeps that nothing needs any more, and in a home the cuts whose time is up; returns
    how many. Costs the opening of each home of other keeps; a commit if something is removed.
    """
    handle = work.handle
    left = frozenset(_left(handle))

    def prepare(tip: Commit, time_ms: int) -> Edit | NothingToCommit:
        head = tip.head
        over = {cut_id for cut_id, keep in head.kept.items() if keep.is_over(time_ms)}
        cuts = [name for name, cut in head.cuts.items() if cut.is_over(time_ms)]
        kept = over | _unnamed(head, time_ms) | (left & head.kept.keys())
        if not (kept or cuts):
            return NothingToCommit()
        return Edit(kept=dict.fromkeys(sorted(kept)), cuts=dict.fromkeys(cuts))

    done = handle.commit(prepare, operation=OPERATION)
    return len(done.record.made.kept) if isinstance(done, Commit) and done.record.made else 0


def _unnamed(head: Head, time_ms: int) -> set[str]:
    """Returns the old keeps of this home that no cut has."""
    named = {cut.cut_id for cut in head.cuts.values()}
    return {
        cut_id
        for cut_id, keep in head.kept.items()
        if keep.home == head.log.log_id
        and cut_id not in named
        and time_ms - keep.time_ms > LEFT_AGE_MS
    }


def _left(handle: Handle) -> Iterable[str]:
    """Yields the keeps of other homes that these homes do not know."""

    @cache
    def known(home_id: str, url: str) -> frozenset[str | None] | None:
        try:
            head = open_other(handle, url, home_id).tip.head
        except (ClogError, FileNotFoundError) as e:
            _LOGGER.warning(
                "%s keeps versions for cuts of %s, which cannot be read: %s; if it no longer"
                " exists, drop them with: clog snapshot %s --drop NAME --force",
                *(handle.store.url, url, e, handle.store.url),
            )
            return None
        return frozenset({*head.kept, *(cut.cut_id for cut in head.cuts.values())})

    for cut_id, keep in handle.tip.head.kept.items():
        if keep.home != handle.standing.log_id:
            there = known(keep.home, keep.home_url)
            if there is not None and cut_id not in there:
                yield cut_id
