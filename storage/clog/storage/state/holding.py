"""Who holds the id of a store: this one, another, or, while it is a standby, this one not yet."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from clog.storage.commit.handle import Handle
from clog.storage.errors import (
    CommitStateUnknownError,
    InvalidInputError,
    StateFencedError,
    TransactionFencedError,
)
from clog.storage.format.chunks import NONE
from clog.storage.transactions.holders import Holders
from clog.storage.transactions.id_states import state_of

if TYPE_CHECKING:
    from clog.storage.transactions.transaction import Transaction

TIMEOUT_MS = 3_600_000
"""Of a commit's transaction, which begins when the commit does."""


class Holding:
    """A store's part in its id. Its owner serialises calls.

    Attributes:
        id: names the work.
    """

    def __init__(self, handle: Handle, id: str) -> None:
        self.id = id
        self._handle = handle
        self._url = handle.store.url
        self._epoch = NONE
        self._holders = Holders(handle)
        self._positions: dict[str, dict[int, int]] | None = None
        self._fenced: StateFencedError | None = None
        self._closed: InvalidInputError | None = None

    @property
    def is_standby(self) -> bool:
        """Whether the id was not taken up here."""
        return self._positions is None

    def positions(self) -> dict[str, dict[int, int]]:
        """Returns the next offsets to read, by log id and partition; a standby asks the log."""
        self._check_open()
        known = self._positions
        known = self._holders.positions(self.id) if known is None else known
        return {log_id: dict(mine) for log_id, mine in known.items()}

    def take_up(self) -> dict[int, int]:
        """Fences whoever held the id, by one commit. Returns the offsets below which all lies that
        was committed under it, where undecided records of others may come before some of that.
        """
        with self.fencing():
            self.begin().abort()
        head = self._handle.tip.head
        state = state_of(self._handle.writer_pages, head, self.id)
        done = None if state is None else state.committed
        if done is None or all(e.version > done.version for e in head.unended if e.first):
            return {}
        return dict(enumerate(head.partitions.end))

    def hold(self) -> None:
        """Makes this the holder, with the positions that are committed."""
        self._positions = self._holders.positions(self.id)

    def begin(self) -> "Transaction":
        """Begins the transaction of a commit."""
        begun = self._holders.begin(self.id, TIMEOUT_MS)
        self._epoch = begun.epoch
        return begun

    def committed(self, positions: Mapping[str, Mapping[int, int]]) -> None:
        """Takes note of positions that are committed."""
        assert self._positions is not None, "a standby commits nothing"
        for log_id, mine in positions.items():
            self._positions.setdefault(log_id, {}).update(mine)

    def left_to_parent(self) -> None:
        """Holds nothing from now on: this is a forked child."""
        self._fenced = StateFencedError(
            f"the store {self.id!r} of {self._url} was opened by a parent process; open one"
            " with an id of its own here"
        )

    @contextmanager
    def fencing(self) -> Iterator[None]:
        """Turns what another holder refuses into `StateFencedError`."""
        try:
            yield
        except (TransactionFencedError, CommitStateUnknownError) as e:
            if isinstance(e, CommitStateUnknownError) and not self._is_taken_up():
                raise
            self._fenced = StateFencedError(
                f"the store {self.id!r} of {self._url} has another holder now, and nothing that was"
                f" not committed will be: {e}; leave the work to it, or open the store again"
            )
            raise self._fenced from e

    def _is_taken_up(self) -> bool:
        """Tells whether somebody took the id up since, as far as is known here: then the new holder
        goes on from whatever was committed. Whoever never had it has nothing to lose to another.
        """
        state = state_of(self._handle.writer_pages, self._handle.tip.head, self.id)
        return state is not None and state.epoch > self._epoch != NONE

    def close(self) -> None:
        """Lets go of it; the id stays as it is, until somebody takes it up."""
        self._closed = InvalidInputError(
            f"the store {self.id!r} of {self._url} was closed; open it anew"
        )

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    def check_fenced(self) -> None:
        """Raises if this is closed, or another store took the id up, as far as is known here."""
        self._check_open()
        if self._fenced is not None:
            raise self._fenced

    def check_held(self) -> None:
        """Raises if this is not the holder, as far as is known here."""
        self.check_fenced()
        if self._positions is None:
            raise InvalidInputError(
                f"the store {self.id!r} of {self._url} is a standby; call take_over() first"
            )
