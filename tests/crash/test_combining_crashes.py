"""Crash enumeration of combining (COMMIT.md §14, C31 to C36): who proposes, combines, gives up or
ends another's operation dies at each call of the store, or lives on with a reply that was lost.

Then everybody goes on: those that waited, those that come later, who lives on, and the successor of
who died. What was acknowledged is there once, where it was said to be, and in its author's order;
what was refused is not; all else is there once at most.
"""

from collections import Counter
from dataclasses import dataclass, field

import pytest

from clog.storage import (
    AppendResult,
    ClogError,
    CommitStateUnknownError,
    InvalidInputError,
    Log,
)
from clog.storage.commit import combining
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog_testing.crash import crash_runs, discard, memory_store, unlike
from clog_testing.delaying import Sleeper
from clog_testing.faults import CrashedError, FaultyStore
from clog_testing.invariants import check_log
from clog_testing.model import rows_in

START_MS = 1_000_000
LONG = "x" * 80
PRODUCER = ("p", 5)


@dataclass(eq=False)
class Ended:
    """What a run came to.

    Attributes:
        value: what who was hit appended, if anything.
        log: its handle.
        told: what it was told: a result or an error; None: it was killed.
        others: by value what others were told, who waited meanwhile.
        calls: its calls of the store.
    """

    value: str | None
    log: Log | None = None
    told: object = None
    others: dict = field(default_factory=dict)
    calls: list = field(default_factory=list)

    @property
    def duplicate(self):
        """How it ended, for `unlike`."""
        return type(self.told), *sorted(self.others)


def begin(store):
    Log.create(store, 1, clock=Sleeper(START_MS), ids=SeededIds(1))


def author(store, seed):
    return Log.open(store, clock=Sleeper(START_MS), ids=SeededIds(seed))


def append(log, value, producer=None):
    return log.append([{"key": "k", "value": value}], producer=producer)


def combine(store, value, seed):
    """An append that combines, by an author that lost a race."""
    log = author(store, seed)
    append(author(store, seed + 1), f"race of {value}")
    return append(log, value)


def hit(store, ended, act):
    """Performs what may be hit: an action by an author that has just lost a race."""
    ended.calls = store.calls
    try:
        log = author(store, 2)
        append(author(store.inner, 3), "race")
        ended.log = log
        ended.told = act(log) or "done"
    except CrashedError:
        pass
    except ClogError as e:
        ended.told = e
    return ended


def interrupt():
    raise KeyboardInterrupt


def proposes_alone(store, *, meanwhile=None, producer=None):
    """F1 to F4: nobody else is there, so its author combines."""

    def act(log):
        if meanwhile is not None:
            log.handle.clock.during.append(lambda: meanwhile(store.inner))
        return append(log, "old", producer)

    return hit(store, Ended("old"), act)


def proposes_and_is_taken(store, **given):
    """F1, F2, F4: another author includes it."""
    return proposes_alone(store, meanwhile=lambda inner: combine(inner, "taker", 40), **given)


def proposes_as_a_producer(store):
    """The same under a sequence."""
    return proposes_and_is_taken(store, producer=PRODUCER)


