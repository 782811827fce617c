"""What a soak writes, and what must be true of its logs.

One typed log, `SOAK`, gets records of several producers at once. Record n of a producer follows
from its name and n alone, and each `KEYS` records in a row are a lap: every key of the producer
once. `COPY` is what a Spark stream copied, `STATE` the changelog of a state store that follows.

Whenever all processes stand still:

1. *Nothing stale*: no view of the table has a record older than the latest acknowledged one of its
   key, unless that waits behind an undecided transaction, or one of a transaction that was aborted.
2. *One table*: `Log.table`, the records by the second reader of the format, folded, and both
   published views at the versions that they name, are equal; a view may also have what was deleted
   below an offset since.
3. `verify` finds nothing.

In the end each producer has done a whole lap undisturbed, and all of them, the copy's table and
the state's too, are exactly the fold of what was sent.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from oracle import broken_invariants
from world import World

from clog.storage import Log
from clog.storage.diagnostics.verify import verify_log
from clog_testing.published import delta_rows, iceberg_rows

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "format"))
from second_reader.log import Log as SecondReader

SOAK, COPY, STATE = "soak", "copy", "state"
LOGS = (SOAK, COPY, STATE)
PLAIN, VISIBLE, DEFERRED = "plain", "visible", "deferred"
APPENDING = (PLAIN, VISIBLE, DEFERRED)
SPARK = "spark"
PRODUCERS = (*APPENDING, SPARK)
KEYS = 300
STEP = 7919
"""Prime to `KEYS`."""
PART = 30
"""Records of an append, or of one of the two appends of a transaction."""
TOMBSTONE_EVERY = 11
ABORTED = "aborted"
PADDING = "." * 60
READER = "audit"
PARTITIONS = 4
VALUE = pa.struct([("producer", pa.string()), ("n", pa.int64()), ("text", pa.string())])
SCHEMA = {"key": pa.string(), "value": VALUE}
_COMPACTED = {
    "segment.bytes": "64k",
    "min.cleanable.dirty.ratio": "0.2",
    "delete.retention.ms": "60s",
    "file.delete.delay.ms": "20s",
}
CONFIG = {
    SOAK: {
        **_COMPACTED,
        "table.publish": "delta,iceberg",
        "table.publish.interval.ms": "5s",
        "reader.hold.max.ms": "5m",
    },
    COPY: _COMPACTED,
    STATE: _COMPACTED,
}
TIMEOUT_MS = 20_000

Table = dict[str, dict[str, Any]]


def create(world: World) -> None:
    for name in LOGS:
        Log.create(
            world.url_of(name), PARTITIONS, CONFIG[name], world.storage_options, schema=SCHEMA
        )


def opened(world: World, name: str) -> Log:
    """Opens a log by its URL."""
    return Log.open(world.url_of(name), world.storage_options)


def key_of(producer: str, n: int) -> str:
    return f"{producer}/{n * STEP % KEYS}"


def value_of(producer: str, n: int) -> dict[str, Any] | None:
    if n % TOMBSTONE_EVERY == 0:
        return None
    return {"producer": producer, "n": n, "text": PADDING}


def records_of(producer: str, start: int, count: int) -> list[dict[str, Any]]:
    """Records from number ``start`` on, as `Log.append` takes them."""
    return [
        {"key": key_of(producer, n), "value": value_of(producer, n)}
        for n in range(start, start + count)
    ]


def told(world: World, producer: str) -> int:
    """How many records of a producer are known to be in the log."""
    if producer == SPARK:
        return world.batches_of_spark(SOAK)[0] * KEYS
    return max((line["end"] for line in world.acknowledged(producer, SOAK)), default=0)


def expected(world: World) -> Table:
    """The fold of all that the producers were told of."""
    latest = {(p, n) for p in PRODUCERS for n in _latest(world, p).values()}
    return {key_of(p, n): value for p, n in latest if (value := value_of(p, n)) is not None}


def _latest(world: World, producer: str) -> dict[str, int]:
    """The number of the latest record of each key, of those that a producer was told of."""
    end = told(world, producer)
    return {key_of(producer, n): n for n in range(max(0, end - KEYS), end)}


def problems(world: World, *, is_local: bool) -> list[str]:
    """All that is wrong; empty where nothing is."""
    found = [
        f"{name}: {f.check} {f.where}: {f.message}"
        for name in LOGS
        for f in verify_log(world.store(name)).findings
    ]
    log = opened(world, SOAK)
    waiting = _waiting(log)
    for what, table, at in _tables(world, log, is_local=is_local):
        right = table_of(log, at)
        if at is None:
            found += [f"{what}: {problem}" for problem in _stale(world, table, waiting)]
        elif _are_deleted_since(log, at):
            right |= {key: value for key, value in table.items() if key not in right}
        found += _differences(what, table, right)
    return found


def final_problems(world: World, state: Table, *, is_local: bool) -> list[str]:
    """What is wrong once nobody writes any more, and everything has caught up."""
    found = problems(world, is_local=is_local)
    right = expected(world)
    log, copy = opened(world, SOAK), opened(world, COPY)
    found += _differences("the table, beside what was sent", table_of(log), right)
    found += _differences("the copy, beside what was sent", table_of(copy), right)
    found += _differences("the state, beside what was sent", state, right)
    return found + broken_invariants(world, LOGS)


def table_of(log: Log, at: int | None = None) -> Table:
    rows = log.table(at=at).to_arrow(columns=["key", "value"]).to_pylist()
    return {row["key"]: row["value"] for row in rows}


def _tables(world: World, log: Log, *, is_local: bool) -> Iterator[tuple[str, Table, int | None]]:
    """The table of the log as others see it, and the version that they see; None: the newest."""
    yield "the table", table_of(log), None
    if is_local:  # The second reader knows folders only.
        yield "the second reader", _folded(Path(world.url_of(SOAK))), None
    root = log.handle.standing.root
    views: dict[str, tuple[str, Callable[..., Any]]] = {
        "Delta": ("_delta_log/0", delta_rows),
        "Iceberg": ("metadata/v", iceberg_rows),
    }
    for name, (begins, rows_of) in views.items():
        if not any(root.list(begins)):
            continue  # Nobody has come to it yet.
        rows, version = rows_of(root)
        table = dict(rows)
        if len(table) != len(rows):
            raise AssertionError(f"{name} shows a key twice at version {version}")
        yield f"{name} at version {version}", table, version


def _waiting(log: Log) -> set[str]:
    """Keys of records that an undecided transaction keeps from the table."""
    batches = log.read(start=log.stable_offsets(), isolation="read_uncommitted", columns=["key"])
    return {key for batch in batches for key in batch.column("key").to_pylist()}


def _are_deleted_since(log: Log, version: int) -> bool:
    """Whether the table of a version may have lost records that a view of it still shows."""
    return any(commit.operation == "delete-records" for commit in log.history(version + 1))


def _folded(root: Path) -> Table:
    reader = SecondReader(root)
    table: Table = {}
    for partition in range(PARTITIONS):
        for record in reader.records(partition):
            if record.value is None:
                table.pop(record.key, None)
            else:
                table[record.key] = record.value
    return table


def _stale(world: World, table: Table, waiting: set[str]) -> Iterator[str]:
    for producer in PRODUCERS:
        for key, n in _latest(world, producer).items():
            # What nobody was told of may be there; what lay below the log start is not.
            if key in table and table[key]["n"] < n and key not in waiting:
                yield f"{key} shows record {table[key]['n']}, and {n} was acknowledged"
    for key, value in table.items():
        if value["text"] == ABORTED:
            yield f"{key} shows record {value['n']} of a transaction that was aborted"


def _differences(what: str, table: Table, right: Table) -> list[str]:
    wrong = sorted(k for k in table.keys() | right.keys() if table.get(k) != right.get(k))
    if not wrong:
        return []
    first = wrong[0]
    shown = f"{first} is {table.get(first)}, not {right.get(first)}"
    return [f"{what}: {len(wrong)} of {len(right)} keys differ: {shown}"]
