"""Decodes records of bytes into the columns of a typed log; what cannot be becomes dead letters.

*Readings* decode the keys and the values of a topic. If these were written with a schema of their
own (`values.Written`), the reading reports it, and the log evolves to hold it before the records
become columns. The changes allowed are those that `Log.evolve` allows: more fields, wider numbers,
nullable fields. Fields that a later schema lacks are kept, and are null. A change that the log
cannot follow is an error, and nothing is committed: the author of the change has to decide.

JSON is parsed by Arrow, a column at a time, where that is exact: for numbers, texts, booleans,
structs and lists of them, in documents that fit. A column with any other document is halved, and
the pieces that remain are decoded one by one, which also shows what is wrong. Both ways agree on
every document: Arrow's parser is as strict, and its result is not used where it rounds (large whole
numbers as floats, −0).

Debezium's changes are *envelopes*: before, after, what happened. The value is the row after the
change; a delete is a tombstone, whatever `before` contains. A truncate concerns all keys, which no
record can express. Debezium may have flattened the changes and marked deleted rows with a field
(`DELETED`); without that field, rows are not treated as changes, and nulls are deletes.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from io import BytesIO
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.bridge.topic import Columns
from clog.bridge.values import (
    AVRO,
    HEADER_BYTES,
    PROTOBUF,
    Column,
    Decode,
    Fix,
    Registry,
    UndecodableError,
    Written,
    connect_column,
    framed,
    json_document,
    json_values,
    plain_keys,
    there,
)
from clog.storage import InvalidInputError, Log, SourceUndecodableError
from clog.storage.spi import (
    Inside,
    LogConfig,
    dataclass,
    fitted,
    from_json,
    of_headers,
    record_sizes,
    to_arrow,
    to_numpy,
    united,
)

DEBEZIUM: Final = "debezium-"
FORMATS: Final = ("json", "avro", "protobuf", "connect-json")
VALUES: Final = (*FORMATS, *(f"{DEBEZIUM}{one}" for one in FORMATS[:3]))
KEYS: Final = ("bytes", "string", *FORMATS)
"""The encodings of values and of keys."""
_REGISTERED: Final = MappingProxyType({"avro": AVRO, "protobuf": PROTOBUF})
DELETED: Final = "__deleted"
"""A field that ExtractNewRecordState adds (``delete.tombstone.handling.mode=rewrite``)."""
_PLACEHOLDERS: Final = ("__debezium_unavailable_value", b"__debezium_unavailable_value")
TIMEOUT_MS: Final = 3_600_000
"""The timeout of transactions with decoded records: an hour for a batch."""
BATCH_BYTES: Final = 16 << 20
"""Records of this many bytes, or up to one batch of a log more, are decoded together."""
_SCHEMAS: Final = 16
"""How many schemas that came with values are remembered."""
_IN_VAIN: Final = 6
"""Parsing together is given up after this many times the column's documents failed that way."""
_FEW: Final = 64
"""A piece of this many documents that cannot be parsed together is decoded one by one."""
REASON, LOG_ID, SOURCE, PARTITION, OFFSET = (
    f"clog.dead-letter.{name}" for name in ("reason", "log-id", "source", "partition", "offset")
)
"""Headers of a dead letter, after those that it already had."""
OF_LETTERS: Final = frozenset((REASON, LOG_ID, SOURCE, PARTITION, OFFSET))
LETTERS_CONFIG: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cleanup.policy": "",
        "max.message.bytes": str((1 << 31) - 1),
        "message.timestamp.after.max.ms": "unlimited",
        "message.timestamp.before.max.ms": "unlimited",
    }
)
"""The config of a new dead-letter log, which takes any record and keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How the records of a topic become columns.

    Attributes:
        values: their encoding: ``json``, ``avro``, ``protobuf``, ``connect-json``, or, for
            Debezium, ``debezium-json``, ``debezium-avro``, ``debezium-protobuf``; or a function
            that takes bytes and the wanted type, and returns a value.
        keys: their encoding: ``bytes``, ``string``, or one for values; None: for Debezium the one
            of its values, otherwise ``bytes``.
        schema: of a new log; None: taken from the topic's newest schemas.
        registry: the URL of the schema registry, for Avro and Protobuf.
        registry_options: options of confluent-kafka's ``SchemaRegistryClient``.
        envelope: keep Debezium's whole change as the value, not only the row after it.
    """

    values: str | Decode
    keys: str | Decode | None = None
    schema: Mapping[str, pa.DataType] | pa.Schema | None = None
    registry: str | None = field(default=None, repr=False)
    registry_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    envelope: bool = False


