"""What data objects contain, inspected only with pyarrow (FORMAT.md §5)."""

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from clog.storage.config.units import Compression
from clog.storage.env import SeededIds
from clog.storage.errors import InvalidInputError
from clog.storage.objects import writer as writing
from clog.storage.objects.composing import write_rewritten
from clog.storage.objects.writer import ChunkStats, ObjectFacts, ObjectWriter
from clog.storage.store import open_store
from clog.storage.types.columns import RECORD_SCHEMA, REWRITTEN_SCHEMA
from clog_testing.counting import CountingStore

HEADER = [{"key": "h", "value": b"xy"}]
_numbers = itertools.count()


@pytest.fixture
def store():
    return CountingStore(open_store(f"memory://test_object_writer/{next(_numbers)}"))


def records(keys, values=None, headers=None, timestamps_ms=None):
    n = len(keys)
    times = pa.array([(ms or 0) * 1000 for ms in timestamps_ms or [5] * n], pa.int64())
    return pa.table(
        [
            pa.array(keys, pa.binary()),
            pa.array(values if values is not None else [b"v"] * n, pa.binary()),
            pa.array(headers or [None] * n, RECORD_SCHEMA.field("headers").type),
            times.cast(pa.timestamp("us", "UTC")),
        ],
        schema=RECORD_SCHEMA,
    )


def rewritten(offsets, horizons=None):
    table = records([b"%d" % offset for offset in offsets])
    table = table.append_column("offset", pa.array(offsets, pa.int64()))
    if horizons is not None:
        table = table.append_column("delete_horizon", pa.array(horizons, pa.int64()))
    return table


def writer(store, **changed):
    options = {"stamp": 7, "new_id": SeededIds(1).new_id, "partitions": 4, **changed}
    return ObjectWriter(store, **options)


def write(store, *parts, **changed):
    made = writer(store, **changed)
    for table, partition in parts:
        made.add(table, np.array(partition, np.int32))
    return made.finish()


def rewrite(store, *tables, partition=2, **changed):
    options = {"stamp": 7, "new_id": SeededIds(1).new_id, **changed}
    batches = [batch for table in tables for batch in table.to_batches()]
    return write_rewritten(store, batches, partition=partition, **options)


def stored(store, obj):
    return pq.read_table(pa.BufferReader(store.get(obj.ref.path)))


def parquet(store, obj):
    return pq.ParquetFile(pa.BufferReader(store.get(obj.ref.path)))


def test_rows_lie_by_partition_and_in_the_order_of_add(store):
    """One object for all partitions; in each the order in which records came, across calls."""
    (obj,) = write(
        store,
        (records([b"a", b"b", b"c", b"d"]), [3, 0, 3, 1]),
        (records([b"e", b"f", b"g"]), [0, 3, 0]),
    )
    keys = stored(store, obj).column("key").to_pylist()
    assert keys == [b"b", b"e", b"g", b"d", b"a", b"c", b"f"]
    assert [(c.partition, c.rows) for c in obj.chunks] == [(0, 3), (1, 1), (3, 3)]
    assert obj.ref.rows == 7
    assert obj.ref.dense


def test_chunks_count_their_own_rows(store):
    """Sizes, first and largest timestamp (whole ms) and tombstones of each one's rows (S7)."""
    table = records(
        [b"k", b"key", b"k", None],
        [None, b"value", b"", None],
        [None, HEADER, None, None],
        [9, 5, 20, 7],
    )
    (obj,) = write(store, (table, [1, 0, 1, 1]))
    assert obj.chunks == (
        ChunkStats(0, 1, 12 + 3 + 5 + 3, 5, 5, 0),
        ChunkStats(1, 3, 3 * 12 + 2, 9, 20, 2),
    )
    assert obj.facts == ObjectFacts(1, 23, 5, 20)


