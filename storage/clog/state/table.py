"""`StateTable`: the latest value of each key of a log, in a local file that follows the log.

V1. Open: the existing file is used, and only what the log got since is read (V3 to V5). If there is
    none, or it is damaged, or of another log: V2.
V2. Build: the table view of the newest version is written to a new file.
V3. Refresh: one GET if nothing is new. Otherwise the changelog slice is read from the file's
    offsets on: the latest record of each changed key, tombstones included.
V4. Before that, S41: if a tombstone beyond the file's offsets was removed after the file's version,
    deleted keys could remain. Then V2, or an error, as configured.
V5. Rows, offsets and version are entered in one transaction. If nothing was appended since, as with
    the cleaner's commits, there are no rows, and no data of the log is read.
V6. Enter: rows that this process has just committed, and has in memory, are entered without reading
    them back, if the file was at the offsets just before them; else V3.
V7. Where rows may wait, V5 and V6 leave them in memory, and enter many together (`cache`).

A *generation* of the file is built completely, under a temporary name, and then renamed to a name
that no generation had; then older ones are marked as replaced, and deleted. So a crash leaves the
old one or the new one, and a process that reads an older one switches to the new one. Several
processes may use one folder: a file lock lets one at a time build or refresh.
"""

import fcntl
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from io import FileIO
from os import PathLike
from pathlib import Path
from typing import IO, Any, Self, TypeVar

import pyarrow as pa
import xxhash

from clog.state.cache import Cache, Uncommitted, rows_of
from clog.state.local_file import (
    COLUMNS,
    DamagedCacheError,
    LocalFile,
    Piece,
    Position,
    Row,
    is_at,
    is_of_disk,
    leave,
    sorted_pieces,
    unlinked,
)
from clog.state.row_bytes import RowCodec
from clog.storage.commit.handle import Handle
from clog.storage.config.log_config import order_text
from clog.storage.env import Clock, Shared, SystemClock, SystemIds, dataclass, register
from clog.storage.errors import (
    ClogError,
    CorruptionError,
    InvalidInputError,
    LogReplacedError,
    NotFoundError,
    StateFileError,
    VersionExpiredError,
)
from clog.storage.format.commits import Commit
from clog.storage.format.manifest import Manifest
from clog.storage.read.lookup import answered_key
from clog.storage.read.scan import missed_deletes
from clog.storage.read.table import MAP_BYTES, latest_batches, plan_table, table_batches
from clog.storage.readers import NamedReader, check_name, holding_reader
from clog.storage.store import store_at
from clog.storage.store.contract import Store


def _newest_generation(folder: Path, name: str) -> int:
    """Returns the number of the newest generation; 0 if there is none."""
    pattern = re.compile(rf"{re.escape(name)}\.(\d+)\.state")
    try:
        found = (pattern.fullmatch(path.name) for path in folder.iterdir())
        return max((int(match[1]) for match in found if match), default=0)
    except FileNotFoundError:
        return 0  # The folder was deleted.


def build(folder: Path, name: str, position: Position, pieces: Iterable[Piece]) -> Cache:
    """Builds the next generation. The caller ensures that no other process does."""
    building = _building(folder, name)
    try:
        LocalFile.build(building, position, pieces)
        _sync(building)
        generation = _newest_generation(folder, name) + 1
        path = building.rename(_path(folder, name, generation))
    except BaseException:
        building.unlink(missing_ok=True)  # Else a full disk would stay full.
        raise
    _sync(folder)
    cache = Cache(path, generation)
    for older in {*folder.glob(f"{name}.*.state"), *folder.glob(f"{name}.*.sqlite3*")} - {path}:
        if older.suffix == path.suffix:  # Others are from releases before 0.2.
            leave(older)
        older.unlink(missing_ok=True)
    return cache


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _building(folder: Path, name: str) -> Path:
    return folder / f"{name}.building"


def _path(folder: Path, name: str, generation: int) -> Path:
    return folder / f"{name}.{generation}.state"


class _LockFile(FileIO):
    """Locked while it is open, by C code only, so that an interrupt leaves nothing locked; not in
    a forked child, where nothing would close it.
    """

    def after_fork(self) -> None:
        """Closes it in a forked child."""
        self.close()


def locked(folder: Path, name: str, url: str) -> IO[bytes]:
    """Returns a file whose lock lets one process at a time write the files of this name, until it
    is closed: use it in ``with`` immediately.
    """
    try:
        return _locked(folder, name)
    except (DamagedCacheError, OSError) as e:
        raise _unwritable(folder, url, e) from e


