"""The streaming read without Spark: what Spark calls, in the order it calls it, with pickles in
between.
"""

import json
import pickle
import shutil
from dataclasses import replace

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from clog.cleaner import Cleaner
from clog.connector.datasource import ClogDataSource
from clog.connector.options import Location, read_options
from clog.connector.read.stream_reader import OUTAGE_MS_MAX, ClogStreamReader
from clog.connector.schema import read_schema
from clog.storage import (
    ManualClock,
    NotFoundError,
    OffsetOutOfRangeError,
    OptionError,
    StoreUnavailableError,
)
from clog.storage.errors import LogReplacedError
from clog.storage.format.chunks import Replacement
from clog.storage.format.commits import Edit
from clog.storage.log import Log
from clog.storage.store import open_store
from clog_testing.counting import CountingStore
from clog_testing.undecided import append_undecided, end

ALL = ReadAllAvailable()


class Source:
    """A query's side of a source: offsets go through JSON, the rest through pickle."""

    def __init__(self, url, clock=None, **options):
        settings = read_options({"path": str(url), **options})
        schema = read_schema(["partition", "offset", "value"], include_headers=False)
        self.task_reader = pickle.loads(pickle.dumps(ClogStreamReader(settings, schema)))
        self.reader = ClogStreamReader(settings, schema, clock=clock or ManualClock())
        self.at = self.initial()

    def initial(self):
        return json.loads(json.dumps(self.reader.initialOffset()))

    def latest(self, limit=ALL):
        return json.loads(json.dumps(self.reader.latestOffset(self.at, limit)))

    def run(self, start, end):
        partitions = pickle.loads(pickle.dumps(self.reader.partitions(start, end)))
        return [
            (row["partition"], row["offset"], row["value"].decode())
            for partition in partitions
            for batch in self.task_reader.read(partition)
            for row in batch.to_pylist()
        ]

    def batch(self, limit=None):
        """Runs one batch; None if the trigger finds nothing."""
        end = self.latest(self.reader.getDefaultReadLimit() if limit is None else limit)
        if json.dumps(end) == json.dumps(self.at):
            return None
        start, self.at = self.at, end
        return self.run(start, end)


@pytest.fixture
def log(tmp_path):
    return Log.create(str(tmp_path / "orders"), partitions=2)


def append(log, *values, partition=0):
    log.append([{"key": v, "value": v} for v in values], partition=partition)


def test_a_stream_reads_each_record_once(log):
    """The existing records, then new ones; a trigger that finds nothing makes no batch."""
    append(log, "a", "b")
    source = Source(log.url, startingOffsets="earliest", pollInterval="0s")
    assert source.batch() == [(0, 0, "a"), (0, 1, "b")]
    assert source.batch() is None
    append(log, "c")
    append(log, "d", partition=1)
    assert source.batch() == [(0, 2, "c"), (1, 0, "d")]
    assert source.batch() is None


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
def test_a_stream_ends_where_all_is_decided(log, commit):
    """S51: it waits for the end of the transaction, and then has each record once, in order."""
    append(log, "a")
    source = Source(log.url, startingOffsets="earliest", pollInterval="0s")
    dirty = Source(
        log.url, startingOffsets="earliest", pollInterval="0s", isolation="read_uncommitted"
    )
    append_undecided(log, [{"key": "u", "value": "u"}])
    append(log, "b")
    assert source.batch() == [(0, 0, "a")]
    assert source.batch() is None
    assert dirty.batch() == [(0, 0, "a"), (0, 1, "u"), (0, 2, "b")]
    end(log, commit=commit)
    assert source.batch() == [*([(0, 1, "u")] if commit else []), (0, 2, "b")]
    assert dirty.batch() == []
    append(log, "c")
    assert source.batch() == dirty.batch() == [(0, 4, "c")]


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
def test_a_batch_that_runs_again_with_read_committed_skips_nothing(log, commit):
    """S40, S51: planned with read_uncommitted, it has undecided records; they are decided before
    the query continues.
    """
    options = {"startingOffsets": "earliest", "pollInterval": "0s"}
    append(log, "a")
    append_undecided(log, [{"key": "u", "value": "u"}])
    append(log, "b")
    dirty = Source(log.url, isolation="read_uncommitted", **options)
    start, planned = dirty.at, dirty.latest()
    message = r"read_committed, .* offset 3 of partition 0 of .*up to 1; .*clog describe .* transa"
    with pytest.raises(OptionError, match=message):
        Source(log.url, **options).run(start, planned)
    assert Source(log.url, isolation="read_uncommitted", **options).run(start, planned) == [
        (0, 0, "a"),
        (0, 1, "u"),
        (0, 2, "b"),
    ]
    waiting = Source(log.url, **options)
    with pytest.raises(OptionError):
        waiting.run(start, planned)
    end(log, commit=commit)
    append(log, "c")
    rows = [(0, 0, "a"), *([(0, 1, "u")] if commit else []), (0, 2, "b")]
    assert waiting.run(start, planned) == Source(log.url, **options).run(start, planned) == rows
    waiting.at = planned
    assert waiting.batch() == [(0, 4, "c")]


