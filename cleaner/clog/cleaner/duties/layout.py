"""Rewriting for the layout alone: runs of neighbouring chunks, without judging their rows.

What is rewritten is planned in one way: reasons name runs, and `relaid` rewrites them until none
is named. Records below the log start (`due_trims`) go before a publication reads them, what passes
would each read (`due_sharing`) before the first of them, and all else (`due_rewrites`: loose
chunks, and dead rows whose delay is over) after the last, as passes leave less of it
(docs/decisions/0091, 0099). `merge_segments` joins segments and rewrites nothing.

E1. Read the objects of all runs, each once for all its partitions, in the order of their rows; row
    groups that stay exactly as they are get copied, undecoded (`read.copy`).
E2. Write the rows of each run as objects of its partition alone: offsets, timestamps (those of
    LogAppendTime become real) and delete horizons stay as they are; dead rows and rows below
    ``low`` are left out.
E3. One commit replaces all runs whose chunks are still exactly those planned. A run that another
    writer has changed is left out; its new objects are orphans. Appends never conflict: they add
    behind, and a replacement inside the active segment names its chunks. So no writer starves.

After a crash before E3 there are orphans; after it, all is done. Damaged chunks, and runs from
which fewer or more rows are read than the manifest says, are left out, and reported after the
others are committed. Parts of `ROUND_BYTES_MAX` bound the memory (`bounded`).
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

import pyarrow as pa

from clog.cleaner.duties import Work, commit_due
from clog.cleaner.masks import MaskCarrier
from clog.cleaner.passes.rewriter import Extent, neighbours
from clog.cleaner.passes.run_pass import tried
from clog.cleaner.selection import Candidate, is_loose, is_purge_due, is_shared
from clog.storage.commit.committer import NothingToCommit
from clog.storage.commit.versions import file_missing
from clog.storage.config.log_config import LogConfig
from clog.storage.config.units import Compression
from clog.storage.env import dataclass
from clog.storage.errors import CorruptionError, VersionExpiredError
from clog.storage.format.chunks import Chunk, Replacement, Segment
from clog.storage.format.commits import Commit, Edit, read_commit
from clog.storage.format.documents import NONE
from clog.storage.format.manifest import Manifest
from clog.storage.objects.composing import CopiedGroup, write_rewritten
from clog.storage.objects.writer import DataObject, rewritten_chunk
from clog.storage.read.copy import Wanted, read_or_copy
from clog.storage.read.scan import COLUMNS, DELETE_HORIZON, piece_of
from clog.storage.store.contract import Store, ahead

ROUND_BYTES_MAX = 256 << 20
_READS_MAX = 64
"""The most objects that are read at the same time: they are small, and all are wanted."""

_Part: TypeAlias = pa.RecordBatch | CopiedGroup
_Found = tuple[int, int, _Part]
"""Partition, first offset, rows."""


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring chunks of one segment; their rows below ``low`` are dropped."""

    partition: int
    chunks: tuple[Chunk, ...]
    low: int = 0

    @property
    def base(self) -> int:
        return self.chunks[0].base

    @property
    def next(self) -> int:
        return self.chunks[-1].next

    @property
    def live_rows(self) -> int:
        return sum(c.live_rows for c in self.chunks)

    @property
    def size_bytes(self) -> int:
        return sum(c.size_bytes for c in self.chunks)

    @property
    def has_dead(self) -> bool:
        return any(c.dead is not None for c in self.chunks)

    @property
    def becomes_itself(self) -> bool:
        """Whether rewriting changes nothing: one chunk, alone in its object, that stays whole."""
        c = self.chunks[0]
        is_alone = len(self.chunks) == 1 and not is_shared(c)
        return is_alone and c.dead is None and c.base >= self.low

    @property
    def read(self) -> Sequence[Chunk]:
        """The chunks of which something stays."""
        return [c for c in self.chunks if c.next > self.low and not c.aborted]

    def is_there(self, now: Manifest) -> bool:
        """Returns whether its chunks still exist, exactly as they were except for their masks."""
        there = [
            c
            for s in now.segments[self.partition]
            if s.base < self.next and s.next > self.base
            for c in s.chunks
            if self.base <= c.base < self.next
        ]
        same = map(Chunk.is_but_for_its_mask, self.chunks, there)
        return len(there) == len(self.chunks) and all(same)


