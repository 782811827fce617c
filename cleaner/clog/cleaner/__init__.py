"""The cleaner of clog: compaction, retention and the sweep, beside the writers.

It never blocks a writer or a reader. Start with `Cleaner`; everything that its signatures mention
is exported here, and what is not exported may change with any release.
"""

from typing import TYPE_CHECKING

from clog.storage.env import loading

if TYPE_CHECKING:
    from clog.cleaner.cleaner import Cleaner, FoundLogs
    from clog.cleaner.duties.retention import Expired, MaintenanceResult
    from clog.cleaner.log_round import CleanerSettings
    from clog.cleaner.selection import PassResult, PassStats

__all__ = [
    "Cleaner",
    "CleanerSettings",
    "Expired",
    "FoundLogs",
    "MaintenanceResult",
    "PassResult",
    "PassStats",
]

__getattr__, __dir__ = loading(
    __name__,
    {
        "cleaner": ("Cleaner", "FoundLogs"),
        "duties.retention": ("Expired", "MaintenanceResult"),
        "log_round": ("CleanerSettings",),
        "selection": ("PassResult", "PassStats"),
    },
)
