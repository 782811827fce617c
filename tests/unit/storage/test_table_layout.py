"""Objects of keyed logs have the columns of the table, in every engine (FORMAT.md §22)."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from clog.cleaner import Cleaner
from clog.storage import InvalidInputError, Log
from clog.storage.diagnostics.verify import verify_log
from clog.storage.objects import writer
from clog.storage.store import open_store

OWN = ["offset", "timestamp", "headers", "key", "value", "delete_horizon", "partition"]
"""Names of records' columns, which a table may have as well."""


def columns_in(log):
    """The columns that each object has, by name."""
    paths = {chunk.object.path for _, chunk in log.handle.manifest().chunks()}
    return [pq.read_schema(f"{log.url}/_clog/{log.id}/{path}").names for path in paths]


def rows_of(*ids, **fields):
    return [{"id": i, **{name: f"{name}{i}" for name in OWN}, "n": None, **fields} for i in ids]


def create(tmp_path, key="id", **options):
    like = pa.schema(
        [("id", pa.int64()), *((name, pa.string()) for name in OWN), ("n", pa.float64())]
    )
    return Log.create(str(tmp_path / "log"), 1, key=key, like=like, **options)


def keyed(key, number):
    return number if key == "id" else {"id": number, "offset": f"offset{number}"}


@pytest.mark.parametrize("key", ["id", ["id", "offset"]])
def test_columns_may_have_the_names_that_records_have(tmp_path, monkeypatch, key):
    """A table's columns and clog's own never meet, through appends, deletes, passes that copy row
    groups, evolution and filters; a row of nulls is not a deleted one.
    """
    monkeypatch.setattr("clog.storage.read.copy.GROUP_BYTES_MIN", 1)
    monkeypatch.setattr(writer, "WHOLE_BYTES", 0)
    log = create(tmp_path, key, config={"min.cleanable.dirty.ratio": 0})
    log.append(rows_of(*range(40)))
    assert columns_in(log) == [["id", *OWN, "n", "_clog_timestamp"]]
    headers = [("h", b"x")]
    nulls = dict.fromkeys(name for name in (*OWN, "n") if not (name == "offset" and key != "id"))
    log.append([{"key": keyed(key, 2), "value": nulls, "headers": headers}])
    log.append([{"key": keyed(key, 1), "value": None}])
    expected = rows_of(0, *range(3, 40))
    expected.append({**rows_of(2)[0], **nulls})
    for _ in range(2):
        assert sorted(log.table().to_pylist(), key=str) == sorted(expected, key=str)
        blank, deleted = log.read(0, 40).to_pylist()
        assert (blank["value"], blank["headers"]) == (nulls, [{"key": "h", "value": b"x"}])
        assert (deleted["key"], deleted["value"]) == (keyed(key, 1), None)
        found = log.table(filter=pc.field("value") == "value7")
        assert found.to_arrow().to_pylist() == rows_of(7)
        log.roll()
        Cleaner(log).run_once(force=True)
    log.evolve(add={"more": pa.int8()})
    log.append(rows_of(50, more=1))
    expected = [{**row, "more": None} for row in expected] + rows_of(50, more=1)
    assert sorted(log.table().to_pylist(), key=str) == sorted(expected, key=str)
    assert list(verify_log(open_store(log.url)).findings) == []


def published(log):
    """The columns that each engine finds, and the rows, sorted."""
    import deltalake
    import polars as pl
    from pyiceberg.table import StaticTable

    log.publish("delta")
    at = log.publish("iceberg").table_version
    delta = pl.read_delta(log.url)
    iceberg = StaticTable.from_metadata(f"{log.url}/metadata/v{at}.metadata.json").scan()
    names = [field.name for field in deltalake.DeltaTable(log.url).schema().fields]
    assert names == delta.columns
    return names, sorted(delta.to_dicts(), key=str), sorted(iceberg.to_arrow().to_pylist(), key=str)


@pytest.mark.parametrize("key", ["id", ["id", "offset"]])
def test_a_published_table_has_the_tables_columns(tmp_path, key):
    """Also where the log gives timestamps at the commit, since views show none; what is asked for
    beside them comes and goes, and earlier versions stay as they were.
    """
    import polars as pl

    config = {"message.timestamp.type": "LogAppendTime"}
    log = create(tmp_path, key, config=config)
    log.append(rows_of(1, 2, 3))
    log.append([{"key": keyed(key, 1), "value": None}])
    assert published(log) == (["id", *OWN, "n"], rows_of(2, 3), rows_of(2, 3))
    with pytest.raises(InvalidInputError, match=r"LogAppendTime"):
        log.alter({"table.publish": "delta", "table.publish.columns": "timestamp"})
    log.alter({"message.timestamp.type": "CreateTime"})
    Cleaner(log).run_once(force=True)
    log.roll()
    Cleaner(log).run_once(force=True)
    log.alter({"table.publish.columns": "headers,timestamp"})
    names, rows, same = published(log)
    assert names == ["id", *OWN, "n", "_clog_headers", "_clog_timestamp"]
    assert [row["_clog_timestamp"] for row in rows] == [row["_clog_timestamp"] for row in same]
    assert all(row["_clog_timestamp"] is not None for row in rows)
    assert pl.read_delta(log.url, version=0).columns == ["id", *OWN, "n"]
    log.alter({"table.publish.columns": None})
    assert published(log) == (["id", *OWN, "n"], rows_of(2, 3), rows_of(2, 3))


