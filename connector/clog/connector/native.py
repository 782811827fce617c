"""The table and the log as DataFrames that Spark's own Parquet scan reads, and no Python: with
Catalyst's pruning, pushdown, statistics, and broadcast of small tables.

What the log knows and its objects do not say, which rows count, is found on the driver when the
function is called (`_table_masks`, `_log_masks`), and goes along (`spark_scan`). So a
DataFrame is of one version, and readable while that version is. Where Spark's scan cannot do it,
`format("clog")` reads the same rows and columns, and a warning says once why.

*Kept plans*: who reads the same of a version again gets what was built for it, without a request
but the one that tells which version is the newest. Its columns are others, so that two DataFrames
can be joined.

*Few keys* are looked up on the driver, by key indexes that stay in its memory; those of objects
that have none are made at the first look-up.

*Counts* are told by the masks, where they say it all, and read nothing else.
"""

import json
import logging
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from clog.connector.opened_logs import check_meant, opened, types_of
from clog.connector.options import read_options, texts_of
from clog.connector.read.batch_reader import BatchRead, check_batch
from clog.connector.read.task_read import found_batches
from clog.connector.schema import TableColumns, arrow_schema
from clog.connector.spark_scan import CannotScanError, Shown, columns_of, scanned
from clog.storage.errors import OptionError
from clog.storage.format.documents import folder_of
from clog.storage.read.hidden_rows import ViewMask, read_masks, view_masks
from clog.storage.store.kinds import kind_of
from clog.storage.store.opening import LOCAL, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from clog.connector.options import ReadOptions
    from clog.storage.commit.handle import Handle
    from clog.storage.format.manifest import Manifest
    from clog.storage.log import Log
    from clog.storage.numpy_arrays import Mask
    from clog.storage.read.table import TablePlan

KEYS_MAX = 1000
"""More keys than that are looked up in tasks."""
ROWS_MAX = 4_000_000
"""Rows whose keys the driver reads to know which of them count, where no masks say; with more,
tasks do that.
"""
KEPT_MAX = 16
"""Plans that are kept."""
_DEFAULT_COLUMNS = ("key", "value", "timestamp")
_LOGGER = logging.getLogger("clog.connector")
_SAID: set[tuple[str, str]] = set()
_KEPT: "OrderedDict[tuple[object, ...], tuple[Shown, DataFrame]]" = OrderedDict()
_GLOB = re.compile(r"[*?{}\[\]\\]")


def table_frame(
    spark: "SparkSession", url: str, version: int | None, options: Mapping[str, object]
) -> "DataFrame":
    """Does `tools.read_table`."""
    given = _given_table(url, version, options)
    settings = _settings(given)
    log = _meant_log(settings)
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
    settings = _settings(_given_table(url, version, options))
    log = _meant_log(settings)
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


def _given_table(url: str, version: int | None, options: Mapping[str, object]) -> dict[str, str]:
    given = _given(options, own=("view", "path", "asofversion"))
    given |= {"view": "table", "path": url}
    return given if version is None else given | {"asofversion": str(version)}


def _given(options: Mapping[str, object], *, own: tuple[str, ...]) -> dict[str, str]:
    given = texts_of(options)
    if mine := sorted(given.keys() & {*own}):
        raise OptionError(f"options {mine} are the function's own; leave them out")
    return given


def _settings(given: Mapping[str, str]) -> "ReadOptions":
    settings = read_options(given)
    check_batch(settings)
    return settings


def _meant_log(settings: "ReadOptions") -> "Log":
    log = opened(settings.location)
    check_meant(log.handle, settings.log_id)
    return log


def _opened(given: Mapping[str, str]) -> BatchRead:
    """Opens the log, as it is now."""
    settings = _settings(given)
    log = _meant_log(settings)
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
    """Returns the rows of a few keys, read here."""
    read, found = _rows_of_keys(log, settings)
    pieces = [piece for plan in read.plans() for piece in (*plan.clean, *plan.dirty)]
    batches = found_batches(found, pieces, read.options.location.name, read.schema, read.table)
    return spark.createDataFrame(
        pa.Table.from_batches(batches, arrow_schema(read.schema)), read.schema
    )


def _rows_of_keys(log: "Log", settings: "ReadOptions") -> tuple[BatchRead, pa.Table]:
    """Returns the rows of keys in the table, by the indexes that the log keeps; its newest version
    is asked for here.
    """
    table = log.table(at=settings.as_of_version, at_time_ms=settings.as_of_ms)
    read = _batch_read(log, settings)
    assert read.options.keys is not None
    found, parts = table.of_key_bytes(read.options.keys), read.options.partitions
    if parts is not None:
        found = found.filter(pc.is_in(found.column("partition"), pa.array(parts, pa.int32())))
    return read, found


