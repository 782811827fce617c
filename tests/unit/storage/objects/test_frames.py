"""`Log.append` accepts the frames of pandas and of Polars, and everything else that streams Arrow
data.
"""

import subprocess
import sys
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from clog.storage import InvalidInputError, Log
from clog.storage.objects.records import to_records
from clog.storage.types.columns import RECORD_SCHEMA

duckdb = pytest.importorskip("duckdb")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

NOW_US = 1_700_000_000_123_456
TIME = datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC)


def rows(data):
    table, _ = to_records(data, now_us=NOW_US)
    assert table.schema == RECORD_SCHEMA
    return table.to_pylist()


def row(key, value, headers=None, timestamp=None):
    stamp = timestamp or datetime.fromtimestamp(NOW_US // 10**6, UTC).replace(microsecond=123_456)
    return {"key": key, "value": value, "headers": headers, "timestamp": stamp}


def test_a_frame_of_pandas():
    """None, NaN and NA are null: a tombstone. Bytes and text may be mixed."""
    frame = pd.DataFrame(
        {"key": ["a", b"b", "ü", "d"], "value": ["1", None, float("nan"), pd.NA]}, dtype=object
    )
    assert rows(frame) == [
        row(b"a", b"1"),
        row(b"b", None),
        row("ü".encode(), None),
        row(b"d", None),
    ]


def test_an_index_of_pandas_is_a_column_where_it_has_a_name():
    """A filter leaves an index with gaps, which is ignored; a grouping leaves one with the keys.
    What has no place in the log is refused rather than lost.
    """
    frame = pd.DataFrame({"key": ["a", "b"], "value": ["1", "2"], "n": [1, 2]})
    assert rows(frame[frame.n > 1][["key", "value"]]) == [row(b"b", b"2")]
    assert rows(frame[["key", "value"]].set_index("key")) == [row(b"a", b"1"), row(b"b", b"2")]
    with pytest.raises(InvalidInputError, match=r"unknown columns \['n'\]"):
        rows(frame.set_index("n"))


@pytest.mark.parametrize("dtype", ["string[python]", "string[pyarrow]", "category", object])
def test_texts_of_pandas(dtype):
    frame = pd.DataFrame({"key": ["a", "b", "a"], "value": ["x", None, "y"]}).astype(dtype)
    assert rows(frame) == [row(b"a", b"x"), row(b"b", None), row(b"a", b"y")]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_times_of_pandas(unit, zone):
    """Any unit; without a zone it is UTC; nanoseconds are rounded down; NaT is now."""
    times = pd.Series(pd.DatetimeIndex(["2023-11-14 22:13:20", None]).as_unit(unit))
    times = times.dt.tz_localize("UTC").dt.tz_convert(zone) if zone else times
    frame = pd.DataFrame({"key": ["a", "b"], "value": ["1", "2"], "timestamp": times})
    expected = [row(b"a", b"1", timestamp=TIME.replace(microsecond=0)), row(b"b", b"2")]
    assert rows(frame) == expected


def test_nanoseconds_are_rounded_down():
    times = pd.DatetimeIndex(["2023-11-14 22:13:20.000001999"])
    assert times.nanosecond[0] == 999
    columns = {"key": ["a"], "value": ["1"], "timestamp": times}
    expected = [row(b"a", b"1", timestamp=TIME)]
    assert rows(pd.DataFrame(columns)) == expected
    columns["timestamp"] = pl.Series(["2023-11-14 22:13:20.000001999"]).str.to_datetime(
        time_unit="ns"
    )
    assert rows(pl.DataFrame(columns)) == expected


@pytest.mark.parametrize("unit", ["M8", "M8[D]", "M8[us]", "M8[ns]"])
def test_no_time_is_null(unit):
    """NaT of NumPy, whatever its unit, and of pandas: in rows, in lists, in those that create the
    log, and as a record's time; as a key it is missing.
    """
    nats = [np.array(["NaT"]).astype(unit)[0], pd.NaT]
    first = {"id": datetime(2026, 1, 1), "at": datetime(2026, 1, 2), "all": [pd.Timestamp(0)]}
    log = Log.create(f"memory://no-time-{unit}", key="id", like=[first, first | {"at": nats[0]}])
    log.append([first | {"at": nat, "all": [nat]} for nat in nats])
    assert [(row["at"], row["all"]) for row in log.table()] == [(None, [None])]
    for nat in nats:
        with pytest.raises(InvalidInputError, match="has no id"):
            log.append([first | {"id": nat}])
    records = [{"key": "a", "value": "1", "timestamp": nat} for nat in nats]
    assert to_records(records, now_us=7)[0]["timestamp"].cast(pa.int64()).to_pylist() == [7, 7]
    time = np.datetime64("2026-01-01T00:00:00.1234567", "ns")
    (made,) = to_records([records[0] | {"timestamp": time}], now_us=7)[0]["timestamp"].to_pylist()
    assert made == datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)


