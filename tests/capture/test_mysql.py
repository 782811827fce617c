"""Captures of a real MySQL server, by Debezium's engine (`bridge.mysql`)."""

import random
import signal
import subprocess
import sys
import threading
from datetime import UTC, date, datetime, time
from decimal import Decimal

import numpy as np
import pytest

from clog.bridge import CaptureSettings, TableSettings, capture_mysql, verify_capture_mysql
from clog.storage import Log, snapshot, snapshots
from clog.storage.errors import (
    InvalidInputError,
    SourceError,
    SourcePurgedError,
    SourceReplacedError,
)

pytestmark = pytest.mark.nightly

FOLLOW = """
import sys
from clog.bridge import CaptureSettings, capture_mysql
def on_progress(told):
    print("at", told.position, flush=True)
capture_mysql(*sys.argv[1:], CaptureSettings(on_progress=on_progress))
"""


def taken(mysql, url, **more):
    return capture_mysql(mysql.dsn, url, CaptureSettings(once=True, **more))


def shown(mysql, url, name):
    """Returns the rows of a table at the newest cut."""
    log = Log.open(f"{url}/{mysql.name}.{name}")
    return log.table(at=snapshot(url)).to_arrow().to_pylist()


def test_rows_are_loaded_and_followed(mysql, url):
    """S76: existing rows, then transactions; changed keys; what was rolled back is not there."""
    mysql.sql("create table t (id int primary key, v varchar(20))", "insert into t values (1, 'a')")
    taken(mysql, url)
    assert shown(mysql, url, "t") == [{"id": 1, "v": "a"}]
    mysql.sql(
        *("begin", "insert into t values (2, 'b'), (3, 'c')", "update t set id = 9 where id = 2"),
        *("savepoint s", "delete from t", "rollback to s", "delete from t where id = 1", "commit"),
        *("begin", "insert into t values (4, 'no')", "rollback"),
    )
    done = taken(mysql, url)
    assert done.transactions == 1
    assert done.lag_bytes == 0
    assert shown(mysql, url, "t") == [{"id": 3, "v": "c"}, {"id": 9, "v": "b"}]
    assert taken(mysql, url).rows == 0


COLUMNS = (
    "(id bigint unsigned, k varchar(5), n decimal(20, 3), d date, t time(6), at datetime(6),"
    " z timestamp(6) null, j json, b blob, e enum('x', 'y'), f float, g double,"
    " primary key (id, k))"
)


def test_types_are_kept_exactly(mysql, url):
    """What each type becomes; in the load and in the stream alike."""
    mysql.sql(f"create table t {COLUMNS}")
    row = (
        "insert into t values ({}, 'ü', -12345678901234567.125, '2024-02-29', '23:59:59.999999',"
        " '9999-12-31 00:00:00.000001', '2024-01-01 00:00:00.5', '[1]', x'00ff', 'y',"
        " 1.2345678, 1e300)"
    )
    mysql.sql("set time_zone = '+00:00'", row.format(2**64 - 1))
    taken(mysql, url)
    mysql.sql("set time_zone = '+00:00'", row.format(1), "insert into t (id, k) values (2, '')")
    taken(mysql, url)
    values = {
        "k": "ü",
        "n": Decimal("-12345678901234567.125"),
        "d": date(2024, 2, 29),
        "t": time(23, 59, 59, 999999),
        "at": datetime(9999, 12, 31, 0, 0, 0, 1),
        "z": datetime(2024, 1, 1, 0, 0, 0, 500000, tzinfo=UTC),
        "j": "[1]",
        "b": b"\0\xff",
        "e": "y",
        "f": float(np.float32(1.2345678)),
        "g": 1e300,
    }
    found = {int(row.pop("id")): row for row in shown(mysql, url, "t")}
    assert found.pop(2) == {**dict.fromkeys(values), "k": ""}
    assert found == {1: values, 2**64 - 1: values}


def test_tables_without_rows_have_logs(mysql, url):
    """S76: in the first cut, or from their creation on; new rows find the columns."""
    mysql.sql(f"create table t {COLUMNS}", "create table u (id int primary key, v text)")
    done = taken(mysql, url)
    assert set(done.tables) == {f"{mysql.name}.t", f"{mysql.name}.u"}
    assert shown(mysql, url, "t") == shown(mysql, url, "u") == []
    version = Log.open(f"{url}/{mysql.name}.t").schema
    mysql.sql("create table w (id int primary key)")
    mysql.sql("insert into t (id, k) values (2, '')", "insert into u values (1, 'a')")
    taken(mysql, url)
    assert Log.open(f"{url}/{mysql.name}.t").schema == version
    assert [row["id"] for row in shown(mysql, url, "t")] == [2]
    assert shown(mysql, url, "u") == [{"id": 1, "v": "a"}]
    assert shown(mysql, url, "w") == []


