"""How a transaction is committed, aborted, or found to be one of both (COMMIT.md §9, T2 to T4).

Not here: what users call (`transaction`), what single commits ask of a head (`deferred`,
`undecided`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from clog.storage.commit.append_queue import Appended
from clog.storage.commit.handle import Handle
from clog.storage.errors import (
    ClogError,
    CommitConflictError,
    CommitStateUnknownError,
    StoreUnavailableError,
    TransactionFencedError,
    TransactionTimeoutError,
)
from clog.storage.format.chunks import NONE
from clog.storage.format.commits import edit_of
from clog.storage.format.transactions import (
    Position,
    Positions,
    TransactionState,
)
from clog.storage.format.undecided import ABORTED, COMMITTED
from clog.storage.transactions.deferred import (
    Began,
    CommitRequest,
    Holder,
    State,
    TransactionResult,
    found_result,
    result_of,
)
from clog.storage.transactions.id_states import (
    OPERATION,
    AlreadyCommitted,
    NotCommitted,
    Number,
    committed_positions,
    end_unknown,
    find_commit,
    state_of,
)
from clog.storage.transactions.several import Several
from clog.storage.transactions.undecided import aborted_home
from clog.storage.transactions.visible import Visible

if TYPE_CHECKING:
    from clog.storage.objects.data_object import DataObject


class Committing:
    """One transaction, as far as its holder knows.

    Attributes:
        objects: what it appends to the log in which it was begun.
        positions: those that it names, by log id and partition.
        several, visible: what it has in other logs, or in this one already.
        tried: a commit of it was sent, whose outcome is not known.
        content: a hash of what it appends, which the log keeps for who does it again.
    """

    def __init__(
        self, handle: Handle, holder: Holder, began: Began, *, sequence: int, visible: bool
    ) -> None:
        self._handle = handle
        self.holder = holder
        self.ours = Number(holder.transaction_id, holder.epoch, holder.next_number)
        self.began = began
        self.objects: list[DataObject] = []
        self.positions: dict[str, dict[int, Position]] = {}
        self.state = State.OPEN
        self.result: TransactionResult | None = None
        self.tried = False
        self.content: str | None = None
        self.several = Several(handle, self.ours, began.timeout_ms)
        self.visible = Visible(handle, self.ours, began.timeout_ms) if visible else None
        self._all_positions: Positions | None = None
        self._in_doubt = False  # Some try may have been decided.
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
        self.state = State.COMMITTED

    def append_visible(self, visible: Visible, objects: "Sequence[DataObject]") -> None:
        """Commits records of a visible transaction, undecided."""
        try:
            visible.append(objects, self.check_time)
        except TransactionFencedError:
            self.fence()
            raise

    @property
    def _url(self) -> str:
        return self._handle.store.url

    def has_content(self) -> bool:
        """Tells whether there is anything to commit."""
        objects = self.objects or self.several.parts
        return bool(objects or self.positions or self.is_undecided)

    @property
    def is_undecided(self) -> bool:
        """Tells whether some log may hold undecided records of it."""
        return self.several.is_tried or (self.visible is not None and self.visible.is_tried)

    def _nothing(self) -> TransactionResult:
        """Ends a transaction without content: no commit, so that empty ones do not fill the log."""
        tip = self._handle.refresh()
        self.find_commit(state_of(self._handle.writer_pages, tip.head, self.ours.transaction_id))
        self.check_time()
        return result_of(self._handle, tip.version, None)

    def _committed(self) -> TransactionResult:
        if self.visible is not None:
            self.visible.check_certain()
        if not self.tried:
            self._all_positions = self._merged()
        tried, self.tried = self.tried, True
        was_in_doubt, self._in_doubt = self._in_doubt, True  # Until it is known, whatever ends it.
        try:
            done = self._appended(tried=tried)
        except CommitStateUnknownError:
            raise
        except ClogError as e:
            self._in_doubt = was_in_doubt
            # An earlier try may still be on its way, and would make what is told now a lie.
            is_over = not isinstance(e, (StoreUnavailableError, CommitConflictError))
            must_end = is_over if self.is_undecided else tried
            if self._in_doubt and not must_end:
                raise self._still_unknown(e) from e
            if not must_end or not self.make_certain():
                self.tried = self.is_undecided
                self._check_fenced(e)
                raise
            assert self.result is not None, "what happened has a result"
            return self.result
        self.holder.positions = self._all_positions or self.holder.positions
        self.holder.sequence, self.holder.version = self._sequence, done.version
        if isinstance(done, AlreadyCommitted):
            return self._found(done)
        return self._told(result_of(self._handle, done.version, done.edit.add))

    def _appended(self, *, tried: bool) -> Appended | AlreadyCommitted:
        """Does T3, in one log or, before it, X1 and X2 in several."""
        if self.several.parts:
            done = self.several.prepare(self.check_time, self.holder.closable)
            if done is not None:
                return done
        request = CommitRequest(
            *(self._handle, self.ours, self.objects, self._all_positions),
            *(self.check_time, tried, self._sequence, self.content),
            name=self.several.name if self.is_undecided else None,
        )
        if not self.is_undecided:
            chunks = sum(len(obj.chunks) for obj in self.objects)
            return self._handle.append(request.prepare, chunks=chunks)
        commit = self._handle.commit(request.prepare, operation=OPERATION)
        if isinstance(commit, AlreadyCommitted):
            return commit
        return Appended(commit.version, edit_of(self._handle.store, commit.record))

    def _told(self, result: TransactionResult) -> TransactionResult:
        """Returns the result, once the participants were told; X4."""
        if self.visible is not None:
            result = replace(result, offsets=self.visible.offsets)
        others = self._finished(COMMITTED)
        return replace(result, logs={**result.logs, **others})

    def _finished(self, outcome: str) -> Mapping[str, int]:
        versions = self.several.finish(outcome) if self.several.is_tried else {}
        if self.several.is_tried and self.several.ended:
            self.holder.closable.add(self.several.name)
        return versions

    def make_certain(self) -> bool:
        """Finds out what became of a commit that was tried, and tells whether it happened; if not,
        it never will: the id is taken up, or the home has aborted it.
        """
        try:
            if self.is_undecided:
                prepare = aborted_home(self._handle, self.ours, tried=self._in_doubt)
                done = self._handle.commit(prepare, operation=OPERATION)
            else:
                done = end_unknown(self._handle, self.ours)
        except (StoreUnavailableError, CommitConflictError) as e:
            raise self._still_unknown(e) from e
        if isinstance(done, AlreadyCommitted):
            # Where its offsets cannot be read now, it stays as tried as it was.
            self.result, self.state = self._found(done), State.COMMITTED
            return True
        if isinstance(done, NotCommitted) and not done.by_us:
            self.fence()
        else:
            self.holder.is_lost = not self.is_undecided  # First: an interrupt may come between.
            self.state = State.ABORTED
        self.tried = self._in_doubt = False
        self._finished(ABORTED)
        return False

    def _check_fenced(self, e: ClogError) -> None:
        """Raises that it is fenced, where it turned out so after another error: whoever took the id
        up has ended it in logs that did not know of that yet.
        """
        if self.state is State.FENCED and not isinstance(e, TransactionFencedError):
            raise self.fenced() from e

    def fenced(self) -> TransactionFencedError:
        """Makes the error of a transaction whose id was taken up."""
        return TransactionFencedError(
            f"transaction id {self.ours.transaction_id!r} of {self._url} was taken up again, and"
            " nothing of this transaction was committed; go on with the newer one"
        )

    def _still_unknown(self, e: ClogError) -> CommitStateUnknownError:
        return CommitStateUnknownError(
            f"whether transaction {self.ours.number} of id {self.ours.transaction_id!r} was"
            f" committed to {self._url} is still not known: {e}; commit or abort it again"
        )

    def _found(self, done: AlreadyCommitted) -> TransactionResult:
        try:
            return self._told(found_result(self._handle, self.ours.transaction_id, done.version))
        except StoreUnavailableError as e:
            raise CommitStateUnknownError(
                f"transaction {self.ours.number} of id {self.ours.transaction_id!r} is in version"
                f" {done.version} of {self._url}, but its offsets cannot be read now: {e};"
                " commit it again"
            ) from e

    def fence(self) -> None:
        """Notes that another holder took the id up, or that it was taken up here."""
        self.state = State.FENCED
        self.holder.is_fenced = not self.holder.is_lost

    def before(self) -> Positions:
        """Returns what was committed under the id before."""
        if self.holder.positions is None:
            self.holder.positions = committed_positions(self._handle, self.ours.transaction_id)
        return self.holder.positions

    def _merged(self) -> Positions | None:
        """Returns all positions that the id is to have; None where it keeps those it has."""
        if not self.positions:
            return None
        merged = {log_id: dict(mine) for log_id, mine in self.before().items()}
        for log_id, mine in self.positions.items():
            merged.setdefault(log_id, {}).update(mine)
        return merged

    def check_time(self) -> None:
        self.began.check(self._handle.clock, self.ours.transaction_id, url=self._url)

    def find_commit(self, state: TransactionState | None) -> None:
        """Raises if the id was taken up; of a transaction that was not tried, none is found."""
        try:
            find_commit(state, self.ours, url=self._url, tried=False)
        except TransactionFencedError:
            self.fence()
            raise
