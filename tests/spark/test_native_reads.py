"""Reads by Spark's own scan, compared with what the log itself returns."""

import datetime as dt
import decimal
import gc
import os
import random
import shutil
import tracemalloc
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions

from clog.cleaner import Cleaner
from clog.connector import count_log, count_table, native, read_log, read_table
from clog.storage import Log, administration
from clog.storage.errors import (
    InvalidInputError,
    NotFoundError,
    OptionError,
    StoreUnavailableError,
)
from clog.storage.format.documents import folder_of

HISTORIES = int(os.environ.get("HISTORIES", "4"))
CONFIG = {
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "0",
    "segment.bytes": "600",
    "file.delete.delay.ms": "1h",
}
ALL = ("partition", "offset", "timestamp", "key", "value", "headers")


@pytest.fixture(autouse=True)
def not_said_before(monkeypatch):
    monkeypatch.setattr(native, "_SAID", set())
    native.forget()


def a_history(url, seed):
    """A log after appends, transactions, passes, deletions, and masks or none; versions of it."""
    draw = random.Random(seed)
    partitions = draw.randint(1, 3)
    log = Log.create(url, partitions, CONFIG, {"fsync": False})
    if draw.random() < 0.7:
        log.alter({"table.masks": "true"})
    versions = []
    for _ in range(draw.randint(4, 12)):
        match draw.choice(["append", "append", "append", "clean", "delete", "transaction", "time"]):
            case "append":
                rows = [a_record(draw) for _ in range(draw.randint(1, 30))]
                log.append(rows, partition=[draw.randrange(partitions) for _ in rows])
            case "clean":
                log.roll()
                Cleaner(log).run_once(force=draw.random() < 0.7)
            case "delete":
                ends = log.end_offsets()
                log.delete_records({p: draw.randint(0, end // 2) for p, end in ends.items()})
            case "time":
                kind = draw.choice(["LogAppendTime", "CreateTime"])
                log.alter({"message.timestamp.type": kind})
            case "transaction":
                t = log.transaction(f"t{draw.randint(0, 1)}", visible=True)
                t.append([a_record(draw) for _ in range(3)])
                match draw.choice(["commit", "abort", "leave"]):
                    case "commit":
                        t.commit()
                    case "abort":
                        t.abort()
        versions.append(log.version)
    return log, draw.choice(versions)


def a_record(draw):
    return {
        "key": f"k{draw.randint(0, 20)}",
        "value": None if draw.random() < 0.15 else str(draw.random()),
        "timestamp": draw.randint(1, 10**9),
        "headers": {"trace": b"1"} if draw.random() < 0.2 else None,
    }


def as_rows(table):
    """Rows, sorted, whatever the order of columns."""
    columns = sorted(table.column_names)
    table = table.select(columns)
    if "timestamp" in columns:
        at = columns.index("timestamp")
        times = table.column(at).cast(pa.timestamp("us", "UTC")).cast("int64")
        table = table.set_column(at, "timestamp", times)
    return sorted(map(repr, zip(*(c.to_pylist() for c in table.columns), strict=True)))


@pytest.fixture
def interpreted(spark):
    """Without generated code, which does not pay off for tiny data."""
    settings = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.files.minPartitionNum": "1",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name in settings:
        spark.conf.unset(name)


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.core), *range(1, HISTORIES)])
def test_tables_and_logs_are_those_of_the_log_itself(
    seed, spark, url, caplog, interpreted, monkeypatch
):
    """Random histories: key, value, time, headers, partition and offset, at the newest version and
    at older ones, without and with columns that show places, whole and between offsets; all by
    Spark's own scan, and counted without it. With few objects and hidden rows, and with many, each
    in its way.
    """
    if seed % 2:
        monkeypatch.setattr(native, "FEW_HIDDEN", 0)
        monkeypatch.setattr(native, "RUNS_MAX", 0)
        monkeypatch.setattr(native, "PATHS_MAX", 0)
    log, version = a_history(url, seed)
    draw = random.Random(seed)
    lows, highs = log.start_offsets(), log.stable_offsets()
    some = {p: sorted((draw.randint(lows[p], end), end)) for p, end in highs.items()}
    some = {p: (low, draw.randint(low, high)) for p, (low, high) in some.items()}
    starts, ends = ({p: r[i] for p, r in some.items()} for i in (0, 1))
    between = {"startingOffsets": starts, "endingOffsets": ends}
    names = ",".join(ALL)
    table, older = log.table().to_arrow(), log.table(at=version).to_arrow()
    undecided = log.read(isolation="read_uncommitted")
    asked = [
        (read_table(spark, url, columns=names), table),
        (read_table(spark, url, columns="key,value,timestamp,headers"), table),
        (read_table(spark, url, version, columns="key,value,timestamp,headers"), older),
        (read_log(spark, url, columns=names), pa.Table.from_batches(log.read(), table.schema)),
        (
            read_log(spark, url, columns=names, isolation="read_uncommitted"),
            pa.Table.from_batches(undecided, table.schema),
        ),
        (
            read_log(spark, url, columns=names, **between),
            pa.Table.from_batches(log.read(start=starts, end=ends), table.schema),
        ),
    ]
    assert not caplog.records, "none fell back"
    counts = count_table(url), count_table(url, version), count_log(url), count_log(url, **between)
    assert counts == tuple(asked[i][1].num_rows for i in (0, 2, 3, 5))
    missing = [functions.lit(None).cast("long").alias(name) for name in ("partition", "offset")]
    numbered = [
        (f if "offset" in f.columns else f.select("*", *missing)).withColumn("n", functions.lit(n))
        for n, (f, _) in enumerate(asked)
    ]
    found = reduce(lambda a, b: a.unionByName(b), numbered).toArrow()
    for n, (frame, rows) in enumerate(asked):
        mine = found.filter(pc.equal(found.column("n"), n)).select(frame.columns)
        assert as_rows(mine) == as_rows(rows.select(frame.columns)), n


