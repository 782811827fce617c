"""Records of bytes as columns: JSON, a column at a time and one by one; and Debezium's changes, in
the shapes that its documentation shows.
"""

import base64
import datetime as dt
import json
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clog.bridge import decoding
from clog.bridge.decoding import Decoder, Decoding, typed
from clog.bridge.topic import Columns
from clog.bridge.values import json_values, plain_keys
from clog.storage import InvalidInputError, Log, SourceUndecodableError
from clog.storage.config.log_config import LogConfig
from clog_testing.crash import discard

ROW = pa.struct(
    [
        ("a", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        pa.field("t", pa.bool_(), nullable=False),
        ("n", pa.struct([("x", pa.uint64()), ("y", pa.int8())])),
        ("l", pa.list_(pa.int32())),
    ]
)
KEPT = LogConfig.from_overrides({"cleanup.policy": ""})


def records(values, keys=None):
    count = len(values)
    rows = {
        "key": pa.array([b"k"] * count if keys is None else keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "timestamp": pa.array([0] * count, pa.timestamp("us", "UTC")),
    }
    return Columns(pa.table(rows), np.zeros(count, np.int32), np.arange(count), 0, 0, 0)


def decoded(values, *, kind=ROW, decode=json_values):
    schema = pa.schema([("key", pa.binary()), ("value", kind)])
    decoders = {"key": plain_keys, "value": decode}
    return typed(records(values).rows, decoders, schema.field, KEPT)


def one_by_one(data, kind):
    """The JSON decoder, in a form that is not recognized as such."""
    return json_values(data, kind)


@pytest.fixture
def log(request):
    made = []

    def create(schema, **config):
        url = f"memory://decoding/{len(made)}"
        made.append(Log.create(url, 1, {"cleanup.policy": "", **config}, schema=schema))
        return made[-1]

    yield create
    for one in made:
        discard(one.handle.standing.root)


NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from(["1.0", "1e2", "-0", "-0.0", "01", "1e400", "5e-324", "0.1", "NaN", "-"]),
)
TEXTS = st.one_of(st.text(max_size=5).map(json.dumps), st.sampled_from([r'"\ud800"', '"\n"', '"']))
LEAVES = st.one_of(
    NUMBERS.map(str), TEXTS, st.sampled_from(["true", "false", "null", "[]", "{}", "[1,null]", ""])
)
FIELDS = st.lists(
    st.tuples(st.sampled_from(["a", "f", "s", "t", "n", "l", "z"]), LEAVES), max_size=6
)
DOCUMENTS = st.one_of(
    FIELDS.map(lambda some: "{" + ",".join(f'"{n}":{v}' for n, v in some) + "}"),
    st.tuples(NUMBERS, st.booleans()).map(lambda v: f'{{"a":{v[0]},"t":{str(v[1]).lower()}}}'),
    st.sampled_from(
        [
            *('{"t":true}', '{"t":true}\n ', ' {"t":\ntrue}', '{"t":true,"n":{"x":1,"y":2}}'),
            *("null", "", "{}", "[1]", "1", '{"t":true}{"t":true}', '{"t":true},', '{"t":true'),
            *('{"t":true}}{"v":{"t":false}', '{"t":true},"v":{"t":false}', '{"t":true}//x'),
            *('{"t":true,"t":true}', '{"T":true}', "\ufeff{}", '\x00\x00\x00\x00\x07{"t":true}'),
            *('{"t":true,"n":{"y":1}}', '{"t":true,"n":{"y":128}}', '{"t":true,"n":{"q":1}}'),
            *('{"t":true,"f":9007199254740993}', '{"t":true,"f":1.5}', '{"t":true,"f":-0}'),
        ]
    ),
)


@given(st.lists(st.one_of(st.none(), DOCUMENTS), max_size=8))
@example(['{"t":true}}{"v":{"t":true}', None, '{"t":false}'])
@example([None, None])
def test_documents_parsed_together_are_those_parsed_one_by_one(documents):
    """The same values, and the same reasons, whatever the documents are."""
    data = [None if one is None else one.encode("utf-8", "surrogatepass") for one in documents]
    together, alone = decoded(data), decoded(data, decode=one_by_one)
    assert together.rows.equals(alone.rows)
    assert together.places.tolist() == alone.places.tolist()
    assert together.reasons == alone.reasons


def test_floats_are_rounded_by_the_append(log):
    """`Typed.stored` has what a log then has; what no float can hold does not fit one."""
    value = pa.struct([("x", pa.float32()), ("l", pa.list_(pa.float16()))])
    target = log({"key": pa.string(), "value": value})
    texts = [b'{"x":0.1,"l":[0.1,null]}', b"null", b'{"x":1e39}', b'{"l":[1e5]}', None]
    rows = records(texts, [b"a"] * 5).rows
    decoders = {"key": plain_keys, "value": json_values}
    found = typed(rows, decoders, target.schema.field, KEPT)
    assert [*found.reasons] == [1, 2, 3]
    assert found.rows.column("value").to_pylist() == [{"x": 0.1, "l": [0.1, None]}, None]
    target.append(found.rows)
    (stored,) = (batch.column("value") for batch in target.read())
    assert stored.to_pylist() != found.rows.column("value").to_pylist()
    assert found.stored(target.schema.field("value")).column("value").combine_chunks() == stored


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_keys_that_are_what_they_are_are_taken_together(kind):
    """Invalid text is found, and the others are accepted."""
    keys = [b"a", None, "é".encode(), b"\xff", b""]
    schema = pa.schema([("key", kind), ("value", ROW)])
    rows = records([b'{"t":true}'] * 5, keys).rows
    found = typed(rows, {"key": plain_keys, "value": json_values}, schema.field, KEPT)
    is_text = kind == pa.string()
    assert list(found.reasons) == ([3] if is_text else [])
    expected = ["a", None, "é", ""] if is_text else keys
    assert found.rows.column("key").to_pylist() == expected


def test_one_document_of_many_does_not_slow_the_others(monkeypatch):
    """It is searched for by halves: only the records around it are decoded one by one."""
    asked = []
    fitted = decoding.fitted

    def noted(values, field, **how):
        asked.append(0 if isinstance(values, pa.Array) else len(values))
        return fitted(values, field, **how)

    monkeypatch.setattr(decoding, "fitted", noted)
    data = [b'{"a":%d,"t":true,"f":%d.25,"l":[1],"n":{"x":1}}' % (i, i) for i in range(5000)]
    data[1234] = b'{"a":1.5,"t":true}'
    found = decoded(data)
    assert list(found.reasons) == [1234]
    assert found.rows.column("value").combine_chunks().field("a").to_pylist()[1234] == 1235
    assert sum(asked) <= 64


def test_json_without_exact_columns_is_decoded_one_by_one():
    """A date as text is not a date for Arrow's JSON parser."""
    kind = pa.struct([("d", pa.date32())])
    found = decoded([b'{"d":"2026-02-01"}', b'{"d":1}'], kind=kind)
    assert found.rows.column("value").to_pylist() == [{"d": dt.date(2026, 2, 1)}]
    assert list(found.reasons) == [1]


FIELD = {
    "id": {"type": "int32", "optional": False, "field": "id"},
    "name": {"type": "string", "optional": True, "field": "name"},
    "born": {"type": "int32", "optional": True, "field": "born", "name": "io.debezium.time.Date"},
    "seen": {"type": "int64", "optional": True, "name": "io.debezium.time.MicroTimestamp"},
    "zoned": {"type": "string", "optional": True, "name": "io.debezium.time.ZonedTimestamp"},
    "due": {"type": "int64", "optional": True, "name": "io.debezium.time.MicroTime"},
    "paid": {
        "type": "bytes",
        "optional": True,
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": "2", "connect.decimal.precision": "30"},
    },
    "tags": {"type": "array", "optional": True, "items": {"type": "string", "optional": True}},
}


def row_schema(*names, field=None):
    fields = [{**FIELD[name.lower()], "field": name} for name in names]
    made = {"type": "struct", "fields": fields, "optional": True, "name": "db.people.Value"}
    return {**made, "field": field} if field else made


def envelope(*names):
    source = {"type": "struct", "fields": [{"type": "string", "field": "db"}], "field": "source"}
    return {
        "type": "struct",
        "name": "db.people.Envelope",
        "fields": [
            *(row_schema(*names, field="before"), row_schema(*names, field="after"), source),
            *({"type": "string", "field": "op"}, {"type": "int64", "field": "ts_ms"}),
        ],
    }


def change(op, after=None, before=None, *, schema=None):
    payload = {"op": op, "before": before, "after": after, "source": {"db": "d"}, "ts_ms": 1}
    whole = payload if schema is None else {"schema": schema, "payload": payload}
    return json.dumps(whole).encode()


def key(number):
    schema = {"type": "struct", "fields": [FIELD["id"]], "optional": False}
    return json.dumps({"schema": schema, "payload": {"id": number}}).encode()


def test_changes_of_debezium_become_rows(log):
    """The row after a create, an update and a snapshot's read; nothing after a delete, whatever was
    before, and after its tombstone. Texts, times and decimals are as their schemas say.
    """
    names = [*FIELD]
    unscaled = 12345678901234567890123456789
    row = {
        "id": 1,
        "name": "Anna",
        "born": 20000,
        "seen": 1_700_000_000_123_456,
        "zoned": "2026-02-01T10:00:00.5+02:00",
        "due": 3_600_000_000,
        "paid": base64.b64encode(unscaled.to_bytes(13, "big")).decode(),
        "tags": ["x", None],
    }
    schema = envelope(*names)
    values = [
        change("r", row, schema=schema),
        change("c", {**row, "id": 2, "name": None}, schema=schema),
        change("u", {**row, "name": "Ann"}, row, schema=schema),
        change("d", None, row, schema=schema),
        None,
    ]
    decoder = Decoder(Decoding(values="debezium-json"), "db.people")
    found = decoder.schema(lambda: {"key": key(1), "value": values[0]})
    assert found.field("key").type == pa.struct([pa.field("id", pa.int32(), nullable=False)])
    made = log(found)
    done = decoder.decoded(records(values, [key(1), key(2), key(1), key(1), key(1)]), made)
    assert not done.reasons
    assert done.rows.column("key").to_pylist() == [{"id": i} for i in (1, 2, 1, 1, 1)]
    first, _, third, *gone = done.rows.column("value").to_pylist()
    assert gone == [None, None]
    assert third["name"] == "Ann"
    assert first == {
        "id": 1,
        "name": "Anna",
        "born": dt.date(2024, 10, 4),
        "seen": dt.datetime(2023, 11, 14, 22, 13, 20, 123456),
        "zoned": dt.datetime(2026, 2, 1, 8, 0, 0, 500_000, dt.UTC),
        "due": dt.time(1),
        "paid": Decimal(f"{unscaled}E-2"),
        "tags": ["x", None],
    }


def test_a_whole_change_is_kept_if_that_is_wanted(log):
    """A delete is a tombstone all the same."""
    schema = envelope("id", "name")
    values = [
        change("c", {"id": 1, "name": "a"}, schema=schema),
        change("d", None, {"id": 1, "name": "a"}, schema=schema),
    ]
    decoder = Decoder(Decoding(values="debezium-json", envelope=True), "t")
    made = log(decoder.schema(lambda: {"key": key(1), "value": values[0]}))
    rows = decoder.decoded(records(values, [key(1)] * 2), made).rows.column("value").to_pylist()
    assert rows[0]["after"] == {"id": 1, "name": "a"}
    assert rows[0]["source"] == {"db": "d"}
    assert rows[1] is None


def test_a_schema_with_names_that_differ_in_case_alone_is_refused(log):
    """S61: whether the topic begins with it, or comes to it; the log is as before."""
    both, one = envelope("id", "name", "NAME"), envelope("id", "name")
    decoder = Decoder(Decoding(values="debezium-json"), "t")
    later = change("c", {"id": 2, "name": "b", "NAME": "B"}, schema=both)
    schema = decoder.schema(lambda: {"key": key(1), "value": later})
    with pytest.raises(InvalidInputError, match="'name' and 'NAME'"):
        log(schema)
    decoder = Decoder(Decoding(values="debezium-json"), "t")
    first = change("c", {"id": 1, "name": "a"}, schema=one)
    made = log(decoder.schema(lambda: {"key": key(1), "value": first}))
    with pytest.raises(SourceUndecodableError, match=r"cannot evolve: .*'name' and 'NAME'"):
        decoder.decoded(records([first, later], [key(1), key(2)]), made)
    assert made.version == 0


REFUSED = {
    "is a TRUNCATE of its table": change("t"),
    "its op is not c, u, d or r": change("m"),
    "is not a row change": b'{"id": 1}',
    "is a change without the row after the change": change("c"),
    "has Debezium's placeholder": change("u", {"id": 1, "name": "__debezium_unavailable_value"}),
    "is not JSON": b"{",
    "nested too deeply": b"[" * 100_000,
    "does not match its schema": json.dumps(
        {"schema": envelope("id", "born"), "payload": {"op": "c", "before": 5, "after": {"id": 1}}}
    ).encode(),
    "a schema that cannot become columns": b'{"schema": {"type": "x"}, "payload": {"op": 1}}',
    "a schema that cannot become columns: a struct has no fields": json.dumps(
        {"schema": {"type": "struct", "fields": []}, "payload": {"op": "c"}}
    ).encode(),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_no_change_of_a_row_says_why(log, why):
    """And holds none of the bytes."""
    schema = {"key": pa.int64(), "value": pa.struct([("id", pa.int32()), ("name", pa.string())])}
    decoder = Decoder(Decoding(values="debezium-json"), "t")
    made = log(schema)
    done = decoder.decoded(records([REFUSED[why], change("c", {"id": 1})], [b"1", b"2"]), made)
    assert done.places.tolist() == [1]
    assert why in done.reasons[0]
    assert len(done.reasons[0]) < 300


def test_a_truncate_has_no_key_and_is_told_all_the_same(log):
    """In a compacted log, where records without a key do not fit for another reason."""
    schema = {"key": pa.int64(), "value": pa.struct([("id", pa.int32())])}
    decoder = Decoder(Decoding(values="debezium-json"), "t")
    made = log(schema, **{"cleanup.policy": "compact"})
    values = [change("t"), change("c", {"id": 1}), None, change("c", {"id": 2})]
    done = decoder.decoded(records(values, [None, None, None, b"2"]), made)
    assert done.rows.column("value").to_pylist() == [{"id": 2}]
    assert "TRUNCATE" in done.reasons[0]
    missing = "has no key, but the target is compacted"
    assert [done.reasons[1], done.reasons[2]] == [missing] * 2


def test_a_log_follows_schemas_of_changes(log):
    """More fields, and null where one is missing; in one batch, in any order. Then what no log can
    follow is an error that says so, and the log is as before.
    """
    old, new = envelope("id", "name"), envelope("id", "name", "born")
    decoder = Decoder(Decoding(values="debezium-json"), "t")
    first = change("c", {"id": 1, "name": "a"}, schema=old)
    made = log(decoder.schema(lambda: {"key": key(1), "value": first}))
    later = change("c", {"id": 2, "name": "b", "born": 1}, schema=new)
    done = decoder.decoded(records([later, first, later], [key(2), key(1), key(2)]), made)
    assert [row["born"] for row in done.rows.column("value").to_pylist()] == [
        dt.date(1970, 1, 2),
        None,
        dt.date(1970, 1, 2),
    ]
    version = made.version
    assert not decoder.decoded(records([later], [key(2)]), made).reasons
    assert made.version == version
    other = envelope("id", "name")
    other["fields"][1]["fields"][1]["type"] = "int64"
    bad = change("c", {"id": 3, "name": 7}, schema=other)
    with pytest.raises(SourceUndecodableError, match=r"value.name has type int64; .* says string"):
        decoder.decoded(records([bad], [key(3)]), made)
    assert made.version == version


def test_the_schema_of_a_log_that_is_made_has_to_be_known():
    """JSON has none, and neither does a topic without a record; a given one is used."""
    for values in ("json", "debezium-json", "connect-json"):
        decoder = Decoder(Decoding(values=values, keys="bytes"), "t")
        with pytest.raises(InvalidInputError, match=r"of topic t are unknown.*--schema FILE"):
            decoder.schema(lambda: {"key": b"1", "value": b'{"a": 1}'})
    given_schema = {"key": pa.string(), "value": ROW}
    decoder = Decoder(Decoding(values="json", schema=given_schema), "t")
    assert decoder.schema(dict) == pa.schema(given_schema)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"values": "xml"}, "values cannot be decoded as 'xml'; give one of json,"),
        ({"values": "json", "keys": "text"}, "keys cannot be decoded as 'text'; give one of bytes"),
        ({"values": "avro"}, "are in a registry: give its URL"),
        ({"values": "json", "keys": "protobuf"}, "are in a registry: give its URL"),
        ({"values": "json", "envelope": True}, "only Debezium's changes have an envelope"),
    ],
)
def test_a_wrong_decoding_is_refused(wrong, why):
    """Before anything is read."""
    with pytest.raises(InvalidInputError, match=why):
        Decoder(Decoding(**wrong), "t")
