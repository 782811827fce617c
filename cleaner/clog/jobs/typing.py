"""Keys and values in bytes, decoded: JSON, Avro, or what they are. Pure.

A decoder takes bytes and the type that is wanted, and returns a value of Python's as `Log.append`
takes it; whether it fits the type is seen later, for many at once. One that cannot be decoded is an
`UndecodableError`, whose text is the reason and holds nothing of the bytes.

A log of bytes copied into a typed one, each record once, and as often as one likes: what was
appended since the last time is what there is to do.

Partition by partition, in batches:

D1. Records are read from where the target's positions of the id say, and decoded.
D2. What cannot be decoded, or does not fit the target's schema, goes to the dead-letter log as it
    is, in one transaction with its position there. Crash: D1 again; letters below that position are
    there already, and are left out.
D3. The others are appended to the target in one transaction with the position. Crash before: D1
    again; after: the next batch.

Tombstones stay tombstones. Records are placed by their keys, whose hash may be another one as a
number than as text; those of one key keep their order, as they lie in one partition of the source.
Without a dead-letter log the first record that is none ends the copy; the batches before it stay.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from clog.storage import Log
from clog.storage.config.log_config import LogConfig
from clog.storage.env import install_extra
from clog.storage.errors import InvalidInputError
from clog.storage.numpy_arrays import to_arrow
from clog.storage.objects.records import of_headers
from clog.storage.objects.writer import record_sizes
from clog.storage.types.columns import BYTES
from clog.storage.types.conform import fitting_python, from_json, parsed_json

_HEADER_BYTES: Final = 5


class UndecodableError(Exception):
    """Bytes that cannot be decoded; the text gives the reason."""


class Decode(Protocol):
    """Makes a Python value of bytes, for a type of the log; raises `UndecodableError`."""

    def __call__(self, data: bytes, kind: pa.DataType, /) -> Any:
        """Returns the value."""


def json_values(data: bytes, kind: pa.DataType) -> Any:
    """Decodes JSON; types that JSON lacks are written as ``clog consume --json`` prints them.

    Args:
        data: UTF-8; a schema registry's header before it is skipped.
        kind: the type that the log has for it.

    Raises:
        UndecodableError: it is not JSON, or it is null.
    """
    try:
        body = data[_HEADER_BYTES:] if data[:1] == b"\0" else data
        value = parsed_json(_text(body), kind)
    except json.JSONDecodeError as e:
        raise UndecodableError(f"is no JSON: {e.msg} at character {e.pos}") from None
    except RecursionError:
        raise UndecodableError("is JSON that is nested too deep") from None
    except ValueError as e:
        raise UndecodableError(f"is no JSON that can be read: {e}") from None
    return _there(from_json(value, kind))


def plain_keys(data: bytes, kind: pa.DataType) -> Any:
    """Decodes a key: text and bytes are what they are, anything else is JSON."""
    types = pa.types
    if types.is_binary(kind) or types.is_fixed_size_binary(kind):
        return data
    return _text(data) if types.is_string(kind) else json_values(data, kind)


def avro_values(schema: Any = None, *, by_id: Mapping[int, Any] | None = None) -> Decode:
    """Returns a decoder of Avro, without a file's header.

    Args:
        schema: the schema with which all values were written, in its JSON form.
        by_id: the schemas by their ids in a registry: each value then begins with Confluent's
            header, a zero byte and four bytes of the id.

    Raises:
        InvalidInputError: not exactly one of the two is given, or it is not an Avro schema; or
            fastavro is not installed.
    """
    if (schema is None) == (by_id is None):
        raise InvalidInputError("give one schema of Avro, or schemas by their ids")
    try:
        import fastavro
    except ImportError as e:
        raise InvalidInputError(f"Avro needs fastavro: {install_extra('avro')}") from e
    given = {None: schema} if by_id is None else dict(by_id)
    try:
        parsed = {
            number: fastavro.parse_schema(_without_uuid(one)) for number, one in given.items()
        }
    except Exception as e:
        raise InvalidInputError(f"this is not an Avro schema: {e}") from e

    def decode(data: bytes, kind: pa.DataType) -> Any:  # noqa: ARG001 - a schema says the types
        number, body = (None, data) if by_id is None else _headed(data)
        if number not in parsed:
            raise UndecodableError(f"has the schema id {number}, and no schema was given for it")
        buffer = BytesIO(body)
        try:
            value: Any = fastavro.schemaless_reader(buffer, parsed[number], None)
            why = "bytes are left over" if buffer.read(1) else None
        except Exception as e:  # noqa: BLE001 - any bytes may come, and they raise anything
            value, why = None, type(e).__name__
        if why is not None:
            what = f"is no Avro of this schema: {why}"
            raise UndecodableError(what + _hint(data, number))
        return _there(value)

    return decode


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        raise UndecodableError(f"is no UTF-8 at byte {e.start}") from None


def _there(value: Any) -> Any:
    if value is None:  # It would delete the key.
        raise UndecodableError("is null inside of its encoding, which is no tombstone")
    return value


def _hint(data: bytes, number: int | None) -> str:
    """Returns what to do about the header of a registry that nobody said was there."""
    if number is not None or not _has_header(data):
        return ""
    found, _ = _headed(data)
    return (
        f"; it begins as values of a schema registry do, with the schema id {found}: give the"
        f" schema by its id (--avro-schema {found}=FILE, avro_values(by_id=…))"
    )


def _headed(data: bytes) -> tuple[int, bytes]:
    if not _has_header(data):
        raise UndecodableError("has no header with a schema id")
    return int.from_bytes(data[1:_HEADER_BYTES], "big"), data[_HEADER_BYTES:]


def _has_header(data: bytes) -> bool:
    return len(data) >= _HEADER_BYTES and data[0] == 0


def _without_uuid(schema: Any) -> Any:
    """Returns a schema in which UUIDs are the strings that they are stored as."""
    if isinstance(schema, list):
        return [_without_uuid(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    is_uuid = schema.get("logicalType") == "uuid"
    return {
        name: _without_uuid(part)
        for name, part in schema.items()
        if not (is_uuid and name == "logicalType")
    }


BATCH_BYTES: Final = 16 << 20
"""Records of so many bytes, or more by one batch of the source, make one commit."""
TIMEOUT_MS: Final = 3_600_000
REASON, LOG_ID, PARTITION, OFFSET = (
    f"clog.dead-letter.{name}" for name in ("reason", "log-id", "partition", "offset")
)
"""Headers of a dead letter, behind those that it had."""


@dataclass(frozen=True, slots=True)
class Converted:
    """What one call did.

    Attributes:
        records: appended to the target, tombstones among them.
        tombstones: of these, those without a value.
        dead_letters: appended to the dead-letter log.
    """

    records: int = 0
    tombstones: int = 0
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class _Copy:
    source: Log
    target: Log
    values: Decode
    keys: Decode
    dead_letters: Log | None
    id: str


def convert(
    source: Log,
    target: Log,
    *,
    values: Decode = json_values,
    keys: Decode = plain_keys,
    dead_letters: Log | None = None,
    id: str | None = None,
    more: Callable[[int], None] = lambda _: None,
) -> Converted:
    """Appends to a typed log the records of a log of bytes that it does not have yet.

    Args:
        source: the log of bytes.
        target: the typed log.
        values: how values are decoded: `json_values`, or what `avro_values` returns.
        keys: how keys are; by default text and binary are what they are, the rest is JSON.
        dead_letters: a log for records that cannot be decoded or do not fit, with the reason in
            their headers; None: such a record is an error.
        id: under which the target remembers how far the copy has come; None: derived from the
            source.
        more: called with the number of records done so far.

    Raises:
        InvalidInputError: a log of another kind; without ``dead_letters``, a record that does not
            fit: the message says which and why.
        TransactionFencedError: another process runs the same copy.
        OffsetOutOfRangeError, NotFoundError: the source has removed records or tombstones that the
            target does not have: copy into a new log.
    """
    _check_logs(source, target, dead_letters)
    copy = _Copy(source, target, values, keys, dead_letters, id or f"convert-{source.id}")
    positions = target.positions(copy.id).get(source.id, {})
    written = {} if dead_letters is None else dead_letters.positions(copy.id).get(source.id, {})
    done = Converted()
    for p, end in source.stable_offsets().items():
        start = positions.get(p)
        if start is not None and start >= end:
            continue
        for batch, position in _batches(source, p, start, end):
            new = _converted(copy, batch, p, position, written.get(p, 0))
            done = Converted(
                done.records + new.records,
                done.tombstones + new.tombstones,
                done.dead_letters + new.dead_letters,
            )
            more(batch.num_rows)
    return done


def _check_logs(source: Log, target: Log, dead_letters: Log | None) -> None:
    if source.schema != BYTES:
        raise InvalidInputError(
            f"{source.url} is typed already: clog copy makes a copy of it, evolve changes its"
            " schema"
        )
    if target.schema == BYTES:
        raise InvalidInputError(
            f"{target.url} is a log of bytes; create one with a schema, for columns to go to"
        )
    if dead_letters is None:
        return
    if dead_letters.schema != BYTES or LogConfig.from_overrides(dead_letters.config).compact:
        raise InvalidInputError(
            f"{dead_letters.url} cannot take dead letters: it has to be a log of bytes whose"
            ' cleanup.policy is "delete" or empty, so that those of one key stay apart'
        )


def _batches(
    source: Log, p: int, start: int | None, end: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yields records, and the offset from which it goes on after them."""
    held: list[pa.RecordBatch] = []
    for batch in source.read(partition=p, start=start, end=end):
        held.append(batch)
        if sum(one.nbytes for one in held) >= BATCH_BYTES:
            whole = _joined(held)
            held = []
            yield whole, whole.column("offset")[-1].as_py() + 1
    if held:
        yield _joined(held), end


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    (whole,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole


def _converted(
    copy: _Copy, batch: pa.RecordBatch, p: int, position: int, written: int
) -> Converted:
    """Does one batch (D1 to D3); dead letters below ``written`` are there already."""
    rows, reasons = _typed(copy, batch)
    letters = {i: why for i, why in reasons.items() if batch.column("offset")[i].as_py() >= written}
    if reasons and copy.dead_letters is None:
        at = min(reasons)
        raise InvalidInputError(
            f"offset {batch.column('offset')[at].as_py()} of partition {p} of {copy.source.url}"
            f" {reasons[at]}; nothing from there on was appended; give a dead-letter log for such"
            " records"
        )
    if letters and copy.dead_letters is not None:
        with copy.dead_letters.transaction(copy.id, TIMEOUT_MS) as t:
            t.append(_letters(batch, letters, copy.source.id))
            t.positions(copy.source, {p: position})
    with copy.target.transaction(copy.id, TIMEOUT_MS) as t:
        if rows.num_rows:
            t.append(rows)
        t.positions(copy.source, {p: position})
    return Converted(rows.num_rows, rows.column("value").null_count, len(letters))


def _typed(copy: _Copy, batch: pa.RecordBatch) -> tuple[pa.Table, dict[int, str]]:
    """Returns the records as the target has them; and of those that are none, by their rows, why.
    Decodes record by record: each is a document of its own.
    """
    schema = copy.target.schema
    config = copy.target.config
    needs_key = LogConfig.from_overrides(config).compact
    reasons: dict[int, str] = {}
    left = np.arange(batch.num_rows)
    columns: list[pa.Array] = []
    for name, decode in (("key", copy.keys), ("value", copy.values)):
        field = schema.field(name)
        there = batch.column(name).take(to_arrow(left)).to_pylist()
        required = name == "key" and needs_key
        found: list[Any] = []
        fits = []
        for i, data in zip(left.tolist(), there, strict=True):
            try:
                if data is None and required:
                    raise UndecodableError("is missing, and the target is compacted")
                found.append(None if data is None else decode(data, field.type))
                fits.append(i)
            except UndecodableError as e:
                reasons[i] = f"has a {name} that {e}"
        column, unfit = fitting_python(found, field)
        reasons |= {fits[at]: why for at, why in unfit.items()}
        kept = np.array([i for at, i in enumerate(fits) if at not in unfit], np.int64)
        columns = [one.filter(to_arrow(np.isin(left, kept))) for one in columns]
        columns.append(column)
        left = kept
    others = batch.select(["headers", "timestamp"]).take(to_arrow(left))
    names = ["key", "value", "headers", "timestamp"]
    rows = pa.table([*columns, *others.columns], names=names)
    most = int(config["max.message.bytes"])
    sizes = record_sizes(rows)  # A number counts eight bytes, and has fewer digits in a text.
    for at in np.flatnonzero(sizes > most).tolist():
        reasons[int(left[at])] = (
            f"has {sizes[at]} bytes in columns, more than max.message.bytes={most} of the target"
        )
    return rows.filter(to_arrow(sizes <= most)), reasons


def _letters(batch: pa.RecordBatch, reasons: dict[int, str], log_id: str) -> pa.Table:
    """Returns records as they were, with what is wrong with them in their headers."""
    at = sorted(reasons)
    letters = batch.take(to_arrow(np.array(at, np.int64)))
    headers = []
    rows = letters.select(["partition", "offset", "headers"]).to_pylist()
    for i, row in zip(at, rows, strict=True):
        own = [(h["key"].encode(), h["value"]) for h in row["headers"] or ()]
        where = {LOG_ID: log_id, PARTITION: row["partition"], OFFSET: row["offset"]}
        told = {REASON: reasons[i], **where}
        headers.append([*own, *((name.encode(), str(told[name]).encode()) for name in told)])
    made = of_headers(headers)
    return pa.table(
        [letters.column("key"), letters.column("value"), made, letters.column("timestamp")],
        names=["key", "value", "headers", "timestamp"],
    )
