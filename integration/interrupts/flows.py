"""What is interrupted: a log at a version, one act on a handle of it, and what must be true after.

Each flow makes its world anew, so that each place is hit on the same beginning. `Flow.act` is what
is interrupted. Afterwards the handle is used as if nothing had been, in the same thread and in
another one: it must not hang, nor refuse what it should do, unless the flow says that this act has
to be done again. What was acknowledged is read by a fresh handle, once; what was interrupted is
there once, or not at all; and each commit is one that readers can use.
"""

import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from clog.state import local_file
from clog.storage import (
    ClogError,
    CommitStateUnknownError,
    InvalidInputError,
    Log,
    ManualClock,
    StateStore,
    StateTable,
)
from clog.storage.commit import committer
from clog.storage.env import SeededIds
from clog.storage.format.commits import lacks_edits, read_commit
from clog.storage.store.contract import StoredObject, WrappingStore
from clog_testing.crash import discard, memory_store
from clog_testing.delaying import Sleeper

HANGS_S = 30
"""How long another thread may take for an append before it is said to hang."""
START_MS = 1_700_000_000_000
LONG = "x" * 60
_SEEDS = count(1)


class HangError(AssertionError):
    """The handle did not come back."""


class Flow:
    """A log with ``commits`` appends, and the act; here an append."""

    def __init__(self, commits: int) -> None:
        committer.SNAPSHOT_EDIT_BYTES_MIN = 600  # So that some commits name a new one.
        self.root = memory_store()
        self.acknowledged: Counter[str] = Counter()
        self.doubtful: set[str] = set()
        self.clock = ManualClock(START_MS)
        seed = next(_SEEDS)
        self.log = Log.create(self.root, 2, clock=self.clock, ids=SeededIds(seed))
        for n in range(commits):
            self.append(f"before {n}")
        self.prepare()

    def open(self) -> Log:
        """A fresh handle."""
        return Log.open(self.root, clock=self.clock, ids=SeededIds(next(_SEEDS)))

    def append(self, value: str, log: Log | None = None, **more: Any) -> None:
        """Appends a value, and knows that it was acknowledged."""
        self.doubtful.add(value)
        (log or self.log).append(row(value), **more)
        self.acknowledged[value] = 1

    def prepare(self) -> None:
        """What comes before the act."""

    def act(self) -> None:
        self.append("act")

    def again(self) -> None:
        """What is done with the handle first, after the interrupt."""

    def strike(self, n: int) -> None:
        """What signals interrupt, again and again on one handle; here an append."""
        self.append(f"signal {n}")

    def struck(self) -> None:
        """What is done after a signal."""

    def close(self) -> None:
        """Lets go of the world."""
        discard(self.root)

    def check(self) -> None:
        """Uses the handle, and reads all with a fresh one."""
        thread = threading.Thread(target=self.append, args=("from a thread",), daemon=True)
        thread.start()
        thread.join(HANGS_S)
        if thread.is_alive():
            raise HangError("an append in another thread does not come back")
        self.again()
        for n in range(2):
            self.append(f"after {n}")
        self.log.table().get("k")
        assert "from a thread" in self.acknowledged, "an append in another thread failed"
        found = Counter(v.decode() for batch in self.open().read() for v in values_of(batch))
        lost = [v for v in self.acknowledged if v not in found]
        assert not lost, f"acknowledged and lost: {lost}"
        twice = [v for v, times in found.items() if times > 1]
        assert not twice, f"there more than once: {twice}"
        assert set(found) <= self.doubtful, "there, and nobody appended it"
        assert self.log.version == self.open().version, "the handle is behind"
        before = None
        for version in range(self.log.version + 1):
            commit = read_commit(self.log.handle.store, version)
            assert not lacks_edits(commit), f"version {version} carries too little"
            assert commit.parent == before, f"version {version} does not follow"
            before = commit.record.commit_id


class Poll(Flow):
    """A look for newer versions: one that follows, or one that searches."""

    others = 2

    def prepare(self) -> None:
        self.other = self.open()
        for n in range(self.others):
            self.append(f"other {n}", self.other)

    def act(self) -> None:
        self.log.handle.refresh()

    def strike(self, n: int) -> None:
        self.append(f"signal {n}", self.other)
        self.act()


class FarPoll(Poll):
    others = 7


class LostRace(Poll):
    """An append that loses to two others, and follows."""

    def act(self) -> None:
        self.append("act")


class Producer(Flow):
    """An append that may be repeated: once in the log."""

    def act(self) -> None:
        self.append("act", producer=("p", 7))

    def again(self) -> None:
        self.append("act", producer=("p", 7))


