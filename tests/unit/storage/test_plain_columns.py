"""Logs of plain rows, in and out, and frames that other libraries accept."""

import pyarrow as pa
import pytest

from clog.storage import AlreadyExistsError, InvalidInputError, Log

TRIPS = [
    {"id": 1, "city": "Riga", "place": {"zone": 2}},
    {"id": 2, "city": "Oslo", "place": None},
]
TYPES = pa.schema(
    [("id", pa.int64()), ("city", pa.string()), ("place", pa.struct([("zone", pa.int64())]))]
)


@pytest.fixture
def trips(store, clock):
    return Log.create(store, partitions=1, clock=clock, key="id", like=TRIPS)


def frames():
    """The same rows as each kind of data that has columns."""
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    table = pa.Table.from_pylist(TRIPS)
    return [
        TRIPS,
        (dict(row) for row in TRIPS),
        table,
        table.to_batches()[0],
        pa.RecordBatchReader.from_batches(table.schema, table.to_batches()),
        pandas.DataFrame(TRIPS),
        polars.DataFrame(TRIPS),
        polars.DataFrame(TRIPS).lazy(),
    ]


def test_rows_come_in_as_they_are(store, clock, discarded):
    """A frame with its own columns is appended to a log created like it, and is its table."""
    for i, data in enumerate(frames()):
        like = TRIPS if i in (1, 4) else data  # These two can be gone through once.
        log = Log.create(discarded(i), partitions=2, clock=clock, key="id", like=like)
        log.append(data)
        rows = sorted(log.table().to_pylist(), key=lambda row: row["id"])
        assert rows == TRIPS, type(data)
        assert log.config["table.key.columns"] == "id"


@pytest.fixture
def discarded(tmp_path):
    return lambda i: str(tmp_path / str(i))


def test_the_later_row_of_a_key_stays(trips):
    """Rows are records: the last of a key is the table's (S2), a record without a value deletes."""
    trips.append(TRIPS)
    trips.append([{"ID": 1, "City": "Rīga"}])
    assert trips.table().to_pylist(columns=["city"]) == [{"city": "Oslo"}, {"city": "Rīga"}]
    trips.append([{"key": 2, "value": None}])
    assert [row["id"] for row in trips.table()] == [1]
    assert trips.table().get(1) == {"city": "Rīga", "place": None}


def test_a_key_of_several_columns(store, clock):
    """Its columns are a struct, which is NOT NULL."""
    log = Log.create(store, clock=clock, key=["city", "id"], schema=TYPES)
    log.append(TRIPS)
    assert log.table().get(("Oslo", 2)) == {"place": None}
    assert log.table().schema.names == ["city", "id", "place"]
    with pytest.raises(InvalidInputError, match="record 1 has no city, which is a column of the"):
        log.append([TRIPS[0], {"id": 5}])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"id": 1, "town": "Riga"}], "column town is not in the log's schema; it has id, city"),
        ([{"id": 1, "value": None}], r'to delete a key, append \[{"key": …, "value": None}\]'),
        ([{"city": "Riga"}], "column id is missing, which is NOT NULL"),
        ([{"id": "one"}], "record 0 has an id of type str"),
        ([{"id": 1, "ID": 2}], "column id occurs twice"),
        ([{"id": None, "city": "Riga"}], "has no id"),
        (pa.table({"id": [1], "town": ["Riga"]}), "column town is not in the log's schema"),
    ],
)
def test_rows_that_do_not_fit(trips, rows, words):
    """The error names the column, and nothing is appended."""
    with pytest.raises(InvalidInputError, match=words):
        trips.append(rows)
    assert trips.version == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"like": TRIPS}, "like= requires key="),
        ({"key": "id"}, "key= requires schema= or like="),
        ({"key": "nr", "like": TRIPS}, "there is no column 'nr'; the columns are id, city, place"),
        ({"key": ["id", "id"], "like": TRIPS}, "a column occurs twice"),
        ({"key": "id", "like": [{"id": 1}]}, "a table needs columns for its key and at least one"),
        ({"key": "id", "like": 5}, "like= is an int; give a frame"),
        ({"key": "id", "like": []}, "like= is an empty list; give a frame"),
        (
            {"key": "id", "like": [{"id": 1, "a": None}]},
            "column a has no values from which",
        ),
        ({"key": "id", "like": [{"id": 1, "a": 1}, {"id": "x"}]}, "columns without one type"),
    ],
)
def test_what_makes_no_log_of_rows(store, arguments, words):
    """The error says what is missing, and no log is created."""
    with pytest.raises(InvalidInputError, match=words):
        Log.create(store, **arguments)
    assert Log.create(store).version == 0


