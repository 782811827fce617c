"""The table view: the latest value of each key at one version, whatever the cleaner has or has not
done.

The part below the first dirty offset has each key once, so:

1. Map the dirty part: key hash -> last offset, reading only its keys.
2. Clean part: a record stays when the map does not know its key.
3. Dirty part: exactly the records at the map's offsets stay. Objects without any are not read
   again.
4. Tombstones go, and so do records without a key.

Where the dirty part has more keys than the map's budget, this runs several times, each for a share
of the hashes: exact, in bounded memory, at the price of reading all again for each share. Shares
are doubled until they fit: with K keys and room for C they are less than 4·K/C where hashes spread
evenly, and the attempts before that read at most the dirty keys twice more. Records come in offset
order within a share.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa

from clog.storage.errors import VersionExpiredError
from clog.storage.key_hash import hash_keys
from clog.storage.manifest import Manifest
from clog.storage.offset_map import SLOT_BYTES, Hashes, OffsetMap, Offsets
from clog.storage.reader import COLUMNS, READ_SCHEMA, ReadPiece, plan_range, read_pieces
from clog.storage.store.base import Store

MAP_BYTES = 128 << 20
"""Default budget of the map, as `log.cleaner.dedupe.buffer.size`."""
_MAP_BYTES_MIN = 1 << 16
_GATHER_ROWS = 1 << 17
_GATHER_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What one partition's view is made of: plain data, read without the manifest.

    ``seed`` is the log's own, so that keys which collide cannot be prepared (S19). ``tombstones``:
    they stay.
    """

    partition: int
    version: int
    seed: int
    clean: tuple[ReadPiece, ...]
    dirty: tuple[ReadPiece, ...]
    tombstones: bool = False


