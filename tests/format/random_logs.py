"""Random logs of every feature that is built, some at once, some from midway on.

`python tests/format/random_logs.py --seeds 1000-1200` makes as many as it is given, holds each
against both readers, and names the seed of one on which they differ.

A log's seed decides what it is, what happens to it, and how small the limits are at which documents
are divided. Two handles change it by turns, so that each loses races and follows the other.
"""

import argparse
import json
import random
import shutil
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import date
from decimal import Decimal
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest.mock import patch

import independent_reader as ir
import make_golden
import pyarrow as pa
import pyarrow.parquet as pq
from agreement import agree

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties.layout import coalesce
from clog.storage import Clock, Log, ManualClock, NotFoundError
from clog.storage.administration import reset_times
from clog.storage.commit.handle import Handle
from clog.storage.cuts import cuts_of, drop_cut, name_cut
from clog.storage.diagnostics.verify import verify_log
from clog.storage.env import SeededIds
from clog.storage.store import open_store
from clog_testing.clocked import ClockedStore
from clog_testing.older import as_before

START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
STORAGE = "clog.storage"
LIMITS = {
    f"{STORAGE}.commit.committer.SNAPSHOT_EDIT_BYTES_MIN": (500, 2_000),
    f"{STORAGE}.format.manifest.PAGE_CHUNKS_MIN": (3, 8),
    f"{STORAGE}.format.commits.INLINE_EDIT_BYTES_MAX": (0, 1_500, 1 << 20),
    f"{STORAGE}.format.writers.WRITERS_MAX": (3, 5),
    f"{STORAGE}.format.writers.PAGE_BYTES_MAX": (600, 1 << 16),
    f"{STORAGE}.format.transactions.POSITIONS_BYTES_MAX": (60, 1_024),
    f"{STORAGE}.format.chunks.INLINE_BYTES_MAX": (0, 1_024),
    f"{STORAGE}.format.columns.INLINE_PARTITIONS_MAX": (2, 256),
    f"{STORAGE}.objects.writer.GROUP_ROWS": (5, 32_768),
    f"{STORAGE}.objects.writer.WHOLE_BYTES": (0, 1 << 20),
}
"""What divides and pages: small values, so that few records reach them, and the real ones."""
TYPES = {
    "key": pa.struct([("a", pa.int32()), ("b", pa.string())]),
    "value": pa.struct(
        [
            *(("n", pa.int32()), ("s", pa.string()), ("d", pa.decimal128(6, 2))),
            ("l", pa.list_(pa.struct([("q", pa.int8())]))),
        ]
    ),
}
KEYS = {
    "key": pa.struct([*TYPES["key"], ("p", pa.decimal128(9, 2)), ("t", pa.date32())]),
    "value": TYPES["value"],
}
"""What a key also has by the feature ``typed-keys``."""
BY_HEADER = {"compaction.strategy": "header", "compaction.strategy.header": "lsn"}
BY_TIME = {"compaction.strategy": "timestamp"}
ORDERS: tuple[dict[str, str], ...] = (
    BY_TIME,
    {**BY_HEADER, "compaction.late": "drop", "compaction.late.scope": "log"},
    {**BY_TIME, "compaction.late": "drop"},
    BY_HEADER,
)
NO_ORDER = dict.fromkeys(name for order in ORDERS for name in order)
EVOLUTIONS: tuple[dict[str, Any], ...] = (
    {"rename": {"key.a": "b", "key.b": "a"}, "add": {"value.d": pa.string()}},
    {"rename": {"value.s": "n", "value.n": "s"}, "drop": ["value.l.element.q", "value.d"]},
    {"add": {"value.more": pa.list_(pa.string()), "value.l.element.z": pa.int8()}},
    {"widen": {"value.n": pa.int64(), "key.a": pa.int64(), "value.d": pa.decimal128(9, 2)}},
)
"""In the order of their ends: the last one comes first."""


