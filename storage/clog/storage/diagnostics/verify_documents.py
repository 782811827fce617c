"""The documents that readable versions need besides their commits: snapshots, pages, columns of
heads, block files.

The newest state is read by `verify` itself; older readable versions start from older snapshots,
which may be damaged long before anybody reads them.
"""

from collections.abc import Callable, Iterator
from functools import partial

from clog.storage.commit.versions import is_closed
from clog.storage.errors import CorruptionError
from clog.storage.format import paths
from clog.storage.format.columns import PartitionColumns, resolved
from clog.storage.format.commits import Commit
from clog.storage.format.head import Head, SnapshotRef
from clog.storage.format.manifest import Manifest
from clog.storage.format.snapshots import read_named_snapshot, unpage
from clog.storage.format.transactions import PositionsAt, read_positions
from clog.storage.format.writer_pages import FIRST, Child, WriterPages, writer_hash
from clog.storage.store.ahead import ahead
from clog.storage.store.base import Store


def document_problems(
    store: Store, commits: dict[int, Commit], manifest: Manifest
) -> Iterator[tuple[str, str]]:
    """Yields (path, what is wrong) of each that is missing or cannot be read whole; one GET for
    each.
    """
    head = manifest.head
    reads = _reads(store, commits, head)
    calls = [(partial(_problems, path, read), size_bytes) for path, read, size_bytes in reads]
    for found in ahead(store, calls):
        yield from found
    if (root := head.older_writers) is not None:
        yield from _writer_problems(WriterPages(store), (FIRST, root), None, head.log.key_seed)


def _reads(
    store: Store, commits: dict[int, Commit], head: Head
) -> Iterator[tuple[str, Callable[[], object], int]]:
    """Yields each document but pages of older writers, what reads it, and about how large it is."""
    readable = [c.head.snapshot for v, c in commits.items() if v >= head.oldest_readable]
    for ref in dict.fromkeys(ref for ref in readable if ref is not None):
        yield paths.snapshot_path(ref.version), partial(_check_snapshot, store, ref), ref.size_bytes
    columns = [c.head.partitions.ref for v, c in commits.items() if v >= head.oldest_readable]
    for rest in sorted({ref for ref in columns if ref is not None}, key=lambda ref: ref.path):
        unread = PartitionColumns(ref=rest)
        yield rest.path, partial(resolved, store, unread, head.log.partitions), rest.size_bytes
    for state in (entry.transaction for entry in head.writers):
        if state is not None and isinstance(at := state.positions, PositionsAt):
            yield at.path, partial(read_positions, store, at), at.size_bytes
    for found in store.list(paths.BLOCKS):
        block = paths.version_of(found.path)
        if block is not None:
            yield found.path, partial(is_closed, store, block), found.size_bytes


def _check_snapshot(store: Store, ref: SnapshotRef) -> None:
    unpage(store, read_named_snapshot(store, ref))


def _writer_problems(
    pages: WriterPages, child: Child, end: str | None, seed: int
) -> Iterator[tuple[str, str]]:
    """Yields what is wrong with the pages of older writers from one downward, whose hashes end
    before ``end``.
    """
    path = child[1].path
    below: list[Child] = []
    yield from _problems(path, lambda: below.extend(_checked(pages, child, end, seed)))
    ends = [start for start, _ in below[1:]]
    for one, next_start in zip(below, [*ends, end], strict=False):
        yield from _writer_problems(pages, one, next_start, seed)


def _checked(pages: WriterPages, child: Child, end: str | None, seed: int) -> list[Child]:
    """Returns the pages below one.

    Raises:
        CorruptionError: it does not hold what the one above says.
    """
    start, page = child
    below = pages.children(child) if page.level else []
    entries = pages.entries(page) if not page.level else []
    count = sum(one.count for _, one in below) + len(entries)
    if count != page.count or len({entry.key for entry in entries}) != len(entries):
        raise CorruptionError(f"{page.path} holds {count} writers, not {page.count} different ones")
    hashes = [begin for begin, _ in below] + [writer_hash(seed, *e.key) for e in entries]
    if strays := [h for h in hashes if h < start or (end is not None and h >= end)]:
        raise CorruptionError(
            f"{page.path} is for writers with hashes from {start!r} to {end!r}, and has {strays[0]}"
        )
    return below


def _problems(path: str, read: Callable[[], object]) -> list[tuple[str, str]]:
    try:
        read()
    except (CorruptionError, FileNotFoundError) as e:
        return [(path, str(e))]
    return []
