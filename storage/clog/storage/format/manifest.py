"""The manifest: all segments at one version, how an edit changes them, and how they are stored
(FORMAT.md §3.2, §3.3, §4).

A manifest is an immutable value: `apply` is pure, returns the next one and shares what did not
change. Segments that a snapshot keeps in pages may be left there (`Manifest.pages`): appends need
none of them, and an edit of a paged range is refused until `unpage` has read it.

A snapshot is a manifest as a document. It holds the active segments and the most recent sealed
ones; older sealed segments are in immutable *pages*, which the next snapshot refers to again
instead of repeating them. Pages grow like a binary counter: a new page absorbs the last ones as
long as they are not bigger than itself, so each segment is rewritten O(log n) times. They grow only
up to `PAGE_BYTES_MAX`, because appends make snapshots now and then, and none should have to rewrite
all segments.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Annotated, Any

from clog.storage.env import dataclass
from clog.storage.errors import CorruptionError
from clog.storage.format import documents
from clog.storage.format.chunks import (
    CHUNKS,
    DEAD,
    MASK,
    OBJECTS,
    UNCLEANABLE,
    Chunk,
    Draft,
    ObjectRef,
    Released,
    Segment,
    Uncleanable,
)
from clog.storage.format.columns import CREATED_MS, END, START, Row
from clog.storage.format.commits import (
    Edit,
    Head,
    SnapshotRef,
    advance,
    first_head,
    head_from_json,
    head_to_json,
)
from clog.storage.format.documents import (
    BESIDE,
    HEX,
    KEPT,
    NATURAL,
    NONE,
    Codec,
    Int,
    Natural,
    Path,
    by_partition,
    columns,
    page_path,
    pair,
    reading,
    record,
    seq,
    snapshot_path,
    tuple_of,
    whole,
)
from clog.storage.format.erasures import ERASURES_LEFT, Erasures
from clog.storage.format.log_info import ERASURES, ORDER_VALUES
from clog.storage.format.transactions import (
    ABORTED,
    MARKERS,
    NAME,
    Marker,
    markers_after,
    markers_from_json,
)
from clog.storage.store.contract import ObjectExistsError, Store

PAGE_CHUNKS_MIN = 256
"""Sealed segments stay in the snapshot itself until they have this many chunks."""
PAGE_BYTES_MAX = 512 << 10
"""Size of a stored page, about 8,000 segments; up to four times that if rewritten segments share
objects, since each of their pages names these.
"""


@dataclass(frozen=True, slots=True)
class _Tile:
    """A segment with only the number of its chunks."""

    partition: Annotated[Int, "p"]
    base: Int
    next: Int
    created_ms: Int
    chunks: Int


@dataclass(frozen=True, slots=True)
class _Step:
    """The offset up to which a version removed tombstones because of their horizons (S41)."""

    partition: Annotated[Natural, "p"]
    version: Natural
    offset: Natural


@dataclass(frozen=True, slots=True)
class _Removed:
    """The highest order of the tombstones removed when a partition's end offset was ``end``."""

    partition: Annotated[Natural, "p"]
    order: Natural
    end: Natural


_TILES = columns(_Tile)
_STEPS = columns(_Step, made=tuple_of)
_ORDERS = columns(_Removed, made=tuple_of)


@dataclass(frozen=True, slots=True)
class SegmentPage:
    """A page of sealed segments; ``ranges`` are the offsets it is used for, by partition."""

    path: Path
    size_bytes: Annotated[Natural, "bytes"]
    ranges: Annotated[
        Mapping[int, tuple[int, int]], by_partition(pair(NATURAL, NATURAL), is_sorted=False)
    ]


Segments = tuple[tuple[Segment, ...], ...]


def _segments_to_json(segments: Segments) -> dict[str, Any]:
    return _flat_to_json(_flat(dict(enumerate(segments))))


def _flat(segments: Mapping[int, tuple[Segment, ...]]) -> list[tuple[int, Segment]]:
    return [(p, s) for p, mine in sorted(segments.items()) for s in mine]