def _value(kind: pa.DataType, number: int, text: str) -> Any:
    """A value of a type, whatever its fields are called by now."""
    if pa.types.is_struct(kind):
        return {field.name: _value(field.type, number, text) for field in kind}
    if pa.types.is_list(kind):
        return [_value(kind.value_type, number, text), None][: number % 3]
    if pa.types.is_decimal(kind):
        return None
    return number if pa.types.is_integer(kind) else text


class RandomLog:
    """A log at a root, and what a seed does to it."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.draw = root, random.Random(seed)
        self.clock = ManualClock(START_MS)
        self.store = ClockedStore(open_store(str(root)), self.clock)
        self.done: Counter[str] = Counter()
        self.is_typed = self.draw.random() < 0.4
        self.has_typed_keys = self.is_typed and seed % 2 == 1
        self.is_table = self.is_typed and seed % 3 > 0
        self.is_undecided = self.draw.random() < 0.6 and seed % 10 != 9
        self.is_mirror = seed % 10 == 9
        self.order = ORDERS[seed // 10 % 4] if seed % 10 == 4 else {}
        self.evolutions = list(EVOLUTIONS) if self.is_typed else []
        self.swept = False
        self._ids = iter(range(seed * 1_000, seed * 1_000 + 1_000))
        self.logs = [self._created(), self._opened()]

    def _created(self) -> Log:
        draw = self.draw
        config = {
            "segment.chunks": draw.choice([2, 4, 100]),
            "min.cleanable.dirty.ratio": 0,
            "delete.retention.ms": draw.choice([5, 500]),
            "file.delete.delay.ms": draw.choice([1, 60_000]),
            "dead.rows.delay.ms": draw.choice([0, 0, DAY_MS, DAY_MS]),
            "object.bytes": draw.choice([300, 1 << 20]),
        }
        partitions = draw.choice([1, 2, 3, 7])
        config |= self.order
        self.is_older = draw.random() < 0.5 and not self.order
        with self.as_then(0, 1):
            of_typed = KEYS if self.has_typed_keys else TYPES
            schema = of_typed if self.is_typed else None
            if self.is_table:
                key = pa.field("key", of_typed["key"], nullable=False)
                schema = pa.schema([key, ("value", of_typed["value"])])
                config["table.key.columns"] = [field.name for field in of_typed["key"]]
            ids = SeededIds(next(self._ids))
            return Log.create(
                *(self.store, partitions, config),
                clock=self.clock,
                schema=schema,
                features=["given-offsets"] if self.is_mirror else [],
                ids=ids,
            )

    def as_then(self, step: int, steps: int) -> AbstractContextManager[None]:
        """As a release does a step for which logs have no features; the first half of some."""
        return as_before() if self.is_older and 2 * step < steps else nullcontext()

    def _opened(self) -> Log:
        return Log.open(self.store, clock=self.clock, ids=SeededIds(next(self._ids)))

    @property
    def first_readable(self) -> int:
        return self._opened().handle.tip.head.oldest_readable

    @property
    def log(self) -> Log:
        return self.draw.choice(self.logs)

    def step(self) -> None:
        """Does one thing to the log."""
        self.clock.advance(self.draw.choice([0, 1, 30, 700]))
        weights = {self.append: 9, self.transact: 2, self.clean: 3, self.roll: 2, self.cut: 1}
        weights |= {self.configure: 1, self.upgrade: 1, self.evolve: 1, self.coalesce: 1}
        weights |= {self.sweep: 1, self.reset: 1, self.reopen: 1}
        weights |= {self.hold: 4 * self.is_undecided}
        if self.order:  # Nothing of such a log goes by its offset.
            weights = {**weights, self.clean: 6, self.reorder: 1, self.cut: 0, self.configure: 0}
        (act,) = self.draw.choices(list(weights), list(weights.values()))
        self.done[act.__name__] += 1
        act()

    def records(self) -> list[dict[str, Any]]:
        return [self.record() for _ in range(self.draw.choice([1, 2, 5, 17]))]

    def record(self) -> dict[str, Any]:
        draw, number = self.draw, self.draw.randrange(14)
        key: Any = f"k{number}"
        value: Any = "v" * draw.choice([0, 1, 40])
        if self.is_typed:
            parts = [number - 3, None if number % 4 == 0 else "\0" * (number % 3)]
            if self.has_typed_keys:
                parts.append(Decimal(number - 7) / 4)
                parts.append(None if number % 5 == 0 else date(1970, 1, 1 + number % 3))
            kinds = Log.open(self.store, clock=self.clock).schema
            key = dict(zip((f.name for f in kinds.field("key").type), parts, strict=True))
            value = _value(kinds.field("value").type, number, value)
        made = {"key": key, "value": None if draw.random() < 0.2 else value}
        if draw.random() < 0.2:
            made["headers"] = [("h", b"x"), ("h", None)]
        if self.order:
            order = draw.randrange(100)
            made["headers"] = [*made.get("headers", ()), ("lsn", struct.pack(">q", order))]
            made["timestamp"] = START_MS - order
        return made

    def mirror(self, clock: Clock | None = None) -> None:
        """Commits records with their offsets, which have gaps between them, and ends after them;
        now and then the source starts where it ended, or the mirror is over.
        """
        draw = self.draw
        log = Log.open(self.store, clock=clock or self.clock, ids=SeededIds(next(self._ids)))
        if draw.random() < 0.05:
            log.give_offsets()
            self.is_mirror = False
            return
        ends = log.end_offsets()
        t = log.transaction("mirror")
        for p in draw.sample(range(log.partitions), draw.randint(1, log.partitions)):
            if draw.random() < 0.1:
                t.cover({p: ends[p] + 9}, start={p: ends[p] + draw.choice([0, 4, 9])})
                continue
            for _ in range(draw.choice([1, 1, 2])):
                records = self.records()
                steps = [draw.choice([1, 1, 1, 5]) for _ in records]
                offsets = list(accumulate(steps, initial=ends[p] - 1))[1:]
                t.append(records, p, offsets=offsets)
                ends[p] = offsets[-1] + draw.choice([1, 1, 6])
            t.cover({p: ends[p]})
        t.commit()
        self.logs = [self._opened(), self._opened()]  # Who was fenced stays so.

    def append(self) -> None:
        if self.is_mirror:
            self.mirror()
            return
        log, producer = self.log, None
        if self.draw.random() < 0.5:
            self.done["producer"] += 1
            producer = (f"w{self.draw.randrange(9)}", self.done["producer"])
        old = self.draw.random() < 0.3
        with (
            patch(f"{STORAGE}.types.columns.with_ids", (lambda f: f))
            if (old and not self.is_typed)
            else ExitStack()
        ):
            log.append(self.records(), self.draw.randrange(log.partitions), producer)

    def transact(self) -> None:
        if self.is_mirror:
            self.mirror()
            return
        transaction = self.log.transaction(f"t{self.draw.randrange(3)}")
        for _ in range(self.draw.randrange(3)):
            transaction.append(self.records())
        source = self.log
        for p in self.draw.sample(range(source.partitions), self.draw.randrange(source.partitions)):
            end = source.stable_offsets()[p]
            transaction.positions(source, {p: end}, missed_deletes=True)
        if (nth := self.done["transact"]) % 3 == 0:
            marks = [(nth, "7"), (10**9 + nth, None)]
            offsets = {p: marks[p % 2] for p in range(90 if nth % 9 == 0 else 3)}
            transaction.positions(f"kafka:cluster/topic-{nth % 2}", offsets)
        if self.draw.random() < 0.3:
            transaction.abort()
        else:
            transaction.commit()
        self.logs = [self._opened(), self._opened()]  # Who was fenced stays so.

    def hold(self) -> None:
        """A transaction whose records are undecided for a time, here, there, or in both."""
        draw, logs = self.draw, [self.log, self._other()]
        is_visible = draw.random() < 0.5
        draw.shuffle(logs)
        home, other = logs if not is_visible else (self.log, None)
        transaction = home.transaction(
            f"t{draw.randrange(3)}", timeout_ms=draw.choice([100, DAY_MS]), visible=is_visible
        )
        for _ in range(draw.choice([1, 1, 2])):
            if is_visible or draw.random() < 0.5:
                transaction.append(self._records_of(home), draw.randrange(home.partitions))
        if other is not None:
            transaction.append(self._records_of(other), log=other)
            if draw.random() < 0.7:  # The participant hears of it later.
                transaction._work.several.finish = lambda _: {}
        outcome = draw.choice(["commit", "commit", "abort", "leave"])
        self.done[f"hold {outcome}"] += 1
        if outcome == "commit":
            transaction.commit()
        if outcome == "abort":
            transaction.abort()
        self.logs = [self._opened(), self._opened()]

    def _other(self) -> Log:
        """Another log, that takes part in transactions."""
        store = ClockedStore(open_store(f"{self.root}-other"), self.clock)
        ids = SeededIds(next(self._ids))
        try:
            return Log.open(store, clock=self.clock, ids=ids)
        except NotFoundError:
            return Log.create(store, 2, clock=self.clock, ids=ids)

    def _records_of(self, log: Log) -> list[dict[str, Any]]:
        return self.records() if log.id == self.logs[0].id else [{"key": "o", "value": "other"}]

    def clean(self) -> None:
        Cleaner(self.log, clock=self.clock).run_once(force=True)

    def sweep(self) -> None:
        self.swept = True
        self.clock.advance(9 * DAY_MS)
        self.clean()

    def roll(self) -> None:
        self.log.roll(self.draw.choice([0, None]))

    def cut(self) -> None:
        ends = self.log.end_offsets()
        self.log.delete_records({p: int(end * self.draw.random()) for p, end in ends.items()})

    def configure(self) -> None:
        name, values = self.draw.choice(
            [
                ("compression.type", ["zstd", "snappy", "lz4"]),
                ("message.timestamp.type", ["CreateTime", "LogAppendTime"]),
                ("cleanup.policy", ["compact", "compact,delete"]),
                ("retention.bytes", [None, 2_000]),
            ]
        )
        self.log.alter({name: self.draw.choice(values)})

    def reorder(self) -> None:
        """Other records of a key win from now on, or late ones are shown."""
        self.order = self.draw.choice(ORDERS)
        self.log.alter(NO_ORDER | self.draw.choice([self.order, self.order, {}]))
        self.logs = [self._opened(), self._opened()]  # Who wrote before is refused once.

    def upgrade(self) -> None:
        chosen = self.draw.choice(["dead-rows", "transactions", "masks"])
        if chosen == "masks":
            self.log.alter({"table.masks": "true"})
        else:
            self.log.upgrade([chosen])

    def evolve(self) -> None:
        if self.evolutions:
            self.log.evolve(**self.evolutions.pop())

    def coalesce(self) -> None:
        handle = self.log.handle
        handle.refresh()
        coalesce(Work(handle, self.clock.now_ms()), force=True)

    def reset(self) -> None:
        ahead = ManualClock(self.clock.now_ms() + 30 * DAY_MS)
        if self.is_mirror:
            self.mirror(ahead)
        else:
            log = Log.open(self.store, clock=ahead, ids=SeededIds(next(self._ids)))
            log.append(self.records())
        assert reset_times(self.log.handle) > 0

    def reopen(self) -> None:
        self.logs = [self._opened(), *self.logs[:1]]
        self._name_cuts(self.logs[0].handle)
        self._erase(self.logs[0])

    def _erase(self, log: Log) -> None:
        """Requests that a key be erased, the next one each time; rounds carry it out."""
        number = self.done["reopen"] % 14
        key: Any = f"k{number}"
        if self.is_typed:
            key = {"a": number - 3, "b": None if number % 4 == 0 else "\0" * (number % 3)}
            if self.has_typed_keys:
                key["p"] = Decimal(number - 7) / 4
                key["t"] = None if number % 5 == 0 else date(1970, 1, 1 + number % 3)
        log.erase([key], notify=number % 2 == 0 and not self.is_mirror)

    def _name_cuts(self, handle: Handle) -> None:
        """Names a cut, keeps it, and drops the one before the last."""
        name_cut(handle, f"cut-{self.done['reopen']}", DAY_MS)
        for cut in cuts_of(handle)[:-2]:
            drop_cut(handle, str(cut.name))

    def check(self) -> None:
        """Compares the log with both readers, and every version with itself."""
        log = self._opened()
        agree(self.root, log, whole_history=not self.swept)
        ir.check(self.root)
        findings = list(verify_log(self.store).findings)
        assert findings == [], findings
        count = 12 if self.order else 3
        for version in {self.draw.randrange(log.version + 1) for _ in range(count)}:
            self._check_version(log, version)

    def _check_version(self, log: Log, version: int) -> None:
        start = log.handle.tip.head.partitions.start
        if version < log.handle.tip.head.oldest_readable:
            return
        found = ir.from_snapshot(self.root, version)
        rows = log.table(at=version).to_pylist(columns=["partition", "key", "value"])
        for p in range(log.partitions):
            shown = [(r["key"], r["value"]) for r in rows if r["partition"] == p]
            theirs = [r[2:4] for r in ir.winners(self.root, found, p, start[p]) if r[3] is not None]
            assert texts_of(shown) == texts_of(theirs)


def texts_of(pairs: Any) -> list[str]:
    """Pairs of keys and values of any types, comparable, in an order."""
    return sorted(repr([make_golden.text(part) for part in pair]) for pair in pairs)


EVERYTHING = {
    *("masks", "typed-columns", "typed-keys", "table-columns", "added midway"),
    *("dead rows in a file", "order-values", "orders removed"),
    *("key index", "no field ids", "field ids", "rest", "older writers", "pages of segments"),
    *(
        "snapshots",
        "edits apart",
        "positions",
        "positions apart",
        "foreign positions",
        "given offsets",
        "reached",
        "reached after",
        "gives offsets",
        "later schema",
        "horizons",
    ),
    *("append times", "gaps", "released", "steps of tombstones", "start", "headers"),
    *("times set back", "swept", "several writers", "undecided rows"),
    *("named cuts", "kept versions", "members", "erasures", "receipts"),
    *(
        "aborted rows",
        "markers",
        "horizons of markers",
        "participants",
        "outcomes kept",
    ),
}
"""What a log may have; `found_in` returns what one has."""


def found_in(log: RandomLog) -> set[str]:
    """Which of `EVERYTHING` there is in a log, as the independent reader sees it."""
    state = ir.from_snapshot(log.root)
    own, folder = state["state"], ir.folder(log.root)
    commits = [ir.commit(log.root, v) for v in range(own.version + 1)]
    heads = [commit["head"] for commit in commits]
    unended = [entry for head in heads for entry in head.get("unended", ())]
    chunks = [chunk for partition in own.partitions for chunk in partition.chunks()]
    kinds = {name: [*(folder / name).glob("*")] for name in ("snapshots", "edits", "data")}
    has_ids = [ids_in(path) for path in kinds["data"] if path.suffix == ".parquet"]
    states = [entry[6] for entry in state["writers"].values() if entry[1] == "transaction"]
    pages = [json.loads(path.read_bytes().partition(b"\n")[2]) for path in plain_pages(folder)]
    said = {
        **{
            name: name in own.features
            for name in ("typed-columns", "typed-keys", "table-columns", "order-values")
        },
        "masks": own.masked is not None,
        "orders removed": any("orders_removed" in commit.get("edit", {}) for commit in commits),
        "named cuts": bool(own.cuts),
        "kept versions": bool(own.kept),
        "members": bool(own.members),
        "erasures": bool(own.erasures),
        "receipts": any((folder / "receipts").glob("*")),
        "added midway": heads[0]["log"]["features"] != heads[-1]["log"]["features"],
        "dead rows in a file": any(path.suffix == ".dead" for path in kinds["data"]),
        "undecided rows": any(chunk.undecided for chunk in chunks),
        "aborted rows": any(chunk.aborted for chunk in chunks),
        "markers": bool(own.markers),
        "horizons of markers": any(marker[-1] >= 0 for marker in own.markers),
        "participants": any("participants" in entry for entry in unended),
        "outcomes kept": any(entry["state"] == "committed" for entry in unended),
        "key index": any(chunk.object.index for chunk in chunks),
        "no field ids": not all(has_ids),
        "field ids": any(has_ids),
        "rest": any("rest" in head["partitions"] for head in heads),
        "older writers": own.older_writers is not None,
        "pages of segments": any("segments" in page for page in pages),
        "snapshots": bool(kinds["snapshots"]),
        "edits apart": bool(kinds["edits"]),
        "positions": any("positions" in status for status in states),
        "positions apart": any("positions_at" in status for status in states),
        "given offsets": "given-offsets" in own.features,
        "reached": any("reached" in commit.get("edit", {}) for commit in commits),
        "reached after": any("reached_after" in commit.get("edit", {}) for commit in commits),
        "gives offsets": own.gives_offsets is not None,
        "foreign positions": any("foreign" in status for status in states),
        "later schema": own.schema.id > 0,
        "horizons": any(max(chunk.horizon, chunk.horizon_max) >= 0 for chunk in chunks),
        "append times": any(chunk.append_time_ms >= 0 for chunk in chunks),
        "gaps": any(chunk.rows < chunk.next - chunk.base for chunk in chunks),
        "released": bool(own.released),
        "steps of tombstones": bool(own.tombstones_removed),
        "start": any(partition.start for partition in own.partitions),
        "headers": any(
            row[4] for p in range(len(own.partitions)) for row in ir.records(log.root, state, p)
        ),
        "times set back": any(commit["operation"] == "reset-times" for commit in commits),
        "swept": own.oldest_readable > 0,
        "several writers": len({commit["id"][:8] for commit in commits}) > 1,
    }
    return {name for name, is_there in said.items() if is_there}


def ids_in(path: Path) -> bool:
    """Whether the columns of an object have field ids."""
    return pq.ParquetFile(path).schema_arrow.field(0).metadata is not None


def plain_pages(folder: Path) -> list[Path]:
    """The pages that are not compressed."""
    pages = (folder / "pages").glob("*.json")
    return [path for path in pages if b'"encoding":"json"' in path.read_bytes()[:4096]]


@contextmanager
def made(seed: int, steps: int) -> Iterator[RandomLog]:
    """The log of a seed, after this many steps; it is deleted afterwards."""
    folder = Path(tempfile.mkdtemp())
    draw = random.Random(f"limits {seed}")
    try:
        with ExitStack() as stack:
            for name, values in LIMITS.items():
                stack.enter_context(patch(name, draw.choice(values)))
            log = RandomLog(folder / "log", seed)
            for step in range(steps):
                with log.as_then(step, steps):
                    log.step()
            yield log
    finally:
        shutil.rmtree(folder)


def check_seed(seed: int, steps: int, told: Callable[[RandomLog], None] | None = None) -> None:
    """Makes the log of a seed, and compares it with both readers."""
    with made(seed, steps) as log:
        log.check()
        if told is not None:
            told(log)


def main() -> int:
    """Checks the logs of a range of seeds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", default="0-99", help="first-last")
    parser.add_argument("--steps", type=int, default=40)
    given = parser.parse_args()
    first, last = map(int, given.seeds.split("-"))
    done: Counter[str] = Counter()
    for seed in range(first, last + 1):
        try:
            check_seed(seed, given.steps, lambda log: done.update(log.done))
        except BaseException:
            print(f"seed {seed}, {given.steps} steps:", file=sys.stderr)
            raise
    print(f"{last + 1 - first} logs agree: {dict(done)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
