"""What is known of one kind of store: a row, which stands in a module with the code of its own.

A way to create is known by the concrete class of the filesystem, exactly: a subclass may override
anything. What a URL shows, and what it takes to connect, is known by the URL's protocol.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field
from typing import Any, Literal

from clog.storage.env import SystemIds, dataclass
from clog.storage.store.contract import Failure, temporary_name

ONE_PART = 5 << 30
"""S3's limit of one PUT; no commit exceeds it. Some servers ignore the condition of an upload that
has several parts.
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
    """Writes as the class does: one request, or several whose last shows the object."""
    fs.pipe_file(path, data)


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """One row.

    Attributes:
        protocols: fsspec's, as URLs begin with them; ``aliases`` are others' words for the first.
        classes: full names of the classes to which the rest applies.
        create: the exclusive create; None where there is none. ``hint`` says what to use instead,
            ``caution`` what to tell once to who creates here.
        put: how a complete object is written.
        forget_old: deletes what is kept of objects whose name begins so and that were deleted or
            overwritten, and uploads from before a time; None where nobody here knows what is.
        endpoint: where the client really sends requests; None where there is nobody to ask.
        makers: ends of hosts whose exclusive create is documented to be one: these are not asked.
        config: what the client is told, given the options; also for a part of a chain of URLs.
        connected: what is done to a filesystem before it is used.
        caches: whether the class keeps listings, unless it is told not to.
        is_cache: whether it keeps files of the filesystem inside it, its ``fs``.
        failures: what the client's errors say: by their code, their class, or their first word.
        extra: the extra of clog that brings the client.
        authority: what a URL has first. A bucket names no host, nor does a container without one
            behind its ``@``; what else stands before an ``@``, but a user, can only be a secret.
        folders: there are none (so ``find`` takes a prefix, and asks the server), `create` and
            `put` make them where they are needed, or they must be made first. Never try on an
            object store: there ``makedirs`` creates the bucket.
        hadoop: Hadoop's protocol, where its URLs are like these.
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
    """Writes bytes to a new file beside ``path``, yields its path, and removes it in the end."""
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
            if not fs.exists(path):  # else somebody made it meanwhile
                raise
