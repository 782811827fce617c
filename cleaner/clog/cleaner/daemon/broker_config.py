"""The daemon's config, under the names that a Kafka broker uses (S45).

There are two kinds of names. ``log.cleaner.threads`` and the like are about the process. The
others, such as ``log.retention.hours``, are defaults for logs that do not set the config
themselves; only those that the cleaner alone reads are accepted. What writers must also know has to
be set on the log: a default in this process would not reach them.

A daemon looks after the logs that it was given, and those that it finds below a prefix; a `Finder`
is for those of one store (`by_store`).

What the command line names must exist when the daemon starts, and only that: a log that was found
may be damaged, or of a newer clog, or no log at all, and a folder unreadable, without harm to any
other (as in Kafka, KIP-112, KIP-346). It is skipped, reported with the reason, again if that
changes, and retried, later each time (S28). So is a store that is away, also at the start.

A log that appears below a prefix is found within `DISCOVER_MS`, and one that was deleted there is
dropped as soon; a log that was given by its URL is never dropped.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from functools import partial
from typing import Any

from clog.cleaner.cleaner import FoundLogs
from clog.cleaner.log_round import Rest
from clog.cleaner.threads import RequestMeter
from clog.storage import Log
from clog.storage.config.log_config import (
    BROKER_NAMES,
    DEFINITIONS,
    SUCCESSORS,
    LogConfig,
    did_you_mean,
    parse_overrides,
    parse_value,
)
from clog.storage.config.units import Choice, Integer, Kind, Positive, Value
from clog.storage.env import Clock, Ids, dataclass
from clog.storage.errors import ClogError, InvalidInputError, NotFoundError, StoreUnavailableError
from clog.storage.keys.hashing import ALGORITHMS
from clog.storage.store import open_store
from clog.storage.store.opening import LOG_FOLDER, LogsBelow, find_logs, redact

OF_THE_CLEANER = frozenset(
    {
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "max.compaction.lag.ms",
        "delete.retention.ms",
        "segment.ms",
        "segment.jitter.ms",
        "retention.ms",
        "retention.bytes",
        "file.delete.delay.ms",
    }
)
"""A log's configs that only the cleaner reads."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A config of the process: its field in `BrokerConfig`, its type, its default, its meaning."""

    field: str
    kind: Kind
    default: Value | None
    doc: str


