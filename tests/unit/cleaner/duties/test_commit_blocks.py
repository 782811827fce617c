"""Closing blocks (COMMIT.md §4): old commits are deleted, and no delayed process trusts what is
gone.
"""

import pytest

from clog.cleaner.duties import Work
from clog.cleaner.duties.commit_blocks import close_blocks
from clog.cleaner.duties.sweep import newest_by, sweep_orphans
from clog.storage import CorruptionError, Log, ManualClock, NotFoundError
from clog.storage.commit.tip import VAIN_LOOKS_MAX, block_body, is_closed
from clog.storage.commit.versions import manifest_at
from clog.storage.diagnostics.verify import verify_log
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog.storage.format.commits import Edit, read_commit
from clog.storage.store.contract import WrappingStore
from clog_testing.clocked import ClockedStore, WallClock
from clog_testing.counting import CountingStore
from clog_testing.crash import contents, copy_of, crash_runs, discard, inside, memory_store
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.model import rows_in

BLOCK = 8
DAY_MS = 86_400_000
START_MS = 1_000_000


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of 8 versions, a snapshot at each fourth: the rules are those of blocks of 1024."""
    monkeypatch.setattr("clog.storage.format.documents.BLOCK_VERSIONS", BLOCK)
    monkeypatch.setattr("clog.storage.commit.committer.SNAPSHOT_EDIT_BYTES_MIN", 10)


def grow(store, versions, clock=None, seed=1, delay_ms=365 * DAY_MS):
    """A log whose newest version is the last of ``versions``; none expires by itself."""
    clock = clock or ManualClock(START_MS)
    config = {"file.delete.delay.ms": delay_ms}
    log = Log.create(store, 1, config, clock=clock, ids=SeededIds(seed))
    append_to(log, versions)
    return log


def append_to(log, version):
    while log.handle.refresh().version < version:
        log.append([{"key": "k", "value": "v", "timestamp": 1}])


def raise_oldest(log, version):
    log.handle.commit(lambda _tip, _ms: Edit(oldest_readable=version), operation="sweep")


def aged(store, *, newest=29, oldest=17):
    """Two blocks that are due, and the newest version after them."""
    raise_oldest(grow(store, newest - 1), oldest)


def close(store, seed=50, now_ms=START_MS + 2 * DAY_MS, defaults=None, **more):
    log = Log.open(store, clock=ManualClock(now_ms), ids=SeededIds(seed))
    return close_blocks(Work(log.handle, now_ms, defaults=defaults or {}), **more)


def versions_in(store):
    return sorted(
        documents.version_of(found.path) for found in inside(store).list(documents.COMMITS)
    )


def check_whole(store, *, rows, newest):
    """Opened anew, with the existing hint, an old one and none: the same log, sound."""
    for hint in (None, b'{"version": 0}', b'{"version": 4}', b""):
        changed = copy_of(store)
        if hint is not None:
            inside(changed).delete(documents.LATEST)
        if hint:
            inside(changed).put(documents.LATEST, hint)
        log = Log.open(changed, clock=ManualClock(START_MS + 2 * DAY_MS))
        assert log.version == newest
        assert rows_in(log.read()) == rows
        assert verify_log(changed).findings == ()
        discard(changed)


def test_old_commits_go_by_the_block(store):
    """Those of whole blocks before the oldest readable version; everything readable stays
    readable.
    """
    aged(store)
    rows = rows_in(Log.open(store).read())
    ids = {v: read_commit(inside(store), v).record.commit_id for v in range(16)}
    swept = close(store)
    assert swept.objects == tuple(documents.commit_path(v) for v in range(16))
    assert swept.size_bytes > 0
    assert versions_in(store) == list(range(16, 30))
    assert is_closed(inside(store), 0) == {v: ids[v] for v in range(8)}
    assert is_closed(inside(store), 8) == {v: ids[v] for v in range(8, 16)}
    assert is_closed(inside(store), 16) is None
    check_whole(store, rows=rows, newest=29)
    assert close(store, seed=51).objects == ()


def test_what_strangers_put_among_commits_stays(store):
    """COMMIT.md §5: a copy that someone keeps there is not a commit of a closed block."""
    aged(store)
    names = ["commits/kept/" + "0" * 20 + ".json", "commits/notes.txt", "commits/.keep"]
    for name in names:
        inside(store).put(name, b"x")
    assert close(store).objects == tuple(documents.commit_path(v) for v in range(16))
    assert {*names} < {found.path for found in inside(store).list("")}


def test_readable_versions_stay_readable(store):
    """Their snapshots, edits and commits exist, down to the oldest."""
    aged(store)
    tip = Log.open(store).handle.tip
    before = [manifest_at(inside(store), v, tip) for v in range(17, 30)]
    close(store)
    assert [manifest_at(inside(store), v, tip) for v in range(17, 30)] == before


def test_a_dry_run_only_says_it(store):
    """The same result, and nothing is written."""
    aged(store)
    everything = [(o.path, o.size_bytes) for o in store.list("")]
    planned = close(store, dry_run=True)
    assert [(o.path, o.size_bytes) for o in store.list("")] == everything
    assert close(store) == planned


@pytest.mark.parametrize(
    ("oldest", "closed"), [(0, 0), (7, 0), (8, 8), (15, 8), (16, 16), (20, 16)]
)
def test_readable_versions_keep_their_blocks(store, oldest, closed):
    """`at=` a version works as long as the log says so."""
    if oldest:
        aged(store, oldest=oldest)
    else:
        grow(store, 29)
    close(store)
    assert versions_in(store)[0] == closed


def only_appended(store):
    """Blocks whose versions expire a day after they were replaced; nothing was ever released."""
    grow(store, 29, delay_ms=DAY_MS)


def test_a_log_that_only_appends_closes_its_blocks(store):
    """S27: a version is readable for file.delete.delay.ms after it was replaced, whether or not an
    object was; before its block is deleted the log records that it no longer is (B0).
    """
    only_appended(store)
    rows = rows_in(Log.open(store).read())
    assert close(store, now_ms=START_MS + DAY_MS).objects == ()
    assert len(close(store, now_ms=START_MS + DAY_MS + 1).objects) == 24
    tip = Log.open(store).handle.tip
    assert (tip.version, tip.head.oldest_readable) == (30, 24)
    check_whole(store, rows=rows, newest=30)
    assert close(store, seed=51).objects == ()
    assert Log.open(store).version == 30


def test_versions_stay_readable_for_the_delay(store):
    """S27: by the time at which a version was replaced, not that at which it was made."""
    clock = ManualClock(START_MS)
    log = grow(store, 7, clock, delay_ms=3 * DAY_MS)
    clock.advance(3 * DAY_MS)  # Version 7 was the newest all the while.
    append_to(log, 12)
    assert close(store, now_ms=clock.now_ms() + 3 * DAY_MS).objects == ()
    assert Log.open(store).handle.tip.head.oldest_readable == 0
    assert len(close(store, now_ms=clock.now_ms() + 3 * DAY_MS + 1).objects) == 8
    assert Log.open(store).handle.tip.head.oldest_readable == 8


def test_the_process_has_a_delay(store):
    """S45: as in the sweep: log.segment.delete.delay.ms applies if the log sets nothing."""
    append_to(Log.create(store, 1, clock=ManualClock(START_MS), ids=SeededIds(1)), 29)
    defaults = {"file.delete.delay.ms": str(3 * DAY_MS)}
    assert close(store, defaults=defaults).objects == ()
    assert Log.open(store).handle.tip.head.oldest_readable == 0
    assert len(close(store).objects) == 24


def test_young_commits_stay(store):
    """A block's youngest commit must be older than a day."""
    aged(store)
    assert close(store, now_ms=START_MS + DAY_MS).objects == ()
    assert len(close(store, now_ms=START_MS + DAY_MS + 1).objects) == 16


