"""Topics that the tests of mirrors share: values of one shape, and what is compacted soon."""

import pyarrow as pa

from clog.bridge import Decoding

SCHEMA = {"key": pa.string(), "value": pa.struct([("n", pa.int64())])}
JSON = Decoding(values="json", keys="string", schema=SCHEMA)
COMPACTED = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": 0.01,
    "segment_ms": 100,
    "delete_retention_ms": 0,
}
