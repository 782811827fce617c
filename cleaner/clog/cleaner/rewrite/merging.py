"""Merging segments that were sealed by their number of chunks, where no pass does it: in logs that
do not compact (design: many small chunks).

A segment rolls after ``segment.chunks`` chunks. Once coalesced it is small, and there is one for so
many micro-batches, for ever. So `SEGMENTS_MIN` and more sealed neighbours that fit one segment, by
bytes, time and chunks, become one: retention keeps the grain that ``segment.bytes`` and
``segment.ms`` give it. Their chunks stay as they are, so it is one commit and no I/O; coalescing
does the rest. Why a segment was sealed is not known any more: those of `Log.roll` merge likewise.
"""

from collections.abc import Callable, Mapping, Sequence

from clog.cleaner.compaction.commit_pass import tried
from clog.cleaner.compaction.grouping import Extent, neighbours
from clog.storage.commit.committer import NothingToCommit
from clog.storage.commit.handle import Handle
from clog.storage.config.log_config import NO_DEFAULTS, LogConfig, with_defaults
from clog.storage.format.commits import Commit
from clog.storage.format.edits import Edit, Replacement
from clog.storage.format.manifest import Manifest
from clog.storage.format.segments import Segment

SEGMENTS_MIN = 8


def merge_segments(
    handle: Handle, *, defaults: Mapping[str, str] = NO_DEFAULTS
) -> Sequence[Replacement]:
    """Merges what is due, in one commit; no request where nothing is. ``defaults`` are the
    process's (S45).
    """
    done: list[Replacement] = []

    def prepare(_: Commit, time_ms: int) -> Edit | NothingToCommit:
        manifest = handle.manifest()
        config = with_defaults(manifest.head.config, defaults)
        done[:] = due_merges(manifest, config)
        if not done:
            return NothingToCommit()
        return tried(Edit(replace=tuple(done)), manifest, time_ms=time_ms)

    handle.commit(prepare, operation="merge")
    return done


def due_merges(manifest: Manifest, config: LogConfig) -> list[Replacement]:
    """Returns the merges, each of neighbouring sealed segments. Pure."""
    return [_merge(p, group) for p, group in mergeable(manifest, config, lambda s: len(s.chunks))]


def mergeable(
    manifest: Manifest, config: LogConfig, chunks_of: Callable[[Segment], int]
) -> list[tuple[int, Sequence[Segment]]]:
    """Returns, by partition, the neighbours that become one, each of so many chunks. Pure."""
    if config.compact:
        return []

    def extent(s: Segment) -> Extent:
        size_bytes = sum(c.size_bytes for c in s.chunks)
        return Extent(size_bytes, chunks_of(s), s.next, s.first_timestamp_ms, s.max_timestamp_ms)

    def fits(together: Extent) -> bool:
        return (
            together.size_bytes <= config.segment_bytes
            and together.chunks <= config.segment_chunks
            and together.span_ms <= config.effective_segment_ms
        )

    return [
        (p, group)
        for p in range(manifest.head.log.partitions)
        for group in neighbours(_decided(manifest, p), extent, fits)
        if len(group) >= SEGMENTS_MIN
    ]


def _decided(manifest: Manifest, partition: int) -> Sequence[Segment]:
    """Returns the sealed segments below the last stable offset; below the log start, too, there
    may be undecided records.
    """
    stable = manifest.head.stable_offset(partition)
    below = (s for s in manifest.segments[partition][:-1] if s.next <= stable)
    return [s for s in below if all(c.undecided is None for c in s.chunks)]


def _merge(partition: int, group: Sequence[Segment]) -> Replacement:
    base, end = group[0].base, group[-1].next
    chunks = tuple(c for s in group for c in s.chunks)
    created_ms = max(s.created_ms for s in group)
    sources = tuple(c.identity for c in chunks)
    return Replacement(partition, base, end, sources, chunks, ((base, end, created_ms),))
