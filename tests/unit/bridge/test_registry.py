"""Values whose schemas a registry has: Avro and Protobuf, with a registry in the client's memory,
and one that responds over HTTP according to the documented interface.
"""

import base64
import datetime as dt
import io
import json
import threading
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pytest
from tests.unit.bridge.test_decoding import log, records

from clog.bridge import values as module
from clog.bridge.decoding import Decoder, Decoding
from clog.storage import InvalidInputError, SourceUnavailableError, SourceUndecodableError

fastavro = pytest.importorskip("fastavro")
schema_registry = pytest.importorskip("confluent_kafka.schema_registry")
pytest.importorskip("google.protobuf")

__all__ = ["log"]
ROW = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "a", "type": "int"},
        {"name": "texts", "type": {"type": "map", "values": ["null", "string"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "paid",
            "type": [
                "null",
                {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
            ],
        },
        {
            "name": "seen",
            "type": {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"},
        },
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "four", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {"name": "list", "type": {"type": "array", "items": ["null", "float"]}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}
VALUE = {
    "a": 1,
    "texts": {"x": "y", "z": None},
    "at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    "paid": Decimal("12.34"),
    "seen": 1_700_000_000_000_000,
    "kind": "B",
    "four": b"abcd",
    "list": [1.5, None],
    "id": "0b3b5c8a-6f0e-4e1e-9a58-2d6d3f9f3c11",
}


class Registered:
    """A topic whose values a registry's serialiser wrote."""

    def __init__(self, kind, **more):
        encoding = {"AVRO": "avro", "PROTOBUF": "protobuf"}[kind]
        self.kind = kind
        self.decoder = Decoder(
            Decoding(**{"values": encoding, "registry": "mock://tests", **more}), "t"
        )
        self.client = self.decoder._registry._client

    def register(self, text, *, subject="t-value", references=()):
        text = text if isinstance(text, str) else json.dumps(text)
        refs = [schema_registry.SchemaReference(*one) for one in references]
        made = schema_registry.Schema(text, self.kind, refs)
        return self.client.register_schema(subject, made)

    def made_log(self, create):
        return create(self.decoder.schema(dict))

    def decode(self, made, *values):
        return self.decoder.decoded(records(list(values)), made)


def avro(number, schema, value):
    out = io.BytesIO()
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    fastavro.schemaless_writer(out, parsed, value)
    return b"\0" + number.to_bytes(4, "big") + out.getvalue()


def test_avro_becomes_columns(log):
    """Of the types that the newest schema of the topic's subject has."""
    topic = Registered("AVRO")
    number = topic.register(ROW)
    made = topic.made_log(log)
    done = topic.decode(made, avro(number, ROW, VALUE), None)
    assert not done.reasons
    row, gone = done.rows.column("value").to_pylist()
    assert gone is None
    assert row == {
        **VALUE,
        "texts": [("x", "y"), ("z", None)],
        "seen": dt.datetime(2023, 11, 14, 22, 13, 20),
    }


def test_a_log_follows_newer_schemas_of_avro(log):
    """A wider number, a new field, a removed one; beside values of the old schema."""
    topic = Registered("AVRO")
    old = topic.register(ROW)
    made = topic.made_log(log)
    wider = json.loads(json.dumps(ROW))
    wider["fields"][0]["type"] = "long"
    wider["fields"] = [f for f in wider["fields"] if f["name"] != "kind"]
    wider["fields"].append({"name": "new", "type": "string"})
    new = topic.register(wider)
    value = {**VALUE, "a": 2**40, "new": "n"}
    del value["kind"]
    done = topic.decode(made, avro(new, wider, value), avro(old, ROW, VALUE))
    assert not done.reasons
    first, second = done.rows.column("value").to_pylist()
    assert (first["a"], first["kind"], first["new"]) == (2**40, None, "n")
    assert (second["a"], second["kind"], second["new"]) == (1, "B", None)
    other = {**ROW, "fields": [{"name": "a", "type": "string"}]}
    bad = topic.register(other)
    version = made.version
    with pytest.raises(SourceUndecodableError, match=r"value.a has type string; .* says int64"):
        topic.decode(made, avro(bad, other, {"a": "x"}))
    assert made.version == version


def test_schemas_of_avro_may_refer_to_others(log):
    """Which the registry has under other subjects."""
    topic = Registered("AVRO")
    place = {"type": "record", "name": "x.Place", "fields": [{"name": "city", "type": "string"}]}
    topic.register(place, subject="place")
    row = {"type": "record", "name": "x.Row", "fields": [{"name": "at", "type": "x.Place"}]}
    number = topic.register(row, references=[("x.Place", "place", 1)])
    made = topic.made_log(log)
    whole = {**row, "fields": [{"name": "at", "type": place}]}
    done = topic.decode(made, avro(number, whole, {"at": {"city": "Riga"}}))
    assert done.rows.column("value").to_pylist() == [{"at": {"city": "Riga"}}]


def test_changes_of_debezium_in_avro(log):
    """Rows after them, by the key's own schema; a delete is a tombstone."""
    topic = Registered("AVRO", values="debezium-avro")
    row = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "int"}]}
    schema = {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", row]},
            {"name": "after", "type": ["null", "Value"]},
            {"name": "op", "type": "string"},
        ],
    }
    key_schema = {**row, "name": "Key"}
    number = topic.register(schema)
    key_number = topic.register(key_schema, subject="t-key")
    made = topic.made_log(log)
    assert made.schema.field("value").type == pa.struct(
        [pa.field("id", pa.int32(), nullable=False)]
    )
    key = avro(key_number, key_schema, {"id": 7})
    values = [
        avro(number, schema, {"before": None, "after": {"id": 7}, "op": "c"}),
        avro(number, schema, {"before": {"id": 7}, "after": None, "op": "d"}),
    ]
    done = topic.decoder.decoded(records(values, [key, key]), made)
    assert done.rows.column("value").to_pylist() == [{"id": 7}, None]
    assert done.rows.column("key").to_pylist() == [{"id": 7}] * 2


