"""Whether both readers, clog and the one that shares no code with it, find the same in a log."""

from dataclasses import astuple

import independent_reader as ir
import make_golden
import pyarrow as pa
from second_reader import log as second_reader
from second_reader.undecided import unended_of

from clog.storage.cuts import cuts_of
from clog.storage.format.chunks import DEAD, MASK, Chunk
from clog.storage.format.cuts import KEEPS, MEMBERS
from clog.storage.format.transactions import UNENDED


def agree(root, log, *, whole_history=True):
    """Both ways of the independent reader, unless the sweep took what the long one needs, and clog
    find the same state and the same records.
    """
    state = ir.from_snapshot(root)
    if whole_history:
        assert ir.manifest(state) == ir.manifest(ir.replay(root))
    log.handle.refresh()
    manifest = log.handle.manifest()
    assert state["version"] == manifest.version
    assert state["first_dirty"] == list(manifest.first_dirty)
    assert state["covered"] == list(manifest.covered or [0] * len(state["covered"]))
    # The order of several of one commit means nothing (FORMAT.md §4).
    released = [(r.path, r.size_bytes, r.version, r.time_ms) for r in manifest.released]
    assert sorted(state["released"]) == sorted(released)
    assert [r[2] for r in state["released"]] == [r[2] for r in released]
    assert state["tombstones_removed"] == list(manifest.tombstones_removed)
    assert state["orders_removed"] == list(manifest.orders_removed)
    assert state["uncleanable"].keys() == {str(p) for p in manifest.uncleanable}
    unended = UNENDED.write(manifest.head.unended)
    assert state["unended"] == unended_of(unended, manifest.head.log.partitions)
    own, head = state["state"], manifest.head
    assert (own.kept, own.members) == (KEEPS.write(head.kept), MEMBERS.write(head.members))
    for cut in cuts_of(log.handle):
        versions = {cut.ids[url][0]: version for url, version in cut.logs.items()}
        assert second_reader.Log(root).cut(cut.name) == versions
    assert state["markers"] == [tuple(astuple(marker)) for marker in manifest.markers]
    for p, segments in enumerate(manifest.segments):
        assert [chunks_of(s) for s in state["segments"][p]] == [
            (s.base, s.next, s.created_ms, [as_row(c) for c in s.chunks]) for s in segments
        ]
        rows = ir.records(root, state, p)
        assert [plainly(row) for row in rows] == [plainly(row) for row in delivered(log, p)]
        rows = ir.records(root, state, p, committed=False)
        found = delivered(log, p, isolation="read_uncommitted")
        assert [plainly(row) for row in rows] == [plainly(row) for row in found]
    return state


def plainly(row):
    """A record without its horizon, typed keys and values as JSON has them."""
    return make_golden.plainly((*row[:5], None))[:5]


def chunks_of(segment):
    rows = [
        (
            *(chunk["object"], *(chunk[name] for name in ir.CHUNK)),
            *(chunk.get(name) for name in ("dead", "mask", "undecided")),
            chunk.get("aborted", False),
        )
        for chunk in segment["chunks"]
    ]
    return segment["base"], segment["next"], segment["created_ms"], rows


def as_row(c: Chunk):
    return (
        *(c.object.path, c.first_row, c.rows, c.base, c.next, c.size_bytes),
        *(c.first_timestamp_ms, c.max_timestamp_ms, c.tombstones, c.version, c.append_time_ms),
        *(c.horizon_min, c.horizon_max, c.horizon, c.up_to),
        None if c.dead is None else DEAD.write(c.dead),
        None if c.mask is None else MASK.write(c.mask),
        None if c.undecided is None else astuple(c.undecided),
        c.aborted,
    )


def delivered(log, p, **limits):
    """What `Log.read` returns, in the form of the independent reader."""
    found = []
    for batch in log.read(p, **limits):
        times = batch.column("timestamp").cast(pa.int64()).to_pylist()
        for row, time in zip(batch.drop_columns(["timestamp"]).to_pylist(), times, strict=True):
            headers = [(h["key"], h["value"]) for h in row["headers"] or ()]
            found.append((row["offset"], time, row["key"], row["value"], headers))
    return found
