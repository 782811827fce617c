"""What changed in a table between two versions, with the rows that the changes replaced (S79 to
S82): `Log.changes`.

A *split* (`Changes`) is the changes of one partition: plain data, complete, read in a task without
the manifests. Both versions are shown in the schema of the later one. The *news* are the records
that came to be shown in between; what was there *before* is looked up.

*Net* changes, at most one of each key, cost as much as there are news:

N1. The winners among the news are those of `table.plan_latest`, tombstones included: each is what
    its key is now. Deliver them in groups.
N2. Find the former rows of a group's keys in the table before: by its key indexes, or, if that
    costs more, in a scan.
N3. A winner without a former row is an insert, one with it an update, unless the rows are equal; a
    tombstone with a former row is a delete.
N4. Rows that left as the log start rose are deletes, unless their keys have news. They are found as
    those of a slice of the table before, of which the news are dirty pieces that follow.

Where rows may have left or come without a record (a tombstone came and was removed since, keys were
erased, another record wins now), the rows of both tables are *compared* by their offsets: those
that only one of them has are what N1 to N3 take, and the former rows that stay unmatched left.

*Each* change is wanted: the versions in between are walked, edit by edit, in windows in which the
cleaner changed nothing, so that all records are there (`windows`). A record's former row is the
one before it of its key in the window, or is looked up as in N2.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.storage.commit.handle import Handle
from clog.storage.commit.versions import edits_after, reading
from clog.storage.config.log_config import STRATEGY
from clog.storage.env import dataclass
from clog.storage.errors import InvalidInputError
from clog.storage.format.commits import Head
from clog.storage.format.log_info import LogSchema
from clog.storage.format.manifest import Manifest, apply
from clog.storage.keys.hashing import key_bytes
from clog.storage.numpy_arrays import Mask, Offsets, of_bytes, scalar, to_arrow, to_numpy
from clog.storage.read.filters import RowFilter
from clog.storage.read.scan import (
    COLUMNS,
    KeyIndexCache,
    ReadPiece,
    in_order,
    missed_deletes,
    ordering_of,
    pieces_within,
    plan_range,
    read_pieces,
    read_schema,
)
from clog.storage.read.table import (
    MAP_BYTES,
    Table,
    TablePlan,
    plan_latest,
    plan_table,
    rows_at,
    rows_shown,
    table_batches,
)
from clog.storage.store.contract import Store
from clog.storage.types.columns import (
    Records,
    arrow_schema,
    elements,
    is_listed,
    list_lengths,
    shaped,
)
from clog.storage.types.rows import Shown

NET: Final = "net"
EACH: Final = "each"
CHANGE_COLUMNS: Final = pa.schema(
    [
        pa.field("_change_type", pa.string(), nullable=False),
        pa.field("_commit_version", pa.int64(), nullable=False),
        pa.field("_commit_timestamp", pa.timestamp("us", "UTC"), nullable=False),
    ]
)
"""The columns after those of the table, with the names that Spark gives them."""
_TYPES: Final = (b"insert", b"delete", b"update_preimage", b"update_postimage")
_INSERT, _DELETE, _PREIMAGE, _POSTIMAGE = range(4)
GROUP_ROWS: Final = 1 << 20
"""Rows whose former rows are found together."""
GROUP_BYTES: Final = 128 << 20
WINDOW_ROWS: Final = 1 << 18
"""A window ends at the next version once it has so many offsets."""
SCAN_ROWS: Final = 24
"""A look-up of a key by an index costs as much as scanning so many rows."""
UNINDEXED_ROWS: Final = 1 << 20
"""To make the index of so many rows costs more than a scan with a filter."""
RANGES_MAX: Final = 16
NEAR: Final = 64
"""Keys are close together if their ranges have room for this many times as many."""

Range = tuple[int, int]
"""Offsets from one, inclusive, to another."""
Step = tuple[int, int, int]
"""The offset before which a version shows a partition's records, the version and its time."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one partition from one version, exclusive, to another, or a part of them.

    Attributes:
        since: the earlier version.
        version, time_ms: the later one, which all net changes have, and its time.
        before: the table at the earlier version.
        news: what is shown since: the latest records; all records, if there are ``steps``; the
            table at the later version, if both are ``compared``.
        left: rows of the table before that left it, if no news has their keys.
        compared: whether rows may have left or come without a record.
        hidden: offsets of rows that are not shown, as the log start has risen since.
        is_plain: whether rows with equal values are equal, as no offset belongs to them.
        steps: the versions in between, if each change is wanted.
    """

    since: int
    version: int
    time_ms: int
    before: TablePlan
    news: TablePlan
    left: TablePlan | None = None
    compared: bool = False
    hidden: Range = (0, 0)
    is_plain: bool = False
    steps: tuple[Step, ...] = ()

    @property
    def partition(self) -> int:
        return self.news.partition

    @property
    def rows(self) -> int:
        """About how many records are read, apart from look-ups of former rows."""
        plans = [self.news, *([self.left] if self.left else [])]
        return sum(map(_rows_of, plans)) + (_rows_of(self.before) if self.compared else 0)

    @property
    def is_whole(self) -> bool:
        """Whether each part of it would read what all others do."""
        return bool(self.compared or self.steps or self.news.order or not self.news.own)

    def parts(self, runs: Sequence[tuple[ReadPiece, ...]]) -> "list[Changes]":
        """Returns splits with the same changes, each of a run of the news (`TablePlan.parts`);
        no pair of images is parted. It is not `is_whole`.
        """
        first, *others = (replace(self, news=part, left=None) for part in self.news.parts(runs))
        return [replace(first, left=self.left), *others]


_Asked = tuple[Any, int | None]
"""A version by number or by cut, or a time in ms."""


def changes(
    handle: Handle,
    indexes: KeyIndexCache,
    since: _Asked,
    until: _Asked,
    *,
    mode: str,
    offsets: Sequence[object] = (),
) -> Records:
    """Returns the changes between two versions (`Log.changes`); ``offsets`` are refused."""
    url, known = handle.store.url, handle.refresh()
    if offsets:
        raise InvalidInputError(
            "changes are between versions, given by name: log.changes(since=41, until=44); the"
            f" latest record of each key of {url} since an offset is log.latest({{0: 12}}), which"
            " was log.changes until release 0.2.0"
        )
    if since == (None, None):
        raise InvalidInputError(
            "changes need a beginning: give since, a version or a named cut, or since_time_ms;"
            f" since=0 is the empty table of {url}, if it can still be read"
        )
    if mode not in (NET, EACH):
        raise InvalidInputError(f"mode={mode!r}; allowed: {NET}, {EACH}")
    after = handle.manifest_asked(known, *until, "until")
    before = handle.manifest_asked(known, *since, "since")
    if before.version > after.version:
        raise InvalidInputError(
            f"since={before.version} is after until={after.version} of {url}; give an earlier"
            " version"
        )
    head = after.head
    rows = rows_shown(head)
    own = arrow_schema(head.log.schema)
    of_rows = None if rows is None else rows.shown(own, None)
    shown = of_rows or Shown(read_schema(head.log.schema), COLUMNS)
    if taken := [name for name in CHANGE_COLUMNS.names if name in shown.schema.names]:
        raise InvalidInputError(
            f"column {taken[0]} of {url} has the name of a column of changes; rename it"
        )

    def batches() -> Iterator[pa.RecordBatch]:
        if mode == NET:
            for change in plan_changes(before, after, hidden=hidden):
                yield from changes_batches(indexes, change, columns=shown.paths)
            return
        for window in windows(handle, before, after, hidden=hidden):
            found = [
                batch
                for change in window
                for batch in changes_batches(indexes, change, columns=shown.paths)
            ]
            yield from _by_version(found)

    def shown_of(batch: pa.RecordBatch) -> pa.RecordBatch:
        own = range(batch.num_columns - len(CHANGE_COLUMNS))
        columns = [*shown.of(batch.select(own)).columns, *batch.columns[len(own) :]]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    starts = zip(head.partitions.start, known.head.partitions.start, strict=True)
    hidden = [(then, max(then, now)) for then, now in starts]
    schema = pa.schema([*shown.schema, *CHANGE_COLUMNS])
    filled = (batch for batch in batches() if batch.num_rows)
    return Records(schema, map(shown_of, filled), repr(url))


def _by_version(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the changes of a window in the order of their versions."""
    if batches:
        rows = pa.Table.from_batches(batches).combine_chunks().to_batches()
        for batch in rows:
            versions = to_numpy(batch.column("_commit_version"))
            yield batch.take(to_arrow(np.argsort(versions, kind="stable")))


