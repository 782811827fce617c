"""Writes without Spark: planned in one process, run in tasks, committed in another, with pickles in
between.
"""

import json
import pickle
import shutil
import sys

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from clog.cleaner import Cleaner
from clog.connector import opened_logs
from clog.connector.datasource import ClogDataSource
from clog.connector.options import Location
from clog.connector.write import write_task
from clog.connector.write.write_task import TaskIds
from clog.storage import (
    ClogError,
    CommitStateUnknownError,
    InvalidInputError,
    LogReplacedError,
    NotFoundError,
    OptionError,
)
from clog.storage.administration import NewLog
from clog.storage.commit import tip as tip_tracker
from clog.storage.format.commits import Edit
from clog.storage.log import Log
from clog.storage.store import open_store
from clog_testing.counting import CountingStore

TYPES = {
    "key": StringType(),
    "value": StringType(),
    "partition": IntegerType(),
    "topic": StringType(),
    "timestamp": TimestampType(),
}
ARROW = {
    "key": pa.string(),
    "value": pa.string(),
    "partition": pa.int32(),
    "topic": pa.string(),
    "timestamp": pa.timestamp("us", "Europe/Berlin"),
}


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "orders")


class Sink:
    """Spark's side of a sink. ``tasks`` are lists of rows by column name."""

    def __init__(self, url, columns="key value", *, query=None, overwrite=False, **options):
        self.columns = columns.split()
        self.query = query
        schema = StructType([StructField(name, TYPES[name]) for name in self.columns])
        source = ClogDataSource({"path": str(url), **options})
        make = source.writer if query is None else source.streamWriter
        self.make = lambda: make(schema, overwrite)
        self.writer = self.make()

    def run(self, *tasks, batch=0):
        """The tasks' messages, as they arrive at the driver."""
        writer = pickle.loads(pickle.dumps(self.writer))
        messages = []
        for i, rows in enumerate(tasks):
            ids = TaskIds(self.query, batch if self.query else None, i)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(write_task.TaskIds, "current", classmethod(lambda cls, ids=ids: ids))
                messages.append(pickle.loads(pickle.dumps(writer.write(iter(self.batches(rows))))))
        return messages

    def batches(self, rows):
        for row in rows:  # One batch for each row: cuts must not matter.
            columns = [pa.array([row.get(c)], ARROW[c]) for c in self.columns]
            yield pa.RecordBatch.from_arrays(columns, names=self.columns)

    def commit(self, messages, batch=0):
        committer = self.make() if self.query else pickle.loads(pickle.dumps(self.writer))
        args = (messages,) if self.query is None else (messages, batch)
        committer.commit(*args)

    def write(self, *tasks, batch=0):
        self.commit(self.run(*tasks, batch=batch), batch)

    def begun(self):
        """The sink after its query's first batch, which had no rows."""
        self.write([], batch=0)
        return self


def rows_of(*pairs):
    return [{"key": k, "value": v} for k, v in pairs]


def read(url):
    return [
        (
            r["partition"],
            r["offset"],
            r["key"] and r["key"].decode(),
            r["value"] and r["value"].decode(),
        )
        for batch in Log.open(url).read()
        for r in batch.to_pylist()
    ]


def test_the_log_is_made_on_the_first_write(url):
    """With the partitions and configs of the options, which keep Kafka's names."""
    options = {"partitions": "3", "config.segment.bytes": "100000"}
    Sink(url, **options).write(rows_of(("a", "1")))
    log = Log.open(url)
    assert log.partitions == 3
    assert log.config["segment.bytes"] == "100000"
    assert len(read(url)) == 1
    Sink(url, **options).write(rows_of(("a", "2")))
    assert len(read(url)) == 2


def test_a_log_keeps_its_number_of_partitions(url):
    """Another number in the options is an error, none is not."""
    Sink(url, partitions="3")
    Sink(url)
    with pytest.raises(OptionError, match="has 3 partitions"):
        Sink(url, partitions="4")


def test_makers_of_one_log_agree(url, monkeypatch):
    """The second writer writes to the log that the first one made."""
    create = NewLog.create

    def slow(*args, **kwargs):
        monkeypatch.setattr(NewLog, "create", create)
        Log.create(url, partitions=2)
        return create(*args, **kwargs)

    monkeypatch.setattr(NewLog, "create", slow)
    Sink(url).write(rows_of(("a", "1")))
    assert Log.open(url).partitions == 2


