"""`Transaction`: the records of several appends, and the positions of what was read for them,
committed together or not at all (S48, S49, S54).

By default, in one log, it is *deferred*: appends only write objects, and one commit of the log
gives their records offsets (COMMIT.md §9):

T1. `append` puts objects, all with the stamp of the first one, without waiting for them; the commit
    waits (`Puts`). Crash: orphans, swept later.
T2. Positions are merged with those committed under the id before. If there are many, each try of
    the commit puts them as a new document. Crash: an unreferenced document, swept later.
T3. `commit` is an append of all objects with the entry of the id. The head it commits upon shows
    whether the holder is fenced, and whether this transaction is already committed.
T4. If the outcome of a commit is unknown, the transaction may be committed again and takes effect
    once. An abort then claims the id, so that a commit that is still on its way fails.

The log never contains undecided records then, so no one waits for a transaction, and an abort costs
nothing. With other logs (`several`), or if *visible*, records are undecided until the home has
decided (`undecided`): T3 is the decision, and an abort is a commit.

A transaction raises an error if the reader missed deletes (S41): between two transactions of a job,
tombstones that it had not read may be removed. The version of each partition's last read shows it.

`Holders` are the transaction ids that one handle holds (S48).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pyarrow as pa

from clog.storage.append import check_takes_offsets, partitions_of, put_records, records_of
from clog.storage.commit.appends import ENDS_MAX, Covered, OtherColumnsError, checked_offsets
from clog.storage.commit.handle import Handle
from clog.storage.config.units import LONG_MAX
from clog.storage.env import Shared, register
from clog.storage.errors import (
    ClogError,
    CommitStateUnknownError,
    InvalidInputError,
    NotFoundError,
    OffsetOutOfRangeError,
    TransactionFencedError,
)
from clog.storage.format.cuts import CutLog
from clog.storage.format.documents import NONE
from clog.storage.format.log_info import LogSchema
from clog.storage.format.transactions import (
    FOREIGN_PARTITIONS_MAX,
    MARK_BYTES_MAX,
    SOURCE_BYTES_MAX,
    TRANSACTION,
    ForeignPosition,
    Position,
    PositionsAt,
    WriterEntry,
    is_mark,
    is_source_name,
)
from clog.storage.numpy_arrays import to_arrow
from clog.storage.objects.records import Appendable, loaded
from clog.storage.objects.writer import discard
from clog.storage.read.scan import Isolation, check_start, isolation_named, missed_deletes
from clog.storage.store.opening import redact
from clog.storage.transactions.deferred import (
    Began,
    Committing,
    Holder,
    OwnCut,
    Source,
    State,
    TransactionResult,
)
from clog.storage.transactions.ids import (
    HeldBackError,
    check_id,
    committed_positions,
    left_of,
    take_up,
    taken_by_another,
)
from clog.storage.transactions.several import (
    TransactionInfo,
    abort_all,
    begin_visible,
    finish_left,
    info_of,
)

if TYPE_CHECKING:
    from clog.storage.objects.writer import DataObject


def handle_of(source: object) -> Handle:
    """Returns the handle of a log; raises for anything else."""
    handle = getattr(source, "handle", None)
    if isinstance(handle, Handle):
        return handle
    raise InvalidInputError(f"{source!r:.80} is not a log; give a Log, as Log.open returns it")


def checked_positions(
    source: Source, offsets: Mapping[int, Any], version: int | None
) -> dict[int, Position]:
    """Returns checked positions in a log, by partition; see `Transaction.positions`."""
    handle = handle_of(source)
    at = _whole(handle.planned[0] if version is None else version, LONG_MAX)
    if at is None:
        url = handle.standing.root.url
        raise InvalidInputError(
            f"version={version!r} is not a version of {url}; allowed: from 0 on"
        )
    return {p: Position(o, at) for p, o in _offsets_of(handle, offsets, LONG_MAX).items()}


def _offsets_of(handle: Handle, offsets: Mapping[int, Any], high: int) -> dict[int, int]:
    """Returns checked offsets of a log by partition, up to ``high``."""
    url, count = handle.standing.root.url, handle.tip.head.log.partitions
    if not isinstance(offsets, Mapping):
        raise InvalidInputError(
            f"{offsets!r:.80} is not a position in {url}; give a dict of partition to the next"
            " offset"
        )
    made = {}
    for p, offset in offsets.items():
        partition, at = _whole(p, count - 1), _whole(offset, high)
        if partition is None or at is None:
            raise InvalidInputError(
                f"{p!r}: {offset!r} is not a position in {url}; allowed: partitions 0 to"
                f" {count - 1}, offsets from 0 to {high}"
            )
        made[partition] = at
    return made


def foreign_positions(name: str, offsets: Mapping[int, Any]) -> dict[int, ForeignPosition]:
    """Returns checked positions in another system; see `Transaction.positions`."""
    if not is_source_name(name):
        raise InvalidInputError(
            f"{redact(name)!r:.80} is neither a log nor the name of another source; give a Log,"
            " as Log.open returns it, or name a source in another system as <system>:<identity>,"
            ' such as "kafka:<cluster id>/<topic id>": not a URL, no control characters, up to'
            f" {SOURCE_BYTES_MAX} bytes"
        )
    if not isinstance(offsets, Mapping):
        raise InvalidInputError(
            f"{offsets!r:.80} is not a position in {name}; give a dict of partition to the next"
            " offset, or to (offset, mark)"
        )
    made = {}
    for p, given in offsets.items():
        offset, mark = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
        partition, at = _whole(p, FOREIGN_PARTITIONS_MAX - 1), _whole(offset, LONG_MAX)
        is_named = mark is None or (isinstance(mark, str) and is_mark(mark))
        if partition is None or at is None or not is_named:
            raise InvalidInputError(
                f"{p!r}: {given!r:.200} is not a position in {name}; allowed: partitions 0 to"
                f" {FOREIGN_PARTITIONS_MAX - 1}, offsets from 0 to 2^63 - 1, and marks that are"
                f" text of 1 to {MARK_BYTES_MAX} bytes"
            )
        made[partition] = ForeignPosition(at, mark)
    return made


_REMEDY: Final = "rebuild what it wrote from the log's start, or continue with missed_deletes=True"


def check_missed(
    source: Source,
    before: Mapping[int, Position | ForeignPosition],
    now: Mapping[int, Position],
    *,
    remedy: str = _REMEDY,
) -> None:
    """Raises if, by the version read now, a tombstone at or above an earlier position was removed.
    No request if the source was read by its own handle.
    """
    known = {
        p: position
        for p, at in now.items()
        if isinstance(position := before.get(p), Position) and position.version < at.version
    }
    if not known:
        return
    removed = source.handle.manifest().tombstones_removed
    missed: dict[int, int] = {}
    for p, position in known.items():
        by_then = [step for step in removed if step[1] <= now[p].version]
        missed |= missed_deletes(by_then, {p: position.offset}, position.version)
    if missed:
        raise NotFoundError(
            f"tombstones up to offset {max(missed.values())} of partitions {sorted(missed)} of"
            f" {source.handle.standing.root.url} were removed before this job read them, so it has"
            f" missed deletes; {remedy}"
        )


def check_decided(source: Source, offsets: Mapping[int, int]) -> None:
    """Raises if a position is beyond an undecided record: reads end before that record, and a
    reader that continued from the position would never see it. One GET if the position is beyond
    the last stable offset that the handle knows.
    """
    handle = source.handle
    if all(offset <= handle.tip.head.stable_offset(p) for p, offset in offsets.items()):
        return
    head, url = handle.refresh().head, handle.standing.root.url
    for p, offset in offsets.items():
        stable = head.stable_offset(p)
        if stable < min(offset, head.partitions.end[p]):
            raise OffsetOutOfRangeError(
                f"offset {offset} of partition {p} is beyond the last stable offset {stable} of"
                f" {url}: later records are undecided, but would count as read; commit positions"
                " up to stable_offsets()",
                partition=p,
                offset=offset,
                start=head.partitions.start[p],
                end=stable,
            )


def check_reachable(source: Source, offsets: Mapping[int, int]) -> None:
    """Raises if a position is beyond the end of its log: later records would count as read. One GET
    if a position is beyond the end that the handle knows.
    """
    handle = source.handle
    ends = handle.tip.head.partitions.end
    if any(offset > ends[p] for p, offset in offsets.items()):
        head = handle.refresh().head
        for p, offset in offsets.items():
            low = head.partitions.start[p]
            check_start(head, p, max(low, offset), url=handle.standing.root.url)


def next_offsets(source: Source, known: Mapping[str, Mapping[int, int]]) -> dict[int, int]:
    """Returns where to continue, by partition: the position, or else the log start; one GET."""
    handle = handle_of(source)
    head = handle.refresh().head
    mine = known.get(handle.standing.log_id, {})
    for p, offset in mine.items():
        check_start(head, p, offset, url=handle.standing.root.url)
    return dict(enumerate(head.partitions.start)) | dict(mine)


def _whole(value: object, high: int) -> int | None:
    """Returns an integer, Python's or NumPy's, from 0 to ``high``; None for anything else."""
    if isinstance(value, int | np.integer) and type(value) is not bool and 0 <= value <= high:
        return int(value)
    return None


class Transaction:
    """Records and positions that are committed together or not at all, begun by `Log.transaction`.
    Not thread-safe.

    A ``with`` statement commits it at the end, and aborts it if an exception ends the block.

    >>> from clog.storage import Log
    >>> orders = Log.create("memory://help-of-transaction/orders", 1)
    >>> bills = Log.create("memory://help-of-transaction/bills", 1)
    >>> version = orders.append([{"key": "o1", "value": "9 EUR"}]).version
    >>> with bills.transaction("billing") as t:
    ...     t.append([{"key": "b1", "value": "9 EUR"}])
    ...     t.positions(orders, orders.end_offsets())
    >>> bills.table().get("b1"), bills.positions("billing")[orders.id]
    (b'9 EUR', {0: 1})
    >>> t = bills.transaction("billing")
    >>> t.append([{"key": "b2", "value": "4 EUR"}])
    >>> t.abort()  # or t.commit()
    >>> bills.table().get("b2")

    A mirror of another system, whose records have offsets of their own:

    >>> copy = Log.create("memory://help-of-transaction/copy", 1, features=["given-offsets"])
    >>> with copy.transaction("mirror") as t:
    ...     t.append([{"key": "a", "value": "1"}], partition=0, offsets=[7])
    ...     t.cover({0: 9})  # the source has no record at 8
    >>> copy.end_offsets()
    {0: 9}
    """

    def __init__(
        self,
        handle: Handle,
        holder: Holder,
        *,
        timeout_ms: int,
        sequence: int,
        visible: bool = False,
    ) -> None:
        clock = handle.clock
        began = Began(clock.now_ms(), clock.monotonic_ms(), timeout_ms)
        self._handle = handle
        self._work = Committing(handle, holder, began, sequence=sequence, visible=visible)

    def __repr__(self) -> str:
        return f"Transaction({self.id!r}, {self._work.state.value})"

    def __dir__(self) -> list[str]:
        """Lists the attributes that are meant for users."""
        return [
            name
            for name in super().__dir__()
            if name not in ("append_objects", "name_cut", "note_content")
        ]

    @property
    def id(self) -> str:
        """The id under which it began."""
        return self._work.ours.id

    @property
    def epoch(self) -> int:
        """How often the id had been taken over before."""
        return self._work.ours.epoch

    @property
    def number(self) -> int:
        """Which of the epoch's transactions it is, from 0."""
        return self._work.ours.number

    @property
    def started_ms(self) -> int:
        """When it began, in ms since 1970."""
        return self._work.began.wall_ms

    @property
    def timeout_ms(self) -> int:
        """The maximum time that it may take."""
        return self._work.began.timeout_ms

    @property
    def is_open(self) -> bool:
        """Whether it is neither committed nor aborted, nor known to be fenced."""
        return self._work.state is State.OPEN and not self._work.holder.is_lost

    @property
    def result(self) -> TransactionResult:
        """Its result.

        Raises:
            InvalidInputError: it is not committed.
        """
        if self._work.result is None:
            raise InvalidInputError(
                f"transaction id {self.id!r} of {self._url} is {self._work.state.value}: it has a"
                " result once it is committed"
            )
        done = self._work.result
        return replace(done, offsets=dict(done.offsets), logs=dict(done.logs))

    def append(
        self,
        data: Appendable,
        partition: int | Sequence[int] | np.ndarray[Any, Any] | None = None,
        *,
        offsets: Sequence[int] | np.ndarray[Any, Any] | None = None,
        log: Source | None = None,
    ) -> None:
        """Appends records. They become visible with the commit, which gives them their offsets.

        Args:
            data: as for `Log.append`.
            partition: one for all records, or one for each; None: by the hash of the key.
            offsets: as for `Log.append`, in the log in which the transaction was begun; records
                below the ``start`` of an earlier `cover` are left out.
            log: the log; None: the one in which the transaction was begun.

        Raises:
            InvalidInputError: as `Log.append` does.
            StoreUnavailableError: the store failed; with a remote one, perhaps only reported by a
                later append, or by the commit, which may be called again.
            TransactionFencedError: this handle knows that another holder took over the id.
            TransactionTimeoutError: it took longer than its timeout.
            CommitConflictError: other writers were faster each time, or, as the first append of a
                visible one, readers have waited for too long for others that overlap. Append again.
        """
        handle = self._handle if log is None else handle_of(log)
        self._check_open(and_untried=True)
        self._work.check_time()
        self._check_known_epoch()
        if handle is self._handle:
            held = self._work.objects
        elif self._work.visible is not None:
            raise InvalidInputError(
                f"transaction id {self.id!r} of {self._url} is visible, and can append only to"
                " its own log; begin one with visible=False"
            )
        else:
            held = self._work.several.part(handle).objects
        if offsets is not None:
            self._check_home(handle)
        data = loaded(data)
        records, _, schema = records_of(handle, data)
        if records.num_rows:
            parts = partitions_of(records, partition, handle.tip.head, url=handle.store.url)
            stamp = held[0].ref.stamp if held else None
            puts = self._work.puts
            with puts.forgotten_on_error():
                if offsets is None:
                    later = puts if self._work.visible is None else None
                    objects = put_records(handle, records, parts, schema, stamp=stamp, puts=later)
                else:
                    objects = self._put_given(records, parts, schema, offsets, stamp)
            self._check_open(and_untried=True)  # Another thread may have ended it.
            if self._work.visible is None:
                held += objects
            else:
                try:
                    visible = partial(self._work.append_visible, self._work.visible, objects)
                    begin_visible(handle, visible)
                except HeldBackError:
                    discard(handle.store, objects)
                    raise
                except OtherColumnsError:
                    discard(handle.store, objects)
                    self.append(data, partition)  # With the tip that refused them.

    def cover(self, ends: Mapping[int, int], *, start: Mapping[int, int] | None = None) -> None:
        """Declares that the log is complete below ``ends`` once this is committed. A mirror needs
        this if its source has no records at the end, or none at all. The end offsets become these,
        or the ones after the records of this transaction if they are higher. For a log that takes
        offsets (`Log.append`).

        Args:
            ends: by partition, the next offset of the source, up to 2^62.
            start: by partition, where the source begins; the same commit raises the log start
                offset to it. Call this before appending: records below it are left out.

        Raises:
            InvalidInputError: the log takes no offsets, a partition does not exist, an offset is
                impossible, or a start is above records that were appended.
        """
        handle = self._handle
        self._check_open(and_untried=True)
        self._check_home(handle)
        check_takes_offsets(handle, given=True)
        given = self._work.given
        ends = _offsets_of(handle, ends, ENDS_MAX)
        starts = _offsets_of(handle, {} if start is None else start, ENDS_MAX)
        for p, offset in starts.items():
            if p in given and offset > given[p][0]:
                raise InvalidInputError(
                    f"partition {p} of {self._url} cannot start at {offset}: this transaction has"
                    f" records from offset {given[p][0]} on; call cover() before appending"
                )
        before = self._work.covered or Covered({}, {})
        self._work.covered = Covered({**before.ends, **ends}, {**before.starts, **starts})

    def append_objects(self, objects: "Sequence[DataObject]", log: Source | None = None) -> None:
        """Appends objects that tasks wrote, in this order; for connectors, not for users."""
        self._check_open(and_untried=True)
        is_home = log is None or handle_of(log) is self._handle
        held = self._work if is_home else self._work.several.part(handle_of(log))
        held.objects.extend(objects)

    def name_cut(self, logs: Sequence[Source], members: Sequence[Source]) -> None:
        """Makes the commit name the newest known versions of other logs as a cut, in place of the
        cut that the id named before. Logs of ``members`` that are not among them are still being
        loaded. For connectors, not for users.
        """
        self._check_open(and_untried=True)
        tips = [(handle_of(log).standing, handle_of(log).tip) for log in logs]
        self._work.cut = OwnCut(
            tuple(
                CutLog(at.log_id, at.root.url, tip.version, tip.record.commit_id)
                for at, tip in tips
            ),
            {at.log_id: at.root.url for at in (handle_of(log).standing for log in members)},
        )

    def note_content(self, content: str) -> None:
        """Stores ``content``, a hash of all rows (hex), in the log; for connectors, not users."""
        self._work.content = content

    def positions(
        self,
        source: Source | str,
        offsets: Mapping[int, int | tuple[int, str | None]],
        *,
        version: int | None = None,
        isolation: str = "read_committed",
        missed_deletes: bool = False,
    ) -> None:
        """Commits, with the transaction, how far its work has read a log, or another source such as
        a topic of Kafka; `Log.positions` returns it. Other partitions keep the position that was
        last committed under the id.

        Args:
            source: the log that was read, or the name of another source, ``<system>:<identity>``.
                The identity is what the source is, not where it is (``kafka:<cluster id>/<topic
                id>``). The other arguments apply to logs only.
            offsets: by partition, the next offset to read; for another source also (offset, mark),
                where the mark distinguishes its histories (Kafka's leader epoch).
            version: the version at which the records before it were read; None: that of the newest
                read by ``source``.
            isolation: the isolation with which they were read, as of `Log.read`.
            missed_deletes: accept that the reader has missed deletes.

        Raises:
            InvalidInputError: ``source`` is neither a log nor a name, a partition does not exist,
                or an offset, mark, version or isolation is impossible.
            OffsetOutOfRangeError: an offset is beyond the last stable one, where ``read_committed``
                ends: undecided records would count as read.
            NotFoundError: since the id's last positions, tombstones were removed that its reader
                had not reached, so it has missed deletes.
        """
        self._check_open(and_untried=True)
        if isinstance(source, str):
            foreign = foreign_positions(source, offsets)
            self._work.positions.setdefault(source, {}).update(foreign)
            return
        now = checked_positions(source, offsets, version)
        if isolation_named(isolation) is Isolation.COMMITTED:
            check_decided(source, {p: at.offset for p, at in now.items()})
        log_id = source.handle.standing.log_id
        if not missed_deletes:
            check_missed(source, self._work.before().get(log_id, {}), now)
        self._work.positions.setdefault(log_id, {}).update(now)

    def commit(self) -> TransactionResult:
        """Commits all records and positions in one step; an empty transaction makes no commit.
        After a `CommitStateUnknownError` it may be called again, and commits once.

        Raises:
            TransactionFencedError: another holder took over the id. Nothing is committed.
            TransactionTimeoutError: it took longer than its timeout, or so long that the sweep may
                have removed its objects. Nothing is committed.
            InvalidInputError: it was aborted, or the log's present configs refuse its records.
                Nothing is committed.
            CommitConflictError: other writers were faster each time; commit again.
            CommitStateUnknownError: the commit may have happened.
        """
        if self._work.result is None:
            self._check_open()
            self._work.commit()
        return self.result

    def abort(self) -> None:
        """Ends the transaction; nothing of it will ever be committed. Makes no requests, except one
        commit if the outcome of an earlier commit is unknown (T4), and one in each log with
        undecided records of it. If the disk was full, its objects are deleted.

        Raises:
            InvalidInputError: it is committed, which this call may have found out.
            CommitStateUnknownError: whether a commit of it happened is still unknown.
        """
        if self._work.state is State.OPEN and (self._work.tried or self._work.is_undecided):
            self._work.make_certain()
        if self._work.state is State.COMMITTED:
            raise InvalidInputError(
                f"transaction {self.number} of id {self.id!r} is committed to {self._url}, in"
                f" version {self.result.version}, and cannot be aborted"
            )
        if self._work.state is State.OPEN:
            self._work.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._work.state is not State.OPEN:
            return
        if error is None:
            self.commit()
            return
        with suppress(ClogError):  # The error that ended the block matters more.
            self.abort()

    @property
    def _url(self) -> str:
        return self._handle.store.url

    def _check_home(self, handle: Handle) -> None:
        """Raises unless this log may be given offsets (FORMAT.md §16)."""
        if handle is not self._handle or self._work.visible is not None:
            raise InvalidInputError(
                f"{handle.store.url} cannot take given offsets here: only the log in which the"
                " transaction was begun can, and only if the transaction is not visible, because"
                " a marker would use an offset of the source"
            )

    def _put_given(
        self,
        records: pa.Table,
        parts: "np.ndarray[Any, Any]",
        schema: LogSchema | None,
        offsets: object,
        stamp: int | None,
    ) -> "list[DataObject]":
        """Puts records with their offsets, except those below the declared start."""
        given = self._work.given
        before = {p: end for p, (_, end) in given.items()}
        at = checked_offsets(offsets, parts, before, url=self._url)
        if self._work.covered is not None:
            low = np.zeros(int(parts.max()) + 1, np.int64)
            for p, offset in self._work.covered.starts.items():
                low[p : p + 1] = offset
            kept = at >= low[parts]
            if not kept.all():  # A filter copies everything, even if nothing is left out.
                records, parts, at = records.filter(to_arrow(kept)), parts[kept], at[kept]
        if not len(at):
            return []
        puts = self._work.puts
        objects = put_records(
            self._handle, records, parts, schema, stamp=stamp, offsets=at, puts=puts
        )
        for stats in (stats for obj in objects for stats in obj.chunks):
            first = given.get(stats.partition, (stats.first_offset, 0))[0]
            given[stats.partition] = first, stats.last_offset + 1
        return objects

    def _check_open(self, *, and_untried: bool = False) -> None:
        work = self._work
        is_lost = work.state is State.OPEN and work.holder.is_lost and not work.tried
        if is_lost or work.state is State.FENCED:
            raise work.fenced()
        if self._work.state is not State.OPEN:
            raise InvalidInputError(
                f"transaction id {self.id!r} of {self._url} has ended: it is"
                f" {self._work.state.value}; begin another one"
            )
        if and_untried and self._work.tried:
            raise InvalidInputError(
                f"the outcome of the commit of transaction id {self.id!r} of {self._url} is not"
                " known, so nothing can be added; commit it again, or abort it"
            )

    def _check_known_epoch(self) -> None:
        """Raises if the newest known head shows that another holder claimed the id."""
        head = self._handle.recent().head
        for entry in head.writers:
            if entry.key == (TRANSACTION, self.id):
                self._work.find_commit(entry.transaction)


