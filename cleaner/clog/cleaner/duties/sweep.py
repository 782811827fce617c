"""Deleting files that no readable version needs (COMMIT.md §5, W1 to W6).

Two kinds of garbage, two functions: *released* objects are known from the manifest, so
`sweep_released` lists nothing; *orphans* were never committed, or nothing refers to them any more,
and `sweep_orphans` finds them by listing, once a day, and deletes only what is older than a day.

`SweepSchedule` says when a sweep is due. The log itself records when it was last searched, since
cleaners come and go.

A wrong clock would remove tombstones before their horizon, expire segments, and delete objects that
readers still need. So a cleaner takes the time from a `WatchedClock`, which is compared with the
store's, by the mtime of an object just written, and with the log's newest commit, again whenever it
may have become wrong. A commit's own time is its committer's, and never below its parent's, so it
says nothing about age: what is deleted for its age is judged by the store's times. A manual clock
is never compared: with one, commits are as old as they say.

On a full disk the commit that must precede a deletion fails, so `with_room` makes room first:

D1. What committed bounds allow is deleted without writing a byte: released objects that no readable
    version needs, objects below the floor that were never committed, temporary files that are a day
    older than the newest commit. A sweep that died left them.
D2. The reserve is given up (`committer`).
D3. What is due by now is deleted as usual (`sweep_released`), in the room that this made.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from clog.cleaner.duties import Work
from clog.storage.administration import OF_A_CREATION, OF_A_FIRST_WRITE
from clog.storage.commit.committer import (
    SKEW_MS_MAX,
    ClockSkewError,
    NothingToCommit,
    give_up_reserve,
    is_comparable,
    store_now_ms,
)
from clog.storage.commit.handle import Handle
from clog.storage.commit.proposals import Waits, waits_of
from clog.storage.commit.tip import first_open_version, try_read
from clog.storage.config.log_config import LogConfig
from clog.storage.env import Clock, dataclass
from clog.storage.errors import CorruptionError, InvalidInputError, VersionExpiredError
from clog.storage.format import documents
from clog.storage.format.chunks import Released
from clog.storage.format.columns import INLINE_PARTITIONS_MAX
from clog.storage.format.commits import Commit, Edit, Head, edit_of, read_commit
from clog.storage.format.cuts import CutLogsAt
from clog.storage.format.manifest import Manifest, overdue, read_snapshot
from clog.storage.format.transactions import Combined, PositionsAt
from clog.storage.format.writers import WriterPages
from clog.storage.publications.delta import DeltaView
from clog.storage.publications.publish import foreign_table, view_of
from clog.storage.readers import Holds, StrayReaderError, read_holds, stored_reader
from clog.storage.store.contract import (
    Store,
    StoredObject,
    StoreFullError,
    StoreRefusedError,
    delete_all,
    is_temporary,
)
from clog.storage.view_formats import DELTA, FORMATS

_LOGGER = logging.getLogger(__name__)
_T = TypeVar("_T")

LOOK_MS = 600_000
"""How often the clock is compared with the store's."""
ORPHAN_AGE_MS = 86_400_000
"""An object that was written this long ago and is in no manifest will never be committed."""
PROPOSAL_MS = 3_600_000
"""A proposal this old is never committed."""
SWEEP_MS = 86_400_000
"""The minimum interval between sweeps of one log."""
_BEGINNINGS = tuple(begin for view in FORMATS.values() for begin in view.stray_beginnings)
"""How names of strays begin: rows and deletion vectors of Delta, rows of Iceberg, and what Iceberg
writes with each commit.
"""

Track = Callable[[Sequence[str]], Iterable[str]]
"""Yields the paths that are deleted, so that the caller can follow it."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep deleted or would delete."""

    objects: tuple[str, ...]
    size_bytes: int

    @classmethod
    def of(cls, found: Sequence[StoredObject | Released]) -> "Swept":
        return cls(tuple(o.path for o in found), sum(o.size_bytes for o in found))


