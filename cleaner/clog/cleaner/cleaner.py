"""The cleaner: a side process that keeps logs small, never in a writer's way (S30).

A *round* over all its logs, in this order:

1. Seal active segments that are idle (S8).
2. Retention and the start offset rule (S31-S35); trimming below the low watermark (S37).
3. Passes over the eligible partitions of all logs, most urgent first, each once (`selection`,
   `passes`), by ``threads`` at a time.
4. Delete objects whose delay is over (S27); rewrite what has held dead rows for long (S46);
   coalesce what the passes left fresh, under every policy.
5. Once a day delete what was never committed (`sweep`) and blocks of old commits (`blocks`).

What a log has of that is in `upkeep`. A pass that fails leaves the log as it was; its partition is
marked uncleanable with the reason and retried with back-off, the others go on (S28). A log whose
round fails, or whose store does, waits alone.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from clog.cleaner.metered_store import StoppedError, Throttle, nap
from clog.cleaner.monitor import Monitor
from clog.cleaner.selection import Candidate
from clog.cleaner.stats import PassResult
from clog.cleaner.uncleanable import BACKOFF_MS
from clog.cleaner.upkeep import Upkeep, UpkeepSettings
from clog.storage import Log
from clog.storage.clock import Clock, SystemClock
from clog.storage.errors import InvalidInputError
from clog.storage.offset_map import OffsetMap

logger = logging.getLogger(__name__)

_Work = tuple[Upkeep, Candidate]


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
        settings: what holds for all logs.
        on_pass: called after each pass, from the thread that did it.
        find: called by `run` before each round; the logs that it returns are cleaned from then on,
            too. With it there may be none at first.

    Attributes:
        backoff_ms: as given.
        monitor: what it does and has done.

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
        settings: UpkeepSettings | None = None,
        on_pass: Callable[[Log, PassResult], None] | None = None,
        find: Callable[[], Iterable[Log]] | None = None,
    ) -> None:
        if type(threads) is not int or threads < 1:
            raise InvalidInputError(f"threads={threads!r} is out of range; allowed: 1 or more")
        given = [logs] if isinstance(logs, Log) else list(logs)
        if not given and find is None:
            raise InvalidInputError("logs is empty; give the cleaner at least one log")
        if io_bytes_per_second is not None and not io_bytes_per_second > 0:
            raise InvalidInputError(
                f"io_bytes_per_second={io_bytes_per_second!r} is out of range;"
                " allowed: above 0, or None for no limit"
            )
        self._stopping = threading.Event()
        self._given_clock = clock
        self._clock = clock or (given[0].handle.clock if given else SystemClock())
        self._threads = threads
        self._map_bytes = dedupe_buffer_bytes // threads
        OffsetMap(memory_bytes=self._map_bytes)  # S18: refuses a share that holds no key
        self._throttle = Throttle(io_bytes_per_second, self._clock, self._stopping.is_set)
        self.backoff_ms = backoff_ms
        self._settings = settings or UpkeepSettings()
        self._on_pass = on_pass
        self._find = find
        self._upkeep: list[Upkeep] = []
        self.monitor = Monitor(self._clock)
        for log in given:
            self._add(log)

    @property
    def moved_ms(self) -> int:
        """When it last moved a byte, or began or ended a round, by its clock's monotonic time."""
        return max(self._throttle.moved_ms, self.monitor.round_ms)

    def run_once(self, force: bool = False) -> list[PassResult]:  # noqa: FBT001, FBT002 - public
        """One round over all logs: maintenance that is due, then every eligible partition once.

        Args:
            force: clean whatever can be cleaned, whatever the dirty ratio (S17); active segments
                and those under ``min.compaction.lag.ms`` stay out (S10, S11).

        Returns:
            What each pass did; the most urgent began first. Empty where nothing was eligible.

        Raises:
            StoreUnavailableError: the file system failed, or the clocks differ too much; what was
                done until then is done, and so are the other logs.
        """
        results, failures = self._round(self._upkeep, force=force)
        if failures:
            raise next(iter(failures.values()))
        return results

    def run(self) -> None:
        """Rounds until `stop` is called; sleeps where there was nothing to clean. Survives logs and
        stores that fail.
        """
        while not self._stopping.is_set():
            for log in self._find() if self._find else ():
                self._add(log)
            now_ms = self._clock.monotonic_ms()
            awake = [u for u in self._upkeep if u.rest.until_ms <= now_ms]
            results, failures = self._round(awake, force=False)
            for upkeep in awake:
                failure = failures.get(upkeep)
                if failure is None:
                    upkeep.rest.succeeded()
                else:
                    upkeep.failed()
                    logger.error(
                        "a round over %s failed; it is repeated",
                        upkeep.log.url,
                        exc_info=failure,
                    )
            if not any(result.complete for result in results):
                nap(self._clock, self.backoff_ms, self._stopping.is_set)

    def stop(self) -> None:
        """Makes `run` return before the next request to the store; safe from a signal handler."""
        self._stopping.set()

    def _add(self, log: Log) -> None:
        clock = self._given_clock or log.handle.clock
        self._upkeep.append(Upkeep(log, clock, self._throttle, self._settings))

    def _round(
        self, logs: Sequence[Upkeep], *, force: bool
    ) -> tuple[list[PassResult], dict[Upkeep, Exception]]:
        """What each pass did, and which logs failed, with their first error."""
        failures: dict[Upkeep, Exception] = {}
        results: list[PassResult] = []

        def attempt(step: Callable[[Upkeep], None], upkeep: Upkeep) -> None:
            try:
                if not self._stopping.is_set():
                    step(upkeep)
            except StoppedError:
                pass
            except Exception as e:  # noqa: BLE001 - whatever it is, the others go on (S28)
                failures.setdefault(upkeep, e)

        def maintain(upkeep: Upkeep) -> None:
            upkeep.maintain()
            self._watch(upkeep)
            eligible.extend((upkeep, c) for c in upkeep.candidates(force=force))

        def clean(work: _Work) -> None:
            upkeep, chosen = work
            attempt(lambda _: results.extend(self._pass(upkeep, chosen, force=force)), upkeep)

        def tidy(upkeep: Upkeep) -> None:
            upkeep.tidy()
            self._watch(upkeep)

        eligible: list[_Work] = []
        self.monitor.in_round()
        for upkeep in logs:
            attempt(maintain, upkeep)
        well = [upkeep for upkeep in logs if upkeep not in failures]
        eligible.sort(key=lambda work: work[1].urgency)
        self._each(clean, eligible)
        for upkeep in well:
            attempt(tidy, upkeep)  # Whatever failed, what is dead may go.
        for upkeep in logs:
            self.monitor.round_ended(upkeep.log.url, failures.get(upkeep))
        return results, failures

    def _each(self, step: Callable[[_Work], None], works: Sequence[_Work]) -> None:
        """By ``threads`` at a time; without another thread where one is enough."""
        if self._threads == 1 or len(works) < 2:
            for work in works:
                step(work)
        else:
            with ThreadPoolExecutor(self._threads) as pool:
                list(pool.map(step, works))

    def _pass(self, upkeep: Upkeep, chosen: Candidate, *, force: bool) -> list[PassResult]:
        """One pass; its result, if it has one."""
        url = upkeep.log.url
        with self.monitor.watched(url, chosen) as progress:
            result = upkeep.clean(chosen.partition, self._map_bytes, progress, force=force)
        if result is None:
            return []
        self.monitor.passed(url, result)
        if self._on_pass is not None:
            self._on_pass(upkeep.log, result)
        return [result]

    def _watch(self, upkeep: Upkeep) -> None:
        manifest = upkeep.log.handle.manifest()
        now_ms = upkeep.clock.now_ms()
        self.monitor.saw(upkeep.log.url, manifest, upkeep.config(manifest), now_ms=now_ms)
