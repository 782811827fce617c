"""How the file of a state table follows its log.

V1. Open: the file there is, and only what the log got since (V3 to V5). None there, a damaged
    one, or one of another log: V2.
V2. Build: the table view of the newest version, into a new file.
V3. Refresh: nothing new costs one GET. Else, from the file's offsets on, the changelog slice: the
    latest record of each key that changed, tombstones included.
V4. Before that, S41: where a tombstone that lies beyond the file's offsets was removed after its
    version, keys that are gone could stay. Then V2, or an error, as asked.
V5. Rows, offsets and version are entered in one transaction. Where nothing was appended since, as
    by the cleaner's commits, there are none, and nothing of the log is read.
V6. Enter: what this process has just committed, and has in memory, is entered without reading it
    back, where the file was at the offsets that come before it; else V3.
V7. Where rows may wait, V5 and V6 leave them in memory, and enter many together (`waiting`).

Several processes may use one folder: a file lock lets one at a time build or refresh.
"""

import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import xxhash

from clog.storage import forks
from clog.storage.commit.handle import Handle
from clog.storage.errors import (
    CorruptionError,
    InvalidInputError,
    LogReplacedError,
    NotFoundError,
    VersionExpiredError,
)
from clog.storage.format.manifest import Manifest
from clog.storage.objects.python_keys import answered_key
from clog.storage.read.changes import changes_batches
from clog.storage.read.missed_deletes import missed_deletes
from clog.storage.state import disk, generations
from clog.storage.state.building import ATTEMPTS, COLUMNS, build_from_log
from clog.storage.state.cache import Cache, rows_of
from clog.storage.state.merging import merged_scan
from clog.storage.state.positions import is_of, position_of
from clog.storage.state.row_checks import DamagedCacheError, Row
from clog.storage.state.row_codec import RowCodec
from clog.storage.state.sqlite_file import Position
from clog.storage.state.uncommitted import Uncommitted

CHANGED_MAX = 100_000
"""More changed keys than this are not named one by one."""
_LOGGER = logging.getLogger("clog.storage.state")
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


