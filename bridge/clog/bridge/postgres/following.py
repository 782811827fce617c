"""Follows the stream of a captured database from one reading of its catalogue to the next.

1. *Read.* Messages wait until whole transactions are there, or a large part of one; then they are
   decoded, but for what tables have already. A table may be described otherwise than the catalogue
   has it (`Binding.has`): by a transaction that was committed after the catalogue was read, which
   must then be read again, or by an earlier one: then the table was another for some time, and is
   loaded again, whatever it is now. Either ends the following (`ChangedError`).
2. *Hand over.* Decoded messages are gathered for a short time, or until there are many. The result
   is a *piece*: a part of a group, in the order of the source; the last piece ends the group.
3. *Commit.* A second thread commits the pieces in order (L2), a third one names the cut of a group
   (L3), in which transactions are whole (S76), while the next group is being committed, and then
   the position is confirmed to the source (L4). At most three pieces wait, two of them still with
   their rows, so that a slow store slows the reading down.

Even if nothing is published, the position moves now and then: otherwise the source could not
discard the write-ahead log of its other databases.
"""

import select
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import numpy as np

from clog.bridge.capturing.logs import FLUSH_BYTES, Home, TableLog
from clog.bridge.capturing.tables import (
    ChangedError,
    Changes,
    Decoded,
    Relation,
    TablePlan,
    Truncated,
    joined,
)
from clog.bridge.postgres.pgoutput import Decoder, KeylessError
from clog.bridge.postgres.source import Stream
from clog.storage import Clock
from clog.storage.spi import dataclass, together

_LOOK_MS: Final = 5000
"""How often the catalogue and the source's position are read."""
_TAKE_BYTES: Final = 2 << 20
_PIECE_BYTES: Final = 4 << 20
_IDLE_BYTES: Final = 16 << 20
_IDLE_MS: Final = 20_000
"""After this much, or this long, the position moves although nothing was published."""
_WAITING_MAX: Final = 3
_WITH_ROWS_MAX: Final = 2
_ASK_MS: Final = 200


@dataclass(frozen=True, slots=True)
class Followed:
    """The tables that are followed, and the functions to call in between.

    Attributes:
        home: names the cuts.
        tables: the logs, by the oids of their tables.
        read_lsn: the source's position when its catalogue was read.
        interval_ms: the longest that changes wait for others while nothing else is being committed.
        should_stop: called several times a second.
        look: called every few seconds.
        check: called before each cut; raises `ChangedError` if it must not be made because rows may
            have changed without a message in the stream.
        on_commit: called after each commit with the number of transactions that ended in it, and
            the time when the source committed the last one, in us since 1970; 0: none.
    """

    home: Home
    tables: Mapping[int, TableLog]
    read_lsn: int
    interval_ms: int
    clock: Clock
    should_stop: Callable[[], bool]
    look: Callable[[], None]
    check: Callable[[], None]
    on_commit: Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece to commit. ``position``: that of its last transaction; ``is_end``: whether it ends
    the group; ``ended``, ``newest_us``: for `Followed.on_commit`.
    """

    decoded: tuple[Decoded, ...]
    position: int
    is_end: bool
    ended: int = 0
    newest_us: int = 0


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A piece that was handed over, without its rows. ``group``: its L2, which returns a function
    that does its L3; ``cut``: its L3.
    """

    ended: int
    newest_us: int
    group: Future[Callable[[], None] | None]
    cut: Future[None]


