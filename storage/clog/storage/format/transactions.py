"""Writers and transactions in the format: each writer's last commit, so that no append happens
twice, and what a log keeps about transactions and undecided records (FORMAT.md §3.4, §11). Pure,
except for documents of positions.

The state of an id is part of its writer entry, of kind ``transaction``: its epoch, the last number
that the log knows of, the last committed transaction (apart from the current state), and the
*positions* that its readers have reached, in logs and in sources that are not logs (*foreign*
positions). Large positions are a separate document, since each commit repeats the entries in the
head.

The head lists the transactions that have not ended. So it alone tells every reader up to which
offset all is decided (the *last stable offset*), and every writer whether a transaction is still
open. An end decides all chunks of the transaction together, and takes one offset, a *marker*, in
each partition that the transaction wrote to. `transactions` decides who ends one, and when;
`manifest` says what an end does to chunks.

An undecided transaction *holds back* what comes at or after its first records, and so that no
reader sees half of another one, all of each transaction that has records there, wherever its others
are (FORMAT.md §11.5). Each entry has that as offsets, kept up to date by every commit that adds
records of a transaction (`joined`, `holding`), since the head does not know those that have ended.

*Answers* are the outcomes of the newest operation of each proposing author (FORMAT.md §21): commits
include proposals (`commit.combining`), and the authors find the answers in the heads that they
follow. Answers are forgotten up to version ``first`` (`Combined`).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise
from typing import Annotated, Any, Final

from clog.storage.env import dataclass
from clog.storage.errors import CorruptionError
from clog.storage.format import documents
from clog.storage.format.documents import (
    AUTHOR,
    BESIDE,
    HEX,
    INT,
    KEPT,
    NATURAL,
    NONE,
    SAID,
    TEXT,
    Codec,
    Flag,
    Int,
    Natural,
    Offsets,
    Path,
    Text,
    all_of,
    checked,
    columns,
    maybe,
    page_path,
    pair,
    reading,
    record,
    row,
    seq,
    table,
    tuple_of,
)
from clog.storage.store.contract import Store

TRANSACTION = "transaction"
"""The kind of writer entries with the state of an id."""
PARTICIPANT = "participant"
"""The kind of such entries in a log that takes part in a transaction of another log."""
POSITIONS_BYTES_MAX = 1 << 10
"""Positions whose JSON is longer are a separate document."""
SOURCE_BYTES_MAX = 512
"""Bytes of the name of a foreign source. This and the next two are part of the format."""
MARK_BYTES_MAX = 128
FOREIGN_PARTITIONS_MAX = 1 << 31
_SOURCE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?!//)[^\x00-\x1f\x7f\ud800-\udfff]+")
_MARK = re.compile(r"[^\ud800-\udfff]+")
WRITER_ID_BYTES_MAX = 1024
"""The head repeats the ids of recent writers in each commit. Part of the format."""
UNENDED_MAX = 64
"""The most transactions of a log that have not ended. Part of the format."""
OPEN = "open"
PREPARED = "prepared"
COMMITTED = "committed"
ABORTED = "aborted"
_OUTCOMES = (COMMITTED, ABORTED)
_STATES = (OPEN, PREPARED, *_OUTCOMES)
_OUTCOME = checked(TEXT, _OUTCOMES.__contains__, "an outcome")
_Said = Annotated[bool, SAID]
_NOTHING: Final[Offsets] = {}


@dataclass(frozen=True, slots=True)
class Position:
    """How far a partition was read: ``offset`` is the next one to read, ``version`` the one at
    which those before it were read (S41).
    """

    offset: Int
    version: Int


def is_source_name(text: str) -> bool:
    """Returns whether this can name a source that is not a log (FORMAT.md §11.4)."""
    return _SOURCE_NAME.fullmatch(text) is not None and len(text.encode()) <= SOURCE_BYTES_MAX


def is_mark(text: str) -> bool:
    """Returns whether this can be a mark (FORMAT.md §11.4)."""
    return _MARK.fullmatch(text) is not None and len(text.encode()) <= MARK_BYTES_MAX


@dataclass(frozen=True, slots=True)
class ForeignPosition:
    """How far a partition of a foreign source was read: ``offset`` is the next one to read;
    ``mark`` tells the source's histories apart (FORMAT.md §11.4).
    """

    offset: Natural
    mark: Annotated[str | None, maybe(checked(TEXT, is_mark, "a mark"))] = None


Positions = Mapping[str, Mapping[int, Position | ForeignPosition]]
"""By log id, or name of a foreign source, and partition."""


def _of_source(kind: type, partition: Codec) -> Codec:
    """Returns the codec of the positions in one source, by partition."""
    partitions, positions = seq(partition), columns(kind, made=kind)

    def write(mine: Mapping[int, Any]) -> dict[str, Any]:
        pairs = sorted(mine.items())
        return {"p": [p for p, _ in pairs], **positions.write(at for _, at in pairs)}

    def read(value: dict[str, Any]) -> dict[int, Any]:
        return dict(zip(partitions.read(value["p"]), positions.read(value), strict=True))

    return Codec(write, read)


_PARTITION = checked(NATURAL, lambda p: p < FOREIGN_PARTITIONS_MAX, "a partition")
_NAME = checked(TEXT, is_source_name, "the name of a source")
_POSITIONS = table(HEX, _of_source(Position, INT))
_FOREIGN = table(_NAME, _of_source(ForeignPosition, _PARTITION))


@dataclass(frozen=True, slots=True)
class PositionsAt:
    """A document with positions."""

    path: Path
    size_bytes: Annotated[Int, "bytes"]


_AT = record(PositionsAt)


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed transaction, and the version that committed it."""

    epoch: Int
    number: Int
    version: Int


