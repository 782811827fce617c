"""Bugs to plant in erasures (FORMAT.md §17, COMMIT.md §8); see `planted`."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
from limits import Patch

import clog.cleaner.duties.erasing
import clog.cleaner.duties.layout
import clog.cleaner.duties.sweep
import clog.storage.erasures
from clog.storage.format.documents import NONE

_erasing = clog.cleaner.duties.erasing


def done_with_old_objects(patch: Patch) -> None:
    """The receipt comes while objects that were replaced are there for old versions (E5)."""

    def sweep(work, _lost):
        _erasing.sweep_orphans(work)
        floor = work.handle.tip.head.orphan_floor

        def change(_name, one, _ms):
            waits = one.swept == NONE != one.rewritten <= floor
            return replace(one, swept=floor) if waits else one

        _erasing._commit_entries(work, change)

    patch(_erasing, "_sweep", sweep)


def done_with_orphans(patch: Patch) -> None:
    """The receipt comes without a sweep of what was written and never committed (E5)."""
    patch(_erasing, "sweep_orphans", lambda _work: None)
    patch(_erasing, "_sweep", _sweep_without_floor)


def _sweep_without_floor(work, _lost) -> None:
    first = min((r.version for r in work.manifest.released), default=work.manifest.version + 1)

    def change(_name, one, _ms):
        waits = one.swept == NONE != one.rewritten < first
        return replace(one, swept=one.rewritten) if waits else one

    if any(change("", one, 0) is not one for one in work.manifest.erasures.values()):
        _erasing._commit_entries(work, change)


def objects_not_rewritten(patch: Patch) -> None:
    """Rows are killed, and the objects that hold them stay (E4)."""
    patch(_erasing, "_due_runs", lambda _work: [])
    patch(_erasing.ErasureEntry, "paths", frozenset())


def dead_rows_not_found(patch: Patch) -> None:
    """Only objects with rows that live are said to hold some: dead ones stay in others (E3)."""
    note = _erasing._note

    def blind(found, store, wanted, chunks, hits):
        before = found.rows
        held = {name: list(some) for name, some in found.held.items()}
        note(found, store, wanted, chunks, hits)
        if found.rows == before:
            found.held.update(held)

    patch(_erasing, "_note", blind)


def later_records_die(patch: Patch) -> None:
    """Rows of the keys are killed, whenever they came."""
    patch(_erasing.ErasureEntry, "bounds", property(lambda _one: {0: 1 << 60, 1: 1 << 60}))


def neighbours_die(patch: Patch) -> None:
    """With a row of the keys the next one dies, whatever its key is."""
    die = _erasing._die

    def greedy(found, store, p, chunk, rows):
        more = np.unique(np.concatenate([rows, rows + 1]))
        die(found, store, p, chunk, more[more < chunk.rows])

    patch(_erasing, "_die", greedy)


def one_row_dies(patch: Patch) -> None:
    """Of a chunk's rows of the keys the last one dies: an older value shows."""
    die = _erasing._die

    def lazy(found, store, p, chunk, rows):
        die(found, store, p, chunk, rows[-1:])

    patch(_erasing, "_die", lazy)


def followers_not_told(patch: Patch) -> None:
    """Where no tombstone tells of rows that die, the manifest does not either (S41)."""
    note = _erasing._note

    def silent(found, *given):
        note(found, *given)
        found.untold.clear()

    patch(_erasing, "_note", silent)


def undecided_not_waited_for(patch: Patch) -> None:
    """The death of rows is committed while some of the keys are undecided (H-E15)."""
    patch(_erasing, "undecided_below", lambda *_: "")


def tombstones_go_at_once(patch: Patch) -> None:
    """Tombstones of an erasure go with the next round: followers may not have seen them (E6)."""
    patch(_erasing, "tombstones_due_ms", lambda *_: 0)


def requests_swept(patch: Patch) -> None:
    """A sweep takes the documents of requests that wait."""
    sweep = clog.cleaner.duties.sweep

    def left(handle, floor):
        del floor
        return list(handle.store.list(sweep.documents.ERASURES))

    patch(sweep, "_left_requests", left)


def slow_request(patch: Patch) -> None:
    """A request is committed however long ago its documents were written (E2)."""
    request = clog.storage.erasures._request

    def late(handle, known, *rest):
        del known
        return request(handle, SimpleNamespace(version=1 << 60), *rest)

    patch(clog.storage.erasures, "_request", late)


def second_receipt(patch: Patch) -> None:
    """Who writes a receipt does not look whether there is one (C42)."""
    newest_receipts = _erasing.newest_receipts

    def nameless(handle):
        found = newest_receipts(handle)
        return ((replace(receipt, erasure="0" * 32), data) for receipt, data in found)

    patch(_erasing, "newest_receipts", nameless)


def sleepers_copy(patch: Patch) -> None:
    """A rewrite that was planned before the kill is committed after it (H-E14)."""
    patch(clog.cleaner.duties.layout.Run, "is_there", lambda *_: True)


ERASURE_BUGS = {
    "erased while old objects are there": done_with_old_objects,
    "erased while orphans are there": done_with_orphans,
    "erased rows stay in their objects": objects_not_rewritten,
    "dead rows of erased keys are not found": dead_rows_not_found,
    "erasure kills later records": later_records_die,
    "erasure kills neighbours": neighbours_die,
    "erasure kills one row of an object": one_row_dies,
    "followers not told of an erasure": followers_not_told,
    "erasure does not wait for transactions": undecided_not_waited_for,
    "erasure's tombstones go at once": tombstones_go_at_once,
    "requests of erasures swept": requests_swept,
    "slow request is committed": slow_request,
    "second receipt": second_receipt,
    "copy from before the kill": sleepers_copy,
}
"""By name; each is found by worlds that are made for erasures."""
