"""The offset map against a dict that is filled row by row."""

import tracemalloc
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clog.cleaner.passes import offset_map
from clog.cleaner.passes.offset_map import OffsetMap
from clog.storage.errors import InvalidInputError
from clog.storage.keys.hashing import hash_keys

# Words whose exclusive-or lands on few homes and steps: keys that share a half, keys that
# share their whole probe sequence, and the hash of zeros, which looks like an empty slot.
WORDS = (0, 1, 2, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1)
KEYS = st.tuples(st.sampled_from(WORDS), st.sampled_from(WORDS))


def words(keys):
    return np.array(keys, dtype=np.uint64).reshape(-1, 2)


def random_keys(count, seed=0):
    return np.random.default_rng(seed).integers(0, 1 << 64, size=(count, 2), dtype=np.uint64)


def put_by_row(model, capacity, keys, offsets):
    """The rule: row by row, stop at the first new key that does not fit."""
    for taken, (key, offset) in enumerate(zip(keys, offsets, strict=True)):
        if key not in model and len(model) == capacity:
            return taken
        model[key] = offset
    return len(keys)


def rows_at_once(count):
    """Chunks of so many rows; slices and what is left over of each a little different."""
    sizes = {"_CHUNK_ROWS": count, "_SLICE_ROWS": count // 2 + 1, "_LEFT_ROWS": count}
    return patch.multiple(offset_map, **sizes)


def probes_of(searched, keys):
    """Number of slots that a `get` looks at."""
    seen = []
    compare = OffsetMap._compare

    def counting(self, places, high, low):
        seen.append(len(places))
        return compare(self, places, high, low)

    with patch.object(OffsetMap, "_compare", counting):
        searched.get(keys)
    return sum(seen)


@given(
    keys=st.lists(KEYS, max_size=60),
    gaps=st.lists(st.integers(1, 3), min_size=60, max_size=60),
    cuts=st.sets(st.integers(0, 60), max_size=5),
    slots=st.integers(2, 60),
    chunk_rows=st.sampled_from([1, 3, 7, 1 << 16]),
)
def test_any_split_into_calls_gives_what_row_by_row_gives(keys, gaps, cuts, slots, chunk_rows):
    """S18, S20: same entries, same row where a full map stops, for any batches and chunks."""
    offsets = np.cumsum(gaps[: len(keys)], dtype=np.int64)
    model = {}
    mapped = OffsetMap(memory_bytes=slots * 24)
    with rows_at_once(chunk_rows):
        for start, end in pairwise(sorted({0, *cuts, len(keys)})):
            batch, at = keys[start:end], offsets[start:end]
            expected = put_by_row(model, mapped.capacity, batch, at)
            assert mapped.put(words(batch), at) == expected
            if expected:
                assert mapped.latest_offset == at[expected - 1]
            if expected < len(batch):
                break
        asked = [(high, low) for high in WORDS for low in WORDS]
        assert mapped.get(words(asked)).tolist() == [model.get(key, -1) for key in asked]
        assert len(mapped) == len(model)


@given(
    keys=st.lists(KEYS, max_size=80),
    slots=st.integers(2, 20),
    chunk_rows=st.sampled_from([3, 1 << 16]),
)
def test_the_rest_goes_into_the_next_map(keys, slots, chunk_rows):
    """S20: partial maps, cleared in between, cover all rows in order, each of them once."""
    offsets = np.arange(len(keys), dtype=np.int64)
    reused = OffsetMap(memory_bytes=slots * 24)
    done = 0
    with rows_at_once(chunk_rows):
        while done < len(keys):
            reused.clear()
            taken = reused.put(words(keys[done:]), offsets[done:])
            assert taken >= min(reused.capacity, len(keys) - done)
            model = dict(zip(keys[done : done + taken], range(done, done + taken), strict=True))
            assert reused.get(words(keys)).tolist() == [model.get(key, -1) for key in keys]
            assert (len(reused), reused.latest_offset) == (len(model), done + taken - 1)
            done += taken


def test_default_buffer_of_kafka():
    """S18: 128 MiB are 5 592 405 slots of 24 bytes, 5 033 164 of which may be filled."""
    default = OffsetMap(memory_bytes=128 << 20)
    assert (default.slots, default.capacity) == (5_592_405, 5_033_164)
    assert default.nbytes == 5_592_405 * 24 <= 128 << 20


def test_many_keys_up_to_the_last_that_fits():
    """S18, S20: real chunks, a map filled to 0.9, stopped at exactly the first key too many."""
    keys = random_keys(200_000)
    full = OffsetMap(memory_bytes=150_000 * 24)
    twice = np.concatenate([keys[:100_000], keys])
    taken = full.put(twice, np.arange(300_000))
    assert taken == 100_000 + full.capacity == 235_000
    assert len(full) / full.slots == pytest.approx(0.9)
    assert full.latest_offset == taken - 1
    expected = np.where(np.arange(200_000) < full.capacity, np.arange(200_000) + 100_000, -1)
    np.testing.assert_array_equal(full.get(keys), expected)


def test_scratch_memory_is_bounded():
    """S18: the budget and a fixed scratch, however many rows come in one call."""
    keys, offsets = random_keys(1_000_000), np.arange(1_000_000)
    bounded = OffsetMap(memory_bytes=1_200_000 * 24)
    tracemalloc.start()
    try:
        assert bounded.put(keys, offsets) == 1_000_000
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
        tracemalloc.reset_peak()
        bounded.get(keys)
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()


def test_full_map_goes_on_through_known_keys():
    """S20: only a new key stops; Kafka stops at the next key, known or not."""
    first, second, third = random_keys(3)
    full = OffsetMap(memory_bytes=3 * 24)
    assert full.capacity == 2
    rows = words([first, second, second, first, third, first])
    assert full.put(rows, np.arange(6)) == 4
    assert full.put(rows[4:], np.arange(4, 6)) == 0
    assert full.get(words([first, second, third])).tolist() == [3, 2, -1]
    assert full.latest_offset == 3


def test_duplicates_of_new_keys_do_not_stop_early():
    """S20: many rows of few new keys fit, although there are more rows than room."""
    keys = random_keys(90)
    rows = np.repeat(keys, 50, axis=0)
    exact = OffsetMap(memory_bytes=100 * 24)
    assert exact.capacity == 90
    assert exact.put(rows, np.arange(4500)) == 4500
    assert exact.get(keys).tolist() == list(range(49, 4500, 50))


@pytest.mark.parametrize("slots", [2, 3, 20, 30, 64, 2310])
def test_every_walk_visits_every_slot(slots):
    """A key finds the last empty slot, whatever its home and step; 2310 is 2 * 3 * 5 * 7 * 11."""
    full = OffsetMap(memory_bytes=slots * 24, load_factor=(slots - 0.5) / slots)
    keys = random_keys(slots - 1)
    assert full.put(keys, np.arange(slots - 1)) == slots - 1 == full.capacity
    assert full.get(keys).tolist() == list(range(slots - 1))
    assert full.get(random_keys(100, seed=1)).tolist() == [-1] * 100


def test_absent_keys_cost_no_more_probes_than_present_ones():
    """What the order in the table is for: 2.6 probes at load 0.9, not 1 / (1 - 0.9) = 10."""
    keys = random_keys(90_000)
    full = OffsetMap(memory_bytes=100_000 * 24)
    assert full.put(keys, np.arange(90_000)) == full.capacity == 90_000
    expected = np.log(10) / 0.9
    assert probes_of(full, keys) / 90_000 == pytest.approx(expected, rel=0.05)
    assert probes_of(full, random_keys(90_000, seed=1)) / 90_000 == pytest.approx(
        expected, rel=0.05
    )


@pytest.mark.parametrize("word", [0, 1])
@pytest.mark.parametrize("top_bits", [0, 0b1011])
def test_selecting_by_a_range_of_one_word_leaves_searches_short(word, top_bits):
    """The home slot does not depend on the bits by which a caller picked its keys."""
    keys = random_keys(50_000)
    keys[:, word] >>= np.uint64(4)
    keys[:, word] |= np.uint64(top_bits << 60)
    picked = OffsetMap(memory_bytes=100_000 * 24)
    assert picked.put(keys, np.arange(50_000)) == 50_000
    # Double hashing at load a: ln(1 / (1 - a)) / a probes for a key that is there, 1.39 at 0.5.
    assert probes_of(picked, keys) / 50_000 < 1.5


def test_gaps_are_covered_by_advance():
    """S20: a range read completely is covered up to its end, and is never taken back."""
    empty = OffsetMap(memory_bytes=1000)
    assert empty.latest_offset == -1
    empty.advance(41)
    assert empty.latest_offset == 41
    empty.put(random_keys(1), np.array([57]))
    empty.advance(50)
    assert empty.latest_offset == 57


def test_clear_forgets_everything():
    """A cleared map is like a new one; the offsets may start again."""
    keys = random_keys(10)
    cleared = OffsetMap(memory_bytes=20 * 24)
    cleared.put(keys, np.arange(100, 110))
    cleared.clear()
    assert (len(cleared), cleared.latest_offset) == (0, -1)
    assert cleared.put(keys[5:], np.arange(5)) == 5
    assert cleared.get(keys).tolist() == [-1] * 5 + [0, 1, 2, 3, 4]


def test_offsets_that_do_not_increase_are_our_bug():
    """An older offset put later would let an old value outlive its successor."""
    keys = random_keys(2)
    ordered = OffsetMap(memory_bytes=20 * 24)
    with pytest.raises(AssertionError, match="increase within a call"):
        ordered.put(keys, np.array([2, 1]))
    ordered.put(keys, np.array([1, 2]))
    with pytest.raises(AssertionError, match="increase from call to call"):
        ordered.put(keys, np.array([2, 3]))


@pytest.mark.parametrize("memory_bytes", [0, 23, 24, 47])
def test_a_share_too_small_for_one_entry_is_refused(memory_bytes):
    """S18: without one entry cleaning would never make progress."""
    with pytest.raises(
        InvalidInputError, match=r"log\.cleaner\.dedupe\.buffer\.size.*log\.cleaner\.threads"
    ):
        OffsetMap(memory_bytes=memory_bytes)
    assert OffsetMap(memory_bytes=48).capacity == 1


def test_more_slots_than_can_be_addressed_are_refused():
    """Homes are computed from 32 bits of the hash."""
    with pytest.raises(InvalidInputError, match="at most 4294967295"):
        OffsetMap(memory_bytes=24 << 32)


@pytest.mark.parametrize("load_factor", [-0.1, 0.0, 1.0, 2.0, float("nan")])
def test_a_load_factor_needs_to_leave_a_slot_empty(load_factor):
    """Searches end at an empty slot; without one they would go on for ever."""
    with pytest.raises(InvalidInputError, match=r"log\.cleaner\.io\.buffer\.load\.factor"):
        OffsetMap(memory_bytes=1000, load_factor=load_factor)


def test_only_the_width_of_the_hash_protects_keys():
    """S19: keys are compared by hash alone; 8 bits lose keys, 128 bits do not."""
    keys = pa.array([b"key %d" % i for i in range(1000)], type=pa.binary())
    offsets = np.arange(1000)
    lossy, exact = OffsetMap(memory_bytes=48_000), OffsetMap(memory_bytes=48_000)
    lossy.put(hash_keys(keys, seed=7, width_bits=8), offsets)
    exact.put(hash_keys(keys, seed=7), offsets)
    assert len(lossy) <= 256
    assert len(exact) == 1000
    np.testing.assert_array_equal(exact.get(hash_keys(keys, seed=7)), offsets)


@given(
    keys=st.lists(KEYS, min_size=1, max_size=40), start=st.integers(0, 45), count=st.integers(0, 45)
)
def test_last_offsets_are_those_of_the_keys(keys, start, count):
    """One for each key, in ascending order, offset 0 and the hash of zeros among them; and for any
    range which of its offsets are among them."""
    filled = OffsetMap(memory_bytes=24 * 60)
    filled.put(words(keys), np.arange(len(keys), dtype=np.int64))
    last = sorted({key: i for i, key in enumerate(keys)}.values())
    assert filled.last_offsets().tolist() == last
    range_ = range(start, start + count)
    assert filled.is_last(start, start + count).tolist() == [offset in last for offset in range_]
    filled.clear()
    assert filled.last_offsets().tolist() == []
