"""`clog describe`: the state of a log, drawn; what else it lists is in `details`.

A partition is a *bar* that shows which part of its bytes is clean, cleanable, uncleanable or
active. Each part has its own glyph, so that the bar is readable without colour; terminals with only
ASCII get other glyphs. A part that holds bytes is always visible: it gets at least one cell.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from clog.cli.options import (
    PARTITION,
    URL,
    Given,
    argument,
    choice,
    command,
    flag,
    integer,
    option,
    parse_time_ms,
    partitions_of,
)
from clog.cli.output import count, counted, dated, print_table, size, stdout, table
from clog.storage.config.units import duration, moment

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from clog.storage import (
        KeptDescription,
        Log,
        LogDescription,
        PartitionDescription,
        ViewDescription,
    )


WHATS = (
    *("offsets", "segments", "readers", "transactions", "erasures", "features"),
    *("history", "commit", "objects", "markers"),
)


@command
def describe(
    url: str = URL,
    what: str | None = argument(
        "[WHAT]",
        f"What to list instead: {', '.join(WHATS)}.",
        choice(*WHATS),
        default=None,
        complete=lambda begun: [word for word in WHATS if word.startswith(begun)],
    ),
    *,
    partition: int | None = PARTITION,
    time: str | None = option(
        "--time TIME",
        "With offsets: also that of the first record at or after this time, epoch ms or ISO 8601.",
    ),
    at: int | None = option(
        "--at VERSION", "With commit: that of this version, not the newest.", integer()
    ),
    everything: bool = flag(
        "--all", "Also configs that have their defaults, partitions without records, and zeros."
    ),
    given: Given,
) -> None:
    r"""Show a log: what is clean, dirty and active, and what comes next.

    Bars are proportional to record bytes. The tick in a bar is the delete retention point:
    below it all expired tombstones are gone. A word after the URL lists one thing instead:

    \b
    offsets       first and next offsets, where readers stop, that for a time
    segments      the segments; the active one of a partition is last
    readers       the named readers, and how soon something overtakes each
    transactions  those that have not ended; ends those past their timeout first
    erasures      the erasures of keys, and what they wait for
    features      the features of the format, and which of them the log has
    history       the commits, oldest first
    commit        a commit as it is on disk, edit and head
    objects       the data objects: live, replaced, or in no manifest
    markers       undecided transactions by partition, and markers of ended ones

    \b
    clog describe ./orders
    clog describe ./orders offsets --time 2026-01-31T12:00:00Z
    clog describe s3://bucket/orders readers --json
    """
    for name, value, needs in (("--time", time, "offsets"), ("--at", at, "commit")):
        if value is not None and what != needs:
            raise click.BadParameter(f"{name} is only for clog describe URL {needs}")
    if partition is not None and what not in (None, "offsets", "segments"):
        raise click.BadParameter(f"--partition has no effect with {what}; omit it")
    if everything and what is not None:
        raise click.BadParameter(f"--all has no effect with {what}; omit it")
    if what is None:
        _picture(given, url, partition, everything=everything)
        return
    from clog.cli.details import DETAILS, Asked

    time_ms = None if time is None else parse_time_ms(time)
    DETAILS[what](given.open(url), Asked(partition, time_ms, at, given))


def _picture(given: Given, url: str, partition: int | None, *, everything: bool) -> None:
    """Draws the partitions, and prints the configs and totals."""
    from clog.storage.config.log_config import LogConfig

    log = given.open(url)
    found = log.describe(waits=True)
    wanted = partitions_of(log, partition)
    details = [d for d in found["partition_details"] if d["partition"] in wanted]
    now_ms = log.handle.clock.now_ms()
    actions = next_actions(log, found)

    def draw() -> None:
        from rich.table import Table

        console = stdout()
        page = description(
            found | {"partition_details": details},
            LogConfig.from_overrides({}).as_dict(),
            actions,
            now_ms=now_ms,
            width=console.width,
            ascii_only=console.options.ascii_only,
            everything=everything,
        )
        for part in page.renderables:
            if isinstance(part, Table):
                print_table(part)
            else:
                console.print(part)

    shown = [d | {"next_action": actions[d["partition"]]} for d in details]
    given.emit(dated(found | {"partition_details": shown}), draw)


class Part(NamedTuple):
    """One kind of bytes in a bar."""

    name: str
    glyph: str
    ascii_glyph: str
    style: str
    meaning: str

    def drawn(self, width: int, *, ascii_only: bool) -> str:
        """Returns its glyph, ``width`` times."""
        return (self.ascii_glyph if ascii_only else self.glyph) * width


PARTS = (
    Part("clean", "█", "#", "green", "each key once"),
    Part("cleanable", "▓", "+", "yellow", "dirty: the next pass cleans it"),
    Part("uncleanable", "▒", "-", "magenta", "dirty, but too young to clean"),
    Part("active", "░", ".", "cyan", "being written"),
)
_POINT = Part("retention", "│", "|", "bold red", "tombstones are kept from here on")
_EMPTY = Part("empty", "·", " ", "dim", "no records")


def part_bytes(detail: "PartitionDescription") -> tuple[int, int, int, int]:
    """Returns the bytes of `PARTS`, from one of `describe()`'s ``partition_details``."""
    clean, cleanable = detail["clean_bytes"], detail["cleanable_bytes"]
    active = detail["active_bytes"]
    rest = detail["size_bytes"] - clean - cleanable - active
    return clean, cleanable, max(0, rest), active


