"""`StateTable`: the latest value of each key of a log, in a local file that follows the log.

V1. Open: the file there is, and only what the log got since (V3 to V5). None there, a damaged
    one, or one of another log: V2.
V2. Build: the table view of the newest version, into a new file.
V3. Refresh: nothing new costs one GET. Else, from the file's offsets on, the changelog slice: the
    latest record of each key that changed, tombstones included.
V4. Before that, S41: where a tombstone that lies beyond the file's offsets was removed after its
    version, keys that are gone could stay. Then V2, or an error, as asked.
V5. Rows, offsets and version are entered in one transaction.

Several processes may use one folder: a file lock lets one at a time build or refresh.
"""

import fcntl
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import xxhash

from clog.storage import forks
from clog.storage.clock import Clock, SystemClock
from clog.storage.commit.handle import Handle
from clog.storage.errors import (
    CorruptionError,
    InvalidInputError,
    LogReplacedError,
    NotFoundError,
    VersionExpiredError,
)
from clog.storage.format.manifest import Manifest
from clog.storage.ids import SystemIds
from clog.storage.objects.python_keys import answered_key
from clog.storage.read.changes import changes_batches
from clog.storage.read.missed_deletes import missed_deletes
from clog.storage.read.table_plan import plan_table
from clog.storage.read.table_scan import MAP_BYTES, table_batches
from clog.storage.state import cache as caches
from clog.storage.state.cache import Cache, DamagedCacheError, Position, Row
from clog.storage.state.row_codec import RowCodec
from clog.storage.store import open_store
from clog.storage.store.base import Store

