"""Rewriting runs of chunks without judging them: what coalescing, trimming and
purging dead rows have in common.

E1. Read the objects of all runs, each once for all its partitions, in the order of their rows; row
    groups of which all stays as it is are copied, undecoded (`read.row_groups`).
E2. Write the rows of each run as objects of its partition alone: offsets, timestamps (those of
    LogAppendTime become real) and delete horizons as they are; dead rows, and those below ``low``,
    are left out.
E3. One commit replaces all runs whose chunks are still exactly those planned. A run that somebody
    else changed meanwhile is left out; its new objects are orphans. Appends never conflict: they
    add behind, and a replacement inside the active segment names its chunks.

Chunks of an object that is damaged or gone are left out, and reported after the others are
committed, so that they do not hold these up. So is a run of which fewer or more rows are read than
the manifest says. Nor is a chunk rewritten that is left of a run by that, and would become itself
again.

Crash before E3: orphans. After: done.

What is due goes to `relayout_all` in parts of `ROUND_BYTES_MAX` of records (`bounded`), which
bounds its memory. They are taken run by run, so that chunks that are to become one are read
together: else each would become itself again, for ever.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter

import pyarrow as pa

from clog.cleaner.compaction.commit_pass import objects_may_be_gone, tried
from clog.cleaner.compaction.rewrite_policy import is_shared
from clog.cleaner.masks.carrying import MaskCarrier
from clog.storage.commit.committer import NothingToCommit
from clog.storage.commit.handle import Handle
from clog.storage.commit.versions import file_missing
from clog.storage.config.log_config import LogConfig
from clog.storage.errors import CorruptionError, VersionExpiredError
from clog.storage.format.chunks import Chunk
from clog.storage.format.commits import Commit
from clog.storage.format.edits import Edit, Replacement
from clog.storage.format.manifest import Manifest
from clog.storage.objects.data_object import DataObject, rewritten_chunk
from clog.storage.objects.row_groups import CopiedGroup
from clog.storage.objects.writer import write_rewritten
from clog.storage.read.row_groups import Wanted, read_or_copy
from clog.storage.read.scan import COLUMNS, DELETE_HORIZON, piece_of
from clog.storage.store.ahead import ahead
from clog.storage.store.base import Store

ROUND_BYTES_MAX = 256 << 20

_Found = tuple[int, int, pa.RecordBatch | CopiedGroup]
"""Partition, first offset, rows."""


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring chunks of one segment; rows below ``low`` go."""

    partition: int
    chunks: tuple[Chunk, ...]
    low: int

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
    def becomes_itself(self) -> bool:
        """Whether rewriting changes nothing: a chunk alone in its object, of which all stays."""
        c = self.chunks[0]
        is_alone = len(self.chunks) == 1 and not is_shared(c)
        return is_alone and c.dead is None and c.base >= self.low

    @property
    def read(self) -> Sequence[Chunk]:
        """The chunks of which something stays."""
        return [c for c in self.chunks if c.next > self.low and not c.aborted]


def relayout_all(
    handle: Handle, store: Store, due: Callable[[Manifest], list[Run]], *, operation: str
) -> list[Run]:
    """Rewrites what is due until nothing is; returns the runs that were replaced. ``store`` is the
    handle's own, perhaps metered.

    Raises:
        CorruptionError: as `relayout`.
    """
    done: list[Run] = []
    while True:
        manifest = handle.manifest()
        runs = due(manifest)
        if not runs:
            return done
        replaced = relayout(handle, store, manifest, runs, operation=operation)
        done.extend(replaced)
        if len(replaced) < len(runs):
            return done  # Somebody else works on the same chunks; the next round sees what is left.


def bounded(runs: Sequence[Run]) -> list[Run]:
    """Returns the parts of the runs that lie in objects of `ROUND_BYTES_MAX` of records together,
    or in two: run by run, that with the oldest records first. Pure.
    """
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
    """Returns what is left of the runs where only some of their chunks are wanted. Pure."""
    return [
        Run(r.partition, part, r.low)
        for r in runs
        for part in runs_of(r.chunks, [is_wanted(c) for c in r.chunks])
    ]


def runs_of(chunks: Sequence[Chunk], wanted: Sequence[bool]) -> Iterator[tuple[Chunk, ...]]:
    """Returns the runs of neighbours that are wanted. Pure."""
    run: list[Chunk] = []
    for chunk, is_wanted in zip(chunks, wanted, strict=True):
        if is_wanted:
            run.append(chunk)
        elif run:
            yield tuple(run)
            run = []
    if run:
        yield tuple(run)


def relayout(
    handle: Handle, store: Store, manifest: Manifest, runs: Sequence[Run], *, operation: str
) -> list[Run]:
    """Rewrites the runs, planned from ``manifest``, and commits; returns those it replaced.

    Raises:
        CorruptionError: of what cannot be read, after the others are committed.
    """
    made, broken = rewritten(handle, store, manifest, runs, to=store)
    done: list[Run] = []
    carrier = MaskCarrier(store, manifest.version, handle.ids.new_id)

    def prepare(tip: Commit, time_ms: int) -> Edit | NothingToCommit:
        now = handle.manifest()
        late = objects_may_be_gone(manifest, tip)
        there = [(run, r) for run, r in made if not late and is_as_planned(run, now)]
        done[:] = [run for run, _ in there]
        if not there:
            return NothingToCommit()
        edit = carrier.with_masks(Edit(replace=tuple(r for _, r in there)), now)
        return tried(edit, now, time_ms=time_ms)

    handle.commit(prepare, operation=operation)
    for error in _still_broken(handle, broken):
        raise error
    return done


