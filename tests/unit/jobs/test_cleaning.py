"""A round with passes as Spark tasks, without Spark: what tasks do, alone, twice and dying."""

import logging
import pickle
import shutil
import threading
from dataclasses import replace

import pytest

from clog.cleaner import Cleaner
from clog.cleaner.daemon.metrics import ailments
from clog.cleaner.duties import Work, sweep
from clog.cleaner.duties.layout import Run, relayout
from clog.jobs import clean_with_spark, cleaning
from clog.storage import (
    CorruptionError,
    InvalidInputError,
    Log,
    LogReplacedError,
    ManualClock,
    StoreUnavailableError,
)
from clog.storage.administration import delete_log
from clog.storage.store import open_store
from clog.storage.store.contract import WrappingStore
from clog_testing.counting import CountingStore
from clog_testing.invariants import check_log
from clog_testing.model import rows_in

NOW = 1_000_000_000
SMALL = {"segment.bytes": 150}


class DiedError(BaseException):
    """The process of a task ends."""


@pytest.fixture
def clean_by(monkeypatch):
    """A round whose jobs are run elsewhere."""

    def clean(log, run=None, *, tasks=1, **given):
        def run_job(_spark, task, _tag):
            if run is not None:
                return run(task)
            task = pickle.loads(pickle.dumps(task))
            return [task.execute(i) for i in range(len(task.stretches))]

        monkeypatch.setattr(cleaning, "run_job", run_job)
        return clean_with_spark(None, log, force=True, tasks=tasks, **given)

    return clean


def make(url, partitions=1, turns=8):
    """Partitions of several groups, with superseded records and tombstones."""
    log = Log.create(url, partitions, SMALL, clock=ManualClock(NOW))
    for turn in range(turns):
        for p in range(partitions):
            often = {"key": f"k{turn % 3}", "value": None if turn % 4 == 3 else f"{turn:030}"}
            log.append([often, {"key": f"once{turn}", "value": "x" * 30}, often], partition=p)
    log.roll()
    return log


def twin(log, tmp_path):
    """What a local cleaner makes of the same log."""
    shutil.copytree(log.url.removeprefix("file://"), tmp_path / "twin")
    other = Log.open(str(tmp_path / "twin"), clock=ManualClock(NOW))
    Cleaner(other).run_once(force=True)
    return decided(other)


def decided(log):
    log.handle.refresh()
    return rows_in(log.read()), log.handle.manifest().first_dirty


class Watching(WrappingStore):
    """Calls ``act`` before the nth data object is written by a task, and records the bytes of those
    that no commit has named yet.
    """

    def __init__(self, inner, nth=-1, act=lambda: None):
        super().__init__(inner)
        self.nth, self.act = nth, act
        self.puts, self.waiting, self.most = 0, 0, 0
        self.groups = []

    def put(self, path, data):
        if "/data/" in path:
            self.puts += 1
            if self.puts == self.nth:
                self.act()
            self.waiting += len(data)
            self.most = max(self.most, self.waiting)
        super().put(path, data)

    def create(self, path, data):
        super().create(path, data)
        if "/commits/" in path and self.waiting:
            self.groups.append(self.waiting)
            self.waiting = 0


def watched(task, **given):
    """The same task, on a store that is watched."""
    store = Watching(task.root, **given)
    return replace(task, root=store), store


def test_groups_are_committed_as_they_are_written(url, clean_by):
    """Extra space: no more than one group waits for its commit, however many partitions there are,
    and the commits are the tasks' own."""
    log = make(url, partitions=3)
    seen = []

    def run(task):
        task, store = watched(task)
        seen.append(store)
        return [task.execute(0)]

    results = clean_by(log, run)
    assert [r.complete for r in results] == [True] * 3
    assert sum(len(store.groups) for store in seen) > 6
    assert all(store.most == max(store.groups) and not store.waiting for store in seen)
    check_log(open_store(url))


def test_a_task_gets_its_own_partition_alone(url, clean_by):
    """What is sent does not grow with the log: no manifest, no plan of another partition."""
    sizes = []

    def run(task):
        sizes.append(len(pickle.dumps(task)))
        return [task.execute(0)]

    clean_by(make(url, partitions=1, turns=4), run)
    clean_by(make(f"{url}-large", partitions=6, turns=30), run)
    assert max(sizes) - min(sizes) < 50
    assert max(sizes) < 3000