def filled(url, **options):
    """A log of 40 keys in 3 objects, some superseded, one deleted."""
    log = Log.create(url, 2, {"min.cleanable.dirty.ratio": "0"}, {"fsync": False}, **options)
    log.alter({"table.masks": "true"})
    log.append([{"key": f"k{i}", "value": "old"} for i in range(40)])
    log.append([{"key": f"k{i}", "value": "new"} for i in range(0, 40, 3)])
    log.append([{"key": "k1", "value": None}])
    Cleaner(log).run_once()
    return log


def key_partition(log, key):
    table = log.table().to_arrow(columns=["partition", "key"])
    return next(r["partition"] for r in table.to_pylist() if r["key"] == key.encode())


def plan_of(frame):
    return frame._jdf.queryExecution().executedPlan().toString()


@pytest.mark.core
def test_catalyst_scans_prunes_and_broadcasts(spark, url):
    """Filters and columns go into the scan, no Python is in the plan, and a join recognizes a small
    table as one to broadcast.
    """
    filled(url)
    table = read_table(spark, url)
    assert table.columns == ["key", "value", "timestamp"]
    plan = plan_of(table.where("key = X'6B33'").select("value"))
    assert "ReadSchema: struct<key:binary,value:binary" in plan
    assert "timestamp:" not in plan
    assert "PushedFilters: [IsNotNull(key), EqualTo(key" in plan
    assert "Python" not in plan
    big = spark.range(100).selectExpr("encode('k' || id, 'UTF-8') AS key")
    joined = big.join(table, "key")
    assert plan_of(joined).count("BroadcastHashJoin") == 1
    assert joined.count() == table.count() == 39


@pytest.mark.core
@pytest.mark.parametrize("few", [0, 1000])
def test_rows_are_hidden_by_a_filter_or_a_join(spark, url, few, monkeypatch):
    """Few by a filter, which starts no job, many by a join: those that later records superseded in
    one file, not the rows of the same number in another, however few parts of a file are
    distinguished.
    """
    monkeypatch.setattr(native, "FEW_HIDDEN", few)
    monkeypatch.setattr(native, "NEAR_BITS", 6)
    log = Log.create(url, 1, CONFIG | {"segment.bytes": "1m"}, {"fsync": False})
    log.alter({"table.masks": "true"})
    for n in range(3):
        log.append([{"key": f"k{n}-{i}", "value": f"{n}"} for i in range(300)])
    changed = ["k0-0", "k0-64", "k0-299", "k1-7", "k1-8", "k2-298"]
    log.append([{"key": key, "value": "changed"} for key in changed])
    Cleaner(log).run_once()
    table = read_table(spark, url, columns="key,value")
    assert ("LeftAnti" in plan_of(table)) == (few == 0)
    assert as_rows(table.toArrow()) == as_rows(log.table().to_arrow(columns=["key", "value"]))


