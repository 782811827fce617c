"""Deferred transactions in one log: all of one is there, or nothing (S48, S49)."""

import os
from contextlib import suppress

import numpy as np
import pytest

from clog.storage import (
    ClogError,
    CommitStateUnknownError,
    InvalidInputError,
    Log,
    LogReplacedError,
    TransactionFencedError,
    TransactionResult,
    TransactionTimeoutError,
)
from clog.storage.env import SeededIds
from clog.storage.format.commits import Edit, head_to_json
from clog.storage.format.transactions import TRANSACTION, Committed
from clog.storage.format.writers import WRITERS_MAX
from clog.storage.objects.records import to_records
from clog.storage.store.contract import WrappingStore
from clog.storage.transactions import transaction
from clog.storage.transactions.ids import ID_BYTES_MAX
from clog.storage.transactions.transaction import TIMEOUT_MS_MAX, Holders
from clog_testing.counting import CountingStore
from clog_testing.crash import discard, inside, memory_store
from clog_testing.faults import HAPPENED, NEVER_CAME, Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log

DAY_MS = 86_400_000


def rows(*values, key="k"):
    return [{"key": key, "value": value} for value in values]


def state_of(log, name="job"):
    """What the newest head says of an id."""
    head = log.handle.refresh().head
    (entry,) = [w for w in head.writers if w.key == (TRANSACTION, name)]
    return entry.transaction


def in_doubt(log, faulty, *rules):
    """A transaction whose commit was tried, and whose result could not be determined."""
    t = log.transaction("job")
    t.append(rows("doubt"))
    faulty.plan = Faults(*rules)
    with pytest.raises(CommitStateUnknownError):
        t.commit()
    faulty.plan = Faults()
    return t


def test_all_of_it_at_once(make_log, open_log, values_of, store):
    """S49: several appends to several partitions, one commit; a part of it is never visible."""
    log, other = make_log(partitions=2), open_log()
    log.append(rows("before"), partition=0)
    with log.transaction("job") as t:
        t.append(rows("a", "b"), partition=0)
        t.append(rows("c"), partition=1)
        t.append(rows("d"), partition=0)
        t.append([])
        assert values_of(other) == [b"before"]
        assert log.version == 2
    assert t.result == TransactionResult(3, {0: (1, 4), 1: (0, 1)}, {log.url: 3})
    assert values_of(other) == [b"before", b"a", b"b", b"d", b"c"]
    assert t.commit() == t.result
    assert other.table().get("k") is not None
    check_log(store)


def appends_and_fails(transaction):
    with transaction as t:
        t.append(rows("b"))
        raise ZeroDivisionError


def test_an_abort_leaves_nothing(make_log, values_of, store):
    """S49: nor does an exception in a ``with`` statement, which propagates; the id stays usable."""
    log = make_log()
    t = log.transaction("job")
    t.append(rows("a"))
    t.abort()
    t.abort()
    with pytest.raises(ZeroDivisionError):
        appends_and_fails(log.transaction("job"))
    with log.transaction("job") as t:
        t.append(rows("c"))
    with log.transaction("job") as t:
        t.append(rows("d"))
        t.abort()
    assert values_of(log) == [b"c"]
    assert state_of(log).committed == Committed(epoch=0, number=2, version=2)
    check_log(store)


def test_a_takeover_fences_the_holder(make_log, open_log, values_of):
    """S48: its commit fails, and so does its next append once it has seen the takeover."""
    log, other = make_log(), open_log()
    slow = log.transaction("job")
    slow.append(rows("slow"))
    with other.transaction("job") as t:
        t.append(rows("fast"))
    assert (t.epoch, t.number) == (1, 0)
    with pytest.raises(
        TransactionFencedError, match=r"it is at epoch 1, but this holder has epoch 0"
    ):
        slow.commit()
    for use in (slow.commit, lambda: slow.append(rows("more"))):
        with pytest.raises(TransactionFencedError):
            use()
    with pytest.raises(TransactionFencedError, match="to take it back, open the log again"):
        log.transaction("job")
    late = other.transaction("job")
    late.append(rows("late"))
    with open_log().transaction("job") as again:
        again.append(rows("again"))
    assert again.epoch == 2
    assert other.version == 5
    with pytest.raises(TransactionFencedError):
        late.append(rows("later"))
    assert values_of(log) == [b"fast", b"again"]


