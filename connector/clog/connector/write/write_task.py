"""The common part of all writes: from a DataFrame's columns to objects, ready to be committed.

X1. The driver checks the columns, creates the log if there is none, and gives a `WritePlan` to the
    tasks. An existing log must agree with each ``config.<name>`` (`_check_configs`).
X2. Each task writes its rows as data objects, for all partitions of the log, and answers with a
    `Written`. A task that fails or runs twice leaves unreferenced objects, which the sweep deletes.
X3. The driver commits the objects of all tasks together, in the order of Spark's partitions (S44).

A first write whose types come from its rows (``keyColumns``) creates the log only in X3, so a
failed one does not leave a log with fixed types. Until then its objects are in the folder of a log
that does not exist yet.

Aborting does nothing: Spark also aborts after a commit whose outcome it did not learn, and then the
objects may be part of the log. But if a task has not answered, no commit was begun, and the objects
of a first write are deleted: without a log, nobody sweeps.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from clog.connector.opened_logs import check_log_id, of_id, opened, types_of
from clog.connector.options import Location, WriteOptions
from clog.connector.schema import (
    LogTypes,
    TableColumns,
    canonical,
    check_write_schema,
    new_types,
    nullable_schema,
    table_write,
    with_our_names,
)
from clog.storage.config.units import Compression
from clog.storage.env import dataclass
from clog.storage.errors import AlreadyExistsError, InvalidInputError, NotFoundError, OptionError
from clog.storage.types.names import folded

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from clog.storage.administration import NewLog
    from clog.storage.config.log_config import LogConfig
    from clog.storage.format.log_info import LogInfo, LogSchema
    from clog.storage.log import Log
    from clog.storage.objects.writer import DataObject

    _Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_ANSWER = "spark_partition int, written binary"
_LOGGER = logging.getLogger("clog.connector")
QUERY_ID = "sql.streaming.queryId"
"""Of the query, over all its restarts."""
RUN_ID = "spark.jobGroup.id"
"""Of this run of it."""
_warned: set[tuple[str, str, str, str]] = set()
_RECORD_COLUMNS = ("key", "value", "headers", "timestamp")


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What tasks need to know about the log without a request."""

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
    order_header: str = ""
    has_deletes: bool = False
    """Whether rows have one more column, the last: whether their keys are deleted."""

    def records_of(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Returns the records of a batch of Spark's."""
        if self.table is None:
            return with_our_names(batch)
        if not self.has_deletes:
            return self.table.of_rows(batch)
        import pyarrow as pa

        rows, deleted = batch.remove_column(batch.num_columns - 1), batch.column(-1)
        key, value = self.table.of_rows(rows).columns
        inner = [value.field(i) for i in range(value.type.num_fields)]
        value = pa.StructArray.from_arrays(inner, fields=list(value.type), mask=deleted)
        return pa.RecordBatch.from_arrays([key, value], ["key", "value"])


@dataclass(frozen=True, slots=True)
class TaskIds:
    """What a task belongs to: the query and batch (None in a batch write), Spark's partition."""

    query_id: str | None = None
    batch_id: int | None = None
    spark_partition: int = 0

    @classmethod
    def current(cls) -> "TaskIds":
        """Returns the ids of the task in which this code runs."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            return cls()
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        return cls(
            context.getLocalProperty(QUERY_ID),
            None if batch_id is None else int(batch_id),
            context.partitionId(),
        )


def local_property(df: "DataFrame", name: str) -> str | None:
    """Returns one of Spark's local properties of the micro-batch; None with Spark Connect."""
    try:
        value: str | None = df.sparkSession.sparkContext.getLocalProperty(name)
    except Exception:  # noqa: BLE001 -- Connect raises one of several kinds
        return None
    return value


@dataclass
class Written(WriterCommitMessage):
    """A task's answer: its objects, in the order of its rows, a hash of the rows, and the schema
    that they have. ``new`` is the log they are for, if it did not exist when the write was planned.
    """

    log_id: str
    query_id: str | None
    batch_id: int | None
    objects: tuple["DataObject", ...]
    content: str
    schema: "LogSchema | None" = None
    new: "NewLog | None" = None


def plan_write(
    options: WriteOptions, schema: StructType, *, creates_later: bool = False
) -> WritePlan:
    """Checks the columns and opens or creates the log; with ``creates_later`` a log whose types
    come from the rows is created only by the commit (`Answers.log`).
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
        there = _opened_or_new(options, check, rows=schema)
        if isinstance(there, NewLog):
            config = there.settings
            return _plan(options, there, config, config.partitioner, table=check(_types_of(there)))
    log = opened_or_created(options, check, rows=schema)
    if types_of(log.handle) is not None:
        # Names and roundings are those of the newest schema, or each run of the batch is refused.
        log.handle.refresh()
    table = check(types_of(log.handle))
    if table is None and "key" not in canonical(schema).names:
        # The current policy applies, not that of when the log was opened here.
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
    return _plan(options, info, config, info.partitioner, table=table, stamp=tip.version)


def _plan(
    options: WriteOptions,
    log: "NewLog | LogInfo",
    config: "LogConfig",
    partitioner: str,
    *,
    table: TableColumns | None,
    stamp: int = 0,
) -> WritePlan:
    from clog.storage.administration import NewLog

    return WritePlan(
        *(options.location, log.log_id, stamp, log.partitions, partitioner, log.schema, table),
        compression=config.compression,
        object_bytes=config.object_bytes,
        new=log if isinstance(log, NewLog) else None,
        order_header=config.compaction_strategy_header,
    )


def write_task(plan: WritePlan, batches: Iterator["pa.RecordBatch"], task: TaskIds) -> Written:
    """Writes one task's rows, in bounded memory."""
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
        order_header=plan.order_header,
    )
    rows = task.spark_partition
    for batch in filter(len, map(plan.records_of, batches)):
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
        *(tuple(objects.finish()), content.hexdigest()),
        schema=plan.schema,
        new=plan.new,
    )


