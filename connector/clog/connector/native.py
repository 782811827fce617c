"""The table and the log as DataFrames that Spark's own Parquet scan reads, without Python, and with
Catalyst's pruning, pushdown, statistics, and broadcast of small tables.

The objects do not say which of their rows count; the driver finds that out from the log when the
function is called (`_table_masks`, `_log_masks`), and sends it along. So a DataFrame shows one
version, and is readable while that version is. Python tasks (`read`) read what this scan does not:
streams, whatever names the format (Spark gives a source in Python no other way), and what it cannot
read: `format("clog")` then reads the same rows and columns, and a warning says once why.

*Kept plans*: another read of the same part of a version gets the plan that was built for it, with
only the request that finds the newest version. Its columns have new ids, so that the two DataFrames
can be joined.

*Few keys* are looked up on the driver, by key indexes that stay in its memory; the first look-up
makes them for objects that have none.

*Counts* come from the masks and read nothing else, where the masks suffice.

A scanned row is identified by its *place*, one integer (`_Numbers`); a *run* is the places of a
piece of the log, a *hidden* row one that does not count. Building a plan costs the driver one JVM
call for each step, not for each object or column.
"""

import json
import logging
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from os import PathLike
from os.path import commonprefix
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    FractionalType,
    LongType,
    MapType,
    StructField,
    StructType,
)

from clog.connector.opened_logs import check_log_id, opened, types_of
from clog.connector.options import read_options, texts_of
from clog.connector.read.batch_reader import BatchRead, check_batch
from clog.connector.read.task_read import found_batches
from clog.connector.schema import TableColumns, arrow_schema
from clog.storage.commit.committer import is_on_disk
from clog.storage.env import dataclass
from clog.storage.errors import InvalidInputError, OptionError
from clog.storage.format.documents import NONE, folder_of
from clog.storage.numpy_arrays import to_arrow
from clog.storage.publications.source import ViewMask, read_masks, view_masks
from clog.storage.store.kinds import kind_of
from clog.storage.store.opening import LOCAL, parse
from clog.storage.types.columns import (
    DELETED,
    Kind,
    Layout,
    alike_fields,
    column_types,
    layout_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from clog.connector.options import ReadOptions
    from clog.storage.format.log_info import LogSchema, SchemaField
    from clog.storage.format.manifest import Manifest
    from clog.storage.log import Log
    from clog.storage.numpy_arrays import Mask, Offsets
    from clog.storage.read.scan import ReadPiece
    from clog.storage.read.table import TablePlan

_V1_SOURCES = "spark.sql.sources.useV1SourceList"
_OPTIONS = {
    # A session may tell Spark to ignore missing or damaged files: rows would be missing.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
    "parquet.page.verify-checksum.enabled": "true",
}
PATHS_MAX = 32
"""More files are found by listing their folder. For more paths Spark would run a job, with a task
for each of them.
"""
NAME_BITS, ROW_BITS = 32, 31
BLOCK_BITS = 6
BLOCKS_MAX = 4 << 20
"""A table with more is not sent to all executors."""
NEAR_BITS = 13
"""Log2 of the parts of a file's rows that are distinguished before its name is hashed."""
FEW_HIDDEN = 1000
"""At most this many hidden rows are in the plan; more are sent to all executors, in a job."""
_HASH_SEED = 42
RUNS_MAX = 128
RUN_BLOCK_BITS = 12
_PLACE, _RUN = "_clog_place", "_clog_run"
_PARTITION, _DELTA, _TIME = "_clog_partition", "_clog_delta", "_clog_time"
_TYPES = {"int": pa.int32(), "bigint": pa.int64()}
_UNUSED = "_metadata.file_size > 0"
"""If no field of ``_metadata`` is used, a scan has all of them, including row numbers."""
_IS_OF_RUN = (
    f"shiftright({_PLACE}, {RUN_BLOCK_BITS}) = _clog_block"
    f" AND {_PLACE} >= _clog_first AND {_PLACE} < _clog_end"
)
_PLACE_COLUMNS = frozenset({"partition", "offset", "timestampType"})
_STORED = ("key", "value", "headers", "timestamp")
_Fields: TypeAlias = "Mapping[str, SchemaField]"
"""Fields of the log's schema by their paths."""


class CannotScanError(Exception):
    """Spark's own scan cannot read this; `format("clog")` can."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What is scanned: the hidden rows (None: none) by the path of each object in ``folder``, as
    the JVM names it; the pieces of the log that the other rows belong to; how records lie in the
    objects; whether only rows of the table are shown, whose values are not null.
    """

    folder: str
    hidden: "Mapping[str, Mask | None]"
    pieces: "Sequence[ReadPiece]"
    layout: Layout
    is_table: bool

    @property
    def is_dense(self) -> bool:
        """Whether no object stores offsets."""
        return all(piece.object.dense for piece in self.pieces)

    @property
    def has_append_times(self) -> bool:
        """Whether the log has times that its objects do not."""
        return any(piece.append_time_ms != NONE for piece in self.pieces)


def scanned(spark: "SparkSession", what: Shown, schema: StructType) -> "DataFrame":
    """Returns the rows that are not hidden, with the columns `columns_of` needs for this schema."""
    from pyspark.errors import PySparkException

    failures: tuple[type[Exception], ...] = (PySparkException,)
    with suppress(ImportError):  # A client of Spark Connect has no py4j.
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]

        failures = (*failures, Py4JError)
    if not what.hidden:
        return spark.createDataFrame([], _stored(what, schema))
    try:
        return _scanned(spark, what, schema)
    except failures as e:
        raise CannotScanError(f"Spark's JVM does not read its objects ({_what(e)})") from e


