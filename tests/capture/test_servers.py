"""What happens to a server: it is replaced, drops data, requires TLS; and the captures
beside it.
"""

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from clog.bridge import PostgresSettings, capture
from clog.storage import (
    InvalidInputError,
    Log,
    SourceError,
    SourcePurgedError,
    SourceReplacedError,
    SourceUnavailableError,
    snapshot,
)

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[2]
TABLE = "create table t (id int primary key, v text)"


@pytest.fixture
def servers(postgres_server, tmp_path_factory):
    """Creates servers for a test, which are stopped after it."""
    from contextlib import ExitStack

    made = type(postgres_server)
    folder = Path(postgres_server.folder).parent / tmp_path_factory.mktemp("servers").name
    with ExitStack() as stack:

        def server(name, settings=None, *, prepare=lambda _: None):
            one = made(folder / name, settings)
            prepare(one)
            return stack.enter_context(one)

        yield server


def sql(server, *statements):
    """Runs statements, each in its own transaction; returns the rows of the last."""
    import psycopg2

    connection = psycopg2.connect(server.dsn)
    connection.autocommit = True
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        found = cursor.fetchall() if cursor.description else []
    connection.close()
    return found


def check(server, url):
    """Raises unless the log has what the table has."""
    rows = Log.open(f"{url}/public.t").table(at=snapshot(url)).to_arrow().to_pylist()
    there = sql(server, "select id, v from t order by id")
    assert sorted((row["id"], row["v"]) for row in rows) == there


def until(holds):
    """Waits until it holds; bounded by the test's own timeout."""
    while not holds():
        time.sleep(0.05)


