"""Which partitions to clean, and in which order (S13-S17); what a pass of one is given
(`PassPlan`), and what it counts (`PassStats`). Pure, except for `Choosing`, which remembers.

A partition is eligible when one of these holds; the first that does is its reason:

- *forced*: an operator asked for it (S17) and there is anything to clean;
- *overdue*: cleanable bytes, and a dirty sealed segment whose first record is older than
  ``max.compaction.lag.ms`` (S14);
- *dirty*: dirty ratio > ``min.cleanable.dirty.ratio`` (S14, strict);
- *tombstones*: the clean part has tombstones past their delete horizon, and they are a worthwhile
  share of it or have waited too long (S16).

Overdue partitions come first, the longest overdue before the others: a deadline outranks a ratio
(S15; Kafka takes only the highest ratio). So do tombstones that wait too long: else those of a
quiet partition would stay while others are dirtier (S46). Then comes the highest ratio.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from enum import StrEnum

import numpy as np

from clog.storage.config.log_config import LogConfig
from clog.storage.config.units import time_beside
from clog.storage.env import dataclass
from clog.storage.format.chunks import Chunk, Segment
from clog.storage.format.documents import NONE
from clog.storage.format.manifest import Manifest
from clog.storage.read.cleanable import CleanableBounds, cleanable_bounds
from clog.storage.readers import NO_HOLDS, NOTHING_HELD, HeldTombstones, Holds

TOMBSTONE_SHARE_MIN = 0.1
"""Expired tombstones are worth their own pass from this share of the clean part's records."""
TOMBSTONE_WAIT_MS_MAX = 86_400_000
"""However few they are, tombstones wait no longer than this after their horizon."""
DOUBT_MS_MAX = 9 * 86_400_000
"""How long after the horizon a chunk is rewritten if its dead rows may or may not be its
tombstones. With the default ``dead.rows.delay.ms``, 7 days, it is rewritten earlier.
"""

_SMALL_SHARE = 8
"""A chunk is small if it is less than this fraction (1/8) of ``object.bytes``."""
JUDGED_MS = 5_000
"""How long a judgement is good for: deadlines are at least minutes."""


