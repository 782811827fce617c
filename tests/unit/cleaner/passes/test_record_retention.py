"""The truth table of cleaning, row by row and against a plain loop."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clog.cleaner.passes.judge import decide_retention
from clog.cleaner.passes.offset_map import OffsetMap
from clog.storage.keys.hashing import hash_keys

NOW = 1_000


def key_hashes(keys, width_bits=128):
    return hash_keys(pa.array(keys, type=pa.binary()), seed=3, width_bits=width_bits)


def map_of(rows, end, width_bits=128):
    """A map of ``(key, offset)`` pairs that covers everything before ``end``."""
    filled = OffsetMap(memory_bytes=100 * 24)
    keyed = [(key, offset) for key, offset in rows if key is not None and offset < end]
    if keyed:
        keys, offsets = zip(*keyed, strict=True)
        filled.put(key_hashes(list(keys), width_bits), np.array(offsets))
    filled.advance(end - 1)
    return filled


def verdict_of(offset_map, rows, now_ms=NOW, width_bits=128):
    """``rows`` are ``(offset, key or None, is_tombstone, delete_horizon_ms)``."""
    offsets, keys, tombstones, horizons = zip(*rows, strict=True)
    key_valid = np.array([key is not None for key in keys])
    last = offset_map.get(key_hashes([key or b"" for key in keys], width_bits))
    return decide_retention(
        offsets=np.array(offsets),
        superseded=key_valid & (last > np.array(offsets)),
        key_valid=key_valid,
        is_tombstone=np.array(tombstones),
        delete_horizon_ms=np.array(horizons),
        latest_offset=offset_map.latest_offset,
        now_ms=now_ms,
    )


def counts(verdict):
    return verdict.superseded, verdict.expired_tombstones, verdict.invalid


@pytest.mark.parametrize(
    ("row", "keep", "new_horizon", "reasons"),
    [
        # beyond the map's last offset, 20: unknown
        ((21, b"a", False, -1), True, False, (0, 0, 0)),
        ((21, None, False, -1), True, False, (0, 0, 0)),
        ((21, b"a", True, -1), True, False, (0, 0, 0)),
        ((21, b"a", True, NOW - 1), True, False, (0, 0, 0)),
        # no key
        ((20, None, False, -1), False, False, (0, 0, 1)),
        ((3, None, True, -1), False, False, (0, 0, 1)),
        # the map has a higher offset, 10
        ((9, b"a", False, -1), False, False, (1, 0, 0)),
        ((9, b"a", True, -1), False, False, (1, 0, 0)),
        ((9, b"a", True, NOW), False, False, (1, 0, 0)),
        # the latest of its key
        ((10, b"a", False, -1), True, False, (0, 0, 0)),
        ((10, b"a", True, -1), True, True, (0, 0, 0)),
        ((10, b"a", True, NOW + 1), True, False, (0, 0, 0)),
        ((10, b"a", True, NOW), False, False, (0, 1, 0)),
        ((10, b"a", True, 0), False, False, (0, 1, 0)),
        # a horizon says nothing about a value
        ((10, b"a", False, NOW), True, False, (0, 0, 0)),
        # a key that the dirty range does not have
        ((2, b"b", False, -1), True, False, (0, 0, 0)),
        ((2, b"b", True, -1), True, True, (0, 0, 0)),
        ((2, b"b", True, NOW), False, False, (0, 1, 0)),
        # an empty key is a key
        ((2, b"", False, -1), True, False, (0, 0, 0)),
    ],
)
def test_each_line_of_the_table(row, keep, new_horizon, reasons):
    """S21, S23: what stays, what gets a horizon, and under which reason the rest is counted."""
    verdict = verdict_of(map_of([(b"a", 10)], end=21), [row])
    assert verdict.keep.tolist() == [keep]
    assert verdict.new_horizon.tolist() == [new_horizon]
    assert counts(verdict) == reasons
    assert verdict.dropped == sum(reasons)


def test_a_tombstone_takes_two_passes_whatever_the_retention():
    """S23: the pass that sets it never drops, even when the horizon is its own time."""
    offset_map = map_of([(b"a", 0), (b"a", 1)], end=2)
    first = verdict_of(offset_map, [(0, b"a", False, -1), (1, b"a", True, -1)])
    assert first.keep.tolist() == [False, True]
    assert first.new_horizon.tolist() == [False, True]
    second = verdict_of(offset_map, [(1, b"a", True, NOW)])
    assert second.keep.tolist() == [False]
    assert counts(second) == (0, 1, 0)


def test_an_empty_map_that_covers_the_log_removes_expired_tombstones():
    """S16: a tombstone pass has no dirty data; it drops by horizon, and nothing else."""
    rows = [(0, b"a", False, -1), (1, b"b", True, NOW), (2, b"c", True, NOW + 1)]
    assert verdict_of(map_of([], end=3), rows).keep.tolist() == [True, False, True]


def test_a_map_that_covers_nothing_keeps_everything():
    """S21: beyond the map's last offset rows are unknown."""
    rows = [(0, None, True, 0), (1, b"a", True, 0), (2, b"a", False, -1)]
    verdict = verdict_of(OffsetMap(memory_bytes=48), rows)
    assert verdict.keep.all()
    assert not verdict.new_horizon.any()


