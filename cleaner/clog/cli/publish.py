"""`clog publish`: the table as a view that other engines read, over the log's own objects."""

from typing import TYPE_CHECKING, Annotated

import typer

from clog.cli.arguments import Json, Options, SingleWriter, Url, choice, open_log
from clog.cli.output import print_json, say
from clog.storage.views import FORMATS

if TYPE_CHECKING:
    from clog.storage import Log

Formats = Annotated[
    list[str] | None,
    typer.Option(
        "--format",
        parser=choice(*FORMATS),
        metavar="|".join(FORMATS),
        help="May be repeated. Default: as table.publish says, else delta.",
        show_default=False,
    ),
]


Withdraw = Annotated[
    bool, typer.Option("--withdraw", help="take the views back: they show nothing from then on")
]
Force = Annotated[
    bool,
    typer.Option("--force", help="with --withdraw: also where the store lets nobody write them"),
]


def publish(
    url: Url,
    *,
    formats: Formats = None,
    withdraw: Withdraw = False,
    force: Force = False,
    options: Options = None,
    single_writer: SingleWriter = False,
    json: Json = False,
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
        raise typer.BadParameter("--force goes with --withdraw")
    log = open_log(url, options, single_writer=single_writer)
    configured = [name for name in log.config["table.publish"].split(",") if name != "none"]
    if withdraw:
        _withdraw(log, formats, configured, force=force, json=json)
        return
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


def _withdraw(
    log: "Log", formats: list[str] | None, configured: list[str], *, force: bool, json: bool
) -> None:
    there = [view["format"] for view in log.describe()["views"]]
    names = formats or sorted({*there, *configured}) or ["delta"]
    taken = {name: log.withdraw(name, force=force) for name in names}
    if json:
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
        print_json({"url": log.url, "views": shown})
        return
    for name, done in taken.items():
        if done.table_version is None:
            say(
                f"gave up the {name} view: what it names will be deleted, also under a publisher"
                " that is asleep"
                if done.given_up
                else f"there is no {name} view"
            )
            continue
        what = "withdrew" if done.withdrawn else "already withdrawn:"
        then = "; what its older versions need is kept for file.delete.delay.ms"
        say(
            f"{what} the {name} table, version {done.table_version} shows nothing"
            f"{then if done.is_kept else ''}"
        )
        if name in configured:
            say(f"table.publish still names {name}: the cleaner publishes it again")
