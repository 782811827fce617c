"""Logs that are gone while a transaction over several of them has not ended (S50): the error says
which one, and what to do; nothing is guessed, and an operator can continue.
"""

import os
import shutil

import pytest

from clog.storage import (
    CommitConflictError,
    InvalidInputError,
    Log,
    NotFoundError,
    TransactionTimeoutError,
)
from clog.storage.env import SystemClock
from clog.storage.errors import ClogError
from clog.storage.format.documents import commit_path
from clog.storage.transactions.deferred import Several
from clog.storage.transactions.several import finish_all

DAY_MS = 86_400_000


@pytest.fixture
def logs(tmp_path):
    """The home, and two others."""
    return [Log.create(str(tmp_path / name), 1) for name in ("home", "left", "right")]


def committed(logs, monkeypatch):
    """A transaction that is decided, and whose outcome was passed on to nobody."""
    with monkeypatch.context() as patch:
        patch.setattr(Several, "finish", lambda *_: {})
        with logs[0].transaction("job") as t:
            for log in logs:
                t.append([{"key": "k", "value": "v"}], log=log)


def count(*logs):
    return [sum(b.num_rows for b in Log.open(log.url).read()) for log in logs]


@pytest.mark.parametrize("stands", ["nothing", "another log"])
def test_a_participant_that_is_gone_is_given_up_by_force(logs, monkeypatch, stands):
    """The others get the outcome at once; the id waits, its error says what to do, and it continues
    when an operator gives that log up.
    """
    home, left, right = logs
    committed(logs, monkeypatch)
    shutil.rmtree(left.url)
    expected = f"no log at {left.url}: log {left.id} was deleted or moved"
    if stands != "nothing":
        Log.create(left.url, 1)
        expected = f"another log is at {left.url}"
    again = Log.open(home.url)
    (waiting,) = finish_all(again.handle)
    assert expected in waiting.reason
    assert "if it no longer exists, abort by force" in waiting.reason
    assert waiting.is_stuck
    assert count(home, right) == [1, 1]
    with pytest.raises(InvalidInputError, match="could not be notified that it was committed"):
        again.abort_transaction("job")
    t = again.transaction("job")
    t.append([{"key": "k", "value": "w"}], log=right)
    with pytest.raises(CommitConflictError, match=r'"clog describe .*home transactions" shows'):
        t.commit()
    (ended,) = Log.open(home.url).abort_transaction("job", force=True)
    assert ended.state == "committed"
    t.commit()
    assert count(home, right) == [1, 2]
    assert finish_all(Log.open(home.url).handle) == []


def test_one_that_comes_back_after_it_was_given_up_is_told_the_truth(logs, monkeypatch, tmp_path):
    """By the state of the id, as long as that has it; then nothing is guessed."""
    home, left, right = logs
    committed(logs, monkeypatch)
    (tmp_path / "left").rename(tmp_path / "away")
    Log.open(home.url).abort_transaction("job", force=True)
    shutil.copytree(tmp_path / "away", left.url)
    assert finish_all(Log.open(left.url).handle) == []
    assert count(left) == [1]
    shutil.rmtree(left.url)
    with Log.open(home.url).transaction("job") as t:
        t.append([{"key": "k", "value": "w"}], log=right)
    (tmp_path / "away").rename(left.url)
    (waiting,) = finish_all(Log.open(left.url).handle)
    assert "does not know transaction 0" in waiting.reason
    assert count(left) == [0]


def test_a_home_that_was_moved_tells_the_others_from_where_it_is(logs, monkeypatch, tmp_path):
    """A participant asks at the old place in vain; the home itself knows where the others are."""
    home, left, right = logs
    committed(logs, monkeypatch)
    (tmp_path / "home").rename(tmp_path / "moved")
    (waiting,) = finish_all(Log.open(left.url).handle)
    assert f"no log at {home.url}" in waiting.reason
    assert "give access to the home at that URL" in waiting.reason
    assert Log.open(left.url).stable_offsets() == {0: 0}
    assert finish_all(Log.open(str(tmp_path / "moved")).handle) == []
    assert count(left, right) == [1, 1]


def test_a_participant_that_is_gone_before_the_commit(logs):
    """Nothing is committed anywhere, and the next transaction of the others continues once the
    operator has given it up.
    """
    home, left, right = logs
    t = home.transaction("job")
    for log in logs:
        t.append([{"key": "k", "value": "v"}], log=log)
    shutil.rmtree(left.url)
    with pytest.raises(NotFoundError, match="no log at"):
        t.commit()
    assert count(home, right) == [0, 0]
    again = Log.open(home.url)
    with pytest.raises(ClogError, match="could not be notified that it was aborted"):
        again.abort_transaction("job")
    again.abort_transaction("job", force=True)
    with again.transaction("job") as t:
        t.append([{"key": "k", "value": "w"}], log=right)
    assert count(home, right) == [0, 1]


