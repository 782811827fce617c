"""Publishing one log's table, when it is due (S63).

A format is due ``table.publish.interval.ms`` after it was looked at last, and at once when a log
start offset has risen: no view shows for longer what was deleted. One that somebody published by
hand is brought up to date each ``file.delete.delay.ms``, or it would hold back the sweep for ever.

What cannot be published is told, and holds nothing else up.
"""

import logging
from collections.abc import Mapping

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
        by_hand = [name for name in head.pins if name in FORMATS and name not in wanted]
        for name in (*wanted, *by_hand):
            by_config = name in wanted
            interval_ms = (
                config.table_publish_interval_ms if by_config else config.file_delete_delay_ms
            )
            starts = list(head.partitions.start)
            looked_ms = self._looked_ms.get(name)
            is_due = looked_ms is None or now_ms - looked_ms >= interval_ms
            if is_due or self._starts.get(name) != starts:
                made += self._publish(name)
                self._looked_ms[name], self._starts[name] = now_ms, starts
            is_behind = name in self._refused or not self._publications.is_current(name)
            self.lags_ms[name] = now_ms - self._looked_ms[name] if is_behind else 0
        for name in self.lags_ms.keys() - {*wanted, *by_hand}:
            del self.lags_ms[name]
        return made

    def _publish(self, name: str) -> bool:
        try:
            done = self._publications.publish(name)
            self._publications.release(name)
        except _REFUSALS as e:
            if self._refused.get(name) != str(e):
                why = str(e)
                _LOGGER.warning("%s is not published as %s: %s", self._handle.store.url, name, why)
            self._refused[name] = str(e)
            return False
        self._refused.pop(name, None)
        return done.published
