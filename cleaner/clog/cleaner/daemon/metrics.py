"""What a daemon reports of itself: whether it is healthy, its metrics, both over HTTP.

*Health* answers two questions, for two kinds of callers: a supervisor that restarts processes calls
`ailments`, and one that wants to know that logs are kept small calls `neglects`. A store that is
away or silent, a read-only log and a writer whose clock is ahead cause a log to be neglected, and a
restart would not help, but would end the passes of all others.

*Metrics* for Prometheus are computed when they are requested; a store counts requests by kind. If
Kafka's cleaner has a metric, its name is kept except for the unit, which is Prometheus's: seconds,
bytes, ratios (``max-dirty-percent`` is ``clog_cleaner_max_dirty_ratio``); cleaner/README.md has the
table. What Kafka reports for each cleaner thread's last pass is reported here for each log's.

*HTTP*: ``/metrics``, ``/healthz``, ``/readyz``, and the page that may come with them: Starlette,
served by uvicorn in a thread. A page that shows records is only for the machine itself, so it is
there only if the address is a loopback one.

*Clients* may not use up the files that the process may open, or rounds would fail. A connection
that its client holds up, as it owes the rest of a request or does not take the answer, is closed
after `PATIENCE_S`, however many bytes came meanwhile. Beyond `CONNECTIONS_MAX` the one that has
been held up for longest is closed at once, or the oldest, if all are being answered: so whoever
sends a request gets an answer.
"""

import asyncio
import ipaddress
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from platform import python_version
from typing import TYPE_CHECKING, Any

import uvicorn
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from clog.cleaner.cleaner import Cleaner
from clog.cleaner.daemon.by_store import ByStore
from clog.cleaner.monitor import Activity, LogState, PartitionState
from clog.cleaner.selection import PassStats
from clog.cleaner.threads import RequestMeter
from clog.storage import Reader
from clog.storage.env import dataclass
from clog.storage.errors import InvalidInputError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

logger = logging.getLogger(__name__)

FAILURES_MAX = 3
"""A log counts as neglected once this many rounds in a row have failed."""
STALLED_MS = 900_000
"""This long without a byte moved or a round begun or ended means that something hangs."""


Watched = Cleaner | ByStore


def ailments(cleaner: Watched) -> list[str]:
    """Returns why the process makes no progress; empty if it does."""
    idle_ms = cleaner.monitor.clock.monotonic_ms() - cleaner.moved_ms
    if idle_ms > STALLED_MS + cleaner.backoff_ms:
        return [f"no activity for {idle_ms // 1000} s"]
    return []


def neglects(cleaner: Watched) -> list[str]:
    """Returns why not every log is looked after; empty if each is. An uncleanable partition is no
    reason: everything else in its log continues (metrics and `clog describe` report it).
    """
    found, unlisted = ailments(cleaner), cleaner.monitor.unlisted()
    if not cleaner.monitor.has_looked():
        found.append("it has not listed all logs yet")
    found += _silent(cleaner)
    found += [f"logs below {url} cannot be listed: {why}" for url, why in unlisted.items()]
    for url, state in cleaner.monitor.logs().items():
        if not state.opened:
            found.append(f"{url} cannot be opened: {state.error}")
        elif state.failures >= FAILURES_MAX:
            rounds = f"{state.failures} rounds failed in a row"
            found.append(f"{url}: {rounds}, most recently with {state.error}")
    found += [
        f"{a.url}: the pass over partition {a.candidate.partition} is stuck"
        for a in hanging(cleaner)
    ]
    return found


def _silences(cleaner: Watched) -> Mapping[str, int]:
    """Returns the stores that are silent, and for how long."""
    return cleaner.silences() if isinstance(cleaner, ByStore) else {}


def _silent(cleaner: Watched) -> list[str]:
    return [
        f"{store} has not answered for {ms // 1000} s, and its logs wait; no others do"
        for store, ms in _silences(cleaner).items()
    ]


def hanging(cleaner: Watched) -> list[Activity]:
    """Returns the passes in which nothing has moved for long; each of them occupies a thread."""
    now_ms = cleaner.monitor.clock.monotonic_ms()
    return [
        activity
        for activity in cleaner.monitor.activities()
        if (moved_ms := activity.progress.moved_ms) is not None and now_ms - moved_ms > STALLED_MS
    ]


