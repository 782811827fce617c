"""`clog clean`, `clog cleaner`, `clog sweep`."""

import json
import os
import signal
from pathlib import Path

import pytest

from clog.cleaner import Cleaner
from clog.cli import maintenance
from clog.storage import Log, ManualClock, SystemClock

DAY_MS = 86_400_000


@pytest.fixture
def clock():
    """Two days ago: the store's clock is the machine's, and the sweep compares them."""
    return ManualClock(SystemClock().now_ms() - 2 * DAY_MS)


@pytest.fixture
def log(url, clock):
    """Three of eight sealed records are superseded; the ratio can never be above 1: S14 is off."""
    log = Log.create(url, partitions=1, config={"min.cleanable.dirty.ratio": "1"}, clock=clock)
    for value in "1234":
        log.append([{"key": "a", "value": value}, {"key": f"b{value}", "value": value}])
    log.roll()
    return log


def test_clean_does_what_is_due(cli, url, log):
    """Nothing here; the way to clean all the same is named (S14, S17)."""
    assert "--force cleans whatever can be cleaned" in cli("clean", url).stdout
    assert cli.json("clean", url)["passes"] == []
    assert log.version == 5


def test_clean_force_cleans(cli, url, log):
    """The pass and what it removed; afterwards the table is the same, the log sound (S17)."""
    before = sorted(cli.lines("consume", url, "--table"))
    (done,) = cli.json("clean", url, "--force")["passes"]
    assert (done["first_dirty_offset"], done["next_dirty_offset"]) == (0, 8)
    assert done["stats"]["records_removed"] == 3
    assert sorted(cli.lines("consume", url, "--table")) == before
    assert len(cli.lines("consume", url)) == 5
    cli("verify", url)


def test_clean_tells_each_pass(cli, url, log):
    """Partition, offsets, records, bytes."""
    said = cli("clean", url, "--force", "--threads", 2, "--buffer", 1).stdout
    assert said.startswith("partition 0 is clean to offset 8 (from 0): removed 3 records, ")


def test_a_buffer_too_small_is_refused(cli, url, log, monkeypatch):
    """A thread's share must hold a key (S18)."""
    monkeypatch.setattr(maintenance, "MIB", 1)
    assert "error: " in cli("clean", url, "--buffer", 1, code=1).stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_cleaner_runs_until_it_is_stopped(cli, url, log, clock, monkeypatch, number):
    """It tells each pass, sleeps, and ends by a signal with exit code 0."""
    log.alter({"min.cleanable.dirty.ratio": "0.1"})

    class Stopping(ManualClock):
        def sleep_ms(self, ms):
            os.kill(os.getpid(), number)

    monkeypatch.setattr(
        maintenance,
        "open_log",
        lambda *_, single_writer: Log.open(url, clock=Stopping(clock.now_ms())),
    )
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        result = cli("cleaner", url, "--json")
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)
    (line,) = result.stdout.splitlines()
    assert json.loads(line)["url"] == log.url
    assert json.loads(line)["stats"]["records_removed"] == 3
    assert "cleaning 1 log; Ctrl-C stops" in result.stderr


def test_sweep_deletes_what_was_replaced_long_ago(cli, url, log):
    """Not before file.delete.delay.ms (S27); a dry run deletes nothing."""
    Cleaner(log).run_once(force=True)
    stored = set(Path(url, "data").iterdir())
    log.alter({"file.delete.delay.ms": 3 * DAY_MS})
    assert cli.json("sweep", url)["replaced"]["objects"] == []
    log.alter({"file.delete.delay.ms": DAY_MS})
    planned = cli.json("sweep", url, "--dry-run")
    assert set(Path(url, "data").iterdir()) == stored
    assert len(planned["replaced"]["objects"]) == 4
    assert "would delete 4 replaced objects" in cli("sweep", url, "--dry-run").stdout
    assert "deleted 4 replaced objects" in cli("sweep", url).stdout
    assert len(list(Path(url, "data").iterdir())) == 1
    assert len(cli.lines("consume", url)) == 5
