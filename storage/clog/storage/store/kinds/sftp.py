"""SFTP: a temporary file and a rename; the server proves its identity before anything is sent.

fsspec accepts any host key, so a man in the middle could read passwords and records. Here the key
must be known, as for OpenSSH's own client: from the storage option ``host_key``, or from
``known_hosts``. fsspec passes options that it does not know to paramiko's ``connect``, which takes
a factory for its *transport*, the connection before the login: ours checks the key there.
"""

import io
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from clog.storage.env import dataclass
from clog.storage.errors import InvalidInputError
from clog.storage.store.contract import ObjectExistsError, StoreRefusedError
from clog.storage.store.kinds.kind import Kind, Location, temporary

_PROTOCOLS = ("sftp", "ssh")
_KNOWN_HOSTS = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")
_POLICY = "host_key_policy"
"""fsspec's name; all its values except ``reject``, the default here, skip the check."""

_PORT = 22


def _create(fs: Any, path: str, data: bytes) -> None:
    """Creates by ``link`` and ``unlink`` (SSH_FXP_RENAME): ``mv`` would replace (posix-rename)."""
    with temporary(fs, path, data, _upload) as beside:
        try:
            fs.ftp.rename(beside, path)
        except OSError as e:
            # The protocol's only code for "the target exists" is "failure".
            if e.errno is None and fs.exists(path):
                raise ObjectExistsError from e
            raise


def _put(fs: Any, path: str, data: bytes) -> None:
    with temporary(fs, path, data, _upload) as beside:
        fs.mv(beside, path)


def _upload(fs: Any, path: str, data: bytes) -> None:
    """Writes by SFTP; checks the size at the end, as errors of single blocks are not reported."""
    fs.ftp.putfo(io.BytesIO(data), path, file_size=len(data), confirm=True)


def _connected(fs: Any) -> None:
    """Connects again if the connection is broken."""
    transport = fs.client.get_transport()
    if transport is None or not transport.is_active():
        fs._connect()  # noqa: SLF001 - as its constructor did


def _with_host_check(location: Location, options: Mapping[str, object]) -> dict[str, Any]:
    """Returns the options for fsspec, with the check for each SFTP server of a chain of URLs."""
    settings = dict(options)
    parts = zip(location.url.split("::"), location.shown.split("::"), strict=True)
    for place, (url, shown) in enumerate(parts):
        protocol = url.partition("://")[0]
        if protocol not in _PROTOCOLS:
            continue
        if place == 0:
            settings = _checked(url, shown, settings)
        else:  # fsspec takes the options of an inner URL under its protocol's name
            inner = settings.get(protocol)
            settings[protocol] = _checked(url, shown, inner if isinstance(inner, Mapping) else {})
    return settings


def _checked(url: str, shown: str, options: Mapping[str, object]) -> dict[str, Any]:
    settings = dict(options)
    policy = settings.pop(_POLICY, "reject")
    given = settings.pop("host_key", "")
    if not isinstance(given, str):
        raise InvalidInputError(
            f"storage option 'host_key' of {shown} is a {type(given).__name__}; pass what"
            " ssh-keyscan prints, as text"
        )
    if policy == "reject":
        settings["transport_factory"] = HostCheck(_name(url, settings), given)
    elif policy != "auto_add":  # fsspec's default; older releases do not know the option
        settings[_POLICY] = policy
    return settings


def _name(url: str, options: Mapping[str, object]) -> str:
    """Returns the server's name as in ``known_hosts``: ``host``, or ``[host]:port``."""
    from fsspec.utils import infer_storage_options

    place = {**infer_storage_options(url), **options}
    host, port = str(place.get("host", "")).lower(), int(place.get("port") or _PORT)
    return host if port == _PORT else f"[{host}]:{port}"


@dataclass(frozen=True, slots=True)
class HostCheck:
    """Makes connections to one server, named as in ``known_hosts``, and closes those whose host key
    is not ``host_key``, as text, or if that is empty, not a known one.
    """

    name: str
    host_key: str = ""

    def __call__(self, sock: Any, **settings: Any) -> Any:
        """Returns a paramiko transport that checks the key when it starts."""
        import paramiko

        known = self._known()
        transport = paramiko.Transport(sock, **settings)
        _prefer(transport, {key.get_name() for key in known})
        start = transport.start_client

        def start_and_check(event: object = None, timeout: float | None = None) -> None:
            start(event, timeout)
            try:
                self._check(transport.get_remote_server_key(), known)
            except StoreRefusedError:
                transport.close()
                raise

        transport.start_client = start_and_check
        return transport

    def _known(self) -> list[Any]:
        lines = [f"{self.name} {_key_of(self.host_key)}"] if self.host_key else list(_lines())
        known = [key for line in lines for key in self._keys_in(line)]
        if self.host_key and not known:
            raise InvalidInputError(
                f"storage option 'host_key' for {self.name} is not a host key; pass what"
                ' ssh-keyscan prints, such as "ssh-ed25519 AAAA…"'
            )
        return known

    def _keys_in(self, line: str) -> Iterator[Any]:
        """Yields the key in a line of ``known_hosts`` if it is this server's."""
        from paramiko.hostkeys import HostKeyEntry, HostKeys
        from paramiko.ssh_exception import SSHException

        with suppress(SSHException):  # a line that paramiko cannot read names no host
            entry = HostKeyEntry.from_line(line)
            if entry is not None and entry.key is not None:
                hosts = HostKeys()
                for host in entry.hostnames:
                    hosts.add(host, entry.key.get_name(), entry.key)
                if hosts.lookup(self.name) is not None:
                    yield entry.key

    def _check(self, shown: Any, known: list[Any]) -> None:
        if any(key.asbytes() == shown.asbytes() for key in known):
            return
        text = f"{shown.get_name()} {shown.fingerprint}"
        if known:
            fault = (
                "differs from the known one: somebody may be intercepting the connection, or the"
                " server was replaced"
            )
        else:
            fault = f"is in none of {', '.join(_KNOWN_HOSTS)}"
        raise StoreRefusedError(
            f"the host key of {self.name}, {text}, {fault}; compare it with the server's, then"
            " add what ssh-keyscan prints to known_hosts, or pass that as the storage option"
            f' host_key ({_POLICY}="auto_add" trusts any server)',
            certain=True,
        )


def _key_of(text: str) -> str:
    """Returns type and key from the output of ssh-keyscan or from a ``.pub`` file."""
    words = text.split()
    for kind, key in pairwise(words):
        if key.startswith("AAAA"):
            return f"{kind} {key}"
    return text


def _lines() -> Iterator[str]:
    for name in _KNOWN_HOSTS:
        with suppress(OSError, UnicodeDecodeError):
            for line in Path(name).expanduser().read_text().splitlines():
                if line.strip() and not line.startswith("#"):
                    yield line.strip()


def _prefer(transport: Any, known: set[str]) -> None:
    """Asks for keys of the known types first: a server has several, and shows only one."""
    options = transport.get_security_options()
    preferred = [t for t in options.key_types if (t if "rsa" not in t else "ssh-rsa") in known]
    options.key_types = [*preferred, *(t for t in options.key_types if t not in preferred)]


KIND = Kind(
    protocols=_PROTOCOLS,
    classes=("fsspec.implementations.sftp.SFTPFileSystem",),
    create=_create,
    put=_put,
    endpoint=lambda fs: f"sftp://{fs.host}:{fs.ssh_kwargs.get('port', 22)}",
    config=_with_host_check,
    connected=_connected,
    caches=False,
    extra="sftp",
    authority="user@host",
    folders="made",
)
