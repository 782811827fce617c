"""Appends on their way to a commit: what one is as a value, what the newest head demands of it, and
the queue in which those of one handle wait for each other.

A writer is identified by kind and id, so a producer, a streaming query and a batch application of
the same name are three. Each has an entry with its last sequence in the head, or in a page of older
writers. A fresh object carries no offsets, so a lost race rewrites nothing: `AppendRequest.prepare`
is called again with the new tip and assigns other offsets (COMMIT.md, K2).

A mirror of a topic appends with given offsets (FORMAT.md §16, COMMIT.md §13): while a log *takes*
them, each record comes with its offset, and the end of each partition is the position in the source
up to which the log is complete. If the head is beyond them, the append is refused.

Group commit (COMMIT.md §2, decision 0010), without threads, and without waiting for company:

Q1. An append enters the queue and waits for its lock; it may have an outcome when it gets that.
Q2. The holder of the lock leads: it commits the appends that have waited longest, up to a bound, as
    one (`Joined`): offsets, rolls and duplicates are as if each had been committed alone.
Q3. Each gets its own part of the result, or its own error: only the newest version refuses one. A
    statement about it (it is a duplicate) is valid once the group is committed; if that fails, the
    append is prepared again, and if there was nothing to commit, it fails too.
Q4. A group's outcomes are one value, replaced in a single step, and say "unknown" from when it is
    prepared. So wherever a leader is interrupted, none is committed twice: the others report that,
    or are still in the queue, where the next holder of the lock leads.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import field, replace
from itertools import accumulate, pairwise
from typing import Annotated, Any, ClassVar, Final, TypeVar, cast

import numpy as np

from clog.storage.commit.committer import REFUSALS, NothingToCommit, Prepare
from clog.storage.config.log_config import LogConfig
from clog.storage.env import Ids, Shared, attribute, dataclass, register
from clog.storage.errors import CommitConflictError, CommitStateUnknownError, InvalidInputError
from clog.storage.format import documents
from clog.storage.format.chunks import Append, Chunk
from clog.storage.format.columns import rolls_for
from clog.storage.format.commits import Commit, Edit, Head, advance
from clog.storage.format.documents import NONE, TEXT, Int, Natural, Text, maybe, record, seq
from clog.storage.format.log_info import ERASURES, GIVEN_OFFSETS, LogSchema
from clog.storage.format.transactions import (
    POSITIONS,
    TRANSACTION,
    WRITER_ID_BYTES_MAX,
    AppendedBy,
    Committed,
    Positions,
    TransactionState,
    WriterEntry,
    kept_positions,
    stored_positions,
)
from clog.storage.format.writers import WriterPages, find_writer
from clog.storage.objects.writer import DataObject, partition_order

GROUP_APPENDS_MAX = 64
"""Appends in one commit, hence new writers in one head."""
GROUP_CHUNKS_MAX = 4096
"""Chunks in one commit, unless a single append has more: a commit stays one small PUT."""
_BYTES_MAX = 1 << 40
"""More than any object or its records have; sums over millions of them stay in range."""
BEFORE_THE_FIRST = -1
"""The sequence of a known stream that has no records in the log yet."""
SEQUENCE_MAX = (1 << 63) - 1
"""Readers reject larger integers (FORMAT.md §2): one in its head would make a log unreadable."""
ENDS_MAX: Final = 1 << 62
"""The highest end that may be given; as many offsets are left for the log to assign later."""


@dataclass(frozen=True, slots=True)
class Covered:
    """Up to which offsets an append covers partitions, and where their source begins."""

    ends: Mapping[int, int]
    starts: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Bound:
    """What an append does to a head: the range of each chunk, in order; by partition, the offsets
    reached before and after the chunks, and new log start offsets.
    """

    ranges: tuple[tuple[int, int], ...]
    reached: Mapping[int, int]
    reached_after: Mapping[int, int]
    starts: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Writer:
    """The writer of an append that must happen exactly once. ``kind`` is producer, stream or txn;
    ``content`` is a hash of the records.
    """

    writer_id: Annotated[str, TEXT, "id"]
    kind: Text
    sequence: Int
    query_id: Annotated[str | None, maybe(TEXT)] = None
    content: Annotated[str | None, maybe(TEXT)] = None

    def __post_init__(self) -> None:
        size = len(self.writer_id.encode(errors="surrogatepass"))
        if size > WRITER_ID_BYTES_MAX:
            raise InvalidInputError(
                f"a {self.kind} id of {size} bytes is too long, because each commit repeats it;"
                f" allowed: 1 to {WRITER_ID_BYTES_MAX} bytes"
            )
        if not BEFORE_THE_FIRST <= self.sequence <= SEQUENCE_MAX:
            raise InvalidInputError(
                f"sequence {self.sequence} of {self.kind} {self.writer_id!r} is out of range;"
                f" allowed: 0 to {SEQUENCE_MAX}"
            )


@dataclass(frozen=True, slots=True)
class Duplicate(NothingToCommit):
    """According to its entry, the writer has already committed this sequence or a later one;
    ``repeats``: this one.
    """

    entry: WriterEntry
    repeats: bool = True


class OtherRecordsError(InvalidInputError):
    """A producer's sequence seems to repeat with other records than those of its ``entry``."""

    def __init__(self, message: str, entry: WriterEntry) -> None:
        super().__init__(message)
        self.entry = entry


