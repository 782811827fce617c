"""Topics of a real broker, mirrored: same records at the same offsets, each once; and whatever goes
wrong at the source is a stop of its own (hazards H-B1 to H-B21 of the bridge).
"""

import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from clog.bridge import Decoding, MirrorSettings, mirror, mirroring
from clog.bridge.target import Target
from clog.bridge.topic import OPTIONS, Gathered, Topic
from clog.storage import Log
from clog.storage.errors import (
    InvalidInputError,
    NotFoundError,
    SourceDamagedError,
    SourceError,
    SourcePartitionsError,
    SourcePurgedError,
    SourceReplacedError,
    SourceTruncatedError,
    TransactionFencedError,
)
from clog.storage.store import open_store
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore

pytestmark = pytest.mark.nightly

WAIT_S = 30


def now_ms():
    return time.time_ns() // 1_000_000


class Following:
    """A mirror that follows in a separate thread, until it is stopped."""

    def __init__(self, source, url, **options):
        self._stop = threading.Event()
        self.error = None
        self.told = None
        self._thread = threading.Thread(target=self._run, args=(source, url), kwargs=options)
        self._thread.start()

    def _run(self, source, url, **options):
        try:
            self.told = mirror(
                *(source, url),
                MirrorSettings(
                    interval_ms=50,
                    should_stop=self._stop.is_set,
                    on_progress=lambda told: setattr(self, "told", told),
                    **options,
                ),
            )
        except Exception as e:
            self.error = e

    def end(self):
        """Waits until it has stopped by itself, and returns its error."""
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "it goes on"
        return self.error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(WAIT_S)


def ends(url):
    """The end offsets of a log, or None before it exists."""
    try:
        return Log.open(url).end_offsets()
    except NotFoundError:
        return None


def test_a_topic_becomes_a_log_with_the_same_offsets(kafka, url):
    """Keys, values, headers, timestamps and partitions; the second time there is nothing to do."""
    topic = kafka.topic(partitions=3)
    odd = [("a", None), ("a", b""), ("", b"\xff\xfe"), ("é", b"x")]
    kafka.produce(topic, [{"key": None, "value": b"v", "headers": odd}, {"key": b"", "value": b""}])
    kafka.produce(topic, [{"key": b"\xff", "value": None, "timestamp": now_ms() - 5}], 1)
    done = mirror(kafka.url(topic), url, MirrorSettings(once=True))
    for p in range(3):
        assert kafka.rows(url, p) == kafka.records(topic, p)
    assert done.records == 3
    assert done.lag == 0
    assert done.logs == {url: Log.open(url).version}
    assert Log.open(url).config["partitioner"] == "murmur2"
    again = mirror(kafka.url(topic), url, MirrorSettings(once=True))
    assert (again.records, Log.open(url).end_offsets()) == (0, {0: 2, 1: 1, 2: 0})


def test_what_comes_later_is_appended(kafka, url):
    """Run by run, and in one that follows (including what is written meanwhile)."""
    topic = kafka.topic()
    kafka.many(topic, 100)
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    kafka.many(topic, 50, start=100)
    with Following(kafka.url(topic), url):
        kafka.until(lambda: ends(url) == {0: 150})
        kafka.many(topic, 50, start=150)
        kafka.until(lambda: ends(url) == {0: 200})
    assert kafka.rows(url) == kafka.records(topic)


def test_once_ends_at_the_end_of_now(kafka, url):
    """Records that arrive while it runs are for the next run, so that it ends."""
    topic = kafka.topic()
    kafka.many(topic, 2000)
    stop = threading.Event()

    def write_on():
        while not stop.is_set():
            kafka.many(topic, 500)

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        done = mirror(kafka.url(topic), url, MirrorSettings(once=True))
    finally:
        stop.set()
        writer.join()
    (told,) = done.topics.values()
    assert told.offsets == told.ends == ends(url)
    assert 2000 <= ends(url)[0] < kafka.extent(topic)[1]
    assert mirror(kafka.url(topic), url, MirrorSettings(once=True)).lag == 0
    assert kafka.rows(url) == kafka.records(topic)


