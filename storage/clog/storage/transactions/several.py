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

The participants of one transaction: from its holder's side (COMMIT.md §9, X1, X2, X4).

Between X1 and X3 anything may fail, and nothing has happened: the holder tries again, or aborts,
and whoever comes by after the timeout aborts as well. After X3 it is committed: a participant that
cannot be reached then hears of it from whoever finishes it (`several`).

Visible transactions in one log (S51; COMMIT.md §9, Z1): records get their offsets at once, and
read_uncommitted sees them; the end decides.

Finishing what others left: whoever meets a transaction that has not ended asks its home, and
tells the logs that have not heard of the outcome (COMMIT.md §9, X3 to X5).

The home is believed, and nothing else. Undecided there, a transaction is aborted once its timeout
has passed, by the store's times; of two who decide one comes first. Where the home cannot be read,
or does not know the transaction, nothing is guessed: the last stable offset stays, and it is told
why.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from clog.storage.append import AppendRequest, offsets_of
from clog.storage.commit.committer import NothingToCommit, Prepare, is_comparable, store_now_ms
from clog.storage.commit.handle import Handle
from clog.storage.errors import (
    ClogError,
    CommitConflictError,
    CommitStateUnknownError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    TransactionFencedError,
    TransactionTimeoutError,
)
from clog.storage.format import documents
from clog.storage.format.chunks import NONE, TransactionName
from clog.storage.format.commits import Commit, edit_of, read_commit
from clog.storage.format.edits import AppendedBy, Edit, WriterEntry
from clog.storage.format.features import TRANSACTIONS, UNDECIDED_RECORDS, FeatureNames
from clog.storage.format.head import Head
from clog.storage.format.transactions import (
    ABORTED,
    COMMITTED,
    OPEN,
    PARTICIPANT,
    PREPARED,
    UNENDED_MAX,
    Ending,
    Joining,
    TransactionState,
    Unended,
    find_unended,
)
from clog.storage.format.writers import find_writer
from clog.storage.objects.layout import DataObject
from clog.storage.transactions.ids import (
    OPERATION,
    AlreadyCommitted,
    Named,
    NotCommitted,
    Number,
    appended_by,
    entry_of,
    find_commit,
    kept_positions,
    state_of,
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
    """Returns the entry of a transaction that its home has not decided."""
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
    """Raises if a log can have no further transaction that has not ended."""
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
    """Does X4: a participant that was not prepared will refuse to be, from then on (H-T3)."""

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


_Nothing = TypeVar("_Nothing", bound=NothingToCommit)
CROWDED = UNENDED_MAX // 2
PARTICIPANTS_BYTES_MAX = 4 << 10
"""Of their ids and URLs as JSON: the home repeats them in each commit until all have ended."""


def found_part(handle: Handle, name: TransactionName) -> tuple[int, dict[int, tuple[int, int]]]:
    """Returns at which version a participant got the records of a transaction, the one that was
    committed last under its id, and the offsets they have; no offsets where it got none. Up to 3
    GET.
    """
    store, head = handle.store, handle.refresh().head
    entry = find_unended(head.unended, name)
    try:
        if entry is None:
            by = find_writer(handle.writer_pages, head, PARTICIPANT, participant_id(name))
            state = None if by is None else by.transaction
            last = (-1, -1) if state is None else (state.epoch, state.number)
            if by is None or last < (name.epoch, name.number):
                return handle.tip.version, {}
            if last > (name.epoch, name.number):
                raise NotFoundError(f"{store.url} knows a later transaction of id {name.id!r}")
            entry = find_unended(read_commit(store, by.version - 1).head.unended, name)
        if entry is None:  # It ended without being prepared here.
            return handle.tip.version, {}
        edit = edit_of(store, read_commit(store, entry.version).record)
    except FileNotFoundError as e:
        raise NotFoundError(f"the version of {store.url} that has it expired") from e
    mine = (joining for joining in edit.unended if joining.entry.name == name)
    return entry.version, offsets_of(pair for joining in mine for pair in edit.chunks_of(joining))


class Several:
    """The participants of one transaction.

    Attributes:
        is_tried: the home may have heard of it.
        ended: whether all participants have heard of the outcome.
    """

    def __init__(self, handle: Handle, ours: Number, timeout_ms: int) -> None:
        self._handle = handle
        self._ours = ours
        self._timeout_ms = timeout_ms
        self._parts: dict[str, Part] = {}
        self.is_tried = False
        self.ended = False

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def name(self) -> TransactionName:
        """Names the transaction in all of its logs."""
        return name_of(self._handle, self._ours)

    def part(self, handle: Handle) -> Part:
        """Returns what the transaction appends to a log."""
        part = Part(handle)
        known = self._parts.get(handle.standing.log_id, part)
        if known.url != part.url:
            raise InvalidInputError(
                f"{part.url} and {known.url} are one log, {handle.standing.log_id}, or copies of"
                " one; give it one name in a transaction"
            )
        if handle.standing.log_id == self._handle.standing.log_id:
            raise InvalidInputError(
                f"{part.url} is the log in which the transaction was begun, or a copy of it; append"
                " to that one without log=…"
            )
        named = [[log_id, p.url] for log_id, p in self._parts.items()]
        named.append([handle.standing.log_id, part.url])
        if len(documents.body_json({"participants": named})) > PARTICIPANTS_BYTES_MAX:
            raise InvalidInputError(
                f"the names of {len(named)} logs are longer than {PARTICIPANTS_BYTES_MAX} bytes;"
                " use fewer logs in a transaction"
            )
        return self._parts.setdefault(handle.standing.log_id, part)

    @property
    def parts(self) -> list[Part]:
        """What is appended, by participant; those that only were mentioned take no part."""
        return [part for part in self._parts.values() if part.objects]

    def prepare(
        self, check_time: Callable[[], None], closable: set[TransactionName]
    ) -> AlreadyCommitted | None:
        """Does X1 and X2, or what is left of them; tells if all is committed already."""
        home = prepared_home(
            self._handle,
            self._ours,
            self.parts,
            timeout_ms=self._timeout_ms,
            closable=closable,
            check_time=check_time,
        )
        self.is_tried = True
        done = _committed(self._handle, home)
        if isinstance(done, AlreadyCommitted):
            return done
        closable.clear()
        for part in self.parts:
            prepare = prepared_part(
                part,
                self.name,
                self._handle.standing.root.url,
                timeout_ms=self._timeout_ms,
                check_time=check_time,
            )
            _committed(part.handle, prepare)
        return None

    def finish(self, outcome: str) -> Mapping[str, int]:
        """Does X4 where it can; returns the versions of the participants, by URL. X5, too, where
        the home's list is long: of many ids each would stay in it until its next transaction.
        """
        versions: dict[str, int] = {}
        for part in self.parts:
            with suppress(ClogError):  # It is decided; who comes by later finishes it.
                done = part.handle.commit(
                    ended_part(part.handle, self.name, outcome), operation=OPERATION
                )
                assert isinstance(done, Commit | NothingToCommit)
                versions[part.url] = part.handle.tip.version
        self.ended = len(versions) == len(self.parts)
        if self.ended and len(self._handle.tip.head.unended) > CROWDED:
            with suppress(ClogError):
                self._handle.commit(forgotten_home(self.name, outcome), operation=OPERATION)
        return versions


def _committed(handle: Handle, prepare: Prepare[_Nothing]) -> Commit | _Nothing:
    """Commits; what is in the way by the version that the handle knows may be gone by now."""
    try:
        return handle.commit(prepare, operation=OPERATION)
    except CommitConflictError:
        known = handle.tip.version
        if handle.refresh().version == known:
            raise
    return handle.commit(prepare, operation=OPERATION)


class Visible:
    """What one transaction has in its log so far.

    Attributes:
        is_tried: the log may have records of it.
        offsets: by partition, from its first record to behind its last one; records of others may
            lie between.
    """

    def __init__(self, handle: Handle, ours: Number, timeout_ms: int) -> None:
        self._handle = handle
        self._ours = ours
        self._timeout_ms = timeout_ms
        self._in_doubt = False
        self.is_tried = False
        self.offsets: dict[int, tuple[int, int]] = {}

    def append(self, objects: Sequence[DataObject], check_time: Callable[[], None]) -> None:
        """Commits records, undecided."""
        self.check_certain()
        prepare = appended_visible(
            self._handle,
            self._ours,
            objects,
            timeout_ms=self._timeout_ms,
            check_time=check_time,
        )
        was_tried = self.is_tried
        self.is_tried = self._in_doubt = True
        try:
            commit = self._handle.commit(prepare, operation=OPERATION)
        except CommitStateUnknownError:
            raise
        except ClogError:  # Nothing of this append is there.
            self.is_tried, self._in_doubt = was_tried, False
            raise
        self._in_doubt = False
        assert isinstance(commit, Commit), "nothing can be committed before its end"
        add = edit_of(self._handle.store, commit.record).add
        for p, (base, end) in offsets_of(add.chunks if add else ()).items():
            self.offsets[p] = (self.offsets.get(p, (base, 0))[0], end)

    def check_certain(self) -> None:
        """Raises if it is not known whether all records are there."""
        if self._in_doubt:
            raise InvalidInputError(
                f"an append of transaction id {self._ours.transaction_id!r} to"
                f" {self._handle.store.url} failed, and perhaps its records are there; abort the"
                " transaction, and begin another one"
            )


_LOGGER = logging.getLogger("clog.storage.transactions")


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """A transaction that has not ended.

    Attributes:
        id: the transaction id.
        epoch: how often the id had been taken over before.
        number: which of the epoch's transactions it is.
        state: ``open``: more may come; ``prepared``: it waits for its home to decide;
            ``committed`` or ``aborted``: it is decided, but not all of its logs have heard of it.
        first_offsets: by partition, the first offset of an undecided record in the log.
        started_ms: when it began, in ms since 1970.
        timeout_ms: how long after that anybody may abort it.
        home: the URL of the log that decides; None: this one.
    """

    id: str
    epoch: int
    number: int
    state: str
    first_offsets: Mapping[int, int] = field(default_factory=dict)
    started_ms: int = 0
    timeout_ms: int = 0
    home: str | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A transaction that could not be finished, and why. ``is_stuck``: nothing will end it before
    somebody does something about the reason.
    """

    info: TransactionInfo
    reason: str
    is_stuck: bool


def info_of(entry: Unended) -> TransactionInfo:
    """Returns what users are told of an entry."""
    name = entry.name
    return TransactionInfo(
        *(name.id, name.epoch, name.number, entry.state, dict(entry.first)),
        *(entry.started_ms, entry.timeout_ms, entry.home_url),
    )


def finish_all(handle: Handle) -> list[Waiting]:
    """Finishes what can be finished of a log; returns what waits. No request where all has ended
    as far as the handle knows.
    """
    return [*_waiting(handle, handle.tip.head.unended, abort=False, force=False)]


def finish_left(handle: Handle, transaction_id: str, *, epoch: int) -> None:
    """Finishes what is left of an id of this log, as far as that can be done now, for who took it
    up at this epoch; what a newer holder has begun since is its own.
    """
    left = _of_id(handle.tip.head, transaction_id, home=handle.standing.log_id)
    mine = [entry for entry in left if entry.name.epoch <= epoch]
    for waiting in _waiting(handle, mine, abort=True, force=False):
        _LOGGER.warning(
            "transaction %d of id %s of %s has not ended in all of its logs: %s",
            *(waiting.info.number, transaction_id, handle.store.url, waiting.reason),
        )


def abort_all(handle: Handle, transaction_id: str, *, force: bool) -> list[TransactionInfo]:
    """Aborts what is undecided under an id, whether its timeout has passed or not, and finishes
    what is decided; returns what was there. See `Log.abort_transaction`.
    """
    found = _of_id(handle.refresh().head, transaction_id)
    if not found:
        raise NotFoundError(
            f"{handle.store.url} has no transaction of id {transaction_id!r} that has not ended;"
            f' "clog transactions {handle.store.url}" lists those that have not'
        )
    for left in _waiting(handle, found, abort=True, force=force):
        raise InvalidInputError(
            f"transaction {left.info.number} of id {transaction_id!r} of {handle.store.url} cannot"
            f" be ended: {left.reason}"
        )
    return [info_of(entry) for entry in found]


def _of_id(head: Head, transaction_id: str, home: str | None = None) -> list[Unended]:
    return [e for e in head.unended if e.name.id == transaction_id and home in (None, e.name.home)]


def _waiting(
    handle: Handle, entries: "list[Unended] | tuple[Unended, ...]", *, abort: bool, force: bool
) -> Iterator[Waiting]:
    for entry in entries:
        try:
            if entry.name.home == handle.standing.log_id:
                reason = _finish_home(handle, entry, abort=abort, force=force)
            else:
                reason = _finish_part(handle, entry, abort=abort, force=force)
        except (ClogError, FileNotFoundError) as e:
            reason = str(e)
        if reason is not None:
            yield Waiting(info_of(entry), reason, reason != _not_due(entry))


def _finish_home(handle: Handle, entry: Unended, *, abort: bool, force: bool) -> str | None:
    """Decides in the home where that is due, and tells the participants; returns why it waits.
    With ``force`` those that cannot be told are given up: one that comes back is answered by the
    state of the id as long as that says what became of it, and nothing is guessed after that.
    """
    outcome = _decided_at_home(handle, entry.name, None, abort=abort)
    if outcome is None:
        return _not_due(entry)
    away: list[str] = []
    for log_id, url in entry.participants:
        try:
            part = _opened(handle, url, log_id)
            _check_original(handle, part, entry.name, outcome)
            part.commit(ended_part(part, entry.name, outcome), operation=OPERATION)
        except (ClogError, FileNotFoundError) as e:
            away.append(f"{url} cannot be told that it was {outcome}: {e}")
    if away and not force:
        remedy = "give access to it at that URL, or, if it is gone for good, abort by force"
        return f"{away[0]}; {remedy}"
    handle.commit(forgotten_home(entry.name, outcome), operation=OPERATION)
    return None


def _check_original(handle: Handle, part: Handle, name: TransactionName, outcome: str) -> None:
    """Raises if the home is a copy, and the log that it was copied from says otherwise: a copy that
    is looked after must not decide what its original has decided. No request where the home is at
    the URL that the participant knows.
    """
    entry = find_unended(part.tip.head.unended, name)
    url = handle.standing.root.url
    if entry is None or entry.home_url in (None, url):
        return
    try:
        original = _opened(part, str(entry.home_url), name.home)
    except NotFoundError:
        return  # The home was moved.
    if _outcome_at(original, name, part.standing.log_id) != outcome:
        raise NotFoundError(
            f"{entry.home_url}, which prepared it, does not say so; {url} seems to be a copy of"
            " that log, and decides nothing"
        )


def _finish_part(handle: Handle, entry: Unended, *, abort: bool, force: bool) -> str | None:
    """Asks the home, and ends the transaction here as it says; returns why it waits."""
    name, url, mine = entry.name, entry.home_url, handle.standing.log_id
    assert url is not None, "only in its home it has none"
    try:
        home = _opened(handle, url, name.home)
        outcome = _outcome_at(home, name, mine)
        if outcome is None and not _names(find_unended(home.tip.head.unended, name), mine):
            raise NotFoundError(
                f"{url} does not know transaction {name.number} of id {name.id!r} any more, as if"
                " it had been restored from an older copy"
            )
    except (ClogError, FileNotFoundError) as e:
        if not force:
            return (
                f"its home cannot say what became of it: {e}; nothing is guessed, and readers stop"
                " before its records; give access to its home at that URL, or, if the home is gone"
                " for good, abort it by force"
            )
        forced = ended_part(handle, name, ABORTED, forced=True)
        handle.commit(forced, operation=OPERATION)
        return None
    outcome = outcome or _decided_at_home(home, name, mine, abort=abort)
    if outcome is None:
        return _not_due(entry)
    handle.commit(ended_part(handle, name, outcome), operation=OPERATION)
    return None


def _opened(handle: Handle, url: str, log_id: str) -> Handle:
    """Opens another log at its URL."""
    root = handle.reach(url)
    try:
        other = Handle(root, clock=handle.clock, ids=handle.ids, reach=handle.reach)
    except NotFoundError as e:  # Its advice, to create one, would not help here.
        raise NotFoundError(f"no log stands at {url}: log {log_id} was deleted, or moved") from e
    if other.standing.log_id != log_id:
        raise NotFoundError(
            f"another log stands at {url}: {other.standing.log_id} in place of {log_id}, which was"
            " deleted, or moved"
        )
    return other


def _outcome_at(home: Handle, name: TransactionName, part: str | None = None) -> str | None:
    """Returns what the home says that became of a transaction; None where it does not say. To a
    ``part`` only of one in which that log takes part: a home that was restored from an older copy
    gives epochs and numbers again, to others. 1 GET where it was committed and is listed no more.
    """
    head = home.tip.head
    entry = find_unended(head.unended, name)
    if entry is not None:
        return entry.state if entry.is_decided and _names(entry, part) else None
    state = state_of(home.writer_pages, head, name.id)
    if state is None or (state.epoch, state.number) < (name.epoch, name.number):
        return None
    last = (-1, -1) if state.committed is None else (state.committed.epoch, state.committed.number)
    if state.committed is not None and last == (name.epoch, name.number):
        if part is None:
            return COMMITTED
        before = read_commit(home.store, state.committed.version - 1).head
        return COMMITTED if _names(find_unended(before.unended, name), part) else None
    return ABORTED if last < (name.epoch, name.number) else None


def _names(entry: Unended | None, part: str | None) -> bool:
    return entry is not None and part in (None, *(log_id for log_id, _ in entry.participants))


def _decided_at_home(
    home: Handle, name: TransactionName, part: str | None, *, abort: bool
) -> str | None:
    """Returns the outcome; where there is none yet and its timeout has passed, or with ``abort``,
    the home decides now. None: it is too early.
    """
    entry = find_unended(home.tip.head.unended, name)
    if entry is None or entry.is_decided:
        return _outcome_at(home, name, part)
    if not abort and _age_ms(home, entry) <= entry.timeout_ms:
        return None

    def prepare(tip: Commit, _: int) -> Edit | NothingToCommit:
        there = find_unended(tip.head.unended, name)
        if there is None or there.is_decided:
            return AlreadyThere()
        return Edit(ends=(Ending(name, ABORTED),))

    done = home.commit(prepare, operation=OPERATION)
    return ABORTED if isinstance(done, Commit) else _outcome_at(home, name, part)


def _age_ms(home: Handle, entry: Unended) -> int:
    """Returns how long ago a transaction began: by the store's times of the commit that brought it
    and of now, as the clock of its holder may be days behind; a PUT, two LIST of one name and a
    DELETE. Where the clock says that it began just now nothing is asked; where it says that it has
    yet to begin this clock is behind, or that of the holder was ahead.
    """
    age_ms = home.clock.now_ms() - entry.started_ms
    if 0 <= age_ms <= entry.timeout_ms or not is_comparable(home.clock):
        return age_ms
    found = home.store.list(documents.commit_path(entry.version))
    began_ms = next((commit.modified_ms for commit in found), NONE)
    now_ms = store_now_ms(home.store, clock=home.clock, ids=home.ids)
    if began_ms == NONE or now_ms is None:  # Deleted with its block, a day ago at least.
        return age_ms
    return now_ms - began_ms


def _not_due(entry: Unended) -> str:
    return (
        f"its holder may still commit it, until {entry.timeout_ms} ms after it began at"
        f" {entry.started_ms}"
    )
