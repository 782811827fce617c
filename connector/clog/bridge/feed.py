"""The records of topics as they come, and what else Kafka's client says meanwhile.

Positions are those of librdkafka, after each batch that it gave: the next offset, and the leader
epoch of the batch before it. That is not the last record's: behind it may lie markers of
transactions, and what was aborted, in another epoch. Who began again there with the last record's
epoch would be told of a truncation that never was.

``auto.offset.reset`` is ``error``, always: every other value goes on somewhere else, silently.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import repeat
from operator import is_not
from typing import Any, Final

from clog.bridge.topic import Cluster
from clog.storage.env import dataclass

MESSAGES: Final = 600
"""At once, of small ones; of large ones so many as have about `TAKEN_BYTES`. Python looks for
garbage whenever there are 700 more objects than before: of 5,000 messages, that takes a third of
the time."""
TAKEN_BYTES: Final = 16 << 20
WAIT_S: Final = 0.2
"""For messages; an interrupt is heard after it."""
_GROUP: Final = "clog-mirror"
_TRIES: Final = 3
"""So often a broker may fail to read at one offset."""
OPTIONS: Final[Mapping[str, object]] = {
    "auto.offset.reset": "error",
    "check.crcs": True,
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "max.poll.interval.ms": 86_400_000,  # nobody waits for the partitions: there is no group
}
"""What a mirror rests on; nobody may set them otherwise."""

Place = tuple[str, int]
"""A topic and a partition of it."""


@dataclass(frozen=True, slots=True)
class At:
    """The next offset to read of a partition, and the leader epoch of what lies before it."""

    offset: int
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """What came.

    Attributes:
        messages: by topic, in the order of their offsets in each partition.
        ended: partitions that were read to the end there was, and where that is.
        lost: partitions whose next offset is not in the source any more, or never was.
        gone: partitions that the brokers do not have any more.
        damaged: partitions of which a broker cannot read the next offset, and what it says.
        troubles: what else was said.
    """

    messages: Mapping[str, list[Any]]
    ended: Mapping[Place, int]
    lost: frozenset[Place]
    gone: frozenset[Place]
    damaged: Mapping[Place, str]
    troubles: tuple[str, ...]


class Feed:
    """Reads partitions from where it is told; of one thread."""

    def __init__(self, cluster: Cluster, *, group: str = _GROUP) -> None:
        import confluent_kafka

        self._kafka = confluent_kafka
        self._consumer = cluster.consumer({"group.id": group, **OPTIONS})
        self._failures: Counter[tuple[Place, str]] = Counter()
        self._count = MESSAGES
        self._topics: set[str] = set()

    def close(self) -> None:
        """Ends it; what was read and not taken is dropped."""
        self._consumer.close()

    def add(self, places: Mapping[Place, At]) -> None:
        """Reads these partitions, too."""
        self._topics |= {topic for topic, _ in places}
        if places:
            self._consumer.incremental_assign([self._place(p, at) for p, at in places.items()])

    def remove(self, places: Iterable[Place]) -> None:
        """Reads these partitions no longer."""
        made = [self._kafka.TopicPartition(*place) for place in places]
        if made:
            self._consumer.incremental_unassign(made)

    def take(self, wait_s: float = WAIT_S) -> Taken:
        """Returns what came, once it is enough, or has been waited for."""
        came = self._consumer.consume(self._count, wait_s)
        events, messages = [], came
        if came and any(map(is_not, map(type(came[0]).error, came), repeat(None))):
            events = [m for m in came if m.error() is not None]
            messages = [m for m in came if m.error() is None]
        if messages:
            size_bytes = sum(map(len, messages))
            self._count = max(1, min(MESSAGES, TAKEN_BYTES * len(messages) // (size_bytes + 1)))
        return self._sorted(self._by_topic(messages), events)

    def positions(self, places: Iterable[Place]) -> dict[Place, At]:
        """Returns where partitions stand of which something was taken. No request."""
        asked = [self._kafka.TopicPartition(*place) for place in places]
        return {
            (tp.topic, tp.partition): At(tp.offset, _epoch(tp.leader_epoch))
            for tp in self._consumer.position(asked)
            if tp.offset >= 0
        }

    def _by_topic(self, messages: list[Any]) -> dict[str, list[Any]]:
        """Returns messages by topic; most often all are of one."""
        topics = self._topics if len(self._topics) == 1 else {m.topic() for m in messages}
        if len(topics) == 1:
            return {next(iter(topics)): messages} if messages else {}
        return {topic: [m for m in messages if m.topic() == topic] for topic in sorted(topics)}

    def _place(self, place: Place, at: At) -> Any:
        epoch = -1 if at.epoch is None else at.epoch
        return self._kafka.TopicPartition(*place, at.offset, leader_epoch=epoch)

    def _sorted(self, messages: dict[str, list[Any]], events: list[Any]) -> Taken:
        kinds = self._kafka.KafkaError
        ended: dict[Place, int] = {}
        lost, gone = set(), set()
        damaged: dict[Place, str] = {}
        troubles = []
        gone_codes = (
            *(kinds.UNKNOWN_TOPIC_OR_PART, kinds.UNKNOWN_TOPIC_ID),
            *(kinds._UNKNOWN_TOPIC, kinds._UNKNOWN_PARTITION),  # noqa: SLF001 - public there
        )
        unreadable = (kinds.INVALID_MSG, kinds._BAD_MSG, kinds._BAD_COMPRESSION)  # noqa: SLF001
        for event in events:
            error, place = event.error(), (event.topic(), event.partition())
            code = error.code()
            if code == kinds._PARTITION_EOF:  # noqa: SLF001
                ended[place] = event.offset()
            elif code == kinds._AUTO_OFFSET_RESET:  # noqa: SLF001
                lost.add(place)
            elif code in gone_codes:
                gone.add(place)
            elif code in unreadable:
                (at,) = self._consumer.position([self._kafka.TopicPartition(*place)])
                self._failures[place, str(at.offset)] += 1
                if self._failures[place, str(at.offset)] >= _TRIES:
                    damaged[place] = error.str()
            else:
                troubles.append(error.str())
        return Taken(messages, ended, frozenset(lost), frozenset(gone), damaged, tuple(troubles))


def _epoch(epoch: int | None) -> int | None:
    return None if epoch is None or epoch < 0 else epoch