Read = Callable[[bytes, pa.DataType], tuple[Column | None, Any]]
"""Decodes; returns the column of the schema that came with the data, or None, and the value."""


class Reading:
    """Decodes the keys or the values of a topic; for one thread."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._last: Column | None = None
        self._news: dict[int, Column] = {}

    def __call__(self, data: bytes, kind: pa.DataType) -> Any:
        """Decodes a key or a value."""
        column, value = self._read(data, kind)
        if column is not None and column is not self._last:
            self._last = self._news[id(column)] = column
        return value

    def news(self) -> list[Column]:
        """Returns the columns of schemas seen since the last call; some may be known."""
        found, self._news = [*self._news.values()], {}
        return found


@dataclass(frozen=True, slots=True)
class Typed:
    """Records as columns.

    Attributes:
        rows: the records that fit, with floats as doubles: an append rounds them, for the columns
            that there are then.
        places: the places of these among all records.
        reasons: why the others do not fit, by place.
    """

    rows: pa.Table
    places: np.ndarray[Any, Any]
    reasons: dict[int, str]

    def stored(self, field: pa.Field) -> pa.Table:
        """Returns the rows with a column as the log stores it in this field."""
        column, _ = fitted(self.rows.column(field.name).combine_chunks(), field)
        at = self.rows.column_names.index(field.name)
        return self.rows.set_column(at, field, column)


def typed(
    records: pa.Table,
    decoders: Mapping[str, Decode],
    field_of: Callable[[str], pa.Field],
    config: LogConfig,
) -> Typed:
    """Returns records of bytes as records of a typed log with this config.
    ``field_of`` is called again after a column was decoded, as the log may have evolved for it.
    """
    if "headers" not in records.column_names:
        records = records.append_column("headers", of_headers([None] * records.num_rows))
    reasons: dict[int, str] = {}
    left = np.arange(records.num_rows)
    columns: list[pa.Array] = []
    for name in ("key", "value"):
        data = pa.concat_arrays(records.column(name).take(to_arrow(left)).chunks or [])
        if name == "key" and config.compact and data.null_count:
            missing = to_numpy(data.is_null())
            values = records.column("value").filter(to_arrow(missing)).to_pylist()
            kind, decode = field_of("value").type, decoders["value"]
            whys = (_why_keyless(value, kind, decode) for value in values)
            reasons |= dict(zip(left[missing].tolist(), whys, strict=True))
            left, data = left[~missing], data.drop_null()
        column, places, unfit = _decoded(data, name, decoders[name], field_of)
        reasons |= {int(left[at]): why for at, why in unfit.items()}
        columns = [one.take(to_arrow(places)) for one in columns]
        columns.append(column)
        left = left[places]
    others = records.select(["headers", "timestamp"]).take(to_arrow(left))
    names = ["key", "value", "headers", "timestamp"]
    rows = pa.table([*columns, *others.columns], names=names)
    most = config.max_message_bytes
    sizes = record_sizes(rows)  # A number counts as eight bytes; its text may be shorter.
    for at in np.flatnonzero(sizes > most).tolist():
        reasons[int(left[at])] = (
            f"has {sizes[at]} bytes in columns, more than max.message.bytes={most} of the target"
        )
    return Typed(rows.filter(to_arrow(sizes <= most)), left[sizes <= most], reasons)


def _why_keyless(value: bytes | None, kind: pa.DataType, decode: Decode) -> str:
    """Returns what is wrong with a record without a key; a truncate is reported as such."""
    try:
        _ = value is None or decode(value, kind)
    except UndecodableError as e:
        return f"has a value that {e}"
    return "has no key, but the target is compacted"


def _decoded(
    data: pa.Array, name: str, decode: Decode, field_of: Callable[[str], pa.Field]
) -> tuple[pa.Array, np.ndarray[Any, Any], dict[int, str]]:
    """Returns a column of the data that fit, their places, and why the others do not."""
    kind = field_of(name).type
    if decode is plain_keys and (pa.types.is_binary(kind) or pa.types.is_string(kind)):
        try:
            column, unfit = fitted(data.cast(kind), field_of(name))
        except pa.ArrowException:
            pass  # The loop below finds those that are not text.
        else:
            return column, np.delete(np.arange(len(data)), list(unfit)), unfit
    at_once = decode is json_values and _is_plain(kind)
    parts: list[tuple[int, pa.Array, np.ndarray[Any, Any]]] = []
    reasons: dict[int, str] = {}
    waiting, in_vain = [(0, len(data))], 0
    while waiting:
        low, high = waiting.pop()
        piece = data.slice(low, high - low)
        at_once = at_once and in_vain <= _IN_VAIN * len(data)
        if at_once and (made := _parsed_together(piece, field_of(name))) is not None:
            parts.append((low, made, np.arange(low, high)))
        elif at_once and high - low > _FEW:
            middle, in_vain = (low + high) // 2, in_vain + high - low
            waiting += [(low, middle), (middle, high)]
        else:
            made, places, unfit = _one_by_one(piece, name, decode, field_of)
            parts.append((low, made, places + low))
            reasons |= {at + low: why for at, why in unfit.items()}
    parts.sort(key=lambda part: part[0])
    return (
        pa.concat_arrays([made for _, made, _ in parts]),
        np.concatenate([places for _, _, places in parts]),
        reasons,
    )


def _one_by_one(
    data: pa.Array, name: str, decode: Decode, field_of: Callable[[str], pa.Field]
) -> tuple[pa.Array, np.ndarray[Any, Any], dict[int, str]]:
    kind = field_of(name).type
    found: list[Any] = []
    fits: list[int] = []
    reasons: dict[int, str] = {}
    for i, one in enumerate(data.to_pylist()):
        try:
            found.append(None if one is None else decode(one, kind))
            fits.append(i)
        except UndecodableError as e:
            reasons[i] = f"has a {name} that {e}"
    column, unfit = fitted(found, field_of(name), rounded=False)
    reasons |= {fits[at]: why for at, why in unfit.items()}
    return column, np.array([i for at, i in enumerate(fits) if at not in unfit], np.int64), reasons


def _is_plain(kind: pa.DataType) -> bool:
    """Returns whether Arrow's parser gives the same values of this type as ours."""
    types = pa.types
    if types.is_struct(kind) or types.is_list(kind):
        return all(_is_plain(kind.field(i).type) for i in range(kind.num_fields))
    return bool(
        types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_string(kind)
        or types.is_float64(kind)
    )


