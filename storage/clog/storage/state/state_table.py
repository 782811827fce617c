"""`StateTable`: the latest value of each key of a log, in a local file that follows the log.

`following` says how.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from clog.storage.clock import Clock, SystemClock
from clog.storage.commit.handle import Handle
from clog.storage.errors import InvalidInputError
from clog.storage.ids import SystemIds
from clog.storage.read.table_scan import MAP_BYTES
from clog.storage.readers.documents import check_name
from clog.storage.readers.named_reader import NamedReader, holding_reader
from clog.storage.state.following import Follower, Refreshed
from clog.storage.store import store_at
from clog.storage.store.base import Store

POLL_MS = 1_000


class StateTable:
    """The latest value of each key of a log, in a local file that follows the log.

    Opening builds the file, or brings an older one up to date; `refresh` and `follow` keep it so.
    Look-ups read the file alone. A context manager; threads, and processes on one host, may share
    it.
    """

    def __init__(
        self,
        url: str | Store,
        cache_dir: str | os.PathLike[str],
        storage_options: Mapping[str, object] | None = None,
        clock: Clock | None = None,
        *,
        on_loss: str = "resync",
        map_bytes: int = MAP_BYTES,
        reader: str | None = None,
        reader_hold_ms: int = 0,
    ) -> None:
        """Opens the table and refreshes it.

        Args:
            url: the log's URL, or a store.
            cache_dir: a local folder, made if it is missing; tables of several logs may share it.
            storage_options: what fsspec needs: credentials, endpoints.
            clock: the source of times; None: the system's clock.
            on_loss: what to do when the table was away so long that it missed a delete, or the log
                was recreated meanwhile: ``resync`` builds it anew, with a warning; ``fail`` raises.
            map_bytes: memory for finding the last record of each key, in bytes.
            reader: a name under which the log is told how far the table is (`Log.reader`).
            reader_hold_ms: for how long the cleaner waits for that reader, at most.

        Raises:
            NotFoundError: there is no log at this URL; or a delete was missed, and ``on_loss`` is
                ``fail``.
            InvalidInputError: an unknown ``on_loss``.
        """
        if on_loss not in ("resync", "fail"):
            raise InvalidInputError(f"on_loss={on_loss!r}; allowed: resync, fail")
        store = store_at(url, storage_options)
        handle = Handle(store, clock=clock or SystemClock(), ids=SystemIds())
        self._file = Follower(
            *(handle, Path(cache_dir)),
            on_loss=on_loss,
            map_bytes=map_bytes,
            reopens=on_loss == "resync",
        )
        self._reader_name = None if reader is None else check_name(reader)
        self._reader: NamedReader | None = None
        self._reader_hold_ms = reader_hold_ms
        self._tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"StateTable({self.url!r}, version={self._file.position.version})"

    @property
    def url(self) -> str:
        """The log, without secrets."""
        return self._file.url

    @property
    def version(self) -> int:
        """The version of the log whose state `get` shows; another process's refresh moves it."""
        return self._file.shown().version

    @property
    def offsets(self) -> dict[int, int]:
        """By partition, the offset up to which the table contains the log's records."""
        return dict(self._file.shown().offsets)

    def get(self, key: Any) -> Any:
        """Returns the latest value, or None if the key does not exist or was deleted. If writers
        put the key in several partitions, the value with the latest timestamp counts. Keys and
        values are as those of `Table.get`.
        """
        return self._file.asked(lambda cache: cache.get(key))

    def get_many(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """Returns the latest values of those keys that exist."""
        asked = list(keys)
        return self._file.asked(lambda cache: cache.get_many(asked))

    def scan(self, prefix: Any = None) -> Iterator[tuple[Any, Any]]:
        """Returns keys and values in the order of the keys; all that begin with ``prefix``, if it
        is given: bytes or text, of keys that are structs a tuple of the first fields. Shows the
        table as it is when `scan` is called, even where it is refreshed meanwhile.

        Raises:
            CorruptionError: the file was damaged, and built anew: scan again.
            InvalidInputError: keys of the log cannot have such a prefix.
        """
        return self._file.scan(prefix)

    def __len__(self) -> int:
        """Returns the number of keys, those in several partitions once for each; reads all of the
        file.
        """
        return self._file.count()

    def refresh(self) -> Refreshed:
        """Brings the table up to date; one request when nothing is new.

        Raises:
            NotFoundError: a delete was missed, or the log recreated, and ``on_loss`` is ``fail``;
                the table stays as it was.
        """
        refreshed = self._file.refresh()
        self._tell()
        return refreshed

    def follow(self, *, poll_ms: int = POLL_MS) -> Iterator[Refreshed]:
        """Refreshes for ever, at least ``poll_ms`` apart, and yields each result that is new."""
        yield from self._file.follow(self.refresh, poll_ms=poll_ms)

    def close(self) -> None:
        """Closes the file; the table cannot be used any more."""
        try:
            if self._reader is not None:
                self._reader.end()
        finally:
            self._reader = None
            self._file.close()

    def _tell(self) -> None:
        if self._reader_name is None:
            return
        handle, at = self._file.handle, self._file.position
        if self._reader is None or self._reader.handle is not handle:
            self._reader = holding_reader(handle, self._reader_name, self._reader_hold_ms)
        self._reader.commit_at(at.offsets, at.version, at.commit_id)
