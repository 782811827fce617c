"""clog's cleaner beside Kafka's LogCleaner, over the same records.

Both get the same records in the same order, in one partition, with zstd, in sealed segments of the
same size. *Never cleaned* is a pass over a log that was never cleaned, *half clean* one over a log
whose older half is clean (a dirty ratio of one half). *10 % updates* is a pass over a clean log of
which a tenth of the keys was updated, spread evenly (*uniform*) or in runs of 1,000 neighbours
(*local*).

Kafka's time is what its cleaner thread logs, on a broker that does nothing else; the topic is there
twice, and the second pass counts, with a warm JVM. clog's time is a pass of one thread, from the
opened log to the committed result. *Clock* is wall time; with two threads, clog is compared with
the same pass of Kafka's, whose threads do not share a partition. CPU seconds are those of clog's
process, and of Kafka's cleaner thread alone, without the garbage collector. *All that follows
counted in* adds what marking rows puts off: the purge, and ten reads of the table. Records are
those at the beginning of the pass. Memory is the peak of the whole process, the broker's with a
heap of 1 GiB.

*On disk* are the current records and metadata, without files that wait to be deleted.
"""

import shutil
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from harness import data
from harness.machine import memory_mb
from harness.measure import Result, Row, in_child
from peers.environments import VERSIONS
from peers.kafka import Broker, Cleaned, produce

TITLE = "Cleaning beside Kafka's LogCleaner"
ENVIRONMENT = "tables"
ENGINE = "Python; Kafka: the broker"
SIZES = {
    "smallest": {"rows": 40_000, "rows_1k": 6_000, "rounds": 1, "segment_bytes": 1 << 20},
    "quick": {"rows": 1_000_000, "rows_1k": 100_000, "rounds": 2, "segment_bytes": 16 << 20},
    "full": {"rows": 3_000_000, "rows_1k": 400_000, "rounds": 3, "segment_bytes": 64 << 20},
}
TOPICS = ("records", "records-again")
NEVER_MS = 2**62
CLEAN_AT_ONCE = {
    "log.cleaner.min.cleanable.ratio": 0.01,
    "log.cleaner.backoff.ms": 200,
    "log.cleaner.min.compaction.lag.ms": 0,
}
WAIT_S = 900
_NEXT_SEGMENT = pa.table({"key": [b"first of the next segment"], "value": [b""]})