def find_duplicate(pages: WriterPages, head: Head, writer: Writer) -> Duplicate | None:
    """Returns what the writer's sequence duplicates; None if it is new."""
    entry = find_writer(pages, head, writer.kind, writer.writer_id)
    if entry is None:
        return None
    url = pages.store.url
    if writer.query_id is not None and entry.query_id not in (None, writer.query_id):
        raise InvalidInputError(
            f"writer {writer.writer_id!r} of {url} belongs to query {entry.query_id},"
            f" batch {entry.sequence}, and query {writer.query_id} cannot use it; give a second"
            " query or a new checkpoint its own writerId (txnAppId)"
        )
    if writer.kind == "txn":
        # As in Delta, a version below the last one is skipped; its content is not known.
        if writer.sequence > entry.sequence:
            return None
        return Duplicate(entry, repeats=writer.sequence == entry.sequence)
    if writer.sequence == entry.sequence:
        same = entry.content == writer.content or None in (entry.content, writer.content)
        if not same and writer.kind == "producer":
            raise OtherRecordsError(
                f"producer {writer.writer_id!r} repeats sequence {writer.sequence} with records"
                f" other than those in version {entry.version} of {url}; use a new sequence",
                entry,
            )
        return Duplicate(entry)
    if writer.sequence < entry.sequence and writer.kind == "stream":
        raise InvalidInputError(
            f"{url} has batch {entry.sequence} of {writer.writer_id!r} already, and batch"
            f" {writer.sequence} comes before it; if the checkpoint was restored or copied,"
            " continue with the newest one, or start with a new one and another writerId"
        )
    if writer.sequence < entry.sequence:
        raise InvalidInputError(
            f"{writer.kind} {writer.writer_id!r} is already at sequence {entry.sequence} in"
            f" {url}; sequence {writer.sequence} is lower; use one above {entry.sequence}"
        )
    return None


@dataclass(frozen=True, slots=True)
class OfTransaction:
    """The transaction that an append is. ``positions``: all positions of the id from then on; None:
    unchanged.
    """

    epoch: Natural
    number: Natural
    positions: Annotated[Positions | None, maybe(POSITIONS)] = None