def _parsed_together(data: pa.Array, field: pa.Field) -> pa.Array | None:
    """Returns the values of JSON documents; None if one does not have this type or would be
    rounded.

    Each is the only field of an object on its line. Every line gives at least one object, so as
    many objects as lines are one each: closing the object and opening another gives one too many.
    """
    from pyarrow import json as arrow_json

    documents = data.drop_null()
    if not len(documents):
        return pa.nulls(len(data), field.type)
    bare = pc.binary_replace_slice(documents, 0, HEADER_BYTES, b"")
    documents = pc.if_else(pc.starts_with(documents, b"\0"), bare, documents)
    lines = pc.binary_join_element_wise(b'{"v":', documents, b"}\n", b"")
    text = b"".join(lines.to_pylist())
    schema = pa.schema([pa.field("v", field.type)])
    try:
        text.decode()
        found = arrow_json.read_json(
            BytesIO(text),
            arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            arrow_json.ParseOptions(
                explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior="error"
            ),
        )
        if found.num_rows != len(documents):
            return None
        made = pa.concat_arrays(found.column("v").chunks)
        if made.null_count or not _is_exact(made):
            return None
        made, unfit = fitted(made, field)
    except (UnicodeDecodeError, pa.ArrowException):
        return None
    if unfit:
        return None
    if not data.null_count:
        return made
    places = np.full(len(data), -1)
    is_valid = to_numpy(data.is_valid())
    places[is_valid] = np.arange(len(documents))
    return made.take(to_arrow(places, valid=is_valid))


def _is_exact(values: pa.Array) -> bool:
    """Returns whether no float among the values can have been rounded from its text."""
    kind = values.type
    if pa.types.is_struct(kind):
        return all(map(_is_exact, values.flatten()))
    if pa.types.is_list(kind):
        return _is_exact(values.flatten())
    if not pa.types.is_float64(kind):
        return True
    floats = values.drop_null().to_numpy(zero_copy_only=False)
    whole = np.abs(floats) < 2.0**53  # False for infinity and NaN.
    return bool(np.all(whole & ~((floats == 0) & np.signbit(floats))))


