"""Documents that nobody needs are swept; those that may still be needed stay."""

import pytest

from clog.cleaner.duties import Work
from clog.cleaner.duties.commit_blocks import close_blocks
from clog.cleaner.duties.sweep import sweep_orphans
from clog.storage import CorruptionError, Log
from clog.storage.commit.versions import manifest_at
from clog.storage.diagnostics.verify import verify_log
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog.storage.format.commits import Edit, read_commit
from clog.storage.format.writers import WriterPages
from clog_testing.crash import inside
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log
from clog_testing.model import rows_in

DAY_MS = 86_400_000


@pytest.fixture
def store(clocked_store):
    return clocked_store


@pytest.fixture(autouse=True)
def small_limits(monkeypatch):
    """Snapshots and pages as early as possible."""
    monkeypatch.setattr("clog.storage.commit.committer.SNAPSHOT_EDIT_BYTES_MIN", 10)
    monkeypatch.setattr("clog.storage.format.manifest.PAGE_CHUNKS_MIN", 3)


def grow(store, clock, version):
    log = Log.create(store, 1, {"segment.chunks": 1}, clock=clock, ids=SeededIds(1))
    append_to(log, version)
    return log


def append_to(log, version):
    while log.handle.refresh().version < version:
        log.append([{"key": "k", "value": "v", "timestamp": 1}])


def sweep(store, clock, seed=50):
    log = Log.open(store, clock=clock, ids=SeededIds(seed))
    return sweep_orphans(Work(log.handle, clock.now_ms())).objects


def names(store, prefix):
    return sorted(found.path for found in inside(store).list(prefix))


def test_all_that_is_needed_stays(store, clock):
    """Pages and snapshots of every readable version, however old they are."""
    log = grow(store, clock, 40)
    before = [manifest_at(inside(store), v, log.handle.tip) for v in range(41)]
    assert len(names(store, documents.PAGES)) > 1
    clock.advance(5 * DAY_MS)
    assert sweep(store, clock) == ()
    assert [manifest_at(inside(store), v, log.handle.tip) for v in range(41)] == before


def test_old_snapshots_and_their_pages_go(store, clock):
    """Once no readable version starts from them; the rest can be read."""
    log = grow(store, clock, 40)
    rows = rows_in(log.read())
    snapshots, pages = names(store, documents.SNAPSHOTS), names(store, documents.PAGES)
    log.handle.commit(lambda _tip, _ms: Edit(oldest_readable=38), operation="sweep")
    before = [manifest_at(inside(store), v, log.handle.tip) for v in range(38, 42)]
    clock.advance(2 * DAY_MS)
    swept = sweep(store, clock)
    kept = before[0].head.snapshot.version
    assert [p for p in snapshots if p in swept] == [
        p for p in snapshots if documents.version_of(p) < kept
    ]
    assert [p for p in pages if p in swept]
    assert len([p for p in snapshots if p in swept]) > 1
    assert [manifest_at(inside(store), v, log.handle.tip) for v in range(38, 42)] == before
    assert rows_in(Log.open(store, clock=clock).read()) == rows
    check_log(store, every_version=False)
    assert sweep(store, clock, seed=51) == ()


def test_columns_of_heads_go_once_no_readable_version_needs_them(store, clock, monkeypatch):
    """C10: also those that no head ever named; what a readable version's head names stays."""
    monkeypatch.setattr("clog.storage.format.columns.INLINE_PARTITIONS_MAX", 8)
    monkeypatch.setattr("clog.cleaner.duties.sweep.INLINE_PARTITIONS_MAX", 8)
    log = Log.create(store, 24, clock=clock, ids=SeededIds(1))
    for n in range(40):
        log.append([{"key": "k", "value": "v", "timestamp": 1}], partition=n % 5)
    left = [documents.columns_path(version, "f" * 32) for version in (3, 39)]
    for path in left:
        inside(store).put(path, b"")
    clock.advance(2 * DAY_MS)
    assert sweep(store, clock) == ()
    columns = names(store, documents.COLUMNS)
    log.handle.commit(lambda _tip, _ms: Edit(oldest_readable=38), operation="sweep")
    before = [manifest_at(inside(store), v, log.handle.tip) for v in range(38, 42)]
    clock.advance(2 * DAY_MS)
    swept = sweep(store, clock, seed=51)
    kept = read_commit(inside(store), 38).head.partitions.ref
    old = [path for path in columns if documents.columns_version_of(path) < kept.version]
    assert [path for path in swept if path.startswith(documents.COLUMNS)] == old
    assert left[0] in old
    assert len(old) > 3
    assert names(store, documents.COLUMNS)[0] == kept.path
    assert [manifest_at(inside(store), v, log.handle.tip) for v in range(38, 42)] == before
    check_log(store, every_version=False)


@pytest.mark.parametrize("path", [documents.page_path("f" * 32), documents.edit_path("e" * 32)])
def test_what_a_crash_left_goes_after_a_day(store, clock, path):
    """C3: a page or an edit whose commit never came; also in a log where nothing else happens."""
    grow(store, clock, 8)
    clock.advance(DAY_MS)
    inside(store).put(path, documents.encode("page", {}))
    assert sweep(store, clock) == ()
    clock.advance(DAY_MS)
    assert sweep(store, clock, seed=51) == ()
    clock.advance(1)
    assert sweep(store, clock, seed=52) == (path,)
    assert names(store, path) == []