def sweep_released(work: Work, *, dry_run: bool = False, track: Track = iter) -> Swept:
    """Deletes objects to which nothing has referred for ``file.delete.delay.ms`` (S27)."""
    handle, due = work.handle, due_released(work)
    if dry_run or not due:
        return Swept.of(due)
    if is_comparable(handle.clock):
        check_clock(handle, now_ms=work.now_ms)
    oldest = raise_oldest(handle, max(r.version for r in due))  # W4
    swept = Swept.of([r for r in due if r.version <= oldest])  # A view may be new.
    _delete(work.store, swept.objects, track)  # W5
    handle.commit(lambda _tip, _ms: Edit(forget=swept.objects), operation="sweep")  # W6
    return swept


def due_released(work: Work) -> list[Released]:
    """Returns what `sweep_released` deletes; makes no request if nothing is due or held."""
    config, now_ms = work.config, work.now_ms
    due = due_objects(work.manifest, config, now_ms=now_ms)
    if due:
        holds = read_holds(work.handle, config, now_ms=now_ms)
        due = not_held(due, config, holds, now_ms=now_ms)
    return due


def raise_oldest(handle: Handle, version: int) -> int:
    """Commits that versions before this one are no longer readable, unless that is already so, and
    as far as no published view or named cut needs them; returns the oldest readable version then.
    """

    def prepare(tip: Commit, _: int) -> Edit | NothingToCommit:
        pinned = tip.head.lowest_needed()
        oldest = version if pinned is None else min(version, pinned)
        if tip.head.oldest_readable >= oldest:
            return NothingToCommit()
        return Edit(oldest_readable=oldest)

    handle.commit(prepare, operation="sweep")
    return handle.tip.head.oldest_readable


def due_objects(manifest: Manifest, config: LogConfig, *, now_ms: int) -> list[Released]:
    """Returns released objects that are overdue and that no published view or named cut needs."""
    pinned = manifest.head.lowest_needed()
    due = overdue(manifest, config.file_delete_delay_ms, now_ms=now_ms)
    return [r for r in due if pinned is None or r.version <= pinned]


def not_held(
    due: list[Released], config: LogConfig, holds: Holds, *, now_ms: int
) -> list[Released]:
    """Returns the due objects that no reader holds with its version (S64)."""
    delay_ms = config.file_delete_delay_ms
    held = (
        r.version
        for r in due
        if holds.keeps_version(r.version, r.time_ms + delay_ms, now_ms=now_ms)
    )
    first = min(held, default=None)
    return due if first is None else [r for r in due if r.version < first]