def test_a_stream_may_start_beyond_what_is_decided(log):
    """S51: such a position is valid; nothing comes twice, and nothing from before it."""
    append_undecided(log, [{"key": "u", "value": "u"}])
    append(log, "a", "b")
    starting = '{"0": 2, "1": 0}'
    source = Source(log.url, startingOffsets=starting, pollInterval="0s")
    assert source.batch() == []
    assert source.batch() is None
    end(log, commit=True)
    assert source.batch() == [(0, 2, "b")]


def test_latest_is_decided_once(log):
    """Spark asks for the initial offset again before the first batch is durable: the end must not
    move in between.
    """
    append(log, "before")
    source = Source(log.url, pollInterval="0s")
    assert source.initial() == {"init": "latest"}
    first = source.latest()
    assert first["from"] == {"0": 1, "1": 0}
    append(log, "after")
    assert source.initial() == source.at
    second = source.latest()
    assert second["from"] == first["from"]
    assert source.run(source.at, second) == [(0, 1, "after")]


def test_a_first_batch_that_crashed_starts_where_it_started(log):
    """Its end says where: a new process does not resolve "latest" again."""
    append(log, "before")
    crashed = Source(log.url, pollInterval="0s")
    crashed.latest()
    append(log, "first")
    end = crashed.latest()
    append(log, "later")
    restarted = Source(log.url)
    assert restarted.run(restarted.initial(), end) == [(0, 1, "first")]


def test_later_offsets_keep_the_start_version_only(log):
    """The resolved start is in the first offsets, the version in all of them (S41)."""
    append(log, "a")
    source = Source(log.url, startingOffsets="earliest", pollInterval="0s")
    source.batch()
    planned = {"log": "orders", "log_id": log.handle.tip.head.log.log_id}
    tips = [log.handle.tip.record.commit_id]
    first = {"0": 1, "1": 0, "from": {"0": 0, "1": 0}, "planned": 1, "version": 1}
    assert source.at == {**first, **planned, "commit": tips[0]}
    append(log, "b")
    source.batch()
    tips.append(log.handle.tip.record.commit_id)
    later = {"0": 2, "1": 0, "planned": 2, "version": 1}
    assert source.at == {**later, **planned, "commit": tips[1]}


def cleaned(log):
    """Removes what is superseded."""
    log.roll()
    Cleaner(log).run_once(force=True)


def test_a_batch_that_runs_again_has_the_same_records(log):
    """Cleaned since or not: it reads the version at which it was planned. A batch that was never
    planned has what is there (S2).
    """
    append(log, "a", "b", "a")
    source = Source(log.url, startingOffsets="earliest")
    end = source.latest()
    first = source.run(source.at, end)
    cleaned(log)
    append(log, "c")
    assert Source(log.url).run(source.at, end) == first == [(0, 0, "a"), (0, 1, "b"), (0, 2, "a")]
    assert Source(log.url, startingOffsets="earliest").batch() == [
        (0, 1, "b"),
        (0, 2, "a"),
        (0, 3, "c"),
    ]


def test_a_batch_whose_version_expired_runs_again_from_the_newest(log, caplog):
    """What was superseded may be gone; a warning says that the batch may differ (S27)."""
    append(log, "a", "b", "a")
    source = Source(log.url, startingOffsets="earliest")
    end = source.latest()
    cleaned(log)
    newest = log.version
    log.handle.commit(lambda tip, ms: Edit(oldest_readable=newest), operation="sweep")
    assert Source(log.url).run(source.at, end) == [(0, 1, "b"), (0, 2, "a")]
    assert f"runs again from version {newest + 1}" in caplog.text


def test_a_batch_that_runs_again_shows_nothing_deleted(log):
    """The version at which it was planned has records that were deleted since (S36, S38)."""
    append(log, *"abc")
    source = Source(log.url, startingOffsets="earliest")
    end = source.latest()
    log.delete_records({0: 2})
    with pytest.raises(OffsetOutOfRangeError, match="2 offsets are gone"):
        Source(log.url).run(source.at, end)
    assert Source(log.url, failOnDataLoss="false").run(source.at, end) == [(0, 2, "c")]


