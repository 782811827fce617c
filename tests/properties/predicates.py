"""Rows with the values at which engines differ, and random predicates over them, as each engine
writes them.

A predicate is a tuple: ``("not", p)``, ``("and", p, q)``, ``("or", p, q)``, or a condition on a
column: ``(operator, column, value)``, where the operator is a comparison, ``"<=>"`` (equal, null to
null), ``"in"``, ``"not in"``, ``"is null"``, ``"is not null"`` or ``"starts with"``.
"""

import datetime as dt
import decimal
from collections.abc import Sequence
from random import Random
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa

from clog.cleaner import Cleaner
from clog.storage import Log
from clog.storage.objects import writer

NAN, INFINITE = float("nan"), float("inf")
_FLOATS: Final = (NAN, -0.0, 0.0, 1.5, 5.0, -2.5, INFINITE, -INFINITE, 2.0**24 + 2)
_TEXTS: Final = ("", "a", "A", "ab%", "é", "éa", "\u0100", "z", "\U0001f600", "é" * 100)
_TIMES: Final = tuple(
    dt.datetime(*given)
    for given in (
        *((1, 1, 1), (1500, 2, 28, 1), (1582, 10, 4, 23, 59, 59), (1582, 10, 15)),
        *((1969, 12, 31, 23, 59, 59, 999999), (2024, 3, 31, 1, 30), (2024, 10, 27, 0, 30)),
        (9998, 12, 31),
    )
)
VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "id": tuple(range(0, 60, 7)),
    "d": _FLOATS,
    "f": _FLOATS,
    "i": (-(2**31), -1, 0, 1, 7, 2**31 - 1),
    "b": (-(2**63), -1, 0, 2**24 + 1, 2**53 + 1, 2**63 - 1),
    "n": tuple(map(decimal.Decimal, ("-99999999.99", "-0.01", "0.00", "1.50", "12345678.90"))),
    "day": tuple(time.date() for time in _TIMES),
    "at": tuple(time.replace(tzinfo=dt.UTC) for time in _TIMES),
    "plain": _TIMES,
    "t": _TEXTS,
    "y": (b"\x00", b"\x80", b"\xff\xff", *(text.encode() for text in _TEXTS)),
    "ok": (True, False),
    "s.x": _FLOATS,
    "s.t": _TEXTS,
    "s.deep.x": _FLOATS,
}
"""The columns and fields, by path, and their values besides null."""
SCHEMA: Final = pa.schema(
    [
        *(("id", pa.int64()), ("d", pa.float64()), ("f", pa.float32()), ("i", pa.int32())),
        *(("b", pa.int64()), ("n", pa.decimal128(10, 2)), ("day", pa.date32())),
        *(("at", pa.timestamp("us", "UTC")), ("plain", pa.timestamp("us")), ("t", pa.string())),
        *(("y", pa.binary()), ("ok", pa.bool_())),
        pa.field(
            "s",
            pa.struct(
                [
                    *(("x", pa.float64()), ("t", pa.string())),
                    ("deep", pa.struct([("x", pa.float32())])),
                ]
            ),
        ),
    ]
)
_COMPARISONS: Final = ("=", "!=", "<", "<=", ">", ">=", "<=>")

Predicate = tuple[Any, ...]
OF_NAN: Final[tuple[Predicate, ...]] = (
    *(("=", "d", NAN), (">", "s.x", 5.0), (">=", "f", NAN), ("<=>", "s.deep.x", NAN)),
    *(
        ("not", ("<=", "d", 5.0)),
        ("in", "s.x", [NAN, 9.0]),
        ("or", (">", "f", 7.0), ("=", "id", 1)),
    ),
)
"""Predicates that are true of NaN."""


def random_rows(draw: Random, ids: range) -> list[dict[str, Any]]:
    """Returns a row for each id, with few different values for each column."""
    some = {path: draw.choices((*values, None), k=3) for path, values in VALUES.items()}

    def value(path: str) -> Any:
        return draw.choice(some[path])

    rows = []
    for number in ids:
        row = {name: value(name) for name in SCHEMA.names if name in VALUES}
        deep = draw.choice([None, {"x": value("s.deep.x")}])
        inner = {"x": value("s.x"), "t": value("s.t"), "deep": deep}
        rows.append({**row, "id": number, "s": draw.choice([None, inner, inner])})
    return rows


def log_of_rows(url: str, draw: Random, *, of_earlier: bool = True) -> tuple[Log, pa.Table]:
    """Returns a log with the rows of a table, and the table: in objects of a few rows, each of two
    or three row groups. Some rows have gone or were replaced; a part was cleaned. ``of_earlier``:
    half of the objects have bounds that leave out NaN, as earlier releases wrote them.
    """
    log = Log.create(
        *(url, 1, {"min.cleanable.dirty.ratio": "0"}, {"fsync": False}), key="id", like=SCHEMA
    )
    latest = {}
    small = {"GROUP_ROWS": 4, "GROUP_BYTES_MIN": 1}
    with patch.multiple(writer, **small):
        for turn in range(10):
            rows = random_rows(draw, range(6 * turn, 6 * turn + 9))
            latest |= {row["id"]: row for row in rows}
            with patch.object(
                writer, "nan_in", _no_nan if of_earlier and turn % 2 else writer.nan_in
            ):
                log.append(pa.Table.from_pylist(rows, SCHEMA))
            if turn == 4:
                gone = draw.sample(sorted(latest), 3)
                log.append([{"key": key, "value": None} for key in gone])
                latest = {key: row for key, row in latest.items() if key not in gone}
                log.roll()
                Cleaner(log).run_once(force=True)
    return log, pa.Table.from_pylist(list(latest.values()), SCHEMA)


def _no_nan(_records: object) -> set[str]:
    return set()


def random_predicates(
    draw: Random, count: int, *, paths: Sequence[str] = tuple(VALUES)
) -> list[Predicate]:
    """Returns as many, and those of NaN."""
    return [*OF_NAN, *(random_predicate(draw, paths=paths) for _ in range(count))]


def random_predicate(
    draw: Random, *, paths: Sequence[str] = tuple(VALUES), depth: int = 2
) -> Predicate:
    """Returns a predicate of up to four conditions."""

    def inner() -> Predicate:
        return random_predicate(draw, paths=paths, depth=depth - 1)

    match draw.choice(["not", "and", "or", "is", "is"]) if depth else "is":
        case "not":
            return "not", inner()
        case "and" | "or" as joined:
            return joined, inner(), inner()
    path = draw.choice(paths)
    values = VALUES[path]
    match draw.choice(["compare"] * 6 + ["in", "in", "not in", "null", "starts with"]):
        case "in" | "not in" as which:
            return which, path, draw.choices(values, k=draw.randint(1, 3))
        case "null":
            return draw.choice(["is null", "is not null"]), path, None
        case "starts with" if isinstance(values[0], str):
            return "starts with", path, draw.choice(values)[:1]
    return draw.choice(_COMPARISONS), path, draw.choice(values)
