"""`clog cost`: requests, bytes and dollars a day, before the bill arrives."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clog.cli.arguments import Json, Options, Url, integer, open_log, quoted
from clog.cli.looking.cost_model import Daily, Past, daily
from clog.cli.looking.prices import PRICES, Prices, prices_named
from clog.cli.output import count, counted, duration, print_json, print_table, say, size
from clog.storage.config import units

if TYPE_CHECKING:
    from clog.storage import Log
    from clog.storage.format.columns import ColumnsRef
    from clog.storage.format.commits import Commit
    from clog.storage.format.edits import Edit
    from clog.storage.format.object_ref import ObjectRef
    from clog.storage.store.base import Store

DAYS_PER_MONTH = 30


def _trigger_ms(text: str) -> int:
    if text.strip().isdecimal():
        raise typer.BadParameter(f"{quoted(text)} has no unit; give 10s for ten seconds")
    try:
        number = units.duration_ms(text)
    except ValueError:
        number = 0
    if number == 0:
        raise typer.BadParameter(f"{quoted(text)} is not an interval; use 500ms, 10s, 5min or 1h")
    return number


def _prices(text: str) -> Prices:
    try:
        return prices_named(text)
    except ValueError as e:
        raise typer.BadParameter(str(e)) from e


Trigger = Annotated[
    int, typer.Option(parser=_trigger_ms, metavar="INTERVAL", help="How often a batch is written.")
]
Readers = Annotated[
    int,
    typer.Option(parser=integer(), metavar="N", help="Number of streams that read the whole log."),
]
Commits = Annotated[
    int,
    typer.Option(parser=integer(2), metavar="N", help="Number of newest commits to examine."),
]
PricesOf = Annotated[
    Prices,
    typer.Option(
        "--prices",
        parser=_prices,
        metavar="|".join((*PRICES, "FILE")),
        help="Provider whose list prices to use, or a file with your own: a JSON object of"
        " name, as_of, put_1000, get_1000, list_1000 and gb_month, in dollars.",
    ),
]


def cost(
    url: Url,
    *,
    trigger: Trigger = "10s",  # type: ignore[assignment] # the parser makes it a number
    readers: Readers = 1,
    prices: PricesOf = "aws",  # type: ignore[assignment] # the parser looks it up
    commits: Commits = 200,
    options: Options = None,
    json: Json = False,
) -> None:
    r"""Estimate what a log costs per day.

    Requests follow from the commit protocol and the trigger interval; objects per batch, bytes and
    cleaning are averages of the newest commits. Costs one GET per commit examined, and one LIST.

    \b
    clog cost s3://bucket/orders --trigger 10s --prices aws
    clog cost ./orders --trigger 1min --readers 3 --json
    """
    log = open_log(url, options)
    found = bill(log, prices, trigger_ms=trigger, readers=readers, commits=commits)
    if json:
        print_json(found.as_json())
        return
    _print(found)


@dataclass(frozen=True, slots=True)
class Bill:
    """What a log costs a day. ``stored_bytes``: with the files that wait to be deleted."""

    url: str
    trigger_ms: int
    readers: int
    past: Past
    prices: Prices
    stored_bytes: int
    lines: Sequence[Daily]

    def dollars(self, line: Daily) -> float:
        """Returns what the requests of a line cost."""
        price = self.prices
        puts, gets, lists = line.puts, line.gets, line.lists
        return (puts * price.put_1000 + gets * price.get_1000 + lists * price.list_1000) / 1000

    @property
    def stored_dollars(self) -> float:
        """What is stored, for a month."""
        return self.stored_bytes / 1e9 * self.prices.gb_month

    def as_json(self) -> dict[str, Any]:
        """Returns it in values that JSON has."""
        return {
            "url": self.url,
            "trigger_ms": self.trigger_ms,
            "readers": self.readers,
            "past": asdict(self.past),
            "prices": asdict(self.prices),
            "stored_bytes": self.stored_bytes,
            "daily": [asdict(line) | {"dollars": self.dollars(line)} for line in self.lines],
        }


def bill(
    log: "Log", prices: Prices, *, trigger_ms: int | None = None, readers: int, commits: int
) -> Bill:
    """Returns what a log costs a day, by the averages of its newest commits; one GET for each of
    them, and one LIST. Without a trigger interval it is the mean one of its appends.
    """
    past = _past(log.handle.store, log.handle.tip, commits)
    if trigger_ms is None:
        trigger_ms = max(1, past.span_ms // max(1, past.appends))
    manifest = log.handle.manifest()
    stored_bytes = sum(r.size_bytes for r in manifest.released) + sum(manifest.files().values())
    reads_back = not log.handle.store.create_is_proven
    lines = daily(past, trigger_ms=trigger_ms, readers=readers, reads_back=reads_back)
    return Bill(log.url, trigger_ms, readers, past, prices, stored_bytes, lines)


def _past(store: "Store", tip: "Commit", commits: int) -> Past:
    """Sums over the newest commits but the creation; one GET for each, and for each large edit."""
    from clog.storage.format.commits import edit_of, read_commit
    from clog.storage.testing.counting import CountingStore

    counted_store = CountingStore(store)
    found = []
    for version in range(max(1, tip.version + 1 - commits), tip.version + 1):
        try:
            found.append(read_commit(counted_store, version))
        except FileNotFoundError:
            continue  # Deleted with its block.
    edits = [edit_of(store, commit.record) for commit in found]
    added = [{c.object for _, c in e.add.chunks} for e in edits if e.add]
    made = [_written(edit) for edit in edits if edit.replace]
    columns = _columns(found)
    return Past(
        span_ms=found[-1].record.time_ms - found[0].record.time_ms if found else 0,
        commits=len(found),
        commit_bytes=counted_store.bytes_in,
        appends=len(added),
        append_objects=sum(map(len, added)),
        append_bytes=sum(o.size_bytes for objects in added for o in objects),
        other_objects=sum(map(len, made)),
        other_bytes=sum(o.size_bytes for objects in made for o in objects),
        snapshots=len({c.head.snapshot for c in found} - {None}),
        snapshot_bytes=_snapshot_bytes(store, tip),
        columns=len(columns),
        columns_bytes=sum(ref.size_bytes for ref in columns),
    )


def _columns(commits: "Sequence[Commit]") -> "set[ColumnsRef]":
    """Returns the documents of columns that were made for these commits."""
    made_at = {commit.version - 1 for commit in commits}
    refs = {commit.head.partitions.ref for commit in commits}
    return {ref for ref in refs if ref is not None and ref.version in made_at}


def _snapshot_bytes(store: "Store", tip: "Commit") -> int:
    from clog.storage.format.paths import snapshot_path

    ref = tip.head.snapshot
    found = [] if ref is None else store.list(snapshot_path(ref.version))
    return sum(snapshot.size_bytes for snapshot in found)


def _written(edit: "Edit") -> "set[ObjectRef]":
    """Returns the objects of a replacement that were not among its sources."""
    old = {path for r in edit.replace for path, _ in r.sources}
    return {c.object for r in edit.replace for c in r.chunks if c.object.path not in old}


def _row(line: Daily, dollars: float) -> dict[str, str]:
    return {
        "a day": line.what,
        "PUT": count(round(line.puts)),
        "GET": count(round(line.gets)),
        "LIST": count(round(line.lists)),
        "written": size(round(line.bytes_out)),
        "read": size(round(line.bytes_in)),
        "dollars": f"{dollars:.2f}",
    }


def _print(found: Bill) -> None:
    from rich.table import Table

    names = ("puts", "gets", "lists", "bytes_out", "bytes_in")
    lines, price, past = found.lines, found.prices, found.past
    total = Daily("all", **{name: sum(getattr(line, name) for line in lines) for name in names})
    table = Table(box=None, pad_edge=False)
    for name in _row(total, 0):
        table.add_column(name, justify="left" if name == "a day" else "right", no_wrap=True)
    for line in (*lines, total):
        table.add_row(*_row(line, found.dollars(line)).values())
    print_table(table)
    month = found.dollars(total) * DAYS_PER_MONTH
    say(
        f"kept: {size(found.stored_bytes)}, {found.stored_dollars:.2f} dollars a month; requests"
        f" {month:.2f} dollars a month at {price.name} list prices of {price.as_of}"
    )
    say(f"today's, and other regions and tiers: {price.source}; your own: --prices FILE")
    say(
        f"from {counted(past.commits, 'commit')}, {past.appends} of them appends,"
        f" over {duration(past.span_ms)}"
    )