def test_microseconds_round_down_to_milliseconds(store):
    """A chunk's times are in ms: 1999 µs are in the second millisecond."""
    times = pa.array([1999], pa.int64()).cast(pa.timestamp("us", "UTC"))
    (obj,) = write(store, (records([b"k"]).set_column(3, "timestamp", times), [0]))
    assert (obj.chunks[0].first_timestamp_ms, obj.facts.max_timestamp_ms) == (1, 1)
    assert stored(store, obj).column("timestamp").cast(pa.int64()).to_pylist() == [1999]


def test_the_name_tells_the_stamp_and_the_sums_cover_the_bytes(store):
    """FORMAT.md §1, §3.3, §5.1: name, size, checksum of all, footer, checksum of the footer."""
    (obj,) = write(store, (records([b"k"]), [0]), stamp=42)
    data = store.get(obj.ref.path)
    assert obj.ref.path == f"data/{42:020d}-{SeededIds(1).new_id()}.parquet"
    assert obj.ref.stamp == 42
    assert obj.ref.size_bytes == len(data)
    assert obj.ref.checksum == xxhash.xxh3_128_hexdigest(data)
    footer = data[-obj.ref.footer_bytes :]
    assert int.from_bytes(footer[-8:-4], "little") == len(footer) - 8
    assert data[: -obj.ref.footer_bytes][-16:] == xxhash.xxh3_128_digest(footer)


def test_columns_have_the_types_of_the_format(store):
    """FORMAT.md §5.1, with Parquet's own types: the Arrow schema is not in the file."""
    (obj,) = write(store, (records([b"k", b"l"], headers=[HEADER, None]), [0, 0]))
    file = parquet(store, obj)
    assert file.schema_arrow.names == RECORD_SCHEMA.names
    assert [f.type for f in file.schema_arrow] == [f.type for f in RECORD_SCHEMA]
    assert file.metadata.metadata is None
    assert stored(store, obj).column("headers").to_pylist() == [HEADER, None]


def test_columns_have_the_ids_of_the_format(store):
    """FORMAT.md §5.1: by them readers of tables find columns; records in memory have none."""
    table = records([b"k", b"l"], headers=[HEADER, None])
    table = table.append_column("offset", pa.array([3, 7], pa.int64()))
    table = table.append_column("delete_horizon", pa.array([None, 9], pa.int64()))
    (obj,) = rewrite(store, table)
    schema = parquet(store, obj).schema_arrow
    assert {field.name: ids_in(field) for field in schema} == {
        "key": [1],
        "value": [2],
        "headers": [3, 4, 5, 6],
        "timestamp": [7],
        "offset": [2147483540],
        "delete_horizon": [8],
    }
    assert all(ids_in(field) == [None] for field in RECORD_SCHEMA if field.name != "headers")


def ids_in(field):
    """Its id and those inside."""
    own = (field.metadata or {}).get(b"PARQUET:field_id")
    inner = [field.type.field(i) for i in range(field.type.num_fields)]
    return [own and int(own), *(each for one in inner for each in ids_in(one))]


def test_statistics_only_where_they_prune(store):
    """Offsets and timestamps have bounds in the footer; keys and values are not in it."""
    (obj,) = rewrite(store, rewritten([1, 5]))
    group = parquet(store, obj).metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert {name for name, column in columns.items() if column.statistics} == {
        "timestamp",
        "offset",
    }
    assert (columns["offset"].statistics.min, columns["offset"].statistics.max) == (1, 5)


@pytest.mark.parametrize("headers", [None, [None, []]])
def test_headers_are_absent_where_no_record_has_any(store, headers):
    """No headers is null, however it was given."""
    (obj,) = write(store, (records([b"a", b"b"], headers=headers), [0, 0]))
    assert stored(store, obj).column_names == ["key", "value", "timestamp"]


def test_an_empty_list_of_headers_is_null(store):
    """The same where another record of the object has headers."""
    (obj,) = write(store, (records([b"a", b"b", b"c"], headers=[[], HEADER, None]), [0, 0, 0]))
    assert stored(store, obj).column("headers").to_pylist() == [None, HEADER, None]


