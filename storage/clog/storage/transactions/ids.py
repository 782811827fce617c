"""The state of transactions in a log, and every commit that changes it, prepared from that log's
head alone (FORMAT.md §11, COMMIT.md §9).

Claiming an id raises its epoch and so fences its former holder (S48). Epochs only rise, and each
commit of a transaction compares its own epoch with the one in the head it commits upon. So a fenced
holder commits nothing more, however late it wakes, without any timer or other file.

Transactions that are undecided for a time, over several logs or visible (FORMAT.md §11.2):

X1. `prepared_home`: the home names the transaction and its participants, its members from then on.
X2. `prepared_part`: a participant gets its records, undecided.
X3. `deferred.CommitRequest` with a name, or `aborted_home`: the home decides.
X4. `ended_part`: a participant learns the outcome, whether it was prepared or not.
X5. `forgotten_home`, or the next X1: the home forgets the outcome.
Z1. `appended_visible`: records of a visible transaction (S51).

A late commit finds the state of its id and is refused, so outcomes are never mixed up (S48).
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import field, replace

from clog.storage.commit.appends import AppendRequest, Proposed
from clog.storage.commit.committer import NothingToCommit, Prepare
from clog.storage.commit.handle import Handle
from clog.storage.config.units import DAY_MS
from clog.storage.env import dataclass
from clog.storage.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptionError,
    InvalidInputError,
    TransactionFencedError,
    TransactionTimeoutError,
)
from clog.storage.format.commits import Commit, Edit, Head, read_commit
from clog.storage.format.documents import NONE
from clog.storage.format.transactions import (
    ABORTED,
    OPEN,
    PARTICIPANT,
    PREPARED,
    TRANSACTION,
    UNENDED_MAX,
    AppendedBy,
    Committed,
    Ending,
    Joining,
    Positions,
    TransactionName,
    TransactionState,
    Unended,
    WriterEntry,
    find_unended,
    kept_positions,
    read_positions,
)
from clog.storage.format.writers import WriterPages, find_writer
from clog.storage.objects.writer import DataObject
from clog.storage.read.scan import partitions_named

ID_BYTES_MAX = 512
"""The head repeats the ids of recent writers in each commit."""
PRODUCER = "producer"
OPERATION = "transaction"
"""The operation of commits that only change the state of an id."""


@dataclass(frozen=True, slots=True)
class AlreadyCommitted(NothingToCommit):
    """The log has the transaction."""

    version: int


@dataclass(frozen=True, slots=True)
class NotCommitted(NothingToCommit):
    """The log does not have the transaction and never will: the id was claimed since."""

    by_us: bool = False


@dataclass(frozen=True, slots=True)
class AlreadyThere(NothingToCommit):
    """An earlier try did it."""


class HeldBackError(CommitConflictError):
    """Transactions that overlap hold back readers for too long already; no other one may begin."""


@dataclass(slots=True)
class Part:
    """What a transaction appends to a participant; ``is_tried``: which may already have it."""

    handle: Handle
    objects: list[DataObject] = field(default_factory=list)
    is_tried: bool = False

    @property
    def url(self) -> str:
        return self.handle.standing.root.url


def check_id(transaction_id: object) -> str:
    """Returns the id if it is valid."""
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


def state_of(pages: WriterPages, head: Head, transaction_id: str) -> TransactionState | None:
    """Returns the state of an id, None if it was never claimed."""
    entry = find_writer(pages, head, TRANSACTION, transaction_id)
    return None if entry is None else entry.transaction


def take_up(handle: Handle, transaction_id: str, *, held: Sequence[int] = ()) -> WriterEntry:
    """Claims an id for the caller by raising its epoch, and returns its entry; one commit, which
    also announces the feature if the log lacks it. ``held``: the possible epochs of the caller's
    last claim, if any; if another holder has claimed the id since, raises TransactionFencedError.
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
    """Returns the error of a handle whose id another holder claimed."""
    return TransactionFencedError(
        f"transaction id {transaction_id!r} of {handle.store.url} was taken over by another holder"
        f" after this one held it at epoch {held}; to take it back, open the log again, and"
        " continue from the committed positions"
    )