def letters_of(
    records: pa.Table, reasons: Mapping[int, str], where: Callable[[int], Mapping[str, object]]
) -> pa.Table:
    """Returns records unchanged; new headers give the reason, and their place from ``where``."""
    at = sorted(reasons)
    letters = records.take(to_arrow(np.array(at, np.int64)))
    named = letters.column_names
    headers = letters.column("headers").to_pylist() if "headers" in named else [None] * len(at)
    made = []
    for i, some in zip(at, headers, strict=True):
        own = [(h["key"].encode(), h["value"]) for h in some or () if h["key"] not in OF_LETTERS]
        added = {REASON: reasons[i], **where(i)}
        made.append([*own, *((name.encode(), str(added[name]).encode()) for name in added)])
    columns = [letters.column(name) for name in ("key", "value", "timestamp")]
    return pa.table([*columns, of_headers(made)], names=["key", "value", "timestamp", "headers"])


def batches_of(
    source: Log, p: int, start: int | None, end: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yields a partition's records, about `BATCH_BYTES` at a time, and the offset after them."""
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


@dataclass(frozen=True, slots=True)
class Place:
    """The source, partition and offset of a dead letter's record, as its ``headers`` have them."""

    source: str
    partition: int
    offset: int
    headers: Mapping[str, str]


def place_of(headers: Iterable[Mapping[str, Any]] | None) -> Place | None:
    """Returns the place of a dead letter's record, from its headers; None if they have none."""
    found = {h["key"]: h["value"] for h in headers or () if h["key"] in OF_LETTERS}
    found.pop(REASON, None)
    try:
        named = {name: value.decode() for name, value in found.items()}
        told = named[PARTITION], named[OFFSET]
        partition, offset = map(int, told)
    except (AttributeError, KeyError, ValueError):
        return None
    is_spelled = all(map(str.isdigit, told))  # `int` also takes signs, spaces and underscores.
    if not (is_spelled and partition < 1 << 31 and offset < 1 << 63):
        return None
    return Place(named.get(SOURCE) or named.get(LOG_ID, ""), partition, offset, named)


def letter_offsets(letters: Log, source: str, partition: int) -> list[int]:
    """Returns the offsets of a source's partition that have dead letters."""
    found: list[int] = []
    for batch in letters.read(columns=["headers"]):
        places = map(place_of, batch.column("headers").to_pylist())
        found += [p.offset for p in places if p and (p.source, p.partition) == (source, partition)]
    return found


def check_letters(log: Log) -> None:
    """Raises if a log cannot take dead letters."""
    if Inside(log).is_typed or Inside(log).config.compact:
        raise InvalidInputError(
            f"{log.url} cannot take dead letters: it must be a log of bytes whose cleanup.policy"
            ' is "delete" or empty, so that letters with the same key are all kept'
        )


class Decoder:
    """Decodes a topic's records into columns; for one thread. ``evolves``: the log may evolve."""

    def __init__(self, decoding: Decoding, topic: str, *, evolves: bool = True) -> None:
        self._decoding = decoding
        self._topic = topic
        self._evolves = evolves
        values, keys = decoding.values, decoding.keys
        is_change = isinstance(values, str) and values.startswith(DEBEZIUM)
        if keys is None:
            encoded = str(values).removeprefix(DEBEZIUM)
            keys = {"json": "connect-json"}.get(encoded, encoded) if is_change else "bytes"
        for name, given, known in (("values", values, VALUES), ("keys", keys, KEYS)):
            if isinstance(given, str) and given not in known:
                raise InvalidInputError(
                    f"{name} cannot be decoded as {given!r:.80}; give one of {', '.join(known)}"
                )
        self._encodings = {"key": keys, "value": values}
        used = [given for given in (keys, values) if isinstance(given, str)]
        self._registry = None
        if any(one.removeprefix(DEBEZIUM) in _REGISTERED for one in used):
            if decoding.registry is None:
                raise InvalidInputError(
                    "the schemas of Avro and Protobuf are in a registry: give its URL"
                    " (registry=…, --registry)"
                )
            self._registry = Registry(decoding.registry, decoding.registry_options)
        if decoding.envelope and not is_change:
            raise InvalidInputError("only Debezium's changes have an envelope to keep")
        self._decoders = {name: self._decoder(given) for name, given in self._encodings.items()}

    def _decoder(self, given: str | Decode) -> Decode:
        if not isinstance(given, str):
            return given
        if given in ("bytes", "string"):
            return plain_keys
        if given == "json":
            return json_values
        encoding = given.removeprefix(DEBEZIUM)
        read = _connect_json() if encoding.endswith("json") else self._registered(encoding)
        if given.startswith(DEBEZIUM):
            return Reading(_changes(read, envelope=self._decoding.envelope))
        return Reading(_as_values(read))

    def _registered(self, encoding: str) -> Read:
        registry, kind = self._registry, _REGISTERED[encoding]
        assert registry is not None, "this encoding is refused without one"

        def read(data: bytes, _: pa.DataType) -> tuple[Column | None, Any]:
            written, body = framed(registry, kind, data)
            return written.column, _read(written, body)

        return read

    def schema(self, first: Callable[[], Mapping[str, bytes | None]]) -> pa.Schema:
        """Returns the schema for a new log; ``first`` reads one record of the topic."""
        given = self._decoding.schema
        if given is not None:
            return given if isinstance(given, pa.Schema) else pa.schema(dict(given))
        return pa.schema([self._first_field(name, first) for name in ("key", "value")])

    def _first_field(self, name: str, first: Callable[[], Mapping[str, bytes | None]]) -> pa.Field:
        encoding = self._encodings[name]
        if encoding in ("bytes", "string"):
            return pa.field(name, pa.string() if encoding == "string" else pa.binary())
        decoder = self._decoders[name]
        if not isinstance(decoder, Reading):
            raise InvalidInputError(
                f"the columns of the {name}s of topic {self._topic} are unknown: give a schema"
                " (schema=…, --schema FILE)"
            )
        data = first().get(name)
        if data is not None:
            try:
                decoder(data, pa.binary())
            except UndecodableError:
                pass
        if news := decoder.news():
            return pa.field(name, news[0].kind)
        encoded = str(encoding).removeprefix(DEBEZIUM)
        if self._registry is not None and encoded in _REGISTERED:
            subject = f"{self._topic}-{name}"
            newest = self._registry.latest(subject, _REGISTERED[encoded])
            if newest is not None:
                column = newest.column
                if str(encoding).startswith(DEBEZIUM) and not self._decoding.envelope:
                    try:
                        column = _after(column)
                    except UndecodableError as e:
                        what = f"the newest schema of subject {subject}"
                        raise InvalidInputError(f"{what} {e}") from None
                return pa.field(name, column.kind)
        raise InvalidInputError(
            f"the columns of the {name}s of topic {self._topic} are unknown so far: no record has"
            " a schema, and the registry has none under the topic's name; give a schema"
            " (schema=…, --schema FILE)"
        )

    def decoded(self, records: Columns, log: Log) -> Typed:
        """Returns records in the log's columns; SourceUndecodableError if it cannot evolve."""
        config = Inside(log).config
        return typed(records.rows, self._decoders, lambda name: self._field(log, name), config)

    def _field(self, log: Log, name: str) -> pa.Field:
        schema = Inside(log).schema
        decoder = self._decoders[name]
        if not isinstance(decoder, Reading):
            return schema.field(name)
        for column in decoder.news():
            try:
                wanted = _united(schema.field(name), column, name)
                fields = [wanted if one.name == name else one for one in schema]
                changes = Inside(log).evolution_to(pa.schema(fields))
                if changes and not self._evolves:
                    raise SourceUndecodableError(
                        f"{name}s of topic {self._topic} are decoded into columns other than"
                        f" those of {log.url}: decode them as its mirror does"
                    )
                if changes:
                    schema = log.evolve(**changes)
            except InvalidInputError as e:
                raise SourceUndecodableError(
                    f"{name}s of topic {self._topic} have a schema to which {log.url} cannot"
                    f" evolve: {e}. None of them were mirrored; mirror into a new log"
                ) from e
        return schema.field(name)


def _united(now: pa.Field, column: Column, path: str) -> pa.Field:
    """Returns a field that holds all that it holds now and all that a column has."""
    kind, types = column.kind, pa.types
    nullable = now.nullable or column.nullable
    if types.is_struct(now.type) and types.is_struct(kind):
        theirs = {one.name: Column(one.type, nullable=one.nullable) for one in kind}
        fields = [
            _united(one, theirs[one.name], f"{path}.{one.name}")
            if one.name in theirs
            else one.with_nullable(True)  # noqa: FBT003 - Arrow's
            for one in now.type
        ]
        mine = {one.name for one in now.type}
        fields += [pa.field(name, one.kind) for name, one in theirs.items() if name not in mine]
        return pa.field(now.name, pa.struct(fields), nullable=nullable)
    if types.is_list(now.type) and types.is_list(kind):
        element = Column(kind.value_type, nullable=kind.value_field.nullable)
        inner = _united(now.type.value_field, element, f"{path}.element")
        return pa.field(now.name, pa.list_(inner), nullable=nullable)
    if types.is_map(now.type) and types.is_map(kind):
        item = Column(kind.item_type, nullable=kind.item_field.nullable)
        inner = _united(now.type.item_field, item, f"{path}.value")
        return pa.field(now.name, pa.map_(now.type.key_field, inner), nullable=nullable)
    return pa.field(now.name, united(now.type, kind, path), nullable=nullable)


def _read(written: Written, body: bytes) -> Any:
    """Returns the value in bytes; raises if they do not conform to their schema."""
    try:
        return there(written.read(body))
    except UndecodableError:
        raise
    except Exception as e:  # noqa: BLE001 - arbitrary bytes may raise anything
        raise UndecodableError(f"does not match its schema: {type(e).__name__}") from None


def _guarded(fix: Fix | None, value: Any) -> Any:
    if fix is None or value is None:
        return value
    try:
        return fix(value)
    except Exception as e:  # noqa: BLE001 - as above
        raise UndecodableError(f"does not match its schema: {type(e).__name__}") from None


def _connect_json() -> Read:
    """Returns a reader of Kafka Connect's JSON; documents without a schema are plain JSON."""
    known: deque[tuple[Any, Column]] = deque(maxlen=_SCHEMAS)

    def read(data: bytes, kind: pa.DataType) -> tuple[Column | None, Any]:
        document = json_document(data, kind)
        if not (isinstance(document, dict) and document.keys() == {"schema", "payload"}):
            return None, there(document)
        schema, payload = document["schema"], document["payload"]
        if schema is None:
            return None, there(payload)
        try:
            column = next((one for same, one in known if same == schema), None)
            if column is None:
                column = connect_column(schema)
                known.appendleft((schema, column))
        except (InvalidInputError, RecursionError) as e:
            raise UndecodableError(f"has a schema that cannot become columns: {e}") from None
        return column, _guarded(column.fix, there(payload))

    return read


def _as_values(read: Read) -> Read:
    """Returns a reader of values; those without a schema get the log's types."""

    def typed_value(data: bytes, kind: pa.DataType) -> tuple[Column | None, Any]:
        column, value = read(data, kind)
        return column, from_json(value, kind) if column is None else value

    return typed_value


def _changes(read: Read, *, envelope: bool) -> Read:
    """Returns a reader of Debezium's changes: the rows after them, or whole; deletes are None."""
    known: deque[tuple[Column, Column]] = deque(maxlen=_SCHEMAS)

    def change(data: bytes, kind: pa.DataType) -> tuple[Column | None, Any]:
        column, value = read(data, kind)
        found = _row_after(value)
        if found is not None and envelope:
            found = value
        if column is None:
            return None, from_json(found, kind)
        made = next((one for same, one in known if same is column), None)
        if made is None:
            made = column if envelope else _after(column)
            known.appendleft((column, made))
        return made, found

    return change


def _row_after(value: Any) -> Any:
    """Returns the row after a change, which may be flattened; None if the row was deleted."""
    if isinstance(value, Mapping) and DELETED in value:
        return None if value[DELETED] in ("true", True) else _checked(value)
    op = value.get("op") if isinstance(value, Mapping) else None
    if op == "d":
        return None
    if op == "t":
        raise UndecodableError(
            "is a TRUNCATE of its table, which a log cannot represent; mirror into a new log, or"
            " delete the keys that the table had"
        )
    if op not in ("c", "u", "r"):
        raise UndecodableError(
            "is not a row change by Debezium: its op is not c, u, d or r; decode flattened"
            f" changes without {DELETED} as plain values"
        )
    row = value.get("after")
    if not isinstance(row, Mapping):
        raise UndecodableError("is a change without the row after the change")
    return _checked(row)


def _checked(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the row; raises if it has a placeholder."""
    if any(one in _PLACEHOLDERS for one in row.values() if isinstance(one, str | bytes)):
        raise UndecodableError(
            "has Debezium's placeholder for an unchanged value that it did not read; set REPLICA"
            " IDENTITY FULL for its table"
        )
    return row


def _after(column: Column) -> Column:
    """Returns the column of the rows in changes, or of flattened changes."""
    types, kind = pa.types, column.kind
    if types.is_struct(kind) and kind.get_field_index(DELETED) >= 0:
        return column
    if not types.is_struct(kind) or (at := kind.get_field_index("after")) < 0:
        raise UndecodableError(
            "is not a change by Debezium: its schema has no row after the change"
        )
    return Column(kind.field(at).type)
