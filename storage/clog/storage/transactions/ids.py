"""What a log says of a transaction id, and the commits that change nothing but that: taking the id
up, which raises its epoch and so fences whoever held it (FORMAT.md §11, S48).

Epochs only rise, and each commit of a transaction compares its own with the one in the head it
commits upon. So a holder that was fenced commits nothing more, however late it wakes: no timer and
no other file has a part in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from clog.storage.commit.committer import NothingToCommit
from clog.storage.commit.handle import Handle
from clog.storage.errors import CommitStateUnknownError, InvalidInputError, TransactionFencedError
from clog.storage.format.chunks import NONE
from clog.storage.format.commits import Commit
from clog.storage.format.edits import AppendedBy, Edit, WriterEntry
from clog.storage.format.features import TRANSACTIONS, FeatureNames
from clog.storage.format.head import Head
from clog.storage.format.transactions import (
    ABORTED,
    TRANSACTION,
    Committed,
    Ending,
    Positions,
    PositionsAt,
    TransactionState,
    Unended,
    read_positions,
    stored_positions,
)
from clog.storage.format.writers import WriterPages, find_writer
from clog.storage.store.contract import Store

ID_BYTES_MAX = 512
"""The head repeats the ids of recent writers in each commit."""
OPERATION = "transaction"
"""Of commits that change the state of an id alone."""


@dataclass(frozen=True, slots=True)
class Number:
    """Names one transaction: the id, its epoch, and which of the epoch's it is, from 0."""

    transaction_id: str
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class Named:
    """An id, with the sequence and the content of what was committed last under it."""

    transaction_id: str
    sequence: int = NONE
    content: str | None = None

    @classmethod
    def of(cls, entry: WriterEntry) -> Self:
        """Returns what an entry says."""
        return cls(entry.writer_id, entry.sequence, entry.content)


@dataclass(frozen=True, slots=True)
class AlreadyCommitted(NothingToCommit):
    """The log has the transaction."""

    version: int


@dataclass(frozen=True, slots=True)
class NotCommitted(NothingToCommit):
    """The log does not have the transaction, and never will: the id was taken up since, by
    another holder where that is not said to be ours.
    """

    by_us: bool = False


def check_id(transaction_id: object) -> str:
    """Returns the id, if it can be one."""
    if isinstance(transaction_id, str) and transaction_id:
        try:
            size = len(transaction_id.encode())
        except UnicodeEncodeError:  # Half of a surrogate pair.
            size = ID_BYTES_MAX + 1
        if size <= ID_BYTES_MAX:
            return transaction_id
    raise InvalidInputError(
        f"a transaction id must be text of 1 to {ID_BYTES_MAX} bytes of UTF-8,"
        f" not {transaction_id!r:.80}"
    )


def entry_of(pages: WriterPages, head: Head, transaction_id: str) -> WriterEntry | None:
    """Returns the entry of an id; None where nobody took it up yet."""
    return find_writer(pages, head, TRANSACTION, transaction_id)


def state_of(pages: WriterPages, head: Head, transaction_id: str) -> TransactionState | None:
    """Returns the state of an id; None where nobody took it up yet."""
    entry = entry_of(pages, head, transaction_id)
    return None if entry is None else entry.transaction


def take_up(handle: Handle, transaction_id: str, *, held: Sequence[int] = ()) -> WriterEntry:
    """Raises the epoch of an id, and returns its entry: the caller holds it; one commit, which also
    announces the feature where the log lacks it. ``held``: the epochs to one of which the caller
    raised it last, if it did: it does not take the id back from who took it up since, which is a
    TransactionFencedError.
    """

    def prepare(tip: Commit, _: int) -> Edit | NothingToCommit:
        known = state_of(handle.writer_pages, tip.head, transaction_id)
        if held and known is not None and known.epoch not in held:
            raise taken_by_another(handle, transaction_id, max(held))
        return raised(handle, tip, transaction_id)

    commit = handle.commit(prepare, operation=OPERATION)
    assert isinstance(commit, Commit)
    key = (TRANSACTION, transaction_id)
    return next(entry for entry in commit.head.writers if entry.key == key)


