"""Hosts that append to one log at the same time, any number of them, and so combine.

Each knows the order of what it appends, and so does the oracle: what one handle appends later comes
later, whatever it left behind (`facts.Intent`). Some doze: they stop at a call for hours or days,
or until others have committed a few times, and go on as if nothing had been. Some take a
predecessor's id over: they read its last sequence, and go on from there with other records
(COMMIT.md §14).

Where they waver some sleep where others rely on them: over a commit until what it names may be
swept, or its version is gone; over what they take along or give up until much else was answered;
over what they propose of a job until another has taken it.
"""

from actors import Actor, PlainWriter, denied, told
from marks import points_of
from transactors import Transactor

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
_LIMIT = "17"


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
        return lambda: oracle.is_at(until)


class Sleeper(Dozer):
    """One that sleeps where others rely on it. Where days pass, until its data may be swept, or the
    version that it creates is gone; else over what it takes along, or gives up, until so much was
    answered that the answers before are forgotten.
    """

    may_be_misled = True

    def act(self) -> None:
        super().act()
        intent, _ = self.putting
        if intent.is_denied:
            oracle, until = self.oracle, self.oracle.newest + 3 + self.world.roll(4)
            self.world.scheduler.sleep(lambda: oracle.is_at(until))

    def doze(self, call, oracle):
        if (until := self.misled(call, oracle)) is not None:
            return until
        creates = call.operation == "create" and call.path.startswith(documents.COMMITS)
        if not creates or oracle is None or self.world.roll(4) == 0:
            return super().doze(call, oracle)
        newest, points = oracle.newest, points_of(call, self, oracle, self.plan.data)
        takes, gives_up = "C33/C34" in points, "C35/C36" in points
        if self.world.is_fleeting:
            if takes or self.world.roll(3) == 0:
                return self.outlived(oracle, call.path)
            return lambda: oracle.gone_ms is not None or oracle.manifest.head.orphan_floor > newest
        if gives_up:
            return self.forgotten(oracle)
        until = newest + 2 + self.world.roll(3)
        return (lambda: oracle.is_at(until)) if takes else None

    def forgotten(self, oracle):
        """What tells whether its answer may be forgotten, if it is given one, or none comes; by
        then an hour has passed, so that it looks for the newest version at once.
        """
        (intent, _), last = self.putting, oracle.newest + 20

        def is_time() -> bool:
            if oracle.is_at(last) or any(oracle.is_at(v + 6) for v, _ in intent.commits):
                self.world.clock.advance(HOUR_MS)
                return True
            return False

        return is_time


class Leaver(Transactor):
    """A process of a job that sleeps while what it has proposed waits, until another has taken the
    job, or others have committed a few times.
    """

    sleeps = True

    def start_process(self) -> None:
        super().start_process()
        self._has_posted = False

    def doze(self, call, oracle):
        if call.operation == "create" and call.path.startswith(documents.PROPOSALS):
            self._has_posted = True
        elif self._has_posted and oracle is not None:
            self._has_posted = False
            taken, until = oracle.taken.states.get(self.job), oracle.newest + 3 + self.world.roll(6)
            return lambda: oracle.is_at(until) or oracle.taken.states.get(self.job) != taken
        return None


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
        self._ended_nothing = False

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
            self.was_refused = False
            last = log.sequence(self.name)
            self._next = 0 if last is None else last + 1
            self._ended_nothing = self.was_refused  # One that may not commit is told it, too (F6).
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
            last = documents.commit_path(max(0, self.oracle.last_version(f"{self.name} ")))
            is_late = last in self.world.landed  # Who asked for the sequence could not see it.
            is_late = is_late or self._ended_nothing
            excused = self.world.hides_names or self.oracle.is_over or is_late
            assert excused, f"{intent.name}: {e}"
            return
        told(self, intent, result)
        self._next = sequence + 1


class Limiter(Actor):
    """An operator who lets records be large, and then not."""

    is_strict = False

    def act(self) -> None:
        self.is_strict = not self.is_strict and self.world.roll(2) == 0
        self.log.alter({_TOO_LARGE: _LIMIT if self.is_strict else None})
