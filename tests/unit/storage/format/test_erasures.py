"""Entries of erasures: what a commit that kills rows notes (FORMAT.md §17)."""

from clog.storage.format.documents import NONE
from clog.storage.format.erasures import ErasureEntry


def entry(**more):
    return ErasureEntry(version=3, requested_ms=1, keys=1, ends={0: 5}, **more)


def test_without_tombstones_one_commit_kills_all():
    """Nothing is written after the request that could bring a key back."""
    after = entry().killed_by(7, 2, ())
    assert (after.killed, after.killed_ms, after.gone, after.kills) == (7, 2, 7, False)


def test_tombstones_are_killed_by_a_second_commit():
    """The first one kills up to the request, the last one up to the tombstones that tell of it."""
    once = entry(told={0: 9}).killed_by(7, 2, ())
    assert (once.killed, once.gone, once.kills, once.bounds) == (7, NONE, True, {0: 9})
    twice = once.killed_by(8, 3, ())
    assert (twice.killed, twice.killed_ms, twice.gone, twice.kills) == (7, 2, 8, False)
