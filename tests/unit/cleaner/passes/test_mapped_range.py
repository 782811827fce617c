"""What maps say of rows without their keys being read again."""

import numpy as np
import pytest

from clog.cleaner.passes import offset_map
from clog.cleaner.passes.offset_map import SLOT_BYTES, FoundDead, KeyHasher, OffsetMap, build_map
from clog.cleaner.selection import PassStats


@pytest.fixture
def mapped():
    """The range that a map covers of ``[start, end)``."""

    def mapped(log, start, end, slots=1000):
        return build_map(
            *(log.handle.store, log.handle.manifest(), 0, (start, end)),
            offset_map=OffsetMap(memory_bytes=slots * SLOT_BYTES),
            hasher=KeyHasher(7),
            stats=PassStats(),
        )

    return mapped


def chunks(log):
    return [c for s in log.handle.manifest().segments[0] for c in s.chunks]


def append(log, keys):
    log.append([{"key": None if key == "-" else key, "value": "1"} for key in keys])


def test_rows_that_are_not_the_last_of_their_key(make_log, mapped):
    """S21: in the mapped range these are the superseded ones, as the keys would say."""
    log = make_log(segment_bytes=1000)
    for keys in ("abca", "bbd", "ae"):
        append(log, keys)
    range_ = mapped(log, 0, 9)
    assert all(range_.decides(c) for c in chunks(log))
    found = [range_.superseded(c).tolist() for c in chunks(log)]
    assert found == [[True, True, False, True], [True, False, False], [False, False]]


@pytest.mark.parametrize("window", [1, 2, 5, 100])
def test_the_range_is_unfolded_by_windows(make_log, mapped, monkeypatch, window):
    """S18: memory is that of a window, and no answer depends on it; a chunk may be larger."""
    monkeypatch.setattr(offset_map, "WINDOW_OFFSETS", window)
    keys = np.random.default_rng(window).integers(0, 8, 40)
    log = make_log(segment_bytes=10_000)
    for first in range(0, 40, 5):
        append(log, ["abcdefgh"[k] for k in keys[first : first + 5]])
    range_ = mapped(log, 0, 40)
    expected = [k in keys[i + 1 :] for i, k in enumerate(keys)]
    for order in (1, -1):
        for c in chunks(log)[::order]:
            assert range_.superseded(c).tolist() == expected[c.base : c.next]


def test_chunks_that_need_reading(make_log, put, mapped, clean):
    """S20, S42: what reaches beyond the map, holds a record without a key, or has gaps."""
    log = make_log(cleanup_policy="delete", segment_bytes=1000)
    for keys in ("ab", "c-", "de", "fg"):
        append(log, keys)
    assert [mapped(log, 0, 7).decides(c) for c in chunks(log)] == [True, False, True, False]
    assert [mapped(log, 1, 8).decides(c) for c in chunks(log)] == [False, False, True, True]
    assert [mapped(log, 0, 8, slots=5).decides(c) for c in chunks(log)] == [True] + [False] * 3
    log = make_log_with_gaps(log)
    assert [mapped(log, 0, 9).decides(c) for c in chunks(log)] == [False]


def make_log_with_gaps(log):
    from clog.cleaner import Cleaner

    log.alter({"cleanup.policy": "compact"})
    append(log, "ab")
    log.roll()
    Cleaner(log).run_once(force=True)
    return log


def test_bits_of_several_maps(make_log):
    """S20: what is dead stays dead; chunks without dead rows take no memory."""
    log = make_log(segment_bytes=1000)
    append(log, "abcdefghi")
    append(log, "a")
    first, second = chunks(log)
    found = FoundDead()
    found.add(first, np.arange(9) == 8)
    found.add(first, np.arange(9) == 3)
    found.add(second, np.zeros(1, np.bool_))
    assert np.flatnonzero(found.of(first)).tolist() == [3, 8]
    assert found.of(second) is None
    assert found.size_bytes == 2
