"""Manifests: the effect of an edit on one, and which edits contradict it (FORMAT.md §3)."""

from dataclasses import replace

import pytest
from hypothesis import given

from clog.storage.errors import CorruptionError
from clog.storage.format.chunks import (
    Chunk,
    ChunkHorizon,
    ChunkMask,
    Released,
    Replacement,
    Uncleanable,
)
from clog.storage.format.commits import Edit
from clog.storage.format.documents import NONE
from clog.storage.format.manifest import SegmentPage
from clog_testing.histories import (
    append_edit,
    applied,
    clean_edit,
    coalesce_edit,
    fresh_manifest,
    histories,
    object_of,
)


def _manifest(appends: int = 4, *, rolls: bool = True):
    """Appends of 2 and 3 rows to two partitions, in a segment each unless ``rolls`` is false."""
    manifest = fresh_manifest()
    for n in range(appends):
        edit = append_edit(manifest, {0: 2, 1: 3}, f"{n:032x}", rolls=rolls)
        manifest = applied(manifest, edit)
    return manifest


def _bounds(manifest, p):
    return [(s.base, s.next) for s in manifest.segments[p]]


def _replacement(manifest, p=0, count=2) -> Replacement:
    (found,) = clean_edit(manifest, p, "e" * 32, count=count).replace
    return found


def _refused(manifest, r, message):
    with pytest.raises(CorruptionError, match=message):
        applied(manifest, Edit(replace=(r,)))


@given(histories())
def test_the_manifest_and_the_head_say_the_same(history):
    """Segments tile, chunks are in order inside them, the head has the active segment's facts."""
    manifest, edits = history
    columns = manifest.head.partitions
    assert manifest.version == len(edits)
    for p, segments in enumerate(manifest.segments):
        bounds = _bounds(manifest, p)
        assert [base for base, _ in bounds[1:]] == [end for _, end in bounds[:-1]]
        assert bounds[0][0] <= columns.start[p] <= bounds[-1][1] == columns.end[p]
        assert manifest.first_dirty[p] >= columns.start[p] or edits
        for s in segments:
            edges = [s.base, *(x for c in s.chunks for x in (c.base, c.next)), s.next]
            assert edges == sorted(edges)
        active = segments[-1]
        assert (active.base, len(active.chunks)) == (columns.base[p], columns.chunks[p])
        size_bytes = sum(c.size_bytes for c in active.chunks)  # Those of what was aborted, too.
        assert (size_bytes, active.created_ms) == (columns.bytes[p], columns.created_ms[p])
        if active.chunks:
            assert active.first_timestamp_ms == columns.first_ms[p]


@given(histories())
def test_what_no_chunk_refers_to_was_released(history):
    """FORMAT.md §6: each object that was ever added is referred to, or released once."""
    manifest, edits = history
    came = {c.object.path for e in edits if e.add for _, c in e.add.chunks}
    came |= {c.object.path for e in edits for r in e.replace for c in r.chunks}
    alive = {c.object.path for _, c in manifest.chunks()}
    released = [r.path for r in manifest.released]
    assert came == alive | set(released)
    assert len(released) == len(set(released))


@given(histories())
def test_applying_leaves_the_former_manifest_alone(history):
    """A manifest is a value: readers hold old ones."""
    manifest, _ = history
    before = repr(manifest)
    applied(manifest, append_edit(manifest, {0: 1}, "f" * 32, rolls=True))
    applied(manifest, Edit(start={0: 0}, drop={0: 0}, uncleanable={0: Uncleanable("x", 1, 1)}))
    assert repr(manifest) == before


def test_an_append_extends_the_active_segment():
    """The first commit's time is the segment's (S8)."""
    manifest = _manifest(2, rolls=False)
    (segment,) = manifest.segments[1]
    assert (segment.base, segment.next, segment.created_ms, segment.rows) == (0, 6, 1_001, 6)
    assert [c.version for c in segment.chunks] == [1, 2]


def test_one_append_can_roll_between_its_chunks():
    """What precedes the chunk of the roll stays in the former segment."""
    manifest = _manifest(1)
    one = append_edit(manifest, {0: 2}, "a" * 32).add
    (p, chunk), *_ = one.chunks
    moved = replace(chunk, base=4, next=6, object=object_of(2, "b" * 32))
    edit = Edit(add=replace(one, chunks=((p, chunk), (p, moved)), rolls=((0, 4, 9),)))
    manifest = applied(manifest, edit)
    assert _bounds(manifest, 0) == [(0, 4), (4, 6)]
    assert manifest.head.partitions.jitter_ms[0] == 9


