"""The way back: a log's records in a topic of a real broker, each once (H-B14 to H-B16)."""

import os
import shutil
import subprocess
import sys
import threading
import time

import pytest

from clog.bridge import MirrorSettings, mirror, send
from clog.cleaner import Cleaner
from clog.storage import Log
from clog.storage.errors import (
    InvalidInputError,
    NotFoundError,
    OffsetOutOfRangeError,
    TransactionFencedError,
)

pytestmark = pytest.mark.nightly

WAIT_S = 30


@pytest.fixture
def log(url):
    return Log.create(url, 2, {"cleanup.policy": "delete", "retention.ms": "unlimited"})


def records(start, count):
    numbers = range(start, start + count)
    return [{"key": f"k{i}", "value": f"v{i}", "timestamp": 1000 + i} for i in numbers]


def sent(kafka, topic, partition=0):
    """(the log's offset, key, value) of the topic's records."""
    kafka.until(lambda: kafka.extent(topic, partition)[1] == kafka.extent(topic, partition)[2])
    found = []
    for _, key, value, headers, _ in kafka.records(topic, partition):
        found.append((int(dict(headers)[b"clog.offset"]), key, value))
    return found


def there(kafka, url, partition=0):
    return [row[:3] for row in kafka.rows(url, partition)]


def test_a_log_becomes_a_topic(kafka, log, url):
    """H-B16: partitions, keys, values, headers, times; offsets are in a header. Again: nothing."""
    topic = kafka.topic(partitions=3, retention_ms=-1)
    log.append(records(0, 100))
    log.append([{"key": None, "value": b"", "headers": [("a", None), ("a", b"x")]}], 0)
    log.append([{"key": "t", "value": None}], 1)
    done = send(url, kafka.url(topic), once=True)
    assert (done.records, done.lag) == (102, 0)
    for p in range(2):
        assert sent(kafka, topic, p) == there(kafka, url, p)
        assert [row[4] for row in kafka.records(topic, p)] == [row[4] for row in kafka.rows(url, p)]
    *_, last = kafka.records(topic, 0)
    assert last[3][:2] == [(b"a", None), (b"a", b"x")]
    assert send(url, kafka.url(topic), once=True).records == 0
    log.append(records(100, 10))
    assert send(url, kafka.url(topic), once=True).records == 10
    for p in range(2):
        assert sent(kafka, topic, p) == there(kafka, url, p)


def test_there_and_back_again(kafka, url, tmp_path):
    """A mirrored log is sent while it is mirrored; moved times are the original ones again."""
    topic, back = kafka.topic(), kafka.topic(retention_ms=-1)
    odd = [("a", b"1")]
    kafka.produce(topic, [{"key": "a", "value": "1", "timestamp": -5, "headers": odd}, b"b"])
    kafka.transaction(topic, [b"x"], end="abort")
    kafka.until(lambda: kafka.extent(topic)[1] == 4)
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    send(url, kafka.url(back), once=True)
    assert len(sent(kafka, back)) == 2
    was, now = kafka.records(topic), kafka.records(back)
    assert [row[1:3] + row[4:] for row in was] == [row[1:3] + row[4:] for row in now]
    assert [row[3] for row in was] == [
        [(n, v) for n, v in row[3] if n[:5] != b"clog."] for row in now
    ]


def test_killed_anywhere_each_record_is_sent_once(kafka, log, url):
    """H-B14: eight rounds of SIGKILL while the log grows, then a run to the end."""
    topic = kafka.topic(partitions=2, retention_ms=-1)
    code = "import sys; from clog.bridge import send\nsend(sys.argv[1], sys.argv[2])\n"
    for i in range(8):
        process = subprocess.Popen([sys.executable, "-c", code, url, kafka.url(topic)])
        for j in range(5):
            log.append(records(1000 * i + 200 * j, 200))
        time.sleep(0.3 + 0.2 * i)
        process.kill()
        process.wait()
    send(url, kafka.url(topic), once=True)
    for p in range(2):
        assert sent(kafka, topic, p) == there(kafka, url, p)