def test_headers_of_frames():
    """Lists of dicts, which pandas holds as objects and Polars as lists of structs."""
    headers = [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, []]
    columns = {"key": ["a", "b", "c"], "value": ["1", "2", "3"], "headers": headers}
    expected = [row(b"a", b"1", headers[0]), row(b"b", b"2"), row(b"c", b"3")]
    assert rows(pd.DataFrame(columns)) == expected
    assert rows(pl.DataFrame(columns)) == expected


def test_a_frame_of_polars():
    frame = pl.DataFrame({"key": ["a", None], "value": [b"\xff", None], "timestamp": [TIME, None]})
    assert rows(frame) == [row(b"a", b"\xff", timestamp=TIME), row(None, None)]
    assert rows(frame.clear()) == []
    assert rows(pl.concat([frame, frame], rechunk=False)) == 2 * rows(frame)


@pytest.mark.parametrize(
    "dtype", [pl.String, pl.Binary, pl.Categorical, pl.Enum(["a", "x", "y", "long" * 9])]
)
def test_texts_of_polars(dtype):
    """Views, and dictionaries of views; short ones are inline, long ones are not."""
    frame = pl.DataFrame({"key": ["a", "long" * 9, "a"], "value": ["x", None, "y"]})
    frame = frame.with_columns(pl.all().cast(dtype))
    assert rows(frame) == [row(b"a", b"x"), row(b"long" * 9, None), row(b"a", b"y")]


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.string_view(), pa.binary_view(), pa.binary(1)),
        *(pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.uint32(), pa.large_binary())),
    ],
)
def test_layouts_of_arrow(kind):
    values = pa.array([b"a", None, b"b"], pa.binary())
    column = values.dictionary_encode() if pa.types.is_dictionary(kind) else values
    column = column.cast(pa.string()) if kind == pa.string_view() else column
    table = pa.table({"key": pa.chunked_array([column, column]).cast(kind), "value": pa.nulls(6)})
    assert [r["key"] for r in rows(table)] == [b"a", None, b"b"] * 2


def test_other_streams_of_arrow():
    """A DuckDB relation, and a reader of record batches."""
    connection = duckdb.connect()
    relation = connection.sql("select 'a' as key, '1'::blob as value")
    assert rows(relation) == [row(b"a", b"1")]
    table = pa.table({"key": ["a", "b"], "value": ["1", "2"]})
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=1))
    assert rows(reader) == [row(b"a", b"1"), row(b"b", b"2")]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (pd.DataFrame({"key": ["hush", 1], "value": ["a", "b"]}), "failed for column key"),
        (
            pd.DataFrame([["a", "b"]], columns=["key", "key"]),
            "more than one column named 'key'; rename",
        ),
        (
            pd.DataFrame([["hush\ud800", "a"]], columns=["key", "value"], dtype=object),
            "cannot be converted to",
        ),
        (pd.DataFrame({"key": ["a"], "value": [1.5]}), "column value has type double"),
        (pd.DataFrame({"key": ["a"], "value": ["b"], "x": [1]}), r"unknown columns \['x'\]"),
        (
            pl.DataFrame({"key": ["a"], "value": [{1}]}, strict=False),
            r"columns \['value'\] of the P",
        ),
        (pl.DataFrame({"key": [1.5], "value": ["a"]}), "column key has type double"),
        (pl.Series(["a"]), "cannot append a Series: it is not a table"),
        (pd.Series(["a"]), "cannot append a Series"),
        (
            {"key": "a", "value": "b"},
            "cannot append a dict; give .* pandas or Polars DataFrame, or a list of dicts",
        ),
    ],
)
def test_frames_that_are_no_records(data, words):
    """The error names the column and what it may be, and shows no data."""
    with pytest.raises(InvalidInputError, match=words) as raised:
        rows(data)
    assert "hush" not in str(raised.value)
    assert raised.value.__cause__ is None or "hush" not in str(raised.value.__cause__)


def test_a_frame_comes_back_as_it_was_appended():
    """From `append` to `to_pandas` and `to_polars`."""
    log = Log.create("memory://clog-frames/back", partitions=1)
    log.append(pd.DataFrame({"key": ["a", "b"], "value": [b"1", b"2"]}))
    log.append(pl.DataFrame({"key": ["b"], "value": [None]}))
    assert log.table().to_pandas()[["key", "value"]].values.tolist() == [[b"a", b"1"]]
    assert log.table().to_polars()["value"].to_list() == [b"1"]


def test_nobody_else_loads_pandas_or_polars():
    """Appending dicts in a fresh process imports neither."""
    code = (
        "import sys; from clog.storage import Log;"
        "Log.create('memory://x').append([{'key': 'a', 'value': 'b'}]);"
        "print(*{'pandas', 'polars'} & {*sys.modules})"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == ""
