"""Retention and sealing: what expires by rule, not by key; partitions that cannot be cleaned.

Which segments have had their time, and where the log starts after them (S31-S35). Pure.

Rules run in the order start offset, size, time; each walks from the oldest segment and stops at
the first that fails it. The start offset rule holds under every policy, the others where
``delete`` is in it.

What keeps a log in order besides cleaning: sealing idle segments (S8), retention and the start
offset rule (S31-S35).

Each is one commit for all partitions, prepared from the state at the tip, and none when nothing is
due.

Partitions that cannot be cleaned for now: recorded with the reason, and retried with back-off
(S28).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from clog.storage.commit.committer import NothingToCommit
from clog.storage.commit.handle import Handle
from clog.storage.config.log_config import NO_DEFAULTS, LogConfig, with_defaults
from clog.storage.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    StoreUnavailableError,
)
from clog.storage.format.chunks import Segment, Uncleanable
from clog.storage.format.codec import NONE
from clog.storage.format.columns import new_jitter_ms
from clog.storage.format.commits import Commit, Edit, Head
from clog.storage.format.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Cut:
    """What retention does to one partition: segments below ``drop`` go; the log starts at
    ``start`` (None: unchanged).

    ``seal`` says that the active segment goes too, so an empty one takes its place first (S34).
    ``records`` and ``size_bytes`` are those of the segments.
    """

    partition: int
    drop: int
    start: int | None
    seal: bool
    records: int
    size_bytes: int


def cut(manifest: Manifest, partition: int, config: LogConfig, *, now_ms: int) -> Cut | None:
    """Returns the cut of one partition now; None when nothing goes."""
    segments = manifest.segments[partition]
    start = manifest.head.partitions.start[partition]
    gone = _below_start(segments, start)
    expired = 0
    if config.delete:
        expired = _over_size(segments[gone:], config)
        expired += _over_time(segments[gone + expired :], config, now_ms=now_ms)
    if gone + expired == 0:
        return None
    cut_off = segments[: gone + expired]
    last = cut_off[-1]
    return Cut(
        partition,
        last.next,
        last.next if last.next > start else None,
        seal=last is segments[-1],
        records=sum(s.rows for s in cut_off),
        size_bytes=sum(s.size_bytes for s in cut_off),
    )


def _below_start(segments: tuple[Segment, ...], start: int) -> int:
    """Returns how many of the oldest end at or below the log start offset. The active one may, too:
    it would keep its dead records until it rolls (S37).
    """
    count = 0
    for segment in segments:
        if segment.next > start or _is_empty_active(segment, segments):
            break
        count += 1
    return count


def _over_size(segments: tuple[Segment, ...], config: LogConfig) -> int:
    """Returns how many of the oldest go while the rest still holds ``retention.bytes`` (S32)."""
    if config.retention_bytes < 0:
        return 0
    over = sum(s.size_bytes for s in segments) - config.retention_bytes
    count = 0
    for segment in segments:
        over -= segment.size_bytes
        if over < 0 or _is_empty_active(segment, segments):
            break
        count += 1
    return count


def _over_time(segments: tuple[Segment, ...], config: LogConfig, *, now_ms: int) -> int:
    """Returns how many of the oldest have their largest timestamp more than ``retention.ms`` ago
    (S32).
    """
    if config.retention_ms < 0:
        return 0
    count = 0
    for segment in segments:
        is_kept = now_ms - segment.max_timestamp_ms <= config.retention_ms
        if is_kept or _is_empty_active(segment, segments):
            break
        count += 1
    return count


def _is_empty_active(segment: Segment, segments: tuple[Segment, ...]) -> bool:
    return segment is segments[-1] and not segment.chunks


@dataclass(frozen=True, slots=True)
class Expired:
    """Whole segments of a partition that went, or would, by retention or since the log starts
    behind them: ``records``, of ``size_bytes`` together. What is left starts at ``start_offset``.
    """

    partition: int
    start_offset: int
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """What sealing and retention did to a log: ``sealed`` are partitions, ``expired`` what went,
    ``published`` how many versions of views were made, ``withdrawn`` how many views, ``refused``
    how many that could not be kept up.
    """

    sealed: Sequence[int] = ()
    expired: Sequence[Expired] = ()
    published: int = 0
    withdrawn: int = 0
    refused: int = 0

    def __bool__(self) -> bool:
        """Tells whether there was anything to do."""
        return bool(self.sealed or self.expired)


def idle_partitions(
    head: Head, *, now_ms: int, defaults: Mapping[str, str] = NO_DEFAULTS
) -> list[int]:
    """Returns the partitions whose active segment is older, by the wall clock since its first
    commit, than the effective ``segment.ms`` (S8). ``defaults`` are the process's (S45).
    """
    config = with_defaults(head.config, defaults)
    columns = head.partitions
    return [
        p
        for p in range(head.log.partitions)
        if columns.created_ms[p] != NONE
        and now_ms - columns.created_ms[p] > config.effective_segment_ms - columns.jitter_ms[p]
    ]


def seal_idle(
    handle: Handle, *, now_ms: int, defaults: Mapping[str, str] = NO_DEFAULTS
) -> list[int]:
    """Seals the active segments of `idle_partitions`; returns these."""
    sealed: list[int] = []

    def prepare(tip: Commit, _: int) -> Edit | NothingToCommit:
        sealed[:] = idle_partitions(tip.head, now_ms=now_ms, defaults=defaults)
        if not sealed:
            return NothingToCommit()
        config = with_defaults(tip.head.config, defaults)
        return Edit(seal=tuple((p, _new_jitter_ms(handle, config)) for p in sealed))

    handle.commit(prepare, operation="seal")
    return sealed


def apply_retention(
    handle: Handle, *, now_ms: int, defaults: Mapping[str, str] = NO_DEFAULTS
) -> list[Cut]:
    """Moves log starts and drops segments that have had their time; returns what was cut."""
    cuts: list[Cut] = []

    def prepare(tip: Commit, _: int) -> Edit | NothingToCommit:
        config = with_defaults(tip.head.config, defaults)
        cuts[:] = due_cuts(handle.manifest(), config, now_ms=now_ms)
        if not cuts:
            return NothingToCommit()
        return edit_of(cuts, jitter_ms=lambda: _new_jitter_ms(handle, config))

    handle.commit(prepare, operation="retention")
    return cuts


def due_cuts(manifest: Manifest, config: LogConfig, *, now_ms: int) -> list[Cut]:
    """Returns what retention and the start offset rule take now. Pure."""
    partitions = range(manifest.head.log.partitions)
    found = (cut(manifest, p, config, now_ms=now_ms) for p in partitions)
    return [c for c in found if c is not None]


def expired(cuts: Sequence[Cut]) -> list[Expired]:
    """Returns what cuts take away."""
    return [Expired(c.partition, c.drop, c.records, c.size_bytes) for c in cuts]


def edit_of(cuts: Sequence[Cut], *, jitter_ms: Callable[[], int]) -> Edit:
    """Returns the cuts as one change. The start moves before the objects go (S35): these are
    released now, deleted later.
    """
    return Edit(
        start={c.partition: c.start for c in cuts if c.start is not None},
        seal=tuple((c.partition, jitter_ms()) for c in cuts if c.seal),
        drop={c.partition: c.drop for c in cuts},
    )


def _new_jitter_ms(handle: Handle, config: LogConfig) -> int:
    return new_jitter_ms(config, uniform=handle.ids.uniform)


BACKOFF_MS = 15_000
"""Default of ``log.cleaner.backoff.ms``; a partition that failed waits so long at first."""
RETRY_MS_MAX = 3_600_000
"""A partition that keeps failing is tried again at least this often."""

PASSING_TROUBLE = (
    StoreUnavailableError,
    CommitConflictError,
    CommitStateUnknownError,
    MemoryError,
)
"""What the store, other writers and a machine that is too small do to a pass. It says nothing about
the partition, so it makes none uncleanable: the round fails, and the log is tried again with
back-off.
"""


def is_resting(manifest: Manifest, partition: int, *, now_ms: int) -> bool:
    """Tells whether a partition that failed still waits: 15 s, doubled by every further failure, an
    hour at most. Pure.
    """
    found = manifest.uncleanable.get(partition)
    if found is None:
        return False
    return now_ms - found.time_ms < min(RETRY_MS_MAX, BACKOFF_MS << min(found.attempts - 1, 10))


def set_uncleanable(handle: Handle, partition: int, reason: str | None, *, now_ms: int) -> None:
    """Notes in the log why a partition cannot be cleaned; None: that it can be again."""

    def prepare(_tip: Commit, _ms: int) -> Edit | NothingToCommit:
        before = handle.manifest().uncleanable.get(partition)
        if reason is None:
            if before is None:
                return NothingToCommit()
            return Edit(uncleanable={partition: None})
        attempts = before.attempts + 1 if before else 1
        return Edit(uncleanable={partition: Uncleanable(reason, now_ms, attempts)})

    handle.commit(prepare, operation="clean")
