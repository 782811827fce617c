"""`Transaction`: records of several appends, and the positions of what was read for them, that are
committed together or not at all (S48, S49, S54).

A transaction is *deferred*: appends write objects and nothing else, and the commit gives them
offsets, in one commit of the log (COMMIT.md §9):

T1. `append` puts objects, all with the stamp of the first one. Crash: orphans, swept later.
T2. Positions are merged with those committed under the id before; many are put as a document, by
    each try of the commit anew. Crash: a document that nothing refers to, swept later.
T3. `commit` is an append of all objects with the entry of the id. The head it commits upon tells
    whether the holder is fenced, and whether this transaction is committed already.
T4. Where a commit's outcome is not known, the transaction may be committed again, and is there
    once. An abort then takes the id up, so that a commit that is still on its way fails.

Nothing undecided is ever in the log, so nobody waits for a transaction, and an abort costs nothing.

Not here: which handle holds which id (`holders`), what the log says of an id (`id_states`).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from clog.storage.append import partitions_of, put_records, records_of
from clog.storage.commit.handle import Handle
from clog.storage.errors import (
    ClogError,
    CommitConflictError,
    CommitStateUnknownError,
    InvalidInputError,
    StoreUnavailableError,
    TransactionFencedError,
    TransactionTimeoutError,
)
from clog.storage.format.chunks import NONE
from clog.storage.format.transactions import (
    TRANSACTION,
    Position,
    Positions,
    TransactionState,
)
from clog.storage.objects.records import Appendable
from clog.storage.transactions.deferred import (
    Began,
    CommitRequest,
    Holder,
    Source,
    State,
    TransactionResult,
    found_result,
    result_of,
)
from clog.storage.transactions.id_states import (
    AlreadyCommitted,
    NotCommitted,
    Number,
    committed_positions,
    end_unknown,
    find_commit,
    state_of,
)
from clog.storage.transactions.positions import check_missed, checked_positions, handle_of

if TYPE_CHECKING:
    from clog.storage.objects.data_object import DataObject


class Transaction:
    """Records and positions that are committed together or not at all; `Log.transaction` begins
    one. Not for several threads at once.

    In a ``with`` statement it is committed at the end, and aborted where an exception ends it.
    """

    def __init__(self, handle: Handle, holder: Holder, *, timeout_ms: int, sequence: int) -> None:
        clock = handle.clock
        self._handle = handle
        self._holder = holder
        self._ours = Number(holder.transaction_id, holder.epoch, holder.next_number)
        self._began = Began(clock.now_ms(), clock.monotonic_ms(), timeout_ms)
        self._objects: list[DataObject] = []
        self._positions: dict[str, dict[int, Position]] = {}
        self._all_positions: Positions | None = None
        self._state = State.OPEN
        self._result: TransactionResult | None = None
        self._tried = False
        self._sequence = sequence
        if sequence == holder.sequence != NONE:
            self._result = found_result(handle, holder.transaction_id, holder.version)
            self._state = State.COMMITTED

    def __repr__(self) -> str:
        return f"Transaction({self.id!r}, {self._state.value})"

    @property
    def id(self) -> str:
        """The id under which it was begun."""
        return self._ours.transaction_id

    @property
    def epoch(self) -> int:
        """How often the id had been taken up before."""
        return self._ours.epoch

    @property
    def number(self) -> int:
        """Which of the epoch's transactions it is, from 0."""
        return self._ours.number

    @property
    def started_ms(self) -> int:
        """When it began, in ms since 1970."""
        return self._began.wall_ms

    @property
    def is_open(self) -> bool:
        """Whether it is neither committed nor aborted, nor fenced as far as is known here."""
        return self._state is State.OPEN and not self._holder.is_lost

    @property
    def result(self) -> TransactionResult:
        """What it did, once it is committed.

        Raises:
            InvalidInputError: it is not.
        """
        if self._result is None:
            raise InvalidInputError(
                f"transaction id {self.id!r} of {self._url} is {self._state.value}: it has a result"
                " once it is committed"
            )
        return self._result

    def append(
        self,
        data: Appendable,
        partition: int | Sequence[int] | np.ndarray[Any, Any] | None = None,
        *,
        log: Source | None = None,
    ) -> None:
        """Appends records; nobody sees them before the commit, which gives them their offsets.

        Args:
            data: as for `Log.append`.
            partition: one for all records, or one for each; None: by the hash of the key.
            log: the log; None: the one in which the transaction was begun. Others are refused:
                transactions over several logs are not built yet.

        Raises:
            as `Log.append`; TransactionFencedError: the id was taken up since, as far as this
            handle knows; TransactionTimeoutError: it took longer than its timeout.
        """
        if log is not None and handle_of(log) is not self._handle:
            raise InvalidInputError(
                f"transaction id {self.id!r} was begun in {self._url}, and cannot append to"
                f" {log.handle.store.url}: transactions over several logs are not built yet; begin"
                " one in each log"
            )
        self._check_open(and_untried=True)
        self._check_time()
        self._check_known_epoch()
        records, _ = records_of(self._handle, data)
        if records.num_rows:
            head = self._handle.tip.head
            parts = partitions_of(records, partition, head, url=self._url)
            stamp = self._objects[0].stamp if self._objects else None
            self._objects += put_records(self._handle, records, parts, stamp=stamp)

    def append_objects(self, objects: "Sequence[DataObject]") -> None:
        """Takes objects that tasks wrote, in this order; for connectors, not for users."""
        self._check_open(and_untried=True)
        self._objects += objects

    def positions(
        self,
        source: Source,
        offsets: Mapping[int, int],
        *,
        version: int | None = None,
        missed_deletes: bool = False,
    ) -> None:
        """Commits with the transaction how far a log has been read for it; `Log.positions` returns
        it. Other partitions keep what was committed under the id before.

        Args:
            source: the log that was read.
            offsets: by partition, the next offset to read.
            version: that at which the records before it were read; None: that of the newest
                read by ``source``.
            missed_deletes: deletes that were missed are no error.

        Raises:
            InvalidInputError: no log, a partition that does not exist, or an offset or a version
                that cannot be.
            NotFoundError: since the id's last positions tombstones were removed which its reader
                had not come to, so that it has missed deletes.
        """
        self._check_open(and_untried=True)
        now = checked_positions(source, offsets, version)
        log_id = source.handle.standing.log_id
        if not missed_deletes:
            check_missed(source, self._before().get(log_id, {}), now)
        self._positions.setdefault(log_id, {}).update(now)

    def commit(self) -> TransactionResult:
        """Commits all records and positions at once; without any, nothing is committed. Where it
        raises `CommitStateUnknownError` it may be called again, and the transaction is there once.

        Raises:
            TransactionFencedError: the id was taken up by somebody else. Nothing is committed.
            TransactionTimeoutError: it took longer than its timeout, or so long that the sweep may
                have taken its objects. Nothing is committed.
            InvalidInputError: it was aborted; records that the log's configs refuse by now. Nothing
                is committed.
            CommitConflictError: other writers were first each time; commit again.
            CommitStateUnknownError: the commit may have happened.
        """
        if self._result is not None:
            return self._result
        self._check_open()
        try:
            self._result = self._committed() if self._has_content() else self._nothing()
        except TransactionFencedError:
            self._fence()
            raise
        except TransactionTimeoutError:
            self._state = State.ABORTED
            raise
        self._state = State.COMMITTED
        return self._result

    def abort(self) -> None:
        """Ends the transaction; nothing of it is ever committed. Without requests, but for one
        commit where a commit of it was tried whose outcome is not known (T4).

        Raises:
            InvalidInputError: it is committed, as may be found out here.
            CommitStateUnknownError: a commit of it may have happened, and that is still not known.
        """
        if self._state is State.OPEN and self._tried:
            self._make_certain()
        if self._state is State.COMMITTED:
            raise InvalidInputError(
                f"transaction {self.number} of id {self.id!r} is committed to {self._url}, in"
                f" version {self.result.version}, and cannot be aborted"
            )
        if self._state is State.OPEN:
            self._state = State.ABORTED

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._state is not State.OPEN:
            return
        if error is None:
            self.commit()
            return
        with suppress(ClogError):  # The error that ended the block is the one to tell.
            self.abort()

    @property
    def _url(self) -> str:
        return self._handle.store.url

    def _has_content(self) -> bool:
        return bool(self._objects or self._positions)

    def _nothing(self) -> TransactionResult:
        """Ends a transaction without content: no commit, so that empty ones do not fill the log."""
        tip = self._handle.refresh()
        self._find_commit(state_of(self._handle.writer_pages, tip.head, self.id))
        self._check_time()
        return result_of(self._handle, tip.version, None)

    def _committed(self) -> TransactionResult:
        if not self._tried:
            self._all_positions = self._merged()
        request = CommitRequest(
            *(self._handle, self._ours, self._objects, self._all_positions),
            *(self._check_time, self._tried, self._sequence),
        )
        tried, self._tried = self._tried, True
        try:
            chunks = sum(len(obj.chunks) for obj in self._objects)
            done = self._handle.append(request.prepare, chunks=chunks)
        except CommitStateUnknownError:
            raise
        except ClogError:
            # An earlier try may still be on its way, and would make what is told now a lie.
            if not tried or not self._make_certain():
                self._tried = False
                raise
            return self.result
        self._holder.positions = self._all_positions or self._holder.positions
        self._holder.sequence, self._holder.version = self._sequence, done.version
        if isinstance(done, AlreadyCommitted):
            return self._found(done)
        return result_of(self._handle, done.version, done.edit.add)

    def _make_certain(self) -> bool:
        """Finds out what became of a commit that was tried, and tells whether it happened; if not,
        the id is taken up, and it never will.
        """
        try:
            done = end_unknown(self._handle, self._ours)
        except (StoreUnavailableError, CommitConflictError) as e:
            raise CommitStateUnknownError(
                f"whether transaction {self.number} of id {self.id!r} was committed to {self._url}"
                f" is still not known: {e}; commit or abort it again"
            ) from e
        self._tried = False
        if isinstance(done, NotCommitted):
            if done.by_us:
                self._state, self._holder.is_lost = State.ABORTED, True
            else:
                self._fence()
            return False
        self._result, self._state = self._found(done), State.COMMITTED
        return True

    def _found(self, done: AlreadyCommitted) -> TransactionResult:
        try:
            return found_result(self._handle, self.id, done.version)
        except StoreUnavailableError as e:
            raise CommitStateUnknownError(
                f"transaction {self.number} of id {self.id!r} is in version {done.version} of"
                f" {self._url}, but its offsets cannot be read now: {e}; commit it again"
            ) from e

    def _fence(self) -> None:
        self._state = State.FENCED
        self._holder.is_fenced = not self._holder.is_lost

    def _before(self) -> Positions:
        """Returns what was committed under the id before."""
        if self._holder.positions is None:
            self._holder.positions = committed_positions(self._handle, self.id)
        return self._holder.positions

    def _merged(self) -> Positions | None:
        """Returns all positions that the id is to have; None where it keeps those it has."""
        if not self._positions:
            return None
        merged = {log_id: dict(mine) for log_id, mine in self._before().items()}
        for log_id, mine in self._positions.items():
            merged.setdefault(log_id, {}).update(mine)
        return merged

    def _check_open(self, *, and_untried: bool = False) -> None:
        is_lost = self._state is State.OPEN and self._holder.is_lost and not self._tried
        if is_lost or self._state is State.FENCED:
            raise TransactionFencedError(
                f"transaction id {self.id!r} of {self._url} was taken up again, and nothing of this"
                " transaction was committed; go on with the newer one"
            )
        if self._state is not State.OPEN:
            raise InvalidInputError(
                f"transaction id {self.id!r} of {self._url} has ended: it is {self._state.value};"
                " begin another one"
            )
        if and_untried and self._tried:
            raise InvalidInputError(
                f"the outcome of the commit of transaction id {self.id!r} of {self._url} is not"
                " known, so nothing can be added; commit it again, or abort it"
            )

    def _check_time(self) -> None:
        elapsed_ms, timeout_ms = self._began.elapsed_ms(self._handle.clock), self._began.timeout_ms
        if elapsed_ms > timeout_ms:
            raise TransactionTimeoutError(
                f"transaction id {self.id!r} of {self._url} began {elapsed_ms} ms ago, more than"
                f" timeout_ms={timeout_ms}; nothing of it was committed; begin another one, with a"
                " longer timeout or fewer records"
            )

    def _find_commit(self, state: TransactionState | None) -> None:
        """Raises if the id was taken up; of a transaction that was not tried, none is found."""
        try:
            find_commit(state, self._ours, url=self._url, tried=False)
        except TransactionFencedError:
            self._fence()
            raise

    def _check_known_epoch(self) -> None:
        """Raises if the newest head that is known here tells that the id was taken up."""
        head = self._handle.recent().head
        for entry in head.writers:
            if entry.key == (TRANSACTION, self.id):
                self._find_commit(entry.transaction)
