"""How logs come, change and go: rows of `operations`, and the configs that they draw."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from kinds import KEYS, KINDS, Columns, Kind, paths, struct_of, with_path
from model import LogModel, Record
from operations import HOUR_MS, PARTITIONS, operation, pick, places
from world import DAY_MS, HEADER, PLACES, World, WrongError, check, rows_of

from clog.storage import Log
from clog.storage.administration import delete_log as delete
from clog.storage.errors import InvalidInputError, NotFoundError, UnsupportedFormatError
from clog.storage.store import open_store
from clog_testing.crash import discard

CONFIGS: dict[str, tuple[Any, ...]] = {
    "cleanup.policy": ("compact", "compact", "compact", "compact,delete", "delete", ""),
    "min.cleanable.dirty.ratio": (0.0, 0.5),
    "min.compaction.lag.ms": (0, HOUR_MS),
    "max.compaction.lag.ms": (HOUR_MS, 30 * DAY_MS),
    "delete.retention.ms": (0, HOUR_MS, DAY_MS),
    "segment.bytes": (60, 400, 1 << 20),
    "segment.ms": (HOUR_MS, 7 * DAY_MS),
    "segment.jitter.ms": (0, 1000),
    "segment.chunks": (1, 3, 1024),
    "retention.ms": (DAY_MS, 30 * DAY_MS, -1),
    "retention.bytes": (-1, -1, 2000),
    "file.delete.delay.ms": (1000, DAY_MS),
    "dead.rows.delay.ms": (0, 7 * DAY_MS),
    "reader.hold.max.ms": (0, HOUR_MS),
    "max.message.bytes": (5000, 1_048_588),
    "message.timestamp.type": ("CreateTime", "CreateTime", "LogAppendTime"),
    "message.timestamp.before.max.ms": (30 * DAY_MS,),
    "message.timestamp.after.max.ms": (HOUR_MS, DAY_MS),
    "compression.type": ("zstd", "lz4", "snappy", "none"),
    "compression.zstd.level": (1, 9),
    "object.bytes": (200, 64 << 20),
    "table.publish": ("none", "delta", "iceberg", "delta,iceberg"),
    "table.publish.interval.ms": (0, 60_000),
    "table.publish.columns": ("none", "timestamp", "headers", "headers,timestamp"),
    "table.masks": ("false", "true"),
}
"""The values of configs that may be altered at any time."""
OF_ORDER: dict[str, tuple[Any, ...]] = {
    "compaction.strategy": ("timestamp", "header"),
    "compaction.strategy.header": (HEADER,),
    "compaction.late": ("keep", "drop"),
    "compaction.late.scope": ("log",),
}
OF_CREATION: dict[str, tuple[Any, ...]] = {
    "partitioner": ("xxh3", "murmur2"),
    "table.key.columns": ("id", "a,b"),
}
"""How keys are spread is fixed; how the key columns are called comes with the schema."""
_OFTEN = ("segment.bytes", "min.cleanable.dirty.ratio", "delete.retention.ms")
_NAMES = ("x", "n", "city", "Größe", "a b")
GOLDEN = Path(__file__).parents[2] / "tests" / "format" / "golden" / "v1"
OLDER = (
    *("append-time", "cleaned", "dead-rows", "field-ids", "indexed", "masks"),
    *("older-writers", "paged", "plain", "transactions", "upgraded"),
)
"""Logs of bytes that earlier releases wrote, whose keys are each in one partition."""


# --- Logs come and go


def _is_free(w: World) -> bool:
    return len(w.logs) < len(PLACES)


def _free(w: World) -> str:
    return w.random.choice(sorted(set(PLACES) - w.logs.keys()))


def _configs(w: World) -> dict[str, Any]:
    return {
        name: w.random.choice(values)
        for name, values in (CONFIGS | {"partitioner": OF_CREATION["partitioner"]}).items()
        if w.random.random() < (0.7 if name in _OFTEN else 0.12)
    }


def _order_configs(w: World) -> dict[str, Any]:
    strategy = w.random.choice(OF_ORDER["compaction.strategy"])
    made = {"compaction.strategy": strategy, "compaction.late": w.random.choice(("keep", "drop"))}
    if strategy == "header":
        made |= {"compaction.strategy.header": HEADER, "compaction.late.scope": "log"}
    return made


def _columns(w: World) -> tuple[Columns, frozenset[str]]:
    names = w.random.sample(_NAMES, w.random.randint(1, 4))
    kinds = sorted(KINDS) + 2 * [name for name, kind in KINDS.items() if kind.wider]
    columns: dict[str, Any] = {name: KINDS[w.random.choice(kinds)] for name in names}
    if w.random.random() < 0.3:
        columns["s"] = {"c": KINDS[w.random.choice(("int32", "float32", "string"))]}
    strict = [n for n in names if w.random.random() < 0.15]
    return columns, frozenset(strict)


@operation("Log.create", weight=2, may=_is_free)
def create(w: World) -> bool | None:
    """A log of bytes, of columns, of rows, ordered, or a mirror; its configs may contradict."""
    place, config = _free(w), _configs(w)
    kind = w.random.choice(("bytes", "bytes", "columns", "rows", "ordered", "mirror", "mirror"))
    if kind == "ordered":
        config |= _order_configs(w)
    columns, strict = _columns(w) if kind in ("columns", "rows") else (None, frozenset())
    key = None if columns is None else w.random.choice(sorted(KEYS))
    how: dict[str, Any] = {}
    if kind == "columns":
        how["schema"] = {"key": KEYS[key][0], "value": struct_of(columns, strict)}
    elif kind == "rows":
        names = ("a", "b") if key == "pair" else ("id",)
        types = list(KEYS[key][0]) if key == "pair" else [pa.field("id", KEYS[key][0])]
        rows = pa.schema([*types, *struct_of(columns, strict)])
        how |= {"key": list(names), w.random.choice(("schema", "like")): rows}
    elif kind == "mirror":
        how["features"] = ["given-offsets"]
    process = w.random.choice(w.processes)
    store = process.stores[place]
    try:
        with w.calling(process):
            Log.create(store, PARTITIONS, config, clock=w.clock, ids=w.ids, **how)
    except InvalidInputError:
        check(not _stands(w, place), "a refused creation left a log: {}", config)
        return False
    if w.failed and not _stands(w, place):
        return False
    log = w.fresh(place)
    model = LogModel(log.id, PARTITIONS, key=key, strict=strict)
    model.is_hashed = kind not in ("mirror", "rows") and w.random.random() < 0.7
    model.takes_offsets = model.was_mirror = kind == "mirror"
    for name, value in config.items():
        check(log.config[name] == str(value), "config {} is {}", name, log.config[name])
    stand(w, place, model, log, columns)
    return None


def _stands(w: World, place: str) -> bool:
    try:
        w.fresh(place)
    except NotFoundError:
        return False
    return True


def stand(w: World, place: str, model: LogModel, log: Log, columns: Columns | None) -> None:
    """Begins to know a log, as it is."""
    version = model.since = model.version = log.version
    model.starts.append((version, tuple(log.start_offsets().values())))
    model.ends.append((version, tuple(log.end_offsets().values())))
    model.columns.append((version, columns))
    model.configs.append((version, dict(log.config)))
    w.logs[place] = model


def _id_of(name: str) -> str:
    """Returns the id of a log of an earlier release; some share one."""
    return next(path.name for path in (GOLDEN / name / "log" / "_clog").iterdir() if path.is_dir())


@operation(
    "Log.open", weight=0.6, may=lambda w: _is_free(w) and not set(map(_id_of, OLDER)) <= w.older
)
def open_older(w: World) -> bool | None:
    """A log that an earlier release wrote, as its own files say; each once."""
    place = _free(w)
    name = w.random.choice([name for name in OLDER if _id_of(name) not in w.older])
    w.older.add(_id_of(name))
    expected = json.loads((GOLDEN / name / "expected.json").read_text())
    root = open_store(w.url(place))
    folder = GOLDEN / name / "log"
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        root.put(str(file.relative_to(folder)), file.read_bytes())
    w.clock.advance(max(0, 1_700_000_600_000 - w.clock.now_ms()))
    log = w.fresh(place)
    model = LogModel(log.id, len(expected["end"]), is_hashed=False, is_cleaned=True, prefix="w")
    model.passes.append((log.version, 0))
    stand(w, place, model, log, None)
    for p, records in enumerate(expected["records"]):
        for offset, time_us, key, value, *_ in records:
            known = None if key is None else bytes.fromhex(key)
            what = None if value is None else bytes.fromhex(value)
            model.records.append(Record(p, offset, known, what, time_us // 1000, None, log.version))
    return None


@operation("clog.storage.delete_log", weight=0.3)
def delete_log(w: World) -> None:
    place = w.random.choice(sorted(w.logs))
    delete(open_store(w.url(place)))
    discard(open_store(w.url(place)))
    w.gone.append(w.logs.pop(place))
    w.open = [begun for begun in w.open if place not in begun.places]
    w.cuts = {name: cut for name, cut in w.cuts.items() if place not in cut.places}


@operation("Log.open", weight=0.7)
def reopen(w: World) -> None:
    process, place, _, _ = pick(w)
    process.handles[place] = [Log.open(process.stores[place], clock=w.clock, ids=w.ids)]


@operation(weight=0.7)
def back_up(w: World) -> None:
    """All logs are copied, at one moment."""
    w.back_up()


@operation(weight=0.5, may=lambda w: w.backup is not None)
def restore(w: World) -> None:
    """All logs are as they were copied; who used them begins again, but for state tables."""
    w.restore()
    w.later(15_000)  # Within ten seconds a handle notices.
    w.kept = [kept for kept in w.kept if kept.survives]


# --- Schema and configs


def _is_typed(model: LogModel) -> bool:
    return model.columns[-1][1] is not None


def _has_typed(w: World) -> bool:
    return bool(places(w, _is_typed))


@operation("Log.evolve", "Log.schema", weight=2, may=_has_typed)
def evolve(w: World) -> bool | None:
    process, place, model, log = pick(w, places(w, _is_typed))
    columns: Columns = dict(model.columns[-1][1])
    strict, how = model.strict, dict[str, Any]()
    known = paths(columns)
    narrow = sorted(p for p, k in known.items() if isinstance(k, Kind) and k.wider)
    chance = w.random.random()
    if chance < 0.2 and strict:
        name = w.random.choice(sorted(strict))
        how["relax"], strict = [f"value.{name}"], strict - {name}
    elif chance < 0.6 and narrow:
        path = w.random.choice(narrow)
        kind = known[path]
        assert isinstance(kind, Kind)
        wider = KINDS[str(kind.wider)]
        columns, how["widen"] = with_path(columns, path, wider), {path: wider.arrow}
    elif len(columns) < 7:
        inner = [p for p, k in known.items() if not isinstance(k, Kind)]
        parent = w.random.choice(["value", *inner])
        path = f"{parent}.c{len(known)}"
        kind = KINDS[w.random.choice(sorted(KINDS))]
        columns, how["add"] = with_path(columns, path, kind), {path: kind.arrow}
    else:
        return False
    before = w.fresh(place).schema
    try:
        with w.calling(process):
            log.evolve(**how)
    except InvalidInputError as e:  # A view has no such type.
        check("published as" in str(e), "evolve({}) was refused: {}", how, e)
        return False
    fresh = w.fresh(place)
    if w.failed and fresh.schema == before:
        return False
    shown = fresh.schema.field("value").type
    wanted = struct_of(columns, strict)
    check(shown == wanted, "the value of {} is {}, not {}", place, shown, wanted)
    model.columns.append((fresh.version, columns))
    model.strict = strict
    return None


@operation("Log.evolve", weight=0.7, may=_has_typed)
def evolve_wrongly(w: World) -> None:
    """A name that differs from another in case alone, another kind of type, no such field."""
    _, _, model, log = pick(w, places(w, _is_typed))
    before = log.version
    name = w.random.choice(sorted(model.columns[-1][1]))
    wrong = [{"widen": {"value.nothing": pa.int64()}}, {"add": {f"value.{name}": pa.int64()}}]
    wrong.append({"widen": {f"value.{name}": pa.list_(pa.string())}})
    if name.swapcase() != name and name.swapcase().lower() == name.lower():
        wrong.append({"add": {f"value.{name.swapcase()}": pa.int64()}})
    if model.names:
        wrong.append({"add": {f"value.{model.names[0].upper()}": pa.int64()}})
    how: Any = w.random.choice(wrong)
    try:
        log.evolve(**how)
    except InvalidInputError:
        check(log.version == before, "a refused evolution committed")
    else:
        raise WrongError(f"evolve({how}) was accepted")


@operation("Log.alter", "Log.config", weight=2)
def alter(w: World) -> bool | None:
    process, place, model, log = pick(w)
    name = w.random.choice(sorted(CONFIGS))
    value = w.random.choice((*CONFIGS[name], None))
    return _altered(w, place, model, lambda: log.alter({name: value}), process, (name,))


@operation("Log.alter", may=_has_typed)
def alter_key_columns(w: World) -> bool | None:
    """A table gets plain columns, or loses them."""
    process, place, model, log = pick(w, places(w, _is_typed))
    name = "table.key.columns"
    value = None if model.names else ("a,b" if model.key == "pair" else "id")
    return _altered(w, place, model, lambda: log.alter({name: value}), process, (name,))


@operation("Log.alter")
def alter_order(w: World) -> bool | None:
    """Other records win from now on, of those that are there."""
    process, place, model, log = pick(w)
    change: dict[str, Any] = dict.fromkeys(OF_ORDER)
    if not model.is_ordered:
        change |= _order_configs(w)
    there = {(row.partition, row.offset) for row in _all_of(log)}
    done = _altered(w, place, model, lambda: log.alter(change), process, tuple(change))
    if done is None:
        gone = [r for r in model.records if (r.partition, r.offset) not in there]
        model.forgotten.append((model.configs[-1][0], frozenset(gone)))
        w.kept = [kept for kept in w.kept if kept.model is not model or kept.survives]
    return done


def _all_of(log: Log) -> list[Any]:
    read = log.read(isolation="read_uncommitted")
    return [row for batch in read for row in rows_of(batch)]


def _altered(
    w: World, place: str, model: LogModel, do: Any, process: Any, names: tuple[str, ...]
) -> bool | None:
    before = dict(model.configs[-1][1])
    try:
        with w.calling(process):
            do()
    except InvalidInputError:
        check(w.fresh(place).config == before, "a refused alter of {} changed configs", names)
        return False
    fresh = w.fresh(place)
    now = dict(fresh.config)
    changed = {name for name in now if now[name] != before[name]}
    check(changed <= set(names), "an alter of {} changed {}", names, changed)
    if not changed:
        return False
    model.configs.append((fresh.version, now))
    return None


@operation("Log.upgrade", weight=0.7)
def upgrade(w: World) -> bool | None:
    process, _, _, log = pick(w)
    try:
        lacking = [one.name for one in log.upgrade() if one.state == "off"]
        with w.calling(process):
            log.upgrade(w.random.sample(lacking, min(len(lacking), 2)))
    except UnsupportedFormatError as e:
        raise WrongError(f"an upgrade is refused: {e}") from e
    return None if lacking else False


def _is_mirror(model: LogModel) -> bool:
    return model.takes_offsets and not model.is_fed


@operation("Log.give_offsets", weight=0.7, may=lambda w: bool(places(w, _is_mirror)))
def give_offsets(w: World) -> None:
    """A mirror becomes a log like any other."""
    process, place, model, log = pick(w, places(w, _is_mirror))
    with w.calling(process):
        log.give_offsets()
    model.takes_offsets = w.fresh(place).handle.tip.head.takes_offsets
    check(w.failed or not model.takes_offsets, "{} still takes offsets", place)
