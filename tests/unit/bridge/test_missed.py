"""When a mirror may have missed deletes, and where its own tombstones go; without a broker."""

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.bridge.test_records import Message

from clog.bridge.mirroring import _Held
from clog.bridge.target import RECONCILED, Batch, MirrorSettings, Seen, Target, free_offsets
from clog.bridge.topic import Address, At, Setting, Topic, columns_of, tombstones_stay_ms
from clog.storage import SourcePurgedError

TOPIC = Topic("cluster", "orders", "id", 2)
DAY_MS = 86_400_000
HOUR_MS = 3_600_000


class Cluster:
    """A cluster with one topic, which begins at 0."""

    def __init__(self, **configs):
        self._configs = {name.replace("_", "."): str(value) for name, value in configs.items()}

    def starts(self, topic, partitions):
        return dict.fromkeys(partitions, 0)

    def topic(self, name):
        return TOPIC

    def configs(self, topic):
        return {name: Setting(value, is_own=True) for name, value in self._configs.items()}


class Broken(Target):
    """Without the comparison of last records, which reads them from a broker."""

    def _check_last(self, cluster):
        pass


def begun(log, seen=None, **configs):
    """The target of a log, after its begin, and what is held of it."""
    cluster = Cluster(**(configs or {"cleanup_policy": "compact", "delete_retention_ms": DAY_MS}))
    mirror = Broken(log, TOPIC, Address("broker:9092", "orders"), MirrorSettings())
    mirror.begin(cluster, seen or Seen(0, mirror.life_ms(cluster), 0))
    held = _Held(mirror)
    held.handed = dict(mirror.positions)
    held.positions = dict(mirror.positions)
    held.seen = mirror.seen
    held.life_ms = mirror.life_ms(cluster)
    return cluster, mirror, held


def messages(*offsets, partition=0):
    return [Message(o, b"k%d" % o, b"v", partition=partition) for o in offsets]


def batch(before, after, *messages, seen=None):
    records = columns_of(messages, needs_key=True) if messages else None
    return Batch(records, before, after, seen)


@pytest.fixture
def log(make_log):
    return make_log(2, features=["given-offsets"])


def test_tombstones_stay_as_long_as_the_topic_says():
    """S41: from when they are written; the lag goes by times that only a broker can be trusted to
    give; a topic that is not compacted removes none.
    """
    facts = {"cleanup.policy": "delete,compact", "delete.retention.ms": "5"}
    assert tombstones_stay_ms(facts) == 5
    assert tombstones_stay_ms(facts | {"delete.retention.ms": "0"}) == 0
    assert tombstones_stay_ms(facts | {"min.compaction.lag.ms": "7"}) == 5
    by_broker = {"min.compaction.lag.ms": "7", "message.timestamp.type": "LogAppendTime"}
    assert tombstones_stay_ms(facts | by_broker) == 12
    assert tombstones_stay_ms(facts | {"cleanup.policy": "delete"}) is None


def test_the_logs_configs_stand_in_for_those_that_a_client_may_not_see(make_log):
    """S41: they come from the topic or the user."""
    log = make_log(2, {"delete.retention.ms": 7}, features=["given-offsets"])
    mirror = Target(log, TOPIC, Address("broker:9092", "orders"), MirrorSettings())
    assert mirror.life_ms(Cluster()) == 7
    assert mirror.life_ms(Cluster(cleanup_policy="delete")) is None


@pytest.mark.parametrize(
    ("seen", "now_ms", "monotonic_ms", "doubt"),
    [
        (Seen(1000, DAY_MS), 1000 + DAY_MS - 1, 0, False),
        (Seen(1000, DAY_MS), 1000 + DAY_MS, 0, True),
        (Seen(1000, 0), 1000, 0, True),
        (Seen(1000, None), 10 * DAY_MS, 0, False),
        # Another machine's clock is a little behind; or this one was set back.
        (Seen(DAY_MS, DAY_MS), DAY_MS - 1000, 0, False),
        (Seen(3 * DAY_MS, DAY_MS), DAY_MS, 0, True),
        # In one run: a clock set back is no doubt, and no excuse; nor is a machine that slept.
        (Seen(3 * DAY_MS, DAY_MS, 0), DAY_MS, 5000, False),
        (Seen(3 * DAY_MS, DAY_MS, 0), DAY_MS, DAY_MS, True),
        (Seen(0, DAY_MS, 0), DAY_MS, 5000, True),
        (Seen(0, 0, 0), 14_999, 14_999, False),
        (Seen(0, 0, 0), 15_000, 0, True),
    ],
)
def test_when_a_tombstone_may_be_gone(seen, now_ms, monotonic_ms, doubt):
    """S41: once as long as tombstones stay has passed since all was read, by whichever clock."""
    assert seen.is_in_doubt(now_ms, monotonic_ms) is doubt