def test_start_raises_the_first_dirty_offset():
    """S12, S36: never lowers it."""
    manifest = applied(_manifest(), Edit(first_dirty={1: 6}))
    assert applied(manifest, Edit(start={0: 3, 1: 3})).first_dirty == (3, 6)


def test_drop_takes_sealed_segments_that_end_at_or_below():
    """One that extends beyond stays whole; objects are released, the other partition's are not."""
    manifest = applied(_manifest(), Edit(start={0: 5}, drop={0: 5}))
    assert _bounds(manifest, 0) == [(4, 6), (6, 8)]
    assert len(manifest.segments[1]) == 4
    paths = [object_of(5, f"{n:032x}", stamp=n).path for n in range(2)]
    assert manifest.released == tuple(Released(path, 700, 5, 1_005) for path in paths)


def test_drop_never_takes_the_active_segment():
    """S34: it is sealed in the same edit first, and then removed."""
    manifest = _manifest()
    assert _bounds(applied(manifest, Edit(start={0: 8}, drop={0: 8})), 0) == [(6, 8)]
    edit = Edit(start={0: 8}, seal=((0, 0),), drop={0: 8})
    assert _bounds(applied(manifest, edit), 0) == [(8, 8)]


def test_an_object_counts_from_its_newest_release():
    """FORMAT.md §6: dead since the newest version at which it was released, listed once."""
    manifest = applied(_manifest(), Edit(start={0: 2}, drop={0: 2}))
    manifest = applied(manifest, Edit(start={0: 4, 1: 3}, drop={0: 4, 1: 3}))
    assert [(r.path[-9], r.version) for r in manifest.released] == [("1", 6), ("0", 6)]


def test_forget_takes_from_the_list_of_released():
    """And one that was never there is no error."""
    manifest = applied(_manifest(), Edit(start={0: 5}, drop={0: 5}))
    first, second = manifest.released
    after = applied(manifest, Edit(forget=(first.path, "data/other")))
    assert after.released == (second,)


def test_a_replacement_merges_segments():
    """S25: its tiles for those in the range; what was replaced is released."""
    manifest = _manifest()
    after = applied(manifest, clean_edit(manifest, 0, "e" * 32, count=3))
    assert _bounds(after, 0) == [(0, 6), (6, 8)]
    assert after.segments[0][0].created_ms == 1_003
    assert [c.base for c in after.segments[0][0].chunks] == [1]
    assert len(after.released) == 3
    assert after.first_dirty == (6, 0)


def test_a_replacement_may_leave_nothing():
    """A range whose records are all superseded stays covered: offsets never change (S1, S3)."""
    manifest = _manifest()
    after = applied(manifest, Edit(replace=(replace(_replacement(manifest), chunks=()),)))
    assert _bounds(after, 0)[0] == (0, 4)
    assert after.segments[0][0].rows == 0
    assert after.head.partitions.end == manifest.head.partitions.end


def test_an_object_that_is_referred_to_again_is_not_released():
    """FORMAT.md §3.3: trimmed chunks, and those that get a horizon, keep their object."""
    manifest = _manifest()
    r = _replacement(manifest)
    first, second = (c for s in manifest.segments[0][:2] for c in s.chunks)
    trimmed = replace(first, first_row=1, rows=1, base=1, size_bytes=20)
    after = applied(manifest, Edit(replace=(replace(r, chunks=(trimmed, second)),)))
    assert after.released == ()
    assert after.segments[0][0].chunks == (trimmed, second)


def test_a_mask_stays_with_as_many_rows():
    """FORMAT.md §13: it has a bit for each row of its chunk, so one with fewer rows has none."""
    manifest = _manifest()
    r, mask = _replacement(manifest), ChunkMask()
    first, second = (c for s in manifest.segments[0][:2] for c in s.chunks)
    masked = tuple(
        replace(s, chunks=tuple(replace(c, mask=mask) for c in s.chunks))
        for s in manifest.segments[0]
    )
    fewer = replace(first, rows=1, size_bytes=20)
    manifest = replace(manifest, segments=(masked, *manifest.segments[1:]))
    after = applied(manifest, Edit(replace=(replace(r, chunks=(fewer, second)),)))
    assert [c.mask for c in after.segments[0][0].chunks] == [None, mask]


def test_coalescing_keeps_segments_as_they_are():
    """Without tiles a replacement changes chunks alone; also in the active segment."""
    manifest = _manifest(3, rolls=False)
    after = applied(manifest, coalesce_edit(manifest, 1, "c" * 32))
    (segment,) = after.segments[1]
    assert (segment.base, segment.next, segment.created_ms) == (0, 9, 1_001)
    assert [(c.base, c.next, c.rows) for c in segment.chunks] == [(0, 9, 9)]


