"""Decodes messages of PostgreSQL's output plugin pgoutput (protocol 1) into columns.

All messages of a call form one buffer. Those of one table are *walked* together, column by column:
one NumPy step advances all of them past their next value. The bytes of values are not moved; Arrow
gathers the texts of a column in one step, and `types` converts them to values. Only messages that
are rare are read one by one: Relation, Truncate.

1. Messages are distinguished by their first byte; Begin and Commit number the transactions.
2. Relation and Truncate split what is decoded together, but only for their tables. The Relation of
   a partition comes right before a change of its table, which shows whose it is.
3. For each run of a table's changes, old tuples are walked, then new ones (`_walked`).
4. Rows are laid out (`_laid_out`): one for a change, two for an update that changed the key: a
   tombstone of the old key before the new row. A value that the new tuple lacks, because it is
   stored separately and did not change, is taken from the old tuple, or else marked ``unchanged``.

Changes of transactions that a table has already are neither decoded nor looked at: they may have a
shape that nothing can read now.

Old tuples of kind ``K`` have the identity's columns; an ``n`` in other columns has no meaning. The
lengths in a message are checked before anything is read there: any input is either decoded or
refused with a `SourceError`, in memory of a few times its size.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from clog.bridge.capturing.tables import (
    Changes,
    Decoded,
    Relation,
    RelationColumn,
    TablePlan,
    Transaction,
    Truncated,
)
from clog.storage import SourceError
from clog.storage.spi import dataclass, to_arrow

OPTIONS: Final[Mapping[str, str]] = {"proto_version": "1"}
"""The options with which the stream is requested, besides the publications."""
_EPOCH_US: Final = 946_684_800_000_000
"""PostgreSQL's epoch, 2000, counted from 1970."""
_BYTES_MAX: Final = (1 << 31) - 1
"""Of a column of text."""
_PADDING: Final = bytes(16)
"""Follows the last message, so that reading ahead of a check stays within the buffer."""
_INSERT, _UPDATE, _DELETE = b"IUD"
_BEGIN, _COMMIT, _RELATION, _TRUNCATE = b"BCRT"
_OLD, _KEY, _NEW = b"OKN"
_NULL, _UNCHANGED, _TEXT = b"nut"
_KNOWN: Final = np.zeros(256, np.bool_)
_KNOWN[list(b"BCIUDRTYOM")] = True
_LENGTHS: Final = {_BEGIN: 21, _COMMIT: 26}

Ints = NDArray[np.int64]
Octets = NDArray[np.uint8]
Mask = NDArray[np.bool_]


def _broken(what: str) -> SourceError:
    return SourceError(
        f"the stream of the server {what}; it is not that of pgoutput, protocol 1, or was damaged"
        " in transit: run the capture again, and report the error if it persists"
    )


class KeylessError(SourceError):
    """A row does not have its table's key. ``oid``: the table's."""

    def __init__(self, what: str, oid: int) -> None:
        super().__init__(
            f"the stream of the server has a row of {what} without its key, as after a change of"
            f" the replica identity; load the table again (--reload {what})"
        )
        self.oid = oid


@dataclass(frozen=True, slots=True)
class _Known:
    """A relation that changes refer to, and how its columns are kept; None: not at all.

    Attributes:
        at: for each column of the plan, its index in the relation.
        key: the columns of the plan that belong to the log's key.
    """

    relation: Relation
    table: Any
    plan: TablePlan | None
    at: tuple[int, ...] = ()
    key: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _State:
    """The state that one call leaves for the next. ``described``: the oid of the relation that its
    last message described, or 0.
    """

    relations: Mapping[int, Relation]
    known: Mapping[int, _Known]
    open: Transaction | None
    described: int = 0


