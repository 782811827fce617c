"""A log of many partitions: the cost of its commits, followers and openings, and their results
(COMMIT.md, K3).
"""

from dataclasses import replace

import numpy as np
import pytest

from clog.storage import CorruptionError, Log
from clog.storage.commit.committer import NothingToCommit
from clog.storage.commit.tip import block_body
from clog.storage.commit.versions import manifest_at
from clog.storage.diagnostics.verify import verify_log
from clog.storage.format import documents
from clog.storage.format.commits import Edit, read_commit
from clog.storage.store.contract import WrappingStore
from clog_testing.counting import CountingStore
from clog_testing.crash import inside
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log

MANY = 24
"""Partitions, if up to 8 count as few."""
DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr("clog.storage.format.columns.INLINE_PARTITIONS_MAX", 8)


def append(log, *partitions):
    records = [{"key": f"{p}", "value": "v"} for p in partitions]
    return log.append(records, partition=list(partitions)).version


def refs(store):
    """The documents that heads refer to, by version."""
    commits = sorted(found.path for found in inside(store).list(documents.COMMITS))
    heads = [read_commit(inside(store), documents.version_of(path)).head for path in commits]
    return [head.partitions.ref for head in heads]


def test_ten_thousand_partitions(make_log, open_log, store, monkeypatch):
    """A commit that touches 10 of 10,000 partitions writes 20 KB at most, including snapshots,
    columns and objects; it was 130 KB while each head held all columns.
    """
    monkeypatch.undo()
    counted, rng = CountingStore(store), np.random.default_rng(1)
    log = make_log(10_000, {"segment.jitter.ms": 3_600_000}, on=counted)
    for some in np.split(rng.permutation(10_000), 20):
        parts = np.repeat(some, rng.integers(1, 5, len(some)))
        sizes = rng.integers(0, 200, len(parts))
        log.append([{"key": "k", "value": "v" * n} for n in sizes], partition=parts)
        log.handle.clock.advance(int(rng.integers(1000)))
    counted.reset()
    for _ in range(100):
        append(log, *rng.integers(0, 10_000, 10).tolist())
    assert counted.bytes_out / 100 <= 20_000
    assert open_log().end_offsets() == log.end_offsets()


def test_all_versions_are_what_their_edits_make(make_log, store, monkeypatch):
    """Heads with rows, heads with all columns, snapshots in between; every version, opened as an
    old one and replayed.
    """
    monkeypatch.setattr("clog.storage.commit.committer.SNAPSHOT_EDIT_BYTES_MIN", 10)
    log = make_log(MANY, {"segment.chunks": 3})
    for n in range(40):
        append(log, *(range(MANY) if n == 25 else [n % 5]))
        if n % 9 == 3:
            log.delete_records({n % 5: -1})
    check_log(store)
    documents_of = [ref and ref.version for ref in refs(store)]
    assert len(set(documents_of)) > 5
    assert documents_of.count(None) == 2  # version 0, and the one that changed all


def test_a_follower_reads_commits_alone(make_log, open_log, store):
    """One GET per commit; a document is read once, by those who did not see it written."""
    log, counted = make_log(MANY), CountingStore(store)
    append(log, 1)
    follower = open_log(counted)
    follower.handle.refresh()
    for n in range(30):
        version = append(log, n % 5)
        with counted.count() as requests:
            assert follower.handle.refresh().version == version
        assert requests == {"get": 2}  # and the look for another one
        assert follower.handle.tip.head == log.handle.tip.head
    assert len(set(refs(store)[3:])) > 2
    for _ in range(9):
        append(log, 1)
    with counted.count() as requests:
        assert follower.end_offsets() == log.end_offsets()
    assert requests["get"] <= 4 + 4 + 1


