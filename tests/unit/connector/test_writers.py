"""Writes without Spark: planned in one process, run in tasks, committed in another, with pickles
between.
"""

import json
import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from clog.connector import opened_logs, writing
from clog.connector.datasource import ClogDataSource
from clog.connector.location import Location
from clog.connector.writing import TaskIds
from clog.storage import (
    ClogError,
    CommitStateUnknownError,
    InvalidInputError,
    NotFoundError,
    OptionError,
)
from clog.storage.log import Log
from clog.storage.store import open_store
from clog.storage.testing.counting import CountingStore

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
        """The tasks' messages, as they reach the driver."""
        writer = pickle.loads(pickle.dumps(self.writer))
        messages = []
        for i, rows in enumerate(tasks):
            ids = TaskIds(self.query, batch if self.query else None, i)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(writing.TaskIds, "current", classmethod(lambda cls, ids=ids: ids))
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
    """Another number in the options is a mistake, none is not."""
    Sink(url, partitions="3")
    Sink(url)
    with pytest.raises(OptionError, match="has 3 partitions"):
        Sink(url, partitions="4")


def test_makers_of_one_log_agree(url, monkeypatch):
    """Who comes second writes to the log that the first one made."""
    create = Log.create

    def slow(*args, **kwargs):
        create(url, partitions=2)
        return create(*args, **kwargs)

    monkeypatch.setattr(Log, "create", slow)
    Sink(url).write(rows_of(("a", "1")))
    assert Log.open(url).partitions == 2


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
    """Neither of a batch nor of a stream."""
    for query in (None, "q"):
        sink = Sink(url, query=query)
        before = Log.open(url).version
        sink.write([], [])
        assert Log.open(url).version == before


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
    with pytest.raises(InvalidInputError, match="another topic"):
        sink.run([{"key": "a", "value": "1", "topic": "payments"}])


def test_timestamps_are_instants_whatever_the_sessions_zone(url):
    """Spark hands them over in the zone of the session; null becomes now."""
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
    """They go round the partitions; the column may be missing."""
    Sink(url, "value", partitions="2", **{"config.cleanup.policy": "delete"}).write(
        [{"value": str(i)} for i in range(4)]
    )
    assert sorted(p for p, *_ in read(url)) == [0, 0, 1, 1]
    with pytest.raises(InvalidInputError, match="'key' is missing"):
        Sink(url + "2", "value")


def test_overwriting_is_refused(url):
    """Both in a batch and as output mode complete, with what to do instead."""
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


def test_a_batch_write_under_a_writer_id_is_refused(url):
    """It would append again each time, unnoticed."""
    with pytest.raises(OptionError, match="txnAppId"):
        Sink(url, writerId="job")


def test_two_batch_writes_in_one_streaming_batch_are_two(url):
    """The ids of the query they run in are not taken for theirs."""
    sink = Sink(url)
    sink.query = "q"
    for _ in range(2):
        messages = sink.run(rows_of(("a", "1")), batch=7)
        sink.query = None
        sink.commit(messages)
        sink.query = "q"
    assert len(read(url)) == 2


def test_a_streaming_batch_that_runs_again_is_there_once(url, caplog):
    """Spark repeats the batch, with fresh tasks and objects, when it does not know that it was
    committed.
    """
    sink = Sink(url, query="q")
    sink.write(rows_of(("a", "1")), rows_of(("b", "1")), batch=3)
    before = read(url)
    sink.write(rows_of(("a", "1")), rows_of(("b", "1")), batch=3)
    assert read(url) == before
    assert "other rows" not in caplog.text


def test_the_first_of_two_different_runs_of_a_batch_stays(url, caplog):
    """A query that does not repeat itself is told of."""
    sink = Sink(url, query="q")
    sink.write(rows_of(("a", "1")), batch=3)
    sink.write(rows_of(("a", "2")), batch=3)
    assert [v for *_, v in read(url)] == ["1"]
    assert "with other rows than now" in caplog.text


