"""What unit tests of all packages share: including a store in memory, and repeatable logs on it."""

import errno
import json

import pytest
from click.testing import CliRunner
from fsspec.implementations.local import LocalFileSystem

from clog.storage import Log, ManualClock
from clog.storage.env import SeededIds
from clog_testing.crash import discard, memory_store
from clog_testing.model import rows_in


@pytest.fixture
def url(tmp_path):
    """Where a log may be created."""
    return str(tmp_path / "log")


@pytest.fixture
def forbidden(monkeypatch):
    """Makes local folders unlistable, whichever user runs the tests: a set of their paths."""
    list_folder, folders = LocalFileSystem.ls, set()

    def ls(self, path, *args, **kwargs):
        if str(path) in folders:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return list_folder(self, path, *args, **kwargs)

    monkeypatch.setattr(LocalFileSystem, "ls", ls)
    return folders


@pytest.fixture
def store():
    made = memory_store()
    yield made
    discard(made)


@pytest.fixture
def clock():
    return ManualClock(now_ms=1_000_000)


@pytest.fixture
def make_log(store, clock):
    """Creates the log of the test's store."""

    seeds = iter(range(1000, 2000))

    def make(partitions=1, config=None, *, on=None, **given):
        ids = SeededIds(next(seeds))
        return Log.create(on or store, partitions, config, clock=clock, ids=ids, **given)

    return make


@pytest.fixture
def open_log(store, clock):
    """Opens it again, as another process would."""
    seeds = iter(range(2, 1000))
    return lambda on=None: Log.open(on or store, clock=clock, ids=SeededIds(next(seeds)))


@pytest.fixture
def values_of():
    """The values that a log holds, in offset order."""
    return lambda log, **where: [row[2].value for row in rows_in(log.read(**where))]


class Cli:
    """Runs `clog` and checks its exit code; a bytes or text ``stdin`` is its standard input."""

    def __init__(self):
        self._runner = CliRunner()

    def __call__(self, *arguments, stdin=b"", code=0):
        from clog.cli.app import app

        result = self._runner.invoke(app, [str(a) for a in arguments], input=stdin)
        failure = f"{result.stdout}\n{result.stderr}\n{result.exception!r}"
        assert result.exit_code == code, failure
        return result

    def json(self, *arguments, stdin=b"", code=0):
        """The JSON document that a command prints."""
        return json.loads(self(*arguments, "--json", stdin=stdin, code=code).stdout)

    def lines(self, *arguments):
        """What a command prints, line by line, as bytes."""
        return self(*arguments).stdout_bytes.split(b"\n")[:-1]


@pytest.fixture
def cli(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("CLOG_STORAGE_OPTIONS", raising=False)
    return Cli()
