"""Read, process, write, exactly once: a job copies two logs into a third, and is killed again and
again.

    python examples/tables/copy_job.py [folder]
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable

from clog.storage import Log

PARTITIONS, RECORDS, STEP = 2, 12, 2
JOB = "bookkeeping"
DEATHS = (2, 5, 8, 3)
"""At which of its chances a process dies: before its first commit, right after it, …; one more goes
on to the end.
"""


def line_of(kind: str, row: dict) -> dict:
    """What the job makes of a record."""
    return {"key": row["key"], "value": f"{kind} {row['value'].decode()}"}


def copy_some(sources: dict[str, Log], target: Log, may_die: Callable[[], None]) -> bool:
    """Copies the next records of both logs, and how far it has come, in one transaction; False
    where there is nothing left.
    """
    with target.transaction(JOB) as t:
        done, left = target.positions(JOB), False
        for kind, source in sources.items():
            ends, positions = source.end_offsets(), done.get(source.id, {})
            for p in range(PARTITIONS):
                start = positions.get(p, 0)
                end = min(start + STEP, ends[p])
                rows = [
                    row
                    for batch in source.read(partition=p, start=start, end=end)
                    for row in batch.to_pylist()
                ]
                t.append([line_of(kind, row) for row in rows])
                may_die()
                t.positions(source, {p: end})
                left = left or end < ends[p]
    may_die()
    return left


def work(folder: str, dies_at: int) -> None:
    """One process. It knows nothing of those before it but what is in the logs."""
    chances = iter(range(1, dies_at + 1))

    def may_die() -> None:
        if next(chances, None) == dies_at:
            os._exit(9)  # as killed: no `finally`, no goodbye

    sources = {kind: Log.open(f"{folder}/{kind}") for kind in ("orders", "payments")}
    books = Log.open(f"{folder}/books")
    while copy_some(sources, books, may_die):
        pass


def main(folder: str) -> tuple[list[str], list[str], int]:
    """Returns what is in the books, what must be, and how many processes it took."""
    expected = []
    for kind in ("orders", "payments"):
        log = Log.create(f"{folder}/{kind}", partitions=PARTITIONS)
        for i in range(RECORDS):
            log.append([{"key": f"customer-{i % 3}", "value": str(i)}], partition=i % PARTITIONS)
            expected.append(f"{kind} {i}")
    books = Log.create(f"{folder}/books", partitions=1)
    for i, dies_at in enumerate((*DEATHS, 0), 1):
        command = [sys.executable, __file__, "work", folder, str(dies_at)]
        code = subprocess.run(command, check=False).returncode
        print(f"process {i} ended with {code}; the books have {books.end_offsets()[0]} lines")
    found = [row["value"].decode() for batch in books.read() for row in batch.to_pylist()]
    return sorted(found), sorted(expected), len(DEATHS) + 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(sys.argv[2], int(sys.argv[3]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            found, expected, _ = main(sys.argv[1] if len(sys.argv) > 1 else temporary)
            print(f"each line once: {found == expected}")
