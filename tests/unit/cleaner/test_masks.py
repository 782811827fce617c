"""Masks kept up to date with what is appended: M1, M2 (COMMIT.md §11)."""

import numpy as np
import pyarrow as pa
import pytest

from clog.cleaner import Cleaner, masks
from clog.cleaner.duties import Work
from clog.cleaner.duties.layout import coalesce
from clog.cleaner.masks import keep_masks, offsets_of
from clog.storage import Log
from clog.storage.diagnostics.verify import Check, verify_log
from clog.storage.env import SeededIds
from clog.storage.errors import CorruptionError
from clog.storage.format import chunks as bitmap
from clog.storage.format.chunks import ChunkMask, MaskMark, read_bitmap
from clog.storage.format.commits import Edit
from clog.storage.format.manifest import apply
from clog.storage.read.scan import KeyIndexCache
from clog_testing.counting import CountingStore
from clog_testing.crash import inside, memory_store

MASKS = {"table.masks": "true"}
EAGER = {"min.cleanable.dirty.ratio": "0"}


@pytest.fixture
def log(store, clock):
    made = Log.create(store, 1, EAGER, clock=clock, ids=SeededIds(1))
    made.alter(MASKS)
    return made


def put(log, partition=None, **values):
    log.append([{"key": k, "value": v} for k, v in values.items()], partition=partition)


def cache(log):
    return KeyIndexCache(log.handle.store, seed=log.handle.tip.head.log.key_seed)


def keep(log):
    log.handle.refresh()
    return keep_masks(log.handle, cache(log))


def bits_of(log, kind="superseded"):
    """The offsets that have a bit, and whether all chunks have masks."""
    log.handle.refresh()
    manifest, store = log.handle.manifest(), log.handle.store
    found = []
    for p, chunk in manifest.chunks():
        bits = getattr(chunk.mask, kind, None)
        if bits is not None:
            rows = read_bitmap(store, bits, chunk.rows)
            found += [(p, o) for o in offsets_of(store, chunk, None)[rows].tolist()]
    return found


def test_a_log_for_which_nobody_wants_them_has_none(store, clock):
    """Its rounds make none, until they are wanted; then they are kept, whatever the config says."""
    counting = CountingStore(store)
    log = Log.create(counting, 1, EAGER, clock=clock, ids=SeededIds(1))
    put(log, a="1")
    put(log, a="2")
    Cleaner(log).run_once()
    assert (log.version, log.handle.tip.head.masked) == (2, -1)
    log.alter(MASKS)
    Cleaner(log).run_once()
    assert log.handle.manifest().covered == (2,)
    log.alter({"table.masks": "false"})
    put(log, a="3")
    Cleaner(log).run_once()
    assert log.handle.manifest().covered == (3,)


def test_a_hash_decides_nothing(log, monkeypatch):
    """Keys whose hashes are equal are different keys: their bytes are compared."""
    monkeypatch.setattr(
        "clog.storage.read.scan.index_hashes",
        lambda keys, seed: np.zeros(len(keys), np.uint64),
    )
    monkeypatch.setattr(masks, "index_hashes", lambda keys, seed: np.zeros(len(keys), np.uint64))
    put(log, a="1", b="2")
    keep(log)
    put(log, b="3", c="4")
    keep(log)
    assert bits_of(log) == [(0, 1)]


def test_steps_are_bounded(log, monkeypatch):
    """Each takes whole chunks, and the next one continues; the same for partitions."""
    monkeypatch.setattr(masks, "STEP_ROWS", 3)
    for i in range(4):
        put(log, a=str(i), b=str(i))
    before = log.version
    assert keep(log) == 8
    assert log.version == before + 2
    assert bits_of(log) == [(0, o) for o in range(6)]


def test_the_clean_part_is_taken_as_it_is(log, store, clock):
    """Each key is there once: its keys are not read, only which values are null."""
    clock.advance(10)
    put(log, **{f"k{i}": "v" for i in range(50)})
    put(log, **{f"k{i}": "w" for i in range(25)})
    log.roll()
    Cleaner(Log.open(store, clock=clock, ids=SeededIds(2))).run_once(force=True)
    other = Log.create(memory_store(), 1, EAGER, clock=clock, ids=SeededIds(3))
    put(other, **{f"k{i}": "v" for i in range(50)})
    other.roll()
    Cleaner(other).run_once(force=True)
    other.alter(MASKS)
    counting = CountingStore(other.handle.store)
    indexes = KeyIndexCache(counting, seed=1)
    assert keep_masks(other.handle, indexes) == 50
    assert counting.counts["get"] == 0
    assert bits_of(other) == []
    assert bits_of(log) == []


