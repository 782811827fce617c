"""One log, looked after round by round: its share of what `cleaner.Cleaner` does.

`begin`, then `candidates`, each of them by `clean`, then `end`. None of it is lost when the
next fails; a log that failed waits before it is tried again, longer each time, and at random, so
that many logs on one store that was away do not come back at once (S28). One that another stands in
place of is opened anew for the next round (S47).

Where two cleaners work on one log, the one that finds its sources changed lets the partition rest:
it wastes one group, not one after the other.

*Publishing* (S63). A format is due ``table.publish.interval.ms`` after it was looked at last, and
at once when a log start offset has risen: no view shows for longer what was deleted. One that
somebody published by hand is brought up to date each ``file.delete.delay.ms``, or it would hold
back the sweep for ever. What is not published, whoever refuses it, is told and counted, holds
nothing else up, and is tried again. A view that cannot follow is withdrawn, rather than show what
was deleted:

- at once where a log start offset has risen and it is refused for good;
- where it has not shown for ``delete.retention.ms`` what the log has: so long does a deleted key
  stay in the log itself, at least;
- where a pin is ``file.delete.delay.ms`` old and nobody came for its version of a view that shows
  nothing.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from clog.cleaner.duties.commit_blocks import close_blocks
from clog.cleaner.duties.layout import (
    Gathered,
    Room,
    Run,
    coalesce,
    gather,
    gatherable,
    is_due,
    is_worth_coalescing,
    merge_segments,
    purge_dead_rows,
    size_bytes_of,
    trim,
)
from clog.cleaner.duties.retention import (
    BACKOFF_MS,
    PASSING_TROUBLE,
    Expired,
    MaintenanceResult,
    apply_retention,
    expired,
    is_resting,
    seal_idle,
    set_uncleanable,
)
from clog.cleaner.duties.sweep import (
    SweepSchedule,
    WatchedClock,
    sweep_orphans,
    sweep_released,
    with_room,
)
from clog.cleaner.masks import keep_masks
from clog.cleaner.passes.offset_map import KeyHasher
from clog.cleaner.passes.run_pass import PassProgress, PassTools, run_pass
from clog.cleaner.passes.stats import PassResult
from clog.cleaner.selection import Candidate, Choosing, PassPlan, Stretch, candidate
from clog.cleaner.threads import CleanerThreads, MeteredStore, StoppedError, Throttle
from clog.storage import Log, Reader
from clog.storage.commit.committer import keep_reserve
from clog.storage.commit.handle import Handle
from clog.storage.config.log_config import LogConfig, fitting_defaults, with_defaults
from clog.storage.env import Clock
from clog.storage.errors import (
    ClogError,
    CommitConflictError,
    CommitStateUnknownError,
    CorruptionError,
    InvalidInputError,
    LogReplacedError,
    StoreUnavailableError,
    VersionExpiredError,
)
from clog.storage.format import documents
from clog.storage.format.manifest import Manifest
from clog.storage.publications.publish import Publications
from clog.storage.read.lookup import KeyIndexCache
from clog.storage.readers import NO_HOLDS, read_holds
from clog.storage.store.contract import StoreRefusedError
from clog.storage.transactions.several import finish_all
from clog.storage.views import FORMATS

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

_FOR_GOOD = (CorruptionError, FileNotFoundError, InvalidInputError, StoreRefusedError)
"""Refusals that the next try meets again, until somebody does something."""
_REFUSALS = (
    *_FOR_GOOD,
    CommitConflictError,
    CommitStateUnknownError,
    StoreUnavailableError,
    VersionExpiredError,
)


@dataclass(frozen=True, slots=True)
class Published:
    """What a look after views did: versions ``made``, views ``withdrawn``, and how many formats
    were ``refused``.
    """

    made: int = 0
    withdrawn: int = 0
    refused: int = 0

    def __add__(self, other: "Published") -> "Published":
        """Returns the sums."""
        return Published(
            self.made + other.made,
            self.withdrawn + other.withdrawn,
            self.refused + other.refused,
        )


class Publishing:
    """The views of one log, kept up. Not safe for threads.

    Attributes:
        lags_ms: by format, for how long the view has not shown what the log has, at most.
    """

    def __init__(self, handle: Handle, defaults: Mapping[str, str]) -> None:
        self._handle = handle
        self._publications = Publications(handle, defaults)
        self._tried_ms: dict[str, int] = {}
        self._starts: dict[str, list[int]] = {}
        self._told: dict[tuple[str, str], str] = {}
        self.lags_ms: dict[str, int] = {}

    def publish_due(self, config: LogConfig, *, now_ms: int) -> Published:
        """Publishes what is due, by monotonic time, and returns what that did."""
        pins, done = self._handle.tip.head.pins, Published()
        starts, wanted = list(self._handle.tip.head.partitions.start), config.published_formats
        for name in wanted:
            interval_ms = config.table_publish_interval_ms
            if (
                _is_due(self._tried_ms.get(name), now_ms, interval_ms)
                or self._starts.get(name) != starts
            ):
                self._tried_ms[name] = now_ms
                done += self._brought_up(name, config)
        for name in [name for name in pins if name in FORMATS and name not in wanted]:
            delay_ms = config.file_delete_delay_ms
            pinned_ms = self._handle.clock.now_ms() - pins[name][-1].time_ms
            is_old = pinned_ms >= delay_ms and _is_due(self._tried_ms.get(name), now_ms, delay_ms)
            if is_old:
                self._tried_ms[name] = now_ms
            if is_old or self._starts.get(name) != starts:
                done += self._brought_up(name, config, by_hand=True, is_old=is_old)
        for name in pins.keys() & set(FORMATS):
            done += self._attempt(name, "freed of its pins", self._release)[0]
        self._measure(wanted, now_ms)
        return done

    def _brought_up(
        self, name: str, config: LogConfig, *, by_hand: bool = False, is_old: bool = True
    ) -> Published:
        """Publishes a view, and withdraws it where it is refused and that is due; one ``by_hand``
        only where it ``is_old``, or shows what was deleted.
        """
        starts = list(self._handle.tip.head.partitions.start)

        def published(name: str) -> Published:
            if by_hand:
                seen = self._publications.look(name)
                if not is_old and not self._publications.shows_deleted(name):
                    return Published()
                if not seen.is_there or seen.withdrawn_ms is not None:
                    return self._withdraw(name)  # Nothing of it is there but its pin.
            return Published(made=self._publications.publish(name).published)

        done, why = self._attempt(name, "published", published)
        if why is not None and self._must_go(name, config, why):
            done += self._attempt(name, "withdrawn", self._withdraw)[0]
        if why is None or not self._publications.shows_deleted(name):
            self._starts[name] = starts
        return done

    def _must_go(self, name: str, config: LogConfig, why: Exception) -> bool:
        """Tells whether a view that was refused is to be withdrawn, as it is by now: others may
        have published it.
        """
        try:
            seen, now_ms = self._publications.look(name), self._handle.clock.now_ms()
        except _REFUSALS:
            return False  # Told already; nor could it be withdrawn.
        if seen.is_foreign:
            return False
        if seen.source is None:
            pins = self._handle.tip.head.pins.get(name, ())
            is_awaited = bool(pins) and pins[-1].view > seen.newest
            return is_awaited and now_ms - pins[-1].time_ms >= config.file_delete_delay_ms
        if isinstance(why, _FOR_GOOD) and self._publications.shows_deleted(name):
            return True
        since_ms = now_ms - config.delete_retention_ms
        return self._publications.is_behind_since(name, since_ms)

    def _withdraw(self, name: str) -> Published:
        done = self._publications.withdraw(name)
        if done.withdrawn:
            logger.warning(
                "the %s view of %s could not follow the log, and is withdrawn: it shows nothing"
                " until the log is published again",
                *(name, self._handle.store.url),
            )
        return Published(withdrawn=done.withdrawn)

    def _release(self, name: str) -> Published:
        self._publications.release(name)
        return Published()

    def _attempt(
        self, name: str, what: str, step: Callable[[str], Published]
    ) -> tuple[Published, Exception | None]:
        """Does a step; one that is refused is told, once, and counted, and holds nothing else
        up.
        """
        url = self._handle.store.url
        try:
            done = step(name)
        except _REFUSALS as e:
            if self._told.get((name, what)) != str(e):
                logger.warning("%s is not %s as %s: %s; it is tried again", url, what, name, e)
            self._told[name, what] = str(e)
            return Published(refused=1), e
        self._told.pop((name, what), None)
        return done, None

    def _measure(self, wanted: list[str], now_ms: int) -> None:
        self.lags_ms = {}
        for name in wanted:
            is_refused = (name, "published") in self._told
            is_behind = is_refused or not self._publications.is_current(name)
            self.lags_ms[name] = now_ms - self._tried_ms[name] if is_behind else 0


REST_MS_MAX = 300_000
"""A log that keeps failing is tried again at least this often; so is a partition on which somebody
else is faster.
"""


@dataclass(slots=True)
class Rest:
    """Waiting after failures: 15 s, doubled each time, up to `REST_MS_MAX`, and at random up to
    half of it less.
    """

    until_ms: int = 0
    failures: int = 0

    def failed(self, now_ms: int, uniform: Callable[[], float]) -> None:
        """Waits, longer than the last time."""
        wait_ms = min(REST_MS_MAX, BACKOFF_MS << min(self.failures, 10))
        self.failures += 1
        self.until_ms = now_ms + int(wait_ms * (1 - uniform() / 2))

    def succeeded(self) -> None:
        """Waits no more."""
        self.until_ms = self.failures = 0


_BLOCKS_CHECK_MS = 86_400_000
"""Blocks of old commits are looked at this often, the first time at once: that is cheap."""
_INDEX_BYTES = 32 << 20
"""Memory for the key indexes of a log with masks: those of six million keys."""
_HOLDS_SEEN_MS = 60_000
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
        self._indexes = KeyIndexCache(self._store(), seed=seed, cache_bytes=_INDEX_BYTES)
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
        Where the disk is full, makes room first (`sweep`).
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
        has_any = self._handle.tip.version >= documents.BLOCK_VERSIONS
        if has_any and _is_due(self._blocks_checked_ms, since_ms, _BLOCKS_CHECK_MS):
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
        if _is_due(self._holds_seen_ms, since_ms, _HOLDS_SEEN_MS):
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
