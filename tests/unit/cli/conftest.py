"""A runner of the command line, in this process, on real files."""

import json
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from clog.storage.format.documents import folder_of


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


@pytest.fixture
def folder(log, url):
    """The folder with all files of the log but one."""
    return Path(url, folder_of(log.handle.standing.log_id))


@pytest.fixture
def serving():
    """Serves the page of logs in a thread; yields the port."""

    @contextmanager
    def serving(shown, cleaner=None, **given):
        from clog.cleaner.daemon.metrics import listening, quiet_server
        from clog.cli.serving import application

        with listening("0") as socket:
            server = quiet_server(application(shown, cleaner, **given))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
            thread.start()
            try:
                yield socket.getsockname()[1]
            finally:
                server.should_exit = True
                thread.join()

    return serving
