"""`clog verify`: the manifest against the objects, drawn."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from clog.cli.arguments import Json, Options, Url, storage_options, waiting_for
from clog.cli.output import counted, print_json, say, size, stderr, stdout

if TYPE_CHECKING:
    from collections.abc import Callable

    from clog.storage.diagnostics.verify import VerifyReport
    from clog.storage.store.base import Store

Quick = Annotated[
    bool,
    typer.Option(
        "--quick", help="Check only the newest version, and that its objects exist in full size."
    ),
]
Repair = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Write the longest sound history of a log whose commits do not follow one another, or"
        " whose files of blocks were lost, to this empty place. The log itself stays as it is.",
        show_default=False,
    ),
]


def verify(
    url: Url,
    *,
    quick: Quick = False,
    repair: Repair = None,
    options: Options = None,
    json: Json = False,
) -> None:
    r"""Check that a log is sound.

    Checks the history, the segments, and every object against the log's metadata. Reads the whole
    log and changes nothing. The exit code is 1 if something is wrong.

    \b
    clog verify ./orders
    clog verify s3://bucket/orders --quick --json
    clog verify s3://bucket/orders --repair s3://bucket/orders-repaired
    """
    from clog.storage.store import open_store

    if repair is not None:
        _repair(url, repair, storage_options(options), json=json)
        return
    given = storage_options(options)
    with waiting_for(url, given) as answered:
        report = _verified(open_store(url, given), answered, quick=quick)
    if json:
        print_json(asdict(report))
    else:
        _print(report)
    if report.findings:
        raise typer.Exit(1)


def _repair(url: str, place: str, options: dict[str, object], *, json: bool) -> None:
    from clog.storage.diagnostics.repair import repair_log
    from clog.storage.store import open_store

    report = repair_log(open_store(url, options), open_store(place, options))
    if json:
        print_json(asdict(report))
    else:
        for commit in report.left_out:
            what = commit.operation or "cannot be read"
            say(f"left out: commit {commit.version} ({what})")
        for version in report.rebuilt:
            say(f"rebuilt: commit {version}, from what others carry")
        for first in report.blocks:
            say(f"rebuilt: the file of the block from version {first} on, which was lost")
        say(f"{report.copy} has version {report.version} of {report.url}, which is as it was")
        _print(report.verified)
    if report.verified.findings:
        raise typer.Exit(1)


def _verified(store: "Store", answered: "Callable[[], None]", *, quick: bool) -> "VerifyReport":
    """Verifies and returns the report; a bar on standard error meanwhile, where that is a
    terminal.
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    from clog.storage.diagnostics.verify import verify_log

    console = stderr()
    columns = ("verifying", BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    shown = console.is_terminal and not quick
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        task = progress.add_task("verify", total=None)

        def on_progress(done: int, total: int) -> None:
            answered()
            progress.update(task, completed=done, total=total)

        return verify_log(store, quick=quick, on_progress=on_progress)


def _print(report: "VerifyReport") -> None:
    console = stdout()
    for finding in report.findings:
        console.print(f"{finding.check}: ", style="bold red", end="", soft_wrap=True)
        console.print(f"{finding.where}: {finding.message}", soft_wrap=True)
    looked = (
        "its newest version cannot be read"
        if report.version is None
        else (
            f"version {report.version}, {counted(report.commits, 'commit')},"
            f" {counted(report.objects, 'object')} of {size(report.object_bytes)},"
            f" {counted(report.records, 'record')}"
        )
    )
    if report.findings:
        found = f"{counted(len(report.findings), 'finding')} in {report.url}: {looked}"
        console.print(found, style="red", soft_wrap=True)
    else:
        console.print(f"{report.url} is sound: {looked}", style="green", soft_wrap=True)
