"""The cleaner publishes what is configured, when it is due (S63)."""

import logging

import pytest

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties.sweep import sweep_orphans
from clog.storage import InvalidInputError, Log
from clog.storage.env import SeededIds
from clog.storage.format.commits import Edit
from clog.storage.publications.delta import DeltaView
from clog.storage.store.contract import StoreRefusedError, WrappingStore
from clog_testing.clocked import ClockedStore
from clog_testing.published import delta_rows, delta_versions

pytest.importorskip("pyroaring")
pytest.importorskip("fastavro")
PUBLISHED = {"table.publish": "delta", "table.publish.interval.ms": "10s"}


def values(store):
    return [value for _, value in delta_rows(store)[0]]


def put(log, *pairs):
    log.append([{"key": key, "value": value, "timestamp": 1} for key, value in pairs])


def test_rounds_publish_what_changed(make_log, store, clock):
    """S63: not more often than the interval, and only if there is something new."""
    log = make_log(**PUBLISHED)
    put(log, ("a", "1"))
    cleaner = Cleaner(log)
    cleaner.run_once()
    assert values(store) == [b"1"]
    put(log, ("a", "2"))
    clock.advance(9_999)
    cleaner.run_once()
    assert values(store) == [b"1"]
    assert cleaner.monitor.logs()[log.url].lags_ms == {"delta": 9_999}
    clock.advance(1)
    cleaner.run_once()
    assert values(store) == [b"2"]
    clock.advance(60_000)
    cleaner.run_once()
    state = cleaner.monitor.logs()[log.url]
    assert (delta_versions(store), state.lags_ms) == ([0, 1], {"delta": 0})
    assert state.totals["publications"] == 2


def test_a_start_that_rises_does_not_wait(make_log, store, clock):
    """S63: what was deleted is gone from the view with the next round."""
    log = make_log(**PUBLISHED)
    put(log, ("a", "1"), ("b", "1"))
    cleaner = Cleaner(log)
    cleaner.run_once()
    log.delete_records({0: 1})
    cleaner.run_once()
    assert (values(store), delta_versions(store)) == ([b"1"], [1])


def test_retention_does_not_show_what_it_took(make_log, store, clock):
    """S31, S63: the round in which records expire publishes without them."""
    more = {"cleanup.policy": "delete", "retention.ms": "1000", "segment.ms": "1000"}
    log = make_log(**PUBLISHED, **more)
    put(log, ("a", "1"))
    cleaner = Cleaner(log)
    clock.advance(2_000)
    cleaner.run_once()
    assert values(store) == []


def test_a_log_that_is_not_published_has_no_view(make_log, store):
    log = make_log()
    put(log, ("a", "1"))
    Cleaner(log).run_once()
    assert (delta_versions(store), log.handle.tip.version) == ([], 1)


def test_a_view_by_hand_does_not_hold_back_the_sweep(make_log, store, clock):
    """S27, S63: it is updated, so that what it needed may be deleted."""
    log = make_log(**{"file.delete.delay.ms": "1000", "min.cleanable.dirty.ratio": "0"})
    put(log, ("a", "1"))
    log.publish("delta")
    put(log, ("a", "2"))
    log.roll()
    cleaner = Cleaner(log)
    for _ in range(6):
        clock.advance(2_000)
        cleaner.run_once(force=True)
    assert values(store) == [b"2"]
    assert len([f for f in store.list("_clog/") if f.path.endswith(".parquet")]) == 1
    assert log.handle.manifest().released == ()


def configured(log, **config):
    """Sets configs as a release did that refused fewer."""
    log.handle.commit(lambda tip, _: Edit(config={**tip.head.config, **config}), operation="alter")


