"""What a world can do: a row for each public operation, which says what of the API it covers.

A row's function does one operation by one process, tells the world first what it will append
(`World.expect`), and afterwards notes in the model what else must be true.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from model import Erasing, LogModel
from world import DAY_MS, PLACES, Process, World, WrongError, check

from clog.cleaner import Cleaner
from clog.state import StateStore
from clog.storage import Log, drop_snapshot, snapshot, snapshots
from clog.storage.errors import (
    AlreadyExistsError,
    CommitConflictError,
    InvalidInputError,
    NotFoundError,
    TransactionFencedError,
    TransactionTimeoutError,
)
from clog.storage.store import open_store
from clog_testing.crash import discard

PARTITIONS = 3
KEYS = 9
IDS = ("shop", "bank")
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Operation:
    """One row: ``covers`` names what of the public API it calls; a larger ``weight`` comes oftener;
    ``may`` says whether it can be done now.
    """

    name: str
    run: Callable[[World], None]
    covers: tuple[str, ...]
    weight: float
    may: Callable[[World], bool]


OPERATIONS: dict[str, Operation] = {}


def _has_log(w: World) -> bool:
    return bool(w.logs)


def operation(
    *covers: str, weight: float = 1, may: Callable[[World], bool] = _has_log
) -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    """Makes a row of a function."""

    def added(run: Callable[[World], None]) -> Callable[[World], None]:
        OPERATIONS[run.__name__] = Operation(run.__name__, run, covers, weight, may)
        return run

    return added


# --- Choices


def pick(w: World, among: Any = None) -> tuple[Process, str, LogModel, Log]:
    """Chooses a process, a log, and a handle of it, which may be old."""
    place = w.random.choice(sorted(among or w.logs))
    process = w.random.choice(w.processes)
    return process, place, w.logs[place], w.handle(process, place)


def rows_for(w: World, model: LogModel) -> list[dict[str, Any]]:
    """Draws rows as `Log.append` takes them, with what the model needs to know of each."""
    drawn = []
    columns = model.columns[-1][1]
    now = w.clock.now_ms()
    for _ in range(w.random.choice((1, 1, 2, 3, 6))):
        number = w.random.randrange(KEYS)
        key: Any = f"k{number}".encode() if columns is None else number
        value: Any = None
        if w.random.random() < 0.8:
            value = _value(w, columns)
        drawn.append({"key": key, "value": value, "timestamp": now - w.random.randrange(1000)})
    if model.config("compaction.strategy", model.version) == "timestamp":
        drawn = [row for row in drawn if _is_orderly(row, model)]
    return drawn


def _is_orderly(row: dict[str, Any], model: LogModel) -> bool:
    """Returns whether no tombstone of the key is as late: what comes after it may be refused."""
    return all(
        r.value is not None or r.timestamp_ms < row["timestamp"]
        for r in model.records
        if r.key == row["key"]
    )


def _value(w: World, columns: Any) -> Any:
    if columns is None:
        return f"v{w.random.randrange(1000)}".encode()
    made = {}
    for name, read in columns.items():
        number = w.random.choice((0, 1, 16_777_217, -3, 1 << 40))
        if read is float:
            made[name] = w.random.choice((0.1, -0.0, 1e300, float("nan"), 5.0))
        elif read is _float32:
            made[name] = w.random.choice((0.5, -0.0, 3.0))
        elif read is str:
            made[name] = w.random.choice(("Riga", "Žilina", "", "x" * 130))
        else:
            made[name] = number if read is _int64 else number % 1000
    return made


def _int32(value: Any) -> int:
    return int(value)


def _int64(value: Any) -> int:
    return int(value)


def _float32(value: Any) -> float:
    return float(value)


TYPES: dict[Any, pa.DataType] = {
    _int32: pa.int32(),
    _int64: pa.int64(),
    _float32: pa.float32(),
    float: pa.float64(),
    str: pa.string(),
}
WIDER = {_int32: _int64, _float32: float}


def units(
    w: World, place: str, model: LogModel, rows: list[dict[str, Any]], deal: Any = None
) -> Any:
    """Notes the rows of one append; returns its data and partitions."""
    w.expect(place, expected(model, rows), deal)
    return rows, partitions_for(model, rows)


def partitions_for(model: LogModel, rows: list[dict[str, Any]]) -> list[int] | None:
    """Returns the partitions that the writer of these rows asks for; None: those of the hash."""
    if model.is_hashed:
        return None
    return [sum(str(row["key"]).encode()) % PARTITIONS for row in rows]


def expected(model: LogModel, rows: list[dict[str, Any]]) -> list[Any]:
    """Returns rows as `World.expect` takes them."""
    given = partitions_for(model, rows) or [None] * len(rows)
    return [(p, r["key"], r["value"], r["timestamp"]) for p, r in zip(given, rows, strict=True)]


# --- Logs come and go


@operation("Log.create", weight=2, may=lambda w: len(w.logs) < len(PLACES))
def create(w: World) -> None:
    place = w.random.choice(sorted(set(PLACES) - w.logs.keys()))
    config: dict[str, Any] = {
        "segment.bytes": w.random.choice((60, 400, 1 << 20)),
        "min.cleanable.dirty.ratio": w.random.choice((0, 0.5)),
        "delete.retention.ms": w.random.choice((0, HOUR_MS, DAY_MS)),
        "file.delete.delay.ms": w.random.choice((1000, DAY_MS)),
        "dead.rows.delay.ms": w.random.choice((0, 7 * DAY_MS)),
    }
    kind = w.random.choice(("bytes", "columns", "timestamp", "delete"))
    if kind == "timestamp":
        config["compaction.strategy"] = "timestamp"
    if kind == "delete":
        config |= {"cleanup.policy": "compact,delete", "retention.ms": 30 * DAY_MS}
    process = w.random.choice(w.processes)
    columns = {"x": _float32, "n": _int32, "city": str} if kind == "columns" else None
    how: dict[str, Any] = {}
    if columns is not None:
        value = pa.struct([(name, TYPES[read]) for name, read in columns.items()])
        how["schema"] = {"key": pa.int64(), "value": value}
    elif w.random.random() < 0.5:
        how["features"] = ["superseded-rows"]
    log = Log.create(process.stores[place], PARTITIONS, config, clock=w.clock, ids=w.ids, **how)
    process.handles.setdefault(place, []).append(log)
    model = LogModel(log.id, PARTITIONS, is_hashed=w.random.random() < 0.7)
    model.starts.append((0, (0,) * PARTITIONS))
    model.ends.append((0, (0,) * PARTITIONS))
    model.columns.append((0, columns))
    model.configs.append((0, {name: str(value) for name, value in config.items()}))
    w.logs[place] = model


@operation(weight=0.15)
def delete_log(w: World) -> None:
    from clog.storage.administration import delete_log as delete

    place = w.random.choice(sorted(w.logs))
    delete(open_store(w.url(place)))
    discard(open_store(w.url(place)))
    w.gone.append(w.logs.pop(place))
    w.open = [begun for begun in w.open if place not in begun.places]
    w.cuts = {name: cut for name, cut in w.cuts.items() if place not in cut.places}


@operation("Log.open", weight=0.5)
def reopen(w: World) -> None:
    process, place, _, _ = pick(w)
    process.handles[place] = [Log.open(process.stores[place], clock=w.clock, ids=w.ids)]


# --- Appends


@operation("Log.append", weight=8)
def append(w: World) -> None:
    process, place, model, log = pick(w)
    data, given = units(w, place, model, rows_for(w, model))
    with w.calling(process):
        log.append(data, partition=given)


@operation("Log.append", "Log.sequence", weight=3)
def append_as_producer(w: World) -> None:
    """An append with a sequence, perhaps repeated by another process."""
    process, place, model, log = pick(w)
    id = w.random.choice(IDS)
    data, given = units(w, place, model, rows_for(w, model))
    last = w.fresh(place).sequence(id, kind="producer")
    sequence = 0 if last is None else last + 1
    if not data:
        return
    with w.calling(process):
        result = log.append(data, partition=given, producer=(id, sequence))
        if w.random.random() < 0.3:
            again = w.handle(process, place).append(data, partition=given, producer=(id, sequence))
            check(again.offsets == result.offsets, "a repeated append: {} {}", again, result)
    if w.failed and w.random.random() < 0.5:  # Retried by whoever is there.
        log = w.handle(w.random.choice(w.processes), place)
        log.append(data, partition=given, producer=(id, sequence))
        w.failed = False


@operation("Log.append", weight=0.5)
def append_nonsense(w: World) -> None:
    """What is refused leaves nothing, and says so."""
    _, _, _model, log = pick(w)
    wrong: Any = w.random.choice(
        (
            [{"key": None, "value": b"x"}],
            [{"key": b"k", "value": b"x", "colour": 1}],
            [{"key": 1.5, "value": {"nothing": 1}}],
        )
    )
    before = log.version
    try:
        log.append(wrong, partition=0)
    except InvalidInputError:
        check(log.version == before, "a refused append committed")
    else:
        raise WrongError(f"{wrong} was accepted by {log}")


# --- Transactions


@dataclass(eq=False)
class Begun:
    """A transaction that somebody holds."""

    process: Process
    t: Any
    home: str
    places: list[str]
    visible: bool
    rows: dict[str, list[tuple[int, Any, Any, int]]]


@operation("Log.transaction", weight=3)
def begin(w: World) -> None:
    process, place, _, log = pick(w)
    visible = w.random.random() < 0.5
    id = w.random.choice(IDS)
    try:
        with w.calling(process):
            t = log.transaction(id, timeout_ms=w.random.choice((60_000, DAY_MS)), visible=visible)
    except InvalidInputError:
        return  # This handle has one open under the id.
    except TransactionFencedError:
        return  # This handle lost the id; it must open the log again.
    if not w.failed:
        w.open.append(Begun(process, t, place, [place], visible, {}))


@operation("Transaction.append", weight=5, may=lambda w: bool(w.open))
def append_in_transaction(w: World) -> None:
    begun = w.random.choice(w.open)
    place = begun.home if begun.visible else w.random.choice(sorted(w.logs))
    if place not in w.logs or begun.home not in w.logs:
        return
    model = w.logs[place]
    rows = rows_for(w, model)
    if begun.visible:
        data, given = units(w, place, model, rows, w.deal(w.logs[begun.home].log_id, begun.t))
    else:
        data, given = rows, partitions_for(model, rows)
    how = {} if place == begun.home else {"log": w.handle(begun.process, place)}
    try:
        with w.calling(begun.process):
            begun.t.append(data, partition=given, **how)
    except (TransactionFencedError, TransactionTimeoutError):
        w.expected = []
        _leave(w, begun)
        return
    except InvalidInputError:  # Its outcome is unknown since a failure, so nothing may be added.
        w.expected = []
        return
    if begun.visible and w.failed and begun in w.open:
        _leave(w, begun)  # It can only be aborted, which its timeout or a takeover does.
    elif not w.failed and not begun.visible:
        begun.rows.setdefault(place, []).extend(expected(model, rows))
        begun.places = sorted({*begun.places, place})
    elif w.failed and begun in w.open:
        _leave(w, begun)


@operation("Transaction.commit", "Transaction.result", weight=4, may=lambda w: bool(w.open))
def commit(w: World) -> None:
    begun = w.random.choice(w.open)
    _leave(w, begun)
    if any(place not in w.logs for place in begun.places):
        return
    home = w.logs[begun.home].log_id
    deal = w.deal(home, begun.t)
    for place, rows in begun.rows.items():
        w.expect(place, rows, deal)
    try:
        with w.calling(begun.process):
            begun.t.commit()
    except (TransactionFencedError, TransactionTimeoutError):
        w.failed = True
        return
    except CommitConflictError:
        w.failed = True
        return


@operation("Transaction.abort", weight=1.5, may=lambda w: bool(w.open))
def abort(w: World) -> None:
    begun = w.random.choice(w.open)
    _leave(w, begun)
    with w.calling(begun.process):
        begun.t.abort()


@operation("Log.transactions", "Log.abort_transaction", weight=1)
def abort_by_id(w: World) -> None:
    process, _place, _, log = pick(w)
    listed = log.transactions()
    if not listed:
        return
    one = w.random.choice(listed)
    try:
        with w.calling(process):
            log.abort_transaction(one.id)
    except (InvalidInputError, NotFoundError) as e:
        check(bool(w.gone) or "ended" in str(e) or "no open" in str(e), "abort: {}", e)


def _leave(w: World, begun: Begun) -> None:
    w.open = [one for one in w.open if one is not begun]


@operation("Transaction.positions", "Log.positions", weight=1.5)
def append_with_positions(w: World) -> None:
    """Records, and how far another log was read: both or neither."""
    process, place, model, log = pick(w)
    source = w.random.choice(sorted(w.logs))
    at = w.fresh(source).stable_offsets()
    id = "copy"
    before = w.fresh(place).positions(id)
    data, given = units(w, place, model, rows_for(w, model))
    try:
        with w.calling(process), log.transaction(id, timeout_ms=DAY_MS) as t:
            t.append(data, partition=given)
            t.positions(w.fresh(source), at)
    except (TransactionFencedError, TransactionTimeoutError, InvalidInputError):
        w.failed = True
    except NotFoundError as e:
        check("missed" in str(e) or "tombstone" in str(e), "positions: {}", e)
        w.failed = True
    after = w.fresh(place).positions(id)
    wanted = before | {w.logs[source].log_id: at}
    if wanted != before:
        w.expected[-1].settles = after == wanted
    check(after in ((before, wanted) if w.failed else (wanted,)), "positions {} {}", after, wanted)


# --- A state store


@dataclass(eq=False)
class Stored:
    """A state store of a log, with what it holds that is not committed."""

    store: Any
    place: str
    model: LogModel


def _may_store(w: World) -> bool:
    return any(m.is_hashed and m.columns[-1][1] is None for m in w.logs.values())


@operation(
    *("StateStore.put", "StateStore.delete", "StateStore.commit", "StateStore.close"),
    *("StateStore.take_over", "StateStore.get", "StateStore.scan", "StateStore.rollback"),
    weight=2,
    may=_may_store,
)
def put_state(w: World) -> None:
    """Opens the store with the file that the last one left, puts and deletes, and commits."""
    places = [p for p, m in w.logs.items() if m.is_hashed and m.columns[-1][1] is None]
    process, place, model, _ = pick(w, places)
    if model.config("compaction.strategy", model.version) == "timestamp":
        return
    folder = w.folder / "store"
    with (
        w.calling(process),
        StateStore(process.stores[place], folder, "app", clock=w.clock, ids=w.ids) as store,
    ):
        shown = dict(store.scan())
        w.observe_table(place, shown)
        put = {row["key"]: row["value"] for row in rows_for(w, model)}
        for key, value in put.items():
            if value is None:
                store.delete(key)
            else:
                store.put(key, value)
            check(store.get(key) == value, "a store shows {} of {}", store.get(key), key)
        if w.random.random() < 0.2:
            store.rollback()
            check(dict(store.scan()) == shown, "a store after its rollback")
            return
        w.expect(place, [(None, k, v, None) for k, v in put.items()])
        store.commit()


# --- Schema and configs


def _typed(w: World) -> list[str]:
    return [place for place, model in w.logs.items() if model.columns[-1][1] is not None]


@operation("Log.evolve", "Log.schema", weight=2, may=lambda w: bool(_typed(w)))
def evolve(w: World) -> None:
    process, place, model, log = pick(w, _typed(w))
    columns = dict(model.columns[-1][1])
    narrow = [name for name, read in columns.items() if read in WIDER]
    how: dict[str, Any] = {}
    if narrow and w.random.random() < 0.6:
        name = w.random.choice(sorted(narrow))
        columns[name] = WIDER[columns[name]]
        how["widen"] = {f"value.{name}": TYPES[columns[name]]}
    elif len(columns) < 6:
        name, read = f"c{len(columns)}", w.random.choice((_int32, _float32, str))
        columns[name] = read
        how["add"] = {f"value.{name}": TYPES[read]}
    else:
        return
    with w.calling(process):
        log.evolve(**how)
    fresh = w.fresh(place)
    if (
        w.failed
        and {f.name for f in fresh.schema.field("value").type} == {*model.columns[-1][1]}
        and all(
            fresh.schema.field("value").type.field(n).type == TYPES[r]
            for n, r in model.columns[-1][1].items()
        )
    ):
        return
    model.columns.append((fresh.version, columns))


@operation("Log.evolve", weight=0.5, may=lambda w: bool(_typed(w)))
def evolve_wrongly(w: World) -> None:
    """A name that differs from another in case alone, another kind of type, no such field."""
    _, _, _model, log = pick(w, _typed(w))
    before = log.version
    how: Any = w.random.choice(
        (
            {"add": {"value.CITY": pa.int64()}},
            {"widen": {"value.city": pa.int64()}},
            {"widen": {"value.nothing": pa.int64()}},
        )
    )
    try:
        log.evolve(**how)
    except InvalidInputError:
        check(log.version == before, "a refused evolution committed")
    else:
        raise WrongError(f"evolve({how}) was accepted")


@operation("Log.alter", "Log.config", weight=1)
def alter(w: World) -> None:
    process, place, model, log = pick(w)
    name, value = w.random.choice(
        (
            ("segment.bytes", w.random.choice((60, 1 << 20))),
            ("delete.retention.ms", w.random.choice((0, HOUR_MS))),
            ("min.compaction.lag.ms", w.random.choice((0, HOUR_MS))),
            ("dead.rows.delay.ms", w.random.choice((0, DAY_MS))),
        )
    )
    with w.calling(process):
        log.alter({name: value})
    if w.fresh(place).config[name] == str(value):
        model.configs.append((w.fresh(place).version, model.configs[-1][1] | {name: str(value)}))
    else:
        check(w.failed, "alter of {} is not there", name)


@operation("Log.upgrade", weight=0.3)
def upgrade(w: World) -> None:
    process, _, _, log = pick(w)
    with w.calling(process):
        log.upgrade(w.random.choice(([], ["transactions"], ["proposals"])))


# --- What becomes smaller


@operation("Log.roll", weight=2)
def roll(w: World) -> None:
    process, _, _, log = pick(w)
    with w.calling(process):
        log.roll(w.random.choice((None, 0)))


@operation("Cleaner.run_once", weight=6)
def clean(w: World) -> None:
    process, place, model, log = pick(w)
    model.is_cleaned = True
    before = model.starts[-1][1]
    with w.calling(process):
        Cleaner(log).run_once(force=w.random.random() < 0.7)
    if "delete" not in str(model.configs[-1][1].get("cleanup.policy")):
        after = tuple(w.fresh(place).start_offsets().values())
        check(after == before, "a compacted log lost its start: {} {}", before, after)


@operation("Log.delete_records", "Log.start_offsets", weight=1)
def delete_records(w: World) -> None:
    process, _place, model, log = pick(w)
    if model.config("compaction.strategy", model.version) == "timestamp":
        return  # Refused: the log start would bring losers back.
    p = w.random.randrange(PARTITIONS)
    end = model.ends[-1][1][p]
    offset = w.random.choice((-1, w.random.randint(0, end)))
    with w.calling(process):
        low = log.delete_records({p: offset})
        wanted = max(model.starts[-1][1][p], end if offset == -1 else offset)
        check(low == {p: wanted}, "delete_records({}) of {} gave {}", offset, wanted, low)


@operation("Log.erase", "Log.erasures", weight=0.7)
def erase(w: World) -> None:
    process, place, model, log = pick(w)
    keys = sorted({row["key"] for row in rows_for(w, model)})
    if not keys or not model.is_hashed:
        return  # Its tombstones go to the partitions of the hash.
    notify = w.random.random() < 0.5
    ends = model.ends[-1][1]
    if notify:
        w.expect(place, [(None, key, None, None) for key in keys])
    model.erased.append(Erasing(model.version, frozenset(keys), ends))
    try:
        with w.calling(process):
            log.erase(keys, notify=notify)
    except (InvalidInputError, CommitConflictError):
        w.failed = True
        model.erased.pop()


# --- Cuts


@dataclass(frozen=True)
class NamedCut:
    cut: Any
    places: tuple[str, ...]


@operation("snapshot", "snapshots", weight=2)
def name_cut(w: World) -> None:
    home = w.random.choice(sorted(w.logs))
    name = w.random.choice(("a", "b", None))
    try:
        cut = snapshot(w.url(home), name, clock=w.clock, ids=w.ids)
    except AlreadyExistsError:
        check(name in [c.name for c in snapshots(w.url(home))], "no cut {}", name)
        return
    except CommitConflictError:
        return
    except NotFoundError as e:
        check(bool(w.gone), "a member is missing: {}", e)
        return
    places = tuple(sorted(map(w.place_of, cut.logs)))
    w.cuts[f"{home}#{name}"] = NamedCut(cut, places)


@operation("drop_snapshot", weight=0.7, may=lambda w: bool(w.cuts))
def drop_cut(w: World) -> None:
    full = w.random.choice(sorted(w.cuts))
    w.cuts.pop(full)
    home, _, name = full.partition("#")
    if name != "None" and home in w.logs:
        try:
            drop_snapshot(w.url(home), name)
        except NotFoundError:
            check(bool(w.gone), "a cut is missing: {}", full)


# --- Views


@operation("Log.publish", weight=1)
def publish(w: World) -> None:
    process, _, model, log = pick(w)
    name = w.random.choice(("delta", "iceberg"))
    with w.calling(process):
        log.publish(name)
    model.views.add(name)
    model.withdrawn.discard(name)


@operation("Log.withdraw", weight=0.3)
def withdraw(w: World) -> None:
    process, _, model, log = pick(w)
    name = w.random.choice(("delta", "iceberg"))
    try:
        with w.calling(process):
            log.withdraw(name)
    except NotFoundError:
        check(name not in model.views, "the view {} is missing", name)
        return
    model.withdrawn.add(name)
    if w.failed:
        model.views.discard(name)  # Either.


# --- Time


@operation(weight=3, may=lambda _: True)
def wait(w: World) -> None:
    w.later(w.random.choice((1000, 20_000, HOUR_MS, DAY_MS, 3 * DAY_MS)))
