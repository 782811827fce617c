"""SFTP: a server whose host key is not known is refused before anything is sent to it."""

import subprocess

import pytest

from clog.storage import InvalidInputError
from clog.storage.store import open_store
from clog.storage.store.contract import StoreRefusedError


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user who knows no server, and has no connection to one from the test before."""
    sftp = pytest.importorskip("fsspec.implementations.sftp", reason="paramiko is not installed")
    sftp.SFTPFileSystem.clear_instance_cache()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home/.ssh").mkdir(parents=True)
    return tmp_path / "home"


@pytest.fixture
def unknown(openssh, home):
    """URL and options of a server whose key nobody was told, and the key."""
    assert not (home / ".ssh/known_hosts").exists()
    url, options = openssh
    return url, {k: v for k, v in options.items() if k != "host_key"}, options["host_key"]


def works(url, options):
    store = open_store(url, options)
    store.create("a", b"1")
    return store.get("a") == b"1"


def keyscan(url, *options):
    """What ssh-keyscan prints for the server of a URL."""
    host, _, rest = url.removeprefix("sftp://").partition(":")
    command = ["ssh-keyscan", *options, "-p", rest.partition("/")[0], host]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("operation", ["get", "create", "list"])
def test_an_unknown_server_is_refused(unknown, operation):
    """Whatever is asked of it; the error has its key's fingerprint, and what to do."""
    url, options, _ = unknown
    store = open_store(url, options)
    call = {
        "get": lambda: store.get("a"),
        "create": lambda: store.create("a", b"1"),
        "list": lambda: list(store.list("")),
    }[operation]
    with pytest.raises(StoreRefusedError) as raised:
        call()
    message = str(raised.value)
    assert message.startswith("the host key of [127.0.0.1]:")
    assert "ssh-ed25519 SHA256:" in message
    assert "is in none of ~/.ssh/known_hosts, /etc/ssh/ssh_known_hosts" in message
    assert 'option host_key (host_key_policy="auto_add" trusts any server)' in message


def test_a_server_in_known_hosts_is_believed(unknown, home):
    """In plain words, and where the names are hashed."""
    url, options, _ = unknown
    known = home / ".ssh/known_hosts"
    known.write_text("# a comment\nnonsense\nother ssh-ed25519 !\n" + keyscan(url))
    assert works(f"{url}/plain", options)
    known.write_text(keyscan(url, "-H"))
    assert "127.0.0.1" not in known.read_text()
    assert works(f"{url}/hashed", options)


def test_a_given_key_is_enough(unknown):
    """As a ``.pub`` file has it, as ssh-keyscan prints it, or type and key alone."""
    url, options, host_key = unknown
    forms = (host_key, keyscan(url), " ".join(host_key.split()[:2]))
    for number, form in enumerate(forms):
        assert works(f"{url}/{number}", {**options, "host_key": form})


def test_a_server_with_another_key_is_refused(unknown, home):
    """Given or in known_hosts: somebody may be in between."""
    url, options, _ = unknown
    made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home / "other")]
    subprocess.run(made, check=True)
    other = (home / "other.pub").read_text()
    with pytest.raises(StoreRefusedError, match="differs from the known one: somebody may be"):
        works(url, {**options, "host_key": other})
    name = keyscan(url).split()[0]
    (home / ".ssh/known_hosts").write_text(f"{name} {other}")
    with pytest.raises(StoreRefusedError, match="differs from the known one"):
        works(url, options)


def test_no_login_is_tried_at_an_unknown_server(unknown, monkeypatch):
    """A password is not for whoever sits in between."""
    paramiko = pytest.importorskip("paramiko")
    url, options, _ = unknown
    tried = []
    for way in ("auth_none", "auth_password", "auth_publickey"):
        monkeypatch.setattr(paramiko.Transport, way, lambda *login: tried.append(login))
    with pytest.raises(StoreRefusedError):
        works(url, {**options, "password": "secret"})
    assert tried == []


def test_the_check_can_be_left_out(unknown):
    """By fsspec's own option."""
    url, options, _ = unknown
    assert works(url, {**options, "host_key_policy": "auto_add"})


def test_a_chain_of_urls_is_checked_too(unknown):
    """The server behind ``dir::`` takes its options under its protocol's name."""
    url, options, host_key = unknown
    place = url.replace("/logs/orders", "")
    with pytest.raises(StoreRefusedError):
        open_store(f"dir://logs::{place}", {"sftp": options})
    store = open_store(f"dir://logs::{place}", {"sftp": {**options, "host_key": host_key}})
    store.create("a", b"1")
    assert store.get("a") == b"1"


@pytest.mark.parametrize("host_key", ["nonsense", "ssh-ed25519 AAAA"])
def test_what_is_no_key_is_named(unknown, host_key):
    """By the option's name."""
    url, options, _ = unknown
    with pytest.raises(
        InvalidInputError, match=r"^storage option 'host_key' for .* is not a host key"
    ):
        works(url, {**options, "host_key": host_key})
