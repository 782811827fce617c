"""Values that the source did not send, since an update left them as they were ("unchanged").

PostgreSQL sends a large value that lies outside of its row only where it is set. What it was says
the newest row of the *old* key: of an update that changes the key that is another one than it has
now. It is looked for where it must be,

1. among the rows before it in the same changes: such a row may lack the value itself, and takes it
   from one before; all of it is one walk over arrays of positions, doubled at each step;
2. among those of the same group, which are not committed yet, the newest first;
3. in the log.

A value that is nowhere there stops the capture: it is never made null.

What a group has so far is kept for step 2, on disk where it is much: a transaction of the source
may have more rows than there is memory. Of what is on disk short hashes of the keys stay, so that
only that is read which may have one.
"""

import tempfile
from collections.abc import Callable, Mapping
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.storage.errors import SourceError
from clog.storage.keys.hashing import fingerprints_of
from clog.storage.numpy_arrays import to_arrow, to_numpy

KEPT_BYTES: Final = 8 << 20
"""So much of a group stays in memory, of each table."""
_SEED: Final = 0xF111
_KEY, _DELETED = "\0key", "\0deleted"
_Ints = np.ndarray[Any, Any]
_Flags = np.ndarray[Any, Any]
_LookUp = Callable[[pa.Array], tuple[pa.Array, pa.RecordBatch]]


