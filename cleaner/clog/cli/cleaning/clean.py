"""`clog clean`, `clog sweep`: what the cleaner does, once."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clog.cli.arguments import Json, Options, SingleWriter, Url, open_log
from clog.cli.output import counted, print_error, print_json, say, size
from clog.cli.views.plan_view import tell_plans

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clog.cleaner import MaintenanceResult, PassResult

MIB = 1 << 20
_FORCE = "--force cleans whatever can be cleaned"

Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Clean everything cleanable at any dirty ratio; active segments and"
        " min.compaction.lag.ms are still respected.",
    ),
]
Threads = Annotated[int, typer.Option(min=1, help="Number of partitions cleaned in parallel.")]
Buffer = Annotated[
    int, typer.Option(min=1, metavar="MIB", help="Memory for all offset maps together, in MiB.")
]
IoLimit = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="MIB",
        help="Maximum MiB read and written per second.",
        show_default=False,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Only print what the next round would read, write and remove.",
    ),
]
DryDelete = Annotated[bool, typer.Option("--dry-run", help="Only print what would be deleted.")]


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

    First runs due retention and sealing, then cleans every partition that is dirty enough.

    \b
    clog clean ./orders
    clog clean ./orders --force --json
    clog clean ./orders --force --dry-run
    """
    from clog.cleaner import Cleaner
    from clog.cleaner.compaction.memory import save_memory
    from clog.cleaner.dry_run import plan_round

    log = open_log(url, options, single_writer=single_writer)
    if dry_run:
        planned = plan_round(log.handle, now_ms=log.handle.clock.now_ms(), force=force)
        tell_plans([(log.url, planned)], json=json)
        return
    save_memory()
    maintained: list[MaintenanceResult] = []
    cleaner = Cleaner(
        log,
        threads=threads,
        dedupe_buffer_bytes=buffer * MIB,
        io_bytes_per_second=None if io_limit is None else io_limit * MIB,
        on_maintained=lambda _, done: maintained.append(done),
    )
    results = cleaner.run_once(force=force)
    uncleanable = sorted(log.handle.manifest().uncleanable)
    if json:
        done = maintenance_json(maintained) | {"passes": [pass_json(r) for r in results]}
        print_json({"url": log.url, **done, "uncleanable": uncleanable})
    else:
        for line in maintenance_lines(maintained):
            say(line)
        _tell(log.url, results, uncleanable, force=force)
    if uncleanable:
        raise typer.Exit(1)


def _tell(url: str, results: "list[PassResult]", uncleanable: list[int], *, force: bool) -> None:
    for result in results:
        say(pass_text(result))
    if uncleanable:
        tell_uncleanable(url, uncleanable)
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
    r"""Delete objects that are no longer needed.

    Replaced objects are deleted file.delete.delay.ms after their replacement, uncommitted ones a
    day after they were written. Commits are deleted in blocks of 1,024, once none of the block is
    readable.

    \b
    clog sweep ./orders --dry-run
    clog sweep ./orders
    """
    from clog.cleaner.sweep.commit_blocks import close_blocks
    from clog.cleaner.sweep.objects import sweep_orphans, sweep_released

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


def tell_uncleanable(url: str, partitions: list[int]) -> None:
    """Prints that partitions could not be cleaned."""
    print_error(f'partitions {partitions} of {url} are uncleanable; "clog describe" says why')


def maintenance_json(done: "Iterable[MaintenanceResult]") -> dict[str, Any]:
    """Returns for programs what sealing and retention did."""
    results = list(done)
    return {
        "sealed": [p for result in results for p in result.sealed],
        "retention": [asdict(e) for result in results for e in result.expired],
    }


def maintenance_lines(done: "Iterable[MaintenanceResult]") -> list[str]:
    """Returns for people what sealing and retention did, line by line."""
    lines: list[str] = []
    for result in done:
        lines += [f"sealed the active segment of partition {p}: it was idle" for p in result.sealed]
        lines += [
            f"removed {counted(e.records, 'record')}, {size(e.size_bytes)}, of partition"
            f" {e.partition} below offset {e.start_offset}: retention"
            for e in result.expired
        ]
    return lines


def pass_json(result: "PassResult") -> dict[str, Any]:
    """Returns a pass for programs."""
    removed = {"records_removed": result.stats.records_removed}
    return asdict(result) | {"stats": asdict(result.stats) | removed}


def pass_text(result: "PassResult") -> str:
    """Returns a pass in a line for people."""
    stats = result.stats
    return (
        f"partition {result.partition} is clean to offset {result.next_dirty_offset} (from"
        f" {result.first_dirty_offset}): removed {counted(stats.records_removed, 'record')},"
        f" {size(stats.size_bytes_before)} -> {size(stats.size_bytes_after)}"
    )