def find_commit(
    state: TransactionState | None, ours: TransactionName, *, url: str, tried: bool
) -> Committed | None:
    """Returns the commit of a transaction according to the state of its id; None if it was not
    committed and still may be. ``tried``: a commit of it was sent, with an unknown outcome.
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
            f" {ours.id!r} was committed to {url} is not known: the id is at epoch"
            f" {epoch}, which has committed since; read the log before you repeat it"
        )
    raise TransactionFencedError(
        f"transaction id {ours.id!r} of {url} was taken over: it is at epoch {epoch}, but this"
        f" holder has epoch {ours.epoch}; nothing of the transaction was committed; use a"
        " different id for each process, or leave the work to the new holder"
    )


def committed_positions(handle: Handle, transaction_id: str) -> Positions:
    """Returns the positions last committed under an id; one GET, one more for many."""
    try:
        return _positions(handle, transaction_id)
    except FileNotFoundError:  # A document that newer versions no longer need.
        return _positions(handle, transaction_id)


def _positions(handle: Handle, transaction_id: str) -> Positions:
    state = state_of(handle.writer_pages, handle.refresh().head, transaction_id)
    return {} if state is None else read_positions(handle.store, state.positions)


def markers_of(handle: Handle, partition: int) -> list[tuple[int, str, str, int | None]]:
    """Returns the markers of a partition; see `Log.markers`."""
    (p,) = partitions_named(handle.refresh().head, partition, url=handle.store.url)
    return [
        (m.offset, m.id, m.outcome, None if m.horizon_ms == NONE else m.horizon_ms)
        for m in handle.manifest().markers
        if m.partition == p
    ]


def last_sequence(handle: Handle, writer_id: str, kind: str | None) -> int | None:
    """Returns the sequence last committed under an id; see `Log.sequence`. One GET, and those of
    pages of older writers; in a log with `proposals` a LIST or two more, or a commit that combines
    if an append of the id is pending (COMMIT.md §14).
    """
    if kind not in (None, TRANSACTION, PRODUCER):
        raise InvalidInputError(
            f"kind={kind!r} is not a kind of writer id; allowed: {PRODUCER}, {TRANSACTION}, or None"
        )
    kinds = (TRANSACTION, PRODUCER) if kind is None else (kind,)
    tip, pages = handle.end_pending([(one, writer_id) for one in kinds]), handle.writer_pages
    entries = handle.with_pages(
        tip, lambda at: [find_writer(pages, at.head, one, writer_id) for one in kinds]
    )
    found = [e.sequence for e in entries if e is not None and e.sequence != NONE]
    if len(found) > 1:
        raise InvalidInputError(
            f"{handle.store.url} has both a producer and a transaction with id {writer_id!r:.80},"
            f" each with its own sequence; choose with kind={PRODUCER!r} or kind={TRANSACTION!r}"
        )
    return found[0] if found else None


def entry_by(
    entry: WriterEntry, state: TransactionState, *, version: int, objects: int = 0
) -> AppendedBy:
    """Returns the entry that sets the state of an id in a commit of that many objects."""
    return AppendedBy(replace(entry, version=version, transaction=state), 0, objects)


def left_of(head: Head, transaction_id: str) -> list[Unended]:
    """Returns the transactions of an id of this log that have not ended."""
    home = head.log.log_id
    return [e for e in head.unended if (e.name.home, e.name.id) == (home, transaction_id)]


def raised(handle: Handle, tip: Commit, transaction_id: str) -> Edit:
    """Returns the edit that raises the epoch. The last commit stays known (H-T12), and transactions
    that the former holder left open are aborted (S48).
    """
    entry = find_writer(handle.writer_pages, tip.head, TRANSACTION, transaction_id)
    known = None if entry is None else entry.transaction
    epoch = 0 if known is None else known.epoch + 1
    positions = kept_positions(handle.store, known, new_id=handle.ids.new_id)
    taken = TransactionState(epoch, NONE, None if known is None else known.committed, positions)
    entry = entry or WriterEntry(transaction_id, TRANSACTION, None, NONE, None, NONE)
    return Edit(
        ends=tuple(
            Ending(e.name, ABORTED) for e in left_of(tip.head, transaction_id) if not e.is_decided
        ),
        writers=(entry_by(entry, taken, version=tip.version + 1),),
    )


def check_undecided(head: Head, name: TransactionName, *, url: str) -> Unended:
    """Returns the entry of a transaction that its home has not decided."""
    entry = find_unended(head.unended, name)
    if entry is None or entry.is_decided:
        raise TransactionTimeoutError(
            f"transaction {name.number} of id {name.id!r} of {url} was aborted, because it took"
            " longer than its timeout or an operator aborted it; nothing of it is committed; begin"
            " another one"
        )
    return entry


def _check_room(head: Head, *, url: str, ending: int = 0) -> None:
    """Raises if a log cannot have another unfinished transaction."""
    if (unended := len(head.unended) - ending) >= UNENDED_MAX:
        raise CommitConflictError(
            f"{unended} transactions of {url} have not ended, the maximum; nothing was committed;"
            " commit again once some have ended, or end abandoned ones:"
            f' "clog describe {url} transactions" lists them'
        )


def overlapping(head: Head) -> list[Unended]:
    """Returns the visible transactions that hold back an older one which has ended."""
    undecided = {entry.version for entry in head.unended if not entry.is_decided}
    return [e for e in head.unended if e.state == OPEN and e.oldest not in undecided]


def _check_held_back(
    handle: Handle, tip: Commit, objects: Sequence[DataObject], time_ms: int
) -> None:
    """Raises if a visible transaction would begin where readers have waited for too long for others
    that overlap (S51). One GET if some do.
    """
    parts = {chunk.partition for obj in objects for chunk in obj.chunks}
    holders = [e for e in overlapping(tip.head) if not parts.isdisjoint(e.holds)]
    if not holders:
        return
    allowed_ms, oldest = max(e.timeout_ms for e in holders), min(e.oldest for e in holders)
    try:
        waited_ms = time_ms - read_commit(handle.store, oldest).record.time_ms
        waited = f"{waited_ms} ms"
    except FileNotFoundError:  # Deleted with its block.
        waited_ms, waited = DAY_MS + 1, "more than a day"
    if waited_ms > allowed_ms:
        ids = ", ".join(sorted(repr(e.name.id) for e in holders))
        where = sorted(parts.intersection(p for e in holders for p in e.holds))
        raise HeldBackError(
            f"readers of partitions {where} of {handle.store.url} have waited {waited}, since"
            f" version {oldest}, for visible transactions that overlap, longer than the longest"
            f" timeout_ms={allowed_ms} of those that are open: {ids}; no other one begins there"
            " before these have ended, and nothing was appended; append again later, or give such"
            " writers partitions of their own, or deferred transactions"
        )


def _held(
    handle: Handle, head: Head, ours: TransactionName, *, tried: bool = False
) -> tuple[WriterEntry, TransactionState] | AlreadyCommitted:
    """Returns the entry of an id, held at the epoch of ours; or that ours is committed."""
    entry = find_writer(handle.writer_pages, head, TRANSACTION, ours.id)
    state = None if entry is None else entry.transaction
    if (done := find_commit(state, ours, url=handle.store.url, tried=tried)) is not None:
        return AlreadyCommitted(done.version)
    assert entry is not None, "the id was taken up"
    assert state is not None, "entries of ids have a state"
    return entry, state


def _numbered(
    handle: Handle,
    tip: Commit,
    held: tuple[WriterEntry, TransactionState],
    ours: TransactionName,
    objects: int = 0,
) -> AppendedBy:
    """Returns the entry that records the number of ours, with unchanged positions."""
    entry, state = held
    positions = kept_positions(handle.store, state, new_id=handle.ids.new_id)
    kept = replace(state, number=max(state.number, ours.number), positions=positions)
    return entry_by(entry, kept, version=tip.version + 1, objects=objects)


def prepared_home(
    handle: Handle,
    ours: TransactionName,
    parts: Sequence[Part],
    *,
    timeout_ms: int,
    closable: Collection[TransactionName],
    check_time: Callable[[], None],
) -> Prepare[AlreadyCommitted | AlreadyThere]:
    """Does X1, and X5 for the ``closable``, which are known to have ended everywhere."""
    url = handle.store.url
    participants = tuple((part.handle.standing.log_id, part.url) for part in parts)
    entry = Unended(name=ours, state=PREPARED, timeout_ms=timeout_ms, participants=participants)
    joining = Joining(entry)

    def prepare(tip: Commit, _: int) -> Edit | AlreadyCommitted | AlreadyThere:
        head = tip.head
        held = _held(handle, head, ours)
        if isinstance(held, AlreadyCommitted):
            return held
        if held[1].number >= ours.number:
            check_undecided(head, ours, url=url)
            return AlreadyThere()
        check_time()
        mine = left_of(head, ours.id)
        if left := [e for e in mine if e.name not in closable]:
            raise CommitConflictError(
                f"transaction {left[0].name.number} of id {ours.id!r} of {url} is"
                f" {left[0].state}, but not all of its logs know that; nothing was committed;"
                f' commit again once they can be reached: "clog describe {url} transactions" shows'
                f' which cannot, and "clog alter {url} --abort ID --force" ends it without a log'
                " that no longer exists"
            )
        _check_room(head, url=url, ending=len(mine))
        return Edit(
            ends=tuple(Ending(e.name, e.state) for e in mine),
            unended=(joining,),
            writers=(_numbered(handle, tip, held, ours),),
            members={i: at for i, at in participants if head.members.get(i) != at},
        )

    return prepare


def prepared_part(
    part: Part,
    name: TransactionName,
    home_url: str,
    *,
    timeout_ms: int,
    check_time: Callable[[], None],
) -> Prepare[AlreadyThere]:
    """Does X2. A home that was restored from an older copy reuses epochs and numbers, so records of
    another transaction with the same name may be here; they are not taken for those of this one.
    """
    handle, url = part.handle, part.handle.store.url
    tried, part.is_tried = part.is_tried, True
    request = AppendRequest(Proposed(tuple(part.objects)), handle.writer_pages, handle.ids)
    entry = Unended(name=name, state=PREPARED, timeout_ms=timeout_ms, home_url=home_url)
    joining = Joining(entry, 0, len(part.objects))

    def prepare(tip: Commit, time_ms: int) -> Edit | AlreadyThere:
        head = tip.head
        state = _part_state(handle, head, name)
        if _is_before(name, state):
            raise TransactionFencedError(
                f"{url} has a later transaction of id {name.id!r} than {name.number} of epoch"
                f" {name.epoch}; nothing of this one was committed"
            )
        if _is_same(name, state):
            if not tried and find_unended(head.unended, name) is not None:
                raise TransactionTimeoutError(
                    f"{url} has records of another transaction {name.number} of epoch"
                    f" {name.epoch} of id {name.id!r}, as if its home had been restored from an"
                    " older copy; those are aborted now, and nothing of this one was committed;"
                    " begin another one"
                )
            check_undecided(head, name, url=url)
            return AlreadyThere()
        check_time()
        _check_room(head, url=url)
        check_floor(part.objects, head, name, url=url)
        edit = request.prepare(tip, time_ms)
        assert isinstance(edit, Edit)
        by = _part_entry(name, tip.version + 1, len(part.objects))
        return replace(edit, unended=(joining,), writers=(by,))

    return prepare


def aborted_home(
    handle: Handle, ours: TransactionName, *, tried: bool
) -> Prepare[AlreadyCommitted | NotCommitted]:
    """Does X3 as an abort, also if the home does not know the transaction, as X1 may still be on
    its way. ``tried``: as of `find_commit`.
    """

    def prepare(tip: Commit, _: int) -> Edit | AlreadyCommitted | NotCommitted:
        try:
            held = _held(handle, tip.head, ours, tried=tried)
        except TransactionFencedError:
            return NotCommitted()
        if isinstance(held, AlreadyCommitted):
            return held
        unended = find_unended(tip.head.unended, ours)
        if held[1].number >= ours.number and (unended is None or unended.is_decided):
            return NotCommitted(by_us=True)
        return Edit(
            ends=(Ending(ours, ABORTED),),
            writers=(_numbered(handle, tip, held, ours),),
        )

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
    """Does X4: a participant that was not prepared refuses to be from then on (H-T3)."""

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
        return Edit(ends=ends, writers=writers)

    return prepare


def appended_visible(
    handle: Handle,
    ours: TransactionName,
    objects: Sequence[DataObject],
    *,
    timeout_ms: int,
    check_time: Callable[[], None],
) -> Prepare[AlreadyCommitted]:
    """Does Z1."""
    url = handle.store.url
    request = AppendRequest(Proposed(tuple(objects)), handle.writer_pages, handle.ids)
    joining = Joining(Unended(name=ours, state=OPEN, timeout_ms=timeout_ms), 0, len(objects))

    def prepare(tip: Commit, time_ms: int) -> Edit | AlreadyCommitted:
        head = tip.head
        held = _held(handle, head, ours)
        if isinstance(held, AlreadyCommitted):
            return held
        if held[1].number >= ours.number:
            check_undecided(head, ours, url=url)
        else:
            _check_room(head, url=url)
            _check_held_back(handle, tip, objects, time_ms)
        check_time()
        check_floor(objects, head, ours, url=url)
        edit = request.prepare(tip, time_ms)
        assert isinstance(edit, Edit)
        by = _numbered(handle, tip, held, ours, len(objects))
        return replace(edit, unended=(joining,), writers=(by,))

    return prepare


def check_floor(
    objects: Sequence[DataObject], head: Head, name: TransactionName, *, url: str
) -> None:
    """Raises if objects of a transaction are so old that they may be swept by now."""
    stamps = [obj.ref.stamp for obj in objects]
    if stamps and head.may_be_swept(stamp := min(stamps)):
        raise TransactionTimeoutError(
            f"transaction id {name.id!r} of {url} took too long: its objects began at version"
            f" {stamp}, below the orphan floor {head.orphan_floor}, and may have been swept;"
            " nothing of it was committed; begin another one"
        )


def participant_id(name: TransactionName) -> str:
    """Returns the writer id under which a participant stores the id of another home."""
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
