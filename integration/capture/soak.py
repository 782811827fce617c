"""A database that works is captured into S3 and cleaned, while all of these are killed: at every
cut the invariants of the database hold.

    python integration/capture/soak.py [--minutes 60] [--writers 3] [--tables 60] [--seed 1]

Three tables with foreign keys: accounts, transfers with a large note, two entries for each. Writers
move money, change transfers without their notes, change keys (which cascade), roll back, delete,
and write 60 tables at once. Every cut that comes while none is being checked is checked, by DuckDB,
each ``--spark-every``-th also by Spark, under a name. In a cut

- the balances add up to what they were, and each is its beginning and its entries;
- each entry has its transfer, each transfer two entries that add up to nothing;
- each note is whole: it is long, and ends as its transfer says;
- the 60 tables have the same number (Spark looks at five of them);
- the home is no older than in the cut before (a quiet table's version may be any that shows the
  same), and both engines see the same sums.

What happens beside it is tied to progress: while the tables are loaded for the first time, each
time that rows have come; then after some new cuts. Capture, cleaner, PostgreSQL or the S3 server
are killed with SIGKILL, a capture at times again while it starts; a column is dropped and added
anew, a filled partition attached, both once before anything else. In a cut all accounts have the
same value of that column. Without a cut for `PATIENCE_S` it is stuck, which is an error.

In the end, with nobody writing, ``--verify`` finds the logs to have what the tables have. Prints
its figures as JSON; ends with 1 where anything was wrong. Needs Go, for versitygw; ``--disk`` does
without it.
"""

import argparse
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import psycopg2
from pyspark.errors import PySparkException

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "integration/stores")]

import servers  # noqa: E402
from peers.postgres import Server  # noqa: E402

from clog.storage import (  # noqa: E402
    ClogError,
    CommitConflictError,
    CommitStateUnknownError,
    Log,
    StoreUnavailableError,
    VersionExpiredError,
    drop_snapshot,
    snapshot,
)

ACCOUNTS = 50
BALANCE = 1000
HISTORY = 400_000
KEPT = 150
"""So many transfers a writer has at a time: each cut is read whole."""
PATIENCE_S = 900
TRIES, AGAIN_AFTER_S = 4, 10
"""In the end: somebody else may kill the S3 server."""
AWAY = (StoreUnavailableError, CommitConflictError, CommitStateUnknownError)
SCHEMA = f"""
create table accounts (id int primary key, owner text, balance int not null, extra int default 0);
create table transfers (id bigint primary key, amount int not null, note text not null, state text);
create table entries (
  transfer bigint references transfers on update cascade on delete cascade,
  account int references accounts, delta int not null, primary key (transfer, account));
alter table transfers alter note set storage external;
insert into accounts select i, 'owner ' || i, {BALANCE}, 0 from generate_series(1, {ACCOUNTS}) i;
create table parts (id int, day int, primary key (id, day)) partition by list (day);
create table history (id int primary key, text text);
insert into history select i, repeat(md5(i::text), 5) from generate_series(1, {HISTORY}) i;
"""
CHECKS = {
    "balances": f"select sum(balance) <> {ACCOUNTS * BALANCE} from accounts",
    "accounts": f"""select count(*) > 0 from accounts a left join
        (select account, sum(delta) d from entries group by account) e on e.account = a.id
        where a.balance <> {BALANCE} + coalesce(d, 0)""",
    "orphans": """select count(*) > 0 from entries e where not exists
        (select 1 from transfers t where e.transfer = t.id)""",
    "entries": """select count(*) > 0 from transfers t left join (select transfer, count(*) n,
        sum(delta) d from entries group by transfer) e on e.transfer = t.id
        where coalesce(n, 0) <> 2 or d <> 0""",
    "extra": "select count(distinct coalesce(extra, 0)) > 1 from accounts",
    "notes": """select count(*) > 0 from transfers
        where note is null or note not like concat('x%x ', amount)""",
}
SUMS = """select count(*), coalesce(sum(amount), 0), coalesce(sum(length(note)), 0),
    count(distinct state) from transfers"""