def relaid(work: Work, due: Callable[[Work], list[Run]], operation: str) -> list[Run]:
    """Rewrites what is due until nothing is; returns the runs that were replaced."""
    done: list[Run] = []
    through = work.manifest.version
    while True:
        seen = replace(work, planned=work.manifest, through=through)
        runs = [run for run in bounded(due(seen)) if not run.becomes_itself]
        replaced = relayout(seen, runs, operation=operation) if runs else []
        done.extend(replaced)
        if not runs or len(replaced) < len(runs):
            return done  # Another cleaner works on the same chunks; the next round does the rest.


def bounded(runs: Sequence[Run]) -> list[Run]:
    """Returns parts of runs in objects of `ROUND_BYTES_MAX` together, or two, oldest first."""
    size_bytes: Counter[str] = Counter()
    for run in runs:
        for c in run.read:
            size_bytes[c.object.path] += c.size_bytes
    taken: set[str] = set()
    total = 0
    for run in sorted(runs, key=lambda run: min(c.version for c in run.chunks)):
        for path in (c.object.path for c in run.chunks):
            if path in taken:
                continue
            total += size_bytes[path]
            if total > ROUND_BYTES_MAX and len(taken) > 1:
                return parts_of(runs, lambda c: c.object.path in taken)
            taken.add(path)
    return list(runs)


def parts_of(runs: Sequence[Run], is_wanted: Callable[[Chunk], bool]) -> list[Run]:
    """Returns what is left of the runs if only some of their chunks are wanted."""
    return [
        Run(r.partition, part, r.low) for r in runs for part in neighbours_of(r.chunks, is_wanted)
    ]


def neighbours_of(
    chunks: Sequence[Chunk], is_wanted: Callable[[Chunk], bool]
) -> Iterator[tuple[Chunk, ...]]:
    """Yields the runs of neighbours that are wanted."""
    return (tuple(run) for wanted, run in groupby(chunks, is_wanted) if wanted)


def relayout(work: Work, runs: Sequence[Run], *, operation: str) -> list[Run]:
    """Rewrites the runs, planned from ``work.manifest``, and commits; returns those it replaced."""
    handle, planned = work.handle, work.manifest
    made, broken = _rewritten(work, planned, runs)
    done: list[Run] = []
    carrier = MaskCarrier(work.store, planned.version, handle.ids.new_id)

    def prepare(tip: Commit, time_ms: int) -> Edit | NothingToCommit:
        now = handle.manifest()
        late = tip.head.may_be_swept(planned.version)
        there = [(run, r) for run, r in made if not late and run.is_there(now)]
        done[:] = [run for run, _ in there]
        if not there:
            return NothingToCommit()
        return tried(Edit(replace=tuple(r for _, r in there)), now, carrier, time_ms=time_ms)

    handle.commit(prepare, operation=operation)
    for error in _still_broken(work, broken):
        raise error
    return done


def _rewritten(
    work: Work, manifest: Manifest, runs: Sequence[Run]
) -> tuple[list[tuple[Run, Replacement]], dict[str, Exception]]:
    """Does E1 and E2; returns each run's replacement, and the unreadable objects."""
    config = LogConfig.from_overrides(manifest.head.config)
    batches, broken = _read(work.store, runs, manifest, config.compression)
    whole = parts_of(runs, lambda c: c.object.path not in broken)
    made: list[tuple[Run, Replacement]] = []
    for run, rows in zip(whole, _by_run(whole, batches), strict=True):
        if (miscounted := _miscounted(work.store, run, rows)) is not None:
            broken[run.chunks[0].object.path] = miscounted
        elif not (broken and run.becomes_itself):  # It is the rest of a damaged run.
            objects = write_rewritten(
                work.store,
                rows,
                partition=run.partition,
                stamp=manifest.version,
                key_seed=manifest.head.log.key_seed,
                schema=manifest.head.log.schema,
                new_id=work.handle.ids.new_id,
                compression=config.compression,
                object_bytes=config.object_bytes,
            )
            made.append((run, _replacement(run, objects)))
    return made, broken


