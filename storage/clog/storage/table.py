"""The table view: the latest value of each key at one version, whatever the cleaner has or has not
done.

The part below the first dirty offset has each key once, so:

1. Map the dirty part: key -> last offset, reading only its keys (`key_words`: 128 bits of each).
2. Clean part: a record stays when the map does not know its key.
3. Dirty part: exactly the records at the map's offsets stay. Objects without any are not read
   again. Their keys are kept from step 1 if the budget has room for them beside the map
   (`kept_keys`).
4. Tombstones go, and so do records without a key.

A plan may be *a slice* of a partition's view, for one task of several: a run of its pieces, and
``later``, the dirty pieces that follow. These are mapped too, and nothing of them is delivered.

Where what is to be mapped has more keys than the map's budget, the plan is done *map-full by
map-full*: exact, in bounded memory, and records are delivered once, in offset order.

1. Map the plan's own records from an offset on, until the map is full (`latest_keys`: of different
   keys).
2. Read the keys of all that is dirty after them: the records that it finds are superseded.
3. Deliver the others, and go on after the last one mapped.

So with R records of its own and room for C, the keys of the dirty part are read R/C + 2 times at
most, and memory is the map's and half of it again.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa

from clog.storage.errors import VersionExpiredError
from clog.storage.kept_keys import KeptKeys
from clog.storage.key_indexes import KeyIndexes
from clog.storage.key_scan import latest_of_keys
from clog.storage.key_words import Words, key_words
from clog.storage.latest_keys import ROW_BYTES, LatestKeys
from clog.storage.manifest import Manifest
from clog.storage.numpy_arrays import to_arrow, to_numpy
from clog.storage.offset_map import Offsets
from clog.storage.reader import (
    COLUMNS,
    READ_SCHEMA,
    ReadPiece,
    pieces_from,
    plan_range,
    read_pieces,
)
from clog.storage.store.base import Store

MAP_BYTES = 128 << 20
"""Default budget of the map, as `log.cleaner.dedupe.buffer.size`: room for 3.3 million rows."""


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What one partition's view, or a slice of it, is made of: plain data, read without the
    manifest.

    ``seed`` is the log's own, so that keys which collide cannot be prepared (S19). ``tombstones``:
    they stay. ``later``: dirty pieces after the slice.
    """

    partition: int
    version: int
    seed: int
    clean: tuple[ReadPiece, ...]
    dirty: tuple[ReadPiece, ...]
    tombstones: bool = False
    later: tuple[ReadPiece, ...] = ()


def plan_table(manifest: Manifest, partition: int, log_start: int = 0) -> TablePlan:
    """The plan of one partition's view at the manifest's version, without what lies below
    ``log_start``, where that is later than the version's own (S36).
    """
    end = manifest.head.partitions.end[partition]
    start = min(max(manifest.head.partitions.start[partition], log_start), end)
    dirty = min(max(manifest.first_dirty[partition], start), end)
    return TablePlan(
        partition,
        manifest.version,
        manifest.head.log.key_seed,
        tuple(plan_range(manifest, partition, start, dirty)),
        tuple(plan_range(manifest, partition, dirty, end)),
    )


