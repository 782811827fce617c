"""Removal of keys: deletes, which are tombstones, and erasures, which remove every byte of the
records of some keys from the log's root, with a receipt (S59, S60, FORMAT.md §17).

The request is a commit (COMMIT.md §8, E1 and E2); the cleaner does the rest, round by round. The
progress of an erasure, and what it waits for, follow from the newest version
(`pending_reason`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from clog.storage.append import (
    AppendResult,
    append,
    check_takes_offsets,
    committing,
    partitions_of,
    put_records,
    records_of,
)
from clog.storage.commit.appends import AppendRequest, Proposed
from clog.storage.commit.committer import NothingToCommit
from clog.storage.commit.handle import Handle
from clog.storage.config.log_config import LogConfig
from clog.storage.config.units import with_times
from clog.storage.env import dataclass
from clog.storage.errors import (
    ClogError,
    CommitConflictError,
    CommitStateUnknownError,
    InvalidInputError,
    StoreUnavailableError,
)
from clog.storage.format import documents
from clog.storage.format.commits import Commit, Edit, Head
from clog.storage.format.erasures import (
    KEYS_MAX,
    ErasureEntry,
    Receipt,
    encode_request,
    keyed_hashes,
    read_receipt,
    receipt_to_json,
    secret_hash,
)
from clog.storage.format.log_info import ERASURES, FeatureNames
from clog.storage.keys.hashing import key_bytes
from clog.storage.objects.orders import Ordering
from clog.storage.objects.writer import DataObject
from clog.storage.read.lookup import asked_keys, listed_keys, python_keys, records_of_keys
from clog.storage.readers import Holds, read_holds
from clog.storage.store.contract import ahead

OPERATION: Final = "erase"
PENDING: Final = "pending"
DONE: Final = "done"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FEATURES: Final = FeatureNames(write=(ERASURES,))


@dataclass(frozen=True, slots=True)
class ErasureRequest:
    """A requested erasure.

    Attributes:
        id: its id.
        secret: the secret of the keyed hashes in its receipt, in hex. Keep it: it is stored nowhere
            else, and the receipt can be checked only with it.
        version: the version that requested it; records appended later are not covered.
    """

    id: str
    secret: str
    version: int

    def __repr__(self) -> str:
        return f"ErasureRequest(id={self.id!r}, version={self.version})"


@dataclass(frozen=True, slots=True)
class Erasure:
    """The state of an erasure.

    Attributes:
        id: the request's id.
        state: ``pending`` or ``done``.
        reason: what it waits for, and what holds it up; empty once it is done.
        receipt: as JSON, once it is done.
        keys: the number of keys.
        version, requested_ms: the version that requested it, and its time.
        completed_ms: when it was done; None before.
    """

    id: str
    state: str
    reason: str
    receipt: Mapping[str, Any] | None
    keys: int
    version: int
    requested_ms: int
    completed_ms: int | None = None

    __repr__ = with_times


def delete(handle: Handle, keys: Iterable[Any]) -> AppendResult:
    """Appends a tombstone for each key; see `Log.delete`."""
    check_takes_offsets(handle, given=False)
    tombstones = _tombstones(handle, _distinct(keys, handle.refresh().head))
    return append(handle, tombstones, None, None, None, are_records=True)


def erase(handle: Handle, keys: Iterable[Any], *, notify: bool) -> ErasureRequest:
    """Does E1 and E2; see `Log.erase`."""
    known = handle.refresh()
    head = known.head
    wanted = _distinct(keys, head)
    if not wanted:
        raise InvalidInputError("give at least one key; nothing was changed")
    if len(wanted) > KEYS_MAX:
        raise InvalidInputError(
            f"one request can erase at most {KEYS_MAX} keys, not {len(wanted)}; use several"
            " requests; nothing was changed"
        )
    if notify and head.takes_offsets:
        raise InvalidInputError(
            f"{handle.store.url} takes offsets from its source, so no tombstones can be added"
            " here; erase the keys at the source as well, and here with notify=False; nothing was"
            " changed"
        )
    head.log.check_writable(where=handle.store.url)
    new_id, store = handle.ids.new_id, handle.store
    erasure_id, secret = new_id(), new_id() + new_id()
    hashes = keyed_hashes(secret, wanted)
    begun = Receipt(
        log_id=head.log.log_id,
        erasure=erasure_id,
        requested_ms=handle.clock.now_ms(),
        keys=tuple(hashes),
        secret_sha256=secret_hash(secret),
    )
    paths = documents.begun_receipt_path(erasure_id), documents.erasure_path(erasure_id)
    try:
        store.put(paths[0], documents.encode("receipt", receipt_to_json(begun)))  # E1
        store.put(paths[1], encode_request(list(hashes.values())))
        objects = _put_tombstones(handle, wanted) if notify else []
        with committing(handle, objects):
            version = _request(handle, known, erasure_id, len(wanted), objects)  # E2
    except CommitStateUnknownError:
        raise  # The log may have the request: its files stay, as they do after an interrupt.
    except ClogError:
        for path in paths:
            with suppress(StoreUnavailableError):  # Otherwise the sweep removes it.
                store.delete(path)
        raise
    return ErasureRequest(erasure_id, secret, version)


def _distinct(keys: Iterable[Any], head: Head) -> dict[bytes, Any]:
    """Returns the keys by their canonical bytes."""
    schema, listed = head.log.schema, listed_keys(keys)
    return dict(zip(asked_keys(listed, schema), python_keys(listed, schema), strict=True))


def _tombstones(handle: Handle, wanted: Mapping[bytes, Any]) -> list[dict[str, Any]]:
    """Returns a tombstone for each key; if an order decides, with the key's highest one, and if
    that is a header's, none for a key without records.
    """
    ordering = Ordering.of(LogConfig.from_overrides(handle.tip.head.config))
    rows: list[dict[str, Any]] = [{"key": key, "value": None} for key in wanted.values()]
    if ordering is None:
        return rows
    highest = _highest_orders(handle, wanted, ordering)
    if ordering.header is None:
        now_us = handle.clock.now_us()
        times = [max(highest.get(key, 0), now_us) for key in wanted]
        return [
            {**row, "timestamp": _EPOCH + timedelta(microseconds=us)}
            for row, us in zip(rows, times, strict=True)
        ]
    return [
        {**row, "headers": [(ordering.header, highest[key].to_bytes(8, "big"))]}
        for key, row in zip(wanted, rows, strict=True)
        if key in highest
    ]


def _put_tombstones(handle: Handle, wanted: Mapping[bytes, Any]) -> list[DataObject]:
    rows = _tombstones(handle, wanted)
    if not rows:
        return []
    records, _, schema = records_of(handle, rows, are_records=True)
    parts = partitions_of(records, None, handle.tip.head, url=handle.store.url)
    return put_records(handle, records, parts, schema)


def _highest_orders(
    handle: Handle, wanted: Mapping[bytes, Any], ordering: Ordering
) -> dict[bytes, int]:
    manifest = handle.manifest()
    columns = manifest.head.partitions
    spans = {p: (columns.start[p], columns.end[p]) for p in range(manifest.head.log.partitions)}
    highest: dict[bytes, int] = {}
    for batch in records_of_keys(handle.store, manifest, spans, list(wanted.values())):
        keys = key_bytes(batch.column("key")).to_pylist()
        for key, order in zip(keys, ordering.values(batch).tolist(), strict=True):
            highest[key] = max(highest.get(key, 0), order)  # One without an order has -1.
    return highest


def _request(
    handle: Handle, known: Commit, erasure_id: str, keys: int, objects: Sequence[DataObject]
) -> int:
    """Does E2; returns its version. ``known``: the newest version before E1."""
    append = AppendRequest(Proposed(tuple(objects)), handle.writer_pages, handle.ids)

    def prepare(tip: Commit, time_ms: int) -> Edit | NothingToCommit:
        if tip.head.may_be_swept(known.version):
            raise CommitConflictError(
                f"the erasure of {handle.store.url} took too long: its request is from version"
                f" {known.version}, below the orphan floor {tip.head.orphan_floor}, and may have"
                " been swept; nothing was changed; try again"
            )
        ends = dict(enumerate(tip.head.partitions.end))
        edit = append.prepare(tip, time_ms) if objects else Edit()
        assert isinstance(edit, Edit), "an append without a writer is no duplicate"
        told: dict[int, int] = {}
        for p, chunk in edit.add.chunks if edit.add else ():
            told[p] = chunk.next
        entry = ErasureEntry(
            version=tip.version + 1,
            requested_ms=time_ms,
            keys=keys,
            ends={p: end for p, end in ends.items() if end},
            told=told,
        )
        return replace(edit, features=_FEATURES, erasures={erasure_id: entry})

    done = handle.commit(prepare, operation=OPERATION)
    assert isinstance(done, Commit), "there is something to commit"
    return done.version


def erasures(handle: Handle) -> list[Erasure]:
    """Returns the pending erasures and those with a receipt, oldest first; one LIST, and one GET
    per receipt.
    """
    handle.refresh()
    manifest, config = handle.manifest(), LogConfig.from_overrides(handle.tip.head.config)
    if ERASURES not in manifest.head.log.features:
        return []
    from clog.storage.diagnostics.describe import pending_reason

    now_ms = handle.clock.now_ms()
    holds = read_holds(handle, config, now_ms=now_ms) if manifest.erasures else Holds()
    found = [
        Erasure(
            *(name, PENDING, pending_reason(manifest, one, config, holds, now_ms=now_ms), None),
            *(one.keys, one.version, one.requested_ms),
        )
        for name, one in manifest.erasures.items()
    ]
    done = [
        Erasure(
            *(one.erasure, DONE, "", receipt_to_json(one)),
            *(len(one.keys), one.version, one.requested_ms, one.completed_ms),
        )
        for one, _ in ahead(handle.store, _receipts(handle))
    ]
    known = {one.id for one in done}
    return sorted(
        (*done, *(one for one in found if one.id not in known)),
        key=lambda one: (one.version, one.id),
    )


def newest_receipts(handle: Handle) -> Iterator[tuple[Receipt, bytes]]:
    """Yields the receipts and their bytes, the newest first; one LIST, and one GET for each that is
    asked for.
    """
    for read, _ in _receipts(handle):
        yield read()


def _receipts(handle: Handle) -> Iterator[tuple[Callable[[], tuple[Receipt, bytes]], int]]:
    """Yields for each receipt, the newest first, a function that reads it, and its size; a LIST."""
    listed = handle.store.list(documents.RECEIPTS)
    there = [one for one in listed if documents.receipt_number_of(one.path) is not None]
    for one in sorted(there, key=lambda one: one.path, reverse=True):
        yield partial(read_receipt, handle.store, one.path), one.size_bytes
