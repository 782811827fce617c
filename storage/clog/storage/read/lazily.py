"""A table as a lazy frame of Polars, which asks for columns, rows and a number of them.

What Polars' optimizer hands down is a *predicate*, an expression of its own. As much of it as means
the same in Arrow becomes a filter (`filters`): comparisons of a column with a value, ``is_null``,
``is_in`` and ``is_between``, joined by and and or. The rest is left out of the filter, and all of
the predicate is asked of what was read. Not of floats: to Polars NaN is a number, the largest.

The form in which Polars gives away an expression is not promised to stay: what is not known here is
left out, and only costs reading.
"""

import io
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import and_, eq, ge, gt, le, lt, ne
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from clog.storage.errors import InvalidInputError

if TYPE_CHECKING:
    import polars as pl

Read = Callable[[Any, Sequence[str] | None], Iterator[pa.RecordBatch]]
_COMPARED: Final = {"Eq": eq, "NotEq": ne, "Lt": lt, "LtEq": le, "Gt": gt, "GtEq": ge}
_TURNED: Final = {"Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq"}
"""The comparison when its sides change places."""


def lazy_frame(schema: pa.Schema, read: Read) -> "pl.LazyFrame":
    """Returns a lazy frame of these columns; ``read`` yields the rows that a filter wants, or all,
    of these columns of them, or of all.
    """
    import polars as pl
    from polars.io.plugins import register_io_source

    def source(
        with_columns: list[str] | None,
        predicate: "pl.Expr | None",
        n_rows: int | None,
        _batch_size: int | None,
    ) -> "Iterator[pl.DataFrame]":
        names, where = with_columns or None, None
        if predicate is not None and names is not None:
            names = list(dict.fromkeys((*names, *predicate.meta.root_names())))
        if predicate is not None and n_rows is None:
            where = _as_filter(predicate, schema)
        left = n_rows
        try:
            batches = read(where, names)
        except InvalidInputError:  # Polars compares types that Arrow does not.
            batches = read(None, names)
        for batch in batches:
            rows = pl.DataFrame(batch if left is None else batch.slice(0, left))
            left = None if left is None else left - rows.height
            rows = rows if predicate is None else rows.filter(predicate)
            yield rows if with_columns is None else rows.select(with_columns)
            if left == 0:
                return

    return register_io_source(source, schema=pl.DataFrame(schema.empty_table()).schema)


def _as_filter(predicate: "pl.Expr", schema: pa.Schema) -> Any:
    """Returns what a predicate asks at least, as an expression of Arrow's; None for nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Polars says that the form may change.
        try:
            node = json.loads(predicate.meta.serialize(format="json"))
        except (ValueError, RuntimeError):  # It calls Python, for one.
            return None
        return _known(node, schema)


def _known(node: Any, schema: pa.Schema) -> Any:
    """Returns the part of an expression that is known; None where none is."""
    import polars as pl

    other = (LookupError, TypeError, AttributeError, ValueError)
    try:
        return _translated(node, schema)
    except (*other, pa.ArrowException, pl.exceptions.PolarsError):  # Another form, or kind.
        return None


def _translated(node: Any, schema: pa.Schema) -> Any:
    if "BinaryExpr" in node:
        part = node["BinaryExpr"]
        left, operator, right = part["left"], part["op"], part["right"]
        if operator in ("And", "LogicalAnd", "Or", "LogicalOr"):
            sides = (_known(side, schema) for side in (left, right))
            known = [side for side in sides if side is not None]
            if operator.endswith("Or"):
                return None if len(known) < 2 else known[0] | known[1]
            return reduce(and_, known) if known else None
        if "Literal" in left:
            left, operator, right = right, _TURNED.get(operator, operator), left
        field = _field(left, schema)
        if field is None or operator not in _COMPARED:
            return None
        return _COMPARED[operator](field, _value(right)) if "Literal" in right else None
    return _function(node["Function"], schema) if "Function" in node else None


def _function(part: Any, schema: pa.Schema) -> Any:
    kind = part["function"].get("Boolean")
    field = _field(part["input"][0], schema)
    if field is None:
        return None
    if kind == "IsNull":
        return field.is_null()
    if kind == "IsNotNull":
        return field.is_valid()
    named, options = next(iter(kind.items()))
    if named == "IsIn" and not options.get("nulls_equal"):
        return field.isin(pa.array(_value(part["input"][1]).as_py()))
    if named == "IsBetween" and options["closed"] == "Both":
        low, high = (_value(bound) for bound in part["input"][1:])
        return (field >= low) & (field <= high)
    return None


def _field(node: Any, schema: pa.Schema) -> Any:
    """Returns a column, or a field of one; None for all else, and for floats."""
    path: list[str] = []
    while "Function" in node:
        path.insert(0, node["Function"]["function"]["StructExpr"]["FieldByName"])
        (node,) = node["Function"]["input"]
    path.insert(0, node["Column"])
    kind = schema.field(path[0]).type
    for name in path[1:]:
        kind = kind.field(name).type
    return None if pa.types.is_floating(kind) else pc.field(*path)


def _value(node: Any) -> pa.Scalar:
    """Returns a literal's value."""
    import polars as pl

    literal = pl.Expr.deserialize(io.StringIO(json.dumps(node)), format="json")
    return pl.select(literal).to_series().to_arrow()[0]
