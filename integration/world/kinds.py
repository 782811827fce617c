"""The types of fields: how values are drawn, and into what each may be widened."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class Kind:
    """A type, values of it that are read as they were written, and the name of a wider one."""

    arrow: pa.DataType
    values: tuple[Any, ...]
    wider: str | None = None


KINDS: dict[str, Kind] = {
    "int8": Kind(pa.int8(), (0, -128, 127), "int32"),
    "int32": Kind(pa.int32(), (0, 1, -3, 16_777_217), "int64"),
    "int64": Kind(pa.int64(), (0, 1, 1 << 40, -(1 << 62))),
    "uint8": Kind(pa.uint8(), (0, 255), "uint64"),
    "uint64": Kind(pa.uint64(), (0, 1, (1 << 64) - 1)),
    "float32": Kind(pa.float32(), (0.5, -0.0, 3.0, float("inf")), "float64"),
    "float64": Kind(pa.float64(), (0.1, -0.0, 1e300, float("nan"), 16_777_217.0)),
    "cents": Kind(pa.decimal128(5, 2), (Decimal("1.50"), Decimal("-999.99")), "euros"),
    "euros": Kind(pa.decimal128(18, 2), (Decimal("0.00"), Decimal("1234567890123456.78"))),
    "string": Kind(pa.string(), ("Riga", "Žilina", "", "x" * 130, "Ž" * 130)),
    "binary": Kind(pa.binary(), (b"", b"\x00\xff", b"Riga")),
    "bool": Kind(pa.bool_(), (True, False)),
    "date": Kind(pa.date32(), (date(1582, 10, 4), date(2026, 2, 28))),
    "time": Kind(
        pa.timestamp("us", "UTC"),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), datetime(2026, 1, 2, 3, 4, 5, 6, UTC)),
    ),
    "list": Kind(pa.list_(pa.int32()), ([], [1, 2], [7])),
}

Columns = Mapping[str, "Kind | Columns"]
"""Fields by name; those of a struct are columns again."""


def struct_of(columns: Columns, strict: frozenset[str] = frozenset()) -> pa.DataType:
    """Returns the Arrow type of columns; ``strict`` are NOT NULL."""
    return pa.struct(
        [
            pa.field(name, _arrow(kind), nullable=name not in strict)
            for name, kind in columns.items()
        ]
    )


def _arrow(kind: "Kind | Columns") -> pa.DataType:
    return kind.arrow if isinstance(kind, Kind) else struct_of(kind)


def drawn(random: Random, columns: Columns, strict: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Draws a value of these columns, nulls too; some absent fields are left out."""
    made: dict[str, Any] = {}
    for name, kind in columns.items():
        if name not in strict and random.random() < 0.15:
            made[name] = None
        elif isinstance(kind, Kind):
            made[name] = random.choice(kind.values)
        else:
            made[name] = drawn(random, kind)
    return made


def read_as(value: Any, columns: Columns | None) -> Any:
    """Returns a value as it is read with these columns: absent ones are null."""
    if columns is None or value is None:
        return value
    return {
        name: value.get(name) if isinstance(kind, Kind) else read_as(value.get(name), kind)
        for name, kind in columns.items()
    }


def paths(columns: Columns, prefix: str = "value") -> dict[str, "Kind | Columns"]:
    """Returns all fields by path, those in structs too."""
    found: dict[str, Kind | Columns] = {}
    for name, kind in columns.items():
        found[f"{prefix}.{name}"] = kind
        if not isinstance(kind, Kind):
            found |= paths(kind, f"{prefix}.{name}")
    return found


def with_path(columns: Columns, path: str, kind: Kind) -> Columns:
    """Returns columns with a field at a path, new or in place of one."""
    name, _, rest = path.removeprefix("value.").partition(".")
    if not rest:
        return {**columns, name: kind}
    inner = columns[name]
    assert not isinstance(inner, Kind)
    return {**columns, name: with_path(inner, rest, kind)}


KEYS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "int64": (pa.int64(), lambda n: n * (1 << 33) - 5),
    "string": (pa.string(), lambda n: f"Ž{n}"),
    "date": (pa.date32(), lambda n: date(2026, 1, 1 + n)),
    "pair": (
        pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.string())]),
        lambda n: (n % 4, f"b{n}"),
    ),
}
"""Types of keys, and how the n-th looks; a struct is a tuple."""