@dataclass(frozen=True, slots=True)
class Proposed:
    """One append, independent of the process that it comes from."""

    objects: Annotated[tuple[DataObject, ...], seq(record(DataObject))]
    writer: Annotated[Writer | None, maybe(record(Writer))] = None
    transaction: Annotated[OfTransaction | None, maybe(record(OfTransaction))] = None

    @property
    def chunks(self) -> int:
        """How many chunks it adds."""
        return sum(len(obj.chunks) for obj in self.objects)

    def checked(self, partitions: int) -> "Proposed":
        """Returns it; raises ValueError if no log with that many partitions can contain it."""
        for obj in self.objects:
            parts = [stats.partition for stats in obj.chunks]
            rows = [stats.rows for stats in obj.chunks]
            if (
                documents.stamp_of(obj.ref.path) != obj.ref.stamp
                or not (obj.ref.dense and parts and parts[-1] < partitions and min(rows) > 0)
                or any(a >= b for a, b in pairwise(parts))
                or sum(rows) != obj.ref.rows
                or max(obj.ref.size_bytes, *(c.size_bytes for c in obj.chunks)) > _BYTES_MAX
                or obj.facts is None
            ):
                raise ValueError(f"{obj.ref.path} is not a new object for {partitions} partitions")
        ranges = ((0, stats.rows) for obj in self.objects for stats in obj.chunks)
        for _, chunk in _bind(self.objects, ranges, 0, NONE):
            chunk.checked()  # As readers of the commit do; otherwise the log would be unreadable.
        if self.transaction is not None and (
            self.writer is None or self.writer.kind != TRANSACTION
        ):
            raise ValueError("a transaction without its id")
        return self

    @property
    def is_given(self) -> bool:
        """Whether its records come with offsets."""
        return bool(self.objects) and self.objects[0].is_given


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """Objects to commit, in the order of their offsets, in the process that commits them: with the
    pages of older writers, and the ids that it draws.
    """

    append: Proposed
    writer_pages: WriterPages
    ids: Ids
    covered: Covered | None = None

    url: ClassVar[str] = attribute("writer_pages.store.url")

    def prepare(self, tip: Commit, time_ms: int) -> Edit | NothingToCommit:
        """Returns the edit, given the tip."""
        head, ours, writer, known = tip.head, self.append, self.append.writer, None
        if writer is not None and ours.transaction is not None:
            entry = find_writer(self.writer_pages, head, TRANSACTION, writer.writer_id)
            known = None if entry is None else entry.transaction
            if not _is_next(known, ours.transaction):
                return NothingToCommit()
        elif writer is not None:
            duplicate = find_duplicate(self.writer_pages, head, writer)
            if duplicate is not None:
                return duplicate
        config, bound = LogConfig.from_overrides(head.config), self._bound(head)
        for obj in ours.objects:
            _check_floor(obj, head, self.url)
            _check_schema(obj, head, self.url)
            check_facts(obj, config, now_ms=time_ms, given=bound is not None)
        append_time_ms = time_ms if config.log_append_time and bound is None else NONE
        ranges = _following(ours.objects, head) if bound is None else bound.ranges
        chunks = _bind(ours.objects, ranges, tip.version + 1, append_time_ms)
        rolls = rolls_for(head.partitions, chunks, config, uniform=self.ids.uniform)
        by = () if writer is None else (self._by(writer, known, tip),)
        add = Append(tuple(chunks), rolls, is_given=bound is not None and bool(chunks))
        if bound is None:
            return Edit(add=add, writers=by)
        return Edit(
            reached=bound.reached,
            start=bound.starts,
            add=add,
            reached_after=bound.reached_after,
            writers=by,
        )

    def _bound(self, head: Head) -> Bound | None:
        """Returns how given offsets bind to the head; None if the log assigns the offsets."""
        objects = self.append.objects
        if not objects and self.covered is None:
            return None
        given = self.covered is not None or objects[0].is_given
        if given != head.takes_offsets:
            raise refused(head, given=given, url=self.url)
        return bind_given(objects, self.covered, head, url=self.url) if given else None

    def _by(self, writer: Writer, known: TransactionState | None, tip: Commit) -> AppendedBy:
        version = tip.version + 1
        # An unkeyed hash would confirm a guess of erased content (FORMAT.md §17).
        content = None if ERASURES in tip.head.log.features else writer.content
        entry = WriterEntry(
            *(writer.writer_id, writer.kind, writer.query_id),
            *(writer.sequence, content, version),
        )
        if (ours := self.append.transaction) is not None:
            store, new_id = self.writer_pages.store, self.ids.new_id
            if ours.positions is None:
                positions = kept_positions(store, known, new_id=new_id)
            else:  # T2; again after a lost race, as the sweep may have removed an old document.
                positions = stored_positions(store, ours.positions, new_id=new_id)
            committed = Committed(ours.epoch, ours.number, version)
            state = TransactionState(ours.epoch, ours.number, committed, positions)
            entry = replace(entry, transaction=state)
        return AppendedBy(entry, 0, len(self.append.objects))


