"""Older writers. None is ever forgotten: a stream that was stopped for a year may come back.

The head holds the entries of recent writers (`transactions`); those of older ones are in *pages*: a
tree over the hashes of writers. Finding or adding one reads and writes few small pages, however
many there are (FORMAT.md §4, decision 0016). Pages of level 0 hold entries; those above name the
pages below and the lowest hash of each. A page never changes. Adding entries rewrites their pages
and those above:

T1. Each entry is added to the page of its hash, where it replaces the writer's older entry.
T2. A page that has become too large is written as several pages, cut between two hashes.
T3. The page above names the new pages in place of the old, and is itself rewritten the same way.
T4. If several pages are left at the top, they get a page above them.

A path always has the same bytes, so `WriterPages` keeps some of the pages it read or wrote.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, Annotated, Any, Final

import xxhash

from clog.storage.env import Shared, dataclass, register
from clog.storage.errors import CorruptionError
from clog.storage.format import documents
from clog.storage.format.documents import (
    BESIDE,
    INT,
    KEPT,
    NATURAL,
    SHOWN,
    Int,
    Natural,
    Path,
    checked,
    columns,
    listed,
    page_path,
    reading,
    record,
)
from clog.storage.format.transactions import (
    WRITER,
    AppendedBy,
    PositionsAt,
    WriterEntry,
    read_positions,
    with_writers,
)
from clog.storage.store.contract import Store

if TYPE_CHECKING:
    from clog.storage.format.commits import Head

WRITERS_MAX = 64
"""A head that would have more writers than this moves the oldest to pages."""
COMBINING_BYTES_MAX = 128 << 10
"""Bytes of the writers in a head while many combine: about 1,000 entries."""
_ENTRY_BYTES = 100
"""Bytes of an entry without its id."""
WRITER_LEVEL_MAX = 8
"""Levels of pages above the lowest. Part of the format."""
PAGE_BYTES_MAX = 64 << 10
"""Size of a stored page: about 1,000 entries."""
KEPT_BYTES_MAX = 8 << 20
"""Bytes of pages kept in memory: those of a full head and of as many unknown writers."""
FIRST = ""
"""The lowest possible hash, without its zeros."""


@dataclass(frozen=True, slots=True)
class PageRef:
    """A page of older writers; ``count`` entries are in it or, above level 0, below it."""

    path: Path
    size_bytes: Annotated[Natural, "bytes"]
    count: Natural
    level: Annotated[
        int, checked(INT, lambda level: 0 <= level <= WRITER_LEVEL_MAX, "no level of pages"), KEPT
    ] = 0


PAGE: Final = record(PageRef)


@dataclass(frozen=True, slots=True)
class PagedWriters:
    """Writers that leave the head for pages, whose new root is ``root``: those at the indexes
    ``left`` of the head's list, which includes the writers of the edit.
    """

    root: Annotated[PageRef, PAGE, BESIDE]
    left: Annotated[
        tuple[int, ...],
        checked(listed(NATURAL), lambda at: list(at) == sorted({*at}), "places out of order"),
    ]

    def removed_from(self, writers: tuple[WriterEntry, ...]) -> tuple[WriterEntry, ...]:
        """Returns the head's list without those that leave it."""
        if self.left and self.left[-1] >= len(writers):
            raise CorruptionError(
                f"writer {self.left[-1]} of the {len(writers)} in the head leaves it"
            )
        return tuple(w for i, w in enumerate(writers) if i not in self.left)


PAGED_WRITERS: Final = record(PagedWriters)


Child = tuple[str, PageRef]
"""A page, and the lowest hash that belongs in it."""
_Row = list[Any]
_Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Child:
    """A `Child` as the page above names it."""

    start: Annotated[str, SHOWN, "from"]
    path: Path
    size_bytes: Annotated[Int, "bytes"]
    count: Int


_CHILDREN = columns(_Child)


