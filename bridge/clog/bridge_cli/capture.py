"""`clog capture`: a PostgreSQL or MySQL database, captured into logs, one per table."""

from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from click import BadParameter

from clog.cli.options import (
    CONFIGS,
    Code,
    Given,
    address,
    argument,
    command,
    configs,
    flag,
    integer,
    option,
    pairs,
    partition_count,
    until_stopped,
    usage_errors,
)
from clog.cli.output import (
    count,
    counted,
    each_minute,
    print_note,
    progress,
    say,
    size,
)
from clog.storage.spi import duration, from_extra

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from prometheus_client.core import Metric

    from clog.bridge import Captured, CapturedTable
    from clog.cleaner.daemon.metrics import MonitorServer
    from clog.storage import Clock

_STALLED_MS: Final = 900_000
"""After this long without progress, something hangs."""
_SHOWN: Final = 3
"""At most this many of the tables that are being loaded are named."""

_OF_POSTGRES: Final = (
    "--events, --publication, --slot-max-mib and --reload TABLE are only for PostgreSQL; MySQL"
    " has --reload all"
)

_TABLES = option(
    "--tables PATTERN",
    "Tables to capture: schema.table, or just table in public; * matches anything. May be"
    " repeated. Default: all.",
)
_EXCLUDE = option("--exclude PATTERN", "Tables to leave out, in the same form.")
_MASKS = option(
    "--mask COLUMN=HOW",
    "schema.table.column=drop leaves the column out; =hash stores a hash keyed with"
    " $CLOG_CAPTURE_HASH_KEY; =text stores its text, whatever its type.",
)
_EVENTS = flag(
    "--events",
    "Capture only the inserts of tables without a usable key, as events. Default: such tables are"
    " an error, unless --exclude leaves them out.",
)
_PUBLICATION = option(
    "--publication NAME",
    "Use an existing publication, with its filters. Default: create one.",
)
_RELOAD = option(
    "--reload TABLE",
    "Load this table again, or all tables with --reload all, which also creates a new slot.",
)
_SLOT_BYTES = option(
    "--slot-max-mib MIB",
    "Drop the replication slot, and end, when the database keeps more than this for it. Default:"
    " only warn.",
    integer(1),
)
_VERIFY = flag(
    "--verify",
    "Capture nothing, but compare the tables with the database, at one snapshot of it and one cut"
    " of the logs. Rows that change in the meantime are skipped. Exit code 1 if others differ.",
)

_LISTEN = option(
    "--listen [HOST:]PORT",
    "Serve /metrics (Prometheus), /healthz and /readyz on this address while following.",
    address,
)


@command
def capture(  # noqa: PLR0913 - one for each option
    source: str = argument(
        "SOURCE",
        "postgres://USER@HOST:PORT/DATABASE?sslmode=…; the password in $PGPASSWORD. Or mysql://…;"
        " the password in $MYSQL_PWD.",
    ),
    url: str = argument("URL", "Folder of the logs, one log per table."),
    *,
    once: bool = flag("--once", "Stop after the changes that exist now. Default: follow."),
    verify: bool = _VERIFY,
    tables: list[str] | None = _TABLES,
    exclude: list[str] | None = _EXCLUDE,
    mask: list[str] | None = _MASKS,
    events: bool = _EVENTS,
    publication: str | None = _PUBLICATION,
    reload: list[str] | None = _RELOAD,
    partitions: int | None = option(
        "--partitions N", "Number of partitions of new logs. Default: 1.", partition_count
    ),
    slot_max_mib: int | None = _SLOT_BYTES,
    listen: str | None = _LISTEN,
    config: list[str] | None = CONFIGS,
    given: Given,
) -> Code | None:
    r"""Capture a database of PostgreSQL, or of MySQL, into logs.

    Each table becomes a typed log at URL/schema.table, keyed by its replica identity, and the log
    at URL names which versions of them belong together: "clog snapshot" of URL has each
    transaction of the database whole or not at all. What is there is loaded first, then the
    database is followed. After a kill, run it again with the same arguments, and it continues; a
    second one takes over. PostgreSQL must be 14 or newer, with wal_level=logical; nothing is
    installed there. MySQL is read by Debezium's engine in this process: extra capture-debezium, and
    Java 17.

    \b
    clog capture postgres://clog@db:5432/shop s3://bucket/shop --once
    clog capture postgres://clog@db/shop s3://bucket/shop --tables 'sales.*'
    clog capture postgres://clog@db/shop ./shop --mask public.users.email=hash
    clog capture postgres://clog@db/shop s3://bucket/shop --verify
    """
    from clog import bridge

    masks = pairs(mask, what="--mask")
    names = reload or []
    is_mysql = source.startswith("mysql:")
    if is_mysql and (events or publication or slot_max_mib or set(names) - {"all"}):
        raise BadParameter(_OF_POSTGRES)
    _check(source, masks)
    if verify:
        return _verify(source, url, tables or (), exclude or (), given)
    with until_stopped() as should_stop, _reporting(given, listen, once=once) as on_progress:
        both: dict[str, Any] = {
            "once": once,
            "tables": tables or (),
            "exclude": exclude or (),
            "masks": masks,
            "reload": True if "all" in names else names,
            "partitions": partitions or 1,
            "config": configs(config),
            "on_progress": on_progress,
            "should_stop": should_stop,
            **given.reach,
        }
        if is_mysql:
            both["reload"] = bool(names)
            done = bridge.capture_mysql(source, url, bridge.CaptureSettings(**both))
        else:
            of_postgres = bridge.PostgresSettings(
                **both,
                events=events,
                publication=publication,
                slot_bytes_max=None if slot_max_mib is None else slot_max_mib << 20,
            )
            done = bridge.capture(source, url, of_postgres)
    given.emit(asdict(done), lambda: _say(done))
    return Code.INTERRUPTED if should_stop() else None


