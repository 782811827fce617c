"""Two classic tables: shipping addresses, which are replaced and deleted, and account balances, of
which two change at once.

    python examples/tables/addresses_and_balances.py [folder]
"""

import sys
import tempfile

from clog.storage import Log, StateTable


def addresses(folder: str) -> tuple[dict[bytes, bytes], bytes | None]:
    """Who lives where: the last address counts, and who leaves is gone."""
    log = Log.create(f"{folder}/addresses", partitions=2)
    log.append(
        [
            {"key": "alice", "value": "1 Rue de la Paix, Paris"},
            {"key": "bob", "value": "Via Appia 5, Roma"},
            {"key": "alice", "value": "9 Quai Perrache, Lyon"},  # she moved
        ]
    )
    before = log.version
    log.append([{"key": "bob", "value": None}])  # he asked to be forgotten
    now = {row["key"]: row["value"] for row in log.table().to_arrow().to_pylist()}
    return now, log.table(at=before).get("bob")


class Bank:
    """Balances in a log, and in a state table that answers from a local file."""

    def __init__(self, folder: str) -> None:
        self.url = f"{folder}/balances"
        self.log = Log.create(self.url, partitions=4)
        self.table = StateTable(self.url, f"{folder}/balances-cache")

    def balance(self, account: str) -> int:
        return int(self.table.get(account) or 0)

    def transfer(self, number: int, source: str, target: str, amount: int) -> None:
        """Moves money, once for each ``number``, whatever is retried: an append is atomic over all
        partitions, and the log knows the last number.
        """
        self.table.refresh()
        if source != "bank" and self.balance(source) < amount:
            raise ValueError(f"{source} has not got {amount}")
        balances = {
            source: self.balance(source) - amount,
            target: self.balance(target) + amount,
        }
        records = [{"key": account, "value": str(sum_)} for account, sum_ in balances.items()]
        self.log.append(records, producer=("teller", number))
        self.table.refresh()


def balances(folder: str) -> tuple[dict[str, int], bool]:
    bank = Bank(folder)
    bank.transfer(1, "bank", "alice", 100)
    bank.transfer(2, "alice", "bob", 30)
    last = [{"key": "alice", "value": "70"}, {"key": "bob", "value": "30"}]
    repeated = bank.log.append(last, producer=("teller", 2))  # its answer was lost: it asks again
    try:
        bank.transfer(3, "bob", "alice", 31)
    except ValueError as e:
        print(f"refused: {e}")
    found = {account: bank.balance(account) for account in ("bank", "alice", "bob")}
    bank.table.close()
    return found, repeated.duplicate


def main(folder: str) -> tuple[dict[bytes, bytes], dict[str, int], bool]:
    now, then = addresses(folder)
    print(f"addresses: {now}; bob was at {then}")
    found, duplicate = balances(folder)
    print(f"balances: {found}; the repeated transfer was {'dropped' if duplicate else 'booked'}")
    return now, found, duplicate


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(sys.argv[1] if len(sys.argv) > 1 else temporary)
