"""Stores of the test's log, closed at the end."""

import pytest

from clog.storage import StateStore
from clog.storage.ids import SeededIds


@pytest.fixture
def open_store(store, clock, tmp_path):
    """Opens a store of the test's log, as a process of its own would."""
    opened = []
    seeds = iter(range(500, 1000))

    def make(on=None, folder=tmp_path / "cache", id="app", **options):
        ids = SeededIds(next(seeds))
        opened.append(StateStore(on or store, folder, id, clock=clock, ids=ids, **options))
        return opened[-1]

    yield make
    for one in opened:
        one.close()