def test_offsets_of_an_older_clog_are_read(log):
    """They do not say at which version the batch was planned: it reads the newest."""
    append(log, "a", "b")
    at, end = {"0": 1, "1": 0, "version": 1}, {"0": 2, "1": 0, "version": 1}
    source = Source(log.url, pollInterval="0s")
    assert source.run(at, end) == [(0, 1, "b")]
    source.at = end
    assert source.batch() is None
    append(log, "c")
    assert source.batch() == [(0, 2, "c")]
    assert source.at["log_id"] == log.handle.tip.head.log.log_id


@pytest.mark.parametrize(
    ("starting", "read"),
    [
        ("earliest", [0, 1, 2]),
        ("latest", []),
        ('{"0": 1, "1": -2}', [1, 2]),
        ('{"orders": {"0": -1, "1": -1}}', []),
        ('{"orders": "earliest"}', [0, 1, 2]),
        ('{"orders": "latest"}', []),
    ],
)
def test_a_query_starts_where_the_option_says(log, starting, read):
    """earliest, latest, or by partition (S39)."""
    append(log, "a", "b", "c")
    source = Source(log.url, startingOffsets=starting)
    assert [offset for _, offset, _ in source.batch()] == read


def test_max_offsets_per_trigger_limits_a_batch(log):
    """In proportion to what each partition has, and at least 1 from each."""
    append(log, *"abcdefgh")
    append(log, *"xy", partition=1)
    source = Source(log.url, startingOffsets="earliest", maxOffsetsPerTrigger="5")
    sizes = []
    while (batch := source.batch()) is not None:
        sizes.append(len(batch))
    assert sizes == [5, 5]


def test_available_now_ends_at_what_was_there(log):
    """What is appended meanwhile is for the next run, and the limit still applies."""
    append(log, *"abc")
    source = Source(
        log.url, startingOffsets="earliest", maxOffsetsPerTrigger="2", pollInterval="0s"
    )
    source.reader.prepareForTriggerAvailableNow()
    read = []
    while (batch := source.batch()) is not None:
        read += batch
        append(log, "later")
    assert [value for _, _, value in read] == ["a", "b", "c"]
    assert source.reader.reportLatestOffset() == {"0": 3, "1": 0}


def test_available_now_from_latest_reads_nothing_old(log):
    """What is appended between fixing the end and resolving "latest" puts the start past the end:
    nothing is read, least of all the whole log.
    """
    append(log, *"abc")
    source = Source(log.url, pollInterval="0s")
    source.reader.prepareForTriggerAvailableNow()
    append(log, "d")
    assert [source.batch(), source.batch()] == [[], None]
    assert source.at["0"] == 4


def test_a_batch_waits_for_enough_offsets_or_for_the_delay(log):
    """minOffsetsPerTrigger; the first batch does not wait."""
    clock = ManualClock()
    options = {"minOffsetsPerTrigger": "3", "maxTriggerDelay": "10s", "pollInterval": "0s"}
    source = Source(log.url, clock, startingOffsets="earliest", **options)
    append(log, "a")
    assert len(source.batch()) == 1
    append(log, "b", "c")
    assert source.batch() is None
    append(log, "d", partition=1)
    assert len(source.batch()) == 3
    append(log, "e")
    clock.advance(9_999)
    assert source.batch() is None
    clock.advance(1)
    assert len(source.batch()) == 1


