"""How much goes into a batch."""

from types import SimpleNamespace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from clog.connector.options import Admission
from clog.connector.read.changes import last_within
from clog.connector.read.stream_reader import limited, limited_bytes
from clog.storage.log import Log

PARTITIONS = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 10_000)), min_size=1)


def bounds(partitions):
    starts = {p: start for p, (start, _) in enumerate(partitions)}
    return starts, {p: start + size for p, (start, size) in enumerate(partitions)}


@given(PARTITIONS, st.integers(1, 20_000))
def test_a_batch_lies_between_its_bounds(partitions, most):
    """Each partition with a backlog advances by at least 1, none beyond its end; the sum keeps to
    the limit.
    """
    starts, ends = bounds(partitions)
    got = limited(starts, ends, most)
    busy = sum(1 for p in ends if ends[p] > starts[p])
    for p, end in ends.items():
        assert starts[p] <= got[p] <= end
        assert got[p] > starts[p] or end == starts[p]
    assert sum(got[p] - starts[p] for p in got) < most + max(1, busy)


@given(PARTITIONS, st.integers(1, 5000))
def test_batches_come_to_the_end(partitions, most):
    """Repeated, the limit lets everything through, in about as many batches as it takes."""
    starts, ends = bounds(partitions)
    total = sum(ends[p] - starts[p] for p in ends)
    assume(total / most < 200)
    batches = 0
    while starts != ends:
        starts = limited(starts, ends, most)
        batches += 1
        assert batches <= total / most * 2 + len(partitions) + 1


def test_shares_are_in_proportion():
    """Shared as by Spark's Kafka source."""
    assert limited({0: 0, 1: 0}, {0: 300, 1: 100}, 40) == {0: 30, 1: 10}


def test_without_a_limit_all_goes():
    """Also if the limit is not reached."""
    assert limited({0: 0}, {0: 7}, None) == {0: 7}
    assert limited({0: 0}, {0: 7}, 7) == {0: 7}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    """Commits of 1 to 5 records of 20 bytes each (8 of content), alternating between two
    partitions.
    """
    log = Log.create(str(tmp_path_factory.mktemp("logs") / "orders"), partitions=2)
    for i in range(10):
        records = [{"key": "1234", "value": "5678"}] * (i % 5 + 1)
        log.append(records, partition=i % 2)
    return log.handle.manifest()


def test_bytes_let_the_oldest_commits_in_first(manifest):
    """Whole ones, and as many offsets of the next one as fit."""
    ends = dict(enumerate(manifest.head.partitions.end))
    assert limited_bytes(manifest, {0: 0, 1: 0}, ends, 20 * (1 + 2 + 3)) == {0: 4, 1: 2}
    assert limited_bytes(manifest, {0: 0, 1: 0}, ends, 20 * (1 + 2 + 2) + 5) == {0: 3, 1: 2}
    assert limited_bytes(manifest, {0: 0, 1: 0}, ends, 1 << 20) == ends


@given(st.integers(1, 700), st.integers(0, 13), st.integers(0, 13))
def test_batches_of_bytes_come_to_the_end(manifest, most, first, second):
    """Each advances by at least one record, none exceeds the limit except for that one."""
    ends = dict(enumerate(manifest.head.partitions.end))
    at = {0: min(first, ends[0]), 1: min(second, ends[1])}
    while at != ends:
        to = limited_bytes(manifest, at, ends, most)
        moved = sum(to[p] - at[p] for p in at)
        assert 1 <= moved <= max(1, most // 20)
        assert all(at[p] <= to[p] <= ends[p] for p in at)
        at = to


class Searched(tuple):
    """Chunks of a long log, of which few may be looked at."""

    __slots__ = ()
    looked = 0

    def __getitem__(self, at):
        if not isinstance(at, slice):
            Searched.looked += 1
        return super().__getitem__(at)

    def __iter__(self):
        raise AssertionError("the chunks of a whole segment are walked")

    __reversed__ = __iter__


def test_a_batch_looks_only_at_what_is_new(tmp_path):
    """A limit of bytes, and of changes, costs no more where a segment has more chunks."""
    log = Log.create(str(tmp_path / "orders"), partitions=1)
    for _ in range(40):
        log.append([{"key": "1234", "value": "5678"}])
    there = log.handle.manifest()
    (segment,) = there.segments[0]
    chunks = Searched(segment.chunks)
    of_one = SimpleNamespace(base=segment.base, next=segment.next, chunks=chunks)
    long = SimpleNamespace(head=there.head, segments=((of_one,),))
    assert limited_bytes(long, {0: 37}, {0: 40}, 40) == {0: 39}
    assert last_within(long, 37, 40, {0: 37}, Admission(max_offsets=2)) == 39
    assert last_within(long, 40, 40, {0: 40}, Admission(max_offsets=2)) == 40
    assert Searched.looked < 40
