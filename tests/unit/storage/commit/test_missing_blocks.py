"""The file of a block is made before the block's first commit and never deleted (COMMIT.md §4): if
it is missing the log was deleted, or is damaged, and nothing in the block is trusted.
"""

import pytest

from clog.storage import CorruptionError, Log, NotFoundError
from clog.storage.commit.tip import TRUST_MS, block_body, find_newest, first_open_version
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog.storage.format.commits import read_commit
from clog_testing.crash import copy_of, inside
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore

BLOCK = 8
NEWEST = 3 * BLOCK + 3
ASLEEP_AT = 5


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of 8 versions, a snapshot at each fourth."""
    monkeypatch.setattr(documents, "BLOCK_VERSIONS", BLOCK)
    monkeypatch.setattr("clog.storage.commit.committer.SNAPSHOT_EDIT_BYTES_MIN", 10)


@pytest.fixture
def log(store, clock):
    """Four blocks of commits, all open."""
    made = Log.create(store, partitions=1, clock=clock, ids=SeededIds(1))
    while made.handle.tip.version < NEWEST:
        made.append([{"key": "k", "value": "v"}])
    return made


def close(folder, first):
    """What block deletion does."""
    versions = range(first, first + BLOCK)
    ids = {v: read_commit(folder, v).record.commit_id for v in versions}
    folder.put(documents.block_path(first), documents.encode("block", block_body(first, ids)))
    for version in versions:
        folder.delete(documents.commit_path(version))


def lose(folder, first):
    folder.delete(documents.block_path(first))


def missing(first):
    return pytest.raises(CorruptionError, match=rf"blocks/0*{first}\.json of .* is missing, so")


def test_a_cold_reader_of_a_block_without_a_file(store, clock, log):
    """Nothing is said about what may never have been committed."""
    lose(log.handle.store, 3 * BLOCK)
    cold = Log.open(store, clock=clock)
    with missing(3 * BLOCK):
        cold.read()
    with missing(3 * BLOCK):
        cold.append([{"key": "k", "value": "v"}])
    assert read_commit(log.handle.store, NEWEST)
    with pytest.raises(FileNotFoundError):
        read_commit(log.handle.store, NEWEST + 1)


@pytest.mark.parametrize("first", [2 * BLOCK, 3 * BLOCK])
def test_a_reader_of_an_older_version_of_a_block_without_a_file(store, clock, log, first):
    """A version whose commit exists may be what a delayed committer left."""
    log.handle.manifest()
    lose(log.handle.store, first)
    with missing(first):
        log.handle.manifest_at(first + 1)


def test_who_wakes_up_beside_a_sleepers_file(store, clock, log):
    """The file fits, and only the file of the block could show that it was never committed."""
    early = copy_of(store)
    folder = inside(early)
    for version in range(ASLEEP_AT + 1, NEWEST + 1):
        folder.delete(documents.commit_path(version))
    folder.put(documents.LATEST, documents.body_json({"version": 4}))
    faulty = FaultyStore(early)
    reader = Log.open(faulty, clock=clock)
    assert reader.handle.tip.version == ASLEEP_AT
    asleep = Log.open(copy_of(early), clock=clock, ids=SeededIds(9))
    asleep.append([{"key": "zombie", "value": "never committed"}])
    left = asleep.handle.store.get(documents.commit_path(ASLEEP_AT + 1))
    close(inside(store), 0)
    inside(store).put(documents.commit_path(ASLEEP_AT + 1), left)
    lose(inside(store), 0)
    faulty.inner = store
    clock.advance(TRUST_MS + 1)
    with missing(0):
        reader.end_offsets()


def test_who_polls_learns_of_it(store, clock, log):
    """As for a block that was closed too early: within bounded polls."""
    lose(log.handle.store, 3 * BLOCK)
    with missing(3 * BLOCK):
        for _ in range(64):
            log.handle.refresh()


def test_before_its_first_commit_a_block_has_no_file(store, clock, log):
    """Whoever looks for the version that would start it finds nothing wrong."""
    while log.handle.tip.version % BLOCK != BLOCK - 1:
        log.append([{"key": "k", "value": "v"}])
    clock.advance(TRUST_MS + 1)
    for _ in range(65):
        assert log.handle.refresh().version % BLOCK == BLOCK - 1


@pytest.mark.parametrize("closed", [1, 2, 3])
def test_where_the_first_block_that_is_not_closed_has_no_file(log, closed):
    """Looking for commits, or deleting them, does not take it for an open one."""
    folder = log.handle.store
    for k in range(closed):
        close(folder, k * BLOCK)
    assert first_open_version(folder) == closed * BLOCK
    lose(folder, closed * BLOCK)
    with missing(closed * BLOCK):
        first_open_version(folder)


def test_a_hint_into_a_block_without_a_file(log):
    """A delayed committer's file to which the hint leads is not the newest version."""
    folder = log.handle.store
    slept = folder.get(documents.commit_path(ASLEEP_AT))
    close(folder, 0)
    folder.put(documents.commit_path(ASLEEP_AT), slept)
    folder.put(documents.LATEST, documents.body_json({"version": 4}))
    assert find_newest(folder).tip.version == NEWEST
    lose(folder, 0)
    with missing(0):
        find_newest(folder)


@pytest.mark.parametrize(
    "act",
    [
        lambda log: log.read(),
        lambda log: log.append([{"key": "k", "value": "v"}]),
        lambda log: log.end_offsets(),
        lambda log: log.handle.manifest_at(NEWEST - 1),
        lambda log: log.handle.has_committed(BLOCK, "0" * 32),
    ],
)
@pytest.mark.parametrize("anew", [True, False])
@pytest.mark.parametrize("asleep_ms", [0, TRUST_MS + 1])
def test_a_log_that_is_deleted_meanwhile_is_not_damaged(store, clock, log, act, anew, asleep_ms):
    """Whatever is still there of its folder, whoever misses the block's file asks which log is
    there.
    """
    faulty = FaultyStore(store)
    reader = Log.open(faulty, clock=clock)

    def deleted():
        for first in range(0, NEWEST, BLOCK):
            lose(log.handle.store, first)
        store.delete(documents.LOG_FILE)
        if anew:
            Log.create(store, partitions=1, clock=clock, ids=SeededIds(2))

    log.handle.store.delete(documents.commit_path(BLOCK))
    faulty.plan = Faults(Fault(FaultKind.MEANWHILE, "get", "*/blocks/*", run=deleted))
    clock.advance(asleep_ms)
    with pytest.raises(NotFoundError, match="deleted and recreated" if anew else "no log at"):
        act(reader)


@pytest.mark.parametrize("closed", [3, 4])
def test_a_block_that_came_while_one_looked(log, closed):
    """A delayed handle looks for a block before it exists, and then sees the one before
    it closed.
    """
    while log.handle.tip.version < 4 * BLOCK:
        log.append([{"key": "k", "value": "v"}])
    folder = log.handle.store
    close(folder, 0)
    close(folder, BLOCK)
    came = folder.get(documents.block_path(3 * BLOCK))
    lose(folder, 3 * BLOCK)

    def others_go_on():
        folder.put(documents.block_path(3 * BLOCK), came)
        for k in range(2, closed):
            close(folder, k * BLOCK)

    held_up = Fault(FaultKind.MEANWHILE, "get", documents.block_path(2 * BLOCK), run=others_go_on)
    assert first_open_version(FaultyStore(folder, Faults(held_up))) == closed * BLOCK
