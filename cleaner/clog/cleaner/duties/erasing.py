"""Carrying erasures out (S59, FORMAT.md §17), step by step (COMMIT.md §8).

E3. All rows of the keys of all waiting erasures are found in one pass over the objects, by what is
    in them, whatever refers to it, and killed by one commit (`_kill`).
E4. All chunks of the objects that held one are rewritten, as `layout` does it: row groups with such
    rows are encoded anew. Later erasures of a round share that.
E5. What was replaced is deleted by the round's sweep; then orphans are swept, once that is allowed,
    and documents are searched for names that are keys.
E6. Tombstones that informed followers are removed like the other rows.
E7. Everything under the root is listed, the store forgets old versions, the request is deleted, and
    the receipt is written.

The entry of an erasure says how far it is. A round takes it as far as it can; `pending_reason`
reports what holds it up, except what only an attempt can find out, which the entry then records.
"""

import hashlib
import logging
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.cleaner.duties import Work
from clog.cleaner.duties.layout import Run, neighbours_of, relaid
from clog.cleaner.duties.sweep import newest_by, sweep_orphans
from clog.storage.commit.committer import NothingToCommit
from clog.storage.diagnostics.describe import SWEEP_AFTER_MS, tombstones_due_ms, undecided_below
from clog.storage.env import dataclass
from clog.storage.erasures import OPERATION, newest_receipts
from clog.storage.errors import CommitConflictError, CorruptionError
from clog.storage.format import documents
from clog.storage.format.chunks import (
    Chunk,
    DeadMark,
    ObjectRef,
    Replacement,
    read_bitmap,
    write_dead_rows,
)
from clog.storage.format.columns import new_jitter_ms
from clog.storage.format.commits import Commit, Edit
from clog.storage.format.documents import NONE
from clog.storage.format.erasures import (
    ErasureEntry,
    Erasures,
    Held,
    Receipt,
    read_receipt,
    read_request,
    receipt_to_json,
)
from clog.storage.format.log_info import LogSchema
from clog.storage.format.manifest import Manifest, apply
from clog.storage.keys.hashing import key_bytes, partitions_for
from clog.storage.keys.key_index import IndexHashes, index_hashes
from clog.storage.numpy_arrays import Mask, Offsets, of_bytes, to_numpy
from clog.storage.objects.reader import read_rows
from clog.storage.read.scan import asked_bytes, stored_index
from clog.storage.readers import NO_HOLDS, Holds, read_holds
from clog.storage.store.contract import ObjectExistsError, Store, StoreRefusedError, ahead
from clog.storage.view_formats import FORMATS

TRIES_MAX = 5
_KINDS = {
    documents.COMMITS: "commit",
    documents.EDITS: "edit",
    documents.SNAPSHOTS: "snapshot",
    documents.PAGES: "page",
    documents.READERS: "reader",
    documents.PROPOSALS: "proposal",
}
"""The kinds of documents with names, by folder."""
_NAMES = {"id", "name", "column", "writers", "query_id", "mark", "config"}
_NAMING = {"cuts", "foreign"}
"""Fields that contain names and settings, and those whose own keys are names; the verifier has the
same (`diagnostics.verify_erasure`).
"""
_LOGGER = logging.getLogger(__name__)
_T = TypeVar("_T")
_Asked = Mapping[str, list[bytes]]
"""The keys of erasures, by their ids."""
_SEARCHED = (
    "the rows of all data objects, including dead rows and rows that no version shows",
    "bitmaps, key indexes and footers, which were removed with the objects that held such rows",
    "readable versions, replaced objects, and uncommitted files",
    "published views and named cuts, which released the earlier versions",
    "every file under the root, by its name",
)
_NOT_SEARCHED = (
    "everything outside the root: state tables' files, mirrors, exports, checkpoints, back-ups",
    "names of writers, queries, readers, transactions, sources and cuts, and settings: see ids",
    "hashes of the content of appends, and of whole objects, in commits before the request",
)
_AT_THE_ROOT = re.compile(
    rf"{documents.LOG_FILE}|\.probe-[0-9a-f]{{32}}"
    r"|(?:_delta_log|metadata)/\.probe\.[0-9a-f]{32}\.tmp"
    r"|_delta_log/(?:[0-9]{20}(?:\.checkpoint\.parquet|\.json)|_last_checkpoint)"
    r"|metadata/(?:v[0-9]+\.metadata\.json|version-hint\.text)"
)
"""Files beside the log's folder: the log's, a probe's, and those of published views."""
_NOT_FORGOTTEN = (
    "old versions and deleted objects that the store may keep, since it cannot be queried for them"
)