def test_null_and_empty_differ(store):
    """A null value is a tombstone, an empty one is not; an empty key is a key (S4)."""
    (obj,) = write(store, (records([b"", None], [None, b""]), [0, 0]))
    table = stored(store, obj)
    assert table.column("key").to_pylist() == [b"", None]
    assert table.column("value").to_pylist() == [None, b""]
    assert obj.chunks[0].tombstones == 1


def test_an_object_holds_no_more_than_its_bytes(store):
    """Many small calls and one large one are divided alike, at most ``object_bytes`` each."""
    table = records([b"%03d" % i for i in range(100)])  # 12 + 3 + 1 = 16 bytes each
    partition = np.arange(100, dtype=np.int32) % 3
    at_once = write(store, (table, partition), object_bytes=160)
    made = writer(store, object_bytes=160)
    for i in range(100):
        made.add(table.slice(i, 1), partition[i : i + 1])
    one_by_one = made.finish()
    assert [obj.ref.rows for obj in at_once] == [obj.ref.rows for obj in one_by_one] == [10] * 10
    for p in range(3):
        keys = [
            key
            for obj in at_once
            for key in stored(store, obj).column("key").to_pylist()
            if int(key) % 3 == p
        ]
        assert keys == [b"%03d" % i for i in range(p, 100, 3)]


def test_a_record_larger_than_an_object_has_its_own(store):
    """It is not refused here (the config decides that), and does not draw others in."""
    table = records([b"a", b"b", b"c"], [b"v", b"v" * 500, b"v"])
    made = write(store, (table, [0, 0, 0]), object_bytes=100)
    assert [obj.ref.rows for obj in made] == [1, 1, 1]


def test_objects_are_put_while_records_come(store):
    """Memory is bounded: a full object is written before the next record is kept."""
    made = writer(store, object_bytes=160)
    made.add(records([b"%03d" % i for i in range(35)]), np.zeros(35, np.int32))
    assert store.counts["put"] == 3
    assert len(made.finish()) == 4
    assert dict(store.counts) == {"put": 4}


def test_nothing_is_put_for_no_records(store):
    """No rows, no object, no request."""
    empty = records([])
    assert write(store) == []
    assert write(store, (empty, [])) == []
    assert rewrite(store) == []
    assert rewrite(store, rewritten([])) == []
    assert not store.counts


def test_the_caller_may_use_its_array_again(store):
    """Partitions are copied: a connector fills one array for each batch."""
    made = writer(store)
    partition = np.array([0, 1], np.int32)
    made.add(records([b"a", b"b"]), partition)
    partition[:] = 3
    (obj,) = made.finish()
    assert [c.partition for c in obj.chunks] == [0, 1]


@pytest.mark.parametrize("dtype", [np.int64, np.uint16, np.uint32])
def test_partitions_may_be_any_integers(store, dtype):
    """Unsigned differences do not hide that rows are out of order."""
    made = writer(store, partitions=70_000)
    made.add(records([b"a", b"b", b"c"]), np.array([60_000, 2, 1]).astype(dtype))
    made.add(records([b"d"]), np.array([69_999]))
    (obj,) = made.finish()
    assert [c.partition for c in obj.chunks] == [1, 2, 60_000, 69_999]
    assert stored(store, obj).column("key").to_pylist() == [b"c", b"b", b"a", b"d"]


@pytest.mark.parametrize("codec", ["zstd", "none", "snappy", "lz4"])
def test_compressions(store, codec):
    """All values of ``compression.type``."""
    (obj,) = write(store, (records([b"k"] * 50), [0] * 50), compression=Compression(codec))
    column = parquet(store, obj).metadata.row_group(0).column(0)
    name = {"none": "UNCOMPRESSED"}.get(codec, codec.upper())
    assert column.compression == name
    assert stored(store, obj).column("key").to_pylist() == [b"k"] * 50


def test_a_higher_level_of_zstd_leaves_fewer_bytes(store):
    """``compression.zstd.level`` reaches the encoder."""
    keys = [b"order-%d of customer-%d" % (i * 7919 % 5000, i % 97) for i in range(5000)]
    made = [
        write(store, (records(keys), [0] * len(keys)), compression=Compression("zstd", level))
        for level in (1, 19)
    ]
    (fast,), (small,) = made
    assert small.ref.size_bytes < fast.ref.size_bytes