def check_facts(obj: DataObject, config: LogConfig, *, now_ms: int, given: bool = False) -> None:
    """Raises if the log's present config refuses a record of the object (S5, S6, S9); timestamps
    are not checked if the offsets are ``given``.
    """
    facts = obj.facts
    assert facts is not None, "rewritten records are not appended"
    if config.compact and facts.null_keys:
        raise InvalidInputError(
            f"{facts.null_keys} of {obj.ref.rows} records have no key;"
            f" cleanup.policy={config.as_dict()['cleanup.policy']} requires a key in every record"
        )
    if facts.largest_record_bytes > config.max_message_bytes:
        raise InvalidInputError(
            f"a record of {facts.largest_record_bytes} bytes is larger than"
            f" max.message.bytes={config.max_message_bytes}"
        )
    if facts.order_header != config.compaction_strategy_header and config.is_ordered:
        raise InvalidInputError(
            "compaction.strategy was changed while the records were being written; append again"
        )
    if facts.without_order and config.is_ordered:
        raise InvalidInputError(
            f"{facts.without_order} of {obj.ref.rows} records have no order:"
            f" {order_needed(config.compaction_strategy_header)}"
        )
    if config.log_append_time or given:
        return
    ahead_ms = facts.max_timestamp_ms - now_ms
    behind_ms = now_ms - facts.min_timestamp_ms
    if ahead_ms > config.message_timestamp_after_max_ms:
        raise InvalidInputError(
            f"a timestamp is {ahead_ms} ms ahead of the clock ({now_ms}), more than"
            f" message.timestamp.after.max.ms={config.message_timestamp_after_max_ms}"
        )
    if behind_ms > config.message_timestamp_before_max_ms:
        raise InvalidInputError(
            f"a timestamp is {behind_ms} ms behind the clock ({now_ms}), more than"
            f" message.timestamp.before.max.ms={config.message_timestamp_before_max_ms}"
        )


def order_needed(header: str) -> str:
    """Returns what a record needs if its order is in this header, for messages."""
    return (
        f"compaction.strategy=header needs the header {header!r} in each record, tombstones"
        " included: 8 bytes, a big-endian integer from 0 to 2^62 - 1"
    )


def _is_next(known: TransactionState | None, ours: OfTransaction) -> bool:
    """Returns whether the state of an id lets this transaction of its epoch commit."""
    if known is None or known.epoch != ours.epoch:
        return False
    done = known.committed
    return done is None or done.epoch != ours.epoch or done.number < ours.number


def _check_floor(obj: DataObject, head: Head, url: str) -> None:
    """Raises if a sweep may have deleted the object already (K2)."""
    if head.may_be_swept(obj.ref.stamp):
        raise CommitConflictError(
            f"this append took too long: one of its objects dates from version {obj.ref.stamp} of"
            f" {url}, below the orphan floor {head.orphan_floor}, and may have been swept; append"
            " again"
        )


def _check_schema(obj: DataObject, head: Head, url: str) -> None:
    """Raises unless the log has, or had, the object's schema, and rounds as little since (S62)."""
    newest = NONE if head.log.schema is None else head.log.schema.id
    if obj.schema_id > newest or (obj.schema_id == NONE) != (newest == NONE):
        raise InvalidInputError(
            f"an object of this append was written under schema {obj.schema_id}, but that of {url}"
            f" is {newest} (-1: keys and values are bytes); append again"
        )
    if obj.schema_id == newest:
        return
    if obj.made_for is None:  # Its author knows what was rounded, and commits it, or makes another.
        raise CommitConflictError(
            f"an object of another process was written under schema {obj.schema_id} of {url}, which"
            f" has schema {newest} by now"
        )
    check_columns(obj.made_for, head, url=url)


class OtherColumnsError(InvalidInputError):
    """Records were made for columns that have become others: make them again, of what was given."""


