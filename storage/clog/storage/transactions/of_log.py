"""What a `Log` has of transactions; it is one of these."""

from clog.storage.commit.handle import Handle
from clog.storage.format.chunks import NONE
from clog.storage.read.offsets import partitions_named
from clog.storage.transactions.finishing import TransactionInfo
from clog.storage.transactions.holders import Holders
from clog.storage.transactions.transaction import Transaction


class TransactionsOfLog:
    """The transactions of one log, as its handle knows them."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._transactions = Holders(handle)

    def transaction(
        self,
        id: str,
        timeout_ms: int = 60_000,
        *,
        visible: bool = False,
        sequence: int | None = None,
    ) -> Transaction:
        """Begins a transaction: its records and positions are committed together or not at all. A
        ``with`` statement commits it at its end, and aborts it if an exception ends the block. The
        first under an id takes over the id, by a commit that fences the previous holder; so does
        one that begins while the last of this handle is open.

        Args:
            id: names the work; use the same id to continue after a crash.
            timeout_ms: how long it may take at most, from 1 to 86400000.
            visible: whether its records get offsets at once, for readers with ``read_uncommitted``;
                it then appends to this log alone.
            sequence: numbers the work; a number that was committed last is not committed again
                (`is_open`).

        Raises:
            InvalidInputError: an argument is out of range, or the sequence went back.
            TransactionFencedError: this handle was fenced; open the log again to take the id back.
        """
        return self._transactions.begin(id, timeout_ms, visible=visible, sequence=sequence)

    def transactions(self) -> list[TransactionInfo]:
        """Returns the transactions that this handle began and did not end, and those that the log
        knows of, because records are undecided here, or other logs wait for it; one request.
        """
        return self._transactions.infos()

    def abort_transaction(self, id: str, *, force: bool = False) -> list[TransactionInfo]:
        """Ends the undecided transactions of an id, without waiting for their timeout, and returns
        them: what their home has committed stays committed. A holder that is still alive fails when
        it commits.

        Args:
            id: as `transactions` lists it.
            force: even if its home cannot be read; if the home had committed it, this log loses its
                records. In the home: even if another log cannot be told the outcome; that log is
                given up.

        Raises:
            NotFoundError: nothing is open under this id.
            InvalidInputError: it cannot be ended now; the message gives the reason.
        """
        return self._transactions.abort(id, force=force)

    def markers(self, partition: int) -> list[tuple[int, str, str, int | None]]:
        """Returns the markers of ended transactions whose records were undecided: (offset, id,
        outcome, delete horizon in ms since 1970, or None before a pass has set it).

        Args:
            partition: the partition.
        """
        handle = self._handle
        (p,) = partitions_named(handle.refresh().head, partition, url=handle.store.url)
        return [
            (m.offset, m.id, m.outcome, None if m.horizon_ms == NONE else m.horizon_ms)
            for m in handle.manifest().markers
            if m.partition == p
        ]

    def positions(self, id: str) -> dict[str, dict[int, int]]:
        """Returns the next offsets to read, by log id and partition, as committed under an id."""
        return self._transactions.positions(id)
