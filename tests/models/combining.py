"""An explicit-state model of combining: each step of many writers of one log.

Authors post *proposals*; any committing writer includes eligible ones; an author learns the outcome
of its own from the commits that it follows. The model is so small that every state can be visited,
and each rule can be left out (``Rules``): then it must be wrong, and ``explore`` returns the
shortest history that shows it.

Sources of nondeterminism, and how few they are:

- A late PUT, a LIST that misses names or shows swept ones, a combiner that is suspended between its
  LIST and its create: a proposal may be seen at any time after it was posted, or never. So the
  state has no combiners; a commit includes any part of what was ever posted.
- A create that is late or whose reply is lost: it succeeds only on the tip on which it was prepared
  (exclusive create), so it is one step there; its author may see it any time later.
- Authors skip versions, are interrupted, give up, try again.
- `first` (before which answers are forgotten) and the orphan floor rise with any commit, as far as
  allowed; data below the floor may be swept at any time.
- Another process ends an author's visible proposals (F6), and continues once it has read this; the
  reply to its commit may be lost, so these are two steps.
- Each operation appends a record to partition 0, those of author 1 also one to partition 1; the
  ranges of a commit follow from the chain.
- A block that is closed: a process that was suspended before may find there what another suspended
  process left, a *ghost*, which may contain anything that a commit at that place might have had.

Not modelled: time, because no rule depends on it; a store in which two creates of one name succeed.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Rules:
    """Each rule of the protocol; without any one of them the model is wrong."""

    proposals_expire: bool = True
    """A proposal is eligible only while its stamp is not below `first` of the head."""
    by_number: bool = True
    """Applied operations are identified by author and number, not by the proposal's name."""
    in_order: bool = True
    """An author's proposal is eligible only above the number that the head has of it."""
    absence_proves_only_what_was_seen: bool = True
    """No answer means "not applied" only if `first` is not above the last version seen."""
    withdrawn_by_commit: bool = True
    """Giving up is a commit, never a delete."""
    withdrawals_expire: bool = True
    """A withdrawal is also eligible only while its stamp is not below `first`."""
    withdrawn_is_seen: bool = True
    """An author learns "gone" from what it reads, not from having tried to withdraw."""
    only_as_posted: bool = True
    """A posted operation is committed only as that proposal, also by its author."""
    swept_by_floor: bool = True
    """Data are swept by the orphan floor, never by time."""
    floor_is_checked: bool = True
    """A writer that commits a proposal checks the stamp of its data against the floor."""
    settled: bool = True
    """An answer counts only in a settled tip: not in a ghost of a closed block."""
    own_ids: bool = True
    """Each handle in each process draws its own author id."""
    epochs: bool = True
    """A proposal of a fenced epoch is left out."""
    others_withdraw_by_stamp: bool = True
    """Another writer withdraws an operation only by a proposal whose stamp is not below `first`."""
    ends_are_seen: bool = True
    """A process that ends another's operation continues from what it reads, not from having tried.
    """
    list_proves_nothing: bool = True
    """A writer that does not see a proposal in a LIST, its own included, assumes that it is posted.
    """
    ranges_by_tip: bool = True
    """The ranges of a commit begin where the previous version ends."""
    own_ranges: bool = True
    """An author gets the ranges of its own objects, whoever else is in the commit."""


class Bounds(NamedTuple):
    """The bounds of the visited world."""

    authors: int = 1
    operations: int = 1
    attempts: int = 2
    commits: int = 3
    takeovers: int = 0
    successors: int = 0


class Commit(NamedTuple):
    """A version: applied (author, number, attempt)s and withdrawn (author, number)s."""

    applied: tuple = ()
    withdrawn: tuple = ()
    first: int = 0
    floor: int = 0
    plain: tuple = ()
    epoch: int = 0


class Author(NamedTuple):
    """A writer: its knowledge, and the stamps of its proposals for each operation."""

    knows: int = 0
    number: int = 0
    unapplied_at: int = 0
    """The last version at which it knows that it had not applied the operation."""
    stamps: tuple = ()
    told: tuple = ()
    data: tuple = ()
    epoch: int = 0


class State(NamedTuple):
    """A complete world."""

    chain: tuple
    authors: tuple
    swept: frozenset = frozenset()
    closed: int = 0
    ended: frozenset = frozenset()


APPLIED, GONE, UNKNOWN = "applied", "gone", "unknown"


class BrokenError(Exception):
    """An invariant was violated."""


@dataclass
class Found:
    """The result of a search."""

    states: int
    exhausted: bool
    broken: str | None
    history: tuple[str, ...]
    reached: frozenset[str]