HOSTILE = {
    "no header with a schema id": [b"", b"\0", b"\0\0\0\0", b"\x01\0\0\0\1\2", b"text"],
    "has the schema id 999, which the registry does not have": [b"\0\0\0\x03\xe7\2"],
    "is not Avro of this schema": [
        b"\0\0\0\0\1",
        b"\0\0\0\0\1" + b"\xff" * 40,
        b"\0\0\0\0\1\2" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a map of 2^62 entries
        b"\0\0\0\0\1\2\0\2" * 30,
    ],
}


@pytest.mark.parametrize("why", HOSTILE)
def test_bytes_that_are_no_values_say_why(log, why):
    """Whatever they say about their length; what comes beside them is accepted."""
    topic = Registered("AVRO")
    number = topic.register(ROW)
    assert number == 1
    made = topic.made_log(log)
    good = avro(number, ROW, VALUE)
    done = topic.decode(made, *HOSTILE[why], good)
    assert done.places.tolist() == [len(HOSTILE[why])]
    assert all(why in reason for reason in done.reasons.values())


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "record", "name": "Q", "fields": []}, "the record Q has no fields"),
        (
            {"type": "record", "name": "Q", "fields": [{"name": "q", "type": ["null", "Q"]}]},
            "the type Q contains itself",
        ),
        ({"type": "array", "items": "null"}, "the type null has no column"),
        (["int", "string"], "a union of several types cannot be a column"),
        ("{", r"it cannot be read \(JSONDecodeError\)"),
        ("[" * 100_000, "it is nested too deeply"),
        ({"type": "x"}, r"it cannot be read \(UnknownType\)"),
    ],
)
def test_a_schema_that_makes_no_columns(log, schema, why):
    """Is the reason of its values; for a log that is to be created, an error."""
    topic = Registered("AVRO")
    number = topic.register(schema)
    made = log({"key": pa.binary(), "value": pa.struct([("a", pa.int32())])})
    done = topic.decode(made, b"\0" + number.to_bytes(4, "big") + b"\2")
    assert list(done.reasons) == [0]
    with pytest.raises(InvalidInputError, match=why):
        topic.decoder.schema(dict)


def test_rules_of_a_schema_are_not_passed_over(log):
    """Values that the registry's rules encrypt cannot be read by clog."""
    topic = Registered("AVRO")
    rule = schema_registry.Rule(
        "r", None, "TRANSFORM", "READ", "ENCRYPT", None, None, "", "", "", False
    )
    rules = schema_registry.RuleSet(None, [rule])
    schema = schema_registry.Schema(json.dumps(ROW), "AVRO", [], None, rules)
    number = topic.client.register_schema("t-value", schema)
    made = log({"key": pa.binary(), "value": pa.struct([("a", pa.int32())])})
    done = topic.decode(made, avro(number, ROW, VALUE))
    assert "rules clog does not support" in done.reasons[0]


