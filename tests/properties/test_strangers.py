"""Hostile input is read, or refused with a clog error, in memory that its size explains."""

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strangers import PARSERS, TEXTS, plan, tried
from tests.unit.bridge.test_decoding import log, records
from tests.unit.bridge.test_registry import ROW, Registered, serialized

from clog.bridge.decoding import Decoder, Decoding
from clog.bridge.postgres.source import _Rows
from clog.storage import InvalidInputError, SourceError

__all__ = ["log"]


@pytest.fixture(scope="module", params=[name for name in PARSERS if name != "registry"])
def attempt(request):
    """What tries one change of valid input."""
    return PARSERS[request.param]()


@given(seed=st.integers(1 << 20, 1 << 40))
@settings(deadline=None, max_examples=settings().max_examples // 2)
def test_strangers_get_our_errors(attempt, seed):
    """And never one of Python's, or running out of memory."""
    tried(attempt, seed)


def nested_avro(levels):
    """Records that contain the next one twice: 2^levels columns in a text of as many lines."""
    inner = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "int"}]}
    for i in range(1, levels):
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": f"R{i - 1}"}]
        inner = {"type": "record", "name": f"R{i}", "fields": fields}
    return inner


def nested_protobuf(levels):
    """The same as messages."""
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(name="x.proto", package="x", syntax="proto3")
    for i in reversed(range(levels)):
        made = file.message_type.add(name=f"R{i}")
        for number, name in enumerate("ab", 1):
            kind, of = (11, f".x.R{i - 1}") if i else (5, None)
            made.field.add(name=name, number=number, type=kind, label=1, type_name=of)
    return serialized(file)


@pytest.mark.parametrize("kind", ["AVRO", "PROTOBUF"])
def test_a_schema_that_doubles_with_each_line_has_no_columns(log, kind):
    """A few lines would produce 2^60 columns: they are counted while they are created."""
    topic = Registered(kind)
    topic.register(nested_avro(60) if kind == "AVRO" else nested_protobuf(60))
    made = log({"key": pa.binary(), "value": pa.struct([("a", pa.int32())])})
    done = topic.decode(made, b"\0\0\0\0\1\0\2")
    assert "cannot become columns" in done.reasons[0]
    with pytest.raises(InvalidInputError, match=r"nested more than|more than .* fields"):
        topic.decoder.schema(dict)


def wide_avro(levels):
    """The same within eight levels: each contains the next one twenty times."""
    inner = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "int"}]}
    for i in range(1, levels):
        fields = [{"name": f"f{j}", "type": f"R{i - 1}" if j else inner} for j in range(20)]
        inner = {"type": "record", "name": f"R{i}", "fields": fields}
    return inner


def test_a_schema_of_very_many_fields_has_no_columns(log):
    """25,600,000,000 of them, but nested no more than a log may have it."""
    topic = Registered("AVRO")
    topic.register(wide_avro(8))
    with pytest.raises(InvalidInputError, match="contains more than 4000 fields"):
        topic.decoder.schema(dict)


@pytest.mark.parametrize("size", [0, -1, 2**31 - 1, 2**70, "4"])
def test_values_of_a_fixed_size_have_one(log, size):
    """Of no bytes a few could hold values without end; of 2 GB none is a row."""
    topic = Registered("AVRO")
    fixed = {"type": "fixed", "name": "F", "size": size}
    row = {"type": "record", "name": "R", "fields": []}
    topic.register({**row, "fields": [{"name": "l", "type": {"type": "array", "items": fixed}}]})
    made = log({"key": pa.binary(), "value": pa.struct([("a", pa.int32())])})
    done = topic.decode(made, b"\0\0\0\0\1" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01")
    assert "cannot become columns" in done.reasons[0]


@pytest.mark.parametrize("scale", [float("inf"), 10**30, "1e9", None])
def test_a_decimal_of_connect_has_a_scale(log, scale):
    """Or its schema produces no columns."""
    schema = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"}
    schema["parameters"] = {"scale": scale}
    value = json.dumps({"schema": schema, "payload": "AA=="}).encode()
    made = log({"key": pa.binary(), "value": pa.decimal128(9, 2)})
    done = Decoder(Decoding(values="connect-json"), "t").decoded(records([value]), made)
    assert "a schema that cannot become columns" in done.reasons[0]


def test_the_newest_schema_of_a_subject_may_be_none_of_changes():
    """Which is reported before there is a record."""
    topic = Registered("AVRO", values="debezium-avro", keys="bytes")
    topic.register(ROW)
    with pytest.raises(InvalidInputError, match="newest schema of subject t-value is not a change"):
        topic.decoder.schema(dict)


def test_a_moment_that_is_not_utf8_is_told_without_its_value():
    """Of a table in SQL_ASCII, or of a fake server."""
    row = ",".join(f'"{text}"' for text in ("k", *TEXTS.values())).replace('"{"a', '"{""a')
    data = row.replace('b"', 'b""').encode().replace(b"2024-02-29 12", b"2024-02-29\xf5hunter2")
    with pytest.raises(SourceError, match=r"public.t.timestamptz holds a value that") as e:
        _Rows(plan(), lambda _: None).write(data + b"\n")
    assert "hunter2" not in str(e.value)


def test_what_is_copied_is_told_without_its_values():
    """A row of other columns; Arrow's own error contains the row."""
    rows = _Rows(plan(), lambda _: None)
    with pytest.raises(SourceError, match=r"copy of public.t is not CSV of its 13 columns") as e:
        rows.write(b"secret,hunter2\n")
    assert "hunter2" not in str(e.value)
