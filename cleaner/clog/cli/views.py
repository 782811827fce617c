"""What commands show of logs, partitions, passes and plans: pictures, tables and lines. Pure, but
for what is said at once, and the views that live in the terminal, on standard error.

A partition is a *bar*: which part of its bytes is clean, cleanable, uncleanable, active. Each part
has a glyph of its own, so that the bar reads without colour; in a terminal that has only ASCII,
other glyphs. A part that holds bytes is never invisible: it gets at least one cell.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.live import Live
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from clog.cli.output import (
    count,
    counted,
    duration,
    moment,
    print_error,
    print_json,
    print_note,
    say,
    size,
    stderr,
)
from clog.storage.config.definitions import config_text

if TYPE_CHECKING:
    from clog.cleaner import MaintenanceResult, PassResult
    from clog.cleaner.dry_run import PlannedPass, PlannedRewrite, PlannedRound
    from clog.cleaner.monitor import Activity, LogState, Monitor
    from clog.storage import (
        Log,
        LogDescription,
        PartitionDescription,
        TransactionDescription,
        ViewDescription,
    )


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of bytes in a bar."""

    name: str
    glyph: str
    ascii_glyph: str
    style: str
    meaning: str


PARTS = (
    Part("clean", "█", "#", "green", "each key once"),
    Part("cleanable", "▓", "+", "yellow", "dirty: the next pass cleans it"),
    Part("uncleanable", "▒", "-", "magenta", "dirty, but too young to clean"),
    Part("active", "░", ".", "cyan", "being written"),
)
POINT = Part("retention", "│", "|", "bold red", "tombstones are kept from here on")
EMPTY = Part("empty", "·", " ", "dim", "no records")


def part_bytes(detail: "PartitionDescription") -> tuple[int, int, int, int]:
    """Returns the bytes of `PARTS`, from one of `describe()`'s ``partition_details``."""
    clean, cleanable = detail["clean_bytes"], detail["cleanable_bytes"]
    active = detail["active_bytes"]
    rest = detail["size_bytes"] - clean - cleanable - active
    return clean, cleanable, max(0, rest), active


