"""A log on a filesystem: append, read, trim, and what is committed."""

from typing import TYPE_CHECKING, Any

from clog.storage.clock import Clock, ManualClock, SystemClock
from clog.storage.errors import (
    AlreadyExistsError,
    ClogError,
    CommitConflictError,
    CommitStateUnknownError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    OffsetOutOfRangeError,
    OptionError,
    StoreUnavailableError,
    UnsupportedFilesystemError,
    UnsupportedFormatError,
    VersionExpiredError,
)

if TYPE_CHECKING:
    from clog.storage.log import Log
    from clog.storage.state import StateTable

__all__ = [
    "AlreadyExistsError",
    "Clock",
    "ClogError",
    "CommitConflictError",
    "CommitStateUnknownError",
    "CorruptionError",
    "InvalidInputError",
    "Log",
    "ManualClock",
    "NotFoundError",
    "OffsetOutOfRangeError",
    "OptionError",
    "StateTable",
    "StoreUnavailableError",
    "SystemClock",
    "UnsupportedFilesystemError",
    "UnsupportedFormatError",
    "VersionExpiredError",
]


def __getattr__(name: str) -> Any:
    """Loads what needs Arrow when asked: errors are wanted in cold processes, too."""
    if name == "Log":
        from clog.storage.log import Log

        return Log
    if name == "StateTable":
        from clog.storage.state import StateTable

        return StateTable
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
