"""Records as lines, both ways.

*Text*: ``key<TAB>value``. An empty value is ``key<TAB>``; a tombstone is only the key, without a
TAB (S4). With a null marker, a key or value that equals it is null. Text cannot hold headers,
timestamps, a TAB in a key, or a line feed: JSON lines can hold everything.

*JSON lines*: one object per line::

    {"partition":0,"offset":7,"timestamp":"2026-01-31T12:00:00.000001Z","key":"alice","value":null,
     "headers":[{"key":"source","value":"crm"}]}

Bytes that are not UTF-8 are in ``key_b64`` and ``value_b64`` instead. To append, ``key`` and
``value`` are required; a timestamp may also be epoch milliseconds; ``offset`` is ignored, since the
log assigns offsets.

In a typed log keys and values are JSON of their types (`types.conform`), in text lines too, except
that a text key is written as it is; such lines cannot be read back.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from clog.storage.env import dataclass

if TYPE_CHECKING:
    import pyarrow as pa

LINE_FORMAT = "--format text|jsonl"
_FIELDS = frozenset(
    {"key", "key_b64", "value", "value_b64", "headers", "timestamp", "partition", "offset"}
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIMESTAMP_MS_MAX = (2**63 - 1) // 1000


@dataclass(slots=True)
class Rows:
    """Records by column. An entry of ``partitions`` is None if the record names none."""

    keys: list[Any] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    headers: list[list[dict[str, Any]] | None] = field(default_factory=list)
    timestamps_us: list[int | None] = field(default_factory=list)
    partitions: list[int | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.keys)

    def add(
        self,
        key: Any,
        value: Any,
        headers: list[dict[str, Any]] | None = None,
        timestamp_us: int | None = None,
        partition: int | None = None,
    ) -> None:
        """Adds a record."""
        self.keys.append(key)
        self.values.append(value)
        self.headers.append(headers)
        self.timestamps_us.append(timestamp_us)
        self.partitions.append(partition)

    def to_typed(self, schema: "pa.Schema", *, first: int) -> "pa.Table":
        """Returns a table for `Log.append` of a typed log; ``first`` as in `parse_jsonl`."""
        from clog.storage.errors import InvalidInputError
        from clog.storage.types.conform import UnfitError, unrounded

        nothing = [None] * len(self)
        table = self._to_table(nothing, nothing)
        for i, (kind, values) in enumerate(zip(schema, (self.keys, self.values), strict=True)):
            try:
                made = unrounded(values, kind)
            except UnfitError as e:
                raise InvalidInputError(
                    f"record {first + e.at} of the input {e.what}; nothing of its batch was"
                    " appended"
                ) from None
            table = table.set_column(i, kind.name, made)
        return table

    def to_arrow(self) -> "pa.Table":
        """Returns a table for `Log.append`."""
        return self._to_table(self.keys, self.values)

    def _to_table(self, keys: list[Any], values: list[Any]) -> "pa.Table":
        from clog.storage.objects.records import from_columns

        headers = [
            None if some is None else [(pair["key"].encode(), pair["value"]) for pair in some]
            for some in self.headers
        ]
        return from_columns(keys, values, headers, self.timestamps_us)


def parse_text(lines: Sequence[bytes], *, null_marker: bytes | None = None) -> Rows:
    r"""Reads records from text lines, given without their line feeds.

    >>> parse_text([b"a\t1", b"a\t", b"a"]).values
    [b'1', b'', None]
    """
    parts = [line.partition(b"\t") for line in lines]
    keys = [None if key == null_marker else key for key, _, _ in parts]
    values = [value if tab and value != null_marker else None for _, tab, value in parts]
    headers, timestamps_us, partitions = ([None] * len(lines) for _ in range(3))
    return Rows(keys, values, headers, timestamps_us, partitions)  # type: ignore[arg-type]


def parse_jsonl(lines: Sequence[bytes], *, first: int, schema: "pa.Schema | None" = None) -> Rows:
    """Reads records from JSON lines, numbered from ``first``; ``schema`` is that of a typed log."""
    from clog.storage.errors import InvalidInputError
    from clog.storage.types.conform import parsed_json

    rows, kinds = Rows(), () if schema is None else schema.types
    for number, line in enumerate(lines, first):
        try:
            _add(rows, parsed_json(line, *kinds), schema)
        except (ValueError, TypeError, RecursionError) as e:
            why = "it is not JSON" if isinstance(e, json.JSONDecodeError) else str(e)
            why = "it is nested too deeply" if isinstance(e, RecursionError) else why
            raise InvalidInputError(f"record {number} of the input cannot be read: {why}") from None
    return rows


def format_text(
    batch: "pa.RecordBatch",
    fields: Sequence[str] = ("key", "value"),
    *,
    null_marker: bytes | None = None,
) -> Iterator[bytes]:
    """Yields text lines of a batch, with these columns and line feeds. A last value that is null is
    left out with its TAB, unless it has a marker.
    """
    null = null_marker or b""
    columns = [_texts_of_field(batch, name, null) for name in fields]
    lacks = fields[-1] == "value" and len(fields) > 1 and null_marker is None
    gone = batch.column("value").is_null().to_pylist() if lacks else [False] * batch.num_rows
    for row, is_tombstone in zip(zip(*columns, strict=True), gone, strict=True):
        yield b"\t".join(row[:-1] if is_tombstone else row) + b"\n"


def _texts_of_field(batch: "pa.RecordBatch", name: str, null: bytes) -> list[bytes]:
    """Returns a column of text lines."""
    if name == "timestamp":
        return [str(value).encode() for value in timestamps_of(batch)]
    column = batch.column(name)
    if name == "headers":
        return [_headers_text(some, null) for some in column.to_pylist()]
    if name in ("partition", "offset"):
        return [str(value).encode() for value in column.to_pylist()]
    return [null if text is None else text for text in texts_of(column)]


def format_jsonl(batch: "pa.RecordBatch") -> Iterator[bytes]:
    """Yields JSON lines of a batch, from which `parse_jsonl` reads the same records."""
    return (json_text(record).encode() + b"\n" for record in json_records(batch))


def json_records(batch: "pa.RecordBatch") -> Iterator[dict[str, Any]]:
    """Yields the records of a batch in the form of JSON lines."""
    names = ("partition", "offset", "headers")
    partitions, offsets, pairs = (batch.column(name).to_pylist() for name in names)
    contents = (_json_fields(batch, name) for name in ("key", "value"))
    rows = zip(timestamps_of(batch), partitions, offsets, *contents, pairs, strict=True)
    for timestamp, partition, offset, key, value, headers in rows:
        record = {"partition": partition, "offset": offset, "timestamp": timestamp, **key, **value}
        if headers:
            record["headers"] = headers_json(headers)
        yield record


def _json_fields(batch: "pa.RecordBatch", name: str) -> list[dict[str, Any]]:
    column = batch.column(name)
    if of_bytes(batch.schema):
        return [_binary_json(name, value) for value in column.to_pylist()]
    return [{name: value} for value in as_json(column)]


def as_json(column: "pa.Array") -> list[Any]:
    """Returns typed keys or values as JSON has them."""
    from clog.storage.types.conform import column_json

    return column_json(column)


def of_bytes(schema: "pa.Schema") -> bool:
    """Returns whether keys and values are bytes: in a typed log, only one of them may be."""
    import pyarrow as pa

    return all(pa.types.is_binary(schema.field(name).type) for name in ("key", "value"))


def texts_of(column: "pa.Array") -> list[bytes | None]:
    """Returns keys or values in the form of text lines."""
    import pyarrow as pa

    if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
        found: list[bytes | None] = column.cast(pa.binary()).to_pylist()
        return found
    return [None if value is None else json_text(value).encode() for value in as_json(column)]


def timestamps_of(batch: "pa.RecordBatch") -> list[str | int]:
    """Returns the timestamps of records in the form of JSON lines."""
    import pyarrow as pa

    return [_iso(us) for us in batch.column("timestamp").cast(pa.int64()).to_pylist()]


def json_text(value: Any) -> str:
    """Returns a value as compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def headers_json(headers: Sequence[dict[str, Any]]) -> list[dict[str, str | None]]:
    """Returns the headers of a record in the form of JSON lines."""
    return [{"key": h["key"], **_binary_json("value", h["value"])} for h in headers]


