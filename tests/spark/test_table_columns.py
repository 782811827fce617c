"""Plain columns in Spark: the effect of `keyColumns` on a log, in batch, stream and SQL."""

import pytest
from pyspark.errors import PySparkException

from clog.storage import Log, NotFoundError


def rows(frame):
    return sorted(tuple(row) for row in frame.collect())


def refusal(action):
    with pytest.raises(PySparkException) as caught:
        action()
    return str(caught.value)


@pytest.mark.core
def test_plain_dataframes_make_a_table(spark, queries, url, tmp_path):
    """By a batch and a stream; it is read with the same columns, and by fields (S61). A row that
    does not fit is refused with its number, field and type (S62).
    """
    trips = (
        "SELECT 't' || id AS id, int(id) AS minutes,"
        " if(id < 9, named_struct('city', 'Riga'), null) AS place"
    )
    queries.save(spark.sql(f"{trips} FROM range(3)"), url, keyColumns="id", partitions=2)
    table = queries.read(url, view="table")
    assert table.columns == ["id", "minutes", "place"]
    assert rows(table.where("minutes > 0").selectExpr("id", "place.city")) == [
        ("t1", "Riga"),
        ("t2", "Riga"),
    ]
    source = str(tmp_path / "source")
    spark.sql(f"{trips} FROM range(2, 4)").selectExpr(
        "id", "minutes + 10 AS minutes"
    ).write.parquet(source)
    stream = spark.readStream.schema("id string, minutes int").parquet(source)
    query = (
        stream.writeStream.format("clog")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("keyColumns", "id")
        .trigger(availableNow=True)
        .start(url)
    )
    query.awaitTermination()
    assert rows(queries.read(url, view="table", columns="minutes")) == [(0,), (1,), (12,), (13,)]
    assert queries.read(url).count() == 5
    version = Log.open(url).version
    missing = spark.sql("SELECT cast(null AS string) AS id, 1 AS minutes")
    assert "record 0 has no key, which is NOT NULL" in refusal(lambda: queries.save(missing, url))
    wrong = spark.sql("SELECT 'x' AS id, 'y' AS minutes")
    told = refusal(lambda: queries.save(wrong, url))
    assert "minutes has type string; the log's schema says int32" in told
    assert Log.open(url).version == version


def test_an_insert_of_literals_makes_a_log_that_takes_nulls(spark, url):
    """A first write that fails creates none: one that fails in a task, after other tasks have
    written.
    """
    spark.sql("CREATE TABLE days (day DATE, price DECIMAL(9, 2), note STRING) USING clog")
    into = f"INSERT INTO days WITH (path='{url}', keyColumns='day')"
    try:
        failing = "SELECT if(id = 3, null, date_add(DATE'2026-01-01', int(id))), 1.5, 'x'"
        told = refusal(lambda: spark.sql(f"{into} {failing} FROM range(0, 4, 1, 4)"))
        assert "no key, which is NOT NULL" in told
        with pytest.raises(NotFoundError):
            Log.open(url)
        spark.sql(f"{into} VALUES (DATE'2026-01-01', 1.5, 'x')")
        spark.sql(f"{into} VALUES (DATE'2026-01-02', null, null), (DATE'2026-01-01', 2, null)")
        table = spark.sql(f"SELECT * FROM days WITH (path='{url}', view='table')")
        assert rows(table.selectExpr("string(day)", "string(price)", "note")) == [
            ("2026-01-01", "2.00", None),
            ("2026-01-02", None, None),
        ]
    finally:
        spark.sql("DROP TABLE days")


def test_sql_of_typed_logs(spark, url):
    """INSERT INTO and SELECT with WITH, of plain columns and of records."""
    with_path = f"WITH (path='{url}'"
    spark.sql("CREATE TABLE trips (id BIGINT, city STRING, minutes INT) USING clog")
    try:
        spark.sql(
            f"INSERT INTO trips {with_path}, keyColumns='id')"
            " VALUES (1, 'Riga', 31), (2, 'Oslo', 5)"
        )
        spark.sql(
            f"INSERT INTO trips {with_path}) SELECT id, 'Bonn', minutes + 1 FROM trips"
            f" {with_path}, view='table') WHERE id = 2"
        )
        table = spark.sql(f"SELECT * FROM trips {with_path}, view='table')")
        assert rows(table) == [(1, "Riga", 31), (2, "Bonn", 6)]
        told = refusal(
            lambda: spark.sql(f"INSERT INTO trips {with_path}) VALUES (null, 'Rome', 1)")
        )
        assert "record 0 has no key, which is NOT NULL" in told
    finally:
        spark.sql("DROP TABLE trips")
    spark.sql(
        "CREATE TABLE records (key BIGINT, value STRUCT<city: STRING, minutes: INT>) USING clog"
    )
    try:
        spark.sql(f"INSERT INTO records {with_path}) VALUES (1, null)")
        read = spark.sql(f"SELECT key, value.city FROM records {with_path})")
        assert rows(read.where("value.city IS NOT NULL")) == [(1, "Riga"), (2, "Bonn"), (2, "Oslo")]
        assert rows(spark.sql(f"SELECT key FROM records {with_path}, view='table')")) == [(2,)]
    finally:
        spark.sql("DROP TABLE records")
