"""The cleaner of clog: compaction, retention and the sweep, beside the writers.

It never blocks a writer or a reader. Start with `Cleaner`; everything that its signatures mention
is exported here, and what is not exported may change with any release.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_MODULES = {
    "Cleaner": "cleaner",
    "CleanerSettings": "log_round",
    "Expired": "duties.retention",
    "FoundLogs": "cleaner",
    "MaintenanceResult": "duties.retention",
    "PassResult": "selection",
    "PassStats": "selection",
}


def __getattr__(name: str) -> Any:
    """Loads what is asked for: who only looks what is due needs no pass."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    """Lists the names that are not loaded yet, too, for ``help`` and completion."""
    return sorted({*globals(), *__all__})
