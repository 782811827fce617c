"""Manifests and edits made up for tests of what reads documents only: their objects are not there.

`any_edits` draws edits that no log may ever see, for round trips. `next_edits` draws one that is
valid after a given manifest, `histories` a manifest after several of those. Needs hypothesis.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import strategies as st

from clog.storage.env import SeededIds
from clog.storage.format.chunks import (
    Append,
    BitmapFile,
    Chunk,
    ChunkHorizon,
    DeadMark,
    DeadRows,
    ObjectRef,
    Replacement,
    Segment,
    Uncleanable,
)
from clog.storage.format.commits import Edit
from clog.storage.format.documents import NONE, data_path, dead_path, page_path
from clog.storage.format.log_info import OF_EACH_LOG, FeatureNames, LogInfo
from clog.storage.format.manifest import Manifest, apply, first_manifest
from clog.storage.format.transactions import (
    TRANSACTION,
    AppendedBy,
    Committed,
    ForeignPosition,
    Position,
    PositionsAt,
    TransactionState,
    WriterEntry,
)
from clog.storage.format.writers import WRITER_LEVEL_MAX, PagedWriters, PageRef
from clog_testing.undecided_edits import (
    any_endings,
    any_joinings,
    decided,
    is_ordinary,
    kinds_now,
    undecided_edits,
)

RECORD_BYTES = 20
_T = TypeVar("_T")
_IDS = st.integers(0, 2**128 - 1).map(lambda n: f"{n:032x}")
_NUMBERS = st.integers(0, 2**63 - 1)
_PARTITIONS = st.integers(0, 4095)
_OFFSETS = st.dictionaries(_PARTITIONS, _NUMBERS, max_size=3)


def log_info(partitions: int = 2) -> LogInfo:
    """Returns what version 0 says of a log."""
    seed = "0123456789abcdef"
    return LogInfo("1" * 32, 1_000, partitions, "murmur2", seed, features=OF_EACH_LOG)


def fresh_manifest(partitions: int = 2) -> Manifest:
    """Returns the manifest of a log at version 0."""
    edit = Edit(create=log_info(partitions), config={})
    return first_manifest(edit, commit_id="0" * 32, time_ms=1_000)


def object_of(rows: int, object_id: str, *, stamp: int = 0, dense: bool = True) -> ObjectRef:
    """Returns an object that does not exist, of a plausible size."""
    size = 600 + rows * RECORD_BYTES
    index_bytes = 0 if dense else 4 * rows
    path = data_path(stamp, object_id)
    return ObjectRef(path, size, 500, object_id, rows, stamp, dense, index_bytes)


def append_edit(
    manifest: Manifest,
    rows: Mapping[int, int],
    object_id: str,
    *,
    rolls: bool = False,
    append_time_ms: int = NONE,
) -> Edit:
    """Returns an append of so many rows to each partition; ``rolls`` seals what was active
    before.
    """
    head, version = manifest.head, manifest.version + 1
    ref = object_of(sum(rows.values()), object_id, stamp=manifest.version)
    first_row, chunks, rolled = 0, [], []
    for p, count in sorted(rows.items()):
        base = head.partitions.end[p]
        stamp_ms = 1_000 + version if append_time_ms == NONE else append_time_ms
        place = (first_row, count, base, base + count, count * RECORD_BYTES)
        times = (stamp_ms, stamp_ms, 0, version, append_time_ms)
        chunks.append((p, Chunk(ref, *place, *times)))
        first_row += count
        if rolls and head.partitions.chunks[p]:
            rolled.append((p, base, version % 7))
    return Edit(add=Append(tuple(chunks), tuple(rolled)))


def clean_edit(manifest: Manifest, p: int, object_id: str, *, count: int = 2) -> Edit:
    """Merges the first sealed segments of a partition into one chunk without their first row."""
    segments = manifest.segments[p][:-1][:count]
    old = [c for s in segments for c in s.chunks]
    rows = max(1, sum(c.rows for c in old) - 1)
    base, end = segments[0].base, segments[-1].next
    ref = object_of(rows, object_id, stamp=manifest.version, dense=False)
    at_ms = max((c.max_timestamp_ms for c in old), default=1_000)
    newest = max((c.version for c in old), default=0)
    chunk = Chunk(ref, 0, rows, end - rows, end, rows * RECORD_BYTES, at_ms, at_ms, 1, newest)
    with_horizons = replace(chunk, horizon_min=at_ms + 5, horizon_max=at_ms + 9)
    chunks = (with_horizons,) if old else ()
    tile = (base, end, max(s.created_ms for s in segments))
    sources = tuple(c.identity for c in old)
    return Edit(
        replace=(Replacement(p, base, end, sources, chunks, (tile,)),),
        first_dirty={p: end},
        tombstones_removed={p: base},
    )


def coalesce_edit(manifest: Manifest, p: int, object_id: str) -> Edit | None:
    """Puts the chunks of the active segment into one object; None when it is empty."""
    active = manifest.segments[p][-1]
    if not active.chunks:
        return None
    first, last = active.chunks[0], active.chunks[-1]
    rows = sum(c.rows for c in active.chunks)
    ref = object_of(rows, object_id, stamp=manifest.version)
    chunk = Chunk(
        *(ref, 0, rows, first.base, last.next, active.size_bytes),
        *(first.first_timestamp_ms, active.max_timestamp_ms),
        *(sum(c.tombstones for c in active.chunks), last.version),
    )
    sources = tuple(c.identity for c in active.chunks)
    return Edit(replace=(Replacement(p, first.base, last.next, sources, (chunk,)),))


@st.composite
def next_edits(draw: st.DrawFn, manifest: Manifest) -> Edit:
    """Returns a strategy for an edit that is valid after the manifest (which is whole: no
    pages).
    """
    columns = manifest.head.partitions
    p = draw(st.sampled_from(range(manifest.head.log.partitions)))
    sealed = manifest.segments[p][:-1]
    object_id = SeededIds(manifest.version * 64 + p).new_id()
    kind = draw(st.sampled_from([*_kinds(manifest, p), *kinds_now(manifest)]))
    match kind:
        case "config":
            return Edit(config={"retention.ms": str(draw(st.integers(0, 9)))})
        case "features":
            return Edit(features=FeatureNames((), tuple(draw(_some(["ink", "quill"])))))
        case "start":
            offset = draw(st.integers(columns.start[p], columns.end[p]))
            return Edit(start={p: offset}, drop=_droppable(sealed, p, offset))
        case "seal":
            return Edit(seal=((p, draw(st.integers(0, 99))),))
        case "clean":
            most = min(3, len(decided(sealed)))
            return clean_edit(manifest, p, object_id, count=draw(st.integers(1, most)))
        case "coalesce":
            return coalesce_edit(manifest, p, object_id) or Edit()
        case "horizon":
            free = [c for s in sealed for c in s.chunks if c.horizon == NONE and is_ordinary(c)]
            chosen = draw(_some(free))
            horizons = (ChunkHorizon(p, c.object.path, c.first_row, 9_000, c.next) for c in chosen)
            return Edit(horizons=tuple(horizons), orphan_floor=manifest.version)
        case "dead":
            chosen = draw(_some(_markable(sealed)))
            return Edit(dead=tuple(draw(_more_dead(p, c)) for c in chosen))
        case "uncleanable":
            uncleanable = draw(st.sampled_from([None, Uncleanable("too wide", 7, 2)]))
            return Edit(uncleanable={p: uncleanable}, oldest_readable=manifest.version)
        case _:
            rows = draw(st.dictionaries(_below(manifest), st.integers(1, 9), min_size=1))
            edit = append_edit(
                manifest,
                rows,
                object_id,
                rolls=draw(st.booleans()),
                append_time_ms=draw(st.sampled_from([NONE, NONE, 5_000])),
            )
            if kind not in ("append", "writer"):
                return draw(undecided_edits(manifest, kind, edit))
            version = manifest.version
            entry = WriterEntry(f"w{p}", "producer", None, version, "ab", version + 1)
            return replace(edit, writers=(AppendedBy(entry, 0, 1),)) if kind == "writer" else edit


def _kinds(manifest: Manifest, p: int) -> list[str]:
    """Returns what may happen to a partition next, transactions apart."""
    sealed, active = manifest.segments[p][:-1], manifest.segments[p][-1]
    kinds = ["append", "append", "append", "config", "start", "writer", "uncleanable", "features"]
    kinds += ["horizon", "dead"] * bool(sealed) + ["clean"] * bool(decided(sealed))
    kinds += ["seal"] * bool(active.chunks)
    kinds += ["coalesce"] * (bool(active.chunks) and all(map(is_ordinary, active.chunks)))
    return kinds


def _droppable(sealed: Sequence[Segment], p: int, offset: int) -> dict[int, int]:
    """Returns what is dropped below an offset: nothing where something there is undecided."""
    below = [s for s in sealed if s.next <= offset]
    return {p: offset} if decided(below) == below else {}


def _markable(sealed: Sequence[Segment]) -> list[Chunk]:
    return [c for s in sealed for c in s.chunks if c.rows > 1 and is_ordinary(c)]


def _some(things: list[_T]) -> st.SearchStrategy[list[_T]]:
    return st.lists(st.sampled_from(things), max_size=2, unique=True) if things else st.just([])


@st.composite
def _more_dead(draw: st.DrawFn, p: int, c: Chunk) -> DeadMark:
    rows = draw(st.integers(c.dead.rows if c.dead else 1, c.rows - 1))
    since_ms = c.dead.since_ms if c.dead else draw(_NUMBERS)
    bitmap = draw(_bitmaps())
    return DeadMark(p, *c.identity, DeadRows(rows, bitmap, since_ms))


def _bitmaps() -> st.SearchStrategy[bytes | BitmapFile]:
    files = st.builds(BitmapFile, _IDS.map(lambda i: dead_path(3, i)), _NUMBERS, _IDS)
    return st.binary(max_size=8) | files


def _below(manifest: Manifest) -> st.SearchStrategy[int]:
    return st.integers(0, manifest.head.log.partitions - 1)


def applied(manifest: Manifest, edit: Edit) -> Manifest:
    """Returns the manifest one version on, by a commit with an id made of its version."""
    version = manifest.version + 1
    return apply(manifest, edit, commit_id=f"{version:032x}", time_ms=1_000 + version)


@st.composite
def histories(draw: st.DrawFn, edits_max: int = 12) -> tuple[Manifest, tuple[Edit, ...]]:
    """Returns a manifest, and the edits that led to it from version 0."""
    manifest = fresh_manifest(draw(st.integers(1, 3)))
    edits = []
    for _ in range(draw(st.integers(0, edits_max))):
        edits.append(draw(next_edits(manifest)))
        manifest = applied(manifest, edits[-1])
    return manifest, tuple(edits)


@st.composite
def _chunks_of(draw: st.DrawFn, ref: ObjectRef) -> Chunk:
    first_row = draw(st.integers(0, ref.rows - 1))
    rows = draw(st.integers(1, ref.rows - first_row))
    base = draw(st.integers(0, 2**62))
    numbers = [12 * rows + draw(st.integers(0, 2**60)), draw(_NUMBERS), draw(_NUMBERS)]
    numbers += [draw(st.integers(0, rows)), draw(st.integers(0, 7))]
    horizons = [draw(st.integers(NONE, 2**60)) for _ in range(5)]
    row = (first_row, rows, base, base + rows + draw(_PARTITIONS), *numbers, *horizons)
    return Chunk(ref, *row).checked()  # type: ignore[arg-type] # numbers, and no more


def _replacements() -> st.SearchStrategy[Replacement]:
    refs = st.builds(object_of, st.integers(1, 2**40), _IDS, dense=st.booleans())
    chunks = refs.flatmap(lambda ref: st.lists(_chunks_of(ref), min_size=1, max_size=2))
    groups = st.lists(chunks, max_size=2, unique_by=lambda group: group[0].object.path)
    tiles = st.lists(st.tuples(_NUMBERS, _NUMBERS, _NUMBERS), max_size=2).map(tuple)
    sources = st.lists(st.tuples(_IDS.map(lambda i: data_path(3, i)), _NUMBERS), max_size=2)
    return st.builds(
        Replacement,
        *(_PARTITIONS, _NUMBERS, _NUMBERS, sources.map(tuple)),
        groups.map(lambda found: tuple(c for group in found for c in group)),
        st.none() | tiles,
    )


def any_edits() -> st.SearchStrategy[Edit]:
    """Returns edits of every shape but those with ``create``; they fit no manifest."""
    numbers = st.none() | _NUMBERS
    texts = st.text(st.characters(codec="utf-8"), max_size=8)
    uncleanable = st.none() | st.builds(Uncleanable, texts, _NUMBERS, _NUMBERS)
    kinds = st.sampled_from(["producer", "stream", "txn"])
    some, ids = st.none() | texts, texts.filter(len)
    writers = st.builds(
        WriterEntry, ids, kinds, some, _NUMBERS, some, st.just(7)
    ) | _transaction_entries(ids)
    names = st.lists(texts, max_size=4, unique=True)
    paths = _IDS.map(lambda i: data_path(3, i))
    return st.builds(
        Edit,
        features=st.none() | names.map(lambda n: FeatureNames(tuple(n[:2]), tuple(n[2:]))),
        config=st.none() | st.dictionaries(texts, texts, max_size=3),
        start=_OFFSETS,
        drop=_OFFSETS,
        seal=st.lists(st.tuples(_PARTITIONS, _NUMBERS), max_size=3).map(tuple),
        replace=st.lists(_replacements(), max_size=2).map(tuple),
        horizons=st.lists(
            st.builds(ChunkHorizon, _PARTITIONS, paths, _NUMBERS, _NUMBERS, _NUMBERS), max_size=2
        ).map(tuple),
        dead=st.lists(
            st.builds(
                DeadMark,
                *(_PARTITIONS, paths, _NUMBERS),
                st.builds(DeadRows, st.integers(1, 2**40), _bitmaps(), _NUMBERS),
            ),
            max_size=2,
        ).map(tuple),
        ends=st.lists(any_endings(), max_size=2).map(tuple),
        unended=st.lists(any_joinings(), max_size=2).map(tuple),
        marked=st.lists(st.tuples(_PARTITIONS, _NUMBERS, _NUMBERS), max_size=2).map(tuple),
        unmarked=st.lists(st.tuples(_PARTITIONS, _NUMBERS), max_size=2).map(tuple),
        first_dirty=_OFFSETS,
        reached=_OFFSETS,
        reached_after=_OFFSETS,
        gives_offsets=st.booleans(),
        tombstones_removed=_OFFSETS,
        orders_removed=st.dictionaries(
            _PARTITIONS, st.lists(st.tuples(_NUMBERS, _NUMBERS), max_size=2).map(tuple), max_size=2
        ),
        uncleanable=st.dictionaries(_PARTITIONS, uncleanable, max_size=2),
        add=st.none() | _appends(),
        writers=st.lists(st.builds(AppendedBy, writers), max_size=2).map(tuple),
        older_writers=st.none() | _paged_writers(paths),
        orphan_floor=numbers,
        oldest_readable=numbers,
        forget=st.lists(paths, max_size=3).map(tuple),
        reset_times=st.booleans(),
    )


def _transaction_entries(ids: st.SearchStrategy[str]) -> st.SearchStrategy[WriterEntry]:
    """Returns entries of version 7."""
    positions = st.builds(Position, _NUMBERS, _NUMBERS)
    foreign = st.builds(ForeignPosition, _NUMBERS, st.none() | st.sampled_from(["7", "é"]))
    in_logs, elsewhere = (
        st.dictionaries(names, st.dictionaries(_PARTITIONS, at, max_size=3), max_size=2)
        for names, at in ((_IDS, positions), (_IDS.map("kafka:{}/x".format), foreign))
    )
    states = st.builds(
        TransactionState,
        *(_NUMBERS, st.integers(NONE, 2**40)),
        st.none() | st.builds(Committed, _NUMBERS, _NUMBERS, _NUMBERS),
        st.builds(dict[str, Any].__or__, in_logs, elsewhere)
        | st.builds(PositionsAt, _IDS.map(page_path), _NUMBERS),
    )
    return st.builds(
        WriterEntry,
        *(ids, st.just(TRANSACTION), st.none(), st.integers(NONE, 9), st.none(), st.just(7)),
        states,
    )


def _paged_writers(paths: st.SearchStrategy[str]) -> st.SearchStrategy[PagedWriters]:
    places = st.sets(st.integers(0, 99), max_size=3).map(lambda found: tuple(sorted(found)))
    root = st.builds(PageRef, paths, _NUMBERS, _NUMBERS, st.integers(0, WRITER_LEVEL_MAX))
    return st.builds(PagedWriters, root, places)


@st.composite
def _appends(draw: st.DrawFn) -> Append:
    """Returns appends of version 7."""
    manifest = replace(fresh_manifest(4), version=6)
    rows = st.dictionaries(_below(manifest), st.integers(1, 10**9), min_size=1)
    stamp_ms = draw(st.sampled_from([NONE, 0, 10**15]))
    edits = [
        append_edit(manifest, draw(rows), draw(_IDS), append_time_ms=stamp_ms) for _ in range(2)
    ]
    assert edits[0].add is not None
    assert edits[1].add is not None
    chunks = edits[0].add.chunks
    if edits[0].add.chunks[0][1].object.path != edits[1].add.chunks[0][1].object.path:
        chunks += edits[1].add.chunks
    is_given = draw(st.booleans())
    if is_given:
        chunks = tuple((p, replace(c, next=c.next + p)) for p, c in chunks)
    return Append(chunks, draw(st.sampled_from([(), ((3, 0, 50),)])), is_given)
