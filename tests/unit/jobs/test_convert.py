"""A log of bytes copied into a typed one: what happens to each record, and that it happens once."""

import datetime as dt
import json
from decimal import Decimal
from io import BytesIO

import pyarrow as pa
import pytest

from clog.bridge import decoding
from clog.jobs import avro_values, convert
from clog.storage import InvalidInputError, Log, ManualClock
from clog.storage.env import SeededIds
from clog.storage.store.contract import Within
from clog_testing.crash import crash_runs, discard

SCHEMA = {
    "key": pa.int64(),
    "value": pa.struct(
        [pa.field("n", pa.int32(), nullable=False), ("at", pa.timestamp("us", "UTC"))]
    ),
}
GOOD = [
    {"key": "1", "value": '{"n": 10, "at": "2026-01-31T12:00:00Z"}'},
    {"key": "-2", "value": '{"n": 20}', "headers": [("from", b"crm")]},
    {"key": "1", "value": None},
]
BAD = {
    "has a value that is not JSON: Expecting value at character 6": ("3", '{"n": '),
    "has a value that is not UTF-8 at byte 2": ("3", b'{"\xff": 1}'),
    "has no value.n, which is NOT NULL": ("3", "{}"),
    "has a value.n of type str; the log's schema says int32": ("3", '{"n": "x"}'),
    "has a value.n that does not fit int32": ("3", '{"n": 5000000000}'),
    "has the field value.zz, which is not in the log's schema; there it has n, at (add it by"
    " Log.evolve or clog alter --schema, or leave it out)": ("3", '{"n": 1, "zz": 1}'),
    "has a value that is an encoded null, which is not a tombstone": ("3", "null"),
    "has a value that is JSON that is nested too deeply": ("3", "[" * 100_000),
    "has a key of type str; the log's schema says int64": ('"x"', '{"n": 1}'),
    "has a key that is not JSON: Extra data at character 2": ("1 2", None),
    "has no key, but the target is compacted": (None, '{"n": 1}'),
}


@pytest.fixture
def source():
    config = {"cleanup.policy": ""}
    return Log.create("memory://convert/source", 2, config, clock=ManualClock(50_000))


@pytest.fixture
def target():
    return Log.create("memory://convert/target", 3, schema=SCHEMA)


@pytest.fixture
def letters():
    return Log.create("memory://convert/letters", 1, {"cleanup.policy": "delete"})


@pytest.fixture(autouse=True)
def emptied(source, target, letters):
    yield
    for log in (source, target, letters):
        discard(log.handle.standing.root)


def rows(log):
    return [row for batch in log.read() for row in batch.to_pylist()]


def test_records_become_columns(source, target):
    """With their headers, times and order; tombstones stay. Run again, only what was appended
    meanwhile is new.
    """
    source.append(GOOD, partition=0)
    done = convert(source, target)
    assert (done.records, done.tombstones, done.dead_letters) == (3, 1, 0)
    found = {row["key"]: row for row in rows(target)}
    assert found[-2]["value"] == {"n": 20, "at": None}
    assert found[-2]["headers"] == [{"key": "from", "value": b"crm"}]
    assert found[-2]["timestamp"] == dt.datetime.fromtimestamp(50, dt.UTC)
    assert [row["value"] for row in rows(target) if row["key"] == 1] == [
        {"n": 10, "at": dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)},
        None,
    ]
    version = target.version
    assert convert(source, target).records == 0
    assert target.version == version
    source.append([{"key": "7", "value": '{"n": 70}'}])
    assert convert(source, target).records == 1
    assert target.table().get(7) == {"n": 70, "at": None}


def test_what_is_undecided_is_copied_once_it_is_decided(source, target):
    """S51: the copy goes up to the first undecided record, and continues from there when it runs
    again.
    """
    row = {"key": "1", "value": '{"n": 1}'}
    source.append([row], partition=0)
    with source.transaction("other", visible=True) as t:
        t.append([row], partition=0)
        source.append([row], partition=0)
        assert convert(source, target).records == 1
    assert convert(source, target).records == 2
    assert len(rows(target)) == 3


@pytest.mark.parametrize("reason", BAD)
def test_what_does_not_fit_goes_to_the_dead_letters(source, target, letters, reason):
    """As it was, with the reason and its place in its headers; the rest of the batch is copied."""
    key, value = BAD[reason]
    bad = {"key": key, "value": value, "headers": [("from", b"crm")]}
    source.append([GOOD[0], bad, *GOOD[1:]], partition=1)
    done = convert(source, target, dead_letters=letters)
    assert (done.records, done.dead_letters) == (3, 1)
    assert sorted(row["key"] for row in rows(target)) == [-2, 1, 1]
    (letter,) = rows(letters)
    encoded = [
        None if x is None else x if isinstance(x, bytes) else x.encode() for x in BAD[reason]
    ]
    assert [letter["key"], letter["value"]] == encoded
    assert letter["timestamp"] == rows(source)[1]["timestamp"]
    told = {h["key"]: h["value"].decode() for h in letter["headers"]}
    assert told == {
        "from": "crm",
        "clog.dead-letter.reason": reason,
        "clog.dead-letter.log-id": source.id,
        "clog.dead-letter.partition": "1",
        "clog.dead-letter.offset": "1",
    }