def test_without_a_snapshot_nothing_goes(store, monkeypatch):
    """The edits then start from version 0."""
    monkeypatch.setattr("clog.storage.commit.committer.SNAPSHOT_EDIT_BYTES_MIN", 1 << 30)
    aged(store)
    assert close(store).objects == ()


def test_a_snapshot_that_cannot_be_read_keeps_everything(store):
    """It is read back in full first: if damaged or missing, nothing is deleted."""
    aged(store)
    version = Log.open(store).handle.tip.head.snapshot.version
    path = documents.snapshot_path(version)
    within = inside(store)
    data = within.get(path)
    for damage in (lambda: within.delete(path), lambda: within.put(path, data[:-1])):
        damage()
        with pytest.raises(CorruptionError):
            close(store)
        assert versions_in(store) == list(range(30))
        assert is_closed(inside(store), 0) is None


def test_a_snapshot_that_went_while_the_closer_slept(store):
    """Only for the newest version is damage reported: the snapshot of an old tip is swept when
    nobody reads its versions any more.
    """
    aged(store)
    snapshot = Log.open(store).handle.tip.head.snapshot
    path = documents.snapshot_path(snapshot.version)

    def others_go_on():
        log = Log.open(store, clock=ManualClock(START_MS))
        while log.handle.tip.head.snapshot == snapshot:
            append_to(log, log.version + 1)
        inside(store).delete(path)

    hit = FaultyStore(
        store, Faults(Fault(FaultKind.MEANWHILE, "get", f"*/{path}", run=others_go_on))
    )
    assert close(hit).objects == ()
    assert is_closed(inside(store), 0) is None
    assert close(store).objects
    assert is_closed(inside(store), 0)


