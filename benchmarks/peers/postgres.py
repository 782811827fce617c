"""A server of PostgreSQL for tests, examples and soaks: the machine's own, or that whose programs
are in the folder that ``CLOG_POSTGRES_BIN`` names; in a folder of its own.

It runs as a user that may: its programs refuse root, so under root it is the user ``postgres``. It
listens on a port of 127.0.0.1 that was free.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

SETTINGS = {
    "wal_level": "logical",
    "max_replication_slots": 20,
    "max_wal_senders": 20,
    "max_prepared_transactions": 10,
    "max_connections": 60,
    "shared_buffers": "32MB",
    "fsync": "off",
    "wal_sender_timeout": "30s",
    "timezone": "UTC",
}
START_S = 60


class UnavailableError(Exception):
    """There is no server here."""


def program(name):
    """Returns the path of one of PostgreSQL's programs."""
    own = os.environ.get("CLOG_POSTGRES_BIN")
    found = str(Path(own) / name) if own else shutil.which(name)
    if found is None:
        folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        found = str(folders[-1] / name) if folders else None
    if found is None or not Path(found).exists():
        raise UnavailableError(f"PostgreSQL is not installed: no {name}")
    return found


class Server:
    """One server; a ``with`` statement starts and stops it. ``kill`` stops it as a crash does."""

    def __init__(self, folder, settings=None):
        self.folder = Path(folder)
        self.data = self.folder / "data"
        self.settings = {**SETTINGS, **(settings or {})}
        self.program = program("postgres")
        self.is_running = False
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    @property
    def dsn(self):
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def __enter__(self):
        if not self.data.exists():
            self._init()
        end = time.monotonic() + START_S
        while True:
            try:
                self.run(
                    *("pg_ctl", "-D", self.data, "-l", self.folder / "server.log"),
                    *("-o", f"-p {self.port}", "-w", "start"),
                )
                self.is_running = True
                return self
            except UnavailableError:  # After a kill some process may still hold its memory.
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)

    def __exit__(self, *_):
        if self.is_running:
            self.stop()

    def stop(self, mode="immediate"):
        """Ends it."""
        self.run("pg_ctl", "-D", self.data, "-m", mode, "-w", "stop")
        self.is_running = False

    @staticmethod
    def own(path):
        """Gives a path to the user that runs servers."""
        if os.geteuid() == 0:
            owner = pwd.getpwnam("postgres")
            os.chown(path, owner.pw_uid, owner.pw_gid)

    def kill(self):
        """Ends it without a word: kill -9 of all of it."""
        self.is_running = False
        pid = int((self.data / "postmaster.pid").read_text().split()[0])
        children = subprocess.run(
            ["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False
        ).stdout.split()
        for one in (pid, *map(int, children)):
            try:
                os.kill(one, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _init(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            self.own(self.folder)
            for parent in self.folder.parents:  # Which pytest makes for their owner alone.
                if (
                    parent.stat().st_uid == 0
                    and parent.is_relative_to("/tmp")
                    and parent != Path("/tmp")
                ):
                    parent.chmod(parent.stat().st_mode | 0o111)
        self.run(
            "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"
        )
        lines = [f"{name} = '{value}'\n" for name, value in self.settings.items()]
        lines += ["listen_addresses = '127.0.0.1'\n"]
        lines += [f"unix_socket_directories = '{self.folder}'\n"]
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.writelines(lines)

    def run(self, name, *arguments):
        """Runs one of PostgreSQL's programs, as who may."""
        ids = {}
        if os.geteuid() == 0:
            owner = pwd.getpwnam("postgres")
            ids = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
        done = subprocess.run(
            [program(name), *map(str, arguments)],
            stdout=subprocess.PIPE if name != "pg_ctl" else subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            cwd="/",
            timeout=START_S,
            **ids,
        )
        if done.returncode:
            raise UnavailableError(f"{name} failed: {done.stdout}")
