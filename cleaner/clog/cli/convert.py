"""`clog convert`: a log of bytes, into a typed one."""

import json as json_module
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    schema_file,
    storage_options,
)
from clog.cli.output import counted, print_json, say
from clog.cli.views import counting, tell_left_out

if TYPE_CHECKING:
    import pyarrow as pa

    from clog.jobs.typing import Decode
    from clog.storage import Log

Target = Annotated[str, typer.Argument(metavar="TARGET", help="The typed log.", show_default=False)]
Schema = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A JSON file with the types of keys and values; makes the target where there is none.",
        show_default=False,
    ),
]
AvroSchema = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[ID=]FILE",
        help="Values are Avro of the schema in this file. With ID they begin with Confluent's"
        " header, and each id needs its file. Default: values are JSON.",
        show_default=False,
    ),
]
KeyAvroSchema = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[ID=]FILE",
        help="The same of keys. Default: text and binary are what they are, other keys JSON.",
        show_default=False,
    ),
]
DeadLetters = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="A log for records that do not fit, made where there is none. Default: such a record"
        " is an error.",
        show_default=False,
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="ID",
        help="Under which the target keeps how far it has come; default: one by the source.",
        show_default=False,
    ),
]
Partitions = Annotated[
    int | None,
    typer.Option(
        parser=partition_count,
        metavar="N",
        help="Number of partitions of a target that is made. Default: that of the source.",
        show_default=False,
    ),
]
_LETTERS_KEPT: Mapping[str, str] = {"cleanup.policy": ""}


def convert(
    url: Url,
    target: Target,
    *,
    schema: Schema = None,
    avro_schema: AvroSchema = None,
    key_avro_schema: KeyAvroSchema = None,
    dead_letters: DeadLetters = None,
    id: Name = None,
    partitions: Partitions = None,
    config: Configs = None,
    options: Options = None,
    single_writer: SingleWriter = False,
    json: Json = False,
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

    wanted_schema = None if schema is None else schema_file(schema)
    overrides = configs(config)
    given = {"values": avro_schema, "keys": key_avro_schema}
    decoders = {name: _avro(files) for name, files in given.items() if files}
    source = open_log(url, options)
    where = {"storage_options": storage_options(options), "single_writer": single_writer}
    if wanted_schema is None:
        made = open_log(target, options, single_writer=single_writer)
    else:
        count = partitions or source.partitions
        wanted = {**source.handle.tip.head.config, **overrides}
        made = _typed(target, wanted_schema, count, wanted, where)
    letters = None if dead_letters is None else _letters(dead_letters, where)
    total = sum(d["records"] for d in source.describe()["partition_details"])
    tell_left_out(source)
    with counting("converting", total) as more:
        done = run(source, made, **decoders, dead_letters=letters, id=id, more=more)
    if json:
        print_json({"url": source.url, "target": made.url, **asdict(done)})
        return
    told = f"converted {counted(done.records, 'record')} of {source.url} into {made.url}"
    if letters is not None:
        told += f"; {counted(done.dead_letters, 'dead letter')} in {letters.url}"
    say(told)


def _typed(
    url: str,
    schema: "pa.Schema",
    partitions: int,
    config: Mapping[str, str],
    where: Mapping[str, Any],
) -> "Log":
    from clog.storage import AlreadyExistsError, InvalidInputError, Log

    try:
        return Log.create(url, partitions, config, schema=schema, **where)
    except AlreadyExistsError:
        found = Log.open(url, **where)
    if found.schema != schema:
        raise InvalidInputError(
            f"{found.url} has another schema than the file; leave --schema out to use it, or bring"
            " the log to it with clog alter --schema"
        )
    return found


def _letters(url: str, where: Mapping[str, Any]) -> "Log":
    from clog.storage import AlreadyExistsError, Log

    try:
        return Log.create(url, 1, _LETTERS_KEPT, **where)
    except AlreadyExistsError:
        return Log.open(url, **where)


def _avro(files: list[str]) -> "Decode":
    from clog.jobs import avro_values

    by_id: dict[int, Any] = {}
    for given in files:
        number, sign, path = given.partition("=")
        if not (sign and number.isascii() and number.isdigit()):
            if len(files) > 1:
                raise typer.BadParameter("give one schema of Avro, or each as ID=FILE")
            return avro_values(_json_of(given))
        by_id[int(number)] = _json_of(path)
    return avro_values(by_id=by_id)


def _json_of(path: str) -> Any:
    try:
        return json_module.loads(Path(path).read_text())
    except (OSError, ValueError) as e:
        raise typer.BadParameter(f"{path} cannot be read as JSON: {e}") from None
