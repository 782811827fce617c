"""`clog cleaner`: the daemon that keeps logs clean; `clog ui`: logs in a browser (`page`)."""

import logging
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from clog.cli.clean import (
    CLEANER_CONFIGS,
    DRY_RUN,
    broker_settings,
    cleaner_settings,
    configs_given,
    drawn,
    maintenance_json,
    maintenance_lines,
    pass_json,
    pass_text,
    planned,
    print_plans,
    view,
    warn_uncleanable,
)
from clog.cli.options import (
    STOPPING,
    URLS,
    Code,
    Given,
    address,
    check_logs_named,
    command,
    flag,
    left_in_time,
    option,
    usage_errors,
    waiting_for,
)
from clog.cli.output import (
    JsonFormatter,
    SafeFormatter,
    counted,
    print_error,
    print_json_line,
    print_note,
    say,
)
from clog.storage.env import from_extra

if TYPE_CHECKING:
    from clog.cleaner import Cleaner, MaintenanceResult, PassResult
    from clog.cleaner.daemon.broker_config import BrokerConfig, Finder
    from clog.cleaner.daemon.by_store import ByStore
    from clog.cleaner.daemon.metrics import MonitorServer
    from clog.cleaner.log_round import PlannedRound
    from clog.storage import Log

_THREADS = "log.cleaner.threads"
_WATCH_READERS_MS = 60_000
"""The interval at which a log's named readers are listed, if metrics are served."""


@command
def cleaner(
    urls: list[str] | None = URLS,
    *,
    discover: list[str] | None = option(
        "--discover PREFIX", "Clean every log below this folder, including logs created later."
    ),
    config: list[str] | None = CLEANER_CONFIGS,
    listen: str | None = option(
        "--listen [HOST:]PORT",
        "Serve /metrics (Prometheus), /healthz and /readyz on this address; on a loopback address"
        " also the page of clog ui at /, with the cleaner's activity.",
        address,
    ),
    spark: bool = flag(
        "--spark",
        "Clean in tasks of a Spark session (the job's, under spark-submit): log.cleaner.threads at"
        " a time, by default as many as it can run; the buffer and the limit are per task.",
    ),
    live: bool = flag("--live", "Show progress in the terminal."),
    once: bool = flag(
        "--once",
        "Run one round over all logs, then exit; with 1 if a partition is uncleanable or a log"
        " was skipped, or if --discover finds none.",
    ),
    allow_none: bool = flag(
        "--allow-none", "With --once: finding no log below --discover is no error."
    ),
    dry_run: bool = DRY_RUN,
    given: Given,
) -> Code | None:
    r"""Keep logs clean until stopped.

    Each pass prints a line; with --json each is JSON, and log messages are, too. Failures are
    logged and retried. A log below --discover that cannot be
    opened is left out until it can. Ctrl-C, SIGTERM and SIGHUP stop it within seconds.

    \b
    clog cleaner ./orders
    clog cleaner --discover s3://b/logs -c log.cleaner.threads=4 --listen 9404
    clog cleaner ./orders --dry-run
    """
    check_logs_named(urls, discover)
    _log_to_stderr(json=given.json, live=live)
    settings = broker_settings(config)
    if listen is not None and (once or dry_run):
        print_note("--listen has no effect with --once; leave it out")
    named = (urls or (), discover or (), given.storage)
    finders = _finders(named, single_writer=given.single_writer)
    teller = _Teller(json=given.json, live=live)
    logs: list[Log] = []
    first = partial(_first, finders, logs, given.storage)
    if dry_run:
        for store in finders:
            first(store, patient=False)
        return _dry_run(logs, settings, teller)
    make = _in_tasks(config, settings) if spark else None
    daemon = _daemon(make, settings, finders, teller, watched=bool(listen) and not once)
    with left_in_time(daemon.silences, code=0), ExitStack() as open_things:
        if once:
            daemon.run_once(lambda store: first(store, patient=False))
            return _outcome(teller, logs, finders, allow_none=allow_none)
        if listen is not None:  # First: monitoring must not wait for stores.
            open_things.callback(_server(listen, daemon, finders, named).close)
        if live:
            open_things.enter_context(drawn(lambda: view(daemon.monitor)))
        daemon.run(partial(first, patient=True, daemon=daemon), partial(_stop_by_signals, daemon))
    return None


_Named = tuple[Sequence[str], Sequence[str], Mapping[str, object]]
"""Logs, folders of logs, and the storage options of both."""


def _finders(named: _Named, *, single_writer: bool) -> "dict[str, Finder]":
    """Returns what finds the logs of each store that is named."""
    from clog.cleaner.daemon.broker_config import Finder
    from clog.storage.env import SystemClock, SystemIds
    from clog.storage.store.opening import store_of

    urls, prefixes, options = named
    of = {place: store_of(place) for place in (*urls, *prefixes)}
    own: dict[str, Any] = {"clock": SystemClock(), "ids": SystemIds(), "stores": {}}
    return {
        store: Finder(
            [url for url in urls if of[url] == store],
            [prefix for prefix in prefixes if of[prefix] == store],
            options,
            **own,
            single_writer=single_writer,
        )
        for store in dict.fromkeys(of.values())
    }