def test_available_now_does_not_wait_for_enough_offsets(log):
    """Otherwise it would end with records unread."""
    options = {"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "3", "pollInterval": "0s"}
    append(log, *"abcd")
    source = Source(log.url, startingOffsets="earliest", **options)
    source.reader.prepareForTriggerAvailableNow()
    assert [len(source.batch()), len(source.batch()), source.batch()] == [3, 1, None]


def test_max_bytes_per_trigger_limits_a_batch(log):
    """Records of 14 bytes, oldest commits first; the limit is soft: one record at least."""
    append(log, *"ab")
    append(log, *"cd", partition=1)
    source = Source(log.url, startingOffsets="earliest", maxBytesPerTrigger="45", pollInterval="0s")
    assert [(p, o) for p, o, _ in source.batch()] == [(0, 0), (0, 1), (1, 0)]
    assert [(p, o) for p, o, _ in source.batch()] == [(1, 1)]
    append(log, *"ef")
    source = Source(log.url, startingOffsets="earliest", maxBytesPerTrigger="1", pollInterval="0s")
    assert [len(source.batch()) for _ in range(6)] == [1] * 6
    assert source.batch() is None


def test_a_stream_starts_at_a_time(log):
    """Resolved once, in the first offsets (S39)."""
    for second in (1, 2, 3):
        log.append([{"key": "k", "value": str(second), "timestamp": second * 1000}], partition=0)
    log.append([{"key": "k", "value": "x", "timestamp": 2500}], partition=1)
    source = Source(log.url, startingTimestamp="2000")
    assert source.initial() == {"init": {"timestamp": 2000}}
    assert source.batch() == [(0, 1, "2"), (0, 2, "3"), (1, 0, "x")]
    late = {"startingOffsetsByTimestamp": '{"orders": {"0": 2000, "1": 9000}}'}
    with pytest.raises(OptionError, match="no record at or after"):
        Source(log.url, **late).batch()
    source = Source(log.url, startingOffsetsByTimestampStrategy="latest", **late)
    assert source.initial() == {"init": {"timestamp": {"0": 2000, "1": 9000}}}
    assert source.batch() == [(0, 1, "2"), (0, 2, "3")]


def test_a_stream_of_some_keys(log):
    """Offsets advance over the other records."""
    append(log, *"abab")
    source = Source(log.url, startingOffsets="earliest", keys='["b"]', pollInterval="0s")
    assert source.batch() == [(0, 1, "b"), (0, 3, "b")]
    append(log, "a")
    assert source.batch() == []
    assert source.at["0"] == 5


def test_trigger_once_ignores_the_limit(log):
    """Spark then asks for all that is available."""
    append(log, *"abc")
    source = Source(log.url, startingOffsets="earliest", maxOffsetsPerTrigger="1")
    assert len(source.batch(ALL)) == 3
    assert source.reader.getDefaultReadLimit() == ReadMaxRows(1)


def test_an_idle_stream_costs_one_get_a_poll_interval(log, monkeypatch):
    """However often Spark asks: by default a trigger does so about 45 times a second."""
    counting = CountingStore(open_store(log.url))
    monkeypatch.setattr(Location, "store", lambda self: counting)
    clock = ManualClock()
    source = Source(log.url, clock=clock, pollInterval="1s")
    source.batch()
    polls = 5
    with counting.count() as requests:
        for _ in range(polls * 40):
            clock.advance(25)
            assert source.batch() is None
            assert source.reader.reportLatestOffset() == {"0": 0, "1": 0}
    assert requests == {"get": polls}


def test_a_trigger_as_long_as_the_poll_interval_always_looks(log):
    """Timers fire a little early as often as late."""
    clock = ManualClock()
    source = Source(log.url, clock=clock, pollInterval="1s")
    source.batch()
    for i in range(3):
        append(log, str(i))
        clock.advance(990)
        assert len(source.batch()) == 1


def test_a_store_that_fails_for_a_moment_does_not_end_the_query(log, monkeypatch):
    """Nothing is new then; after a minute it is used."""
    clock = ManualClock()
    source = Source(log.url, clock=clock)
    source.batch()
    handle = source.reader._handle

    def refresh():
        raise StoreUnavailableError("store is down")

    monkeypatch.setattr(type(handle), "refresh", lambda self: refresh())
    clock.advance(5_000)
    assert source.batch() is None
    clock.advance(OUTAGE_MS_MAX)
    with pytest.raises(StoreUnavailableError):
        source.batch()


def test_records_deleted_before_they_were_read_stop_the_query(log):
    """The partition, the offset and what is available are reported (S38)."""
    append(log, *"abcd")
    source = Source(log.url, startingOffsets="earliest", maxOffsetsPerTrigger="1")
    source.batch()
    log.delete_records({0: 3})
    with pytest.raises(OffsetOutOfRangeError) as caught:
        Source(log.url, startingOffsets="earliest").run(source.at, {"0": 4, "1": 0, "version": 1})
    assert "offset 1 of partition 0" in str(caught.value)
    assert "2 offsets are gone" in str(caught.value)


def test_records_deleted_before_they_were_read_can_be_passed_over(log, caplog):
    """With failOnDataLoss=false the stream continues from the log start; a warning counts (S38)."""
    append(log, *"abcd")
    source = Source(log.url, startingOffsets="earliest", maxOffsetsPerTrigger="1")
    source.batch()
    log.delete_records({0: 3})
    source = Source(log.url, failOnDataLoss="false")
    end = {"0": 4, "1": 0, "version": 1}
    assert source.run({"0": 1, "1": 0, "version": 1}, end) == [(0, 3, "d")]
    assert "2 offsets are gone" in caplog.text


def test_a_limit_counts_what_is_left_of_deleted_records(log):
    """Not the missing offsets: a gap of millions would be that many empty batches."""
    append(log, *"abcdef")
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "1"}
    source = Source(log.url, failOnDataLoss="false", pollInterval="0s", **options)
    assert source.batch() == [(0, 0, "a")]
    log.delete_records({0: 4})
    assert source.batch() == [(0, 4, "e")]


