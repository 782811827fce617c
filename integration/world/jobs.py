"""What works on logs: rows of `operations` for positions, state stores, mirrors and streams."""

from typing import Any

from lives import stand
from model import Deal, LogModel
from operations import (
    ENDED,
    PARTITIONS,
    assigns,
    given,
    has,
    operation,
    pick,
    places,
    rows_for,
    to_append,
)
from questions import Kept, rows_by_key
from streams import Stream
from topics import PARTITIONS as TOPIC_PARTITIONS
from topics import Broker, mirrored
from world import DAY_MS, PLACES, Row, World, check, compare

from clog.state import StateStore
from clog.storage import Log
from clog.storage.env import SeededIds
from clog.storage.errors import (
    CommitConflictError,
    InvalidInputError,
    LogReplacedError,
    NotFoundError,
    OffsetOutOfRangeError,
    SourcePurgedError,
    StateFencedError,
)

# --- Positions


@operation("Transaction.positions", "Log.positions", weight=1.5, may=has(assigns))
def append_with_positions(w: World) -> None:
    """Records, and how far another log was read: both or neither."""
    process, place, model, log = pick(w, places(w, assigns))
    source = w.random.choice(sorted(w.logs))
    at = w.fresh(source).stable_offsets()
    id = "copy"
    before = w.fresh(place).positions(id)
    rows = to_append(w, place, model, Deal((id, len(w.trace), 0)))
    try:
        with w.calling(process), log.transaction(id, timeout_ms=DAY_MS) as t:
            t.append(rows.data, **rows.how)
            t.positions(w.fresh(source), at)
    except (*ENDED, InvalidInputError):
        w.failed = True
    except OffsetOutOfRangeError as e:
        check("beyond the last stable" in str(e), "positions: {}", e)
        w.failed = True
    except NotFoundError as e:
        check("missed" in str(e) or "tombstone" in str(e), "positions: {}", e)
        w.failed = True
    _settle_positions(w, place, id, before, {w.logs[source].log_id: at})


def _settle_positions(w: World, place: str, id: str, before: Any, more: Any) -> None:
    """Checks that positions are there with the records that were expected, or neither are."""
    after = w.fresh(place).positions(id)
    wanted = before | {source: before.get(source, {}) | at for source, at in more.items()}
    if wanted != before and w.expected:
        w.expected[-1].settles = after == wanted
    check(after in ((before, wanted) if w.failed else (wanted,)), "positions {} {}", after, wanted)


@operation("Transaction.positions", "Log.positions", "Log.transaction", may=has(assigns))
def append_from_elsewhere(w: World) -> None:
    """Records of another system, with the number of the work and how far it was read, marked."""
    process, place, model, log = pick(w, places(w, assigns))
    id, source = "load", "kafka:cluster/topic"
    before = w.fresh(place).positions(id)
    number = (w.fresh(place).sequence(id, kind="transaction") or 0) + 1
    at = {0: number, 7: number * 2}
    rows = to_append(w, place, model, Deal((id, len(w.trace), 0)))
    try:
        with w.calling(process), log.transaction(id, timeout_ms=DAY_MS, sequence=number) as t:
            check(t.is_open, "{} is committed already", t)
            t.append(rows.data, **rows.how)
            t.positions(source, {p: (offset, f"epoch-{offset}") for p, offset in at.items()})
    except (*ENDED, InvalidInputError):
        w.failed = True
    _settle_positions(w, place, id, before, {source: at})
    marked = w.fresh(place).positions(id, marks=True).get(source, {})
    check(all(mark == f"epoch-{offset}" for offset, mark in marked.values()), "marks {}", marked)


def _is_mirror(model: LogModel) -> bool:
    return model.takes_offsets and not model.is_fed


@operation("Transaction.cover", "Transaction.append", weight=2, may=has(_is_mirror))
def mirror_by_hand(w: World) -> bool | None:
    """Records at the offsets of their source, and ends where it has none."""
    process, place, model, log = pick(w, places(w, _is_mirror))
    rows, expected = given(w, model, rows_for(w, model))
    ends = list(model.ends[-1][1])
    for row in expected:
        ends[row.partition or 0] = int(row.offset or 0) + 1
    covered = {p: end + w.random.choice((0, 3)) for p, end in enumerate(ends)}
    starts = {p: ends[p] for p in range(PARTITIONS) if w.random.random() < 0.1}
    above = [r for r in expected if (r.offset or 0) >= starts.get(r.partition or 0, 0)]
    w.expect(place, above, Deal(("mirror", len(w.trace), 0)))
    try:
        with w.calling(process), log.transaction("mirror", timeout_ms=DAY_MS) as t:
            t.cover(covered, start=starts)
            if expected:
                t.append(rows.data, **rows.how)
    except (*ENDED, InvalidInputError) as e:
        check(not isinstance(e, InvalidInputError) or "open" in str(e), "mirror: {}", e)
        w.failed = True
    if not w.failed:
        now = w.fresh(place)
        check(now.end_offsets() == covered, "ends {} {}", now.end_offsets(), covered)
        low = now.start_offsets()
        check(all(low[p] >= o for p, o in starts.items()), "starts {} {}", low, starts)
    return None