def test_a_takeover_between_the_tries_of_a_commit(make_log, open_log, store, values_of):
    """S48: a race lost to it, the worst moment, is detected in K2 of the next try."""
    log = make_log()
    faulty = FaultyStore(store)
    slow = open_log(faulty)
    t = slow.transaction("job")
    t.append(rows("slow"))
    faulty.plan = Faults(
        Fault(
            FaultKind.MEANWHILE,
            "create",
            "*/commits/*",
            run=lambda: log.transaction("job"),
        )
    )
    with pytest.raises(TransactionFencedError):
        t.commit()
    assert values_of(log) == []


def test_one_that_begins_while_another_is_open(make_log, values_of):
    """S48: within one handle too: the one that was left open is fenced."""
    log = make_log()
    left = log.transaction("job")
    left.append(rows("left"))
    with log.transaction("job") as t:
        t.append(rows("new"))
    with pytest.raises(TransactionFencedError):
        left.commit()
    assert (t.epoch, t.number) == (1, 0)
    assert values_of(log) == [b"new"]
    other = log.transaction("other")
    with log.transaction("job") as t:
        t.append(rows("newer"))
    assert (t.epoch, t.number, other.is_open) == (1, 1, True)


def test_open_transactions_are_listed(make_log, clock):
    """Those of the handle: nobody else can know them."""
    log = make_log()
    first = log.transaction("a")
    clock.advance(5)
    second = log.transaction("b")
    found = log.transactions()
    assert [(i.id, i.epoch, i.number, i.state, i.first_offsets) for i in found] == [
        ("a", 0, 0, "open", {}),
        ("b", 0, 0, "open", {}),
    ]
    assert found[1].started_ms - found[0].started_ms == 5
    first.abort()
    second.commit()
    assert log.transactions() == []


def test_one_without_content_commits_nothing(make_log, open_log):
    """Empty ones do not fill the log (KAFKA-10702), and report a takeover all the same."""
    log = make_log()
    with log.transaction("job") as t:
        pass
    assert (t.result, log.version) == (TransactionResult(1, {}, {log.url: 1}), 1)
    t = log.transaction("job")
    open_log().transaction("job")
    with pytest.raises(TransactionFencedError):
        t.commit()


@pytest.mark.parametrize("rules", [HAPPENED, NEVER_CAME], ids=["happened", "never came"])
def test_a_commit_in_doubt_is_committed_again(make_log, open_log, store, values_of, rules):
    """C6, C13: it is there once, and the result is the first one's."""
    make_log()
    faulty = FaultyStore(store)
    log = open_log(faulty)
    t = in_doubt(log, faulty, *rules)
    with pytest.raises(
        InvalidInputError, match=r"outcome .* is not known, so nothing can be added"
    ):
        t.append(rows("more"))
    assert t.commit() == TransactionResult(2, {0: (0, 1)}, {log.url: 2})
    with log.transaction("job") as t:
        t.append(rows("next"))
    assert values_of(log) == [b"doubt", b"next"]
    check_log(store)


def test_an_abort_in_doubt_finds_that_it_is_committed(make_log, open_log, store, values_of):
    """H-T13: the state is read first; it can no longer be undone."""
    make_log()
    faulty = FaultyStore(store)
    log = open_log(faulty)
    t = in_doubt(log, faulty, *HAPPENED)
    with pytest.raises(InvalidInputError, match=r"is committed to .* in version 2, and cannot"):
        t.abort()
    assert t.result.offsets == {0: (0, 1)}
    assert values_of(log) == [b"doubt"]