def check_columns(made_for: LogSchema | None, head: Head, *, url: str) -> None:
    """Raises if records mean others by now than those they were made of: a column of floats, for
    which they were rounded, was widened since, or the name of a field is another one's, or none's.
    """
    if made_for is None or head.log.schema is None:
        return
    newest = {column.id: (path, column) for path, column in head.log.schema.walk()}
    for path, made in made_for.walk():
        now, then = newest.get(made.id, (None, None))
        if now is None or then is None:
            what = f"{path} of {url} was dropped after records with it"
        elif now != path:
            what = f"{path} of {url} was renamed to {now} after records with it"
        elif (made.kind, then.kind) == ("float32", "float64"):
            what = (
                f"{path} of {url} was widened from float32 to float64 after records for float32 had"
                " been made, and these may be rounded"
            )
        else:
            continue
        if now != path:
            what += " had been made"
        raise OtherColumnsError(
            f"{what}; nothing was committed; append the records again, those of a transaction in"
            " another one, and put those of a state store again after rollback()"
        )


def _following(objects: Sequence[DataObject], head: Head) -> Iterator[tuple[int, int]]:
    """Yields the offsets of each chunk, which follow the one before it in its partition."""
    ends: dict[int, int] = {}
    for stats in (stats for obj in objects for stats in obj.chunks):
        base = ends.get(stats.partition, head.partitions.end[stats.partition])
        ends[stats.partition] = base + stats.rows
        yield base, ends[stats.partition]


def _bind(
    objects: Sequence[DataObject],
    ranges: Iterable[tuple[int, int]],
    version: int,
    append_time_ms: int,
) -> list[tuple[int, Chunk]]:
    given, bound = iter(ranges), []
    for obj in objects:
        ref = obj.ref
        first_row = 0
        for stats in obj.chunks:
            base, end = next(given)
            is_append_time = append_time_ms != NONE
            chunk = Chunk(
                object=ref,
                first_row=first_row,
                rows=stats.rows,
                base=base,
                next=end,
                size_bytes=stats.size_bytes,
                first_timestamp_ms=append_time_ms if is_append_time else stats.first_timestamp_ms,
                max_timestamp_ms=append_time_ms if is_append_time else stats.max_timestamp_ms,
                tombstones=stats.tombstones,
                version=version,
                append_time_ms=append_time_ms,
            )
            bound.append((stats.partition, chunk))
            first_row += stats.rows
    return bound


def refused(head: Head, *, given: bool, url: str) -> InvalidInputError:
    """Returns the error for a log that does not take the ``given`` offsets, or that takes offsets
    although none are given.
    """
    if given and GIVEN_OFFSETS not in head.log.features:
        return InvalidInputError(
            f"{url} assigns offsets itself and accepts none from callers; only a log created with"
            f' Log.create(…, features=["{GIVEN_OFFSETS}"]) does; nothing was appended'
        )
    if given:
        return InvalidInputError(
            f"{url} has assigned offsets itself since version {head.gives_offsets}, and no longer"
            " accepts them from callers; nothing was appended"
        )
    return InvalidInputError(
        f"{url} takes its offsets from its source: a record without one, a tombstone of an erasure"
        " or a marker of a transaction would use an offset of the source; append at the source, or"
        " end the mirror first (Log.give_offsets, clog mirror --end); nothing was appended"
    )


def checked_offsets(
    offsets: object, partition: np.ndarray[Any, Any], before: Mapping[int, int], *, url: str
) -> np.ndarray[Any, Any]:
    """Returns the checked offsets of records, given the partition of each: in each partition they
    ascend, starting at ``before`` if that names it.
    """
    try:
        given = np.asarray(offsets)
    except (TypeError, ValueError):
        given = np.empty(0)
    if given.shape != partition.shape or given.dtype.kind not in "iu":
        raise InvalidInputError(
            f"{offsets!r:.80} are not the offsets of {len(partition)} records; give an array of"
            " integers, one per record"
        )
    if int(given.min()) < 0 or int(given.max()) >= ENDS_MAX:
        raise InvalidInputError(
            f"offsets from {given.min()} to {given.max()} are out of range; allowed: 0 to 2^62 - 1"
        )
    made = given.astype(np.int64)
    order = partition_order(partition)
    parts, ordered = (partition, made) if order is None else (partition[order], made[order])
    falls = np.flatnonzero((np.diff(parts) == 0) & (np.diff(ordered) <= 0))
    if falls.size:
        row, after = int(falls[0] + 1), int(ordered[falls[0]])
        row = row if order is None else int(order[row])
        raise InvalidInputError(
            f"record {row} of partition {int(partition[row])} has offset {int(made[row])}, after"
            f" {after}; offsets must ascend within a partition; nothing was appended to {url}"
        )
    firsts = np.flatnonzero(np.diff(parts, prepend=NONE))
    for p, first in zip(parts[firsts].tolist(), ordered[firsts].tolist(), strict=True):
        if first < before.get(p, 0):
            raise InvalidInputError(
                f"offset {first} of partition {p} comes after {before[p] - 1} in one transaction;"
                f" offsets must ascend within a partition; nothing was appended to {url}"
            )
    return made