TABLES = ("accounts", "transfers", "entries")
LATER = ("capture",) * 5 + ("cleaner",) * 2 + ("server", "store", "column", "partition")


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
                self.counts["failed"] += 1
                time.sleep(0.2)

    def work(self, connection):
        dice, done = self.random.random(), lambda: None
        with connection.cursor() as cursor:
            if len(self.mine) > KEPT:
                done = self.undo(cursor)
            elif dice < 0.6 or not self.mine:
                done = self.transfer(cursor)
            elif dice < 0.8:
                state = "update transfers set state = %s where id = %s"
                cursor.execute(state, (str(dice), self.one()))
            elif dice < 0.9:
                done = self.rekey(cursor)
            elif dice < 0.95:
                for i in range(self.wide):
                    cursor.execute(f"update wide{i} set n = n + 1")
            else:
                done = self.undo(cursor)
        if self.random.random() < 0.1:
            connection.rollback()
            self.counts["rolled back"] += 1
        else:
            connection.commit()
            self.counts["committed"] += 1
            done()
        time.sleep(self.random.random() * 0.06)

    def one(self):
        return self.random.choice(self.mine)

    def transfer(self, cursor):
        number = self.next
        self.next += 10
        a, b = sorted(self.random.sample(range(1, ACCOUNTS + 1), 2))
        amount = self.random.choice([-1, 1]) * self.random.randrange(1, 100)
        note = "x" * self.random.choice([10, 3000, 30000]) + f" {amount}"
        cursor.execute("insert into transfers values (%s, %s, %s, 'new')", (number, amount, note))
        for account, delta in ((a, -amount), (b, amount)):
            cursor.execute(
                "update accounts set balance = balance + %s where id = %s", (delta, account)
            )
            cursor.execute("insert into entries values (%s, %s, %s)", (number, account, delta))
        return lambda: self.mine.append(number)

    def rekey(self, cursor):
        old, new = self.one(), self.number + 10 * self.random.randrange(10**9, 2 * 10**9)
        cursor.execute("update transfers set id = %s where id = %s", (new, old))
        at = self.mine.index(old)
        return lambda: self.mine.__setitem__(at, new)

    def undo(self, cursor):
        number = self.mine[0]
        cursor.execute(
            "update accounts a set balance = balance - e.delta from entries e"
            " where e.transfer = %s and e.account = a.id",
            (number,),
        )
        cursor.execute("delete from transfers where id = %s", (number,))
        return lambda: self.mine.pop(0)


class Process:
    """A process that is killed now and then, and started again."""

    def __init__(self, command, log, port=None):
        self.command, self.log, self.port = command, log, port
        self.ended, self.peak_kib = Counter(), 0
        self.process = None

    def start(self):
        with self.log.open("a") as out:
            says = {**os.environ, "AWS_SDK_UA_APP_ID": self.log.stem}
            self.process = subprocess.Popen(
                self.command, stdout=out, stderr=out, cwd=ROOT, env=says
            )
        if self.port:
            servers.wait_for_port(self.port, self.process.poll)

    def keep(self):
        """Starts it again where it ended by itself."""
        if self.process.poll() is not None:
            why = self.log.read_text().strip().rpartition("\n")[2]
            self.ended[why.partition(": ")[0][-60:]] += 1
            self.start()
            return
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                self.peak_kib = max(self.peak_kib, int(line.split()[1]))

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def gateway(folder):
    """Returns an S3 server that keeps what it has over a kill, and tells all processes of it."""
    name = servers.go_program(
        "github.com/versity/versitygw/cmd/versitygw", servers.VERSITYGW_VERSION
    )
    port, data = servers.free_port(), folder / "s3"
    (data / "soak").mkdir(parents=True)
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "soak",
        "AWS_SECRET_ACCESS_KEY": "soak-secret",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    login = ["--access", "soak", "--secret", "soak-secret", "--port", f"127.0.0.1:{port}"]
    return Process([name, *login, "posix", str(data)], Path(os.devnull), port)


