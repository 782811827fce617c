"""`clog cleaner`: the daemon that keeps logs clean."""

import logging
import signal
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clog.cli.arguments import (
    Json,
    Options,
    SingleWriter,
    Urls,
    check_logs_named,
    choice,
    environment_object,
    integer,
    pairs,
    quoted,
    storage_options,
    usage_errors,
    waiting_for,
)
from clog.cli.clean import DryRun
from clog.cli.output import ERRORS_AS, counted, print_error, print_json_line, print_note, say
from clog.cli.ui import ShownLogs
from clog.cli.views import (
    maintenance_json,
    maintenance_lines,
    pass_json,
    pass_text,
    tell_plans,
    tell_uncleanable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from clog.cleaner import Cleaner, MaintenanceResult, PassResult
    from clog.cleaner.daemon.broker_config import BrokerConfig, Finder
    from clog.cleaner.daemon.metrics import MonitorServer, RequestMeter
    from clog.cleaner.dry_run import PlannedRound
    from clog.storage import Log

ENVIRONMENT = "CLOG_CLEANER_CONFIG"
THREADS = "log.cleaner.threads"
WATCH_READERS_MS = 60_000
"""How far apart the named readers of a log are listed, where somebody may ask for metrics."""
METRICS = ("prometheus_client", "starlette", "uvicorn")
"""What the extra `metrics` brings."""


def _address(text: str) -> str:
    """Returns an address to listen at, as it was given.

    Raises:
        typer.BadParameter: it is none.
    """
    try:
        integer(0, 65_535)(text.rpartition(":")[2])
    except typer.BadParameter:
        what = f"{quoted(text)} is not [HOST:]PORT, such as 9404 or 0.0.0.0:9404"
        raise typer.BadParameter(what) from None
    return text


Discover = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PREFIX",
        help="Clean every log below this folder, including logs created later.",
        show_default=False,
    ),
]
BrokerConfigs = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="NAME=VALUE",
        help="A config by its Kafka broker name, such as log.cleaner.threads=2 or"
        f" log.retention.hours=48: a log's own config wins. Also ${ENVIRONMENT}, a JSON object.",
        show_default=False,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        parser=integer(1),
        metavar="N",
        help="log.cleaner.threads: number of partitions cleaned in parallel.",
        show_default="1",
    ),
]
Listen = Annotated[
    str | None,
    typer.Option(
        metavar="[HOST:]PORT",
        parser=_address,
        help="Serve /metrics (Prometheus), /healthz and /readyz here; on a loopback address also"
        " the page of clog ui at /, with what the cleaner does.",
        show_default=False,
    ),
]
LogFormat = Annotated[
    Literal["text", "json"],
    typer.Option(
        parser=choice("text", "json"),
        metavar="text|json",
        help="Format of what is logged on standard error; json makes all output JSON lines.",
    ),
]
Spark = Annotated[
    bool,
    typer.Option(
        "--spark",
        help="Clean in tasks of a Spark session, under spark-submit the job's: --threads at once,"
        " by default as many as it has room for; the buffer and the limit are each task's.",
    ),
]
Live = Annotated[bool, typer.Option("--live", help="Show progress in the terminal.")]
Once = Annotated[
    bool,
    typer.Option(
        "--once",
        help="Run one round over all logs, then exit; with 1 if a partition is uncleanable, or a"
        " log was left out.",
    ),
]