def test_what_cannot_be_published_holds_nothing_up(make_log, store, clock, caplog):
    """S28, S63: it is reported once, and the round continues."""
    log = make_log()
    configured(log, **PUBLISHED, **{"message.timestamp.type": "LogAppendTime"})
    put(log, ("a", "1"))
    put(log, ("a", "2"))
    log.roll()
    cleaner = Cleaner(log)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            cleaner.run_once(force=True)
            clock.advance(10_000)
    assert len([r for r in caplog.records if "could not be published as delta" in r.message]) == 1
    assert cleaner.monitor.logs()[log.url].totals["publications_refused"] == 3
    assert log.table().to_arrow().num_rows == 1
    log.alter({"message.timestamp.type": "CreateTime"})


class Denied(WrappingStore):
    """Refuses everything, or writes, below the folders of views: a role without a
    permission there.
    """

    refuses = False
    reads = True

    def _check(self, path, *, reads=False):
        if self.refuses and path.startswith("_delta_log/") and not (reads and self.reads):
            raise StoreRefusedError(f"{path}: permission denied", certain=True)

    def put(self, path, data):
        self._check(path)
        self.inner.put(path, data)

    def create(self, path, data):
        self._check(path)
        self.inner.create(path, data)

    def list(self, prefix=""):
        self._check(prefix, reads=True)
        return self.inner.list(prefix)


@pytest.mark.parametrize("reads", [True, False])
def test_a_store_that_refuses_the_view_does_not_end_the_round(reads, store, clock, caplog):
    """S28, S63: passes run, the refusal is logged once, counted, and the publication retried;
    nothing is committed for it, and the daily sweep runs too.
    """
    denied = Denied(store)
    denied.refuses, denied.reads = True, reads
    config = {**PUBLISHED, "min.cleanable.dirty.ratio": "0"}
    log = Log.create(denied, 1, config, clock=clock, ids=SeededIds(1))
    put(log, ("a", "1"))
    put(log, ("a", "2"))
    log.roll()
    cleaner = Cleaner(log)
    with caplog.at_level(logging.WARNING):
        (result,) = cleaner.run_once()
        clock.advance(10_000)
        cleaner.run_once()
    assert result.stats.records_superseded == 1
    state = cleaner.monitor.logs()[log.url]
    assert (state.totals["publications_refused"], state.failures) == (2, 0)
    assert len([r for r in caplog.records if "could not be published as delta" in r.message]) == 1
    assert log.handle.tip.head.pins == {}
    denied.refuses = False
    clock.advance(10_000)
    cleaner.run_once()
    assert values(store) == [b"2"]
    denied.refuses = True
    put(log, ("a", "3"))
    for _ in range(3):
        clock.advance(2 * 86_400_000)
        cleaner.run_once()
    assert cleaner.monitor.logs()[log.url].failures == 0


def shown(store):
    """The values that the newest version of the Delta view shows; None if it shows nothing."""
    newest = store.get(f"_delta_log/{delta_versions(store)[-1]:020d}.json")
    return None if b"CLOG WITHDRAW" in newest else values(store)


