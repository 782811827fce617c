"""Rows that conditions choose, by each way to read a log in Spark, compared with a local frame."""

import os
import random
from functools import reduce

import pytest
from predicates import log_of_rows, random_predicates
from pyspark.sql import functions

from clog.connector import read_log, read_table

SEEDS = int(os.environ.get("SEEDS", "10"))
AT_ONCE = 25
TYPES = {"d": "double", "f": "float", "s.x": "double", "s.deep.x": "float", "n": "decimal(10,2)"}


def sql_of(predicate):
    """A predicate in Spark's SQL."""
    match predicate:
        case ("not", one):
            return f"(NOT {sql_of(one)})"
        case ("and" | "or" as joined, one, other):
            return f"({sql_of(one)} {joined.upper()} {sql_of(other)})"
        case ("is null" | "is not null" as which, path, _):
            return f"({path} {which.upper()})"
        case ("in" | "not in" as which, path, values):
            listed = ", ".join(literal(path, value) for value in values)
            return f"({path} {which.upper()} ({listed}))"
        case ("starts with", path, text):
            return f"(startswith({path}, {literal(path, text)}))"
        case (operator, path, value):
            return f"({path} {operator} {literal(path, value)})"


def literal(path, value):
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, str):
        return "'" + "".join(f"\\U{ord(letter):08x}" for letter in value) + "'"
    if path in ("at", "plain"):
        kind = "TIMESTAMP" if path == "at" else "TIMESTAMP_NTZ"
        text = value.replace(tzinfo=None).isoformat(" ").rjust(19, "0")
        return f"{kind}'{text}{' UTC' if path == 'at' else ''}'"
    if path == "day":
        return f"DATE'{value.isoformat()}'"
    if path in TYPES:
        return f"cast('{value}' AS {TYPES[path]})"
    return (
        {"b": f"{value}L", "id": f"{value}L"}.get(path, str(value))
        if value != -(2**63)
        else (f"bigint('{value}')")
    )


def chosen(frame, conditions):
    """The ids of the rows that each condition chooses, by a filter of its own."""
    found = {number: [] for number in range(len(conditions))}
    for first in range(0, len(conditions), AT_ONCE):
        parts = [
            frame.where(condition).select("id", functions.lit(first + i).alias("n"))
            for i, condition in enumerate(conditions[first : first + AT_ONCE])
        ]
        for row in reduce(lambda one, other: one.union(other), parts).collect():
            found[row.n].append(row.id)
    return [sorted(ids) for ids in found.values()]


def matched(frame, conditions):
    """The same by columns: no condition is one of a scan."""
    columns = [f"coalesce({c}, false) AS c{i}" for i, c in enumerate(conditions)]
    rows = frame.selectExpr("id", *columns).collect()
    return [sorted(row.id for row in rows if row[i + 1]) for i in range(len(conditions))]


@pytest.mark.parametrize(
    ("seed", "count"),
    [pytest.param(0, 18, marks=pytest.mark.core), *((seed, 100) for seed in range(1, SEEDS + 1))],
)
def test_a_condition_chooses_the_same_rows_in_every_read(spark, url, seed, count):
    """As in a local frame: also of objects whose bounds leave out NaN, as earlier releases wrote
    them, and for dates before 1582, zones, null, -0.0 and fields of structs.
    """
    draw = random.Random(seed)
    log, rows = log_of_rows(str(url), draw)
    assert sorted(log.table()["id"].to_pylist()) == sorted(rows["id"].to_pylist())
    conditions = [sql_of(predicate) for predicate in random_predicates(draw, count)]
    expected = matched(spark.createDataFrame(rows), conditions)
    assert any(expected)
    records = spark.createDataFrame(log.read().to_arrow())
    of_log = matched(records.selectExpr("key AS id", "value.*"), conditions)
    for name, frame, wanted in (
        ("read_table", read_table(spark, url), expected),
        (
            'format("clog")',
            spark.read.format("clog").option("view", "table").load(str(url)),
            expected,
        ),
        ("read_log", read_log(spark, url).selectExpr("key AS id", "value.*"), of_log),
        (
            "log",
            spark.read.format("clog").load(str(url)).selectExpr("key AS id", "value.*"),
            of_log,
        ),
    ):
        # No condition reaches Python, whose reads take long.
        found = (chosen if name.startswith("read") else matched)(frame, conditions)
        wrong = {c: (f, w) for c, f, w in zip(conditions, found, wanted, strict=True) if f != w}
        assert not wrong, name
