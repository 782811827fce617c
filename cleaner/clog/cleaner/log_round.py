"""One log, looked after round by round: its share of what `cleaner.Cleaner` does.

`begin`, then `candidates`, each of them by `clean`, then `end`. None of it is lost when the
next fails; a log that failed waits before it is tried again, longer each time, and at random, so
that many logs on one store that was away do not come back at once (S28). One that another stands in
place of is opened anew for the next round (S47).

Where two cleaners work on one log, the one that finds its sources changed lets the partition rest:
it wastes one group, not one after the other.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from clog.cleaner.compaction.build_map import KeyHasher
from clog.cleaner.compaction.pass_plan import PassPlan, Stretch
from clog.cleaner.compaction.pass_progress import PassProgress
from clog.cleaner.compaction.run_pass import PassTools, run_pass
from clog.cleaner.compaction.selection import Candidate, Choosing, candidate
from clog.cleaner.compaction.stats import PassResult
from clog.cleaner.masks.upkeep import keep_masks
from clog.cleaner.metered_store import MeteredStore, StoppedError, Throttle
from clog.cleaner.publishing import Publishing
from clog.cleaner.rest import Rest
from clog.cleaner.retention.apply import (
    Expired,
    MaintenanceResult,
    apply_retention,
    expired,
    seal_idle,
)
from clog.cleaner.retention.uncleanable import PASSING_TROUBLE, is_resting, set_uncleanable
from clog.cleaner.rewrite.coalescing import coalesce, is_due
from clog.cleaner.rewrite.dead_row_purge import purge_dead_rows
from clog.cleaner.rewrite.gathering import (
    Gathered,
    Room,
    gather,
    gatherable,
    is_worth_coalescing,
    size_bytes_of,
)
from clog.cleaner.rewrite.merging import merge_segments
from clog.cleaner.rewrite.relayout import Run
from clog.cleaner.rewrite.trimming import trim
from clog.cleaner.sweep.clock_skew import WatchedClock
from clog.cleaner.sweep.commit_blocks import close_blocks
from clog.cleaner.sweep.full_disk import with_room
from clog.cleaner.sweep.objects import sweep_orphans, sweep_released
from clog.cleaner.sweep.schedule import SweepSchedule
from clog.cleaner.threads import CleanerThreads
from clog.storage import Log, Reader
from clog.storage.clock import Clock
from clog.storage.commit.reserve import keep_reserve
from clog.storage.config.log_config import LogConfig, fitting_defaults, with_defaults
from clog.storage.errors import (
    ClogError,
    CorruptionError,
    LogReplacedError,
    StoreUnavailableError,
    VersionExpiredError,
)
from clog.storage.format import paths
from clog.storage.format.manifest import Manifest
from clog.storage.read.key_index_cache import KeyIndexCache
from clog.storage.readers.holds import NO_HOLDS, read_holds
from clog.storage.transactions.finishing import finish_all

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

BLOCKS_CHECK_MS = 86_400_000
"""Blocks of old commits are looked at this often, the first time at once: that is cheap."""
INDEX_BYTES = 32 << 20
"""Memory for the key indexes of a log with masks: those of six million keys."""
HOLDS_SEEN_MS = 60_000
"""For choosing, readers are asked this often at most what they hold; whoever plans asks anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    """The settings for all logs of one cleaner.

    Args:
        defaults: configs for logs that do not set them, by the logs' names.
        compaction: whether to do passes; everything else goes on without them
            (``log.cleaner.enable``).
        retention_check_ms: minimum interval between two checks of retention; 0: each round
            (``log.retention.check.interval.ms``).
        hash_algorithm: how keys are hashed: ``xxh3_128``, seeded at random for each pass, or the
            cryptographic ``blake2b`` (``log.cleaner.hash.algorithm``).
        watch_readers_ms: minimum interval between two reads of a log's named readers, for metrics;
            0: never.
    """

    defaults: Mapping[str, str] = field(default_factory=dict)
    compaction: bool = True
    retention_check_ms: int = 0
    hash_algorithm: str = "xxh3_128"
    watch_readers_ms: int = 0


