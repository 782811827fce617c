"""Transactions over several logs: all of them show all of one, or none of it (S50)."""

from itertools import count

import pytest

from clog.storage import (
    InvalidInputError,
    Log,
    NotFoundError,
    TransactionFencedError,
    TransactionTimeoutError,
)
from clog.storage.env import SeededIds
from clog.storage.errors import CommitStateUnknownError, StoreUnavailableError
from clog.storage.format.commits import edit_of, read_commit
from clog.storage.format.transactions import COMMITTED, UNENDED_MAX
from clog.storage.transactions.ids import OPERATION, Part, prepared_part
from clog.storage.transactions.several import finish_all, finish_left
from clog_testing.counting import CountingStore
from clog_testing.crash import discard, memory_store
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log
from clog_testing.undecided import append_undecided


def rows(*values, key="k"):
    return [{"key": key, "value": value} for value in values]


@pytest.fixture
def stores():
    made = [memory_store() for _ in range(3)]
    yield made
    for store in made:
        discard(store)


@pytest.fixture
def logs(stores, clock):
    """The home, and two others."""
    return [
        Log.create(store, partitions=1, clock=clock, ids=SeededIds(seed))
        for seed, store in enumerate(stores)
    ]


@pytest.fixture
def reopened(stores, clock):
    """Opens them again, as another process would."""
    seeds = iter(range(100, 1000))
    return lambda: [Log.open(s, clock=clock, ids=SeededIds(next(seeds))) for s in stores]


def seen(logs, isolation="read_committed"):
    return [
        [v.decode() for b in log.read(isolation=isolation) for v in b.column("value").to_pylist()]
        for log in logs
    ]


def fill(t, logs):
    for log, value in zip(logs, "abc", strict=False):
        t.append(rows(value), log=log)


def unended(logs):
    return [[info.state for info in log.transactions()] for log in logs]


def test_all_of_it_or_nothing(logs, reopened, stores):
    """S50: each log has its records, and each says so; an abort leaves none of them anywhere."""
    with logs[0].transaction("job") as t:
        fill(t, logs)
        assert seen(reopened()) == [[], [], []]
    assert seen(logs) == seen(reopened()) == [["a"], ["b"], ["c"]]
    assert t.result.offsets == {0: (0, 1)}
    assert t.result.logs == {log.url: log.version for log in logs}
    t = logs[0].transaction("job")
    fill(t, logs)
    t.abort()
    assert seen(reopened()) == [["a"], ["b"], ["c"]]
    for store in stores:
        check_log(store)


def test_positions_come_with_it(logs):
    """S54: the home commits them with the outcome."""
    with logs[0].transaction("job") as t:
        t.append(rows("b"), log=logs[1])
        t.positions(logs[2], {0: 7})
    assert logs[0].positions("job") == {logs[2].id: {0: 7}}
    assert seen(logs) == [[], ["b"], []]


def test_costs(stores, clock):
    """Data and two commits in each log, once the id was taken over; nobody else pays anything."""
    counting = [CountingStore(store) for store in stores[:2]]
    made = [
        Log.create(store, partitions=1, clock=clock, ids=SeededIds(i))
        for i, store in enumerate(counting)
    ]
    with made[0].transaction("job") as t:
        fill(t, made)
    for store in counting:
        store.reset()
    with made[0].transaction("job") as t:
        fill(t, made)
    for store in counting:
        commits = store.counts["create"]
        assert (commits, store.counts["list"], store.counts["delete"]) == (2, 0, 0)
        hints = sum(v % 4 == 0 for v in (made[0].version, made[0].version - 1))
        assert store.counts["put"] <= 1 + 1 + hints
    while made[1].version % 4 != 0:
        made[1].append(rows("plain"))
    counting[1].reset()
    made[1].append(rows("plain"))
    assert counting[1].counts == {"put": 1, "create": 1, "get": 1}


