"""What a world can do: a row for each public operation, which says what of the API it covers.

A row's function does one operation by one process, tells the world first what it will append
(`World.expect`), and afterwards notes in the model what else must be true. It returns False if
there was nothing to do. Here: choices, appends and transactions; the other rows are in `lives`
(logs come, go and change), `upkeep` (cleaning, cuts, views) and `jobs` (what works on logs).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from kinds import KEYS, drawn, struct_of
from model import LogModel
from world import DAY_MS, HEADER, Process, Row, World, WrongError, check

from clog.storage import Log
from clog.storage.errors import (
    CommitConflictError,
    InvalidInputError,
    NotFoundError,
    TransactionFencedError,
    TransactionTimeoutError,
)

PARTITIONS = 3
KEY_COUNT = 9
IDS = ("shop", "bank", "till", "desk")
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Operation:
    """One row: ``covers`` names what of the public API it calls; a larger ``weight`` comes oftener;
    ``may`` says whether it can be done now.
    """

    name: str
    run: Callable[[World], bool | None]
    covers: tuple[str, ...]
    weight: float
    may: Callable[[World], bool]


OPERATIONS: dict[str, Operation] = {}


def _has_log(w: World) -> bool:
    return bool(w.logs)


def operation(
    *covers: str, weight: float = 1, may: Callable[[World], bool] = _has_log
) -> Callable[[Callable[[World], bool | None]], Callable[[World], bool | None]]:
    """Makes a row of a function."""

    def added(run: Callable[[World], bool | None]) -> Callable[[World], bool | None]:
        OPERATIONS[run.__name__] = Operation(run.__name__, run, covers, weight, may)
        return run

    return added


# --- Choices


def places(w: World, fits: Callable[[LogModel], bool]) -> list[str]:
    """Returns where the logs are of which something is true."""
    return sorted(place for place, model in w.logs.items() if fits(model))


def assigns(model: LogModel) -> bool:
    """Returns whether the log assigns offsets itself."""
    return not model.takes_offsets


def is_open(model: LogModel) -> bool:
    """Returns whether anybody may append."""
    return not model.is_fed


def has(fits: Callable[[LogModel], bool]) -> Callable[[World], bool]:
    """Returns the condition that some log is such."""
    return lambda w: bool(places(w, fits))


def pick(w: World, among: Iterable[str] | None = None) -> tuple[Process, str, LogModel, Log]:
    """Chooses a process, a log, and a handle of it, which may be old."""
    place = w.random.choice(sorted(w.logs if among is None else among))
    process = w.random.choice(w.processes)
    return process, place, w.logs[place], w.handle(process, place)


def key_of(model: LogModel, number: int) -> Any:
    """Returns the key with a number, as the model has it."""
    return f"{model.prefix}{number}".encode() if model.key is None else KEYS[model.key][1](number)


def rows_for(w: World, model: LogModel, *, put: bool = False) -> list[Row]:
    """Draws rows, tombstones too; ``put``: such as a state store takes."""
    made: list[Row] = []
    columns, now_ms = model.columns[-1][1], w.clock.now_ms()
    for _ in range(w.random.choice((1, 1, 2, 3, 6))):
        key = key_of(model, w.random.randrange(KEY_COUNT))
        value: Any = None
        if w.random.random() < 0.8:
            is_bytes = columns is None
            value = _bytes(w) if is_bytes else drawn(w.random, columns, model.strict)
        time_ms: int | None = now_ms - w.random.randrange(1000)
        order = None
        if model.config("compaction.strategy") == "header":
            order = w.random.randrange(1 << 40)
        if model.config("compaction.late") == "drop":  # What is late by then is dropped.
            w.ticks += 1
            time_ms, order = now_ms, w.ticks
        if model.config("message.timestamp.type") == "LogAppendTime" or put:
            time_ms = None
        made.append(Row(None, key, value, time_ms, order))
    if model.is_ordered:
        made = [row for row in made if _is_orderly(row, [*model.records, *made], model)]
    return made


def _bytes(w: World) -> bytes:
    return f"v{w.random.randrange(1000)}".encode() * w.random.choice((1, 1, 1, 20))


def _is_orderly(row: Row, others: Iterable[Any], model: LogModel) -> bool:
    """Returns whether no tombstone of the key is as late: what comes after it may be refused."""
    if model.config("compaction.strategy") == "header":
        return all(
            r.value is not None or r.order is None or r.order < (row.order or 0)
            for r in others
            if r.key == row.key and r is not row
        )
    times = [
        r.timestamp_ms if not isinstance(r, Row) else r.time_ms
        for r in others
        if r.key == row.key and r is not row and r.value is None
    ]
    return all(time < (row.time_ms or 0) for time in times)


def is_late(model: LogModel, rows: list[Row]) -> bool:
    """Returns whether a tombstone that came since may have beaten one of the rows, and gone."""
    return model.is_ordered and not all(_is_orderly(r, model.records, model) for r in rows)


@dataclass(frozen=True)
class Given:
    """Rows in the form in which an append gets them."""

    data: Any
    partition: list[int] | None
    offsets: "np.ndarray[Any, Any] | None" = None

    @property
    def how(self) -> dict[str, Any]:
        """The arguments beside the data."""
        return {"partition": self.partition} | (
            {} if self.offsets is None else {"offsets": self.offsets}
        )


def given(w: World, model: LogModel, rows: list[Row]) -> tuple[Given, list[Row]]:
    """Returns rows as an append gets them, and as `World.expect` does: in the partitions that the
    writer asks for, if any, and at the offsets that it gives.
    """
    rows = [row._replace(partition=_partition(model, row)) for row in rows]
    partition = None if model.is_hashed else [int(row.partition or 0) for row in rows]
    offsets = None
    if model.takes_offsets:
        ends = list(model.ends[-1][1])
        placed = []
        for row in rows:
            p = int(row.partition or 0)
            ends[p] += w.random.choice((0, 0, 1, 5))
            placed.append(row._replace(offset=ends[p]))
            ends[p] += 1
        rows = placed
        offsets = np.array([row.offset for row in rows], np.int64)
    data, timed = _form(w, model, rows)
    return Given(data, partition, offsets), rows if timed else [
        row._replace(time_ms=None) for row in rows
    ]


def _partition(model: LogModel, row: Row) -> int | None:
    return None if model.is_hashed else sum(str(row.key).encode()) % model.partitions


def _form(w: World, model: LogModel, rows: list[Row]) -> tuple[Any, bool]:
    """Returns rows as dicts, as a table of Arrow, as a frame of Polars, or as plain columns; and
    whether they came with their times.
    """
    chance, names = w.random.random(), model.names
    is_full = all(row.value is not None and row.order is None for row in rows)
    if names and rows and chance < 0.6 and is_full:
        keys = [row.key if isinstance(row.key, tuple) else (row.key,) for row in rows]
        return [
            dict(zip(names, key, strict=True)) | row.value
            for key, row in zip(keys, rows, strict=True)
        ], False
    dicts = [as_dict(model, row) for row in rows]
    if chance < 0.8 or not rows or model.strict:
        return dicts, True
    table = pa.Table.from_pylist(dicts, schema_for(model, dicts))
    if chance < 0.9 or "float16" in str(table.schema):
        return table, True
    return (pl.DataFrame(table) if model.key != "pair" else table), True


def as_dict(model: LogModel, row: Row) -> dict[str, Any]:
    """Returns a row as `Log.append` takes it in a list."""
    key = dict(zip(("a", "b"), row.key, strict=True)) if model.key == "pair" else row.key
    made = {"key": key, "value": row.value}
    if row.time_ms is not None:
        made["timestamp"] = row.time_ms
    if row.order is not None:
        made["headers"] = [(HEADER, row.order.to_bytes(8, "big"))]
    return made


def schema_for(model: LogModel, dicts: list[dict[str, Any]]) -> pa.Schema:
    """Returns the types of rows that become a table of Arrow."""
    columns = model.columns[-1][1]
    fields = [
        pa.field("key", pa.binary() if model.key is None else KEYS[model.key][0]),
        pa.field("value", pa.binary() if columns is None else struct_of(columns)),
    ]
    if "timestamp" in dicts[0]:
        fields.append(pa.field("timestamp", pa.timestamp("ms", "UTC")))
    if "headers" in dicts[0]:
        pair = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
        fields.append(pa.field("headers", pa.list_(pair)))
        for row in dicts:
            row["headers"] = [dict(zip(("key", "value"), h, strict=True)) for h in row["headers"]]
    return pa.schema(fields)


def to_append(w: World, place: str, model: LogModel, deal: Any = None) -> Given:
    """Draws the rows of one append, and notes that they are expected."""
    as_given, rows = given(w, model, rows_for(w, model))
    w.expect(place, rows, deal)
    return as_given


# --- Appends


@operation("Log.append", weight=5, may=has(assigns))
def append(w: World) -> None:
    process, place, model, log = pick(w, places(w, assigns))
    rows = to_append(w, place, model)
    with w.calling(process):
        log.append(rows.data, **rows.how)


@operation("Log.append", "Log.sequence", weight=3, may=has(is_open))
def append_as_producer(w: World) -> bool | None:
    """An append with a sequence, perhaps repeated by another process; a mirror's, too."""
    process, place, model, log = pick(w, places(w, is_open))
    id = w.random.choice(IDS)
    rows = to_append(w, place, model)
    last = w.fresh(place).sequence(id, kind="producer")
    producer = (id, 0 if last is None else last + 1)
    if not len(rows.data):
        return False
    with w.calling(process):
        result = log.append(rows.data, producer=producer, **rows.how)
        if w.random.random() < 0.3:
            again = w.handle(process, place).append(rows.data, producer=producer, **rows.how)
            check(again.offsets == result.offsets, "a repeated append: {} {}", again, result)
    if w.failed and w.random.random() < 0.5:  # Retried by whoever is there.
        process = w.random.choice(w.processes)
        log, w.failed = w.handle(process, place), True
        while w.failed:
            with w.calling(process, is_sound=True):
                log.append(rows.data, producer=producer, **rows.how)
    return None


