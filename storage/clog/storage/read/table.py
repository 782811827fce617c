"""`Table`: what `Log.table` and `Log.changes` return, as frames of several kinds and by key."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

import pyarrow as pa

from clog.storage.commit.versions import file_missing
from clog.storage.errors import InvalidInputError
from clog.storage.format.schema import LogSchema
from clog.storage.objects.python_keys import answered, answered_key, asked_keys
from clog.storage.read.key_index_cache import KeyIndexCache, Run
from clog.storage.read.key_lookup import latest_of_keys
from clog.storage.read.scan import columns_asked, read_schema
from clog.storage.read.table_plan import TablePlan
from clog.storage.read.table_scan import present, table_batches


class Table:
    """The latest value of each key at one version. From `Log.changes`: the latest record of each
    key that changed, with a null value where it was deleted.

    Nothing is read until you ask for it, and each call reads again.

    Threads may share it.

    Attributes:
        version: the version it shows.
    """

    def __init__(
        self,
        indexes: KeyIndexCache,
        version: int,
        plans: Sequence[TablePlan],
        ends: Mapping[int, int],
        *,
        schema: LogSchema | None,
    ) -> None:
        """Shows what the plans say, read by way of the log's ``indexes``; ``ends`` are its
        offsets, ``schema`` the log's at the version.
        """
        self._indexes = indexes
        self._plans = plans
        self._runs: list[list[Run]] | None = None
        self._schema = schema
        self._ends = ends
        self.version = version

    def __repr__(self) -> str:
        return f"Table({self._indexes.url!r}, version={self.version})"

    @property
    def offsets(self) -> dict[int, int]:
        """By partition, the offset at which to continue reading: the table contains everything
        before it, and nothing after.
        """
        return dict(self._ends)

    def __reduce__(self) -> NoReturn:
        """Raises, as a log does: options may be secrets."""
        raise InvalidInputError(
            f"the table of {self._indexes.url} cannot be pickled; pass what to_arrow() returns, or"
            " the log's URL and storage options, and call Log.open with them and"
            f" .table(at={self.version}) where it is used"
        )

    def get(self, key: Any) -> Any:
        """Returns the value of a key, or None if it has none. If writers put the key in several
        partitions, the value with the latest timestamp counts.

        Keys and values are bytes; a key given as text is encoded as UTF-8. In a typed log they are
        Python values of their types: a struct is a dict, as a key a tuple or a dict.

        Once the log's key indexes are in memory, this costs one request, or none if the key does
        not exist.

        Raises:
            VersionExpiredError: the version has expired.
            CorruptionError: the log needs an object that is gone or damaged.
        """
        return next(iter(self.get_many([key]).values()), None)

    def get_many(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """Returns the values of those keys that have one, as `get` does; keys that are structs as
        tuples.

        Raises:
            VersionExpiredError: the version has expired.
            CorruptionError: the log needs an object that is gone or damaged.
        """
        rows = self.of_keys(keys).sort_by("timestamp")
        pairs = zip(*(answered(rows.column(name)) for name in ("key", "value")), strict=True)
        return {answered_key(key): value for key, value in pairs if value is not None}

    def of_keys(self, keys: Iterable[Any]) -> pa.Table:
        """Returns the rows of these keys alone, with all columns, in no order.

        Raises:
            VersionExpiredError: the version has expired.
            CorruptionError: the log needs an object that is gone or damaged.
        """
        wanted = asked_keys(keys, self._schema)
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
            raise file_missing(self._indexes, self.version, e) from e
        return pa.Table.from_batches(batches, read_schema(self._schema))

    def to_batches(self, *, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yields record batches with partition, offset, timestamp, key, value and headers, or with
        these ``columns``. Of a typed log, ``value.price`` names a field of a struct, and no other
        is read.

        Memory holds the map and what is decoded of one object at a time.

        Raises:
            VersionExpiredError: the version expired while it was read.
            CorruptionError: the log needs an object that is gone or damaged.
            InvalidInputError: a column does not exist.
        """
        wanted = columns_asked(self._schema, columns)
        for plan in self._plans:
            yield from table_batches(self._indexes, plan, columns=wanted)

    def to_arrow(self, *, columns: Sequence[str] | None = None) -> pa.Table:
        """Returns the whole table, or these ``columns`` of it, in memory."""
        schema = read_schema(self._schema, columns_asked(self._schema, columns))
        return pa.Table.from_batches(self.to_batches(columns=columns), schema)

    def to_pandas(self, *, columns: Sequence[str] | None = None) -> Any:
        """Returns a ``pandas.DataFrame``, of all ``columns`` or of these; needs pandas."""
        _package("pandas", "to_pandas")
        return self.to_arrow(columns=columns).to_pandas()

    def to_polars(self, *, columns: Sequence[str] | None = None) -> Any:
        """Returns a ``polars.DataFrame``, of all ``columns`` or of these; needs polars."""
        return _package("polars", "to_polars").from_arrow(self.to_arrow(columns=columns))

    def to_duckdb(self, *, columns: Sequence[str] | None = None, connection: Any = None) -> Any:
        """Returns a ``duckdb.DuckDBPyRelation``, of all ``columns`` or of these, in DuckDB's
        default connection unless another ``connection`` is given, as each of several threads must;
        needs duckdb.
        """
        duckdb = _package("duckdb", "to_duckdb") if connection is None else connection
        return duckdb.from_arrow(self.to_arrow(columns=columns))


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
