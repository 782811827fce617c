"""One log, looked after round by round: its share of what `cleaner.Cleaner` does, and a plan of its
next round.

A round calls `begin`, then `candidates`, then `clean` for each of them, then `end`. A failing step
undoes none before it. A log that failed waits before it is tried again, longer each time and for a
random time, so that many logs on one store that was away do not come back all at the same time
(S28). A log that was replaced by another one is opened anew for the next round (S47).

If another cleaner replaced the segments of a pass first, the partition is skipped for a while: the
pass has lost one group, and would lose the next ones as well.

A round is two lists of duties (`duties.Duty`), one before its passes and one after: the rows that
`LogRound` makes. A new duty is a row there.

*A dry run* (`plan_round`) asks the same duties what is due, and writes nothing, not even a probe of
the clocks. Everything but the passes is exact: each step is applied to the manifest in memory, and
the next one sees the result. Passes are shown as they are planned: which range is mapped, which
segments are looked at. What dies in them is known only when their keys are read, and so is what is
rewritten for the layout and released after them; these are shown as of before the passes. Merges
are those before and after coalescing, which leaves a chunk for every ``object.bytes`` of a run.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from typing import Any

from clog.cleaner.duties import Duty, Work
from clog.cleaner.duties.commit_blocks import close_blocks
from clog.cleaner.duties.erasing import carry_out, end_swept, swept
from clog.cleaner.duties.layout import (
    Run,
    coalesce,
    coalesce_first,
    due_merges,
    due_rewrites,
    due_sharing,
    due_trims,
    may_be_due,
    merge_segments,
    mergeable,
    merging,
    trim,
)
from clog.cleaner.duties.publishing import Publishing
from clog.cleaner.duties.retention import (
    BACKOFF_MS,
    PASSING_TROUBLE,
    Expired,
    MaintenanceResult,
    Removal,
    apply_retention,
    due_removals,
    idle_partitions,
    is_resting,
    let_go,
    removing,
    seal_idle,
    sealing,
    set_uncleanable,
)
from clog.cleaner.duties.sweep import (
    ProposalSweep,
    SweepSchedule,
    WatchedClock,
    due_released,
    sweep_orphans,
    sweep_released,
    with_room,
)
from clog.cleaner.masks import keep_masks
from clog.cleaner.passes.judge import JudgedChunk, JudgedSegment
from clog.cleaner.passes.offset_map import KeyHasher
from clog.cleaner.passes.rewriter import RewritePolicy, grouped
from clog.cleaner.passes.run_pass import PassProgress, PassTools, run_pass
from clog.cleaner.selection import (
    Candidate,
    Choosing,
    PassPlan,
    PassResult,
    Reason,
    Stretch,
    candidate,
    candidates,
    held_in,
)
from clog.cleaner.threads import CleanerThreads, MeteredStore, NotedStore, StoppedError, Throttle
from clog.storage import Log, Reader
from clog.storage.commit.committer import keep_reserve
from clog.storage.commit.handle import Handle
from clog.storage.commit.proposals import Waits
from clog.storage.config.log_config import NO_DEFAULTS, LogConfig, fitting_defaults, with_defaults
from clog.storage.env import Clock, dataclass
from clog.storage.errors import (
    ClogError,
    CorruptionError,
    LogReplacedError,
    StoreUnavailableError,
    VersionExpiredError,
)
from clog.storage.format import documents
from clog.storage.format.chunks import Segment
from clog.storage.format.documents import NONE
from clog.storage.format.manifest import Manifest
from clog.storage.read.cleanable import retention_held
from clog.storage.read.scan import KeyIndexCache
from clog.storage.readers import NO_HOLDS, Holds, read_holds
from clog.storage.transactions.several import finish_all

logger = logging.getLogger(__name__)

REST_MS_MAX = 300_000
"""A log that keeps failing is tried again at least this often; so is a partition on which another
cleaner is faster.
"""


@dataclass(slots=True)
class Rest:
    """Waiting after failures: 15 s, doubled up to `REST_MS_MAX`, less a random part up to half."""

    until_ms: int = 0
    failures: int = 0

    def failed(self, now_ms: int, uniform: Callable[[], float]) -> None:
        """Waits, longer than the last time."""
        wait_ms = min(REST_MS_MAX, BACKOFF_MS << min(self.failures, 10))
        self.failures += 1
        self.until_ms = now_ms + int(wait_ms * (1 - uniform() / 2))

    def succeeded(self) -> None:
        """Ends the waiting."""
        self.until_ms = self.failures = 0


_CUTS_CHECK_MS = 3_600_000
"""How often the homes of named cuts are asked which cuts they still keep."""
_BLOCKS_CHECK_MS = 86_400_000
"""How often blocks of old commits are checked, the first time immediately: that is cheap."""
_RECEIPTS_MS = 600_000
"""How often receipts are tried, the first time immediately: each try lists all files."""
_PROPOSALS_MS = 60_000
"""Proposals are swept at most this often, if there are any."""
_INDEX_BYTES = 32 << 20
"""Memory for the key indexes of a log with masks: enough for six million keys."""
_HOLDS_SEEN_MS = 60_000
"""For choosing, the holds of readers are read at most this often; a plan reads them anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    """The settings for all logs of one cleaner.

    Args:
        defaults: configs for logs that do not set them, by their names as configs of a log.
        compaction: whether to do passes; everything else is done without them, too
            (``log.cleaner.enable``).
        retention_check_ms: minimum interval between two checks of retention; 0: each round
            (``log.retention.check.interval.ms``).
        hash_algorithm: how keys are hashed: ``xxh3_128``, seeded at random for each pass, or the
            cryptographic ``blake2b`` (``log.cleaner.hash.algorithm``).
        watch_readers_ms: minimum interval between two reads of a log's named readers, for metrics;
            0: they are never read.
    """

    defaults: Mapping[str, str] = field(default_factory=dict)
    compaction: bool = True
    retention_check_ms: int = 0
    hash_algorithm: str = "xxh3_128"
    watch_readers_ms: int = 0


