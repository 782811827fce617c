"""Merging segments that were sealed by their number of chunks, where no pass does it: in logs that
do not compact (design: many small chunks).

A segment rolls after ``segment.chunks`` chunks. Once coalesced it is small, and there is one for so
many micro-batches, for ever. So `SEGMENTS_MIN` and more sealed neighbours that fit one segment, by
bytes, time and chunks, become one: retention keeps the grain that ``segment.bytes`` and
``segment.ms`` give it. Their chunks stay as they are, so it is one commit and no I/O; coalescing
does the rest. Why a segment was sealed is not known any more: those of `Log.roll` merge likewise.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from clog.cleaner.committing import tried
from clog.storage.commit import Answer
from clog.storage.commits import Commit
from clog.storage.config import NO_DEFAULTS, LogConfig, with_defaults
from clog.storage.edits import Edit, Replacement
from clog.storage.handle import Handle
from clog.storage.manifest import Manifest, Segment

SEGMENTS_MIN = 8


def merge_segments(
    handle: Handle, *, defaults: Mapping[str, str] = NO_DEFAULTS
) -> Sequence[Replacement]:
    """Merges what is due, in one commit; no request where nothing is. ``defaults`` are the
    process's (S45).
    """
    done: list[Replacement] = []

    def prepare(_: Commit, time_ms: int) -> Edit:
        manifest = handle.manifest()
        config = with_defaults(manifest.head.config, defaults)
        done[:] = due_merges(manifest, config)
        if not done:
            raise Answer(None)
        return tried(Edit(replace=tuple(done)), manifest, time_ms=time_ms)

    try:
        handle.commit(prepare, operation="merge")
    except Answer:
        pass
    return done


def due_merges(manifest: Manifest, config: LogConfig) -> list[Replacement]:
    """The merges, each of neighbouring sealed segments. Pure."""
    return [_merge(p, group) for p, group in mergeable(manifest, config, lambda s: len(s.chunks))]


def mergeable(
    manifest: Manifest, config: LogConfig, chunks_of: Callable[[Segment], int]
) -> list[tuple[int, Sequence[Segment]]]:
    """By partition the neighbours that become one, each of so many chunks. Pure."""
    if config.compact:
        return []
    return [
        (p, group)
        for p, segments in enumerate(manifest.segments)
        for group in _groups(segments[:-1], config, chunks_of)
        if len(group) >= SEGMENTS_MIN
    ]


def _groups(
    segments: Sequence[Segment], config: LogConfig, chunks_of: Callable[[Segment], int]
) -> Iterator[list[Segment]]:
    """Neighbours that fit one segment, as many as do."""
    group: list[Segment] = []
    size_bytes = chunks = first_ms = last_ms = 0
    for s in segments:
        size_bytes += sum(c.size_bytes for c in s.chunks)
        chunks, last_ms = chunks + chunks_of(s), max(last_ms, s.max_timestamp_ms)
        fits = (
            size_bytes <= config.segment_bytes
            and chunks <= config.segment_chunks
            and last_ms - first_ms <= config.effective_segment_ms
        )
        if group and not fits:
            yield group
            group = []
        if not group:
            size_bytes, chunks = sum(c.size_bytes for c in s.chunks), chunks_of(s)
            first_ms, last_ms = s.first_timestamp_ms, s.max_timestamp_ms
        group.append(s)
    if group:
        yield group


def _merge(partition: int, group: Sequence[Segment]) -> Replacement:
    base, end = group[0].base, group[-1].next
    chunks = tuple(c for s in group for c in s.chunks)
    created_ms = max(s.created_ms for s in group)
    sources = tuple(c.identity for c in chunks)
    return Replacement(partition, base, end, sources, chunks, ((base, end, created_ms),))
