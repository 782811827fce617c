"""Publishing one log's table, when it is due (S63).

A format is due ``table.publish.interval.ms`` after it was looked at last, and at once when a log
start offset has risen: no view shows for longer what was deleted. One that somebody published by
hand is brought up to date each ``file.delete.delay.ms``, or it would hold back the sweep for ever.

What cannot be published is told, and holds nothing else up.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress

from clog.storage.commit.handle import Handle
from clog.storage.config.log_config import LogConfig
from clog.storage.errors import (
    CommitConflictError,
    CorruptionError,
    InvalidInputError,
    VersionExpiredError,
)
from clog.storage.publications.publish import FORMATS, Publications

_LOGGER = logging.getLogger(__name__)
_REFUSALS = (CommitConflictError, CorruptionError, InvalidInputError, VersionExpiredError)


class Publishing:
    """The views of one log, kept up. Not safe for threads.

    Attributes:
        lags_ms: by format, for how long the view has not shown what the log has, at most.
    """

    def __init__(self, handle: Handle, defaults: Mapping[str, str]) -> None:
        self._handle = handle
        self._publications = Publications(handle, defaults)
        self._looked_ms: dict[str, int] = {}
        self._starts: dict[str, list[int]] = {}
        self._refused: dict[str, str] = {}
        self.lags_ms: dict[str, int] = {}

    def publish_due(self, config: LogConfig, *, now_ms: int) -> int:
        """Publishes what is due, by monotonic time, and returns how many views that made."""
        head, made = self._handle.tip.head, 0
        wanted = config.published_formats
        for name in wanted:
            looked_ms, starts = self._looked_ms.get(name), list(head.partitions.start)
            is_due = looked_ms is None or now_ms - looked_ms >= config.table_publish_interval_ms
            if is_due or self._starts[name] != starts:
                made += self._publish(name, now_ms)
                self._starts[name] = starts
        for name in head.pins.keys() & set(FORMATS):
            if name not in wanted and self._is_old(name, config.file_delete_delay_ms, now_ms):
                made += self._publish(name, now_ms)
            with suppress(*_REFUSALS):  # Told when it is published.
                self._publications.release(name)
        self._measure(wanted, now_ms)
        return made

    def _is_old(self, name: str, delay_ms: int, now_ms: int) -> bool:
        """Tells whether a view by hand was published, and was looked at, so long ago."""
        looked_ms = self._looked_ms.get(name)
        if looked_ms is not None and now_ms - looked_ms < delay_ms:
            return False
        pin = self._handle.tip.head.pins[name][-1]
        return self._handle.clock.now_ms() - pin.time_ms >= delay_ms

    def _measure(self, wanted: list[str], now_ms: int) -> None:
        self.lags_ms = {}
        for name in wanted:
            is_behind = name in self._refused or not self._publications.is_current(name)
            self.lags_ms[name] = now_ms - self._looked_ms[name] if is_behind else 0

    def _publish(self, name: str, now_ms: int) -> bool:
        self._looked_ms[name] = now_ms
        try:
            done = self._publications.publish(name)
        except _REFUSALS as e:
            if self._refused.get(name) != str(e):
                why = str(e)
                _LOGGER.warning("%s is not published as %s: %s", self._handle.store.url, name, why)
            self._refused[name] = str(e)
            return False
        self._refused.pop(name, None)
        return done.published
