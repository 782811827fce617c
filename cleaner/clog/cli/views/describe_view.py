"""`clog describe` for people: a bar for each partition, the configuration, the totals. Pure, from
what `Log.describe` returns.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from clog.cli.output import count, counted, duration, moment, size
from clog.cli.views.bars import bar, legend
from clog.storage.config.units import config_text

if TYPE_CHECKING:
    from clog.storage import (
        LogDescription,
        PartitionDescription,
        TransactionDescription,
        ViewDescription,
    )

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