class Decoder:
    """Decodes messages into columns; for one thread.

    Args:
        table_of: returns the table of a relation and how its columns are kept; None: not at all.
            It is called before the first change after each new Relation message, with the LSN of
            the change's commit.
        start_of: returns, for the oid of a relation, the LSN from which on its transactions are
            decoded.
        part_of: is called for each partition that is described, with the oids of the partition and
            of the table whose change follows, and the LSN of that change's commit.
    """

    def __init__(
        self,
        table_of: Callable[[Relation, int], tuple[Any, TablePlan] | None],
        start_of: Callable[[int], int] = lambda _: 0,
        part_of: Callable[[int, int, int], None] = lambda *_: None,
    ) -> None:
        self._table_of = table_of
        self.start_of = start_of
        self.part_of = part_of
        self._state = _State({}, {}, None)

    def decode(self, messages: Sequence[bytes]) -> Decoded:
        """Decodes messages; a call may begin and end within a transaction."""
        buffer = _Buffer(messages)
        transactions, of_message = self._transactions(buffer)
        lsns = np.array([*(one.commit_lsn for one in transactions), 0], np.int64)[of_message]
        call = _Call(buffer, lsns, of_message, self._state, self)
        described = self._state.described
        if described and messages:
            call.follow(described, 0)
        for i in np.flatnonzero((buffer.kinds == _RELATION) | (buffer.kinds == _TRUNCATE)).tolist():
            if buffer.kinds[i] == _RELATION:
                call.describe(i)
            else:
                call.truncate(i)
        call.end(len(messages))
        is_open = bool(transactions) and transactions[-1].end_lsn == 0
        opened = transactions[-1] if is_open else None
        described = call.described if messages else described
        self._state = _State(call.relations, call.known, opened, described)
        return Decoded(tuple(transactions), tuple(call.steps), is_open, buffer.size_bytes)

    def known_of(self, relation: Relation, lsn: int) -> _Known:
        """Asks for the table of a relation."""
        asked = self._table_of(relation, lsn)
        if asked is None:
            return _Known(relation, None, None)
        table, plan = asked
        names = [column.name for column in relation.columns]
        if missing := [name for name in plan.schema.names if name not in names]:
            raise SourceError(
                f"the stream has no column {missing[0]} of {plan.what}, which the table used to"
                " have; load the table again"
            )
        at = tuple(names.index(name) for name in plan.schema.names)
        key = frozenset(i for i, field in enumerate(plan.schema) if not field.nullable)
        return _Known(relation, table, plan, at, key)

    def _transactions(self, buffer: "_Buffer") -> tuple[list[Transaction], Ints]:
        """Returns the transactions, and for each message the index of its transaction."""
        opened = self._state.open
        is_begin, is_commit = buffer.kinds == _BEGIN, buffer.kinds == _COMMIT
        for kind, mask in ((_BEGIN, is_begin), (_COMMIT, is_commit)):
            if (buffer.lengths[mask] != _LENGTHS[kind]).any():
                raise _broken(f"has a message {chr(kind)} of the wrong length")
        depth = np.cumsum(is_begin.astype(np.int64) - is_commit) + (opened is not None)
        inside = depth + is_commit  # For a Commit, the depth before it.
        outside = np.isin(buffer.kinds, list(b"IUDRT")) & (depth != 1)
        if (depth < 0).any() or (inside > 1).any() or outside.any():
            raise _broken("has changes outside of transactions, or transactions in others")
        begins, commits = buffer.starts[is_begin], buffer.starts[is_commit]
        lsns, times = buffer.numbers(begins + 1, 8), buffer.numbers(begins + 9, 8) + _EPOCH_US
        ends = np.zeros(len(begins) + (opened is not None), np.int64)
        ends[: len(commits)] = buffer.numbers(commits + 10, 8)
        columns = [column.tolist() for column in (buffer.numbers(begins + 17, 4), lsns, times)]
        if opened is not None:
            lsns = np.concatenate([[opened.commit_lsn], lsns])
            of_opened = (opened.xid, opened.commit_lsn, opened.time_us)
            columns = [[first, *rest] for first, rest in zip(of_opened, columns, strict=True)]
        committed = buffer.numbers(commits + 2, 8)
        if (committed != lsns[: len(commits)]).any() or (ends[: len(commits)] <= 0).any():
            raise _broken("has a Commit of a transaction other than the one that began")
        xids, starts, moments = columns
        made = list(map(Transaction, xids, starts, ends.tolist(), moments))
        return made, np.cumsum(is_begin) - (opened is None)


