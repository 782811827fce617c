"""`clog verify`: the manifest against the objects, drawn."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from clog.cli.arguments import Json, Options, Url, storage_options
from clog.cli.output import counted, print_json, size, stderr, stdout

if TYPE_CHECKING:
    from clog.storage.store.base import Store
    from clog.storage.verify import VerifyReport

Quick = Annotated[
    bool,
    typer.Option(
        "--quick", help="Only the newest state, and whether objects are there in full size."
    ),
]


def verify(url: Url, *, quick: Quick = False, options: Options = None, json: Json = False) -> None:
    r"""Check that a log is sound.

    That is its history, its segments, and every object against what the log says of it. Reads all
    of the log, and changes nothing. The exit code is 1 when something is wrong.

    \b
    clog verify ./orders
    clog verify s3://bucket/orders --quick --json
    """
    from clog.storage.store import open_store

    report = _verified(open_store(url, storage_options(options)), quick=quick)
    if json:
        print_json(asdict(report))
    else:
        _print(report)
    if report.findings:
        raise typer.Exit(1)


def _verified(store: "Store", *, quick: bool) -> "VerifyReport":
    """The report; a bar on standard error meanwhile, where that is a terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    from clog.storage.verify import verify_log

    console = stderr()
    columns = ("verifying", BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    shown = console.is_terminal and not quick
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        task = progress.add_task("verify", total=None)

        def on_progress(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        return verify_log(store, quick=quick, on_progress=on_progress)


def _print(report: "VerifyReport") -> None:
    console = stdout()
    for finding in report.findings:
        console.print(f"{finding.check}: ", style="bold red", end="", soft_wrap=True)
        console.print(f"{finding.where}: {finding.message}", soft_wrap=True)
    looked = (
        f"version {report.version}, {counted(report.commits, 'commit')},"
        f" {counted(report.objects, 'object')} of {size(report.object_bytes)},"
        f" {counted(report.records, 'record')}"
    )
    if report.findings:
        found = f"{counted(len(report.findings), 'finding')} in {report.url}: {looked}"
        console.print(found, style="red", soft_wrap=True)
    else:
        console.print(f"{report.url} is sound: {looked}", style="green", soft_wrap=True)