def cells(amounts: Sequence[int], width: int) -> list[int]:
    """Divides ``width`` cells in proportion; an amount that is not 0 gets at least one.

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


def bar(detail: "PartitionDescription", width: int, *, ascii_only: bool = False) -> "Text":
    """Returns the bar of a partition, with the delete retention point if it has one."""
    from rich.text import Text

    amounts = part_bytes(detail)
    if not any(amounts):
        return Text(_EMPTY.drawn(width, ascii_only=ascii_only), style=_EMPTY.style)
    text = Text()
    for part, wide in zip(PARTS, cells(amounts, width), strict=True):
        text.append(part.drawn(wide, ascii_only=ascii_only), style=part.style)
    below = detail["delete_retention_bytes"]
    if below is None:
        return text
    at = min(width - 1, width * below // detail["size_bytes"])
    point = Text(_POINT.drawn(1, ascii_only=ascii_only), style=_POINT.style)
    return text[:at] + point + text[at + 1 :]


def legend(*, ascii_only: bool = False) -> "Text":
    """Returns the meanings of the glyphs, on three lines."""
    from rich.text import Text

    text = Text()
    for i, part in enumerate((*PARTS, _POINT)):
        if i:
            text.append("\n" if i in (2, 4) else "   ")
        text.append(part.drawn(1 if part is _POINT else 2, ascii_only=ascii_only), part.style)
        text.append(f" {part.name}", style="bold")
        text.append(f" {part.meaning}")
    return text


_INDENT = 4
_BAR_WIDTH_MIN = 20
_TABLE_WIDTH_MIN = 64
_AMOUNT_WIDTH = 28
"""The minimum width of the size beside a bar, so that bars are equally long."""


def description(
    log: "LogDescription",
    defaults: Mapping[str, str],
    actions: Mapping[int, str],
    *,
    now_ms: int,
    width: int,
    ascii_only: bool = False,
    everything: bool = False,
) -> "Group":
    """Returns the page for a result of `Log.describe()`, possibly with fewer partitions, ``width``
    columns wide, with the next actions by partition and the defaults of configs. What is as in
    every log, it has if ``everything`` is asked for.
    """
    from rich.console import Group
    from rich.text import Text

    shown = log["partition_details"]
    used = shown if everything else [d for d in shown if d["end_offset"]]
    columns = _aligned(used)
    partitions: list[Group | Text] = [
        _partition(d, said, actions[d["partition"]], now_ms, width, ascii_only=ascii_only)
        for d, said in zip(used, columns, strict=True)
    ]
    if unused := [d["partition"] for d in shown if d not in used]:
        partitions.append(Text(f"{_numbers(unused)} without records", "dim"))
    title = Text.assemble(
        (log["url"], "bold"),
        f"\nversion {log['version']} of {moment(log['committed_ms'])}, created"
        f" {moment(log['created_ms'])}, {counted(log['partitions'], 'partition')} by"
        f" {log['partitioner']}",
        *_schema_lines(log["schema"]),
    )
    waiting: list[Text] = []
    if log["transactions"]:
        from clog.cli.details import transaction_words

        waiting = [Text(transaction_words(transaction)) for transaction in log["transactions"]]
        waiting = [Text("Transactions that have not ended", "italic"), *waiting, Text()]
    return Group(
        title,
        Text(),
        *partitions,
        *([legend(ascii_only=ascii_only)] if used else []),
        Text(),
        *waiting,
        *_configs(log["config"], log["config_overrides"], defaults, width, everything=everything),
        Text(),
        table(
            ["", ""],
            [(n, t) for n, t in _totals(log, now_ms).items() if everything or t not in _NOTHING],
            folds=[""],
            title="Totals",
        ),
        Text(f"\nnext: {_next_step(log, actions)}"),
    )


_NOTHING = ("0", "0 B", "none")


def _numbers(partitions: Sequence[int]) -> str:
    """Returns partitions in words, with runs of numbers as ranges.

    >>> _numbers([0, 1, 2, 5])
    'partitions 0-2, 5'
    """
    runs: list[list[int]] = []
    for number in partitions:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    named = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"partition{'s' * (len(partitions) > 1)} {', '.join(named)}"


def _next_step(log: "LogDescription", actions: Mapping[int, str]) -> str:
    """Returns the command that one would type next."""
    url = shlex.quote(log["url"])
    if not any(d["end_offset"] for d in log["partition_details"]):
        return f"clog produce {url} appends the lines of standard input"
    if due := sorted(p for p, action in actions.items() if action.startswith("clean now")):
        return f"clog clean {url} cleans {_numbers(due)}; clog cleaner {url} keeps the log clean"
    return f"clog consume {url} --table prints the latest value of each key"


class _Said(NamedTuple):
    """A partition in words, its numbers as wide as those of the others."""

    amount: str
    facts: str


def _aligned(details: "Sequence[PartitionDescription]") -> list[_Said]:
    """Returns partitions in words, in columns."""
    sizes = _padded([size(d["size_bytes"]) for d in details])
    records = _padded([count(d["records"]) for d in details])
    starts, dirty, active, ends = (
        _padded([str(d[name]) for d in details])
        for name in ("log_start_offset", "first_dirty_offset", "active_base_offset", "end_offset")
    )
    found = []
    for i, detail in enumerate(details):
        covered, stable = detail["covered_offset"], detail["stable_offset"]
        facts = (
            f"start {starts[i]}",
            f"first dirty {dirty[i]}",
            *([] if covered is None else [f"masks to {covered}"]),
            f"active {active[i]}",
            *([] if stable == detail["end_offset"] else [f"stable {stable}"]),
            f"end {ends[i]}",
            f"dirty ratio {detail['dirty_ratio']:.2f}",
            *([counted(detail["markers"], "marker")] if detail["markers"] else []),
        )
        many = "record" if detail["records"] == 1 else "records"
        found.append(_Said(f" {sizes[i]}, {records[i]} {many}", ", ".join(facts)))
    return found


def _padded(texts: Sequence[str]) -> list[str]:
    width = max(map(len, texts), default=0)
    return [text.rjust(width) for text in texts]


def _partition(
    detail: "PartitionDescription",
    said: _Said,
    action: str,
    now_ms: int,
    width: int,
    *,
    ascii_only: bool,
) -> "Group":
    """Returns the bar and its size, and below it the offsets and the next action."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    label = f"{detail['partition']:>{_INDENT - 1}} "
    amount = said.amount
    room = width - len(label) - max(len(amount), _AMOUNT_WIDTH)
    if room < _BAR_WIDTH_MIN:  # Put the size below the bar.
        room, amount = max(1, width - len(label)), f"\n{' ' * (_INDENT - 1)}{amount}"
    picture = Text.assemble((label, "bold"), bar(detail, room, ascii_only=ascii_only), amount)
    lines = Text(f"{said.facts}\n")
    if (horizon_ms := detail["delete_horizon_ms"]) is not None:
        ahead_ms = horizon_ms - now_ms
        when = f"in {duration(ahead_ms)}" if ahead_ms > 0 else f"{duration(-ahead_ms)} ago"
        lines.append(
            f"tombstones kept from offset {detail['delete_retention_offset']} on; earliest"
            f" delete horizon {when}, {moment(horizon_ms)}\n"
        )
    if held := detail["retention_held"]:
        lines.append(f"{held}\n")
    lines.append(f"next: {action}", "bold" if action.startswith("clean now") else "")
    return Group(picture, Padding(lines, (0, 0, 0, _INDENT)))


