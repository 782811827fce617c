"""A shop whose orders and customers change while its revenue job is killed, again and again.

    python examples/revenue/run.py                  # five kills
    python examples/revenue/run.py --kills 1 --folder /tmp/shop

At the end every version of the result is compared with the full query over the tables at the
versions that it names, and drawn.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from job import ALL

from clog.storage import Log, NotFoundError

CITIES = ("Bergen", "Oslo", "Riga", "Tartu")
END_S = 600


class Shop:
    """Two keyed logs to which things happen; what a sum without images before would be."""

    def __init__(self, folder: str, seed: int) -> None:
        self.chance = random.Random(seed)
        like = [{"id": 1, "customer": 1, "cents": 1}]
        # Readers may hold versions: a job that is down for a while finds what it needs.
        config = {"reader.hold.max.ms": 7 * 86_400_000}
        self.orders = Log.create(f"{folder}/orders", 2, config, key="id", like=like)
        names = [{"id": 1, "city": "Riga"}]
        self.customers = Log.create(f"{folder}/customers", 1, config, key="id", like=names)
        self.naive, self.naive_at = 0, {0: 0}
        self.last = 0
        for _ in range(20):
            self.move()

    def move(self) -> None:
        """A customer comes, or moves to another city with all orders."""
        row = {"id": self.chance.randint(1, 30), "city": self.chance.choice(CITIES)}
        self.customers.append([row])

    def order(self) -> None:
        """Orders, some of customers that the shop will only know later."""
        rows = [self.row(self.last + n + 1) for n in range(self.chance.randint(1, 5))]
        self.last += len(rows)
        self.put(rows)

    def change(self) -> None:
        """Orders get another price, or another customer; late ones come after newer ones."""
        self.put([self.row(self.chance.randint(1, max(1, self.last)))])

    def cancel(self) -> None:
        """An order is deleted, if it is there."""
        self.orders.delete([self.chance.randint(1, max(1, self.last))])

    def step(self) -> None:
        """One of these things happens."""
        what = (self.order, self.change, self.cancel, self.move)
        self.chance.choices(what, (6, 4, 2, 2))[0]()

    def row(self, number: int) -> dict[str, int]:
        cents = self.chance.randint(100, 10_000)
        return {"id": number, "customer": self.chance.randint(1, 30), "cents": cents}

    def put(self, rows: list[dict[str, int]]) -> None:
        self.naive += sum(row["cents"] for row in rows)
        self.naive_at[self.orders.append(rows).version] = self.naive


def version_of(url: str) -> int:
    """The newest version of the result; 0 before there is any."""
    try:
        return Log.open(url).version
    except NotFoundError:
        return 0


def play(folder: str, shop: Shop, kills: int) -> None:
    """Kills the job so often, each time after it has written something, and then lets it end."""
    command = [sys.executable, str(Path(__file__).with_name("job.py")), folder]
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    for _ in range(kills):
        job = subprocess.Popen(command, env=env, start_new_session=True)
        written, end = version_of(f"{folder}/revenue"), time.monotonic() + END_S
        while version_of(f"{folder}/revenue") <= written + 1 and time.monotonic() < end:
            shop.step()
            time.sleep(0.1)
        time.sleep(shop.chance.random() * 2)
        os.killpg(job.pid, signal.SIGKILL)  # The driver and its JVM, wherever they are.
        job.wait()
    subprocess.run([*command, "--once"], env=env, check=True)


def full(folder: str, orders: int, customers: int) -> dict[str, tuple[int, int]]:
    """The query over whole tables: cents and number of orders by city."""
    sold, known = (
        Log.open(f"{folder}/{name}").table(at=version).to_arrow()
        for name, version in (("orders", orders), ("customers", customers))
    )
    joined = sold.join(known, "customer", "id", join_type="inner")
    sums = joined.group_by("city").aggregate([("cents", "sum"), ("cents", "count")]).to_pylist()
    return {row["city"]: (row["cents_sum"], row["cents_count"]) for row in sums}


def compared(folder: str) -> list[tuple[int, dict[str, tuple[int, int]]]]:
    """The result at each of its versions, by the version of the orders; raises if one is wrong."""
    log, found = Log.open(f"{folder}/revenue"), []
    for version in range(log.describe()["oldest_readable_version"], log.version + 1):
        rows = {row["city"]: row for row in log.table(at=version).to_arrow().to_pylist()}
        total = rows.pop(ALL, None)
        if total is None:
            continue  # Before the first batch.
        told = {city: (row["cents"], row["count"]) for city, row in rows.items()}
        expected = full(folder, total["orders"], total["customers"])
        assert told == expected, f"version {version}: {told} is not {expected}"
        sums = [sum(n) for n in zip(*told.values(), strict=True)] or [0, 0]
        assert sums == [total["cents"], total["count"]]
        found.append((total["orders"], told))
    return found


def draw(path: Path, found: list[tuple[int, dict[str, tuple[int, int]]]], shop: Shop) -> None:
    """The revenue by city, and what a sum of all records would have said."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4.5))
    at = [version for version, _ in found]
    sums = [[told.get(city, (0, 0))[0] / 100 for _, told in found] for city in CITIES]
    axes.stackplot(at, sums, labels=CITIES, step="post", alpha=0.85)
    naive = [(v, cents / 100) for v, cents in sorted(shop.naive_at.items()) if v <= at[-1]]
    axes.step(*zip(*naive, strict=True), "k--", where="post", label="a sum that takes nothing back")
    axes.set_xlabel("version of the log orders")
    axes.set_ylabel("revenue")
    axes.legend(loc="upper left")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main(folder: str, kills: int, seed: int) -> None:
    shop = Shop(folder, seed)
    play(folder, shop, kills)
    found = compared(folder)
    rows = found[-1][1]
    for city, (cents, count) in sorted(rows.items()):
        print(f"{city:<8}{cents / 100:>12,.2f}{count:>6} orders")
    print(f"{len(found)} versions, {kills} kills: each equal to the full query")
    draw(Path(folder) / "revenue.png", found, shop)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        main(given.folder or temporary, given.kills, given.seed)
