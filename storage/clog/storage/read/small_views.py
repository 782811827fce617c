"""The views of several small partitions at once, in memory.

One partition's view reads each of its objects twice, keys first (`table_scan`). A fresh object
holds rows of all partitions, so small views would open it twice for each of them. Here each object
is read once for all, and the latest records are found among its rows:

N1. Read all rows of all plans, object by object.
N2. Put them in the order of partitions and offsets.
N3. In each partition keep the last row of each key.

What a plan holds as clean needs no care of its own: its keys are different, and what the dirty part
supersedes comes before it in N2.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from clog.storage.keys.fingerprints import fingerprints_of
from clog.storage.numpy_arrays import to_arrow, to_numpy
from clog.storage.objects.typed_columns import shaped
from clog.storage.read.latest_keys import LatestKeys
from clog.storage.read.scan import COLUMNS, ReadPiece, presence_column, read_pieces, read_schema
from clog.storage.read.table_plan import TablePlan
from clog.storage.store.base import Store


def small_view_batches(
    store: Store, plans: Sequence[TablePlan], *, columns: Sequence[str] = COLUMNS
) -> Iterator[pa.RecordBatch]:
    """Yields the views of plans of different partitions, in their order, as batches of these
    columns (`read_schema`). Memory holds all their rows, superseded ones too.

    Raises:
        FileNotFoundError: an object is gone.
    """
    assert not any(plan.later for plan in plans), "a slice needs the keys of what follows it"
    typed = plans[0].schema
    needed = (*columns, "partition", "offset", "key", presence_column("value", typed, columns))
    schema, wanted = (read_schema(typed, tuple(some)) for some in (needed, columns))
    pieces = [piece for plan in plans for piece in (*plan.clean, *plan.dirty)]
    batches = read_pieces(store, sorted(pieces, key=_by_object), columns=needed)
    table = pa.Table.from_batches(batches, schema).combine_chunks()
    for rows in table.to_batches():  # One, or none.
        partitions, offsets = (to_numpy(rows.column(name)) for name in ("partition", "offset"))
        order = np.lexsort((offsets, partitions))
        ordered, partitions = rows.take(to_arrow(order)), partitions[order]
        for plan in plans:
            start, end = np.searchsorted(partitions, [plan.partition, plan.partition + 1])
            latest = _latest(ordered.slice(int(start), int(end - start)), plan)
            if latest.num_rows:
                yield shaped(latest, wanted)


def _by_object(piece: ReadPiece) -> tuple[str, int]:
    return piece.object.path, piece.first_row


def _latest(rows: pa.RecordBatch, plan: TablePlan) -> pa.RecordBatch:
    """Returns the last row of each key, of a partition's rows."""
    rows = rows.filter(rows.column("key").is_valid())
    if rows.num_rows:
        latest = LatestKeys(rows.num_rows)
        fingerprints = fingerprints_of(rows.column("key"), seed=plan.seed)
        taken = latest.put(fingerprints, to_numpy(rows.column("offset")))
        assert taken == rows.num_rows, "there is room for each row"
        rows = rows.take(to_arrow(latest.last_rows()))
    return rows if plan.tombstones else rows.filter(rows.column("value").is_valid())
