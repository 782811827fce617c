"""Verifies a log: compares its documents with one another, and with the objects.

1. *History*: every commit that still exists can be read, follows its parent, and carries the
   earlier edits that were committed. All edits, replayed from the oldest existing state, lead to
   the newest commit's state. Snapshots, pages, columns of heads and block files of all readable
   versions can be read: they may have been damaged long before anyone reads them.
2. *Segments*: those of each partition tile it up to its end offset; their chunks are inside them,
   in order, without overlap.
3. *Objects*: each object that a chunk refers to exists with its size; unless the check is
   ``quick``, so do its checksum, its key index, its rows, and each chunk's sizes, timestamps,
   tombstones, horizons and offsets as in the rows (`object_messages`); and bitmaps of dead rows.
   For replaced objects that readers of older versions need (S27), the checksum.
4. *Keys*: each occurs at most once below the first dirty offset: of each key in its map a pass
   leaves the last record, and it ends where the map does (S20, S21). Masks hide what the keys imply
   (FORMAT.md §13): the table is made twice, with its masks and without.
5. *Views*: the files that published versions name exist (S63), and their pins move (S69).

Problems are returned as values, `Finding`, and the checks continue, to show their extent. Nothing
is changed. Orphans are no problem: a healthy log has them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clog.storage.commit.tip import (
    StandingLog,
    find_newest,
    first_open_version,
    is_closed,
    standing_log,
)
from clog.storage.commit.versions import manifest_of, replay
from clog.storage.config.log_config import LogConfig
from clog.storage.env import dataclass
from clog.storage.errors import (
    CorruptionError,
    InvalidInputError,
    VersionExpiredError,
    version_expired,
)
from clog.storage.format import documents
from clog.storage.format.chunks import (
    Bitmap,
    BitmapFile,
    Chunk,
    ChunkMask,
    ObjectRef,
    Segment,
    damage,
    read_bitmap,
)
from clog.storage.format.columns import PartitionColumns, resolved
from clog.storage.format.commits import (
    Commit,
    EditRecord,
    Head,
    SnapshotRef,
    edit_of,
    goes_back_in_time,
    lacks_edits,
    read_commit,
)
from clog.storage.format.cuts import CutLogsAt, read_logs
from clog.storage.format.documents import NONE
from clog.storage.format.log_info import LogInfo, LogSchema
from clog.storage.format.manifest import Manifest, read_named_snapshot, read_snapshot, unpage
from clog.storage.format.transactions import PositionsAt, read_positions
from clog.storage.format.writers import FIRST, Child, WriterPages, writer_hash
from clog.storage.keys.hashing import key_bytes
from clog.storage.keys.key_index import DamagedIndexError, IndexHashes, decode, index_hashes
from clog.storage.numpy_arrays import Offsets, to_arrow, to_numpy
from clog.storage.objects.reader import check_rows, read_footer
from clog.storage.objects.writer import record_sizes
from clog.storage.publications.publish import foreign_table, kept_for_views, view_of
from clog.storage.read.scan import ReadPiece, plan_range, read_pieces
from clog.storage.read.table import plan_table, table_batches
from clog.storage.store.contract import Store, ahead
from clog.storage.types.columns import (
    DELETE_HORIZON,
    OFFSET,
    REWRITTEN_SCHEMA,
    column_types,
    has_ids,
    layout_of,
    with_ids,
)
from clog.storage.types.stored import can_read, named_columns, other_ids
from clog.storage.view_formats import FORMATS

ROWS_MAX = 1 << 24
"""Keys of more rows are taken in several rounds, each for a share of the hashes: bounds memory."""
_LOOKED_AT = 1000
"""Keys of this many repeated hashes are compared, as two keys may have the same hash."""
_REPLAYED = (
    *("segments", "first_dirty", "released", "tombstones_removed", "uncleanable", "markers"),
    *("orders_removed", "erasures"),
)
_File = ObjectRef | BitmapFile
OnProgress = Callable[[int, int], None]
"""Called with (bytes of verified objects, bytes of all objects)."""


class Check(StrEnum):
    """What a finding is about; part of the API, like kinds of errors."""

    COMMIT = "commit"
    SNAPSHOT = "snapshot"
    STATE = "state"
    SEGMENTS = "segments"
    OBJECT_MISSING = "object-missing"
    OBJECT = "object"
    DEAD_ROWS = "dead-rows"
    KEYS = "keys"
    MASKS = "masks"
    VIEW = "view"


_OF_FILES = (Check.OBJECT_MISSING, Check.DEAD_ROWS, Check.MASKS)
"""What may be found if the version expires during the check, although nothing is wrong."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem; ``where`` is a path under the root, or a partition."""

    check: Check
    where: str
    message: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was checked, and the findings; ``version`` is None if the newest cannot be read."""

    url: str
    version: int | None
    commits: int
    objects: int
    object_bytes: int
    records: int
    findings: tuple[Finding, ...]


def verify_log(
    root: Store, *, quick: bool = False, on_progress: OnProgress = lambda _done, _total: None
) -> VerifyReport:
    """Verifies the newest version of the log at a root.

    Costs a LIST of the commits and one of the data, a GET for each commit and for each object (and
    for each bitmap file), including replaced ones that are still needed, and reads the keys of the
    clean parts once more; ``quick``: a LIST of the data and an opening. Raises VersionExpiredError
    if files were replaced and swept during the check, longer than ``file.delete.delay.ms`` after
    they were replaced.
    """
    try:
        standing = standing_log(root)
    except CorruptionError as e:
        message = f"it is unknown which log is here: {e}"
        found = Finding(Check.STATE, documents.LOG_FILE, message)
        return VerifyReport(root.url, None, 0, 0, 0, 0, (found,))
    store = standing.store
    findings: list[Finding] = []
    manifest: Manifest | None = None
    try:
        manifest = unpage(store, manifest_of(store, find_newest(store).tip))
    except (CorruptionError, FileNotFoundError) as e:
        message = f"the newest state cannot be read: {e}"
        findings.append(Finding(Check.STATE, documents.COMMITS, message))
    commits = {} if quick else _commits(store, findings)
    if manifest is None:
        return VerifyReport(store.url, None, len(commits), 0, 0, 0, tuple(findings))
    if not quick:
        findings += history_findings(store, commits, manifest)
        findings += _behind_a_gap(store, commits, manifest.version)
    findings += segment_findings(manifest)
    chunks = by_object(manifest)
    found_there = object_messages(
        store, chunks, manifest.head.log, quick=quick, on_progress=on_progress
    )
    for is_there, path, message in found_there:
        check = Check.OBJECT if is_there else Check.OBJECT_MISSING
        findings.append(Finding(check, path, message))
    if not quick:
        for p, chunk in manifest.chunks():
            findings += _bitmap_findings(store, Check.DEAD_ROWS, p, chunk)
        for p in range(manifest.head.log.partitions):
            with suppress(CorruptionError, FileNotFoundError):  # Reported with the objects.
                findings += _key_findings(store, manifest, p)
        findings += _mask_findings(store, manifest)
        findings += _view_findings(standing, manifest)
    return VerifyReport(
        url=store.url,
        version=manifest.version,
        commits=len(commits),
        objects=len(chunks),
        object_bytes=sum(ref.size_bytes for ref in chunks),
        records=sum(s.rows for segments in manifest.segments for s in segments),
        findings=tuple(_still_true(store, manifest, findings)),
    )


def _still_true(store: Store, manifest: Manifest, findings: list[Finding]) -> list[Finding]:
    """Returns the findings, except files that were deleted because the version expired (S27)."""
    others = [found for found in findings if found.check not in _OF_FILES]
    if others == findings or find_newest(store).tip.head.oldest_readable <= manifest.version:
        return findings
    if not others:
        remedy = "verify again, with a file.delete.delay.ms longer than a verification takes"
        why = " while it was verified"
        raise version_expired(store.url, manifest.version, why=why, remedy=remedy)
    return others


def _unread(
    check: Check, where: str, read: Callable[[], object], *, what: str = ""
) -> list[Finding]:
    """Returns a finding if something cannot be read."""
    try:
        read()
    except (CorruptionError, FileNotFoundError) as e:
        return [Finding(check, where, f"{what}{e}")]
    return []


def document_findings(
    store: Store, commits: dict[int, Commit], manifest: Manifest
) -> Iterator[Finding]:
    """Yields the problem of each document that cannot be fully read; one GET for each document."""
    head = manifest.head
    calls = [
        (partial(_unread, Check.SNAPSHOT, path, read), size_bytes)
        for path, read, size_bytes in _reads(store, commits, head)
    ]
    for found in ahead(store, calls):
        yield from found
    if (root := head.older_writers) is not None:
        yield from _writer_findings(WriterPages(store), (FIRST, root), None, head.log.key_seed)


def _reads(
    store: Store, commits: dict[int, Commit], head: Head
) -> Iterator[tuple[str, Callable[[], object], int]]:
    """Yields each document but pages of older writers, its reader, and its approximate size."""
    readable = [c.head.snapshot for v, c in commits.items() if v >= head.oldest_readable]
    for ref in dict.fromkeys(ref for ref in readable if ref is not None):
        path = documents.snapshot_path(ref.version)
        yield path, partial(_check_snapshot, store, ref), ref.size_bytes
    columns = [c.head.partitions.ref for v, c in commits.items() if v >= head.oldest_readable]
    for rest in sorted({ref for ref in columns if ref is not None}, key=lambda ref: ref.path):
        unread = PartitionColumns(ref=rest)
        yield rest.path, partial(resolved, store, unread, head.log.partitions), rest.size_bytes
    for state in (entry.transaction for entry in head.writers):
        if state is not None and isinstance(at := state.positions, PositionsAt):
            yield at.path, partial(read_positions, store, at), at.size_bytes
    for cut in head.cuts.values():
        if isinstance(logs := cut.logs, CutLogsAt):
            yield logs.path, partial(read_logs, store, logs), logs.size_bytes
    for found in store.list(documents.BLOCKS):
        block = documents.version_of(found.path)
        if block is not None:
            yield found.path, partial(is_closed, store, block), found.size_bytes


def _check_snapshot(store: Store, ref: SnapshotRef) -> None:
    unpage(store, read_named_snapshot(store, ref))


def _writer_findings(
    pages: WriterPages, child: Child, end: str | None, seed: int
) -> Iterator[Finding]:
    """Yields the problems of a page of older writers and lower ones, for hashes below ``end``."""
    below: list[Child] = []
    path = child[1].path
    yield from _unread(
        Check.SNAPSHOT, path, lambda: below.extend(_checked(pages, child, end, seed))
    )
    ends = [start for start, _ in below[1:]]
    for one, next_start in zip(below, [*ends, end], strict=False):
        yield from _writer_findings(pages, one, next_start, seed)


def _checked(pages: WriterPages, child: Child, end: str | None, seed: int) -> list[Child]:
    """Returns the pages below one; raises if it does not contain what the page above says."""
    start, page = child
    below = pages.children(child) if page.level else []
    entries = pages.entries(page) if not page.level else []
    count = sum(one.count for _, one in below) + len(entries)
    if count != page.count or len({entry.key for entry in entries}) != len(entries):
        raise CorruptionError(f"{page.path} holds {count} writers, not {page.count} different ones")
    hashes = [begin for begin, _ in below] + [writer_hash(seed, *e.key) for e in entries]
    if strays := [h for h in hashes if h < start or (end is not None and h >= end)]:
        raise CorruptionError(
            f"{page.path} is for writers with hashes from {start!r} to {end!r}, and has {strays[0]}"
        )
    return below


def _key_findings(store: Store, manifest: Manifest, partition: int) -> Iterator[Finding]:
    """Yields at most one problem with the clean part's keys; 2 requests per object and round."""
    end = manifest.first_dirty[partition]
    pieces = plan_range(manifest, partition, 0, end)
    hashes_of = partial(index_hashes, seed=manifest.head.log.key_seed)
    rounds = 1 + sum(piece.rows for piece in pieces) // ROWS_MAX
    twice: list[IndexHashes] = []
    for share in range(rounds):
        mine = [np.empty(0, np.uint64)]
        for batch in _batches(store, pieces):
            hashes = hashes_of(batch.column("key"))
            mine.append(hashes[hashes % rounds == share])
        ordered = np.sort(np.concatenate(mine))
        twice.append(np.unique(ordered[1:][ordered[1:] == ordered[:-1]]))
    suspects = np.concatenate(twice)
    if not len(suspects):
        return
    offsets: dict[Any, list[int]] = {}
    for batch in _batches(store, pieces):
        hit = np.isin(hashes_of(batch.column("key")), suspects[:_LOOKED_AT])
        rows = batch.filter(to_arrow(hit))
        pairs = (key_bytes(rows.column("key")), rows.column("offset"))
        for key, offset in zip(*(column.to_pylist() for column in pairs), strict=True):
            offsets.setdefault(key, []).append(offset)
    for found in offsets.values():
        if len(found) > 1:
            message = (
                f"a key occurs more than once below the first dirty offset {end}, at offsets"
                f" {', '.join(map(str, found[:3]))}; such keys: {len(suspects)}"
            )
            yield Finding(Check.KEYS, f"partition {partition}", message)
            return


