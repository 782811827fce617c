"""A Kafka topic as a source: its address, its identity, its extent.

An *address* is where topics are looked for, `kafka://HOST:PORT/TOPIC`. A topic is identified by the
ids of its cluster and of itself: a topic that was deleted and recreated has a new id, even if it is
otherwise the same. The source's name in a log's positions consists of both ids (FORMAT.md §11.4).

Three offsets are requested of each partition: the *log start*, below which nothing is left, the
*last stable offset*, where ``read_committed`` ends, and the *high watermark*. Records between the
last two may belong to open transactions.

`Cluster` asks Kafka's own client; each question is one round trip, more where leaders differ.

`Feed` reads records. Positions are those that librdkafka has after each batch: the next offset,
and the leader epoch of the batch before it. That is not the epoch of the last record: transaction
markers and aborted records may follow it, in another epoch. A consumer that resumed there with the
last record's epoch would get a truncation error although nothing was truncated.
``auto.offset.reset`` is always ``error``: any other value silently continues somewhere else.

Messages become columns (`Gathered`). Keys, values, headers and times are kept unchanged, with two
exceptions, which are counted. A time that a log cannot hold (Kafka uses -1 for no time, and accepts
any other) becomes the nearest one that it can, and the header `TIMESTAMP_HEADER` keeps the original
in ms. A record without a key is left out if the log is compacted and so cannot take it; Kafka's own
cleaner would remove it in its first pass.
"""

import base64
import binascii
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from fnmatch import fnmatchcase
from functools import partial
from io import BytesIO
from itertools import repeat
from operator import is_not, itemgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from clog.storage import (
    Clock,
    ClogError,
    InvalidInputError,
    NotFoundError,
    SourceUnavailableError,
    SystemClock,
)
from clog.storage.spi import dataclass, from_extra, of_headers, redact, to_arrow

if TYPE_CHECKING:
    import confluent_kafka as kafka

SYSTEM: Final = "kafka"
SCHEME: Final = f"{SYSTEM}://"
PORT_DEFAULT: Final = 9092
WAIT_MS: Final = 60_000
"""How long an answer, or any record, may take; until then librdkafka connects and retries by
itself.
"""
WORD_S: Final = 5.0
"""After this long without an answer a warning is logged; if a stop was requested, the wait ends."""
_STEP_S: Final = 0.25
"""How often a longer wait checks whether to stop."""
_PAUSE_MS: Final = 250
"""How long to wait before asking again after a broker went away."""
_QUIET: Final = {"log_level": 2}
"""librdkafka prints only what is more severe to standard error; what matters is also raised."""
_GLOB: Final = frozenset("*?[")

MESSAGES: Final = 600
"""Messages taken at a time if they are small; of large ones, as many as have about `TAKEN_BYTES`.
Python looks for garbage whenever there are 700 more objects than before: with 5,000 messages, that
takes a third of the time."""
TAKEN_BYTES: Final = 16 << 20
WAIT_S: Final = 0.2
"""How long to wait for messages; an interrupt takes effect only after it."""
_GROUP: Final = "clog-mirror"
_TRIES: Final = 3
"""How often a broker may fail to read at one offset."""
OPTIONS: Final[Mapping[str, object]] = {
    "auto.offset.reset": "error",
    "check.crcs": True,
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "max.poll.interval.ms": 86_400_000,  # no one waits for the partitions: there is no group
}
"""The options that a mirror relies on; users cannot override them."""

_log = logging.getLogger(__name__)

