"""Changes in the shapes that Debezium's documentation gives them: the envelope with source and
transaction, with schemas beside it and without, and rows that `ExtractNewRecordState` flattened.
"""

import json

import pyarrow as pa
import pytest
from tests.unit.bridge.test_decoding import log, records
from tests.unit.bridge.test_registry import Registered, avro

from clog.bridge.decoding import Decoder, Decoding

__all__ = ["log"]
ANNA = {"id": 1, "name": "Anna", "email": "anna@shop.example"}
BEN = {"id": 2, "name": "Ben", "email": None}
MOVED = {**ANNA, "email": "anna@home.example"}
INT, TEXT, LONG = {"type": "int32"}, {"type": "string"}, {"type": "int64"}
SCHEMA = {
    "key": pa.struct([pa.field("id", pa.int32(), nullable=False)]),
    "value": pa.struct([("id", pa.int32()), ("name", pa.string()), ("email", pa.string())]),
}


def field(of, kind, *, optional=False, **more):
    return {**kind, "optional": optional, "field": of, **more}


def struct(name, fields, *, optional=False, **more):
    return {"type": "struct", "fields": fields, "optional": optional, "name": name, **more}


def of_row(name, **more):
    fields = [field("id", INT), field("name", TEXT), field("email", TEXT, optional=True)]
    return struct(name, fields, optional=True, **more)


SNAPSHOT = {
    "name": "io.debezium.data.Enum",
    "version": 1,
    "parameters": {"allowed": "true,first,first_in_data_collection,last,false,incremental"},
    "default": "false",
}
OF_SOURCE = struct(
    "io.debezium.connector.postgresql.Source",
    [
        *(field(name, TEXT) for name in ("version", "connector", "name")),
        field("ts_ms", LONG),
        field("snapshot", TEXT, optional=True, **SNAPSHOT),
        field("db", TEXT),
        field("sequence", TEXT, optional=True),
        *(field(name, LONG, optional=True) for name in ("ts_us", "ts_ns")),
        *(field(name, TEXT) for name in ("schema", "table")),
        *(field(name, LONG, optional=True) for name in ("txId", "lsn", "xmin")),
    ],
    field="source",
)
OF_TRANSACTION = struct(
    "event.block",
    [field("id", TEXT), field("total_order", LONG), field("data_collection_order", LONG)],
    optional=True,
    version=1,
    field="transaction",
)
OF_KEY = struct("shop.public.clients.Key", [field("id", INT)])
ENVELOPE = struct(
    "shop.public.clients.Envelope",
    [
        *(of_row("shop.public.clients.Value", field=name) for name in ("before", "after")),
        *(OF_SOURCE, OF_TRANSACTION, field("op", TEXT)),
        *(field(name, LONG, optional=True) for name in ("ts_ms", "ts_us", "ts_ns")),
    ],
    version=2,
)
FLATTENED = struct(
    "shop.public.clients.Value",
    [
        *of_row("")["fields"],
        *(field(name, TEXT, optional=True) for name in ("__op", "__deleted")),
        field("__source_ts_ms", LONG, optional=True),
    ],
)


def written(payload, schema, *, with_schema):
    document = {"schema": schema, "payload": payload} if with_schema else payload
    return json.dumps(document).encode()


def source(snapshot="false"):
    return {
        "version": "3.0.0.Final",
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": 1_770_000_000_000,
        "snapshot": snapshot,
        "db": "shop",
        "sequence": '["24023119","24023128"]',
        "ts_us": 1_770_000_000_000_000,
        "ts_ns": 1_770_000_000_000_000_000,
        "schema": "public",
        "table": "clients",
        "txId": 555,
        "lsn": 24_023_128,
        "xmin": None,
    }


def change(op, before, after, *, snapshot="false"):
    order = {"id": "555:24023128", "total_order": 1, "data_collection_order": 1}
    return {
        "before": before,
        "after": after,
        "source": source(snapshot),
        "transaction": None if op == "r" else order,
        "op": op,
        "ts_ms": 1_770_000_000_005,
        "ts_us": 1_770_000_000_005_000,
        "ts_ns": 1_770_000_000_005_000_000,
    }


def flattened(row, op):
    deleted = "true" if op == "d" else "false"
    return {**row, "__op": op, "__deleted": deleted, "__source_ts_ms": 1_770_000_000_000}


def decoded(log, keys, values, *, given=None):
    """Decodes records as a mirror does, for a log of given columns, or of the first record's."""
    decoder = Decoder(Decoding(values="debezium-json", schema=given), "shop.public.clients")
    made = log(decoder.schema(lambda: {"key": keys[0], "value": values[0]}))
    return decoder.decoded(records(values, keys), made)


@pytest.mark.parametrize("with_schema", [True, False], ids=["schemas", "schemaless"])
def test_the_life_of_rows(log, with_schema):
    """A snapshot's read, an insert, an update, a changed primary key (a delete, its tombstone and
    an insert), a delete and its tombstone.
    """
    life = [
        (1, change("r", None, ANNA, snapshot="first")),
        (2, change("c", None, BEN)),
        (1, change("u", ANNA, MOVED)),
        (1, change("d", MOVED, None)),
        (1, None),
        (3, change("c", None, {**MOVED, "id": 3})),
        (2, change("d", BEN, None)),
        (2, None),
    ]
    keys = [written({"id": i}, OF_KEY, with_schema=with_schema) for i, _ in life]
    values = [v and written(v, ENVELOPE, with_schema=with_schema) for _, v in life]
    done = decoded(log, keys, values, given=None if with_schema else SCHEMA)
    assert not done.reasons
    assert done.rows.column("key").to_pylist() == [{"id": i} for i, _ in life]
    moved = {**MOVED, "id": 3}
    found = done.rows.column("value").to_pylist()
    assert found == [ANNA, BEN, MOVED, None, None, moved, None, None]


