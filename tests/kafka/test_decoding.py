"""Topics as typed logs, with a real broker: the topic's offsets, each record once, and what does
not decode among the dead letters.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from tests.kafka.test_command import run
from tests.kafka.topics import JSON
from tests.unit.bridge.test_decoding import change, envelope, key
from tests.unit.bridge.test_registry import ROW, VALUE, Registered, avro, server
from tests.unit.conftest import Cli

from clog.bridge import Decoding, MirrorSettings, mirror, replay, send, verify
from clog.storage import InvalidInputError, Log, SourceError, SourceUndecodableError

pytestmark = pytest.mark.nightly

__all__ = ["server"]


def typed_rows(url, partition=0):
    found = [r for b in Log.open(url).read(partition=partition) for r in b.to_pylist()]
    return [(row["offset"], row["key"], row["value"]) for row in found]


def letters(url):
    found = []
    for row in [r for b in Log.open(url).read() for r in b.to_pylist()]:
        told = {h["key"]: (h["value"] or b"").decode() for h in row["headers"] or ()}
        place = (int(told["clog.dead-letter.partition"]), int(told["clog.dead-letter.offset"]))
        found.append((*place, row["value"], told["clog.dead-letter.reason"]))
    return found


def test_json_becomes_columns_at_the_same_offsets(kafka, url, tmp_path):
    """Tombstones stay; a record that does not decode leaves a gap, and is among the dead letters
    unchanged, with its place; the end is the topic's.
    """
    topic = kafka.topic(2, cleanup_policy="compact")
    kafka.produce(topic, [b'{"n": 1}', b"{", None, b'{"n": 4}'])
    kafka.transaction(topic, [b'{"n": 5}'], end="abort")
    kafka.produce(topic, [{"key": "p1", "value": b"\xff", "headers": [("h", b"x")]}], partition=1)
    dead = str(tmp_path / "dead")
    done = mirror(kafka.url(topic), url, MirrorSettings(once=True, decode=JSON, dead_letters=dead))
    told = done.topics[topic]
    assert (told.records, told.dead_letters, told.lag) == (5, 2, 0)
    assert typed_rows(url) == [(0, "k0", {"n": 1}), (2, "k2", None), (3, "k3", {"n": 4})]
    assert Log.open(url).end_offsets() == {0: kafka.extent(topic)[1], 1: 1}
    first, second = sorted(letters(dead))
    assert first[:3] == (0, 1, b"{")
    assert second == (1, 0, b"\xff", "has a value that is not UTF-8 at byte 0")
    assert Log.open(dead).partitions == 2
    kafka.produce(topic, [b'{"n": 6}'])
    again = mirror(kafka.url(topic), url, MirrorSettings(once=True, decode=JSON, dead_letters=dead))
    assert again.topics[topic].records == 1
    assert len(letters(dead)) == 2
    found = Log.open(url).table().to_duckdb().filter("value.n = 6").fetchall()
    assert len(found) == 1


def test_without_dead_letters_the_first_one_is_a_stop(kafka, url):
    """What was committed stays; with them the mirror continues where it was."""
    topic = kafka.topic()
    kafka.produce(topic, [b'{"n": 1}'])
    mirror(kafka.url(topic), url, MirrorSettings(once=True, decode=JSON))
    kafka.produce(topic, [b'{"n": 2}', b"x"])
    with pytest.raises(SourceUndecodableError, match=r"offset 2 of partition 0 .* is not JSON"):
        mirror(kafka.url(topic), url, MirrorSettings(once=True, decode=JSON))
    assert [offset for offset, *_ in typed_rows(url)] == [0]
    mirror(
        kafka.url(topic), url, MirrorSettings(once=True, decode=JSON, dead_letters=f"{url}-dead")
    )
    assert [offset for offset, *_ in typed_rows(url)] == [0, 1]


def test_a_log_is_typed_or_not(kafka, url):
    """A run that does not say how to decode is refused for a typed log, one that does for a log of
    bytes; the same for a comparison.
    """
    topic = kafka.topic()
    kafka.produce(topic, [b'{"n": 1}'])
    mirror(kafka.url(topic), url, MirrorSettings(once=True, decode=JSON))
    with pytest.raises(InvalidInputError, match="has columns: say how"):
        mirror(kafka.url(topic), url, MirrorSettings(once=True))
    with pytest.raises(InvalidInputError, match="has columns: say how"):
        verify(kafka.url(topic), url)
    mirror(kafka.url(topic), f"{url}-bytes", MirrorSettings(once=True))
    with pytest.raises(InvalidInputError, match="is a log of bytes"):
        mirror(kafka.url(topic), f"{url}-bytes", MirrorSettings(once=True, decode=JSON))


def test_avro_of_a_registry(kafka, url, server):
    """The first record's schema creates the log, even if no subject has the topic's name; a newer
    one evolves it; a record before the position is compared as columns.
    """
    topic = kafka.topic()
    registered = Registered("AVRO", registry=server.url)
    assert registered.kind == "AVRO"
    value = avro(1, ROW, VALUE)
    kafka.produce(topic, [None, value, b"\0\0\0\0\x63x"])
    decoding = Decoding(values="avro", keys="string", registry=server.url)
    options = {"decode": decoding, "dead_letters": f"{url}-dead"}
    mirror(kafka.url(topic), url, MirrorSettings(once=True, **options))
    kafka.produce(topic, [value])
    mirror(kafka.url(topic), url, MirrorSettings(once=True, **options))
    assert [(o, v and v["a"]) for o, _, v in typed_rows(url)] == [(0, None), (1, 1), (3, 1)]
    assert [place[:2] for place in letters(f"{url}-dead")] == [(0, 2)]


def test_avro_with_apicurio_registry(kafka, url, registry):
    """Written by Confluent's own serialiser; the schema grows, and the log with it."""
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    topic = kafka.topic(cleanup_policy="compact")
    client = SchemaRegistryClient({"url": registry})
    fields = [{"name": "a", "type": "int"}]
    schemas = [fields, [*fields, {"name": "b", "type": ["null", "string"], "default": None}]]

    def sent(i, value):
        named = {"type": "record", "name": "Row", "fields": schemas[i]}
        serialize = AvroSerializer(client, json.dumps(named))
        data = serialize(value, SerializationContext(topic, MessageField.VALUE))
        kafka.produce(topic, [{"key": f"k{i}", "value": data}])

    decoding = Decoding(values="avro", keys="string", registry=registry)
    sent(0, {"a": 1})
    mirror(kafka.url(topic), url, MirrorSettings(once=True, decode=decoding))
    sent(1, {"a": 2, "b": "x"})
    mirror(kafka.url(topic), url, MirrorSettings(once=True, decode=decoding))
    assert typed_rows(url) == [(0, "k0", {"a": 1, "b": None}), (1, "k1", {"a": 2, "b": "x"})]