@pytest.mark.core
def test_places_are_in_no_plan_that_has_no_column_of_them(spark, url):
    """Neither a join nor row numbers, whatever columns the DataFrame had; nor a bit for rows that
    are all shown.
    """
    log = Log.create(url, 2, {}, {"fsync": False})
    for n in range(3):
        log.append([{"key": f"k{n}{i}", "value": f"{n}"} for i in range(4)])
    everything = read_log(spark, url)
    row_number, join = "row_index", "Join"
    assert row_number in plan_of(everything.select("offset"))
    for frame in (
        everything.select("value"),
        read_log(spark, url, columns="key,value"),
        read_table(spark, url),
    ):
        assert row_number not in plan_of(frame)
        assert join not in plan_of(frame)
    where = everything.where("key = X'6B3132'").select("value", "topic")
    assert "PushedFilters: [IsNotNull(key), EqualTo(key" in plan_of(where)
    assert row_number not in plan_of(where)
    assert [bytes(row.value) for row in where.collect()] == [b"1"]


@pytest.mark.core
def test_a_version_is_planned_once_and_looked_at_each_time(spark, url, monkeypatch):
    """Reading the same of a version again builds nothing, and costs the log a look for news; two
    such DataFrames are two in a join. New records make a new plan.
    """
    log = filled(url)
    made = []
    scanned = native.scanned
    monkeypatch.setattr(native, "scanned", lambda *args: made.append(args) or scanned(*args))
    one, other = read_table(spark, url), read_table(spark, url)
    assert len(made) == 1
    joined = one.join(other, one.key == other.key)
    assert joined.select(one.value, other.key).count() == 39
    read_table(spark, url, columns="key")
    assert len(made) == 2
    log.append([{"key": "new", "value": "1"}])
    assert read_table(spark, url).count() == 40
    assert one.count() == 39
    log.delete_records(log.end_offsets())
    assert read_table(spark, url).count() == 0
    assert read_table(spark, url, log.version - 1).count() == 0, "S36"


def test_a_link_in_the_place_of_objects_is_refused(spark, url, tmp_path):
    """Spark would follow it, perhaps into another log."""
    log = filled(url)
    data = Path(url) / folder_of(log.id) / "data"
    data.rename(tmp_path / "elsewhere")
    data.symlink_to(tmp_path / "elsewhere")
    for read in (read_table, read_log):
        with pytest.raises(StoreUnavailableError, match=r"data' in .* is a symbolic link"):
            read(spark, url)