def carry_out(work: Work) -> int:
    """Takes each erasure as far as it can, up to E6; returns the number of rows killed.

    Raises:
        CorruptionError: a document of an erasure is gone; the others were taken further.
    """
    killed, lost = 0, _Lost()
    with suppress(_AdvancedError):  # The next round continues.
        killed = _kill(work, lost)
        relaid(work, _due_runs, OPERATION)
        _note_rewritten(work)
        _sweep(work, lost)
    lost.check()
    return killed


def swept(work: Work) -> Erasures:
    """Returns the erasures of which E7 is left."""
    return {name: one for name, one in work.manifest.erasures.items() if one.swept != NONE}


def end_swept(work: Work) -> int:
    """Ends those erasures (E7), unless something holds them up; returns how many ended; raises as
    `carry_out`.
    """
    ended, lost = 0, _Lost()
    with suppress(_AdvancedError):
        ended = _end(work, swept(work), lost)
    lost.check()
    return ended


class _AdvancedError(Exception):
    """Another cleaner has taken an erasure further in the meantime."""


class _Lost:
    """Why erasures cannot be taken further: their documents are gone or damaged, as blocks found
    that entered this.
    """

    def __init__(self) -> None:
        self._why: list[CorruptionError] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, e: BaseException | None, trace: object) -> bool:
        if isinstance(e, CorruptionError):
            self._why.append(e)
        return isinstance(e, CorruptionError)

    def check(self) -> None:
        """Raises if one was noted."""
        if self._why:
            raise self._why[0]


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    """The keys that are looked for, each once, and which of them belong to an erasure."""

    keys: pa.Array
    members: Mapping[str, Mask]
    entries: Mapping[str, ErasureEntry]
    home: Offsets


@dataclass(slots=True, eq=False)
class _Found:
    """What holds rows of the keys.

    Attributes:
        killed: by partition and identity, the chunks in which rows die, with all their dead rows.
        held: by erasure, the objects.
        last: by partition, the highest offset of a dying tombstone that informed followers.
        untold: partitions that lose a row without a tombstone that says so.
        rows: the number of live rows that die.
    """

    killed: dict[tuple[int, tuple[str, int]], tuple[Chunk, Mask]] = field(default_factory=dict)
    held: dict[str, list[Held]] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    untold: set[int] = field(default_factory=set)
    rows: int = 0


def _kill(work: Work, lost: _Lost) -> int:
    """Does E3; returns how many live rows were killed."""
    holds = cache(lambda: read_holds(work.handle, work.config, now_ms=work.now_ms))
    for _ in range(TRIES_MAX):
        planned = work.manifest
        due = {n: one for n, one in planned.erasures.items() if _is_due(work, one, holds)}
        asked = _keys_of(work, due, lost)
        if not asked:
            return 0
        if (rows := _killed(work, planned, {name: due[name] for name in asked}, asked)) is not None:
            return rows
        work.handle.refresh()
    return 0  # Another writer changes the same chunks; the next round tries again.


def _is_due(work: Work, one: ErasureEntry, holds: Callable[[], Holds]) -> bool:
    """Returns whether rows of its keys may be killed now; asks for ``holds`` if they decide it."""
    if not one.kills:
        return False
    due_ms = partial(tombstones_due_ms, one, work.config)
    if one.killed != NONE and (due_ms(NO_HOLDS) > work.now_ms or due_ms(holds()) > work.now_ms):
        return False
    return not undecided_below(work.head, one.bounds)


