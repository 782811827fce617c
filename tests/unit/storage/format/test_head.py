"""Heads: each is its predecessor and the edit, or corruption (FORMAT.md §3.4)."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clog.storage.errors import CorruptionError, UnsupportedFormatError
from clog.storage.format.chunks import Append, Uncleanable
from clog.storage.format.columns import COLUMNS
from clog.storage.format.commits import (
    Edit,
    SnapshotRef,
    advance,
    first_head,
    head_from_json,
    head_to_json,
)
from clog.storage.format.documents import body_json
from clog.storage.format.transactions import AppendedBy, WriterEntry
from clog.storage.format.writers import PagedWriters, PageRef
from clog_testing.histories import (
    append_edit,
    applied,
    clean_edit,
    coalesce_edit,
    fresh_manifest,
    histories,
    log_info,
)


def _step(manifest, edit):
    """The head one version on, at time 5000."""
    return advance(manifest.head, edit, version=manifest.version + 1, time_ms=5_000)


def _filled(*, rolls: bool = False):
    """Two appends to two partitions; with ``rolls`` in a segment each."""
    manifest = fresh_manifest()
    for n in range(2):
        edit = append_edit(manifest, {0: 2, 1: 3}, f"{n:032x}", rolls=rolls)
        manifest = applied(manifest, edit)
    return manifest


@given(histories())
def test_a_head_comes_back(history):
    """Through JSON text, unchanged."""
    head = history[0].head
    assert head_from_json(json.loads(body_json(head_to_json(head))), where="x") == head


def test_fields_of_newer_writers_are_kept():
    """FORMAT.md §8: a writer keeps every field of the head that it does not know."""
    head = replace(fresh_manifest().head, snapshot=SnapshotRef(3, 900))
    value = {**head_to_json(head), "colour": {"red": [1]}}
    found = head_from_json(value, where="x")
    assert found.extra == {"colour": {"red": [1]}}
    after = advance(found, Edit(orphan_floor=1), version=1, time_ms=0)
    assert head_to_json(after) == {**value, "orphan_floor": 1}


def test_the_first_head_is_that_of_empty_partitions():
    """Offset 0, empty active segments, the config as created with, epoch 0."""
    head = first_head(Edit(create=log_info(2), config={"a": "b"}))
    assert (head.config, head.config_epoch, head.snapshot) == ({"a": "b"}, 0, None)
    columns = head_to_json(head)["partitions"]
    assert columns.pop("first_ms") == columns.pop("created_ms") == [-1, -1]
    assert set(columns) == set(COLUMNS) - {"first_ms", "created_ms"}
    assert all(column == [0, 0] for column in columns.values())


@pytest.mark.parametrize("edit", [Edit(), Edit(create=log_info(), start={0: 0})])
def test_version_0_creates_and_does_nothing_else(edit):
    """FORMAT.md §3.2."""
    with pytest.raises(CorruptionError, match="version 0"):
        first_head(edit)


def test_only_version_0_creates():
    """A log is created once."""
    with pytest.raises(CorruptionError, match="creates a log that already exists"):
        _step(fresh_manifest(), Edit(create=log_info()))


def test_an_append_moves_the_ends_and_fills_the_active_segment():
    """End, bytes, chunks; time of first record and commit only with the first chunk (S7, S8)."""
    manifest = _filled()
    columns = manifest.head.partitions
    assert (columns.start, columns.end, columns.base) == ((0, 0), (4, 6), (0, 0))
    assert (columns.bytes, columns.chunks) == ((80, 120), (2, 2))
    assert columns.first_ms == columns.created_ms == (1_001, 1_001)
    assert columns.changed == (0, 0)


def test_a_roll_begins_a_segment_at_its_chunk():
    """Its bytes, chunks, times and jitter are those of the new segment alone."""
    columns = _filled(rolls=True).head.partitions
    assert (columns.base, columns.bytes, columns.chunks) == ((2, 3), (40, 60), (1, 1))
    assert columns.created_ms == (1_002, 1_002)
    assert columns.jitter_ms == (2, 2)


def test_sealing_begins_an_empty_segment_at_the_end():
    """S8: nothing but the active segment's facts changes."""
    manifest = _filled()
    columns = _step(manifest, Edit(seal=((1, 77),))).partitions
    before = manifest.head.partitions
    assert (columns.base, columns.bytes, columns.chunks) == ((0, 6), (80, 0), (2, 0))
    assert (columns.created_ms, columns.jitter_ms) == ((1_001, -1), (0, 77))
    assert (columns.start, columns.end, columns.changed) == (
        before.start,
        before.end,
        before.changed,
    )