def _still_broken(work: Work, broken: Mapping[str, Exception]) -> Iterator[Exception]:
    """Yields the errors of objects that the newest version still needs."""
    if not broken:
        return
    handle = work.handle
    handle.refresh()
    needed = handle.manifest().files()
    for path, found in broken.items():
        error = found
        if path in needed and isinstance(found, FileNotFoundError):
            error = file_missing(handle.store, handle.tip.version, found)
        if path in needed and not isinstance(error, VersionExpiredError):
            yield error


def _read(
    store: Store, runs: Sequence[Run], manifest: Manifest, compression: Compression
) -> tuple[list[_Found], dict[str, Exception]]:
    """Returns the rows of all runs, and the objects that cannot be read; each is read once."""
    key_seed, schema = manifest.head.log.key_seed, manifest.head.log.schema
    by_object: dict[str, list[tuple[Run, Chunk]]] = defaultdict(list)
    for run in runs:
        for chunk in run.read:
            by_object[chunk.object.path].append((run, chunk))
    read = partial(
        read_or_copy,
        store,
        columns=(*COLUMNS, DELETE_HORIZON),
        compression=compression,
        key_seed=key_seed,
    )
    calls = []
    for pairs in by_object.values():
        pairs.sort(key=lambda pair: pair[1].first_row)
        wanted = [
            Wanted(piece_of(run.partition, c, max(c.base, run.low), c.next, schema), c)
            for run, c in pairs
        ]
        calls.append((partial(_parts_or_error, read, wanted), pairs[0][1].object.size_bytes))
    batches: list[_Found] = []
    broken: dict[str, Exception] = {}
    for path, found in zip(by_object, ahead(store, calls, calls_max=_READS_MAX), strict=True):
        if isinstance(found, list):
            batches += map(_located, found)
        else:
            broken[path] = found
    return batches, broken


def _parts_or_error(
    read: Callable[[Sequence[Wanted]], Iterator[_Part]], wanted: Sequence[Wanted]
) -> list[_Part] | Exception:
    """Returns the wanted parts of an object, or the reason why it cannot be read."""
    try:
        return list(read(wanted))
    except (CorruptionError, FileNotFoundError) as e:
        return e


def _located(part: _Part) -> _Found:
    if isinstance(part, CopiedGroup):
        return part.stats.partition, part.stats.first_offset, part
    p, first = (part.column(name)[0].as_py() for name in ("partition", "offset"))
    return p, first, part.drop_columns(["partition"])


def _by_run(runs: Sequence[Run], batches: list[_Found]) -> Iterator[list[_Part]]:
    """Yields the rows of each run, in offset order; empties the list."""
    bases: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for i, run in enumerate(runs):
        bases[run.partition].append((run.base, i))
    for starts in bases.values():
        starts.sort()
    rows: list[list[tuple[int, _Part]]] = [[] for _ in runs]
    for p, first, batch in batches:
        starts = bases[p]
        i = starts[bisect_right(starts, first, key=itemgetter(0)) - 1][1]
        rows[i].append((first, batch))
    batches.clear()
    for i in range(len(runs)):
        found, rows[i] = rows[i], []
        yield [batch for _, batch in sorted(found, key=itemgetter(0))]


def _miscounted(store: Store, run: Run, rows: list[_Part]) -> CorruptionError | None:
    least, most = _rows_above(run)
    if least <= (found := sum(batch.num_rows for batch in rows)) <= most:
        return None
    return CorruptionError(
        f"partition {run.partition} of {store.url} has {found} records in"
        f" [{max(run.base, run.low)}, {run.next}), but the manifest says {least} to {most};"
        " nothing was changed"
    )


