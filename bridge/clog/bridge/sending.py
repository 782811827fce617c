"""The way back: sends a log's records to a Kafka topic, each exactly once.

The sender's position is kept in one place, with the records: each Kafka transaction contains
records and the log's offsets after them, as the offsets of a consumer group in the partitions of
the topic itself. A position kept in the log would be ahead of or behind what Kafka has, and a kill
between the two commits would duplicate or lose records. With the position are kept the log's id and
the version that was read, by which missed deletes are noticed.

J1. The producer claims its transactional id: what an earlier producer left open is ended, and its
    transactions that are still under way are fenced.
J2. The group's committed offsets are read. Kafka forgets each a week after its last commit
    (``offsets.retention.minutes``): so the log has a lower bound as well, a position in the topic
    under the sender's id. If the bound or another partition's offset exists and a partition's own
    does not, the partition's position is in the header `OFFSET_HEADER` of its last record in the
    topic. Without that header it is an error, unless the partition never had a record.
J3. Records are sent in transactions, each with one commit, before which the topic's id is checked.
    Each has the offsets of all partitions, so that none is forgotten before the others. A run with
    nothing to send makes a transaction without records, and so does each day without records.
J4. From time to time, and at the end, the bound is raised by a commit to the log.

Offsets differ in the topic: a transaction's marker takes one in each partition, and what the log's
cleaner removed leaves no gap. The header `OFFSET_HEADER` has a record's offset in the log, and
`LOG_HEADER` the log's id. Times in the topic are in milliseconds; if a mirror changed one, the
original is restored.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from clog.bridge.topic import (
    OPTIONS,
    TIMESTAMP_HEADER,
    WAIT_MS,
    Address,
    At,
    Cluster,
    Feed,
    Refusal,
    Topic,
    address_of,
)
from clog.storage import (
    Clock,
    ClogError,
    InvalidInputError,
    Log,
    NotFoundError,
    OffsetOutOfRangeError,
    SourceReplacedError,
    SourceUnavailableError,
    SystemClock,
    TransactionFencedError,
)
from clog.storage.spi import Inside, dataclass, duration, to_numpy

OFFSET_HEADER: Final = "clog.offset"
LOG_HEADER: Final = "clog.log"
RECORDS_MAX: Final = 50_000
"""Records of one transaction; fewer if they have `BYTES_MAX`."""
BYTES_MAX: Final = 32 << 20
POLL_MS: Final = 500
BOUND_MS: Final = 60_000
RENEW_MS: Final = 86_400_000
_TAIL: Final = 64
"""How many offsets at the end of a partition are searched for a record."""
_DIGITS: Final = 20
"""More digits than an offset has."""
_WAIT_S: Final = 30.0
_Header = tuple[str, bytes | None]
_PRODUCER: Final[Mapping[str, object]] = {"enable.idempotence": True, "linger.ms": 20}


class _Place(NamedTuple):
    """How far a partition was sent, and the version at which it was read."""

    offset: int
    version: int


@dataclass(frozen=True, slots=True)
class Sent:
    """How far a log is sent.

    Attributes:
        url: the log's URL.
        topic: the topic's name.
        target: the topic's identity, ``kafka:<cluster id>/<topic id>``.
        offsets: by partition, the offset up to which the topic has the log.
        ends: by partition, the log's last stable offset when it was last requested.
        records: the number of records sent in this run.
    """

    url: str
    topic: str
    target: str
    offsets: Mapping[int, int]
    ends: Mapping[int, int]
    records: int

    @property
    def lag(self) -> int:
        """How many offsets the topic is behind."""
        return sum(end - self.offsets[p] for p, end in self.ends.items())


def send(
    url: str,
    target: str,
    *,
    once: bool = False,
    skip_purged: bool = False,
    from_bound: bool = False,
    storage_options: Mapping[str, object] | None = None,
    kafka_options: Mapping[str, object] | None = None,
    wait_ms: int = WAIT_MS,
    on_progress: Callable[[Sent], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
    clock: Clock | None = None,
) -> Sent:
    """Sends a log's records to a Kafka topic, each once, even after a crash: to the partition with
    the same number, with the log's offset in a header. Readers of the topic need
    ``isolation.level=read_committed``, as with any transactional producer.

    Args:
        url: the log, of bytes.
        target: ``kafka://HOST:PORT/TOPIC``, a topic with at least as many partitions.
        once: stop at the current end; otherwise the log is followed.
        skip_purged: continue after records that the log removed before they were sent.
        from_bound: if Kafka has forgotten the position, continue from the lower bound that the log
            has: some records are then sent twice.
        storage_options: options of the log's filesystem.
        kafka_options: librdkafka's, such as ``security.protocol`` and ``sasl.password``.
        wait_ms: see `mirror`.
        on_progress: called with the progress, after each transaction.
        should_stop: called several times a second; true ends the run.
        clock: the source of times; None: the system's clock.

    Raises:
        InvalidInputError: a log with columns, a topic with too few partitions, or a wrong argument.
        NotFoundError: the log or topic does not exist, Kafka has forgotten the position, or records
            or tombstones were removed that the topic does not have.
        SourceReplacedError: the topic was deleted and recreated during the run.
        TransactionFencedError: another process sends the log to this topic.
        SourceUnavailableError: the brokers do not answer.

    >>> send("orders", "kafka://localhost:9092/orders-2", once=True).records  # doctest: +SKIP
    2
    """
    address = address_of(target)
    if address.is_pattern:
        raise InvalidInputError(f"{address} may be several topics; send to one")
    log = Log.open(url, storage_options, clock)
    if Inside(log).is_typed:
        raise InvalidInputError(
            f"{log.url} has columns, but Kafka's records are bytes; send a log of bytes"
        )
    cluster = Cluster(address.brokers, kafka_options or {}, wait_ms, should_stop, clock=clock)
    sender = _Sender(cluster, log, address, clock or SystemClock())
    try:
        sender.begin(from_bound=from_bound)
        sender.check_start(skip_purged=skip_purged)
        sender.run(on_progress, should_stop, once=once)
    finally:
        sender.close()
    return sender.progress()


class _Sender:
    """Sends one log to one topic; a worker."""

    def __init__(self, cluster: Cluster, log: Log, address: Address, clock: Clock) -> None:
        self._cluster = cluster
        self._log = log
        self._address = address
        self._clock = clock
        self._topic: Topic = cluster.topic(address.topic)
        if self._topic.partitions < log.partitions:
            raise InvalidInputError(
                f"{address} has {self._topic.partitions} partitions, and {log.url} has"
                f" {log.partitions}; give the topic as many (kafka-topics --alter --partitions"
                f" {log.partitions}), or create another topic"
            )
        self._id = f"clog-send-{log.id}-{address.topic}"
        self._producer = cluster.producer({**_PRODUCER, "transactional.id": self._id})
        self._group = cluster.consumer({**OPTIONS, "group.id": self._id})
        self._at: dict[int, _Place] = {}
        self._ends: dict[int, int] = {}
        self._records = 0
        self._under_way = pa.table({})
        self._bound: dict[int, int] = {}
        self._bound_ms = clock.monotonic_ms()
        self._renewed_ms: int | None = None
        self._skip_purged = False

    def close(self) -> None:
        """Closes the clients; an open transaction is dropped."""
        self._group.close()

    def progress(self) -> Sent:
        """Returns the progress."""
        offsets = {p: at.offset for p, at in self._at.items()}
        return Sent(
            self._log.url,
            self._topic.topic,
            self._topic.source,
            offsets,
            self._ends,
            self._records,
        )

    def begin(self, *, from_bound: bool) -> None:
        """Claims the id, and finds the positions to continue from (J1, J2)."""
        self._ask(lambda: self._producer.init_transactions(_WAIT_S), "who sends")
        known = self._committed()
        bound = self._log.positions(self._id).get(self._topic.source, {})
        for p in range(self._log.partitions):
            least = bound.get(p, 0)
            if p in known and known[p].offset >= least:
                self._at[p] = known[p]
                continue
            tail, is_empty = self._tail(p)
            is_forgotten = bool(p in bound or known) and tail is None and not is_empty
            tail = tail or 0
            if (least > tail or is_forgotten) and not from_bound:
                raise NotFoundError(
                    f"{self._address} has forgotten how far partition {p} of {self._log.url} was"
                    " sent (offsets.retention.minutes after the last time), and its last records"
                    f" do not show it; at least {least} offsets were sent. Continue there,"
                    " sending some records twice, with --from-bound (from_bound=True), or send to"
                    " a new topic"
                )
            # Which version was read is not known: any tombstone that went since may be a miss.
            self._at[p] = _Place(max(tail, least), 0)
        self._bound = dict(bound)

    def check_start(self, *, skip_purged: bool) -> None:
        """Raises if the log has removed what was still to be sent, or skips it if so wanted."""
        self._skip_purged = skip_purged
        starts = self._log.start_offsets()
        ends = self._ends_now(max(at.offset for at in self._at.values()))
        version = Inside(self._log).read_version
        now = {p: _Place(at.offset, version) for p, at in self._at.items()}
        for p, start in starts.items():
            at = self._at[p].offset
            if at > ends[p]:
                raise OffsetOutOfRangeError(
                    f"partition {p} of {self._log.url} was sent to {self._address} up to {at},"
                    f" but ends at {ends[p]}: it is older than what was sent, as after a restore"
                    " from a copy; send it to a new topic",
                    partition=p,
                    offset=at,
                    start=start,
                    end=ends[p],
                )
            if at and at < start and not skip_purged:
                raise OffsetOutOfRangeError(
                    f"{start - at} offsets of partition {p} of {self._log.url} were removed"
                    f" before they were sent to {self._address}, which has it up to {at};"
                    f" continue at {start} with --skip-purged (skip_purged=True)",
                    partition=p,
                    offset=at,
                    start=start,
                    end=self._log.end_offsets()[p],
                )
            now[p] = _Place(max(at, start), now[p].version)
        self._check_missed(now)
        self._at = now

    def _check_missed(self, now: Mapping[int, _Place]) -> None:
        """Raises if tombstones that were still to be sent are gone by these versions (S41)."""
        if not self._skip_purged:
            Inside(self._log).check_missed(
                *({p: at for p, at in self._at.items() if at.offset}, now),
                remedy=(
                    "send to a new topic, or continue, and keep the keys that were deleted, with"
                    " --skip-purged (skip_purged=True)"
                ),
            )

    def run(
        self,
        on_progress: Callable[[Sent], None],
        should_stop: Callable[[], bool],
        *,
        once: bool,
    ) -> None:
        """Sends up to the current end (``once``), or until it is stopped."""
        while not should_stop():
            self._ends = self._log.stable_offsets()
            for records, after in self._batches():
                self._transaction(records, after)
                on_progress(self.progress())
                if should_stop():
                    break
            else:
                if self._must_renew():
                    self._transaction(pa.table({}), {})
                if once:
                    break
                self._raise_bound(at_least_ms=BOUND_MS)
                self._clock.sleep_ms(POLL_MS)
        self._raise_bound(at_least_ms=0)

    def _must_renew(self) -> bool:
        """Returns whether the last transaction is so old that Kafka could forget the offsets."""
        return self._renewed_ms is None or self._renewed_ms + RENEW_MS <= self._clock.monotonic_ms()

    def _batches(self) -> Iterator[tuple[pa.Table, dict[int, _Place]]]:
        """Yields records of all partitions up to the current ends, and the positions after them."""
        held: list[pa.RecordBatch] = []
        after: dict[int, _Place] = {}
        for p, end in self._ends.items():
            start = self._at[p].offset
            if start >= end:
                continue
            batches = self._log.read(partition=p, start=start, end=end)
            # Each partition has its own: sending those before it may have taken days.
            version = Inside(self._log).read_version
            self._check_missed({p: _Place(start, version)})
            for batch in batches:
                for at in range(0, batch.num_rows, RECORDS_MAX):
                    part = batch.slice(at, RECORDS_MAX)
                    held.append(part)
                    after[p] = _Place(part.column("offset")[-1].as_py() + 1, version)
                    rows = sum(one.num_rows for one in held)
                    if rows >= RECORDS_MAX or sum(one.nbytes for one in held) >= BYTES_MAX:
                        yield pa.Table.from_batches(held), after
                        held, after = [], {}
            after[p] = _Place(end, version)  # The offsets after the last record have none.
        if after:
            yield pa.Table.from_batches(held) if held else pa.table({}), after

    def _transaction(self, records: pa.Table, after: Mapping[int, _Place]) -> None:
        """Sends records, and in the same transaction the new positions (J3)."""
        at = {**self._at, **after}
        marks = [
            self._cluster.place(self._topic.topic, p, one.offset, f"{self._log.id};{one.version}")
            for p, one in at.items()
        ]
        self._ask(self._producer.begin_transaction, "of the transaction")
        self._under_way = records
        try:
            self._produce(records)
            self._ask(
                lambda: self._producer.send_offsets_to_transaction(
                    marks, self._group.consumer_group_metadata(), _WAIT_S
                ),
                "how far it was sent",
            )
            if self._cluster.topic(self._topic.topic).source != self._topic.source:
                raise SourceReplacedError(
                    f"{self._address} was deleted and created again while {self._log.url} was"
                    " being sent; run it again, and the new topic gets the whole log"
                )
            self._ask(lambda: self._producer.commit_transaction(_WAIT_S), "of the commit")
        except BaseException:
            self._abort()
            raise
        self._at, self._renewed_ms = at, self._clock.monotonic_ms()
        self._records += records.num_rows
        if not self._bound:
            self._raise_bound(at_least_ms=0)

    def _produce(self, records: pa.Table) -> None:
        if not records.num_rows:
            return
        log_header, topic = (LOG_HEADER, self._log.id.encode()), self._topic.topic
        times_ms = to_numpy(records.column("timestamp").cast(pa.int64())) // 1000
        texts = records.column("offset").cast(pa.string()).cast(pa.binary())
        columns = (
            *(column.to_pylist() for column in (records.column("partition"), texts)),
            *(records.column(name).to_pylist() for name in ("key", "value", "headers")),
            np.maximum(times_ms, 1).tolist(),  # To the client, 0 means now.
        )
        produce = self._producer.produce
        for p, offset, key, value, headers, time_ms in zip(*columns, strict=True):
            own: list[_Header] = [(OFFSET_HEADER, offset), log_header]
            if headers is not None:
                others, time_ms = _former(headers, time_ms)  # noqa: PLW2901 - as it was
                own = others + own
            record = (topic, value, key, p)
            try:
                produce(*record, timestamp=time_ms, headers=own)
            except (BufferError, self._cluster.failures):
                self._produce_late(record, time_ms, own)

    def _produce_late(self, record: tuple[Any, ...], time_ms: int, headers: list[_Header]) -> None:
        """Sends a record that the client did not accept immediately."""
        while True:
            try:
                self._producer.produce(*record, timestamp=time_ms, headers=headers)
                return
            except BufferError:  # Its queue is full: earlier records are sent first.
                self._producer.poll(0.05)
            except self._cluster.failures as e:
                offset = (dict(headers)[OFFSET_HEADER] or b"").decode()
                raise InvalidInputError(
                    f"Kafka's client rejects offset {offset} of partition {record[3]} of"
                    f" {self._log.url}: {e.args[0].str()}; for a large record give it, and the"
                    " topic, a larger message.max.bytes"
                ) from e

    def _abort(self) -> None:
        try:
            self._producer.abort_transaction(_WAIT_S)
        except self._cluster.failures:
            pass  # The next producer with this id ends it, or its timeout.

    def _raise_bound(self, *, at_least_ms: int) -> None:
        """Notes in the log how far it was sent, if that has changed (J4)."""
        now = {p: at.offset for p, at in self._at.items()}
        if now == self._bound or self._bound_ms + at_least_ms > self._clock.monotonic_ms():
            return
        with self._log.transaction(self._id) as t:
            t.positions(self._topic.source, now)
        self._bound, self._bound_ms = now, self._clock.monotonic_ms()

    def _committed(self) -> dict[int, _Place]:
        """Returns the group's positions in this log, by partition."""
        places = [
            self._cluster.place(self._topic.topic, p, None) for p in range(self._log.partitions)
        ]
        stored = self._ask(lambda: self._group.committed(places, _WAIT_S), "how far it was sent")
        found = {}
        for tp in stored:
            log_id, _, version = (tp.metadata or "").partition(";")
            if tp.offset >= 0 and log_id == self._log.id:
                found[tp.partition] = _Place(tp.offset, int(version))
        return found

    def _tail(self, partition: int) -> tuple[int | None, bool]:
        """Returns the log's offset after the last record of a partition of the topic, if that is
        one of the log's; and whether the topic never had a record there.
        """
        extent = self._cluster.extent(self._topic.topic, [partition])
        end, place = extent.stable[partition], (self._topic.topic, partition)
        first = max(extent.start[partition], end - _TAIL)
        if first >= end:
            return None, extent.high[partition] == 0
        feed, last = Feed(self._cluster, group=f"{self._id}-tail"), None
        try:
            feed.add({place: At(first)})
            deadline_ms = self._clock.monotonic_ms() + 1000 * _WAIT_S
            while (at := feed.positions([place]).get(place, At(first)).offset) < end:
                for message in feed.take().messages.get(place[0], ()):
                    last = message if at <= end else last
                if self._clock.monotonic_ms() > deadline_ms:
                    raise self._cluster.unavailable(f"the last records of topic {place[0]}")
        finally:
            feed.close()
        return None if last is None else self._offset_of(partition, last), False

    def _offset_of(self, partition: int, message: Any) -> int | None:
        """Returns the log's offset after a record of the topic; None if it is not of this log."""
        headers = dict(message.headers() or ())
        digits = headers.get(OFFSET_HEADER) or b""
        is_offset = digits.isdigit() and len(digits) < _DIGITS
        if headers.get(LOG_HEADER) != self._log.id.encode() or not is_offset:
            return None
        offset = int(digits)
        if offset >= self._ends_now(offset)[partition]:
            return None
        if offset >= self._log.start_offsets()[partition]:
            for batch in self._log.read(partition=partition, start=offset, end=offset + 1):
                for row in batch.select(["key", "value"]).to_pylist():
                    if (row["key"], row["value"]) != (message.key(), message.value()):
                        return None
        return offset + 1

    def _ends_now(self, at_least: int) -> Mapping[int, int]:
        """Returns the log's end offsets; refreshes them unless the known ones are high enough."""
        ends = self._log.end_offsets()
        if min(ends.values()) <= at_least:
            Inside(self._log).refresh()
            ends = self._log.end_offsets()
        return ends

    def _ask(self, question: Callable[[], Any], what: str) -> Any:
        """Returns an answer of the producer or the group; raises its failures as our errors."""
        try:
            return question()
        except self._cluster.failures as e:
            raise self._failed(e.args[0], what) from e

    def _failed(self, error: Any, what: str) -> ClogError:
        if self._cluster.is_fenced(error):
            return TransactionFencedError(
                f"another process sends {self._log.url} to {self._address} and took over; leave"
                " the work to it"
            )
        refusal = self._cluster.refusal(error)
        if refusal is Refusal.RIGHTS:
            return InvalidInputError(
                f"{self._address} refuses a request ({what}): {error.str()}; nothing of the"
                " transaction was committed; check user, password and rights (to write to the"
                f" topic, and with the transactional id {self._id}, and to read with the group of"
                " that name)"
            )
        if refusal is not None:
            configs = self._cluster.configs(self._topic.topic)
            limits = {name: one.value for name, one in configs.items()}
            now_ms = self._clock.now_ms()
            which, why, remedy = refused(refusal, self._under_way, limits, now_ms)
            place = "a record"
            if which is not None:
                row = self._under_way.select(["partition", "offset"]).slice(which, 1).to_pylist()[0]
                place = f"offset {row['offset']} of partition {row['partition']}"
            return InvalidInputError(
                f"{self._address} refuses {place} of {self._log.url}{why} ({error.str()}); nothing"
                f" of the transaction was committed; {remedy}, then run it again"
            )
        return SourceUnavailableError(
            f"{self._address} did not accept a request ({what}): {error.str()}; nothing of the"
            " transaction was committed; run it again"
        )


