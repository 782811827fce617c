"""Copied row groups of typed logs contain what decoding and encoding would give, for columns of
every kind; those of an earlier schema are not copied.
"""

import datetime as dt
import decimal
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forged_groups import forged, set_limits
from hypothesis import event, given, settings
from hypothesis import strategies as st

from clog.storage.config.units import ZSTD
from clog.storage.diagnostics.verify import object_problems
from clog.storage.env import SeededIds
from clog.storage.errors import CorruptionError
from clog.storage.format.log_info import as_table
from clog.storage.objects.composing import CopiedGroup, write_rewritten
from clog.storage.objects.writer import rewritten_chunk
from clog.storage.read.copy import Wanted, read_or_copy
from clog.storage.read.scan import COLUMNS, DELETE_HORIZON, piece_of, read_pieces
from clog.storage.types.columns import column_types, schema_of
from clog.storage.types.evolve import Changes, evolved
from clog_testing.crash import discard, memory_store

READ = (*COLUMNS, DELETE_HORIZON)
SEED = 7
NUMBERS = st.integers(-100, 100)
TEXTS = st.text(max_size=4)


def maybe(values):
    return st.none() | values


KEYS = {
    pa.string(): TEXTS,
    pa.int32(): NUMBERS,
    pa.timestamp("us", "UTC"): NUMBERS,
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.struct([("k", pa.int16()), ("s", pa.string())]): st.fixed_dictionaries(
        {"k": maybe(NUMBERS), "s": maybe(st.sampled_from(["", "\0", "ab"]))}
    ),
}
INNER = pa.struct([pa.field("q", pa.int8(), nullable=False), ("r", pa.binary())])
INNERS = st.fixed_dictionaries({"q": NUMBERS, "r": maybe(st.binary(max_size=3))})
VALUES = {
    pa.int64(): NUMBERS,
    pa.string(): TEXTS,
    pa.float16(): st.just(0.5),
    pa.bool_(): st.booleans(),
    pa.decimal128(5, 2): st.integers(0, 999).map(lambda n: decimal.Decimal(n) / 4),
    pa.date32(): NUMBERS.map(lambda n: dt.date(2000, 1, 1) + dt.timedelta(n)),
    pa.list_(pa.string()): st.lists(maybe(TEXTS), max_size=3),
    pa.struct(
        [
            pa.field("n", pa.int32(), nullable=False),
            ("offset", pa.binary(2)),
            ("l", pa.list_(INNER)),
            ("m", pa.map_(pa.string(), pa.decimal128(5, 2))),
        ]
    ): st.fixed_dictionaries(
        {
            "n": NUMBERS,
            "offset": maybe(st.binary(min_size=2, max_size=2)),
            "l": maybe(st.lists(maybe(INNERS), max_size=2)),
            "m": maybe(st.dictionaries(TEXTS, st.none() | st.just(decimal.Decimal(1)), max_size=2)),
        }
    ),
}


@pytest.fixture(autouse=True)
def small_limits(monkeypatch):
    """Limits that few records reach."""
    set_limits(monkeypatch, 30)


@st.composite
def typed_rows(draw):
    """A schema, and rows of it with offsets, with and without gaps."""
    key, value = draw(st.sampled_from([*KEYS])), draw(st.sampled_from([*VALUES]))
    has_columns = pa.types.is_struct(value) and draw(st.booleans())
    own = pa.field("key", key, nullable=not has_columns)
    schema = schema_of(pa.schema([own, pa.field("value", value)]))
    if has_columns:
        schema = as_table(schema, ["k", "s"] if pa.types.is_struct(key) else ["k"])
        assert schema.is_table
    keys = KEYS[key] if has_columns else maybe(KEYS[key])
    steps = st.just(1) if draw(st.booleans()) else st.integers(1, 3)
    found = draw(st.lists(st.tuples(keys, maybe(VALUES[value]), steps), min_size=1, max_size=30))
    rows, offset = [], 0
    for one_key, one_value, step in found:
        offset += step
        rows.append((one_key, one_value, None, 5, offset, None))
    return schema, rows


def as_batch(schema, rows):
    fields = column_types(schema).rewritten
    arrays = [pa.array(list(c), f.type) for c, f in zip(zip(*rows, strict=True), fields)]  # noqa: B905
    return pa.RecordBatch.from_arrays(arrays, schema=fields)


def put(store, schema, parts, **options):
    options = {"partition": 2, "stamp": 0, "key_seed": SEED, "schema": schema, **options}
    return write_rewritten(store, parts, new_id=SeededIds(len(parts)).new_id, **options)


def parts_of(store, schema, chunk):
    piece = piece_of(2, chunk, chunk.base, chunk.next, schema)
    options = {"columns": READ, "compression": ZSTD, "key_seed": SEED}
    found = read_or_copy(store, [Wanted(piece, chunk)], **options)
    return [p if isinstance(p, CopiedGroup) else p.drop_columns(["partition"]) for p in found]


