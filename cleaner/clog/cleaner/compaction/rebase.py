"""Fitting an edit of a pass to a manifest that is newer than its plan's (COMMIT.md §2). Pure.

Rows of sealed segments only ever become fewer. So where a range has as many live rows as when it
was planned, and segments still meet its ends, it has the same rows, whatever objects they lie in
now: another cleaner may have coalesced them. What was judged dead there is dead, what was written
of the others is right, and takes the place of the chunks that are there now. That needs no map.

Neither a chunk that the pass refers to again nor one that it marks may have moved: these are large
and alone in their objects, nobody coalesces them. Nor may tombstones of the range have got other
horizons, which are never set again (S23). A chunk that was only to get a horizon gets it where its
rows lie now: of those chunks the others with tombstones have their horizons in their rows.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Self

from clog.cleaner.compaction.selection import earliest_horizon_ms, latest_horizon_ms
from clog.storage.format.chunks import NONE, Chunk
from clog.storage.format.edits import ChunkHorizon, DeadMark, Edit, Replacement
from clog.storage.format.manifest import Manifest


class SourcesChangedError(Exception):
    """Somebody else changed what was about to be replaced."""


def rebase(edit: Edit, partition: int, planned: Manifest, now: Manifest) -> Edit:
    """Returns the edit of a pass over one partition, as it holds now.

    Raises:
        SourcesChangedError: more has changed than where the rows lie.
    """
    before, after = _Chunks.of(planned, partition), _Chunks.of(now, partition)
    bases = {s.base for s in now.segments[partition]}
    ends = {s.next for s in now.segments[partition]}
    if not (
        all(r.base in bases and r.next in ends for r in edit.replace)
        and all(_is_marked_as_planned(mark, before, after) for mark in edit.dead)
    ):
        raise SourcesChangedError
    moved = (h for given in edit.horizons for h in _horizons(given, before, after))
    horizons = {(h.object_path, h.first_row): h for h in moved}
    return replace(
        edit,
        replace=tuple(_replacement(r, before, after) for r in edit.replace),
        horizons=tuple(horizons.values()),
    )


@dataclass(frozen=True, slots=True)
class _Chunks:
    """The chunks of a partition, in offset order and by identity."""

    ordered: Sequence[Chunk]
    known: Mapping[tuple[str, int], Chunk]

    @classmethod
    def of(cls, manifest: Manifest, partition: int) -> Self:
        ordered = [c for s in manifest.segments[partition] for c in s.chunks]
        return cls(ordered, {c.identity: c for c in ordered})

    def within(self, base: int, end: int) -> Sequence[Chunk]:
        """Returns those that reach into a range."""
        first = bisect_right(self.ordered, base, key=attrgetter("next"))
        return self.ordered[first : bisect_left(self.ordered, end, key=attrgetter("base"))]

    def at(self, place: ChunkHorizon | DeadMark) -> Chunk | None:
        return self.known.get((place.object_path, place.first_row))


def _replacement(r: Replacement, planned: _Chunks, now: _Chunks) -> Replacement:
    before, after = planned.within(r.base, r.next), now.within(r.base, r.next)
    kept = {c.identity for c in r.chunks}
    stay = all(
        c.is_but_for_its_mask(now.known.get(c.identity)) for c in before if c.identity in kept
    )
    if not (stay and _has_same_rows(before, after)):
        raise SourcesChangedError
    return replace(r, sources=tuple(c.identity for c in after))


def _horizons(h: ChunkHorizon, planned: _Chunks, now: _Chunks) -> Iterator[ChunkHorizon]:
    """Yields the same horizon for the chunks in which the rows lie now."""
    chunk = planned.at(h)
    assert chunk is not None, "what gets a horizon was judged"
    there = now.within(chunk.base, chunk.next)
    if now.at(h) is None:
        base = min((c.base for c in there), default=chunk.base)
        end = max((c.next for c in there), default=chunk.next)
        if not _has_same_rows(planned.within(base, end), there):
            raise SourcesChangedError
    for c in there:
        if c.horizon != NONE:
            raise SourcesChangedError
        yield ChunkHorizon(h.partition, *c.identity, h.horizon_ms, h.up_to)


def _has_same_rows(before: Sequence[Chunk], after: Sequence[Chunk]) -> bool:
    """Tells whether chunks that lie where others lay hold all of their rows, with their
    horizons.
    """
    if before == after:
        return True
    had, have = _horizons_of(before), _horizons_of(after)
    is_new = have and not (had and had[0] <= have[0] and have[-1] <= had[-1])
    return not is_new and sum(c.live_rows for c in before) == sum(c.live_rows for c in after)


def _horizons_of(chunks: Sequence[Chunk]) -> list[int]:
    """Returns the earliest and the latest of each chunk, in order."""
    both = (ms for c in chunks for ms in (earliest_horizon_ms(c), latest_horizon_ms(c)))
    return sorted(ms for ms in both if ms != NONE)


def _is_marked_as_planned(mark: DeadMark, planned: _Chunks, now: _Chunks) -> bool:
    """Tells whether the chunk is there, with the dead rows that it had when it was judged."""
    before, after = planned.at(mark), now.at(mark)
    return before is not None and after is not None and before.dead == after.dead
