"""`StateStore`: keyed state that is read and written, and whose changelog is the log (S54).

Each store has an id, and one holder at a time: a transaction id of the log (COMMIT.md §9). Its file
is that of a state table, and shows committed changes; uncommitted ones are in memory (`cache`), so
a crash discards them.

F1. Open: the file is opened as it is, then the store claims the id, by a commit that fences the
    previous holder. The file follows the log at least up to that commit, so it has everything that
    was ever committed; if undecided records of others come before some of it, nothing is shown
    until they are decided. Crash: an epoch without a holder.
F2. Put and delete make uncommitted changes; look-ups show these first.
F3. Commit: one deferred transaction, with a record for each changed key, and the positions. Crash
    before it: orphans, swept later; after it: everything is in the log.
F4. Enter: the records, at the offsets that they got, are entered into the file (V6), those of many
    commits together (V7). Crash: the next F1 reads them from the log; so does the next look-up if
    the file could not be written.

Each change is one record, in the order of the keys, in the partition of its key. The records of a
partition get consecutive offsets, so the commit's result gives the offset of each.

A store may be a named reader of the logs from which its changes come (S64): a best effort, since
the positions that count are committed with the state. A standby has only opened the file, and
follows the log until it claims the id; if two do so at the same time, one fences the other.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import repeat
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from clog.state.cache import Change, Uncommitted
from clog.state.local_file import Row
from clog.state.table import POLL_MS, Follower, Refreshed
from clog.storage.commit.appends import check_columns
from clog.storage.commit.handle import Handle
from clog.storage.config.log_config import LogConfig, order_text
from clog.storage.env import Clock, Ids, Shared, SystemClock, SystemIds, dataclass, register
from clog.storage.errors import (
    ClogError,
    CommitConflictError,
    CommitStateUnknownError,
    InvalidInputError,
    StateFencedError,
    StateFileError,
    TransactionFencedError,
)
from clog.storage.format.commits import Head
from clog.storage.format.documents import NONE
from clog.storage.format.log_info import LogSchema
from clog.storage.keys.hashing import partitions_for
from clog.storage.numpy_arrays import of_bytes, to_arrow
from clog.storage.objects.records import Appendable, loaded, to_records
from clog.storage.read.table import MAP_BYTES
from clog.storage.readers import NamedReader, check_name, holding_reader
from clog.storage.store import store_at
from clog.storage.store.contract import Store
from clog.storage.store.opening import Reach
from clog.storage.transactions.deferred import Source, TransactionResult
from clog.storage.transactions.ids import state_of
from clog.storage.transactions.transaction import (
    Holders,
    Transaction,
    check_reachable,
    next_offsets,
)
from clog.storage.types.columns import rows_of

TIMEOUT_MS = 3_600_000
"""The timeout of a commit's transaction, which begins when the commit does."""


