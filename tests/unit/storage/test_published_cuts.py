"""Named cuts that other engines read: each log is published at exactly the cut's version (H-S1)."""

import pyarrow as pa
import pytest
from tests.unit.storage.test_cuts import DAY_MS, NAMES, Disk, put, shown

from clog.cleaner.cleaner import Cleaner
from clog.storage import (
    CommitConflictError,
    InvalidInputError,
    Log,
    NotFoundError,
    VersionExpiredError,
    cuts,
    drop_snapshot,
    snapshot,
    snapshots,
)
from clog.storage.cuts import cuts_of, drop_cut, name_cut, views_of
from clog.storage.publications.publish import Publications
from clog_testing.crash import Folder, discard, memory_store
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.published import delta_rows, delta_versions, iceberg_rows, iceberg_versions

pytest.importorskip("pyroaring")
pytest.importorskip("fastavro")
READERS = {"delta": delta_rows, "iceberg": iceberg_rows}
VERSIONS = {"delta": delta_versions, "iceberg": iceberg_versions}
both = pytest.mark.parametrize("name", READERS)


@pytest.fixture
def disk():
    store = memory_store()
    yield Disk(store)
    discard(store)


@pytest.fixture
def logs(disk):
    return [disk.create(name, **{"file.delete.delay.ms": 1000}) for name in NAMES]


def check(disk, cut, name):
    """The views' versions of the cut are its logs at the cut; if nothing changed the table since,
    they may report an earlier version.
    """
    views = views_of(disk.open("home").handle, cut)
    for log in NAMES:
        folder = Folder(disk.store, log)
        rows, stated = READERS[name](folder, views[disk.url(log)][name])
        assert dict(rows) == shown(disk.open(log), cut)
        assert stated <= cut.logs[disk.url(log)]
        assert shown(disk.open(log), stated) == shown(disk.open(log), cut)
    return views


@pytest.mark.parametrize("name", ["delta", pytest.param("iceberg", marks=pytest.mark.nightly)])
def test_the_views_of_a_cut_stay_while_it_does(disk, logs, name):
    """S69, S74: whatever is published and cleaned since, and for whatever other cut; when it is
    dropped, they expire like others.
    """
    put(logs, "a")
    cut = disk.cut(publish=[name])
    first = check(disk, cut, name)
    for i in range(12):  # More than one checkpoint of Delta's.
        put(logs, f"b{i}")
        disk.clock.advance(DAY_MS)
        for log in logs:
            log.publish(name)
        if i % 4 == 1:
            Cleaner(disk.open("home")).run_once(force=True)
    later = disk.cut("later", publish=name)
    assert check(disk, cut, name) == first
    check(disk, later, name)
    pins = [disk.open(log).handle.tip.head.pins[name] for log in NAMES]
    assert all(len(mine) <= 4 for mine in pins), pins
    assert not any(log.describe()["views"][0]["objects"] for log in logs), "the cuts hold these"
    drop_cut(disk.open("home").handle, "c")
    drop_cut(disk.open("home").handle, "later")
    for _ in range(3):
        put(logs, "z")
        disk.clock.advance(DAY_MS)
        for log in logs:
            log.publish(name)
    for log in NAMES:
        assert VERSIONS[name](Folder(disk.store, log))[0] > first[disk.url(log)][name]


@both
def test_a_view_that_shows_what_is_newer_has_the_cut_made_anew(disk, logs, name):
    """Views only go forward; deleted rows would disappear from the view immediately."""
    put(logs, "a")
    home = disk.open("home", busy := FaultyStore(disk.clocked))

    def others_publish():
        put(logs, "b")
        for log in logs:
            log.publish(name)

    def others_delete():
        put(logs, "c", key="other")
        logs[1].delete_records({0: 1})

    busy.plan = Faults(
        Fault(FaultKind.MEANWHILE, "create", "*home/*/commits/*", nth=1, run=others_publish),
        Fault(FaultKind.MEANWHILE, "create", "*home/*/commits/*", nth=3, run=others_delete),
    )
    cut = name_cut(home.handle, "c", publish=[name])
    assert {row[b"k"] for row in disk.values(cut) if b"k" in row} == {b"b"}
    check(disk, cut, name)
    (entry,) = cuts_of(disk.open("home").handle)
    assert entry == cut
    assert all(len(disk.open(log).handle.tip.head.kept) == 1 for log in NAMES)


