"""Who may write to a published view: nobody but clog (S63). delta-rs and Polars, on a copy."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from clog.cleaner import Cleaner
from clog.storage import Log
from clog.storage.diagnostics.verify import verify_log
from clog.storage.store import open_store

deltalake = pytest.importorskip("deltalake")
polars = pytest.importorskip("polars")
ROWS = pa.table({"key": pa.array([b"z"]), "value": pa.array([b"z"])})


def merge(path):
    table = deltalake.DeltaTable(path)
    named = {"source_alias": "s", "target_alias": "t"}
    table.merge(ROWS, "t.key = s.key", **named).when_matched_update_all().execute()


REFUSED = {
    "append": lambda path: deltalake.write_deltalake(path, ROWS, mode="append"),
    "overwrite": lambda path: deltalake.write_deltalake(path, ROWS, mode="overwrite"),
    "update": lambda path: deltalake.DeltaTable(path).update(updates={"value": "key"}),
    "delete": lambda path: deltalake.DeltaTable(path).delete("key is not null"),
    "merge": merge,
    "optimize": lambda path: deltalake.DeltaTable(path).optimize.compact(),
    "z-order": lambda path: deltalake.DeltaTable(path).optimize.z_order(["key"]),
    "restore": lambda path: deltalake.DeltaTable(path).restore(0),
    "polars": lambda path: polars.DataFrame(ROWS).write_delta(path, mode="append"),
}


def contents(path):
    return {
        str(found.relative_to(path)): found.read_bytes()
        for found in Path(path).rglob("*")
        if found.is_file()
    }


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A log whose view removed objects that older versions of it still name."""
    path = str(tmp_path_factory.mktemp("published") / "log")
    log = Log.create(path, 1, {"min.cleanable.dirty.ratio": "0"}, {"fsync": False})
    for i in range(4):
        log.append([{"key": f"k{j}", "value": str(i)} for j in range(i, i + 9)])
    log.publish("delta")
    log.roll()
    Cleaner(log).run_once(force=True)
    log.append([{"key": "k1", "value": "x"}])
    assert log.publish("delta").table_version == 1
    return path


@pytest.fixture
def copy(published, tmp_path):
    path = str(tmp_path / "log")
    shutil.copytree(published, path)
    return path


@pytest.mark.parametrize("name", REFUSED)
def test_nobody_else_writes(copy, name):
    """S63: the table requires a writer feature that nobody knows; no file is missing, changed or
    left behind.
    """
    before = contents(copy)
    with pytest.raises(Exception, match="clogView"):
        REFUSED[name](copy)
    after = contents(copy)
    assert {path: after.get(path) for path in before} == before
    assert {Path(path).name[:5] for path in after.keys() - before.keys()} <= {"part-"}


def expire(table):
    oldest = table.snapshots()[0].snapshot_id
    table.maintenance.expire_snapshots().by_id(oldest).commit()


HARMLESS = {
    "checkpoint": lambda table: table.create_checkpoint(),
    "both": lambda table: (table.create_checkpoint(), table.cleanup_metadata()),
    "clean up": lambda table: table.cleanup_metadata(),
}


@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.parametrize("days", [0, 40])
def test_what_delta_rs_does_without_asking_harms_nothing(copy, name, days):
    """S63: a checkpoint, and the deletion of old versions, require no writer feature; the table
    stays what it is, even if versions are older than Delta keeps, and is published further.
    """
    log = Log.open(copy)
    for path in Path(copy, "_delta_log").iterdir():
        old = path.stat().st_mtime - days * 86_400
        os.utime(path, (old, old))
    before = {p: data for p, data in contents(copy).items() if not p.startswith("_delta_log")}
    HARMLESS[name](deltalake.DeltaTable(copy))
    for value in ("y", "z"):
        now = contents(copy)
        assert {p: now.get(p) for p in before} == before
        assert polars.read_delta(copy).height == log.table().to_arrow().num_rows
        log.append([{"key": "k2", "value": value}])
        assert Log.open(copy).publish("delta").published
        before = {p: data for p, data in contents(copy).items() if not p.startswith("_delta_log")}
        HARMLESS[name](deltalake.DeltaTable(copy))
    assert verify_log(open_store(copy)).findings == ()


OF_ICEBERG = {
    "append": lambda table: table.append(ROWS),
    "overwrite": lambda table: table.overwrite(ROWS),
    "expire": expire,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OF_ICEBERG)
def test_pyiceberg_changes_no_file(copy, name):
    """S63: in a catalog of its own, where it may register the table; what it leaves is its own."""
    pytest.importorskip("fastavro")
    pytest.importorskip("sqlalchemy")
    catalogs = pytest.importorskip("pyiceberg.catalog.sql")
    log = Log.open(copy)
    version = log.publish("iceberg").table_version
    before = contents(copy)
    catalog = catalogs.SqlCatalog("a", uri="sqlite:///:memory:", warehouse=f"file://{copy}-other")
    catalog.create_namespace("n")
    table = catalog.register_table("n.t", f"{copy}/metadata/v{version}.metadata.json")
    with suppress(Exception):  # Releases differ in what of format 3 they write.
        OF_ICEBERG[name](table)
    after = contents(copy)
    assert {path: after.get(path) for path in before} == before
    assert not {path for path in after.keys() - before.keys() if path.startswith("_clog")}
    assert log.publish("iceberg").table_version == version


@pytest.mark.parametrize("full", [False, True])
def test_a_vacuum_deletes_nothing(copy, full):
    """S63: it is refused, or does not see what is in the log's folder, however old it is."""
    before = contents(copy)
    table = deltalake.DeltaTable(copy)
    given = {"retention_hours": 0, "enforce_retention_duration": False, "full": full}
    with suppress(deltalake.exceptions.DeltaError):
        assert table.vacuum(dry_run=False, **given) == []
    assert contents(copy) == before
    assert Log.open(copy).table().to_arrow().num_rows == polars.read_delta(copy).height


def test_a_view_has_no_change_feed(tmp_path):
    """Delta's readers say so, rather than show rows that a deletion vector hides."""
    log = Log.create(str(tmp_path / "log"), 1, key="id", like=[{"id": 1, "n": 1}])
    for n in (1, 2):
        log.append([{"id": 1, "n": n}, {"id": n + 1, "n": 0}])
        log.publish("delta")
    with pytest.raises(deltalake.exceptions.DeltaError, match="not have change data enabled"):
        deltalake.DeltaTable(log.url).load_cdf(starting_version=0)