class Duck:
    """Reads cuts without Spark; logs stay open."""

    def __init__(self, url):
        self.url, self.logs = url, {}

    def read(self, cut, names):
        """Returns tables, by their names."""
        with ThreadPoolExecutor(4) as pool:
            return dict(zip(names, pool.map(lambda name: self.rows(cut, name), names), strict=True))

    def rows(self, cut, name):
        if name not in self.logs:
            self.logs[name] = Log.open(f"{self.url}/public.{name}")
        return self.logs[name].table(at=cut).to_arrow()


class Spark:
    """Reads named cuts with Spark, each table once."""

    def __init__(self, url):
        from pyspark.sql import SparkSession

        os.environ["PYSPARK_PYTHON"] = sys.executable
        self.url = url
        self.session = (
            SparkSession.builder.master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "1")
            .config("spark.driver.memory", "700m")
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
            .getOrCreate()
        )
        self.session.sparkContext.setLogLevel("OFF")

    def read(self, cut, names):
        """Returns tables, by their names."""
        read = self.session.read.format("clog").option("view", "table")
        read = read.option("asOfCut", f"{self.url}#{cut}")
        return {name: read.load(f"{self.url}/public.{name}").toArrow() for name in names}


def found(tables, wide):
    """Returns what is wrong, and sums."""
    ask = duckdb.connect()
    for name in TABLES:
        ask.register(name, tables[name])
    wrong = [name for name, query in CHECKS.items() if ask.execute(query).fetchone()[0]]
    if len({tables[name]["n"][0].as_py() for name in wide}) > 1:
        wrong.append("wide")
    return wrong, ask.execute(SUMS).fetchone()