def plan_table(manifest: Manifest, partition: int) -> TablePlan:
    """The plan of one partition's view at the manifest's version."""
    start = manifest.head.partitions.start[partition]
    end = manifest.head.partitions.end[partition]
    dirty = min(max(manifest.first_dirty[partition], start), end)
    return TablePlan(
        partition,
        manifest.version,
        int(manifest.head.log.seed, 16),
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
        shares = 1
        share = 0
        offset_map = OffsetMap(memory_bytes=_enough_bytes(plan, map_bytes))
        while share < shares:
            if offset_map.entries:
                offset_map.clear()
            if not _map_share(store, plan, offset_map, share, shares):
                # Too many keys for the budget. Doubling splits each share in two, so the shares
                # before this one stay done.
                share, shares = share * 2, shares * 2
                continue
            yield from _share(store, plan, offset_map, share, shares, columns=columns)
            share += 1
    except FileNotFoundError as e:
        raise VersionExpiredError(
            f"version {plan.version} of {store.url} expired: {e.filename or e} is gone;"
            " load() again"
        ) from e


def _share_of(hashes: np.ndarray[Any, Any], shares: int) -> np.ndarray[Any, Any]:
    """Which share each hash belongs to: its highest bits, so that doubling the shares splits each
    in two.
    """
    bits = shares.bit_length() - 1
    if bits == 0:
        return np.zeros(len(hashes), np.uint64)
    return hashes[:, 0] >> np.uint64(64 - bits)


def _enough_bytes(plan: TablePlan, map_bytes: int) -> int:
    """The budget, or less where the dirty part has too few rows to need it."""
    rows = sum(piece.rows for piece in plan.dirty)
    return min(map_bytes, max(_MAP_BYTES_MIN, rows * SLOT_BYTES * 5 // 4))


def _map_share(
    store: Store, plan: TablePlan, offset_map: OffsetMap, share: int, shares: int
) -> bool:
    """Maps one share of the dirty keys; False when they do not fit."""
    batches = read_pieces(store, plan.dirty, columns=("offset", "key"))
    for some in _gathered(_present(batch, "key") for batch in batches):
        hashes = _hashes(some, plan.seed)
        offsets = np.concatenate([batch.column("offset").to_numpy() for batch in some])
        if shares > 1:
            mine = _share_of(hashes, shares) == share
            hashes, offsets = hashes[mine], offsets[mine]
        if offset_map.put(hashes, offsets) < len(offsets):
            return False
    return True


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Runs of batches for which the map is asked together: each of its steps costs a call."""
    held: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if rows >= _GATHER_ROWS or size_bytes >= _GATHER_BYTES:
            yield held
            held, rows, size_bytes = [], 0, 0
    if held:
        yield held


def _hashes(batches: Sequence[pa.RecordBatch], seed: int) -> Hashes:
    return np.concatenate([hash_keys(batch.column("key"), seed=seed) for batch in batches])


def _share(
    store: Store,
    plan: TablePlan,
    offset_map: OffsetMap,
    share: int,
    shares: int,
    *,
    columns: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    for batch in _clean(store, plan, offset_map, share, shares, columns=columns):
        if batch.num_rows:
            yield batch.select(list(columns))
    for batch in _dirty(store, plan, offset_map.last_offsets(), columns=columns):
        if batch.num_rows:
            yield batch.select(list(columns))


def _clean(
    store: Store,
    plan: TablePlan,
    offset_map: OffsetMap,
    share: int,
    shares: int,
    *,
    columns: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """Records of the clean part whose key the map does not know (step 2)."""
    needed = [name for name in COLUMNS if name in {*columns, "key", "value"}]
    batches = read_pieces(store, plan.clean, columns=needed)
    if not offset_map.entries and shares == 1:
        yield from (_present(_present(batch, "key"), "value") for batch in batches)
        return
    for some in _gathered(_present(_present(batch, "key"), "value") for batch in batches):
        hashes = _hashes(some, plan.seed)
        kept = offset_map.get(hashes) < 0
        if shares > 1:
            kept &= _share_of(hashes, shares) == share
        ends = np.cumsum([batch.num_rows for batch in some])
        for batch, mask in zip(some, np.split(kept, ends[:-1]), strict=True):
            yield batch if mask.all() else batch.filter(pa.array(mask))


def _dirty(
    store: Store, plan: TablePlan, last: Offsets, *, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The records at these offsets of the dirty part (step 3)."""
    wanted = {*columns, "offset"} | (set() if plan.tombstones else {"value"})
    ends = np.array([(piece.start, piece.end) for piece in plan.dirty], np.int64).reshape(-1, 2)
    low, high = np.searchsorted(last, ends).T
    pieces = [plan.dirty[i] for i in np.flatnonzero(low < high)]
    for batch in read_pieces(store, pieces, columns=[n for n in COLUMNS if n in wanted]):
        offsets = batch.column("offset").to_numpy()
        first, end = np.searchsorted(last, [offsets[0], offsets[-1] + 1])
        rows = batch.take(pa.array(np.searchsorted(offsets, last[first:end])))
        yield rows if plan.tombstones else _present(rows, "value")


def _present(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """The rows that are not null in the column; all for no name."""
    if not name or not batch.column(name).null_count:
        return batch
    return batch.filter(batch.column(name).is_valid())


class Table:
    """The latest value of each key at one version.

    Attributes:
        version: the version it shows.
        offsets: by partition the offset from which reading goes on after it, without gap or
            overlap.
    """

    def __init__(self, store: Store, manifest: Manifest, partitions: Sequence[int]) -> None:
        self._store = store
        self._plans = [plan_table(manifest, p) for p in partitions]
        self.version = manifest.version
        self.offsets = {p: manifest.head.partitions.end[p] for p in partitions}

    def __repr__(self) -> str:
        return f"Table({self._store.url!r}, version={self.version})"

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Record batches of `READ_SCHEMA`: partition, offset, timestamp, key, value, headers.

        Memory holds the map and what is decoded of one object at a time.

        Raises:
            VersionExpiredError: the version expired while it was read.
        """
        for plan in self._plans:
            yield from table_batches(self._store, plan)

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