def cells(amounts: Sequence[int], width: int) -> list[int]:
    """Divides ``width`` cells in proportion; whatever is not 0 gets at least one.

    >>> cells([1, 1, 1000, 0], 10)
    [1, 1, 8, 0]
    """
    total = sum(amounts)
    if total == 0:
        return [0] * len(amounts)
    out = [amount * width // total for amount in amounts]
    by_remainder = sorted(range(len(amounts)), key=lambda i: -(amounts[i] * width % total))
    for i in by_remainder[: width - sum(out)]:
        out[i] += 1
    for i, amount in enumerate(amounts):
        if amount and not out[i]:
            out[out.index(max(out))] -= 1
            out[i] = 1
    return out


def bar(detail: "PartitionDescription", width: int, *, ascii_only: bool = False) -> Text:
    """Returns the bar of a partition, with the delete retention point where it has one."""
    amounts = part_bytes(detail)
    if not any(amounts):
        return Text(_glyph(EMPTY, ascii_only=ascii_only) * width, style=EMPTY.style)
    text = Text()
    for part, wide in zip(PARTS, cells(amounts, width), strict=True):
        text.append(_glyph(part, ascii_only=ascii_only) * wide, style=part.style)
    below = detail["delete_retention_bytes"]
    if below is None:
        return text
    at = min(width - 1, width * below // detail["size_bytes"])
    point = Text(_glyph(POINT, ascii_only=ascii_only), style=POINT.style)
    return text[:at] + point + text[at + 1 :]


def legend(*, ascii_only: bool = False) -> Text:
    """Returns what the glyphs mean, on two lines."""
    text = Text()
    for i, part in enumerate((*PARTS, POINT)):
        if i:
            text.append("\n" if i in (2, 4) else "   ")
        text.append(_glyph(part, ascii_only=ascii_only) * (1 if part is POINT else 2), part.style)
        text.append(f" {part.name}", style="bold")
        text.append(f" {part.meaning}")
    return text


def _glyph(part: Part, *, ascii_only: bool) -> str:
    return part.ascii_glyph if ascii_only else part.glyph


REFRESHES_A_SECOND = 4


def watching(monitor: "Monitor") -> AbstractContextManager[Live]:
    """Shows the view, as long as the block lasts; on standard error, as passes may go to the
    other.
    """
    return Live(
        get_renderable=lambda: view(monitor),
        console=stderr(),
        refresh_per_second=REFRESHES_A_SECOND,
        transient=True,
    )


def view(monitor: "Monitor") -> Group:
    """Returns the passes under way, and the logs."""
    now_ms = monitor.clock.monotonic_ms()
    passes = Table(box=None, pad_edge=False)
    for name in ("log", "partition", "dirty", "why", "phase", "done", "rate", "ETA"):
        passes.add_column(name, no_wrap=name != "log", overflow="fold")
    activities = monitor.activities()
    for activity in activities:
        passes.add_row(*_pass_row(activity, now_ms))
    logs = Table(box=None, pad_edge=False)
    for name in ("log", "dirtiest", "passes", "removed", "size", "state"):
        logs.add_column(name, no_wrap=name != "log", overflow="fold")
    for url, state in monitor.logs().items():
        logs.add_row(*_log_row(url, state))
    idle = Text(f"idle, looked {duration(now_ms - monitor.round_ms)} ago", style="dim")
    return Group(passes if activities else idle, Text(), logs)


def remaining_ms(activity: "Activity", now_ms: int) -> int | None:
    """Returns how long the phase of a pass will take at its rate so far; None before it has one."""
    progress = activity.progress
    done, total = progress.records_done, progress.records_total
    if not 0 < done <= total:
        return None
    return int((now_ms - progress.phase_began_ms) * (total - done) / done)


def _pass_row(activity: "Activity", now_ms: int) -> tuple[str, ...]:
    progress, chosen = activity.progress, activity.candidate
    done, total = progress.records_done, progress.records_total
    share = done / total if total else 0.0
    spent_ms = max(1, now_ms - activity.began_ms)
    left_ms = remaining_ms(activity, now_ms)
    left = "" if left_ms is None else duration(left_ms)
    return (
        activity.url,
        str(chosen.partition),
        f"{chosen.bounds.dirty_ratio:.2f}",
        chosen.reason.value,
        progress.phase,
        f"{min(share, 1):.0%}",
        f"{progress.bytes_moved / 1e3 / spent_ms:.1f} MB/s",
        left,
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


INDENT = 4
BAR_WIDTH_MIN = 20
AMOUNT_WIDTH = 28
"""Columns that the size beside a bar gets at least, so that bars are equally long."""


def description(
    log: "LogDescription",
    defaults: Mapping[str, str],
    actions: Mapping[int, str],
    *,
    now_ms: int,
    width: int,
    ascii_only: bool = False,
) -> Group:
    """Returns the whole page.

    Args:
        log: `Log.describe()`, perhaps with fewer partitions.
        defaults: the configs of a log that sets none.
        actions: what comes next, by partition.
        now_ms: the time.
        width: columns there are.
        ascii_only: draw with ASCII glyphs.
    """
    partitions = [
        _partition(d, actions[d["partition"]], now_ms, width, ascii_only=ascii_only)
        for d in log["partition_details"]
    ]
    return Group(
        _title(log),
        Text(),
        *partitions,
        legend(ascii_only=ascii_only),
        Text(),
        *_transactions(log),
        config_table(log["config"], log["config_overrides"], defaults),
        Text(),
        _totals(log, now_ms),
    )


def next_action(
    detail: "PartitionDescription", config: Mapping[str, str], reason: str | None
) -> str:
    """Returns what maintenance will do with a partition next, in words.

    Args:
        detail: one of `describe()`'s ``partition_details``.
        config: the configuration in force.
        reason: why it is eligible for cleaning now; None when it is not.
    """
    if detail["uncleanable"]:
        return f"clean again after back-off; the last pass failed: {detail['uncleanable']}"
    policies = config["cleanup.policy"].split(",")
    if "compact" not in policies:
        return "retention" if "delete" in policies else "nothing: cleanup.policy keeps everything"
    ratio, limit = detail["dirty_ratio"], config["min.cleanable.dirty.ratio"]
    if reason is not None:
        why = {
            "dirty": f"dirty ratio {ratio:.2f} > {limit}",
            "overdue": f"older than {_setting(config, 'max.compaction.lag.ms')}",
            "tombstones": "tombstones past their delete horizon",
        }
        return f"clean now: {why.get(reason, reason)}"
    if detail["cleanable_bytes"]:
        return f"clean when the dirty ratio is above {limit} (now {ratio:.2f})"
    if detail["first_uncleanable_offset"] < detail["active_base_offset"]:
        return f"clean when older than {_setting(config, 'min.compaction.lag.ms')}"
    if detail["active_bytes"]:
        return "clean after the active segment has been sealed"
    return "nothing to do"


def _setting(config: Mapping[str, str], name: str) -> str:
    return f"{name}={config_text(name, config[name])}"


def config_table(
    config: Mapping[str, str], overrides: Mapping[str, str], defaults: Mapping[str, str]
) -> Table:
    """Returns all configs; those that were set stand out, with the default beside them."""
    table = Table(box=None, pad_edge=False, title="Configuration", title_justify="left")
    table.add_column("name", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("", overflow="fold")
    for name, value in sorted(config.items(), key=lambda item: (item[0] not in overrides, item)):
        if name in overrides:
            note = f"set; default {config_text(name, defaults.get(name, '')) or 'none'}"
            shown = Text(config_text(name, value), "bold yellow")
            table.add_row(Text(name, "bold yellow"), shown, Text(note))
        else:
            table.add_row(Text(name, "dim"), Text(config_text(name, value), "dim"), "")
    return table


def _title(log: "LogDescription") -> Text:
    return Text.assemble(
        (log["url"], "bold"),
        f"\nversion {log['version']} of {moment(log['committed_ms'])}, created"
        f" {moment(log['created_ms'])}, {counted(log['partitions'], 'partition')} by"
        f" {log['partitioner']}",
        *_schema_lines(log["schema"]),
    )


def _schema_lines(schema: Mapping[str, Any]) -> list[str]:
    """Returns a line each for the types of keys and values of a typed log."""
    if schema == {"key": "binary", "value": "binary"}:
        return []
    return [f"\n{name} {as_words(schema[name])}" for name in ("key", "value")]


def as_words(kind: Any) -> str:
    """Returns a type as a person reads it: its fields in braces, what is in lists in brackets."""
    if isinstance(kind, Mapping):
        return f"{{{', '.join(f'{name}: {as_words(inner)}' for name, inner in kind.items())}}}"
    if isinstance(kind, list):
        return f"[{', '.join(map(as_words, kind))}]"
    return str(kind)


def _partition(
    detail: "PartitionDescription", action: str, now_ms: int, width: int, *, ascii_only: bool
) -> Group:
    """Returns the bar and its size; under it the offsets and what comes next."""
    label = f"{detail['partition']:>{INDENT - 1}} "
    amount = f" {size(detail['size_bytes'])}, {counted(detail['records'], 'record')}"
    room = max(BAR_WIDTH_MIN, width - len(label) - max(len(amount), AMOUNT_WIDTH))
    picture = Text.assemble((label, "bold"), bar(detail, room, ascii_only=ascii_only), amount)
    covered, stable = detail["covered_offset"], detail["stable_offset"]
    facts = (
        f"start {detail['log_start_offset']}",
        f"first dirty {detail['first_dirty_offset']}",
        *([] if covered is None else [f"masks to {covered}"]),
        f"active {detail['active_base_offset']}",
        *([] if stable == detail["end_offset"] else [f"stable {stable}"]),
        f"end {detail['end_offset']}",
        f"dirty ratio {detail['dirty_ratio']:.2f}",
        *([counted(detail["markers"], "marker")] if detail["markers"] else []),
    )
    lines = Text(", ".join(facts) + "\n")
    if (horizon_ms := detail["delete_horizon_ms"]) is not None:
        ahead_ms = horizon_ms - now_ms
        when = f"in {duration(ahead_ms)}" if ahead_ms > 0 else f"{duration(-ahead_ms)} ago"
        lines.append(
            f"tombstones kept from offset {detail['delete_retention_offset']} on; earliest"
            f" delete horizon {when}, {moment(horizon_ms)}\n"
        )
    lines.append(f"next: {action}", "bold" if action.startswith("clean now") else "")
    return Group(picture, Padding(lines, (0, 0, 0, INDENT)))


def _held(holds: dict[str, int], now_ms: int) -> dict[str, str]:
    if not holds:
        return {}
    shown = (f"{name} for {duration(ms - now_ms)}" for name, ms in sorted(holds.items()))
    return {"waited for": ", ".join(shown)}


def _kept(view: "ViewDescription", now_ms: int) -> str:
    since = f"needs version {view['version']}, for {duration(max(0, now_ms - view['since_ms']))}"
    if not view["objects"]:
        return since
    kept = f"{counted(view['objects'], 'object')}, {size(view['size_bytes'])}"
    return f"{since}; keeps {kept}, to be deleted {duration(view['overdue_ms'])} ago"


def transaction_words(transaction: "TransactionDescription") -> str:
    """Returns what there is to say of a transaction that has not ended, on a line."""
    first = ", ".join(f"{p} from {offset}" for p, offset in transaction["first_offsets"].items())
    where = f"; undecided in partitions {first}" if first else ""
    home = f"; decided by {transaction['home']}" if transaction["home"] else ""
    return (
        f"{transaction['id']!r}, epoch {transaction['epoch']}, number {transaction['number']}:"
        f" {transaction['state']} since {moment(transaction['started_ms'])}{where}{home}"
    )


def _transactions(log: "LogDescription") -> list[Text]:
    """Returns a title, a line for each transaction that has not ended, and an empty one."""
    lines = [Text(transaction_words(transaction)) for transaction in log["transactions"]]
    return [Text("Transactions that have not ended", "italic"), *lines, Text()] if lines else []


def _totals(log: "LogDescription", now_ms: int) -> Table:
    details = log["partition_details"]
    age_ms = max(0, now_ms - log["committed_ms"])
    snapshot = log["snapshot_version"]
    rows = {
        "records": count(sum(d["records"] for d in details)),
        "of these tombstones": count(sum(d["tombstones"] for d in details)),
        "dead, not yet rewritten": count(sum(d["dead_rows"] for d in details)),
        "segments": count(sum(d["segments"] for d in details)),
        "record bytes": size(sum(d["size_bytes"] for d in details)),
        "objects": f"{count(log['objects'])}, {size(log['object_bytes'])} stored",
        "replaced, not yet deleted": size(log["released_bytes"]),
        "writers": count(log["writers"]),
        **_held(log["holds"], now_ms),
        **{f"published as {view['format']}": _kept(view, now_ms) for view in log["views"]},
        "readable versions": f"{log['oldest_readable_version']} to {log['version']}",
        "newest snapshot": "none" if snapshot is None else f"version {snapshot}",
        "last commit": f"{duration(age_ms)} ago",
    }
    table = Table(box=None, pad_edge=False, show_header=False, title="Totals", title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def tell_left_out(log: "Log") -> None:
    """Tells what is left out, where there is something; by the newest version that is known."""
    head = log.handle.tip.head
    stable = {p: head.stable_offset(p) for p in range(head.log.partitions)}
    ends = head.partitions.end
    left = ", ".join(f"{p} from {at}" for p, at in stable.items() if at < ends[p])
    if left:
        print_note(
            f"left out, as transactions have not ended: the records of partitions {left} on;"
            f' "clog transactions {log.url}" says why they wait'
        )


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


def tell_plans(planned: "Iterable[tuple[str, PlannedRound]]", *, json: bool) -> None:
    """Tells what would be done over logs, given by their URLs."""
    if json:
        logs = [{"url": url} | asdict(mine) for url, mine in planned]
        print_json({"dry_run": True, "logs": logs})
        return
    for url, mine in planned:
        say(f"{url}:")
        for line in plan_lines(mine):
            say(f"  {line}")


def plan_lines(planned: "PlannedRound") -> list[str]:
    """Returns a line for each thing that would happen; one that says so where nothing would."""
    lines = [f"seal the active segment of partition {p}: it is idle" for p in planned.sealed]
    lines += [
        f"remove {counted(c.records, 'record')}, {size(c.size_bytes)}, of partition {c.partition}"
        f" below offset {c.start_offset}: retention"
        for c in planned.cuts
    ]
    lines += [
        f"rewrite {counted(t.chunks, 'chunk')}, {size(t.size_bytes)}, of partition {t.partition}"
        f" in [{t.base_offset}, {t.next_offset}): what is below the log start goes"
        for t in planned.trims
    ]
    lines += _rewrites(planned.coalesced_first, "first coalesce {}, {}, which the passes share")
    lines += [
        f"clean partition {p.partition} ({p.reason}, dirty ratio {p.dirty_ratio:.2f}): map"
        f" {counted(p.map_records, 'record')} in [{p.first_dirty_offset},"
        f" {p.first_uncleanable_offset}), read the keys of {counted(p.records, 'record')},"
        f" rewrite at most {size(p.size_bytes)}{_rest(p)}"
        for p in planned.passes
    ]
    lines += [
        f"leave partition {p} alone: its last pass failed, and back-off is not over;"
        ' "clog describe" says why, "clog clean --force" does not wait'
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
    """Returns a line of how many chunks are rewritten, and of how many bytes, if there are any."""
    if not rewrites:
        return []
    chunks = counted(sum(r.chunks for r in rewrites), "chunk")
    return [what.format(chunks, size(sum(r.size_bytes for r in rewrites)))]


def _rest(planned: "PlannedPass") -> str:
    """Returns what merges, what may be marked, and what was, in words."""
    parts = []
    if planned.segments_merged < planned.segments:
        segments = counted(planned.segments, "segment")
        parts.append(f"; of {segments} at most {planned.segments_merged} are left")
    if planned.markable_records:
        parts.append(f"; where little dies in {counted(planned.markable_records, 'record')}, mark")
    if planned.records_marked:
        parts.append(f"; {counted(planned.records_marked, 'record')} marked before")
    return "".join(parts)


@contextmanager
def watching_passes(monitor: "Monitor") -> Iterator[Live | None]:
    """Shows the passes of a cleaner as long as the block lasts: a bar for each, phase by phase."""
    console = stderr()
    if not console.is_terminal:
        yield None
        return
    with Live(
        get_renderable=lambda: bars(monitor),
        console=console,
        refresh_per_second=REFRESHES_A_SECOND,
        transient=True,
    ) as live:
        yield live


def bars(monitor: "Monitor") -> Table:
    """Returns a row for each pass under way: partition, phase, bar, percent, time left."""
    now_ms = monitor.clock.monotonic_ms()
    table = Table(box=None, pad_edge=False, show_header=False)
    for activity in monitor.activities():
        done, total = activity.progress.records_done, activity.progress.records_total
        left_ms = remaining_ms(activity, now_ms)
        table.add_row(
            f"partition {activity.candidate.partition}: {activity.progress.phase}",
            ProgressBar(total=max(total, 1), completed=done, width=40),
            f"{done / max(total, 1):.0%}",
            "" if left_ms is None else f"{duration(left_ms)} left",
        )
    return table


@contextmanager
def tracking(verb: str) -> Iterator[Callable[[Sequence[str]], Iterable[str]]]:
    """Yields a function that yields the same things again, with a bar meanwhile."""
    console = stderr()
    with Progress(
        *_columns(), console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        yield lambda things: progress.track(things, description=verb)


@contextmanager
def counting(verb: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yields a function that is told how much more was done, of ``total`` where it is known."""
    console = stderr()
    with Progress(
        *_columns(), console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(verb, total=total)
        yield lambda more: progress.advance(task, more)


def _columns() -> tuple[Any, ...]:
    return ("{task.description}", BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
