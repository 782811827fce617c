"""The log that mirrors one topic: how it is created, its positions, and what is committed to it.

All commits are transactions with one id, `ID`, so that there is one mirror at a time: a mirror that
starts claims the id, and the one that had it is fenced (S48). A transaction commits

- records at their offsets (S75), and in each partition an end that covers those without a record:
  transaction markers, aborted records, what the source's cleaner removed;
- the position in the topic, as `kafka:<cluster id>/<topic id>`, with the leader epoch as its mark;
- the last moment of which the log has all that the topic had (`Seen`), as `kafka-seen:<topic id>`;
- undecodable records, unchanged, to the log of dead letters, whose home is the mirrored log.

I1. The log is opened, or created with the topic's partitions and configs.
I2. The id is claimed, and the positions are read. If there are none, a first commit records the
    topic's identity and start. Positions in another topic are an error. Crash before: an empty log,
    which the next run uses.
I3. In each partition, the record before the position is compared with the source's, if both still
    have it: clusters that were restored from a copy have the same ids.
I4. Batches are read (`Feed`) from the positions, with their leader epochs.
I5. Before each commit the topic's id and number of partitions are requested: whatever was fetched
    before then came from that topic. If the id differs, nothing of the batch is committed.
I6. Records, covered ends and positions are committed together (S73). Crash before: I1 again, from
    the previous positions. Lost reply: the transaction is committed again, and takes effect once.

`docs/decisions/0079-missed-deletes-of-a-mirror.md` says when deletes can be missed (S41).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from clog.bridge.access import Access, committed
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
from clog.bridge.topic import (
    SYSTEM,
    WAIT_MS,
    Address,
    At,
    Cluster,
    Columns,
    Feed,
    Topic,
    columns_of,
    tombstones_stay_ms,
)
from clog.storage import (
    Clock,
    InvalidInputError,
    Log,
    NotFoundError,
    SourceDamagedError,
    SourceError,
    SourcePartitionsError,
    SourcePurgedError,
    SourceReplacedError,
    SourceTruncatedError,
    SourceUndecodableError,
    Transaction,
    TransactionFencedError,
)
from clog.storage.spi import Inside, dataclass, duration, to_arrow

ID: Final = "clog-mirror"
"""The id of every mirror's transactions."""
RECONCILED: Final = "clog.mirror.reconciled"
"""The header of a tombstone that a mirror made, without a value."""
UNBROKEN_MS: Final = 15_000
"""A mirror that was at the end so recently, in the same run, is believed to have missed nothing,
however soon tombstones go: a broker's cleaner that found nothing to do looks again after so long
(``log.cleaner.backoff.ms``), and they only go in its second pass over them."""
_RENEWED_LIFE_MS: Final = 60_000


