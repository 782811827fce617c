"""`clog cost`: requests, bytes and dollars per day of a log, before the bill arrives.

Requests and bytes follow from COMMIT.md §7, with averages from the log's own history.

A micro-batch costs a PUT for each data object, a PUT for the commit, a GET for its block (and one
that reads the commit back, if exclusive creates are only probed), and a PUT for every fourth
version's hint; a reader costs a GET for each poll, and two for each object that it reads.
Snapshots, columns, maintenance and bytes are assumed to stay as frequent and as large as they were.

Prices of requests and storage are the providers' list prices, as data, with their date and the
address of current ones; or the user's own.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from clog.cli.options import URL, Given, command, duration_given, integer, option, quoted
from clog.cli.output import count, counted, print_table, say, size, table
from clog.storage.spi import duration

if TYPE_CHECKING:
    from clog.storage import Log
    from clog.storage.spi import Written

DAY_MS = 86_400_000
HINT_STRIDE = 4
READ_REQUESTS_PER_OBJECT = 2
LISTS_PER_SWEEP = 7


class Daily(NamedTuple):
    """One line of the bill: requests by kind, and bytes, per day."""

    what: str
    puts: float = 0.0
    gets: float = 0.0
    lists: float = 0.0
    bytes_out: float = 0.0
    bytes_in: float = 0.0


def daily(past: "Written", *, trigger_ms: int, readers: int) -> Sequence[Daily]:
    """Returns the lines for one day at a trigger interval, with readers of the whole log."""
    days = past.span_ms / DAY_MS
    batches = DAY_MS / trigger_ms
    objects = _share(past.append_objects, past.appends, 1.0)
    commit_bytes = _share(past.commit_bytes, past.commits)
    data = _share(past.append_bytes, days)
    others = _share(past.commits - past.appends, days)
    made = _share(past.other_objects, days)
    made_bytes = _share(past.other_bytes, days)
    commits = batches + others
    share = _share(commits, past.commits)
    snapshots, columns = share * past.snapshots, share * past.columns
    written = snapshots * past.snapshot_bytes
    read_back = commits if past.reads_back else 0.0
    lines = (
        Daily("objects of micro-batches", puts=batches * objects, bytes_out=data),
        Daily(
            "commits",
            puts=commits,
            gets=commits + read_back,
            bytes_out=commits * commit_bytes,
            bytes_in=read_back * commit_bytes,
        ),
        Daily("hints", puts=commits / HINT_STRIDE),
        Daily("snapshots and pages", puts=2 * snapshots, gets=snapshots, bytes_out=written),
        Daily("columns of partitions", puts=columns, bytes_out=share * past.columns_bytes),
        Daily("objects of maintenance", puts=made, gets=made, bytes_out=made_bytes),
        Daily(
            "polls of readers",
            gets=readers * (batches + commits),
            bytes_in=readers * commits * commit_bytes,
        ),
        Daily(
            "reads of readers",
            gets=readers * batches * objects * READ_REQUESTS_PER_OBJECT,
            bytes_in=readers * data,
        ),
        Daily("the sweep", lists=LISTS_PER_SWEEP),
    )
    return [line for line in lines if line.what != "columns of partitions" or past.columns]


def _share(amount: float, among: float, else_: float = 0.0) -> float:
    return amount / among if among else else_


class Prices(NamedTuple):
    """Dollars for a thousand requests, by kind, and for a GB (10⁹ bytes) stored for a month."""

    name: str
    as_of: str
    put_1000: float
    get_1000: float
    list_1000: float
    gb_month: float
    source: str


PRICES = {
    "aws": Prices(
        *("S3 Standard, us-east-1", "2025-01", 0.005, 0.0004, 0.005, 0.023),
        source="https://aws.amazon.com/s3/pricing",
    ),
    "aws-express": Prices(
        *("S3 Express One Zone, us-east-1", "2025-04", 0.00113, 0.00003, 0.00113, 0.11),
        source="https://aws.amazon.com/s3/pricing",
    ),
    "gcs": Prices(
        *("Standard, us-central1", "2025-01", 0.005, 0.0004, 0.005, 0.020),
        source="https://cloud.google.com/storage/pricing",
    ),
    "azure": Prices(
        *("Blob hot LRS, East US", "2025-01", 0.005, 0.0004, 0.005, 0.018),
        source="https://azure.microsoft.com/pricing/details/storage/blobs",
    ),
}
"""Storage is at the first tier's price; traffic and S3 Express's charges for bytes are left out."""
APPENDS = {
    1: Daily("appends", puts=2.17, gets=1.08, lists=0),
    8: Daily("appends", puts=2.52, gets=6.41, lists=0.855),
    200: Daily("appends", puts=2.04, gets=6.84, lists=0.439),
}
"""Requests of one small append, by the number of writers that combine, if a request takes 100 ms:
results of ``benchmarks/run.py --only many_writers``.
"""


_DAYS_PER_MONTH = 30
_COMMITS = 200
"""So many of the newest commits are examined."""


def _trigger_ms(text: str) -> int:
    if text.strip().isdecimal():
        raise click.BadParameter(f"{quoted(text)} has no unit; give 10s for ten seconds")
    try:
        number = duration_given(text)
    except click.BadParameter:
        number = 0
    if number == 0:
        raise click.BadParameter(f"{quoted(text)} is not an interval; use 500ms, 10s, 5min or 1h")
    return number


def _prices(text: str) -> Prices:
    """Returns a provider's list prices, or those of a JSON file with the fields of `Prices`."""
    if text in PRICES:
        return PRICES[text]
    form = f"a JSON object of {', '.join(Prices._fields)}"
    try:
        given = json.loads(Path(text).read_text("utf-8"))
    except (OSError, ValueError) as e:
        raise click.BadParameter(
            f"{text!r:.100} is neither one of {', '.join(PRICES)} nor a file with {form}"
        ) from e
    if not isinstance(given, dict) or {*given, "source"} != set(Prices._fields):
        raise click.BadParameter(f"{text} does not contain {form}")
    texts = ("name", "as_of", "source")
    for name, value in given.items():
        is_right = isinstance(value, str) if name in texts else type(value) in (int, float)
        if not is_right or (name not in texts and value < 0):
            raise click.BadParameter(f"{text} has {name}={value!r}; give text, or a number from 0")
    return Prices(**{"source": text, **given})


