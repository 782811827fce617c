"""One log, looked after round by round: its share of what `cleaner.Cleaner` does.

`maintain`, then `candidates`, each of them by `clean`, then `tidy`. None of it is lost when the
next fails; a log that failed waits before it is tried again, longer each time, and at random, so
that many logs on one store that was away do not come back at once (S28).

Where two cleaners work on one log, who finds its sources changed lets the partition rest: it may
waste one group, not one after the other.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from clog.cleaner.blocks import close_blocks
from clog.cleaner.clock_skew import check_clock, is_comparable
from clog.cleaner.coalescing import coalesce
from clog.cleaner.maintenance import apply_retention, seal_idle
from clog.cleaner.mapping import KeyHasher
from clog.cleaner.materialising import materialise
from clog.cleaner.merging import merge_segments
from clog.cleaner.metered_store import MeteredStore, StoppedError, Throttle
from clog.cleaner.pass_plan import PassPlan
from clog.cleaner.pass_progress import PassProgress
from clog.cleaner.passes import PassTools, run_pass
from clog.cleaner.relayout import Run
from clog.cleaner.selection import Candidate, candidate, candidates
from clog.cleaner.stats import PassResult
from clog.cleaner.sweep import sweep_orphans, sweep_released
from clog.cleaner.trimming import trim
from clog.cleaner.uncleanable import BACKOFF_MS, is_resting, mark
from clog.storage import Log
from clog.storage.clock import Clock
from clog.storage.config import LogConfig, with_defaults
from clog.storage.errors import ClogError, CorruptionError, StoreUnavailableError
from clog.storage.manifest import Manifest

logger = logging.getLogger(__name__)

CLOCK_CHECK_MS = 600_000
"""The clock is compared with the store's this often."""
ORPHANS_MS = 86_400_000
"""A cleaner that runs for so long looks for objects that were never committed."""
REST_MS_MAX = 300_000
"""A log that keeps failing is tried again at least this often; so is a partition on which somebody
else is faster.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepSettings:
    """What holds for all logs of one cleaner.

    Args:
        defaults: configs, by a log's names, of logs that do not set them (S45).
        compaction: False: no passes, all else goes on (``log.cleaner.enable``).
        retention_check_ms: retention is looked at this often, 0 is each round
            (``log.retention.check.interval.ms``).
        hash_algorithm: of keys (S19).
    """

    defaults: Mapping[str, str] = field(default_factory=dict)
    compaction: bool = True
    retention_check_ms: int = 0
    hash_algorithm: str = "xxh3_128"


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


class Upkeep:
    """One log, and when it was last looked after. ``clean`` may be called from several threads.

    Attributes:
        log: the log.
        rest: after rounds that failed, by the clock's monotonic time.
    """

    def __init__(
        self, log: Log, clock: Clock, throttle: Throttle, settings: UpkeepSettings
    ) -> None:
        self.log = log
        self.clock = clock
        self.rest = Rest()
        self._handle = log.handle
        self._throttle = throttle
        self._settings = settings
        self._orphans_swept_ms = clock.now_ms()
        self._clock_checked_ms: int | None = None
        self._retention_checked_ms: int | None = None
        self._partition_rest: dict[int, Rest] = {}
        self._damage: list[Exception] = []

    def maintain(self) -> None:
        """Seals what is idle (S8), applies retention (S31-S35), trims (S37)."""
        self._damage.clear()
        self._handle.refresh()
        now_ms, since_ms = self.clock.now_ms(), self.clock.monotonic_ms()
        self._check_clock(now_ms, since_ms)
        seal_idle(self._handle, now_ms=now_ms, defaults=self._settings.defaults)
        if _is_due(self._retention_checked_ms, since_ms, self._settings.retention_check_ms):
            apply_retention(self._handle, now_ms=now_ms, defaults=self._settings.defaults)
            self._retention_checked_ms = since_ms
        self._rewritten(lambda: trim(self._handle, self._store()))

    def candidates(self, *, force: bool) -> list[Candidate]:
        """What may be cleaned now; without ``force`` not what failed lately."""
        if not (self._settings.compaction or force):
            return []
        now_ms, manifest = self.clock.now_ms(), self._handle.manifest()
        found = candidates(manifest, self.config(manifest), now_ms=now_ms, force=force)
        return found if force else [c for c in found if not self._rests(manifest, c.partition)]

    def plan(self, partition: int, *, force: bool) -> PassPlan | None:
        """What a pass would clean, at the newest version; None where there is no reason for one any
        more: others may have cleaned the partition since it was chosen.
        """
        self._handle.refresh()
        manifest = self._handle.manifest()
        now_ms = self.clock.now_ms()  # After the look: no horizon counts from before its record.
        config = self.config(manifest)
        found = candidate(manifest, config, partition, now_ms=now_ms, force=force)
        if found is None:
            return None
        if found.bounds.reset:
            recorded, start = manifest.first_dirty[partition], found.bounds.first_dirty
            logger.warning(
                "partition %d of %s: first dirty offset %d is outside the log; starting at %d",
                *(partition, self.log.url, recorded, start),
            )
        return PassPlan(manifest, found, config, now_ms)

    def clean(
        self, partition: int, map_bytes: int, progress: PassProgress, *, force: bool
    ) -> PassResult | None:
        """One pass; None where there is no reason for it any more, or it failed and the partition
        was marked (S28).

        Raises:
            StoreUnavailableError: that says nothing about the partition.
        """
        handle = self._handle
        plan = self.plan(partition, force=force)
        if plan is None or self._throttle.stopping():
            return None
        tools = PassTools(
            map_bytes=map_bytes,
            throttle=self._throttle,
            hasher=KeyHasher(handle.ids.seed(), self._settings.hash_algorithm),
            clock=handle.clock,
            new_id=handle.ids.new_id,
            progress=progress,
        )
        try:
            result = run_pass(handle, plan, tools)
        except (StoreUnavailableError, StoppedError):
            raise
        except Exception as e:  # noqa: BLE001 - the others go on (S28)
            self.fail_pass(plan, e)
            return None
        self.end_pass(plan, result)
        return result

    def fail_pass(self, plan: PassPlan, cause: Exception | str) -> None:
        """Marks the partition (S28), and logs why; the way there only of what nobody foresaw."""
        if isinstance(cause, str):
            reason, unforeseen = cause, None
        else:
            reason = f"{type(cause).__name__}: {cause}"
            unforeseen = None if isinstance(cause, ClogError | FileNotFoundError) else cause
        logger.error(
            "partition %d of %s is uncleanable: %s",
            plan.partition,
            self.log.url,
            reason,
            exc_info=unforeseen,
        )
        mark(self._handle, plan.partition, reason, now_ms=plan.now_ms)

    def end_pass(self, plan: PassPlan, result: PassResult) -> None:
        """Clears the partition's mark; lets it rest where another cleaner works on it."""
        if result.complete:
            self._partition_rest.pop(result.partition, None)
        else:
            mine = self._partition_rest.setdefault(result.partition, Rest())
            mine.failed(self.clock.monotonic_ms(), self._handle.ids.uniform)
        mark(self._handle, plan.partition, None, now_ms=plan.now_ms)

    def tidy(self) -> Counter[str]:
        """Deletes what is dead (S27), rewrites what has held dead rows for long (S46), coalesces
        and merges; once a day looks for what never lived. Returns how many records were rewritten,
        and why.

        Raises:
            CorruptionError, FileNotFoundError: a step of the round found it; all else is done.
        """
        handle, now_ms, defaults = self._handle, self.clock.now_ms(), self._settings.defaults
        store = self._store()
        sweep_released(handle, now_ms=now_ms, defaults=defaults, store=store)
        counts = Counter(
            records_materialised=self._rewritten(
                lambda: materialise(handle, store, now_ms=now_ms, defaults=defaults)
            ),
            records_coalesced=self._rewritten(lambda: coalesce(handle, store, now_ms=now_ms)),
        )
        merge_segments(handle, defaults=defaults)
        if now_ms - self._orphans_swept_ms >= ORPHANS_MS:
            sweep_orphans(handle, now_ms=now_ms, store=store)
            close_blocks(handle, now_ms=now_ms, defaults=defaults, store=store)
            self._orphans_swept_ms = now_ms
        if self._damage:
            raise self._damage[0]
        return counts

    def _rewritten(self, step: Callable[[], Sequence[Run]]) -> int:
        """How many records a step rewrote; what it finds damaged keeps nothing else from its work,
        and is told at the end of the round (S28).
        """
        try:
            return sum(run.live_rows for run in step())
        except (CorruptionError, FileNotFoundError) as e:
            self._damage.append(e)
            return 0

    def config(self, manifest: Manifest) -> LogConfig:
        """What holds for the log: its own configs, then the cleaner's defaults (S42, S45)."""
        return with_defaults(manifest.head.config, self._settings.defaults)

    def failed(self) -> None:
        """The round failed: the log rests."""
        self.rest.failed(self.clock.monotonic_ms(), self._handle.ids.uniform)

    def _store(self) -> MeteredStore:
        return MeteredStore(self._handle.store, self._throttle)

    def _check_clock(self, now_ms: int, since_ms: int) -> None:
        if is_comparable(self.clock) and _is_due(self._clock_checked_ms, since_ms, CLOCK_CHECK_MS):
            check_clock(self._handle, now_ms=now_ms)
            self._clock_checked_ms = since_ms

    def _rests(self, manifest: Manifest, partition: int) -> bool:
        mine = self._partition_rest.get(partition)
        if mine is not None and self.clock.monotonic_ms() < mine.until_ms:
            return True
        return is_resting(manifest, partition, now_ms=self.clock.now_ms())


def _is_due(last_ms: int | None, now_ms: int, interval_ms: int) -> bool:
    return last_ms is None or now_ms - last_ms >= interval_ms