def test_many_that_do_not_fit_are_told_apart(source, target, letters):
    """Each with its own reason, wherever it is."""
    records = [
        {"key": str(i), "value": json.dumps({"n": i if i % 3 else f"{i}"})} for i in range(1000)
    ]
    source.append(records, partition=0)
    done = convert(source, target, dead_letters=letters)
    assert (done.records, done.dead_letters) == (666, 334)
    assert sorted(row["key"] for row in rows(target)) == [i for i in range(1000) if i % 3]
    assert [int(row["key"]) for row in rows(letters)] == list(range(0, 1000, 3))


def test_without_dead_letters_a_record_that_does_not_fit_is_an_error(source, target, monkeypatch):
    """It is named; what preceded its batch stays, and is not copied again (S62)."""
    monkeypatch.setattr(decoding, "BATCH_BYTES", 1)
    source.append(GOOD, partition=1)
    source.append([{"key": "9", "value": "secret"}], partition=1)
    for _ in range(2):
        with pytest.raises(InvalidInputError, match=r"offset 3 of partition 1 .* is not JSON") as e:
            convert(source, target)
        assert "secret" not in str(e.value)
        assert len(rows(target)) == 3


def test_logs_of_another_kind_are_refused(source, target, letters):
    compacted = Log.create("memory://convert/compacted")
    for given, message in (
        ((target, target), "is already typed"),
        ((source, letters), "is a log of bytes"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            convert(*given)
    for wrong in (target, compacted):
        with pytest.raises(InvalidInputError, match="cannot take dead letters"):
            convert(source, target, dead_letters=wrong)
    discard(compacted.handle.standing.root)


def begin(store):
    clock = ManualClock(50_000)
    source = Log.create(Within(store, "source"), 1, clock=clock, ids=SeededIds(1))
    Log.create(Within(store, "target"), 2, clock=clock, ids=SeededIds(2), schema=SCHEMA)
    Log.create(Within(store, "letters"), 1, {"cleanup.policy": ""}, clock=clock, ids=SeededIds(3))
    for i in range(2):
        source.append([GOOD[i], {"key": f"bad {i}", "value": "{"}])


def opened(store, seed):
    clock = ManualClock(50_000)
    return [
        Log.open(Within(store, name), clock=clock, ids=SeededIds(seed))
        for name in ("source", "target", "letters")
    ]


@pytest.mark.nightly
def test_a_copy_that_is_killed_goes_on(monkeypatch):
    """At each of its requests: every record is in the target or among the dead letters, once, and
    in order.
    """
    monkeypatch.setattr(decoding, "BATCH_BYTES", 1)

    def act(store, seed=10):
        source, target, letters = opened(store, seed)
        return convert(source, target, dead_letters=letters)

    runs = 0
    for run in crash_runs(begin, act):
        act(run.store, seed=11)
        _, target, letters = opened(run.store, 12)
        assert sorted(row["key"] for row in rows(target)) == [-2, 1], run
        assert [row["key"] for row in rows(letters)] == [b"bad 0", b"bad 1"], run
        discard(run.store)
        runs += 1
    assert runs > 50


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "n", "type": "int"},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {
            "name": "d",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
        },
        {"name": "u", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "m", "type": {"type": "map", "values": "long"}},
    ],
}
OF_AVRO = {
    "key": pa.string(),
    "value": pa.struct(
        [
            ("n", pa.int64()),
            ("at", pa.timestamp("ms", "UTC")),
            ("d", pa.decimal128(8, 2)),
            ("u", pa.string()),
            ("m", pa.map_(pa.string(), pa.int64())),
        ]
    ),
}
ORDER = {
    "n": 7,
    "at": dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC),
    "d": Decimal("1.25"),
    "u": "e9a3c7f0-0000-4000-8000-000000000001",
    "m": {"x": 1},
}


def avro(value, schema=AVRO):
    fastavro = pytest.importorskip("fastavro")
    plain = {**schema, "fields": [dict(f) for f in schema["fields"]]}
    plain["fields"][3]["type"] = "string"
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(plain), value)
    return out.getvalue()


def test_avro_becomes_columns(source, letters):
    """With its logical types; what is no Avro of the schema is a dead letter."""
    target = Log.create("memory://convert/avro", 1, schema=OF_AVRO)
    data = avro(ORDER)
    given = [data, data[:-3], data + b"x", b"\xff" * 11, None]
    source.append([{"key": f"k{i}", "value": v} for i, v in enumerate(given)], partition=0)
    done = convert(source, target, values=avro_values(AVRO), dead_letters=letters)
    assert (done.records, done.tombstones, done.dead_letters) == (2, 1, 3)
    assert target.table().get("k0") == {**ORDER, "m": [("x", 1)]}
    reasons = [row["headers"][0]["value"].decode() for row in rows(letters)]
    assert all(
        reason.startswith("has a value that is not Avro of this schema") for reason in reasons
    )
    discard(target.handle.standing.root)


