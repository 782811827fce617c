"""Paths and ranges, before any filesystem sees them."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from clog.storage import InvalidInputError
from clog.storage.store.contract import (
    COALESCE_GAP_BYTES,
    REQUESTS_FEW,
    bytes_of,
    check_path,
    coalesce,
)

SIZE = 6 * COALESCE_GAP_BYTES
bounds = st.tuples(st.integers(0, SIZE + 10), st.integers(0, SIZE + 10))


@given(st.lists(bounds, max_size=12))
def test_requests_cover_the_ranges_and_little_more(ranges):
    """Ordered, disjoint, each gap at least 1 MiB, and no byte farther than that from a range."""
    requests = coalesce(ranges)
    assert all(start < end for start, end in requests)
    for (_, end), (start, _) in pairwise(requests):
        assert start - end >= COALESCE_GAP_BYTES
    wanted = [(start, end) for start, end in ranges if start < end]
    assert all(any(a <= start and end <= b for a, b in requests) for start, end in wanted)
    assert {a for a, _ in requests} <= {start for start, _ in wanted}
    assert {b for _, b in requests} <= {end for _, end in wanted}


@given(st.integers(1, 200), st.integers(1, 6 << 20), st.integers(COALESCE_GAP_BYTES, 6 << 20))
def test_the_keys_of_many_row_groups_take_few_requests(groups, size, gap):
    """COMMIT.md §7: four at most, or as few as read no more than twice the bytes."""
    ranges = [(i * (size + gap), i * (size + gap) + size) for i in range(groups)]
    requests = coalesce(ranges)
    fetched = sum(end - start for start, end in requests)
    assert fetched <= 2 * groups * size
    assert len(requests) <= REQUESTS_FEW or fetched + gap > 2 * groups * size
    assert len(requests) >= min(groups, REQUESTS_FEW)
    assert (requests[0][0], requests[-1][1]) == (0, ranges[-1][1])


def test_the_smallest_gaps_are_read_along():
    """COMMIT.md §7: the fewest unneeded bytes."""
    gap = COALESCE_GAP_BYTES
    ranges, at = [], 0
    for between in (3, 1, 4, 1, 5, 2):
        ranges.append((at, at + 3 * gap))
        at += (3 + between) * gap
    requests = coalesce([*ranges, (at, at + 3 * gap)])
    spans = [(a // gap, b // gap) for a, b in requests]
    assert spans == [(0, 3), (6, 13), (17, 24), (29, 37)]


@given(st.lists(bounds, max_size=12), st.integers(0, SIZE))
def test_ranges_are_cut_out_of_the_requests(ranges, size):
    """As if each had been read by itself, even if the object ends before."""
    data = bytes(i * 31 % 251 for i in range(1000)) * (size // 1000)
    fetched = [(start, data[start:end]) for start, end in coalesce(ranges)]
    assert bytes_of(ranges, fetched) == [data[start:end] for start, end in ranges]


@given(st.text(max_size=20))
def test_a_path_stays_under_the_root_or_is_refused(path):
    """Whatever it is, joining it to a root never leaves the root."""
    try:
        check_path(path)
    except InvalidInputError:
        return
    parts = path.split("/")
    assert ".." not in parts
    assert "." not in parts
    assert "" not in parts
