"""The cleaner: a side process that keeps logs small and never gets in a writer's way (S30).

A *round* over all its logs is in this order; the README has each step in full:

R1. Seal active segments that are idle (S8).
R2. Retention and the start offset rule (S31-S35), trimming (S37), publishing the table (S63).
R3. Passes over the eligible partitions of all logs, one each, ``threads`` at a time (`selection`,
    `run_pass`). Before each pass the most urgent partition is chosen anew. Before the first pass
    over a log, what its passes share is coalesced, if that is cheaper (`layout`).
R4. Delete objects whose delay is over (S27), purge dead rows (S46), coalesce and merge.
R5. Once a day, delete what was never committed (`sweep`) and blocks of old commits
    (`commit_blocks`).

A pass may take hours, and only passes wait for more than one. Between two passes the rounds of
other logs begin and end, ``log.cleaner.backoff.ms`` apart where there is nothing to clean. A log
whose passes wait because others are more urgent gets everything but R3 done every
``log.retention.check.interval.ms``, at least `_BETWEEN_MS_MIN` apart; a log with a running pass
gets R1, R2, and the deletions of R4. With several threads all this happens beside the passes.

All this is work of one thread, which waits for one store at a time; cleaners *beside* each other,
one for each store, wait for none of the others' stores (`daemon.by_store`).

The share of one log is in `log_round`. A pass that fails leaves the log as it was; its partition is
uncleanable, with the reason, and is retried with back-off, while the others continue (S28). A log
whose round or store fails waits alone.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import field
from functools import partial
from typing import Any

from clog.cleaner.duties.retention import BACKOFF_MS, MaintenanceResult
from clog.cleaner.log_round import CleanerSettings, LogRound
from clog.cleaner.monitor import Monitor
from clog.cleaner.passes.run_pass import PassProgress
from clog.cleaner.selection import Candidate, Passes, PassResult
from clog.cleaner.threads import (
    MORE_MEMORY,
    NAP_MS,
    CleanerThreads,
    Pace,
    StoppedError,
    Throttle,
    Turns,
    nap,
)
from clog.storage import Log
from clog.storage.env import Clock, SystemClock, dataclass, enough_memory
from clog.storage.errors import InvalidInputError, NotFoundError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FoundLogs:
    """What changed for a cleaner: new ``logs``, and the URLs of those that are ``gone`` (deleted).

    Also the current obstacles, with reasons: logs that should be looked after but are ``unopened``,
    and folders that are ``unlisted`` and may contain more logs.
    """

    logs: Sequence[Log] = ()
    gone: Collection[str] = ()
    unopened: Mapping[str, str] = field(default_factory=dict)
    unlisted: Mapping[str, str] = field(default_factory=dict)


_BETWEEN_MS_MIN = 60_000
"""A log whose passes are running or waiting is not maintained more often than this."""


@dataclass(slots=True, eq=False)
class _OpenRound:
    """The round of one log, under way.

    ``is_well``: no step before its passes has failed. ``begun``: the partitions whose pass has
    begun; ``running``: the number of running passes; ``has_more``: whether other passes wait.
    """

    log_round: LogRound
    force: bool
    maintained_ms: int
    is_well: bool = True
    begun: set[int] = field(default_factory=set)
    running: int = 0
    has_more: bool = False
    failure: Exception | None = None
    results: list[tuple[int, PassResult]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Means:
    """What cleaners beside each other share: threads, limit, memory, and what watches them."""

    turns: Turns | None = None
    pace: Pace | None = None
    monitor: Monitor | None = None


@dataclass(frozen=True, slots=True)
class _Work:
    """A pass of a round, the ``number``-th to begin."""

    round: _OpenRound
    candidate: Candidate
    number: int


class Cleaner:
    """Cleans one or more logs. Only one thread at a time may call it; several cleaners, in one
    process or many, may work on the same log.

    >>> from clog.storage import Log
    >>> log = Log.create("memory://help-of-cleaner", 1)
    >>> for value in ("1", "2"):
    ...     version = log.append([{"key": "a", "value": value}]).version
    >>> sealed = log.roll()
    >>> cleaner = Cleaner(log)
    >>> print(*(result.stats.records_removed for result in cleaner.run_once(force=True)))
    1
    >>> cleaner.stop()  # `run` continues until this is called, by a signal handler or a thread
    >>> cleaner.run()

    Args:
        logs: a log, or several.
        threads: partitions, or parts of one, cleaned in parallel; they share the buffer and the
            limit.
        dedupe_buffer_bytes: memory of all offset maps together, 24 bytes an entry
            (``log.cleaner.dedupe.buffer.size``).
        io_bytes_per_second: limit on bytes read and written by all threads
            (``log.cleaner.io.max.bytes.per.second``); None: no limit.
        clock: the source of times; None: the clock of each log.
        backoff_ms: how long `run` sleeps when there was nothing to clean.
        settings: the settings for all logs.
        on_pass: called after each pass, from the thread that did it.
        on_maintained: called when segments were sealed, or removed by retention.
        find: called before each round; returns the logs that are new or gone since the
            last call. With it, the cleaner may start without a log.
        beside: another cleaner, for logs on another store, which runs in a thread of its own; the
            two share their ``means``.

    Attributes:
        backoff_ms: as given.
        monitor: current and past work, for metrics and health.
        means: what it shares with cleaners beside it.

    Raises:
        InvalidInputError: a thread's share of the buffer cannot hold one key; no log or no thread
            is given.
        OutOfMemoryError: there is less memory than a thread's share.
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
        settings: CleanerSettings | None = None,
        on_pass: Callable[[Log, PassResult], None] | None = None,
        on_maintained: Callable[[Log, MaintenanceResult], None] | None = None,
        find: Callable[[], FoundLogs] | None = None,
        beside: "Cleaner | None" = None,
    ) -> None:
        if type(threads) is not int or threads < 1:
            raise InvalidInputError(f"threads={threads!r} is out of range; allowed: 1 or more")
        given: list[Any] = [logs] if isinstance(logs, Log) else list(logs)
        if wrong := [type(log).__name__ for log in given if not isinstance(log, Log)]:
            raise InvalidInputError(f"logs has a {wrong[0]} in place of a log; give Log.open(…)")
        if not given and find is None:
            raise InvalidInputError("logs is empty; give the cleaner at least one log")
        if io_bytes_per_second is not None and not io_bytes_per_second > 0:
            raise InvalidInputError(
                f"io_bytes_per_second={io_bytes_per_second!r} is out of range;"
                " allowed: above 0, or None for no limit"
            )
        self._is_stopping = False
        self._given_clock = clock
        self._clock = clock or (given[0].handle.clock if given else SystemClock())
        shared = Means() if beside is None else beside.means
        self._threads = CleanerThreads(threads, dedupe_buffer_bytes // threads, shared.turns)
        self._threads.check_share()
        self._throttle = Throttle(io_bytes_per_second, self._clock, self._stops, pace=shared.pace)
        self.monitor = shared.monitor or Monitor(self._clock)
        self.means: Means = Means(self._threads.turns, self._throttle.pace, self.monitor)
        self.backoff_ms = backoff_ms
        self._settings = settings or CleanerSettings()
        self._on_pass = on_pass
        self._on_maintained = on_maintained
        self._find = find
        self._log_rounds: list[LogRound] = []
        self._open: dict[LogRound, _OpenRound] = {}
        self._passes_begun = 0
        self._running: dict[Future[bool], _OpenRound] = {}
        self._steps: dict[object, int] = {}
        if find is not None:
            self.monitor.looks(id(self))
        for log in given:
            self._add(log)

    @property
    def moved_ms(self) -> int:
        """When it last moved a byte or began or ended a round, by its clock's monotonic time."""
        return max(self._throttle.moved_ms, self.monitor.round_ms)

    @property
    def silent_ms(self) -> int:
        """How long nothing has come for what it waits for; 0 if it waits for no store."""
        if not (began_ms := list(self._steps.values())):
            return 0
        return self._clock.monotonic_ms() - max(*began_ms, self._throttle.moved_ms)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Notes that the block may wait for the store."""
        step = object()
        self._steps[step] = self._clock.monotonic_ms()
        try:
            yield
        finally:
            self._steps.pop(step, None)

    def lend(self, *, is_lent: bool) -> None:
        """Lets the cleaners beside this one use its threads (``is_lent``), or no longer."""
        self._threads.lend(is_lent=is_lent)

    def run_once(self, force: bool = False) -> list[PassResult]:  # noqa: FBT001, FBT002 - public
        """Does one round over all logs: maintenance that is due, then one pass over every eligible
        partition.

        Args:
            force: clean whatever can be cleaned, whatever the dirty ratio; active segments, and
                those with records younger than ``min.compaction.lag.ms``, are left out.

        Returns:
            The result of each pass, the first to begin first; those that failed have none, and are
            named when it is printed. Empty if nothing was eligible.

        Raises:
            StoreUnavailableError: the filesystem failed, or the clocks differ too much; what was
                done before stays, and the other logs are still cleaned.
            CommitConflictError, CommitStateUnknownError: other writers were faster for too long, or
                the store's reply to a commit was lost; the same holds.
            CorruptionError: an object to be trimmed or coalesced is damaged or missing; everything
                else is done.
        """
        with self._workers() as pool:
            self._look_around()
            for log_round in self._log_rounds:
                self._begin(log_round, force=force)
            while any(mine.has_more or mine.running for mine in self._open.values()):
                self._work(pool)
                self._maintain_between()
        ended = self._end()
        for mine in ended:
            if mine.failure is not None:
                raise mine.failure
        done = [pair for mine in ended for pair in mine.results]
        done.sort(key=lambda pair: pair[0])
        logs = [mine.log_round.log for mine in ended]
        left = {log.url: sorted(log.handle.manifest().uncleanable) for log in logs}
        return Passes((result for _, result in done), left, forced=force)

    def run(self) -> None:
        """Does rounds until `stop` is called; sleeps when there was nothing to clean. Survives
        failing logs and stores. No log waits for more than one pass over another; with several
        threads, its next round begins while the passes over other logs continue.
        """
        with self._workers() as pool:
            while not self._is_stopping:
                self._look_around()
                if not self._open:  # Else a pass that hangs would look alive.
                    self.monitor.looked()
                for log_round in self._log_rounds:
                    if log_round not in self._open and self._waits_ms(log_round) <= 0:
                        self._begin(log_round, force=False)
                self._end_some()  # Before a pass that may take hours.
                self._maintain_between()
                self._work(pool)
                self._end_some()
                if not self._open:
                    waits_ms = min(map(self._waits_ms, self._log_rounds), default=self.backoff_ms)
                    nap(self._clock, min(waits_ms, self.backoff_ms), self._stops)

    def stop(self) -> None:
        """Makes `run` return before the next request to the store; safe from a signal handler."""
        self._is_stopping = True  # One step: a second signal may strike within the first.

    def _stops(self) -> bool:
        return self._is_stopping

    def _look_around(self) -> None:
        """Adds logs that were found and drops those that are gone."""
        with self.asking():
            found = self._find() if self._find else FoundLogs()
        self._log_rounds = [r for r in self._log_rounds if r.log.url not in found.gone]
        for url in found.gone:
            self.monitor.forget(url)
        for log in found.logs:
            self._add(log)
        self.monitor.found(unopened=found.unopened, unlisted=found.unlisted, by=id(self))

    def _end_some(self) -> None:
        for mine in self._end():
            self._rest(mine)

    def _rest(self, mine: _OpenRound) -> None:
        """Makes a log whose round failed rest before the next one, and one that was clean wait."""
        moved = any(result.complete for _, result in mine.results)
        mine.log_round.due_ms = self._clock.monotonic_ms() + (0 if moved else self.backoff_ms)
        if mine.failure is None:
            mine.log_round.rest.succeeded()
            return
        mine.log_round.failed(mine.failure)
        is_gone = isinstance(mine.failure, NotFoundError)  # The message says it all.
        logger.error(
            "a round over %s failed, and will be retried%s",
            *(mine.log_round.log.url, f": {mine.failure}" if is_gone else ""),
            exc_info=None if is_gone else mine.failure,
        )

    def _waits_ms(self, log_round: LogRound) -> int:
        """Returns the time until a log's next round."""
        return max(log_round.rest.until_ms, log_round.due_ms) - self._clock.monotonic_ms()

    def _add(self, log: Log) -> None:
        clock = self._given_clock or log.handle.clock
        self._log_rounds.append(LogRound(log, clock, self._throttle, self._settings))

    def _begin(self, log_round: LogRound, *, force: bool) -> None:
        """Does R1 and R2 of a log's round; its passes are left to `_work`."""
        mine = self._open[log_round] = _OpenRound(log_round, force, self._clock.monotonic_ms())
        self._maintain(mine, log_round.begin)
        self._choices(mine)

    def _maintain(self, mine: _OpenRound, step: Callable[[], MaintenanceResult]) -> None:
        """Does R1 and R2."""

        def maintain() -> None:
            log, done = mine.log_round.log, step()
            self.monitor.counted(log.url, mine.log_round.take_counts())
            if done and self._on_maintained is not None:
                self._on_maintained(log, done)
            self._watch(mine.log_round)

        mine.maintained_ms = self._clock.monotonic_ms()
        mine.is_well = self._attempt(mine, maintain) and mine.is_well

    def _maintain_between(self) -> None:
        """Maintains logs whose passes are running or waiting, where that is due."""
        interval_ms = max(self._settings.retention_check_ms, _BETWEEN_MS_MIN)
        for mine in self._open.values():
            waited_ms = self._clock.monotonic_ms() - mine.maintained_ms
            if mine.is_well and waited_ms >= interval_ms:
                self._maintain(mine, mine.log_round.maintain)
                finish = partial(self._finish, mine.log_round)
                self._attempt(mine, mine.log_round.sweep_released if mine.running else finish)

    def _choices(self, mine: _OpenRound) -> list[Candidate]:
        """Returns the partitions of a log that wait for their pass; none once a step failed."""
        chosen: list[Candidate] = []

        def choose() -> None:
            found = mine.log_round.candidates(force=mine.force)
            chosen.extend(c for c in found if c.partition not in mine.begun)

        if mine.is_well and mine.log_round in self._log_rounds:
            mine.is_well = self._attempt(mine, choose)
        mine.has_more = bool(chosen)
        return chosen

    def _most_urgent(self) -> _Work | None:
        """Returns the next pass, of all logs, if there is one."""
        waiting = [(c, mine) for mine in self._open.values() for c in self._choices(mine)]
        if not waiting:
            return None
        chosen, mine = min(waiting, key=lambda pair: pair[0].urgency)
        mine.begun.add(chosen.partition)
        mine.has_more = any(mine is of for c, of in waiting if c is not chosen)
        mine.running += 1
        self._passes_begun += 1
        return _Work(mine, chosen, self._passes_begun)

    def _next(self) -> _Work | None:
        """Returns the next pass, if there is one whose turn it is."""
        if not (self._open and self._threads.takes_turn()):
            return None
        work = None
        try:
            work = self._most_urgent()
        finally:
            if work is None:
                self._threads.ends_turn()
        return work

    def _pass_in_turn(self, work: _Work) -> bool:
        try:
            return self._attempt(work.round, partial(self._pass, work))
        finally:
            self._threads.ends_turn()

    def _work(self, pool: Executor | None) -> None:
        """Does R3 for a while: one pass, or with threads until one ends or `backoff_ms` pass."""
        if pool is None:
            if (work := self._next()) is not None:
                self._pass_in_turn(work)
                work.round.running -= 1
            return
        while len(self._running) < self._threads.count and (work := self._next()) is not None:
            self._running[pool.submit(self._pass_in_turn, work)] = work.round
        patience_ms = max(self.backoff_ms, NAP_MS)
        while self._running and patience_ms > 0:
            done, _ = wait(self._running, NAP_MS / 1000, FIRST_COMPLETED)
            for future in done:
                self._running.pop(future).running -= 1
                future.result()
            patience_ms = 0 if done else patience_ms - NAP_MS

    def _end(self) -> list[_OpenRound]:
        """Does R4 and R5 of the logs whose passes are done; returns their rounds."""
        ended = [m for m in self._open.values() if not (m.running or m.has_more)]
        for mine in ended:
            if mine.is_well:
                self._attempt(mine, partial(self._finish, mine.log_round))
            mine.log_round.after_passes()
            url = mine.log_round.log.url
            self.monitor.round_ended(url, mine.failure)
            if all(url != log_round.log.url for log_round in self._log_rounds):
                self.monitor.forget(url)  # It was deleted while its passes were running.
            del self._open[mine.log_round]
        return ended

    def _attempt(self, mine: _OpenRound, step: Callable[[], None]) -> bool:
        """Does a step of a log's round; returns False if it fails: the others continue (S28)."""
        try:
            if not self._is_stopping:
                with (
                    enough_memory(f"the cleaning of {mine.log_round.log.url}", MORE_MEMORY),
                    self.asking(),
                ):
                    step()
        except StoppedError:
            pass
        except Exception as e:  # noqa: BLE001 - see above
            mine.failure = mine.failure or e
            return False
        return True

    def _finish(self, log_round: LogRound) -> None:
        log_round.end()
        self.monitor.counted(log_round.log.url, log_round.take_counts())
        self._watch(log_round)

    @contextmanager
    def _workers(self) -> Iterator[Executor | None]:
        """Yields the pool for passes; None: the caller's thread. Interrupted rounds start over."""
        self._open, self._running = {}, {}
        if self._threads.count == 1:
            yield None
        else:
            with ThreadPoolExecutor(self._threads.count) as pool:
                yield pool

    def _pass(self, work: _Work) -> None:
        """Does one pass; adds its result, if it has one, to the round."""
        log_round, chosen, force = work.round.log_round, work.candidate, work.round.force
        url = log_round.log.url
        with self._threads.of_a_pass(), self.monitor.watched(url, chosen) as progress:
            log_round.before_passes()
            for result in self._cleaned(log_round, chosen.partition, progress, force=force):
                self.monitor.passed(url, result)
                if self._on_pass is not None:
                    self._on_pass(log_round.log, result)
                work.round.results.append((work.number, result))

    def _cleaned(
        self, log_round: LogRound, partition: int, progress: PassProgress, *, force: bool
    ) -> Iterator[PassResult]:
        """Cleans a partition; yields the result of each pass. A subclass may do it elsewhere."""
        result = log_round.clean(partition, self._threads, progress, force=force)
        if result is not None:
            yield result

    def _watch(self, log_round: LogRound) -> None:
        handle, now_ms = log_round.log.handle, log_round.clock.now_ms()
        manifest = handle.manifest()
        self.monitor.saw(
            *(log_round.log.url, manifest, log_round.config(manifest)),
            now_ms=now_ms,
            lags_ms=log_round.lags_ms,
            readers=log_round.readers(),
            committers=handle.committers(),
            waits=log_round.waits,
        )