def _batches(store: Store, pieces: Sequence[ReadPiece]) -> Iterator[pa.RecordBatch]:
    for batch in read_pieces(store, pieces, columns=("offset", "key")):
        yield batch.filter(batch.column("key").is_valid())


def _bitmap_findings(store: Store, check: Check, partition: int, chunk: Chunk) -> list[Finding]:
    """Returns the problems of a chunk's bitmaps of dead rows, or of its mask."""
    mask = chunk.mask or ChunkMask()
    bitmaps: tuple[Bitmap | None, ...]
    if check is Check.MASKS:
        what, bitmaps = "mask", (mask.superseded, mask.tombstones)
    else:
        what, bitmaps = "dead rows", (chunk.dead,)
    what = f"the {what} of [{chunk.base}, {chunk.next}) of partition {partition} cannot be read: "
    return [
        found
        for bitmap in bitmaps
        if bitmap is not None
        for found in _unread(
            *(check, chunk.object.path, partial(read_bitmap, store, bitmap, chunk.rows)), what=what
        )
    ]


def _mask_findings(store: Store, manifest: Manifest) -> Iterator[Finding]:
    with suppress(CorruptionError, FileNotFoundError, VersionExpiredError):
        yield from mask_findings(store, manifest)  # Suppressed ones are reported with objects.