def forget(kafka, log, topic):
    """As after offsets.retention.minutes."""
    group = f"clog-send-{log.id}-{topic}"
    kafka.admin.delete_consumer_groups([group])[group].result()


def told(kafka, log, topic):
    """By partition, the offset that Kafka has for the sending of a log."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    group = f"clog-send-{log.id}-{topic}"
    asked = kafka.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    return {tp.partition: tp.offset for tp in asked[group].result().topic_partitions}


def test_the_offsets_of_all_partitions_are_told_together(kafka, log, url):
    """H-B15: Kafka drops each by itself, even while others advance, and for an idle log."""
    topic = kafka.topic(partitions=2, retention_ms=-1)
    for p in range(2):
        log.append(records(0, 5), p)
    send(url, kafka.url(topic), once=True)
    for new in (0, 5):
        forget(kafka, log, topic)
        log.append(records(5, new), 1)
        assert send(url, kafka.url(topic), once=True).records == new
        assert told(kafka, log, topic) == {0: 5, 1: 5 + new}


def test_forgotten_offsets_are_told_by_the_topics_tail(kafka, log, url):
    """H-B15: the header of the last record; what follows are markers."""
    topic = kafka.topic(partitions=2, retention_ms=-1)
    log.append(records(0, 50))
    send(url, kafka.url(topic), once=True)
    forget(kafka, log, topic)
    log.append(records(50, 50))
    send(url, kafka.url(topic), once=True)
    for p in range(2):
        assert sent(kafka, topic, p) == there(kafka, url, p)


def test_forgotten_offsets_that_no_tail_tells_are_a_stop(kafka, log, url):
    """H-B15: the log's bound shows that something was sent; continuing there is a choice."""
    topic = kafka.topic(partitions=2, retention_ms=-1)
    log.append(records(0, 50))
    send(url, kafka.url(topic), once=True)
    forget(kafka, log, topic)
    for p in range(2):
        kafka.produce(topic, [b"another's"] * 2, p)
    log.append(records(50, 50))
    with pytest.raises(NotFoundError, match="has forgotten how far"):
        send(url, kafka.url(topic), once=True)
    assert send(url, kafka.url(topic), once=True, from_bound=True).records == 50


@pytest.mark.parametrize(
    ("offset", "key"),
    [(b"30", "k1"), (b"99999", "x"), (b"x", "x"), (None, "x"), (b"9" * 5000, "x")],
)
def test_headers_that_others_wrote_on_tell_nothing(kafka, log, url, offset, key):
    """H-B15: only a record that the log has at that offset shows how far it was sent."""
    topic = kafka.topic(partitions=2, retention_ms=-1)
    log.append(records(0, 20), 0)
    send(url, kafka.url(topic), once=True)
    forget(kafka, log, topic)
    headers = [("clog.log", log.id.encode()), ("clog.offset", offset)]
    kafka.produce(topic, [{"key": key, "value": "other", "headers": headers}])
    log.append(records(20, 20), 0)
    with pytest.raises(NotFoundError, match="its last records do not show it"):
        send(url, kafka.url(topic), once=True)
    assert send(url, kafka.url(topic), once=True, from_bound=True).records == 20


def ended_behind_two_partitions(kafka, log, url):
    """Sends a log of two partitions, and ends right after its second transaction; returns the
    topic.
    """
    topic = kafka.topic(partitions=2, retention_ms=-1)
    for p in range(2):
        log.append(records(0, 5), p)

    def end(done):
        if done.records == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        send(url, kafka.url(topic), once=True, on_progress=end)
    return topic


