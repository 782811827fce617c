"""Views of several small partitions, read together."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clog.cleaner import Cleaner
from clog.storage import Log, ManualClock
from clog.storage.read.table import plan_latest, plan_table, small_view_batches, table_batches
from clog.storage.store import open_store
from clog_testing.counting import CountingStore
from clog_testing.model import rows_in

CONFIG = {"min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0"}
RECORDS = st.tuples(st.integers(0, 2), st.sampled_from("abcd"), st.sampled_from([None, "1", "2"]))


def log_of(steps):
    """A log of three partitions; a step is an append, None a cleaning."""
    log = Log.create("memory://small-views", partitions=3, config=CONFIG, clock=ManualClock())
    for records in steps:
        if records is None:
            log.roll()
            Cleaner(log).run_once(force=True)
        else:
            parts = [p for p, _, _ in records]
            log.append([{"key": k, "value": v} for _, k, v in records], partition=parts)
    return log


@given(st.lists(st.none() | st.lists(RECORDS, min_size=1, max_size=8), max_size=6))
def test_together_they_are_what_each_is_alone(steps):
    """Clean and dirty parts, deleted keys, one key in several partitions: the same records, of the
    table and of what changed since an offset.
    """
    from fsspec.implementations.memory import MemoryFileSystem

    MemoryFileSystem.store.clear()
    log = log_of(steps)
    store, manifest = log.handle.store, log.handle.manifest()
    for plans in (
        [plan_table(manifest, p) for p in range(3)],
        [plan_latest(manifest, p, 0, url=store.url) for p in range(3)],
    ):
        alone = [row for plan in plans for row in rows_in(table_batches(store, plan))]
        together = rows_in(small_view_batches(store, plans))
        assert sorted(together, key=repr) == sorted(alone, key=repr)


def test_an_object_is_read_once_for_all_partitions(tmp_path):
    """A fresh one holds rows of all of them."""
    store = CountingStore(open_store(str(tmp_path / "orders")))
    log = Log.create(store, partitions=50)
    for _ in range(3):
        log.append([{"key": str(i), "value": "v"} for i in range(200)])
    plans = [plan_table(log.handle.manifest(), p) for p in range(50)]
    with store.count() as requests:
        batches = list(small_view_batches(log.handle.store, plans, columns=["value"]))
    assert sum(batch.num_rows for batch in batches) == 200
    assert {name for batch in batches for name in batch.schema.names} == {"value"}
    assert requests == {"get": 3}


def test_a_slice_is_not_read_so(tmp_path):
    """The keys of what follows it decide, and are not among its rows."""
    log = Log.create(str(tmp_path / "orders"), partitions=1)
    log.append([{"key": "a", "value": "1"}])
    plan = plan_table(log.handle.manifest(), 0)
    with pytest.raises(AssertionError):
        list(small_view_batches(log.handle.store, [replace(plan, later=plan.dirty)]))
