"""The map of tables in which the record with the highest order wins, against a dict (S56, S57)."""

import tracemalloc

import numpy as np
import pytest

from clog.storage.read.ordered import ROW_BYTES, BestKeys


def rows_of(rng, words, count):
    """Rows of random keys: which, and what is compared of them."""
    chosen = rng.integers(0, len(words), count)
    orders = rng.integers(-1, 30, count).astype(np.int64)
    offsets = rng.permutation(np.arange(10 * count, dtype=np.int64))[:count]
    return chosen, (words[chosen], orders, offsets, rng.random(count) < 0.4)


def triples(chosen, rows):
    _, orders, offsets, counts = rows
    return zip(chosen.tolist(), orders.tolist(), offsets.tolist(), counts.tolist(), strict=True)


@pytest.mark.parametrize("seed", range(30))
def test_of_each_key_the_best_row_is_found_unless_one_elsewhere_beats_it(seed):
    """S56, S57: a suspect row counts only if a row of its key is none, wherever that is. Keys share
    first words, and the table is compacted when it is full.
    """
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 1 << 63, (60, 2), dtype=np.uint64)
    words[:, 0] %= 1 << int(rng.choice([2, 62]))
    made = BestKeys.within(int(rng.choice([90, 900])) * ROW_BYTES, rows=10**6)
    chosen, rows = rows_of(rng, words, 400)
    taken = made.put(rows)
    assert taken == 400 or taken >= 90
    rows = tuple(column[:taken] for column in rows)
    best, counted, beaten = {}, set(), set()
    for key, order, offset, counts in triples(chosen[:taken], rows):
        best[key] = max(best.get(key, (-9, -9)), (order, offset))
        counted |= {key} if counts else set()
    others, elsewhere = rows_of(rng, words, 100)
    elsewhere = (elsewhere[0], elsewhere[1], elsewhere[2] + 10**6, elsewhere[3])
    found = made.beats(*elsewhere[:3])
    for (key, order, offset, counts), loses in zip(
        triples(others, elsewhere), found.tolist(), strict=True
    ):
        assert loses == (key in best and best[key] > (order, offset))
        if key in best:
            counted |= {key} if counts else set()
            beaten |= set() if loses else {key}
    made.ask(elsewhere)
    expected = sorted(best[key][1] for key in best if key in counted and key not in beaten)
    assert made.best_offsets().tolist() == expected


def test_an_empty_map_beats_nothing():
    """S56: as if no part of a log were dirty."""
    made = BestKeys(1)
    words, none = np.ones((2, 2), np.uint64), np.zeros(2, np.int64)
    assert made.beats(words, none, none).tolist() == [False, False]
    made.ask((words, none, none, none == 0))
    assert made.best_offsets().tolist() == []


def test_a_row_takes_48_bytes_and_half_as_many_for_a_moment():
    """What docs/which-record-wins.md says about a table's memory."""
    count = 200_000
    words = np.random.default_rng(1).integers(0, (1 << 64) - 1, (count, 2), dtype=np.uint64)
    numbers, counts = np.arange(count), np.ones(count, np.bool_)
    tracemalloc.start()
    try:
        made = BestKeys(count)
        made.put((words, numbers, numbers, counts))
        assert tracemalloc.get_traced_memory()[0] < ROW_BYTES * count
        assert len(made.best_offsets()) == count
        assert tracemalloc.get_traced_memory()[1] <= 1.5 * ROW_BYTES * count + (1 << 20)
    finally:
        tracemalloc.stop()
