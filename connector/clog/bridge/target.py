"""The log that mirrors one topic: how it is created, its positions, and what is committed to it.

All commits are transactions with one id, `ID`, so that there is one mirror at a time: a mirror that
starts claims the id, and the one that had it is fenced (S48). A transaction commits:

- records at their offsets (S75), and in each partition an end that covers those without a record:
  transaction markers, aborted records, what the source's cleaner removed;
- the position in the topic, as `kafka:<cluster id>/<topic id>`, with the leader epoch as its mark;
- if the log has columns, undecodable records, unchanged, to the log of dead letters, which takes
  part in the transaction: its home is the mirrored log, so that no marker takes an offset there.

I1. The log is opened, or created with the topic's partitions and configs.
I2. The id is claimed, and the positions are read. If there are none, a first commit records the
    topic's identity and start. Positions in another topic are an error. Crash before: an empty log,
    which the next run uses.
I3. In each partition, the record before the position is compared with the source's, if both still
    have it: clusters that were restored from a copy have the same ids.
I4. Batches are read (`Feed`) from the positions, with their leader epochs.
I5. Before each commit the topic's id and number of partitions are requested: whatever was fetched
    before then came from that topic. If the id differs or the topic is gone, the mirror stops, and
    nothing of the batch is committed.
I6. Records, covered ends and positions are committed together (S73). Crash before: I1 again, from
    the previous positions. Lost reply: the transaction is committed again, and takes effect once.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import Any, Final

import pyarrow as pa

from clog.bridge.decoding import (
    OFFSET,
    PARTITION,
    SOURCE,
    TIMEOUT_MS,
    Decoder,
    Decoding,
    Typed,
    letters_of,
)
from clog.bridge.reach import Reach, committed
from clog.bridge.topic import Address, At, Cluster, Columns, Feed, Topic, columns_of
from clog.storage import Log, Transaction
from clog.storage.config.log_config import NO_DEFAULTS, LogConfig
from clog.storage.env import Clock, dataclass
from clog.storage.errors import (
    InvalidInputError,
    NotFoundError,
    SourceDamagedError,
    SourceError,
    SourcePartitionsError,
    SourcePurgedError,
    SourceReplacedError,
    SourceTruncatedError,
    SourceUndecodableError,
    TransactionFencedError,
)
from clog.storage.format.documents import NONE

ID: Final = "clog-mirror"
"""The id of every mirror's transactions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings(Reach):
    """How logs are opened and created.

    Attributes:
        partitions: of a new log; None: as many as the topic has.
        config: of a new log; overrides that of the topic.
        follow_start: whether the log start offset follows the source's.
        skip_purged: whether records that the source removed are skipped.
        decoding: how records become columns; None: they stay bytes.
        dead_letters: the URL of the log for undecodable records; for several topics, the folder of
            these logs; None: they are an error.
    """

    partitions: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    follow_start: bool = False
    skip_purged: bool = False
    decoding: Decoding | None = None
    dead_letters: str | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """What one commit adds: records, or None, between two positions of each partition."""

    records: Columns | None
    before: Mapping[int, At]
    positions: Mapping[int, At]


