"""State tables: the latest value of each key of a log, kept in a local file that follows the log.

`cache` is the file, `state_table` what keeps it the state of the log at one version.
"""

from clog.storage.state.state_table import Refreshed, StateTable

__all__ = ["Refreshed", "StateTable"]
