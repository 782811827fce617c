"""Publishing the table (S63), and withdrawing views that cannot follow the log.

A format is due ``table.publish.interval.ms`` after it was last looked at, and immediately when a
log start offset has risen: no view shows deleted records for longer. One published by hand is
brought up to date every ``file.delete.delay.ms``, or it would hold back the sweep for ever. A
failed publication, whatever refuses it, is reported, counted and tried again, and holds up nothing
else. A view that cannot follow is withdrawn rather than show deleted records:

- immediately if a log start offset has risen and the refusal is permanent;
- if it has been behind the log for ``delete.retention.ms``: for at least that long, a deleted key
  stays in the log itself;
- if a pin is ``file.delete.delay.ms`` old and no publisher has finished its version of a view that
  shows nothing.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property

from clog.cleaner.duties import Work
from clog.storage.commit.handle import Handle
from clog.storage.config.log_config import LogConfig
from clog.storage.env import Clock, dataclass
from clog.storage.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptionError,
    InvalidInputError,
    StoreUnavailableError,
    VersionExpiredError,
)
from clog.storage.publications.publish import Publications
from clog.storage.store.contract import StoreRefusedError
from clog.storage.view_formats import FORMATS

logger = logging.getLogger(__name__)

_FOR_GOOD = (CorruptionError, FileNotFoundError, InvalidInputError, StoreRefusedError)
"""Refusals that the next try will meet again, until somebody does something about them."""
_REFUSALS = (
    *_FOR_GOOD,
    CommitConflictError,
    CommitStateUnknownError,
    StoreUnavailableError,
    VersionExpiredError,
)


@dataclass(frozen=True, slots=True)
class _Due:
    """A format to be looked after; ``by_hand``: if its pin ``is_old`` or it shows deleted data."""

    name: str
    by_hand: bool = False
    is_old: bool = True


class Publishing:
    """The views of one log, kept up to date. Not thread-safe.

    Attributes:
        lags_ms: by format, for how long the view has been behind the log, at most.
    """

    def __init__(self, handle: Handle, clock: Clock, defaults: Mapping[str, str]) -> None:
        self._handle = handle
        self._clock = clock
        self._defaults = defaults
        self._tried_ms: dict[str, int] = {}
        self._starts: dict[str, list[int]] = {}
        self._reported: dict[tuple[str, str], str] = {}
        self.lags_ms: dict[str, int] = {}

    @cached_property
    def _publications(self) -> Publications:
        return Publications(self._handle, self._defaults)

    def due(self, work: Work) -> list[_Due]:
        """Returns the formats that are due, by monotonic time."""
        head, config, now_ms = work.head, work.config, self._clock.monotonic_ms()
        starts, wanted = list(head.partitions.start), config.published_formats

        def waited(name: str, interval_ms: int) -> bool:
            tried_ms = self._tried_ms.get(name)
            return tried_ms is None or now_ms - tried_ms >= interval_ms

        found = [
            _Due(name)
            for name in wanted
            if waited(name, config.table_publish_interval_ms) or self._starts.get(name) != starts
        ]
        delay_ms = config.file_delete_delay_ms
        for name in [name for name in head.pins if name in FORMATS and name not in wanted]:
            pinned_ms = self._handle.clock.now_ms() - head.pins[name][-1].time_ms
            is_old = pinned_ms >= delay_ms and waited(name, delay_ms)
            if is_old or self._starts.get(name) != starts:
                found.append(_Due(name, by_hand=True, is_old=is_old))
        return found

    def run(self, work: Work) -> Counter[str]:
        """Publishes what is due; counts versions made, views withdrawn, and tries refused."""
        done, pins, now_ms = Counter[str](), work.head.pins, self._clock.monotonic_ms()
        for due in self.due(work):
            if due.is_old:
                self._tried_ms[due.name] = now_ms
            done += self._brought_up(due, work.config)
        for name in pins.keys() & set(FORMATS):
            done += self._attempt(name, "freed of its pins", self._release)[0]
        self._measure(work.config.published_formats, now_ms)
        return done

    def _brought_up(self, due: _Due, config: LogConfig) -> Counter[str]:
        """Publishes a view; withdraws it if it is refused and that is due."""
        name, starts = due.name, list(self._handle.tip.head.partitions.start)

        def published(name: str) -> Counter[str]:
            if due.by_hand:
                seen = self._publications.look(name)
                if not due.is_old and not self._publications.shows_deleted(name):
                    return Counter()
                if not seen.is_there or seen.withdrawn_ms is not None:
                    return self._withdraw(name)  # Only its pin is there.
            return Counter(publications=int(self._publications.publish(name).published))

        done, why = self._attempt(name, "published", published)
        if why is not None and self._must_go(name, config, why):
            done += self._attempt(name, "withdrawn", self._withdraw)[0]
        if why is None or not self._publications.shows_deleted(name):
            self._starts[name] = starts
        return done

    def _must_go(self, name: str, config: LogConfig, why: Exception) -> bool:
        """Returns whether a refused view is to be withdrawn, in its current state."""
        try:
            seen, now_ms = self._publications.look(name), self._handle.clock.now_ms()
        except _REFUSALS:
            return False  # Reported already; nor could it be withdrawn.
        if seen.is_foreign:
            return False
        if seen.source is None:
            pins = self._handle.tip.head.pins.get(name, ())
            is_awaited = bool(pins) and pins[-1].view > seen.newest
            return is_awaited and now_ms - pins[-1].time_ms >= config.file_delete_delay_ms
        if isinstance(why, _FOR_GOOD) and self._publications.shows_deleted(name):
            return True
        since_ms = now_ms - config.delete_retention_ms
        return self._publications.is_behind_since(name, since_ms)

    def _withdraw(self, name: str) -> Counter[str]:
        done = self._publications.withdraw(name)
        if done.withdrawn:
            logger.warning(
                "the %s view of %s could not follow the log and was withdrawn: it is empty until"
                " the log is published again",
                *(name, self._handle.store.url),
            )
        return Counter(views_withdrawn=int(done.withdrawn))

    def _release(self, name: str) -> Counter[str]:
        self._publications.release(name)
        return Counter()

    def _attempt(
        self, name: str, what: str, step: Callable[[str], Counter[str]]
    ) -> tuple[Counter[str], Exception | None]:
        """Does a step; a refusal is reported once, counted, and holds up nothing else."""
        try:
            done = step(name)
        except _REFUSALS as e:
            if self._reported.get((name, what)) != str(e):
                url = self._handle.store.url
                logger.warning("%s could not be %s as %s: %s; this is retried", url, what, name, e)
            self._reported[name, what] = str(e)
            return Counter(publications_refused=1), e
        self._reported.pop((name, what), None)
        return done, None

    def _measure(self, wanted: list[str], now_ms: int) -> None:
        self.lags_ms = {}
        for name in wanted:
            is_refused = (name, "published") in self._reported
            is_behind = is_refused or not self._publications.is_current(name)
            self.lags_ms[name] = now_ms - self._tried_ms[name] if is_behind else 0