@pytest.mark.parametrize("commits", range(2, 10))
def test_opening_costs_one_get_more(make_log, open_log, store, commits):
    """Than for a log of few partitions; a manifest from a snapshot that is older than the columns
    reads none, since its edits pass their version.
    """
    log = make_log(MANY)
    for n in range(commits):
        append(log, n % 3)
    counted = CountingStore(store)
    opened = open_log(counted)
    assert counted.counts["get"] <= 6
    columns = [documents.COLUMNS in call for call in _paths_read(store, open_log)]
    assert sum(columns) == 1
    assert opened.handle.manifest().head == log.handle.tip.head
    reads = _paths_read(inside(store), lambda on: manifest_at(on, commits - 1, log.handle.tip))
    assert not [path for path in reads if documents.COLUMNS in path]


def _paths_read(store, act):
    faulty = FaultyStore(store)
    act(faulty)
    return [call.path for call in faulty.calls]


def test_a_warm_append_costs_a_put_more_where_columns_are_due(make_log, store):
    """Otherwise as before; a writer that loses a race writes them for the next version."""
    counted = CountingStore(store)
    log = make_log(MANY, on=counted)
    puts = []
    for n in range(30):
        with counted.count() as requests:
            version = append(log, n % 3)
        puts.append(requests["put"] - 1 - (version % 4 == 0))
        assert (requests["create"], requests["get"]) == (1, 1)
    assert set(puts) == {0, 1}
    made = len(list(inside(store).list(documents.COLUMNS)))
    assert sum(puts) == made == len({ref for ref in refs(store) if ref is not None})


def test_racing_writers_agree(make_log, open_log, store):
    """Each prepares on the other's head; what the loser wrote stays without a name."""
    logs = [make_log(MANY), *(open_log() for _ in range(2))]
    for n in range(24):
        append(logs[n % 3], n % 4)
    check_log(store)
    named = {ref.path for ref in refs(store) if ref is not None}
    assert named < {found.path for found in inside(store).list(documents.COLUMNS)}


def test_a_document_that_cannot_be_written_is_left_for_the_next(make_log, open_log, store):
    """K3: the commit continues without it; its head is longer, and has the same contents."""
    log = make_log(MANY)
    faults = Faults(Fault(FaultKind.FAIL_BEFORE, "put", "*/columns/*", times=99))
    broken = open_log(FaultyStore(store, faults))
    for n in range(6):
        append(broken, n % 3)
    assert refs(store) == [None] * 7
    append(log, 1)
    for n in range(12):
        append(broken, n % 3)
    assert len(set(refs(store)[8:])) == 1
    check_log(store)


def test_a_document_that_is_gone(make_log, open_log, store):
    """Opening reports it, and verifying names it; followers do not need it."""
    log = make_log(MANY)
    for n in range(5):
        append(log, n)
    follower = open_log()
    path = log.handle.tip.head.partitions.ref.path
    inside(store).delete(path)
    with pytest.raises(CorruptionError, match=path):
        open_log()
    assert path in [finding.where for finding in verify_log(store).findings]
    append(log, 1)
    assert follower.end_offsets() == log.end_offsets()


class Slept(WrappingStore):
    """The store of a reader that is delayed before columns are read, while others commit."""

    def __init__(self, inner, meanwhile):
        super().__init__(inner)
        self.meanwhile = meanwhile

    def get(self, path, start=None, end=None):
        if f"/{documents.COLUMNS}" in path and self.meanwhile:
            act, self.meanwhile = self.meanwhile, None
            act()
        return self.inner.get(path, start, end)


def test_who_sleeps_before_columns_are_read_finds_newer_ones(make_log, open_log, store):
    """COMMIT.md §4: only for the newest version is damage reported; here the file was swept."""
    log = make_log(MANY)
    for n in range(5):
        append(log, n)
    sleeper = Slept(store, None)
    follower = open_log(sleeper)

    def swept():
        old = [found.path for found in inside(store).list(documents.COLUMNS)]
        for n in range(30):
            append(log, n % 5)
        kept = log.handle.tip.head.partitions.ref.path
        for path in old:
            assert path != kept
            inside(store).delete(path)

    for n in range(30):
        append(log, n % 5)
    sleeper.meanwhile = swept
    assert follower.end_offsets() == log.end_offsets()
    assert sleeper.meanwhile is None
    sleeper.meanwhile = swept
    assert open_log(sleeper).end_offsets() == log.end_offsets()