@operation("Log.append")
def append_nonsense(w: World) -> None:
    """What is refused leaves nothing, and says so."""
    _, _, model, log = pick(w)
    wrong: list[dict[str, Any]] = [
        {"key": b"k", "value": b"x", "colour": 1},
        {"key": 1.5, "value": {"nothing": 1}},
    ]
    if "compact" in model.config("cleanup.policy"):
        wrong.append({"key": None, "value": b"x"})
    if model.columns[-1][1] is None and not model.is_ordered:
        wrong.append({"key": b"k", "value": bytes(int(model.config("max.message.bytes")))})
    before, row = log.version, w.random.choice(wrong)
    how: dict[str, Any] = {"partition": 0}
    if model.takes_offsets:
        how |= {"offsets": [model.ends[-1][1][0]], "producer": ("nonsense", 0)}
    try:
        log.append([row], **how)
    except InvalidInputError:
        check(log.version == before, "a refused append committed")
    else:
        raise WrongError(f"{row!s:.80} was accepted by {log}")


@operation("Log.append", weight=0.5)
def append_as_if_offsets_were_other(w: World) -> None:
    """A log that takes offsets gives none, and the other way round."""
    _, _, model, log = pick(w)
    before, rows = log.version, rows_for(w, model)
    offsets = None if model.takes_offsets else list(range(len(rows)))
    try:
        log.append([as_dict(model, row) for row in rows], 0, ("wrong", 0), offsets=offsets)
    except InvalidInputError:
        check(log.version == before, "a refused append committed")
    else:
        check(not rows, "{} took offsets: {}", log, offsets)


