"""The batch read and the table view without Spark."""

import pickle
import random
import shutil

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader, InputPartition

from clog.connector import datasource
from clog.connector.datasource import ClogDataSource
from clog.connector.read import batch_reader
from clog.connector.schema import arrow_schema
from clog.storage import (
    InvalidInputError,
    LogReplacedError,
    NotFoundError,
    OffsetOutOfRangeError,
    OptionError,
    VersionExpiredError,
)
from clog.storage.log import Log
from clog.storage.read import lookup
from clog.storage.read.lookup import pieces_of_keys
from clog.storage.read.scan import plan_range
from clog_testing.crash import expire
from clog_testing.undecided import append_undecided, end


@pytest.fixture
def log(tmp_path):
    log = Log.create(str(tmp_path / "orders"), partitions=2)
    log.append([{"key": k, "value": f"{k}1", "timestamp": 1000} for k in "ab"], partition=0)
    log.append([{"key": "c", "value": "c1", "headers": [("h", b"x")]}], partition=1)
    log.append([{"key": "a", "value": "a2"}, {"key": "b", "value": None}], partition=0)
    return log


def plan(url, **options):
    """A reader as tasks get it, and its partitions."""
    source = ClogDataSource({"path": url, **options})
    reader = source.reader(source.schema())
    partitions = pickle.loads(pickle.dumps(reader.partitions()))
    return pickle.loads(pickle.dumps(reader)), partitions


def rows(url, **options):
    reader, partitions = plan(url, **options)
    return [r for p in partitions for batch in reader.read(p) for r in batch.to_pylist()]


def offsets(url, **options):
    return [(r["partition"], r["offset"]) for r in rows(url, **options)]


ALL = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]


def test_a_read_ends_where_all_is_decided(log):
    """S51, S55: with read_uncommitted it continues; a start beyond is accepted, and
    yields nothing.
    """
    append_undecided(log, [{"key": "u", "value": "1"}], partition=1)
    log.append([{"key": "v", "value": "1"}], partition=1)
    assert offsets(log.url) == ALL
    assert offsets(log.url, isolation="read_uncommitted") == [*ALL, (1, 1), (1, 2)]
    later = '{"0": 0, "1": 2}'
    assert offsets(log.url, startingOffsets=later) == ALL[:4]
    assert offsets(log.url, startingOffsets=later, isolation="read_uncommitted")[4:] == [(1, 2)]
    assert len(rows(log.url, view="table")) == 2
    with pytest.raises(OptionError, match="leave one of them out"):
        rows(log.url, view="table", isolation="read_uncommitted")
    with pytest.raises(OptionError, match="read_committed"):
        rows(log.url, isolation="serializable")
    end(log, commit=False)
    assert offsets(log.url) == [*ALL, (1, 2)]
    assert offsets(log.url, isolation="read_uncommitted") == [*ALL, (1, 2)]


def test_an_end_among_undecided_records_is_refused(log, caplog):
    """S51: a job that continues from there would never see them. A start there is a position, and
    so is an end that is not later.
    """
    append_undecided(log, [{"key": "u", "value": "1"}], partition=1)
    log.append([{"key": "v", "value": "1"}], partition=1)
    ending = {"endingOffsets": '{"0": -1, "1": 3}'}
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 3 .*from offset 1 on .*-1 or at most"):
        offsets(log.url, **ending)
    assert offsets(log.url, **ending, isolation="read_uncommitted") == [*ALL, (1, 1), (1, 2)]
    assert offsets(log.url, **ending, failOnDataLoss="false") == ALL
    assert "reading up to 1" in caplog.text
    for at in ('{"0": 0, "1": 3}', '{"0": 0, "1": 2}'):
        assert offsets(log.url, startingOffsets=at, endingOffsets='{"0": 4, "1": -1}') == ALL[:4]
    assert offsets(log.url, startingOffsets='{"0": 0, "1": 3}', **ending) == ALL[:4]
    end(log, commit=True)
    assert offsets(log.url, **ending) == [*ALL, (1, 1), (1, 2)]


def test_a_record_has_kafkas_columns(log):
    """Key and value as bytes, the log's name as topic, a tombstone as null (S4)."""
    first, *_, tombstone, last = rows(log.url, includeHeaders="true")
    assert first["timestamp"].timestamp() == 1
    del first["timestamp"]
    assert first == {
        "key": b"a",
        "value": b"a1",
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "timestampType": 0,
        "headers": None,
    }
    assert (tombstone["key"], tombstone["value"]) == (b"b", None)
    assert last["headers"] == [{"key": "h", "value": b"x"}]