class LogRound:
    """One log, and when it was last looked after. ``clean`` may be called from several threads.

    Attributes:
        log: the log, or the one that has replaced it.
        rest: its rest after rounds that failed, by the clock's monotonic time.
        due_ms: the earliest time of the next round, by the same clock.
    """

    def __init__(
        self,
        log: Log,
        clock: Clock,
        throttle: Throttle,
        settings: CleanerSettings,
    ) -> None:
        self.clock = clock
        self.rest = Rest()
        self.due_ms = clock.monotonic_ms()
        self._lock = threading.Lock()
        self._counts = Counter[str]()
        self._throttle = throttle
        self._settings = settings
        self._damage: list[Exception] = []
        self._begin_with(log)

    def _begin_with(self, log: Log) -> None:
        self.log = log
        self._handle = log.handle
        self._is_replaced = False
        self._wall = WatchedClock(log.handle, self.clock)
        self._publishing: Publishing | None = None
        self._store = MeteredStore(log.handle.store, self._throttle)
        self._done_ms: dict[str, int] = {}
        self._idle_at: dict[str, int] = {}
        self._holds = NO_HOLDS
        self._readers: Sequence[Reader] = ()
        self._partition_rest: dict[int, Rest] = {}
        self._choosing = Choosing()
        self._chosen: Sequence[Candidate] = ()
        self._preparing = threading.Lock()
        self._is_prepared = False
        self._left_out: set[str] = set()
        self._held_up: Mapping[int, str] = {}
        self._indexes: KeyIndexCache | None = None
        self._stuck: set[str] = set()
        self._maintaining, self._ending = self._duties()

    def _duties(self) -> tuple[Sequence[Duty], Sequence[Duty]]:
        """Returns the duties of a round before its passes (R1, R2) and after them (R4, R5)."""
        # Coalescing joins chunks within a segment only; then they may be few enough to merge again.
        merges = Duty("merge", due_merges, merge_segments, of_version=due_merges)
        proposals = self._proposals = ProposalSweep()
        before = (
            Duty("finish", lambda work: work.head.unended, self._finish_transactions, asked=True),
            Duty(
                *("seal", idle_partitions, seal_idle),
                counts=lambda sealed: {"segments_sealed": len(sealed)},
            ),
            Duty(
                *("retention", due_removals, apply_retention),
                counts=_removal_counts,
                every_ms=self._settings.retention_check_ms,
            ),
            Duty("trim", due_trims, trim, of_version=due_trims, reads_records=True),
            # Then a publication reads no keys.
            Duty(
                *("mask", lambda work: work.head.pins, self._keep_masks),
                asked=True,
                reads_records=True,
            ),
            Duty("publish", self._has_views, self._publish, counts=Counter, asked=True),
        )
        after = (
            Duty(
                *("cuts", lambda work: work.head.kept or work.head.cuts, let_go),
                every_ms=_CUTS_CHECK_MS,
                asked=True,
            ),
            Duty("sweep", due_released, _release),
            Duty(
                *("erase", _has_erasures, carry_out),
                counts=lambda rows: {"records_erased": rows},
                asked=True,
                reads_records=True,
            ),
            Duty(
                *("receipts", lambda work: _has_erasures(work) and swept(work), end_swept),
                counts=lambda ended: {"erasures_done": ended},
                every_ms=_RECEIPTS_MS,
                asked=True,
                reads_records=True,
            ),
            Duty(
                *("proposals", proposals.is_due, proposals.run), every_ms=_PROPOSALS_MS, asked=True
            ),
            merges,
            Duty(
                *("coalesce", due_rewrites, coalesce),
                of_version=may_be_due,
                counts=_rewritten_counts,
                reads_records=True,
            ),
            merges,
            Duty("mask", _keeps_masks, self._keep_masks, asked=True, reads_records=True),
            Duty("snapshot", run=lambda work: work.handle.take_owed_snapshot()),
            Duty("blocks", _has_block, close_blocks, every_ms=_BLOCKS_CHECK_MS, asked=True),
            Duty("orphans", SweepSchedule().is_due, sweep_orphans, asked=True),
            Duty("reserve", run=_keep_reserve),
        )
        return before, after

    def _do(self, duties: Sequence[Duty], work: Work) -> dict[str, Any]:
        """Does duties; returns the result of each that was run, by name."""
        done: dict[str, Any] = {}
        noted = NotedStore(work.store)
        with noted.leaves_room(work.handle):
            self._do_each(duties, replace(work, given_store=noted), done)
        return done

    def _do_each(self, duties: Sequence[Duty], work: Work, done: dict[str, Any]) -> None:
        """Does duties; puts the result of each into ``done``, by name."""
        for duty in duties:
            if duty.every_ms and not self._is_time(duty.name, duty.every_ms):
                continue
            if (duty.asked and not duty.due(work)) or not self._may_be_due(duty, work):
                continue
            did = None
            try:
                did = done[duty.name] = duty.run(work)
            except CorruptionError as e:
                if not duty.reads_records:
                    raise
                self._damage.append(e)
            if duty.every_ms:
                self._done_ms[duty.name] = self.clock.monotonic_ms()
            if did and (counts := duty.counts(did)):
                with self._lock:
                    self._counts.update(counts)

    def _may_be_due(self, duty: Duty, work: Work) -> bool:
        """Returns whether anything may be due at this version; asks once for each that has none."""
        if duty.of_version is None:
            return True
        version = work.manifest.version  # What is asked below may be newer.
        if self._idle_at.get(duty.name) == version:
            return False
        if duty.of_version(work):
            return True
        self._idle_at[duty.name] = version
        return False

    def take_counts(self) -> Counter[str]:
        """Returns the counts of what duties did since the last call."""
        with self._lock:
            taken, self._counts = self._counts, Counter()
        return taken

    def _is_time(self, what: str, interval_ms: int) -> bool:
        """Returns whether something was last done at least that long ago, or never."""
        done_ms = self._done_ms.get(what)
        return done_ms is None or self.clock.monotonic_ms() - done_ms >= interval_ms

    def _work(self, now_ms: int) -> Work:
        return Work(self._handle, now_ms, self._store, self._settings.defaults)

    def now_ms(self) -> int:
        """Returns the time by which decisions are made (`WatchedClock.now_ms`)."""
        return self._wall.now_ms()

    def begin(self) -> MaintenanceResult:
        """Begins a round: R1 and R2."""
        self._damage.clear()
        if self._is_replaced:
            self._begin_with(Log(self._handle.opened_anew()))
        done = self.maintain()
        self._warn_of_defaults()
        self._warn_of_held_retention()
        return done

    def maintain(self) -> MaintenanceResult:
        """Does R1 and R2: ends transactions that others left (S50), seals idle segments (S8),
        applies retention (S31-S35), trims (S37), and publishes the table if that is due (S63).
        If the disk is full, makes room first (`sweep`).
        """
        return with_room(self._work(self.clock.now_ms()), self._maintained)

    def _maintained(self) -> MaintenanceResult:
        head = self._handle.refresh().head
        head.log.check_writable(where=self._handle.store.url)  # Even if nothing is due.
        done = self._do(self._maintaining, self._work(self.now_ms()))
        views, removals = done.get("publish", Counter()), done.get("retention", ())
        return MaintenanceResult(
            sealed=done["seal"],
            expired=[r.expired for r in removals],
            published=views["publications"],
            withdrawn=views["views_withdrawn"],
            refused=views["publications_refused"],
        )

    def readers(self) -> Sequence[Reader]:
        """Returns the named readers, at most ``watch_readers_ms`` old, if they are watched."""
        every_ms = self._settings.watch_readers_ms
        if every_ms and self._is_time("readers", every_ms):
            self._done_ms["readers"] = self.clock.monotonic_ms()
            try:
                self._readers = self.log.readers()
            except (ClogError, OSError) as e:
                logger.warning("the readers of %s cannot be listed: %s", self.log.url, e)
        return self._readers

    @property
    def lags_ms(self) -> Mapping[str, int]:
        """For each format, how long its published view has been behind the log."""
        return {} if self._publishing is None else dict(self._publishing.lags_ms)

    @property
    def waits(self) -> Waits:
        """How long proposed appends have been waiting, as of the last sweep of proposals; none
        wait if there has been nothing to sweep since.
        """
        proposals, work = self._proposals, self._work(self.clock.now_ms())
        is_over = self._is_time("proposals", _PROPOSALS_MS) and not proposals.is_due(work)
        return Waits() if is_over else proposals.waits

    def candidates(self, *, force: bool) -> list[Candidate]:
        """Returns the partitions to clean now; without ``force``, none that failed lately."""
        if not (self._settings.compaction or force):
            return []
        now_ms, manifest = self.now_ms(), self._handle.manifest()
        config = self.config(manifest)
        if self._is_time("holds", _HOLDS_SEEN_MS):
            self._holds = _holds(self._handle, config, now_ms)
            self._done_ms["holds"] = self.clock.monotonic_ms()
        found = self._choosing.candidates(
            manifest, config, now_ms=now_ms, force=force, holds=self._holds
        )
        if not force:
            found = [c for c in found if not self._rests(manifest, c.partition)]
        self._chosen = found
        return found

    def before_passes(self) -> None:
        """Coalesces what the passes over the candidates would each read again, if that is cheaper.
        Done once a round; other threads wait.
        """
        with self._preparing:
            if not self._is_prepared:
                self._is_prepared = True
                first = Duty(
                    "coalesce",
                    run=partial(coalesce_first, chosen=self._chosen),
                    counts=_rewritten_counts,
                    reads_records=True,
                )
                self._do([first], self._work(self.clock.now_ms()))

    def after_passes(self) -> None:
        """Notes that the next pass is one of another round."""
        self._is_prepared = False

    def plan(
        self, partition: int, *, force: bool, stretch: Stretch | None = None
    ) -> PassPlan | None:
        """Plans a pass at the newest version; returns None if there is no longer a reason for one:
        another cleaner may have cleaned the partition since it was chosen.
        """
        self._handle.refresh()
        manifest = self._handle.manifest()
        now_ms = self.now_ms()  # After the refresh: no horizon counts from before its record.
        config = self.config(manifest)
        holds = _holds(self._handle, config, now_ms)
        found = candidate(manifest, config, partition, now_ms=now_ms, force=force, holds=holds)
        if found is None:
            return None
        if found.bounds.reset:
            recorded, start = manifest.first_dirty[partition], found.bounds.first_dirty
            logger.warning(
                "partition %d of %s: first dirty offset %d is outside the log; starting at %d",
                *(partition, self.log.url, recorded, start),
            )
        held = held_in(holds, partition, now_ms=now_ms)
        return PassPlan(manifest, found, config, now_ms, held, stretch)

    def clean(
        self,
        partition: int,
        threads: CleanerThreads,
        progress: PassProgress,
        *,
        force: bool,
        stretch: Stretch | None = None,
    ) -> PassResult | None:
        """Does one pass; returns None if there is no longer a reason for it, or if it failed and
        the partition is uncleanable (S28). The caller ends a pass over a ``stretch``.
        """
        handle = self._handle
        plan = self.plan(partition, force=force, stretch=stretch)
        if plan is None or self._throttle.stopping():
            return None
        tools = PassTools(
            threads=threads,
            throttle=self._throttle,
            hasher=KeyHasher(handle.ids.seed(), self._settings.hash_algorithm),
            clock=handle.clock,
            new_id=handle.ids.new_id,
            progress=progress,
            check_clock=self.now_ms,
        )
        try:
            result = run_pass(handle, plan, tools)
        except (*PASSING_TROUBLE, StoppedError):
            raise
        except Exception as e:  # noqa: BLE001 - the others continue (S28)
            handle.standing.check()  # A deleted log has no uncleanable partition.
            self.fail_pass(plan, e)
            return None
        if stretch is None:
            self.end_pass(plan, result)
        return result

    def fail_pass(self, plan: PassPlan, cause: Exception) -> None:
        """Makes the partition uncleanable (S28) and logs why, with a traceback if unforeseen."""
        reason = f"{type(cause).__name__}: {cause}"
        unforeseen = None if isinstance(cause, ClogError | FileNotFoundError) else cause
        logger.error(
            "partition %d of %s is uncleanable: %s",
            plan.partition,
            self.log.url,
            reason,
            exc_info=unforeseen,
        )
        set_uncleanable(self._handle, plan.partition, reason, now_ms=plan.now_ms)

    def end_pass(self, plan: PassPlan, result: PassResult) -> None:
        """Makes the partition cleanable again; lets it rest if another cleaner works on it, or if
        its tombstones wait for records that the pass could not reach.
        """
        is_in_vain = (
            plan.candidate.reason is Reason.TOMBSTONES and not result.stats.groups_committed
        )
        self.rest_after(result, is_in_vain=is_in_vain)
        set_uncleanable(self._handle, plan.partition, None, now_ms=plan.now_ms)

    def rest_after(self, result: PassResult, *, is_in_vain: bool = False) -> None:
        """Lets the partition rest if another cleaner works on it or the pass did nothing."""
        if result.complete and not is_in_vain:
            self._partition_rest.pop(result.partition, None)
        else:
            mine = self._partition_rest.setdefault(result.partition, Rest())
            mine.failed(self.clock.monotonic_ms(), self._handle.ids.uniform)

    def end(self) -> None:
        """Does R4 and R5: deletes dead objects (S27), rewrites chunks that have held dead rows for
        long (S46), coalesces, merges and keeps masks up to date; once a day closes blocks of old
        commits and looks for objects that were never committed.
        """
        self._do(self._ending, self._work(self.now_ms()))
        if self._damage:
            raise self._damage[0]

    def sweep_released(self) -> None:
        """Deletes objects that were replaced more than ``file.delete.delay.ms`` ago (S27)."""
        sweep_released(self._work(self.clock.now_ms()))

    def _has_views(self, work: Work) -> bool:
        """Returns whether a view is or was published."""
        is_published = work.config.published_formats or work.head.pins
        return bool(is_published) or self._publishing is not None

    def _publish(self, work: Work) -> Counter[str]:
        if self._publishing is None:
            self._publishing = Publishing(work.handle, self.clock, work.defaults)
        return self._publishing.run(work)

    def _keep_masks(self, work: Work) -> int:
        """Keeps the masks up to date; returns how many records were judged."""
        if self._indexes is None:
            seed = work.head.log.key_seed
            self._indexes = KeyIndexCache(work.store, seed=seed, cache_bytes=_INDEX_BYTES)
        self._indexes.inner = work.store  # Each round has its own.
        with suppress(VersionExpiredError):  # The next round plans from a newer one.
            return keep_masks(work.handle, self._indexes)
        return 0

    def config(self, manifest: Manifest) -> LogConfig:
        """Returns the log's effective configs: its own, then the cleaner's (S42, S45)."""
        return with_defaults(manifest.head.config, self._settings.defaults)

    def failed(self, cause: Exception) -> None:
        """Notes that the round failed: the log rests, unless another one has replaced it."""
        if isinstance(cause, LogReplacedError):
            self._is_replaced = True
            self.rest.succeeded()
        else:
            self.rest.failed(self.clock.monotonic_ms(), self._handle.ids.uniform)

    def _finish_transactions(self, work: Work) -> None:
        """Ends transactions that others left (S50); warns once of each that nothing will end."""
        waiting = finish_all(work.handle)
        stuck = {f"{w.info.id!r}, epoch {w.info.epoch}: {w.reason}" for w in waiting if w.is_stuck}
        for text in sorted(stuck - self._stuck):
            logger.warning(
                "readers of %s wait at an undecided transaction, id %s", self.log.url, text
            )
        self._stuck = stuck

    def _warn_of_defaults(self) -> None:
        """Logs which of the cleaner's defaults contradict the log's configs, when that changes."""
        overrides, defaults = self._handle.tip.head.config, self._settings.defaults
        left_out = defaults.keys() - overrides.keys() - fitting_defaults(overrides, defaults).keys()
        for name in sorted(left_out - self._left_out):
            logger.warning(
                "the default %s=%s is not applied to %s, because it contradicts the log's own"
                " configs; set %s on the log, or change one of them",
                *(name, defaults[name], self.log.url, name),
            )
        self._left_out = left_out

    def _warn_of_held_retention(self) -> None:
        """Logs which segments hold up retention, when that changes."""
        manifest, now_ms = self._handle.manifest(), self.clock.now_ms()
        config = self.config(manifest)
        found = {
            p: why
            for p in range(manifest.head.log.partitions)
            if (why := retention_held(manifest, p, config, now_ms=now_ms))
        }
        for p, why in found.items():
            if self._held_up.get(p) != why:
                logger.warning(
                    "retention of partition %d of %s is held up: %s", p, self.log.url, why
                )
        self._held_up = found

    def _rests(self, manifest: Manifest, partition: int) -> bool:
        mine = self._partition_rest.get(partition)
        if mine is not None and self.clock.monotonic_ms() < mine.until_ms:
            return True
        return is_resting(manifest, partition, now_ms=self.clock.now_ms())


