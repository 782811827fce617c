"""A table of keys from Python: clog beside PyPaimon's primary-key table.

Both start with the same rows, each key once, then take upserts of 20 rows: both append them, and
Paimon's reader merges its files by key. There is one bucket, or partition, and Parquet with zstd. A
table read sees what the upserts left behind, because nothing is compacted; both read into one Arrow
table.
"""

from pathlib import Path

import pyarrow as pa
from harness import data
from harness.measure import Result, rate, timed

from scenarios.table_libraries import Changes, ClogTable

TITLE = "A primary-key table: Paimon from Python"
ENVIRONMENT = "pypaimon"
ENGINE = "Python"
SIZES = {
    "smallest": {"rows": 2_000, "record_bytes": 100, "rounds": 1},
    "quick": {"rows": 200_000, "record_bytes": 100, "rounds": 3},
    "full": {"rows": 1_000_000, "record_bytes": 100, "rounds": 5},
}
OPTIONS = {"bucket": "1", "file.format": "parquet", "file.compression": "zstd"}


def run(size: dict[str, int], folder: Path, result: Result) -> None:
    rows = size["rows"]
    start = pa.concat_tables(data.batches(rows, rows, size["record_bytes"])).combine_chunks()
    clog, paimon = ClogTable(folder / "clog"), PaimonTable(folder / "paimon")
    for table in (clog, paimon):
        table.fill(start)
    changes = Changes(rows)
    result.compare(
        "upsert of 20 rows, PyPaimon",
        "ms",
        {
            "clog": timed(lambda: clog.upsert(changes.next()), 1e-3),
            "PyPaimon": timed(lambda: paimon.upsert(changes.next()), 1e-3),
        },
        rounds=size["rounds"],
        lower=True,
    )
    result.compare(
        "table read",
        "million rows/s",
        {
            "clog": rate(rows / 1e6, lambda: _check(clog.read(), rows)),
            "PyPaimon": rate(rows / 1e6, lambda: _check(paimon.read(), rows)),
        },
        rounds=size["rounds"],
    )


def _check(table: pa.Table, rows: int) -> None:
    assert table.num_rows == rows


class PaimonTable:
    """Keys are strings: Paimon has no binary ones."""

    def __init__(self, folder: Path) -> None:
        from pypaimon import CatalogFactory, Schema

        catalog = CatalogFactory.create({"warehouse": str(folder)})
        catalog.create_database("d", ignore_if_exists=True)
        schema = pa.schema([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())])
        made = Schema.from_pyarrow_schema(schema, primary_keys=["key"], options=OPTIONS)
        catalog.create_table("d.t", made, ignore_if_exists=False)
        self._table = catalog.get_table("d.t")
        self._schema = schema

    def fill(self, table: pa.Table) -> None:
        self.upsert(table)

    def upsert(self, changes: pa.Table) -> None:
        builder = self._table.new_batch_write_builder()
        write, commit = builder.new_write(), builder.new_commit()
        columns = [changes.column("key").cast(pa.string()), changes.column("value")]
        write.write_arrow(pa.table(columns, schema=self._schema))
        commit.commit(write.prepare_commit())
        write.close()
        commit.close()

    def read(self) -> pa.Table:
        builder = self._table.new_read_builder()
        splits = builder.new_scan().plan().splits()
        return builder.new_read().to_arrow(splits)