class Table(Poll):
    """The table of the newest version, and a key of it."""

    def act(self) -> None:
        assert self.log.table().get("k") is not None

    def strike(self, n: int) -> None:
        del n
        self.act()


class Transaction(Flow):
    """A deferred transaction, which is committed again, or the next one begun."""

    is_visible = False

    def prepare(self) -> None:
        self.begun: Any = None
        self._round("earlier")

    def act(self) -> None:
        self._round("act")

    def strike(self, n: int) -> None:
        self._round(f"signal {n}")

    def struck(self) -> None:
        if self.begun is not None and self.begun.is_open:
            self._settle()

    def _round(self, value: str) -> None:
        self.begun = None
        self.doubtful.add(value)
        self.begun = self.log.transaction("job", visible=self.is_visible)
        self.begun.append(row(value))
        self.begun.commit()
        self.acknowledged[value] = 1

    def again(self) -> None:
        self.struck()
        self._round("next")

    def _settle(self) -> None:
        try:
            self.begun.commit()
        except CommitStateUnknownError:
            self.begun.abort()
        except InvalidInputError:
            raise
        except ClogError:
            with suppress(InvalidInputError):
                self.begun.abort()


class AbandonedTransaction(Transaction):
    """One that begins while the last is open, and so takes the id up again."""

    def prepare(self) -> None:
        super().prepare()
        self.left = self.log.transaction("job", visible=self.is_visible)
        self.left.append(row("left"))


class AbortedTransaction(Transaction):
    """One that is aborted afterwards: what it says of the outcome is so."""

    def _settle(self) -> None:
        try:
            self.begun.abort()
        except InvalidInputError:
            self.acknowledged["act"] = 1
        else:
            self.doubtful.discard("act")


class VisibleTransaction(AbortedTransaction):
    is_visible = True


class Publish(Flow):
    """A published view; it is published again, and says what the log has."""

    def prepare(self) -> None:
        self.log.publish("delta")
        self.append("between")

    def act(self) -> None:
        self.log.publish("delta")

    def again(self) -> None:
        self.log.publish("delta")
        assert self.log.publish("delta").table_version >= 0


class Store(Flow):
    """A commit of a state store: what it shows is what the log has."""

    def prepare(self) -> None:
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.store = self._store()
        self.store.put("s", "earlier")
        self.store.commit()
        self.doubtful |= {"earlier", "act", "next"}
        self.acknowledged["earlier"] = 1
        self.store.put("s", "act")

    def _store(self, **options: int) -> StateStore:
        ids, folder = SeededIds(next(_SEEDS)), Path(self.folder.name)
        return StateStore(self.root, folder, "app", clock=self.clock, ids=ids, **options)

    def act(self) -> None:
        self.store.commit()
        self.acknowledged["act"] = 1

    def strike(self, n: int) -> None:
        self.value = f"signal {n}"
        self.doubtful.add(self.value)
        self.store.put("s", self.value)
        self.store.commit()
        self.acknowledged[self.value] = 1

    def struck(self) -> None:
        again = f"again {next(_SEEDS)}"  # A signal may come before the value is another.
        self.doubtful.add(again)
        try:
            self.store.put("s", again)
        except InvalidInputError:  # The outcome of the commit is not known.
            again = self.value
        self.store.commit()
        self.acknowledged[again] = 1
        assert self.store.get("s") == again.encode()

    def again(self) -> None:
        if hasattr(self, "value"):
            self.store.put("s", "act")
        assert self.store.get("s") == b"act"
        self.store.commit()
        self.acknowledged["act"] = 1
        self.store.put("s", "next")
        self.store.commit()
        self.acknowledged["next"] = 1
        assert self.store.get("s") == b"next"
        assert dict(self.store.scan())[b"s"] == b"next"

    def close(self) -> None:
        with suppress(ClogError):
            self.store.close()
        self.folder.cleanup()
        super().close()


class StoreFile(Store):
    """The same where nothing waits: the commit becomes a level of the file, or one with others, and
    the file is built anew.
    """

    def _store(self, **options: int) -> StateStore:
        local_file.SMALL_BYTES = 300
        return super()._store(memory_bytes=1, **options)


