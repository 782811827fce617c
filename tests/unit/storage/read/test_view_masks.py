"""What a view that names the log's objects must leave out."""

import numpy as np
import pyarrow as pa
import pytest

from clog.cleaner import Cleaner
from clog.storage import Log, VersionExpiredError
from clog.storage.publications.source import view_masks
from clog_testing.counting import CountingStore
from clog_testing.crash import expire


def put(log, partition=None, **values):
    rows = [{"key": key, "value": value} for key, value in values.items()]
    log.append(rows, partition=partition)


def masks_of(log, version=None):
    """In the order in which objects were made: which rows are hidden, as text."""
    handle = log.handle
    tip = handle.refresh()
    manifest = handle.manifest_at(tip.version if version is None else version)
    found = view_masks(handle.store, manifest, tip.head.partitions.start)
    by_path = {mask.object.path: mask for mask in found}
    return ["".join("h" if bit else "." for bit in by_path[p].hidden) for p in sorted(by_path)]


def test_an_empty_log_has_none(make_log):
    """Nor is anything read."""
    assert masks_of(make_log()) == []


def test_what_a_later_record_superseded_is_hidden(make_log):
    """Tombstones are hidden too, and an empty value is not one (S4)."""
    log = make_log()
    put(log, a="1", b="2", c="3", d="4")
    put(log, a="", b=None)
    assert masks_of(log) == ["hh..", ".h"]
    assert masks_of(log, version=1) == ["...."]


def test_one_key_in_two_partitions_is_two_keys(make_log):
    """Their rows are in one object, and the mask covers all of it."""
    log = make_log(partitions=2)
    log.append([{"key": "a", "value": str(i)} for i in range(4)], partition=[0, 1, 0, 1])
    assert masks_of(log) == ["h.h."]


def test_rows_without_key_are_hidden(make_log):
    """They are in no table."""
    log = make_log(config={"cleanup.policy": "delete"})
    log.append([{"key": None, "value": "1"}, {"key": "a", "value": "2"}])
    assert masks_of(log) == ["h."]


def test_what_was_deleted_is_hidden_at_every_version(make_log):
    """S36: an old version never shows what was deleted, whichever others have rows in the
    object.
    """
    log = make_log(partitions=2)
    put(log, 0, a="1", b="2")
    log.append([{"key": "c", "value": "3"}, {"key": "d", "value": "4"}], partition=[0, 1])
    log.delete_records({0: 3})
    assert masks_of(log) == ["hh", "h."]
    assert masks_of(log, version=2) == ["hh", "h."]


def test_dead_rows_are_hidden(make_log, clock):
    """Gaps of rewritten objects are skipped too: rows are found by their offsets."""
    log = make_log(config={"min.cleanable.dirty.ratio": "0", "segment.ms": "1"})
    put(log, **{f"k{i:03}": "v" for i in range(400)})
    put(log, k001="w", x="y")
    clock.advance(10)
    log.roll()
    Cleaner(log).run_once(force=True)
    put(log, k002="w")
    shown = sum(mask.count(".") for mask in masks_of(log))
    assert shown == log.table().to_arrow().num_rows == 401


def test_a_typed_log_has_them_too(store, clock):
    """Keys are compared by their values, whatever their width."""
    schema = {"key": pa.int32(), "value": pa.struct([("n", pa.int32())])}
    log = Log.create(store, 1, schema=schema, clock=clock)
    log.append([{"key": 1, "value": {"n": None}}, {"key": 2, "value": {"n": 1}}])
    log.append([{"key": 2, "value": None}])
    assert masks_of(log) == [".h", "h"]


def test_an_object_that_is_gone_is_an_expired_version(make_log, store):
    """Whether its keys are read, or only its offsets."""
    log = make_log(config={"min.cleanable.dirty.ratio": "0"})
    put(log, a="1", b="2")
    put(log, a="2")
    log.roll()
    Cleaner(log).run_once(force=True)
    manifest = log.handle.manifest()
    expire(log)
    with pytest.raises(VersionExpiredError):
        list(view_masks(log.handle.store, manifest, [0]))


def test_masks_of_the_log_are_the_answer(make_log, store):
    """If all chunks have them nothing is read but bitmaps that are files; later records are
    compared by their keys.
    """
    log = make_log(partitions=2)
    log.alter({"table.masks": "true"})
    put(log, 0, a="1", b="2")
    put(log, 0, a="2", c=None)
    expected = masks_of(log)
    Cleaner(log).run_once()
    counting = CountingStore(log.handle.store)
    log.handle.refresh()
    found = list(view_masks(counting, log.handle.manifest(), [0, 0]))
    assert sorted(mask.hidden.tolist() for mask in found) == [[False, True], [True, False]]
    assert not counting.counts
    assert masks_of(log) == expected == ["h.", ".h"]
    put(log, 0, b="3")
    assert masks_of(log) == ["hh", ".h", "."]
    log.delete_records({0: 3})
    assert masks_of(log) == ["hh", "hh", "."]


def test_a_mask_counts_what_is_shown(make_log):
    """Of an object that shows nothing, none."""
    log = make_log()
    put(log, a="1")
    put(log, a=None)
    handle = log.handle
    handle.refresh()
    found = list(view_masks(handle.store, handle.manifest(), [0]))
    assert [mask.shown for mask in found] == [0, 0]
    assert all(mask.hidden.dtype == np.bool_ for mask in found)