def test_ids_that_nobody_knows_end_it(log, monkeypatch):
    """For a topic of something else it is not asked endlessly, id by id."""
    monkeypatch.setattr(module, "UNKNOWN_MAX", 20)
    topic = Registered("AVRO")
    made = log({"key": pa.binary(), "value": pa.struct([("a", pa.int32())])})
    with pytest.raises(InvalidInputError, match="20 schema ids are unknown"):
        topic.decode(made, *(b"\0" + i.to_bytes(4, "big") + b"x" for i in range(1000, 1030)))


def proto_file():
    """A file with nested messages, a map, an enumeration, and Protobuf's own types."""
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(
        name="orders.proto",
        package="shop",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"],
    )
    other = file.message_type.add(name="Other")
    other.field.add(name="x", number=1, type=5, label=1)
    order = file.message_type.add(name="Order")
    line = order.nested_type.add(name="Line")
    line.field.add(name="sku", number=1, type=9, label=1)
    entry = order.nested_type.add(name="PricesEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=1, label=1)
    state = file.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=3)
    for number, (name, kind, label, type_name) in enumerate(
        [
            ("id", 4, 1, None),
            ("lines", 11, 3, ".shop.Order.Line"),
            ("prices", 11, 3, ".shop.Order.PricesEntry"),
            ("state", 14, 1, ".shop.State"),
            ("at", 11, 1, ".google.protobuf.Timestamp"),
            ("note", 11, 1, ".google.protobuf.StringValue"),
            ("blob", 12, 1, None),
            ("numbers", 5, 3, None),
        ],
        1,
    ):
        order.field.add(name=name, number=number, type=kind, label=label, type_name=type_name)
    return file


def proto_class(file, name):
    from google.protobuf import descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2

    pool = descriptor_pool.DescriptorPool()
    for brought in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(brought.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def serialized(file):
    return base64.b64encode(file.SerializeToString()).decode()


def protobuf(number, indexes, message):
    return b"\0" + number.to_bytes(4, "big") + indexes + message.SerializeToString()


def test_protobuf_becomes_columns(log):
    """The message is the one that the indexes name; the first one has a short form."""
    topic = Registered("PROTOBUF")
    file = proto_file()
    number = topic.register(serialized(file))
    order = proto_class(file, "shop.Order")(
        id=2**64 - 1, lines=[{"sku": "a"}], prices={"eur": 1.5}, state=3, numbers=[1, 2]
    )
    order.at.seconds, order.at.nanos = 1_700_000_000, 5
    order.note.value = "n"
    written = topic.decoder._registry.written("PROTOBUF", number, (1,))
    made = log({"key": pa.binary(), "value": written.column.kind})
    empty = proto_class(file, "shop.Order")()
    done = topic.decode(made, protobuf(number, b"\2\2", order), protobuf(number, b"\2\2", empty))
    assert not done.reasons
    values = done.rows.column("value").combine_chunks()
    assert values.field("at").cast(pa.int64()).to_pylist() == [1_700_000_000_000_000_005, None]
    names = [field.name for field in values.type if field.name != "at"]
    row, nothing = pa.StructArray.from_arrays(
        [values.field(name) for name in names], names
    ).to_pylist()
    assert row == {
        "id": 2**64 - 1,
        "lines": [{"sku": "a"}],
        "prices": [("eur", 1.5)],
        "state": "PAID",
        "note": "n",
        "blob": b"",
        "numbers": [1, 2],
    }
    assert [nothing[name] for name in ("note", "state", "id")] == [None, "NEW", 0]
    first = proto_class(file, "shop.Other")(x=5)
    by_itself = topic.made_log(log)
    for indexes in (b"\0", b"\2\0"):
        found = topic.decode(by_itself, protobuf(number, indexes, first))
        assert found.rows.column("value").to_pylist() == [{"x": 5}]
    nested = log({"key": pa.binary(), "value": pa.struct([("sku", pa.string())])})
    inner = proto_class(file, "shop.Order.Line")(sku="s")
    found = topic.decode(nested, protobuf(number, b"\4\2\0", inner))
    assert found.rows.column("value").to_pylist() == [{"sku": "s"}]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "no message numbers after"),
        (b"\x80" * 20, "no message numbers after"),
        (b"\xfe\xff\xff\xff\x0f\2", "gives 2147483647 numbers for a message"),
        (b"\1\2", "gives -1 numbers for a message"),
        (b"\2\x14", "it has 2 messages, but number 10 is requested"),
        (b"\2\1", "it has 2 messages, but number -1 is requested"),
        (b"\0\xff\xff", "does not match its schema: DecodeError"),
    ],
)
def test_bytes_that_are_no_messages_say_why(log, body, why):
    """Bounded, whatever numbers they start with."""
    topic = Registered("PROTOBUF")
    number = topic.register(serialized(proto_file()))
    made = topic.made_log(log)
    done = topic.decode(made, b"\0" + number.to_bytes(4, "big") + body)
    assert why in done.reasons[0]


