"""An append makes snapshots on its way, and does not stop for pages that others rewrote (K3)."""

import pytest

from clog.cleaner import Cleaner
from clog.storage.commit import committer
from clog.storage.format import documents
from clog.storage.format import manifest as snapshots
from clog.storage.format.commits import Edit
from clog.storage.store.contract import WrappingStore
from clog_testing.counting import CountingStore
from clog_testing.invariants import check_log


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
    """What retention does: the oldest segment goes, and all pages of its partition with it."""
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
    """Commits must not carry more and more: the edits since the snapshot have a bound."""
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
    """It brings one about, whatever came before, so that no append ever stops for it; where none
    is due it costs nothing.
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