def _killed(work: Work, planned: Manifest, due: Erasures, asked: _Asked) -> int | None:
    """Kills rows of erasures in one commit; returns how many, None if others changed them."""
    handle = work.handle
    found = _found(work.store, planned, _wanted(planned, due, asked))
    dead: list[DeadMark] = []
    emptied: list[Replacement] = []
    for (p, identity), (chunk, rows) in found.killed.items():
        if rows.all():
            emptied.append(Replacement(p, chunk.base, chunk.next, (identity,), ()))
            continue
        since_ms = work.now_ms if chunk.dead is None else chunk.dead.since_ms
        bits = write_dead_rows(
            *(work.store, rows), since_ms=since_ms, stamp=planned.version, new_id=handle.ids.new_id
        )
        dead.append(DeadMark(p, *identity, bits))

    def prepare(tip: Commit, time_ms: int) -> Edit | NothingToCommit:
        now, columns = handle.manifest(), tip.head.partitions
        there = {(p, c.identity): c for p, c in now.chunks()}
        same = all(c.is_but_for_its_mask(there.get(at)) for at, (c, _) in found.killed.items())
        waits = any(undecided_below(tip.head, one.bounds) for one in due.values())
        is_late = tip.head.may_be_swept(planned.version)
        if not same or waits or is_late or any(now.erasures.get(n) != due[n] for n in due):
            return NothingToCommit()
        held = {one.path for name in due for one in found.held[name]}
        # E4 leaves out what was aborted, whichever keys it has; in an active segment all stays.
        sealed = [
            p
            for p, segments in enumerate(now.segments)
            if any(
                (p, c.identity) in found.killed or (c.aborted and c.object.path in held)
                for c in segments[-1].chunks
            )
        ]
        edit = Edit(
            seal=tuple((p, new_jitter_ms(work.config, uniform=handle.ids.uniform)) for p in sealed),
            replace=tuple(emptied),
            dead=tuple(dead),
            tombstones_removed={**found.last, **{p: columns.end[p] for p in found.untold}},
            erasures={
                name: one.killed_by(tip.version + 1, time_ms, tuple(found.held[name]))
                for name, one in due.items()
            },
        )
        apply(now, edit, commit_id="", time_ms=time_ms)  # If it does not fit, that is our bug.
        return edit

    done = handle.commit(prepare, operation=OPERATION)
    return None if isinstance(done, NothingToCommit) else found.rows


def _wanted(manifest: Manifest, due: Erasures, asked: _Asked) -> _Wanted:
    log = manifest.head.log
    keys = of_bytes(sorted({key for some in asked.values() for key in some}))
    members = {
        name: to_numpy(pc.is_in(keys, value_set=of_bytes(some))) for name, some in asked.items()
    }
    home = partitions_for(keys, partitions=log.partitions, algorithm=log.partitioner, start=0)
    return _Wanted(keys, members, due, home.astype(np.int64))


def _keys_of(work: Work, some: Erasures, lost: _Lost) -> _Asked:
    """Returns the keys of the erasures whose requests are there."""
    asked: dict[str, list[bytes]] = {}
    for name, one in some.items():
        with lost:
            path = documents.erasure_path(name)
            asked[name] = _document_of(work, name, one, path, read_request)
    return asked


def _begun(work: Work, name: str, one: ErasureEntry) -> Receipt:
    return _document_of(work, name, one, documents.begun_receipt_path(name), read_receipt)[0]


def _document_of(
    work: Work, name: str, one: ErasureEntry, path: str, read: Callable[[Store, str], _T]
) -> _T:
    """Reads a document of an erasure that was that far; raises if it is gone."""
    try:
        return read(work.store, path)
    except FileNotFoundError as e:
        work.handle.refresh()
        if work.manifest.erasures.get(name) != one:
            raise _AdvancedError from e
        raise CorruptionError(
            f"{path} of {work.store.url}, which an erasure needs, is gone; restore it, or request"
            " the erasure again: this one stays pending"
        ) from e


def _found(store: Store, manifest: Manifest, wanted: _Wanted) -> _Found:
    """Looks through all objects to which the manifest refers."""
    by_object: dict[ObjectRef, list[tuple[int, Chunk]]] = {}
    for p, chunk in manifest.chunks():
        by_object.setdefault(chunk.object, []).append((p, chunk))
    log = manifest.head.log
    hashes = index_hashes(wanted.keys, seed=log.key_seed)
    calls = (
        (partial(_hits, store, obj, wanted.keys, hashes, log.schema), asked_bytes(obj))
        for obj in by_object
    )
    found = _Found(held={name: [] for name in wanted.entries})
    for chunks, hits in zip(by_object.values(), ahead(store, calls), strict=True):
        if hits is not None:
            _note(found, store, wanted, chunks, hits)
    return found


_Hits = tuple[Offsets, Offsets, Offsets | None]
"""The rows of an object that have one of the keys; which key; their offsets if it has a column."""


