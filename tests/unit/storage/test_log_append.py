"""Appending through `Log`: offsets, order, refusals."""

import numpy as np
import pyarrow as pa
import pytest

from clog.storage import InvalidInputError
from clog.storage.keys.hashing import partitions_for
from clog.storage.objects.records import to_records
from clog_testing.model import Record, rows_in

NO_KEYS = {"cleanup.policy": "delete"}


def batch(*keys):
    return [{"key": key, "value": f"v{i}"} for i, key in enumerate(keys)]


def test_offsets_are_given_once(make_log, open_log):
    """S1: each append continues where the last ended, in every partition, and nothing moves."""
    log = make_log(partitions=2)
    first = log.append(batch("a", "b", "c"), partition=[0, 1, 0])
    second = log.append(batch("d", "e"), partition=[1, 1])
    assert first.offsets == {0: (0, 2), 1: (0, 1)}
    assert second.offsets == {1: (1, 3)}
    assert (first.version, second.version) == (1, 2)
    log.roll()
    rows = rows_in(open_log().read())
    assert [(p, offset, r.key) for p, offset, r in rows] == [
        (0, 0, b"a"),
        (0, 1, b"c"),
        (1, 0, b"b"),
        (1, 1, b"d"),
        (1, 2, b"e"),
    ]


def test_order_inside_an_append_is_as_given(make_log):
    """S44: each partition has its records in the order in which they were given."""
    log = make_log(partitions=3)
    parts = [i % 3 for i in range(300)]
    log.append([{"key": "k", "value": str(i)} for i in range(300)], partition=parts)
    for p in range(3):
        values = [int(row[2].value) for row in rows_in(log.read(partition=p))]
        assert values == [i for i in range(300) if i % 3 == p]


def test_keys_choose_partitions(make_log):
    """Without a partition, a record goes where its key's hash says."""
    log = make_log(partitions=4)
    keys = [f"key-{i}" for i in range(50)]
    log.append(batch(*keys))
    expected = partitions_for(
        pa.array([k.encode() for k in keys], pa.binary()), partitions=4, algorithm="xxh3"
    )
    found = {r.key: p for p, _, r in rows_in(log.read())}
    assert found == {k.encode(): int(p) for k, p in zip(keys, expected, strict=True)}


def test_records_without_key_go_round(make_log):
    """A log that accepts records without keys spreads them over its partitions."""
    log = make_log(partitions=3, config=NO_KEYS)
    result = log.append([{"key": None, "value": "v"}] * 6)
    assert result.offsets == {0: (0, 2), 1: (0, 2), 2: (0, 2)}


def test_empty_values_and_keys_stay(make_log, values_of):
    """S4: an empty value is not a tombstone, an empty key is a key."""
    log = make_log()
    log.append([{"key": "", "value": ""}, {"key": b"k", "value": None}])
    rows = [(r.key, r.value) for _, _, r in rows_in(log.read())]
    assert rows == [(b"", b""), (b"k", None)]
    assert log.describe()["partition_details"][0]["tombstones"] == 1
    assert rows_in(log.table().to_batches())[0][2].key == b""


def test_headers_and_timestamps_stay(make_log, clock):
    """A record is returned completely; without a timestamp it gets the clock's."""
    log = make_log()
    log.append(
        [
            {"key": "a", "value": "1", "timestamp": 999_000, "headers": [("h", b"x"), ("h", None)]},
            {"key": "b", "value": "2"},
        ]
    )
    assert [row[2] for row in rows_in(log.read())] == [
        Record(b"a", b"1", 999_000, (("h", b"x"), ("h", None))),
        Record(b"b", b"2", clock.now_ms()),
    ]


def test_a_record_without_key_is_refused(make_log):
    """S5: the whole append is refused; the error says which record, and how many."""
    log = make_log(partitions=2)
    with pytest.raises(InvalidInputError, match=r"2 of 4 records have no key.*record 1;.*compact"):
        log.append(batch("a", None, "b", None))
    assert log.end_offsets() == {0: 0, 1: 0}
    assert log.version == 0


def test_a_record_too_large_is_refused(make_log):
    """S6: Kafka's default allows 1 MiB of key and value, and not one byte more."""
    log = make_log()
    log.append([{"key": "k", "value": bytes((1 << 20) - 1)}])
    with pytest.raises(
        InvalidInputError, match=r"max.message.bytes=1048588, the first is record 1 with 1048589"
    ):
        log.append([{"key": "k", "value": "small"}, {"key": "k", "value": bytes(1 << 20)}])
    assert log.end_offsets() == {0: 1}