def _release(work: Work) -> None:
    with_room(work, partial(sweep_released, work))


def _rewritten_counts(runs: Sequence[Run]) -> dict[str, int]:
    rows = Counter[str]()
    for run in runs:
        counted = "records_materialised" if run.has_dead else "records_coalesced"
        rows[counted] += run.live_rows
    return rows


def _removal_counts(removals: Sequence[Removal]) -> dict[str, int]:
    return {
        "retention_records": sum(r.records for r in removals),
        "retention_bytes": sum(r.size_bytes for r in removals),
    }


def _keeps_masks(work: Work) -> bool:
    """Returns whether masks are wanted; where they were once made, they are kept."""
    head = work.head
    return bool(head.pins) or head.masked != NONE or work.config.table_masks == "true"


def _has_erasures(work: Work) -> bool:
    return bool(work.manifest.erasures)


def _has_block(work: Work) -> bool:
    return work.handle.tip.version >= documents.BLOCK_VERSIONS


def _keep_reserve(work: Work) -> None:
    with suppress(StoreUnavailableError):  # The next round tries again.
        keep_reserve(work.handle.store, lambda: sum(work.manifest.files().values()))


def _holds(handle: Handle, config: LogConfig, now_ms: int) -> Holds:
    may_hold = config.reader_hold_max_ms > 0
    return read_holds(handle, config, now_ms=now_ms) if may_hold else NO_HOLDS


