"""What a daemon tells of itself: whether it is well, its metrics, and both over HTTP; JSON logs.

*Health* answers two questions, for two who ask: who starts processes again asks `ailments`, and who
wants to know that logs are kept small asks `neglects`. A store that is away, a log that may only be
read and a writer whose clock is ahead neglect a log, and to start again would mend nothing, but end
the passes of all others.

*Metrics* for Prometheus are computed when they are asked for, requests by kind counted by a store.
Where Kafka's cleaner has a metric, its name is kept, but for the unit, which is Prometheus's:
seconds, bytes, ratios (``max-dirty-percent`` is ``clog_cleaner_max_dirty_ratio``);
cleaner/README.md has the table. What Kafka says of each cleaner thread's last pass is said here of
each log's.

*HTTP*: ``/metrics``, ``/healthz``, ``/readyz``, and whatever page comes beside them: Starlette,
served by uvicorn in a thread. A page that shows records is only for the machine itself, so it is
there only where the address is a loopback one. A connection that says nothing for `PATIENCE_S` is
closed, else strangers could take all files that the process may open.
"""

import asyncio
import builtins
import ipaddress
import json
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from platform import python_version
from typing import TYPE_CHECKING, Any, TypeVar

import uvicorn
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from clog.cleaner.cleaner import Cleaner
from clog.cleaner.monitor import Activity, LogState
from clog.cleaner.passes.stats import PassResult
from clog.storage.errors import InvalidInputError, StoreUnavailableError
from clog.storage.store.contract import Store, StoredObject, WrappingStore, coalesce

if TYPE_CHECKING:
    from starlette.types import ASGIApp

FAILURES_MAX = 3
"""Rounds in a row that may fail before a log counts as neglected."""
STALLED_MS = 900_000
"""So long without a byte, a round's beginning or its end: something hangs."""


def ailments(cleaner: Cleaner) -> list[str]:
    """Returns why the process makes no progress; empty when it does."""
    idle_ms = cleaner.monitor.clock.monotonic_ms() - cleaner.moved_ms
    if idle_ms > STALLED_MS + cleaner.backoff_ms:
        return [f"nothing was read, written or looked at for {idle_ms // 1000} s"]
    return []


def neglects(cleaner: Cleaner) -> list[str]:
    """Returns why not every log is looked after; empty when each is. A partition that is
    uncleanable is no reason: all else in its log goes on (metrics and `clog describe` tell of it).
    """
    found, unlisted = ailments(cleaner), cleaner.monitor.unlisted()
    if unlisted is None:
        found.append("it has not looked for logs yet")
    found += [f"logs below {url} are not found: {why}" for url, why in (unlisted or {}).items()]
    for url, state in cleaner.monitor.logs().items():
        if not state.opened:
            found.append(f"{url} cannot be opened: {state.error}")
        elif state.failures >= FAILURES_MAX:
            rounds = f"{state.failures} rounds failed in a row"
            found.append(f"{url}: {rounds}, the last with {state.error}")
    found += [
        f"{a.url}: the pass over partition {a.candidate.partition} hangs" for a in hanging(cleaner)
    ]
    return found


def hanging(cleaner: Cleaner) -> list[Activity]:
    """Returns the passes in which nothing has moved for long: each has a thread to itself."""
    now_ms = cleaner.monitor.clock.monotonic_ms()
    return [
        activity
        for activity in cleaner.monitor.activities()
        if (moved_ms := activity.progress.moved_ms) is not None and now_ms - moved_ms > STALLED_MS
    ]


def notices(cleaner: Cleaner) -> list[str]:
    """Returns what somebody has to look at, though every log is looked after."""
    return [
        f"{url}: the {name} view keeps {state.kept[name].objects} objects that were to be deleted"
        f" {state.kept[name].overdue_ms // 1000} s ago; publish it, or withdraw it"
        for url, state in cleaner.monitor.logs().items()
        for name in state.stuck
    ]


_T = TypeVar("_T")