def test_part_of_the_active_segment_can_be_coalesced():
    """Chunks before and after stay where they are."""
    manifest = _manifest(4, rolls=False)
    old = manifest.segments[0][0].chunks
    ref = object_of(4, "c" * 32)
    both = replace(old[1], object=ref, first_row=0, rows=4, next=6, size_bytes=80)
    sources = tuple(c.identity for c in old[1:3])
    after = applied(manifest, Edit(replace=(Replacement(0, 2, 6, sources, (both,)),)))
    assert after.segments[0][0].chunks == (old[0], both, old[3])
    assert after.head.partitions.chunks[0] == 3


def test_a_replacement_in_the_active_segment_keeps_every_record():
    """FORMAT.md §3.3: S10, the active segment is never cleaned."""
    manifest = _manifest(3, rolls=False)
    (r,) = coalesce_edit(manifest, 0, "c" * 32).replace
    (chunk,) = r.chunks
    for changes in ({"rows": 5}, {"size_bytes": 100}):
        lost = replace(r, chunks=(replace(chunk, **changes),))
        _refused(manifest, lost, "but removes 6 of 120")
    _refused(manifest, replace(r, chunks=()), "has 0 records of 0 bytes")


def test_sources_must_be_what_is_there():
    """FORMAT.md §3.3: all chunks of the range, in order, and no other."""
    manifest = _manifest()
    r = _replacement(manifest)
    first, second = r.sources
    path, _ = first
    for sources in ((), (first,), (second, first), (first, second, first), ((path, 1), second)):
        _refused(manifest, replace(r, sources=sources), "does not name exactly the 2 chunks")


def test_a_range_does_not_cut_chunks():
    """Neither at its base nor at its end."""
    manifest = _manifest(3, rolls=False)
    manifest = applied(manifest, Edit(seal=((0, 0),)))
    chunks = manifest.segments[0][0].chunks
    for base, end, inside in ((1, 4, chunks[1:2]), (2, 5, chunks[1:2]), (3, 4, ())):
        sources = tuple(c.identity for c in inside)
        r = Replacement(0, base, end, sources, tuple(inside))
        _refused(manifest, r, "does not name exactly")


@pytest.mark.parametrize(
    "tiles",
    [
        *((), ((0, 3, 1),), ((0, 2, 1), (3, 4, 1)), ((0, 3, 1), (2, 4, 1))),
        *(((0, 4, 1), (4, 6, 1)), ((0, 4, 1), (4, 4, 1)), ((0, 5, 1), (5, 4, 1))),
    ],
)
def test_tiles_cover_the_range_without_gap_or_overlap(tiles):
    """FORMAT.md §3.3; an empty one covers nothing."""
    manifest = _manifest()
    r = replace(_replacement(manifest), chunks=(), segments=tiles)
    _refused(manifest, r, "do not tile")


def test_tiles_are_of_whole_segments():
    """A range that starts or ends within a segment cannot get new tiles."""
    manifest = applied(_manifest(3, rolls=False), Edit(seal=((0, 0),)))
    chunk = manifest.segments[0][0].chunks[1]
    r = Replacement(0, 2, 4, (chunk.identity,), (chunk,), ((2, 4, 1),))
    _refused(manifest, r, "do not tile")


def test_chunks_lie_in_the_range_in_order():
    """And each in exactly one tile."""
    manifest = _manifest()
    r = _replacement(manifest)
    (chunk,) = r.chunks
    low, high = replace(chunk, base=0, next=2), replace(chunk, base=2, next=4)
    for chunks in ((high, low), (low, low), (replace(chunk, next=5),), (replace(chunk, base=-1),)):
        _refused(manifest, replace(r, chunks=chunks), "are not in order")
    tiles = ((0, 2, 1), (2, 4, 1))
    _refused(manifest, replace(r, segments=tiles), "do not fit the segments")
    assert applied(manifest, Edit(replace=(replace(r, chunks=(low, high), segments=tiles),)))


@pytest.mark.parametrize(("base", "end"), [(2, 2), (4, 2), (0, 0)])
def test_a_replacement_has_a_range(base, end):
    """An empty one replaces nothing."""
    r = Replacement(0, base, end, (), ())
    _refused(_manifest(), r, "are not in order|does not name exactly")