class Target:
    """A log, and the topic that it mirrors. Batches are committed in the order in which they are
    given, by one thread at a time.

    Attributes:
        positions: the last committed ones, by partition: the next batch begins there.
        left: configs of the topic that a log made just now could not take over, and why.
        letters: the log of records that do not decode; None: they are an error.
    """

    def __init__(
        self,
        log: Log,
        topic: Topic,
        address: Address,
        settings: LogSettings,
        *,
        left: Mapping[str, str] = NO_DEFAULTS,
        decoder: Decoder | None = None,
        letters: Log | None = None,
    ) -> None:
        self.log = log
        self.topic = topic
        self.address = address
        self.left = left
        self.letters = letters
        self.positions: dict[int, At] = {}
        self.decoder = decoder
        self._settings = settings
        self._starts: dict[int, int] = {}

    @property
    def needs_key(self) -> bool:
        """Whether records without a key are left out; a decoder treats them as undecodable."""
        return (
            self.decoder is None
            and LogConfig.from_overrides(self.log.handle.tip.head.config).compact
        )

    def begin(self, cluster: Cluster) -> None:
        """Claims the id, and finds the positions to continue from (I2, I3)."""
        ended = self.log.handle.refresh().head.gives_offsets
        if ended != NONE:
            raise InvalidInputError(
                f"{self.log.url} no longer mirrors {self.address}: the mirror ended in version"
                f" {ended}, and since then others can append; mirror into a new log"
            )
        self._check_kind()
        with self._unless_taken_over(), self.log.transaction(ID, TIMEOUT_MS) as t:
            found = self.log.positions(ID, marks=True)
            if found:
                t.abort()
                self.positions = self._found(found)
                self._starts = self.log.start_offsets()
            else:
                self._check_empty()
                starts = cluster.starts(self.topic.topic, range(self.topic.partitions))
                self.positions = {p: At(start) for p, start in starts.items()}
                self._commit(t, Batch(None, {}, self.positions), starts)
        self._check_partitions(self.topic)
        self._check_last(cluster)

    def new_partitions(self, cluster: Cluster, known: Mapping[int, At]) -> dict[int, At]:
        """Returns the partitions that were added to the topic, with their start positions."""
        new = range(len(known), self.topic.partitions)
        starts = cluster.starts(self.topic.topic, new)
        purged = {p: start for p, start in starts.items() if start > 0}
        if purged and not self._settings.skip_purged:
            raise self.purged(purged, dict.fromkeys(purged, At(0)))
        return {p: At(start) for p, start in starts.items()}

    def know(self) -> None:
        """Reads the positions without claiming the id: a mirror that is running continues."""
        found = self.log.positions(ID, marks=True)
        if not found:
            raise InvalidInputError(f"{self.log.url} is not a mirror")
        self._check_kind()
        self.positions = self._found(found)

    def commit(self, cluster: Cluster, batch: Batch) -> int:
        """Commits a batch if the topic is the same (I5, I6); returns how many are dead letters."""
        assert batch.before == self.positions, "the batch before it was not committed"
        self.check(cluster)
        starts = {}
        if self._settings.follow_start:
            now = cluster.starts(self.topic.topic, batch.positions)
            starts = self.risen(now, batch.positions)
        found = self._decoded(batch.records)
        with self._unless_taken_over():
            self._commit(self.log.transaction(ID, TIMEOUT_MS), batch, starts, found)
        self.positions = dict(batch.positions)
        return 0 if found is None else len(found.reasons)

    @contextmanager
    def _unless_taken_over(self) -> Iterator[None]:
        """Raises an error that names the mirror if the body finds that another one has the id."""
        try:
            yield
        except TransactionFencedError as e:
            raise TransactionFencedError(
                f"another mirror of {self.address} into {self.log.url} took over, and continues"
                " from the last commit; leave the work to it"
            ) from e

    def _decoded(self, records: Columns | None) -> Typed | None:
        """Returns records as columns; raises if one does not decode and no log takes it."""
        if self.decoder is None or records is None or not records.rows.num_rows:
            return None
        found = self.decoder.decoded(records, self.log)
        if found.reasons and self.letters is None:
            at = min(found.reasons)
            raise SourceUndecodableError(
                f"offset {records.offsets[at]} of partition {records.partitions[at]} of"
                f" {self.address} {found.reasons[at]}; it and the records read with it were not"
                " mirrored; give a log for such records (dead_letters=…, --dead-letters)"
            )
        return found

    def risen(self, starts: Mapping[int, int], at: Mapping[int, At]) -> dict[int, int]:
        """Returns the log start offsets that should follow the source's, none after a position."""
        if not self._settings.follow_start:
            return {}
        now = {p: min(start, at[p].offset) for p, start in starts.items() if p in at}
        return {p: start for p, start in now.items() if start > self._starts.get(p, 0)}

    def is_untouched(self, partition: int) -> bool:
        """Returns whether nothing of a partition was mirrored yet."""
        return self.positions[partition].offset == self._starts.get(partition, 0)

    def check(self, cluster: Cluster) -> None:
        """Raises if the topic is not the same any more (I5)."""
        try:
            now = cluster.topic(self.topic.topic)
        except NotFoundError:
            raise SourceReplacedError(
                f"topic {self.topic.topic} of {self.address.brokers} is gone: it was deleted."
                f" {self._extent_text()}; {_END}"
            ) from None
        if now.source != self.topic.source:
            raise self._replaced(now.source)
        if now.partitions != self.topic.partitions:
            self._check_partitions(now)
            self.topic = now

    def check_quiet(self, cluster: Cluster) -> None:
        """Raises if the topic has anything that the log does not: it is still written to."""
        self.check(cluster)
        extent = cluster.extent(self.topic.topic, self.positions)
        at = {p: position.offset for p, position in self.positions.items()}
        behind = {p: high - at[p] for p, high in extent.high.items() if high != at[p]}
        if behind or self.topic.partitions > len(at):
            raise SourceError(
                f"{self.address} is still written to, or has open transactions: offsets that"
                f" {self.log.url} does not have, by partition: {behind}. The mirror continues;"
                " stop the writers, and end it again"
            )

    def lost(self, cluster: Cluster, partitions: list[int], places: Mapping[int, At]) -> Exception:
        """Returns the error that says why these positions are no longer in the source."""
        try:
            self.check(cluster)
            extent = cluster.extent(self.topic.topic, partitions)
        except SourceReplacedError as e:
            return e
        at = {p: places.get(p, self.positions[p]) for p in partitions}
        purged = {p: start for p, start in extent.start.items() if start > at[p].offset}
        if purged:
            return self.purged(purged, at)
        p = partitions[0]
        return SourceTruncatedError(
            f"partition {p} of {self.address} was truncated: the log has it up to offset"
            f" {at[p].offset} (leader epoch {at[p].epoch}), but the source no longer has these"
            f" records, and now ends at {extent.high[p]}. The brokers lost records that they had"
            " acknowledged, as after an unclean election or the restore of a disk; mirror into a"
            f" new log, or keep this one as it is: {_END}"
        )

    def purged(self, starts: Mapping[int, int], at: Mapping[int, At]) -> SourcePurgedError:
        """Returns the error for records that the source removed before they were mirrored."""
        p, start = min(starts.items())
        first = at[p].offset
        return SourcePurgedError(
            f"{start - first} offsets of partition {p} of {self.address} are gone: the log has it"
            f" up to offset {first}, but the source now begins at {start}, because of retention"
            " or deleted records"
            + (f" (so do partitions {sorted(starts)})" if len(starts) > 1 else "")
            + "; skip them with --skip-purged (skip_purged=True), or mirror into a new log"
        )

    def damaged(self, partition: int, at: At, why: str) -> SourceDamagedError:
        """Returns the error for a place that the source itself cannot read."""
        return SourceDamagedError(
            f"partition {partition} of {self.address} cannot be read at offset {at.offset} or"
            f" soon after it: {why}. A file of the broker is damaged there, and reading again"
            " does not help; let another replica lead the partition, or delete its records past"
            " the damage (kafka-delete-records) and continue with --skip-purged"
            " (skip_purged=True)"
        )

    def _found(self, found: Mapping[str, Mapping[int, tuple[int, str | None]]]) -> dict[int, At]:
        mine = found.get(self.topic.source)
        if mine is None:
            raise self._replaced(self.topic.source, *found)
        return {
            p: At(offset, None if mark is None else int(mark))
            for p, (offset, mark) in sorted(mine.items())
        }

    def _replaced(self, now: str, *known: str) -> SourceReplacedError:
        was = ", ".join(known) or self.topic.source
        return SourceReplacedError(
            f"{self.address} is not the topic that {self.log.url} mirrors: it is {now}, but the"
            f" log has {was}. It was deleted and created again, or the address leads elsewhere."
            f" {self._extent_text()}; mirror it into a new log, or, to keep this one, {_END}"
        )

    def _extent_text(self) -> str:
        at = {p: position.offset for p, position in self.positions.items()}
        return f"The log has it up to {at}" if at else "Nothing of it was mirrored"

    def _check_empty(self) -> None:
        if any(self.log.end_offsets().values()):
            raise InvalidInputError(
                f"{self.log.url} has its own records, and cannot mirror {self.address}: its"
                " offsets would differ from the topic's; mirror into a new log"
            )

    def _check_kind(self) -> None:
        if (self.decoder is None) != (self.log.handle.tip.head.log.schema is None):
            raise InvalidInputError(
                f"{self.log.url} has columns: say how to decode the records of {self.address}"
                " (decode=…, --decode)"
                if self.decoder is None
                else f"{self.log.url} is a log of bytes, and mirrors the records of {self.address}"
                " unchanged; mirror into a new log to decode them"
            )

    def _check_partitions(self, now: Topic) -> None:
        if now.partitions > self.log.partitions:
            raise SourcePartitionsError(
                f"{self.address} has {now.partitions} partitions, but {self.log.url} has"
                f" {self.log.partitions}, which cannot change. Keys now go to other partitions,"
                " where the log's table would show them twice; mirror into a new log"
                f" (--partitions N makes it with room for more). {self._extent_text()}; {_END}"
            )

    def _check_last(self, cluster: Cluster) -> None:
        """Raises if the record before a position differs from the source's (I3); two reads."""
        starts = self._starts
        asked = {p: at for p, at in self.positions.items() if at.offset > starts.get(p, 0)}
        if not asked:
            return
        theirs = _last_records(cluster, self.topic.topic, asked, self._settings.clock)
        if not theirs:
            return
        last = {p: asked[p].offset - 1 for p in theirs}
        every = {p: (last[p], last[p] + 1) if p in last else (0, 0) for p in last}
        for p, (first, end) in every.items():
            mine = [b for b in self.log.read(partition=p, start=first, end=end) if b.num_rows]
            if mine and not self._same(mine[0], theirs[p]):
                raise SourceReplacedError(
                    f"offset {first} of partition {p} of {self.address} differs from that in"
                    f" {self.log.url}, though cluster and topic have the same ids: the cluster"
                    " was restored from a copy, or lost its end and rewrote it; mirror into a new"
                    f" log, or, to keep this one, {_END}"
                )

    def _same(self, mine: pa.RecordBatch, theirs: Columns) -> bool:
        """Returns whether a record may be the source's; true if that no longer decodes."""
        rows = theirs.rows
        if self.decoder is not None:
            rows = self.decoder.decoded(theirs, self.log).rows
        names = ["key", "value", "timestamp"]
        return not rows.num_rows or bool(
            mine.select(names).to_pylist() == rows.select(names).to_pylist()
        )

    def _commit(
        self, t: Transaction, batch: Batch, starts: Mapping[int, int], found: Typed | None = None
    ) -> None:
        t.cover({p: at.offset for p, at in batch.positions.items()}, start=starts)
        records = batch.records
        if found is not None and records is not None:
            self._append(t, records, found)
        elif records is not None and records.rows.num_rows:
            t.append(records.rows, records.partitions, offsets=records.offsets)
        marks = {
            p: (at.offset, None if at.epoch is None else str(at.epoch))
            for p, at in batch.positions.items()
        }
        t.positions(self.topic.source, marks)
        committed(t)
        self._starts |= starts

    def _append(self, t: Transaction, records: Columns, found: Typed) -> None:
        """Appends the decoded records to the log, and the rest to the dead letters."""
        at = found.places
        if found.rows.num_rows:
            t.append(found.rows, records.partitions[at], offsets=records.offsets[at])
        if not found.reasons or self.letters is None:
            return

        def where(i: int) -> dict[str, object]:
            place = {PARTITION: records.partitions[i], OFFSET: records.offsets[i]}
            return {SOURCE: self.topic.source, **place}

        partitions = records.partitions[sorted(found.reasons)] % self.letters.partitions
        t.append(letters_of(records.rows, found.reasons, where), partitions, log=self.letters)


