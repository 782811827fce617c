"""What a table is read from: the pieces of one partition, clean and dirty, at one version.

*Clean* are pieces in which a table shows each key once: those below the first dirty offset, and
those at the beginning whose chunks have masks (FORMAT.md §13), whichever reach further. What a mask
says is left out; and rows of the dirty part, whose masks count for nothing, supersede others.

A plan may be *a slice* of a partition's table, for one task of several: a run of its pieces, and
``later``, the dirty pieces that follow. These are mapped too, and nothing of them is delivered.

Not here: reading it (`table_scan`); plans of what changed since an offset (`changes`).
"""

from dataclasses import dataclass
from functools import partial
from operator import is_

from clog.storage.format.chunks import Chunk
from clog.storage.format.manifest import Manifest
from clog.storage.format.schema import LogSchema
from clog.storage.format.segments import Segment
from clog.storage.read.left_out import Hidden
from clog.storage.read.scan import ReadPiece, piece_of, plan_range


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What one partition's view, or a slice of it, is made of: plain data, read without the
    manifest.

    ``seed`` is the log's own, so that keys which collide cannot be prepared (S19). ``tombstones``:
    they stay. ``later``: dirty pieces after the slice.
    """

    partition: int
    version: int
    seed: int
    schema: LogSchema | None
    clean: tuple[ReadPiece, ...]
    dirty: tuple[ReadPiece, ...]
    tombstones: bool = False
    later: tuple[ReadPiece, ...] = ()


_Known = tuple[LogSchema | None, tuple[Chunk, ...], list[ReadPiece]]


class KnownPieces:
    """The pieces of a partition's segments as they were last planned: the next version has most of
    them still, and a segment that grew has them for its beginning.
    """

    def __init__(self) -> None:
        self._before: dict[int, _Known] = {}
        self._now: dict[int, _Known] = {}

    def next_version(self) -> None:
        """Begins a plan: segments that are in none of the last two are forgotten."""
        self._before, self._now = self._now, {}

    def of(self, partition: int, schema: LogSchema | None, segment: Segment) -> list[ReadPiece]:
        """Returns the pieces of all chunks of a segment, read by the log's schema, without what
        their masks hide.
        """
        known, chunks, pieces = self._before.get(segment.base, (schema, (), []))
        is_other = len(chunks) > len(segment.chunks) or known != schema
        if is_other or not all(map(is_, chunks, segment.chunks)):
            chunks, pieces = (), []
        added = segment.chunks[len(chunks) :]
        if added:
            shown = (chunk for chunk in added if not chunk.aborted)
            made = (
                piece_of(partition, c, c.base, c.next, schema, hidden=Hidden.ALL) for c in shown
            )
            pieces = [*pieces, *(piece for piece in made if piece.start < piece.end)]
        self._now[segment.base] = schema, segment.chunks, pieces
        return pieces


def plan_table(
    manifest: Manifest, partition: int, log_start: int = 0, known: KnownPieces | None = None
) -> TablePlan:
    """Returns the plan of one partition's view at the manifest's version, without what lies below
    ``log_start``, where that is later than the version's own (S36). ``known``: from the plans of
    the partition's other versions.
    """
    whole, schema = None, manifest.head.log.schema
    if known is not None:
        known.next_version()
        whole = partial(known.of, partition, schema)
    end = manifest.head.stable_offset(partition)
    start = min(max(manifest.head.partitions.start[partition], log_start), end)
    masked, is_whole = masked_below(manifest, partition)
    dirty = min(max(manifest.first_dirty[partition], masked, start), end)
    return TablePlan(
        partition,
        manifest.version,
        manifest.head.log.key_seed,
        schema,
        tuple(plan_range(manifest, partition, start, dirty, whole=whole, hidden=Hidden.ALL)),
        tuple(plan_range(manifest, partition, dirty, end, whole=whole if is_whole else None)),
    )


def masked_below(manifest: Manifest, partition: int) -> tuple[int, bool]:
    """Returns the offset below which all chunks of a partition have masks, and whether none has
    beyond it; 0 where the first one has none.
    """
    if not (manifest.covered and manifest.covered[partition]):
        return 0, True
    chunks = (c for segment in manifest.segments[partition] for c in segment.chunks)
    below = 0
    for chunk in chunks:
        if chunk.mask is None:
            return below, all(c.mask is None for c in chunks)
        below = chunk.next
    return below, True
