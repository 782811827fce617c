"""`NamedReader`: tells the log how far a reader has come, and where it goes on (S64).

A position is a file of its own, not a commit: it costs one PUT when it is worth it, writers nothing
at all. It is worth it when the reader has moved and `COMMIT_INTERVAL_MS` have passed since it was
said last, by the monotonic clock; when half of the time until it would be forgotten, or for which
it is waited for, is over; and when the reader ends. So a crash takes back some seconds: what was
read in them is read again. Who needs more commits positions in a transaction.

As nothing depends on it, a store that fails or refuses stops no reader: the position stays due, and
is said when the next one would be.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Self

from clog.storage import forks
from clog.storage.commit.handle import Handle
from clog.storage.config.definitions import LONG_MAX
from clog.storage.config.log_config import LogConfig
from clog.storage.errors import (
    ClogError,
    InvalidInputError,
    NotFoundError,
    OffsetOutOfRangeError,
    StoreUnavailableError,
)
from clog.storage.format.chunks import NONE
from clog.storage.format.paths import reader_path
from clog.storage.read.missed_deletes import missed_deletes
from clog.storage.read.offsets import by_partition, check_start
from clog.storage.readers.documents import (
    ReaderDocument,
    StrayReaderError,
    check_name,
    encode_reader,
    read_reader,
)
from clog.storage.readers.holds import hold_max_ms

COMMIT_INTERVAL_MS = 10_000
EXPIRES_AFTER_MS = 7 * 86_400_000
"""Kafka keeps the offsets of a group as long (``offsets.retention.minutes``)."""
EXPIRES_AFTER_MS_MAX = 3650 * 86_400_000
_LOGGER = logging.getLogger("clog.storage.readers")


def named_reader(
    handle: Handle,
    name: str,
    *,
    expires_after_ms: int = EXPIRES_AFTER_MS,
    interval_ms: int = COMMIT_INTERVAL_MS,
    hold_ms: int = 0,
) -> "NamedReader":
    """Returns the reader of this name; see `ReadersOfLog.reader`."""
    return NamedReader(
        *(handle, name),
        expires_after_ms=expires_after_ms,
        interval_ms=interval_ms,
        hold_ms=hold_ms,
    )


def holding_reader(handle: Handle, name: str, hold_ms: int) -> "NamedReader":
    """Returns the reader of this name, remembered for as long as it is to be waited for."""
    expires_ms = max(EXPIRES_AFTER_MS, hold_ms)
    return named_reader(handle, name, expires_after_ms=expires_ms, hold_ms=hold_ms)


class NamedReader:
    """A reader whose name and position the log knows; `Log.reader` makes one. Two readers of one
    name overwrite each other's position. A context manager, which reports its position at its end.
    Threads may share it.

    Attributes:
        handle: on the log; not for users.
    """

    def __init__(
        self, handle: Handle, name: str, *, expires_after_ms: int, interval_ms: int, hold_ms: int
    ) -> None:
        for what, value, low in (
            ("expires_after_ms", expires_after_ms, 1),
            ("interval_ms", interval_ms, 0),
            ("hold_ms", hold_ms, 0),
        ):
            if type(value) is not int or not low <= value <= EXPIRES_AFTER_MS_MAX:
                raise InvalidInputError(
                    f"{what}={value!r} is out of range; allowed: {low} to {EXPIRES_AFTER_MS_MAX}"
                )
        if hold_ms > expires_after_ms:
            raise InvalidInputError(
                f"hold_ms={hold_ms} is above expires_after_ms={expires_after_ms}: nobody is waited"
                " for after being forgotten; lower the first or raise the second"
            )
        self.handle = handle
        self._name = check_name(name)
        self._expires_after_ms = expires_after_ms
        self._interval_ms = interval_ms
        self._hold_ms = hold_ms
        self._lock = forks.lock()
        self._said: ReaderDocument | None = None
        self._said_ms: int | None = None
        self._tried_ms: int | None = None
        self._noted: dict[int, int] = {}
        self._noted_at = NONE, "", NONE
        self._loaded = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def __repr__(self) -> str:
        return f"NamedReader({self._name!r}, {self.handle.store.url!r})"

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def position(self) -> dict[int, int]:
        """By partition, the next offset to read, as last reported; empty for a new reader, and if
        its document is unusable, which is logged with the reason. Reads the log the first time.
        """
        with self._lock:
            known = self._reached()
            return {} if known is None else dict(known.offsets)

    def next_offsets(self, *, missed_deletes: bool = False) -> dict[int, int]:
        """Returns where to continue reading, by partition: at the position, or at the log start if
        there is none.

        Args:
            missed_deletes: accept that deletes were missed since.

        Raises:
            OffsetOutOfRangeError: the position is below the log start, so that records were missed,
                or beyond the end.
            NotFoundError: tombstones beyond it were removed since.
        """
        with self._lock:
            known = self._reached()
            head = self.handle.refresh().head
            url = self.handle.store.url
            if known is None:
                return dict(enumerate(head.partitions.start))
            for p, offset in known.offsets.items():
                check_start(head, p, offset, url=url)
            if not missed_deletes:
                self._check_missed(known)
            return dict(known.offsets)

    def commit(self, position: Mapping[int, int]) -> bool:
        """Notes the next offsets to read, and returns whether it wrote them to the log, which it
        does at most every ``interval_ms``; `flush` always does. Where the store fails they stay
        noted, which is a warning, and are written later.

        Args:
            position: by partition; others keep their position, at first their log start.

        Raises:
            InvalidInputError: not a valid position.
            OffsetOutOfRangeError: an offset beyond the end.
        """
        return self._commit(position, None)

    def commit_at(self, position: Mapping[int, int], version: int, commit_id: str) -> bool:
        """Takes note as `commit`, of records that were read at this version; for state tables and
        connectors, not for users.
        """
        return self._commit(position, (version, commit_id))

    def flush(self) -> None:
        """Writes the position to the log now, if the log does not have it yet; one PUT.

        Raises:
            StoreUnavailableError: the store failed; the position stays noted.
        """
        with self._lock:
            if not self._noted:
                return
            self.handle.recent()  # Another log may stand there since.
            now = self._reached()
            assert now is not None, "there is something noted"
            self.handle.store.put(reader_path(self._name), encode_reader(now))
            self._said, self._noted, self._tried_ms = now, {}, None
            self._said_ms = self.handle.clock.monotonic_ms()

    def end(self) -> None:
        """Writes the position as `flush`; what cannot be written is a warning."""
        try:
            self.flush()
        except StoreUnavailableError as e:
            self._warn(e)

    def _commit(self, position: Mapping[int, int], read_at: tuple[int, str] | None) -> bool:
        with self._lock:
            handle = self.handle
            asked = by_partition(handle.tip.head, dict(position), "offset", url=handle.store.url)
            with suppress(StoreUnavailableError):  # It decides nothing: what is noted is believed.
                self._check_reachable(asked)
            self._noted |= asked
            self._noted_at = *(read_at or handle.planned_for(asked)), handle.clock.now_ms()
            try:
                if self._is_worth_it():
                    self.flush()
                    return True
            except StoreUnavailableError as e:
                self._tried_ms = handle.clock.monotonic_ms()
                self._warn(e)
            return False

    def _reached(self) -> ReaderDocument | None:
        """Returns what is to be said; None where there never was anything."""
        known = self._known()
        if not self._noted:
            return known
        version, commit_id, noted_ms = self._noted_at
        offsets = dict(enumerate(self.handle.tip.head.partitions.start))
        offsets |= {} if known is None else known.offsets
        return ReaderDocument(
            *(self._name, self.handle.standing.log_id, version, commit_id, offsets | self._noted),
            *(noted_ms, noted_ms + self._expires_after_ms, self._hold_ms),
        )

    def _warn(self, error: ClogError) -> None:
        _LOGGER.warning(
            "the position of reader %s was not told to %s: %s",
            *(self._name, self.handle.store.url, error),
        )

    def _known(self) -> ReaderDocument | None:
        """Returns what was said last, here or by who had the name before."""
        if not self._loaded:
            try:
                self._said = read_reader(self.handle, self._name)
            except FileNotFoundError:
                self._said = None
            except StrayReaderError as e:
                _LOGGER.warning(
                    "the position of reader %s of %s counts for nothing, and it begins anew: %s",
                    *(self._name, self.handle.store.url, e),
                )
            self._loaded = True
        return self._said

    def _is_worth_it(self) -> bool:
        now_ms = self.handle.clock.monotonic_ms()
        if self._tried_ms is not None and now_ms - self._tried_ms < self._interval_ms:
            return False  # The store failed: it is not asked by each record.
        said, now = self._known(), self._reached()
        if said is None or now is None or self._said_ms is None:
            return True
        if now.offsets == said.offsets:
            told_ms = now.time_ms - said.time_ms
            return 2 * told_ms >= min(self._expires_after_ms, self._held_ms() or LONG_MAX)
        return now_ms - self._said_ms >= self._interval_ms

    def _held_ms(self) -> int:
        """Returns for how long a word of it holds anything; 0: not at all."""
        head = self.handle.tip.head
        return min(self._hold_ms, hold_max_ms(head, LogConfig.from_overrides(head.config)))

    def _check_reachable(self, asked: Mapping[int, int]) -> None:
        handle = self.handle
        if handle.tip.head.partitions.end_before(asked):
            handle.refresh()
        partitions = handle.tip.head.partitions
        for p, offset in asked.items():
            if not 0 <= offset <= partitions.end[p]:
                raise OffsetOutOfRangeError(
                    f"offset {offset} of partition {p} is not a position of reader {self._name} in"
                    f" {handle.store.url}; allowed: 0 to {partitions.end[p]}, its end",
                    partition=p,
                    offset=offset,
                    start=partitions.start[p],
                    end=partitions.end[p],
                )

    def _check_missed(self, known: ReaderDocument) -> None:
        removed = self.handle.manifest().tombstones_removed
        missed = missed_deletes(removed, known.offsets, known.version)
        if missed:
            raise NotFoundError(
                f"tombstones up to offset {max(missed.values())} of partitions {sorted(missed)} of"
                f" {self.handle.store.url} were removed before reader {self._name}, at version"
                f" {known.version}, came to them, so it has missed deletes; rebuild what it wrote"
                " from the log's start, or go on with missed_deletes=True"
            )
