"""No loop may chase what others do meanwhile (COMMIT.md §6, §7): on a log to which others add some
versions between any two of our requests, every call ends after a number of requests that depends
only on the distance it had to cover.
"""

from dataclasses import replace
from math import log2

import pytest

from clog.storage import CommitConflictError, InvalidInputError, Log, ManualClock
from clog.storage.commit.committer import LOSSES_MAX
from clog.storage.commit.tip import FOLLOW_STEPS_MAX, block_body, find_newest
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog.storage.format.commits import Commit, Edit, EditRecord, SnapshotRef, encode_commit
from clog.storage.format.documents import body_json, encode
from clog.storage.store.contract import ObjectExistsError
from clog_testing.counting import CountingStore
from clog_testing.crash import discard, memory_store
from clog_testing.histories import fresh_manifest

HEAD = fresh_manifest().head
OPEN_MAX = 5


def commit_of(version):
    """A commit that changes nothing; a snapshot was made just before each multiple of 4."""
    base = version - version % 4
    head = replace(HEAD, snapshot=SnapshotRef(base - 1, 1 << 30) if base else None)
    return Commit(record(version), f"{version - 1:032x}", carried(version, base), head)


def carried(version, base):
    first = version - 1 if version % 4 == 2 else version
    return tuple(record(v) for v in range(max(base, first), version))


def record(version):
    return EditRecord(version, f"{version:032x}", 1_000 + version, "alter", {"edit": {}})


class BusyStore(CountingStore):
    """A log to which others add ``pace`` versions before each request; the hint follows it, or
    stays where it is.
    """

    def __init__(self, newest, pace, *, hint=None):
        super().__init__(memory_store())
        self.newest, self.pace, self.hint = newest, pace, hint

    def get(self, path, start=None, end=None):
        self._others_commit()
        if path == documents.LOG_FILE:
            self._add("get")
            return encode("log", {"log_id": HEAD.log.log_id, "created_ms": 0})
        path = path.removeprefix(f"{documents.folder_of(HEAD.log.log_id)}/")
        if path.startswith(documents.BLOCKS):
            self._add("get")
            return encode("block", block_body(documents.version_of(path)))
        if path == documents.LATEST:
            self._add("get")
            hint = self.newest - self.newest % 4 if self.hint is None else self.hint
            return body_json({"version": hint})
        version = documents.version_of(path)
        if path.startswith(documents.COMMITS) and version <= self.newest:
            self._add("get")
            return encode_commit(commit_of(version))
        return super().get(path, start, end)

    def put(self, path, data):
        self._others_commit()
        super().put(path, data)

    def create(self, path, data):
        self._others_commit()
        self._add("create")
        version = documents.version_of(
            path.removeprefix(f"{documents.folder_of(HEAD.log.log_id)}/")
        )
        if version <= self.newest:
            raise ObjectExistsError(path)
        self.newest = version

    def _others_commit(self):
        self.newest += self.pace


@pytest.fixture
def busy():
    made = []

    def make(newest, pace, **hint):
        made.append(BusyStore(newest, pace, **hint))
        return made[-1]

    yield make
    for store in made:
        discard(store.inner)


def open_log(store):
    return Log.open(store, clock=ManualClock(10**9), ids=SeededIds(1))


def search_max(distance):
    """COMMIT.md §7: requests of a search that ends that many versions after the hint."""
    return OPEN_MAX if distance < 4 else 4 + 2 * log2(distance)


@pytest.mark.parametrize("pace", [1, 2, 3, 4, 7, 50, 10_000, 10**9])
@pytest.mark.parametrize("behind", [0, 1, 4, 30, 1_000, 10**6])
def test_a_search_gallops_once(busy, pace, behind):
    """It ends at a version that is at least as new as the newest when it started."""
    store = busy(10**6 + 3, pace, hint=10**6 - behind)
    found = find_newest(store)
    assert found.tip.version >= 10**6 + 3
    assert store.counts["get"] <= search_max(found.tip.version - store.hint)


@pytest.mark.parametrize("pace", [1, 2, 3, 4, 7, 50])
def test_opening_and_end_offsets_end(busy, pace):
    """However fast others are: with a hint that follows them, at most this many requests."""
    store = busy(1_000, pace)
    log = open_log(store)
    opened, hint = store.counts["get"], 1_000
    assert opened <= search_max(store.newest - hint)
    before = store.newest
    with store.count() as counts:
        log.end_offsets()
    assert log.handle.tip.version > before
    bound = FOLLOW_STEPS_MAX + search_max(store.newest - before)
    assert counts["get"] <= bound


@pytest.mark.parametrize("pace", [1, 3, 20])
def test_a_commit_that_always_loses_ends(busy, pace):
    """Each race costs the create, reading its winner, and following to the newest seen: the number
    of races bounds the whole.
    """
    store = busy(1_000, pace)
    log = open_log(store)
    with store.count() as counts, pytest.raises(CommitConflictError, match="lost 200 commit races"):
        log.handle.commit(lambda _tip, _ms: Edit(), operation="alter")
    steps = FOLLOW_STEPS_MAX + search_max(32 * pace)
    blocks = store.newest // documents.BLOCK_VERSIONS  # Before its first commit a block is opened.
    assert LOSSES_MAX <= counts["create"] <= LOSSES_MAX + blocks
    assert counts["get"] <= LOSSES_MAX * (1 + steps)


@pytest.mark.parametrize("pace", [1, 3, 20])
def test_a_refusal_needs_no_newer_version_than_when_the_call_began(busy, pace):
    """COMMIT.md, K2: it is looked up once."""
    store = busy(1_000, pace)
    log = open_log(store)
    asked = []

    def refuse(tip, _ms):
        asked.append(tip.version)
        raise InvalidInputError("no")

    began = store.newest
    with store.count() as counts, pytest.raises(InvalidInputError):
        log.handle.commit(refuse, operation="alter")
    assert len(asked) == 2
    assert asked[-1] >= began
    assert counts["get"] <= FOLLOW_STEPS_MAX + search_max(32 * pace)