def test_a_recreated_topic_with_more_records_stops_a_mirror_that_was_stopped(kafka, url):
    """H-B1: offsets and leader epochs are as before, the topic's id is not; nothing is taken."""
    topic = kafka.topic()
    kafka.produce(topic, [b"a", b"b", b"c"])
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    before = kafka.rows(url)
    kafka.delete(topic)
    kafka.topic(name=topic)
    kafka.produce(topic, [b"x"] * 9)
    with pytest.raises(SourceReplacedError, match="is not the topic that"):
        mirror(kafka.url(topic), url, MirrorSettings(once=True))
    assert kafka.rows(url) == before


def test_a_topic_recreated_under_a_running_mirror_stops_it(kafka, url):
    """H-B1: librdkafka silently continues at 5 of the new topic."""
    topic = kafka.topic()
    kafka.produce(topic, [b"a", b"b", b"c", b"d", b"e"])
    with Following(kafka.url(topic), url) as following:
        kafka.until(lambda: ends(url) == {0: 5})
        kafka.delete(topic)
        kafka.topic(name=topic)
        kafka.produce(topic, [b"x"] * 9)
        error = following.end()
    assert isinstance(error, SourceReplacedError)
    assert [row[2] for row in kafka.rows(url)] == [b"a", b"b", b"c", b"d", b"e"]


def test_a_deleted_topic_stops_a_running_mirror(kafka, url):
    """H-B1: librdkafka reports nothing; the topic is checked every few seconds."""
    topic = kafka.topic()
    kafka.produce(topic, [b"a"])
    with Following(kafka.url(topic), url) as following:
        kafka.until(lambda: ends(url) == {0: 1})
        kafka.delete(topic)
        error = following.end()
    assert isinstance(error, SourceReplacedError)
    assert "was deleted" in str(error)


def test_a_topic_whose_end_was_cut_off_stops_the_mirror(kafka, url):
    """H-B2: a broker lost what it had not synced (10 to 6), and has written 8 others since."""
    topic = kafka.topic()
    kafka.produce(topic, [f"old {i}".encode() for i in range(10)])
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    kafka.stop(hard=True)
    segment = kafka.data(topic) / "00000000000000000000.log"
    (cut,) = (at for at, base, _ in kafka.batches(segment) if base == 6)
    with segment.open("r+b") as file:
        file.truncate(cut)
    kafka.start()
    kafka.produce(topic, [f"new {i}".encode() for i in range(8)])
    assert kafka.extent(topic)[1] == 14
    with pytest.raises(SourceTruncatedError, match="up to offset 10"):
        mirror(kafka.url(topic), url, MirrorSettings(once=True))
    assert ends(url) == {0: 10}


def test_markers_in_a_later_epoch_are_no_truncation(kafka, url):
    """H-B2, H-B4: after the last record are markers of another leader epoch; the position has the
    epoch of what is before it, not that of the last record.
    """
    topic = kafka.topic()
    kafka.produce(topic, [b"a", b"b"])
    kafka.stop()
    kafka.start()
    kafka.transaction(topic, [b"x", b"y"], end="abort")
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    assert ends(url) == {0: 5}
    kafka.produce(topic, [b"c"])
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    assert [row[:3] for row in kafka.rows(url)] == [
        (0, b"k0", b"a"),
        (1, b"k1", b"b"),
        (5, b"k0", b"c"),
    ]


def test_what_was_purged_while_it_was_stopped_is_a_stop_or_is_passed_over(kafka, url):
    """H-B3: never silently; the gap has no records, and the offsets continue."""
    topic = kafka.topic()
    kafka.produce(topic, [b"a", b"b"])
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    kafka.produce(topic, [b"c", b"d", b"e"])
    kafka.delete_records(topic, 4)
    with pytest.raises(SourcePurgedError, match="2 offsets of partition 0"):
        mirror(kafka.url(topic), url, MirrorSettings(once=True))
    assert ends(url) == {0: 2}
    mirror(kafka.url(topic), url, MirrorSettings(once=True, skip_purged=True))
    assert [row[0] for row in kafka.rows(url)] == [0, 1, 4]
    assert ends(url) == {0: 5}


