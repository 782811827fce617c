"""Transactions in the format: what a log keeps of their ids, and of records that are undecided
(FORMAT.md §11). Pure, but for documents of positions.

The state of an id is part of its writer entry, of kind ``transaction``: its epoch, the last number
that the log knows of, which transaction was committed last (kept apart from the current state), and
the *positions*, how far the readers behind it have come. Large positions are a document of their
own, since each commit repeats the entries in the head.

The head lists the transactions that have not ended, so that every reader knows from it alone up to
where all is decided (the *last stable offset*), and every writer whether a transaction is still
open. An end decides all chunks of the transaction at once, and takes one offset in each partition
that it touched: a *marker*. Who decides, and when, is the room `transactions`; what an end does to
chunks, `manifest`.

Whoever reads a document with these parts names the errors.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from clog.storage.errors import CorruptionError
from clog.storage.format import documents
from clog.storage.format.chunks import (
    NONE,
    Chunk,
    TransactionName,
    columns_of,
    natural,
    partition_of,
    rows_of,
    text_from,
    whole,
)
from clog.storage.format.documents import check_inside, is_log_id, page_path
from clog.storage.store.contract import Store

TRANSACTION = "transaction"
"""The kind of the writer entries."""
PARTICIPANT = "participant"
"""The kind of those in a log that takes part in a transaction of another log."""
POSITIONS_BYTES_MAX = 1 << 10
"""Positions whose JSON is longer are a document of their own."""
UNENDED_MAX = 64
"""Transactions of a log that have not ended, at most. Part of the format."""
OPEN = "open"
PREPARED = "prepared"
COMMITTED = "committed"
ABORTED = "aborted"
_OUTCOMES = (COMMITTED, ABORTED)
_STATES = (OPEN, PREPARED, *_OUTCOMES)
_COLUMNS = ("p", "offset", "version")
_MARKER_COLUMNS = ("p", "offset", "id", "epoch", "number", "outcome", "horizon")


@dataclass(frozen=True, slots=True)
class Position:
    """How far a partition was read: ``offset`` is the next one to read, ``version`` that at which
    the ones before were read (S41).
    """

    offset: int
    version: int


Positions = Mapping[str, Mapping[int, Position]]
"""By log id and partition."""
NO_POSITIONS: Positions = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PositionsAt:
    """A document that holds positions."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Committed:
    """A transaction that was committed, and the version that did."""

    epoch: int
    number: int
    version: int


@dataclass(frozen=True, slots=True)
class TransactionState:
    """The state of an id. ``number`` is that of the epoch's last transaction that the log knows of,
    -1 before the first. ``forced``, in a participant: an operator aborted that one by force.
    """

    epoch: int
    number: int = NONE
    committed: Committed | None = None
    positions: Positions | PositionsAt = field(default_factory=dict)
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Unended:
    """A transaction that has not ended.

    Attributes:
        name: names it.
        state: ``open``, ``prepared``, or in the home its outcome, while a participant may lack it.
        timeout_ms: how long after it began anybody may abort it.
        home_url: where its home stood; None in the home itself.
        participants: in the home (log id, URL) of the others.
        version, started_ms: of the commit that brought it.
        first: by partition the offset of its first undecided record.
    """

    name: TransactionName
    state: str
    timeout_ms: int
    home_url: str | None = None
    participants: tuple[tuple[str, str], ...] = ()
    version: int = NONE
    started_ms: int = NONE
    first: Mapping[int, int] = field(default_factory=dict)

    @property
    def is_decided(self) -> bool:
        """Whether its outcome is known, and kept for participants alone."""
        return self.state in _OUTCOMES


