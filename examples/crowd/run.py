"""Processes that know nothing of each other append to one log, and are killed at random; in the end
each append that was acknowledged is there once, and no other one is there twice.

    python examples/crowd/run.py                            # 8 processes, in a temporary folder
    python examples/crowd/run.py --processes 64 --appends 2000 --url s3://bucket/empty/folder
"""

import argparse
import multiprocessing
import os
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

from clog.storage import CommitStateUnknownError, Log, StoreUnavailableError

PROCESSES = multiprocessing.get_context("forkserver")
PAUSE_S = 0.5
APPENDS_A_KILL = 10


def work(url: str, told: Path, name: str) -> None:
    """Appends events, and notes those that were acknowledged, until it is killed."""
    log, number = Log.open(url), 0
    with told.open("a") as file:
        while True:
            event = f"{name}-{number}"
            try:
                log.append([{"key": event, "value": "{}"}])
            except (CommitStateUnknownError, StoreUnavailableError) as e:
                print(f"{event} may be there: {e}")
            else:
                os.write(file.fileno(), f"{event}\n".encode())
            number += 1
            time.sleep(random.expovariate(1 / PAUSE_S))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--appends", type=int, default=200, help="that are acknowledged")
    parser.add_argument("--url", help="an empty folder (default: a temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="clog-crowd-") as folder:
        return run(args.url or f"{folder}/log", Path(folder), args.processes, args.appends)


def run(url: str, folder: Path, count: int, appends: int) -> int:
    Log.create(url, partitions=4)
    PROCESSES.set_forkserver_preload(["clog.storage", "pyarrow.parquet"])
    lives = Counter[int]()

    def start(n: int) -> multiprocessing.process.BaseProcess:
        lives[n] += 1
        told = folder / f"told-{n}"
        process = PROCESSES.Process(target=work, args=(url, told, f"{n}.{lives[n]}"))
        process.start()
        return process

    running = [start(n) for n in range(count)]
    for done in range(0, appends, APPENDS_A_KILL):
        while len(acknowledged(folder)) < done:
            time.sleep(0.05)
        n = random.randrange(count)
        running[n].kill()
        running[n].join()
        running[n] = start(n)
    for process in running:
        process.kill()
        process.join()
    return compare(Log.open(url), folder, kills=lives.total() - count)


def acknowledged(folder: Path) -> list[str]:
    return [event for file in folder.glob("told-*") for event in file.read_text().split()]


def compare(log: Log, folder: Path, *, kills: int) -> int:
    """Compares what the log has with what the processes were told; the exit code."""
    keys = log.read(columns=["key"]).to_arrow()["key"].to_pylist()
    there = Counter(key.decode() for key in keys)
    told = acknowledged(folder)
    lost = [event for event in told if event not in there]
    twice = [event for event, times in there.items() if times > 1]
    print(f"{kills} kills; {len(told)} appends were acknowledged: {len(lost)} of them are lost")
    print(f"{len(there)} are there, {len(twice)} of them twice; they took {log.version} commits")
    return 1 if lost or twice else 0


if __name__ == "__main__":
    raise SystemExit(main())