@pytest.mark.core
def test_what_is_kept_of_a_version_does_not_grow_with_its_rows(spark, url):
    log = Log.create(url, 1, {"cleanup.policy": "compact"})
    keys = [f"{i % 999_900}" for i in range(1_000_000)]
    log.append(pa.table({"key": keys, "value": keys}))
    assert read_table(spark, url).count() == 999_900
    tracemalloc.start()
    try:
        kept = []
        for i in range(4):
            log.append([{"key": str(i), "value": "new"}])
            before, _ = tracemalloc.get_traced_memory()
            read_table(spark, url)
            gc.collect()
            kept.append(tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()
    assert min(kept) < 500_000, kept


def test_counts_need_neither_a_session_nor_a_row(url, monkeypatch):
    """`count_table` and `count_log` by partition, of a version, of keys; from masks alone if these
    are sufficient.
    """
    log = filled(url)
    monkeypatch.setattr("clog.storage.publications.source.table_batches", lambda *_, **__: iter(()))
    monkeypatch.setattr("clog.storage.read.scan.open_ranges", None)
    assert count_table(url) == 39
    assert count_log(url) == sum(log.end_offsets().values())
    parts = [count_table(url, partitions=str(p)) for p in (0, 1)]
    assert sum(parts) == 39
    assert all(parts)
    assert count_log(url, startingOffsets={0: 3, 1: 5}) == count_log(url) - 8
    monkeypatch.undo()
    assert count_table(url, keys=["k1", "k2", "k3"]) == 2
    before = log.version
    log.append([{"key": "later", "value": "1"}, {"key": "k2", "value": None}])
    assert count_table(url) == 39
    assert count_table(url, before, keys=["later", "k2"]) == 1
    with pytest.raises(OptionError, match="keys"):
        count_log(url, keys=["k1"])


def test_many_objects_are_found_by_one_listing(spark, url, caplog):
    """More than `PATHS_MAX`: no job, no task for each of them; a missing one is noticed, and the
    read fails as any of the log does.
    """
    log = Log.create(url, 1, {}, {"fsync": False})
    for n in range(native.PATHS_MAX + 2):
        log.append([{"key": f"k{n}", "value": f"{n}"}])
    (Path(url) / "_clog" / log.id / "data" / "stray.parquet").write_bytes(b"no Parquet")
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(None))
    records = read_log(spark, url)
    assert set(tracker.getJobIdsForGroup(None)) == before
    assert sorted(r.offset for r in records.collect()) == [*range(native.PATHS_MAX + 2)]
    assert not caplog.records
    native.forget()
    paths = {c.object.path for _, c in log.handle.manifest().chunks()}
    (Path(url) / "_clog" / log.id / max(paths)).unlink()
    missing = read_log(spark, url)
    assert "some of its objects are gone" in caplog.text
    with pytest.raises(Exception, match=r"gone|missing|no longer|lacks"):
        missing.collect()


@pytest.mark.core
def test_keys_are_looked_up_by_the_driver(spark, url, caplog):
    """By key indexes, as `format("clog")` takes them; the DataFrame scans nothing."""
    log = filled(url)
    found = read_table(spark, url, keys=["k1", "k3", "none"])
    assert "LocalTableScan" in plan_of(found)
    assert [(bytes(r.key), bytes(r.value)) for r in found.collect()] == [(b"k3", b"new")]
    assert read_table(spark, url, log.version - 3, keys=["k1"], columns="value,offset").count() == 1
    assert read_table(spark, url, keys=["none"]).collect() == []
    one = read_table(spark, url, keys=["k3"], columns="topic,partition,timestampType,key")
    assert one.collect() == [("orders", key_partition(log, "k3"), 0, b"k3")]
    elsewhere = 1 - key_partition(log, "k3")
    assert read_table(spark, url, keys=["k3"], partitions=str(elsewhere)).collect() == []
    assert not caplog.records
    many = read_table(spark, url, keys=[f"k{i}" for i in range(native.KEYS_MAX + 1)])
    assert many.count() == 39
    assert "more than 1,000 keys" in caplog.text
    records = read_log(spark, url, keys=["k3"], columns="value")
    assert sorted(bytes(r.value) for r in records.collect()) == [b"new", b"old"]


def test_what_spark_cannot_scan_is_read_by_clog_and_said_once(spark, url, caplog, monkeypatch):
    """The same rows, of the version of the call: a store that the JVM lacks, a path that is a
    pattern to it, keys that only tasks should read.
    """
    log = filled(url)
    wanted = as_rows(log.table().to_arrow(columns=["key", "value", "timestamp"]))
    shutil.copytree(url, f"{url}[1]")
    for _ in range(2):
        strange = read_table(spark, f"{url}[1]")
        assert as_rows(strange.toArrow()) == wanted
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "pattern" in caplog.text
    caplog.clear()
    monkeypatch.setattr(native, "ROWS_MAX", 3)
    assert as_rows(read_table(spark, url).toArrow()) == wanted, "masks say it all"
    before = log.version
    log.append([{"key": f"k{i}", "value": "newest"} for i in range(4)])
    unmasked = read_table(spark, url)
    old = read_table(spark, url, before)
    assert not [r for r in caplog.records if "no masks" not in r.getMessage()]
    assert len(caplog.records) == 1
    log.append([{"key": "later", "value": "1"}])
    assert as_rows(old.toArrow()) == wanted
    assert unmasked.where("value = X'6E6577657374'").count() == 4
    assert unmasked.where("key = X'6C61746572'").count() == 0


