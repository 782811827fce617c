"""How far a named reader is behind, and how long until something overtakes it (S64). Pure.

Three things can overtake a reader that lags:

- *retention* removes the segment in which it is;
- a *tombstone* that it has not come to is removed after its delete horizon, and it misses a delete
  (S41); one without a horizon is there for ``delete.retention.ms`` after the next pass at least;
- its *version* expires, so that a batch that was planned at it cannot be read again.

The last two wait for readers that hold (`holds`).

Counted is what the reader would get: from its position on, or from the log start where that has
moved beyond it, up to the last stable offset; nothing of what is dead or was aborted. Records and
bytes are counted by chunk, and by share of the one that is cut. What is dead or superseded in it is
not told apart from what is not.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from clog.storage.config.log_config import LogConfig
from clog.storage.format.chunks import NONE, Chunk
from clog.storage.format.manifest import Manifest
from clog.storage.format.segments import Segment
from clog.storage.read.missed_deletes import missed_deletes
from clog.storage.readers.documents import ReaderDocument
from clog.storage.readers.holds import Holds


@dataclass(frozen=True, slots=True)
class Reader:
    """A named reader, as `Log.readers` lists it. Times are in ms.

    Attributes:
        name: its name.
        position: by partition, the next offset to read.
        lag_records: about how many records there are from there to the end, or to the first that an
            open transaction leaves undecided.
        lag_ms: how long ago the first of these was written; 0 where there is none.
        expires_ms: when it may be forgotten, in ms since 1970.
        lag_bytes: bytes of these records.
        version: the version at which it had that position.
        committed_ms: when it reported that, in ms since 1970.
        until_retention_ms: how long until retention removes the segment at its position; 0: it has
            missed records, or may now; None: not by time, though ``retention.bytes`` may.
        until_tombstone_ms: how long until a tombstone that it has not reached may go; 0: one is
            gone, or may go now; None: there is none.
        until_version_ms: how long until its version may expire; 0: it has, or may now; None:
            nothing it needs is replaced.
        hold_ms: how long it asks the cleaner to wait.
        held_until_ms: until when the cleaner waits for it, in ms since 1970; 0: it does not wait.
        damage: why its document is unusable; None if it is usable.
    """

    name: str
    position: Mapping[int, int]
    lag_records: int = 0
    lag_ms: int = 0
    expires_ms: int = 0
    lag_bytes: int = 0
    version: int = NONE
    committed_ms: int = 0
    until_retention_ms: int | None = None
    until_tombstone_ms: int | None = None
    until_version_ms: int | None = None
    hold_ms: int = 0
    held_until_ms: int = 0
    damage: str | None = None


def lag_of(
    reader: ReaderDocument, manifest: Manifest, config: LogConfig, holds: Holds, *, now_ms: int
) -> Reader:
    """Returns how far a reader is behind at a version, while readers hold what they hold now."""
    unread = list(_unread(manifest, reader.offsets))
    first_ms = min((c.first_timestamp_ms for _, c, _ in unread), default=now_ms)
    return Reader(
        name=reader.name,
        position=dict(reader.offsets),
        lag_records=sum(math.ceil(c.live_rows * share) for _, c, share in unread),
        lag_ms=max(0, now_ms - first_ms),
        expires_ms=reader.expires_ms,
        lag_bytes=sum(round(c.live_bytes * share) for _, c, share in unread),
        version=reader.version,
        committed_ms=reader.time_ms,
        until_retention_ms=_until_retention(reader, manifest, config, now_ms=now_ms),
        until_tombstone_ms=_until_tombstone(reader, manifest, config, unread, holds, now_ms=now_ms),
        until_version_ms=_until_version(reader, manifest, config, holds, now_ms=now_ms),
        hold_ms=reader.hold_ms,
        held_until_ms=holds.until_ms(reader.name),
    )


def _unread(
    manifest: Manifest, position: Mapping[int, int]
) -> Iterator[tuple[int, Chunk, Fraction]]:
    """Yields the chunks that hold records for a reader at the position, each after its partition,
    and which share of it does.
    """
    for p, segments in enumerate(manifest.segments):
        at = max(position[p], manifest.head.partitions.start[p])
        end = manifest.head.stable_offset(p)
        for segment in reversed(segments):
            if segment.next <= at:
                break
            for chunk in segment.chunks:
                unread = min(chunk.next, end) - max(chunk.base, at)
                if unread > 0 and chunk.live_rows:
                    yield p, chunk, Fraction(unread, chunk.next - chunk.base)


def _until_retention(
    reader: ReaderDocument, manifest: Manifest, config: LogConfig, *, now_ms: int
) -> int | None:
    left = []
    for p, segments in enumerate(manifest.segments):
        at = reader.offsets[p]
        if at < manifest.head.partitions.start[p]:
            return 0
        upto = [s for s in segments if s.base <= at]
        if config.delete and upto and upto[-1].chunks and upto[-1].next > at:
            if _goes_by_size(segments, len(upto), config):
                return 0
            if config.retention_ms >= 0:  # Segments go from the oldest on, each after all before.
                last_ms = max(s.max_timestamp_ms for s in upto)
                left.append(max(0, last_ms + config.retention_ms - now_ms))
    return min(left, default=None)


def _goes_by_size(segments: Sequence[Segment], count: int, config: LogConfig) -> bool:
    """Tells whether the next retention removes so many of the oldest by ``retention.bytes``."""
    sizes = [s.size_bytes for s in segments]
    return 0 <= config.retention_bytes <= sum(sizes[count:])


def _until_tombstone(
    reader: ReaderDocument,
    manifest: Manifest,
    config: LogConfig,
    unread: list[tuple[int, Chunk, Fraction]],
    holds: Holds,
    *,
    now_ms: int,
) -> int | None:
    if missed_deletes(manifest.tombstones_removed, reader.offsets, reader.version):
        return 0
    if not config.compact:
        return None
    left = []
    for p, chunk, _ in unread:
        horizons = [ms for ms in (chunk.horizon_min, chunk.horizon) if ms > NONE]
        if not horizons and chunk.tombstones:
            horizons = [now_ms + config.delete_retention_ms]
        goes_ms = (holds.tombstone_ms(p, chunk.next, ms) for ms in horizons)
        left += [max(0, ms - now_ms) for ms in goes_ms]
    return min(left, default=None)


def _until_version(
    reader: ReaderDocument, manifest: Manifest, config: LogConfig, holds: Holds, *, now_ms: int
) -> int | None:
    if reader.version < manifest.head.oldest_readable:
        return 0
    gone = (
        holds.version_ms(r.version, r.time_ms + config.file_delete_delay_ms)
        for r in manifest.released
        if r.version > reader.version
    )
    first_ms = min(gone, default=None)
    return None if first_ms is None else max(0, first_ms - now_ms)