def _rows_above(run: Run) -> tuple[int, int]:
    """Returns bounds of how many live rows are at or above ``low``, equal unless a chunk is cut."""
    least = most = 0
    for c in run.chunks:
        if c.base >= run.low:
            least, most = least + c.live_rows, most + c.live_rows
            continue
        above = max(0, c.next - run.low)
        if c.object.dense:
            above = max(0, c.base + c.rows - run.low)
            least += max(0, above - (c.rows - c.live_rows))
        most += min(c.live_rows, above)
    return least, most


def _replacement(run: Run, objects: Sequence[DataObject]) -> Replacement:
    version = max(c.version for c in run.chunks)
    return Replacement(
        partition=run.partition,
        base=run.base,
        next=run.next,
        sources=tuple(c.identity for c in run.chunks),
        chunks=tuple(rewritten_chunk(obj, version=version) for obj in objects),
    )


LOOSE_OBJECTS_MIN = 32
RUN_CHUNKS_MIN = 8
WAIT_MS_MAX = 3_600_000


def coalesce(work: Work, *, force: bool = False) -> list[Run]:
    """Rewrites what is due, in rounds; returns the runs. One GET if loose objects are few."""
    return relaid(work, partial(due_rewrites, force=force), "coalesce")


def due_rewrites(work: Work, *, force: bool = False, first: Collection[Run] = ()) -> list[Run]:
    """Returns what is rewritten after the passes, and after the runs that go ``first``: loose
    chunks, if enough of them wait, and those with dead rows that are due, with neighbours of the
    other kind; costs the same as `is_due`.
    """
    taken = {c.identity for run in first for c in run.chunks}
    loose = candidate_runs(work.manifest, through=work.through)
    loose = parts_of(loose, partial(_is_apart, taken))
    named = [*due_purges(work), *(loose if is_due(work, loose, force=force) else ())]
    wanted: dict[int, set[tuple[str, int]]] = defaultdict(set)
    for run in named:
        wanted[run.partition].update(c.identity for c in run.chunks)
    return [
        Run(p, chunks)
        for p, mine in wanted.items()
        for segment in work.manifest.segments[p]
        for chunks in neighbours_of(segment.chunks, partial(_is_among, mine))
    ]


def may_be_due(work: Work) -> bool:
    """Returns whether `due_rewrites` may ever find something in this version."""
    has_dead = any(chunk.dead is not None for _, chunk in work.manifest.chunks())
    return has_dead or bool(candidate_runs(work.manifest))


def rewrite(work: Work) -> list[Run]:
    """Rewrites all that is there, as it would be written now: with the log's compression, and
    without bounds that leave out a NaN (FORMAT.md, §12.2). Returns the runs that were replaced.
    """
    left, done = _whole_segments(work.manifest), list[Run]()
    while some := bounded(left):
        taken = {c.identity for run in some for c in run.chunks}
        left = parts_of(left, partial(_is_apart, taken))
        done += relayout(replace(work, planned=work.handle.manifest()), some, operation="clean")
    return done


def _whole_segments(manifest: Manifest) -> list[Run]:
    """Returns the runs of all chunks, but for those that `candidate_runs` leaves out, too."""
    runs: list[Run] = []
    for p, segments in enumerate(manifest.segments):
        is_wanted = partial(_is_settled, manifest.head.stable_offset(p))
        runs += [Run(p, run) for s in segments for run in neighbours_of(s.chunks, is_wanted)]
    return runs


def _is_apart(taken: Collection[tuple[str, int]], chunk: Chunk) -> bool:
    return chunk.identity not in taken


def _is_among(wanted: Collection[tuple[str, int]], chunk: Chunk) -> bool:
    return chunk.identity in wanted


def _is_settled(stable: int, chunk: Chunk) -> bool:
    return chunk.next <= stable and chunk.outcome is None


