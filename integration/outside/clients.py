"""The processes of a history: clients of a log, who deletes and creates it, its cleaner; and those
that work in transactions over several logs.

Each is forked from a process that has loaded all modules and done nothing else, does a few
operations, and notes each (`history.Recorder`). It may be killed anywhere; its next life goes on
with what the last one noted.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import planted
from history import FAILED, GONE, OK, UNKNOWN, Recorder, lines_of

from clog.cleaner import Cleaner
from clog.storage import Log, snapshot
from clog.storage.administration import delete_log
from clog.storage.errors import (
    AlreadyExistsError,
    CommitConflictError,
    CommitStateUnknownError,
    NotFoundError,
    StoreUnavailableError,
    TransactionFencedError,
    TransactionTimeoutError,
    VersionExpiredError,
)
from clog.storage.store import Store, open_store
from clog_testing.faults import FaultyStore, RandomFaults

PARTITIONS = 2
KEYS = tuple(f"k{i}" for i in range(4))
CONFIG = {"segment.bytes": 600, "min.cleanable.dirty.ratio": 0.1, "object.bytes": 500}
LOST_REPLIES, LOST_BY_WORKERS = 0.04, 0.01
"""Shares of requests that fail, whose reply is lost, or that are made twice, where the store is no
server behind a network that does this; workers make many for each transaction.
"""
HOME, OTHERS = "home", ("left", "right")
SHARED = "shared"
"""An id of transactions that all workers take from each other."""
COUNTER = "counter"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a history plays, and what every client of it knows.

    Attributes:
        partitions: by key: where its hash puts it.
        bug: what is planted in every client (`planted`); none if empty.
    """

    url: str
    options: dict[str, Any]
    work: Path
    partitions: dict[str, int] = field(default_factory=dict)
    operations: int = 12
    pause_s: float = 0.02
    bug: str = ""

    @property
    def is_remote(self) -> bool:
        return "://" in self.url

    def store(self, name: str = "", seed: int = 0) -> Store:
        """The store of a log; on a local disk, one that loses replies."""
        lost = LOST_BY_WORKERS if name else LOST_REPLIES
        url = f"{self.url}/{name}" if name else self.url
        store = open_store(url, self.options)
        return store if self.is_remote else FaultyStore(store, RandomFaults(seed, lost))

    def record(self, client: str) -> Path:
        return self.work / f"{client}.jsonl"


