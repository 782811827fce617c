"""Bugs to plant, one at a time: faults that were here once, each as it was, or as it came out. A
world must find each of them (`run.py --planted`); README.md has the seeds and seconds.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import clog.bridge.mirroring
import clog.connector.opened_logs
import clog.connector.read.stream_reader
import clog.connector.read.task_read
import clog.storage.administration
import clog.storage.commit.committer
import clog.storage.cuts
import clog.storage.publications.publish
import clog.storage.types.columns
from clog.storage.errors import StoreUnavailableError
from clog.storage.format.commits import Head, read_commit
from clog.storage.store.contract import ObjectExistsError, WrappingStore

Patch = Callable[[object, str, object], None]
connector, storage = clog.connector, clog.storage


def read_as_planned(patch: Patch) -> None:
    """A stream reads what was appended under a later schema by the one it was planned with, and
    floats are rounded for it.
    """
    reading = connector.read.stream_reader, connector.read.task_read
    patch(connector.read.stream_reader, "table_shown", lambda *_, **__: None)
    for room in reading:
        patch(room, "readable", lambda _handle, manifest, *_, **__: (manifest, None))
    patch(storage.types.columns, "_holds", lambda *_: True)


def names_alike(patch: Patch) -> None:
    """An evolution, or an alter, may add a column whose name differs in case alone."""
    for room in (storage.administration, storage.publications.publish):
        patch(room, "names_problem", lambda *_, **__: None)


def home_forgets_its_records(patch: Patch) -> None:
    """Who computes a cut does not note where the records are that a transaction committed in its
    home, so another one that is open there does not seem to hide them.
    """
    patch(storage.cuts, "_committed_here", lambda *_: {})


def stable_end_parts(patch: Patch) -> None:
    """The last stable offset is that of the first undecided record, whatever else begins there."""

    def stable(head: Head, partition: int) -> int:
        first = [entry.first[partition] for entry in head.unended if partition in entry.first]
        return max(
            min(first, default=head.partitions.end[partition]), head.partitions.start[partition]
        )

    patch(Head, "stable_offset", stable)


def mirror_misses_deletes(patch: Patch) -> None:
    """A mirror that stood still for longer than tombstones stay goes on."""
    held = clog.bridge.mirroring._Held  # noqa: SLF001 - what is planted has no other door
    patch(held, "check_missed", lambda *_: None)


def own_commit_is_anothers(patch: Patch) -> None:
    """What is read back after a lost reply, or a repeated request, is never recognised as one's own
    commit: what is in it is committed again.
    """
    create = storage.commit.committer._create  # noqa: SLF001 - as above

    class Doubted(WrappingStore):
        in_doubt = False

        def create(self, path: str, data: bytes) -> None:
            try:
                self.inner.create(path, data)
            except (ObjectExistsError, StoreUnavailableError):
                self.in_doubt = True
                raise

    def blind(store: Any, commit: Any, clock: Any, ids: Any) -> Any:
        doubted = Doubted(store)
        winner = create(doubted, commit, clock, ids)
        is_own = winner is None and doubted.in_doubt
        return read_commit(store, commit.version) if is_own else winner

    patch(storage.commit.committer, "_create", blind)


PLANTED: dict[str, Callable[[Patch], None]] = {
    "a stream reads a widened float as it was planned": read_as_planned,
    "names that differ in case are taken": names_alike,
    "a cut's home forgets its own records": home_forgets_its_records,
    "a stable end parts a transaction": stable_end_parts,
    "a mirror misses deletes": mirror_misses_deletes,
    "own lost reply is taken for another's commit": own_commit_is_anothers,
}


@contextmanager
def planted(plant: Callable[[Patch], None]) -> Iterator[None]:
    """Plants a bug for the block."""
    undo = []

    def patch(owner: object, name: str, value: object) -> None:
        undo.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    try:
        plant(patch)
        yield
    finally:
        for owner, name, value in reversed(undo):
            setattr(owner, name, value)
