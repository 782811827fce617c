"""What keeps logs small, and what is told of them: rows of `operations`."""

from dataclasses import dataclass
from typing import Any

from model import Erasing, LogModel, Record
from operations import HOUR_MS, operation, pick, rows_for
from world import DAY_MS, Row, World, check, rows_of

from clog.cleaner import Cleaner
from clog.storage import drop_snapshot, snapshot, snapshots
from clog.storage.errors import (
    AlreadyExistsError,
    CommitConflictError,
    InvalidInputError,
    NotFoundError,
    OffsetOutOfRangeError,
)
from clog.storage.store import open_store
from clog_testing.published import delta_adds

# --- What becomes smaller


@operation("Log.roll", weight=2)
def roll(w: World) -> None:
    process, _, model, log = pick(w)
    with w.calling(process):
        log.roll(w.random.choice((None, w.random.randrange(model.partitions))))


@operation("Cleaner.run_once", weight=4)
def clean(w: World) -> None:
    """A round over one log or all; what goes may go."""
    process, place, model, log = pick(w)
    cleaned = {place: log}
    if w.random.random() < 0.2:
        cleaned = {p: w.handle(process, p) for p in w.logs}
    before = {p: _there(w, p) for p in cleaned}
    for p in cleaned:
        w.logs[p].passes.append((w.logs[p].version, w.clock.now_ms()))
    with w.calling(process):
        Cleaner(cleaned.values()).run_once(force=w.random.random() < 0.7)
    for p in cleaned:
        w.look(p)  # A round may end transactions first.
        model = w.logs[p]
        model.is_cleaned = True
        after, now_ms = _there(w, p), w.clock.now_ms()
        starts = tuple(w.fresh(p).start_offsets().values())
        winners = model.winners(model.version)
        for r in model.records:
            at = (r.partition, r.offset)
            if at in before[p] and at not in after and not model.is_erased(r):
                is_cut = r.offset < starts[r.partition]
                why = _retained(model, r, now_ms) if is_cut else _kept(model, r, winners, now_ms)
                check(not why, "a cleaner removed {} of {}: {}", r, p, why)


def _there(w: World, place: str) -> set[tuple[int, int]]:
    read = w.fresh(place).read(columns=["partition", "offset"])
    return {(r["partition"], r["offset"]) for batch in read for r in batch.to_pylist()}


def _retained(model: LogModel, r: Record, now_ms: int) -> str:
    """Returns why retention must not have taken a record; empty if it may have."""
    if "delete" not in model.config("cleanup.policy"):
        return "a compacted log lost its start"
    keep_ms, keep_bytes = (int(model.config(f"retention.{unit}")) for unit in ("ms", "bytes"))
    if keep_bytes == -1 and (keep_ms == -1 or now_ms - r.timestamp_ms <= keep_ms):
        return f"it is {now_ms - r.timestamp_ms} ms old, and stays for {keep_ms}"
    return ""


def _kept(model: LogModel, r: Record, winners: dict[Any, Record], now_ms: int) -> str:
    """Returns why compaction must not have removed a committed record; empty if it may have."""
    if "compact" not in model.config("cleanup.policy"):
        return "the policy is not to compact"
    if now_ms - r.timestamp_ms < int(model.config("min.compaction.lag.ms")):
        return f"it is only {now_ms - r.timestamp_ms} ms old"
    if winners.get(r.key) is not r:
        return ""
    if r.value is not None:
        return "it is the last of its key"
    stay_ms = min(int(c["delete.retention.ms"]) for _, c in model.configs)
    passes = [ms for version, ms in model.passes if version >= r.version]
    is_due = bool(passes) and passes[0] + stay_ms <= now_ms
    return "" if is_due else f"a tombstone stays for {stay_ms} ms after a pass, {passes}, {now_ms}"


@operation("Log.delete_records", "Log.start_offsets")
def delete_records(w: World) -> bool | None:
    process, _place, model, log = pick(w)
    if model.is_ordered:
        return False  # Refused: the log start would bring losers back.
    p = w.random.randrange(model.partitions)
    start, end = model.starts[-1][1][p], model.ends[-1][1][p]
    offset = w.random.choice((-1, w.random.randint(0, end), w.random.randint(start, end)))
    with w.calling(process):
        low = log.delete_records({p: offset})
        wanted = max(start, end if offset == -1 else offset)
        check(low == {p: wanted}, "delete_records({}) of {} gave {}", offset, wanted, low)
    return None


@operation("Log.erase", "Log.erasures", weight=1)
def erase(w: World) -> bool | None:
    process, place, model, log = pick(w)
    keys = sorted({row.key for row in rows_for(w, model)}, key=str)
    if not keys or not model.is_hashed:
        return False  # Its tombstones go to the partitions of the hash.
    is_by_header = model.config("compaction.strategy") == "header"
    notify = w.random.random() < 0.5 and not is_by_header  # Of which orders there are.
    if notify:
        w.expect(place, [Row(None, key, None) for key in keys])
    model.erased.append(Erasing(model.version, frozenset(keys), model.ends[-1][1]))
    try:
        with w.calling(process):
            log.erase(keys, notify=notify)
            last = log.erasures()[-1]
            check(last.state == "pending", "an erasure is {} before any round", last.state)
    except (InvalidInputError, CommitConflictError):
        w.failed = True
        model.erased.pop()
    return None


