"""Verification beyond the newest version's objects: replaced ones that older versions need, and
keys that no pass leaves twice.
"""

import numpy as np
import pytest

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties.sweep import sweep_released
from clog.storage.diagnostics import verify
from clog.storage.diagnostics.verify import Check, verify_log
from clog.storage.env import SeededIds
from clog.storage.format import chunks
from clog.storage.format.chunks import DeadMark, write_dead_rows
from clog.storage.format.commits import Edit
from clog_testing.crash import inside

DAY_MS = 24 * 3_600_000


@pytest.fixture
def log(make_log):
    """Two partitions, each with a key twice, in sealed segments."""
    log = make_log(partitions=2)
    for value in ("1", "2"):
        log.append([{"key": "a", "value": value}, {"key": "b", "value": value}], partition=[0, 1])
        log.roll()
    return log


def findings(store):
    return [(found.check, found.where) for found in verify_log(store).findings]


def flipped(data):
    return data[:100] + bytes([data[100] ^ 1]) + data[101:]


def test_replaced_objects_are_verified_while_a_version_needs_them(log, store, clock):
    """S27: a reader that planned at an older version reads them until their delay is over; not
    longer.
    """
    Cleaner(log).run_once(force=True)
    path, *others = [released.path for released in log.handle.manifest().released]
    assert others
    assert findings(store) == []
    data = inside(store).get(path)
    for damaged in (flipped(data), data + b"x", data[:-1]):
        inside(store).put(path, damaged)
        assert findings(store) == [(Check.OBJECT, path)]
    inside(store).delete(path)
    assert findings(store) == [(Check.OBJECT, path)]
    assert verify_log(store, quick=True).findings == ()
    inside(store).put(path, data)
    clock.advance(2 * DAY_MS)
    sweep_released(Work(log.handle, clock.now_ms()))
    assert path not in {found.path for found in inside(store).list("data/")}
    assert findings(store) == []


def test_replaced_bitmaps_are_verified_while_a_version_needs_them(log, store, monkeypatch):
    """FORMAT.md §5.4: a later bitmap replaces one that an older version needs."""
    monkeypatch.setattr(chunks, "INLINE_BYTES_MAX", 0)
    log.append([{"key": k, "value": "3"} for k in "cde"], partition=0)
    log.roll()
    chunk = next(c for _, c in log.handle.manifest().chunks() if c.rows == 3)
    given = {"since_ms": 0, "stamp": 0, "new_id": SeededIds(9).new_id}
    for rows in ([True, False, False], [True, True, False]):
        dead = write_dead_rows(inside(store), np.array(rows), **given)
        mark = DeadMark(0, *chunk.identity, dead)
        log.handle.commit(lambda *_, mark=mark: Edit(dead=(mark,)), operation="clean")
    (replaced,) = (r.path for r in log.handle.manifest().released)
    assert findings(store) == []
    inside(store).put(replaced, b"damaged")
    assert findings(store) == [(Check.OBJECT, replaced)]


@pytest.mark.parametrize("rows_max", [1 << 24, 1])
def test_a_key_stands_once_below_the_first_dirty_offset(log, store, monkeypatch, rows_max):
    """S20, S21: what a pass claims to have cleaned is clean; in one round and in several."""
    monkeypatch.setattr(verify, "ROWS_MAX", rows_max)
    assert findings(store) == []
    log.handle.commit(lambda *_: Edit(first_dirty={1: 2}), operation="clean")
    (found,) = verify_log(store).findings
    assert (found.check, found.where) == (Check.KEYS, "partition 1")
    assert "dirty offset 2, at offsets 0, 1; such keys: 1" in found.message


def test_keys_of_one_hash_are_compared(make_log, store, monkeypatch):
    """S19: no result depends on the seed of a hash."""
    log = make_log()
    log.append([{"key": k, "value": "1"} for k in "abc"])
    log.roll()
    Cleaner(log).run_once(force=True)
    assert log.handle.manifest().first_dirty == (3,)
    asked = []

    def one_hash(keys, *, seed):
        asked.append(len(keys))
        return np.zeros(len(keys), np.uint64)

    monkeypatch.setattr(verify, "index_hashes", one_hash)
    assert findings(store) == []
    assert asked == [3, 3]