class WriterPages(Shared):
    """The pages of older writers of one log. Safe for threads.

    Attributes:
        store: the log's folder.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        super().__init__()
        self.after_fork()
        register(self)

    def after_fork(self) -> None:
        """Drops, in a forked child, the pages that another thread may have been changing."""
        self._kept: dict[str, bytes] = {}
        self._kept_bytes = 0

    def find(self, root: PageRef, seed: int, kind: str, writer_id: str) -> WriterEntry | None:
        """Returns the entry of a writer; one GET for each level that is not in memory."""
        child, hashed = (FIRST, root), writer_hash(seed, kind, writer_id)
        while child[1].level:
            children = self.children(child)
            child = children[_index(children, hashed)]
        where = self._where(child[1])
        for stored in self.rows(child[1]):
            if stored[:2] == [writer_id, kind]:
                return _parsed(stored, where)
        return None

    def homes(self, root: PageRef, hashes: Iterable[str]) -> dict[str, PageRef]:
        """Returns the page of level 0 for each hash; reads none of level 0."""
        return dict(self._homes((FIRST, root), sorted((hashed, None) for hashed in hashes)))

    def add(
        self,
        root: PageRef | None,
        entries: Iterable[WriterEntry],
        *,
        seed: int,
        new_id: Callable[[], str],
    ) -> PageRef:
        """Writes entries into the tree and returns its root; one PUT per page, and some GETs."""
        rows = ((writer_hash(seed, *entry.key), WRITER.write(entry)) for entry in entries)
        tree = _Growing(self, seed, new_id)
        pages = tree.added((FIRST, root), sorted(rows, key=_hash_of))
        while len(pages) > 1:
            pages = tree.inner(pages, pages[0][1].level + 1)  # T4
        return pages[0][1]

    def children(self, child: Child) -> list[Child]:
        """Returns the pages below a page with their lowest hashes; one GET if it is not kept."""
        start, page = child
        where, body = self._where(page), self._body(page)
        with reading(where):
            found: tuple[_Child, ...] = _CHILDREN.read(body["children"])
        starts = [one.start for one in found]
        if starts[:1] != [start] or any(a >= b for a, b in pairwise(starts)):
            raise CorruptionError(f"{where} violates the format: its pages are not in order")
        level = page.level - 1
        return [(one.start, PageRef(one.path, one.size_bytes, one.count, level)) for one in found]

    def entries(self, page: PageRef) -> list[WriterEntry]:
        """Returns the entries of a page of level 0; one GET if it is not kept."""
        where = self._where(page)
        return [_parsed(row, where) for row in self.rows(page)]

    def paths(self, root: PageRef) -> Iterator[str]:
        """Yields the paths of all pages; reads none of level 0."""
        return self._paths((FIRST, root))

    def write(self, path: str, data: bytes) -> None:
        """Stores a page under a new name."""
        self.store.put(path, data)
        self._keep(path, data)

    def rows(self, page: PageRef) -> list[_Row]:
        """Returns the entries of a page of level 0 as they are stored."""
        rows = self._body(page).get("writers")
        if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
            raise CorruptionError(f"{self._where(page)} violates the format: it has no writers")
        return rows

    def _homes(
        self, child: Child, hashes: Sequence[tuple[str, None]]
    ) -> Iterator[tuple[str, PageRef]]:
        if not child[1].level:
            yield from ((hashed, child[1]) for hashed, _ in hashes)
            return
        children = self.children(child)
        for i, below in _by_child(children, hashes):
            yield from self._homes(children[i], below)

    def _paths(self, child: Child) -> Iterator[str]:
        yield child[1].path
        if child[1].level:
            for below in self.children(child):
                yield from self._paths(below)

    def _body(self, page: PageRef) -> _Body:
        with self._lock:
            data = self._kept.get(page.path)
        if data is None:
            data = documents.fetch(self.store, "page", page.path, page.size_bytes)
        body = documents.decode("page", data, where=self._where(page))
        self._keep(page.path, data)
        return body

    def _keep(self, path: str, data: bytes) -> None:
        with self._lock:
            self._kept_bytes += len(data) - len(self._kept.pop(path, b""))
            self._kept[path] = data  # As the last: the one used longest ago is the first.
            while self._kept_bytes > KEPT_BYTES_MAX and len(self._kept) > 1:
                self._kept_bytes -= len(self._kept.pop(next(iter(self._kept))))
            if len(self._kept) == 1:
                self._kept_bytes = len(data)  # Corrects what an interrupt left uncounted.

    def _where(self, page: PageRef) -> str:
        return f"{page.path} of {self.store.url}"


def find_writer(pages: WriterPages, head: "Head", kind: str, writer_id: str) -> WriterEntry | None:
    """Returns the writer's entry, from the head or pages; one GET for each level not kept."""
    for entry in head.writers:
        if entry.key == (kind, writer_id):
            return entry
    if head.older_writers is None:
        return None
    return pages.find(head.older_writers, head.log.key_seed, kind, writer_id)