def test_a_session_whose_parquet_scan_numbers_no_rows(spark, url, caplog):
    """Spark's second version of it has no ``_metadata.row_index``: clog reads, and says why."""
    log = filled(url)
    wanted = as_rows(log.table().to_arrow(columns=["key", "value", "timestamp"]))
    name = "spark.sql.sources.useV1SourceList"
    spark.conf.set(name, "avro, CSV")
    try:
        assert as_rows(read_table(spark, url).toArrow()) == wanted
        assert read_log(spark, url).count() == sum(log.end_offsets().values())
    finally:
        spark.conf.unset(name)
    assert f"the session's {name} lacks parquet" in caplog.text
    caplog.clear()
    assert "Python" not in plan_of(read_table(spark, url))
    assert not caplog.records


def test_options_and_versions(spark, url):
    """Other functions' options, invalid versions, other logs."""
    log = filled(url)
    with pytest.raises(OptionError, match="asofversion"):
        read_table(spark, url, asOfVersion=1)
    with pytest.raises(OptionError, match="view"):
        read_log(spark, url, view="table")
    with pytest.raises(NotFoundError, match="does not exist yet"):
        read_table(spark, url, log.version + 1)
    ends = log.end_offsets()
    records = read_log(spark, url, startingOffsets={0: ends[0] - 1, 1: 0}, partitions="0,1")
    assert records.count() == 1 + ends[1]
    one = read_table(spark, url, partitions="1", includeHeaders=True)
    assert one.columns[-1] == "headers"
    assert one.count() == log.table(partition=1).to_arrow().num_rows


def test_missing_and_damaged_objects_fail(spark, url):
    """Whatever the session is configured to do with such files: rows would be missing, or wrong."""
    log = filled(url)
    table = read_table(spark, url)
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        paths = {c.object.path for _, c in log.handle.manifest().chunks()}
        path = Path(url) / "_clog" / log.id / min(paths)
        data = bytearray(path.read_bytes())
        data[40] ^= 1  # In a page.
        path.write_bytes(data)
        with pytest.raises(Exception, match=r"(?i)crc|checksum|corrupt|decompress"):
            table.toArrow()
        path.unlink()
        with pytest.raises(Exception, match=r"FILE_NOT_EXIST|FileNotFound|does not exist"):
            table.toArrow()
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")


TYPES = {
    "truth": (pa.bool_(), True),
    "tiny": (pa.int8(), -1),
    "short": (pa.int16(), 2),
    "u8": (pa.uint8(), 200),
    "u16": (pa.uint16(), 60_000),
    "single": (pa.float32(), 1.5),
    "money": (pa.decimal128(9, 2), decimal.Decimal("1.25")),
    "wide": (pa.decimal128(30, 2), decimal.Decimal("-1.25")),
    "day": (pa.date32(), dt.date(1500, 1, 1)),
    "ms": (pa.timestamp("ms"), dt.datetime(1800, 1, 1, 12)),
    "us": (pa.timestamp("us"), dt.datetime(2020, 1, 1, 12)),
    "zone": (pa.timestamp("ms", "UTC"), dt.datetime(1800, 1, 1, 12, tzinfo=dt.UTC)),
    "fixed": (pa.binary(3), b"abc"),
    "bytes": (pa.binary(), b"q"),
    "list": (pa.list_(pa.int32()), [1, 2]),
    "map": (pa.map_(pa.string(), pa.int64()), [("a", 1)]),
    "struct": (pa.struct([("x", pa.int64()), ("y", pa.string())]), {"x": 1, "y": "z"}),
}


