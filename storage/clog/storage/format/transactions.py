"""What a log keeps of a transaction id, and the positions that were committed with it (FORMAT.md
§11).

The state of an id is part of its writer entry, of kind ``transaction``: its epoch, the last number
that the log knows of, which transaction was committed last (kept apart from the current state), and
how far the readers behind it have come. Large positions are a document of their own, since each
commit repeats the entries in the head.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from clog.storage.errors import CorruptionError
from clog.storage.format import documents
from clog.storage.format.chunks import NONE, columns_of, rows_of, whole
from clog.storage.format.paths import check_inside, is_log_id, page_path
from clog.storage.store.base import Store

TRANSACTION = "transaction"
"""The kind of the writer entries."""
PARTICIPANT = "participant"
"""The kind of those in a log that takes part in a transaction of another log."""
POSITIONS_BYTES_MAX = 1 << 10
"""Positions whose JSON is longer are a document of their own."""
_COLUMNS = ("p", "offset", "version")


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
        value["positions"] = positions_to_json(positions)
    return value


def state_from_json(value: dict[str, Any], *, where: str) -> TransactionState:
    """Reads what `state_to_json` made; whoever reads the entry names the errors."""
    done, at = value["committed"], value.get("positions_at")
    positions: Positions | PositionsAt = positions_from_json(value.get("positions", {}))
    if at is not None:
        positions = PositionsAt(check_inside(at["path"], where=where), whole(at["bytes"]))
    committed = None if done is None else Committed(*map(whole, done))
    return TransactionState(whole(value["epoch"]), whole(value["number"]), committed, positions)


def positions_to_json(positions: Positions) -> dict[str, Any]:
    """Returns positions as in an entry or a document: columns by log id."""
    return {
        log_id: columns_of([(p, at.offset, at.version) for p, at in sorted(mine.items())], _COLUMNS)
        for log_id, mine in sorted(positions.items())
    }


def positions_from_json(value: dict[str, Any]) -> Positions:
    """Reads what `positions_to_json` made; whoever reads the entry names the errors."""
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
    value = positions_to_json(positions)
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
        return positions_from_json(body["positions"])
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise CorruptionError(f"{where} violates the format: {e}") from e
