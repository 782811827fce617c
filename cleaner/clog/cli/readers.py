"""`clog readers`: who reads a log, how far behind, and what is about to overtake it.

`clog transactions`: what has not ended in a log, where, since when, and why it waits.

`clog snapshot`: versions of several logs that belong together, by name.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from clog.cli.describe import transaction_words
from clog.cli.options import URL, Given, argument, command, duration_given, flag, option
from clog.cli.output import count, counted, duration, moment, print_table, say, size, table

if TYPE_CHECKING:
    from clog.storage import Log, Reader, TransactionDescription, TransactionInfo

_COLUMNS = (
    *("reader", "records", "bytes", "behind", "told"),
    *("retention", "tombstone", "version", "waited for"),
)


@command()
def readers(
    url: str = URL,
    *,
    forget: list[str] | None = option(
        "--forget NAME", "Forget this reader and its position; may be given more than once."
    ),
    given: Given,
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
    log = given.open(url)
    if forget:
        _forget(log, forget)
    found = log.readers()

    def draw() -> None:
        if forget:
            say(f"{counted(len(forget), 'reader')} forgotten")
        if not found:
            say("no named readers")
            return
        now_ms = log.handle.clock.now_ms()
        rows = [_row(reader, now_ms) for reader in found]
        print_table(table(_COLUMNS, rows, right=_COLUMNS[1:]))

    shown = [asdict(reader) | {"position": dict(reader.position)} for reader in found]
    given.tell({"url": log.url, "readers": shown, "forgotten": forget or []}, draw)


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


def _row(reader: "Reader", now_ms: int) -> tuple[str, ...]:
    if reader.damage is not None:
        return reader.name, f"counts for nothing: {reader.damage}"
    return (
        reader.name,
        count(reader.lag_records),
        size(reader.lag_bytes),
        duration(reader.lag_ms),
        moment(reader.committed_ms),
        _left(reader.until_retention_ms),
        _left(reader.until_tombstone_ms),
        _left(reader.until_version_ms),
        duration(reader.held_until_ms - now_ms) if reader.held_until_ms else "-",
    )


def _left(ms: int | None) -> str:
    return "-" if ms is None else "overtaken" if ms == 0 else duration(ms)


@command()
def transactions(
    url: str = URL,
    *,
    abort: str | None = option("--abort ID", "End the undecided transactions of this id now."),
    force: bool = flag(
        "--force",
        "With --abort: also if the log that decides cannot be reached (if it had committed the"
        " transaction, its records are lost here), or if another log of the transaction cannot be"
        " reached because it no longer exists.",
    ),
    given: Given,
) -> None:
    r"""List the transactions of a log that have not ended.

    Readers and the cleaner stop before the first record of each. The command first finishes those
    that are decided or past their timeout, as the cleaner does.

    \b
    clog transactions ./orders
    clog transactions ./orders --abort billing
    """
    if force and abort is None:
        raise typer.BadParameter("--force goes with --abort ID")
    from clog.storage.transactions.several import finish_all

    log = given.open(url)
    ended = [] if abort is None else log.abort_transaction(abort, force=force)
    log.handle.refresh()
    waiting = finish_all(log.handle)
    given.tell(
        {
            "url": log.url,
            "ended": [_shown(info) for info in ended],
            "transactions": [{**_shown(w.info), "waits_because": w.reason} for w in waiting],
        },
        [
            *(f"ended transaction {i.number} of {i.id!r}, which was {i.state}" for i in ended),
            *(f"{transaction_words(_shown(w.info))}; it waits: {w.reason}" for w in waiting),
        ]
        or "every transaction has ended",
    )


def _shown(info: "TransactionInfo") -> "TransactionDescription":
    return {
        "id": info.id,
        "epoch": info.epoch,
        "number": info.number,
        "state": info.state,
        "started_ms": info.started_ms,
        "timeout_ms": info.timeout_ms,
        "home": info.home,
        "first_offsets": {str(p): offset for p, offset in info.first_offsets.items()},
    }


@command(writes=True)
def snapshot(
    url: str = URL,
    name: str | None = argument("[NAME]", "The name of the new cut; without one, list.", None),
    *,
    keep: int | None = option(
        "--keep DURATION",
        "How long it is kept, such as 90d; default: until it is dropped.",
        duration_given,
    ),
    without: list[str] | None = option(
        "--without LOG",
        "URL or id of a log that is gone for good: this cut and later ones leave it out; may be"
        " given more than once.",
    ),
    drop: str | None = option("--drop NAME", "Drop this cut: nothing is kept for it any more."),
    force: bool = flag(
        "--force",
        "With --drop: URL is a log that keeps a version for the cut of a home that is gone for"
        " good.",
    ),
    given: Given,
) -> None:
    r"""Name, list or drop cuts over several logs.

    A cut is one version of each log that transactions of this one have written. Of each
    transaction over them it shows all or nothing, and it can be read (Log.table(at=...)) until
    it is dropped or its time is up.

    \b
    clog snapshot ./orders month-end --keep 365d
    clog snapshot ./orders
    clog snapshot ./orders --drop month-end
    """
    if name is not None and drop is not None:
        raise typer.BadParameter("give NAME or --drop NAME")
    if force and drop is None:
        raise typer.BadParameter("--force goes with --drop NAME")
    if name is None and (keep is not None or without):
        raise typer.BadParameter("--keep and --without go with NAME")
    from clog.storage.cuts import cuts_of, drop_cut, name_cut

    home = given.open(url).handle
    said = []
    if name is not None:
        cut = name_cut(home, name, keep, without=without or ())
        said.append(f"named the cut {cut.name} over {counted(len(cut.logs), 'log')}")
    if drop is not None:
        drop_cut(home, drop, force=force)
        said.append(f"dropped the cut {drop}")
    found = cuts_of(home)

    def draw() -> None:
        for line in said:
            say(line)
        for one in found:
            until = "it is dropped" if one.until_ms is None else moment(one.until_ms)
            say(f"{one.name}: of {moment(one.time_ms)}, kept until {until}")
            for of_log, version in one.logs.items():
                say(f"  version {version} of {of_log}")
        if not (said or found):
            say("no named cuts")

    shown = [
        {
            "name": one.name,
            "time_ms": one.time_ms,
            "until_ms": one.until_ms,
            "logs": dict(one.logs),
        }
        for one in found
    ]
    given.tell({"url": home.store.url, "cuts": shown, "dropped": drop}, draw)