def test_undecided_in_between(logs, reopened):
    """S50: after X1 and X2 nothing is visible, and each log can report what waits."""
    store = FaultyStore(logs[0].handle.standing.root, clock=logs[0].handle.clock)
    home = Log.open(store, clock=logs[0].handle.clock, ids=SeededIds(77))
    t = home.transaction("job")
    fill(t, [home, *logs[1:]])
    # X1 passes, and then the home is away.
    store.plan = Faults(Fault(FaultKind.FAIL_BEFORE, "create", "*/commits/*", nth=2, times=99))
    with pytest.raises(CommitStateUnknownError):
        t.commit()
    store.plan = Faults()
    others = reopened()
    assert seen(others) == [[], [], []]
    assert seen(others, "read_uncommitted") == [[], ["b"], ["c"]]
    assert unended(others) == [["prepared"], ["prepared"], ["prepared"]]
    assert [log.stable_offsets() for log in others] == [{0: 0}] * 3
    (info,) = others[1].transactions()
    assert (info.id, info.first_offsets, info.home) == ("job", {0: 0}, home.url)
    t.commit()
    assert seen(reopened()) == [["a"], ["b"], ["c"]]


def test_a_commit_in_doubt_stays_so(logs, reopened):
    """S50: the home has decided, and its reply was lost; that it cannot be reached when the
    transaction is committed again does not mean that nothing is committed.
    """
    clock = logs[0].handle.clock
    stores = [FaultyStore(log.handle.standing.root, clock=clock) for log in logs]
    home, *parts = (Log.open(s, clock=clock, ids=SeededIds(70 + i)) for i, s in enumerate(stores))
    t = home.transaction("job")
    fill(t, [home, *parts])
    lost = Fault(FaultKind.FAIL_AFTER, "create", "*/commits/*", nth=2)
    stores[0].plan = Faults(lost, Fault(FaultKind.FAIL_BEFORE, "get", "*/commits/*", times=99))
    with pytest.raises(CommitStateUnknownError):
        t.commit()
    assert seen(reopened())[0] == ["a"]
    clock.advance(30_000)  # So that it is asked first whether the log still stands.
    stores[0].plan = Faults(Fault(FaultKind.FAIL_BEFORE, "get", times=99))
    with pytest.raises(CommitStateUnknownError, match="still unknown"):
        t.commit()
    stores[0].plan = Faults()
    t.commit()
    assert seen(reopened()) == [["a"], ["b"], ["c"]]


def left(logs, *, after):
    """A transaction whose holder died: after the home's ``prepare``, or after its ``decision``."""
    home = FaultyStore(logs[0].handle.standing.root, clock=logs[0].handle.clock)
    parts = [FaultyStore(log.handle.standing.root, clock=log.handle.clock) for log in logs[1:]]
    opened = [
        Log.open(s, clock=logs[0].handle.clock, ids=SeededIds(50 + i))
        for i, s in enumerate([home, *parts])
    ]
    t = opened[0].transaction("job", timeout_ms=5000)
    fill(t, opened)
    if after == "prepare":
        home.plan = Faults(Fault(FaultKind.FAIL_BEFORE, "create", "*/commits/*", nth=2, times=99))
        with pytest.raises(CommitStateUnknownError):
            t.commit()
        home.plan = Faults()
    else:
        for part in parts:
            rule = Fault(FaultKind.FAIL_BEFORE, "create", "*/commits/*", nth=2, times=99)
            part.plan = Faults(rule)
        t.commit()
        for part in parts:
            part.plan = Faults()
    return t


@pytest.mark.parametrize("by", [0, 1, 2])
def test_anybody_finishes_what_is_decided(logs, reopened, stores, by):
    """C15: the home, or a participant, asks the home and continues, without waiting."""
    left(logs, after="decision")
    assert seen(reopened()) == [["a"], [], []]
    finisher = reopened()[by]
    assert finish_all(finisher.handle) == []
    for log in reopened():
        finish_all(log.handle)
    assert seen(reopened()) == [["a"], ["b"], ["c"]]
    assert finish_all(reopened()[0].handle) == []
    assert unended(reopened()) == [[], [], []]
    for store in stores:
        check_log(store)


@pytest.mark.parametrize("by", [0, 1, 2])
def test_anybody_aborts_past_the_timeout(logs, reopened, stores, clock, by):
    """C14: not before it; then the home decides, once, and the holder gets the result when it
    commits.
    """
    t = left(logs, after="prepare")
    (waiting,) = finish_all(reopened()[by].handle)
    assert "until 5000 ms after it began" in waiting.reason
    clock.advance(5001)
    finish_all(reopened()[by].handle)
    for log in reopened():
        finish_all(log.handle)
    assert unended(reopened()) == [[], [], []]
    with pytest.raises(TransactionTimeoutError):
        t.commit()
    assert seen(reopened()) == [[], [], []]
    for store in stores:
        check_log(store)


