"""Gathering: objects that many partitions share are read once for the passes of a round, not twice
for each partition (docs/decisions/0047).

A micro-batch is one object with a few rows of every partition. A cleaner that comes late would
fetch and decode each of them twice for each partition. So before the first pass runs of fresh
chunks that share their objects are coalesced *in memory*: the passes find the rows of their
partition in few chunks, and what they commit takes the place of the chunks that are there
(`rebase`). Nothing of it is written: what is superseded is never copied. Only what coalescing would
rewrite in this round anyway is gathered, and a pass rewrites all of it, so that nobody does it
again.

Where that takes more than its share of memory, or each pass has a process of its own, coalescing
comes first instead, for real, if it is the cheaper way (`is_worth_coalescing`): it writes records
once more, those as well that the passes are about to remove.

A run of one chunk is not gathered: it would become one chunk again.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from clog.cleaner.compaction.pass_plan import PassPlan
from clog.cleaner.compaction.rewrite_policy import is_shared
from clog.cleaner.compaction.selection import Candidate
from clog.cleaner.rewrite.relayout import Run, is_as_planned, rewritten, runs_of
from clog.storage.commit.handle import Handle
from clog.storage.format.chunks import NONE, Chunk
from clog.storage.format.edits import Replacement
from clog.storage.format.manifest import Manifest
from clog.storage.format.segments import Segment
from clog.storage.store.base import Store
from clog.storage.store.wrapping import WrappingStore

GATHERED_BYTES_MAX = 64 << 20
"""Record bytes that a cleaner gathers, of all its logs together."""
REQUEST_BYTES = 64 << 10
"""Writing so many record bytes costs about as much as a request that opens a small object: a
millisecond of CPU, and less than its round trip.
"""


class Room:
    """How many record bytes may still be gathered; threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free_bytes = GATHERED_BYTES_MAX

    def take(self, size_bytes: int) -> bool:
        """Takes so many, where so many are left; tells whether."""
        with self._lock:
            fits = size_bytes <= self._free_bytes
            self._free_bytes -= size_bytes if fits else 0
            return fits

    def give_back(self, size_bytes: int) -> None:
        """Gives back what was taken."""
        with self._lock:
            self._free_bytes += size_bytes


@dataclass(frozen=True, slots=True)
class Gathered:
    """Runs of a log's chunks, each with what takes its place; by path, the objects of these, which
    no store has.
    """

    made: Sequence[tuple[Run, Replacement]] = ()
    objects: Mapping[str, bytes] = field(default_factory=dict)

    def used_by(self, plan: PassPlan) -> PassPlan:
        """Returns the plan of a pass over the gathered rows of its partition, as far as they still
        lie where they lay. Pure.
        """
        p, manifest = plan.partition, plan.manifest
        mine = [r for run, r in self.made if run.partition == p and is_as_planned(run, manifest)]
        if not mine:
            return plan
        segments = tuple(_with_runs(s, mine) for s in manifest.segments[p])
        all_segments = (*manifest.segments[:p], segments, *manifest.segments[p + 1 :])
        paths = {c.object.path for r in mine for c in r.chunks}
        return replace(
            plan,
            manifest=replace(manifest, segments=all_segments),
            gathered={path: self.objects[path] for path in paths},
        )


def gather(handle: Handle, store: Store, manifest: Manifest, runs: Sequence[Run]) -> Gathered:
    """Reads the runs, each object once, and coalesces them in memory. What is damaged is left out:
    the pass that needs it says so.
    """
    memory = _Memory(store)
    made, _ = rewritten(handle, store, manifest, runs, to=memory)
    return Gathered(made, memory.objects)


def gatherable(manifest: Manifest, chosen: Iterable[Candidate]) -> list[Run]:
    """Returns the runs of neighbouring fresh chunks that share their objects, in the segments that
    passes over these partitions clean. Pure.
    """
    return [
        Run(c.partition, run, 0)
        for c in chosen
        for segment in manifest.segments[c.partition][:-1]
        if segment.next <= c.bounds.first_uncleanable
        for run in _fresh_runs(segment, c.bounds.first_dirty)
        if len(run) > 1
    ]


def is_worth_coalescing(runs: Sequence[Run]) -> bool:
    """Tells whether coalescing the runs costs less than what it spares the passes: two requests for
    each chunk. Pure.
    """
    chunks = [c for run in runs for c in run.chunks]
    read = len({c.object.path for c in chunks})
    written_bytes = sum(c.size_bytes for c in chunks)
    return 2 * len(chunks) > read + 3 * len(runs) + written_bytes / REQUEST_BYTES


def size_bytes_of(runs: Sequence[Run]) -> int:
    """Returns the record bytes of the runs."""
    return sum(c.size_bytes for run in runs for c in run.chunks)


def _fresh_runs(segment: Segment, first: int) -> Iterator[tuple[Chunk, ...]]:
    """Yields the runs of chunks from an offset on that are as they were appended."""
    wanted = [
        c.base >= first
        and is_shared(c)
        and (c.dead is None and c.horizon == NONE)
        and (c.undecided is None and not c.aborted)
        for c in segment.chunks
    ]
    return runs_of(segment.chunks, wanted)


def _with_runs(segment: Segment, replacements: Sequence[Replacement]) -> Segment:
    """Returns the segment with other chunks where it has those that are replaced. Pure."""
    mine = [r for r in replacements if segment.base <= r.base < segment.next]
    gone = {identity for r in mine for identity in r.sources}
    kept = [c for c in segment.chunks if c.identity not in gone]
    chunks = sorted((*kept, *(c for r in mine for c in r.chunks)), key=lambda c: c.base)
    return replace(segment, chunks=tuple(chunks))


class _Memory(WrappingStore):
    """A store of which what is written stays in memory."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.objects: dict[str, bytes] = {}

    def put(self, path: str, data: bytes | memoryview) -> None:
        self.objects[path] = bytes(data)