def test_every_batch_has_exactly_sparks_schema(log):
    """Spark compares types, order and nullability of the first batch, and trusts the others."""
    source = ClogDataSource({"path": log.url, "includeHeaders": "true"})
    schema = source.schema()
    reader = source.reader(schema)
    batches = [batch for p in reader.partitions() for batch in reader.read(p)]
    assert batches
    for batch in batches:
        assert batch.schema.equals(arrow_schema(schema))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ALL),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, ALL),
        ({"startingOffsets": '{"0": 1, "1": -2}'}, ALL[1:]),
        ({"startingOffsets": '{"0": 1, "1": 1}', "endingOffsets": '{"0": 3, "1": -1}'}, ALL[1:3]),
        ({"startingOffsets": '{"0": 4, "1": 0}'}, ALL[4:]),
        ({"startingOffsets": '{"orders": "earliest"}'}, ALL),
        ({"endingOffsets": '{"orders": "latest"}'}, ALL),
        ({"endingOffsets": '{"0": 0, "1": 0}'}, []),
        ({"partitions": "1"}, ALL[4:]),
    ],
)  # fmt: skip
def test_a_read_has_the_offsets_asked_for(log, options, expected):
    """Half-open, by partition (S38, S39)."""
    assert offsets(log.url, **options) == expected


@pytest.fixture
def timed(tmp_path):
    """Partition 0 at 1, 2, 3 s; partition 1 at 2 s; a chunk each."""
    log = Log.create(str(tmp_path / "orders"), partitions=2)
    for p, second in ((0, 1), (0, 2), (1, 2), (0, 3)):
        log.append([{"key": "k", "value": "v", "timestamp": second * 1000}], partition=p)
    return log


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingTimestamp": "2000"}, [(0, 1), (0, 2), (1, 0)]),
        ({"endingTimestamp": "2000"}, [(0, 0)]),
        ({"startingTimestamp": "1001", "endingTimestamp": "3000"}, [(0, 1), (1, 0)]),
        ({"startingTimestamp": "0", "startingOffsets": '{"0": 3, "1": 1}'},
         [(0, 0), (0, 1), (0, 2), (1, 0)]),
        ({"endingTimestamp": "9999"}, [(0, 0), (0, 1), (0, 2), (1, 0)]),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": 3000, "1": 0}}'}, [(0, 2), (1, 0)]),
        ({"endingOffsetsByTimestamp": '{"0": 3000, "1": 3000}'}, [(0, 0), (0, 1), (1, 0)]),
        ({"startingTimestamp": "3000", "startingOffsetsByTimestampStrategy": "latest"}, [(0, 2)]),
        ({"startingTimestamp": "3000", "partitions": "0"}, [(0, 2)]),
    ],
)  # fmt: skip
def test_a_read_is_bounded_by_time(timed, options, expected):
    """From the first record that is not earlier, by partition (S39)."""
    assert offsets(timed.url, **options) == expected


def test_a_start_later_than_every_record_is_an_error(timed):
    """As in Kafka: the message names the partition and the remedy."""
    with pytest.raises(OptionError, match=r"\[1\].*no record at or after.*Strategy=latest"):
        offsets(timed.url, startingTimestamp="3000")
    with pytest.raises(OptionError, match=r"does not name partitions \[1\]"):
        offsets(timed.url, startingOffsetsByTimestamp='{"0": 1000}')


@pytest.mark.parametrize("whole_bytes", [0, 1 << 20])
@pytest.mark.parametrize("columns", [None, "offset,partition"])
def test_keys_choose_records(log, monkeypatch, whole_bytes, columns):
    """Every record of them, in the log and in its table; large objects are searched first."""
    monkeypatch.setattr(lookup, "WHOLE_BYTES", whole_bytes)
    options = {} if columns is None else {"columns": columns}
    assert offsets(log.url, keys='["a", "c"]', **options) == [(0, 0), (0, 2), (1, 0)]
    assert offsets(log.url, keysBase64='["Yg=="]', **options) == [(0, 1), (0, 3)]
    assert offsets(log.url, keys='["nobody"]', **options) == []
    assert offsets(log.url, view="table", keys='["a", "b"]', **options) == [(0, 2)]


def test_a_large_object_is_searched_by_its_keys(tmp_path):
    """What remains to be read is between the first and the last record of these keys."""
    log = Log.create(str(tmp_path / "orders"), partitions=1)
    noise = random.Random(1).randbytes
    log.append([{"key": f"k{i}", "value": noise(1000)} for i in range(2000)])
    pieces = plan_range(log.handle.manifest(), 0, 5, 2000)
    store = log.handle.store
    (piece,) = pieces_of_keys(store, pieces, [b"k1", b"k7", b"k12"], 0)
    assert (piece.first_row, piece.rows, piece.base, piece.start, piece.end) == (7, 6, 7, 7, 13)
    assert list(pieces_of_keys(store, pieces, [b"k1", b"nobody"], 0)) == []