def test_a_log_like_another(trips, tmp_path):
    """`Log.create` accepts the form that `Log.describe` returns, and a table as a model."""
    described = trips.describe()["schema"]
    again = Log.create(str(tmp_path / "words"), schema=described)
    assert again.schema == trips.schema
    words = {"id": "int64", "city": "string"}
    assert Log.create(str(tmp_path / "rows"), key="id", schema=words).table().schema.names == [
        *words
    ]
    like = Log.create(str(tmp_path / "like"), key="id", like=trips.table())
    assert like.schema == trips.schema


def test_a_log_that_is_there_is_opened_where_that_is_asked_for(trips, store, clock):
    """``exist_ok`` opens the existing log; without it there is an error."""
    trips.append(TRIPS)
    again = Log.create(store, clock=clock, key="id", like=TRIPS, exist_ok=True)
    assert (again.id, again.version) == (trips.id, 1)
    with pytest.raises(AlreadyExistsError):
        Log.create(store, key="id", like=TRIPS)


def test_json_and_integers_are_text_in_a_log_of_bytes(make_log):
    """Types with an exact text are accepted: integers as digits, JSON values as JSON without
    spaces.
    """
    log = make_log()
    log.append(
        [
            {"key": 7, "value": {"b": [1, None, "ü"], "a": 2**70}},
            {"key": "n", "value": -5},
            {"key": "f", "value": 0.1},
            {"key": "t", "value": True},
        ]
    )
    log.append(pa.table({"key": [8], "value": [2**60]}))
    assert log.table().get_many(["7", "n", "f", "t", "8"]) == {
        b"7": '{"b":[1,null,"ü"],"a":1180591620717411303424}'.encode(),
        b"n": b"-5",
        b"f": b"0.1",
        b"t": b"true",
        b"8": str(2**60).encode(),
    }


def test_a_stream_that_can_be_read_once_is_not_lost_to_a_second_try(store, clock):
    """If the schema evolved since, an append tries again with all of its records (S62)."""
    log = Log.create(store, clock=clock, key="id", like=TRIPS)
    other = Log.open(store, clock=clock)
    other.evolve(add={"value.note": pa.string()})
    log.append({"id": i, "city": "x", "note": "n"} for i in range(3))
    assert [row["note"] for row in log.table()] == ["n"] * 3


def test_a_table_goes_wherever_arrow_goes(trips):
    """pyarrow, Polars, pandas and DuckDB accept a table, and the result of a read, directly."""
    polars, pandas = pytest.importorskip("polars"), pytest.importorskip("pandas")
    duckdb = pytest.importorskip("duckdb")
    trips.append(TRIPS)
    rows = trips.table()
    assert len(rows) == 2
    assert rows.schema == pa.table(rows).schema
    assert list(rows) == rows.to_pylist() == TRIPS
    assert rows["city"].to_pylist() == ["Riga", "Oslo"]
    assert rows["place.zone"].to_pylist() == [{"zone": 2}, None]
    assert polars.DataFrame(rows).to_dicts() == TRIPS
    assert list(pandas.DataFrame(rows)["id"]) == [1, 2]
    assert duckdb.connect().sql("select sum(id) from rows").fetchall() == [(3,)]
    copy = Log.create("memory://plain-columns-copy", key="id", like=rows)
    copy.append(rows)
    assert copy.table().to_pylist() == TRIPS
    read = trips.read()
    assert read.schema.names == pa.table(trips.read()).schema.names
    assert duckdb.connect().sql("select count(*) from read").fetchall() == [(2,)]
    assert list(read) == []
    assert trips.read().to_pandas(columns=["key", "offset"]).shape == (2, 2)


def test_records_are_shown_where_they_are_asked_for(trips):
    """Columns of records are read by their names, from any log; `Log.latest` yields records,
    because a deleted row has no columns.
    """
    trips.append(TRIPS)
    trips.append([{"key": 2, "value": None}])
    assert trips.table().to_pylist(columns=["offset", "key"]) == [{"offset": 0, "key": 1}]
    assert [row["value"] for row in trips.latest(1)] == [None]
    for unknown in (["town"], ["id", "town"]):
        with pytest.raises(InvalidInputError, match="no column 'town'; the columns are id, city"):
            trips.table().to_arrow(columns=unknown)
    with pytest.raises(InvalidInputError, match="no column 'town'; the columns are partition, off"):
        trips.table().to_arrow(columns=["offset", "town"])
    with pytest.raises(InvalidInputError, match=r"are not all of rows .* the two are not mixed"):
        trips.table().to_arrow(columns=["id", "offset"])
    with pytest.raises(TypeError, match="column names must be text"):
        trips.table()[0]
    with pytest.raises(InvalidInputError, match=r"columns='id'; give a list"):
        trips.table().to_arrow(columns="id")
    assert trips.read(end=1).to_pylist(columns=["value.city", "offset"]) == [
        {"value": {"city": "Riga"}, "offset": 0}
    ]


