"""The commits of transactions that are undecided for a time: over several logs, and visible ones
(FORMAT.md §11.2, COMMIT.md §9).

Each function here returns what prepares one commit in one log, from that log's head alone:

X1. `prepared_home`: the home names the transaction and who takes part.
X2. `prepared_part`: a participant gets its records, undecided.
X3. `deferred.CommitRequest` with a name, or `aborted_home`: the home decides.
X4. `ended_part`: a participant hears of it, whether it was prepared or not.
X5. `forgotten_home`, or with the next X1: the home forgets the outcome.
Z1. `appended_visible`: records of a visible transaction.

Whatever comes late finds the state of its id, and is refused: no outcome is ever another's (S48).
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from clog.storage.append import AppendRequest
from clog.storage.commit.committer import NothingToCommit, Prepare
from clog.storage.commit.handle import Handle
from clog.storage.errors import (
    CommitConflictError,
    CorruptionError,
    TransactionFencedError,
    TransactionTimeoutError,
)
from clog.storage.format.chunks import TransactionName
from clog.storage.format.commits import Commit
from clog.storage.format.edits import AppendedBy, Edit, WriterEntry
from clog.storage.format.features import TRANSACTIONS, UNDECIDED_RECORDS, FeatureNames
from clog.storage.format.head import Head
from clog.storage.format.producers import find_writer
from clog.storage.format.transactions import PARTICIPANT, TransactionState
from clog.storage.format.undecided import (
    ABORTED,
    OPEN,
    PREPARED,
    UNENDED_MAX,
    Ending,
    Joining,
    Unended,
    find_unended,
)
from clog.storage.objects.data_object import DataObject
from clog.storage.transactions.id_states import (
    AlreadyCommitted,
    Named,
    NotCommitted,
    Number,
    appended_by,
    entry_of,
    find_commit,
    kept_positions,
)

_NEEDED = FeatureNames((UNDECIDED_RECORDS,), (TRANSACTIONS,))


@dataclass(slots=True)
class Part:
    """A participant: what a transaction appends to it. ``is_tried``: it may have got that, from
    this holder.
    """

    handle: Handle
    objects: list[DataObject] = field(default_factory=list)
    is_tried: bool = False

    @property
    def url(self) -> str:
        return self.handle.standing.root.url


@dataclass(frozen=True, slots=True)
class AlreadyThere(NothingToCommit):
    """An earlier try did it."""


def name_of(handle: Handle, ours: Number) -> TransactionName:
    """Returns the name of a transaction whose home is the handle's log."""
    return TransactionName(handle.standing.log_id, ours.transaction_id, ours.epoch, ours.number)


def check_undecided(head: Head, name: TransactionName, *, url: str) -> Unended:
    """Returns the entry of a transaction that its home has not decided.

    Raises:
        TransactionTimeoutError: it is gone, or was aborted.
    """
    entry = find_unended(head.unended, name)
    if entry is None or entry.is_decided:
        raise was_aborted(name, url=url)
    return entry


def was_aborted(name: TransactionName, *, url: str) -> TransactionTimeoutError:
    """Makes the error of a transaction that others aborted."""
    return TransactionTimeoutError(
        f"transaction {name.number} of id {name.id!r} of {url} was aborted meanwhile, as it took"
        " longer than its timeout or an operator said so; nothing of it is committed; begin"
        " another one"
    )


def _of_lost_history(name: TransactionName, *, url: str) -> TransactionTimeoutError:
    return TransactionTimeoutError(
        f"{url} has records of another transaction {name.number} of epoch {name.epoch} of id"
        f" {name.id!r}, as if its home had been restored from an older copy; these are aborted now,"
        " and nothing of this one was committed; begin another one"
    )


def check_room(head: Head, *, url: str) -> None:
    """Raises if a log can have no further transaction that has not ended.

    Raises:
        CommitConflictError: it is so.
    """
    if len(head.unended) >= UNENDED_MAX:
        raise CommitConflictError(
            f"{len(head.unended)} transactions of {url} have not ended, and there may be no more;"
            " nothing was committed; commit again once some have, or end those that nobody goes on"
            f' with: "clog transactions {url}" lists them'
        )