@pytest.mark.parametrize("columns", ["offset", "value", "topic", "timestampType", "key,partition"])
def test_only_the_columns_asked_for_come(log, columns):
    """Also those that no object stores."""
    assert [tuple(r) for r in rows(log.url, columns=columns)] == [tuple(columns.split(","))] * 5


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"0": -1, "1": 0}'},
        {"startingOffsets": '{"orders": "latest"}'},
        {"endingOffsets": '{"orders": "earliest"}'},
        {"endingOffsets": "earliest"},
        {"endingOffsets": '{"0": -2, "1": 0}'},
        {"view": "table", "endingOffsets": '{"0": 1, "1": 0}'},
        {"view": "table", "startingTimestamp": "0"},
        {"partitions": "2"},
        {"startingOffsets": '{"0": 1}'},
    ],
)
def test_options_that_read_nothing_sensible_are_refused(log, options):
    """As in Spark's Kafka source."""
    with pytest.raises(OptionError):
        rows(log.url, **options)


def test_deleted_offsets_fail_or_are_passed_over(log, caplog):
    """failOnDataLoss decides which; either way the numbers are reported (S38)."""
    log.delete_records({0: 2})
    start = '{"0": 1, "1": 0}'
    with pytest.raises(OffsetOutOfRangeError, match="below the log start offset 2"):
        rows(log.url, startingOffsets=start)
    assert offsets(log.url, startingOffsets=start, failOnDataLoss="false") == ALL[2:]
    assert "1 offsets are gone" in caplog.text
    assert offsets(log.url) == ALL[2:]


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": '{"0": 3, "1": 0}', "endingOffsets": '{"0": 2, "1": -1}'},
        {"startingOffsets": '{"0": 3, "1": 0}', "endingTimestamp": "2000"},
    ],
)
def test_a_start_after_the_end_is_an_error(log, options):
    """Not an empty read: both offsets are named, given or found by time, whatever failOnDataLoss
    says (S38).
    """
    for lenient in ("true", "false"):
        with pytest.raises(OptionError, match=r"0 of .* starts at offset 3 and ends at 2"):
            offsets(log.url, failOnDataLoss=lenient, **options)


def test_an_end_beyond_the_log_fails_or_is_cut(log, caplog):
    """Kafka's source waits in vain for such records; the end itself is a valid position (S38)."""
    end = '{"0": 9, "1": -1}'
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 9 .*beyond the end offset 4"):
        offsets(log.url, endingOffsets=end)
    assert offsets(log.url, endingOffsets=end, failOnDataLoss="false") == ALL
    assert "ending offset 9 of partition 0" in caplog.text
    assert offsets(log.url, endingOffsets='{"0": 4, "1": 1}') == ALL


def test_an_end_below_the_log_start_fails_or_is_told(log, caplog):
    """Everything that was requested is deleted: an empty read would look like an empty
    log (S38).
    """
    log.delete_records({0: 3})
    end = '{"0": 2, "1": -1}'
    for start in ({}, {"startingOffsets": '{"0": -2, "1": -2}'}):
        with pytest.raises(OffsetOutOfRangeError, match=r"ending offset 2 .*log start offset 3"):
            offsets(log.url, endingOffsets=end, **start)
    caplog.clear()
    assert offsets(log.url, endingOffsets=end, failOnDataLoss="false") == ALL[4:]
    assert "ending offset 2 of partition 0" in caplog.text
    start = {"startingOffsets": '{"0": 1, "1": 0}', "failOnDataLoss": "false"}
    assert offsets(log.url, endingOffsets=end, **start) == ALL[4:]
    assert offsets(log.url, endingOffsets='{"0": 3, "1": -1}') == ALL[4:]


def test_a_plan_is_pinned_to_its_version(log):
    """Later appends are not in it; what expires is an error, not a mix of versions."""
    reader, partitions = plan(log.url)
    log.append([{"key": "z", "value": "z1"}])
    assert len([r for p in partitions for b in reader.read(p) for r in b.to_pylist()]) == 5
    expire(log)
    with pytest.raises(VersionExpiredError, match=r"load\(\) again"):
        list(reader.read(partitions[0]))
    reader, partitions = plan(log.url, view="table")