class Follow(Flow):
    """A refresh of a state table, whose file becomes another one: what it shows is the log's."""

    def prepare(self) -> None:
        local_file.SMALL_BYTES = 300
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.table = StateTable(self.root, Path(self.folder.name), clock=self.clock)
        for n in range(3):
            self.append(f"while it follows {n}")
            self.table.refresh()
        self.append("s")

    def act(self) -> None:
        self.table.refresh()

    def again(self) -> None:
        found = dict(self.table.scan())
        assert found.keys() <= {b"k", b"s"}
        assert found[b"k"] == self.table.get("k")
        self.table.refresh()
        assert dict(self.table.scan()) == {b"k": b"from a thread", b"s": b"s"}
        with StateTable(self.root, Path(self.folder.name), clock=self.clock) as other:
            assert dict(other.scan()) == {b"k": b"from a thread", b"s": b"s"}

    def close(self) -> None:
        self.table.close()
        self.folder.cleanup()
        super().close()


class Asked(WrappingStore):
    """A store that counts the requests that are made while an interrupt passes."""

    passing = 0

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        self._count()
        return self.inner.get(path, start, end)

    def put(self, path: str, data: bytes | memoryview) -> None:
        self._count()
        self.inner.put(path, data)

    def create(self, path: str, data: bytes) -> None:
        self._count()
        self.inner.create(path, data)

    def delete(self, path: str) -> None:
        self._count()
        self.inner.delete(path)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        self._count()
        return self.inner.list(prefix)

    def _count(self) -> None:
        self.passing += isinstance(sys.exc_info()[1], KeyboardInterrupt)


class Propose(Flow):
    """An append that lost a race where writers combine (COMMIT.md §14): it is proposed, and
    committed by its own author, as nobody else comes by. An interrupt makes no requests, and what
    the handle appends next comes later.
    """

    clock: Sleeper

    def prepare(self) -> None:
        self.clock, self.asked = Sleeper(START_MS), Asked(self.root)
        self.posted()
        self.log = Log.open(self.asked, clock=self.clock, ids=SeededIds(next(_SEEDS)))
        self.append("race", self.open())

    def posted(self) -> None:
        """What others proposed before."""

    def again(self) -> None:
        for _ in range(2):  # Others combine, and take along what they find.
            late, n = self.open(), next(_SEEDS)
            self.append(f"late race {n}", self.open())
            self.append(f"late {n}", late)

    def check(self) -> None:
        self.clock.during.clear()
        assert self.asked.passing == 0, f"{self.asked.passing} requests after an interrupt"
        super().check()
        found = [v.decode() for batch in self.open().read() for v in values_of(batch)]
        if "act" in found:
            assert found.index("act") < found.index("from a thread"), "a zombie"


class TakenAlong(Propose):
    """The same, and another commits it meanwhile."""

    def act(self) -> None:
        self.clock.during.append(super().again)
        super().act()


class Combine(Propose):
    """An append that takes along what others left."""

    def posted(self) -> None:
        self.doubtful |= {"left 0", "left 1"}
        for n in range(2):
            left = self.open()
            self.append(f"race of {n}", self.open())
            self.clock.during.append(interrupt)
            with suppress(KeyboardInterrupt):
                left.append(row(f"left {n}"))


class Withdraw(Propose):
    """An append that is refused once it was proposed, and so is withdrawn."""

    def act(self) -> None:
        self.clock.during.append(lambda: self.limit("30"))
        self.doubtful.add(LONG)
        with suppress(InvalidInputError):
            self.log.append(row(LONG))
            raise AssertionError("it is not refused")
        self.is_refused = True

    def limit(self, bytes_max: str | None) -> None:
        self.open().alter({"max.message.bytes": bytes_max})

    def check(self) -> None:
        self.limit(None)
        super().check()
        found = [v.decode() for batch in self.open().read() for v in values_of(batch)]
        assert not (LONG in found and hasattr(self, "is_refused")), "refused, and there"


FLOWS: dict[str, type[Flow]] = {
    "append": Flow,
    "producer": Producer,
    "poll": Poll,
    "far poll": FarPoll,
    "lost race": LostRace,
    "table": Table,
    "transaction": Transaction,
    "abandoned transaction": AbandonedTransaction,
    "aborted transaction": AbortedTransaction,
    "visible transaction": VisibleTransaction,
    "publish": Publish,
    "state store": Store,
    "state file": StoreFile,
    "state table": Follow,
    "propose": Propose,
    "taken along": TakenAlong,
    "combine": Combine,
    "withdraw": Withdraw,
}


def interrupt() -> None:
    raise KeyboardInterrupt


def row(value: str) -> list[dict[str, object]]:
    return [{"key": "k" if value != "s" else "s", "value": value}]


def values_of(batch: Any) -> list[bytes]:
    return [v for v in batch.column("value").to_pylist() if v is not None]
