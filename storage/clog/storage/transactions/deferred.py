"""A transaction from its holder's side: what the holder knows, and the one commit that makes all of
it visible (S49); how a transaction is committed or aborted, or its outcome found out (COMMIT.md §9,
T2 to T4).

With other logs (X1, X2, X4), a failure between X1 and X3 means that nothing has happened: the
holder tries again or aborts, and any other process may abort after the timeout. After X3 it is
committed: a participant that cannot be reached learns it later from whichever process finishes the
transaction (`several`). A visible transaction (S51; Z1) gives its records offsets immediately, for
read_uncommitted; its end decides.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from enum import Enum
from functools import partial
from typing import Protocol, TypeVar

from clog.storage.append import committing, found_offsets, offsets_of
from clog.storage.commit.appends import (
    Appended,
    AppendRequest,
    Covered,
    OfTransaction,
    Proposed,
    Writer,
    part_of,
)
from clog.storage.commit.committer import NothingToCommit, Prepare
from clog.storage.commit.handle import Handle
from clog.storage.env import dataclass
from clog.storage.errors import (
    ClogError,
    CommitConflictError,
    CommitStateUnknownError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
    TransactionFencedError,
    TransactionTimeoutError,
)
from clog.storage.format import documents
from clog.storage.format.chunks import Append
from clog.storage.format.commits import Commit, Edit, Head, edit_of
from clog.storage.format.cuts import CutEntry, CutLog, stored_logs
from clog.storage.format.documents import NONE
from clog.storage.format.transactions import (
    ABORTED,
    COMMITTED,
    TRANSACTION,
    UNENDED_MAX,
    Ending,
    ForeignPosition,
    Position,
    Positions,
    TransactionName,
    TransactionState,
)
from clog.storage.objects.writer import DataObject, discard
from clog.storage.store.contract import Puts, StoreFullError, together
from clog.storage.transactions.ids import (
    OPERATION,
    AlreadyCommitted,
    NotCommitted,
    Part,
    aborted_home,
    appended_visible,
    check_floor,
    check_undecided,
    committed_positions,
    ended_part,
    find_commit,
    forgotten_home,
    prepared_home,
    prepared_part,
    raised,
    state_of,
)

CROWDED = UNENDED_MAX // 2
PARTICIPANTS_BYTES_MAX = 64 << 10
"""Of the ids and URLs as JSON, which the home repeats in each commit until all have ended."""
_PASSING = (StoreUnavailableError, CommitConflictError, CommitStateUnknownError)

_Nothing = TypeVar("_Nothing", bound=NothingToCommit)


class Source(Protocol):
    """A log, as a transaction takes it: a `Log`."""

    @property
    def handle(self) -> Handle:
        """For transactions, not for users."""
        ...


class State(Enum):
    """The state of a transaction as far as its holder knows."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """The result of a transaction.

    Attributes:
        version: the version of the log that its commit made; the newest if there was nothing to
            commit.
        offsets: by partition, the half-open range of offsets of its records. Empty if they are no
            longer known, because a repeated commit found the first one swept.
        logs: by URL, the version of each log that took part.
    """

    version: int
    offsets: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    logs: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Holder:
    """An id that a handle holds.

    Attributes:
        epoch: the epoch at which it holds the id.
        next_number: the number of the next transaction.
        sequence, version: the sequence committed last under the id, -1 if none, and its version.
        positions: the committed positions, once they were read; no other process changes them.
        closable: transactions whose outcome all of their logs know.
        is_lost: the id was claimed again, here or by a parent process, or must be.
        is_unsure: it may have been claimed again here; the outcome of that is unknown.
        is_fenced: another holder claimed it.
    """

    transaction_id: str
    epoch: int
    positions: Positions | None = None
    next_number: int = 0
    sequence: int = NONE
    version: int = NONE
    is_lost: bool = False
    is_unsure: bool = False
    is_fenced: bool = False
    closable: set[TransactionName] = field(default_factory=set)

    @property
    def held(self) -> Sequence[int]:
        """The possible epochs of the id, unless another holder claimed it."""
        if self.is_unsure:
            return (self.epoch, self.epoch + 1)
        return (self.epoch + self.is_lost,)


@dataclass(frozen=True, slots=True)
class Began:
    """When a transaction began, by its holder's clocks: only the holder ends a deferred one."""

    wall_ms: int
    monotonic_ms: int
    timeout_ms: int


