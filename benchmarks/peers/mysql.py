"""A server of MySQL for tests: the program that ``CLOG_MYSQLD`` names, or the machine's own."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

PASSWORD = "pw"
START_S = 120
PREPARE = f"""
create user clog@'127.0.0.1' identified by '{PASSWORD}';
grant all on *.* to clog@'127.0.0.1';
"""


def program():
    """Returns the path of MySQL's server, or None: MariaDB's has the same name."""
    found = os.environ.get("CLOG_MYSQLD") or shutil.which("mysqld")
    if found is None:
        return None
    told = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    return None if told.returncode or "MariaDB" in told.stdout else found


class Server:
    """One server; a ``with`` statement starts and stops it."""

    def __init__(self, folder):
        self.folder = Path(folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = None

    def dsn(self, database):
        return f"mysql://clog@127.0.0.1:{self.port}/{database}"

    def __enter__(self):
        self.folder.chmod(0o777)
        user = ["--user=mysql"] if os.geteuid() == 0 else []
        data = f"--datadir={self.folder / 'data'}"
        base = [program(), "--no-defaults", *os.environ.get("CLOG_MYSQLD_OPTIONS", "").split()]
        begun = self.folder / "init.sql"
        begun.write_text(PREPARE)
        log = (self.folder / "log").open("w")
        make = [*base, *user, data, "--initialize-insecure", f"--init-file={begun}"]
        subprocess.run(make, check=True, stdout=log, stderr=log)
        where = [f"--port={self.port}", "--bind-address=127.0.0.1", "--mysqlx=OFF"]
        paths = [f"--socket={self.folder / 's'}", f"--pid-file={self.folder / 'pid'}"]
        light = ["--innodb-buffer-pool-size=16M", "--performance-schema=OFF", "--sync-binlog=0"]
        more = ["--secure-file-priv=NULL", "--innodb-flush-log-at-trx-commit=0", "--server-id=7"]
        run = [*base, *user, data, *where, *paths, *light, *more]
        self.process = subprocess.Popen(run, stdout=log, stderr=log)
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self
            time.sleep(0.1)
        raise TimeoutError((self.folder / "log").read_text()[-2000:])

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


class Database:
    """A database of one test's own, asked through the client that Debezium brings."""

    def __init__(self, server, name):
        self.server, self.name = server, name

    @property
    def dsn(self):
        return self.server.dsn(self.name)

    def connect(self, database=None):
        """Returns a connection of Java's, which commits each statement by itself."""
        import jpype

        given = jpype.JClass("java.util.Properties")()
        options = {"user": "clog", "password": PASSWORD, "allowPublicKeyRetrieval": "true"}
        for name, value in options.items():
            given.setProperty(name, value)
        at = f"jdbc:mysql://127.0.0.1:{self.server.port}/{self.name if database is None else ''}"
        return jpype.JClass("com.mysql.cj.jdbc.Driver")().connect(at, given)

    def sql(self, *statements):
        """Runs statements over one connection."""
        connection = self.connect()
        try:
            for statement in statements:
                connection.createStatement().execute(statement)
        finally:
            connection.close()

    def rows(self, query):
        """Returns rows, as texts."""
        connection = self.connect()
        try:
            found = connection.createStatement().executeQuery(query)
            count, rows = found.getMetaData().getColumnCount(), []
            while found.next():
                texts = (found.getString(i + 1) for i in range(count))
                rows.append(tuple(None if text is None else str(text) for text in texts))
            return rows
        finally:
            connection.close()