def test_who_sleeps_while_columns_are_read_looks_again(
    make_log, open_log, store, clock, monkeypatch
):
    """COMMIT.md §4: what was found is as old as the search, and its block may have been closed
    since.
    """
    monkeypatch.setattr(documents, "BLOCK_VERSIONS", 8)
    log = make_log(MANY)
    for n in range(5):
        append(log, n)
    sleeper = Slept(store, None)
    follower = open_log(sleeper)

    def slept():
        found = log.handle.tip.version
        while log.handle.tip.version < found + 16:
            append(log, 0)
        clock.advance(2 * DAY_MS)
        for first in range(0, found + 8 - found % 8, 8):
            ids = {
                v: read_commit(inside(store), v).record.commit_id for v in range(first, first + 8)
            }
            body = documents.encode("block", block_body(first, ids))
            inside(store).put(documents.block_path(first), body)
            for version in ids:
                inside(store).delete(documents.commit_path(version))

    for n in range(30):
        append(log, n % 5)
    sleeper.meanwhile = slept
    follower.handle.refresh()
    assert sleeper.meanwhile is None
    assert follower.handle.tip.version < log.handle.tip.version
    assert follower.handle.refresh().version == log.handle.tip.version


@pytest.mark.parametrize("damaged", ["rows", "document"])
def test_a_head_that_its_edits_do_not_make(make_log, open_log, store, damaged):
    """FORMAT.md §8: on whichever side, a wrong number is detected by a handle that knows
    the edits.
    """
    log = make_log(MANY)
    for n in range(5):
        append(log, n)
    known, folder = open_log().handle.manifest(), inside(store)
    tip = log.handle.tip
    if damaged == "rows":
        path, kind = documents.commit_path(tip.version), "commit"
        body = documents.decode(kind, folder.get(path), where="x")
        body["head"]["partitions"]["bytes"][0] += 1
    else:
        path, kind = tip.head.partitions.ref.path, "columns"
        body = documents.decode(kind, folder.get(path), where="x")
        body["partitions"]["bytes"][20] += 1
    folder.put(path, documents.encode(kind, body))
    with pytest.raises(CorruptionError, match=r"does not match its edits|columns/"):
        open_log().handle.manifest()
    assert known.head == tip.head
    assert verify_log(store).findings


def test_columns_that_never_were_are_found_by_a_follower(make_log, open_log, store):
    """A head may refer to a document with numbers its version never had, even with right sums."""
    log = make_log(MANY)
    append(log, 1)
    follower = open_log()
    follower.handle.manifest()
    wrong = log.handle.tip.head.partitions.with_rows({20: (0, 0, 0, 0, 0, -1, -1, 7, 0)})
    tip = log.handle.tip
    head = replace(tip.head, partitions=wrong.whole())
    log.handle._tip._note(commit=replace(tip, head=head))
    append(log, 2)
    follower.handle.refresh()
    with pytest.raises(CorruptionError, match="does not match its edits"):
        follower.handle.manifest()


def test_resetting_times_holds_all_columns(make_log, store):
    """All partitions have changed."""
    log = make_log(MANY)
    append(log, 1)
    seal = tuple((p, 0) for p, n in enumerate(log.handle.tip.head.partitions.chunks) if n)
    log.handle.commit(lambda *_: Edit(seal=seal, reset_times=True), operation="reset-times")
    assert refs(store)[-1] is None
    append(log, 2)
    assert list(log.handle.tip.head.partitions.changed) == [2] * MANY
    check_log(store)


def test_nothing_to_commit_writes_nothing(make_log, store):
    """Columns belong to commits."""
    log = make_log(MANY)
    log.handle.commit(lambda *_: NothingToCommit(), operation="alter")
    assert not list(inside(store).list(documents.COLUMNS))


def test_an_empty_log_of_the_most_partitions(store, clock):
    """10,000 partitions, and it opens."""
    log = Log.create(store, 10_000, clock=clock)
    assert Log.open(store, clock=clock).end_offsets() == log.end_offsets()