def next_actions(log: "Log", found: "Mapping[str, Any]") -> dict[int, str]:
    """Returns what maintenance will do with each partition next, by the log's description."""
    from clog.cleaner.selection import candidates
    from clog.storage.config.log_config import LogConfig
    from clog.storage.readers import read_holds

    manifest, now_ms = log.handle.manifest(), log.handle.clock.now_ms()
    settings = LogConfig.from_overrides(manifest.head.config)
    holds = read_holds(log.handle, settings, now_ms=now_ms)
    chosen = candidates(manifest, settings, now_ms=now_ms, holds=holds)
    due = {c.partition: c.reason.value for c in chosen}
    return {
        d["partition"]: next_action(d, found["config"], due.get(d["partition"]))
        for d in found["partition_details"]
    }


def next_action(
    detail: "PartitionDescription", config: Mapping[str, str], reason: str | None
) -> str:
    """Returns in words what maintenance will do with a partition next; ``reason``: why it is
    eligible for cleaning now, if it is.
    """
    if detail["uncleanable"]:
        return f"clean again after back-off; the last pass failed: {detail['uncleanable']}"
    from clog.storage.config.log_config import LogConfig

    holds = LogConfig.from_overrides({"cleanup.policy": config["cleanup.policy"]})
    if not holds.compact:
        return "retention" if holds.delete else "nothing: cleanup.policy keeps everything"
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
        if detail["stable_offset"] < detail["active_base_offset"]:
            from_offset = f"records from offset {detail['stable_offset']} on"
            return f"nothing yet: {from_offset} wait for the end of a transaction"
        return f"clean when older than {_setting(config, 'min.compaction.lag.ms')}"
    if detail["active_bytes"]:
        limits = " or ".join(_setting(config, f"segment.{limit}") for limit in ("bytes", "ms"))
        return f"clean after the active segment has been sealed, at {limits}"
    return "nothing to do"