def test_a_stream_makes_a_typed_log_by_its_first_commit(url):
    """Its tasks wrote for one that was not there; the process that commits has planned again."""
    stream = Sink(url, query="q", keyColumns="key")
    messages = stream.run(rows_of(("a", "1")), rows_of(("b", "2")))
    with pytest.raises(NotFoundError):
        Log.open(url)
    stream.commit(messages)
    stream.commit(messages)
    Sink(url, query="q").write(rows_of(("a", "3")), batch=1)
    found = [r for batch in Log.open(url).read() for r in batch.to_pylist()]
    assert sorted((r["key"], r["value"]["value"]) for r in found) == [
        ("a", "1"),
        ("a", "3"),
        ("b", "2"),
    ]


def test_order_is_that_of_sparks_partitions_then_of_rows(url):
    """In each partition of the log (S44)."""
    Sink(url, partitions="1").write(
        rows_of(("a", "1"), ("b", "1")), [], rows_of(("a", "2")), rows_of(("c", "1"), ("a", "3"))
    )
    assert [(k, v) for _, _, k, v in read(url)] == [
        ("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("a", "3"),
    ]  # fmt: skip


def test_a_batch_write_is_one_commit(url):
    """All tasks' rows are visible at once."""
    sink = Sink(url)
    before = Log.open(url).version
    sink.write(rows_of(("a", "1")), rows_of(("b", "1")))
    assert Log.open(url).version == before + 1


def test_an_empty_write_leaves_no_commit(url):
    """Neither of a batch nor of a stream, except for the first of a query: by that the log knows
    the query.
    """
    for query, batch in ((None, 0), ("q", 3)):
        sink = Sink(url, query=query)
        before = Log.open(url).version
        sink.write([], [], batch=batch)
        assert Log.open(url).version == before
    for _ in range(2):
        Sink(url, query="q").write([], [], batch=0)
        assert Log.open(url).version == before + 1
    assert read(url) == []


def test_a_query_whose_first_batch_was_empty_goes_on(url):
    """That batch too, if it has rows when it runs again."""
    sink = Sink(url, query="q")
    sink.write([], batch=0)
    sink.write(rows_of(("a", "0")), batch=0)
    sink.write(rows_of(("a", "1")), batch=1)
    other = Sink(url, query="other")
    other.write([], batch=0)
    other.write([], batch=1)
    other.write(rows_of(("a", "2")), batch=2)
    assert [v for *_, v in read(url)] == ["0", "1", "2"]


def test_a_query_that_the_log_does_not_know_fails_after_its_first_batch(url, caplog):
    """The log was deleted and recreated: what the query wrote before is not there, and nothing
    would show it. A failed batch that runs again fails again. If there was no log the error says
    where the empty one comes from.
    """
    sink = Sink(url, query="q")
    sink.write(rows_of(("a", "0")), batch=0)
    shutil.rmtree(url)
    opened_logs._LOGS.clear()
    for _ in range(2):
        told = r"batches before batch 1.*recreated.* is empty: a query creates one when it starts;"
        with pytest.raises(LogReplacedError, match=told):
            Sink(url, query="q").write(rows_of(("a", "1")), batch=1)
    assert read(url) == []
    Sink(url).write(rows_of(("a", "others'")))
    with pytest.raises(LogReplacedError, match=r"batches before batch 1.*nothing was appended; st"):
        Sink(url, query="q").write(rows_of(("a", "1")), batch=1)
    lenient = Sink(url, query="q", failOnChangedBatch="false")
    lenient.write(rows_of(("a", "1")), batch=1)
    assert "none of the batches before batch 1" in caplog.text
    Sink(url, query="q").write(rows_of(("a", "2")), batch=2)
    assert [v for *_, v in read(url)] == ["others'", "1", "2"]


def test_a_query_is_known_to_a_process_that_saw_the_log_long_ago(url):
    """It looks for newer versions before it decides anything."""
    sink = Sink(url, query="q")
    stale = opened_logs._LOGS.pop(sink.writer._plan.location)
    sink.write(rows_of(("a", "0")), batch=0)
    opened_logs._LOGS[sink.writer._plan.location] = stale
    assert stale.handle.tip.version == 0
    Sink(url, query="q").write(rows_of(("a", "1")), batch=1)
    assert len(read(url)) == 2


def test_a_partition_column_says_where_rows_go(url):
    """Null: by the key's hash, as without the column."""
    Sink(url, "key value partition", partitions="2").write(
        [{"key": k, "value": k, "partition": p} for k, p in (("a", 1), ("b", 0), ("c", None))]
    )
    by_key = {k: p for p, _, k, _ in read(url)}
    Sink(url + "2", partitions="2").write(rows_of(("c", "c")))
    assert by_key == {"a": 1, "b": 0, "c": read(url + "2")[0][0]}


def test_a_partition_that_does_not_exist_fails_the_task(url):
    """Before anything is committed."""
    sink = Sink(url, "key value partition", partitions="2")
    with pytest.raises(InvalidInputError, match="0 to 1"):
        sink.run([{"key": "a", "value": "a", "partition": 2}])


def test_a_topic_must_be_the_log(url):
    """Null is fine, another log's rows are not."""
    sink = Sink(url, "key value topic")
    sink.write([{"key": "a", "value": "1", "topic": "orders"}, {"key": "b", "value": "1"}])
    with pytest.raises(InvalidInputError, match="topics other than the log"):
        sink.run([{"key": "a", "value": "1", "topic": "payments"}])


def test_timestamps_are_instants_whatever_the_sessions_zone(url):
    """Spark passes them in the zone of the session; null becomes now."""
    Sink(url, "key value timestamp", partitions="1").write(
        [{"key": "a", "value": "1", "timestamp": 1_700_000_000_000_000}, {"key": "b", "value": "1"}]
    )
    first, second = (
        r["timestamp"].timestamp() for b in Log.open(url).read() for r in b.to_pylist()
    )
    assert first == 1_700_000_000
    assert second > first


def test_rows_without_key_are_refused_by_a_compacted_log(url):
    """Nothing of the batch is appended (S5)."""
    sink = Sink(url)
    messages = sink.run(rows_of(("a", "1")), rows_of((None, "1")))
    with pytest.raises(InvalidInputError, match="have no key"):
        sink.commit(messages)
    assert read(url) == []


def test_a_log_that_is_not_compacted_takes_rows_without_key(url):
    """They are distributed over the partitions in turn; the column may be missing."""
    Sink(url, "value", partitions="2", **{"config.cleanup.policy": "delete"}).write(
        [{"value": str(i)} for i in range(4)]
    )
    assert sorted(p for p, *_ in read(url)) == [0, 0, 1, 1]
    with pytest.raises(InvalidInputError, match="'key' is missing"):
        Sink(url + "2", "value")


def test_overwriting_is_refused(url):
    """In a batch and as output mode complete, with what to do instead."""
    with pytest.raises(InvalidInputError, match="delete-records"):
        Sink(url, overwrite=True)
    with pytest.raises(InvalidInputError, match="foreachBatch"):
        Sink(url, query="q", overwrite=True)


def test_a_transaction_version_is_written_once(url):
    """txnAppId and txnVersion as in Delta: at or below the last one is skipped."""
    for version, value in (("5", "first"), ("5", "again"), ("4", "older"), ("6", "next")):
        Sink(url, txnAppId="job", txnVersion=version).write(rows_of(("a", value)))
    Sink(url, txnAppId="other", txnVersion="1").write(rows_of(("a", "other")))
    assert [v for *_, v in read(url)] == ["first", "next", "other"]


@pytest.mark.parametrize(
    ("query", "options"),
    [(None, {"txnAppId": "a"}), (None, {"txnVersion": "1"}), ("q", {"txnVersion": "1"})],
)
def test_half_a_transaction_is_refused(url, query, options):
    """Both or neither; a stream counts by itself."""
    with pytest.raises(OptionError, match="txnVersion"):
        Sink(url, query=query, **options)


def test_a_transaction_version_beyond_64_bits_is_refused(url):
    """No log can store it: an error before anything is written."""
    with pytest.raises(OptionError, match=r'"txnVersion" .* 0 to 9223372036854775807'):
        Sink(url, txnAppId="a", txnVersion=str(2**63))


def test_a_batch_write_under_a_writer_id_is_refused(url):
    """It would append again each time, unnoticed."""
    with pytest.raises(OptionError, match="txnAppId"):
        Sink(url, writerId="job")


def test_two_batch_writes_in_one_streaming_batch_are_two(url):
    """The ids of the query in which they run are not taken for theirs."""
    sink = Sink(url)
    sink.query = "q"
    for _ in range(2):
        messages = sink.run(rows_of(("a", "1")), batch=7)
        sink.query = None
        sink.commit(messages)
        sink.query = "q"
    assert len(read(url)) == 2


def test_a_streaming_batch_that_runs_again_is_there_once(url, caplog):
    """Spark repeats the batch, with new tasks and objects, when it does not know that it was
    committed.
    """
    sink = Sink(url, query="q").begun()
    sink.write(rows_of(("a", "1")), rows_of(("b", "1")), batch=3)
    before = read(url)
    sink.write(rows_of(("a", "1")), rows_of(("b", "1")), batch=3)
    assert read(url) == before
    assert "other rows" not in caplog.text


def test_a_batch_with_other_rows_than_the_log_has_of_it_fails(url):
    """A checkpoint that was restored or copied runs another batch under this number: continuing
    silently would lose its rows.
    """
    sink = Sink(url, query="q").begun()
    sink.write(rows_of(("a", "1")), batch=3)
    for rows in (rows_of(("a", "2")), rows_of(("a", "1"), ("a", "1"))):
        with pytest.raises(InvalidInputError, match="failOnChangedBatch") as caught:
            sink.write(rows, batch=3)
        assert f"1 in version 2, {len(rows)} now" in str(caught.value)
    assert [v for *_, v in read(url)] == ["1"]


@pytest.mark.parametrize("left", [1, 0])
@pytest.mark.parametrize("batch", [0, 3])
@pytest.mark.parametrize("kind", ["stream", "txn"])
def test_a_batch_whose_source_was_cleaned_since(url, caplog, left, batch, kind):
    """Whether some of its rows are left or none (S78): the causes are named, and the way on that
    doubles nothing works.
    """
    strict, lenient = {}, {"failOnChangedBatch": "false"}
    if kind == "txn":
        named = {"txnAppId": "job", "txnVersion": str(batch)}
        strict, lenient = {**named, "failOnChangedBatch": "true"}, {**named, **lenient}
    query = None if kind == "txn" else "q"
    if query:
        Sink(url, query=query).begun()
    Sink(url, query=query, **strict).write(rows_of(("a", "1"), ("b", "1")), batch=batch)
    rows, before = rows_of(("b", "1"))[:left], read(url)
    told = rf"2 in version \d+, {left} now; nothing was appended; if records of the source were"
    with pytest.raises(InvalidInputError, match=f"{told} cleaned since .*appends everything again"):
        Sink(url, query=query, **strict).write(rows, batch=batch)
    Sink(url, query=query, **lenient).write(rows, batch=batch)
    Sink(url, query=query, **strict).write(rows_of(("b", "1"), ("a", "1")), batch=batch)
    assert read(url) == before


def test_an_empty_batch_costs_one_look_and_no_write(url, monkeypatch):
    """Whether the log has rows of it, which were cleaned away in the source since."""
    sink = Sink(url, query="q").begun()
    counting = CountingStore(open_store(url))
    monkeypatch.setattr(Location, "store", lambda self: counting)
    opened_logs._LOGS.clear()
    monkeypatch.setitem(sys.modules, "pyspark.sql.worker.python_streaming_sink_runner", sys)
    costs = []
    for batch in range(1, 5):
        messages = sink.run([], batch=batch)
        with counting.count() as requests:
            sink.make().commit(messages, batch)
        costs.append(dict(requests))
    assert costs[1:] == [{"get": 1}] * 3
    opened_logs._LOGS.clear()


def test_the_first_of_two_different_runs_of_a_batch_can_stay(url, caplog):
    """A query that does not repeat itself is reported."""
    sink = Sink(url, query="q", failOnChangedBatch="false").begun()
    sink.write(rows_of(("a", "1")), batch=3)
    sink.write(rows_of(("a", "2")), batch=3)
    assert [v for *_, v in read(url)] == ["1"]
    assert "batch 3 of 'q' is in" in caplog.text


def test_rows_in_another_order_are_the_same_batch(url, caplog):
    """A shuffle repeats neither their order, nor which task has them."""
    sink = Sink(url, query="q").begun()
    sink.write(rows_of(("a", "1"), ("b", "1")), rows_of(("c", None)), batch=3)
    before = read(url)
    sink.write(rows_of(("c", None), ("b", "1")), rows_of(("a", "1")), batch=3)
    assert read(url) == before
    assert not [r for r in caplog.records if r.levelname == "WARNING"]


def test_a_batch_is_compared_with_what_it_brought_not_with_what_is_left(url):
    """Rows that were cleaned since are part of it, until its version expires (S27)."""
    sink = Sink(url, query="q", partitions="1").begun()
    sink.write(rows_of(("a", "1"), ("a", "2")), batch=3)
    log = Log.open(url)
    log.roll()
    Cleaner(log).run_once(force=True)
    assert [v for *_, v in read(url)] == ["2"]
    sink.write(rows_of(("a", "2"), ("a", "1")), batch=3)
    newest = log.version
    log.handle.commit(lambda tip, ms: Edit(oldest_readable=newest), operation="sweep")
    sink.write(rows_of(("a", "1"), ("a", "2")), batch=3)
    opened_logs._LOGS.clear()
    told = "perhaps with other rows: version 2, which has it, expired; nothing was appended"
    with pytest.raises(InvalidInputError, match=told):
        sink.write(rows_of(("a", "2"), ("a", "1")), batch=3)


def test_a_transaction_with_other_rows_fails_where_that_is_asked_for(url):
    """For a job whose batches come from a checkpoint; a later one reports it too."""
    options = {"txnAppId": "job", "failOnChangedBatch": "true"}
    Sink(url, txnVersion="5", **options).write(rows_of(("a", "1"), ("b", "1")))
    Sink(url, txnVersion="5", **options).write(rows_of(("b", "1")), rows_of(("a", "1")))
    with pytest.raises(InvalidInputError, match=r"txnVersion 5 of 'job' .*2 in version 1, 1 now"):
        Sink(url, txnVersion="5", **options).write(rows_of(("a", "1")))
    with pytest.raises(InvalidInputError, match="or was skipped: a later one, 5, is there"):
        Sink(url, txnVersion="4", **options).write(rows_of(("a", "1")))
    assert len(read(url)) == 2


def test_a_batch_that_ran_empty_can_come_with_rows(url):
    """An empty one leaves no trace, so nothing is lost."""
    sink = Sink(url, query="q").begun()
    sink.write([], batch=1)
    sink.write(rows_of(("a", "1")), batch=1)
    assert len(read(url)) == 1


def test_two_drivers_on_one_checkpoint_write_a_batch_once(url):
    """Both reach the commit; the log decides, and the slower one returns as if it had won."""
    one, two = Sink(url, query="q"), Sink(url, query="q")
    messages = one.run(rows_of(("a", "1"))), two.run(rows_of(("a", "1")))
    one.commit(messages[0])
    two.commit(messages[1])
    assert len(read(url)) == 1


def test_two_queries_are_independent(url):
    """Without a writerId each is a separate writer."""
    Sink(url, query="q1").write(rows_of(("a", "1")))
    Sink(url, query="q2").write(rows_of(("a", "2")))
    assert len(read(url)) == 2


@pytest.mark.parametrize("option", ["writerId", "txnAppId"])
def test_another_query_under_a_writer_id_is_refused(url, option):
    """A checkpoint that was recreated, or a second query: batches would be dropped as known."""
    Sink(url, query="q1", **{option: "job"}).begun().write(rows_of(("a", "1")), batch=4)
    for batch in (0, 4, 5):
        with pytest.raises(InvalidInputError, match="writerId") as caught:
            Sink(url, query="q2", **{option: "job"}).write(rows_of(("a", "2")), batch=batch)
        assert "q1" in str(caught.value)
    assert len(read(url)) == 1


def test_an_older_batch_is_refused(url):
    """A checkpoint that was restored: continuing silently would lose its rows."""
    sink = Sink(url, query="q").begun()
    sink.write(rows_of(("a", "1")), batch=4)
    with pytest.raises(InvalidInputError, match=r"batch 4 .*batch 3 .*checkpoint was restored"):
        sink.write(rows_of(("a", "2")), batch=3)


def test_aborting_deletes_nothing(url):
    """Spark also aborts after a commit whose result it did not get; it passes None for failed
    tasks.
    """
    sink = Sink(url, query="q")
    messages = sink.run(rows_of(("a", "1")))
    sink.commit(messages)
    sink.make().abort([*messages, None], 0)
    assert len(read(url)) == 1


def test_a_sink_made_to_commit_or_abort_looks_at_nothing_before(url, monkeypatch):
    """Spark would show an error there, of each of the two, as "Writing job failed"; what is wrong
    with the log is told by the commit.
    """
    Sink(url, query="q").begun()
    sink = Sink(url, query="q", logId=Log.open(url).id)
    messages = sink.run(rows_of(("a", "1")), batch=1)
    shutil.rmtree(url)
    opened_logs._LOGS.clear()
    with pytest.raises(NotFoundError):
        sink.make()
    monkeypatch.setitem(sys.modules, "pyspark.sql.worker.python_streaming_sink_runner", sys)
    with pytest.raises(NotFoundError, match="no log at"):
        sink.make().commit(messages, 1)
    sink.make().abort(messages, 1)


def test_an_unknown_outcome_is_told_and_settled_by_the_next_run(url, monkeypatch):
    """The batch was committed, its reply lost: run again, it is there once."""
    sink = Sink(url, query="q")
    messages = sink.run(rows_of(("a", "1")))
    append = Log.append_objects

    def lost(self, *args):
        append(self, *args)
        raise CommitStateUnknownError("the outcome of commit 1 is unknown")

    with monkeypatch.context() as patch:
        patch.setattr(Log, "append_objects", lost)
        with pytest.raises(CommitStateUnknownError):
            sink.commit(messages)
    sink.write(rows_of(("a", "1")))
    assert len(read(url)) == 1


def test_a_retried_tasks_first_objects_are_not_committed(url):
    """Only what is in the message of the successful attempt."""
    sink = Sink(url, query="q")
    sink.run(rows_of(("a", "1")))
    sink.write(rows_of(("a", "1")))
    assert len(read(url)) == 1


def test_a_log_that_is_recreated_is_not_written_with_what_is_known_of_the_old(url):
    """Versions would follow versions that are gone."""
    sink = Sink(url, query="q")
    for batch in range(3):
        sink.write(rows_of(("a", "1")), batch=batch)
    stale = sink.run(rows_of(("a", "2")), batch=3)
    shutil.rmtree(url)
    with pytest.raises(ClogError):
        sink.commit(stale, batch=3)
    shutil.rmtree(url, ignore_errors=True)
    opened_logs._LOGS.clear()
    anew = Sink(url, query="q")
    with pytest.raises(NotFoundError, match="deleted and recreated"):
        anew.commit(stale, batch=3)
    anew.write(rows_of(("a", "3")), batch=0)
    assert [v for *_, v in read(url)] == ["3"]


def test_a_log_that_was_restored_is_opened_anew(url, tmp_path, monkeypatch, caplog):
    """A process that knows a version which the restored copy lacks fails no batch after the one
    that noticed, if any: it opens the log that is there (S47).
    """
    monkeypatch.setattr(tip_tracker, "CONFIRM_MS", 0)
    sink = Sink(url)
    sink.write(rows_of(("a", "1")))
    shutil.copytree(url, tmp_path / "copy")
    sink.write(rows_of(("a", "2")))
    shutil.rmtree(url)
    shutil.copytree(tmp_path / "copy", url)
    for value in ("3", "4"):
        Sink(url).write(rows_of(("a", value)))
    assert [v for *_, v in read(url)] == ["1", "3", "4"]
    (warning,) = [r.getMessage() for r in caplog.records if "opening" in r.getMessage()]
    assert "may not be in the log that is there now: version 2 of" in warning
    assert "restored from a copy" in warning


def test_a_warm_batch_costs_few_requests(url, monkeypatch):
    """Opening reads the newest commit again; committing creates the next and checks its block.

    Nothing grows with the number of batches, nothing is listed.
    """
    counting = CountingStore(open_store(url))
    monkeypatch.setattr(Location, "store", lambda self: counting)
    monkeypatch.setattr(write_task.Location, "store", lambda self: counting)
    opened_logs._LOGS.clear()
    sink = Sink(url, query="q")
    costs = []
    for batch in range(9):
        sink.writer = sink.make()
        messages = sink.run(rows_of(("a", "1")), rows_of(("b", "1")), batch=batch)
        with counting.count() as requests:
            sink.writer = sink.make()
            sink.writer.commit(messages, batch)
        costs.append(dict(requests))
    # In Spark planning and committing are two processes: one look at the newest commit each.
    assert costs[5] == costs[6] == {"get": 2, "create": 1}
    opened_logs._LOGS.clear()


@pytest.mark.s3
def test_storage_options_reach_the_filesystem(s3_bucket, s3_options):
    """From the options of the write and the read, in tasks and on the driver."""
    url = f"s3://{s3_bucket}/logs/orders"
    storage = {"storage_options": json.dumps(s3_options)}
    sink = Sink(url, query="q", **storage).begun()
    for _ in range(2):
        sink.write(rows_of(("a", "1"), ("b", "1")), batch=1)
    assert s3_options["secret"] not in repr(sink.writer._plan)
    source = ClogDataSource({"path": url, **storage})
    reader = source.reader(source.schema())
    batches = [batch for p in reader.partitions() for batch in reader.read(p)]
    assert sum(batch.num_rows for batch in batches) == 2
