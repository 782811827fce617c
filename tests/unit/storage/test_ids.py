"""Ids: unique from the system, repeatable from a seed."""

import re

import pytest

from clog.storage.env import SeededIds, SystemIds


@pytest.mark.parametrize("ids", [SystemIds(), SeededIds(1)], ids=["system", "seeded"])
def test_an_id_is_32_hex_digits_and_never_the_same(ids):
    """The format stores ids as 32 lower-case hex digits."""
    drawn = [ids.new_id() for _ in range(1000)]
    assert len(set(drawn)) == 1000
    assert all(re.fullmatch("[0-9a-f]{32}", i) for i in drawn)


@pytest.mark.parametrize("ids", [SystemIds(), SeededIds(1)], ids=["system", "seeded"])
def test_uniform_and_seed_stay_in_their_ranges(ids):
    """Half open: never 1.0, never 2**64; and not constant."""
    floats = [ids.uniform() for _ in range(1000)]
    seeds = [ids.seed() for _ in range(1000)]
    assert all(0 <= x < 1 for x in floats)
    assert all(0 <= s < 1 << 64 for s in seeds)
    assert len(set(floats)) == len(set(seeds)) == 1000
    assert max(s.bit_length() for s in seeds) == 64


def test_a_seed_repeats_everything():
    """Simulations replay from one number."""
    a, b, c = SeededIds(42), SeededIds(42), SeededIds(43)
    history = [(x.new_id(), x.uniform(), x.seed()) for x in (a, b, c)]
    assert history[0] == history[1] != history[2]
