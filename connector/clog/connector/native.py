"""The table and the log as DataFrames that Spark's own Parquet scan reads, and no Python: with
Catalyst's pruning, pushdown, statistics, and broadcast of small tables.

What the log knows and its objects do not say, which rows count, is found on the driver when the
function is called, and goes along as a small table. So a DataFrame is of one version, and readable
while that version is. Few keys are looked up on the driver, by the key indexes of the objects.

D1. Scan the objects with the columns that are asked for, as the log's types, by the names that the
    JVM has for them.
D2. Take hidden rows out: an anti join with their blocks and a bit for each row. Spark's estimate of
    the size stays that of the scan, so small tables are still broadcast.
D3. Where columns say a row's place in the log, join the blocks of places.

Filters and column pruning go through both joins into the scan. Where Spark's scan cannot do it,
`format("clog")` reads the same rows and columns, and a warning says once why.

A scanned row is known by its file's name and by its number in the file. Both make one integer, the
number of its *block* of rows: Spark's own hash of the name, of which as many bits are taken as
tell the files apart, and then the row's number without its lowest bits.

- *Hidden rows*: for each block of 64 rows of which any is hidden a word with their bits.
- *Places*: for each block of 4,096 rows, the pieces of the log that have rows in it.
"""

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import xxhash
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import LongType, StructField, StructType

from clog.connector.opened_logs import check_meant, opened, types_of
from clog.connector.options import read_options, texts_of
from clog.connector.read.batch_reader import BatchRead, check_batch
from clog.connector.read.plan import TablePartition
from clog.connector.read.task_read import table_slice_batches
from clog.connector.schema import TableColumns, arrow_schema
from clog.storage.errors import OptionError
from clog.storage.format.documents import NONE, folder_of
from clog.storage.numpy_arrays import to_arrow
from clog.storage.read.hidden_rows import view_masks
from clog.storage.read.scan import dead_rows_of
from clog.storage.store.kinds import kind_of
from clog.storage.store.opening import LOCAL, parse

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from clog.storage.commit.handle import Handle
    from clog.storage.format.manifest import Manifest
    from clog.storage.numpy_arrays import Mask, Offsets
    from clog.storage.read.scan import ReadPiece
    from clog.storage.read.table import TablePlan

KEYS_MAX = 1000
"""More keys than that are looked up in tasks."""
ROWS_MAX = 4_000_000
"""Rows whose keys the driver reads to know which of them count, where no masks say; with more,
tasks do that.
"""
_DEFAULT_COLUMNS = ("key", "value", "timestamp")
_LOGGER = logging.getLogger("clog.connector")
_SAID: set[tuple[str, str]] = set()
_GLOB = re.compile(r"[*?{}\[\]\\]")
ROW, FILE = "clog row", "clog file"
"""Columns that say which row of which file a row is: its number, and a hash of the file's name."""
_V1_SOURCES = "spark.sql.sources.useV1SourceList"
_OPTIONS = {
    # A session may tell Spark to pass over what is gone or damaged: rows would be missing.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
    "parquet.page.verify-checksum.enabled": "true",
}
NAME_BITS, ROW_BITS = 38, 25
HIDDEN_BITS, PLACE_BITS = 6, 12
"""Of a row's number in a block of hidden rows, and in one of places."""
BLOCKS_MAX = 4 << 20
"""A table of more is not sent to all executors."""
OBJECT_ROWS_MAX = 1 << (ROW_BITS + HIDDEN_BITS)
_HASH_SEED = 42
_NONE = np.iinfo(np.int64).min
_PLACE_COLUMNS = frozenset({"partition", "offset", "timestampType"})


class CannotScanError(Exception):
    """Spark's own scan cannot read this; `format("clog")` can."""


