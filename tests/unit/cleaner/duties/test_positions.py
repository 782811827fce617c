"""Documents of positions are deleted once no head that may still be in use needs them (H-T6)."""

import pytest

from clog.cleaner.duties import Work
from clog.cleaner.duties.sweep import sweep_orphans
from clog.storage import Log
from clog.storage.diagnostics.verify import verify_log
from clog.storage.env import SeededIds
from clog.storage.format import documents as paths
from clog_testing.crash import inside

DAY_MS = 86_400_000
OFFSETS = {p: p * 1_000_000 for p in range(200)}


@pytest.fixture
def store(clocked_store):
    return clocked_store


def documents(store):
    return {found.path for found in inside(store).list(paths.PAGES)}


def test_the_newest_stays_and_those_before_it_go(store, clock):
    """A takeover keeps it too; a holder that a head of the last day shows can still read
    its own.
    """
    log = Log.create(store, 200, clock=clock, ids=SeededIds(1))
    made = []
    for offset in range(3):
        with log.transaction("job") as t:
            t.positions(log, {**OFFSETS, 0: offset})
        made += documents(store) - set(made)
        clock.advance(2 * DAY_MS)
    assert len(made) == 3
    other = Log.open(store, clock=clock, ids=SeededIds(2))
    other.transaction("job").abort()
    swept = set()
    for _ in range(3):
        swept |= set(sweep_orphans(Work(other.handle, clock.now_ms())).objects)
        clock.advance(2 * DAY_MS)
    assert swept == set(made[:2])
    assert documents(store) == {made[2]}
    assert other.positions("job") == {log.id: {**OFFSETS, 0: 2}}
    assert verify_log(store).findings == ()