def notices(cleaner: Watched) -> list[str]:
    """Returns what somebody should look at, though every log is looked after."""
    return _silent(cleaner) + [
        f"{url}: the {name} view keeps {state.kept[name].objects} objects whose deletion was due"
        f" {state.kept[name].overdue_ms // 1000} s ago; publish it or withdraw it"
        for url, state in cleaner.monitor.logs().items()
        for name in state.stuck
    ]


PREFIX = "clog_cleaner_"

_Samples = Iterable[tuple[tuple[str, ...], float]]
"""Values, each with those of its labels."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What metrics are taken from: the cleaner, its logs as they are now, and their stores."""

    cleaner: Watched
    logs: Mapping[str, LogState]
    stores: Mapping[str, RequestMeter]

    @property
    def opened(self) -> list[tuple[str, LogState]]:
        """The logs of which anything is known: for others, a 0 would look healthy."""
        return [(url, state) for url, state in self.logs.items() if state.opened]

    @property
    def partitions(self) -> list[PartitionState]:
        return [p for state in self.logs.values() for p in state.partitions]

    @property
    def last(self) -> list[PassStats]:
        """The statistics of the last pass of each log."""
        return [state.last_pass.stats for state in self.logs.values() if state.last_pass]


@dataclass(frozen=True, slots=True)
class _Row:
    """A metric: its name, description, source and labels; without labels it is one number."""

    name: str
    doc: str
    take: Callable[[_Seen], float | _Samples]
    labels: tuple[str, ...] = ()
    kind: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily
    prefix: str = PREFIX

    def family(self, seen: _Seen) -> Metric:
        made = self.kind(self.prefix + self.name, self.doc, labels=self.labels)
        found = self.take(seen)
        for labels, value in [((), found)] if isinstance(found, int | float) else found:
            made.add_metric(labels, value)
        return made


def _of_opened(name: str, doc: str, take: Callable[[LogState], float]) -> _Row:
    return _Row(name, doc, lambda seen: [((u,), take(s)) for u, s in seen.opened], ("log",))


def _of_views(name: str, doc: str, take: Callable[[LogState], Iterable[tuple[str, float]]]) -> _Row:
    def by_format(seen: _Seen) -> _Samples:
        return (((url, f), value) for url, s in seen.logs.items() for f, value in take(s))

    return _Row(name, doc, by_format, ("log", "format"))


def _of_readers(
    name: str,
    doc: str,
    take: Callable[[Reader, int], Mapping[str, float | None]],
    by: tuple[str, ...] = (),
) -> _Row:
    """Returns a row of readers; ``take`` gets the time, and its keys are the label ``by``."""

    def by_reader(seen: _Seen) -> _Samples:
        now_ms = seen.cleaner.monitor.clock.now_ms()
        for url, state in seen.logs.items():
            for reader in state.readers:
                for which, value in take(reader, now_ms).items():
                    if value is not None:
                        yield (url, reader.name, *([which] if by else [])), value

    return _Row(name, doc, by_reader, ("log", "reader", *by), prefix="clog_reader_")


def _sum(name: str, doc: str, unit: float = 1) -> _Row:
    """Returns a row that sums up by log; what is counted in ms is shown in seconds."""

    def by_log(seen: _Seen) -> _Samples:
        return (((url,), state.totals[name] / unit) for url, state in seen.logs.items())

    shown = name if unit == 1 else f"{name.removesuffix('_ms')}_seconds"
    return _Row(shown, doc, by_log, ("log",), CounterMetricFamily)


def _of_stores(name: str, doc: str, take: Callable[[RequestMeter], Counter[str]]) -> _Row:
    def by_operation(seen: _Seen) -> _Samples:
        for url, store in list(seen.stores.items()):
            for operation, value in list(take(store).items()):
                yield (url, operation), value

    labels = ("log", "operation")
    return _Row(name, doc, by_operation, labels, CounterMetricFamily, prefix="clog_store_")


def _recopy(seen: _Seen) -> float:
    read = sum(stats.bytes_read for stats in seen.last)
    return sum(stats.bytes_written for stats in seen.last) / max(read, 1)


def _build(_: _Seen) -> _Samples:
    yield (version("pyspark-clog"), python_version(), version("pyarrow")), 1


def _uncleanable(state: LogState) -> list[PartitionState]:
    return [p for p in state.partitions if p.uncleanable is not None]


def _since_run(seen: _Seen) -> float:
    monitor = seen.cleaner.monitor
    return (monitor.clock.monotonic_ms() - monitor.round_ms) / 1000


