"""Which logs a daemon looks after: those it was given, and those it finds below a prefix.

What cannot be opened now is tried again, later each time (S28): a store that is away when the
daemon starts does not end it. A log that appears below a prefix is found within `DISCOVER_MS`, and
one that was deleted there is dropped as soon; one that was given by its URL never is.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from clog.cleaner.cleaner import FoundLogs
from clog.cleaner.daemon.request_meter import RequestMeter
from clog.cleaner.rest import Rest
from clog.storage import Log
from clog.storage.clock import Clock
from clog.storage.errors import ClogError, NotFoundError, StoreUnavailableError
from clog.storage.ids import Ids
from clog.storage.store import open_store
from clog.storage.store.finding import find_logs

logger = logging.getLogger(__name__)

DISCOVER_MS = 60_000


class Finder:
    """Opens logs; called before each round, it returns those that are new, and those that are gone.

    Args:
        urls: logs.
        prefixes: folders to look below for logs.
        storage_options: of all of them.
        clock, ids: time and chance.
        single_writer: as of `Log.open`.

    Attributes:
        stores: of the logs that are open, by the log's URL.
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
    ) -> None:
        self.stores: dict[str, RequestMeter] = {}
        self._options = storage_options
        self.clock, self._ids = clock, ids
        self._single_writer = single_writer
        self._waiting = {url: Rest() for url in urls}
        self._prefixes = {prefix: Rest() for prefix in prefixes}
        self._known: set[str] = set(urls)
        self._discovered: dict[str, set[str]] = {prefix: set() for prefix in prefixes}
        self._opened_as: dict[str, str] = {}
        self._gone: list[str] = []

    def __call__(self) -> FoundLogs:
        """Looks for logs and returns what changed; failures are logged and retried."""
        self._gone = []
        return FoundLogs(self._opened(told=(ClogError, OSError)), self._gone)

    def first(self, *, patient: bool) -> list[Log]:
        """Looks for the first time; a log that is not there, or an option that is wrong, is an
        error; so is a store that is away, unless ``patient``.

        Raises:
            NotFoundError: no log at a URL that was given.
            InvalidInputError: a URL or an option that is wrong.
            StoreUnavailableError: the filesystem failed.
        """
        return self._opened(told=(StoreUnavailableError,) if patient else ())

    def _opened(self, told: tuple[type[Exception], ...]) -> list[Log]:
        for prefix, rest in self._prefixes.items():
            self._attempt(partial(self._look_below, prefix), rest, told)
        logs: list[Log] = []
        discovered = set().union(*self._discovered.values())
        for url, rest in list(self._waiting.items()):
            # A listing may show the folder of a log that was deleted: versioned buckets do.
            patient = (*told, NotFoundError) if url in discovered else told
            self._attempt(partial(self._open, url, logs), rest, patient)
        return logs

    def _attempt(
        self, step: Callable[[], None], rest: Rest, told: tuple[type[Exception], ...]
    ) -> None:
        now_ms = self.clock.monotonic_ms()
        if now_ms < rest.until_ms:
            return
        try:
            step()
        except told as e:
            rest.failed(now_ms, self._ids.uniform)
            logger.warning("%s: %s; will retry", type(e).__name__, e)

    def _look_below(self, prefix: str) -> None:
        there, mine = set(find_logs(prefix, self._options)), self._discovered[prefix]
        for url in sorted(there - self._known):
            self._known.add(url)
            self._waiting[url] = Rest()
            mine.add(url)
        for url in sorted(mine - there):
            self._drop_if_gone(url)
        mine &= self._known
        rest = self._prefixes[prefix]
        rest.succeeded()
        rest.until_ms = self.clock.monotonic_ms() + DISCOVER_MS

    def _drop_if_gone(self, url: str) -> None:
        """Forgets a log that the listing does not show any more, if there is none at its URL."""
        opened = self._opened_as.get(url)
        if opened is not None:
            try:
                Log.open(self.stores[opened], clock=self.clock, ids=self._ids)
                return
            except NotFoundError:
                logger.warning("%s was deleted; it is no longer cleaned", opened)
            del self.stores[opened], self._opened_as[url]
            self._gone.append(opened)
        self._waiting.pop(url, None)
        self._known.remove(url)

    def _open(self, url: str, logs: list[Log]) -> None:
        store = RequestMeter(open_store(url, self._options, single_writer=self._single_writer))
        options = self._options or {}  # A transaction leads to other logs there.
        single = self._single_writer
        log = Log.open(store, options, self.clock, ids=self._ids, single_writer=single)
        del self._waiting[url]
        if log.url in self.stores:
            return  # Known by another spelling.
        self.stores[log.url] = store
        self._opened_as[url] = log.url
        logs.append(log)
