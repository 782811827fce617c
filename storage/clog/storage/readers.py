"""Named readers, whose positions the log stores but never depends on (FORMAT.md §18, S64).

A reader's document holds its position and the version at which it reached it. If the document is
damaged, belongs to another log or history, or names a version beyond the newest, it is ignored,
with the reason.

A reader may *hold* what it has not reached: tombstones at or above its offsets, and its version. A
hold lasts until ``hold_ms`` after the file was written, by the store's clock, and delays nothing by
more than ``max_ms``. So whatever readers, files and clocks say, and however many there are, the
delay is bounded. Removing a tombstone or a version consults the holds first; in a log whose readers
may not hold, that takes no request.

A lagging reader can be overtaken in three ways. *Retention* removes the segment at its position. A
*tombstone* that it has not reached is removed after its delete horizon, so that it misses a delete
(S41); one without a horizon stays at least ``delete.retention.ms`` after the next pass. Its
*version* expires, so that a batch planned at it cannot be read again. The last two wait for readers
that hold. The lag counts the records that the reader would get, up to the last stable offset.

A position is a file, not a commit (`NamedReader`): it costs one PUT when it is due, and writers
nothing. It is due when the reader has moved and `COMMIT_INTERVAL_MS` have passed since the last
report; when half of the time has passed until it would be forgotten, or its hold would end; and
when the reader ends. So after a crash the records of a few seconds are read again. If the store
refuses a position, the reader goes on, and writes it with the next one.
"""

import logging
import math
import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from clog.storage.commit.handle import Handle
from clog.storage.config.log_config import LogConfig
from clog.storage.config.units import LONG_MAX, with_times
from clog.storage.env import Shared, dataclass
from clog.storage.errors import (
    ClogError,
    CorruptionError,
    InvalidInputError,
    OffsetOutOfRangeError,
    StoreUnavailableError,
    UnsupportedFormatError,
)
from clog.storage.format import documents
from clog.storage.format.chunks import Chunk
from clog.storage.format.documents import NONE, READERS, reader_name_of, reader_path
from clog.storage.format.manifest import Manifest
from clog.storage.numpy_arrays import Mask, Offsets
from clog.storage.read.following import (
    POLL_MS,
    Followed,
    Following,
    check_deletes,
    reading_of,
)
from clog.storage.read.scan import by_partition, check_start, missed_deletes
from clog.storage.store.contract import Store

if TYPE_CHECKING:
    from fractions import Fraction

COMMIT_INTERVAL_MS = 10_000
EXPIRES_AFTER_MS = 7 * 86_400_000
"""As long as Kafka keeps the offsets of a group (``offsets.retention.minutes``)."""
EXPIRES_AFTER_MS_MAX = 3650 * 86_400_000
_KIND = "reader"
_LOGGER = logging.getLogger("clog.storage.readers")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class ReaderDocument:
    """A reader's last report: it reached the position ``offsets`` at ``version``, made by
    ``commit_id``; ``hold_ms``: how long the cleaner should wait for it; 0: not at all.
    """

    name: str
    log_id: str
    version: int
    commit_id: str
    offsets: Mapping[int, int]
    time_ms: int
    expires_ms: int
    hold_ms: int = 0


class StrayReaderError(Exception):
    """The document does not describe a reader of this log; the message gives the reason."""


def check_name(name: object) -> str:
    """Returns the name, if a reader can have it."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise InvalidInputError(
        f"{name!r:.150} is not a valid reader name; allowed: 1 to 128 characters of A-Z a-z 0-9 ."
        " _ -, not a dot first"
    )


def encode_reader(reader: ReaderDocument) -> bytes:
    """Returns the bytes of a reader's document."""
    body = {
        "name": reader.name,
        "log_id": reader.log_id,
        "version": reader.version,
        "id": reader.commit_id,
        "offsets": [reader.offsets[p] for p in range(len(reader.offsets))],
        "time_ms": reader.time_ms,
        "expires_ms": reader.expires_ms,
        "hold_ms": reader.hold_ms,
    }
    return documents.encode(_KIND, body)