def read(store, schema, chunks):
    pieces = [piece_of(2, chunk, chunk.base, chunk.next, schema) for chunk in chunks]
    return pa.Table.from_batches(read_pieces(store, pieces, columns=READ)).combine_chunks()


@settings(max_examples=4 * settings().max_examples // 5, deadline=None)
@given(st.data())
def test_copied_and_encoded_are_the_same(data):
    """Records, their sizes, tombstones, key index, checksums (S26, S31, S61): everything large
    enough is copied.
    """
    store = memory_store()
    schema, rows = data.draw(typed_rows())
    (obj,) = put(store, schema, [as_batch(schema, rows)])
    chunk = rewritten_chunk(obj, version=1)
    parts = parts_of(store, schema, chunk)
    copied = [part for part in parts if isinstance(part, CopiedGroup)]
    event(f"copies: {bool(copied)}")
    if len(rows) > 12:
        assert copied
    more = as_batch(schema, [(*rows[0][:4], chunk.next + 1, None)])
    made = put(store, schema, [*parts, more])
    chunks = [rewritten_chunk(each, version=1) for each in made]
    for each in chunks:
        content = store.get(each.object.path)
        problems = object_problems(content, each.object, [(2, each)], key_seed=SEED, schema=schema)
        assert list(problems) == []
    expected = read(store, schema, [chunk])
    found = read(store, schema, chunks)
    assert found.slice(0, expected.num_rows) == expected
    assert found.num_rows == expected.num_rows + 1
    discard(store)


SCHEMA = schema_of({"key": pa.int32(), "value": pa.struct([("n", pa.int32()), ("s", pa.string())])})
PLAIN = [(i, {"n": i, "s": "text"} if i % 5 else None, None, 5, 2 * i, None) for i in range(20)]


def test_what_is_of_an_earlier_schema_is_decoded():
    """S61: it is rewritten into the newest schema; unless fields only have other names there, which
    are not in its pages.
    """
    store = memory_store()
    (obj,) = put(store, SCHEMA, [as_batch(SCHEMA, PLAIN)])
    chunk = rewritten_chunk(obj, version=1)
    assert all(isinstance(part, CopiedGroup) for part in parts_of(store, SCHEMA, chunk)[:-1])
    again = {"drop": ["value.n"], "add": {"value.n": pa.int32()}}
    renamed = {"rename": {"value.n": "m"}}
    for change in ({"widen": {"value.n": pa.int64()}}, {"drop": ["value.n"]}, again, renamed):
        asked = {"add": {}, "widen": {}, "relax": (), "rename": {}, "drop": ()} | change
        later, _ = evolved(SCHEMA, (), Changes.given(**asked), by_id=True, url="")
        copied = [isinstance(part, CopiedGroup) for part in parts_of(store, later, chunk)[:-1]]
        assert copied == [change is renamed] * len(copied)
    discard(store)


@settings(max_examples=3 * settings().max_examples // 2, deadline=None)
@given(st.data())
def test_a_forged_footer_is_decoded_or_copied_whole(data):
    """With a field of another kind or value, or an unknown one: the result is an object again, or
    an error that decoding has too.
    """
    store = memory_store()
    (obj,) = put(store, SCHEMA, [as_batch(SCHEMA, PLAIN)])
    ref = forged(store, obj, data)
    chunk = replace(rewritten_chunk(obj, version=1), object=ref)
    try:
        parts = parts_of(store, SCHEMA, chunk)
        (made,) = put(store, SCHEMA, parts)
        event("copied" if any(isinstance(part, CopiedGroup) for part in parts) else "decoded")
        rows = read(store, SCHEMA, [rewritten_chunk(made, version=1)])
        rows.validate(full=True)
        assert rows.num_rows == len(PLAIN)
    except CorruptionError:
        pass
    finally:
        discard(store)


@settings(max_examples=2 * settings().max_examples // 5, deadline=None)
@given(typed_rows(), st.integers(2, 4))
def test_what_is_encoded_in_parts_is_the_same(typed, encoders):
    """Row groups, records, key index and checksums, except for where pages are (S26)."""
    store = memory_store()
    schema, rows = typed
    (plain,) = put(store, schema, [as_batch(schema, rows)])
    (made,) = put(store, schema, [as_batch(schema, rows)], encoders=encoders, stamp=1)
    assert made.chunks == plain.chunks
    assert (made.ref.rows, made.ref.dense) == (plain.ref.rows, plain.ref.dense)
    chunk, expected = (rewritten_chunk(each, version=1) for each in (made, plain))
    content = store.get(made.ref.path)
    problems = object_problems(content, made.ref, [(2, chunk)], key_seed=SEED, schema=schema)
    assert list(problems) == []
    assert read(store, schema, [chunk]) == read(store, schema, [expected])
    counts = [pq.ParquetFile(pa.BufferReader(store.get(o.ref.path))) for o in (made, plain)]
    assert len({file.num_row_groups for file in counts}) == 1
    discard(store)