# --- Cuts


@dataclass(frozen=True)
class NamedCut:
    cut: Any
    places: tuple[str, ...]


@operation("snapshot", "snapshots", "Cut.home", "Cut.time_ms", "Cut.views", weight=2)
def name_cut(w: World) -> bool | None:
    home = w.random.choice(sorted(w.logs))
    name = w.random.choice(("a", "b", None))
    keep_ms = w.random.choice((None, HOUR_MS)) if name else None
    try:
        publish = ["delta"] if name and w.random.random() < 0.2 else []
        cut = snapshot(w.url(home), name, keep_ms, publish=publish, clock=w.clock, ids=w.ids)
        for url, version in cut.logs.items() if publish else ():
            shown = cut.views()[url]["delta"]
            stated, model = delta_adds(open_store(url), shown)[1], w.logs[w.place_of(url)]
            is_same = stated == version or model.table(stated) == model.table(version)
            check(is_same, "a view of {} is of {}, not {}", url, stated, version)
    except AlreadyExistsError:
        check(name in [c.name for c in snapshots(w.url(home))], "no cut {}", name)
        return False
    except CommitConflictError:
        return False
    except InvalidInputError as e:  # The format has no such type, or no such times.
        check(bool(publish), "snapshot: {}", e)
        return False
    except NotFoundError as e:
        check(bool(w.gone), "a member is missing: {}", e)
        return False
    check((cut.home, cut.name) == (w.url(home), name), "{} is another", cut)
    check(cut.time_ms <= w.clock.now_ms() + DAY_MS, "{} is of the future", cut)
    names = tuple(sorted(map(w.place_of, cut.logs)))
    w.cuts[f"{home}#{name}"] = NamedCut(cut, names)
    return None


@operation("drop_snapshot", may=lambda w: bool(w.cuts))
def drop_cut(w: World) -> None:
    full = w.random.choice(sorted(w.cuts))
    named = w.cuts.pop(full)
    home, _, name = full.partition("#")
    if name != "None" and home in w.logs:
        try:
            drop_snapshot(w.url(home), name)
        except NotFoundError:
            is_over = named.cut.until_ms is not None and named.cut.until_ms <= w.clock.now_ms()
            check(bool(w.gone) or is_over, "a cut is missing: {}", full)


# --- Views


@operation("Log.publish", weight=1.5)
def publish(w: World) -> bool | None:
    process, _, model, log = pick(w)
    name = w.random.choice(("delta", "iceberg"))
    try:
        with w.calling(process):
            log.publish(name)
    except InvalidInputError as e:
        has_types, is_timed = model.columns[-1][1] is not None, "LogAppendTime" in str(e)
        check(has_types or is_timed, "publish({}): {}", name, e)
        return False  # The format has no such type.
    model.views.add(name)
    model.withdrawn.discard(name)
    return None


@operation("Log.withdraw", weight=0.7)
def withdraw(w: World) -> bool | None:
    process, _, model, log = pick(w)
    name = w.random.choice(("delta", "iceberg"))
    try:
        with w.calling(process):
            log.withdraw(name)
    except NotFoundError:
        check(name not in model.views, "the view {} is missing", name)
        return False
    model.withdrawn.add(name)
    if w.failed:
        model.views.discard(name)  # Either.
    return None


# --- Readers


@operation(
    *(f"NamedReader.{name}" for name in ("commit", "flush", "end", "name", "position")),
    *("NamedReader.next_offsets", "Log.reader", "Log.readers", "Log.forget_reader"),
    weight=1.5,
)
def read_by_hand(w: World) -> None:
    """A named reader that reads up to the stable end, and says so itself."""
    process, place, model, log = pick(w)
    with w.calling(process):
        hold_ms = w.random.choice((0, HOUR_MS))
        reader = log.reader(
            "by-hand", interval_ms=0, hold_ms=hold_ms, expires_after_ms=365 * DAY_MS
        )
        try:
            at = reader.next_offsets()
        except (
            NotFoundError,
            OffsetOutOfRangeError,
        ):  # It was overtaken, or missed deletes: it begins again.
            log.forget_reader("by-hand")
            model.by_hand = {}
            return
        known = model.by_hand
        check(not known or w.failed or at == known, "a reader is at {}, not {}", at, known)
        rows = [row for batch in log.read(start=at) for row in rows_of(batch)]
        ends = at | {row.partition: row.offset + 1 for row in rows}
        model.by_hand = {}  # Whatever happens now.
        reader.commit(ends)
        reader.flush()
        if w.random.random() < 0.2:
            reader.end()
        check(reader.position == ends, "{} is at {}, not {}", reader, reader.position, ends)
        names = [one.name for one in w.fresh(place).readers()]
        check("by-hand" in names, "the readers are {}", names)
        model.by_hand = ends


# --- Time


@operation(weight=2, may=lambda _: True)
def wait(w: World) -> None:
    w.later(w.random.choice((1000, 20_000, HOUR_MS, DAY_MS, 3 * DAY_MS)))
