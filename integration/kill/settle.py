"""The end of a run: everybody has stopped, the oracle looks once more, and garbage must go."""

import time

import oracle
from records import BATCH
from report import Result
from world import LOGS, World

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties.sweep import sweep_orphans, sweep_released
from clog.storage import Log
from clog.storage.config.log_config import LogConfig
from clog.storage.format import documents


def settle(world: World) -> tuple[list[Result], list[str]]:
    """The last lines of the report, and facts of the run."""
    once = Result("all", "in the end: every sequence once, tables equal, invariants hold")
    once.problems = oracle.final_problems(world)
    cleaned = Result("all", "after a last cleaning: tables equal")
    log = world.open("table")
    log.roll()
    Cleaner(log, dedupe_buffer_bytes=1 << 20).run_once(force=True)
    cleaned.problems = oracle.problems(world)
    swept = Result("all", "after a last sweep: nothing is left that no version needs")
    count = sum(sweep(world.open(name)) for name in LOGS)
    swept.problems = [
        f"{name}: {path} is left" for name in LOGS for path in unneeded(world.open(name))
    ] + oracle.problems(world)
    return [once, cleaned, swept], [*_facts(world), f"{count:,} objects swept in the end"]


def sweep(log: Log) -> int:
    """Sweeps as if a day had passed."""
    handle = log.handle
    config = LogConfig.from_overrides(handle.refresh().head.config)
    time.sleep((config.file_delete_delay_ms + 100) / 1000)
    # The stamp of orphans is the newest version at most: the floor must be above it.
    log.alter({"max.message.bytes": 1_000_000})
    now_ms = handle.clock.now_ms()
    released = sweep_released(Work(handle, now_ms))
    orphans = sweep_orphans(Work(handle, handle.clock.now_ms() + 1), age_ms=0)
    return len(released.objects) + len(orphans.objects)


def unneeded(log: Log) -> list[str]:
    """The files that a sweep should have deleted."""
    needed = set(log.handle.manifest().files())
    store = log.handle.store
    found = [o.path for o in store.list(documents.DATA) if o.path not in needed]
    return found + [o.path for o in log.handle.standing.root.list_temporary("")]


def _facts(world: World) -> list[str]:
    facts = []
    for name in LOGS:
        log = world.open(name)
        sent = oracle.batches_in(log)
        whole = ", ".join(f"{n * BATCH:,} of {producer}" for producer, n in sorted(sent.items()))
        answered = sum(
            ack["duplicate"] for producer in sent for ack in world.acknowledged(producer, name)
        )
        facts.append(
            f"{name}: version {log.version:,}; {whole}; {answered} batches that were in doubt were"
            " answered with their first result"
        )
    return facts
