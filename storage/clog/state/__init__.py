"""Local state: the latest value of each key of a log, in a local file that follows the log.

`table` reads, `store` writes as well; both have one kind of file. `sqlite_file` is its
inside, `cache` what is asked of one, `table` which one it is, and `table` what keeps it
the state of the log at one version. `cache` and `store` are a store's changes.
"""

from clog.state.store import StateStore
from clog.state.table import Refreshed, StateTable

__all__ = ["Refreshed", "StateStore", "StateTable"]
