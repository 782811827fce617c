"""A log on a filesystem: create and open it, append, read, trim, and follow it with a state table.

Everything that a signature of this API mentions is exported here; names that are not exported may
change with any release. Start with `Log` and `StateTable`; all errors derive from `ClogError`.
"""

from typing import TYPE_CHECKING

from clog.storage.env import Clock, Ids, ManualClock, SeededIds, SystemClock, SystemIds, loading
from clog.storage.errors import (
    AlreadyExistsError,
    ClogError,
    CommitConflictError,
    CommitStateUnknownError,
    CorruptionError,
    ErrorKind,
    InvalidInputError,
    LogReplacedError,
    MissingPackageError,
    NotFoundError,
    OffsetOutOfRangeError,
    OptionError,
    OutOfMemoryError,
    SourceDamagedError,
    SourceError,
    SourcePartitionsError,
    SourcePurgedError,
    SourceReplacedError,
    SourceTruncatedError,
    SourceUnavailableError,
    SourceUndecodableError,
    StateFencedError,
    StateFileError,
    StoreUnavailableError,
    TransactionFencedError,
    TransactionTimeoutError,
    UnsupportedFilesystemError,
    UnsupportedFormatError,
    VersionExpiredError,
)

if TYPE_CHECKING:
    from clog.state.store import StateStore
    from clog.state.table import Refreshed, StateTable
    from clog.storage.administration import FeatureState
    from clog.storage.append import AppendResult
    from clog.storage.cuts import Cut, drop_snapshot, snapshot, snapshots
    from clog.storage.diagnostics.describe import (
        CommitInfo,
        KeptDescription,
        LogDescription,
        PartitionDescription,
        SegmentInfo,
        TransactionDescription,
        ViewDescription,
    )
    from clog.storage.erasures import Erasure, ErasureRequest
    from clog.storage.log import Log
    from clog.storage.objects.records import Appendable, ArrowStream
    from clog.storage.publications.publish import PublishResult, WithdrawResult
    from clog.storage.read.following import Following
    from clog.storage.read.scan import READ_SCHEMA
    from clog.storage.read.table import Table
    from clog.storage.readers import NamedReader, Reader, follow
    from clog.storage.store.contract import Store, StoredObject
    from clog.storage.transactions.deferred import Source, TransactionResult
    from clog.storage.transactions.several import TransactionInfo
    from clog.storage.transactions.transaction import Transaction
    from clog.storage.types.columns import Frame, Records

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
    "Cut",
    "Erasure",
    "ErasureRequest",
    "ErrorKind",
    "FeatureState",
    "Following",
    "Frame",
    "Ids",
    "InvalidInputError",
    "KeptDescription",
    "Log",
    "LogDescription",
    "LogReplacedError",
    "ManualClock",
    "MissingPackageError",
    "NamedReader",
    "NotFoundError",
    "OffsetOutOfRangeError",
    "OptionError",
    "OutOfMemoryError",
    "PartitionDescription",
    "PublishResult",
    "Reader",
    "Records",
    "Refreshed",
    "SeededIds",
    "SegmentInfo",
    "Source",
    "SourceDamagedError",
    "SourceError",
    "SourcePartitionsError",
    "SourcePurgedError",
    "SourceReplacedError",
    "SourceTruncatedError",
    "SourceUnavailableError",
    "SourceUndecodableError",
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
    "drop_snapshot",
    "follow",
    "snapshot",
    "snapshots",
]
__getattr__, __dir__ = loading(
    __name__,
    {
        "administration": ("FeatureState",),
        "append": ("AppendResult",),
        "cuts": ("Cut", "drop_snapshot", "snapshot", "snapshots"),
        "diagnostics.describe": (
            "CommitInfo",
            "KeptDescription",
            "LogDescription",
            "PartitionDescription",
            "SegmentInfo",
            "TransactionDescription",
            "ViewDescription",
        ),
        "erasures": ("Erasure", "ErasureRequest"),
        "log": ("Log",),
        "objects.records": ("Appendable", "ArrowStream"),
        "publications.publish": ("PublishResult", "WithdrawResult"),
        "read.following": ("Following",),
        "read.scan": ("READ_SCHEMA",),
        "read.table": ("Table",),
        "readers": ("NamedReader", "Reader", "follow"),
        ".state": ("Refreshed", "StateStore", "StateTable"),
        "store.contract": ("Store", "StoredObject"),
        "transactions.deferred": ("Source", "TransactionResult"),
        "transactions.several": ("TransactionInfo",),
        "transactions.transaction": ("Transaction",),
        "types.columns": ("Frame", "Records"),
    },
)