def test_large_edits_stay(store, clock, monkeypatch):
    """Those of existing commits; also when their commits are only carried by later ones."""
    monkeypatch.setattr("clog.storage.format.commits.INLINE_EDIT_BYTES_MAX", 10)
    grow(store, clock, 9)
    edits = names(store, documents.EDITS)
    assert len(edits) > 5
    clock.advance(2 * DAY_MS)
    assert sweep(store, clock) == ()
    assert set(names(store, documents.EDITS)) > set(edits)  # the floor's, too
    assert verify_log(store).findings == ()


def test_pages_of_writers_stay(store, clock, monkeypatch):
    """Those of the newest head, and those that a head of the last day has dropped; for both also
    the pages below the root.
    """
    monkeypatch.setattr("clog.storage.format.writers.WRITERS_MAX", 4)
    monkeypatch.setattr("clog.storage.format.writers.PAGE_BYTES_MAX", 300)
    log = grow(store, clock, 1)

    def write(writers):
        for i in writers:
            log.append([{"key": "k", "value": "v"}], producer=(f"w{i}", 0))

    def pages():
        root = log.handle.tip.head.older_writers
        assert root.level
        return set(WriterPages(log.handle.store).paths(root))

    write(range(16))
    first = pages()
    clock.advance(3 * DAY_MS)
    behind = Log.open(store, clock=clock, ids=SeededIds(5))
    write(range(16, 24))
    assert first - pages()
    assert not first & set(sweep(store, clock))
    assert behind.append([{"key": "k", "value": "v"}], producer=("w0", 0)).duplicate
    clock.advance(2 * DAY_MS)
    write(range(24, 25))
    gone = first - pages()
    assert gone <= set(sweep(store, clock, seed=51))
    assert set(names(store, documents.PAGES)) >= pages()
    again = Log.open(store, clock=clock, ids=SeededIds(6))
    for i in range(25):
        assert again.append([{"key": "k", "value": "v"}], producer=(f"w{i}", 0)).duplicate
    assert verify_log(store).findings == ()


def test_no_page_goes_where_the_one_above_is_missing(store, clock, monkeypatch):
    """Nobody could know which are needed: damage, and nothing is deleted."""
    monkeypatch.setattr("clog.storage.format.writers.WRITERS_MAX", 4)
    monkeypatch.setattr("clog.storage.format.writers.PAGE_BYTES_MAX", 300)
    log = grow(store, clock, 1)
    for i in range(16):
        log.append([{"key": "k", "value": "v"}], producer=(f"w{i}", 0))
    root = log.handle.tip.head.older_writers
    assert root.level
    log.handle.store.delete(root.path)
    clock.advance(3 * DAY_MS)
    before = set(names(store, ""))
    with pytest.raises(CorruptionError, match=f"{root.path}.*nothing was deleted"):
        sweep(store, clock)
    assert before <= set(names(store, ""))


def test_a_log_without_its_oldest_commits_and_snapshots_is_sound(store, clock, monkeypatch):
    """COMMIT.md §4, §5: blocks are closed, and from the rest those snapshots are deleted that no
    readable version's head names. Verifying the log starts from one that exists.
    """
    monkeypatch.setattr("clog.storage.format.documents.BLOCK_VERSIONS", 32)
    log = grow(store, clock, 1)
    log.alter({"file.delete.delay.ms": 7 * DAY_MS})
    while log.handle.refresh().version < 70:
        log.alter({"segment.bytes": 1_000_000 + log.version})
    log.handle.commit(lambda *_: Edit(oldest_readable=62), operation="sweep")
    clock.advance(2 * DAY_MS)
    assert len(close_blocks(Work(log.handle, clock.now_ms())).objects) == 32
    swept = {documents.version_of(path) for path in sweep(store, clock)}
    assert swept & {read_commit(inside(store), v).head.snapshot.version for v in range(40, 62)}
    assert verify_log(store).findings == ()


def test_a_writer_that_slept_over_its_page(store, clock):
    """The sweep's own commit takes the version that the writer was about to create."""
    grow(store, clock, 11)
    faulty = FaultyStore(store, clock=clock)
    writer = Log.open(faulty, clock=clock, ids=SeededIds(9))
    swept = []

    def days_pass():
        clock.advance(2 * DAY_MS)
        swept.extend(sweep(store, clock))

    faulty.plan = Faults(Fault(FaultKind.MEANWHILE, "create", "*/snapshots/*", run=days_pass))
    result = writer.append([{"key": "late", "value": "1"}])
    assert [path for path in swept if path.startswith(documents.PAGES)]
    assert result.version > 12
    cold = Log.open(store, clock=clock)
    assert {record.key for _, _, record in rows_in(cold.read())} == {b"k", b"late"}
    assert verify_log(store).findings == ()
    append_to(writer, 40)
    assert verify_log(store).findings == ()


def test_what_a_comparison_of_clocks_left(store, clock):
    """A few bytes of a process that was killed between its PUT and its DELETE."""
    grow(store, clock, 3)
    inside(store).put("clock-" + "1" * 32, b"clock")
    assert sweep(store, clock) == ()
    clock.advance(DAY_MS + 1)
    assert sweep(store, clock, seed=51) == ("clock-" + "1" * 32,)
