"""``config.<name>`` of a write to a log that is there already: whether the log is what the option
says it shall be.
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from clog.storage.errors import OptionError

if TYPE_CHECKING:
    from clog.storage.log import Log

_LOGGER = logging.getLogger("clog.connector")
_told: set[tuple[str, str, str, str]] = set()


def check_configs(log: "Log", given: Mapping[str, object]) -> None:
    """Raises if a config is not the log's, and was not when the log was created; logs a warning,
    once, where it was altered since. One GET where one differs.

    Raises:
        OptionError: a config is another one, with both values and what to do.
    """
    from clog.storage.config.log_config import LogConfig, parse_overrides
    from clog.storage.config.units import config_text

    wanted = parse_overrides(given)
    has = LogConfig.from_overrides(log.handle.tip.head.config).as_dict()
    differing = {name: value for name, value in wanted.items() if has[name] != value}
    if not differing:
        return
    had = _at_creation(log)
    for name, value in sorted(differing.items()):
        shown, now = config_text(name, value), config_text(name, has[name])
        if had is not None and had[name] != value:
            raise OptionError(
                f'option "config.{name}" is {shown}, but {log.url} was created with'
                f" {config_text(name, had[name])} and has {now}; leave the option out, or change"
                f" the log: clog alter {log.url} -c {name}={shown}"
            )
        told = (log.url, name, value, has[name])
        if told not in _told:
            _told.add(told)
            _LOGGER.warning(
                "option config.%s=%s: %s has %s since it was altered, and keeps it", *_shown(told)
            )


def _shown(told: tuple[str, str, str, str]) -> tuple[str, str, str, str]:
    url, name, value, now = told
    return name, value, url, now


def _at_creation(log: "Log") -> dict[str, str] | None:
    """Returns the configs that the log was created with; None where nobody knows any more."""
    from clog.storage.commit.versions import try_read
    from clog.storage.config.log_config import LogConfig
    from clog.storage.format.commits import edit_of

    created = try_read(log.handle.store, 0)
    if created is None:
        return None
    return LogConfig.from_overrides(
        edit_of(log.handle.store, created.record).config or {}
    ).as_dict()