def _setting(config: Mapping[str, str], name: str) -> str:
    return f"{name}={configs_shown(config)[name]}"


def configs_shown(config: Mapping[str, str]) -> dict[str, str]:
    """Returns configs as people read them."""
    from clog.storage.config.units import config_text

    return {name: config_text(name, value) for name, value in config.items()}


def _configs(
    config: Mapping[str, str],
    overrides: Mapping[str, str],
    defaults: Mapping[str, str],
    width: int,
    *,
    everything: bool,
) -> "list[Table | Text]":
    """Returns the configs that are set, with their defaults, or all; in one column if narrow."""
    from rich.text import Text

    from clog.storage.config.units import config_text

    rows = []
    shown = config if everything else {n: config[n] for n in overrides if n in config}
    rest = len(config) - len(shown)
    more = [Text(f"{counted(rest, 'config')} at the default; --all shows them", "dim")]
    for name, value in sorted(shown.items(), key=lambda item: (item[0] not in overrides, item)):
        note, style = "", "dim"
        if name in overrides:
            note = f"set; default {config_text(name, defaults.get(name, '')) or 'none'}"
            style = "bold yellow"
        rows.append((Text(name, style), Text(config_text(name, value), style), note))
    if width < _TABLE_WIDTH_MIN:
        lines = (
            [Text.assemble(name, "=", value, " " * bool(note), note)] for name, value, note in rows
        )
        found = table([""], lines, folds=[""], title="Configuration")
    else:
        found = table(["name", "value", ""], rows, folds=["value", ""], title="Configuration")
    return [*([found] if rows else []), *(more if rest else [])]


def _schema_lines(schema: Mapping[str, Any]) -> list[str]:
    """Returns two lines with the types of keys and values of a typed log, else none."""
    if schema == {"key": "binary", "value": "binary"}:
        return []
    return [f"\n{name} {as_words(schema[name])}" for name in ("key", "value")]