def test_sealing_an_empty_segment_contradicts_the_format():
    """FORMAT.md §3.2: a sealed segment covers offsets."""
    with pytest.raises(CorruptionError, match="partition 1: an edit seals the active segment"):
        _step(fresh_manifest(), Edit(seal=((1, 0),)))


def test_start_offsets_only_rise():
    """S36: a lower one changes nothing; beyond the end is corruption."""
    manifest = applied(_filled(), Edit(start={0: 3}))
    assert manifest.head.partitions.start == (3, 0)
    assert _step(manifest, Edit(start={0: 1})).partitions.start == (3, 0)
    assert _step(manifest, Edit(start={0: 4})).partitions.start == (4, 0)
    with pytest.raises(CorruptionError, match="start 5 is beyond the end offset 4"):
        _step(manifest, Edit(start={0: 5}))


def test_changed_is_the_version_of_the_last_change_that_is_no_append():
    """COMMIT.md §2: only by this does a planned clean know that it must look again."""
    manifest = _filled(rolls=True)
    assert _step(manifest, Edit(start={0: 0})).partitions.changed == (3, 0)
    assert _step(manifest, Edit(drop={1: 0})).partitions.changed == (0, 3)
    assert _step(manifest, clean_edit(manifest, 1, "c" * 32)).partitions.changed == (0, 3)
    marks = Edit(uncleanable={0: Uncleanable("x", 1, 1)}, tombstones_removed={1: 1})
    assert _step(manifest, marks).partitions.changed == (0, 0)
    assert _step(manifest, Edit(seal=((0, 1), (1, 1)))).partitions.changed == (0, 0)


def test_coalescing_the_active_segment_changes_its_chunks_alone():
    """FORMAT.md §3.3: its bytes stay."""
    manifest = _filled()
    columns = _step(manifest, coalesce_edit(manifest, 1, "c" * 32)).partitions
    assert (columns.chunks, columns.bytes) == ((2, 1), manifest.head.partitions.bytes)


@pytest.mark.parametrize("tiles", [None, ((0, 6, 1),)])
def test_a_replacement_is_sealed_or_active_never_both(tiles):
    """FORMAT.md §3.3: nor may one change the tiles of the active segment."""
    manifest = _filled(rolls=True)
    (r,) = clean_edit(manifest, 1, "c" * 32).replace
    with pytest.raises(CorruptionError, match=r"\[0, 6\) changes sealed segments and the active"):
        _step(manifest, Edit(replace=(replace(r, next=6, segments=tiles),)))


def test_segments_are_dropped_below_the_start_only():
    """FORMAT.md §3.2: what is readable stays."""
    manifest = applied(_filled(rolls=True), Edit(start={0: 2}))
    assert _step(manifest, Edit(drop={0: 2}))
    assert _step(manifest, Edit(start={1: 3}, drop={1: 3}))
    with pytest.raises(CorruptionError, match=r"segments below 3 are dropped.*offset is 2"):
        _step(manifest, Edit(drop={0: 3}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base": 5, "next": 7}, "appended at end offset 4"),
        ({"base": 3, "next": 5}, "appended at end offset 4"),
        ({"next": 7}, "appended at end offset 4"),
        ({"rows": 0, "next": 4}, "appended at end offset 4"),
    ],
)
def test_a_chunk_is_appended_at_the_end_and_dense(changes, message):
    """FORMAT.md §3.3: no gap, no overlap, no empty chunk."""
    manifest = _filled()
    ((p, chunk),) = append_edit(manifest, {0: 2}, "d" * 32).add.chunks
    with pytest.raises(CorruptionError, match=message):
        _step(manifest, Edit(add=Append(((p, replace(chunk, **changes)),))))


def test_a_roll_before_no_chunk_contradicts_the_format():
    """FORMAT.md §3.3: `rolls` names chunks of this append."""
    manifest = _filled()
    add = append_edit(manifest, {0: 2}, "d" * 32).add
    with pytest.raises(CorruptionError, match="rolls name chunks that do not exist"):
        _step(manifest, Edit(add=replace(add, rolls=((0, 5, 0),))))