def _hits(
    store: Store, obj: ObjectRef, keys: pa.Array, hashes: IndexHashes, schema: LogSchema | None
) -> _Hits | None:
    """Returns which rows of an object, dead or alive, have one of the keys; None for none."""
    index = stored_index(store, obj) if obj.index_bytes else None
    if index is not None and not index.may_hold_any(hashes):
        return None
    columns = ("key",) if obj.dense else ("key", "offset")
    parts: list[tuple[Offsets, ...]] = []
    at = 0
    for batch in read_rows(store, obj, 0, obj.rows, columns=columns, schema=schema):
        which = pc.index_in(key_bytes(batch.column(0)), value_set=keys)
        here = np.flatnonzero(to_numpy(which.is_valid()))
        if here.size:
            codes = to_numpy(which.drop_null()).astype(np.int64)
            offsets = here if obj.dense else to_numpy(batch.column(1))[here]
            parts.append((here + at, codes, offsets))
        at += batch.num_rows
    if not parts:
        return None
    rows, codes, offsets = map(np.concatenate, zip(*parts, strict=True))
    return rows, codes, None if obj.dense else offsets


def _note(
    found: _Found, store: Store, wanted: _Wanted, chunks: Sequence[tuple[int, Chunk]], hits: _Hits
) -> None:
    """Notes which of an object's hits die, and for which erasures it held rows."""
    rows, codes, offsets = hits
    outside = np.ones(len(rows), np.bool_)
    holders: set[str] = set()
    for p, chunk in chunks:
        inside = np.flatnonzero((rows >= chunk.first_row) & (rows < chunk.first_row + chunk.rows))
        outside[inside] = False
        at, some = rows[inside] - chunk.first_row, codes[inside]
        where = chunk.base + at if offsets is None else offsets[inside]
        dying = np.zeros(len(at), np.bool_)
        for name, one in wanted.entries.items():
            mine = wanted.members[name][some] & (where < one.bounds.get(p, 0))
            if not mine.any():
                continue
            holders.add(name)
            dying |= mine
            if one.killed != NONE:
                found.last[p] = max(found.last.get(p, NONE), int(where[mine].max()))
            elif p not in one.told or (wanted.home[some[mine]] != p).any():
                found.untold.add(p)
        if dying.any():
            _die(found, store, p, chunk, at[dying])
    for name in wanted.entries:  # No offset says when these came: all rows that are there die.
        if wanted.members[name][codes[outside]].any():
            holders.add(name)
    for name in holders:
        found.held[name] += [Held(c.object.path, p, c.base, c.next) for p, c in chunks]


def _die(found: _Found, store: Store, p: int, chunk: Chunk, rows: Offsets) -> None:
    """Notes that rows of a chunk die, except those that are dead already."""
    dead = np.zeros(chunk.rows, np.bool_)
    if chunk.dead is not None:
        dead |= read_bitmap(store, chunk.dead, chunk.rows)
    fresh = int(np.count_nonzero(~dead[rows]))
    dead[rows] = True
    if chunk.aborted:  # No reader sees it, and none of it has to stay.
        found.killed[p, chunk.identity] = chunk, np.ones(chunk.rows, np.bool_)
    elif fresh:
        found.rows += fresh
        found.killed[p, chunk.identity] = chunk, dead


def _due_runs(work: Work) -> list[Run]:
    """Returns the runs of neighbouring chunks of objects that held rows of the keys (E4)."""
    entries = work.manifest.erasures.values()
    waiting = [one.paths for one in entries if one.killed != NONE and one.rewritten == NONE]
    held = frozenset[str]().union(*waiting)
    return [
        Run(p, run)
        for p, segments in enumerate(work.manifest.segments if held else ())
        for segment in segments
        for run in neighbours_of(
            segment.chunks, lambda c: c.object.path in held and c.undecided is None
        )
    ]


def _commit_entries(work: Work, change: Callable[[str, ErasureEntry, int], ErasureEntry]) -> None:
    """Commits changed entries: ``change`` gets the id of each, the entry, and the time."""

    def prepare(_: Commit, time_ms: int) -> Edit | NothingToCommit:
        now = work.handle.manifest()
        after = {name: change(name, one, time_ms) for name, one in now.erasures.items()}
        changed = {name: one for name, one in after.items() if one != now.erasures[name]}
        return Edit(erasures=changed) if changed else NothingToCommit()

    work.handle.commit(prepare, operation=OPERATION)


def _note_rewritten(work: Work) -> None:
    """Commits which erasures have no reference left to anything that held their rows."""

    def change(_: str, one: ErasureEntry, time_ms: int) -> ErasureEntry:
        manifest = work.handle.manifest()
        if one.kills or one.rewritten != NONE or one.paths & manifest.files().keys():
            return one
        return replace(one, rewritten=manifest.version + 1, rewritten_ms=time_ms, reason="")

    if any(not one.kills and one.rewritten == NONE for one in work.manifest.erasures.values()):
        _commit_entries(work, change)


