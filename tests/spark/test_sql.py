"""SQL with `WITH`: one table for all logs, views over it, INSERT INTO; what the catalog
cannot do.
"""

import pytest
from pyspark.errors import PySparkException

from clog.storage import Log


@pytest.fixture
def tables(spark):
    """Two tables with only the columns."""
    names = ("one", "two")
    for name in names:
        spark.sql(f"CREATE TABLE {name} (KEY BINARY, value BINARY) USING clog")
    yield names
    for name in names:
        spark.sql(f"DROP TABLE {name}")


def rows(frame):
    return sorted(tuple(row) for row in frame.collect())


def refusal(action):
    with pytest.raises(PySparkException) as caught:
        action()
    return str(caught.value)


@pytest.mark.core
def test_tables_views_inserts_and_joins(spark, tables, url):
    """Options where the table is used: in a SELECT, an INSERT INTO, a permanent view, a join."""
    one, two = tables
    orders, other = f"{url}/orders", f"{url}/other"
    log = Log.create(orders, partitions=1)
    log.append([{"key": k, "value": v} for k, v in (("a", "1"), ("b", "2"), ("a", "3"))])
    spark.sql(
        f"INSERT INTO {two} WITH (path='{other}', partitions='2')"
        f" SELECT key, binary('x') FROM {one} WITH (path='{orders}', view='table')"
    )
    assert Log.open(other).partitions == 2
    assert rows(
        spark.sql(f"SELECT string(key), count(*) FROM {one} WITH (path='{orders}') GROUP BY key")
    ) == [("a", 2), ("b", 1)]
    spark.sql(
        f"CREATE VIEW latest AS SELECT string(key) AS id, string(value) AS state FROM {one}"
        f" WITH (PATH='{orders}', View='table')"
    )
    try:
        joined = f"SELECT id, state, string(value) FROM latest JOIN {two} WITH (path='{other}')"
        assert rows(spark.sql(f"{joined} ON id = string(key)")) == [
            ("a", "3", "x"),
            ("b", "2", "x"),
        ]
        spark.sql(f"INSERT INTO {one} WITH (path='{orders}') VALUES (binary('b'), NULL)")
        assert rows(spark.table("latest")) == [("a", "3")]
    finally:
        spark.sql("DROP VIEW latest")


def test_which_views_are_live(spark, tables, url):
    """Spark plans a temporary view ``USING clog`` once, at its first SELECT, as a DataFrame, and
    does not call clog after that; what the documentation recommends is live, and sees its own
    INSERT.
    """
    log = Log.create(url, partitions=1)
    log.append([{"key": "a", "value": "1"}])
    (table, _), using = tables, f"USING clog OPTIONS (path '{url}', columns 'key,value')"
    spark.sql(f"CREATE TEMPORARY VIEW frozen {using}")
    spark.sql(f"CREATE TEMPORARY VIEW live AS SELECT * FROM {table} WITH (path = '{url}')")

    def counts():
        return [spark.table(view).count() for view in ("frozen", "live")]

    try:
        assert counts() == [1, 1]
        spark.sql("INSERT INTO frozen SELECT binary('b'), binary('2')")
        assert counts() == [1, 2]
        spark.sql(f"INSERT INTO {table} WITH (path = '{url}') SELECT binary('c'), binary('3')")
        spark.sql("REFRESH TABLE frozen")
        assert counts() == [1, 3]
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW frozen {using}")
        assert counts() == [3, 3]
    finally:
        for view in ("frozen", "live"):
            spark.sql(f"DROP VIEW {view}")


def test_one_table_twice_in_a_query(spark, tables, url):
    """Spark gives both uses the options of one, and does not report the others: this is why the
    documentation says to use one table for each, also for two versions of one log.
    """
    log = Log.create(url, partitions=1)
    for n, k in enumerate("ab"):
        log.append([{"key": k, "value": str(n)}])
    (one, two), as_of = tables, f"WITH (path = '{url}', view = 'table', asOfVersion = '%d')"
    old, new = (as_of % version for version in (log.version - 1, log.version))
    apart = f"SELECT * FROM {one} {old} UNION ALL SELECT * FROM {two} {new}"
    assert spark.sql(apart).count() == 3
    together = spark.sql(f"SELECT * FROM {one} {old} UNION ALL SELECT * FROM {one} {new}").count()
    assert together == 2, "mended in Spark: say so in the README"


