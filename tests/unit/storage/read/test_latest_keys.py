"""The last offset of each key, against a dict that is filled row by row."""

import tracemalloc

import numpy as np
from hypothesis import event, given
from hypothesis import strategies as st

from clog.storage.keys.hashing import ROW_BYTES, LatestKeys

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
    assert latest.last_offsets().tolist() == sorted(expected.values())
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


def test_its_memory_is_what_it_says():
    """ROW_BYTES per row, and half of it while it settles."""
    rows = 300_000
    hashes = np.random.default_rng(1).integers(0, 1 << 64, (rows, 2), dtype=np.uint64)
    offsets = np.arange(rows)
    tracemalloc.start()
    try:
        latest = LatestKeys(rows)
        latest.put(hashes, offsets)
        assert len(latest.last_offsets()) == rows
        assert (latest.get(hashes) == offsets).all()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= rows * ROW_BYTES * 3 // 2 + 24 * (1 << 17) * 4
