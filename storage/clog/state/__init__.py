"""Local state: the latest value of each key of a log, in a local file that follows the log.

`table` reads, `store` writes as well; both use the same kind of file. `local_file` is its format,
`row_bytes` the encoding of keys and values in it, `cache` a file with the rows that wait for it and
uncommitted changes.
"""

from clog.state.store import StateStore
from clog.state.table import Refreshed, StateTable

__all__ = ["Refreshed", "StateStore", "StateTable"]
