"""What threads without a pass of their own do for the others: ahead, in turn, within bounds."""

import threading
from itertools import count

import pytest

from clog.cleaner import Cleaner, threads
from clog.cleaner.passes import offset_map, rewriter, run_pass
from clog.cleaner.threads import CleanerThreads
from clog_testing.interrupts import interrupted
from clog_testing.invariants import check_log

BIG = 2 << 20


def results(of, calls):
    with of.in_turn(calls) as turns:
        return [turn() for turn in turns]


def named(name):
    return lambda: (name, threading.current_thread() is threading.main_thread())


@pytest.mark.parametrize("number", [1, 2, 4])
def test_results_come_in_the_order_of_the_calls(number):
    """Whoever made them; with one thread nobody else does."""
    mine = CleanerThreads(number, 0)
    with mine.of_a_pass():
        found = results(mine, [(named(n), BIG) for n in range(9)])
    assert [n for n, _ in found] == [*range(9)]
    assert all(here for _, here in found) == (number == 1)
    assert (mine._free, mine.turns.bytes_left) == (number, (number - 1) * threads.AHEAD_BYTES)


def test_with_one_thread_each_call_is_made_when_its_result_is_asked_for():
    """So that a group is committed before the next one is written, or even judged."""
    made = []
    calls = ((lambda n=n: made.append(n), BIG) for n in range(3) if made.append(f"asked {n}") or 1)
    with CleanerThreads(1, 0).in_turn(calls) as turns:
        for turn in turns:
            made.append("turn")
            turn()
    assert made == ["asked 0", "turn", 0, "asked 1", "turn", 1, "asked 2", "turn", 2]


@pytest.mark.parametrize("size_bytes", [threads.AHEAD_BYTES + 1, threads.WORTH_BYTES - 1])
def test_what_is_too_much_or_too_little_is_not_begun(size_bytes):
    """Memory is bounded for all threads together."""
    mine = CleanerThreads(2, 0)
    with mine.of_a_pass():
        assert all(here for _, here in results(mine, [(named(n), size_bytes) for n in range(4)]))


def test_where_the_system_gives_no_thread_nothing_is_begun(monkeypatch):
    """In a container with a process limit, for example: the caller does everything itself, and
    neither threads nor memory are counted as lost.
    """

    def refused(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "begin_in_thread", refused)
    mine = CleanerThreads(2, 0)
    with mine.of_a_pass():
        found = results(mine, [(named(n), BIG) for n in range(4)])
    assert found == [(n, True) for n in range(4)]
    assert (mine._free, mine.turns.bytes_left) == (2, threads.AHEAD_BYTES)


def test_a_pass_that_waits_has_its_thread_first():
    """Nothing more is started ahead for the others."""
    mine = CleanerThreads(2, 0)
    began = threading.Event()

    def other_pass():
        with mine.of_a_pass():
            began.set()

    with mine.of_a_pass(), mine.of_a_pass():
        waiting = threading.Thread(target=other_pass)
        waiting.start()
        while not mine._passes_waiting:
            pass
        assert mine.begin(named(1), BIG) is None
        assert not began.is_set()
    waiting.join()
    assert began.is_set()


def test_an_interrupt_leaves_the_only_thread_free():
    """Whichever line Ctrl-C interrupts as a pass starts or ends: the next one need not wait forever
    (COMMIT.md Q4).
    """

    def a_pass():
        with mine.of_a_pass():
            mine.gave(0)

    for at in count():
        mine = CleanerThreads(1, 0)
        struck = interrupted(a_pass, at)
        assert mine._free == 1, struck
        if struck is None:
            break
    assert at > 5


def test_an_error_is_raised_in_its_turn_and_what_is_under_way_is_waited_for():
    """The caller sees what preceded it; no thread works on after the end."""
    mine, ended = CleanerThreads(3, 0), []

    def fail():
        raise ValueError("this one")

    calls = [(named(0), BIG), (fail, BIG), (lambda: ended.append(2), BIG)]
    with mine.of_a_pass():
        with mine.in_turn(calls) as turns:
            assert next(turns)()[0] == 0
            turn = next(turns)
            with pytest.raises(ValueError, match="this one"):
                turn()
        assert mine._free == 2
    assert ended == [2]
    assert mine.turns.bytes_left == 2 * threads.AHEAD_BYTES


@pytest.fixture
def everything_ahead(monkeypatch):
    """However little it is; returns which steps other threads did."""
    monkeypatch.setattr(threads, "WORTH_BYTES", 0)
    monkeypatch.setattr(offset_map, "PORTION_ROWS", 2)
    helped = set()
    for where, name in [(rewriter.Rewriter, "rewrite"), (rewriter.Rewriter, "_retained_of")]:
        original = getattr(where, name)

        def watched(*given, original=original, name=name):
            if threading.current_thread().name == "clog-ahead":
                helped.add(name)
            return original(*given)

        monkeypatch.setattr(where, name, watched)
    return helped


def many_groups(log, put):
    """Six segments, each of which loses its first record but one, and merges with no other."""
    pairs = zip("bcdefg", "hijklm", strict=True)
    put(log, " ".join(f"a={n} {x}=1 {y}=1" for n, (x, y) in enumerate(pairs)))
    log.roll()


def test_groups_are_written_together_and_committed_oldest_first(
    make_log, put, clean, there, store, monkeypatch, everything_ahead
):
    """S25: a pass by three threads leaves what one by one thread leaves, in the same commits."""
    log, bases = make_log(), []
    many_groups(log, put)
    commit = run_pass.commit_pass

    def noted(handle, planned, partition, edit, **more):
        bases.extend(r.base for r in edit.replace)
        return commit(handle, planned, partition, edit, **more)

    monkeypatch.setattr(run_pass, "commit_pass", noted)
    result = clean(log, threads=3)
    assert there(log).startswith("1:b=1 2:h=1 4:c=1 5:i=1 7:d=1")
    assert result.stats.records_superseded == 5
    assert bases == [0, 3, 6, 9, 12]
    assert "rewrite" in everything_ahead
    check_log(store)


def test_a_group_that_another_thread_cannot_write_stops_the_pass(
    make_log, put, there, store, monkeypatch, everything_ahead
):
    """S28: what came before it is committed, what comes after it is not."""
    log = make_log()
    many_groups(log, put)
    original = rewriter.Rewriter.rewrite

    def broken(self, group, stats):
        if group.base == 6:
            raise ValueError("no such luck")
        return original(self, group, stats)

    with monkeypatch.context() as fault:
        fault.setattr(rewriter.Rewriter, "rewrite", broken)
        assert Cleaner(log, threads=2).run_once(force=True) == []
    assert log.handle.manifest().first_dirty == (0,)
    assert there(log).startswith("1:b=1 2:h=1 4:c=1 5:i=1 6:a=2 7:d=1 8:j=1 9:a=3")
    check_log(store)
    Cleaner(log, threads=2).run_once(force=True)
    assert there(log).startswith("1:b=1 2:h=1 4:c=1 5:i=1 7:d=1 8:j=1 10:e=1")
