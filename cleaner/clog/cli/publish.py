"""`clog publish`: the table as a view that other engines read, over the log's own objects."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from clog.cli.options import URL, Given, choice, command, flag, option
from clog.storage.views import FORMATS

if TYPE_CHECKING:
    from clog.storage import Log, WithdrawResult

_FORMAT_NAMES = "|".join(FORMATS)


@command(writes=True)
def publish(
    url: str = URL,
    *,
    formats: list[str] | None = option(
        f"--format {_FORMAT_NAMES}",
        "May be repeated. Default: as table.publish says, else delta.",
        choice(*FORMATS),
    ),
    withdraw: bool = flag("--withdraw", "take the views back: they show nothing from then on"),
    force: bool = flag("--force", "with --withdraw: also where the store lets nobody write them"),
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
        raise typer.BadParameter("--force goes with --withdraw")
    log = given.open(url)
    configured = [name for name in log.config["table.publish"].split(",") if name != "none"]
    if withdraw:
        _withdraw(log, formats, configured, given, force=force)
        return
    made = {name: log.publish(name) for name in formats or configured or ["delta"]}
    given.tell(
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
            lines.append(f"table.publish still names {name}: the cleaner publishes it again")
    given.tell({"url": log.url, "views": shown}, lines)


def _withdrawn(name: str, done: "WithdrawResult") -> str:
    if done.given_up:
        return (
            f"gave up the {name} view: what it names will be deleted, also under a publisher that"
            " is asleep"
        )
    if done.table_version is None:
        return f"there is no {name} view"
    what = "withdrew" if done.withdrawn else "already withdrawn:"
    kept = "; what its older versions need is kept for file.delete.delay.ms" if done.is_kept else ""
    return f"{what} the {name} table, version {done.table_version} shows nothing{kept}"