def test_what_the_catalog_cannot_keep_says_what_to_do(spark, tables, queries, url):
    """A table without WITH, saveAsTable, createTable: each error contains the remedy."""
    Log.create(url)
    assert "WITH (path='…')" in refusal(lambda: spark.sql(f"SELECT * FROM {tables[0]}").collect())
    write = queries.frame(("a", "1")).write.format("clog").mode("append")
    try:
        assert "instead of saveAsTable" in refusal(lambda: write.saveAsTable("saved"))
        write.option("path", url).saveAsTable("saved")  # Spark writes, and forgets where.
        assert "WITH (path='…')" in refusal(lambda: spark.table("saved").collect())
    finally:
        spark.sql("DROP TABLE IF EXISTS saved")
    told = refusal(lambda: spark.catalog.createTable("made", path=url, source="clog"))
    assert "CREATE TABLE orders (key BINARY, value BINARY) USING clog" in told


def test_names_of_columns_have_no_case(spark, queries, url):
    """As everywhere in Spark: in a DataFrame that is written, a given schema, an option."""
    frame = spark.sql("SELECT 'a' AS Key, binary('1') AS VALUE, timestamp'2026-01-01' AS TimeStamp")
    frame.write.format("clog").mode("append").save(url)
    read = spark.read.format("clog").schema("KEY binary, TimestampType int").load(url)
    assert read.columns == ["KEY", "TimestampType"]
    assert [tuple(row) for row in read.collect()] == [(bytearray(b"a"), 0)]
    assert queries.read(url, columns="Value,KEY").columns == ["value", "key"]
    twice = spark.read.format("clog").schema("key binary, Key binary").load(url)
    assert "repeats key" in refusal(twice.collect)


def test_null_headers_are_refused(spark, url):
    """A header is a struct with a key; a null one was a mistake."""
    for headers in ("array(null)", "array(named_struct('key', null, 'value', binary('v')))"):
        typed = f"cast({headers} AS array<struct<key: string, value: binary>>)"
        frame = spark.sql(f"SELECT 'a' AS key, 'b' AS value, {typed} AS headers")
        write = frame.write.format("clog").mode("append")
        assert "1 of 1 headers are null or have a null key" in refusal(lambda w=write: w.save(url))


def test_a_config_that_disagrees_is_refused(spark, queries, url, caplog):
    """What was given when the log was created counts; if it was altered since, there is a
    warning.
    """

    def write(**configs):
        options = {f"config.{name}": value for name, value in configs.items()}
        frame = queries.frame(("a", "1")).write.format("clog").options(**options)
        frame.mode("append").save(url)

    write(**{"segment.ms": "1d", "cleanup.policy": "compact"})
    write(**{"segment.ms": "86400000"})
    told = refusal(lambda: write(**{"segment.ms": "2h"}))
    assert 'option "config.segment.ms" is 2h' in told
    assert "was created with 1d and has 1d" in told
    assert "clog alter" in told
    Log.open(url).alter({"segment.ms": "5h"})
    write(**{"segment.ms": "1d"})
    write(**{"segment.ms": "5h"})
    assert len(queries.values(url)) == 4


def test_a_stream_beside_a_table_sees_it_fresh(spark, queries, url, tmp_path):
    """Each batch sees the table as it is then, at one version."""
    from clog.connector import beside_table

    source, facts = f"{url}/source", f"{url}/facts"
    events = Log.create(source, partitions=1)
    known = Log.create(facts, partitions=1)
    seen = []

    def each(df, table, batch_id):
        joined = df.join(table, "key").select(table.value.cast("string"))
        seen.append(sorted(row[0] for row in joined.collect()))

    for value in ("old", "new"):
        known.append([{"key": "k", "value": value}])
        events.append([{"key": "k", "value": "event"}])
        query = (
            queries.stream(source, startingOffsets="earliest")
            .writeStream.foreachBatch(beside_table(facts, each, columns="key,value"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    assert seen == [["old"], ["new"]]


def test_beside_table_refuses_its_own_options():
    """Before a query starts."""
    from clog.connector import beside_table
    from clog.storage import OptionError

    for name in ("view", "asOfVersion"):
        with pytest.raises(OptionError, match="leave them out"):
            beside_table("/log", print, **{name: "1"})
    with pytest.raises(OptionError, match="did you mean"):
        beside_table("/log", print, column="key")


def test_secrets_in_sql_are_struck_out_by_sparks_regex(spark, url):
    """README: Spark's own is for some names; one for all of clog's has to be set."""
    sql = (
        f"CREATE TEMPORARY VIEW v USING clog OPTIONS (path '{url}', storage.account_key 'hunter2')"
    )
    regex = "spark.sql.redaction.options.regex"
    for given, shows in ((spark.conf.get(regex), True), ("(?i)url|storage", False)):
        before = spark.conf.get(regex)
        spark.conf.set(regex, given)
        try:
            told = spark.sql(f"EXPLAIN EXTENDED {sql}").first()[0]
        finally:
            spark.conf.set(regex, before)
        assert ("hunter2" in told) == shows
