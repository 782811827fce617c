"""Names of fields and columns, at every door: which are alike, and what a log that has such shows.
What Spark's JVM and DuckDB compare was tried on all of Unicode's characters.
"""

import datetime as dt

import pyarrow as pa
import pytest

from clog.storage import InvalidInputError, Log, administration

NUMBER, TEXT, MS = pa.int64(), pa.string(), pa.timestamp("ms")
ALIKE = [("v", "V"), ("i", "İ"), ("ı", "I"), ("s", "ſ"), ("µs", "μs"), ("straße", "STRAẞE")]
APART = [("ß", "ss"), ("\u00e9", "e\u0301"), ("v", "v_"), ("key", "value"), ("offset", "_metadata")]
SAID = "ignor(e|ing) case"


def struct(*names):
    return pa.struct([(name, NUMBER) for name in names])


def typed(value, key=TEXT):
    return {"key": key, "value": value}


def made_by_an_earlier_release(monkeypatch, store, **arguments):
    """A log with names that no door lets in any more."""
    with monkeypatch.context() as patch:
        patch.setattr(administration, "names_problem", lambda *_, **__: None)
        log = Log.create(store, 1, **arguments)
        log.append([{"id": "a", "v": 1, "m": {"a": 1, "A": 2}}])
        log.evolve(add={"value.V": NUMBER})
    return log


@pytest.fixture
def older(monkeypatch, store):
    columns = pa.schema([("id", TEXT), ("v", NUMBER), ("m", struct("a", "A"))])
    return made_by_an_earlier_release(monkeypatch, store, key="id", like=columns)


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_no_log_is_created_with_names_that_are_alike(store, one, other):
    """S61: in the value, at any depth, in the key, and between the two; neither by a schema, nor
    like a frame.
    """
    both = struct(one, other)
    row = pa.schema([("id", TEXT), (one, NUMBER), (other, NUMBER)])
    for arguments in (
        {"schema": typed(both)},
        {"schema": typed(both), "config": {"table.key.columns": "id"}},
        {"schema": typed(struct("n"), key=both)},
        {"schema": typed(pa.struct([("m", pa.list_(pa.map_(TEXT, both)))]))},
        {"schema": typed({one: "int64", other: "int64"}, key="string")},
        {"schema": typed(struct(other)), "config": {"table.key.columns": one}},
        {"key": "id", "like": row},
        {"key": one, "like": row},
        {"key": "id", "schema": row},
    ):
        with pytest.raises(InvalidInputError, match=f"{one}.*{other}.*{SAID}.*nothing was created"):
            Log.create(store, **arguments)
    assert Log.create(store).version == 0


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_names_do_not_become_alike(store, one, other):
    """S61: by no evolution, in one step or two, and by no config."""
    inner = pa.list_(struct(one))
    value = pa.struct([(one, NUMBER), ("m", inner)])
    log = Log.create(store, schema=typed(value))
    for change in (
        {f"value.{other}": NUMBER},
        {f"value.m.element.{other}": NUMBER},
        {"value.new": struct(one, other)},
    ):
        with pytest.raises(InvalidInputError, match=f"{one}.*{other}.*{SAID}.*nothing was changed"):
            log.evolve(add=change)
    with pytest.raises(InvalidInputError, match=f"{other}.*{one}.*{SAID}.*nothing was changed"):
        log.alter({"table.key.columns": other})
    assert log.version == 0
    log.alter({"table.key.columns": "id"})
    with pytest.raises(InvalidInputError, match=f"id.*ID.*{SAID}.*nothing was changed"):
        log.evolve(add={"value.ID": NUMBER})


@pytest.mark.parametrize(("one", "other"), APART)
def test_names_that_no_engine_takes_for_one_stay_apart(store, one, other):
    """Each column keeps its values: text is not normalised, and no name is reserved among rows."""
    rows = [{"id": "a", one: 1, other: 2}]
    log = Log.create(store, key="id", like=rows)
    log.append(rows)
    table = log.table()
    assert table.to_pylist() == table.to_polars().to_dicts() == rows
    assert table.to_duckdb().fetchall() == [("a", 1, 2)]
    assert table.to_pylist(columns=[other]) == [{other: 2}]