class RequestMeter(WrappingStore):
    """Passes everything on.

    Attributes:
        requests: by operation; ranges of one object count as the requests that fetch them.
        failures: of these, those that the filesystem did not answer as it should.
        bytes_moved: by operation.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self.requests: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.bytes_moved: Counter[str] = Counter()

    def __reduce__(self) -> tuple[Callable[[Store], Store], tuple[Store]]:
        """Pickles as the store: nobody here sees what another process asks of it."""
        return _itself, (self.inner,)

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        data = self._metered("get", 1, lambda: self.inner.get(path, start, end))
        self._moved("get", len(data))
        return data

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        requests = len(coalesce(ranges))
        parts = self._metered("get", requests, lambda: self.inner.get_ranges(path, ranges))
        self._moved("get", sum(map(len, parts)))
        return parts

    def put(self, path: str, data: bytes | memoryview) -> None:
        self._metered("put", 1, lambda: self.inner.put(path, data))
        self._moved("put", memoryview(data).nbytes)

    def create(self, path: str, data: bytes) -> None:
        self._metered("create", 1, lambda: self.inner.create(path, data))
        self._moved("create", len(data))

    def delete(self, path: str) -> None:
        self._metered("delete", 1, lambda: self.inner.delete(path))

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return self._listed(lambda: self.inner.list(prefix))

    def list_temporary(self, prefix: str) -> Iterator[StoredObject]:
        return self._listed(lambda: self.inner.list_temporary(prefix))

    def _listed(self, call: Callable[[], Iterator[StoredObject]]) -> Iterator[StoredObject]:
        with self._counted("list", 1):
            yield from call()

    def _metered(self, operation: str, requests: int, call: Callable[[], _T]) -> _T:
        with self._counted(operation, requests):
            return call()

    @contextmanager
    def _counted(self, operation: str, requests: int) -> Iterator[None]:
        with self._lock:
            self.requests[operation] += requests
        try:
            yield
        except StoreUnavailableError:
            with self._lock:
                self.failures[operation] += 1
            raise

    def _moved(self, operation: str, size_bytes: int) -> None:
        with self._lock:
            self.bytes_moved[operation] += size_bytes


def _itself(store: Store) -> Store:
    return store


PREFIX = "clog_cleaner_"

COUNTERS = {
    "rounds": "rounds over the log",
    "failed_rounds": "of these, rounds that failed",
    "passes": "passes that ended",
    "map_records": "records read to fill offset maps",
    "records_read": "records of chunks that were replaced",
    "records_written": "of these, records that stayed",
    "records_superseded": "records removed for a later one of their key",
    "records_marked": "records that passes made invisible, their bytes go later",
    "records_materialised": "records rewritten so that the bytes of marked ones go",
    "records_coalesced": "records rewritten from small objects into big ones",
    "publications": "versions of published views made",
    "publications_refused": "tries to bring published views up to date that failed",
    "views_withdrawn": "published views that could not follow, and show nothing since",
    "segments_sealed": "active segments sealed because nobody had written to them for long",
    "retention_records": "records of whole segments that retention or the log start removed",
    "retention_bytes": "record bytes of these",
    "tombstones_expired": "tombstones removed after their delete horizon",
    "records_without_key": "invalid records: those without a key, removed",
    "records_trimmed": "records below the log start offset that passes met: most go before, unread",
    "bytes_read": "bytes that passes read from the store",
    "bytes_written": "bytes that passes wrote to the store",
    "size_bytes_before": "record bytes of cleaned segments, before",
    "size_bytes_after": "the same after: the difference is the size reduction",
}
"""Sums by log -> what they count."""
_SECONDS = {"index_ms": "seconds to fill maps", "clean_ms": "seconds to clean after that"}


class CleanerCollector(Collector):
    """Reads a cleaner's monitor, and the stores of its logs by their URLs."""

    def __init__(self, cleaner: Cleaner, stores: Mapping[str, RequestMeter]) -> None:
        self._cleaner = cleaner
        self._stores = stores

    def collect(self) -> Iterator[Metric]:
        logs = self._cleaner.monitor.logs()
        yield from _kafkas(logs)
        monitor = self._cleaner.monitor
        since_ms = monitor.clock.monotonic_ms() - monitor.round_ms
        yield _gauge("time_since_last_run_seconds", "since a round began or ended", since_ms / 1000)
        yield _gauge("passes_running", "passes under way", len(monitor.activities()))
        yield _gauge("healthy", "1 when /healthz says so", int(not ailments(self._cleaner)))
        yield _gauge("ready", "1 when /readyz says so", int(not neglects(self._cleaner)))
        hung = len(hanging(self._cleaner))
        yield _gauge("dead_thread_count", "threads in whose pass nothing moves for long", hung)
        yield from _left_out(logs, monitor.unlisted() or {})
        yield _build_info()
        yield from _lags(logs)
        yield from _readers(logs, monitor.clock.now_ms())
        yield from _sums(logs)
        yield from _requests(self._stores)