def test_a_first_mirror_begins_at_the_start_of_the_topic(kafka, url):
    """H-B3, H-B10: what was gone before is not lost; the log starts where the topic does."""
    topic = kafka.topic(partitions=2)
    kafka.produce(topic, [b"a", b"b", b"c"])
    kafka.produce(topic, [b"a", b"b", b"c"], 1)
    kafka.delete_records(topic, 2)
    kafka.delete_records(topic, 3, 1)
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    log = Log.open(url)
    assert log.start_offsets() == {0: 2, 1: 3}
    assert log.end_offsets() == {0: 3, 1: 3}
    kafka.produce(topic, [b"d"], 1)
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    assert kafka.rows(url, 1) == kafka.records(topic, 1)


def test_a_purge_that_empties_a_partition_is_covered(kafka, url):
    """H-B10: start and end at an offset that no record has, in a log that had records."""
    topic = kafka.topic()
    kafka.produce(topic, [b"a", b"b", b"c"])
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    kafka.delete_records(topic, 3)
    mirror(kafka.url(topic), url, MirrorSettings(once=True, follow_start=True))
    log = Log.open(url)
    assert (log.start_offsets(), log.end_offsets()) == ({0: 3}, {0: 3})
    assert kafka.rows(url) == []


def test_markers_and_aborted_records_are_covered(kafka, url):
    """H-B4: 16 offsets, of which 6 have records: the log ends at 16, and its lag is 0."""
    topic = kafka.topic()
    for end in ("commit", "abort", "commit", "abort"):
        kafka.transaction(topic, [b"1", b"2", b"3"], end=end)
    kafka.until(lambda: kafka.extent(topic)[1] == 16)
    done = mirror(kafka.url(topic), url, MirrorSettings(once=True))
    assert [row[0] for row in kafka.rows(url)] == [0, 1, 2, 8, 9, 10]
    assert ends(url) == {0: 16}
    assert done.lag == 0


def test_only_aborted_records_are_covered(kafka, url):
    """H-B4: no record ever comes, and the end is the topic's."""
    topic = kafka.topic()
    kafka.transaction(topic, [b"1", b"2"], end="abort")
    kafka.until(lambda: kafka.extent(topic)[1] == 3)
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    assert (ends(url), kafka.rows(url)) == ({0: 3}, [])


def test_a_hung_transaction_does_not_hold_a_run_up(kafka, url):
    """H-B5: the current end is the last stable offset; what waits after it is reported."""
    topic = kafka.topic()
    kafka.produce(topic, [b"a", b"b"])
    producer = kafka.transaction(topic, [b"x", b"y"], end="hang")
    kafka.produce(topic, [b"c"])
    done = mirror(kafka.url(topic), url, MirrorSettings(once=True))
    (told,) = done.topics.values()
    assert (ends(url), told.undecided, told.lag) == ({0: 2}, {0: 3}, 0)
    producer.abort_transaction()
    kafka.until(lambda: kafka.extent(topic)[1] == 6)
    done = mirror(kafka.url(topic), url, MirrorSettings(once=True))
    assert [row[2] for row in kafka.rows(url)] == [b"a", b"b", b"c"]
    assert ends(url) == {0: 6}


def test_times_that_a_log_cannot_hold_are_moved_and_kept_in_a_header(kafka, url):
    """H-B11: −5 and −1 under CreateTime."""
    topic = kafka.topic(retention_ms=-1)  # Else the broker may have removed what is so old.
    kafka.produce(topic, [{"key": "a", "value": "1", "timestamp": ms} for ms in (5, -5, -1)])
    done = mirror(kafka.url(topic), url, MirrorSettings(once=True))
    (told,) = done.topics.values()
    assert [row[4] for row in kafka.rows(url)] == [5, 0, 0]
    assert told.clamped == 2
    assert [row[3] for row in kafka.rows(url)][1:] == [
        [(b"clog.mirror.timestamp", b"-5")],
        [(b"clog.mirror.timestamp", b"-1")],
    ]


