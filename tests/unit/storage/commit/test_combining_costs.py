"""What combining costs in requests (COMMIT.md §14): in a log of a million commits, of many
partitions, of many writers.
"""

from collections import Counter
from dataclasses import replace
from itertools import count

import pytest

from clog.storage import Log
from clog.storage.commit.tip import block_body
from clog.storage.env import SeededIds
from clog.storage.format import documents, writers
from clog.storage.format.commits import Commit, Edit, EditRecord, encode_commit, stored_edit
from clog.storage.format.manifest import write_snapshot
from clog.storage.store.contract import WrappingStore
from clog_testing.crash import discard, inside, memory_store
from clog_testing.delaying import Sleeper
from clog_testing.invariants import check_log

NOW_MS = 1_000_000
MILLION = 1_000_060
_seeds = count(10)


class Watched(WrappingStore):
    """Counts requests, by operation and folder; records the prefixes that were listed."""

    def __init__(self, inner):
        super().__init__(inner)
        self.counts, self.prefixes = Counter(), set()

    def _count(self, operation, path):
        parts = path.split("/")  # What is right in the log's folder has no name here.
        self.counts[operation, parts[2] if len(parts) > 3 else ""] += 1

    def get(self, path, start=None, end=None):
        self._count("get", path)
        return self.inner.get(path, start, end)

    def put(self, path, data):
        self._count("put", path)
        self.inner.put(path, data)

    def create(self, path, data):
        self._count("create", path)
        self.inner.create(path, data)

    def list(self, prefix):
        self._count("list", prefix)
        self.prefixes.add(prefix.rpartition("/")[2])
        return self.inner.list(prefix)


def author(store):
    return Log.open(store, clock=Sleeper(NOW_MS), ids=SeededIds(next(_seeds)))


def make(store, partitions=1):
    log = Log.create(store, partitions, clock=Sleeper(NOW_MS), ids=SeededIds(next(_seeds)))
    for _ in range(4):
        append(log)
    assert log.version == 4
    return log


def append(log, partition=0, **options):
    return log.append([{"key": "k", "value": "v"}], partition, **options)


def combine(store, act=append):
    """What an author does that lost a race; the requests of others are not counted."""
    log = author(store)
    append(author(store.inner))
    before = Counter(store.counts)
    done = act(log)
    return done, store.counts - before


def with_a_million_commits(store):
    """A log whose newest version is the millionth, as if the earlier ones had been swept: a block,
    a snapshot, a commit after it, and the hint.
    """
    manifest = make(store).handle.manifest()
    folder, new_id = inside(store), SeededIds(1).new_id
    for found in list(folder.list("")):
        if not found.path.startswith(documents.DATA):
            folder.delete(found.path)
    before = replace(manifest, version=MILLION - 1)
    head = replace(manifest.head, snapshot=write_snapshot(folder, before, new_id=new_id))
    head = replace(head, oldest_readable=MILLION, orphan_floor=MILLION - 1)
    commit_id = new_id()
    stored = stored_edit(folder, Edit(), commit_id=commit_id)
    made = (MILLION, commit_id, manifest.time_ms, "append", stored, manifest.commit_id)
    commit = Commit(EditRecord(*made), manifest.commit_id, (), head)
    first = documents.block_of(MILLION)
    folder.create(documents.block_path(MILLION), documents.encode("block", block_body(first)))
    folder.create(documents.commit_path(MILLION), encode_commit(commit))
    folder.put(documents.LATEST, documents.body_json({"version": MILLION}))
    return author(store)


