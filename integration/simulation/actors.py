"""Those who act in a simulated world, and the writers among them.

Each is a process: it opens the log, does its work over and over, dies, and is started again with
nothing but what it knows by heart. A writer says what it means to append (`facts.Intent`), and
compares what it is told with what the oracle has seen: what is acknowledged is in the log, where
the answer says; an error that is not `CommitStateUnknownError` means that it is not.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from zlib import crc32

from disk import ActorStore, folder_and_name
from marks import INTERRUPTED, REPLACED
from records import PARTITIONS

from clog.storage import Log
from clog.storage.commit.appends import Writer
from clog.storage.commit.handle import Handle
from clog.storage.commit.tip import CONFIRM_MS
from clog.storage.env import SeededIds
from clog.storage.errors import (
    ClogError,
    CommitConflictError,
    CommitStateUnknownError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
)
from clog.storage.format import documents
from clog.storage.store.contract import StoredObject
from clog_testing.delaying import result_of
from clog_testing.faults import CrashedError
from clog_testing.interrupts import Tracer, tracing

INTERRUPTED_EVERY = 4
"""In one of so many worlds writers are interrupted."""


class Actor:
    """One process after another. Where there are several logs its name tells where it is at home:
    ``plain@2``.

    Attributes:
        site: where it is at home.
        sleeps: it may sleep for days over a commit.
        sleepiness: and does, of 100 times so often.
        may_be_misled: it may fall asleep before it reads the version over which another sleeps.
        may_be_late: its clock may be so wrong that it is refused.
        may_be_off: its clock may be days ahead, which is refused, or behind, which harms nobody.
        may_be_interrupted: it goes on with its handle after an interrupt.
        interrupted_lines: about as many as an append passes in the commit protocol.
        works_on_log: the log is open when it acts.
        plan: asks the world at each call of the store, at home.
        since: what it did last: "objects" once it put one, "commit" once it made one.
        disturbed: a call of what it does went wrong.
        was_refused: one was refused; whoever wants to know sets it back first.
        putting: the intent and the rows of what it puts next, or what tells them by its bytes; None
            when it appends nothing.
    """

    sleeps = False
    sleepiness = 67
    may_be_misled = False
    may_be_late = False
    may_be_off = False
    may_be_interrupted = False
    interrupted_lines = 800
    works_on_log = True
    was_refused = False

    def __init__(self, world, name: str, clock) -> None:
        self.world, self.name, self.clock = world, name, clock
        self.site = world.sites[int(name.partition("@")[2] or 0)]
        self._own_dice = SeededIds(world.seed + crc32(name.encode()))
        self.start_process()

    def start_process(self) -> None:
        """Forgets all that is in memory."""
        self._stores = {s.disk.url: ActorStore(s.disk, _Plan(self, s)) for s in self.world.sites}
        self.store = self._stores[self.site.disk.url]
        self.plan = self.store.plan
        self.since = ""
        self.putting = None
        self.disturbed = False
        self._opened: dict[int, Log] = {}
        self._begun: list[Callable[[], None]] = []

    def begin(self, call):
        """Begins a call of a store. Where there are several logs, what was begun is done when the
        first result of it is asked for, in an order that the dice say.
        """
        putting = self.putting

        def made():
            now, self.putting = self.putting, putting
            try:
                return call()
            finally:
                self.putting = now

        if len(self.world.sites) == 1:
            return made
        done: list[Callable[[], object]] = []
        self._begun.append(lambda: done.append(result_of(made)))

        def result():
            while not done:
                self._begun.pop(self.world.roll(len(self._begun)))()
            return done[0]()

        return result

    @property
    def log(self) -> Log:
        """The log at home, opened when it is needed."""
        return self.log_at(self.site)

    def log_at(self, site) -> Log:
        """The log of a site, opened when it is needed."""
        if site.number not in self._opened:
            ids = SeededIds(self.world.roll(1 << 40))
            store = self._stores[site.disk.url]
            handle = Handle(store, clock=self.clock, ids=ids, reach=self.reach)
            self._opened[site.number] = Log(handle)
        return self._opened[site.number]

    def reach(self, url: str) -> ActorStore:
        """The way to another root, which is lost now and then.

        Raises:
            NotFoundError: it is.
        """
        if self.world.roll(24) == 0:
            raise NotFoundError(f"nobody here knows the way to {url}")
        return self._stores[url]

    @property
    def oracle(self):
        """The oracle of the log at home that is open, else of the one that stands."""
        return self.oracle_at(self.site)

    def oracle_at(self, site):
        """The oracle of a site's log that is open, else of the one that stands."""
        log = self._opened.get(site.number)
        return site.logs.standing if log is None else site.logs.of(log)

    def close(self) -> None:
        """Forgets the logs that are open."""
        self._opened.clear()

    def run(self) -> None:
        """Acts until the world comes to its end."""
        while not self.world.draining:
            self.since = ""
            self.putting = None
            self.disturbed = False
            changes, gone_ms, held = self.site.logs.changes, None, None
            try:
                if self.works_on_log:
                    held, gone_ms = self.log, self.oracle.gone_ms
                is_due = gone_ms is not None and self._is_due(gone_ms)
                with self._interrupting():
                    self.act()
                told = not is_due or self.disturbed or held is not self._known
                assert told, f"{self.name} is not told that its log is gone"
            except CrashedError:
                self.start_process()
            except KeyboardInterrupt:
                self.world.marks[INTERRUPTED] += 1
            except (StoreUnavailableError, CommitStateUnknownError):
                pass  # The next turn tries again.
            except InvalidInputError as e:
                if not is_reordered(e):
                    raise
            except (ClogError, FileNotFoundError) as e:
                self._check_deleted(e, changes=changes, was_gone=gone_ms is not None)
                self.reopen()
            self.world.rest()

    @contextmanager
    def _interrupting(self) -> Iterator[None]:
        """Interrupts an act anywhere in the commit protocol, in some worlds; its handle lives on.
        The dice are its own: where nothing is interrupted, nothing is otherwise.
        """
        can = self.may_be_interrupted and self.world.seed % INTERRUPTED_EVERY == 1
        can = can and self.world.has_interrupts
        if not can or self._own_dice.uniform() < 0.5:
            yield
            return
        line = int(self._own_dice.uniform() * self.interrupted_lines)
        with tracing(Tracer(line, under="clog.storage.commit.")):
            yield

    def reopen(self) -> None:
        """Forgets the log that is gone."""
        if self._known is not None:
            self.world.marks[REPLACED] += 1
        self.close()

    @property
    def _known(self) -> Log | None:
        return self._opened.get(self.site.number)

    def doze(self, call, oracle):
        """What tells whether it wakes, if it falls asleep over a call; None: it does not."""
        if (until := self.misled(call, oracle)) is not None:
            return until
        creates = call.operation == "create" and call.path.startswith(documents.COMMITS)
        hints = call.operation == "put" and call.path == documents.LATEST
        if not (creates or hints) or not self.sleeps or self.world.roll(100) >= self.sleepiness:
            return None
        return self.outlived(oracle, call.path) if creates else self.awaited(oracle, oracle.newest)

    def misled(self, call, oracle):
        """What tells whether it wakes, if it falls asleep before it reads a version over which
        another sleeps: what that one leaves there is in the block that is closed by then.
        """
        path = call.path
        reads = call.operation == "get" and path in self.world.slept_over
        if not (reads and self.may_be_misled and oracle is not None and self.world.roll(3)):
            return None
        return lambda: oracle.gone_ms is not None or oracle.is_misleading(path)

    def outlived(self, oracle, path: str):
        """What tells whether it wakes, if it falls asleep over the create of a commit."""
        if self.world.is_fleeting:
            self.world.slept_over.add(path)
        return self.awaited(oracle, documents.version_of(path))

    def awaited(self, oracle, version: int):
        """What tells whether it wakes, if it falls asleep over a version."""
        return lambda: oracle.is_long_gone(version)

    def _is_due(self, gone_ms: int) -> bool:
        return self.clock.monotonic_ms() - gone_ms >= CONFIRM_MS

    def _check_deleted(self, error: Exception, *, changes: int, was_gone: bool) -> None:
        """An error that nothing but the deletion of a log explains."""
        logs = self.site.logs
        if self._known is None:
            if logs.changes == changes and logs.is_stable:
                raise error
        elif not self.oracle.is_over or (
            was_gone and not isinstance(error, NotFoundError | FileNotFoundError)
        ):
            raise error

    def act(self) -> None:
        """One piece of work."""
        raise NotImplementedError

    def storm(self, call):
        """What becomes of a call for a reason that lasts; None: what the dice say."""
        return


