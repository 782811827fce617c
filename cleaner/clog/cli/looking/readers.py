"""`clog readers`: who reads a log, how far behind, and what is about to overtake it."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clog.cli.arguments import Json, Options, Url, open_log
from clog.cli.output import count, counted, duration, moment, print_json, print_table, say, size

if TYPE_CHECKING:
    from clog.storage import Log, Reader

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
    print_table(_table(found, log.handle.clock.now_ms()))


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


def _table(found: "list[Reader]", now_ms: int) -> Any:
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
