"""A topic of Kafka, in memory, with its cleaner: what `clog.bridge.mirroring` asks of a cluster."""

from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka

from clog.bridge import mirroring
from clog.bridge.topic import Extent, Setting, Topic

PARTITIONS = 2
_PATH = "kafka://broker:9092/orders"


@dataclass(frozen=True, eq=False)
class Message:
    """A record, or that a partition has no more, as Kafka's client returns it."""

    partition_: int
    offset_: int
    key_: bytes | None = None
    value_: bytes | None = None
    ms: int = 0
    is_end: bool = False

    def __len__(self) -> int:
        return len(self.value_ or b"")

    def error(self) -> Any:
        return _End() if self.is_end else None

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return self.partition_

    def offset(self) -> int:
        return self.offset_

    def key(self) -> bytes | None:
        return self.key_

    def value(self) -> bytes | None:
        return self.value_

    def timestamp(self) -> tuple[int, int]:
        return 1, self.ms

    def headers(self) -> None:
        return None


class _End:
    def code(self) -> int:
        code: int = confluent_kafka.KafkaError._PARTITION_EOF  # noqa: SLF001 - public there
        return code


@dataclass(eq=False)
class Broker:
    """One topic: ``sent`` has all records ever, ``there`` those that its cleaner has left.

    Attributes:
        cleaned: the tombstones that a pass has met, and when they go.
    """

    retention_ms: int
    sent: list[Message] = field(default_factory=list)
    there: list[Message] = field(default_factory=list)
    cleaned: dict[Message, int] = field(default_factory=dict)
    brokers = "broker:9092"
    wait_ms = 60_000
    id = "cluster"
    failures = confluent_kafka.KafkaException

    def send(self, key: bytes, value: bytes | None, ms: int) -> None:
        """Appends a record to the partition of its key."""
        p = sum(key) % PARTITIONS
        message = Message(p, self.end(p), key, value, ms)
        self.sent.append(message)
        self.there.append(message)

    def end(self, p: int) -> int:
        """Returns the end offset of a partition."""
        return sum(m.partition_ == p for m in self.sent)

    def table(self) -> dict[bytes, bytes]:
        """Returns the last value of each key, from all that was ever sent."""
        last = {m.key_: m.value_ for m in self.sent if m.key_ is not None}
        return {key: value for key, value in last.items() if value is not None}

    def clean(self, now_ms: int) -> None:
        """Removes what is superseded, and tombstones that a pass met long enough ago."""
        last = {m.key_: m for m in self.there}
        self.there = [m for m in self.there if last[m.key_] is m]
        for m in self.there:
            if m.value_ is None:
                self.cleaned.setdefault(m, now_ms + self.retention_ms)
        self.there = [m for m in self.there if self.cleaned.get(m, now_ms + 1) > now_ms]

    # --- As `clog.bridge.topic.Cluster`

    def matching(self, _address: Any) -> list[str]:
        return ["orders"]

    def topic(self, name: str) -> Topic:
        return Topic(self.id, name, "id", PARTITIONS)

    def configs(self, _topic: str) -> dict[str, Setting]:
        given = {"cleanup.policy": "compact", "delete.retention.ms": str(self.retention_ms)}
        return {name: Setting(value, is_own=True) for name, value in given.items()}

    def extent(self, topic: str, partitions: Iterable[int]) -> Extent:
        ends = {p: self.end(p) for p in partitions}
        return Extent(self.starts(topic, ends), ends, ends)

    def starts(self, _topic: str, partitions: Iterable[int]) -> dict[int, int]:
        return dict.fromkeys(partitions, 0)

    def consumer(self, _own: Mapping[str, object]) -> "Consumer":
        return Consumer(self)


class Consumer:
    """What reads it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._at: dict[int, int] = {}
        self._taken: set[int] = set()

    def incremental_assign(self, places: list[Any]) -> None:
        self._at |= {tp.partition: tp.offset for tp in places}

    def incremental_unassign(self, places: list[Any]) -> None:
        for tp in places:
            self._at.pop(tp.partition, None)

    def consume(self, _count: int, _wait_s: float) -> list[Message]:
        found = []
        for p, at in list(self._at.items()):
            mine = [m for m in self._broker.there if m.partition_ == p and m.offset_ >= at]
            end = self._broker.end(p)
            found += [*mine, Message(p, end, is_end=True)]
            self._at[p] = end
            self._taken.add(p)
        return found

    def position(self, places: list[Any]) -> list[Any]:
        kind = confluent_kafka.TopicPartition
        return [
            kind(tp.topic, tp.partition, self._at.get(tp.partition, -1001))
            for tp in places
            if tp.partition in self._taken
        ]

    def close(self) -> None:
        self._at = {}


def mirrored(broker: Broker, url: str, **options: Any) -> None:
    """Mirrors the topic into a log, up to its end."""
    with _known(broker):
        mirroring.mirror(_PATH, url, mirroring.MirrorSettings(once=True, **options))


@contextmanager
def _known(broker: Broker) -> Any:
    made = mirroring.Cluster
    mirroring.Cluster = lambda *_, **__: broker  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        mirroring.Cluster = made  # type: ignore[misc]
