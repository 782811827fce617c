"""`clog roll`: active segments are sealed, so that they can be cleaned."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from clog.cli.arguments import Json, Options, Partition, SingleWriter, Url, integer, open_log
from clog.cli.output import counted, print_json, say, size
from clog.cli.views import (
    maintenance_json,
    maintenance_lines,
    pass_json,
    pass_text,
    tell_plans,
    tell_uncleanable,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from clog.cleaner import MaintenanceResult, PassResult
    from clog.storage import Log


def roll(
    url: Url,
    *,
    partition: Partition = None,
    options: Options = None,
    single_writer: SingleWriter = False,
    json: Json = False,
) -> None:
    r"""Seal active segments, so that they can be cleaned.

    The active segment of a partition is never cleaned. It is sealed by appends that fill it, by
    time (segment.ms), or by this command, in one commit over all partitions.

    \b
    clog roll ./orders
    clog roll ./orders --partition 3
    """
    log = open_log(url, options, single_writer=single_writer)
    sealed = log.roll(partition)
    if json:
        print_json({"url": log.url, "sealed": sealed})
    else:
        say(rolled_text(sealed))


def rolled_text(sealed: Sequence[int]) -> str:
    """Returns in a line which partitions were sealed."""
    if not sealed:
        return "nothing to seal: active segments are empty"
    if len(sealed) == 1:
        return f"sealed the active segment of partition {sealed[0]}"
    return f"sealed the active segments of partitions {', '.join(map(str, sealed))}"


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
Roll = Annotated[
    bool,
    typer.Option(
        "--roll", help="First seal the active segments, so that they can be cleaned, too."
    ),
]
Threads = Annotated[
    int,
    typer.Option(parser=integer(1), metavar="N", help="Number of partitions cleaned in parallel."),
]
Buffer = Annotated[
    int,
    typer.Option(
        parser=integer(1), metavar="MIB", help="Memory for all offset maps together, in MiB."
    ),
]
IoLimit = Annotated[
    int | None,
    typer.Option(
        parser=integer(1),
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
    roll: Roll = False,
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
    clog clean ./orders --roll --force   # all there is
    clog clean ./orders --force --dry-run
    """
    from clog.cleaner.dry_run import plan_round

    if dry_run and roll:
        raise typer.BadParameter("--roll changes the log, --dry-run must not; leave one out")
    log = open_log(url, options, single_writer=single_writer)
    if dry_run:
        planned = plan_round(log.handle, now_ms=log.handle.clock.now_ms(), force=force)
        tell_plans([(log.url, planned)], json=json)
        return
    rolled = log.roll() if roll else []
    io_bytes = None if io_limit is None else io_limit * MIB
    maintained, results = _cleaned(log, threads, buffer * MIB, io_bytes, force=force)
    uncleanable = sorted(log.handle.manifest().uncleanable)
    if json:
        done = maintenance_json(maintained) | {"passes": [pass_json(r) for r in results]}
        print_json({"url": log.url, "rolled": rolled, **done, "uncleanable": uncleanable})
    else:
        for line in [*([rolled_text(rolled)] if roll else []), *maintenance_lines(maintained)]:
            say(line)
        _tell(log, results, uncleanable, force=force)
    if uncleanable:
        raise typer.Exit(1)


def _cleaned(
    log: "Log", threads: int, buffer_bytes: int, io_bytes: int | None, *, force: bool
) -> "tuple[list[MaintenanceResult], list[PassResult]]":
    """Does a round, with a bar for each pass meanwhile."""
    from clog.cleaner import Cleaner
    from clog.cleaner.passes.offset_map import save_memory
    from clog.cli.views import watching_passes

    save_memory()
    maintained: list[MaintenanceResult] = []
    cleaner = Cleaner(
        log,
        threads=threads,
        dedupe_buffer_bytes=buffer_bytes,
        io_bytes_per_second=io_bytes,
        on_maintained=lambda _, done: maintained.append(done),
    )
    with watching_passes(cleaner.monitor):
        return maintained, cleaner.run_once(force=force)


def _tell(log: "Log", results: "list[PassResult]", uncleanable: list[int], *, force: bool) -> None:
    for result in results:
        say(pass_text(result))
    if uncleanable:
        tell_uncleanable(log.url, uncleanable)
    elif not results:
        say(f"no partition of {log.url} is due; {_why_none(log) if force else _FORCE}")


def _why_none(log: "Log") -> str:
    """Returns why nothing could be cleaned, though it was asked for at any dirty ratio."""
    found = log.describe()
    if "compact" not in found["config"]["cleanup.policy"].split(","):
        return 'cleanup.policy has no "compact"'
    if any(d["active_bytes"] for d in found["partition_details"]):
        return "active segments wait until they are sealed: --roll"
    if any(d["first_dirty_offset"] < d["end_offset"] for d in found["partition_details"]):
        return 'what is dirty may not be cleaned yet: "clog describe" says why'
    return "all of it is clean"


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
    from clog.cleaner.duties.commit_blocks import close_blocks
    from clog.cleaner.duties.sweep import Swept, sweep_orphans, sweep_released, with_room
    from clog.cli.views import tracking

    log = open_log(url, options, single_writer=single_writer)
    handle = log.handle
    now_ms = handle.clock.now_ms()
    with tracking("deleting") as track:
        steps: dict[str, Callable[..., Swept]] = {
            "replaced": sweep_released,
            "never committed": sweep_orphans,
            "old commit": close_blocks,
        }
        swept = {
            name: with_room(
                handle, partial(step, handle, now_ms=now_ms, dry_run=dry_run, track=track)
            )
            for name, step in steps.items()
        }
    if json:
        found = {name.replace(" ", "_"): asdict(what) for name, what in swept.items()}
        print_json({"url": log.url, "dry_run": dry_run} | found)
        return
    verb = "would delete" if dry_run else "deleted"
    for name, what in swept.items():
        say(f"{verb} {counted(len(what.objects), f'{name} object')}, {size(what.size_bytes)}")