def test_avro_by_the_ids_of_a_registry(source, letters):
    """Each value is read with the schema that it was written with."""
    target = Log.create("memory://convert/avro", 1, schema=OF_AVRO)
    newer = {**AVRO, "fields": [*AVRO["fields"], {"name": "zz", "type": "int"}]}
    headed = [b"\0\0\0\0\7" + avro(ORDER), b"\0\0\0\0\x09" + avro(ORDER), b"\1", avro(ORDER)]
    source.append([{"key": f"k{i}", "value": v} for i, v in enumerate(headed)], partition=0)
    done = convert(
        source, target, values=avro_values(by_id={7: AVRO, 8: newer}), dead_letters=letters
    )
    assert (done.records, done.dead_letters) == (1, 3)
    reasons = [row["headers"][0]["value"].decode() for row in rows(letters)]
    assert reasons == [
        "has a value that has the schema id 9, for which no schema was given",
        "has a value that has no header with a schema id",
        "has a value that has no header with a schema id",
    ]
    discard(target.handle.standing.root)


def test_a_registrys_header_is_told_of_where_nobody_named_its_id(source, letters):
    """And no JSON starts with it, so there it is left out."""
    target = Log.create("memory://convert/avro", 1, schema=OF_AVRO)
    source.append([{"key": "k", "value": b"\0\0\0\0\7" + avro(ORDER)}], partition=0)
    convert(source, target, values=avro_values(AVRO), dead_letters=letters)
    (reason,) = [row["headers"][0]["value"].decode() for row in rows(letters)]
    assert "with the schema id 7: give the schema by its id" in reason
    source.append([{"key": "j", "value": b'\0\0\0\0\7{"n":7,"d":1.10}'}], partition=0)
    assert convert(source, target, dead_letters=letters).records == 1
    assert target.table().get("j")["d"] == Decimal("1.10")
    discard(target.handle.standing.root)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ('{"n":1,"n":2}', "has a field twice"),
        ('{"n":1,"zz":2}', "the field value.zz, which is not in the log's schema"),
        ('{"n":1,"at":"0001-01-01T00:00:00+05:00"}', "before the year 1"),
        ("[" * 100_000, "nested too deeply"),
        ('{"n":1}{}', "is not JSON"),
    ],
)
def test_nothing_of_a_document_is_dropped_unsaid(source, letters, value, reason):
    """S62: neither a field that the schema lacks, nor one of two of the same name."""
    target = Log.create("memory://convert/avro", 1, schema=OF_AVRO)
    source.append([{"key": "k", "value": value}], partition=0)
    assert convert(source, target, dead_letters=letters).dead_letters == 1
    assert reason in rows(letters)[0]["headers"][0]["value"].decode()
    discard(target.handle.standing.root)


def test_a_record_too_large_as_columns_is_a_dead_letter(source, letters):
    """A digit of a text counts one byte, its number eight; the copy does not stop at it."""
    schema = {"key": pa.string(), "value": pa.list_(pa.int8())}
    target = Log.create("memory://convert/avro", 1, {"max.message.bytes": "1000"}, schema=schema)
    given = [str([1] * n) for n in (5, 200, 7)]
    source.append([{"key": f"k{i}", "value": v} for i, v in enumerate(given)], partition=0)
    with pytest.raises(InvalidInputError, match=r"offset 1 of partition 0 .* has 1614 bytes"):
        convert(source, target)
    done = convert(source, target, dead_letters=letters)
    assert (done.records, done.dead_letters) == (2, 1)
    assert target.table().get_many(["k0", "k2"]) == {"k0": [1] * 5, "k2": [1] * 7}
    discard(target.handle.standing.root)


def test_what_is_no_schema_of_avro_is_refused():
    pytest.importorskip("fastavro")
    for given in ({}, {"schema": AVRO, "by_id": {}}):
        with pytest.raises(InvalidInputError, match="give one Avro schema"):
            avro_values(**given)
    with pytest.raises(InvalidInputError, match="not an Avro schema"):
        avro_values({"type": "record"})


FLOATS = {
    "value.x": (lambda x: pa.struct([("x", x)]), '{"x": 16777217.0}'),
    "value.element": (pa.list_, "[16777217.0]"),
    "value.value.x": (
        lambda x: pa.map_(pa.string(), pa.struct([("x", x)])),
        '[["k", {"x": 16777217.0}]]',
    ),
}


@pytest.mark.parametrize("path", FLOATS)
def test_floats_are_rounded_for_the_columns_that_there_are(source, path):
    """S62: not for those that were there when they were decoded, wherever they are."""
    kind, given = FLOATS[path]
    schema = {"key": pa.string(), "value": kind(pa.float32())}
    target = Log.create("memory://convert/floats", 1, schema=schema)

    def decode(data, wanted):
        other = Log.open(target.url)
        if other.schema.field("value").type == kind(pa.float32()):
            other.evolve(widen={path: pa.float64()})
        return decoding.json_values(data, wanted)

    source.append([{"key": "k", "value": given}], partition=0)
    assert convert(source, target, values=decode).records == 1
    assert "16777217.0" in str([row for batch in target.read() for row in batch.to_pylist()])
    discard(target.handle.standing.root)
