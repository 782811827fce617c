"""`clog copy`: a new log with the records of another one. `clog convert`: the records of a log of
bytes, decoded into a typed log.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clog.cli.options import (
    CONFIGS,
    URL,
    Given,
    argument,
    command,
    configs,
    option,
    partition_count,
    record_count,
    schema_file,
    waiting_for,
)
from clog.cli.output import counted, counting, note_left_out, print_note

if TYPE_CHECKING:
    import pyarrow as pa

    from clog.jobs import Decode
    from clog.storage import Log

BATCH_BYTES = 64 << 20
"""Each commit has records of this many bytes, exceeded by at most one batch of the source."""
_WHILE_COPYING: Mapping[str, str] = {
    "cleanup.policy": "",
    "max.message.bytes": str((1 << 31) - 1),
    "message.timestamp.after.max.ms": "unlimited",
    "message.timestamp.before.max.ms": "unlimited",
    "message.timestamp.type": "CreateTime",
}
"""The configs of a copy until it is complete: it takes any record that a log can hold, with its
time, and cleaners leave it alone.
"""
_LETTERS_KEPT: Mapping[str, str] = {"cleanup.policy": ""}


@command(writes=True)
def copy(
    url: str = URL,
    target: str = argument("TARGET", "URL of the new log."),
    *,
    partitions: int | None = option(
        "--partitions N",
        "Number of partitions of the copy; records are placed by their keys. Default: that of the"
        " source, where each record keeps its partition.",
        partition_count,
    ),
    config: list[str] | None = CONFIGS,
    given: Given,
    target_options: list[str] | None = option(
        "--target-option KEY=VALUE", "Like --option, for the target; default: those of the source."
    ),
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
    own = configs(config)
    source = given.open(url, to_read=True)
    batches = _planned(source)  # First: the target is made for what is read.
    wanted = {**source.handle.tip.head.config, **own}
    made = _made_for(
        source,
        target,
        partitions or source.partitions,
        {**wanted, **_WHILE_COPYING},
        given._replace(options=target_options or given.options),
    )
    note_left_out(source)
    done = _copied(batches, source, made, by_key=partitions is not None or "partitioner" in own)
    made.alter({name: wanted.get(name) for name in _WHILE_COPYING})
    given.emit(
        {"url": source.url, "target": made.url, "records": done},
        f"copied {counted(done, 'record')} of {source.url} to {made.url}",
    )


def _made_for(
    source: "Log", url: str, partitions: int, config: Mapping[str, str], given: Given
) -> "Log":
    """Creates the log of a copy, with the names that the source has."""
    from clog.storage.administration import new_log
    from clog.storage.env import SystemClock, SystemIds
    from clog.storage.store import store_at
    from clog.storage.types.columns import arrow_schema

    ids, head = SystemIds(), source.handle.tip.head
    schema = arrow_schema(head.log.schema)
    with waiting_for(url, given.storage):
        store = store_at(url, given.storage, single_writer=given.single_writer)
        new = new_log(partitions, config, schema, ids=ids, copied=head)
        new.create(store, clock=SystemClock(), ids=ids)
    return given.open(url)


def _copied(
    batches: "Iterator[pa.RecordBatch]", source: "Log", made: "Log", *, by_key: bool
) -> int:
    """Copies all records and returns their number; says what to do if it is interrupted."""
    done, total = 0, record_count(source)
    try:
        with counting("copying", total) as more:
            for records in _gathered(batches):
                _append(made, records, by_key=by_key)
                done += records.num_rows
                more(records.num_rows)
    except BaseException:
        message = (
            f"{made.url} has {counted(done, 'record')} of {total:,}: delete it, and copy again"
        )
        print_note(message)
        raise
    return done


def _planned(source: "Log") -> "Iterator[pa.RecordBatch]":
    """Returns the records, without late ones to be dropped: a copy could not recognise them."""
    from clog.storage.read.ordered import late_keys, without_keys

    batches, handle = source.read(), source.handle
    late = late_keys(handle.store, handle.manifest())
    return (
        without_keys(batch, late.get(batch.column("partition")[0].as_py()))
        if batch.num_rows
        else batch
        for batch in batches
    )


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


@command(writes=True)
def convert(
    url: str = URL,
    target: str = argument("TARGET", "The typed log."),
    *,
    schema: Path | None = option(
        "--schema FILE",
        "A JSON file with the types of keys and values; creates the target if it does not exist.",
        Path,
    ),
    avro_schema: list[str] | None = option(
        "--avro-schema [ID=]FILE",
        "Values are Avro with the schema in this file. With ID, they begin with Confluent's"
        " header, and each id needs its file. Default: values are JSON.",
    ),
    key_avro_schema: list[str] | None = option(
        "--key-avro-schema [ID=]FILE",
        "The same for keys. Default: text and binary keys are unchanged, other keys are JSON.",
    ),
    dead_letters: str | None = option(
        "--dead-letters URL",
        "A log for records that do not fit, created if it does not exist. Default: such a record"
        " is an error.",
    ),
    id: str | None = option(
        "--id ID",
        "Name under which the target records its progress; default: derived from the source.",
    ),
    partitions: int | None = option(
        "--partitions N",
        "Number of partitions of a new target. Default: that of the source.",
        partition_count,
    ),
    config: list[str] | None = CONFIGS,
    given: Given,
) -> None:
    r"""Copy the records of a log of bytes into a typed log.

    Keys and values are decoded, from JSON or Avro, and become columns; tombstones are kept. A
    record that does not fit goes unchanged to the dead letters, with the reason in its headers. The
    target remembers how far the copy has come: an interrupted run continues, and a later one copies
    what is new. Records are placed by their keys, and get new offsets.

    \b
    clog convert ./trips-json ./trips --schema trips.json --dead-letters ./dead
    clog convert ./orders ./typed --schema orders.json --avro-schema 7=orders.avsc
    """
    from clog.jobs import convert as run

    wanted = schema_file(schema)
    own = configs(config)
    files = {"values": avro_schema, "keys": key_avro_schema}
    decoders = {name: _avro(paths) for name, paths in files.items() if paths}
    source = given.open(url, to_read=True)
    if wanted is None:
        made = given.open(target)
    else:
        made = _made(
            given,
            target,
            partitions or source.partitions,
            {**source.handle.tip.head.config, **own},
            wanted,
        )
    letters = None if dead_letters is None else _made(given, dead_letters, 1, _LETTERS_KEPT)
    note_left_out(source)
    with counting("converting", record_count(source)) as more:
        done = run(source, made, **decoders, dead_letters=letters, id=id, more=more)
    message = f"converted {counted(done.records, 'record')} of {source.url} into {made.url}"
    if letters is not None:
        message += f"; {counted(done.dead_letters, 'dead letter')} in {letters.url}"
    given.emit({"url": source.url, "target": made.url, **asdict(done)}, message)


def _made(
    given: Given,
    url: str,
    partitions: int,
    config: Mapping[str, str],
    schema: "pa.Schema | None" = None,
) -> "Log":
    """Returns a log, created if there is none; raises if an existing one has another schema."""
    from clog.storage import AlreadyExistsError, InvalidInputError

    try:
        return given.create(url, partitions, config, schema=schema)
    except AlreadyExistsError:
        found = given.open(url)
    if schema is not None and found.schema != schema:
        raise InvalidInputError(
            f"{found.url} has a schema other than the file's; leave out --schema to use the"
            " log's, or change the log with clog alter --schema"
        )
    return found


def _avro(files: list[str]) -> "Decode":
    from clog.jobs import avro_values

    by_id: dict[int, Any] = {}
    for named in files:
        number, sign, path = named.partition("=")
        if not (sign and number.isascii() and number.isdigit()):
            if len(files) > 1:
                raise click.BadParameter("give one Avro schema, or each as ID=FILE")
            return avro_values(_json_of(named))
        by_id[int(number)] = _json_of(path)
    return avro_values(by_id=by_id)


def _json_of(path: str) -> Any:
    try:
        return json.loads(Path(path).read_text())
    except (OSError, ValueError) as e:
        raise click.BadParameter(f"{path} cannot be read as JSON: {e}") from None