def test_what_is_refused_follows_the_newest_config(make_log, open_log):
    """S42: an alter takes effect with the next append, even of a handle that did not see it."""
    log, other = make_log(), open_log()
    log.alter({"cleanup.policy": "delete"})
    assert other.append([{"key": None, "value": "v"}]).offsets == {0: (0, 1)}
    log.alter({"cleanup.policy": "compact"})
    with pytest.raises(InvalidInputError, match="no key"):
        other.append([{"key": None, "value": "v"}])
    assert other.version == 3


def test_config_that_changed_during_the_append_counts(make_log, open_log):
    """S42: facts are checked again at the commit, against the config at that time."""
    log, other = make_log(config=NO_KEYS), open_log()
    writer = other.object_writer()
    records, _ = to_records([{"key": None, "value": "v"}], now_us=0)
    writer.add(records, np.zeros(1, np.int32))
    objects = writer.finish()
    log.alter({"cleanup.policy": "compact"})
    with pytest.raises(InvalidInputError, match="1 of 1 records have no key"):
        other.append_objects(objects)
    assert log.end_offsets() == {0: 0}


def test_log_append_time(make_log, clock):
    """S9: with LogAppendTime, all records of a commit have its time, whatever they had."""
    log = make_log(config={"message.timestamp.type": "LogAppendTime"})
    clock.advance(5)
    log.append([{"key": "a", "value": "1", "timestamp": 0}, {"key": "b", "value": "2"}])
    log.alter({"message.timestamp.type": "CreateTime"})
    log.append([{"key": "c", "value": "3", "timestamp": 7}])
    assert [r.timestamp_ms for _, _, r in rows_in(log.read())] == [1_000_005, 1_000_005, 7]
    assert log.segments(0)[-1].largest_timestamp == 1_000_005
    assert log.offsets_for_times(1_000_005) == {0: 0}


@pytest.mark.parametrize(
    ("config", "offset_ms"),
    [({}, 3_600_001), ({"message.timestamp.before.max.ms": 500}, -501)],
)
def test_timestamps_out_of_bounds_are_refused(make_log, clock, config, offset_ms):
    """S9: CreateTime may differ from the clock by that much, and not by 1 ms more."""
    log = make_log(config=config)
    at_bound = offset_ms - 1 if offset_ms > 0 else offset_ms + 1
    log.append([{"key": "k", "value": "v", "timestamp": clock.now_ms() + at_bound}])
    with pytest.raises(InvalidInputError, match=rf"{abs(offset_ms)} ms (ahead|behind).*max\.ms"):
        log.append([{"key": "k", "value": "v", "timestamp": clock.now_ms() + offset_ms}])
    assert log.end_offsets() == {0: 1}


def test_a_refusal_is_the_newest_configs(make_log, open_log, clock):
    """S42, S9: a newer config may allow what the config known here refuses."""
    log, other = make_log(config={"message.timestamp.after.max.ms": 5}), open_log()
    log.alter({"message.timestamp.after.max.ms": 500})
    ahead = [{"key": "k", "value": "v", "timestamp": clock.now_ms() + 400}]
    assert other.append(ahead).version == 2


def test_an_append_of_nothing_commits_nothing(make_log):
    log = make_log()
    assert log.append([]).version == 0
    assert log.append([]).offsets == {}
    assert log.version == 0


@pytest.mark.parametrize("partition", [2, -1, [0, 2], "0", 0.0, True, [0], [[0], [1]]])
def test_a_partition_that_does_not_exist_is_refused(make_log, partition):
    log = make_log(partitions=2)
    with pytest.raises(InvalidInputError, match="partition"):
        log.append(batch("a", "b"), partition=partition)
    assert log.version == 0


def test_arrow_data_in_any_cut(make_log):
    """Tables of several chunks, slices and record batches are appended as they appear."""
    log = make_log()
    table = pa.table({"key": ["a", "b", "c", "d"], "value": pa.array([b"1", None, b"3", b"4"])})
    log.append(pa.concat_tables([table.slice(1, 2), table.slice(0, 1)]))
    log.append(table.to_batches()[0].slice(3))
    rows = [(r.key, r.value) for _, _, r in rows_in(log.read())]
    assert rows == [(b"b", None), (b"c", b"3"), (b"a", b"1"), (b"d", b"4")]
