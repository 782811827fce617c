"""Typed logs in the shell: schemas from files, JSON lines of their types both ways."""

import datetime as dt
import io
import json
from decimal import Decimal

import pyarrow as pa
import pytest

from clog.storage import Log, ManualClock

T0 = 1_769_860_800_000
WORDS = {
    "key": {"a": "int32", "b": "string"},
    "value": {
        "n": "int32 not null",
        "x": "float64",
        "d": "decimal(6,2)",
        "t": "timestamp(us,utc)",
        "ns": "timestamp(ns)",
        "day": "date",
        "at": "time(us)",
        "raw": "binary",
        "l": [{"q": "int8"}],
        "m": [["string", "int64"]],
    },
}
ROWS = [
    {
        "key": {"a": 1, "b": "x"},
        "value": {
            "n": 1,
            "x": float("inf"),
            "d": Decimal("1.25"),
            "t": dt.datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=dt.UTC),
            "ns": dt.datetime(2026, 1, 31, 12),
            "day": dt.date(2026, 1, 31),
            "at": dt.time(1, 2, 3, 4),
            "raw": b"\xff",
            "l": [{"q": 1}, None],
            "m": [("k", None)],
        },
    },
    {"key": {"a": None, "b": ""}, "value": {"n": 2, "x": 0.5}},
    {"key": {"a": 1, "b": "y"}, "value": None},
]


@pytest.fixture
def schema_file(tmp_path):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(WORDS))
    return path


@pytest.fixture
def log(cli, url, schema_file):
    cli("create", url, "--schema", schema_file, "--partitions", 1)
    log = Log.open(url, clock=ManualClock(T0))
    log.append(ROWS)
    return log


def test_describe_shows_what_create_takes(cli, url, log, tmp_path):
    """So that a schema can be used for another log."""
    described = cli.json("describe", url)["schema"]
    assert described == WORDS
    (tmp_path / "again.json").write_text(json.dumps(described))
    cli("create", tmp_path / "copy", "--schema", tmp_path / "again.json")
    assert Log.open(str(tmp_path / "copy")).schema == log.schema
    shown = " ".join(cli("describe", url).stdout.split())
    assert "key {a: int32, b: string}" in shown
    assert "l: [{q: int8}], m: [[string, int64]]" in shown


def test_lines_go_round(cli, url, log, tmp_path):
    """What consume prints produce appends as the same records, for every type."""
    lines = cli("consume", url, "--json").stdout_bytes
    first = json.loads(lines.splitlines()[0])
    assert first["key"] == {"a": 1, "b": "x"}
    assert first["value"] == {
        "n": 1,
        "x": "Infinity",
        "d": "1.25",
        "t": "2026-01-31T12:00:00.000001Z",
        "ns": "2026-01-31T12:00:00.000000",
        "day": "2026-01-31",
        "at": "01:02:03.000004",
        "raw": "/w==",
        "l": [{"q": 1}, None],
        "m": [["k", None]],
    }
    copy = tmp_path / "copy"
    cli("create", copy, "--schema", tmp_path / "schema.json", "--partitions", 1)
    cli("produce", copy, "--format", "jsonl", stdin=lines)
    columns = ["offset", "timestamp", "key", "value"]
    read = [pa.Table.from_batches(Log.open(str(u)).read(columns=columns)) for u in (url, copy)]
    assert read[0].equals(read[1])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"key":{"a":1},"value":{"n":"1"}}', "record 1 of the input has a value.n of type str"),
        ('{"key":{"a":1},"value":{"n":1,"zz":1}}', "record 1 of the input has the field value.zz"),
        ('{"key":{"a":1},"value":{"n":1,"t":"soon"}}', "a value.t that is not an ISO 8601 time"),
        ('{"key":{"a":1},"value":{"n":1,"raw":"?"}}', "a value.raw that is not base64"),
        ('{"key":{"a":1},"value":{"n":1,"n":2}}', "record 1 of the input cannot be read: an obj"),
        ('{"key":{"a":1},"value":{"n":1,"x":1e400}}', "value.x that is larger than a float can be"),
        ('{"key":{"a":1},"value":{"n":1,"x":"nan"}}', "value.x that is text, but neither"),
        ('{"key":{"a":1},"value":{"n":1,"d":1.255}}', "a value.d that does not fit decimal"),
        (
            '{"key":{"a":1},"value":{"n":1,"d":"1,2"}}',
            "a value.d that is text that is not a decimal",
        ),
        (
            '{"key":{"a":1},"value":{"n":1,"t":"2026-01-31T12:00:00.0000001Z"}}',
            "a value.t that does not fit timestamp[us",
        ),
        (
            '{"key":{"a":1},"value":{"n":1,"t":"0001-01-01T00:00:00+05:00"}}',
            "a value.t that is before the year 1",
        ),
        ('{"key":{"a":1},"value":{"n":1,"at":"01:02:03.0000004"}}', "value.at that does not fit"),
        (
            '{"key":{"a":1},"value":{"n":1,"at":"noon"}}',
            "value.at that is not an ISO 8601 time of day",
        ),
        ('{"key":{"a":1},"value":{"n":1,"day":"today"}}', "value.day that is not an ISO 8601 date"),
        ('{"key":{"a":1},"value":{"n":NaN}}', "has a value.n of type float"),
        ('{"key":{"a":1}}', "record 1 of the input cannot be read: value is missing"),
    ],
)
def test_a_line_that_does_not_fit_is_refused(cli, url, log, line, message):
    """S62: with its place, and nothing is appended."""
    refused = cli("produce", url, "--format", "jsonl", stdin=line, code=1)
    assert message in refused.stderr.replace("\n", " ")
    assert Log.open(url).version == log.version