def plan_changes(
    before: Manifest,
    after: Manifest,
    partitions: Sequence[int] | None = None,
    *,
    hidden: Sequence[Range] | None = None,
) -> list[Changes]:
    """Returns the net changes between the manifests of two versions, by partition.

    Args:
        before: the earlier one.
        after: the later one, whose schema both are shown in.
        partitions: those that are wanted; None: all.
        hidden: by partition, offsets of rows that are not shown; None: none.
    """
    before = shown_as(before, after.head)
    count = after.head.log.partitions
    wanted, left_out = partitions or range(count), hidden or [(0, 0)] * count
    plans = (_plan(before, after, p, left_out[p]) for p in wanted)
    return [plan for plan in plans if _rows_of(plan.news) or plan.left or plan.compared]


def _plan(before: Manifest, after: Manifest, p: int, hidden: Range) -> Changes:
    start, former = after.head.partitions.start[p], plan_table(before, p)
    of = Changes(
        *(before.version, after.version, after.time_ms, former, former),
        hidden=hidden,
        is_plain=rows_shown(after.head) is not None,
    )
    if _must_compare(before, after, p):
        # Which records win is decided among those that are shown, as in `Tables.at`.
        was, now = (_without(plan, *hidden) for plan in (former, plan_table(after, p)))
        return replace(of, before=was, news=now, compared=True)
    seen = before.head.stable_offset(p)
    since = min(max(seen, start), after.head.stable_offset(p))
    news = plan_latest(after, p, since, url="")
    if not _has_risen(before, after, p):
        return replace(of, news=news)
    left = replace(
        former,
        clean=tuple(pieces_within(former.clean, 0, start)),
        dirty=tuple(pieces_within(former.dirty, 0, start)),
        later=(*pieces_within(former.dirty, start), *news.clean, *news.dirty),
    )
    return replace(of, news=news, left=left if _rows_of(left) else None)