class Follower:
    """The file, and the handle on the log that it follows; opened and brought up to date by the
    constructor. Threads, and processes on one host, may share it.

    Attributes:
        handle: on the log.
        folder: where the file is.
        position: that of the file, when it was read or moved here last.

    Args:
        on_loss: what to do when a delete was missed, ``resync`` or ``fail``.
        map_bytes: memory for finding the last record of each key.
        waiting_bytes: of rows that may wait in memory (V7).
        reopens: whether it goes on with another log that came to stand there.
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
        self._lock = forks.lock()
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
        """Returns what look-ups show: the file's position, not the last one seen here, as another
        process may have moved it.
        """
        self.check_open()
        try:
            return self._cache.position()
        except DamagedCacheError:
            return self.position  # The next look-up builds the file anew.

    def reaches(self, ends: Mapping[int, int]) -> bool:
        """Tells whether the file shows all records below these offsets: not where an undecided one
        comes before them.
        """
        return all(self.position.offsets[p] >= end for p, end in ends.items())

    def asked(self, ask: Callable[[Cache], _T]) -> _T:
        """Returns what is asked of the file; where it is damaged it is built anew first."""
        try:
            return ask(self._cache)
        except sqlite3.ProgrammingError:
            self.check_open()
            raise
        except DamagedCacheError as e:
            with self._lock, self._telling(), self._locked():
                self.check_open()
                self._build(f"its file is damaged: {e}")
            return ask(self._cache)

    @property
    def codec(self) -> RowCodec:
        """What keys and values of the file are encoded by."""
        return self._cache.codec

    def scan(self, prefix: Any) -> Iterator[tuple[Any, Any]]:
        """Returns keys and values in the order of the keys; see `StateTable.scan`."""
        return self._scanned(lambda cache: cache.scan(prefix))

    def scan_with(self, changes: Uncommitted, prefix: Any) -> Iterator[tuple[Any, Any]]:
        """Returns keys and values as `scan`, with these changes."""
        return self._scanned(lambda cache: merged_scan(cache, changes, prefix))

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

    def _scanned(
        self, scan: Callable[[Cache], Iterator[tuple[Any, Any]]]
    ) -> Iterator[tuple[Any, Any]]:
        self.check_open()
        if not self._is_newest():
            self.refresh()  # Another process built the file anew, and deleted this one.
        return self._unless_damaged(self.asked(scan))

    def _unless_damaged(self, rows: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        try:
            yield from rows
        except DamagedCacheError as e:
            with self._lock, self._telling(), self._locked():
                self.check_open()
                self._build(f"its file is damaged: {e}")
            raise CorruptionError(
                f"the state table of {self.url} in {self.folder} was damaged: {e}; it was built"
                " anew: scan again"
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
        """Does V6: enters what the commit of this version appended, in these ranges of offsets."""
        with self._lock, self._telling(), self._locked():
            tip, now = self.handle.tip, position_of(self.handle.tip)
            begin = {p: base for p, (base, _) in ranges.items()}
            end = {p: after for p, (_, after) in ranges.items()}
            if (
                tip.version == version
                and now.offsets == {**now.offsets, **end}
                and self._is_newest()
                and is_of(at := self._cache.position(), now)
                and at.offsets == {**now.offsets, **begin}
            ):
                self.position = at
                self._move(now, rows)
            else:
                self._refreshed()

    def settle(self) -> None:
        """Enters what waits (V7).

        Raises:
            StateFileError: there is no room.
        """
        with self._lock, self._telling(), self._locked():
            if self._is_newest():  # Else another process has gone on from the log.
                self._cache.settle()

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._is_closed = True
            self._cache.close()

    def check_open(self) -> None:
        """Raises once it is closed.

        Raises:
            InvalidInputError: it is.
        """
        if self._is_closed:
            raise InvalidInputError(
                f"the state of {self.url} in {self.folder} was closed; open it anew"
            )

    def _opened(self, reason: str = "") -> tuple[Cache, Position]:
        """Returns the file there is, or a new one for this reason (V1 and V2)."""
        try:
            found = generations.newest(self.folder, self._name)
            if found is not None:
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
        try:
            return self.handle.refresh().version == self.position.version
        except LogReplacedError:
            if not self._reopens:
                raise
            self.handle, self._is_verified = self.handle.opened_anew(), False
            return False

    def _refresh(self) -> Refreshed:
        """Does V3 to V5, under both locks."""
        before = self.position
        if not self._is_newest():  # Another process built it anew, or somebody deleted it.
            self._cache.check_journal()
            newer, self.position = self._opened("its file was deleted")
            self._cache.switch(newer)
            self._is_verified = False
        position = self._cache.position()
        moved = position != before
        self.position = position
        self.handle.refresh()
        tip = self.handle.recent(settled=True)
        if reason := self._not_of_this_log():
            return self._build(reason)
        if tip.version == position.version:
            return Refreshed(position.version, None if moved else ())
        now = position_of(tip)
        if is_of(position, now) and position.offsets == now.offsets:
            rose = self._move(now, ())
            return Refreshed(tip.version, None if moved or rose else ())
        for _ in range(ATTEMPTS):
            manifest = self.handle.manifest()
            if manifest.head.log.schema != position.schema:
                return self._build("the schema of its log evolved")
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
            f"{self.url} changed {ATTEMPTS} times while its state table was refreshed; raise"
            " file.delete.delay.ms above the time that a refresh takes"
        )

    def _not_of_this_log(self) -> str:
        handle, position = self.handle, self.position
        if handle.standing.log_id != position.log_id:
            return "another log is there now"
        # Once: afterwards the handle sees to it that each commit follows the one before.
        if not (self._is_verified or handle.has_committed(position.version, position.commit_id)):
            return f"version {position.version} is another one now: the log was restored"
        self._is_verified = True
        return ""

    def _loss(self, manifest: Manifest) -> str:
        """Does V4: returns what was missed, in words; empty when nothing was."""
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
        # What lies below the log start is gone for all; the rows of it go with the transaction.
        low = manifest.head.partitions.start
        return {p: max(offset, low[p]) for p, offset in self.position.offsets.items()}

    def _apply(self, manifest: Manifest) -> tuple[bytes, ...] | None:
        batches = changes_batches(
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
        """Does V5; tells whether a log start rose, so that rows went."""
        rose = any(start > self.position.starts[p] for p, start in position.starts.items())
        self._cache.move(position, rows)
        self.position = position
        return rose

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
        return build_from_log(self.handle, self.folder, self._name, map_bytes=self._map_bytes)

    def _is_newest(self) -> bool:
        newest = generations.newest_generation(self.folder, self._name)
        return newest == self._cache.generation and self._cache.is_in_place()

    def _telling(self) -> AbstractContextManager[None]:
        return disk.telling(self.folder, self.url)

    def _locked(self) -> IO[str]:
        return disk.locked(self.folder, self._name, self.url)
