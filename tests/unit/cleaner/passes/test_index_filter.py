"""Passes that leave chunks unread by their key indexes."""

import pyarrow as pa
import pytest
import xxhash

from clog.cleaner import Cleaner
from clog.cleaner.passes import judge, run_pass
from clog.cleaner.passes.offset_map import SLOT_BYTES
from clog.storage.format import documents
from clog.storage.format.chunks import Chunk, ObjectRef
from clog.storage.objects import reader, writer
from clog_testing.counting import CountingStore
from clog_testing.invariants import check_log
from clog_testing.model import rows_in

BLOCKS, KEYS = 8, 150


@pytest.fixture
def large(monkeypatch):
    """Every object counts as one that is too large to be fetched whole, so it gets an index."""
    for module in (writer, reader):
        monkeypatch.setattr(module, "WHOLE_BYTES", 0)


def key(i):
    """Of 64 characters, which do not compress to less than half."""
    return xxhash.xxh3_128_hexdigest(b"%d" % i) + xxhash.xxh3_128_hexdigest(b"-%d" % i)


def put(log, numbers, text):
    log.append([{"key": key(i), "value": text} for i in numbers])


def clean_part(make_log, open_log, store):
    """A log of `BLOCKS` clean objects of neighbouring keys, on a store that counts."""
    sizes = {"segment_bytes": 14_000, "object_bytes": 14_000}
    log = make_log(**sizes, min_cleanable_dirty_ratio=0, dead_rows_delay_ms=0)
    for block in range(BLOCKS):
        first = block * KEYS  # Twice, so that each object is rewritten, and gets an index.
        put(log, [first, *range(first, first + KEYS)], "v" * 20)
    log.roll()
    Cleaner(log).run_once(force=True)
    counting = CountingStore(store)
    return open_log(counting), counting


def latest(log):
    return {row[2].key: row[2].value for row in rows_in(log.read())}


def cleaned(log, counting, **settings):
    """The one result of a round, which changes nothing of what a table shows."""
    before = log.table().to_arrow().sort_by("key").select(["key", "value"])
    log.roll()
    counting.reset()
    (result,) = Cleaner(log, **settings).run_once(force=True)
    check_log(counting.inner, every_version=False)
    assert log.table().to_arrow().sort_by("key").select(["key", "value"]) == before
    assert sum(batch.num_rows for batch in log.read()) == before.num_rows
    return result.stats


def indexed(log):
    return sum(c.object.index_bytes > 0 for _, c in log.handle.manifest().chunks())


@pytest.mark.usefixtures("large")
def test_neighbouring_dirty_keys_cost_what_they_touch(make_log, open_log, store, monkeypatch):
    """Proportional work: of eight objects, of which one holds the dirty keys, the others' keys
    are not read; fewer bytes are, and the outcome is that of a pass without indexes."""
    log, counting = clean_part(make_log, open_log, store)
    objects = indexed(log)
    assert objects >= BLOCKS - 1
    put(log, range(5 * KEYS, 5 * KEYS + 40), "new")
    stats = cleaned(log, counting)
    assert objects - 2 <= stats.chunks_untouched <= objects - 1
    assert stats.records_superseded == 40
    with_index = stats.bytes_read

    monkeypatch.setattr(judge, "KEYS_MAX", -1)
    put(log, range(5 * KEYS, 5 * KEYS + 40), "new")
    stats = cleaned(log, counting)
    assert stats.chunks_untouched == 0
    assert with_index < 0.5 * stats.bytes_read


@pytest.mark.usefixtures("large")
def test_spread_dirty_keys_ask_a_few_indexes_only(make_log, open_log, store):
    """Every object holds one: after five answers in vain no index is fetched any more."""
    log, counting = clean_part(make_log, open_log, store)
    put(log, range(7, BLOCKS * KEYS, KEYS // 2), "new")
    requested = []
    get = counting.get
    counting.get = lambda path, *at: requested.append((path, *at)) or get(path, *at)
    chunks = [c for _, c in log.handle.manifest().chunks()]
    folder = documents.folder_of(log.handle.standing.log_id)
    starts = {
        (f"{folder}/{c.object.path}", c.object.tail[0]) for c in chunks if c.object.index_bytes
    }
    stats = cleaned(log, counting)
    assert stats.chunks_untouched == 0
    assert sum(r[:2] in starts for r in requested) == judge.IN_VAIN_MAX + 1


@pytest.mark.usefixtures("large")
def test_several_maps_leave_alone_what_none_touches(make_log, open_log, store, monkeypatch):
    """S20: each map asks with its own keys, and what an earlier one found dead is not forgotten."""
    monkeypatch.setattr(run_pass, "MAPS_MAX", 4)
    log, counting = clean_part(make_log, open_log, store)
    for block in (1, 4, 6):
        put(log, range(block * KEYS, block * KEYS + 30), "new")
    stats = cleaned(log, counting, dedupe_buffer_bytes=40 * SLOT_BYTES)
    assert stats.maps > 1
    assert stats.records_superseded == 90
    assert stats.chunks_untouched > BLOCKS


@pytest.mark.usefixtures("large")
def test_tombstones_are_looked_at(make_log, open_log, store, clock):
    """S23: a chunk with a tombstone that may go is read, whatever its index says."""
    log, _ = clean_part(make_log, open_log, store)
    put(log, [3], None)
    log.roll()
    Cleaner(log).run_once(force=True)
    clock.advance(2 * 86_400_000)
    put(log, [BLOCKS * KEYS], "new")
    log.roll()
    Cleaner(log).run_once(force=True)
    assert key(3).encode() not in latest(log)


def test_without_indexes_all_keys_are_read(make_log, open_log, store):
    """Small objects have none."""
    log, counting = clean_part(make_log, open_log, store)
    assert indexed(log) == 0
    put(log, range(40), "new")
    stats = cleaned(log, counting)
    assert (stats.chunks_untouched, stats.records_superseded) == (0, 40)


@pytest.mark.parametrize("batches", [500, 2000])
def test_noting_batches_costs_what_they_are(batches):
    """However many batches of one row are noted, none is looked at again for the next one."""
    looked = []

    class Counted(list):
        def __iter__(self):
            for item in super().__iter__():
                looked.append(1)
                yield item

    ref = ObjectRef("data/x", 10, 1, "", 1, 0, dense=True, index_bytes=1)
    noted = judge.IndexFilter(7, [Chunk(ref, 0, 1, 0, 1, 1, 0, 0, 0, 0)])
    noted._fresh = Counted()
    for i in range(batches):
        noted.note(pa.array([b"%d" % i]))
    assert len(looked) <= batches


def test_noting_many_keys_merges_them_seldom(monkeypatch):
    """Once for each `KEYS_MAX` rows that were noted, however few distinct keys they are of."""
    monkeypatch.setattr(judge, "KEYS_MAX", 100)
    merges = []
    original = judge.distinct
    monkeypatch.setattr(judge, "distinct", lambda h: merges.append(len(h)) or original(h))
    ref = ObjectRef("data/x", 10, 1, "", 1, 0, dense=True, index_bytes=1)
    noted = judge.IndexFilter(7, [Chunk(ref, 0, 1, 0, 1, 1, 0, 0, 0, 0)])
    keys = pa.array([b"%d" % i for i in range(10)])
    for _ in range(100):
        noted.note(keys)
    assert len(merges) == 9
    assert max(merges) <= 100 + 10 + 10