def _positions_to_json(positions: Positions | PositionsAt) -> dict[str, Any]:
    if isinstance(positions, PositionsAt):
        return {"positions_at": _AT.write(positions)}
    foreign = foreign_of(positions)
    logs = {name: mine for name, mine in positions.items() if name not in foreign}
    made = {"positions": _POSITIONS.write(logs), "foreign": _FOREIGN.write(foreign)}
    return {name: part for name, part in made.items() if part}


def _positions_from_json(value: Mapping[str, Any]) -> Positions | PositionsAt:
    at: PositionsAt | None = maybe(_AT).read(value.get("positions_at"))
    logs, foreign = value.get("positions", {}), value.get("foreign", {})
    return _POSITIONS.read(logs) | _FOREIGN.read(foreign) if at is None else at


def foreign_of(positions: Positions) -> Positions:
    """Returns the positions in foreign sources."""
    return {name: mine for name, mine in positions.items() if ":" in name}


POSITIONS: Final = Codec(_positions_to_json, _positions_from_json)
"""Positions in logs and in foreign sources, when not part of an entry."""


@dataclass(frozen=True, slots=True)
class TransactionState:
    """The state of an id. ``number`` is the epoch's last transaction that the log knows of, -1
    before the first. In a participant, ``forced`` means that an operator aborted it by force.
    """

    epoch: Int
    number: Annotated[int, INT, KEPT] = NONE
    committed: Annotated[Committed | None, maybe(row(Committed)), KEPT] = None
    positions: Annotated[
        Positions | PositionsAt, Codec(_positions_to_json, _positions_from_json), BESIDE
    ] = field(default_factory=dict)
    forced: _Said = False


STATES: Final = {
    TRANSACTION: record(TransactionState, without=("forced",)),
    PARTICIPANT: record(TransactionState, without=("committed", "positions")),
}
"""By kind of the writer entry."""


@dataclass(frozen=True, slots=True)
class TransactionName:
    """Names one transaction (FORMAT.md §11.2); ``home`` is the id of the log that decides it."""

    home: Annotated[str, HEX]
    id: Text
    epoch: Natural
    number: Natural


