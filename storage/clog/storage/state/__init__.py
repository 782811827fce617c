"""Local state: the latest value of each key of a log, in a local file that follows the log.

`state_table` reads, `state_store` writes as well; both have one kind of file. `sqlite_file` is its
inside, `cache` what is asked of one, `generations` which one it is, and `following` what keeps it
the state of the log at one version. `uncommitted` and `changelog` are a store's changes.
"""

from clog.storage.state.following import Refreshed
from clog.storage.state.state_store import StateStore
from clog.storage.state.state_table import StateTable

__all__ = ["Refreshed", "StateStore", "StateTable"]