class Reason(StrEnum):
    """Why a partition is cleaned."""

    FORCED = "forced"
    OVERDUE = "overdue"
    DIRTY = "dirty"
    TOMBSTONES = "tombstones"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A partition to clean. ``late_ms`` is how far it is past a deadline, 0 if it is not: overdue
    by ``max.compaction.lag.ms``, or with tombstones that have waited for more than
    `TOMBSTONE_WAIT_MS_MAX`.
    """

    partition: int
    bounds: CleanableBounds
    reason: Reason
    late_ms: int

    @property
    def urgency(self) -> tuple[int, float, int]:
        """The sort key that puts the most urgent first, also across logs (S15)."""
        return -self.late_ms, -self.bounds.dirty_ratio, self.partition


def candidates(
    manifest: Manifest,
    config: LogConfig,
    *,
    now_ms: int,
    force: bool = False,
    holds: Holds = NO_HOLDS,
) -> list[Candidate]:
    """Returns the eligible partitions, most urgent first; none if never compacted (S31)."""
    found = (
        candidate(manifest, config, p, now_ms=now_ms, force=force, holds=holds)
        for p in range(manifest.head.log.partitions)
    )
    eligible = [c for c in found if c is not None]
    return sorted(eligible, key=lambda c: c.urgency)


class Choosing:
    """Remembers the candidates of one log, which are asked for before each pass: of thousands of
    partitions only those that changed are judged again, and all once `JUDGED_MS` have passed, as
    time makes some eligible. A pass judges its partition again before it begins, so what is
    remembered here affects only the order.
    """

    def __init__(self) -> None:
        self._manifest: Manifest | None = None
        self._given: tuple[LogConfig, bool, Holds] | None = None
        self._judged_ms = 0
        self._found: dict[int, Candidate] = {}

    def candidates(
        self,
        manifest: Manifest,
        config: LogConfig,
        *,
        now_ms: int,
        force: bool,
        holds: Holds = NO_HOLDS,
    ) -> list[Candidate]:
        """Returns the eligible partitions, most urgent first, as `candidates` does, except that
        unchanged ones may be as of a few seconds ago.
        """
        given = (config, force, holds)
        partitions = self._to_judge(manifest, given, now_ms)
        if len(partitions) == manifest.head.log.partitions:
            self._judged_ms = now_ms
        for p in partitions:
            self._found.pop(p, None)
            found = candidate(manifest, config, p, now_ms=now_ms, force=force, holds=holds)
            if found is not None:
                self._found[p] = found
        self._manifest, self._given = manifest, given
        return sorted(self._found.values(), key=lambda c: c.urgency)

    def _to_judge(
        self, manifest: Manifest, given: tuple[LogConfig, bool, Holds], now_ms: int
    ) -> list[int]:
        before, count = self._manifest, manifest.head.log.partitions
        is_fresh = 0 <= now_ms - self._judged_ms < JUDGED_MS and given == self._given
        if before is None or not is_fresh:
            return list(range(count))
        if manifest is before:
            return []
        was, now = (m.head.partitions.start.to_numpy() for m in (before, manifest))
        rose = set(np.flatnonzero(was != now).tolist())
        return [
            p
            for p in range(count)
            if manifest.segments[p] is not before.segments[p]
            or manifest.first_dirty[p] != before.first_dirty[p]
            or p in rose
        ]


def candidate(
    manifest: Manifest,
    config: LogConfig,
    partition: int,
    *,
    now_ms: int,
    force: bool = False,
    holds: Holds = NO_HOLDS,
) -> Candidate | None:
    """Returns one partition as a candidate, if it is eligible."""
    if not config.compact:
        return None
    b = cleanable_bounds(manifest, partition, config, now_ms=now_ms)
    delay_ms = overdue_ms(manifest, b, config, now_ms=now_ms)
    held = held_in(holds, partition, now_ms=now_ms)
    expired, wait_ms = expired_tombstones(manifest, b, held, now_ms=now_ms)
    is_long = wait_ms > TOMBSTONE_WAIT_MS_MAX
    if force and (b.cleanable_bytes or expired):
        reason = Reason.FORCED
    elif delay_ms:
        reason = Reason.OVERDUE
    elif b.dirty_ratio > config.min_cleanable_dirty_ratio:
        reason = Reason.DIRTY
    elif expired and (is_long or _are_worthwhile(manifest, b, expired)):
        reason = Reason.TOMBSTONES
    else:
        return None
    return Candidate(partition, b, reason, max(delay_ms, wait_ms - TOMBSTONE_WAIT_MS_MAX, 0))


def held_in(holds: Holds, partition: int, *, now_ms: int) -> HeldTombstones:
    """Returns which tombstones of a partition readers hold now."""
    return NOTHING_HELD if holds is NO_HOLDS else holds.of_partition(partition, now_ms=now_ms)


def overdue_ms(manifest: Manifest, b: CleanableBounds, config: LogConfig, *, now_ms: int) -> int:
    """Returns how long the oldest dirty segment is past ``max.compaction.lag.ms``, or 0."""
    if not b.cleanable_bytes:
        return 0
    dirty = [s for s in manifest.segments[b.partition][:-1] if s.next > b.first_dirty and s.chunks]
    oldest_ms = min((s.first_timestamp_ms for s in dirty), default=now_ms)
    return max(0, now_ms - config.max_compaction_lag_ms - oldest_ms)


def expired_tombstones(
    manifest: Manifest, b: CleanableBounds, held: HeldTombstones = NOTHING_HELD, *, now_ms: int
) -> tuple[int, int]:
    """Returns the number of tombstones and markers of the clean part that are past their horizon,
    and how long in ms the earliest has waited. A chunk does not count until all its horizons have
    passed, nor if a reader may hold one of its tombstones (S64). Tombstones that may be dead
    (`Chunk.tombstones_left`) count only once they have been `in_doubt` for long.
    """
    count, wait_ms = 0, 0
    for m in manifest.markers:
        if m.partition == b.partition and m.offset < b.first_dirty and m.may_go(now_ms):
            count, wait_ms = count + 1, max(wait_ms, now_ms - m.horizon_ms)
    for segment in manifest.segments[b.partition][:-1]:
        if segment.next > b.first_dirty:
            break
        for chunk in segment.chunks:
            horizon = latest_horizon_ms(chunk)
            left = chunk.tombstones_left or int(in_doubt(chunk, now_ms=now_ms))
            may_go = horizon != NONE and horizon <= now_ms
            if left and may_go and not held.may_hold(chunk.next, horizon):
                count += left
                wait_ms = max(wait_ms, now_ms - horizon)
    return count, wait_ms


def in_doubt(chunk: Chunk, *, now_ms: int) -> bool:
    """Returns whether its tombstones have long been due, but may or may not be its dead rows."""
    horizon = latest_horizon_ms(chunk)
    is_late = horizon != NONE and now_ms - horizon > DOUBT_MS_MAX
    return is_late and chunk.dead is not None and chunk.tombstones > 0


def latest_horizon_ms(chunk: Chunk) -> int:
    """Returns the latest horizon of a tombstone in the chunk; -1 if none is set."""
    return max(chunk.horizon_max, chunk.horizon, NONE)


def earliest_horizon_ms(chunk: Chunk) -> int:
    """Returns the earliest horizon of a tombstone in the chunk; -1 if none is set, 0 if a row has a
    horizon that wrapped, which counts as none (FORMAT.md §5.3).
    """
    horizons = (max(ms, 0) for ms in (chunk.horizon_min, chunk.horizon) if ms != NONE)
    return min(horizons, default=NONE)


def is_purge_due(chunk: Chunk, config: LogConfig, *, now_ms: int) -> bool:
    """Returns whether the chunk's dead rows have waited long enough to be removed physically."""
    return chunk.dead is not None and now_ms - chunk.dead.since_ms >= config.dead_rows_delay_ms


