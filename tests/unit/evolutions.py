"""Each way in which a log may evolve, as records before and after it (S61)."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from clog.storage import Log

NOTHING = object()


@dataclass(frozen=True)
class Evolution:
    """A value's field ``x`` as it was, the change, and values from before and after it; ``later``
    is the former as it is shown since, ``told`` what a read from before is told, and ``now`` what
    the field is called since.
    """

    name: str
    x: Any
    change: dict[str, Any]
    before: Any
    after: Any
    told: str | None = None
    later: Any = None
    now: str = "x"

    def __str__(self) -> str:
        return self.name

    def create(self, url: str) -> Log:
        """A log with a record from before."""
        x = self.x if isinstance(self.x, pa.Field) else pa.field("x", self.x)
        log = Log.create(url, 1, schema={"key": pa.int32(), "value": pa.struct([x])})
        log.append([self.record(1, self.before)])
        return log

    @staticmethod
    def record(key: int, x: Any) -> dict[str, Any]:
        return {"key": key, "value": {"x": x}}

    def record_since(self, key: int, x: Any) -> dict[str, Any]:
        """A record by the names that there are after the change."""
        return {"key": key, "value": {self.now: x}}

    @property
    def is_unrounded(self) -> bool:
        """Whether values that were rounded before are not any more."""
        return pa.float64() in self.change.get("widen", {}).values()

    @property
    def is_moved(self) -> bool:
        """Whether a name from before is another field's, or no field's."""
        return "rename" in self.change or "drop" in self.change

    @property
    def is_made_again(self) -> bool:
        """Whether records that were made before it are not committed after it."""
        return self.is_unrounded or self.is_moved

    @property
    def shows_what_it_gets(self) -> bool:
        """Whether a value that is appended after it is shown as it is."""
        return self.later is None or self.is_moved

    @property
    def shown(self) -> Any:
        if self.later is NOTHING:
            return None
        return self.before if self.later is None else self.later


def _widened(path: str, kind: pa.DataType) -> dict[str, Any]:
    return {"widen": {f"value.{path}": kind}}


FLOAT, DOUBLE = pa.float32(), pa.float64()
CENTS = Decimal("12345678901.25")
INNER = pa.struct([pa.field("y", FLOAT)])
STRICT = pa.struct([pa.field("y", FLOAT, nullable=False)])
TWO = pa.struct([("y", pa.int32()), ("z", pa.int32())])
EVOLUTIONS = [
    Evolution("float", FLOAT, _widened("x", DOUBLE), 0.5, 1e300, "value.x .* is double"),
    Evolution("rounded", FLOAT, _widened("x", DOUBLE), 0.5, 0.1, "value.x .* is double"),
    Evolution("int", pa.int32(), _widened("x", pa.int64()), 7, 1 << 40, "value.x .* is bigint"),
    Evolution("fitting", pa.int8(), _widened("x", pa.int32()), 7, 8, "value.x .* is int"),
    Evolution("uint", pa.uint8(), _widened("x", pa.uint32()), 7, 1 << 31, "value.x .* is bigint"),
    Evolution(
        *("decimal", pa.decimal128(9, 2), _widened("x", pa.decimal128(18, 2))),
        *(Decimal("1.50"), CENTS, r"value.x .* is decimal\(18,2\)"),
    ),
    Evolution(
        *("large", pa.decimal128(38, 2), _widened("x", pa.decimal256(40, 2))),
        *(Decimal("1.50"), CENTS, "value.x .* has a type that Spark does not have"),
    ),
    Evolution(
        *("null", pa.field("x", pa.int32(), nullable=False), {"relax": ["value.x"]}),
        *(7, None, "value.x .* may be null"),
    ),
    Evolution(
        *("nested", INNER, _widened("x.y", DOUBLE)),
        *({"y": 0.5}, {"y": 0.1}, "value.x.y .* is double"),
    ),
    Evolution(
        *("nested-null", STRICT, {"relax": ["value.x.y"]}),
        *({"y": 0.5}, {"y": None}, "value.x.y .* may be null"),
    ),
    Evolution(
        *("element", pa.list_(FLOAT), _widened("x.element", DOUBLE)),
        *([0.5], [0.1, 1e300], "value.x.element .* is double"),
    ),
    Evolution(
        *("map", pa.map_(pa.string(), FLOAT), _widened("x.value", DOUBLE)),
        *([("a", 0.5)], [("a", 0.1)], "value.x.value .* is double"),
    ),
    Evolution(
        *("map-key", pa.map_(pa.int32(), pa.int8()), _widened("x.key", pa.int64())),
        *([(1, 1)], [(1 << 40, 1)], "value.x.key .* is bigint"),
    ),
    Evolution("key", pa.int32(), {"widen": {"key": pa.int64()}}, 7, 8, "key .* is bigint"),
    Evolution("added", pa.int32(), {"add": {"value.z": pa.string()}}, 7, 8),
    Evolution(
        *("nested-added", INNER, {"add": {"value.x.z": pa.int8()}}, {"y": 0.5}, {"y": 1.5}),
        later={"y": 0.5, "z": None},
    ),
    Evolution(
        *("element-added", pa.list_(INNER), {"add": {"value.x.element.z": pa.int8()}}),
        *([{"y": 0.5}], [{"y": 1.5}], None, [{"y": 0.5, "z": None}]),
    ),
    Evolution(
        *("renamed", pa.int32(), {"rename": {"value.x": "y"}}, 7, 8),
        told="value.x .* is called value.y",
        now="y",
    ),
    Evolution(
        *("again", pa.int32(), {"drop": ["value.x"], "add": {"value.x": pa.int32()}}, 7, 8),
        *("value.x .* is dropped", NOTHING),
    ),
    Evolution(
        *("swapped", TWO, {"rename": {"value.x.y": "z", "value.x.z": "y"}}, {"y": 1, "z": 2}),
        *({"y": 3, "z": 4}, "value.x.y .* is called value.x.z", {"z": 1, "y": 2}),
    ),
    Evolution(
        *("nested-dropped", TWO, {"drop": ["value.x.y"]}, {"y": 1, "z": 2}, {"z": 4}),
        *("value.x.y .* is dropped", {"z": 2}),
    ),
    Evolution(
        *("element-renamed", pa.list_(INNER), {"rename": {"value.x.element.y": "w"}}),
        *([{"y": 0.5}], [{"w": 1.5}]),
        *("value.x.element.y .* is called value.x.element.w", [{"w": 0.5}]),
    ),
    Evolution(
        *("map-renamed", pa.map_(pa.string(), INNER), {"rename": {"value.x.value.y": "w"}}),
        *([("a", {"y": 0.5})], [("a", {"w": 1.5})]),
        *("value.x.value.y .* is called value.x.value.w", [("a", {"w": 0.5})]),
    ),
]


def x_of(value: Any) -> Any:
    """The field that was called ``x`` before, of a value from before or after."""
    return value["y" if "x" not in value else "x"]