class Client:
    """Appends to one log and reads it, by operations that are each noted."""

    def __init__(self, place: Place, name: str, seed: int) -> None:
        self.place, self.name = place, name
        self.random = random.Random(seed)
        self.seed = seed
        self.noted = lines_of(place.record(name))
        self.recorder = Recorder(place.record(name))
        self.log: Log | None = None
        self.number = 0
        self._resume()

    def _resume(self) -> None:
        """Goes on after the batch that was begun last."""
        batches = [x["input"] for x in self.noted if x.get("op") == "append"]
        self.doubt = None
        if batches:
            self.number = max(b["number"] for b in batches)
            ended = {x["return"] for x in self.noted if x.get("outcome") in (OK, FAILED)}
            last = [x for x in self.noted if x.get("op") == "append"][-1]
            if last["call"] not in ended and last["input"]["repeat"]:
                self.doubt = last["input"]

    def step(self) -> None:
        """One operation."""
        if self.log is None:
            self.open()
        elif self.doubt or self.random.random() < 0.5:
            self.append()
        else:
            self.look()

    def open(self) -> str:
        """Opens the log that is at the root now, if there is one; returns how that ended."""
        number = self.recorder.call("open", "")
        outcome, log_id = OK, ""
        try:
            self.log = Log.open(self.place.store(seed=self._drawn()))
            log_id = self.log.id
        except NotFoundError:
            outcome = GONE
        except StoreUnavailableError:
            outcome = FAILED
        self.recorder.answer(number, outcome, log=log_id)
        return outcome

    def append(self) -> None:
        """Appends a batch: plain, under a sequence, or in a transaction under one; what is in doubt
        again, under its sequence.
        """
        batch = self.doubt or self._new_batch()
        rows = [{"key": key, "value": value} for _, _, key, value in batch["rows"]]
        log, kind, n = self._open_log, batch["kind"], batch["number"]

        def do() -> dict[str, Any]:
            if kind != "transaction":
                producer = (self.name, n) if kind == "numbered" else None
                return _offsets(log.append(rows, producer=producer).offsets)
            work = log.transaction(f"t-{self.name}", 20_000, sequence=n)
            if not work.is_open:
                return {}
            for row in rows:
                work.append([row])
            return _offsets(work.commit().offsets)

        outcome = self._do("append", batch, do)
        again = batch["repeat"] and outcome in (UNKNOWN, FAILED)
        self.doubt = batch if again else None

    def look(self) -> None:
        """Reads something."""
        op = self.random.choice(("read", "table", "get", "ends"))
        of = {"read": self.random.randrange(PARTITIONS), "get": self.random.choice(KEYS)}
        self._look(op, of.get(op))

    def look_at_all(self) -> None:
        """Reads everything, again where a reply was lost."""
        left = [("read", p) for p in range(PARTITIONS)] + [("table", None), ("ends", None)]
        while left:
            op, given = left[-1]
            if self.log is None:
                self.open()
            if self.log is None and lines_of(self.recorder.path)[-1]["outcome"] == GONE:
                return
            if self.log is not None and self._look(op, given) == OK:
                left.pop()

    def _look(self, op: str, given: Any) -> str:
        log = self._open_log
        read: dict[str, Callable[[], Any]] = {
            "read": lambda: rows_of(log, given),
            "table": lambda: table_of(log),
            "get": lambda: _text(log.table().get(given)),
            "ends": lambda: {str(p): n for p, n in log.end_offsets().items()},
        }
        return self._do(op, given, read[op])

    def _do(self, op: str, given: Any, do: Callable[[], Any]) -> str:
        """Does an operation and notes it; returns how it ended."""
        number = self.recorder.call(op, self._open_log.id, given)
        outcome, output = UNKNOWN, None
        try:
            outcome, output = OK, do()
        except VersionExpiredError:
            outcome = FAILED
        except NotFoundError:
            outcome, self.log = GONE, None
        except (CommitConflictError, TransactionTimeoutError):
            outcome = FAILED
        except (CommitStateUnknownError, StoreUnavailableError, TransactionFencedError):
            outcome = UNKNOWN if op == "append" else FAILED
            self.log = None
        self.recorder.answer(number, outcome, output)
        return outcome

    @property
    def _open_log(self) -> Log:
        assert self.log is not None
        return self.log

    def _new_batch(self) -> dict[str, Any]:
        self.number += 1
        rows = []
        for i in range(self.random.randint(1, 3)):
            key = self.random.choice(KEYS)
            value = None if i and self.random.random() < 0.3 else f"{self.name}.{self.number}.{i}"
            rows.append([self.place.partitions[key], 0, key, value])
        kind = self.random.choice(("plain", "numbered", "transaction"))
        batch = {"number": self.number, "kind": kind, "rows": rows}
        return {**batch, "repeat": kind != "plain"}

    def _drawn(self) -> int:
        return self.random.randrange(1 << 32)


class Recreator(Client):
    """Deletes the log, and creates it again, at the same root."""

    def create_at_last(self) -> None:
        while self.log is None:
            self.create()
            if self.log is None:
                self.open()

    def step(self) -> None:
        time.sleep(self.random.random() * 10 * self.place.pause_s)
        if self.log is None and self.open() == FAILED:
            return  # There may be one whose id it does not know.
        known = [x["log"] for x in lines_of(self.recorder.path) if x.get("log")]
        if self.log is not None:
            self._delete(self.log.id)
        elif known and self.random.random() < 0.5:
            self._delete(known[-1])  # As far as an earlier life did not get.
        self.create()

    def _delete(self, log_id: str) -> None:
        number = self.recorder.call("delete", log_id)
        self.log = None
        try:
            delete_log(self.place.store(seed=self._drawn()))
            self.recorder.answer(number, OK)
        except (StoreUnavailableError, NotFoundError):
            self.recorder.answer(number, UNKNOWN)

    def create(self) -> None:
        number = self.recorder.call("create", "")
        try:
            self.log = Log.create(
                self.place.store(seed=self._drawn()),
                PARTITIONS,
                CONFIG,
            )
            self.recorder.answer(number, OK, log=self.log.id)
        except AlreadyExistsError:
            self.recorder.answer(number, FAILED)
        except (StoreUnavailableError, CommitStateUnknownError, NotFoundError):
            self.recorder.answer(number, UNKNOWN)


class CleanerClient(Client):
    """Cleans the log, whatever is there; notes nothing."""

    def step(self) -> None:
        time.sleep(self.random.random() * 10 * self.place.pause_s)
        try:
            log = Log.open(self.place.store(seed=self._drawn()))
            log.roll()
            Cleaner(log).run_once(force=True)
        except (NotFoundError, StoreUnavailableError, CommitStateUnknownError, CommitConflictError):
            pass