def test_a_task_that_runs_again(url, clean_by, tmp_path):
    """J3: after the first it finds nothing to do, and changes nothing."""
    log = make(url)
    expected = twin(log, tmp_path)

    def run(task):
        first = task.execute(0)
        version = Log.open(url).handle.tip.version
        again = task.execute(0)
        assert (again.results, again.trouble) == ([], None)
        assert Log.open(url).handle.tip.version == version
        return [first]

    (result,) = clean_by(log, run)
    assert result.complete
    assert decided(log) == expected


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_task_that_runs_twice_at_once(url, clean_by, tmp_path, nth):
    """J3: the slower one commits nothing over the faster one's work; it sleeps, looks again, and
    finds it done. What it wrote in vain is an orphan.
    """
    log = make(url)
    expected = twin(log, tmp_path)
    faster = []

    def run(task):
        slow, store = watched(task, nth=nth, act=lambda: faster.append(task.execute(0)))
        done = slow.execute(0)
        assert store.waiting > 0
        return [done]

    results = clean_by(log, run)
    assert faster[0].results[-1].complete
    assert [r.complete for r in results] == [False]
    assert results[0].stats.groups_committed <= nth - 1
    assert decided(log) == expected
    assert log.handle.manifest().uncleanable == {}
    check_log(open_store(url))


def test_the_slower_one_goes_on(url, clean_by, tmp_path):
    """J3: if the other one has done only a part, and died, it does the rest."""
    log = make(url)
    expected = twin(log, tmp_path)

    def run(task):
        def other():
            dying, _ = watched(task, nth=3, act=die)
            with pytest.raises(DiedError):
                dying.execute(0)

        slow, _ = watched(task, nth=1, act=other)
        return [slow.execute(0)]

    results = clean_by(log, run)
    assert [r.complete for r in results] == [False, True]
    assert decided(log) == expected


def die():
    raise DiedError


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_task_that_dies(url, clean_by, tmp_path, nth):
    """J2: its commits stand, the next attempt continues from there; the rest are orphans."""
    log = make(url)
    expected = twin(log, tmp_path)

    def run(task):
        dying, store = watched(task, nth=nth, act=die)
        with pytest.raises(DiedError):
            dying.execute(0)
        assert len(store.groups) <= nth - 1
        return [task.execute(0)]

    (result,) = clean_by(log, run)
    assert result.complete
    assert decided(log) == expected
    check_log(open_store(url))


@pytest.mark.parametrize("lost", [(), (0,), (1, 2)])
def test_a_large_partition(url, clean_by, tmp_path, lost):
    """J4: it is cleaned in stretches, and ended once; a stretch whose task dies and runs again, or
    runs twice, changes nothing. Stretches are done in any order.
    """
    log = make(url, turns=16)
    expected = twin(log, tmp_path)
    jobs = []

    def run(task):
        jobs.append(len(task.stretches))
        done = {}
        for i in reversed(range(len(task.stretches))):
            if i in lost:
                dying, _ = watched(task, nth=1, act=die)
                with pytest.raises(DiedError):
                    dying.execute(i)
            done[i] = task.execute(i)
            task.execute(i)
        return [done[i] for i in sorted(done)]

    (result,) = clean_by(log, run, tasks=3, task_bytes=100)
    assert jobs == [3]
    assert (result.complete, result.partition) == (True, 0)
    assert decided(log) == expected
    check_log(open_store(url))


def test_a_stretch_that_fails(url, clean_by, caplog):
    """S28: the partition is uncleanable, the driver says why, and no stretch ends the pass."""
    log = make(url, turns=16)

    def run(task):
        damaged = log.handle.manifest().segments[0][-2].chunks[0].object.path
        log.handle.store.put(damaged, b"\0" * 100)
        return [task.execute(i) for i in range(len(task.stretches))]

    with caplog.at_level(logging.ERROR, logger="clog.jobs.cleaning"):
        assert clean_by(log, run, tasks=3, task_bytes=100) == []
    log.handle.refresh()
    assert "is damaged" in log.handle.manifest().uncleanable[0].reason
    assert log.handle.manifest().first_dirty == (0,)
    assert "is damaged" in caplog.text


def coalesce_all(url):
    handle = Log.open(url).handle
    manifest = handle.manifest()
    runs = [Run(0, s.chunks, 0) for s in manifest.segments[0][:-1]]
    assert len(relayout(Work(handle, 0, planned=manifest), runs, operation="coalesce")) == len(runs)


def test_what_was_coalesced_meanwhile(url, clean_by):
    """S28: a task continues if the rows are in other objects, with all groups of the pass and its
    horizons.
    """
    log = Log.create(url, 1, {"segment.bytes": 60}, clock=ManualClock(NOW))
    for text in "ab", "ac", "bd", "fe", "f", "g":
        log.append([{"key": key, "value": "1"} for key in text])
    log.append([{"key": "h", "value": None}])
    log.roll()

    def run(task):
        task, _ = watched(task, nth=1, act=lambda: coalesce_all(url))
        return [task.execute(0)]

    (result,) = clean_by(log, run)
    assert result.complete
    assert result.next_dirty_offset == 11
    assert (result.stats.records_superseded, result.stats.tombstones_stamped) == (3, 1)
    left = [f"{offset}:{row.key.decode()}" for _, offset, row in rows_in(log.read())]
    assert left == ["2:a", "3:c", "4:b", "5:d", "7:e", "8:f", "9:g", "10:h"]


