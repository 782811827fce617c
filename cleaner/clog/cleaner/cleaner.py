"""The cleaner: a side process that keeps logs small, never in a writer's way (S30).

A *round* over one log, in this order:

1. Seal active segments that are idle (S8).
2. Retention and the start offset rule (S31-S35); trimming below the low watermark (S37).
3. Passes over the eligible partitions, most urgent first, each once (`selection`, `passes`), by
   ``threads`` at a time.
4. Coalescing of what the passes left fresh, under every policy.
5. Delete objects whose delay is over (S27), and once a day what was never committed (`sweep`) and
   blocks of old commits (`blocks`).

A pass that fails leaves the log as it was; its partition is marked uncleanable with the reason and
retried with back-off, the others go on (S28).
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from clog.cleaner.blocks import close_blocks
from clog.cleaner.clock_skew import check_clock, is_comparable
from clog.cleaner.coalescing import coalesce
from clog.cleaner.maintenance import apply_retention, seal_idle
from clog.cleaner.mapping import KeyHasher
from clog.cleaner.metered_store import MeteredStore, Throttle
from clog.cleaner.passes import PassPlan, PassTools, run_pass
from clog.cleaner.selection import Candidate, candidate, candidates
from clog.cleaner.stats import PassResult
from clog.cleaner.sweep import sweep_orphans, sweep_released
from clog.cleaner.trimming import trim
from clog.cleaner.uncleanable import BACKOFF_MS, is_resting, mark
from clog.storage import Log
from clog.storage.clock import Clock
from clog.storage.config import LogConfig
from clog.storage.errors import ClogError, InvalidInputError, StoreUnavailableError
from clog.storage.offset_map import OffsetMap

logger = logging.getLogger(__name__)

CLOCK_CHECK_MS = 600_000
"""The clock is compared with the store's this often."""
ORPHANS_MS = 86_400_000
"""A cleaner that runs for so long looks for objects that were never committed."""
_NAP_MS = 250


@dataclass(slots=True)
class _Upkeep:
    """One log, and when it was last looked after. ``clock_checked_ms`` is None before the first."""

    log: Log
    clock: Clock
    orphans_swept_ms: int
    clock_checked_ms: int | None = None