def table_batches(
    store: Store, plan: TablePlan, *, columns: Sequence[str] = COLUMNS, map_bytes: int = MAP_BYTES
) -> Iterator[pa.RecordBatch]:
    """The view of one partition, as batches of these columns of `READ_SCHEMA`.

    Raises:
        VersionExpiredError: an object of this version was deleted: the plan is older than
            ``file.delete.delay.ms``.
    """
    try:
        rows = sum(piece.rows for piece in (*plan.dirty, *plan.later))
        latest = LatestKeys(max(1, min(map_bytes // ROW_BYTES, rows)))
        # None where not all rows have room: those that leave it would not be found among the keys.
        keys = KeptKeys(map_bytes - rows * ROW_BYTES if "key" in columns else 0)
        if _map(store, (*plan.dirty, *plan.later), latest, plan.seed, keys) is None:
            batches = _of_one_map(store, plan, latest, columns, keys)
        else:
            batches = _of_many_maps(store, plan, latest, columns)
        for batch in batches:
            if batch.num_rows:
                yield batch.select(list(columns))
    except FileNotFoundError as e:
        raise _expired(store, plan.version, e) from e


def _expired(store: Store, version: int, gone: FileNotFoundError) -> VersionExpiredError:
    return VersionExpiredError(
        f"version {version} of {store.url} expired: {gone.filename or gone} is gone; load() again"
    )


def _map(
    store: Store,
    pieces: Sequence[ReadPiece],
    latest: LatestKeys,
    seed: int,
    keys: KeptKeys | None = None,
) -> int | None:
    """Maps the keys of the pieces, until the map is full; the first offset that has no room any
    more, None where all have.
    """
    for words, offsets in _worded(store, pieces, seed, keys):
        taken = latest.put(words, offsets)
        if taken < len(offsets):
            return int(offsets[taken])
    return None


def _worded(
    store: Store, pieces: Sequence[ReadPiece], seed: int, keys: KeptKeys | None = None
) -> Iterator[tuple[Words, Offsets]]:
    """Words of the keys there are in the pieces, and their offsets."""
    for batch in read_pieces(store, pieces, columns=("offset", "key")):
        rows = _present(batch, "key")
        if keys is not None:
            keys.keep(rows.column("key"))
        yield key_words(rows.column("key"), seed=seed), to_numpy(rows.column("offset"))


def _of_one_map(
    store: Store, plan: TablePlan, latest: LatestKeys, columns: Sequence[str], keys: KeptKeys
) -> Iterator[pa.RecordBatch]:
    """The records of a plan whose dirty keys are all mapped."""
    kept = keys.take(latest.last_rows())
    yield from _unknown(store, plan, latest, columns)
    yield from _at(store, plan, plan.dirty, latest.last_offsets(), columns, keys=kept)


def _of_many_maps(
    store: Store, plan: TablePlan, latest: LatestKeys, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The records of a plan that has too many dirty keys for the map, map-full by map-full."""
    dirty = (*plan.dirty, *plan.later)
    rest = [piece for piece in (*plan.clean, *plan.dirty) if piece.rows]
    while rest:
        latest.clear()
        full_at = _map(store, rest, latest, plan.seed)
        last = latest.last_offsets()
        alive = np.ones(len(last), np.bool_)
        after = pieces_from(dirty, latest.latest_offset + 1)
        for words, _ in _worded(store, after, plan.seed):
            superseded = latest.get(words)
            alive[np.searchsorted(last, superseded[superseded >= 0])] = False
        yield from _at(store, plan, rest, last[alive], columns)
        rest = [] if full_at is None else pieces_from(rest, full_at)


def _unknown(
    store: Store, plan: TablePlan, latest: LatestKeys, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Records of the clean part whose key the map does not know (step 2)."""
    needed = [name for name in COLUMNS if name in {*columns, "key", "value"}]
    for batch in read_pieces(store, plan.clean, columns=needed):
        rows = _present(_present(batch, "key"), "value")
        if plan.dirty or plan.later:
            known = latest.knows(key_words(rows.column("key"), seed=plan.seed))
            rows = rows.filter(to_arrow(~known)) if known.any() else rows
        yield rows


def _at(
    store: Store,
    plan: TablePlan,
    pieces: Sequence[ReadPiece],
    last: Offsets,
    columns: Sequence[str],
    *,
    keys: pa.Array | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of the pieces at these offsets (step 3); ``keys``: theirs, where they are known,
    not to be read again.
    """
    wanted = {*columns, "offset"} | (set() if plan.tombstones else {"value"})
    wanted -= {"key"} if keys is not None else set()
    ends = np.array([(piece.start, piece.end) for piece in pieces], np.int64).reshape(-1, 2)
    low, high = np.searchsorted(last, ends).T
    read = [piece for piece, some in zip(pieces, low < high, strict=True) if some]
    for batch in read_pieces(store, read, columns=[n for n in COLUMNS if n in wanted]):
        offsets = to_numpy(batch.column("offset"))
        first, end = np.searchsorted(last, [offsets[0], offsets[-1] + 1])
        rows = _rows_at(batch, offsets, last[first:end])
        if keys is not None:
            arrays = [*rows.columns, keys.slice(first, end - first)]
            schema = rows.schema.append(READ_SCHEMA.field("key"))
            rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
        yield rows if plan.tombstones else _present(rows, "value")


def _rows_at(batch: pa.RecordBatch, offsets: Offsets, wanted: Offsets) -> pa.RecordBatch:
    """The rows at these offsets, which are there."""
    if len(wanted) == len(offsets):
        return batch
    without_gap = offsets[-1] - offsets[0] + 1 == len(offsets)
    at = to_arrow(wanted - offsets[0] if without_gap else np.searchsorted(offsets, wanted))
    rows = [
        column.slice(0, len(at)) if column.null_count == len(column) else column.take(at)
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(rows, schema=batch.schema)


def _present(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """The rows that are not null in the column; all for no name."""
    if not name or not batch.column(name).null_count:
        return batch
    return batch.filter(batch.column(name).is_valid())


class Table:
    """The latest value of each key at one version; or, of a slice of the changelog, the latest
    record, with a null value where it is a tombstone.

    Attributes:
        version: the version it shows.
        offsets: by partition the offset from which reading goes on after it, without gap or
            overlap.
    """

    def __init__(
        self, indexes: KeyIndexes, version: int, plans: Sequence[TablePlan], ends: dict[int, int]
    ) -> None:
        """What the plans show, read by way of the log's ``indexes``; ``ends`` are its offsets."""
        self._indexes = indexes
        self._plans = plans
        self.version = version
        self.offsets = ends

    def __repr__(self) -> str:
        return f"Table({self._indexes.url!r}, version={self.version})"

    def get(self, key: bytes | str) -> bytes | None:
        """The value of a key, None where it has none. Of a key that writers put in several
        partitions, the value with the latest timestamp.

        Costs one request where the log's key indexes are in memory (`key_indexes`), none for a key
        that is nowhere.

        Raises:
            as `of_keys`.
        """
        raw = key.encode() if isinstance(key, str) else key
        return self.get_many([raw]).get(raw)

    def get_many(self, keys: Iterable[bytes | str]) -> dict[bytes, bytes]:
        """The values of those keys that have one."""
        rows = self.of_keys(keys).sort_by("timestamp")
        pairs = zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), strict=True)
        return {key: value for key, value in pairs if value is not None}

    def of_keys(self, keys: Iterable[bytes | str]) -> pa.Table:
        """The rows of these keys alone, of `READ_SCHEMA`, in no order.

        Raises:
            VersionExpiredError: the version expired.
        """
        wanted = [key.encode() if isinstance(key, str) else key for key in keys]
        batches: list[pa.RecordBatch] = []
        try:
            self._indexes.load([p for plan in self._plans for p in (*plan.clean, *plan.dirty)])
            for plan in self._plans:
                found = latest_of_keys(self._indexes, (*plan.clean, *plan.dirty), wanted)
                batches += (b if plan.tombstones else _present(b, "value") for b in found)
        except FileNotFoundError as e:
            raise _expired(self._indexes, self.version, e) from e
        return pa.Table.from_batches(batches, READ_SCHEMA)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Record batches of `READ_SCHEMA`: partition, offset, timestamp, key, value, headers.

        Memory holds the map and what is decoded of one object at a time.

        Raises:
            VersionExpiredError: the version expired while it was read.
        """
        for plan in self._plans:
            yield from table_batches(self._indexes, plan)

    def to_arrow(self) -> pa.Table:
        """All of it in memory."""
        return pa.Table.from_batches(self.to_batches(), READ_SCHEMA)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`; needs pandas."""
        _package("pandas", "to_pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """A `polars.DataFrame`; needs polars."""
        return _package("polars", "to_polars").from_arrow(self.to_arrow())

    def to_duckdb(self, *, connection: Any = None) -> Any:
        """A `duckdb.DuckDBPyRelation`, in DuckDB's default connection unless one is given; needs
        duckdb.
        """
        duckdb = _package("duckdb", "to_duckdb")
        return (duckdb if connection is None else connection).from_arrow(self.to_arrow())


def _package(name: str, method: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as e:
        if e.name != name:
            raise  # It is there, and lacks something itself.
        raise ModuleNotFoundError(
            f"Table.{method}() needs {name}, which is not installed; run pip install {name}",
            name=name,
        ) from e