def mask_findings(store: Store, manifest: Manifest) -> Iterator[Finding]:
    """Yields unreadable masks, and partitions whose masks hide the wrong rows."""
    if not manifest.covered:
        return
    broken = set()
    for p, chunk in manifest.chunks():
        if found := _bitmap_findings(store, Check.MASKS, p, chunk):
            broken.add(p)
            yield from found
    segments = tuple(
        tuple(replace(s, chunks=tuple(replace(c, mask=None) for c in s.chunks)) for s in mine)
        for mine in manifest.segments
    )
    bare = replace(manifest, segments=segments, covered=())
    for p, covered in enumerate(manifest.covered):
        if covered and p not in broken:
            by_masks, by_keys = (_shown(store, one, p) for one in (manifest, bare))
            lost, extra = np.setdiff1d(by_keys, by_masks), np.setdiff1d(by_masks, by_keys)
            if len(lost) or len(extra):
                message = (
                    f"its masks hide {len(lost)} records that its table has, and show"
                    f" {len(extra)} that it does not have; the first at offset"
                    f" {min([*lost[:1], *extra[:1]])}"
                )
                yield Finding(Check.MASKS, f"partition {p}", message)


def _shown(store: Store, manifest: Manifest, partition: int) -> Offsets:
    """Returns the offsets of a partition's table."""
    batches = table_batches(store, plan_table(manifest, partition), columns=("offset",))
    parts = [to_numpy(batch.column("offset")) for batch in batches]
    return np.concatenate([np.empty(0, np.int64), *parts])


