"""`clog publish`: the table as a view that other engines read, over the log's own objects."""

from typing import Annotated

import typer

from clog.cli.arguments import Json, Options, SingleWriter, Url, open_log
from clog.cli.output import print_json, say

Formats = Annotated[
    list[str] | None,
    typer.Option("--format", help="delta, iceberg; may be repeated; else as table.publish says"),
]


def publish(
    url: Url,
    *,
    formats: Formats = None,
    options: Options = None,
    single_writer: SingleWriter = False,
    json: Json = False,
) -> None:
    r"""Publish the table for other engines.

    Readers of Delta then open the log's own URL, those of Iceberg its metadata file. The view
    names the log's objects and copies none;
    what is published already is left alone. With table.publish=delta the cleaner does it by itself.

    \b
    clog publish ./orders
    clog publish ./orders --format delta --json
    """
    log = open_log(url, options, single_writer=single_writer)
    configured = [name for name in log.config["table.publish"].split(",") if name != "none"]
    made = {name: log.publish(name) for name in formats or configured or ["delta"]}
    if json:
        shown = [
            {
                "format": name,
                "version": done.version,
                "table_version": done.table_version,
                "published": done.published,
            }
            for name, done in made.items()
        ]
        print_json({"url": log.url, "views": shown})
        return
    for name, done in made.items():
        what = "published" if done.published else "already published"
        say(f"{what} version {done.version} as version {done.table_version} of the {name} table")