def _flat_to_json(pairs: Sequence[tuple[int, Segment]]) -> dict[str, Any]:
    """Returns segments with their chunks and objects as columns, as in snapshots and pages."""
    chunks = [chunk for _, segment in pairs for chunk in segment.chunks]
    index: dict[ObjectRef, int] = {}
    places = [index.setdefault(chunk.object, len(index)) for chunk in chunks]
    tiles = (_Tile(p, s.base, s.next, s.created_ms, len(s.chunks)) for p, s in pairs)
    undecided = [[i, NAME.write(c.undecided)] for i, c in enumerate(chunks) if c.undecided]
    aborted = [i for i, chunk in enumerate(chunks) if chunk.aborted]
    masks = [[i, MASK.write(c.mask)] for i, c in enumerate(chunks) if c.mask is not None]
    return {
        "objects": OBJECTS.write(index),
        "segments": _TILES.write(tiles),
        "chunks": {"object": places, **CHUNKS.write(chunks)},
        "dead": [[i, DEAD.write(c.dead)] for i, c in enumerate(chunks) if c.dead is not None],
        **({"undecided": undecided} if undecided else {}),
        **({"aborted": aborted} if aborted else {}),
        **({"masks": masks} if masks else {}),
    }


def _segments_from_json(value: Mapping[str, Any]) -> dict[int, list[Segment]]:
    """Reads the JSON of `_flat_to_json`; raises as codecs do."""
    objects: tuple[ObjectRef, ...] = OBJECTS.read(value["objects"])
    places = seq(NATURAL).read(value["chunks"]["object"])
    rows = zip(places, CHUNKS.read(value["chunks"]), strict=True)
    chunks = [Chunk(objects[i], *numbers).checked() for i, numbers in rows]
    _set_marks(chunks, value)
    out: dict[int, list[Segment]] = {}
    at = 0
    for tile in _TILES.read(value["segments"]):
        if tile.chunks < 0 or tile.created_ms < NONE:
            raise ValueError(f"a segment of {tile.chunks} chunks, created at {tile.created_ms} ms")
        mine = tuple(chunks[at : at + tile.chunks])
        segment = Segment(tile.base, tile.next, tile.created_ms, mine)
        before = out.setdefault(tile.partition, [])
        _check_order(segment, after=before, partition=tile.partition)
        before.append(segment)
        at += tile.chunks
    if at != len(chunks):
        raise ValueError(f"{len(chunks)} chunks, of which segments count {at}")
    return out


def _set_marks(chunks: list[Chunk], value: Mapping[str, Any]) -> None:
    """Sets the dead rows, outcomes and masks of chunks."""
    dead = [(NATURAL.read(i), DEAD.read(marked)) for i, marked in value["dead"]]
    undecided = [(NATURAL.read(i), NAME.read(name)) for i, name in value.get("undecided", ())]
    aborted = [NATURAL.read(i) for i in value.get("aborted", ())]
    named = [*(i for i, _ in dead), *(i for i, _ in undecided), *aborted]
    if len(set(named)) < len(named):
        raise ValueError("a chunk has two bitmaps or outcomes, or dead rows and an outcome")
    for i, rows in dead:
        chunks[i] = replace(chunks[i], dead=rows)
    for i, name in undecided:
        chunks[i] = replace(chunks[i], outcome=name)
    for i in aborted:
        chunks[i] = replace(chunks[i], outcome=ABORTED)
    for i, mask in value.get("masks", ()):
        chunks[NATURAL.read(i)] = replace(chunks[i], mask=MASK.read(mask))


def _uncleanable_from_json(value: dict[str, Any]) -> dict[int, Uncleanable]:
    found = UNCLEANABLE.read(value)
    return {p: why for p, why in found.items() if why is not None}


