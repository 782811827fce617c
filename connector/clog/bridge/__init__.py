"""Ways into logs, and out of them, that keep their place: topics of Kafka.

`mirror` makes a log of a topic, with the same partitions and offsets, and `verify` compares them
while both have cleaners of their own; `send` is the way back. Without pyspark; Kafka's
client, confluent-kafka, is needed when a topic is talked to.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clog.bridge.mirroring import Mirrored, MirroredTopic, mirror
    from clog.bridge.sending import Sent, send
    from clog.bridge.verifying import Difference, Verified, verify

__all__ = [
    "Difference",
    "Mirrored",
    "MirroredTopic",
    "Sent",
    "Verified",
    "mirror",
    "send",
    "verify",
]

_MODULES = {
    "Difference": "verifying",
    "Mirrored": "mirroring",
    "MirroredTopic": "mirroring",
    "Sent": "sending",
    "Verified": "verifying",
    "mirror": "mirroring",
    "send": "sending",
    "verify": "verifying",
}


def __getattr__(name: str) -> Any:
    """Loads what is asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    """Lists the names that are not loaded yet, too, for ``help`` and completion."""
    return sorted({*globals(), *__all__})
