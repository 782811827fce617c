"""Spark's option strings become settings, or an error that says what to write."""

import json
import pickle
from pathlib import Path

import pytest

from clog.connector.options import DEFINITIONS, Location, read_options, write_options
from clog.connector.positions import Times
from clog.storage.errors import OptionError

README = Path(__file__).parents[3] / "connector" / "README.md"


def read(**options):
    return read_options({"path": "/data/orders", **options})


def write(**options):
    return write_options({"path": "/data/orders", **options})


def refusal(parse, **options):
    with pytest.raises(OptionError) as caught:
        parse(**options)
    return str(caught.value)


def test_only_the_path_is_needed():
    """Every option but the path has a default."""
    options = read()
    assert options.location.name == "orders"
    assert (options.view, options.starting, options.ending) == ("log", None, None)
    assert options.fail_on_data_loss
    assert options.poll_interval_ms == 1000
    assert not options.include_headers
    assert write().config == {}


def test_names_count_without_case():
    """Spark lowers the case of option names on the way."""
    assert read(STARTINGOFFSETS="Earliest").starting == "earliest"
    assert read(startingoffsets="LATEST").starting == "latest"


@pytest.mark.parametrize(
    "value", ['{"1": -2, "0": 23}', '{"orders": {"0": 23, "1": -2}}', '{"0":23,"1":-2}']
)
def test_offsets_come_by_partition_or_in_kafkas_form(value):
    """By partition, or by topic first as for Spark's Kafka source; in the order of partitions."""
    assert list(read(startingOffsets=value).starting.items()) == [(0, 23), (1, -2)]


@pytest.mark.parametrize(
    "value",
    ["", "newest", "{}", "[1]", '{"0": -3}', '{"0": "1"}', '{"a": 1}'],
)
def test_wrong_offsets_are_refused_with_what_is_right(value):
    """The message names the option and shows the form."""
    message = refusal(read, startingOffsets=value)
    assert 'option "startingOffsets"' in message
    assert "earliest, latest" in message


def test_offsets_of_another_topic_are_refused_with_the_name_of_the_log():
    """A job copied from Kafka names its old topic."""
    message = refusal(read, startingOffsets='{"sales": {"0": 1}}')
    assert 'of the log "orders" alone' in message


@pytest.mark.parametrize("value", ['{"0": 5, "1": 9}', '{"orders": {"1": 9, "0": 5}}'])
def test_a_timestamp_beats_timestamps_by_partition_beats_offsets(value):
    """Kafka's precedence; a start later than all records is an error unless configured otherwise,
    an end is the latest (S39).
    """
    given = {"startingOffsets": "earliest", "endingOffsets": "latest"}
    given |= {"startingOffsetsByTimestamp": value, "endingOffsetsByTimestamp": value}
    assert read(**given).starting == Times({0: 5, 1: 9}, or_latest=False)
    assert read(**given).ending == Times({0: 5, 1: 9}, or_latest=True)
    given |= {"startingTimestamp": "7", "endingTimestamp": "8"}
    given |= {"startingOffsetsByTimestampStrategy": "latest"}
    assert read(**given).starting == Times(7, or_latest=True)
    assert read(**given).ending == Times(8, or_latest=True)


def test_times_may_be_iso_8601():
    """Besides milliseconds, wherever a time is expected; UTC if no zone is named."""
    at = 1_769_860_800_000
    iso = "2026-01-31T12:00:00Z"
    assert read(view="table", asOfTimestamp="2026-01-31 12:00").as_of_ms == at
    assert read(startingTimestamp=iso).starting == Times(at, or_latest=False)
    assert read(endingTimestamp=iso).ending == Times(at, or_latest=True)
    both = json.dumps({"0": iso, "1": at + 1})
    given = read(startingOffsetsByTimestamp=both).starting
    assert given == Times({0: at, 1: at + 1}, or_latest=False)
    assert "ISO 8601" in refusal(read, startingOffsetsByTimestamp='{"0": "soon"}')


