"""DataFrames to and from logs, in Spark."""

import pytest
from pyspark.errors import PySparkException

from clog.storage.log import Log

pytestmark = pytest.mark.core


def test_what_is_written_is_read(spark, queries, url):
    """All of Kafka's columns, found without registration; also headers and tombstones."""
    from datetime import UTC, datetime

    at = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    df = spark.createDataFrame(
        [("a", b"1", at, [("h", b"x")]), ("b", None, at, None)],
        "key string, value binary, timestamp timestamp,"
        " headers array<struct<key: string, value: binary>>",
    )
    queries.save(df, url, partitions=1)
    rows = [row.asDict(recursive=True) for row in queries.read(url, includeHeaders=True).collect()]
    assert [r.pop("timestamp").astimezone(UTC) for r in rows] == [at, at]
    common = {"topic": "orders", "partition": 0, "timestampType": 0}
    assert rows == [
        {
            "key": b"a",
            "value": b"1",
            "offset": 0,
            "headers": [{"key": "h", "value": b"x"}],
            **common,
        },
        {"key": b"b", "value": None, "offset": 1, "headers": None, **common},
    ]


def test_rows_are_in_the_order_of_sparks_partitions(queries, url):
    """Four tasks: their number first, then the order of rows (S44)."""
    pairs = [("k", f"{i:03d}") for i in range(40)]
    queries.save(queries.frame(*pairs, partitions=4), url, partitions=1)
    assert queries.values(url) == [value for _, value in pairs]


def test_a_read_in_several_tasks_keeps_the_order_of_each_partition(queries, url):
    """Copying a log needs no shuffle (S44)."""
    log = Log.create(url, partitions=2)
    for i in range(4):
        for p in range(2):
            queries.append(log, *(f"{i}-{j}" for j in range(10)), partition=p)
    df = queries.read(url, maxRecordsPerPartition=7)
    assert df.rdd.getNumPartitions() >= 12
    rows = queries.collected(df)
    for p in range(2):
        assert [offset for q, offset, _ in rows if q == p] == list(range(40))


def test_the_table_view_is_the_latest_value_of_each_key(queries, url):
    """Tombstoned keys are absent (S4)."""
    pairs = [("a", "1"), ("b", "1"), ("a", "2"), ("b", None), ("c", "1")]
    queries.save(queries.frame(*pairs), url)
    table = queries.read(url, view="table").selectExpr(
        "cast(key as string)", "cast(value as string)"
    )
    assert sorted(map(tuple, table.collect())) == [("a", "2"), ("c", "1")]


def test_offsets_bound_a_read(queries, url):
    """By partition, half-open (S39)."""
    queries.append(Log.create(url, partitions=1), *"abcde")
    df = queries.read(url, startingOffsets='{"0": 1}', endingOffsets='{"orders": {"0": 4}}')
    assert queries.collected(df) == [(0, 1, "b"), (0, 2, "c"), (0, 3, "d")]
    turned = queries.read(url, startingOffsets='{"0": 4}', endingOffsets='{"0": 1}')
    assert "starts at offset 4 and ends at 1" in refusal(turned.count)
    beyond = {"endingOffsets": '{"orders": {"0": 9}}', "startingOffsets": '{"orders": "earliest"}'}
    assert "beyond the end offset 5" in refusal(queries.read(url, **beyond).count)
    assert queries.read(url, failOnDataLoss=False, **beyond).count() == 5


def test_a_schema_chooses_columns(spark, queries, url):
    """In the order given; count and an empty selection work too."""
    queries.append(Log.create(url, partitions=1), *"ab")
    df = spark.read.format("clog").schema("offset bigint, key binary").load(url)
    assert [tuple(row) for row in df.collect()] == [(0, b"a"), (1, b"b")]
    assert queries.read(url).count() == 2
    assert queries.read(url).select("topic").distinct().collect()[0][0] == "orders"


def test_one_frame_used_twice_reads_right(queries, url):
    """Filters are left to Spark: if pushed down they would give wrong rows here (SPARK-58551)."""
    log = Log.create(url, partitions=2)
    queries.append(log, "a", "b", partition=0)
    queries.append(log, "c", partition=1)
    df = queries.read(url)
    both = df.where("partition = 0").union(df.where("partition = 1"))
    assert sorted(queries.collected(both)) == [(0, 0, "a"), (0, 1, "b"), (1, 0, "c")]


def test_an_empty_log_reads_as_nothing(queries, url):
    """Spark creates a task for an empty plan."""
    Log.create(url)
    assert queries.read(url).count() == 0
    assert queries.read(url, view="table").count() == 0


def test_a_transaction_version_is_written_once(queries, url):
    """As in Delta."""
    for version, value in ((1, "first"), (1, "again"), (2, "next")):
        queries.save(queries.frame(("a", value)), url, txnAppId="job", txnVersion=version)
    assert queries.values(url) == ["first", "next"]


