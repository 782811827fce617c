"""Whatever records are written, in whatever pieces, they are read back in order, with
right counts.
"""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clog.storage.config.units import ZSTD, Compression
from clog.storage.env import SeededIds
from clog.storage.objects import reader, writer
from clog.storage.objects.composing import write_rewritten
from clog.storage.objects.reader import open_ranges
from clog.storage.objects.writer import ObjectWriter
from clog.storage.store import open_store
from clog.storage.types.columns import RECORD_SCHEMA, REWRITTEN_SCHEMA

PARTITIONS = 4
COLUMNS = REWRITTEN_SCHEMA.names
BINARY = st.none() | st.binary(max_size=6)
HEADERS = st.none() | st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=2), "value": BINARY}), min_size=1, max_size=2
)
TIMESTAMPS = st.integers(0, 1 << 52)
RECORD = st.tuples(BINARY, BINARY, HEADERS, TIMESTAMPS)
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def small_limits(monkeypatch):
    """Limits that few records reach."""
    monkeypatch.setattr(reader, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(writer, "GROUP_BYTES", 120)
    monkeypatch.setattr(writer, "GROUP_BYTES_MIN", 40)
    monkeypatch.setattr(writer, "GROUP_ROWS", 6)


def new_store():
    return open_store(f"memory://test_data_objects/{next(_numbers)}")


def as_table(rows, schema):
    columns = zip(*rows, strict=True) if rows else [[] for _ in schema]
    arrays = [pa.array(list(c), field.type) for c, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def as_rows(batch):
    times = batch.column("timestamp").cast(pa.int64())
    columns = [times if name == "timestamp" else batch.column(name) for name in COLUMNS]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def size_of(row):
    headers = [
        part for header in row[2] or [] for part in (header["key"].encode(), header["value"])
    ]
    return 12 + sum(len(part) for part in (row[0], row[1], *headers) if part)


def check_chunk(chunk, rows):
    """A chunk's counts, compared with its rows as Python has them."""
    times_ms = [row[3] // 1000 for row in rows]
    assert chunk.rows == len(rows)
    assert chunk.size_bytes == sum(map(size_of, rows))
    assert chunk.first_timestamp_ms == times_ms[0]
    assert chunk.max_timestamp_ms == max(times_ms)
    assert chunk.tombstones == sum(row[1] is None for row in rows)


def chunk_runs(obj):
    ends = list(itertools.accumulate(chunk.rows for chunk in obj.chunks))
    return [(end - chunk.rows, chunk.rows) for chunk, end in zip(obj.chunks, ends, strict=True)]


@st.composite
def appends(draw):
    """Calls of `add`: a table, possibly a slice of another or in several chunks, and partitions."""
    calls = []
    for rows in draw(st.lists(st.lists(RECORD, max_size=12), max_size=5)):
        partition = draw(
            st.lists(st.integers(0, PARTITIONS - 1), min_size=len(rows), max_size=len(rows))
        )
        before = draw(st.lists(RECORD, max_size=3))
        cut = draw(st.integers(0, len(rows)))
        whole = as_table(before + rows + before, RECORD_SCHEMA)
        table = whole.slice(len(before), len(rows))
        if draw(st.booleans()):
            table = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
        calls.append((rows, table, partition))
    return calls


@settings(deadline=None)
@given(appends(), st.integers(1, 400), st.sampled_from([ZSTD, Compression("none")]))
def test_records_come_back(calls, object_bytes, compression):
    """Every partition has its records in the order of add; chunks and facts count them
    correctly.
    """
    store = new_store()
    writer = ObjectWriter(
        store,
        stamp=0,
        new_id=SeededIds(1).new_id,
        partitions=PARTITIONS,
        object_bytes=object_bytes,
        compression=compression,
    )
    expected = {p: [] for p in range(PARTITIONS)}
    for rows, table, partition in calls:
        writer.add(table, np.array(partition, np.int32))
        for row, p in zip(rows, partition, strict=True):
            expected[p].append((*row, None, None))
    found = {p: [] for p in range(PARTITIONS)}
    for obj in writer.finish():
        runs = [[] for _ in obj.chunks]
        for i, _, batch in open_ranges(store, obj.ref, chunk_runs(obj), columns=COLUMNS)(5):
            runs[i] += as_rows(batch)
        for chunk, rows in zip(obj.chunks, runs, strict=True):
            check_chunk(chunk, rows)
            found[chunk.partition] += rows
        every = [row for rows in runs for row in rows]
        assert obj.ref.rows == len(every)
        assert sum(map(size_of, every)) <= object_bytes or obj.ref.rows == 1
        assert obj.facts.null_keys == sum(row[0] is None for row in every)
        assert obj.facts.largest_record_bytes == max(map(size_of, every))
        assert obj.facts.min_timestamp_ms == min(row[3] for row in every) // 1000
        assert obj.facts.max_timestamp_ms == max(row[3] for row in every) // 1000
        assert obj.ref.dense
    assert found == expected


@st.composite
def cleaned(draw):
    """Records with rising offsets, and tombstones some of which have a delete horizon."""
    rows = draw(st.lists(RECORD, min_size=1, max_size=40))
    steps = draw(st.lists(st.sampled_from([1, 1, 1, 5]), min_size=len(rows), max_size=len(rows)))
    horizons = draw(
        st.lists(st.none() | st.integers(0, 99), min_size=len(rows), max_size=len(rows))
    )
    return [
        (*row, offset, horizon if row[1] is None else None)
        for row, offset, horizon in zip(rows, itertools.accumulate(steps), horizons, strict=True)
    ]


@settings(deadline=None)
@given(cleaned(), st.integers(1, 400), st.data())
def test_rewritten_records_come_back(rows, object_bytes, data):
    """With their offsets and horizons, from any runs of rows of any of the objects."""
    store = new_store()
    table = as_table(rows, REWRITTEN_SCHEMA)
    batches = table.to_batches(data.draw(st.integers(1, 40)))
    made = write_rewritten(
        store, batches, partition=3, stamp=0, new_id=SeededIds(1).new_id, object_bytes=object_bytes
    )
    at = 0
    for obj in made:
        expected = rows[at : at + obj.ref.rows]
        at += obj.ref.rows
        (chunk,) = obj.chunks
        check_chunk(chunk, expected)
        offsets = [row[4] for row in expected]
        horizons = [row[5] for row in expected if row[5] is not None]
        assert (chunk.first_offset, chunk.last_offset) == (offsets[0], offsets[-1])
        assert chunk.horizon_min == min(horizons, default=-1)
        assert chunk.horizon_max == max(horizons, default=-1)
        assert obj.ref.dense == (offsets == list(range(offsets[0], offsets[-1] + 1)))
        bounds = sorted(data.draw(st.lists(st.integers(0, obj.ref.rows), min_size=4, max_size=4)))
        runs = [(bounds[0], bounds[1] - bounds[0]), (bounds[2], bounds[3] - bounds[2])]
        found = [[], []]
        for i, _, batch in open_ranges(store, obj.ref, runs, columns=COLUMNS)(7):
            found[i] += as_rows(batch)
        for i, (first, count) in enumerate(runs):
            wanted = expected[first : first + count]
            assert found[i] == [
                (*row[:4], None if obj.ref.dense else row[4], row[5]) for row in wanted
            ]
    assert at == len(rows)