def _older_findings(
    store: Store, commits: dict[int, Commit], manifest: Manifest
) -> Iterator[Finding]:
    """Yields each replaced object or bitmap file that is missing, or whose bytes have changed since
    it was written.

    Costs a GET for each of them and, if there are any, an opening at the oldest readable version,
    and a GET for each large edit since then.
    """
    oldest = manifest.head.oldest_readable
    current = manifest.files()
    needed = {r.path: r.version for r in manifest.released if r.version > oldest}
    needed = {path: version for path, version in needed.items() if path not in current}
    if not needed or oldest not in commits:
        return
    try:
        files = _files_since(store, commits, oldest)
    except (CorruptionError, FileNotFoundError):
        return  # Reported with the documents.
    for path in sorted(needed.keys() & files.keys()):
        users = f"readers of versions before {needed[path]} need"
        try:
            data = store.get(path, 0, files[path].size_bytes + 1)
        except FileNotFoundError:
            if find_newest(store).tip.head.oldest_readable < needed[path]:
                yield Finding(Check.OBJECT, path, f"is missing; {users} it")
            continue
        if (why := damage(data, files[path])) is not None:
            yield Finding(Check.OBJECT, path, f"{why}; {users} it")


def _files_since(store: Store, commits: dict[int, Commit], oldest: int) -> dict[str, _File]:
    """Returns the objects and bitmap files of version ``oldest`` and later ones, by path."""
    chunks = [chunk for _, chunk in unpage(store, manifest_of(store, commits[oldest])).chunks()]
    bitmaps: list[Bitmap | None] = []
    for version, commit in commits.items():
        if version > oldest:
            edit = edit_of(store, commit.record)
            chunks += [chunk for r in edit.replace for chunk in r.chunks]
            chunks += [chunk for _, chunk in edit.add.chunks] if edit.add is not None else []
            bitmaps += [mark.dead for mark in edit.dead]
            for masked in edit.masks:
                bitmaps += [masked.mask.superseded, masked.mask.tombstones]
    files: dict[str, _File] = {chunk.object.path: chunk.object for chunk in chunks}
    for chunk in chunks:
        mask = chunk.mask or ChunkMask()
        bitmaps += [chunk.dead, mask.superseded, mask.tombstones]
    found = (bitmap.bitmap for bitmap in bitmaps if bitmap is not None)
    return files | {file.path: file for file in found if isinstance(file, BitmapFile)}


