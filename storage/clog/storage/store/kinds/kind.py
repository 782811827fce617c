"""What is known about one kind of store: a row, in the module that has the code of that kind.

The way to create is chosen by the exact class of the filesystem: a subclass may override anything.
What a URL shows, and how to connect, is chosen by the URL's protocol.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field
from typing import Any, Literal

from clog.storage.env import SystemIds, dataclass
from clog.storage.store.contract import Failure, temporary_name

ONE_PART = 5 << 30
"""S3's limit for one PUT; no commit exceeds it. Some servers ignore the condition of an upload in
several parts.
"""

Write = Callable[[Any, str, bytes], None]
"""Writes an object on a filesystem, given its path there."""

_IDS = SystemIds()


@dataclass(frozen=True, slots=True)
class Location:
    """A root: fsspec's protocol, the URL as fsspec takes it, the path, and the URL as shown."""

    protocol: str
    url: str = field(repr=False)
    root: str = field(repr=False)
    shown: str


def pipe(fs: Any, path: str, data: bytes) -> None:
    """Writes as the class does: one request, or several, the last of which makes it visible."""
    fs.pipe_file(path, data)


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """One row.

    Attributes:
        protocols: fsspec's, as URLs begin with them; ``aliases`` are other names for the first.
        classes: full names of the classes to which the rest applies.
        create: the exclusive create; None where there is none. ``hint`` says what to use instead;
            ``caution`` is a warning at the first create.
        put: how a complete object is written.
        forget_old: deletes what is kept of deleted and overwritten objects whose names begin with a
            prefix, and of uploads older than a time; None where it is not known what is kept.
        endpoint: where the client really sends requests; None where there is nothing to probe.
        makers: ends of hosts whose create is documented to be exclusive: these are not probed.
        config: the client's settings, given the options; also for one part of a chain of URLs.
        connected: prepares a filesystem before it is used.
        caches: whether the class caches listings by default.
        is_cache: whether it caches files of the filesystem inside it, its ``fs``.
        failures: the meanings of the client's errors, by their code, class or first word.
        extra: the extra of clog that installs the client.
        authority: the first part of a URL. A bucket names no host, nor does a container without one
            after its ``@``; anything before an ``@`` that is not a user can only be a secret.
        folders: there are none (so ``find`` takes a prefix, which it sends to the server), `create`
            and `put` make them if needed, or they must be made first. Do not try this on an object
            store: there ``makedirs`` creates the bucket.
        hadoop: Hadoop's protocol, if its URLs look like these.
    """

    protocols: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    create: Write | None = None
    put: Write = pipe
    forget_old: Callable[[Any, str, int], None] | None = None
    endpoint: Callable[[Any], str] | None = None
    makers: tuple[str, ...] = ()
    config: Callable[[Location, Mapping[str, object]], dict[str, Any]] = lambda _, given: {**given}
    connected: Callable[[Any], None] = lambda _: None
    caches: bool = True
    is_cache: bool = False
    failures: Mapping[str, Failure] = field(default_factory=dict)
    extra: str = ""
    authority: Literal["bucket", "container", "host", "user@host"] = "host"
    folders: Literal["none", "made", "first"] = "first"
    hadoop: str = ""
    hint: str = "use local files, S3, GCS, Azure or SFTP"
    caution: str = ""


@contextmanager
def temporary(fs: Any, path: str, data: bytes, write: Write = pipe) -> Iterator[str]:
    """Writes bytes to a new file beside ``path`` and yields its path; removes it on an error."""
    folder, _, name = path.rpartition("/")
    beside = f"{folder}/{temporary_name(name, _IDS.new_id())}"
    try:
        try:
            write(fs, beside, data)
        except FileNotFoundError:
            _make_folders(fs, folder)
            write(fs, beside, data)
        yield beside
    except BaseException:
        with suppress(Exception):  # else the sweep removes it
            fs.rm_file(beside)
        raise


def _make_folders(fs: Any, folder: str) -> None:
    missing = []
    while folder and not fs.exists(folder):
        missing.append(folder)
        folder = folder.rpartition("/")[0]
    for path in reversed(missing):
        try:
            fs.mkdir(path, create_parents=False)
        except Exception:
            if not fs.exists(path):  # else another writer made it
                raise
