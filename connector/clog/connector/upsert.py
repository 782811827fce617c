"""Update mode: the rows that changed in a micro-batch, appended as a changelog, exactly once.

Spark refuses output mode update for Python sinks, but not for ``foreachBatch``. There a batch can
run again after its rows were appended (a crash before Spark noted it), so the append carries the
query's id and the batch's number as ``txnAppId`` and ``txnVersion``.

A record of the changelog is a row: its key columns are the record's key, the others its value. One
column of string or binary type stands for itself, one of another type is cast to string; a struct,
an array, a map, or several columns become JSON.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from clog.connector.options.parsing import as_text
from clog.storage.errors import InvalidInputError
from clog.storage.store.urls import redact

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_QUERY_ID = "sql.streaming.queryId"
_RUN_ID = "spark.jobGroup.id"
_done: dict[tuple[str, str], tuple[str, int]] = {}
"""By URL and app id: the run and the batch of the last call, to notice two that bear one name."""


def upsert(
    df: "DataFrame",
    url: str,
    keys: str | Sequence[str],
    *,
    batch_id: int,
    values: Sequence[str] | None = None,
    deleted: "str | Column | None" = None,
    name: str | None = None,
    query_id: str | None = None,
    options: Mapping[str, object] | None = None,
) -> None:
    """Appends the rows of a micro-batch to a log, once; for use in ``foreachBatch``.

    Args:
        df: the batch, with one row for each key; if a key has several rows, any of them may win.
        url: the log; the first batch that has rows creates it.
        keys: the column or columns that make the record's key.
        batch_id: the second argument of the function given to ``foreachBatch``.
        values: the columns that make the value; None: all others.
        deleted: a condition; a row that meets it becomes a tombstone. So does a row whose value is
            one column that is null.
        name: tells two upserts of one batch into one log apart.
        query_id: the id of the streaming query; needed with Spark Connect, which does not show it.
        options: further options of the write, such as ``partitions`` or ``config.<name>``.

    Raises:
        InvalidInputError: a column does not exist; no query is known; a second upsert of the batch
            into this log has no name of its own; the batch, or a later one, is in the log already
            with other rows, unless an option says that ``failOnChangedBatch`` is false.
    """
    records = _records(df, [keys] if isinstance(keys, str) else list(keys), values, deleted)
    run_id = _local_property(df, _RUN_ID) or ""
    app_id = _app_id(query_id or _local_property(df, _QUERY_ID), name, url)
    if run_id and _done.get((url, app_id)) == (run_id, batch_id):
        raise InvalidInputError(
            f"batch {batch_id} is upserted into {redact(url)} twice; the second upsert would be"
            " dropped as a repetition of the first; give each upsert its own name (name=…)"
        )
    given = {name: as_text(value) for name, value in (options or {}).items()}
    writer = records.write.format("clog").mode("append").option("failOnChangedBatch", "true")
    writer = writer.options(**given)
    writer.option("txnAppId", app_id).option("txnVersion", str(batch_id)).save(url)
    _done[(url, app_id)] = (run_id, batch_id)


def _app_id(query_id: str | None, name: str | None, url: str) -> str:
    if query_id is None:
        raise InvalidInputError(
            f"upsert into {redact(url)} cannot tell its streaming query; call it in foreachBatch,"
            " and give query_id=query.id with Spark Connect"
        )
    return query_id if name is None else f"{query_id}/{name}"


def _records(
    df: "DataFrame",
    keys: Sequence[str],
    values: Sequence[str] | None,
    deleted: "str | Column | None",
) -> "DataFrame":
    if values is None:
        values = [c for c in df.columns if c not in keys]
    for role, columns in (("key", keys), ("value", values)):
        _check_columns(df, columns, role)
    value = _one(df, values)
    if deleted is not None:
        value = _without(value, deleted)
    return df.select(_one(df, keys).alias("key"), value.alias("value"))


def _check_columns(df: "DataFrame", columns: Sequence[str], role: str) -> None:
    missing = [c for c in columns if c not in df.columns]
    if missing or not columns:
        what = f"{role} columns {missing} do not exist" if columns else f"no {role} column is left"
        raise InvalidInputError(f"{what}; the DataFrame has {', '.join(df.columns)}")


def _one(df: "DataFrame", columns: Sequence[str]) -> "Column":
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

    quoted = [F.col(f"`{c}`") for c in columns]
    whole = quoted[0] if len(columns) == 1 else F.struct(*quoted)
    kind = StructType() if len(columns) > 1 else df.schema[columns[0]].dataType
    if isinstance(kind, StructType | ArrayType | MapType):
        # Null fields stay: a consumer must see that a field is null now.
        return F.to_json(whole, {"ignoreNullFields": "false"})
    return whole if isinstance(kind, BinaryType | StringType) else whole.cast("string")


def _without(value: "Column", deleted: "str | Column") -> "Column":
    from pyspark.sql import functions as F  # noqa: N812

    condition = F.expr(deleted) if isinstance(deleted, str) else deleted
    return F.when(~F.coalesce(condition, F.lit(False)), value)  # noqa: FBT003


def _local_property(df: "DataFrame", name: str) -> str | None:
    """Returns what Spark says of the micro-batch; None with Spark Connect, which has no such thing
    here.
    """
    try:
        value: str | None = df.sparkSession.sparkContext.getLocalProperty(name)
    except Exception:  # noqa: BLE001 -- Connect raises one of several kinds
        return None
    return value
