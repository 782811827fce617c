"""What a `Log` says of its named readers; `Log` inherits it."""

from clog.storage.commit.handle import Handle
from clog.storage.config.log_config import LogConfig
from clog.storage.format.paths import reader_path
from clog.storage.readers.documents import StrayReaderError, check_name, readers_of
from clog.storage.readers.holds import hold_max_ms, holds_of
from clog.storage.readers.lag import Reader, lag_of
from clog.storage.readers.named_reader import (
    COMMIT_INTERVAL_MS,
    EXPIRES_AFTER_MS,
    NamedReader,
    named_reader,
)


class ReadersOfLog:
    """The part of a log that deals with its named readers."""

    _handle: Handle

    def reader(
        self,
        name: str,
        *,
        expires_after_ms: int = EXPIRES_AFTER_MS,
        interval_ms: int = COMMIT_INTERVAL_MS,
        hold_ms: int = 0,
    ) -> NamedReader:
        """Returns the reader of this name, whose position the log knows, and which `readers` lists.

        Args:
            name: 1 to 128 characters of A-Z a-z 0-9 . _ -, not a dot first.
            expires_after_ms: how long after its last commit the log may forget it.
            interval_ms: minimum interval between two reports of its position to the log.
            hold_ms: how long after its last report the cleaner should wait for it: keep the
                tombstones that it has not reached, and its version. At most ``expires_after_ms``,
                and as far as the log's ``reader.hold.max.ms`` allows.
        """
        return named_reader(
            *(self._handle, name),
            expires_after_ms=expires_after_ms,
            interval_ms=interval_ms,
            hold_ms=hold_ms,
        )

    def readers(self) -> list[Reader]:
        """Returns the named readers, how far each is behind, and how long until something overtakes
        it; a LIST, and one to three requests for each.
        """
        config = LogConfig.from_overrides(self._handle.refresh().head.config)
        return list_readers(self._handle, config, now_ms=self._handle.clock.now_ms())

    def forget_reader(self, name: str) -> None:
        """Forgets the reader ``name`` and its position, whether there is one or not."""
        self._handle.recent()  # Another log may stand there since.
        self._handle.store.delete(reader_path(check_name(name)))


def list_readers(handle: Handle, config: LogConfig, *, now_ms: int) -> list[Reader]:
    """Returns the readers of a log, by name; see `Log.readers`."""
    found = list(readers_of(handle))
    if not found:
        return []
    manifest, max_ms = handle.manifest(), hold_max_ms(handle.tip.head, config)
    holds = holds_of(found, max_ms=max_ms, now_ms=now_ms)
    return [
        Reader(name, {}, damage=str(reader))
        if isinstance(reader, StrayReaderError)
        else lag_of(reader, manifest, config, holds, now_ms=now_ms)
        for name, _, reader in found
    ]