def is_shared(chunk: Chunk) -> bool:
    """Returns whether the object holds other rows, too, so it lives as long as any chunk."""
    return chunk.rows != chunk.object.rows


def is_loose(chunk: Chunk, config: LogConfig) -> bool:
    """Returns whether the chunk shares its object or is small: below 1/8 of ``object.bytes``."""
    return is_shared(chunk) or chunk.size_bytes < config.object_bytes // _SMALL_SHARE


def _are_worthwhile(manifest: Manifest, b: CleanableBounds, expired: int) -> bool:
    clean_records = sum(
        s.rows for s in manifest.segments[b.partition][:-1] if s.next <= b.first_dirty
    )
    return expired >= TOMBSTONE_SHARE_MIN * clean_records


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring segments of a partition that is cleaned in parts (`stretches`): those that begin
    in ``[start, end)``. ``dirty_end`` is where the dirty part of the whole partition ends.
    """

    start: int
    end: int
    dirty_end: int


@dataclass(frozen=True, slots=True)
class PassPlan:
    """What to clean, as plain values.

    Args:
        manifest: the one at which it was planned.
        candidate: the partition and its bounds.
        config: the log's effective configs.
        now_ms: the pass's start: what has expired by then may be removed.
        held: the tombstones that readers hold back, which may not.
        stretch: the part of the partition that this pass cleans; None: all of it.
    """

    manifest: Manifest
    candidate: Candidate
    config: LogConfig
    now_ms: int
    held: HeldTombstones = NOTHING_HELD
    stretch: Stretch | None = None

    @property
    def partition(self) -> int:
        return self.candidate.partition

    @property
    def dirty(self) -> tuple[int, int]:
        """The cleanable range."""
        bounds = self.candidate.bounds
        end = bounds.first_uncleanable
        return bounds.first_dirty, end if self.stretch is None else min(end, self.stretch.dirty_end)

    @property
    def sealed(self) -> list[Segment]:
        """The sealed segments that the pass may clean, without one that reaches beyond the
        cleanable range: its rest may not be cleaned yet (S11).
        """
        found = [s for s in self.manifest.segments[self.partition][:-1] if s.next <= self.dirty[1]]
        mine = self.stretch
        return found if mine is None else [s for s in found if mine.start <= s.base < mine.end]


@dataclass(slots=True)
class PassStats:
    """Counts of one pass over one partition. Sizes are record bytes.

    All records of the chunks that were replaced are accounted for, and checked before each commit
    (`passes.rewriter`)::

        records_read = records_written + records_superseded + tombstones_expired
                     + records_without_key + records_trimmed

    Attributes:
        maps: how many offset maps the pass filled; more than one if its keys did not fit.
        map_records: records read to fill them.
        map_entries: keys in these maps.
        map_utilization: how full the fullest was, from 0 to 1.
        records_read: live records of the chunks that were replaced.
        records_superseded: those that a later record of the same key replaced.
        tombstones_expired: those past their delete horizon.
        tombstones_stamped: tombstones that got their delete horizon.
        records_without_key: dropped, as compaction needs keys.
        records_trimmed: those below the log start offset.
        records_late: records that arrived after a tombstone of the same or a higher order had been
            removed, when no other record of their key was left: kept or dropped, as the log says.
        records_tied: records with the same order as another of their key, where orders are
            compared: their arrival decides which of them wins.
        records_written: those that stay.
        records_marked: records that died in chunks that stay; in none of the sums above: a bitmap
            hides them, and their bytes are removed later.
        segments_before: segments that the pass looked at.
        segments_after: segments that are left of these.
        size_bytes_before: size of the segments that the pass looked at.
        size_bytes_after: size of what is left of them.
        bytes_read: fetched from the store.
        bytes_written: sent to the store.
        groups_committed: groups of segments whose outcome was committed.
        chunks_untouched: chunks ruled out by their key indexes, without reading their keys.
        index_ms: time to fill the maps, and to find what all but the last of them found dead.
        clean_ms: time of everything after that.
    """

    maps: int = 0
    map_records: int = 0
    map_entries: int = 0
    map_utilization: float = 0.0
    records_read: int = 0
    records_superseded: int = 0
    tombstones_expired: int = 0
    tombstones_stamped: int = 0
    records_without_key: int = 0
    records_trimmed: int = 0
    records_late: int = 0
    records_tied: int = 0
    records_written: int = 0
    records_marked: int = 0
    segments_before: int = 0
    segments_after: int = 0
    size_bytes_before: int = 0
    size_bytes_after: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    groups_committed: int = 0
    chunks_untouched: int = 0
    index_ms: int = 0
    clean_ms: int = 0

    def add_records(self, other: "PassStats") -> None:
        """Adds the record counts of ``other``, those of a group that was committed."""
        for name in _OF_RECORDS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def records_removed(self) -> int:
        """The records that the pass removed, for whatever reason."""
        return (
            self.records_superseded
            + self.tombstones_expired
            + self.records_without_key
            + self.records_trimmed
        )

    def __repr__(self) -> str:
        """Returns the counts that are not 0."""
        counts = ((f.name, getattr(self, f.name)) for f in fields(self))
        shown = (f"{name}={n}{time_beside(name, n)}" for name, n in counts if n)
        return f"PassStats({', '.join(shown)})"


_OF_RECORDS = (
    "records_read",
    "records_superseded",
    "tombstones_expired",
    "tombstones_stamped",
    "records_without_key",
    "records_trimmed",
    "records_written",
    "records_marked",
)


@dataclass(frozen=True, slots=True)
class PassResult:
    """One pass over one partition.

    Attributes:
        partition: the partition.
        first_dirty_offset: where the dirty part began.
        next_dirty_offset: where it begins now: the range between the two became clean. Equal after
            a pass for tombstones alone, and after one that is not complete.
        stats: what it read, dropped and wrote.
        complete: False if it stopped because its sources had changed or the cleaner was stopped.
            What it had committed stays.
    """

    partition: int
    first_dirty_offset: int
    next_dirty_offset: int
    stats: PassStats
    complete: bool = True


class Passes(list[PassResult]):
    """The results of a round's passes: a list that prints as a table. ``uncleanable``: by the URL
    of a log, the partitions whose last pass failed, in this round or before it; no others.
    """

    def __init__(
        self,
        results: Iterable[PassResult],
        uncleanable: Mapping[str, list[int]],
        *,
        forced: bool,
    ) -> None:
        super().__init__(results)
        self.uncleanable = {url: found for url, found in uncleanable.items() if found}
        self._forced = forced

    _NAMES = ("partition", "clean to", "removed", "kept", "bytes before", "after", "seconds")

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                f"{each.partition}{'' if each.complete else ' (not complete)'}",
                *(f"{n:,}" for n in (each.next_dirty_offset, stats.records_removed)),
                *(f"{n:,}" for n in (stats.records_written, stats.size_bytes_before)),
                f"{stats.size_bytes_after:,}",
                f"{(stats.index_ms + stats.clean_ms) / 1000:.1f}",
            )
            for each in self
            for stats in [each.stats]
        ]

    def _why_none(self) -> str:
        """Returns what to know besides the results."""
        if self.uncleanable:
            return "; ".join(
                f"partitions {found} of {url} are uncleanable, Log.describe says why"
                for url, found in self.uncleanable.items()
            )
        if self._forced:
            return "there was nothing to clean"
        return "nothing was due; run_once(force=True) cleans whatever can be cleaned"

    def __repr__(self) -> str:
        if not self:
            return f"[]: {self._why_none()}"
        lines = [self._NAMES, *self._rows()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rows = [
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
            for line in lines
        ]
        return "\n".join([*rows, self._why_none()] if self.uncleanable else rows)

    def _repr_html_(self) -> str:
        import pyarrow as pa

        from clog.storage.types.columns import html

        columns = dict(zip(self._NAMES, zip(*self._rows(), strict=True), strict=False))
        more = self._why_none() if self.uncleanable else ""
        return html(pa.table(columns), f"{len(self)} passes", more) if self else repr(self)
