"""A job that two processes fight for: each takes the transaction id up, looks how far the job has
come, and does the next item, whose number is committed with it.

So all items are done, each once and in their order, whoever is fenced, dies, sleeps for days or
does not know whether it has committed (`taken` checks that, commit by commit).
"""

from actors import Actor, told
from inputs import items

from clog.storage import AppendResult
from clog.storage.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    InvalidInputError,
    StoreUnavailableError,
    TransactionFencedError,
    TransactionTimeoutError,
)
from clog.storage.format import documents
from clog_testing.faults import FaultKind

QUEUE = "queue:of/items"
"""The same items, named as what is no log."""
_TIMEOUTS_MS = (60_000, 60_000, 86_400_000)
_TRIES_MAX = 4


class Transactor(Actor):
    """One of the processes."""

    may_be_off = True

    def __init__(self, world, name: str, clock) -> None:
        super().__init__(world, name, clock)
        self.job = name.partition("/")[0]
        self._attempt = 0
        self._storm: FaultKind | None = None

    def act(self) -> None:
        log, world = self.log, self.world
        try:
            t = log.transaction(self.job, timeout_ms=_TIMEOUTS_MS[world.roll(len(_TIMEOUTS_MS))])
        except TransactionFencedError:
            self.close()  # It is opened again, to take the job back.
            return
        known = log.positions(self.job)
        item = known.get(items().id, {}).get(0, 0)
        assert known.get(QUEUE, {}).get(0, 0) == item, f"{self.job} is at {known}"
        self._attempt += 1
        intent = self.oracle.intent(f"{self.name} item {item} attempt {self._attempt}")
        try:
            self.fill(t, intent, item)
            t.positions(items(), {0: item + 1})
            t.positions(QUEUE, {0: (item + 1, str(t.epoch))})
            self._end(t, intent)
        except (TransactionFencedError, TransactionTimeoutError) as e:
            assert not intent.commits, f"{intent.name} happened, and was told {e}"
        except (CommitConflictError, StoreUnavailableError) as e:
            assert not intent.commits, f"{intent.name} happened, and was told {e}"

    def fill(self, t, intent, item: int) -> None:
        """Appends what the item makes."""
        for batch in self.world.batches_of(self.job, item):
            self.putting = intent, batch.rows
            t.append(batch.table, batch.partition)

    def told(self, intent, result) -> None:
        """A commit was acknowledged."""
        told(self, intent, AppendResult(result.version, result.offsets, duplicate=True))

    def storm(self, call) -> FaultKind | None:
        """What becomes of a call while nobody can say what became of the commit before it."""
        kind = self._storm
        if kind is None or not call.path.startswith(documents.COMMITS):
            return None
        if call.operation == "create":
            self._storm = FaultKind.FAIL_BEFORE
            return kind
        return FaultKind.FAIL_BEFORE if kind is FaultKind.FAIL_BEFORE else None

    def _end(self, t, intent) -> None:
        if self.world.roll(8) == 0:
            t.abort()
            assert not intent.commits, f"{intent.name} was never committed, and is there"
            return
        for _ in range(_TRIES_MAX):
            self._storm = (None, None, FaultKind.FAIL_BEFORE, FaultKind.FAIL_AFTER)[
                self.world.roll(4)
            ]
            try:
                self.told(intent, t.commit())
                return
            except CommitStateUnknownError:
                if self.world.roll(2) == 0:
                    break
            finally:
                self._storm = None
        try:
            t.abort()
        except InvalidInputError:
            self.told(intent, t.result)
            return
        assert not intent.commits, f"{intent.name} is aborted, and is there"


class ZombieTransactor(Transactor):
    """One that sleeps for days before it creates a version, while another takes over."""

    sleeps = True