def _view_findings(standing: StandingLog, manifest: Manifest) -> Iterator[Finding]:
    """Yields unreadable views, missing files, versions that a pin holds, and pins that do not move,
    as of the manifest's commit; nothing for a log that was not published. Costs, for each view, two
    LISTs and a GET for each version.
    """
    delay_ms = LogConfig.from_overrides(manifest.head.config).file_delete_delay_ms
    kept = kept_for_views(manifest, delay_ms, now_ms=manifest.time_ms)
    for name, pins in manifest.head.pins.items():
        if name not in FORMATS:
            continue
        found = partial(Finding, Check.VIEW, name)
        view, mine = view_of(standing, name), kept[name]
        remedy = f"publish it, or give it up with clog publish --withdraw --format {name}"
        if mine.is_stuck:
            yield found(
                f"the view keeps {mine.objects} objects of {mine.size_bytes} bytes whose deletion"
                f" was due {mine.overdue_ms // 1000} s ago: it needs version {pins[0].version};"
                f" {remedy}"
            )
        try:
            seen = view.look()
            if seen.is_foreign:
                raise foreign_table(view, url=standing.root.url)
            if pins[-1].view > seen.newest and manifest.time_ms - pins[-1].time_ms > delay_ms:
                yield found(
                    f"version {pins[-1].version} and all later ones are kept for version"
                    f" {pins[-1].view} of the view, which was never published; {remedy}"
                )
            if seen.log_id != standing.log_id:
                continue  # It was removed, or belongs to the log that was here before.
            named = view.named(seen, pins[0].view)
        except (CorruptionError, InvalidInputError) as e:
            yield found(str(e))
            continue
        folders = (documents.DATA, documents.VIEWS)
        there = {stored.path for folder in folders for stored in standing.store.list(folder)}
        for path in sorted(named - there):
            yield found(f"a readable version refers to {path}, which is missing")


def segment_findings(manifest: Manifest) -> Iterator[Finding]:
    """Yields the problems of the segments in a manifest whose pages are loaded. Pure."""
    columns = manifest.head.partitions
    for p, segments in enumerate(manifest.segments):
        problems = [
            f"segment [{before.base}, {before.next}) is followed by one at {after.base}"
            for before, after in pairwise(segments)
            if before.next != after.base
        ]
        problems += [message for s in segments for message in _chunk_problems(s)]
        active = segments[-1]
        if (active.base, active.next) != (columns.base[p], columns.end[p]):
            problems.append(
                f"the head's active segment is [{columns.base[p]}, {columns.end[p]}), the"
                f" manifest's [{active.base}, {active.next})"
            )
        if segments[0].base > columns.start[p]:
            problems.append(
                f"the first segment begins at {segments[0].base}, after the log start offset"
                f" {columns.start[p]}"
            )
        for message in problems:
            yield Finding(Check.SEGMENTS, f"partition {p}", message)


def _chunk_problems(segment: Segment) -> Iterator[str]:
    at = segment.base
    for c in segment.chunks:
        if c.base < at or c.next > segment.next or c.next - c.base < c.rows:
            yield (
                f"a chunk of {c.rows} rows at [{c.base}, {c.next}) does not fit into segment"
                f" [{segment.base}, {segment.next}) from {at} on"
            )
        at = c.next


def _commits(store: Store, findings: list[Finding]) -> dict[int, Commit]:
    """Returns the readable commits by version, except those left in closed blocks."""
    found = {}
    try:
        first = first_open_version(store)
    except CorruptionError:
        first = 0  # Reported again with the documents.
    listed = sorted(store.list(documents.COMMITS), key=lambda s: s.path)
    versions = [(documents.version_of(s.path), s.size_bytes) for s in listed]
    calls = [
        (partial(_commit_or_problem, store, version), size_bytes)
        for version, size_bytes in versions
        if version is not None and version >= first
    ]
    for version, commit in ahead(store, calls):
        if isinstance(commit, Commit):
            found[version] = commit
        elif isinstance(commit, CorruptionError):
            findings.append(Finding(Check.COMMIT, documents.commit_path(version), str(commit)))
    return found


