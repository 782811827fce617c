"""The map of keys, against a dict that is filled row by row."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from clog.storage.keys.latest import RANKED_ROW_BYTES, ROW_BYTES, LatestKeys, ranks_of

# High words with the same upper bits, also those that are all ones; few low words.
HIGH = [base + more for base in (0, 5 << 40, (1 << 64) - 4) for more in range(4)]
KEYS = st.tuples(st.sampled_from(HIGH), st.integers(0, 2))


def words(keys):
    return np.array(keys, np.uint64).reshape(-1, 2)


@given(
    st.lists(KEYS, min_size=1, max_size=60),
    st.lists(st.integers(1, 3), min_size=60, max_size=60),
    st.integers(1, 60),
    st.integers(1, 60),
    st.booleans(),
)
def test_what_it_took_is_what_it_knows(keys, gaps, room, step, asked_between):
    """S19: keys are distinguished by all 128 bits, however many of them are the same; it stops when
    three quarters of the space are other keys, and has taken every row before.
    """
    offsets = np.cumsum(gaps)[: len(keys)]
    latest = LatestKeys(room)
    taken = 0
    while taken < len(keys):
        given_ = words(keys[taken : taken + step])
        some = latest.put(given_, offsets[taken : taken + step])
        taken += some
        if some < len(given_):
            break
        if asked_between:
            latest.get(given_)
    expected = dict(zip(keys[:taken], offsets[:taken].tolist(), strict=True))
    full = taken < len(keys)
    event(f"full: {full}")
    assert not full or 4 * len(expected) > 3 * room
    assert latest.latest_offset == offsets[taken - 1]
    last = sorted(expected.values())
    assert len(latest) == len(last)
    assert latest.last_offsets().tolist() == latest.counted_offsets().tolist() == last
    assert latest.is_last(20, 70).tolist() == [offset in last for offset in range(20, 70)]
    every = [(high, low) for high in HIGH for low in range(3)]
    assert latest.get(words(every)).tolist() == [expected.get(key, -1) for key in every]


@given(st.lists(KEYS, max_size=20))
def test_nothing_is_known_after_clear(keys):
    """Nor before anything was put."""
    latest = LatestKeys(20)
    assert latest.get(words(keys)).tolist() == [-1] * len(keys)
    latest.put(words(keys), np.arange(len(keys)))
    latest.clear()
    assert latest.latest_offset == -1
    assert latest.last_offsets().tolist() == []
    assert latest.get(words(keys)).tolist() == [-1] * len(keys)


def test_offsets_that_do_not_increase_are_our_bug():
    """An older offset put later would let an old value outlive its successor."""
    latest, two = LatestKeys(20), words([(1, 1), (2, 2)])
    with pytest.raises(AssertionError, match="increase within a call"):
        latest.put(two, np.array([2, 1]))
    latest.put(two, np.array([1, 2]))
    with pytest.raises(AssertionError, match="increase from call to call"):
        latest.put(two, np.array([2, 3]))


def ranked_rows(rng, keys, count, first):
    """Rows of random keys: which, and their offsets, orders, and whether each counts."""
    offsets = first + rng.permutation(np.arange(10 * count, dtype=np.int64))[:count]
    orders = rng.integers(-1, 30, count).astype(np.int64)
    return rng.integers(0, keys, count), offsets, orders, rng.random(count) < 0.4


@pytest.mark.parametrize("seed", range(30))
def test_the_highest_order_wins_and_of_equals_the_highest_offset(seed):
    """S56, S57: whatever shares upper bits, in one call or several, also if the room is closed up;
    rows elsewhere change what wins and counts, and add no key.
    """
    rng = np.random.default_rng(seed)
    of_keys = rng.integers(0, 1 << 63, (60, 2), dtype=np.uint64)
    of_keys[:, 0] %= 1 << int(rng.choice([2, 62]))
    latest = LatestKeys.within(
        int(rng.choice([90, 900])) * RANKED_ROW_BYTES, rows=10**6, is_ranked=True
    )
    chosen, offsets, orders, counts = ranked_rows(rng, 60, 400, 0)
    taken, cut = 0, int(rng.integers(1, 400))
    for some in (slice(0, cut), slice(cut, 400)):
        ranks = ranks_of(orders[some], counts[some])
        taken += latest.put(of_keys[chosen[some]], offsets[some], ranks)
        if seed % 2:
            len(latest)
    assert taken == 400
    best, counted = {}, set()

    def note(rows):
        for key, offset, order, is_counted in zip(*(c.tolist() for c in rows), strict=True):
            if key in best or rows is own:
                best[key] = max(best.get(key, (-9, -9)), (order, offset))
                counted.update({key} if is_counted else ())

    own = (chosen, offsets, orders, counts)
    note(own)
    assert len(latest) == len(best)
    assert latest.last_offsets().tolist() == sorted(offset for _, offset in best.values())
    elsewhere = ranked_rows(rng, 60, 100, 10**6)
    note(elsewhere)
    chosen, offsets, orders, counts = elsewhere
    latest.compare(of_keys[chosen], offsets, ranks_of(orders, counts))
    winners = [best.get(key, (0, -1))[1] for key in range(60)]
    assert latest.get(of_keys).tolist() == winners
    assert latest.counts(of_keys).tolist() == [key in counted for key in range(60)]
    assert latest.counted_offsets().tolist() == sorted(best[key][1] for key in counted)


def test_rows_beyond_what_was_put_are_not_judged():
    """S20: a row may lose to one that the map knows, and win against all once it is put."""
    latest, mine = LatestKeys(99, is_ranked=True), np.array([True])
    latest.put(words([(1, 2)]), np.array([6]), ranks_of(np.array([10]), mine))
    latest.compare(words([(1, 2)]), np.array([0]), ranks_of(np.array([11]), mine))
    offsets = np.array([0, 3, 6, 8])
    lost = latest.superseded(words([(1, 2)] * 4), offsets)
    assert lost.tolist() == [False, True, True, False]


def test_an_empty_ranked_map_supersedes_nothing():
    """S56: as if no part of a log were dirty."""
    latest, two, none = LatestKeys(1, is_ranked=True), words([(1, 1)] * 2), np.zeros(2, np.int64)
    assert latest.superseded(two, none).tolist() == [False, False]
    latest.compare(two, none, ranks_of(none, none == 0))
    assert latest.last_offsets().tolist() == latest.counted_offsets().tolist() == []


def test_rows_of_equal_order_are_counted():
    """S56: those with the order of another row of their key; a missing order equals none."""
    latest = LatestKeys(9, is_ranked=True)
    orders = np.array([5, 5, 5, -1, -1, 7])
    ranks = ranks_of(orders, np.ones(6, np.bool_))
    latest.put(words([(1, 1), (1, 1), (2, 2), (3, 3), (3, 3), (1, 1)]), np.arange(6), ranks)
    assert latest.ties == 1
    latest.compare(words([(2, 2), (3, 3)]), np.array([90, 91]), ranks[2:4])
    assert latest.ties == 2


@pytest.mark.parametrize("row_bytes", [ROW_BYTES, RANKED_ROW_BYTES])
def test_its_memory_is_what_it_says(row_bytes):
    """As many bytes per row, apart from parts and what is returned."""
    rows, is_ranked = 300_000, row_bytes == RANKED_ROW_BYTES
    hashes = np.random.default_rng(1).integers(0, 1 << 64, (rows, 2), dtype=np.uint64)
    offsets = np.arange(rows)
    tracemalloc.start()
    try:
        latest = LatestKeys.within(row_bytes * rows, rows=10**9, is_ranked=is_ranked)
        ranks = ranks_of(offsets, offsets >= 0) if is_ranked else ()
        tracemalloc.reset_peak()
        latest.put(hashes, offsets, *([ranks] if is_ranked else []))
        assert len(latest) == rows
        for first in range(0, rows, 1 << 14):
            some = slice(first, first + (1 << 14))
            assert (latest.get(hashes[some]) == offsets[some]).all()
        _, peak = tracemalloc.get_traced_memory()
        assert np.array_equal(latest.last_offsets(), offsets)
    finally:
        tracemalloc.stop()
    assert peak <= rows * row_bytes + (4 << 20)
