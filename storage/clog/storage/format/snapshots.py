"""Snapshots and their pages: manifests as documents, so that opening reads little (FORMAT.md §4).

A snapshot holds the active segments and the sealed ones of late; older sealed segments are in
immutable *pages*, which the next snapshot refers to again instead of repeating them. Pages grow as
a binary counter does: a new page swallows the last ones while they are not bigger than itself, so
each segment is rewritten O(log n) times. They grow up to `PAGE_BYTES_MAX`: whoever appends makes a
snapshot now and then, and must not stop for all segments there are.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from clog.storage.env import enough_memory
from clog.storage.errors import CorruptionError
from clog.storage.format import documents
from clog.storage.format.chunks import (
    NONE,
    ObjectRef,
    checksum_from,
    columns_of,
    dead_rows_from_json,
    dead_rows_to_json,
    flag,
    mask_from_json,
    mask_to_json,
    natural,
    partition_of,
    rows_of,
    whole,
)
from clog.storage.format.documents import check_inside, page_path, snapshot_path
from clog.storage.format.edits import (
    CHUNK_COLUMNS,
    chunk_of,
    chunk_row,
    uncleanable_from_json,
    uncleanable_json,
)
from clog.storage.format.head import Head, SnapshotRef, head_from_json, head_to_json
from clog.storage.format.manifest import (
    Manifest,
    Released,
    Segment,
    SegmentPage,
    check_active,
    check_follow,
    check_order,
    check_places,
)
from clog.storage.format.transactions import (
    markers_from_json,
    markers_to_json,
    name_to_json,
    set_outcomes,
)
from clog.storage.store.contract import ObjectExistsError, Store

PAGE_CHUNKS_MIN = 256
"""Sealed segments stay in the snapshot itself until they have so many chunks."""
PAGE_BYTES_MAX = 512 << 10
"""Of a page as stored, some 8,000 segments; up to four times of it where segments that were
rewritten share objects, which each of their pages names.
"""

_OBJECT_COLUMNS = ("path", "bytes", "footer", "xxh3_128", "rows", "stamp", "dense")
_INDEX = "index"
_SEGMENT_COLUMNS = ("p", "base", "next", "created_ms", "chunks")
_CHUNK_COLUMNS = ("object", *CHUNK_COLUMNS)
_RELEASED_COLUMNS = ("path", "bytes", "version", "time_ms")
_STEP_COLUMNS = ("p", "version", "offset")


def write_snapshot(store: Store, manifest: Manifest, *, new_id: Callable[[], str]) -> SnapshotRef:
    """Writes the snapshot of this version, after the page it may need.

    Costs 2 PUTs, and a GET for each page that it merges, which have `PAGE_BYTES_MAX` together at
    most; a PUT more for each so many bytes of segments that are in no page, after these were
    rewritten; one GET more where another committer was first.

    Raises:
        FileNotFoundError: another one is under way, and may never be there.
        CorruptionError: the one that is there is damaged, or of another history.
    """
    manifest = _page_out(store, manifest, new_id=new_id)
    body = documents.body_json(_snapshot_json(manifest))
    path = snapshot_path(manifest.version)
    try:
        store.create(path, documents.encode_json("snapshot", body))
    except ObjectExistsError:
        # Another committer snapshotted the same version, and it says the same: unless it was left
        # from before a copy was restored. A create is also refused while another is under way,
        # whose process may die: a head names what is there.
        read_named_snapshot(store, SnapshotRef(manifest.version, len(body), manifest.commit_id))
    return SnapshotRef(manifest.version, len(body), manifest.commit_id)


def read_named_snapshot(store: Store, named: SnapshotRef) -> Manifest:
    """Returns the manifest of the snapshot that a head names; pages are left where they are.

    Raises:
        FileNotFoundError: it is not there.
        CorruptionError: it violates the format, or is of another history.
    """
    manifest = read_snapshot(store, named.version)
    if named.commit_id not in (None, manifest.commit_id):
        raise mixed_histories(store.url, f"snapshot {named.version}")
    return manifest


def mixed_histories(url: str, what: str) -> CorruptionError:
    """Makes the error of something that is not of the history that a newer version goes on from."""
    return CorruptionError(
        f"{what} of {url} is not of the history of its newest version: files of two copies of the"
        " log were mixed, or it was restored while somebody had it open and wrote to it; restore"
        ' one of them whole, or write what is sound into a copy with "clog verify --repair"'
    )


def read_snapshot(store: Store, version: int) -> Manifest:
    """Returns the manifest of a snapshot; pages are left where they are.

    Raises:
        FileNotFoundError: there is none of this version.
        CorruptionError: it violates the format.
    """
    where = snapshot_path(version)
    data = documents.fetch(store, "snapshot", where)
    body = documents.decode("snapshot", data, where=f"{where} of {store.url}")
    try:
        with enough_memory(where):
            return _snapshot_from_json(body, where)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as e:
        raise CorruptionError(f"{where} violates the format: {type(e).__name__}: {e}") from e


def unpage(store: Store, manifest: Manifest, partitions: Collection[int] | None = None) -> Manifest:
    """Returns the manifest with the paged segments of these partitions (None: of all); one GET a
    page.
    """
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
    data = documents.encode("page", _segments_json(_flat(sealed)))
    while pages and pages[-1].size_bytes <= min(len(data), PAGE_BYTES_MAX - len(data)):
        merged = pages.pop()
        for p, older in _read_page(store, merged).items():
            sealed[p] = (*older, *sealed.get(p, ()))
        data = documents.encode("page", _segments_json(_flat(sealed)))
    flat = _flat(sealed)
    for piece in _cut(flat, -(-len(data) // PAGE_BYTES_MAX)):
        data = data if len(piece) == len(flat) else documents.encode("page", _segments_json(piece))
        path = page_path(new_id())
        store.put(path, data)
        mine = {p: [s for _, s in pairs] for p, pairs in groupby(piece, itemgetter(0))}
        ranges = {p: (segments[0].base, segments[-1].next) for p, segments in mine.items()}
        pages.append(SegmentPage(path, len(data), ranges))
    return replace(manifest, segments=rest, pages=tuple(pages))


def _decided(sealed: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """Returns the segments before the first undecided chunk: an end need not bring pages in."""
    undecided = (i for i, s in enumerate(sealed) if any(c.undecided for c in s.chunks))
    return sealed[: next(undecided, len(sealed))]


def _cut(
    pairs: Sequence[tuple[int, Segment]], pieces: int
) -> Iterator[Sequence[tuple[int, Segment]]]:
    """Yields so many pieces, each of about as many chunks, or fewer where segments are large."""
    room = -(-sum(len(s.chunks) for _, s in pairs) // pieces)
    first = chunks = 0
    for i, (_, segment) in enumerate(pairs):
        if i > first and chunks + len(segment.chunks) > room:
            yield pairs[first:i]
            first, chunks = i, 0
        chunks += len(segment.chunks)
    yield pairs[first:]


def _read_page(store: Store, page: SegmentPage) -> dict[int, tuple[Segment, ...]]:
    """Returns segments of the partitions and offsets that the page still answers for."""
    where = f"{page.path} of {store.url}"
    data = documents.fetch(store, "page", page.path, page.size_bytes)
    body = documents.decode("page", data, where=where)
    try:
        if body.get("undecided"):
            raise ValueError("it holds a chunk that is undecided")
        with enough_memory(where):
            found = _segments_from_json(body, page.path)
    except (KeyError, TypeError, ValueError, IndexError) as e:
        raise CorruptionError(f"{where} violates the format: {type(e).__name__}: {e}") from e
    out = {}
    for p, (base, end) in page.ranges.items():
        mine = tuple(s for s in found.get(p, ()) if base <= s.base and s.next <= end)
        if not mine or (mine[0].base, mine[-1].next) != (base, end):
            raise CorruptionError(f"{where} does not hold [{base}, {end}) of partition {p}")
        check_follow(mine, p)
        out[p] = mine
    return out


def _flat(by_partition: dict[int, tuple[Segment, ...]]) -> list[tuple[int, Segment]]:
    return [(p, s) for p, segments in sorted(by_partition.items()) for s in segments]


def _segments_json(pairs: Sequence[tuple[int, Segment]]) -> dict[str, Any]:
    index: dict[ObjectRef, int] = {}
    rows: list[tuple[int, ...]] = []
    dead: list[list[Any]] = []
    undecided: list[list[Any]] = []
    aborted: list[int] = []
    masks: list[list[Any]] = []
    for _, segment in pairs:
        for chunk in segment.chunks:
            if chunk.dead is not None:
                dead.append([len(rows), dead_rows_to_json(chunk.dead)])
            if chunk.undecided is not None:
                undecided.append([len(rows), name_to_json(chunk.undecided)])
            if chunk.aborted:
                aborted.append(len(rows))
            if chunk.mask is not None:
                masks.append([len(rows), mask_to_json(chunk.mask)])
            rows.append((index.setdefault(chunk.object, len(index)), *chunk_row(chunk)))
    objects = [
        (o.path, o.size_bytes, o.footer_bytes, o.checksum, o.rows, o.stamp, o.dense) for o in index
    ]
    segments = [(p, s.base, s.next, s.created_ms, len(s.chunks)) for p, s in pairs]
    return {
        "objects": columns_of(objects, _OBJECT_COLUMNS) | _index_column(index),
        "segments": columns_of(segments, _SEGMENT_COLUMNS),
        "chunks": columns_of(rows, _CHUNK_COLUMNS),
        "dead": dead,
        **({"undecided": undecided} if undecided else {}),
        **({"aborted": aborted} if aborted else {}),
        **({"masks": masks} if masks else {}),
    }


def _index_column(objects: Iterable[ObjectRef]) -> dict[str, list[int]]:
    """Returns the sizes of the key indexes; left out where no object has one."""
    sizes = [o.index_bytes for o in objects]
    return {_INDEX: sizes} if any(sizes) else {}


def _segments_from_json(value: dict[str, Any], where: str) -> dict[int, list[Segment]]:
    columns = {_INDEX: [0] * len(value["objects"]["path"]), **value["objects"]}
    objects = [
        ObjectRef(
            check_inside(path, where=where),
            *(natural(size), natural(footer), checksum_from(checksum), natural(rows)),
            *(natural(stamp), flag(dense), natural(index_bytes)),
        )
        for path, size, footer, checksum, rows, stamp, dense, index_bytes in rows_of(
            columns, (*_OBJECT_COLUMNS, _INDEX)
        )
    ]
    dead = {_index(i): dead_rows_from_json(marked, where=where) for i, marked in value["dead"]}
    chunks = [
        chunk_of(objects[_index(row[0])], row[1:])
        for row in rows_of(value["chunks"], _CHUNK_COLUMNS)
    ]
    if len(dead) < len(value["dead"]):
        raise ValueError("a chunk has two bitmaps")
    for i, marked in dead.items():
        chunks[i] = replace(chunks[i], dead=marked)
    set_outcomes(chunks, value)
    for i, mask in value.get("masks", ()):
        chunks[_index(i)] = replace(chunks[_index(i)], mask=mask_from_json(mask, where=where))
    out: dict[int, list[Segment]] = {}
    at = 0
    for row in rows_of(value["segments"], _SEGMENT_COLUMNS):
        p, base, end, created_ms, count = map(whole, row)
        segment = Segment(base, end, created_ms, tuple(chunks[at : at + count]))
        if count < 0 or created_ms < NONE:
            raise ValueError(f"a segment of {count} chunks, created at {created_ms} ms")
        check_order(segment, after=out.setdefault(p, []), partition=p)
        out[p].append(segment)
        at += count
    if at != len(chunks):
        raise CorruptionError(f"{where} has {len(chunks)} chunks, its segments count {at}")
    return out


def _index(value: object) -> int:
    if (index := whole(value)) < 0:
        raise IndexError(index)
    return index


def _snapshot_json(manifest: Manifest) -> dict[str, Any]:
    pairs = _flat(dict(enumerate(manifest.segments)))
    released = [(r.path, r.size_bytes, r.version, r.time_ms) for r in manifest.released]
    return {
        "version": manifest.version,
        "id": manifest.commit_id,
        "time_ms": manifest.time_ms,
        "head": head_to_json(_with_all_columns(manifest.head)),
        "manifest": {
            "first_dirty": list(manifest.first_dirty),
            **_segments_json(pairs),
            "pages": [
                {
                    "path": page.path,
                    "bytes": page.size_bytes,
                    "ranges": {str(p): list(r) for p, r in page.ranges.items()},
                }
                for page in manifest.pages
            ],
            "released": columns_of(released, _RELEASED_COLUMNS),
            "tombstones_removed": columns_of(manifest.tombstones_removed, _STEP_COLUMNS),
            "uncleanable": {str(p): uncleanable_json(u) for p, u in manifest.uncleanable.items()},
            **({"markers": markers_to_json(manifest.markers)} if manifest.markers else {}),
            **({"covered": list(manifest.covered)} if manifest.covered else {}),
        },
    }


def _with_all_columns(head: Head) -> Head:
    return replace(head, partitions=head.partitions.whole())


def _snapshot_from_json(body: dict[str, Any], where: str) -> Manifest:
    value = body["manifest"]
    head = head_from_json(body["head"], where=where)
    if snapshot_path(whole(body["version"])) != where:
        raise CorruptionError(f"{where} holds version {body['version']}")
    if head.snapshot is not None and head.snapshot.version >= body["version"]:
        raise ValueError(f"its head names a snapshot of version {head.snapshot.version}")
    if head.partitions.rest is None:
        raise CorruptionError(f"{where} does not hold all columns of its head")
    segments = _segments_from_json(value, where)
    partitions = range(head.log.partitions)
    if set(segments) != set(partitions) or len(value["first_dirty"]) != len(partitions):
        raise CorruptionError(f"{where} does not hold the {len(partitions)} partitions of the log")
    pages = tuple(_pages(value["pages"], where))
    for p in partitions:
        check_places(p, [g.ranges[p] for g in pages if p in g.ranges], segments[p])
        check_active(p, head.partitions.row(p), segments[p][-1])
    uncleanable = {
        partition_of(p): uncleanable_from_json(u) for p, u in value["uncleanable"].items()
    }
    return Manifest(
        version=whole(body["version"]),
        commit_id=checksum_from(body["id"]),
        time_ms=natural(body["time_ms"]),
        head=head,
        segments=tuple(tuple(segments[p]) for p in partitions),
        first_dirty=tuple(natural(offset) for offset in value["first_dirty"]),
        released=tuple(_released(value["released"], where)),
        tombstones_removed=tuple(
            (natural(p), natural(version), natural(offset))
            for p, version, offset in rows_of(value["tombstones_removed"], _STEP_COLUMNS)
        ),
        uncleanable={p: why for p, why in uncleanable.items() if why is not None},
        markers=markers_from_json(value["markers"], len(partitions)) if "markers" in value else (),
        pages=pages,
        covered=_covered(value.get("covered", ()), len(partitions), where),
    )


def _covered(value: Sequence[Any], partitions: int, where: str) -> tuple[int, ...]:
    if len(value) not in (0, partitions):
        raise CorruptionError(f"{where} says of {len(value)} partitions how far they are covered")
    covered = tuple(map(natural, value))
    return covered if any(covered) else ()


def _pages(value: list[Any], where: str) -> Iterable[SegmentPage]:
    for page in value:
        ranges = {
            partition_of(p): (natural(base), natural(end))
            for p, (base, end) in page["ranges"].items()
        }
        yield SegmentPage(check_inside(page["path"], where=where), natural(page["bytes"]), ranges)


def _released(columns: dict[str, Any], where: str) -> Iterable[Released]:
    for path, size, version, time_ms in rows_of(columns, _RELEASED_COLUMNS):
        numbers = natural(size), natural(version), natural(time_ms)
        yield Released(check_inside(path, where=where), *numbers)