def _commit_or_problem(store: Store, version: int) -> tuple[int, Commit | CorruptionError | None]:
    """Returns a commit, or its problem; None if its block was deleted in the meantime."""
    try:
        return version, read_commit(store, version)
    except CorruptionError as e:
        return version, e
    except FileNotFoundError:
        return version, None


def _behind_a_gap(store: Store, commits: dict[int, Commit], newest: int) -> Iterator[Finding]:
    """Yields the commits that no search finds because an earlier one is gone (COMMIT.md §6)."""
    for version in sorted(commits):
        if version <= newest + 1 or version - 1 in commits:
            continue
        if _commit_or_problem(store, version - 1)[1] is None:
            message = (
                f"the version before it, {version - 1}, is gone, so {newest} is taken for the"
                " newest; restore that file before anything is written to the log"
            )
            yield Finding(Check.COMMIT, documents.commit_path(version), message)


def history_findings(
    store: Store, commits: dict[int, Commit], manifest: Manifest
) -> Iterator[Finding]:
    """Yields the problems of the commits, and whether their edits differ from the opened state."""
    for version, commit in sorted(commits.items()):
        for message in _commit_problems(store, commits, commit):
            yield Finding(Check.COMMIT, documents.commit_path(version), message)
    yield from _replay_findings(store, commits, manifest)
    yield from document_findings(store, commits, manifest)
    yield from _older_findings(store, commits, manifest)


def _commit_problems(store: Store, commits: dict[int, Commit], commit: Commit) -> Iterator[str]:
    before = commits.get(commit.version - 1)
    if before is not None and (message := _succession_problem(store, before, commit)):
        yield message
    if message := _link_problem(commits, commit):
        yield message
    if lacks_edits(commit):
        yield (
            f"carries the edits of {len(commit.earlier)} versions before it, fewer than it"
            ' should: release 0.1.0 cannot read it; rewrite the log with "clog verify --repair"'
        )
    for record in commit.earlier:
        other = commits.get(record.version)
        if other is not None and other.record != record:
            yield f"carries an edit of version {record.version} other than the committed one"


def _link_problem(commits: dict[int, Commit], commit: Commit) -> str | None:
    """Returns the problem of the ids that connect the commit with what readers combine it with."""
    links: list[tuple[str, int, str | None]] = []
    if commit.earlier:
        first = commit.earlier[0]
        links.append(("the edits that it carries follow", first.version - 1, first.parent))
    if (ref := commit.head.snapshot) is not None:
        links.append(("its snapshot has", ref.version, ref.commit_id))
    for what, version, named in links:
        there = commits.get(version)
        if there is not None and named not in (None, there.record.commit_id):
            return f"{what} {named}, but version {version} is {there.record.commit_id}"
    return None


def _succession_problem(store: Store, before: Commit, commit: Commit) -> str | None:
    if commit.parent != before.record.commit_id:
        return (
            f"its parent is {commit.parent}, but version {before.version} is"
            f" {before.record.commit_id}"
        )
    try:
        is_earlier = goes_back_in_time(store, before.record, commit.record)
    except (CorruptionError, FileNotFoundError):
        is_earlier = False  # Reported by the replay.
    if is_earlier:
        return (
            f"its time {commit.record.time_ms} is before that of its parent,"
            f" {before.record.time_ms}"
        )
    rest, kept = commit.head.partitions.ref, before.head.partitions.ref
    if rest is not None and rest != kept and rest.version != before.version:
        return (
            f"its head refers to columns of version {rest.version}, which are neither those of"
            f" its parent's head nor those of version {before.version}"
        )
    return None


def _replay_findings(
    store: Store, commits: dict[int, Commit], manifest: Manifest
) -> Iterator[Finding]:
    """Yields a finding if the edits since the oldest state do not lead to the tip's state."""
    tip = commits.get(manifest.version)
    if tip is None:
        return  # Reported above.
    base_version = _oldest_base(commits, manifest.head.oldest_readable)
    records: list[EditRecord] = [
        commits[v].record
        for v in range(0 if base_version is None else base_version + 1, tip.version + 1)
        if v in commits
    ]
    where = "version 0" if base_version is None else documents.snapshot_path(base_version)
    try:
        base = None if base_version is None else unpage(store, read_snapshot(store, base_version))
        state = unpage(store, replay(store, base, records, tip))
    except (CorruptionError, FileNotFoundError) as e:
        yield Finding(Check.SNAPSHOT if base_version else Check.STATE, where, str(e))
        return
    for name in _REPLAYED:
        if getattr(state, name) != getattr(manifest, name):
            yield Finding(
                Check.STATE,
                where,
                f"replaying the edits from here gives other {name} at version {tip.version} than"
                " opening does",
            )


