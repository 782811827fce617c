"""What Spark has planned, or was given to read, before a log evolved (S61): right values, or one
sentence that says what is what since when, and what to do. Without Spark.
"""

import json
import pickle
import shutil

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import DoubleType, LongType, StructField, StructType
from tests.unit.connector.read.test_stream_reader import rewrite
from tests.unit.evolutions import EVOLUTIONS, x_of

from clog.connector.datasource import ClogDataSource
from clog.connector.options import write_options
from clog.connector.write.write_task import TaskIds, write_task
from clog.connector.write.writers import ClogStreamWriter
from clog.storage import InvalidInputError, Log, snapshot
from clog.storage.format.commits import Edit

TOLD = "{} since version 3, but .* in this read.*; load the source again: .* checkpoint stays valid"
by_evolution = pytest.mark.parametrize("evolution", EVOLUTIONS, ids=str)


class Query:
    """A streaming query: ``source`` is loaded once, and may be started several times."""

    def __init__(self, url, at=None):
        options = {"path": url, "columns": "offset,key,value", "startingOffsets": "earliest"}
        self.source = ClogDataSource(options | {"pollInterval": "0s"})
        self.schema = self.source.schema()
        self.start(at)

    def start(self, at=None):
        reader = self.source.streamReader(self.schema)
        self.task = pickle.loads(pickle.dumps(reader))
        self.reader, self.at = reader, at or reader.initialOffset()

    def planned(self):
        return json.loads(json.dumps(self.reader.latestOffset(self.at, ReadAllAvailable())))

    def tasks(self, end):
        return pickle.loads(pickle.dumps(self.reader.partitions(self.at, end)))

    def read(self, tasks):
        batches = [batch for task in tasks for batch in self.task.read(task)]
        for batch in batches:
            batch.validate(full=True)
        return [x_of(row["value"]) for batch in batches for row in batch.to_pylist()]

    def run(self, end=None):
        end = self.planned() if end is None else end
        rows = self.read(self.tasks(end))
        self.at = end
        return rows


def rows(source, schema):
    reader = source.reader(schema)
    tasks = pickle.loads(pickle.dumps(reader.partitions()))
    reader = pickle.loads(pickle.dumps(reader))
    batches = [batch for task in tasks for batch in reader.read(task)]
    return [x_of(row["value"]) for batch in batches for row in batch.to_pylist()]


@by_evolution
def test_a_stream_stops_in_words_and_goes_on_once_it_is_loaded_again(evolution, tmp_path):
    """S61: while it runs, or when it starts again as it was loaded; loaded again it reads each
    record once, those of a batch that was planned before, too. Added fields do not stop it.
    """
    log = evolution.create(str(tmp_path / "log"))
    running, crashed = Query(log.url), Query(log.url)
    assert running.run() == crashed.run() == [evolution.before]
    log.append([evolution.record(2, evolution.before)])
    planned = crashed.planned()
    log.evolve(**evolution.change)
    assert crashed.read(crashed.tasks(planned)) == [evolution.before]
    log.append([evolution.record_since(3, evolution.after)])
    if evolution.told is None:
        assert running.run() == [evolution.before, evolution.after]
    else:
        crashed.start(crashed.at)
        for asked in (running.planned, crashed.reader.initialOffset):
            with pytest.raises(InvalidInputError, match=TOLD.format(evolution.told)):
                asked()
    if evolution.name == "large":
        return
    again = Query(log.url, crashed.at)
    assert again.run(planned) == [evolution.shown]
    (last,) = again.run()
    assert last == evolution.after or not evolution.shows_what_it_gets


