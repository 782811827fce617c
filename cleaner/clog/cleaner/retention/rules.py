"""Which segments have had their time, and where the log starts after them (S31-S35). Pure.

Rules run in the order start offset, size, time; each walks from the oldest segment and stops at
the first that fails it. The start offset rule holds under every policy, the others where
``delete`` is in it.
"""

from dataclasses import dataclass

from clog.storage.config.log_config import LogConfig
from clog.storage.format.manifest import Manifest
from clog.storage.format.segments import Segment


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
