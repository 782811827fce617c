"""A disk without space for a commit: files that were written for it, and will never be committed,
are deleted.
"""

import pytest

from clog.storage import Log, StateStore
from clog.storage.store.contract import StoreFullError
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore

NO_COMMITS = Fault(FaultKind.FULL, "create", times=99)


@pytest.fixture
def disk(store):
    return FaultyStore(store)


@pytest.fixture
def log(disk):
    """A log with a record, whose objects have 1 KiB."""
    log = Log.create(disk, 1, {"object.bytes": "1024"})
    log.append([{"key": "a", "value": "1"}])
    return log


ROWS = [{"key": f"{n}", "value": "x" * 600} for n in range(4)]


def objects_of(log):
    return [found.path for found in log.handle.store.list("data/")]


def check_rest(log, count):
    """Only committed files are left, and the handle continues."""
    assert len(objects_of(log)) == 1
    disk = log.handle.standing.root
    disk.plan = Faults()
    log.append(ROWS)
    assert sum(batch.num_rows for batch in Log.open(disk).read()) == count


@pytest.mark.parametrize("producer", [None, ("p", 1)])
def test_an_append_that_cannot_be_committed_leaves_nothing(disk, log, producer):
    """S68: left there, its objects would occupy the space that deleteRecords needs, for a day."""
    disk.plan = Faults(NO_COMMITS)
    with pytest.raises(StoreFullError):
        log.append(ROWS, producer=producer)
    check_rest(log, 5)


def test_an_append_of_several_objects_leaves_nothing_of_those_before(disk, log):
    """Neither does one whose third object finds no space."""
    disk.plan = Faults(Fault(FaultKind.FULL, "put", "*/data/*", nth=3, times=99))
    with pytest.raises(StoreFullError):
        log.append(ROWS)
    check_rest(log, 5)


def test_an_append_to_a_visible_transaction_leaves_nothing(disk, log):
    """And the transaction continues."""
    with log.transaction("job", visible=True) as begun:
        begun.append(ROWS[:1])
        disk.plan = Faults(NO_COMMITS)
        with pytest.raises(StoreFullError):
            begun.append(ROWS[1:])
        assert len(objects_of(log)) == 2
        disk.plan = Faults()
    assert sum(batch.num_rows for batch in log.read(isolation="read_committed")) == 2


def test_a_transaction_that_is_aborted_leaves_nothing(disk, log):
    """An append that may be committed again keeps its objects until then."""
    for end in ("commit", "abort"):
        begun = log.transaction("job")
        begun.append(ROWS)
        disk.plan = Faults(NO_COMMITS)
        with pytest.raises(StoreFullError):
            begun.commit()
        disk.plan = Faults()
        getattr(begun, end)()
        assert sum(batch.num_rows for batch in log.read()) == 5
    assert set(objects_of(log)) == set(log.handle.manifest().files())


def test_a_state_store_that_finds_no_room_leaves_nothing(disk, log, tmp_path):
    """Its commit may be repeated, with its own objects."""
    with StateStore(disk, tmp_path, "app") as state:
        state.put("k", "1")
        disk.plan = Faults(NO_COMMITS)
        with pytest.raises(StoreFullError):
            state.commit()
        assert len(objects_of(log)) == 1
        disk.plan = Faults()
        state.commit()
        assert state.get("k") == b"1"
