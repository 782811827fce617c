"""`clog copy`: a new log with the records of another."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from clog.cli.arguments import (
    Configs,
    Json,
    Options,
    SingleWriter,
    Url,
    configs,
    open_log,
    partition_count,
    storage_options,
)
from clog.cli.output import counted, print_json, print_note, say
from clog.cli.views import counting, tell_left_out

if TYPE_CHECKING:
    import pyarrow as pa

    from clog.storage import Log

BATCH_BYTES = 64 << 20
"""Records of so many bytes, or more by one batch of the source, make one commit."""

Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="URL of the new log.", show_default=False)
]
Partitions = Annotated[
    int | None,
    typer.Option(
        parser=partition_count,
        metavar="N",
        help="Number of partitions of the copy: records are placed by their keys. Default: that of"
        " the source, each record in the partition it was in.",
        show_default=False,
    ),
]
TargetOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--target-option",
        metavar="KEY=VALUE",
        help="As --option, for the target; default: those of the source.",
        show_default=False,
    ),
]


def copy(
    url: Url,
    target: Target,
    *,
    partitions: Partitions = None,
    config: Configs = None,
    options: Options = None,
    target_options: TargetOptions = None,
    single_writer: SingleWriter = False,
    json: Json = False,
) -> None:
    r"""Copy the records of a log into a new one.

    Kept: every record with its key, value, headers and timestamp, in its partition and order; the
    configs and the schema. Not kept: offsets (the copy has no gaps), the log's id, versions,
    producers, streams and delete horizons. The copy is not clean, and its tombstones wait for
    delete.retention.ms again. An interrupted copy is deleted; run the command again.

    \b
    clog copy ./orders ./orders-2
    clog copy ./orders s3://bucket/orders --partitions 16
    clog copy ./orders ./by-murmur2 --config partitioner=murmur2
    """
    from clog.storage import Log

    given = configs(config)
    source = open_log(url, options)
    wanted = {**source.handle.tip.head.config, **given}
    by_key = partitions is not None or "partitioner" in given
    made = Log.create(
        target,
        partitions=partitions or source.partitions,
        config={**wanted, **_WHILE_COPYING},
        schema=source.schema,
        storage_options=storage_options(target_options or options),
        single_writer=single_writer,
    )
    tell_left_out(source)
    done = _copied(source, made, by_key=by_key)
    made.alter({name: wanted.get(name) for name in _WHILE_COPYING})
    if json:
        print_json({"url": source.url, "target": made.url, "records": done})
    else:
        say(f"copied {counted(done, 'record')} of {source.url} to {made.url}")


_WHILE_COPYING: Mapping[str, str] = {
    "cleanup.policy": "",
    "max.message.bytes": str((1 << 31) - 1),
    "message.timestamp.after.max.ms": "unlimited",
    "message.timestamp.before.max.ms": "unlimited",
    "message.timestamp.type": "CreateTime",
}
"""What a copy has until it is whole: it takes any record that a log can hold, with its time, and a
cleaner that finds it leaves it alone.
"""


def _copied(source: "Log", made: "Log", *, by_key: bool) -> int:
    """Copies all records and returns their number; says what to do where that is interrupted."""
    done, total = 0, sum(d["records"] for d in source.describe()["partition_details"])
    try:
        with counting("copying", total) as more:
            for records in _gathered(source.read()):
                _append(made, records, by_key=by_key)
                done += records.num_rows
                more(records.num_rows)
    except BaseException:
        told = f"{made.url} has {counted(done, 'record')} of {total:,}: delete it, and copy again"
        print_note(told)
        raise
    return done


def _gathered(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.Table]":
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for batch in batches:
        waiting.append(batch)
        waiting_bytes += batch.nbytes
        if waiting_bytes >= BATCH_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, waiting_bytes = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _append(log: "Log", records: "pa.Table", *, by_key: bool) -> None:
    parts = None if by_key else records.column("partition").to_numpy()
    log.append(records.drop_columns(["partition", "offset"]), partition=parts)