class Holding:
    """A store's hold on its id. Its owner serialises calls."""

    def __init__(self, handle: Handle, id: str) -> None:
        self.id = id
        self._handle = handle
        self._url = handle.store.url
        self._epoch = NONE
        self._holders = Holders(handle)
        self._positions: dict[str, dict[int, int]] | None = None
        self._fenced: StateFencedError | None = None
        self._closed: InvalidInputError | None = None

    @property
    def is_standby(self) -> bool:
        """Whether this store has not claimed the id."""
        return self._positions is None

    def positions(self) -> dict[str, dict[int, int]]:
        """Returns the next offsets to read, by log id and partition; a standby asks the log."""
        self._check_open()
        known = self._positions
        known = self._holders.positions(self.id) if known is None else known
        return {log_id: dict(mine) for log_id, mine in known.items()}

    def take_up(self) -> dict[int, int]:
        """Claims the id by one commit, which fences the previous holder. Returns the offsets below
        which all its committed records are, if undecided records of others may come before some.
        """
        with self.fencing():
            self.begin().abort()
        head = self._handle.tip.head
        state = state_of(self._handle.writer_pages, head, self.id)
        done = None if state is None else state.committed
        if done is None or all(e.oldest > done.version for e in head.unended if e.holds):
            return {}
        return dict(enumerate(head.partitions.end))

    def hold(self) -> None:
        """Makes this the holder, with the committed positions."""
        self._positions = self._holders.positions(self.id)

    def begin(self) -> "Transaction":
        """Begins the transaction of a commit."""
        begun = self._holders.begin(self.id, TIMEOUT_MS)
        self._epoch = begun.epoch
        return begun

    def committed(self, positions: Mapping[str, Mapping[int, int]]) -> None:
        """Notes committed positions."""
        assert self._positions is not None, "a standby commits nothing"
        for log_id, mine in positions.items():
            self._positions.setdefault(log_id, {}).update(mine)

    def left_to_parent(self) -> None:
        """Gives up the id, in a forked child."""
        self._fenced = StateFencedError(
            f"the store {self.id!r} of {self._url} was opened by a parent process; open one with"
            " another id in this process"
        )

    @contextmanager
    def fencing(self) -> Iterator[None]:
        """Turns refusals because of another holder into `StateFencedError`."""
        try:
            yield
        except (TransactionFencedError, CommitStateUnknownError) as e:
            if isinstance(e, CommitStateUnknownError) and not self._has_new_holder():
                raise
            self._fenced = StateFencedError(
                f"the store {self.id!r} of {self._url} has another holder now, so uncommitted"
                f" changes are lost: {e}; leave the work to that holder, or open the store again"
            )
            raise self._fenced from e

    def _has_new_holder(self) -> bool:
        """Returns whether another store has claimed the id since, as far as this one knows."""
        state = state_of(self._handle.writer_pages, self._handle.tip.head, self.id)
        return state is not None and state.epoch > self._epoch != NONE

    def close(self) -> None:
        """Stops using the id, which stays as it is until another store claims it."""
        self._closed = InvalidInputError(
            f"the store {self.id!r} of {self._url} was closed; open it again"
        )

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    def check_fenced(self) -> None:
        """Raises if this is closed, or another store claimed the id, as far as this one knows."""
        self._check_open()
        if self._fenced is not None:
            raise self._fenced

    def check_held(self) -> None:
        """Raises if this is not the holder, as far as it knows."""
        self.check_fenced()
        if self._positions is None:
            raise InvalidInputError(
                f"the store {self.id!r} of {self._url} is a standby; call take_over() first"
            )


@dataclass(frozen=True, slots=True)
class Sent:
    """What a transaction got of a store's changes: for each part of them the partitions, for all
    records the time and the schema, and for each input log the next offsets.
    """

    partitions: list[NDArray[np.int32]]
    timestamp_us: int
    schema: LogSchema | None
    read: Mapping[Source, Mapping[int, int]]

    def fits(self, head: Head) -> bool:
        """Returns whether the log keeps the records as they were sent: with this schema, and with
        their own times.
        """
        config = LogConfig.from_overrides(head.config)
        return head.log.schema == self.schema and not config.log_append_time

    def rows(self, changes: Uncommitted, result: TransactionResult) -> Iterator[Iterator[Row]]:
        """Yields the rows that the changes become in the file, at the offsets that they got."""
        next_offsets = np.zeros(max(result.offsets, default=0) + 1, np.int64)
        for p, (base, _) in result.offsets.items():
            next_offsets[p] = base
        for part, partitions in zip(changes.parts(), self.partitions, strict=True):
            counts = np.bincount(partitions, minlength=len(next_offsets))
            order = np.argsort(partitions, kind="stable")
            offsets = np.empty(len(partitions), np.int64)
            first = (np.cumsum(counts) - counts)[partitions[order]]
            offsets[order] = next_offsets[partitions[order]] + np.arange(len(order)) - first
            next_offsets += counts
            keys, values = zip(*part, strict=True)
            numbers = partitions.tolist(), offsets.tolist(), repeat(self.timestamp_us, len(keys))
            yield zip(keys, *numbers, values, strict=True)


def _send(
    transaction: Transaction,
    changes: Uncommitted,
    handle: Handle,
    read: Mapping[Source, Mapping[int, int]],
    outputs: Mapping[Source, Appendable],
    *,
    missed_deletes: bool,
) -> Sent:
    """Adds all changes to a transaction, and returns what was sent; aborts it on an error."""
    try:
        check_columns(changes.codec.schema, handle.tip.head, url=handle.store.url)
        for source, offsets in read.items():
            transaction.positions(source, offsets, missed_deletes=missed_deletes)
            check_reachable(source, offsets)
        for log, records in outputs.items():
            transaction.append(records, log=log)
        now_us = handle.clock.now_us()
        sent = [
            _append(transaction, part, changes, handle, now_us=now_us) for part in changes.parts()
        ]
    except BaseException:
        transaction.abort()
        raise
    mine = {source: dict(offsets) for source, offsets in read.items()}
    return Sent(sent, now_us, changes.codec.schema, mine)


