"""What a cleaner does and has done, for whatever watches it: metrics, health, the live view.

The cleaner writes, from all its threads; any thread may read, at any time.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, field, replace

from clog.cleaner.passes.run_pass import PassProgress
from clog.cleaner.selection import Candidate, PassResult, overdue_ms
from clog.storage.commit.proposals import Waits
from clog.storage.config.log_config import LogConfig
from clog.storage.diagnostics.describe import kept_for_cuts
from clog.storage.env import Clock, Shared, dataclass
from clog.storage.format.manifest import Manifest
from clog.storage.publications.publish import Kept, kept_for_views
from clog.storage.read.cleanable import cleanable_bounds
from clog.storage.readers import Reader


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition as the last round found it. ``delay_ms`` is how far it is overdue (S14)."""

    partition: int
    dirty_ratio: float
    cleanable_bytes: int
    delay_ms: int
    uncleanable: str | None


@dataclass(frozen=True, slots=True)
class LogState:
    """One log as the last round found it; if it does not compact, without ``partitions``, as in
    Kafka. ``failures`` counts the latest rounds in a row that failed. ``error`` is that of the last
    round, or why the log is not ``opened``. ``lags_ms``: by format, how far a published view is
    behind; ``kept``: what is kept for it; ``stuck``: the formats for which that does not advance.
    ``cut_bytes``: what is kept for named cuts. ``committers``, ``waits``: how many writers commit,
    and how long they wait for each other. ``readers``: the named readers, if they are watched.
    ``undecided`` transactions hold readers back.
    """

    opened: bool = True

    partitions: Sequence[PartitionState] = ()
    undecided: int = 0
    failures: int = 0
    error: str | None = None
    last_pass: PassResult | None = None
    totals: Counter[str] = field(default_factory=Counter)
    lags_ms: Mapping[str, int] = field(default_factory=dict)
    kept: Mapping[str, Kept] = field(default_factory=dict)
    stuck: Sequence[str] = ()
    cut_bytes: int = 0
    readers: Sequence[Reader] = ()
    committers: int = 0
    waits: Waits = Waits()


_UNOPENED = LogState(opened=False)


@dataclass(frozen=True, slots=True)
class Activity:
    """A pass under way; ``began_ms`` by the clock's monotonic time."""

    url: str
    candidate: Candidate
    began_ms: int
    progress: PassProgress