@contextmanager
def telling(folder: Path, url: str) -> Iterator[None]:
    """Turns errors of the disk into ours, in words for users; ``url`` is that of the log."""
    try:
        yield
    except (DamagedCacheError, OSError) as e:
        if isinstance(e, ClogError) or (isinstance(e, OSError) and not is_of_disk(e)):
            raise
        raise _unwritable(folder, url, e) from e


def _locked(folder: Path, name: str) -> _LockFile:
    path = folder / f"{name}.lock"
    while True:
        folder.mkdir(parents=True, exist_ok=True)  # The disk may have been emptied.
        lock = _LockFile(path, "a", opener=unlinked)
        register(lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if is_at(path, lock.fileno()):
                _building(folder, name).unlink(missing_ok=True)  # Left by a killed process.
                return lock
        except BaseException:
            lock.close()  # Else it stays locked while the traceback of an interrupt is kept.
            raise
        lock.close()  # It was deleted: the next process would lock another file.


def _unwritable(folder: Path, url: str, error: Exception) -> StateFileError:
    remedy = (
        "free space there"
        if is_of_disk(error)
        else "make sure that this process may write there, and that nothing else deletes or"
        " replaces files there"
    )
    return StateFileError(
        f"the file of the state of {url} in {folder} cannot be written: {error}; {remedy}; the"
        " log is intact, and the table then follows it again"
    )


def position_of(at: Manifest | Commit) -> Position:
    """Returns the position of a file that shows this version, up to its undecided records."""
    log, starts = at.head.log, dict(enumerate(at.head.partitions.start))
    commit_id = at.record.commit_id if isinstance(at, Commit) else at.commit_id
    offsets = {p: at.head.stable_offset(p) for p in starts}
    order = order_text(at.head.config)
    return Position(log.log_id, at.version, commit_id, offsets, starts, log.schema, order)


def is_of(before: Position, now: Position) -> bool:
    """Returns whether rows may be added to earlier ones: log, schema and order are the same."""
    of_before, of_now = ((at.log_id, at.schema, at.order) for at in (before, now))
    return of_before == of_now


_ATTEMPTS = 5
"""Attempts before giving up when the cleaner and the sweep overtake each."""


CHANGED_MAX = 100_000
"""If more keys changed than this, they are not listed."""
_LOGGER = logging.getLogger("clog.state")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What a refresh did.

    Attributes:
        version: the version of the log that the table shows now.
        changed: the keys that were set or deleted; None: possibly any, because the table was
            rebuilt, or more than 100,000 keys changed.
    """

    version: int
    changed: tuple[Any, ...] | None


class Follower(Shared):
    """The file, and the handle on the log that it follows; opened and brought up to date by the
    constructor. Threads, and processes on one host, may share it. ``position`` is that of the file
    when it was last read or moved here; ``reopens`` says whether to continue with another log that
    replaced this one.
    """

    def __init__(
        self,
        handle: Handle,
        folder: Path,
        *,
        on_loss: str,
        map_bytes: int,
        reopens: bool = False,
        waiting_bytes: int = 0,
    ) -> None:
        self.handle = handle
        self._reopens = reopens
        self.folder = folder
        self._is_verified = self._is_closed = False
        self._on_loss = on_loss
        self._map_bytes = map_bytes
        self._name = xxhash.xxh3_64_hexdigest(handle.standing.root.url.encode())
        super().__init__()
        with self._telling(), self._locked():
            self._cache, self.position = self._opened()
            self._cache.let_wait(waiting_bytes)
            try:
                self._refreshed()
            except BaseException:
                self._cache.close()
                raise

    @property
    def url(self) -> str:
        """The log, without secrets."""
        return self.handle.store.url

    def shown(self) -> Position:
        """Returns the position that look-ups show, to which another process may have moved it."""
        self.check_open()
        try:
            return self._cache.position()
        except DamagedCacheError:
            return self.position  # The next look-up rebuilds the file.

    def reaches(self, ends: Mapping[int, int]) -> bool:
        """Returns whether the file has reached these offsets, with no undecided records below."""
        return all(self.position.offsets[p] >= end for p, end in ends.items())

    def asked(self, ask: Callable[[Cache], _T]) -> _T:
        """Returns what ``ask`` returns for the file; a damaged file is rebuilt first. A file that
        another process has built may be damaged, too.
        """
        damage: Exception | None = None
        for _ in range(_ATTEMPTS):
            generation = self._cache.generation
            try:
                return ask(self._cache)
            except (DamagedCacheError, OSError) as e:
                self._mend(e, generation)
                damage = e
        raise CorruptionError(
            f"the state table of {self.url} in {self.folder} was damaged again each time it was"
            f" rebuilt: {damage}; use a folder on another disk"
        )

    def _mend(self, damage: DamagedCacheError | OSError, generation: int) -> None:
        """Rebuilds a damaged file, or switches to one that another process built; else raises."""
        self.check_open()
        if not isinstance(damage, DamagedCacheError):
            raise damage
        with self._lock, self._telling(), self._locked():
            self.check_open()
            if self._cache.generation != generation:
                return
            if self._is_newest():
                self._build(f"its file is damaged: {damage}")
            else:
                self._adopt()

    @property
    def codec(self) -> RowCodec:
        """The codec of the file's keys and values."""
        return self._cache.codec

    def scan(self, prefix: Any, changes: Uncommitted | None = None) -> Iterator[tuple[Any, Any]]:
        """Returns keys and values in the order of the keys, with these changes."""
        self.check_open()
        if not self._is_newest():
            self.refresh()  # Another process rebuilt the file, and deleted this one.
        return self._unless_damaged(self.asked(lambda cache: cache.scan(prefix, changes)))

    def count(self) -> int:
        """Returns the number of rows."""
        self.check_open()
        return self.asked(lambda cache: cache.count())

    def follow(self, refresh: Callable[[], Refreshed], *, poll_ms: int) -> Iterator[Refreshed]:
        """Refreshes for ever, at least ``poll_ms`` apart, and yields each result that is new."""
        while True:
            refreshed = refresh()
            if refreshed.changed != ():
                yield refreshed
            self.handle.clock.sleep_ms(poll_ms)

    def _unless_damaged(self, rows: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        generation = self._cache.generation
        try:
            yield from rows
        except (DamagedCacheError, OSError) as e:
            self._mend(e, generation)
            raise CorruptionError(
                f"the state table of {self.url} in {self.folder} was damaged: {e}; it was"
                " rebuilt: scan again"
            ) from e

    def refresh(self) -> Refreshed:
        """Brings the file up to date; see `StateTable.refresh`."""
        with self._lock:
            self.check_open()
            if self._is_current() and self._is_newest():
                return Refreshed(self.position.version, ())
            with self._telling(), self._locked():
                return self._refreshed()

    def enter(
        self, version: int, ranges: Mapping[int, tuple[int, int]], rows: Iterable[Iterable[Row]]
    ) -> None:
        """Does V6: enters the rows that the commit of this version appended, at these offsets."""
        with self._lock, self._telling(), self._locked():
            tip, now = self.handle.tip, position_of(self.handle.tip)
            begin = {p: base for p, (base, _) in ranges.items()}
            end = {p: after for p, (_, after) in ranges.items()}
            if (
                tip.version == version
                and now.offsets == {**now.offsets, **end}
                and self._is_newest()
                and is_of(at := self._cache.position(), now)
                and not now.order  # Else a record other than the newest may win.
                and at.offsets == {**now.offsets, **begin}
            ):
                self.position = at
                self._move(now, rows)
            else:
                self._refreshed()

    def settle(self) -> None:
        """Enters the waiting rows (V7)."""
        with self._lock, self._telling(), self._locked():
            if self._is_newest():  # Else another process continues from the log.
                self._cache.settle()

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._is_closed = True
            self._cache.close()

    def check_open(self) -> None:
        """Raises if it is closed."""
        if self._is_closed:
            raise InvalidInputError(
                f"the state of {self.url} in {self.folder} was closed; open it again"
            )

    def _opened(self, reason: str = "") -> tuple[Cache, Position]:
        """Returns the existing file, or a new one for this reason (V1 and V2)."""
        try:
            if generation := _newest_generation(self.folder, self._name):
                found = Cache(_path(self.folder, self._name, generation), generation)
                return found, found.position()
        except DamagedCacheError as e:
            reason = f"its file is damaged: {e}"
        return self._built(reason)

    def _refreshed(self) -> Refreshed:
        try:
            return self._refresh()
        except DamagedCacheError as e:
            return self._build(f"its file is damaged: {e}")

    def _is_current(self) -> bool:
        """Returns whether the file is at the newest version. Another process may have moved it, to
        records that the log no longer has because it was restored.
        """
        try:
            is_at_tip = self.handle.refresh().version == self.position.version
            return is_at_tip and self.shown() == self.position
        except LogReplacedError:
            if not self._reopens:
                raise
            self.handle, self._is_verified = self.handle.opened_anew(), False
            return False

    def _refresh(self) -> Refreshed:
        """Does V3 to V5, under both locks."""
        before = self.position
        if not self._is_newest():  # Another process rebuilt it, or it was deleted.
            self._adopt()
        position = self._cache.position()
        moved = position != before
        self.position = position
        self._is_verified &= not moved
        tip = self.handle.refresh()
        if reason := self._not_of_this_log():
            return self._build(reason)
        if tip.version == position.version:
            return Refreshed(position.version, None if moved else ())
        now = position_of(tip)
        if is_of(position, now) and position.offsets == now.offsets:
            rose = self._move(now, ())
            return Refreshed(tip.version, None if moved or rose else ())
        for _ in range(_ATTEMPTS):
            manifest = self.handle.manifest()
            if manifest.head.log.schema != position.schema:
                return self._build("the schema of its log evolved")
            if order_text(manifest.head.config) != position.order:
                return self._build("the log's compaction.strategy changed")
            if loss := self._loss(manifest):
                if self._on_loss == "fail":
                    raise NotFoundError(
                        f"{loss}; open the table with on_loss='resync' to rebuild it; a longer"
                        " delete.retention.ms prevents this"
                    )
                return self._build(loss)
            try:
                changed = self._apply(manifest)
            except VersionExpiredError:
                self.handle.refresh()  # The cleaner and the sweep overtook it.
                continue
            return Refreshed(self.position.version, None if moved else changed)
        raise VersionExpiredError(
            f"{self.url} changed {_ATTEMPTS} times while its state table was refreshed; raise"
            " file.delete.delay.ms above the time that a refresh takes"
        )

    def _adopt(self) -> None:
        """Switches to the file that is there now."""
        newer, self.position = self._opened("its file was deleted")
        self._cache.switch(newer)
        self._is_verified = False

    def _not_of_this_log(self) -> str:
        handle, position = self.handle, self.position
        if handle.standing.log_id != position.log_id:
            return "another log is at its URL now"
        # Once for what this process has not entered: the handle ensures that each commit follows
        # the one before.
        if not (self._is_verified or handle.has_committed(position.version, position.commit_id)):
            return f"version {position.version} is a different one now: the log was restored"
        self._is_verified = True
        return ""

    def _loss(self, manifest: Manifest) -> str:
        """Does V4: returns what was missed, in words; empty if nothing was."""
        starts = self._starts(manifest)
        missed = missed_deletes(manifest.tombstones_removed, starts, self.position.version)
        if not missed:
            return ""
        return (
            f"tombstones up to offset {max(missed.values())} of partitions {sorted(missed)} of"
            f" {self.url} were removed before the state table, at version {self.position.version},"
            " read them"
        )

    def _starts(self, manifest: Manifest) -> dict[int, int]:
        # Records below the log start are gone for all; the transaction removes their rows.
        low = manifest.head.partitions.start
        return {p: max(offset, low[p]) for p, offset in self.position.offsets.items()}

    def _apply(self, manifest: Manifest) -> tuple[bytes, ...] | None:
        batches = latest_batches(
            self.handle.store,
            manifest,
            self._starts(manifest),
            columns=COLUMNS,
            map_bytes=self._map_bytes,
        )
        changed: list[Any] = []
        codec = RowCodec(manifest.head.log.schema)

        def rows() -> Iterator[Iterable[Row]]:
            for batch in batches:
                if len(changed) <= CHANGED_MAX:
                    changed.extend(map(answered_key, batch.column("key").to_pylist()))
                yield rows_of(batch, codec)

        rose = self._move(position_of(manifest), rows())
        return None if rose or len(changed) > CHANGED_MAX else tuple(changed)

    def _move(self, position: Position, rows: Iterable[Iterable[Row]]) -> bool:
        """Does V5; returns whether a log start rose, so that rows were removed."""
        rose = any(start > self.position.starts[p] for p, start in position.starts.items())
        self._cache.move(position, rows)
        self.position = position
        self._compact()
        return rose

    def _compact(self) -> None:
        """Rebuilds the file from its own rows if that is due; a full disk postpones it."""
        if not self._cache.is_due():
            return
        try:
            pieces = self._cache.pieces()
            self._cache.switch(build(self.folder, self._name, self.position, pieces))
        except DamagedCacheError as e:
            self._build(f"its file is damaged: {e}")
        except OSError as e:
            if not is_of_disk(e):
                raise
            _LOGGER.warning(
                "the file of the state of %s could not be made smaller: %s", self.url, e
            )

    def _build(self, reason: str) -> Refreshed:
        built, self.position = self._built(reason)
        self._cache.switch(built)
        return Refreshed(self.position.version, None)

    def _built(self, reason: str) -> tuple[Cache, Position]:
        """Does V2."""
        if reason:
            _LOGGER.warning(
                "rebuilding the state table of %s in %s: %s", self.url, self.folder, reason
            )
        for _ in range(_ATTEMPTS):
            self.handle.refresh()
            manifest = self.handle.manifest()
            position = position_of(manifest)
            try:
                pieces = sorted_pieces(self._view(manifest))
                built = build(self.folder, self._name, position, pieces)
            except VersionExpiredError:
                continue  # The cleaner and the sweep overtook it.
            return built, position
        raise VersionExpiredError(
            f"{self.url} changed {_ATTEMPTS} times while its state table was built; raise"
            " file.delete.delay.ms above the time that a build takes"
        )

    def _view(self, manifest: Manifest) -> Iterator[pa.RecordBatch]:
        codec = RowCodec(manifest.head.log.schema)
        store, memory = self.handle.store, self._map_bytes
        for p in range(manifest.head.log.partitions):
            plan = plan_table(manifest, p)
            for batch in table_batches(store, plan, columns=COLUMNS, map_bytes=memory):
                yield codec.columns(batch)

    def _is_newest(self) -> bool:
        newest = _newest_generation(self.folder, self._name)
        return newest == self._cache.generation and self._cache.is_in_place()

    def _telling(self) -> AbstractContextManager[None]:
        return telling(self.folder, self.url)

    def _locked(self) -> IO[bytes]:
        return locked(self.folder, self._name, self.url)


POLL_MS = 1_000


class StateTable:
    """The latest value of each key of a log, in a local file that follows the log.

    Opening builds the file, or brings an older one up to date; `refresh` and `follow` keep it so.
    Look-ups read only the file. A context manager; threads, and processes on one host, may share
    it.

    >>> from tempfile import mkdtemp
    >>> from clog.storage import Log
    >>> log = Log.create("memory://help-of-state-table", 1)
    >>> version = log.append([{"key": "tea", "value": "9"}, {"key": "cup", "value": "1"}]).version
    >>> table = StateTable(log.url, mkdtemp())
    >>> table.get("tea"), table.get_many(["cup", "pot"]), [key for key, _ in table.scan("t")]
    (b'9', {b'cup': b'1'}, [b'tea'])
    >>> version = log.append([{"key": "tea", "value": "8"}]).version
    >>> table.refresh().version == version, table.get("tea")
    (True, b'8')
    >>> version = log.append([{"key": "tea", "value": "7"}]).version
    >>> next(table.follow()).version == version  # it never ends
    True
    >>> table.close()
    """

    def __init__(
        self,
        url: str | PathLike[str] | Store,
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
            cache_dir: a local folder, created if missing; tables of several logs may share it.
            storage_options: what fsspec needs: credentials, endpoints.
            clock: the source of times; None: the system's clock.
            on_loss: what to do if the table was away for so long that it missed a delete, or the
                log was recreated: ``resync`` rebuilds it, with a warning; ``fail`` raises.
            map_bytes: memory for finding the last record of each key, in bytes.
            reader: a name under which the table reports its position to the log (`Log.reader`).
            reader_hold_ms: how long the cleaner waits for that reader, at most.

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
        self._record_position()

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
        """Returns keys and values in the order of the keys; if ``prefix`` is given, those that
        begin with it: bytes or text, or for keys that are structs a tuple of their first fields.
        Shows the table as it is when `scan` is called, even if it is refreshed in the meantime.

        Raises:
            CorruptionError: the file was damaged, and rebuilt: scan again.
            InvalidInputError: keys of the log cannot have such a prefix.
        """
        return self._file.scan(prefix)

    def __len__(self) -> int:
        """Returns the number of keys, counting one in several partitions once for each; reads the
        whole file.
        """
        return self._file.count()

    def refresh(self) -> Refreshed:
        """Brings the table up to date; one request when nothing is new.

        Raises:
            NotFoundError: a delete was missed, or the log recreated, and ``on_loss`` is ``fail``;
                the table stays as it was.
        """
        refreshed = self._file.refresh()
        self._record_position()
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

    def _record_position(self) -> None:
        if self._reader_name is None:
            return
        handle, at = self._file.handle, self._file.position
        if self._reader is None or self._reader.handle is not handle:
            self._reader = holding_reader(handle, self._reader_name, self._reader_hold_ms)
        self._reader.commit_at(at.offsets, at.version, at.commit_id)
