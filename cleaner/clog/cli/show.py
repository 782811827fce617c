"""`clog describe`, `clog offsets`, `clog segments`: looking at a log.

`clog readers`: who reads a log, how far behind, and what is about to overtake it.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clog.cli.arguments import Json, Options, Partition, Url, open_log, parse_time_ms
from clog.cli.output import (
    count,
    counted,
    duration,
    moment,
    print_json,
    print_table,
    say,
    size,
    stdout,
)

if TYPE_CHECKING:
    from clog.storage import Log, PartitionDescription, Reader


def describe(
    url: Url, *, partition: Partition = None, options: Options = None, json: Json = False
) -> None:
    r"""Show what is clean, dirty and active, and what comes next.

    Bars are proportional to record bytes. The tick in a bar is the delete retention point:
    below it all expired tombstones are gone.

    \b
    clog describe ./orders
    clog describe s3://bucket/orders --partition 3 --json
    """
    from rich.table import Table

    from clog.cli.views import description
    from clog.storage.config.log_config import LogConfig
    from clog.storage.read.scan import partitions_named

    log = open_log(url, options)
    found = log.describe()
    wanted = partitions_named(log.handle.tip.head, partition, url=log.url)
    details = [d for d in found["partition_details"] if d["partition"] in wanted]
    now_ms = log.handle.clock.now_ms()
    actions = _actions(log, found["config"], details, now_ms)
    if json:
        shown = [d | {"next_action": actions[d["partition"]]} for d in details]
        print_json(found | {"partition_details": shown})
        return
    console = stdout()
    page = description(
        found | {"partition_details": details},
        LogConfig.from_overrides({}).as_dict(),
        actions,
        now_ms=now_ms,
        width=console.width,
        ascii_only=console.options.ascii_only,
    )
    for part in page.renderables:
        if isinstance(part, Table):
            print_table(part)
        else:
            console.print(part)


def offsets(
    url: Url,
    *,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Also show the offset of the first record at or after this time: epoch ms or"
            " ISO 8601.",
            show_default=False,
        ),
    ] = None,
    partition: Partition = None,
    options: Options = None,
    json: Json = False,
) -> None:
    r"""Show start and end offsets, and the offset for a time.

    The start offset is the first that can be read; the end offset is the one the next record gets.
    Readers stop at the stable offset: the first record of a transaction that has not ended.

    \b
    clog offsets ./orders
    clog offsets ./orders --time 2026-01-31T12:00:00Z --json
    """
    from clog.storage.read.scan import partitions_named

    time_ms = None if time is None else parse_time_ms(time)
    log = open_log(url, options)
    wanted = partitions_named(log.handle.tip.head, partition, url=log.url)
    starts, ends, stable = log.start_offsets(), log.end_offsets(), log.stable_offsets()
    rows: list[dict[str, int | None]] = [
        {
            "partition": p,
            "start_offset": starts[p],
            "stable_offset": stable[p],
            "end_offset": ends[p],
        }
        for p in wanted
    ]
    if time_ms is not None:
        at = log.offsets_for_times(dict.fromkeys(wanted, time_ms))
        rows = [row | {"offset_for_time": at[p]} for p, row in zip(wanted, rows, strict=True)]
    if json:
        print_json({"url": log.url, "time_ms": time_ms, "partitions": rows})
        return
    if stable == ends:  # Nothing is undecided, as nearly always.
        rows = [{name: n for name, n in row.items() if name != "stable_offset"} for row in rows]
    print_table(_table(rows))


def segments(
    url: Url, *, partition: Partition = None, options: Options = None, json: Json = False
) -> None:
    r"""List the segments; the active one of a partition is last.

    \b
    clog segments ./orders --partition 0
    """
    from clog.storage.read.scan import partitions_named

    log = open_log(url, options)
    wanted = partitions_named(log.handle.tip.head, partition, url=log.url)
    found = {p: [asdict(segment) for segment in log.segments(p)] for p in wanted}
    if json:
        rows = [{"partition": p} | row for p, rows in found.items() for row in rows]
        print_json({"url": log.url, "segments": rows})
        return
    for p, rows in found.items():
        print_table(_table([_readable(row) for row in rows], caption=f"partition {p}"))


def _actions(
    log: "Log", config: dict[str, str], details: list["PartitionDescription"], now_ms: int
) -> dict[int, str]:
    from clog.cleaner.selection import candidates
    from clog.cli.views import next_action
    from clog.storage.config.log_config import LogConfig
    from clog.storage.readers import read_holds

    manifest = log.handle.manifest()
    settings = LogConfig.from_overrides(manifest.head.config)
    holds = read_holds(log.handle, settings, now_ms=now_ms)
    chosen = candidates(manifest, settings, now_ms=now_ms, holds=holds)
    due = {c.partition: c.reason.value for c in chosen}
    return {d["partition"]: next_action(d, config, due.get(d["partition"])) for d in details}


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a segment as a row for people."""
    state = "active" if row["active"] else "clean" if row["clean"] else "dirty"
    largest, horizon = row["largest_timestamp"], row["delete_horizon_ms"]
    return {
        "base": row["base_offset"],
        "next": row["next_offset"],
        "records": row["records"],
        "dead": row["dead_rows"],
        "size": size(row["size_bytes"]),
        "largest timestamp": "" if largest is None else moment(largest),
        "state": state,
        "delete horizon": "" if horizon is None else moment(horizon),
    }