def as_words(kind: Any) -> str:
    """Returns a type in words: fields of structs in braces, elements of lists in brackets."""
    if isinstance(kind, Mapping):
        return f"{{{', '.join(f'{name}: {as_words(inner)}' for name, inner in kind.items())}}}"
    if isinstance(kind, list):
        return f"[{', '.join(map(as_words, kind))}]"
    return str(kind)


def _totals(log: "LogDescription", now_ms: int) -> dict[str, str]:
    details = log["partition_details"]
    age_ms = max(0, now_ms - log["committed_ms"])
    snapshot = log["snapshot_version"]
    holds = [f"{name} for {duration(ms - now_ms)}" for name, ms in sorted(log["holds"].items())]
    return {
        "records": count(sum(d["records"] for d in details)),
        "of these tombstones": count(sum(d["tombstones"] for d in details)),
        "dead, not yet rewritten": count(sum(d["dead_rows"] for d in details)),
        "segments": count(sum(d["segments"] for d in details)),
        "record bytes": size(sum(d["size_bytes"] for d in details)),
        "objects": f"{count(log['objects'])}, {size(log['object_bytes'])} stored",
        "replaced, not yet deleted": size(log["released_bytes"]),
        "recent committers": count(log["committers"]),
        **({"waiting to commit": _waits(log["waits"])} if log["waits"] else {}),
        "writers": count(log["writers"]),
        **({"waited for": ", ".join(holds)} if holds else {}),
        **({"offsets": "taken from what it mirrors"} if log["takes_offsets"] else {}),
        **_sources(copied(log["sources"])),
        **{f"published as {view['format']}": _kept(view, now_ms) for view in log["views"]},
        **{f"kept for cut {keep['cut']}": _kept_for_cut(keep) for keep in log["kept"]},
        **{f"erasure {name[:8]}": f"pending: {why}" for name, why in log["erasures"].items()},
        "readable versions": f"{log['oldest_readable_version']} to {log['version']}",
        "newest snapshot": "none" if snapshot is None else f"version {snapshot}",
        "last commit": f"{duration(age_ms)} ago",
    }


def _waits(waits: Mapping[str, int]) -> str:
    """Returns how long appends wait that other writers may commit."""
    waiting = count(waits["waiting"])
    if waits["waiting"]:
        waiting += f", the first for {duration(waits['oldest_ms'])}"
    if not waits["answered"]:
        return waiting
    half, longest = duration(waits["median_ms"]), duration(waits["longest_ms"])
    return f"{waiting}; half of the last {count(waits['answered'])} waited {half}, one {longest}"


def copied(sources: Mapping[str, Mapping[str, Mapping[str, int]]]) -> list[dict[str, Any]]:
    """Returns the positions of writers in what they copy, in the words of each source."""
    if not sources:  # Importing the bridge takes time.
        return []
    from clog.bridge.mysql.engine import position_text
    from clog.bridge.postgres.source import lsn_text

    words = {"postgresql": lsn_text, "mysql": position_text, "kafka-seen": moment}
    return [
        {
            "writer": writer,
            "name": name,
            "positions": {p: words.get(name.partition(":")[0], str)(n) for p, n in at.items()},
        }
        for writer, mine in sources.items()
        for name, at in mine.items()
    ]


def _sources(copies: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for one in copies:
        at = one["positions"]
        place = f"at {at['0']}" if at.keys() == {"0"} else f"({counted(len(at), 'partition')})"
        found.setdefault(f"read by {one['writer']}", []).append(f"{one['name']} {place}")
    return {by: ", ".join(named) for by, named in found.items()}


def _kept_for_cut(keep: "KeptDescription") -> str:
    until = "it is dropped" if keep["until_ms"] is None else moment(keep["until_ms"])
    kept = f"{counted(keep['objects'], 'object')}, {size(keep['size_bytes'])}"
    return f"version {keep['version']}, until {until}; keeps {kept}; of {keep['home']}"


def _kept(view: "ViewDescription", now_ms: int) -> str:
    since = f"needs version {view['version']}, for {duration(max(0, now_ms - view['since_ms']))}"
    if not view["objects"]:
        return since
    kept = f"{counted(view['objects'], 'object')}, {size(view['size_bytes'])}"
    return f"{since}; keeps {kept}, to be deleted {duration(view['overdue_ms'])} ago"