def _without(plan: TablePlan, low: int, high: int) -> TablePlan:
    """Returns a plan without the offsets of a range."""
    if low == high:
        return plan
    clean, dirty = (
        (*pieces_within(pieces, 0, low), *pieces_within(pieces, high))
        for pieces in (plan.clean, plan.dirty)
    )
    return replace(plan, clean=clean, dirty=dirty)


def _must_compare(before: Manifest, after: Manifest, p: int) -> bool:
    """Returns whether a row may have left the table, or come, for which there is no record, other
    than below the log start.
    """
    was, now = ordering_of(before, p), ordering_of(after, p)
    if was != now or (now is not None and (now.removed or _has_risen(before, after, p))):
        return True
    seen = {p: before.head.stable_offset(p)}
    return bool(missed_deletes(after.tombstones_removed, seen, before.version))


def _has_risen(before: Manifest, after: Manifest, p: int) -> bool:
    return bool(after.head.partitions.start[p] > before.head.partitions.start[p])


def shown_as(manifest: Manifest, newer: Head) -> Manifest:
    """Returns the manifest with the schema of a later version, as which its rows are read."""
    head = manifest.head
    return replace(manifest, head=replace(head, log=replace(head.log, schema=newer.log.schema)))


def _rows_of(plan: TablePlan) -> int:
    return sum(piece.rows for piece in plan.own)


def windows(
    handle: Handle,
    before: Manifest,
    after: Manifest,
    partitions: Sequence[int] | None = None,
    *,
    hidden: Sequence[Range] | None = None,
) -> Iterator[list[Changes]]:
    """Yields each change between the manifests of two versions: window by window, the splits of the
    partitions. Reads the commits in between, a GET for up to four of them.

    A window ends before a version in which records were changed, not only appended: all that came
    before is still there at its end. A version from which rows left without a record, and any where
    not the last record wins, is a window of its own.
    """
    base = now = before
    steps: list[Manifest] = []

    def window() -> list[Changes]:
        last = shown_as(steps[-1], after.head)
        found = plan_changes(base, last, partitions, hidden=hidden)
        return [_with_steps(change, base, steps, last) for change in found]

    for record, edit in edits_after(handle.store, before.version, after.version, handle.tip):
        made = apply(now, edit, commit_id=record.commit_id, time_ms=record.time_ms)
        changed = edit.changed_partitions()
        is_alone = any(STRATEGY in m.head.config for m in (now, made)) or any(
            _has_risen(now, made, p) or _must_compare(now, made, p) for p in changed
        )
        is_full = sum(now.head.partitions.end) - sum(base.head.partitions.end) >= WINDOW_ROWS
        if steps and (is_alone or changed or is_full):
            yield window()
            base, steps = now, []
        steps.append(made)
        now = made
        if is_alone:
            yield window()
            base, steps = now, []
    if steps:
        yield window()


