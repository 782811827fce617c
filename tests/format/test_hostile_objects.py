"""What FORMAT.md §5.1 forbids in the rows of an object, both readers refuse and `verify` names: the
object's checksums are right, and so is what the log says about it, so only its rows show it.
"""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from second_reader.documents import FormatError
from second_reader.log import Log as SecondLog

from clog.storage import CorruptionError, Log
from clog.storage.diagnostics.verify import verify_log
from clog.storage.format.documents import decode, encode
from clog.storage.store import open_store
from clog.storage.types.columns import FIELD_ID, REWRITTEN_SCHEMA, with_ids

TIME_MS = 1_700_000_000_000
SOUND = {
    "key": [b"a", b"b", b"c"],
    "value": [b"1", b"2", None],
    "headers": [[{"key": "h", "value": None}], [], None],
    "timestamp": [TIME_MS * 1000] * 3,
}
ROWS_BYTES = 3 * 12 + 3 + 2
FORBIDDEN = {
    "a header without key": {"headers": [[{"key": None, "value": b"x"}], None, None]},
    "a header that is null": {"headers": [[None], None, None]},
    "no timestamp": {"timestamp": [None, *SOUND["timestamp"][1:]]},
    "a timestamp before 1970": {"timestamp": [-5, *SOUND["timestamp"][1:]]},
    "offsets in a dense object": {"offset": [0, 1, 2]},
}


LIKE = pa.schema([("id", pa.int64()), pa.field("city", pa.string(), nullable=False)])
TABLE_FIELDS = [
    pa.field("id", pa.int64(), metadata={FIELD_ID: b"1"}),
    pa.field("city", pa.string(), metadata={FIELD_ID: b"16"}),
    pa.field("_clog_deleted", pa.bool_(), nullable=False, metadata={FIELD_ID: b"9"}),
    with_ids(REWRITTEN_SCHEMA.field("timestamp")).with_name("_clog_timestamp"),
]
SOUND_TABLE = {
    "id": [1, 2, 3],
    "city": ["a", "b", None],
    "_clog_deleted": [False, False, True],
    "_clog_timestamp": SOUND["timestamp"],
}
TABLE_BYTES = 3 * 12 + 3 * 8 + 2
FORBIDDEN_IN_TABLES = {
    "a row without a key": {"id": [None, 2, 3]},
    "null in a column that is NOT NULL": {"city": ["a", None, None]},
    "neither deleted nor there": {"_clog_deleted": [False, False, False]},
    "no column of the key": {"id": None},
}


@pytest.fixture
def forged(tmp_path):
    """Makes a log whose one object has these columns, everything that describes it being as the
    format says.
    """

    def make(columns, *, is_table=False):
        given = {"key": "id", "like": LIKE} if is_table else {}
        log = Log.create(str(tmp_path / "log"), 1, **given)
        rows = [{"key": 1, "value": {"city": "a"}}] if is_table else [{"key": "a", "value": "1"}]
        log.append(rows)
        store, path = log.handle.store, f"commits/{1:020d}.json"
        body = decode("commit", store.get(path), where=path)
        (described,) = body["edit"]["add"]["objects"]
        data, footer = object_of(columns)
        store.put(described["path"], data)
        digest = xxhash.xxh3_128_hexdigest(data)
        described.pop("index", None)
        dense = columns.get("dense", True)
        described.update(bytes=len(data), footer=footer, xxh3_128=digest, rows=3, dense=dense)
        stored = columns["_clog_timestamp" if is_table else "timestamp"]
        times = [0 if time is None else max(time, 0) // 1000 for time in stored]
        pairs = [pair for row in columns.get("headers", ()) for pair in row or () if pair]
        size = TABLE_BYTES if is_table else ROWS_BYTES
        size += sum(len(p["key"] or "") + len(p["value"] or b"") for p in pairs)
        chunk = {"rows": 3, "bytes": size, "first_ms": times[0], "max_ms": max(times)}
        described["chunks"].update({name: [n] for name, n in {**chunk, "tombstones": 1}.items()})
        head = {"end": [3], "bytes": [size], "first_ms": [times[0]]}
        body["head"]["partitions"].update(head)
        store.put(path, encode("commit", body))
        return str(tmp_path / "log")

    return make


def object_of(columns):
    """The bytes of an object with these columns, and the size of its footer."""
    every = [*TABLE_FIELDS, *map(with_ids, REWRITTEN_SCHEMA)]
    fields = [field for field in every if columns.get(field.name) is not None]
    written = io.BytesIO()
    table = pa.table({f.name: columns[f.name] for f in fields}, schema=pa.schema(fields))
    pq.write_table(table, written, write_page_checksum=True)
    data = written.getvalue()
    size = int.from_bytes(data[-8:-4], "little") + 8
    return data[:-size] + xxhash.xxh3_128_digest(data[-size:]) + data[-size:], size


def test_what_is_sound_is_read(forged):
    """An empty list of headers means none, and a header's value may be null."""
    url = forged(SOUND)
    assert [row["key"] for batch in Log.open(url).read() for row in batch.to_pylist()] == [
        *SOUND["key"]
    ]
    SecondLog(url).check()
    assert list(verify_log(open_store(url)).findings) == []


def check_refused(url):
    """Both readers refuse the object as damage, and `verify` names it."""
    with pytest.raises(
        CorruptionError, match=r"data/.*\.parquet of .* is damaged: .*; keep the file"
    ):
        list(Log.open(url).read())
    with pytest.raises(FormatError):
        SecondLog(url).records(0)
    (finding,) = verify_log(open_store(url)).findings
    assert finding.where.startswith("data/")


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_is_forbidden_is_refused_by_both_readers(forged, name):
    """As damage, with the object's name; a read of other columns does not meet it."""
    url = forged({**SOUND, **FORBIDDEN[name]})
    check_refused(url)


@pytest.mark.parametrize("name", [None, *FORBIDDEN_IN_TABLES])
def test_table_columns_have_keys_and_what_is_not_null(forged, name):
    """FORMAT.md §22: both readers refuse an object whose rows contradict the schema."""
    url = forged({**SOUND_TABLE, **FORBIDDEN_IN_TABLES.get(name, {})}, is_table=True)
    if name is None:
        assert Log.open(url).table().to_pylist() == [{"id": 1, "city": "a"}, {"id": 2, "city": "b"}]
        SecondLog(url).check()
        assert list(verify_log(open_store(url)).findings) == []
        return
    check_refused(url)


NONE_THERE = r"data/.*\.parquet of .* is damaged: .* it has rows without offsets; keep the file"
FALLING = "offsets in data/.* do not increase"


@pytest.mark.parametrize(
    ("offsets", "said"),
    [([0, None, 2], NONE_THERE), ([0, 2, 1], FALLING), ([0, 1, 1], FALLING), ([-1, 0, 1], FALLING)],
    ids=str,
)
def test_rows_have_offsets_that_rise(forged, offsets, said):
    """FORMAT.md §5.2."""
    url = forged({**SOUND, "offset": offsets, "dense": False})
    with pytest.raises(CorruptionError, match=said):
        list(Log.open(url).read())
    (finding,) = verify_log(open_store(url)).findings
    assert finding.where.startswith("data/")


def test_a_delete_horizon_that_ran_over_is_none(forged):
    """FORMAT.md §3.3, §5.3: nor do a chunk's bounds count it, for both readers and `verify`."""
    url = forged({**SOUND, "delete_horizon": [None, None, -7]})
    SecondLog(url).check()
    assert list(verify_log(open_store(url)).findings) == []
