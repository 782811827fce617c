"""The daemon's metrics for Prometheus, computed when they are asked for.

Where Kafka's cleaner has a metric, its name is kept, but for the unit, which is Prometheus's:
seconds, bytes, ratios (``max-dirty-percent`` is ``clog_cleaner_max_dirty_ratio``);
cleaner/README.md has the table.
What Kafka says of each cleaner thread's last pass is said here of each log's.
"""

from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from platform import python_version

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from clog.cleaner.cleaner import Cleaner
from clog.cleaner.compaction.stats import PassResult
from clog.cleaner.daemon.health import ailments, hanging, neglects
from clog.cleaner.daemon.request_meter import RequestMeter
from clog.cleaner.monitor import LogState

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