def _oldest_base(commits: dict[int, Commit], oldest_readable: int) -> int | None:
    """Returns the oldest named snapshot after which no commit is missing; None: use version 0."""
    first = min(commits)
    if first == 0:
        return None
    heads = [commit.head for version, commit in commits.items() if version >= oldest_readable]
    named = {head.snapshot.version for head in heads if head.snapshot is not None}
    return min((version for version in named if version >= first - 1), default=first)


def by_object(manifest: Manifest) -> dict[ObjectRef, list[tuple[int, Chunk]]]:
    """Returns, by object, the chunks that refer to it, with their partitions. Pure."""
    chunks: dict[ObjectRef, list[tuple[int, Chunk]]] = {}
    for p, chunk in manifest.chunks():
        chunks.setdefault(chunk.object, []).append((p, chunk))
    return chunks


def object_messages(
    store: Store,
    chunks: Mapping[ObjectRef, Sequence[tuple[int, Chunk]]],
    log: LogInfo,
    *,
    quick: bool,
    on_progress: OnProgress,
) -> Iterator[tuple[bool, str, str]]:
    """Yields, for each problem of an object, whether the object exists, its path, and a message;
    ``chunks`` refer to it. One LIST, and a GET for each object unless the check is ``quick``.
    """
    stored = {found.path: found.size_bytes for found in store.list(documents.DATA)}
    total = sum(ref.size_bytes for ref in chunks)
    done = 0
    on_progress(done, total)
    in_order = sorted(chunks, key=lambda ref: ref.path)
    calls = [
        (partial(_content, store, ref), ref.size_bytes)
        for ref in in_order
        if not quick and stored.get(ref.path) == ref.size_bytes
    ]
    contents = ahead(store, calls)
    for ref in in_order:
        size_bytes, referring = stored.get(ref.path), chunks[ref]
        is_read = not quick and size_bytes == ref.size_bytes
        content = next(contents) if is_read else None
        used = ", ".join(f"[{c.base}, {c.next}) of partition {p}" for p, c in referring[:3])
        used += ", …" if len(referring) > 3 else ""
        if size_bytes is None or (is_read and content is None):
            yield False, ref.path, f"is missing; it holds {used}"
        elif size_bytes != ref.size_bytes:
            message = (
                f"has {size_bytes} bytes, but the manifest says {ref.size_bytes}; it holds {used}"
            )
            yield True, ref.path, message
        elif content is not None:
            for message in object_problems(
                content, ref, referring, key_seed=log.key_seed, schema=log.schema
            ):
                yield True, ref.path, message
        done += ref.size_bytes
        on_progress(done, total)


def _content(store: Store, ref: ObjectRef) -> bytes | None:
    """Returns the object's bytes, and one more if it is too long; None if it is gone."""
    try:
        return store.get(ref.path, 0, ref.size_bytes + 1)
    except FileNotFoundError:
        return None


def object_problems(
    data: bytes,
    ref: ObjectRef,
    chunks: Iterable[tuple[int, Chunk]],
    *,
    key_seed: int,
    schema: LogSchema | None = None,
) -> Iterator[str]:
    """Yields the problems of an object, all of whose bytes are given; ``chunks`` are the pairs of
    (partition, chunk) that refer to it, ``key_seed`` and ``schema`` are the log's.
    """
    if (why := damage(data, ref)) is not None:
        yield why
        return
    try:
        footer, layout = data[-ref.footer_bytes :], layout_of(schema)
        read_footer(footer, rows=ref.rows, pages_end=ref.tail[0], kind=layout.kind)
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        # Other threads may let go of Python's bytes too late.
        table = layout.records(file.read(use_threads=False))
        problem = _schema_problem(table, schema)
        for batch in [] if problem else table.to_batches():
            check_rows(batch)
    except (pa.ArrowException, OSError, ValueError) as e:
        yield f"cannot be read: {e}"
        return
    if problem is not None:
        yield problem
        return
    if ref.dense == (OFFSET in table.schema.names):
        yield f"the manifest says dense={ref.dense}, but its columns are {table.schema.names}"
        return
    if ref.index_bytes:
        yield from _index_problems(data, ref, table.column("key"), key_seed)
    for p, chunk in chunks:
        rows = _with_all_columns(table.slice(chunk.first_row, chunk.rows))
        for message in _row_problems(rows, chunk):
            yield f"chunk [{chunk.base}, {chunk.next}) of partition {p}: {message}"