@pytest.mark.parametrize("name", ["rounded", "added"])
def test_a_task_whose_objects_are_replaced_reads_nothing_by_a_former_schema(name, tmp_path):
    """S61: what has taken their place may be of a later schema, in which the task looks again."""
    evolution = next(e for e in EVOLUTIONS if e.name == name)
    log = evolution.create(str(tmp_path / "log"))
    log.append([evolution.record(2, evolution.before)])
    query = Query(log.url)
    tasks = query.tasks(query.planned())
    log.evolve(**evolution.change)
    rewrite(log, [piece.object.path for piece in tasks[0].pieces])
    if evolution.told is None:
        assert query.read(tasks) == [evolution.before] * 2
    else:
        with pytest.raises(InvalidInputError, match=TOLD.format(evolution.told)):
            query.read(tasks)


@by_evolution
@pytest.mark.parametrize("view", ["log", "table", "latest"])
def test_a_frame_that_was_loaded_before_is_told_at_its_first_action(evolution, view, tmp_path):
    """S61: it shows the newest version, with the columns that the log had."""
    log = evolution.create(str(tmp_path / "log"))
    source = ClogDataSource({"path": log.url, "view": view, "columns": "key,value"})
    schema = source.schema()
    log.evolve(**evolution.change)
    log.append([evolution.record_since(3, evolution.after)])
    if evolution.told is None:
        assert rows(source, schema) == [evolution.before, evolution.after]
    else:
        with pytest.raises(InvalidInputError, match=TOLD.format(evolution.told).replace("3", "2")):
            rows(source, schema)


@by_evolution
def test_a_version_before_it_is_shown_whenever_the_frame_was_loaded(evolution, tmp_path):
    """S61: by number and by cut, with the columns of that version, or with those that are given."""
    log = evolution.create(str(tmp_path / "log"))
    snapshot(log.url, "before", keep_ms=86_400_000)
    own = {"path": log.url, "view": "table", "columns": "key,value"}
    named = [{"asOfVersion": "1"}, {"asOfCut": f"{log.url}#before"}]
    sources = [ClogDataSource(own | one) for one in named]
    loaded = [(source, source.schema()) for source in sources]
    log.evolve(**evolution.change)
    log.append([evolution.record_since(3, evolution.after)])
    for source, schema in loaded:
        assert rows(source, schema) == [evolution.before]
    newest = ClogDataSource({"path": log.url, "columns": "key,value"})
    for source, one in zip(sources, named, strict=True):
        assert rows(source, source.schema()) == [evolution.before]
        if evolution.name != "large":
            assert rows(ClogDataSource(own | one), newest.schema()) == [evolution.shown]


def test_a_schema_of_the_users_own_that_never_fitted_is_no_evolution(tmp_path):
    """The message is that of a log that did not evolve; if it is unknown, it says so."""
    evolution = EVOLUTIONS[2]
    log = evolution.create(str(tmp_path / "log"))
    source = ClogDataSource({"path": log.url, "columns": "value"})
    text = ClogDataSource({"path": EVOLUTIONS[0].create(str(tmp_path / "text")).url}).schema()
    log.evolve(**evolution.change)
    with pytest.raises(InvalidInputError, match=r"has type .* in the given schema, but is bigint"):
        rows(source, text)
    log.handle.commit(lambda tip, ms: Edit(oldest_readable=1), operation="sweep")
    log.handle.commit(lambda tip, ms: Edit(oldest_readable=2), operation="sweep")
    with pytest.raises(InvalidInputError, match="is bigint since version 2 or earlier"):
        rows(source, text)


@pytest.mark.parametrize("kind", [pa.float64(), pa.string()])
def test_a_log_of_other_types_in_place_of_the_one_that_was_loaded(kind, tmp_path):
    """Nobody gave a schema: the message also says that the log may be another one."""
    evolution = EVOLUTIONS[0]
    query = Query(evolution.create(str(tmp_path / "log")).url)
    query.run()
    shutil.rmtree(tmp_path / "log")
    schema = {"key": pa.int32(), "value": pa.struct([("x", kind)])}
    Log.create(str(tmp_path / "log"), 1, schema=schema)
    query.start(query.at)
    told = "value.x has type float in the given schema, .* another log, .*, load it again"
    with pytest.raises(InvalidInputError, match=told):
        query.planned()


