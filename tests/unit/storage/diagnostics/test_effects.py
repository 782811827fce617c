"""What commits removed from a log, and what they wrote for it."""

from clog.cleaner import Cleaner
from clog.storage import Log, ManualClock
from clog.storage.diagnostics.describe import CommitWalk


def told(log, start=0):
    log.handle.refresh()
    walk = CommitWalk(log.handle, start)
    return {info.version: effect for info, effect in walk.new()}


def seen(log):
    return sum(d["records"] for d in log.describe()["partition_details"])


def test_what_a_pass_removed_and_wrote(tmp_path):
    """The records that readers no longer see, and the objects that it added; appends remove
    nothing. A mark removes too, and writes no data object.
    """
    log = Log.create(str(tmp_path / "log"), config={"dead.rows.delay.ms": "0"})
    for i in range(3):
        log.append([{"key": f"k{j}", "value": str(i)} for j in range(10)])
    log.roll()
    before = log.version
    Cleaner(log).run_once(force=True)
    found = told(log)
    assert sorted(found) == list(range(log.version + 1))
    assert all(found[v].removed_records == 0 for v in range(1, before + 1))
    passed = [found[v] for v in range(before + 1, log.version + 1)]
    assert sum(e.removed_records for e in passed) == 20
    assert sum(e.removed_bytes for e in passed) == 20 * (12 + 2 + 1)
    assert sum(e.rewritten_bytes for e in passed) > 0
    assert seen(log) == 10


def test_what_retention_removed(tmp_path):
    """Whole segments go: nothing is written."""
    clock = ManualClock(10_000)
    config = {"cleanup.policy": "delete", "retention.ms": "1000", "file.delete.delay.ms": "0"}
    log = Log.create(str(tmp_path / "log"), config=config, clock=clock)
    log.append([{"key": "a", "value": "1"}, {"key": "b", "value": "2"}])
    log.roll()
    clock.advance(100_000)
    version = log.version
    Cleaner(log).run_once()
    found = told(log, version + 1)
    assert sum(e.removed_records for e in found.values()) == 2
    assert sum(e.rewritten_bytes for e in found.values()) == 0


def test_a_walk_goes_on(tmp_path):
    """Each commit is listed once; version 0 has no effect, as nothing was before it."""
    log = Log.create(str(tmp_path / "log"))
    log.append([{"key": "a", "value": "1"}])
    walk = CommitWalk(log.handle, 0)
    told_now = [(info.version, effect is None) for info, effect in walk.new()]
    assert told_now == [(0, True), (1, False)]
    assert list(walk.new()) == []
    log.append([{"key": "a", "value": "2"}])
    ((info, effect),) = walk.new()
    assert (info.version, info.records, effect.removed_records) == (2, 1, 0)


def test_versions_that_are_not_readable_have_no_effect(tmp_path):
    """What was there before them is no longer known."""
    clock = ManualClock(10_000)
    log = Log.create(str(tmp_path / "log"), config={"file.delete.delay.ms": "0"}, clock=clock)
    for i in range(3):
        log.append([{"key": "a", "value": str(i)}])
        log.roll()
        clock.advance(1)
        Cleaner(log).run_once(force=True)
    oldest = log.describe()["oldest_readable_version"]
    assert oldest > 1
    found = told(log)
    assert [v for v, effect in found.items() if effect is None] == [*range(oldest + 1)]
