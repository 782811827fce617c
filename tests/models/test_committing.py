"""The model of the commit protocol is right within its bounds, and wrong without any one of its
rules: closed blocks, suspended processes, the sweep, a log that is deleted and recreated.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from committing import RULES, Bounds, Rules, explore

SMALL = [
    Bounds(writers=2, attempts=1, versions=3),
    Bounds(versions=2, closers=2, reader=True),
    Bounds(versions=4, attempts=1, closers=1),
    Bounds(versions=3, sweep=True),
    Bounds(versions=2, deletion=True),
]
LARGE = [
    Bounds(writers=2, attempts=2, versions=3),
    Bounds(versions=4, attempts=1, closers=2),
    Bounds(versions=4, closers=2, reader=True),
    Bounds(writers=2, attempts=1, versions=2, deletion=True),
    Bounds(writers=2, attempts=1, versions=3, sweep=True),
]
BREAKS = {
    "exclusive": ("AckedIsThere", SMALL[0]),
    "reads_back": ("AppliedOnce", SMALL[1]),
    "same_version": ("AppliedOnce", SMALL[1]),
    "block_is_first": ("ToldGoneIsGone", SMALL[0]),
    "block_is_checked": ("AckedIsThere", SMALL[1]),
    "block_before_is_checked": ("AckedIsThere", SMALL[4]),
    "absent_is_deleted": ("AckedIsThere", SMALL[4]),
    "head_is_past": ("ClosedIsTrue", SMALL[1]),
    "open_after_reading": ("ClosedIsTrue", LARGE[1]),
    "closed_before_deleted": ("AckedIsThere", SMALL[1]),
    "block_stays": ("ToldGoneIsGone", SMALL[2]),
    "looks_check_blocks": ("ReadersSeeTheChain", SMALL[1]),
    "floor_is_checked": ("NoDangling", SMALL[3]),
    "swept_by_floor": ("NoDangling", SMALL[3]),
    "loaded_after_floor": ("NoDangling", SMALL[3]),
    "own_folder": ("NotMixed", SMALL[4]),
    "marker_first": ("StandsWhole", SMALL[4]),
}
"""Without this rule, that invariant is violated within these bounds."""
REACHED = {
    *("a ghost", "closed", "closed by two", "lost", "recreated", "swept"),
    *("slept while the block was closed", "told", "told gone", "told unknown"),
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
    """The same with more writers, attempts and versions."""
    assert explore(bounds).exhausted


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_necessary(rule):
    """Without it, an invariant is violated, and the shortest history that does so is reported."""
    promise, bounds = BREAKS[rule]
    found = explore(bounds, replace(Rules(), **{rule: False}))
    assert found.broken == promise, found.history