_METRICS: Sequence[_Row] = (
    _Row(
        *("max_dirty_ratio", "highest dirty ratio of a partition"),
        lambda seen: max((p.dirty_ratio for p in seen.partitions), default=0.0),
    ),
    _Row("recopy_ratio", "bytes written per byte read, in the last passes", _recopy),
    _Row(
        *("max_clean_time_seconds", "duration of the longest of the last passes"),
        lambda seen: max((s.index_ms + s.clean_ms for s in seen.last), default=0) / 1000,
    ),
    _Row(
        *(
            "max_compaction_delay_seconds",
            "how far the most overdue partition is past its deadline",
        ),
        lambda seen: max((p.delay_ms for p in seen.partitions), default=0) / 1000,
    ),
    _Row(
        *("max_buffer_utilization_ratio", "utilization of the fullest map of the last passes"),
        lambda seen: max((s.map_utilization for s in seen.last), default=0.0),
    ),
    _of_opened(
        *("uncleanable_partitions_count", "partitions whose last pass failed"),
        lambda state: len(_uncleanable(state)),
    ),
    _of_opened(
        *("uncleanable_bytes", "cleanable bytes of uncleanable partitions"),
        lambda state: sum(p.cleanable_bytes for p in _uncleanable(state)),
    ),
    _Row(
        *("dirty_ratio", "dirty ratio"),
        lambda seen: (
            ((url, str(p.partition)), p.dirty_ratio)
            for url, state in seen.opened
            for p in state.partitions
        ),
        ("log", "partition"),
    ),
    _of_opened(
        *("undecided_transactions_count", "open transactions that readers wait for"),
        lambda state: state.undecided,
    ),
    _of_opened(
        *("cut_kept_bytes", "bytes of objects kept only for named cuts, past their deletion time"),
        lambda state: state.cut_bytes,
    ),
    _of_opened(
        *("committers_count", "writers that committed in the 10 s before the newest commit"),
        lambda state: state.committers,
    ),
    _of_opened(
        *("waiting_proposals_count", "appends waiting to be included in a commit"),
        lambda state: state.waits.waiting,
    ),
    _of_opened(
        *("waiting_proposals_seconds", "how long the oldest of them has been waiting"),
        lambda state: state.waits.oldest_ms / 1000,
    ),
    _of_opened(
        *("proposal_wait_seconds", "median wait of the proposals that were answered"),
        lambda state: state.waits.median_ms / 1000,
    ),
    _of_opened(
        *("max_proposal_wait_seconds", "longest wait of the proposals that were answered"),
        lambda state: state.waits.longest_ms / 1000,
    ),
    _Row("time_since_last_run_seconds", "time since a round began or ended", _since_run),
    _Row("passes_running", "passes under way", lambda s: len(s.cleaner.monitor.activities())),
    _Row("healthy", "1 if /healthz reports healthy", lambda seen: int(not ailments(seen.cleaner))),
    _Row("ready", "1 if /readyz reports ready", lambda seen: int(not neglects(seen.cleaner))),
    _Row(
        *("dead_thread_count", "threads whose pass has made no progress for a long time"),
        lambda seen: len(hanging(seen.cleaner)),
    ),
    _Row(
        *("log_opened", "0 if the log cannot be opened, so that nothing is done for it"),
        lambda seen: (((url,), int(state.opened)) for url, state in seen.logs.items()),
        ("log",),
    ),
    _Row(
        *("unopened_logs_count", "logs that cannot be opened"),
        lambda seen: len(seen.logs) - len(seen.opened),
    ),
    _Row(
        *("unlisted_folders_count", "folders that cannot be listed"),
        lambda seen: len(seen.cleaner.monitor.unlisted()),
    ),
    _Row(
        *("store_silent_seconds", "how long the store has not answered; absent if it does"),
        lambda seen: (((store,), ms / 1000) for store, ms in _silences(seen.cleaner).items()),
        ("store",),
    ),
    _Row("build_info", "what runs", _build, ("version", "python", "pyarrow"), prefix="clog_"),
    _of_views(
        "publish_lag_seconds",
        "maximum time for which a published view has been behind its log",
        lambda state: ((f, ms / 1000) for f, ms in state.lags_ms.items()),
    ),
    _of_views(
        "publish_kept_bytes",
        "bytes of objects kept only for a published view, past their deletion time",
        lambda state: ((f, kept.size_bytes) for f, kept in state.kept.items()),
    ),
    _of_views(
        "publish_overdue_seconds",
        "how far the oldest of these objects is past its deletion time; grows while the view does"
        " not advance",
        lambda state: ((f, kept.overdue_ms / 1000) for f, kept in state.kept.items()),
    ),
    _of_readers(
        *("lag_records", "records that the reader has not read"),
        lambda reader, _: {"": reader.lag_records},
    ),
    _of_readers(*("lag_bytes", "bytes of these"), lambda reader, _: {"": reader.lag_bytes}),
    _of_readers(
        *("lag_seconds", "age of the oldest record that the reader has not read"),
        lambda reader, _: {"": reader.lag_ms / 1000},
    ),
    _of_readers(
        "overtaken_in_seconds",
        "time until retention, the removal of a tombstone or version expiry overtakes the reader;"
        " 0 if it has",
        lambda reader, _: {
            by: None if left_ms is None else left_ms / 1000
            for by, left_ms in (
                ("retention", reader.until_retention_ms),
                ("tombstone", reader.until_tombstone_ms),
                ("version", reader.until_version_ms),
            )
        },
        ("by",),
    ),
    _of_readers(
        *("held_seconds", "how much longer the cleaner waits for the reader"),
        lambda reader, now_ms: {
            "": max(0, reader.held_until_ms - now_ms) / 1000 if reader.held_until_ms else None
        },
    ),
    _sum("rounds", "rounds over the log"),
    _sum("failed_rounds", "rounds over the log that failed"),
    _sum("passes", "passes that ended"),
    _sum("map_records", "records read to fill offset maps"),
    _sum("records_read", "records of chunks that were replaced"),
    _sum("records_written", "records of replaced chunks that were kept"),
    _sum("records_superseded", "records removed because a later record of their key exists"),
    _sum("records_marked", "records that passes hid, to remove their bytes later"),
    _sum("records_materialised", "records rewritten to remove the bytes of hidden ones"),
    _sum("records_coalesced", "records rewritten from small objects into large ones"),
    _sum("publications", "versions of views that were published"),
    _sum("publications_refused", "failed attempts to bring published views up to date"),
    _sum("records_erased", "records of erased keys that are no longer visible"),
    _sum("erasures_done", "erasures completed, with a receipt"),
    _sum(
        "views_withdrawn",
        "published views that were withdrawn because they could not follow the log",
    ),
    _sum(
        "segments_sealed",
        "active segments sealed because nothing was written to them for a long time",
    ),
    _sum("retention_records", "records of whole segments that retention or the log start removed"),
    _sum(
        "retention_bytes", "record bytes of whole segments that retention or the log start removed"
    ),
    _sum("tombstones_expired", "tombstones removed past their delete horizon"),
    _sum("records_without_key", "records removed because they have no key"),
    _sum(
        "records_late",
        "records that arrived after a tombstone of a higher order was removed: kept or dropped",
    ),
    _sum(
        "records_tied",
        "records with the same order as another record of their key, so that arrival decides",
    ),
    _sum(
        "records_trimmed",
        "records below the log start offset that passes removed; most are removed without being"
        " read",
    ),
    _sum("bytes_read", "bytes that passes read from the store"),
    _sum("bytes_written", "bytes that passes wrote to the store"),
    _sum("size_bytes_before", "record bytes of cleaned segments before cleaning"),
    _sum("size_bytes_after", "record bytes of cleaned segments after cleaning"),
    _sum("index_ms", "seconds to fill maps", 1000),
    _sum("clean_ms", "seconds to clean after filling maps", 1000),
    _of_stores("requests", "requests by kind", lambda store: store.requests),
    _of_stores("failures", "failed requests by kind", lambda store: store.failures),
    _of_stores("bytes", "bytes by kind", lambda store: store.bytes_moved),
)
"""All metrics, a row each, in the order in which they are shown."""