DOUBLES = StructType(
    [
        StructField("key", LongType()),
        StructField("value", StructType([StructField("x", DoubleType())])),
    ]
)


def test_doubles_for_a_log_of_floats_are_rounded_only_while_it_has_floats(tmp_path):
    """S62: a batch that was planned before it was widened is refused, and right when it runs again;
    so is one that is planned after, in a process that opened the log before.
    """
    evolution = next(e for e in EVOLUTIONS if e.name == "rounded")
    log = evolution.create(str(tmp_path / "log"))
    sink = ClogDataSource({"path": log.url})
    row = pa.RecordBatch.from_pylist([evolution.record(2, 0.1)])

    def written(writer):
        return write_task(writer.plan, iter([row]), TaskIds("query", 0))

    early = sink.streamWriter(DOUBLES, overwrite=False)
    before = written(early)
    Log.open(log.url).evolve(**evolution.change)
    with pytest.raises(InvalidInputError, match=r"value.x of .* was widened .* the records again"):
        early.commit([before], 0)
    late = sink.streamWriter(DOUBLES, overwrite=False)
    late.commit([written(late)], 0)
    assert [row["value"]["x"] for b in log.read() for row in b.to_pylist()] == [0.5, 0.1]


@pytest.mark.parametrize(
    ("changes", "there"),
    [
        ([{"rename": {"x": "y", "y": "x"}}], [(1, 2), (3, 2)]),
        ([{"drop": ["x"]}, {"add": {"x": pa.int64()}}], [(2, None), (3, 2)]),
    ],
    ids=["swapped", "another"],
)
def test_rows_are_written_by_the_names_that_columns_have_now(changes, there, tmp_path):
    """S62: by a process that opened the log before, and whose rows fit both schemas."""
    log = Log.create(str(tmp_path / "log"), 1, key="id", like=[{"id": 1, "x": 1, "y": 2}])
    sink = ClogDataSource({"path": log.url})
    columns = StructType([StructField(name, LongType()) for name in ("id", "x", "y")])

    def write(row):
        writer = sink.writer(columns, overwrite=False)
        batch = pa.RecordBatch.from_pylist([row])
        writer.commit([write_task(writer._plan, iter([batch]), TaskIds("query", 0))])

    write({"id": 1, "x": 1, "y": 2})
    for change in changes:
        Log.open(log.url).evolve(**change)
    write({"id": 2, "x": 2, "y": 3})
    assert [(row["y"], row["x"]) for row in log.table().to_pylist()] == there


def test_a_batch_that_runs_again_is_the_same_though_its_log_was_widened(tmp_path, monkeypatch):
    """S78: its first rows were rounded for floats; other rows are refused as ever. What commits is
    another process than what plans, and may know the schema from before.
    """
    evolution = next(e for e in EVOLUTIONS if e.name == "rounded")
    log = evolution.create(str(tmp_path / "log"))
    options = write_options({"path": log.url})

    def commit(x):
        row = pa.RecordBatch.from_pylist([evolution.record(2, x)])
        with monkeypatch.context() as other_process:
            other_process.setattr("clog.connector.opened_logs._LOGS", {})
            plan = ClogStreamWriter(options, DOUBLES, overwrite=False).plan
            written = write_task(plan, iter([row]), TaskIds("query", 0))
        writer = ClogStreamWriter(options, DOUBLES, overwrite=False, plans=False)
        writer.commit([written], 0)

    commit(0.1)
    Log.open(log.url).evolve(**evolution.change, add={"value.y": pa.string()})
    commit(0.1)
    with pytest.raises(InvalidInputError, match="with other rows: 1 in version 2, 1 now"):
        commit(0.2)
    read = [row["value"]["x"] for batch in log.read() for row in batch.to_pylist()]
    assert read == [0.5, pytest.approx(0.1)]
    assert read != [0.5, 0.1]
