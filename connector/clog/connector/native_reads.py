"""The table and the log as DataFrames that Spark's own Parquet scan reads, and no Python: with
Catalyst's pruning, pushdown, statistics, and broadcast of small tables.

What the log knows and its objects do not say, which rows count, is found on the driver when the
function is called, and goes along as a small table. So a DataFrame is of one version, and readable
while that version is. Few keys are looked up on the driver, by the key indexes of the objects.

Where Spark's scan cannot do it, `format("clog")` reads the same rows and columns, and a warning
says once why.
"""

import json
from typing import TYPE_CHECKING

from clog.connector.schema import CannotScanError, say_once

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from clog.connector.options import ReadOptions
    from clog.connector.schema import LogTypes, TableColumns
    from clog.storage.commit.handle import Handle
    from clog.storage.format.manifest import Manifest
    from clog.storage.numpy_arrays import Mask
    from clog.storage.read.table import TablePlan

KEYS_MAX = 1000
"""More keys than that are looked up in tasks."""
ROWS_MAX = 4_000_000
"""Rows whose keys the driver reads to know which of them count, where no masks say; with more,
tasks do that.
"""
_DEFAULT_COLUMNS = ("key", "value", "timestamp")


def read_table(
    spark: "SparkSession", url: str, version: int | None = None, **options: object
) -> "DataFrame":
    """Returns the latest value of each key at a version of a log, read by Spark's own scan.

    It has the columns ``key``, ``value`` and ``timestamp``, with ``includeHeaders`` also
    ``headers``; a log with ``table.key.columns`` has its plain columns.

    Args:
        spark: the session.
        url: the log.
        version: of the log; None: the newest.
        options: of ``format("clog")`` with ``view=table``, such as ``columns`` (``partition`` and
            ``offset`` can be asked for, too), ``keys`` or ``partitions``.

    Raises:
        OptionError: an option is unknown, or is ``view``, ``path`` or ``asOfVersion``.
        NotFoundError: there is no log at this URL.
        VersionExpiredError: the version is no longer readable, or does not exist yet.
    """
    given = _given(options, own=("view", "path", "asofversion"))
    given |= {"view": "table", "path": url}
    if version is not None:
        given["asofversion"] = str(version)
    from clog.connector.opened_logs import types_of
    from clog.connector.read.plan_ranges import (
        asked_schema,
        check_columns_of,
        of_the_logs_keys,
        view_manifest,
    )

    settings, handle = _opened(given)
    types = types_of(handle)
    settings = of_the_logs_keys(handle, _with_columns(settings, types))
    schema = asked_schema(settings, types)
    table = check_columns_of(handle, settings, schema)
    manifest = view_manifest(handle, settings)
    try:
        if settings.keys is not None:
            return _looked_up(spark, handle, settings, schema, table)
        return _scanned_table(spark, handle, manifest, settings, schema=schema, table=table)
    except CannotScanError as e:
        say_once(handle.store.url, e)
    given.pop("asoftimestamp", None)
    given |= {"asofversion": str(manifest.version), "logid": handle.standing.log_id}
    reader = spark.read.format("clog").options(**given)
    return reader.schema(schema).load()


def read_log(spark: "SparkSession", url: str, **options: object) -> "DataFrame":
    """Returns the records of a log as of now, read by Spark's own scan; the columns are those of
    ``format("clog")``.

    Args:
        spark: the session.
        url: the log.
        options: of ``format("clog")`` with ``view=log``, such as ``startingOffsets`` or
            ``columns``.

    Raises:
        OptionError: an option is unknown, or is ``view`` or ``path``.
        NotFoundError: there is no log at this URL.
        OffsetOutOfRangeError: a start or an end that is gone or not there yet, and
            ``failOnDataLoss``.
    """
    from clog.connector.opened_logs import types_of
    from clog.connector.read.plan_ranges import asked_schema, batch_ranges, check_columns_of

    given = _given(options, own=("view", "path")) | {"path": url}
    settings, handle = _opened(given)
    manifest = handle.manifest()
    schema = asked_schema(settings, types_of(handle))
    check_columns_of(handle, settings, schema)
    ranges = batch_ranges(handle.store, manifest, settings)
    try:
        if settings.keys is not None:
            raise CannotScanError("keys are looked up in key indexes")
        return _scanned_log(spark, handle, manifest, settings, ranges=ranges, schema=schema)
    except CannotScanError as e:
        say_once(handle.store.url, e)
    kept = {n: t for n, t in given.items() if not n.startswith(("starting", "ending"))}
    starts, ends = (json.dumps({str(p): r[i] for p, r in ranges.items()}) for i in (0, 1))
    fixed = {"startingoffsets": starts, "endingoffsets": ends, "logid": handle.standing.log_id}
    return spark.read.format("clog").options(**{**kept, **fixed}).schema(schema).load()