class _Reading:
    """Messages that wait to be decoded; for one thread.

    Attributes:
        in_transaction: whether the decoded messages end within a transaction.
    """

    def __init__(self, of: Followed) -> None:
        self.in_transaction = False
        self._of = of
        self._decoder = Decoder(self._table_of, self._start_of, self._part_of)
        self._doubted: set[int] = set()
        self._messages: list[bytes] = []
        self._ends: list[int] = []
        self._bytes = 0

    @property
    def is_between(self) -> bool:
        """Whether nothing waits, and no transaction is open."""
        return not (self._messages or self.in_transaction)

    def add(self, messages: Sequence[bytes]) -> None:
        """Adds messages."""
        count = len(self._messages)
        self._ends += [i for i, message in enumerate(messages, count) if message[:1] == b"C"]
        self._messages += messages
        self._bytes += sum(map(len, messages))

    def decoded(self) -> Decoded | None:
        """Decodes what waits up to the last end of a transaction, or a large part of one."""
        if self._ends:
            count = 1 + self._ends[0 if self.in_transaction else -1]
        elif self._bytes < _TAKE_BYTES:
            return None
        else:
            count = len(self._messages)
        try:
            decoded = self._decoder.decode(self._messages[:count])
        except KeylessError as e:
            raise ChangedError(str(e), {e.oid, *self._doubted}) from e
        if self._doubted:
            names = sorted(self._of.tables[oid].table.what for oid in self._doubted)
            raise ChangedError(
                f"{', '.join(names)} had another shape, or other partitions, for some time",
                self._doubted,
            )
        del self._messages[:count]
        self._ends = [i - count for i in self._ends if i >= count]
        self._bytes -= decoded.size_bytes
        self.in_transaction = decoded.in_transaction
        return decoded

    def _start_of(self, oid: int) -> int:
        one = self._of.tables.get(oid)
        return 0 if one is None else one.position

    def _part_of(self, leaf: int, root: int, lsn: int) -> None:
        """Compares which table had a partition with which one has it, or is it: nothing else tells
        what rows the one got with it, and the other did not.
        """
        tables = self._of.tables
        now = next((oid for oid, one in tables.items() if leaf in (oid, *one.table.leaves)), 0)
        if now == root:
            return
        concerned = [oid for oid in (now, root) if oid in tables and lsn >= tables[oid].position]
        if root in concerned and not tables[root].table.key:
            concerned.remove(root)  # Events stay where they are.
        if concerned and lsn >= self._of.read_lsn:
            what = tables[concerned[0]].table.what
            raise ChangedError(f"{what} has another partition, or is one", self._doubted)
        self._doubted.update(concerned)

    def _table_of(self, relation: Relation, lsn: int) -> tuple[TableLog, TablePlan] | None:
        one = self._of.tables.get(relation.oid)
        if one is None:
            return None
        if not self._of.home.bindings[relation.oid].has(relation, one.table):
            if lsn >= self._of.read_lsn:
                raise ChangedError(f"{one.table.what} has changed", self._doubted)
            self._doubted.add(relation.oid)  # All that this call finds are loaded at the same time.
            return None
        sent = {column.name for column in relation.columns}
        schema, forms = one.plan.schema, one.plan.forms
        there = [i for i, name in enumerate(schema.names) if name in sent]
        if len(there) == len(schema):
            return one, one.plan
        kept = schema.empty_table().select(there).schema, tuple(forms[i] for i in there)
        return one, TablePlan(one.plan.what, *kept)