def table_frame(
    spark: "SparkSession", url: str, version: int | None, options: Mapping[str, object]
) -> "DataFrame":
    """Does `tools.read_table`."""
    given = _given(options, own=("view", "path", "asofversion"))
    given |= {"view": "table", "path": url}
    if version is not None:
        given["asofversion"] = str(version)
    read = _opened(given)
    manifest = read.manifest()
    try:
        if read.options.keys is not None:
            return _looked_up(spark, read)
        return _scanned_table(spark, read, manifest)
    except CannotScanError as e:
        _say_once(read.handle.store.url, e)
    given.pop("asoftimestamp", None)
    given |= {"asofversion": str(manifest.version), "logid": read.handle.standing.log_id}
    return spark.read.format("clog").options(**given).schema(read.schema).load()


def log_frame(spark: "SparkSession", url: str, options: Mapping[str, object]) -> "DataFrame":
    """Does `tools.read_log`."""
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


def _given(options: Mapping[str, object], *, own: tuple[str, ...]) -> dict[str, str]:
    given = texts_of(options)
    if mine := sorted(given.keys() & {*own}):
        raise OptionError(f"options {mine} are the function's own; leave them out")
    return given


def _opened(given: Mapping[str, str]) -> BatchRead:
    """Opens the log, as it is now; a table without ``columns`` gets those of `read_table`."""
    settings = read_options(given)
    check_batch(settings)
    handle = opened(settings.location).handle
    check_meant(handle, settings.log_id)
    handle.refresh()
    types, with_headers = types_of(handle), settings.include_headers
    is_plain = types is not None and types.key_columns and not with_headers
    if settings.view == "table" and settings.columns is None and not is_plain:
        columns = (*_DEFAULT_COLUMNS, "headers") if with_headers else _DEFAULT_COLUMNS
        settings = replace(settings, columns=columns)
    return BatchRead.of(handle, settings)


def _looked_up(spark: "SparkSession", read: BatchRead) -> "DataFrame":
    """Returns the rows of a few keys, read here."""
    assert read.options.keys is not None
    if len(read.options.keys) > KEYS_MAX:
        raise CannotScanError(f"more than {KEYS_MAX:,} keys are looked up in tasks")
    batches = [
        batch
        for part in read.partitions()
        if isinstance(part, TablePartition)
        for batch in table_slice_batches(part, read.schema)
    ]
    rows = pa.Table.from_batches(batches, arrow_schema(read.schema))
    return spark.createDataFrame(rows, read.schema)


def _scanned_table(spark: "SparkSession", read: BatchRead, manifest: "Manifest") -> "DataFrame":
    location, handle, table = read.options.location, read.handle, read.table
    folder = _folder_in_jvm(location.url, handle.standing.log_id)
    asked = read.schema if table is None else table.as_records(read.schema)
    _check_types(handle, asked)
    plans = read.plans()
    _check_told(plans)
    head, parts = handle.tip.head.partitions, {plan.partition for plan in plans}
    starts = [s if p in parts else head.end[p] for p, s in enumerate(head.start)]
    hidden = {
        mask.object.path: mask.hidden if mask.shown < mask.object.rows else None
        for mask in view_masks(handle.store, manifest, starts)
        if mask.shown
    }
    pieces = [
        piece
        for plan in plans
        for piece in (*plan.clean, *plan.dirty)
        if piece.object.path in hidden
    ]
    is_placed = _needs_places(asked, pieces)
    what = _Scanned(folder, hidden, pieces if is_placed else None)
    found = _records(spark, what, asked, location.name)
    return found if table is None else _rows_of_table(found, table, read.schema)