_END: Final = (
    "clog mirror --end --force (end=True, force=True) makes it a log to which others can append"
)


def _last_records(
    cluster: Cluster, topic: str, asked: Mapping[int, At], clock: Clock
) -> dict[int, Columns]:
    """Returns the records right before positions, except any that the source has lost since."""
    feed = Feed(cluster, group="clog-mirror-check")
    found: dict[int, Columns] = {}
    waiting = {(topic, p) for p in asked}
    try:
        feed.add({(topic, p): At(at.offset - 1, at.epoch) for p, at in asked.items()})
        end_ms = clock.monotonic_ms() + cluster.wait_ms
        while waiting:
            taken = feed.take()
            first: dict[int, Any] = {}
            for m in taken.messages.get(topic, ()):
                first.setdefault(m.partition(), m)
            for p, m in first.items():
                if (topic, p) in waiting and m.offset() == asked[p].offset - 1:
                    found[p] = columns_of([m], needs_key=False)
            waiting -= {(topic, p) for p in first} | taken.lost | taken.gone
            waiting -= taken.ended.keys() | taken.damaged.keys()
            if clock.monotonic_ms() > end_ms:
                raise cluster.unavailable(f"the last records of topic {topic}")
    finally:
        feed.close()
    return found


def first_record(cluster: Cluster, topic: Topic, clock: Clock) -> Mapping[str, bytes | None]:
    """Returns key and value of an early record of a topic that has a value; {} if there is none."""
    feed = Feed(cluster, group="clog-mirror-first")
    starts = cluster.starts(topic.topic, range(topic.partitions))
    waiting = {(topic.topic, p) for p in starts}
    try:
        feed.add({(topic.topic, p): At(start) for p, start in starts.items()})
        end_ms = clock.monotonic_ms() + cluster.wait_ms
        while waiting and clock.monotonic_ms() < end_ms:
            taken = feed.take()
            for m in taken.messages.get(topic.topic, ()):
                if m.value() is not None:
                    return {"key": m.key(), "value": m.value()}
            waiting -= taken.ended.keys() | taken.lost | taken.gone | taken.damaged.keys()
    finally:
        feed.close()
    return {}
