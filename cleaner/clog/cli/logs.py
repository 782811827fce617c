"""Commands over a log as a whole: create, alter, and their kin.

`clog create alter upgrade delete-records reset-times`: changing a log.

`clog transactions`: what has not ended in a log, where, since when, and why it waits.
"""

import sys
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
from clog.cli.output import (
    count,
    counted,
    duration,
    print_error,
    print_json,
    print_note,
    print_table,
    say,
    size,
)
from clog.storage.config.definitions import config_text

if TYPE_CHECKING:
    import pyarrow as pa

    from clog.storage import Log, TransactionDescription, TransactionInfo
    from clog.storage.administration import Doomed
    from clog.storage.env import Clock

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be deleted.")]


def delete(
    url: Url,
    *,
    yes: Yes = False,
    dry_run: DryRun = False,
    options: Options = None,
    json: Json = False,
) -> None:
    r"""Delete a log with all its files, permanently.

    Asks first. Stop the log's writers and its cleaner before; those still running fail. Its
    published table is deleted, too; other files at the URL stay. To finish an interrupted
    deletion, run the command again.

    \b
    clog delete ./orders --dry-run
    clog delete ./orders --yes
    """
    from clog.storage.administration import delete_log, doomed
    from clog.storage.store import open_store
    from clog.storage.store.opening import remove_empty_folders

    if not (yes or dry_run or sys.stdin.isatty()):
        raise typer.BadParameter("--yes is needed where nobody can be asked")
    given = storage_options(options)
    # Nothing is created here, so the filesystem need not promise that creates are exclusive.
    store = open_store(url, given, probe=False)
    with waiting_for(url, given):
        found = doomed(store)
    if not dry_run:
        _ask(store.url, found, yes=yes)
        found = delete_log(store)
        remove_empty_folders(url, given)
    if json:
        shown = {"log_id": found.log_id, "files": len(found.files), "size_bytes": found.size_bytes}
        print_json({"url": store.url, "dry_run": dry_run} | shown)
        return
    verb = "would delete" if dry_run else "deleted"
    say(f"{verb} {_what(store.url, found)}")


def _ask(url: str, found: "Doomed", *, yes: bool) -> None:
    if not yes:
        typer.confirm(f"delete {_what(url, found)}?", abort=True, err=True)


def _what(url: str, found: "Doomed") -> str:
    files = f"{counted(len(found.files), 'file')}, {size(found.size_bytes)}"
    if found.log_id is None:
        return f"what is left at {url} of logs that were deleted: {files}"
    return f"the log at {url}: {files}"


Prefix = Annotated[
    str,
    typer.Argument(
        metavar="[PREFIX]",
        help="A folder, or any fsspec URL; default: this folder.",
        show_default=False,
    ),
]
Long = Annotated[
    bool,
    typer.Option("--long", "-l", help="Also open each log, and show what it is."),
]


def ls(
    prefix: Prefix = ".", *, long: Long = False, options: Options = None, json: Json = False
) -> None:
    r"""List the logs below a folder.

    Costs one listing for each folder; with --long also a few requests for each log.

    \b
    clog ls
    clog ls s3://bucket/logs --long
    """
    from clog.storage.env import SystemClock
    from clog.storage.errors import InvalidInputError
    from clog.storage.store.opening import find_logs, folder_exists, redact

    given = storage_options(options)
    with waiting_for(prefix, given):
        found = find_logs(prefix, given)
        urls = found.urls
        is_nowhere = not urls and not folder_exists(prefix, given)
    if is_nowhere:
        raise InvalidInputError(f"there is no folder {prefix}; correct the URL")
    rows = [_row(url, given, SystemClock()) if long else {"url": url} for url in urls]
    if json:
        print_json({"prefix": prefix, "logs": rows})
    elif not rows:
        print_note(f"no logs below {prefix}")
    elif long:
        print_table(_table(rows))
    else:
        for url in urls:
            say(url)
    for folder, why in found.unlisted.items():
        print_error(f"logs below {redact(folder)} are not listed: {why}")
    if found.unlisted:
        raise typer.Exit(1)


def _row(url: str, options: dict[str, object], clock: "Clock") -> dict[str, Any]:
    """Returns what a log is; of one that cannot be opened, why."""
    from clog.storage import Log
    from clog.storage.errors import ClogError

    try:
        found = Log.open(url, options, clock=clock).describe()
    except ClogError as e:
        return {"url": url, "error": str(e)}
    details = found["partition_details"]
    return {
        "url": url,
        "log_id": found["log_id"],
        "version": found["version"],
        "partitions": found["partitions"],
        "cleanup_policy": found["config"]["cleanup.policy"],
        "records": sum(d["records"] for d in details),
        "object_bytes": found["object_bytes"],
        "dirty_ratio": max(d["dirty_ratio"] for d in details),
        "committed_ms": found["committed_ms"],
        "idle_ms": max(0, clock.now_ms() - found["committed_ms"]),
    }


def _table(rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("log", "policy", "partitions", "version", "records", "stored", "dirtiest", "last"):
        side = "left" if name in ("log", "policy") else "right"
        table.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type] # a literal
    for row in rows:
        if "error" in row:
            table.add_row(row["url"], row["error"])
            continue
        table.add_row(
            row["url"],
            row["cleanup_policy"] or "keep all",
            *(count(row[name]) for name in ("partitions", "version", "records")),
            size(row["object_bytes"]),
            f"{row['dirty_ratio']:.2f}",
            f"{duration(row['idle_ms'])} ago",
        )
    return table


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
    from clog.storage.objects.evolution import evolution_to, schema_words

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


Abort = Annotated[
    str | None,
    typer.Option("--abort", metavar="ID", help="End the undecided transactions of this id now."),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="With --abort: also if the log that decides cannot be reached (if it had committed the"
        " transaction, its records are lost here), or if another log of the transaction cannot be"
        " reached because it no longer exists.",
    ),
]


def transactions(
    url: Url,
    *,
    abort: Abort = None,
    force: Force = False,
    options: Options = None,
    json: Json = False,
) -> None:
    r"""List the transactions of a log that have not ended.

    Readers and the cleaner stop before the first record of each. The command first finishes those
    that are decided or past their timeout, as the cleaner does.

    \b
    clog transactions ./orders
    clog transactions ./orders --abort billing
    """
    if force and abort is None:
        raise typer.BadParameter("--force goes with --abort ID")
    from clog.cli.views import transaction_words
    from clog.storage.transactions.several import finish_all

    log = open_log(url, options)
    ended = [] if abort is None else log.abort_transaction(abort, force=force)
    log.handle.refresh()
    waiting = finish_all(log.handle)
    if json:
        left = [{**_shown(w.info), "waits_because": w.reason} for w in waiting]
        print_json(
            {"url": log.url, "ended": [_shown(info) for info in ended], "transactions": left}
        )
        return
    for info in ended:
        say(f"ended transaction {info.number} of {info.id!r}, which was {info.state}")
    for w in waiting:
        say(f"{transaction_words(_shown(w.info))}; it waits: {w.reason}")
    if not (ended or waiting):
        say("every transaction has ended")


def _shown(info: "TransactionInfo") -> "TransactionDescription":
    return {
        "id": info.id,
        "epoch": info.epoch,
        "number": info.number,
        "state": info.state,
        "started_ms": info.started_ms,
        "timeout_ms": info.timeout_ms,
        "home": info.home,
        "first_offsets": {str(p): offset for p, offset in info.first_offsets.items()},
    }
