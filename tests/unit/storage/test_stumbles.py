"""What beginners try, in the words that they know: odd data by each way in, misspelt places, and
what a log is asked for.
"""

import dataclasses
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import clog

RIDES = [{"id": 1, "city": "Riga", "minutes": 31}, {"id": 2, "city": "Oslo", "minutes": 12}]


class Ride(NamedTuple):
    id: int
    city: str
    minutes: int


Row = dataclasses.make_dataclass("Row", ["id", "city", "minutes"])
ODD = {
    "a dict": RIDES[0],
    "a dict of lists": {"id": [1], "city": ["Riga"], "minutes": [31]},
    "tuples": [(1, "Riga", 31)],
    "lists": [[1, "Riga", 31]],
    "named tuples": [Ride(1, "Riga", 31)],
    "dataclasses": [Row(1, "Riga", 31)],
    "objects": [SimpleNamespace(**RIDES[0])],
    "texts": ["Riga"],
    "nothing among dicts": [RIDES[0], None],
    "batches": pa.Table.from_pylist(RIDES).to_batches(),
    "a set": {1, 2},
    "a text": "rides.csv",
    "bytes": b"rides",
    "a number": 5,
    "a class": dict,
    "an array": np.array([[1, 2, 3]]),
    "a structured array": np.array([(1, 31)], dtype=[("id", "i8"), ("minutes", "i8")]),
    "an array of dicts": np.array(RIDES, dtype=object),
    "a series": pd.Series(RIDES[0]),
    "an Arrow array": pa.array(RIDES),
}


@pytest.fixture
def log():
    return clog.create("memory://stumbles/rides", 1, key="id", like=RIDES, exist_ok=True)


@pytest.fixture
def raw():
    return clog.create("memory://stumbles/raw", 1, exist_ok=True)


