"""Publications that are refused, and views that are withdrawn (S46, S63, S68, S69)."""

import json
import sys
import warnings

import pyarrow as pa
import pytest

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties.sweep import sweep_released
from clog.storage import ClogError, InvalidInputError, Log
from clog.storage.diagnostics.verify import Check, verify_log
from clog.storage.format.commits import Edit, Pin
from clog.storage.store.contract import StoreRefusedError, WrappingStore
from clog_testing.published import delta_rows, delta_versions, iceberg_rows, iceberg_versions

pytest.importorskip("pyroaring")
pytest.importorskip("fastavro")
DAY_MS = 86_400_000
READERS = {"delta": (delta_rows, delta_versions), "iceberg": (iceberg_rows, iceberg_versions)}
FOLDERS = {"delta": "_delta_log/", "iceberg": "metadata/"}
FIRST = {"delta": 0, "iceberg": 1}
CONFIG = {"file.delete.delay.ms": "1000", "min.cleanable.dirty.ratio": "0"}
both = pytest.mark.parametrize("name", READERS)


class Denied(WrappingStore):
    """Refuses to write below a folder."""

    folder = None

    def _check(self, path):
        if self.folder is not None and path.startswith(self.folder):
            raise StoreRefusedError(f"{path}: permission denied", certain=True)

    def put(self, path, data):
        self._check(path)
        self.inner.put(path, data)

    def create(self, path, data):
        self._check(path)
        self.inner.create(path, data)


def put(log, keys, value="1"):
    log.append([{"key": key, "value": value, "timestamp": 1} for key in keys])


def typed(type_, **config):
    return {"schema": {"key": pa.string(), "value": pa.struct([("a", type_)])}, "config": config}


def contents(store):
    return {f.path: store.get(f.path) for f in store.list("")}


def rows_of(log):
    table = log.table().to_arrow(columns=["key", "value"])
    columns = [table.column(name).to_pylist() for name in ("key", "value")]
    return sorted(zip(*columns, strict=True))


def pin_without_view(log, name):
    """What a publication of an earlier release left when it was refused after its pin."""
    number = FIRST[name]

    def prepare(tip, time_ms):
        return Edit(pins={name: (Pin(number, tip.version, time_ms),)})

    log.handle.commit(prepare, operation="publish")