def taken_by_another(handle: Handle, transaction_id: str, held: int) -> TransactionFencedError:
    """Makes the error of a handle whose id another holder took up."""
    return TransactionFencedError(
        f"transaction id {transaction_id!r} of {handle.store.url} was taken up by another holder"
        f" since this one did, at epoch {held}; to take it back open the log again, and go on from"
        " the positions that are committed"
    )


def find_commit(
    state: TransactionState | None, ours: Number, *, url: str, tried: bool
) -> Committed | None:
    """Returns the commit of a transaction, if the state of its id says that it was committed; None
    where it was not, and may still be.

    ``tried``: a commit of it was sent, whose outcome is not known.
    """
    done = None if state is None else state.committed
    if done is not None and (done.epoch, done.number) == (ours.epoch, ours.number):
        return done
    if state is not None and state.epoch == ours.epoch:
        return None
    epoch = NONE if state is None else state.epoch
    if tried and done is not None and done.epoch > ours.epoch:
        raise CommitStateUnknownError(
            f"whether transaction {ours.number} of epoch {ours.epoch} of id"
            f" {ours.transaction_id!r} was committed to {url} is not known: the id is at epoch"
            f" {epoch}, which has committed since; read the log before you repeat it"
        )
    raise TransactionFencedError(
        f"transaction id {ours.transaction_id!r} of {url} was taken up again: it is at epoch"
        f" {epoch}, this holder has epoch {ours.epoch}; nothing of the transaction was committed;"
        " use one id for each process, or leave the work to whoever took it up"
    )


def committed_positions(handle: Handle, transaction_id: str) -> Positions:
    """Returns the positions that were last committed under an id, at the newest version; one GET,
    and one more where they are many.
    """
    try:
        return _positions_at(handle, handle.refresh().head, transaction_id)
    except FileNotFoundError:  # A document that versions since then need no more.
        return _positions_at(handle, handle.refresh().head, transaction_id)


def appended_by(
    named: Named, state: TransactionState, *, version: int, objects: int = 0
) -> AppendedBy:
    """Returns the entry that gives an id its state, by a commit of so many objects."""
    last = named.sequence, named.content
    entry = WriterEntry(named.transaction_id, TRANSACTION, None, *last, version, state)
    return AppendedBy(entry, 0, objects)


def kept_positions(
    store: Store, state: TransactionState | None, *, new_id: Callable[[], str]
) -> Positions | PositionsAt:
    """Returns the positions of an id as its next entry has them. An entry that comes out of a page
    has them inline: large ones are written as a document then (FORMAT.md §11.1).
    """
    if state is None or isinstance(state.positions, PositionsAt):
        return {} if state is None else state.positions
    return stored_positions(store, state.positions, new_id=new_id)


def _positions_at(handle: Handle, head: Head, transaction_id: str) -> Positions:
    state = state_of(handle.writer_pages, head, transaction_id)
    return {} if state is None else read_positions(handle.store, state.positions)


def left_of(head: Head, transaction_id: str) -> list[Unended]:
    """Returns the transactions of an id of this log that have not ended."""
    home = head.log.log_id
    return [e for e in head.unended if (e.name.home, e.name.id) == (home, transaction_id)]


def raised(handle: Handle, tip: Commit, transaction_id: str) -> Edit:
    """Returns the edit that raises the epoch; what was committed before stays known (H-T12),
    and what its holder left open is aborted (S48).
    """
    entry = entry_of(handle.writer_pages, tip.head, transaction_id)
    known = None if entry is None else entry.transaction
    epoch = 0 if known is None else known.epoch + 1
    positions = kept_positions(handle.store, known, new_id=handle.ids.new_id)
    committed = None if known is None else known.committed
    taken = TransactionState(epoch, NONE, committed, positions)
    named = Named(transaction_id) if entry is None else Named.of(entry)
    by = appended_by(named, taken, version=tip.version + 1)
    is_new = TRANSACTIONS not in tip.head.log.features
    features = FeatureNames(write=(TRANSACTIONS,)) if is_new else None
    ends = tuple(
        Ending(e.name, ABORTED) for e in left_of(tip.head, transaction_id) if not e.is_decided
    )
    return Edit(features=features, ends=ends, writers=(by,))