class _Call:
    """The content of one call's messages, in the order of the stream.

    Attributes:
        relations: the newest description of each relation.
        known: those of them whose table was asked for.
        steps: what was found.
        described: the oid of the relation that the last message describes, or 0.
    """

    def __init__(
        self, buffer: "_Buffer", lsns: Ints, of_message: Ints, state: _State, decoder: Decoder
    ) -> None:
        self.relations, self.known = dict(state.relations), dict(state.known)
        self.steps: list[Changes | Truncated] = []
        self.described = 0
        self._buffer = buffer
        self._lsns = lsns
        self._of_message = of_message
        self._decoder = decoder
        self._runs = _Runs(buffer)

    def describe(self, i: int) -> None:
        """Takes a Relation message; the table is asked for by the first change after it."""
        relation = _relation(self._buffer.message(i))
        self.follow(relation.oid, i + 1)
        before = self.relations.get(relation.oid)
        if before == relation:
            return
        if before is not None:
            self._take(relation.oid, i)
        self.known.pop(relation.oid, None)
        self.relations[relation.oid] = relation

    def follow(self, described: int, i: int) -> None:
        """Takes what follows a Relation message: a change of another relation, whose partition that
        is, or anything else.
        """
        buffer = self._buffer
        if i == len(buffer.kinds):
            self.described = described
        elif buffer.kinds[i] in (_INSERT, _UPDATE, _DELETE):
            changed = int(buffer.numbers(buffer.starts[i : i + 1] + 1, 4)[0])
            if changed != described:
                self._decoder.part_of(described, changed, int(self._lsns[i]))

    def truncate(self, i: int) -> None:
        """Takes a Truncate message."""
        found = []
        for oid in _truncated(self._buffer.message(i)):
            self._take(oid, i)
            if self._lsns[i] >= self._decoder.start_of(oid):
                found.append(self._known_of(oid, i))
        if tables := tuple(one.table for one in found if one.plan is not None):
            self.steps.append(Truncated(tables, int(self._of_message[i])))

    def end(self, count: int) -> None:
        """Takes what is left before the end of the messages."""
        for oid in self._runs.left():
            self._take(oid, count)

    def _take(self, oid: int, end: int) -> None:
        """Takes the new changes of a relation before a message."""
        _relation_of(self.relations, oid)
        at = self._runs.until(end, oid)
        at = at[self._lsns[at] >= self._decoder.start_of(oid)]
        if len(at) and (one := self._known_of(oid, int(at[0]))).plan is not None:
            self.steps.append(_changes(self._buffer, at, one, self._of_message[at]))

    def _known_of(self, oid: int, i: int) -> _Known:
        """Returns a relation and its table, for a message."""
        if oid not in self.known:
            relation = _relation_of(self.relations, oid)
            self.known[oid] = self._decoder.known_of(relation, int(self._lsns[i]))
        return self.known[oid]