def recreated(log, *values):
    """Another log at the same path, with these records."""
    shutil.rmtree(log.url)
    anew = Log.create(log.url, partitions=2)
    append(anew, *values)
    return anew


@pytest.fixture
def at(log):
    """Offsets after four records of a log, and of a batch that was planned and not run."""
    append(log, *"abc")
    source = Source(log.url, startingOffsets="earliest", pollInterval="0s")
    source.batch()
    append(log, "d")
    return source.at, source.latest()


def restarted(log, offsets, **options):
    source = Source(log.url, pollInterval="0s", **options)
    source.at = offsets
    return source


@pytest.mark.parametrize("values", ["x", "xyzuvw"])
def test_a_query_does_not_go_on_in_a_log_that_was_recreated(log, at, values):
    """Whether its offsets exist or not: they are another log's. It does not rerun a batch of that
    log either.
    """
    anew = recreated(log, *values)
    with pytest.raises(LogReplacedError, match=r"was deleted and recreated.*new checkpoint"):
        restarted(anew, at[0]).batch()
    with pytest.raises(LogReplacedError, match="was deleted and recreated"):
        restarted(anew, at[0]).run(*at)


@pytest.mark.parametrize("values", ["", "x", "xyzuvw"])
@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "1"}])
def test_a_query_can_go_on_from_the_start_of_the_new_log(log, at, values, limit, caplog):
    """failOnDataLoss=false, which the error recommends; a crash in the first batch
    changes nothing.
    """
    anew = recreated(log, *values)
    lenient = {"failOnDataLoss": "false", **limit}
    assert restarted(anew, at[0], **lenient).run(*at) == [], "that batch is gone with its log"
    for start in at:
        source = restarted(anew, start, **lenient)
        end = source.latest(source.reader.getDefaultReadLimit())
        first = source.batch()
        assert restarted(anew, start, **lenient).run(start, end) == first
        read = list(first)
        append(anew, "later")
        while (batch := source.batch()) is not None:
            read += batch
        assert [value for *_, value in read] == [*values, *["later"] * (at.index(start) + 1)]
    assert "was deleted and recreated" in caplog.text
    assert "continuing at the start" in caplog.text


@pytest.mark.parametrize("name", ["payments", "other/orders"])
def test_a_path_that_was_changed_is_told_as_one(log, at, tmp_path, name):
    """As the only cause if the log's name shows it; the way on that loses nothing comes first."""
    other = Log.create(str(tmp_path / name), partitions=2)
    append(other, *"xyz")
    for action in (lambda s: s.batch(), lambda s: s.run(*at)):
        with pytest.raises(LogReplacedError) as caught:
            action(restarted(other, at[0]))
        told = str(caught.value)
        assert f"{other.url} is not the log that this stream has read, 'orders': " in told
        assert ("was deleted and recreated, or " in told) == (name == "other/orders")
        assert "the query was given another path" in told
        assert f"id was {log.id}, now it is {other.id}); if the path was changed, change" in told


def test_available_now_goes_on_in_the_new_log(log, at):
    """Its end is that of the log that is there."""
    anew = recreated(log, *"xyzuvw")
    source = restarted(anew, at[0])
    source.reader.prepareForTriggerAvailableNow()
    with pytest.raises(LogReplacedError, match="was deleted and recreated"):
        source.batch()
    source = restarted(anew, at[0], failOnDataLoss="false", maxOffsetsPerTrigger="4")
    source.reader.prepareForTriggerAvailableNow()
    append(anew, "later")
    assert [len(source.batch()), len(source.batch()), source.batch()] == [4, 2, None]


