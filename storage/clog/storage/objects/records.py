"""Converts what `Log.append` accepts to one Arrow table of a log's records, and hashes it.

Accepted: a pyarrow Table or RecordBatch, a pandas or Polars DataFrame (lazy too), anything else
with ``__arrow_c_stream__`` (DuckDB relations, record batch readers and future ones), or dicts, one
per record. All have the columns or fields ``key`` and ``value``, and may have ``headers`` and
``timestamp``; for a log whose key columns have names they may be rows instead (`types.rows`).

- Keys and values of a log of bytes are binary or string, of any Arrow layout, or dictionaries of
  them (categoricals); in dicts bytes, str or None. Integers become their decimal digits, and JSON's
  types in values (dicts, lists, booleans, finite floats) become JSON, without spaces, in the given
  order. For those of a typed log see `types.conform`.
- Headers are lists of struct<key, value>; in dicts, (name, value) pairs or a dict will do, too.
- Timestamps have any unit, and are UTC unless they name a zone; or they are integers, milliseconds
  since 1970. Finer ones than microseconds are rounded down. Missing ones, including NaT, are the
  time of the call.

No library of frames is imported: a frame can only exist if its library is already in
``sys.modules``. pandas' PyCapsule interface is not used: it would bring the frame's index along.

The hash distinguishes a repeated append from a different one under the same sequence. It depends
neither on batches and Arrow's buffers (each column has one stream of lengths, one of bytes, one of
nulls), nor on timestamps that the clock filled in, nor on the schema's version: of typed keys and
values only what is not null counts, by its path, and numbers as the widest that they can become.
"""

import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from clog.storage.column_kinds import is_nat
from clog.storage.errors import InvalidInputError
from clog.storage.format.log_info import LogSchema
from clog.storage.numpy_arrays import (
    empty,
    null,
    of_bytes,
    of_lists,
    of_numbers,
    scalar,
    to_arrow,
    to_numpy,
)
from clog.storage.types.columns import (
    RECORD_SCHEMA,
    arrow_schema,
    column_types,
    elements,
    is_listed,
    list_lengths,
)
from clog.storage.types.conform import conform, from_python, type_problem
from clog.storage.types.names import name_problem
from clog.storage.types.rows import TableColumns, are_records, problem_of_names

_LIKE = "give a frame, an Arrow table or schema, or a list of dicts"
_OF_ITS_OWN = "; a log that was created with key= and like= has columns of its own"


def frame_to_table(data: Any) -> pa.Table | None:
    """Returns a frame, or a stream of Arrow data, as a table; None for anything else.

    The index of a pandas frame becomes columns if it has names, and is left out if it has none.
    """
    if isinstance(data, _frame_class("pandas")):
        return _from_pandas(data)
    if isinstance(data, _frame_class("polars", "LazyFrame")):
        data = data.collect()
    if not hasattr(data, "__arrow_c_stream__"):
        return None
    if isinstance(data, _frame_class("polars")):
        _check_polars(data)
    try:
        return pa.table(data)
    except (pa.ArrowInvalid, TypeError) as e:
        raise InvalidInputError(
            f"cannot append a {type(data).__name__}: it is not a table; give a frame, an Arrow"
            " table or a list of dicts"
        ) from e


def schema_like(data: Any) -> pa.Schema:
    """Returns the columns of tabular data: a frame, an Arrow object, a list of dicts."""
    if isinstance(data, pa.Schema):
        return data
    if not isinstance(data, Iterator) and (given := _listed(data)) is not None:
        if not given:
            raise InvalidInputError(f"like= is an empty {type(given).__name__}; {_LIKE}")
        _check_dicts(given)
        _check_names(given)
        try:
            rows = [{n: None if is_nat(v) else v for n, v in row.items()} for row in given]
            return pa.Table.from_pylist(rows).schema
        except (pa.ArrowException, TypeError) as e:
            raise InvalidInputError(f"like= has columns without one type: {e}") from None
    if isinstance(data, _frame_class("polars", "LazyFrame")):
        data = data.head(0)
    elif hasattr(data, "__arrow_c_schema__"):
        return pa.schema(data)
    elif isinstance(getattr(data, "schema", None), pa.Schema):
        return data.schema  # The data may be iterable only once.
    table = frame_to_table(data)
    if table is None:
        raise InvalidInputError(f"like= is {_a(data)}; {_LIKE}")
    return table.schema.remove_metadata()


