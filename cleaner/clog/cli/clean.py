"""`clog clean`: the cleaner's work, once and by hand; and the settings and the output of passes,
maintenance and plans, shared with `clog cleaner`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from clog.cli.options import (
    URL,
    Code,
    Given,
    command,
    environment_object,
    flag,
    option,
    pairs,
    usage_errors,
)
from clog.cli.output import (
    count,
    counted,
    print_error,
    print_json,
    say,
    size,
    stderr,
    table,
    tracking,
)
from clog.storage.config.units import duration

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table

    from clog.cleaner import CleanerSettings, MaintenanceResult, PassResult
    from clog.cleaner.daemon.broker_config import BrokerConfig
    from clog.cleaner.log_round import PlannedPass, PlannedRewrite, PlannedRound
    from clog.cleaner.monitor import Activity, LogState, Monitor
    from clog.storage import Log

_ENVIRONMENT = "CLOG_CLEANER_CONFIG"
_FORCE = "--force cleans whatever can be cleaned"
_REFRESHES_A_SECOND = 4

DRY_RUN = flag("--dry-run", "Only print what the next round would read, write and remove.")
DRY_DELETE = flag("--dry-run", "Only print what would be deleted.")


def rolled_text(sealed: Sequence[int]) -> str:
    """Returns which active segments were sealed, in words."""
    if not sealed:
        return "nothing to seal: active segments are empty"
    if len(sealed) == 1:
        return f"sealed the active segment of partition {sealed[0]}"
    return f"sealed the active segments of partitions {', '.join(map(str, sealed))}"


CLEANER_CONFIGS = option(
    "--config -c NAME=VALUE",
    "A config of the cleaner by its Kafka broker name, such as log.cleaner.threads=2 or"
    f" log.retention.hours=48; a log's own takes precedence. Also ${_ENVIRONMENT}, as JSON.",
)


@command
def clean(
    url: str = URL,
    *,
    force: bool = flag(
        "--force",
        "Clean everything cleanable, whatever the dirty ratio; active segments and"
        " min.compaction.lag.ms are still respected.",
    ),
    roll: bool = flag(
        "--roll", "First seal the active segments, so that they can be cleaned as well."
    ),
    rewrite: bool = flag(
        "--rewrite",
        "Then rewrite all objects, as after a change of compression.type: also those of release"
        " 0.2.0 in which other engines miss rows with NaN.",
    ),
    sweep: bool = flag(
        "--sweep",
        "Only delete objects that are no longer needed: replaced ones file.delete.delay.ms after"
        " their replacement, uncommitted ones a day after they were written, and commits in blocks"
        " of 1,024, once none of the block is readable.",
    ),
    config: list[str] | None = CLEANER_CONFIGS,
    dry_run: bool = DRY_RUN,
    given: Given,
) -> Code | None:
    r"""Clean a log once.

    First runs due retention and sealing, then cleans every partition that is dirty enough.

    \b
    clog clean ./orders
    clog clean ./orders --roll --force   # all there is
    clog clean ./orders --force --dry-run
    """
    for name in ("--roll",) * roll + ("--rewrite",) * rewrite if dry_run else ():
        raise click.BadParameter(f"{name} changes the log, which --dry-run must not; leave one out")
    if sweep and (force or roll or rewrite):
        raise click.BadParameter("--sweep only deletes; omit --force, --roll and --rewrite")
    settings = broker_settings(config)
    log = given.open(url)
    if sweep:
        _sweep(log, given, dry_run=dry_run)
        return None
    if dry_run:
        print_plans([(log.url, planned(log, settings, force=force))], json=given.json)
        return None
    rolled = log.roll() if roll else []
    maintained, results = _cleaned(log, settings, force=force)
    rewritten = _rewritten(log, settings.io_bytes_per_second) if rewrite else None
    manifest = log.handle.manifest()
    uncleanable = sorted(manifest.uncleanable)

    def draw() -> None:
        first = [rolled_text(rolled)] if roll else []
        for line in (*first, *maintenance_lines(maintained), *map(pass_text, results)):
            say(line)
        if rewritten is not None:
            say(f"rewrote {counted(rewritten, 'record')}")
        if uncleanable:
            warn_uncleanable(log.url, uncleanable)
        elif not (results or rewrite):
            say(f"no partition of {log.url} is due; {_why_none(log) if force else _FORCE}")
        if manifest.erasures:
            pending = counted(len(manifest.erasures), "erasure")
            say(f"{pending} pending; clog describe {log.url} erasures shows what is left to do")

    done = maintenance_json(maintained) | {"passes": [pass_json(r) for r in results]}
    done |= {"uncleanable": uncleanable} | ({} if rewritten is None else {"rewritten": rewritten})
    given.emit({"url": log.url, "rolled": rolled, **done}, draw)
    return Code.FAILED if uncleanable else None


def broker_settings(config: list[str] | None) -> "BrokerConfig":
    """Returns the environment's config, overridden by that of the command line."""
    from clog.cleaner.daemon.broker_config import broker_config

    with usage_errors():
        return broker_config(configs_given(config))


