"""Other ways to use Spark than an installed clog and a classic session, each in a separate process;
and the README's Spark.
"""

import doctest
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import clog
from clog.cleaner import Cleaner
from clog.connector import (
    append_batches,
    read_log,
    read_table,
    snapshot_and_stream,
    transact_batches,
    upsert_batches,
)
from clog.storage.log import Log

ROOT = Path(__file__).parents[2]

JOB = """
import sys
from pyspark.sql import SparkSession

{session}
{before}
frame = spark.createDataFrame([("a", "1"), ("b", "2"), ("a", "3")], "key string, value string")
frame.write.format("clog").mode("append").option("partitions", 1).save(sys.argv[1])
rows = spark.read.format("clog").option("view", "table").load(sys.argv[1])
print("TABLE", sorted((r.key.decode(), r.value.decode()) for r in rows.collect()))
query = (
    spark.readStream.format("clog").option("startingOffsets", "earliest").load(sys.argv[1])
    .select("key", "value").writeStream.format("clog")
    .option("checkpointLocation", sys.argv[2] + "/checkpoint")
    .trigger(availableNow=True).start(sys.argv[2])
)
query.awaitTermination()
{after}
spark.stop()
"""
UPSERTS = """
import shutil
from clog.connector import read_table, transact_batches, upsert_batches

sys.modules["py4j.protocol"] = None  # As with pyspark-client.
print("NATIVE", read_table(spark, sys.argv[1]).count())
COPY = sys.argv[2]  # The server's own are others.
HOME = COPY + "-home"
upsert = upsert_batches(COPY + "-table", "key", writerId="copies")
transact = transact_batches(HOME, lambda df, t, batch_id: t.write(df, HOME), writerId="copier")
unnamed = upsert_batches(COPY + "-none", "key")

def each_batch(df, batch_id):
    upsert(df, batch_id)
    transact(df, batch_id)

def nameless(df, batch_id):
    unnamed(df, batch_id)

def follow(each):
    query = (
        spark.readStream.format("clog").option("startingOffsets", "earliest").load(sys.argv[1])
        .selectExpr("cast(key as string)", "cast(value as string)").writeStream.foreachBatch(each)
        .option("checkpointLocation", COPY + "/" + each.__name__)
        .trigger(availableNow=True).start()
    )
    query.awaitTermination()
    return query

follow(each_batch)
shutil.rmtree(COPY + "/each_batch/commits")
follow(each_batch)
try:
    follow(nameless)
except Exception as e:
    print("REFUSED", e)
"""
BUILDER = (
    'spark = SparkSession.builder{master}.config("spark.ui.enabled", "false")'
    '.config("spark.sql.shuffle.partitions", "1").getOrCreate()'
)

WHERE = 'import clog.storage; print("FROM", clog.storage.__file__)'