def test_old_times_are_taken_whatever_the_log_asks_of_others(kafka, url):
    """H-B11: ``message.timestamp.before.max.ms`` is for producers, not for a mirror."""
    topic = kafka.topic(retention_ms=-1)
    kafka.produce(topic, [{"key": "a", "value": "1", "timestamp": 1}])
    kafka.alter(topic, message_timestamp_before_max_ms=1000, max_message_bytes=30)
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    assert [row[4] for row in kafka.rows(url)] == [1]
    assert Log.open(url).config["message.timestamp.before.max.ms"] == "1000"


def test_the_brokers_times_are_kept(kafka, url):
    """H-B12: under LogAppendTime records keep the times that the broker set."""
    topic = kafka.topic(message_timestamp_type="LogAppendTime")
    kafka.produce(topic, [b"a"])
    time.sleep(0.01)
    kafka.produce(topic, [b"b"])
    done = mirror(kafka.url(topic), url, MirrorSettings(once=True))
    (told,) = done.topics.values()
    assert kafka.rows(url) == kafka.records(topic)
    assert Log.open(url).config["message.timestamp.type"] == "CreateTime"
    assert "message.timestamp.type" in told.configs_left


def test_null_keys_under_compact_are_left_out_and_counted(kafka, url):
    """H-B13: for a topic that was delete when they were written."""
    topic = kafka.topic()
    kafka.produce(topic, [b"a", {"key": None, "value": b"x"}, b"b", {"key": None, "value": b"y"}])
    kafka.alter(topic, cleanup_policy="compact")
    done = mirror(kafka.url(topic), url, MirrorSettings(once=True))
    (told,) = done.topics.values()
    assert (told.records, told.keyless) == (2, 2)
    assert [row[0] for row in kafka.rows(url)] == [0, 2]
    assert ends(url) == {0: 4}


def test_null_keys_are_kept_where_nothing_is_compacted(kafka, url):
    """H-B13: a topic is delete unless it says otherwise, and so is its log."""
    topic = kafka.topic()
    kafka.produce(topic, [{"key": None, "value": b"x"}])
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    assert [row[1] for row in kafka.rows(url)] == [None]
    assert Log.open(url).config["cleanup.policy"] == "delete"


def test_configs_are_taken_over_and_the_others_listed(kafka, url):
    """What has a counterpart; what the user gives takes precedence."""
    topic = kafka.topic(
        cleanup_policy="compact,delete",
        retention_ms=86_400_000,
        min_compaction_lag_ms=5,
        compression_type="gzip",
        min_insync_replicas=1,
        flush_messages=7,
    )
    done = mirror(kafka.url(topic), url, MirrorSettings(once=True, config={"retention.ms": "2d"}))
    (told,) = done.topics.values()
    config = Log.open(url).config
    assert config["cleanup.policy"] == "compact,delete"
    assert config["retention.ms"] == str(2 * 86_400_000)
    assert config["min.compaction.lag.ms"] == "5"
    assert set(told.configs_left) == {"compression.type", "flush.messages", "min.insync.replicas"}


def test_added_partitions_stop_a_running_mirror(kafka, url):
    """H-B17: keys go to other partitions from then on; the log cannot have more."""
    from confluent_kafka.admin import NewPartitions

    topic = kafka.topic()
    kafka.produce(topic, [b"a"])
    with Following(kafka.url(topic), url) as following:
        kafka.until(lambda: ends(url) == {0: 1})
        kafka.admin.create_partitions([NewPartitions(topic, 3)])[topic].result()
        error = following.end()
    assert isinstance(error, SourcePartitionsError)
    with pytest.raises(SourcePartitionsError, match="has 3 partitions"):
        mirror(kafka.url(topic), url, MirrorSettings(once=True))