def test_a_record_is_named_by_its_place_in_the_input(cli, url, log):
    """Not by that in its batch: what came before is appended, and stays."""
    line = '{{"key":{{"a":{}}},"value":{{"n":{}}}}}\n'
    text = "".join(line.format(i, i if i != 7 else '"x"') for i in range(1, 9))
    given = ("--format", "jsonl", "--batch-size", 3)
    refused = cli("produce", url, *given, stdin=text, code=1)
    assert "record 7 of the input has a value.n of type str" in " ".join(refused.stderr.split())
    assert Log.open(url).end_offsets() == {0: len(ROWS) + 6}


def test_a_decimal_may_be_a_number(cli, url, log):
    """With the digits that it has in the text, not those of a float."""
    cli("produce", url, "--format", "jsonl", stdin='{"key":{"a":9},"value":{"n":1,"d":1.10}}')
    assert log.table().get((9, None))["d"] == Decimal("1.1")


def test_times_that_python_has_no_values_for_go_round(cli, tmp_path):
    """Nanoseconds of a day, and days outside the calendar: printed in full, and read again."""
    (tmp_path / "s.json").write_text(
        '{"key":"string","value":{"n":"time(ns)","t":"timestamp(ms)","u":"timestamp(us,utc)",'
        '"d":["date"],"m":[["date","time(ns)"]]}}'
    )
    for name in ("log", "copy"):
        cli("create", tmp_path / name, "--schema", tmp_path / "s.json", "--partitions", 1)
    log = Log.open(str(tmp_path / "log"))
    kinds = {field.name: field.type for field in log.schema.field("value").type}
    numbers = {"n": 3_723_000_000_004, "t": 2**60, "u": -(2**62)}
    fields = [pa.array([number]).cast(pa.int64()).view(kinds[n]) for n, number in numbers.items()]
    days = pa.array([2**29, 0, None], pa.int32()).view(pa.date32())
    fields.append(pa.ListArray.from_arrays([0, 3], days))
    fields.append(pa.array([[(dt.date(2026, 1, 31), None)]], kinds["m"]))
    value = pa.StructArray.from_arrays(fields, list(kinds))
    log.append(pa.table({"key": ["k"], "value": value}))
    lines = cli("consume", tmp_path / "log", "--json").stdout_bytes
    printed = json.loads(lines)["value"]
    assert printed["n"] == "01:02:03.000000004"
    assert printed["d"][1:] == ["1970-01-01", None]
    assert printed["m"] == [["2026-01-31", None]]
    cli("produce", tmp_path / "copy", "--format", "jsonl", stdin=lines)
    read = [
        pa.Table.from_batches(Log.open(str(tmp_path / name)).read(columns=["key", "value"]))
        for name in ("log", "copy")
    ]
    assert read[0].equals(read[1])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ('{"key":"int8","value":{"a":"int8","a":"string"}}', "an object has a field twice"),
        ('{"key":"int8","value":{"\\ud800":"int8"}}', "a name that is not valid text"),
        ('{"key":"int8","value":"int33"}', "value has an unknown type"),
        ('{"value":"int8"}', "a schema must be a JSON object"),
        ("[" * 100_000, "cannot be read as JSON"),
        (f'{{"key":"int8","value":{"[" * 700}"int8"{"]" * 700}}}', "nested too deeply"),
    ],
)
def test_a_file_that_holds_no_schema_is_refused(cli, url, tmp_path, words, message):
    """As a wrong command line: no log could have it."""
    (tmp_path / "bad.json").write_text(words)
    refused = cli("create", url, "--schema", tmp_path / "bad.json", code=2)
    assert message in " ".join(refused.stderr.split())


