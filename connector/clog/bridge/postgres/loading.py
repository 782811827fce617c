"""The rows of a query by COPY as columns: the first load.

The server sends CSV, a message a row, in which an empty text has quotes and null has none. Messages
gather in one buffer; whenever the next row has no room in it, all its rows are read by Arrow, and
handed on, before the server sends more. So memory is that of a batch, or of one row that is larger.
Arrow's reader makes values itself where it makes the same as `types`, else texts. Where a batch has
a value that it cannot read (infinity, NaN), its columns are made of texts, and those of the batches
that follow.
"""

import codecs
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from clog.bridge.postgres.types import Connection, TablePlan
from clog.storage.errors import SourceError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

BATCH_BYTES: Final = 8 << 20


def load(
    connection: Connection,
    select: str,
    plan: TablePlan,
    take: Callable[[pa.RecordBatch], None],
    *,
    batch_bytes: int = BATCH_BYTES,
) -> int:
    """Hands the rows of a query on in batches of about so many bytes of CSV, and returns how many
    they were. An error of ``take`` ends it, and leaves the connection in the middle of COPY: close
    it.

    Args:
        connection: psycopg2's, set as `types.SESSION` says.
        select: yields the columns of ``plan``, in its order.
        plan: how they are kept.
        take: takes one batch after the other.
        batch_bytes: of CSV.

    Raises:
        SourceError: a column holds what its form has no room for.
    """
    rows = _Rows(plan, take)
    with io.BufferedWriter(rows, batch_bytes) as writer, connection.cursor() as cursor:
        cursor.copy_expert(f"COPY ({select}) TO STDOUT (FORMAT csv)", writer, size=batch_bytes)
    return rows.count


class _Rows(io.RawIOBase):
    """Takes whole rows of CSV: a buffered writer keeps together what it is given at once."""

    def __init__(self, plan: TablePlan, take: Callable[[pa.RecordBatch], None]) -> None:
        super().__init__()
        self.count = 0
        self._plan = plan
        self._take = take
        self._kinds = [form.arrow if form.plain else pa.string() for form in plan.forms]

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer", /) -> int:
        batch = self._batch(pa.py_buffer(data))
        self.count += batch.num_rows
        self._take(batch)
        return memoryview(data).nbytes

    def _batch(self, data: pa.Buffer) -> pa.RecordBatch:
        try:
            read = _read(data, self._kinds)
        except pa.ArrowInvalid:
            self._kinds = [pa.binary()] * len(self._kinds)  # Texts, which nobody has checked.
            try:
                read = _read(data, self._kinds)
            except pa.ArrowInvalid:  # Its text has values.
                raise SourceError(
                    f"what the server copied of {self._plan.what} is no CSV of its"
                    f" {len(self._kinds)} columns; it was damaged on its way, or the table was"
                    " altered: run the capture again"
                ) from None
        columns = []
        for i, form in enumerate(self._plan.forms):
            column = read.column(i).combine_chunks()
            if column.type != form.arrow or not form.plain:
                column = self._plan.column(i, column.view(pa.string()))
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self._plan.schema)


def _read(data: pa.Buffer, kinds: list[pa.DataType]) -> pa.Table:
    from pyarrow import csv  # Not there before somebody loads.

    names = [str(i) for i in range(len(kinds))]
    if data[:3].to_pybytes() == codecs.BOM_UTF8:  # A value's: the reader would drop it.
        data = pa.py_buffer(codecs.BOM_UTF8 + data.to_pybytes())
    return csv.read_csv(
        pa.BufferReader(data),
        csv.ReadOptions(use_threads=False, block_size=data.size + 1, column_names=names),
        csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        csv.ConvertOptions(
            column_types=dict(zip(names, kinds, strict=True)),
            null_values=[""],
            true_values=["t"],
            false_values=["f"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
