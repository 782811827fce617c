"""The cleaner of clog: compaction, retention and the sweep, beside the writers.

It never blocks a writer or a reader. Start with `Cleaner`; everything that its signatures mention
is exported here, and what is not exported may change with any release.
"""

from clog.cleaner.cleaner import Cleaner, FoundLogs
from clog.cleaner.duties.retention import Expired, MaintenanceResult
from clog.cleaner.log_round import CleanerSettings
from clog.cleaner.passes.stats import PassResult, PassStats

__all__ = [
    "Cleaner",
    "CleanerSettings",
    "Expired",
    "FoundLogs",
    "MaintenanceResult",
    "PassResult",
    "PassStats",
]
