"""What the transactions of a run hold, and what must be true of their logs.

A job copies ``source`` into three logs, `STEP` records in each transaction, and commits with them
how far it has come. All that transaction n writes follows from n alone. ``home`` decides; ``kept``
keeps every record, and gets others beside them; ``cleaned`` is compacted.

Whenever all processes stand still:

1. *Once, in order*: a log shows the transactions 0 to m, each whole and once; aborted ones nowhere.
2. *Positions agree*: the home shows as many as the job's position says.
3. *Acknowledged is there*; at most one transaction is in the home that nobody was told of.
4. *All or nothing*: what the home shows and another log does not is undecided there: one
   transaction at most. Nothing is shown that the home does not show.
5. The table of ``cleaned`` is the fold of what it shows, and `verify` finds nothing.

Once nobody holds anything open, all logs show the same.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from oracle import broken_invariants
from world import World

from clog.storage import Log
from clog.storage.diagnostics.verify import verify_log

JOB = "copying"
SOURCE, HOME = "source", "home"
PARTICIPANTS = ("kept", "cleaned")
LOGS = (HOME, *PARTICIPANTS)
STEP = 4
INPUT = 20_000
HOT_KEYS = 13
PADDING = "." * 40
PLAIN = "plain"
_CONFIG = {"file.delete.delay.ms": 1000, "segment.bytes": 4096}
CONFIG = {
    SOURCE: {"cleanup.policy": ""},
    HOME: {**_CONFIG, "cleanup.policy": ""},
    "kept": {**_CONFIG, "cleanup.policy": ""},
    "cleaned": {**_CONFIG, "min.cleanable.dirty.ratio": 0.2, "delete.retention.ms": 3000},
}


def create(world: World) -> None:
    """Creates the logs, and all of the input."""
    for name in (SOURCE, *LOGS):
        partitions = 1 if name == SOURCE else 2
        Log.create(world.url_of(name), partitions, CONFIG[name], world.storage_options)
    opened(world, SOURCE).append([{"key": "n", "value": str(i)} for i in range(INPUT)])


def opened(world: World, name: str) -> Log:
    """Opens a log by its URL, as participants are."""
    return Log.open(world.url_of(name), world.storage_options)


def outputs_of(n: int, read: list[int]) -> list[dict[str, object]]:
    """What the job makes of the numbers it read, for each of its logs: transaction n."""
    return [
        {
            "key": f"k{number % HOT_KEYS}",
            "value": None if number % 11 == 0 else f"{number}:{PADDING}",
            "headers": [("id", f"{n}:{number}".encode())],
        }
        for number in read
    ]


def expected_ids(n: int) -> list[str]:
    return [f"{n}:{number}" for number in range(n * STEP, (n + 1) * STEP)]


def position(world: World) -> int:
    """How many transactions the job's position says are committed."""
    source, home = opened(world, SOURCE), opened(world, HOME)
    return home.positions(JOB).get(source.id, {}).get(0, 0) // STEP


def acknowledged(world: World, holders: tuple[str, ...]) -> int:
    """One more than the last transaction that any holder was told of."""
    told = [line["n"] for holder in holders for line in world.acknowledged(holder, HOME)]
    return max(told, default=-1) + 1


def undecided(world: World) -> list[str]:
    """Where records are undecided."""
    return [
        f"{name}: transaction {info.number} of epoch {info.epoch} is {info.state}"
        for name in LOGS
        for info in opened(world, name).transactions()
        if info.first_offsets
    ]


def problems(world: World, holders: tuple[str, ...], *, is_settled: bool = False) -> list[str]:
    """All that is wrong; empty where nothing is. ``is_settled``: nothing may be undecided."""
    found, shown = [], {}
    for name in LOGS:
        shown[name], wrong = _shown(world, name)
        found += [f"{name}: {problem}" for problem in wrong]
    committed, told = position(world), acknowledged(world, holders)
    if shown[HOME] != committed:
        found.append(f"home shows {shown[HOME]} transactions, its position says {committed}")
    if not told <= committed <= told + 1:
        found.append(f"{committed} transactions are committed, and {told} were acknowledged")
    open_there = undecided(world)
    if is_settled and open_there:
        found.append(f"past the timeout, {'; '.join(open_there)}")
    for name in PARTICIPANTS:
        least = committed - (not is_settled and any(o.startswith(name) for o in open_there))
        if not least <= shown[name] <= committed:
            found.append(f"{name} shows {shown[name]} of {committed} transactions")
    for name in (SOURCE, *LOGS):
        report = verify_log(world.store(name))
        found += [f"{name}: {f.check} {f.where}: {f.message}" for f in report.findings]
    return found


def final_problems(world: World, holders: tuple[str, ...]) -> list[str]:
    """The invariants of the test kit on top."""
    found = problems(world, holders, is_settled=True)
    return found + broken_invariants(world, LOGS)


def _shown(world: World, name: str) -> tuple[int, list[str]]:
    """How many transactions a log shows, and what is wrong with them."""
    log = opened(world, name)
    if name == "cleaned":
        return _shown_cleaned(log)
    seen: Counter[str] = Counter()
    last: dict[int, int] = defaultdict(lambda: -1)
    wrong = []
    for p, number, record in _records(log):
        seen[record] += 1
        if number <= last[p]:
            wrong.append(f"record {record} of partition {p} comes after number {last[p]}")
        last[p] = number
    count = 1 + max((int(record.partition(":")[0]) for record in seen), default=-1)
    expected = Counter(record for n in range(count) for record in expected_ids(n))
    if seen != expected:
        lost, doubled = expected - seen, seen - expected
        wrong.append(f"{len(lost)} records lost {[*lost][:3]}, {len(doubled)} too many")
    return count, wrong


def _shown_cleaned(log: Log) -> tuple[int, list[str]]:
    """By the latest record that is there: a pass keeps that one."""
    numbers = [(number, record) for _, number, record in _records(log)]
    count = 1 + max((int(record.partition(":")[0]) for _, record in numbers), default=-1)
    fold: dict[str, str] = {}
    for n in range(count):
        for row in outputs_of(n, [*range(n * STEP, (n + 1) * STEP)]):
            fold[str(row["key"])] = row["value"]
    expected = {key: value for key, value in fold.items() if value is not None}
    table = {
        row["key"].decode(): row["value"].decode() for row in log.table().to_arrow().to_pylist()
    }
    if table == expected:
        return count, []
    wrong = sorted(k for k in table.keys() | expected.keys() if table.get(k) != expected.get(k))
    return count, [f"keys {wrong} of the table are not the fold of {count} transactions"]


def _records(log: Log) -> Iterator[tuple[int, int, str]]:
    for batch in log.read():
        for row in batch.to_pylist():
            if row["key"] != PLAIN.encode():
                record = row["headers"][0]["value"].decode()
                yield row["partition"], int(record.partition(":")[2]), record