def test_a_horizon_stamps_its_chunk():
    """S23: nothing else about it changes."""
    manifest = _manifest()
    chunk = manifest.segments[1][1].chunks[0]
    mark = ChunkHorizon(1, *chunk.identity, 9_000, 5)
    after = applied(manifest, Edit(horizons=(mark,)))
    assert after.segments[1][1].chunks == (replace(chunk, horizon=9_000, up_to=5),)
    assert (after.segments[0], after.segments[1][0]) == (
        manifest.segments[0],
        manifest.segments[1][0],
    )


def test_a_horizon_never_changes():
    """FORMAT.md §5.3: a second one for the chunk is corruption; so is one for no chunk."""
    manifest = _manifest()
    path, row = manifest.segments[1][1].chunks[0].identity
    mark = ChunkHorizon(1, path, row, 9_000, 5)
    changed = applied(manifest, Edit(horizons=(mark,)))
    for place in (changed, manifest):
        at_row = row if place is changed else row + 1
        with pytest.raises(CorruptionError, match="has one"):
            applied(place, Edit(horizons=(replace(mark, first_row=at_row, horizon_ms=1),)))


def test_large_edits_compare_each_chunk_a_few_times(monkeypatch):
    """A rebase applies the edit again: if it were quadratic, the cleaner would lose every race."""
    manifest = _manifest(200, rolls=False)
    (r,) = clean_edit(_manifest(200), 0, "e" * 32, count=200).replace
    marks = tuple(ChunkHorizon(1, *c.identity, 9, 1) for c in manifest.segments[1][0].chunks)
    compared = []
    equal = Chunk.__eq__
    monkeypatch.setattr(Chunk, "__eq__", lambda a, b: compared.append(a) or equal(a, b))
    applied(_manifest(201), Edit(replace=(r,)))
    applied(manifest, Edit(horizons=marks))
    assert len(compared) < 4 * 200


def test_the_steps_of_removed_tombstones_stay_few():
    """S41: a step that is covered by a newer and higher one is left out."""
    manifest = _manifest()
    for removed in ({0: 5, 1: 1}, {0: 3}, {1: 0}, {0: 3}, {0: 4}):
        manifest = applied(manifest, Edit(tombstones_removed=removed))
    assert sorted(manifest.tombstones_removed) == [(0, 5, 5), (0, 9, 4), (1, 5, 1), (1, 7, 0)]


def test_marks_of_uncleanable_partitions_come_and_go():
    """S28: null clears."""
    mark = Uncleanable("keys too large", 5, 1)
    changed = applied(_manifest(), Edit(uncleanable={0: mark, 1: mark}))
    assert changed.uncleanable == {0: mark, 1: mark}
    assert applied(changed, Edit(uncleanable={1: None})).uncleanable == {0: mark}


def test_the_order_of_an_edit_is_that_of_the_format():
    """FORMAT.md §3.2: sealed, replaced and appended in one commit."""
    manifest = _manifest(2, rolls=False)
    r = coalesce_edit(manifest, 0, "c" * 32).replace[0]
    tiled = replace(r, segments=((0, 4, 1_001),))
    edit = replace(
        append_edit(manifest, {0: 2}, "d" * 32),
        seal=((0, 3),),
        replace=(tiled,),
        first_dirty={0: 4},
    )
    after = applied(manifest, edit)
    assert _bounds(after, 0) == [(0, 4), (4, 6)]
    assert (after.segments[0][0].rows, after.first_dirty[0]) == (4, 4)


def test_paged_ranges_cannot_be_changed():
    """What an edit changes is brought in before; an append needs none of it."""
    manifest = _manifest()
    page = SegmentPage("pages/x.json", 9, {0: (0, 4)})
    paged = replace(
        manifest, segments=(manifest.segments[0][2:], manifest.segments[1]), pages=(page,)
    )
    assert (paged.paged_below(0), paged.paged_below(1)) == (4, NONE)
    for edit in (clean_edit(manifest, 0, "e" * 32), Edit(start={0: 4}, drop={0: 4})):
        with pytest.raises(AssertionError, match="unpage it first"):
            applied(paged, edit)
    assert applied(paged, clean_edit(manifest, 1, "e" * 32))
    assert applied(paged, append_edit(manifest, {0: 1}, "d" * 32, rolls=True))


def test_facts_of_a_segment():
    """Times of its records, of its commit if it has none (S11); rows without the dead ones."""
    manifest = _manifest()
    segment = manifest.segments[0][1]
    assert (segment.rows, segment.size_bytes) == (2, 40)
    assert segment.first_timestamp_ms == segment.max_timestamp_ms == 1_002
    empty = replace(segment, chunks=())
    assert (empty.rows, empty.max_timestamp_ms, empty.first_timestamp_ms) == (0, 1_002, 1_002)
