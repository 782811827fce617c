"""The last stable offsets under random transactions, compared with their definition (S51).

Visible transactions that stay open, prepared ones of another home, deferred ones and plain appends
write to the same partitions in any order, and end in any order. The definition sees only records:
the stable offsets are the greatest below which none is undecided, and of no committed transaction
some but not all.
"""

import random
from collections import Counter

import pytest

from clog.storage import CommitConflictError, Log, ManualClock, TransactionTimeoutError
from clog.storage.env import SeededIds
from clog.storage.format.transactions import ABORTED, COMMITTED
from clog.storage.transactions.ids import OPERATION, ended_part
from clog_testing.crash import discard, memory_store
from clog_testing.invariants import check_log

PARTITIONS, STEPS = 3, 24
LONGEST_MS = 60_000
UNDECIDED = "undecided"


class Story:
    """One log, the transactions that write to it, and where their records are."""

    def __init__(self, seed, *, may_abort):
        self.dice, self.may_abort = random.Random(seed), may_abort
        self.clock, self.seed = ManualClock(1_000_000_000_000), 1_000 * seed
        self.stores = memory_store(), memory_store()
        for i, store in enumerate(self.stores):
            Log.create(store, PARTITIONS, clock=self.clock, ids=SeededIds(self.seed + i))
        self.open, self.prepared = {}, {}
        self.outcomes, self.places = {}, {}
        self.seen = Counter()
        self.log = self.opened(0)

    def opened(self, which):
        self.seed += 1
        return Log.open(self.stores[which], clock=self.clock, ids=SeededIds(self.seed))

    def step(self):
        kinds = ["visible"] * (len(self.open) < 4) + ["more"] * 3 * bool(self.open)
        kinds += ["prepare", "deferred", "deferred", "plain", "end", "end"]
        getattr(self, self.dice.choice(kinds))()

    def rows(self, name):
        """Records for some partitions, each with its transaction as value."""
        parts = self.dice.sample(range(PARTITIONS), self.dice.randint(1, PARTITIONS))
        return [([{"key": "k", "value": name}], p) for p in sorted(parts)]

    def put(self, t, name, log=None):
        for rows, p in self.rows(name)[: 1 if log is None and name in self.open else None]:
            t.append(rows, partition=p, **({} if log is None else {"log": log}))

    def begun(self):
        name = f"t{len(self.outcomes)}"
        self.outcomes[name] = UNDECIDED
        return name

    def visible(self):
        name = self.begun()
        self.open[name] = self.opened(0).transaction(name, visible=True)
        self.put(self.open[name], name)

    def more(self):
        name = self.dice.choice([*self.open])
        self.put(self.open[name], name)

    def deferred(self):
        name = self.begun()
        with self.opened(0).transaction(name) as t:
            self.put(t, name)
        self.outcomes[name] = COMMITTED

    def prepare(self):
        name = self.begun()
        log = self.opened(0)
        t = self.opened(1).transaction(name)
        self.put(t, name, log)
        t._work.several.prepare(t._work.check_time, t._work.holder.closable)
        self.prepared[name] = log, t._work.ours

    def plain(self):
        for rows, p in self.rows("plain"):
            self.log.append(rows, partition=p)

    def end(self):
        names = [*self.open, *self.prepared]
        if not names:
            return
        name = self.dice.choice(names)
        outcome = ABORTED if self.may_abort and self.dice.random() < 0.3 else COMMITTED
        if name in self.prepared:
            log, ours = self.prepared.pop(name)
            log.handle.commit(ended_part(log.handle, ours, outcome), operation=OPERATION)
        else:
            t = self.open.pop(name)
            t.commit() if outcome == COMMITTED else t.abort()
        self.outcomes[name] = outcome

    def look(self):
        for batch in self.log.read(isolation="read_uncommitted"):
            for row in batch.to_pylist():
                self.places.setdefault((row["partition"], row["offset"]), row["value"].decode())

    def holds_more(self, stable):
        """Whether something is held back before the first undecided record of a partition."""
        undecided = {place for place, n in self.places.items() if self.outcomes.get(n) == UNDECIDED}
        ends = self.log.end_offsets()
        return any(
            stable[p] < min((at for q, at in undecided if q == p), default=ends[p]) for p in stable
        )

    def defined(self):
        """The stable offsets, by definition."""
        stable, first = dict(self.log.end_offsets()), {}
        for (p, offset), name in sorted(self.places.items()):
            first.setdefault(name, {}).setdefault(p, offset)
        while True:
            before = dict(stable)
            for (p, offset), name in self.places.items():
                outcome = self.outcomes.get(name)
                if outcome == UNDECIDED:
                    stable[p] = min(stable[p], offset)
                if outcome == COMMITTED and offset >= stable[p]:
                    stable |= {q: min(stable[q], at) for q, at in first[name].items()}
            if stable == before:
                return stable


