"""Which sealed segments have had their time, and where the log starts after them (S31-S35). Pure.

Rules run in the order start offset, size, time; each walks from the oldest segment and stops at the first that fails it. The start offset rule holds under every
policy, the others where ``delete`` is in it.
"""

from dataclasses import dataclass

from clog.storage.config import LogConfig
from clog.storage.manifest import Manifest, Segment


@dataclass(frozen=True, slots=True)
class Cut:
    """What retention does to one partition: segments below ``drop`` go; the log starts at ``start`` (None: unchanged).

    ``seal`` says that the active segment expired too, so an empty one takes its place first (S34).
    """

    partition: int
    drop: int
    start: int | None
    seal: bool


def cut(manifest: Manifest, partition: int, config: LogConfig, *, now_ms: int) -> Cut | None:
    """The cut of one partition now; None when nothing goes."""
    segments = manifest.segments[partition]
    start = manifest.head.partitions.start[partition]
    gone = sum(1 for _ in _below_start(segments, start))
    if config.delete:
        rest = segments[gone:]
        by_size = _over_size(rest, config)
        by_time = _over_time(rest[by_size:], config, now_ms=now_ms)
        expired = by_size + by_time
    else:
        expired = 0
    if gone + expired == 0:
        return None
    last = segments[gone + expired - 1]
    new_start = last.next if expired and last.next > start else None
    return Cut(partition, last.next, new_start, seal=last is segments[-1])


def _below_start(segments: tuple[Segment, ...], start: int) -> list[Segment]:
    """Sealed segments whose successor begins at or below the log start offset."""
    below = []
    for segment, following in zip(segments, segments[1:], strict=False):
        if following.base > start:
            break
        below.append(segment)
    return below


def _over_size(segments: tuple[Segment, ...], config: LogConfig) -> int:
    """How many of the oldest go while the rest still holds ``retention.bytes``: never below the limit (S32)."""
    if config.retention_bytes < 0:
        return 0
    over = sum(s.size_bytes for s in segments) - config.retention_bytes
    count = 0
    for segment in segments:
        if segment is segments[-1] and not segment.chunks:
            break
        over -= segment.size_bytes
        if over < 0:
            break
        count += 1
    return count


def _over_time(segments: tuple[Segment, ...], config: LogConfig, *, now_ms: int) -> int:
    """How many of the oldest have their largest timestamp more than ``retention.ms`` ago (S32, strict)."""
    if config.retention_ms < 0:
        return 0
    count = 0
    for segment in segments:
        if segment is segments[-1] and not segment.chunks:
            break
        if now_ms - segment.max_timestamp_ms <= config.retention_ms:
            break
        count += 1
    return count