def _append(
    transaction: Transaction,
    part: list[Change],
    changes: Uncommitted,
    handle: Handle,
    *,
    now_us: int,
) -> NDArray[np.int32]:
    keys, values = [key for key, _ in part], [value for _, value in part]
    log = handle.tip.head.log
    columns: dict[str, Any] = changes.codec.records(keys, values)
    hashed = columns["key"] if changes.codec.schema is None else of_bytes(keys)
    partitions = partitions_for(hashed, partitions=log.partitions, algorithm=log.partitioner)
    times = np.full(len(keys), now_us, np.int64)
    columns["timestamp"] = to_arrow(times, pa.timestamp("us", "UTC"))
    transaction.append(pa.table(columns), partitions)
    return partitions


_LOGGER = logging.getLogger("clog.state")


class InputReaders:
    """The readers with one name, by log; none without a name. The cleaners of these logs wait for
    them for at most ``hold_ms``.
    """

    def __init__(self, name: str | None, hold_ms: int) -> None:
        self._name = None if name is None else check_name(name)
        self._hold_ms = hold_ms
        self._readers: dict[str, NamedReader] = {}

    def note(self, read: Mapping[Source, Mapping[int, int]]) -> None:
        """Notes committed positions; they are reported to each log at most every ten seconds."""
        if self._name is None:
            return
        for source, offsets in read.items():
            with self._warning():
                self._of(source.handle, self._name).commit(offsets)

    def flush(self) -> None:
        """Reports the positions not reported yet."""
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
            _LOGGER.warning("the position of reader %s was not recorded: %s", self._name, e)


MEMORY_BYTES = 64 << 20
WAITING_SHARE = 2
"""Committed rows not in the file yet may use the memory of uncommitted ones divided by this."""