def configs_given(config: list[str] | None) -> dict[str, object]:
    """Returns the cleaner's configs that are set, in the environment or on the command line."""
    return {**environment_object(_ENVIRONMENT), **pairs(config)}


def cleaner_settings(settings: "BrokerConfig", *, watch_readers_ms: int = 0) -> "CleanerSettings":
    """Returns what a `Cleaner` takes of the settings."""
    from clog.cleaner import CleanerSettings

    return CleanerSettings(
        defaults=settings.defaults,
        compaction=settings.compaction,
        retention_check_ms=settings.retention_check_ms,
        hash_algorithm=settings.hash_algorithm,
        watch_readers_ms=watch_readers_ms,
    )


def planned(log: "Log", settings: "BrokerConfig", *, force: bool = False) -> "PlannedRound":
    """Returns what a round would do."""
    from clog.cleaner.log_round import plan_round

    return plan_round(
        log.handle,
        now_ms=log.handle.clock.now_ms(),
        force=force,
        compaction=settings.compaction,
        defaults=settings.defaults,
    )


def _cleaned(
    log: "Log", settings: "BrokerConfig", *, force: bool
) -> "tuple[list[MaintenanceResult], list[PassResult]]":
    """Runs one round, and shows a bar for each pass."""
    from clog.cleaner import Cleaner
    from clog.cleaner.passes.offset_map import save_memory

    save_memory()
    maintained: list[MaintenanceResult] = []
    cleaner = Cleaner(
        log,
        threads=settings.threads,
        dedupe_buffer_bytes=settings.dedupe_buffer_bytes,
        io_bytes_per_second=settings.io_bytes_per_second,
        settings=cleaner_settings(settings),
        on_maintained=lambda _, done: maintained.append(done),
    )
    with watching_passes(cleaner.monitor):
        return maintained, cleaner.run_once(force=force)


def _rewritten(log: "Log", io_bytes: float | None) -> int:
    """Rewrites all objects; returns the number of records."""
    from clog.cleaner.duties import Work
    from clog.cleaner.duties.layout import rewrite
    from clog.cleaner.threads import MeteredStore, Throttle

    handle = log.handle
    store = MeteredStore(handle.store, Throttle(io_bytes, handle.clock))
    handle.refresh()
    return sum(run.live_rows for run in rewrite(Work(handle, handle.clock.now_ms(), store)))


def _why_none(log: "Log") -> str:
    """Returns why nothing could be cleaned, even at any dirty ratio."""
    from clog.storage.config.log_config import LogConfig

    found = log.describe()
    if not LogConfig.from_overrides(found["config"]).compact:
        return 'cleanup.policy has no "compact"'
    if any(d["active_bytes"] for d in found["partition_details"]):
        return "active segments cannot be cleaned until they are sealed: --roll"
    if any(d["first_dirty_offset"] < d["end_offset"] for d in found["partition_details"]):
        return 'dirty records cannot be cleaned yet: "clog describe" says why'
    return "all of it is clean"


def _sweep(log: "Log", given: Given, *, dry_run: bool) -> None:
    """Deletes objects that are no longer needed."""
    from clog.cleaner.duties import Work
    from clog.cleaner.duties.commit_blocks import close_blocks
    from clog.cleaner.duties.sweep import Swept, sweep_orphans, sweep_released, with_room

    work = Work(log.handle, log.handle.clock.now_ms())
    steps: dict[str, Callable[..., Swept]] = {
        "replaced": sweep_released,
        "never committed": sweep_orphans,
        "old commit": close_blocks,
    }
    with tracking("deleting") as track:
        swept = {
            name: with_room(work, partial(step, work, dry_run=dry_run, track=track))
            for name, step in steps.items()
        }
    verb = "would delete" if dry_run else "deleted"
    given.emit(
        {"url": log.url, "dry_run": dry_run}
        | {name.replace(" ", "_"): asdict(what) for name, what in swept.items()},
        (
            f"{verb} {counted(len(what.objects), f'{name} object')}, {size(what.size_bytes)}"
            for name, what in swept.items()
        ),
    )


