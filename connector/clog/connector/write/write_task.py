"""What writes have in common: from a DataFrame's columns to objects, ready to be committed.

X1. The driver checks the columns, makes the log if there is none, and hands a `WritePlan` to the
    tasks. Where there is a log, it is to be as each ``config.<name>`` says (`_check_configs`).
X2. Each task writes its rows as data objects, for all partitions of the log, and answers with a
    `Written`. A task that fails or runs twice leaves objects that nobody refers to; the sweep takes
    them.
X3. The driver commits the objects of all tasks at once, in the order of Spark's partitions (S44).

A first write whose types come from its rows (``keyColumns``) makes the log in X3 only: one that
fails leaves none, whose types would be fixed. Its objects are then in the folder of a log that does
not stand yet.

Aborting does nothing: Spark also aborts after a commit whose outcome it did not learn, and then the
objects may be part of the log. But where a task has not answered, none was begun, and what a first
write made is deleted: without a log, nobody sweeps.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, StructField, StructType

from clog.connector.opened_logs import (
    created,
    of_id,
    opened_or_created,
    opened_or_new,
    types_of,
)
from clog.connector.options import Location, WriteOptions
from clog.connector.schema import (
    LogTypes,
    TableColumns,
    canonical,
    check_write_schema,
    table_write,
    with_our_names,
)
from clog.storage.config.definitions import Compression
from clog.storage.errors import InvalidInputError, OptionError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from clog.storage.administration import NewLog
    from clog.storage.format.log_info import LogSchema
    from clog.storage.log import Log
    from clog.storage.objects.layout import DataObject

_LOGGER = logging.getLogger("clog.connector")
_told: set[tuple[str, str, str, str]] = set()


def _check_configs(log: "Log", given: Mapping[str, object]) -> None:
    """Raises if a config is not the log's, and was not when the log was created; logs a warning,
    once, where it was altered since. One GET where one differs.

    Raises:
        OptionError: a config is another one, with both values and what to do.
    """
    from clog.storage.config.definitions import config_text
    from clog.storage.config.log_config import LogConfig, parse_overrides

    wanted = parse_overrides(given)
    has = LogConfig.from_overrides(log.handle.tip.head.config).as_dict()
    differing = {name: value for name, value in wanted.items() if has[name] != value}
    if not differing:
        return
    had = _at_creation(log)
    for name, value in sorted(differing.items()):
        shown, now = config_text(name, value), config_text(name, has[name])
        if had is not None and had[name] != value:
            raise OptionError(
                f'option "config.{name}" is {shown}, but {log.url} was created with'
                f" {config_text(name, had[name])} and has {now}; leave the option out, or change"
                f" the log: clog alter {log.url} -c {name}={shown}"
            )
        told = (log.url, name, value, has[name])
        if told not in _told:
            _told.add(told)
            _LOGGER.warning(
                "option config.%s=%s: %s has %s since it was altered, and keeps it", *_shown(told)
            )


def _shown(told: tuple[str, str, str, str]) -> tuple[str, str, str, str]:
    url, name, value, now = told
    return name, value, url, now


def _at_creation(log: "Log") -> dict[str, str] | None:
    """Returns the configs that the log was created with; None where nobody knows any more."""
    from clog.storage.commit.tip import try_read
    from clog.storage.config.log_config import LogConfig
    from clog.storage.format.commits import edit_of

    created = try_read(log.handle.store, 0)
    if created is None:
        return None
    return LogConfig.from_overrides(
        edit_of(log.handle.store, created.record).config or {}
    ).as_dict()


_RECORD_COLUMNS = ("key", "value", "headers", "timestamp")


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What tasks need to know of the log; it costs them no request. ``row_texts``: they are given
    rows, of which they make texts.
    """

    location: Location
    log_id: str
    stamp: int
    partitions: int
    partitioner: str
    schema: "LogSchema | None"
    table: TableColumns | None
    compression: Compression
    object_bytes: int
    new: "NewLog | None" = None
    row_texts: bool = False


