"""Bitmaps of dead rows: their bytes, and how readers use them (FORMAT.md §5.4)."""

import zlib
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clog.storage.env import SeededIds
from clog.storage.errors import CorruptionError
from clog.storage.format import chunks as bitmap
from clog.storage.format.chunks import (
    DEAD,
    BitmapFile,
    DeadMark,
    DeadRows,
    read_bitmap,
    write_dead_rows,
)
from clog.storage.format.commits import Edit
from clog.storage.format.documents import stamp_of
from clog.storage.format.manifest import apply
from clog.storage.read.scan import cut, plan_range, read_pieces
from clog_testing.counting import CountingStore
from clog_testing.crash import discard, memory_store

PACKED = zlib.compress(b"\x05")


def written(store, dead, **more):
    given = {"since_ms": 5, "stamp": 3, "new_id": SeededIds(1).new_id, **more}
    return write_dead_rows(store, np.array(dead, np.bool_), **given)


@given(st.lists(st.booleans(), min_size=1, max_size=70).filter(any), st.booleans())
def test_what_is_written_is_read(rows, inline):
    """Any rows, inline and in a file, and as JSON."""
    store = memory_store()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bitmap, "INLINE_BYTES_MAX", 1024 if inline else 0)
        dead = written(store, rows)
    assert (dead.rows, dead.since_ms) == (sum(rows), 5)
    assert isinstance(dead.bitmap, bytes) == inline
    assert read_bitmap(store, dead, len(rows)).tolist() == rows
    assert DEAD.read(DEAD.write(dead)) == dead
    discard(store)


def test_the_bytes_of_a_bitmap(store):
    """FORMAT.md §5.4: least significant bit first, one zlib stream."""
    dead = written(store, [True, False, True])
    assert zlib.decompress(dead.bitmap) == b"\x05"
    assert list(store.list("data/")) == []


def test_a_long_bitmap_is_a_file(store):
    """FORMAT.md §1, §6: with a stamp, as an object; one PUT, and one GET to read it."""
    counting = CountingStore(store)
    rows = np.random.default_rng(1).random(100_000) < 0.02
    dead = written(counting, rows)
    assert stamp_of(dead.bitmap.path) == 3
    assert [found.path for found in store.list("data/")] == [dead.bitmap.path]
    assert (read_bitmap(counting, dead, len(rows)) == rows).all()
    assert sum(counting.counts.values()) == 2


@pytest.mark.parametrize(
    ("dead", "rows"),
    [
        (DeadRows(2, b"no zlib", 0), 3),
        (DeadRows(2, PACKED[:-1], 0), 3),
        (DeadRows(2, PACKED + b"x", 0), 3),
        (DeadRows(1, PACKED, 0), 3),
        (DeadRows(2, PACKED, 0), 2),
        (DeadRows(2, PACKED, 0), 9),
        (DeadRows(2, zlib.compress(bytes(1 << 20)), 0), 3),
        (DeadRows(2, BitmapFile("data/a.dead", len(PACKED) - 1, "0" * 32), 0), 3),
        (DeadRows(2, BitmapFile("data/a.dead", len(PACKED) + 1, "0" * 32), 0), 3),
        (DeadRows(2, BitmapFile("data/a.dead", len(PACKED), "0" * 32), 0), 3),
    ],
)
def test_a_damaged_bitmap_is_corruption(store, dead, rows):
    """Length, checksum, stream, number of bits, bits beyond the rows: dead rows never reappear."""
    store.put("data/a.dead", PACKED)
    with pytest.raises(CorruptionError):
        read_bitmap(store, dead, rows)


@pytest.fixture
def marked(make_log):
    """A log of 40 records in two sealed chunks, of which every third row is dead."""
    log = make_log()
    for n in (0, 20):
        records = [{"key": f"k{n + i}", "value": "v", "timestamp": n + i} for i in range(20)]
        log.append(records, partition=0)
    log.roll()

    def mark(every=3):
        chunks = [c for _, c in log.handle.manifest().chunks()]
        marks = [
            DeadMark(0, *c.identity, written(log.handle.store, np.arange(20) % every == 0))
            for c in chunks
        ]
        log.handle.commit(lambda *_: Edit(dead=tuple(marks)), operation="clean")

    mark()
    return log