def candidate_runs(manifest: Manifest, *, through: int | None = None) -> list[Run]:
    """Returns the runs of neighbouring loose chunks of a segment that are worth rewriting, those
    committed by version ``through`` if it is given: what fast writers append during a round waits.

    The object of a micro-batch has rows of all partitions: it lives as long as any of them needs
    it, and a reader of one opens each. So chunks that share their object are taken, with the small
    ones before them that are not larger than all after them; a run without a shared chunk when it
    is `RUN_CHUNKS_MIN` long: a record is rewritten O(log) times, and few small chunks are left. A
    shared chunk that is a run by itself would become an object by itself: it stays while its object
    has only such chunks, and is taken once nothing refers to some of its rows (S46).

    Leaves out aborted chunks (H-T7), those above the last stable offset, and undecided ones below
    the log start, to which that is raised (S51).
    """
    newest = manifest.version if through is None else through
    config = LogConfig.from_overrides(manifest.head.config)
    runs: list[Run] = []
    for p, segments in enumerate(manifest.segments):
        stable = manifest.head.stable_offset(p)

        def is_wanted(c: Chunk, stable: int = stable) -> bool:
            is_decided = c.outcome is None
            return is_loose(c, config) and c.version <= newest and c.next <= stable and is_decided

        for segment in segments:
            parts = map(_worthwhile, neighbours_of(segment.chunks, is_wanted))
            runs += [Run(p, part) for part in parts if part]
    alone: Counter[str] = Counter()
    for run in runs:
        if len(run.chunks) == 1:
            alone[run.chunks[0].object.path] += run.chunks[0].rows
    return [r for r in runs if not _is_best_left(r, alone)]


def _is_best_left(run: Run, alone: Mapping[str, int]) -> bool:
    """Returns whether the run's object is all one-chunk runs; ``alone``: by path, their rows."""
    c = run.chunks[0]
    return len(run.chunks) == 1 and is_shared(c) and alone[c.object.path] == c.object.rows


def is_due(work: Work, runs: Sequence[Run], *, force: bool = False) -> bool:
    """Returns whether the runs are worth it now. Costs one GET if loose objects are too few."""
    chunks = [c for run in runs for c in run.chunks]
    if not chunks:
        return False
    if force or len({c.object.path for c in chunks}) >= LOOSE_OBJECTS_MIN:
        return True
    shared = [c.version for c in chunks if is_shared(c)]
    if not shared:
        return False
    try:
        committed_ms = read_commit(work.handle.store, min(shared)).record.time_ms
    except FileNotFoundError:
        return True  # It is so old that its commit has been deleted.
    return work.now_ms - committed_ms > WAIT_MS_MAX


def _worthwhile(run: Sequence[Chunk]) -> tuple[Chunk, ...]:
    """Returns the end of a run of loose chunks that is worth rewriting, if any."""
    first = next((i for i, c in enumerate(run) if is_shared(c)), len(run))
    if first >= RUN_CHUNKS_MIN:
        return tuple(run)
    size_bytes = sum(c.size_bytes for c in run[first:])
    while first and run[first - 1].size_bytes <= size_bytes:
        first -= 1
        size_bytes += run[first].size_bytes
    return tuple(run[first:])


def due_purges(work: Work) -> list[Run]:
    """Returns the runs of neighbouring chunks whose dead rows are due (S46): passes, coalescing and
    trimming rewrite most of them first.
    """
    is_wanted = partial(is_purge_due, config=work.config, now_ms=work.now_ms)
    return [
        Run(p, run)
        for p, segments in enumerate(work.manifest.segments)
        for segment in segments
        for run in neighbours_of(segment.chunks, is_wanted)
    ]


SEGMENTS_MIN = 8

Merge = tuple[int, Sequence[Segment]]
"""A partition, and neighbouring sealed segments of it."""


def merge_segments(work: Work) -> list[Merge]:
    """Merges what is due, in one commit; makes no request if nothing is.

    Segments of a log that does not compact, sealed for their number of chunks, are small once
    these are coalesced. `SEGMENTS_MIN` or more sealed neighbours that fit into one by bytes, time
    and chunks become one, so retention keeps the grain of ``segment.bytes`` and ``segment.ms``. Why
    a segment was sealed is not recorded: those sealed by `Log.roll` are merged as well.
    """
    return commit_due(work, "merge", due_merges, merging)