def test_text_lines_are_printed_but_not_read(cli, url, log):
    """A value is JSON there; a key that is text would stand for itself."""
    text = cli.lines("consume", url, "--table")
    assert text[1].split(b"\t")[0] == b'{"a":null,"b":""}'
    assert json.loads(text[1].split(b"\t")[1])["n"] == 2
    refused = cli("produce", url, stdin="a\t1\n", code=1)
    assert "--format jsonl" in refused.stderr


def test_keys_are_given_as_they_are_printed(cli, url, log):
    """For get, and for consume --key."""
    (line,) = cli.lines("consume", url, "--table", "--json", "--key", '{"a":null,"b":""}')
    assert json.loads(line)["value"]["n"] == 2
    (line,) = cli.lines("consume", url, "--key", '{"a":1,"b":"y"}', "--json")
    assert json.loads(line)["value"] is None
    assert "key.a of type str" in cli(
        "consume", url, "--table", "--key", '{"a":"x"}', code=1
    ).stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("kind", "key", "text"),
    [
        ("string", "alice", "alice"),
        ("int64", -7, "-7"),
        ("binary", b"\xff", "/w=="),
        ("date", dt.date(1969, 12, 31), "1969-12-31"),
        ("decimal(9,2)", Decimal("-0.50"), "-0.5"),
        ("bool", True, "true"),
    ],
)
def test_a_lone_key_needs_no_quotes(cli, tmp_path, kind, key, text):
    (tmp_path / "s.json").write_text(json.dumps({"key": kind, "value": "int64"}))
    cli("create", tmp_path / "log", "--schema", tmp_path / "s.json")
    Log.open(str(tmp_path / "log")).append([{"key": key, "value": 5}])
    found = ("consume", tmp_path / "log", "--table")
    assert cli.lines(*found, "--print", "value", "--key", text) == [b"5"]


@pytest.mark.parametrize("words", [("binary", "string"), ("string", "binary")])
def test_json_lines_of_bytes_beside_a_type_are_read_back(cli, tmp_path, words):
    """Bytes are base64 in them, even if they are text: a log with a schema is not a log of bytes,
    though its keys or its values are bytes.
    """
    (tmp_path / "s.json").write_text(json.dumps(dict(zip(("key", "value"), words, strict=True))))
    for name in ("from", "to"):
        cli("create", tmp_path / name, "--partitions", 1, "--schema", tmp_path / "s.json")
    given = [b"abc" if kind == "binary" else "abc" for kind in words]
    Log.open(str(tmp_path / "from")).append([{"key": given[0], "value": given[1]}])
    (line,) = cli.lines("consume", tmp_path / "from", "--json")
    cli("produce", tmp_path / "to", "--format", "jsonl", stdin=line + b"\n")
    (batch,) = Log.open(str(tmp_path / "to")).read()
    assert [batch[name][0].as_py() for name in ("key", "value")] == given
    assert cli.lines(
        "consume", tmp_path / "to", "--table", "--json", "--key", json.loads(line)["key"]
    )