def test_what_differs_from_the_source_is_found(mysql, url, monkeypatch):
    """All rows equal, behind, and with what changed left out; a wrong row is named."""
    monkeypatch.setenv("CLOG_CAPTURE_HASH_KEY", "0123456789abcdef")
    mysql.sql(
        f"create table t {COLUMNS}",
        *(
            "create table u (id int primary key, v text, w text)",
            "create table w (id int primary key)",
        ),
        "insert into t (id, k, j, at, z, n, f, t) values (1, 'a', '{\"b\": [1, 2], \"a\": 0.5}',"
        " now(6), now(6), 0.125, 0.1, '11:00:00.5'), (18446744073709551615, 'b', null, null, null,"
        " null, 1e-30, null)",
        "insert into u values (1, 'a', 'secret'), (2, 'b', null), (3, 'c', '')",
    )
    taken(mysql, url, masks={f"{mysql.name}.u.w": "hash"})
    mysql.sql("insert into t select 3, k, n, d, t, at, z, j, b, e, f, g from t where id = 1")
    taken(mysql, url, masks={f"{mysql.name}.u.w": "hash"})
    found = verify_capture_mysql(mysql.dsn, url)
    assert found.is_equal, found
    assert not found.skipped
    told = [(one.table, one.rows, one.log_rows, one.changed) for one in found.tables]
    name = mysql.name
    assert told == [(f"{name}.t", 3, 3, 0), (f"{name}.u", 3, 3, 0), (f"{name}.w", 0, 0, 0)]
    mysql.sql("update u set id = 9 where id = 1", "insert into u values (4, '', '')")
    mysql.sql("truncate w")
    found = verify_capture_mysql(mysql.dsn, url, TableSettings(exclude=["t"]))
    assert found.is_equal, found
    assert found.skipped == {f"{name}.w": "it was emptied in the meantime"}
    assert [(one.rows, one.log_rows, one.changed) for one in found.tables] == [(2, 2, 3)]
    mysql.sql(
        *("set sql_log_bin = 0", "delete from t where id = 3", "update u set w = 'x' where id = 2"),
        "insert into u values (7, '', '')",
    )
    one, other = verify_capture_mysql(mysql.dsn, url, TableSettings(tables=["t", "u"])).tables
    assert [(d.key, d.why) for d in one.differences] == [("id=3, k=a", "only the log has it")]
    assert {(d.key, d.why) for d in other.differences} == {
        ("id=2", "w differs"),
        ("id=7", "only the source has it"),
    }
    assert snapshots(url) == []


def test_tables_that_change_are_followed_or_stop_the_capture(mysql, url):
    """H-C9, H-C10: changes of rows without a message are never missed."""
    mysql.sql(
        *("create table t (id int primary key, a int, b int)", "insert into t values (1, 1, 1)"),
        *("create table u (id int primary key)", "insert into u values (1)"),
    )
    taken(mysql, url)
    mysql.sql(
        *("alter table t add c varchar(5), drop b", "insert into t values (2, 2, 'c')"),
        *("truncate table u", "insert into u values (2)"),
        *("create table v (id int primary key)", "insert into v values (3)", "drop table u"),
    )
    taken(mysql, url)
    assert shown(mysql, url, "t") == [
        {"id": 1, "a": 1, "b": 1, "c": None},
        {"id": 2, "a": 2, "b": None, "c": "c"},
    ]
    assert shown(mysql, url, "u") == []
    assert [row["id"] for row in shown(mysql, url, "v")] == [3]
    mysql.sql("insert into t values (3, 3, 'd')", "alter table t drop a, add a int default 7")
    for _ in range(2):
        with pytest.raises(SourceError, match="reload all"):
            taken(mysql, url)
    assert [row["id"] for row in shown(mysql, url, "t")] == [1, 2, 3]
    mysql.sql("delete from t where id = 2")
    taken(mysql, url, reload=True)
    assert [(row["id"], row["a"]) for row in shown(mysql, url, "t")] == [(1, 7), (3, 7)]
    mysql.sql("insert into t values (5, 'e', 5)")
    taken(mysql, url)
    assert [row["id"] for row in shown(mysql, url, "t")] == [1, 3, 5]


