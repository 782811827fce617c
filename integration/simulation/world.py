"""A simulated world: processes on one log, a disk, clocks that differ, and dice that decide all.

1. `World.run` makes a log and actors (`actors`), and lets them act one call of the store at a time
   (`scheduler`), in the order that the dice say.
2. At a call the process may die, the call may fail or lose its reply, be done twice or be refused
   without reason; time may pass, a moment or days; the zombie may fall asleep, and wakes when the
   version that it was about to create is long closed.
3. The oracle (`oracle`) checks each change of the disk when it happens, and what actors are told.
4. After so many calls all die but those who sleep, who wake and end what they do. Then the log is
   opened anew, and read at its versions.

The same seed makes the same calls: `World.digest` is the hash of all.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping
from functools import cache
from types import MappingProxyType

from actors import PlainWriter, Producer, Sink, Straggler, Zombie, ZombieProducer
from authors import Author, Dozer, Leaver, Limiter, Sleeper, Successor
from chased import Chased
from company import Company
from crowd import Crowd
from cutters import Cutter
from dealers import (
    Dawdler,
    Dealer,
    Finisher,
    Hanging,
    Quitter,
    Spreader,
    ZombieDealer,
    ZombieFinisher,
)
from deals import Ledger
from disk import Clock
from erasers import Eraser, Holder, ZombieEraser
from hosts import Host, ZombieHost
from keepers import (
    Changer,
    CleanerActor,
    Coalescer,
    Operator,
    Recreator,
    Sweeper,
    ZombieCleaner,
    sweep,
)
from limits import small_limits
from logs import NEIGHBOURS
from marks import GHOST, MODES, points_of
from mirrors import Mirror, Stranger, ZombieMirror
from oracle import STRANGERS, Oracle
from readers import Follower, Reader, Watcher, expected_rows, expected_table, rows_of
from records import HEADER, KEYS, PARTITIONS, TIME_MS, batches
from scheduler import Scheduler
from settling import settle, settle_erasures
from sites import Site
from transactors import Transactor, ZombieTransactor

from clog.cleaner import Cleaner
from clog.storage import Log, ManualClock
from clog.storage.diagnostics.verify import verify_log
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog.storage.format.log_info import GIVEN_OFFSETS
from clog_testing.faults import Fault, FaultKind

EMPTY: Mapping[str, str] = MappingProxyType({})
CALLS = 200
"""Store calls of a run, at least."""
SPECIAL_EVERY = 10
"""Two of so many seeds are made for zombies, two for transactions over several logs; one for
rivals, for cleaners, for a crowd of writers, for those who fight for a transaction id, and for logs
that are recreated.
"""
SEVERAL = (8, 9)
"""Which of `SPECIAL_EVERY` are made for transactions over several logs, and visible ones."""
SITES = 3
ZOMBIE_CALLS = 400
SEVERAL_CALLS = 400
CUTS_CALLS = 1_000
STATE_CALLS = 900
CLEANER_CALLS = 300
AUTHORS_CALLS = 900
CROWD_EVERY = 32
"""In one of so many worlds of authors there are hundreds of them."""
CROWD_CALLS = 6_000
WAVERING_CALLS = 1_400
WAVERING_EVERY = 4
"""In one of so many worlds of authors they waver: some sleep where others rely on them."""
MASKED_EVERY = 3
"""In one of so many, of each kind, the logs have masks of superseded rows (FORMAT.md §13)."""
COMBINING_EVERY = 4
"""In one of so many, of each kind, writers may combine (FORMAT.md §21)."""
ORDERED_EVERY = 5
"""In one of so many, of each kind, orders are compared (FORMAT.md §15)."""
ORDERING_CALLS, ORDERING_KEYS = 2_000, 32
ERASING_CALLS, ERASING_KEYS = 1_300, 10
PARQUET_EVERY = 64
"""One of so many seeds has real Parquet, and is verified as an operator would."""
BEGINNINGS = 8
"""How many older worlds there are to go on from."""
BEGINNING_CALLS = 600
HOUR_MS = 3_600_000
_DAYS_MS = 3 * 24 * HOUR_MS
_MARKING = {"object.bytes": "400", "segment.ms": str(3 * HOUR_MS)}
"""Segments are soon sealed, and none is so small that a pass writes it anew for one dead row."""
_JUMPS_MS = (60_000, 15 * 60_000, 2 * HOUR_MS, 2 * HOUR_MS, 26 * HOUR_MS, 30 * HOUR_MS)
_WRITE_FAULTS = (
    *(FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER, FaultKind.FAIL_AFTER) * 2,
    *(FaultKind.FAIL_BEFORE, FaultKind.REPEAT, FaultKind.REFUSE_AFTER),
)
_READ_FAULTS = (
    *(FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER, FaultKind.FAIL_AFTER, FaultKind.FAIL_BEFORE),
)
_WEIGHTS = (
    {"C1": 2, "C5/C6": 3, "W5": 4, "B1": 20, "B2": 12, "W1": 20, "W3": 45, "W4": 16, "W6": 30}
    | {f"commit of {operation}": 12 for operation in ("coalesce", "trim", "retention")}
    | {f"commit of {operation}": 15 for operation in ("seal", "roll", "delete-records", "alter")}
    | {"commit of clean": 25, "X5": 8, "Z2 commit": 6, "Z2 abort": 6}
    | {"E1": 15, "E2": 15, "E3": 25, "E4": 15, "E5": 25, "E6": 25}
    | dict.fromkeys(("E7 request", "E7 receipt", "E7 commit"), 30)
    | dict.fromkeys(("X1", "X2", "X3 commit", "X3 abort", "X4", "Z1"), 4)
)
"""How much likelier than a read a call at such a point is to go wrong: rare ones more."""
_CALM_WEIGHTS = {"B1": 15, "B2": 8}
"""Where all else goes well, or a block is closed too late for who sleeps."""
_POLICIES = ("compact", "compact", "compact", "compact,delete")

ROLES = (
    ("plain", PlainWriter, 40),
    ("producer", Producer, 40),
    ("twin/1", Producer, 40),
    ("twin/2", Producer, 40),
    ("sink", Sink, 50),
    ("crowd", Crowd, 15),
    ("company", Company, 20),
    ("job/1", Transactor, 30),
    ("job/2", Transactor, 30),
    ("zombie", Zombie, 30),
    ("zombie-producer", ZombieProducer, 30),
    ("job/zombie", ZombieTransactor, 20),
    ("reader", Reader, 40),
    ("follower", Follower, 50),
    ("cleaner-1", CleanerActor, 80),
    ("cleaner-2", CleanerActor, 50),
    ("coalescer", Coalescer, 50),
    ("sweeper-1", Sweeper, 80),
    ("sweeper-2", Sweeper, 30),
    ("operator", Operator, 50),
    ("recreator", Recreator, 3),
    ("chased", Chased, 3),
)
"""Names, what they are, and in how many of 100 worlds they act."""
_FOUNDERS = (
    "plain",
    "producer",
    "job/1",
    "sink",
    "cleaner-1",
    "sweeper-1",
    "operator",
    "coalescer",
)
_LITTERERS = ("plain", "producer", "sink", "sweeper-1", "operator")
_AROUND_ZOMBIES = (
    *("plain", "cleaner-1", "sweeper-1", "operator", "reader"),
    *("zombie", "zombie-producer", "job/1", "job/zombie"),
)
_RIVALS = ("sink", "follower", "cleaner-1", "cleaner-2", "coalescer")
_HOSTS = (("app/1", Host), ("app/2", Host), ("app/zombie", ZombieHost), ("web/1", Host))
_AROUND_HOSTS = ("plain", "cleaner-1", "coalescer", "sweeper-1", "reader")
_AROUND_JOBS = ("job/1", "job/2", "plain", "sweeper-1", "reader")
_AROUND_DEALS = (
    *(("deal/1@0", Dealer, 100), ("deal/2@0", Dealer, 60), ("deal/zombie@0", ZombieDealer, 60)),
    *(("other/1@1", Dealer, 60), ("other/zombie@1", ZombieDealer, 20)),
    *((f"hanging@{n}", Hanging, 20) for n in range(SITES)),
    *(("finisher", Finisher, 60), ("finisher/zombie", ZombieFinisher, 40)),
    *((f"plain@{n}", PlainWriter, 30) for n in range(SITES)),
    *((f"reader@{n}", Reader, 40) for n in range(SITES)),
    *((f"follower@{n}", Follower, 30) for n in range(SITES)),
    *((f"cleaner-1@{n}", CleanerActor, 50) for n in range(SITES)),
    *((f"coalescer@{n}", Coalescer, 20) for n in range(SITES)),
    *((f"sweeper-1@{n}", Sweeper, 30) for n in range(SITES)),
    *((f"operator@{n}", Operator, 25) for n in range(SITES)),
    *((f"recreator@{n}", Recreator, 4) for n in range(SITES)),
    *(("job/1@1", Transactor, 20), ("cutter", Cutter, 50)),
)
_AROUND_CUTS = (
    *((f"cutter-{n}", Cutter, 100) for n in (1, 2, 3)),
    *(("deal/1@0", Spreader, 60), ("deal/zombie@0", Dawdler, 100), ("next/1@0", Spreader, 60)),
    *(("other/1@1", Spreader, 60), ("other/zombie@1", Dawdler, 100)),
    ("finisher/zombie", ZombieFinisher, 40),
    *((f"plain@{n}", PlainWriter, 20) for n in range(SITES)),
    *((f"cleaner-1@{n}", CleanerActor, 20) for n in range(SITES)),
    *((f"sweeper-1@{n}", Sweeper, 30) for n in range(SITES)),
    *((f"operator@{n}", Operator, 15) for n in range(SITES)),
    *((f"recreator@{n}", Recreator, 2) for n in range(SITES)),
)
_MIRRORS = (("mirror/1", Mirror), ("mirror/2", Mirror), ("mirror/zombie", ZombieMirror))
_AROUND_MIRRORS = (
    *("cleaner-1", "coalescer", "sweeper-1", "reader", "follower", "operator", "recreator"),
)
_AROUND_CLEANERS = ("plain", "cleaner-1", "cleaner-2")
_AROUND_ERASERS = (
    *(("eraser", Eraser, 100), ("eraser/zombie", ZombieEraser, 30)),
    *(("holder", Holder, 40), ("hanging", Hanging, 40), ("plain", PlainWriter, 60)),
    *(("producer", Producer, 40), ("sink", Sink, 30), ("zombie", Zombie, 40)),
    *(("zombie-producer", ZombieProducer, 30), ("job/1", Transactor, 20)),
    *(("cleaner-1", CleanerActor, 100), ("cleaner-2", CleanerActor, 70)),
    *(("cleaner/zombie", ZombieCleaner, 40), ("coalescer", Coalescer, 40)),
    *(("sweeper-1", Sweeper, 50), ("reader", Reader, 60), ("follower", Follower, 60)),
    ("operator", Operator, 40),
)
_AROUND_ORDERS = (
    *(("straggler", Straggler, 100), ("plain", PlainWriter, 20), ("producer", Producer, 20)),
    *(("cleaner-1", CleanerActor, 100), ("cleaner-2", CleanerActor, 80), ("zombie", Zombie, 20)),
    *(("cleaner/zombie", ZombieCleaner, 20), ("coalescer", Coalescer, 20)),
    *(("sweeper-1", Sweeper, 20), ("reader", Reader, 30), ("follower", Follower, 30)),
    ("changer", Changer, 30),
)
_REORDERED = {
    *("plain", "producer", "zombie", "zombie-producer", "cleaner-1", "cleaner-2", "cleaner/zombie"),
    *("coalescer", "sweeper-1", "sweeper-2", "reader", "follower", "operator"),
    *("eraser", "eraser/zombie", "holder", "straggler", "changer"),
}
"""Who bears that the strategy changes while others write."""
_KEEPERS = (
    *(("cleaner-1", CleanerActor, 50), ("sweeper-1", Sweeper, 30), ("coalescer", Coalescer, 20)),
    *(("reader", Reader, 30), ("follower", Follower, 30), ("recreator", Recreator, 5)),
)
_JOBS = (("company", Company), *((f"job/{n}", Transactor) for n in (1, 2, 3)))
_BESIDE_AUTHORS = (
    (("limiter", Limiter, 60),),
    (("limiter", Limiter, 80), *_KEEPERS),
    (*((name, role, 80) for name, role in _JOBS), ("operator", Operator, 20), *_KEEPERS),
)
_WAVERING = (
    (
        *(("sweeper-1", Sweeper), ("sweeper-2", Sweeper), ("operator", Operator)),
        *(("watcher-1", Watcher), ("watcher-2", Watcher), ("reader", Reader)),
        *((f"author-{n}", Author) for n in (1, 2)),
        *((f"sleeper-{n}", Sleeper) for n in (1, 2, 3, 4)),
    ),
    (
        *(("limiter-1", Limiter), ("limiter-2", Limiter), ("successor", Successor)),
        *((f"author-{n}", Author) for n in (1, 2)),
        *((f"sleeper-{n}", Sleeper) for n in (1, 2, 3, 4)),
    ),
    (
        *(("job/1", Transactor), ("job/2", Transactor), ("company", Company)),
        *((f"job/leaver-{n}", Leaver) for n in (1, 2)),
        *((f"author-{n}", Author) for n in (1, 2)),
        *((f"successor-{n}", Successor) for n in (1, 2, 3)),
    ),
)
"""Who acts where days pass, where limits come and go, and where jobs are taken over."""


class World:
    """One run.

    Attributes:
        sites: where its logs stand; the first may go on from an older world.
        ledger: the transactions over several logs, and visible ones.
        trace: a line for each call that an actor made.
        marks: what was hit (`marks`).
        pace: one of so many calls, and of so many pieces of work, has time jump ahead.
        away_every: at one of so many calls nobody reaches a root for a while.
        is_fleeting: records are soon deleted, and readers sleep.
        slept_over: commits that somebody will create once they are long gone.
        is_calm: only the closing of blocks is disturbed.
        is_masked: its logs have masks, an older one from now on.
        is_ordered: its log compares orders, an older one from now on.
        keys: its records have so many; where they are more, passes mark some rows as dead.
        is_erasing: keys are erased in its log.
        secrets: of its erasures, by id.
        is_mirror: its log takes offsets.
        is_combining: writers may combine in its logs, older ones too from now on.
        late: creates that failed, and are done all the same when so few calls are left.
        landed: of these those that were done.
        answers: how many a head holds (FORMAT.md §21).
        is_wavering: what fails to be proposed often comes late.
        hides_names: a LIST shows any part of the proposals that are there or were.
        has_interrupts: some worlds have them; the line where one strikes moves with the code.
    """

    has_interrupts = True

    def __init__(
        self, seed: int, *, parquet: bool = False, begin: "World | None" = None, sites: int = 1
    ) -> None:
        self.seed = seed
        self.parquet = parquet
        self.trace: list[str] = []
        self.marks: Counter[str] = Counter()
        self.calls_left = CALLS
        self.dice = SeededIds(seed)
        self.clock = ManualClock(TIME_MS)
        self.ledger = Ledger()
        self.sequences: dict[str, list] = {}
        self._begun = begin is not None
        if begin is not None:
            self.clock = ManualClock(begin.clock.now_ms())
            self.sequences = {name: list(sent) for name, sent in begin.sequences.items()}
        before = (begin.sites[0] if begin else None, *(None,) * (sites - 1))
        self.sites = [Site(n, self.clock, self.ledger, was) for n, was in enumerate(before)]
        self.scheduler = Scheduler(self.roll, stay=(60, 85, 95)[self.roll(3)])
        self.fault_rate = (0, 1, 2, 5)[self.roll(4)]
        self.cast = [given for given in ROLES if self.roll(100) < given[2]] or [ROLES[0]]
        self.is_fleeting = self.is_calm = self.is_mirror = self.hides_names = False
        self.is_wavering, self.slept_over, self.landed = False, set(), set()
        self.is_ordered = begin is None or _can_be_ordered(begin)
        self.is_ordered &= is_ordered(seed)
        self.is_erasing, self.keys, self.secrets = False, KEYS, {}
        self.is_combining = seed // SPECIAL_EVERY % COMBINING_EVERY == 3
        self.is_masked = seed // SPECIAL_EVERY % MASKED_EVERY == 1
        self.pace, self.answers, self.away_every = (60, 8), 12, 120
        self.late: list[tuple[int, object, Oracle, str, bytes]] = []

    @property
    def draining(self) -> bool:
        """Whether the end is near."""
        return self.calls_left <= 0

    def let_act(self, names: Collection[str]) -> None:
        """These act, and no others."""
        self.cast = [given for given in ROLES if given[0] in names]

    def hurry(self) -> None:
        """Days go by, and who acts ends what it does, mostly."""
        self.pace, self.scheduler.stay = (300, 3), 98

    def roll(self, sides: int) -> int:
        """A number below ``sides``."""
        return int(self.dice.uniform() * sides)

    def batch(self):
        """Any batch."""
        return self.batches[self.roll(len(self.batches))]

    def batches_of(self, writer_id: str, sequence: int) -> list:
        """What a writer sends under a sequence number, whoever of its processes does."""
        sent = self.sequences.setdefault(writer_id, [])
        while len(sent) <= sequence:
            sent.append([self.batch() for _ in range(1 + self.roll(3))])
        return sent[sequence]

    def run(self) -> None:
        """The whole run.

        Raises:
            AssertionError: a promise was broken.
        """
        with small_limits(parquet=self.parquet, answers=self.answers):
            how = {"ordered": self.is_ordered, "keys": self.keys}
            self.batches = batches(parquet=self.parquet, **how)
            for site in self.sites:
                self._begin(site)
            for name, role, _ in self.cast:
                off_ms = self.roll(240_000) - 120_000
                if role.may_be_late and self._begun and self.roll(20) == 0:
                    off_ms = HOUR_MS  # Such a clock is refused; nothing may come of it.
                if role.may_be_off and self.roll(16) == 0:
                    off_ms = (_DAYS_MS, -_DAYS_MS)[self.roll(2)]
                actor = role(self, name, Clock(self.clock, off_ms))
                self.scheduler.add(name, actor.run)
            self.scheduler.run()
            self.marks[GHOST] += sum(site.logs.ghosts for site in self.sites)
            if len(self.sites) > 1:
                settle(self)
            for site in self.sites:
                if site.logs.is_stable:
                    if self.is_erasing:
                        settle_erasures(self, site)
                    self._check_end(site)

    def _begin(self, site) -> None:
        """Makes the log of a site, or has an older one go on as this world's logs are."""
        site.disk.observer, site.disk.failed = site.logs, self.scheduler.fail
        clock, ids = Clock(self.clock, 0), SeededIds(self.seed + (site.number << 40))
        if site.logs.standing is None:
            self.create_log(site, site.disk, clock, ids)
        else:
            self._configure(Log.open(site.disk, clock=clock, ids=ids))
        for name, sent in self.sequences.items() if self.is_ordered else ():
            del sent[site.logs.standing.last_sequence(name) + 1 :]  # They have no orders.
        if self.is_erasing:
            site.disk.forget_strangers(STRANGERS, NEIGHBOURS)

    def create_log(self, site, store, clock, ids) -> None:
        """A new log, of any config; a stranger keeps files among its own, and restores another log
        beside it.
        """
        features = [GIVEN_OFFSETS] if self.is_mirror else []
        config = self._config()
        log = Log.create(store, PARTITIONS, config, clock=clock, ids=ids, features=features)
        for name in () if self.is_erasing else STRANGERS:
            site.disk.put(f"{documents.folder_of(log.handle.standing.log_id)}/{name}", b"kept")
        for path in () if self.is_erasing else NEIGHBOURS:
            site.disk.put(path, b"restored")
        self._configure(log)

    def _configure(self, log) -> None:
        if self.is_masked:
            log.alter({"table.masks": "true"})
        if self.is_ordered:
            log.alter(self.order_config())
        if self.keys > KEYS:
            log.alter(_MARKING)

    def order_config(self, known: Mapping[str, str] = EMPTY) -> dict[str, str | None]:
        """How a log compares from now on; where some work by how it did, that changes for late
        records alone.
        """
        late = ("keep", "drop")[self.roll(2)]
        if known and not _REORDERED.issuperset(name for name, _, _ in self.cast):
            return {"compaction.late": late}
        by_header = self.roll(2) == 0
        config = {"compaction.strategy": "timestamp", "compaction.late": late}
        config |= dict.fromkeys(("compaction.strategy.header", "compaction.late.scope"))
        if by_header:
            named = {"compaction.strategy.header": HEADER, "compaction.late.scope": "log"}
            config |= {"compaction.strategy": "header", **named}
        return config

    def keep_house(self) -> None:
        """Everything that is due is done, and what is then, and in days."""
        with small_limits(parquet=self.parquet):
            disk = self.sites[0].disk
            log = Log.open(disk, clock=Clock(self.clock, 0), ids=SeededIds(self.seed))
            for hours in (2, 26, 2):
                Cleaner(log).run_once(force=True)
                self.clock.advance(hours * HOUR_MS)
                sweep(log.handle)

    @property
    def digest(self) -> str:
        """The hash of the trace."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()

    def fault(self, actor, call, more: str, site, oracle, data: bytes) -> Fault | None:
        """What happens to a call of an actor, before it is made; ``more``, of its ranges or size;
        ``oracle``, of the log where; ``data`` is what is created.
        """
        path = call.path
        line = f"{actor.name} {call.operation} {path}{more}"
        line += f" at {site.number}" if len(self.sites) > 1 else ""
        if self.draining:
            self.trace.append(line)
            return None if actor.sleeps else Fault(FaultKind.CRASH_BEFORE)
        self.calls_left -= 1
        self._land_late()
        self.scheduler.wake()
        creates = call.operation == "create" and path.startswith(documents.COMMITS)
        if (awaited := actor.doze(call, oracle)) is not None:
            self.trace.append(f"{actor.name} sleeps")
            self.scheduler.sleep(awaited)
        else:
            self.scheduler.turn()
        self.clock.advance(self.roll(40))
        if self.roll(self.pace[0]) == 0:
            self._jump_ahead()
        stands = oracle is not None and not oracle.is_over
        points = points_of(call, actor, oracle, data) if stands else []
        kind = actor.storm(call) or self._kind(call, points)
        if creates and oracle.gone_ms is not None and self.roll(2):
            kind = FaultKind.CRASH_AFTER  # What it leaves in the folder may look like news.
        if len(self.sites) > 1 and self.roll(self.away_every) == 0:
            site.away_until = self.calls_left - 5 - self.roll(40)
        if site.is_away(self.calls_left):
            kind = FaultKind.FAIL_BEFORE
        self.trace.append(f"{line} {kind or ''}")
        if kind is None:
            return None
        actor.was_refused = actor.was_refused or kind is FaultKind.REFUSE_AFTER
        is_late = self.is_combining and kind is FaultKind.FAIL_BEFORE and stands
        proposes = call.operation == "create" and path.startswith(documents.PROPOSALS)
        if is_late and (creates or proposes):
            self.late.append((self.calls_left - self.roll(200), actor, oracle, path, bytes(data)))
        if mode := MODES.get(kind):
            self.marks.update(f"{point}, {mode}" for point in points)
        return Fault(kind)

    def rest(self) -> None:
        """Between two pieces of work of an actor: time goes on, others come first."""
        if self.roll(self.pace[1]) == 0:
            self._jump_ahead()
        self.scheduler.give_way()

    def _land_late(self) -> None:
        """Does those creates whose time has come, where nothing came first, and the log stands."""
        for late in [late for late in self.late if late[0] >= self.calls_left]:
            self.late.remove(late)
            _, self.ledger.acting, oracle, path, data = late
            if path not in oracle.store and not oracle.is_over:
                self.trace.append(f"late create {path}")
                self.landed.add(path)
                oracle.store.create(path, data)

    def _kind(self, call, points) -> FaultKind | None:
        writes = call.operation in ("put", "create", "delete")
        rest = 4 if call.operation == "list" else 6 if writes else 1
        if call.path.startswith(documents.CLOCKS):
            rest = 1  # Else few who compare clocks come any further.
        weights, rest = (_CALM_WEIGHTS, 0) if self.is_calm else (_WEIGHTS, rest)
        weight = max((weights[point] for point in points if point in weights), default=rest)
        if "C31/C32" in points and self.roll(4 if self.is_wavering else 12) == 0:
            return FaultKind.FAIL_BEFORE  # It comes late, mostly (`_land_late`).
        if self.roll(100) >= self.fault_rate * weight:
            return None
        if call.operation == "create" and self.roll(8) == 0:
            return FaultKind.CONFLICT
        # A refusal to tell the time is believed, whatever the clock.
        is_clock = call.path.startswith(documents.CLOCKS)
        kinds = _WRITE_FAULTS if writes and not is_clock else _READ_FAULTS
        return kinds[self.roll(len(kinds))]

    def _jump_ahead(self) -> None:
        self.clock.advance(_JUMPS_MS[self.roll(len(_JUMPS_MS))])

    def _config(self) -> dict[str, str]:
        policy = "compact" if self.is_ordered else _POLICIES[self.roll(len(_POLICIES))]
        config = {
            "segment.bytes": str((100, 150, 250)[self.roll(3)]),
            "min.cleanable.dirty.ratio": "0",
            "file.delete.delay.ms": str(HOUR_MS),
            "delete.retention.ms": str(HOUR_MS),
            "cleanup.policy": policy,
            "segment.ms": str((7 * 24, 3)[self.roll(2)] * HOUR_MS),
        }
        if "delete" in policy:
            config |= {"message.timestamp.type": "LogAppendTime", "retention.ms": str(20 * HOUR_MS)}
        return config

    def _check_end(self, site) -> None:
        oracle = site.logs.standing
        newest = oracle.newest
        log = Log.open(site.disk, clock=Clock(self.clock, 0), ids=SeededIds(1))
        assert log.version == newest, f"opened at {log.version}, the newest is {newest}"
        assert rows_of(log.read()) == expected_rows(oracle, newest)
        oldest = oracle.manifest.head.oldest_readable
        for version in sorted({oldest, (oldest + newest) // 2, newest}):
            table = rows_of(log.table(at=version).to_batches())
            expected = expected_table(oracle, version, newest)
            assert table == expected, f"the table at {version} is {table}, not {expected}"
        if self.parquet:
            assert verify_log(site.disk).findings == ()


@cache
def beginning(number: int) -> World:
    """A log that has lived a while, undisturbed: kept clean, or never cleaned at all."""
    world = World(-number)
    kept = number <= BEGINNINGS // 2
    world.calls_left, world.fault_rate = BEGINNING_CALLS if kept else BEGINNING_CALLS // 3, 0
    world.let_act(_FOUNDERS if kept else _LITTERERS)
    world.hurry()
    world.run()
    if kept:
        world.keep_house()
    return world


def world_of(seed: int) -> World:
    """The world of a seed: a new log, or what is left of an older world.

    Some are made for zombies, who sleep while days go by; some for rivals, who clean the same
    segments at once; some for a crowd of writer ids; some for a job that two fight for, or for
    state stores or mirrors whose ids are fought for; some for cleaners, who have much to clean, and
    whose commits go wrong. In some the log is deleted and recreated.
    """
    parquet = seed % PARQUET_EVERY == PARQUET_EVERY - 1
    kind, number = seed % SPECIAL_EVERY, seed % (BEGINNINGS + 1)
    half = BEGINNINGS // 2
    if kind in (0, 4):
        number = 1 + seed // SPECIAL_EVERY % half
    elif kind in (1, 5):
        number = 1 + half + seed // SPECIAL_EVERY % half
    # The older worlds have no real Parquet.
    is_mirror = is_of_mirrors(seed)
    begin = beginning(number) if number and not parquet and not is_mirror else None
    made_for = (
        (kind in SEVERAL, _world_of_deals),
        (is_of_erasures(seed), _world_of_erasers),
        (is_of_authors(seed), _world_of_authors),
        (is_of_orders(seed), _world_of_orders),
    )
    if made := next((made for is_one, made in made_for if is_one), None):
        return made(seed, begin=begin, parquet=parquet)
    world = World(seed, parquet=parquet, begin=begin)
    if kind in (0, 4):
        world.let_act(_AROUND_ZOMBIES)
        world.hurry()
        world.fault_rate, world.is_calm = 1, world.roll(4) > 0
        world.is_fleeting, world.calls_left = True, ZOMBIE_CALLS
    elif kind == 1:
        world.let_act(_RIVALS)
    elif kind == 3:
        others = [given for given in world.cast if given[0] != "recreator"]
        world.let_act({"recreator", *(given[0] for given in others)})
        world.cast += [(f"watcher-{n}", Watcher, 100) for n in (1, 2)]
    elif kind == 7:
        world.let_act(("crowd",) if world.roll(2) else ("crowd", "sweeper-1"))
        world.scheduler.stay = 95
    elif is_mirror:
        world.let_act(_AROUND_MIRRORS)
        world.cast = [given for given in world.cast if world.roll(100) < given[2]]
        world.cast += [(name, role, 100) for name, role in (*_MIRRORS, ("stranger", Stranger))]
        world.is_mirror, world.calls_left = True, STATE_CALLS
        world.scheduler.stay = (60, 90, 97)[world.roll(3)]
    elif kind == 6:
        is_of_state = is_of_states(seed)
        world.let_act(_AROUND_HOSTS if is_of_state else _AROUND_JOBS)
        world.cast += [(name, role, 100) for name, role in _HOSTS if is_of_state]
        if is_of_state:
            world.calls_left = STATE_CALLS
        world.scheduler.stay = (60, 85)[world.roll(2)]
    elif kind == 5:
        world.let_act(_AROUND_CLEANERS)
        world.cast += [(f"quitter-{n}", Quitter, 100) for n in (1, 2) if world.is_masked]
        world.fault_rate, world.scheduler.stay = 2, 95
        world.calls_left = CLEANER_CALLS
    return world


def is_ordered(seed: int) -> bool:
    """Whether orders are compared in its world, if an older log that it goes on from can."""
    is_asked = seed >= 0 and seed // SPECIAL_EVERY % ORDERED_EVERY == 4
    return is_asked and seed % SPECIAL_EVERY != 6


def is_of_orders(seed: int) -> bool:
    """Whether its world is made for orders: tombstones go, and what they beat comes late."""
    return seed % SPECIAL_EVERY in (1, 5) and is_ordered(seed)


def is_of_erasures(seed: int) -> bool:
    """Whether its world is made for erasures: days go by in some, others have several logs."""
    kind, number = seed % SPECIAL_EVERY, seed // SPECIAL_EVERY
    return (kind == 4 and number % 2 == 1) or (kind == SEVERAL[0] and number % 4 == 2)


def is_of_states(seed: int) -> bool:
    """Whether its world is made for state stores."""
    return seed % SPECIAL_EVERY == 6 and seed // SPECIAL_EVERY % 2 == 1


def is_of_mirrors(seed: int) -> bool:
    """Whether its log is a mirror."""
    return seed % SPECIAL_EVERY == 6 and seed // SPECIAL_EVERY % 4 == 2


def is_of_cuts(seed: int) -> bool:
    """Whether its world has several logs, and is made for cuts over them."""
    return seed % SPECIAL_EVERY == SEVERAL[1] and seed // SPECIAL_EVERY % 4 == 1


def _can_be_ordered(world: World) -> bool:
    return "delete" not in world.sites[0].logs.standing.manifest.head.config["cleanup.policy"]


def is_of_authors(seed: int) -> bool:
    """Whether its world is made for authors who combine."""
    return seed % SPECIAL_EVERY in (2, 7) and seed // SPECIAL_EVERY % 2 == 1


def _world_of_authors(seed: int, *, begin: World | None, parquet: bool) -> World:
    """A world of authors on one log, or on two; in some there are hundreds, in some days pass."""
    sites = 1 + (seed % 5 == 2 and seed // SPECIAL_EVERY % 4 == 1)
    world = World(seed, parquet=parquet, begin=begin, sites=sites)
    is_crowd = seed // SPECIAL_EVERY // 2 % CROWD_EVERY == 5
    count = 100 + world.roll(150) if is_crowd else 3 + world.roll(8)
    kinds = (Author, Author, Dozer, Successor)
    names = {Author: "author", Dozer: "dozer", Successor: "successor"}
    beside = _BESIDE_AUTHORS[0 if is_crowd else world.roll(len(_BESIDE_AUTHORS))]
    world.cast = [given for given in beside if world.roll(100) < given[2]]
    for n in range(count):
        role = kinds[world.roll(len(kinds))]
        world.cast.append((f"{names[role]}-{n}@{world.roll(sites)}", role, 100))
    world.is_combining, world.hides_names = True, world.roll(3) == 0
    world.calls_left = CROWD_CALLS if is_crowd else AUTHORS_CALLS
    world.scheduler.stay = (50, 75, 90)[world.roll(3)]
    world.fault_rate = (0, 0, 1, 2)[world.roll(4)]
    world.pace = 300, 40
    if is_crowd:
        world.pace, world.scheduler.stay, world.answers = (1000, 100), 92, 64
    elif seed // SPECIAL_EVERY // 2 % WAVERING_EVERY == 3:
        _let_waver(world, seed // SPECIAL_EVERY // 2 // WAVERING_EVERY % len(_WAVERING))
    elif world.roll(5) == 0:
        world.is_fleeting, world.pace = True, (100, 8)
    return world


def _let_waver(world: World, kind: int) -> None:
    """Lets authors sleep where others rely on them: days pass, limits change, or jobs are taken."""
    world.cast = [(name, role, 100) for name, role in _WAVERING[kind]]
    world.is_wavering, world.hides_names = True, kind < 2
    world.calls_left, world.scheduler.stay, world.pace = WAVERING_CALLS, 40, (600, 100)
    if kind == 0:
        world.is_fleeting, world.scheduler.stay, world.pace = True, 95, (200, 3)


def _world_of_orders(seed: int, *, begin: World | None, parquet: bool) -> World:
    """A world of orders, in which hours go by, and tombstones are the last of their keys."""
    world = World(seed, parquet=parquet, begin=begin)
    world.cast = [given for given in _AROUND_ORDERS if world.roll(100) < given[2]]
    world.pace, world.scheduler.stay = (150, 8), (60, 80, 95)[world.roll(3)]
    world.fault_rate = (0, 0, 1, 2)[world.roll(4)]
    world.keys, world.calls_left = ORDERING_KEYS, ORDERING_CALLS
    return world


def _world_of_erasers(seed: int, *, begin: World | None, parquet: bool) -> World:
    """A world of erasures, in which days go by, and nobody leaves files of others in the log."""
    world = World(seed, parquet=parquet, begin=begin)
    world.cast = [given for given in _AROUND_ERASERS if world.roll(100) < given[2]]
    world.hurry()
    world.pace, world.scheduler.stay = (150, 3), (85, 95, 98)[world.roll(3)]
    if any(role is Hanging for _, role, _ in world.cast):
        world.pace = 400, 12  # What is undecided ends in a day.
    world.fault_rate = (0, 1, 1, 2)[world.roll(4)]
    world.is_erasing, world.calls_left, world.keys = True, ERASING_CALLS, ERASING_KEYS
    return world


def _world_of_deals(seed: int, *, begin: World | None, parquet: bool) -> World:
    """A world of several logs, and of transactions over them and visible ones."""
    world = World(seed, parquet=parquet, begin=begin, sites=SITES)
    around = _AROUND_CUTS if is_of_cuts(seed) else _AROUND_DEALS
    world.cast = [given for given in around if world.roll(100) < given[2]]
    world.scheduler.stay = (85, 95, 98)[world.roll(3)]
    world.fault_rate = (0, 0, 1, 2)[world.roll(4)]
    world.calls_left = CUTS_CALLS if is_of_cuts(seed) else SEVERAL_CALLS
    world.pace = 250, (16, 40)[world.roll(2)]
    if is_of_cuts(seed):
        world.away_every = 1_000
    if is_of_erasures(seed):
        world.is_erasing, world.pace = True, (150, 8)
        world.cast += [(f"eraser@{n}", Eraser, 100) for n in range(2)]
    return world