class Following:
    """Follows the stream from a position on; a worker for the thread that starts it."""

    def __init__(self, of: Followed, stream: Stream, start: int) -> None:
        self._of = of
        self._tables = list(of.tables.values())
        self._stream = stream
        self._reading = _Reading(of)
        self._held: list[Decoded] = []
        self._held_bytes = 0
        self._reached = start
        self._since_ms = self._idle_ms = of.clock.monotonic_ms()
        self._waiting: deque[_Waiting] = deque()

    def to_the_end(self, until: int | None) -> None:
        """Follows until everything that the source wrote below ``until`` is committed, or until it
        is stopped.

        Raises:
            ChangedError: a table changed; what was handed over is committed.
        """
        with (
            ThreadPoolExecutor(1, "clog-cuts") as self._namer,
            ThreadPoolExecutor(1, "clog-capture") as self._committer,
        ):
            try:
                self._follow(until)
                self._hand_over()
                self._settle(0)
                self._idle(even_little=True)
            finally:
                self._settle(0)

    def _follow(self, until: int | None) -> None:
        of, stream, reading = self._of, self._stream, self._reading
        looked_ms = asked_ms = of.clock.monotonic_ms()
        while not of.should_stop():
            messages = [] if self._is_full else stream.take(_TAKE_BYTES)
            reading.add(messages)
            has_moved = self._hold() or bool(messages)
            self._hand_over_due()
            self._settle(_WAITING_MAX)
            if reading.is_between:
                self._reached = max(self._reached, stream.reached)
                if until is not None and self._reached >= until:
                    return
                if not (self._held or self._waiting):
                    self._idle()
            now_ms = of.clock.monotonic_ms()
            if looked_ms + _LOOK_MS <= now_ms:
                looked_ms = now_ms
                of.look()
            if not has_moved:
                if asked_ms + _ASK_MS <= now_ms:
                    asked_ms = now_ms
                    stream.confirm(ask=True)
                select.select([stream], [], [], 0.01 if self._held or self._waiting else 0.05)

    @property
    def _is_full(self) -> bool:
        """Whether enough pieces wait, or enough pieces that still have their rows."""
        with_rows = sum(not one.group.done() for one in self._waiting)
        return with_rows >= _WITH_ROWS_MAX or len(self._waiting) >= _WAITING_MAX

    def _hold(self) -> bool:
        """Decodes what it can unless much is held already; returns whether it decoded anything."""
        if self._held_bytes > _PIECE_BYTES or (decoded := self._reading.decoded()) is None:
            return False
        if not self._held:
            self._since_ms = self._of.clock.monotonic_ms()
        self._held.append(decoded)
        self._held_bytes += decoded.size_bytes
        return True

    def _hand_over_due(self) -> None:
        """Hands over what is large enough, or has waited and no other group is being committed."""
        if not self._held or self._is_full:
            return
        waited = self._since_ms + self._of.interval_ms <= self._of.clock.monotonic_ms()
        is_busy = any(not one.group.done() for one in self._waiting)
        is_due = waited and not (is_busy or self._reading.in_transaction)
        if is_due or self._held_bytes >= _PIECE_BYTES:
            self._hand_over()

    def _hand_over(self) -> None:
        parts = tuple(self._held)
        transactions = [t for one in parts for t in one.transactions]
        if not transactions:
            return
        self._held, self._held_bytes = [], 0
        ended = [t for t in transactions if t.end_lsn]
        is_end = not self._reading.in_transaction
        newest_us = ended[-1].time_us if ended else 0
        position = transactions[-1].commit_lsn + 1
        self._submit(_Piece(parts, position, is_end, len(ended), newest_us))

    def _submit(self, piece: _Piece) -> None:
        before = self._waiting[-1].cut if self._waiting else None
        group = self._committer.submit(self._commit, piece, before)
        cut = self._namer.submit(_name, group)
        self._waiting.append(_Waiting(piece.ended, piece.newest_us, group, cut))

    def _settle(self, left: int) -> None:
        """Waits until at most ``left`` pieces are uncommitted, and keeps the connection alive."""
        while self._waiting and (len(self._waiting) > left or self._waiting[0].cut.done()):
            first = self._waiting[0]
            while not first.cut.done():
                self._of.clock.sleep_ms(5)
                self._stream.confirm()
            self._waiting.popleft()
            first.cut.result()
            if self._of.home.position:
                self._stream.confirm(self._of.home.position)  # L4
            self._of.on_commit(first.ended, first.newest_us)

    def _idle(self, *, even_little: bool = False) -> None:
        """Moves the position if nothing came, or if a table is not in a cut yet."""
        home, now_ms = self._of.home, self._of.clock.monotonic_ms()
        behind = self._reached - home.position
        ahead = max(one.position for one in self._tables)
        lacks = ahead > home.position or any(o.log.id not in home.members for o in self._tables)
        is_due = behind >= _IDLE_BYTES or even_little or self._idle_ms + _IDLE_MS <= now_ms
        if ahead <= self._reached and (lacks or (is_due and behind > 0)):
            self._idle_ms = now_ms
            self._submit(_Piece((), self._reached, is_end=True))
            self._settle(0)

    def _commit(self, piece: _Piece, before: Future[None] | None) -> Callable[[], None] | None:
        """Does L2, in the second thread, and waits for the previous cut; returns what does L3."""
        tables, home = self._tables, self._of.home
        for step, times_us in _steps(piece.decoded):
            if not isinstance(step, Changes):
                for one in step.tables:
                    one.truncate(int(times_us[0]))
                continue
            at = 0
            while at < len(step.deleted):
                at = step.table.take(step, times_us, at)
                if sum(one.pending_bytes for one in tables) > FLUSH_BYTES:
                    large = [one for one in tables if one.pending_bytes]
                    together((one.log, one.flush) for one in large)
        if not piece.is_end:
            return None
        started = [one for one in tables if one.is_begun]
        together((one.log, partial(one.commit, piece.position)) for one in started)
        if before is not None:
            before.result()
        is_whole = all(one.position <= piece.position for one in tables)
        if is_whole and piece.position > home.position:
            self._of.check()
            return home.prepared(piece.position, tables)
        return None


def _name(group: Future[Callable[[], None] | None]) -> None:
    """Does L3 of a group after its L2; in the third thread."""
    if cut := group.result():
        cut()


def _steps(parts: Sequence[Decoded]) -> Iterator[tuple[Changes | Truncated, Any]]:
    """Yields the changes, a table's rows between two truncates as one."""
    gathered: dict[int, list[tuple[Changes, Any]]] = {}
    for decoded in parts:
        times = np.array([t.time_us for t in decoded.transactions], np.int64)
        for step in decoded.steps:
            if isinstance(step, Changes):
                mine = gathered.setdefault(step.table.table.oid, [])
                if mine and mine[0][0].rows.schema != step.rows.schema:
                    yield _as_one(mine)
                    mine.clear()
                mine.append((step, times[step.transactions]))
                continue
            for one in step.tables:
                if mine := gathered.pop(one.table.oid, []):
                    yield _as_one(mine)
            yield step, times[step.transaction : step.transaction + 1]
    yield from map(_as_one, filter(None, gathered.values()))


def _as_one(parts: Sequence[tuple[Changes, Any]]) -> tuple[Changes, Any]:
    changes, times_us = zip(*parts, strict=True)
    return joined(changes), np.concatenate(times_us)