def test_what_a_view_shows_already_is_not_published_again(disk, logs):
    """The cut uses the view's version, and keeps it."""
    put(logs, "a")
    numbers = {log.url: log.publish("delta").table_version for log in logs}
    cut = disk.cut(publish=["delta"])
    assert {url: views["delta"] for url, views in check(disk, cut, "delta").items()} == numbers
    assert views_of(disk.open("home").handle, disk.cut("bare")) == {log.url: {} for log in logs}


def test_what_cannot_be_published_names_no_cut(disk, logs):
    """S68: nothing is kept for it; the same for an unknown format, or a cut without a name."""
    put(logs, "a")
    logs[2].alter({"message.timestamp.type": "LogAppendTime"})
    with pytest.raises(InvalidInputError, match=r"LogAppendTime of .*right"):
        disk.cut(publish=["delta"])
    with pytest.raises(InvalidInputError, match=r"publish=\['hudi'\] is unknown"):
        disk.cut(publish=["hudi"])
    with pytest.raises(InvalidInputError, match="publish is only for a named cut"):
        disk.cut(None, publish=["delta"])
    assert not any(disk.open(log).handle.tip.head.kept for log in NAMES)
    assert not cuts_of(disk.open("home").handle)


def test_a_cut_that_always_comes_too_late_says_why(disk, logs, monkeypatch):
    """And what to do; nothing is kept for it."""
    put(logs, "a")

    def too_late(*_):
        raise VersionExpiredError("already shows version 7, not 6")

    monkeypatch.setattr(Publications, "publish_kept", too_late)
    monkeypatch.setattr(cuts, "TRIES_MAX", 2)
    with pytest.raises(CommitConflictError, match=r"advanced 2 times .*already shows version 7"):
        disk.cut(publish=["delta"])
    assert not any(disk.open(log).handle.tip.head.kept for log in NAMES)


def test_other_engines_read_the_cut(tmp_path):
    """delta-rs and PyIceberg, by the cut's versions, after the logs continued."""
    deltalake = pytest.importorskip("deltalake")
    pyiceberg = pytest.importorskip("pyiceberg.table")
    logs = [Log.create(str(tmp_path / name)) for name in NAMES]
    put(logs, "a")
    cut = snapshot(logs[0].url, "month-end", publish=["delta", "iceberg"])
    views = cut.views()
    put(logs, "b")
    for log in logs:
        log.publish("delta")
        log.publish("iceberg")
        mine = views[log.url]
        table = deltalake.DeltaTable(log.url, version=mine["delta"])
        found = deltalake.QueryBuilder().register("t", table).execute("select value from t")
        assert pa.table(found.read_all()).to_pydict() == {"value": [b"a"]}
        metadata = f"{log.url}/metadata/v{mine['iceberg']}.metadata.json"
        found = pyiceberg.StaticTable.from_metadata(metadata).scan().to_arrow()
        assert found.column("value").to_pylist() == [b"a"]
        assert shown(log, cut) == {b"k": b"a"}
    drop_snapshot(logs[0].url, "month-end")
    with pytest.raises(NotFoundError):
        drop_snapshot(logs[0].url, "month-end")


def test_the_views_of_a_cut_whose_logs_were_moved(tmp_path):
    """They are read where the cut has its logs, and the error says that none is there."""
    there = tmp_path / "there"
    logs = [Log.create(str(there / name)) for name in NAMES]
    put(logs, "a")
    snapshot(logs[0].url, "month-end", publish=["delta"])
    there.rename(tmp_path / "elsewhere")
    (cut,) = snapshots(str(tmp_path / "elsewhere" / NAMES[0]))
    with pytest.raises(NotFoundError, match="there"):
        cut.views()
