"""Point lookups: the rows of few keys, by the key indexes of the objects."""

import pytest

from clog.cleaner import Cleaner
from clog.storage import CorruptionError, VersionExpiredError
from clog.storage.format import chunks
from clog.storage.keys.key_index import KeyIndex
from clog.storage.objects import reader, writer
from clog.storage.read import lookup, scan
from clog.storage.read import table as table_plan
from clog.storage.read.lookup import pieces_of_keys
from clog.storage.read.scan import READ_SCHEMA, KeyIndexCache, plan_range
from clog.storage.read.table import KnownPieces, plan_table
from clog_testing.counting import CountingStore
from clog_testing.crash import expire, inside

KEYS = 600


@pytest.fixture
def large(monkeypatch):
    """Every object counts as too large to be fetched whole; row groups are small."""
    for module in (writer, reader, lookup, scan):
        monkeypatch.setattr(module, "WHOLE_BYTES", 0)
    monkeypatch.setattr(writer, "GROUP_ROWS", 50)


def key(i):
    return b"key-%d" % i


def put(log, numbers, value):
    log.append([{"key": key(i), "value": value and b"%s-%d" % (value, i)} for i in numbers])


def history(make_log, counting, **options):
    """A clean part that was rewritten, dirty objects after it, tombstones, an absent key."""
    log = make_log(partitions=2, config={"min.compaction.lag.ms": "0"}, on=counting, **options)
    put(log, range(KEYS), b"old")
    put(log, range(0, KEYS, 3), b"mid")
    log.roll()
    Cleaner(log).run_once(force=True)
    put(log, range(100, 200), b"new")
    put(log, range(150, 160), None)
    put(log, range(155, 160), b"again")
    return log


@pytest.fixture
def counting(store):
    return CountingStore(store)


def test_a_lookup_finds_what_the_table_holds(make_log, counting, large):
    """Of every key, whatever wrote its object: cleaned, fresh, tombstone, absent."""
    log = history(make_log, counting)
    indexed = [c.object.index_bytes > 0 for _, c in log.handle.manifest().chunks()]
    assert any(indexed)
    assert not all(indexed)
    table = log.table()
    everything = {row["key"]: row["value"] for row in table.to_arrow().to_pylist()}
    asked = [key(i) for i in range(KEYS + 20)]
    assert len(everything) == KEYS - 5
    assert table.get_many(asked) == everything
    assert {k: v for k in asked[90:210] if (v := table.get(k)) is not None} == {
        k: v for k, v in everything.items() if k in asked[90:210]
    }
    assert table.of_keys([]).num_rows == 0
    rows = table.of_keys(["key-150", "key-156", "key-3"])
    assert rows.schema == READ_SCHEMA
    assert sorted(rows.column("value").to_pylist()) == [b"again-156", b"mid-3"]


def test_small_objects_are_looked_up_too(make_log, counting):
    """They have no index, and are fetched whole."""
    log = history(make_log, counting)
    assert log.table().get("key-155") == b"again-155"
    assert log.table().get("key-151") is None


@pytest.mark.parametrize("number", [3, 150, 156, 199, KEYS - 1])
def test_a_warm_lookup_takes_at_most_two_requests(make_log, counting, large, number):
    """One to see that there is no newer version, one for the rows; for a table that is kept, one.
    Whatever object the key is in, cleaned or fresh.
    """
    log = history(make_log, counting)
    everything = {row["key"]: row["value"] for row in log.table().to_arrow().to_pylist()}
    log.table().get("nobody")  # warms up
    with counting.count() as fresh:
        found = log.table().get(key(number))
    table = log.table()
    with counting.count() as held:
        assert table.get(key(number)) == found == everything.get(key(number))
    assert fresh.total() <= 2
    assert held.total() <= 1
    with counting.count() as nowhere:
        assert table.get("nobody") is None
    assert nowhere.total() == 0


def test_warming_up_costs_one_request_an_object_with_an_index(make_log, counting, large):
    """And after a commit only what is new; without indexes the keys are read, once."""
    log = history(make_log, counting)
    manifest = log.handle.manifest()
    objects = {c.object for _, c in manifest.chunks()}
    with counting.count() as cold:
        log.table().get("nobody")
    without = sum(obj.index_bytes == 0 for obj in objects)
    assert cold.total() == 1 + len(objects) + without
    put(log, [1], b"newest")
    with counting.count() as warmer:
        assert log.table().get("key-1") == b"newest-1"
    assert warmer.total() == 1 + 2 + 1  # version; footer and keys; the row


def test_only_the_rows_that_may_hold_a_key_are_read(make_log, store, large):
    """A task with a key index reads no keys elsewhere: one row group of twelve."""
    log = history(make_log, CountingStore(store))
    plan = plan_table(log.handle.manifest(), 0)
    pieces = [p for p in plan.clean if p.object.index_bytes]
    rows = log.table(0).to_arrow().column("key").to_pylist()
    last = next(k for k in reversed(rows) if k in {key(i) for i in range(200, KEYS)})
    counting = CountingStore(inside(store))
    (part,) = pieces_of_keys(counting, pieces, [last], plan.seed)
    assert part.rows <= 50 < sum(p.rows for p in pieces)
    assert counting.counts.total() == len(pieces)