class StateStore(Shared):
    """Keyed state whose changelog is the log: it survives its process, its disk and its host.

    Opening takes over the id, and fences the previous holder. Look-ups show all changes made here,
    committed or not. A context manager, which does not commit at its end. Threads may share it; a
    forked child may not.

    >>> from tempfile import mkdtemp
    >>> from clog.storage import Log
    >>> orders = Log.create("memory://help-of-state-store/orders", 1)
    >>> version = orders.append([{"key": "o1", "value": "tea"}]).version
    >>> counts = Log.create("memory://help-of-state-store/counts", 1)
    >>> with StateStore(counts.url, mkdtemp(), "count-orders") as store:
    ...     for batch in orders.read(start=store.next_offsets(orders)):
    ...         for item in batch["value"].to_pylist():
    ...             store.put(item, str(int(store.get(item) or 0) + 1))
    ...     done = store.commit({orders: orders.end_offsets()})
    ...     store.delete("tea")
    ...     store.put_many([{"key": "cup", "value": "2"}, {"key": "pot", "value": "5"}])
    ...     store.rollback()
    ...     list(store.scan()), store.get_many(["cup"])
    ([(b'tea', b'1')], {})

    A standby follows the log, ready to take over:

    >>> standby = StateStore(counts.url, mkdtemp(), "count-orders", standby=True)
    >>> refreshed = standby.refresh()  # or for ever: standby.follow()
    >>> standby.take_over()
    >>> standby.get("tea")
    b'1'
    >>> standby.close()

    Args:
        url: the log's URL, or a store.
        cache_dir: a local folder, created if it is missing; stores and state tables of several logs
            may share it.
        id: names the work across its restarts; only one process at a time holds it.
        storage_options: what fsspec needs: credentials, endpoints.
        clock: the source of times; None: the system's clock.
        standby: only follows the log, until `take_over`.
        memory_bytes: approximate memory for uncommitted changes; the rest goes to a temporary file.
            Half as much may hold committed changes that are not in the file yet.
        map_bytes: memory for finding the last record of each key, in bytes.
        ids: the source of random ids; None: the operating system.
        reader: a name under which the store reports its position to its input logs (`Log.reader`).
        reader_hold_ms: how long their cleaners wait for that reader, at most.
    """

    def __init__(
        self,
        url: str | PathLike[str] | Store,
        cache_dir: str | os.PathLike[str],
        id: str,
        storage_options: Mapping[str, object] | None = None,
        clock: Clock | None = None,
        *,
        standby: bool = False,
        memory_bytes: int = MEMORY_BYTES,
        map_bytes: int = MAP_BYTES,
        ids: Ids | None = None,
        reader: str | None = None,
        reader_hold_ms: int = 0,
    ) -> None:
        """Opens the store.

        Raises:
            NotFoundError: there is no log at this URL.
            StateFileError: there is no room for the local file.
        """
        root = store_at(url, storage_options)
        reach = Reach.of(url, storage_options)
        handle = Handle(root, clock=clock or SystemClock(), ids=ids or SystemIds(), reach=reach)
        self._memory_bytes = memory_bytes
        super().__init__()
        self._holding = Holding(handle, id)
        self._inputs = InputReaders(reader, reader_hold_ms)
        self._pending: tuple[Transaction, Sent] | None = None
        self._reached: dict[int, int] = {}
        self._is_behind = False
        self._file = Follower(
            *(handle, Path(cache_dir)),
            on_loss="resync",
            map_bytes=map_bytes,
            waiting_bytes=memory_bytes // WAITING_SHARE,
        )
        self._changes = self._no_changes()
        register(self)
        if not standby:
            try:
                self.take_over()
            except BaseException:
                self._file.close()
                raise

    def after_fork(self) -> None:
        """Forgets, in a forked child, its parent's changes and id."""
        self._changes, self._pending = self._no_changes(), None
        self._holding.left_to_parent()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        version = self._file.position.version
        return f"StateStore({self.url!r}, id={self._holding.id!r}, version={version})"

    @property
    def url(self) -> str:
        """The log, without secrets."""
        return self._file.url

    @property
    def is_standby(self) -> bool:
        """Whether it only follows the log."""
        return self._holding.is_standby

    @property
    def version(self) -> int:
        """The version of the log whose state the file shows."""
        return self._file.shown().version

    @property
    def positions(self) -> dict[str, dict[int, int]]:
        """The next offsets to read, by log id and partition; a standby asks the log for them."""
        return self._holding.positions()

    def next_offsets(self, source: Source) -> dict[int, int]:
        """Returns where to continue reading the log ``source``, by partition: at the committed
        position, or at the log start if there is none.

        Raises:
            OffsetOutOfRangeError: a position below the log start, so that records were missed, or
                beyond the end, as where a log was restored from an older copy.
        """
        return next_offsets(source, self.positions)

    def get(self, key: Any) -> Any:
        """Returns the value that was put last for a key, committed or not; None if it has none.
        Keys and values are as those of `Table.get`.

        Raises:
            StateFencedError: another store took over the id, as far as this one knows.
            StateFileError: there is no room for the local file.
        """
        with self._lock:
            self._check_readable()
            return self._file.asked(lambda cache: cache.get(key, self._changes))

    def get_many(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """Returns the values of those keys that exist; raises as `get`."""
        with self._lock:
            self._check_readable()
            asked = list(keys)
            return self._file.asked(lambda cache: cache.get_many(asked, self._changes))

    def scan(self, prefix: Any = None) -> Iterator[tuple[Any, Any]]:
        """Returns keys and values in the order of the keys, committed or not; all that begin with
        ``prefix``, as `StateTable.scan`. Shows the store as it is when `scan` is called, whatever
        is put, committed or rolled back before the last of them is asked for.

        Raises:
            CorruptionError: the file was damaged, and rebuilt: scan again. And as `get`.
        """
        with self._lock:
            self._check_readable()
            return self._file.scan(prefix, self._changes)

    def put(self, key: Any, value: Any) -> None:
        """Sets the value of a key; nobody else sees it before the commit.

        Raises:
            InvalidInputError: a key or a value that the log cannot hold; this is a standby, or the
                outcome of its last commit is not known. And as `get`.
        """
        with self._lock:
            self._check_writable()
            try:
                codec = self._changes.codec
                change = codec.stored_key(key), codec.stored_value(value)
            except InvalidInputError:  # Try the newest schema before refusing (S62).
                self.refresh()
                codec = self._changes.codec
                change = codec.stored_key(key), codec.stored_value(value)
            self._changes.put(*change)

    def put_many(self, rows: Appendable) -> None:
        """Sets the values of many keys at once, given as for `Log.append`: an Arrow table, a
        DataFrame or dicts, with the columns ``key`` and ``value``, or those of the log's rows. A
        row without a value deletes its key; of rows with one key the last counts. Takes a fraction
        of the time of a `put` for each.

        Raises:
            InvalidInputError: a row has no key, or a timestamp or headers, which a store does not
                keep. And as `put`; nothing of the rows is put then.
            StateFileError: there is no room for all rows; put them again.
        """
        given = loaded(rows)  # First: a generator may use the store.
        with self._lock:
            self._check_writable()
            try:
                changes = self._changes_of(given)
            except InvalidInputError:  # Try the newest schema before refusing (S62).
                self.refresh()
                changes = self._changes_of(given)
            self._changes.put_many(changes)

    def delete(self, key: Any) -> None:
        """Deletes a key, whether it exists or not; raises as `put`."""
        with self._lock:
            self._check_writable()
            self._changes.put(self._changes.codec.stored_key(key), None)

    def commit(
        self,
        positions: Mapping[Source, Mapping[int, int]] | None = None,
        *,
        outputs: Mapping[Source, Appendable] | None = None,
        missed_deletes: bool = False,
    ) -> TransactionResult:
        """Commits all changes together with the positions in the input logs and records for other
        logs: all or nothing. After a `CommitStateUnknownError` it may be called again, and commits
        once; after any other error nothing was committed, and the store still has all changes.

        Args:
            positions: by log and partition, the next offset to read; others stay as they are.
            outputs: by log, records as for `Log.append`.
            missed_deletes: accept that deletes of such a log were missed.

        Raises:
            StateFencedError: another store took over the id.
            OffsetOutOfRangeError: a position beyond the end of its log.
            InvalidInputError: not a valid position; the log's configs refuse a record; this is a
                standby.
            NotFoundError: an input log removed tombstones before the store read them.
            CommitConflictError: other writers were first each time, or a log of an earlier commit
                has yet to hear of its end, and cannot be reached.
            CommitStateUnknownError: the commit may have happened.
        """
        with self._lock:
            self._holding.check_held()
            with self._holding.fencing():
                if self._pending is None:
                    begun = self._holding.begin()
                    sent = _send(
                        *(begun, self._changes, self._file.handle, positions or {}, outputs or {}),
                        missed_deletes=missed_deletes,
                    )
                    self._pending = begun, sent
                transaction, sent = self._pending
                try:
                    result = transaction.commit()
                except CommitStateUnknownError:
                    raise
                except ClogError:
                    transaction.abort()  # If this is not certain, the outcome is unknown.
                    self._pending = None
                    raise
            self._enter(result, sent)
            return result

    def rollback(self) -> None:
        """Discards the changes since the last commit, or makes a commit in doubt fail.

        Raises:
            InvalidInputError: that commit did happen; the store shows it.
            CommitStateUnknownError: that is still not known.
        """
        with self._lock:
            self._holding.check_held()
            if self._pending is not None:
                transaction, sent = self._pending
                with self._holding.fencing():
                    try:
                        transaction.abort()
                    except InvalidInputError:
                        self._enter(transaction.result, sent)
                        raise
            self._pending, self._changes = None, self._no_changes()
            # What was put may have been refused because its schema evolved (S62).
            newest = self._file.handle.tip.head.log.schema
            self._is_behind = self._is_behind or newest != self._file.codec.schema

    def refresh(self) -> Refreshed:
        """Brings the file up to date with what others committed; one request when nothing is new.

        Raises:
            LogReplacedError: another log is there now.
            StateFileError: as `get`.
        """
        with self._lock:
            refreshed = self._file.refresh()
            self._is_behind = not self._file.reaches(self._reached)
            self._follow_schema()
            return refreshed

    def follow(self, *, poll_ms: int = POLL_MS) -> Iterator[Refreshed]:
        """Refreshes for ever, at least ``poll_ms`` apart, and yields each result that is new."""
        yield from self._file.follow(self.refresh, poll_ms=poll_ms)

    def take_over(self) -> None:
        """Takes over the id, which fences the previous holder, and brings the file up to date; one
        commit on a standby, otherwise nothing.

        Raises:
            StateFencedError: another store took it over after that. And as `refresh`.
        """
        with self._lock:
            self._holding.check_fenced()
            if not self._holding.is_standby:
                return
            self._check_order()
            self._reached = self._holding.take_up()
            self.refresh()
            self._changes = self._no_changes()
            self._holding.hold()

    def _check_order(self) -> None:
        """Raises if a record other than the last one that was put may win (S56)."""
        if order_text(self._file.handle.tip.head.config):
            raise InvalidInputError(
                f"{self.url} has a compaction.strategy other than offset, so a put could lose to"
                " an earlier record, and the log cannot be the changelog of a store; use a"
                " separate log"
            )

    def close(self) -> None:
        """Closes the file and discards uncommitted changes; the store cannot be used any more."""
        with self._lock:
            self._holding.close()
            self._changes.close()
            self._inputs.flush()
            try:
                self._file.settle()
            except StateFileError as e:
                _LOGGER.warning("%s", e)  # The next store follows the log from there.
            finally:
                self._file.close()

    def _changes_of(self, rows: Appendable) -> list[Change]:
        """Returns the changes that these rows are, made column by column."""
        codec, head = self._changes.codec, self._file.handle.tip.head
        named = rows_of(codec.schema, LogConfig.from_overrides(head.config).table_key_columns)
        records, _ = to_records(rows, now_us=0, schema=codec.schema, rows=named)
        if (at := pc.index(pc.is_null(records.column("key")), True).as_py()) >= 0:
            raise InvalidInputError(f"row {at} has no key; give each row one; nothing was put")
        is_dated = pc.any(pc.not_equal(records.column("timestamp").cast(pa.int64()), 0)).as_py()
        if is_dated or records.column("headers").null_count < len(records):
            raise InvalidInputError(
                "the rows have timestamps or headers, which a store does not keep; leave these"
                " columns out; nothing was put"
            )
        changes: list[Change] = []
        for batch in records.select(["key", "value"]).to_batches():
            try:
                columns = codec.columns(batch).columns
            except pa.ArrowCapacityError as e:
                raise InvalidInputError(
                    f"{batch.num_rows} rows have more than 2 GiB of values; put fewer at a time"
                ) from e
            changes += zip(*(column.to_pylist() for column in columns), strict=True)
        return changes

    def _no_changes(self) -> Uncommitted:
        return Uncommitted(self._file.codec, self._memory_bytes)

    def _follow_schema(self) -> None:
        """Encodes new changes by the file's schema, which may have evolved, if there are none."""
        if not self._changes and self._changes.codec.schema != self._file.codec.schema:
            self._changes.close()
            self._changes = self._no_changes()

    def _enter(self, result: TransactionResult, sent: Sent) -> None:
        """Does F4: the commit is final, and if the file cannot follow, a later call reports it."""
        changes, self._is_behind = self._changes, True
        self._reached.update({p: end for p, (_, end) in result.offsets.items()})
        read = {log.handle.standing.log_id: mine for log, mine in sent.read.items()}
        self._holding.committed(read)
        self._changes, self._pending = self._no_changes(), None
        try:
            if sent.fits(self._file.handle.tip.head):
                self._file.enter(result.version, result.offsets, sent.rows(changes, result))
            else:
                self._file.refresh()
            self._is_behind = not self._file.reaches(self._reached)
            self._follow_schema()
        except ClogError as e:
            _LOGGER.warning(
                "version %d of %s is committed, but its local file is behind: %s",
                *(result.version, self.url, e),
            )
        self._inputs.note(sent.read)

    def _check_readable(self) -> None:
        self._holding.check_fenced()
        if self._is_behind:
            self.refresh()
        if self._is_behind:
            raise CommitConflictError(
                f"the store {self._holding.id!r} of {self.url} cannot show what it committed yet,"
                " because an undecided transaction of another holder comes first; try again once"
                " that has ended"
            )

    def _check_writable(self) -> None:
        self._holding.check_held()
        self._check_readable()
        self._check_order()
        if self._pending is not None:
            raise InvalidInputError(
                f"the outcome of the last commit of the store {self._holding.id!r} of {self.url} is"
                " not known, so nothing can be changed; call commit() again, or rollback()"
            )
