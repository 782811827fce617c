"""A round of the cleaner whose passes run as Spark tasks, one partition a task.

J1. The driver begins the round and plans the passes, as `clog.cleaner.cleaner` does.
J2. A task executes one pass: it maps, judges and writes, and commits nothing. What it hands back
    are the edits that are ready, in their order. A task that dies, or runs twice, leaves orphans.
    A store that fails ends the pass and not the task: Spark would end the round with it, and its
    error would be Spark's.
J3. The driver commits the edits of each partition, oldest first, as a local pass does: it goes on
    where the sources were only coalesced meanwhile (`compaction.rebase`), and stops where more
    changed. So what is safe about a pass is safe here (`compaction.run_pass`).
J4. The driver ends the round, as any does.

Unlike a local pass, one here commits at its end: up to then both the old and the new segments take
space in the store, those of all partitions at once.
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from clog.cleaner.compaction.build_map import KeyHasher, check_share
from clog.cleaner.compaction.pass_plan import PassPlan
from clog.cleaner.compaction.pass_progress import PassProgress
from clog.cleaner.compaction.rebase import SourcesChangedError
from clog.cleaner.compaction.run_pass import (
    PassTools,
    commit_published,
    execute_pass,
    finished,
    was_replaced,
)
from clog.cleaner.compaction.stats import PassResult, PassStats
from clog.cleaner.log_round import CleanerSettings, LogRound
from clog.cleaner.metered_store import Throttle
from clog.cleaner.retention.uncleanable import PASSING_TROUBLE
from clog.cleaner.threads import CleanerThreads
from clog.storage import Log
from clog.storage.clock import SystemClock
from clog.storage.errors import StoreUnavailableError
from clog.storage.format.edits import Edit
from clog.storage.ids import SystemIds
from clog.storage.numpy_arrays import of_bytes
from clog.storage.store.base import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Executed:
    """What a task hands back. ``reason`` says why the pass failed, else it is None; ``missing`` is
    the file that it did not find, where that is why. ``trouble`` is the store's, which says nothing
    about the partition.
    """

    stats: PassStats
    covered: int
    edits: tuple[tuple[Edit, PassStats], ...] = ()
    reason: str | None = None
    missing: str | None = None
    trouble: StoreUnavailableError | None = None


def clean_with_spark(
    spark: "SparkSession",
    log: Log | str,
    *,
    force: bool = False,
    dedupe_buffer_bytes: int = 128 << 20,
    io_bytes_per_second: float | None = None,
    storage_options: Mapping[str, object] | None = None,
    settings: CleanerSettings | None = None,
) -> list[PassResult]:
    """Does one round over a log: maintenance that is due, then every eligible partition once, each
    as a task.

    Args:
        spark: a session whose workers have clog; Spark Connect's will do.
        log: the log, or its URL.
        force: clean whatever can be cleaned, whatever the dirty ratio.
        dedupe_buffer_bytes: memory of each task's offset map.
        io_bytes_per_second: limit on the bytes that each task reads and writes.
        storage_options: for a URL.
        settings: as of the cleaner.

    Returns:
        What each pass did, the most urgent first.

    Raises:
        StoreUnavailableError: the store failed (other passes are committed), or clocks differ.
        CommitConflictError, CommitStateUnknownError, CorruptionError, FileNotFoundError: as
            `Cleaner.run_once`.
    """
    opened = Log.open(log, storage_options) if isinstance(log, str) else log
    check_share(dedupe_buffer_bytes)
    settings = settings or CleanerSettings()
    log_round = LogRound(opened, opened.handle.clock, Throttle(None, opened.handle.clock), settings)
    log_round.begin()
    chosen = [log_round.plan(c.partition, force=force) for c in log_round.candidates(force=force)]
    plans = [plan for plan in chosen if plan is not None]
    task = _Task(
        opened.handle.store,
        tuple(pickle.dumps(plan.for_partition()) for plan in plans),
        dedupe_buffer_bytes,
        io_bytes_per_second,
        settings.hash_algorithm,
    )
    done = _run(spark, task) if plans else []
    results, troubles = _commit_all(log_round, plans, done)
    log_round.end()
    if troubles:
        raise troubles[0]
    return results


@dataclass(frozen=True, slots=True)
class _Task:
    """What travels to the workers, once to each; a task makes objects of its own plan alone."""

    store: Store
    plans: tuple[bytes, ...]
    map_bytes: int
    io_bytes_per_second: float | None
    hash_algorithm: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            done = [pickle.dumps(self.execute(i)) for i in batch.column(0).to_pylist()]
            yield pa.record_batch({"id": batch.column(0), "executed": of_bytes(done)})

    def execute(self, i: int) -> Executed:
        """Does the pass of the i-th plan."""
        plan: PassPlan = pickle.loads(self.plans[i])  # noqa: S301 - what the driver pickled
        clock, ids = SystemClock(), SystemIds()
        progress, edits = PassProgress(), list[tuple[Edit, PassStats]]()
        tools = PassTools(
            threads=CleanerThreads(1, self.map_bytes),
            throttle=Throttle(self.io_bytes_per_second, clock),
            hasher=KeyHasher(ids.seed(), self.hash_algorithm),
            clock=clock,
            new_id=ids.new_id,
            progress=progress,
        )
        try:
            covered, _ = execute_pass(
                self.store, plan, tools, lambda edit, counts: edits.append((edit, counts))
            )
        except StoreUnavailableError as e:
            return Executed(progress.stats, plan.dirty[0], trouble=e)
        except Exception as e:  # noqa: BLE001 - whatever it is, the others go on (S28)
            missing = e.filename if isinstance(e, FileNotFoundError) else None
            reason = f"{type(e).__name__}: {e}"
            return Executed(progress.stats, plan.dirty[0], reason=reason, missing=missing)
        return Executed(progress.stats, covered, tuple(edits))


def _run(spark: "SparkSession", task: _Task) -> list[Executed]:
    count = len(task.plans)
    rows = spark.range(0, count, 1, count).mapInArrow(task, "id bigint, executed binary").collect()
    # What our own tasks pickled.
    done = {row["id"]: pickle.loads(row["executed"]) for row in rows}  # noqa: S301
    return [done[i] for i in range(count)]


def _commit_all(
    log_round: LogRound, plans: Sequence[PassPlan], done: Sequence[Executed]
) -> tuple[list[PassResult], list[Exception]]:
    """Does J3: returns what the passes did, and what was in the way of some; the others go on
    (S28).
    """
    results: list[PassResult] = []
    troubles: list[Exception] = []
    for plan, executed in zip(plans, done, strict=True):
        if executed.trouble is not None:
            troubles.append(executed.trouble)
            continue
        try:
            result = _commit(log_round, plan, executed)
        except PASSING_TROUBLE as e:
            troubles.append(e)
        else:
            results.extend([result] if result is not None else [])
    return results, troubles


def _commit(log_round: LogRound, plan: PassPlan, executed: Executed) -> PassResult | None:
    """Does J3 for one partition."""
    handle, stats, complete = log_round.log.handle, executed.stats, executed.reason is None
    if executed.reason is not None and not was_replaced(handle, plan, executed.missing):
        log_round.fail_pass(plan, executed.reason)
        return None
    try:
        for edit, counts in executed.edits:
            commit_published(handle, plan, edit, counts, stats)
    except SourcesChangedError:
        complete = False
    except PASSING_TROUBLE:
        raise
    except Exception as e:  # noqa: BLE001 - whatever it is, the others go on (S28)
        log_round.fail_pass(plan, e)
        return None
    result = finished(plan, executed.covered, stats, complete=complete, after=handle.manifest())
    log_round.end_pass(plan, result)
    return result