def _first(
    finders: "Mapping[str, Finder]",
    logs: "list[Log]",
    options: "Mapping[str, object]",
    store: str,
    *,
    patient: bool,
    daemon: "ByStore | None" = None,
) -> None:
    """Adds the existing logs of a store; says what a ``daemon`` is going to clean."""

    @contextmanager
    def asking(url: str) -> "Iterator[None]":
        with ExitStack() as around:
            if daemon is not None:
                daemon.monitor.looked()
                around.enter_context(daemon.asking(store))
            around.enter_context(waiting_for(url, options))
            yield

    found = finders[store].first(patient=patient, asking=asking)
    logs += found
    of = f" of {store}" if len(finders) > 1 else ""
    if not found:
        print_note(f"found no log{of} below {', '.join(finders[store].prefixes)} yet")
    if daemon is not None:
        print_note(f"cleaning {counted(len(found), 'log')}{of}; Ctrl-C stops within seconds")


def _outcome(
    teller: "_Teller", logs: "Sequence[Log]", finders: "Mapping[str, Finder]", *, allow_none: bool
) -> Code | None:
    """Says what a round left undone: fails if a partition is uncleanable, a log was left out, or
    none was there: the folder may be misspelt.
    """
    found = {log.url: sorted(log.handle.manifest().uncleanable) for log in logs}
    if not any(found.values()):
        teller.nothing_due(logs)
    for url, partitions in found.items():
        if partitions:
            warn_uncleanable(url, partitions)
    left_out = [url for one in finders.values() for url in (*one.unopened, *one.unlisted)]
    if left_out:
        print_error(f"skipped, for the reasons above: {', '.join(left_out)}")
    elif not logs and not allow_none:
        below = ", ".join(prefix for one in finders.values() for prefix in one.prefixes)
        print_error(f"there is no log below {below}; correct it, or give --allow-none", "not_found")
        return Code.FAILED
    return Code.FAILED if left_out or any(found.values()) else None


class _Teller:
    """Prints on standard output what is done; nothing for people beside the live view."""

    def __init__(self, *, json: bool, live: bool) -> None:
        self.json = json
        self._live = live
        self._printed = 0

    def nothing_due(self, logs: "Sequence[Log]") -> None:
        """Prints, after a round, that there was nothing to do, if so."""
        if self._printed:
            return
        if self.json:
            print_json_line({"logs": len(logs), "nothing_due": True})
        else:
            say(f"nothing was due in {counted(len(logs), 'log')}")

    def passed(self, log: "Log", result: "PassResult") -> None:
        """Prints a pass."""
        self._print(log, pass_json(result), [pass_text(result)])

    def maintained(self, log: "Log", done: "MaintenanceResult") -> None:
        """Prints what was sealed, and what retention removed."""
        self._print(log, maintenance_json([done]), maintenance_lines([done]))

    def _print(self, log: "Log", document: "Mapping[str, object]", lines: "Sequence[str]") -> None:
        self._printed += 1
        if self.json:
            print_json_line({"url": log.url, **document})
        elif not self._live:
            for line in lines:
                say(f"{log.url}: {line}")


def _in_tasks(config: list[str] | None, settings: "BrokerConfig") -> "Callable[..., Cleaner]":
    """Returns a function that makes a cleaner whose passes are Spark tasks."""
    from clog.jobs.cleaning import SparkCleaner, spark_session

    tasks = settings.threads if _THREADS in configs_given(config) else None
    with from_extra("spark", "--spark", "pyspark"):
        spark = spark_session()
    return partial(SparkCleaner, spark, tasks=tasks)


def _daemon(
    make: "Callable[..., Cleaner] | None",
    settings: "BrokerConfig",
    finders: "Mapping[str, Finder]",
    teller: "_Teller",
    *,
    watched: bool,
) -> "ByStore":
    """Returns the cleaners that ``make`` makes; if that is None, ones that work in this process."""
    from clog.cleaner import Cleaner
    from clog.cleaner.daemon.by_store import ByStore
    from clog.cleaner.passes.offset_map import save_memory

    save_memory()
    of_one = partial(
        make or partial(Cleaner, threads=settings.threads),
        (),
        dedupe_buffer_bytes=settings.dedupe_buffer_bytes,
        io_bytes_per_second=settings.io_bytes_per_second,
        backoff_ms=settings.backoff_ms,
        settings=cleaner_settings(settings, watch_readers_ms=_WATCH_READERS_MS if watched else 0),
        on_pass=teller.passed,
        on_maintained=teller.maintained,
    )
    cleaners: dict[str, Cleaner] = {}
    for store, finder in finders.items():
        beside = next(iter(cleaners.values()), None)
        cleaners[store] = of_one(clock=finder.clock, find=finder, beside=beside)
    return ByStore(cleaners)


def _stop_by_signals(daemon: "ByStore") -> None:
    """Makes SIGINT, SIGTERM and SIGHUP stop the cleaner; not SIGHUP under ``nohup``."""
    for number in STOPPING:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: daemon.stop())