NAME: Final = record(TransactionName)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unended:
    """A transaction that has not ended.

    Attributes:
        name: its name.
        home_url: the URL that its home had; None in the home itself.
        state: ``open``, ``prepared``, or, in the home, its outcome while a participant may lack it.
        version, started_ms: of the commit that added it.
        timeout_ms: the time after its start from which on anyone may abort it.
        first: the offset of its first undecided record, by partition.
        held: where other transactions begin that it holds back, if that is before ``first``.
        since: the lowest version that added one of them or this; -1: ``version``.
        participants: (log id, URL) of the other logs; only in the home.
    """

    name: Annotated[TransactionName, NAME, BESIDE]
    home_url: Annotated[str | None, maybe(TEXT), KEPT] = None
    state: Annotated[str, checked(TEXT, _STATES.__contains__, "a state of transactions")]
    version: Annotated[int, NATURAL, KEPT] = NONE
    started_ms: Annotated[int, NATURAL, KEPT] = NONE
    timeout_ms: Natural
    first: Annotated[Offsets, KEPT] = field(default_factory=dict)
    held: Offsets = field(default_factory=dict)
    since: Annotated[int, NATURAL] = NONE
    participants: Annotated[tuple[tuple[str, str], ...], seq(pair(TEXT, TEXT))] = ()

    @property
    def is_decided(self) -> bool:
        """Whether its outcome is known, and kept only for participants."""
        return self.state in _OUTCOMES

    @property
    def holds(self) -> Offsets:
        """From which offsets on it holds back readers, by partition."""
        return {**self.first, **self.held}

    @property
    def oldest(self) -> int:
        """The version that added the oldest transaction that it holds back, or itself."""
        return self.version if self.since == NONE else self.since

    def holding(self, offsets: Offsets, since: int) -> "Unended":
        """Returns it holding back also what is at these offsets and beyond."""
        holds = self.holds
        lower = {p: at for p, at in offsets.items() if at < holds.get(p, at + 1)}
        if not lower:
            return self
        kept = self.since if since >= self.oldest else since
        return replace(self, held={**self.held, **lower}, since=kept)


_UNENDED = seq(record(Unended))
_JOINED = record(Unended, without=("version", "started_ms", "first", "held", "since"))


def unended_from_json(value: list[Any], partitions: int) -> tuple[Unended, ...]:
    """Reads the list in a head of ``partitions`` partitions; raises as codecs do."""
    entries: tuple[Unended, ...] = _UNENDED.read(value)
    if len(entries) > UNENDED_MAX:
        raise ValueError(f"{len(entries)} transactions that have not ended; {UNENDED_MAX} may")
    if unknown := sorted(p for entry in entries for p in entry.holds if p >= partitions):
        raise ValueError(f"undecided records of partitions {unknown} of {partitions}")
    if len({entry.name for entry in entries}) < len(entries):
        raise ValueError("a transaction that has not ended is listed twice")
    return entries


UNENDED: Final = Codec(_UNENDED.write, unended_from_json)


@dataclass(frozen=True, slots=True)
class Joining:
    """A transaction that joins the list or continues; the objects ``[first, next)`` of the edit's
    `Append` are its own.
    """

    entry: Unended
    first: int = 0
    next: int = 0


def _joining_from_json(value: dict[str, Any]) -> Joining:
    first, end = map(NATURAL.read, value["objects"])
    return Joining(_JOINED.read(value), first, end)


