"""The cleaner with its passes as Spark tasks: cleaning on more than one machine.

J1. The driver runs a cleaner like any other (`clog.cleaner.cleaner`): it chooses, maintains,
    sweeps, and retries what fails. Only the passes it does not do itself: for each it starts a
    Spark job, which gets that pass alone; as many run at the same time as the cluster has room for.
J2. A task is a cleaner of one partition. It opens the driver's log, compares its clock with the
    store's, plans at the newest version, and commits group by group (`run_pass`): so the extra
    space in the store is about one group for each task, and what was done when it dies is done; the
    objects of a group that it had not committed are orphans, which the sweep deletes.
J3. Spark may run a task again, or twice at the same time. Those are two cleaners on one log, for
    which the commit protocol was made: the one that finds its sources changed has changed nothing
    itself. It rests, plans anew, and continues, `PASSES_MAX` times at most. If it ended instead,
    Spark would take that for the task's end, and stop the other one, which is the faster.
J4. A partition of more than ``task_bytes`` is cleaned in `stretches`, each by a task of one job;
    the driver commits the end of the pass once all are done.
J5. A task hands back an obstacle, such as a failing store or clocks that differ, and the driver
    raises it there. A task that dies four times fails its job, and so the log's round: the other
    passes continue, and the log is tried again.

Not for a log that was opened with ``single_writer``: tasks on several machines commit.
"""

import logging
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from clog.cleaner import Cleaner, CleanerSettings, PassResult
from clog.cleaner.log_round import LogRound, Rest
from clog.cleaner.passes.run_pass import PassProgress, commit_covered, stretches
from clog.cleaner.selection import Stretch
from clog.cleaner.threads import NAP_MS, CleanerThreads, StoppedError, Throttle, nap
from clog.storage import Log
from clog.storage.commit.handle import Handle
from clog.storage.env import Clock, SystemIds, dataclass
from clog.storage.errors import InvalidInputError, LogReplacedError
from clog.storage.numpy_arrays import of_bytes
from clog.storage.store.contract import Store
from clog.storage.store.opening import Reach

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

TASK_BYTES = 4 << 30
"""Record bytes that one task goes through: about a minute."""
PASSES_MAX = 3
"""The most passes that a task begins if others are faster each time."""


def clean_with_spark(
    spark: "SparkSession",
    log: Log | str,
    *,
    force: bool = False,
    tasks: int | None = None,
    task_bytes: int = TASK_BYTES,
    dedupe_buffer_bytes: int = 128 << 20,
    io_bytes_per_second: float | None = None,
    storage_options: Mapping[str, object] | None = None,
    settings: CleanerSettings | None = None,
) -> list[PassResult]:
    """Does one round over a log: maintenance that is due, then one pass over every eligible
    partition, each as a task.

    Args:
        spark: a session whose workers have clog; Spark Connect's will do.
        log: the log, or its URL.
        force: clean whatever can be cleaned, whatever the dirty ratio.
        tasks: passes at the same time; None: as many as Spark has room for now.
        task_bytes: a partition with more record bytes to go through is cleaned by several tasks, at
            most eight.
        dedupe_buffer_bytes: memory of each task's offset map.
        io_bytes_per_second: limit on the bytes that each task reads and writes.
        storage_options: used if the log is a URL.
        settings: as for the cleaner.

    Returns:
        The result of each pass, the most urgent first.

    Raises:
        InvalidInputError: the log was opened with ``single_writer``; an argument out of range.
        StoreUnavailableError: the store failed (other passes are committed), or clocks differ.
        CommitConflictError, CommitStateUnknownError, CorruptionError: as for `Cleaner.run_once`.

    >>> clean_with_spark(spark, "s3://bucket/orders", force=True)  # doctest: +SKIP
    """
    opened = Log.open(log, storage_options) if isinstance(log, str) else log
    cleaner = SparkCleaner(
        spark,
        [opened],
        tasks=tasks,
        task_bytes=task_bytes,
        dedupe_buffer_bytes=dedupe_buffer_bytes,
        io_bytes_per_second=io_bytes_per_second,
        settings=settings,
    )
    return cleaner.run_once(force=force)