def sweep_orphans(
    work: Work, *, age_ms: int = ORPHAN_AGE_MS, dry_run: bool = False, track: Track = iter
) -> Swept:
    """Raises the orphan floor to what was the newest version ``age_ms`` ago, then deletes objects
    with a stamp below it to which no readable version refers, and documents and temporary files of
    that age:

    - documents: snapshots, pages, edits, positions. They have no stamp, so their age is the
      store's. A writer that slept over a page or an edit can do no harm: since it was written a
      version was committed, the one that the writer was about to create. A snapshot that refers to
      a page deleted in this way may appear; no head ever names it;
    - files of published views that no version of these names any more (FORMAT.md §14). A publisher
      may sleep for any time between such a file and the version of the view that names it; once
      that version exists, whoever created it, the publisher cannot create it again;
    - proposals (FORMAT.md §21), which `ProposalSweep` deletes within minutes while there are
      answers;
    - positions of readers that say themselves that they may be forgotten (FORMAT.md §18); one that
      cannot be read may be from a newer release, and stays until it is forgotten by its name;
    - in ``_clog/`` beside the log's own folder, what was left by a creator that died before it
      created ``_clog/log``, or lost that race: a first commit, or the objects of a first write, and
      nothing else can never become a log while another is there. Any other folder held a log that
      was deleted in part or is being restored: a warning names it;
    - at the log's root, what writers of a Delta view left when they were refused, which happens
      after their work. It is deleted only if nothing else can be meant: the newest version of the
      view is clog's, of this log, and keeps others out; the name is one that Delta's writers give,
      at the root itself; the file was written since the view was first published; and no remaining
      version names it. Everything else is reported and left, including rows of Iceberg in
      ``data/``, as a catalog elsewhere may name them in its own table.
    """
    handle, store, old_ms = work.handle, work.store, work.now_ms - age_ms
    if is_comparable(handle.clock):
        check_clock(handle, now_ms=work.now_ms, dry_run=dry_run)
    floor = max(newest_by(handle, store, old_ms), handle.tip.head.orphan_floor)
    documents_ms = old_ms
    if not dry_run:
        handle.commit(lambda tip, _: _raised(tip, floor), operation="floor")  # W1
        documents_ms = min(old_ms, handle.tip.record.time_ms - SKEW_MS_MAX)
    orphans = _orphans(handle, store, floor, documents_ms)  # W2: at or after the floor's commit
    if not dry_run:
        _delete(store, [found.path for found in orphans], track)  # W3

    def gone(found: list[StoredObject]) -> list[StoredObject]:
        _delete(store, [each.path for each in found if not dry_run])
        return found

    forgotten = gone(_expired_readers(store, before_ms=old_ms))
    forgotten += gone(_old_proposals(handle, before_ms=old_ms))
    forgotten += gone(_left_requests(handle, floor))
    left = gone([t for t in store.list_temporary("") if t.modified_ms < old_ms])
    root, beside = handle.standing.root, _left_beside_views(handle, before_ms=old_ms)
    _delete(root, [each.path for each in beside if not dry_run])
    others = sweep_other_logs(handle, before_ms=old_ms, dry_run=dry_run)
    strays = _sweep_strays(handle, before_ms=old_ms, dry_run=dry_run)
    return Swept.of([*orphans, *forgotten, *left, *beside, *others, *strays])


def _delete(store: Store, paths: Sequence[str], track: Track = iter) -> None:
    """Deletes files; ``track`` yields each one before the deletion is waited for."""
    for _ in zip(track(paths), delete_all(store, paths), strict=True):
        pass


def _orphans(handle: Handle, store: Store, floor: int, old_ms: int) -> list[StoredObject]:
    """Returns the objects with a stamp below the floor, and documents written before ``old_ms``."""
    tip = handle.tip
    try:
        return _orphans_at_tip(handle, store, floor, old_ms)
    except (FileNotFoundError, VersionExpiredError) as e:
        # Another cleaner closed a block or swept: newer versions no longer need it.
        if handle.refresh() is tip:
            handle.standing.check()
            raise CorruptionError(
                f"the newest version of {store.url}, {tip.version}, needs a missing file: {e};"
                " nothing was deleted"
            ) from e
        return _orphans_at_tip(handle, store, floor, old_ms)


def _orphans_at_tip(handle: Handle, store: Store, floor: int, old_ms: int) -> list[StoredObject]:
    manifest = handle.manifest()
    needed = {*manifest.files(), *(r.path for r in manifest.released)}
    objects = [
        found
        for found in store.list(documents.DATA)
        if found.path not in needed
        and (stamp := documents.stamp_of(found.path)) is not None
        and stamp < floor
    ]
    others = _unneeded_documents(store, handle.tip, floor, before_ms=old_ms)
    return [*objects, *others, *_unneeded_view_files(handle, store, before_ms=old_ms)]


def _raised(tip: Commit, floor: int) -> Edit | NothingToCommit:
    return NothingToCommit() if tip.head.orphan_floor >= floor else Edit(orphan_floor=floor)


