"""`clog copy`: a new log with the records of another one; with ``--decode``, a typed log with those
of a log of bytes, as columns.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from clog.cli.options import (
    CONFIGS,
    URL,
    Given,
    argument,
    choice,
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


_OF_DECODING = (
    "--schema, --avro-schema, --key-avro-schema, --dead-letters and --id need --decode, which says"
    " how values are decoded"
)


_PARTITIONS = option(
    "--partitions N",
    "Number of partitions of the copy; records are placed by their keys. Default: that of the"
    " source, where each record keeps its partition.",
    partition_count,
)
_SCHEMA = option(
    "--schema FILE",
    "With --decode: a JSON file with the types of keys and values; creates the target if it"
    " does not exist.",
    Path,
)
_AVRO_SCHEMA = option(
    "--avro-schema [ID=]FILE",
    "With --decode avro: the schema of values. With ID, they begin with Confluent's header, and"
    " each id needs its file.",
)
_DEAD_LETTERS = option(
    "--dead-letters URL",
    "A log for records that do not fit, created if it does not exist. Default: such a record"
    " is an error.",
)


@command
def copy(
    url: str = URL,
    target: str = argument("TARGET", "URL of the new log; with --decode, it may exist."),
    *,
    partitions: int | None = _PARTITIONS,
    config: list[str] | None = CONFIGS,
    target_options: list[str] | None = option(
        "--target-option KEY=VALUE", "Like --option, for the target; default: those of the source."
    ),
    decode: str | None = option(
        "--decode json|avro",
        "Decode a log of bytes into a typed log: keys and values become columns.",
        choice("json", "avro"),
    ),
    schema: Path | None = _SCHEMA,
    avro_schema: list[str] | None = _AVRO_SCHEMA,
    key_avro_schema: list[str] | None = option(
        "--key-avro-schema [ID=]FILE",
        "The same for keys. Default: text and binary keys are unchanged, other keys are JSON.",
    ),
    dead_letters: str | None = _DEAD_LETTERS,
    id: str | None = option(
        "--id ID",
        "With --decode: name under which the target records its progress; default: derived from"
        " the source.",
    ),
    given: Given,
) -> None:
    r"""Copy a log into a new one, or decode it into a typed one.

    Kept: every record with its key, value, headers and timestamp, in its partition and order; the
    configs and the schema. Not kept: offsets (the copy has no gaps), the log's id, versions,
    producers, streams and delete horizons. The copy is not clean, and its tombstones wait for
    delete.retention.ms again. An interrupted copy is deleted; run the command again.

    With --decode, records are placed by their keys. One that does not fit goes unchanged to the
    dead letters, with the reason in its headers. The target remembers how far the copy has come: an
    interrupted run continues, and a later one copies what is new.

    \b
    clog copy ./orders ./orders-2
    clog copy ./orders s3://bucket/orders --partitions 16
    clog copy ./orders ./by-murmur2 --config partitioner=murmur2
    clog copy ./trips-json ./trips --decode json --schema trips.json
    clog copy ./orders ./typed --decode avro --avro-schema 7=orders.avsc
    """
    own, wanted = configs(config), schema_file(schema)
    files = {"values": avro_schema, "keys": key_avro_schema}
    if decode is None and (schema or dead_letters or id or any(files.values())):
        raise click.BadParameter(_OF_DECODING)
    if decode is not None and (decode == "avro") != bool(avro_schema):
        raise click.BadParameter("--decode avro and --avro-schema need each other")
    decoders = {name: _avro(paths) for name, paths in files.items() if paths}
    at_target = given._replace(options=target_options or given.options)
    source = given.open(url, to_read=True)
    if decode is not None:
        new = _New(target, partitions or source.partitions, own, wanted, dead_letters)
        _decoded(source, new, {**decoders, "id": id}, given, at_target)
        return
    batches = _planned(source)  # First: the target is made for what is read.
    config_made = {**source.handle.tip.head.config, **own}
    made = _made_for(
        *(source, target, partitions or source.partitions),
        {**config_made, **_WHILE_COPYING},
        at_target,
    )
    note_left_out(source)
    by_key = partitions is not None or "partitioner" in own
    done = _copied(batches, source, made, by_key=by_key)
    made.alter({name: config_made.get(name) for name in _WHILE_COPYING})
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


class _New(NamedTuple):
    """A typed log as it was asked for, without a schema if it exists; where its dead letters go."""

    url: str
    partitions: int
    config: Mapping[str, str]
    schema: "pa.Schema | None"
    dead_letters: str | None


def _decoded(
    source: "Log", new: _New, how: Mapping[str, Any], given: Given, at_target: Given
) -> None:
    """Copies the records of a log of bytes into a typed log, and prints how many."""
    from clog.jobs import convert

    if new.schema is None:
        made = at_target.open(new.url)
    else:
        config = {**source.handle.tip.head.config, **new.config}
        made = _made(at_target, new.url, new.partitions, config, new.schema)
    url, letters = new.dead_letters, None
    if url is not None:
        letters = _made(at_target, url, 1, _LETTERS_KEPT)
    note_left_out(source)
    with counting("converting", record_count(source)) as more:
        done = convert(source, made, **how, dead_letters=letters, more=more)
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