def test_another_record_before_the_position_is_told_in_columns_too(kafka, url, monkeypatch):
    """I3: clusters that were restored have the same ids, and other records."""
    topic = kafka.topic()
    kafka.produce(topic, [b'{"n": 1}'])
    mirror(kafka.url(topic), url, MirrorSettings(once=True, decode=JSON))
    from clog.bridge import target

    real = target._last_records

    def other(*given):
        found = real(*given)
        for columns in found.values():
            rows = columns.rows.set_column(1, "value", pa.array([b'{"n": 2}'], pa.binary()))
            object.__setattr__(columns, "rows", rows)
        return found

    monkeypatch.setattr(target, "_last_records", other)
    with pytest.raises(SourceError, match="differs from that in"):
        mirror(kafka.url(topic), url, MirrorSettings(once=True, decode=JSON))


def test_changes_of_debezium(kafka, url):
    """A table of a database, with deleted rows, read by a snapshot, and a schema that changes; the
    log's table is the database's. A truncate is a dead letter with a message.
    """
    topic = kafka.topic(cleanup_policy="delete")  # A compacted one takes no truncate.
    old, new = envelope("id", "name"), envelope("id", "name", "born")

    def sent(op, number, schema, after=None, before=None):
        return {"key": key(number), "value": change(op, after, before, schema=schema)}

    kafka.produce(
        topic,
        [
            sent("r", 1, old, {"id": 1, "name": "a"}),
            sent("c", 2, old, {"id": 2, "name": "b"}),
            sent("u", 2, old, {"id": 2, "name": "c"}, {"id": 2, "name": "b"}),
            sent("d", 1, old, None, {"id": 1, "name": "a"}),
            {"key": key(1), "value": None},
            sent("c", 3, new, {"id": 3, "name": "d", "born": 1}),
            {"key": None, "value": change("t", schema=new)},
        ],
    )
    dead = f"{url}-dead"
    options = {"config": {"cleanup.policy": "compact"}, "dead_letters": dead}
    done = mirror(
        kafka.url(topic), url, MirrorSettings(once=True, decode="debezium-json", **options)
    )
    assert done.topics[topic].dead_letters == 1
    assert "TRUNCATE" in letters(dead)[0][3]
    log = Log.open(url)
    table = {row["key"]["id"]: row["value"]["name"] for row in log.table().to_arrow().to_pylist()}
    assert table == {2: "c", 3: "d"}
    assert log.schema.field("value").type.names == ["id", "name", "born"]