def test_sql_goes_through_temporary_views(spark, url):
    """SELECT and INSERT; the options stay with the view. One of all columns accepts no rows, and
    says which does.
    """
    Log.create(url, partitions=1)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW src USING clog OPTIONS (path '{url}')")
    message = refusal(lambda: spark.sql("INSERT INTO src (key, value) VALUES (X'61', X'31')"))
    assert "columns 'key,value,timestamp'" in message
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW orders USING clog"
        f" OPTIONS (path '{url}', columns 'key,value')"
    )
    spark.sql(
        "INSERT INTO orders SELECT cast(k AS binary), cast(v AS binary)"
        " FROM VALUES ('a', '1'), ('b', '2') AS t(k, v)"
    )
    found = spark.sql("SELECT cast(value as string) v FROM orders WHERE cast(key as string) = 'b'")
    assert [row.v for row in found.collect()] == ["2"]


def refusal(action):
    with pytest.raises(PySparkException) as caught:
        action()
    return str(caught.value)


def test_a_catalog_table_says_what_to_do_instead(spark, queries, url):
    """Spark drops the options of a table in its catalog: it is refused when it is created, in one
    sentence that names the remedies, and does not exist afterwards.
    """
    queries.append(Log.create(url), "a")
    spark.sql("DROP TABLE IF EXISTS lost")
    for place in (f"OPTIONS (path '{url}')", f"LOCATION '{url}'"):
        told = refusal(lambda place=place: spark.sql(f"CREATE TABLE lost USING clog {place}"))
        assert "USING delta LOCATION" in told
        assert "pyspark-clog-jvm" in told
        assert "WITH (path='…')" in told
        assert not spark.catalog.tableExists("lost")


def test_errors_of_users_are_readable(spark, queries, url):
    """The sentence is there, with the class, and no frames of clog's modules but the outermost."""
    message = refusal(lambda: queries.read(url, startingOffset="latest").collect())
    assert 'did you mean "startingOffsets"?' in message
    assert "OptionError" in message
    message = refusal(lambda: queries.read(url).collect())
    assert "NotFoundError: no log at" in message
    assert "versions.py" not in message
    overwrite = queries.frame(("a", "1")).write.format("clog").mode("overwrite")
    assert "delete-records" in refusal(lambda: overwrite.save(url))
    wrong = spark.sql("SELECT 'a' AS key, 1 AS value").write.format("clog").mode("append")
    assert "value has type int" in refusal(lambda: wrong.save(url))
    ending = queries.stream(url, endingOffsets='{"0": 1}').writeStream.format("noop")
    ending = ending.trigger(availableNow=True).option("checkpointLocation", f"{url}-checkpoint")
    message = refusal(lambda: ending.start().awaitTermination())
    assert "a stream has no end" in message
    assert "UnboundLocalError" not in message


def test_secrets_stay_in_the_options(queries, url, tmp_path):
    """They are in no plan, no progress, no error, and in no file of a log or a checkpoint."""
    secret = {"storage.secret": "hunter2"}
    queries.save(queries.frame(("a", "1")), url, **secret)
    frame = queries.read(url, **secret)
    told = [frame._jdf.queryExecution().toString()]
    query = queries.copy(
        url, tmp_path / "copy", tmp_path / "checkpoint",
        sink=secret, startingOffsets="earliest", **secret,
    )  # fmt: skip
    query.awaitTermination()
    told += [str(query.recentProgress)]
    told += [refusal(lambda: queries.read(tmp_path / "none", **secret).collect())]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    told += [path.read_bytes().decode("latin-1") for path in files]
    assert queries.values(tmp_path / "copy") == ["1"]
    assert len(files) > 10
    assert not [text for text in told if "hunter2" in text]


def test_rows_without_key_append_nothing(queries, url):
    """The whole write is refused at its commit (S5)."""
    df = queries.frame(("a", "1"), (None, "2"), partitions=2)
    assert "have no key" in refusal(lambda: queries.save(df, url))
    assert queries.written(url) == []


def test_a_typed_log_in_spark(spark, queries, url, tmp_path):
    """Native columns both ways (S61, S62): SQL over fields, a batch and a stream; what does not fit
    is refused, and nothing is committed.
    """
    import pyarrow as pa

    value = pa.struct([pa.field("n", pa.int32(), nullable=False), ("tags", pa.list_(pa.string()))])
    log = Log.create(url, partitions=2, schema={"key": pa.string(), "value": value})
    rows = spark.sql(
        "select string(id) key,"
        " if(id = 3, null, named_struct('n', int(id), 'tags', array(string(id)))) value"
        " from range(5)"
    )
    queries.save(rows, url)
    read = queries.read(url, view="table")
    assert read.selectExpr("sum(value.n)", "max(value.tags[0])").first()[:] == (7, "4")
    pruned = queries.read(url, columns="value.n").schema
    assert pruned.simpleString() == "struct<value:struct<n:int>>"
    missing = spark.sql("select 'x' key, named_struct('n', cast(null as int)) value")
    with pytest.raises(PySparkException, match=r"record 0 has no value.n, which is NOT NULL"):
        queries.save(missing, url)
    assert log.version == 1
    copy = Log.create(str(tmp_path / "copy"), partitions=2, schema=log.schema)
    stream = spark.readStream.format("clog").option("startingOffsets", "earliest").load(url)
    query = (
        stream.select("key", "value")
        .writeStream.format("clog")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(copy.url)
    )
    query.awaitTermination()
    both = [
        sorted(map(str, x.table().to_arrow(columns=["value"]).to_pylist())) for x in (log, copy)
    ]
    assert both[0] == both[1]
