"""Publishing one log's table, when it is due (S63).

A format is due ``table.publish.interval.ms`` after it was looked at last, and at once when a log
start offset has risen: no view shows for longer what was deleted. One that somebody published by
hand is brought up to date each ``file.delete.delay.ms``, or it would hold back the sweep for ever.

What is not published, whoever refuses it, is told and counted, holds nothing else up, and is tried
again. A view that cannot follow is withdrawn, rather than show what was deleted:

- at once where a log start offset has risen and it is refused for good;
- where it has not shown for ``delete.retention.ms`` what the log has: so long does a deleted key
  stay in the log itself, at least;
- where a pin is ``file.delete.delay.ms`` old and nobody came for its version of a view that shows
  nothing.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clog.storage.commit.handle import Handle
from clog.storage.config.log_config import LogConfig
from clog.storage.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptionError,
    InvalidInputError,
    StoreUnavailableError,
    VersionExpiredError,
)
from clog.storage.publications.publish import FORMATS, Publications
from clog.storage.store.base import StoreRefusedError

_LOGGER = logging.getLogger(__name__)
_FOR_GOOD = (CorruptionError, FileNotFoundError, InvalidInputError, StoreRefusedError)
"""Refusals that the next try meets again, until somebody does something."""
_REFUSALS = (
    *_FOR_GOOD,
    CommitConflictError,
    CommitStateUnknownError,
    StoreUnavailableError,
    VersionExpiredError,
)


@dataclass(frozen=True, slots=True)
class Published:
    """What a look after views did: versions ``made``, views ``withdrawn``, and how many formats
    were ``refused``.
    """

    made: int = 0
    withdrawn: int = 0
    refused: int = 0

    def __add__(self, other: "Published") -> "Published":
        """Returns the sums."""
        return Published(
            self.made + other.made,
            self.withdrawn + other.withdrawn,
            self.refused + other.refused,
        )


class Publishing:
    """The views of one log, kept up. Not safe for threads.

    Attributes:
        lags_ms: by format, for how long the view has not shown what the log has, at most.
    """

    def __init__(self, handle: Handle, defaults: Mapping[str, str]) -> None:
        self._handle = handle
        self._publications = Publications(handle, defaults)
        self._tried_ms: dict[str, int] = {}
        self._starts: dict[str, list[int]] = {}
        self._told: dict[tuple[str, str], str] = {}
        self.lags_ms: dict[str, int] = {}

    def publish_due(self, config: LogConfig, *, now_ms: int) -> Published:
        """Publishes what is due, by monotonic time, and returns what that did."""
        pins, done = self._handle.tip.head.pins, Published()
        starts, wanted = list(self._handle.tip.head.partitions.start), config.published_formats
        for name in wanted:
            interval_ms = config.table_publish_interval_ms
            if self._is_due(name, interval_ms, now_ms) or self._starts.get(name) != starts:
                self._tried_ms[name] = now_ms
                done += self._brought_up(name, config)
        for name in [name for name in pins if name in FORMATS and name not in wanted]:
            delay_ms = config.file_delete_delay_ms
            pinned_ms = self._handle.clock.now_ms() - pins[name][-1].time_ms
            is_old = pinned_ms >= delay_ms and self._is_due(name, delay_ms, now_ms)
            if is_old:
                self._tried_ms[name] = now_ms
            if is_old or self._starts.get(name) != starts:
                done += self._brought_up(name, config, by_hand=True, is_old=is_old)
        for name in pins.keys() & set(FORMATS):
            done += self._attempt(name, "freed of its pins", self._release)[0]
        self._measure(wanted, now_ms)
        return done

    def _is_due(self, name: str, interval_ms: int, now_ms: int) -> bool:
        tried_ms = self._tried_ms.get(name)
        return tried_ms is None or now_ms - tried_ms >= interval_ms

    def _brought_up(
        self, name: str, config: LogConfig, *, by_hand: bool = False, is_old: bool = True
    ) -> Published:
        """Publishes a view, and withdraws it where it is refused and that is due; one ``by_hand``
        only where it ``is_old``, or shows what was deleted.
        """
        starts = list(self._handle.tip.head.partitions.start)

        def published(name: str) -> Published:
            if by_hand:
                seen = self._publications.look(name)
                if not is_old and not self._publications.shows_deleted(name):
                    return Published()
                if not seen.is_there or seen.withdrawn_ms is not None:
                    return self._withdraw(name)  # Nothing of it is there but its pin.
            return Published(made=self._publications.publish(name).published)

        done, why = self._attempt(name, "published", published)
        if why is not None and self._must_go(name, config, why):
            done += self._attempt(name, "withdrawn", self._withdraw)[0]
        if why is None or not self._publications.shows_deleted(name):
            self._starts[name] = starts
        return done

    def _must_go(self, name: str, config: LogConfig, why: Exception) -> bool:
        """Tells whether a view that was refused is to be withdrawn, as it is by now: others may
        have published it.
        """
        try:
            seen, now_ms = self._publications.look(name), self._handle.clock.now_ms()
        except _REFUSALS:
            return False  # Told already; nor could it be withdrawn.
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

    def _withdraw(self, name: str) -> Published:
        done = self._publications.withdraw(name)
        if done.withdrawn:
            _LOGGER.warning(
                "the %s view of %s could not follow the log, and is withdrawn: it shows nothing"
                " until the log is published again",
                *(name, self._handle.store.url),
            )
        return Published(withdrawn=done.withdrawn)

    def _release(self, name: str) -> Published:
        self._publications.release(name)
        return Published()

    def _attempt(
        self, name: str, what: str, step: Callable[[str], Published]
    ) -> tuple[Published, Exception | None]:
        """Does a step; one that is refused is told, once, and counted, and holds nothing else
        up.
        """
        url = self._handle.store.url
        try:
            done = step(name)
        except _REFUSALS as e:
            if self._told.get((name, what)) != str(e):
                _LOGGER.warning("%s is not %s as %s: %s; it is tried again", url, what, name, e)
            self._told[name, what] = str(e)
            return Published(refused=1), e
        self._told.pop((name, what), None)
        return done, None

    def _measure(self, wanted: list[str], now_ms: int) -> None:
        self.lags_ms = {}
        for name in wanted:
            is_refused = (name, "published") in self._told
            is_behind = is_refused or not self._publications.is_current(name)
            self.lags_ms[name] = now_ms - self._tried_ms[name] if is_behind else 0