class SweepSchedule:
    """Says when a log is due for `sweep_orphans`; most checks cost nothing.

    A sweep raises the orphan floor to what was the newest version `ORPHAN_AGE_MS` before it. So at
    the time of the sweep the version after the floor was younger than that, and once this version
    is `SWEEP_MS` older still, the last sweep is at least `SWEEP_MS` ago, whichever cleaner did it.
    A log on which nothing but sweeps has happened since is left alone: what has the stamp of its
    newest version may still be committed (FORMAT.md §6).
    """

    def __init__(self) -> None:
        self._after_floor = (-1, 0)
        self._quiet_version = -1

    def is_due(self, work: Work) -> bool:
        """Returns whether the last sweep was long enough ago. Costs one request for each floor,
        once the log is old enough, and one for each commit since while sweeps alone made them.
        """
        handle, before_ms = work.handle, work.now_ms - ORPHAN_AGE_MS - SWEEP_MS
        tip, floor = handle.tip, handle.tip.head.orphan_floor
        is_young = before_ms < tip.head.log.created_ms <= work.now_ms  # Else a clock was ahead.
        if tip.version <= floor or is_young:
            return False
        if self._after_floor[0] != floor:
            # If it is gone, it is so old that its block was closed.
            self._after_floor = (floor, written_ms(handle, handle.store, floor + 1) or 0)
        if self._after_floor[1] > before_ms or tip.version == self._quiet_version:
            return False
        if all(_is_by_a_sweep(handle, v) for v in range(floor + 1, tip.version + 1)):
            self._quiet_version = tip.version
            return False
        return True


def _is_by_a_sweep(handle: Handle, version: int) -> bool:
    try:
        edit = edit_of(handle.store, read_commit(handle.store, version).record)
    except FileNotFoundError:
        return False
    combined = edit.combined
    if combined is not None and not combined.authors:  # Any commit forgets answers.
        combined = None
    return replace(edit, orphan_floor=None, combined=combined) == Edit()


def _unneeded_documents(
    store: Store, tip: Commit, floor: int, *, before_ms: int
) -> list[StoredObject]:
    """Returns the leftover documents that were written before ``before_ms``; the tip must be
    younger for them to be deleted.

    ``floor``: a version from before that time: what later heads have dropped was written later.

    Costs a LIST for each kind (for columns only in a log that may have some); if anything is old, a
    GET for each snapshot that is kept, for each page of older writers that is above others, and for
    each commit if an edit has its own document.
    """
    oldest = read_commit(store, tip.head.oldest_readable)
    first = -1 if oldest.head.snapshot is None else oldest.head.snapshot.version
    snapshots = {
        documents.version_of(found.path): found for found in store.list(documents.SNAPSHOTS)
    }
    old = [found for v, found in snapshots.items() if v is not None and v < first]
    pages = _before(store.list(documents.PAGES), before_ms)
    if pages:
        needed = {
            page for v in snapshots if v is not None and v >= first for page in _pages(store, v)
        }
        heads = (oldest.head, _head_at(store, floor, tip))
        needed |= _writer_pages(store, tip.head, older=heads)
        needed |= {path for head in (*heads, tip.head) for path in _positions(head)}
        cuts = [cut.logs for cut in tip.head.cuts.values()]
        needed |= {logs.path for logs in cuts if isinstance(logs, CutLogsAt)}
        old += [found for found in pages if found.path not in needed]
    if tip.head.log.partitions > INLINE_PARTITIONS_MAX:
        old += _columns_before(store, oldest)
    edits = _before(store.list(documents.EDITS), before_ms)
    if edits:
        committed = set(_committed_edits(store, tip))
        old += [found for found in edits if found.path not in committed]
    old += store.list(documents.CLOCKS)  # left by a killed comparison of clocks
    return _before(iter(old), before_ms)


def _before(found: Iterator[StoredObject], before_ms: int) -> list[StoredObject]:
    return [
        document
        for document in found
        if document.modified_ms < before_ms and _is_document(document.path)
    ]


def _is_document(path: str) -> bool:
    """Returns whether clog makes files of this name: foreign files stay, wherever they are."""
    versions = documents.version_of(path), documents.columns_version_of(path)
    return versions != (None, None) or documents.is_unversioned(path)


