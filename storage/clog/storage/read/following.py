"""Continuous reading: batches of the records of logs as they are appended.

A *source* is one log, and the next offset to read in each of its partitions. It is planned up to
the current end and, once that was read, planned anew: at the version of that time, and after any
gap that the last records left. A request for the next batch means that the previous one is done,
and only then is the position noted: a batch that was in work when the process died, or when the
loop was left, comes again: none is missed (S2). If the store fails, reads are retried at growing
intervals; a version that expired while it was read is planned anew from the last batch on: the
records that the cleaner removed since then have later ones. A tombstone may have been among them,
or among those of a log that was not looked at for long: each plan checks that none was removed
since the one before it (S41).
"""

import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from clog.storage.commit.handle import Handle
from clog.storage.errors import (
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
    VersionExpiredError,
)
from clog.storage.format.documents import NONE
from clog.storage.format.log_info import LogSchema
from clog.storage.format.manifest import Manifest
from clog.storage.numpy_arrays import to_numpy
from clog.storage.read.scan import check_start, columns_asked, missed_deletes, read_records

POLL_MS: Final = 1000
REST_MS_MAX: Final = 30_000
"""The longest pause before a store that failed is asked again."""
_PART_MS: Final = 100
_LOGGER = logging.getLogger("clog.storage.read")
Batches: TypeAlias = Iterator[pa.RecordBatch]
_T = TypeVar("_T")
_Read: TypeAlias = Callable[[Handle, Manifest, Mapping[int, tuple[int, int]]], Batches]


class Progress(Protocol):
    """A named reader, which records how far a source was read."""

    def commit_at(self, position: Mapping[int, int], version: int, commit_id: str) -> bool:
        """Notes the next offsets after a read at a version."""
        ...

    def end(self) -> None:
        """Reports the noted position."""
        ...


def reading_of(schema: LogSchema | None, columns: Sequence[str] | None) -> _Read:
    """Returns a function that reads these columns, partition and offset; None: all columns."""
    asked = None if columns is None else list(dict.fromkeys(("partition", "offset", *columns)))
    wanted = columns_asked(schema, asked)

    def read(handle: Handle, manifest: Manifest, ranges: Mapping[int, tuple[int, int]]) -> Batches:
        return read_records(handle.store, manifest, ranges, columns=wanted)

    return read


def check_deletes(
    manifest: Manifest, offsets: Mapping[int, int], version: int, *, who: str, url: str
) -> None:
    """Raises if a reader that reached these offsets at a version may have missed deletes since."""
    missed = missed_deletes(manifest.tombstones_removed, offsets, version)
    if missed:
        raise NotFoundError(
            f"tombstones up to offset {max(missed.values())} of partitions {sorted(missed)} of"
            f" {url} were removed before {who}, at version {version}, reached them, so it has"
            " missed deletes; rebuild what it wrote from the log's start, or continue with"
            " missed_deletes=True"
        )


class Followed:
    """One log, followed by one thread from given offsets; ``reader`` notes what is done.

    ``version`` is that at which the offsets were reached, or NONE for a start from scratch; ``who``
    gets the error that it missed deletes since; None accepts that.

    Attributes:
        is_behind: whether nothing came although there is more: the store failed, or the version
            that was read has expired.
    """

    def __init__(
        self,
        handle: Handle,
        offsets: Mapping[int, int],
        read: _Read,
        reader: Progress | None = None,
        *,
        version: int = NONE,
        who: str | None = "this reader",
    ) -> None:
        self.clock = handle.clock
        self.is_behind = False
        self._who = who
        self._read_at = version, ""
        self._handle = handle
        self._at, self._reported = dict(offsets), dict(offsets)
        self._read = read
        self._reader = reader
        self._reading: Batches = iter(())
        self._ends: dict[int, int] = {}
        self._given: dict[int, int] = {}
        self._rest_ms, self._next_ms = 0, NONE

    def next(self) -> pa.RecordBatch | None:
        """Returns the next batch, and notes the previous one as done; None: not yet, or failed."""
        self.done()
        if self.clock.monotonic_ms() < self._next_ms:
            return None
        self.is_behind = True
        try:
            batch = self._found()
            if batch is None and self._plan():
                batch = self._found()
        except VersionExpiredError:
            self._reading, self._ends = iter(()), {}  # Superseded since then: planned anew.
            return None
        except StoreUnavailableError as e:
            self._rest_ms = min(max(2 * self._rest_ms, POLL_MS), REST_MS_MAX)
            self._next_ms = self.clock.monotonic_ms() + self._rest_ms
            self._reading, self._ends = iter(()), {}
            _LOGGER.warning("asked again in %s ms: %s", self._rest_ms, e)
            return None
        self._rest_ms, self.is_behind = 0, False
        return batch

    def done(self) -> None:
        """Notes the last returned batch as done."""
        if self._given:
            self._at |= self._given
            self._reported |= self._given
            if self._reader is not None:
                self._reader.commit_at(self._given, *self._read_at)
            self._given = {}

    def report(self) -> None:
        """Notes the position again, so that a waiting reader is not forgotten."""
        self._reported = dict(self._at)
        if self._reader is not None and self._read_at[1]:
            self._reader.commit_at(self._at, *self._read_at)

    def end(self) -> None:
        """Reports the position."""
        if self._reader is not None:
            self._reader.end()

    def _found(self) -> pa.RecordBatch | None:
        batch = next((batch for batch in self._reading if batch.num_rows), None)
        if batch is None:
            self._at |= self._ends  # There may be a gap after the last record.
            self._ends = {}
        else:
            self._given = offsets_after(batch)
        return batch

    def _plan(self) -> bool:
        """Plans the next read; returns whether there is more."""
        tip = self._handle.refresh()
        head = tip.head
        for p, offset in self._at.items():
            check_start(head, p, offset, url=self._handle.store.url)
        self._ends = {p: head.stable_offset(p) for p, at in self._at.items()}
        ranges = {p: (self._at[p], end) for p, end in self._ends.items() if self._at[p] < end}
        if ranges:
            manifest, url = self._handle.manifest(), self._handle.store.url
            if self._who is not None and self._read_at[0] != NONE:
                check_deletes(manifest, self._at, self._read_at[0], who=self._who, url=url)
            self._reading = self._read(self._handle, manifest, ranges)
        self._read_at = tip.version, tip.record.commit_id
        if not ranges and self._at != self._reported:
            self.report()
        return bool(ranges)


