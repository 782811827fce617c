"""A database that works, is captured, and cleaned, while all three are killed: at every cut the
invariants of the database hold.

    python integration/capture/soak.py [--minutes 60] [--writers 3] [--tables 60] [--seed 1]

Three tables with foreign keys: accounts, transfers with a large note, two entries for each. Writers
move money, change transfers without their notes, change keys (which cascade), roll back, delete,
and once in a while change a table's shape, or write 60 tables at once. At each cut that is found

- the balances add up to what they were, and each is its beginning and its entries;
- each entry has its transfer, each transfer two entries that add up to nothing;
- each note is whole: it is long, and ends as its transfer says;
- the 60 tables have the same number.

In the end, with nobody writing, the logs have what the tables have. Prints its figures as JSON;
ends with 1 where anything was wrong.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import duckdb
import psycopg2

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from peers.postgres import Server  # noqa: E402

from clog.storage import CommitConflictError, Log, NotFoundError, VersionExpiredError, snapshot  # noqa: E402

ACCOUNTS = 50
BALANCE = 1000
SCHEMA = f"""
create table accounts (id int primary key, owner text, balance int not null);
create table transfers (id bigint primary key, amount int not null, note text not null, state text);
create table entries (
  transfer bigint references transfers on update cascade on delete cascade,
  account int references accounts, delta int not null, primary key (transfer, account));