def _given(options: "Mapping[str, object]", *, own: tuple[str, ...]) -> dict[str, str]:
    from clog.connector.options import texts_of
    from clog.storage.errors import OptionError

    given = texts_of(options)
    if mine := sorted(given.keys() & {*own}):
        raise OptionError(f"options {mine} are the function's own; leave them out")
    return given


def _opened(given: "Mapping[str, str]") -> "tuple[ReadOptions, Handle]":
    from clog.connector.opened_logs import check_meant, opened
    from clog.connector.options import read_options
    from clog.connector.read.batch_reader import check_batch

    settings = read_options(given)
    check_batch(settings)
    handle = opened(settings.location).handle
    check_meant(handle, settings.log_id)
    handle.refresh()
    return settings, handle


def _with_columns(settings: "ReadOptions", types: "LogTypes | None") -> "ReadOptions":
    """Returns the options with the table's columns, where nobody names them."""
    from dataclasses import replace

    if settings.columns is not None:
        return settings
    if types is not None and types.key_columns and not settings.include_headers:
        return settings
    headers = ("headers",) if settings.include_headers else ()
    return replace(settings, columns=(*_DEFAULT_COLUMNS, *headers))


def _looked_up(
    spark: "SparkSession",
    handle: "Handle",
    settings: "ReadOptions",
    schema: "StructType",
    table: "TableColumns | None",
) -> "DataFrame":
    """Returns the rows of a few keys, read here."""
    import pyarrow as pa

    from clog.connector.read.plan_ranges import view_partitions
    from clog.connector.read.task_read import table_slice_batches
    from clog.connector.schema import arrow_schema

    assert settings.keys is not None
    if len(settings.keys) > KEYS_MAX:
        raise CannotScanError(f"more than {KEYS_MAX:,} keys are looked up in tasks")
    batches = [
        batch
        for part in view_partitions(handle, settings, table)
        for batch in table_slice_batches(part, schema)
    ]
    rows = pa.Table.from_batches(batches, arrow_schema(schema))
    return spark.createDataFrame(rows, schema)


def _scanned_table(
    spark: "SparkSession",
    handle: "Handle",
    manifest: "Manifest",
    settings: "ReadOptions",
    *,
    schema: "StructType",
    table: "TableColumns | None",
) -> "DataFrame":
    from clog.connector.native import Scanned, folder_in_jvm, needs_places, records, rows_of_table
    from clog.connector.read.plan_ranges import view_plans
    from clog.storage.read.hidden_rows import view_masks

    folder = folder_in_jvm(settings.location.url, handle.standing.log_id)
    asked = schema if table is None else table.as_records(schema)
    _check_types(handle, asked)
    plans = view_plans(handle, settings)
    _check_told(plans)
    head = handle.tip.head.partitions
    read = {plan.partition for plan in plans}
    starts = [s if p in read else head.end[p] for p, s in enumerate(head.start)]
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
    is_placed = needs_places(asked, pieces)
    what = Scanned(folder, hidden, pieces if is_placed else None)
    found = records(spark, what, asked, settings.location.name)
    return found if table is None else rows_of_table(found, table, schema)


def _scanned_log(
    spark: "SparkSession",
    handle: "Handle",
    manifest: "Manifest",
    settings: "ReadOptions",
    *,
    ranges: "Mapping[int, tuple[int, int]]",
    schema: "StructType",
) -> "DataFrame":
    import numpy as np

    from clog.connector.native import Scanned, folder_in_jvm, records
    from clog.connector.read.plan_ranges import isolation_of
    from clog.storage.read.scan import dead_rows_of, plan_range

    folder = folder_in_jvm(settings.location.url, handle.standing.log_id)
    _check_types(handle, schema)
    isolation = isolation_of(settings.uncommitted)
    pieces = [
        piece
        for p, (start, end) in ranges.items()
        for piece in plan_range(manifest, p, start, end, isolation=isolation)
    ]
    hidden: dict[str, Mask | None] = dict.fromkeys(piece.object.path for piece in pieces)
    for piece, dead in zip(pieces, dead_rows_of(handle.store, pieces), strict=True):
        if dead is not None:
            mask = hidden[piece.object.path]
            if mask is None:
                mask = hidden[piece.object.path] = np.zeros(piece.object.rows, np.bool_)
            mask[piece.first_row : piece.first_row + piece.rows] |= dead
    return records(spark, Scanned(folder, hidden, pieces), schema, settings.location.name)


def _check_types(handle: "Handle", read: "StructType") -> None:
    from clog.connector.native import check_types
    from clog.connector.opened_logs import types_of

    types, schema = types_of(handle), handle.tip.head.log.schema
    if types is not None and schema is not None:
        check_types(types.schema, read, evolved=schema.id > 0)


def _check_told(plans: "Sequence[TablePlan]") -> None:
    """Raises if too many keys are to be read to know which rows count.

    Raises:
        CannotScanError: they are.
    """
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