def rewritten(
    handle: Handle, store: Store, manifest: Manifest, runs: Sequence[Run], *, to: Store
) -> tuple[list[tuple[Run, Replacement]], dict[str, Exception]]:
    """Does E1 and E2: reads the runs, planned from ``manifest``, and writes their rows to the store
    ``to``. Returns each run with what is to take its place, and by path what cannot be read.
    """
    batches, broken = _read(store, runs, manifest)
    whole = parts_of(runs, lambda c: c.object.path not in broken)
    made: list[tuple[Run, Replacement]] = []
    for run, rows in zip(whole, _by_run(whole, batches), strict=True):
        if (miscounted := _miscounted(store, run, rows)) is not None:
            broken[run.chunks[0].object.path] = miscounted
        elif not (broken and run.becomes_itself):  # It is left of a run that is damaged.
            made.append((run, _replacement(run, _write(handle, to, run, rows, manifest))))
    return made, broken


def _still_broken(handle: Handle, broken: Mapping[str, Exception]) -> list[Exception]:
    """Returns what is wrong with objects that the newest version needs: others may have replaced,
    and swept, what was read here.
    """
    if not broken:
        return []
    handle.refresh()
    needed = handle.manifest().files()
    errors = [error for path, error in broken.items() if path in needed]
    told = (
        file_missing(handle.store, handle.tip.version, error)
        if isinstance(error, FileNotFoundError)
        else error
        for error in errors
    )
    return [error for error in told if not isinstance(error, VersionExpiredError)]


def _read(
    store: Store, runs: Sequence[Run], manifest: Manifest
) -> tuple[list[_Found], dict[str, Exception]]:
    """Returns the rows of all runs, and the objects that cannot be read; each is read once."""
    compression = LogConfig.from_overrides(manifest.head.config).compression
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
    for path, found in zip(by_object, ahead(store, calls), strict=True):
        if isinstance(found, list):
            batches += map(_located, found)
        else:
            broken[path] = found
    return batches, broken


def _parts_or_error(
    read: Callable[[Sequence[Wanted]], Iterator[pa.RecordBatch | CopiedGroup]],
    wanted: Sequence[Wanted],
) -> list[pa.RecordBatch | CopiedGroup] | Exception:
    """Returns what is to be had of an object, or why it cannot be read."""
    try:
        return list(read(wanted))
    except (CorruptionError, FileNotFoundError) as e:
        return e


def _located(part: pa.RecordBatch | CopiedGroup) -> _Found:
    if isinstance(part, CopiedGroup):
        return part.stats.partition, part.stats.first_offset, part
    p, first = (part.column(name)[0].as_py() for name in ("partition", "offset"))
    return p, first, part.drop_columns(["partition"])


def _by_run(
    runs: Sequence[Run], batches: list[_Found]
) -> Iterator[list[pa.RecordBatch | CopiedGroup]]:
    """Yields the rows of each run, in offset order. Empties the list."""
    bases: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for i, run in enumerate(runs):
        bases[run.partition].append((run.base, i))
    for starts in bases.values():
        starts.sort()
    rows: list[list[tuple[int, pa.RecordBatch | CopiedGroup]]] = [[] for _ in runs]
    for p, first, batch in batches:
        starts = bases[p]
        i = starts[bisect_right(starts, first, key=itemgetter(0)) - 1][1]
        rows[i].append((first, batch))
    batches.clear()
    for i in range(len(runs)):
        found, rows[i] = rows[i], []
        yield [batch for _, batch in sorted(found, key=itemgetter(0))]


def _miscounted(
    store: Store, run: Run, rows: list[pa.RecordBatch | CopiedGroup]
) -> CorruptionError | None:
    least, most = _rows_above(run)
    if least <= (found := sum(batch.num_rows for batch in rows)) <= most:
        return None
    return CorruptionError(
        f"partition {run.partition} of {store.url} has {found} records in"
        f" [{max(run.base, run.low)}, {run.next}), but the manifest says {least} to {most};"
        " nothing was changed"
    )


def _write(
    handle: Handle,
    store: Store,
    run: Run,
    rows: list[pa.RecordBatch | CopiedGroup],
    manifest: Manifest,
) -> list[DataObject]:
    config = LogConfig.from_overrides(manifest.head.config)
    return write_rewritten(
        store,
        rows,
        partition=run.partition,
        stamp=manifest.version,
        key_seed=manifest.head.log.key_seed,
        schema=manifest.head.log.schema,
        new_id=handle.ids.new_id,
        compression=config.compression,
        object_bytes=config.object_bytes,
    )


def _rows_above(run: Run) -> tuple[int, int]:
    """Returns the bounds of the number of live rows at or above ``low``; only a chunk with gaps or
    dead rows that ``low`` cuts leaves a choice.
    """
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


def is_as_planned(run: Run, now: Manifest) -> bool:
    """Tells whether the run's chunks are there, exactly as they were but for their masks. Pure."""
    there = [
        c
        for s in now.segments[run.partition]
        if s.base < run.next and s.next > run.base
        for c in s.chunks
        if run.base <= c.base < run.next
    ]
    return len(there) == len(run.chunks) and all(map(Chunk.is_but_for_its_mask, run.chunks, there))
