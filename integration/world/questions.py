"""What can be asked of a world: each question gets an answer from clog and one from the model."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from kinds import Kind, paths, read_as
from model import LogModel
from operations import KEY_COUNT, key_of
from world import World, check, compare, plain, rows_of, same

from clog.state import StateTable
from clog.storage import Log, follow
from clog.storage.errors import (
    LogReplacedError,
    NotFoundError,
    OffsetOutOfRangeError,
    VersionExpiredError,
)
from clog.storage.store import open_store
from clog_testing.published import delta_pairs, delta_versions, iceberg_pairs, iceberg_versions

QUESTIONS: dict[str, tuple[Callable[[World], None], tuple[str, ...]]] = {}


def question(*covers: str) -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    """Makes a row of a function."""

    def added(ask: Callable[[World], None]) -> Callable[[World], None]:
        QUESTIONS[ask.__name__] = (ask, covers)
        return ask

    return added


def _pick(w: World) -> tuple[str, LogModel, Log]:
    changed = sorted(w.changed & w.logs.keys())
    is_changed = bool(changed) and w.random.random() < 0.7
    place = w.random.choice(changed if is_changed else sorted(w.logs))
    process = w.random.choice(w.processes)
    return place, w.logs[place], w.handle(process, place)


def table_of(table: Any) -> dict[Any, Any]:
    """Returns the rows of batches by key."""
    return rows_by_key(pair for batch in table for pair in map(_pair, batch.to_pylist()))


def _pair(row: dict[str, Any]) -> tuple[Any, Any]:
    """Returns key and value of a row, which may have plain columns."""
    if "key" in row:
        return row["key"], row["value"]
    names = ("id",) if "id" in row else ("a", "b")
    key = tuple(row[name] for name in names)
    return key[0] if len(key) == 1 else key, {k: v for k, v in row.items() if k not in names}


def rows_by_key(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Returns pairs of key and value as a table."""
    listed = [(plain(key), value) for key, value in pairs]
    found = dict(listed)
    check(len(found) == len(listed), "a key has two rows: {}", listed)
    return found


@question("Log.table", "Table.to_batches", "Table.to_arrow", "Table.schema")
def table(w: World) -> None:
    place, model, log = _pick(w)
    found = table_of(log.table().to_batches())
    compare(f"table of {place}", found, model.table(model.version), model.doubtful(model.version))


@question("Log.table")
def table_at(w: World) -> None:
    """An older version, while it is there."""
    place, model, log = _pick(w)
    version = w.random.randint(max(model.since, model.version - 12), model.version)
    try:
        found = table_of(log.table(at=version).to_batches())
    except VersionExpiredError:
        check(version < model.version and model.is_cleaned, "version {} expired", version)
        return
    what = f"table of {place} at {version}"
    compare(what, found, model.table(version), model.doubtful(version))


@question("Log.table", "Table.get", "Table.get_many")
def get(w: World) -> None:
    place, model, log = _pick(w)
    wanted = model.table(model.version)
    keys = sorted(
        {r.key for r in model.records if r.key is not None}
        | {key_of(model, n) for n in range(KEY_COUNT)}
    )
    table = log.table()
    found = rows_by_key(table.get_many(keys).items())
    compare(f"keys of {place}", found, wanted, model.doubtful(model.version))
    key = w.random.choice(keys)
    value = log.table().get(key)
    compare(
        f"a key of {place}",
        {} if value is None else {key: value},
        {k: v for k, v in wanted.items() if k == key},
        model.doubtful(model.version),
    )