def test_no_rows():
    """A chunk without rows has an empty verdict."""
    empty = np.empty(0, dtype=np.int64)
    nothing = np.empty(0, dtype=np.bool_)
    verdict = decide_retention(
        offsets=empty,
        superseded=nothing,
        key_valid=nothing,
        is_tombstone=nothing,
        delete_horizon_ms=empty,
        latest_offset=0,
        now_ms=NOW,
    )
    assert (len(verdict.keep), verdict.dropped) == (0, 0)


def test_a_hash_of_8_bits_loses_rows_and_one_of_128_does_not():
    """S19: a collision drops the last value of a key; the width is what protects."""
    keys = [b"key %d" % i for i in range(80)]
    rows = [(offset, key, False, -1) for offset, key in enumerate(keys)]
    entries = [(key, offset) for offset, key in enumerate(keys)]
    narrow = verdict_of(map_of(entries, 80, width_bits=8), rows, width_bits=8)
    assert narrow.superseded > 0
    assert verdict_of(map_of(entries, 80), rows).keep.all()


ROWS = st.lists(
    st.tuples(
        st.sampled_from([None, b"", b"a", b"b", b"c"]),
        st.booleans(),
        st.sampled_from([-1, 0, NOW - 1, NOW, NOW + 1]),
    ),
    min_size=1,
    max_size=30,
)


@given(rows=ROWS, mapped_from=st.integers(0, 30), mapped_to=st.integers(0, 30))
def test_against_a_loop(rows, mapped_from, mapped_to):
    """S21, S23: any log, with any dirty range mapped, row by row in Python."""
    entries = [(key, i) for i, (key, _, _) in enumerate(rows) if mapped_from <= i < mapped_to]
    last = {key: offset for key, offset in entries if key is not None}
    keep, new_horizon, reasons = [], [], [0, 0, 0]
    for offset, (key, tombstone, horizon) in enumerate(rows):
        reason = None
        if offset < mapped_to:
            if key is None:
                reason = 2
            elif last.get(key, -1) > offset:
                reason = 0
            elif tombstone and 0 <= horizon <= NOW:
                reason = 1
        keep.append(reason is None)
        known = offset < mapped_to and key is not None
        new_horizon.append(reason is None and known and tombstone and horizon < 0)
        if reason is not None:
            reasons[reason] += 1
    verdict = verdict_of(
        map_of(entries, mapped_to), [(offset, *row) for offset, row in enumerate(rows)]
    )
    assert verdict.keep.tolist() == keep
    assert verdict.new_horizon.tolist() == new_horizon
    assert counts(verdict) == tuple(reasons)