def bind_given(
    objects: Sequence[DataObject], covered: Covered | None, head: Head, *, url: str
) -> Bound:
    """Returns what an append does to the head. Raises InvalidInputError if the head is beyond the
    given offsets.
    """
    ends, starts = head.partitions.end, head.partitions.start
    covered = covered or Covered({}, {})
    chunks = [stats for obj in objects for stats in obj.chunks]
    mine: dict[int, list[int]] = {}
    for i, stats in enumerate(chunks):
        mine.setdefault(stats.partition, []).append(i)
    first = {p: chunks[at[0]].first_offset for p, at in mine.items()}
    nexts = [stats.last_offset + 1 for stats in chunks]
    last = {p: nexts[at[-1]] for p, at in mine.items()}
    for i, after in (pair for at in mine.values() for pair in pairwise(at)):
        nexts[i] = chunks[after].first_offset
    for p, offset in {**covered.ends, **first}.items():
        if offset < ends[p]:
            raise _is_behind(p, offset, ends[p], url=url)
    reached = {**covered.ends, **first}
    raised = {p: start for p, start in covered.starts.items() if start > starts[p]}
    for p, start in raised.items():
        if start > max(ends[p], reached.get(p, 0)):
            raise InvalidInputError(
                f"partition {p} of {url} cannot start at {start}: only offsets below"
                f" {max(ends[p], reached.get(p, 0))} are covered; nothing was appended"
            )
    return Bound(
        tuple((s.first_offset, end) for s, end in zip(chunks, nexts, strict=True)),
        {p: offset for p, offset in reached.items() if offset > ends[p]},
        {p: end for p, end in covered.ends.items() if p in last and end > last[p]},
        raised,
    )


def _is_behind(p: int, offset: int, end: int, *, url: str) -> InvalidInputError:
    return InvalidInputError(
        f"offset {offset} of partition {p} of {url} already exists: the end offset is {end};"
        " another process mirrored it in the meantime, or it was retried under another id;"
        " continue from end_offsets(); nothing was appended"
    )


@dataclass(frozen=True, slots=True)
class Appended:
    """One append's part of the commit that contains it."""

    version: int
    edit: Edit


@dataclass(frozen=True, slots=True)
class OperationOutcome(NothingToCommit):
    """An operation (`combining`) was applied by the commit of a version, with this edit (empty if
    that commit was swept), or it was withdrawn.
    """

    version: int
    is_applied: bool
    edit: Edit = field(default_factory=Edit)


class Joined:
    """Appends that become one commit: each is prepared on the head that the ones before it leave.
    ``first``: what the commit does before it appends.
    """

    def __init__(self, tip: Commit, time_ms: int, first: Edit | None = None) -> None:
        self._tip, self._time_ms = tip, time_ms
        self._edits: list[Edit] = []
        self._objects: set[str] = set()
        self._left: Edit | None = None  # Not in the tip's head yet: the last one never needs it.
        if first is not None:
            self._append(first, _paths_of(first))

    def add(self, prepare: Prepare[NothingToCommit]) -> Edit | NothingToCommit | None:
        """Adds an append, and returns its edit, or why it has none. Leaves out one with an object
        of another, as an edit names each once: None.
        """
        if (left := self._left) is not None:
            version = self._tip.version + 1
            head = advance(self._tip.head, left, version=version, time_ms=self._time_ms)
            self._tip, self._left = replace(self._tip, head=head), None
        edit = prepare(self._tip, self._time_ms)
        if isinstance(edit, NothingToCommit):
            return edit
        objects = _paths_of(edit)
        if self._objects & objects:
            return None
        self._append(edit, objects)
        return edit

    def edit(self) -> Edit:
        """Returns all of them as one edit; there must be one."""
        return _joined(self._edits)

    def _append(self, edit: Edit, objects: set[str]) -> None:
        self._edits.append(edit)
        self._objects |= objects
        self._left = edit


