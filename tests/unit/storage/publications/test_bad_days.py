"""Published views while everything else continues: readers at every moment, recreated logs, daemons
that do not know it yet (S47, S63).
"""

import pytest

from clog.cleaner import Cleaner
from clog.storage import CorruptionError, InvalidInputError, Log, LogReplacedError, ManualClock
from clog.storage.administration import delete_log, doomed
from clog.storage.commit.tip import StandingLog
from clog.storage.diagnostics.verify import verify_log
from clog.storage.env import SeededIds
from clog.storage.store.contract import WrappingStore
from clog_testing.published import delta_rows, delta_versions, iceberg_rows, iceberg_versions

pytest.importorskip("pyroaring")
pytest.importorskip("fastavro")
READERS = {"delta": (delta_rows, delta_versions), "iceberg": (iceberg_rows, iceberg_versions)}
DAY_MS = 86_400_000
CONFIG = {
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "0",
    "file.delete.delay.ms": "1000",
    "table.publish": "delta,iceberg",
    "table.publish.interval.ms": "1",
}
both = pytest.mark.parametrize("name", READERS)


class Watched(WrappingStore):
    """Calls ``look`` before and after each call that changes something."""

    def __init__(self, inner, look):
        super().__init__(inner)
        self.look = look

    def put(self, path, data):
        self._watched(self.inner.put, path, data)

    def create(self, path, data):
        self._watched(self.inner.create, path, data)

    def delete(self, path):
        self._watched(self.inner.delete, path)

    def _watched(self, call, *args):
        self.look(self.inner)
        call(*args)
        self.look(self.inner)


def put(log, numbers, value="1"):
    log.append([{"key": f"k{i}", "value": value, "timestamp": 1} for i in numbers])


def rows_of(log):
    table = log.table().to_arrow(columns=["key", "value"])
    return sorted(
        zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True)
    )


@both
def test_a_reader_at_every_moment_of_publications_passes_and_sweeps(name, store):
    """S63: from before the first call to after the last, the newest view is there and is the table
    at the version that it states; so is the previous one, until it expires.
    """
    clock = ManualClock(5_000)
    tables, looks = {}, 0
    read, versions = READERS[name]

    def look(inner):
        nonlocal looks
        for version in versions(inner)[-1:]:
            rows, stated = read(inner, version)
            assert rows == tables[stated], (version, stated)
            looks += 1

    log = Log.create(Watched(store, look), 2, CONFIG, clock=clock, ids=SeededIds(1))
    cleaner = Cleaner(log)
    for step in range(14):
        put(log, range(step, 40, step % 3 + 1), str(step))
        if step % 4 == 3:
            put(log, range(0, 40, 7), None)
            log.roll()
        if step == 9:
            ends = log.end_offsets()
            log.delete_records({p: end // 2 for p, end in ends.items()})
        # Whatever a round commits on its way, the table stays what it is.
        tables |= dict.fromkeys(range(log.version, log.version + 50), rows_of(log))
        cleaner.run_once(force=step % 4 == 3)
        clock.advance(DAY_MS if step % 5 == 4 else 300)
    assert looks > 300
    assert read(store)[0] == rows_of(log)
    assert verify_log(store).findings == ()


@both
def test_a_daemon_of_the_log_before_touches_no_view_of_the_new_one(name, store):
    """S47, S63: neither the view nor any file of the log that is there now, for days."""
    clock = ManualClock(5_000)
    old = Log.create(store, 1, CONFIG, clock=clock, ids=SeededIds(1))
    put(old, range(9))
    daemon = Cleaner(old)
    daemon.run_once()
    delete_log(store)
    new = Log.create(store, 1, CONFIG, clock=clock, ids=SeededIds(2))
    put(new, [77])
    Cleaner(new).run_once()
    there = {f.path: store.get(f.path) for f in store.list("")}
    for _ in range(3):
        clock.advance(3 * DAY_MS)
        with pytest.raises(LogReplacedError):
            put(old, [5], "from the old one")
        with pytest.raises(LogReplacedError):
            daemon.run_once(force=True)
    assert {f.path: store.get(f.path) for f in store.list("")} == there
    assert READERS[name][0](store)[0] == rows_of(new)


@both
def test_a_publisher_whose_log_is_recreated_at_the_last_moment(name, store, monkeypatch):
    """S47, S63: between its look at `_clog/log` and its create it can make a view that names the
    old log, and no object of the new one is touched; the next publication replaces it entirely.
    """
    clock, recreated = ManualClock(5_000), []

    def recreate(inner):
        if recreated or not about_to_publish:
            return
        recreated.append(Log)
        delete_log(inner)
        new = Log.create(inner, 1, CONFIG, clock=clock, ids=SeededIds(2))
        put(new, [77])

    about_to_publish = False
    watched = Watched(store, recreate)
    old = Log.create(watched, 1, CONFIG, clock=clock, ids=SeededIds(1))
    put(old, range(9))
    real = StandingLog.check

    def checked(standing):
        nonlocal about_to_publish
        real(standing)
        about_to_publish = True

    monkeypatch.setattr(StandingLog, "check", checked)
    old.publish(name)
    assert recreated
    new = Log.open(store, clock=clock, ids=SeededIds(3))
    assert new.id != old.id
    read, versions = READERS[name]
    with pytest.raises(FileNotFoundError):
        read(store)  # Its objects are gone with it.
    result = new.publish(name)
    assert result.published
    assert read(store)[0] == rows_of(new) == [(b"k77", b"1")]
    assert versions(store) == [result.table_version]
    assert verify_log(store).findings == ()


@both
@pytest.mark.parametrize(
    "odd",
    [
        b'{"add": 1}',
        b'{"remove": [1]}',
        b'{"commitInfo": 7}',
        b'{"metaData": 5}',
        b'{"properties": 3}',
        b'{"properties": {}, "snapshots": 1}',
        b"[" * 100_000,
    ],
)
def test_metadata_of_others_is_damage_that_is_told(name, odd, store):
    """Whatever it contains: publication and `verify` name the file or the table, nothing is read
    from it, and without it the view is published again.
    """
    log = Log.create(store, 1, clock=ManualClock(5_000), ids=SeededIds(1))
    put(log, range(3))
    log.publish(name)
    newest = 1 if name == "iceberg" else 0
    path = f"metadata/v{newest}.metadata.json" if newest else f"_delta_log/{newest:020d}.json"
    store.put(path, odd)
    put(log, range(4))
    log = Log.open(store, clock=ManualClock(5_000), ids=SeededIds(2))
    with pytest.raises((CorruptionError, InvalidInputError)) as refused:
        log.publish(name)
    assert store.url in str(refused.value)
    assert any(name in str(found) for found in verify_log(store).findings)
    assert doomed(store).log_id == log.id
    store.delete(path)
    log.publish(name)
    assert READERS[name][0](store, None)[0] == rows_of(log)