def _sweep(work: Work, lost: _Lost) -> None:
    """Does the end of E5: sweeps orphans, if all that was replaced is gone and it is allowed."""
    manifest, before_ms = work.manifest, work.now_ms - SWEEP_AFTER_MS
    first = min((r.version for r in manifest.released), default=manifest.version + 1)
    waiting = [
        one.rewritten
        for one in manifest.erasures.values()
        if one.swept == NONE != one.rewritten < first and one.rewritten_ms < before_ms
    ]
    if not waiting or newest_by(work.handle, work.store, before_ms) < min(waiting):
        return
    sweep_orphans(work)
    floor = work.handle.tip.head.orphan_floor
    ended = {
        name: one
        for name, one in manifest.erasures.items()
        if one.swept == NONE and one.rewritten in waiting and one.rewritten <= floor
    }
    ids = _ids(work, ended, lost) if ended else {}

    def change(name: str, one: ErasureEntry, _: int) -> ErasureEntry:
        return replace(one, swept=floor, ids=ids[name], reason="") if name in ids else one

    if ids:
        _commit_entries(work, change)


def _ids(work: Work, ended: Erasures, lost: _Lost) -> dict[str, tuple[str, ...]]:
    """Returns, by erasure, the keyed hashes of keys that are names or values in documents."""
    store, asked = work.store, _keys_of(work, ended, lost)
    wanted = {key for keys in asked.values() for key in keys}
    there: set[bytes] = set()
    listed = [f for folder in _KINDS for f in store.list(folder) if documents.is_known(f.path)]
    calls = ((partial(_document, store, f.path), f.size_bytes) for f in listed)
    for found, value in zip(listed, ahead(store, calls), strict=True):
        reader = documents.reader_name_of(found.path)
        texts = {*_names_in(value), *([] if reader is None else [reader])}
        there |= wanted & {key for text in texts for key in _as_keys(text)}

    ids: dict[str, tuple[str, ...]] = {}
    for name, keys in asked.items():
        with lost:
            hashes = _begun(work, name, ended[name]).keys
            if len(hashes) != len(keys):
                raise CorruptionError(
                    f"{documents.begun_receipt_path(name)} of {store.url} has {len(hashes)} keys,"
                    f" and the request of the erasure {len(keys)}; restore both, or request the"
                    " erasure again: this one stays pending"
                )
            ids[name] = tuple(h for h, key in zip(hashes, keys, strict=True) if key in there)
    return ids


def _document(store: Store, path: str) -> Any:
    """Returns the content of a document; None if it has been swept."""
    with suppress(FileNotFoundError):
        return documents.get(store, _KINDS[path[: path.index("/") + 1]], path)
    return None


def _names_in(value: Any, field: str = "") -> Iterator[str]:
    """Yields the texts in a document that are in the places of names and settings."""
    if isinstance(value, str) and field in _NAMES:
        yield value
    elif isinstance(value, Mapping):
        if field in _NAMING:
            yield from value
        for name, one in value.items():
            yield from _names_in(one, field if field == "config" else name)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for one in value:
            yield from _names_in(one, field)


def _as_keys(text: str) -> Iterator[bytes]:
    """Yields the keys that a text may be, as it is or as hex."""
    yield text.encode()
    with suppress(ValueError):
        yield bytes.fromhex(text)


def _end(work: Work, ready: Erasures, lost: _Lost) -> int:
    reason, forgets = _problem(work), False
    if not reason:
        try:
            forgets = _forgotten(work, ready)
        except StoreRefusedError as e:
            reason = (
                "the store keeps old versions of files, or unfinished uploads, and refuses to"
                f" delete them: {e}; grant the role erase (docs/permissions.md)"
            )
    if reason:
        if any(reason != one.reason for one in ready.values()):
            _LOGGER.warning("an erasure of %s is waiting: %s", work.store.url, reason)
            _commit_entries(work, lambda n, e, _: replace(e, reason=reason) if n in ready else e)
        return 0
    done = _write_receipts(work, ready, lost, forgets=forgets)
    ended: set[str] = set()

    def prepare(_tip: Commit, _ms: int) -> Edit | NothingToCommit:
        nonlocal ended
        ended = done & work.manifest.erasures.keys()
        return Edit(erasures=dict.fromkeys(sorted(ended))) if ended else NothingToCommit()

    work.handle.commit(prepare, operation=OPERATION)
    for name in done:
        work.store.delete(documents.begun_receipt_path(name))
    return len(ended)


