"""Change data capture: a database's table into a log, and out of it to another store and a search
index.

    python examples/tables/cdc.py [folder]

The shop's SQLite notes each change in an outbox, by triggers, in the transaction of the change. A
shipper appends what is new there, once. Consumers follow the log: a copy of the table in another
database, and a full-text index. Each keeps its position in the transaction of the rows, so that a
crash repeats nothing. Who has no position loads the table view and goes on from there: the search
index comes late, when the cleaner has removed most of the history, and has the same rows.
"""

import json
import sqlite3
import sys
import tempfile
from typing import Any

from clog.cleaner import Cleaner
from clog.storage import Log

Row = tuple[int, str, int]

SHOP = """
create table products (id integer primary key, name text, price integer);
create table outbox (seq integer primary key autoincrement, id integer, row text);
create trigger inserted after insert on products begin
  insert into outbox (id, row) values (new.id, json_object('name', new.name, 'price', new.price));
end;
create trigger updated after update on products begin
  insert into outbox (id, row) values (new.id, json_object('name', new.name, 'price', new.price));
end;
create trigger deleted after delete on products begin
  insert into outbox (id, row) values (old.id, null);
end;
"""


def ship(shop: sqlite3.Connection, log: Log) -> int:
    """Appends what the outbox holds, and empties it; returns how many changes. Killed in between it
    appends them again, and the log, which knows the last number it took, drops them.
    """
    changes = shop.execute("select seq, id, row from outbox order by seq").fetchall()
    if changes:
        records = [{"key": str(key), "value": row} for _, key, row in changes]
        log.append(records, producer=("shop", changes[-1][0]))
        with shop:
            shop.execute("delete from outbox where seq <= ?", (changes[-1][0],))
    return len(changes)


class Consumer:
    """A database that follows the log; ``put`` and ``remove`` are the statements for a row."""

    def __init__(self, path: str, schema: str, put: str, remove: str) -> None:
        self.database = sqlite3.connect(path)
        self.database.execute(schema)
        self.database.execute("create table if not exists position (p integer primary key, at)")
        self.database.commit()
        self._put, self._remove = put, remove

    def follow(self, log: Log) -> int:
        """Applies what is new, deletes included; without a position, the whole table first."""
        position = dict(self.database.execute("select p, at from position"))
        if position:
            ends = log.stable_offsets()
            batches = log.read(start=position, end=ends)
        else:
            table = log.table()
            batches, ends = table.to_batches(), table.offsets
        with self.database:  # The rows and the position: one transaction.
            count = sum(self._apply(row) for batch in batches for row in batch.to_pylist())
            self.database.executemany("replace into position values (?, ?)", ends.items())
        return count

    def _apply(self, record: dict[str, Any]) -> int:
        key = int(record["key"])
        self.database.execute(self._remove, (key,))
        if record["value"] is not None:
            row = json.loads(record["value"])
            self.database.execute(self._put, {"id": key, **row})
        return 1


def copy_of(path: str) -> Consumer:
    schema = "create table if not exists products (id integer primary key, name, price)"
    put = "insert into products values (:id, :name, :price)"
    return Consumer(path, schema, put, "delete from products where id = ?")


def search_index(path: str) -> Consumer:
    schema = "create virtual table if not exists found using fts5(name)"
    put = "insert into found (rowid, name) values (:id, :name)"
    return Consumer(path, schema, put, "delete from found where rowid = ?")


def main(folder: str) -> tuple[list[Row], list[Row], list[str], int]:
    shop = sqlite3.connect(f"{folder}/shop.db")
    shop.executescript(SHOP)
    log = Log.create(f"{folder}/products", partitions=2, config={"delete.retention.ms": 0})
    warehouse = copy_of(f"{folder}/warehouse.db")

    with shop:
        names = ["green tea", "black tea", "tea pot", "cup"]
        rows = [(name, 100 * i) for i, name in enumerate(names, 1)]
        shop.executemany("insert into products (name, price) values (?, ?)", rows)
    ship(shop, log)
    warehouse.follow(log)
    with shop:
        shop.execute("update products set price = price + 5 where name like '%tea%'")
        shop.execute("delete from products where name = 'black tea'")
    ship(shop, log)
    applied = warehouse.follow(log)

    for _ in range(2):  # The first pass keeps tombstones, the second one takes them.
        log.roll()
        Cleaner(log).run_once(force=True)
        with shop:
            shop.execute("update products set price = price + 1 where name = 'cup'")
        ship(shop, log)
    kept = sum(batch.num_rows for batch in log.read())

    search = search_index(f"{folder}/search.db")
    search.follow(log)  # late: its first look at the log
    with shop:
        shop.execute("insert into products (name, price) values ('white tea', 700)")
        shop.execute("delete from products where name = 'tea pot'")
    ship(shop, log)
    for consumer in (search, warehouse):
        consumer.follow(log)

    everything = "select id, name, price from products order by id"
    original = shop.execute(everything).fetchall()
    copied = warehouse.database.execute(everything).fetchall()
    found = search.database.execute("select name from found where found match 'tea' order by rowid")
    teas = [name for (name,) in found]
    print(f"{applied} changes applied at once; {kept} records were left when the index came")
    print(f"shop and copy: {original}\nabout tea: {teas}")
    return original, copied, teas, kept


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(sys.argv[1] if len(sys.argv) > 1 else temporary)