class Model:
    """The steps that a world can take."""

    def __init__(self, bounds: Bounds, rules: Rules) -> None:
        self.bounds, self.rules = bounds, rules
        self.reached: set[str] = set()

    def first(self) -> State:
        """A log of one version, and authors that have done nothing."""
        return State((Commit(),), tuple(Author() for _ in range(self.bounds.authors)))

    # What a head says.

    def identity(self, author: int) -> int:
        """The id under which an author's operations are remembered."""
        return author if self.rules.own_ids else 0

    def answer(self, state: State, version: int, author: int) -> tuple[int, str, int] | None:
        """An author's newest number in a head, its outcome, and where; None if forgotten."""
        me, forgotten = self.identity(author), state.chain[version].first
        for at in range(version, forgotten, -1):
            commit = state.chain[at]
            numbers = [(n, APPLIED) for a, n, _ in commit.applied if self.identity(a) == me]
            numbers += [(n, GONE) for a, n in commit.withdrawn if self.identity(a) == me]
            if numbers:
                return (*max(numbers), at)
        return None

    def eligible(self, state: State, version: int, author: int, number: int, attempt: int) -> bool:
        """Whether the commit after a version may include a proposal."""
        rules, head, who = self.rules, state.chain[version], state.authors[author]
        stamp = who.stamps[number - 1][attempt]
        if rules.proposals_expire and stamp < head.first:
            return False
        if rules.floor_is_checked and who.data[number - 1] < head.floor:
            return False
        if rules.epochs and who.epoch != head.epoch:
            return False
        if not rules.by_number:
            return not any(
                (author, number, attempt) in c.applied or (author, number) in c.withdrawn
                for c in state.chain[head.first + 1 : version + 1]
            )
        answer = self.answer(state, version, author)
        if answer is None:
            return True
        return answer[0] < number if rules.in_order else answer[0] != number

    def takings(self, state: State, version: int) -> Iterator[tuple]:
        """The sets of proposals that the commit after a version may apply."""
        able = [
            (a, n, attempt)
            for a, author in enumerate(state.authors)
            for n, stamps in enumerate(author.stamps, 1)
            for attempt in range(len(stamps))
            if self.eligible(state, version, a, n, attempt)
        ]
        for size in range(len(able) + 1):
            for some in combinations(able, size):
                keys = [
                    (self.identity(a), n if self.rules.by_number else (n, t)) for a, n, t in some
                ]
                ids = [self.identity(a) for a, _, _ in some]
                if len(set(keys)) == len(keys) and (
                    len(set(ids)) == len(ids) or not self.rules.by_number
                ):
                    yield some

    # Steps.

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Each possible step, with its name, and where it leads."""
        yield from self.commits(state)
        yield from self.successions(state)
        for a, author in enumerate(state.authors):
            yield from self.posts(state, a, author)
            yield from self.looks(state, a, author)
            yield from self.gives_up(state, a, author)
        for a, author in enumerate(state.authors):
            for n, stamp in enumerate(author.data, 1):
                if (a, n) not in state.swept and self.sweepable(state, a, n, stamp):
                    yield f"sweep{a}.{n}", state._replace(swept=state.swept | {(a, n)})
        tip = len(state.chain) - 1
        if state.closed < tip - 1:
            yield "close", state._replace(closed=tip - 1)

    def sweepable(self, state: State, author: int, number: int, stamp: int) -> bool:
        """Whether an operation's data may be deleted."""
        if any((a, n) == (author, number) for c in state.chain for a, n, _ in c.applied):
            return False
        return stamp < state.chain[-1].floor or not self.rules.swept_by_floor

    def commits(self, state: State) -> Iterator[tuple[str, State]]:
        """A writer commits: some eligible proposals, forgetting any answers that it may."""
        tip = len(state.chain) - 1
        if tip >= self.bounds.commits:
            return
        head = state.chain[-1]
        for some in self.takings(state, tip):
            for first in range(head.first, tip + 1):
                for floor in {head.floor, tip}:
                    commit = Commit(some, (), first, floor, (), head.epoch)
                    yield (
                        f"commit{list(some)} first={first} floor={floor}",
                        self.with_commit(state, commit),
                    )
        if head.epoch < self.bounds.takeovers:
            yield (
                "takeover",
                self.with_commit(state, Commit((), (), head.first, head.floor, (), head.epoch + 1)),
            )

    def successions(self, state: State) -> Iterator[tuple[str, State]]:
        """Another process ends an operation that a LIST shows, and continues from there (F6)."""
        if not self.bounds.successors:
            return
        tip, head = len(state.chain) - 1, state.chain[-1]
        for a, author in enumerate(state.authors):
            for n, stamps in enumerate(author.stamps, 1):
                answer = self.answer(state, tip, a)
                if (a, n) in state.ended:
                    continue
                if answer is not None and answer[0] >= n:
                    if answer[:2] == (n, GONE):
                        yield f"ended{a}.{n}", self.with_ended(state, a, n)
                    continue
                if tip >= self.bounds.commits:
                    continue
                if max(stamps) >= head.first or not self.rules.others_withdraw_by_stamp:
                    commit = Commit((), ((a, n),), head.first, head.floor, (), head.epoch)
                    yield f"end{a}.{n}", self.with_commit(state, commit)
                if not self.rules.ends_are_seen:  # Another's commit came first.
                    yield f"endless{a}.{n}", self.with_ended(state, a, n)

    def with_ended(self, state: State, a: int, n: int) -> State:
        """The state in which a successor continues without an operation."""
        if any((a, n) == (b, m) for c in state.chain for b, m, _ in c.applied):
            raise BrokenError("EndedStays")
        self.reached.add("ended by another")
        return state._replace(ended=state.ended | {(a, n)})

    @staticmethod
    def ends(state: State, version: int) -> tuple[int, int]:
        """Where the partitions end at a version."""
        done = [a for c in state.chain[: version + 1] for a, _, _ in c.applied]
        return len(done), sum(a == 1 for a in done)

    def ranges(self, state: State, version: int, a: int, n: int) -> tuple[int, ...]:
        """The offsets of an operation that a version applied."""
        applied = [b for b, m, _ in state.chain[version].applied]
        numbers = [(b, m) for b, m, _ in state.chain[version].applied]
        first, second = self.ends(state, version - 1)
        before = applied[: numbers.index((a, n))]
        mine = first + len(before), second + sum(b == 1 for b in before)
        return mine if a == 1 else mine[:1]

    def with_commit(self, state: State, commit: Commit) -> State:
        """A commit is there: the invariants that it must satisfy."""
        new = [(a, n) for a, n, _ in commit.applied]
        there = [(a, n) for c in state.chain for a, n, _ in c.applied]
        there += [one for c in state.chain for one in c.plain]
        together = [*new, *commit.plain]
        if len(set(together)) < len(together) or set(together) & set(there):
            raise BrokenError("AppliedOnce")
        if set(new) & state.swept:
            raise BrokenError("NoDangling")
        if set(new) & state.ended:
            raise BrokenError("EndedStays")
        if new and not self.rules.ranges_by_tip:  # It was prepared upon any version.
            tip = len(state.chain) - 1
            if any(self.ends(state, at) != self.ends(state, tip) for at in range(tip)):
                raise BrokenError("Dense")
        for a, n in new:
            author = state.authors[a]
            if any(b == a and m > n for b, m in there):
                raise BrokenError("NoZombie")
            if len(author.told) >= n and author.told[n - 1] == GONE:
                raise BrokenError("GaveUpStays")
            if author.epoch != state.chain[-1].epoch:
                raise BrokenError("Fenced")
        if any(attempt > 0 for _, _, attempt in commit.applied):
            self.reached.add("a retry is applied")
        if len(new) > 1:
            self.reached.add("two authors in one commit")
        return state._replace(chain=(*state.chain, commit))

    def posts(self, state: State, a: int, author: Author) -> Iterator[tuple[str, State]]:
        """An author posts an operation, or posts it again, when it knows it unapplied."""
        busy = author.number > len(author.told)
        if not busy and author.number < self.bounds.operations:
            new = author._replace(
                number=author.number + 1,
                unapplied_at=author.knows,
                stamps=(*author.stamps, (author.knows,)),
                data=(*author.data, author.knows),
            )
            yield f"post{a}", self.with_author(state, a, new)
        if (
            busy
            and len(author.stamps[-1]) < self.bounds.attempts
            and author.unapplied_at == author.knows
        ):
            stamps = (*author.stamps[:-1], (*author.stamps[-1], author.knows))
            if stamps != author.stamps and author.knows > author.stamps[-1][-1]:
                yield f"again{a}", self.with_author(state, a, author._replace(stamps=stamps))
        if busy and not self.rules.only_as_posted and len(state.chain) <= self.bounds.commits:
            tip = len(state.chain) - 1
            if author.knows == tip and self.answer(state, tip, a) is None:
                commit = state.chain[-1]._replace(
                    applied=(), withdrawn=(), plain=((a, author.number),)
                )
                yield f"plain{a}", self.tell(self.with_commit(state, commit), a, APPLIED)

    def looks(self, state: State, a: int, author: Author) -> Iterator[tuple[str, State]]:
        """An author reads a newer version, and its answer for the operation."""
        for version in range(author.knows + 1, len(state.chain)):
            if version <= state.closed:
                continue  # Its file is gone: who asks finds the newest.
            yield f"look{a}@{version}", self.looked(state, a, version)
        if (
            not self.rules.settled
            and author.knows < state.closed
            and author.number > len(author.told)
        ):
            for some in self.takings(state, author.knows):
                if any((b, n) == (a, author.number) for b, n, _ in some):
                    yield f"ghost{a}", self.tell(state, a, APPLIED)

    def looked(self, state: State, a: int, version: int) -> State:
        """A state in which an author has read the head of a version."""
        author = state.authors[a]._replace(knows=version)
        state = self.with_author(state, a, author)
        if author.number == len(author.told):
            return state
        answer = self.answer(state, version, a)
        if answer is not None and answer[0] >= author.number:
            return self.tell(state, a, answer[1] if answer[0] == author.number else UNKNOWN)
        proved = state.chain[version].first <= author.unapplied_at
        if proved or not self.rules.absence_proves_only_what_was_seen:
            return self.with_author(state, a, author._replace(unapplied_at=version))
        return self.tell(state, a, UNKNOWN)

    def gives_up(self, state: State, a: int, author: Author) -> Iterator[tuple[str, State]]:
        """An author is interrupted, or gives up."""
        if author.number == len(author.told):
            return
        yield f"interrupt{a}", self.tell(state, a, UNKNOWN)
        if not self.rules.list_proves_nothing and self.answer(state, author.knows, a) is None:
            yield f"unlisted{a}", self.tell(state, a, GONE)
        if not self.rules.withdrawn_by_commit:
            answer = self.answer(state, author.knows, a)
            if answer is None:
                yield f"delete{a}", self.tell(state, a, GONE)
            return
        tip = len(state.chain) - 1
        if tip >= self.bounds.commits or not self.rules.epochs:
            return
        head, answer = state.chain[-1], self.answer(state, tip, a)
        if answer is not None and answer[0] >= author.number:
            return  # Who commits reads the head, and learns it.
        if self.rules.withdrawals_expire and author.unapplied_at < head.first:
            return
        commit = Commit((), ((a, author.number),), head.first, head.floor, (), head.epoch)
        committed = self.with_commit(state, commit)
        yield f"withdraw{a}", committed  # The reply may be lost: it looks, as for any answer.
        if not self.rules.withdrawn_is_seen:
            # It tried upon what it knew; another's commit came first.
            yield f"assume{a}", self.tell(state, a, GONE)

    def tell(self, state: State, a: int, what: str) -> State:
        """A state in which an author knows the outcome of its operation."""
        author = state.authors[a]
        applied = [
            c
            for c in state.chain
            if any((b, n) == (a, author.number) for b, n, _ in c.applied)
            or (a, author.number) in c.plain
        ]
        if what == APPLIED and not applied:
            raise BrokenError("AckedIsThere")
        if what == APPLIED and self.told_ranges(state, a, author.number) is False:
            raise BrokenError("ToldItsOwn")
        if what == GONE and applied:
            raise BrokenError("GaveUpStays")
        self.reached.add(f"told {what}")
        if what == UNKNOWN and applied:
            self.reached.add("unknown, and there")
        return self.with_author(state, a, author._replace(told=(*author.told, what)))

    def told_ranges(self, state: State, a: int, n: int) -> bool | None:
        """Whether an author gets its own ranges; None if not by a proposal."""
        for version, commit in enumerate(state.chain):
            numbers = [(b, m) for b, m, _ in commit.applied]
            if (a, n) in numbers:
                named = (a, n) if self.rules.own_ranges else numbers[0]
                mine = self.ranges(state, version, a, n)
                return self.ranges(state, version, *named)[: len(mine)] == mine
        return None

    @staticmethod
    def with_author(state: State, a: int, author: Author) -> State:
        """The state with one author changed."""
        return state._replace(authors=(*state.authors[:a], author, *state.authors[a + 1 :]))


def explore(bounds: Bounds, rules: Rules | None = None) -> Found:
    """Visits every state within bounds, breadth first, until an invariant is violated."""
    return visit(Model(bounds, rules or Rules()))


def visit(model: Any, most: int = 10_000_000) -> Found:
    """Visits every state of a model, breadth first, until an invariant is violated."""
    start = model.first()
    came: dict[Any, tuple[Any, str] | None] = {start: None}
    waiting = deque([start])
    while waiting and len(came) < most:
        state = waiting.popleft()
        try:
            for name, there in model.steps(state):
                if there not in came:
                    came[there] = (state, name)
                    waiting.append(there)
        except BrokenError as broken:
            return Found(
                len(came), False, str(broken), history(came, state), frozenset(model.reached)
            )
    return Found(len(came), not waiting, None, (), frozenset(model.reached))


def history(came: dict, state: Any) -> tuple[str, ...]:
    """The steps that led to a state."""
    steps = []
    while (back := came[state]) is not None:
        state, name = back
        steps.append(name)
    return tuple(reversed(steps))


RULES = tuple(field.name for field in fields(Rules))
