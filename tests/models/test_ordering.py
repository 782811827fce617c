"""The model of order values is right within its bounds, and wrong without any one of its rules."""

import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from ordering import Record, Rules, explore

ONE_KEY = (Record("a", 1), Record("a", 3, dies=True), Record("a", 2), Record("a", 4))
TWO_KEYS = (Record("a", 1), Record("a", 3, dies=True), Record("a", 2), Record("b", 4, dies=True))
TWO_DELETES = (Record("a", 2, dies=True), Record("a", 1), Record("b", 3, dies=True), Record("b", 1))
SMALL = [ONE_KEY, TWO_KEYS, TWO_DELETES]
LARGE = [
    (*TWO_KEYS, Record("b", 2)),
    (*ONE_KEY, Record("a", 5, dies=True)),
    (*TWO_DELETES, Record("a", 4)),
]
ALWAYS = {"asks_above", "asks_dirty", "asks_again"}
"""Rules needed with both settings for late records; the others concern "drop"."""
BREAKS = {
    "asks_above": ONE_KEY,
    "asks_dirty": ONE_KEY,
    "asks_again": ONE_KEY,
    "as_pairs": TWO_KEYS,
    "late_shield_none": ONE_KEY,
    "decided_first": TWO_KEYS,
    "readers_hide": ONE_KEY,
}
"""Without this rule, an invariant is violated with these records."""


@pytest.mark.parametrize("drop", [False, True])
def test_every_state_within_small_bounds_keeps_both_promises(drop):
    """Four records in every order, passes up to every offset that stop after every commit (S57)."""
    for records in SMALL:
        found = explore(records, drop=drop)
        assert found.broken is None, (records, found.broken)
        assert found.states > 3000


@pytest.mark.nightly
@pytest.mark.parametrize("records", LARGE, ids=["two keys", "one key", "two deletes"])
@pytest.mark.parametrize("drop", [False, True])
def test_every_state_within_larger_bounds_keeps_both_promises(records, drop):
    """Five records: about ten thousand states each."""
    found = explore(records, drop=drop)
    assert found.broken is None, found.broken
    assert found.states > 30_000


def test_no_rule_is_left_untested():
    """Each rule of the model has records below with which it is left out."""
    assert set(BREAKS) == {f.name for f in fields(Rules)}


@pytest.mark.parametrize("rule", BREAKS)
def test_without_any_one_rule_a_promise_is_broken(rule):
    """Each rule is needed: a shortest history without it ends in a table that is wrong."""
    without = replace(Rules(), **{rule: False})
    for drop in [False, True] if rule in ALWAYS else [True]:
        assert explore(BREAKS[rule], without, drop=drop).broken, (rule, drop)