@question("Log.table")
def filtered(w: World) -> None:
    """Rows by a condition on a field, which may be null, NaN or in a struct."""
    place, model, log = _pick(w)
    columns = model.columns[-1][1]
    if columns is None:
        return
    path = w.random.choice(sorted(p for p, k in paths(columns).items() if isinstance(k, Kind)))
    kind = paths(columns)[path]
    assert isinstance(kind, Kind)
    names = path.split(".")
    field = pc.field(*(names[1:] if model.names else names))
    wanted = w.random.choice(kind.values)
    given = pc.scalar(pa.scalar(wanted, kind.arrow))
    condition: Any = field.is_null()
    holds: Callable[[Any], bool] = lambda value: value is None  # noqa: E731
    if not isinstance(wanted, list) and w.random.random() < 0.8:
        if w.random.random() < 0.5 or isinstance(wanted, bool):
            condition, holds = field == given, lambda value: value is not None and value == wanted
        else:
            condition, holds = field > given, lambda value: value is not None and value > wanted
    found = table_of(log.table(filter=condition).to_batches())
    table = model.table(model.version)
    rows = {k: v for k, v in table.items() if holds(_field(v, names[1:]))}
    compare(f"{place} where {condition}", found, rows, model.doubtful(model.version))


def _field(value: Any, names: list[str]) -> Any:
    for name in names:
        value = None if value is None else value.get(name)
    return value


@question("Log.read", "Log.stable_offsets", "Log.end_offsets")
def read(w: World) -> None:
    """Records in order, with their offsets; all that no cleaning may remove."""
    place, model, log = _pick(w)
    stable = log.stable_offsets()
    wanted_stable = dict(enumerate(model.stable(model.version)))
    check(stable == wanted_stable, "stable offsets of {}: {} {}", place, stable, wanted_stable)
    found = [row for batch in log.read() for row in rows_of(batch)]
    columns = model.columns[-1][1]
    known = {(r.partition, r.offset): r for r in model.shown(model.version)}
    for p, key, value, time, _, offset in found:
        r = known.get((int(p or 0), int(offset or 0)))
        check(
            r is not None
            and r.key == key
            and r.timestamp_ms == time
            and same(read_as(r.value, columns), value),
            "{}: record {} of {} is {} {!r}, and should be {}",
            place,
            offset,
            p,
            key,
            value,
            r,
        )
    places = [(row.partition, row.offset) for row in found]
    for p in range(model.partitions):
        offsets = [offset for q, offset in places if q == p]
        check(offsets == sorted(set(offsets)), "order of {}: {}", place, offsets)
    wanted = model.needed(model.version) if model.is_cleaned else known.values()
    lost = [r for r in wanted if (r.partition, r.offset) not in places]
    if not model.erased:
        check(not lost, "{} lost {}", place, lost)


@question("Log.latest")
def latest(w: World) -> None:
    """The last record of each key from some offsets on."""
    place, model, log = _pick(w)
    starts = {
        p: w.random.randint(s, max(s, model.ends[-1][1][p]))
        for p, s in enumerate(model.starts[-1][1])
    }
    found = table_of(log.latest(starts).to_batches())
    winners = model.winners(model.version)
    columns = model.columns[-1][1]
    wanted = {
        k: read_as(r.value, columns) for k, r in winners.items() if r.offset >= starts[r.partition]
    }
    doubtful = model.doubtful(model.version)
    if model.is_ordered:
        return  # Of the records since: which may lose to an older one.
    for key in [k for k, v in wanted.items() if v is None and k not in found]:
        wanted.pop(key)  # Its tombstone may be gone.
        check(model.is_cleaned, "the tombstone of {} is missing in {}", key, place)
    compare(f"latest records of {place}", found, wanted, doubtful)


@question("Log.changes")
def changes(w: World) -> None:
    """What changed between two versions leads from the table at the one to that at the other."""
    place, model, log = _pick(w)
    low = max(model.since, model.version - 12)
    since, until = sorted(w.random.randint(low, model.version) for _ in range(2))
    mode: Any = w.random.choice(("net", "each"))
    what = f"changes ({mode}) of {place} from {since} to {until}"
    try:
        told = log.changes(since=since, until=until, mode=mode).to_pylist()
    except VersionExpiredError:
        check(since < model.version and model.is_cleaned, "{}: expired", what)
        return
    columns, former = model.at(model.columns, until), model.winners(since)
    state = {k: read_as(r.value, columns) for k, r in former.items() if r.value is not None}
    doubtful = model.doubtful(since) | model.doubtful(until)
    before = None
    for row in told:
        kind = row["_change_type"]
        key, value = _pair({name: cell for name, cell in row.items() if name[0] != "_"})
        key = plain(key)
        if kind in ("delete", "update_preimage"):
            known, before = state.pop(key, None), value
            is_known = (known is None and len(model.starts) > 1) or same(known, value)
            check(is_known or key in doubtful, "{}: {} was {!r}: {!r}", what, key, known, value)
            continue
        check(key not in state or key in doubtful, "{}: {} was there", what, key)
        if kind == "update_postimage" and mode == "net" and model.names:
            check(not same(before, value), "{}: {} did not change", what, key)
        state[key] = value
    compare(what, state, model.table(until), doubtful)