class Cleaner:
    """Cleans one log or several. One thread at a time may call it; several cleaners, in one
    process or many, may work on one log.

    Args:
        logs: a log, or several.
        threads: partitions cleaned at once; they share the buffer and the I/O limit.
        dedupe_buffer_bytes: memory of all offset maps together
            (``log.cleaner.dedupe.buffer.size``), 24 bytes an entry.
        io_bytes_per_second: limit on bytes read and written by all threads
            (``log.cleaner.io.max.bytes.per.second``); None: no limit.
        clock: None: that of each log.
        backoff_ms: sleep of `run` when there was nothing to clean.
        on_pass: called after each pass, from the thread that did it.

    Raises:
        InvalidInputError: a thread's share of the buffer cannot hold one key (S18), no log, no
            thread.
    """

    def __init__(
        self,
        logs: Log | Iterable[Log],
        threads: int = 1,
        dedupe_buffer_bytes: int = 128 << 20,
        io_bytes_per_second: float | None = None,
        clock: Clock | None = None,
        *,
        backoff_ms: int = BACKOFF_MS,
        on_pass: Callable[[Log, PassResult], None] | None = None,
    ) -> None:
        if type(threads) is not int or threads < 1:
            raise InvalidInputError(f"threads={threads!r} is out of range; allowed: 1 or more")
        given = [logs] if isinstance(logs, Log) else list(logs)
        if not given:
            raise InvalidInputError("logs is empty; give the cleaner at least one log")
        if io_bytes_per_second is not None and not io_bytes_per_second > 0:
            raise InvalidInputError(
                f"io_bytes_per_second={io_bytes_per_second!r} is out of range;"
                " allowed: above 0, or None for no limit"
            )
        self._upkeep = []
        for log in given:
            its_clock = clock or log.handle.clock
            self._upkeep.append(_Upkeep(log, its_clock, its_clock.now_ms()))
        self._threads = threads
        self._map_bytes = dedupe_buffer_bytes // threads
        OffsetMap(memory_bytes=self._map_bytes)  # S18: refuses a share that holds no key
        self._clock = self._upkeep[0].clock
        self._throttle = Throttle(io_bytes_per_second, self._clock)
        self._backoff_ms = backoff_ms
        self._on_pass = on_pass
        self._stopping = threading.Event()

    def run_once(self, force: bool = False) -> list[PassResult]:  # noqa: FBT001, FBT002 - public
        """One round over each log: maintenance that is due, then every eligible partition once.

        Args:
            force: clean whatever can be cleaned, whatever the dirty ratio (S17); active segments
                and those under ``min.compaction.lag.ms`` stay out (S10, S11).

        Returns:
            What each pass did; empty where nothing was eligible.

        Raises:
            StoreUnavailableError: the file system failed, or the clocks differ too much; what was
                done until then is done.
        """
        return [result for upkeep in self._upkeep for result in self._round(upkeep, force=force)]

    def run(self) -> None:
        """Rounds until `stop` is called; sleeps where there was nothing to clean. Survives logs and
        stores that fail.
        """
        while not self._stopping.is_set():
            busy = False
            for upkeep in self._upkeep:
                try:
                    busy = bool(self._round(upkeep, force=False)) or busy
                except (ClogError, OSError):
                    logger.exception("a round over %s failed; it is repeated", upkeep.log.url)
            waited_ms = 0
            while not busy and waited_ms < self._backoff_ms and not self._stopping.is_set():
                self._clock.sleep_ms(min(_NAP_MS, self._backoff_ms - waited_ms))
                waited_ms += _NAP_MS

    def stop(self) -> None:
        """Makes `run` return after the group of segments that is under way; safe from a signal
        handler.
        """
        self._stopping.set()

    def _round(self, upkeep: _Upkeep, *, force: bool) -> list[PassResult]:
        if self._stopping.is_set():
            return []
        handle = upkeep.log.handle
        handle.refresh()
        now_ms = upkeep.clock.now_ms()
        self._check_clock(upkeep)
        seal_idle(handle, now_ms=now_ms)
        apply_retention(handle, now_ms=now_ms)
        store = MeteredStore(handle.store, self._throttle)
        trim(handle, store)
        manifest = handle.manifest()
        config = LogConfig.from_overrides(manifest.head.config)
        eligible = [
            c
            for c in candidates(manifest, config, now_ms=now_ms, force=force)
            if force or not is_resting(manifest, c.partition, now_ms=now_ms)
        ]
        try:
            results = self._passes(upkeep, eligible, force=force)
        finally:
            # Whatever failed, what is dead may go.
            sweep_released(handle, now_ms=now_ms)
        coalesce(handle, store, now_ms=now_ms)
        if now_ms - upkeep.orphans_swept_ms >= ORPHANS_MS:
            sweep_orphans(handle, now_ms=now_ms)
            close_blocks(handle, now_ms=now_ms)
            upkeep.orphans_swept_ms = now_ms
        return results

    def _check_clock(self, upkeep: _Upkeep) -> None:
        if is_comparable(upkeep.clock):
            checked_ms, since_ms = upkeep.clock_checked_ms, upkeep.clock.monotonic_ms()
            if checked_ms is None or since_ms - checked_ms >= CLOCK_CHECK_MS:
                check_clock(upkeep.log.handle, now_ms=upkeep.clock.now_ms())
                upkeep.clock_checked_ms = since_ms

    def _passes(
        self, upkeep: _Upkeep, eligible: Sequence[Candidate], *, force: bool
    ) -> list[PassResult]:
        """Step 3; a store that failed is reported after all partitions have had their turn."""
        failures: list[StoreUnavailableError] = []

        def work(planned: Candidate) -> PassResult | None:
            try:
                return self._pass(upkeep, planned.partition, force=force)
            except StoreUnavailableError as e:  # Says nothing about the partition.
                failures.append(e)
                return None

        if self._threads == 1 or len(eligible) < 2:
            found = [work(c) for c in eligible]
        else:
            with ThreadPoolExecutor(self._threads) as pool:
                found = list(pool.map(work, eligible))
        if failures:
            raise failures[0]
        return [result for result in found if result is not None]

    def _pass(self, upkeep: _Upkeep, partition: int, *, force: bool) -> PassResult | None:
        log, now_ms = upkeep.log, upkeep.clock.now_ms()
        handle = log.handle
        handle.refresh()
        manifest = handle.manifest()
        # Others may have cleaned it since it was chosen.
        config = LogConfig.from_overrides(manifest.head.config)
        found = candidate(manifest, config, partition, now_ms=now_ms, force=force)
        if found is None or self._stopping.is_set():
            return None
        if found.bounds.reset:
            logger.warning(
                "partition %d of %s: first dirty offset %d is outside the log; starting at %d",
                *(partition, log.url, manifest.first_dirty[partition], found.bounds.first_dirty),
            )
        tools = PassTools(
            map_bytes=self._map_bytes,
            throttle=self._throttle,
            hasher=KeyHasher(handle.ids.seed()),
            stopping=self._stopping.is_set,
            clock=handle.clock,
            new_id=handle.ids.new_id,
        )
        try:
            result = run_pass(handle, PassPlan(manifest, found, config, now_ms), tools)
        except StoreUnavailableError:
            raise
        except Exception as e:
            logger.exception("partition %d of %s is uncleanable", partition, log.url)
            mark(handle, partition, f"{type(e).__name__}: {e}", now_ms=now_ms)
            return None
        mark(handle, partition, None, now_ms=now_ms)
        if self._on_pass is not None:
            self._on_pass(log, result)
        return result