def _add(rows: Rows, record: Any, schema: "pa.Schema | None") -> None:
    if not isinstance(record, dict):
        raise TypeError("it is not a JSON object")
    if unknown := record.keys() - _FIELDS:
        raise ValueError(f"unknown fields {sorted(unknown)}; allowed: {', '.join(sorted(_FIELDS))}")
    if schema is None:
        key, value = _binary(record, "key"), _binary(record, "value")
    else:
        key, value = (_typed(record, name, schema) for name in ("key", "value"))
    headers, partition = _headers(record.get("headers")), record.get("partition")
    timestamp_us = _timestamp_us(record.get("timestamp"))
    if partition is not None and type(partition) is not int:
        raise TypeError("partition is not an integer")
    rows.add(key, value, headers, timestamp_us, partition)


def _typed(record: dict[str, Any], name: str, schema: "pa.Schema") -> Any:
    from clog.storage.types.conform import from_json

    if name not in record:
        raise ValueError(f'{name} is missing; for null give "{name}": null')
    return from_json(record[name], schema.field(name).type)


def _binary(record: dict[str, Any], name: str) -> bytes | None:
    encoded = f"{name}_b64"
    if (name in record) == (encoded in record):
        raise ValueError(f'give either {name} or {encoded}; for null, "{name}": null')
    if name in record:
        text = record[name]
        if text is not None and not isinstance(text, str):
            raise TypeError(f"{name} is not a string or null")
        return None if text is None else text.encode()
    try:
        return base64.b64decode(record[encoded], validate=True)
    except (binascii.Error, TypeError):
        raise ValueError(f"{encoded} is not base64") from None


