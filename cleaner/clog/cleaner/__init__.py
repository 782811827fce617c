"""The cleaner of clog: compaction, retention and the sweep, beside the writers and never in their way."""

from clog.cleaner.cleaner import Cleaner
from clog.cleaner.stats import PassResult, PassStats

__all__ = ["Cleaner", "PassResult", "PassStats"]