def test_a_transaction_keeps_its_own_result(make_log):
    """A caller may modify the offsets that a commit returned: the transaction, and a repeated
    commit, still have the right ones.
    """
    log = make_log()
    t = log.transaction("job")
    t.append(rows("one"))
    t.commit().offsets.clear()
    t.result.logs.clear()
    assert t.commit() == t.result
    assert (t.result.offsets, t.result.logs) == ({0: (0, 1)}, {log.url: 2})


def test_a_late_commit_of_one_that_was_aborted(make_log, open_log, store, values_of):
    """H-T13: the create that is still under way finds its version taken."""
    make_log()
    late = {}

    class Slow(FaultyStore):
        def create(self, path, data):
            if "/commits/" in path and path not in late and b'"operation":"append"' in data:
                late[path] = data
            super().create(path, data)

    faulty = Slow(store)
    log = open_log(faulty)
    t = in_doubt(log, faulty, *NEVER_CAME)
    t.abort()
    ((path, data),) = late.items()
    with pytest.raises(FileExistsError):
        store.create(path, data)
    with pytest.raises(InvalidInputError, match="it is aborted"):
        t.commit()
    with log.transaction("job") as t:
        t.append(rows("next"))
    assert (t.epoch, values_of(log)) == (2, [b"next"])


@pytest.mark.parametrize("rules", [HAPPENED, NEVER_CAME], ids=["happened", "never came"])
def test_one_that_stays_in_doubt(make_log, open_log, store, values_of, rules):
    """While the store fails nobody knows more: no other error that would say that it did not
    happen.
    """
    make_log()
    faulty = FaultyStore(store)
    log = open_log(faulty)
    t = in_doubt(log, faulty, *rules)
    for end in (t.commit, t.abort, t.commit):
        faulty.plan = Faults(Fault(FaultKind.FAIL_BEFORE, times=99))
        with pytest.raises(CommitStateUnknownError, match=r"is still unknown|is unknown"):
            end()
    faulty.plan = Faults()
    t.commit()
    assert values_of(log) == [b"doubt"]


@pytest.mark.parametrize("reads", range(8))
@pytest.mark.parametrize("commits", [0, 1, 2])
def test_one_that_happened_is_never_told_to_be_aborted(make_log, open_log, store, commits, reads):
    """However little can be read: it may be found, and its offsets cannot be read then."""
    make_log()
    faulty = FaultyStore(store)
    t = in_doubt(open_log(faulty), faulty, *HAPPENED)
    for _ in range(commits):
        faulty.plan = Faults(Fault(FaultKind.FAIL_BEFORE, nth=reads + 1, times=99))
        with suppress(CommitStateUnknownError):
            assert t.commit().version == 2
    for plan in (Faults(Fault(FaultKind.FAIL_BEFORE, nth=reads + 1, times=99)), Faults()):
        faulty.plan = plan
        with pytest.raises((InvalidInputError, CommitStateUnknownError)) as told:
            t.abort()
    told.match(r"is committed to .* in version 2, and cannot be aborted")


@pytest.mark.parametrize("rules", [HAPPENED, NEVER_CAME], ids=["happened", "never came"])
def test_a_takeover_of_one_in_doubt(make_log, open_log, store, values_of, rules):
    """H-T12: what was committed last is kept separately from the epoch, so the fenced one learns
    what happened to it.
    """
    other = make_log()
    faulty = FaultyStore(store)
    log = open_log(faulty)
    t = in_doubt(log, faulty, *rules)
    other.transaction("job")
    if rules is HAPPENED:
        assert t.commit().version == 2
    else:
        with pytest.raises(TransactionFencedError):
            t.commit()
    assert values_of(log) == [b"doubt"] * (rules is HAPPENED)


