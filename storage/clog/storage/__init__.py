"""A log on a filesystem: append, read, trim, and what is committed."""

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

__all__ = [
    "AlreadyExistsError",
    "Clock",
    "ClogError",
    "CommitConflictError",
    "CommitStateUnknownError",
    "CorruptionError",
    "InvalidInputError",
    "ManualClock",
    "NotFoundError",
    "OffsetOutOfRangeError",
    "OptionError",
    "StoreUnavailableError",
    "SystemClock",
    "UnsupportedFilesystemError",
    "UnsupportedFormatError",
    "VersionExpiredError",
]
