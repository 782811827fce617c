"""A log on a filesystem: create and open it, append, read, trim, and follow it with a state table.

Everything that a signature of this API mentions is exported here; what is not exported may change
with any release. Start with `Log` and `StateTable`; all errors are kinds of `ClogError`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from clog.storage.clock import Clock, ManualClock, SystemClock
from clog.storage.errors import (
    AlreadyExistsError,
    ClogError,
    CommitConflictError,
    CommitStateUnknownError,
    CorruptionError,
    ErrorKind,
    InvalidInputError,
    LogReplacedError,
    NotFoundError,
    OffsetOutOfRangeError,
    OptionError,
    OutOfMemoryError,
    StateFencedError,
    StateFileError,
    StoreUnavailableError,
    TransactionFencedError,
    TransactionTimeoutError,
    UnsupportedFilesystemError,
    UnsupportedFormatError,
    VersionExpiredError,
)
from clog.storage.ids import Ids, SeededIds, SystemIds

if TYPE_CHECKING:
    from clog.storage.administration import FeatureState
    from clog.storage.append import AppendResult
    from clog.storage.diagnostics.describe import (
        LogDescription,
        PartitionDescription,
        SegmentInfo,
        TransactionDescription,
        ViewDescription,
    )
    from clog.storage.diagnostics.history import CommitInfo
    from clog.storage.log import Log
    from clog.storage.objects.records import Appendable, ArrowStream
    from clog.storage.publications.publish import PublishResult, WithdrawResult
    from clog.storage.read.scan import READ_SCHEMA
    from clog.storage.read.table import Table
    from clog.storage.readers.lag import Reader
    from clog.storage.readers.named_reader import NamedReader
    from clog.storage.state import Refreshed, StateStore, StateTable
    from clog.storage.store.base import Store, StoredObject
    from clog.storage.transactions.deferred import Source, TransactionResult
    from clog.storage.transactions.finishing import TransactionInfo
    from clog.storage.transactions.transaction import Transaction

__all__ = [
    "READ_SCHEMA",
    "AlreadyExistsError",
    "AppendResult",
    "Appendable",
    "ArrowStream",
    "Clock",
    "ClogError",
    "CommitConflictError",
    "CommitInfo",
    "CommitStateUnknownError",
    "CorruptionError",
    "ErrorKind",
    "FeatureState",
    "Ids",
    "InvalidInputError",
    "Log",
    "LogDescription",
    "LogReplacedError",
    "ManualClock",
    "NamedReader",
    "NotFoundError",
    "OffsetOutOfRangeError",
    "OptionError",
    "OutOfMemoryError",
    "PartitionDescription",
    "PublishResult",
    "Reader",
    "Refreshed",
    "SeededIds",
    "SegmentInfo",
    "Source",
    "StateFencedError",
    "StateFileError",
    "StateStore",
    "StateTable",
    "Store",
    "StoreUnavailableError",
    "StoredObject",
    "SystemClock",
    "SystemIds",
    "Table",
    "Transaction",
    "TransactionDescription",
    "TransactionFencedError",
    "TransactionInfo",
    "TransactionResult",
    "TransactionTimeoutError",
    "UnsupportedFilesystemError",
    "UnsupportedFormatError",
    "VersionExpiredError",
    "ViewDescription",
    "WithdrawResult",
]
_NEEDS_ARROW = {
    "READ_SCHEMA": "read.scan",
    "AppendResult": "append",
    "Appendable": "objects.records",
    "ArrowStream": "objects.records",
    "CommitInfo": "diagnostics.history",
    "FeatureState": "administration",
    "Log": "log",
    "LogDescription": "diagnostics.describe",
    "NamedReader": "readers.named_reader",
    "PartitionDescription": "diagnostics.describe",
    "PublishResult": "publications.publish",
    "Reader": "readers.lag",
    "Refreshed": "state",
    "SegmentInfo": "diagnostics.describe",
    "Source": "transactions.deferred",
    "StateStore": "state",
    "StateTable": "state",
    "Store": "store.base",
    "StoredObject": "store.base",
    "Table": "read.table",
    "Transaction": "transactions.transaction",
    "TransactionDescription": "diagnostics.describe",
    "TransactionInfo": "transactions.finishing",
    "TransactionResult": "transactions.deferred",
    "ViewDescription": "diagnostics.describe",
    "WithdrawResult": "publications.publish",
}
"""Where each name is defined that would load Arrow, or the store, with it."""


def __getattr__(name: str) -> Any:
    """Loads what needs Arrow when asked: errors are wanted in cold processes, too."""
    if name not in _NEEDS_ARROW:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_NEEDS_ARROW[name]}"), name)


def __dir__() -> list[str]:
    """Lists the names that are not loaded yet, too, for ``help`` and completion."""
    return sorted({*globals(), *__all__})