def test_keys_that_are_dates_decimals_and_truth_values(spark, url, caplog):
    """FORMAT.md §12.3: by Spark's scan, with filters in it, and looked up by the driver; also a
    decimal that got more digits.
    """
    key = pa.struct([("day", pa.date32()), ("price", pa.decimal128(9, 2)), ("ok", pa.bool_())])
    schema = {"key": key, "value": pa.struct([("n", pa.int32())])}
    config = {**CONFIG, "table.key.columns": "day,price,ok"}
    log = Log.create(url, 2, config, {"fsync": False}, schema=schema)
    days = dt.date(1969, 12, 30), dt.date(1969, 12, 31)
    keys = [
        {"day": days[i % 2], "price": decimal.Decimal(i) / 4, "ok": i % 3 == 0}
        for i in range(-3, 4)
    ]
    for number in range(3):
        log.append([{"key": one, "value": {"n": number}} for one in keys[number:]])
        if number == 1:
            log.evolve(widen={"key.price": pa.decimal128(30, 2)})
            log.roll()
            Cleaner(log).run_once(force=True)
    table = read_table(spark, url)
    records = log.table().to_arrow(columns=["key", "value"]).to_pylist()
    expected = [(*r["key"].values(), r["value"]["n"]) for r in records]
    assert sorted(tuple(row) for row in table.collect()) == sorted(expected)
    assert len(expected) == len(keys)
    dated = table.where("day = DATE'1969-12-30'")
    assert "PushedFilters: [IsNotNull(key.day), EqualTo(key.day" in plan_of(dated)
    assert dated.count() == sum(one["day"] == days[0] for one in keys)
    text = '{"day": "1969-12-31", "price": "-0.75", "ok": true}'
    looked_up = read_table(spark, url, keys=[text])
    assert [tuple(row) for row in looked_up.collect()] == [(*keys[0].values(), 0)]
    assert not caplog.records
    by_clog = spark.read.format("clog").option("view", "table").load(url)
    assert sorted(tuple(row) for row in by_clog.collect()) == sorted(expected)


@pytest.mark.parametrize("has_columns", [False, True])
def test_typed_logs_and_their_earlier_objects(spark, url, caplog, has_columns):
    """Every type that Spark's reader has, fields that were added and widened, rows of plain
    columns, which the objects have or not; filters on fields go into the scan (S61).
    """
    key = pa.field("key", pa.string(), nullable=not has_columns)
    schema = pa.schema([key, ("value", pa.struct([(n, k) for n, (k, _) in TYPES.items()]))])
    config = {"table.key.columns": "id"}
    log = Log.create(url, 1, config, {"fsync": False}, schema=schema)
    first = {name: value for name, (_, value) in TYPES.items()}
    log.append([{"key": "a", "value": first}, {"key": "none", "value": dict.fromkeys(TYPES)}])
    wider = {"tiny": pa.int64(), "single": pa.float64(), "money": pa.decimal128(20, 2)}
    log.evolve(
        add={"value.note": pa.string()}, widen={f"value.{n}": kind for n, kind in wider.items()}
    )
    log.append([{"key": "b", "value": first | {"note": "new", "tiny": 1 << 40}}])
    wanted = log.table().to_arrow(columns=["key", "value"]).to_pylist()
    plain = read_table(spark, url)
    assert plain.columns == ["id", *TYPES, "note"]
    rows = [{"id": r["key"], **r["value"]} for r in wanted]
    assert sorted(map(repr, plain.toArrow().to_pylist())) == sorted(map(repr, rows))
    records = read_table(spark, url, columns="key,value")
    assert sorted(map(repr, records.toArrow().to_pylist())) == sorted(map(repr, wanted))
    assert read_table(spark, url, columns="note,id").where("note IS NULL").count() == 2
    stored = "short" if has_columns else "value.short"
    assert f"PushedFilters: [IsNotNull({stored})" in plan_of(plain.where("short = 2"))
    assert plain.where("short = 2").count() == 2
    log.append([{"key": "a", "value": None}])
    every = {(r["offset"], r["key"], repr(r["value"])) for r in log.read().to_pylist()}
    scanned = read_log(spark, url).select("offset", "key", "value").toArrow().to_pylist()
    assert {(r["offset"], r["key"], repr(r["value"])) for r in scanned} == every
    assert not caplog.records
    log.evolve(add={"value.half": pa.float16()})
    assert read_table(spark, url).count() == 2
    assert "the type halffloat" in caplog.text
    assert read_table(spark, url, columns="id,short").count() == 2


