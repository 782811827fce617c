"""Times of a manifest that lie in the future are set back (FORMAT.md §3.2, ``reset_times``): what a
clock that was far ahead has left. Pure.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from clog.storage.format.chunks import Chunk

if TYPE_CHECKING:
    from clog.storage.format.manifest import Manifest, Segment


def with_times_reset(manifest: "Manifest", time_ms: int) -> "Manifest":
    """Returns the manifest with no time later than ``time_ms``, but those in its objects."""
    return replace(
        manifest,
        segments=tuple(tuple(_segment(s, time_ms) for s in mine) for mine in manifest.segments),
        released=tuple(replace(r, time_ms=min(r.time_ms, time_ms)) for r in manifest.released),
        uncleanable={
            p: replace(why, time_ms=min(why.time_ms, time_ms))
            for p, why in manifest.uncleanable.items()
        },
    )


def _segment(segment: "Segment", time_ms: int) -> "Segment":
    chunks = tuple(_chunk(c, time_ms) for c in segment.chunks)
    return replace(segment, created_ms=min(segment.created_ms, time_ms), chunks=chunks)


def _chunk(c: Chunk, time_ms: int) -> Chunk:
    if c.append_time_ms > time_ms:
        c = replace(c, append_time_ms=time_ms, first_timestamp_ms=time_ms, max_timestamp_ms=time_ms)
    if c.dead is not None and c.dead.since_ms > time_ms:
        c = replace(c, dead=replace(c.dead, since_ms=time_ms))
    return c