def test_a_partition_that_the_bound_does_not_know_yet_is_not_sent_twice(
    kafka, log, url, monkeypatch
):
    """H-B15: ended right after its second transaction, and dropped: also a stop."""
    monkeypatch.setattr("clog.bridge.sending.RECORDS_MAX", 5)
    topic = ended_behind_two_partitions(kafka, log, url)
    forget(kafka, log, topic)
    kafka.produce(topic, [b"other"], partition=1)
    with pytest.raises(NotFoundError, match="how far partition 1 of"):
        send(url, kafka.url(topic), once=True)


def test_a_partition_that_alone_is_forgotten_is_not_sent_twice(kafka, log, url, monkeypatch):
    """H-B15: another partition's offset shows that the log was sent: a stop, with the remedy."""
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    monkeypatch.setattr("clog.bridge.sending.RECORDS_MAX", 5)
    topic = ended_behind_two_partitions(kafka, log, url)
    group = f"clog-send-{log.id}-{topic}"
    reset = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 1, 0)])
    kafka.admin.alter_consumer_group_offsets([reset])[group].result()
    kafka.produce(topic, [b"other"], partition=1)
    with pytest.raises(NotFoundError, match=r"how far partition 1 of.*--from-bound"):
        send(url, kafka.url(topic), once=True)
    assert send(url, kafka.url(topic), once=True, from_bound=True).records == 5


def test_a_log_that_is_older_than_what_was_sent_is_a_stop(kafka, url, tmp_path):
    """A log that was restored from a copy continues at offsets that the topic already has."""
    log = Log.create(url, 1, {"cleanup.policy": "delete", "retention.ms": "unlimited"})
    topic, copy = kafka.topic(retention_ms=-1), tmp_path / "copy"
    log.append(records(0, 5))
    shutil.copytree(url, copy)
    log.append(records(5, 5))
    send(url, kafka.url(topic), once=True)
    shutil.rmtree(url)
    shutil.copytree(copy, url)
    with pytest.raises(OffsetOutOfRangeError, match="restore from a copy"):
        send(url, kafka.url(topic), once=True)


def test_a_topic_that_was_made_again_gets_everything(kafka, log, url):
    """Positions are in the topic that they name; the new one has nothing yet."""
    topic = kafka.topic(partitions=2, retention_ms=-1)
    log.append(records(0, 10))
    send(url, kafka.url(topic), once=True)
    kafka.delete(topic)
    kafka.topic(name=topic, partitions=2, retention_ms=-1)
    assert send(url, kafka.url(topic), once=True).records == 10


def test_a_record_that_the_topic_finds_too_large_is_told_as_that(kafka, log, url):
    """Neither the brokers nor retrying would help."""
    topic = kafka.topic(partitions=2, retention_ms=-1, max_message_bytes=1000)
    log.append([{"key": "k", "value": os.urandom(2000)}])
    with pytest.raises(InvalidInputError, match=r"max\.message\.bytes"):
        send(url, kafka.url(topic), once=True)
    kafka.alter(topic, max_message_bytes=100_000)
    assert send(url, kafka.url(topic), once=True).records == 1


@pytest.mark.parametrize(
    ("configs", "row", "told"),
    [
        (
            {"message_timestamp_before_max_ms": 1000},
            {"key": "k", "value": b"v", "timestamp": 1},
            r"offset 1 of partition 0 .*message\.timestamp\.before\.max\.ms=1000",
        ),
        (
            {"cleanup_policy": "compact"},
            {"key": None, "value": b"v"},
            r"offset 1 of partition 0 .*has no key",
        ),
    ],
    ids=["time", "key"],
)
def test_a_record_that_the_topic_refuses_is_named(kafka, url, configs, row, told):
    """With the limit; running it again would not help, but changing the topic does."""
    log = Log.create(url, 1, {"cleanup.policy": "delete", "retention.ms": -1})
    topic = kafka.topic(**{"retention_ms": -1} | configs)
    log.append([{"key": "k", "value": b"v"}, row, {"key": "k", "value": b"v"}])
    with pytest.raises(InvalidInputError, match=told):
        send(url, kafka.url(topic), once=True)
    kafka.alter(topic, cleanup_policy="delete", message_timestamp_before_max_ms=2**63 - 1)
    assert send(url, kafka.url(topic), once=True).records == 3