@dataclass(frozen=True, slots=True)
class TaskIds:
    """Who runs a task: the streaming query and its batch (None in a batch write), and the number
    of the Spark partition.
    """

    query_id: str | None = None
    batch_id: int | None = None
    spark_partition: int = 0

    @classmethod
    def current(cls) -> "TaskIds":
        """Returns the ids of the task that this code runs in."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            return cls()
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        return cls(
            context.getLocalProperty("sql.streaming.queryId"),
            None if batch_id is None else int(batch_id),
            context.partitionId(),
        )


@dataclass
class Written(WriterCommitMessage):
    """A task's answer: its objects, in the order of its rows, and a hash of the rows. ``new``: the
    log that they are for, where it did not stand when the write was planned.
    """

    log_id: str
    query_id: str | None
    batch_id: int | None
    objects: tuple["DataObject", ...]
    content: str
    new: "NewLog | None" = None


def plan_write(
    options: WriteOptions, schema: StructType, *, creates_later: bool = False
) -> WritePlan:
    """Checks the columns and opens the log, or makes it; ``creates_later``: not before the commit
    (`log_of`) where its types come from the rows.

    Raises:
        InvalidInputError: a column is missing or has a wrong type.
        OptionError: ``partitions`` differs from what the log has, or a config from what it was
            created with.
    """
    from clog.storage.administration import NewLog
    from clog.storage.config.log_config import LogConfig

    where = f"log {options.location.name!r}"

    def check(types: LogTypes | None, *, key_needed: bool = False) -> TableColumns | None:
        table = None if types is None else table_write(types, schema, where)
        if table is None:
            typed = None if types is None else types.schema
            check_write_schema(schema, key_needed=key_needed, where=where, typed=typed)
        return table

    if creates_later and options.key_columns is not None:
        there = opened_or_new(options, check, rows=schema)
        if isinstance(there, NewLog):
            return _plan_new(options.location, there, check(_types_of(there)))
    if options.row_texts:
        schema = StructType([StructField(name, BinaryType()) for name in ("key", "value")])
    log = opened_or_created(options, check, rows=schema)
    table = check(types_of(log.handle))
    if table is None and "key" not in canonical(schema).names:
        # The policy counts as it is now, not as it was when the log was opened here.
        config = LogConfig.from_overrides(log.handle.refresh().head.config)
        check(types_of(log.handle), key_needed=config.compact)
    tip = log.handle.tip
    info, config = tip.head.log, LogConfig.from_overrides(tip.head.config)
    if options.partitions not in (None, info.partitions):
        raise OptionError(
            f'option "partitions" is {options.partitions}, but {log.url} has {info.partitions}'
            " partitions, which cannot change; omit the option, or write to a new log"
        )
    _check_configs(log, options.config)
    return WritePlan(
        location=options.location,
        log_id=info.log_id,
        stamp=tip.version,
        partitions=info.partitions,
        partitioner=info.partitioner,
        schema=info.schema,
        table=table,
        compression=config.compression,
        object_bytes=config.object_bytes,
        row_texts=options.row_texts,
    )


def write_task(plan: WritePlan, batches: Iterator["pa.RecordBatch"], task: TaskIds) -> Written:
    """Writes one task's rows, in bounded memory.

    Raises:
        InvalidInputError: a partition or a topic that is not the log's, a negative timestamp.
    """
    from clog.storage.env import SystemClock, SystemIds
    from clog.storage.objects.records import ContentHash, to_records
    from clog.storage.objects.writer import ObjectWriter

    clock = SystemClock()
    content = ContentHash()
    objects = ObjectWriter(
        plan.location.store_of(plan.log_id),
        stamp=plan.stamp,
        new_id=SystemIds().new_id,
        partitions=plan.partitions,
        schema=plan.schema,
        compression=plan.compression,
        object_bytes=plan.object_bytes,
    )
    rows = task.spark_partition
    named = with_our_names if plan.table is None else plan.table.of_rows
    if plan.row_texts:
        from clog.connector.write.row_texts import as_texts

        named = as_texts
    for batch in filter(len, map(named, batches)):
        names = batch.schema.names
        _check_topic(batch, plan.location.name)
        given = batch.select([name for name in _RECORD_COLUMNS if name in names])
        if "key" not in names:
            given = given.append_column("key", _nulls(batch.num_rows))
        records, has_times = to_records(given, now_us=clock.now_us(), schema=plan.schema)
        for part in records.to_batches():
            content.update(part if has_times else part.drop_columns(["timestamp"]))
        objects.add(records, _partitions(plan, batch, records, rows))
        rows += batch.num_rows
    return Written(
        *(plan.log_id, task.query_id, task.batch_id),
        *(tuple(objects.finish()), content.hexdigest(), plan.new),
    )


def answers_of(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """Returns the tasks' answers in the order of Spark's partitions."""
    return [m for m in messages if isinstance(m, Written)]


def objects_of(answers: Iterable[Written]) -> "list[DataObject]":
    """Returns the objects of all tasks, in their order."""
    return [obj for answer in answers for obj in answer.objects]


def log_of(location: Location, answers: Sequence[Written]) -> "tuple[Log, list[DataObject]]":
    """Returns the log to commit to, made if it is to be, and the objects of all tasks, in it.

    Raises:
        LogReplacedError: the log that they were written for does not stand there any more.
        InvalidInputError: records that the config of a new log refuses; another one of other types
            or partitions was made meanwhile.
    """
    from clog.storage.append import check_facts
    from clog.storage.env import SystemClock

    objects, new = objects_of(answers), answers[0].new
    if new is None:
        return of_id(location, answers[0].log_id), objects
    for obj in objects:
        check_facts(obj, new.settings, now_ms=SystemClock().now_ms())
    log = created(location, new)
    if log.id != new.log_id:
        _move(location, new, log, objects)
    return log, objects


def delete_of_new(location: Location, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Deletes what tasks wrote for a log that was to be made, if its creation was not begun: some
    task has not answered. Never raises.
    """
    answers = answers_of(messages)
    if len(answers) < len(messages) and answers and (new := answers[0].new) is not None:
        with suppress(Exception):  # What is left is swept once a log stands there.
            store = location.store_of(new.log_id)
            for obj in objects_of(answers):
                store.delete(obj.path)


