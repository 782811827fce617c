"""What transactions and state stores say they have read: a log beside the world, whose offsets
count their items. In a log of the world itself records may be undecided, which nobody has read.
"""

from functools import cache

from clog.storage import Log, ManualClock
from clog.storage.env import SeededIds
from clog_testing.crash import memory_store

_ITEMS = 10_000
"""More than any job of a world does."""


@cache
def items() -> Log:
    """Returns the log; nobody writes it."""
    log = Log.create(memory_store(), 1, clock=ManualClock(1), ids=SeededIds(1))
    log.append([{"key": "item", "value": None}] * _ITEMS)
    return log