def test_one_in_doubt_that_nobody_can_tell_of(make_log, open_log, store):
    """The next epoch has committed since: the error says that nobody knows, and nothing
    is guessed.
    """
    other = make_log()
    faulty = FaultyStore(store)
    log = open_log(faulty)
    t = in_doubt(log, faulty, *NEVER_CAME)
    with other.transaction("job") as newer:
        newer.append(rows("newer"))
    for end in (t.commit, t.abort):
        with pytest.raises(CommitStateUnknownError, match=r"the id is at epoch 1, which has"):
            end()


def test_a_refusal_in_doubt_is_certain(make_log, open_log, store, clock, values_of):
    """A timeout says that nothing was committed, so that must be true: the id is taken
    over first.
    """
    make_log()
    faulty = FaultyStore(store, clock=clock)
    log = open_log(faulty)
    t = in_doubt(log, faulty, *NEVER_CAME)
    clock.advance(60_001)
    with pytest.raises(TransactionTimeoutError):
        t.commit()
    assert state_of(log).epoch == 1
    t = in_doubt(log, faulty, *HAPPENED)
    clock.advance(60_001)
    assert t.commit().offsets == {0: (0, 1)}
    assert values_of(log) == [b"doubt"]


@pytest.mark.parametrize("at_append", [True, False])
def test_a_timeout(make_log, clock, values_of, at_append):
    """It is raised at the next append or commit, and ends the transaction."""
    log = make_log()
    t = log.transaction("job", timeout_ms=1_000)
    t.append(rows("a"))
    clock.advance(1_000)
    t.append(rows("b"))
    clock.advance(1)
    with pytest.raises(TransactionTimeoutError, match=r"1001 ms ago, more than timeout_ms=1000"):
        t.append(rows("c")) if at_append else t.commit()
    t.abort()
    with pytest.raises(InvalidInputError, match="it is aborted"):
        t.commit()
    assert values_of(log) == []


def test_a_timeout_during_the_commit(make_log, open_log, store, clock, values_of):
    """A lost race that took too long: nothing is half visible."""
    other = make_log()
    faulty = FaultyStore(store, clock=clock)
    log = open_log(faulty)

    def meanwhile():
        clock.advance(60_001)
        other.append(rows("other"))

    t = log.transaction("job")
    t.append(rows("slow"))
    faulty.plan = Faults(Fault(FaultKind.MEANWHILE, "create", "*/commits/*", run=meanwhile))
    with pytest.raises(TransactionTimeoutError):
        t.commit()
    assert values_of(log) == [b"other"]


def test_objects_below_the_orphan_floor(make_log, open_log, clock, values_of):
    """All objects have the stamp of the first one; the sweep may have deleted them
    (COMMIT.md §5).
    """
    log, other = make_log(), open_log()
    t = log.transaction("job", timeout_ms=DAY_MS)
    t.append(rows("a"))
    for n in range(3):
        other.append(rows(str(n)))
    log.version  # noqa: B018 - it looks for newer versions
    t.append(rows("b"))
    stamps = {obj.ref.stamp for obj in t._work.objects}
    assert stamps == {1}
    other.handle.commit(lambda _tip, _ms: Edit(orphan_floor=2), operation="floor")
    with pytest.raises(TransactionTimeoutError, match=r"began at version 1, below .* 2,"):
        t.commit()
    assert values_of(log) == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    "given",
    [
        {"id": ""},
        {"id": 7},
        {"id": "x" * (ID_BYTES_MAX + 1)},
        {"id": "\udc00"},
        {"timeout_ms": 0},
        {"timeout_ms": TIMEOUT_MS_MAX + 1},
        {"timeout_ms": 1.5},
        {"timeout_ms": True},
        {"sequence": -1},
        {"sequence": 1 << 63},
        {"sequence": True},
    ],
    ids=repr,
)
def test_what_no_transaction_can_be(make_log, given):
    """The error names the argument, and the log is as it was."""
    log = make_log()
    with pytest.raises(InvalidInputError, match=r"transaction id|timeout_ms|sequence="):
        log.transaction(**{"id": "job", **given})
    assert log.version == 0