@dataclass(frozen=True, slots=True)
class Joining:
    """A transaction that joins the list, or goes on; the objects ``[first, next)`` of the edit's
    `Append` are its own.
    """

    entry: Unended
    first: int = 0
    next: int = 0


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a transaction; ``forced``: by an operator who could not ask its home."""

    name: TransactionName
    outcome: str
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Marker:
    """An offset without a record, where a transaction ended. ``horizon_ms``: from when it may go;
    -1 until a pass has covered it.
    """

    partition: int
    offset: int
    id: str
    epoch: int
    number: int
    outcome: str
    horizon_ms: int = NONE

    @property
    def place(self) -> tuple[int, int]:
        return self.partition, self.offset

    def may_go(self, now_ms: int) -> bool:
        """Tells whether its horizon has passed."""
        return NONE < self.horizon_ms <= now_ms


def find_unended(unended: Sequence[Unended], name: TransactionName) -> Unended | None:
    """Returns the entry of this name; None where the list has none."""
    return next((entry for entry in unended if entry.name == name), None)


def ended(unended: tuple[Unended, ...], ending: Ending) -> tuple[Unended, ...]:
    """Returns the list after an end. The home keeps the outcome while there are participants; the
    end of what was decided takes it out.

    Raises:
        CorruptionError: it was decided otherwise.
    """
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
    return (*others, replace(entry, state=ending.outcome, first={}))


def joined(
    unended: tuple[Unended, ...],
    joining: Joining,
    first: Mapping[int, int],
    *,
    version: int,
    time_ms: int,
) -> tuple[Unended, ...]:
    """Returns the list with a transaction whose first undecided offsets of this commit are
    ``first``.

    Raises:
        CorruptionError: it has ended, or the list is full.
    """
    known = find_unended(unended, joining.entry.name)
    if known is not None and known.is_decided:
        raise CorruptionError(f"an edit adds to {known.name}, which was {known.state}")
    began = (version, time_ms) if known is None else (known.version, known.started_ms)
    before = {} if known is None else known.first
    entry = replace(joining.entry, version=began[0], started_ms=began[1], first={**first, **before})
    made = (*(other for other in unended if other is not known), entry)
    if len(made) > UNENDED_MAX:
        raise CorruptionError(f"{len(made)} transactions have not ended; allowed: {UNENDED_MAX}")
    return made


def with_started_reset(unended: tuple[Unended, ...], time_ms: int) -> tuple[Unended, ...]:
    """Returns the list in which none began later than ``time_ms``."""
    return tuple(replace(entry, started_ms=min(entry.started_ms, time_ms)) for entry in unended)


def markers_after(
    before: tuple[Marker, ...],
    *,
    marked: Sequence[tuple[int, int, int]],
    unmarked: Sequence[tuple[int, int]],
    starts: Sequence[int] | None,
    fresh: Sequence[Marker],
) -> tuple[Marker, ...]:
    """Returns the markers after an edit, in order; ``starts``: the log start offsets, below which
    none are left, where the edit raises some.

    Raises:
        CorruptionError: the edit names one that is not there, or has its horizon, or one twice.
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


def name_to_json(name: TransactionName) -> dict[str, Any]:
    """Returns the four fields that name a transaction."""
    return {"home": name.home, "id": name.id, "epoch": name.epoch, "number": name.number}


def name_from_json(value: dict[str, Any]) -> TransactionName:
    """Reads what `name_to_json` made; whoever reads the document names the errors."""
    return named(value["home"], value["id"], value["epoch"], value["number"])


def named(home: object, transaction_id: object, epoch: object, number: object) -> TransactionName:
    """Returns the name of these parts, checked."""
    if not is_log_id(home):
        raise ValueError(f"a transaction of home {home!r:.80}")
    return TransactionName(str(home), text_from(transaction_id), natural(epoch), natural(number))


def unended_to_json(entry: Unended) -> dict[str, Any]:
    """Returns an entry of the head."""
    participants = [list(one) for one in entry.participants]
    return {
        **name_to_json(entry.name),
        "home_url": entry.home_url,
        "state": entry.state,
        "version": entry.version,
        "started_ms": entry.started_ms,
        "timeout_ms": entry.timeout_ms,
        "first": {str(p): offset for p, offset in sorted(entry.first.items())},
        **({"participants": participants} if participants else {}),
    }