def test_a_missing_offset_is_a_stop_only_if_it_may_have_been_a_tombstone(log):
    """S41: read within a day, or with no offset missing, nothing was missed."""
    _, mirror, held = begun(log)
    after = {0: At(4), 1: At(0)}
    held.check_missed(after, messages(0, 1, 3), DAY_MS - 1, DAY_MS - 1)
    held.check_missed(after, messages(0, 1, 2, 3), 9 * DAY_MS, 9 * DAY_MS)
    with pytest.raises(SourcePurgedError, match=r"missed deletes: 1 offsets of partition 0 .*1 d"):
        held.check_missed(after, messages(0, 1, 3), DAY_MS, DAY_MS)
    with pytest.raises(SourcePurgedError, match="1 offsets of partition 1"):
        held.check_missed({0: At(0), 1: At(1)}, [], DAY_MS, DAY_MS)
    assert mirror.positions == {0: At(0), 1: At(0)}


def test_a_partition_of_which_the_log_had_nothing_missed_nothing(log):
    """S41: what counts for it is when its own reading began."""
    _, _, held = begun(log)
    held.begun = {0: Seen(9 * DAY_MS, DAY_MS, 9 * DAY_MS)}
    after = {0: At(2)}
    held.check_missed(after, messages(1), 9 * DAY_MS + 5, 9 * DAY_MS + 5)
    with pytest.raises(SourcePurgedError):
        held.check_missed(after, messages(1), 10 * DAY_MS, 10 * DAY_MS)


def test_a_topic_that_is_not_compacted_is_never_in_doubt(log):
    """S41: whatever is missing."""
    _, _, held = begun(log, cleanup_policy="delete", delete_retention_ms=0)
    held.check_missed({0: At(9)}, [], 9 * DAY_MS, 9 * DAY_MS)


def test_the_moment_holds_once_all_that_the_topic_had_is_read(log):
    """S41: not while any partition is behind it, so one that follows slowly becomes old."""
    _, _, held = begun(log)
    held.look(Seen(50, DAY_MS, 50), {0: 2, 1: 3})
    held.move({0: At(9), 1: At(2)}, 0)
    held.look(Seen(60, DAY_MS, 60), {0: 20, 1: 20})
    assert held.seen.time_ms == 0
    held.move({1: At(3)}, 0)
    assert held.seen.time_ms == 50
    held.look(Seen(70, DAY_MS, 70), {0: 9, 1: 3})
    assert held.seen.time_ms == 70


def test_the_shortest_life_since_the_moment_counts(log):
    """S41: a config that was lowered and raised again while the mirror looked on."""
    _, _, held = begun(log)
    held.look(Seen(50, HOUR_MS, 50), {0: 1, 1: 0})
    held.look(Seen(60, DAY_MS, 60), {0: 2, 1: 0})
    assert held.seen == Seen(0, HOUR_MS, 0)
    held.move({0: At(1)}, 0)
    assert held.seen == Seen(50, HOUR_MS, 50)
    held.look(Seen(70, None, 70), {0: 1, 1: 0})
    held.look(Seen(80, 5, 80), {0: 8, 1: 0})
    assert held.seen == Seen(70, 5, 70)