class Worker(Client):
    """Works in transactions that read and write three logs, and takes cuts of them.

    Under an id of its own, or under one that all workers share; then it adds 1 to a counter.
    """

    def _resume(self) -> None:
        self.number = sum(x.get("op") == "transaction" for x in self.noted)
        self.logs: dict[str, Log] = {}

    def step(self) -> None:
        try:
            if not self.logs:
                self.logs = {
                    name: Log.open(self.place.store(name, self._drawn()))
                    for name in (HOME, *OTHERS)
                }
            if self.random.random() < 0.6:
                self._transact()
            elif self.random.random() < 0.5:
                self._cut()
            else:
                name = self.random.choice((HOME, *OTHERS))
                self._note("list", name, lambda: rows_of(self.logs[name]))
        except IN_DOUBT:
            self.logs = {}

    def _transact(self) -> None:
        self.number += 1
        name = f"{self.name}.{self.number}"
        id_ = SHARED if self.random.random() < 0.5 else f"t-{self.name}"
        into = [HOME, *self.random.sample(OTHERS, self.random.randint(0, 2))]
        aborts = self.random.random() < 0.15
        given = {"name": name, "id": id_, "into": into}
        number = self.recorder.call("transaction", "", given)
        reads: dict[str, str | None] = {}
        try:
            if self.place.bug == planted.READS_FIRST:
                reads = self._read(id_, into)
                time.sleep(self.random.random() * 10 * self.place.pause_s)
            work = self.logs[HOME].transaction(id_, 20_000)
            reads = reads or self._read(id_, into)
            for log in into:
                key = COUNTER if id_ == SHARED else KEYS[0]
                for row in ({"key": key, "value": name}, {"key": name, "value": name}):
                    work.append([row], log=None if log == HOME else self.logs[log])
            if aborts:
                work.abort()
                self.recorder.answer(number, FAILED, {"reads": reads})
            else:
                work.commit()
                self.recorder.answer(number, OK, {"reads": reads})
        except (TransactionFencedError, TransactionTimeoutError, CommitConflictError):
            self.recorder.answer(number, FAILED, {"reads": reads})
            raise
        except IN_DOUBT as e:
            self.recorder.answer(number, UNKNOWN, {"reads": reads, "why": str(e)})
            raise

    def _read(self, id_: str, into: list[str]) -> dict[str, str | None]:
        if id_ == SHARED:
            return {HOME: _text(self.logs[HOME].table().get(COUNTER))}
        return {name: _text(self.logs[name].table().get(KEYS[0])) for name in into}

    def _cut(self) -> None:
        def take() -> dict[str, list[str]]:
            cut = snapshot(f"{self.place.url}/{HOME}", storage_options=self.place.options)
            logs = {name: log for name, log in self.logs.items() if log.url in cut.logs}
            return {name: sorted(table_of_cut(log, cut)) for name, log in logs.items()}

        self._note("cut", "", take)

    def _note(self, op: str, log: str, do: Callable[[], Any]) -> None:
        number = self.recorder.call(op, log)
        try:
            self.recorder.answer(number, OK, do())
        except IN_DOUBT:
            self.recorder.answer(number, FAILED)
            raise


IN_DOUBT = (
    *(CommitConflictError, CommitStateUnknownError, NotFoundError, StoreUnavailableError),
    *(TransactionFencedError, TransactionTimeoutError),
)
KINDS = {"client": Client, "recreator": Recreator, "cleaner": CleanerClient, "worker": Worker}


def live(kind: str, place: Place, name: str, seed: int) -> None:
    """One life of a process."""
    out = os.open(place.work / f"{name}.out", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(out, stream)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if place.bug:
        planted.BUGS[place.bug]()
    client = KINDS[kind](place, name, seed)
    for _ in range(place.operations):
        client.step()
        time.sleep(client.random.expovariate(1 / place.pause_s))
    sys.stdout.flush()
    os._exit(0)  # What it shares with who forked it is not its own to end.


def rows_of(log: Log, partition: int | None = None) -> list[list[Any]]:
    """Returns all records, as the judge reads them: [partition, offset, key, value]."""
    return [
        [r["partition"], r["offset"], _text(r["key"]), _text(r["value"])]
        for r in log.read(partition, columns=["partition", "offset", "key", "value"]).to_pylist()
    ]


def table_of(log: Log) -> dict[str, str | None]:
    return {str(_text(r["key"])): _text(r["value"]) for r in log.table().to_pylist()}


def table_of_cut(log: Log, cut: Any) -> list[str]:
    """Returns the names of the transactions that a log shows at a cut."""
    return [str(_text(row["key"])) for row in log.table(at=cut).to_pylist()]


def _offsets(offsets: Any) -> dict[str, list[int]]:
    return {str(p): [*between] for p, between in offsets.items()}


def _text(data: bytes | None) -> str | None:
    return None if data is None else bytes(data).decode()
