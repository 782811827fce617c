"""The columns of a read are those of Spark's Kafka source, those of a write what its sink
accepts.
"""

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from clog.connector.schema import (
    arrow_schema,
    check_read_schema,
    check_write_schema,
    read_schema,
)
from clog.storage.errors import InvalidInputError, OptionError

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
TYPES = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "timestamp": TimestampType(),
    "headers": ArrayType(HEADER),
    "map": MapType(StringType(), BinaryType()),
}


def schema_of(text):
    """``"key binary, value string!"``; ``!`` is not null. Spark's own parser needs a session."""
    fields = [part.split() for part in text.split(",")]
    return StructType(
        [
            StructField(name, TYPES[kind.rstrip("!")], not kind.endswith("!"))
            for name, kind in fields
        ]
    )


def refusal(check, *args, **kwargs):
    with pytest.raises(InvalidInputError) as caught:
        check(*args, **kwargs)
    return str(caught.value)


def writes(text, *, key_needed=True):
    return check_write_schema(schema_of(text), key_needed=key_needed, where="log 'orders'")


def test_a_read_has_the_columns_of_the_kafka_source():
    """Names, types and order; headers only if requested."""
    plain = read_schema(None, include_headers=False)
    assert plain == schema_of(
        "key binary, value binary, topic string, partition int, offset bigint,"
        " timestamp timestamp, timestampType int"
    )
    with_headers = read_schema(None, include_headers=True)
    assert with_headers.names[-1] == "headers"
    assert with_headers["headers"].dataType == ArrayType(HEADER)


def test_columns_can_be_chosen():
    """In any order, every existing one."""
    assert read_schema(["offset", "key"], include_headers=False).names == ["offset", "key"]
    with pytest.raises(OptionError, match="'keys'"):
        read_schema(["keys"], include_headers=False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("key string", ["cast(key as string)"]),
        ("timestamp bigint", ["unix_millis(timestamp)"]),
        ("id bigint", ["column 'id'", "key, value"]),
        ("offset bigint, key binary, offset bigint", ["repeats offset"]),
        ("offset bigint!, value binary!", ["column value is NOT NULL", "tombstone"]),
    ],
)
def test_a_schema_that_cannot_be_read_is_refused(text, words):
    """Spark does not check a given schema, and trusts NOT NULL."""
    message = refusal(check_read_schema, schema_of(text))
    assert all(word in message for word in words)


def test_headers_without_nulls_are_refused():
    """A header's value may be null, whatever the given schema says about its fields."""
    header = StructType([HEADER["key"], StructField("value", BinaryType(), nullable=False)])
    schema = StructType([StructField("headers", ArrayType(header))])
    assert "NOT NULL" in refusal(check_read_schema, schema)
    check_read_schema(StructType([StructField("headers", ArrayType(HEADER))]))


def test_arrow_types_are_what_spark_compares_with():
    """Spark's own conversion gives the same schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    for schema in (
        read_schema(None, include_headers=True),
        schema_of("offset bigint!, timestamp timestamp, value binary!, headers headers!"),
    ):
        assert arrow_schema(schema).equals(to_arrow_schema(schema, timezone="UTC"))


@pytest.mark.parametrize(
    "text",
    [
        "key string, value string",
        "value binary, key binary",
        "value binary, partition int, timestamp timestamp, headers headers, key string",
        "key string, value string, topic string, note double",
    ],
)
def test_a_write_takes_what_the_kafka_sink_takes(text):
    """Text or bytes, in any order; a column that does not exist in a record is left out."""
    writes(text)


def test_a_compacted_log_needs_a_key_column():
    """A log that is not compacted does not (S5)."""
    assert "'key' is missing" in refusal(writes, "value string")
    assert "keyColumns" in refusal(writes, "id string, city string")
    writes("value string", key_needed=False)
    assert "'value' is missing" in refusal(writes, "key string", key_needed=False)


@pytest.mark.parametrize(
    ("column", "allowed"),
    [
        ("value map", "to_json(value)"),
        ("value timestamp", "string(unix_micros(value)) gives the same text in every time zone"),
        ("value int", "string or binary"),
        ("partition bigint", "int"),
        ("headers map", "array<struct<key:string,value:binary>>"),
        ("timestamp bigint", "timestamp; timestamp_millis(timestamp) if"),
        ("timestamp string", "timestamp; cast(timestamp as timestamp)"),
        ("topic binary", "string"),
    ],
)
def test_a_wrong_type_is_refused_with_the_right_one(column, allowed):
    """Spark's save() checks no schema."""
    text = column if column.startswith("value") else f"value string, {column}"
    message = refusal(writes, f"key string, {text}")
    assert f"column {column.split()[0]} has type" in message
    assert allowed in message


def test_what_a_source_read_is_not_written_back_as_it_is():
    """Offsets are assigned at commit: the message has the select to paste."""
    schema = read_schema(None, include_headers=True)
    message = refusal(check_write_schema, schema, key_needed=True, where="log 'orders'")
    assert "offset, timestampType" in message
    assert '.select("key", "value", "headers", "timestamp")' in message


def test_the_types_of_positions():
    """Kafka's: partitions are ints, offsets longs."""
    schema = read_schema(None, include_headers=False)
    assert schema["partition"].dataType == IntegerType()
    assert schema["offset"].dataType == LongType()
