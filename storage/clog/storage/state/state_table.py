"""`StateTable`: the latest value of each key of a log, in a local file that follows the log.

1. Open: the file there is, and only what the log got since (steps 3 to 5). None there, a damaged
   one, or one of another log: step 2.
2. Build: the table view of the newest version, into a new file.
3. Refresh: nothing new costs one GET. Else, from the file's offsets on, the changelog slice: the
   latest record of each key that changed, tombstones included.
4. Before that, S41: where a tombstone that lies beyond the file's offsets was removed after its
   version, keys that are gone could stay. Then step 2, or an error, as asked.
5. Rows, offsets and version are entered in one transaction.

Several processes may use one folder: a file lock lets one at a time build or refresh.
"""

import fcntl
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import xxhash

from clog.storage.changes import changes_batches
from clog.storage.clock import Clock, SystemClock
from clog.storage.errors import (
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    VersionExpiredError,
)
from clog.storage.handle import Handle
from clog.storage.ids import SystemIds
from clog.storage.manifest import Manifest
from clog.storage.state import cache as caches
from clog.storage.state.cache import Cache, DamagedCacheError, Position, Row
from clog.storage.store import open_store
from clog.storage.store.base import Store
from clog.storage.table import MAP_BYTES, plan_table, table_batches
from clog.storage.tombstone_loss import missed_tombstones

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
        changed: keys that have another value now, or none any more; None: any may, the table was
            built anew, or they are more than `CHANGED_MAX`.
    """

    version: int
    changed: tuple[bytes, ...] | None


class StateTable:
    """The latest value of each key. A context manager; threads may share it."""

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
            url: of the log; or a store.
            cache_dir: a local folder, made when missing; tables of several logs may share it.
            storage_options: for fsspec.
            clock: the system's, unless given.
            on_loss: when a tombstone was missed: ``resync`` builds the table anew, with a warning;
                ``fail`` raises.
            map_bytes: memory for telling the last record of each key, in bytes.

        Raises:
            NotFoundError: there is no log; or a tombstone was missed, and ``on_loss="fail"``.
        """
        if on_loss not in ("resync", "fail"):
            raise InvalidInputError(f"on_loss={on_loss!r}; allowed: resync, fail")
        store = open_store(url, storage_options) if isinstance(url, str) else url
        self._handle = Handle(store, clock=clock or SystemClock(), ids=SystemIds())
        self._on_loss = on_loss
        self._map_bytes = map_bytes
        self._folder = Path(cache_dir)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._name = xxhash.xxh3_64_hexdigest(store.url.encode())
        self._lock = threading.RLock()
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
        return f"StateTable({self.url!r}, version={self.version})"

    @property
    def url(self) -> str:
        """The log, without secrets."""
        return self._handle.store.url

    @property
    def version(self) -> int:
        """The version of the log whose state this is."""
        return self._position.version

    @property
    def offsets(self) -> dict[int, int]:
        """By partition the offset up to which records are in the table."""
        return dict(self._position.offsets)

    def get(self, key: bytes | str) -> bytes | None:
        """The latest value, None where the key is not there or was deleted. Of a key that writers
        put in several partitions, the value with the latest timestamp.
        """
        raw = key.encode() if isinstance(key, str) else key
        try:
            return self._cache.get(raw)
        except DamagedCacheError as e:
            self._rebuild_damaged(e)
            return self._cache.get(raw)

    def get_many(self, keys: Iterable[bytes | str]) -> dict[bytes, bytes]:
        """The latest values of those keys that are there."""
        raw = [key.encode() if isinstance(key, str) else key for key in keys]
        try:
            return self._cache.get_many(raw)
        except DamagedCacheError as e:
            self._rebuild_damaged(e)
            return self._cache.get_many(raw)

    def scan(self, prefix: bytes | str | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values in the order of keys, of one state of the table even while it is
        refreshed.

        Raises:
            CorruptionError: the file is damaged; the next `refresh` or `get` builds it anew.
        """
        low = prefix.encode() if isinstance(prefix, str) else prefix or b""
        if not self._is_newest():
            self.refresh()  # Another process built the file anew, and deleted this one.
        try:
            yield from self._cache.scan(low, _after(low))
        except DamagedCacheError as e:
            raise CorruptionError(
                f"the state table of {self.url} in {self._folder} is damaged: {e};"
                " refresh() and scan again"
            ) from e

    def __len__(self) -> int:
        """Number of keys, those in several partitions once for each; reads all of the file."""
        try:
            return self._cache.count()
        except DamagedCacheError as e:
            self._rebuild_damaged(e)
            return self._cache.count()

    def refresh(self) -> Refreshed:
        """Takes in what is new; one GET when nothing is.

        Raises:
            NotFoundError: a tombstone was missed, and ``on_loss="fail"``; the table stays as it
                was.
        """
        with self._lock:
            if self._handle.refresh().version == self.version and self._is_newest():
                return Refreshed(self.version, ())
            with self._writing():
                return self._refreshed()

    def follow(self, *, poll_ms: int = POLL_MS) -> Iterator[Refreshed]:
        """Refreshes for ever, at least ``poll_ms`` apart, and yields what brought something new."""
        while True:
            refreshed = self.refresh()
            if refreshed.changed != ():
                yield refreshed
            self._handle.clock.sleep_ms(poll_ms)

    def close(self) -> None:
        """Closes the file; the table cannot be used any more."""
        with self._lock:
            self._cache.close()

    def _opened(self) -> tuple[Cache, Position]:
        """The file there is, or a new one (steps 1 and 2)."""
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

    def _refresh(self) -> Refreshed:
        """Steps 3 to 5, under both locks."""
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
            if loss := self._loss(manifest):
                if self._on_loss == "fail":
                    raise NotFoundError(
                        f"{loss}; open the table with on_loss='resync' to build it anew, and"
                        " prevent it by a longer delete.retention.ms"
                    )
                return self._build(loss)
            try:
                changed = self._apply(manifest)
            except VersionExpiredError:
                self._handle.refresh()  # The cleaner and the sweep overtook it.
                continue
            return Refreshed(self.version, None if moved else changed)
        raise VersionExpiredError(
            f"{self.url} changed {_ATTEMPTS} times while its state table was refreshed;"
            " file.delete.delay.ms is shorter than a refresh takes"
        )

    def _not_of_this_log(self) -> str:
        head, position = self._handle.tip.head, self._position
        if head.log.log_id != position.log_id:
            return "another log is there now"
        if self._handle.tip.version < position.version:
            return f"the log went back from version {position.version}"
        return ""

    def _loss(self, manifest: Manifest) -> str:
        """Step 4: what was missed, in words; empty when nothing was."""
        starts = self._starts(manifest)
        missed = missed_tombstones(manifest.tombstones_removed, starts, self.version)
        if not missed:
            return ""
        return (
            f"tombstones up to offset {max(missed.values())} of partitions {sorted(missed)} of"
            f" {self.url} were removed before the state table, at version {self.version},"
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
        changed: list[bytes] = []

        def rows() -> Iterator[Iterable[Row]]:
            for batch in batches:
                if len(changed) <= CHANGED_MAX:
                    changed.extend(batch.column("key").to_pylist())
                yield _rows(batch)

        position = _position_of(manifest)
        self._cache.apply(position, rows())
        self._position = position
        return None if rose or len(changed) > CHANGED_MAX else tuple(changed)

    def _build(self, reason: str) -> Refreshed:
        built, self._position = self._built(reason)
        self._cache.switch(built)
        return Refreshed(self.version, None)

    def _built(self, reason: str) -> tuple[Cache, Position]:
        """Step 2."""
        if reason:
            _LOGGER.warning("building the state table of %s anew: %s", self.url, reason)
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
            f"{self.url} changed {_ATTEMPTS} times while its state table was built;"
            " file.delete.delay.ms is shorter than that takes"
        )

    def _view(self, manifest: Manifest) -> Iterator[Iterable[Row]]:
        for p in range(manifest.head.log.partitions):
            for batch in table_batches(
                self._handle.store,
                plan_table(manifest, p),
                columns=("partition", *_COLUMNS),
                map_bytes=self._map_bytes,
            ):
                yield _rows(batch)

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
    return Position(manifest.head.log.log_id, manifest.version, offsets, starts)


def _rows(batch: pa.RecordBatch) -> Iterable[Row]:
    """A batch as SQLite takes it: column by column, without a step of Python for each row."""

    def values(name: str) -> list[Any]:
        column = batch.column(name)
        column = column.cast(pa.int64()) if name == "timestamp" else column
        listed: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return listed

    return zip(*map(values, ("key", "partition", "offset", "timestamp", "value")), strict=True)


def _after(prefix: bytes) -> bytes | None:
    """The first key after all those with the prefix; None when there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None
