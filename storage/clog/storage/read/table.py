"""`Table`: what `Log.table` and `Log.changes` return, as frames of several kinds and by key."""

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any

import pyarrow as pa

from clog.storage.errors import version_expired
from clog.storage.read.key_index_cache import KeyIndexCache, Run
from clog.storage.read.key_lookup import latest_of_keys
from clog.storage.read.scan import READ_SCHEMA
from clog.storage.read.table_plan import TablePlan
from clog.storage.read.table_scan import present, table_batches


class Table:
    """The latest value of each key at one version. From `Log.changes`: the latest record of each
    key that changed, with a null value where it was deleted.

    Nothing is read before it is asked for, and each call reads anew.

    Attributes:
        version: the version it shows.
        offsets: by partition, the offset at which to go on reading: what comes from there on is
            what the table does not show.
    """

    def __init__(
        self, indexes: KeyIndexCache, version: int, plans: Sequence[TablePlan], ends: dict[int, int]
    ) -> None:
        """Shows what the plans say, read by way of the log's ``indexes``; ``ends`` are its
        offsets.
        """
        self._indexes = indexes
        self._plans = plans
        self._runs: list[list[Run]] | None = None
        self.version = version
        self.offsets = ends

    def __repr__(self) -> str:
        return f"Table({self._indexes.url!r}, version={self.version})"

    def get(self, key: bytes | str) -> bytes | None:
        """Returns the value of a key, or None where it has none. If writers put the key in several
        partitions, the value with the latest timestamp counts.

        Once the log's key indexes are in memory this costs one request, and none for a key that is
        nowhere.

        Raises:
            VersionExpiredError: the version expired.
        """
        raw = key.encode() if isinstance(key, str) else key
        return self.get_many([raw]).get(raw)

    def get_many(self, keys: Iterable[bytes | str]) -> dict[bytes, bytes]:
        """Returns the values of those keys that have one, as `get` does.

        Raises:
            VersionExpiredError: the version expired.
        """
        rows = self.of_keys(keys).sort_by("timestamp")
        pairs = zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), strict=True)
        return {key: value for key, value in pairs if value is not None}

    def of_keys(self, keys: Iterable[bytes | str]) -> pa.Table:
        """Returns the rows of these keys alone, with the columns of `READ_SCHEMA`, in no order.

        Raises:
            VersionExpiredError: the version expired.
        """
        wanted = [key.encode() if isinstance(key, str) else key for key in keys]
        batches: list[pa.RecordBatch] = []
        try:
            if self._runs is None:
                pieces = [(*plan.clean, *plan.dirty) for plan in self._plans]
                self._indexes.load([piece for some in pieces for piece in some])
                self._runs = [self._indexes.runs(some) for some in pieces]
            for plan, runs in zip(self._plans, self._runs, strict=True):
                found = latest_of_keys(self._indexes, runs, wanted)
                batches += (b if plan.tombstones else present(b, "value") for b in found)
        except FileNotFoundError as e:
            raise version_expired(self._indexes.url, self.version, gone=e) from e
        return pa.Table.from_batches(batches, READ_SCHEMA)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yields record batches of `READ_SCHEMA`: partition, offset, timestamp, key, value,
        headers.

        Memory holds the map and what is decoded of one object at a time.

        Raises:
            VersionExpiredError: the version expired while it was read.
        """
        for plan in self._plans:
            yield from table_batches(self._indexes, plan)

    def to_arrow(self) -> pa.Table:
        """Returns the whole table, in memory."""
        return pa.Table.from_batches(self.to_batches(), READ_SCHEMA)

    def to_pandas(self) -> Any:
        """Returns a ``pandas.DataFrame``; needs pandas."""
        _package("pandas", "to_pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Returns a ``polars.DataFrame``; needs polars."""
        return _package("polars", "to_polars").from_arrow(self.to_arrow())

    def to_duckdb(self, *, connection: Any = None) -> Any:
        """Returns a ``duckdb.DuckDBPyRelation``, in DuckDB's default connection unless another
        ``connection`` is given; needs duckdb.
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