def test_a_log_of_an_earlier_release_shows_both_columns(older):
    """S61: a name means the column that is spelled like it: in appends, filters and tables."""
    fields = pa.array([{"a": 3, "A": 4}], struct("a", "A"))
    older.append(pa.table({"id": ["b"], "V": [20], "v": [10], "m": fields}))
    older.append([{"id": "c", "V": 30}])
    rows = [
        {"id": "a", "v": 1, "m": {"a": 1, "A": 2}, "V": None},
        {"id": "b", "v": 10, "m": {"a": 3, "A": 4}, "V": 20},
        {"id": "c", "v": None, "m": None, "V": 30},
    ]
    table = older.table()
    assert table.to_pylist() == table.to_polars().to_dicts() == rows
    assert older.table(filter=[("V", ">=", 20)]).to_pylist(columns=["V"]) == [{"V": 20}, {"V": 30}]
    assert older.table(filter=[("v", "==", 1)])["V"].to_pylist() == [None]
    assert table.get("b") == {"v": 10, "m": {"a": 3, "A": 4}, "V": 20}


def test_duckdb_is_not_given_names_that_it_takes_for_one(older):
    """It would show the values of one column, or field, under both names."""
    table = older.table()
    for columns, said in ((None, "'v' and 'V'"), (["m"], "'m.a' and 'm.A'")):
        with pytest.raises(InvalidInputError, match=f"DuckDB ignores case.*{said}"):
            table.to_duckdb(columns=columns)
    assert table.to_duckdb(columns=["V", "m.A"]).fetchall() == [(None, {"A": 2})]


@pytest.mark.parametrize("name", ["delta", "iceberg"])
def test_a_log_of_an_earlier_release_goes_on(older, store, name):
    """What it has is no reason to refuse another change; it just cannot be published."""
    older.evolve(add={"value.w": NUMBER})
    older.alter({"retention.ms": 5})
    with pytest.raises(InvalidInputError, match="'w' and 'W'"):
        older.evolve(add={"value.W": NUMBER})
    with pytest.raises(InvalidInputError, match=f"'v' and 'V'.*cannot be published as {name}"):
        older.publish(name)
    again = Log.create(store, key="id", like=older.table(), exist_ok=True)
    assert (again.id, again.version) == (older.id, older.version)
    older.alter({"table.key.columns": None})
    with pytest.raises(InvalidInputError, match="'V', and the value also has a field 'v'"):
        older.alter({"table.key.columns": "V"})


def test_exist_ok_does_not_hide_why_a_log_is_not_created(store):
    """Names are refused where there is no log yet."""
    with pytest.raises(InvalidInputError, match="'v' and 'V'"):
        Log.create(store, schema=typed(struct("v", "V")), exist_ok=True)


def test_a_key_column_has_no_dot(monkeypatch, store, tmp_path):
    """As a field of the value has none: a dot separates a column from its fields."""
    arguments = {"schema": typed(struct("v")), "config": {"table.key.columns": "a.b"}}
    with pytest.raises(InvalidInputError, match=r"names 'a.b'; names have no dot"):
        Log.create(store, **arguments)
    log = Log.create(str(tmp_path / "records"), schema=typed(struct("v")))
    with pytest.raises(InvalidInputError, match=r"names 'a.b'; names have no dot"):
        log.alter({"table.key.columns": "a.b"})
    monkeypatch.setattr(administration, "names_problem", lambda *_, **__: None)
    older = Log.create(store, 1, **arguments)
    older.append([{"a.b": "x", "v": 1}])
    with pytest.raises(InvalidInputError, match="give the key column another name"):
        older.table().to_pylist()
    older.alter({"table.key.columns": "ab"})
    assert older.table().to_pylist() == [{"ab": "x", "v": 1}]


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("ID", "there is no column 'ID'; the columns are id, v;.*spelled there, 'id'"),
        (" pad", "no comma, and no space around them"),
        ("a,b", "names, each once, separated by commas"),
    ],
)
def test_a_key_is_named_as_it_is_spelled(store, key, said):
    """A log of rows renames no column of its frame."""
    names = ["id", "v"] if key == "ID" else [key, "v"]
    with pytest.raises(InvalidInputError, match=said):
        Log.create(store, key=key, like=pa.schema([(name, TEXT) for name in names]))