@pytest.mark.parametrize("lenient", ["true", "false"])
@pytest.mark.parametrize("values", ["", "x", "xyzuvw"])
@pytest.mark.parametrize("now", [True, False])
def test_a_running_query_notices_that_its_log_was_recreated(log, values, now, lenient):
    """It checks which log is there at least every few seconds, not only its commits; under
    availableNow too.
    """
    append(log, *"abcd")
    clock = ManualClock()
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "3", "pollInterval": "0s"}
    source = Source(log.url, clock, failOnDataLoss=lenient, **options)
    if now:
        source.reader.prepareForTriggerAvailableNow()
    assert len(source.batch()) == 3
    anew = recreated(log, *values)
    clock.advance(60_000)
    if lenient == "true":
        with pytest.raises(LogReplacedError, match=r"was deleted and recreated.*new checkpoint"):
            source.batch()
        return
    read = []
    while (batch := source.batch()) is not None:
        read += batch
    assert [value for *_, value in read] == list(values)
    append(anew, "later")
    assert source.batch() == (None if now else [(0, len(values), "later")])


@pytest.mark.parametrize("lenient", ["true", "false"])
def test_a_log_that_is_recreated_while_a_batch_is_planned_or_read(log, at, lenient, caplog):
    """The records of the batch are gone with their log: reported, or skipped."""
    planning, reading = (restarted(log, at[0], failOnDataLoss=lenient) for _ in range(2))
    planning.latest()
    (partition,) = reading.reader.partitions(*at)
    recreated(log, "x")
    for action in (
        lambda: planning.reader.partitions(*at),
        lambda: list(reading.task_reader.read(partition)),
    ):
        caplog.clear()
        if lenient == "true":
            with pytest.raises(
                LogReplacedError, match=r"was deleted and recreated.*new checkpoint"
            ):
                action()
        else:
            assert action() == []
            assert "was deleted and recreated" in caplog.text


@pytest.mark.parametrize("since", [1, 2])
def test_a_log_that_was_restored_from_a_copy_is_told_by_its_commits(log, tmp_path, since):
    """It has the id of the log that the query read, and may have continued differently."""
    append(log, "a")
    copy = tmp_path / "copy"
    shutil.copytree(log.url, copy)
    source = Source(log.url, startingOffsets="earliest")
    append(log, "b")
    source.batch()
    shutil.rmtree(log.url)
    shutil.copytree(copy, log.url)
    restored = Log.open(log.url)
    for value in "xyz"[: since - 1]:
        append(restored, value)
    with pytest.raises(LogReplacedError, match=r"version 2 .*restored from a copy"):
        restarted(restored, source.at).batch()
    lenient = restarted(restored, source.at, failOnDataLoss="false")
    assert [value for *_, value in lenient.batch()] == ["a", *"xyz"[: since - 1]]
    assert lenient.batch() is None


def test_a_checkpoint_goes_on_in_a_copy_of_the_log(log, tmp_path):
    """S47: a log is moved by copying it; the query continues at its new place, as long as the
    version of its offsets is there, and no other.
    """
    append(log, "a")
    source = Source(log.url, startingOffsets="earliest", pollInterval="0s")
    source.batch()
    shutil.copytree(log.url, tmp_path / "moved")
    moved = Log.open(str(tmp_path / "moved"))
    append(moved, "b")
    assert restarted(moved, source.at).batch() == [(0, 1, "b")]
    append(log, "c")
    assert source.batch() == [(0, 1, "c")]  # Of this version the copy has another commit.
    with pytest.raises(LogReplacedError, match=r"version 2 .*restored from a copy"):
        restarted(moved, source.at).batch()


@pytest.mark.parametrize("lenient", ["true", "false"])
def test_offsets_of_an_older_clog_beyond_the_end_are_noticed(log, lenient):
    """They do not say which log they belong to; a position beyond the end is never waited for
    silently.
    """
    append(log, "x")
    restarted = Source(log.url, failOnDataLoss=lenient)
    restarted.at = {"0": 4, "1": 0, "version": 1}
    if lenient == "true":
        with pytest.raises(OffsetOutOfRangeError, match="recreated"):
            restarted.batch()
    else:
        assert restarted.batch() == [(0, 0, "x")]


def test_a_missed_tombstone_stops_the_query(log):
    """Removed after the stream started, before it read it: the delete would be lost (S41)."""
    append(log, "a")
    source = Source(log.url, startingOffsets="earliest", pollInterval="0s")
    source.batch()
    log.append([{"key": "a", "value": None}], partition=0)
    removed = Edit(tombstones_removed={0: 1})
    log.handle.commit(lambda tip, time_ms: removed, operation="clean")
    end = source.latest()
    with pytest.raises(NotFoundError, match=r"tombstones up to offset 1 of partitions \[0\]"):
        source.run(source.at, end)
    lenient = Source(log.url, failOnDataLoss="false")
    assert len(lenient.reader.partitions(source.at, end)) == 1


