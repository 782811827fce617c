"""The model of combining is right within its bounds, and wrong without any one of its rules."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from combining import RULES, Bounds, Rules, explore

SMALL = [
    Bounds(authors=1, operations=1, attempts=2, commits=3),
    Bounds(authors=1, operations=2, attempts=1, commits=3),
    Bounds(authors=1, operations=1, attempts=2, commits=3, takeovers=1),
    Bounds(authors=2, operations=1, attempts=1, commits=2),
    Bounds(authors=1, operations=1, attempts=2, commits=3, successors=1),
]
LARGE = [
    Bounds(authors=1, operations=1, attempts=3, commits=4),
    Bounds(authors=1, operations=2, attempts=2, commits=3),
    Bounds(authors=2, operations=1, attempts=1, commits=3),
    Bounds(authors=1, operations=2, attempts=1, commits=3, successors=1),
    Bounds(authors=2, operations=1, attempts=1, commits=2, successors=1),
]
BREAKS = {
    "proposals_expire": ("AppliedOnce", SMALL[0]),
    "by_number": ("AppliedOnce", SMALL[0]),
    "in_order": ("NoZombie", SMALL[1]),
    "absence_proves_only_what_was_seen": ("AppliedOnce", SMALL[0]),
    "withdrawn_by_commit": ("GaveUpStays", SMALL[0]),
    "withdrawals_expire": ("GaveUpStays", SMALL[0]),
    "withdrawn_is_seen": ("GaveUpStays", SMALL[0]),
    "only_as_posted": ("AppliedOnce", SMALL[0]),
    "swept_by_floor": ("NoDangling", SMALL[0]),
    "floor_is_checked": ("NoDangling", SMALL[0]),
    "settled": ("AckedIsThere", SMALL[0]),
    "own_ids": ("AckedIsThere", SMALL[3]),
    "epochs": ("Fenced", SMALL[2]),
    "others_withdraw_by_stamp": ("EndedStays", SMALL[4]),
    "ends_are_seen": ("EndedStays", SMALL[4]),
    "list_proves_nothing": ("GaveUpStays", SMALL[0]),
    "ranges_by_tip": ("Dense", SMALL[3]),
    "own_ranges": ("ToldItsOwn", SMALL[3]),
}
"""Without this rule, that invariant is violated within these bounds."""
REACHED = {
    "a retry is applied",
    "told applied",
    "told gone",
    "told unknown",
    "two authors in one commit",
    "unknown, and there",
    "ended by another",
}


def test_every_state_within_small_bounds_keeps_every_promise():
    """All states are visited, and for each invariant some state could violate it."""
    reached = set()
    for bounds in SMALL:
        found = explore(bounds)
        assert found.exhausted, (bounds, found)
        reached |= found.reached
    assert reached == REACHED


@pytest.mark.nightly
@pytest.mark.parametrize("bounds", LARGE)
def test_every_state_within_larger_bounds(bounds):
    """The same with more authors, attempts and commits."""
    assert explore(bounds).exhausted


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_necessary(rule):
    """Without it, an invariant is violated, and the shortest history that does so is reported."""
    promise, bounds = BREAKS[rule]
    found = explore(bounds, replace(Rules(), **{rule: False}))
    assert found.broken == promise, found.history