def _scanned_table(spark: "SparkSession", read: BatchRead, manifest: "Manifest") -> "DataFrame":
    starts = read.handle.tip.head.partitions.start
    asked = read.schema if read.table is None else read.table.as_records(read.schema)

    def shown(folder: str) -> Shown:
        plans = read.plans()
        _check_told(plans)
        hidden = _hidden(_table_masks(read, manifest, plans))
        pieces = [
            piece
            for plan in plans
            for piece in (*plan.clean, *plan.dirty)
            if piece.object.path in hidden
        ]
        return Shown(folder, hidden, pieces)

    what, frame = _kept(spark, read, asked, (manifest.version, tuple(starts)), shown)
    if read.table is None:
        return frame.selectExpr(*columns_of(what, asked, read.options.location.name))
    return frame.selectExpr(*_rows_of_table(read.table, read.schema))


def _scanned_log(
    spark: "SparkSession", read: BatchRead, ranges: Mapping[int, tuple[int, int]]
) -> "DataFrame":
    version = read.handle.tip.version

    def shown(folder: str) -> Shown:
        return Shown(folder, _hidden(_log_masks(read, ranges)), read.pieces(ranges))

    place = version, tuple(ranges.items()), read.options.uncommitted
    what, frame = _kept(spark, read, read.schema, place, shown)
    return frame.selectExpr(*columns_of(what, read.schema, read.options.location.name))


def _kept(
    spark: "SparkSession",
    read: BatchRead,
    asked: StructType,
    place: tuple[object, ...],
    shown: "Callable[[str], Shown]",
) -> "tuple[Shown, DataFrame]":
    """Returns what is scanned for these columns, built unless it was before."""
    options, log_id = read.options, read.handle.standing.log_id
    folder = _folder_in_jvm(options.location.url, log_id)
    commit = read.handle.tip.record.commit_id
    of_log = options.location, log_id, commit, options.view, options.partitions
    key = (spark, *of_log, *place, asked.json())
    if key not in _KEPT:
        _check_types(read.handle, asked)
        what = shown(folder)
        _KEPT[key] = what, scanned(spark, what, asked)
        while len(_KEPT) > KEPT_MAX:
            _KEPT.popitem(last=False)
    _KEPT.move_to_end(key)
    return _KEPT[key]


def _table_masks(
    read: BatchRead, manifest: "Manifest", plans: "Sequence[TablePlan]"
) -> "Iterator[ViewMask]":
    """Yields which rows of which objects the table shows, in the partitions that are read."""
    head, parts = read.handle.tip.head.partitions, {plan.partition for plan in plans}
    starts = [s if p in parts else head.end[p] for p, s in enumerate(head.start)]
    return view_masks(read.handle.store, manifest, starts)


def _log_masks(read: BatchRead, ranges: Mapping[int, tuple[int, int]]) -> "Iterator[ViewMask]":
    """Yields which rows of which objects these ranges of the log show."""
    return read_masks(read.handle.store, read.handle.manifest(), read.pieces(ranges))


def _hidden(masks: "Iterator[ViewMask]") -> "dict[str, Mask | None]":
    """Returns the hidden rows of each object of which any row is shown."""
    found = ((mask, mask.shown) for mask in masks)
    return {
        mask.object.path: mask.hidden if shown < mask.object.rows else None
        for mask, shown in found
        if shown
    }


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


def _rows_of_table(table: TableColumns, schema: StructType) -> list[str]:
    """Returns the expressions that make plain columns of a table's records."""
    made = []
    for field in schema:
        name = table.own(field.name) or field.name
        of_key = f"key.{_quoted(name)}" if table.key_is_struct else "key"
        column = of_key if name in table.key else f"value.{_quoted(name)}"
        made.append(f"{column} AS {_quoted(field.name)}")
    return made


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _foreign(kind: pa.DataType, *, evolved: bool) -> "pa.DataType | None":
    types = pa.types
    if types.is_nested(kind):
        inner = [kind.field(i).type for i in range(kind.num_fields)]
        return next((k for t in inner if (k := _foreign(t, evolved=evolved)) is not None), None)
    is_foreign = types.is_float16(kind) or (types.is_timestamp(kind) and kind.unit == "ns")
    # Narrower unsigned numbers it would read as signed ones.
    is_foreign |= evolved and (types.is_uint64(kind) or types.is_uint32(kind))
    return kind if is_foreign else None
