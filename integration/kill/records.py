"""What producers send, and what the log must hold then: nothing here knows clog.

Record n of a producer follows from its name and n alone, so whoever is killed sends the same
again, and the table is a fold that anyone can repeat. Each producer has its own keys: what another
one did in between changes nothing.
"""

BATCH = 60
HOT_KEYS, COLD_KEYS = 40, 600
"""Half of the records go to few keys, half to many: the cleaner finds records that stay everywhere.
"""
COLD_FROM = 1000
STEP = 7919
"""Prime to both: all keys come up."""
TOMBSTONE_EVERY = 11
SPARK = "spark"
PADDING = "." * 60


def key_of(producer: str, n: int) -> str:
    """Even keys for even n: Spark's two tasks have the even and the odd n."""
    number = n * STEP % HOT_KEYS if n // 2 % 2 else COLD_FROM + n * STEP % COLD_KEYS
    return f"{producer}/{number}"


def value_of(producer: str, n: int) -> str | None:
    return None if n % TOMBSTONE_EVERY == 0 else f"{producer}:{n}:{PADDING}"


def id_of(producer: str, n: int) -> str:
    """The header that identifies the record: a tombstone has no value to do it."""
    return f"{producer}:{n}"


def batch_of(producer: str, sequence: int) -> list[dict[str, object]]:
    """The records of one append, as `Log.append` takes them."""
    return [
        {
            "key": key_of(producer, n),
            "value": value_of(producer, n),
            "headers": [("id", id_of(producer, n).encode())],
        }
        for n in range(sequence * BATCH, (sequence + 1) * BATCH)
    ]


def table_of(batches: dict[str, int]) -> dict[str, str]:
    """The latest value of each key after so many batches of each producer."""
    table: dict[str, str] = {}
    for producer, count in batches.items():
        for n in range(count * BATCH):
            value = value_of(producer, n)
            if value is None:
                table.pop(key_of(producer, n), None)
            else:
                table[key_of(producer, n)] = value
    return table
