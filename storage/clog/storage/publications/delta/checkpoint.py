"""Checkpoints of the Delta table: all of a version in one Parquet file, of which readers begin.

Of files that were removed it says nothing: only a VACUUM needs that, which the table refuses.
"""

import io
import json
from typing import Any

import pyarrow as pa

from clog.storage.publications.delta.table_log import MAPS, Action, DeltaTable

_TEXTS = pa.map_(pa.string(), pa.string())
_LIST = pa.list_(pa.string())
_VECTOR = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
_SCHEMA = pa.schema(
    {
        "txn": pa.struct(
            [("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())]
        ),
        "add": pa.struct(
            [
                ("path", pa.string()),
                ("partitionValues", _TEXTS),
                ("size", pa.int64()),
                ("modificationTime", pa.int64()),
                ("dataChange", pa.bool_()),
                ("stats", pa.string()),
                ("tags", _TEXTS),
                ("deletionVector", _VECTOR),
            ]
        ),
        "remove": pa.struct(
            [
                ("path", pa.string()),
                ("deletionTimestamp", pa.int64()),
                ("dataChange", pa.bool_()),
            ]
        ),
        "metaData": pa.struct(
            [
                ("id", pa.string()),
                ("name", pa.string()),
                ("description", pa.string()),
                ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
                ("schemaString", pa.string()),
                ("partitionColumns", _LIST),
                ("configuration", _TEXTS),
                ("createdTime", pa.int64()),
            ]
        ),
        "protocol": pa.struct(
            [
                ("minReaderVersion", pa.int32()),
                ("minWriterVersion", pa.int32()),
                ("readerFeatures", _LIST),
                ("writerFeatures", _LIST),
            ]
        ),
    }
)


def encode_checkpoint(table: DeltaTable, txn: Action) -> bytes:
    """Returns the file of a version; ``txn`` is what it says of the log."""
    from pyarrow import parquet

    actions = [
        {"protocol": table.protocol},
        {"metaData": _paired(table.metadata)},
        {"txn": txn},
        *({"add": _paired({**add, "dataChange": False})} for add in table.adds.values()),
    ]
    sink = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(actions, schema=_SCHEMA), sink)
    return sink.getvalue()


def _paired(action: Action) -> Action:
    """Returns an action with pairs for maps, as Arrow takes them."""
    return {
        name: [*value.items()] if name in MAPS else _paired(value) if name == "format" else value
        for name, value in action.items()
    }


def last_checkpoint(table: DeltaTable) -> bytes:
    """Returns the hint that names the checkpoint of this version."""
    hint: dict[str, Any] = {"version": table.version, "size": len(table.adds) + 3}
    return json.dumps(hint).encode()