def test_a_chunk_of_a_shared_object_is_told_apart(make_log, counting, large):
    """A fresh object contains all partitions; a key of one costs no reading for the others."""
    log = make_log(partitions=8, on=counting)
    put(log, range(200), b"v")
    table = log.table()
    table.get("nobody")
    for i in range(0, 200, 20):
        with counting.count() as held:
            assert table.get(key(i)) == b"v-%d" % i
        assert held.total() == 1


def test_memory_for_indexes_is_bounded(make_log, counting, large):
    """The least recently used ones go; what is found does not depend on it."""
    log = history(make_log, counting)
    manifest = log.handle.manifest()
    pieces = [p for n in (0, 1) for p in plan_range(manifest, n, 0, 1 << 60)]
    indexes = KeyIndexCache(inside(counting), seed=manifest.head.log.key_seed, cache_bytes=3_500)
    for _ in range(2):
        indexes.load(pieces)
        assert indexes.cached_bytes <= 3_500
    with counting.count() as again:
        indexes.load(pieces)
    assert again.total() > 0


def test_a_damaged_index_is_corruption(make_log, counting, store, large):
    """The log reports it, and never answers wrongly; reading without it continues."""
    log = history(make_log, counting)
    ref = next(c.object for _, c in log.handle.manifest().chunks() if c.object.index_bytes)
    data = bytearray(inside(store).get(ref.path))
    data[ref.tail[0] + 20] ^= 1
    inside(store).put(ref.path, bytes(data))
    with pytest.raises(CorruptionError, match="key index"):
        log.table().get("key-1")
    inside(store).put(ref.path, bytes(data[:-9]))
    with pytest.raises(CorruptionError, match=f"{len(data) - 9} bytes, expected {len(data)}"):
        log.table().get("key-1")


def test_a_version_that_expired(make_log, counting):
    """As with every read of a table."""
    log = history(make_log, counting)
    table = log.table()
    expire(log)
    with pytest.raises(VersionExpiredError, match="read a newer version"):
        table.get("key-1")


def test_several_partitions_with_one_key(make_log, counting):
    """The value with the latest timestamp, as in a `StateTable`."""
    log = make_log(partitions=2, on=counting)
    log.append([{"key": "k", "value": "late", "timestamp": 2_000}], partition=0)
    log.append([{"key": "k", "value": "early", "timestamp": 1_000}], partition=1)
    assert log.table().get("k") == b"late"
    assert log.table(1).get("k") == b"early"


def test_changes_as_a_table(make_log, counting):
    """`Log.latest`: tombstones included, and where it continues."""
    log = make_log(on=counting)
    put(log, range(5), b"1")
    before = log.table()
    put(log, [1, 2], b"2")
    put(log, [2], None)
    changes = log.latest(before.offsets)
    rows = {row["key"]: row["value"] for row in changes.to_arrow().to_pylist()}
    assert rows == {key(1): b"2-1", key(2): None}
    assert changes.offsets == log.end_offsets()
    assert changes.version == log.version
    assert changes.get(key(1)) == b"2-1"
    assert changes.get(key(2)) is None
    assert changes.of_keys([key(2)]).column("value").to_pylist() == [None]
    assert log.latest(changes.offsets).to_arrow().num_rows == 0


def test_many_keys_of_one_object_are_read_together(make_log, counting, large):
    """One request for each object that contains any, not one per key."""
    log = history(make_log, counting)
    table = log.table()
    table.get("nobody")
    objects = {c.object.path for _, c in log.handle.manifest().chunks()}
    with counting.count() as held:
        assert len(table.get_many([key(i) for i in range(0, KEYS, 7)])) > 80
    assert held.total() <= 2 * len(objects)  # an object holds a chunk of each partition


def test_dead_rows_cost_no_more_when_warm(make_log, counting, large, monkeypatch):
    """A bitmap's file is kept in memory as an index is; a dead row is not found."""
    monkeypatch.setattr(chunks, "INLINE_BYTES_MAX", 0)
    log = make_log(config={"object.bytes": "20000"}, on=counting)
    log.append([{"key": key(i), "value": "old"} for i in (0, *range(KEYS))])
    log.roll()
    Cleaner(log).run_once(force=True)
    put(log, range(150, 160), b"new")
    put(log, range(155, 160), None)
    log.roll()
    Cleaner(log).run_once(force=True)
    marked = [c for _, c in log.handle.manifest().chunks() if c.dead is not None]
    assert marked
    everything = {row["key"]: row["value"] for row in log.table().to_arrow().to_pylist()}
    table = log.table()
    assert table.get_many([key(i) for i in range(KEYS)]) == everything
    for i in (100, 152, 400):
        with counting.count() as held:
            assert table.get(key(i)) == everything[key(i)]
        assert held.total() == 1


