"""Filters of reads: which rows are wanted, and what need not be read to find them.

A filter is a pyarrow expression over the columns that a read shows, or a list of tuples as
``pyarrow.parquet`` takes. It is applied to the rows shown: in a table after the latest record of
each key is known, so that an older one that matches does not come back. Data that cannot be wanted
in any case is left out before it is read:

- Row groups whose statistics contradict the filter, where rows are delivered. Where only keys are
  compared (for the map of a table's dirty part), only those that the keys' own statistics
  contradict: no row of such a key is wanted, whichever is the latest.
- Pieces whose partition, offsets or time of append contradict it.

What is known of a row group or a piece is a *guarantee*, an expression, and Arrow says whether a
filter can be true under it. Statistics of floats say nothing about NaN: they are used for a column
only if the filter cannot be true for a row with NaN there.

pyarrow.dataset is imported where it is needed: that takes long, and few reads have a filter.

A table can also be a lazy frame of Polars (`lazy_frame`), which asks for columns, for rows and for
a number of rows. Polars' optimizer passes a *predicate*, an expression of Polars. The part of it
that means the same in Arrow becomes a filter: comparisons of a column with a value, ``is_null``,
``is_in`` and ``is_between``, joined by and and or. The rest is left out of the filter, and the
whole predicate is applied to what was read. Floats are left out: to Polars NaN is a number, the
largest. Polars does not promise to keep the form in which it exports an expression; what is not
known here is left out, and only costs reading.
"""

import io
import json
import pickle
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from decimal import Decimal
from functools import partial, reduce
from operator import and_, eq, ge, gt, le, lt, ne
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.storage.env import dataclass
from clog.storage.errors import InvalidInputError
from clog.storage.format.documents import NONE
from clog.storage.format.log_info import LogSchema
from clog.storage.numpy_arrays import scalar
from clog.storage.objects.reader import Choose
from clog.storage.read.scan import ReadPiece, read_schema
from clog.storage.types.columns import (
    arrow_schema,
    lone_leaves,
    projected,
    shaped,
    type_at,
)
from clog.storage.types.rows import RECORD_COLUMNS, Shown, TableColumns
from clog.storage.types.stored import Place

if TYPE_CHECKING:
    import polars as pl

