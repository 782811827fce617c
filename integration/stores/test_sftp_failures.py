"""What an SFTP server does wrong: connections that end within a read, files that were cut, folders
that may not be written.
"""

import socket
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import servers

from clog.storage import CorruptionError, Log, StoreUnavailableError
from clog.storage.format import documents
from clog.storage.store import open_store
from clog.storage.store.contract import StoreRefusedError

MANY_BYTES = 3 << 20


class Cutting:
    """A way to a server, which may end each connection after so many bytes of it.

    Attributes:
        port: where it listens.
        left: the bytes that still come through; None: all.
    """

    def __init__(self, target):
        self.left = None
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self):
        self._listening.close()

    def _serve(self):
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            for pair in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source, sink, counts):
        try:
            while data := source.recv(1 << 15):
                if counts and self.left is not None:
                    data, self.left = data[: self.left], self.left - len(data)
                sink.sendall(data)
                if counts and self.left is not None and self.left <= 0:
                    break
        except OSError:
            pass
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def cutting(openssh_server):
    made = Cutting(openssh_server[0])
    yield made
    made.close()


@pytest.fixture
def root(openssh_server, cutting, tmp_path):
    """A folder behind the proxy, and its options, the host's key among them."""
    return url_of(cutting.port, tmp_path), openssh_server[1]


def url_of(port, tmp_path):
    return f"sftp://127.0.0.1:{port}{tmp_path}/log"


@pytest.mark.parametrize("after", [0, 1 << 10, 1 << 20, MANY_BYTES - 1])
def test_a_connection_that_ends_within_a_read(root, cutting, after):
    """Neither half of the bytes nor a file that is not there; the next read connects anew."""
    store = open_store(*root)
    data = bytes(range(256)) * (MANY_BYTES // 256)
    store.put("a", data)
    cutting.left = after
    with pytest.raises(StoreUnavailableError):
        store.get("a")
    cutting.left = None
    assert store.get("a") == data
    assert store.get("a", 10, 20) == data[10:20]


def test_a_connection_that_ends_within_a_write(root, cutting):
    """Wherever it ends, the name is not there, or is there whole."""
    data, failed = bytes(range(256)) * 4096, 0
    for after in range(0, 6000, 500):
        store, name = open_store(*root), f"a{after}"
        cutting.left = after
        try:
            store.create(name, data)
        except StoreUnavailableError:
            failed += 1
        cutting.left = None
        try:
            assert store.get(name) == data
        except FileNotFoundError:
            store.create(name, data)
    assert failed > 2


def test_an_object_that_was_cut(root, tmp_path):
    """Its length, and what the manifest says of it, tell."""
    log = Log.create(root[0], 1, storage_options=root[1])
    log.append([{"key": f"k{n}", "value": "v" * 100} for n in range(100)])
    (path,) = tmp_path.rglob("*.parquet")
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(CorruptionError, match=r"\.parquet"):
        list(Log.open(root[0], storage_options=root[1]).read())


@contextmanager
def read_only(folder, tmp_path):
    """A server that refuses each write, also to the superuser."""
    config = (folder / "sshd_config").read_text()
    port = servers.free_port()
    lines = [line for line in config.splitlines() if not line.startswith(("Port", "Subsystem"))]
    text = "\n".join([f"Port {port}", *lines, "Subsystem sftp internal-sftp -R", ""])
    (tmp_path / "sshd_config").write_text(text)
    sshd = servers.program("sshd", "apt-get install openssh-server", "/usr/sbin")
    with servers.running([sshd, "-D", "-e", "-f", str(tmp_path / "sshd_config")], port):
        yield port


def test_a_folder_that_may_only_be_read(root, tmp_path):
    """It is read as ever; an append is told that it is refused, and what to look at."""
    url, options = root
    Log.create(url, 1, storage_options=options).append([{"key": "k", "value": "v"}])
    with read_only(Path(options["key_filename"]).parent, tmp_path) as port:
        log = Log.open(url_of(port, tmp_path), storage_options=options)
        assert sum(batch.num_rows for batch in log.read()) == 1
        with pytest.raises(StoreRefusedError, match="denied"):
            log.append([{"key": "k", "value": "v"}])
    assert Log.open(url, storage_options=options).version == 1


def test_a_server_that_is_gone(root, cutting):
    """As a file system that fails, whatever is asked."""
    url, options = root
    log = Log.create(url, 1, storage_options=options)
    log.append([{"key": "k", "value": "v"}])
    cutting.close()
    cutting.left = 0
    with pytest.raises(StoreUnavailableError):
        list(log.handle.store.list(documents.COMMITS))
    with pytest.raises(StoreUnavailableError):
        log.append([{"key": "k", "value": "v"}])
