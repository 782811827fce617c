"""What `Log.append` accepts, made one Arrow table of the record schema.

Accepted: a pyarrow Table or RecordBatch with the columns ``key`` and ``value`` (binary or string,
    large or not), and optionally ``headers``
(list of struct<key, value>) and ``timestamp`` (timestamp of any unit, or integer epoch
milliseconds); or a list of dicts with the same names, where keys and values are bytes, str or None,
headers a list of (name, value) pairs or of dicts, timestamps epoch ms or datetime.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from clog.storage.data_object import RECORD_SCHEMA
from clog.storage.errors import InvalidInputError
from clog.storage.numpy_arrays import null, scalar

COLUMNS = ("key", "value", "headers", "timestamp")
Appendable: TypeAlias = pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP_MS_MAX = (2**63 - 1) // 1000
_HEADERS = RECORD_SCHEMA.field("headers").type
_TIMESTAMP = RECORD_SCHEMA.field("timestamp").type
_TO_MICROS = pc.CastOptions(_TIMESTAMP, allow_time_truncate=True)


def to_records(data: Appendable, *, now_us: int) -> tuple[pa.Table, bool]:
    """The records as a table of `RECORD_SCHEMA` in one chunk, and whether the caller gave all
    timestamps.

    ``now_us`` (µs since 1970) stands for timestamps that are missing.

    Raises:
        InvalidInputError: a column that is missing or of a wrong type, an unknown column, a
            negative timestamp, more than 2 GiB of keys or of values.
    """
    table = _to_table(data)
    unknown = [name for name in table.schema.names if name not in COLUMNS]
    if unknown:
        raise InvalidInputError(f"unknown columns {unknown}; records have {', '.join(COLUMNS)}")
    missing = [name for name in ("key", "value") if name not in table.schema.names]
    if missing:
        raise InvalidInputError(f"columns {missing} are missing; records need key and value")
    if len(set(table.schema.names)) < len(table.schema.names):
        raise InvalidInputError(f"columns {table.schema.names} repeat a name; give each once")
    timestamps, given = _timestamps(table, now_us)
    columns = [
        _binary(table, "key"),
        _binary(table, "value"),
        _headers(table),
        timestamps,
    ]
    return pa.Table.from_arrays(columns, schema=RECORD_SCHEMA), given


def _to_table(data: Appendable) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return _from_dicts(data)
    raise InvalidInputError(
        f"cannot append a {type(data).__name__}; give a pyarrow Table or RecordBatch,"
        " or a list of dicts with key and value"
    )


def _from_dicts(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidInputError(f"record {i} is a {type(row).__name__}, expected a dict")
        unknown = [name for name in row if name not in COLUMNS]
        if unknown or "key" not in row or "value" not in row:
            raise InvalidInputError(
                f"record {i} has the fields {list(row)}; needed: key, value; allowed:"
                f" {', '.join(COLUMNS)}"
            )
    columns = {
        "key": pa.array([_bytes(row["key"], i, "key") for i, row in enumerate(rows)], pa.binary()),
        "value": pa.array(
            [_bytes(row["value"], i, "value") for i, row in enumerate(rows)], pa.binary()
        ),
        "headers": pa.array(
            [_pairs(row.get("headers"), i) for i, row in enumerate(rows)], _HEADERS
        ),
        "timestamp": pa.array(
            [_micros(row.get("timestamp"), i) for i, row in enumerate(rows)],
            pa.timestamp("us", "UTC"),
        ),
    }
    return pa.table(columns)


def _bytes(value: object, i: int, name: str) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise InvalidInputError(
        f"record {i} has a {name} of type {type(value).__name__}; it must be bytes, str or None"
    )


def _pairs(headers: object, i: int) -> list[dict[str, Any]] | None:
    if headers is None:
        return None
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    try:
        return [
            {"key": _name(h["key"], i), "value": _bytes(h["value"], i, "header")}
            if isinstance(h, Mapping)
            else {"key": _name(h[0], i), "value": _bytes(h[1], i, "header")}
            for h in pairs  # type: ignore[attr-defined]
        ] or None
    except (TypeError, KeyError, IndexError) as e:
        raise InvalidInputError(
            f"record {i} has headers that are no list of (name, value) pairs"
        ) from e


def _name(name: object, i: int) -> str:
    if not isinstance(name, str):
        raise InvalidInputError(
            f"record {i} has a header whose name is of type {type(name).__name__}; it must be str"
        )
    return name


def _micros(timestamp: object, i: int) -> int | None:
    if timestamp is None:
        return None
    if isinstance(timestamp, datetime):
        aware = timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
        return (aware - _EPOCH) // timedelta(microseconds=1)
    if type(timestamp) is int:
        if abs(timestamp) > _TIMESTAMP_MS_MAX:
            raise InvalidInputError(
                f"record {i} has the timestamp {timestamp} ms, beyond {_TIMESTAMP_MS_MAX}"
            )
        return timestamp * 1000
    raise InvalidInputError(
        f"record {i} has a timestamp of type {type(timestamp).__name__};"
        " it must be epoch milliseconds or a datetime"
    )


def _binary(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    kind = column.type
    if not (pa.types.is_null(kind) or _is_binary(kind)):
        raise InvalidInputError(f"column {name} has type {kind}; it must be binary or string")
    try:
        return _one_chunk(column.cast(pa.binary()))
    except pa.ArrowInvalid as e:
        raise InvalidInputError(
            f"column {name} holds more than 2 GiB; append the records in parts"
        ) from e


def _is_binary(kind: pa.DataType) -> bool:
    tests = (
        *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string),
        *(pa.types.is_large_string, pa.types.is_fixed_size_binary),
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
    # No headers is null, however it was said.
    empty = pc.equal(pc.list_value_length(headers), scalar(0, pa.int32()))
    return pc.if_else(empty, null(_HEADERS), headers)


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
            column = pc.multiply_checked(column.cast(pa.int64()), 1000)
        stamps = _one_chunk(pc.cast(column, options=_TO_MICROS))
    except pa.ArrowInvalid as e:
        raise InvalidInputError(f"column timestamp has values beyond {_TIMESTAMP_MS_MAX} ms") from e
    lowest = pc.min(stamps.cast(pa.int64())).as_py()
    if lowest is not None and lowest < 0:
        raise InvalidInputError(
            f"timestamp {lowest} µs is before 1970; timestamps cannot be negative"
        )
    given = stamps.null_count == 0
    return (stamps if given else pc.fill_null(stamps, now)), given


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.num_chunks == 0:
        return pa.nulls(0, column.type)
    return pa.concat_arrays(column.chunks)