class Filler:
    """What one table has in the group so far, and where missing values are found; of one thread.

    Args:
        what: the table, for errors.
        columns: those that may come without their values.
        look_up: returns, for canonical bytes of keys, those that the log has, and their rows.
    """

    def __init__(self, what: str, columns: list[str], look_up: _LookUp) -> None:
        self._what = what
        self._columns = columns
        self._look_up = look_up
        self._earlier: list[pa.RecordBatch | tuple[int, _Ints]] = []
        self._kept_bytes = 0
        self._file: IO[bytes] | None = None

    def filled(
        self,
        keys: pa.Array,
        rows: pa.RecordBatch,
        deleted: _Flags,
        unchanged: Mapping[str, _Flags],
        moved_from: _Ints | None,
    ) -> pa.RecordBatch:
        """Returns the rows with all their values; ``keys`` are canonical bytes."""
        if unchanged:
            rows = self._filled(keys, rows, deleted, unchanged, moved_from)
        if self._columns:
            kept = [keys, to_arrow(deleted), *(rows.column(name) for name in self._columns)]
            names = [_KEY, _DELETED, *self._columns]
            self._keep(pa.RecordBatch.from_arrays(kept, names))
        return rows

    def end_group(self) -> None:
        """Forgets the group: the log has it."""
        self._earlier, self._kept_bytes = [], 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def _filled(
        self,
        keys: pa.Array,
        rows: pa.RecordBatch,
        deleted: _Flags,
        unchanged: Mapping[str, _Flags],
        moved_from: _Ints | None,
    ) -> pa.RecordBatch:
        count = rows.num_rows
        before, asked = _before(keys), np.arange(count)
        if moved_from is not None:
            moved = np.flatnonzero(moved_from >= 0)
            asked[moved] = moved_from[moved]
            before[moved] = before[moved_from[moved]]
        sources = {name: _sources(before, mask) for name, mask in unchanged.items()}
        wanted = np.unique(np.concatenate([at[at >= count] for at in sources.values()]) - count)
        outside = self._outside(keys.take(to_arrow(asked[wanted])), list(unchanged))
        columns = {name: rows.column(name) for name in rows.schema.names}
        for name, at in sources.items():
            within = at[at < count]
            if deleted[within[within != np.flatnonzero(at < count)]].any():
                raise self._missing(name)
            place = np.where(at < count, at, count + np.searchsorted(wanted, at - count))
            both = pa.chunked_array([rows.column(name), outside.column(name)])
            columns[name] = both.take(to_arrow(place)).combine_chunks()
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=rows.schema)

    def _outside(self, keys: pa.Array, names: list[str]) -> pa.RecordBatch:
        """Returns the newest rows of these keys before the changes."""
        count = len(keys)
        left = np.arange(count)
        found: list[tuple[_Ints, pa.RecordBatch]] = []
        short = _short(keys) if self._earlier else left
        for kept in reversed(self._earlier):
            if not len(left):
                break
            if not isinstance(kept, pa.RecordBatch) and not _has_any(kept[1], short[left]):
                continue
            earlier = self._read(kept)
            newest = earlier.column(_KEY)[::-1]
            at = pc.index_in(keys.take(to_arrow(left)), newest)
            is_there = to_numpy(at.is_valid())
            rows = earlier.num_rows - 1 - to_numpy(at.drop_null())
            if to_numpy(earlier.column(_DELETED))[rows].any():
                raise self._missing(names[0])
            found.append((left[is_there], earlier.select(names).take(to_arrow(rows))))
            left = left[~is_there]
        if len(left):
            there, rows_there = self._look_up(keys.take(to_arrow(left)))
            at = pc.index_in(keys.take(to_arrow(left)), there)
            if at.null_count:
                raise self._missing(names[0])
            found.append((left, rows_there.select(names).take(at)))
        if not found:
            return self._nothing(names)
        order = np.argsort(np.concatenate([places for places, _ in found]), kind="stable")
        table = pa.Table.from_batches([batch for _, batch in found]).take(to_arrow(order))
        return table.combine_chunks().to_batches()[0]

    def _nothing(self, names: list[str]) -> pa.RecordBatch:
        _, empty = self._look_up(pa.array([], pa.binary()))
        return empty.select(names)

    def _missing(self, column: str) -> SourceError:
        return SourceError(
            f"the source did not send a value of {self._what}.{column}, as it was not changed, and"
            " the log has no row that it could be taken from; was the log written to by somebody"
            f" else? load the table again (--reload {self._what})"
        )

    def _keep(self, batch: pa.RecordBatch) -> None:
        if self._kept_bytes + batch.nbytes <= KEPT_BYTES:
            self._kept_bytes += batch.nbytes
            self._earlier.append(batch)
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="clog-")  # noqa: SIM115 - until the end
        self._file.seek(0, 2)
        self._earlier.append((self._file.tell(), np.unique(_short(batch.column(_KEY)))))
        with pa.ipc.new_stream(pa.PythonFile(self._file, "w"), batch.schema) as writer:
            writer.write_batch(batch)
        self._file.flush()

    def _read(self, kept: pa.RecordBatch | tuple[int, _Ints]) -> pa.RecordBatch:
        if isinstance(kept, pa.RecordBatch):
            return kept
        assert self._file is not None, "what is at a position is in the file"
        self._file.seek(kept[0])
        return pa.ipc.open_stream(pa.PythonFile(self._file, "r")).read_next_batch()


def _short(keys: pa.Array) -> _Ints:
    """Returns hashes of 32 bits."""
    words = fingerprints_of(keys, seed=_SEED)
    mixed = words[:, 0] ^ words[:, 1]
    return (mixed ^ (mixed >> np.uint64(32))).astype(np.uint32)


def _has_any(ordered: _Ints, wanted: _Ints) -> bool:
    """Tells whether ordered numbers have any of these."""
    at = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    return bool((ordered[at] == wanted).any())


def _before(keys: pa.Array) -> _Ints:
    """Returns for each row where the one before it with the same key stands, or -1."""
    codes = to_numpy(keys.dictionary_encode().indices)
    order = np.argsort(codes, kind="stable")
    before = np.full(len(codes), -1)
    same = codes[order[1:]] == codes[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before


def _sources(before: _Ints, mask: _Flags) -> _Ints:
    """Returns for each row where its value is: at a row, or outside, beyond all rows."""
    count = len(before)
    at = np.arange(2 * count)
    rows = np.flatnonzero(mask)
    at[rows] = np.where(before[rows] >= 0, before[rows], count + rows)
    while True:
        further = at[at]
        if (further == at).all():
            return at[:count]
        at = further