BEGINNINGS = {
    "oldest version raised by the sweep": (
        aged,
        {(0, 30), (1, 30), (2, 30), (2, 29), (2, 15), (2, 14)},
    ),
    "raised first (B0)": (
        only_appended,
        {(0, 30), (0, 31), (1, 31), (2, 31), (3, 31), (3, 30), (3, 8), (3, 7)},
    ),
}


@pytest.mark.parametrize(("begin", "wanted"), BEGINNINGS.values(), ids=BEGINNINGS)
def test_a_crash_anywhere_is_mended_by_the_next_run(begin, wanted):
    """B0, B1, B2 and all calls around them: the log is whole, and the next run ends as an
    undisturbed one.
    """
    undisturbed = memory_store()
    begin(undisturbed)
    rows = rows_in(Log.open(undisturbed).read())
    close(undisturbed)
    expected = {found.path for found in undisturbed.list("")}
    points, checked = set(), set()
    for run in crash_runs(begin, close):
        left_behind = contents(run.store)
        if left_behind in checked:
            discard(run.store)
            continue
        checked.add(left_behind)
        closed = [first for first in (0, 8, 16) if is_closed(inside(run.store), first) is not None]
        left = versions_in(run.store)
        points.add((len(closed), len(left)))
        assert set(range(30)) - set(left) <= {v for f in closed for v in range(f, f + BLOCK)}, run
        log = Log.open(run.store, clock=ManualClock(START_MS + 2 * DAY_MS))
        assert rows_in(log.read()) == rows, run
        assert verify_log(run.store).findings == (), run
        close(run.store, seed=77)
        assert {found.path for found in run.store.list("")} == expected, run
        discard(run.store)
    assert wanted <= points
    discard(undisturbed)