def test_frames_with_a_name_twice_are_refused(store):
    """pandas would leave out the first column; dicts may be named by numbers, and columns not."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([["a", 1, 2]], columns=["id", "v", "v"])
    log = Log.create(store, key="id", like=[{"id": "a", "v": 1}])
    for call in (lambda: log.append(frame), lambda: Log.create(store, key="id", like=frame)):
        with pytest.raises(InvalidInputError, match="more than one column named 'v'"):
            call()
    with pytest.raises(InvalidInputError, match="'v' and 'V'"):
        log.append([{"id": "a", "v": 1, "V": 2}])
    with pytest.raises(InvalidInputError, match="named by a int; names are text"):
        log.append([{"id": "a", 1: 2}])
    assert log.version == 0


def test_a_name_is_not_cut(store):
    """Arrow ends a name at a NUL character, and so would make another column of it."""
    log = Log.create(store, key="id", like=[{"id": "a", "v": 1}])
    for call in (
        lambda: log.evolve(add={"value.v\0w": NUMBER}),
        lambda: log.append([{"id": "a", "v\0w": 1}]),
        lambda: Log.create(store, key="id", like=[{"id": "a", "v\0w": 1}]),
        lambda: Log.create(store, schema={"key": "string", "value": {"v\0w": "int64"}}),
    ):
        with pytest.raises(InvalidInputError, match="NUL character"):
            call()


TIME = dt.datetime(2026, 1, 31, 12)
KEPT = {
    "seconds": (pa.timestamp("s"), MS, TIME),
    "zoned": (pa.timestamp("s", "Europe/Riga"), pa.timestamp("ms", "UTC"), TIME),
    "time of day": (pa.time32("s"), pa.time32("ms"), dt.time(12)),
    "days": (pa.date64(), pa.date32(), TIME.date()),
    "sized": (pa.list_(pa.int32(), 2), pa.list_(pa.int32()), [1, 2]),
    "nested": (
        pa.list_(pa.struct([("t", pa.timestamp("s", "UTC"))])),
        pa.list_(pa.struct([("t", pa.timestamp("ms", "UTC"))])),
        [{"t": TIME.replace(tzinfo=dt.UTC)}],
    ),
}


@pytest.mark.parametrize("kind", KEPT)
def test_like_takes_what_appends_take(store, kind):
    """A column holds every value that appends of the same data have; seconds are milliseconds."""
    given, kept, value = KEPT[kind]
    frame = pa.table({"id": ["a"], "c": pa.array([value], given)})
    log = Log.create(store, key="id", like=frame)
    assert log.table().schema.field("c").type == kept
    log.append(frame)
    assert log.table()["c"].to_pylist() == pa.array([value], kept).to_pylist()


def test_like_takes_seconds_of_frames_and_dicts(store, tmp_path):
    """The rule is the same for every kind of data; a type named in a schema is not changed."""
    numpy, pandas = pytest.importorskip("numpy"), pytest.importorskip("pandas")
    time = numpy.datetime64("2026-01-31T12:00:00", "s")
    frame = pandas.DataFrame({"id": ["a"], "t": pandas.Series([time], dtype="datetime64[s]")})
    for name, data in (("frame", frame), ("dicts", [{"id": "a", "t": time}])):
        log = Log.create(str(tmp_path / name), key="id", like=data)
        log.append(data)
        assert log.table()["t"].type == MS
        assert log.table()["t"].to_pylist() == [time.astype(object)]
    with pytest.raises(InvalidInputError, match="timestamps have the unit ms, us or ns"):
        Log.create(store, schema=typed(pa.struct([("t", pa.timestamp("s"))])))


def test_not_null_of_a_model_is_kept(store):
    """A field that a model declares NOT NULL takes no null, and none is appended."""
    columns = [("id", TEXT), pa.field("n", NUMBER, nullable=False), ("v", NUMBER)]
    log = Log.create(store, key="id", like=pa.schema(columns))
    assert [f.nullable for f in log.table().schema] == [False, False, True]
    for rows, said in (
        ([{"id": "a", "n": None, "v": 1}], "record 0 has no n, which is NOT NULL"),
        ([{"id": "a", "v": 1}], "column n is missing, which is NOT NULL"),
        (pa.table({"id": ["a"], "n": pa.nulls(1, NUMBER)}), "record 0 has no n"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            log.append(rows)
    assert log.version == 0
    log.append([{"id": "a", "n": 1}])
    log.append([{"key": "a", "value": None}])
    assert log.table().to_pylist() == []