def test_one_that_lost_leaves_it_to_the_next_round(log, store, clock):
    """What another process set meanwhile is neither set again nor lost."""
    put(log, a="1")
    put(log, a="2")
    other = Log.open(store, clock=clock, ids=SeededIds(2))
    handle = log.handle
    commit, done = handle.commit, []

    def late(prepare, *, operation):
        if not done:
            done.append(keep(other))
        return commit(prepare, operation=operation)

    handle.commit = late
    assert keep(log) == 2
    assert done == [2]
    assert [i.operation for i in log.history()].count("mask") == 1
    assert bits_of(log) == [(0, 0)]


def test_masks_take_part_in_the_life_of_files(log, store, clock, monkeypatch):
    """A bitmap that is replaced by another is released, and swept; orphans are too."""
    monkeypatch.setattr(bitmap, "INLINE_BYTES_MAX", 0)
    put(log, a="1", b="1")
    put(log, a="2")
    keep(log)
    put(log, b="2")
    keep(log)
    released = [r.path for r in log.handle.manifest().released]
    assert len(released) == 1
    assert released[0].endswith(".mask")
    files = [f.path for f in inside(store).list("data/") if f.path.endswith(".mask")]
    assert len(files) == 2
    clock.advance(10**9)
    Cleaner(Log.open(store, clock=clock, ids=SeededIds(2))).run_once()
    left = [f.path for f in inside(store).list("data/") if f.path.endswith(".mask")]
    assert left == [p for p in files if p not in released]


def test_coalescing_carries_masks_over(log, monkeypatch):
    """Of a shared object, of the active segment, by offset: no key is compared again."""
    for i in range(10):
        put(log, **{"k": str(i), f"k{i}": None if i % 3 else "v"})
    keep(log)
    before = bits_of(log), bits_of(log, "tombstones")
    coalesce(Work(log.handle, 0), force=True)
    assert len(list(log.handle.manifest().chunks())) == 1
    assert (bits_of(log), bits_of(log, "tombstones")) == before
    assert keep(log) == 0
    monkeypatch.setattr("clog.storage.read.table.fingerprints_of", None)  # No key is read.
    assert log.table().to_arrow().num_rows == 5


def test_masks_beyond_a_gap_are_made_anew(log):
    """No writer of clog's produces a chunk without a mask below one with a mask: then all are
    dropped, since what the lower one supersedes above is not known. The table is right before and
    after.
    """
    put(log, a="1", b="1")
    put(log, a=None)
    put(log, b="2")
    chunks = [c for _, c in log.handle.manifest_at(log.version).chunks()]
    one = bitmap.write_bitmap(log.handle.store, np.array([True]), lambda: "x")
    mark = MaskMark(0, *chunks[1].identity, ChunkMask(tombstones=one))
    log.handle.commit(lambda _tip, _ms: Edit(masks=(mark,), covered={0: 3}), operation="mask")
    assert log.table().get_many(["a", "b"]) == {b"b": b"2"}
    assert log.table().to_arrow().num_rows == 1
    assert keep(log) == 4
    assert [c.operation for c in log.history()].count("mask") == 3
    assert bits_of(log) == [(0, 0), (0, 1)]
    assert log.table().to_arrow().num_rows == 1


def test_a_chunk_that_lost_its_last_rows_is_covered_as_far_as_before(log, store, clock):
    """It was made of covered and of new rows, and ends below the offset up to which masks were: a
    sound log, whose coverage never decreases.
    """
    put(log, a="1", b="1")
    keep(log)
    for i in range(9):
        put(log, b=str(i))
    coalesce(Work(log.handle, 0), force=True)
    log.roll()
    log.erase(["b"], notify=False)
    Cleaner(Log.open(store, clock=clock, ids=SeededIds(2))).run_once()
    log.handle.refresh()
    manifest = log.handle.manifest()
    assert [(c.base, c.next, c.mask) for _, c in manifest.chunks()] == [(0, 1, ChunkMask())]
    assert manifest.covered == (2,)
    put(log, a="2", c="1")
    keep(log)
    assert bits_of(log) == [(0, 0)]
    assert log.table().get_many(["a", "b", "c"]) == {b"a": b"2", b"c": b"1"}
    assert verify_log(store).findings == ()