def _joined(edits: Sequence[Edit]) -> Edit:
    """Returns one edit: the first, which may do more than append, with what the others append."""
    if len(edits) == 1:
        return edits[0]
    adds = [edit.add or Append(()) for edit in edits]
    before = accumulate((len(add.by_object()) for add in adds), initial=0)
    return replace(
        edits[0],
        add=Append(
            tuple(pair for add in adds for pair in add.chunks),
            tuple(roll for add in adds for roll in add.rolls),
        ),
        writers=tuple(
            replace(by, first=by.first + objects, next=by.next + objects)
            for edit, objects in zip(edits, before, strict=False)
            for by in edit.writers
        ),
    )


def _paths_of(edit: Edit) -> set[str]:
    """Returns the paths of the objects that an edit appends."""
    return {c.object.path for _, c in edit.add.chunks} if edit.add else set()


def part_of(whole: Edit, paths: Collection[str]) -> Edit:
    """Returns the part of an edit that adds these objects, those of one of its appends."""
    if whole.add is None:
        return Edit()
    chunks = tuple(pair for pair in whole.add.chunks if pair[1].object.path in paths)
    return Edit(add=Append(chunks))


_UNKNOWN = CommitStateUnknownError(
    "this append was part of a commit whose thread was interrupted, and its outcome is unknown;"
    " read the log before you repeat it"
)
_Outcome = Appended | NothingToCommit | Exception
_Nothing = TypeVar("_Nothing", bound=NothingToCommit)
_Commit = Callable[["Group"], Commit | NothingToCommit]


@dataclass(slots=True, eq=False)
class Waiting:
    """One append until it has an outcome; ``group``: the last one it was in."""

    prepare: Prepare[NothingToCommit]
    proposed: Proposed
    group: "Group | None" = None

    @property
    def outcome(self) -> _Outcome | None:
        return None if self.group is None else self.group.outcomes.get(self)


class AppendQueue(Shared):
    """The appends of one handle. Safe for threads."""

    def __init__(self, commit: _Commit) -> None:
        self._commit = commit
        super().__init__()
        self._waiting: dict[Waiting, None] = {}
        self._is_led = False
        register(self)

    def after_fork(self) -> None:
        """Forgets, in a forked child, the appends of threads that do not exist there."""
        self._waiting, self._is_led = {}, False

    def append(self, prepare: Prepare[_Nothing], proposed: Proposed) -> Appended | _Nothing:
        """Commits an append, perhaps together with others; returns its own part, or what
        ``prepare`` returned instead of an edit.
        """
        mine = Waiting(prepare, proposed)
        try:
            self._waiting[mine] = None
            with self._lock:
                self._lead(mine)
        finally:
            self._waiting.pop(mine, None)  # One step in C, which no interrupt can precede.
        outcome = mine.outcome
        if isinstance(outcome, Exception):
            raise copy(outcome) if outcome is _UNKNOWN else outcome
        return cast("Appended | _Nothing", outcome)

    def _lead(self, mine: Waiting) -> None:
        """Commits groups until an append has its outcome; within another append, only itself."""
        is_inner, self._is_led = self._is_led, True
        try:
            while mine.outcome is None:
                group = Group([mine] if is_inner else self._first())
                for one in group.members:
                    one.group = group
                group.commit(self._commit)
        finally:
            self._is_led = is_inner

    def _first(self) -> list[Waiting]:
        """Returns the next group; it stays queued, as its leader may be interrupted."""
        group: list[Waiting] = []
        chunks = 0
        for one in list(self._waiting):  # Copied in one step, as other threads queue.
            if one.outcome is not None:
                continue
            chunks += one.proposed.chunks
            if group and (chunks > GROUP_CHUNKS_MAX or len(group) == GROUP_APPENDS_MAX):
                break
            group.append(one)
        return group


