"""Rolling, segments and configs through `Log`."""

import numpy as np
import pytest

from clog.storage import InvalidInputError
from clog.storage.objects.records import to_records

RECORD_BYTES = 12 + 1 + 7
VALUE = "7 bytes"


def bases(log, partition=0):
    return [s.base_offset for s in log.segments(partition)]


def append(log, count=1, **fields):
    log.append([{"key": "k", "value": VALUE, **fields}] * count, partition=0)


def test_rolls_by_bytes(make_log):
    """S7: before an append that would take the active segment beyond segment.bytes, not at it."""
    log = make_log(config={"segment.bytes": 3 * RECORD_BYTES})
    for _ in range(7):
        append(log)
    assert bases(log) == [0, 3, 6]
    append(log, 5)  # an append that is larger than a segment gets one of its own
    assert bases(log) == [0, 3, 6, 7]
    assert [s.size_bytes for s in log.segments(0)] == [60, 60, 20, 100]


def test_rolls_by_time(make_log):
    """S7: when the largest timestamp is later than the segment's first by more than segment.ms."""
    log = make_log(config={"segment.ms": 100})
    append(log, timestamp=1000)
    append(log, timestamp=1100)
    append(log, timestamp=5)  # earlier records never roll
    append(log, timestamp=1101)
    append(log, timestamp=1201)
    append(log, timestamp=1202)
    assert bases(log) == [0, 3, 5]


def test_the_maximum_lag_shortens_segment_ms(make_log):
    """S7: with compaction the effective segment.ms is at most max.compaction.lag.ms."""
    config = {"segment.ms": 1000, "max.compaction.lag.ms": 100}
    log = make_log(config=config)
    append(log, timestamp=0)
    append(log, timestamp=101)
    assert bases(log) == [0, 1]
    log.alter({"cleanup.policy": "delete"})
    append(log, timestamp=1101)
    assert bases(log) == [0, 1]


def test_jitter_rolls_earlier(make_log):
    """S7: the jitter, drawn once for a segment, is subtracted from segment.ms."""
    log = make_log(config={"segment.ms": 1000, "segment.jitter.ms": 1000})
    append(log, timestamp=0)
    log.roll()
    jitter = log.handle.tip.head.partitions.jitter_ms[0]
    assert 0 < jitter < 1000
    append(log, timestamp=0)
    append(log, timestamp=1000 - jitter)
    assert bases(log) == [0, 1]
    append(log, timestamp=1001 - jitter)
    assert bases(log) == [0, 1, 3]


def test_rolls_by_chunks(make_log):
    """A segment also ends when it has segment.chunks chunks, as Kafka's does when its index is
    full.
    """
    log = make_log(config={"segment.chunks": 2})
    for _ in range(5):
        append(log)
    assert bases(log) == [0, 2, 4]


def test_one_append_can_roll_twice(make_log):
    """Each object of an append is checked in turn: the tasks of one batch may fill segments."""
    log = make_log(config={"segment.bytes": 2 * RECORD_BYTES})
    objects = []
    for _ in range(3):
        writer = log.object_writer()
        records, _ = to_records([{"key": "k", "value": VALUE}] * 2, now_us=0)
        writer.add(records, np.zeros(2, np.int32))
        objects += writer.finish()
    result = log.append_objects(objects)
    assert result.offsets == {0: (0, 6)}
    assert bases(log) == [0, 2, 4]


def test_roll_seals_what_is_not_empty(make_log):
    log = make_log(partitions=3)
    append(log)
    assert log.roll() == [0]
    assert log.roll() == []
    assert log.version == 2
    infos = log.segments(0)
    assert [(s.base_offset, s.next_offset, s.active) for s in infos] == [
        (0, 1, False),
        (1, 1, True),
    ]
    assert infos[1].largest_timestamp is None


def test_alter_takes_effect_with_the_next_append(make_log, open_log):
    """S42: configs are read at each use; None restores the default."""
    log, other = make_log(), open_log()
    append(other, 2)
    log.alter({"segment.bytes": RECORD_BYTES})
    append(other)
    assert bases(log) == [0, 2]
    assert log.alter({"segment.bytes": None})["segment.bytes"] == "1073741824"
    append(other)
    assert bases(log) == [0, 2]
    assert log.handle.tip.head.config == {}
    assert log.handle.tip.head.config_epoch == 4


def test_alter_to_the_same_commits_nothing(make_log):
    log = make_log(config={"segment.bytes": 100})
    log.alter({"segment.bytes": "100"})
    assert log.version == 0


def test_two_alters_that_race_both_count(make_log, open_log):
    """S42: the last one wins, key by key."""
    log, other = make_log(), open_log()
    log.alter({"segment.bytes": 100, "retention.ms": 5})
    assert other.alter({"retention.ms": 7})["segment.bytes"] == "100"
    assert log.config["retention.ms"] == "7"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"min.compaction.lag.ms": 11, "max.compaction.lag.ms": 10}, "min.compaction.lag.ms"),
        ({"retention.msec": 1}, "retention.ms"),
        ({"segment.bytes": 1}, "segment.bytes"),
        ({"min.cleanable.dirty.ratio": "2"}, "min.cleanable.dirty.ratio"),
        ({"cleanup.policy": "compress"}, "compact"),
    ],
)
def test_configs_that_cannot_be(make_log, open_log, store, config, words):
    """S43: refused with what is allowed, at create and at alter; nothing changes."""
    with pytest.raises(InvalidInputError, match=words):
        make_log(config=config)
    assert list(store.list("")) == []
    log = make_log()
    with pytest.raises(InvalidInputError, match=words):
        log.alter(config)
    assert log.version == 0


def test_lags_that_contradict_what_was_set_before(make_log):
    """S43: two configs that are each valid may contradict each other."""
    log = make_log(config={"max.compaction.lag.ms": 10})
    with pytest.raises(InvalidInputError, match=r"min\.compaction\.lag\.ms"):
        log.alter({"min.compaction.lag.ms": 11})


def test_a_name_to_reset_must_exist(make_log):
    with pytest.raises(InvalidInputError, match=r"retention\.ms"):
        make_log().alter({"retention.mss": None})


def test_the_partitioner_stays(make_log):
    """Keys stay where they are, so the partitioner is fixed at create."""
    log = make_log(config={"partitioner": "murmur2"})
    with pytest.raises(InvalidInputError, match="created with murmur2"):
        log.alter({"partitioner": "xxh3"})
    log.alter({"partitioner": "murmur2"})
    with pytest.raises(InvalidInputError, match="created with murmur2"):
        log.alter({"partitioner": None})


def test_describe_says_what_there_is(make_log):
    log = make_log(partitions=2)
    append(log, 3)
    log.roll()
    append(log)
    told = log.describe()
    assert told["partitions"] == 2
    assert told["version"] == 3
    detail = told["partition_details"][0]
    assert detail["records"] == 4
    assert detail["segments"] == 2
    assert detail["cleanable_bytes"] == 3 * RECORD_BYTES
    assert detail["active_bytes"] == RECORD_BYTES
    assert detail["dirty_ratio"] == 1.0
