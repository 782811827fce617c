"""How fast is a capture of PostgreSQL, in how much memory, and how soon is a COMMIT readable?

    python benchmarks/parts/capture.py [--rows 200000] [--big 2000000]
    python benchmarks/parts/capture.py --mysql [--rows 200000]
    python benchmarks/parts/capture.py --far [--commits 500] [--tables 3 50] [--proven]

Each line is a run of `clog capture --once` in a process of its own, with the CPU seconds (user and
system) and the peak of its memory; nothing but the process that captures is counted, and of its
CPU seconds what a run takes that finds nothing is not. Rows have about 200 bytes; those with
look-ups 2.5 KB, which updates leave out and the capture has to find in the log. ``--big`` rows are
written by one transaction, each of them updated by another one, then truncated.

``--mysql``: a load, inserts and updates of MySQL, with Debezium's engine in the process; needs a
server, which ``CLOG_MYSQLD`` may name (CONTRIBUTING.md).

``--far``: transactions of 3 tables, then of 50, one after the other with pauses, while a capture
follows that writes to an S3 server 100 ms away (`peers.far_s3`). Each is timed from when its COMMIT
has returned until the home's commit that names a cut with it is there: who looks reads the server's
folder, without the delay. Of the requests those of the capture are counted, a cut.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2

from clog.bridge.capturing.logs import ID
from clog.storage import Log, snapshot

sys.path.append(str(Path(__file__).parents[1]))
from peers.far_s3 import BUCKET, KEY, SECRET, far_s3
from peers.postgres import Server

CAPTURE = """
import json, resource, sys
from clog.bridge import CaptureSettings, PostgresSettings, capture, capture_mysql
if sys.argv[1].startswith("mysql:"):
    done = capture_mysql(*sys.argv[1:3], CaptureSettings(once=True))
else:
    done = capture(*sys.argv[1:3], PostgresSettings(once=True))
