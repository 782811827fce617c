"""What an erasure cannot reach (back-ups, mirrors, consumers' copies) becomes unreadable with it:
each customer's records are encrypted with a key of their own, which stands in a log beside them.

    python examples/tables/crypto_shredding.py [folder]      # needs pip install cryptography

Records are keyed by an id that says nothing, and their values are sealed. The customer's key is one
record of another log, which is small, is not copied by anybody, and has no old versions for long.
To forget a customer is to erase that record: from then on no copy of the data opens, wherever it
lies. The receipt shows that the key is gone, and `clog verify --receipt` checks it.
"""

import json
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from clog.cleaner import Cleaner
from clog.storage import Log, ManualClock

DAY_MS = 86_400_000
NONCE_BYTES = 12


class Customers:
    """Records that only open as long as their customer's key is there."""

    def __init__(self, data: Log, keys: Log) -> None:
        self.data = data
        self.keys = keys

    def add(self, name: str) -> str:
        """Makes a customer, and returns an id that says nothing."""
        customer = secrets.token_hex(16)
        key = AESGCM.generate_key(bit_length=256)
        self.keys.append([{"key": customer, "value": key}])
        self.put(customer, "name", name)
        return customer

    def put(self, customer: str, field: str, value: str) -> None:
        """Keeps a field of a customer."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        at = f"{customer}/{field}".encode()
        sealed = nonce + AESGCM(self._key(customer)).encrypt(nonce, value.encode(), at)
        self.data.append([{"key": at, "value": sealed}])

    def opened(self, data: Log) -> dict[str, str]:
        """Returns what can be read of the records of a log, which may be a copy."""
        found = {}
        for row in data.table().to_pylist():
            at, sealed = row["key"], row["value"]
            key = self.keys.table().get(at.partition(b"/")[0])
            if key is None:
                continue
            try:
                value = AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], at)
            except InvalidTag:
                continue
            found[at.decode()] = value.decode()
        return found

    def forget(self, customer: str) -> str:
        """Asks that a customer's key and records be erased; returns the secret of the receipt."""
        fields = [row["key"] for row in self.data.table().to_pylist()]
        mine = [at for at in fields if at.startswith(customer.encode() + b"/")]
        self.data.erase(mine)
        return self.keys.erase([customer], notify=False).secret

    def _key(self, customer: str) -> bytes:
        key = self.keys.table().get(customer)
        if key is None:
            raise LookupError(f"{customer} is nobody, or was forgotten")
        return key


def main(folder: str) -> dict[str, object]:
    root, clock = Path(folder), ManualClock(now_ms=1_700_000_000_000)
    logs = [Log.create(str(root / name), 1, clock=clock) for name in ("data", "keys")]
    customers = Customers(*logs)
    alice, bob = customers.add("Alice"), customers.add("Bob")
    customers.put(alice, "street", "1 Elm Street")
    shutil.copytree(root / "data", root / "backup")  # Nobody erases anything in there.
    backup = Log.open(str(root / "backup"), clock=clock)
    before = customers.opened(backup)
    customers.forget(alice)
    for _ in range(4):  # The cleaner, day after day.
        Cleaner(logs).run_once()
        clock.advance(DAY_MS + 1)
    after = customers.opened(backup)
    (receipt,) = (one.receipt for one in customers.keys.erasures())
    return {
        "before": sorted(before.values()),
        "after": sorted(after.values()),
        "sealed": len(backup.table().to_pylist()),
        "done": receipt is not None and [one.state for one in customers.data.erasures()],
        "bob": after.get(f"{bob}/name"),
    }


if __name__ == "__main__":
    where = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    print(json.dumps(main(where), indent=1))