def result_of(handle: Handle, version: int, add: Append | None) -> TransactionResult:
    """Returns the result of a commit with this append."""
    return TransactionResult(
        version, offsets_of(add.chunks if add else ()), {handle.store.url: version}
    )


def _own(handle: Handle, commit: Commit, objects: Iterable[DataObject]) -> Edit:
    """Returns the part of a commit that is about these objects; it may include those of others."""
    return part_of(edit_of(handle.store, commit.record), {obj.ref.path for obj in objects})


def found_result(handle: Handle, transaction_id: str, version: int) -> TransactionResult:
    """Returns the result of an earlier try that made the commit of this version; one GET."""
    key = TRANSACTION, transaction_id
    offsets = found_offsets(handle.store, version, lambda entry: entry.key == key)
    return TransactionResult(version, offsets, {handle.store.url: version})


class Several:
    """The participants of one transaction.

    Attributes:
        is_tried: the home may know of it.
        ended: whether all participants know the outcome.
    """

    def __init__(self, handle: Handle, ours: TransactionName, timeout_ms: int) -> None:
        self._handle = handle
        self._ours = ours
        self._timeout_ms = timeout_ms
        self._parts: dict[str, Part] = {}
        self.is_tried = False
        self.ended = False

    def part(self, handle: Handle) -> Part:
        """Returns what the transaction appends to a log."""
        part = Part(handle)
        known = self._parts.get(handle.standing.log_id, part)
        if known.url != part.url:
            raise InvalidInputError(
                f"{part.url} and {known.url} are the same log, {handle.standing.log_id}, or copies"
                " of one; use one URL for it in a transaction"
            )
        if handle.standing.log_id == self._handle.standing.log_id:
            raise InvalidInputError(
                f"{part.url} is the log in which the transaction was begun, or a copy of it;"
                " append to it without log=…"
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
        """The appends by participant; logs without appends do not take part."""
        return [part for part in self._parts.values() if part.objects]

    def prepare(
        self, check_time: Callable[[], None], closable: set[TransactionName]
    ) -> AlreadyCommitted | None:
        """Does X1 and X2, or the rest of them; returns whether all is committed already."""
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
        home_url = self._handle.standing.root.url
        calls = []
        for part in self.parts:
            prepare = prepared_part(
                *(part, self._ours, home_url), timeout_ms=self._timeout_ms, check_time=check_time
            )
            calls.append((part.handle.store, partial(_committed, part.handle, prepare)))
        failed = [done for done in together(calls) if isinstance(done, Exception)]
        # A final refusal outweighs errors that allow a retry.
        for error in sorted(failed, key=lambda e: isinstance(e, _PASSING)):
            raise error
        return None

    def finish(self, outcome: str) -> Mapping[str, int]:
        """Does X4 where it can; returns the versions of the participants, by URL. If the home's
        list is long, also does X5: otherwise every id would stay listed until its next transaction.
        """

        def end(part: Part) -> int:
            ended = ended_part(part.handle, self._ours, outcome)
            part.handle.commit(ended, operation=OPERATION)
            return part.handle.tip.version

        parts = self.parts
        versions: dict[str, int] = {}
        results = together([(part.handle.store, partial(end, part)) for part in parts])
        for part, done in zip(parts, results, strict=True):
            if isinstance(done, int):
                versions[part.url] = done
            elif not isinstance(done, ClogError):  # It is decided; another process finishes it.
                raise done
        self.ended = len(versions) == len(parts)
        if self.ended and len(self._handle.tip.head.unended) > CROWDED:
            with suppress(ClogError):
                self._handle.commit(forgotten_home(self._ours, outcome), operation=OPERATION)
        return versions


def _committed(handle: Handle, prepare: Prepare[_Nothing]) -> Commit | _Nothing:
    """Commits; tries again on a newer version, as the conflict may be gone there."""
    try:
        return handle.commit(prepare, operation=OPERATION)
    except CommitConflictError:
        known = handle.tip.version
        if handle.refresh().version == known:
            raise
    return handle.commit(prepare, operation=OPERATION)


class Visible:
    """The records of one visible transaction so far.

    Attributes:
        is_tried: the log may have records of it.
        offsets: by partition, from its first record to after its last one; records of others may
            be in between.
    """

    def __init__(self, handle: Handle, ours: TransactionName, timeout_ms: int) -> None:
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
            self._handle, self._ours, objects, timeout_ms=self._timeout_ms, check_time=check_time
        )
        was_tried = self.is_tried
        self.is_tried = self._in_doubt = True
        try:
            commit = self._handle.commit(prepare, operation=OPERATION)
        except CommitStateUnknownError:
            raise
        except ClogError:  # The log has no record of this append.
            self.is_tried, self._in_doubt = was_tried, False
            raise
        self._in_doubt = False
        assert isinstance(commit, Commit), "it cannot be committed before its end"
        add = _own(self._handle, commit, objects).add
        for p, (base, end) in offsets_of(add.chunks if add else ()).items():
            self.offsets[p] = (self.offsets.get(p, (base, 0))[0], end)

    def check_certain(self) -> None:
        """Raises if it is unknown whether the log has all records."""
        if self._in_doubt:
            raise InvalidInputError(
                f"an append of transaction id {self._ours.id!r} to {self._handle.store.url}"
                " failed, but its records may have been written; abort the transaction, and begin"
                " another one"
            )