LIVE = [o for o in range(40) if o % 20 % 3]


def offsets(batches):
    return pa.Table.from_batches(batches).column("offset").to_pylist()


def test_nobody_reads_dead_rows(marked):
    """Log reads from anywhere to anywhere, the table view, offsets by time."""
    assert offsets(marked.read()) == LIVE
    for start, end in ((3, 21), (20, 24), (6, 8)):
        got = offsets(marked.read(start={0: start}, end={0: end}))
        assert got == [o for o in LIVE if start <= o < end]
    keys = {row["key"].decode() for row in marked.table().to_arrow().to_pylist()}
    assert keys == {f"k{o}" for o in LIVE}
    assert marked.offsets_for_times(18)[0] == 19


def test_a_part_of_a_marked_chunk_is_read(marked):
    """Its bitmap counts from the chunk's first row: any division yields what the whole would, and a
    chunk's bitmap is fetched once for all its parts.
    """
    manifest = marked.handle.manifest()
    whole = plan_range(manifest, 0, 0, 40)
    assert offsets(read_pieces(marked.handle.store, whole)) == LIVE
    for start, end in ((3, 21), (21, 22), (5, 40)):
        pieces = plan_range(manifest, 0, start, end)
        assert sum(piece.rows for piece in pieces) == end - start
        expected = [o for o in LIVE if start <= o < end]
        assert offsets(read_pieces(marked.handle.store, pieces)) == expected
    parts = [cut(whole[0], 4, 9), cut(whole[0], 12, 18)]
    assert offsets(read_pieces(marked.handle.store, parts)) == [4, 5, 7, 8, 13, 14, 16, 17]


def test_sizes_are_those_of_what_lives(marked):
    """Records and bytes of segments, and therefore the dirty ratio and retention by size (S13,
    S32): bytes in proportion to the rows.
    """
    (sealed, _) = marked.segments(0)
    assert (sealed.records, sealed.dead_rows) == (26, 14)
    assert sealed.size_bytes == sum(c.size_bytes * 13 // 20 for c in chunks_of(marked))
    (detail,) = marked.describe()["partition_details"]
    assert (detail["records"], detail["dead_rows"]) == (26, 14)
    assert detail["size_bytes"] == sealed.size_bytes


def chunks_of(log):
    return [c for _, c in log.handle.manifest().chunks()]


def test_an_older_version_reads_as_it_did(marked):
    """Time travel: what was marked later is there."""
    rows = marked.table(at=marked.version - 1).to_arrow().num_rows
    assert rows == 40


def test_what_a_bitmap_must_not_be(marked):
    """FORMAT.md §5.4: it keeps the rows and the time of the earlier one, leaves a row, and is for
    an existing sealed chunk.
    """
    marked.append([{"key": "a", "value": "b"}, {"key": "a", "value": "b"}], partition=0)
    first, _, active = chunks_of(marked)
    good = DeadMark(0, *first.identity, replace(first.dead, rows=8))
    bad = [
        replace(good, dead=replace(first.dead, rows=6)),
        replace(good, dead=replace(first.dead, rows=20)),
        replace(good, dead=replace(first.dead, since_ms=6)),
        replace(good, first_row=1),
        DeadMark(0, *active.identity, DeadRows(1, PACKED, 5)),
    ]
    manifest = marked.handle.manifest()
    for mark in bad:
        with pytest.raises(CorruptionError, match="bitmaps of dead rows"):
            apply(manifest, Edit(dead=(mark,)), commit_id="x", time_ms=manifest.time_ms)
    with pytest.raises(CorruptionError):
        apply(manifest, Edit(dead=(good, good)), commit_id="x", time_ms=manifest.time_ms)
    assert apply(manifest, Edit(dead=(good,)), commit_id="x", time_ms=manifest.time_ms)