CHANGED_MAX = 100_000
"""More changed keys than this are not named one by one."""
POLL_MS = 1_000
_ATTEMPTS = 5
"""How often a refresh starts over when the cleaner and the sweep overtake it."""
_COLUMNS = ("offset", "timestamp", "key", "value")
_LOGGER = logging.getLogger("clog.storage.state")


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What a refresh did.

    Attributes:
        version: the version of the log that the table shows now.
        changed: the keys that were set or deleted; None: any may have been, since the table was
            built anew, or there are more than 100,000.
    """

    version: int
    changed: tuple[Any, ...] | None


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
    ) -> None:
        """Opens the table and refreshes it.

        Args:
            url: the log's URL, or a store.
            cache_dir: a local folder, made if it is missing; tables of several logs may share it.
            storage_options: what fsspec needs: credentials, endpoints.
            clock: where times come from; None: the system's clock.
            on_loss: what to do when the table was away so long that it missed a delete, or the log
                was recreated meanwhile: ``resync`` builds it anew, with a warning; ``fail`` raises.
            map_bytes: memory for finding the last record of each key, in bytes.

        Raises:
            NotFoundError: there is no log at this URL; or a delete was missed, and ``on_loss`` is
                ``fail``.
            InvalidInputError: an unknown ``on_loss``.
        """
        if on_loss not in ("resync", "fail"):
            raise InvalidInputError(f"on_loss={on_loss!r}; allowed: resync, fail")
        store = open_store(url, storage_options) if isinstance(url, str) else url
        self._handle = Handle(store, clock=clock or SystemClock(), ids=SystemIds())
        self._is_verified = False
        self._on_loss = on_loss
        self._map_bytes = map_bytes
        self._folder = Path(cache_dir)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._name = xxhash.xxh3_64_hexdigest(store.url.encode())
        self._lock = forks.Lock()
        with self._writing():
            self._cache, self._position = self._opened()
            try:
                self._refreshed()
            except BaseException:
                self._cache.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"StateTable({self.url!r}, version={self._position.version})"

    @property
    def url(self) -> str:
        """The log, without secrets."""
        return self._handle.store.url

    @property
    def version(self) -> int:
        """The version of the log whose state `get` shows; another process's refresh moves it."""
        return self._shown().version

    @property
    def offsets(self) -> dict[int, int]:
        """By partition the offset up to which records are in the table."""
        return dict(self._shown().offsets)

    def get(self, key: Any) -> Any:
        """Returns the latest value, or None where the key is not there or was deleted. If writers
        put the key in several partitions, the value with the latest timestamp counts. Keys and
        values are as those of `Table.get`.
        """
        try:
            return self._cache.get(key)
        except DamagedCacheError as e:
            self._rebuild_damaged(e)
            return self._cache.get(key)

    def get_many(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """Returns the latest values of those keys that are there."""
        asked = list(keys)
        try:
            return self._cache.get_many(asked)
        except DamagedCacheError as e:
            self._rebuild_damaged(e)
            return self._cache.get_many(asked)

    def scan(self, prefix: Any = None) -> Iterator[tuple[Any, Any]]:
        """Yields keys and values in the order of the keys; all that begin with ``prefix``, if it is
        given: bytes or text, of keys that are structs a tuple of the first fields. Shows one state
        of the table, even while it is refreshed.

        Raises:
            CorruptionError: the file is damaged; the next `refresh` or `get` builds it anew.
            InvalidInputError: a prefix that keys of the log have not.
        """
        if not self._is_newest():
            self.refresh()  # Another process built the file anew, and deleted this one.
        try:
            yield from self._cache.scan(prefix)
        except DamagedCacheError as e:
            raise CorruptionError(
                f"the state table of {self.url} in {self._folder} is damaged: {e};"
                " call refresh() and scan again"
            ) from e

    def __len__(self) -> int:
        """Returns the number of keys, those in several partitions once for each; reads all of the
        file.
        """
        try:
            return self._cache.count()
        except DamagedCacheError as e:
            self._rebuild_damaged(e)
            return self._cache.count()

    def refresh(self) -> Refreshed:
        """Brings the table up to date; one request when nothing is new.

        Raises:
            NotFoundError: a delete was missed, or the log recreated, and ``on_loss`` is ``fail``;
                the table stays as it was.
        """
        with self._lock:
            if self._is_current() and self._is_newest():
                return Refreshed(self._position.version, ())
            with self._writing():
                return self._refreshed()

    def follow(self, *, poll_ms: int = POLL_MS) -> Iterator[Refreshed]:
        """Refreshes for ever, at least ``poll_ms`` apart, and yields each result that is new."""
        while True:
            refreshed = self.refresh()
            if refreshed.changed != ():
                yield refreshed
            self._handle.clock.sleep_ms(poll_ms)

    def close(self) -> None:
        """Closes the file; the table cannot be used any more."""
        with self._lock:
            self._cache.close()

    def _shown(self) -> Position:
        # The file's, not the last one seen here: look-ups show what another process entered.
        try:
            return self._cache.position()
        except DamagedCacheError:
            return self._position  # The next look-up builds the file anew.

    def _opened(self) -> tuple[Cache, Position]:
        """Returns the file there is, or a new one (V1 and V2)."""
        try:
            found = caches.newest(self._folder, self._name)
            if found is not None:
                return found, found.position()
            reason = ""
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
            return self._handle.refresh().version == self._position.version
        except LogReplacedError:
            if self._on_loss == "fail":
                raise
            self._handle, self._is_verified = self._handle.opened_anew(), False
            return False

    def _refresh(self) -> Refreshed:
        """Does V3 to V5, under both locks."""
        before = self._position
        if not self._is_newest():  # Another process built it anew.
            newer, self._position = self._opened()
            self._cache.switch(newer)
        position = self._cache.position()
        moved = position != before
        self._position = position
        tip = self._handle.refresh()
        if reason := self._not_of_this_log():
            return self._build(reason)
        if tip.version == position.version:
            return Refreshed(position.version, None if moved else ())
        for _ in range(_ATTEMPTS):
            manifest = self._handle.manifest()
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
                self._handle.refresh()  # The cleaner and the sweep overtook it.
                continue
            return Refreshed(self._position.version, None if moved else changed)
        raise VersionExpiredError(
            f"{self.url} changed {_ATTEMPTS} times while its state table was refreshed; raise"
            " file.delete.delay.ms above the time that a refresh takes"
        )

    def _not_of_this_log(self) -> str:
        handle, position = self._handle, self._position
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
        missed = missed_deletes(manifest.tombstones_removed, starts, self._position.version)
        if not missed:
            return ""
        return (
            f"tombstones up to offset {max(missed.values())} of partitions {sorted(missed)} of"
            f" {self.url} were removed before the state table, at version {self._position.version},"
            " read them"
        )

    def _starts(self, manifest: Manifest) -> dict[int, int]:
        # What lies below the log start is gone for all; the rows of it go with the transaction.
        low = manifest.head.partitions.start
        return {p: max(offset, low[p]) for p, offset in self._position.offsets.items()}

    def _apply(self, manifest: Manifest) -> tuple[bytes, ...] | None:
        batches = changes_batches(
            self._handle.store,
            manifest,
            self._starts(manifest),
            columns=("partition", *_COLUMNS),
            map_bytes=self._map_bytes,
        )
        rose = any(
            start > self._position.starts[p]
            for p, start in enumerate(manifest.head.partitions.start)
        )
        changed: list[Any] = []
        codec = RowCodec(manifest.head.log.schema)

        def rows() -> Iterator[Iterable[Row]]:
            for batch in batches:
                if len(changed) <= CHANGED_MAX:
                    changed.extend(map(answered_key, batch.column("key").to_pylist()))
                yield caches.rows_of(batch, codec)

        position = _position_of(manifest)
        self._cache.apply(position, rows())
        self._position = position
        return None if rose or len(changed) > CHANGED_MAX else tuple(changed)

    def _build(self, reason: str) -> Refreshed:
        built, self._position = self._built(reason)
        self._cache.switch(built)
        return Refreshed(self._position.version, None)

    def _built(self, reason: str) -> tuple[Cache, Position]:
        """Does V2."""
        if reason:
            _LOGGER.warning("rebuilding the state table of %s: %s", self.url, reason)
        for _ in range(_ATTEMPTS):
            self._handle.refresh()
            manifest = self._handle.manifest()
            position = _position_of(manifest)
            try:
                built = caches.build(self._folder, self._name, position, self._view(manifest))
            except VersionExpiredError:
                continue  # The cleaner and the sweep overtook it.
            return built, position
        raise VersionExpiredError(
            f"{self.url} changed {_ATTEMPTS} times while its state table was built; raise"
            " file.delete.delay.ms above the time that building takes"
        )

    def _view(self, manifest: Manifest) -> Iterator[Iterable[Row]]:
        codec = RowCodec(manifest.head.log.schema)
        for p in range(manifest.head.log.partitions):
            for batch in table_batches(
                self._handle.store,
                plan_table(manifest, p),
                columns=("partition", *_COLUMNS),
                map_bytes=self._map_bytes,
            ):
                yield caches.rows_of(batch, codec)

    def _rebuild_damaged(self, damage: DamagedCacheError) -> None:
        with self._lock, self._writing():
            self._build(f"its file is damaged: {damage}")

    def _is_newest(self) -> bool:
        return caches.newest_generation(self._folder, self._name) == self._cache.generation

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with (self._folder / f"{self._name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _position_of(manifest: Manifest) -> Position:
    heads = manifest.head.partitions
    offsets, starts = (dict(enumerate(column)) for column in (heads.end, heads.start))
    log_id = manifest.head.log.log_id
    schema = manifest.head.log.schema
    return Position(log_id, manifest.version, manifest.commit_id, offsets, starts, schema)