Place = tuple[str, int]
"""A topic and one of its partitions."""
TIMESTAMP_HEADER: Final = b"clog.mirror.timestamp"
_TIMESTAMP: Final = pa.timestamp("us", "UTC")
_MS_MAX: Final = (2**63 - 1) // 1000
_RECORD_BYTES: Final = 48
"""About what a record takes besides key, value and headers: offset, time, lengths."""
_Ints = np.ndarray[Any, Any]
_NONE: Final = np.zeros(0, np.int64)
_BYTES_MAX: Final = (1 << 31) - 1
"""Of a column of bytes."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where topics are looked for.

    Attributes:
        brokers: in the form that Kafka's clients accept, ``HOST:PORT,HOST:PORT``.
        topic: a name, or a shell-style pattern of names: ``orders-*``.
    """

    brokers: str
    topic: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.brokers}/{self.topic}"

    @property
    def is_pattern(self) -> bool:
        """Whether it may match several topics."""
        return not _GLOB.isdisjoint(self.topic)

    def of(self, topic: str) -> "Address":
        """Returns the address of a topic on the same cluster."""
        return Address(self.brokers, topic)


def address_of(text: str) -> Address:
    """Reads ``kafka://HOST[:PORT][,HOST[:PORT]…]/TOPIC``.

    >>> address_of("kafka://a,b:9093/orders").brokers
    'a:9092,b:9093'
    """
    brokers, slash, topic = text.removeprefix(SCHEME).partition("/")
    hosts = [host.strip() for host in brokers.split(",")]
    shown = redact(text).rpartition("@")[2]  # A password may precede it.
    if not text.startswith(SCHEME) or "@" in text or not all((*hosts, slash, topic)):
        raise InvalidInputError(
            f"{shown!r:.120} is not the address of a topic; give kafka://HOST:PORT/TOPIC, and user"
            " and password as options of the client (sasl.username, sasl.password)"
        )
    if "/" in topic:
        raise InvalidInputError(
            f"{shown!r:.120} does not name a topic: topic names cannot contain /"
        )
    return Address(",".join(map(_with_port, hosts)), topic)


def _with_port(host: str) -> str:
    bare = host.rpartition("]")[2]  # The colons of an IPv6 address are in brackets.
    return host if ":" in bare else f"{host}:{PORT_DEFAULT}"


@dataclass(frozen=True, slots=True)
class Topic:
    """The identity of a topic.

    Attributes:
        id: in the form that Kafka's tools print.
        partitions: the number of partitions.
    """

    cluster_id: str
    topic: str
    id: str
    partitions: int

    @property
    def source(self) -> str:
        """The name under which positions in it are committed."""
        return f"{SYSTEM}:{self.cluster_id}/{self.id}"

    @property
    def seen(self) -> str:
        """The name under which the last moment is committed that a log had all of it (`Seen`)."""
        return f"{SYSTEM}-seen:{self.id}"


@dataclass(frozen=True, slots=True)
class Extent:
    """Where the partitions of a topic begin and end at one moment, by partition.

    Attributes:
        start: the log start offset.
        stable: the last stable offset.
        high: the high watermark.
    """

    start: Mapping[int, int]
    stable: Mapping[int, int]
    high: Mapping[int, int]


def client_library() -> Any:
    """Returns the module of Kafka's client; if it is missing, the error says what to install."""
    with from_extra("kafka", "Kafka", "confluent_kafka"):
        import confluent_kafka
    return confluent_kafka


class Refusal(Enum):
    """For what a broker refuses records or requests, and does so again."""

    SIZE = "size"
    TIME = "time"
    RECORD = "record"
    RIGHTS = "rights"