def refused(
    refusal: Refusal, records: pa.Table, limits: Mapping[str, str], now_ms: int
) -> tuple[int | None, str, str]:
    """Returns which of these records a topic with these configs refuses, why, and what to do. The
    broker only names the batch in which it is; None: none of them is to blame by this machine's
    clock and by what the client may see of the configs.
    """
    if refusal is Refusal.TIME:
        return _refused_for_time(records, limits, now_ms)
    if refusal is Refusal.SIZE:
        sizes = list(map(_size_bytes, records.select(["key", "value", "headers"]).to_pylist()))
        limit = _limit("max.message.bytes", limits)
        return (
            sizes.index(max(sizes)),
            f", which has {max(sizes)} bytes of key, value and headers, as too large for {limit}",
            "give the topic a larger max.message.bytes",
        )
    keyless = np.flatnonzero(to_numpy(records.column("key").is_null()))
    if keyless.size and "compact" in limits.get("cleanup.policy", "compact"):
        return (
            int(keyless[0]),
            f": it has no key, which {_limit('cleanup.policy', limits)} requires",
            "give the topic another cleanup.policy, or send to another topic",
        )
    return None, ", which does not pass its checks", "change what the topic checks"


def _refused_for_time(
    records: pa.Table, limits: Mapping[str, str], now_ms: int
) -> tuple[int | None, str, str]:
    times_ms = to_numpy(records.column("timestamp").cast(pa.int64())) // 1000
    ahead_ms = times_ms - now_ms
    sides = ("before", -ahead_ms, "behind"), ("after", ahead_ms, "ahead of")
    for side, away_ms, word in sides:
        name = f"message.timestamp.{side}.max.ms"
        which = int(np.argmax(away_ms))
        if name in limits and away_ms[which] > int(limits[name]):
            away = duration(int(away_ms[which]))
            return (
                which,
                f", whose timestamp is {away} {word} the clock, more than {_limit(name, limits)}",
                f"raise {name} of the topic, at least until the log is sent",
            )
    names = " and ".join(f"message.timestamp.{side}.max.ms" for side, _, _ in sides)
    return None, f" because of its timestamp (see {names})", "raise these configs of the topic"


def _size_bytes(row: Mapping[str, Any]) -> int:
    headers = ((h["key"].encode(), h["value"]) for h in row["headers"] or ())
    return sum(len(part or b"") for part in (row["key"], row["value"], *chain(*headers)))


def _limit(name: str, limits: Mapping[str, str]) -> str:
    return f"{name}={limits[name]}" if name in limits else name


def _former(headers: Sequence[Mapping[str, Any]], time_ms: int) -> tuple[list[_Header], int]:
    """Returns headers and time as they were before a mirror changed them."""
    names = (OFFSET_HEADER, LOG_HEADER, TIMESTAMP_HEADER.decode())
    moved = [h["value"] for h in headers if h["key"] == names[2]]
    others = [(h["key"], h["value"]) for h in headers if h["key"] not in names]
    return others, (int(moved[-1]) or 1) if moved else time_ms