@question("Log.offsets_for_times")
def times(w: World) -> None:
    """The first record in offset order that is not earlier (S39), of those that are there."""
    place, model, log = _pick(w)
    time_ms = w.clock.now_ms() - w.random.choice((0, 1000, 100_000, 10_000_000))
    found = log.offsets_for_times(time_ms)
    known = {(r.partition, r.offset): r for r in model.records}
    for p, offset in found.items():
        at = known.get((p, offset))
        check(offset is None or (at and at.timestamp_ms >= time_ms), "offset {} of {}", offset, p)
        missed = [
            r
            for r in model.needed(model.version)
            if r.partition == p
            and r.timestamp_ms >= time_ms
            and (offset is None or r.offset < offset)
        ]
        check(not missed, "offsets_for_times({}) of {}: {} but {}", time_ms, place, found, missed)


_OF_TABLE = ("to_pylist", "to_arrow", "to_pandas", "to_polars", "to_duckdb", "of_keys")


@question(*(f"Table.{name}" for name in _OF_TABLE), "Log.markers")
def forms(w: World) -> None:
    place, model, log = _pick(w)
    doubtful = model.doubtful(model.version)
    table = log.table()
    form = w.random.choice((*("list", "arrow", "pandas", "polars", "duckdb", "iter"),))
    listed = _formed(table, form, model)
    if listed is None:
        return
    found = rows_by_key(map(_pair, listed))
    wanted = model.table(model.version)
    if form in ("pandas", "duckdb"):  # Whose values are of other types: a null is a NaN, say.
        check(found.keys() | doubtful == wanted.keys() | doubtful, "{} of {}", form, place)
        return
    compare(f"{form} of {place}", found, wanted, doubtful)
    keys = sorted(found)[:3]
    rows = [plain(row["key"]) for row in table.of_keys(keys).to_pylist()]
    check(sorted(rows) == keys, "rows of {}: {}", keys, rows)
    check(len(table) == len(found), "{} rows of {}", len(table), place)
    for p in range(model.partitions):
        for offset, *_ in log.markers(p):
            there = [r for r in model.records if (r.partition, r.offset) == (p, offset)]
            check(not there, "a marker of {} is at a record: {}", place, there)


def _formed(table: Any, form: str, model: LogModel) -> Any:
    """Returns a table's rows through another library, as dicts; None if it cannot have them."""
    if form == "list":
        return table.to_pylist()
    if form == "iter":
        return list(table)
    if form == "arrow":
        return table.to_arrow().to_pylist()
    if model.key == "pair" and not model.names:
        return None
    keys = list(model.names) or ["key"]
    if form == "polars":
        return table.to_polars().to_arrow().to_pylist()
    if form == "pandas":
        return [
            {**dict(zip(keys, row, strict=True)), "value": None}
            for row in table.to_arrow(columns=keys).to_pandas().itertuples(index=False)
        ]
    rows = table.to_duckdb().select(*(f'"{name}"' for name in keys)).fetchall()
    return [{**dict(zip(keys, row, strict=True)), "value": None} for row in rows]


@question("Log.publish")
def views(w: World) -> None:
    """A published view shows the table of the version that it states, to a reader of its own."""
    place, model, log = _pick(w)
    root = open_store(w.url(place))
    for name, versions, rows in (
        ("delta", delta_versions, delta_pairs),
        ("iceberg", iceberg_versions, iceberg_pairs),
    ):
        if name in model.withdrawn or not versions(root):
            continue
        pairs, stated = rows(root, key=_key_columns(log))
        if stated < model.since:
            continue
        columns = model.at(model.columns, stated)
        found = {k: read_as(v, columns) for k, v in rows_by_key(pairs).items()}
        if not found and model.is_cleaned:
            continue  # A cleaner that cannot publish withdraws a view that is far behind.
        what = f"the {name} view of {place} at {stated}"
        compare(what, found, model.table(stated), model.doubtful(stated) | removed(model))