def read_reader(handle: Handle, name: str) -> ReaderDocument:
    """Returns a reader's last report; 1 GET, up to 3 if the reader is behind."""
    return _checked(handle, stored_reader(handle.store, name))


def readers_of(
    handle: Handle, *, after_ms: int = NONE
) -> Iterator[tuple[str, int, ReaderDocument | StrayReaderError]]:
    """Yields each reader's name, when its file was written by the store's clock, and its last
    report, or why that is ignored; a LIST, and the requests of `read_reader` for each written
    after ``after_ms``.
    """
    listed = ((reader_name_of(f.path), f.modified_ms) for f in handle.store.list(READERS))
    young = [(name, ms) for name, ms in listed if name is not None and ms > after_ms]
    for name, written_ms in sorted(young):
        try:
            yield name, written_ms, read_reader(handle, name)
        except StrayReaderError as e:
            yield name, written_ms, e
        except FileNotFoundError:
            continue  # Forgotten in the meantime.


def stored_reader(store: Store, name: str) -> ReaderDocument:
    """Returns the content of a reader's document; one GET."""
    path = reader_path(name)
    data = documents.fetch(store, _KIND, path)
    try:
        reader = _parsed(documents.decode(_KIND, data, where=path))
    except (CorruptionError, UnsupportedFormatError, ValueError, KeyError, TypeError) as e:
        raise StrayReaderError(f"it cannot be read: {e}") from e
    if reader.name != name:
        raise StrayReaderError(f"it belongs to reader {reader.name!r:.150}")
    return reader


def _parsed(body: Mapping[str, Any]) -> ReaderDocument:
    offsets = body["offsets"]
    numbers = [body[name] for name in ("version", "time_ms", "expires_ms", "hold_ms")]
    texts = [body[name] for name in ("name", "log_id", "id")]
    if not isinstance(offsets, list) or any(type(n) is not int for n in [*offsets, *numbers]):
        raise ValueError("its numbers are not integers")
    if min([*offsets, *numbers], default=0) < 0 or any(not isinstance(t, str) for t in texts):
        raise ValueError("its fields are not those of a reader")
    version, time_ms, expires_ms, hold_ms = numbers
    name, log_id, commit_id = texts
    at = dict(enumerate(offsets))
    return ReaderDocument(name, log_id, version, commit_id, at, time_ms, expires_ms, hold_ms)


def _checked(handle: Handle, reader: ReaderDocument) -> ReaderDocument:
    head = handle.tip.head
    if reader.log_id != head.log.log_id:
        raise StrayReaderError("it belongs to another log that was here before")
    if len(reader.offsets) != head.log.partitions:
        raise StrayReaderError(
            f"it has {len(reader.offsets)} partitions, and the log {head.log.partitions}"
        )
    if reader.version > handle.tip.version and reader.version > handle.refresh().version:
        raise StrayReaderError(f"its version {reader.version} is beyond the newest")
    if not handle.has_committed(reader.version, reader.commit_id):
        raise StrayReaderError(
            f"version {reader.version} is a different one now: the log was restored"
        )
    is_beyond = handle.tip.head.partitions.end_before(reader.offsets)
    if is_beyond and handle.refresh().head.partitions.end_before(reader.offsets):
        raise StrayReaderError("its offsets are beyond the end: the log was restored")
    return reader


@dataclass(frozen=True, slots=True)
class HeldTombstones:
    """Which tombstones are held: from ``start`` on, with a horizon later than ``after_ms``."""

    start: int = LONG_MAX
    after_ms: int = LONG_MAX

    def mask(self, offsets: Offsets, horizons_ms: Offsets) -> Mask:
        """Returns which of these rows would be held if they were tombstones."""
        held: Mask = (offsets >= self.start) & (horizons_ms > self.after_ms)
        return held

    def may_hold(self, next_offset: int, horizon_ms: int) -> bool:
        """Returns whether tombstones below an offset with horizons up to this one may be held."""
        return next_offset > self.start and horizon_ms > self.after_ms