def test_bad_use(make_log, open_log, values_of):
    """Each has its own error, and nothing is half visible."""
    log = make_log()
    t = log.transaction("job")
    with pytest.raises(InvalidInputError, match="no key"):
        t.append([{"key": None, "value": "x"}])
    with pytest.raises(InvalidInputError, match="is the log in which the transaction was begun"):
        t.append(rows("a"), log=open_log())
    with pytest.raises(InvalidInputError, match="is open: it has a result once"):
        t.result  # noqa: B018
    t.append(rows("a"), log=log)
    t.commit()
    with pytest.raises(InvalidInputError, match="has ended: it is committed"):
        t.append(rows("b"))
    with pytest.raises(InvalidInputError, match=r"is committed to .* in version 2"):
        t.abort()
    assert values_of(log) == [b"a"]


def test_configs_altered_meanwhile(make_log, open_log, values_of):
    """S42: the commit is refused by the current ones, and succeeds once they are altered again."""
    log = make_log()
    t = log.transaction("job")
    t.append(rows("x" * 100))
    other = open_log()
    other.alter({"max.message.bytes": 50})
    with pytest.raises(InvalidInputError, match=r"larger than max.message.bytes=50"):
        t.commit()
    other.alter({"max.message.bytes": 500})
    t.commit()
    assert len(values_of(log)) == 1


def test_a_recreated_log(make_log, store):
    """S47: nothing of the transaction gets into the log that is there now."""
    log = make_log()
    t = log.transaction("job")
    t.append(rows("a"))
    discard(store)
    new = make_log()
    with pytest.raises(LogReplacedError):
        t.commit()
    assert (new.version, new.positions("job")) == (0, {})


def test_a_log_without_transactions_pays_nothing(make_log):
    """Not a byte, until an id is taken over."""
    log = make_log()
    log.append(rows("a"), producer=("p", 1))
    head = head_to_json(log.handle.tip.head)
    assert [writer[1] for writer in head["writers"]] == ["producer"]
    assert "unended" not in head


def test_ids_in_pages_of_older_writers(make_log, open_log, values_of, store):
    """S48: nothing is dropped: neither the epoch nor what was committed."""
    log = make_log()
    with log.transaction("job") as t:
        t.append(rows("a"))
    t = log.transaction("job")
    t.append(rows("b"))
    for i in range(2 * WRITERS_MAX):
        log.append(rows(str(i)), producer=(f"p{i}", 0))
    assert not [w for w in log.handle.tip.head.writers if w.kind == TRANSACTION]
    t.commit()
    other = open_log()
    assert other.transaction("job").epoch == 1
    with pytest.raises(TransactionFencedError):
        log.transaction("job").commit()
    assert values_of(log).count(b"b") == 1
    check_log(store, every_version=False)


def test_a_forked_child_holds_nothing(make_log, open_log, values_of):
    """Parent and child at one epoch could not be told apart: the child's is fenced, and the child
    takes over the id when it starts one of its own.
    """
    log = make_log()
    t = log.transaction("job")
    t.append(rows("parent"))
    log._part(Holders).after_fork()
    assert not t.is_open
    with pytest.raises(TransactionFencedError):
        t.commit()
    with log.transaction("job") as child:
        child.append(rows("child"))
    assert (child.epoch, values_of(log)) == (1, [b"child"])
    assert hasattr(os, "fork")


