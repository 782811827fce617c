"""A store as a named reader of the logs from which its changes come (S64).

What the logs are told decides nothing: the positions are committed with the state. So what cannot
be told fails no commit, and is a warning.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from clog.storage.commit.handle import Handle
from clog.storage.errors import ClogError
from clog.storage.readers.documents import check_name
from clog.storage.readers.named_reader import NamedReader, holding_reader
from clog.storage.transactions.deferred import Source

_LOGGER = logging.getLogger("clog.storage.state")


class InputReaders:
    """The readers of one name, by log; none without a name.

    Args:
        name: theirs.
        hold_ms: for how long the cleaners of these logs wait for them, at most.
    """

    def __init__(self, name: str | None, hold_ms: int) -> None:
        self._name = None if name is None else check_name(name)
        self._hold_ms = hold_ms
        self._readers: dict[str, NamedReader] = {}

    def tell(self, read: Mapping[Source, Mapping[int, int]]) -> None:
        """Takes note of positions that are committed; each log hears of them at most each ten
        seconds.
        """
        if self._name is None:
            return
        for source, offsets in read.items():
            with self._warning():
                self._of(source.handle, self._name).commit(offsets)

    def flush(self) -> None:
        """Tells the logs what they were not told yet."""
        for reader in self._readers.values():
            with self._warning():
                reader.flush()

    def _of(self, handle: Handle, name: str) -> NamedReader:
        known = self._readers.get(handle.standing.log_id)
        if known is None or known.handle is not handle:
            known = holding_reader(handle, name, self._hold_ms)
            self._readers[handle.standing.log_id] = known
        return known

    @contextmanager
    def _warning(self) -> Iterator[None]:
        try:
            yield
        except (ClogError, OSError) as e:
            _LOGGER.warning("the position of reader %s was not told: %s", self._name, e)