def unended_from_json(value: list[Any], partitions: int) -> tuple[Unended, ...]:
    """Reads the list of a head with so many partitions; whoever reads the head names the errors."""
    if len(value) > UNENDED_MAX:
        raise ValueError(f"{len(value)} transactions that have not ended; allowed: {UNENDED_MAX}")
    entries = tuple(_in_head(entry, partitions) for entry in value)
    if len({entry.name for entry in entries}) < len(entries):
        raise ValueError("a transaction that has not ended is listed twice")
    return entries


def _in_head(value: dict[str, Any], partitions: int) -> Unended:
    first = {partition_of(p): natural(offset) for p, offset in value["first"].items()}
    if unknown := [p for p in first if p >= partitions]:
        raise ValueError(f"undecided records of partitions {unknown} of {partitions}")
    began = natural(value["version"]), natural(value["started_ms"])
    entry = _entry_from_json(value)
    return replace(entry, version=began[0], started_ms=began[1], first=first)


def joining_to_json(joining: Joining) -> dict[str, Any]:
    """Returns an entry of an edit's ``unended``."""
    value = unended_to_json(joining.entry)
    given = {name: v for name, v in value.items() if name not in ("version", "started_ms", "first")}
    return {**given, "objects": [joining.first, joining.next]}


def joining_from_json(value: dict[str, Any], objects: int) -> Joining:
    """Reads what `joining_to_json` made, beside an append of so many objects."""
    first, end = map(whole, value["objects"])
    if not 0 <= first <= end <= objects:
        raise ValueError(f"objects [{first}, {end}) of {objects} are undecided")
    return Joining(_entry_from_json(value), first, end)


def ending_to_json(ending: Ending) -> dict[str, Any]:
    """Returns an entry of an edit's ``ends``."""
    forced = {"forced": True} if ending.forced else {}
    return {**name_to_json(ending.name), "outcome": ending.outcome, **forced}


def ending_from_json(value: dict[str, Any]) -> Ending:
    """Reads what `ending_to_json` made."""
    return Ending(name_from_json(value), _outcome(value["outcome"]), value.get("forced") is True)


def markers_to_json(markers: Sequence[Marker]) -> dict[str, Any]:
    """Returns the columns of a snapshot's ``markers``."""
    rows = [
        (m.partition, m.offset, m.id, m.epoch, m.number, m.outcome, m.horizon_ms) for m in markers
    ]
    return columns_of(rows, _MARKER_COLUMNS)


def markers_from_json(columns: dict[str, Any], partitions: int) -> tuple[Marker, ...]:
    """Reads what `markers_to_json` made, of a log with so many partitions."""
    markers = tuple(
        Marker(
            *(natural(p), natural(offset)),
            text_from(transaction_id),
            *(natural(epoch), natural(number)),
            _outcome(outcome),
            whole(horizon_ms),
        )
        for p, offset, transaction_id, epoch, number, outcome, horizon_ms in rows_of(
            columns, _MARKER_COLUMNS
        )
    )
    if any(a.place >= b.place for a, b in pairwise(markers)):
        raise ValueError("markers that are not in order")
    if any(m.partition >= partitions or m.horizon_ms < NONE for m in markers):
        raise ValueError(f"a marker that none of {partitions} partitions can have")
    return markers


def set_outcomes(chunks: list[Chunk], value: dict[str, Any]) -> None:
    """Sets which of the chunks are undecided or aborted, as a snapshot or a page says."""
    undecided = [(natural(i), name_from_json(name)) for i, name in value.get("undecided", ())]
    aborted = [natural(i) for i in value.get("aborted", ())]
    named = [*(i for i, _ in undecided), *aborted]
    if len(set(named)) < len(named) or any(chunks[i].dead for i in named):
        raise ValueError("a chunk has two outcomes, or dead rows and is undecided or aborted")
    for i, name in undecided:
        chunks[i] = replace(chunks[i], undecided=name)
    for i in aborted:
        chunks[i] = replace(chunks[i], aborted=True)