def _with_steps(
    change: Changes, base: Manifest, steps: Sequence[Manifest], last: Manifest
) -> Changes:
    """Returns each change of a window, from its net changes; these, if it has one step and not the
    last record wins, or the tables are compared.
    """
    p, news = change.partition, change.news
    if change.compared or news.order:
        return change
    offsets = [step.head.stable_offset(p) for step in steps]
    times = ((step.version, step.time_ms) for step in steps)
    pieces = plan_range(last, p, base.head.stable_offset(p), offsets[-1])
    every = replace(news, clean=(), dirty=tuple(pieces))
    reached = tuple((end, *of) for end, of in zip(offsets, times, strict=True))
    return replace(change, news=every, steps=reached)


def changes_batches(
    store: Store, split: Changes, *, columns: Sequence[str] = COLUMNS, map_bytes: int = MAP_BYTES
) -> Iterator[pa.RecordBatch]:
    """Yields the changes of a split: these columns of `read_schema` and `CHANGE_COLUMNS`, each
    image before an update directly before the one after it. ``store`` may be the log's indexes.

    Raises:
        VersionExpiredError: one of the two versions expired.
    """
    read = _Read(store, split, tuple(columns), map_bytes)
    if split.steps:
        yield from read.each()
    elif split.compared:
        yield from read.compared()
    else:
        yield from read.net(read.table(split.news), read.former)
    if split.left is not None:
        yield from read.deletes(read.table(split.left))


