"""What is specific to Iceberg: locations, files that the sweep deletes, a missing package (S63)."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from clog.cleaner import Cleaner
from clog.storage import InvalidInputError, Log
from clog.storage.diagnostics.verify import Check, verify_log
from clog_testing.clocked import ClockedStore
from clog_testing.published import iceberg_rows, iceberg_versions

pytest.importorskip("fastavro")
pytest.importorskip("pyroaring")
DAY_MS = 86_400_000


def put(log, numbers, value="1"):
    log.append([{"key": f"k{i}", "value": value, "timestamp": 1} for i in numbers])


def files_of(store):
    return {f.path for f in store.list("_clog/") if "/views/iceberg/" in f.path}


def test_a_log_that_was_copied_is_published_anew(tmp_path):
    """S63: Iceberg names locations in full; snapshots of an earlier location are left out."""
    pyiceberg = pytest.importorskip("pyiceberg.table")
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    log = Log.create(first, 1, storage_options={"fsync": False})
    put(log, range(5))
    assert log.publish("iceberg").table_version == 1
    shutil.copytree(first, second)
    shutil.rmtree(first)
    moved = Log.open(second)
    result = moved.publish("iceberg")
    assert (result.table_version, result.published) == (2, True)
    path = Path(second) / "metadata/v2.metadata.json"
    table = pyiceberg.StaticTable.from_metadata(str(path))
    assert table.scan().to_arrow().num_rows == 5
    assert str(tmp_path / "first") not in path.read_text()


def test_the_sweep_takes_what_no_version_names(make_log, store, clock):
    """S63: manifests and vectors of expired versions; not those of versions that are left."""
    log = make_log(config={"file.delete.delay.ms": "1000"}, on=ClockedStore(store, clock))
    for i in range(6):
        put(log, range(9), str(i))
        log.publish("iceberg")
        clock.advance(3 * DAY_MS)
    before = files_of(store)
    Cleaner(log).run_once()
    Cleaner(log).run_once()
    left = files_of(store)
    assert before - left
    for version in iceberg_versions(store):
        iceberg_rows(store, version)
    assert verify_log(store).findings == ()
    store.delete(max(path for path in files_of(store) if path.endswith("-list.avro")))
    assert {f.check for f in verify_log(store).findings} == {Check.VIEW}


def test_a_table_of_somebody_else_is_left_alone(make_log, store):
    log = make_log()
    store.put("metadata/v1.metadata.json", json.dumps({"format-version": 2}).encode())
    with pytest.raises(InvalidInputError, match=r"an Iceberg table that clog did not write"):
        log.publish("iceberg")


def test_a_table_that_somebody_altered_is_published_anew(make_log, store):
    """S63: a foreign commit there changes columns or properties under clog's own snapshot; that is
    not a version of clog's, though the log has nothing new.
    """
    log = make_log()
    put(log, range(5))
    assert log.publish("iceberg").table_version == 1
    metadata = json.loads(store.get("metadata/v1.metadata.json"))
    altered = {**metadata, "properties": {**metadata["properties"], "gc.enabled": "true"}}
    store.put("metadata/v2.metadata.json", json.dumps(altered).encode())
    result = Log.open(store).publish("iceberg")
    assert (result.table_version, result.published) == (3, True)
    metadata = json.loads(store.get("metadata/v3.metadata.json"))
    assert metadata["properties"]["gc.enabled"] == "false"
    assert len(iceberg_rows(store)[0]) == 5
    assert not log.publish("iceberg").published


def test_a_missing_package_is_named(make_log, store, monkeypatch):
    """S63: nothing is written that cannot be finished."""
    log = make_log()
    put(log, [1])
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(InvalidInputError, match=r"needs fastavro: run pip install \"fastavro"):
        log.publish("iceberg")
    assert iceberg_versions(store) == []