_OF_PIECES: Final = frozenset(("partition", "offset", "timestamp"))
"""Columns about which pieces say something."""
_EXACT: Final = pa.decimal128(38, 0)
"""A type for integers of all types."""
_USELESS: Final = pa.dense_union([pa.field("", pa.null())])
"""A type that nothing but ``is_null`` takes."""
_types = pa.types


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column, or a field of one, that a filter names: the name, the stored path, the type."""

    name: str
    path: str
    type: pa.DataType

    @property
    def top(self) -> str:
        return self.path.partition(".")[0]

    @property
    def field(self) -> Any:
        return pc.field(*self.name.split("."))


@dataclass(frozen=True, slots=True)
class RowFilter:
    """An expression over ``shown``; ``read``: the columns of records that are read for it."""

    expression: Any
    shown: Shown
    read: pa.Schema
    by_key: "Pruned"
    wanted: "Pruned"

    @classmethod
    def of(
        cls, given: object, schema: LogSchema | None, rows: TableColumns | None = None
    ) -> "RowFilter":
        """Returns the filter that a user gives, over the plain columns of ``rows`` or else over
        those of records.

        Raises:
            InvalidInputError: it is not a filter, or names something that is not a column.
        """
        records = read_schema(schema)
        plain = rows and rows.shown(arrow_schema(schema), None)
        whole = plain.schema if plain else records
        expression = _expression(given, (whole, records))
        names = _names_in(expression, whole)
        if names is None and plain:
            names, plain = _names_in(expression, records), None
        if names is None:
            structs = {f.name: f.type for f in whole if _types.is_struct(f.type)}
            paths = [[f"{n}.{f.name}" for f in structs.get(n, ())] or [n] for n in whole.names]
            raise InvalidInputError(
                f"the filter does not fit the columns: {_problem(expression, whole)};"
                f" they are {', '.join(path for some in paths for path in some)}"
            )
        shown = rows.shown(arrow_schema(schema), names) if rows and plain else None
        shown = shown or Shown(read_schema(schema, names), names)
        pairs = zip(names, shown.paths, strict=True)
        leaves = [leaf for name, path in pairs for leaf in _leaves(name, path, shown.schema)]
        leaves = [leaf for leaf in leaves if _covers_all(expression, shown.schema, leaf)]
        by_key, wanted = (
            Pruned(expression, shown.schema, tuple(leaf for leaf in leaves if leaf.top in tops))
            for tops in (("key",), RECORD_COLUMNS)
        )
        return cls(expression, shown, read_schema(schema, shown.paths), by_key, wanted)

    def with_paths(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Returns the paths that are read for the filter and for these columns of records."""
        both = dict.fromkeys((*paths, *self.shown.paths))
        return tuple(p for p in both if not any(p.startswith(f"{other}.") for other in both))

    @classmethod
    def joined(
        cls,
        former: "RowFilter | None",
        given: object,
        schema: LogSchema | None,
        rows: TableColumns | None,
    ) -> "RowFilter | None":
        """Returns the filter that matches what both match; None: everything."""
        if given is None or former is None:
            return former if given is None else cls.of(given, schema, rows)
        return cls.of(former.expression & given, schema, rows)

    def of_batches(
        self, batches: Iterable[pa.RecordBatch], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yields the wanted rows of batches, as batches of these columns."""
        for batch in batches:
            rows = self.kept(batch)
            if rows.num_rows:
                yield shaped(rows, schema)

    def kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the wanted rows of records that have the columns ``read``."""
        rows = self.shown.of(shaped(batch, self.read))
        try:
            return batch.filter(_wanted(self.expression, rows))
        except pa.ArrowException as e:
            raise InvalidInputError(f"the filter fails: {e}") from e


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a filter leaves out before it is read, by what is known of ``leaves``."""

    expression: Any
    schema: pa.Schema
    leaves: tuple[Leaf, ...]

    def pieces(self, pieces: Sequence[ReadPiece]) -> Sequence[ReadPiece]:
        """Returns the pieces that may have wanted rows."""
        if not pieces or _OF_PIECES.isdisjoint(leaf.path for leaf in self.leaves):
            return pieces
        there = _possible(self.expression, self.schema, map(self._of_piece, pieces))
        return [pieces[i] for i in there]

    def chosen_of(self, run: Sequence[ReadPiece]) -> Choose | None:
        """Returns the function that chooses row groups of neighbouring pieces; None: all."""
        has_times = all(piece.append_time_ms == NONE for piece in run)
        places = _OF_PIECES if not has_times else _OF_PIECES - {"timestamp"}
        leaves = [leaf for leaf in self.leaves if leaf.path not in places]
        return partial(self._chosen, leaves) if leaves else None

    def _of_piece(self, piece: ReadPiece) -> Any:
        offset = pc.field("offset")
        known = {
            "partition": pc.field("partition") == pa.scalar(piece.partition, pa.int32()),
            "offset": (offset >= piece.start) & (offset < piece.end),
        }
        if piece.append_time_ms != NONE:
            time = scalar(piece.append_time_ms * 1000, pa.timestamp("us", "UTC"))
            known["timestamp"] = pc.field("timestamp") == time
        return _all_of(known.get(leaf.path) for leaf in self.leaves)

    def _chosen(
        self,
        leaves: Sequence[Leaf],
        metadata: Any,
        place: Place,
        numbers: Sequence[int],
    ) -> Collection[int]:
        places = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
        stored = ((leaf, place(leaf.path)) for leaf in leaves)
        found = [(leaf, places[at[0]], at[1]) for leaf, at in stored if at and at[0] in places]

        def guarantee(number: int) -> Any:
            group = metadata.row_group(number)
            rows = group.num_rows
            return _all_of(
                _within(leaf, group.column(i).statistics, kind, rows) for leaf, i, kind in found
            )

        there = _possible(self.expression, self.schema, map(guarantee, numbers))
        return {numbers[i] for i in there}


def _expression(given: object, schemas: Sequence[pa.Schema]) -> Any:
    """Returns a user's filter as an expression."""
    if isinstance(given, pc.Expression):
        try:
            pickle.dumps(given)
        except pa.ArrowException as e:
            raise InvalidInputError(
                f"the filter refers to columns by number, or cannot be stored ({e}); name them"
            ) from e
        return given
    import pyarrow.parquet as pq

    try:
        if not isinstance(given, list) or not given:
            raise TypeError(f"not {type(given).__name__}")
        either = [given] if isinstance(given[0], tuple) else given
        return pq.filters_to_expression(
            [[_condition(*some, schemas=schemas) for some in all_of] for all_of in either]
        )
    except (TypeError, ValueError, OverflowError) as e:
        raise InvalidInputError(
            "a filter must be an expression of pyarrow.compute, such as pc.field('price') > 3, or"
            f" a list of tuples, such as [('price', '>', 3)]: {e}"
        ) from e


def _condition(
    column: str, operator: str, value: Any, *, schemas: Sequence[pa.Schema]
) -> tuple[Any, ...]:
    """Returns a condition with the column as Arrow names it, and integers of its type."""
    path = [column] if any(column in schema.names for schema in schemas) else column.split(".")
    known = (kind for schema in schemas if (kind := _kind_at(schema, path)) is not None)
    kind = next(known, None)
    if kind is not None and _types.is_integer(kind):
        if _is_integer(value):
            value = _integer(int(value), kind)
        elif isinstance(value, list | tuple | set | frozenset) and all(
            v is None or _is_integer(v) for v in value
        ):
            value = pa.array([v for v in value if v is None or _fits(int(v), kind)], kind)
    elif kind is not None and _types.is_decimal(kind) and _is_integer(value):
        value = pa.scalar(Decimal(int(value)))  # Arrow takes an integer for one of 19 digits.
    return (path[0] if len(path) == 1 else tuple(path)), operator, value


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _kind_at(schema: pa.Schema, path: Sequence[str]) -> pa.DataType | None:
    """Returns the type of a column or field; None if it does not exist."""
    try:
        return type_at(schema, ".".join(path))
    except (KeyError, AttributeError, TypeError):
        return None


def _fits(value: int, kind: pa.DataType) -> bool:
    """Returns whether an integer is one of the type's."""
    width: int = kind.bit_width
    low = 0 if _types.is_unsigned_integer(kind) else -(1 << width - 1)
    return low <= value < low + (1 << width)


def _integer(value: int, kind: pa.DataType) -> pa.Scalar:
    """Returns an integer to compare with those of the type."""
    if _fits(value, kind):
        return pa.scalar(value, kind)
    most = 10**_EXACT.precision - 1  # Further from zero than any integer of the column.
    return pa.scalar(Decimal(max(-most, min(value, most))), _EXACT)


def _names_in(expression: Any, schema: pa.Schema) -> tuple[str, ...] | None:
    """Returns the columns, or fields, that an expression needs; None if it does not fit."""

    def fits(paths: Sequence[str]) -> bool:
        return _problem(expression, projected(schema, paths)) is None

    paths = [path for field in schema for path in _fields(field)]
    if not paths or not fits(paths):
        return None
    named = _fewest(fits, paths)
    if _problem(expression, _others_useless(schema, named)) is not None:
        named = list(dict.fromkeys(path.partition(".")[0] for path in named))
    return tuple(named)


def _fields(field: pa.Field) -> list[str]:
    """Returns the paths of a column's fields that are not structs."""
    if not _types.is_struct(field.type):
        return [field.name]
    return [f"{field.name}.{path}" for inner in field.type for path in _fields(inner)]


def _fewest(fits: Callable[[Sequence[str]], bool], paths: list[str]) -> list[str]:
    """Returns as few of the paths as fit, by about 2 k log n questions (QuickXplain)."""

    def needed(given: list[str], rest: list[str], *, is_more: bool) -> list[str]:
        if is_more and fits(given):
            return []
        if len(rest) == 1:
            return rest
        first, second = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        of_second = needed([*given, *first], second, is_more=True)
        of_first = needed([*given, *of_second], first, is_more=bool(of_second))
        return [*of_first, *of_second]

    return needed([], paths, is_more=False)


def _others_useless(schema: pa.Schema, named: Collection[str]) -> pa.Schema:
    """Returns the columns of these paths; a cast fails on what else is in them."""

    def changed(field: pa.Field, path: str) -> pa.Field:
        if path in named:
            return field
        if any(name.startswith(f"{path}.") for name in named):
            return field.with_type(pa.struct([changed(f, f"{path}.{f.name}") for f in field.type]))
        return pa.field(field.name, _USELESS)

    tops = {path.partition(".")[0] for path in named}
    return pa.schema([changed(field, field.name) for field in schema if field.name in tops])


_NO_FIELD = re.compile(r"No match for FieldRef\.(Name|Nested)\(.*\) in ")
_FIELD_NAME = re.compile(r"(?<=Name\()[^()]*(?=\))")
_NO_KERNEL = re.compile(r"no kernel matching input types \((.+), (.+)\)$")


def _problem(expression: Any, schema: pa.Schema) -> str | None:
    """Returns why rows of the schema cannot be filtered; None if they can."""
    nulls = pa.RecordBatch.from_arrays([pa.nulls(1, f.type) for f in schema], schema=schema)
    try:
        kind = _evaluated(expression, nulls).type
    except (pa.ArrowException, TypeError) as e:
        if unknown := _NO_FIELD.search(str(e)):
            return f"there is no column {'.'.join(_FIELD_NAME.findall(unknown[0]))}"
        found = _NO_KERNEL.search(why := str(e).partition("\n")[0])
        if found is None:
            return why
        of = [f.name for f in schema if str(f.type) == found[1]]
        named = f", as {' and '.join(of)} {'is' if len(of) == 1 else 'are'}," if of else ""
        return f"it compares {found[1]}{named} with {found[2]}; give a value of the column's type"
    return None if _types.is_boolean(kind) else f"it is of type {kind}, not bool"


def _covers_all(expression: Any, schema: pa.Schema, leaf: Leaf) -> bool:
    """Returns whether statistics say everything that matters about a column's values."""
    if not _types.is_floating(leaf.type):
        return True
    with_nan = leaf.field == pa.scalar(float("nan"), leaf.type)
    return not _possible(expression, schema, [with_nan])


def _wanted(expression: Any, rows: pa.RecordBatch) -> pa.Array:
    """Returns which rows are wanted."""
    try:
        return _evaluated(expression, rows)
    except pa.ArrowInvalid:
        # Arrow compares a column with a value in the narrowest type of both their types, in which
        # not every integer fits: unsigned ones with signed ones, all with floats.
        try:
            return _evaluated(_exact(expression), _of_decimals(rows, _decimals))
        except (pa.ArrowException, TypeError, ValueError):
            pass
        raise


def _exact(expression: Any) -> Any:
    """Returns the expression with decimals for integers, in the form in which Arrow stores it; also
    for floats so large that a decimal would be rounded to compare it with them.
    """
    made, (stored,) = expression.__reduce__()
    exact = _of_decimals(pa.ipc.open_file(stored).get_batch(0), _decimal)
    for i, value in enumerate(exact.columns):
        if _types.is_floating(value.type) and all(map(_is_large, value.to_pylist())):
            large = pa.array([Decimal(v) for v in value.to_pylist()], _EXACT)
            exact = exact.set_column(i, exact.schema.field(i).with_type(_EXACT), large)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, exact.schema) as file:
        file.write_batch(exact)
    return made(sink.getvalue())