used = resource.getrusage(resource.RUSAGE_SELF)
peak = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM"))
print(json.dumps({"rows": done.rows, "cpu": used.ru_utime + used.ru_stime, "mib": peak / 1024}))
"""
FOLLOW = """
import json, sys
from clog.bridge import PostgresSettings, capture
given = json.loads(sys.argv[3])
capture(*sys.argv[1:3], PostgresSettings(**given, tables=sys.argv[4:]))
"""
EACH_WAY_MS, PAUSE_MAX_S, LOOK_S, START_S, WARM = 50, 0.4, 0.02, 300, 5
TABLE = """create table t (id bigint primary key, a int, b timestamptz, c text, big text);
alter table t alter big set storage external"""
INSERT = """insert into t select i, mod(i, 1000), now() + i * interval '1 second', repeat('x', 150),
    {big} from generate_series({first}, {last}) i"""
LARGE = "repeat(md5(i::text), 80)"


OF_MYSQL = """create table t (id bigint primary key, a int, b timestamp(6) null, c text)"""
INSERT_OF_MYSQL = """insert into t with recursive i (i) as
    (select {first} union all select i + 1 from i where i < {last})
    select i, mod(i, 1000), now(6) + interval i second, repeat('x', 150) from i"""


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


class Cuts(threading.Thread):
    """Notes when a cut was there first that goes up to a position: `times` and `positions`."""

    def __init__(self, home: Path) -> None:
        super().__init__(daemon=True)
        self._home, self._ended = home, threading.Event()
        self.times: list[float] = []
        self.positions: list[int] = []

    def run(self) -> None:
        home = Log.open(str(self._home))
        while not self._ended.wait(LOOK_S):
            ((at,),) = (one.values() for one in home.positions(ID).values())
            if not self.positions or at > self.positions[-1]:
                self.positions.append(at)
                self.times.append(time.monotonic())

    def end(self) -> None:
        """Ends it."""
        self._ended.set()
        self.join()


@contextmanager
def following(dsn: str, url: str, more: dict[str, Any], tables: list[str]) -> Iterator[None]:
    """Has a capture follow tables, in a process of its own, from its first cut on. ``more``: what
    else it is given.
    """
    once = [sys.executable, "-c", FOLLOW.replace("tables=", "once=True, tables="), dsn, url]
    follow = [sys.executable, "-c", FOLLOW, dsn, url]
    given = [json.dumps(more), *tables]
    subprocess.run([*once, *given], check=True)
    run = subprocess.Popen([*follow, *given])
    try:
        yield
        assert run.poll() is None, "the capture ended by itself"
    finally:
        run.terminate()
        run.wait()


def until(holds: Callable[[], bool]) -> None:
    """Waits until it holds."""
    end = time.monotonic() + START_S
    while not holds():
        assert time.monotonic() < end, f"nothing came within {START_S} s"
        time.sleep(0.05)


def far(dsn: str, folder: Path, count: int, commits: int, *, is_proven: bool) -> None:
    """Prints what COMMITs of so many tables took until a cut had them."""
    connection = psycopg2.connect(dsn)
    ask_it = connection.cursor()
    names = [f"far{count}_{i}" for i in range(count)]
    for name in names:
        ask_it.execute(f"create table {name} (id int primary key, v text)")
    connection.commit()
    write = "; ".join(f"insert into {name} values (%(id)s, 'x')" for name in names)
    dice, asked, took = random.Random(1), [], []

    def commit(number: int) -> None:
        ask_it.execute(f"{write}; select pg_current_wal_insert_lsn() - '0/0'", {"id": number})
        ((before,),) = ask_it.fetchall()
        connection.commit()
        asked.append((int(before), time.monotonic()))

    with far_s3(folder, EACH_WAY_MS, keep_alive=True) as (address, requests):
        options = {"key": KEY, "secret": SECRET, "client_kwargs": {"endpoint_url": address}}
        options["client_kwargs"]["region_name"] = "us-east-1"
        url, home = f"s3://{BUCKET}/shop", folder / "s3" / BUCKET / "shop"
        more = {"storage_options": options, "single_writer": is_proven}
        with following(dsn, url, more, names):
            cuts = Cuts(home)
            cuts.start()
            for number in range(WARM):
                commit(number)
                until(lambda: bool(cuts.positions) and cuts.positions[-1] > asked[-1][0])
            first = len(cuts.times)
            requests()
            for number in range(WARM, WARM + commits):
                time.sleep(dice.random() * PAUSE_MAX_S)
                commit(number)
            until(lambda: cuts.positions[-1] > asked[-1][0])
            made = sum(requests().values()) / (len(cuts.times) - first)
            cuts.end()
        cut = snapshot(url, storage_options=options)
        logs = (Log.open(f"{url}/public.{name}", options) for name in names)
        there = {log.table(at=cut).to_arrow().num_rows for log in logs}
        assert there == {WARM + commits}, there
    for before, at in asked[WARM:]:
        took.append(cuts.times[bisect_right(cuts.positions, before)] - at)
    took.sort()
    p50, p99 = (took[int(q * len(took))] for q in (0.5, 0.99))
    times = f"{p50:.2f} | {p99:.2f} | {took[-1]:.2f}"
    print(f"| {count} | {commits} | {len(cuts.times) - first} | {times} | {made:.0f} |", flush=True)


def throughput(dsn: str, folder: Path, rows: int, big: int) -> None:
    """Prints what each step took."""
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    ask_it = connection.cursor()
    ask_it.execute(TABLE)
    url = str(folder / "shop")
    print("| what | changes | CPU s | changes a CPU s | peak MiB |\n|---|--:|--:|--:|--:|")
    for name, changes, statements in steps(rows, big):
        for statement in statements:
            ask_it.execute(statement)
        print_step(name, changes, dsn, url)


def print_step(name: str, changes: int, dsn: str, url: str) -> None:
    """Captures what was done, and prints what it took."""
    took = captured(dsn, url)
    idle = captured(dsn, url)["cpu"]
    cpu = max(took["cpu"] - idle, 0.01)
    line = f"{changes:,} | {cpu:.2f} | {changes / cpu:,.0f} | {took['mib']:.0f}"
    print(f"| {name} | {line} |", flush=True)


def throughput_of_mysql(folder: Path, rows: int) -> None:
    """Prints what each step took of MySQL."""
    from peers import mysql

    from clog.bridge.mysql.engine import start_java

    os.environ["MYSQL_PWD"] = mysql.PASSWORD
    folder.mkdir(parents=True, exist_ok=True)
    start_java()
    with mysql.Server(folder) as server:
        connection = mysql.Database(server, "").connect()
        ask_it = connection.createStatement()
        ask_it.execute("create database shop")
        ask_it.execute("use shop")
        ask_it.execute("set cte_max_recursion_depth = 100000000")
        ask_it.execute(OF_MYSQL)
        ask_it.execute(INSERT_OF_MYSQL.format(first=1, last=rows))
        print("| what | changes | CPU s | changes a CPU s | peak MiB |\n|---|--:|--:|--:|--:|")
        print_step("first load", rows, server.dsn("shop"), str(folder / "logs"))
        for at in range(rows, 2 * rows, rows // 10):
            ask_it.execute(INSERT_OF_MYSQL.format(first=at + 1, last=at + rows // 10))
        print_step("inserts", rows, server.dsn("shop"), str(folder / "logs"))
        ask_it.execute(f"update t set a = a + 1 where id <= {rows}")
        print_step("updates", rows, server.dsn("shop"), str(folder / "logs"))


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ask.add_argument("--rows", type=int, default=200_000)
    ask.add_argument("--big", type=int, default=2_000_000)
    ask.add_argument("--folder", type=Path)
    ask.add_argument("--far", action="store_true")
    ask.add_argument("--mysql", action="store_true")
    ask.add_argument("--proven", action="store_true")
    ask.add_argument("--tables", type=int, nargs="+", default=[3, 50])
    ask.add_argument("--commits", type=int, default=500)
    given = ask.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="clog-capture-"))
    if given.mysql:
        throughput_of_mysql(folder, given.rows)
        shutil.rmtree(folder)
        return
    with Server(folder / "postgres") as server:
        if given.far:
            print("| tables | commits | cuts | s, p50 | p99 | longest | requests a cut |")
            print("|--:|--:|--:|--:|--:|--:|--:|")
            for count in given.tables:
                place = folder / f"far{count}"
                far(server.dsn, place, count, given.commits, is_proven=given.proven)
        else:
            throughput(server.dsn, folder, given.rows, given.big)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