class SparkCleaner(Cleaner):
    """Cleans logs with Spark tasks; arguments as for `clean_with_spark` and `Cleaner`."""

    def __init__(
        self,
        spark: "SparkSession",
        logs: Iterable[Log],
        *,
        tasks: int | None = None,
        task_bytes: int = TASK_BYTES,
        dedupe_buffer_bytes: int = 128 << 20,
        io_bytes_per_second: float | None = None,
        settings: CleanerSettings | None = None,
        **given: Any,
    ) -> None:
        tasks = room_for_tasks(spark) if tasks is None else tasks
        for name, value in (("tasks", tasks), ("task_bytes", task_bytes)):
            if type(value) is not int or value < 1:
                raise InvalidInputError(f"{name}={value!r} is out of range; allowed: 1 or more")
        self._spark = spark
        self._tasks = tasks
        self._task_bytes = task_bytes
        self._map_bytes = dedupe_buffer_bytes
        self._task_io = io_bytes_per_second
        self._task_settings = settings or CleanerSettings()
        super().__init__(
            logs,
            threads=tasks,
            dedupe_buffer_bytes=dedupe_buffer_bytes * tasks,
            io_bytes_per_second=io_bytes_per_second,
            settings=settings,
            **given,
        )

    @property
    def moved_ms(self) -> int:
        """As for `Cleaner`; running tasks are watched by Spark, so they count as moving."""
        return self._clock.monotonic_ms() if self.monitor.activities() else super().moved_ms

    def _add(self, log: Log) -> None:
        reach = log.handle.reach
        if isinstance(reach, Reach) and reach.single_writer:
            raise InvalidInputError(
                f"{log.url} was opened with single_writer, and Spark tasks would write to it from"
                " several processes; clean it with one cleaner"
            )
        super()._add(log)

    def _cleaned(
        self,
        log_round: LogRound,
        partition: int,
        progress: PassProgress,  # noqa: ARG002 - a task does not report progress
        *,
        force: bool,
    ) -> Iterator[PassResult]:
        """Does J1 and J4 for a partition."""
        handle, plan = log_round.log.handle, log_round.plan(partition, force=force)
        if plan is None:
            return
        parts = stretches(plan, task_bytes=self._task_bytes, count_max=self._tasks)
        task = PassTask(
            root=handle.standing.root,
            log_id=handle.standing.log_id,
            clock=handle.clock,
            settings=self._task_settings,
            partition=partition,
            stretches=tuple(parts) or (None,),
            map_bytes=self._map_bytes,
            io_bytes_per_second=self._task_io,
        )
        done = self._run(task)
        handle.refresh()  # The tasks made the commits.
        if all(each.results for each in done):
            results = done[0].results
            if parts:
                log_round.now_ms()  # Tasks may have taken hours, and the commit sets horizons.
                results = [commit_covered(handle, plan, [each.results for each in done])]
                log_round.end_pass(plan, results[0])
            else:
                log_round.rest_after(results[-1])
            yield from results
        elif (found := handle.manifest().uncleanable.get(partition)) is not None:
            # A task found this (S28), and logged it where it ran.
            what = (partition, log_round.log.url, found.reason)
            logger.error("partition %d of %s is uncleanable: %s", *what)
        troubles = [each.trouble for each in done if each.trouble is not None]
        if troubles:
            raise troubles[0]

    def _run(self, task: "PassTask") -> list["Done"]:
        """Runs the job of a task, and ends it if the cleaner is to stop."""
        tag = f"clog-{SystemIds().new_id()}"
        with ThreadPoolExecutor(1) as thread:
            future = thread.submit(run_job, self._spark, task, tag)
            while not wait([future], NAP_MS / 1000).done:
                self._throttle.moved_ms = self._clock.monotonic_ms()  # Spark watches its tasks.
                if self._is_stopping:
                    self._spark.interruptTag(tag)
            if self._is_stopping and future.exception() is not None:
                raise StoppedError
            return future.result()


@dataclass(frozen=True, slots=True)
class Done:
    """What a task hands back: the results of its passes, and the obstacle, if one stopped it."""

    results: Sequence[PassResult] = ()
    trouble: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTask:
    """What is sent to the tasks of one job: a partition of a log, and its stretches, one for each
    task, or None for the whole partition.
    """

    root: Store
    log_id: str
    clock: Clock
    settings: CleanerSettings
    partition: int
    stretches: Sequence[Stretch | None]
    map_bytes: int
    io_bytes_per_second: float | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            done = [pickle.dumps(self.execute(i)) for i in batch.column(0).to_pylist()]
            yield pa.record_batch({"id": batch.column(0), "done": of_bytes(done)})

    def execute(self, i: int) -> Done:
        """Does J2 and J3 for one of the stretches."""
        results: list[PassResult] = []
        try:
            for result in self._passes(self.stretches[i]):
                results.append(result)  # noqa: PERF402 - keeps what was done before a failure
        except Exception as e:  # noqa: BLE001 - the driver raises it
            return Done(results, e)
        return Done(results)

    def _passes(self, stretch: Stretch | None) -> Iterator[PassResult]:
        clock = self.clock
        handle = Handle(self.root, clock=clock, ids=SystemIds())
        if handle.standing.log_id != self.log_id:
            raise LogReplacedError(
                f"the log at {self.root.url} was deleted and recreated since its pass was planned"
                f" (its id was {self.log_id}, now it is {handle.standing.log_id})"
            )
        throttle = Throttle(self.io_bytes_per_second, clock)
        log_round = LogRound(Log(handle), clock, throttle, self.settings)
        threads, rest, ids = CleanerThreads(1, self.map_bytes), Rest(), SystemIds()
        for _ in range(PASSES_MAX):
            nap(clock, rest.until_ms - clock.monotonic_ms(), stopping=lambda: False)
            # The driver chose it: if a part has been done, the rest still has to be.
            result = log_round.clean(
                self.partition, threads, PassProgress(), force=True, stretch=stretch
            )
            if result is None:
                return
            yield result
            if result.complete:
                return
            rest.failed(clock.monotonic_ms(), ids.uniform)


def run_job(spark: "SparkSession", task: PassTask, tag: str) -> list[Done]:
    """Runs the tasks of one job, which its tag can interrupt; returns what each did."""
    spark.addTag(tag)
    count = len(task.stretches)
    rows = spark.range(0, count, 1, count).mapInArrow(task, "id bigint, done binary").collect()
    # Our own tasks pickled this.
    done = {row["id"]: pickle.loads(row["done"]) for row in rows}  # noqa: S301
    return [done[i] for i in range(count)]


def spark_session() -> "SparkSession":
    """Returns the session of the process; under ``spark-submit``, that of the job."""
    from pyspark.sql import SparkSession

    return SparkSession.builder.appName("clog cleaner").getOrCreate()


def room_for_tasks(spark: "SparkSession") -> int:
    """Returns into how many tasks Spark divides a job that does not say so: as many as there are
    cores now, unless it is set otherwise (``spark.default.parallelism``).
    """
    return spark.range(1 << 16).selectExpr("spark_partition_id() AS p").distinct().count()