def test_costs(make_log, store, clock):
    """COMMIT.md §9: 1 commit to take over an id; then one object for each append, a commit, and its
    look at the block; an abort costs nothing; a plain append pays nothing.
    """
    make_log(partitions=2)
    counting = CountingStore(store)
    log = Log.open(counting, clock=clock, ids=SeededIds(9))

    def cost(act):
        with counting.count() as counts:
            made = act()
        return dict(counts), made

    log.append(rows("a"))
    assert cost(lambda: log.append(rows("a")))[0] == {"put": 1, "create": 1, "get": 1}
    taken, t = cost(lambda: log.transaction("job"))
    assert taken == {"create": 1, "get": 1}
    assert cost(lambda: [t.append(rows("b"), partition=p) for p in (0, 1, 0)])[0] == {"put": 3}
    t.positions(log, {0: 1})
    hint = {"put": 1}
    assert cost(t.commit)[0] == {"create": 1, "get": 1} | hint  # version 4
    begun, t = cost(lambda: log.transaction("job"))
    assert begun == {}
    t.append(rows("c"))
    assert cost(t.commit)[0] == {"create": 1, "get": 1}
    assert cost(log.transaction("job").abort)[0] == {}
    assert cost(log.transaction("job").commit)[0] == {"get": 1}
    assert cost(lambda: log.positions("job"))[0] == {"get": 1}
    assert cost(lambda: log.append(rows("d")))[0] == {"put": 1, "create": 1, "get": 1}
    assert len(list(inside(store).list("data/"))) == 7


def test_numbered_work_is_done_once(make_log, open_log, values_of):
    """The last sequence again is committed already, also for whoever takes over the id, with the
    first result; an aborted one is not; a lower one is refused.
    """
    log = make_log()
    with log.transaction("job", sequence=7) as t:
        t.append(rows("a"))
    log.append(rows("between"))
    for handle in (log, open_log()):
        again = handle.transaction("job", sequence=7)
        assert (again.is_open, again.result) == (False, t.result)
        with pytest.raises(InvalidInputError, match="has ended: it is committed"):
            again.append(rows("a"))
        with again:
            pass
    other = open_log()
    with pytest.raises(InvalidInputError, match="is already at sequence 7; 6 is lower"):
        other.transaction("job", sequence=6)
    left = other.transaction("job", sequence=8)
    left.append(rows("b"))
    left.abort()
    with open_log().transaction("job", sequence=8) as t:
        t.append(rows("c"))
    assert values_of(log) == [b"a", b"between", b"c"]


def test_work_without_a_number_takes_it_away(make_log):
    """FORMAT.md §11.1: the entry's sequence is that of the transaction which was committed last."""
    log = make_log()
    for sequence in (5, None, 5):
        with log.transaction("job", sequence=sequence) as t:
            t.append(rows("a"))
    assert log.end_offsets() == {0: 3}


def test_nothing_that_may_be_undone_is_read(make_log, values_of):
    """S55: read_committed unless another level is requested; and no other."""
    log = make_log()
    t = log.transaction("job")
    t.append(rows("a"))
    levels = ({}, {"isolation": "read_committed"}, {"isolation": "read_uncommitted"})
    assert [values_of(log, **level) for level in levels] == [[], [], []]
    t.commit()
    assert [values_of(log, **level) for level in levels] == [[b"a"]] * 3
    with pytest.raises(InvalidInputError, match="allowed: read_committed, read_uncommitted"):
        log.read(isolation="serializable")


def test_objects_of_tasks(make_log, values_of):
    """As connectors pass them: in order, beside records that were appended."""
    log = make_log()
    records, _ = to_records(rows("b", "c"), now_us=0)
    writer = log.object_writer()
    writer.add(records, np.zeros(2, np.int32))
    with log.transaction("job") as t:
        t.append(rows("a"))
        t.append_objects(writer.finish())
        t.append(rows("d"))
    assert t.result.offsets == {0: (0, 4)}
    assert values_of(log) == [b"a", b"b", b"c", b"d"]


