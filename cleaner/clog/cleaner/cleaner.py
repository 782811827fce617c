"""The cleaner: a side process that keeps logs small, never in a writer's way (S30).

A *round* over one log, in this order:

1. Seal active segments that are idle (S8).
2. Retention and the start offset rule (S31-S35); trimming below the low watermark (S37).
3. Passes over the eligible partitions, most urgent first, each once (`selection`, `passes`), by ``threads`` at a time.
4. Coalescing of what the passes left fresh, under every policy.
5. Delete objects whose delay is over (`sweep`, S27).

A pass that fails leaves the log as it was; its partition is marked uncleanable with the reason and retried with back-off, the others go on (S28).
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from clog.cleaner.coalescing import coalesce
from clog.cleaner.maintenance import apply_retention, seal_idle
from clog.cleaner.mapping import KeyHasher
from clog.cleaner.metered_store import MeteredStore, Throttle
from clog.cleaner.passes import PassTools, run_pass
from clog.cleaner.selection import Candidate, candidates
from clog.cleaner.stats import PassResult
from clog.cleaner.sweep import sweep_released
from clog.cleaner.trimming import trim
from clog.storage import Log
from clog.storage.clock import Clock
from clog.storage.commits import Commit
from clog.storage.config import LogConfig
from clog.storage.edits import Edit, Uncleanable
from clog.storage.errors import ClogError, InvalidInputError, StoreUnavailableError
from clog.storage.handle import Handle
from clog.storage.offset_map import OffsetMap

logger = logging.getLogger(__name__)

BACKOFF_MS = 15_000
"""Sleep when there is nothing to clean, as ``log.cleaner.backoff.ms``."""
RETRY_MS_MAX = 3_600_000
"""A partition that keeps failing is tried again at least this often."""
_NAP_MS = 250


class Cleaner:
    """Cleans one log or several.

    Args:
        logs: a log, or several.
        threads: partitions cleaned at once; they share the buffer and the I/O limit.
        dedupe_buffer_bytes: memory of all offset maps together (``log.cleaner.dedupe.buffer.size``), 24 bytes an entry.
        io_bytes_per_second: limit on bytes read and written by all threads (``log.cleaner.io.max.bytes.per.second``); None: no limit.
        clock: None: that of each log.
        backoff_ms: sleep of `run` when there was nothing to clean.

    Raises:
        InvalidInputError: a thread's share of the buffer cannot hold one key (S18).
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
        self._logs: Sequence[Log] = [logs] if isinstance(logs, Log) else list(logs)
        self._clock = clock or self._logs[0].handle.clock
        self._threads = threads
        self._maps = [OffsetMap(memory_bytes=dedupe_buffer_bytes // threads) for _ in range(threads)]
        self._throttle = Throttle(io_bytes_per_second, self._clock)
        self._backoff_ms = backoff_ms
        self._on_pass = on_pass
        self._stopping = threading.Event()

    def run_once(self, force: bool = False) -> list[PassResult]:
        """One round over each log: maintenance that is due, then every eligible partition once.

        Args:
            force: clean whatever can be cleaned, whatever the dirty ratio (S17); active segments and those under
                ``min.compaction.lag.ms`` stay out (S10, S11).

        Returns:
            What each pass did; empty where nothing was eligible.
        """
        return [result for log in self._logs for result in self._round(log, force=force)]

    def run(self) -> None:
        """Rounds until `stop` is called; sleeps where there was nothing to clean. Survives a store that fails for a while."""
        while not self._stopping.is_set():
            try:
                busy = bool(self.run_once())
            except ClogError:
                logger.exception("a round failed; the next one starts after the back-off")
                busy = False
            waited_ms = 0
            while not busy and waited_ms < self._backoff_ms and not self._stopping.is_set():
                self._clock.sleep_ms(min(_NAP_MS, self._backoff_ms - waited_ms))
                waited_ms += _NAP_MS

    def stop(self) -> None:
        """Makes `run` return after the pass that is under way; safe from a signal handler."""
        self._stopping.set()

    def _round(self, log: Log, *, force: bool) -> list[PassResult]:
        handle = log.handle
        handle.refresh()
        now_ms = self._clock.now_ms()
        seal_idle(handle, now_ms=now_ms)
        apply_retention(handle, now_ms=now_ms)
        store = MeteredStore(handle.store, self._throttle)
        trim(handle, store)
        manifest = handle.manifest()
        config = LogConfig.from_overrides(manifest.head.config)
        eligible = [
            c
            for c in candidates(manifest, config, now_ms=now_ms, force=force)
            if force or not _is_resting(manifest.uncleanable.get(c.partition), now_ms)
        ]
        results = self._passes(log, eligible)
        coalesce(handle, store, now_ms=now_ms)
        sweep_released(handle, now_ms=now_ms)
        return results

    def _passes(self, log: Log, eligible: Sequence[Candidate]) -> list[PassResult]:
        if self._threads == 1 or len(eligible) < 2:
            found = [self._pass(log, c, self._maps[0]) for c in eligible]
        else:
            free = list(self._maps)
            with ThreadPoolExecutor(self._threads) as pool:

                def work(candidate: Candidate) -> PassResult | None:
                    offset_map = free.pop()
                    try:
                        return self._pass(log, candidate, offset_map)
                    finally:
                        free.append(offset_map)

                found = list(pool.map(work, eligible))
        return [result for result in found if result is not None]

    def _pass(self, log: Log, candidate: Candidate, offset_map: OffsetMap) -> PassResult | None:
        if self._stopping.is_set():
            return None
        handle = log.handle
        now_ms = self._clock.now_ms()
        tools = PassTools(offset_map, self._throttle, KeyHasher(handle.ids.seed()))
        try:
            result = run_pass(handle, candidate, tools, now_ms=now_ms)
        except StoreUnavailableError:
            raise  # Says nothing about the partition.
        except ClogError as e:
            logger.exception("partition %d of %s is uncleanable", candidate.partition, log.url)
            _mark(handle, candidate.partition, str(e), now_ms=now_ms)
            return None
        _mark(handle, candidate.partition, None, now_ms=now_ms)
        if self._on_pass is not None:
            self._on_pass(log, result)
        return result


def _is_resting(mark: Uncleanable | None, now_ms: int) -> bool:
    """Whether a partition that failed still waits: 15 s, doubled by every further failure, an hour at most."""
    if mark is None:
        return False
    return now_ms - mark.time_ms < min(RETRY_MS_MAX, BACKOFF_MS << min(mark.attempts - 1, 10))


def _mark(handle: Handle, partition: int, reason: str | None, *, now_ms: int) -> None:
    """Marks a partition uncleanable, or clears its mark where it has one."""
    before = handle.manifest().uncleanable.get(partition)
    if reason is None and before is None:
        return
    attempts = before.attempts + 1 if before else 1
    mark = None if reason is None else Uncleanable(reason, now_ms, attempts)

    def prepare(_tip: Commit, _ms: int) -> Edit:
        return Edit(uncleanable={partition: mark})

    handle.commit(prepare, operation="clean")
