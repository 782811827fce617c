"""A log's folder, and the page in a thread."""

import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from clog.storage.format.documents import folder_of


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
