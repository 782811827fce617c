"""Describes a log: its segments, how clean and dirty its partitions are, and what each commit that
still exists did.

A commit says what replaces something; only the previous manifest knows how much was replaced. So
what commits removed and wrote (`CommitWalk`) is found by a walk: from the manifest before the first
commit, through each edit in turn.

The newest version alone shows what an erasure waits for, and what delays it (S59).
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from operator import itemgetter
from typing import Final, NamedTuple, Self, TypedDict, cast

from clog.storage.commit.handle import Handle
from clog.storage.commit.tip import first_open_version
from clog.storage.config.log_config import LogConfig
from clog.storage.config.units import moment, with_times
from clog.storage.env import dataclass
from clog.storage.format.chunks import Chunk, ObjectRef, Segment
from clog.storage.format.columns import ColumnsRef
from clog.storage.format.commits import Commit, Edit, EditRecord, Head, edit_of, read_commit
from clog.storage.format.documents import NONE, snapshot_path
from clog.storage.format.erasures import ErasureEntry
from clog.storage.format.manifest import Manifest, apply, overdue
from clog.storage.format.transactions import foreign_of, read_positions
from clog.storage.format.writers import count_writers
from clog.storage.publications.publish import kept_for_views
from clog.storage.read.cleanable import CleanableBounds, cleanable_bounds, retention_held
from clog.storage.read.scan import partitions_named
from clog.storage.readers import Holds, read_holds
from clog.storage.store.contract import Store, WrappingStore
from clog.storage.types.evolve import schema_words

SWEEP_AFTER_MS: Final = 86_400_000
"""Files written this long ago that are in no manifest will never be committed (COMMIT.md §5)."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment, for people.

    Attributes:
        base_offset: the first offset it covers.
        next_offset: one past the last offset it covers.
        records: those that readers see; fewer than offsets, once it was compacted.
        size_bytes: record bytes: 12 + key + value + headers of each record.
        largest_timestamp: of its records, in ms since 1970; None while it is empty.
        active: whether appends are added to it; all others are sealed.
        clean: whether it is below the first dirty offset.
        delete_horizon_ms: when the first of its tombstones may be removed; None without one that a
            pass has met.
        dead_rows: rows that count neither as records nor in the size: nobody sees them, but their
            bytes remain until a rewrite.
    """

    base_offset: int
    next_offset: int
    records: int
    size_bytes: int
    largest_timestamp: int | None
    active: bool
    clean: bool
    delete_horizon_ms: int | None
    dead_rows: int

    __repr__ = with_times


class PartitionDescription(TypedDict):
    """One partition of a `LogDescription`. Bytes are record bytes, as `SegmentInfo.size_bytes`.

    Attributes:
        partition: its number.
        log_start_offset: the smallest offset that can be read.
        end_offset: the offset that the next record gets.
        stable_offset: where readers end: at the first undecided record, or at the end offset.
        first_dirty_offset: where the next pass of the cleaner begins; below it each key is unique.
        covered_offset: below it masks mark what no table shows; None in a log without masks.
        first_uncleanable_offset: where such a pass ends now: at the active segment, or at records
            younger than ``min.compaction.lag.ms``.
        active_base_offset: the first offset of the active segment.
        segments: their number, including the active one.
        records: rows that are not dead; in a segment that is kept, also those below the log start.
        dead_rows: rows that nobody sees, and whose bytes wait for a rewrite.
        tombstones: records with a null value, including dead ones.
        size_bytes: bytes of these records.
        clean_bytes: bytes of the segments that end at or below the first dirty offset.
        cleanable_bytes: bytes of the segments from there to the first uncleanable offset.
        active_bytes: bytes of the active segment.
        dirty_ratio: cleanable ÷ (clean + cleanable) bytes, from 0 to 1; a pass is due above
            ``min.cleanable.dirty.ratio``.
        delete_horizon_ms: when the first tombstone may be removed, in ms since 1970; None without
            one that a pass has met.
        delete_retention_offset: the base of the first segment with such a tombstone: below it no
            tombstone waits for its delete horizon.
        delete_retention_bytes: bytes of the segments below that offset.
        markers: offsets without a record, at which transactions with undecided records ended;
            passes remove them.
        uncleanable: why the last pass failed; None if it did not.
        retention_held: which segment keeps ``retention.ms`` from removing anything, and until when,
            in words; None if none does.
    """

    partition: int
    log_start_offset: int
    end_offset: int
    stable_offset: int
    first_dirty_offset: int
    covered_offset: int | None
    first_uncleanable_offset: int
    active_base_offset: int
    segments: int
    records: int
    dead_rows: int
    tombstones: int
    size_bytes: int
    clean_bytes: int
    cleanable_bytes: int
    active_bytes: int
    dirty_ratio: float
    delete_horizon_ms: int | None
    delete_retention_offset: int | None
    delete_retention_bytes: int | None
    markers: int
    uncleanable: str | None
    retention_held: str | None


class TransactionDescription(TypedDict):
    """A transaction of a `LogDescription` that has not ended; see `TransactionInfo`.

    Attributes:
        id: the transaction id.
        epoch: how often the id had already been taken over.
        number: which of the epoch's transactions it is.
        state: open, prepared, committed or aborted; the last two until all its logs know.
        started_ms: when it began.
        timeout_ms: how long after that any writer may abort it.
        home: the URL of the log that decides; None: this one.
        first_offsets: by partition, as text, the first offset of an undecided record.
        held_offsets: by partition, as text, from which offset on readers wait for its end.
    """

    id: str
    epoch: int
    number: int
    state: str
    started_ms: int
    timeout_ms: int
    home: str | None
    first_offsets: dict[str, int]
    held_offsets: dict[str, int]


class ViewDescription(TypedDict):
    """What a `LogDescription` says about a published view: what is kept for it. A view that is up
    to date moves on within a little more than ``file.delete.delay.ms``.

    Attributes:
        format: delta or iceberg.
        version: the oldest version of the log that it needs.
        table_version: the newest version of the view that was begun.
        since_ms: since when it has needed that version of the log.
        objects: number of objects that are kept for it alone, past their time.
        size_bytes: their size in the store.
        overdue_ms: how long the first of them has been kept past its time.
        is_stuck: whether the view should no longer need them: it is not published any more.
    """

    format: str
    version: int
    table_version: int
    since_ms: int
    objects: int
    size_bytes: int
    overdue_ms: int
    is_stuck: bool


class KeptDescription(TypedDict):
    """What a `LogDescription` says about a version that a named cut needs.

    Attributes:
        cut: the name of the cut.
        home: the URL of its home log.
        version: the version.
        since_ms: when the cut was computed.
        until_ms: when it may be deleted; None: when it is dropped.
        objects: number of objects that would have been deleted if not for it and for later versions
            that are kept.
        size_bytes: their size in the store.
    """

    cut: str
    home: str
    version: int
    since_ms: int
    until_ms: int | None
    objects: int
    size_bytes: int


class LogDescription(TypedDict):
    """What `Log.describe` returns, and ``clog describe --json`` prints. Times are ms since 1970.

    Attributes:
        url: the root, without secrets.
        log_id: 32 hex digits that no other log has.
        created_ms: when the log was created.
        version: the described version, which is the newest.
        committed_ms: when it was committed.
        oldest_readable_version: the oldest one that ``Log.table(at=…)`` takes.
        orphan_floor: files begun before this version and never committed may be deleted.
        snapshot_version: the version of the newest snapshot; None before the first.
        partitions: their number.
        partitioner: the hash that places keys.
        schema: the types of keys and values, as in a file for ``clog create --schema``.
        config: every config in effect, as text, by Kafka's name.
        config_overrides: the configs that were set.
        objects: number of data objects that the version refers to.
        object_bytes: their size in the store.
        released_bytes: size of the files that the version no longer needs, and the cleaner deletes.
        committers: how many handles committed in the 10 s before the newest commit, or had others
            commit their proposals.
        waits: how long proposed appends wait: the fields of `Waits`; None if not requested, if
            nothing may be proposed, or if the folder may not be listed.
        writers: number of producers, streams and transactional writers that are remembered.
        holds: by reader for which the cleaner waits: until when; empty in a log that allows none.
        takes_offsets: whether records come with their offsets, as in a mirror: nothing else is
            appended then.
        sources: positions in sources that are not logs, for recently used transaction ids: by id,
            source and partition, as text, the next offset to read.
        transactions: those that have not ended, according to the log.
        views: what is kept for published views, one for each format; empty in a log without any.
        kept: the versions that named cuts need, oldest first.
        members: the URLs of the logs that transactions of this log have written.
        cuts: the names of the cuts that have this log as their home.
        erasures: pending ones, by id, with what each waits for.
        partition_details: one for each partition, in order.
    """

    url: str
    log_id: str
    created_ms: int
    version: int
    committed_ms: int
    oldest_readable_version: int
    orphan_floor: int
    snapshot_version: int | None
    partitions: int
    partitioner: str
    schema: dict[str, object]
    config: dict[str, str]
    config_overrides: dict[str, str]
    objects: int
    object_bytes: int
    released_bytes: int
    committers: int
    waits: dict[str, int] | None
    writers: int
    holds: dict[str, int]
    takes_offsets: bool
    sources: dict[str, dict[str, dict[str, int]]]
    transactions: list[TransactionDescription]
    views: list[ViewDescription]
    kept: list[KeptDescription]
    members: list[str]
    cuts: list[str]
    erasures: dict[str, str]
    partition_details: list[PartitionDescription]


def segment_infos(handle: Handle, partition: int) -> list[SegmentInfo]:
    """Returns the segments of a partition at the newest version; see `Log.segments`."""
    (p,) = partitions_named(handle.refresh().head, partition, url=handle.store.url)
    manifest = handle.manifest()
    segments, dirty = manifest.segments[p], manifest.first_dirty[p]
    return [
        SegmentInfo(
            base_offset=s.base,
            next_offset=s.next,
            records=s.rows,
            size_bytes=s.size_bytes,
            largest_timestamp=s.max_timestamp_ms if s.chunks else None,
            active=i == len(segments) - 1,
            clean=i < len(segments) - 1 and s.next <= dirty,
            delete_horizon_ms=_horizon_ms(s),
            dead_rows=s.dead_rows,
        )
        for i, s in enumerate(segments)
    ]


def _horizon_ms(segment: Segment) -> int | None:
    """Returns the earliest delete horizon of a tombstone in the segment (S23), None without one."""
    horizons = [ms for c in segment.chunks for ms in (c.horizon_min, c.horizon) if ms > NONE]
    return min(horizons, default=None)


def describe(handle: Handle, *, waits: bool = False) -> LogDescription:
    """Describes the log at its newest version, in values that JSON has. Costs the requests for its
    manifest, those of `count_writers` and `read_holds`, and a GET for each document of positions in
    sources that are not logs; with ``waits`` also those of `Handle.waits`.
    """
    tip = handle.refresh()
    manifest, now_ms = handle.manifest(), handle.clock.now_ms()
    head = manifest.head
    config = LogConfig.from_overrides(head.config)
    objects = {c.object.path: c.object.size_bytes for _, c in manifest.chunks()}
    kept = kept_for_views(manifest, config.file_delete_delay_ms, now_ms=now_ms)
    markers = Counter(marker.partition for marker in manifest.markers)
    holds = read_holds(handle, config, now_ms=now_ms)
    return {
        "url": handle.store.url,
        "log_id": head.log.log_id,
        "created_ms": head.log.created_ms,
        "version": manifest.version,
        "committed_ms": manifest.time_ms,
        "oldest_readable_version": head.oldest_readable,
        "orphan_floor": head.orphan_floor,
        "snapshot_version": head.snapshot.version if head.snapshot else None,
        "partitions": head.log.partitions,
        "partitioner": head.log.partitioner,
        "schema": schema_words(head.log.schema),
        "config": config.as_dict(),
        "config_overrides": dict(head.config),
        "objects": len(objects),
        "object_bytes": sum(objects.values()),
        "released_bytes": sum({r.path: r.size_bytes for r in manifest.released}.values()),
        "committers": handle.committers(),
        "waits": _waits(handle) if waits else None,
        "writers": handle.with_pages(tip, lambda at: count_writers(handle.writer_pages, at.head)),
        "holds": {h.name: h.until_ms for h in holds.holds},
        "takes_offsets": head.takes_offsets,
        "sources": handle.with_pages(tip, lambda at: _sources(handle.store, at.head)),
        "transactions": [
            {
                "id": entry.name.id,
                "epoch": entry.name.epoch,
                "number": entry.name.number,
                "state": entry.state,
                "started_ms": entry.started_ms,
                "timeout_ms": entry.timeout_ms,
                "home": entry.home_url,
                "first_offsets": {str(p): offset for p, offset in entry.first.items()},
                "held_offsets": {str(p): offset for p, offset in entry.holds.items()},
            }
            for entry in head.unended
        ],
        "views": [
            cast("ViewDescription", {"format": name} | asdict(mine)) for name, mine in kept.items()
        ],
        "kept": kept_for_cuts(manifest, config.file_delete_delay_ms, now_ms=now_ms),
        "members": sorted(head.members.values()),
        "cuts": sorted(head.cuts),
        "erasures": {
            name: pending_reason(manifest, one, config, holds, now_ms=now_ms)
            for name, one in manifest.erasures.items()
        },
        "partition_details": [
            _partition(
                manifest,
                cleanable_bounds(manifest, p, config, now_ms=now_ms),
                markers[p],
                retention_held(manifest, p, config, now_ms=now_ms),
            )
            for p in range(head.log.partitions)
        ],
    }


def _waits(handle: Handle) -> dict[str, int] | None:
    found = handle.waits()
    return None if found is None else asdict(found)


def _sources(store: Store, head: Head) -> dict[str, dict[str, dict[str, int]]]:
    states = {w.writer_id: w.transaction for w in head.writers if w.transaction is not None}
    found = {
        name: foreign_of(read_positions(store, state.positions)) for name, state in states.items()
    }
    return {
        name: {
            source: {str(p): at.offset for p, at in mine.items()}
            for source, mine in sources.items()
        }
        for name, sources in found.items()
        if sources
    }


def kept_for_cuts(manifest: Manifest, delay_ms: int, *, now_ms: int) -> list[KeptDescription]:
    """Returns what named cuts keep, the oldest version first: what it keeps includes the rest."""
    keeps = sorted(manifest.head.kept.values(), key=lambda keep: keep.version)
    due = overdue(manifest, delay_ms, now_ms=now_ms) if keeps else ()
    of_versions = sorted((r.version, r.size_bytes) for r in due)
    of_last = [*accumulate((size for _, size in reversed(of_versions)), initial=0)]
    found: list[KeptDescription] = []
    for keep in keeps:
        held = len(due) - bisect_right(of_versions, keep.version, key=itemgetter(0))
        found.append(
            {
                "cut": keep.name,
                "home": keep.home_url,
                "version": keep.version,
                "since_ms": keep.time_ms,
                "until_ms": None if keep.until_ms == NONE else keep.until_ms,
                "objects": held,
                "size_bytes": of_last[held],
            }
        )
    return found


def _partition(
    manifest: Manifest, b: CleanableBounds, markers: int, held: str | None
) -> PartitionDescription:
    p = b.partition
    segments = manifest.segments[p]
    chunks = [c for s in segments for c in s.chunks]
    uncleanable = manifest.uncleanable.get(p)
    covered = manifest.covered[p] if manifest.covered else 0
    has_masks = manifest.head.masked != NONE
    horizons = {i: ms for i, s in enumerate(segments) if (ms := _horizon_ms(s)) is not None}
    # The delete retention point: below it no tombstone still waits for its horizon.
    point = min(horizons, default=None)
    retained = None if point is None else sum(s.size_bytes for s in segments[:point])
    return {
        "partition": p,
        "log_start_offset": manifest.head.partitions.start[p],
        "end_offset": manifest.head.partitions.end[p],
        "stable_offset": manifest.head.stable_offset(p),
        "first_dirty_offset": b.first_dirty,
        "covered_offset": covered if has_masks else None,
        "first_uncleanable_offset": b.first_uncleanable,
        "active_base_offset": segments[-1].base,
        "segments": len(segments),
        "records": sum(s.rows for s in segments),
        "dead_rows": sum(s.dead_rows for s in segments),
        "tombstones": sum(c.tombstones for c in chunks),
        "size_bytes": sum(s.size_bytes for s in segments),
        "clean_bytes": b.clean_bytes,
        "cleanable_bytes": b.cleanable_bytes,
        "active_bytes": segments[-1].size_bytes,
        "dirty_ratio": b.dirty_ratio,
        "delete_horizon_ms": min(horizons.values(), default=None),
        "delete_retention_offset": None if point is None else segments[point].base,
        "delete_retention_bytes": retained,
        "markers": markers,
        "uncleanable": uncleanable.reason if uncleanable else None,
        "retention_held": held,
    }


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """One commit.

    Attributes:
        version: the version that it made.
        time_ms: when, in ms since 1970.
        operation: what it did: ``append``, ``clean``, ``alter`` …
        records: how many it appended.
        tombstones: how many of these have a null value.
        size_bytes: record bytes of these.
        object_bytes: size of the data objects that contain them.
        writers: the producers, streams and transactional writers that appended in it.
        first_dirty: by partition, where the next pass begins, if the commit changed that, as the
            last commit of a pass does.
    """

    version: int
    time_ms: int
    operation: str
    records: int
    tombstones: int
    size_bytes: int
    object_bytes: int
    writers: tuple[str, ...]
    first_dirty: dict[int, int]

    __repr__ = with_times


def history(handle: Handle, tip: Commit, start: int) -> Iterator[CommitInfo]:
    """Yields commits from ``start`` (or the first open block) to the tip, oldest first; one GET
    each, and a few to find the closed blocks.
    """
    store = handle.store
    with handle.standing.unless_gone():
        first = max(start, first_open_version(store))
    for version in range(first, tip.version + 1):
        try:
            record = read_commit(store, version).record
        except FileNotFoundError:
            continue  # Deleted with its block.
        yield info_of(record, edit_of(store, record))


def info_of(record: EditRecord, edit: Edit) -> CommitInfo:
    """Returns what a commit did."""
    chunks = [c for _, c in edit.add.chunks] if edit.add else []
    return CommitInfo(
        version=record.version,
        time_ms=record.time_ms,
        operation=record.operation,
        records=sum(c.rows for c in chunks),
        tombstones=sum(c.tombstones for c in chunks),
        size_bytes=sum(c.size_bytes for c in chunks),
        object_bytes=sum({c.object.path: c.object.size_bytes for c in chunks}.values()),
        writers=tuple(by.entry.writer_id for by in edit.writers),
        first_dirty=dict(edit.first_dirty),
    )


@dataclass(frozen=True, slots=True)
class CommitEffect:
    """What one commit did besides appending.

    Attributes:
        version: the version that it made.
        removed_records: records that readers saw before it, and do not see after it; those below
            the log start count until their segment is removed.
        removed_bytes: record bytes of these.
        rewritten_bytes: size of the data objects with which it replaced others.
        size_bytes: record bytes of the log after it.
        dirty_bytes: those of them in segments that end above their first dirty offset.
    """

    version: int
    removed_records: int
    removed_bytes: int
    rewritten_bytes: int
    size_bytes: int
    dirty_bytes: int


class CommitWalk:
    """The commits of a log from a version on, with their effects, each once, as they are made; the
    caller refreshes the handle.
    """

    def __init__(self, handle: Handle, start: int) -> None:
        self._handle = handle
        self._next = start
        self._before: Manifest | None = None
        self._sizes: dict[int, tuple[int, int]] = {}

    def new(self) -> Iterator[tuple[CommitInfo, CommitEffect | None]]:
        """Yields the commits up to the handle's tip that were not yielded yet, oldest first, with
        one GET each, and the first time those of a manifest. Commits with an unreadable predecessor
        have no effect; those deleted with their block are left out. Raises VersionExpiredError if
        versions expired in the meantime.
        """
        store, tip = self._handle.store, self._handle.tip
        for version in range(max(self._next, first_open_version(store)), tip.version + 1):
            if self._before is None and version > tip.head.oldest_readable:
                self._before = self._handle.manifest_at(version - 1)
            record = read_commit(store, version).record
            edit = edit_of(store, record)
            effect = None
            if self._before is not None:
                before = self._before
                self._before = apply(
                    before, edit, commit_id=record.commit_id, time_ms=record.time_ms
                )
                size_bytes, dirty_bytes = self._sized(before, self._before)
                effect = _effect(before, edit, self._before, size_bytes, dirty_bytes)
            self._next = version + 1
            yield info_of(record, edit), effect

    def _sized(self, before: Manifest, after: Manifest) -> tuple[int, int]:
        """Returns the bytes of the log, and the dirty ones; sums anew only what changed."""
        for p, segments in enumerate(after.segments):
            dirty = after.first_dirty[p]
            is_same = segments is before.segments[p] and dirty == before.first_dirty[p]
            if not is_same or p not in self._sizes:
                sizes = [(s.size_bytes, s.next > dirty) for s in segments]
                whole = sum(size for size, _ in sizes)
                self._sizes[p] = whole, sum(size for size, is_dirty in sizes if is_dirty)
        whole, dirty = map(sum, zip(*self._sizes.values(), strict=True))
        return whole, dirty


def _effect(
    before: Manifest, edit: Edit, after: Manifest, size_bytes: int, dirty_bytes: int
) -> CommitEffect:
    touched = edit.rewritten_partitions()
    appended = [c for p, c in (edit.add.chunks if edit.add else ()) if p in touched]
    old = {path for r in edit.replace for path, _ in r.sources}
    made = {c.object for r in edit.replace for c in r.chunks if c.object.path not in old}
    came: list[Segment | Chunk] = [*(s for p in touched for s in before.segments[p]), *appended]
    left = [s for p in touched for s in after.segments[p]]
    return CommitEffect(
        version=after.version,
        removed_records=sum(one.rows for one in came) - sum(s.rows for s in left),
        removed_bytes=sum(one.size_bytes for one in came) - sum(s.size_bytes for s in left),
        rewritten_bytes=sum(o.size_bytes for o in made),
        size_bytes=size_bytes,
        dirty_bytes=dirty_bytes,
    )


def pending_reason(
    manifest: Manifest, one: ErasureEntry, config: LogConfig, holds: Holds, *, now_ms: int
) -> str:
    """Returns what an erasure waits for, in words."""
    if one.reason:
        return one.reason
    if one.kills and (name := undecided_below(manifest.head, one.bounds)):
        return (
            f"transaction {name!r} is still open and may contain such records: clog describe"
            " URL transactions shows it, clog alter URL --abort ends it"
        )
    if one.killed == NONE:
        return "the cleaner's next round marks its records dead"
    if one.gone == NONE:
        due_ms = tombstones_due_ms(one, config, holds)
        if due_ms > now_ms:
            if name := _tombstone_holder(one, config, holds):
                return (
                    f"the reader {name!r} holds its tombstones until {moment(due_ms)} at the latest"
                )
            return (
                f"its tombstones stay until {moment(due_ms)}, delete.retention.ms after the records"
                " were removed, so that followers see the delete"
            )
        return "the cleaner's next round removes its tombstones"
    if one.rewritten == NONE:
        return "the cleaner's next round rewrites the objects that held its records"
    left = [r for r in manifest.released if r.version <= one.rewritten]
    if left:
        needed = max(r.version for r in left)
        due_ms = one.rewritten_ms + config.file_delete_delay_ms
        held = _holder(manifest.head, needed, holds, due_ms=due_ms, now_ms=now_ms)
        return (
            held or f"replaced objects stay readable until {moment(due_ms)}, file.delete.delay.ms"
        )
    if one.swept == NONE:
        due_ms = one.rewritten_ms + SWEEP_AFTER_MS
        return f"uncommitted files are swept after {moment(due_ms)}"
    return "the cleaner's next round writes the receipt"


def undecided_below(head: Head, bounds: Mapping[int, int]) -> str:
    """Returns the id of a transaction that holds back records below the bounds; "" if none."""
    start = head.partitions.start
    for entry in head.unended:
        if any(max(at, start[p]) < bounds.get(p, 0) for p, at in entry.holds.items()):
            return entry.name.id
    return ""


def tombstones_due_ms(one: ErasureEntry, config: LogConfig, holds: Holds) -> int:
    """Returns when the tombstones of an erasure may be removed, as far as is known."""
    horizon_ms = one.killed_ms + config.delete_retention_ms
    held = (holds.tombstone_ms(p, end, horizon_ms) for p, end in one.told.items())
    return max(held, default=horizon_ms)


def _tombstone_holder(one: ErasureEntry, config: LogConfig, holds: Holds) -> str:
    """Returns the reader that keeps them longer than the config does; "" if none does."""
    horizon_ms = one.killed_ms + config.delete_retention_ms
    held = (hold for p, end in one.told.items() for hold in holds.of_tombstones(p, end))
    return next((hold.name for hold in held if hold.until_ms > horizon_ms), "")


def _holder(head: Head, needed: int, holds: Holds, *, due_ms: int, now_ms: int) -> str:
    """Returns what keeps a version below this one, cuts first; "" if nothing does."""
    for keep in head.kept.values():
        if keep.version < needed:
            until = "" if keep.until_ms == NONE else f" until {moment(keep.until_ms)}"
            return (
                f"the cut {keep.name!r} of {keep.home_url} keeps version {keep.version}{until};"
                f" clog snapshot {keep.home_url} --drop {keep.name} releases it"
            )
    for name, pins in head.pins.items():
        if any(pin.version < needed for pin in pins):
            return (
                f"the {name} view still shows an earlier version; it is published again, and"
                " releases that one file.delete.delay.ms later; clog publish --withdraw --format"
                f" {name} withdraws it"
            )
    for hold in holds.holds:
        if hold.version < needed and hold.until_ms > now_ms:
            until = moment(holds.version_ms(needed, due_ms))
            return (
                f"the reader {hold.name!r} holds version {hold.version} until {until} at the latest"
            )
    return ""


class Written(NamedTuple):
    """What the newest commits of a log wrote, for estimates of what it costs: sums over commits
    within ``span_ms``; bytes of snapshots are those of the last one.

    ``stored_bytes`` are the log's now, with files that wait to be deleted; ``reads_back``: each
    commit is read after it was written, as exclusive creates of the store are only probed.
    """

    span_ms: int
    commits: int
    commit_bytes: int
    appends: int
    append_objects: int
    append_bytes: int
    other_objects: int
    other_bytes: int
    snapshots: int
    snapshot_bytes: int = 0
    columns: int = 0
    columns_bytes: int = 0
    stored_bytes: int = 0
    reads_back: bool = False

    @classmethod
    def by(cls, handle: Handle, commits: int) -> Self:
        """Returns what the newest commits wrote, without the creation; a GET for each and for each
        large edit, those of a manifest, and one LIST.
        """
        store, tip, manifest = handle.store, handle.tip, handle.manifest()
        metered = _Metered(store)
        found = []
        for version in range(max(1, tip.version + 1 - commits), tip.version + 1):
            try:
                found.append(read_commit(metered, version))
            except FileNotFoundError:
                continue  # Deleted with its block.
        edits = [edit_of(store, commit.record) for commit in found]
        added = [{c.object for _, c in e.add.chunks} for e in edits if e.add]
        made = [_rewritten(edit) for edit in edits if edit.replace]
        columns = _columns_written(found)
        return cls(
            span_ms=found[-1].record.time_ms - found[0].record.time_ms if found else 0,
            commits=len(found),
            commit_bytes=metered.size_bytes,
            appends=len(added),
            append_objects=sum(map(len, added)),
            append_bytes=sum(o.size_bytes for objects in added for o in objects),
            other_objects=sum(map(len, made)),
            other_bytes=sum(o.size_bytes for objects in made for o in objects),
            snapshots=len({c.head.snapshot for c in found} - {None}),
            snapshot_bytes=_snapshot_bytes(store, tip),
            columns=len(columns),
            columns_bytes=sum(ref.size_bytes for ref in columns),
            stored_bytes=sum(r.size_bytes for r in manifest.released)
            + sum(manifest.files().values()),
            reads_back=not store.create_is_proven,
        )


class _Metered(WrappingStore):
    """Counts the bytes that are read."""

    size_bytes = 0

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        data = self.inner.get(path, start, end)
        self.size_bytes += len(data)
        return data


def _columns_written(commits: Sequence[Commit]) -> set[ColumnsRef]:
    """Returns the documents of columns that were written for these commits."""
    made_at = {commit.version - 1 for commit in commits}
    refs = {commit.head.partitions.ref for commit in commits}
    return {ref for ref in refs if ref is not None and ref.version in made_at}


def _snapshot_bytes(store: Store, tip: Commit) -> int:
    ref = tip.head.snapshot
    found = [] if ref is None else store.list(snapshot_path(ref.version))
    return sum(snapshot.size_bytes for snapshot in found)


def _rewritten(edit: Edit) -> set[ObjectRef]:
    """Returns the objects of a replacement that were not among its sources."""
    old = {path for r in edit.replace for path, _ in r.sources}
    return {c.object for r in edit.replace for c in r.chunks if c.object.path not in old}