def _pages(store: Store, version: int) -> Iterator[str]:
    try:
        yield from (page.path for page in read_snapshot(store, version).pages)
    except FileNotFoundError:
        return  # Another sweep found it unneeded.


def _columns_before(store: Store, oldest: Commit) -> Iterator[StoredObject]:
    """Yields the columns of versions before those to which a head from the oldest one on refers."""
    rest = oldest.head.partitions.ref
    first = oldest.version if rest is None else rest.version
    for found in store.list(documents.COLUMNS):
        version = documents.columns_version_of(found.path)
        if version is not None and version < first:
            yield found


def _positions(head: Head) -> Iterator[str]:
    """Yields the documents of positions; entries in pages have theirs inline (FORMAT.md §11.1)."""
    for entry in head.writers:
        if entry.transaction is not None and isinstance(entry.transaction.positions, PositionsAt):
            yield entry.transaction.positions.path


def _writer_pages(store: Store, newest: Head, *, older: Iterable[Head]) -> set[str]:
    pages = WriterPages(store)
    found = set() if newest.older_writers is None else {*pages.paths(newest.older_writers)}
    for root in {head.older_writers for head in older if head.older_writers is not None}:
        with suppress(FileNotFoundError):  # Another sweep found it unneeded.
            found.update(pages.paths(root))
    return found


def _head_at(store: Store, version: int, tip: Commit) -> Head:
    try:
        return read_commit(store, version).head
    except FileNotFoundError:
        return tip.head  # It was deleted with its block, so it is no longer readable.


def _committed_edits(store: Store, tip: Commit) -> Iterator[str]:
    """Yields the paths of edits to which a commit that still exists refers."""
    for version in range(first_open_version(store), tip.version + 1):
        try:
            commit = read_commit(store, version)
        except FileNotFoundError:
            continue
        for record in (*commit.earlier, commit.record):
            if at := record.stored.get("edit_at"):
                yield at["path"]


def sweep_other_logs(handle: Handle, *, before_ms: int, dry_run: bool) -> list[StoredObject]:
    """Deletes what dead creators left before ``before_ms``, and readers of deleted logs, and
    returns it; names folders of other logs in a warning. One LIST of ``_clog/``, one of its
    temporary files, and one GET if there is something to delete.
    """
    root, mine = handle.standing.root, documents.folder_of(handle.standing.log_id)
    folders: dict[str, list[StoredObject]] = {}
    dead: list[StoredObject] = []
    for found in [*root.list(documents.FOLDERS), *root.list_temporary(documents.FOLDERS)]:
        log_id, _, rest = found.path.removeprefix(documents.FOLDERS).partition("/")
        if not rest and is_temporary(found.path) and found.modified_ms < before_ms:
            dead.append(found)
        elif rest and documents.is_log_id(log_id) and documents.folder_of(log_id) != mine:
            folders.setdefault(log_id, []).append(found)
    for log_id, files in sorted(folders.items()):
        skip = len(documents.folder_of(log_id)) + 1
        whole = {found.path[skip:] for found in files if not is_temporary(found.path)}
        others = (OF_A_FIRST_WRITE, documents.READERS)
        if whole <= OF_A_CREATION or any(all(n.startswith(o) for n in whole) for o in others):
            if max(found.modified_ms for found in files) < before_ms:
                dead += files
            continue
        _LOGGER.warning(
            "%s/%s has %d files of another log, which is not here; delete the folder if it is not"
            " needed",
            *(root.url, documents.folder_of(log_id), len(files)),
        )
    if dead and not dry_run:
        handle.standing.check()
        for found in dead:
            root.delete(found.path)
    return dead