@pytest.mark.parametrize("has_columns", [False, True])
def test_columns_with_other_names_in_objects(spark, url, caplog, has_columns):
    """Renamed, dropped and added again, at each depth; conditions on a column of the table go into
    the scan under its name in objects, and a version has its own columns (S61).
    """
    key = pa.field("key", pa.int64(), nullable=not has_columns)
    inner = pa.struct([("x", pa.int32()), ("y", pa.string())])
    fields = [("city", pa.string()), ("n", pa.int32()), ("s", inner), ("l", pa.list_(inner))]
    fields.append(("m", pa.map_(pa.string(), inner)))
    config = {"table.key.columns": "id"}
    schema = pa.schema([key, ("value", pa.struct(fields))])
    log = Log.create(url, 1, config, {"fsync": False}, schema=schema)
    one = {"x": 1, "y": "y"}
    row = {"id": 1, "city": "Riga", "n": 1, "s": one, "l": [one, None], "m": [("k", one)]}
    log.append([row, {**row, "id": 2, "city": "Oslo", "s": None}, {**row, "id": 3}])
    log.delete([3])
    before = log.version
    names = {"id": "trip", "city": "town", "s.x": "y", "s.y": "x", "l.element.x": "z"}
    log.evolve(rename={**names, "m.value.y": "q"}, drop=["n"], add={"n": pa.string()})
    one, other, last = {"y": 2, "x": "2"}, {"z": 2, "y": "2"}, {"x": 2, "q": "2"}
    log.append([{"trip": 4, "town": "Rome", "n": "4", "s": one, "l": [other], "m": [("k", last)]}])
    for version in (before, log.version):
        wanted, found = log.table(at=version), read_table(spark, url, version=version)
        assert found.columns == wanted.schema.names
        assert sorted(map(repr, found.toArrow().to_pylist())) == sorted(map(repr, wanted))
    stored = "city" if has_columns else "value.city"
    chosen = read_table(spark, url).where("town = 'Riga'")
    assert f"PushedFilters: [IsNotNull({stored})" in plan_of(chosen)
    assert [row["trip"] for row in chosen.collect()] == [1]
    assert read_table(spark, url).where("s.y = 2 AND n = '4'").count() == 1
    wanted = log.read(columns=["offset", "key", "value"]).to_pylist()
    scanned = read_log(spark, url).select("offset", "key", "value").toArrow().to_pylist()
    assert sorted(map(repr, scanned)) == sorted(map(repr, wanted))
    assert not caplog.records


def test_names_that_differ_in_case_alone(spark, url, monkeypatch):
    """A log of an earlier release may have them. A session that minds case reads and writes each;
    in any other `read_table` and `read_log` say which two they are, or read one of them, and a
    DataFrame's column is written to the one that is spelled like it.
    """
    monkeypatch.setattr(administration, "names_problem", lambda *_, **__: None)
    pair = pa.struct([("a", pa.int64()), ("A", pa.int64())])
    columns = pa.schema([("id", pa.string()), ("v", pa.int64()), ("V", pa.int64()), ("m", pair)])
    log = Log.create(url, 1, key="id", like=columns)
    log.append([{"id": "a", "v": 1, "V": 2, "m": {"a": 3, "A": 4}}])
    spark.createDataFrame([("b", 5)], "id string, V long").write.format("clog").mode("append").save(
        url
    )
    assert log.table().get("b") == {"v": None, "V": 5, "m": None}

    def source(**options):
        return spark.read.format("clog").options(view="table", **options).load(url)

    with pytest.raises(InvalidInputError, match=r"value\.v and value\.V.*caseSensitive is false"):
        read_table(spark, url)
    with pytest.raises(InvalidInputError, match=r"value\.v and value\.V"):
        read_log(spark, url)
    some = {("a", 2), ("b", 5)}
    assert {tuple(row) for row in read_table(spark, url, columns="id,V").collect()} == some
    assert {tuple(row) for row in source(columns="id,V").collect()} == some
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        for frame in (read_table(spark, url), source()):
            assert frame.where("id = 'a'").select("v", "V", "m.a", "m.A").first() == (1, 2, 3, 4)
        assert read_log(spark, url).where("value.V = 2").select("value.v").first() == (1,)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