def test_the_table_view_has_the_latest_value_of_each_key(log):
    """Deleted keys are absent (S4)."""
    assert sorted((r["key"], r["value"]) for r in rows(log.url, view="table")) == [
        (b"a", b"a2"),
        (b"c", b"c1"),
    ]


@pytest.mark.parametrize("view", ["log", "table"])
def test_an_empty_log_has_no_tasks(tmp_path, view):
    """Spark creates a partition without any of it, which reads as nothing."""
    log = Log.create(str(tmp_path / "empty"))
    reader, partitions = plan(log.url, view=view)
    assert partitions == []
    assert list(reader.read(InputPartition(None))) == []


def test_timestamp_types_are_those_of_each_record(log):
    """A change of message.timestamp.type counts for records from then on (S9, S42)."""
    log.alter({"message.timestamp.type": "LogAppendTime"})
    log.append([{"key": "d", "value": "d1"}], partition=0)
    for view, before in (("log", 5), ("table", 2)):
        kinds = {
            r["offset"]: r["timestampType"] for r in rows(log.url, view=view) if not r["partition"]
        }
        assert kinds[4] == 1
        assert set(kinds.values()) == {0, 1}
        assert len(rows(log.url, view=view)) == before + 1
        assert [tuple(r) for r in rows(log.url, view=view, columns="timestampType")]


def test_small_batches_are_put_together(tmp_path):
    """Many appends of few records do not become as many Arrow batches."""
    log = Log.create(str(tmp_path / "small"), partitions=1)
    for i in range(20):
        log.append([{"key": str(i), "value": "v"}])
    reader, (partition,) = plan(log.url)
    assert [batch.num_rows for batch in reader.read(partition)] == [20]


def test_a_log_that_is_not_there_is_named(tmp_path):
    """At planning, with how to create one; the schema needs no log."""
    source = ClogDataSource({"path": str(tmp_path / "nothing")})
    reader = source.reader(source.schema())
    with pytest.raises(NotFoundError, match="nothing"):
        reader.partitions()


def test_partitions_do_not_show_secrets(log):
    """Spark may print them."""
    _, partitions = plan("file://" + log.url if "://" not in log.url else log.url)
    assert log.url not in repr(partitions[0].location)


def test_filters_are_not_pushed_down():
    """Spark stores a filtered plan where other uses of the DataFrame find it: wrong rows, no error.

    Holds for Spark 4.1 to 4.3 (SPARK-58551). May come when the lowest supported Spark has the fix.
    """
    assert batch_reader.ClogReader.pushFilters is DataSourceReader.pushFilters


def test_the_data_source_imports_nothing_heavy():
    """Spark looks it up in a fresh process: pyarrow, fsspec and numpy wait until they are
    needed.
    """
    import subprocess
    import sys

    code = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_clog;"
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for heavy in ("pyarrow", "numpy", "fsspec", "s3fs", "pandas", "xxhash"):
        assert f"'{heavy}'" not in done.stdout


def test_spark_finds_the_data_source_by_its_module():
    """The module has the prefix that Spark looks for and the name it uses."""
    import pyspark_clog

    assert pyspark_clog.DefaultSource is datasource.ClogDataSource
    assert ClogDataSource.name() == "clog"


def test_arrow_batches_are_not_large_types(log):
    """Spark refuses large_binary and views."""
    reader, partitions = plan(log.url)
    for partition in partitions:
        for batch in reader.read(partition):
            assert batch.schema.field("key").type == pa.binary()


@pytest.mark.parametrize("version", ["3.5.1", "4.0.1", "4.1.1"])
def test_an_older_spark_is_refused(log, monkeypatch, version):
    """It lacks half of what a source needs: one sentence is better than an ImportError."""
    monkeypatch.setattr(datasource.pyspark, "__version__", version)
    with pytest.raises(InvalidInputError, match=rf"Spark {version}, but format clog needs 4.2"):
        ClogDataSource({"path": log.url})


def test_a_log_that_is_not_the_one_meant(log):
    """S47: what was given for an id is refused in a log created in its place."""
    meant = log.handle.standing.log_id
    assert len(rows(log.url, logId=meant)) == 5
    assert len(rows(log.url, logId=meant, view="table", asOfVersion="2")) == 3
    shutil.rmtree(log.url)
    again = Log.create(log.url, partitions=2)
    for _ in range(3):
        again.append([{"key": "a", "value": "new"}])
    for view in (
        {},
        {"view": "table", "asOfVersion": "2"},
        {"view": "latest", "sinceVersion": "1"},
    ):
        with pytest.raises(LogReplacedError, match=f"its id was {meant}, now it is"):
            rows(log.url, logId=meant, **view)
