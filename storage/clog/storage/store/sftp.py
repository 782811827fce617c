"""SFTP: the server proves who it is before anything is sent to it.

fsspec accepts any host key, so that whoever sits in between reads passwords and records. Here the
key must be known, as for OpenSSH's own client: from the storage option ``host_key``, or from
``known_hosts``. fsspec hands options that it does not know on to paramiko's ``connect``, which
takes a factory of its *transport*, the connection before the login: ours checks the key there.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from clog.storage.errors import InvalidInputError
from clog.storage.store.contract import Location, StoreRefusedError, redact

PROTOCOLS = ("sftp", "ssh")
KNOWN_HOSTS = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")
POLICY = "host_key_policy"
"""fsspec's own name; its values but ``reject``, which is the default here, leave the check out."""

_PORT = 22


def with_host_check(location: Location, options: Mapping[str, object]) -> dict[str, Any]:
    """Returns the options for fsspec, with the check for each SFTP server of a chain of URLs.

    Raises:
        InvalidInputError: ``host_key`` is no text.
    """
    settings = dict(options)
    for place, part in enumerate(location.url.split("::")):
        protocol = part.partition("://")[0]
        if protocol not in PROTOCOLS:
            continue
        if place == 0:
            settings = _checked(part, settings)
        else:  # fsspec takes the options of an inner URL under its protocol's name
            inner = settings.get(protocol)
            settings[protocol] = _checked(part, inner if isinstance(inner, Mapping) else {})
    return settings


def _checked(url: str, options: Mapping[str, object]) -> dict[str, Any]:
    settings = dict(options)
    policy = settings.pop(POLICY, "reject")
    given = settings.pop("host_key", "")
    if not isinstance(given, str):
        raise InvalidInputError(
            f"storage option 'host_key' of {redact(url)} is a {type(given).__name__}; pass what"
            " ssh-keyscan prints, as text"
        )
    if policy == "reject":
        settings["transport_factory"] = HostCheck(_name(url, settings), given)
    elif policy != "auto_add":  # what fsspec does anyway; older ones do not know the option
        settings[POLICY] = policy
    return settings


def _name(url: str, options: Mapping[str, object]) -> str:
    """Returns the server as ``known_hosts`` has it: ``host``, or ``[host]:port``."""
    from fsspec.utils import infer_storage_options

    place = {**infer_storage_options(url), **options}
    host, port = str(place.get("host", "")).lower(), int(place.get("port") or _PORT)
    return host if port == _PORT else f"[{host}]:{port}"


@dataclass(frozen=True, slots=True)
class HostCheck:
    """Makes connections to one server, and ends those whose host key is not the known one.

    Attributes:
        name: the server as ``known_hosts`` has it.
        host_key: its key, as text; empty: what ``known_hosts`` says.
    """

    name: str
    host_key: str = ""

    def __call__(self, sock: Any, **settings: Any) -> Any:
        """Returns a transport of paramiko's that checks the key when it starts.

        Raises:
            InvalidInputError: ``host_key`` is no key.
        """
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
        """Yields the key of a line of ``known_hosts`` if it is this server's."""
        from paramiko.hostkeys import HostKeyEntry, HostKeys
        from paramiko.ssh_exception import SSHException

        with suppress(SSHException):  # a line that paramiko cannot read is of no host
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
            fault = "is not the known one: somebody may be in between, or the server is a new one"
        else:
            fault = f"is in none of {', '.join(KNOWN_HOSTS)}"
        raise StoreRefusedError(
            f"the host key of {self.name}, {text}, {fault}; compare it with the server's, then add"
            " what ssh-keyscan prints to known_hosts, or pass it as the storage option host_key"
            f' ({POLICY}="auto_add" trusts any server)',
            certain=True,
        )


def _key_of(text: str) -> str:
    """Returns type and key out of what ssh-keyscan prints, or a ``.pub`` file holds."""
    words = text.split()
    for kind, key in pairwise(words):
        if key.startswith("AAAA"):
            return f"{kind} {key}"
    return text


def _lines() -> Iterator[str]:
    for name in KNOWN_HOSTS:
        with suppress(OSError, UnicodeDecodeError):
            for line in Path(name).expanduser().read_text().splitlines():
                if line.strip() and not line.startswith("#"):
                    yield line.strip()


def _prefer(transport: Any, known: set[str]) -> None:
    """Asks for keys of the known types first: a server has several, and shows one."""
    options = transport.get_security_options()
    preferred = [t for t in options.key_types if (t if "rsa" not in t else "ssh-rsa") in known]
    options.key_types = [*preferred, *(t for t in options.key_types if t not in preferred)]