INTERVAL_MS: Final = 1000
"""The longest that a few records wait for a commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSettings(Access):
    """How topics are mirrored, and how logs are opened, created and continued.

    Attributes:
        once: stop at the current end; otherwise the topics are followed.
        end: take the rest, check that the topic is quiet for a while, then let others append.
        force: end the mirror without looking at the topic, which may be gone.
        partitions: of a new log: a number above the topic's leaves room for it to grow; None: as
            many as the topic has.
        config: configs of a new log, which override those of the topic.
        follow_start: move the log start offset with the source's: what it removed is removed here.
        skip_purged: continue after records, or tombstones, that the source removed unread.
        reconcile: first read log and topic once, and delete keys that the topic no longer has.
        decode: makes a typed log: a `Decoding`, or its values' encoding; None: a log of bytes.
        dead_letters: a log (a folder for a pattern) for undecodable records; None: raise for them.
        kafka_options: librdkafka's, such as ``security.protocol`` and ``sasl.password``.
        interval_ms: the longest that a few records wait for a commit.
        wait_ms: how long the brokers may fail to answer; after 5 s a warning is logged.
        on_progress: called with the progress, after each commit and every few seconds.
        should_stop: called several times a second; true ends the run once all it read is committed.
        storage_options: options of the log's filesystem.
        single_writer: see `Log.create`.
        clock: the source of times.
        ids: the source of random ids.
    """

    once: bool = False
    end: bool = False
    force: bool = False
    partitions: int | None = None
    config: Mapping[str, object] = field(default_factory=dict)
    follow_start: bool = False
    skip_purged: bool = False
    reconcile: bool = False
    decode: Decoding | str | None = None
    dead_letters: str | None = None
    kafka_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    interval_ms: int = INTERVAL_MS
    wait_ms: int = WAIT_MS
    on_progress: Callable[[Any], object] = lambda _: None
    should_stop: Callable[[], bool] = lambda: False

    @property
    def decoding(self) -> Decoding | None:
        """How records become columns; None: they stay bytes."""
        return Decoding(values=self.decode) if isinstance(self.decode, str) else self.decode


@dataclass(frozen=True, slots=True)
class Seen:
    """A moment of which a log has all that its topic had.

    Attributes:
        time_ms: by the clock of the mirror.
        life_ms: the shortest time that the topic is known to have kept tombstones since then
            (`tombstones_stay_ms`); None: for ever.
        monotonic_ms: by the monotonic clock, if it was in this run; else None.
    """

    time_ms: int
    life_ms: int | None
    monotonic_ms: int | None = None

    def shortened(self, life_ms: int | None) -> "Seen":
        """Returns the same moment, with this life of tombstones if it is shorter."""
        known = [ms for ms in (self.life_ms, life_ms) if ms is not None]
        return replace(self, life_ms=min(known, default=None))

    def is_in_doubt(self, now_ms: int, monotonic_ms: int) -> bool:
        """Returns whether a tombstone that was written since may be gone. A clock that was set back
        proves nothing: what counts is how far it is from that moment, on either side.
        """
        if self.life_ms is None:
            return False
        if self.monotonic_ms is None:
            return abs(now_ms - self.time_ms) >= self.life_ms
        age_ms = max(now_ms - self.time_ms, monotonic_ms - self.monotonic_ms)
        return age_ms >= max(self.life_ms, UNBROKEN_MS)

    def must_replace(self, stored: "Seen | None") -> bool:
        """Returns whether a log needs it that has stored another moment: before that one is too
        old for a restart, unless tombstones go too soon to tell anything after one.
        """
        if self.life_ms is None or self.life_ms < _RENEWED_LIFE_MS:
            return False
        return stored is None or self.time_ms - stored.time_ms >= self.life_ms // 4


@dataclass(frozen=True, slots=True)
class Batch:
    """What one commit adds: records, or None, between two positions of each partition; and the
    moment of which the log then has all, None if it keeps the one that it has.
    """

    records: Columns | None
    before: Mapping[int, At]
    positions: Mapping[int, At]
    seen: Seen | None = None

    def offsets(self, partition: int) -> np.ndarray[Any, Any]:
        """Returns the offsets of a partition at which the topic has a record."""
        if self.records is None:
            return np.zeros(0, np.int64)
        places = (self.records.partitions, self.records.offsets), self.records.keyless_at
        return np.sort(np.concatenate([at[parts == partition] for parts, at in places]))


class Target:
    """A log, and the topic that it mirrors. Batches are committed in the order in which they are
    given, by one thread at a time.

    Attributes:
        positions: the last committed ones, by partition: the next batch begins there.
        seen: the last moment of which the log has all, as committed; None: not known.
        gone: by partition, tombstones for keys that the topic no longer has (`comparing`), which
            take free offsets: those below ``compared`` for which the topic has no record any more.
        compared: by partition, the offset up to which log and topic were compared.
        left: configs of the topic that a log made just now could not take over, and why.
        letters: the log of records that do not decode; None: they are an error.
    """

    def __init__(
        self,
        log: Log,
        topic: Topic,
        address: Address,
        settings: MirrorSettings,
        *,
        left: Mapping[str, str] = MappingProxyType({}),
        decoder: Decoder | None = None,
        letters: Log | None = None,
    ) -> None:
        self.log = log
        self.topic = topic
        self.address = address
        self.left = left
        self.letters = letters
        self.positions: dict[int, At] = {}
        self.seen: Seen | None = None
        self.gone: dict[int, pa.Table] = {}
        self.compared: Mapping[int, int] = {}
        self.decoder = decoder
        self._settings = settings
        self._starts: dict[int, int] = {}

    @property
    def needs_key(self) -> bool:
        """Whether records without a key are left out; a decoder treats them as undecodable."""
        return self.decoder is None and Inside(self.log).config.compact

    def begin(self, cluster: Cluster, now: Seen) -> None:
        """Claims the id, and finds the positions to continue from (I2, I3)."""
        inside = Inside(self.log)
        inside.refresh()
        if (ended := inside.assigns_offsets_since) is not None:
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
                for time_ms, life in found.get(self.topic.seen, {}).values():
                    self.seen = Seen(time_ms, None if life is None else int(life))
            else:
                self._check_empty()
                starts = cluster.starts(self.topic.topic, range(self.topic.partitions))
                self.positions = {p: At(start) for p, start in starts.items()}
                # A log without records lacks no delete.
                self._commit(t, Batch(None, {}, self.positions, now), starts)
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

    def life_ms(self, cluster: Cluster) -> int | None:
        """Returns how long the topic keeps tombstones (`tombstones_stay_ms`); for a client that may
        not see its configs, the log's count, which come from the topic or the user.
        """
        theirs = {name: one.value for name, one in cluster.configs(self.topic.topic).items()}
        return tombstones_stay_ms(theirs or Inside(self.log).config.as_dict())

    def commit(self, cluster: Cluster, batch: Batch) -> Counter[str]:
        """Commits a batch if the topic is the same (I5, I6); returns the counts that
        `MirroredTopic` has of it, by its names.
        """
        assert batch.before == self.positions, "the batch before it was not committed"
        self.check(cluster)
        starts = {}
        if self._settings.follow_start:
            now = cluster.starts(self.topic.topic, batch.positions)
            starts = self.risen(now, batch.positions)
        with self._unless_taken_over():
            t = self.log.transaction(ID, TIMEOUT_MS)
            found = self._decoded(batch.records)  # After it: it may find that the log evolved.
            self._commit(t, batch, starts, found)
        buried = self._bury(batch)  # Before the positions: `check_reconciled` compares both.
        self.positions = dict(batch.positions)
        counts = Counter[str]() if batch.records is None else batch.records.counts
        counts["dead_letters"] += 0 if found is None else len(found.reasons)
        counts["reconciled"] += buried
        return counts

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

    def check_reconciled(self) -> None:
        """Raises if tombstones found no offset before the end of what was compared."""
        at = self.positions
        left = {
            p: rows.num_rows
            for p, rows in self.gone.items()
            if rows.num_rows and at[p].offset >= self.compared[p]
        }
        if left:
            raise SourcePurgedError(
                f"{self.log.url} still has keys that {self.address} no longer has, by partition:"
                f" {left}. A tombstone for a key needs an offset that the topic has given and has"
                " no record for, after those that the log already had; too few were left. Write"
                " tombstones for these keys to the topic (clog mirror … --verify says at which"
                " offsets the log has them), or mirror into a new log"
            )

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

    def missed(
        self,
        partition: int,
        lacking: int,
        seen: Seen | None,
        life_ms: int | None,
        now_ms: int,
    ) -> SourcePurgedError:
        """Returns the error for tombstones that may have been removed before they were read."""
        since = "it is not known when the log last had all of the topic"
        if seen is not None:
            life_ms, ahead_ms = seen.life_ms, seen.time_ms - now_ms
            since = f"the log last had all of the topic {duration(abs(ahead_ms))} ago"
            if ahead_ms > 0:
                since = (
                    f"the clock of this machine is {duration(ahead_ms)} behind the moment at which"
                    " the log last had all of the topic"
                )
        keeps = duration(life_ms or 0)
        return SourcePurgedError(
            f"{self.log.url} may have missed deletes: {lacking} offsets of partition {partition} of"
            f" {self.address} have no record any more, {since}, and since then the topic may have"
            f" removed tombstones {keeps} after they were written (delete.retention.ms); nothing"
            " from there on was mirrored. Compare the keys of both once, which deletes those that"
            " are gone, with --reconcile (reconcile=True), or continue, and keep them, with"
            " --skip-purged (skip_purged=True)"
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
            raise self._replaced(self.topic.source, *(n for n in found if is_topic(n)))
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
        if (self.decoder is None) == Inside(self.log).is_typed:
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
            if mine and not (self._same(mine[0], theirs[p]) or is_reconciled(mine[0]).any()):
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
            found = self.decoder.decoded(theirs, self.log)
            rows = found.stored(Inside(self.log).schema.field("value"))
        names = ["key", "value", "timestamp"]
        return not rows.num_rows or bool(
            mine.select(names).to_pylist() == rows.select(names).to_pylist()
        )

    def _commit(
        self, t: Transaction, batch: Batch, starts: Mapping[int, int], found: Typed | None = None
    ) -> None:
        t.cover({p: at.offset for p, at in batch.positions.items()}, start=starts)
        records, buried = batch.records, self._buried(batch)
        if found is not None and records is not None:
            self._append(t, records, found, buried)
        elif records is not None or buried:
            own = [(records.rows, records.partitions, records.offsets)] if records else []
            self._put(t, [*own, *buried])
        marks = {
            p: (at.offset, None if at.epoch is None else str(at.epoch))
            for p, at in batch.positions.items()
        }
        t.positions(self.topic.source, marks)
        seen = batch.seen
        if seen is not None:
            life = None if seen.life_ms is None else str(seen.life_ms)
            t.positions(self.topic.seen, {0: (seen.time_ms, life)})
        committed(t)
        self._starts |= starts
        self.seen = self.seen if seen is None else seen

    def _buried(self, batch: Batch) -> "list[_Rows]":
        """Returns tombstones for keys that are gone, as many as the batch has free offsets."""
        found = []
        for p, rows in self.gone.items():
            before, end = batch.before[p].offset, batch.positions[p].offset
            end = min(end, self.compared[p])
            at = free_offsets(batch.offsets(p), before, end, rows.num_rows)
            if len(at):
                found.append((rows[: len(at)], np.full(len(at), p, np.int32), at))
        return found

    def _bury(self, batch: Batch) -> int:
        """Forgets the tombstones that a batch had; returns how many."""
        had = self._buried(batch)
        for rows, (p, *_), _ in had:
            self.gone[p] = self.gone[p][rows.num_rows :]
        return sum(rows.num_rows for rows, _, _ in had)

    def _put(self, t: Transaction, parts: "Sequence[_Rows]") -> None:
        """Appends rows, those of each partition in the order of their offsets."""
        tables, partitions, offsets = zip(*parts, strict=True)
        if len(tables) == 1:
            rows, at, where = tables[0], offsets[0], partitions[0]
        else:
            where, at = np.concatenate(partitions), np.concatenate(offsets)
            order = np.lexsort((at, where))
            rows = pa.concat_tables(tables, promote_options="default").take(to_arrow(order))
            where, at = where[order], at[order]
        if rows.num_rows:
            t.append(rows, where, offsets=at)

    def _append(
        self, t: Transaction, records: Columns, found: Typed, buried: "Sequence[_Rows]"
    ) -> None:
        """Appends the decoded records to the log, and the rest to the dead letters."""
        at = found.places
        self._put(t, [(found.rows, records.partitions[at], records.offsets[at]), *buried])
        if not found.reasons or self.letters is None:
            return

        def where(i: int) -> dict[str, object]:
            place = {PARTITION: records.partitions[i], OFFSET: records.offsets[i]}
            return {SOURCE: self.topic.source, **place}

        partitions = records.partitions[sorted(found.reasons)] % self.letters.partitions
        t.append(letters_of(records.rows, found.reasons, where), partitions, log=self.letters)


_Rows = tuple[pa.Table, np.ndarray[Any, Any], np.ndarray[Any, Any]]
"""Rows, their partitions, and their offsets."""


def is_topic(name: str) -> bool:
    """Returns whether positions of this name are in a topic."""
    return name.startswith(f"{SYSTEM}:")


def is_reconciled(rows: pa.RecordBatch | pa.Table) -> np.ndarray[Any, Any]:
    """Returns which rows of a log are tombstones that its mirror made (`comparing`)."""
    headers = rows.column("headers").to_pylist()
    return np.array([any(h["key"] == RECONCILED for h in some or ()) for some in headers], bool)


def free_offsets(
    taken: np.ndarray[Any, Any], start: int, end: int, most: int
) -> np.ndarray[Any, Any]:
    """Returns the first offsets from ``start`` to ``end`` that are not taken, ``most`` at most;
    ``taken`` is sorted.

    >>> free_offsets(np.array([3, 4, 7]), 3, 10, 3).tolist()
    [5, 6, 8]
    """
    within = taken[(taken >= start) & (taken < end)]
    # The n-th taken offset has as many free ones below it as it is above start + n.
    free_below = within - start - np.arange(len(within))
    nth = np.arange(min(most, max(0, end - start - len(within))))
    return start + nth + np.searchsorted(free_below, nth, "right")


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