def test_a_takeover_ends_what_was_left_open(logs, reopened, stores):
    """S48, C14: at once; the former holder of the id is fenced, however late it comes."""
    t = left(logs, after="prepare")
    again = reopened()
    with again[0].transaction("job") as taken:
        taken.append(rows("z"), log=again[1])
    assert seen(reopened()) == [[], ["z"], []]
    with pytest.raises((TransactionFencedError, CommitStateUnknownError), match="epoch 1"):
        t.commit()
    assert seen(reopened()) == [[], ["z"], []]
    assert unended(reopened())[1:] == [[], []]
    for store in stores:
        check_log(store)


@pytest.mark.parametrize("place", range(3))
def test_a_takeover_amid_a_commit(logs, reopened, stores, clock, place):
    """S48: between whichever two requests to a log the id is taken over, its holder's commit is
    there, or it gets the error that it is fenced: what its successor ended did not time out.
    """
    outcomes = []
    for nth in count(1):
        hit, taken = FaultyStore(stores[place]), []
        mine = reopened()
        mine[place] = Log.open(hit, clock=clock, ids=SeededIds(2000 + nth))
        t = mine[0].transaction("job")
        for log in mine:
            t.append(rows(str(nth)), log=log)

        def take_up(taken=taken):
            taken.append(reopened()[0].transaction("job"))

        before = seen(reopened())
        hit.plan = Faults(Fault(FaultKind.MEANWHILE, nth=nth, run=take_up))
        try:
            t.commit()
            outcomes.append("committed")
        except TransactionFencedError:
            outcomes.append("fenced")
        added = [str(nth)] if outcomes[-1] == "committed" else []
        if not taken:
            break
        assert seen(reopened()) == [values + added for values in before]
    assert {"committed", "fenced"} <= set(outcomes)
    for store in stores:
        check_log(store)


def test_a_takeover_ends_nothing_that_is_newer(logs, reopened):
    """S48: a holder that was slow to end what it found is fenced by then, and leaves the next
    holder's transaction alone.
    """
    slow, newer = logs[0], reopened()[0]
    epoch = slow.transaction("job").epoch
    t = newer.transaction("job", visible=True)
    t.append(rows("v"))
    slow.handle.refresh()
    finish_left(slow.handle, "job", epoch=epoch)
    t.commit()
    assert seen(reopened())[0] == ["v"]


def test_a_late_prepare_is_refused(logs, reopened, clock):
    """H-T3: a delayed holder's records come after its transaction was aborted, at a participant
    that did not know of it.
    """
    t = left(logs, after="prepare")
    discarded = logs[1].transactions()[0]
    clock.advance(5001)
    for log in reopened():
        finish_all(log.handle)
    name = edit_of(logs[0].handle.store, read_commit(logs[0].handle.store, 2).record).unended[0]
    part = Part(logs[2].handle, list(t._work.several.parts[1].objects))
    prepare = prepared_part(
        part, name.entry.name, logs[0].url, timeout_ms=5000, check_time=lambda: None
    )
    with pytest.raises(TransactionTimeoutError, match="was aborted, because"):
        part.handle.commit(prepare, operation=OPERATION)
    assert discarded.id == "job"


def test_a_home_that_is_gone(logs, reopened, stores):
    """H-T5: nothing is guessed; the stable offset stays, with the reason, until an operator forces
    it; a home that comes back and had committed is a contradiction, and is reported.
    """
    left(logs, after="decision")
    kept = {found.path: stores[0].get(found.path) for found in stores[0].list("")}
    discard(stores[0])
    part = Log.open(stores[1], clock=logs[1].handle.clock, ids=SeededIds(9))
    (waiting,) = finish_all(part.handle)
    assert "its outcome cannot be read from" in waiting.reason
    assert part.stable_offsets() == {0: 0}
    with pytest.raises(InvalidInputError, match="abort it by force"):
        part.abort_transaction("job")
    (ended,) = part.abort_transaction("job", force=True)
    assert (ended.id, part.stable_offsets(), seen([part])) == ("job", {0: 2}, [[]])
    for path, data in kept.items():
        stores[0].put(path, data)
    home = reopened()[0]
    (waiting,) = finish_all(home.handle)
    assert "an operator had aborted it by force" in waiting.reason


