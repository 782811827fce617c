"""Rest: how long what failed waits before it is tried again."""

from collections.abc import Callable
from dataclasses import dataclass

from clog.cleaner.retention.uncleanable import BACKOFF_MS

REST_MS_MAX = 300_000
"""A log that keeps failing is tried again at least this often; so is a partition on which somebody
else is faster.
"""


@dataclass(slots=True)
class Rest:
    """Waiting after failures: 15 s, doubled each time, up to `REST_MS_MAX`, and at random up to
    half of it less.
    """

    until_ms: int = 0
    failures: int = 0

    def failed(self, now_ms: int, uniform: Callable[[], float]) -> None:
        """Waits, longer than the last time."""
        wait_ms = min(REST_MS_MAX, BACKOFF_MS << min(self.failures, 10))
        self.failures += 1
        self.until_ms = now_ms + int(wait_ms * (1 - uniform() / 2))

    def succeeded(self) -> None:
        """Waits no more."""
        self.until_ms = self.failures = 0
