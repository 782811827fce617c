"""Who looks for garbage, and when: any running cleaner, as the log decides."""

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties.sweep import ORPHAN_AGE_MS, SWEEP_MS, SweepSchedule
from clog.storage.commit.tip import is_closed
from clog.storage.format import documents
from clog_testing.counting import CountingStore
from clog_testing.crash import inside
from clog_testing.invariants import check_log

DAY_MS = 86_400_000


def orphan(log, store):
    """An object that was never committed, with the newest version as its stamp."""
    path = documents.data_path(log.handle.refresh().version, "0" * 32)
    inside(store).put(path, b"x")
    return path


def is_there(store, path):
    return any(found.path == path for found in inside(store).list(path))


def test_a_cleaner_that_is_new_each_day_sweeps(make_log, open_log, put, store, clock):
    """COMMIT.md §5: the log records when it was last swept, so no cleaner has to live for a day; at
    most three days after an orphan was written it is gone.
    """
    log = make_log()
    path = orphan(log, store)
    for day in range(4):
        put(log, f"a={day}")
        Cleaner(open_log()).run_once()
        clock.advance(DAY_MS)
    assert not is_there(store, path)
    check_log(store)


def test_sweeps_are_a_day_apart(make_log, open_log, put, store, clock):
    """A round every two hours, each by another cleaner: the listings of one sweep a day."""
    log = make_log()
    counting = CountingStore(store)
    for turn in range(12 * 8):
        put(log, f"a={turn}")
        Cleaner(open_log(counting)).run_once()
        clock.advance(DAY_MS // 12)
    # The first one when the first version is two days old.
    assert counting.counts["list"] == 6 * 11
    assert [c.operation for c in log.history()].count("floor") == 6


def test_a_quiet_log_is_left_alone(make_log, open_log, put, store, clock):
    """Nobody commits forever that nothing happened: floors alone after the last append are no
    reason, and a look costs no request.
    """
    log = make_log(segment_ms=365 * DAY_MS)
    put(log, "a=1 b=1")
    for _ in range(10):
        clock.advance(DAY_MS)
        Cleaner(open_log()).run_once()
    version = log.handle.refresh().version
    assert version <= 4
    path = orphan(log, store)
    counting = CountingStore(store)
    cleaner = Cleaner(open_log(counting))
    cleaner.run_once()
    with counting.count() as counts:
        clock.advance(30 * DAY_MS)
        cleaner.run_once()
    assert dict(counts) == {"get": 4}  # a newer version; which log, the block and the newest
    assert log.handle.refresh().version == version
    put(log, "c=1")
    clock.advance(ORPHAN_AGE_MS + SWEEP_MS)
    cleaner.run_once()
    assert not is_there(store, path)


def test_a_young_log_costs_no_look(make_log, put, store, open_log, clock):
    """Within two days of its creation nothing can be due."""
    log = make_log()
    put(log, "a=1")
    counting = CountingStore(store)
    handle = open_log(counting).handle
    clock.advance(ORPHAN_AGE_MS + SWEEP_MS - 1)
    with counting.count() as counts:
        assert not SweepSchedule().is_due(Work(handle, clock.now_ms()))
    assert not counts


def test_blocks_are_closed_by_a_cleaner_that_is_new_each_day(
    make_log, open_log, put, store, clock, monkeypatch
):
    """COMMIT.md §4: the first round of a process looks at them."""
    monkeypatch.setattr("clog.storage.format.documents.BLOCK_VERSIONS", 8)
    monkeypatch.setattr("clog.storage.commit.committer.SNAPSHOT_EDIT_BYTES_MIN", 10)
    log = make_log(segment_bytes=1 << 20)
    put(log, "a=1 " * 20)
    for _ in range(3):
        clock.advance(DAY_MS)
        Cleaner(open_log()).run_once()
    assert is_closed(inside(store), 0)
    assert (
        min(documents.version_of(found.path) for found in inside(store).list(documents.COMMITS))
        >= 8
    )