class _Plan:
    """Asks the world at each call, whose path is one in the log's folder; ``data`` is what is
    written, ``ranges`` are what is read.
    """

    def __init__(self, actor: Actor, site) -> None:
        self._actor, self._site = actor, site
        self.data: bytes | memoryview = b""
        self.ranges = ""
        self._shown: dict[str, StoredObject] = {}

    def listed(self, prefix: str, found: Iterator[StoredObject]) -> Iterator[StoredObject]:
        """What a LIST shows: where names are hidden, of proposals any part of what is there, and of
        what was there.
        """
        world = self._actor.world
        if not (world.hides_names and documents.PROPOSALS in prefix):
            return found
        known, self._shown = self._shown, {one.path: one for one in found}
        both = known | self._shown
        return iter([both[path] for path in sorted(both) if world.roll(4)])

    def begin(self, call):
        return self._actor.begin(call)

    def fault(self, call):
        actor, (folder, name) = self._actor, folder_and_name(call.path)
        oracle, call = self._site.logs.at(folder), replace(call, path=name)
        writes, reads = call.operation in ("put", "create"), call.operation.startswith("get")
        more = f" {len(self.data)} bytes" if writes else self.ranges if reads else ""
        fault = actor.world.fault(actor, call, more, self._site, oracle, self.data)
        actor.world.ledger.acting = actor
        actor.disturbed = actor.disturbed or fault is not None
        if call.operation == "put" and call.path.startswith(documents.DATA):
            actor.since = "objects"
            if actor.putting is not None:
                intent, rows = actor.putting
                rows = rows(self.data) if callable(rows) else rows
                mine = actor.oracle_at(self._site)
                assert mine is oracle, f"{intent.name} is put into another log"
                oracle.puts(intent, call.path, rows)
        elif call.operation == "create" and call.path.startswith(documents.COMMITS):
            actor.since = "commit"
        return fault


