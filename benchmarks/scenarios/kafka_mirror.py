"""A mirror beside bare clients of Kafka: a topic into a log, and a log back into a topic.

There is one broker on this machine, and a topic of four partitions with zstd, read once beforehand,
so that it is in memory. The consumer reads all of it with `consume(5000)` and discards it; the
mirror commits it to a log on the local disk, in columns, with the same offsets, and syncs it. In
the other direction, the producer sends keys and values that it has in memory, without transactions,
with idempotence and with batches as large as clog's; clog reads its log, and sends each record
once, with two more headers. Each candidate is a process of its own, with all modules loaded; its
CPU seconds are those of all its threads, and the broker's are not counted. *Clock* is wall time.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from harness import data
from harness.measure import Result, Row, in_child
from peers.environments import VERSIONS
from peers.kafka import Broker

from clog.bridge import MirrorSettings

TITLE = "Mirrors beside bare clients of Kafka"
ENVIRONMENT = "tables"
ENGINE = "Python; Kafka: the broker"
SIZES = {
    "smallest": {"rows": 20_000, "rows_1k": 4_000, "rounds": 1},
    "quick": {"rows": 1_000_000, "rows_1k": 200_000, "rounds": 2},
    "full": {"rows": 10_000_000, "rows_1k": 2_000_000, "rounds": 3},
}
PARTITIONS = 4
SENT_PART = 4
"""Of the records this part goes the way back, which takes longer."""
CONSUMER, PRODUCER = "bare consumer", "bare producer"
_AT_ONCE = 5000
_WAIT_S = 120


def run(size: dict[str, int], folder: Path, result: Result) -> None:
    result.versions |= {"Apache Kafka": VERSIONS["kafka"]}
    with Broker(folder / "kafka") as broker:
        for record_bytes, rows in ((100, size["rows"]), (1024, size["rows_1k"])):
            topic = f"records-{record_bytes}"
            in_child(_fill, broker.address, topic, rows, record_bytes)
            log, back = str(folder / topic), str(folder / f"{topic}-back")
            in_child(_mirror, broker.address, topic, back, rows // SENT_PART)
            in_log = partial(in_child, _mirror, broker.address, topic, log, rows)
            consumed = partial(in_child, _consume, broker.address, topic, rows)
            sent = partial(in_child, _send, broker.address, back)
            produced = partial(in_child, _produce, broker.address, rows // SENT_PART, record_bytes)
            ways: dict[str, dict[str, Callable[[], dict[str, float]]]] = {
                "topic into a log": {"clog": in_log, CONSUMER: consumed},
                "log into a topic": {"clog": sent, PRODUCER: produced},
            }
            for what, candidates in ways.items():
                _compare(result, f"{what}, {record_bytes} B", candidates, size["rounds"])


def _compare(
    result: Result,
    what: str,
    candidates: dict[str, Callable[[], dict[str, float]]],
    rounds: int,
) -> None:
    candidates[next(reversed(candidates))]()  # What both read is in memory then.
    found: dict[str, list[dict[str, float]]] = {who: [] for who in candidates}
    for _ in range(rounds):
        for who, candidate in candidates.items():
            found[who].append(candidate())
            print(f"  {what}: {who}: {found[who][-1]}", flush=True)
    for name, unit in (("core", "thousand records/CPU second"), ("clock", "thousand records/s")):
        for who, each in found.items():
            label = what if name == "core" else f"clock of {what}"
            result.rows.append(Row(label, who, unit, [r[name] for r in each]))


def _rates(rows: int, act: Callable[[], object]) -> dict[str, float]:
    clock, core = time.perf_counter(), time.process_time()
    act()
    clock, core = time.perf_counter() - clock, time.process_time() - core
    return {"core": rows / core / 1e3, "clock": rows / clock / 1e3}


def _options(address: str, **more: object) -> dict[str, Any]:
    return {"bootstrap.servers": address, "log_level": 2, **more}


def _make(address: str, topic: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient(_options(address))
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(_WAIT_S)


def _fill(address: str, topic: str, rows: int, record_bytes: int) -> None:
    _make(address, topic)
    larger = {"compression.type": "zstd", "batch.size": 1 << 20, "linger.ms": 50}
    _produced(_records(rows, record_bytes), address, topic, **larger)


def _records(rows: int, record_bytes: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
    for table in data.batches(rows, max(1, rows // 4), record_bytes):
        yield table.column("key").to_pylist(), table.column("value").to_pylist()


def _produced(
    parts: Iterator[tuple[list[bytes], list[bytes]]], address: str, topic: str, **more: object
) -> None:
    from confluent_kafka import Producer

    producer = Producer(_options(address, **{"enable.idempotence": True, **more}))
    number = 0
    for keys, values in parts:
        for key, value in zip(keys, values, strict=True):
            while True:
                try:
                    producer.produce(topic, value, key, number % PARTITIONS)
                    break
                except BufferError:  # its queue is full
                    producer.poll(0.05)
            number += 1
    assert producer.flush(_WAIT_S) == 0


def _produce(address: str, rows: int, record_bytes: int) -> dict[str, float]:
    topic = f"produced-{os.getpid()}"
    _make(address, topic)
    parts = list(_records(rows, record_bytes))
    return _rates(rows, lambda: _produced(iter(parts), address, topic, **{"linger.ms": 20}))


def _consume(address: str, topic: str, rows: int) -> dict[str, float]:
    from confluent_kafka import Consumer, TopicPartition

    def act() -> None:
        more = {"group.id": "bare", "enable.auto.commit": False}
        consumer = Consumer(_options(address, **more))
        consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
        left = rows
        while left > 0:
            left -= len(consumer.consume(_AT_ONCE, 0.2))
        consumer.close()

    return _rates(rows, act)


def _mirror(address: str, topic: str, url: str, rows: int) -> dict[str, float]:
    """Mirrors the topic into a new log, or until that has so many records."""
    from clog.bridge import mirror

    _load(url)
    shutil.rmtree(url, ignore_errors=True)
    got: list[int] = [0]

    def act() -> None:
        done = mirror(
            *(f"kafka://{address}/{topic}", url),
            MirrorSettings(
                once=True,
                on_progress=lambda now: got.append(now.records),
                should_stop=lambda: got[-1] >= rows,
            ),
        )
        got.append(done.records)

    rates = _rates(rows, act)
    assert got[-1] >= rows, f"{got[-1]} of {rows} records were mirrored"
    return rates


def _send(address: str, url: str) -> dict[str, float]:
    from clog.bridge import send
    from clog.storage import Log

    _load(url)
    topic = f"sent-{os.getpid()}"
    _make(address, topic)
    # A mirror takes no positions of others before its end.
    rows = sum(batch.num_rows for batch in Log.open(url).read(columns=["offset"]))
    copy = f"{url}-{os.getpid()}"
    shutil.copytree(url, copy)
    Log.open(copy).give_offsets()
    rates = _rates(rows, lambda: send(copy, f"kafka://{address}/{topic}", once=True))
    shutil.rmtree(copy)
    return rates


def _load(url: str) -> None:
    """Has all modules loaded that an append and a read load when they are first made."""
    from clog.storage import Log

    log = Log.create(f"{url}-modules", 1)
    log.append(pa.table({"key": [b"k"], "value": [b"v"]}))
    assert sum(batch.num_rows for batch in log.read()) == 1
    shutil.rmtree(f"{url}-modules")