class Following(Generic[_T]):
    """Batches of records as they are appended, of one log or of several in turn: iterate over it
    with ``for`` or ``async for``. `NamedReader.follow` and `follow` make one.

    >>> from clog.storage import Log
    >>> log = Log.create("memory://help-of-following", 1)
    >>> version = log.append([{"key": "a", "value": "1"}]).version
    >>> batches = log.reader("billing").follow()
    >>> for batch in batches:
    ...     batches.stop()  # or a signal: follow(stop_on=[signal.SIGTERM])
    >>> batch.num_rows
    1
    """

    def __init__(
        self,
        sources: Sequence[Followed],
        given: Callable[[int, pa.RecordBatch], _T],
        *,
        poll_ms: int | None,
        stop_on: Iterable[signal.Signals] = (),
    ) -> None:
        """Follows these, and yields what ``given`` returns for a source's number and a batch."""
        if poll_ms is not None and (type(poll_ms) is not int or poll_ms < 1):
            raise InvalidInputError(
                f"poll_ms={poll_ms!r} is neither None nor a number of ms, 1 or more"
            )
        self._sources = sources
        self._given = given
        self._poll_ms = poll_ms
        self._stop_on = tuple(stop_on)
        self._stopped = False

    def stop(self) -> None:
        """Ends it after the current batch, or within a tenth of a second while it waits for more;
        any thread or signal handler may call it.
        """
        self._stopped = True

    def _is_stopped(self) -> bool:
        return self._stopped

    def __iter__(self) -> Iterator[_T]:
        with self._until_signal():
            yield from self._batches()

    async def __aiter__(self) -> AsyncIterator[_T]:
        from asyncio import to_thread

        batches = self._batches()
        with self._until_signal():
            try:
                while (batch := await to_thread(next, batches, None)) is not None:
                    yield batch
            finally:
                self.stop()

    def _batches(self) -> Iterator[_T]:
        try:
            while not self._stopped:
                is_idle = True
                for i, source in enumerate(self._sources):
                    batch = source.next()
                    if batch is not None:
                        is_idle = False
                        yield self._given(i, batch)
                    if self._is_stopped():
                        break
                if is_idle:
                    if self._poll_ms is None and not any(s.is_behind for s in self._sources):
                        return
                    for source in self._sources:
                        source.report()
                    self._wait(self._poll_ms or POLL_MS)
            for source in self._sources:
                source.done()
        finally:
            for source in self._sources:
                source.end()

    def _wait(self, ms: int) -> None:
        """Waits in short steps: neither `stop` nor a signal handler ends a sleep."""
        while ms > 0 and not self._stopped:
            self._sources[0].clock.sleep_ms(min(ms, _PART_MS))
            ms -= _PART_MS

    @contextmanager
    def _until_signal(self) -> Iterator[None]:
        before = {number: signal.getsignal(number) for number in self._stop_on}
        try:
            for number in self._stop_on:
                signal.signal(number, lambda *_: self.stop())
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def offsets_after(batch: pa.RecordBatch) -> dict[int, int]:
    """Returns the offsets after a batch, whose partitions are in ascending order."""
    partitions = to_numpy(batch.column("partition"))
    lasts = np.append(np.flatnonzero(np.diff(partitions)), len(partitions) - 1)
    offsets = to_numpy(batch.column("offset"))
    return {int(partitions[i]): int(offsets[i]) + 1 for i in lasts if len(partitions)}