class _Buffer:
    """Messages one after another.

    Attributes:
        starts, lengths, kinds: of each message; its kind is its first byte.
    """

    def __init__(self, messages: Sequence[bytes]) -> None:
        self.lengths: Ints = np.fromiter(map(len, messages), np.int64, len(messages))
        self.size_bytes = int(self.lengths.sum())
        self.data = b"".join([*messages, _PADDING])
        self.octets: Octets = np.frombuffer(self.data, np.uint8)
        view = np.lib.stride_tricks.sliding_window_view
        self._windows = {width: view(self.octets, width) for width in (2, 4, 8)}
        self.ends: Ints = np.cumsum(self.lengths)
        self.starts: Ints = self.ends - self.lengths
        if len(messages) and self.lengths.min() == 0:
            raise _broken("has an empty message")
        self.kinds: Octets = self.octets[self.starts]
        if not _KNOWN[self.kinds].all():
            unknown = int(self.kinds[~_KNOWN[self.kinds]][0])
            raise _broken(f"has a message of the unknown kind {unknown}")

    def message(self, i: int) -> "_Message":
        """Returns one message for reading."""
        return _Message(self.data[self.starts[i] : self.ends[i]])

    def numbers(self, at: Ints, width: int) -> Ints:
        """Returns the integers of this many bytes at these places; only those of 8 are signed."""
        sign = "i" if width == 8 else "u"
        return self._windows[width][at].view(f">{sign}{width}")[:, 0].astype(np.int64)

    def texts(self, starts: Ints, ends: Ints, valid: Mask) -> pa.Array:
        """Returns an array of the strings at these places, null where they are not ``valid``."""
        if not valid.all():
            ends = np.maximum.accumulate(np.where(valid, ends, 0))
            starts = np.where(valid, starts, ends)
        rows = len(starts)
        if not rows:
            return pa.nulls(0, pa.string())
        if len(self.data) > _BYTES_MAX or (starts[1:] < ends[:-1]).any():
            pairs = zip(starts.tolist(), ends.tolist(), valid.tolist(), strict=True)
            parts = [self.data[s:e] if v else None for s, e, v in pairs]
            return pa.array(parts, pa.binary()).view(pa.string())
        # Every other string is the gap between two, and is not taken.
        bounds = np.empty(2 * rows, np.int32)
        bounds[0::2], bounds[1::2] = starts, ends
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self.data)]
        all_ = pa.Array.from_buffers(pa.string(), 2 * rows - 1, buffers)
        found = all_.take(to_arrow(np.arange(0, 2 * rows, 2, dtype=np.int32)))
        if valid.all():
            return found
        nulls = to_arrow(valid).buffers()[1]
        return pa.Array.from_buffers(pa.string(), rows, [nulls, *found.buffers()[1:]])