@pytest.mark.parametrize(("offset", "since"), [(0, 1), (1, 3)])
def test_a_tombstone_that_was_read_or_removed_before_is_not_missed(log, offset, since):
    """Below the stream's position, or gone before the stream started: nothing is missed (S41)."""
    append(log, "a")
    log.append([{"key": "a", "value": None}], partition=0)
    log.handle.commit(lambda tip, ms: Edit(tombstones_removed={0: offset}), operation="clean")
    start = {"0": 1, "1": 0, "version": since}
    assert Source(log.url).reader.partitions(start, {**start, "0": 2})


def test_some_partitions_can_be_read(log):
    """The option names them; one that does not exist is refused."""
    append(log, "a")
    append(log, "b", partition=1)
    assert Source(log.url, startingOffsets="earliest", partitions="1").batch() == [(1, 0, "b")]
    with pytest.raises(OptionError, match="partitions 0 to 1"):
        Source(log.url, partitions="2").batch()


def test_partitions_left_out_after_a_restart_stop_the_query(log, caplog):
    """As in Spark's Kafka source: otherwise what they get would be lost, or come again later."""
    append(log, "a")
    append(log, "b", partition=1)
    source = Source(log.url, startingOffsets="earliest")
    source.batch()
    restarted = Source(log.url, partitions="0")
    restarted.at = source.at
    with pytest.raises(NotFoundError, match=r"at \{1: 1\} of partitions"):
        restarted.batch()
    lenient = Source(log.url, partitions="0", failOnDataLoss="false")
    lenient.at = source.at
    assert [lenient.batch(), lenient.batch()] == [[], None]
    assert caplog.text.count("no longer reads") == 1


@pytest.mark.parametrize("at_once", [True, False])
def test_a_partition_that_is_read_again_continues_where_it_was(log, at_once):
    """Left out with failOnDataLoss=false: neither again from its start, nor from the end (S38). So
    it is if a batch that runs again is planned with it, or was planned without it.
    """
    append(log, *"abc")
    append(log, *"xyz", partition=1)
    source = Source(log.url, startingOffsets="earliest")
    assert len(source.batch()) == 6
    append(log, "d")
    append(log, "w", partition=1)
    narrow = restarted(log, source.at, partitions="0", failOnDataLoss="false")
    assert narrow.batch() == [(0, 3, "d")]
    if not at_once:
        append(log, "e")
        append(log, "v", partition=1)
        narrow = restarted(log, narrow.at, partitions="0")
        start, end = narrow.at, narrow.latest()
        wide = restarted(log, start)
        assert narrow.batch() == wide.run(start, end) == [(0, 4, "e")]
    left = [] if at_once else [(1, 4, "v")]
    wide = restarted(log, narrow.at)
    start, end = wide.at, wide.latest()
    assert "left_out" not in end
    assert wide.batch() == restarted(log, start).run(start, end) == [(1, 3, "w"), *left]
    assert wide.batch() is None


def test_what_a_partition_lost_while_it_was_left_out_is_told(log):
    """Deleted records (S38) and removed tombstones (S41), when it is read again; not before."""
    append(log, "a")
    append(log, *"xyz", partition=1)
    source = Source(log.url, startingOffsets="earliest", maxOffsetsPerTrigger="1")
    source.batch()
    log.handle.commit(lambda tip, ms: Edit(tombstones_removed={1: 2}), operation="clean")
    narrow = restarted(log, source.at, partitions="0", failOnDataLoss="false")
    narrow.batch()
    append(log, "b")
    assert narrow.batch() == [(0, 1, "b")]
    with pytest.raises(NotFoundError, match=r"tombstones up to offset 2 of partitions \[1\]"):
        restarted(log, narrow.at).batch()
    log.delete_records({1: 2})
    with pytest.raises(
        OffsetOutOfRangeError, match=r"offset 1 of partition 1 .*1 offsets are gone"
    ):
        restarted(log, narrow.at).batch()


def test_a_swept_object_is_found_in_a_newer_version(log):
    """Offsets are stable: the task continues after the last offset that it yielded, nothing twice
    (design: reading).
    """
    append(log, *"abc")
    append(log, *"de")
    source = Source(log.url, startingOffsets="earliest")
    end = source.latest()
    (partition,) = pickle.loads(pickle.dumps(source.reader.partitions(source.at, end)))
    old = [piece.object.path for piece in partition.pieces]
    rewrite(log, old)
    rows = [row for batch in source.task_reader.read(partition) for row in batch.to_pylist()]
    assert [row["value"].decode() for row in rows] == list("abcde")