@pytest.mark.nightly
def test_a_log_is_whole_from_cold_after_some_deletions():
    """B2 with old or missing hints: searches end after the closed blocks."""
    for left in (0, 1, 7, 8, 9, 15, 16):
        store = memory_store()
        aged(store)
        rows = rows_in(Log.open(store).read())
        faulty = FaultyStore(
            store, Faults(Fault(FaultKind.FAIL_BEFORE, "delete", nth=left + 1, times=100))
        )
        with pytest.raises(OSError, match="as planned") if left < 16 else _nothing():
            close(faulty)
        assert len(versions_in(store)) == 30 - left
        check_whole(store, rows=rows, newest=29)
        discard(store)


class _nothing:  # noqa: N801 - it stands for a function
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


@pytest.mark.parametrize(
    ("begin", "first"), [(aged, 16), pytest.param(only_appended, 24, marks=pytest.mark.nightly)]
)
def test_two_cleaners_at_once(store, begin, first):
    """Both close the same blocks; the second finds it done, whenever it comes."""
    begin(store)
    calls = len(_calls_of(store))
    for at in range(1, calls + 1):
        copy = copy_of(store)
        other = Fault(FaultKind.MEANWHILE, nth=at, run=lambda copy=copy: close(copy, seed=60))
        close(FaultyStore(copy, Faults(other)))
        assert versions_in(copy)[0] == first, at
        assert verify_log(copy).findings == (), at
        discard(copy)


def test_a_closer_that_meets_a_sleepers_commit(store, make_clock):
    """Another cleaner closed its block meanwhile, and died while it deleted; a delayed writer
    created one of the deleted commits again: the block's file is right, and the next run continues.
    """
    grow(store, 0)
    never = Log.open(copy_of(store), clock=make_clock(), ids=SeededIds(11))
    never.append([{"key": "never", "value": "1"}])
    append_to(Log.open(store, clock=make_clock(), ids=SeededIds(12)), 28)
    raise_oldest(Log.open(store, clock=make_clock(), ids=SeededIds(13)), 17)
    rows = rows_in(Log.open(store, clock=make_clock()).read())

    def others_go_on():
        dies = Faults(Fault(FaultKind.FAIL_BEFORE, "delete", nth=3, times=100))
        with pytest.raises(OSError, match="as planned"):
            close(FaultyStore(store, dies), seed=60)
        inside(store).create(
            documents.commit_path(1), never.handle.store.get(documents.commit_path(1))
        )

    slept = Fault(FaultKind.MEANWHILE, "get", f"*/{documents.commit_path(1)}", run=others_go_on)
    assert close(FaultyStore(store, Faults(slept))).objects == ()
    assert versions_in(store)[0] == 1
    assert len(close(store, seed=51).objects) == 15
    check_whole(store, rows=rows, newest=29)


def test_a_damaged_block_file_deletes_nothing(store):
    """B1: it names other commits than exist, and all of them exist."""
    aged(store)
    ids = dict.fromkeys(range(BLOCK), "0" * 32)

    def others_go_on():
        inside(store).put(documents.block_path(0), documents.encode("block", block_body(0, ids)))

    # The first look finds that the block is open, the second one comes before it is closed.
    hit = Fault(FaultKind.MEANWHILE, "get", f"*/{documents.block_path(0)}", nth=2, run=others_go_on)
    with pytest.raises(CorruptionError, match="does not name the commits that exist"):
        close(FaultyStore(store, Faults(hit)))
    assert versions_in(store) == list(range(30))


@pytest.mark.parametrize("kind", [FaultKind.FAIL_BEFORE, FaultKind.FAIL_AFTER])
def test_a_block_file_that_was_perhaps_not_written(store, kind):
    """B1: nothing is deleted before it is known to name the commits; the next run closes it."""
    aged(store)
    failed = Fault(kind, "put", "*/blocks/*")
    with pytest.raises(OSError, match="as planned"):
        close(FaultyStore(store, Faults(failed)))
    assert versions_in(store) == list(range(30))
    assert len(close(store, seed=51).objects) == 16