def count_writers(pages: WriterPages, head: "Head") -> int:
    """Returns how many writers are remembered. If there are older ones, it costs one GET for each
    page not kept in which a writer of the head may have an entry, too.
    """
    root, seed = head.older_writers, head.log.key_seed
    if root is None:
        return len(head.writers)
    homes = pages.homes(root, (writer_hash(seed, *entry.key) for entry in head.writers))
    beside = {older.key for page in set(homes.values()) for older in pages.entries(page)}
    return root.count + sum(entry.key not in beside for entry in head.writers)


def page_out_if_full(
    pages: WriterPages, head: "Head", added: Sequence[AppendedBy], *, new_id: Callable[[], str]
) -> PagedWriters | None:
    """Writes pages with the writers that must leave the head to make room for those added; returns
    None if there is room.

    The oldest leave, as many as there are too many. Those of the older half whose page is written
    anyway leave, too: while there are few writers all have the same page, so it is written once for
    many of them.
    """
    writers = with_writers(head.writers, added)
    over = len(writers) - _room(head, writers)
    oldest = writers[: len(writers) - max(WRITERS_MAX // 2, len(added))]
    if over <= 0 or not oldest:
        return None
    seed, root = head.log.key_seed, head.older_writers
    left = list(range(len(oldest)))
    if root is not None:
        hashes = [writer_hash(seed, *entry.key) for entry in oldest]
        homes = pages.homes(root, hashes)
        written = {homes[hashed] for hashed in hashes[:over]}
        left = [i for i in left if homes[hashes[i]] in written]
    root = pages.add(
        root,
        (_with_positions_inline(pages.store, oldest[i]) for i in left),
        seed=seed,
        new_id=new_id,
    )
    return PagedWriters(root, tuple(left))


def _room(head: "Head", writers: Sequence[WriterEntry]) -> int:
    """Returns how many writers a head may keep: more while many combine (FORMAT.md §21)."""
    if head.combined is None or len(head.combined.authors) < 2:
        return WRITERS_MAX
    sizes = (len(entry.writer_id) + _ENTRY_BYTES for entry in reversed(writers))
    fitting = sum(size_bytes <= COMBINING_BYTES_MAX for size_bytes in accumulate(sizes))
    return max(WRITERS_MAX, fitting)


def _with_positions_inline(store: Store, entry: WriterEntry) -> WriterEntry:
    """Returns the entry as pages hold it (FORMAT.md §11.1); one GET for positions elsewhere."""
    state = entry.transaction
    if state is None or not isinstance(state.positions, PositionsAt):
        return entry
    inline = replace(state, positions=read_positions(store, state.positions))
    return replace(entry, transaction=inline)


def writer_hash(seed: int, kind: str, writer_id: str) -> str:
    """Returns the 16 hex digits by which a writer's page is found."""
    return xxhash.xxh3_128_hexdigest(f"{kind}\0{writer_id}".encode(), seed)[:16]


class _Growing:
    """A tree while entries are added to it."""

    def __init__(self, pages: WriterPages, seed: int, new_id: Callable[[], str]) -> None:
        self._pages = pages
        self._seed = seed
        self._new_id = new_id

    def added(
        self, child: tuple[str, PageRef | None], new: Sequence[tuple[str, _Row]]
    ) -> list[Child]:
        """Returns the pages that replace a page (T1 to T3)."""
        start, page = child
        if page is None or not page.level:
            rows = {} if page is None else {_key(row): row for row in self._pages.rows(page)}
            rows |= {_key(row): row for _, row in new}
            return self._leaves(start, list(rows.values()))
        children = self._pages.children((start, page))
        replaced = {i: self.added(children[i], mine) for i, mine in _by_child(children, new)}
        named = [one for i, below in enumerate(children) for one in replaced.get(i, [below])]
        return self.inner(named, page.level)

    def inner(self, children: list[Child], level: int) -> list[Child]:
        """Writes the pages above these."""
        named = (_Child(start, page.path, page.size_bytes, page.count) for start, page in children)
        data = documents.encode("page", {"children": _CHILDREN.write(named)})
        if cuts := _cuts(len(children), len(data)):
            edges = pairwise([0, *cuts, len(children)])
            return [one for a, b in edges for one in self.inner(children[a:b], level)]
        count = sum(page.count for _, page in children)
        return [(children[0][0], self._written(data, count, level))]

    def _leaves(self, start: str, rows: list[_Row]) -> list[Child]:
        data = documents.encode("page", {"writers": rows})
        if cuts := _cuts(len(rows), len(data)):
            hashed = ((writer_hash(self._seed, *_key(row)), row) for row in rows)
            pieces = list(_pieces(start, sorted(hashed, key=_hash_of), cuts))
            if len(pieces) > 1:
                return [one for begin, piece in pieces for one in self._leaves(begin, piece)]
        return [(start, self._written(data, len(rows), 0))]

    def _written(self, data: bytes, count: int, level: int) -> PageRef:
        path = page_path(self._new_id())
        self._pages.write(path, data)
        return PageRef(path, len(data), count, level)


def _pieces(
    start: str, hashed: Sequence[tuple[str, _Row]], cuts: Sequence[int]
) -> Iterator[tuple[str, list[_Row]]]:
    """Yields the rows between cuts, with the shortest prefix that is above the rows before."""
    first = 0
    for cut, following in pairwise([*cuts, len(hashed)]):
        edges = (i for i in range(cut, following) if hashed[i][0] != hashed[i - 1][0])
        if (edge := next(edges, None)) is not None:
            yield start, [row for _, row in hashed[first:edge]]
            before, after = hashed[edge - 1][0], hashed[edge][0]
            first = edge
            start = next(after[:n] for n in range(1, 17) if after[:n] > before)
    yield start, [row for _, row in hashed[first:]]


def _cuts(count: int, size_bytes: int) -> list[int]:
    """Returns where to cut ``count`` items of ``size_bytes`` in all; nowhere if they fit a page."""
    if size_bytes <= PAGE_BYTES_MAX:
        return []
    pieces = min(-(-size_bytes * 4 // (PAGE_BYTES_MAX * 3)), count // 2)  # with room to grow
    return [count * i // pieces for i in range(1, pieces)]


def _by_child(
    children: Sequence[Child], sorted_by_hash: Sequence[tuple[str, Any]]
) -> Iterator[tuple[int, list[tuple[str, Any]]]]:
    """Yields the index of each child to which some of them belong, and these."""
    for i, mine in groupby(sorted_by_hash, lambda pair: _index(children, pair[0])):
        yield i, list(mine)


def _index(children: Sequence[Child], hashed: str) -> int:
    # Digits compare as their numbers do, with or without the zeros at their end.
    return bisect_right(children, hashed, key=_hash_of) - 1


def _hash_of(pair: tuple[str, Any]) -> str:
    return pair[0]


def _key(row: _Row) -> tuple[str, str]:
    writer_id, kind, *_ = row
    return str(kind), str(writer_id)


def _parsed(stored: _Row, where: str) -> WriterEntry:
    with reading(where):
        entry: WriterEntry = WRITER.read(stored)
        return entry