@dataclass(frozen=True, slots=True)
class PlannedRewrite:
    """Chunks that are read and written anew, without what is below the log start."""

    partition: int
    base_offset: int
    next_offset: int
    chunks: int
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PlannedPass:
    """A pass: it maps the keys of ``map_records``, and looks at the keys of ``segments``, which
    have ``records`` and ``size_bytes``; it writes at most that much. Going by their current bytes,
    ``segments_merged`` are left of them; in fact fewer, as bytes after cleaning count (S25).
    ``records_marked`` of them are already dead. In chunks with ``markable_records`` the pass only
    marks what dies, if that is little; it rewrites the others.
    """

    partition: int
    reason: str
    dirty_ratio: float
    first_dirty_offset: int
    first_uncleanable_offset: int
    map_records: int
    segments: int
    segments_merged: int
    records: int
    size_bytes: int
    records_marked: int
    markable_records: int


@dataclass(frozen=True, slots=True)
class PlannedMerge:
    """Neighbouring segments that become one, without reading or writing their chunks."""

    partition: int
    base_offset: int
    next_offset: int
    segments: int
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PlannedRound:
    """A whole round. ``materialised`` is rewritten without its dead rows (S46); ``deleted`` are
    paths of objects. ``resting`` are partitions that would have a pass if one had not failed
    lately (S28). ``coalesced_first`` is coalesced before the passes, ``coalesced`` after them.
    ``cuts`` is what retention removes; no named cut is among them.
    """

    sealed: Sequence[int]
    cuts: Sequence[Expired]
    trims: Sequence[PlannedRewrite]
    coalesced_first: Sequence[PlannedRewrite]
    passes: Sequence[PlannedPass]
    resting: Sequence[int]
    materialised: Sequence[PlannedRewrite]
    coalesced: Sequence[PlannedRewrite]
    merged: Sequence[PlannedMerge]
    deleted: Sequence[str]
    deleted_bytes: int