def cleaner(  # noqa: PLR0913 - one for each option
    urls: Urls = None,
    *,
    discover: Discover = None,
    threads: Threads = None,
    config: BrokerConfigs = None,
    listen: Listen = None,
    log_format: LogFormat = "text",
    spark: Spark = False,
    live: Live = False,
    once: Once = False,
    dry_run: DryRun = False,
    options: Options = None,
    single_writer: SingleWriter = False,
    json: Json = False,
) -> None:
    r"""Keep logs clean until stopped.

    Each pass prints a line. Failures are logged and retried. A log below --discover that cannot be
    opened is left out until it can. Ctrl-C, SIGTERM and SIGHUP stop it within seconds.

    \b
    clog cleaner ./orders
    clog cleaner --discover s3://bucket/logs --threads 4 --listen 9404
    clog cleaner ./orders --dry-run
    """
    check_logs_named(urls, discover)
    if live and log_format == "json":
        raise typer.BadParameter("--live draws, --log-format json must not; leave one out")
    _log_to_stderr(log_format)
    settings = _settings(config, threads)
    if listen is not None and (once or dry_run):
        print_note("--listen serves nothing here: one round is soon over")
    finder = _finder(urls, discover, options, single_writer=single_writer)
    given, teller = storage_options(options), _Teller(json or log_format == "json", live)
    if dry_run:
        logs = _first(finder, given, patient=False)
        failed: list[str] = []
        tell_plans(_plans(logs, settings, failed), json=teller.json)
        if failed:
            raise typer.Exit(1)
        return
    make = _in_tasks(config, threads) if spark else _in_threads(settings)
    if once:
        logs = _first(finder, given, patient=False)
        daemon = _daemon(make, logs, settings, finder, teller, watched=False)
        _run_once(daemon, teller, logs, finder)
        return
    daemon = _daemon(make, (), settings, finder, teller, watched=listen is not None)
    shown = ShownLogs(urls or (), discover or (), given, clock=finder.clock)
    with ExitStack() as open_things:
        if listen is not None:  # First: who watches the process shall not wait for stores.
            open_things.callback(_serve(listen, daemon, finder.stores, shown).close)
        logs = _first(finder, given, patient=True, looked=daemon.monitor.looked)
        print_note(f"cleaning {counted(len(logs), 'log')}; Ctrl-C stops within seconds")
        if live:
            from clog.cli.views import watching

            open_things.enter_context(watching(daemon.monitor))
        _stop_by_signals(daemon)
        daemon.run()


def _first(
    finder: "Finder",
    options: "Mapping[str, object]",
    *,
    patient: bool,
    looked: "Callable[[], None]" = lambda: None,
) -> "list[Log]":
    """Returns the logs there are; before each is asked for, something ``looked``."""

    @contextmanager
    def asking(url: str) -> "Iterator[None]":
        looked()
        with waiting_for(url, options):
            yield

    logs = finder.first(patient=patient, asking=asking)
    if not logs:
        print_note("found no log yet")
    return logs


def _run_once(
    daemon: "Cleaner", teller: "_Teller", logs: "Sequence[Log]", finder: "Finder"
) -> None:
    """Ends the command with 1, and says why, where a partition is uncleanable then, or a log was
    left out.
    """
    daemon.run_once()
    teller.nothing_due(logs)
    found = {log.url: sorted(log.handle.manifest().uncleanable) for log in logs}
    for url, partitions in found.items():
        if partitions:
            tell_uncleanable(url, partitions)
    left_out = [*finder.unopened, *finder.unlisted]
    if left_out:
        print_error(f"left out, for the reasons above: {', '.join(left_out)}")
    if left_out or any(found.values()):
        raise typer.Exit(1)


def _finder(
    urls: list[str] | None,
    prefixes: list[str] | None,
    options: list[str] | None,
    *,
    single_writer: bool,
) -> "Finder":
    from clog.cleaner.daemon.broker_config import Finder
    from clog.storage.env import SystemClock, SystemIds

    return Finder(
        urls or (),
        prefixes or (),
        storage_options(options),
        clock=SystemClock(),
        ids=SystemIds(),
        single_writer=single_writer,
    )


@dataclass
class _Teller:
    """Tells on standard output what is done; not beside the live view."""

    json: bool
    live: bool
    told: int = 0

    def nothing_due(self, logs: "Sequence[Log]") -> None:
        """Tells, after a round, that there was nothing to do, if there was nothing."""
        if self.told:
            return
        if self.json:
            print_json_line({"logs": len(logs), "nothing_due": True})
        else:
            say(f"nothing was due in {counted(len(logs), 'log')}")

    def passed(self, log: "Log", result: "PassResult") -> None:
        """Tells a pass."""
        self.told += 1
        if self.json:
            print_json_line({"url": log.url} | pass_json(result))
        elif not self.live:
            say(f"{log.url}: {pass_text(result)}")

    def maintained(self, log: "Log", done: "MaintenanceResult") -> None:
        """Tells what was sealed, and what went by retention."""
        self.told += 1
        if self.json:
            print_json_line({"url": log.url} | maintenance_json([done]))
        elif not self.live:
            for line in maintenance_lines([done]):
                say(f"{log.url}: {line}")


def _settings(config: list[str] | None, threads: int | None) -> "BrokerConfig":
    """Returns the environment's config, over it the command line's."""
    from clog.cleaner.daemon.broker_config import broker_config

    with usage_errors():
        return broker_config(_given(config, threads))


def _given(config: list[str] | None, threads: int | None) -> dict[str, object]:
    given = {**environment_object(ENVIRONMENT), **pairs(config)}
    return given if threads is None else given | {THREADS: threads}


