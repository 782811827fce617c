"""Values and sizes of data objects."""

import pickle

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from clog.storage.format.chunks import ObjectRef
from clog.storage.objects.writer import ChunkStats, DataObject, ObjectFacts, record_sizes
from clog.storage.types.columns import RECORD_SCHEMA

BINARY = st.none() | st.binary(max_size=9)
HEADERS = st.none() | st.lists(
    st.none() | st.fixed_dictionaries({"key": st.text(max_size=3), "value": BINARY}), max_size=3
)
ROWS = st.lists(st.tuples(BINARY, BINARY, HEADERS), max_size=20)


def table(rows):
    return pa.table(
        [
            pa.array([row[0] for row in rows], pa.binary()),
            pa.array([row[1] for row in rows], pa.binary()),
            pa.array([row[2] for row in rows], RECORD_SCHEMA.field("headers").type),
            pa.array([0] * len(rows), RECORD_SCHEMA.field("timestamp").type),
        ],
        schema=RECORD_SCHEMA,
    )


def size_of(row):
    key, value, headers = row
    entries = [entry for entry in headers or [] if entry]
    inner = sum(len(e["key"].encode()) + len(e["value"] or b"") for e in entries)
    return 12 + len(key or b"") + len(value or b"") + inner


@settings(deadline=None)
@given(ROWS, st.integers(0, 20), st.integers(0, 20))
def test_a_record_counts_12_and_its_bytes(rows, start, length):
    """12 + key + value + each header's key and value, also in slices and tables of many chunks."""
    whole = table(rows)
    expected = [size_of(row) for row in rows]
    assert record_sizes(whole).tolist() == expected
    assert record_sizes(whole.slice(start, length)).tolist() == expected[start : start + length]
    twice = pa.concat_tables([whole, whole.slice(start, length)])
    assert record_sizes(twice).tolist() == expected + expected[start : start + length]


def test_what_lies_under_nulls_does_not_count():
    """Arrow lets a null slot span bytes, in binaries and in lists: they do not belong to the
    record.
    """
    buffers = [pa.py_buffer(b"\x02"), pa.py_buffer(np.array([0, 5, 7], np.int32)), b"abcdefg"]
    key = pa.Array.from_buffers(pa.binary(), 2, [*buffers[:2], pa.py_buffer(buffers[2])])
    entry_type = RECORD_SCHEMA.field("headers").type.value_type
    entries = pa.array([{"key": "k", "value": b"v"}] * 3, entry_type)
    headers = pa.ListArray.from_arrays(
        pa.array([0, 2, 3], pa.int32()), entries, mask=pa.array([True, False])
    )
    value = pa.nulls(2, pa.binary())
    batch = pa.RecordBatch.from_arrays([key, value, headers], names=["key", "value", "headers"])
    assert record_sizes(batch).tolist() == [12, 12 + 2 + 2]


def test_sizes_are_64_bit():
    """Sums of sizes do not overflow."""
    assert record_sizes(table([(b"k", b"v", None)])).dtype == np.int64
    assert record_sizes(table([])).dtype == np.int64


def test_one_mebibyte_fits_the_default_limit():
    """Key and value of exactly 1 MiB make 1048588 bytes, the default ``max.message.bytes`` (S6)."""
    assert record_sizes(table([(b"k" * 24, b"v" * ((1 << 20) - 24), None)])).tolist() == [1048588]


def test_values_travel():
    """Tasks send objects to the driver: they can be pickled."""
    stats = ChunkStats(0, 2, 40, 1, 2, 0)
    facts = ObjectFacts(0, 30, 1, 2)
    made = DataObject(ObjectRef("data/x.parquet", 100, 20, "ab", 2, 7, dense=True), (stats,), facts)
    assert pickle.loads(pickle.dumps(made)) == made
    assert (stats.first_offset, stats.horizon_min) == (-1, -1)