class ProposalSweep:
    """Deletes proposals that no commit will include (FORMAT.md §21). Remembers after which answers
    none was left, so that a log without proposals costs nothing.

    Attributes:
        waits: how long authors had waited at the last LIST.
    """

    def __init__(self) -> None:
        self.waits = Waits()
        self._left_none: Combined | None = None

    def is_due(self, work: Work) -> bool:
        """Returns whether there may be any. Makes no request."""
        combined = work.head.combined
        return combined is not None and combined != self._left_none

    def run(self, work: Work) -> Swept:
        """Deletes proposals that are answered, forgotten or an hour old; a LIST, a DELETE each."""
        store, combined = work.store, work.handle.tip.head.combined
        if combined is None:
            return Swept((), 0)
        listed = [f for f in store.list(documents.PROPOSALS) if documents.proposal_of(f.path)]
        self.waits = waits_of(listed, combined, now_ms=work.now_ms)
        over = [f for f in listed if _is_over(f, combined, work.now_ms - PROPOSAL_MS)]
        _delete(store, [found.path for found in over])
        self._left_none = combined if len(over) == len(listed) else None
        return Swept.of(over)


def _is_over(found: StoredObject, combined: Combined, before_ms: int) -> bool:
    stamp, author, number, _ = documents.proposal_of(found.path) or (0, "", 0, 0)
    answer = combined.of(author)
    is_answered = answer is not None and answer.number >= number
    return is_answered or stamp < combined.first or found.modified_ms < before_ms


def _old_proposals(handle: Handle, *, before_ms: int) -> list[StoredObject]:
    """Returns proposals written before a time; one LIST."""
    listed = handle.store.list(documents.PROPOSALS)
    return [
        found
        for found in listed
        if found.modified_ms < before_ms and documents.proposal_of(found.path)
    ]


def _left_requests(handle: Handle, floor: int) -> list[StoredObject]:
    """Returns documents of erasures, older than the floor, that the log does not name; a LIST."""
    known = handle.manifest().erasures
    left = [
        found
        for found in handle.store.list(documents.ERASURES)
        if (name := documents.erasure_of(found.path)) is not None and name not in known
    ]
    before_ms = _stored_ms(handle.store, floor) if left else None
    return [f for f in left if before_ms is not None and f.modified_ms < before_ms - SKEW_MS_MAX]


def _expired_readers(store: Store, *, before_ms: int) -> list[StoredObject]:
    """Returns the documents that expired before a time; a LIST, a GET for each written before."""
    old = (found for found in store.list(documents.READERS) if found.modified_ms < before_ms)
    return [found for found in old if _is_expired(store, found.path, before_ms)]


def _is_expired(store: Store, path: str, before_ms: int) -> bool:
    name = documents.reader_name_of(path)
    if name is None:
        return False
    try:
        return stored_reader(store, name).expires_ms < before_ms
    except (FileNotFoundError, StrayReaderError):
        return False


def _sweep_strays(handle: Handle, *, before_ms: int, dry_run: bool) -> list[StoredObject]:
    """Deletes what refused writers of Delta left before ``before_ms``, and returns it; names it,
    and what other writers left, in warnings. Costs four LISTs in a log that was published, and
    those of the view if anything of Delta's is old.
    """
    if not handle.tip.head.pins:
        return []
    root = handle.standing.root
    strays = [found for begin in _BEGINNINGS for found in root.list(begin)]
    dead = _dead(handle, [found for found in strays if found.modified_ms < before_ms])
    if dead:
        handle.standing.check()
        dead += _checksums(root, dead)
    gone = set(dead)
    _log_strays(root, dead, "refused writers of its view", "they are swept")
    _log_strays(
        root,
        [found for found in strays if found not in gone],
        "another writer of its view",
        "no reader sees them; a day after they were written, the sweep deletes those that only a"
        " refused Delta writer can have left; delete the others if they are not needed",
    )
    for found in dead if not dry_run else ():
        root.delete(found.path)
    return dead


def _dead(handle: Handle, old: Sequence[StoredObject]) -> list[StoredObject]:
    if not old or DELTA.name not in handle.tip.head.pins:
        return []
    view = DeltaView(handle.standing)
    try:
        return view.left_by_refused(view.look(), old)
    except CorruptionError as e:
        _LOGGER.warning(
            "files at %s cannot be compared with its view: %s", handle.standing.root.url, e
        )
        return []