def test_a_step_takes_all_that_begins_below_where_masks_end(log, store, monkeypatch):
    """However many rows these are: each of them supersedes, and masks show it at once (FORMAT.md
    §13).
    """
    monkeypatch.setattr(masks, "STEP_ROWS", 1)
    for i in range(4):
        put(log, a=str(i))
    log.handle.commit(lambda _tip, _ms: Edit(covered={0: 3}), operation="mask")
    before = log.version
    assert keep(log) == 4
    assert log.version == before + 2
    first = log.handle.manifest_at(before + 1)
    assert first.covered == (3,)
    bits = [c.mask and bool(c.mask.superseded) for _, c in first.chunks()]
    assert bits == [True, True, False, None]
    assert bits_of(log) == [(0, 0), (0, 1), (0, 2)]
    assert verify_log(store).findings == ()


def test_masks_planned_before_the_order_changed_are_not_committed(log, store, clock):
    """FORMAT.md §15: they assume that the last record wins, and would hide the one that does."""
    log.append([{"key": "a", "value": str(9 - t), "timestamp": t} for t in (9, 4, 3)])
    other = Log.open(store, clock=clock, ids=SeededIds(2))
    handle = log.handle
    commit, done = handle.commit, []

    def late(prepare, *, operation):
        done.append(other.alter({"compaction.strategy": "timestamp"}))
        return commit(prepare, operation=operation)

    handle.commit = late
    keep(log)
    assert len(done) == 1
    assert log.handle.manifest().covered == ()
    assert [r["value"] for r in log.table().to_pylist()] == [b"0"]
    assert verify_log(store).findings == ()


def test_a_wrong_mask_is_found(log):
    """`clog verify`: an existing record that is hidden, a removed one that is shown."""
    put(log, a="1", b="2")
    put(log, a="3")
    keep(log)
    root = log.handle.standing.root
    assert verify_log(root).findings == ()
    manifest = log.handle.manifest()
    (p, chunk), _ = manifest.chunks()
    wrong = bitmap.write_bitmap(log.handle.store, np.array([True, True]), lambda: "x")
    mark = MaskMark(p, *chunk.identity, ChunkMask(wrong))
    log.handle.commit(lambda _tip, _ms: Edit(masks=(mark,)), operation="mask")
    (found,) = verify_log(root).findings
    assert found.check == Check.MASKS
    assert "hide 1 records" in found.message
    assert "offset 1" in found.message


@pytest.fixture
def manifest(log):
    put(log, a="1", b="2")
    put(log, a="3")
    keep(log)
    put(log, c="3")
    return log.handle.manifest_at(log.version)


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda c, m: Edit(masks=(MaskMark(0, "data/x", 0, ChunkMask()),)), "does not exist"),
        (lambda c, m: Edit(masks=(MaskMark(0, *c[0].identity, ChunkMask()),)), "do not fit"),
        (lambda c, m: Edit(masks=(MaskMark(0, *c[2].identity, ChunkMask()),)), "not covered"),
        (lambda c, m: Edit(covered={0: 2}), "is outside"),
        (lambda c, m: Edit(covered={0: 5}), "is outside"),
    ],
)
def test_a_mask_that_does_not_fit_is_damage(manifest, edit, why):
    """FORMAT.md §13: for no chunk, with fewer rows, for a chunk that is not covered; coverage that
    decreases, or exceeds the end.
    """
    chunks = [c for _, c in manifest.chunks()]
    with pytest.raises(CorruptionError, match=why):
        apply(manifest, edit(chunks, manifest), commit_id="1" * 32, time_ms=manifest.time_ms)


def test_typed_keys_of_any_width(store, clock):
    """An int32 supersedes an int64 of the same value: canonical bytes are compared."""
    schema = {"key": pa.int32(), "value": pa.struct([("n", pa.int32())])}
    log = Log.create(store, 1, schema=schema, clock=clock, ids=SeededIds(1))
    log.alter(MASKS)
    log.append([{"key": 1, "value": {"n": None}}, {"key": 2, "value": {"n": 1}}])
    keep(log)
    log.evolve(widen={"key": pa.int64()})
    log.append([{"key": 2, "value": None}])
    keep(log)
    assert bits_of(log) == [(0, 1)]
    assert bits_of(log, "tombstones") == [(0, 2)]
    assert log.table().to_arrow().column("key").to_pylist() == [1]


def test_an_append_pays_nothing_for_masks(log, store):
    """Its requests are those of a log without them."""
    plain = memory_store()
    counted = []
    for where, is_masked in ((store, True), (plain, False)):
        mine = Log.open(where) if is_masked else Log.create(where, 1, EAGER)
        put(mine, a="0")
        if is_masked:
            keep(mine)
        else:
            mine.alter({"retention.ms": "1"})
            mine.alter({"retention.ms": "2"})
        counting = CountingStore(where)
        again = Log.open(counting)
        put(again, a="1")
        with counting.count() as requests:
            for i in range(8):
                put(again, a=str(i))
        counted.append(requests)
    assert counted[0] == counted[1]