NOTHING_HELD = HeldTombstones()


@dataclass(frozen=True, slots=True)
class Hold:
    """What one reader holds until ``until_ms``: everything from its ``offsets`` and ``version``."""

    name: str
    version: int
    offsets: Mapping[int, int]
    until_ms: int


@dataclass(frozen=True, slots=True)
class Holds:
    """What the readers of a log hold; nothing is delayed by more than ``max_ms``."""

    holds: tuple[Hold, ...] = ()
    max_ms: int = 0

    def until_ms(self, name: str) -> int:
        """Returns until when this reader holds; 0 if it does not."""
        return next((h.until_ms for h in self.holds if h.name == name), 0)

    def of_partition(self, partition: int, *, now_ms: int) -> HeldTombstones:
        """Returns which tombstones of a partition are held now."""
        starts = [h.offsets[partition] for h in self.holds if h.until_ms > now_ms]
        if not starts:
            return NOTHING_HELD
        return HeldTombstones(min(starts), max(-1, now_ms - self.max_ms))

    def keeps_version(self, version: int, due_ms: int, *, now_ms: int) -> bool:
        """Returns whether a hold keeps ``oldest_readable`` below this version, due ``due_ms``."""
        return now_ms < due_ms + self.max_ms and any(
            h.version < version and h.until_ms > now_ms for h in self.holds
        )

    def tombstone_ms(self, partition: int, next_offset: int, horizon_ms: int) -> int:
        """Returns when tombstones below an offset with this horizon may be removed, by now."""
        held = [hold.until_ms for hold in self.of_tombstones(partition, next_offset)]
        return max(horizon_ms, min(max(held, default=0), horizon_ms + self.max_ms))

    def of_tombstones(self, partition: int, next_offset: int) -> list[Hold]:
        """Returns the holds of readers that have not read all records below an offset."""
        return [hold for hold in self.holds if hold.offsets[partition] < next_offset]

    def version_ms(self, version: int, due_ms: int) -> int:
        """Returns when ``oldest_readable`` may become this version, by what is known now; without
        holds it could from ``due_ms`` on.
        """
        held = [h.until_ms for h in self.holds if h.version < version]
        return max(due_ms, min(max(held, default=0), due_ms + self.max_ms))


NO_HOLDS = Holds()


def most_held_ms(handle: Handle) -> int:
    """Returns how long readers of a log may hold anything, by its config now."""
    return _hold_max_ms(LogConfig.from_overrides(handle.tip.head.config))


def _hold_max_ms(config: LogConfig) -> int:
    """Returns how long readers of a log may hold anything; 0 if they may not."""
    return min(config.reader_hold_max_ms, config.max_compaction_lag_ms)


def read_holds(handle: Handle, config: LogConfig, *, now_ms: int) -> Holds:
    """Returns what readers of the log hold; no request if they may not."""
    max_ms = _hold_max_ms(config)
    if not max_ms:
        return NO_HOLDS
    young = readers_of(handle, after_ms=now_ms - max_ms)
    return holds_of(young, max_ms=max_ms, now_ms=now_ms)


def holds_of(
    readers: Iterable[tuple[str, int, ReaderDocument | StrayReaderError]],
    *,
    max_ms: int,
    now_ms: int,
) -> Holds:
    """Returns what these readers, as `readers_of` yields them, hold."""
    holds = []
    for _, written_ms, reader in readers:
        if not isinstance(reader, StrayReaderError):
            until_ms = min(written_ms, now_ms) + min(reader.hold_ms, max_ms)
            if until_ms > now_ms:
                holds.append(Hold(reader.name, reader.version, dict(reader.offsets), until_ms))
    return Holds(tuple(holds), max_ms)