def test_the_moment_is_committed_with_the_positions(log, open_log):
    """S41, S73: another process continues from it, with the life that tombstones had then; a log
    of a release that stored none is in doubt at once.
    """
    cluster, mirror, held = begun(log, Seen(40, 7, 40))
    held.move({0: At(3), 1: At(0)}, 0)
    held.seen = Seen(90, HOUR_MS, 90)
    mirror.commit(cluster, held.batch())
    _, again, _ = begun(open_log())
    assert again.seen == Seen(90, HOUR_MS)
    assert log.positions("clog-mirror")[TOPIC.source] == {0: 3, 1: 0}
    held.seen = None
    held.check_missed({0: At(4)}, messages(3), 0, 0)
    with pytest.raises(SourcePurgedError, match="it is not known when"):
        held.check_missed({0: At(5)}, messages(4), 0, 0)


@pytest.mark.parametrize(
    ("seen", "stored", "due"),
    [
        (Seen(DAY_MS // 4, DAY_MS), Seen(0, DAY_MS), True),
        (Seen(DAY_MS // 4 - 1, DAY_MS), Seen(0, DAY_MS), False),
        (Seen(5, DAY_MS), None, True),
        (Seen(DAY_MS, 59_999), Seen(0, 59_999), False),
        (Seen(DAY_MS, None), Seen(0, None), False),
    ],
)
def test_an_idle_mirror_stores_the_moment_before_it_is_too_old(seen, stored, due):
    """S41: a restart of the mirror of a quiet topic is no pause."""
    assert seen.must_replace(stored) is due


@pytest.mark.parametrize("seed", range(20))
def test_free_offsets_are_those_that_are_not_taken(seed):
    """S75: the first ones, as many as are wanted or there are."""
    random = np.random.default_rng(seed)
    taken = np.sort(random.choice(30, random.integers(0, 30), replace=False))
    start, end = sorted(random.integers(0, 31, 2).tolist())
    most = int(random.integers(0, 12))
    free = [o for o in range(start, end) if o not in taken.tolist()]
    assert free_offsets(taken, start, end, most).tolist() == free[:most]


def tombstones(*keys):
    headers = [[{"key": RECONCILED, "value": None}]] * len(keys)
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.table(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.nulls(len(keys), pa.binary()),
            "timestamp": pa.array([9_000_000] * len(keys), pa.timestamp("us", "UTC")),
            "headers": pa.array(headers, kind),
        }
    )


def test_tombstones_take_the_places_that_the_source_left(log, open_log):
    """S75: batch by batch, each in its partition, never where the source has a record, with a key
    or without; the moment is only stored once all of them are committed.
    """
    cluster, mirror, held = begun(log)
    end = {0: At(3), 1: At(2)}
    mirror.commit(
        cluster, batch(mirror.positions, end, *messages(0, 1, 2), *messages(1, partition=1))
    )
    mirror.gone = {0: tombstones(b"k0", b"k1"), 1: tombstones(b"k1")}
    mirror.compared = {0: 9, 1: 4}
    held.handed, held.positions, held.seen = dict(end), {0: At(6), 1: At(2)}, Seen(70, 7, 70)
    found = held.batch()
    assert found.seen is None
    rows = [*messages(5), Message(4, None, b"v")]
    counts = mirror.commit(cluster, batch(end, found.positions, *rows))
    assert (counts["reconciled"], counts["records"], counts["keyless"]) == (1, 1, 1)
    mirror.check_reconciled()
    last = {0: At(10), 1: At(6)}
    rows = [*messages(6, 9), *messages(2, 3, partition=1)]
    held.handed, held.positions = found.positions, last
    counts = mirror.commit(cluster, batch(found.positions, last, *rows, seen=held.batch().seen))
    assert counts["reconciled"] == 1
    there = [
        (r["partition"], r["offset"], r["key"], r["value"]) for r in open_log().read().to_pylist()
    ]
    assert [row for row in there if row[3] is None] == [(0, 3, b"k0", None), (0, 7, b"k1", None)]
    assert [row[:2] for row in there] == [
        *((0, offset) for offset in (0, 1, 2, 3, 5, 6, 7, 9)),
        *((1, offset) for offset in (1, 2, 3)),
    ]
    assert open_log().end_offsets() == {0: 10, 1: 6}
    assert mirror.seen == Seen(70, 7, 70)
    # Partition 1 has free offsets only from 4 on, where a key may have come again.
    with pytest.raises(SourcePurgedError, match=r"by partition: \{1: 1\}.*tombstones for these"):
        mirror.check_reconciled()