JOINING: Final = Codec(
    lambda joining: {**_JOINED.write(joining.entry), "objects": [joining.first, joining.next]},
    _joining_from_json,
)


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a transaction; ``forced`` if by an operator who could not ask its home."""

    name: Annotated[TransactionName, NAME, BESIDE]
    outcome: Annotated[str, _OUTCOME]
    forced: _Said = False


ENDING: Final = record(Ending)


@dataclass(frozen=True, slots=True)
class Marker:
    """An offset without a record, where a transaction ended; ``horizon_ms`` is -1 before a pass."""

    partition: Annotated[Natural, "p"]
    offset: Natural
    id: Text
    epoch: Natural
    number: Natural
    outcome: Annotated[str, _OUTCOME]
    horizon_ms: Annotated[int, INT, KEPT, "horizon"] = NONE

    @property
    def place(self) -> tuple[int, int]:
        return self.partition, self.offset

    def may_go(self, now_ms: int) -> bool:
        """Returns whether its horizon has passed."""
        return NONE < self.horizon_ms <= now_ms


_MARKERS = columns(Marker)


def markers_from_json(value: dict[str, Any], partitions: int) -> tuple[Marker, ...]:
    """Reads the markers of a log of ``partitions`` partitions; raises as codecs do."""
    markers: tuple[Marker, ...] = _MARKERS.read(value)
    if any(a.place >= b.place for a, b in pairwise(markers)):
        raise ValueError("markers that are not in order")
    if any(m.partition >= partitions or m.horizon_ms < NONE for m in markers):
        raise ValueError(f"a marker that none of {partitions} partitions can have")
    return markers


MARKERS: Final = Codec(_MARKERS.write, markers_from_json)


def find_unended(unended: Sequence[Unended], name: TransactionName) -> Unended | None:
    """Returns the entry with this name; None if the list has none."""
    return next((entry for entry in unended if entry.name == name), None)


def ended(unended: tuple[Unended, ...], ending: Ending) -> tuple[Unended, ...]:
    """Returns the list after an end; a home with participants keeps the outcome for them."""
    entry = find_unended(unended, ending.name)
    if entry is None:
        return unended
    others = tuple(other for other in unended if other is not entry)
    if entry.is_decided and entry.state != ending.outcome:
        raise CorruptionError(
            f"transaction {entry.name.number} of id {entry.name.id!r} was {entry.state}, and an"
            f" edit says {ending.outcome}"
        )
    if entry.is_decided or not entry.participants:
        return others
    return (*others, replace(entry, state=ending.outcome, first={}, held={}, since=NONE))


def joined(
    unended: tuple[Unended, ...],
    joining: Joining,
    first: Mapping[int, int],
    *,
    version: int,
    time_ms: int,
    is_whole: bool,
) -> tuple[Unended, ...]:
    """Returns the list with a transaction; ``first`` are its first offsets in this edit. If
    ``is_whole``, others hold all of it back or nothing.
    """
    known = find_unended(unended, joining.entry.name)
    if known is not None and known.is_decided:
        raise CorruptionError(f"an edit adds to {known.name}, which was {known.state}")
    began = replace(joining.entry, version=version, started_ms=time_ms) if known is None else known
    entry = replace(
        joining.entry,
        **{name: getattr(began, name) for name in ("version", "started_ms", "held", "since")},
        first={**first, **began.first},
    )
    others = tuple(other for other in unended if other is not known)
    made = (*(holding(others, first, entry, began.holds) if is_whole else others), entry)
    if len(made) > UNENDED_MAX:
        raise CorruptionError(f"{len(made)} transactions have not ended; allowed: {UNENDED_MAX}")
    return made


def holding(
    unended: tuple[Unended, ...],
    first: Offsets,
    mine: Unended | None = None,
    before: Offsets = _NOTHING,
) -> tuple[Unended, ...]:
    """Returns the list after a transaction added records, at ``first`` by partition: those that
    hold back one of them hold back all of the transaction. ``mine``: its own entry, if it is
    undecided, which held back ``before``. What holds that back, holds back one of its records.
    """
    offsets, since = (first, NONE) if mine is None else (mine.holds, mine.oldest)

    def is_held(by: Offsets) -> bool:
        is_before = before and all(at >= by.get(p, at + 1) for p, at in before.items())
        return bool(is_before) or not by.keys().isdisjoint(first)

    return tuple(
        other.holding(offsets, other.oldest if mine is None else since)
        if is_held(other.holds)
        else other
        for other in unended
    )


def with_started_reset(unended: tuple[Unended, ...], time_ms: int) -> tuple[Unended, ...]:
    """Returns the list with no start later than ``time_ms``."""
    return tuple(replace(entry, started_ms=min(entry.started_ms, time_ms)) for entry in unended)


def markers_after(
    before: tuple[Marker, ...],
    *,
    marked: Sequence[tuple[int, int, int]],
    unmarked: Sequence[tuple[int, int]],
    starts: Sequence[int] | None,
    fresh: Sequence[Marker],
) -> tuple[Marker, ...]:
    """Returns the markers after an edit, in order. ``starts`` are the log start offsets, below
    which none are left, if the edit changes some. Raises CorruptionError if the edit names a marker
    twice, one that does not exist, or one that already has its horizon.
    """
    if not (marked or unmarked or starts or fresh):
        return before
    horizons = {(p, offset): ms for p, offset, ms in marked}
    there = {m.place for m in before if m.horizon_ms == NONE or m.place not in horizons}
    missing = {*horizons, *unmarked} - there
    if missing or len(horizons) < len(marked) or len(set(unmarked)) < len(unmarked):
        raise CorruptionError(
            f"an edit gives horizons to the markers {sorted(horizons)} and removes"
            f" {sorted(unmarked)}; {sorted(missing)} are not as it says"
        )
    gone = set(unmarked)
    left = [m for m in (*before, *fresh) if m.place not in gone]
    left = [m for m in left if starts is None or m.offset >= starts[m.partition]]
    dated = (replace(m, horizon_ms=horizons.get(m.place, m.horizon_ms)) for m in left)
    return tuple(sorted(dated, key=lambda m: m.place))


def stored_positions(
    store: Store, positions: Positions, *, new_id: Callable[[], str]
) -> Positions | PositionsAt:
    """Returns positions as an entry holds them; large ones are first written as a document."""
    parts = _positions_to_json(positions)
    if sum(len(documents.body_json(part)) for part in parts.values()) <= POSITIONS_BYTES_MAX:
        return positions
    path, data = page_path(new_id()), documents.encode("page", {"positions": {}, **parts})
    store.put(path, data)
    return PositionsAt(path, len(data))


def kept_positions(
    store: Store, state: TransactionState | None, *, new_id: Callable[[], str]
) -> Positions | PositionsAt:
    """Returns the positions of an id as its next entry has them. An entry from a page has them
    inline; large ones are then written as a document (FORMAT.md §11.1).
    """
    if state is None or isinstance(state.positions, PositionsAt):
        return {} if state is None else state.positions
    return stored_positions(store, state.positions, new_id=new_id)


def read_positions(store: Store, positions: Positions | PositionsAt) -> Positions:
    """Returns the positions of an entry; one GET if they are a document, which may be swept."""
    if not isinstance(positions, PositionsAt):
        return positions
    body = documents.get(store, "page", positions.path, positions.size_bytes)
    with reading(f"{positions.path} of {store.url}"):
        logs, foreign = body["positions"], body.get("foreign", {})
        found: Positions = _POSITIONS.read(logs) | _FOREIGN.read(foreign)
        return found


@dataclass(frozen=True, slots=True)
class WriterEntry:
    """A writer's last commit. ``kind`` is producer, stream, txn or transaction; an entry of the
    last kind has the state of its id (FORMAT.md §3.4, §11).
    """

    writer_id: Annotated[
        str,
        checked(TEXT, lambda text: 1 <= len(text.encode()) <= WRITER_ID_BYTES_MAX, "a writer's id"),
    ]
    kind: Text
    query_id: Annotated[str | None, maybe(TEXT)]
    sequence: Int
    content: Annotated[str | None, maybe(TEXT)]
    version: int = NONE
    transaction: TransactionState | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The kind and the id, which together identify a writer."""
        return self.kind, self.writer_id

    def committed_by(self, version: int) -> Committed | None:
        """Returns the transaction that the commit of this version committed under the id."""
        done = self.transaction.committed if self.transaction and self.kind == TRANSACTION else None
        return done if done is not None and done.version == version else None