@dataclass(frozen=True, slots=True)
class OwnCut:
    """A cut that a transaction names with its commit; see `Transaction.name_cut`."""

    logs: tuple[CutLog, ...]
    members: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """A transaction as it is committed (T3). ``positions``: all positions of the id from then on;
    None: unchanged. ``is_undecided``: until this commit (X3, Z2).
    """

    handle: Handle
    ours: TransactionName
    objects: Sequence[DataObject]
    positions: Positions | None
    check_time: Callable[[], None]
    tried: bool
    sequence: int
    content: str | None = None
    covered: Covered | None = None
    cut: OwnCut | None = None
    is_undecided: bool = False

    def prepare(self, tip: Commit, time_ms: int) -> Edit | AlreadyCommitted:
        """Returns the edit, given the tip."""
        store, pages, ours = self.handle.store, self.handle.writer_pages, self.ours
        known = state_of(pages, tip.head, ours.id)
        done = find_commit(known, ours, url=store.url, tried=self.tried)
        if done is not None:
            return AlreadyCommitted(done.version)
        if self.is_undecided:
            check_undecided(tip.head, ours, url=store.url)
        self.check_time()
        check_floor(self.objects, tip.head, ours, url=store.url)
        request = AppendRequest(self.proposed(), pages, self.handle.ids, self.covered)
        edit = request.prepare(tip, time_ms)
        assert isinstance(edit, Edit), "it is not committed yet"
        if self.cut is not None:
            edit = self._with_cut(edit, self.cut, tip.head, time_ms)
        return replace(edit, ends=(Ending(ours, COMMITTED),)) if self.is_undecided else edit

    def _with_cut(self, edit: Edit, cut: OwnCut, head: Head, time_ms: int) -> Edit:
        """Returns the edit with a cut without keeps, named like the id (FORMAT.md §20)."""
        stored = stored_logs(self.handle.store, cut.logs, new_id=self.handle.ids.new_id)
        new = {i: url for i, url in cut.members.items() if head.members.get(i) != url}
        gone = {i: None for i in head.members if i not in cut.members}
        return replace(
            edit,
            members={**new, **gone},
            cuts={self.ours.id: CutEntry(None, time_ms, NONE, stored)},
        )

    def proposed(self) -> Proposed:
        """Returns the append as a proposal holds it."""
        ours = self.ours
        writer = Writer(ours.id, TRANSACTION, self.sequence, content=self.content)
        transaction = OfTransaction(ours.epoch, ours.number, self.positions)
        return Proposed(tuple(self.objects), writer, transaction)