def run(size: dict[str, int], folder: Path, result: Result) -> None:
    result.versions |= {"Apache Kafka": VERSIONS["kafka"]}
    for record_bytes, rows in ((100, size["rows"]), (1024, size["rows_1k"])):
        halves = [list(data.batches(rows // 2, rows // 5, record_bytes, seed=s)) for s in (1, 2)]
        phases = [("never cleaned", halves[0]), ("half clean", halves[1])]
        _measure(folder / "halves", result, record_bytes, phases, size)
        for spread, ids in (("uniform", _uniform(rows // 2)), ("local", _local(rows // 2))):
            each_once = list(data.batches(rows // 2, rows // 2, record_bytes, seed=3))
            phases = [("", each_once), (f"10 % {spread} updates", _updates(ids, record_bytes))]
            _measure(folder / spread, result, record_bytes, phases, size)


def _uniform(keys: int) -> np.ndarray:
    return np.random.default_rng(4).choice(keys, keys // 10, replace=False)


def _local(keys: int) -> np.ndarray:
    run = min(1000, keys // 10)
    runs = np.random.default_rng(5).choice(keys // run, keys // 10 // run, replace=False)
    return (np.sort(runs)[:, None] * run + np.arange(run)).ravel()


def _updates(ids: np.ndarray, record_bytes: int) -> list[pa.Table]:
    values = data.values(np.random.default_rng(6), len(ids), record_bytes)
    return [pa.table({"key": data.keys(ids), "value": values})]


def _measure(
    folder: Path,
    result: Result,
    record_bytes: int,
    phases: list[tuple[str, list[pa.Table]]],
    size: dict[str, int],
) -> None:
    """Fills, and measures a pass, phase by phase; one without a name is only cleaned."""
    broker_config = {
        "log.cleanup.policy": "compact",
        "num.partitions": 1,
        "log.segment.bytes": size["segment_bytes"],
    }
    kafka = _Kafka(folder / "kafka", broker_config)
    clog = _Clog(folder / "clog", size["segment_bytes"])
    for state, tables in phases:
        kafka.fill(tables)
        clog.fill(tables)
        what = f"cleaning, {record_bytes} B, {state}"
        if state:
            _sizes(result, f"on disk before {what}", kafka, clog)
        found: dict[str, list[dict[str, float]]] = {"clog": [], "Apache Kafka": []}
        for _ in range(size["rounds"] if state else 1):
            found["clog"].append(clog.cleaned())
            found["Apache Kafka"].append(kafka.cleaned())
        if state:
            _report(result, what, found, record_bytes)
        kafka.keep()
        clog.keep()
        if state:
            _sizes(result, f"on disk after {what}", kafka, clog)
    shutil.rmtree(folder)


def _report(
    result: Result, what: str, found: dict[str, list[dict[str, float]]], record_bytes: int
) -> None:
    for name, unit, lower in (
        ("core", "thousand records/CPU second", False),
        ("clock", "thousand records/s", False),
        ("clock with two threads", "thousand records/s", False),
        ("core, all that follows counted in", "thousand records/CPU second", False),
        ("memory", "MB", True),
    ):
        for who, rounds in found.items():
            values = [r[name] for r in rounds]
            print(f"  {what}, {name}: {who}: {values} {unit}", flush=True)
            label = what if name == "core" else f"{name} of {what}"
            result.rows.append(Row(label, who, unit, values, lower))
            if name == "core":
                mb = [v * record_bytes / 1e3 for v in values]
                result.rows.append(
                    Row(f"bytes, {what}", who, "MB of keys and values/CPU second", mb)
                )


def _sizes(result: Result, what: str, kafka: "_Kafka", clog: "_Clog") -> None:
    for who, size_mb in (("clog", clog.size_mb()), ("Apache Kafka", kafka.size_mb())):
        result.add(what, who, "MB", size_mb, lower=True)


class _Kafka:
    """A broker's folder; each round cleans a copy of it."""

    def __init__(self, folder: Path, config: dict[str, object]) -> None:
        self.folder = folder
        self._config = config
        self._copy = folder.with_name("kafka-copy")

    def size_mb(self) -> float:
        files = (self.folder / "data" / f"{TOPICS[0]}-0").iterdir()
        return sum(path.stat().st_size for path in files if path.suffix != ".deleted") / 1e6

    def fill(self, tables: list[pa.Table]) -> None:
        idle = {**self._config, "log.cleaner.min.compaction.lag.ms": NEVER_MS}
        with Broker(self.folder, idle) as broker:
            for topic in TOPICS:
                produce(broker.address, topic, tables)
        # A record that comes later than this begins a segment; nothing else seals the active one.
        with Broker(self.folder, {**idle, "log.roll.ms": 1}) as broker:
            for topic in TOPICS:
                produce(broker.address, topic, [_NEXT_SEGMENT])

    def cleaned(self) -> dict[str, float]:
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self.folder, self._copy)
        with Broker(self._copy, {**self._config, **CLEAN_AT_ONCE}) as broker:
            broker.wait_for_passes(1, WAIT_S)
            before = broker.cleaner_cpu_seconds()
            done: Cleaned = broker.wait_for_passes(len(TOPICS), WAIT_S)[-1]
            core = done.records / (broker.cleaner_cpu_seconds() - before) / 1e3
            clock = done.records / done.seconds / 1e3
            return {
                "core": core,
                "clock": clock,
                "clock with two threads": clock,
                "core, all that follows counted in": core,
                "memory": memory_mb(broker.pid),
            }

    def keep(self) -> None:
        """Goes on with what the last round left."""
        shutil.rmtree(self.folder)
        self._copy.rename(self.folder)


class _Clog:
    """A log's folder; each round cleans a copy of it."""

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        self.folder = folder
        self._copy = folder.with_name("clog-copy")
        self._config = {"segment.bytes": segment_bytes, "min.cleanable.dirty.ratio": 0.01}

    def fill(self, tables: list[pa.Table]) -> None:
        from clog.storage import Log

        if self.folder.exists():
            log = Log.open(str(self.folder))
        else:
            log = Log.create(str(self.folder), partitions=1, config=self._config)
        for table in tables:
            log.append(table, partition=0)
        log.roll()

    def size_mb(self) -> float:
        from clog.storage import Log
        from clog.storage.format import documents

        handle = Log.open(str(self.folder)).handle
        segments = handle.manifest().segments[0]
        objects = {c.object.path: c.object.size_bytes for s in segments for c in s.chunks}
        stored = self.folder / documents.folder_of(handle.standing.log_id) / documents.DATA
        documents_mb = data.size_mb(self.folder) - data.size_mb(stored)
        return sum(objects.values()) / 1e6 + documents_mb

    def cleaned(self) -> dict[str, float]:
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self.folder, self._copy)
        url = str(self._copy)
        return in_child(_with_two_threads, url) | in_child(_pass_over, url)

    def keep(self) -> None:
        shutil.rmtree(self.folder)
        self._copy.rename(self.folder)


def _with_two_threads(url: str) -> dict[str, float]:
    """The second of two passes over copies, in a process of its own."""
    from clog.cleaner import Cleaner
    from clog.storage import Log

    clock = 0.0
    for _ in range(2):
        shutil.copytree(url, f"{url}-again")
        log = Log.open(f"{url}-again")
        records = sum(s.records for s in log.segments(0))
        began = time.perf_counter()
        Cleaner(log, 2).run_once(force=True)
        clock = time.perf_counter() - began
        shutil.rmtree(f"{url}-again")
    return {"clock with two threads": records / clock / 1e3}


def _pass_over(url: str) -> dict[str, float]:
    """One pass, in a process of its own, so that its peak memory is its own; like Kafka's, the
    second one over the same records, with all modules loaded.
    """
    from clog.cleaner import Cleaner
    from clog.storage import Log

    shutil.copytree(url, f"{url}-again")
    Cleaner(Log.open(f"{url}-again")).run_once(force=True)
    shutil.rmtree(f"{url}-again")
    log = Log.open(url)
    records = sum(s.records for s in log.segments(0))
    cleaner = Cleaner(log)
    clock, core = time.perf_counter(), time.process_time()
    results = cleaner.run_once(force=True)
    clock, core = time.perf_counter() - clock, time.process_time() - core
    assert results, "nothing was cleaned"
    memory = memory_mb()
    shutil.copytree(url, f"{url}-later")
    later = _later(f"{url}-later")
    shutil.rmtree(f"{url}-later")
    return {
        "core": records / core / 1e3,
        "clock": records / clock / 1e3,
        "core, all that follows counted in": records / (core + later) / 1e3,
        "memory": memory,
    }


def _later(url: str) -> float:
    """CPU seconds of what a pass that marks puts off: what dead rows add to ten reads of the table,
    and the purge. The log has another configuration then.
    """
    from clog.cleaner import Cleaner
    from clog.storage import Log

    def reads() -> float:
        began = time.process_time()
        for _ in range(10):
            Log.open(url).table().to_arrow()
        return time.process_time() - began

    before = reads()
    log = Log.open(url)
    log.alter({"dead.rows.delay.ms": "1"})
    cleaner, began = Cleaner(log), time.process_time()
    cleaner.run_once()
    purge = time.process_time() - began
    return purge + max(0.0, before - reads())