def without_fastavro(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastavro", None)


REFUSED = {
    "a type of Iceberg's": ("iceberg", pa.uint64()),
    "a type of Delta's": ("delta", pa.float16()),
    "a name": ("delta", pa.struct([("a b", pa.int32())])),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_type_or_name_leaves_nothing(case, store, clock):
    """S68: no commit, no pin, no feature, no file."""
    name, type_ = REFUSED[case]
    log = Log.create(store, 1, clock=clock, **typed(type_))
    before = contents(store)
    with pytest.raises(InvalidInputError, match="nothing was changed"):
        log.publish(name)
    assert contents(store) == before


def test_a_missing_package_leaves_nothing(make_log, store, monkeypatch):
    """S68: the same log is published once the package is there."""
    log = make_log()
    put(log, "ab")
    before = contents(store)
    with monkeypatch.context() as missing:
        without_fastavro(missing)
        with pytest.raises(InvalidInputError, match="needs fastavro: run pip install"):
            log.publish("iceberg")
    assert contents(store) == before
    assert log.publish("iceberg").published


@both
def test_a_store_that_refuses_the_view_leaves_nothing(name, store, clock):
    """S68: also if it published before, and the permission was removed since."""
    denied = Denied(store)
    log = Log.create(denied, 1, CONFIG, clock=clock)
    put(log, "ab")
    denied.folder = FOLDERS[name]
    before = contents(store)
    for _ in range(2):
        with pytest.raises(StoreRefusedError):
            log.publish(name)
    assert contents(store) == before
    denied.folder = f"_clog/{log.id}/views/"
    if name == "iceberg":
        with pytest.raises(StoreRefusedError):
            log.publish(name)
        assert contents(store) == before
    denied.folder = None
    assert log.publish(name).published
    assert [f.path for f in store.list_temporary("")] == []
    put(log, "c")
    denied.folder = FOLDERS[name]
    with pytest.raises(StoreRefusedError):
        Log.open(denied, clock=clock).publish(name)
    assert len(log.handle.refresh().head.pins[name]) == 1


@both
def test_a_view_that_is_withdrawn_shows_nothing(name, make_log, store, clock):
    """S69: its newest version has no files, the earlier ones are gone, what their readers still
    read is deleted after the delay; it may be published again.
    """
    log = make_log(config=CONFIG)
    put(log, "abc")
    put(log, "abc", "2")
    log.publish(name)
    log.roll()
    Cleaner(log).run_once(force=True)
    result = log.withdraw(name)
    read, versions = READERS[name]
    assert (result.withdrawn, result.table_version) == (True, FIRST[name] + 1)
    assert versions(store) == [FIRST[name] + 1]
    assert shown(store, name) == []
    assert verify_log(store).findings == ()
    again = log.withdraw(name)
    assert (again.withdrawn, again.table_version) == (False, FIRST[name] + 1)
    clock.advance(999)
    Cleaner(log).run_once()
    assert log.handle.tip.head.pins[name]
    clock.advance(2)
    Cleaner(log).run_once()
    assert log.handle.tip.head.pins == {}
    clock.advance(DAY_MS)
    Cleaner(log).run_once()
    assert len([f for f in store.list("_clog/") if f.path.endswith(".parquet")]) == 1
    assert versions(store) == [FIRST[name] + 1]
    done = log.publish(name)
    assert (done.published, done.table_version) == (True, FIRST[name] + 2)
    assert read(store)[0] == rows_of(log)
    assert versions(store) == [FIRST[name] + 2]


def shown(store, name):
    if name == "delta":
        return list(adds_of_newest(store))
    version = iceberg_versions(store)[-1]
    return json.loads(store.get(f"metadata/v{version}.metadata.json"))["snapshots"]


def adds_of_newest(store):
    (name,) = [f.path for f in store.list("_delta_log/") if f.path.endswith("checkpoint.parquet")]
    table = pa.parquet.read_table(pa.BufferReader(store.get(name)))
    return [row for row in table.to_pylist() if row["add"]]


def test_every_reader_sees_a_withdrawn_view_as_empty(tmp_path):
    """S69: as other engines read it."""
    deltalake = pytest.importorskip("deltalake")
    polars, pyiceberg = pytest.importorskip("polars"), pytest.importorskip("pyiceberg.table")
    path = str(tmp_path / "log")
    log = Log.create(path, 1, storage_options={"fsync": False})
    put(log, "abc")
    for name in READERS:
        log.publish(name)
        log.withdraw(name)
    assert deltalake.DeltaTable(path).version() == 1
    assert polars.read_delta(path).height == 0
    table = pyiceberg.StaticTable.from_metadata(f"{path}/metadata/v2.metadata.json")
    assert table.current_snapshot() is None
    assert table.scan().to_arrow().num_rows == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert polars.scan_iceberg(f"{path}/metadata/v2.metadata.json").collect().height == 0
    put(log, "d")
    for name in READERS:
        assert log.publish(name).table_version == FIRST[name] + 2
    assert polars.read_delta(path).height == 4
    table = pyiceberg.StaticTable.from_metadata(f"{path}/metadata/v3.metadata.json")
    assert table.scan().to_arrow().num_rows == 4


@both
def test_a_pin_without_a_view_goes_with_a_version_that_takes_its_number(
    name, make_log, store, clock, open_log, monkeypatch
):
    """S68, S69: its publisher may be delayed, and then find the number taken; nothing that it names
    is missing then.
    """
    log = make_log(config=CONFIG)
    put(log, "abc")
    view, slept = type(view_of(log, name)), []
    real = view.create

    def sleepy(self, version, lowest_view):
        if not slept:
            slept.append(None)
            other = open_log()
            done = other.withdraw(name)
            assert (done.withdrawn, done.is_kept) == (True, False)
            assert other.handle.tip.head.pins == {}
            other.append([{"key": key, "value": "2", "timestamp": 1} for key in "abc"])
            other.roll()
            Cleaner(other).run_once(force=True)
            clock.advance(DAY_MS)
            assert sweep_released(Work(other.handle, clock.now_ms())).objects
        return real(self, version, lowest_view)

    monkeypatch.setattr(view, "create", sleepy)
    result = log.publish(name)
    assert slept
    assert result.table_version == FIRST[name] + 1
    assert READERS[name][0](store)[0] == rows_of(log)
    assert verify_log(store).findings == ()


def view_of(log, name):
    from clog.storage.publications import publish

    return publish.view_of(log.handle.standing, name)


@both
@pytest.mark.parametrize("config", [{}, {"table.publish": "delta,iceberg"}])
def test_a_log_of_an_older_release_with_such_a_pin_gets_free(name, config, store, clock):
    """S46, S69: the cleaner withdraws what nobody publishes, and no deleted value stays."""
    type_ = pa.uint64() if name == "iceberg" else pa.float16()
    log = Log.create(store, 1, clock=clock, **typed(type_, **CONFIG))
    log.append([{"key": "k", "value": {"a": 1}, "timestamp": 1}])
    pin_without_view(log, name)
    if config:
        old_config(log, {"table.publish": name})
    log.append([{"key": "k", "value": None, "timestamp": 1}])
    log.roll()
    cleaner = Cleaner(log)
    for _ in range(12):
        clock.advance(DAY_MS)
        cleaner.run_once(force=True)
    assert log.handle.tip.head.pins == {}
    assert log.handle.manifest().released == ()
    assert [f for f in store.list("_clog/") if "/data/" in f.path] == []
    assert len(READERS[name][1](store)) == 1
    assert verify_log(store).findings == ()


def old_config(log, more):
    """Sets configs as a release did that refused fewer."""
    log.handle.commit(lambda tip, _: Edit(config={**tip.head.config, **more}), operation="alter")


@both
def test_a_view_that_is_published_after_a_pause_is_not_stuck(name, store, clock):
    """S69: the version before it is kept for ``file.delete.delay.ms`` more, which is no finding."""
    log = Log.create(store, 1, CONFIG, clock=clock)
    put(log, "a")
    log.publish(name)
    put(log, "a", "2")
    log.roll()
    Cleaner(log).run_once(force=True)
    clock.advance(DAY_MS)
    put(log, "b")
    (found,) = verify_log(store).findings
    assert found.where == name
    log.publish(name)
    assert verify_log(store).findings == ()


@both
def test_a_pin_that_does_not_move_is_told(name, store, clock):
    """S69: by `clog verify`, and `describe`, until it is withdrawn."""
    log = Log.create(store, 1, CONFIG, clock=clock)
    put(log, "a")
    pin_without_view(log, name)
    assert verify_log(store).findings == ()  # Its publisher may be about to create the view.
    put(log, "a", "2")
    log.roll()
    clock.advance(DAY_MS)
    put(log, "b")
    (found,) = verify_log(store).findings
    assert (found.check, found.where) == (Check.VIEW, name)
    assert "clog publish --withdraw" in found.message
    (view,) = log.describe()["views"]
    assert (view["format"], view["version"], view["table_version"]) == (name, 1, FIRST[name])
    log.withdraw(name)
    assert (verify_log(store).findings, log.describe()["views"]) == ((), [])


@both
def test_a_view_that_the_store_does_not_let_withdraw_is_given_up_by_force(name, store, clock):
    """S69: and only by force; nothing is written then."""
    denied = Denied(store)
    log = Log.create(denied, 1, CONFIG, clock=clock)
    put(log, "a")
    log.publish(name)
    denied.folder = FOLDERS[name]
    before = contents(store)
    with pytest.raises(StoreRefusedError, match="--withdraw --force"):
        log.withdraw(name)
    assert contents(store) == before
    result = log.withdraw(name, force=True)
    assert (result.given_up, result.withdrawn, result.table_version) == (True, False, None)
    assert log.handle.tip.head.pins == {}


@both
def test_nothing_to_withdraw(name, make_log, store):
    """S68: a log without a view stays as it is, and a foreign table is left alone."""
    log = make_log()
    before = contents(store)
    result = log.withdraw(name)
    assert (result.withdrawn, result.table_version, contents(store)) == (False, None, before)
    foreign = {
        "delta": ("_delta_log/00000000000000000000.json", {"metaData": {"id": "x"}}),
        "iceberg": ("metadata/v1.metadata.json", {"format-version": 2}),
    }
    path, body = foreign[name]
    store.put(path, json.dumps(body).encode())
    before = contents(store)
    with pytest.raises(InvalidInputError, match="that clog did not write"):
        log.withdraw(name)
    assert contents(store) == before


@both
def test_what_a_published_view_cannot_hold_is_refused_when_it_is_asked_for(name, store, clock):
    """S69: with a remedy that works."""
    lacks = {"delta": pa.time64("us"), "iceberg": pa.uint16()}[name]
    log = Log.create(store, 1, clock=clock, **typed(pa.int32()))
    log.append([{"key": "k", "value": {"a": 1}, "timestamp": 1}])
    log.publish(name)
    changes = [
        lambda: log.evolve(add={"value.b": lacks}),
        lambda: log.alter({"message.timestamp.type": "LogAppendTime"}),
    ]
    for change in changes:
        before = log.version
        with pytest.raises(InvalidInputError, match=f"clog publish --withdraw --format {name}"):
            change()
        assert log.version == before
    log.withdraw(name)
    for change in changes:
        change()
    with pytest.raises(InvalidInputError, match="this change would prevent it"):
        log.alter({"table.publish": name})


@both
def test_a_log_that_is_to_be_published_and_cannot_is_not_made(name, store, clock):
    """S69: nor does an altered config say so."""
    lacks = {"delta": pa.time64("us"), "iceberg": pa.uint16()}[name]
    with pytest.raises(ClogError, match="no type"):
        Log.create(store, 1, clock=clock, **typed(lacks, **{"table.publish": name}))
    config = {"table.publish": name, "message.timestamp.type": "LogAppendTime"}
    with pytest.raises(ClogError, match="LogAppendTime"):
        Log.create(store, 1, config, clock=clock)
    assert contents(store) == {}


def test_other_configs_of_a_log_that_cannot_be_published_may_be_altered(store, clock):
    """S42: what an older release accepted is no reason to refuse anything else."""
    log = Log.create(store, 1, clock=clock)
    old_config(log, {"table.publish": "delta", "message.timestamp.type": "LogAppendTime"})
    assert log.alter({"segment.ms": "1000"})["segment.ms"] == "1000"
    log.alter({"message.timestamp.type": None})