def _checksums(root: Store, dead: Sequence[StoredObject]) -> list[StoredObject]:
    """Returns the files that Hadoop keeps beside others on local filesystems."""
    names = {f".{found.path}.crc" for found in dead}
    begins = [f".{begin}" for begin in _BEGINNINGS if "/" not in begin]
    return [found for begin in begins for found in root.list(begin) if found.path in names]


def _log_strays(root: Store, files: Sequence[StoredObject], owner: str, then: str) -> None:
    if files:
        _LOGGER.warning(
            "%s has %d files of %d bytes that %s left, such as %s; %s",
            *(root.url, len(files), sum(f.size_bytes for f in files), owner, files[0].path, then),
        )


def _unneeded_view_files(handle: Handle, store: Store, *, before_ms: int) -> list[StoredObject]:
    """Returns the files of views that were written before ``before_ms`` and that nothing names;
    those of an unreadable view stay. Costs a LIST in a log that was published, and if anything is
    old, a LIST of each view and a GET for each of its versions.
    """
    if not handle.tip.head.pins:
        return []
    old: dict[str, list[tuple[int, StoredObject]]] = {}
    for found in store.list(documents.VIEWS):
        if (of := documents.view_of(found.path)) is not None and found.modified_ms < before_ms:
            old.setdefault(of[0], []).append((of[1], found))
    unneeded: list[StoredObject] = []
    for name, files in old.items():
        if name not in FORMATS:
            continue
        view = view_of(handle.standing, name)
        try:
            seen = view.look()
            if seen.is_foreign:
                raise foreign_table(view, url=handle.standing.root.url)
            known = {found.path: number for number, found in files if number <= seen.newest}
            unnamed = view.unnamed(seen, known)
        except (CorruptionError, InvalidInputError, StoreRefusedError) as e:
            url, why = store.url, str(e)
            _LOGGER.warning("files of the %s view of %s are not swept: %s", name, url, why)
            continue
        unneeded += [found for _, found in files if found.path in unnamed]
    return unneeded


def _left_beside_views(handle: Handle, *, before_ms: int) -> list[StoredObject]:
    """Returns old temporary files beside the log's views, for which erasures would wait."""
    rows = [row for name, row in FORMATS.items() if name in handle.tip.head.pins]
    found = (file for row in rows for file in handle.standing.root.list_temporary(row.folder))
    return [file for file in found if file.modified_ms < before_ms]


class WatchedClock:
    """The wall clock by which one log's cleaner makes decisions. Thread-safe."""

    def __init__(self, handle: Handle, clock: Clock) -> None:
        self._handle = handle
        self._clock = clock
        self._looked: tuple[int, int] | None = None

    def now_ms(self) -> int:
        """Returns the time. Compares it with the store's every `LOOK_MS`, and whenever the
        monotonic clock shows that it may be wrong by more than `SKEW_MS_MAX`: it was set since the
        last look, in one step or in many, or the machine slept.
        """
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        if is_comparable(self._clock) and self._is_due(now_ms, monotonic_ms):
            ahead_ms = check_clock(self._handle, now_ms=now_ms)
            self._looked = monotonic_ms, now_ms - ahead_ms
        return now_ms

    def _is_due(self, now_ms: int, monotonic_ms: int) -> bool:
        if self._looked is None:
            return True
        looked_ms, store_ms = self._looked
        since_ms = monotonic_ms - looked_ms
        return since_ms >= LOOK_MS or abs(now_ms - store_ms - since_ms) > SKEW_MS_MAX