def proposes_anew(store):
    """F4: nobody includes it, versions pass, and it is posted again."""

    def pass_by(inner):
        for n in range(2):
            append(author(inner, 80 + n), f"passes {n}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(combining, "_NEAR", 1)
        return proposes_alone(store, meanwhile=pass_by)


def combines(store, act=append, value="mine", crowd=0):
    """F3: two others wait, who lost a race against many."""
    a, b = author(store.inner, 30), author(store.inner, 31)
    ended = Ended(value)
    append(author(store.inner, 32), "race of others")
    for n in range(crowd):
        combine(store.inner, f"before {n}", 90 + 2 * n)

    def second():
        b.handle.clock.during.append(lambda: hit(store, ended, lambda log: act(log, "mine")))
        ended.others["b"] = append(b, "b")

    a.handle.clock.during.append(second)
    ended.others["a"] = append(a, "a", ("q", 1))
    return ended


def combines_by_an_alter(store):
    """F3: a commit that is not an append, when two authors were answered recently."""
    return combines(store, lambda log, _: log.alter({"retention.ms": "500000"}), None, 2)


def gives_up(store):
    """F5: the head refuses what was posted."""

    def act(log):
        limit = {"max.message.bytes": "60"}
        log.handle.clock.during.append(lambda: author(store.inner, 40).alter(limit))
        return append(log, LONG)

    return hit(store, Ended(LONG), act)


def ends_anothers(store):
    """F6: what a dead process left under a producer's id."""
    left = author(store.inner, 30)
    append(author(store.inner, 31), "race of another")
    left.handle.clock.during.append(interrupt)
    with pytest.raises(KeyboardInterrupt):
        append(left, "old", PRODUCER)
    return hit(store, Ended(None), lambda log: (log.sequence("p"),))


SCENARIOS = {
    "proposes alone": (proposes_alone, {"C31", "C32"}),
    "proposes and is taken": (proposes_and_is_taken, {"C31", "C32"}),
    "proposes as a producer": (proposes_as_a_producer, {"C31", "C32"}),
    "proposes anew": (proposes_anew, {"C31", "C32"}),
    "combines": (combines, {"C31", "C33", "C34"}),
    "combines by an alter": (combines_by_an_alter, {"C33", "C34"}),
    "gives up": (gives_up, {"C31", "C35", "C36"}),
    "ends another's": (ends_anothers, {"C35", "C36"}),
}
POSTED = {"combines by an alter", "ends another's"}
"""What is at stake is another's, and is there from the beginning."""
AT_NIGHT = {"proposes alone", "proposes and is taken", "proposes anew", "combines by an alter"}


def commits_of(act):
    """How many commits an action tries to create if nothing is hit."""
    store = memory_store()
    begin(store)
    ended = act(FaultyStore(store))
    discard(store)
    return len(created(ended.calls, documents.COMMITS))


def created(calls, folder):
    return [c for c in calls if c.operation == "create" and f"/{folder}" in c.path]


def point_of(name, run, most):
    """The point of COMMIT.md §14 at which a call was hit, from what was done before it; ``most``:
    how many commits the action creates.
    """
    before = run.result.calls[: run.call.index + run.done]
    has_committed = len(created(before, documents.COMMITS)) == most
    has_begun = name in POSTED or created(before, documents.PROPOSALS)
    if not has_begun:
        return "C31"
    if name.startswith("combines"):
        return "C34" if has_committed else "C33"
    if name.startswith("proposes"):
        return "C32"
    return "C36" if has_committed else "C35"


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.nightly] * (n in AT_NIGHT)) for n in SCENARIOS],
)
def test_whoever_dies_everybody_goes_on(name):
    """C31 to C36: nothing is lost, duplicated or out of order."""
    act, points = SCENARIOS[name]
    seen, most = Counter(), commits_of(act)
    for run in unlike(crash_runs(begin, act)):
        point, found = point_of(name, run, most), values_of(run)
        check_told(run, found)
        if point == "C31" and run.result.told is None:
            assert run.result.value not in found, str(run)
        if point == "C34":
            assert {"a", "b"} <= set(found), str(run)
        go_on(run, name, point)
        seen[point] += 1
        discard(run.store)
    assert points == set(seen), seen


def values_of(run):
    """The values of the log, in the order of their offsets."""
    return [row[2].value.decode() for row in rows_in(author(run.store, 50).read())]


def check_told(run, found):
    """What everybody was told is true for these values of the log."""
    mine = run.result
    assert max(Counter(found).values(), default=0) <= 1, (str(run), found)
    for value, done in {**mine.others, mine.value: mine.told}.items():
        if isinstance(done, AppendResult):
            assert found[done.offsets[0][0]] == value, (str(run), found)
        elif isinstance(done, ClogError) and not isinstance(done, CommitStateUnknownError):
            assert value not in found, f"{run}: {done}"


def go_on(run, name, point):
    """Others combine, the survivor appends what comes next, a successor repeats a sequence."""
    mine = run.result
    if name == "gives up":
        author(run.store, 60).alter({"max.message.bytes": None})
    lives = mine.log is not None and mine.told is not None
    if lives:
        append(mine.log, "next")
    for n in range(2):
        combine(run.store, f"later {n}", 70 + 2 * n)
    found = values_of(run)
    check_told(run, found)
    if lives and mine.value in found:
        assert found.index(mine.value) < found.index("next"), (str(run), found)
    if point == "C36":
        assert not {mine.value, "old"} & set(found), (str(run), found)
    if name == "proposes as a producer":
        again = append(author(run.store, 80), "old", PRODUCER)
        assert again.duplicate == ("old" in found), str(run)
        assert values_of(run).count("old") == 1, str(run)
    if name == "ends another's":
        check_successor(run, found)
    check_log(run.store, every_version=False)


def check_successor(run, found):
    """A producer that continues from what the sequence was is not overtaken."""
    was_there, successor = "old" in found, author(run.store, 80)
    assert not (was_there and run.result.told == (None,)), str(run)
    if was_there:
        with pytest.raises(InvalidInputError, match="repeats sequence 5"):
            append(successor, "new", PRODUCER)
    else:
        assert not append(successor, "new", PRODUCER).duplicate, str(run)
