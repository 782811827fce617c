"""The cleaner: a side process that keeps logs small, never in a writer's way (S30).

A *round* over all its logs, in this order:

1. Seal active segments that are idle (S8).
2. Retention and the start offset rule (S31-S35); trimming below the low watermark (S37).
3. Passes over the eligible partitions of all logs, most urgent first, each once (`selection`,
   `passes`), by ``threads`` at a time.
4. Delete objects whose delay is over (S27); rewrite what has held dead rows for long (S46);
   coalesce what the passes left fresh, under every policy.
5. Once a day delete what was never committed (`sweep`) and blocks of old commits (`blocks`).

With several threads a log's round begins when its last one ended, whatever other logs are at. What
a log has of all that is in `upkeep`. A pass that fails leaves the log as it was; its partition is
marked uncleanable with the reason and retried with back-off, the others go on (S28). A log whose
round fails, or whose store does, waits alone.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from clog.cleaner.metered_store import NAP_MS, StoppedError, Throttle, nap
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


@dataclass(frozen=True, slots=True)
class Found:
    """What changed about the logs that a cleaner looks after: new ones, and URLs of those that were
    deleted.
    """

    logs: Sequence[Log] = ()
    gone: Collection[str] = ()


@dataclass(slots=True, eq=False)
class _Round:
    """The round of one log under way; ``is_well``: what came before its passes did not fail."""

    upkeep: Upkeep
    is_well: bool = True
    passes_left: int = 0
    failure: Exception | None = None
    results: list[tuple[Candidate, PassResult]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Work:
    """A pass of a round."""

    round: _Round
    candidate: Candidate
    force: bool


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
        find: called by `run` before each round: what logs there are beside those given. With it
            there may be none at first.

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
        find: Callable[[], Found] | None = None,
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
        self._open: dict[Upkeep, _Round] = {}
        self._waiting: list[_Work] = []
        self._running: dict[Future[None], _Round] = {}
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
            CorruptionError, FileNotFoundError: what was to be trimmed or coalesced is damaged or
                gone; all else is done.
        """
        with self._workers() as pool:
            for upkeep in self._upkeep:
                self._begin(upkeep, force=force)
            self._work(pool)
        ended = self._end()
        for mine in ended:
            if mine.failure is not None:
                raise mine.failure
        done = [pair for mine in ended for pair in mine.results]
        done.sort(key=lambda pair: pair[0].urgency)
        return [result for _, result in done]

    def run(self) -> None:
        """Rounds until `stop` is called; sleeps where there was nothing to clean. Survives logs and
        stores that fail. With several threads no log waits for the passes of another: its next
        round begins while they go on.
        """
        with self._workers() as pool:
            while not self._stopping.is_set():
                self._look_around()
                if not self._open:  # Else a pass that hangs would look alive.
                    self.monitor.looked()
                now_ms = self._clock.monotonic_ms()
                for upkeep in self._upkeep:
                    if upkeep.rest.until_ms <= now_ms and upkeep not in self._open:
                        self._begin(upkeep, force=False)
                self._work(pool, patience_ms=self.backoff_ms)
                ended = self._end()
                for mine in ended:
                    self._rest(mine)
                moved = any(result.complete for mine in ended for _, result in mine.results)
                if not (moved or self._open):
                    nap(self._clock, self.backoff_ms, self._stopping.is_set)

    def stop(self) -> None:
        """Makes `run` return before the next request to the store; safe from a signal handler."""
        self._stopping.set()

    def _look_around(self) -> None:
        """Takes logs that were found, drops those that are gone."""
        found = self._find() if self._find else Found()
        self._upkeep = [u for u in self._upkeep if u.log.url not in found.gone]
        for url in found.gone:
            self.monitor.forget(url)
        for log in found.logs:
            self._add(log)

    def _rest(self, mine: _Round) -> None:
        """A log whose round failed rests before the next one."""
        if mine.failure is None:
            mine.upkeep.rest.succeeded()
            return
        mine.upkeep.failed()
        url = mine.upkeep.log.url
        logger.error("a round over %s failed; it is repeated", url, exc_info=mine.failure)

    def _add(self, log: Log) -> None:
        clock = self._given_clock or log.handle.clock
        self._upkeep.append(Upkeep(log, clock, self._throttle, self._settings))

    def _begin(self, upkeep: Upkeep, *, force: bool) -> None:
        """Steps 1 and 2 of a log's round; its passes wait for `_work`."""
        mine = _Round(upkeep)

        def maintain() -> None:
            upkeep.maintain()
            self._watch(upkeep)
            chosen = upkeep.candidates(force=force)
            self._waiting.extend(_Work(mine, candidate, force) for candidate in chosen)
            mine.passes_left = len(chosen)

        self._open[upkeep] = mine
        mine.is_well = self._attempt(mine, maintain)
        self._waiting.sort(key=lambda work: work.candidate.urgency)

    def _work(self, pool: Executor | None, *, patience_ms: int | None = None) -> None:
        """Step 3: the passes that wait, most urgent first, by ``threads`` at a time. Returns when
        all are done, or ``patience_ms`` after one ended the last time.
        """
        if pool is None:
            while self._waiting:
                work = self._waiting.pop(0)
                self._clean(work)
                work.round.passes_left -= 1
            return
        while self._waiting or self._running:
            while self._waiting and len(self._running) < self._threads:
                work = self._waiting.pop(0)
                self._running[pool.submit(self._clean, work)] = work.round
            done, _ = wait(self._running, NAP_MS / 1000, FIRST_COMPLETED)
            for future in done:
                self._running.pop(future).passes_left -= 1
                future.result()
            if patience_ms is not None and not done:
                patience_ms -= NAP_MS
                if patience_ms <= 0:
                    return

    def _end(self) -> list[_Round]:
        """Steps 4 and 5 of the logs whose passes are done: their rounds, which end by that."""
        ended = [mine for mine in self._open.values() if not mine.passes_left]
        for mine in ended:
            if mine.is_well:
                self._attempt(mine, partial(self._tidy, mine.upkeep))
            url = mine.upkeep.log.url
            self.monitor.round_ended(url, mine.failure)
            if all(url != upkeep.log.url for upkeep in self._upkeep):
                self.monitor.forget(url)  # It was deleted while its passes went on.
            del self._open[mine.upkeep]
        return ended

    def _attempt(self, mine: _Round, step: Callable[[], None]) -> bool:
        """Does a step of a log's round; False where it failed: whatever it is, the others go on
        (S28).
        """
        try:
            if not self._stopping.is_set():
                step()
        except StoppedError:
            pass
        except Exception as e:  # noqa: BLE001 - see above
            mine.failure = mine.failure or e
            return False
        return True

    def _clean(self, work: _Work) -> None:
        self._attempt(work.round, partial(self._pass, work))

    def _tidy(self, upkeep: Upkeep) -> None:
        self.monitor.tidied(upkeep.log.url, upkeep.tidy())
        self._watch(upkeep)

    @contextmanager
    def _workers(self) -> Iterator[Executor | None]:
        """What passes are done by; None: the caller's own thread, where one is enough."""
        if self._threads == 1:
            yield None
        else:
            with ThreadPoolExecutor(self._threads) as pool:
                yield pool

    def _pass(self, work: _Work) -> None:
        """One pass; its result, if it has one, goes to the round."""
        upkeep, chosen = work.round.upkeep, work.candidate
        url = upkeep.log.url
        with self.monitor.watched(url, chosen) as progress:
            result = upkeep.clean(chosen.partition, self._map_bytes, progress, force=work.force)
        if result is None:
            return
        self.monitor.passed(url, result)
        if self._on_pass is not None:
            self._on_pass(upkeep.log, result)
        work.round.results.append((chosen, result))

    def _watch(self, upkeep: Upkeep) -> None:
        manifest = upkeep.log.handle.manifest()
        now_ms = upkeep.clock.now_ms()
        self.monitor.saw(upkeep.log.url, manifest, upkeep.config(manifest), now_ms=now_ms)
