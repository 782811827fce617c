"""What all processes of a run share: where the logs are, and the folder they report to.

Two logs get the same records. ``history`` is never cleaned, so every record can be counted;
``table`` is cleaned, swept and compared as a table.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from clog.storage import Log
from clog.storage.errors import (
    ClogError,
    CommitConflictError,
    CommitStateUnknownError,
    NotFoundError,
    StoreUnavailableError,
)
from clog.storage.store import Store, open_store

IN_DOUBT = (CommitConflictError, CommitStateUnknownError, NotFoundError, StoreUnavailableError)
"""What may happen to anybody while the server is away, its disk is full, and others are faster."""

WAITS_S = (1.0,) * 20
LOGS = ("history", "table")
PARTITIONS = 3
_COMMON = {
    "file.delete.delay.ms": 1000,
    "segment.bytes": 8192,
    # An append of 60 records writes several objects, so there is something between them.
    "object.bytes": 3000,
}
CONFIG = {
    "history": {**_COMMON, "cleanup.policy": ""},
    "table": {
        **_COMMON,
        "min.cleanable.dirty.ratio": 0.2,
        "delete.retention.ms": 3000,
    },
}


Made = TypeVar("Made")


def complain(text: str) -> None:
    print(text, file=sys.stderr)


def at_last(
    make: Callable[[], Made],
    errors: tuple[type[ClogError], ...] = (StoreUnavailableError,),
    waits_s: Iterable[float] = WAITS_S,
    tell: Callable[[str], None] = complain,
) -> Made:
    """Makes something, again after each of the waits where the server is away."""
    for wait_s in waits_s:
        try:
            return make()
        except errors as e:
            tell(f"again: {type(e).__name__}: {e}")
            time.sleep(wait_s)
    return make()


@dataclass(frozen=True, slots=True)
class World:
    """A run.

    Attributes:
        url: the folder of both logs.
        storage_options: for fsspec.
        work: the folder of acknowledgements, checkpoints and the processes' output.
    """

    url: str
    storage_options: dict[str, Any]
    work: str

    @classmethod
    def load(cls, path: str) -> "World":
        return cls(**json.loads(Path(path).read_text()))

    def save(self) -> Path:
        path = Path(self.work, "world.json")
        path.write_text(json.dumps(asdict(self)))
        path.chmod(0o600)  # storage options may be secrets
        return path

    def url_of(self, name: str) -> str:
        return f"{self.url}/{name}"

    def store(self, name: str) -> Store:
        return open_store(self.url_of(name), self.storage_options)

    def open(self, name: str) -> Log:
        return Log.open(self.store(name))

    def create(self) -> None:
        for name in LOGS:
            Log.create(self.store(name), PARTITIONS, CONFIG[name])

    def checkpoint(self, name: str) -> Path:
        return Path(self.work, "checkpoints", name)

    def batches_of_spark(self, name: str) -> tuple[int, int]:
        """How many batches Spark knows to be committed, and how many it has begun."""
        folders = (self.checkpoint(name) / "commits", self.checkpoint(name) / "offsets")
        committed, begun = (
            1 + max((int(p.name) for p in f.glob("*") if p.name.isdigit()), default=-1)
            for f in folders
        )
        return committed, begun

    def acknowledge(self, producer: str, name: str, line: dict[str, object]) -> None:
        """Notes that an append returned. One write, so a kill leaves a line or none."""
        fd = os.open(self._acks(producer, name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(fd, (json.dumps(line) + "\n").encode())
        os.close(fd)

    def acknowledged(self, producer: str, name: str) -> list[dict[str, Any]]:
        path = self._acks(producer, name)
        return [json.loads(x) for x in path.read_text().splitlines()] if path.exists() else []

    def _acks(self, producer: str, name: str) -> Path:
        return Path(self.work, f"acks-{producer}-{name}.jsonl")