def columns_of(what: Shown, schema: StructType, topic: str) -> list[str]:
    """Returns the expressions that make the schema's columns from those that `scanned` returns.
    Those that say where a row is in the log (partition, offset, the time of its append) come from
    its place: for few pieces they vanish from a plan that does not ask for them, for many they cost
    a join.
    """
    made = {"topic": f"string(X'{topic.encode().hex()}')", **_nested(what, schema)}
    if not what.hidden:
        places = (f for f in schema if f.name in _PLACE_COLUMNS)
        made |= {f.name: f"CAST(NULL AS {f.dataType.simpleString()})" for f in places}
    elif needs_places(what, schema):
        dense = f"{_PLACE} + {_DELTA}"
        made["partition"] = _PARTITION
        offset = what.layout.kind.own("offset")
        made["offset"] = dense if what.is_dense else f"coalesce({dense}, {offset})"
        made["timestampType"] = f"int({_TIME} IS NOT NULL)"
        if what.has_append_times:
            stored = what.layout.kind.own("timestamp")
            made["timestamp"] = f"coalesce(timestamp_millis({_TIME}), {stored})"
    return [f"{made.get(f.name, f.name)} AS {f.name}" for f in schema]


def needs_places(what: Shown, schema: StructType) -> bool:
    """Returns whether a column of the schema is stored in no object."""
    asked = {*_PLACE_COLUMNS, "timestamp"} if what.has_append_times else _PLACE_COLUMNS
    return any(f.name in asked for f in schema)


def _stored(what: Shown, schema: StructType) -> StructType:
    """Returns the columns that are read from the objects, with the names that they have there."""
    layout, fields = what.layout, _fields_of(what.layout)
    stored: list[StructField] = []
    for field in (f for f in schema if f.name in _STORED):
        kind = _kind_in_objects(field.dataType, fields.get(field.name))
        if _is_spread(what, field) and isinstance(kind, StructType):
            stored += kind
        else:
            stored.append(StructField(layout.path(field.name), kind))
        if _has_tombstones(what, field):
            stored.append(StructField(DELETED, BooleanType()))
    if needs_places(what, schema) and not what.is_dense:
        stored.append(StructField(layout.kind.own("offset"), LongType()))
    return StructType(stored)


def _is_spread(what: Shown, field: StructField) -> bool:
    """Returns whether the fields of a key or value are columns of the objects."""
    is_struct = isinstance(field.dataType, StructType)
    return what.layout.kind is Kind.TABLE and is_struct and field.name in ("key", "value")


def _has_tombstones(what: Shown, field: StructField) -> bool:
    return _is_spread(what, field) and field.name == "value" and not what.is_table


def _nested(what: Shown, schema: StructType) -> dict[str, str]:
    """Returns the expressions for columns of records that objects have in another form."""
    layout, fields, made = what.layout, _fields_of(what.layout), {}
    for field in (f for f in schema if f.name in _STORED):
        top = field.name
        if _is_spread(what, field) and isinstance(field.dataType, StructType):
            inner = (_column(layout, f"{top}.{f.name}", f, fields) for f in field.dataType)
            made[top] = f"struct({', '.join(inner)})"
        else:
            made[top] = _expression(layout, top, field.dataType, fields)
        if _has_tombstones(what, field):
            made[field.name] = f"if({DELETED}, NULL, {made[field.name]})"
    return made


def _column(layout: Layout, path: str, shown: StructField, fields: _Fields) -> str:
    """Returns the expression for a column of records, or a field of one, as it is shown."""
    return f"{_expression(layout, path, shown.dataType, fields)} AS {_quoted(shown.name)}"