def test_letters_are_played_again(kafka, url):
    """Once the mirror has ended: into the log, with a field that it lacked; or, while it runs, to
    the topic, from which they come again.
    """
    topic = kafka.topic(cleanup_policy="compact")
    dead = f"{url}-dead"
    kafka.produce(topic, [b'{"n": 1}', b'{"n": 2, "more": "x"}', b'{"n": 3}'])
    options = {"decode": JSON, "dead_letters": dead}
    mirror(kafka.url(topic), url, MirrorSettings(once=True, **options))
    with pytest.raises(InvalidInputError, match="mirrors a topic"):
        replay(dead, url, decode=JSON)
    log = Log.open(url)
    log.evolve(add={"value.more": pa.string()})
    assert send(dead, kafka.url(topic), once=True).records == 1
    mirror(kafka.url(topic), url, MirrorSettings(once=True, **options))
    assert typed_rows(url)[-1][1:] == ("k1", {"n": 2, "more": "x"})
    mirror(kafka.url(topic), url, MirrorSettings(end=True, **options))
    done = replay(dead, url, decode=JSON)
    assert (done.records, done.superseded) == (0, 1)


def test_each_record_comes_once_whatever_is_killed(kafka, url):
    """Eight rounds of kill -9, while records arrive: every good one is in the log, every bad one
    among the dead letters, once, at its offset.
    """
    topic = kafka.topic(2, cleanup_policy="delete")
    dead = f"{url}-dead"
    schema = f"{url}.json"
    Path(schema).write_text(json.dumps({"key": "string", "value": {"n": "int64"}}))
    command = [
        *(
            sys.executable,
            "-m",
            "clog_command",
            "mirror",
            kafka.url(topic),
            url,
            "--decode",
            "json",
        ),
        *("--decode-key", "string", "--schema", schema, "--dead-letters", dead),
    ]
    sent = 0
    for round_ in range(8):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ
        )
        end = time.monotonic() + 2 + round_ / 3
        while time.monotonic() < end:
            values = [b"x" if i % 7 == 3 else b'{"n": %d}' % i for i in range(sent, sent + 50)]
            records = [{"key": f"k{sent + i}", "value": v} for i, v in enumerate(values)]
            kafka.produce(topic, records, partition=round_ % 2)
            sent += 50
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    run(*command[3:], "--once")
    found = [v["n"] for p in range(2) for _, _, v in typed_rows(url, p)]
    assert sorted(found) == [i for i in range(sent) if i % 7 != 3]
    bad = letters(dead)
    assert len(bad) == len(set(bad)) == sum(i % 7 == 3 for i in range(sent))
    offsets = {(p, o) for p in range(2) for o, *_ in typed_rows(url, p)}
    assert not offsets & {(p, o) for p, o, *_ in bad}
    assert len(offsets) + len(bad) == sent


def test_on_the_command_line(kafka, url, tmp_path):
    """Decoded, with dead letters reported, and replayed into another log."""
    run, topic = Cli(), kafka.topic()
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"key": "string", "value": {"n": "int64"}}))
    kafka.produce(topic, [b'{"n": 1}', b'{"n": "2"}'])
    decode = ("--decode", "json", "--decode-key", "string")
    dead = ("--dead-letters", f"{url}-dead")
    done = run("mirror", kafka.url(topic), url, "--once", *decode, *dead, "--schema", str(schema))
    assert "written to the dead letters, because they cannot be decoded: 1" in done.stderr
    other = f"{url}-other"
    run("create", other, "--schema", str(schema))
    done = run("mirror", f"{url}-dead", other, "--replay", *decode)
    assert done.stdout == (f"appended 0 records of {url}-dead to {other}; 1 dead letter left\n")
    run("mirror", kafka.url(topic), url, "--envelope", code=2)
    run("mirror", kafka.url(topic), url, "--replay", code=2)
    run("mirror", kafka.url(topic), url, "--decode", "avro", code=2)
    run("mirror", kafka.url(topic), url, *dead, code=2)
