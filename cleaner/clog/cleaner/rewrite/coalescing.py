"""Coalescing: the small objects of micro-batches become big ones of one partition each, under every
policy (design: many small chunks).

A fresh object holds rows of all partitions: it lives as long as any of them needs it, and a reader
of one partition opens the object of every micro-batch. So runs of neighbouring *loose* chunks
(`is_loose`) of a segment are rewritten together: those that share their object, with the
small ones before them that are not larger than all after them; a run without a shared chunk when it
is `RUN_CHUNKS_MIN` long. So a record is rewritten O(log) times, and few small chunks are left.

A shared chunk that is a run by itself would become an object by itself. While nothing but such
chunks lies in an object it stays as it is: many would be made of one, and nobody would read fewer.
It is taken apart once rows lie in it that nobody refers to any more, or that others rewrite: else
their bytes would stay as long as it does (S46).

It is due when `LOOSE_OBJECTS_MIN` objects are loose, or one that is shared has waited `WAIT_MS_MAX`
since its commit. A round takes a bounded number of objects (`relayout`); all chunks of an object
that is taken go with it, so that it is released as a whole.

Nobody starves: an append conflicts with no replacement, so it never undoes a round; and what comes
after the first round began waits for the next call, so that fast writers do not keep the cleaner
here.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from clog.cleaner.compaction.rewrite_policy import is_loose, is_shared
from clog.cleaner.rewrite.relayout import Run, bounded, relayout_all, runs_of
from clog.storage.commit.handle import Handle
from clog.storage.config.log_config import LogConfig
from clog.storage.format.chunks import Chunk
from clog.storage.format.commits import read_commit
from clog.storage.format.manifest import Manifest
from clog.storage.store.base import Store

LOOSE_OBJECTS_MIN = 32
RUN_CHUNKS_MIN = 8
WAIT_MS_MAX = 3_600_000


def coalesce(handle: Handle, store: Store, *, now_ms: int, force: bool = False) -> list[Run]:
    """Coalesces what is due, round by round; returns the runs that were replaced.

    ``store`` is the handle's own, perhaps metered. Costs one GET where loose objects are too few.

    Raises:
        CorruptionError: as `relayout`.
    """
    through = handle.manifest().version

    def due(manifest: Manifest) -> list[Run]:
        runs = candidate_runs(manifest, through=through)
        if not is_due(handle, runs, now_ms=now_ms, force=force):
            return []
        return [r for r in bounded(runs) if not r.becomes_itself]

    return relayout_all(handle, store, due, operation="coalesce")


def candidate_runs(manifest: Manifest, *, through: int | None = None) -> list[Run]:
    """Returns the runs of neighbouring loose chunks that are worth rewriting, of all partitions;
    committed by version ``through``, if it is given. Pure.
    """
    newest = manifest.version if through is None else through
    config = LogConfig.from_overrides(manifest.head.config)
    runs = [
        Run(p, part, 0)
        for p, segments in enumerate(manifest.segments)
        for segment in segments
        for run in _loose_runs(segment.chunks, config, newest, manifest.head.stable_offset(p))
        if (part := _worthwhile(run))
    ]
    alone: Counter[str] = Counter()
    for run in runs:
        if len(run.chunks) == 1:
            alone[run.chunks[0].object.path] += run.chunks[0].rows
    return [r for r in runs if not _is_best_left(r, alone)]


def _is_best_left(run: Run, alone: Mapping[str, int]) -> bool:
    """Tells whether the run is one chunk, in an object in which no other rows are. ``alone``: how
    many rows of an object lie in such chunks.
    """
    c = run.chunks[0]
    return len(run.chunks) == 1 and is_shared(c) and alone[c.object.path] == c.object.rows


def is_due(handle: Handle, runs: Sequence[Run], *, now_ms: int, force: bool = False) -> bool:
    """Tells whether the runs are worth it now. Costs one GET where loose objects are too few."""
    chunks = [c for run in runs for c in run.chunks]
    if not chunks:
        return False
    if force or len({c.object.path for c in chunks}) >= LOOSE_OBJECTS_MIN:
        return True
    shared = [c.version for c in chunks if is_shared(c)]
    return bool(shared) and now_ms - _committed_ms(handle, min(shared)) > WAIT_MS_MAX


def _committed_ms(handle: Handle, version: int) -> int:
    """Returns the commit time of a version; 0 when its commit is deleted already, so long ago is
    it.
    """
    try:
        return read_commit(handle.store, version).record.time_ms
    except FileNotFoundError:
        return 0


def _loose_runs(
    chunks: Sequence[Chunk], config: LogConfig, newest: int, stable: int
) -> Iterator[tuple[Chunk, ...]]:
    """Yields the runs below the last stable offset, without what was aborted (H-T7), or is
    undecided below the log start, to which the stable offset is raised (S51).
    """
    wanted = [
        is_loose(c, config)
        and (c.version <= newest and c.next <= stable)
        and (c.undecided is None and not c.aborted)
        for c in chunks
    ]
    return runs_of(chunks, wanted)


def _worthwhile(run: Sequence[Chunk]) -> tuple[Chunk, ...]:
    """Returns the end of a run of loose chunks that is rewritten; nothing when that is not worth
    it.
    """
    first = next((i for i, c in enumerate(run) if is_shared(c)), len(run))
    if first >= RUN_CHUNKS_MIN:
        return tuple(run)
    size_bytes = sum(c.size_bytes for c in run[first:])
    while first and run[first - 1].size_bytes <= size_bytes:
        first -= 1
        size_bytes += run[first].size_bytes
    return tuple(run[first:])