def due_merges(work: Work) -> list[Merge]:
    """Returns what is merged now."""
    return mergeable(work.manifest, work.config, lambda s: len(s.chunks))


def merging(work: Work, merges: Sequence[Merge]) -> Edit:
    """Returns the merges as one edit, checked to fit."""
    edit = Edit(replace=tuple(_merge(p, group) for p, group in merges))
    work.after(edit)
    return edit


def mergeable(
    manifest: Manifest, config: LogConfig, chunks_of: Callable[[Segment], int]
) -> list[Merge]:
    """Returns the neighbours that become one; ``chunks_of`` gives their numbers of chunks."""
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
    """Returns the sealed segments below the last stable offset that have no undecided chunk."""
    stable = manifest.head.stable_offset(partition)
    below = (s for s in manifest.segments[partition][:-1] if s.next <= stable)
    return [s for s in below if all(c.undecided is None for c in s.chunks)]


def _merge(partition: int, group: Sequence[Segment]) -> Replacement:
    base, end = group[0].base, group[-1].next
    chunks = tuple(c for s in group for c in s.chunks)
    created_ms = max(s.created_ms for s in group)
    sources = tuple(c.identity for c in chunks)
    return Replacement(partition, base, end, sources, chunks, ((base, end, created_ms),))


def trim(work: Work) -> list[Run]:
    """Trims what is due; returns the runs that were replaced."""
    return relaid(work, due_trims, "trim")


def due_trims(work: Work) -> list[Run]:
    """Returns, by partition, the chunks below the log start in the sealed segment that has it (S37;
    Kafka leaves them, and copies them): those that are wholly below it are dropped without a read.
    """
    runs = []
    for p, segments in enumerate(work.manifest.segments):
        start = work.head.partitions.start[p]
        holding = (s for s in segments[:-1] if s.base < start < s.next)
        below = tuple(c for s in holding for c in s.chunks if c.base < start)
        if below and not any(c.undecided for c in below):
            runs.append(Run(p, below, start))
    return runs


REQUEST_BYTES = 64 << 10
"""Writing this many record bytes costs about as much as a request that opens a small object: a
millisecond of CPU, and less than its round trip.
"""


def coalesce_first(work: Work, chosen: Sequence[Candidate]) -> list[Run]:
    """Coalesces what passes over these partitions share, if they then cost less; returns the runs.
    Makes no request if not.
    """
    return relaid(work, partial(due_sharing, chosen=chosen), "coalesce")


def due_sharing(work: Work, chosen: Sequence[Candidate]) -> list[Run]:
    """Returns what is coalesced before passes over these partitions."""
    runs = shared_by(work.manifest, chosen)
    return runs if is_worth_coalescing(runs) else []


def shared_by(manifest: Manifest, chosen: Iterable[Candidate]) -> list[Run]:
    """Returns the runs of neighbouring chunks that are as they were appended and share their
    objects, in the segments that passes over these partitions clean.
    """

    def is_fresh(c: Chunk) -> bool:
        is_decided = c.outcome is None
        return is_shared(c) and c.dead is None and c.horizon == NONE and is_decided

    return [
        Run(c.partition, run)
        for c in chosen
        for segment in manifest.segments[c.partition][:-1]
        if segment.next <= c.bounds.first_uncleanable
        for run in neighbours_of(
            [chunk for chunk in segment.chunks if chunk.base >= c.bounds.first_dirty], is_fresh
        )
        if len(run) > 1
    ]


def is_worth_coalescing(runs: Sequence[Run]) -> bool:
    """Returns whether it costs less than it saves the passes: two requests a chunk."""
    chunks = [c for run in runs for c in run.chunks]
    read = len({c.object.path for c in chunks})
    written_bytes = sum(c.size_bytes for c in chunks)
    return 2 * len(chunks) > read + 3 * len(runs) + written_bytes / REQUEST_BYTES