def registry(cleaner: Cleaner, stores: Mapping[str, RequestMeter]) -> CollectorRegistry:
    """Returns a registry of the cleaner's metrics and nothing else."""
    made = CollectorRegistry(auto_describe=False)
    made.register(CleanerCollector(cleaner, stores))
    return made


def _build_info() -> Metric:
    labels = {
        "version": version("pyspark-clog"),
        "python": python_version(),
        "pyarrow": version("pyarrow"),
    }
    family = GaugeMetricFamily("clog_build_info", "what runs", labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


def _kafkas(logs: Mapping[str, LogState]) -> Iterator[Metric]:
    """Yields the metrics that Kafka has."""
    last = [state.last_pass for state in logs.values() if state.last_pass is not None]
    partitions = [p for state in logs.values() for p in state.partitions]
    dirtiest = max((p.dirty_ratio for p in partitions), default=0.0)
    yield _gauge("max_dirty_ratio", "dirty ratio of the dirtiest partition", dirtiest)
    yield _gauge("recopy_ratio", "bytes written of bytes read, last passes", _recopy(last))
    longest_ms = max((r.stats.index_ms + r.stats.clean_ms for r in last), default=0)
    yield _gauge("max_clean_time_seconds", "longest of the last passes", longest_ms / 1000)
    delay_ms = max((p.delay_ms for p in partitions), default=0)
    yield _gauge("max_compaction_delay_seconds", "longest past its deadline", delay_ms / 1000)
    fullest = max((r.stats.map_utilization for r in last), default=0.0)
    yield _gauge("max_buffer_utilization_ratio", "fullest map, last passes", fullest)
    count = GaugeMetricFamily(
        PREFIX + "uncleanable_partitions_count", "partitions whose pass failed", labels=["log"]
    )
    size = GaugeMetricFamily(
        PREFIX + "uncleanable_bytes", "cleanable bytes of these", labels=["log"]
    )
    ratio = GaugeMetricFamily(PREFIX + "dirty_ratio", "dirty ratio", labels=["log", "partition"])
    undecided = GaugeMetricFamily(
        PREFIX + "undecided_transactions_count",
        "those that hold readers back",
        labels=["log"],
    )
    for url, state in logs.items():
        if not state.opened:
            continue  # Nobody knows: a 0 would look well.
        undecided.add_metric([url], state.undecided)
        uncleanable = [p for p in state.partitions if p.uncleanable is not None]
        count.add_metric([url], len(uncleanable))
        size.add_metric([url], sum(p.cleanable_bytes for p in uncleanable))
        for p in state.partitions:
            ratio.add_metric([url, str(p.partition)], p.dirty_ratio)
    yield from (count, size, ratio, undecided)


def _left_out(logs: Mapping[str, LogState], unlisted: Mapping[str, str]) -> Iterator[Metric]:
    """Yields what should be looked after, and is not."""
    opened = GaugeMetricFamily(
        PREFIX + "log_opened", "0: it cannot be opened, so nothing is done for it", labels=["log"]
    )
    for url, state in logs.items():
        opened.add_metric([url], int(state.opened))
    yield opened
    unopened = sum(not state.opened for state in logs.values())
    yield _gauge("unopened_logs_count", "logs that cannot be opened", unopened)
    yield _gauge("unlisted_folders_count", "folders that cannot be listed", len(unlisted))


def _readers(logs: Mapping[str, LogState], now_ms: int) -> Iterator[Metric]:
    """Yields how far named readers are behind, and what is about to overtake them (S64)."""
    labels = ["log", "reader"]
    records = GaugeMetricFamily("clog_reader_lag_records", "records it has not read", labels=labels)
    size = GaugeMetricFamily("clog_reader_lag_bytes", "bytes of these", labels=labels)
    time = GaugeMetricFamily("clog_reader_lag_seconds", "since the first of these", labels=labels)
    until = GaugeMetricFamily(
        "clog_reader_overtaken_in_seconds",
        "until retention, the removal of a tombstone or version expiry overtakes it; 0: it has",
        labels=[*labels, "by"],
    )
    held = GaugeMetricFamily(
        "clog_reader_held_seconds", "for how long the cleaner still waits for it", labels=labels
    )
    for url, state in logs.items():
        for reader in state.readers:
            at = [url, reader.name]
            if reader.held_until_ms:
                held.add_metric(at, max(0, reader.held_until_ms - now_ms) / 1000)
            records.add_metric(at, reader.lag_records)
            size.add_metric(at, reader.lag_bytes)
            time.add_metric(at, reader.lag_ms / 1000)
            for by, left_ms in (
                ("retention", reader.until_retention_ms),
                ("tombstone", reader.until_tombstone_ms),
                ("version", reader.until_version_ms),
            ):
                if left_ms is not None:
                    until.add_metric([*at, by], left_ms / 1000)
    yield from (records, size, time, until, held)


def _lags(logs: Mapping[str, LogState]) -> Iterator[Metric]:
    lag = GaugeMetricFamily(
        PREFIX + "publish_lag_seconds",
        "for how long a published view has not shown what the log has, at most",
        labels=["log", "format"],
    )
    kept = GaugeMetricFamily(
        PREFIX + "publish_kept_bytes",
        "objects that are kept for a published view alone, past their time",
        labels=["log", "format"],
    )
    overdue = GaugeMetricFamily(
        PREFIX + "publish_overdue_seconds",
        "for how long the first of these; it grows where the view does not move on",
        labels=["log", "format"],
    )
    for url, state in logs.items():
        for name, lag_ms in state.lags_ms.items():
            lag.add_metric([url, name], lag_ms / 1000)
        for name, view in state.kept.items():
            kept.add_metric([url, name], view.size_bytes)
            overdue.add_metric([url, name], view.overdue_ms / 1000)
    yield from (lag, kept, overdue)


def _sums(logs: Mapping[str, LogState]) -> Iterator[Metric]:
    for name, doc in COUNTERS.items():
        family = CounterMetricFamily(PREFIX + name, doc, labels=["log"])
        for url, state in logs.items():
            family.add_metric([url], state.totals[name])
        yield family
    for name, doc in _SECONDS.items():
        family = CounterMetricFamily(
            f"{PREFIX}{name.removesuffix('_ms')}_seconds", doc, labels=["log"]
        )
        for url, state in logs.items():
            family.add_metric([url], state.totals[name] / 1000)
        yield family


def _requests(stores: Mapping[str, RequestMeter]) -> Iterator[Metric]:
    labels = ["log", "operation"]
    requests = CounterMetricFamily("clog_store_requests", "requests by kind", labels=labels)
    failures = CounterMetricFamily("clog_store_failures", "of these, failed", labels=labels)
    moved = CounterMetricFamily("clog_store_bytes", "bytes by kind", labels=labels)
    for url, store in list(stores.items()):
        for family, counter in (
            (requests, store.requests),
            (failures, store.failures),
            (moved, store.bytes_moved),
        ):
            for operation, value in list(counter.items()):
                family.add_metric([url, operation], value)
    yield from (requests, failures, moved)


def _recopy(last: Iterable[PassResult]) -> float:
    results = list(last)
    read = sum(r.stats.bytes_read for r in results)
    return sum(r.stats.bytes_written for r in results) / max(read, 1)


def _gauge(name: str, doc: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, doc, value=value)


PATIENCE_S = 30.0
_THIS_HOST = "127.0.0.1"


class MonitorServer:
    """Serves until it is closed, in a thread of its own that ends with the process.

    Args:
        address: ``HOST:PORT`` or ``PORT`` (then this host alone); port 0 takes a free one.
        ailments: why the process makes no progress, for ``/healthz``.
        neglects: why it does not look after every log, for ``/readyz``.
        metrics: what ``/metrics`` shows; None: it is absent.
        page: what is shown at ``/``, where the address is a loopback one.
        notices: what somebody has to look at, though the process is well.

    Raises:
        InvalidInputError: no such address, or it is taken.
    """

    def __init__(
        self,
        address: str,
        ailments: Callable[[], Sequence[str]],
        neglects: Callable[[], Sequence[str]],
        metrics: "CollectorRegistry | None",
        page: "ASGIApp | None" = None,
        *,
        notices: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._socket = listening(address)
        host = str(self._socket.getsockname()[0])
        self.has_page = page is not None and ipaddress.ip_address(host).is_loopback
        routes: list[Any] = [
            _check("/healthz", ailments, "unhealthy", notices),
            _check("/readyz", neglects, "not ready", notices),
        ]
        application = _application(routes, metrics, page if self.has_page else None)
        self._server = quiet_server(application)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """Where it listens."""
        host, port = self._socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def close(self) -> None:
        """Stops serving."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


def listening(address: str) -> socket.socket:
    """Returns a socket that listens at ``HOST:PORT`` or, on this host alone, at ``PORT``: who
    connects before a server runs waits for it.

    Raises:
        InvalidInputError: no such address, or it is taken.
    """
    host, _, port = address.rpartition(":")
    try:
        place = (host.strip("[]") or _THIS_HOST, int(port))
        family = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server(place, family=family)
    except (OSError, ValueError, OverflowError) as e:
        raise InvalidInputError(
            f"cannot listen at {address!r}: {e}; give HOST:PORT or PORT"
        ) from None


def quiet_server(application: "ASGIApp") -> uvicorn.Server:
    """Returns a server that logs what went wrong, and nothing of its requests."""
    config = uvicorn.Config(
        application,
        http=_Hurried,
        log_config=None,
        log_level="error",
        access_log=False,
        lifespan="off",
        ws="none",
    )
    return uvicorn.Server(config)


class _Hurried(H11Protocol):
    """Closes a connection whose other end owes a request and says nothing."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._patience is not None:
            self._patience.cancel()

    def _wait(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        answering = bool(self.cycle) and not self.cycle.response_complete
        self._patience = (
            None if answering else self.loop.call_later(PATIENCE_S, self.transport.close)
        )


def _check(
    path: str,
    found: Callable[[], Sequence[str]],
    status: str,
    notices: Callable[[], Sequence[str]],
) -> Route:
    """Returns what answers 200 where nothing is found, else 503, a status and the reasons; with
    either, the notices.
    """

    def check(_: Request) -> Response:
        reasons = list(found())
        state = status if reasons else "ok"
        answer = {"status": state, "reasons": reasons, "notices": list(notices())}
        return JSONResponse(answer, 503 if reasons else 200)

    return Route(path, check)


def _application(
    routes: list[Any], metrics: "CollectorRegistry | None", page: "ASGIApp | None"
) -> Starlette:
    def samples(_: Request) -> Response:
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        body = generate_latest(metrics)  # type: ignore[arg-type] # routed where it is there
        return Response(body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    def absent(_: Request, error: Any) -> Response:
        more = "" if page is None else ", and a page at /"
        text = f"there are /metrics, /healthz and /readyz{more}\n"
        return PlainTextResponse(text, error.status_code)

    routes += [Route("/metrics", samples)] if metrics is not None else []
    routes += [Mount("/", page)] if page is not None else []
    return Starlette(routes=routes, exception_handlers={404: absent, 405: absent})


class JsonFormatter(logging.Formatter):
    """``time`` (UTC), ``level``, ``logger``, ``message``; ``error`` with the traceback, if any."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