@operation("Log.delete", weight=2, may=has(assigns))
def delete(w: World) -> bool | None:
    """Keys are deleted, whether they are there or not."""
    process, place, model, log = pick(w, places(w, assigns))
    if not model.is_hashed or model.is_ordered:
        return False  # Its tombstones go where the hash says; others take an order of the log's.
    keys = sorted({row.key for row in rows_for(w, model)}, key=str)
    w.expect(place, [Row(None, key, None) for key in keys])
    with w.calling(process):
        log.delete(keys)
    return None


# --- Transactions


@dataclass(eq=False)
class Begun:
    """A transaction that somebody holds."""

    process: Process
    t: Any
    home: str
    places: list[str]
    visible: bool
    rows: dict[str, list[Row]]


ENDED = (TransactionFencedError, TransactionTimeoutError)


@operation("Log.transaction", *(f"Transaction.{n}" for n in ("id", "epoch", "number")), weight=3)
def begin(w: World) -> bool | None:
    return _begin(w, visible=False)


@operation("Log.transaction", "Transaction.started_ms", "Transaction.timeout_ms", weight=2)
def begin_visibly(w: World) -> bool | None:
    return _begin(w, visible=True)


def _begin(w: World, *, visible: bool) -> bool | None:
    held = {one.home for one in w.open if one.visible and one.home in w.logs}
    together = visible and held and w.random.random() < 0.7  # They meet in one log.
    process, place, model, log = pick(w, held if together else w.logs)
    if model.is_fed or (visible and model.takes_offsets):
        return False
    id, timeout_ms = w.random.choice(IDS), w.random.choice((60_000, DAY_MS))
    try:
        with w.calling(process):
            t = log.transaction(id, timeout_ms=timeout_ms, visible=visible)
            check((t.id, t.timeout_ms) == (id, timeout_ms), "{} is another", t)
            check(t.started_ms <= w.clock.now_ms() and t.epoch >= 0 and t.number >= 0, "{}", t)
    except InvalidInputError:
        return False  # This handle has one open under the id.
    except TransactionFencedError:
        return False  # This handle lost the id; it must open the log again.
    if not w.failed:
        w.open.append(Begun(process, t, place, [place], visible, {}))
    return None


