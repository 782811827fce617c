"""Deferred transactions: what their holder knows, and the one commit that makes all of one visible
(S49; COMMIT.md §9, T3).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from clog.storage.append import AppendRequest, found_offsets, offsets_of
from clog.storage.clock import Clock
from clog.storage.commit.handle import Handle
from clog.storage.errors import TransactionTimeoutError
from clog.storage.format.chunks import NONE, TransactionName
from clog.storage.format.commits import Commit
from clog.storage.format.edits import Append, Edit
from clog.storage.format.transactions import (
    TRANSACTION,
    Committed,
    Positions,
    TransactionState,
    stored_positions,
)
from clog.storage.format.undecided import COMMITTED, Ending
from clog.storage.objects.data_object import DataObject
from clog.storage.transactions.id_states import (
    AlreadyCommitted,
    Named,
    Number,
    appended_by,
    find_commit,
    kept_positions,
    state_of,
)
from clog.storage.transactions.undecided import check_undecided


class Source(Protocol):
    """A log, as a transaction takes it: a `Log`."""

    @property
    def handle(self) -> Handle:
        """What transactions build on; not for users."""
        ...


class State(Enum):
    """Where a transaction stands, as far as its holder knows."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """What a transaction did.

    Attributes:
        version: the version of the log that its commit made; where it had nothing to commit, the
            newest.
        offsets: by partition, the half-open range of offsets that its records got. Empty if they
            are not known any more, because a repeated commit found the first one swept.
        logs: by URL, the version of each log that took part.
    """

    version: int
    offsets: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    logs: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Holder:
    """An id that a handle holds.

    Attributes:
        epoch: the one at which it does.
        next_number: of the next transaction.
        sequence, version: that of what was committed last under the id, -1 where it had none; and
            the version that did.
        positions: what was committed under the id, once that was asked for: nobody else changes it.
        closable: transactions over several logs that all of these know the outcome of.
        is_lost: the id was taken up again since, here or by a parent process, or must be.
        is_fenced: another holder took it up.
    """

    transaction_id: str
    epoch: int
    positions: Positions | None = None
    next_number: int = 0
    sequence: int = NONE
    version: int = NONE
    is_lost: bool = False
    is_fenced: bool = False
    closable: set[TransactionName] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Began:
    """When a transaction began, by its holder's clocks: nobody else ends a deferred one."""

    wall_ms: int
    monotonic_ms: int
    timeout_ms: int

    def check(self, clock: Clock, transaction_id: str, *, url: str) -> None:
        """Raises if it is longer ago than the timeout.

        Raises:
            TransactionTimeoutError: it is.
        """
        elapsed_ms = self.elapsed_ms(clock)
        if elapsed_ms > self.timeout_ms:
            raise TransactionTimeoutError(
                f"transaction id {transaction_id!r} of {url} began {elapsed_ms} ms ago, more than"
                f" timeout_ms={self.timeout_ms}; nothing of it was committed; begin another one,"
                " with a longer timeout or fewer records"
            )

    def elapsed_ms(self, clock: Clock) -> int:
        """Returns how long ago that is: the monotonic clock stands still while a machine sleeps,
        the wall clock may be set back.
        """
        return max(clock.now_ms() - self.wall_ms, clock.monotonic_ms() - self.monotonic_ms)


def result_of(handle: Handle, version: int, add: Append | None) -> TransactionResult:
    """Returns what a commit did that appended this."""
    return TransactionResult(
        version, offsets_of(add.chunks if add else ()), {handle.store.url: version}
    )


def found_result(handle: Handle, transaction_id: str, version: int) -> TransactionResult:
    """Returns what the commit of this version did, which an earlier try has made; one GET."""
    key = TRANSACTION, transaction_id
    offsets = found_offsets(handle.store, version, lambda entry: entry.key == key)
    return TransactionResult(version, offsets, {handle.store.url: version})


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """A transaction as it is committed (T3). ``positions`` are all those that the id has from then
    on; None: the transaction names none. ``name``: of one that is undecided until this (X3, Z2).
    """

    handle: Handle
    ours: Number
    objects: Sequence[DataObject]
    positions: Positions | None
    check_time: Callable[[], None]
    tried: bool
    sequence: int
    content: str | None = None
    name: TransactionName | None = None

    def prepare(self, tip: Commit, time_ms: int) -> Edit | AlreadyCommitted:
        """Returns the edit, given the tip.

        Raises:
            TransactionFencedError: the id was taken up since.
            TransactionTimeoutError: it took too long, for its timeout or for the sweep.
            InvalidInputError: records that the config of the log refuses (S5, S6, S9).
            CommitStateUnknownError: as `find_commit`.
        """
        store, pages, ours = self.handle.store, self.handle.writer_pages, self.ours
        known = state_of(pages, tip.head, ours.transaction_id)
        done = find_commit(known, ours, url=store.url, tried=self.tried)
        if done is not None:
            return AlreadyCommitted(done.version)
        if self.name is not None:
            check_undecided(tip.head, self.name, url=store.url)
        self.check_time()
        _check_floor(self.objects, tip, ours, url=store.url)
        request = AppendRequest(store.url, self.objects, None, pages, self.handle.ids.uniform)
        edit = request.prepare(tip, time_ms)
        assert isinstance(edit, Edit)
        version, new_id = tip.version + 1, self.handle.ids.new_id
        committed = Committed(ours.epoch, ours.number, version)
        if self.positions is None:
            positions = kept_positions(store, known, new_id=new_id)
        else:  # T2; anew after a lost race, as the sweep may have taken what a sleeper wrote.
            positions = stored_positions(store, self.positions, new_id=new_id)
        state = TransactionState(ours.epoch, ours.number, committed, positions)
        named = Named(ours.transaction_id, self.sequence, self.content)
        by = appended_by(named, state, version=version, objects=len(self.objects))
        ends = () if self.name is None else (Ending(self.name, COMMITTED),)
        return replace(edit, ends=ends, writers=(by,))


def _check_floor(objects: Sequence[DataObject], tip: Commit, ours: Number, *, url: str) -> None:
    floor = tip.head.orphan_floor
    stamp = min((obj.stamp for obj in objects), default=floor)
    if stamp < floor:
        raise TransactionTimeoutError(
            f"transaction id {ours.transaction_id!r} of {url} took too long: its objects began at"
            f" version {stamp}, below the orphan floor {floor}, and may be swept by now;"
            " nothing of it was committed; begin another one"
        )