def _table(rows: list[dict[str, Any]], caption: str | None = None) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=caption, title_justify="left")
    for name, value in (rows[0] if rows else {}).items():
        is_number = isinstance(value, int | None)
        title = name.replace("_", " ")
        table.add_column(title, justify="right" if is_number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return count(value) if isinstance(value, int) else str(value)


Forget = Annotated[
    list[str] | None,
    typer.Option(
        "--forget",
        metavar="NAME",
        help="Forget this reader and its position; may be given more than once.",
        show_default=False,
    ),
]


def readers(
    url: Url, *, forget: Forget = None, options: Options = None, json: Json = False
) -> None:
    r"""List the named readers, and what is about to overtake each.

    Log.reader, the Spark option readerId and clog consume --reader give a reader its name. The last
    columns say how long until retention removes records that it has not read, until a tombstone
    that it has not read is removed, until its version expires, and how long the cleaner still
    waits for it.

    \b
    clog readers ./orders
    clog readers ./orders --forget billing
    """
    log = open_log(url, options)
    if forget:
        _forget(log, forget)
    found = log.readers()
    if json:
        shown = [asdict(reader) | {"position": dict(reader.position)} for reader in found]
        print_json({"url": log.url, "readers": shown, "forgotten": forget or []})
        return
    if forget:
        say(f"{counted(len(forget), 'reader')} forgotten")
    if not found:
        say("no named readers")
        return
    print_table(_readers_table(found, log.handle.clock.now_ms()))


def _forget(log: "Log", names: list[str]) -> None:
    """Forgets readers; none of them where one is not known: a name that is misspelt is none."""
    from clog.storage.errors import InvalidInputError

    known = {reader.name for reader in log.readers()}
    for name in names:
        if name not in known:
            there = ", ".join(sorted(known)) or "none"
            raise InvalidInputError(
                f"{log.url} has no reader {name!r}; nobody was forgotten; there are: {there}"
            )
    for name in names:
        log.forget_reader(name)


def _readers_table(found: "list[Reader]", now_ms: int) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("reader", "records", "bytes", "behind", "told"):
        table.add_column(name, justify="left" if name == "reader" else "right")
    for name in ("retention", "tombstone", "version", "waited for"):
        table.add_column(name, justify="right")
    for reader in found:
        if reader.damage is not None:
            table.add_row(reader.name, f"counts for nothing: {reader.damage}")
            continue
        table.add_row(
            *(reader.name, count(reader.lag_records), size(reader.lag_bytes)),
            *(duration(reader.lag_ms), moment(reader.committed_ms)),
            *(
                _left(ms)
                for ms in (
                    reader.until_retention_ms,
                    reader.until_tombstone_ms,
                    reader.until_version_ms,
                )
            ),
            duration(reader.held_until_ms - now_ms) if reader.held_until_ms else "-",
        )
    return table


def _left(ms: int | None) -> str:
    return "-" if ms is None else "overtaken" if ms == 0 else duration(ms)
