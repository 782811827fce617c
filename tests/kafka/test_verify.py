"""A log and its topic, compared between two independent cleaners (H-B18)."""

import json
import subprocess
import sys
import time

import pytest
from tests.kafka.topics import COMPACTED, JSON, SCHEMA

from clog.bridge import Decoding, MirrorSettings, mirror, verify
from clog.bridge.decoding import letter_offsets
from clog.bridge.topic import Cluster
from clog.cleaner import Cleaner
from clog.storage import Log
from clog.storage.errors import (
    InvalidInputError,
    SourceReplacedError,
    SourceUndecodableError,
)

pytestmark = pytest.mark.nightly


def upserts(kafka, topic, rounds):
    for i in range(rounds):
        records = [{"key": f"k{j}", "value": f"{i}"} for j in range(8)]
        kafka.produce(topic, [*records, {"key": f"gone{i}", "value": "x"}])
        kafka.produce(topic, [{"key": f"gone{i}", "value": None}])
        time.sleep(0.2)


def clean(url):
    log = Log.open(url)
    log.alter({"min.cleanable.dirty.ratio": 0.01, "delete.retention.ms": 0})
    log.roll()
    for _ in range(3):
        Cleaner([log]).run_once(force=True)


def test_nothing_differs_whichever_cleaner_ran(kafka, url):
    """Neither, only the log's, both; the numbers say which has what alone."""
    topic = kafka.topic(**COMPACTED)
    upserts(kafka, topic, 2)
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    first = verify(kafka.url(topic), url)
    assert not first.differences
    assert first.keys == 8
    clean(url)
    found = verify(kafka.url(topic), url)
    assert not found.differences
    assert found.only_topic >= first.only_topic
    upserts(kafka, topic, 2)
    kafka.until(lambda: len(kafka.records(topic)) < 30)
    mirror(kafka.url(topic), url, MirrorSettings(once=True, reconcile=True))
    found = verify(kafka.url(topic), url)
    assert not found.differences
    assert found.keys == 8


def test_what_comes_after_the_logs_end_is_not_compared(kafka, url):
    """Nor what either has deleted by its log start offset."""
    topic = kafka.topic()
    kafka.produce(topic, [b"a", b"b", b"c"])
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    kafka.produce(topic, [b"d"])
    kafka.delete_records(topic, 1)
    Log.open(url).delete_records({0: 2})
    found = verify(kafka.url(topic), url)
    assert (found.differences, found.same, found.ends) == ((), 1, {0: 3})


def forged(kafka, topic, url, rows, **settings):
    """A log that claims to mirror the topic, with these records: (offset, key, value)."""
    source = Cluster(kafka.address, {}).topic(topic).source
    end = kafka.extent(topic)[1]
    config = {"cleanup.policy": "compact"}
    log = Log.create(url, 1, config, features=["given-offsets"], **settings)
    times = {row[0]: row[4] for row in kafka.records(topic)}
    with log.transaction("clog-mirror") as t:
        t.cover({0: end})
        records = [{"key": k, "value": v, "timestamp": times.get(o)} for o, k, v in rows]
        t.append(records, 0, offsets=[row[0] for row in rows])
        t.positions(source, {0: (end, "0")})


A, B, A2 = (0, "a", "1"), (1, "b", "1"), (2, "a", "2")


@pytest.mark.parametrize(
    ("rows", "offset", "why"),
    [
        ([A, (1, "b", "x"), A2], 1, "is a different record"),
        ([A, (1, "b", None), A2], 1, "is a different record"),
        ([A, A2], 1, "is only in the topic"),
        ([A, B], 2, "is only in the topic"),
        ([A, B, A2, (3, "c", "1")], 3, "is only in the log"),
        ([A, B, A2, (3, "b", None)], 1, "is the last value of its key only in the topic"),
    ],
)
def test_each_difference_is_found(kafka, url, rows, offset, why):
    """H-B18: a changed value, a lost one, a lost newest, an extra one, a delete that did not
    happen.
    """
    topic = kafka.topic(cleanup_policy="compact")
    kafka.produce(topic, [{"key": k, "value": v} for _, k, v in (A, B, A2)])
    kafka.transaction(topic, [b"aborted"], end="abort")
    kafka.until(lambda: kafka.extent(topic)[1] == 5)
    forged(kafka, topic, url, rows)
    differences = verify(kafka.url(topic), url).differences
    told = {one.offset: one.why for one in differences}
    # Where the newest is lost, the one before it is the last in the log alone.
    assert told.keys() == ({0, 2} if offset == 2 else {offset})
    assert told[offset].startswith(why)


def test_a_superseded_record_that_only_one_has_is_none(kafka, url):
    """As a cleaner leaves it."""
    topic = kafka.topic(cleanup_policy="compact")
    kafka.produce(topic, [{"key": k, "value": v} for k, v in (("a", "1"), ("b", "1"), ("a", "2"))])
    forged(kafka, topic, url, [(1, "b", "1"), (2, "a", "2")])
    found = verify(kafka.url(topic), url)
    assert (found.differences, found.same, found.only_topic) == ((), 2, 1)