def test_how_far_masks_go_is_described(log, store):
    """By partition; a log without masks has none to describe."""
    put(log, a="1", b="2")
    assert log.describe()["partition_details"][0]["covered_offset"] is None
    keep(log)
    put(log, a="2")
    assert log.describe()["partition_details"][0]["covered_offset"] == 2


def test_what_is_undecided_waits_and_what_was_aborted_wins_over_nothing(log):
    """S51, S52: coverage ends at the last stable offset; aborted rows hide no others."""
    put(log, a="1", b="1")
    t = log.transaction("t", visible=True)
    t.append([{"key": "a", "value": "2"}])
    put(log, b="2")
    keep(log)
    assert log.handle.manifest().covered == (2,)
    assert bits_of(log) == []
    t.abort()
    keep(log)
    assert bits_of(log) == [(0, 1)]
    assert log.table().get_many(["a", "b"]) == {b"a": b"1", b"b": b"2"}
    with log.transaction("t", visible=True) as again:
        again.append([{"key": "a", "value": None}])
        put(log, c="1")
    keep(log)
    assert bits_of(log) == [(0, 0), (0, 1)]
    assert log.table().to_arrow().num_rows == 2
    assert verify_log(log.handle.standing.root).findings == ()
    log.roll()
    Cleaner(log).run_once(force=True)
    assert keep(log) == 0
    assert log.table().get_many(["a", "b", "c"]) == {b"b": b"2", b"c": b"1"}


@pytest.mark.parametrize("bug", ["rows for offsets", "covered too far", "mask lost"])
def test_planted_bugs_are_found(log, monkeypatch, bug):
    """`clog verify`, and therefore every random history, finds a mask that is carried over by rows,
    one that was never compared, and coverage of what was not judged; a lost mask costs time and
    nothing else.
    """
    put(log, a="1", b="1", c="1")
    put(log, b="2", d="1")
    for i in range(9):
        put(log, d=str(i))
    if bug == "covered too far":
        monkeypatch.setattr(masks, "superseded_in", lambda *_: iter(()))
        keep(log)
        put(log, a="9")
        keep(log)
    else:
        keep(log)
        if bug == "mask lost":
            monkeypatch.setattr(masks, "_covered", lambda *_: iter(()))
        else:
            monkeypatch.setattr(masks, "offsets_of", lambda _, c, _schema: np.arange(c.rows))
        coalesce(Work(log.handle, 0), force=True)
        assert len(list(log.handle.manifest().chunks())) == 1
    found = verify_log(log.handle.standing.root).findings
    assert bool(found) == (bug != "mask lost")
    assert all(one.check == Check.MASKS for one in found)


@pytest.mark.parametrize("strategy", ["timestamp", "header"])
def test_a_log_that_compares_orders_gets_none_and_is_read_without(log, store, strategy):
    """FORMAT.md §13, §15: earlier masks do not count once orders are compared, and new ones come
    with the old strategy; every version is read by its own.
    """

    def put_late(key, order):
        headers = [("v", order.to_bytes(8, "big"))]
        value = f"{key}{order}"
        log.append([{"key": key, "value": value, "timestamp": order, "headers": headers}])

    def table(**at):
        return {r["key"]: r["value"] for r in log.table(**at).to_pylist()}

    for order in (9, 4):
        put_late("a", order)
        put_late("b", 13 - order)
    keep(log)
    assert bits_of(log)
    assert log.handle.manifest().covered == (4,)
    before = log.version
    config = {"compaction.strategy": strategy}
    if strategy == "header":
        config["compaction.strategy.header"] = "v"
    log.alter(config)
    assert log.handle.manifest().covered == ()
    put_late("b", 8)
    assert keep(log) == 0
    assert table() == {b"a": b"a9", b"b": b"b9"}
    assert table(at=before) == {b"a": b"a4", b"b": b"b9"}
    log.roll()
    Cleaner(log).run_once(force=True)
    assert log.handle.manifest().covered == ()
    assert table() == {b"a": b"a9", b"b": b"b9"}
    assert verify_log(store).findings == ()
    log.alter(dict.fromkeys(config))
    put_late("b", 1)
    keep(log)
    assert bits_of(log)
    assert table() == {b"a": b"a9", b"b": b"b1"}
    assert verify_log(store).findings == ()