TIMEOUT_MS_MAX = 86_400_000
"""The sweep removes objects that are older than a day and were not committed."""


def holder_of(entry: WriterEntry) -> Holder:
    """Returns the holder of an id that was just claimed."""
    state = entry.transaction
    assert state is not None
    return Holder(
        transaction_id=entry.writer_id,
        epoch=state.epoch,
        positions=None if isinstance(state.positions, PositionsAt) else state.positions,
        sequence=entry.sequence,
        version=state.committed.version if state.committed else NONE,
    )


class Holders(Shared):
    """The ids of one handle. Safe for threads.

    A handle claims an id once, with a commit that raises the id's epoch. It claims it again if the
    last transaction was neither committed nor aborted, or is in doubt; that transaction is then
    fenced as if another process had taken over. A handle that another one fenced stays fenced,
    since what it knows may be outdated. A forked child holds nothing: two processes at one epoch
    would be indistinguishable.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._held: dict[str, Holder] = {}
        self._begun: dict[str, Transaction] = {}
        super().__init__()
        register(self)

    def after_fork(self) -> None:
        """Forgets, in a forked child, what its parent holds."""
        for holder in self._held.values():
            holder.is_lost = True
        self._held = {}
        self._begun = {}

    def begin(
        self,
        transaction_id: str,
        timeout_ms: int,
        *,
        visible: bool = False,
        sequence: int | None = None,
    ) -> Transaction:
        """Begins a transaction; see `Log.transaction`."""
        check_id(transaction_id)
        if type(timeout_ms) is not int or not 1 <= timeout_ms <= TIMEOUT_MS_MAX:
            raise InvalidInputError(
                f"timeout_ms={timeout_ms!r} is out of range; allowed: 1 to {TIMEOUT_MS_MAX}"
            )
        if sequence is not None and (type(sequence) is not int or not 0 <= sequence < 1 << 63):
            raise InvalidInputError(
                f"sequence={sequence!r} is out of range; allowed: integers from 0 to 2^63 - 1"
            )
        with self._lock:
            holder = self._held_now(transaction_id)
            if sequence is not None and sequence < holder.sequence:
                raise InvalidInputError(
                    f"transaction id {transaction_id!r} of {self._handle.store.url} is already at"
                    f" sequence {holder.sequence}; {sequence} is lower; if a checkpoint was"
                    " restored or copied, continue with the newest one, or use another id"
                )
            given = NONE if sequence is None else sequence
            begun = Transaction(
                self._handle, holder, timeout_ms=timeout_ms, sequence=given, visible=visible
            )
            holder.next_number += 1
            self._begun[transaction_id] = begun
            return begun

    def infos(self) -> list[TransactionInfo]:
        """Returns the transactions that have not ended; see `Log.transactions`."""
        unended = self._handle.refresh().head.unended
        with self._lock:
            begun = list(self._begun.values())
        known = [info_of(entry) for entry in unended]
        there = {(info.id, info.epoch, info.number) for info in known if info.home is None}
        mine = [
            TransactionInfo(
                *(t.id, t.epoch, t.number, "open"), started_ms=t.started_ms, timeout_ms=t.timeout_ms
            )
            for t in begun
            if t.is_open and (t.id, t.epoch, t.number) not in there
        ]
        return [*mine, *known]

    def abort(self, transaction_id: str, *, force: bool) -> list[TransactionInfo]:
        """Ends the open transactions of an id; see `Log.abort_transaction`."""
        return abort_all(self._handle, check_id(transaction_id), force=force)

    def positions(self, transaction_id: str) -> dict[str, dict[int, int]]:
        """Returns the offsets last committed under an id; see `Log.positions`."""
        found = committed_positions(self._handle, check_id(transaction_id))
        return {source: {p: at.offset for p, at in mine.items()} for source, mine in found.items()}

    def marked_positions(self, transaction_id: str) -> dict[str, dict[int, tuple[int, str | None]]]:
        """Returns the same with their marks, None for those in logs."""
        found = committed_positions(self._handle, check_id(transaction_id))
        return {
            source: {
                p: (at.offset, at.mark if isinstance(at, ForeignPosition) else None)
                for p, at in mine.items()
            }
            for source, mine in found.items()
        }

    def _held_now(self, transaction_id: str) -> Holder:
        known, begun = self._held.get(transaction_id), self._begun.get(transaction_id)
        if known is not None and known.is_fenced:
            raise taken_by_another(self._handle, transaction_id, known.epoch)
        is_held = known is not None and not (known.is_lost or known.is_unsure)
        if known is not None and is_held and not (begun and begun.is_open):
            unheard = left_of(self._handle.tip.head, transaction_id)
            if any(entry.name not in known.closable for entry in unheard):
                # A log that could not be reached then may be reachable now.
                finish_left(self._handle, transaction_id, epoch=known.epoch)
            return known
        taken = self._taken_up(transaction_id, known)
        if left_of(self._handle.tip.head, transaction_id):
            finish_left(self._handle, transaction_id, epoch=holder_of(taken).epoch)
        if known is not None:
            known.is_lost = True
        holder = self._held[transaction_id] = holder_of(taken)
        return holder

    def _taken_up(self, transaction_id: str, known: Holder | None) -> WriterEntry:
        """Claims an id, also again, but never back from another holder."""
        if known is None:
            return take_up(self._handle, transaction_id)
        # Removed for now: if this is interrupted, the epoch may already be the new one.
        del self._held[transaction_id]
        try:  # A lost one was claimed here, to end a transaction in doubt (T4).
            return take_up(self._handle, transaction_id, held=known.held)
        except CommitStateUnknownError:
            raise  # As after an interrupt.
        except ClogError as e:
            known.is_fenced = isinstance(e, TransactionFencedError)
            self._held[transaction_id] = known
            raise