def run(command, url, copy, env=None):
    """Runs the job with Spark as it is installed; returns what it printed."""
    env = {"PYSPARK_PYTHON": sys.executable, **os.environ, **(env or {})}
    del env["SPARK_HOME"]  # that of these tests lacks some
    command = [*map(str, command), str(url), str(copy)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=env, cwd=copy.parent, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "TABLE [('a', '3'), ('b', '2')]" in done.stdout
    return done.stdout


@pytest.fixture
def job(tmp_path):
    """Writes the job's file."""

    def write(master, before="", after=""):
        path = tmp_path / "job.py"
        code = JOB.format(session=BUILDER.format(master=master), before=before, after=after)
        path.write_text(code)
        return path

    return write


@pytest.mark.nightly
def test_spark_connect(spark, queries, job, url, tmp_path):
    """Source, sink and stream through a Connect session, whose server is another process. Spark
    passes no query to ``foreachBatch`` there, and pickles it before there is one: an upsert has a
    name of its own, by which a repeated batch is written once. A client without py4j reads tables.
    """
    out = run([sys.executable, job('.remote("local[2]")', after=UPSERTS)], url, tmp_path / "copy")
    for copy in ("copy", "copy-home"):
        assert queries.values(tmp_path / copy) == ["1", "2", "3"]
    rows = (row for b in Log.open(str(tmp_path / "copy-table")).read() for row in b.to_pylist())
    assert sorted(row["value"]["value"] for row in rows) == ["1", "2", "3"]
    assert 'give the query a name, such as writerId="orders"' in out
    assert "NATIVE 2" in out


@pytest.mark.nightly
def test_the_pipeline_of_the_guide_on_sql_runs(tmp_path):
    """A flow from a log into a log by a sink, and a materialized view of its table, as written."""
    pytest.importorskip("yaml", reason="needs pyspark[pipelines]")
    pytest.importorskip("zstandard", reason="needs pyspark[pipelines]")
    rides = [{"id": n, "city": "Riga", "minutes": m} for n, m in (("t1", 31), ("t2", 12))]
    clog.create(tmp_path / "trips", key="id", like=rides, partitions=1).append(rides)
    text = (ROOT / "docs/spark-sql.md").read_text()
    (flows,) = re.findall(r"```python\n(# spark-pipelines\n.*?)```", text, re.DOTALL)
    (spec,) = re.findall(r"```\n(# spark-pipeline.yml.*?)```", text, re.DOTALL)
    assert "file:///data/pipeline" in spec
    (tmp_path / "flows.py").write_text(flows.replace("s3://bucket", str(tmp_path)))
    spec = spec.replace("file:///data/pipeline", (tmp_path / "pipeline").as_uri())
    (tmp_path / "spark-pipeline.yml").write_text(spec)
    env = {"PYSPARK_PYTHON": sys.executable, **os.environ}
    del env["SPARK_HOME"]
    command = [Path(sysconfig.get_path("scripts")) / "spark-pipelines", "run"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    long = clog.open(tmp_path / "long-trips").table()
    assert long.to_pylist() == [{"id": "t1", "city": "Riga", "minutes": 31}]
    (rows,) = [pq.read_table(path).to_pylist() for path in tmp_path.glob("spark-warehouse/*")]
    assert rows == [{"city": "Riga", "count": 2}]


@pytest.mark.nightly
def test_py_files(spark, queries, job, url, tmp_path):
    """A zip is all that a cluster with the dependencies needs. Spark does not add it to the path of
    the processes beside the driver (look-up of formats, streaming source): PYTHONPATH does. Python
    runs without `site` here, so the installed clog cannot be found.
    """
    archive = tmp_path / "clog.zip"
    build = [sys.executable, ROOT / "integration" / "build_pyfiles.py", archive]
    subprocess.run(build, check=True, capture_output=True)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    submit = Path(sysconfig.get_path("scripts")) / "spark-submit"
    out = run(
        [submit, "--master", "local[2]", "--py-files", archive, job("", WHERE)],
        *(url, tmp_path / "copy"),
        {"PYSPARK_PYTHON": str(python), "PYTHONPATH": f"{archive}:{sysconfig.get_path('purelib')}"},
    )
    assert re.search(r"FROM .*clog\.zip/clog/storage", out)
    assert queries.values(tmp_path / "copy") == ["1", "2", "3"]


def spark_blocks(path):
    return re.findall(r"```python\n(# spark\n.*?)```", (ROOT / path).read_text(), re.DOTALL)


def run_block(code, spark, tmp_path, *names, **given):
    """Runs an example with its paths in the test's folder: Spark's processes have their own."""
    for name in names:
        assert f'"{name}"' in code
        code = code.replace(f'"{name}"', repr(str(tmp_path / name.removeprefix("s3://"))))
    found = {"spark": spark, **given}
    exec(compile(code, "example", "exec"), found)
    return found


def test_the_spark_of_the_guide_on_sql_runs(spark, tmp_path):
    """As it is written."""
    (code,) = spark_blocks("docs/spark-sql.md")
    run_block(code, spark, tmp_path, "trips-of-sql")
    assert [row.city for row in spark.table("trips").collect()] == ["Riga"]
    assert spark.catalog.dropTempView("trips")


def test_the_examples_of_the_connectors_docstrings_run(spark, tmp_path):
    """Those that have a session, with paths as in `run_block`; the others run without Spark."""
    runner = doctest.DocTestRunner()
    reads = read_table, read_log, snapshot_and_stream
    for shown in (*reads, append_batches, upsert_batches, transact_batches):
        globs = {"spark": spark, shown.__name__: shown}
        (test,) = doctest.DocTestFinder().find(shown, globs=globs)
        for example in test.examples:
            example.source = example.source.replace('"help-of-', f'"{tmp_path}/help-of-')
        assert runner.run(test).failed == 0, shown.__name__
    assert runner.tries > 12


@pytest.mark.core
def test_the_spark_of_the_readme_runs(spark, tmp_path):
    """As it is written, from the session to the table."""
    (code,) = spark_blocks("README.md")
    found = run_block(code, spark, tmp_path, "trips", "long-trips", "checkpoint")
    assert found["spark"] is spark
    assert [tuple(row) for row in read_table(spark, str(tmp_path / "trips")).collect()] == [
        ("t1", "Riga", 31)
    ]
    assert clog.open(tmp_path / "long-trips").table().to_pylist() == [{"id": "t1", "city": "Riga"}]


def test_the_examples_for_users_of_kafka_run(spark, tmp_path):
    """The first ends with an assertion of its own, the second keeps its events. A first write that
    names no policy creates a compacted log, in which ten keys are ten records after a pass.
    """
    orders = [("order-1", "created"), ("order-2", "paid")]
    records = [{"key": key, "value": f'{{"state": "{state}"}}'} for key, state in orders]
    Log.create(str(tmp_path / "orders")).append(records)
    code, first, *_ = spark_blocks("docs/coming-from.md")
    run_block(code, spark, tmp_path, "orders", "paid-orders", "checkpoint")
    made = run_block(first, spark, tmp_path, "events")["events"]
    made.write.format("clog").mode("append").save(str(tmp_path / "unsaid"))
    for name, left in (("events", 1000), ("unsaid", 10)):
        log = Log.open(str(tmp_path / name))
        log.roll()
        Cleaner(log).run_once(force=True)
        assert sum(batch.num_rows for batch in log.read()) == left


def test_the_examples_for_users_of_delta_run(spark, tmp_path):
    """The same."""
    _, _, table, typed, merged, stream, once = spark_blocks("docs/coming-from.md")
    run_block(table, spark, tmp_path, "prices")
    found = run_block(typed, spark, tmp_path, "stock-log")
    run_block(merged, spark, tmp_path, "stock-log", read_table=read_table)
    names = ("deliveries", "progress", "stock-now")
    run_block(stream, spark, tmp_path, *names, stock=found["stock"], read_table=read_table)
    run_block(once, spark, tmp_path, "once")


def test_the_example_of_tables_runs(spark, tmp_path):
    """The same."""
    (code,) = spark_blocks("docs/state.md")
    run_block(code, spark, tmp_path, "accounts")


def test_the_example_of_changes_runs(spark, tmp_path):
    """Of a table that is there, and follows it."""
    rows = [{"id": 1, "city": "Riga", "euros": 30}, {"id": 2, "city": "Oslo", "euros": 20}]
    log = Log.create(str(tmp_path / "orders"), 1, key="id", like=rows)
    log.append(rows)
    (code,) = spark_blocks("docs/changes.md")
    revenue = run_block(code, spark, tmp_path, "orders")["revenue"]
    query = revenue.writeStream.outputMode("complete").format("memory").queryName("revenue").start()
    query.processAllAvailable()
    query.stop()
    assert dict(map(tuple, spark.table("revenue").collect())) == {"Riga": 30, "Oslo": 20}


def test_the_examples_of_connector_and_cleaner_run(spark, queries, tmp_path):
    """A write, a copy, a table; plain columns; an upsert; a table and what follows it; a table
    beside a stream; changes; a round of cleaning.
    """
    named = ("orders", "copy", "trips", "counts", "accounts", "enriched", "events")
    logs = {name: f"s3://bucket/{name}" for name in named}
    state = ["s3://bucket/checkpoint", "s3://bucket/state", "s3://bucket/progress"]
    made = tmp_path / "bucket"
    blocks = spark_blocks("connector/README.md")
    write, columns, small, count, follow, beside, changes, native = blocks
    names = (logs["orders"], logs["copy"], state[0])
    run_block(write, spark, tmp_path, *names, orders=queries.frame(("a", "1"), ("b", "2")))
    queries.stop_all()
    assert sorted(queries.values(made / "orders")) == ["1", "2"]
    run_block(columns, spark, tmp_path, logs["trips"])
    assert Log.open(str(made / "trips")).table().get("t1") == {"city": "Riga", "minutes": 31}
    events = queries.stream(made / "orders", startingOffsets="earliest").select("key", "value")
    run_block(small, spark, tmp_path, logs["events"], state[2], events=events)
    queries.stop_all()
    assert sorted(queries.values(made / "events")) == ["1", "2"]
    words = queries.stream(made / "orders", startingOffsets="earliest")
    words = words.selectExpr("string(key) AS word")
    run_block(count, spark, tmp_path, logs["counts"], state[1], words=words)
    queries.stop_all()
    counts = Log.open(str(made / "counts")).table()
    assert [counts.get(word) for word in "ab"] == [{"count": 1}, {"count": 1}]
    Log.create(str(made / "accounts"))
    assert run_block(follow, spark, tmp_path, logs["accounts"])["accounts"].stream.isStreaming
    payments = queries.stream(made / "orders", startingOffsets="earliest").select("key", "value")
    run_block(beside, spark, tmp_path, logs["accounts"], logs["enriched"], payments=payments)
    queries.stop_all()
    assert sorted(queries.values(made / "enriched")) == ["1", "2"]
    found = run_block(changes, spark, tmp_path, logs["orders"])["changes"]
    assert found.columns[-3] == "_change_type"
    Log.create(str(made / "prices")).append([{"key": "tea", "value": "2"}])
    assert run_block(native, spark, tmp_path, "s3://bucket/prices")["records"].count() == 1
    (clean,) = spark_blocks("cleaner/README.md")
    assert run_block(clean, spark, tmp_path, logs["orders"])["results"] == []


def test_the_example_of_native_reads_runs(spark, tmp_path):
    """It ends with assertions of its own."""
    Log.create(str(tmp_path / "orders")).append([{"key": "bob", "value": "2 teas"}])
    (code,) = spark_blocks("docs/live-table.md")
    run_block(code, spark, tmp_path, "orders")


@pytest.mark.parametrize("heading", ["Source options", "Streaming source"])
def test_options_in_the_tables_exist(heading):
    """What replaces an option of Kafka's or Delta's source, or is "the same", is one of clog's."""
    from clog.connector.options import NAMES

    text = (ROOT / "docs/coming-from.md").read_text()
    table = text.split(f"### {heading}\n")[1].split("\n### ")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| ")]
    cells = [theirs if ours.strip() == "the same" else ours for theirs, ours in rows]
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert len(named) > 3
    assert named <= set(NAMES)