class Server:
    """The part of a registry's interface that a reader uses."""

    def __init__(self, text):
        self.asked = []
        self.status, self.id = 200, 1
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append((self.path, self.headers.get("Authorization")))
                found = {"schema": text, "id": outer.id, "version": 1, "subject": "t-value"}
                known = "/subjects/t-value/" in self.path or "/schemas/ids/1" in self.path
                status = outer.status if outer.status != 200 else 200 if known else 404
                body = found if status == 200 else {"error_code": status * 100, "message": "no"}
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def server():
    made = Server(json.dumps(ROW))
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


OPTIONS = {"max.retries": 0, "basic.auth.user.info": "anna:hunter2"}


def test_a_registry_is_asked_once_for_each_schema(log, server):
    """With the user's name and password; what it does not know is also asked for only once."""
    topic = Registered("AVRO", registry=server.url, registry_options=OPTIONS)
    made = log({"key": pa.binary(), "value": pa.struct([("a", pa.int32())])})
    unknown = b"\0\0\0\0\7x"
    for _ in range(2):
        done = topic.decode(made, *[avro(1, ROW, VALUE)] * 3, unknown)
        assert list(done.reasons) == [3]
    assert len(server.asked) == 2
    login = base64.b64encode(b"anna:hunter2").decode()
    assert {told for _, told in server.asked} == {f"Basic {login}"}


@pytest.mark.parametrize(
    ("status", "kind", "why"),
    [
        (500, SourceUnavailableError, r"did not answer \(it says 500\)"),
        (401, InvalidInputError, "refuses to answer"),
    ],
)
def test_a_registry_that_fails_makes_no_dead_letters(log, server, status, kind, why):
    """It is an error of its own, without a secret, and later responses are accepted."""
    topic = Registered("AVRO", registry=server.url, registry_options=OPTIONS)
    made = log({"key": pa.binary(), "value": pa.struct([("a", pa.int32())])})
    server.status = status
    with pytest.raises(kind, match=why) as e:
        topic.decode(made, avro(1, ROW, VALUE))
    assert "hunter2" not in repr(e.value)
    server.status = 200
    assert not topic.decode(made, avro(1, ROW, VALUE)).reasons


@pytest.mark.parametrize("number", [[1], {}, "1"])
def test_the_newest_schema_has_a_number(server, number):
    """By which values name it; a registry that says otherwise is refused."""
    topic = Registered("AVRO", registry=server.url, registry_options=OPTIONS)
    server.id = number
    with pytest.raises(
        InvalidInputError, match="does not return an id of the newest schema of t-value"
    ):
        topic.decoder.schema(dict)


def test_a_registry_that_is_not_there(log):
    """Is an error that names its address."""
    topic = Registered("AVRO", registry="http://127.0.0.1:1", registry_options={"max.retries": 0})
    made = log({"key": pa.binary(), "value": pa.struct([("a", pa.int32())])})
    with pytest.raises(SourceUnavailableError, match=r"127\.0\.0\.1:1 did not answer"):
        topic.decode(made, avro(1, ROW, VALUE))


def test_a_secret_does_not_stand_in_the_address():
    """Nor in messages about options."""
    with pytest.raises(InvalidInputError, match="cannot contain a user") as e:
        Registered("AVRO", registry="http://anna:hunter2@host")
    assert "hunter2" not in str(e.value)
    keyed = {"registry": "http://127.0.0.1:1/?apikey=hunter2"}
    topic = Registered("AVRO", **keyed, registry_options={"max.retries": 0})
    with pytest.raises(SourceUnavailableError, match="did not answer") as unavailable:
        topic.decoder.schema(dict)
    assert "hunter2" not in str(unavailable.value)
    assert "hunter2" not in repr(Decoding(values="avro", **keyed))
    wrong = {"basic.auth.hunter": "hunter2"}
    with pytest.raises(InvalidInputError, match="options of the schema registry") as e:
        Registered("AVRO", registry="http://host", registry_options=wrong)
    assert "hunter2" not in str(e.value)
    assert "hunter2" not in repr(Decoding(values="avro", registry="x", registry_options=wrong))