def plan_round(
    handle: Handle,
    *,
    now_ms: int,
    force: bool = False,
    compaction: bool = True,
    defaults: Mapping[str, str] = NO_DEFAULTS,
) -> PlannedRound:
    """Plans the next round with the process's ``defaults``; costs the opening of a version."""
    handle.refresh()
    work = Work(handle, now_ms, None, defaults, planned=handle.manifest())
    if sealed := idle_partitions(work):
        work = work.after(sealing(work, sealed))
    if removals := due_removals(work):
        work = work.after(removing(work, removals))
    eligible, resting = _eligible(work, force=force, compaction=compaction)
    merges = due_merges(work)
    merged = work.after(merging(work, merges)) if merges else work
    first = due_sharing(merged, eligible)
    runs = due_rewrites(merged, first=first)
    merges += mergeable(merged.manifest, work.config, _chunks_after(runs, work.config))
    policy = RewritePolicy(work.config, now_ms)
    deleted = due_released(work)
    return PlannedRound(
        sealed=sealed,
        cuts=[r.expired for r in removals],
        trims=[_rewrite(run) for run in due_trims(work)],
        coalesced_first=[_rewrite(run) for run in first],
        passes=[_pass(work.manifest, c, policy) for c in eligible],
        resting=resting,
        materialised=[_rewrite(run) for run in runs if run.has_dead],
        coalesced=[_rewrite(run) for run in runs if not run.has_dead],
        merged=[_merge(*merge) for merge in merges],
        deleted=[r.path for r in deleted],
        deleted_bytes=sum(r.size_bytes for r in deleted),
    )


