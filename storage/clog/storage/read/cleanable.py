"""How far a partition is clean, how far it may be cleaned, and how dirty it is (S11, S12, S13).
Pure.

It is here and not in the cleaner because the table view and `describe` need it, too.
"""

from clog.storage.config.log_config import LogConfig
from clog.storage.config.units import LONG_MAX, moment
from clog.storage.env import dataclass
from clog.storage.format.chunks import Segment
from clog.storage.format.manifest import Manifest


@dataclass(frozen=True, slots=True)
class CleanableBounds:
    """Clean ``[log start, first_dirty)``, cleanable ``[first_dirty, first_uncleanable)``; byte sums
    of whole segments, including aborted records in the cleanable part.

    ``reset``: the recorded first dirty offset was out of range (S12).
    """

    partition: int
    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    cleanable_bytes: int
    reset: bool

    @property
    def dirty_ratio(self) -> float:
        """Cleanable ÷ (clean + cleanable) bytes; 0 if both are 0 (S13)."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0


def cleanable_bounds(
    manifest: Manifest, partition: int, config: LogConfig, *, now_ms: int
) -> CleanableBounds:
    """Returns the bounds of one partition now."""
    columns = manifest.head.partitions
    start, end = columns.start[partition], columns.end[partition]
    first_dirty = manifest.first_dirty[partition]
    reset = not start <= first_dirty <= end
    if reset:
        first_dirty = start
    sealed = manifest.segments[partition][:-1]
    uncleanable = first_uncleanable(manifest, partition, config, first_dirty, now_ms=now_ms)
    dirty = [s for s in sealed if s.next > first_dirty and s.next <= uncleanable]
    clean = [s for s in sealed if s.next <= first_dirty]
    return CleanableBounds(
        partition,
        first_dirty,
        uncleanable,
        sum(s.size_bytes for s in clean),
        sum(_bytes_to_clean(s) for s in dirty),
        reset,
    )


def first_uncleanable(
    manifest: Manifest, partition: int, config: LogConfig, first_dirty: int, *, now_ms: int
) -> int:
    """Returns where cleaning must stop (S10, S11): at the active segment's base, or at that of the
    first earlier segment, from the first dirty one on, whose newest record is younger than
    ``min.compaction.lag.ms`` or that reaches beyond the last stable offset. Always a segment's
    base, never below ``first_dirty``.
    """
    active, stable = manifest.segments[partition][-1], manifest.head.stable_offset(partition)
    for segment in manifest.segments[partition][:-1]:
        if segment.next > first_dirty and (
            segment.next > stable or _is_young(segment, config, now_ms)
        ):
            return max(segment.base, first_dirty)
    return max(active.base, first_dirty)


def _bytes_to_clean(segment: Segment) -> int:
    """Returns the bytes of a dirty segment; aborted records count, as passes drop them (S53)."""
    return segment.size_bytes + sum(c.size_bytes for c in segment.chunks if c.aborted)


def _is_young(segment: Segment, config: LogConfig, now_ms: int) -> bool:
    lag_ms = config.min_compaction_lag_ms
    return lag_ms > 0 and segment.max_timestamp_ms > now_ms - lag_ms


_SKEW_MS = 3_600_000
"""This far ahead clocks may differ: the default of ``message.timestamp.after.max.ms``."""


def retention_held(
    manifest: Manifest, partition: int, config: LogConfig, *, now_ms: int
) -> str | None:
    """Returns which segment holds up retention by time, in words: the oldest one with a timestamp
    in the future, or one before segments whose time is up: the oldest go first (S32).
    """
    if not config.delete or config.retention_ms < 0:
        return None
    segments = [s for s in manifest.segments[partition] if s.chunks]
    gone = [s.max_timestamp_ms < now_ms - config.retention_ms for s in segments]
    at = next((i for i, is_gone in enumerate(gone) if not is_gone), None)
    if at is None:
        return None
    segment, behind = segments[at], sum(gone[at:])
    if not behind and segment.max_timestamp_ms - now_ms <= _SKEW_MS:
        return None
    until_ms = min(segment.max_timestamp_ms + config.retention_ms, LONG_MAX)
    also = f", nor {behind} later ones whose time is up" if behind else ""
    return (
        f"the segment of offsets [{segment.base}, {segment.next}) has a record with the timestamp"
        f" {moment(segment.max_timestamp_ms)}, so retention.ms does not remove it before"
        f" {moment(until_ms)}{also}; clog alter --delete-records removes them at once"
    )