def _expression(layout: Layout, path: str, kind: DataType, fields: _Fields) -> str:
    """Returns the expression that makes a column of records, or a field of one, of those that
    objects have. Names inside it that are others there are given by a cast.
    """
    field, top = fields.get(path), path.partition(".")[0]
    stored = path if field is None or path == top else f"{top}.{field.stored_name}"
    column = ".".join(map(_quoted, layout.path(stored).split(".")))
    return column if _kind_in_objects(kind, field) == kind else f"CAST({column} AS {_ddl(kind)})"


def _fields_of(layout: Layout) -> _Fields:
    """Returns the fields of the log's schema by their paths."""
    return {} if layout.schema is None else dict(layout.schema.walk())


def _kind_in_objects(kind: DataType, field: "SchemaField | None") -> DataType:
    """Returns the type of a field, or of some of its fields, with the names that objects have."""
    if field is None:
        return kind
    if isinstance(kind, StructType):
        there, made = {one.name: one for one in field.fields}, StructType()
        for f in kind:
            own = there[f.name]
            made.add(own.stored_name, _kind_in_objects(f.dataType, own), f.nullable)
        return made
    if isinstance(kind, ArrayType):
        return ArrayType(_kind_in_objects(kind.elementType, field.fields[0]), kind.containsNull)
    if isinstance(kind, MapType):
        key, value = field.fields
        types = _kind_in_objects(kind.keyType, key), _kind_in_objects(kind.valueType, value)
        return MapType(*types, kind.valueContainsNull)
    return kind


def _ddl(kind: DataType) -> str:
    """Returns a type in SQL; everything inside it may be null, as it may be in a scan."""
    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{_quoted(f.name)}: {_ddl(f.dataType)}' for f in kind)}>"
    if isinstance(kind, ArrayType):
        return f"array<{_ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{_ddl(kind.keyType)}, {_ddl(kind.valueType)}>"
    return kind.simpleString()


def _scanned(spark: "SparkSession", what: Shown, schema: StructType) -> "DataFrame":
    """Does `scanned`. Objects of which all rows are read are simply scanned; hidden rows of the
    others are removed: a few by a filter with their places; many, or if places are asked for, by an
    anti join with their blocks of 64 places and a bit for each row. Spark's estimate of the size
    remains that of the scan, so small tables are still broadcast. Filters and column pruning pass
    through it.
    """
    if "parquet" not in (spark.conf.get(_V1_SOURCES) or "").lower().split(","):
        raise CannotScanError(
            f"the session's {_V1_SOURCES} lacks parquet, and only that scan numbers its rows"
        )
    stored, is_placed = _stored(what, schema), needs_places(what, schema)
    if _METADATA in (name.lower() for name in stored.names):
        raise CannotScanError(f"it has a column {_METADATA}, which that scan has itself")
    plain = [path for path, mask in what.hidden.items() if mask is None]
    masks = {path: mask for path, mask in what.hidden.items() if mask is not None}
    numbers = _Numbers.of(what.hidden if masks or is_placed else ())
    names = [_quoted(name) for name in stored.names]
    placed = (*names, f"{numbers.place()} AS {_PLACE}")
    frames = []
    if masks:
        frame = _files(spark, what.folder, list(masks), stored)
        if not is_placed and sum(map(np.count_nonzero, masks.values())) <= FEW_HIDDEN:
            frames.append(frame.where(_is_shown(numbers, masks)))
        else:
            words = F.broadcast(spark.createDataFrame(_hidden_rows(numbers, masks)))
            frame = frame.selectExpr(*placed).join(words, F.expr(_IS_HIDDEN), "left_anti")
            frames.append(frame if is_placed else frame.selectExpr(*names))
    if plain:
        frame = _files(spark, what.folder, plain, stored)
        frames.append(frame.where(_UNUSED).selectExpr(*placed) if is_placed else frame)
    frame = frames[0] if len(frames) == 1 else frames[0].union(frames[1])
    if is_placed:
        runs = _Runs.of(numbers, what.pieces)
        if len(runs.firsts) <= RUNS_MAX:
            frame = frame.selectExpr("*", *runs.columns())
        else:
            frame = frame.join(
                F.broadcast(spark.createDataFrame(runs.blocks())), F.expr(_IS_OF_RUN)
            )
    assert frame.schema is not None  # With Spark Connect only this makes a request.
    return frame


def _files(
    spark: "SparkSession", folder: str, paths: Sequence[str], stored: StructType
) -> "DataFrame":
    """Returns the rows of these files, for which Spark looks now."""
    reader = spark.read.options(**_OPTIONS).schema(stored)
    if len(paths) <= PATHS_MAX:
        return reader.parquet(*(f"{folder}/{path}" for path in paths))
    below = {path.rpartition("/")[0] for path in paths}
    assert len(below) == 1, f"objects lie in {below}"
    names = [_name(path) for path in paths]
    start = commonprefix(names)  # noqa: RUF071 - of names, by characters
    glob = f"{start}{{{','.join(name[len(start) :] for name in names)}}}"
    frame = reader.option("pathGlobFilter", glob).parquet(f"{folder}/{below.pop()}")
    if _files_found(frame) != len(names):
        raise CannotScanError(_GONE)
    return frame


