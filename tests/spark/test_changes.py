"""Changes of a table in Spark: `view=changes`."""

import pytest
from pyspark.sql import functions as f

from clog.cleaner import Cleaner
from clog.connector import lag, upsert_batches
from clog.storage import Log


@pytest.fixture
def log(url):
    return Log.create(url, 2, key="id", like=[{"id": 1, "city": "Riga", "n": 1}])


def by_city(log):
    table = log.table().to_arrow()
    sums = table.group_by("city").aggregate([("n", "sum")]).to_pylist()
    return {row["city"]: row["n_sum"] for row in sums}


def put(log, *rows):
    log.append([{"id": key, "city": city, "n": n} for key, city, n in rows])


@pytest.mark.core
def test_sums_of_a_table_that_changes(queries, log, tmp_path):
    """Orders that move, change and go are taken back from what they were added to; a batch that is
    run again though the log was cleaned is the same, and so is in the result once.
    """
    checkpoint, result = tmp_path / "checkpoint", str(tmp_path / "sums")

    def run(**options):
        came = f.col("_change_type").isin("insert", "update_postimage")
        changes = queries.stream(log.url, view="changes", pollInterval="0s", **options)
        signed = changes.withColumn("n", f.when(came, f.col("n")).otherwise(-f.col("n")))
        sums = signed.groupBy("city").agg(f.sum("n").alias("n"))
        query = (
            sums.writeStream.outputMode("update")
            .foreachBatch(upsert_batches(result, "city"))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        found = Log.open(result).table().to_arrow().to_pylist()
        assert {row["city"]: row["n"] for row in found if row["n"]} == by_city(log)
        return query

    put(log, (1, "Riga", 1), (2, "Oslo", 2), (3, "Oslo", 4))
    run(maxOffsetsPerTrigger=2)
    put(log, (1, "Oslo", 8), (3, "Oslo", 16))
    log.delete([2])
    query = run()
    assert query.lastProgress.numInputRows == 5
    assert lag(query.lastProgress)[0].max_offsets_behind_latest == 0
    last = max(int(p.name) for p in (checkpoint / "commits").iterdir() if p.name.isdigit())
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink()
    log.roll()
    Cleaner(log).run_once(force=True)
    put(log, (4, "Bern", 32))
    run()


def test_changes_as_frames(queries, log):
    """Between versions, with the table's columns and Spark's; each use of a frame is the same."""
    put(log, (1, "Riga", 1), (2, "Oslo", 2))
    put(log, (1, "Oslo", 8))
    changes = queries.read(log.url, view="changes", startingVersion=2)
    assert changes.columns[-3:] == ["_change_type", "_commit_version", "_commit_timestamp"]
    kinds = changes.where("city = 'Oslo'").union(changes.where("city = 'Riga'"))
    assert [tuple(row) for row in kinds.select("id", "city", "n", "_change_type").collect()] == [
        (1, "Oslo", 8, "update_postimage"),
        (1, "Riga", 1, "update_preimage"),
    ]
    put(log, (2, "Bern", 3))
    assert changes.count() == 2
    each = queries.read(log.url, view="changes", startingVersion=0, deduplicationMode="none")
    assert each.groupBy("_commit_version").count().count() == 3


def test_bytes_have_changes_too(queries, url):
    """A log of bytes has the columns of its records."""
    log = Log.create(url, 1)
    queries.append(log, "a")
    log.append([{"key": "a", "value": "b"}])
    rows = queries.read(url, view="changes", sinceVersion=1)
    found = rows.selectExpr("string(value)", "offset", "timestampType", "_change_type").collect()
    assert [tuple(row) for row in found] == [
        ("a", 0, 0, "update_preimage"),
        ("b", 1, 0, "update_postimage"),
    ]
