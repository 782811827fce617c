"""`clog clean`, `clog sweep`: maintenance of a log, once."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clog.cli.arguments import Json, Options, SingleWriter, Url, open_log
from clog.cli.output import counted, print_error, print_json, say, size
from clog.cli.plan_view import tell_plans

if TYPE_CHECKING:
    from clog.cleaner import PassResult

MIB = 1 << 20
_FORCE = "--force cleans whatever can be cleaned"

Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Clean whatever can be cleaned, whatever the dirty ratio; active segments and"
        " min.compaction.lag.ms are respected.",
    ),
]
Threads = Annotated[int, typer.Option(min=1, help="Partitions that are cleaned at once.")]
Buffer = Annotated[
    int, typer.Option(min=1, metavar="MIB", help="Memory of all offset maps together, in MiB.")
]
IoLimit = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="MIB",
        help="Read and write at most so many MiB a second.",
        show_default=False,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Only say what the next round would read, write and remove; write nothing.",
    ),
]
DryDelete = Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")]


def clean(
    url: Url,
    *,
    force: Force = False,
    threads: Threads = 1,
    buffer: Buffer = 128,
    io_limit: IoLimit = None,
    dry_run: DryRun = False,
    options: Options = None,
    single_writer: SingleWriter = False,
    json: Json = False,
) -> None:
    r"""Clean a log once.

    Retention and sealing that are due come first, then every partition that is dirty enough.

    \b
    clog clean ./orders
    clog clean ./orders --force --json
    clog clean ./orders --force --dry-run
    """
    from clog.cleaner import Cleaner
    from clog.cleaner.memory import save_memory
    from clog.cleaner.planning import plan_round

    log = open_log(url, options, single_writer=single_writer)
    if dry_run:
        planned = plan_round(log.handle, now_ms=log.handle.clock.now_ms(), force=force)
        tell_plans([(log.url, planned)], json=json)
        return
    save_memory()
    cleaner = Cleaner(
        log,
        threads=threads,
        dedupe_buffer_bytes=buffer * MIB,
        io_bytes_per_second=None if io_limit is None else io_limit * MIB,
    )
    results = cleaner.run_once(force=force)
    details = log.describe()["partition_details"]
    uncleanable = [d["partition"] for d in details if d["uncleanable"]]
    if json:
        passes = [pass_json(result) for result in results]
        print_json({"url": log.url, "passes": passes, "uncleanable": uncleanable})
    else:
        _tell(log.url, results, uncleanable, force=force)
    if uncleanable:
        raise typer.Exit(1)


def _tell(url: str, results: "list[PassResult]", uncleanable: list[int], *, force: bool) -> None:
    for result in results:
        say(pass_text(result))
    if uncleanable:
        print_error(f'partitions {uncleanable} of {url} are uncleanable; "clog describe" says why')
    elif not results:
        hint = "what is active waits until it is sealed" if force else _FORCE
        say(f"no partition of {url} is due; {hint}")


def sweep(
    url: Url,
    *,
    dry_run: DryDelete = False,
    options: Options = None,
    single_writer: SingleWriter = False,
    json: Json = False,
) -> None:
    r"""Delete objects that nothing needs any more.

    Replaced objects go file.delete.delay.ms after they were replaced; what was never committed a
    day after it was written; commits by 1,024, once no readable version is among them.

    \b
    clog sweep ./orders --dry-run
    clog sweep ./orders
    """
    from clog.cleaner.blocks import close_blocks
    from clog.cleaner.sweep import sweep_orphans, sweep_released

    log = open_log(url, options, single_writer=single_writer)
    handle = log.handle
    now_ms = handle.clock.now_ms()
    swept = {
        "replaced": sweep_released(handle, now_ms=now_ms, dry_run=dry_run),
        "never committed": sweep_orphans(handle, now_ms=now_ms, dry_run=dry_run),
        "old commit": close_blocks(handle, now_ms=now_ms, dry_run=dry_run),
    }
    if json:
        found = {name.replace(" ", "_"): asdict(what) for name, what in swept.items()}
        print_json({"url": log.url, "dry_run": dry_run} | found)
        return
    verb = "would delete" if dry_run else "deleted"
    for name, what in swept.items():
        say(f"{verb} {counted(len(what.objects), f'{name} object')}, {size(what.size_bytes)}")


def pass_json(result: "PassResult") -> dict[str, Any]:
    """A pass for programs."""
    removed = {"records_removed": result.stats.records_removed}
    return asdict(result) | {"stats": asdict(result.stats) | removed}


def pass_text(result: "PassResult") -> str:
    """A pass in a line for people."""
    stats = result.stats
    return (
        f"partition {result.partition} is clean to offset {result.next_dirty_offset} (from"
        f" {result.first_dirty_offset}): removed {counted(stats.records_removed, 'record')},"
        f" {size(stats.size_bytes_before)} -> {size(stats.size_bytes_after)}"
    )