def _scanned_log(
    spark: "SparkSession", read: BatchRead, ranges: Mapping[int, tuple[int, int]]
) -> "DataFrame":
    location, handle = read.options.location, read.handle
    folder = _folder_in_jvm(location.url, handle.standing.log_id)
    _check_types(handle, read.schema)
    pieces = read.pieces(ranges)
    hidden: dict[str, Mask | None] = dict.fromkeys(piece.object.path for piece in pieces)
    for piece, dead in zip(pieces, dead_rows_of(handle.store, pieces), strict=True):
        if dead is not None:
            mask = hidden[piece.object.path]
            if mask is None:
                mask = hidden[piece.object.path] = np.zeros(piece.object.rows, np.bool_)
            mask[piece.first_row : piece.first_row + piece.rows] |= dead
    return _records(spark, _Scanned(folder, hidden, pieces), read.schema, location.name)


def _check_types(handle: "Handle", read: StructType) -> None:
    """Raises if a column that is read has a type that Spark reads otherwise, or not at all."""
    types, schema = types_of(handle), handle.tip.head.log.schema
    if types is None or schema is None:
        return
    for field in types.schema:
        # An evolved schema: objects may have narrower types.
        kind = _foreign(field.type, evolved=schema.id > 0) if field.name in read.names else None
        if kind is not None:
            raise CannotScanError(f"its schema has the type {kind}, which Spark's reader has not")


def _check_told(plans: "Sequence[TablePlan]") -> None:
    """Raises if too many keys are to be read to know which rows count."""
    rows = sum(
        piece.rows
        for plan in plans
        for piece in (*plan.clean, *plan.dirty)
        if plan.dirty or not piece.is_masked
    )
    if rows > ROWS_MAX:
        raise CannotScanError(
            f"no masks say which of {rows:,} rows are the latest of their keys; the cleaner makes"
            " them (clog upgrade superseded-rows, clog clean)"
        )


def _say_once(url: str, reason: CannotScanError) -> None:
    """Logs a warning, unless this process has."""
    if (url, str(reason)) not in _SAID:
        _SAID.add((url, str(reason)))
        _LOGGER.warning(
            'reading %s by format("clog"), which takes longer than Spark\'s own scan: %s',
            url,
            reason,
        )


def _folder_in_jvm(url: str, log_id: str) -> str:
    """Returns the log's folder by the name that the JVM has for it."""
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
        raise CannotScanError(f"Spark's JVM has no filesystem for {there.protocol} URLs like this")
    return f"{root}/{folder_of(log_id)}"