def _in_threads(settings: "BrokerConfig") -> "Callable[..., Cleaner]":
    """Returns what makes a cleaner of this process."""
    from clog.cleaner import Cleaner

    return partial(Cleaner, threads=settings.threads)


def _in_tasks(config: list[str] | None, threads: int | None) -> "Callable[..., Cleaner]":
    """Returns what makes a cleaner whose passes are Spark tasks.

    Raises:
        InvalidInputError: there is no Spark.
    """
    from clog.jobs.cleaning import SparkCleaner, spark_session

    tasks = _settings(config, threads).threads if THREADS in _given(config, threads) else None
    try:
        spark = spark_session()
    except ModuleNotFoundError as e:
        if e.name is None or e.name.partition(".")[0] != "pyspark":
            raise
        from clog.storage.env import install_extra
        from clog.storage.errors import InvalidInputError

        raise InvalidInputError(f"--spark needs pyspark: {install_extra('spark')}") from e
    return partial(SparkCleaner, spark, tasks=tasks)


def _daemon(
    make: "Callable[..., Cleaner]",
    logs: "Iterable[Log]",
    settings: "BrokerConfig",
    finder: "Finder",
    teller: _Teller,
    *,
    watched: bool,
) -> "Cleaner":
    from clog.cleaner.log_round import CleanerSettings
    from clog.cleaner.passes.offset_map import save_memory

    save_memory()
    return make(
        logs,
        dedupe_buffer_bytes=settings.dedupe_buffer_bytes,
        io_bytes_per_second=settings.io_bytes_per_second,
        clock=finder.clock,
        backoff_ms=settings.backoff_ms,
        settings=CleanerSettings(
            defaults=settings.defaults,
            compaction=settings.compaction,
            retention_check_ms=settings.retention_check_ms,
            hash_algorithm=settings.hash_algorithm,
            watch_readers_ms=WATCH_READERS_MS if watched else 0,
        ),
        on_pass=teller.passed,
        on_maintained=teller.maintained,
        find=finder,
    )


def _stop_by_signals(daemon: "Cleaner") -> None:
    """Makes the signals that end processes stop the cleaner; not SIGHUP where that is ignored, as
    ``nohup`` has it.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: daemon.stop())


def _serve(
    address: str, daemon: "Cleaner", stores: "Mapping[str, RequestMeter]", shown: "ShownLogs"
) -> "MonitorServer":
    try:
        from clog.cleaner.daemon.metrics import MonitorServer, registry
        from clog.cli.ui import ShownCleaner, application
    except ModuleNotFoundError as e:
        if e.name is None or e.name.partition(".")[0] not in METRICS:
            raise
        from clog.storage.env import install_extra
        from clog.storage.errors import InvalidInputError

        raise InvalidInputError(f"--listen needs {e.name}: {install_extra('metrics')}") from e
    from clog.cleaner.daemon.metrics import ailments, neglects, notices

    page = application(shown, ShownCleaner(daemon.monitor))
    checks = partial(ailments, daemon), partial(neglects, daemon)
    server = MonitorServer(
        address, *checks, registry(daemon, stores), page, notices=partial(notices, daemon)
    )
    beside = ", and a page at /" if server.has_page else ""
    print_note(f"/metrics, /healthz and /readyz{beside} on http://{server.address}")
    return server


def _plans(
    logs: "Iterable[Log]", settings: "BrokerConfig", failed: list[str]
) -> "Iterator[tuple[str, PlannedRound]]":
    """Yields what would be done over each log; the URLs of those that cannot be read are added to
    ``failed``, and the errors told.
    """
    from clog.cleaner.dry_run import plan_round
    from clog.storage.errors import ClogError

    for log in logs:
        try:
            planned = plan_round(
                log.handle,
                now_ms=log.handle.clock.now_ms(),
                compaction=settings.compaction,
                defaults=settings.defaults,
            )
        except ClogError as e:
            failed.append(log.url)
            print_error(str(e), e.kind)
        else:
            yield log.url, planned


def _log_to_stderr(log_format: str) -> None:
    """Makes all that is logged, and in JSON also errors and warnings, lines on standard error."""
    from clog.cleaner.daemon.metrics import JsonFormatter
    from clog.cli.output import SafeFormatter

    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(SafeFormatter(JsonFormatter() if log_format == "json" else text))
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    if log_format == "json":
        ERRORS_AS.set("log")
        logging.captureWarnings(capture=True)