def _headers(headers: Any) -> list[dict[str, Any]] | None:
    if headers is None:
        return None
    if not isinstance(headers, list) or not all(
        isinstance(h, dict) and isinstance(h.get("key"), str) for h in headers
    ):
        raise TypeError('headers is not a list of {"key": …, "value": …}')
    for header in headers:
        if unknown := header.keys() - {"key", "value", "value_b64"}:
            raise ValueError(f"unknown fields {sorted(unknown)} in headers")
        header["key"].encode()  # ValueError if it is not valid text
    return [{"key": h["key"], "value": _binary(h, "value")} for h in headers] or None


def _timestamp_us(timestamp: Any) -> int | None:
    if timestamp is None:
        return None
    if type(timestamp) is int:
        if timestamp > _TIMESTAMP_MS_MAX:
            raise ValueError(f"timestamp {timestamp} is above {_TIMESTAMP_MS_MAX} milliseconds")
        if timestamp < 0:
            raise ValueError(f"timestamp {timestamp} is before 1970")
        return timestamp * 1000
    if not isinstance(timestamp, str):
        raise TypeError("timestamp is neither epoch milliseconds nor ISO 8601")
    when = datetime.fromisoformat(timestamp)
    return ((when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND


def _iso(us: int) -> str | int:
    """Returns ISO 8601 with microseconds, or epoch milliseconds where Python's dates end."""
    try:
        when = _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return us // 1000
    return when.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _binary_json(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_b64": base64.b64encode(value).decode()}


def _headers_text(headers: list[dict[str, Any]] | None, null: bytes) -> bytes:
    pairs = [
        h["key"].encode() + b"=" + (null if h["value"] is None else h["value"])
        for h in headers or ()
    ]
    return b",".join(pairs)


def check_base64(texts: Iterable[str], *, is_base64: bool) -> None:
    """Raises if keys are not base64 although they should be, without repeating them."""
    try:
        for text in texts if is_base64 else ():
            base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        import click

        raise click.BadParameter("a key is not base64, although --base64 says so") from None


def keys_given(texts: Iterable[str], *, is_base64: bool, schema: "pa.Schema | None") -> list[Any]:
    """Returns keys given as text or base64, as bytes, or as values of a typed log."""
    if schema is not None:
        from clog.storage.errors import InvalidInputError
        from clog.storage.types.conform import key_from_text

        if is_base64:
            raise InvalidInputError(
                "--base64 is for logs of bytes; this log is typed: give keys as clog consume --json"
                " shows them"
            )
        return [key_from_text(text, schema.field("key").type) for text in texts]
    if not is_base64:
        # Restores bytes from the shell that were not UTF-8.
        return [text.encode(errors="surrogateescape") for text in texts]
    given = list(texts)
    check_base64(given, is_base64=True)
    return [base64.b64decode(text) for text in given]