def test_alter_evolves_to_a_schema(cli, url, log, schema_file):
    """Fields added, widened, relaxed, in one commit; the same again changes nothing."""
    words = json.loads(schema_file.read_text())
    words["key"]["a"] = "int64"
    words["value"] |= {"n": "int64", "more": ["string"]}
    schema_file.write_text(json.dumps(words))
    done = cli.json("alter", url, "--schema", schema_file)
    widened = ["key.a", "value.n"]
    assert done["evolved"] == {"add": ["value.more"], "widen": widened, "relax": ["value.n"]}
    assert done["schema"]["value"]["more"] == ["string"]
    assert "already" in cli("alter", url, "--schema", schema_file).stdout
    assert log.table().get({"a": None, "b": ""})["more"] is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda w: w["value"].pop("x"),
            "and x is missing here; to drop or rename it, say so: clog alter --drop value.x",
        ),
        (lambda w: w["value"].update(x="float64 not null"), "cannot become NOT NULL"),
        (lambda w: w["value"].update(new="int8 not null"), "but added fields must be nullable"),
        (lambda w: w["value"].update(n="string"), "cannot become string"),
        (lambda w: w.update(key="string"), "key is struct and cannot become string"),
    ],
)
def test_what_no_evolution_does_is_refused(cli, url, log, schema_file, change, message):
    """With its reason; nothing changes."""
    words = json.loads(schema_file.read_text())
    change(words)
    schema_file.write_text(json.dumps(words))
    refused = cli("alter", url, "--schema", schema_file, code=1)
    assert message in " ".join(refused.stderr.split())
    assert Log.open(url).version == log.version


def test_alter_renames_and_drops_and_shows_it_before(cli, tmp_path):
    """With a schema in the same commit; a dry run shows both schemas, and changes nothing."""
    url = str(tmp_path / "trips")
    row = {"id": 1, "minutes": 5, "note": "a", "s": {"x": 1}}
    log = Log.create(url, 1, key="id", like=[row])
    log.append([row])
    wanted = {"key": "int64 not null", "value": {"duration": "int64", "s": {"y": "int64"}}}
    (tmp_path / "to.json").write_text(
        json.dumps(wanted | {"value": {**wanted["value"], "z": "string"}})
    )
    changes = ["--rename", "minutes=duration", "--rename", "value.s.x=y", "--drop", "note"]
    changes += ["--rename", "id=nr", "--schema", tmp_path / "to.json"]
    shown = cli("alter", url, *changes, "--dry-run").stdout.splitlines()
    assert [" ".join(line.split()) for line in shown] == [
        "key int64 not null key int64 not null",
        "value struct value struct",
        "~ value.minutes int64 value.duration int64",
        "- value.note string",
        "value.s struct value.s struct",
        "~ value.s.x int64 value.s.y int64",
        "+ value.z string",
    ]
    assert log.version == 1
    assert cli.json("alter", url, *changes, "-n")["before"]["value"]["minutes"] == "int64"
    done = cli.json("alter", url, *changes)
    assert done["evolved"]["drop"] == ["note"]
    assert done["evolved"]["add"] == ["value.z"]
    assert log.version == 2
    assert log.table().to_pylist() == [{"nr": 1, "duration": 5, "s": {"y": 1}, "z": None}]
    refused = cli("alter", url, "--drop", "duration", "-c", "segment.ms=1h", "-n", code=2)
    assert "only these" in refused.stderr


def test_a_file_that_is_no_json_is_told(cli, url, tmp_path):
    (tmp_path / "bad.json").write_text("{")
    refused = cli("create", url, "--schema", tmp_path / "bad.json", code=2)
    assert "cannot be read as JSON" in " ".join(refused.stderr.split())