_NAMED = row(WriterEntry, made=tuple_of)
_NAMED_FIELDS = 5


def _entry_to_json(entry: WriterEntry, *numbers: int) -> list[Any]:
    """Returns an entry's JSON: what names it, then these numbers, then the state of its id."""
    made: list[Any] = _NAMED.write(entry)
    made += numbers
    if entry.transaction is not None:
        made.append(STATES[entry.kind].write(entry.transaction))
    return made


def _entries_from_json(
    values: Sequence[list[Any]], versions: Sequence[int], state_at: int
) -> list[WriterEntry]:
    """Reads entries; further elements of an entry of another kind are ignored."""
    named = all_of(_NAMED, [value[:_NAMED_FIELDS] for value in values])
    states = (
        STATES[parts[1]].read(value[state_at]) if parts[1] in STATES else None
        for parts, value in zip(named, values, strict=True)
    )
    return [
        WriterEntry(*parts, version, state)  # type: ignore[call-arg] # five parts
        for parts, version, state in zip(named, versions, states, strict=True)
    ]


def _writers_from_json(values: list[list[Any]]) -> list[WriterEntry]:
    versions = all_of(NATURAL, [value[_NAMED_FIELDS] for value in values])
    return _entries_from_json(values, versions, _NAMED_FIELDS + 1)


