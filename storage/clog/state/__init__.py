"""Local state: the latest value of each key of a log, in a local file that follows the log.

`table` reads, `store` writes as well; both have one kind of file. `local_file` is its format,
`row_bytes` what keys and values are in it, `cache` a file with what waits for it and what is not
committed.
"""

from clog.state.store import StateStore
from clog.state.table import Refreshed, StateTable

__all__ = ["Refreshed", "StateStore", "StateTable"]