def _problem(work: Work) -> str:
    """Returns what is wrong with the first file under the root that may hold anything, or ""."""
    standing = work.handle.standing
    folder = f"{documents.folder_of(standing.log_id)}/"
    temporary = standing.root.list_temporary("")
    # Those inside are deleted by age: some are being written.
    left = (f for f in temporary if not f.path.startswith(folder))
    for found in (*standing.root.list(""), *left):
        path = found.path
        inside = path.removeprefix(folder)
        is_ours = documents.is_known(inside) if inside != path else _AT_THE_ROOT.fullmatch(path)
        if not is_ours:
            return (
                f"{path} does not belong to the log, and may contain anything; delete it, or move"
                " it out of the log's folder"
            )
    return ""


def _forgotten(work: Work, names: Iterable[str]) -> bool:
    """Makes the store forget old versions, then deletes requests; returns whether it could."""
    store = work.store
    begun_ms = work.now_ms - SWEEP_AFTER_MS
    forgets = store.forget_old("", begun_ms)
    for view in FORMATS.values():
        for begin in view.stray_beginnings:
            work.handle.standing.root.forget_old(begin, begun_ms)
    for name in names:
        store.delete(documents.erasure_path(name))
    return store.forget_old(documents.ERASURES, begun_ms) and forgets


def _write_receipts(work: Work, ready: Erasures, lost: _Lost, *, forgets: bool) -> set[str]:
    """Creates receipts under the next numbers, unless they exist; returns whose exist."""
    by_partition: dict[int, list[Chunk]] = {}
    for p, chunk in work.manifest.chunks():
        by_partition.setdefault(p, []).append(chunk)
    said = _NOT_SEARCHED if forgets else (*_NOT_SEARCHED, _NOT_FORGOTTEN)
    for _ in range(TRIES_MAX):
        number, previous, known = _newest_receipts(work, ready)
        with suppress(ObjectExistsError):
            for name in sorted(ready.keys() - known):
                one, begun = ready[name], None
                with lost:
                    begun = _begun(work, name, one)
                if begun is None:
                    continue
                number += 1
                made = replace(
                    begun,
                    requested_ms=one.requested_ms,
                    number=number,
                    previous=previous,
                    completed_ms=work.handle.clock.now_ms(),
                    version=one.version,
                    oldest_readable=work.head.oldest_readable,
                    ends={**one.ends, **one.told},
                    objects=tuple(_replaced(by_partition, one, work.now_ms)),
                    ids=one.ids,
                    searched=_SEARCHED,
                    not_searched=said,
                )
                data = documents.encode("receipt", receipt_to_json(made))
                work.store.create(documents.receipt_path(number), data)
                previous = hashlib.sha256(data).hexdigest()
                known.add(name)
            return known & ready.keys()
    raise CommitConflictError(
        f"another process writes receipts of {work.store.url}; the next round tries again"
    )


def _newest_receipts(work: Work, ready: Erasures) -> tuple[int, str | None, set[str]]:
    """Returns number and hash of the newest receipt, and which erasures have had one lately."""
    number, previous, known = NONE, None, set[str]()
    requested_ms = min(one.requested_ms for one in ready.values())
    for receipt, data in newest_receipts(work.handle):
        if not known:
            number, previous = receipt.number, hashlib.sha256(data).hexdigest()
        known.add(receipt.erasure)
        if receipt.completed_ms < requested_ms - SWEEP_AFTER_MS:
            break  # It, and those before it, came before the requests: no clock is a day off.
    return number, previous, known


def _replaced(
    by_partition: Mapping[int, Sequence[Chunk]], one: ErasureEntry, now_ms: int
) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """Yields each object that held rows, what has its offsets now, and when it was found gone."""
    made: dict[str, set[str]] = {held.path: set() for held in one.held}
    for held in one.held:
        chunks = by_partition.get(held.partition, ())
        at = bisect_right(chunks, held.base, key=lambda c: c.next)
        end = bisect_left(chunks, held.next, key=lambda c: c.base)
        made[held.path] |= {c.object.path for c in chunks[at:end]}
    for path, others in made.items():
        yield path, tuple(sorted(others)), now_ms