def _server(
    address: str, daemon: "ByStore", finders: "Mapping[str, Finder]", named: _Named
) -> "MonitorServer":
    """Serves metrics, and the page with the logs that are given or found."""
    with from_extra("metrics", "--listen", "prometheus_client", "starlette", "uvicorn"):
        from clog.cleaner.daemon.metrics import MonitorServer, ailments, neglects, notices, registry
        from clog.cli.page import ShownCleaner, ShownLogs
        from clog.cli.serving import application
    finder = next(iter(finders.values()))
    shown = ShownLogs(*named, clock=finder.clock)
    page = application(shown, ShownCleaner(daemon.monitor))
    checks = partial(ailments, daemon), partial(neglects, daemon)
    server = MonitorServer(
        address, *checks, registry(daemon, finder.stores), page, notices=partial(notices, daemon)
    )
    beside = ", and a page at /" if server.has_page else ""
    print_note(f"/metrics, /healthz and /readyz{beside} on http://{server.address}")
    return server


def _dry_run(logs: "Iterable[Log]", settings: "BrokerConfig", teller: "_Teller") -> Code | None:
    """Prints what would be done in each log, and which logs cannot be read."""
    from clog.storage.errors import ClogError

    failed: list[str] = []

    def plans() -> "Iterator[tuple[str, PlannedRound]]":
        for log in logs:
            try:
                mine = planned(log, settings)
            except ClogError as e:
                failed.append(log.url)
                print_error(str(e), e.kind)
            else:
                yield log.url, mine

    print_plans(plans(), json=teller.json)
    return Code.FAILED if failed else None


def _log_to_stderr(*, json: bool, live: bool) -> None:
    """Sends log messages, and in JSON also warnings, to standard error as lines."""
    if live and json:
        raise click.BadParameter("--live draws, which --json must not; leave one out")
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(SafeFormatter(JsonFormatter() if json else text))
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    if json:
        logging.captureWarnings(capture=True)


@command
def ui(
    urls: list[str] | None = URLS,
    *,
    discover: list[str] | None = option(
        "--discover PREFIX", "Show every log below this folder, including logs created later."
    ),
    listen: str = option(
        "--listen [HOST:]PORT",
        "Port on this machine; 0 takes any. With a host, the address for others, which requires a"
        " token or a proxy.",
        address,
        default="8470",
    ),
    token_variable: str | None = option(
        "--token-variable NAME",
        "Environment variable with a token: open the page once with /?token=…; programs send it"
        " as Authorization: Bearer.",
    ),
    proxy_header: str | None = option(
        "--proxy-header NAME",
        "Header that a proxy sets to the logged-in user, such as X-Forwarded-User; only the proxy"
        " may be able to reach the port.",
    ),
    host: list[str] | None = option(
        "--host NAME",
        "A host name under which the page may be reached; default: any, with --listen.",
    ),
    mask: list[str] | None = option(
        "--mask PATH", "Do not show this column: key, value, value.user.email, headers."
    ),
    given: Given,
) -> None:
    r"""Show logs in a browser.

    Shows partitions with their clean, dirty and active parts, commits and passes, records by
    offset, time and key, and the table at any readable version. The server only reads, and answers
    only this machine unless --listen says otherwise.

    \b
    clog ui ./orders
    clog ui --discover s3://bucket/logs --listen 9000
    """
    check_logs_named(urls, discover)
    token = _token(token_variable)
    place = listen.rpartition(":")[0]
    if place and not (token or proxy_header):
        raise click.BadParameter("--listen HOST:PORT needs --token-variable or --proxy-header")
    if place and proxy_header and not host:
        raise click.BadParameter(
            "--proxy-header needs --host: the name under which the proxy is reached; without it,"
            " a page of any other name could be made to reach this one"
        )
    with from_extra("ui", "clog ui", "prometheus_client", "starlette", "uvicorn"):
        from clog.cleaner.daemon.metrics import listening, quiet_server
        from clog.cli.page import ShownLogs
        from clog.cli.serving import Access, application
    from clog.storage.env import SystemClock

    own: dict[str, Any] = {"clock": SystemClock(), "masks": mask or ()}
    with usage_errors():
        shown = ShownLogs(urls or (), discover or (), given.storage, **own)
        shown.check_masks()
    shown.look()
    for url, why in shown.unlisted.items():
        print_note(f"logs below {url} cannot be listed: {why}")
    names = host or (["*"] if place else Access().hosts)
    access = Access([*names, *Access().hosts], token, proxy_header or "")
    with listening(listen) as socket:
        say(f"http://{place or '127.0.0.1'}:{socket.getsockname()[1]}  (Ctrl-C stops)")
        with left_in_time(code=0):
            quiet_server(application(shown, access=access)).run(sockets=[socket])


def _token(variable: str | None) -> str:
    """Returns the token in an environment variable, which must be set."""
    if variable is None:
        return ""
    if not (token := os.environ.get(variable, "")):
        raise click.BadParameter(f"--token-variable: ${variable} is not set")
    return token