# --- State stores


def _may_store(model: LogModel) -> bool:
    return model.is_hashed and not model.takes_offsets and not model.names and not model.is_ordered


_FENCED = (StateFencedError, CommitConflictError)
_OF_STORE = (
    *("put", "put_many", "delete", "commit", "close", "get", "get_many", "scan", "rollback"),
    *("positions", "next_offsets", "url", "version"),
)


@operation(*(f"StateStore.{name}" for name in _OF_STORE), weight=2, may=has(_may_store))
def put_state(w: World) -> bool | None:
    """Opens the store with the file that the last one left, puts and deletes, and commits."""
    process, place, model, _ = pick(w, places(w, _may_store))
    with w.calling(process):
        options = {"clock": w.clock, "ids": w.ids}
        with StateStore(process.stores[place], w.folder / "store", "app", **options) as store:
            try:
                return _worked(w, place, model, store)
            except CommitConflictError:  # An undecided transaction of another comes first.
                w.failed = True
    return None


def _worked(w: World, place: str, model: LogModel, store: StateStore) -> bool | None:
    shown = rows_by_key(store.scan())
    w.observe_table(place, shown)
    check(store.url == w.url(place), "a store at {}", store.url)
    rows = rows_for(w, model, put=True)
    put = {row.key: row.value for row in rows}
    if w.random.random() < 0.5:
        store.put_many([{"key": _given_key(model, k), "value": v} for k, v in put.items()])
    else:
        for key, value in put.items():
            if value is None:
                store.delete(key)
            else:
                store.put(key, value)
    found = rows_by_key(store.get_many(list(put)).items())
    check(found.keys() == {k for k, v in put.items() if v is not None}, "a store has {}", found)
    if w.random.random() < 0.2:
        store.rollback()
        check(rows_by_key(store.scan()).keys() == shown.keys(), "a store after its rollback")
        return False
    source = w.random.choice(sorted(w.logs))
    at = w.fresh(source).stable_offsets()
    rows = [Row(None, key, value) for key, value in put.items()]
    w.expect(place, rows, Deal(("app", len(w.trace), 0)))
    try:
        log = w.fresh(source)
        store.commit({log: at}, missed_deletes=True)
        check(store.next_offsets(log) == log.start_offsets() | at, "a store's positions {}", at)
        check(store.positions[w.logs[source].log_id] == at, "a store's positions {}", at)
        check(store.version <= w.fresh(place).version, "a store at {}", store.version)
    except OffsetOutOfRangeError:
        w.failed = True
    return None


def _given_key(model: LogModel, key: Any) -> Any:
    return dict(zip(("a", "b"), key, strict=True)) if model.key == "pair" else key


@operation("StateStore.is_standby", "StateStore.refresh", may=has(_may_store))
def stand_by(w: World) -> bool | None:
    """A store that only follows, for as long as it is kept."""
    place = w.random.choice(places(w, _may_store))
    if any(kept.ask is _ask_standby and kept.place == place for kept in w.kept):
        return False
    folder = w.folder / f"standby-{place}"
    made = StateStore(w.url(place), folder, "app", clock=w.clock, ids=w.ids, standby=True)
    w.kept.append(Kept(w.logs[place], place, made, _ask_standby))
    return None


def _ask_standby(w: World, kept: Kept) -> None:
    if kept.model in w.gone:
        w.kept.remove(kept)
        kept.made.close()
        return
    try:
        check(kept.made.is_standby, "a standby is one no more")
        kept.made.refresh()
        w.observe_table(kept.place, rows_by_key(kept.made.scan()))
    except CommitConflictError:
        return  # An undecided transaction comes first.


@operation("StateStore.take_over", may=has(_may_store))
def take_over(w: World) -> bool | None:
    """A standby takes the id, and works."""
    if not any(kept.ask is _ask_standby for kept in w.kept):
        stand_by(w)
    kept = w.random.choice([kept for kept in w.kept if kept.ask is _ask_standby])
    w.kept.remove(kept)
    if kept.model in w.gone or not _may_store(kept.model):
        kept.made.close()
        return False
    done: bool | None = False
    try:
        kept.made.take_over()
        done = _worked(w, kept.place, kept.model, kept.made)
    except _FENCED:
        w.failed = True
    finally:
        kept.made.close()
    return done