def test_tiny_partitions_share_a_row_group(store):
    """A row group for each partition of a small object would be all footer."""
    (obj,) = write(store, (records([b"k"] * 64), list(range(64))), partitions=64)
    assert parquet(store, obj).metadata.num_row_groups == 1
    assert len(obj.chunks) == 64


@pytest.mark.parametrize(
    ("rows", "groups"),
    [
        ([40], [10, 10, 10, 10]),  # by bytes
        ([3, 20], [3, 10, 10]),  # a partition that is large enough is alone
        ([1, 1, 1, 1, 1], [3, 2]),  # small ones are together until they are
        ([2, 30], [10, 10, 10, 2]),  # or with a part of the next
    ],
)
def test_row_groups_end_with_partitions_where_that_pays(store, monkeypatch, rows, groups):
    """Groups of at most 10 records' bytes, ending with a partition from 3 records' bytes on."""
    monkeypatch.setattr(writing, "GROUP_BYTES", 160)
    monkeypatch.setattr(writing, "GROUP_BYTES_MIN", 48)
    partition = np.repeat(np.arange(len(rows)), rows)
    (obj,) = write(store, (records([b"key"] * sum(rows)), partition), partitions=9)
    found = parquet(store, obj).metadata
    assert [found.row_group(i).num_rows for i in range(found.num_row_groups)] == groups


def test_row_groups_end_after_so_many_rows(store, monkeypatch):
    """Records of few bytes do not form groups of millions of rows."""
    monkeypatch.setattr(writing, "GROUP_ROWS", 30)
    (obj,) = write(store, (records([b"key"] * 70), [0] * 70))
    found = parquet(store, obj).metadata
    assert [found.row_group(i).num_rows for i in range(found.num_row_groups)] == [30, 30, 10]


@pytest.mark.parametrize(
    ("table", "partition", "message"),
    [
        (records([b"a", b"b"]), [0], "got 1 partitions for 2 records"),
        (records([b"a", b"b"]), [0, 4], "partitions 0 to 4"),
        (records([b"a"]), [-1], "partitions -1 to -1"),
        (records([b"a"]).drop_columns("headers"), [0], "required: key: binary"),
        (rewritten([1]), [0], "offset: int64"),
        (records([b"a"]).set_column(0, "key", pa.array(["a"])), [0], "key: string"),
        (records([b"a"], timestamps_ms=[-1]), [0], "timestamp -1000 µs is before 1970"),
        (
            records([b"a"]).set_column(
                3, RECORD_SCHEMA.field(3), pa.nulls(1, pa.timestamp("us", "UTC"))
            ),
            [0],
            "1 of 1 records have no timestamp",
        ),
    ],
)
def test_what_is_refused(store, table, partition, message):
    """The writer accepts records of its schema only, and none of a call with another."""
    made = writer(store)
    with pytest.raises(InvalidInputError, match=message):
        made.add(table, np.array(partition, np.int32))
    assert made.finish() == []


def test_columns_come_in_any_order(store):
    """They are known by name."""
    table = records([b"k"], [b"v"]).select(["timestamp", "value", "headers", "key"])
    (obj,) = write(store, (table, [0]))
    assert stored(store, obj).select(["key", "value"]).to_pylist() == [{"key": b"k", "value": b"v"}]


def test_rewritten_records_keep_their_offsets(store):
    """Cleaned data has gaps: an ``offset`` column, and its bounds for the commit (S1)."""
    (obj,) = rewrite(store, rewritten([3, 4]), rewritten([9]))
    assert not obj.ref.dense
    assert stored(store, obj).column("offset").to_pylist() == [3, 4, 9]
    (chunk,) = obj.chunks
    assert (chunk.partition, chunk.rows) == (2, 3)
    assert (chunk.first_offset, chunk.last_offset) == (3, 9)
    assert (chunk.horizon_min, chunk.horizon_max) == (-1, -1)
    assert "delete_horizon" not in stored(store, obj).column_names


