"""The changelog slice: the latest record of each key changed since a position."""

import pytest

from clog.storage import OffsetOutOfRangeError
from clog.storage.read.table import latest_batches
from clog_testing.counting import CountingStore
from clog_testing.crash import inside
from clog_testing.model import rows_in


def slice_of(log, store, starts, **options):
    manifest = log.handle.manifest()
    return [
        (row[1], row[2].key, row[2].value)
        for row in rows_in(latest_batches(inside(store), manifest, starts, **options))
    ]


def test_tombstones_are_told(make_log, store):
    """A key that was deleted since is a change, one that did not change is none."""
    log = make_log()
    log.append([{"key": k, "value": "1"} for k in "abc"])
    log.append([{"key": "a", "value": "2"}, {"key": "b", "value": None}])
    log.append([{"key": "a", "value": "3"}])
    log.segments(0)
    assert slice_of(log, store, {0: 3}) == [(4, b"b", None), (5, b"a", b"3")]
    assert slice_of(log, store, {0: 6}) == []
    assert len(slice_of(log, store, {0: 0})) == 3


def test_records_without_a_key_are_no_changes(make_log, store):
    log = make_log(config={"cleanup.policy": "delete"})
    log.append([{"key": None, "value": "1"}, {"key": "a", "value": "1"}])
    log.segments(0)
    assert slice_of(log, store, {0: 0}) == [(1, b"a", b"1")]


def test_superseded_objects_are_read_for_their_keys_only(make_log, store):
    """The key's earlier value costs its key, not its value: large objects are not read again."""
    log = make_log(config={"compression.type": "none"})
    big = 3 << 20
    for i in range(4):
        log.append([{"key": "k", "value": bytes([i]) * 1_000_000} for _ in range(3)])
    log.segments(0)
    counting = CountingStore(store)
    ((offset, _, value),) = slice_of(log, counting, {0: 0})
    assert (offset, value[:1]) == (11, b"\x03")
    assert counting.bytes_in < 1.2 * big


def test_a_position_that_is_none(make_log, store):
    """S38, before anything is read."""
    log = make_log(partitions=2)
    log.append([{"key": "a", "value": "1"}], partition=0)
    log.segments(0)
    with pytest.raises(OffsetOutOfRangeError, match="offset 2 of partition 0"):
        slice_of(log, store, {1: 0, 0: 2})


def test_changes_end_where_their_offsets_say(make_log, open_log, monkeypatch):
    """Without gap or overlap, even if another thread refreshed the log's handle meanwhile."""
    log = make_log()
    log.append([{"key": "a", "value": "1"}])
    manifest = log.handle.manifest

    def after_a_refresh():
        open_log().append([{"key": "b", "value": "2"}])
        log.handle.refresh()
        return manifest()

    monkeypatch.setattr(log.handle, "manifest", after_a_refresh)
    changes = log.latest(0)
    assert changes.offsets == {0: changes.to_arrow().column("offset")[-1].as_py() + 1}