def rows_of_pandas(data: object) -> list[dict[str, Any]] | None:
    """Returns the rows of a pandas frame, with None for missing values; None for anything else."""
    if not isinstance(data, _frame_class("pandas")):
        return None
    frame = _with_index(data)
    rows: list[dict[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return rows


def _frame_class(package: str, name: str = "DataFrame") -> Any:
    """Returns the class of the package's frames, or one without instances if it is not loaded."""
    return getattr(sys.modules.get(package), name, ())


def _with_index(frame: Any) -> Any:
    """Returns a pandas frame with its index as columns, if it has names, as in Parquet."""
    if twice := [name for name, count in Counter(frame.columns).items() if count > 1]:
        raise InvalidInputError(
            f"the pandas DataFrame has more than one column named {twice[0]!r}; rename them"
        )
    named = [name for name in frame.index.names if name is not None and name not in frame.columns]
    return frame.reset_index(named) if named else frame


def _from_pandas(frame: Any) -> pa.Table:
    frame = _with_index(frame)
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, ValueError, TypeError) as e:
        # The beginning of Arrow's message may show a value; its end names the column.
        last = str(e.args[-1]) if e.args else ""
        where = f" ({last})" if last.startswith(("Conversion failed", "Duplicate column")) else ""
    raise InvalidInputError(
        f"the pandas DataFrame cannot be converted to Arrow{where}; keys and values must be str,"
        " bytes or missing, headers lists of dicts with key and value"
    )


def _check_polars(frame: Any) -> None:
    """Raises if a column has Python objects: Polars would export their addresses."""
    wrong = [name for name, kind in frame.schema.items() if kind == sys.modules["polars"].Object]
    if wrong:
        raise InvalidInputError(
            f"columns {wrong} of the Polars DataFrame hold Python objects; make them String or"
            " Binary"
        )


COLUMNS = ("key", "value", "headers", "timestamp")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP_MS_MAX = (2**63 - 1) // 1000
_HEADERS = RECORD_SCHEMA.field("headers").type
_TIMESTAMP = RECORD_SCHEMA.field("timestamp").type
_TO_MICROS = pc.CastOptions(_TIMESTAMP, allow_time_truncate=True)


class ArrowStream(Protocol):
    """Tabular data with Arrow's PyCapsule interface: pandas and Polars frames, among others."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Returns a capsule with the data."""
        ...


Appendable: TypeAlias = pa.Table | pa.RecordBatch | ArrowStream | Iterable[Mapping[str, Any]]
"""What `Log.append` accepts."""
Header: TypeAlias = tuple[bytes, bytes | None]
"""Name, as UTF-8, and value."""


def to_records(
    data: Appendable,
    *,
    now_us: int,
    schema: LogSchema | None = None,
    rows: TableColumns | None = None,
) -> tuple[pa.Table, bool]:
    """Returns the records as a table of `ColumnTypes.records` in one chunk, and whether the caller
    gave all timestamps.

    ``now_us`` (µs since 1970) replaces missing timestamps; ``schema`` is the log's; ``rows`` are
    its plain columns, if it has them.

    Raises:
        InvalidInputError: a column is missing, unknown or of a wrong type, a timestamp is negative,
            there are more than 2 GiB of keys or of values, or a key or a value does not fit the
            log's schema (S62).
    """
    table, paths = _to_table(data, schema, rows)
    unknown = [name for name in table.schema.names if name not in COLUMNS]
    if unknown:
        raise InvalidInputError(
            f"unknown columns {unknown}; records have {', '.join(COLUMNS)}{_OF_ITS_OWN}"
        )
    missing = [name for name in ("key", "value") if name not in table.schema.names]
    if missing:
        raise InvalidInputError(f"columns {missing} are missing; records need key and value")
    if len(set(table.schema.names)) < len(table.schema.names):
        raise InvalidInputError(f"columns {table.schema.names} are not unique; give each once")
    timestamps, given = _timestamps(table, now_us)
    types = column_types(schema).records
    if schema is None:
        contents = [_binary(table, "key"), _binary(table, "value")]
    else:
        contents = [_typed(table, types.field(n), paths.get(n)) for n in ("key", "value")]
    columns = [*contents, _headers(table), timestamps]
    return pa.Table.from_arrays(columns, schema=types), given


def loaded(data: Appendable) -> Appendable:
    """Returns the data in a form that can be iterated again, also for generators and streams."""
    if (records := _listed(data)) is not None:
        return records
    if isinstance(data, (pa.Table, pa.RecordBatch)):
        return data
    if isinstance(data, _frame_class("pandas")):
        return data  # Record by record the error can say what does not fit.
    table = frame_to_table(data)
    return data if table is None else table


def _to_table(
    data: Appendable, schema: LogSchema | None, rows: TableColumns | None
) -> tuple[pa.Table, dict[str, str]]:
    """Returns the data as records, and what its user calls their columns, if that differs."""
    table: pa.Table | None
    if isinstance(data, pa.Table):
        table = data
    elif isinstance(data, pa.RecordBatch):
        table = pa.Table.from_batches([data])
    elif (given := _listed(data)) is not None:
        return _from_dicts(given, schema, rows)
    else:
        try:
            table = frame_to_table(data)
        except InvalidInputError:  # Record by record the error can say what does not fit (S62).
            if schema is None or (of_frame := rows_of_pandas(data)) is None:
                raise
            return _from_dicts(of_frame, schema, rows)
    if table is None:
        raise InvalidInputError(
            f"cannot append {_a(data)}; give a pyarrow Table or RecordBatch, a pandas or Polars"
            " DataFrame, or a list of dicts"
        )
    if rows is None or not _are_rows(rows, schema, table.schema.names, _value_type(table.schema)):
        return table, {}
    chunks = [_one_chunk(column) for column in table.columns]
    batch = rows.of_rows(pa.RecordBatch.from_arrays(chunks, schema=table.schema))
    return pa.Table.from_batches([batch]), rows.paths


def _a(data: object) -> str:
    """Returns the type of something, with its article."""
    if data is None:
        return "None"
    name = type(data).__name__
    return f"{'an' if name[:1].lower() in {*'aeiou'} else 'a'} {name}"


def _check_dicts(records: Sequence[object]) -> None:
    """Raises if one is not a dict, and says how it becomes one."""
    for i, row in enumerate(records):
        if isinstance(row, Mapping):
            continue
        how = "give a list of dicts, or a frame"
        if dataclasses.is_dataclass(row):
            how = "give dataclasses.asdict(row) for each row"
        elif isinstance(row, tuple) and hasattr(row, "_asdict"):
            how = "give row._asdict() for each row"
        elif hasattr(row, "__arrow_c_array__") or hasattr(row, "__arrow_c_stream__"):
            how = "give each by itself, or a table of all"
        raise InvalidInputError(f"record {i} is {_a(row)}, expected a dict; {how}")


def _listed(data: object) -> Sequence[Mapping[str, Any]] | None:
    """Returns the dicts of an iterable; None if the data is tabular, or not iterable."""
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return data
    if isinstance(data, Iterator) and not hasattr(data, "__arrow_c_stream__"):
        return list(data)
    return None


def _are_rows(
    rows: TableColumns, schema: LogSchema | None, names: Sequence[str], value: pa.DataType
) -> bool:
    """Returns whether these names are the table's columns; otherwise they are those of records, as
    they are if ``value``, the type of such a column, is a struct and no column of the table.
    """
    there = arrow_schema(schema)
    problem = problem_of_names(rows, there, names)
    if "value" in names and are_records(names):
        if problem is not None:
            return False
        own = next(field.type for field in rows.fields(there) if field.name == rows.own("value"))
        return not pa.types.is_struct(value) or type_problem(value, own, "value") is None
    if problem is not None:
        raise InvalidInputError(
            f"the log is a table with the key columns {', '.join(rows.key)}: {problem}; nothing was"
            " appended"
        )
    return True


def _value_type(schema: pa.Schema) -> pa.DataType:
    return schema.field("value").type if schema.names.count("value") == 1 else pa.null()


def _type_of_dicts(records: Sequence[Mapping[str, Any]]) -> pa.DataType:
    """Returns a struct if one has a mapping as its value, with the fields of all, of any type."""
    values = [value for row in records if isinstance(value := row.get("value"), Mapping)]
    names = dict.fromkeys(name for value in values for name in value if isinstance(name, str))
    return pa.struct([(name, pa.null()) for name in names]) if values else pa.null()


def _from_dicts(
    records: Sequence[Mapping[str, Any]], schema: LogSchema | None, rows: TableColumns | None
) -> tuple[pa.Table, dict[str, str]]:
    _check_dicts(records)
    paths = {}
    if rows is not None and records:
        names = _check_names(records)
        if _are_rows(rows, schema, names, _type_of_dicts(records)):
            paths = rows.paths
            records = [_record_of(row, i, rows) for i, row in enumerate(records)]
    for i, row in enumerate(records):
        unknown = [name for name in row if name not in COLUMNS]
        if unknown or "key" not in row or "value" not in row:
            raise InvalidInputError(
                f"record {i} has the fields {list(row)}; required: key, value; allowed:"
                f" {', '.join(COLUMNS)}{_OF_ITS_OWN}"
            )
    headers = [_pairs(row.get("headers"), i) for i, row in enumerate(records)]
    times = [_micros(row.get("timestamp"), i) for i, row in enumerate(records)]
    if schema is None:
        keys = [_bytes(row["key"], i, "key") for i, row in enumerate(records)]
        values = [_bytes(row["value"], i, "value") for i, row in enumerate(records)]
        return from_columns(keys, values, headers, times), {}
    nothing = [None] * len(records)
    table = from_columns(nothing, nothing, headers, times)
    for i, name in enumerate(("key", "value")):
        field = column_types(schema).records.field(name)
        made = from_python([row[name] for row in records], field, paths.get(name))
        table = table.set_column(i, field, made)
    return table, paths


def _check_names(records: Sequence[Mapping[Any, Any]]) -> list[str]:
    """Returns the names in dicts, each once; raises if one cannot be a field's."""
    names = list(dict.fromkeys(name for row in records for name in row))
    for name in names:
        if not isinstance(name, str):
            raise InvalidInputError(
                f"a field of a record is named by a {type(name).__name__}; names are text"
            )
        if problem := name_problem(name):
            raise InvalidInputError(f"{name!r}: {problem}")
    return names


def _record_of(row: Mapping[str, Any], i: int, rows: TableColumns) -> dict[str, Any]:
    """Returns a row as a record."""
    given = {rows.own(name): value for name, value in row.items()}
    if missing := [name for name in rows.key if name not in given]:
        raise InvalidInputError(f"record {i} has no {missing[0]}, which is a column of the key")
    key = {name: given[name] for name in rows.key}
    value = {name: given[name] for name in rows.value if name in given}
    return {"key": key if rows.key_is_struct else key[rows.key[0]], "value": value}


def from_columns(
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[list[Header] | None],
    timestamps_us: Sequence[int | None],
) -> pa.Table:
    """Returns records, given by column; None means no key, a tombstone, no headers, or now."""
    columns = [
        *(of_bytes(keys), of_bytes(values)),
        of_headers(headers),
        of_numbers(timestamps_us, _TIMESTAMP),
    ]
    return pa.Table.from_arrays(columns, names=COLUMNS)


def of_headers(headers: Sequence[list[Header] | None]) -> pa.Array:
    """Returns a column of headers, each with a name in UTF-8 and a value."""
    pairs = [pair for some in headers for pair in some or ()]
    names, contents = zip(*pairs, strict=True) if pairs else ((), ())
    flat = pa.StructArray.from_arrays(
        [of_bytes(names, pa.string()), of_bytes(contents)], fields=list(_HEADERS.value_type)
    )
    return of_lists(headers, _HEADERS, flat)


def _bytes(value: object, i: int, name: str) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return _text(value, i, name)
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if type(value) is int and name != "header":
        return str(value).encode()
    if isinstance(value, (dict, list, bool, float)) and name == "value":
        return _json(value, i)
    raise InvalidInputError(
        f"record {i} has a {name} of type {type(value).__name__}; it must be bytes, str,"
        f" {'' if name == 'header' else 'int '}or None"
    )


def _json(value: object, i: int) -> bytes:
    """Returns the JSON text of a value."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as e:
        raise InvalidInputError(
            f"record {i} has a value that is not JSON: {e}; give its bytes, or create a log with a"
            " schema"
        ) from None
    return _text(text, i, "value")


def _text(value: str, i: int, name: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as e:
        raise InvalidInputError(
            f"record {i} has a {name} that is not valid text: a lone surrogate at character"
            f" {e.start}; pass binary data as bytes"
        ) from None


def _pairs(headers: object, i: int) -> list[Header] | None:
    if headers is None:
        return None
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    try:
        return [
            (_name(h["key"], i), _bytes(h["value"], i, "header"))
            if isinstance(h, Mapping)
            else (_name(h[0], i), _bytes(h[1], i, "header"))
            for h in pairs  # type: ignore[attr-defined]
        ] or None
    except (TypeError, KeyError, IndexError) as e:
        raise InvalidInputError(
            f"record {i} has headers that are not a list of (name, value) pairs"
        ) from e


def _name(name: object, i: int) -> bytes:
    if not isinstance(name, str):
        raise InvalidInputError(
            f"record {i} has a header name of type {type(name).__name__}; it must be str"
        )
    return _text(name, i, "header name")


def _of_numpy(time: np.datetime64) -> object:
    """Returns a NumPy time as Python's, None for NaT; unchanged if Python has no such time."""
    try:
        found = time.astype("M8[us]").item()
    except OverflowError:  # From NumPy 2.5 on.
        return time
    return time if isinstance(found, int) else found


def _micros(timestamp: object, i: int) -> int | None:
    if timestamp is None:
        return None
    if isinstance(timestamp, np.datetime64):
        timestamp = _of_numpy(timestamp)
    if timestamp is None or is_nat(timestamp):
        return None
    if isinstance(timestamp, datetime):
        aware = timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
        return (aware - _EPOCH) // timedelta(microseconds=1)
    if type(timestamp) is int:
        if abs(timestamp) > _TIMESTAMP_MS_MAX:
            raise InvalidInputError(
                f"record {i} has the timestamp {timestamp} ms, above {_TIMESTAMP_MS_MAX}"
            )
        return timestamp * 1000
    raise InvalidInputError(
        f"record {i} has a timestamp of type {type(timestamp).__name__};"
        " it must be epoch milliseconds or a datetime"
    )


def _typed(table: pa.Table, field: pa.Field, path: str | None) -> pa.Array:
    column = table.column(field.name)
    try:
        return conform(_one_chunk(column), field, path)
    except pa.ArrowNotImplementedError as e:
        raise InvalidInputError(
            f"column {field.name} has type {column.type}, which Arrow cannot take apart ({e}); cast"
            f" it to {field.type}"
        ) from e
    except pa.ArrowInvalid as e:
        raise _too_large(field.name) from e


def _too_large(name: str) -> InvalidInputError:
    return InvalidInputError(
        f"column {name} holds more than 2 GiB; append the records in smaller batches"
    )


def _binary(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    kind = column.type
    coded = pa.types.is_dictionary(kind)
    if pa.types.is_integer(kind):
        column, kind = column.cast(pa.string()), pa.string()
    if not _is_binary(kind.value_type if coded else kind):
        raise InvalidInputError(
            f"column {name} has type {kind}; it must be binary or string, or an integer, which"
            " becomes its digits; for columns of other types create the log with key= and like="
        )
    try:
        if coded:  # Arrow cannot cast a dictionary of views, which Polars makes.
            chunks = [c.dictionary.cast(pa.binary()).take(c.indices) for c in column.chunks]
            column = pa.chunked_array(chunks, pa.binary())
        return _one_chunk(column.cast(pa.binary()))
    except pa.ArrowInvalid as e:
        raise _too_large(name) from e


def _is_binary(kind: pa.DataType) -> bool:
    tests = (
        *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
        *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
        *(pa.types.is_fixed_size_binary, pa.types.is_null),
    )
    return any(test(kind) for test in tests)


def _headers(table: pa.Table) -> pa.Array:
    if "headers" not in table.schema.names:
        return pa.nulls(len(table), _HEADERS)
    try:
        headers = _one_chunk(table.column("headers").cast(_HEADERS))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as e:
        raise InvalidInputError(
            f"column headers has type {table.column('headers').type};"
            " it must be list<struct<key: string, value: binary>>"
        ) from e
    _check_headers(headers)
    # No headers become null, in whichever form they were given.
    empty = pc.equal(pc.list_value_length(headers), scalar(0, pa.int32()))
    return pc.if_else(empty, null(_HEADERS), headers)


def _check_headers(headers: pa.Array) -> None:
    """Raises if a list has null instead of a header, or a header has no key."""
    pairs = headers.flatten()
    without = pairs.null_count or pairs.field("key").null_count
    if without:
        raise InvalidInputError(
            f"{without} of {len(pairs)} headers are null or have a null key; a header needs a"
            " key, only its value may be null; filter these out"
        )


def _timestamps(table: pa.Table, now_us: int) -> tuple[pa.Array, bool]:
    now = scalar(now_us, _TIMESTAMP)
    if "timestamp" not in table.schema.names:
        return pa.repeat(now, len(table)), False
    column = table.column("timestamp")
    are_ms = pa.types.is_integer(column.type)
    if not (are_ms or pa.types.is_timestamp(column.type)):
        raise InvalidInputError(
            f"column timestamp has type {column.type}; it must be a timestamp, or epoch ms as"
            " integer"
        )
    try:
        if are_ms:
            thousand = scalar(1000, pa.int64())
            column = pc.multiply_checked(column.cast(pa.int64()), thousand)
        times = _one_chunk(pc.cast(column, options=_TO_MICROS))
    except pa.ArrowInvalid as e:
        raise InvalidInputError(f"column timestamp has values above {_TIMESTAMP_MS_MAX} ms") from e
    lowest = pc.min(times.cast(pa.int64())).as_py()
    if lowest is not None and lowest < 0:
        raise InvalidInputError(
            f"timestamp {lowest} µs is before 1970; timestamps cannot be negative"
        )
    given = times.null_count == 0
    return (times if given else pc.fill_null(times, now)), given


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.num_chunks == 0:
        return pa.nulls(0, column.type)
    return pa.concat_arrays(column.chunks)


class ContentHash:
    """A hash that is updated with batches, and then returns its digest (32 hex digits)."""

    def __init__(self) -> None:
        self._streams: dict[str, Any] = {}
        self._places: Counter[str] = Counter()
        self._rows = 0

    def update(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            of_bytes = name not in ("key", "value") or pa.types.is_binary(column.type)
            (self._column if of_bytes else self._typed)(name, column)

    def hexdigest(self) -> str:
        total = xxhash.xxh3_128(self._rows.to_bytes(8, "little"))
        for name in sorted(self._streams):
            total.update(name.encode() + b"\0" + self._streams[name].digest())
        return total.hexdigest()

    def _column(self, name: str, column: pa.Array) -> None:
        self._feed(f"{name}.null", to_numpy(column.is_null()))
        if pa.types.is_list(column.type):
            lengths = pc.fill_null(column.value_lengths(), scalar(0, pa.int32()))
            self._feed(f"{name}.lengths", to_numpy(lengths))
            self._column(f"{name}[]", column.flatten())
        elif pa.types.is_struct(column.type):
            for i, child in enumerate(column.flatten()):
                self._column(f"{name}.{column.type.field(i).name}", child)
        elif pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            filled = pc.fill_null(column, empty(column.type)) if column.null_count else column
            offsets = np.frombuffer(filled.buffers()[1], np.int32)[
                filled.offset : filled.offset + len(filled) + 1
            ]
            self._feed(f"{name}.lengths", np.diff(offsets))
            if len(filled) and filled.buffers()[2] is not None:
                data = memoryview(filled.buffers()[2])[int(offsets[0]) : int(offsets[-1])]
                self._stream(f"{name}.bytes").update(data)
        else:
            numbers = pc.fill_null(column.cast(pa.int64()), scalar(0, pa.int64()))
            self._feed(name, to_numpy(numbers))

    def _typed(self, name: str, column: pa.Array) -> None:
        first = self._places[name]
        self._places[name] += len(column)
        there = to_numpy(column.is_valid())
        if not there.any():
            return
        self._feed(f"{name}.at", first + np.flatnonzero(there))
        column = column.filter(to_arrow(there)) if column.null_count else column
        kind = column.type
        if pa.types.is_struct(kind):
            for i, child in enumerate(column.flatten()):
                self._typed(f"{name}.{kind.field(i).name}", child)
        elif is_listed(kind):
            self._feed(f"{name}.lengths", list_lengths(column))
            self._typed(f"{name}[]", elements(column))
        elif pa.types.is_binary(kind) or pa.types.is_string(kind):
            self._column(name, column)
        else:
            self._feed(name, _widest(column))

    def _feed(self, name: str, numbers: np.ndarray[Any, Any]) -> None:
        self._stream(name).update(np.ascontiguousarray(numbers).tobytes())

    def _stream(self, name: str) -> Any:
        return self._streams.setdefault(name, xxhash.xxh3_128())


def _widest(column: pa.Array) -> np.ndarray[Any, Any]:
    """Returns the bytes of values without nulls; numbers are widened to the widest type."""
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        signed = not pa.types.is_unsigned_integer(kind)
        return to_numpy(column).astype(np.int64 if signed else np.uint64)
    if pa.types.is_float32(kind):
        column = column.cast(pa.float64())
    width = column.type.byte_width
    return np.frombuffer(column.buffers()[1], np.uint8, len(column) * width, column.offset * width)