alter table transfers alter note set storage external;
insert into accounts select i, 'owner ' || i, {BALANCE} from generate_series(1, {ACCOUNTS}) i;
create table parts (id int, day int, primary key (id, day)) partition by list (day);
"""


class Writer(threading.Thread):
    """One who works in the database, and tries again while it is away."""

    def __init__(self, dsn, number, seed, counts, stop, wide):
        super().__init__(daemon=True)
        self.dsn, self.number, self.counts, self.stop, self.wide = dsn, number, counts, stop, wide
        self.random = random.Random(f"{seed}/{number}")
        self.next = number + 1
        self.mine = []

    def run(self):
        while not self.stop.is_set():
            try:
                with psycopg2.connect(self.dsn) as connection:
                    while not self.stop.is_set():
                        self.work(connection)
            except psycopg2.Error:
                time.sleep(0.2)

    def work(self, connection):
        dice = self.random.random()
        with connection.cursor() as cursor:
            if dice < 0.6 or not self.mine:
                self.transfer(cursor)
            elif dice < 0.8:
                cursor.execute(
                    "update transfers set state = %s where id = %s", (str(dice), self.one())
                )
            elif dice < 0.9:
                old, new = self.one(), self.number + 10 * self.random.randrange(10**9, 2 * 10**9)
                cursor.execute("update transfers set id = %s where id = %s", (new, old))
                connection.commit()
                self.mine[self.mine.index(old)] = new
            elif dice < 0.92:
                for i in range(self.wide):
                    cursor.execute(f"update wide{i} set n = n + 1")
            elif dice < 0.96 and len(self.mine) > 200:
                self.undo(cursor, self.mine.pop(0))
            if self.random.random() < 0.05:
                connection.rollback()
                self.counts["rolled back"] += 1
            else:
                connection.commit()
                self.counts["committed"] += 1
        time.sleep(self.random.random() * 0.01)

    def one(self):
        return self.random.choice(self.mine[-50:])

    def transfer(self, cursor):
        number = self.next
        self.next += 10
        a, b = self.random.sample(range(1, ACCOUNTS + 1), 2)
        amount = self.random.randrange(1, 100)
        note = "x" * self.random.choice([10, 3000, 30000]) + f" {amount}"
        cursor.execute("insert into transfers values (%s, %s, %s, 'new')", (number, amount, note))
        for account, delta in ((a, -amount), (b, amount)):
            cursor.execute(
                "update accounts set balance = balance + %s where id = %s", (delta, account)
            )
            cursor.execute("insert into entries values (%s, %s, %s)", (number, account, delta))
        cursor.connection.commit()
        self.mine.append(number)

    def undo(self, cursor, number):
        cursor.execute(
            "update accounts a set balance = balance - e.delta from entries e"
            " where e.transfer = %s and e.account = a.id",
            (number,),
        )
        cursor.execute("delete from transfers where id = %s", (number,))


class Shaper(threading.Thread):
    """Changes shapes: a column that is dropped and added again, a partition that comes filled."""

    def __init__(self, dsn, stop):
        super().__init__(daemon=True)
        self.dsn, self.stop, self.changes = dsn, stop, 0

    def run(self):
        while not self.stop.wait(30):
            number = self.changes + 1
            statements = (
                "alter table accounts drop column if exists extra",
                f"alter table accounts add extra int default {number}",
                f"create table part{number} (id int, day int, primary key (id, day))",
                f"insert into part{number} select i, {number} from generate_series(1, 100) i",
                f"alter table parts attach partition part{number} for values in ({number})",
            )
            try:
                with psycopg2.connect(self.dsn) as connection, connection.cursor() as cursor:
                    cursor.execute("set lock_timeout = '2s'")
                    for statement in statements:
                        cursor.execute(statement)
                self.changes = number
            except psycopg2.Error:
                pass


def rows(url, cut, name):
    return Log.open(f"{url}/public.{name}").table(at=cut).to_arrow()


def wrong_at(url, cut):
    """Returns what is wrong at a cut."""
    names = {u.rpartition("/")[2].removeprefix("public.") for u in cut.logs} - {Path(url).name}
    accounts, transfers, entries = (rows(url, cut, n) for n in ("accounts", "transfers", "entries"))
    ask = duckdb.connect()
    for name, table in (("accounts", accounts), ("transfers", transfers), ("entries", entries)):
        ask.register(name, table)
    checks = {
        "balances": f"select sum(balance) <> {ACCOUNTS * BALANCE} from accounts",
        "accounts": f"""select count(*) > 0 from accounts a left join
            (select account, sum(delta) d from entries group by 1) e on e.account = a.id
            where a.balance <> {BALANCE} + coalesce(d, 0)""",
        "orphans": """select count(*) > 0 from entries e anti join transfers t
            on e.transfer = t.id""",
        "entries": """select count(*) > 0 from transfers t left join (select transfer, count(*) n,
            sum(delta) d from entries group by 1) e on e.transfer = t.id
            where n is distinct from 2 or d <> 0""",
        "notes": """select count(*) > 0 from transfers
            where note is null or not ends_with(note, ' ' || amount)""",
    }
    found = [name for name, query in checks.items() if ask.execute(query).fetchone()[0]]
    wide = [name for name in names if name.startswith("wide")]
    if len({rows(url, cut, name)["n"][0].as_py() for name in wide}) > 1:
        found.append("wide")
    return found


class Killed:
    """A process that is killed now and then, and started again."""

    def __init__(self, command, log):
        self.command, self.log, self.kills, self.ended = command, log, 0, 0
        self.process = None

    def start(self):
        with self.log.open("a") as out:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=out, cwd=ROOT)

    def keep(self):
        """Starts it again where it ended by itself."""
        if self.process.poll() is not None:
            self.ended += 1
            self.start()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.kills += 1
        self.start()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def until(seconds, holds):
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError("it does not become true")
        time.sleep(0.1)


def differences(dsn, url):
    """Returns the tables whose logs do not have what they have."""
    cut, found = snapshot(url), []
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        for name in ("accounts", "transfers", "entries", "parts", "wide0"):
            cursor.execute(f"select * from {name}")
            columns = [column.name for column in cursor.description]
            theirs = sorted(cursor.fetchall())
            ours = rows(url, cut, name).select(columns).to_pylist()
            if sorted(tuple(row.values()) for row in ours) != theirs:
                found.append(name)
    return found


def soak(minutes, writers, seed, folder, wide):
    dice, counts = random.Random(seed), {"committed": 0, "rolled back": 0}
    url, stop = str(folder / "shop"), threading.Event()
    told = {"cuts": 0, "wrong": [], "refused": 0}
    with Server(folder / "postgres") as server:
        with psycopg2.connect(server.dsn) as connection, connection.cursor() as cursor:
            cursor.execute(SCHEMA)
            for i in range(wide):
                cursor.execute(f"create table wide{i} (id int primary key, n int)")
                cursor.execute(f"insert into wide{i} values (1, 0)")
        threads = [Writer(server.dsn, i, seed, counts, stop, wide) for i in range(writers)]
        threads.append(Shaper(server.dsn, stop))
        clog = [sys.executable, "-m", "clog_command"]
        capture = Killed([*clog, "capture", server.dsn, url], folder / "capture.log")
        cleaner = Killed(
            [*clog, "cleaner", "--discover", url, "-c", "log.cleaner.backoff.ms=2000"],
            folder / "cleaner.log",
        )
        for one in (*threads, capture, cleaner):
            one.start()
        end, seen, server_kills = time.monotonic() + 60 * minutes, None, 0
        next_kill = time.monotonic() + 3
        while time.monotonic() < end:
            for one in (capture, cleaner):
                one.keep()
            try:
                cut = snapshot(url)
                if cut.logs != seen:
                    seen = cut.logs
                    wrong = wrong_at(url, cut)
                    told["cuts"] += 1
                    told["wrong"] += [wrong] if wrong else []
            except (CommitConflictError, NotFoundError, VersionExpiredError):
                told["refused"] += 1
            if time.monotonic() > next_kill:
                next_kill = time.monotonic() + 5 + dice.expovariate(1 / 10)
                what = dice.choice(["capture", "capture", "capture", "cleaner", "server"])
                if what == "server":
                    server.kill()
                    time.sleep(0.5)
                    server.__enter__()
                    server_kills += 1
                else:
                    {"capture": capture, "cleaner": cleaner}[what].kill()
            time.sleep(0.2)
        stop.set()
        for one in threads:
            one.join()
        capture.stop()
        cleaner.stop()
        done = subprocess.run(
            [*clog, "capture", server.dsn, url, "--once", "--json"],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
        told["last"] = done.returncode, done.stderr[-500:] if done.returncode else ""
        told["different"] = (
            differences(server.dsn, url) if not done.returncode else ["not captured"]
        )
        last = wrong_at(url, snapshot(url)) if not done.returncode else []
        told["wrong"] += [last] if last else []
        shapes = threads[-1].changes
    kills = {"capture": capture.kills, "cleaner": cleaner.kills, "server": server_kills}
    return {
        **told,
        **counts,
        "shapes": shapes,
        "kills": kills,
        "ended by themselves": {"capture": capture.ended, "cleaner": cleaner.ended},
    }


def main():
    ask = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ask.add_argument("--minutes", type=float, default=60)
    ask.add_argument("--writers", type=int, default=3)
    ask.add_argument("--seed", type=int, default=1)
    ask.add_argument("--tables", type=int, default=60, help="that one transaction writes")
    ask.add_argument("--folder", type=Path)
    given = ask.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="clog-soak-"))
    os.environ["PYTHONWARNINGS"] = "ignore"
    told = soak(given.minutes, given.writers, given.seed, folder, given.tables)
    print(json.dumps(told, indent=2))
    failed = told["wrong"] or told["different"]
    if not (failed or given.folder):
        shutil.rmtree(folder)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
