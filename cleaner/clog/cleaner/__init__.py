"""The cleaner of clog: compaction, retention and the sweep, beside the writers.

It is never in a writer's or a reader's way (S30); `cleaner.Cleaner` is all there is to call.
"""

from clog.cleaner.cleaner import Cleaner
from clog.cleaner.stats import PassResult, PassStats

__all__ = ["Cleaner", "PassResult", "PassStats"]