def prepared_home(
    handle: Handle,
    ours: Number,
    parts: Sequence[Part],
    *,
    timeout_ms: int,
    closable: Collection[TransactionName],
    check_time: Callable[[], None],
) -> Prepare[AlreadyCommitted | AlreadyThere]:
    """Does X1, and X5 of the ``closable``, which are known to have ended everywhere."""
    name, url = name_of(handle, ours), handle.store.url
    participants = tuple((part.handle.standing.log_id, part.url) for part in parts)
    joining = Joining(Unended(name, PREPARED, timeout_ms, participants=participants))

    def prepare(tip: Commit, _: int) -> Edit | AlreadyCommitted | AlreadyThere:
        head = tip.head
        entry = entry_of(handle.writer_pages, head, name.id)
        state = None if entry is None else entry.transaction
        done = find_commit(state, ours, url=url, tried=False)
        if done is not None:
            return AlreadyCommitted(done.version)
        assert entry is not None, "the id was taken up"
        assert state is not None, "entries of ids have a state"
        if state.number >= ours.number:
            check_undecided(head, name, url=url)
            return AlreadyThere()
        check_time()
        mine = [e for e in head.unended if (e.name.home, e.name.id) == (name.home, name.id)]
        if left := [e for e in mine if e.name not in closable]:
            raise CommitConflictError(
                f"transaction {left[0].name.number} of id {name.id!r} of {url} is {left[0].state},"
                " but not all of its logs have heard of it; nothing was committed; commit again"
                f' once they can be reached: "clog transactions {url}" says which cannot, and ends'
                " it without one that is gone for good (--abort ID --force)"
            )
        closed = tuple(Ending(e.name, e.state) for e in mine)
        check_room(replace(head, unended=head.unended[len(closed) :]), url=url)
        kept = replace(
            state,
            number=ours.number,
            positions=kept_positions(handle.store, state, new_id=handle.ids.new_id),
        )
        by = appended_by(Named.of(entry), kept, version=tip.version + 1)
        return Edit(features=_lacking(head), ends=closed, unended=(joining,), writers=(by,))

    return prepare


def prepared_part(
    part: Part,
    name: TransactionName,
    home_url: str,
    *,
    timeout_ms: int,
    check_time: Callable[[], None],
) -> Prepare[AlreadyThere]:
    """Does X2.

    A home that was restored from an older copy gives epochs and numbers again that it has lost:
    what another transaction of the same name has left here is not taken for this one.
    """
    handle, url = part.handle, part.handle.store.url
    tried, part.is_tried = part.is_tried, True
    request = AppendRequest(url, part.objects, None, handle.writer_pages, handle.ids.uniform)
    joining = Joining(Unended(name, PREPARED, timeout_ms, home_url), 0, len(part.objects))

    def prepare(tip: Commit, time_ms: int) -> Edit | AlreadyThere:
        head = tip.head
        state = _part_state(handle, head, name)
        if _is_before(name, state):
            raise TransactionFencedError(
                f"{url} knows a later transaction of id {name.id!r} than {name.number} of epoch"
                f" {name.epoch}; nothing of this one was committed"
            )
        if _is_same(name, state):
            if not tried and find_unended(head.unended, name) is not None:
                raise _of_lost_history(name, url=url)
            check_undecided(head, name, url=url)
            return AlreadyThere()
        check_time()
        check_room(head, url=url)
        _check_floor(part.objects, head, name, url=url)
        edit = request.prepare(tip, time_ms)
        assert isinstance(edit, Edit)
        by = _part_entry(name, tip.version + 1, len(part.objects))
        return replace(edit, features=_lacking(head), unended=(joining,), writers=(by,))

    return prepare


def aborted_home(
    handle: Handle, ours: Number, *, tried: bool
) -> Prepare[AlreadyCommitted | NotCommitted]:
    """Does X3 as an abort. It is one also where the home has not heard of the transaction: X1 may
    still be on its way. ``tried``: as of `find_commit`.
    """
    name, url = name_of(handle, ours), handle.store.url

    def prepare(tip: Commit, _: int) -> Edit | AlreadyCommitted | NotCommitted:
        entry = entry_of(handle.writer_pages, tip.head, name.id)
        state = None if entry is None else entry.transaction
        try:
            done = find_commit(state, ours, url=url, tried=tried)
        except TransactionFencedError:
            return NotCommitted()
        if done is not None:
            return AlreadyCommitted(done.version)
        assert entry is not None, "the id was taken up"
        assert state is not None, "entries of ids have a state"
        unended = find_unended(tip.head.unended, name)
        if state.number >= ours.number and (unended is None or unended.is_decided):
            return NotCommitted(by_us=True)
        kept = replace(
            state,
            number=max(state.number, ours.number),
            positions=kept_positions(handle.store, state, new_id=handle.ids.new_id),
        )
        by = appended_by(Named.of(entry), kept, version=tip.version + 1)
        return Edit(features=_lacking(tip.head), ends=(Ending(name, ABORTED),), writers=(by,))

    return prepare


