"""What guests may import besides the public names: programs that stand on the log without being
part of it, such as the bridge, the page of `clog ui` and the estimate of `clog cost`.

`Inside` shows what a `Log` does not tell users. The rest is what records are made of (keys,
columns, values in columns), configs, and how clog words things. There are at most twenty names; the
import contracts keep guests from all other modules of storage, and a guest uses no ``handle``. A
release may change these names, and the guests in the repository change with it.
"""

from typing import TYPE_CHECKING

from clog.storage.env import dataclass, from_extra, loading

if TYPE_CHECKING:
    from clog.storage.config.log_config import LogConfig
    from clog.storage.config.units import duration
    from clog.storage.diagnostics.describe import Written
    from clog.storage.inside import Inside, together
    from clog.storage.keys.hashing import hash_keys, key_bytes
    from clog.storage.numpy_arrays import to_arrow, to_numpy
    from clog.storage.objects.records import of_headers
    from clog.storage.objects.writer import record_sizes
    from clog.storage.store.opening import find_logs, redact, store_of
    from clog.storage.types.conform import fitted, from_json, parsed_json, united

__all__ = [
    "Inside",
    "LogConfig",
    "Written",
    "dataclass",
    "duration",
    "find_logs",
    "fitted",
    "from_extra",
    "from_json",
    "hash_keys",
    "key_bytes",
    "of_headers",
    "parsed_json",
    "record_sizes",
    "redact",
    "store_of",
    "to_arrow",
    "to_numpy",
    "together",
    "united",
]

__getattr__, __dir__ = loading(
    __name__,
    {
        ".config.log_config": ("LogConfig",),
        ".config.units": ("duration",),
        ".diagnostics.describe": ("Written",),
        ".inside": ("Inside", "together"),
        ".keys.hashing": ("hash_keys", "key_bytes"),
        ".numpy_arrays": ("to_arrow", "to_numpy"),
        ".objects.records": ("of_headers",),
        ".objects.writer": ("record_sizes",),
        ".store.opening": ("find_logs", "redact", "store_of"),
        ".types.conform": ("fitted", "from_json", "parsed_json", "united"),
    },
)
