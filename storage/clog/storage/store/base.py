"""What clog asks of a filesystem, and the names that all stores share.

A store holds immutable objects under one root. Paths are relative to the root, ``/``-separated,
and never lead out of it. Every implementation gives these axioms (COMMIT.md §1), and
`clog.storage.testing.conformance` holds it to them:

A1 *Complete.* A reader sees an object whole or not at all, whatever happens to its writer.
A2 *Exclusive create.* Of all creates of one path at most one succeeds, and its bytes stay.
A3 *Read after write.* A read that begins after a write returned sees it; a read that begins
   after a create was refused sees the winner, or nothing while the winner is still under way.
   Nothing is cached, neither presence nor absence.
A4 *Listing.* Shows every object that was there before it began and is still there when it ends;
   what comes or goes meanwhile may show or not.
A5 *Deletion.* Deleting what is not there succeeds.

The errors of all operations:

- the builtin ``FileNotFoundError``, from reads alone: no such object;
- `ObjectExistsError`, from ``create`` alone: something is there, or another create was under way;
- `StoreUnavailableError`: the filesystem failed; after a ``create`` its outcome is unknown;
- `StoreRefusedError`, a kind of the former: permission was denied, and nothing was written;
- `NotFoundError`: the bucket does not exist;
- `InvalidInputError`: a path that leads out of the root, a wrong option, a missing package;
- `UnsupportedFilesystemError`, from ``create`` alone: A2 cannot be had here. Reading needs nothing.

Who gets `ObjectExistsError` or `StoreUnavailableError` from ``create`` reads the object back: a
client that repeats a request whose reply was lost is refused by its own first success.
"""

import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from clog.storage.errors import InvalidInputError, StoreUnavailableError

COALESCE_GAP_BYTES = 1 << 20
"""Ranges nearer than this come in one request: 1 MiB takes about as long as a round trip."""


class ObjectExistsError(FileExistsError):
    """A create was refused since something is there, possibly of one's own: read it back."""


class StoreRefusedError(StoreUnavailableError):
    """Permission denied. Nothing was written; the same call fails until somebody grants it."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One entry of a listing. ``modified_ms`` is by the clock of the store, often in whole s."""

    path: str
    size_bytes: int
    modified_ms: int


class Store(Protocol):
    """A root and the objects under it. Picklable, and safe to use from many threads."""

    @property
    def url(self) -> str:
        """The root, without secrets: fit for messages."""
        ...

    @property
    def create_is_proven(self) -> bool:
        """Whether A2 is known to hold here, and not only asked for: servers that speak S3 may check
        and write in two steps, and then of two creates at once both succeed and the last stays.
        """
        ...

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """The bytes ``[start, end)`` of an object, by default all, in one request.

        An ``end`` past the end of the object is fine, and so is a ``start``. An empty range costs
        no request, and so does not tell whether the object is there.

        Raises:
            FileNotFoundError: there is no such object; its ``filename`` is the path.
        """
        ...

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        """The bytes of several half-open ranges of one object, in their order.

        Costs a request for each of `coalesce` of the ranges.

        Raises:
            FileNotFoundError: there is no such object.
        """
        ...

    def put(self, path: str, data: bytes | memoryview) -> None:
        """Writes an object, over another if there is one.

        For unique names, and for the hint, whose content decides nothing.
        """
        ...

    def create(self, path: str, data: bytes) -> None:
        """Writes an object if there is none, complete, for one caller alone (A2).

        Raises:
            ObjectExistsError: something is there, or came at the same time.
            StoreUnavailableError: whether it was written is unknown.
            UnsupportedFilesystemError: the filesystem cannot promise A2.
        """
        ...

    def delete(self, path: str) -> None:
        """Deletes an object, if it is there."""
        ...

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """The objects whose path begins with ``prefix``, in no order; no temporary files."""
        ...

    def list_temporary(self) -> Iterator[StoredObject]:
        """What writes that never ended have left, below the whole root, for the sweep to delete."""
        ...


def check_path(path: str) -> str:
    """The path itself, if it names something under a root.

    Raises:
        InvalidInputError: it is empty, absolute, or has an empty, ``.`` or ``..`` element.
    """
    if "\\" not in path and "\0" not in path:
        parts = path.split("/")
        if all(part not in ("", ".", "..") for part in parts) and ":" not in parts[0]:
            return path
    raise InvalidInputError(f"path {path!r} does not name an object under the root; use a/b/c")


def check_prefix(prefix: str) -> str:
    """The prefix itself, if every path that begins with it can be under a root."""
    if prefix:
        check_path(prefix.removesuffix("/"))
    return prefix


def check_range(start: int | None, end: int | None) -> tuple[int, int | None]:
    """The range with its start filled in.

    Raises:
        InvalidInputError: a bound is negative: not every filesystem counts from the end.
    """
    if (start is not None and start < 0) or (end is not None and end < 0):
        raise InvalidInputError(f"range [{start}, {end}) counts from the end; use offsets from 0")
    return start or 0, end


def is_temporary(path: str) -> bool:
    """Whether the name marks a write under way: its last element begins with a dot."""
    return path.rpartition("/")[2].startswith(".")


def coalesce(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The requests that fetch these ranges: ordered, disjoint, gaps of 1 MiB and more between.

    >>> coalesce([(4_000_000, 4_000_010), (0, 10), (20, 30), (7, 7)])
    [(0, 30), (4000000, 4000010)]
    """
    merged: list[tuple[int, int]] = []
    for start, end in sorted(check_range(*bounds) for bounds in ranges):
        assert end is not None
        if end <= start:
            continue
        if merged and start - merged[-1][1] < COALESCE_GAP_BYTES:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def cut(ranges: Sequence[tuple[int, int]], fetched: Sequence[tuple[int, bytes]]) -> list[bytes]:
    """The bytes of each range, out of ``(start, bytes)`` of the requests of `coalesce`."""
    return [_cut_one(start, end, fetched) for start, end in ranges]


def _cut_one(start: int, end: int, fetched: Sequence[tuple[int, bytes]]) -> bytes:
    if end <= start:
        return b""
    base, data = max(piece for piece in fetched if piece[0] <= start)
    return data if start == base and end - base >= len(data) else data[start - base : end - base]