def forgotten_home(name: TransactionName, outcome: str) -> Prepare[AlreadyThere]:
    """Does X5."""

    def prepare(tip: Commit, _: int) -> Edit | AlreadyThere:
        there = find_unended(tip.head.unended, name)
        return AlreadyThere() if there is None else Edit(ends=(Ending(name, outcome),))

    return prepare


def ended_part(
    handle: Handle, name: TransactionName, outcome: str, *, forced: bool = False
) -> Prepare[AlreadyThere]:
    """Does X4: a participant that was not prepared will refuse to be, from then on (H-T3).

    Raises:
        CorruptionError: an operator forced another outcome.
    """

    def prepare(tip: Commit, _: int) -> Edit | AlreadyThere:
        state = _part_state(handle, tip.head, name)
        is_undecided = find_unended(tip.head.unended, name) is not None
        if _is_same(name, state) and not is_undecided:
            if state is not None and state.forced and outcome != ABORTED:
                raise CorruptionError(
                    f"transaction {name.number} of id {name.id!r} was committed by its home"
                    f" {name.home}, but an operator had aborted it by force in"
                    f" {handle.store.url}; append its records to it again, from its other logs"
                )
            return AlreadyThere()
        if _is_before(name, state) and not is_undecided:
            return AlreadyThere()
        by = _part_entry(name, tip.version + 1, 0, forced=forced)
        writers = () if _is_before(name, state) else (by,)
        ends = (Ending(name, outcome, forced),)
        return Edit(features=_lacking(tip.head), ends=ends, writers=writers)

    return prepare


def appended_visible(
    handle: Handle,
    ours: Number,
    objects: Sequence[DataObject],
    *,
    timeout_ms: int,
    check_time: Callable[[], None],
) -> Prepare[AlreadyCommitted]:
    """Does Z1."""
    name, url = name_of(handle, ours), handle.store.url
    request = AppendRequest(url, objects, None, handle.writer_pages, handle.ids.uniform)
    joining = Joining(Unended(name, OPEN, timeout_ms), 0, len(objects))

    def prepare(tip: Commit, time_ms: int) -> Edit | AlreadyCommitted:
        head = tip.head
        entry = entry_of(handle.writer_pages, head, name.id)
        state = None if entry is None else entry.transaction
        find_commit(state, ours, url=url, tried=False)
        assert entry is not None, "the id was taken up"
        assert state is not None, "entries of ids have a state"
        if state.number >= ours.number:
            check_undecided(head, name, url=url)
        else:
            check_room(head, url=url)
        check_time()
        _check_floor(objects, head, name, url=url)
        edit = request.prepare(tip, time_ms)
        assert isinstance(edit, Edit)
        positions = kept_positions(handle.store, state, new_id=handle.ids.new_id)
        kept = replace(state, number=ours.number, positions=positions)
        named, version = Named.of(entry), tip.version + 1
        by = appended_by(named, kept, version=version, objects=len(objects))
        return replace(edit, features=_lacking(head), unended=(joining,), writers=(by,))

    return prepare


def _lacking(head: Head) -> FeatureNames | None:
    """Returns the features that the log has yet to announce."""
    there = head.log.features
    return None if all(name in there for name in (*_NEEDED.read, *_NEEDED.write)) else _NEEDED


def _check_floor(
    objects: Sequence[DataObject], head: Head, name: TransactionName, *, url: str
) -> None:
    if any(obj.stamp < head.orphan_floor for obj in objects):
        raise TransactionTimeoutError(
            f"transaction id {name.id!r} took too long: its objects in {url} are below the orphan"
            f" floor {head.orphan_floor}, and may be swept by now; nothing of it was committed;"
            " begin another one"
        )


def participant_id(name: TransactionName) -> str:
    """Returns the writer id under which a participant knows the id of another home."""
    return f"{name.home}/{name.id}"


def _part_state(handle: Handle, head: Head, name: TransactionName) -> TransactionState | None:
    entry = find_writer(handle.writer_pages, head, PARTICIPANT, participant_id(name))
    return None if entry is None else entry.transaction


def _part_entry(
    name: TransactionName, version: int, objects: int, *, forced: bool = False
) -> AppendedBy:
    state = TransactionState(name.epoch, name.number, forced=forced)
    entry = WriterEntry(participant_id(name), PARTICIPANT, None, -1, None, version, state)
    return AppendedBy(entry, 0, objects)


def _is_same(name: TransactionName, state: TransactionState | None) -> bool:
    return state is not None and (state.epoch, state.number) == (name.epoch, name.number)


def _is_before(name: TransactionName, state: TransactionState | None) -> bool:
    return state is not None and (name.epoch, name.number) < (state.epoch, state.number)