def test_keys_come_as_text_or_base64():
    """Both together; they are data, so they are shown nowhere."""
    options = read(keys='["b", "ä"]', keysBase64='["AP8=", "Yg=="]')
    assert options.keys == (b"\0\xff", b"b", "ä".encode())
    assert "AP8" not in repr(options)
    assert "xff" not in repr(options)
    for name in ("keys", "keysBase64"):
        for wrong in ("hunter2", '{"a": "hunter2"}', "[]", "[1]", '["hunter2?"'):
            assert "hunter2" not in refusal(read, **{name: wrong})
    assert "Base64" in refusal(read, keysBase64='["?"]')
    assert "half of a surrogate pair" in refusal(read, keys='["\\ud800"]')


@pytest.mark.parametrize(
    ("value", "size"), [("7", 7), ("2k", 2048), ("3MB", 3 << 20), ("1g", 1 << 30)]
)
def test_sizes_have_units(value, size):
    """As Spark writes them."""
    assert read(maxBytesPerTrigger=value).admission.max_bytes == size


def test_a_minimum_above_the_maximum_is_refused():
    """The two could not both apply."""
    message = refusal(read, minOffsetsPerTrigger="5", maxOffsetsPerTrigger="4")
    assert '5, above "maxOffsetsPerTrigger", 4' in message