def test_what_was_removed_before_it_was_sent_is_a_stop(kafka, log, url):
    """By deleted records; and a tombstone that the cleaner removed."""
    topic = kafka.topic(partitions=2, retention_ms=-1)
    log.append(records(0, 10), 0)
    send(url, kafka.url(topic), once=True)
    log.append(records(10, 10), 0)
    log.delete_records({0: 15})
    with pytest.raises(OffsetOutOfRangeError, match="5 offsets of partition 0"):
        send(url, kafka.url(topic), once=True)
    assert send(url, kafka.url(topic), once=True, skip_purged=True).records == 5


def test_deletes_that_a_sender_misses_while_it_runs_are_a_stop(kafka, url):
    """S41: as those that it missed while it was stopped."""
    log = Log.create(url, 1, {"delete.retention.ms": 0, "min.cleanable.dirty.ratio": 0})
    topic = kafka.topic(retention_ms=-1)
    log.append([{"key": "a", "value": "1"}])

    def overtaken(_):
        if log.end_offsets() == {0: 1}:
            log.append([{"key": "a", "value": None}])
            log.append([{"key": "b", "value": "1"}])
            log.roll()
            for _ in range(3):
                Cleaner([log]).run_once(force=True)

    with pytest.raises(NotFoundError, match=r"missed deletes.*--skip-purged"):
        send(url, kafka.url(topic), on_progress=overtaken)


def test_missed_deletes_are_a_stop(kafka, url):
    """S41: a tombstone that the cleaner removed before it was sent."""
    log = Log.create(url, 1, {"delete.retention.ms": 0, "min.cleanable.dirty.ratio": 0})
    topic = kafka.topic(retention_ms=-1)
    log.append([{"key": "a", "value": "1"}])
    send(url, kafka.url(topic), once=True)
    log.append([{"key": "a", "value": None}])
    log.append([{"key": "b", "value": "1"}])
    log.roll()
    for _ in range(3):
        Cleaner([log]).run_once(force=True)
    assert there(kafka, url) == [(2, b"b", b"1")]
    with pytest.raises(NotFoundError, match=r"missed deletes.*--skip-purged"):
        send(url, kafka.url(topic), once=True)
    forget(kafka, log, topic)  # The tail does not say which version of the log was read.
    with pytest.raises(NotFoundError, match=r"missed deletes"):
        send(url, kafka.url(topic), once=True)


def test_a_second_sender_fences_the_first(kafka, log, url):
    """By Kafka's own epochs; no record is duplicated."""
    topic = kafka.topic(partitions=2, retention_ms=-1)
    log.append(records(0, 10))
    errors = []

    def first():
        try:
            send(url, kafka.url(topic))
        except Exception as e:
            errors.append(e)

    thread = threading.Thread(target=first, daemon=True)
    thread.start()
    kafka.until(lambda: len(kafka.records(topic)) > 0)
    send(url, kafka.url(topic), once=True)
    log.append(records(10, 10))
    thread.join(WAIT_S)
    send(url, kafka.url(topic), once=True)
    assert [type(e) for e in errors] == [TransactionFencedError]
    for p in range(2):
        assert sent(kafka, topic, p) == there(kafka, url, p)


def test_a_topic_with_fewer_partitions_and_a_log_of_columns_are_refused(kafka, log, url, tmp_path):
    """Before anything is sent."""
    import pyarrow as pa

    with pytest.raises(InvalidInputError, match=r"has 1 partitions, and .* has 2"):
        send(url, kafka.url(kafka.topic()))
    typed = Log.create(str(tmp_path / "typed"), schema={"key": pa.string(), "value": pa.int64()})
    with pytest.raises(InvalidInputError, match="has columns"):
        send(typed.url, kafka.url(kafka.topic()))
