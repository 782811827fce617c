"""Every error that clog raises, grouped by what the handler does next.

::

    ClogError
    ├── InvalidInputError (ValueError)      fix the call or the config; never retried
    ├── OptionError (ValueError)            fix a Spark option; the message names the nearest one
    ├── NotFoundError (LookupError)         there is no log at this URL
    │   ├── OffsetOutOfRangeError           seek into [start, end)
    │   ├── VersionExpiredError             read a newer version
    │   └── LogReplacedError                another log stands there: open it anew
    ├── AlreadyExistsError (FileExistsError)  open the log instead, or choose another URL
    ├── CommitConflictError                 lost the race too often: reload and retry
    ├── CommitStateUnknownError             the commit may have happened: read back first
    ├── TransactionFencedError              another holds the transaction's id: leave it to him
    │   └── StateFencedError                the store's id moved: another holds its state now
    ├── TransactionTimeoutError             the transaction took too long: do all of it again
    ├── UnsupportedFilesystemError          no exclusive create: use another, or single_writer=True
    ├── StoreUnavailableError (OSError)     the filesystem failed: retry later
    │   └── OutOfMemoryError (MemoryError)  this process has too little: give it more, or less to do
    ├── StateFileError (OSError)            the local file: make room on its disk; the log is whole
    ├── SourceError                         what a log is made from changed: decide how to go on
    │   ├── SourceReplacedError             another one stands there, or none
    │   ├── SourceTruncatedError            it lost its end, which the log has
    │   ├── SourcePurgedError               it removed what the log does not have yet
    │   ├── SourcePartitionsError           it has more partitions than before
    │   ├── SourceDamagedError              it cannot read its own files
    │   └── SourceUndecodableError          it has records, or a schema, that the log cannot take
    ├── SourceUnavailableError (OSError)    what a log is made from does not answer: retry later
    ├── UnsupportedFormatError              written by a newer clog: upgrade
    └── CorruptionError                     bytes contradict the format: keep the files, no retry

Classes and kinds are API: they are added to, never renamed. Messages are not: they say what
happened to what, the numbers on both sides and the remedy, never data and never secrets. All
errors pickle: Spark carries them from its workers to the driver.
"""

import re
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar


class ErrorKind(StrEnum):
    """The stable name of each kind of error, for logs, metrics and handlers in other languages."""

    INVALID_INPUT = "invalid_input"
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
        """Gives it the kind of its name, or, where that is none, its base's."""
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Error")).upper()
        if (kind := ErrorKind.__members__.get(name)) is not None:
            cls.kind = kind


class InvalidInputError(ClogError, ValueError):
    """The call, the records or the config are wrong; the same call fails again."""


class OptionError(ClogError, ValueError):
    """A Spark option is unknown, misspelled or has a wrong value."""


class NotFoundError(ClogError, LookupError):
    """What was asked for does not exist."""


class OffsetOutOfRangeError(NotFoundError):
    """An offset below the log start or above the end of a partition.

    Attributes:
        partition: the partition.
        offset: the offset asked for.
        start: the log start offset, the smallest that can be asked for.
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
    """Makes the error of a version that expired in use: ``why``, and the file that is ``gone``."""
    file = "" if gone is None else f": {gone.filename or gone} is gone"
    return VersionExpiredError(f"version {version} of {url} expired{why}{file}; {remedy}")


class LogReplacedError(NotFoundError):
    """The log that was opened is no longer the one at this URL: it was deleted and recreated, or
    replaced by a copy with another history. Nothing was written into the new one; open it to
    continue.
    """


class AlreadyExistsError(ClogError, FileExistsError):
    """There is a log at this URL already."""


class CommitConflictError(ClogError):
    """Other commits came first more often than the loop retries; nothing was committed."""


class CommitStateUnknownError(ClogError):
    """The commit may or may not have happened; a blind retry could commit twice."""


class TransactionFencedError(ClogError):
    """Another holder took over the transaction's id; nothing of the transaction was committed."""


class StateFencedError(TransactionFencedError):
    """Another store, on this host or elsewhere, took over the id and has the state now; uncommitted
    changes of this one are lost.
    """


class StateFileError(ClogError, OSError):
    """The local file of a state table or a store cannot be written; what was committed is in the
    log, and is read from there once there is room.
    """


class SourceError(ClogError):
    """What a log is made from, such as a topic of Kafka, is not what it was. Nothing of it was
    committed since; the message says how to go on.
    """


class SourceReplacedError(SourceError):
    """Another source stands under the name: it was deleted and made again, or restored."""


class SourceTruncatedError(SourceError):
    """The source lost records at its end that the log has."""


class SourcePurgedError(SourceError):
    """The source removed records that the log does not have yet."""


class SourcePartitionsError(SourceError):
    """The source has more partitions than the log; keys may be in others now."""


class SourceDamagedError(SourceError):
    """The source cannot read records of its own: its files are damaged."""


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
    """The filesystem failed or did not answer; where it was a create, the outcome is unknown."""


class OutOfMemoryError(StoreUnavailableError, MemoryError):
    """The process has less memory than it takes; nothing is wrong with the log."""


class UnsupportedFormatError(ClogError):
    """The log needs a feature that this release does not know."""


class CorruptionError(ClogError):
    """Bytes contradict the format or their checksum; nothing was deleted."""