class _Message:
    """One message, read from its beginning."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 1

    def numbers(self, layout: str) -> tuple[int, ...]:
        """Reads the next numbers."""
        packed = struct.Struct(f">{layout}")
        if self._at + packed.size > len(self._data):
            raise _broken("has a message that ends too early")
        found = packed.unpack_from(self._data, self._at)
        self._at += packed.size
        return found

    def name(self) -> str:
        """Reads the next text, which ends with a zero byte."""
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise _broken("has a message that ends too early")
        text = self._data[self._at : end]
        self._at = end + 1
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise _broken("has a name that is not UTF-8") from None

    def end(self) -> None:
        """Raises if the message has more bytes."""
        if self._at != len(self._data):
            raise _broken("has a message that is longer than its content")


def _relation(message: _Message) -> Relation:
    (oid,) = message.numbers("I")
    schema, name = message.name(), message.name()
    identity, count = message.numbers("BH")
    columns = []
    for _ in range(count):
        (flags,) = message.numbers("B")
        column = message.name()
        type_oid, typmod = message.numbers("Ii")
        columns.append(RelationColumn(column, type_oid, typmod, bool(flags & 1)))
    message.end()
    return Relation(oid, schema or "pg_catalog", name, chr(identity), tuple(columns))


def _truncated(message: _Message) -> tuple[int, ...]:
    count, _options = message.numbers("IB")
    if count > _BYTES_MAX:
        raise _broken("has a message that ends too early")
    oids = message.numbers(f"{count}I")
    message.end()
    return oids


def _relation_of(relations: Mapping[int, Relation], oid: int) -> Relation:
    relation = relations.get(oid)
    if relation is None:
        raise _broken(f"has changes of relation {oid}, which it did not describe")
    return relation


class _Runs:
    """The changes of a call by relation, to be taken in order."""

    def __init__(self, buffer: _Buffer) -> None:
        kinds = buffer.kinds
        at = np.flatnonzero((kinds == _INSERT) | (kinds == _UPDATE) | (kinds == _DELETE))
        if (buffer.lengths[at] < 6).any():
            raise _broken("has a message that ends too early")
        oids = buffer.numbers(buffer.starts[at] + 1, 4)
        order = np.argsort(oids, kind="stable")
        found, firsts = np.unique(oids[order], return_index=True)
        bounds = [*firsts.tolist(), len(at)]
        own = (at[order[start:end]] for start, end in pairwise(bounds))
        self._left: dict[int, Ints] = dict(zip(found.tolist(), own, strict=True))

    def left(self) -> list[int]:
        """Returns the relations that have changes left."""
        return [oid for oid, at in self._left.items() if len(at)]

    def until(self, end: int, oid: int) -> Ints:
        """Takes the changes of a relation before a message; returns which messages they are."""
        at = self._left.get(oid)
        if at is None:
            return np.empty(0, np.int64)
        count = int(np.searchsorted(at, end))
        self._left[oid] = at[count:]
        return at[:count]


@dataclass(frozen=True, slots=True)
class _Tuples:
    """The places of the values of tuples, by column of the plan: kinds, starts and ends."""

    kinds: list[Octets]
    starts: list[Ints]
    ends: list[Ints]


def _walked(buffer: _Buffer, at: Ints, until: Ints, known: _Known) -> tuple[_Tuples, Ints]:
    """Returns the tuples that begin at these places, and their ends, at most ``until``."""
    count = len(known.relation.columns)
    limits = np.minimum(at, until - 2)
    if (limits < at).any() or (buffer.numbers(limits, 2) != count).any():
        raise _broken(f"has a row of {known.relation.name} with other columns than described")
    wanted: dict[int, list[int]] = {}
    for i, column in enumerate(known.at):
        wanted.setdefault(column, []).append(i)
    kinds: list[Any] = [None] * len(known.at)
    starts, ends = list(kinds), list(kinds)
    place = at + 2
    for column in range(count):
        if (place >= until).any():
            raise _broken("has a message that ends too early")
        kind = buffer.octets[place]
        is_text = kind == _TEXT
        start = place + 1
        if is_text.all():
            lengths = buffer.numbers(start, 4)
            start = start + 4
            place = start + lengths
        else:
            if not (is_text | (kind == _NULL) | (kind == _UNCHANGED)).all():
                raise _broken("has a value of an unknown kind")
            lengths = np.where(is_text, buffer.numbers(start, 4), 0)
            start = start + 4 * is_text
            place = start + lengths
        if (place > until).any():
            raise _broken("has a message that ends too early")
        for i in wanted.get(column, ()):
            kinds[i], starts[i], ends[i] = kind, start, place
    return _Tuples(kinds, starts, ends), place


def _changes(buffer: _Buffer, at: Ints, known: _Known, transactions: Ints) -> Changes:
    """Returns the changes of a table that messages contain."""
    plan = known.plan
    assert plan is not None
    kinds, ends = buffer.kinds[at], buffer.ends[at]
    place = buffer.starts[at] + 5
    first = buffer.octets[place]
    is_full = first == _OLD
    has_old = (is_full | (first == _KEY)) & (kinds != _INSERT)
    is_delete = kinds == _DELETE
    if (~has_old & ((first != _NEW) | is_delete)).any():
        raise _broken("has a change without its row")
    place = place + 1
    old = None
    if has_old.any():
        old, after = _walked(buffer, place[has_old], ends[has_old], known)
        place[has_old] = after
        both = has_old & ~is_delete
        if (place[both] >= ends[both]).any() or (buffer.octets[place[both]] != _NEW).any():
            raise _broken("has an update without its new row")
        place[both] += 1
    new, after = _walked(buffer, place[~is_delete], ends[~is_delete], known)
    place[~is_delete] = after
    if (place != ends).any():
        raise _broken("has a message that is longer than its content")
    return _laid_out(buffer, _Found(known, has_old, is_full, is_delete, old, new), transactions)


@dataclass(frozen=True, slots=True)
class _Found:
    """The places of a table's changes in messages; masks have an entry for each change."""

    known: _Known
    has_old: Mask
    is_full: Mask
    is_delete: Mask
    old: _Tuples | None
    new: _Tuples

    def values(self, i: int) -> tuple[Octets, Ints, Ints]:
        """Returns kind, start and end of a column in the new rows, or else in the old ones."""
        if self.old is None:  # Then no change is a delete.
            return self.new.kinds[i], self.new.starts[i], self.new.ends[i]
        count = len(self.is_delete)
        kind = np.full(count, _NULL, np.uint8)
        start, end = np.zeros(count, np.int64), np.zeros(count, np.int64)
        is_new = ~self.is_delete
        kind[is_new], start[is_new] = self.new.kinds[i], self.new.starts[i]
        end[is_new] = self.new.ends[i]
        lacks = (kind == _UNCHANGED) & self.has_old
        if lacks.any():
            old_kind, old_start, old_end = self.old_values(i)
            lacks &= (self.is_full if i not in self.known.key else True) & (old_kind != _UNCHANGED)
            kind[lacks], start[lacks], end[lacks] = (
                old_kind[lacks],
                old_start[lacks],
                old_end[lacks],
            )
        return kind, start, end

    def old_values(self, i: int) -> tuple[Octets, Ints, Ints]:
        """Returns kind, start and end of a column in the old rows."""
        count = len(self.is_delete)
        kind = np.full(count, _NULL, np.uint8)
        start, end = np.zeros(count, np.int64), np.zeros(count, np.int64)
        if self.old is not None:
            kind[self.has_old], start[self.has_old] = self.old.kinds[i], self.old.starts[i]
            end[self.has_old] = self.old.ends[i]
        return kind, start, end


