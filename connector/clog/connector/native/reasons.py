"""Why a read is not done by Spark's own scan, which is said once for each log and reason."""

import logging

_LOGGER = logging.getLogger("clog.connector")
_SAID: set[tuple[str, str]] = set()


class CannotScanError(Exception):
    """Spark's own scan cannot read this; `format("clog")` can."""


def say_once(url: str, reason: CannotScanError) -> None:
    """Logs a warning, unless this process has."""
    if (url, str(reason)) not in _SAID:
        _SAID.add((url, str(reason)))
        _LOGGER.warning(
            'reading %s by format("clog"), which takes longer than Spark\'s own scan: %s',
            url,
            reason,
        )
