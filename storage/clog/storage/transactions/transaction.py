"""`Transaction`: records of several appends, and the positions of what was read for them, that are
committed together or not at all (S48, S49, S54).

By default, in one log, it is *deferred*: appends write objects and nothing else, and the commit
gives them offsets, in one commit of the log (COMMIT.md §9):

T1. `append` puts objects, all with the stamp of the first one. Crash: orphans, swept later.
T2. Positions are merged with those committed under the id before; many are put as a document, by
    each try of the commit anew. Crash: a document that nothing refers to, swept later.
T3. `commit` is an append of all objects with the entry of the id. The head it commits upon tells
    whether the holder is fenced, and whether this transaction is committed already.
T4. Where a commit's outcome is not known, the transaction may be committed again, and is there
    once. An abort then takes the id up, so that a commit that is still on its way fails.

Nothing undecided is ever in the log then, so nobody waits for a transaction, and an abort costs
nothing. With other logs (`several`), or *visible*, records are undecided until the home has decided
(`undecided`): then T3 decides, and an abort is a commit.

Not here: which handle holds which id (`holders`), what the log says of an id (`id_states`).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from clog.storage.append import partitions_of, put_records, records_of
from clog.storage.commit.handle import Handle
from clog.storage.errors import (
    ClogError,
    InvalidInputError,
)
from clog.storage.format.transactions import (
    TRANSACTION,
)
from clog.storage.objects.records import Appendable
from clog.storage.read.offsets import isolation_named
from clog.storage.read.scan import Isolation
from clog.storage.transactions.committing import Committing
from clog.storage.transactions.deferred import (
    Began,
    Holder,
    Source,
    State,
    TransactionResult,
)
from clog.storage.transactions.positions import (
    check_decided,
    check_missed,
    checked_positions,
    handle_of,
)

if TYPE_CHECKING:
    from clog.storage.objects.data_object import DataObject


class Transaction:
    """Records and positions that are committed together or not at all; `Log.transaction` begins
    one. Not thread-safe.

    A ``with`` statement commits it at the end, and aborts it if an exception ends the block.
    """

    def __init__(
        self,
        handle: Handle,
        holder: Holder,
        *,
        timeout_ms: int,
        sequence: int,
        visible: bool = False,
    ) -> None:
        clock = handle.clock
        began = Began(clock.now_ms(), clock.monotonic_ms(), timeout_ms)
        self._handle = handle
        self._work = Committing(handle, holder, began, sequence=sequence, visible=visible)

    def __repr__(self) -> str:
        return f"Transaction({self.id!r}, {self._work.state.value})"

    @property
    def id(self) -> str:
        """The id under which it began."""
        return self._work.ours.transaction_id

    @property
    def epoch(self) -> int:
        """How often the id had been taken over before."""
        return self._work.ours.epoch

    @property
    def number(self) -> int:
        """Which of the epoch's transactions it is, from 0."""
        return self._work.ours.number

    @property
    def started_ms(self) -> int:
        """When it began, in ms since 1970."""
        return self._work.began.wall_ms

    @property
    def timeout_ms(self) -> int:
        """The maximum time that it may take."""
        return self._work.began.timeout_ms

    @property
    def is_open(self) -> bool:
        """Whether it is neither committed nor aborted, nor fenced as far as is known here."""
        return self._work.state is State.OPEN and not self._work.holder.is_lost

    @property
    def result(self) -> TransactionResult:
        """What it did, once it is committed.

        Raises:
            InvalidInputError: it is not.
        """
        if self._work.result is None:
            raise InvalidInputError(
                f"transaction id {self.id!r} of {self._url} is {self._work.state.value}: it has a"
                " result once it is committed"
            )
        done = self._work.result
        return replace(done, offsets=dict(done.offsets), logs=dict(done.logs))

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
            log: the log; None: the one in which the transaction was begun.

        Raises:
            as `Log.append`; TransactionFencedError: another holder took over the id, as far as this
            handle knows; TransactionTimeoutError: it took longer than its timeout.
        """
        handle = self._handle if log is None else handle_of(log)
        self._check_open(and_untried=True)
        self._work.check_time()
        self._check_known_epoch()
        if handle is self._handle:
            held = self._work.objects
        elif self._work.visible is not None:
            raise InvalidInputError(
                f"transaction id {self.id!r} of {self._url} is visible, and appends to one log;"
                " begin one with visible=False"
            )
        else:
            held = self._work.several.part(handle).objects
        records, _ = records_of(handle, data)
        if records.num_rows:
            parts = partitions_of(records, partition, handle.tip.head, url=handle.store.url)
            stamp = held[0].stamp if held else None
            objects = put_records(handle, records, parts, stamp=stamp)
            self._check_open(and_untried=True)  # Another thread may have ended it meanwhile.
            if self._work.visible is None:
                held += objects
            else:
                self._work.append_visible(self._work.visible, objects)

    def append_objects(self, objects: "Sequence[DataObject]", log: Source | None = None) -> None:
        """Takes objects that tasks wrote, in this order; for connectors, not for users."""
        self._check_open(and_untried=True)
        is_home = log is None or handle_of(log) is self._handle
        held = self._work if is_home else self._work.several.part(handle_of(log))
        held.objects.extend(objects)

    def note_content(self, content: str) -> None:
        """Has the log keep ``content``, a hash of all rows (hex); for connectors, not for users."""
        self._work.content = content

    def positions(
        self,
        source: Source,
        offsets: Mapping[int, int],
        *,
        version: int | None = None,
        isolation: str = "read_committed",
        missed_deletes: bool = False,
    ) -> None:
        """Commits, with the transaction, how far its work has read a log; `Log.positions` returns
        it. Other partitions keep the position that was committed under the id before.

        Args:
            source: the log that was read.
            offsets: by partition, the next offset to read.
            version: that at which the records before it were read; None: that of the newest
                read by ``source``.
            isolation: the isolation with which they were read, as of `Log.read`.
            missed_deletes: accept that deletes were missed.

        Raises:
            InvalidInputError: not a log, a partition that does not exist, or an impossible offset,
                version or isolation.
            OffsetOutOfRangeError: an offset beyond the last stable one, where ``read_committed``
                ends: undecided records would count as read.
            NotFoundError: since the id's last positions, tombstones were removed that its reader
                had not reached, so it has missed deletes.
        """
        self._check_open(and_untried=True)
        now = checked_positions(source, offsets, version)
        if isolation_named(isolation) is Isolation.COMMITTED:
            check_decided(source, offsets)
        log_id = source.handle.standing.log_id
        if not missed_deletes:
            check_missed(source, self._work.before().get(log_id, {}), now)
        self._work.positions.setdefault(log_id, {}).update(now)

    def commit(self) -> TransactionResult:
        """Commits all records and positions at once; without any, it commits nothing. After a
        `CommitStateUnknownError` it may be called again, and commits once.

        Raises:
            TransactionFencedError: another holder took over the id. Nothing is committed.
            TransactionTimeoutError: it took longer than its timeout, or so long that the sweep may
                have taken its objects. Nothing is committed.
            InvalidInputError: it was aborted; the log's configs refuse its records by now. Nothing
                is committed.
            CommitConflictError: other writers were faster each time; commit again.
            CommitStateUnknownError: the commit may have happened.
        """
        if self._work.result is None:
            self._check_open()
            self._work.commit()
        return self.result

    def abort(self) -> None:
        """Ends the transaction; nothing of it is ever committed. Without requests, but for one
        commit where a commit of it was tried whose outcome is not known (T4), and one in each log
        where records of it are undecided.

        Raises:
            InvalidInputError: it is committed, as may be found out here.
            CommitStateUnknownError: a commit of it may have happened, and that is still not known.
        """
        if self._work.state is State.OPEN and (self._work.tried or self._work.is_undecided):
            self._work.make_certain()
        if self._work.state is State.COMMITTED:
            raise InvalidInputError(
                f"transaction {self.number} of id {self.id!r} is committed to {self._url}, in"
                f" version {self.result.version}, and cannot be aborted"
            )
        if self._work.state is State.OPEN:
            self._work.state = State.ABORTED

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._work.state is not State.OPEN:
            return
        if error is None:
            self.commit()
            return
        with suppress(ClogError):  # The error that ended the block is the one to tell.
            self.abort()

    @property
    def _url(self) -> str:
        return self._handle.store.url

    def _check_open(self, *, and_untried: bool = False) -> None:
        work = self._work
        is_lost = work.state is State.OPEN and work.holder.is_lost and not work.tried
        if is_lost or work.state is State.FENCED:
            raise work.fenced()
        if self._work.state is not State.OPEN:
            raise InvalidInputError(
                f"transaction id {self.id!r} of {self._url} has ended: it is"
                f" {self._work.state.value}; begin another one"
            )
        if and_untried and self._work.tried:
            raise InvalidInputError(
                f"the outcome of the commit of transaction id {self.id!r} of {self._url} is not"
                " known, so nothing can be added; commit it again, or abort it"
            )

    def _check_known_epoch(self) -> None:
        """Raises if the newest head that is known here tells that the id was taken up."""
        head = self._handle.recent().head
        for entry in head.writers:
            if entry.key == (TRANSACTION, self.id):
                self._work.find_commit(entry.transaction)