def test_a_roll_of_an_empty_segment_contradicts_the_format():
    """As sealing one does."""
    manifest = fresh_manifest()
    add = append_edit(manifest, {0: 2}, "d" * 32).add
    with pytest.raises(CorruptionError, match="empty"):
        _step(manifest, Edit(add=replace(add, rolls=((0, 0, 0),))))


@pytest.mark.parametrize(
    "edit",
    [
        *(Edit(start={2: 0}), Edit(drop={-1: 0}), Edit(seal=((9, 0),)), Edit(first_dirty={2: 0})),
        *(Edit(tombstones_removed={2: 0}), Edit(uncleanable={-1: None})),
        append_edit(fresh_manifest(5), {4: 1}, "d" * 32),
    ],
)
def test_partitions_that_do_not_exist_contradict_the_format(edit):
    """Negative ones too: they are not an index from the end."""
    with pytest.raises(CorruptionError, match="of a log that has 2"):
        _step(fresh_manifest(), edit)


def test_config_floor_and_oldest_readable_are_as_set_last():
    """And the epoch says when the config was."""
    head = _step(_filled(), Edit(config={"a": "b"}, orphan_floor=1, oldest_readable=2))
    assert (head.config, head.config_epoch) == ({"a": "b"}, 3)
    assert (head.orphan_floor, head.oldest_readable) == (1, 2)
    after = advance(head, Edit(), version=4, time_ms=1)
    assert after == head


def test_the_most_recent_writer_is_last():
    """A writer has one entry; the order is that of the last commits."""
    head = fresh_manifest().head
    for version, name in enumerate("abca", start=1):
        entry = WriterEntry(name, "producer", None, version, None, version)
        head = advance(head, Edit(writers=(AppendedBy(entry),)), version=version, time_ms=1)
    assert [(w.writer_id, w.sequence) for w in head.writers] == [("b", 2), ("c", 3), ("a", 4)]


def test_writers_leave_for_pages_after_others_came():
    """FORMAT.md §3.2: places are those of the list that includes the edit's own writers."""
    head = fresh_manifest().head
    page = PageRef("pages/x.json", 9, 2)
    by = tuple(AppendedBy(WriterEntry(name, "txn", None, 1, None, 1)) for name in "abcd")
    edit = Edit(writers=by, older_writers=PagedWriters(page, (0, 2)))
    head = advance(head, edit, version=1, time_ms=1)
    assert [w.writer_id for w in head.writers] == ["b", "d"]
    assert head.older_writers == page
    assert advance(head, Edit(), version=2, time_ms=1).older_writers == page
    with pytest.raises(CorruptionError, match="writer 2 of the 2 in the head leaves it"):
        advance(head, Edit(older_writers=PagedWriters(page, (2,))), version=2, time_ms=1)


def test_an_unknown_read_feature_is_refused():
    """FORMAT.md §4: with the remedy; a write feature alone does not concern a reader."""
    value = head_to_json(fresh_manifest().head)
    value["log"]["features"]["write"] = ["ink"]
    assert head_from_json(value, where="x").log.features.write == ("ink",)
    value["log"]["features"]["read"] = ["dead-rows", "sounds"]
    with pytest.raises(UnsupportedFormatError, match=r"\['sounds'\].*upgrade clog"):
        head_from_json(value, where="x")


@given(st.integers(0, 6).filter(lambda n: n != 2), st.sampled_from(COLUMNS))
def test_columns_have_as_many_entries_as_partitions(length, name):
    """FORMAT.md §2."""
    value = head_to_json(fresh_manifest().head)
    value["partitions"][name] = [0] * length
    with pytest.raises(CorruptionError, match="2 partitions"):
        head_from_json(value, where="x")


def test_times_are_reset_beside_empty_active_segments_alone():
    """FORMAT.md §3.2: otherwise the head would hold times that it cannot distinguish; all is
    changed.
    """
    manifest = applied(fresh_manifest(), append_edit(fresh_manifest(), {0: 1}, "a" * 32))
    with pytest.raises(CorruptionError, match="active segment that is not empty"):
        advance(manifest.head, Edit(reset_times=True), version=2, time_ms=1)
    edit = Edit(reset_times=True, seal=((0, 0),))
    assert advance(manifest.head, edit, version=2, time_ms=1).partitions.changed == (2, 2)
