"""Measures look-ups by key in a log that nobody coalesced: one small object for each append.

    python benchmarks/parts/uncoalesced_lookup.py --objects 10000

The log is in memory, of one partition, a record an object. CPU time of this process: the first
look-up after opening fetches every index; "warm" are look-ups of the oldest key, of the newest, and
of none; "next version" is the first look-up after another append.
"""

import argparse
import time

from clog.storage import Log
from clog_testing.counting import CountingStore
from clog_testing.crash import discard, memory_store

ROUNDS = 5


def fill(store, objects):
    log = Log.create(store, partitions=1)
    for i in range(objects):
        log.append([{"key": f"key-{i}", "value": f"{i}"}])


def measured(store, act):
    """CPU milliseconds of this process, and requests."""
    began = time.process_time()
    with store.count() as held:
        act()
    return 1000 * (time.process_time() - began), held.total()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--objects", type=int, default=2_000)
    count = parser.parse_args().objects
    store = CountingStore(memory_store())
    fill(store, count)
    log = Log.open(store)

    def get(key):
        return lambda: log.table().get(key)

    rows = [("first", measured(store, get("key-0")))]
    for name, key in (("oldest", "key-0"), ("newest", f"key-{count - 1}"), ("none", "nobody")):
        rows.append((f"warm, {name}", min(measured(store, get(key)) for _ in range(ROUNDS))))
    later = []
    for i in range(ROUNDS):
        log.append([{"key": "later", "value": f"{i}"}])
        later.append(measured(store, get("later")))
    rows.append(("next version", min(later)))
    print(f"| {count:,} objects | CPU / ms | requests |\n|---|--:|--:|")
    for name, (cpu_ms, requests) in rows:
        print(f"| {name} | {cpu_ms:.2f} | {requests:,} |")
    discard(store.inner)


if __name__ == "__main__":
    main()