def _covered_from_json(value: list[Any]) -> tuple[int, ...]:
    covered: tuple[int, ...] = seq(NATURAL).read(value)
    return covered if any(covered) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """State of a log at ``version``. ``segments[p]`` are in offset order; the last one is active.
    ``covered`` are the offsets up to which partitions are covered; empty while all are 0.
    """

    version: int
    commit_id: str
    time_ms: int
    head: Head
    first_dirty: Annotated[tuple[int, ...], seq(NATURAL)]
    segments: Annotated[Segments, Codec(_segments_to_json, _segments_from_json), BESIDE]
    pages: Annotated[tuple[SegmentPage, ...], seq(record(SegmentPage)), KEPT] = ()
    released: Annotated[tuple[Released, ...], columns(Released), KEPT] = ()
    tombstones_removed: Annotated[
        tuple[tuple[int, int, int], ...],
        Codec(lambda steps: _STEPS.write(_Step(*step) for step in steps), _STEPS.read),
        KEPT,
    ] = ()
    orders_removed: Annotated[
        tuple[tuple[int, int, int], ...],
        Codec(lambda pairs: _ORDERS.write(_Removed(*pair) for pair in pairs), _ORDERS.read),
    ] = ()
    uncleanable: Annotated[
        Mapping[int, Uncleanable], Codec(UNCLEANABLE.write, _uncleanable_from_json), KEPT
    ] = field(default_factory=dict)
    markers: Annotated[tuple[Marker, ...], MARKERS] = ()
    covered: Annotated[tuple[int, ...], Codec(list, _covered_from_json)] = ()
    erasures: Annotated[Erasures, ERASURES_LEFT] = field(default_factory=dict)

    def chunks(self) -> Iterator[tuple[int, Chunk]]:
        """Yields every (partition, chunk) that is not in a page."""
        for p, segments in enumerate(self.segments):
            for segment in segments:
                for chunk in segment.chunks:
                    yield p, chunk

    def files(self) -> dict[str, int]:
        """Returns path -> bytes of the objects and bitmaps of its chunks; files that only a page
        refers to are left out.
        """
        return {path: size for _, chunk in self.chunks() for path, size in chunk.files.items()}

    def orders_removed_of(self, partition: int) -> tuple[tuple[int, int], ...]:
        """Returns the partition's pairs of orders of removed tombstones and end offsets."""
        return tuple((order, end) for p, order, end in self.orders_removed if p == partition)

    def paged_below(self, partition: int) -> int:
        """Returns the offset below which segments of the partition are in pages; -1 if none are."""
        ends = [r[partition][1] for page in self.pages if partition in (r := page.ranges)]
        return max(ends, default=NONE)


_MANIFEST = record(Manifest)


def first_manifest(edit: Edit, *, commit_id: str, time_ms: int) -> Manifest:
    """Returns the manifest at version 0."""
    head = first_head(edit)
    count = head.log.partitions
    return Manifest(
        version=0,
        commit_id=commit_id,
        time_ms=time_ms,
        head=head,
        first_dirty=(0,) * count,
        segments=((Segment(0, 0, NONE, ()),),) * count,
    )


def apply(manifest: Manifest, edit: Edit, *, commit_id: str, time_ms: int) -> Manifest:
    """Returns the manifest at version N+1, given the one at N.

    Raises CorruptionError if the edit contradicts the manifest: sources that do not exist, ranges
    with gaps or overlaps, anything that `advance` refuses.
    """
    version = manifest.version + 1
    if time_ms < manifest.time_ms and not edit.reset_times:
        raise CorruptionError(f"version {version} is of {time_ms} ms, earlier than its parent")
    head = advance(manifest.head, edit, version=version, time_ms=time_ms)
    draft = Draft(manifest, edit, time_ms)
    for part, given in edit.parts():
        if part.segments is not None:
            part.segments(draft, given)
    made = replace(
        manifest,
        version=version,
        commit_id=commit_id,
        time_ms=time_ms,
        head=head,
        segments=tuple(draft.segments),
        first_dirty=tuple(draft.first_dirty),
        released=_with_released(manifest.released, draft),
        tombstones_removed=draft.steps,
        orders_removed=draft.orders,
        uncleanable={p: why for p, why in draft.uncleanable.items() if why is not None},
        markers=markers_after(
            manifest.markers,
            marked=edit.marked,
            unmarked=edit.unmarked,
            starts=head.partitions.start if edit.start else None,
            fresh=draft.markers,
        ),
        covered=tuple(draft.covered) if any(draft.covered) else (),
        erasures={name: one for name, one in draft.erasures.items() if one is not None},
    )
    return _with_times_reset(made, time_ms) if edit.reset_times else made


def _with_released(before: tuple[Released, ...], draft: Draft) -> tuple[Released, ...]:
    """Returns all released objects, each with the newest commit that took a chunk from it (§6)."""
    gone = draft.forgotten.union(draft.released)
    if not gone:
        return before
    left = [r for r in before if r.path not in gone]
    return (*left, *(r for r in draft.released.values() if r.path not in draft.forgotten))


