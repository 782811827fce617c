"""What tests of the capture do with a real PostgreSQL server."""

import importlib.util
import itertools
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from clog.bridge import PostgresSettings, capture
from clog.storage import Log, snapshot

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
WAIT_S = 30
_numbers = itertools.count()


class Postgres:
    """A server, and a database for one test."""

    def __init__(self, server, name):
        self.server = server
        self.name = name

    @property
    def dsn(self):
        return self.server.dsn.removesuffix("/postgres") + f"/{self.name}"

    def connect(self, *, autocommit=True):
        """Returns a connection."""
        import psycopg2

        connection = psycopg2.connect(self.dsn)
        connection.autocommit = autocommit
        return connection

    def sql(self, *statements):
        """Runs statements, each in a transaction of its own."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
        finally:
            connection.close()

    def query(self, statement, *arguments):
        """Returns rows."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, arguments or None)
                return cursor.fetchall()
        finally:
            connection.close()

    @staticmethod
    def until(holds):
        """Waits until it holds; at most for `WAIT_S`."""
        end = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < end, "it does not become true"
            time.sleep(0.02)


class Shop:
    """A database, its logs, and what both contain."""

    def __init__(self, postgres, url):
        self.postgres = postgres
        self.url = url

    def sql(self, *statements):
        self.postgres.sql(*statements)

    def capture(self, **more):
        return capture(self.postgres.dsn, self.url, PostgresSettings(once=True, **more))

    @contextmanager
    def followed(self, **more):
        """Follows while the block runs; yields the reports, the newest last. Raises its error."""
        stop, told, errors = threading.Event(), [], []

        def follow():
            hooks = {"on_progress": told.append, "should_stop": stop.is_set}
            try:
                capture(self.postgres.dsn, self.url, PostgresSettings(**hooks, **more))
            except Exception as e:
                errors.append(e)

        thread = threading.Thread(target=follow)
        thread.start()
        try:
            yield told
        finally:
            stop.set()
            thread.join()
        if errors:
            raise errors[0]

    def publication(self):
        """The name of the publication that capture made for tables with keys."""
        ((name,),) = self.postgres.query(
            "select pubname::text from pg_publication where pubname !~ '_events$'"
        )
        return name

    def log(self, name="public.t"):
        return Log.open(f"{self.url}/{name}")

    def rows(self, name="public.t", cut=None):
        return self.log(name).table(at=cut or snapshot(self.url)).to_arrow().to_pylist()

    def check(self, *names, columns="*"):
        """Raises unless these tables are at the cut as they are in the database."""
        cut = snapshot(self.url)
        for name in names or ("public.t",):
            there = self.postgres.query(f"select {columns} from {name} x")
            described = self.postgres.query(
                "select attname::text from pg_attribute where attrelid = %s::regclass"
                " and attnum > 0 and not attisdropped order by attnum",
                name,
            )
            fields = [row[0] for row in described]
            found = [tuple(row[f] for f in fields) for row in self.rows(name, cut)]
            assert sorted(found, key=str) == sorted(there, key=str)


@pytest.fixture(scope="session")
def postgres_server():
    """A running server, in a folder that its user can always enter: pytest closes its own to others
    at each start.
    """
    if importlib.util.find_spec("psycopg2") is None:
        pytest.skip("psycopg2 is not installed")
    sys.path.append(str(BENCHMARKS))
    from peers.postgres import Server, UnavailableError

    with tempfile.TemporaryDirectory(prefix="clog-postgres-") as folder:
        try:
            server = Server(Path(folder) / "server")
        except UnavailableError as e:
            pytest.skip(str(e))
        with server:
            yield server


@pytest.fixture
def postgres(postgres_server):
    """A database of its own, without other slots."""
    name = f"db{next(_numbers)}"
    made = Postgres(postgres_server, name)
    Postgres(postgres_server, "postgres").sql(f"create database {name}")
    yield made
    made.sql(
        "select pg_terminate_backend(active_pid) from pg_replication_slots"
        " where active_pid is not null and database = current_database()"
    )
    drop = (
        "select count(pg_drop_replication_slot(slot_name)) from pg_replication_slots"
        " where database = current_database() and not active"
    )
    left = "select 1 from pg_replication_slots where database = current_database()"
    made.until(lambda: made.sql(drop) or not made.query(left))


@pytest.fixture
def url(tmp_path):
    """Where a captured database may be."""
    return str(tmp_path / "shop")


@pytest.fixture
def shop(postgres, url):
    """A captured database that may be altered."""
    return Shop(postgres, url)


@pytest.fixture(scope="session")
def mysql_server():
    """A running MySQL server."""
    if importlib.util.find_spec("pydbzengine") is None:
        pytest.skip("pydbzengine is not installed: pip install 'pyspark-clog[capture-debezium]'")
    sys.path.append(str(BENCHMARKS))
    from peers import mysql

    from clog.bridge.mysql.engine import start_java

    if mysql.program() is None:
        pytest.skip("MySQL is not installed: CLOG_MYSQLD may name its server")
    start_java()
    with tempfile.TemporaryDirectory(prefix="clog-mysql-") as folder, mysql.Server(folder) as one:
        yield one


@pytest.fixture
def mysql(mysql_server, monkeypatch):
    """A database for one test."""
    from peers.mysql import PASSWORD, Database

    monkeypatch.setenv("MYSQL_PWD", PASSWORD)
    made = Database(mysql_server, f"db{next(_numbers)}")
    connection = made.connect(database="")
    connection.createStatement().execute(f"create database {made.name}")
    connection.close()
    return made