def warn_uncleanable(url: str, partitions: list[int]) -> None:
    """Prints that partitions are uncleanable."""
    print_error(f'partitions {partitions} of {url} are uncleanable; "clog describe" says why')


def maintenance_json(done: "Iterable[MaintenanceResult]") -> dict[str, Any]:
    """Returns what sealing and retention did, for programs."""
    results = list(done)
    return {
        "sealed": [p for result in results for p in result.sealed],
        "retention": [asdict(e) for result in results for e in result.expired],
    }


def maintenance_lines(done: "Iterable[MaintenanceResult]") -> list[str]:
    """Returns what sealing and retention did, in lines for people."""
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
    """Returns a pass as a line for people."""
    stats = result.stats
    return (
        f"partition {result.partition} is clean to offset {result.next_dirty_offset} (from"
        f" {result.first_dirty_offset}): removed {counted(stats.records_removed, 'record')},"
        f" {size(stats.size_bytes_before)} -> {size(stats.size_bytes_after)}"
    )


def print_plans(planned: "Iterable[tuple[str, PlannedRound]]", *, json: bool) -> None:
    """Prints what would be done in each of the logs, which are named by their URLs."""
    if json:
        logs = [{"url": url} | asdict(mine) for url, mine in planned]
        print_json({"dry_run": True, "logs": logs})
        return
    for url, mine in planned:
        say(f"{url}:")
        for line in plan_lines(mine):
            say(f"  {line}")


def plan_lines(planned: "PlannedRound") -> list[str]:
    """Returns a line for each thing that would happen, or one that says that nothing is due."""
    lines = [f"seal the active segment of partition {p}: it is idle" for p in planned.sealed]
    lines += [
        f"remove {counted(c.records, 'record')}, {size(c.size_bytes)}, of partition {c.partition}"
        f" below offset {c.start_offset}: retention"
        for c in planned.cuts
    ]
    lines += [
        f"rewrite {counted(t.chunks, 'chunk')}, {size(t.size_bytes)}, of partition {t.partition}"
        f" in [{t.base_offset}, {t.next_offset}), to remove what is below the log start"
        for t in planned.trims
    ]
    lines += _rewrites(planned.coalesced_first, "first coalesce {}, {}, shared by the passes")
    lines += [
        f"clean partition {p.partition} ({p.reason}, dirty ratio {p.dirty_ratio:.2f}): map"
        f" {counted(p.map_records, 'record')} in [{p.first_dirty_offset},"
        f" {p.first_uncleanable_offset}), read the keys of {counted(p.records, 'record')},"
        f" rewrite at most {size(p.size_bytes)}{_rest(p)}"
        for p in planned.passes
    ]
    lines += [
        f'leave partition {p} alone: its last pass failed and it is backing off; "clog describe"'
        ' says why, "clog clean --force" does not wait'
        for p in planned.resting
    ]
    old = "rewrite {} whose dead rows have waited long enough, {}"
    lines += _rewrites(planned.materialised, old)
    lines += _rewrites(planned.coalesced, "coalesce {}, {}")
    lines += [
        f"merge {counted(m.segments, 'segment')}, {size(m.size_bytes)}, of partition {m.partition}"
        f" in [{m.base_offset}, {m.next_offset}): nothing is read or written"
        for m in planned.merged
    ]
    if planned.deleted:
        lines.append(
            f"delete {counted(len(planned.deleted), 'replaced object')},"
            f" {size(planned.deleted_bytes)}"
        )
    return lines or ["nothing is due"]


def _rewrites(rewrites: "Sequence[PlannedRewrite]", what: str) -> list[str]:
    """Returns a line with the number and the bytes of chunks to be rewritten, if there are any."""
    if not rewrites:
        return []
    chunks = counted(sum(r.chunks for r in rewrites), "chunk")
    return [what.format(chunks, size(sum(r.size_bytes for r in rewrites)))]