def _with_times_reset(manifest: Manifest, time_ms: int) -> Manifest:
    """Returns the manifest with no time later than ``time_ms``, except those in its objects."""
    return replace(
        manifest,
        segments=tuple(
            tuple(_segment_reset(s, time_ms) for s in mine) for mine in manifest.segments
        ),
        released=tuple(replace(r, time_ms=min(r.time_ms, time_ms)) for r in manifest.released),
        uncleanable={
            p: replace(why, time_ms=min(why.time_ms, time_ms))
            for p, why in manifest.uncleanable.items()
        },
        erasures={name: one.reset(time_ms) for name, one in manifest.erasures.items()},
    )


def _segment_reset(segment: Segment, time_ms: int) -> Segment:
    """Returns the segment with no later time than ``time_ms`` (FORMAT.md §3.2, ``reset_times``)."""
    chunks = tuple(_chunk_reset(c, time_ms) for c in segment.chunks)
    return replace(segment, created_ms=min(segment.created_ms, time_ms), chunks=chunks)


def _chunk_reset(c: Chunk, time_ms: int) -> Chunk:
    if c.append_time_ms > time_ms:
        c = replace(c, append_time_ms=time_ms, first_timestamp_ms=time_ms, max_timestamp_ms=time_ms)
    if c.dead is not None and c.dead.since_ms > time_ms:
        c = replace(c, dead=replace(c.dead, since_ms=time_ms))
    return c


def write_snapshot(store: Store, manifest: Manifest, *, new_id: Callable[[], str]) -> SnapshotRef:
    """Writes the snapshot of this version, after the page it may need.

    Costs 2 PUTs, and one GET for each page that it merges, together at most `PAGE_BYTES_MAX`. Costs
    one PUT more for each `PAGE_BYTES_MAX` of segments in no page, if these were rewritten, and one
    GET more if another committer was first.

    Raises:
        FileNotFoundError: another committer's is under way, and may never be complete.
        CorruptionError: the existing one is damaged, or of another history.
    """
    manifest = _page_out(store, manifest, new_id=new_id)
    body = documents.body_json(_snapshot_json(manifest))
    path = snapshot_path(manifest.version)
    try:
        store.create(path, documents.encode_json("snapshot", body))
    except ObjectExistsError:
        # Another committer's snapshot of the same version says the same, unless it is left over
        # from before a copy was restored. A create is also refused while another one is under way,
        # whose process may die; but a head must name a snapshot that exists.
        read_named_snapshot(store, SnapshotRef(manifest.version, len(body), manifest.commit_id))
    return SnapshotRef(manifest.version, len(body), manifest.commit_id)


def read_named_snapshot(store: Store, named: SnapshotRef) -> Manifest:
    """Returns the manifest of the snapshot that a head names, without reading its pages.

    Raises:
        FileNotFoundError: it does not exist.
        CorruptionError: it violates the format, or is of another history.
    """
    manifest = read_snapshot(store, named.version)
    if named.commit_id not in (None, manifest.commit_id):
        raise mixed_histories(store.url, f"snapshot {named.version}")
    return manifest


def named_snapshot(store: Store, version: int, commit_id: str) -> SnapshotRef:
    """Returns a head's reference to this commit's snapshot; one GET, raises as the reading does."""
    found = read_named_snapshot(store, SnapshotRef(version, 0, commit_id))
    return SnapshotRef(version, len(documents.body_json(_snapshot_json(found))), commit_id)


def mixed_histories(url: str, what: str) -> CorruptionError:
    """Makes the error for a file that does not belong to the history of the newest version."""
    return CorruptionError(
        f"{what} of {url} does not belong to the history of its newest version: files of two"
        " copies of the log were mixed, or it was restored while a writer had it open; restore"
        ' one copy completely, or recover what is sound into a copy with "clog verify --repair"'
    )


def read_snapshot(store: Store, version: int) -> Manifest:
    """Returns a snapshot's manifest without reading its pages; FileNotFoundError if none exists."""
    where = snapshot_path(version)
    body = documents.get(store, "snapshot", where)
    with reading(where):
        return _snapshot_from_json(body, where)