# --- Streams of Spark, without Spark


def _streams(w: World) -> list[Kept]:
    return [kept for kept in w.kept if isinstance(kept.made, Stream)]


@operation("ClogDataSource.streamReader", weight=1.5)
def start_stream(w: World) -> bool | None:
    """A query begins at the start of a log; it lives on whatever happens to the log."""
    if len(_streams(w)) > 2:
        return False
    place = w.random.choice(sorted(w.logs))
    made = Stream(w, w.url(place), w.logs[place])
    w.kept.append(Kept(w.logs[place], place, made, _ask_nothing, survives=False))
    return None


def _ask_nothing(w: World, kept: Kept) -> None:
    if kept.model in w.gone and w.random.random() < 0.5:
        w.kept.remove(kept)


@operation("ClogDataSource.streamReader", weight=3, may=lambda w: bool(_streams(w)))
def run_batch(w: World) -> bool | None:
    """A batch is planned, or one that was planned before is read: each record comes once."""
    kept = w.random.choice(_streams(w))
    if kept.made.checkpoint is None and kept.model in w.gone:
        w.kept.remove(kept)  # It has not begun: it would begin in the log that is there now.
        return False
    try:
        return bool(kept.made.step(w)) or None
    except (OffsetOutOfRangeError, LogReplacedError, NotFoundError, InvalidInputError) as e:
        kept.made.told(w, kept.model, e)
        w.kept.remove(kept)
        return None


@operation("ClogDataSource.streamReader", may=lambda w: bool(_streams(w)))
def restart_stream(w: World) -> None:
    """A query starts again from its checkpoint, and loads its source again."""
    w.random.choice(_streams(w)).made.start(w)


# --- A mirror of a topic of Kafka


def _has_topic(w: World) -> bool:
    return w.broker is not None


@operation("clog.bridge.mirror", weight=1)
def send_to_topic(w: World) -> None:
    """Others write to a topic, whose records a log here may mirror."""
    if w.broker is None:
        w.broker = Broker(w.random.choice((0, DAY_MS, DAY_MS)))
    for _ in range(w.random.randint(1, 5)):
        key = f"t{w.random.randrange(6)}".encode()
        value = f"v{w.random.randrange(1000)}".encode() if w.random.random() < 0.7 else None
        w.broker.send(key, value, w.clock.now_ms())


@operation(weight=0.7, may=_has_topic)
def clean_topic(w: World) -> None:
    """Kafka's own cleaner does a pass."""
    w.broker.clean(w.clock.now_ms())


@operation("clog.bridge.mirror", "Log.markers", weight=1.5, may=_has_topic)
def mirror_topic(w: World) -> bool | None:
    """A log has what the topic has, or its mirror says that it may have missed deletes."""
    fed = places(w, lambda m: m.is_fed)
    free = sorted(set(PLACES) - w.logs.keys())
    if not fed and not free:
        return False
    place = fed[0] if fed else w.random.choice(free)
    config = {"delete.retention.ms": DAY_MS} if w.random.random() < 0.3 else {}
    how = {"clock": w.clock, "ids": SeededIds(w.random.randrange(1 << 30)), "config": config}
    done = False
    if not fed:
        Log.create(w.url(place), TOPIC_PARTITIONS, features=["given-offsets"], **_own(w))
        log = w.fresh(place)
        model = LogModel(log.id, TOPIC_PARTITIONS, is_fed=True, prefix="t")
        model.takes_offsets = model.was_mirror = True
        stand(w, place, model, log, None)
    model = w.logs[place]
    w.expect(place, None)
    try:
        mirrored(w.broker, w.url(place), **how)
        done = True
    except SourcePurgedError as e:
        check("missed deletes" in str(e), "a mirror stopped: {}", e)
    if not done and w.random.random() < 0.7:
        w.expect(place, None)
        mirrored(w.broker, w.url(place), reconcile=True, **how)
        done = True
    w.observe(done=False)
    if done:
        starts = model.starts[-1][1]
        wanted = {m.key_: m for m in w.broker.sent}
        table = {
            key: m.value_
            for key, m in wanted.items()
            if m.value_ is not None and m.offset_ >= starts[m.partition_]
        }
        found = rows_by_key(w.fresh(place).table().get_many(sorted(wanted)).items())
        compare(f"a mirror in {place}", found, table, model.doubtful(model.version))
    return None


def _own(w: World) -> dict[str, Any]:
    return {"clock": w.clock, "ids": w.ids}