def command(*arguments, **environment):
    """Runs `clog capture`."""
    return subprocess.run(
        [sys.executable, "-m", "clog_command", "capture", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("dispute", ["another database", "other arguments", "a publication"])
def test_what_is_refused_does_not_end_a_capture_that_runs(shop, postgres_server, url, dispute):
    """It is refused before any id is taken over: the first one continues."""
    postgres = shop.postgres
    postgres.sql(TABLE, "insert into t values (1, 'a')")
    with shop.followed() as told:
        until(lambda: told and told[-1].position)
        if dispute == "another database":
            with pytest.raises(SourceReplacedError, match="capture into a new URL"):
                capture(postgres_server.dsn, url, PostgresSettings(once=True))
        elif dispute == "a publication":
            postgres.sql("create publication p for table t")
            with pytest.raises(InvalidInputError, match="its own publication, but publication"):
                capture(postgres.dsn, url, PostgresSettings(once=True, publication="p"))
        else:
            with pytest.raises(InvalidInputError, match=r"already has \['v'\]"):
                capture(
                    postgres.dsn, url, PostgresSettings(once=True, masks={"public.t.v": "drop"})
                )
        postgres.sql("insert into t values (2, 'b')")
        until(lambda: told[-1].transactions == 1)


def test_a_user_who_may_not_publish_is_told_what_to_do(shop):
    """By the missing permissions, one after the other; with a publication of the owner it works."""
    name = f"limited_{shop.postgres.name}"
    shop.sql(TABLE, f"create role {name} login replication", f"grant select on t to {name}")
    dsn = shop.postgres.dsn.replace("postgres@", f"{name}@")
    for more, why in (
        ("select 1", "denied for database"),
        (f"grant create on database {shop.postgres.name} to {name}", "must be owner"),
    ):
        shop.sql(more)
        with pytest.raises(SourceError, match=rf"{why}.*CREATE PUBLICATION .*--publication"):
            capture(dsn, shop.url, PostgresSettings(once=True))
    shop.sql("create publication p for table t")
    assert capture(dsn, shop.url, PostgresSettings(once=True, publication="p")).position
    shop.sql(f"drop owned by {name}", f"drop role {name}")


def test_a_slot_whose_log_was_removed_stops(servers, url):
    """H-C21: `max_slot_wal_keep_size` bounds what the slot keeps; the remedy is in the message, and
    works.
    """
    server = servers("bounded", {"max_slot_wal_keep_size": "16MB", "min_wal_size": "32MB"})
    sql(server, TABLE, "insert into t select i, 'a' from generate_series(1, 10) i")
    capture(server.dsn, url, PostgresSettings(once=True))
    sql(server, "delete from t where id = 1")
    status = "select wal_status from pg_replication_slots"
    while sql(server, status) != [("lost",)]:
        sql(server, "create table w as select repeat('x', 999) from generate_series(1, 20000)")
        sql(server, "drop table w", "select pg_switch_wal()", "checkpoint")
    with pytest.raises(SourcePurgedError, match=r"lost changes that it had to keep.*--reload"):
        capture(server.dsn, url, PostgresSettings(once=True))
    assert command(server.dsn, url, "--once", "--reload", "all").returncode == 0
    check(server, url)
    assert sql(server, status) == [("reserved",)]


def standby_of(primary, server):
    """Creates a standby in a folder; it follows its primary."""
    from peers.postgres import UnavailableError, program

    try:
        program("pg_basebackup")
    except UnavailableError as e:
        pytest.skip(str(e))
    server.folder.mkdir(parents=True)
    server.own(server.folder)
    server.run("pg_basebackup", "-d", primary.dsn, "-D", server.data, "-R", "-X", "stream")


def caught_up(primary, standby):
    """Returns whether a standby has everything that its primary has."""
    ((lsn,),) = sql(primary, "select pg_current_wal_lsn()")
    ((behind,),) = sql(standby, f"select pg_last_wal_replay_lsn() < '{lsn}'")
    return not behind


def test_a_standby_that_took_over_with_all(servers, url):
    """H-C20: what the logs have is in its history; its slot is missing, and the error says so."""
    primary = servers("primary")
    sql(primary, TABLE, "insert into t values (1, 'a'), (2, 'b')")
    standby = servers("standby", prepare=lambda one: standby_of(primary, one))
    capture(primary.dsn, url, PostgresSettings(once=True))
    with pytest.raises(InvalidInputError, match="is a standby; capture its primary"):
        capture(standby.dsn, url, PostgresSettings(once=True))
    until(lambda: caught_up(primary, standby))
    primary.kill()
    standby.run("pg_ctl", "-D", standby.data, "-w", "promote")
    sql(standby, "delete from t where id = 1", "insert into t values (3, 'c')")
    with pytest.raises(SourcePurgedError, match="does not exist"):
        capture(standby.dsn, url, PostgresSettings(once=True))
    capture(standby.dsn, url, PostgresSettings(once=True, reload=True))
    check(standby, url)
    sql(standby, "insert into t values (4, 'd')")
    capture(standby.dsn, url, PostgresSettings(once=True))
    check(standby, url)
    primary.__enter__()  # It comes back, and does not know that it was replaced.
    with pytest.raises(SourceReplacedError, match="timeline"):
        capture(primary.dsn, url, PostgresSettings(once=True))


def test_a_standby_that_took_over_without_the_last_changes(servers, url):
    """H-C20: its LSNs are used again, for other changes; nothing is skipped, and nothing stays that
    it does not have.
    """
    primary = servers("primary")
    sql(primary, TABLE, "insert into t values (1, 'a')")
    standby = servers("standby", prepare=lambda one: standby_of(primary, one))
    until(lambda: caught_up(primary, standby))
    standby.stop("fast")
    sql(primary, "insert into t values (2, 'lost')")
    capture(primary.dsn, url, PostgresSettings(once=True))
    primary.kill()
    standby.__enter__()
    standby.run("pg_ctl", "-D", standby.data, "-w", "promote")
    sql(standby, *(f"insert into t values ({i}, 'new')" for i in range(10, 200)))
    with pytest.raises(SourceReplacedError, match="after a failover"):
        capture(standby.dsn, url, PostgresSettings(once=True))
    capture(standby.dsn, url, PostgresSettings(once=True, reload=True))
    check(standby, url)


def test_a_server_that_was_restored_from_a_copy(servers, url):
    """It ends before the logs do, and all its positions are lower: the recommended remedy works,
    and it is followed from then on.
    """
    server = servers("restored")
    sql(server, TABLE, "insert into t values (1, 'a'), (2, 'b')")
    server.stop("fast")
    copy = server.folder / "copy"
    shutil.copytree(server.data, copy)
    for path in (copy, *copy.rglob("*")):
        server.own(path)
    server.__enter__()
    sql(server, "insert into t select i, 'lost' from generate_series(10, 10000) i")
    sql(server, "delete from t where id = 1")
    capture(server.dsn, url, PostgresSettings(once=True))
    server.stop("fast")
    shutil.rmtree(server.data)
    copy.rename(server.data)
    server.__enter__()
    with pytest.raises(SourceReplacedError, match=r"lost its end.*--reload"):
        capture(server.dsn, url, PostgresSettings(once=True))
    capture(server.dsn, url, PostgresSettings(once=True, reload=True))
    check(server, url)
    sql(server, "insert into t values (3, 'c')", "delete from t where id = 2")
    capture(server.dsn, url, PostgresSettings(once=True))
    check(server, url)


def certificate(folder, name, *more):
    """Makes a certificate and its key; returns the certificate's path."""
    folder.mkdir(exist_ok=True)
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    where = ["-nodes", "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt"]
    subprocess.run([*new, *where, "-subj", f"/CN={name}", *more], check=True, capture_output=True)
    return folder / f"{name}.crt"


def certified(folder, server):
    """Gives a server a certificate of its own authority, and makes it refuse unencrypted
    connections; returns the authority's certificate.
    """
    authority = certificate(folder, "authority")
    signer = ("-CA", authority, "-CAkey", authority.with_suffix(".key"))
    made = certificate(folder, "server", *signer, "-addext", "subjectAltName=IP:127.0.0.1")
    for one in (made, made.with_suffix(".key")):
        there = server.data / one.name
        there.write_bytes(one.read_bytes())
        there.chmod(0o600)
        server.own(there)
    (server.data / "pg_hba.conf").write_text(
        "hostssl all all all scram-sha-256\nhostssl replication all all scram-sha-256\n"
    )
    with (server.data / "postgresql.conf").open("a") as conf:
        conf.write("ssl = on\n")
    server.run("pg_ctl", "-D", server.data, "reload")
    return authority


def test_a_server_is_known_by_its_certificate(
    servers, tmp_path, url, postgres, monkeypatch, caplog
):
    """`sslmode=verify-full`, with a password that is never shown; another authority's certificate,
    another name and no TLS are refused.
    """
    server = servers("secret")
    secret = "hunter2-and-more"
    sql(server, TABLE, "insert into t values (1, 'a')", f"alter user postgres password '{secret}'")
    authority = certified(tmp_path, server)
    monkeypatch.setenv("PGPASSWORD", secret)
    dsn = f"{server.dsn}?sslmode=verify-full&sslrootcert={authority}"
    plain = f"{server.dsn}?sslmode=disable"
    until(lambda: refuses(plain, url))
    caplog.set_level(logging.DEBUG)
    done = command(dsn, url, "--once", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tables"]["public.t"]["loaded"] == 1
    other = certificate(tmp_path / "other", "authority")
    renamed = dsn.replace("127.0.0.1", "localhost"), dsn.replace(str(authority), str(other))
    for one in (plain, *renamed):
        with pytest.raises(SourceUnavailableError) as e:
            capture(one, url, PostgresSettings(once=True))
        assert secret not in str(e.value)
    monkeypatch.setenv("PGPASSWORD", "wrong-hunter2")
    told = command(dsn, url, "--once", CLOG_LOG="debug")
    assert told.returncode
    assert "hunter2" not in told.stdout + told.stderr + caplog.text


def refuses(dsn, url):
    """Returns whether a server does not respond."""
    try:
        capture(dsn, url, PostgresSettings(once=True))
    except SourceUnavailableError:
        return True
    return False


def test_a_slot_that_keeps_too_much_is_given_up(postgres, url):
    """`--slot-max-mib`: also while it is read; the capture ends, and says how to continue."""
    postgres.sql(TABLE, "insert into t values (1, 'a')")
    assert command(postgres.dsn, url, "--once").returncode == 0
    idle = postgres.connect(autocommit=False)
    idle.cursor().execute("insert into t values (2, 'b')")  # What is written since is kept for it.
    postgres.sql(
        "create table w as select repeat('x', 999) from generate_series(1, 5000)",
        "insert into t values (3, 'c')",
    )
    done = command(postgres.dsn, url, "--slot-max-mib", "1")
    idle.rollback()
    idle.close()
    assert done.returncode not in (0, 130)
    assert "more than allowed, and was dropped" in done.stderr
    left = "select slot_name from pg_replication_slots where database = current_database()"
    assert postgres.query(left) == []
    again = command(postgres.dsn, url, "--once")
    assert "does not exist" in again.stderr
    assert command(postgres.dsn, url, "--once", "--reload", "all").returncode == 0
    assert len(Log.open(f"{url}/public.t").table(at=snapshot(url)).to_arrow()) == 2


def test_one_table_is_loaded_anew(postgres, url):
    """`--reload TABLE`: what was damaged in its log is as in the database; others stay."""
    postgres.sql(
        TABLE, "insert into t values (1, 'a'), (2, 'b')", "create table u (id int primary key)"
    )
    assert command(postgres.dsn, url, "--once").returncode == 0
    log = Log.open(f"{url}/public.t")
    log.append([{"key": 1, "value": None}, {"key": 9, "value": {"v": "strange"}}])
    done = command(postgres.dsn, url, "--once", "--json", "--reload", "public.t")
    assert done.returncode == 0, done.stderr
    tables = json.loads(done.stdout)["tables"]
    assert (tables["public.t"]["loaded"], tables["public.u"]["loaded"]) == (2, 0)
    rows = log.table(at=snapshot(url)).to_arrow().to_pylist()
    assert sorted((row["id"], row["v"]) for row in rows) == [(1, "a"), (2, "b")]


def test_a_capture_is_watched_over_http(postgres, url):
    """`--listen`: it is ready once there is a cut; what was taken is counted."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    postgres.sql(TABLE, "insert into t values (1, 'a')")
    run = [sys.executable, "-m", "clog_command", "capture", postgres.dsn, url]
    capture = subprocess.Popen([*run, "--listen", str(port)])

    def asked(path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}") as answer:
                return answer.read().decode()
        except OSError:
            return ""

    until(lambda: '"ok"' in asked("readyz"))
    postgres.sql("insert into t values (2, 'b')")
    until(lambda: "clog_capture_transactions_total 1.0" in asked("metrics"))
    assert 'clog_capture_loaded_rows_total{table="public.t"} 1.0' in asked("metrics")
    capture.terminate()
    assert capture.wait() == 128 + signal.SIGTERM


def test_the_example_ends_with_a_join(postgres):
    """`examples/shop`: in each cut an order's items add up to its total."""
    run = [sys.executable, ROOT / "examples/shop/run.py", "--dsn", postgres.dsn]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(", 0 that do not add up") == 2