@dataclass(frozen=True, slots=True)
class Reader:
    """A named reader, as `Log.readers` lists it. Times are in ms.

    Attributes:
        name: its name.
        position: by partition, the next offset to read.
        lag_records: about how many records there are from there to the end, or to the first that an
            open transaction leaves undecided.
        lag_ms: how long ago the first of these was written; 0 if there are none.
        expires_ms: when it may be forgotten, in ms since 1970.
        lag_bytes: bytes of these records.
        version: the version at which it reached that position.
        committed_ms: when it reported that, in ms since 1970.
        until_retention_ms: how long until retention removes the segment at its position; 0: it has
            missed records, or may miss some now; None: never by time, but perhaps by
            ``retention.bytes``.
        until_tombstone_ms: how long until a tombstone that it has not reached may be removed; 0:
            one was, or may be now; None: there is none.
        until_version_ms: how long until its version may expire; 0: it has, or may now; None: no
            object of it was replaced.
        hold_ms: how long it asks the cleaner to wait.
        held_until_ms: until when the cleaner waits for it, in ms since 1970; 0: it does not wait.
        damage: why its document is unusable; None if it is usable.
    """

    name: str
    position: Mapping[int, int]
    lag_records: int = 0
    lag_ms: int = 0
    expires_ms: int = 0
    lag_bytes: int = 0
    version: int = NONE
    committed_ms: int = 0
    until_retention_ms: int | None = None
    until_tombstone_ms: int | None = None
    until_version_ms: int | None = None
    hold_ms: int = 0
    held_until_ms: int = 0
    damage: str | None = None

    __repr__ = with_times


def list_readers(handle: Handle, config: LogConfig, *, now_ms: int) -> list[Reader]:
    """Returns the readers of a log, by name; see `Log.readers`."""
    found = list(readers_of(handle))
    if not found:
        return []
    manifest, max_ms = handle.manifest(), _hold_max_ms(config)
    holds = holds_of(found, max_ms=max_ms, now_ms=now_ms)
    return [
        Reader(name, {}, damage=str(reader))
        if isinstance(reader, StrayReaderError)
        else _lag_of(reader, manifest, config, holds, now_ms=now_ms)
        for name, _, reader in found
    ]


def _lag_of(
    reader: ReaderDocument, manifest: Manifest, config: LogConfig, holds: Holds, *, now_ms: int
) -> Reader:
    """Returns how far a reader is behind at a version, given the present holds."""
    unread = list(_unread(manifest, reader.offsets))
    first_ms = min((c.first_timestamp_ms for _, c, _ in unread), default=now_ms)
    return Reader(
        name=reader.name,
        position=dict(reader.offsets),
        lag_records=sum(math.ceil(c.live_rows * share) for _, c, share in unread),
        lag_ms=max(0, now_ms - first_ms),
        expires_ms=reader.expires_ms,
        lag_bytes=sum(round(c.live_bytes * share) for _, c, share in unread),
        version=reader.version,
        committed_ms=reader.time_ms,
        until_retention_ms=_until_retention(reader, manifest, config, now_ms=now_ms),
        until_tombstone_ms=_until_tombstone(reader, manifest, config, unread, holds, now_ms=now_ms),
        until_version_ms=_until_version(reader, manifest, config, holds, now_ms=now_ms),
        hold_ms=reader.hold_ms,
        held_until_ms=holds.until_ms(reader.name),
    )


def _unread(
    manifest: Manifest, position: Mapping[int, int]
) -> Iterator[tuple[int, Chunk, "Fraction"]]:
    """Yields what a reader at the position has yet to read: partition, chunk and share of it."""
    from fractions import Fraction

    for p, segments in enumerate(manifest.segments):
        at = max(position[p], manifest.head.partitions.start[p])
        end = manifest.head.stable_offset(p)
        for segment in reversed(segments):
            if segment.next <= at:
                break
            for chunk in segment.chunks:
                unread = min(chunk.next, end) - max(chunk.base, at)
                if unread > 0 and chunk.live_rows:
                    yield p, chunk, Fraction(unread, chunk.next - chunk.base)


