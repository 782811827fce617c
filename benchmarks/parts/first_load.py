"""What do the first load and the stream of a captured table cost in its client?

    python benchmarks/parts/first_load.py --rows 300000

CPU seconds of this process, medians of alternating runs, rows of about 200 bytes in seven columns,
a server of PostgreSQL on this machine. The load stands beside a plain client, which takes COPY as
CSV and has pyarrow read it and write Parquet; ``--peak`` prints the memory that the load takes
alone. The stream's messages are read by psycopg2, which any client has to, and decoded: inserts,
and updates that leave a long value out.
"""

import argparse
import io
import resource
import select
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg2
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from psycopg2.extras import LogicalReplicationConnection

from clog.bridge.capturing.tables import Column, TablePlan
from clog.bridge.postgres.pgoutput import OPTIONS, Decoder
from clog.bridge.postgres.source import load
from clog.bridge.postgres.types import plan_of, session_options
from clog.storage import Log

sys.path.append(str(Path(__file__).parents[1]))
from peers.postgres import Server

TABLE = "public.orders"
MADE = f"""
create table {TABLE} (id bigint primary key, quantity int, customer text, seen timestamptz,
    price numeric(10, 2), paid bool, note text);
alter table {TABLE} alter note set storage external
"""
FILLED = f"""
insert into {TABLE} select i, mod(i, 1000), 'customer ' || mod(i, 50000),
    now() + i * interval '1 second', mod(i, 10000) + 0.25, mod(i, 2) = 0,
    repeat(md5(i::text), 4) from generate_series(%s, %s) i
"""
COLUMNS = """
select attname, attnum, atttypid::bigint, atttypmod, attnotnull, attnotnull from pg_attribute
where attrelid = %s::regclass and attnum > 0 order by attnum
"""


class Source:
    """The server, and what every client of it does."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.connection = psycopg2.connect(dsn, options=session_options())
        self.connection.autocommit = True

    def run(self, statement: str, *arguments: object) -> list[tuple]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, arguments or None)
            return cursor.fetchall() if cursor.description else []

    def plan(self) -> TablePlan:
        columns = [Column(*row) for row in self.run(COLUMNS, TABLE)]
        return plan_of(self.connection, columns, what=TABLE)

    def copied(self) -> io.BytesIO:
        found = io.BytesIO()
        with self.connection.cursor() as cursor:
            cursor.copy_expert(f"COPY {TABLE} TO STDOUT (FORMAT csv)", found)
        found.seek(0)
        return found

    def messages(self, slot: str, commits: int) -> list[bytes]:
        """All messages of a slot, up to the last of so many transactions."""
        stream = psycopg2.connect(
            self.dsn,
            connection_factory=LogicalReplicationConnection,
            options=session_options(),
        )
        cursor = stream.cursor()
        options = {**OPTIONS, "publication_names": "p"}
        cursor.start_replication(slot_name=slot, options=options, decode=False)
        found: list[bytes] = []
        while commits:
            if (message := cursor.read_message()) is None:
                select.select([stream], [], [], 1)
                continue
            found.append(message.payload)
            commits -= found[-1][:1] == b"C"
        stream.close()
        return found


def to_parquet(source: Source, folder: Path) -> None:
    """The plain client; it infers types, as such clients do."""
    names = [row[0] for row in source.run(COLUMNS, TABLE)]
    rows = csv.read_csv(source.copied(), csv.ReadOptions(column_names=names))
    pq.write_table(rows, folder / "orders.parquet")


def to_batches(source: Source, _folder: Path) -> None:
    load(source.connection, f"select * from {TABLE}", source.plan(), lambda _: None)


def to_log(source: Source, folder: Path) -> None:
    plan = source.plan()
    shutil.rmtree(folder / "log", ignore_errors=True)
    log = Log.create(str(folder / "log"), 1, schema=plan.schema, key=["id"])
    take = lambda batch: log.append(pa.Table.from_batches([batch]))  # noqa: E731
    load(source.connection, f"select * from {TABLE}", plan, take)


def cpu(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def loads(source: Source, folder: Path, runs: int) -> None:
    candidates = (to_parquet, to_batches, to_log)
    rounds = [[cpu(lambda one=one: one(source, folder)) for one in candidates] for _ in range(runs)]
    print("| first load | CPU s | plain client ÷ this |\n|---|--:|--:|")
    for i, one in enumerate(candidates):
        ratio = statistics.median(found[0] / found[i] for found in rounds)
        print(f"| {one.__name__} | {statistics.median(f[i] for f in rounds):.3f} | {ratio:.2f} |")


def streams(source: Source, rows: int, runs: int) -> None:
    plan = source.plan()
    source.run(f"create publication p for table {TABLE}")
    source.run("select pg_create_logical_replication_slot('s', 'pgoutput')")
    print("\n| stream | read: rows/CPU s | decoded: rows/CPU s |\n|---|--:|--:|")
    end = 2 * rows
    for what, statement, arguments in (
        ("inserts", FILLED, (end + 1, end + rows)),
        ("updates with unchanged values", f"update {TABLE} set quantity = 1 where id > %s", (end,)),
    ):
        source.run("select pg_replication_slot_advance('s', pg_current_wal_lsn())")
        source.run(statement, *arguments)
        start = time.process_time()
        messages = source.messages("s", 1)
        read = time.process_time() - start
        best = min(cpu(lambda all_=messages: decoded(all_, plan)) for _ in range(runs))
        print(f"| {what} | {rows / read:,.0f} | {rows / best:,.0f} |")


def decoded(messages: list[bytes], plan: TablePlan) -> None:
    decoder = Decoder(lambda relation, _: (relation.name, plan))
    for first in range(0, len(messages), 50_000):
        decoder.decode(messages[first : first + 50_000])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peak", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made, Server(Path(made) / "postgres") as server:
        source = Source(server.dsn)
        for statement in MADE.split(";"):
            source.run(statement)
        source.run(FILLED, 1, given.rows)
        if given.peak:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            to_batches(source, Path(made))
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            print(f"the load took {(after - before) / 1024:.0f} MiB of {after / 1024:.0f}")
            return
        loads(source, Path(made), given.runs)
        streams(source, given.rows, given.runs)


if __name__ == "__main__":
    main()