@pytest.mark.parametrize("with_schema", [True, False], ids=["schemas", "schemaless"])
def test_a_truncate_is_told(log, with_schema):
    """It has no key, and neither row; what comes before and after it is accepted."""
    key = written({"id": 1}, OF_KEY, with_schema=with_schema)
    changes = [change("c", None, ANNA), change("t", None, None), change("c", None, ANNA)]
    values = [written(one, ENVELOPE, with_schema=with_schema) for one in changes]
    done = decoded(log, [key, None, key], values, given=None if with_schema else SCHEMA)
    assert done.places.tolist() == [0, 2]
    assert "is a TRUNCATE of its table" in done.reasons[1]


def test_what_is_no_change_is_told(log):
    """A message that an application wrote to the database's log, and a flattened row that does not
    say whether it was deleted.
    """
    message = {"op": "m", "ts_ms": 1, "source": source(), "message": {"prefix": "p", "content": ""}}
    key = json.dumps({"id": 1}).encode()
    values = [json.dumps(one).encode() for one in (message, ANNA)]
    done = decoded(log, [key, key], values, given=SCHEMA)
    assert not done.places.size
    assert all("its op is not c, u, d or r" in why for why in done.reasons.values())
    assert "changes without" in done.reasons[1]


@pytest.mark.parametrize("with_schema", [True, False], ids=["schemas", "schemaless"])
def test_flattened_rows_say_whether_they_were_deleted(log, with_schema):
    """``__deleted`` makes a tombstone, whatever else the row has, and so does the null after it."""
    life = [(ANNA, "r"), (MOVED, "u"), (MOVED, "d"), None, (BEN, "c")]
    key = written({"id": 1}, OF_KEY, with_schema=with_schema)
    rows = [one and flattened(*one) for one in life]
    values = [row and written(row, FLATTENED, with_schema=with_schema) for row in rows]
    more = [("__op", pa.string()), ("__deleted", pa.string()), ("__source_ts_ms", pa.int64())]
    given = {**SCHEMA, "value": pa.struct([*SCHEMA["value"], *more])}
    done = decoded(log, [key] * 5, values, given=None if with_schema else given)
    assert not done.reasons
    assert done.rows.column("value").to_pylist() == [rows[0], rows[1], None, None, rows[4]]


def test_flattened_rows_whose_deletes_are_nulls_are_plain_values(log):
    """As with ``delete.tombstone.handling.mode=tombstone``, Debezium's default."""
    key = written({"id": 1}, OF_KEY, with_schema=True)
    schema = of_row("shop.public.clients.Value")
    values = [written(row, schema, with_schema=True) for row in (ANNA, MOVED)]
    decoder = Decoder(Decoding(values="connect-json", keys="connect-json"), "t")
    made = log(decoder.schema(lambda: {"key": key, "value": values[0]}))
    done = decoder.decoded(records([*values, None], [key] * 3), made)
    assert not done.reasons
    assert done.rows.column("value").to_pylist() == [ANNA, MOVED, None]


def as_avro(name, fields):
    return {"type": "record", "name": name, "namespace": "shop.public.clients", "fields": fields}


ROW = as_avro(
    "Value",
    [
        {"name": "id", "type": "int"},
        {"name": "name", "type": "string"},
        {"name": "email", "type": ["null", "string"], "default": None},
    ],
)


def test_envelopes_in_avro(log):
    """``before`` defines the row's type, and ``after`` refers to it."""
    key = as_avro("Key", [{"name": "id", "type": "int"}])
    envelope = as_avro(
        "Envelope",
        [
            {"name": "before", "type": ["null", ROW], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": ["null", "long"], "default": None},
        ],
    )
    topic = Registered("AVRO", values="debezium-avro")
    numbers = topic.register(key, subject="t-key"), topic.register(envelope)
    made = topic.made_log(log)
    changes = [("r", None, ANNA), ("u", ANNA, MOVED), ("d", MOVED, None)]
    values = [
        avro(numbers[1], envelope, {"op": op, "before": before, "after": after, "ts_ms": 1})
        for op, before, after in changes
    ]
    keys = [avro(numbers[0], key, {"id": 1})] * 4
    done = topic.decoder.decoded(records([*values, None], keys), made)
    assert not done.reasons
    assert done.rows.column("key").to_pylist() == [{"id": 1}] * 4
    assert done.rows.column("value").to_pylist() == [ANNA, MOVED, None, None]


def test_flattened_rows_in_avro(log):
    """Also if only the registry says what the log's columns are."""
    key = as_avro("Key", [{"name": "id", "type": "int"}])
    deleted = {"name": "__deleted", "type": ["null", "string"], "default": None}
    row = as_avro("Value", [*ROW["fields"], deleted])
    topic = Registered("AVRO", values="debezium-avro")
    numbers = topic.register(key, subject="t-key"), topic.register(row)
    made = topic.made_log(log)
    values = [
        avro(numbers[1], row, {**MOVED, "__deleted": flag}) for flag in ("false", "true", None)
    ]
    done = topic.decoder.decoded(records(values, [avro(numbers[0], key, {"id": 1})] * 3), made)
    assert not done.reasons
    first, second, third = done.rows.column("value").to_pylist()
    assert (first, second) == ({**MOVED, "__deleted": "false"}, None)
    assert third == {**MOVED, "__deleted": None}
