"""Rows that conditions choose, by each way to read a log without Spark, compared with rows in
memory; published views are compared with each engine's own answer for these.
"""

import operator
import os
import random
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from predicates import SCHEMA, log_of_rows, random_predicates

polars = pytest.importorskip("polars")
duckdb = pytest.importorskip("duckdb")
deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("fastavro")

SEEDS = int(os.environ.get("SEEDS", "10"))
BY_NAME = dict(
    zip(
        ("=", "!=", "<", "<=", ">", ">="),
        (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
        strict=True,
    )
)
COMPARED = [
    pytest.param(0, 8),
    *(pytest.param(seed, 100, marks=pytest.mark.nightly) for seed in range(1, SEEDS + 1)),
]
FLOATS = {"d": "DOUBLE", "f": "FLOAT", "s.x": "DOUBLE", "s.deep.x": "FLOAT"}
SQL_TYPES = {
    **FLOATS,
    "n": "DECIMAL(10,2)",
    "i": "INTEGER",
    "b": "BIGINT",
    "id": "BIGINT",
    "day": "DATE",
    "plain": "TIMESTAMP(6)",
    "ok": "BOOLEAN",
}
PLAIN = (*SQL_TYPES, "t", "s.t")
"""Columns whose values all dialects of SQL write in the same way."""


def type_of(path):
    """The type of a field."""
    kind = SCHEMA.field(path.split(".")[0]).type
    for name in path.split(".")[1:]:
        kind = kind.field(name).type
    return kind


def folded(predicate, condition, both):
    """A predicate made of an engine's conditions; ``both``: its not, and, or."""
    match predicate:
        case ("not", one):
            return both[0](folded(one, condition, both))
        case ("and" | "or" as joined, one, other):
            sides = folded(one, condition, both), folded(other, condition, both)
            return both[1 if joined == "and" else 2](*sides)
    return condition(*predicate)


def in_arrow(predicate, above=()):
    """A predicate of Arrow."""

    def condition(which, path, value):
        field, kind = pc.field(*above, *path.split(".")), type_of(path)
        match which:
            case "is null":
                return field.is_null()
            case "is not null":
                return field.is_valid()
            case "in":
                return field.isin(pa.array(value, kind))
            case "not in":
                return ~field.isin(pa.array(value, kind))
            case "starts with":
                return pc.starts_with(field, value)
            case "<=>":
                return (field == pa.scalar(value, kind)) & field.is_valid()
        return BY_NAME[which](field, pa.scalar(value, kind))

    return folded(predicate, condition, (operator.invert, operator.and_, operator.or_))


def in_polars(predicate, above=()):
    """A predicate of Polars."""

    def condition(which, path, value):
        first, *below = *above, *path.split(".")
        field = reduce(lambda column, name: column.struct.field(name), below, polars.col(first))
        kind = polars.from_arrow(pa.array([None], type_of(path))).dtype
        match which:
            case "is null":
                return field.is_null()
            case "is not null":
                return field.is_not_null()
            case "in":
                return field.is_in(polars.Series(value, dtype=kind).implode())
            case "not in":
                return ~field.is_in(polars.Series(value, dtype=kind).implode())
            case "starts with":
                return field.str.starts_with(value)
            case "<=>":
                return field.eq_missing(polars.lit(value, kind))
        return BY_NAME[which](field, polars.lit(value, kind))

    return folded(predicate, condition, (operator.invert, operator.and_, operator.or_))


def in_sql(predicate, path_of):
    """A predicate in the SQL of DuckDB and DataFusion."""

    def literal(path, value):
        is_text = isinstance(value, str)
        return f"'{value}'" if is_text else f"cast('{value}' AS {SQL_TYPES[path]})"

    def condition(which, path, value):
        name = path_of(path)
        match which:
            case "is null" | "is not null":
                return f"({name} {which})"
            case "in" | "not in":
                return f"({name} {which} ({', '.join(literal(path, v) for v in value)}))"
            case "starts with":
                return f"(starts_with({name}, {literal(path, value)}))"
        operator_ = "IS NOT DISTINCT FROM" if which == "<=>" else which
        return f"({name} {operator_} {literal(path, value)})"

    def joined(word):
        return lambda *sides: f"({f' {word} '.join(sides)})"

    return folded(predicate, condition, (lambda p: f"(NOT {p})", joined("AND"), joined("OR")))


def has_list_of_floats(predicate):
    match predicate:
        case ("not" | "and" | "or", *some):
            return any(map(has_list_of_floats, some))
    return isinstance(predicate[2], list) and predicate[1] in FLOATS


def ids_of(table, name="id"):
    column = table[name]
    return sorted(column.to_list() if isinstance(column, polars.Series) else column.to_pylist())


@pytest.mark.parametrize(("seed", "count"), COMPARED)
def test_a_filter_chooses_what_it_does_in_memory(tmp_path, seed, count):
    """By Arrow of a table and of records, and by Polars of a lazy frame."""
    draw = random.Random(seed)
    log, rows = log_of_rows(str(tmp_path / "log"), draw)
    frame, lazy = polars.from_arrow(rows), log.table().to_polars(lazy=True)
    records = log.read().to_arrow()
    for predicate in random_predicates(draw, count):
        where = in_arrow(predicate)
        assert ids_of(log.table(filter=where)) == ids_of(rows.filter(where)), predicate
        of_records = in_arrow(predicate, ("value",)) if "id" not in str(predicate) else None
        if of_records is not None:
            found = log.read(filter=of_records).to_arrow()
            assert ids_of(found, "offset") == ids_of(records.filter(of_records), "offset")
        where = in_polars(predicate)
        assert ids_of(lazy.filter(where).collect()) == ids_of(frame.filter(where)), predicate


@pytest.mark.parametrize(("seed", "count"), COMPARED)
def test_a_condition_chooses_the_same_rows_of_a_view(tmp_path, seed, count, monkeypatch):
    """An engine that filters the log's objects as it reads them finds the rows that it finds in
    what it has read: by DuckDB, by delta-rs, and by Polars of both formats.
    """
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # Else it warns.
    draw = random.Random(seed)
    log, _ = log_of_rows(str(tmp_path / "log"), draw, of_earlier=False)
    for view in ("delta", "iceberg"):
        log.publish(view)
    path = str(tmp_path / "log")
    metadata = max(
        (tmp_path / "log" / "metadata").glob("v*.json"), key=lambda p: int(p.name[1:-14])
    )
    frames = [polars.scan_delta(path), polars.scan_iceberg(str(metadata))]
    whole = [frame.collect() for frame in frames]
    delta = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path))
    objects = [str(p) for p in (tmp_path / "log").rglob("*.parquet") if p.parent.name == "data"]
    parquet = duckdb.read_parquet(objects)
    for predicate in random_predicates(draw, count, paths=PLAIN):
        where = in_polars(predicate)
        for frame, rows in zip(frames, whole, strict=True):
            assert ids_of(frame.filter(where).collect()) == ids_of(rows.filter(where)), predicate
        dotted = in_sql(predicate, str)
        hits = parquet.project(f"id, coalesce({dotted}, false) AS hit").fetchall()
        assert sorted(parquet.filter(dotted).project("id").fetchall()) == sorted(
            (id,) for id, hit in hits if hit
        ), dotted
        if has_list_of_floats(predicate):
            continue  # To DataFusion 0.0 is in (-0.0), or not, as the list is long.
        nested = in_sql(
            predicate, lambda p: p.partition(".")[0] + "".join(f"['{n}']" for n in p.split(".")[1:])
        )
        found = pa.table(delta.execute(f"SELECT id FROM t WHERE {nested}").read_all())
        hits = pa.table(delta.execute(f"SELECT id, {nested} AS hit FROM t").read_all())
        assert ids_of(found) == ids_of(hits.filter(pc.field("hit"))), nested
