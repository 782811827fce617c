"""The transaction ids that one handle holds, and beginning a transaction under one (S48).

An id is taken up once for each handle, by a commit that raises its epoch. It is taken up again
where the transaction begun last was neither committed nor aborted, or is in doubt: what began so
is fenced then, as if another process had taken over. A handle that was fenced by another stays so:
what it knows of the work may be old. A forked child holds nothing: two processes
at one epoch could not be told apart.
"""

from clog.storage import forks
from clog.storage.commit.handle import Handle
from clog.storage.errors import (
    CommitStateUnknownError,
    InvalidInputError,
    TransactionFencedError,
)
from clog.storage.format.chunks import NONE
from clog.storage.format.edits import WriterEntry
from clog.storage.format.transactions import PositionsAt
from clog.storage.transactions.deferred import Holder
from clog.storage.transactions.finishing import TransactionInfo, abort_all, finish_left, info_of
from clog.storage.transactions.id_states import (
    check_id,
    committed_positions,
    left_of,
    take_up,
    taken_by_another,
)
from clog.storage.transactions.transaction import Transaction

TIMEOUT_MS_MAX = 86_400_000
"""The sweep takes objects that are older than a day and were not committed."""


def holder_of(entry: WriterEntry) -> Holder:
    """Returns what is known of an id that was just taken up."""
    state = entry.transaction
    assert state is not None
    return Holder(
        transaction_id=entry.writer_id,
        epoch=state.epoch,
        positions=None if isinstance(state.positions, PositionsAt) else state.positions,
        sequence=entry.sequence,
        version=state.committed.version if state.committed else NONE,
    )


class Holders:
    """The ids of one handle. Safe for threads."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._held: dict[str, Holder] = {}
        self._begun: dict[str, Transaction] = {}
        self._lock = forks.lock()
        forks.register(self)

    def after_fork(self) -> None:
        """Forgets, in a forked child, what its parent holds."""
        for holder in self._held.values():
            holder.is_lost = True
        self._held = {}
        self._begun = {}

    def begin(
        self,
        transaction_id: str,
        timeout_ms: int,
        *,
        visible: bool = False,
        sequence: int | None = None,
    ) -> Transaction:
        """Begins a transaction; see `Log.transaction`."""
        check_id(transaction_id)
        if type(timeout_ms) is not int or not 1 <= timeout_ms <= TIMEOUT_MS_MAX:
            raise InvalidInputError(
                f"timeout_ms={timeout_ms!r} is out of range; allowed: 1 to {TIMEOUT_MS_MAX}"
            )
        if sequence is not None and (type(sequence) is not int or not 0 <= sequence < 1 << 63):
            raise InvalidInputError(
                f"sequence={sequence!r} is out of range; allowed: integers from 0 to 2^63 - 1"
            )
        with self._lock:
            holder = self._held_now(transaction_id)
            if sequence is not None and sequence < holder.sequence:
                raise InvalidInputError(
                    f"transaction id {transaction_id!r} of {self._handle.store.url} is at sequence"
                    f" {holder.sequence} already, and {sequence} comes before it; if a checkpoint"
                    " was restored or copied, go on with the newest one, or use another id"
                )
            given = NONE if sequence is None else sequence
            begun = Transaction(
                self._handle, holder, timeout_ms=timeout_ms, sequence=given, visible=visible
            )
            holder.next_number += 1
            self._begun[transaction_id] = begun
            return begun

    def infos(self) -> list[TransactionInfo]:
        """Returns the transactions that have not ended; see `Log.transactions`."""
        unended = self._handle.refresh().head.unended
        with self._lock:
            begun = list(self._begun.values())
        known = [info_of(entry) for entry in unended]
        there = {(info.id, info.epoch, info.number) for info in known if info.home is None}
        mine = [
            TransactionInfo(
                *(t.id, t.epoch, t.number, "open"),
                started_ms=t.started_ms,
                timeout_ms=t.timeout_ms,
            )
            for t in begun
            if t.is_open and (t.id, t.epoch, t.number) not in there
        ]
        return [*mine, *known]

    def abort(self, transaction_id: str, *, force: bool) -> list[TransactionInfo]:
        """Ends what is open under an id; see `Log.abort_transaction`."""
        return abort_all(self._handle, check_id(transaction_id), force=force)

    def positions(self, transaction_id: str) -> dict[str, dict[int, int]]:
        """Returns the offsets last committed under an id; see `Log.positions`."""
        found = committed_positions(self._handle, check_id(transaction_id))
        return {log_id: {p: at.offset for p, at in mine.items()} for log_id, mine in found.items()}

    def _held_now(self, transaction_id: str) -> Holder:
        known, begun = self._held.get(transaction_id), self._begun.get(transaction_id)
        if known is not None and known.is_fenced:
            raise taken_by_another(self._handle, transaction_id, known.epoch)
        if known is not None and not known.is_lost and not (begun and begun.is_open):
            unheard = left_of(self._handle.tip.head, transaction_id)
            if any(entry.name not in known.closable for entry in unheard):
                # Who could not be reached then may be.
                finish_left(self._handle, transaction_id, epoch=known.epoch)
            return known
        taken = self._taken_up(transaction_id, known)
        if left_of(self._handle.tip.head, transaction_id):
            finish_left(self._handle, transaction_id, epoch=holder_of(taken).epoch)
        if known is not None:
            known.is_lost = True
        holder = self._held[transaction_id] = holder_of(taken)
        return holder

    def _taken_up(self, transaction_id: str, known: Holder | None) -> WriterEntry:
        """Takes an id up, or again; not back from another holder, whatever was left open here."""
        if known is None:
            return take_up(self._handle, transaction_id)
        try:  # One that is lost was taken up here, to end a transaction in doubt (T4).
            return take_up(self._handle, transaction_id, held=known.epoch + known.is_lost)
        except TransactionFencedError:
            known.is_fenced = True
            raise
        except CommitStateUnknownError:
            del self._held[transaction_id]  # The epoch may be this one's already.
            raise
