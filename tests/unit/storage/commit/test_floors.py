"""An append whose objects a sweep may have deleted commits nothing (COMMIT.md, K2 and §5)."""

import numpy as np
import pytest

from clog.storage import CommitConflictError
from clog.storage.format.commits import Edit
from clog.storage.objects.records import to_records


def put(log, value):
    return log.append([{"key": "k", "value": value}])


def objects_of(log):
    """The objects of an append that has not been committed."""
    writer = log.object_writer()
    records, _ = to_records([{"key": "a", "value": "1"}], now_us=0)
    writer.add(records, np.zeros(1, np.int32))
    return writer.finish()


def raise_floor(log):
    """Raises the orphan floor to the newest version."""
    log.handle.commit(lambda tip, _: Edit(orphan_floor=tip.version), operation="floor")


def test_a_writer_that_slept_over_the_sweep_is_refused(make_log, open_log):
    """K2: objects with a stamp below the floor may be gone."""
    log, sleeper = make_log(), open_log()
    objects = objects_of(sleeper)
    put(log, "1")
    raise_floor(log)
    with pytest.raises(CommitConflictError, match=r"dates from version 0 .*floor 1.*append again"):
        sleeper.append_objects(objects)
    assert log.end_offsets() == {0: 1}


def test_a_writer_that_began_at_the_floor_is_not(make_log, open_log):
    """K2: the sweep deletes only what has a stamp below the floor (W3)."""
    log = make_log()
    put(log, "1")
    slow = open_log()
    objects = objects_of(slow)
    raise_floor(log)
    assert log.handle.tip.head.orphan_floor == objects[0].ref.stamp == 1
    assert slow.append_objects(objects).offsets == {0: (1, 2)}


def test_an_idle_handle_stamps_with_a_recent_version(make_log, open_log, clock):
    """K1: after minutes without a look an append looks first, or K2 would refuse its objects."""
    log, idle = make_log(), open_log()
    put(log, "1")
    raise_floor(log)
    clock.advance(86_400_000)
    assert put(idle, "2").offsets == {0: (1, 2)}