WRITER: Final = Codec(
    lambda entry: _entry_to_json(entry, entry.version),
    lambda value: _writers_from_json([value])[0],
    _writers_from_json,
)


@dataclass(frozen=True, slots=True)
class AppendedBy:
    """The writer of the objects ``[first, next)`` of an edit's `Append`, counted from 0: one commit
    may contain the appends of several writers.
    """

    entry: WriterEntry
    first: int = 0
    next: int = 0


def appended_by_from_json(value: list[Any], *, version: int) -> AppendedBy:
    """Reads an entry in the edit of this version; raises as codecs do."""
    first, end = map(NATURAL.read, value[_NAMED_FIELDS : _NAMED_FIELDS + 2])
    (entry,) = _entries_from_json([value], [version], _NAMED_FIELDS + 2)
    return AppendedBy(entry, first, end)


APPENDED_BY: Final = Codec(
    lambda by: _entry_to_json(by.entry, by.first, by.next), appended_by_from_json
)


def with_writers(
    writers: tuple[WriterEntry, ...], added: Sequence[AppendedBy]
) -> tuple[WriterEntry, ...]:
    """Returns the head's list with the entries of an edit, most recent last."""
    for by in added:
        writers = (*(w for w in writers if w.key != by.entry.key), by.entry)
    return writers


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of an author's newest operation: the commit of ``version`` at ``time_ms`` applied
    it, or withdrew it, so that no commit ever applies it.
    """

    author: Annotated[str, AUTHOR]
    number: Natural
    version: Natural
    is_applied: Flag
    time_ms: Natural


_ANSWERS = seq(row(Answer))


@dataclass(frozen=True, slots=True)
class Combined:
    """The remembered answers: all those of versions after ``first``."""

    first: Annotated[int, NATURAL, KEPT] = 0
    authors: Annotated[tuple[Answer, ...], _ANSWERS, KEPT] = ()

    def of(self, author: str) -> Answer | None:
        """Returns the answer to an author's newest operation; None if none is remembered."""
        return next((answer for answer in self.authors if answer.author == author), None)

    def after(self, given: "Combining", *, version: int, time_ms: int) -> "Combined":
        """Returns the answers after an edit that gives some, and says which to forget."""
        known = {answer.author: answer for answer in self.authors}
        first = max(self.first, given.first)
        if first >= version:
            raise CorruptionError(f"version {version} forgets answers up to version {first}")
        for one in given.authors:
            was = known.pop(one.author, None)
            if was is not None and was.number >= one.number:
                raise CorruptionError(
                    f"an edit answers operation {one.number} of author {one.author}, after"
                    f" {was.number} was answered by version {was.version}"
                )
            known[one.author] = Answer(one.author, one.number, version, one.is_applied, time_ms)
        return Combined(first, tuple(a for a in known.values() if a.version > first))

    def reset(self, time_ms: int) -> "Combined":
        """Returns the same answers with no time later than ``time_ms``."""
        kept = (replace(a, time_ms=min(a.time_ms, time_ms)) for a in self.authors)
        return replace(self, authors=tuple(kept))


COMBINED: Final = record(Combined)


@dataclass(frozen=True, slots=True)
class Answered:
    """An operation of an author, and whether this edit applies it or withdraws it."""

    author: Annotated[str, AUTHOR]
    number: Natural
    is_applied: Flag


@dataclass(frozen=True, slots=True)
class Combining:
    """An edit's answers, and the version up to which it forgets others; 0 forgets no more."""

    first: Natural = 0
    authors: Annotated[tuple[Answered, ...], seq(row(Answered))] = ()


COMBINING: Final = record(Combining)