class Soak:
    """One run."""

    def __init__(self, given, folder):
        self.given, self.folder = given, folder
        self.dice = random.Random(given.seed)
        self.told, self.counts = Counter(), Counter()
        self.began = time.monotonic()
        self.wrong = []
        self.kills = Counter()
        self.due = ["partition", "column"]
        self.server = Server(folder / "postgres")
        self.url = given.url or (str(folder / "shop") if given.disk else "s3://soak/shop")
        self.store = None if given.url or given.disk else gateway(folder)
        self.wide = [f"wide{i}" for i in range(given.tables)]
        self.duck, self.spark, self.before = Duck(self.url), None, None
        clog = [sys.executable, "-m", "clog_command"]
        self.command = [*clog, "capture", self.server.dsn, self.url]
        self.capture = Process(self.command, folder / "capture.log")
        self.cleaner = Process(
            [*clog, "cleaner", "--discover", self.url, "-c", "log.cleaner.backoff.ms=10000"],
            folder / "cleaner.log",
        )

    def run(self):
        """Returns the figures."""
        if self.store:
            self.store.start()
        stop, counts = threading.Event(), self.counts
        with self.server:
            with psycopg2.connect(self.server.dsn) as connection, connection.cursor() as cursor:
                cursor.execute(SCHEMA)
                for name in self.wide:
                    cursor.execute(f"create table {name} (id int primary key, n int)")
                    cursor.execute(f"insert into {name} values (1, 0)")
            writers = [
                Writer(self.server.dsn, i, self.given.seed, counts, stop, self.given.tables)
                for i in range(self.given.writers)
            ]
            for one in (*writers, self.capture, self.cleaner):
                one.start()
            try:
                self.load()
                self.told["load seconds"] = round(time.monotonic() - self.began)
                self.follow(self.began + 60 * self.given.minutes)
            except TimeoutError as e:
                self.wrong.append(f"stuck: {e}")
            finally:
                stop.set()
                for one in writers:
                    one.join()
                self.capture.stop()
                self.cleaner.stop()
            self.end()
        if self.store:
            self.store.stop()
        return self.figures()

    def figures(self):
        return {
            "minutes": round((time.monotonic() - self.began) / 60, 1),
            **self.told,
            **self.counts,
            "kills": self.kills,
            "wrong": self.wrong,
            "ended by themselves": {
                "capture": self.capture.ended,
                "cleaner": self.cleaner.ended,
            },
            "peak MiB": {
                "capture": self.capture.peak_kib >> 10,
                "cleaner": self.cleaner.peak_kib >> 10,
            },
        }

    def load(self):
        """Kills each of them while the largest table is loaded, and waits for the first cut."""
        due = [
            "capture",
            "server",
            "capture",
            "cleaner",
            "capture",
            *(["store"] * bool(self.store)),
        ]
        end, rows = time.monotonic() + PATIENCE_S, self.dice.randrange(HISTORY // 2)
        with ThreadPoolExecutor(1) as pool:
            looking = pool.submit(self.newest)
            while time.monotonic() < end:
                loaded = self.loaded()
                if due and loaded > rows:
                    self.kill(due.pop(0), "load")
                    rows, end = self.dice.randrange(HISTORY // 2), time.monotonic() + PATIENCE_S
                self.keep()
                if looking.done():
                    if looking.result():
                        self.told["not killed in the load"] = len(due)
                        return
                    looking = pool.submit(self.newest)
                time.sleep(0.02)
        raise TimeoutError("there is no cut")

    def loaded(self):
        """Returns how many rows of the largest table came in this run of the capture."""
        try:
            with psycopg2.connect(self.server.dsn) as connection, connection.cursor() as cursor:
                cursor.execute("select max(tuples_processed) from pg_stat_progress_copy")
                return cursor.fetchone()[0] or 0
        except psycopg2.Error:
            return 0

    def follow(self, end):
        """Checks cuts, and has something happen after some of them."""
        heard, due = time.monotonic(), self.dice.randrange(1, 4)
        while time.monotonic() < end or self.told["cuts"] < self.given.cuts:
            self.keep()
            cut = self.newest()
            if cut is None or cut.logs == self.before:
                if time.monotonic() > heard + PATIENCE_S:
                    raise TimeoutError("there is no newer cut")
                time.sleep(0.2)
                continue
            heard = time.monotonic()
            self.check(cut)
            (self.folder / "figures.json").write_text(json.dumps(self.figures(), indent=2))
            due -= 1
            if due <= 0:
                due = self.dice.randrange(1, 4)
                self.happen()

    def newest(self):
        """Returns the newest cut, if there is one; a home that was only just made is alone."""
        try:
            cut = snapshot(self.url)
            return cut if len(cut.logs) > 1 else None
        except (ClogError, OSError):
            self.told["refused"] += 1
            return None

    def check(self, cut):
        if self.before is not None:
            home = next(url for url in cut.logs if url.rstrip("/") == self.url)
            if cut.logs[home] < self.before[home]:
                self.wrong.append("back in time")
        self.before = cut.logs
        every = self.given.spark_every
        try:
            if every and self.told["cuts"] % every == every - 1:
                self.check_named()
            else:
                wrong, _ = found(self.duck.read(cut, (*TABLES, *self.wide)), self.wide)
                self.wrong += [f"{wrong} at {cut.logs}"] if wrong else []
                self.told["cuts"] += 1
        except VersionExpiredError:
            self.told["expired"] += 1
        except AWAY:
            self.told["away"] += 1
        except PySparkException as e:
            if StoreUnavailableError.__name__ not in str(e):
                raise
            self.told["away"] += 1

    def check_named(self):
        self.spark = self.spark or Spark(self.url)
        self.told["named cuts"] += 1
        name = f"soak-{self.told['named cuts']}"
        with_name = snapshot(self.url, name=name, keep_ms=3_600_000)
        some = self.dice.sample(self.wide, min(5, len(self.wide)))
        by_duck = found(self.duck.read(with_name, (*TABLES, *self.wide)), self.wide)
        by_spark = found(self.spark.read(name, (*TABLES, *some)), some)
        for engine, (wrong, _) in (("duckdb", by_duck), ("spark", by_spark)):
            self.wrong += [f"{engine}: {wrong} at {with_name.logs}"] if wrong else []
        if by_duck[1] != by_spark[1]:
            self.wrong.append(f"duckdb has {by_duck[1]}, spark {by_spark[1]}")
        drop_snapshot(self.url, name)
        self.told["cuts"] += 1
        self.told["cuts by spark"] += 1

    def happen(self):
        self.due = self.due or self.dice.sample(LATER, len(LATER))
        what = self.due.pop()
        if what in ("column", "partition"):
            if not self.reshape(what):
                self.due.append(what)
            return
        self.kill(what, "later")
        while what == "capture" and self.dice.random() < 0.3:
            time.sleep(self.dice.random() * 8)
            self.kill(what, "starting")

    def kill(self, what, when):
        if what == "server":
            self.server.kill()
            time.sleep(0.5)
            self.server.__enter__()
        elif what == "store":
            if not self.store:
                return
            self.store.kill()
            time.sleep(self.dice.random() * 3)
            self.store.start()
        else:
            one = self.capture if what == "capture" else self.cleaner
            one.kill()
            one.start()
        self.kills[f"{what}, {when}"] += 1

    def keep(self):
        for one in (self.capture, self.cleaner):
            one.keep()

    def reshape(self, what):
        """Changes a table, where nobody is in its way for long; tells whether that was so."""
        number = self.told[what] + 1
        statements = {
            "column": (
                "alter table accounts drop column if exists extra",
                f"alter table accounts add extra int default {number}",
            ),
            "partition": (
                f"create table part{number} (id int, day int, primary key (id, day))",
                f"insert into part{number} select i, {number} from generate_series(1, 100) i",
                f"alter table parts attach partition part{number} for values in ({number})",
            ),
        }
        try:
            with psycopg2.connect(self.server.dsn) as connection, connection.cursor() as cursor:
                cursor.execute("set lock_timeout = '5s'")
                for statement in statements[what]:
                    cursor.execute(statement)
        except psycopg2.Error:
            self.told["not reshaped"] += 1
            return False
        self.told[what] = number
        return True

    def end(self):
        """Has all come, and compares."""
        for more in (["--once"], ["--verify"]):
            for _ in range(TRIES):
                done = subprocess.run(
                    [*self.command, *more, "--json"],
                    capture_output=True,
                    text=True,
                    check=False,
                    cwd=ROOT,
                )
                if not done.returncode:
                    break
                time.sleep(AGAIN_AFTER_S)
            else:
                self.wrong.append(f"{more}: {done.stdout[-2000:]} {done.stderr[-2000:]}")
        wrong, sums = self.shown()
        with psycopg2.connect(self.server.dsn) as connection, connection.cursor() as cursor:
            cursor.execute(SUMS)
            theirs = cursor.fetchone()
        self.wrong += [f"{wrong} at the end"] if wrong else []
        self.wrong += [f"{sums} at the end, {theirs} in the database"] if sums != theirs else []
        if not self.told["column"] or not self.told["partition"]:
            self.wrong.append("no column was dropped and added, or no partition attached")

    def shown(self):
        """Returns what is wrong in a cut of now, and sums."""
        for _ in range(TRIES):
            try:
                cut = snapshot(self.url)
                return found(self.duck.read(cut, (*TABLES, *self.wide)), self.wide)
            except AWAY:
                time.sleep(AGAIN_AFTER_S)
        return ["the store is away"], None


def main():
    ask = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ask.add_argument("--minutes", type=float, default=60)
    ask.add_argument("--cuts", type=int, default=10, help="longer, until so many were checked")
    ask.add_argument("--writers", type=int, default=3)
    ask.add_argument("--seed", type=int, default=1)
    ask.add_argument("--tables", type=int, default=60, help="that one transaction writes")
    ask.add_argument("--spark-every", type=int, default=10, help="0: never")
    ask.add_argument("--disk", action="store_true", help="no S3 server")
    ask.add_argument("--url", help="where the home is to be, on a server that somebody else has")
    ask.add_argument("--folder", type=Path)
    given = ask.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="clog-soak-"))
    os.environ["PYTHONWARNINGS"] = "ignore"
    logging.getLogger("clog").setLevel(logging.ERROR)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nobody is left behind
    told = Soak(given, folder).run()
    print(json.dumps(told, indent=2))
    if not (told["wrong"] or given.folder):
        shutil.rmtree(folder)
    sys.exit(1 if told["wrong"] else 0)


if __name__ == "__main__":
    main()