def _key_columns(log: Log) -> list[str]:
    """Returns the columns of the key, as objects have them, if these have a table's."""
    schema = log.handle.tip.head.log.schema
    return [field.stored_name for field in schema.key_columns] if schema and schema.is_table else []


def removed(model: LogModel) -> set[Any]:
    """Returns the keys of records that the log start has passed: who has them may keep them."""
    starts = model.starts[-1][1]
    return {r.key for r in model.records if r.offset < starts[r.partition]}


@question("Log.describe", "Log.history", "Log.segments", "Log.id", "Log.partitions", "Log.version")
def describe(w: World) -> None:
    place, model, log = _pick(w)
    told = log.describe()
    check(told["version"] == model.version, "version of {}: {}", place, told["version"])
    ends = tuple(part["end_offset"] for part in told["partition_details"])
    check(ends == model.ends[-1][1], "described ends of {}: {}", place, ends)
    check(log.version == model.version, "version of {}", place)


@question("Log.table", *(f"Cut.{name}" for name in ("changed", "ids", "logs", "name", "until_ms")))
def cut(w: World) -> None:
    """A cut shows all or nothing of each transaction over its logs, and stays as it is."""
    live = {name: named for name, named in w.cuts.items() if set(named.places) <= w.logs.keys()}
    if not live:
        return
    full = w.random.choice(sorted(live))
    named = live[full].cut
    shown: dict[Any, set[bool]] = {}
    for url, version in named.logs.items():
        place = w.place_of(url)
        model = w.logs[place]
        if named.ids[url][0] != model.log_id:
            return
        stable = model.stable(version)
        mine: dict[Any, list[bool]] = {}
        for r in model.records:
            if r.deal is not None and r.deal.outcome == "committed":
                is_shown = r.version <= version and r.offset < stable[r.partition]
                if r.offset >= model.starts[-1][1][r.partition]:
                    mine.setdefault(r.deal, []).append(is_shown)
        for deal, all_of_it in mine.items():
            shown.setdefault(deal, set()).update(all_of_it)
        try:
            found = table_of(w.fresh(place).table(at=named).to_batches())
        except VersionExpiredError as e:
            is_over = named.until_ms is not None and named.until_ms <= w.clock.now_ms()
            check(named.name is None or is_over, "{} is gone: {}", full, e)
            return
        what = f"{place} at the cut {full}"
        compare(what, found, model.table(version), model.doubtful(version))
    for url in named.changed():
        raised = len(w.logs[w.place_of(url)].starts) > 1
        check(raised, "{} is said to have lost records since the cut {}", url, full)
    parted = [deal.name for deal, ways in shown.items() if len(ways) > 1]
    check(not parted, "the cut {} {} shows a part of {}", full, dict(named.logs), parted)


# --- What lives on


@dataclass(eq=False)
class Kept:
    """Something that was made of a log once, and is asked again later."""

    model: LogModel
    place: str
    made: Any
    ask: Callable[[World, "Kept"], None]
    state: Any = None
    survives: bool = False
    """Whether it goes on when all logs are replaced by an older copy."""


@question("Log.table", "Table.offsets")
def keep_table(w: World) -> None:
    place, model, _log = _pick(w)
    if len(w.kept) < 8:
        version = model.version
        kept = w.fresh(place).table()  # Whoever keeps it stays alive.
        w.kept.append(Kept(model, place, kept, _ask_table, (version, kept.schema)))


def _ask_table(w: World, kept: Kept) -> None:
    version, schema = kept.state
    model = kept.model
    try:
        found = table_of(kept.made.to_batches())
    except (VersionExpiredError, LogReplacedError, NotFoundError):
        w.kept.remove(kept)
        check(model.is_cleaned or model in w.gone, "a kept table of {} expired", kept.place)
        return
    check(kept.made.schema == schema, "the schema of a kept table changed")
    what = f"a table of {kept.place} kept since version {version}"
    # It may finish on its plan (S36).
    compare(what, found, model.table(version), model.doubtful(version) | removed(model))


