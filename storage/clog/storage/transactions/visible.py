"""Visible transactions in one log (S51; COMMIT.md §9, Z1): records get their offsets at once, and
read_uncommitted sees them; the end decides.
"""

from collections.abc import Callable, Sequence

from clog.storage.append import offsets_of
from clog.storage.commit.handle import Handle
from clog.storage.errors import ClogError, CommitStateUnknownError, InvalidInputError
from clog.storage.format.commits import Commit, edit_of
from clog.storage.objects.data_object import DataObject
from clog.storage.transactions.id_states import OPERATION, Number
from clog.storage.transactions.undecided import appended_visible


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
        """Raises if it is not known whether all records are there.

        Raises:
            InvalidInputError: it is not.
        """
        if self._in_doubt:
            raise InvalidInputError(
                f"an append of transaction id {self._ours.transaction_id!r} to"
                f" {self._handle.store.url} failed, and perhaps its records are there; abort the"
                " transaction, and begin another one"
            )
