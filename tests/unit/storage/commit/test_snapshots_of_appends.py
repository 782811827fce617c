"""An append makes snapshots on its way, and does not stop for pages that others rewrote (K3)."""

from itertools import count

import pytest

from clog.cleaner import Cleaner
from clog.storage import Log
from clog.storage.commit import committer
from clog.storage.commit.combining import is_crowded
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog.storage.format import manifest as snapshots
from clog.storage.format.commits import Edit
from clog.storage.store.contract import WrappingStore
from clog_testing.counting import CountingStore
from clog_testing.delaying import Sleeper
from clog_testing.invariants import check_log

NOW_MS = 1_000_000


class Pages(WrappingStore):
    """Counts the bytes of pages that are read and written."""

    def __init__(self, inner):
        super().__init__(inner)
        self.size_bytes = 0

    def get(self, path, start=None, end=None):
        data = self.inner.get(path, start, end)
        self._count(path, data)
        return data

    def put(self, path, data):
        self._count(path, data)
        self.inner.put(path, data)

    def _count(self, path, data):
        self.size_bytes += len(data) * (f"/{documents.PAGES}" in path)

    def of(self, act):
        before = self.size_bytes
        act()
        return self.size_bytes - before


@pytest.fixture
def pages(store, monkeypatch):
    """Pages of two chunks and more, up to 2,000 bytes; snapshots as soon as they are due."""
    monkeypatch.setattr(committer, "SNAPSHOT_EDIT_BYTES_MIN", 10)
    monkeypatch.setattr(snapshots, "PAGE_CHUNKS_MIN", 2)
    for module in (snapshots, committer):
        monkeypatch.setattr(module, "PAGE_BYTES_MAX", 2_000)
    return Pages(store)


def append(log):
    log.append([{"key": "k", "value": "v"}])


def drop_one(log):
    """What retention does: the oldest segment is removed, and all pages of its partition
    with it.
    """
    _, second, *_ = log.handle.manifest().segments[0]
    log.handle.commit(
        lambda _tip, _ms: Edit(start={0: second.base}, drop={0: second.base}), operation="retention"
    )


def test_no_append_brings_in_many_pages(pages, make_log, monkeypatch):
    """Bytes of pages are counted: what it merges is bounded, also after every segment changed; a
    commit of the cleaner does the rest.
    """
    log = make_log(on=pages, config={"segment.chunks": 1})
    grown = max(pages.of(lambda: append(log)) for _ in range(150))
    assert 0 < grown <= 4_000
    drop_one(log)
    assert max(pages.of(lambda: append(log)) for _ in range(30)) <= 4_000
    while (log.handle.tip.version + 1) % 4:
        append(log)
    assert pages.of(lambda: drop_one(log)) > 8_000
    check_log(pages)


@pytest.mark.nightly
def test_what_nobody_else_does_an_append_does_in_the_end(pages, make_log, monkeypatch):
    """Commits must not carry more and more: the edits since the snapshot are bounded."""
    log = make_log(on=pages, config={"segment.chunks": 1})
    for _ in range(150):
        append(log)
    monkeypatch.setattr(committer, "DEFERRED_EDIT_BYTES_MAX", 9_000)
    drop_one(log)
    assert max(pages.of(lambda: append(log)) for _ in range(60)) > 8_000
    carried = len(log.handle.tip.earlier)
    assert carried < 60
    check_log(pages)


@pytest.mark.parametrize(
    "behind", [1, *(pytest.param(n, marks=pytest.mark.nightly) for n in (0, 2, 3))]
)
def test_a_cleaner_whose_commits_never_come_at_the_right_version(pages, make_log, behind):
    """It causes one, whatever came before, so that no append ever stops for it; if none is due it
    costs nothing.
    """
    log = make_log(on=pages, config={"segment.chunks": 1})
    for _ in range(150):
        append(log)
    while log.handle.tip.version % 4 != behind:
        append(log)
    drop_one(log)
    dropped = log.handle.tip.version
    append(log)
    assert pages.of(Cleaner(log).run_once) > 8_000
    tip = log.handle.tip
    assert tip.head.snapshot.version >= dropped
    assert tip.version <= dropped + 8
    assert max(pages.of(lambda: append(log)) for _ in range(60)) <= 4_000
    check_log(pages)


def test_where_no_snapshot_is_owed(store, make_log):
    """Neither a request nor a commit, with appends since the last one or without."""
    counting = CountingStore(store)
    log = make_log(on=counting)
    for _ in range(9):
        append(log)
        version = log.handle.tip.version
        with counting.count() as counts:
            log.handle.take_owed_snapshot()
        assert (dict(counts), log.handle.tip.version) == ({}, version)


def test_beside_others_no_append_waits_for_a_snapshot(pages):
    """K3: while writers combine, the writer of a version writes its snapshot afterwards, and the
    next commit but one that may name it does; alone each names that of the version before.
    """
    Log.create(pages, clock=Sleeper(NOW_MS), ids=SeededIds(1))
    seeds = count(10)

    def author():
        return Log.open(pages, clock=Sleeper(NOW_MS), ids=SeededIds(next(seeds)))

    pair = [author(), author()]
    for late in pair:
        append(author())
        append(late)  # It has lost the race, and combines from now on.
    assert is_crowded(late.handle.tip, NOW_MS)
    began, named = late.handle.tip.version, {}
    for n in range(40):
        append(pair[n % 2])
        tip = pair[n % 2].handle.tip
        if tip.head.snapshot is not None:
            named[tip.version] = tip.head.snapshot.version
    crowded = {v: at for v, at in named.items() if v > began + 4}
    assert len({*crowded.values()}) >= 3
    assert {at % 4 for at in crowded.values()} == {3}
    assert min(v - at for v, at in crowded.items()) == 5
    alone = set()
    for _ in range(24):
        late.handle.clock.advance(20_000)
        append(late)
        tip = late.handle.tip
        alone.add(tip.version - tip.head.snapshot.version)
    assert min(alone) == 1
    check_log(pages)