class PlainWriter(Actor):
    """Appends, and never again what may have happened."""

    may_be_off = True
    may_be_interrupted = True
    refusals = (CommitConflictError, StoreUnavailableError)

    def __init__(self, world, name: str, clock) -> None:
        super().__init__(world, name, clock)
        self._count = self.site.logs.standing.newest * 1000  # So that no name is given twice.

    def act(self) -> None:
        log, batch = self.log, self.batch()
        self._count += 1
        intent = self.oracle.intent(f"{self.name} {self._count}")
        intent.place = log.handle, self._count
        self.putting = intent, batch.rows
        try:
            result = log.append(batch.table, batch.partition)
        except self.refusals as e:
            denied(intent, e)
            return
        told(self, intent, result)

    def batch(self):
        """What it appends next."""
        return self.world.batch()


class Zombie(PlainWriter):
    """One that sleeps for days before it creates a version."""

    sleeps = True


class Straggler(PlainWriter):
    """One that takes its time, and whose values come late: their keys' tombstones may go now, or
    are gone already.
    """

    def act(self) -> None:
        if self.world.roll(3) == 0:
            super().act()

    def batch(self):
        world, p = self.world, self.world.roll(PARTITIONS)
        keys = (*self.oracle.ranked.left_behind(self.oracle, p), [], [])[world.roll(4)]
        key = keys[-1 - world.roll(min(2, len(keys)))] if keys else b""
        fitting = [b for b in world.batches if any(k == key and v for k, v in b.rows.get(p, ()))]
        return fitting[world.roll(len(fitting))] if fitting else world.batch()