def test_convert_makes_columns_of_avro(cli, tmp_path):
    """With schemas in files, with the ids of a registry or without."""
    fastavro = pytest.importorskip("fastavro")
    schema = {"type": "record", "name": "V", "fields": [{"name": "n", "type": "int"}]}
    (tmp_path / "v.avsc").write_text(json.dumps(schema))
    (tmp_path / "types.json").write_text('{"key": "int64", "value": {"n": "int32"}}')
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {"n": 5})
    source = Log.create(str(tmp_path / "bytes"), 1)
    source.append([{"key": "1", "value": b"\0\0\0\0\7" + out.getvalue()}])
    to_typed = ["copy", source.url, tmp_path / "typed", "--decode", "avro"]
    given = [*to_typed, "--schema", tmp_path / "types.json"]
    given += ["--avro-schema", f"7={tmp_path / 'v.avsc'}"]
    done = cli.json(*given)
    assert done == {
        "url": source.url,
        "target": str(tmp_path / "typed"),
        "records": 1,
        "tombstones": 0,
        "dead_letters": 0,
    }
    log = Log.open(str(tmp_path / "typed"))
    assert log.table().get(1) == {"n": 5}
    (tmp_path / "types.json").write_text('{"key": "int64", "value": {"n": "int64"}}')
    assert "has a schema other than the file's" in cli(*given, code=1).stderr
    source.append([{"key": "2", "value": out.getvalue()}])
    cli(*to_typed, "--avro-schema", tmp_path / "v.avsc")
    assert log.table().get(2) == {"n": 5}
    two = ["--avro-schema", "v.avsc"] * 2
    assert "each as ID=FILE" in cli(*to_typed, *two, code=2).stderr


def test_convert_decodes_keys_and_remembers_by_a_name(cli, tmp_path):
    """Keys of Avro, as values are; two copies into one target continue each under its ``--id``."""
    fastavro = pytest.importorskip("fastavro")
    (tmp_path / "k.avsc").write_text('"long"')
    (tmp_path / "types.json").write_text('{"key": "int64", "value": {"n": "int32"}}')
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema("long"), 300)
    source = Log.create(str(tmp_path / "bytes"), 1)
    source.append([{"key": out.getvalue(), "value": '{"n": 5}'}])
    given = ["copy", source.url, tmp_path / "typed", "--decode", "json"]
    given += ["--schema", tmp_path / "types.json"]
    given += ["--key-avro-schema", tmp_path / "k.avsc"]
    assert [cli.json(*given, "--id", name)["records"] for name in ("a", "a", "b")] == [1, 0, 1]
    log = Log.open(str(tmp_path / "typed"))
    assert log.table().get(300) == {"n": 5}
    assert log.end_offsets() == {0: 2}


def test_convert_leaves_out_what_does_not_fit(cli, tmp_path):
    """It goes to ``--dead-letters``, whose log is created; without them it is an error."""
    (tmp_path / "types.json").write_text('{"key": "string", "value": {"n": "int32"}}')
    source = Log.create(str(tmp_path / "bytes"), 1)
    source.append([{"key": "a", "value": '{"n": "x"}'}, {"key": "b", "value": '{"n": 1}'}])
    given = ["copy", source.url, tmp_path / "typed", "--decode", "json"]
    given += ["--schema", tmp_path / "types.json"]
    cli(*given, code=1)
    done = cli.json(*given, "--dead-letters", tmp_path / "dead")
    assert (done["records"], done["dead_letters"]) == (1, 1)
    assert Log.open(str(tmp_path / "typed")).table().get("b") == {"n": 1}
    assert Log.open(str(tmp_path / "dead")).end_offsets() == {0: 1}


def test_no_command_makes_names_alike(cli, url, tmp_path):
    """S61: a file's schema and a config are held to the rule of the API, and change nothing."""
    path = tmp_path / "schema.json"
    words = {"key": "string", "value": {"v": "int64", "V": "int64"}}
    path.write_text(json.dumps(words))
    keys = ("-c", "table.key.columns=id")
    for given in ((), keys):
        refused = cli("create", url, "--schema", path, *given, code=1)
        assert "value has the fields 'v' and 'V'" in refused.stderr
    path.write_text(json.dumps({"key": "string", "value": {"v": "int64"}}))
    cli("create", url, "--schema", path)
    path.write_text(json.dumps(words))
    refused = cli("alter", url, "--schema", path, code=1)
    assert "'v' and 'V'" in refused.stderr
    refused = cli("alter", url, "-c", "table.key.columns=V", code=1)
    assert "'V', and the value also has a field 'v'" in refused.stderr
    assert Log.open(url).version == 0
