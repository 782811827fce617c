"""`clog consume --to`: files that other tools can read."""

import csv
import io
import json
import math
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clog.storage import Log

T0 = 1_769_860_800_000


@pytest.fixture
def log(url):
    """Text in two partitions, with headers, an empty value and a tombstone."""
    log = Log.create(url, partitions=2)
    log.append(
        [
            {"key": "a", "value": "1", "timestamp": T0, "headers": [("h", 'x,"y"'), ("n", None)]},
            {"key": "b", "value": "", "timestamp": T0 + 1},
            {"key": "a", "value": None, "timestamp": T0 + 2},
        ],
        partition=[0, 1, 0],
    )
    return log


def test_parquet_holds_what_a_read_returns(cli, url, log, tmp_path):
    """All columns, tombstones and headers; --strings makes keys and values text."""
    out = tmp_path / "log.parquet"
    said = cli("consume", url, "--to", out).stdout
    assert said.startswith(f"exported 3 records to {out}, ")
    read = [row for batch in log.read() for row in batch.to_pylist()]
    assert pq.read_table(out).to_pylist() == read
    assert "already" in cli("consume", url, "--to", out, code=2).stderr
    done = cli.json("consume", url, "--to", out, "--table", "--strings", "--overwrite")
    assert done["records"] == 1
    (row,) = pq.read_table(out).to_pylist()
    assert (row["key"], row["value"]) == ("b", "")


@pytest.mark.parametrize("table", [[], ["--table"]])
def test_engines_find_nan_in_parquet(cli, url, tmp_path, table):
    """To which it is the largest number; Arrow leaves it out of the least and the greatest."""
    rows = [{"id": i, "d": d, "s": {"x": d}} for i, d in enumerate([1.0, math.nan, 5.0])]
    Log.create(url, 1, key="id", like=rows).append(rows)
    cli("consume", url, "--to", out := tmp_path / "log.parquet", *table)
    for path in ("value.d", "value.s.x"):
        for condition in ("= 'nan'::double", "> 5"):
            found = duckdb.read_parquet(str(out)).filter(f"{path} {condition}").project("key")
            assert found.fetchall() == [(1,)]


def test_a_relative_file_needs_a_folder(cli, url, log, tmp_path, monkeypatch):
    """Which may have been deleted while the shell was in it: no damage of the log."""
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    said = cli("consume", Path(url).resolve(), "--to", "log.csv", code=2).stderr
    assert "the folder in which this process works was deleted" in " ".join(said.split())


def test_csv_tells_null_from_empty(cli, url, log, tmp_path):
    """Null is empty, the empty string is quotes; headers are JSON."""
    text = cli("consume", url, "--format", "csv").stdout
    assert text.splitlines()[3].endswith(',"b","",')
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(r["partition"], r["offset"], r["key"], r["value"]) for r in rows] == [
        *(("0", "0", "a", "1"), ("0", "1", "a", "")),
        ("1", "0", "b", ""),
    ]
    headers = [{"key": "h", "value": 'x,"y"'}, {"key": "n", "value": None}]
    assert json.loads(rows[0]["headers"]) == headers
    assert rows[0]["timestamp"].startswith("2026-01-31 12:00:00")


def test_json_lines_are_those_of_consume(cli, url, log, tmp_path):
    """In a form that `clog produce` reads."""
    out = tmp_path / "log.jsonl"
    cli("consume", url, "--to", out, "--partition", 0, "--from", f"@{T0 + 1}")
    assert out.read_text() == cli("consume", url, "-p", 0, "--from", 1, "--json").stdout


def test_bytes_that_are_no_text(cli, url, log, tmp_path):
    """If text is required, the error has the record's place and the remedy, and no file is left."""
    log.append([{"key": "k", "value": b"\xff"}], partition=1)
    for name, more in (("x.csv", []), ("x.parquet", ["--strings"])):
        told = cli("consume", url, "--to", tmp_path / name, *more, code=1).stderr
        assert "a value among offsets 1 to 1 of partition 1 is not UTF-8" in told
    assert "/w==" in cli("consume", url, "--format", "csv", "--base64").stdout
    assert not [p for p in Path(tmp_path).iterdir() if p.is_file()]


@pytest.mark.parametrize(
    "given",
    [
        ["x.txt"],
        ["x.csv", "--at", "1"],
        ["x.csv", "--strings", "--base64"],
        ["x.csv", "--follow"],
        ["x.csv", "--reader", "r"],
    ],
)
def test_what_makes_no_sense_is_a_usage_error(cli, url, log, given, tmp_path, monkeypatch):
    """Exit code 2, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    cli("consume", url, "--to", *given, code=2)
    assert not [p for p in Path(tmp_path).iterdir() if p.is_file()]


def test_an_empty_log_is_an_empty_file(cli, tmp_path):
    """With its columns."""
    url = str(tmp_path / "empty")
    Log.create(url, partitions=1)
    cli("consume", url, "--to", tmp_path / "empty.parquet")
    assert pq.read_table(tmp_path / "empty.parquet").num_rows == 0
    assert cli("consume", url, "--format", "csv").stdout.startswith('"partition","offset"')


def test_a_typed_log_keeps_its_types(cli, tmp_path):
    """Columns of Parquet; in CSV scalars as they are, structs as JSON, bytes as usual."""
    url = str(tmp_path / "typed")
    schema = {"key": pa.int64(), "value": pa.struct([("n", pa.int32()), ("name", pa.string())])}
    log = Log.create(url, partitions=1, schema=schema)
    log.append([{"key": 1, "value": {"n": 2, "name": 'a "b"'}}, {"key": 2, "value": None}])
    cli("consume", url, "--to", tmp_path / "t.parquet", "--strings")
    found = pq.read_table(tmp_path / "t.parquet")
    assert [found.schema.field(name).type for name in ("key", "value")] == log.schema.types
    assert found.column("value").to_pylist() == [{"n": 2, "name": 'a "b"'}, None]
    text = cli("consume", url, "--format", "csv").stdout
    values = [(r["key"], r["value"]) for r in csv.DictReader(io.StringIO(text))]
    assert [key for key, _ in values] == ["1", "2"]
    assert json.loads(values[0][1]) == {"n": 2, "name": 'a "b"'}
    assert values[1][1] == ""
    text = cli("consume", url, "--format", "jsonl").stdout
    assert text == cli("consume", url, "--json").stdout
