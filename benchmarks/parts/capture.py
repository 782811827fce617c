"""How fast is a capture of PostgreSQL, in how much memory, and how soon is a COMMIT readable?

    python benchmarks/parts/capture.py [--rows 200000] [--big 2000000]

Each line is a run of ``capture(once=True)`` in a process of its own, with the CPU seconds (user and
system) and the peak of its memory; nothing but the process that captures is counted, and of its
CPU seconds what a run takes that finds nothing is not. Rows have about 200 bytes; those with
look-ups 2.5 KB, which updates leave out and the capture has to find in the log. ``--big`` rows are
written by one transaction, each of them updated by another one, then truncated.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg2

sys.path.append(str(Path(__file__).parents[1]))
from peers.postgres import Server

CAPTURE = """
import json, resource, sys
from clog.bridge import capture
done = capture(*sys.argv[1:3], once=True)
used = resource.getrusage(resource.RUSAGE_SELF)
peak = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM"))
print(json.dumps({"rows": done.rows, "cpu": used.ru_utime + used.ru_stime, "mib": peak / 1024}))
"""
TABLE = """create table t (id bigint primary key, a int, b timestamptz, c text, big text);
alter table t alter big set storage external"""
INSERT = """insert into t select i, mod(i, 1000), now() + i * interval '1 second', repeat('x', 150),
    {big} from generate_series({first}, {last}) i"""
LARGE = "repeat(md5(i::text), 80)"


def captured(dsn: str, url: str) -> dict[str, float]:
    """Returns what one run took."""
    run = [sys.executable, "-c", CAPTURE, dsn, url]
    done = subprocess.run(run, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def steps(rows: int, big: int) -> list[tuple[str, int, list[str]]]:
    """Returns what is done: its name, how many changes it is, and its statements."""
    looked = rows // 10
    inserts = [
        INSERT.format(big="'small'", first=looked + 1 + at, last=looked + at + rows // 10)
        for at in range(0, rows, rows // 10)
    ]
    first = 10 * rows
    many = INSERT.format(big="'small'", first=first + 1, last=first + big)
    update = "update t set a = a + 1 where id"
    both = f"begin; {many}; {update} <= {looked}; commit"
    return [
        ("first load", looked, [INSERT.format(big=LARGE, first=1, last=looked)]),
        ("inserts", rows, inserts),
        ("updates", rows, [f"{update} > {looked}"]),
        ("updates with look-ups", looked, [f"{update} <= {looked}"]),
        ("one transaction of inserts, and look-ups", big + looked, [both]),
        ("updates in one transaction", big, [f"{update} > {first}"]),
        ("truncate", big, ["truncate t"]),
    ]


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ask.add_argument("--rows", type=int, default=200_000)
    ask.add_argument("--big", type=int, default=2_000_000)
    ask.add_argument("--folder", type=Path)
    given = ask.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="clog-capture-"))
    with Server(folder / "postgres") as server:
        connection = psycopg2.connect(server.dsn)
        connection.autocommit = True
        ask_it = connection.cursor()
        ask_it.execute(TABLE)
        url = str(folder / "shop")
        print("| what | changes | CPU s | changes a CPU s | peak MiB |\n|---|--:|--:|--:|--:|")
        for name, changes, statements in steps(given.rows, given.big):
            for statement in statements:
                ask_it.execute(statement)
            took = captured(server.dsn, url)
            idle = captured(server.dsn, url)["cpu"]
            cpu = max(took["cpu"] - idle, 0.01)
            rate = changes / cpu
            line = f"{changes:,} | {cpu:.2f} | {rate:,.0f} | {took['mib']:.0f}"
            print(f"| {name} | {line} |", flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