def test_added_partitions_find_the_room_they_were_given(kafka, url):
    """H-B17: a log with more partitions than the topic continues with those that are added."""
    from confluent_kafka.admin import NewPartitions

    topic = kafka.topic()
    kafka.produce(topic, [b"a"])
    with Following(kafka.url(topic), url, partitions=4):
        kafka.until(lambda: ends(url) == {0: 1, 1: 0, 2: 0, 3: 0})
        kafka.admin.create_partitions([NewPartitions(topic, 3)])[topic].result()
        kafka.until(lambda: len(kafka.admin.list_topics(topic).topics[topic].partitions) == 3)
        kafka.produce(topic, [b"b", b"c"], 2)
        kafka.until(lambda: ends(url) == {0: 1, 1: 0, 2: 2, 3: 0})
    assert mirror(kafka.url(topic), url, MirrorSettings(once=True)).lag == 0


def test_what_a_compacted_topic_lost_is_no_gap_to_stop_at(kafka, url):
    """F2: 32 offsets, of which the source's cleaner left some; the end is the topic's."""
    topic = kafka.topic(
        cleanup_policy="compact",
        min_cleanable_dirty_ratio=0.01,
        segment_ms=100,
        delete_retention_ms=0,
    )
    for i in range(4):
        kafka.produce(topic, [{"key": f"k{j}", "value": f"{i}"} for j in range(8)])
        time.sleep(0.2)
    kafka.produce(topic, [{"key": "last", "value": "x"}])
    kafka.until(lambda: len(kafka.records(topic)) < 20)
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    assert ends(url) == {0: 33}
    table = {row["key"]: row["value"] for row in Log.open(url).table().to_arrow().to_pylist()}
    assert table == {row[1]: row[2] for row in kafka.records(topic)}


def test_a_damaged_file_at_the_source_is_a_stop_behind_what_could_be_read(kafka, url):
    """F4: the broker fails again and again at one offset; nothing is skipped."""
    topic = kafka.topic()
    kafka.produce(topic, [f"value {i}".encode() for i in range(20)])
    segment = kafka.data(topic) / "00000000000000000000.log"
    at, size = next((at, size) for at, base, size in kafka.batches(segment) if base == 10)
    with segment.open("r+b") as file:
        file.seek(at + size - 3)
        file.write(b"!!!")
    with pytest.raises(SourceDamagedError, match="offset 10"):
        mirror(kafka.url(topic), url, MirrorSettings(once=True))
    assert ends(url) == {0: 10}
    kafka.delete_records(topic, 11)
    mirror(kafka.url(topic), url, MirrorSettings(once=True, skip_purged=True))
    assert [row[0] for row in kafka.rows(url)] == [*range(10), *range(11, 20)]


def test_another_record_under_the_same_ids_is_a_stop(kafka, url):
    """H-B21: a cluster restored from a copy; what is before the position is compared."""
    topic = kafka.topic()
    kafka.produce(topic, [b"a", b"b"])
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    kafka.stop(hard=True)
    segment = kafka.data(topic) / "00000000000000000000.log"
    (cut,) = (at for at, base, _ in kafka.batches(segment) if base == 1)
    epochs = kafka.data(topic) / "leader-epoch-checkpoint"
    with segment.open("r+b") as file:
        file.truncate(cut)
    kafka.start()
    kafka.produce(topic, [b"other"])
    kafka.stop(hard=True)
    epochs.write_text("0\n1\n0 0\n")
    kafka.start()
    with pytest.raises((SourceReplacedError, SourceTruncatedError)):
        mirror(kafka.url(topic), url, MirrorSettings(once=True))