def test_a_home_that_was_recreated(logs, stores, clock):
    """S50: another log at its URL is not its home; nothing is guessed."""
    left(logs, after="decision")
    discard(stores[0])
    Log.create(stores[0], partitions=1, clock=clock, ids=SeededIds(99))
    (waiting,) = finish_all(Log.open(stores[1], clock=clock, ids=SeededIds(9)).handle)
    assert "another log is at" in waiting.reason


def test_a_home_restored_from_before(logs, stores, clock):
    """A home that does not know the transaction decides nothing."""
    before = {found.path: stores[0].get(found.path) for found in stores[0].list("")}
    left(logs, after="decision")
    discard(stores[0])
    for path, data in before.items():
        stores[0].put(path, data)
    (waiting,) = finish_all(Log.open(stores[1], clock=clock, ids=SeededIds(9)).handle)
    assert "does not know transaction 0" in waiting.reason


@pytest.mark.parametrize("by", [0, 1])
def test_a_transaction_that_ended_while_somebody_looked_at_it(logs, reopened, by):
    """A process that knows it as undecided, and finds that the home has forgotten it because it has
    ended everywhere and others of its id followed, says nothing: no log was restored, and there is
    nothing to abort by force.
    """
    left(logs, after="decision")
    late = reopened()[by]
    for log in reopened():
        finish_all(log.handle)
    for _ in range(2):
        with reopened()[0].transaction("job") as t:
            t.append(rows("later"))
    assert finish_all(late.handle) == []


def test_force_asks_the_home_first(logs, reopened):
    """H-T5: an existing outcome is used, even with force."""
    left(logs, after="decision")
    reopened()[1].abort_transaction("job", force=True)
    assert seen(reopened()) == [["a"], ["b"], []]


def test_an_operator_does_not_wait(logs, reopened):
    """Undecided ones are aborted before their timeout, from whichever log."""
    t = left(logs, after="prepare")
    reopened()[1].abort_transaction("job")
    assert unended(reopened())[1] == []
    with pytest.raises(TransactionTimeoutError):
        t.commit()
    assert seen(reopened()) == [[], [], []]
    with pytest.raises(NotFoundError, match="no open transaction with id 'job'"):
        reopened()[1].abort_transaction("job")


def test_a_participant_that_is_away(logs, reopened, clock):
    """Before the decision: nothing is committed, and it may be retried. After it: it is
    committed.
    """
    store = FaultyStore(logs[1].handle.standing.root, clock=clock)
    part = Log.open(store, clock=clock, ids=SeededIds(5))
    t = logs[0].transaction("job")
    fill(t, [logs[0], part])
    store.plan = Faults(Fault(FaultKind.FAIL_BEFORE, "create", "*/commits/*", times=99))
    with pytest.raises((CommitStateUnknownError, StoreUnavailableError)):
        t.commit()
    assert seen(reopened()) == [[], [], []]
    store.plan = Faults()
    t.commit()
    assert seen(reopened()) == [["a"], ["b"], []]


def test_a_participant_that_refuses(logs, reopened, stores):
    """Records that its configs refuse by now: the transaction is aborted everywhere."""
    t = logs[0].transaction("job")
    fill(t, logs)
    reopened()[2].alter({"max.message.bytes": 12})
    with pytest.raises(InvalidInputError, match=r"max\.message\.bytes"):
        t.commit()
    assert unended(reopened())[1:] == [[], []]
    assert seen(reopened()) == [[], [], []]
    with pytest.raises(InvalidInputError, match="has ended: it is aborted"):
        t.commit()
    with logs[0].transaction("job") as again:
        again.append(rows("z"), log=logs[1])
    assert seen(reopened()) == [[], ["z"], []]


def test_a_participant_that_was_recreated(logs, stores, clock):
    """Nothing is written into the one that stands there."""
    t = logs[0].transaction("job")
    fill(t, logs)
    discard(stores[1])
    new = Log.create(stores[1], partitions=1, clock=clock, ids=SeededIds(99))
    with pytest.raises(NotFoundError):
        t.commit()
    assert (seen([new]), new.version, seen([logs[0], logs[2]])) == ([[]], 0, [[], []])


def test_one_log_under_two_names(logs, stores, clock):
    """The home, or a participant, opened a second time."""
    t = logs[0].transaction("job")
    again = Log.open(stores[0], clock=clock, ids=SeededIds(5))
    with pytest.raises(InvalidInputError, match="is the log in which the transaction was begun"):
        t.append(rows("x"), log=again)
    copy = memory_store()
    for found in stores[1].list(""):
        copy.put(found.path, stores[1].get(found.path))
    t.append(rows("b"), log=logs[1])
    with pytest.raises(InvalidInputError, match="are the same log"):
        t.append(rows("x"), log=Log.open(copy, clock=clock, ids=SeededIds(6)))
    t.append(rows("c"), log=Log.open(stores[1], clock=clock, ids=SeededIds(7)))
    t.commit()
    assert seen(logs) == [[], ["b", "c"], []]
    discard(copy)


