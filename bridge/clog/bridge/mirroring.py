"""Mirrors Kafka topics into logs with the same partitions and offsets, each record exactly once.

One consumer reads all topics. Its messages become columns as they arrive, and are handed over in
batches, of `BATCH_BYTES` or of what arrived in an interval; one thread commits them in order while
the next ones are read (`target` has the steps). At most two batches wait, so that a slow store
slows the reading down.

``once`` stops at the current end: the last stable offsets at the start of the run. It does not wait
for records that an open transaction holds back, but reports them. Otherwise topics are followed
until the run is stopped.

If several topics are mirrored, each has its own log and its own transactions: the logs never all
show the same moment. Their cut is the list of versions, `Mirrored.logs`. A topic that fails does
not stop the others; its error is raised at the end.

A new log gets the configs of its topic (`taken_over`), except the type of timestamps: with
``LogAppendTime`` each record would have the time of its commit to the log instead of its time in
the topic.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from clog.bridge.comparing import gone
from clog.bridge.decoding import LETTERS_CONFIG, Decoder, check_letters
from clog.bridge.target import ID, Batch, MirrorSettings, Seen, Target, first_record, is_topic
from clog.bridge.topic import (
    Address,
    At,
    Cluster,
    Extent,
    Feed,
    Gathered,
    Place,
    Setting,
    Taken,
    Topic,
    address_of,
)
from clog.storage import (
    Clock,
    ClogError,
    InvalidInputError,
    Log,
    SourceDamagedError,
    SourcePurgedError,
    SourceUnavailableError,
)
from clog.storage.spi import Inside, LogConfig, dataclass

BATCH_BYTES: Final = 56 << 20
"""Somewhat below ``object.bytes``: anything more would go to a second, small object."""
QUIET_MS: Final = 10_000
"""How long nothing may be written to a topic before its mirror ends."""
LOOK_MS: Final = 5000
"""How often a source's end offsets and its identity are checked."""
_ONCE_INTERVAL_MS: Final = 10_000
"""A run that ends by itself commits larger batches: no one waits for its first records."""
_RATE_OVER_MS: Final = 30_000
_WAITING_MAX: Final = 2