def content_of(answers: Iterable[Written]) -> str:
    """Returns one hash of the rows of all tasks."""
    import hashlib

    whole = hashlib.blake2b(digest_size=16)
    for answer in answers:
        if answer.objects:
            whole.update(bytes.fromhex(answer.content))
    return whole.hexdigest()


def _types_of(new: "NewLog") -> LogTypes:
    from clog.storage.objects.layout import arrow_schema

    assert new.schema is not None, "a log of bytes is made when the write is planned"
    return LogTypes(arrow_schema(new.schema), new.settings.table_key_columns)


def _plan_new(location: Location, new: "NewLog", table: TableColumns | None) -> WritePlan:
    config = new.settings
    return WritePlan(
        location=location,
        log_id=new.log_id,
        stamp=0,
        partitions=new.partitions,
        partitioner=config.partitioner,
        schema=new.schema,
        table=table,
        compression=config.compression,
        object_bytes=config.object_bytes,
        new=new,
    )


def _move(location: Location, new: "NewLog", log: "Log", objects: "Sequence[DataObject]") -> None:
    """Moves objects into a log that somebody else made meanwhile, if it is as the new one was to
    be.
    """
    info = log.handle.tip.head.log
    theirs = info.partitions, info.partitioner, info.schema
    if theirs != (new.partitions, new.settings.partitioner, new.schema):
        raise InvalidInputError(
            f"{log.url} was made by another writer, with other types or partitions, while the first"
            " rows of this one were written; nothing was appended; write again"
        )
    written = location.store_of(new.log_id)
    for obj in objects:
        log.handle.store.put(obj.path, written.get(obj.path))
        written.delete(obj.path)


def _partitions(
    plan: WritePlan, batch: "pa.RecordBatch", records: "pa.Table", rows_before: int
) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    """Returns the partition of each row: as the column says; by the key where it is null or
    missing.
    """
    import numpy as np

    from clog.storage.keys.hashing import partitions_for
    from clog.storage.numpy_arrays import to_numpy

    given = batch.column("partition") if "partition" in batch.schema.names else None
    if given is not None and not given.null_count:
        return to_numpy(given)
    (keys,) = records.column("key").chunks
    by_key = partitions_for(
        keys, partitions=plan.partitions, algorithm=plan.partitioner, start=rows_before
    )
    if given is None:
        return by_key
    named = to_numpy(given.is_valid())
    return np.where(named, to_numpy(given), by_key).astype(np.int32)


def _check_topic(batch: "pa.RecordBatch", name: str) -> None:
    if "topic" not in batch.schema.names:
        return
    others = [t for t in batch.column("topic").unique().to_pylist() if t not in (None, name)]
    if others:
        raise InvalidInputError(
            f"a batch has rows for {len(others)} topics other than the log {name!r}; a path holds"
            " one log: drop the column topic, or write each topic to its own path"
        )


def _nulls(rows: int) -> "pa.Array":
    import pyarrow as pa

    return pa.nulls(rows)