class Cluster:
    """Answers questions about topics, and makes consumers; for one thread at a time.

    Args:
        brokers: the bootstrap servers.
        options: librdkafka's, such as ``security.protocol`` and ``sasl.password``.
        wait_ms: how long an answer may take, and how long to keep asking if the broker that should
            answer went away.
        should_stop: while it is true, no answer is waited for longer than `WORD_S`.
    """

    def __init__(
        self,
        brokers: str,
        options: Mapping[str, object],
        wait_ms: int = WAIT_MS,
        should_stop: Callable[[], bool] = lambda: False,
        *,
        clock: Clock | None = None,
    ) -> None:
        if type(wait_ms) is not int or not 1 <= wait_ms < 1 << 31:
            raise InvalidInputError(f"wait_ms={wait_ms!r} is out of range; allowed: 1 to 2^31 - 1")
        self.brokers = brokers
        self.wait_ms = wait_ms
        self._should_stop = should_stop
        self._clock = clock or SystemClock()
        self._options = {**_QUIET, **options, "bootstrap.servers": brokers}
        self._errors: list[Any] = []
        self._kafka = client_library()
        self._admin = self._made(_admin_client(), self._options)
        self._id = ""

    @property
    def id(self) -> str:
        """The cluster's id; requested once."""
        if not self._id:
            ask = partial(self._admin.describe_cluster, request_timeout=self._wait_s)
            answer = self._answer(ask, "its cluster id")
            if not answer.cluster_id:
                raise InvalidInputError(
                    f"the cluster at {self.brokers} has no id to identify positions in it; Kafka"
                    " 0.10.1 and newer have one"
                )
            self._id = answer.cluster_id
        return self._id

    def matching(self, address: Address) -> list[str]:
        """Returns the topics that an address matches; raises NotFoundError if there are none."""
        if not address.is_pattern:
            return [address.topic]
        _ = self.id  # Raises if the brokers do not answer at all.
        try:
            known = self._admin.list_topics(timeout=self._wait_s).topics
        except self._kafka.KafkaException as e:
            raise self._error(e.args[0], "which topics there are") from e
        found = sorted(
            name for name in known if fnmatchcase(name, address.topic) and not name.startswith("__")
        )
        if not found:
            raise NotFoundError(
                f"no topic of {self.brokers} matches {address.topic}; it has {len(known)} topics"
                " visible to this client"
            )
        return found

    def topic(self, name: str) -> Topic:
        """Returns a topic's current identity; raises NotFoundError if no topic has this name."""
        asked = self._kafka.TopicCollection([name])
        ask = partial(self._admin.describe_topics, asked, request_timeout=self._wait_s)
        answer = self._answer(lambda: ask()[name], f"topic {name}")
        return Topic(self.id, name, _as_printed(str(answer.topic_id)), len(answer.partitions))

    def configs(self, topic: str) -> dict[str, "Setting"]:
        """Returns a topic's effective configs; none if this client is not allowed to see them."""
        kafka = self._kafka
        resource = kafka.admin.ConfigResource(kafka.admin.ConfigResource.Type.TOPIC, topic)
        ask = partial(self._admin.describe_configs, [resource], request_timeout=self._wait_s)
        try:
            answer = self._answer(lambda: ask()[resource], f"the configs of topic {topic}")
        except InvalidInputError:  # Reading records does not need the right to see configs.
            return {}
        own = kafka.admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {
            name: Setting(entry.value, is_own=_number(entry.source) == own)
            for name, entry in answer.items()
            if entry.value is not None
        }

    def extent(self, topic: str, partitions: Iterable[int]) -> Extent:
        """Returns where these partitions of a topic begin and end."""
        admin, committed = self._kafka.admin, self._kafka.IsolationLevel.READ_COMMITTED
        latest = admin.OffsetSpec.latest()
        wanted = list(partitions)
        asked = [
            self._list(topic, wanted, admin.OffsetSpec.earliest(), None),
            self._list(topic, wanted, latest, committed),
            self._list(topic, wanted, latest, None),
        ]
        return Extent(*(self._listed(topic, asks) for asks in asked))

    def starts(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Returns the log start offsets of these partitions of a topic."""
        earliest = self._kafka.admin.OffsetSpec.earliest()
        return self._listed(topic, self._list(topic, list(partitions), earliest, None))

    def consumer(self, own: Mapping[str, object]) -> "kafka.Consumer":
        """Returns a consumer with these options, which override the cluster's."""
        made: kafka.Consumer = self._made(self._kafka.Consumer, {**self._options, **own})
        return made

    def producer(self, own: Mapping[str, object]) -> Any:
        """Returns a producer with these options, which override the cluster's."""
        return self._made(self._kafka.Producer, {**self._options, **own})

    def place(self, topic: str, partition: int, offset: int | None, metadata: str = "") -> Any:
        """Returns a place in a topic in the form that Kafka's client accepts."""
        at = self._kafka.OFFSET_INVALID if offset is None else offset
        return self._kafka.TopicPartition(topic, partition, at, metadata)

    @property
    def failures(self) -> type[Exception]:
        """The exception that Kafka's client raises."""
        raised: type[Exception] = self._kafka.KafkaException
        return raised

    def is_fenced(self, error: Any) -> bool:
        """Returns whether a producer's error says that another producer has its id."""
        kinds = self._kafka.KafkaError
        ours = (kinds.PRODUCER_FENCED, kinds.INVALID_PRODUCER_EPOCH)
        return error.code() in (kinds._FENCED, *ours)  # noqa: SLF001 - public there

    def refusal(self, error: Any) -> Refusal | None:
        """Returns for what a broker refused a request, whenever it is asked again; else None."""
        kinds, code = self._kafka.KafkaError, error.code()
        if code in (kinds.MSG_SIZE_TOO_LARGE, kinds.RECORD_LIST_TOO_LARGE):
            return Refusal.SIZE
        if code == kinds.INVALID_TIMESTAMP:
            return Refusal.TIME
        if code == kinds.INVALID_RECORD:
            return Refusal.RECORD
        return Refusal.RIGHTS if code in _unauthorized(kinds) else None

    def unavailable(self, what: str) -> SourceUnavailableError:
        """Returns the error for an answer that did not come, with the client's last message."""
        return SourceUnavailableError(
            f"{self.brokers} did not return {what}{self._last_word()}; {_CHECK}, then run it again"
        )

    @property
    def _wait_s(self) -> float:
        return self.wait_ms / 1000

    def _last_word(self) -> str:
        self._admin.poll(0)  # Only this delivers the client's errors.
        return f" (the client says: {self._errors[-1].str()})" if self._errors else ""

    def _list(
        self, topic: str, partitions: list[int], spec: Any, isolation: Any
    ) -> dict[int, Callable[[], Any]]:
        """Asks for offsets; returns functions that give them, and ask again if called again."""
        more = {} if isolation is None else {"isolation_level": isolation}
        limit = {"request_timeout": self._wait_s, **more}

        def ask(partitions: list[int]) -> dict[int, Any]:
            asked = {self._kafka.TopicPartition(topic, p): spec for p in partitions}
            answer = self._admin.list_offsets(asked, **limit) if asked else {}
            return {tp.partition: future for tp, future in answer.items()}

        first = ask(partitions)
        return {p: partial(lambda p: first.pop(p, None) or ask([p])[p], p) for p in partitions}

    def _listed(self, topic: str, asks: Mapping[int, Callable[[], Any]]) -> dict[int, int]:
        what = f"the offsets of topic {topic}"
        return {p: self._answer(ask, what).offset for p, ask in asks.items()}

    def _made(self, make: Any, options: Mapping[str, object]) -> Any:
        try:
            return make({**options, "error_cb": self._errors.append})
        except self._kafka.KafkaException as e:  # Its text repeats values, which may be secret.
            named = re.search(r'property:? "([\w.]+)"', e.args[0].str())
            which = f"the option {named[1]}" if named else "its options"
        except (TypeError, ValueError):
            which = "its options: give strings, numbers and booleans"
        raise InvalidInputError(
            f"Kafka's client rejects {which}; its options are those of librdkafka"
        )

    def _answer(self, ask: Callable[[], Any], what: str) -> Any:
        """Returns the answer, retrying while brokers come and go, or raises its error."""
        end_ms = self._clock.monotonic_ms() + self.wait_ms
        while True:
            try:
                return self._awaited(ask(), what)
            except self._kafka.KafkaException as e:
                passes = e.args[0].code() in _passing(self._kafka.KafkaError)
                if not passes or self._should_stop() or self._clock.monotonic_ms() >= end_ms:
                    raise self._error(e.args[0], what) from e
            self._clock.sleep_ms(_PAUSE_MS)

    def _awaited(self, future: Any, what: str) -> Any:
        """Returns the result of a future; warns after `WORD_S`."""
        try:
            return future.result(WORD_S)
        except TimeoutError:
            if not self._should_stop():
                _log.warning(
                    "%s has not sent %s for %g s%s; waiting for up to %g s; %s meanwhile",
                    *(self.brokers, what, WORD_S, self._last_word(), self._wait_s, _CHECK),
                )
        while not self._should_stop():
            with suppress(TimeoutError):
                return future.result(_STEP_S)
        raise self.unavailable(what)

    def _error(self, error: Any, what: str) -> ClogError:
        """Returns our error for an error of Kafka's."""
        kinds, code = self._kafka.KafkaError, error.code()
        if code in (kinds.UNKNOWN_TOPIC_OR_PART, kinds.UNKNOWN_TOPIC_ID):
            return NotFoundError(
                f"{self.brokers} has no {what}; check the name, and that it is visible to this"
                " client"
            )
        if code == kinds.TOPIC_EXCEPTION:
            return InvalidInputError(f"{what} is not possible: {error.str()}")
        if code in _unauthorized(kinds):
            return InvalidInputError(
                f"{self.brokers} refuses to return {what}: {error.str()}; check user, password"
                " and permissions (describe and read of the topic)"
            )
        return self.unavailable(f"{what}: {error.str()}")


_CHECK: Final = (
    "check the address, and that the brokers are running and reachable at the names that they"
    " advertise"
)


@dataclass(frozen=True, slots=True)
class Setting:
    """A config of a topic; ``is_own``: whether it is set for the topic, not by the broker."""

    value: str
    is_own: bool


def tombstones_stay_ms(configs: Mapping[str, str]) -> int | None:
    """Returns how long a topic, or a log, keeps each tombstone at least after it was written; None:
    it is not compacted, and removes none.

    The first pass over a tombstone, at the earliest when it is written, decides when it may go:
    ``delete.retention.ms`` later. ``min.compaction.lag.ms`` delays that pass, but by the times of
    the records; so it only counts if these are the broker's.
    """
    if "compact" not in configs.get("cleanup.policy", ""):
        return None
    by_broker = configs.get("message.timestamp.type") == "LogAppendTime"
    lag_ms = int(configs.get("min.compaction.lag.ms", 0)) if by_broker else 0
    return int(configs["delete.retention.ms"]) + lag_ms


def _passing(kinds: Any) -> tuple[int, ...]:
    """Returns the errors of a broker that stops or starts: it or another answers later."""
    leaders = kinds.LEADER_NOT_AVAILABLE, kinds.NOT_LEADER_FOR_PARTITION
    epochs = kinds.FENCED_LEADER_EPOCH, kinds.UNKNOWN_LEADER_EPOCH
    own = kinds._TRANSPORT, kinds._NOENT  # noqa: SLF001 - public there; the second: no leaders yet
    return (*own, *leaders, *epochs)


def _unauthorized(kinds: Any) -> tuple[int, ...]:
    """Returns the errors of a user who is not known, or lacks a right."""
    unknown = kinds._AUTHENTICATION, kinds.SASL_AUTHENTICATION_FAILED  # noqa: SLF001 - public there
    groups = kinds.GROUP_AUTHORIZATION_FAILED, kinds.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    topics = kinds.TOPIC_AUTHORIZATION_FAILED, kinds.CLUSTER_AUTHORIZATION_FAILED
    return (*unknown, *groups, *topics)


def _admin_client() -> Any:
    from confluent_kafka.admin import AdminClient  # Its module is loaded only here.

    return AdminClient


def _number(source: Any) -> int:
    return int(getattr(source, "value", source))


def _as_printed(topic_id: str) -> str:
    """Returns a topic's id in the form that Kafka prints: base64 for URLs, without padding.

    >>> _as_printed("3qn3ImSZREmvK/mhd8HBFA")
    '3qn3ImSZREmvK_mhd8HBFA'
    """
    plain = topic_id.rstrip("=").replace("+", "-").replace("/", "_")
    try:
        is_id = len(base64.urlsafe_b64decode(plain + "==")) == 16 and set(plain) != {"A"}
    except (binascii.Error, ValueError):
        is_id = False
    if not is_id:
        raise InvalidInputError(
            "the brokers do not give topics an id, which distinguishes a topic that was deleted"
            " and created again from the first one; Kafka 2.8 and newer do"
        )
    return plain


@dataclass(frozen=True, slots=True)
class At:
    """The next offset to read of a partition, and the leader epoch of the batch before it."""

    offset: int
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of one read.

    Attributes:
        messages: by topic, in the order of their offsets in each partition.
        ended: the end offsets of partitions that were read to their current end.
        lost: partitions whose next offset is no longer in the source, or never was.
        gone: partitions that the brokers no longer have.
        damaged: the broker's error, by partition, where it cannot read the next offset.
        troubles: all other errors.
    """

    messages: Mapping[str, list[Any]]
    ended: Mapping[Place, int]
    lost: frozenset[Place]
    gone: frozenset[Place]
    damaged: Mapping[Place, str]
    troubles: tuple[str, ...]


class Feed:
    """Reads partitions from given offsets; for one thread.

    The client counts an event for a record: before its release 2.13, its position after the end of
    a partition is one offset too far, at which nothing has been read.
    """

    def __init__(self, cluster: Cluster, *, group: str = _GROUP) -> None:
        import confluent_kafka

        self._kafka = confluent_kafka
        self._consumer = cluster.consumer({"group.id": group, **OPTIONS})
        self._failures: Counter[tuple[Place, str]] = Counter()
        self._count = MESSAGES
        self._topics: set[str] = set()
        self._read: set[Place] = set()
        self._events: dict[Place, int] = {}  # Of those whose last one was no message: its offset.

    def close(self) -> None:
        """Closes the consumer; messages that were fetched but not taken are dropped."""
        self._consumer.close()

    def add(self, places: Mapping[Place, At]) -> None:
        """Reads these partitions as well."""
        self._topics |= {topic for topic, _ in places}
        if places:
            self._consumer.incremental_assign([self._place(p, at) for p, at in places.items()])
            self._read |= places.keys()

    def remove(self, places: Iterable[Place]) -> None:
        """Stops reading those of these partitions that are being read."""
        made = self._read.intersection(places)
        if made:
            self._consumer.incremental_unassign([self._kafka.TopicPartition(*p) for p in made])
            self._read -= made
            for place in made:
                self._events.pop(place, None)

    def take(self, wait_s: float = WAIT_S) -> Taken:
        """Returns what was read, once it is enough or the wait is over."""
        came = self._consumer.consume(self._count, wait_s)
        events, messages = [], came
        if came and any(map(is_not, map(type(came[0]).error, came), repeat(None))):
            events = [m for m in came if m.error() is not None]
            messages = [m for m in came if m.error() is None]
        if messages:
            size_bytes = sum(map(len, messages))
            self._count = max(1, min(MESSAGES, TAKEN_BYTES * len(messages) // (size_bytes + 1)))
        by_topic = self._by_topic(messages)
        if self._events or events:
            self._note(by_topic, events)
        return self._sorted(by_topic, events)

    def positions(self, places: Iterable[Place]) -> dict[Place, At]:
        """Returns the positions of partitions of which something was taken. No request."""
        asked = [self._kafka.TopicPartition(*place) for place in places]
        return {
            (place := (tp.topic, tp.partition)): At(
                min(tp.offset, self._events.get(place, tp.offset)), _epoch(tp.leader_epoch)
            )
            for tp in self._consumer.position(asked)
            if tp.offset >= 0
        }

    def _note(self, messages: dict[str, list[Any]], events: list[Any]) -> None:
        """Notes which partitions' last one is an event."""
        for topic, some in messages.items():
            for partition in set(map(type(some[0]).partition, some)):
                self._events.pop((topic, partition), None)
        for event in events:
            topic, partition, offset = event.topic(), event.partition(), event.offset()
            of_topic = reversed(messages.get(topic, ()))
            last = next((m.offset() for m in of_topic if m.partition() == partition), -1)
            if offset is not None and offset > last:
                self._events[topic, partition] = offset

    def _by_topic(self, messages: list[Any]) -> dict[str, list[Any]]:
        """Returns messages by topic; most often all belong to one."""
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
                at = self.positions([place]).get(place)
                self._failures[place, str(at)] += 1
                if self._failures[place, str(at)] >= _TRIES:
                    damaged[place] = error.str()
            else:
                troubles.append(error.str())
        return Taken(messages, ended, frozenset(lost), frozenset(gone), damaged, tuple(troubles))


def _epoch(epoch: int | None) -> int | None:
    return None if epoch is None or epoch < 0 else epoch


@dataclass(frozen=True, slots=True)
class Columns:
    """Records of one topic, in the order of their offsets in each partition.

    Attributes:
        rows: in the form that `Log.append` takes.
        partitions: of each row.
        offsets: of each row.
        size_bytes: the approximate size of keys, values and headers.
        clamped: how many times were changed.
        keyless: how many records were left out because they have no key.
        keyless_at: their partitions, and their offsets.
    """

    rows: pa.Table
    partitions: np.ndarray[Any, Any]
    offsets: np.ndarray[Any, Any]
    size_bytes: int
    clamped: int
    keyless: int
    keyless_at: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] = (_NONE, _NONE)

    @property
    def counts(self) -> Counter[str]:
        """The counts that `MirroredTopic` has of them, by its names."""
        return Counter(
            records=self.rows.num_rows,
            size_bytes=self.size_bytes,
            clamped=self.clamped,
            keyless=self.keyless,
        )