def _may_append(w: World) -> bool:
    return any(begun.home in w.logs for begun in w.open)


@operation("Transaction.append", "Transaction.is_open", weight=5, may=_may_append)
def append_in_transaction(w: World) -> bool | None:
    begun = w.random.choice([one for one in w.open if one.home in w.logs])
    others = places(w, assigns)
    place = begun.home if begun.visible or not others else w.random.choice(others)
    if place != begun.home and begun.t.is_open and w.logs[begun.home].takes_offsets:
        place = begun.home
    model = w.logs[place]
    if model.takes_offsets and place in begun.rows:
        return False  # Once: the next offsets would come after those of the first.
    deal = w.deal(w.logs[begun.home].log_id, begun.t)
    rows, expected = given(w, model, rows_for(w, model))
    if begun.visible:
        w.expect(place, expected, deal)
    how = {} if place == begun.home else {"log": w.handle(begun.process, place)}
    try:
        with w.calling(begun.process):
            begun.t.append(rows.data, **rows.how, **how)
    except ENDED:
        w.expected = []
        _leave(w, begun)
        return None
    except CommitConflictError as e:  # Readers have waited for others for too long.
        check(begun.visible and "append again later" in str(e), "append: {}", e)
        w.expected = []
        return None
    except InvalidInputError:  # Its outcome is unknown since a failure, so nothing may be added.
        w.expected = []
        return False
    if w.failed and begun in w.open:
        _leave(w, begun)  # It can only be aborted, which its timeout or a takeover does.
    elif not w.failed and not begun.visible:
        begun.rows.setdefault(place, []).extend(expected)
        begun.places = sorted({*begun.places, place})
    return None


@operation("Transaction.commit", "Transaction.result", weight=4, may=lambda w: bool(w.open))
def commit(w: World) -> bool | None:
    begun = w.random.choice(w.open)
    _leave(w, begun)
    if any(place not in w.logs for place in begun.places):
        return False
    if any(is_late(w.logs[place], rows) for place, rows in begun.rows.items()):
        with w.calling(begun.process):
            begun.t.abort()
        return False
    deal = w.deal(w.logs[begun.home].log_id, begun.t)
    for place, rows in begun.rows.items():
        w.expect(place, _now(w, place, rows), deal)
    try:
        with w.calling(begun.process):
            begun.t.commit()
    except (*ENDED, CommitConflictError):
        w.failed = True
    except InvalidInputError as e:  # The log's configs, offsets or columns are others since.
        models = [w.logs[place] for place in begun.places]
        is_widened = any(len(m.columns) > 1 for m in models) and "was widened" in str(e)
        check(is_widened or any(m.is_ordered or m.was_mirror for m in models), "commit: {}", e)
        w.failed = True
    return None


def _now(w: World, place: str, rows: list[Row]) -> list[Row]:
    """Returns rows as they are expected of a commit that comes now."""
    if w.logs[place].config("message.timestamp.type") == "LogAppendTime":
        return [row._replace(time_ms=None) for row in rows]
    return rows


@operation("Transaction.abort", weight=1.5, may=lambda w: bool(w.open))
def abort(w: World) -> None:
    begun = w.random.choice(w.open)
    _leave(w, begun)
    with w.calling(begun.process):
        begun.t.abort()


@operation("Log.transactions", "Log.abort_transaction", weight=1)
def abort_by_id(w: World) -> bool | None:
    """An operator ends what somebody holds, here or in another log."""
    held = {place for begun in w.open for place in begun.places if place in w.logs}
    process, _place, _, log = pick(w, held or w.logs)
    listed = log.transactions()
    if not listed:
        return False
    one = w.random.choice(listed)
    try:
        with w.calling(process):
            log.abort_transaction(one.id)
    except (InvalidInputError, NotFoundError) as e:
        check(bool(w.gone) or "ended" in str(e) or "no open" in str(e), "abort: {}", e)
    return None


def _leave(w: World, begun: Begun) -> None:
    w.open = [one for one in w.open if one is not begun]