def test_log_starts_follow_only_if_they_are_asked_to(kafka, url):
    """H-B19: records deleted at the source stay, unless ``follow_start``."""
    topic = kafka.topic()
    kafka.produce(topic, [b"a", b"b", b"c"])
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    kafka.delete_records(topic, 2)
    kafka.produce(topic, [b"d"])
    done = mirror(kafka.url(topic), url, MirrorSettings(once=True))
    (told,) = done.topics.values()
    assert (Log.open(url).start_offsets(), told.starts) == ({0: 0}, {0: 2})
    kafka.produce(topic, [b"e"])
    mirror(kafka.url(topic), url, MirrorSettings(once=True, follow_start=True))
    assert Log.open(url).start_offsets() == {0: 2}


def test_several_topics_by_pattern(kafka, tmp_path):
    """Each has its log; one that stops does not stop the others, and is reported at the end."""
    name = f"many-{time.time_ns()}"
    names = [kafka.topic(name=f"{name}-{i}") for i in range(3)]
    for i, topic in enumerate(names):
        kafka.produce(topic, [b"a"] * (i + 1))
    done = mirror(kafka.url(f"{name}-*"), str(tmp_path), MirrorSettings(once=True))
    assert sorted(done.topics) == names
    assert done.logs == {
        str(tmp_path / topic): Log.open(str(tmp_path / topic)).version for topic in names
    }
    kafka.delete(names[1])
    kafka.topic(name=names[1])
    kafka.produce(names[2], [b"b"])
    with pytest.raises(SourceReplacedError, match=names[1]):
        mirror(kafka.url(f"{name}-*"), str(tmp_path), MirrorSettings(once=True))
    assert ends(str(tmp_path / names[2])) == {0: 4}


def test_topics_that_are_made_later_are_found_by_their_pattern(kafka, tmp_path):
    """A following mirror looks every few seconds."""
    name = f"later-{time.time_ns()}"
    kafka.produce(kafka.topic(name=f"{name}-0"), [b"a"])
    with Following(kafka.url(f"{name}-*"), str(tmp_path)):
        kafka.until(lambda: ends(str(tmp_path / f"{name}-0")) == {0: 1})
        kafka.produce(kafka.topic(name=f"{name}-1"), [b"a", b"b"])
        kafka.until(lambda: ends(str(tmp_path / f"{name}-1")) == {0: 2})


@pytest.mark.parametrize("kind", [FaultKind.FAIL_AFTER, FaultKind.CONFLICT])
def test_a_lost_reply_or_a_lost_race_commits_once(kafka, tmp_path, kind):
    """H-B20: any commit of a run may have a lost reply: the transaction recognizes its own."""
    topic = kafka.topic()
    kafka.transaction(topic, [b"a", b"b"])
    kafka.until(lambda: kafka.extent(topic)[1] == 3)
    for nth in range(1, 5):
        url = str(tmp_path / str(nth))
        store = FaultyStore(open_store(url), Faults(Fault(kind, "create", "*commits/*", nth=nth)))
        mirror(kafka.url(topic), store, MirrorSettings(once=True))
        assert kafka.rows(url) == kafka.records(topic)
        assert ends(url) == {0: 3}
        assert mirror(kafka.url(topic), url, MirrorSettings(once=True)).records == 0


def test_a_second_mirror_fences_the_first(kafka, url):
    """S48: of two running ones, the later has the log; no record is duplicated."""
    topic = kafka.topic()
    kafka.produce(topic, [b"a"])
    with Following(kafka.url(topic), url) as first:
        kafka.until(lambda: ends(url) == {0: 1})
        with Following(kafka.url(topic), url) as second:
            kafka.until(lambda: second.told is not None)
            kafka.produce(topic, [b"b", b"c"])
            assert isinstance(first.end(), TransactionFencedError)
            assert "another mirror" in str(first.error)
            kafka.until(lambda: ends(url) == {0: 3})
    assert second.error is None
    assert kafka.rows(url) == kafka.records(topic)