def test_a_store_that_fails_in_one_task(url, clean_by, monkeypatch):
    """J5: it says nothing about the partition, which is cleaned by the next round; the others'
    passes are committed, the round finishes, and the error is the store's, not Spark's.
    """
    log = make(url, partitions=2)
    ended, end = [], cleaning.LogRound.end
    monkeypatch.setattr(cleaning.LogRound, "end", lambda it: (ended.append(it), end(it))[1])

    def fail():
        raise StoreUnavailableError("as planned")

    def run(task):
        if task.partition == 0:
            task, _ = watched(task, nth=1, act=fail)
        return [pickle.loads(pickle.dumps(task.execute(0)))]

    with pytest.raises(StoreUnavailableError, match="as planned"):
        clean_by(log, run)
    assert ended
    log.handle.refresh()
    assert log.handle.manifest().uncleanable == {}
    assert log.handle.manifest().first_dirty[1] > 0
    (result,) = clean_by(log)
    assert (result.partition, result.complete) == (0, True)


def test_a_log_that_was_replaced(url, clean_by):
    """S47: a task knows its log by its id, and leaves another one alone."""
    log = make(url)

    def run(task):
        delete_log(open_store(url))
        make(url)
        return [task.execute(0)]

    with pytest.raises(LogReplacedError, match="deleted and recreated"):
        clean_by(log, run)
    assert Log.open(url).handle.manifest().first_dirty == (0,)


def test_each_task_compares_its_clock(url, clean_by, monkeypatch):
    """S23: horizons count from a task's commit, so a machine with a wrong clock sets none."""
    log = make(url)
    monkeypatch.setattr(sweep, "is_comparable", lambda clock: True)
    monkeypatch.setattr(sweep, "store_now_ms", lambda *_, **__: NOW + 3_600_000)
    with pytest.raises(sweep.ClockSkewError, match="differ by 3600000 ms"):
        clean_by(log)
    assert log.handle.manifest().first_dirty == (0,)


def test_damage_in_one_partition(url, clean_by, monkeypatch):
    """S28: the partition is marked with the reason; the others are cleaned."""
    log = make(url, partitions=2)
    real = cleaning.LogRound.plan

    def plan(self, partition, **given):
        if partition == 0 and given.get("force") and self.log is not log:
            raise CorruptionError("as planned")
        return real(self, partition, **given)

    monkeypatch.setattr(cleaning.LogRound, "plan", plan)
    with pytest.raises(CorruptionError, match="as planned"):
        clean_by(log)
    assert log.handle.manifest().first_dirty[1] > 0


def test_what_is_refused(url, clean_by):
    """A log of a single writer: tasks are several. Numbers that are none."""
    make(url)
    with pytest.raises(InvalidInputError, match="opened with single_writer"):
        clean_by(Log.open(url, single_writer=True))
    for given in ({"tasks": 0}, {"task_bytes": 0}, {"dedupe_buffer_bytes": 1}):
        with pytest.raises(InvalidInputError):
            clean_by(Log.open(url), **given)


def test_requests_of_a_task(url, clean_by):
    """COMMIT.md §7: besides its pass a task opens the log, and looks for a newer version."""
    log = make(url)
    clean_by(log)
    log.append([{"key": "z", "value": "1"}])
    log.roll()
    counts = {}

    def run(task):
        store = CountingStore(task.root)
        task.execute(0)
        with store.count() as found:
            replace(task, root=store).execute(0)  # Nothing is left to do.
        counts.update(found)
        return [cleaning.Done()]

    clean_by(log, run)
    assert set(counts) == {"get"}
    assert counts["get"] <= 12


def test_it_stops_while_a_job_goes_on(url, monkeypatch):
    """SIGTERM: the job is interrupted by its tag, and what its tasks had committed stays."""
    make(url)
    tags = []

    class Session:
        interrupted = threading.Event()

        def interruptTag(self, tag):  # noqa: N802 - Spark's name
            tags.append(tag)
            self.interrupted.set()

    def run_job(spark, task, tag):
        tags.append(tag)
        cleaner.stop()
        assert spark.interrupted.wait(60)
        raise RuntimeError("interrupted")

    monkeypatch.setattr(cleaning, "run_job", run_job)
    cleaner = cleaning.SparkCleaner(Session(), [Log.open(url)], tasks=1)
    assert cleaner.run_once(force=True) == []
    assert len(tags) >= 2
    assert len(set(tags)) == 1


def test_while_tasks_go_on_the_cleaner_is_well(url, monkeypatch):
    """A pass that takes an hour moves no byte on the driver."""
    make(url)
    clock = ManualClock(NOW)

    def run_job(spark, task, tag):
        clock.advance(3_600_000)
        assert ailments(cleaner) == []
        return [cleaning.Done()]

    monkeypatch.setattr(cleaning, "run_job", run_job)
    cleaner = cleaning.SparkCleaner(None, [Log.open(url, clock=clock)], tasks=1)
    cleaner.run_once(force=True)
    clock.advance(3_600_000)
    assert ailments(cleaner) != []