class Committing:
    """One transaction as far as its holder knows.

    Attributes:
        objects: what it appends to the log in which it was begun.
        puts: its objects on their way, in all logs.
        positions: the positions that it sets, by source and partition.
        covered: up to which offsets it covers partitions of that log (FORMAT.md §16).
        given: by partition, from the first to after the last offset that came with records.
        cut: the cut that its commit names.
        several, visible: its records in other logs, or already in this one.
        tried: a commit of it was sent, with an unknown outcome.
        content: a hash of what it appends, which the log stores for a repetition.
    """

    def __init__(
        self, handle: Handle, holder: Holder, began: Began, *, sequence: int, visible: bool
    ) -> None:
        self._handle = handle
        self.holder = holder
        home, number = handle.standing.log_id, holder.next_number
        self.ours = TransactionName(home, holder.transaction_id, holder.epoch, number)
        self.began = began
        self.objects: list[DataObject] = []
        self.puts = Puts()
        self.positions: dict[str, dict[int, Position | ForeignPosition]] = {}
        self.covered: Covered | None = None
        self.given: dict[int, tuple[int, int]] = {}
        self.cut: OwnCut | None = None
        self.state = State.OPEN
        self.result: TransactionResult | None = None
        self.tried = False
        self.content: str | None = None
        self.several = Several(handle, self.ours, began.timeout_ms)
        self.visible = Visible(handle, self.ours, began.timeout_ms) if visible else None
        self._all_positions: Positions | None = None
        self._in_doubt = False  # An earlier try may have been decided.
        self._found_no_room = False
        self._sequence = sequence
        if sequence == holder.sequence != NONE:
            self.result = found_result(handle, holder.transaction_id, holder.version)
            self.state = State.COMMITTED

    def commit(self) -> None:
        """Commits all of it; see `Transaction.commit`."""
        try:
            self.result = self._committed() if self.has_content() else self._nothing()
        except TransactionFencedError:
            self.fence()
            raise
        except TransactionTimeoutError:
            self.state = State.ABORTED
            raise
        except StoreFullError:
            self._found_no_room = True
            raise
        except NotFoundError:
            self._handle.withdraw(obj.ref.path for obj in self.objects)
            for part in self.several.parts:
                part.handle.withdraw(obj.ref.path for obj in part.objects)
            raise
        self.state = State.COMMITTED

    def abort(self) -> None:
        """Ends a transaction that certainly has nothing in a log."""
        self.state = State.ABORTED
        if self._found_no_room:  # Not before: a repeated commit needs the objects.
            discard(self._handle.store, self.objects)

    def append_visible(self, visible: Visible, objects: "Sequence[DataObject]") -> None:
        """Commits records of a visible transaction, undecided."""
        try:
            with committing(self._handle, objects):
                visible.append(objects, self.check_time)
        except TransactionFencedError:
            self.fence()
            raise

    @property
    def _url(self) -> str:
        return self._handle.store.url

    def has_content(self) -> bool:
        """Returns whether there is anything to commit."""
        objects = self.objects or self.several.parts
        is_more = self.covered is not None or self.cut is not None or self.is_undecided
        return bool(objects or self.positions or is_more)

    @property
    def is_undecided(self) -> bool:
        """Whether some log may hold undecided records of it."""
        return self.several.is_tried or (self.visible is not None and self.visible.is_tried)

    def _nothing(self) -> TransactionResult:
        """Ends a transaction without content and without a commit, to keep the log free of them."""
        tip = self._handle.refresh()
        self.find_commit(state_of(self._handle.writer_pages, tip.head, self.ours.id))
        self.check_time()
        return result_of(self._handle, tip.version, None)

    def _committed(self) -> TransactionResult:
        if self.visible is not None:
            self.visible.check_certain()
        self.puts.settle()
        if not self.tried:
            self._all_positions = self._merged()
        tried, self.tried = self.tried, True
        was_in_doubt, self._in_doubt = self._in_doubt, True  # Until the outcome is known.
        try:
            if was_in_doubt:  # Others, or the next holder, may have committed since.
                self._handle.refresh()
            done = self._appended(tried=tried)
        except CommitStateUnknownError:
            raise
        except ClogError as e:
            self._in_doubt = was_in_doubt
            # An earlier try may still be on its way, and would contradict a final error.
            is_over = not isinstance(e, (StoreUnavailableError, CommitConflictError))
            must_end = is_over if self.is_undecided else tried
            if self._in_doubt and not must_end:
                raise self._still_unknown(e) from e
            if not must_end or not self.make_certain():
                self.tried = self.is_undecided
                self._check_fenced(e)
                raise
            assert self.result is not None, "a committed transaction has a result"
            return self.result
        self.holder.positions = self._all_positions or self.holder.positions
        self.holder.sequence, self.holder.version = self._sequence, done.version
        if isinstance(done, AlreadyCommitted):
            return self._found(done)
        return self._completed(result_of(self._handle, done.version, done.edit.add))

    def _appended(self, *, tried: bool) -> Appended | AlreadyCommitted:
        """Does T3, in one log or, before it, X1 and X2 in several."""
        if self.several.parts:
            done = self.several.prepare(self.check_time, self.holder.closable)
            if done is not None:
                return done
        request = CommitRequest(
            *(self._handle, self.ours, self.objects, self._all_positions),
            *(self.check_time, tried, self._sequence, self.content),
            covered=self.covered,
            cut=self.cut,
            is_undecided=self.is_undecided,
        )
        if not self.is_undecided:
            alone = bool(self.given) or self.covered is not None or self.cut is not None
            return self._handle.append(request.prepare, None if alone else request.proposed())
        commit = self._handle.commit(request.prepare, operation=OPERATION)
        if isinstance(commit, AlreadyCommitted):
            return commit
        return Appended(commit.version, _own(self._handle, commit, self.objects))

    def _completed(self, result: TransactionResult) -> TransactionResult:
        """Informs the participants (X4) and returns the complete result."""
        if self.visible is not None:
            result = replace(result, offsets=self.visible.offsets)
        others = self._finished(COMMITTED)
        return replace(result, logs={**result.logs, **others})

    def _finished(self, outcome: str) -> Mapping[str, int]:
        versions = self.several.finish(outcome) if self.several.is_tried else {}
        if self.several.is_tried and self.several.ended:
            self.holder.closable.add(self.ours)
        return versions

    def make_certain(self) -> bool:
        """Finds out whether a commit that was tried happened, and returns that. If not, it never
        will: this claims the id, or aborts the transaction in its home.
        """
        try:
            if self.is_undecided:
                prepare = aborted_home(self._handle, self.ours, tried=self._in_doubt)
                done = self._handle.commit(prepare, operation=OPERATION)
            else:
                done = self._end_unknown()
        except (StoreUnavailableError, CommitConflictError) as e:
            raise self._still_unknown(e) from e
        if isinstance(done, AlreadyCommitted):
            # If its offsets cannot be read now, the outcome stays unknown.
            self.result, self.state = self._found(done), State.COMMITTED
            return True
        if isinstance(done, NotCommitted) and not done.by_us:
            self.fence()
        else:
            self.holder.is_lost = not self.is_undecided  # First, as an interrupt may follow.
            self.holder.is_unsure = False
            self.state = State.ABORTED
        self.tried = self._in_doubt = False
        self._finished(ABORTED)
        return False

    def _end_unknown(self) -> AlreadyCommitted | NotCommitted:
        """Settles the outcome of an unknown commit (H-T13); one commit if it did not happen."""
        handle, ours, holder = self._handle, self.ours, self.holder
        was_unsure = holder.is_unsure

        def prepare(tip: Commit, _: int) -> Edit | AlreadyCommitted | NotCommitted:
            holder.is_unsure = was_unsure
            known = state_of(handle.writer_pages, tip.head, ours.id)
            try:
                done = find_commit(known, ours, url=self._url, tried=True)
            except TransactionFencedError:
                return NotCommitted()
            if done is not None:
                return AlreadyCommitted(done.version)
            holder.is_unsure = True  # If this is interrupted, the epoch may be the new one.
            return raised(handle, tip, ours.id)

        try:
            done = handle.commit(prepare, operation=OPERATION)
        except CommitStateUnknownError:
            raise
        except ClogError:
            holder.is_unsure = was_unsure
            raise
        if isinstance(done, AlreadyCommitted | NotCommitted):
            return done
        return NotCommitted(by_us=True)

    def _check_fenced(self, e: ClogError) -> None:
        """Raises that it is fenced, if that turned out after another error."""
        if self.state is State.FENCED and not isinstance(e, TransactionFencedError):
            raise self.fenced() from e

    def fenced(self) -> TransactionFencedError:
        """Returns the error of a transaction whose id was claimed again."""
        return TransactionFencedError(
            f"transaction id {self.ours.id!r} of {self._url} was taken over, and nothing of this"
            " transaction was committed; continue with the newer one"
        )

    def _still_unknown(self, e: ClogError) -> CommitStateUnknownError:
        return CommitStateUnknownError(
            f"whether transaction {self.ours.number} of id {self.ours.id!r} was"
            f" committed to {self._url} is still unknown: {e}; commit or abort it again"
        )

    def _found(self, done: AlreadyCommitted) -> TransactionResult:
        try:
            return self._completed(found_result(self._handle, self.ours.id, done.version))
        except StoreUnavailableError as e:
            raise CommitStateUnknownError(
                f"transaction {self.ours.number} of id {self.ours.id!r} is in version"
                f" {done.version} of {self._url}, but its offsets cannot be read now: {e};"
                " commit it again"
            ) from e

    def fence(self) -> None:
        """Notes that the id was claimed, by another holder or here."""
        self.state = State.FENCED
        self.holder.is_fenced = not (self.holder.is_lost or self.holder.is_unsure)

    def before(self) -> Positions:
        """Returns the positions committed under the id before."""
        if self.holder.positions is None:
            self.holder.positions = committed_positions(self._handle, self.ours.id)
        return self.holder.positions

    def _merged(self) -> Positions | None:
        """Returns all positions of the id from now on; None if they do not change."""
        if not self.positions:
            return None
        merged = {log_id: dict(mine) for log_id, mine in self.before().items()}
        for log_id, mine in self.positions.items():
            merged.setdefault(log_id, {}).update(mine)
        return merged

    def check_time(self) -> None:
        """Raises if it began longer ago than its timeout. Both clocks count: the monotonic one
        stops while a machine sleeps, and the wall clock may be set back.
        """
        clock, began = self._handle.clock, self.began
        elapsed_ms = max(clock.now_ms() - began.wall_ms, clock.monotonic_ms() - began.monotonic_ms)
        if elapsed_ms > began.timeout_ms:
            raise TransactionTimeoutError(
                f"transaction id {self.ours.id!r} of {self._url} began {elapsed_ms} ms ago, more"
                f" than timeout_ms={began.timeout_ms}; nothing of it was committed; begin another"
                " one, with a longer timeout or fewer records"
            )

    def find_commit(self, state: TransactionState | None) -> None:
        """Raises if the id was claimed; a transaction that was not tried has no commit."""
        try:
            find_commit(state, self.ours, url=self._url, tried=False)
        except TransactionFencedError:
            self.fence()
            raise
