"""State tables: the latest value of each key of a log, kept in a local file that follows the log.

`sqlite_file` is the file's inside, `cache` what is asked of one, `generations` which one it is, and
`following` what keeps it the state of the log at one version; `state_table` is for users.
"""

from clog.storage.state.following import Refreshed
from clog.storage.state.state_table import StateTable

__all__ = ["Refreshed", "StateTable"]