def _entry_from_json(value: dict[str, Any]) -> Unended:
    if value["state"] not in _STATES:
        raise ValueError(f"a transaction that is {value['state']!r:.80}")
    home_url = value["home_url"]
    return Unended(
        name=name_from_json(value),
        state=value["state"],
        timeout_ms=natural(value["timeout_ms"]),
        home_url=None if home_url is None else text_from(home_url),
        participants=tuple(
            (text_from(i), text_from(url)) for i, url in value.get("participants", ())
        ),
    )


def _outcome(value: object) -> str:
    if value not in _OUTCOMES:
        raise ValueError(f"an outcome {value!r:.80}")
    return str(value)


def state_to_json(state: TransactionState) -> dict[str, Any]:
    """Returns the state as writer entries hold it."""
    done, positions = state.committed, state.positions
    value: dict[str, Any] = {
        "epoch": state.epoch,
        "number": state.number,
        "committed": done and [done.epoch, done.number, done.version],
    }
    if isinstance(positions, PositionsAt):
        value["positions_at"] = {"path": positions.path, "bytes": positions.size_bytes}
    elif positions:
        value["positions"] = _positions_to_json(positions)
    return value


def state_from_json(value: dict[str, Any], *, where: str) -> TransactionState:
    """Reads what `state_to_json` made; whoever reads the entry names the errors."""
    done, at = value["committed"], value.get("positions_at")
    positions: Positions | PositionsAt = _positions_from_json(value.get("positions", {}))
    if at is not None:
        positions = PositionsAt(check_inside(at["path"], where=where), whole(at["bytes"]))
    committed = None if done is None else Committed(*map(whole, done))
    return TransactionState(whole(value["epoch"]), whole(value["number"]), committed, positions)


def _positions_to_json(positions: Positions) -> dict[str, Any]:
    """Returns positions as in an entry or a document: columns by log id."""
    return {
        log_id: columns_of([(p, at.offset, at.version) for p, at in sorted(mine.items())], _COLUMNS)
        for log_id, mine in sorted(positions.items())
    }


def _positions_from_json(value: dict[str, Any]) -> Positions:
    """Reads what `_positions_to_json` made; whoever reads the entry names the errors."""
    if unknown := [name for name in value if not is_log_id(name)]:
        raise ValueError(f"positions in {unknown[0]!r:.80}, which is not a log's id")
    return {
        log_id: {
            whole(p): Position(whole(offset), whole(version))
            for p, offset, version in rows_of(columns, _COLUMNS)
        }
        for log_id, columns in value.items()
    }


def stored_positions(
    store: Store, positions: Positions, *, new_id: Callable[[], str]
) -> Positions | PositionsAt:
    """Returns positions as an entry holds them: large ones are written as a document first."""
    value = _positions_to_json(positions)
    if len(documents.body_json(value)) <= POSITIONS_BYTES_MAX:
        return positions
    path, data = page_path(new_id()), documents.encode("page", {"positions": value})
    store.put(path, data)
    return PositionsAt(path, len(data))


def read_positions(store: Store, positions: Positions | PositionsAt) -> Positions:
    """Returns the positions of an entry; one GET where they are a document.

    Raises:
        FileNotFoundError: newer versions need the document no more, and it was swept.
        CorruptionError: it violates the format.
    """
    if not isinstance(positions, PositionsAt):
        return positions
    where = f"{positions.path} of {store.url}"
    data = documents.fetch(store, "page", positions.path, positions.size_bytes)
    body = documents.decode("page", data, where=where)
    try:
        return _positions_from_json(body["positions"])
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise CorruptionError(f"{where} violates the format: {e}") from e
