"""Commands on whole logs: `clog create alter upgrade reset-times delete-records` change a log,
`clog ls` lists logs, `clog delete` deletes one, `clog publish` shows its table to other engines.
"""

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clog.cli.clean import DRY_DELETE
from clog.cli.options import (
    CONFIGS,
    URL,
    Code,
    Given,
    argument,
    choice,
    command,
    config_names,
    configs,
    flag,
    option,
    parse_offsets,
    partition_count,
    schema_file,
    usage_errors,
    waiting_for,
)
from clog.cli.output import (
    count,
    counted,
    print_error,
    print_note,
    print_table,
    say,
    size,
    table,
)
from clog.storage.config.units import duration
from clog.storage.view_formats import FORMAT_NAMES, FORMATS

if TYPE_CHECKING:
    import pyarrow as pa

    from clog.storage import Clock, Log, WithdrawResult
    from clog.storage.administration import Doomed

_SCHEMA = option("--schema FILE", "A JSON file with the types of keys and values.", Path)
_COLUMNS = ("log", "policy", "partitions", "version", "records", "stored", "dirtiest", "last")
_DONE = {"add": "added", "widen": "widened", "relax": "nullable now:"}


@command()
def delete(
    url: str = URL,
    *,
    yes: bool = flag("--yes -y", "Do not ask for confirmation."),
    dry_run: bool = DRY_DELETE,
    given: Given,
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
        raise click.BadParameter("--yes is required when there is no terminal to ask on")
    # Nothing is created here, so the filesystem need not have exclusive creates.
    store = open_store(url, given.storage, probe=False)
    with waiting_for(url, given.storage):
        found = doomed(store)
    if not dry_run:
        if not yes:
            click.confirm(f"delete {_what(store.url, found)}?", abort=True, err=True)
        found = delete_log(store)
        remove_empty_folders(url, given.storage)
    shown = {"log_id": found.log_id, "files": len(found.files), "size_bytes": found.size_bytes}
    verb = "would delete" if dry_run else "deleted"
    given.emit({"url": store.url, "dry_run": dry_run} | shown, f"{verb} {_what(store.url, found)}")


def _what(url: str, found: "Doomed") -> str:
    files = f"{counted(len(found.files), 'file')}, {size(found.size_bytes)}"
    if found.log_id is None:
        return f"the remains of deleted logs at {url}: {files}"
    return f"the log at {url}: {files}"


@command()
def ls(
    prefix: str = argument(
        "[PREFIX]", "A folder, or any fsspec URL; default: this folder.", default="."
    ),
    *,
    long: bool = flag("--long -l", "Also open each log and show its details."),
    given: Given,
) -> Code | None:
    r"""List the logs below a folder.

    Costs one listing for each folder; with --long also a few requests for each log.

    \b
    clog ls
    clog ls s3://bucket/logs --long
    """
    from clog.storage.env import SystemClock
    from clog.storage.errors import InvalidInputError
    from clog.storage.store.opening import find_logs, folder_exists, redact

    with waiting_for(prefix, given.storage):
        found = find_logs(prefix, given.storage)
        urls = found.urls
        is_nowhere = not urls and not folder_exists(prefix, given.storage)
    if is_nowhere:
        raise InvalidInputError(f"there is no folder {prefix}; correct the URL")
    clock = SystemClock()
    rows = [_found(url, given.storage, clock) if long else {"url": url} for url in urls]

    def draw() -> None:
        if not rows:
            print_note(f"no logs below {prefix}")
        elif long:
            print_table(table(_COLUMNS, map(_row, rows), right=_COLUMNS[2:]))
        else:
            for url in urls:
                say(url)

    given.emit({"prefix": prefix, "logs": rows}, draw)
    for folder, why in found.unlisted.items():
        print_error(f"logs below {redact(folder)} cannot be listed: {why}")
    return Code.FAILED if found.unlisted else None


def _found(url: str, options: dict[str, object], clock: "Clock") -> dict[str, Any]:
    """Returns a log's row, or the error if it cannot be opened."""
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


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    if "error" in found:
        return found["url"], found["error"]
    return (
        found["url"],
        found["cleanup_policy"] or "keep all",
        *(count(found[name]) for name in ("partitions", "version", "records")),
        size(found["object_bytes"]),
        f"{found['dirty_ratio']:.2f}",
        f"{duration(found['idle_ms'])} ago",
    )


@command(writes=True)
def create(
    url: str = URL,
    *,
    partitions: int = option(
        "--partitions N",
        "Number of partitions; cannot be changed later.",
        partition_count,
        default=4,
    ),
    config: list[str] | None = CONFIGS,
    schema: Path | None = _SCHEMA,
    feature: list[str] | None = option(
        "--feature NAME",
        "Create the log with this feature (clog upgrade lists them); may be repeated.",
    ),
    given: Given,
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
    from clog.storage.administration import addable

    with usage_errors():
        for name in feature or ():
            addable(name)
    wanted = schema_file(schema)
    log = given.create(url, partitions, configs(config), schema=wanted, features=feature or ())
    given.emit(
        {"url": log.url, "partitions": log.partitions, "config": log.config},
        f"created {log.url} with {counted(partitions, 'partition')}",
    )


@command(writes=True)
def alter(
    url: str = URL,
    *,
    config: list[str] | None = CONFIGS,
    delete_config: list[str] | None = option(
        "--delete-config NAME", "Reset this config to its default.", complete=config_names
    ),
    schema: Path | None = _SCHEMA,
    given: Given,
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
    wanted = schema_file(schema)
    if not changes and wanted is None:
        raise click.BadParameter(
            "nothing to change; give --config NAME=VALUE, --delete-config or --schema"
        )
    log = given.open(url)
    if wanted is not None:
        _evolve(log, wanted, given._replace(json=given.json and not changes))
        if not changes:
            return
    before = log.config
    after = log.alter(changes)
    changed = {name: [before[name], after[name]] for name in after if before[name] != after[name]}
    given.emit(
        {"url": log.url, "changed": changed, "config": after},
        [_change(name, *both) for name, both in changed.items()]
        or "nothing changed: the configs already had these values",
    )


def _change(name: str, before: str, after: str) -> str:
    from clog.storage.config.units import config_text

    return f"{name}: {config_text(name, before)} -> {config_text(name, after)}"


def _to_delete(names: Iterable[str]) -> dict[str, None]:
    """Returns configs to reset."""
    from clog.storage.config.log_config import check_known

    with usage_errors():
        for name in names:
            check_known(name)
    return dict.fromkeys(names)


def _evolve(log: "Log", wanted: "pa.Schema", given: Given) -> None:
    """Evolves a log to a schema, and prints what changed."""
    from clog.storage.types.evolve import evolution_to, schema_words

    changes = evolution_to(log.handle.refresh().head.log.schema, wanted)
    if changes:
        log.evolve(**changes)
    named = {name: list(found) for name, found in changes.items()}
    words = schema_words(log.handle.tip.head.log.schema)
    given.emit(
        {"url": log.url, "evolved": named, "schema": words},
        [f"{_DONE[name]} {', '.join(paths)}" for name, paths in named.items()]
        or "nothing changed: the log already has this schema",
    )


@command(writes=True)
def upgrade(
    url: str = URL,
    *,
    feature: list[str] | None = option("--feature NAME", "Add this feature; may be repeated."),
    given: Given,
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
    log = given.open(url)
    before = {f.name for f in log.upgrade() if f.state == "on"}
    features = log.upgrade(feature or ())
    added = [f.name for f in features if f.state == "on" and f.name not in before]
    lines = [
        f"{f.name:<24}{f.state:<10}  "
        + (
            f"{f.summary} ({'readers and writers' if f.readers else 'writers'})"
            if f.summary
            else ""
        )
        for f in features
    ]
    if feature:
        lines = [
            f"added {', '.join(added)}"
            if added
            else "nothing to add: the log has all of these features"
        ]
    given.emit(
        {"url": log.url, "added": added, "features": [asdict(f) for f in features]},
        map(str.rstrip, lines),
    )


@command(writes=True)
def reset_times(url: str = URL, *, given: Given) -> None:
    r"""Correct times that a wrong clock has left.

    The cleaner refuses a log whose newest commit is ahead of its clock. This gives such commits,
    and such records under message.timestamp.type=LogAppendTime, the time of the repair; other
    timestamps stay. Correct the clock first, and stop every process that uses the log.

    \b
    clog reset-times ./orders
    """
    from clog.storage.administration import reset_times as set_back

    log = given.open(url)
    ahead_ms = set_back(log.handle)
    given.emit(
        {"url": log.url, "ahead_ms": ahead_ms},
        f"set back by {count(ahead_ms)} ms" if ahead_ms else "nothing to do: no timestamp is ahead",
    )


@command(writes=True)
def delete_records(
    url: str = URL,
    before: list[str] = argument(
        "PARTITION:OFFSET",
        "The first offset to keep in a partition; end (or -1) deletes all of its records.",
    ),
    *,
    given: Given,
) -> None:
    r"""Delete the records below an offset, permanently.

    No later read sees them. Either all named partitions change, or none.

    \b
    clog delete-records ./orders 0:25
    clog delete-records ./orders 0:end 1:100
    """
    wanted = parse_offsets(before)
    log = given.open(url)
    starts = log.delete_records(wanted)
    rows = [{"partition": p, "start_offset": start} for p, start in starts.items()]
    given.emit(
        {"url": log.url, "partitions": rows},
        (f"partition {p} starts at offset {count(start)}" for p, start in starts.items()),
    )


@command(writes=True)
def publish(
    url: str = URL,
    *,
    formats: list[str] | None = option(
        f"--format {FORMAT_NAMES}",
        "May be repeated. Default: the log's table.publish, or delta.",
        choice(*FORMATS),
    ),
    withdraw: bool = flag("--withdraw", "Withdraw the views: they are empty from then on."),
    force: bool = flag("--force", "With --withdraw: also if the store refuses to write them."),
    given: Given,
) -> None:
    r"""Publish the table for other engines.

    Delta readers then open the log's own URL, Iceberg readers its metadata file. The view refers to
    the log's objects and copies none; a version that is published already is left alone. With
    table.publish=delta, the cleaner publishes by itself.

    \b
    clog publish ./orders
    clog publish ./orders --format delta --json
    clog publish ./orders --format delta --withdraw
    """
    if force and not withdraw:
        raise click.BadParameter("--force requires --withdraw")
    log = given.open(url)
    configured = [name for name in log.config["table.publish"].split(",") if name != "none"]
    if withdraw:
        _withdraw(log, formats, configured, given, force=force)
        return
    made = {name: log.publish(name) for name in formats or configured or ["delta"]}
    given.emit(
        {"url": log.url, "views": [{"format": name} | asdict(done) for name, done in made.items()]},
        (
            f"{'published' if done.published else 'already published'} version {done.version} as"
            f" version {done.table_version} of the {name} table"
            for name, done in made.items()
        ),
    )


def _withdraw(
    log: "Log", formats: list[str] | None, configured: list[str], given: Given, *, force: bool
) -> None:
    there = [view["format"] for view in log.describe()["views"]]
    names = formats or sorted({*there, *configured}) or ["delta"]
    taken = {name: log.withdraw(name, force=force) for name in names}
    shown = [
        {
            "format": name,
            "table_version": done.table_version,
            "withdrawn": done.withdrawn,
            "kept": done.is_kept,
            "given_up": done.given_up,
        }
        for name, done in taken.items()
    ]
    lines: list[str] = []
    for name, done in taken.items():
        lines.append(_withdrawn(name, done))
        if done.table_version is not None and name in configured:
            lines.append(f"table.publish still names {name}: the cleaner will publish it again")
    given.emit({"url": log.url, "views": shown}, lines)


def _withdrawn(name: str, done: "WithdrawResult") -> str:
    if done.given_up:
        return (
            f"abandoned the {name} view: its files will be deleted, even if a suspended publisher"
            " still needs them"
        )
    if done.table_version is None:
        return f"there is no {name} view"
    what = "withdrew" if done.withdrawn else "already withdrawn:"
    kept = "; files of its older versions are kept for file.delete.delay.ms" if done.is_kept else ""
    return f"{what} the {name} table; its version {done.table_version} is empty{kept}"