@pytest.mark.parametrize(
    ("name", "value", "must"),
    [
        ("startingTimestamp", "yesterday", "milliseconds since 1970, or ISO 8601"),
        ("endingOffsetsByTimestamp", '{"0": -1}', "milliseconds since 1970"),
        ("startingOffsetsByTimestampStrategy", "earliest", "error or latest"),
        ("maxBytesPerTrigger", "0", "a number of bytes"),
        ("maxBytesPerTrigger", "5x", "a number of bytes"),
        ("failOnDataLoss", "yes", "true or false"),
        ("maxOffsetsPerTrigger", "0", "from 1 to 9223372036854775807"),
        ("maxOffsetsPerTrigger", "-5", "from 1 to"),
        ("maxOffsetsPerTrigger", f"{1 << 63}", "from 1 to"),
        ("minPartitions", "9" * 5000, "from 1 to"),
        ("pollInterval", "soon", "500ms"),
        ("pollInterval", "1 fortnight", "500ms"),
        ("view", "kafka", "log or changes or table or latest"),
        ("partitions", "0,x", "separated by commas"),
        ("columns", "key,,value", "separated by commas"),
        ("includeHeaders", "1", "true or false"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(name, value, must):
    """The message names the option, its value and what is allowed."""
    message = refusal(read, **{name: value})
    assert f'option "{name}"' in message
    assert must in message


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("500ms", 500),
        ("10s", 10_000),
        ("15M", 900_000),
        ("1 second", 1000),
        ("2d", 172_800_000),
        ("250", 250),
    ],
)
def test_times_are_as_in_spark(value, ms):
    """With a unit, whatever its case; without one milliseconds, as in Kafka's source."""
    assert read(pollInterval=value).poll_interval_ms == ms
    assert read(maxTriggerDelay=value).admission.max_delay_ms == ms


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("startingOffset", "startingOffsets"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("failOnDataLos", "failOnDataLoss"),
        ("storageOptions", "storage_options"),
        ("writer_id", "writerId"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest(given, meant):
    """A misspelled option that is silently ignored would read or write the wrong data."""
    assert f'did you mean "{meant}"?' in refusal(read, **{given: "1"})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("subscribe", "Kafka source; a source reads one log"),
        ("assign", "Kafka source; give the log's URL"),
        ("kafka.bootstrap.servers", "Kafka source; clog has no broker"),
        ("groupIdPrefix", "Kafka source; there are no consumer groups"),
        ("kafkaConsumer.pollTimeoutMs", "Kafka source; the store's client retries"),
        ("fetchOffset.numRetries", "Kafka source; the store's client retries"),
        ("versionAsOf", "Delta Lake; give asOfVersion"),
        ("timestampAsOf", "Delta Lake; give asOfTimestamp"),
        ("readChangeFeed", "Delta Lake; give view=changes"),
        ("ignoreDeletes", "Delta Lake; it has no effect here"),
        ("ignoreChanges", "Delta Lake; it has no effect here"),
        ("schemaTrackingLocation", "Delta Lake; the log keeps its own schema"),
        ("overwriteSchema", "Delta Lake; mergeSchema=true adds columns"),
        ("replaceWhere", "Delta Lake; mode append replaces the rows of the same keys"),
        ("delta.enableChangeDataFeed", "Delta Lake; a log that the write creates"),
        ("snapshot-id", "Iceberg; give asOfVersion"),
        ("hoodie.datasource.write.recordkey.field", "Hudi; keyColumns"),
    ],
)
@pytest.mark.parametrize("door", [read, write])
def test_options_of_others_say_what_takes_their_place(door, name, message):
    """A user who moves a job from Kafka, Delta, Iceberg or Hudi to clog learns which options to
    drop, at a read as at a write.
    """
    assert f'"{name}' in (said := refusal(door, **{name: "x"})) or "." in name
    assert message in said


def test_what_spark_adds_is_passed_over():
    """Spark adds options of its own to ours."""
    read(checkpointLocation="/c", queryName="q", owner="me", **{"option.path": "/data/orders"})


def test_without_a_path_the_message_says_why_it_may_be_missing():
    """Spark's catalog drops the options of a table: the remedy is a temporary view."""
    with pytest.raises(OptionError, match=r"saveAsTable.*CREATE TEMPORARY VIEW"):
        read_options({})


def test_a_topic_is_checked_against_the_log():
    """A path contains one log, and its name is the topic."""
    assert write(topic="orders")
    assert "'payments'" in refusal(write, topic="payments")


def test_storage_options_come_as_json_or_one_by_one():
    """Both forms together; only booleans and structures are not taken as text."""
    options = read(
        **{
            "storage_options": '{"key": "a", "client_kwargs": {"verify": false}}',
            "storage.secret": "007",
            "storage.anon": "True",
        }
    )
    assert options.location.options() == {
        "key": "a",
        "client_kwargs": {"verify": False},
        "secret": "007",
        "anon": True,
    }


def test_secrets_show_nowhere():
    """Neither in the repr of what is sent to tasks, nor in an error."""
    options = read(**{"storage.secret": "hunter2", "path": "s3://me:hunter2@b/orders"})
    assert "hunter2" not in repr(options)
    assert "hunter2" not in refusal(read, storage_options='{"secret": "hunter2"')
    assert "hunter2" not in refusal(read, storage_option='{"secret": "hunter2"}')


def test_settings_travel():
    """Readers and writers are pickled with their settings."""
    options = read(startingOffsets='{"0": 1}', **{"storage.key": "a"})
    assert pickle.loads(pickle.dumps(options)) == options
    assert hash(options.location) == hash(pickle.loads(pickle.dumps(options)).location)


def test_a_local_path_does_not_depend_on_the_folder_of_a_process():
    """Spark's processes need not share a working directory."""
    assert Path(read_options({"path": "orders"}).location.url).is_absolute()


def test_a_path_below_the_home_is_the_one_of_the_library(monkeypatch, tmp_path):
    """`Log("~/orders")` and Spark's load("~/orders") are one log."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_options({"path": "~/orders"}).location.url == str(tmp_path / "orders")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://b/logs/orders", "orders"),
        ("/a/orders/", "orders"),
        ("memory://orders?x=/y", "orders"),
        ("ftp://me:secret@host/", "***@host"),
    ],
)
def test_a_log_is_named_by_the_last_part_of_its_path(url, name):
    """It is the topic that readers see."""
    assert Location(url).name == name


def test_configs_of_a_new_log_keep_kafkas_names():
    """They are passed to the log unchanged."""
    options = write(**{"config.cleanup.policy": "delete", "partitions": "8"})
    assert options.config == {"cleanup.policy": "delete"}
    assert options.partitions == 8


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.name)
def test_every_option_is_in_the_readme_as_it_is_in_the_code(definition):
    """One row for each option: name, where it applies, default, meaning."""
    row = f"| `{definition.name}` | {definition.use} | {definition.default} | {definition.doc} |"
    assert row in README.read_text().splitlines(), f"its row in {README} is not:\n{row}"