@dataclass(slots=True)
class Group:
    """Appends on their way to one commit.

    Attributes:
        accepted: members in the commit as last prepared, with their edits.
        declined: members that are not in it, with the reason.
        posted: members that others may commit, with their edits at the time of the proposal.
        outcomes: of members that need not be prepared again; replaced as a whole.
        refusal: the last refusal of a member, perhaps by an outdated tip.
        final: refusals are final, since the tip was looked up after the last one.
    """

    members: Sequence[Waiting]
    accepted: list[tuple[Waiting, Edit]] = field(default_factory=list)
    declined: list[tuple[Waiting, NothingToCommit | Exception]] = field(default_factory=list)
    posted: Sequence[tuple[Waiting, Edit]] = ()
    outcomes: Mapping[Waiting, _Outcome] = field(default_factory=dict)
    refusal: Exception | None = None
    final: bool = False

    def commit(self, commit: _Commit) -> None:
        """Commits the group and gives members their outcomes, except those to be prepared again."""
        try:
            try:
                done = commit(self)
            except REFUSALS as e:
                if len(self.members) == 1 or e is not self.refusal:
                    raise  # The outcome of a commit, not a refusal: a retry would commit twice.
                self.final = True
                done = commit(self)
        except Exception as e:  # noqa: BLE001 - each member raises it in its own thread
            self._fail(e)
        else:
            outcomes: dict[Waiting, _Outcome] = dict(self.declined)
            if isinstance(done, Commit):
                version = done.version
                outcomes.update((one, Appended(version, edit)) for one, edit in self.accepted)
            elif isinstance(done, OperationOutcome):
                outcomes.update(
                    (one, Appended(done.version, part_of(done.edit, _paths_of(edit))))
                    for one, edit in self.posted
                )
            self.outcomes = outcomes

    def proposed(self) -> tuple[Proposed, ...]:
        """Returns the last accepted members, for others to commit."""
        return tuple(one.proposed for one, _ in self.accepted)

    def post(self) -> None:
        """Reduces the group to the last accepted members: from now on others may commit them, so
        they stay together and share an outcome. The other appends wait for the next group.
        """
        self.posted = tuple(self.accepted)
        self.members, self.declined = [one for one, _ in self.posted], []

    def withdraw(self) -> None:
        """Notes that others have not committed them and no longer can."""
        self.posted, self.outcomes = (), {}

    def prepare(self, tip: Commit, time_ms: int) -> Edit | NothingToCommit:
        """Returns the edits of all members that have one, joined."""
        self.accepted, self.declined = [], []
        self.outcomes = unknown = dict.fromkeys((one for one, _ in self.posted), _UNKNOWN)
        accepted: list[tuple[Waiting, Edit]] = []
        declined: list[tuple[Waiting, NothingToCommit | Exception]] = []
        joined = Joined(tip, time_ms)
        for one in self.members:
            try:
                edit = joined.add(one.prepare)
            except Exception as e:
                if isinstance(e, REFUSALS) and not self.final:
                    self.refusal = e
                    raise
                declined.append((one, e))
                continue
            if isinstance(edit, Edit):
                accepted.append((one, edit))
            elif edit is not None:
                declined.append((one, edit))  # One left out waits for the next group.
        self.accepted, self.declined = accepted, declined
        self.outcomes = {**unknown, **dict.fromkeys((one for one, _ in accepted), _UNKNOWN)}  # Q4
        return joined.edit() if accepted else NothingToCommit()

    def _fail(self, error: Exception) -> None:
        """Gives an error of the commit to its members; those declined are prepared again. If all
        were declined, they fail too, as no commit has confirmed the reasons.
        """
        declined = {one for one, _ in self.declined} if self.accepted else set()
        failed = [one for one in self.members if one not in declined]
        self.outcomes = {one: _like(error) if n else error for n, one in enumerate(failed)}


def _like(error: Exception) -> Exception:
    """Returns a copy of an error for another thread: a raised error collects a traceback."""
    other = copy(error)
    other.__cause__ = error
    return other