def _check(source: str, masks: dict[str, str]) -> None:
    """Refuses an invalid address, and invalid masks."""
    from clog.bridge.capturing.tables import Choice, hash_key
    from clog.bridge.mysql.engine import Server
    from clog.bridge.postgres.source import Source
    from clog.storage import SystemIds

    with usage_errors():
        Server(source, SystemIds()) if source.startswith("mysql:") else Source(source)
        hash_key(Choice(masks=masks).masks.values())


class Watched:
    """The progress of a capture, for those who watch it over HTTP; `take` sets it."""

    def __init__(self, clock: "Clock") -> None:
        self._clock = clock
        self._newest: tuple[Captured | None, int] = None, clock.monotonic_ms()

    def take(self, captured: "Captured") -> None:
        """Takes the newest progress."""
        self._newest = captured, self._clock.monotonic_ms()

    def ailments(self) -> list[str]:
        """Returns why the process makes no progress; empty if it does."""
        still_ms = self._clock.monotonic_ms() - self._newest[1]
        why = f"no activity for {still_ms // 1000} s"
        return [why] if still_ms > _STALLED_MS else []

    def neglects(self) -> list[str]:
        """Returns why no cut can be read."""
        captured = self._newest[0]
        if captured is None:
            return ["it has not started yet"]
        loading = [name for name, table in captured.tables.items() if table.is_loading]
        lacks = [] if captured.position else ["there is no cut yet"]
        return lacks + [f"{name} is being loaded" for name in loading] + self.ailments()

    def collect(self) -> "Iterator[Metric]":
        """Yields the metrics for Prometheus's client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        captured = self._newest[0]
        if captured is None:
            return
        for name, what, value in _GAUGES:
            yield GaugeMetricFamily(f"clog_capture_{name}", what, value(captured))
        what = "transactions of the database that were captured"
        yield CounterMetricFamily("clog_capture_transactions", what, captured.transactions)
        for name, what, of_table in _OF_TABLES:
            family = CounterMetricFamily(f"clog_capture_{name}", what, labels=["table"])
            for table, one in captured.tables.items():
                family.add_metric([table], of_table(one))
            yield family


_GAUGES: "Sequence[tuple[str, str, Callable[[Captured], float]]]" = (
    (
        *("lag_bytes", "bytes of write-ahead log beyond the newest cut"),
        lambda captured: captured.lag_bytes,
    ),
    (
        *("lag_seconds", "time since the newest transaction of the cut, if newer ones exist"),
        lambda captured: captured.lag_ms / 1000,
    ),
    (
        *("slot_bytes", "bytes of write-ahead log that the database keeps for the slot"),
        lambda captured: captured.slot_bytes,
    ),
    (
        *("loading_tables_count", "tables being loaded"),
        lambda captured: sum(table.is_loading for table in captured.tables.values()),
    ),
)
_OF_TABLES: "Sequence[tuple[str, str, Callable[[CapturedTable], float]]]" = (
    ("rows", "rows captured, tombstones included", lambda table: table.rows),
    ("loaded_rows", "rows of the newest initial load", lambda table: table.loaded),
)


def _server(address: str, watched: Watched) -> "MonitorServer":
    """Serves metrics and checks."""
    with from_extra("metrics", "--listen", "prometheus_client", "starlette", "uvicorn"):
        from prometheus_client.registry import CollectorRegistry

        from clog.cleaner.daemon.metrics import MonitorServer
    metrics = CollectorRegistry(auto_describe=False)
    metrics.register(watched)
    server = MonitorServer(address, watched.ailments, watched.neglects, metrics)
    print_note(f"/metrics, /healthz and /readyz on http://{server.address}")
    return server


def _verify(
    source: str, url: str, tables: "Sequence[str]", exclude: "Sequence[str]", given: Given
) -> Code | None:
    """Compares tables with the database."""
    from clog.bridge import TableSettings, verify_capture, verify_capture_mysql

    with progress(hidden=given.json) as bars:
        bar = bars.add_task("comparing", total=None)
        settings = TableSettings(
            tables=tables,
            exclude=exclude,
            on_progress=lambda name: bars.update(bar, description=f"comparing {name}"),
            **given.reach,
        )
        run = verify_capture_mysql if source.startswith("mysql:") else verify_capture
        found = run(source, url, settings)
    lines = []
    for one in found.tables:
        rows = f"{counted(one.rows, 'row')} in the database, {count(one.log_rows)} in the log"
        apart = f"{counted(one.ranges, 'range')} of keys differ" if one.ranges else "all equal"
        meanwhile = f"; {counted(one.changed, 'changed key')} skipped" if one.changed else ""
        lines.append(f"{one.table}: {rows}, {apart}{meanwhile}")
        lines += [
            f"{one.table}: {f'{row.key}: ' if row.key else ''}{row.why}" for row in one.differences
        ]
    lines += [f"{name}: not compared: {why}" for name, why in found.skipped.items()]
    given.emit(asdict(found), lines)
    return None if found.is_equal else Code.FAILED


@contextmanager
def _reporting(
    given: Given, listen: str | None, *, once: bool
) -> "Iterator[Callable[[Captured], None]]":
    """Yields a function that shows the progress, and serves it at the address ``listen``."""
    from clog.storage import SystemClock

    watched = Watched(SystemClock())
    with ExitStack() as open_things:
        if listen is not None:
            open_things.callback(_server(listen, watched).close)
        show = open_things.enter_context(_shown(given, once=once))

        def on_progress(done: "Captured") -> None:
            watched.take(done)
            show(done)

        yield on_progress


@contextmanager
def _shown(given: Given, *, once: bool) -> "Iterator[Callable[[Captured], None]]":
    """Yields a function that shows the progress: bars, or lines if there is no terminal."""
    emit = each_minute(json=given.json)
    bars_of: dict[str, Any] = {}
    with progress(hidden=given.json) as bars:

        def on_progress(done: "Captured") -> None:
            for name, table in done.tables.items():
                if table.is_loading and name not in bars_of:
                    bars_of[name] = bars.add_task(f"loading {name}", total=None)
                if (bar := bars_of.get(name)) is not None:
                    most = max(table.expected, table.loaded)
                    bars.update(
                        bar,
                        completed=table.loaded,
                        total=most if table.is_loading else table.loaded,
                    )
            is_loading = any(table.is_loading for table in done.tables.values())
            if bars.disable and (is_loading or not once) and not (once and given.json):
                emit(lambda: asdict(done), lambda: _pace(done))

        yield on_progress


def _pace(done: "Captured") -> str:
    loading = {name: table for name, table in done.tables.items() if table.is_loading}
    if loading:
        largest = sorted(loading, key=lambda name: -loading[name].expected)[:_SHOWN]
        parts = [
            f"{name} {count(loading[name].loaded)}{_of_about(loading[name].expected)} rows"
            for name in largest
        ]
        if more := len(loading) - len(parts):
            parts.append(f"and {counted(more, 'more table')}")
        return f"loading {', '.join(parts)}"
    slot = f"; the slot keeps {size(done.slot_bytes)}" if done.slot_bytes else ""
    return (
        f"{counted(done.transactions, 'transaction')} captured; {size(done.lag_bytes)} and"
        f" {duration(done.lag_ms)} behind{slot}"
    )


def _of_about(expected: int) -> str:
    return f" of about {count(expected)}" if expected else ""


def _say(done: "Captured") -> None:
    for name, table in done.tables.items():
        loaded = f", {counted(table.loaded, 'row')} of it loaded" if table.loaded else ""
        say(f"{name}: {counted(table.rows, 'change')}{loaded}; {table.url} version {table.version}")
        for note in _notes(name, table):
            print_note(note)
    at = f"at one cut, {done.position}" if done.position else "without a cut yet"
    taken, many = counted(done.transactions, "transaction"), counted(len(done.tables), "table")
    say(f"{taken}; {many} {at}; {size(done.lag_bytes)} behind")
    for name in done.events:
        print_note(
            f"{name}: only inserts, as events, because updates and deletes do not identify a row"
        )
    for name, where in done.filters.items():
        print_note(f"{name}: only rows that pass the publication's filter: {where}")


def _notes(name: str, table: "CapturedTable") -> "Iterator[str]":
    for column, why in {**table.left, **table.notes}.items():
        yield f"{name}.{column}: {why}"