def test_columns_are_compared_as_the_mirror_decodes_them(kafka, url):
    """Whatever cleaners leave; what does not decode is a gap, is among the dead letters, and in the
    topic it supersedes the value that the log's table shows. The log does not evolve.
    """
    topic = kafka.topic(cleanup_policy="compact")
    for values in ([b'{"n": 1}', b'{"n": 2}', b"{"], [b"{", None, b'{"n": 3}']):
        kafka.produce(topic, values)
    source = Cluster(kafka.address, {}).topic(topic).source
    options = {"decode": JSON, "dead_letters": f"{url}-dead"}
    mirror(kafka.url(topic), url, MirrorSettings(once=True, **options))
    first = verify(kafka.url(topic), url, **options)
    assert (first.differences, first.same, first.undecodable) == ((), 4, 2)
    assert letter_offsets(Log.open(f"{url}-dead"), source, 0) == [2, 3]
    kafka.alter(topic, **COMPACTED)
    kafka.produce(topic, [{"key": "last", "value": b'{"n": 4}'}])
    time.sleep(0.2)
    kafka.produce(topic, [{"key": "last", "value": b'{"n": 5}'}])
    # Offset 0 is superseded in the topic, by one that does not decode, and not in the log.
    kafka.until(lambda: kafka.records(topic)[0][0] == 3)
    found = verify(kafka.url(topic), url, **options)
    assert (found.differences, found.undecodable, found.keys) == ((), 1, 1)
    assert Log.open(url).table().get("k0") == {"n": 1}
    clean(url)
    assert not verify(kafka.url(topic), url, **options).differences


def test_a_comparison_does_not_let_the_log_evolve(kafka, url):
    """Decoded differently from its mirror, with other columns, it is refused."""
    topic = kafka.topic()
    field = {"field": "n", "type": "int64", "optional": True}
    documents = [
        json.dumps({"schema": {"type": "struct", "fields": fields}, "payload": {"n": 1}}).encode()
        for fields in ([field], [field, {**field, "field": "m"}])
    ]
    kafka.produce(topic, documents[:1])
    decoding = Decoding(values="connect-json", keys="string")
    mirror(kafka.url(topic), url, MirrorSettings(once=True, decode=decoding))
    assert verify(kafka.url(topic), url, decode=decoding).same == 1
    other = Decoding(values=lambda data, kind: {"n": 1}, keys="connect-json")
    assert verify(kafka.url(topic), url, decode=other).undecodable == 1
    kafka.produce(topic, documents[1:])
    kafka.until(lambda: kafka.extent(topic)[1] == 2)
    source = Cluster(kafka.address, {}).topic(topic).source
    log = Log.open(url)
    with log.transaction("clog-mirror") as t:
        t.cover({0: 2})
        t.positions(source, {0: (2, "0")})
    with pytest.raises(SourceUndecodableError, match="decode them as its mirror does"):
        verify(kafka.url(topic), url, decode=decoding)
    assert Log.open(url).schema.field("value").type.names == ["n"]


@pytest.mark.parametrize(
    ("rows", "offset", "why"),
    [
        ([(0, "k0", {"n": 1}), (2, "k2", {"n": 4})], 2, "is a different record"),
        ([(0, "k0", {"n": 1}), (2, "k2", None)], 2, "is a different record"),
        ([(0, "k0", {"n": 1})], 2, "is only in the topic"),
        (
            [(0, "k0", {"n": 1}), (1, "k1", {"n": 2}), (2, "k2", {"n": 3})],
            1,
            "cannot be decoded in the topic, but is a record of the log",
        ),
        (
            [(0, "k0", {"n": 1}), (2, "k2", {"n": 3})],
            1,
            "cannot be decoded, but is not among the dead letters",
        ),
    ],
)
def test_each_difference_of_columns_is_found(kafka, url, rows, offset, why):
    """A changed value, a delete that did not happen, a lost one, an extra one, a lost letter."""
    topic = kafka.topic(cleanup_policy="compact")
    kafka.produce(topic, [b'{"n": 1}', b"{", b'{"n": 3}'])
    forged(kafka, topic, url, rows, schema=SCHEMA)
    Log.create(f"{url}-dead", 1, {"cleanup.policy": ""})
    dead = f"{url}-dead" if "letters" in why else None
    found = verify(kafka.url(topic), url, decode=JSON, dead_letters=dead)
    told = {one.offset: one.why for one in found.differences}
    assert told.keys() == {offset}
    assert told[offset].startswith(why)


def test_another_topic_and_no_mirror_are_refused(kafka, url):
    """Before anything is read."""
    topic = kafka.topic()
    Log.create(url)
    with pytest.raises(InvalidInputError, match="is not a mirror"):
        verify(kafka.url(topic), url)
    other = url + "-2"
    mirror(kafka.url(topic), other, MirrorSettings(once=True))
    with pytest.raises(SourceReplacedError):
        verify(kafka.url(kafka.topic()), other)


def test_in_a_shell_differences_fail(kafka, url):
    """Exit code 1, a line for each; 0 if there are none."""
    topic = kafka.topic(cleanup_policy="compact")
    kafka.produce(topic, [{"key": "a", "value": "1"}, {"key": "b", "value": "1"}])
    forged(kafka, topic, url, [(0, "a", "1"), (1, "b", "2")])
    command = [sys.executable, "-m", "clog_command", "mirror", kafka.url(topic), url, "--verify"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert (
        "offset 1 of partition 0 is a different record in the topic than in the log" in done.stdout
    )