@command
def cost(
    url: str = URL,
    *,
    trigger: int = option(
        "--trigger INTERVAL", "How often a batch is written.", _trigger_ms, default="10s"
    ),
    readers: int = option(
        "--readers N", "Number of streams that read the whole log.", integer(), default=1
    ),
    prices: Prices = option(
        "--prices aws|aws-express|gcs|azure|FILE",
        "Provider whose list prices to use, or a file with your own: a JSON object of name, as_of,"
        " put_1000, get_1000, list_1000 and gb_month, in dollars.",
        _prices,
        default="aws",
    ),
    given: Given,
) -> None:
    r"""Estimate what a log costs per day.

    Requests follow from the commit protocol and the trigger interval; objects per batch, bytes and
    cleaning are averages of the newest commits. Costs at most 200 GETs, and a LIST.

    \b
    clog cost s3://bucket/orders --trigger 10s --prices aws
    clog cost ./orders --trigger 1min --readers 3 --json
    """
    log = given.open(url)
    found = bill(log, prices, trigger_ms=trigger, readers=readers, commits=_COMMITS)
    given.emit(found.as_json(), lambda: _print(found))


class Bill(NamedTuple):
    """The cost of a log per day."""

    url: str
    trigger_ms: int
    readers: int
    past: "Written"
    prices: Prices
    lines: Sequence[Daily]

    def dollars(self, line: Daily) -> float:
        """Returns the cost of a line's requests."""
        price = self.prices
        puts, gets, lists = line.puts, line.gets, line.lists
        return (puts * price.put_1000 + gets * price.get_1000 + lists * price.list_1000) / 1000

    @property
    def stored_dollars(self) -> float:
        """The cost of the storage for a month."""
        return self.past.stored_bytes / 1e9 * self.prices.gb_month

    @property
    def million_appends(self) -> dict[int, float]:
        """The cost of a million small appends, by the number of writers (`APPENDS`)."""
        return {writers: 1e6 * self.dollars(each) for writers, each in APPENDS.items()}

    def as_json(self) -> dict[str, Any]:
        """Returns the bill as a JSON document."""
        lines = [line._asdict() | {"dollars": self.dollars(line)} for line in self.lines]
        past = self.past._asdict()
        stored_bytes = past.pop("stored_bytes")
        past.pop("reads_back")
        return {
            "url": self.url,
            "trigger_ms": self.trigger_ms,
            "readers": self.readers,
            "past": past,
            "prices": self.prices._asdict(),
            "stored_bytes": stored_bytes,
            "daily": lines,
            "million_appends": {str(n): dollars for n, dollars in self.million_appends.items()},
        }


def bill(
    log: "Log", prices: Prices, *, trigger_ms: int | None = None, readers: int, commits: int
) -> Bill:
    """Returns the cost of a log per day, by averages of its newest commits; one GET for each of
    them, and one LIST. The default trigger interval is the mean interval of its appends.
    """
    from clog.storage.spi import Inside

    past = Inside(log).written(commits)
    if trigger_ms is None:
        trigger_ms = max(1, past.span_ms // max(1, past.appends))
    lines = daily(past, trigger_ms=trigger_ms, readers=readers)
    return Bill(log.url, trigger_ms, readers, past, prices, lines)


def _print(found: Bill) -> None:
    lines, price, past = found.lines, found.prices, found.past
    numbers = Daily._fields[1:]
    total = Daily("all", **{name: sum(getattr(line, name) for line in lines) for name in numbers})
    columns = ("a day", "PUT", "GET", "LIST", "written", "read", "dollars")
    rows = [
        (
            line.what,
            *(count(round(number)) for number in (line.puts, line.gets, line.lists)),
            *(size(round(size_bytes)) for size_bytes in (line.bytes_out, line.bytes_in)),
            f"{found.dollars(line):.2f}",
        )
        for line in (*lines, total)
    ]
    print_table(table(columns, rows, right=columns[1:]))
    month = found.dollars(total) * _DAYS_PER_MONTH
    say(
        f"kept: {size(past.stored_bytes)}, {found.stored_dollars:.2f} dollars a month; requests"
        f" {month:.2f} dollars a month at {price.name} list prices of {price.as_of}"
    )
    each = (f"{dollars:.2f} by {writers}" for writers, dollars in found.million_appends.items())
    say(f"a million small appends, in dollars, by writers at once: {', '.join(each)}")
    say(f"today's prices, other regions and tiers: {price.source}; your own: --prices FILE")
    say(
        f"from {counted(past.commits, 'commit')}, {past.appends} of them appends,"
        f" over {duration(past.span_ms)}"
    )
