"""Repairing a log that has lost files of blocks: what they said follows from the commits."""

import pytest

from clog.storage import CorruptionError, InvalidInputError, Log
from clog.storage.commit.tip import block_body, read_block
from clog.storage.diagnostics.repair import repair_log
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog.storage.format.commits import read_commit
from clog_testing.crash import copy_of, discard, inside, memory_store
from clog_testing.model import rows_in

BLOCK = 8
NEWEST = 3 * BLOCK + 3


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of 8 versions, a snapshot at each fourth."""
    monkeypatch.setattr(documents, "BLOCK_VERSIONS", BLOCK)
    monkeypatch.setattr("clog.storage.commit.committer.SNAPSHOT_EDIT_BYTES_MIN", 10)


@pytest.fixture
def copy():
    made = memory_store()
    yield made
    discard(made)


@pytest.fixture
def log(store, clock):
    """Four blocks of commits, all open."""
    made = Log.create(store, partitions=1, clock=clock, ids=SeededIds(1))
    while made.handle.tip.version < NEWEST:
        put(made)
    return made


def put(log):
    log.append([{"key": "k", "value": f"{log.handle.tip.version + 1}"}])


def close(folder, first, *, delete=True):
    """What block deletion does."""
    versions = range(first, first + BLOCK)
    ids = {v: read_commit(folder, v).record.commit_id for v in versions}
    folder.put(documents.block_path(first), documents.encode("block", block_body(first, ids)))
    for version in versions if delete else ():
        folder.delete(documents.commit_path(version))


def values(on):
    return [row.value.decode() for _, _, row in rows_in(Log.open(on).read())]


def check(store, copy, lost, newest=NEWEST):
    """Every record is in a sound copy that can be written to, and nothing was invented."""
    for first in lost:
        inside(store).delete(documents.block_path(first))
    report = repair_log(store, copy)
    assert report.verified.findings == ()
    assert (report.version, report.blocks, report.rebuilt) == (newest, tuple(lost), ())
    assert values(copy) == [f"{version}" for version in range(1, newest + 1)]
    again = Log.open(copy)
    for _ in range(2 * BLOCK):
        put(again)
    assert values(copy)[-1] == f"{newest + 2 * BLOCK}"
    return report


@pytest.mark.parametrize("lost", [[0], [1], [2], [3], [0, 2, 3]])
def test_the_file_of_an_open_block(store, copy, log, lost):
    """The first, one between, the newest, several: all commits are there."""
    report = check(store, copy, [k * BLOCK for k in lost])
    assert report.left_out == ()
    assert all(read_block(inside(copy), k * BLOCK).ids is None for k in lost)


@pytest.mark.parametrize("closed", [1, 2, 3])
def test_the_file_of_the_first_block_that_is_not_closed(store, copy, log, closed):
    """The earlier ones say that there were no more."""
    for k in range(closed):
        close(log.handle.store, k * BLOCK)
    check(store, copy, [closed * BLOCK])


@pytest.mark.parametrize(("closed", "lost"), [(1, 0), (2, 0), (2, 1), (3, 1), (3, 2)])
def test_the_file_of_a_closed_block(store, copy, log, closed, lost):
    """Its commits are gone, so it was closed; what a delayed committer left there is not part of
    the log.
    """
    slept = log.handle.store.get(documents.commit_path(lost * BLOCK + 5))
    for k in range(closed):
        close(log.handle.store, k * BLOCK)
    log.handle.store.put(documents.commit_path(lost * BLOCK + 5), slept)
    check(store, copy, [lost * BLOCK])
    assert read_block(inside(copy), lost * BLOCK).ids == {}
    with pytest.raises(FileNotFoundError):
        read_commit(inside(copy), lost * BLOCK + 5)


def test_the_file_of_a_block_that_was_just_closed(store, copy, log):
    """Before the first of its commits was deleted: they follow one another to the newest."""
    close(log.handle.store, 0, delete=False)
    check(store, copy, [0])


def test_a_file_that_cannot_be_read(store, copy, log):
    """Damage is as good as loss; the copy has a sound one."""
    log.handle.store.put(documents.block_path(0), b"none")
    report = repair_log(store, copy)
    assert (report.version, report.blocks) == (NEWEST, (0,))
    assert report.verified.findings == ()
    assert read_block(inside(copy), 0).ids is None


def test_a_commit_was_lost_with_it(store, copy, log):
    """Nobody knows what it did: the history ends before it, and what comes after is reported."""
    log.handle.store.delete(documents.commit_path(NEWEST - 1))
    log.handle.store.delete(documents.commit_path(NEWEST))
    log.handle.store.delete(documents.commit_path(NEWEST - 3))
    report = check(store, copy, [3 * BLOCK], newest=NEWEST - 4)
    assert [out.version for out in report.left_out] == [NEWEST - 2]


def test_the_error_says_what_to_do(store, copy, log):
    """And a log that has all its files needs no repair."""
    sound = copy_of(store)
    with pytest.raises(InvalidInputError, match="is sound: nothing to repair"):
        repair_log(sound, copy)
    discard(sound)
    inside(store).delete(documents.block_path(3 * BLOCK))
    with pytest.raises(CorruptionError, match='into a copy with "clog verify --repair"'):
        Log.open(store).read()