class Producer(Actor):
    """Appends under sequence numbers, and again until it is told that it happened."""

    may_be_off = True
    may_be_interrupted = True

    def __init__(self, world, name: str, clock) -> None:
        super().__init__(world, name, clock)
        self.writer_id = name.partition("/")[0]
        self.shares = "/" in name
        sequences = (n for n in count() if not self.oracle.intent(f"{self.writer_id} {n}").commits)
        self.sequence = next(sequences)

    def act(self) -> None:
        intent = self.oracle.intent(f"{self.writer_id} {self.sequence}")
        happened = len(intent.commits)
        try:
            result = self.send(intent)
        except InvalidInputError as e:
            if is_reordered(e):
                raise
            self.sequence += 1
            if self.oracle.is_over:
                return
            assert self.shares, f"{intent.name} is refused"
            ahead = self.oracle.last_sequence(self.writer_id) >= self.sequence
            assert ahead, f"{intent.name} is refused, and nobody is ahead"
            return
        except (CommitConflictError, StoreUnavailableError) as e:
            now = len(intent.commits)
            assert self.shares or now == happened, f"{intent.name} happened, and was told {e}"
            return
        assert result.duplicate or not happened, f"{intent.name} happened again"
        told(self, intent, result)
        self.sequence += 1

    def send(self, intent):
        """Tries once."""
        (batch, *_) = self.world.batches_of(self.writer_id, self.sequence)
        log, self.putting = self.log, (intent, batch.rows)
        producer = self.writer_id, self.sequence
        return log.append(batch.table, batch.partition, producer=producer)


class ZombieProducer(Producer):
    """One that sleeps for days before it creates a version."""

    sleeps = True


class Sink(Producer):
    """A stream's driver and its tasks: objects of several tasks, one commit for each batch."""

    def send(self, intent):
        log, objects = self.log, []
        stamp = log.handle.recent().version
        writer = Writer(self.writer_id, "stream", self.sequence, "query", str(self.sequence))
        try:
            for batch in self.world.batches_of(self.writer_id, self.sequence):
                self.putting = intent, batch.rows
                objects.append(batch.put(log, stamp=stamp))
            return log.append_objects(objects, writer)
        except (CommitStateUnknownError, CommitConflictError, StoreUnavailableError):
            self.abort(objects)
            raise

    def abort(self, objects) -> None:
        """Nothing, as the connector: what failed may have happened."""


def is_reordered(error: InvalidInputError) -> bool:
    """Whether an append was refused for a strategy that was altered meanwhile."""
    return "strategy was changed" in str(error)


def denied(intent, error) -> None:
    """An append was not done: it is not in the log, and will not be."""
    assert not intent.commits, f"{intent.name} happened, and was told {error}"
    intent.is_denied = True


def told(actor: Actor, intent, result) -> None:
    """An append was acknowledged: it is where the answer says."""
    if actor.oracle.is_over:
        lost = [v for v in intent.strays if not actor.oracle.is_begun_again(v)]
        assert not lost, f"{intent.name} is acknowledged, and nothing is left of the log"
        return
    assert intent.commits, f"{intent.name} is acknowledged, and not in the log"
    ((version, offsets),) = intent.commits
    assert result.version == version, f"{intent.name} is version {version}, told {result}"
    forgotten = result.duplicate and not result.offsets and actor.oracle.is_closed(version)
    assert forgotten or dict(result.offsets) == offsets, f"{intent.name} is at {offsets}"