def _until_retention(
    reader: ReaderDocument, manifest: Manifest, config: LogConfig, *, now_ms: int
) -> int | None:
    left = []
    for p, segments in enumerate(manifest.segments):
        at = reader.offsets[p]
        if at < manifest.head.partitions.start[p]:
            return 0
        upto = [s for s in segments if s.base <= at]
        if config.delete and upto and upto[-1].chunks and upto[-1].next > at:
            left_bytes = sum(s.size_bytes for s in segments[len(upto) :])
            if 0 <= config.retention_bytes <= left_bytes:
                return 0
            if config.retention_ms >= 0:  # A segment is removed after all older ones.
                last_ms = max(s.max_timestamp_ms for s in upto)
                left.append(max(0, last_ms + config.retention_ms - now_ms))
    return min(left, default=None)


def _until_tombstone(
    reader: ReaderDocument,
    manifest: Manifest,
    config: LogConfig,
    unread: list[tuple[int, Chunk, "Fraction"]],
    holds: Holds,
    *,
    now_ms: int,
) -> int | None:
    if missed_deletes(manifest.tombstones_removed, reader.offsets, reader.version):
        return 0
    if not config.compact:
        return None
    left = []
    for p, chunk, _ in unread:
        horizons = [ms for ms in (chunk.horizon_min, chunk.horizon) if ms > NONE]
        if not horizons and chunk.tombstones:
            horizons = [now_ms + config.delete_retention_ms]
        goes_ms = (holds.tombstone_ms(p, chunk.next, ms) for ms in horizons)
        left += [max(0, ms - now_ms) for ms in goes_ms]
    return min(left, default=None)


def _until_version(
    reader: ReaderDocument, manifest: Manifest, config: LogConfig, holds: Holds, *, now_ms: int
) -> int | None:
    if reader.version < manifest.head.oldest_readable:
        return 0
    gone = (
        holds.version_ms(r.version, r.time_ms + config.file_delete_delay_ms)
        for r in manifest.released
        if r.version > reader.version
    )
    first_ms = min(gone, default=None)
    return None if first_ms is None else max(0, first_ms - now_ms)


def holding_reader(handle: Handle, name: str, hold_ms: int) -> "NamedReader":
    """Returns the reader of this name, remembered at least as long as it holds."""
    expires_ms = max(EXPIRES_AFTER_MS, hold_ms)
    return NamedReader(handle, name, expires_after_ms=expires_ms, hold_ms=hold_ms)