def _scan(spark: "SparkSession", paths: Sequence[str], schema: StructType) -> "DataFrame":
    """Returns the rows of these files, which Spark looks for now, with `ROW` and `FILE`."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        if "parquet" not in (spark.conf.get(_V1_SOURCES) or "").lower().split(","):
            raise CannotScanError(
                f"the session's {_V1_SOURCES} lacks parquet, and only that scan numbers its rows"
            )
        frame = spark.read.options(**_OPTIONS).schema(schema).parquet(*paths)
        frame = frame.select(
            "*",
            F.col("_metadata.row_index").alias(ROW),
            F.xxhash64("_metadata.file_name").alias(FILE),
        )
        assert frame.schema is not None  # By Spark Connect only this asks.
    except (Py4JError, PySparkException) as e:
        raise CannotScanError(f"Spark's JVM does not read its objects ({_what(e)})") from e
    return frame


def _what(error: Exception) -> str:
    """Returns what kind of error it was: its text may hold more than is to be shown."""
    cause = getattr(error, "java_exception", None)
    if cause is not None:
        return str(cause.getClass().getSimpleName())
    condition = getattr(error, "getCondition", lambda: None)()
    return condition or type(error).__name__


@dataclass(frozen=True, slots=True)
class _FileNumbers:
    """Numbers that tell files apart: ``NAME_BITS`` bits of the hash of their names, without the
    lowest ``shift``.
    """

    numbers: Mapping[str, int]
    shift: int

    @classmethod
    def of(cls, names: Iterable[str]) -> "_FileNumbers":
        """Returns numbers for these files."""
        hashes = {name: xxhash.xxh64_intdigest(name.encode(), seed=_HASH_SEED) for name in names}
        for shift in range(64 - NAME_BITS):
            numbers = {n: (h >> shift) & ((1 << NAME_BITS) - 1) for n, h in hashes.items()}
            if len(set(numbers.values())) == len(numbers):
                return cls(numbers, shift)
        raise CannotScanError("it has too many objects; let the cleaner put small ones together")

    def block(self, name: str, rows: int) -> int:
        """Returns the number of the first block of a file with so many rows."""
        if rows > OBJECT_ROWS_MAX:
            raise CannotScanError(f"it has an object of more than {OBJECT_ROWS_MAX:,} rows")
        return self.numbers[name] << ROW_BITS


def _hidden_rows(files: _FileNumbers, masks: "Mapping[str, Mask]") -> pa.Table:
    """Returns the hidden rows of each file: ``block``, ``hidden``."""
    blocks, words = [], []
    for name, mask in masks.items():
        packed = np.packbits(mask, bitorder="little")
        padded = np.zeros(-(-len(packed) // 8) * 8, np.uint8)
        padded[: len(packed)] = packed
        word = padded.view("<i8")
        some = np.flatnonzero(word)
        blocks.append(files.block(name, len(mask)) + some)
        words.append(word[some])
    return _checked({"block": to_arrow(_joined(blocks)), "hidden": to_arrow(_joined(words))})


def _places(files: _FileNumbers, pieces: "Iterable[tuple[str, ReadPiece]]") -> pa.Table:
    """Returns where rows of each file lie in the log: in a ``block`` rows ``[first_row, end_row)``
    are of a ``partition``, and their offsets ``delta`` more than their numbers, or, where that is
    null, in the file; of those ``[start, end)`` are read. ``append_time``: their timestamp, null
    where the file has it.
    """
    rows: list[tuple[int, ...]] = []
    blocks: list[Offsets] = []
    for name, piece in pieces:
        if not piece.rows:
            continue
        low, high = piece.first_row, piece.first_row + piece.rows
        some = np.arange(low >> PLACE_BITS, ((high - 1) >> PLACE_BITS) + 1, dtype=np.int64)
        blocks.append(files.block(name, high) + some)
        offset = piece.base - low if piece.object.dense else _NONE
        append_us = _NONE if piece.append_time_ms == NONE else piece.append_time_ms * 1000
        place = (low, high, piece.partition, offset, piece.start, piece.end, append_us)
        rows.append((len(some), *place))
    counts, *columns = np.array(rows, np.int64).reshape(-1, 8).T
    first, end, partition, delta, start, stop, time_us = (np.repeat(c, counts) for c in columns)
    return _checked(
        {
            "block": to_arrow(_joined(blocks)),
            "first_row": to_arrow(first),
            "end_row": to_arrow(end),
            "partition": to_arrow(partition.astype(np.int32)),
            "delta": to_arrow(delta, valid=delta != _NONE),
            "start": to_arrow(start),
            "end": to_arrow(stop),
            "append_time": to_arrow(time_us, pa.timestamp("us", "UTC"), valid=time_us != _NONE),
        }
    )


def _joined(parts: "Sequence[Offsets]") -> "Offsets":
    return np.concatenate([np.empty(0, np.int64), *parts])


def _checked(columns: Mapping[str, pa.Array]) -> pa.Table:
    if len(columns["block"]) > BLOCKS_MAX:
        raise CannotScanError(f"it takes more than {BLOCKS_MAX:,} blocks of rows to say which")
    return pa.table(dict(columns))


@dataclass(frozen=True, slots=True)
class _Scanned:
    """What is scanned: the log's ``folder`` as the JVM names it, of each object by its path the
    rows that are hidden, and the pieces of the log, where their places matter.
    """

    folder: str
    hidden: "Mapping[str, Mask | None]"
    pieces: "Sequence[ReadPiece] | None"


def _records(spark: "SparkSession", what: _Scanned, schema: StructType, topic: str) -> "DataFrame":
    """Returns the columns of ``schema`` of the rows that are not hidden."""
    if not what.hidden:
        return spark.createDataFrame([], schema)
    names = {path: path.rpartition("/")[2] for path in what.hidden}
    numbers = _FileNumbers.of(names.values())
    stored = [f for f in schema if f.name in ("key", "value", "headers", "timestamp")]
    if what.pieces is not None:
        stored.append(StructField("offset", LongType()))
    frame = _scan(spark, [f"{what.folder}/{path}" for path in what.hidden], StructType(stored))
    masks = {names[path]: mask for path, mask in what.hidden.items() if mask is not None}
    if masks:
        words = spark.createDataFrame(_hidden_rows(numbers, masks))
        bit = F.call_function("bit_get", F.col("hidden"), _low(HIDDEN_BITS).cast("int"))
        is_hidden = (_block(numbers, HIDDEN_BITS) == F.col("block")) & (bit == 1)
        frame = frame.join(F.broadcast(words), is_hidden, "left_anti")
    made: dict[str, Column] = {"topic": F.lit(topic)}
    if what.pieces is not None:
        found = _places(numbers, [(names[piece.object.path], piece) for piece in what.pieces])
        place = spark.createDataFrame(found)
        is_there = (
            (_block(numbers, PLACE_BITS) == F.col("block"))
            & (F.col(ROW) >= F.col("first_row"))
            & (F.col(ROW) < F.col("end_row"))
        )
        offset = F.coalesce(F.col(ROW) + F.col("delta"), F.col("offset"))
        frame = frame.join(F.broadcast(place), is_there).withColumn("offset", offset)
        frame = frame.where((F.col("offset") >= F.col("start")) & (F.col("offset") < F.col("end")))
        made["timestampType"] = F.col("append_time").isNotNull().cast("int")
        if "timestamp" in schema.names:
            made["timestamp"] = F.coalesce("append_time", "timestamp")
    return frame.select(*(made.get(f.name, F.col(f.name)).alias(f.name) for f in schema))


def _rows_of_table(records: "DataFrame", table: TableColumns, schema: StructType) -> "DataFrame":
    """Returns plain columns of a table's records."""
    columns = []
    for field in schema:
        name = table.own(field.name) or field.name
        of_key = F.col("key").getField(name) if table.key_is_struct else F.col("key")
        column = of_key if name in table.key else F.col("value").getField(name)
        columns.append(column.alias(field.name))
    return records.select(*columns)