def _moved(buffer: _Buffer, found: _Found) -> Mask:
    """Returns which updates changed the key."""
    updates = found.has_old & ~found.is_delete
    moved = np.zeros(len(updates), np.bool_)
    if not updates.any():
        return moved
    for i in found.known.key:
        kind, start, end = found.values(i)
        _, old_start, old_end = found.old_values(i)
        differs = updates & (end - start != old_end - old_start)
        for j in np.flatnonzero(updates & ~differs & ~moved & (start != old_start)).tolist():
            one, other = buffer.data[start[j] : end[j]], buffer.data[old_start[j] : old_end[j]]
            differs[j] = one != other
        moved |= differs & (kind == _TEXT)
    return moved


def _laid_out(buffer: _Buffer, found: _Found, transactions: Ints) -> Changes:
    """Returns the rows of changes: two for an update that changed the key."""
    known, plan = found.known, found.known.plan
    assert plan is not None
    moved = _moved(buffer, found)
    has_moved = bool(moved.any())
    source = np.repeat(np.arange(len(moved)), 1 + moved) if has_moved else None
    if source is None:
        deleted, rows_of = found.is_delete, transactions
        moved_from = None
    else:
        is_tombstone = np.zeros(len(source), np.bool_)
        is_tombstone[:-1] = source[:-1] == source[1:]
        deleted, rows_of = found.is_delete[source] | is_tombstone, transactions[source]
        moved_from = np.full(len(source), -1, np.int32)
        second = np.flatnonzero(is_tombstone) + 1
        moved_from[second] = second - 1
    columns, unchanged = [], {}
    for i, name in enumerate(plan.schema.names):
        kind, start, end = found.values(i)
        if source is not None:
            kind, start, end = kind[source], start[source], end[source]
        if i in known.key and deleted.any():
            at = deleted if source is None else source[deleted]
            kind[deleted], start[deleted], end[deleted] = (p[at] for p in found.old_values(i))
        elif i not in known.key and found.old is not None:
            kind[deleted] = _NULL
        lacks = kind == _UNCHANGED
        if lacks.any():
            unchanged[name] = lacks
        if i in known.key and not (kind == _TEXT).all():
            raise KeylessError(plan.what, known.relation.oid)
        columns.append(plan.column(i, buffer.texts(start, end, kind == _TEXT)))
    rows = pa.RecordBatch.from_arrays(columns, schema=plan.schema)
    return Changes(known.table, rows, deleted, unchanged, moved_from, rows_of.astype(np.int32))
