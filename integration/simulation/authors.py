"""Hosts that append to one log at the same time, any number of them, and so combine.

Each knows the order of what it appends, and so does the oracle: what one handle appends later comes
later, whatever it left behind (`facts.Intent`). Some doze: they stop at a call for hours or days,
or until others have committed a few times, and go on as if nothing had been. Some take a
predecessor's id over: they read its last sequence, and go on from there with other records
(COMMIT.md §14).
"""

from actors import Actor, PlainWriter, denied, told

from clog.storage.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    InvalidInputError,
    StoreUnavailableError,
)
from clog.storage.format import documents
from clog_testing.faults import CrashedError

HOUR_MS = 3_600_000
_DOZES_EVERY = 12
_DIES_EVERY = 8
_TOO_LARGE = "max.message.bytes"
_LIMITS = (None, "17", None)


class Author(PlainWriter):
    """Appends, and is now and then refused what it had proposed (`Limiter`)."""

    interrupted_lines = 3000
    refusals = (*PlainWriter.refusals, InvalidInputError)


class Dozer(Author):
    """One that may stop at any call for a commit or a proposal."""

    sleeps = True

    def doze(self, call, oracle):
        if not call.path.startswith((documents.COMMITS, documents.PROPOSALS)):
            return None
        world, is_slow = self.world, call.operation != "get"
        if oracle is None or world.roll(_DOZES_EVERY // 3 if is_slow else _DOZES_EVERY):
            return None
        kind, until = world.roll(3), oracle.newest + 1 + world.roll(10)
        if kind == 0 and world.is_fleeting:
            return self.awaited(oracle, oracle.newest + 1)
        if kind == 1:
            until_ms = world.clock.now_ms() + (60_000, HOUR_MS, 24 * HOUR_MS)[world.roll(3)]
            return lambda: world.clock.now_ms() >= until_ms or oracle.gone_ms is not None
        return lambda: oracle.newest >= until or oracle.gone_ms is not None


class Successor(Actor):
    """A producer of which each process goes on from the last sequence that it reads, with records
    of its own: what its predecessor left is not to come after that.
    """

    may_be_interrupted = True
    interrupted_lines = 3000

    def start_process(self) -> None:
        super().start_process()
        self._next: int | None = None
        self._life = self.world.roll(1 << 40)
        self._tries, self._has_posted = 0, False

    def doze(self, call, oracle):
        """Never; but it may die while what it has proposed waits."""
        if call.operation == "create" and call.path.startswith(documents.PROPOSALS):
            self._has_posted = True
        elif self._has_posted and self.world.roll(_DIES_EVERY) == 0:
            raise CrashedError(f"{self.name} dies, and its proposal waits")
        return super().doze(call, oracle)

    def reopen(self) -> None:
        super().reopen()
        self._next = None

    def act(self) -> None:
        log = self.log
        if self._next is None:
            last = log.sequence(self.name)
            self._next = 0 if last is None else last + 1
        sequence, self._next = self._next, None  # Unknown, unless it is told.
        self._tries, self._has_posted = self._tries + 1, False
        intent = self.oracle.intent(f"{self.name} life {self._life} try {self._tries} {sequence}")
        batch = self.world.batch()
        self.putting = intent, batch.rows
        try:
            result = log.append(batch.table, batch.partition, producer=(self.name, sequence))
        except CommitStateUnknownError:
            return
        except (CommitConflictError, StoreUnavailableError) as e:
            denied(intent, e)
            self._next = sequence
            return
        except InvalidInputError as e:
            denied(intent, e)
            if _TOO_LARGE in str(e):
                self._next = sequence
                return
            assert self.world.hides_names or self.oracle.is_over, f"{intent.name}: {e}"
            return
        told(self, intent, result)
        self._next = sequence + 1


class Limiter(Actor):
    """An operator who lets records be large, and then not."""

    def act(self) -> None:
        self.log.alter({_TOO_LARGE: _LIMITS[self.world.roll(len(_LIMITS))]})