def unpage(store: Store, manifest: Manifest, partitions: Collection[int] | None = None) -> Manifest:
    """Returns the manifest with the paged segments of partitions (None: all); one GET per page."""
    wanted = set(range(manifest.head.log.partitions) if partitions is None else partitions)
    older: dict[int, list[Segment]] = {p: [] for p in wanted}
    pages = []
    for page in manifest.pages:
        hit = wanted & page.ranges.keys()
        if hit:
            for p, segments in _read_page(store, page).items():
                if p in hit:
                    older[p].extend(segments)
        ranges = {p: r for p, r in page.ranges.items() if p not in hit}
        if ranges:
            pages.append(replace(page, ranges=ranges))
    joined = tuple((*older.get(p, ()), *mine) for p, mine in enumerate(manifest.segments))
    return replace(manifest, segments=joined, pages=tuple(pages))


def _page_out(store: Store, manifest: Manifest, *, new_id: Callable[[], str]) -> Manifest:
    sealed = {p: paged for p, s in enumerate(manifest.segments) if (paged := _decided(s[:-1]))}
    rest = tuple(s[len(sealed.get(p, ())) :] for p, s in enumerate(manifest.segments))
    if sum(len(s.chunks) for mine in sealed.values() for s in mine) < PAGE_CHUNKS_MIN:
        return manifest
    pages = list(manifest.pages)
    data = documents.encode("page", _flat_to_json(_flat(sealed)))
    while pages and pages[-1].size_bytes <= min(len(data), PAGE_BYTES_MAX - len(data)):
        merged = pages.pop()
        for p, older in _read_page(store, merged).items():
            sealed[p] = (*older, *sealed.get(p, ()))
        data = documents.encode("page", _flat_to_json(_flat(sealed)))
    flat = _flat(sealed)
    for piece in _cut(flat, -(-len(data) // PAGE_BYTES_MAX)):
        data = data if len(piece) == len(flat) else documents.encode("page", _flat_to_json(piece))
        path = page_path(new_id())
        store.put(path, data)
        mine = {p: [s for _, s in pairs] for p, pairs in groupby(piece, itemgetter(0))}
        ranges = {p: (segments[0].base, segments[-1].next) for p, segments in mine.items()}
        pages.append(SegmentPage(path, len(data), ranges))
    return replace(manifest, segments=rest, pages=tuple(pages))


def _decided(sealed: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """Returns the segments before the first undecided chunk: so an end needs no pages."""
    undecided = (i for i, s in enumerate(sealed) if any(c.undecided for c in s.chunks))
    return sealed[: next(undecided, len(sealed))]


def _cut(
    pairs: Sequence[tuple[int, Segment]], pieces: int
) -> Iterator[Sequence[tuple[int, Segment]]]:
    """Yields about that many pieces, each of at most the mean number of chunks or one segment."""
    room = -(-sum(len(s.chunks) for _, s in pairs) // pieces)
    first = chunks = 0
    for i, (_, segment) in enumerate(pairs):
        if i > first and chunks + len(segment.chunks) > room:
            yield pairs[first:i]
            first, chunks = i, 0
        chunks += len(segment.chunks)
    yield pairs[first:]


def _read_page(store: Store, page: SegmentPage) -> dict[int, tuple[Segment, ...]]:
    """Returns the segments of the partitions and offsets that the page is still used for."""
    where = f"{page.path} of {store.url}"
    body = documents.get(store, "page", page.path, page.size_bytes)
    with reading(where):
        if body.get("undecided"):
            raise ValueError("it holds an undecided chunk")
        found = _segments_from_json(body)
    out = {}
    for p, (base, end) in page.ranges.items():
        mine = tuple(s for s in found.get(p, ()) if base <= s.base and s.next <= end)
        if not mine or (mine[0].base, mine[-1].next) != (base, end):
            raise CorruptionError(f"{where} does not hold [{base}, {end}) of partition {p}")
        _check_follow(mine, p)
        out[p] = mine
    return out


def _snapshot_json(manifest: Manifest) -> dict[str, Any]:
    head = replace(manifest.head, partitions=manifest.head.partitions.whole())
    return {
        "version": manifest.version,
        "id": manifest.commit_id,
        "time_ms": manifest.time_ms,
        "head": head_to_json(head),
        "manifest": _MANIFEST.write(manifest),
    }


def _snapshot_from_json(body: dict[str, Any], where: str) -> Manifest:
    value, version = body["manifest"], whole(body["version"])
    head = head_from_json(body["head"], where=where)
    if snapshot_path(version) != where:
        raise CorruptionError(f"{where} holds version {version}")
    if head.snapshot is not None and head.snapshot.version >= version:
        raise ValueError(f"its head names a snapshot of version {head.snapshot.version}")
    if head.partitions.rest is None:
        raise CorruptionError(f"{where} does not hold all columns of its head")
    segments = _segments_from_json(value)
    count = head.log.partitions
    partitions = range(count)
    if set(segments) != set(partitions) or len(value["first_dirty"]) != count:
        raise CorruptionError(f"{where} does not hold the {count} partitions of the log")
    if len(value.get("covered", ())) not in (0, count):
        raise CorruptionError(
            f"{where} does not say how far each of the {count} partitions is covered"
        )
    found: Manifest = _MANIFEST.read(
        value,
        version=version,
        commit_id=HEX.read(body["id"]),
        time_ms=NATURAL.read(body["time_ms"]),
        head=head,
        segments=tuple(tuple(segments[p]) for p in partitions),
        markers=markers_from_json(value["markers"], count) if "markers" in value else (),
    )
    for p in partitions:
        _check_places(p, [g.ranges[p] for g in found.pages if p in g.ranges], segments[p])
        _check_active(p, head.partitions.row(p), segments[p][-1])
    for p, _, _ in (*found.tombstones_removed, *found.orders_removed):
        if p >= count:
            raise ValueError(f"removed tombstones are of partition {p}; there are {count}")
    if found.orders_removed and ORDER_VALUES not in head.log.features:
        raise ValueError(f"it has order values, but the log lacks feature {ORDER_VALUES!r}")
    if found.erasures and ERASURES not in head.log.features:
        raise ValueError(f"it has erasures, but the log lacks feature {ERASURES!r}")
    if any(one.ends_beyond(count) for one in found.erasures.values()):
        raise ValueError(f"it has erasures of partitions beyond the {count} of the log")
    return found


def _check_order(segment: Segment, *, after: list[Segment], partition: int) -> None:
    """Raises ValueError unless segments, and the chunks in them, are in order."""
    edges = [segment.base, *(at for c in segment.chunks for at in (c.base, c.next)), segment.next]
    if segment.base < 0 or edges != sorted(edges):
        raise ValueError(f"partition {partition}: chunks at {edges[1:-1]} in [{segment.base}, …")
    if after and after[-1].next > segment.base:
        raise ValueError(f"partition {partition}: two segments have offset {segment.base}")


def _check_follow(segments: Sequence[Segment], partition: int) -> None:
    """Raises ValueError if there is a gap between two segments."""
    for before, after in pairwise(segments):
        if before.next != after.base:
            raise ValueError(
                f"partition {partition}: segment [{before.base}, {before.next}) is followed by one"
                f" at {after.base}"
            )


def _check_places(
    partition: int, paged: Sequence[tuple[int, int]], mine: Sequence[Segment]
) -> None:
    """Raises ValueError unless the ranges of pages, then the segments, follow without gaps."""
    ranges = [*paged, (mine[0].base, mine[0].base)]
    for (base, end), (after, _) in pairwise(ranges):
        if not base < end == after:
            raise ValueError(
                f"pages of partition {partition} have [{base}, {end}), and continue at {after}"
            )
    _check_follow(mine, partition)


def _check_active(partition: int, row: Row, active: Segment) -> None:
    """Raises ValueError unless the active segment agrees with the partition's row in the head."""
    chunks = active.chunks
    first_ms = chunks[0].first_timestamp_ms if chunks else NONE
    sums = sum(c.size_bytes for c in chunks), len(chunks), first_ms
    found = active.next, active.base, *sums, active.created_ms
    if found != row[END : CREATED_MS + 1] or row[START] > active.next:
        raise ValueError(
            f"the active segment of partition {partition} is {found}, in the head {row}"
        )


def overdue(manifest: Manifest, delay_ms: int, *, now_ms: int) -> list[Released]:
    """Returns unreferenced files past their delay: they are kept for a reader, or not yet swept."""
    if not manifest.released:
        return []
    alive = manifest.files()  # Dead objects stay dead: replacements refer only to live ones.
    # An object that lost its chunks one by one is dead since it lost the last (FORMAT.md §6).
    last = {r.path: r for r in manifest.released if r.path not in alive}
    return [r for r in last.values() if now_ms - r.time_ms > delay_ms]
