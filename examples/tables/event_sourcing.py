"""Event sourcing: what happened is kept for ever, what is follows from it.

    python examples/tables/event_sourcing.py [folder]

Two logs: `events`, of which nothing is ever removed (``cleanup.policy`` is empty), and `carts`,
compacted: the state of each cart, and, under a key of its own, up to where the events are in it.
Both change in one append, so a projector that is killed goes on where its state is.
"""

import json
import sys
import tempfile

from clog.storage import Log

POSITION = b"#position"

Cart = dict[str, int]


def applied(cart: Cart | None, event: dict[str, str]) -> Cart | None:
    """The state of a cart after one more event; None: it is gone."""
    if event["type"] == "checked out":
        return None
    cart = dict(cart or {})
    count = cart.get(event["item"], 0) + (1 if event["type"] == "added" else -1)
    cart[event["item"]] = count
    return {item: count for item, count in cart.items() if count}


def restored(carts: Log) -> tuple[dict[bytes, Cart | None], dict[int, int]]:
    """The state of all carts, and where the events go on, from the table."""
    rows = {row["key"]: json.loads(row["value"]) for row in carts.table().to_arrow().to_pylist()}
    position = {int(p): offset for p, offset in rows.pop(POSITION, {}).items()}
    return rows, position


def project(events: Log, carts: Log, at_most: int | None = None) -> int:
    """Applies the events that are not in the state yet; a batch is one commit."""
    state, position = restored(carts)
    start = events.start_offsets() | position
    changed = {}
    read = 0
    for batch in events.read(start=start):
        for row in batch.to_pylist():
            if read == at_most:
                break
            read += 1
            cart = applied(state.get(row["key"]), json.loads(row["value"]))
            state[row["key"]] = changed[row["key"]] = cart
            position[row["partition"]] = row["offset"] + 1
    if changed:
        records = [
            {"key": key, "value": None if cart is None else json.dumps(cart)}
            for key, cart in changed.items()
        ]
        where = {"key": POSITION, "value": json.dumps({str(p): o for p, o in position.items()})}
        carts.append([*records, where])
    return read


def main(folder: str) -> tuple[list[int], dict[bytes, Cart], dict[bytes, Cart]]:
    events = Log.create(f"{folder}/events", partitions=2, config={"cleanup.policy": ""})
    happened = [
        ("ann", "added", "tea"),
        ("bob", "added", "cup"),
        ("ann", "added", "cake"),
        ("ann", "removed", "tea"),
        ("bob", "checked out", None),
        ("ann", "added", "cake"),
    ]
    events.append(
        [{"key": who, "value": json.dumps({"type": t, "item": i})} for who, t, i in happened]
    )
    carts = Log.create(f"{folder}/carts", partitions=2)
    batches = [project(Log.open(events.url), Log.open(carts.url), at_most=2)]  # then it is killed
    while count := project(Log.open(events.url), Log.open(carts.url), at_most=2):
        batches.append(count)
    state, _ = restored(carts)
    print(f"in batches of {batches}: {state}")
    # A new question to the past: a second projection, from the first event on.
    again = Log.create(f"{folder}/carts-2", partitions=1)
    project(events, again)
    replayed, _ = restored(again)
    print(f"replayed: {replayed}")
    return batches, state, replayed


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(sys.argv[1] if len(sys.argv) > 1 else temporary)
