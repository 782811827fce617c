"""What there is to say about a log: segments, and what is clean, dirty, active in a partition."""

from dataclasses import dataclass
from typing import Any

from clog.storage.bounds import PartitionBounds, bounds
from clog.storage.chunks import NONE
from clog.storage.config import LogConfig
from clog.storage.manifest import Manifest, Segment


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment, for people. ``next_offset`` is one past the last offset it covers;
    ``delete_horizon_ms`` the earliest in it, None without. ``dead_rows`` are not among the
    ``records``, nor in ``size_bytes``: nobody sees them, but their bytes are there until a rewrite.
    """

    base_offset: int
    next_offset: int
    records: int
    size_bytes: int
    largest_timestamp: int | None
    active: bool
    clean: bool
    delete_horizon_ms: int | None
    dead_rows: int


def segment_infos(manifest: Manifest, partition: int) -> list[SegmentInfo]:
    """The segments of a partition, in offset order."""
    segments = manifest.segments[partition]
    dirty = manifest.first_dirty[partition]
    return [
        SegmentInfo(
            base_offset=s.base,
            next_offset=s.next,
            records=s.rows,
            size_bytes=s.size_bytes,
            largest_timestamp=s.max_timestamp_ms if s.chunks else None,
            active=i == len(segments) - 1,
            clean=i < len(segments) - 1 and s.next <= dirty,
            delete_horizon_ms=earliest_horizon_ms(s),
            dead_rows=s.dead_rows,
        )
        for i, s in enumerate(segments)
    ]


def earliest_horizon_ms(segment: Segment) -> int | None:
    """The earliest delete horizon of a tombstone in the segment (S23)."""
    horizons = [ms for c in segment.chunks for ms in (c.horizon_min, c.horizon) if ms != NONE]
    return min(horizons, default=None)


def describe(manifest: Manifest, *, url: str, now_ms: int) -> dict[str, Any]:
    """The log as JSON-able values; sizes are record bytes, ``object_bytes`` the store's."""
    head = manifest.head
    config = LogConfig.from_overrides(head.config)
    objects = {c.object.path: c.object.size_bytes for _, c in manifest.chunks()}
    return {
        "url": url,
        "log_id": head.log.log_id,
        "created_ms": head.log.created_ms,
        "version": manifest.version,
        "committed_ms": manifest.time_ms,
        "oldest_readable_version": head.oldest_readable,
        "orphan_floor": head.orphan_floor,
        "snapshot_version": head.snapshot and head.snapshot.version,
        "partitions": head.log.partitions,
        "partitioner": head.log.partitioner,
        "config": config.as_dict(),
        "config_overrides": dict(head.config),
        "objects": len(objects),
        "object_bytes": sum(objects.values()),
        "released_bytes": sum({r.path: r.size_bytes for r in manifest.released}.values()),
        "writers": len(head.writers) + (head.older_writers.count if head.older_writers else 0),
        "partition_details": [
            _partition(manifest, bounds(manifest, p, config, now_ms=now_ms))
            for p in range(head.log.partitions)
        ],
    }


def _partition(manifest: Manifest, b: PartitionBounds) -> dict[str, Any]:
    p = b.partition
    segments = manifest.segments[p]
    chunks = [c for s in segments for c in s.chunks]
    mark = manifest.uncleanable.get(p)
    horizons = [ms for s in segments if (ms := earliest_horizon_ms(s)) is not None]
    point = next((i for i, s in enumerate(segments) if earliest_horizon_ms(s) is not None), None)
    return {
        "partition": p,
        "log_start_offset": manifest.head.partitions.start[p],
        "end_offset": manifest.head.partitions.end[p],
        "first_dirty_offset": b.first_dirty,
        "first_uncleanable_offset": b.first_uncleanable,
        "active_base_offset": segments[-1].base,
        "segments": len(segments),
        "records": sum(s.rows for s in segments),
        "dead_rows": sum(s.dead_rows for s in segments),
        "tombstones": sum(c.tombstones for c in chunks),
        "size_bytes": sum(s.size_bytes for s in segments),
        "clean_bytes": b.clean_bytes,
        "cleanable_bytes": b.cleanable_bytes,
        "active_bytes": segments[-1].size_bytes,
        "dirty_ratio": b.dirty_ratio,
        "delete_horizon_ms": min(horizons, default=None),
        # Delete retention point: below it no tombstone waits for its horizon any more.
        "delete_retention_offset": None if point is None else segments[point].base,
        "delete_retention_bytes": None
        if point is None
        else sum(s.size_bytes for s in segments[:point]),
        "uncleanable": mark and mark.reason,
    }