def test_a_block_without_a_file(store):
    """S47: its file is made before its first commit, so the log is being deleted, or is damaged:
    the closer makes none, and leaves the commits alone.
    """
    aged(store)
    inside(store).delete(documents.block_path(0))
    with pytest.raises(CorruptionError, match=r"blocks/0+\.json of .* is missing"):
        close(store)
    assert versions_in(store) == list(range(30))
    assert documents.block_path(0) not in {f.path for f in inside(store).list(documents.BLOCKS)}


def _calls_of(store):
    faulty = FaultyStore(copy_of(store))
    close(faulty)
    return faulty.calls


def test_a_writer_that_slept_past_a_closed_block(store, make_clock):
    """Its create succeeds, the block's file shows that it is lost, and it commits again (K5)."""
    clock = make_clock()
    grow(store, 5, clock)
    slept = FaultyStore(store, clock=clock)
    writer = Log.open(slept, clock=clock, ids=SeededIds(9))

    def days_pass():
        other = Log.open(store, clock=clock, ids=SeededIds(10))
        append_to(other, 28)
        raise_oldest(other, 17)
        clock.advance(2 * DAY_MS)
        assert len(close_blocks(Work(other.handle, clock.now_ms())).objects) == 16

    slept.plan = Faults(Fault(FaultKind.MEANWHILE, "create", "*/commits/*", run=days_pass))
    result = writer.append([{"key": "late", "value": "1"}], producer=("p", 0))
    created = [c.path for c in slept.calls if c.operation == "create" and "/commits/" in c.path]
    folder = documents.folder_of(writer.handle.standing.log_id)
    assert created == [f"{folder}/{documents.commit_path(version)}" for version in (6, 30)]
    assert versions_in(store)[0] == 6  # a file that nobody believes
    assert result.version == 30
    assert writer.append([{"key": "late", "value": "1"}], producer=("p", 0)).duplicate
    assert verify_log(store).findings == ()
    cold = Log.open(store, clock=clock)
    assert [record.key for _, _, record in rows_in(cold.read())].count(b"late") == 1
    assert close(store, seed=70, now_ms=clock.now_ms()).objects == (documents.commit_path(6),)


def test_a_reader_that_slept_past_a_closed_block(store, make_clock):
    """It looks after the closed blocks, whether its next version exists or not."""
    for zombie in (False, True):
        here = memory_store()
        clock = make_clock()
        grow(here, 5, clock)
        reader = Log.open(here, clock=clock, ids=SeededIds(9))
        sixth = Log.open(copy_of(here), clock=clock, ids=SeededIds(11))
        sixth.append([{"key": "never", "value": "1"}])
        other = Log.open(here, clock=clock, ids=SeededIds(10))
        append_to(other, 28)
        raise_oldest(other, 17)
        clock.advance(2 * DAY_MS)
        close_blocks(Work(other.handle, clock.now_ms()))
        if zombie:
            inside(here).put(
                documents.commit_path(6), sixth.handle.store.get(documents.commit_path(6))
            )
        assert reader.end_offsets() == {0: 28}
        assert {record.key for _, _, record in rows_in(reader.read())} == {b"k"}
        discard(here)


@pytest.fixture
def make_clock():
    return lambda: ManualClock(START_MS)


def test_a_block_is_as_old_as_the_store_says(store):
    """COMMIT.md §4: the writer's clock is days behind, so its commits look old when they are made;
    the sweep's floor (§5) goes by the store's times, too.
    """
    clock = ManualClock(START_MS + 9 * DAY_MS)
    clocked = ClockedStore(store, clock)
    behind = WallClock(clock, -5 * DAY_MS)
    log = Log.create(clocked, 1, {"file.delete.delay.ms": 1}, clock=behind, ids=SeededIds(1))
    append_to(log, 29)
    keeper = Log.open(clocked, clock=WallClock(clock), ids=SeededIds(2))
    assert not close_blocks(Work(keeper.handle, clock.now_ms())).objects
    assert newest_by(keeper.handle, keeper.handle.store, clock.now_ms() - DAY_MS) == 0
    clock.advance(DAY_MS + 1)
    assert newest_by(keeper.handle, keeper.handle.store, clock.now_ms() - DAY_MS) == 29
    assert close_blocks(Work(keeper.handle, clock.now_ms())).objects