class Gathered:
    """Messages of one topic until they are committed, as columns; for one thread.

    Their bytes are copied to memory that `again` reuses: clearing fresh pages takes the system
    several times as long as copying to them. ``needs_key`` leaves out messages without a key.
    """

    def __init__(self, *, needs_key: bool) -> None:
        self._keys, self._values = _Octets(), _Octets()
        self._clear(needs_key=needs_key)

    def _clear(self, *, needs_key: bool) -> None:
        self._needs_key = needs_key
        self._numbers: list[tuple[_Ints, _Ints, _Ints]] = []
        self._headers: list[pa.Array | int] = []
        self._keyless: list[tuple[int, int]] = []
        self._headers_bytes = self._clamped = 0

    def again(self, *, needs_key: bool) -> bool:
        """Forgets all; returns whether it can be reused: not while its columns are in use."""
        self._clear(needs_key=needs_key)
        return self._keys.again() and self._values.again()

    @property
    def size_bytes(self) -> int:
        """The approximate size of keys, values and headers."""
        size_bytes = self._keys.size_bytes + self._values.size_bytes + self._headers_bytes
        return size_bytes + _RECORD_BYTES * self._keys.rows

    def add(self, messages: Sequence[Any]) -> None:
        """Adds messages of Kafka's client."""
        kind: Any = type(messages[0])  # Its unbound methods: each call is a step in C.
        keys = list(map(kind.key, messages))
        if self._needs_key and None in keys:
            left = (m for m, key in zip(messages, keys, strict=True) if key is None)
            self._keyless += ((m.partition(), m.offset()) for m in left)
            messages = [m for m, key in zip(messages, keys, strict=True) if key is not None]
            keys = [key for key in keys if key is not None]
        count = len(messages)
        self._keys.add(keys)
        self._values.add(list(map(kind.value, messages)))
        times_ms = np.fromiter(map(itemgetter(1), map(kind.timestamp, messages)), np.int64, count)
        held_ms = np.minimum(np.maximum(times_ms, 0), _MS_MAX)
        headers: list[Any] = list(map(kind.headers, messages))
        moved = np.flatnonzero(held_ms != times_ms)
        if moved.size or any(headers):
            named = [[(name.encode(), value) for name, value in some or ()] for some in headers]
            for i in moved.tolist():
                named[i].append((TIMESTAMP_HEADER, str(times_ms[i]).encode()))
            column = of_headers([some or None for some in named])
            self._headers.append(column)
            self._headers_bytes += column.nbytes
            self._clamped += int(moved.size)
        else:
            self._headers.append(count)
        partitions = np.fromiter(map(kind.partition, messages), np.int32, count)
        offsets = np.fromiter(map(kind.offset, messages), np.int64, count)
        self._numbers.append((partitions, offsets, held_ms))

    def columns(self) -> Columns:
        """Returns the messages as columns."""
        partitions, offsets, times_ms = map(np.concatenate, zip(*self._numbers, strict=True))
        columns = {
            "key": self._keys.column(),
            "value": self._values.column(),
            "timestamp": to_arrow(1000 * times_ms, _TIMESTAMP),
        }
        if kinds := [part.type for part in self._headers if isinstance(part, pa.Array)]:
            parts = (p if isinstance(p, pa.Array) else pa.nulls(p, kinds[0]) for p in self._headers)
            columns["headers"] = pa.concat_arrays(list(parts))
        rows, size_bytes = pa.table(columns), self.size_bytes
        where = np.array(self._keyless, np.int64).reshape(-1, 2)
        return Columns(
            *(rows, partitions, offsets, size_bytes, self._clamped, len(self._keyless)),
            keyless_at=(where[:, 0], where[:, 1]),
        )