KEY_VALUE = ["key", "value", "n"]
LIKE_RECORDS = ["key", "value", "headers", "timestamp"]


@pytest.mark.parametrize("names", [KEY_VALUE[:2], LIKE_RECORDS, KEY_VALUE], ids=len)
@pytest.mark.parametrize("key", ["key", "value", ["key", "value"]], ids=str)
def test_columns_named_as_those_of_records(store, clock, discarded, key, names):
    """Rows are tried first; a value that is a struct, and no column of the table, is a record's,
    in Arrow's types and in dicts, and what deletes or erases keys appends tombstones.
    """
    in_key = [key] if isinstance(key, str) else key
    names = KEY_VALUE if {*names} == {*in_key} else names
    rows = [{name: i if name in in_key else f"{name}{i}" for name in names} for i in range(4)]
    log = Log.create(store, 1, clock=clock, key=key, like=rows)
    log.append(rows[:3])
    log.delete([1 if key in names else (1, 1)])
    log.erase([2 if key in names else {"key": 2, "value": 2}])
    value = {name: rows[3][name] for name in names if name not in in_key}
    own = 3 if key in names else dict.fromkeys(in_key, 3)
    log.append([{"key": own, "value": value}, {"key": own, "value": None}])
    records = log.read().to_arrow().select(["key", "value", "headers", "timestamp"])
    assert records["value"].null_count == 3
    copy = Log.create(discarded(0), 1, clock=clock, key=key, like=rows)
    copy.append(records)
    for one in (log, copy):
        assert one.table().to_pylist(columns=names) == rows[:1]


def test_a_notebook_shows_the_first_rows(trips):
    """Text is escaped, and not everything is read."""
    trips.append([{"id": i, "city": f"<b>{i}</b>"} for i in range(100)])
    shown = trips.table()._repr_html_()
    assert "&lt;b&gt;0&lt;/b&gt;" in shown
    assert "the first 10 rows" in shown
    assert shown.count("<tr>") == 11


def test_a_notebook_shows_a_log_by_partition(trips):
    """The size, and how much of it is dirty."""
    trips.append(TRIPS)
    shown = trips._repr_html_()
    assert "<th>end_offset</th>" in shown
    assert "<td>2</td>" in shown
    assert "1 objects" in shown


def test_completion_lists_what_is_for_users(trips):
    """Names for connectors can be called, but are not suggested."""
    assert "append" in dir(trips)
    assert {"handle", "object_writer", "append_objects"}.isdisjoint(dir(trips))


def test_instants_are_kept_in_utc(store):
    """A zone is only how an instant is shown; the log keeps the instant."""
    pandas = pytest.importorskip("pandas")
    times = pandas.to_datetime(["2026-03-29 04:00"]).tz_localize("Europe/Riga")
    log = Log.create(store, key="id", like=pandas.DataFrame({"id": [1], "at": times}))
    log.append(pandas.DataFrame({"id": [1], "at": times}))
    assert log.table()["at"].to_pylist() == [times[0].tz_convert("UTC")]


def test_an_index_with_a_name_is_a_column(store):
    """As in Parquet; one without a name, which only numbers rows, is left out."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"city": ["Riga", "Oslo"]}, index=pandas.Index([1, 2], name="id"))
    log = Log.create(store, key="id", like=frame)
    log.append(frame)
    log.append(pandas.DataFrame({"id": [2], "city": ["Bonn"]}, index=[7]))
    log.append(frame.reset_index().set_index("id", drop=False).assign(city="Rome").head(1))
    assert log.table().get(1) == {"city": "Rome"}
    assert log.table().get(2) == {"city": "Bonn"}


def test_a_frame_for_a_log_without_columns_is_told_how_to_make_one(store):
    with pytest.raises(InvalidInputError, match="created with key= and like= has columns"):
        Log.create(store).append(TRIPS)


def test_a_time_that_is_no_number_is_told_what_to_give(trips):
    with pytest.raises(InvalidInputError, match="give ms since 1970"):
        trips.table(at_time_ms="2026-01-31")