def uncoalesced(make_log, objects, on=None):
    """A log of many objects of one or two records each, which were not coalesced."""
    log = make_log(partitions=1, on=on)
    for i in range(objects):
        records = [{"key": key(i % 50), "value": b"%d" % i}, {"key": b"once-%d" % i, "value": b"1"}]
        log.append(records[: 1 + i % 2])
    log.append([{"key": key(7), "value": None}])
    return log


def counter(monkeypatch, owner, name):
    """Counts the calls of a function, which are passed on."""
    calls, made = [], getattr(owner, name)

    def counted(*args, **kwargs):
        calls.append(name)
        return made(*args, **kwargs)

    monkeypatch.setattr(owner, name, counted)
    return calls


def test_a_warm_lookup_visits_no_object_but_that_of_the_key(make_log, counting, monkeypatch):
    """Of 200 objects: the key is hashed once, the indexes are searched in runs, the version is
    planned once, and one request reads the row; an absent key costs none.
    """
    monkeypatch.setattr(scan, "RUN_PIECES", 64)
    log = uncoalesced(make_log, 200, on=counting)
    log.table().get("nobody")
    hashed = counter(monkeypatch, lookup, "index_hashes")
    visited = counter(monkeypatch, KeyIndexCache, "of")
    asked = counter(monkeypatch, KeyIndex, "hits")
    planned = counter(monkeypatch, scan, "piece_of")
    read = counter(monkeypatch, lookup, "of_keys")
    for wanted, value, gets in ((key(3), b"153", 1), (b"once-1", b"1", 1), (b"nobody", None, 0)):
        with counting.count() as held:
            assert log.table().get(wanted) == value
        assert held.total() == 1 + gets  # The look for a newer version.
    assert (len(hashed), len(visited), len(planned), len(read)) == (3, 0, 0, 2)
    assert len(asked) <= 3 * 4  # Runs of 64.


def test_what_is_known_stays_known_in_the_next_version(make_log, counting, monkeypatch):
    """Only the last run is joined anew, only the new object is planned, visited and fetched."""
    monkeypatch.setattr(scan, "RUN_PIECES", 64)
    log = uncoalesced(make_log, 200, on=counting)
    log.table().get("nobody")
    joined = counter(monkeypatch, scan.key_index, "joined")
    planned = counter(monkeypatch, table_plan, "piece_of")
    visited = counter(monkeypatch, KeyIndexCache, "of")
    for i in range(3):
        log.append([{"key": b"later", "value": b"%d" % i}])
        with counting.count() as held:
            assert log.table().get(b"later") == b"%d" % i
        assert held.total() <= 3  # A newer version, the new object's keys, its row.
    assert (len(joined), len(planned)) == (3, 3)
    assert len(visited) <= 3 * (1 + 64)  # The new one, and those of the last run.


def test_a_plan_goes_on_from_the_one_before(make_log, clock):
    """Whatever happened to segments in between, it is what a new plan is."""
    log = make_log(partitions=1, config={"segment.chunks": 4, "min.compaction.lag.ms": "0"})
    known = KnownPieces()
    for i in range(40):
        log.append([{"key": key(i % 5), "value": b"%d" % i}])
        if i % 11 == 10:
            Cleaner(log).run_once(force=True)
        if i % 13 == 12:
            log.delete_records({0: i // 2})
        log.version  # noqa: B018 - it looks for what the cleaner did
        manifest = log.handle.manifest()
        for log_start in (0, i // 3):
            fresh = plan_table(manifest, 0, log_start)
            assert plan_table(manifest, 0, log_start, known) == fresh


def test_lookups_by_runs_find_what_the_table_holds(make_log, open_log, counting, monkeypatch):
    """However pieces are divided into runs: the newest record of each key, none twice, and no older
    object is read for a key that a newer one has.
    """
    uncoalesced(make_log, 120, on=counting)
    wanted = [*map(key, range(60)), *(b"once-%d" % i for i in range(130)), key(3)]
    for run_pieces, small_rows in ((1, 0), (3, 4096), (3, 1), (256, 1)):
        monkeypatch.setattr(scan, "RUN_PIECES", run_pieces)
        monkeypatch.setattr(scan, "SMALL_ROWS", small_rows)
        table = open_log(counting).table()
        held = {row["key"]: row["value"] for row in table.to_arrow().to_pylist()}
        assert table.get_many(wanted) == {k: held[k] for k in wanted if k in held}
        assert table.of_keys(wanted).num_rows == len(held)
        for k in (key(3), key(7), b"once-5"):
            with counting.count() as one:
                assert table.get(k) == held.get(k)
            assert one.total() == 1, (run_pieces, small_rows)


def test_a_plan_looks_for_its_ends_by_halves(make_log, monkeypatch):
    """The tail of a log of 200 chunks in a segment is planned without a look at each."""
    log = uncoalesced(make_log, 200)
    manifest = log.handle.manifest()
    end = manifest.head.partitions.end[0]
    looks = [counter(monkeypatch, scan, name) for name in ("_next", "_base")]
    pieces = plan_range(manifest, 0, end - 3, end)
    assert [(piece.start, piece.end) for piece in pieces][-1] == (end - 1, end)
    assert sum(piece.rows for piece in pieces) == 3
    assert all(0 < len(seen) < 20 for seen in looks)
