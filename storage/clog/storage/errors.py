"""Every error that clog raises, grouped by what the handler does next.

::

    ClogError
    ├── InvalidInputError (ValueError)      fix the call or the config; never retried
    │   └── MissingPackageError (ModuleNotFoundError)  install the extra that the message names
    ├── OptionError (ValueError)            fix a Spark option; the message names the nearest one
    ├── NotFoundError (LookupError)         there is no log at this URL
    │   ├── OffsetOutOfRangeError           seek into [start, end)
    │   ├── VersionExpiredError             read a newer version
    │   └── LogReplacedError                another log is there now: open it again
    ├── AlreadyExistsError (FileExistsError)  open the log instead, or choose another URL
    ├── CommitConflictError                 lost the race too often: reload and retry
    ├── CommitStateUnknownError             the commit may have happened: read back first
    ├── TransactionFencedError              another process has the transaction's id: leave it there
    │   └── StateFencedError                another process has the store's id and state now
    ├── TransactionTimeoutError             the transaction took too long: repeat all of it
    ├── UnsupportedFilesystemError          no exclusive create: use another, or single_writer=True
    ├── StoreUnavailableError (OSError)     the filesystem failed: retry later
    │   └── OutOfMemoryError (MemoryError)  this process has too little: give it more, or less work
    ├── StateFileError (OSError)            the local file: free space on its disk; the log is whole
    ├── SourceError                         the source of a log changed: decide how to continue
    │   ├── SourceReplacedError             another source is there, or none
    │   ├── SourceTruncatedError            it lost records at its end that the log has
    │   ├── SourcePurgedError               it removed records that the log does not have yet
    │   ├── SourcePartitionsError           it has more partitions than before
    │   ├── SourceDamagedError              it cannot read its own files
    │   └── SourceUndecodableError          it has records, or a schema, that the log cannot take
    ├── SourceUnavailableError (OSError)    the source of a log does not answer: retry later
    ├── UnsupportedFormatError              written by a newer clog: upgrade
    └── CorruptionError                     bytes contradict the format: keep the files, no retry

Classes and kinds are API: new ones are added, none is renamed. Messages are not API: they say what
happened to what, the numbers on both sides and the remedy, and never contain data or secrets. All
errors can be pickled: Spark carries them from its workers to the driver.
"""

import re
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar


class ErrorKind(StrEnum):
    """The stable name of each kind of error, for logs, metrics and handlers in other languages."""

    INVALID_INPUT = "invalid_input"
    MISSING_PACKAGE = "missing_package"
    OPTION = "option"
    NOT_FOUND = "not_found"
    OFFSET_OUT_OF_RANGE = "offset_out_of_range"
    VERSION_EXPIRED = "version_expired"
    LOG_REPLACED = "log_replaced"
    ALREADY_EXISTS = "already_exists"
    COMMIT_CONFLICT = "commit_conflict"
    COMMIT_STATE_UNKNOWN = "commit_state_unknown"
    TRANSACTION_FENCED = "transaction_fenced"
    TRANSACTION_TIMEOUT = "transaction_timeout"
    STATE_FENCED = "state_fenced"
    STATE_FILE = "state_file"
    SOURCE = "source"
    SOURCE_REPLACED = "source_replaced"
    SOURCE_TRUNCATED = "source_truncated"
    SOURCE_PURGED = "source_purged"
    SOURCE_PARTITIONS = "source_partitions"
    SOURCE_DAMAGED = "source_damaged"
    SOURCE_UNDECODABLE = "source_undecodable"
    SOURCE_UNAVAILABLE = "source_unavailable"
    UNSUPPORTED_FILESYSTEM = "unsupported_filesystem"
    STORE_UNAVAILABLE = "store_unavailable"
    OUT_OF_MEMORY = "out_of_memory"
    UNSUPPORTED_FORMAT = "unsupported_format"
    CORRUPTION = "corruption"


class ClogError(Exception):
    """The root of all errors of clog; never raised itself."""

    kind: ClassVar[ErrorKind]

    def __init_subclass__(cls) -> None:
        """Sets the kind that its name stands for; without one it keeps its base's."""
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Error")).upper()
        if (kind := ErrorKind.__members__.get(name)) is not None:
            cls.kind = kind