def _needs_places(schema: StructType, pieces: "Sequence[ReadPiece]") -> bool:
    """Tells whether a column says what lies in no object."""
    overridden = any(piece.append_time_ms != NONE for piece in pieces)
    asked = {*_PLACE_COLUMNS, "timestamp"} if overridden else _PLACE_COLUMNS
    return any(f.name in asked for f in schema)


def _block(numbers: _FileNumbers, bits: int) -> "Column":
    """Returns the number of a row's block, as `native` makes it."""
    number = F.shiftrightunsigned(FILE, numbers.shift).bitwiseAND((1 << NAME_BITS) - 1)
    return F.shiftleft(number, ROW_BITS) + F.shiftright(ROW, bits)


def _low(bits: int) -> "Column":
    return F.col(ROW).bitwiseAND((1 << bits) - 1)


def _foreign(kind: pa.DataType, *, evolved: bool) -> "pa.DataType | None":
    types = pa.types
    if types.is_nested(kind):
        inner = [kind.field(i).type for i in range(kind.num_fields)]
        return next((k for t in inner if (k := _foreign(t, evolved=evolved)) is not None), None)
    is_foreign = types.is_float16(kind) or (types.is_timestamp(kind) and kind.unit == "ns")
    # Narrower unsigned numbers it would read as signed ones.
    is_foreign |= evolved and (types.is_uint64(kind) or types.is_uint32(kind))
    return kind if is_foreign else None
