"""Objects that say that threads may share them: every public method of each, called by eight
threads on one object.

The methods are those of the class, so a new one has to be placed here: among the calls, which check
their answer, or among those that are left out, with the reason. What is `Shared` says so by its
type, and holds nothing that is another's to change.
"""

import dataclasses
import enum
import threading
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from types import MappingProxyType

import duckdb
import pyarrow as pa
import pytest

from clog.cleaner.monitor import Monitor
from clog.cleaner.selection import PassResult, PassStats
from clog.storage import (
    Log,
    NotFoundError,
    StateStore,
    StateTable,
    Table,
    VersionExpiredError,
)
from clog.storage.commit.appends import Proposed
from clog.storage.commit.committer import NothingToCommit
from clog.storage.commit.handle import Handle
from clog.storage.commit.proposals import Waits
from clog.storage.config.log_config import LogConfig
from clog.storage.env import Shared, SystemClock, SystemIds
from clog.storage.format.commits import Edit
from clog.storage.publications.publish import Publications
from clog.storage.readers import NamedReader
from clog.storage.store import open_store
from clog.storage.store.contract import ObjectExistsError, Store
from clog.storage.transactions.transaction import Holders

THREADS, ROUNDS = 8, 3
SCHEMA = {"key": pa.string(), "value": pa.struct([("n", pa.int64())])}
KEYS = [f"k{me}" for me in range(THREADS)]


def public(kind):
    """The public names."""
    return {n for n in dir(kind) if not n.startswith("_")} | ({"__len__"} & {*vars(kind)})