def _rest(planned: "PlannedPass") -> str:
    """Returns in words what is merged, what may be marked, and what was marked before."""
    parts = []
    if planned.segments_merged < planned.segments:
        segments = counted(planned.segments, "segment")
        parts.append(f"; at most {planned.segments_merged} of {segments} are left")
    if planned.markable_records:
        parts.append(f"; where little dies in {counted(planned.markable_records, 'record')}, mark")
    if planned.records_marked:
        parts.append(f"; {counted(planned.records_marked, 'record')} marked before")
    return "".join(parts)


@contextmanager
def watching_passes(monitor: "Monitor") -> "Iterator[Live | None]":
    """Shows the passes of a cleaner during the block: a bar for each, phase by phase."""
    if not stderr().is_terminal:
        yield None
        return
    with drawn(lambda: bars(monitor)) as shown:
        yield shown


def drawn(picture: "Callable[[], Table | Group]") -> "Live":
    """Returns a picture that is redrawn on standard error while its block runs."""
    from rich.live import Live

    return Live(
        get_renderable=picture,
        console=stderr(),
        refresh_per_second=_REFRESHES_A_SECOND,
        transient=True,
    )


def bars(monitor: "Monitor") -> "Table":
    """Returns a row for each pass under way: partition, phase, bar, percent, time left."""
    from rich.progress_bar import ProgressBar

    now_ms = monitor.clock.monotonic_ms()
    rows = []
    for activity in monitor.activities():
        done, total = activity.progress.records_done, activity.progress.records_total
        left_ms = remaining_ms(activity, now_ms)
        rows.append(
            (
                f"partition {activity.candidate.partition}: {activity.progress.phase}",
                ProgressBar(total=max(total, 1), completed=done, width=40),
                f"{done / max(total, 1):.0%}",
                "" if left_ms is None else f"{duration(left_ms)} left",
            )
        )
    return table([""] * 4, rows, folds=[""])


def remaining_ms(activity: "Activity", now_ms: int) -> int | None:
    """Returns the time left in the phase of a pass at its rate so far; None before it has one."""
    progress = activity.progress
    done, total = progress.records_done, progress.records_total
    if not 0 < done <= total:
        return None
    return int((now_ms - progress.phase_began_ms) * (total - done) / done)


def view(monitor: "Monitor") -> "Group":
    """Returns the passes under way, and the logs."""
    from rich.console import Group
    from rich.text import Text

    now_ms = monitor.clock.monotonic_ms()
    activities = monitor.activities()
    names = ["log", "partition", "dirty", "why", "phase", "done", "rate", "ETA"]
    passes = table(names, [_pass_row(each, now_ms) for each in activities], folds=["log"])
    names = ["log", "dirtiest", "passes", "removed", "size", "state"]
    logs = table(names, [_log_row(*each) for each in monitor.logs().items()], folds=["log"])
    idle = Text(f"idle, last round {duration(now_ms - monitor.round_ms)} ago", style="dim")
    return Group(passes if activities else idle, Text(), logs)


def _pass_row(activity: "Activity", now_ms: int) -> tuple[str, ...]:
    progress, chosen = activity.progress, activity.candidate
    done, total = progress.records_done, progress.records_total
    share = done / total if total else 0.0
    spent_ms = max(1, now_ms - activity.began_ms)
    left_ms = remaining_ms(activity, now_ms)
    return (
        activity.url,
        str(chosen.partition),
        f"{chosen.bounds.dirty_ratio:.2f}",
        chosen.reason.value,
        progress.phase,
        f"{min(share, 1):.0%}",
        f"{progress.bytes_moved / 1e3 / spent_ms:.1f} MB/s",
        "" if left_ms is None else duration(left_ms),
    )


def _log_row(url: str, state: "LogState") -> tuple[str, ...]:
    dirtiest = max((p.dirty_ratio for p in state.partitions), default=0.0)
    uncleanable = sum(p.uncleanable is not None for p in state.partitions)
    totals = state.totals
    words = state.error or (
        f"{counted(uncleanable, 'partition')} uncleanable" if uncleanable else "well"
    )
    removed = totals["records_read"] - totals["records_written"]
    sizes = f"{size(totals['size_bytes_before'])} -> {size(totals['size_bytes_after'])}"
    return url, f"{dirtiest:.2f}", count(totals["passes"]), count(removed), sizes, words
