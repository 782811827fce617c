"""Tells a log how far a query is, under the name that the option ``readerId`` gives (S64).

The checkpoint alone decides where the query goes on, so nothing here ever fails it: what cannot be
told is a warning.
"""

import logging
from typing import TYPE_CHECKING

from clog.connector.read.offsets import StreamOffsets
from clog.storage.errors import ClogError

if TYPE_CHECKING:
    from clog.storage.commit.handle import Handle
    from clog.storage.readers.named_reader import NamedReader

_LOGGER = logging.getLogger("clog.connector")


class ToldPosition:
    """The position of one query. Nothing without a name."""

    def __init__(self, name: str | None, hold_ms: int = 0) -> None:
        self._name = name
        self._hold_ms = hold_ms
        self._reader: NamedReader | None = None

    def tell(self, handle: "Handle", at: StreamOffsets | None) -> None:
        """Takes note of the end of a batch that is done; at most one PUT in ten seconds."""
        if self._name is None or at is None or at.planned is None:
            return
        planned = at.planned
        if planned.log_id != handle.standing.log_id:
            return  # Another log stands there since.
        try:
            self._of(handle, self._name).commit_at(at.next, planned.version, planned.commit_id)
        except (ClogError, OSError) as e:
            self._warn(e)

    def end(self) -> None:
        """Tells what was not told yet."""
        try:
            if self._reader is not None:
                self._reader.flush()
        except (ClogError, OSError) as e:
            self._warn(e)

    def _of(self, handle: "Handle", name: str) -> "NamedReader":
        from clog.storage.readers.named_reader import holding_reader

        if self._reader is None or self._reader.handle is not handle:
            self._reader = holding_reader(handle, name, self._hold_ms)
        return self._reader

    def _warn(self, error: Exception) -> None:
        _LOGGER.warning("the position of reader %s was not told to its log: %s", self._name, error)