def test_a_tombstone_removed_while_a_batch_is_read_is_told(log):
    """The rest of the batch is planned again from a version that may lack a delete (S41)."""
    append(log, *"abc")
    append(log, *"de")
    source = Source(log.url, startingOffsets="earliest")
    (partition,) = source.reader.partitions(source.at, source.latest())
    rewrite(log, [piece.object.path for piece in partition.pieces])
    log.handle.commit(lambda tip, ms: Edit(tombstones_removed={0: 4}), operation="clean")
    with pytest.raises(NotFoundError, match="tombstones up to offset 4"):
        list(source.task_reader.read(partition))


def rewrite(log, old):
    """Copies each object under another name, as coalescing does, and deletes the old ones' bytes
    but the first's.
    """
    handle = log.handle
    handle.refresh()
    (segment,) = handle.manifest().segments[0]
    chunks = []
    for i, chunk in enumerate(segment.chunks):
        path = chunk.object.path.replace(chunk.object.path[-10:-8], f"{i:02d}")
        handle.store.put(path, handle.store.get(chunk.object.path))
        chunks.append(replace(chunk, object=replace(chunk.object, path=path)))
    replacement = Replacement(
        0,
        segment.base,
        segment.next,
        tuple(chunk.identity for chunk in segment.chunks),
        tuple(chunks),
        None,
    )
    handle.commit(lambda tip, ms: Edit(replace=(replacement,)), operation="coalesce")
    for path in old[1:]:
        handle.store.delete(path)


def test_a_stream_has_no_table_view(log):
    """A table is a batch read."""
    with pytest.raises(OptionError, match="batch read"):
        Source(log.url, view="table")


@pytest.mark.parametrize(
    "option",
    [
        {"endingOffsets": '{"0": 1, "1": 1}'},
        {"endingOffsets": "latest"},
        {"endingTimestamp": "1767225600000"},
    ],
)
def test_a_stream_has_no_end(log, option):
    """Refused as in Spark's Kafka source: a stream that ignored it would read too much."""
    with pytest.raises(OptionError, match="a stream has no end"):
        Source(log.url, **option)


def test_a_log_that_is_not_there_is_named(tmp_path):
    """The error says where there is nothing, and comes from a shallow frame."""
    with pytest.raises(NotFoundError, match="no log at") as caught:
        Source(tmp_path / "nothing").batch()
    frames = caught.traceback
    assert frames[-1].name == "outermost"


def test_spark_gets_this_reader(log):
    """Through the data source, options in Spark's mapping."""
    reader = ClogDataSource({"path": log.url}).streamReader(
        read_schema(None, include_headers=False)
    )
    assert isinstance(reader, ClogStreamReader)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_stream_in_another_log_than_meant(log, fail):
    """S47: neither a start, whose `sinceVersion` is one of the intended log, nor a restart goes on
    there, even if data may be lost.
    """
    append(log, "a", "b")
    meant = log.handle.standing.log_id
    options = {"sinceVersion": "1", "logId": meant, "failOnDataLoss": fail}
    source = Source(log.url, **options)
    assert source.batch() == []
    shutil.rmtree(log.url)
    append(Log.create(log.url, partitions=2), "new")
    with pytest.raises(LogReplacedError, match=f"its id was {meant}, now it is"):
        Source(log.url, **options).batch()
    with pytest.raises(LogReplacedError, match=f"its id was {meant}, now it is"):
        restarted(log, source.at, **options).batch()


def test_a_query_with_a_name_tells_the_log_how_far_it_is(log, caplog):
    """S64: after a batch, and at its end; a position that cannot be reported fails no query."""
    append(log, "a", "b")
    options = {"readerId": "billing", "pollInterval": "0s", "startingOffsets": "earliest"}
    source = Source(log.url, **options, readerHold="8 days")
    assert len(source.batch()) == 2
    assert log.readers() == []
    source.reader.commit(source.at)
    (told,) = log.readers()
    assert (told.hold_ms, told.expires_ms - told.committed_ms) == (8 * 86_400_000, 8 * 86_400_000)
    assert (told.name, dict(told.position), told.lag_records) == ("billing", log.end_offsets(), 0)
    append(log, "c")
    source.batch()
    source.reader.commit(source.at)
    assert log.readers()[0].lag_records == 1
    source.reader.stop()
    assert log.readers()[0].lag_records == 0
    source.reader.commit({**source.at, "0": 10**6})
    assert "the position of reader billing was not recorded in its log" in caplog.text
    with pytest.raises(OptionError, match=r"readerId.*1 to 128 characters"):
        Source(log.url, readerId="a/b")