def test_a_million_commits_before_cost_an_append_beside_rivals_nothing(store):
    """H-W16: ten appends that combine make at most as many requests as in a young log, one by one;
    only proposals of the newest stamps are listed: where few wait, those of one hundred or two.
    """
    told = []
    for begin in (make, with_a_million_commits):
        inner = memory_store()
        log, watched = begin(inner), Watched(inner)
        version = log.version
        told.append([combine(watched)[1] for _ in range(10)])
        assert author(inner).version == version + 20
        hundreds = range(max(0, version - 100) // 100, (version + 19) // 100 + 1)
        assert watched.prefixes == {f"{hundred:018d}" for hundred in hundreds}
        discard(inner)
    assert version == MILLION
    # Below the tenth version there are no earlier stamps to list.
    lists = [[counted.pop(("list", "proposals"), 0) for counted in one] for one in told]
    assert all(young <= old <= 2 for young, old in zip(*lists, strict=True))
    # A young log has a pace of its own, by which its authors may look once more.
    assert all(old <= young for young, old in zip(*told, strict=True))
    assert max(sum(counts.values()) for counts in told[0]) <= 14


def looks(waiting, doing):
    """The requests of an author that waits, and looks after each of these actions."""
    watched = Watched(waiting)
    log = author(watched)
    append(author(waiting))
    watched.counts.clear()
    log.handle.clock.during.extend(doing)
    done = append(log)
    return done, watched.counts


def test_who_waits_reads_columns_only_with_a_new_document(store):
    """H-W21: in a log of 300 partitions a handle that follows each version reads none; one that
    skips versions reads one if the document has changed since, however often it looks.
    """
    make(store, partitions=300)
    log = author(store)

    def commits(many):
        for n in range(many):
            append(log, partition=n % 7)

    _, counts = looks(store, [lambda: commits(3)] * 9)
    assert counts["get", "columns"] == 0
    before = documents_of_columns(store)
    _, counts = looks(store, [lambda: commits(6)] * 9)
    written = documents_of_columns(store) - before
    assert counts["get", "columns"] <= len(written) < 9, (counts, written)


def documents_of_columns(store):
    return {found.path for found in inside(store).list(documents.COLUMNS)}


@pytest.fixture
def small_heads(monkeypatch):
    """A head keeps four writers, alone; its pages hold a few."""
    monkeypatch.setattr(writers, "WRITERS_MAX", 4)
    monkeypatch.setattr(writers, "PAGE_BYTES_MAX", 400)


def rounds(store, ids, sequence):
    """Each producer appends once, through one handle; the requests for pages of writers."""
    watched = Watched(store)
    log = author(watched)
    watched.counts.clear()
    for name in ids:
        append(log, producer=(name, sequence))
    return {what: n for what, n in watched.counts.items() if what[1] == "pages"}


def test_many_producers_stay_in_the_head_while_writers_combine(store, small_heads):
    """H-W14: while two authors are answered the head keeps more than it may otherwise, so that
    nobody reads or writes pages of older writers; without them each commit does, and so it is again
    once they are forgotten.
    """
    make(store)
    ids = [f"producer-{n}" for n in range(12)]
    assert rounds(store, ids, 1)["put", "pages"] >= 4
    for _ in range(2):
        combine(Watched(store))
    rounds(store, ids, 2)
    assert rounds(store, ids, 3) == {}
    assert len(author(store).handle.tip.head.writers) >= len(ids)
    log = author(store)
    log.handle.clock.advance(2 * 3_600_000)
    append(log)
    append(log, producer=("another", 1))
    assert log.handle.tip.head.combined.authors == ()
    assert len(log.handle.tip.head.writers) <= 4
    check_log(store, every_version=False)


def test_heads_of_many_producers_are_bounded_by_bytes(store, small_heads, monkeypatch):
    """H-W14: with long ids fewer."""
    monkeypatch.setattr(writers, "COMBINING_BYTES_MAX", 5_000)
    make(store)
    for _ in range(2):
        combine(Watched(store))
    ids = [f"{n:02d}" + "p" * 900 for n in range(12)]
    rounds(store, ids, 1)
    kept = author(store).handle.tip.head.writers
    assert 2 <= len(kept) <= 5_000 // (902 + 100)
    check_log(store, every_version=False)