def test_a_start_that_rises_takes_back_a_view_that_cannot_follow(make_log, store, clock, caplog):
    """S36, S69: in the same round, and the earlier versions are gone; it comes back when it can."""
    log = make_log(**PUBLISHED)
    put(log, ("a", "1"), ("b", "1"))
    cleaner = Cleaner(log)
    cleaner.run_once()
    configured(log, **{"message.timestamp.type": "LogAppendTime"})
    put(log, ("c", "1"))
    clock.advance(10_000)
    cleaner.run_once()
    assert shown(store) == [b"1", b"1"]
    log.delete_records({0: 1})
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            cleaner.run_once()
    assert (shown(store), delta_versions(store)) == (None, [1])
    assert len([r for r in caplog.records if "was withdrawn" in r.message]) == 1
    assert cleaner.monitor.logs()[log.url].totals["views_withdrawn"] == 1
    configured(log, **{"message.timestamp.type": "CreateTime", "min.cleanable.dirty.ratio": "0"})
    put(log, ("c", "2"))
    log.roll()
    cleaner.run_once(force=True)
    for _ in range(2):
        clock.advance(10_000)
        cleaner.run_once()
    assert shown(store) == [b"1", b"2"]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_deletion_is_gone_from_a_view_that_cannot_follow_by_its_date(
    restarts, make_log, store, clock, monkeypatch
):
    """S46, S69: `delete.retention.ms` after the log had what the view does not show, however often
    the cleaner is restarted; then nothing is kept for it, and no byte is left.
    """
    hours = 3_600_000
    more = {"file.delete.delay.ms": str(hours), "min.cleanable.dirty.ratio": "0"}
    log = make_log(**PUBLISHED, **more, **{"delete.retention.ms": str(10 * hours)})
    put(log, ("a", "1"))
    cleaner = Cleaner(log)
    cleaner.run_once()
    clock.advance(100 * hours)  # A view is not old since nothing came.
    monkeypatch.setattr(DeltaView, "check_installed", missing)
    cleaner.run_once()
    log.append([{"key": "a", "value": None, "timestamp": 1}])
    log.roll()
    seen = []
    for _ in range(30):
        cleaner.run_once(force=True)
        seen.append(shown(store))
        clock.advance(hours)
        cleaner = Cleaner(Log.open(store, clock=clock, ids=SeededIds(9))) if restarts else cleaner
    assert seen.index(None) in (10, 11)
    assert log.handle.refresh().head.pins == {}
    assert log.handle.manifest().released == ()
    assert [f for f in store.list("_clog/") if f.path.endswith(".parquet")] == []


def missing(_view):
    raise InvalidInputError("a package is missing")


def test_a_view_by_hand_does_not_show_what_was_deleted(make_log, store, clock):
    """S36, S63: it is published again in the next round, though no interval is configured."""
    log = make_log()
    put(log, ("a", "1"), ("b", "1"))
    log.publish("delta")
    log.delete_records({0: 1})
    Cleaner(log).run_once()
    assert (values(store), delta_versions(store)) == ([b"1"], [1])


def test_a_view_that_was_withdrawn_by_hand_stays_so(make_log, store, clock):
    """S69: while `table.publish` does not name it."""
    log = make_log(**{"file.delete.delay.ms": "1000"})
    put(log, ("a", "1"))
    log.publish("delta")
    log.withdraw("delta")
    put(log, ("b", "1"))
    cleaner = Cleaner(log)
    for _ in range(4):
        clock.advance(2_000)
        cleaner.run_once()
    assert (shown(store), log.handle.tip.head.pins) == (None, {})


def test_none_and_a_format_contradict_each_other(make_log):
    with pytest.raises(InvalidInputError, match="has both none and a format"):
        make_log(**{"table.publish": "none,delta"})


@pytest.mark.parametrize(
    "left",
    [
        *("part-00000-1.parquet", "deletion_vector_1.bin", "data/1.parquet"),
        "metadata/snap-1-1-0f8fad5b.avro",
    ],
)
def test_what_refused_writers_left_is_told(make_log, store, clock, caplog, left):
    """S63: deleting it is not clog's task, and no reader sees it."""
    log = make_log()
    put(log, ("a", "1"))
    log.publish("delta")
    store.put(left, b"left")
    with caplog.at_level(logging.WARNING):
        sweep_orphans(Work(log.handle, clock.now_ms()))
    assert "1 files of 4 bytes that another writer" in caplog.text
    assert store.get(left) == b"left"


def test_a_view_that_cannot_be_read_does_not_stop_the_sweep(make_log, store, clock, caplog):
    """S27, S63: its files stay, everything else is deleted."""
    clocked = ClockedStore(store, clock)
    log = Log.create(clocked, 1, clock=clock, ids=SeededIds(1))
    put(log, ("a", "1"))
    log.publish("iceberg")
    store.put("metadata/v1.metadata.json", b"{")
    clock.advance(30 * 86_400_000)
    with caplog.at_level(logging.WARNING):
        sweep_orphans(Work(log.handle, clock.now_ms()))
    assert "files of the iceberg view" in caplog.text
    assert [f for f in store.list("_clog/") if "/views/iceberg/" in f.path]