def test_no_more_than_can_be_listed(logs):
    """H-T6: the list in the head has a limit, and it is told."""
    for number in range(UNENDED_MAX):
        append_undecided(logs[1], rows("x"), number=number)
    t = logs[0].transaction("job")
    fill(t, logs)
    with pytest.raises(Exception, match=f"{UNENDED_MAX} transactions of .* have not ended"):
        t.commit()


def test_the_home_forgets_once_all_know(logs):
    """X5: with the next transaction of the id, in the same commit."""
    for _ in range(3):
        with logs[0].transaction("job") as t:
            fill(t, logs)
        (info,) = logs[0].transactions()
        assert (info.state, info.number) == (COMMITTED, t.number)
    assert len(logs[0].handle.tip.head.unended) == 1


@pytest.mark.nightly
def test_many_ids_have_room(logs):
    """Those that have ended everywhere do not wait in the home for their next transaction, or the
    home would be full of them.
    """
    for number in range(UNENDED_MAX + 6):
        with logs[0].transaction(f"job-{number}") as t:
            t.append(rows(str(number)), log=logs[1])
    assert len(seen(logs)[1]) == UNENDED_MAX + 6
    assert len(logs[0].transactions()) <= UNENDED_MAX // 2 + 1
    for store in logs:
        check_log(store.handle.standing.root, every_version=False)


@pytest.mark.parametrize("is_visible", [False, True])
@pytest.mark.parametrize("do", ["commit", "abort"])
def test_a_zombie_is_told_that_nothing_was_committed(logs, reopened, do, is_visible):
    """S48: also if whoever took over the id has committed since; and it does not take it over
    again.
    """
    t = logs[0].transaction("job", visible=is_visible)
    if is_visible:
        t.append(rows("zombie"))
    else:
        fill(t, logs)
    newer = reopened()
    with newer[0].transaction("job") as other:
        fill(other, newer)
    if do == "commit":
        for _ in range(2):
            with pytest.raises(TransactionFencedError, match="nothing of th"):
                t.commit()
    else:
        t.abort()
    with pytest.raises(TransactionFencedError), logs[0].transaction("job") as zombie:
        zombie.append(rows("zombie"))
    with newer[0].transaction("job") as other:
        fill(other, newer)
    assert seen(logs) == [["a", "a"], ["b", "b"], ["c", "c"]]


def test_one_that_was_left_open_does_not_take_the_id_back(logs, reopened):
    """S48: a job that starts again after an error, and was replaced meanwhile, gets the error."""
    logs[0].transaction("job").append(rows("left"))
    newer = reopened()[0].transaction("job")
    for _ in range(2):
        with pytest.raises(TransactionFencedError, match="to take it back, open the log again"):
            logs[0].transaction("job")
    newer.append(rows("a"))
    newer.commit()
    assert seen(logs)[0] == ["a"]


def test_an_interrupted_commit_is_in_doubt(logs, reopened, stores, clock):
    """Whatever ends it: then no error says that nothing was committed."""

    class Interrupted(FaultyStore):
        def create(self, path, data):
            super().create(path, data)
            if "/commits/" in path and self.plan is interrupting:
                raise KeyboardInterrupt

    interrupting = Faults()
    home = Log.open(Interrupted(stores[0]), clock=clock, ids=SeededIds(99))
    t = home.transaction("job")
    t.append(rows("a"))
    prepare = t._work.several.prepare

    def prepared(*args):
        done = prepare(*args)
        home.handle.standing.root.plan = interrupting
        return done

    t._work.several.prepare = prepared
    t.append(rows("b"), log=logs[1])
    with pytest.raises(KeyboardInterrupt):
        t.commit()
    home.handle.standing.root.plan = Faults()
    newer = reopened()
    with newer[0].transaction("job") as other:
        fill(other, newer)
    with pytest.raises(CommitStateUnknownError, match="is not known"):
        t.abort()
    assert seen(logs) == [["a", "a"], ["b", "b"], ["c"]]