def check_clock(handle: Handle, *, now_ms: int, dry_run: bool = False) -> int:
    """Compares the clocks; costs a PUT, a LIST of one name and a DELETE. A dry run writes nothing,
    so it only looks at the newest commit's time. Returns by how much this machine's clock is ahead
    of the store's, 0 if that is not known.
    """
    behind_ms = handle.tip.record.time_ms - now_ms
    if behind_ms > SKEW_MS_MAX:
        hint = "or, if it is right and a writer's was ahead, run: clog alter URL --reset-times"
        raise ClockSkewError(_refusal(handle, now_ms, "the newest commit", behind_ms, hint))
    if dry_run:
        return 0
    store_ms = store_now_ms(handle.store, clock=handle.clock, ids=handle.ids)
    if store_ms is None:
        return 0
    if abs(store_ms - now_ms) > SKEW_MS_MAX:
        hint = "or the store's if that one is wrong (compare both with `date -u`)"
        raise ClockSkewError(_refusal(handle, now_ms, "the store", store_ms - now_ms, hint))
    return now_ms - store_ms


def _refusal(handle: Handle, now_ms: int, other: str, ahead_ms: int, hint: str) -> str:
    return (
        f"the clocks differ by {abs(ahead_ms)} ms, more than {SKEW_MS_MAX}: this machine's shows"
        f" {now_ms} ms, {other} of {handle.store.url} {now_ms + ahead_ms}; nothing was changed;"
        f" set this machine's clock (NTP), {hint}"
    )


def written_ms(handle: Handle, store: Store, version: int) -> int | None:
    """Returns when a commit was written, None if it is gone; one LIST of one name, or a GET."""
    if is_comparable(handle.clock):
        return _stored_ms(store, version)
    commit = try_read(store, version)
    return None if commit is None else commit.record.time_ms


def _stored_ms(store: Store, version: int) -> int | None:
    """Returns when a commit was written, by the store's clock; None if it is gone; one LIST."""
    found = store.list(documents.commit_path(version))
    return next((commit.modified_ms for commit in found), None)


def newest_by(handle: Handle, store: Store, time_ms: int) -> int:
    """Returns the newest version written at or before the time, 0 if there is none, by bisection:
    what was deleted with its block is older than anything that is left.
    """
    low, high = 0, handle.tip.version
    while low < high:
        middle = (low + high + 1) // 2
        at_ms = written_ms(handle, store, middle)
        low, high = (middle, high) if at_ms is None or at_ms <= time_ms else (low, middle - 1)
    return low


def with_room(work: Work, step: Callable[[], _T]) -> _T:
    """Does a step of maintenance; if the disk is full, makes room and does it once more."""
    handle = work.handle
    try:
        return step()
    except StoreFullError as e:
        freed = _delete_allowed(handle, work.store)  # D1
        has_released = give_up_reserve(handle.store)  # D2
        if not (freed or has_released):
            raise
        swept = sweep_released(replace(work, now_ms=handle.clock.now_ms()))  # D3
        _LOGGER.warning(
            "the disk of %s is full; deleted %d unneeded files of %d bytes%s (%s)",
            *(handle.store.url, len(freed) + len(swept.objects)),
            sum(found.size_bytes for found in freed) + swept.size_bytes,
            ", and released the reserve" if has_released else "",
            e,
        )
        return step()


def _delete_allowed(handle: Handle, store: Store) -> list[StoredObject]:
    """Does D1, and returns what was deleted. Depends on no clock but the disk's own."""
    handle.refresh()
    manifest = handle.manifest()
    alive, head = manifest.files(), manifest.head
    last = {r.path: r.version for r in manifest.released}  # in the order of their versions
    dead: list[StoredObject] = []
    for found in store.list(documents.DATA):
        stamp = documents.stamp_of(found.path)
        if found.path in alive or stamp is None:
            continue
        released = last.get(found.path)
        if head.may_be_swept(stamp) if released is None else released <= head.oldest_readable:
            dead.append(found)
    written = [found.modified_ms for found in store.list(documents.commit_path(manifest.version))]
    before_ms = max(written, default=0) - ORPHAN_AGE_MS
    dead += [found for found in store.list_temporary("") if found.modified_ms < before_ms]
    for found in dead:
        store.delete(found.path)
    return dead