def tell(seed, *, may_abort, steps=STEPS):
    story = Story(seed, may_abort=may_abort)
    before = dict.fromkeys(range(PARTITIONS), 0)
    for _ in range(steps):
        story.step()
        story.look()
        stable, defined = story.log.stable_offsets(), story.defined()
        assert all(stable[p] >= before[p] for p in before), "they go back"
        if may_abort:  # What was aborted may hold back others until its holder ends.
            assert all(stable[p] <= defined[p] for p in stable)
        else:
            assert stable == defined
        below = Counter(n for (p, at), n in story.places.items() if at < stable[p])
        total = Counter(story.places.values())
        torn = [n for n in below if n != "plain" and below[n] < total[n]]
        assert torn == [], f"{torn} are shown in part"
        shown = Counter(r["value"].decode() for b in story.log.read() for r in b.to_pylist())
        aborted = {n for n, outcome in story.outcomes.items() if outcome == ABORTED}
        assert shown == Counter({n: c for n, c in below.items() if n not in aborted})
        story.seen["more is held than by first records"] += story.holds_more(stable)
        before = stable
    while story.open or story.prepared:
        story.end()
    assert story.log.stable_offsets() == story.log.end_offsets()
    check_log(story.stores[0])
    for store in story.stores:
        discard(store)
    return story.seen


@pytest.mark.parametrize("may_abort", [False, True])
def test_the_stable_offsets_are_as_defined(may_abort):
    """S51: the greatest that part no transaction; they never become lower."""
    seen = sum((tell(seed, may_abort=may_abort) for seed in range(2)), Counter())
    assert seen["more is held than by first records"] > 2, seen


class Crowd:
    """Writers that begin a visible transaction as soon as their last one has ended."""

    def __init__(self, seed):
        self.dice, self.store = random.Random(seed), memory_store()
        self.clock = ManualClock(1_000_000_000_000)
        self.log = Log.create(self.store, PARTITIONS, clock=self.clock, ids=SeededIds(seed))
        self.writers = [
            Log.open(self.store, clock=self.clock, ids=SeededIds(1_000 + n + seed))
            for n in range(6)
        ]
        self.open = [None] * len(self.writers)
        self.refused = 0

    def step(self):
        """Each writer begins, appends or ends; the one that is over time begins again."""
        for n, log in enumerate(self.writers):
            t = self.open[n] or log.transaction(
                f"writer-{n}", visible=True, timeout_ms=self.dice.randint(20_000, LONGEST_MS)
            )
            try:
                if self.open[n] and self.dice.random() < 0.2:
                    t.commit()
                else:
                    t.append([{"key": "k", "value": "v"}], partition=self.dice.choice((0, 0, 1, 2)))
                self.open[n] = t if t.is_open else None
            except CommitConflictError:
                self.refused += 1
            except TransactionTimeoutError:
                t.abort()
                self.open[n] = None
            self.clock.advance(self.dice.randrange(4_500))

    def waited_ms(self):
        """For how long the readers of some partition have waited."""
        hidden = self.log.read(start=self.log.stable_offsets(), isolation="read_uncommitted")
        times = [row["timestamp"].timestamp() for batch in hidden for row in batch.to_pylist()]
        return self.clock.now_ms() - 1_000 * min(times, default=self.clock.now_ms() / 1_000)


def test_no_reader_waits_without_bound_for_transactions_that_overlap():
    """S51: for one timeout until no other one begins, and one until those that are open have ended
    (and one for each partition in which they meet others meanwhile, here none).
    """
    crowd = Crowd(9)
    waited_ms = []
    for _ in range(40):
        crowd.step()
        waited_ms.append(crowd.waited_ms())
    assert LONGEST_MS < max(waited_ms) <= 2 * LONGEST_MS
    assert crowd.refused
    discard(crowd.store)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(100, 400, 30))
def test_the_stable_offsets_of_many_are_as_defined(first):
    """S51: the same, with more seeds."""
    for seed in range(first, first + 30):
        tell(seed, may_abort=seed % 3 == 0)
