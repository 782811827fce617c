"""Which rows of a log's objects its table does not show, at one version; and which ones a read of
the log.

A view in another format, or another engine, which reads the objects as they are, must leave them
out.

A row is hidden from the table where no chunk holds it, where it is dead or below the log start, a
tombstone or without key, and where a later record of its key superseded it.

V0. Where a chunk has a mask (FORMAT.md §13), and nothing is dirty, the mask is the answer: no
    object is read.
V1. Of what is left of a partition take the offsets that its table shows (`table`).
V2. Find their rows: in a dense object by counting, else by its column `offset`.
V3. All other rows of an object are hidden, once each partition was asked that has rows in it.

From a read (`read_masks`) are hidden the rows that no piece of it has, or that are dead, or outside
the offsets that it delivers.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from clog.storage.commit.versions import reading
from clog.storage.env import dataclass
from clog.storage.errors import CorruptionError
from clog.storage.format.chunks import ObjectRef
from clog.storage.format.manifest import Manifest
from clog.storage.numpy_arrays import Mask, Offsets, to_numpy
from clog.storage.objects.reader import BATCH_ROWS, open_ranges
from clog.storage.read.scan import ReadPiece, dead_rows_of
from clog.storage.read.table import TablePlan, plan_table, table_batches
from clog.storage.store.contract import Store


@dataclass(frozen=True, slots=True, eq=False)
class ViewMask:
    """The rows of an object that the table hides: ``hidden`` has one element for each of them."""

    object: ObjectRef
    hidden: Mask

    @property
    def shown(self) -> int:
        """How many rows the table shows."""
        return self.object.rows - int(np.count_nonzero(self.hidden))


def view_masks(store: Store, manifest: Manifest, starts: Sequence[int]) -> Iterator[ViewMask]:
    """Yields what the table hides of each object that the manifest refers to, each once, in no
    order, those of which it shows nothing as well.

    Args:
        store: the log's folder.
        manifest: of the version.
        starts: the newest log start offsets, by partition: what lies below is hidden at any
            version.
    """
    objects = {chunk.object.path: chunk.object for _, chunk in manifest.chunks()}
    plans = [plan_table(manifest, p, start) for p, start in enumerate(starts)]
    left = Counter(piece.object.path for plan in plans for piece in _pieces(plan))
    for path in objects.keys() - left.keys():
        yield _all_hidden(objects[path])
    masks: dict[str, ViewMask] = {}
    for plan in plans:
        told = [not plan.dirty and _is_told_by_mask(piece) for piece in _pieces(plan)]
        asked = tuple(p for p, by_mask in zip(plan.clean, told, strict=False) if not by_mask)
        shown = _shown_offsets(store, replace(plan, clean=asked))
        for piece, by_mask in zip(_pieces(plan), told, strict=True):
            path = piece.object.path
            mask = masks.setdefault(path, _all_hidden(piece.object))
            if by_mask:
                end = piece.first_row + piece.rows
                mask.hidden[piece.first_row : end] = _hidden_by_mask(store, plan, piece)
            else:
                mask.hidden[_rows_of(store, plan, piece, shown)] = False
            left[path] -= 1
            if not left[path]:
                yield masks.pop(path)


def read_masks(store: Store, manifest: Manifest, pieces: Sequence[ReadPiece]) -> Iterator[ViewMask]:
    """Yields what a read of these pieces (`scan.plan_range`) leaves out of each of their objects.
    No object is read but those without dense offsets of which the read cuts a chunk: at most two in
    a partition.
    """
    by_object: dict[str, list[ReadPiece]] = {}
    for piece in pieces:
        by_object.setdefault(piece.object.path, []).append(piece)
    chunks = {(p, *chunk.identity): (chunk.base, chunk.next) for p, chunk in manifest.chunks()}
    for path, run in by_object.items():
        mask = _all_hidden(run[0].object)
        with reading(store, manifest.version):
            for piece, dead in zip(run, dead_rows_of(store, run), strict=True):
                left_out = np.zeros(piece.rows, np.bool_) if dead is None else dead
                place = piece.partition, path, piece.first_row
                if not piece.object.dense and (piece.start, piece.end) != chunks[place]:
                    offsets = _stored_offsets(store, piece)
                    left_out = left_out | (offsets < piece.start) | (offsets >= piece.end)
                mask.hidden[piece.first_row : piece.first_row + piece.rows] = left_out
        yield mask


def _is_told_by_mask(piece: ReadPiece) -> bool:
    """Tells whether a piece has a mask, and is known to be cut to its rows."""
    return piece.is_masked and (piece.object.dense or piece.start == piece.base)


def _hidden_by_mask(store: Store, plan: TablePlan, piece: ReadPiece) -> Mask | bool:
    """Returns which rows of a piece its bitmaps leave out (V0)."""
    with reading(store, plan.version):
        (rows,) = dead_rows_of(store, [piece])
    return False if rows is None else rows


def _all_hidden(obj: ObjectRef) -> ViewMask:
    return ViewMask(obj, np.ones(obj.rows, np.bool_))


def _pieces(plan: TablePlan) -> tuple[ReadPiece, ...]:
    return (*plan.clean, *plan.dirty)


def _shown_offsets(store: Store, plan: TablePlan) -> Offsets:
    """Returns the offsets of a partition's table, ascending (V1)."""
    batches = table_batches(store, plan, columns=("offset",))
    parts = [to_numpy(batch.column("offset")) for batch in batches]
    return np.concatenate([np.empty(0, np.int64), *parts])


def _rows_of(store: Store, plan: TablePlan, piece: ReadPiece, shown: Offsets) -> Offsets:
    """Returns the rows of the object that have those of the offsets that lie in the piece (V2)."""
    low, high = np.searchsorted(shown, (piece.start, piece.end))
    wanted = shown[low:high]
    if piece.object.dense or not len(wanted):
        return wanted - piece.base + piece.first_row
    with reading(store, plan.version):
        offsets = _stored_offsets(store, piece)
    rows = np.searchsorted(offsets, wanted)
    if not np.array_equal(offsets.take(rows, mode="clip"), wanted):
        raise CorruptionError(f"{piece.object.path} of {store.url} has other offsets than before")
    return rows + piece.first_row


def _stored_offsets(store: Store, piece: ReadPiece) -> Offsets:
    """Returns the offsets of all rows of a piece, dead ones too."""
    ranges = [(piece.first_row, piece.rows)]
    read = open_ranges(store, piece.object, ranges, columns=("offset",), schema=piece.schema)
    return np.concatenate([to_numpy(batch.column(0)) for _, _, batch in read(BATCH_ROWS)])
