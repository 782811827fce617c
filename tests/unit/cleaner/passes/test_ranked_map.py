"""The offset map where the record with the highest order wins, against a dict (S18, S20, S56)."""

import numpy as np
import pytest

from clog.cleaner.passes.offset_map import RANKED_SLOT_BYTES, OffsetMap, ranks_of


def entries(rng, keys, count, first):
    """Rows of random keys: which, their offsets, orders, and whether each is not a suspect."""
    offsets = first + np.sort(rng.choice(9 * count + 1, count, replace=False)).astype(np.int64)
    orders = rng.integers(-1, 40, count).astype(np.int64)
    return rng.integers(0, keys, count), offsets, orders, rng.random(count) < 0.3


@pytest.mark.parametrize("seed", range(30))
def test_the_highest_order_wins_and_of_equals_the_highest_offset(seed):
    """S56: whatever shares a slot, a walk or a batch, in a map that is nearly full or half empty;
    rows elsewhere change what is known, and add no key.
    """
    rng = np.random.default_rng(seed)
    count, keys = int(rng.integers(1, 3000)), int(rng.integers(1, 700))
    hashes = rng.integers(0, 1 << 63, (keys, 2), dtype=np.uint64)
    if seed % 3 == 0:
        hashes[:, 0] %= 4
    slots = int(rng.choice([keys * 10 // 9 + 2, keys * 3 + 4]))
    made = OffsetMap(memory_bytes=RANKED_SLOT_BYTES * slots, is_ranked=True)
    assert made.nbytes == 32 * slots
    chosen, offsets, orders, counts = entries(rng, keys, count, 0)
    taken = 0
    while taken < count:
        some = slice(taken, taken + int(rng.integers(1, count + 1)))
        ranks = ranks_of(orders[some], counts[some])
        put = made.put(hashes[chosen[some]], offsets[some], ranks)
        assert put == len(offsets[some])
        taken += put
    best, counted = {}, set()
    for key, offset, order, is_counted in zip(chosen, offsets, orders, counts, strict=True):
        best[key] = max(best.get(key, (-9, -9)), (order, offset))
        counted |= {key} if is_counted else set()
    assert made.entries == len(best)
    chosen, offsets, orders, counts = entries(rng, keys, 300, 10**6)
    made.raise_known(hashes[chosen], offsets, ranks_of(orders, counts))
    for key, offset, order, is_counted in zip(chosen, offsets, orders, counts, strict=True):
        if key in best:
            best[key] = max(best[key], (order, offset))
            counted |= {key} if is_counted else set()
    assert made.get(hashes).tolist() == [best.get(k, (0, -1))[1] for k in range(keys)]
    assert made.counting(hashes).tolist() == [k in counted for k in range(keys)]


def test_rows_beyond_what_the_map_covers_are_not_judged_by_it():
    """S20: a row may lose to one that the map knows, and win against all once it is
    mapped itself.
    """
    made = OffsetMap(memory_bytes=99 * RANKED_SLOT_BYTES, is_ranked=True)
    hashes, mine = np.array([[1, 2]], np.uint64), np.array([True])
    made.put(hashes, np.array([6]), ranks_of(np.array([10]), mine))
    made.raise_known(hashes, np.array([0]), ranks_of(np.array([11]), mine))
    offsets = np.array([0, 3, 6, 8])
    lost = made.superseded(np.repeat(hashes, 4, axis=0), offsets)
    assert lost.tolist() == [False, True, True, False]


def test_it_stops_at_the_first_key_without_room():
    """S20: rows of existing keys fit, better or worse."""
    made = OffsetMap(memory_bytes=3 * RANKED_SLOT_BYTES, is_ranked=True)
    assert made.capacity == 2
    hashes = np.array([[1, 1], [2, 2], [1, 1], [3, 3]], np.uint64)
    ranks = ranks_of(np.array([5, 6, 4, 9]), np.ones(4, np.bool_))
    assert made.put(hashes, np.arange(4), ranks) == 3
    assert made.get(hashes).tolist() == [0, 1, 0, -1]
