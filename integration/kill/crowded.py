"""What a crowd writes into one log, and what must be true of it.

Append n of an author are `KEPT` records whose keys nobody writes again, and `HOT` that replace
those of the append before. How authors differ (`KINDS`): *plain* ones never repeat an append,
*numbered* ones send what is in doubt again under its sequence, *deferred* ones by a transaction. A
Spark stream has an author's name, too, and its records are kept.

1. *Once*: an append that was acknowledged is there, whole and once, at the offsets that were
   acknowledged; one that was refused is not; one that is in doubt is there whole and once, or not.
2. *In order*: what an author was told of before it began another append comes before that.
3. *Nothing else*: the log gave as many offsets as the appends have that it shows.
4. *Cleaned right*: a hot key shows the record that came last, the table is the log's fold, and
   `verify` finds nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from oracle import broken_invariants
from world import World

from clog.storage import Log
from clog.storage.diagnostics.verify import verify_log

CROWD = "crowd"
PARTITIONS = 4
KEPT, HOT = 6, 4
ROWS = KEPT + HOT
SPARK, SPARK_ROWS = "spark", 40
PLAIN, NUMBERED, DEFERRED = "plain", "numbered", "deferred"
KINDS = (PLAIN, NUMBERED, PLAIN, NUMBERED, PLAIN, NUMBERED, PLAIN, DEFERRED)
TIMEOUT_MS = 20_000
CONFIG = {
    "segment.bytes": "64k",
    "min.cleanable.dirty.ratio": "0.2",
    "delete.retention.ms": "60s",
    "file.delete.delay.ms": "20s",
}
Place = tuple[int, int]


def create(world: World) -> None:
    url, options = world.url_of(CROWD), world.storage_options
    Log.create(url, PARTITIONS, CONFIG, options)


def opened(world: World) -> Log:
    """Opens the log by its URL."""
    return Log.open(world.url_of(CROWD), world.storage_options)


def name_of(number: int) -> str:
    """The name of an author, which says of what kind it is."""
    return f"{KINDS[number % len(KINDS)]}-{number}"


def kind_of(author: str) -> str:
    return author.partition("-")[0]


def records_of(author: str, n: int) -> list[dict[str, object]]:
    """The records of an append, as `Log.append` takes them."""
    kept = [f"{author}/{n}/{i}" for i in range(KEPT)]
    hot = [f"{author}/hot/{i}" for i in range(HOT)]
    return [{"key": key, "value": f"{author}:{n}:{i}"} for i, key in enumerate(kept + hot)]


@dataclass(slots=True)
class Told:
    """What an author was told of its appends, in the order of its lines.

    Attributes:
        done: where acknowledged ones are, by partition; empty where it was told no offsets.
        before: the acknowledged append before another one was begun.
        began, refused: their numbers.
    """

    done: dict[int, dict[int, Place]] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)
    began: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)

    @property
    def in_doubt(self) -> set[int]:
        return self.began - self.done.keys() - self.refused


def told(world: World, author: str) -> Told:
    found, last = Told(), -1
    for line in world.acknowledged(author, CROWD):
        n = line["n"]
        if line["what"] == "began":
            found.began.add(n)
            found.before.setdefault(n, last)
        elif line["what"] == "done":
            found.done[n] = {int(p): tuple(place) for p, place in line["offsets"].items()}
            last = n
        elif line["what"] == "refused":
            found.refused.add(n)
    return found


@dataclass(slots=True)
class Seen:
    """What the log shows of an author: the places of its records by append and number, and the
    last record of each hot key.
    """

    kept: dict[int, dict[int, list[Place]]] = field(default_factory=lambda: defaultdict(dict))
    hot: dict[int, int] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)


def seen(log: Log) -> tuple[dict[str, Seen], dict[int, int], dict[str, str]]:
    """What the log shows by author, how often it shows each record of Spark, and its fold."""
    found: dict[str, Seen] = defaultdict(Seen)
    spark: dict[int, int] = defaultdict(int)
    fold: dict[str, str] = {}
    once: set[str] = set()
    for batch in log.read(columns=["key", "value", "partition", "offset"]):
        for row in batch.to_pylist():
            value = row["value"].decode()
            fold[row["key"].decode()] = value
            author, n, i = value.split(":")
            if author == SPARK:
                spark[int(n)] += 1
            elif int(i) < KEPT:
                places = found[author].kept[int(n)].setdefault(int(i), [])
                places.append((row["partition"], row["offset"]))
            else:
                if value in once:
                    found[author].twice.append(value)
                once.add(value)
                found[author].hot[int(i)] = int(n)
    return found, spark, fold


def problems(world: World, authors: Iterable[str], *, ended: bool = False) -> list[str]:
    """All that is wrong; ``ended``: nobody writes any more."""
    found = [f"{f.check} {f.where}: {f.message}" for f in verify_log(world.store(CROWD)).findings]
    log = opened(world)
    shown, spark, fold = seen(log)
    given, there = sum(log.end_offsets().values()), sum(spark.values())
    for author in authors:
        known, of = told(world, author), shown[author]
        found += [f"{author}: {problem}" for problem in _wrong(known, of, kind_of(author))]
        there += ROWS * len(of.kept)
        if ended and kind_of(author) != PLAIN and known.in_doubt:
            found.append(f"{author}: appends {sorted(known.in_doubt)[:3]} are in doubt at the end")
    if given != there:
        found.append(f"the log gave {given} offsets, and shows appends of {there} records")
    found += _wrong_of_spark(world, spark, ended=ended)
    table = {
        row["key"].decode(): row["value"].decode()
        for row in log.table(at=log.version).to_arrow(columns=["key", "value"]).to_pylist()
    }
    wrong = sorted(key for key in table.keys() | fold.keys() if table.get(key) != fold.get(key))
    if wrong:
        shows = f"{wrong[0]} is {table.get(wrong[0])}, and {fold.get(wrong[0])} in the log"
        found.append(f"{len(wrong)} keys of the table are not those of the log: {shows}")
    return found + (broken_invariants(world, [CROWD]) if ended else [])


def _wrong(known: Told, of: Seen, kind: str) -> Iterator[str]:
    for n in sorted(known.done.keys() - of.kept.keys()):
        yield f"append {n} was acknowledged, and is lost"
    for n, places in sorted(of.kept.items()):
        if n in known.refused or n not in known.began:
            yield f"append {n} was {'refused' if n in known.refused else 'not begun'}, and is there"
        yield from _misplaced(n, places, known.done.get(n, {}))
    yield from (f"{value} is there twice" for value in of.twice)
    yield from _out_of_order(known, of, kind)
    latest = max(known.done, default=-1)
    for i in range(KEPT, ROWS) if latest >= 0 else ():
        n = of.hot.get(i, -1)
        if n != latest and not (n in known.in_doubt and n in of.kept):
            yield f"hot key {i} shows append {n}, and {latest} was acknowledged"


def _misplaced(n: int, places: dict[int, list[Place]], told_of: dict[int, Place]) -> Iterator[str]:
    if set(places) != set(range(KEPT)):
        yield f"append {n} is there in part: {sorted(places)}"
    if any(len(of_record) > 1 for of_record in places.values()):
        yield f"append {n} is there {max(map(len, places.values()))} times: {places}"
    for p, offset in (place for of_record in places.values() for place in of_record):
        first, end = told_of.get(p, (offset, offset + 1) if not told_of else (0, 0))
        if not first <= offset < end:
            yield f"append {n} is at {p}:{offset}, acknowledged at {p}:{first} to {end}"


def _out_of_order(known: Told, of: Seen, kind: str) -> Iterator[str]:
    """What an author was told of comes before what it began then; one that never repeats an append
    may be overtaken by its own that is in doubt.
    """
    ends = {n: _bounds(places) for n, places in of.kept.items()}
    for n, before in known.before.items():
        if before not in ends or (kind == PLAIN and n not in known.done):
            continue
        for p, (first, _) in ends.get(n, {}).items():
            if ends[before].get(p, (0, -1))[1] > first:
                yield f"append {n} comes before {before}, which was acknowledged before it"


def _bounds(places: dict[int, list[Place]]) -> dict[int, Place]:
    """The lowest and the highest offset of an append in each partition."""
    found: dict[int, Place] = {}
    for p, offset in (place for of_record in places.values() for place in of_record):
        first, last = found.get(p, (offset, offset))
        found[p] = min(first, offset), max(last, offset)
    return found


def _wrong_of_spark(world: World, spark: dict[int, int], *, ended: bool) -> Iterator[str]:
    committed, begun = world.batches_of_spark(CROWD)
    if twice := [n for n, times in spark.items() if times > 1]:
        yield f"{len(twice)} records of Spark are there twice: {sorted(twice)[:3]}"
    if lost := [n for n in range(committed * SPARK_ROWS) if n not in spark]:
        yield f"{len(lost)} records of Spark are lost: {lost[:3]}"
    most = (committed if ended else begun) * SPARK_ROWS
    if len(spark) > most:
        yield f"{len(spark)} records of Spark are there, at most {most} were sent"