@pytest.mark.parametrize("made", ["log", "letters"])
def test_of_two_first_starts_at_once_the_later_one_goes_on(kafka, tmp_path, monkeypatch, made):
    """I1: a mirror that finds that a log was made since it looked continues it, as if it had come
    second.
    """
    topic, urls = kafka.topic(2), {name: str(tmp_path / name) for name in ("log", "letters")}
    kafka.produce(topic, [b'{"n": 1}', b"{"])
    schema = {"key": pa.string(), "value": pa.struct([("n", pa.int64())])}
    decode = Decoding(values="json", keys="string", schema=schema)
    create, first = Log.create, []

    def start():
        source, letters = kafka.url(topic), urls["letters"]
        return mirror(
            source, urls["log"], MirrorSettings(once=True, decode=decode, dead_letters=letters)
        )

    def late(url, *given, **named):
        if url == urls[made] and not first:
            first.append(None)  # The one that is first makes its logs, too.
            first.append(start())
        return create(url, *given, **named)

    monkeypatch.setattr(Log, "create", late)
    assert (start().records, first[1].records) == (0, 2)
    assert ends(urls["log"]) == {0: 2, 1: 0}
    assert [batch.num_rows for batch in Log.open(urls["letters"]).read()] == [1]


def test_a_log_with_records_of_its_own_is_refused(kafka, url):
    """Its offsets would differ from the topic's."""
    topic = kafka.topic()
    Log.create(url, 1).append([{"key": "a", "value": "b"}])
    with pytest.raises(InvalidInputError, match="its own records"):
        mirror(kafka.url(topic), url, MirrorSettings(once=True))


def test_no_topic_and_no_broker(kafka, url):
    """Each is reported, and leaves no log behind."""
    with pytest.raises(NotFoundError, match="topic nothing"):
        mirror(kafka.url("nothing"), url, MirrorSettings(once=True))
    with pytest.raises(NotFoundError, match="matches nothing-\\*"):
        mirror(kafka.url("nothing-*"), url, MirrorSettings(once=True))
    with pytest.raises(NotFoundError):
        Log.open(url)


def test_killed_anywhere_each_record_is_there_once(kafka, url):
    """Ten rounds of SIGKILL while a producer writes, then a run to the end."""
    topic = kafka.topic(partitions=2)
    code = (
        "import sys; from clog.bridge import mirror\n"
        "mirror(sys.argv[1], sys.argv[2], interval_ms=20)\n"
    )
    for i in range(10):
        process = subprocess.Popen([sys.executable, "-c", code, kafka.url(topic), url])
        kafka.many(topic, 3000, partitions=2, start=3000 * i)
        time.sleep(0.2 * i)
        process.kill()
        process.wait()
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    for p in range(2):
        assert kafka.rows(url, p) == kafka.records(topic, p)


def test_a_broker_that_restarts_is_waited_for(kafka, url):
    """A following mirror continues where it was; leader epochs have increased."""
    topic = kafka.topic()
    kafka.produce(topic, [b"a"])
    with Following(kafka.url(topic), url) as following:
        kafka.until(lambda: ends(url) == {0: 1})
        kafka.stop()
        kafka.start()
        kafka.produce(topic, [b"b"])
        kafka.until(lambda: ends(url) == {0: 2} or following.error)
    assert following.error is None
    assert kafka.rows(url) == kafka.records(topic)


@pytest.fixture
def quiet(monkeypatch):
    """A mirror ends after half a second in which nothing was written."""
    monkeypatch.setattr("clog.bridge.mirroring.QUIET_MS", 500)


def test_a_mirrored_log_takes_no_other_append_until_the_mirror_ends(kafka, url, quiet):
    """H-B8, H-B9: the end covers the source's, including markers; then anyone may append."""
    topic = kafka.topic()
    kafka.transaction(topic, [b"a", b"b"])
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    log = Log.open(url)
    with pytest.raises(InvalidInputError, match="clog mirror --end"):
        log.append([{"key": "x", "value": "y"}])
    kafka.transaction(topic, [b"c"], end="abort")
    kafka.until(lambda: kafka.extent(topic)[1] == 5)
    mirror(kafka.url(topic), url, MirrorSettings(end=True))
    assert log.append([{"key": "x", "value": "y"}]).offsets == {0: (5, 6)}
    with pytest.raises(InvalidInputError, match="no longer mirrors"):
        mirror(kafka.url(topic), url, MirrorSettings(once=True))