class InvalidInputError(ClogError, ValueError):
    """The call, the records or the config are wrong; the same call fails again."""


class MissingPackageError(InvalidInputError, ModuleNotFoundError):
    """What was asked for needs a package that is not installed, its ``name``; see the message."""

    def __init__(self, message: str, *, name: str | None = None) -> None:
        super().__init__(message)
        self.name = name


class OptionError(ClogError, ValueError):
    """A Spark option is unknown, misspelled or has a wrong value."""


class NotFoundError(ClogError, LookupError):
    """The requested thing does not exist."""


class OffsetOutOfRangeError(NotFoundError):
    """An offset below the log start or above the end of a partition.

    Attributes:
        partition: the partition.
        offset: the requested offset.
        start: the log start offset, the smallest valid one.
        end: the high watermark; ``[start, end)`` can be read, ``end`` is a valid position.
    """

    def __init__(self, message: str, *, partition: int, offset: int, start: int, end: int) -> None:
        super().__init__(message)
        self.partition = partition
        self.offset = offset
        self.start = start
        self.end = end

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild = partial(
            type(self), partition=self.partition, offset=self.offset, start=self.start, end=self.end
        )
        return rebuild, self.args, self.__dict__


class VersionExpiredError(NotFoundError):
    """The version's objects may already be deleted: read a newer version."""


def version_expired(
    url: str,
    version: int,
    *,
    gone: FileNotFoundError | None = None,
    why: str = "",
    remedy: str = "read a newer version",
) -> VersionExpiredError:
    """Returns the error for a version that expired in use: ``why``, and the file ``gone``."""
    file = "" if gone is None else f": {gone.filename or gone} is gone"
    return VersionExpiredError(f"version {version} of {url} expired{why}{file}; {remedy}")


class LogReplacedError(NotFoundError):
    """The log that was opened is no longer the one at this URL: it was deleted and recreated, or
    replaced by a copy with another history. Nothing was written into the new one; open it to
    continue.
    """


class AlreadyExistsError(ClogError, FileExistsError):
    """There already is a log at this URL."""


class CommitConflictError(ClogError):
    """Other commits came first more often than the loop retries; nothing was committed."""


class CommitStateUnknownError(ClogError):
    """The commit may or may not have happened; a blind retry could commit twice."""


class TransactionFencedError(ClogError):
    """Another holder took over the transaction's id; nothing of the transaction was committed."""


class StateFencedError(TransactionFencedError):
    """Another store, on this host or elsewhere, took over the id and with it the state; uncommitted
    changes of this one are lost.
    """


class StateFileError(ClogError, OSError):
    """The local file of a state table or a store cannot be written. Everything committed is in the
    log and is read from there once there is space.
    """


class SourceError(ClogError):
    """The source of a log, such as a topic of Kafka, is not what it was. Nothing from it has been
    committed since; the message says how to continue.
    """


class SourceReplacedError(SourceError):
    """The name now belongs to another source: it was deleted and recreated, or restored."""


class SourceTruncatedError(SourceError):
    """The source lost records at its end that the log has."""


class SourcePurgedError(SourceError):
    """The source removed records that the log does not have yet."""


class SourcePartitionsError(SourceError):
    """The source has more partitions than the log; keys may have moved between partitions."""


class SourceDamagedError(SourceError):
    """The source cannot read its own records: its files are damaged."""


class SourceUndecodableError(SourceError):
    """The source has a record that cannot be decoded, and there is no dead-letter log; or a schema
    that the log cannot follow.
    """


class SourceUnavailableError(ClogError, OSError):
    """The source cannot be reached, or does not answer; run it again later."""


class TransactionTimeoutError(ClogError):
    """The transaction took longer than its timeout; nothing of it was committed."""


class UnsupportedFilesystemError(ClogError):
    """The filesystem promises no exclusive create: two writers could overwrite each other."""


class StoreUnavailableError(ClogError, OSError):
    """The filesystem failed or did not answer; the outcome of a create is then unknown."""


class OutOfMemoryError(StoreUnavailableError, MemoryError):
    """The process has too little memory; the log is fine."""


class UnsupportedFormatError(ClogError):
    """The log needs a feature that this release does not know."""


class CorruptionError(ClogError):
    """Bytes contradict the format or their checksum; nothing was deleted."""