def together(work):
    """Does the work in all threads at the same time, several times; raises what the first one
    raised.
    """
    start, raised = threading.Barrier(THREADS), []

    def run(me):
        try:
            start.wait()
            for n in range(ROUNDS):
                work(me, n)
        except BaseException as e:  # Raised below.
            raised.append(e)

    threads = [threading.Thread(target=run, args=(me,)) for me in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def row(me, n):
    return {"key": KEYS[me], "value": {"n": 1000 * me + n}}


def is_of(me, value):
    return value is None or value["n"] // 1000 == me


def appended(log, me, n):
    """An appended record is at the returned offset."""
    result = log.append([row(me, n)], partition=me % 2)
    ((p, (base, end)),) = result.offsets.items()
    (batch,) = log.read(p, base, end, columns=["key", "value"])
    assert (p, end - base) == (me % 2, 1)
    assert batch.column("key").to_pylist() == [KEYS[me]]
    assert batch.column("value")[0].as_py()["n"] == 1000 * me + n


def read(log, me, n):
    """Each offset exists, and in order."""
    ends = log.end_offsets()
    offsets = [o for b in log.read(me % 2) for o in b.column("offset").to_pylist()]
    assert offsets == [*range(len(offsets))]
    assert len(offsets) >= ends[me % 2]


def follows(log, me, n):
    """Versions follow one another."""
    versions = [commit.version for commit in log.history()]
    assert versions == [*range(len(versions))]


def transacted(log, me, n):
    with log.transaction(f"t{me}") as t:
        t.append([row(me, n)], partition=me % 2)
        t.positions(log, {0: n})
    ((_, (base, end)),) = t.result.offsets.items()
    assert end - base == 1
    assert log.positions(f"t{me}") == {log.id: {0: n}}


def not_open(log, me, n):
    with pytest.raises(NotFoundError):
        log.abort_transaction(f"none{me}")


def named(log, me, n):
    with log.reader(f"r{me}", interval_ms=0) as reader:
        reader.commit({0: n})
        assert reader.position[0] == n


def segmented(log, me, n):
    segments = log.segments(me % 2)
    assert all(a.next_offset == b.base_offset for a, b in pairwise(segments))


def altered(log, me, n):
    assert int(log.alter({"retention.ms": 10**9 + me})["retention.ms"]) // 10**9 == 1


def truth(holds):
    """A call whose answer is one of the possible ones."""

    def call(of, me, n):
        assert holds(of, me), holds

    return call


OF_A_LOG = {
    "append": appended,
    "read": read,
    "table": truth(lambda log, me: is_of(me, log.table().get(KEYS[me]))),
    "latest": truth(lambda log, me: is_of(me, log.latest({0: 0, 1: 0}).get(KEYS[me]))),
    "changes": truth(lambda log, _: log.changes(since=0).to_arrow().num_rows >= THREADS),
    "delete": truth(lambda log, me: len(log.delete([f"nobody{me}"]).offsets) == 1),
    "start_offsets": truth(lambda log, _: log.start_offsets() == {0: 0, 1: 0}),
    "end_offsets": truth(lambda log, _: min(log.end_offsets().values()) >= THREADS // 2),
    "stable_offsets": truth(lambda log, _: min(log.stable_offsets().values()) >= THREADS // 2),
    "offsets_for_times": truth(lambda log, _: log.offsets_for_times(0) == {0: 0, 1: 0}),
    "delete_records": truth(lambda log, _: log.delete_records({0: 0}) == {0: 0}),
    "erase": truth(lambda log, me: len(log.erase([f"nobody{me}"], notify=False).secret) == 64),
    "erasures": truth(lambda log, _: {one.state for one in log.erasures()} <= {"pending"}),
    "alter": altered,
    "evolve": lambda log, me, n: (
        log.evolve(add={f"value.f{me}_{n}": pa.string()}).field("value").type.field(f"f{me}_{n}")
    ),
    "upgrade": truth(lambda log, _: {"on", "off"} <= {f.state for f in log.upgrade()}),
    "roll": truth(lambda log, _: set(log.roll()) <= {0, 1}),
    "segments": segmented,
    "history": follows,
    "describe": truth(lambda log, _: log.describe()["partitions"] == 2),
    "url": truth(lambda log, _: log.url == log.handle.store.url),
    "id": truth(lambda log, _: log.id == log.handle.standing.log_id),
    "version": truth(lambda log, _: log.version <= log.version),
    "partitions": truth(lambda log, _: log.partitions == 2),
    "schema": truth(lambda log, _: log.schema.field("key").type == pa.string()),
    "config": truth(lambda log, _: log.config["cleanup.policy"] == "compact"),
    "transaction": transacted,
    "transactions": truth(lambda log, _: isinstance(log.transactions(), list)),
    "abort_transaction": not_open,
    "markers": truth(lambda log, _: log.markers(0) == []),
    "positions": truth(lambda log, me: set(log.positions(f"t{me}")) <= {log.id}),
    "sequence": truth(lambda log, me: log.sequence(f"p{me}") is None),
    "reader": named,
    "readers": truth(lambda log, _: not any(r.damage for r in log.readers())),
    "forget_reader": truth(lambda log, me: log.forget_reader(f"forgotten{me}") is None),
    "publish": truth(lambda log, _: log.publish("delta").version >= THREADS),
    "withdraw": truth(lambda log, _: not log.withdraw("delta").given_up),
}
NOT_OF_A_LOG = {
    "create": "makes another object",
    "open": "makes another object",
    "handle": "not for users",
    "object_writer": "not for users",
    "append_objects": "not for users",
    "give_offsets": "is for a log that takes offsets, and once",
}


@pytest.fixture
def log(store):
    """A log with a record of each thread; it is on the system's clock, like the users'."""
    made = Log.create(store, 2, {"segment.bytes": 500, "compression.type": "none"}, schema=SCHEMA)
    for me in range(THREADS):
        made.append([row(me, 0)], partition=me % 2)
    return made


def test_all_methods_are_placed():
    """So that a new one is called here, or left out with a reason."""
    for kind, calls, others in (
        (Log, OF_A_LOG, NOT_OF_A_LOG),
        (Table, OF_A_TABLE, NOT_OF_A_TABLE),
        (StateTable, OF_A_STATE_TABLE, NOT_OF_STATE),
        (StateStore, OF_A_STATE_STORE, NOT_OF_STATE),
        (NamedReader, OF_A_READER, NOT_OF_A_READER),
        (Monitor, OF_A_MONITOR, {}),
        (Store, OF_A_STORE, {}),
        (Handle, OF_A_HANDLE, NOT_OF_A_HANDLE),
        (Holders, OF_HOLDERS, {"after_fork": "of a child alone"}),
        (Publications, OF_PUBLICATIONS, {}),
    ):
        assert calls.keys() | others.keys() >= public(kind), kind
        assert not calls.keys() & others.keys()


@pytest.mark.parametrize("name", OF_A_LOG)
def test_a_log(log, name):
    """`Log`: threads may share it."""
    together(lambda me, n: OF_A_LOG[name](log, me, n))


def test_all_of_a_log_at_once(log):
    """Each thread begins with another method."""
    calls = [*OF_A_LOG.values()]

    def work(me, n):
        for i in range(len(calls)):
            calls[(i + 4 * me) % len(calls)](log, me, n)

    together(work)
    assert log.table().to_arrow().num_rows == THREADS
    assert Log.open(log.handle.standing.root).table().get(KEYS[0])["n"] < 1000


def whole(table):
    return {r["key"]: r["value"]["n"] for r in table.to_pylist()}


EXPECTED = {key: 1000 * me for me, key in enumerate(KEYS)}
NOT_OF_A_TABLE = {
    "narrowed": "to_polars(lazy=True), and tables with a filter",
    "of_key_bytes": "of_keys, for connectors",
}
OF_A_TABLE = {
    "get": truth(lambda table, me: table.get(KEYS[me]) == {"n": 1000 * me}),
    "get_many": truth(lambda table, _: len(table.get_many(KEYS)) == THREADS),
    "of_keys": truth(lambda table, me: whole(table.of_keys([KEYS[me]])) == {KEYS[me]: 1000 * me}),
    "to_batches": truth(lambda t, _: whole(pa.Table.from_batches(t.to_batches())) == EXPECTED),
    "to_arrow": truth(lambda table, _: whole(table.to_arrow()) == EXPECTED),
    "to_pandas": truth(lambda table, _: len(table.to_pandas()) == THREADS),
    "to_polars": truth(lambda table, _: len(table.to_polars()) == THREADS),
    "to_duckdb": truth(
        lambda table, _: len(table.to_duckdb(connection=duckdb.connect()).fetchall()) == THREADS
    ),
    "to_pylist": truth(lambda table, _: len(table.to_pylist()) == THREADS),
    "__len__": truth(lambda table, _: len(table) == THREADS),
    "schema": truth(lambda table, _: table.schema == table.to_arrow().schema),
    "version": truth(lambda table, _: table.version == THREADS),
    "offsets": truth(lambda table, _: table.offsets == {0: THREADS // 2, 1: THREADS // 2}),
}


@pytest.mark.parametrize("name", OF_A_TABLE)
def test_a_table(log, name):
    """`Table`: `Log.table` returns the same one to all callers for a version."""
    table = log.table()
    together(lambda me, n: OF_A_TABLE[name](table, me, n))


def refreshed(table, me, n):
    table.refresh()


OF_STATE = {
    "get": truth(lambda state, me: is_of(me, state.get(KEYS[me]))),
    "get_many": truth(lambda state, _: set(state.get_many(KEYS)) <= {*KEYS}),
    "scan": truth(lambda state, _: {*KEYS} <= {key for key, _ in state.scan()}),
    "refresh": truth(lambda state, _: state.refresh().version >= THREADS),
    "version": truth(lambda state, _: state.version >= THREADS),
    "url": truth(lambda state, _: state.url.startswith("memory:")),
}
OF_A_STATE_TABLE = {
    **OF_STATE,
    "__len__": truth(lambda table, _: len(table) == THREADS),
    "offsets": truth(lambda table, _: table.offsets.keys() == {0, 1}),
}
NOT_OF_STATE = {
    "follow": "refreshes, for ever",
    "close": "called at the end",
    "after_fork": "not for users",
}


@pytest.mark.parametrize("name", OF_A_STATE_TABLE)
def test_a_state_table(log, tmp_path, name):
    """`StateTable`: threads may share it, even while others append and refresh; and close it."""
    table = StateTable(log.handle.standing.root, tmp_path)

    def work(me, n):
        if me == 0:
            log.append([row(0, n)], partition=0)
            table.refresh()
        OF_A_STATE_TABLE[name](table, me, n)

    together(work)
    together(lambda me, n: table.close())


def put(store, me, n):
    """A thread sees its own changes, whatever thread commits them."""
    store.put(KEYS[me], {"n": 1000 * me + n})
    assert store.get(KEYS[me]) == {"n": 1000 * me + n}


def put_many(store, me, n):
    """As `put`."""
    store.put_many([{"key": KEYS[me], "value": {"n": 1000 * me + n}}])
    assert store.get(KEYS[me]) == {"n": 1000 * me + n}


def deleted(store, me, n):
    store.put(f"gone{me}", {"n": n})
    store.delete(f"gone{me}")
    assert store.get(f"gone{me}") is None


def committed(store, me, n):
    put(store, me, n)
    store.commit({})
    assert store.get(KEYS[me]) == {"n": 1000 * me + n}


OF_A_STATE_STORE = {
    **OF_STATE,
    "put": put,
    "put_many": put_many,
    "delete": deleted,
    "commit": committed,
    "rollback": lambda store, me, n: store.rollback(),
    "take_over": lambda store, me, n: store.take_over(),
    "is_standby": truth(lambda store, _: not store.is_standby),
    "positions": truth(lambda store, _: store.positions == {}),
    "next_offsets": truth(lambda store, _: store.next_offsets(store.input) == {0: 0, 1: 0}),
}


@pytest.mark.parametrize("name", OF_A_STATE_STORE)
def test_a_state_store(log, tmp_path, name):
    """`StateStore`: threads may share it; and close it."""
    store = StateStore(log.handle.standing.root, tmp_path, "id")
    store.input = log
    together(lambda me, n: OF_A_STATE_STORE[name](store, me, n))
    together(lambda me, n: store.close())


def test_all_of_a_state_store_at_once(log, tmp_path):
    """Except for methods that undo others' changes."""
    store = StateStore(log.handle.standing.root, tmp_path, "id")
    store.input = log
    calls = [call for name, call in OF_A_STATE_STORE.items() if name != "rollback"]

    def work(me, n):
        for i in range(len(calls)):
            calls[(i + 2 * me) % len(calls)](store, me, n)

    together(work)
    store.commit()
    assert {k: v["n"] for k, v in store.scan()} == {
        key: 1000 * me + ROUNDS - 1 for me, key in enumerate(KEYS)
    }


NOT_OF_A_READER = {
    "handle": "not for users",
    "follow": "what it returns is of one thread",
    "followed": "not for users",
}
OF_A_READER = {
    "name": truth(lambda reader, _: reader.name == "r"),
    "position": truth(lambda reader, _: reader.position.keys() <= {0, 1}),
    "next_offsets": truth(lambda reader, _: reader.next_offsets().keys() == {0, 1}),
    "commit": lambda reader, me, n: reader.commit({me % 2: n}),
    "commit_at": lambda reader, me, n: reader.commit({me % 2: n}),
    "flush": lambda reader, me, n: reader.flush(),
    "end": lambda reader, me, n: reader.end(),
}


@pytest.mark.parametrize("name", OF_A_READER)
def test_a_named_reader(log, name):
    """`NamedReader`: its name is at the position reported last."""
    reader = log.reader("r", interval_ms=0)
    reader.commit({0: 0, 1: 0})
    together(lambda me, n: OF_A_READER[name](reader, me, n))
    reader.end()
    assert log.reader("r").position == reader.position


def watched(monitor, me, n):
    with monitor.watched(f"log{me}", None):
        assert any(a.url == f"log{me}" for a in monitor.activities())


def seen(monitor, me, n):
    handle = monitor.log.handle
    state = {"lags_ms": {}, "readers": (), "committers": 0, "waits": Waits()}
    monitor.saw("one", handle.manifest(), monitor.configs, now_ms=0, **state)
    assert len(monitor.logs()["one"].partitions) == 2


OF_A_MONITOR = {
    "clock": truth(lambda monitor, _: monitor.clock.now_ms() > 0),
    "round_ms": truth(lambda monitor, _: monitor.round_ms >= 0),
    "logs": truth(lambda monitor, _: isinstance(monitor.logs(), dict)),
    "activities": truth(lambda monitor, _: isinstance(monitor.activities(), list)),
    "found": lambda monitor, me, n: monitor.found(unopened={}, unlisted={}, by=me),
    "unlisted": truth(lambda monitor, _: not monitor.unlisted()),
    "looked": lambda monitor, me, n: monitor.looked(),
    "looks": lambda monitor, me, n: monitor.looks(me),
    "has_looked": truth(lambda monitor, _: monitor.has_looked()),
    "saw": seen,
    "round_ended": lambda monitor, me, n: monitor.round_ended("one", None),
    "watched": watched,
    "forget": lambda monitor, me, n: monitor.forget(f"other{me}"),
    "counted": lambda monitor, me, n: monitor.counted("one", Counter(records_coalesced=1)),
    "passed": lambda monitor, me, n: monitor.passed("one", PassResult(0, 0, 0, PassStats())),
}


@pytest.mark.parametrize("name", OF_A_MONITOR)
def test_a_monitor(log, name):
    """`Monitor`: the cleaner writes from all its threads, and any thread reads; nothing is lost."""
    monitor = Monitor(log.handle.clock)
    monitor.log, monitor.configs = log, LogConfig.from_overrides({})
    together(lambda me, n: OF_A_MONITOR[name](monitor, me, n))
    counted = {
        "round_ended": "rounds",
        "counted": "records_coalesced",
        "passed": "passes",
    }
    if name in counted:
        assert monitor.logs()["one"].totals[counted[name]] == THREADS * ROUNDS
    assert monitor.activities() == []


def created(store, me, n):
    """One of all succeeds, and its bytes stay (A2)."""
    with suppress(ObjectExistsError):
        store.create(f"one{n}", str(me).encode())
        assert store.get(f"one{n}") == str(me).encode()


def put_in(store, me, n):
    store.put(f"of{me}", str(n).encode())
    assert store.get(f"of{me}") == str(n).encode()


def dropped(store, me, n):
    store.put(f"gone{me}", b"1")
    store.delete(f"gone{me}")
    assert not list(store.list(f"gone{me}"))


OF_A_STORE = {
    "url": truth(lambda store, _: store.url),
    "create_is_proven": truth(lambda store, _: store.create_is_proven),
    "get": truth(lambda store, _: store.get("there") == b"0123"),
    "get_ranges": truth(lambda store, _: store.get_ranges("there", [(0, 1), (2, 4)])[1] == b"23"),
    "begin": truth(lambda store, _: store.begin(lambda: store.get("there"))() == b"0123"),
    "put": put_in,
    "create": created,
    "delete": dropped,
    "list": truth(lambda store, _: [f.path for f in store.list("there")] == ["there"]),
    "forget_old": truth(lambda store, _: store.forget_old("none/", 0)),
    "list_temporary": truth(lambda store, _: list(store.list_temporary("none/")) == []),
}


@pytest.mark.parametrize("name", OF_A_STORE)
@pytest.mark.parametrize("kind", ["memory", "local"])
def test_a_store(store, tmp_path, kind, name):
    """`Store`: safe to use from many threads."""
    shared = store if kind == "memory" else open_store(f"{tmp_path}/store")
    shared.put("there", b"0123")
    together(lambda me, n: OF_A_STORE[name](shared, me, n))


def committed_once(handle, me, n):
    """A change is one version, and a call without a change reports so."""
    made = handle.commit(lambda _tip, _ms: Edit(), operation="test")
    assert handle.has_committed(made.version, made.record.commit_id)
    nothing = NothingToCommit()
    assert handle.commit(lambda _tip, _ms: nothing, operation="test") is nothing


def appended_by_handle(handle, me, n):
    nothing = NothingToCommit()
    assert handle.append(lambda _tip, _ms: nothing, Proposed(())) is nothing


def at_its_version(handle, me, n):
    version = handle.tip.version
    assert handle.manifest_at(version).version == version


OF_A_HANDLE = {
    "tip": truth(lambda handle, _: handle.tip.version >= THREADS),
    "writer_pages": truth(lambda handle, _: handle.writer_pages is handle.writer_pages),
    "planned": truth(lambda handle, _: handle.planned[0] <= handle.refresh().version),
    "planned_for": truth(lambda handle, _: handle.planned_for({0: 0})[0] <= handle.tip.version),
    "refresh": truth(lambda handle, _: handle.refresh().version <= handle.refresh().version),
    "recent": truth(lambda handle, _: handle.recent(settled=True).version >= THREADS),
    "find_writer": truth(lambda handle, _: handle.find_writer("producer", "none") is None),
    "committers": truth(lambda handle, _: handle.committers() >= 0),
    "waits": truth(lambda handle, _: handle.waits() is None),
    "end_pending": truth(lambda handle, _: handle.end_pending([("producer", "none")]).version > 0),
    "with_pages": truth(lambda handle, _: handle.with_pages(handle.tip, lambda t: t.version) > 0),
    "has_committed": truth(lambda handle, _: not handle.has_committed(THREADS, "0" * 32)),
    "opened_anew": truth(lambda handle, _: handle.opened_anew().tip.version >= THREADS),
    "commit": committed_once,
    "take_owed_snapshot": truth(lambda handle, _: handle.take_owed_snapshot() is None),
    "append": appended_by_handle,
    "manifest": truth(lambda handle, _: handle.manifest().version >= THREADS),
    "manifest_at": at_its_version,
    "manifest_asked": truth(
        lambda handle, _: handle.manifest_asked(handle.tip, 1, None, "since").version == 1
    ),
}
NOT_OF_A_HANDLE = {"withdraw": "where the log is gone", "checked": "of a value that may be none"}


@pytest.mark.parametrize("name", OF_A_HANDLE)
def test_a_handle(log, name):
    """`Handle`: shared by connectors and the cleaner; others append in the meantime."""
    other = Log.open(log.handle.standing.root)

    def work(me, n):
        if me == 0:
            other.append([row(0, n)], partition=0)
        OF_A_HANDLE[name](log.handle, me, n)

    together(work)


def begun(holders, me, n):
    t = holders.begin(f"t{me}", 60_000)
    assert t.number == n
    assert t in holders._begun.values()
    t.abort()


def aborted(holders, me, n):
    with pytest.raises(NotFoundError):
        holders.abort(f"none{me}", force=False)


OF_HOLDERS = {
    "begin": begun,
    "infos": truth(lambda holders, _: holders.infos() == []),
    "abort": aborted,
    "positions": truth(lambda holders, me: holders.positions(f"t{me}") == {}),
    "marked_positions": truth(lambda holders, me: holders.marked_positions(f"t{me}") == {}),
}


@pytest.mark.parametrize("name", OF_HOLDERS)
def test_holders(log, name):
    """`Holders`: the ids of one handle."""
    holders = Holders(log.handle)
    together(lambda me, n: OF_HOLDERS[name](holders, me, n))


def published_for_nobody(views, me, n):
    """Refused at the commit, because there is no such keep."""
    with pytest.raises(VersionExpiredError, match="keeps a version for this cut"):
        views.publish_kept("delta", views.look("delta").source.version, "a" * 32)


OF_PUBLICATIONS = {
    "look": truth(lambda views, _: views.look("delta").log_id is not None),
    "publish": truth(lambda views, _: views.publish("delta").version >= THREADS),
    "publish_kept": published_for_nobody,
    "withdraw": truth(lambda views, _: not views.withdraw("delta").given_up),
    "release": truth(lambda views, _: views.release("iceberg") is None),
    "is_current": truth(lambda views, _: views.is_current("delta") in (True, False)),
    "is_behind_since": lambda views, me, n: views.is_behind_since("delta", 0),
    "shows_deleted": lambda views, me, n: views.shows_deleted("delta"),
}


@pytest.mark.parametrize("name", OF_PUBLICATIONS)
def test_publications(log, name):
    """`Publications`: the views of one log."""
    views = Publications(log.handle)
    views.publish("delta")
    together(lambda me, n: OF_PUBLICATIONS[name](views, me, n))


PLACED = {
    *(NamedReader, StateStore, Monitor, Handle, Holders, Publications),
}
INNER = {
    "AppendQueue": "of a `Handle`, which appends through it",
    "WriterPages": "of a `Handle`, whose appends and transactions ask it",
    "KeyIndexCache": "of a `Log`, whose tables read through it",
    "ConcurrentStore": "of one read of a table, whose threads decode through it",
    "Kept": "of one read of a table, whose threads fetch through it",
    "Follower": "of a `StateTable` and a `StateStore`",
    "Cache": "of a `Follower`",
    "Uncommitted": "of a `StateStore`",
    "_Threads": "of the calls that are begun, as by a `Table` that is read whole",
}


def shared_kinds(kind=Shared):
    for sub in kind.__subclasses__():
        if sub.__module__.startswith("clog."):
            yield sub
        yield from shared_kinds(sub)


def test_all_that_is_shared_is_placed():
    """Called here by eight threads, or by a method that is."""
    assert {kind for kind in shared_kinds() if kind.__name__ not in INNER} == PLACED
    assert {kind.__name__ for kind in shared_kinds()} >= INNER.keys()


OWN = {
    "Handle": {"_tip": "set and asked under its lock", "_made": "used under its lock"},
    "Log": {"_parts": "each is set by one step"},
    "StateStore": {
        "_holding": "used under its lock",
        "_inputs": "used under its lock",
        "_pending": "used under its lock",
    },
}
"""Workers that belong to shared objects, and to nothing else."""
CONTAINERS = (dict, list, set, MappingProxyType)


def is_value(it):
    """Returns whether it cannot be changed."""
    plain = it is None or isinstance(it, bool | int | float | str | bytes | enum.Enum)
    frozen = dataclasses.is_dataclass(it) and type(it).__setattr__ is not object.__setattr__
    return plain or frozen or (isinstance(it, tuple | frozenset) and all(map(is_value, it)))


LOCK = type(threading.RLock())


def may_be_held(name, it):
    is_own = name.startswith("_") and isinstance(it, CONTAINERS)
    is_shared = isinstance(it, Shared | Log | StateTable | SystemClock | SystemIds | LOCK)
    is_store = callable(getattr(it, "get_ranges", None))
    return is_own or is_shared or is_store or is_value(it) or callable(it)


def test_what_is_shared_holds_values_and_what_is_shared(log, tmp_path):
    """Otherwise a thread could change what another one uses, bypassing the lock; its other contents
    belong to it alone.
    """
    root = log.handle.standing.root
    with StateStore(root, tmp_path / "store", "id") as store, StateTable(root, tmp_path) as table:
        store.put(KEYS[0], {"n": 1})
        log.table().get(KEYS[0])
        log.publish("delta")
        views, holders = log._part(Publications), log._part(Holders)
        holders.begin("t", 60_000)
        monitor = Monitor(log.handle.clock)
        for it in (log, log.handle, views, holders, log.reader("r"), monitor, store, table):
            kind = type(it).__name__
            strange = {
                name
                for name, value in vars(it).items()
                if not may_be_held(name, value) and name not in OWN.get(kind, {})
            }
            assert not strange, (kind, strange)