class NamedReader(Shared):
    """A reader whose name and position the log stores, made by `Log.reader`. Two readers with the
    same name overwrite each other's position. As a context manager, it reports its position at the
    end. Threads may share it.

    >>> from clog.storage import Log
    >>> log = Log.create("memory://help-of-named-reader", 1)
    >>> version = log.append([{"key": "a", "value": "1"}]).version
    >>> with log.reader("billing") as reader:  # `follow` does this by itself
    ...     start = reader.next_offsets()
    ...     rows = log.read(start=start).to_arrow()
    ...     written = reader.commit({0: start[0] + rows.num_rows})
    ...     reader.flush()
    >>> print(*((one.name, one.lag_records) for one in log.readers()))
    ('billing', 0)
    >>> reader.end()

    Attributes:
        handle: the log's; not for users.
    """

    def __init__(
        self,
        handle: Handle,
        name: str,
        *,
        expires_after_ms: int = EXPIRES_AFTER_MS,
        interval_ms: int = COMMIT_INTERVAL_MS,
        hold_ms: int = 0,
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
                f"hold_ms={hold_ms} is above expires_after_ms={expires_after_ms}, but a forgotten"
                " reader holds nothing; lower the first or raise the second"
            )
        self.handle = handle
        self._name = check_name(name)
        self._expires_after_ms = expires_after_ms
        self._interval_ms = interval_ms
        self._hold_ms = hold_ms
        super().__init__()
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

    def __dir__(self) -> list[str]:
        """Lists the attributes that are meant for users."""
        return [
            name for name in super().__dir__() if name not in ("commit_at", "followed", "handle")
        ]

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def position(self) -> dict[int, int]:
        """By partition, the next offset to read, as last reported. Empty for a new reader, or if
        its document is unusable, for a reason that is logged. Makes requests the first time.
        """
        with self._lock:
            known = self._reached()
            return {} if known is None else dict(known.offsets)

    def next_offsets(self, *, missed_deletes: bool = False) -> dict[int, int]:
        """Returns where to continue reading, by partition: at the position, or at the log start if
        there is none.

        Args:
            missed_deletes: accept that the reader has missed deletes.

        Raises:
            OffsetOutOfRangeError: the position is below the log start, so that records were missed,
                or beyond the end.
            NotFoundError: tombstones beyond it have been removed.
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

    def follow(
        self,
        *,
        poll_ms: int | None = POLL_MS,
        start: str = "earliest",
        columns: Sequence[str] | None = None,
        commit: bool = True,
        missed_deletes: bool = False,
        stop_on: Iterable[signal.Signals] = (),
    ) -> Following[pa.RecordBatch]:
        """Returns an iterable, for ``for`` or ``async for``, of record batches: what this reader
        has not read yet, and then new records as they come.

        >>> from clog.storage import Log
        >>> log = Log.create("memory://help-of-follow", partitions=1)
        >>> version = log.append([{"key": "a", "value": "1"}]).version
        >>> for batch in log.reader("billing").follow(poll_ms=None):
        ...     print(batch.num_rows)
        1

        Args:
            poll_ms: how often to look for more, with one small request each; None: stop at the
                present end.
            start: where a new reader begins: ``earliest`` or ``latest``.
            columns: the columns to read besides partition and offset; None: all.
            commit: count a batch as processed, and note the position, when the next one is
                requested; False: call `commit` yourself.
            missed_deletes: as of `next_offsets`.
            stop_on: signals that end it after the current batch, in the main thread.

        A batch that was being processed when the process died or left the loop comes again. If the
        store fails, it is asked again at growing intervals.

        Raises:
            OffsetOutOfRangeError: retention or `Log.delete_records` overtook the reader.
            NotFoundError: tombstones that it had not read have been removed.
        """
        source = self.followed(start, columns, commit=commit, missed_deletes=missed_deletes)
        return Following([source], lambda _, batch: batch, poll_ms=poll_ms, stop_on=stop_on)

    def followed(
        self, start: str, columns: Sequence[str] | None, *, commit: bool, missed_deletes: bool
    ) -> Followed:
        """Returns what `follow` reads; not for users."""
        if start not in ("earliest", "latest"):
            raise InvalidInputError(f"start={start!r} is not earliest or latest")
        at = self.next_offsets(missed_deletes=missed_deletes)
        version, head = self.handle.tip.version, self.handle.tip.head
        if not self.position:
            if start == "latest":
                at = {p: head.stable_offset(p) for p in at}
            else:
                version = NONE  # It has nothing that a delete could be missing from.
            if commit:
                self.commit(at)
        read = reading_of(head.log.schema, columns)
        return Followed(
            *(self.handle, at, read, self if commit else None),
            version=version,
            who=None if missed_deletes else f"reader {self._name}",
        )

    def commit(self, position: Mapping[int, int]) -> bool:
        """Notes the next offsets to read, and returns whether it wrote them to the log, which it
        does at most every ``interval_ms``; `flush` always does. If the store fails, this logs a
        warning, and they are written later.

        Args:
            position: by partition; others keep their position, initially their log start.

        Raises:
            InvalidInputError: the position is invalid.
            OffsetOutOfRangeError: an offset is beyond the end.
        """
        return self._commit(position, None)

    def commit_at(self, position: Mapping[int, int], version: int, commit_id: str) -> bool:
        """Commits records that were read at this version; otherwise as `commit`. For state tables
        and connectors, not for users.
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
            self.handle.recent()  # Raises if another log has taken this one's place.
            now = self._reached()
            assert now is not None, "a position was noted"
            self.handle.store.put(reader_path(self._name), encode_reader(now))
            self._said, self._noted, self._tried_ms = now, {}, None
            self._said_ms = self.handle.clock.monotonic_ms()

    def end(self) -> None:
        """Writes the position as `flush` does; a failure is only a warning."""
        try:
            self.flush()
        except StoreUnavailableError as e:
            self._warn(e)

    def _commit(self, position: Mapping[int, int], read_at: tuple[int, str] | None) -> bool:
        with self._lock:
            handle = self.handle
            if not isinstance(position, Mapping):
                raise InvalidInputError(
                    f"position={position!r:.80} is not a mapping; give the next offset to read by"
                    " partition, such as {0: 5}"
                )
            asked = by_partition(handle.tip.head, position, "offset", url=handle.store.url)
            with suppress(StoreUnavailableError):  # Positions decide nothing, so trust this one.
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
        """Returns what to report; None for a new reader."""
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
            "the position of reader %s was not recorded in %s: %s",
            *(self._name, self.handle.store.url, error),
        )

    def _known(self) -> ReaderDocument | None:
        """Returns the last report, by this reader or by an earlier one with its name."""
        if not self._loaded:
            try:
                self._said = read_reader(self.handle, self._name)
            except FileNotFoundError:
                self._said = None
            except StrayReaderError as e:
                _LOGGER.warning(
                    "the position of reader %s of %s is ignored, so the reader starts again: %s",
                    *(self._name, self.handle.store.url, e),
                )
            self._loaded = True
        return self._said

    def _is_worth_it(self) -> bool:
        now_ms = self.handle.clock.monotonic_ms()
        if self._tried_ms is not None and now_ms - self._tried_ms < self._interval_ms:
            return False  # The store failed: do not try again for every record.
        said, now = self._known(), self._reached()
        if said is None or now is None or self._said_ms is None:
            return True
        if now.offsets == said.offsets:
            since_ms = now.time_ms - said.time_ms
            max_ms = _hold_max_ms(LogConfig.from_overrides(self.handle.tip.head.config))
            held_ms = min(self._hold_ms, max_ms)  # How long a report holds anything.
            return 2 * since_ms >= min(self._expires_after_ms, held_ms or LONG_MAX)
        return now_ms - self._said_ms >= self._interval_ms

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
        manifest, url = self.handle.manifest(), self.handle.store.url
        who = f"reader {self._name}"
        check_deletes(manifest, known.offsets, known.version, who=who, url=url)


def follow(
    readers: Sequence[NamedReader],
    *,
    poll_ms: int | None = POLL_MS,
    start: str = "earliest",
    columns: Sequence[str] | None = None,
    commit: bool = True,
    missed_deletes: bool = False,
    stop_on: Iterable[signal.Signals] = (),
) -> Following[tuple[NamedReader, pa.RecordBatch]]:
    """Follows several readers, of one log or of several: returns an iterable of (reader, batch), a
    batch of each in turn. ``poll_ms``, ``start``, ``columns``, ``commit``, ``missed_deletes`` and
    ``stop_on`` are as of `NamedReader.follow`.

    All is done in the caller's thread: while a store does not answer, the other readers wait. Where
    they must not, follow those of each store in a thread of its own.
    """
    if not readers:
        raise InvalidInputError("nothing to follow; give at least one reader")
    sources = [
        r.followed(start, columns, commit=commit, missed_deletes=missed_deletes) for r in readers
    ]
    return Following(sources, lambda i, b: (readers[i], b), poll_ms=poll_ms, stop_on=stop_on)