def _schema_problem(table: pa.Table, schema: LogSchema | None) -> str | None:
    """Returns the problem of the columns; ignores those of a newer clog."""
    names = table.schema.names
    missing = {"key", "value", "timestamp"} - set(names)
    if missing or len(set(names)) < len(names):
        return f"its columns are {names}"
    must_have_ids = schema is not None or any(map(has_ids, table.schema))
    named = table.schema if schema is None else named_columns(table.schema, schema)
    for field in column_types(schema).rewritten:
        if field.name not in names:
            continue
        found = named.field(names.index(field.name))
        if must_have_ids and (wrong := other_ids(found, with_ids(field))):
            return f"its columns {wrong} have field ids other than the format's"
        if found.type != field.type and not (schema and can_read(found.type, field.type)):
            kind = table.schema.field(field.name).type
            return f"its column {field.name} has type {kind}, expected {field.type}"
    return None


def _index_problems(
    data: bytes, ref: ObjectRef, keys: pa.ChunkedArray, key_seed: int
) -> Iterator[str]:
    """Yields the keys that are missing in an index, and would be taken for absent."""
    start = ref.tail[0]
    try:
        index = decode(data[start : start + ref.index_bytes])
    except DamagedIndexError as e:
        yield str(e)
        return
    if index is None:
        return  # It has a later version, which nothing here reads.
    if index.rows != ref.rows:
        yield f"its key index has {index.rows} rows, not {ref.rows}"
    for block, (start, end) in enumerate(pairwise(index.edges.tolist())):
        rows = keys.slice(start, end - start).combine_chunks()
        if missed := index.missing(block, index_hashes(rows, seed=key_seed)):
            yield f"its key index lacks {missed} keys of rows [{start}, {end})"


def _row_problems(rows: pa.Table, chunk: Chunk) -> Iterator[str]:
    if rows.num_rows != chunk.rows or not chunk.rows:
        yield f"has {rows.num_rows} rows, but the manifest says {chunk.rows}"
        return
    stated = {
        "size": chunk.size_bytes,
        "first timestamp": chunk.first_timestamp_ms,
        "largest timestamp": chunk.max_timestamp_ms,
        "tombstones": chunk.tombstones,
        "smallest delete horizon": chunk.horizon_min,
        "largest delete horizon": chunk.horizon_max,
    }
    for name, found in _facts(rows, chunk).items():
        if found != stated[name]:
            yield f"its {name} is {found}, but the manifest says {stated[name]}"
    if chunk.object.dense:
        return  # Offsets follow from the base, and the segments were checked.
    offsets = to_numpy(rows.column(OFFSET))
    if (np.diff(offsets) <= 0).any():
        yield "its offsets do not increase"
    elif offsets[0] < chunk.base or offsets[-1] >= chunk.next:
        yield f"its offsets are {offsets[0]} to {offsets[-1]}"


def _facts(rows: pa.Table, chunk: Chunk) -> dict[str, int]:
    """Returns what the manifest states about a chunk, computed from its rows."""
    if chunk.append_time_ms == NONE:
        times_ms = to_numpy(rows.column("timestamp")) // 1000
    else:
        times_ms = np.array([chunk.append_time_ms])
    horizons = to_numpy(rows.column(DELETE_HORIZON).drop_null())
    horizons = horizons[horizons >= 0]  # A sum that overflowed counts as none.
    return {
        "size": int(record_sizes(rows).sum()),
        "first timestamp": int(times_ms[0]),
        "largest timestamp": int(times_ms.max()),
        "tombstones": rows.column("value").null_count,
        "smallest delete horizon": int(horizons.min()) if len(horizons) else NONE,
        "largest delete horizon": int(horizons.max()) if len(horizons) else NONE,
    }


def _with_all_columns(table: pa.Table) -> pa.Table:
    """Returns the table with the columns that an object leaves out if they are all null."""
    for name in ("headers", DELETE_HORIZON):
        if name not in table.schema.names:
            field = REWRITTEN_SCHEMA.field(name)
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return table
