"""Seeded histories of a small world: nothing acknowledged is lost, doubled or brought back."""

import importlib.util
import sys
from pathlib import Path

import pytest

from clog.storage import ClogError
from clog.storage.testing.clocked import ClockedStore

SEEDS = 30
STEPS = 20

_spec = importlib.util.spec_from_file_location(
    "simulated_world", Path(__file__).parent / "world.py"
)
world_module = sys.modules["simulated_world"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(world_module)


def run(seed, steps=STEPS):
    """The hash of a run's trace, and its world."""
    world = world_module.World(seed)
    try:
        return world.run(steps), world
    finally:
        world.close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_history_keeps_its_promises(seed):
    """`World.check` after each step; a failure says how to replay it."""
    _, world = run(seed)
    assert world.records


def test_the_same_seed_does_the_same():
    """Call by call: else a failure could not be replayed."""
    first, world = run(3)
    assert run(3)[0] == first
    assert run(4)[0] != first
    assert world.interruptions > 3
    assert len(world.trace) > 200


def breaks(seed):
    """Whether a promise is broken, or the log is found damaged."""
    try:
        run(seed)
    except (AssertionError, ClogError):
        return True
    return False


def test_a_store_that_overwrites_is_found(monkeypatch):
    """Planted: a create that is none. Writers take each other's versions away."""
    monkeypatch.setattr(ClockedStore, "create", ClockedStore.put)
    assert any(breaks(seed) for seed in range(SEEDS))
