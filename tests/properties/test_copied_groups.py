"""Copied row groups contain what decoding and encoding would give, whatever they are copied from,
and whatever is beside them.
"""

import itertools
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forged_groups import forged, set_limits
from hypothesis import event, given, settings
from hypothesis import strategies as st

from clog.storage.config.units import ZSTD, Compression
from clog.storage.diagnostics.verify import object_problems
from clog.storage.env import SeededIds
from clog.storage.errors import CorruptionError
from clog.storage.format.chunks import Chunk, write_dead_rows
from clog.storage.objects import writer
from clog.storage.objects.composing import CopiedGroup, write_rewritten
from clog.storage.objects.writer import ObjectWriter, rewritten_chunk
from clog.storage.read import copy
from clog.storage.read.copy import Wanted, read_or_copy
from clog.storage.read.scan import COLUMNS, DELETE_HORIZON, piece_of, read_pieces
from clog.storage.types import columns as typed
from clog.storage.types.columns import REWRITTEN_SCHEMA
from clog_testing.crash import discard, memory_store

READ = (*COLUMNS, DELETE_HORIZON)
SEED = 7
OCTETS = st.none() | st.binary(max_size=6)
HEADERS = st.none() | st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=2), "value": OCTETS}), min_size=1, max_size=2
)
RECORD = st.tuples(OCTETS, OCTETS, HEADERS, st.integers(0, 1 << 52))


@pytest.fixture(autouse=True)
def small_limits(monkeypatch):
    """Limits that few records reach."""
    set_limits(monkeypatch, 40)


@st.composite
def objects(draw):
    """Runs of records with their offsets: with and without gaps, headers, horizons."""
    made, offset = [], draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 3))):
        rows = draw(st.lists(RECORD, min_size=1, max_size=30))
        has_gaps, has_headers, has_horizons = (draw(st.booleans()) for _ in range(3))
        table = []
        for key, value, headers, time in rows:
            horizon = draw(st.none() | st.integers(0, 99)) if has_horizons else None
            table.append((key, value, headers if has_headers else None, time, offset, horizon))
            offset += draw(st.integers(1, 3)) if has_gaps else 1
        offset += draw(st.integers(0, 1))
        made.append(table)
    return made


def as_batch(rows):
    columns = zip(*rows, strict=True)
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, REWRITTEN_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=REWRITTEN_SCHEMA)


def put(store, parts, ids, **options):
    options = {"partition": 2, "stamp": 0, "key_seed": SEED, **options}
    return write_rewritten(store, parts, new_id=ids.new_id, **options)


@st.composite
def changed(draw, chunk):
    """A chunk as it may be later: with dead rows, a horizon, timestamps of its append."""
    horizon = draw(st.none() | st.integers(chunk.base, chunk.next))
    if horizon is not None:
        chunk = replace(chunk, horizon=77, up_to=horizon)
    if draw(st.integers(0, 5)) == 0:
        chunk = replace(chunk, append_time_ms=99)
    dead = draw(st.none() | st.sets(st.integers(0, chunk.rows - 1), min_size=1, max_size=3))
    return chunk, dead if dead and len(dead) < chunk.rows else None


def fallen(store, chunk, dead, ids):
    if dead is None:
        return chunk
    mask = np.isin(np.arange(chunk.rows), sorted(dead))
    marked = write_dead_rows(store, mask, since_ms=1, stamp=0, new_id=ids.new_id)
    return replace(chunk, dead=marked)


def in_order(found):
    return [p if isinstance(p, CopiedGroup) else p.drop_columns(["partition"]) for p in found]


