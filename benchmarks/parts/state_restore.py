"""Measures what a lost disk and a crash cost a state store of many keys, beside a Kafka broker.

    python benchmarks/parts/state_restore.py --keys 10000000     # needs rocksdict, confluent-kafka

- *Restore*: a store whose disk is gone reads the table of its cleaned log; beside it the topic with
  the same records is replayed, from one KRaft broker on this machine, into RocksDB, as Kafka
  Streams restores a store. Wall time and CPU; that of the broker is not counted.
- *Opening*: the same store in a process of its own, after one that had committed was killed.

On a quiet machine only: wall time is what the question is about.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from state_store import killed, rocks
from state_table import BATCH, keys_of, make_log, values_of

from clog.cleaner import Cleaner
from clog.storage import StateStore

VALUE_BYTES = 100
TOPIC = "state"
POLL_RECORDS = 10_000
_OPEN = """
import sys, time
from clog.storage import StateStore
wall, cpu = time.perf_counter(), time.process_time()
with StateStore(sys.argv[1], sys.argv[2], "bench") as store:
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert store.get("killed") == b"1"
print(f"{1e3 * wall:.0f} ms, {1e3 * cpu:.0f} ms of CPU")
"""


def timed(act: Callable[[], object]) -> tuple[float, float]:
    """Returns the seconds of wall and of CPU that something takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    act()
    return time.perf_counter() - wall, time.process_time() - cpu


def tables(keys: int) -> Iterator[pa.Table]:
    """Yields the records of the log, in their order."""
    for first in range(0, keys, BATCH):
        some = keys_of(first, min(keys, first + BATCH))
        columns = {"key": some, "value": values_of(len(some), VALUE_BYTES, first)}
        yield pa.table({name: pa.array(v, pa.binary()) for name, v in columns.items()})


def replay(address: str, database: Any, keys: int) -> None:
    """Reads the topic from its start, and puts each record into RocksDB."""
    from confluent_kafka import Consumer, TopicPartition
    from rocksdict import WriteBatch

    consumer = Consumer({"bootstrap.servers": address, "group.id": "restore"})
    found = consumer.list_topics(TOPIC).topics[TOPIC].partitions
    consumer.assign([TopicPartition(TOPIC, p, 0) for p in found])
    entered = 0
    while entered < keys:
        some, records = WriteBatch(raw_mode=True), consumer.consume(POLL_RECORDS, timeout=10)
        assert records, f"the topic ended after {entered} of {keys} records"
        for record in records:
            some.put(record.key(), record.value())
        database.write(some)
        entered += len(records)
    consumer.close()


def replayed(folder: Path, keys: int) -> tuple[float, float]:
    """Fills a topic, and returns what it takes to replay it."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from peers.kafka import Broker, produce

    with Broker(folder / "broker", {"num.partitions": 4}) as broker:
        produce(broker.address, TOPIC, tables(keys))
        database = rocks(folder / "rocks")
        taken = timed(lambda: replay(broker.address, database, keys))
        database.close()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--without-broker", action="store_true")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp())
    url, cache = str(folder / "log"), folder / "cache"
    log = make_log(folder / "log", given.keys, VALUE_BYTES)
    log.roll()
    Cleaner(log).run_once(force=True)
    shutil.rmtree(cache, ignore_errors=True)
    ours = timed(lambda: StateStore(url, cache, "bench").close())
    print(f"restore of {given.keys:,} keys: {ours[0]:.1f} s, {ours[1]:.1f} s of CPU", flush=True)
    killed(url, cache)
    opened = subprocess.run(
        [sys.executable, "-c", _OPEN, url, str(cache)], capture_output=True, text=True, check=True
    )
    print(f"opening after a kill: {opened.stdout.strip()}", flush=True)
    if not given.without_broker:
        theirs = replayed(folder, given.keys)
        print(f"replay into RocksDB: {theirs[0]:.1f} s, {theirs[1]:.1f} s of CPU")
        print(f"restore ÷ replay: {ours[0] / theirs[0]:.2f}, of CPU {ours[1] / theirs[1]:.2f}")
    if given.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
