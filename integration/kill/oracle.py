"""What must be true of both logs whenever all processes stand still.

1. *Every sequence once*: the records of ``history`` are those that were sent, each at one offset;
   offsets are dense, and a producer's records are in its order.
2. *Acknowledged is there*: each append that returned is at the offsets it returned.
3. *In doubt is one*: a producer has at most one batch in the log that it knows nothing of.
4. *The table* of both logs is the fold of what was sent; ``table`` holds no record that was not
   sent, and its end offsets count all that were.
5. `verify` finds nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from records import BATCH, SPARK, id_of, key_of, table_of, value_of
from world import LOGS, World

from clog.storage import Log
from clog.storage.diagnostics.verify import verify_log
from clog.storage.format.documents import SNAPSHOTS, snapshot_path
from clog_testing.invariants import check_log

Row = tuple[int, int, str, str, str | None]
"""Partition, offset, id, key, value."""


def problems(world: World, *, verify: bool = True) -> list[str]:
    """All that is wrong; empty when nothing is."""
    return [
        f"{name}: {problem}"
        for name in LOGS
        for problem in _log_problems(world, name, verify=verify)
    ]


def final_problems(world: World) -> list[str]:
    """The invariants of the test kit on top (`clog_testing.invariants`)."""
    found = problems(world)
    return found + broken_invariants(world, LOGS)


def broken_invariants(world: World, names: Iterable[str]) -> list[str]:
    """Which of these logs do not hold what the test kit asks of a log."""
    found = []
    for name in names:
        try:
            check_log(world.store(name), every_version=False)
        except AssertionError as e:
            found.append(f"{name}: invariant broken: {e}")
    return found


def batches_in(log: Log) -> dict[str, int]:
    """How many batches of each producer the log says it has."""
    return {w.writer_id: w.sequence + 1 for w in log.handle.refresh().head.writers}


def in_doubt(world: World, producer: str) -> int:
    """In how many logs the producer has a batch that it knows nothing of."""
    return sum(
        batches_in(world.open(name)).get(producer, 0) > _known(world, producer, name)[0]
        for name in LOGS
    )


def is_in_snapshot(world: World, producer: str) -> bool:
    """Whether each batch in doubt is in a snapshot: where writers combine, a commit may leave its
    snapshot until it is done.
    """
    for name in LOGS:
        log = world.open(name)
        if batches_in(log).get(producer, 0) > _known(world, producer, name)[0]:
            (last,) = (w.version for w in log.handle.tip.head.writers if w.writer_id == producer)
            snapshots = [entry.path for entry in log.handle.store.list(SNAPSHOTS)]
            if not snapshots or max(snapshots) < snapshot_path(last):
                return False
    return True


def _known(world: World, producer: str, name: str) -> tuple[int, int]:
    """How many batches must be in the log, and how many may."""
    if producer == SPARK:
        return world.batches_of_spark(name)
    acknowledged = len({a["sequence"] for a in world.acknowledged(producer, name)})
    return acknowledged, acknowledged + 1


def _log_problems(world: World, name: str, *, verify: bool) -> Iterator[str]:
    log = world.open(name)
    sent = batches_in(log)
    for producer, count in sent.items():
        least, most = _known(world, producer, name)
        if not least <= count <= most:
            yield f"{count} batches of {producer}, which knows of {least} to {most}"
    total = sum(sent.values()) * BATCH
    if (end := sum(log.end_offsets().values())) != total:
        yield f"{end} offsets were given to {total} records"
    rows = _rows(log)
    yield from _content_problems(rows)
    if name == "history":
        yield from _once_problems(rows, sent, log.end_offsets())
        yield from _acknowledgement_problems(world, name, rows, sent)
    yield from _table_problems(log, sent)
    if verify:
        yield from (
            f"{f.check} {f.where}: {f.message}" for f in verify_log(world.store(name)).findings
        )


def _rows(log: Log) -> list[Row]:
    return [
        (
            row["partition"],
            row["offset"],
            row["headers"][0]["value"].decode(),
            row["key"].decode(),
            None if row["value"] is None else row["value"].decode(),
        )
        for batch in log.read()
        for row in batch.to_pylist()
    ]


def _content_problems(rows: list[Row]) -> Iterator[str]:
    last: dict[int, int] = {}
    latest: dict[tuple[int, str], int] = {}
    for partition, offset, name, key, value in rows:
        if offset <= last.get(partition, -1):
            yield f"offset {offset} of partition {partition} comes after {last[partition]}"
        last[partition] = offset
        producer, _, number = name.partition(":")
        n = int(number)
        if (key, value) != (key_of(producer, n), value_of(producer, n)):
            yield f"record {name} has another key or value than was sent"
        # Spark's batches have the order of its tasks (S44), so only keys have one there.
        if n <= latest.get((partition, key), -1):
            yield f"record {name} lies behind a later one of its key"
        latest[partition, key] = n


def _once_problems(rows: list[Row], sent: dict[str, int], ends: dict[int, int]) -> Iterator[str]:
    found = Counter(row[2] for row in rows)
    expected = {id_of(p, n) for p, count in sent.items() for n in range(count * BATCH)}
    doubled = [name for name, count in found.items() if count > 1]
    lost = expected - found.keys()
    strangers = found.keys() - expected
    for what, names in (("doubled", doubled), ("lost", lost), ("never sent", strangers)):
        if names:
            yield f"{len(names)} records {what}, such as {min(names)}"
    offsets: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        offsets[row[0]].append(row[1])
    for partition, end in ends.items():
        if offsets[partition] != list(range(end)):
            yield f"offsets of partition {partition} are not 0 to {end - 1}, each once"


def _acknowledgement_problems(
    world: World, name: str, rows: list[Row], sent: dict[str, int]
) -> Iterator[str]:
    places: dict[tuple[str, int], dict[str, list[int]]] = defaultdict(dict)
    for partition, offset, record, _, _ in rows:
        producer, _, number = record.partition(":")
        bounds = places[producer, int(number) // BATCH].setdefault(str(partition), [offset, 0])
        bounds[1] = offset + 1
    for producer in sent:
        for ack in world.acknowledged(producer, name):
            place = places.get((producer, ack["sequence"]), {})
            if place != ack["offsets"]:
                yield (
                    f"batch {ack['sequence']} of {producer} is at {place},"
                    f" and was acknowledged at {ack['offsets']}"
                )


def _table_problems(log: Log, sent: dict[str, int]) -> Iterator[str]:
    table: dict[str, Any] = {
        row["key"].decode(): row["value"].decode() for row in log.table().to_arrow().to_pylist()
    }
    expected = table_of(sent)
    if table != expected:
        wrong = [k for k in table.keys() | expected.keys() if table.get(k) != expected.get(k)]
        yield (
            f"{len(wrong)} of {len(expected)} keys of the table differ from the fold,"
            f" such as {min(wrong)}"
        )