class Monitor(Shared):
    """State of one cleaner.

    Attributes:
        clock: whose monotonic time all times here are.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        super().__init__()
        self._logs: dict[str, LogState] = {}
        self._activities: list[Activity] = []
        self._unopened: dict[object, set[str]] = {}
        self._unlisted: dict[object, dict[str, str] | None] = {}
        self._round_ms = clock.monotonic_ms()

    @property
    def round_ms(self) -> int:
        """When a round last began or ended."""
        return self._round_ms

    def logs(self) -> dict[str, LogState]:
        """Returns the state of each log, by its URL."""
        with self._lock:
            return {url: _apart(state) for url, state in self._logs.items()}

    def unlisted(self) -> dict[str, str]:
        """Returns folders that cannot be searched for logs, and why."""
        with self._lock:
            return {url: why for one in self._unlisted.values() for url, why in (one or {}).items()}

    def has_looked(self) -> bool:
        """Returns whether each cleaner has looked for its logs."""
        with self._lock:
            return all(one is not None for one in self._unlisted.values())

    def looks(self, by: object) -> None:
        """Notes that a cleaner, ``by``, is going to look for logs."""
        with self._lock:
            self._unlisted[by] = None

    def activities(self) -> list[Activity]:
        """Returns the passes under way."""
        with self._lock:
            return list(self._activities)

    def looked(self) -> None:
        """Notes that a round begins, over any number of logs."""
        self._round_ms = self.clock.monotonic_ms()

    def found(
        self, *, unopened: Mapping[str, str], unlisted: Mapping[str, str], by: object = None
    ) -> None:
        """Notes which logs cannot be opened now and which folders cannot be listed, and why, in
        place of what the same cleaner, ``by``, found before.
        """
        with self._lock:
            self._unlisted[by] = dict(unlisted)
            for url in self._unopened.get(by, set()) - set(unopened):
                if not self._logs.get(url, LogState()).opened:
                    del self._logs[url]
            self._unopened[by] = set(unopened)
            for url, reason in unopened.items():
                # An opened log keeps its state: it is also known by another spelling.
                if not self._logs.get(url, _UNOPENED).opened:
                    self._logs[url] = replace(_UNOPENED, error=reason)

    def saw(
        self,
        url: str,
        manifest: Manifest,
        config: LogConfig,
        *,
        now_ms: int,
        lags_ms: Mapping[str, int],
        readers: Sequence[Reader],
        committers: int,
        waits: Waits,
    ) -> None:
        """Notes the state of a log: what its manifest says, and the rest as `LogState` has it."""
        compacted = range(manifest.head.log.partitions if config.compact else 0)
        partitions = [_state(manifest, p, config, now_ms) for p in compacted]
        delay_ms = config.file_delete_delay_ms
        kept = kept_for_views(manifest, delay_ms, now_ms=now_ms) if manifest.head.pins else {}
        cuts = kept_for_cuts(manifest, delay_ms, now_ms=now_ms) if manifest.head.kept else []
        with self._lock:
            before = self._logs.get(url, LogState())
            self._logs[url] = replace(
                before,
                partitions=partitions,
                lags_ms=lags_ms,
                kept=kept,
                stuck=[name for name, view in kept.items() if view.is_stuck],
                cut_bytes=cuts[0]["size_bytes"] if cuts else 0,
                readers=readers,
                committers=committers,
                waits=waits,
                undecided=sum(bool(e.first) for e in manifest.head.unended),
            )

    def round_ended(self, url: str, error: Exception | None) -> None:
        """Notes a round over one log, and its failure, if any."""
        with self._lock:
            self._round_ms = self.clock.monotonic_ms()
            before = self._logs.get(url, LogState())
            totals = before.totals + Counter(rounds=1, failed_rounds=int(error is not None))
            failures = 0 if error is None else before.failures + 1
            text = None if error is None else f"{type(error).__name__}: {error}"
            self._logs[url] = replace(before, failures=failures, error=text, totals=totals)

    @contextmanager
    def watched(self, url: str, candidate: Candidate) -> Iterator[PassProgress]:
        """Notes that a pass is under way in the block, which keeps the progress up to date."""
        activity = Activity(url, candidate, self.clock.monotonic_ms(), PassProgress())
        with self._lock:
            self._activities.append(activity)
        try:
            yield activity.progress
        finally:
            with self._lock:
                self._activities = [a for a in self._activities if a is not activity]

    def forget(self, url: str) -> None:
        """Notes that a log is gone."""
        with self._lock:
            self._logs.pop(url, None)

    def counted(self, url: str, counts: Counter[str]) -> None:
        """Notes the counts of what was done besides passes."""
        if not counts:
            return
        with self._lock:
            before = self._logs.get(url, LogState())
            self._logs[url] = replace(before, totals=before.totals + counts)

    def passed(self, url: str, result: PassResult) -> None:
        """Notes the result of a pass."""
        more = Counter({k: v for k, v in asdict(result.stats).items() if isinstance(v, int)})
        more["passes"] = 1
        with self._lock:
            before = self._logs.get(url, LogState())
            totals = before.totals + more
            state = replace(before, last_pass=result, totals=totals)
            self._logs[url] = _apart(state)  # The caller has the result, too.


def _apart(state: LogState) -> LogState:
    """Returns the state with its own counts: a caller may change what it got."""
    last, readers = state.last_pass, state.readers
    return replace(
        state,
        totals=Counter(state.totals),
        lags_ms=dict(state.lags_ms),
        partitions=tuple(state.partitions),
        readers=tuple(replace(reader, position=dict(reader.position)) for reader in readers),
        last_pass=None if last is None else replace(last, stats=replace(last.stats)),
    )


def _state(manifest: Manifest, p: int, config: LogConfig, now_ms: int) -> PartitionState:
    b = cleanable_bounds(manifest, p, config, now_ms=now_ms)
    uncleanable = manifest.uncleanable.get(p)
    delay_ms = overdue_ms(manifest, b, config, now_ms=now_ms)
    reason = None if uncleanable is None else uncleanable.reason
    return PartitionState(p, b.dirty_ratio, b.cleanable_bytes, delay_ms, reason)