def selected(frame: "DataFrame", expressions: Sequence[str], schema: StructType) -> "DataFrame":
    """Returns columns of `scanned` rows, of this schema, with floats on which the scan evaluates no
    condition: it skips row groups by their least and greatest value. To Spark NaN is the greatest,
    but objects of earlier releases leave it out of that, and do not say so. The scan does not see
    through ``nanvl`` of a float with NaN, which is the float.
    """
    shielded = {}
    for field in schema:
        column = F.col(name := _quoted(field.name))
        for path, kind in _floats(field.dataType):
            same = F.expr(f"nanvl({'.'.join((name, *path))}, {kind}('NaN'))")
            column = column.withField(".".join(path), same) if path else same
            shielded[field.name] = column
    made = frame.selectExpr(*expressions)
    return made.withColumns(shielded) if shielded else made


def _floats(kind: DataType, *path: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields the floats of a type that are not in lists or maps: quoted names, type."""
    if isinstance(kind, StructType):
        for field in kind:
            yield from _floats(field.dataType, *path, _quoted(field.name))
    elif isinstance(kind, FractionalType) and not isinstance(kind, DecimalType):
        yield path, kind.simpleString()


def _files_found(frame: "DataFrame") -> int:
    """Returns how many files a scan has found."""
    of_jvm: Any = getattr(frame, "_jdf", None)  # Spark Connect has none.
    return len(frame.inputFiles() if of_jvm is None else of_jvm.inputFiles())


def _what(error: Exception) -> str:
    """Returns the kind of an error: its text may contain more than should be shown."""
    cause = getattr(error, "java_exception", None)
    if cause is not None:
        return str(cause.getClass().getSimpleName())
    condition = getattr(error, "getCondition", lambda: None)()
    return condition or type(error).__name__


def _name(path: str) -> str:
    return path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Numbers of files: ``NAME_BITS`` bits of Spark's own hash of their names, without the lowest
    ``shift``, so that they tell the files apart. A row's place is the number of its file and then
    its own.
    """

    numbers: Mapping[str, int]
    shift: int

    @classmethod
    def of(cls, paths: Iterable[str]) -> "_Numbers":
        """Returns numbers for these files."""
        names = {path: _name(path).encode() for path in paths}
        hashes = {p: xxhash.xxh64_intdigest(name, seed=_HASH_SEED) for p, name in names.items()}
        for shift in range(65 - NAME_BITS):
            numbers = {p: (h >> shift) & ((1 << NAME_BITS) - 1) for p, h in hashes.items()}
            if len(set(numbers.values())) == len(numbers):
                return cls(numbers, shift)
        raise CannotScanError("it has too many objects; let the cleaner merge small ones")

    def of_row(self, path: str, row: int) -> int:
        """Returns the place of a row of a file."""
        if row >= 1 << ROW_BITS:
            raise CannotScanError(f"it has an object of more than {1 << ROW_BITS:,} rows")
        return self.numbers[path] << ROW_BITS | row

    def place(self) -> str:
        """Returns the expression for a row's place."""
        number = f"shiftrightunsigned(xxhash64(_metadata.file_name), {self.shift})"
        file = f"shiftleft({number} & {(1 << NAME_BITS) - 1}L, {ROW_BITS})"
        return f"({file} | _metadata.row_index)"


_IS_HIDDEN = (
    f"shiftright({_PLACE}, {BLOCK_BITS}) = _clog_block"
    f" AND bit_get(_clog_hidden, int({_PLACE} & {(1 << BLOCK_BITS) - 1}L)) = 1"
)


def _hidden_rows(numbers: _Numbers, masks: "Mapping[str, Mask]") -> pa.Table:
    """Returns the hidden rows of each file: ``_clog_block``, ``_clog_hidden``."""
    blocks: list[Offsets] = []
    words: list[Offsets] = []
    for path, mask in masks.items():
        packed = np.packbits(mask, bitorder="little")
        padded = np.zeros(-(-len(packed) // 8) * 8, np.uint8)
        padded[: len(packed)] = packed
        word = padded.view("<i8")
        some = np.flatnonzero(word)
        numbers.of_row(path, len(mask) - 1)
        blocks.append((numbers.of_row(path, 0) >> BLOCK_BITS) + some)
        words.append(word[some])
    return _sent(_clog_block=np.concatenate(blocks), _clog_hidden=np.concatenate(words))


def _is_shown(numbers: _Numbers, masks: "Mapping[str, Mask]") -> str:
    """Returns the expression for "this row is not hidden". A file's name is hashed only where some
    file hides a row with about the same number.
    """
    rows = max(map(len, masks.values()))
    shift = max(0, (rows - 1).bit_length() - NEAR_BITS)
    is_near = np.zeros(1 << NEAR_BITS, np.bool_)
    places: list[int] = []
    for path, mask in masks.items():
        hidden = np.flatnonzero(mask)
        is_near[hidden >> shift] = True
        places += (numbers.of_row(path, row) for row in hidden.tolist())
    words = np.packbits(is_near, bitorder="little").view("<i8").tolist()
    word = f"get({_array(words, 'bigint')}, int(shiftright(_metadata.row_index, {shift + 6})))"
    near = f"bit_get({word}, int(shiftright(_metadata.row_index, {shift}) & 63L)) = 1"
    return f"NOT if({near}, {numbers.place()} IN ({', '.join(f'{p}L' for p in places)}), false)"


def _sent(**columns: "Offsets | pa.Array") -> pa.Table:
    """Returns a table that is sent to all executors."""
    if len(next(iter(columns.values()))) > BLOCKS_MAX:
        raise CannotScanError(f"it takes more than {BLOCKS_MAX:,} blocks of rows to say which")
    as_arrow = (c if isinstance(c, pa.Array) else to_arrow(c) for c in columns.values())
    return pa.table(dict(zip(columns, as_arrow, strict=True)))


@dataclass(frozen=True, slots=True)
class _Runs:
    """The places at which pieces of the log begin, ascending, and the pieces. A row's run is found
    by binary search, with a separate column for each step. With many runs the plan's text, which
    Spark keeps for its page, would be too long; then a row's block of 4,096 places is joined with
    the runs that have rows in it.
    """

    firsts: list[int]
    pieces: "list[ReadPiece]"

    @classmethod
    def of(cls, numbers: _Numbers, pieces: "Sequence[ReadPiece]") -> "_Runs":
        """Returns the runs of those pieces that have rows."""
        filled = [piece for piece in pieces if piece.rows]
        firsts = {numbers.of_row(piece.object.path, piece.first_row): piece for piece in filled}
        ascending = sorted(firsts)
        return cls(ascending, [firsts[first] for first in ascending])

    def columns(self) -> Iterator[str]:
        """Yields columns that find a row's run, one bit each; then what that run says."""
        yield f"{_array(self.firsts, 'bigint')} AS {_RUN}s"
        run = "0"
        for bit in reversed(range((len(self.firsts) - 1).bit_length())):
            step = 1 << bit
            # There is none after the last run: null, which is not less.
            is_further = f"get({_RUN}s, {run} + {step}) <= {_PLACE}"
            yield f"{run} + if({is_further}, {step}, 0) AS {_RUN}{bit}"
            run = f"{_RUN}{bit}"
        for name, (kind, values) in self._spans().items():
            same = len(set(values)) == 1
            one = f"{kind}({'NULL' if values[0] is None else values[0]})"
            yield f"{one if same else f'get({_array(values, kind)}, {run})'} AS {name}"

    def blocks(self) -> pa.Table:
        """Returns, for each block of places, the runs that have rows in it, ``[_clog_first,
        _clog_end)``, and what they say.
        """
        firsts = np.array(self.firsts, np.int64)
        ends = firsts + np.array([piece.rows for piece in self.pieces], np.int64)
        low, high = firsts >> RUN_BLOCK_BITS, (ends - 1) >> RUN_BLOCK_BITS
        counts = high - low + 1
        runs = np.repeat(np.arange(len(firsts)), counts)
        within = np.arange(len(runs)) - np.repeat(np.cumsum(counts) - counts, counts)
        said = {
            name: pa.array(values, _TYPES[kind]).take(to_arrow(runs))
            for name, (kind, values) in self._spans().items()
        }
        return _sent(
            _clog_block=low[runs] + within, _clog_first=firsts[runs], _clog_end=ends[runs], **said
        )

    def _spans(self) -> "dict[str, tuple[str, list[int | None]]]":
        """Returns what each run says about its rows: column -> type, values."""
        pairs = list(zip(self.firsts, self.pieces, strict=True))
        times = [piece.append_time_ms for piece in self.pieces]
        return {
            _PARTITION: ("int", [piece.partition for piece in self.pieces]),
            _DELTA: ("bigint", [p.base - first if p.object.dense else None for first, p in pairs]),
            _TIME: ("bigint", [None if ms == NONE else ms for ms in times]),
        }


def _array(values: Sequence[int | None], kind: str) -> str:
    """Returns an expression that Spark folds to an array, 100 times faster than literals."""
    return f"from_json('{json.dumps(values)}', 'array<{kind}>')"


KEYS_MAX = 1000
"""More keys than this are looked up in tasks."""
ROWS_MAX = 4_000_000
"""Up to this many rows the driver reads the keys to find which rows count, if no masks say so; with
more, tasks do that.
"""
KEPT_MAX = 16
"""Plans that are kept."""
_DEFAULT_COLUMNS = ("key", "value", "timestamp")
_CASE_SENSITIVE = "spark.sql.caseSensitive"
_LOGGER = logging.getLogger("clog.connector")
_GONE = "some of its objects are gone"
_METADATA = "_metadata"
"""The column in which Spark's scan says where a row is."""
_SAID: set[tuple[str, str]] = set()
_KEPT: "OrderedDict[tuple[object, ...], tuple[Shown, DataFrame]]" = OrderedDict()
_GLOB = re.compile(r"[*?{}\[\]\\]")


def check_order(function: str, url: object) -> None:
    """Raises if a URL is none: the session was given in its place."""
    if not isinstance(url, (str, PathLike)):
        raise InvalidInputError(
            f"{function} takes the session, and then the URL, but {type(url).__name__} is none;"
            f' write {function}(spark, "s3://bucket/orders")'
        )


def table_frame(
    spark: "SparkSession", url: str, version: int | None, options: Mapping[str, object]
) -> "DataFrame":
    """Does `tools.read_table`."""
    check_order("read_table", url)
    given = _options_of(url, version, options)
    settings = _settings(given)
    log = _log_of(settings)
    if settings.keys is not None and len(settings.keys) <= KEYS_MAX:
        return _looked_up(spark, log, settings)
    log.handle.refresh()
    read = _batch_read(log, settings)
    manifest = read.manifest()
    try:
        if read.options.keys is not None:
            raise CannotScanError(f"more than {KEYS_MAX:,} keys are looked up in tasks")
        return _scanned_table(spark, read, manifest)
    except CannotScanError as e:
        _say_once(read.handle.store.url, e)
    given.pop("asoftimestamp", None)
    given |= {"asofversion": str(manifest.version), "logid": read.handle.standing.log_id}
    return spark.read.format("clog").options(**given).schema(read.schema).load()


def log_frame(spark: "SparkSession", url: str, options: Mapping[str, object]) -> "DataFrame":
    """Does `tools.read_log`."""
    check_order("read_log", url)
    given = _given(options, own=("view", "path")) | {"path": url}
    read = _opened(given)
    ranges = read.ranges()
    try:
        if read.options.keys is not None:
            raise CannotScanError("keys are looked up in key indexes")
        return _scanned_log(spark, read, ranges)
    except CannotScanError as e:
        _say_once(read.handle.store.url, e)
    kept = {n: t for n, t in given.items() if not n.startswith(("starting", "ending"))}
    starts, ends = (json.dumps({str(p): r[i] for p, r in ranges.items()}) for i in (0, 1))
    fixed = {"startingoffsets": starts, "endingoffsets": ends, "logid": read.handle.standing.log_id}
    return spark.read.format("clog").options(**{**kept, **fixed}).schema(read.schema).load()


def forget() -> None:
    """Drops the plans that are kept."""
    _KEPT.clear()


def table_count(url: str, version: int | None, options: Mapping[str, object]) -> int:
    """Does `tools.count_table`."""
    settings = _settings(_options_of(url, version, options))
    log = _log_of(settings)
    if settings.keys is not None:
        return len(_rows_of_keys(log, settings)[1])
    log.handle.refresh()
    read = _batch_read(log, settings)
    return sum(mask.shown for mask in _table_masks(read, read.manifest(), read.plans()))


def log_count(url: str, options: Mapping[str, object]) -> int:
    """Does `tools.count_log`."""
    read = _opened(_given(options, own=("view", "path", *_KEYS)) | {"path": url})
    return sum(mask.shown for mask in _log_masks(read, read.ranges()))


_KEYS = ("keys", "keysbase64")


def _options_of(url: str, version: int | None, options: Mapping[str, object]) -> dict[str, str]:
    given = _given(options, own=("view", "path", "asofversion"))
    given |= {"view": "table", "path": url}
    return given if version is None else given | {"asofversion": str(version)}


def _given(options: Mapping[str, object], *, own: tuple[str, ...]) -> dict[str, str]:
    given = texts_of(options)
    if mine := sorted(given.keys() & {*own}):
        raise OptionError(f"options {mine} are set by the function; leave them out")
    return given


def _settings(given: Mapping[str, str]) -> "ReadOptions":
    settings = read_options(given)
    check_batch(settings)
    return settings


def _log_of(settings: "ReadOptions") -> "Log":
    log = opened(settings.location)
    check_log_id(log.handle, settings.log_id)
    return log


def _opened(given: Mapping[str, str]) -> BatchRead:
    """Opens the log as it is now."""
    settings = _settings(given)
    log = _log_of(settings)
    log.handle.refresh()
    return _batch_read(log, settings)


def _batch_read(log: "Log", settings: "ReadOptions") -> BatchRead:
    """Returns the read of an open log; a table without ``columns`` gets those of `read_table`."""
    types, with_headers = types_of(log.handle), settings.include_headers
    is_plain = types is not None and types.key_columns and not with_headers
    if settings.view == "table" and settings.columns is None and not is_plain:
        columns = (*_DEFAULT_COLUMNS, "headers") if with_headers else _DEFAULT_COLUMNS
        settings = replace(settings, columns=columns)
    return BatchRead.of(log.handle, settings)


def _looked_up(spark: "SparkSession", log: "Log", settings: "ReadOptions") -> "DataFrame":
    """Returns the rows of a few keys, read on the driver."""
    read, found = _rows_of_keys(log, settings)
    pieces = [piece for plan in read.plans() for piece in (*plan.clean, *plan.dirty)]
    batches = found_batches(found, pieces, read.options.location.name, read.schema, read.table)
    return spark.createDataFrame(
        pa.Table.from_batches(batches, arrow_schema(read.schema)), read.schema
    )


def _rows_of_keys(log: "Log", settings: "ReadOptions") -> tuple[BatchRead, pa.Table]:
    """Returns the rows of keys, found by the log's indexes, at its newest version."""
    table = log.table(at=settings.as_of_version, at_time_ms=settings.as_of_ms)
    read = _batch_read(log, settings)
    assert read.options.keys is not None
    found, parts = table.of_key_bytes(read.options.keys), read.options.partitions
    if parts is not None:
        found = found.filter(pc.is_in(found.column("partition"), pa.array(parts, pa.int32())))
    return read, found


def _scanned_table(spark: "SparkSession", read: BatchRead, manifest: "Manifest") -> "DataFrame":
    starts = read.handle.tip.head.partitions.start
    layout = layout_of(manifest.head.log.schema)
    asked = read.schema if read.table is None else read.table.as_records(read.schema)
    _check_types(layout.schema, asked)

    def shown(folder: str) -> Shown:
        plans = read.plans()
        _check_masked(plans)
        hidden = _hidden(_table_masks(read, manifest, plans))
        pieces = [
            piece
            for plan in plans
            for piece in (*plan.clean, *plan.dirty)
            if piece.object.path in hidden
        ]
        return Shown(folder, hidden, pieces, layout, is_table=True)

    what, frame = _kept(spark, read, asked, (manifest.version, tuple(starts)), shown)
    if read.table is None:
        return selected(frame, columns_of(what, asked, read.options.location.name), asked)
    return selected(frame, _rows_of_table(read.table, layout, read.schema), read.schema)


def _scanned_log(
    spark: "SparkSession", read: BatchRead, ranges: Mapping[int, tuple[int, int]]
) -> "DataFrame":
    version = read.handle.tip.version
    layout = layout_of(read.handle.tip.head.log.schema)
    _check_types(layout.schema, read.schema)

    def shown(folder: str) -> Shown:
        hidden = _hidden(_log_masks(read, ranges))
        return Shown(folder, hidden, read.pieces(ranges), layout, is_table=False)

    place = version, tuple(ranges.items()), read.options.uncommitted
    what, frame = _kept(spark, read, read.schema, place, shown)
    return selected(frame, columns_of(what, read.schema, read.options.location.name), read.schema)


def _kept(
    spark: "SparkSession",
    read: BatchRead,
    asked: StructType,
    place: tuple[object, ...],
    shown: "Callable[[str], Shown]",
) -> "tuple[Shown, DataFrame]":
    """Returns what is scanned for these columns; builds it unless a plan is kept."""
    _check_names(spark, read, asked)
    options, log_id = read.options, read.handle.standing.log_id
    folder = _folder_in_jvm(options.location.url, log_id)
    commit = read.handle.tip.record.commit_id
    of_log = options.location, log_id, commit, options.view, options.partitions
    key = (spark, *of_log, *place, asked.json())
    if key not in _KEPT:
        what = shown(folder)
        if is_on_disk(read.handle.store):
            try:
                for path in what.hidden:  # Spark opens it by its name, and would follow a link.
                    read.handle.store.get(path, 0, 1)
            except FileNotFoundError:
                raise CannotScanError(_GONE) from None
        frame = scanned(spark, what, asked)
        # Spark has the masks; those of sixteen versions may be too large for this process.
        _KEPT[key] = replace(what, hidden=dict.fromkeys(what.hidden)), frame
        while len(_KEPT) > KEPT_MAX:
            _KEPT.popitem(last=False)
    _KEPT.move_to_end(key)
    return _KEPT[key]


def _table_masks(
    read: BatchRead, manifest: "Manifest", plans: "Sequence[TablePlan]"
) -> "Iterator[ViewMask]":
    """Yields the rows of each object that the table shows, in the partitions that are read."""
    head, parts = read.handle.tip.head.partitions, {plan.partition for plan in plans}
    starts = [s if p in parts else head.end[p] for p, s in enumerate(head.start)]
    return view_masks(read.handle.store, manifest, starts)


def _log_masks(read: BatchRead, ranges: Mapping[int, tuple[int, int]]) -> "Iterator[ViewMask]":
    """Yields the rows of each object that these ranges of the log show."""
    return read_masks(read.handle.store, read.handle.manifest(), read.pieces(ranges))


def _hidden(masks: "Iterator[ViewMask]") -> "dict[str, Mask | None]":
    """Returns the hidden rows of each object that shows any row."""
    found = ((mask, mask.shown) for mask in masks)
    return {
        mask.object.path: mask.hidden if shown < mask.object.rows else None
        for mask, shown in found
        if shown
    }


def _check_names(spark: "SparkSession", read: BatchRead, asked: StructType) -> None:
    """Raises if the session ignores case, and names of the log differ only in that."""
    if spark.conf.get(_CASE_SENSITIVE) == "true":
        return
    if both := alike_fields(arrow_schema(asked)):
        raise InvalidInputError(
            f"{read.handle.store.url} has {both[0]} and {both[1]}, which Spark takes for one name"
            f" while {_CASE_SENSITIVE} is false; set it to true, or read one of them (columns)"
        )
    types = types_of(read.handle)
    if types is not None and (both := alike_fields(types.schema)):
        raise CannotScanError(f"it has {both[0]} and {both[1]}, which Spark takes for one name")


def _check_types(schema: "LogSchema | None", read: StructType) -> None:
    """Raises if a column that is read has a type that Spark reads differently, or not at all."""
    if schema is None:
        return
    for field in column_types(schema).records:
        # An evolved schema: objects may have narrower types.
        kind = _foreign(field.type, evolved=schema.id > 0) if field.name in read.names else None
        if kind is not None:
            raise CannotScanError(
                f"its schema has the type {kind}, which Spark's reader does not support"
            )


def _check_masked(plans: "Sequence[TablePlan]") -> None:
    """Raises if too many keys would have to be read to find which rows count."""
    rows = sum(
        piece.rows
        for plan in plans
        for piece in (*plan.clean, *plan.dirty)
        if plan.dirty or not piece.is_masked
    )
    if rows > ROWS_MAX:
        raise CannotScanError(
            f"it has no masks that say which of {rows:,} rows are the latest of their keys; the"
            " cleaner makes them (clog alter --feature superseded-rows, clog clean)"
        )


def _say_once(url: str, reason: CannotScanError) -> None:
    """Logs a warning, unless this process already has."""
    if (url, str(reason)) not in _SAID:
        _SAID.add((url, str(reason)))
        _LOGGER.warning(
            'reading %s with format("clog"), which is slower than Spark\'s own scan: %s',
            url,
            reason,
        )


def _folder_in_jvm(url: str, log_id: str) -> str:
    """Returns the JVM's name of the log's folder."""
    there = parse(url)
    if _GLOB.search(there.root):
        raise CannotScanError("Spark takes one of *?{}[]\\ in a path for a pattern")
    if there.protocol == LOCAL:
        root = f"file://{there.root}"
    elif hadoop := kind_of(there.protocol).hadoop:
        root = f"{hadoop}://{there.root}"
    elif there.protocol in ("abfs", "abfss") and "@" in there.root.partition("/")[0]:
        root = there.url
    else:
        raise CannotScanError(
            f"Spark's JVM has no filesystem for {there.protocol} URLs such as this"
        )
    return f"{root}/{folder_of(log_id)}"


def _rows_of_table(table: TableColumns, layout: Layout, schema: StructType) -> list[str]:
    """Returns the expressions that turn a table's stored columns into plain columns."""
    fields = _fields_of(layout)
    paths = (str(table.path(table.own(field.name) or field.name)) for field in schema)
    return [_column(layout, path, f, fields) for path, f in zip(paths, schema, strict=True)]


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _foreign(kind: pa.DataType, *, evolved: bool) -> "pa.DataType | None":
    types = pa.types
    if types.is_nested(kind):
        inner = [kind.field(i).type for i in range(kind.num_fields)]
        return next((k for t in inner if (k := _foreign(t, evolved=evolved)) is not None), None)
    is_foreign = types.is_float16(kind) or (types.is_timestamp(kind) and kind.unit == "ns")
    # It would read narrower unsigned numbers as signed ones.
    is_foreign |= evolved and (types.is_uint64(kind) or types.is_uint32(kind))
    return kind if is_foreign else None