class CleanerCollector(Collector):
    """Reads a cleaner's monitor, and the stores of its logs by their URLs."""

    def __init__(self, cleaner: Watched, stores: Mapping[str, RequestMeter]) -> None:
        self._cleaner = cleaner
        self._stores = stores

    def collect(self) -> Iterator[Metric]:
        seen = _Seen(self._cleaner, self._cleaner.monitor.logs(), self._stores)
        return (row.family(seen) for row in _METRICS)


def registry(cleaner: Watched, stores: Mapping[str, RequestMeter]) -> CollectorRegistry:
    """Returns a registry of the cleaner's metrics and nothing else."""
    made = CollectorRegistry(auto_describe=False)
    made.register(CleanerCollector(cleaner, stores))
    return made


PATIENCE_S = 30.0
CONNECTIONS_MAX = 64
LEAVE_S = 3
"""Answers under way when the server ends may take so long."""
_THIS_HOST = "127.0.0.1"


class MonitorServer:
    """Serves until it is closed, in its own thread, which ends with the process.

    Args:
        address: ``HOST:PORT`` or ``PORT`` (then only on this host); port 0 takes a free one.
        ailments: why the process makes no progress, for ``/healthz``.
        neglects: why it does not look after every log, for ``/readyz``.
        metrics: what ``/metrics`` shows; None: there is no such page.
        page: what is shown at ``/``, if the address is a loopback one.
        notices: what somebody should look at, although the process is healthy.
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
        self._thread.join(2 * LEAVE_S)
        self._socket.close()


def listening(address: str) -> socket.socket:
    """Returns a socket at ``HOST:PORT`` or, on this host, ``PORT``; early connections wait."""
    host, _, port = address.rpartition(":")
    try:
        place = (host.strip("[]") or _THIS_HOST, int(port))
        family = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server(place, family=family)
    except (OSError, ValueError, OverflowError) as e:
        raise InvalidInputError(
            f"cannot listen on {address!r}: {e}; give HOST:PORT or PORT"
        ) from None


def quiet_server(application: "ASGIApp") -> uvicorn.Server:
    """Returns a server that logs failures and nothing about its requests."""
    config = uvicorn.Config(
        application,
        http=_Bounded,
        log_config=None,
        log_level="error",
        access_log=False,
        lifespan="off",
        ws="none",
        backlog=CONNECTIONS_MAX,  # As many are accepted before any is looked at.
        timeout_graceful_shutdown=LEAVE_S,
    )
    return _Server(config)


class _Server(uvicorn.Server):
    """Logs once that no connection can be accepted: asyncio would, thousands of times a second."""

    _is_told = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._tell)
        await super().startup(sockets)

    def _tell(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError):
            loop.default_exception_handler(context)
        elif not self._is_told:
            self._is_told = True
            logger.error("connections cannot be accepted, at least once: %s", error)


class _Bounded(H11Protocol):
    """A connection that ends if the other end holds it up, by the rules of this module.

    ``held_s`` is since when it does, by the loop's time; None while an answer is sought or sent.
    """

    held_s: float | None = None
    made_s: float
    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._hold()
        self.made_s = self.loop.time()
        if len(self.connections) > CONNECTIONS_MAX:
            others: Any = self.connections - {self}
            min(others, key=_by_delay).leave()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_answering and not self.flow.write_paused:
            self._release()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_answering:
            self._hold()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._hold()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._is_answering:
            self._release()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._release()

    def leave(self) -> None:
        """Ends the connection without waiting for the other end."""
        self._release()
        self.connections.discard(self)
        self.transport.abort()

    @property
    def _is_answering(self) -> bool:
        return bool(self.cycle) and not self.cycle.response_complete

    def _hold(self) -> None:
        self._release()
        self.held_s = self.loop.time()
        self._patience = self.loop.call_later(PATIENCE_S, self.leave)

    def _release(self) -> None:
        self.held_s = None
        if self._patience is not None:
            self._patience.cancel()


def _by_delay(connection: _Bounded) -> tuple[bool, float]:
    held_s = connection.held_s
    return held_s is None, connection.made_s if held_s is None else held_s


def _check(
    path: str, found: Callable[[], Sequence[str]], status: str, notices: Callable[[], Sequence[str]]
) -> Route:
    """Answers 200 if nothing is found, else 503 and the reasons; with either, the notices."""

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

        body = generate_latest(metrics)  # type: ignore[arg-type] # only routed if it exists
        return Response(body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    def absent(_: Request, error: Any) -> Response:
        more = "" if page is None else ", and a page at /"
        text = f"see /metrics, /healthz and /readyz{more}\n"
        return PlainTextResponse(text, error.status_code)

    routes += [Route("/metrics", samples)] if metrics is not None else []
    routes += [Mount("/", page)] if page is not None else []
    return Starlette(routes=routes, exception_handlers={404: absent, 405: absent})