def test_what_cannot_be_followed_is_refused(mysql, url, tmp_path, monkeypatch):
    """Before anything is written."""
    mysql.sql("create table t (id int primary key, v text)", "create table k (id int)")
    with pytest.raises(InvalidInputError, match=r"\.k .*no primary key"):
        taken(mysql, url)
    with pytest.raises(InvalidInputError, match="not by 'text'"):
        taken(mysql, url, masks={f"{mysql.name}.t.v": "text"})
    taken(mysql, url, exclude=["k"])
    with pytest.raises(InvalidInputError, match="reload all"):
        taken(mysql, url, tables=["t"])
    with pytest.raises(InvalidInputError, match="new URL"):
        taken(mysql, url, exclude=["k"], masks={f"{mysql.name}.t.v": "drop"})
    other = f"{mysql.name}x"
    mysql.sql(f"create database {other}", f"create table {other}.t (id int primary key)")
    with pytest.raises(SourceReplacedError, match="new URL"):
        capture_mysql(mysql.server.dsn(other), url, CaptureSettings(once=True))
    monkeypatch.setenv("CLOG_CAPTURE_HASH_KEY", "0123456789abcdef")
    mysql.sql("insert into t values (1, 'secret')")
    masked = str(tmp_path / "masked")
    taken(mysql, masked, exclude=["k"], masks={f"{mysql.name}.t.v": "hash"})
    ((row,),) = (shown(mysql, masked, "t"),)
    assert len(row["v"]) == 64


def test_a_binary_log_that_is_gone_is_never_skipped(mysql, url):
    """H-C21: what the server has dropped is not missed silently."""
    mysql.sql("create table t (id int primary key)", "insert into t values (1)")
    taken(mysql, url)
    mysql.sql("insert into t values (2)", "flush binary logs", "insert into t values (3)")
    (*_, (newest, *_)) = mysql.rows("show binary logs")
    mysql.sql(f"purge binary logs to '{newest}'")
    with pytest.raises(SourcePurgedError, match="reload all"):
        taken(mysql, url)
    taken(mysql, url, reload=True)
    assert [row["id"] for row in shown(mysql, url, "t")] == [1, 2, 3]


class Transfers(threading.Thread):
    """Moves money between accounts of two tables, so that the sum stays the same."""

    def __init__(self, mysql):
        super().__init__(daemon=True)
        self.mysql, self.stop, self.dice = mysql, threading.Event(), random.Random(1)
        self.count = 0

    def run(self):
        connection = self.mysql.connect()
        connection.setAutoCommit(False)
        ask = connection.createStatement()
        while not self.stop.wait(0.01):
            a, b, much = self.dice.randrange(50), self.dice.randrange(50), self.dice.randrange(99)
            ask.execute(f"update a set n = n - {much} where id = {a}")
            ask.execute(f"update b set n = n + {much} where id = {b}")
            ask.execute(f"insert into moves values ({self.count}, {much}, repeat('x', 500))")
            if self.dice.random() < 0.1:
                connection.rollback()
            else:
                connection.commit()
                self.count += 1
        connection.close()


def killed_after(wanted, mysql, url, cuts):
    """Checks this many cuts of a capture, as they come, and kills it."""
    run = subprocess.Popen(
        [sys.executable, "-c", FOLLOW, mysql.dsn, url], stdout=subprocess.PIPE, text=True
    )
    try:
        while wanted and (line := run.stdout.readline()):
            if not line.startswith("at ") or line == "at None\n":
                continue
            wanted -= 1
            cut = snapshot(url)
            cuts.add(cut.logs[url])
            tables = [
                Log.open(f"{url}/{mysql.name}.{name}").table(at=cut).to_arrow()
                for name in ("a", "b")
            ]
            assert sum(sum(table["n"].to_pylist()) for table in tables) == 100 * 1000
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    assert not wanted, "it ended by itself"


def test_killed_captures_keep_each_transaction_whole(mysql, url):
    """S74, S76: at every cut, after each kill, and at the end everything equals the source."""
    rows = ", ".join(f"({i}, 1000)" for i in range(50))
    mysql.sql(
        *("create table a (id int primary key, n int)", f"insert into a values {rows}"),
        *("create table b (id int primary key, n int)", f"insert into b values {rows}"),
        "create table moves (id int primary key, much int, note text)",
    )
    writer, dice, cuts = Transfers(mysql), random.Random(2), set()
    writer.start()
    try:
        for _ in range(8):
            killed_after(dice.randrange(1, 12), mysql, url, cuts)
    finally:
        writer.stop.set()
        writer.join()
    assert len(cuts) > 8
    taken(mysql, url)
    for name in ("a", "b", "moves"):
        there = sorted(shown(mysql, url, name), key=lambda row: row["id"])
        theirs = mysql.rows(f"select * from {name} order by id")
        assert [tuple(map(str, row.values())) for row in there] == theirs
    assert len(shown(mysql, url, "moves")) == writer.count