_TRUE, _FALSE = "true", "false"
SETTINGS: Mapping[str, Setting] = {
    "log.cleaner.enable": Setting(
        *("compaction", Choice((_TRUE, _FALSE)), _TRUE),
        "whether logs are compacted; retention runs in either case",
    ),
    "log.cleaner.threads": Setting(
        "threads", Integer(1, 1024), 1, "number of partitions cleaned at the same time"
    ),
    "log.cleaner.dedupe.buffer.size": Setting(
        "dedupe_buffer_bytes", Integer(1), 128 << 20, "bytes of all offset maps in total"
    ),
    "log.cleaner.io.max.bytes.per.second": Setting(
        "io_bytes_per_second", Positive(), None, "maximum bytes read and written per second"
    ),
    "log.cleaner.backoff.ms": Setting(
        "backoff_ms", Integer(0), 15_000, "ms to sleep after a round with nothing to clean"
    ),
    "log.retention.check.interval.ms": Setting(
        "retention_check_ms", Integer(1), 300_000, "ms between checks of retention"
    ),
    "log.cleaner.hash.algorithm": Setting(
        *("hash_algorithm", Choice(ALGORITHMS), "xxh3_128"),
        "hash function for keys; Kafka's is always MD5",
    ),
}
POINTLESS: Mapping[str, str] = {
    "log.cleaner.io.buffer.size": "objects are read by row group",
    "log.cleaner.io.buffer.load.factor": "it is 0.9",
    "log.index.size.max.bytes": "there are no index files",
    "log.flush.interval.messages": "every commit is durable",
    "log.flush.interval.ms": "every commit is durable",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The daemon's config. ``defaults`` are configs by a log's own names."""

    compaction: bool
    threads: int
    dedupe_buffer_bytes: int
    io_bytes_per_second: float | None
    backoff_ms: int
    retention_check_ms: int
    hash_algorithm: str
    defaults: Mapping[str, str] = field(default_factory=dict)


def broker_config(given: Mapping[str, object]) -> BrokerConfig:
    """Reads configs by a broker's names.

    If several name the same thing, as ``log.retention.ms``, ``.minutes`` and ``.hours`` do, the
    finest unit wins, as in Kafka.
    """
    values: dict[str, Any] = {setting.field: setting.default for setting in SETTINGS.values()}
    defaults: dict[str, str] = {}
    ranks: dict[str, int] = {}
    for name, value in given.items():
        if name in SETTINGS:
            setting = SETTINGS[name]
            values[setting.field] = parse_value(name, setting.kind, value, doc=setting.doc)
        elif name in BROKER_NAMES and (ours := BROKER_NAMES[name][0]) in OF_THE_CLEANER:
            rank = list(DEFINITIONS[ours].broker).index(name)
            parsed = _in_our_unit(name, value)
            if rank < ranks.get(ours, len(BROKER_NAMES)):
                defaults[ours], ranks[ours] = parsed, rank
        else:
            raise InvalidInputError(_refused(name))
    try:
        LogConfig.from_overrides(defaults)
    except InvalidInputError as e:
        raise InvalidInputError(f"the daemon's defaults contradict each other: {e}") from None
    is_compacted = values.pop("compaction") == _TRUE
    return BrokerConfig(compaction=is_compacted, defaults=defaults, **values)


def _in_our_unit(name: str, value: object) -> str:
    """Returns the canonical text of a broker's default in the unit of the log's config."""
    ours, factor = BROKER_NAMES[name]
    if factor != 1:
        given = parse_value(name, Integer(-1), value, doc=DEFINITIONS[ours].doc)
        assert isinstance(given, int)
        value = given if given < 0 else given * factor  # -1 means no limit in every unit
    try:
        return parse_overrides({ours: value})[ours]
    except InvalidInputError as e:
        raise InvalidInputError(f"{name}: {e}") from None


def _refused(name: str) -> str:
    """Returns why a name is not a config of the daemon, and which one was probably meant."""
    if name in POINTLESS:
        return f'config "{name}" has no effect here: {POINTLESS[name]}; leave it out'
    if name in SUCCESSORS and name not in BROKER_NAMES:
        return f'config "{name}" is an old name; use {SUCCESSORS[name]}'
    if name in BROKER_NAMES:
        ours = BROKER_NAMES[name][0]
        return (
            f'config "{name}" also concerns writers, which a default of the cleaner does not'
            f" reach; set {ours} on each log"
        )
    if name in DEFINITIONS:
        brokers = [b for b in DEFINITIONS[name].broker if name in OF_THE_CLEANER]
        instead = f"; here, the default of all logs is {brokers[0]}" if brokers else ""
        return f'config "{name}" belongs to a log: change it with "clog alter"{instead}'
    valid = [*SETTINGS, *(b for b, (ours, _) in BROKER_NAMES.items() if ours in OF_THE_CLEANER)]
    similar = did_you_mean(name, valid)
    if similar is not None:
        return f'unknown config "{name}"; did you mean {similar}?'
    return f'unknown config "{name}"; valid names are {", ".join(sorted(valid))}'


logger = logging.getLogger(__name__)

DISCOVER_MS = 60_000
_SLOW_MS = 5_000
"""Once stores have kept it waiting this long, the logs that are open come first."""

Errors = tuple[type[Exception], ...]


@dataclass(slots=True, eq=False)
class _Try:
    """A log to be opened, or a prefix to be searched.

    ``is_named``: by the command line; ``failure``: of the last try; ``is_left_over``: only the
    folder of a deleted log was there.
    """

    url: str = field(repr=False)
    step: Callable[[], None] = field(repr=False)
    is_named: bool
    rest: Rest = field(default_factory=Rest)
    failure: str | None = None
    is_left_over: bool = False


class Finder:
    """Opens logs; called before each round, it returns new logs, those that are gone, and what is
    in the way.

    Args:
        urls: logs.
        prefixes: folders below which to look for logs.
        storage_options: those of all of them.
        clock, ids: sources of time and chance.
        single_writer: as for `Log.open`.
        stores: where to add those of the logs that it opens.

    Attributes:
        stores: those of the open logs, by the log's URL.
        clock: as given.
    """

    def __init__(
        self,
        urls: Sequence[str],
        prefixes: Sequence[str] = (),
        storage_options: Mapping[str, object] | None = None,
        *,
        clock: Clock,
        ids: Ids,
        single_writer: bool = False,
        stores: dict[str, RequestMeter] | None = None,
    ) -> None:
        self.stores: dict[str, RequestMeter] = {} if stores is None else stores
        self._options = storage_options
        self.clock, self._ids = clock, ids
        self._single_writer = single_writer
        self._prefixes = {p: _Try(p, partial(self._look_below, p), is_named=True) for p in prefixes}
        self._waiting = {url: _Try(url, partial(self._open, url), is_named=True) for url in urls}
        self._due: deque[_Try] = deque()
        self._known: set[str] = set(urls)
        self._discovered: dict[str, set[str]] = {prefix: set() for prefix in prefixes}
        self._unlisted: dict[str, dict[str, str]] = {}
        self._opened_as: dict[str, str] = {}
        self._opened: list[Log] = []
        self._gone: list[str] = []

    def __call__(self) -> FoundLogs:
        """Looks for logs, and returns what changed since the last call.

        Once stores have kept it waiting for `_SLOW_MS`, it asks no more until the next call.
        """
        began_ms = self.clock.monotonic_ms()
        for tried in self._all_due():
            self._attempt(tried, errors=(Exception,))
            if self.clock.monotonic_ms() - began_ms >= _SLOW_MS:
                break
        found = FoundLogs(self._opened, self._gone, self.unopened, self.unlisted)
        self._opened, self._gone = [], []
        return found

    def first(
        self,
        *,
        patient: bool,
        asking: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> list[Log]:
        """Looks for the first time; the next call returns these logs, too. An unreadable log that
        was given is an error, and so are a wrong option and a store that is away, unless
        ``patient``. Requests to each store are made within ``asking``, which gets the URL.
        """
        for tried in self._all_due():
            with asking(tried.url):
                self._attempt(tried, errors=(StoreUnavailableError,) if patient else ())
        return list(self._opened)

    @property
    def prefixes(self) -> list[str]:
        """The folders that are searched, without secrets."""
        return [redact(prefix) for prefix in self._prefixes]

    @property
    def unopened(self) -> dict[str, str]:
        """The logs that cannot be opened now, and why, without remains of deleted ones."""
        waiting = {url: t.failure for url, t in self._waiting.items() if not t.is_left_over}
        return {redact(url): why for url, why in waiting.items() if why}

    @property
    def unlisted(self) -> dict[str, str]:
        """The prefixes, and folders below them, that cannot be listed now, and why."""
        prefixes = {p: t.failure for p, t in self._prefixes.items() if t.failure}
        folders = {f: why for found in self._unlisted.values() for f, why in found.items()}
        return {redact(url): why for url, why in (folders | prefixes).items()}

    def _all_due(self) -> Iterator[_Try]:
        """Yields what is to be tried: what waited longest first, then what is found on the way."""
        now_ms, tries = self.clock.monotonic_ms(), [*self._prefixes.values()]
        tries += self._waiting.values()
        due = [tried for tried in tries if tried.rest.until_ms <= now_ms]
        self._due = deque(sorted(due, key=lambda tried: tried.rest.until_ms))
        while self._due:
            yield self._due.popleft()

    def _attempt(self, tried: _Try, errors: Errors) -> None:
        passing = errors if tried.is_named else (Exception,)
        try:
            tried.step()
            tried.failure = None
        except passing as e:
            tried.rest.failed(self.clock.monotonic_ms(), self._ids.uniform)
            self._log_skipped(tried, e)

    def _log_skipped(self, tried: _Try, error: Exception) -> None:
        failure = f"{type(error).__name__}: {error}"
        if failure != tried.failure:
            unforeseen = None if isinstance(error, ClogError | OSError) else error
            logger.warning(
                "%s is skipped, and retried at increasing intervals: %s",
                *(redact(tried.url), failure),
                exc_info=unforeseen,
            )
        tried.failure = failure

    def _look_below(self, prefix: str) -> None:
        found, mine = find_logs(prefix, self._options), self._discovered[prefix]
        self._note_unlisted(prefix, found)
        there = set(found.urls)
        for url in sorted(there - self._known):
            self._known.add(url)
            self._waiting[url] = _Try(url, partial(self._open, url), is_named=False)
            self._due.append(self._waiting[url])
            mine.add(url)
        for url in sorted(mine - there):
            if not any(f"{url}/".startswith(f"{folder}/") for folder in found.unlisted):
                self._drop_if_gone(url)
        mine &= self._known
        rest = self._prefixes[prefix].rest
        rest.succeeded()
        rest.until_ms = self.clock.monotonic_ms() + DISCOVER_MS

    def _note_unlisted(self, prefix: str, found: LogsBelow) -> None:
        before = self._unlisted.get(prefix, {})
        now = {folder: f"{type(e).__name__}: {e}" for folder, e in found.unlisted.items()}
        for folder in sorted(now):
            if now[folder] != before.get(folder):
                logger.warning("logs below %s cannot be listed: %s", redact(folder), now[folder])
        self._unlisted[prefix] = now

    def _drop_if_gone(self, url: str) -> None:
        """Forgets a log that the listing no longer shows, if there is none at its URL."""
        opened = self._opened_as.get(url)
        if opened is not None:
            try:
                Log.open(self.stores[opened], clock=self.clock, ids=self._ids)
            except NotFoundError:
                logger.warning("%s was deleted; it is no longer cleaned", opened)
            except Exception:  # noqa: BLE001 - its rounds report what is wrong with it
                return
            else:
                return
            del self.stores[opened], self._opened_as[url]
            self._gone.append(opened)
        tried = self._waiting.pop(url, None)
        self._due = deque(other for other in self._due if other is not tried)
        self._known.remove(url)

    def _open(self, url: str) -> None:
        store = RequestMeter(open_store(url, self._options, single_writer=self._single_writer))
        options = self._options or {}  # A transaction refers to other logs there.
        single, tried = self._single_writer, self._waiting[url]
        tried.is_left_over = False
        try:
            log = Log.open(store, options, self.clock, ids=self._ids, single_writer=single)
        except NotFoundError:
            # Versioned buckets still list the folder of a log that was deleted entirely.
            if tried.is_named or not any(store.list(f"{LOG_FOLDER}/")):
                tried.is_left_over = not tried.is_named
                raise
            raise NotFoundError(
                f"the folder {LOG_FOLDER} of {store.url} has files, but no log: it belongs to"
                ' another program, or the log lost its other files; run "clog verify", or move'
                " the folder away"
            ) from None
        del self._waiting[url]
        if log.url in self.stores:
            return  # It is known by another spelling.
        self.stores[log.url] = store
        self._opened_as[url] = log.url
        self._opened.append(log)
