"""`clog delete`: a log is deleted, with all its files."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from clog.cli.arguments import Json, Options, Url, storage_options, waiting_for
from clog.cli.output import counted, print_json, say, size

if TYPE_CHECKING:
    from clog.storage.deletion import Doomed

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
    from clog.storage.deletion import delete_log, doomed
    from clog.storage.store import open_store
    from clog.storage.store.folders import remove_empty_folders

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