class _Octets:
    """Keys or values, one after another."""

    def __init__(self) -> None:
        self._data = BytesIO()
        self._lengths: list[_Ints] = []
        self._absent: list[_Ints] = []
        self.rows = self.size_bytes = 0

    def again(self) -> bool:
        """Forgets them, but keeps the memory; returns whether no column uses that any more."""
        self._lengths, self._absent = [], []
        self.rows = self.size_bytes = 0
        try:
            self._data.seek(0)
            self._data.write(b"")
        except BufferError:
            return False
        return True

    def add(self, values: list[Any]) -> None:
        try:
            lengths = np.fromiter(map(len, values), np.int64, len(values))
        except TypeError:  # None has no length.
            self._absent.append(self.rows + np.flatnonzero([value is None for value in values]))
            values = [value or b"" for value in values]
            lengths = np.fromiter(map(len, values), np.int64, len(values))
        self._data.writelines(values)
        self._lengths.append(lengths)
        self.rows += len(values)
        self.size_bytes = self._data.tell()

    def column(self) -> pa.Array:
        valid = None
        if self._absent:
            there = np.ones(self.rows, np.bool_)
            there[np.concatenate(self._absent)] = False
            valid = pa.py_buffer(np.packbits(there, bitorder="little"))
        data = pa.py_buffer(self._data.getbuffer())
        ends = np.cumsum(np.concatenate([[0], *self._lengths]))
        if ends[-1] > _BYTES_MAX:
            raise InvalidInputError(
                f"a batch of messages has {ends[-1]} bytes of keys or values; a column has room for"
                f" {_BYTES_MAX}"
            )
        buffers = [valid, pa.py_buffer(ends.astype(np.int32)), data]
        return pa.Array.from_buffers(pa.binary(), self.rows, buffers)


def columns_of(messages: Sequence[Any], *, needs_key: bool) -> Columns:
    """Returns messages as columns; ``needs_key`` leaves out those without a key."""
    gathered = Gathered(needs_key=needs_key)
    gathered.add(messages)
    return gathered.columns()
