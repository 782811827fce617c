"""`clog create alter upgrade delete-records reset-times`: changing a log."""

from collections.abc import Iterable
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
    parse_offsets,
    partition_count,
    schema_file,
    storage_options,
    usage_errors,
    waiting_for,
)
from clog.cli.output import count, counted, print_json, say
from clog.storage.config.units import config_text

if TYPE_CHECKING:
    import pyarrow as pa

    from clog.storage import Log

Schema = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="A JSON file with the types of keys and values.", show_default=False
    ),
]
_DONE = {"add": "added", "widen": "widened", "relax": "may be null now:"}


def create(
    url: Url,
    *,
    partitions: Annotated[
        int,
        typer.Option(
            parser=partition_count,
            metavar="N",
            help="Number of partitions; cannot be changed later.",
        ),
    ] = 4,
    config: Configs = None,
    schema: Schema = None,
    options: Options = None,
    single_writer: SingleWriter = False,
    json: Json = False,
) -> None:
    r"""Create a log.

    The log keeps the latest value of each key, unless cleanup.policy says otherwise. With a schema
    its keys and values have types, which clog describe --json shows as the file has them:
    {"key": "string", "value": {"city": "string", "minutes": "int32 not null", "tags": ["string"]}}.

    \b
    clog create ./orders
    clog create ./events -c cleanup.policy=delete -c retention.ms=1d
    clog create s3://bucket/orders --partitions 8 -o anon=false
    clog create ./trips --schema trips.json
    """
    from clog.storage import Log

    given, types = storage_options(options), None if schema is None else schema_file(schema)
    with waiting_for(url, given):
        log = Log.create(
            url, partitions, configs(config), given, schema=types, single_writer=single_writer
        )
    if json:
        print_json({"url": log.url, "partitions": log.partitions, "config": log.config})
        return
    say(f"created {log.url} with {counted(partitions, 'partition')}")


def alter(
    url: Url,
    *,
    config: Configs = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Reset this config to its default.", show_default=False),
    ] = None,
    schema: Schema = None,
    options: Options = None,
    single_writer: SingleWriter = False,
    json: Json = False,
) -> None:
    r"""Change configs of a log, or the schema of a typed one.

    Configs take effect with the next append, pass or read. Give the whole schema: it may add
    fields that can be null, widen numbers, and drop NOT NULL.

    \b
    clog alter ./orders -c min.cleanable.dirty.ratio=0.2
    clog alter ./orders --delete-config min.cleanable.dirty.ratio
    clog alter ./trips --schema trips.json
    """
    changes: dict[str, Any] = {**configs(config), **_to_delete(delete_config or ())}
    wanted = None if schema is None else schema_file(schema)
    if not changes and wanted is None:
        raise typer.BadParameter(
            "nothing to change; give --config NAME=VALUE, --delete-config or --schema"
        )
    log = open_log(url, options, single_writer=single_writer)
    if wanted is not None:
        _evolve(log, wanted, json=json and not changes)
        if not changes:
            return
    before = log.config
    after = log.alter(changes)
    changed = {name: [before[name], after[name]] for name in after if before[name] != after[name]}
    if json:
        print_json({"url": log.url, "changed": changed, "config": after})
        return
    for name, (old, new) in changed.items():
        say(f"{name}: {config_text(name, old)} -> {config_text(name, new)}")
    if not changed:
        say("nothing changed: the configs had these values already")


def _to_delete(names: Iterable[str]) -> dict[str, None]:
    """Returns configs to reset.

    Raises:
        typer.BadParameter: one is no config.
    """
    from clog.storage.config.log_config import check_known

    with usage_errors():
        for name in names:
            check_known(name)
    return dict.fromkeys(names)


def _evolve(log: "Log", wanted: "pa.Schema", *, json: bool) -> None:
    """Evolves a log to a schema, and says what changed."""
    from clog.storage.objects.schema_words import evolution_to, schema_words

    changes = evolution_to(log.handle.refresh().head.log.schema, wanted)
    if changes:
        log.evolve(**changes)
    named = {name: list(found) for name, found in changes.items()}
    if json:
        words = schema_words(log.handle.tip.head.log.schema)
        print_json({"url": log.url, "evolved": named, "schema": words})
        return
    for name, paths in named.items():
        say(f"{_DONE[name]} {', '.join(paths)}")
    if not changes:
        say("nothing changed: the log has this schema already")


def upgrade(
    url: Url,
    *,
    feature: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Add this feature; repeatable.", show_default=False),
    ] = None,
    options: Options = None,
    single_writer: SingleWriter = False,
    json: Json = False,
) -> None:
    r"""List the features of a log, or add some, permanently.

    A release of clog that does not know a feature refuses to write a log that has it, and, if the
    list says "readers and writers", to read it. First upgrade every process that uses the log.

    \b
    clog upgrade ./orders
    clog upgrade ./orders --feature dead-rows
    """
    from clog.storage.administration import addable

    with usage_errors():
        for name in feature or ():
            addable(name)
    log = open_log(url, options, single_writer=single_writer)
    before = {f.name for f in log.upgrade() if f.state == "on"}
    features = log.upgrade(feature or ())
    added = [f.name for f in features if f.state == "on" and f.name not in before]
    if json:
        print_json({"url": log.url, "added": added, "features": [asdict(f) for f in features]})
        return
    if feature:
        say(f"added {', '.join(added)}" if added else "nothing to add: the log has all of them")
        return
    for f in features:
        who = "readers and writers" if f.readers else "writers"
        say(f"{f.name:<24}{f.state:<10}  {f'{f.summary} ({who})' if f.summary else ''}".rstrip())


def reset_times(
    url: Url, *, options: Options = None, single_writer: SingleWriter = False, json: Json = False
) -> None:
    r"""Correct times that a wrong clock has left.

    The cleaner refuses a log whose newest commit is ahead of its clock. This gives such commits,
    and such records under message.timestamp.type=LogAppendTime, the time of the repair; other
    timestamps stay. Correct the clock first, and stop every process that uses the log.

    \b
    clog reset-times ./orders
    """
    from clog.storage.administration import reset_times as set_back

    log = open_log(url, options, single_writer=single_writer)
    ahead_ms = set_back(log.handle)
    if json:
        print_json({"url": log.url, "ahead_ms": ahead_ms})
        return
    say(f"set back by {count(ahead_ms)} ms" if ahead_ms else "nothing to do: no time is ahead")


def delete_records(
    url: Url,
    before: Annotated[
        list[str],
        typer.Argument(
            metavar="PARTITION:OFFSET",
            help="The first offset to keep in a partition; end (or -1) deletes all records in it.",
            show_default=False,
        ),
    ],
    *,
    options: Options = None,
    single_writer: SingleWriter = False,
    json: Json = False,
) -> None:
    r"""Delete the records below an offset, permanently.

    No later read sees them. Either all named partitions change, or none.

    \b
    clog delete-records ./orders 0:25
    clog delete-records ./orders 0:end 1:100
    """
    wanted = parse_offsets(before)
    log: Log = open_log(url, options, single_writer=single_writer)
    log_starts = log.delete_records(wanted)
    if json:
        rows = [{"partition": p, "start_offset": start} for p, start in log_starts.items()]
        print_json({"url": log.url, "partitions": rows})
        return
    for p, start in log_starts.items():
        say(f"partition {p} starts at offset {count(start)}")
