"""Transactions over logs of other formats: older ones take part, and for newer ones the error says
what is missing, while nothing is half visible (S50; FORMAT.md §0).
"""

import shutil
from pathlib import Path

import pytest

from clog.storage import Log, UnsupportedFormatError
from clog.storage.diagnostics.verify import verify_log
from clog.storage.format import log_info as registry
from clog.storage.format.log_info import Feature
from clog.storage.transactions.deferred import Several
from clog.storage.transactions.several import finish_all

GOLDEN = Path(__file__).parents[3] / "format" / "golden" / "v1"
BEFORE = ("append-time", "cleaned", "columns", "indexed", "older-writers", "paged", "plain")
ROWS = [{"key": "k", "value": "v"}]


@pytest.fixture
def logs(tmp_path):
    """The home, and another."""
    return [Log.create(str(tmp_path / name), 1) for name in ("home", "other")]


@pytest.fixture
def quill(monkeypatch):
    """Gives a log a feature that no clog of this release knows, outside the block."""

    def announce(log):
        with monkeypatch.context() as patch:
            feature = Feature("quill", "4", True, "")
            patch.setitem(registry.FEATURES, "quill", feature)
            log.upgrade(["quill"])

    return announce


@pytest.fixture
def known_quill(monkeypatch):
    """A newer clog."""

    def know():
        feature = Feature("quill", "4", True, "")
        monkeypatch.setitem(registry.FEATURES, "quill", feature)

    return know


def shown(log):
    return sum(batch.num_rows for batch in Log.open(log.url).read())


@pytest.mark.parametrize("name", BEFORE)
def test_logs_from_before_take_part(logs, tmp_path, name):
    """A golden log without undecided records gets the features with its first ones, whatever else
    it has; committed and aborted ones end as usual.
    """
    shutil.copytree(GOLDEN / name / "log", tmp_path / name)
    home, old = logs[0], Log.open(str(tmp_path / name))
    assert "undecided-records" not in old.handle.tip.head.log.features
    rows, stable = shown(old), old.stable_offsets()
    for is_last in (False, True):
        t = home.transaction("job")
        t.append(ROWS, partition=0)
        t.append(ROWS, partition=0, log=old)
        t._work.several.prepare(t._work.check_time, t._work.holder.closable)
        assert Log.open(old.url).stable_offsets() == stable
        assert shown(old) == rows
        if is_last:
            t.commit()
        else:
            t.abort()
            stable = Log.open(old.url).stable_offsets()
            assert shown(old) == rows
    assert (shown(home), shown(old)) == (1, rows + 1)
    assert list(verify_log(old.handle.standing.root).findings) == []


def test_a_participant_of_a_newer_format(logs, quill):
    """It refuses its records by name, and nothing is committed anywhere."""
    home, other = logs
    t = home.transaction("job")
    for log in logs:
        t.append(ROWS, log=log)
    quill(Log.open(other.url))
    with pytest.raises(UnsupportedFormatError, match=r"has the features \['quill'\], which"):
        t.commit()
    assert shown(home) == 0
    (left,) = Log.open(home.url).transactions()
    assert left.state == "aborted"


def commit_untold(logs, monkeypatch):
    """Commits a transaction of both logs in the first, and its holder dies before it informs the
    other.
    """
    with monkeypatch.context() as patch:
        patch.setattr(Several, "finish", lambda *_: {})
        with logs[0].transaction("job") as t:
            for log in logs:
                t.append(ROWS, log=log)


def test_one_that_is_upgraded_before_it_hears(logs, quill, known_quill, monkeypatch):
    """The home keeps the outcome, and says what is missing; a newer clog passes it on."""
    home, other = logs
    commit_untold(logs, monkeypatch)
    quill(Log.open(other.url))
    (waiting,) = finish_all(Log.open(home.url).handle)
    assert f"{other.url} could not be notified that it was committed: " in waiting.reason
    assert "has the features ['quill'], which this clog does not know" in waiting.reason
    assert waiting.is_stuck
    assert shown(home) == 1
    known_quill()
    assert shown(other) == 0
    assert finish_all(Log.open(home.url).handle) == []
    assert (shown(home), shown(other)) == (1, 1)


def test_a_home_of_a_newer_format(logs, quill, known_quill, monkeypatch):
    """Nothing is guessed; a newer clog asks it."""
    home, other = logs
    commit_untold(logs, monkeypatch)
    quill(Log.open(home.url))
    (waiting,) = finish_all(Log.open(other.url).handle)
    assert "its outcome cannot be read from its home: " in waiting.reason
    assert "has the features ['quill'], which this clog does not know" in waiting.reason
    assert (Log.open(other.url).stable_offsets(), shown(other)) == ({0: 0}, 0)
    known_quill()
    assert finish_all(Log.open(other.url).handle) == []
    assert shown(other) == 1