def test_a_poller_learns_of_a_block_that_was_closed_too_early(store):
    """COMMIT.md §4: not by time alone: each 64th look that finds nothing asks for the block."""
    grow(store, 5)
    counting = CountingStore(store)
    poller = Log.open(counting, clock=ManualClock(START_MS))
    poller.handle.recent(settled=True)  # So it has seen that the block is open.
    writer = Log.open(store, clock=ManualClock(START_MS), ids=SeededIds(3))
    append_to(writer, 29)
    raise_oldest(writer, 17)
    assert close(store).objects
    counts = counting.counts
    counts.clear()
    versions = [poller.version for _ in range(VAIN_LOOKS_MAX)]
    assert versions == [5] * (VAIN_LOOKS_MAX - 1) + [30]
    assert counts["get"] <= VAIN_LOOKS_MAX + 1 + 20  # and the search


def test_an_idle_poll_is_one_request(store):
    """COMMIT.md §7: and one more in 64; the first one also asks whether the block is open."""
    grow(store, 5)
    counting = CountingStore(store)
    poller = Log.open(counting, clock=ManualClock(START_MS))
    counting.counts.clear()
    for _ in range(10 * VAIN_LOOKS_MAX):
        assert poller.version == 5
    assert counting.counts["get"] == 10 * VAIN_LOOKS_MAX + 10 + 1


class Before(WrappingStore):
    """Does something once, before the first listing of a folder."""

    def __init__(self, inner, folder, act):
        super().__init__(inner)
        self.folder, self.act = folder, act

    def list(self, prefix):
        if prefix == self.folder and self.act is not None:
            act, self.act = self.act, None
            act()
        return self.inner.list(prefix)


@pytest.mark.parametrize(
    "folder", [documents.DATA, documents.SNAPSHOTS, documents.PAGES, documents.EDITS]
)
def test_a_sweep_beside_a_closer_of_blocks(store, folder, monkeypatch):
    """What another cleaner deletes meanwhile is no longer needed: the sweep looks at a newer
    version.
    """
    monkeypatch.setattr("clog.storage.format.commits.INLINE_EDIT_BYTES_MAX", 10)
    grow(store, 29, delay_ms=0)
    now_ms = START_MS + 3 * DAY_MS
    handle = Log.open(store, clock=ManualClock(now_ms), ids=SeededIds(51)).handle
    closed = []

    def close_meanwhile():
        closed.extend(close(store, now_ms=now_ms).objects)

    before = Before(handle.store, folder, close_meanwhile)
    sweep_orphans(Work(handle, now_ms, before))
    assert closed == [documents.commit_path(version) for version in range(16)]
    assert handle.refresh().head.oldest_readable == 16
    assert verify_log(store).findings == ()


def test_a_sweep_of_a_log_that_is_deleted_meanwhile(store):
    """What is missing then is not damage."""
    grow(store, 5)
    handle = Log.open(store, clock=ManualClock(START_MS), ids=SeededIds(51)).handle
    before = Before(handle.store, documents.DATA, lambda: discard(store))
    with pytest.raises(NotFoundError, match="no log at"):
        sweep_orphans(Work(handle, START_MS, before))


def test_a_sweep_of_a_log_whose_oldest_commit_is_missing(store):
    """Damage, not another cleaner's work: nothing is deleted."""
    log = grow(store, 5)
    log.handle.store.delete(documents.commit_path(0))
    with pytest.raises(CorruptionError, match="needs a missing file"):
        sweep_orphans(Work(log.handle, START_MS))
