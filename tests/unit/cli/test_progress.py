"""Bars of `clog clean`, `clog clean --sweep` and other long operations."""

import io

import pytest
from rich.console import Console

from clog.cleaner import Cleaner
from clog.cli import clean, output
from clog.storage import Log, ManualClock


@pytest.fixture
def screen(monkeypatch):
    """Everything that is drawn, one picture after the other."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    for module in (clean, output):
        monkeypatch.setattr(module, "stderr", lambda: console)
    return console.file


def test_a_pass_has_a_bar_for_each_phase(url):
    """Partition, phase, how much is done, the remaining time; nothing when it is over."""
    clock = ManualClock()
    log = Log.create(url, partitions=1, clock=clock)
    log.append([{"key": str(i), "value": "v"} for i in range(10)])
    log.roll()
    cleaner = Cleaner(log)

    def drawn():
        console = Console(file=io.StringIO(), width=100)
        console.print(clean.bars(cleaner.monitor))
        return " ".join(console.file.getvalue().split())

    (chosen,) = cleaner._log_rounds[0].candidates(force=True)
    with cleaner.monitor.watched(url, chosen) as state:
        assert drawn().startswith("partition 0: mapping")
        assert drawn().endswith("0%")
        state.records_total, state.stats.map_records = 10, 5
        state.phase_began_ms = clock.monotonic_ms()
        clock.advance(3000)
        assert drawn().endswith("50% 3 s left")
        state.begin_cleaning(records_total=20, now_ms=clock.monotonic_ms())
        assert drawn().startswith("partition 0: cleaning")
    assert drawn() == ""


def test_on_a_terminal_a_round_is_drawn(url, screen):
    """Each pass is shown while it runs, and its effect is the same."""
    log = Log.create(url, partitions=1)
    log.append([{"key": "k", "value": str(i)} for i in range(10)])
    log.roll()
    cleaner = Cleaner(log)
    (chosen,) = cleaner._log_rounds[0].candidates(force=True)
    with clean.watching_passes(cleaner.monitor) as live:
        with cleaner.monitor.watched(url, chosen):
            live.refresh()
        (done,) = cleaner.run_once(force=True)
    assert done.stats.records_removed == 9
    assert "partition 0: mapping" in screen.getvalue()


def test_deletions_are_counted(screen):
    """Each item comes once, in order, with a bar that ends at the total."""
    with output.tracking("deleting") as track:
        assert list(track(["a", "b", "c"])) == ["a", "b", "c"]
    assert "deleting" in screen.getvalue()
    assert "100%" in screen.getvalue()


def test_nothing_is_drawn_where_nobody_looks(monkeypatch):
    """If standard error is not a terminal: not a byte."""
    console = Console(file=io.StringIO(), force_terminal=False)
    monkeypatch.setattr(output, "stderr", lambda: console)
    with output.tracking("x") as track:
        assert list(track(["a"])) == ["a"]
    with output.counting("x", 2) as more:
        more(2)
    assert console.file.getvalue() == ""