def test_offsets_without_gap_are_not_written(store):
    """Coalescing fresh data makes dense objects again."""
    (obj,) = rewrite(store, rewritten([5, 6, 7]))
    assert obj.ref.dense
    assert stored(store, obj).column_names == ["key", "value", "timestamp"]
    assert (obj.chunks[0].first_offset, obj.chunks[0].last_offset) == (5, 7)


def test_density_is_by_object(store):
    """A gap between two objects is not a gap in either."""
    made = rewrite(store, rewritten([1, 2, 10, 11]), object_bytes=2 * 15)
    assert [obj.ref.dense for obj in made] == [True, True]
    assert [obj.chunks[0].first_offset for obj in made] == [1, 10]


def test_density_is_by_partition(store):
    """Offsets of one partition do not determine those of the next."""
    for offsets, dense in [([4, 9, 5], True), ([4, 9, 6], False)]:
        (obj,) = write(
            store,
            (rewritten(offsets), [0, 1, 0]),
            rewritten=True,
            new_id=SeededIds(offsets[2]).new_id,
        )
        assert obj.ref.dense is dense
        assert [c.first_offset for c in obj.chunks] == [4, 9]


def test_delete_horizons_are_kept_where_there_are_any(store):
    """The column is only there if a tombstone has a horizon; chunks have the bounds (S23)."""
    tables = [rewritten([1, 2, 3], [None, 70, 50]), rewritten([4, 5, 6])]
    first, second = rewrite(store, *tables, object_bytes=3 * 14)
    assert stored(store, first).column("delete_horizon").to_pylist() == [None, 70, 50]
    assert (first.chunks[0].horizon_min, first.chunks[0].horizon_max) == (50, 70)
    assert "delete_horizon" not in stored(store, second).column_names
    assert (second.chunks[0].horizon_min, second.chunks[0].horizon_max) == (-1, -1)


def test_offsets_must_rise(store):
    """An offset is never assigned twice (S1): a cleaner that would do so stops before it writes."""
    with pytest.raises(AssertionError, match="must increase"):
        rewrite(store, rewritten([5, 5]))
    assert not store.counts


def test_rewritten_records_need_offsets(store):
    """The two kinds do not mix."""
    with pytest.raises(InvalidInputError, match=r"required: .*offset: int64"):
        rewrite(store, records([b"k"]))
    assert REWRITTEN_SCHEMA.names == [*RECORD_SCHEMA.names, "offset", "delete_horizon"]


@pytest.mark.parametrize("room", [0, 1 << 14])
def test_bytes_that_take_more_than_was_asked_for_are_all_there(store, monkeypatch, room):
    """A footer is longer than one record; the file grows as often as needed."""
    monkeypatch.setattr(writing, "_ROOM_BYTES", room)
    (obj,) = write(store, (records([b"k"]), [0]))
    data = store.get(obj.ref.path)
    assert (len(data), xxhash.xxh3_128_hexdigest(data)) == (obj.ref.size_bytes, obj.ref.checksum)
    assert stored(store, obj).column("key").to_pylist() == [b"k"]


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("key_bytes", [0, 1, 16])
def test_keys_of_one_length_go_to_their_partitions(store, start, key_bytes):
    """They are gathered as a type of that length, and stored like other bytes; values have several
    lengths, some are null.
    """
    rows = 100
    keys = [b"%016d" % i for i in range(rows)]
    values = [None if i % 7 == 0 else b"v" * (i % 5) for i in range(rows)]
    table = records([key[16 - key_bytes :] for key in keys], values)
    partition = [i * 7 % 4 for i in range(start, rows)]
    (obj,) = write(store, (table.slice(start), partition))
    order = sorted(range(start, rows), key=lambda i: partition[i - start])
    found = stored(store, obj)
    assert found.column("key").to_pylist() == [keys[i][16 - key_bytes :] for i in order]
    assert found.column("value").to_pylist() == [values[i] for i in order]
