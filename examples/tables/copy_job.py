"""Read, process, write, exactly once: a job reads two logs and writes two others, and is killed at
random moments, again and again.

    python examples/tables/copy_job.py [folder]
"""

import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from itertools import count

from clog.storage import Log

PARTITIONS, RECORDS, STEP = 2, 200, 8
JOB = "bookkeeping"
SIGN = {"orders": -1, "payments": 1}


def amount_of(i: int) -> int:
    return i * 7 % 50


def copy_some(sources: dict[str, Log], books: Log, balances: Log) -> bool:
    """Reads the next records of both logs; writes a line for each, the new balances, and how far it
    has come, in one transaction of the two logs. False where there is nothing left.
    """
    with books.transaction(JOB) as t:
        done, left = books.positions(JOB), False
        lines, changes = [], Counter()
        for kind, source in sources.items():
            ends, positions = source.stable_offsets(), done.get(source.id, {})
            for p in range(PARTITIONS):
                start = positions.get(p, 0)
                end = min(start + STEP, ends[p])
                for batch in source.read(partition=p, start=start, end=end):
                    for row in batch.to_pylist():
                        lines.append(
                            {"key": row["key"], "value": f"{kind} {row['value'].decode()}"}
                        )
                        changes[row["key"]] += SIGN[kind] * int(row["value"])
                t.positions(source, {p: end})
                left = left or end < ends[p]
        now = {row["key"]: int(row["value"]) for row in balances.table().to_arrow().to_pylist()}
        t.append(lines)
        t.append(
            [{"key": key, "value": str(now.get(key, 0) + by)} for key, by in changes.items()],
            log=balances,
        )
    return left


def work(folder: str, steps: int, dies_after_s: float) -> None:
    """One process. It knows nothing of those before it but what is in the logs. After so many steps
    it has this time to live: how far it comes depends on no machine.
    """
    sources = {kind: Log.open(f"{folder}/{kind}") for kind in SIGN}
    books, balances = Log.open(f"{folder}/books"), Log.open(f"{folder}/balances")
    for step in count():
        if step == steps:
            # The signal of this timer ends the process wherever it is: no `finally`, no goodbye.
            signal.setitimer(signal.ITIMER_PROF, dies_after_s)
        if not copy_some(sources, books, balances):
            return


def main(folder: str) -> tuple[tuple[object, object], tuple[object, object], int]:
    """Returns what is in the books and the balances, the same computed without clog, and how many
    processes it took.
    """
    for kind in SIGN:
        log = Log.create(f"{folder}/{kind}", partitions=PARTITIONS)
        for p in range(PARTITIONS):
            rows = [
                {"key": f"customer-{i % 3}", "value": str(amount_of(i))}
                for i in range(p, RECORDS, PARTITIONS)
            ]
            log.append(rows, partition=p)
    books = Log.create(f"{folder}/books", 1, {"cleanup.policy": ""})
    balances = Log.create(f"{folder}/balances", 1)
    code, processes = -1, 0
    while code != 0:
        processes += 1
        life = str(random.randint(0, 4)), str(random.uniform(0.001, 0.05))
        command = [sys.executable, __file__, "work", folder, *life]
        code = subprocess.run(command, check=False).returncode
        given = books.end_offsets()[0]
        print(f"process {processes} ended with {code}; {given} offsets are given")
    lines = [row["value"].decode() for batch in books.read() for row in batch.to_pylist()]
    rows = balances.table().to_arrow().to_pylist()
    found = sorted(lines), {row["key"].decode(): int(row["value"]) for row in rows}
    return found, without_clog(), processes


def without_clog() -> tuple[list[str], dict[str, int]]:
    """What the job computes, in a few lines of Python."""
    lines, balances = [], Counter()
    for kind, sign in SIGN.items():
        for i in range(RECORDS):
            lines.append(f"{kind} {amount_of(i)}")
            balances[f"customer-{i % 3}"] += sign * amount_of(i)
    return sorted(lines), dict(balances)


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            found, expected, _ = main(sys.argv[1] if len(sys.argv) > 1 else temporary)
            print(f"books and balances are right: {found == expected}")
