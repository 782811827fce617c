"""`clog transactions`: what has not ended in a log, where, since when, and why it waits."""

from typing import TYPE_CHECKING, Annotated

import typer

from clog.cli.arguments import Json, Options, Url, open_log
from clog.cli.output import print_json, say

if TYPE_CHECKING:
    from clog.storage import TransactionDescription, TransactionInfo

Abort = Annotated[
    str | None,
    typer.Option("--abort", metavar="ID", help="End the undecided transactions of this id now."),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="With --abort: also if the log that decides cannot be reached (if it had committed the"
        " transaction, its records are lost here), or if another log of the transaction cannot be"
        " reached because it no longer exists.",
    ),
]


def transactions(
    url: Url,
    *,
    abort: Abort = None,
    force: Force = False,
    options: Options = None,
    json: Json = False,
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
    from clog.cli.views.describe_view import transaction_words
    from clog.storage.transactions.finishing import finish_all

    log = open_log(url, options)
    ended = [] if abort is None else log.abort_transaction(abort, force=force)
    log.handle.refresh()
    waiting = finish_all(log.handle)
    if json:
        left = [{**_shown(w.info), "waits_because": w.reason} for w in waiting]
        print_json(
            {"url": log.url, "ended": [_shown(info) for info in ended], "transactions": left}
        )
        return
    for info in ended:
        say(f"ended transaction {info.number} of {info.id!r}, which was {info.state}")
    for w in waiting:
        say(f"{transaction_words(_shown(w.info))}; it waits: {w.reason}")
    if not (ended or waiting):
        say("every transaction has ended")


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