STAY: Final = (
    "cleanup.policy",
    "delete.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "retention.bytes",
    "retention.ms",
)
"""Configs that are also taken over from the broker's defaults."""
DEFAULTS: Final = MappingProxyType({"partitioner": "murmur2"})
"""For a new log: after a cut-over, Kafka's keys stay in their partitions."""
_ANOTHER: Final = MappingProxyType(
    {
        "message.timestamp.type": "records keep their timestamps in the topic",
        "compression.type": "the log keeps its own default",
        "remote.storage.enable": "a log is entirely on its filesystem",
    }
)
"""Why the value of a config that also exists here is not taken over."""
_CODECS: Final = MappingProxyType(
    {"uncompressed": "none", "lz4": "lz4", "snappy": "snappy", "zstd": "zstd"}
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MirroredTopic:
    """How far a topic is mirrored.

    Attributes:
        topic: its name.
        source: the name under which its positions are committed, ``kafka:<cluster id>/<topic id>``.
        url: the URL of its log.
        version: the log's version after the last commit.
        offsets: by partition, the offset up to which the log has the topic.
        ends: by partition, the topic's last stable offset when it was last requested.
        starts: by partition, the topic's log start offset.
        undecided: by partition, how many offsets after the last stable one are held back by open
            transactions; only partitions that have any.
        records: the number of records taken in this run.
        size_bytes: their approximate size.
        keyless: how many were left out, since the log is compacted and they have no key.
        clamped: how many times were changed because a log cannot hold them.
        dead_letters: how many records could not be decoded and went to the dead letters.
        reconciled: how many keys were deleted because the topic no longer had them.
        configs_left: configs of the topic that a log made in this run could not take over, and why.
    """

    topic: str
    source: str
    url: str
    version: int
    offsets: Mapping[int, int]
    ends: Mapping[int, int]
    starts: Mapping[int, int]
    undecided: Mapping[int, int]
    records: int = 0
    size_bytes: int = 0
    keyless: int = 0
    clamped: int = 0
    dead_letters: int = 0
    reconciled: int = 0
    configs_left: Mapping[str, str] = field(default_factory=dict)

    @property
    def lag(self) -> int:
        """How many offsets the log is behind."""
        return sum(max(0, end - self.offsets[p]) for p, end in self.ends.items())


@dataclass(frozen=True, slots=True)
class Mirrored:
    """The progress of a mirror.

    Attributes:
        topics: by name.
        records_per_s: the recent rate.
        eta_ms: how long the rest takes at that rate; None if unknown.
    """

    topics: Mapping[str, MirroredTopic]
    records_per_s: float = 0.0
    eta_ms: int | None = None

    @property
    def logs(self) -> dict[str, int]:
        """The version of each log, by URL: for several topics, this is their only cut."""
        return {topic.url: topic.version for topic in self.topics.values()}

    @property
    def records(self) -> int:
        """The number of records taken in this run."""
        return sum(topic.records for topic in self.topics.values())

    @property
    def lag(self) -> int:
        """How many offsets the logs are behind."""
        return sum(topic.lag for topic in self.topics.values())


def mirror(source: str, url: str, settings: MirrorSettings | None = None) -> Mirrored:
    """Mirrors a Kafka topic into a log, each record once and at its offset, even after a crash.

    Args:
        source: ``kafka://HOST:PORT/TOPIC``, or a pattern such as ``kafka://HOST:PORT/orders-*``.
        url: the log, created if it does not exist; for a pattern, the folder of the logs.
        settings: how, and until when; by default the topics are followed.

    Raises:
        SourceError: the topic is not what it was; the subclass says what happened.
        SourceUnavailableError: the brokers do not answer.
        TransactionFencedError: another mirror of the log took over.
        InvalidInputError: an argument is wrong, or the log has its own records.
        NotFoundError: the topic does not exist.

    >>> once = MirrorSettings(once=True)
    >>> mirror("kafka://localhost:9092/orders", "orders", once).lag  # doctest: +SKIP
    0
    """
    address, settings = address_of(source), settings or MirrorSettings()
    own = users_own(settings.config)
    if settings.force:
        return _forced_end(address, url, settings)
    cluster = Cluster(
        *(address.brokers, settings.kafka_options, settings.wait_ms, settings.should_stop),
        clock=settings.clock,
    )
    run = _Run(cluster, address, url, replace(settings, config=own))
    run.to_the_end()
    if settings.end and not settings.should_stop():
        _end(cluster, run.targets, settings.clock)
    return run.progress()


def _end(cluster: Cluster, targets: Sequence[Target], clock: Clock) -> None:
    """Lets logs assign offsets, once nothing was written to their topics for a while."""
    clock.sleep_ms(QUIET_MS)
    for target in targets:
        target.check_quiet(cluster)
    for target in targets:
        target.log.give_offsets()


def _forced_end(address: Address, url: str, settings: MirrorSettings) -> Mirrored:
    """Ends the mirror of a topic that may be gone."""
    if not settings.end:
        raise InvalidInputError("force is only for ending a mirror: give end=True")
    if address.is_pattern:
        raise InvalidInputError("force ends only one mirror at a time: name its topic")
    log = settings.opened(url)
    with log.transaction(ID) as t:  # Fences a mirror that is running.
        t.abort()
    log.give_offsets()
    offsets = log.end_offsets()
    source = next(filter(is_topic, log.positions(ID)), "")
    progress = MirroredTopic(
        *(address.topic, source, log.url, log.version, offsets, {}, {}, {}),
    )
    return Mirrored({address.topic: progress})


def _targets(
    cluster: Cluster,
    address: Address,
    url: str,
    settings: MirrorSettings,
    known: Collection[str] = (),
) -> list[Target]:
    """Returns the topics that an address matches, except known ones, with their logs."""
    if not address.is_pattern:
        return [_target(cluster, address, url, settings)]
    letters = settings.dead_letters
    names = [name for name in cluster.matching(address) if name not in known]
    return [
        _target(
            *(cluster, address.of(name), _within(url, name)),
            replace(settings, dead_letters=letters and _within(letters, name)),
        )
        for name in names
    ]


def _within(url: str, name: str) -> str:
    return f"{url.rstrip('/')}/{name}"


def _target(cluster: Cluster, address: Address, url: str, settings: MirrorSettings) -> Target:
    """Returns a topic with its log, which is created if it does not exist (I1)."""
    topic = cluster.topic(address.topic)
    decoding = settings.decoding
    decoder = None if decoding is None else Decoder(decoding, topic.topic)
    left: dict[str, str] = {}

    def creation() -> dict[str, Any]:
        wanted = settings.partitions or topic.partitions
        if wanted < topic.partitions:
            raise InvalidInputError(
                f"{address} has {topic.partitions} partitions; {wanted} partitions cannot mirror"
                " them"
            )
        config, others = taken_over(cluster.configs(topic.topic), settings.config)
        left.update(others)
        first = partial(first_record, cluster, topic, settings.clock)
        schema = None if decoder is None else decoder.schema(first)
        features = ["given-offsets"]
        return {"partitions": wanted, "config": config, "schema": schema, "features": features}

    log = settings.made(url, creation)
    letters = _letters(topic, settings)
    return Target(log, topic, address, settings, left=left, decoder=decoder, letters=letters)


def _letters(topic: Topic, settings: MirrorSettings) -> Log | None:
    """Returns the log for undecodable records, which is created if it does not exist."""
    if settings.dead_letters is None:
        return None
    if settings.decoding is None:
        raise InvalidInputError("dead letters are records that cannot be decoded: give decode=…")
    log = settings.made(
        settings.dead_letters,
        lambda: {"partitions": topic.partitions, "config": LETTERS_CONFIG},
    )
    check_letters(log)
    return log


class _Held:
    """What was read of a topic but not handed over yet, and the topic's counts.

    ``seen`` is the last moment of which all was read, and ``awaited`` the next one, with the ends
    that the topic had; ``begun`` has, by partition, when the reading of one began of which the log
    had nothing.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.topic = target.topic.topic
        self.gathered: Gathered | None = None
        self.since_ms = 0
        self.handed: dict[int, At] = {}
        self.positions: dict[int, At] = {}
        self.extent = Extent({}, {}, {})
        self.seen: Seen | None = None
        self.life_ms: int | None = None
        self.begun: dict[int, Seen] = {}
        self.awaited: tuple[Seen, Mapping[int, int]] | None = None
        self.ends: dict[int, int] = {}
        self.counts = Counter[str]()
        self.error: ClogError | None = None

    @property
    def places(self) -> list[Place]:
        return [(self.topic, p) for p in self.positions]

    @property
    def size_bytes(self) -> int:
        return self.gathered.size_bytes if self.gathered is not None else 0

    @property
    def is_ahead(self) -> bool:
        """Whether something was read that is not handed over yet."""
        return self.positions != self.handed

    def move(self, positions: Mapping[int, At], now_ms: int) -> None:
        """Notes the current positions of partitions."""
        was_ahead = self.is_ahead
        self.positions |= positions
        if not was_ahead and self.is_ahead:
            self.since_ms = now_ms
        self._arrive()

    def look(self, now: Seen, ends: Mapping[int, int]) -> None:
        """Notes the ends that the topic has had since ``now``, and how long tombstones stay."""
        self.life_ms = now.life_ms
        self.seen = self.seen and self.seen.shortened(now.life_ms)
        if self.awaited is None:
            self.awaited = now, ends
        else:
            self.awaited = self.awaited[0].shortened(now.life_ms), self.awaited[1]
        self._arrive()

    def _arrive(self) -> None:
        if self.awaited is not None and self._is_at(self.awaited[1]):
            self.seen, self.awaited = self.awaited[0], None

    def _is_at(self, ends: Mapping[int, int]) -> bool:
        return all(self.positions[p].offset >= end for p, end in ends.items())

    def check_missed(
        self, after: Mapping[int, At], messages: Sequence[Any], now_ms: int, monotonic_ms: int
    ) -> None:
        """Raises if deletes may have been missed (S41) in messages that were taken just now; the
        positions are ``after`` them.
        """
        seen, life_ms = self.seen, self.life_ms
        is_sure = life_ms is None
        if seen is not None:
            is_sure = not seen.is_in_doubt(now_ms, monotonic_ms)
        for p, at in () if is_sure else after.items():
            begun = self.begun.get(p)
            if begun and not begun.shortened(life_ms).is_in_doubt(now_ms, monotonic_ms):
                continue
            first = max(self.positions[p].offset, self.target.compared.get(p, 0))
            lacking = at.offset - first
            lacking -= sum(m.partition() == p and m.offset() >= first for m in messages)
            if lacking > 0:
                raise self.target.missed(p, lacking, seen, life_ms, now_ms)

    def batch(self) -> Batch:
        """Returns the next batch to commit."""
        records = self.gathered.columns() if self.gathered is not None else None
        # What was compared is only done when its tombstones are committed, too.
        seen = self.seen if self._is_at(self.target.compared) else None
        made = Batch(records, self.handed, dict(self.positions), seen)
        self.gathered, self.handed = None, dict(self.positions)
        return made

    @property
    def must_renew(self) -> bool:
        """Whether the moment of which the log has all must be committed, though nothing is new."""
        return (
            self.seen is not None
            and self.seen.must_replace(self.target.seen)
            and self._is_at(self.target.compared)
        )

    def progress(self) -> MirroredTopic:
        """Returns how far the topic is committed."""
        target, extent = self.target, self.extent
        undecided = {p: high - extent.stable[p] for p, high in extent.high.items()}
        return MirroredTopic(
            topic=self.topic,
            source=target.topic.source,
            url=target.log.url,
            version=Inside(target.log).version,
            offsets={p: at.offset for p, at in target.positions.items()},
            ends=self.ends or extent.stable,
            starts=extent.start,
            undecided={p: count for p, count in undecided.items() if count > 0},
            configs_left=dict(target.left),
            **self.counts,
        )


class _Run:
    """One run over some topics; a worker, for the thread that starts it."""

    def __init__(
        self,
        cluster: Cluster,
        address: Address,
        url: str,
        settings: MirrorSettings,
    ) -> None:
        find = partial(_targets, cluster, address, url, settings)
        self.targets = find()
        self._cluster = cluster
        self._feed = Feed(cluster)
        self._settings = settings
        self._clock = settings.clock
        self._once = settings.once or settings.end
        self._discover = find if address.is_pattern and not self._once else None
        own_ms = settings.interval_ms
        self._interval_ms = max(own_ms, _ONCE_INTERVAL_MS) if self._once else own_ms
        self._held = {target.topic.topic: _Held(target) for target in self.targets}
        self._reached: set[Place] = set()
        self._should_stop = settings.should_stop
        self._waiting: deque[tuple[_Held, Future[Counter[str]]]] = deque()
        self._used: deque[Gathered] = deque(maxlen=_WAITING_MAX + 1)
        self._paces: deque[tuple[int, int, int]] = deque()
        self._heard_ms = self._looked_ms = self._clock.monotonic_ms()

    @property
    def _working(self) -> list[_Held]:
        return [held for held in self._held.values() if held.error is None]

    def to_the_end(self) -> None:
        """Mirrors up to the current end (``once``), or until it is stopped."""
        # One thread, so that batches are committed in order.
        with ThreadPoolExecutor(1, "clog-mirror") as self._committer:
            try:
                for held in self._working:
                    with self._stopping(held):
                        self._begin(held)
                self._follow()
            finally:
                self._feed.close()
        self._settings.on_progress(self.progress())
        self._raise_stopped(at_the_end=True)

    def _begin(self, held: _Held) -> None:
        now, target = self._now(held), held.target
        target.begin(self._cluster, now)
        held.seen = target.seen
        held.handed = dict(target.positions)
        new = target.new_partitions(self._cluster, held.handed)
        held.positions = {**held.handed, **new}
        held.begun = {p: now for p in held.positions if p in new or target.is_untouched(p)}
        held.extent = self._cluster.extent(held.topic, held.positions)
        held.look(now, held.extent.stable)
        if self._settings.reconcile:
            self._reconcile(held, now)
        if self._once:
            # For a moment, a new leader may report a lower offset than the last one did.
            stable = held.extent.stable
            held.ends = {p: max(stable[p], at.offset) for p, at in held.positions.items()}
        self._feed.add({(held.topic, p): at for p, at in held.positions.items()})

    def _now(self, held: _Held) -> Seen:
        """Returns the present moment, before anything else is asked."""
        times = self._clock.now_ms(), self._clock.monotonic_ms()
        return Seen(times[0], held.target.life_ms(self._cluster), times[1])

    def _reconcile(self, held: _Held, now: Seen) -> None:
        """Compares the keys up to the ends of ``now`` (`comparing`), from when on all is known."""
        stable = held.extent.stable
        ends = {p: max(stable[p], at.offset) for p, at in held.target.positions.items()}
        found = gone(self._cluster, held.target, ends, now.time_ms, self._should_stop)
        if not self._should_stop():  # Else not all was read.
            held.target.gone, held.target.compared, held.seen = found, ends, now

    def _follow(self) -> None:
        self._raise_stopped()
        while not self._should_stop():
            self._take(self._feed.take())
            for held in self._due():
                self._hand_over(held)
            moved = self._settle(_WAITING_MAX)
            if self._looked_ms + LOOK_MS <= self._clock.monotonic_ms():
                self._look()
                moved = True
            self._raise_stopped()
            if self._once and all(self._reached.issuperset(h.places) for h in self._working):
                break
            if moved:
                self._settings.on_progress(self.progress())
        for held in self._working:
            if held.is_ahead or self._must_commit(held):
                self._hand_over(held)
        self._settle(0)
        for held in self._working:
            with self._stopping(held):
                held.target.check_reconciled()

    def _take(self, taken: Taken) -> None:
        """Keeps the messages, and handles what went wrong."""
        now_ms = self._clock.monotonic_ms()
        self._listen(taken, now_ms)
        for held in self._working:
            with self._stopping(held):
                after = {p: at for (_, p), at in self._feed.positions(held.places).items()}
                messages: Sequence[Any] = taken.messages.get(held.topic, ())
                if self._once:
                    after, messages = self._of_now(held, after, messages, taken.ended)
                if not self._settings.skip_purged:
                    clocks = self._clock.now_ms(), self._clock.monotonic_ms()
                    held.check_missed(after, messages, *clocks)
                if messages:
                    held.gathered = held.gathered or self._gathering(held.target)
                    held.gathered.add(messages)
                held.move(after, now_ms)
                self._see_to(held, taken)

    def _gathering(self, target: Target) -> Gathered:
        """Returns the `Gathered` of a committed batch, for reuse, or a new one."""
        needs_key = target.needs_key
        if self._used and self._used[0].again(needs_key=needs_key):
            return self._used.popleft()
        return Gathered(needs_key=needs_key)

    def _of_now(
        self,
        held: _Held,
        after: Mapping[int, At],
        messages: Sequence[Any],
        ended: Mapping[Place, int],
    ) -> tuple[dict[int, At], Sequence[Any]]:
        """Returns positions and messages up to the end; stops partitions that reached it."""
        ends = held.ends
        reached = {p for p, at in after.items() if at.offset >= ends[p]}
        if any(after[p].offset > ends[p] for p in reached):
            messages = [m for m in messages if m.offset() < ends[m.partition()]]
        reached |= {p for p in ends if ended.get((held.topic, p), -1) >= ends[p]}
        places = {(held.topic, p) for p in reached} - self._reached
        self._feed.remove(places)
        self._reached |= places
        return {p: At(min(at.offset, ends[p]), at.epoch) for p, at in after.items()}, messages

    def _listen(self, taken: Taken, now_ms: int) -> None:
        """Raises if the brokers were silent for too long and a record is due; else warns."""
        if taken.messages or taken.ended or not (self._once or taken.troubles):
            self._heard_ms = now_ms
        elif self._heard_ms + self._cluster.wait_ms < now_ms:
            if self._once:
                raise self._cluster.unavailable(f"anything in {self._cluster.wait_ms / 1000:g} s")
            _log.warning("%s: %s", self._cluster.brokers, taken.troubles[-1])
            self._heard_ms = now_ms

    def _see_to(self, held: _Held, taken: Taken) -> None:
        """Raises if something is wrong with a topic, or skips what was purged."""
        if any(topic == held.topic for topic, _ in taken.gone):
            held.target.check(self._cluster)
        for (topic, p), why in taken.damaged.items():
            if topic == held.topic:
                raise held.target.damaged(p, held.positions[p], why)
        mine = sorted(p for topic, p in taken.lost if topic == held.topic)
        if not mine:
            return
        error = held.target.lost(self._cluster, mine, held.positions)
        fresh = all(held.target.is_untouched(p) for p in mine)
        if not (isinstance(error, SourcePurgedError) and (fresh or self._settings.skip_purged)):
            raise error
        starts = self._cluster.starts(held.topic, mine)
        self._feed.remove([(held.topic, p) for p in mine])
        self._feed.add({(held.topic, p): At(start) for p, start in starts.items()})
        held.move({p: At(start) for p, start in starts.items()}, self._clock.monotonic_ms())

    def _due(self) -> list[_Held]:
        """Returns the topics whose batch is to be committed now."""
        now_ms = self._clock.monotonic_ms()
        sizes = {held.topic: held.size_bytes for held in self._working}
        # Many topics should not take more memory than one.
        limit = BATCH_BYTES if sum(sizes.values()) < 2 * BATCH_BYTES else max(sizes.values())
        return [
            held
            for held in self._working
            if held.is_ahead
            and (sizes[held.topic] >= limit or held.since_ms + self._interval_ms <= now_ms)
        ]

    def _hand_over(self, held: _Held) -> None:
        self._settle(_WAITING_MAX - 1)
        if held.error is None:
            if held.gathered is not None:
                self._used.append(held.gathered)
            batch = held.batch()
            made = self._committer.submit(held.target.commit, self._cluster, batch)
            self._waiting.append((held, made))

    def _settle(self, left: int) -> bool:
        """Waits until at most ``left`` batches are uncommitted; returns whether any was settled."""
        any_was = False
        while self._waiting and (len(self._waiting) > left or self._waiting[0][1].done()):
            held, made = self._waiting.popleft()
            if held.error is not None:  # Committed or not: the cause is an earlier batch.
                made.exception()
                continue
            with self._stopping(held):
                held.counts += made.result()
                any_was = True
        return any_was

    def _look(self) -> None:
        """Updates the topics' end offsets, and checks that they are still the same topics."""
        if self._discover is not None:
            self._add(self._discover)
        for held in self._working:
            with self._stopping(held):
                try:
                    held.target.check(self._cluster)
                    self._look_for_new(held)
                    now = self._now(held)
                    held.extent = self._cluster.extent(held.topic, held.positions)
                    held.look(now, held.extent.stable)
                    held.target.check_reconciled()
                    if self._must_commit(held):
                        self._hand_over(held)
                except SourceUnavailableError as e:
                    _log.warning("%s", e)
        self._looked_ms = self._clock.monotonic_ms()

    def _add(self, discover: Callable[[Collection[str]], list[Target]]) -> None:
        """Starts to mirror topics that were created since."""
        try:
            new = discover(self._held)
        except ClogError as e:
            _log.warning("%s", e)
            return
        for target in new:
            held = self._held[target.topic.topic] = _Held(target)
            with self._stopping(held):
                self._begin(held)

    def _must_commit(self, held: _Held) -> bool:
        """Returns whether a start, or the moment of which all is there, waits for a commit."""
        if any(waiting is held for waiting, _ in self._waiting):
            return False
        return held.must_renew or bool(held.target.risen(held.extent.start, held.handed))

    def _look_for_new(self, held: _Held) -> None:
        """Reads partitions that were added to the topic, unless the run is ``once``."""
        if self._once:
            return
        new = held.target.new_partitions(self._cluster, held.positions)
        self._feed.add({(held.topic, p): at for p, at in new.items()})
        held.move(new, self._clock.monotonic_ms())

    @contextmanager
    def _stopping(self, held: _Held) -> Iterator[None]:
        """Stops one topic if the body raises; what was read before is committed."""
        try:
            yield
        except ClogError as e:
            if isinstance(e, SourceDamagedError | SourcePurgedError) and held.is_ahead:
                self._hand_over(held)
            if held.error is None:
                held.error = e
                self._feed.remove(set(held.places) - self._reached)
                if len(self._held) > 1:
                    _log.error("topic %s is no longer mirrored: %s", held.topic, e)

    def _raise_stopped(self, *, at_the_end: bool = False) -> None:
        """Raises if all topics have stopped, or, at the end, if any has."""
        errors = [held.error for held in self._held.values() if held.error is not None]
        if errors and (at_the_end or len(errors) == len(self._held)):
            first, *others = errors
            for other in others:
                first.add_note(str(other))
            raise first

    def progress(self) -> Mirrored:
        """Returns the progress of all topics."""
        topics = {held.topic: held.progress() for held in self._held.values() if held.positions}
        now_ms = self._clock.monotonic_ms()
        records = sum(topic.records for topic in topics.values())
        offsets = sum(sum(topic.offsets.values()) for topic in topics.values())
        self._paces.append((now_ms, records, offsets))
        while len(self._paces) > 2 and self._paces[0][0] < now_ms - _RATE_OVER_MS:
            self._paces.popleft()
        since_ms, records_then, offsets_then = self._paces[0]
        took_ms = max(1, now_ms - since_ms)
        done = Mirrored(topics, 1000 * (records - records_then) / took_ms)
        moved = offsets - offsets_then
        return replace(done, eta_ms=done.lag * took_ms // moved if moved else None)


def taken_over(
    settings: Mapping[str, Setting], own: Mapping[str, object]
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the log's configs for a topic's, and why some of those have no counterpart.

    What was set for the topic is taken over; so are those of the broker's defaults that decide how
    long records stay: a topic is ``cleanup.policy=delete`` unless it says otherwise, a log
    ``compact``. ``own`` are the user's, and take precedence.
    """
    config: dict[str, str] = {}
    left: dict[str, str] = {}
    for name, setting in sorted(settings.items()):
        if name in own or not (setting.is_own or name in STAY):
            continue
        try:
            found = _counterpart(name, setting.value)
        except InvalidInputError as e:
            left[name] = str(e)
        else:
            if found != LogConfig().as_dict()[name]:
                config[name] = found
    return {**DEFAULTS, **config, **LogConfig.parsed(own)}, left


def _counterpart(name: str, value: str) -> str:
    """Returns a log's counterpart of a topic's config, or raises an error that says why not."""
    if name == "compression.type" and value in _CODECS:
        return _CODECS[value]
    if why := _ANOTHER.get(name) or LogConfig.why_not(name):
        raise InvalidInputError(why)
    return LogConfig.parsed({name: value})[name]


def users_own(given: Mapping[str, object]) -> dict[str, str]:
    """Returns the user's configs of the log; raises if one would spoil the mirror."""
    own = LogConfig.parsed(given)
    if LogConfig.from_overrides(own).log_append_time:
        raise InvalidInputError(
            "message.timestamp.type=LogAppendTime would replace each record's timestamp with the"
            " time of its commit; leave it out"
        )
    return own