def _of_decimals(
    rows: pa.RecordBatch, kind_for: Callable[[pa.DataType], pa.DataType]
) -> pa.RecordBatch:
    """Returns the rows with these types for those of their columns."""
    schema = rows.schema
    for i, field in enumerate(schema):
        schema = schema.set(i, field.with_type(kind_for(field.type)))
    columns = [column.cast(field.type) for column, field in zip(rows.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _is_large(value: float | None) -> bool:
    """Returns whether not every integer near a float is a float; all such floats are integers."""
    return value is not None and 1 << 24 <= abs(value) < 10**_EXACT.precision and value % 1 == 0


def _decimal(kind: pa.DataType) -> pa.DataType:
    """Returns the type for values of a type: for integers decimals."""
    return _EXACT if _types.is_integer(kind) else kind


def _decimals(kind: pa.DataType) -> pa.DataType:
    """Returns the type for columns of a type: for integers, also in structs, decimals."""
    if not _types.is_struct(kind):
        return _decimal(kind)
    return pa.struct([field.with_type(_decimals(field.type)) for field in kind])


def _evaluated(expression: Any, batch: pa.RecordBatch) -> pa.Array:
    """Returns the expression's value for each row."""
    from pyarrow.acero import Declaration, ProjectNodeOptions, TableSourceNodeOptions

    source = TableSourceNodeOptions(pa.Table.from_batches([batch]))
    steps = [
        Declaration("table_source", source),
        Declaration("project", ProjectNodeOptions([expression], ["wanted"])),
    ]
    column = Declaration.from_sequence(steps).to_table(use_threads=False).column(0)
    return column.combine_chunks()


def _possible(expression: Any, schema: pa.Schema, guarantees: Iterable[Any]) -> list[int]:
    """Returns the numbers of the guarantees under which the expression may be true."""
    import pyarrow.dataset as ds
    from pyarrow.fs import LocalFileSystem

    kind, nowhere = ds.ParquetFileFormat(), LocalFileSystem()
    named = [
        kind.make_fragment(str(i), nowhere, partition_expression=guarantee)
        for i, guarantee in enumerate(guarantees)
    ]
    try:
        possible = ds.FileSystemDataset(named, schema, kind).get_fragments(filter=expression)
        return [int(fragment.path) for fragment in possible]
    except pa.ArrowException:
        return [*range(len(named))]  # Perhaps no row that is shown makes it fail.


def _within(leaf: Leaf, statistics: Any, stored: pa.DataType, rows: int) -> Any:
    """Returns what statistics say about a row group's column; None if they say nothing."""
    if statistics is None:
        return None
    nulls = statistics.null_count if statistics.has_null_count else None
    if nulls == rows:
        return leaf.field.is_null()
    bounds = [_scalar(statistics, end, stored, leaf.type) for end in ("min", "max")]
    if None in bounds:
        return None
    low, high = bounds
    between = (leaf.field >= low) & (leaf.field <= high)
    if low.equals(high) and not _types.is_floating(leaf.type):
        between = leaf.field == low
    return between if nulls == 0 else between | leaf.field.is_null()


def _scalar(statistics: Any, end: str, stored: pa.DataType, kind: pa.DataType) -> Any:
    """Returns a bound as a value of the column; None if that is impossible."""
    if not statistics.has_min_max:
        return None
    raw = getattr(statistics, f"{end}_raw")
    if _types.is_decimal(stored):
        made = pa.scalar(getattr(statistics, end), stored)
    elif _types.is_string(stored):
        made = pa.scalar(raw.decode(), stored)
    elif _types.is_unsigned_integer(stored):
        made = pa.scalar(raw % (1 << stored.bit_width), stored)
    elif _types.is_integer(stored) or _types.is_temporal(stored):
        made = pa.scalar(raw, pa.int32() if stored.bit_width <= 32 else pa.int64()).cast(stored)
    elif _is_plain(stored):
        made = pa.scalar(raw, stored)
    else:
        return None
    return made.cast(kind) if kind != stored else made


def _is_plain(stored: pa.DataType) -> bool:
    """Returns whether Parquet's own value is the column's."""
    plain = (_types.is_boolean, _types.is_binary, _types.is_fixed_size_binary)
    return any(of(stored) for of in plain) or stored in (pa.float32(), pa.float64())


def _leaves(name: str, path: str, shown: pa.Schema) -> Iterator[Leaf]:
    """Yields the leaves of a column, stored at the path, that a filter names."""
    for inner in lone_leaves(pa.field("", type_at(shown, name))):
        yield Leaf(name + inner, path + inner, type_at(shown, name + inner))


def _all_of(expressions: Iterable[Any]) -> Any:
    known = [expression for expression in expressions if expression is not None]
    return reduce(and_, known) if known else pc.scalar(True)  # noqa: FBT003


Read = Callable[[Any, Sequence[str] | None], Iterator[pa.RecordBatch]]
_COMPARED: Final = {"Eq": eq, "NotEq": ne, "Lt": lt, "LtEq": le, "Gt": gt, "GtEq": ge}
_TURNED: Final = {"Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq"}
"""The comparison with its sides exchanged."""


def lazy_frame(schema: pa.Schema, read: Read) -> "pl.LazyFrame":
    """Returns a lazy frame; ``read`` yields wanted or all rows, with wanted or all columns."""
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
    """Returns the least that a predicate requires, as an Arrow expression; None for nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Polars says that the form may change.
        try:
            node = json.loads(predicate.meta.serialize(format="json"))
        except (ValueError, RuntimeError):  # For example, it calls Python.
            return None
        return _known(node, schema)


def _known(node: Any, schema: pa.Schema) -> Any:
    """Returns the part of an expression that is known; None if nothing is."""
    import polars as pl

    other = (LookupError, TypeError, AttributeError, ValueError)
    try:
        return _translated(node, schema)
    except (*other, pa.ArrowException, pl.exceptions.PolarsError):  # An unknown form or kind.
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
        return field.isin(_value(part["input"][1]).values)
    if named == "IsBetween" and options["closed"] == "Both":
        low, high = (_value(bound) for bound in part["input"][1:])
        return (field >= low) & (field <= high)
    return None


def _field(node: Any, schema: pa.Schema) -> Any:
    """Returns a column, or a field of one; None for anything else, and for floats."""
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