def written_by_tasks(df: "DataFrame", plan: WritePlan) -> list[Written]:
    """Runs a DataFrame, and returns what its tasks wrote, in the order of Spark's partitions (S44).
    If a task ran twice, one run answers; the objects of the other are swept.
    """
    import pickle

    rows = df.mapInArrow(_answering(plan), _ANSWER).collect()
    by_partition = sorted(rows, key=lambda row: row["spark_partition"])
    return [pickle.loads(row["written"]) for row in by_partition]  # noqa: S301 - ours


def _answering(plan: WritePlan) -> "_Task":
    def run(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pickle

        import pyarrow as pa

        task = TaskIds.current()
        written = pickle.dumps(write_task(plan, batches, task))
        names = pa.schema([("spark_partition", pa.int32()), ("written", pa.binary())])
        yield pa.RecordBatch.from_pylist(
            [{"spark_partition": task.spark_partition, "written": written}], schema=names
        )

    return run


@dataclass(frozen=True, slots=True)
class Answers:
    """What tasks wrote, in the order of Spark's partitions (S44)."""

    written: tuple[Written, ...]

    @classmethod
    def of(cls, messages: Sequence[WriterCommitMessage | None]) -> "Answers":
        """Returns the answers among the messages of all tasks."""
        return cls(tuple(m for m in messages if isinstance(m, Written)))

    @property
    def objects(self) -> "list[DataObject]":
        """The objects of all tasks."""
        return [obj for answer in self.written for obj in answer.objects]

    @property
    def content(self) -> str:
        """One hash of the rows of all tasks."""
        import hashlib

        whole = hashlib.blake2b(digest_size=16)
        for answer in self.written:
            if answer.objects:
                whole.update(bytes.fromhex(answer.content))
        return whole.hexdigest()

    def log(self, location: Location) -> "Log":
        """Returns the log to commit to, which is created if needed, with all objects in it."""
        from clog.storage.commit.appends import check_facts
        from clog.storage.env import SystemClock

        objects, new = self.objects, self.written[0].new
        if new is None:
            return of_id(location, self.written[0].log_id)
        for obj in objects:
            check_facts(obj, new.settings, now_ms=SystemClock().now_ms())
        log = _created(location, new)
        if log.id != new.log_id:
            _move(location, new, log, objects)
        return log


def delete_of_new(location: Location, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Deletes the objects that tasks wrote for a log whose creation was not begun. Never raises."""
    answers = Answers.of(messages)
    new = answers.written[0].new if answers.written else None
    if new is None or len(answers.written) == len(messages):
        return
    with suppress(Exception):  # What is left is swept once a log exists there.
        store = location.store_of(new.log_id)
        for obj in answers.objects:
            store.delete(obj.ref.path)


def opened_or_created(
    options: WriteOptions,
    check: Callable[[LogTypes | None], object] = lambda _: None,
    *,
    rows: StructType | None = None,
    keys: tuple[str, ...] | None = None,
) -> "Log":
    """Returns the log to write to, created on the first write; if several writers create it at the
    same time, the first wins. ``check`` gets the types of a typed log that exists or will be
    created for ``rows`` by the option ``keyColumns``, or else with these ``keys``.
    """
    from clog.storage.administration import NewLog

    there = _opened_or_new(options, check, rows=rows, keys=keys)
    return _created(options.location, there) if isinstance(there, NewLog) else there


def _opened_or_new(
    options: WriteOptions,
    check: Callable[[LogTypes | None], object],
    *,
    rows: StructType | None,
    keys: tuple[str, ...] | None = None,
) -> "Log | NewLog":
    """Returns the log to write to, or the one to be created if there is none."""
    from clog.storage.administration import PARTITIONS_DEFAULT, new_log
    from clog.storage.env import SystemIds

    location = options.location
    try:
        log = opened(location)
    except NotFoundError:
        if options.log_id is not None:
            raise
    else:
        check_log_id(log.handle, options.log_id)
        if options.merge_schema and rows is not None:
            _merge(log, rows)
        _check_types(log, options.key_columns, check)
        return log
    types, keys = None, options.key_columns or keys
    if keys is not None:
        if rows is None:
            raise OptionError(
                f'there is no log at {location.store().url}, and option "keyColumns" creates one'
                " from the columns of a DataFrame; write a DataFrame to it first, without a"
                " transaction"
            )
        types = new_types(rows, keys)
    check(types)
    config = dict(options.config)
    if types is not None:
        config["table.key.columns"] = ",".join(types.key_columns)
    schema = None if types is None else types.schema
    partitions = PARTITIONS_DEFAULT if options.partitions is None else options.partitions
    return new_log(partitions, config, schema, ids=SystemIds())


def _created(location: Location, new: "NewLog") -> "Log":
    """Creates a log and returns it, or the one that another writer created at the same time."""
    from clog.storage.env import SystemClock, SystemIds

    with suppress(AlreadyExistsError):
        new.create(location.store(), clock=SystemClock(), ids=SystemIds())
    log = opened(location)
    if names := new.settings.table_key_columns:
        _check_types(log, names, lambda _: None)
    return log


def _merge(log: "Log", rows: StructType) -> None:
    """Gives a typed log the columns of a DataFrame, whoever else does that meanwhile."""
    from clog.storage.types.evolve import merging

    given = nullable_schema(rows)
    while True:
        head = log.handle.refresh().head
        types, schema = types_of(log.handle), head.log.schema
        changes = {} if schema is None else merging(schema, _key_columns(types), given)
        if not changes:
            return
        try:
            log.evolve(**changes)
        except InvalidInputError:
            if log.handle.refresh().head.log.schema == schema:
                raise


def _key_columns(types: LogTypes | None) -> tuple[str, ...]:
    return () if types is None else types.key_columns


def _check_types(
    log: "Log", key_columns: tuple[str, ...] | None, check: Callable[[LogTypes | None], object]
) -> None:
    types = types_of(log.handle)
    given = None if key_columns is None else [folded(name) for name in key_columns]
    if given is not None and (types is None or given != [folded(n) for n in types.key_columns]):
        has = "is of bytes" if types is None else "names none"
        if types is not None and types.key_columns:
            has = f"has the key columns {', '.join(types.key_columns)}"
        raise OptionError(
            f'option "keyColumns" is {", ".join(key_columns or ())}, but {log.url} {has}; leave the'
            " option out, or write to a new log"
        )
    try:
        check(types)
    except InvalidInputError:
        log.handle.refresh()  # The schema may have evolved since it was opened here.
        if (now := types_of(log.handle)) == types:
            raise
        check(now)


def _check_configs(log: "Log", given: Mapping[str, object]) -> None:
    """Raises if a config is not the log's, and was not when the log was created; logs a warning
    once if it was altered since. Makes one GET if any differs.
    """
    from clog.storage.config.log_config import LogConfig, parse_overrides
    from clog.storage.config.units import config_text

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
        warning = (log.url, name, value, has[name])
        if warning not in _warned:
            _warned.add(warning)
            _LOGGER.warning(
                "option config.%s=%s is ignored: %s was altered to %s, and keeps it",
                *(name, value, log.url, has[name]),
            )


def _at_creation(log: "Log") -> dict[str, str] | None:
    """Returns the configs that the log was created with; None if they are no longer known."""
    from clog.storage.commit.tip import try_read
    from clog.storage.config.log_config import LogConfig
    from clog.storage.format.commits import edit_of

    first = try_read(log.handle.store, 0)
    if first is None:
        return None
    return LogConfig.from_overrides(edit_of(log.handle.store, first.record).config or {}).as_dict()


def _types_of(new: "NewLog") -> LogTypes:
    from clog.storage.types.columns import arrow_schema

    assert new.schema is not None, "a log of bytes is made when the write is planned"
    return LogTypes(arrow_schema(new.schema), new.settings.table_key_columns)


def _move(location: Location, new: "NewLog", log: "Log", objects: "Sequence[DataObject]") -> None:
    """Moves objects into a log that others have created, if it is like the one to be created."""
    info = log.handle.tip.head.log
    theirs = info.partitions, info.partitioner, info.schema
    if theirs != (new.partitions, new.settings.partitioner, new.schema):
        raise InvalidInputError(
            f"{log.url} was created by another writer, with other types or partitions, while the"
            " first rows of this one were being written; nothing was appended; write again"
        )
    written = location.store_of(new.log_id)
    for obj in objects:
        log.handle.store.put(obj.ref.path, written.get(obj.ref.path))
        written.delete(obj.ref.path)


def _partitions(
    plan: WritePlan, batch: "pa.RecordBatch", records: "pa.Table", rows_before: int
) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    """Returns the partition of each row: from the column, else by the key."""
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
            f"a batch has rows for {len(others)} topics other than the log {name!r}; a path has"
            " one log: drop the column topic, or write each topic to its own path"
        )


def _nulls(rows: int) -> "pa.Array":
    import pyarrow as pa

    return pa.nulls(rows)