def test_a_mirror_does_not_end_while_somebody_writes(kafka, url, quiet):
    """H-B9: nor while a transaction is open, whose records would be lost."""
    topic = kafka.topic()
    producer = kafka.transaction(topic, [b"a"], end="hang")
    with pytest.raises(SourceError, match="still written to"):
        mirror(kafka.url(topic), url, MirrorSettings(end=True))
    producer.commit_transaction()
    mirror(kafka.url(topic), url, MirrorSettings(end=True))
    assert ends(url) == {0: 2}


def test_a_mirror_of_a_topic_that_is_gone_is_ended_by_force(kafka, url):
    """What the message of a stop says to do: the log stays, and others append."""
    topic = kafka.topic()
    kafka.produce(topic, [b"a"])
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    kafka.delete(topic)
    with pytest.raises(NotFoundError):
        mirror(kafka.url(topic), url, MirrorSettings(end=True))
    mirror(kafka.url(topic), url, MirrorSettings(end=True, force=True))
    assert Log.open(url).append([{"key": "x", "value": "y"}]).offsets == {0: (1, 2)}


class Forgetting(Gathered):
    """Drops the record of times that it moved."""

    def columns(self):
        made = super().columns()
        return replace(made, rows=made.rows.drop_columns("headers")) if made.clamped else made


def commit_densely(self, t, batch, _starts, _found=None):
    """Commits records one after the other, and nothing if there are none."""
    records = batch.records
    if records is not None and records.rows.num_rows:
        offsets = np.zeros(records.rows.num_rows, np.int64)
        for p, end in self.log.end_offsets().items():
            at = records.partitions == p
            offsets[at] = end + np.arange(at.sum())
        t.append(records.rows, records.partitions, offsets=offsets)
    t.positions(self.topic.source, {p: at.offset for p, at in batch.positions.items()})
    t.commit()


@pytest.fixture
def naive(monkeypatch):
    """Mirrors as one would first write them: dense offsets, ``auto.offset.reset=earliest``, no
    checksums; a topic is its name, a position its offset; what the topic has set is adopted.
    """
    careless = {"auto.offset.reset": "earliest", "check.crcs": False}
    monkeypatch.setattr("clog.bridge.topic.OPTIONS", {**OPTIONS, **careless})
    monkeypatch.setattr("clog.bridge.topic._epoch", lambda _: None)
    monkeypatch.setattr(Topic, "source", property(lambda self: f"kafka:{self.topic}"))
    monkeypatch.setattr(Target, "_commit", commit_densely)
    monkeypatch.setattr(Target, "_check_last", lambda *_: None)
    monkeypatch.setattr(mirroring, "_ANOTHER", {})
    monkeypatch.setattr(mirroring, "Gathered", Forgetting)


NAMED = (
    test_a_recreated_topic_with_more_records_stops_a_mirror_that_was_stopped,
    test_a_topic_whose_end_was_cut_off_stops_the_mirror,
    test_what_was_purged_while_it_was_stopped_is_a_stop_or_is_passed_over,
    test_a_purge_that_empties_a_partition_is_covered,
    test_markers_and_aborted_records_are_covered,
    test_a_hung_transaction_does_not_hold_a_run_up,
    test_times_that_a_log_cannot_hold_are_moved_and_kept_in_a_header,
    test_the_brokers_times_are_kept,
    test_null_keys_under_compact_are_left_out_and_counted,
    test_a_damaged_file_at_the_source_is_a_stop_behind_what_could_be_read,
)


@pytest.mark.usefixtures("naive")
@pytest.mark.parametrize("named", NAMED, ids=lambda test: test.__name__.removeprefix("test_"))
def test_a_naive_mirror_fails(named, kafka, url):
    """Each of these tests detects what it is there for."""
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        named(kafka, url)