class _Read:
    """A read of a split, and the columns that it needs."""

    def __init__(self, store: Store, split: Changes, columns: tuple[str, ...], maps: int) -> None:
        typed = split.news.schema
        self._store = store
        self._split = split
        self._shown = read_schema(typed, columns)
        self._needed = in_order({"offset", "key", "value", *(c.split(".")[0] for c in columns)})
        self._schema = read_schema(typed, tuple(self._needed))
        self._map_bytes = maps
        self._before: Table | None = None

    def table(self, plan: TablePlan) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a plan."""
        return table_batches(self._store, plan, columns=self._needed, map_bytes=self._map_bytes)

    def net(
        self, news: Iterator[pa.RecordBatch], former: Callable[[pa.Array, pa.Array], pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Does N2 and N3 for what the keys have now, tombstones included."""
        for rows in self._groups(news):
            keys = key_bytes(rows.column("key"))
            there = former(rows.column("key"), keys)
            count = there.num_rows
            old, new = np.full(rows.num_rows, -1, np.int64), count + np.arange(rows.num_rows)
            old[_places(there, keys)] = np.arange(count)
            new[self._is_gone(rows)] = -1
            images = self._joined([there, rows])
            if self._split.is_plain:
                both = np.flatnonzero((old >= 0) & (new >= 0))
                values = (images.column("value").take(to_arrow(side[both])) for side in (old, new))
                same = both[_are_equal(*values)]
                old[same] = new[same] = -1
            yield self._images(images, old, new)

    def each(self) -> Iterator[pa.RecordBatch]:
        """Yields the changes that all news made; memory holds these."""
        news = read_pieces(self._store, self._split.news.dirty, columns=self._needed)
        with reading(self._store, self._split.version):
            rows = self._joined(batch.filter(batch.column("key").is_valid()) for batch in news)
        keys = key_bytes(rows.column("key")).dictionary_encode()
        numbers = to_numpy(keys.indices)
        firsts = np.unique(numbers, return_index=True)[1]
        there = self.former(rows.column("key").take(to_arrow(firsts)), keys.dictionary)
        count = there.num_rows
        first = np.full(len(keys.dictionary), -1, np.int64)
        first[_places(there, keys.dictionary)] = np.arange(count)
        old, new = np.empty(rows.num_rows, np.int64), count + np.arange(rows.num_rows)
        new[self._is_gone(rows)] = -1
        order = np.argsort(numbers, kind="stable")
        old[order[1:]] = new[order[:-1]]
        firsts = order[np.diff(numbers[order], prepend=-1) != 0]
        old[firsts] = first[numbers[firsts]]
        ends, versions, times_ms = np.array(self._split.steps, np.int64).T
        at = np.searchsorted(ends, to_numpy(rows.column("offset")), side="right")
        yield self._images(self._joined([there, rows]), old, new, versions[at], times_ms[at])

    def compared(self) -> Iterator[pa.RecordBatch]:
        """Yields the changes between the rows that only one of the two tables has."""
        before, after = self._split.before, self._split.news
        was, now = self._offsets(before), self._offsets(after)
        gone, came = (
            np.setdiff1d(some, others, assume_unique=True)
            for some, others in ((was, now), (now, was))
        )
        matched = [np.empty(0, np.int64)]

        def former(keys: pa.Array, _: pa.Array) -> pa.RecordBatch:
            found = self._joined(_of_keys(rows, keys) for rows in self._at(before, gone))
            matched.append(to_numpy(found.column("offset")))
            return found

        yield from self.net(self._at(after, came), former)
        left = np.setdiff1d(gone, np.concatenate(matched), assume_unique=True)
        yield from self.deletes(self._at(before, left))

    def former(self, keys: pa.Array, as_bytes: pa.Array) -> pa.RecordBatch:
        """Returns the rows of the table before that have one of the keys, each of which is given
        once, also in canonical bytes (N2).
        """
        before = self._split.before
        rows, found, near = _rows_of(before), [], None
        unknown = sum(piece.rows for piece in before.own if not piece.object.index_bytes)
        if unknown >= UNINDEXED_ROWS and before.order is None:
            near = _where_near(keys, before.schema)
        if near or len(keys) * SCAN_ROWS >= rows > 0:
            plan = before if near is None else replace(before, where=near)
            found = [_of_keys(batch, keys) for batch in self.table(plan)]
        elif rows and len(keys):
            if self._before is None:
                indexes = self._store
                if not isinstance(indexes, KeyIndexCache):
                    indexes = KeyIndexCache(indexes, seed=before.seed)
                self._before = Table(indexes, before.version, [before], {}, schema=before.schema)
            some = self._before.of_key_bytes(as_bytes.to_pylist(), self._needed)
            found = some.to_batches()
        there = self._joined(found)
        return there.filter(to_arrow(self._is_shown(to_numpy(there.column("offset")))))

    def deletes(self, left: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields rows that are not there any more."""
        for rows in left:
            none = np.full(rows.num_rows, -1, np.int64)
            yield self._images(rows, np.arange(rows.num_rows), none)

    def _images(
        self,
        rows: pa.RecordBatch,
        old: Offsets,
        new: Offsets,
        versions: Offsets | None = None,
        times_ms: Offsets | None = None,
    ) -> pa.RecordBatch:
        """Returns the changes from ``old`` to ``new`` rows, given by their places; -1: no row."""
        both = (old >= 0) & (new >= 0)
        places = np.stack([old, new], axis=1).ravel()
        kinds = np.stack([np.where(both, _PREIMAGE, _DELETE), np.where(both, _POSTIMAGE, _INSERT)])
        there = places >= 0
        kinds = kinds.T.ravel()[there]
        shown = shaped(rows.take(to_arrow(places[there])), self._shown)
        own = (
            np.full(len(kinds), one, np.int64) if each is None else np.repeat(each, 2)[there]
            for one, each in ((self._split.version, versions), (self._split.time_ms, times_ms))
        )
        version, time_ms = own
        return pa.RecordBatch.from_arrays(
            [
                *shown.columns,
                of_bytes(_TYPES, pa.string()).take(to_arrow(kinds)),
                to_arrow(version),
                to_arrow(time_ms * 1000, CHANGE_COLUMNS.field(2).type),
            ],
            schema=pa.schema([*self._shown, *CHANGE_COLUMNS]),
        )

    def _groups(self, news: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields rows in groups: one batch, if there was nothing before."""
        group: list[pa.RecordBatch] = []
        rows = size = 0
        is_first = not _rows_of(self._split.before)
        for batch in news:
            group.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if is_first or rows >= GROUP_ROWS or size >= GROUP_BYTES:
                yield self._joined(group)
                group, rows, size = [], 0, 0
        if group:
            yield self._joined(group)

    def _joined(self, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
        rows = pa.Table.from_batches(batches, self._schema).combine_chunks().to_batches()
        return (
            rows[0]
            if rows
            else pa.RecordBatch.from_arrays(
                [pa.array([], f.type) for f in self._schema], schema=self._schema
            )
        )

    def _offsets(self, plan: TablePlan) -> Offsets:
        """Returns the offsets that a table shows, ascending."""
        batches = table_batches(self._store, plan, columns=("offset",), map_bytes=self._map_bytes)
        parts = [to_numpy(batch.column("offset")) for batch in batches]
        return np.sort(np.concatenate([np.empty(0, np.int64), *parts]))

    def _at(self, plan: TablePlan, offsets: Offsets) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a table at these of its offsets."""
        with reading(self._store, plan.version):
            pieces = (*plan.clean, *plan.dirty)
            yield from rows_at(self._store, plan, pieces, offsets, self._needed)

    def _is_gone(self, rows: pa.RecordBatch) -> Mask:
        """Returns which records leave no row: tombstones, and what is hidden."""
        gone: Mask = to_numpy(rows.column("value").is_null())
        return gone | ~self._is_shown(to_numpy(rows.column("offset")))

    def _is_shown(self, offsets: Offsets) -> Mask:
        low, high = self._split.hidden
        shown: Mask = (offsets < low) | (offsets >= high)
        return shown


def _where_near(keys: pa.Array, schema: LogSchema | None) -> RowFilter | None:
    """Returns a filter for a few ranges of numbers around the keys, if they are close together:
    statistics say where these are.
    """
    if not pa.types.is_integer(keys.type) or pa.types.is_uint64(keys.type):
        return None
    numbers = np.sort(to_numpy(keys).astype(np.int64))
    gaps = np.diff(numbers)
    widest = np.argsort(gaps)[::-1][: RANGES_MAX - 1]
    ends = np.sort(widest[gaps[widest] > NEAR])
    lows, highs = numbers[[0, *(ends + 1)]], numbers[[*ends, -1]]
    if int((highs - lows).sum()) > NEAR * len(numbers):
        return None
    key, kind = pc.field("key"), keys.type
    pairs = zip(lows.tolist(), highs.tolist(), strict=True)
    near = ((key >= scalar(low, kind)) & (key <= scalar(high, kind)) for low, high in pairs)
    return RowFilter.of(reduce(or_, near), schema)


def _of_keys(rows: pa.RecordBatch, keys: pa.Array) -> pa.RecordBatch:
    """Returns the rows with one of the keys; structs are compared by their canonical bytes."""
    some = rows.column("key")
    if pa.types.is_struct(keys.type):
        some, keys = key_bytes(some), key_bytes(keys)
    return rows.filter(pc.is_in(some, value_set=keys))


def _places(rows: pa.RecordBatch, keys: pa.Array) -> Offsets:
    """Returns the places of the rows' keys among all keys, each of which occurs once."""
    return to_numpy(pc.index_in(key_bytes(rows.column("key")), value_set=keys))


def _are_equal(some: pa.Array, others: pa.Array) -> Mask:
    """Returns where two arrays of one type have equal values, nested ones, too: nulls are equal,
    and floats are if all their bits are.
    """
    null, other = (to_numpy(array.is_null()) for array in (some, others))
    same: Mask = null == other
    both = np.flatnonzero(~null & ~other)
    if not len(both):
        return same
    kind, kept = some.type, to_arrow(both)
    some, others = some.take(kept), others.take(kept)
    if pa.types.is_struct(kind):
        fields = zip(some.flatten(), others.flatten(), strict=True)
        equal = np.ones(len(both), np.bool_)
        for field, other_field in fields:
            equal &= _are_equal(field, other_field)
    elif is_listed(kind):
        lengths = list_lengths(some)
        equal = lengths == list_lengths(others)
        alike = to_arrow(equal)
        inner = _are_equal(elements(some.filter(alike)), elements(others.filter(alike)))
        until = np.concatenate(([0], np.cumsum(~inner)))
        ends = np.cumsum(lengths[equal])
        equal[equal] = until[ends] == until[ends - lengths[equal]]
    else:
        if pa.types.is_floating(kind):
            bits = pa.from_numpy_dtype(f"i{kind.bit_width // 8}")
            some, others = some.view(bits), others.view(bits)
        equal = to_numpy(pc.equal(some, others))
    same[both] = equal
    return same