def test_a_copy_of_a_home_decides_nothing(logs, monkeypatch, tmp_path):
    """A home is copied before it decides, and the copy is maintained: past the timeout it would
    report to the others that it was aborted, while the home has committed.
    """
    home, left, right = logs
    with monkeypatch.context() as patch:
        patch.setattr(Several, "finish", lambda *_: {})
        t = home.transaction("job", timeout_ms=60_000)
        for log in logs:
            t.append([{"key": "k", "value": "v"}], log=log)
        prepare = t._work.several.prepare

        def copied(*args):
            done = prepare(*args)
            shutil.copytree(home.url, tmp_path / "copy")
            return done

        patch.setattr(t._work.several, "prepare", copied)
        t.commit()
    copy = Log.open(str(tmp_path / "copy"))
    with pytest.raises(InvalidInputError, match="seems to be a copy of that log"):
        copy.abort_transaction("job")
    copy.transaction("job")
    assert len(Log.open(left.url).transactions()) == 1
    for log in (left, right):
        finish_all(Log.open(log.url).handle)
    assert count(home, left, right) == [1, 1, 1]


def restored(log, copy):
    shutil.rmtree(log.url)
    shutil.copytree(copy, log.url)
    return Log.open(log.url)


@pytest.fixture
def prepared(logs, tmp_path):
    """A transaction that waits for its home, which then loses everything newer than a copy."""
    home, left, _ = logs
    shutil.copytree(home.url, tmp_path / "copy")
    t = home.transaction("job")
    t.append([{"key": "k", "value": "lost"}], log=left)
    t._work.several.prepare(t._work.check_time, set())
    return restored(home, tmp_path / "copy"), left


def values(log):
    return [v for b in Log.open(log.url).read() for v in b.column("value").to_pylist()]


def test_a_restored_home_gives_a_number_again(prepared):
    """S48: what another transaction of that name has left is not taken for the new one, which gets
    an error; the next one continues.
    """
    home, left = prepared
    t = home.transaction("job")
    t.append([{"key": "k", "value": "new"}], log=left)
    with pytest.raises(TransactionTimeoutError, match="as if its home had been restored"):
        t.commit()
    assert values(left) == []
    assert Log.open(left.url).transactions() == []
    with home.transaction("job") as t:
        t.append([{"key": "k", "value": "new"}], log=left)
    assert values(left) == [b"new"]


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("other", ["deferred", "of others"])
def test_a_restored_home_gives_a_number_to_others(prepared, logs, other, closed):
    """S48: an outcome of one in which the participant takes no part decides nothing there."""
    home, left = prepared
    with home.transaction("job") as t:
        t.append([{"key": "k", "value": "new"}], log=None if other == "deferred" else logs[2])
    if closed:
        finish_all(Log.open(home.url).handle)
    (waiting,) = finish_all(Log.open(left.url).handle)
    assert "does not know transaction 0" in waiting.reason
    assert values(left) == []


class ClockOff(SystemClock):
    """Of a machine with a wrong clock."""

    def __init__(self, off_ms):
        self._off_ms = off_ms

    def now_ms(self):
        return super().now_ms() + self._off_ms

    def now_us(self):
        return self.now_ms() * 1000


@pytest.mark.parametrize(
    ("holder_ms", "finisher_ms"), [(0, -3 * DAY_MS), (600_000, 0), (-3 * DAY_MS, 0)]
)
def test_a_timeout_is_counted_by_the_stores_times(tmp_path, holder_ms, finisher_ms):
    """S50: whichever clock is wrong, nothing is aborted early, or waited for longer than that."""
    home = Log.create(str(tmp_path / "home"), 1, clock=ClockOff(holder_ms))
    left = Log.create(str(tmp_path / "left"), 1, clock=ClockOff(holder_ms))
    t = home.transaction("job", timeout_ms=600_000)
    t.append([{"key": "k", "value": "v"}], log=left)
    t._work.several.prepare(t._work.check_time, set())

    def finish():
        return finish_all(Log.open(left.url, clock=ClockOff(finisher_ms)).handle)

    assert len(finish()) == 1
    (entry,) = home.handle.refresh().head.unended
    path = tmp_path / "home/_clog" / home.id / commit_path(entry.version)
    began_s = path.stat().st_mtime
    os.utime(path, (began_s - 500, began_s - 500))
    assert len(finish()) == 1
    os.utime(path, (began_s - 700, began_s - 700))
    assert finish() == []
    assert Log.open(left.url).transactions() == []