DOORS = {
    "append to columns": lambda log, _, data: log.append(data),
    "append of bytes": lambda _, raw, data: raw.append(data),
    "a transaction": lambda log, _, data: log.transaction("t").append(data),
    "like=": lambda log, raw, data: clog.create("memory://stumbles/new", 1, key="id", like=data),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_table_is_told_what_would_be(log, raw, odd, door):
    """By each door: no error of Python's or NumPy's, and a list of dicts or a table is named."""
    with pytest.raises(clog.InvalidInputError, match=r"dict|table of all"):
        DOORS[door](log, raw, ODD[odd])


KINDS = {
    "dicts": list,
    "a generator": lambda rows: (row for row in rows),
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "lazy polars": pl.LazyFrame,
    "an Arrow table": pa.Table.from_pylist,
    "a batch": pa.RecordBatch.from_pylist,
    "a stream": lambda rows: pa.Table.from_pylist(rows).to_reader(),
}
WRONG = {
    "a text for a number": (
        {"minutes": "long"},
        r" minutes (of|has) type (str|large_str)",
    ),
    "a number for a text": ({"city": 7}, r" city (of|has) type int"),
    "a key of another type": ({"id": "one"}, r" id (of|has) type (str|large_str)"),
    "no key": ({"id": None}, r"has no id, which is NOT NULL"),
    "another column": ({"mins": 3}, r"column mins is not in the log's schema"),
    "a part of a number": ({"minutes": 1.5}, r" minutes (of type float|that does not fit)"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_value_is_named_by_its_column(log, kind, wrong):
    """A user of a table knows its columns, and neither a key nor a value; by each kind of data."""
    change, said = WRONG[wrong]
    with pytest.raises(clog.InvalidInputError, match=said) as raised:
        log.append(KINDS[kind]([{**RIDES[0], **change}]))
    assert "value" not in str(raised.value).replace("a value", "")


def test_records_of_a_table_keep_the_names_that_they_were_given_by(log):
    """Who gives a key and a value is told of these."""
    with pytest.raises(clog.InvalidInputError, match=r"has a value\.minutes of type str"):
        log.append([{"key": 1, "value": {"city": "Riga", "minutes": "long"}}])


EVOLUTIONS = {
    "narrower": ({"widen": {"minutes": pa.int32()}}, "minutes is int64 and cannot become int32"),
    "another key": ({"widen": {"id": pa.string()}}, "id is int64 and cannot become string"),
    "no key": ({"drop": ["id"]}, "id cannot be dropped"),
    "a null key": ({"relax": ["id"]}, "id stays NOT NULL"),
    "there": ({"add": {"Minutes": pa.int64()}}, "already exists, as minutes"),
    "inside": ({"add": {"minutes.x": pa.int64()}}, "minutes is int64, not a struct"),
    "both": ({"drop": ["minutes"], "rename": {"minutes": "m"}}, "^minutes is both"),
}


@pytest.mark.parametrize("which", EVOLUTIONS)
def test_what_cannot_evolve_is_named_by_its_column(log, which):
    changes, said = EVOLUTIONS[which]
    with pytest.raises(clog.InvalidInputError, match=said) as raised:
        log.evolve(**changes)
    assert not {"key.", "value."} & set(str(raised.value).replace(".", ". ").split())


@pytest.mark.parametrize("partitions", ["2", 2.0, True, None])
def test_partitions_of_another_type_are_no_range(partitions):
    with pytest.raises(clog.InvalidInputError, match="is not an integer; allowed: 1 to"):
        clog.create("memory://stumbles/new", partitions)


@pytest.mark.parametrize("key", [3, [3], {"id": 1}.values()])
def test_a_key_that_names_nothing(key):
    with pytest.raises(clog.InvalidInputError, match="names no columns"):
        clog.create("memory://stumbles/new", key=key, like=RIDES)


FILTERS = {
    "text": ([("minutes", ">", "12")], "int64, as id and minutes are, with string"),
    "number": ([("city", "=", 5)], "string, as city is, with int"),
    "expression": (pc.field("minutes") > "12", "int64, as id and minutes are, with string"),
    "misspelt": ([("mins", "=", 5)], "there is no column mins; they are id, city, minutes"),
    "nested": (pc.field("city", "name") == "x", "no column"),
}


@pytest.mark.parametrize("given", FILTERS)
def test_a_filter_that_does_not_fit_says_what_it_compares(log, given):
    """Not which of Arrow's functions has no kernel."""
    condition, said = FILTERS[given]
    with pytest.raises(clog.InvalidInputError, match="the filter does not fit") as raised:
        log.table(filter=condition)
    assert given == "nested" or said in str(raised.value)
    assert "kernel" not in str(raised.value)


def test_versions_that_never_were(log):
    """One to come is not expired."""
    with pytest.raises(clog.NotFoundError, match="does not exist yet") as raised:
        log.table(at=99)
    assert not isinstance(raised.value, clog.VersionExpiredError)


def test_what_is_there_where_no_log_is(tmp_path):
    """A file, a table of another kind, the folder around logs, files of one; a misspelt name."""
    clog.create(tmp_path / "logs/trips", 1)
    (tmp_path / "rides.csv").touch()
    (tmp_path / "delta/_delta_log").mkdir(parents=True)
    said = {
        "rides.csv": ", which is a file; a log is a folder: create one, and append what it has",
        "delta": ", which is a Delta table; create a log elsewhere, and append its rows",
        "logs": f"; there are logs below: {tmp_path}/logs/trips",
        "logs/trips/_clog": f", but files of the log at {tmp_path}/logs/trips",
        "logs/trip": f', but at {tmp_path}/logs/trips; create one with Log.create or "clog create"',
        "other": '; create one with Log.create or "clog create"',
    }
    for name, what in said.items():
        with pytest.raises(clog.NotFoundError) as raised:
            clog.open(tmp_path / name)
        assert str(raised.value) == f"no log at {tmp_path}/{name}{what}"


def test_a_log_that_is_asked_for_what_its_table_has_names_it(log):
    """As frames, dicts and clients of databases are asked."""
    for name in ("get", "to_pandas", "to_arrow", "to_polars"):
        with pytest.raises(AttributeError, match=rf"log\.table\(\)\.{name}$"):
            getattr(log, name)
    with pytest.raises(AttributeError, match=r"log\.append\(rows\) adds"):
        log.upsert  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'colour'$"):
        log.colour  # noqa: B018
    with pytest.raises(TypeError, match=r"len\(log\.table\(\)\)"):
        len(log)
    assert log
    with pytest.raises(AttributeError, match=r"clog\.connector has it"):
        clog.read_table  # noqa: B018