def read_back(store, made):
    """All rows of new objects, each verified against its own metadata."""
    chunks = [rewritten_chunk(obj, version=1) for obj in made]
    for chunk in chunks:
        data = store.get(chunk.object.path)
        problems = object_problems(data, chunk.object, [(2, chunk)], key_seed=SEED)
        assert list(problems) == []
    pieces = [piece_of(2, chunk, chunk.base, chunk.next) for chunk in chunks]
    return pa.Table.from_batches(read_pieces(store, pieces, columns=READ))


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(st.data())
def test_copied_and_encoded_are_the_same(data):
    """Records, statistics, checksums of pages and of the footer, key index (S26, S31)."""
    store, ids = memory_store(), SeededIds(1)
    parts, decoded = [], []
    for rows in data.draw(objects()):
        seed = data.draw(st.sampled_from([SEED, None]))
        codec = data.draw(st.sampled_from([ZSTD, ZSTD, ZSTD, Compression("snappy")]))
        (obj,) = put(store, [as_batch(rows)], ids, key_seed=seed, compression=codec)
        chunk, dead = data.draw(changed(rewritten_chunk(obj, version=1)))
        chunk = fallen(store, chunk, dead, ids)
        low = data.draw(st.sampled_from([chunk.base, chunk.base, (chunk.base + chunk.next) // 2]))
        piece = piece_of(2, chunk, low, chunk.next)
        if not piece.rows:
            continue
        decoded += [
            b.drop_columns(["partition"]) for b in read_pieces(store, [piece], columns=READ)
        ]
        found = read_or_copy(
            store, [Wanted(piece, chunk)], columns=READ, compression=ZSTD, key_seed=SEED
        )
        parts += in_order(found)
    event(f"copies: {any(isinstance(part, CopiedGroup) for part in parts)}")
    limit = data.draw(st.sampled_from([1 << 20, 200]))
    made = put(store, parts, ids, object_bytes=limit)
    if decoded:
        expected = pa.Table.from_batches(decoded)
        found = read_back(store, made).drop_columns(["partition"])
        assert found.select(expected.schema.names).combine_chunks() == expected.combine_chunks()
    discard(store)


def one_object(store, ids, rows=24, **options):
    batch = as_batch([(b"k%d" % i, b"v" * 20, None, 1000 * i, 5 + i, None) for i in range(rows)])
    (obj,) = put(store, [batch], ids, **options)
    return rewritten_chunk(obj, version=1)


def copies(store, chunk: Chunk, compression=ZSTD):
    piece = piece_of(2, chunk, chunk.base, chunk.next)
    options = {"columns": READ, "compression": compression, "key_seed": SEED}
    return [
        part
        for part in read_or_copy(store, [Wanted(piece, chunk)], **options)
        if isinstance(part, CopiedGroup)
    ]


def test_what_is_copied_is_not_decoded():
    """All groups of a chunk that stays entirely; each brings its block of the key index along."""
    store, ids = memory_store(), SeededIds(1)
    chunk = one_object(store, ids)
    groups = copies(store, chunk)
    assert sum(group.num_rows for group in groups) == chunk.rows
    assert len(groups) > 3
    first = store.get(chunk.object.path)
    (again,) = put(store, groups, ids)
    second = store.get(again.ref.path)
    pages = slice(4, chunk.object.tail[0])
    assert first[pages] == second[pages]
    discard(store)


def test_a_gap_before_what_is_copied_makes_offsets():
    """Dense objects have none; one that joins them over a gap has one, of a few bytes per group."""
    store, ids = memory_store(), SeededIds(1)
    chunk = one_object(store, ids)
    (joined,) = put(store, [*copies(store, chunk)[:1], *copies(store, chunk)[2:]], ids)
    assert chunk.object.dense
    assert not joined.ref.dense
    rows = read_back(store, [joined])
    assert rows.column("offset").to_pylist()[0] == 5
    assert rows.num_rows < chunk.rows
    discard(store)


@pytest.mark.parametrize("change", ["codec", "statistics of the chunk", "tombstones of the chunk"])
def test_what_is_not_as_it_is_to_be_is_decoded(change):
    """A codec other than the log's now; a footer that contradicts the manifest."""
    store, ids = memory_store(), SeededIds(1)
    chunk = one_object(store, ids)
    assert copies(store, chunk)
    if change == "codec":
        assert copies(store, chunk, Compression("snappy")) == []
    elif change == "statistics of the chunk":
        assert copies(store, replace(chunk, size_bytes=chunk.size_bytes + 1)) == []
    else:
        assert copies(store, replace(chunk, tombstones=1)) == []
    discard(store)


def test_a_time_that_the_format_forbids_is_not_copied(monkeypatch):
    """FORMAT.md §5.1: it is damage, as for a reader; a rewrite does not copy it to the
    new object.
    """
    monkeypatch.setattr(writer, "_conforming", lambda records, _: records.to_batches())
    store, ids = memory_store(), SeededIds(1)
    batch = as_batch(
        [(b"k%d" % i, b"v" * 20, None, -5 if i == 7 else 1000, 5 + i, None) for i in range(24)]
    )
    (obj,) = put(store, [batch], ids)
    chunk = rewritten_chunk(obj, version=1)
    with pytest.raises(CorruptionError, match="timestamps that are null or before 1970"):
        copies(store, chunk)
    discard(store)


@pytest.mark.parametrize("codec", ["none", "snappy", "lz4", "zstd"])
def test_groups_of_every_codec_are_copied(codec):
    """All values of ``compression.type``: Parquet's numbers are those that the writer writes."""
    store, ids = memory_store(), SeededIds(1)
    compression = Compression(codec)
    groups = copies(store, one_object(store, ids, compression=compression), compression)
    assert groups
    assert read_back(store, put(store, groups, ids, compression=compression)).num_rows == 24
    discard(store)


def without_ids(monkeypatch):
    """Objects as they were written before columns had field ids."""
    monkeypatch.setattr(typed, "with_ids", lambda field: field)


@pytest.mark.parametrize("gap", [False, True])
def test_objects_with_and_without_field_ids_are_joined(monkeypatch, gap):
    """FORMAT.md §5.1: groups of both are copied into one object, which has ids."""
    store, ids = memory_store(), SeededIds(1)
    with monkeypatch.context() as earlier:
        without_ids(earlier)
        old = one_object(store, ids)
    batch = as_batch([(b"l%d" % i, None, None, 5, 60 + i, None) for i in range(9)])
    groups = [*copies(store, old)][1 if gap else 0 :]
    new = one_object(store, ids)
    (joined,) = put(store, [*groups, batch], ids)
    assert groups
    kinds = {}
    for name, path in [("old", old.object.path), ("new", new.object.path), ("it", joined.ref.path)]:
        schema = pq.ParquetFile(pa.BufferReader(store.get(path))).schema_arrow
        kinds[name] = {field.name: field.metadata is not None for field in schema}
    assert set(kinds["old"].values()) == {False}
    assert set(kinds["new"].values()) == set(kinds["it"].values()) == {True}
    assert read_back(store, [joined]).num_rows == sum(g.num_rows for g in groups) + 9
    discard(store)


def test_another_field_id_is_no_copy_and_is_found(monkeypatch):
    """A reader of the table would not find the column: it is decoded, and `verify` reports it."""
    store, ids = memory_store(), SeededIds(1)
    with monkeypatch.context() as wrong:
        other = {b"PARQUET:field_id": b"30"}
        wrong.setattr(typed, "with_ids", lambda field: field.with_metadata(other))
        chunk = one_object(store, ids)
    assert copies(store, chunk) == []
    data = store.get(chunk.object.path)
    (problem,) = object_problems(data, chunk.object, [(2, chunk)], key_seed=SEED)
    assert "field ids" in problem
    discard(store)


def test_small_groups_are_encoded_anew(monkeypatch):
    """If copied, they would stay small forever."""
    store, ids = memory_store(), SeededIds(1)
    chunk = one_object(store, ids)
    count = len(copies(store, chunk))
    monkeypatch.setattr(copy, "GROUP_BYTES_MIN", 10_000)
    assert count
    assert copies(store, chunk) == []
    discard(store)


def test_row_groups_of_a_fresh_object_of_several_partitions():
    """A group with rows of one partition only is copied, one of two is not."""
    store, ids = memory_store(), SeededIds(1)
    rows = 40
    target = ObjectWriter(store, stamp=0, new_id=ids.new_id, partitions=3, key_seed=None)
    batch = as_batch([(b"k", b"v" * 9, None, i, i, None) for i in range(rows)])
    target.add(batch.drop_columns(["offset", "delete_horizon"]), np.repeat([0, 2], rows // 2))
    (obj,) = target.finish()
    first, second = obj.chunks
    common = {"first_timestamp_ms": 0, "max_timestamp_ms": 0, "tombstones": 0, "version": 1}
    chunks = [
        Chunk(obj.ref, row, s.rows, 100, 100 + s.rows, s.size_bytes, **common)
        for row, s in ((0, first), (first.rows, second))
    ]
    wanted = [Wanted(piece_of(p, c, 100, 200), c) for p, c in zip((0, 2), chunks, strict=True)]
    found = list(read_or_copy(store, wanted, columns=READ, compression=ZSTD, key_seed=SEED))
    groups = [part for part in found if isinstance(part, CopiedGroup)]
    assert {group.stats.partition for group in groups} == {0, 2}
    batches = [part for part in found if not isinstance(part, CopiedGroup)]
    offsets = list(
        itertools.chain(
            *(range(g.stats.first_offset, g.stats.last_offset + 1) for g in groups),
            *(b.column("offset").to_pylist() for b in batches),
        )
    )
    assert sorted(offsets) == sorted([*range(100, 120)] * 2)
    discard(store)


PLAIN = [(b"k%d" % i, b"v" * 20, None, 1000 * i, 5 + 2 * i, None) for i in range(12)]


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(st.data())
def test_a_forged_footer_is_decoded_or_copied_whole(data):
    """With a field of another kind or value, or an unknown one: the result is an object again, or
    an error that decoding has too.
    """
    store, ids = memory_store(), SeededIds(1)
    (obj,) = put(store, [as_batch(PLAIN)], ids)
    ref = forged(store, obj, data)
    chunk = replace(rewritten_chunk(obj, version=1), object=ref)
    piece = piece_of(2, chunk, chunk.base, chunk.next)
    options = {"columns": READ, "compression": ZSTD, "key_seed": SEED}
    try:
        parts = in_order(read_or_copy(store, [Wanted(piece, chunk)], **options))
        (made,) = put(store, parts, ids)
        event("copied" if any(isinstance(part, CopiedGroup) for part in parts) else "decoded")
        again = rewritten_chunk(made, version=1)
        pieces = [piece_of(2, again, again.base, again.next)]
        rows = pa.Table.from_batches(read_pieces(store, pieces, columns=READ))
        rows.validate(full=True)
        assert rows.num_rows == len(PLAIN)
    except CorruptionError:
        pass
    finally:
        discard(store)
