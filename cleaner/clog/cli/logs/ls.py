"""`clog ls`: the logs below a folder."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from clog.cli.arguments import Json, Options, storage_options, waiting_for
from clog.cli.output import (
    count,
    duration,
    print_error,
    print_json,
    print_note,
    print_table,
    say,
    size,
)

if TYPE_CHECKING:
    from clog.storage.clock import Clock

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
    from clog.storage.clock import SystemClock
    from clog.storage.errors import InvalidInputError
    from clog.storage.store.finding import find_logs
    from clog.storage.store.folders import folder_exists
    from clog.storage.store.urls import redact

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