def test_a_view_follows_what_the_config_calls_the_key(tmp_path):
    """There and back, though nothing else changes; so does a column that takes the key's name in
    objects (S61, S63).
    """
    import deltalake

    log = create(tmp_path)
    log.append(rows_of(1))
    assert published(log)[0] == ["id", *OWN, "n"]
    log.alter({"table.key.columns": "ident"})
    for name in ("delta", "iceberg"):
        assert log.publish(name).published
    assert deltalake.DeltaTable(log.url).schema().fields[0].name == "ident"
    log.alter({"table.key.columns": "id"})
    assert published(log)[0] == ["id", *OWN, "n"]
    log.alter({"table.key.columns": "ident"})
    log.evolve(add={"id": pa.string()})
    row = {"ident" if name == "id" else name: value for name, value in rows_of(2)[0].items()}
    log.append([{**row, "id": "text"}])
    assert log.table(filter=pc.field("id") == "text").get(2)["id"] == "text"
    assert log.table().get(1)["id"] is None
    log.publish("delta")
    table = deltalake.DeltaTable(log.url)
    query = deltalake.QueryBuilder().register("t", table).execute("select * from t")
    found = sorted(pa.table(query.read_all()).to_pylist(), key=lambda row: row["ident"])
    assert found == sorted(log.table().to_pylist(), key=lambda row: row["ident"])


@pytest.mark.parametrize("key", ["id", "x-18"])
def test_a_column_is_added_beside_one_that_ends_in_its_id(tmp_path, key):
    """The name in objects that it would get is another column's (FORMAT.md §12.4)."""
    names = {"id": pa.int64(), "a": pa.string(), "x-18": pa.int64()}
    log = Log.create(str(tmp_path / "log"), 1, key=key, like=pa.schema(list(names.items())))
    log.evolve(rename={"a": "b"})
    log.evolve(add={"x": pa.string()})
    row = {"id": 1, "b": "b", "x-18": 2, "x": "x"}
    log.append([row])
    assert log.table().to_pylist() == [{name: row[name] for name in log.table().schema.names}]


def older(tmp_path):
    """A log as releases before 0.3.0 made them: it got its names later."""
    schema = {"key": "int64 not null", "value": {"city": "string"}}
    log = Log.create(str(tmp_path / "older"), 1, schema=schema)
    log.alter({"table.key.columns": "id"})
    return log


def test_an_older_keyed_log_stays_as_it_is_until_it_is_copied(tmp_path):
    """Its objects and views have key and value; a copy has the table's columns."""
    log = older(tmp_path)
    log.append([{"id": 1, "city": "Riga"}])
    assert columns_in(log) == [["key", "value", "timestamp"]]
    names, rows, _ = published(log)
    assert (names, rows[0]["value"]) == (["key", "value", "headers", "timestamp"], {"city": "Riga"})
    with pytest.raises(InvalidInputError, match="views of this one show headers and timestamps"):
        log.alter({"table.publish.columns": "headers"})
    copy = Log.create(str(tmp_path / "copy"), 1, dict(log.config), schema=log.schema)
    copy.append(log.table().to_arrow())
    assert columns_in(copy) == [["id", "city", "_clog_timestamp"]]
    assert published(copy)[:2] == (["id", "city"], [{"id": 1, "city": "Riga"}])


@pytest.mark.parametrize("name", ["_clog", "_clog_deleted", "_cLOG_x"])
def test_no_column_gets_a_name_that_clogs_own_begin_with(tmp_path, name):
    """In whatever case, through creation, evolution and configs."""
    for key in ("id", name):
        like = pa.schema([("id", pa.int8()), (name, pa.int8())])
        with pytest.raises(InvalidInputError, match="names that begin with _clog"):
            Log.create(str(tmp_path / "log"), 1, key=key, like=like)
    log = create(tmp_path)
    with pytest.raises(InvalidInputError, match="begin"):
        log.evolve(add={name: pa.int8()})
    with pytest.raises(InvalidInputError, match="names that begin with _clog"):
        log.alter({"table.key.columns": name})
    assert log.version == 0


def test_the_key_of_a_table_stays_not_null(tmp_path):
    """No key, and a key of nulls, would be the same columns."""
    log = create(tmp_path)
    with pytest.raises(InvalidInputError, match="id stays NOT NULL"):
        log.evolve(relax=["id"])


@pytest.mark.parametrize("key", ["id", ["id", "offset"]])
def test_keys_that_may_be_null_keep_key_and_value(tmp_path, key):
    """Whatever names its columns have: it may have records without a key."""
    kind = "int64" if key == "id" else {"id": "int64", "offset": "string"}
    schema = {"key": kind, "value": {"a": "int8"}}
    config = {"table.key.columns": key, "cleanup.policy": "delete"}
    log = Log.create(str(tmp_path / "log"), 1, config, schema=schema)
    log.append([{"key": None, "value": {"a": 1}}])
    assert columns_in(log) == [["key", "value", "timestamp"]]
    assert [row["key"] for row in log.read().to_pylist()] == [None]