def _eligible(work: Work, *, force: bool, compaction: bool) -> tuple[list[Candidate], list[int]]:
    """Returns the candidates for a pass, and the partitions that would be but rest."""
    if not (compaction or force):
        return [], []
    config, now_ms, manifest = work.config, work.now_ms, work.manifest
    holds = _holds(work.handle, config, now_ms)
    found = candidates(manifest, config, now_ms=now_ms, force=force, holds=holds)
    if force:  # An operator does not have to wait.
        return found, []
    resting = {c.partition for c in found if is_resting(manifest, c.partition, now_ms=now_ms)}
    return [c for c in found if c.partition not in resting], sorted(resting)


def _rewrite(run: Run) -> PlannedRewrite:
    return PlannedRewrite(
        partition=run.partition,
        base_offset=run.base,
        next_offset=run.next,
        chunks=len(run.chunks),
        records=sum(c.rows for c in run.chunks),
        size_bytes=run.size_bytes,
    )


def _chunks_after(coalesced: Sequence[Run], config: LogConfig) -> Callable[[Segment], int]:
    """Returns a function: how many chunks a segment has once these runs are coalesced."""
    fewer = {
        run.chunks[0].identity: len(run.chunks) - -(-run.size_bytes // config.object_bytes)
        for run in coalesced
    }
    return lambda s: len(s.chunks) - sum(fewer.get(c.identity, 0) for c in s.chunks)


def _merge(p: int, segments: Sequence[Segment]) -> PlannedMerge:
    return PlannedMerge(
        partition=p,
        base_offset=segments[0].base,
        next_offset=segments[-1].next,
        segments=len(segments),
        records=sum(s.rows for s in segments),
        size_bytes=sum(s.size_bytes for s in segments),
    )


def _pass(manifest: Manifest, chosen: Candidate, policy: RewritePolicy) -> PlannedPass:
    b = chosen.bounds
    sealed = [s for s in manifest.segments[b.partition][:-1] if s.next <= b.first_uncleanable]
    unread = (JudgedSegment(s, tuple(map(JudgedChunk, s.chunks))) for s in sealed)
    return PlannedPass(
        partition=b.partition,
        reason=chosen.reason.value,
        dirty_ratio=b.dirty_ratio,
        first_dirty_offset=b.first_dirty,
        first_uncleanable_offset=b.first_uncleanable,
        map_records=sum(s.rows for s in sealed if s.next > b.first_dirty),
        segments=len(sealed),
        segments_merged=len(list(grouped(unread, policy.config, covered=b.first_uncleanable))),
        records=sum(s.rows for s in sealed),
        size_bytes=sum(s.size_bytes for s in sealed),
        records_marked=sum(s.dead_rows for s in sealed),
        markable_records=sum(
            c.live_rows for s in sealed for c in s.chunks if policy.may_mark_in(c)
        ),
    )