_OF_STATE = ("refresh", "get", "get_many", "scan", "close", "offsets", "version")


@question(*(f"StateTable.{name}" for name in _OF_STATE))
def keep_state(w: World) -> None:
    place, model, _log = _pick(w)
    if any(kept.ask is _ask_state and kept.model is model for kept in w.kept):
        return
    path = w.folder / f"{model.log_id}.state"
    made = StateTable(w.url(place), path, clock=w.clock)
    w.kept.append(Kept(model, place, made, _ask_state, survives=True))


def _ask_state(w: World, kept: Kept) -> None:
    model = kept.model
    if model in w.gone:
        w.later(15_000)  # It looks within ten seconds whether its log is still there.
    try:
        kept.made.refresh()
    except (LogReplacedError, NotFoundError):
        check(model in w.gone, "a state table of {} lost its log", kept.place)
        kept.made.close()
        w.kept.remove(kept)
        return
    if model in w.gone and kept.place not in w.logs:
        return
    if model in w.gone:  # It follows the log that is there now (``on_loss``).
        model = kept.model = w.logs[kept.place]
    made, found = kept.made, rows_by_key(kept.made.scan())
    what = f"a state table of {kept.place}"
    some = sorted(found)[:3]
    listed = rows_by_key(made.get_many(some).items())
    check(listed.keys() == set(some), "{} has {}, not {}", what, listed, some)
    check(all(same(made.get(key), found[key]) for key in some), "{} gets others", what)
    stable = dict(enumerate(model.stable(model.version)))
    check(made.offsets == stable, "{} is at {}, not {}", what, made.offsets, stable)
    check(made.version <= model.version, "{} is at version {}", what, made.version)
    compare(what, found, model.table(model.version), model.doubtful(model.version))
    if w.random.random() < 0.2:
        kept.made.close()
        w.kept.remove(kept)


@question("Log.reader", "NamedReader.follow", "clog.storage.follow")
def keep_follower(w: World) -> None:
    place, model, _ = _pick(w)
    if any(kept.ask is _ask_follower and kept.model is model for kept in w.kept):
        return
    w.kept.append(Kept(model, place, f"billing-{len(w.trace)}", _ask_follower, {}))


def _ask_follower(w: World, kept: Kept) -> None:
    """A named reader that applies what it reads has the table, or was told what it missed."""
    model = kept.model
    if model in w.gone:
        w.kept.remove(kept)
        return
    log = w.handle(w.random.choice(w.processes), kept.place)
    reader = log.reader(kept.made, interval_ms=0)
    try:
        if w.random.random() < 0.5:
            batches = iter(reader.follow(poll_ms=None))
        else:
            batches = (batch for _, batch in follow([reader], poll_ms=None))
        for batch in batches:
            for row in rows_of(batch):
                kept.state[row.key] = row
    except (OffsetOutOfRangeError, NotFoundError):
        log.forget_reader(kept.made)
        w.kept.remove(kept)
        return
    if model.is_ordered:
        return
    starts = model.starts[-1][1]
    found = {
        key: row.value
        for key, row in kept.state.items()
        if key is not None and row.value is not None and row.offset >= starts[row.partition]
    }
    wanted = {r.key: r.value for r in model.winners(model.version).values() if r.value is not None}
    columns = model.columns[-1][1]
    found = {k: read_as(v, columns) for k, v in found.items()}
    wanted = {k: read_as(v, columns) for k, v in wanted.items()}
    compare(f"a follower of {kept.place}", found, wanted, model.doubtful(model.version))


def ask(w: World, number: int) -> None:
    """Asks some questions, and some of what lives on."""
    if w.logs:
        for name in w.random.sample(sorted(QUESTIONS), number):
            QUESTIONS[name][0](w)
    for kept in list(w.kept):
        if w.random.random() < 0.2:
            kept.ask(w, kept)