def test_an_append_beside_the_end(make_log, values_of, monkeypatch):
    """One thread commits while the other appends: what is not in the commit is refused, and not
    lost silently.
    """
    log = make_log()
    t = log.transaction("job")
    t.append([{"key": "k", "value": "a"}])
    put = transaction.put_records

    def put_slowly(*args, **more):
        objects = put(*args, **more)
        t.commit()
        return objects

    monkeypatch.setattr(transaction, "put_records", put_slowly)
    with pytest.raises(InvalidInputError, match="has ended: it is committed"):
        t.append([{"key": "k", "value": "b"}])
    assert values_of(log) == [b"a"]


class _Struck(WrappingStore):
    """Raises as Ctrl-C does, once, when a commit is about to be made, or was made and not reported
    yet.
    """

    struck = ""

    def create(self, path, data):
        struck = self.struck if "commits/" in path else ""
        if struck == "before":
            self.struck = ""
            raise KeyboardInterrupt
        super().create(path, data)
        if struck:
            self.struck = ""
            raise KeyboardInterrupt


def test_an_id_whose_taking_up_was_interrupted_is_still_this_handles():
    """S65: no other holder took it over, whatever the log says about its epoch."""
    store = _Struck(memory_store())
    log = Log.create(store, 1)
    left = log.transaction("job")  # Open, so the next one takes the id up again.
    left.append([{"key": "k", "value": "left"}])
    store.struck = "after"
    with pytest.raises(KeyboardInterrupt):
        log.transaction("job")
    assert not store.struck
    with log.transaction("job") as next_one:
        next_one.append([{"key": "k", "value": "next"}])
    with pytest.raises(TransactionFencedError):
        left.commit()
    assert log.table().get("k") == b"next"
    with log.transaction("job") as again:
        again.append([{"key": "k", "value": "again"}])
    assert log.table().get("k") == b"again"


@pytest.mark.parametrize("then", ["nothing", "abort", "commit"])
@pytest.mark.parametrize("struck", ["before", "after"])
def test_an_id_is_still_this_handles_where_the_end_of_a_doubt_was_interrupted(struck, then):
    """T4, S65: an abort that takes over the id may have done so, or not; no other holder did."""
    store = _Struck(memory_store())
    log = Log.create(store, 1)
    t = log.transaction("job")
    t.append([{"key": "k", "value": "in doubt"}])
    store.struck = "before"
    with pytest.raises(KeyboardInterrupt):
        t.commit()
    store.struck = struck
    with pytest.raises(KeyboardInterrupt):
        t.abort()
    assert not store.struck
    if then == "abort":
        t.abort()
    elif then == "commit" and struck == "after":
        with pytest.raises(TransactionFencedError):
            t.commit()
    elif then == "commit":
        t.commit()
    for value in ("next", "again"):
        with log.transaction("job") as after:
            after.append([{"key": "k", "value": value}])
        assert log.table().get("k") == value.encode()
    with suppress(ClogError):
        t.abort()
    is_there = (then, struck) == ("commit", "before")
    values = [v for batch in log.read() for v in batch.column("value").to_pylist()]
    assert values == [b"in doubt"] * is_there + [b"next", b"again"]


def test_an_id_that_another_took_up_stays_his_after_an_interrupt():
    """S48: that this handle may have raised the epoch is no reason to take it over again later."""
    store = _Struck(memory_store())
    log = Log.create(store, 1)
    t = log.transaction("job")
    t.append([{"key": "k", "value": "in doubt"}])
    store.struck = "before"
    with pytest.raises(KeyboardInterrupt):
        t.commit()
    store.struck = "after"
    with pytest.raises(KeyboardInterrupt):
        t.abort()
    other = Log.open(store).transaction("job")
    with pytest.raises(TransactionFencedError, match="by another holder"):
        log.transaction("job")
    with pytest.raises(TransactionFencedError, match="by another holder"):
        log.transaction("job")
    other.append([{"key": "k", "value": "his"}])
    other.commit()
    assert log.table().get("k") == b"his"