def test_a_batch_that_ran_empty_can_come_with_rows(url):
    """An empty one leaves no trace, so nothing is lost."""
    sink = Sink(url, query="q")
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
    """Without a writerId each is its own writer."""
    Sink(url, query="q1").write(rows_of(("a", "1")))
    Sink(url, query="q2").write(rows_of(("a", "2")))
    assert len(read(url)) == 2


@pytest.mark.parametrize("option", ["writerId", "txnAppId"])
def test_another_query_under_a_writer_id_is_refused(url, option):
    """A checkpoint that was made anew, or a second query: batches would be dropped as known."""
    Sink(url, query="q1", **{option: "job"}).write(rows_of(("a", "1")), batch=4)
    for batch in (0, 4, 5):
        with pytest.raises(InvalidInputError, match="writerId") as caught:
            Sink(url, query="q2", **{option: "job"}).write(rows_of(("a", "2")), batch=batch)
        assert "q1" in str(caught.value)
    assert len(read(url)) == 1


def test_an_older_batch_is_refused(url):
    """A checkpoint that was put back: silence would lose its rows."""
    sink = Sink(url, query="q")
    sink.write(rows_of(("a", "1")), batch=4)
    with pytest.raises(InvalidInputError, match="4"):
        sink.write(rows_of(("a", "2")), batch=3)


def test_aborting_deletes_nothing(url):
    """Spark aborts also after a commit of which it heard nothing; it is given None for tasks that
    failed.
    """
    sink = Sink(url, query="q")
    messages = sink.run(rows_of(("a", "1")))
    sink.commit(messages)
    sink.make().abort([*messages, None], 0)
    assert len(read(url)) == 1


def test_an_unknown_outcome_is_told_and_settled_by_the_next_run(url, monkeypatch):
    """The batch was committed, its reply lost: run again, it is there once."""
    sink = Sink(url, query="q")
    messages = sink.run(rows_of(("a", "1")))
    append = Log.append_objects

    def lost(self, *args):
        append(self, *args)
        raise CommitStateUnknownError("commit 1 may have happened")

    with monkeypatch.context() as patch:
        patch.setattr(Log, "append_objects", lost)
        with pytest.raises(CommitStateUnknownError):
            sink.commit(messages)
    sink.write(rows_of(("a", "1")))
    assert len(read(url)) == 1


def test_a_retried_tasks_first_objects_are_not_committed(url):
    """Only what is in the message of the attempt that succeeded."""
    sink = Sink(url, query="q")
    sink.run(rows_of(("a", "1")))
    sink.write(rows_of(("a", "1")))
    assert len(read(url)) == 1


def test_a_log_that_is_made_anew_is_not_written_with_what_is_known_of_the_old(url):
    """Versions would follow on versions that are gone."""
    import shutil

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
    with pytest.raises(NotFoundError, match="made anew"):
        anew.commit(stale, batch=3)
    anew.write(rows_of(("a", "3")), batch=0)
    assert [v for *_, v in read(url)] == ["3"]


def test_a_warm_batch_costs_few_requests(url, monkeypatch):
    """Opening reads the newest commit again; committing creates the next and checks its block.

    Nothing grows with the number of batches, nothing is listed.
    """
    counting = CountingStore(open_store(url))
    monkeypatch.setattr(Location, "store", lambda self: counting)
    monkeypatch.setattr(writing.Location, "store", lambda self: counting)
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
    sink = Sink(url, query="q", **storage)
    for _ in range(2):
        sink.write(rows_of(("a", "1"), ("b", "1")), batch=1)
    assert s3_options["secret"] not in repr(sink.writer._plan)
    source = ClogDataSource({"path": url, **storage})
    reader = source.reader(source.schema())
    batches = [batch for p in reader.partitions() for batch in reader.read(p)]
    assert sum(batch.num_rows for batch in batches) == 2