class LogRound:
    """One log, and when it was last looked after. ``clean`` may be called from several threads.

    Attributes:
        log: the log; another one once that stands in its place.
        rest: after rounds that failed, by the clock's monotonic time.
        due_ms: the next round is not before, by the same.
    """

    def __init__(
        self,
        log: Log,
        clock: Clock,
        throttle: Throttle,
        settings: CleanerSettings,
        room: Room | None = None,
    ) -> None:
        self.clock = clock
        self._room = room
        self.rest = Rest()
        self.due_ms = clock.monotonic_ms()
        self._throttle = throttle
        self._settings = settings
        self._damage: list[Exception] = []
        self._begin_with(log)

    def _begin_with(self, log: Log) -> None:
        self.log = log
        self._handle = log.handle
        self._is_replaced = False
        self._wall = WatchedClock(log.handle, self.clock)
        self._sweeps = SweepSchedule()
        self._publishing = Publishing(log.handle, self._settings.defaults)
        self._blocks_checked_ms: int | None = None
        self._retention_checked_ms: int | None = None
        self._readers_seen_ms: int | None = None
        self._holds = NO_HOLDS
        self._holds_seen_ms: int | None = None
        self._readers: Sequence[Reader] = ()
        self._partition_rest: dict[int, Rest] = {}
        self._choosing = Choosing()
        self._chosen: Sequence[Candidate] = ()
        self._gathering = threading.Lock()
        self._gathered: Gathered | None = None
        self._gathered_bytes = 0
        self._coalesced_first = 0
        self._left_out: set[str] = set()
        seed = log.handle.tip.head.log.key_seed
        self._indexes = KeyIndexCache(self._store(), seed=seed, cache_bytes=INDEX_BYTES)
        self._stuck: set[str] = set()

    def now_ms(self) -> int:
        """Returns the time by which something is decided (`WatchedClock.now_ms`).

        Raises:
            ClockSkewError: this machine's clock and the store's differ too much.
        """
        return self._wall.now_ms()

    def begin(self) -> MaintenanceResult:
        """Begins a round: R1 and R2."""
        self._damage.clear()
        if self._is_replaced:
            handle = self._handle
            self._begin_with(Log(handle.opened_anew()))
        done = self.maintain()
        self._tell_of_defaults()
        return done

    def maintain(self) -> MaintenanceResult:
        """Does R1 and R2: ends transactions that others left (S50), seals what is idle (S8),
        applies retention (S31-S35), trims (S37), and publishes the table where that is due (S63).
        Where the disk is full, makes room first (`full_disk`).
        """
        return self._with_room(self._maintained)

    def _maintained(self) -> MaintenanceResult:
        self._handle.refresh()
        now_ms, since_ms = self.now_ms(), self.clock.monotonic_ms()
        self._finish_transactions()
        sealed = seal_idle(self._handle, now_ms=now_ms, defaults=self._settings.defaults)
        gone: Sequence[Expired] = ()
        if _is_due(self._retention_checked_ms, since_ms, self._settings.retention_check_ms):
            gone = expired(
                apply_retention(self._handle, now_ms=now_ms, defaults=self._settings.defaults)
            )
            self._retention_checked_ms = since_ms
        self._rewritten(lambda: trim(self._handle, self._store()))
        config = with_defaults(self._handle.tip.head.config, self._settings.defaults)
        if self._handle.tip.head.pins:
            self._masked()  # Then a publication reads no keys.
        views = self._publishing.publish_due(config, now_ms=since_ms)
        return MaintenanceResult(sealed, gone, views.made, views.withdrawn, views.refused)

    def readers(self) -> Sequence[Reader]:
        """Returns the named readers, at most ``watch_readers_ms`` old, where they are watched."""
        every_ms, now_ms = self._settings.watch_readers_ms, self.clock.monotonic_ms()
        if every_ms and _is_due(self._readers_seen_ms, now_ms, every_ms):
            self._readers_seen_ms = now_ms
            try:
                self._readers = self.log.readers()
            except (ClogError, OSError) as e:
                logger.warning("the readers of %s cannot be listed: %s", self.log.url, e)
        return self._readers

    @property
    def lags_ms(self) -> Mapping[str, int]:
        """By format, for how long a published view has not shown what the log has."""
        return dict(self._publishing.lags_ms)

    def candidates(self, *, force: bool) -> list[Candidate]:
        """Returns what may be cleaned now; without ``force`` not what failed lately."""
        if not (self._settings.compaction or force):
            return []
        now_ms, manifest = self.now_ms(), self._handle.manifest()
        config = self.config(manifest)
        self._see_holds(config, now_ms)
        found = self._choosing.candidates(
            manifest, config, now_ms=now_ms, force=force, holds=self._holds
        )
        if not force:
            found = [c for c in found if not self._rests(manifest, c.partition)]
        self._chosen = found
        return found

    def before_passes(self) -> None:
        """Prepares the passes over the candidates, which would read each shared object once for
        each of them: gathers what they need of these, or coalesces first where that is the cheaper
        way. Once a round; other threads wait.
        """
        with self._gathering:
            if self._gathered is None:
                self._gathered = Gathered()
                self._gathered = self._gather(self._chosen)

    def after_passes(self) -> None:
        """Forgets what was gathered."""
        with self._gathering:
            self._gathered = None
            if self._room is not None:
                self._room.give_back(self._gathered_bytes)
            self._gathered_bytes = 0

    def _gather(self, chosen: Sequence[Candidate]) -> Gathered:
        handle, store, now_ms = self._handle, self._store(), self.clock.now_ms()
        manifest = handle.manifest()
        runs = gatherable(manifest, chosen)
        if not is_due(handle, runs, now_ms=now_ms):
            return Gathered()
        size_bytes = size_bytes_of(runs)
        if self._room is not None and self._room.take(size_bytes):
            self._gathered_bytes = size_bytes
            return gather(handle, store, manifest, runs)
        if is_worth_coalescing(runs):
            self._coalesced_first += self._rewritten(lambda: coalesce(handle, store, now_ms=now_ms))
        return Gathered()

    def plan(
        self, partition: int, *, force: bool, stretch: Stretch | None = None
    ) -> PassPlan | None:
        """Plans a pass at the newest version; None where there is no reason for one any more:
        others may have cleaned the partition since it was chosen.
        """
        self._handle.refresh()
        manifest = self._handle.manifest()
        now_ms = self.now_ms()  # After the look: no horizon counts from before its record.
        config = self.config(manifest)
        holds = read_holds(self._handle, config, now_ms=now_ms)
        found = candidate(manifest, config, partition, now_ms=now_ms, force=force, holds=holds)
        if found is None:
            return None
        if found.bounds.reset:
            recorded, start = manifest.first_dirty[partition], found.bounds.first_dirty
            logger.warning(
                "partition %d of %s: first dirty offset %d is outside the log; starting at %d",
                *(partition, self.log.url, recorded, start),
            )
        held = holds.of_partition(partition, now_ms=now_ms)
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
        """Does one pass; None where there is no reason for it any more, or it failed and the
        partition is uncleanable (S28). The end of one over a ``stretch`` is its caller's to tell.

        Raises:
            StoreUnavailableError, CommitConflictError, CommitStateUnknownError: the store or other
                writers were in the way, which says nothing about the partition.
            LogReplacedError, NotFoundError: the log was deleted meanwhile.
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
        if stretch is None and self._gathered is not None:
            plan = self._gathered.used_by(plan)
        try:
            result = run_pass(handle, plan, tools)
        except (*PASSING_TROUBLE, StoppedError):
            raise
        except Exception as e:  # noqa: BLE001 - the others go on (S28)
            handle.standing.check()  # A log that was deleted has no uncleanable partition.
            self.fail_pass(plan, e)
            return None
        if stretch is None:
            self.end_pass(plan, result)
        return result

    def fail_pass(self, plan: PassPlan, cause: Exception) -> None:
        """Makes the partition uncleanable (S28), and logs why; the way there only of what nobody
        foresaw.
        """
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
        """Makes the partition cleanable again; lets it rest where another cleaner works on it."""
        self.rest_after(result)
        set_uncleanable(self._handle, plan.partition, None, now_ms=plan.now_ms)

    def rest_after(self, result: PassResult) -> None:
        """Lets the partition rest where another cleaner works on it."""
        if result.complete:
            self._partition_rest.pop(result.partition, None)
        else:
            mine = self._partition_rest.setdefault(result.partition, Rest())
            mine.failed(self.clock.monotonic_ms(), self._handle.ids.uniform)

    def end(self) -> Counter[str]:
        """Does R4 and R5: deletes what is dead (S27), rewrites what has held dead rows for long
        (S46), coalesces, merges and keeps masks up; once a day closes blocks of old commits and
        looks for what never lived. Returns how many records were rewritten, and why.

        Raises:
            CorruptionError: a step of the round found it; all else is done.
        """
        handle, now_ms, defaults = self._handle, self.now_ms(), self._settings.defaults
        store = self._store()
        self._with_room(self.sweep_released)
        counts = Counter(
            records_materialised=self._rewritten(
                lambda: purge_dead_rows(handle, store, now_ms=now_ms, defaults=defaults)
            ),
            records_coalesced=self._coalesced_first,
        )
        self._coalesced_first = 0
        # Chunks become one within a segment only, and small ones few enough to merge once more.
        merge_segments(handle, defaults=defaults)
        counts["records_coalesced"] += self._rewritten(
            lambda: coalesce(handle, store, now_ms=now_ms)
        )
        merge_segments(handle, defaults=defaults)
        counts["records_masked"] = self._masked()
        handle.take_owed_snapshot()
        self._close_blocks(now_ms, store)
        if self._sweeps.is_due(handle, now_ms=now_ms):
            sweep_orphans(handle, now_ms=now_ms, store=store)
        with suppress(StoreUnavailableError):  # The next round tries again.
            keep_reserve(handle.store, data_bytes=sum(handle.manifest().files().values()))
        if self._damage:
            raise self._damage[0]
        return counts

    def sweep_released(self) -> None:
        """Deletes what was replaced longer than ``file.delete.delay.ms`` ago (S27)."""
        now_ms, defaults = self.clock.now_ms(), self._settings.defaults
        sweep_released(self._handle, now_ms=now_ms, defaults=defaults, store=self._store())

    def _close_blocks(self, now_ms: int, store: MeteredStore) -> None:
        since_ms = self.clock.monotonic_ms()
        has_any = self._handle.tip.version >= paths.BLOCK_VERSIONS
        if has_any and _is_due(self._blocks_checked_ms, since_ms, BLOCKS_CHECK_MS):
            close_blocks(self._handle, now_ms=now_ms, defaults=self._settings.defaults, store=store)
            self._blocks_checked_ms = since_ms

    def _with_room(self, step: Callable[[], _T]) -> _T:
        defaults = self._settings.defaults
        return with_room(self._handle, step, store=self._store(), defaults=defaults)

    def _rewritten(self, step: Callable[[], Sequence[Run]]) -> int:
        """Does a step that rewrites, and returns how many records it rewrote. Damage holds nothing
        else up, and is reported at the end of the round (S28).
        """
        try:
            return sum(run.live_rows for run in step())
        except CorruptionError as e:
            self._damage.append(e)
            return 0

    def _masked(self) -> int:
        """Keeps the masks up; returns how many records were judged."""
        try:
            return keep_masks(self._handle, self._indexes)
        except CorruptionError as e:
            self._damage.append(e)
        except VersionExpiredError:
            pass  # The next round plans from a newer one.
        return 0

    def config(self, manifest: Manifest) -> LogConfig:
        """Returns what holds for the log: its own configs, then the cleaner's defaults (S42,
        S45).
        """
        return with_defaults(manifest.head.config, self._settings.defaults)

    def failed(self, cause: Exception) -> None:
        """Notes that the round failed: the log rests, unless another one stands in its place."""
        if isinstance(cause, LogReplacedError):
            self._is_replaced = True
            self.rest.succeeded()
        else:
            self.rest.failed(self.clock.monotonic_ms(), self._handle.ids.uniform)

    def _finish_transactions(self) -> None:
        """Ends what others left (S50), and tells of each transaction that nothing will end, once.
        No request where there is none.
        """
        waiting = finish_all(self._handle)
        stuck = {f"{w.info.id!r}, epoch {w.info.epoch}: {w.reason}" for w in waiting if w.is_stuck}
        for text in sorted(stuck - self._stuck):
            logger.warning(
                "readers of %s stop before an undecided transaction, id %s", self.log.url, text
            )
        self._stuck = stuck

    def _see_holds(self, config: LogConfig, now_ms: int) -> None:
        since_ms = self.clock.monotonic_ms()
        if _is_due(self._holds_seen_ms, since_ms, HOLDS_SEEN_MS):
            self._holds = read_holds(self._handle, config, now_ms=now_ms)
            self._holds_seen_ms = since_ms

    def _tell_of_defaults(self) -> None:
        """Logs which of the cleaner's defaults contradict the log's configs, when that changes."""
        overrides, defaults = self._handle.tip.head.config, self._settings.defaults
        left_out = defaults.keys() - overrides.keys() - fitting_defaults(overrides, defaults).keys()
        for name in sorted(left_out - self._left_out):
            logger.warning(
                "the default %s=%s does not hold for %s: it contradicts the log's own configs;"
                " set %s on the log, or change one of them",
                *(name, defaults[name], self.log.url, name),
            )
        self._left_out = left_out

    def _store(self) -> MeteredStore:
        return MeteredStore(self._handle.store, self._throttle)

    def _rests(self, manifest: Manifest, partition: int) -> bool:
        mine = self._partition_rest.get(partition)
        if mine is not None and self.clock.monotonic_ms() < mine.until_ms:
            return True
        return is_resting(manifest, partition, now_ms=self.clock.now_ms())


def _is_due(last_ms: int | None, now_ms: int, interval_ms: int) -> bool:
    return last_ms is None or now_ms - last_ms >= interval_ms
