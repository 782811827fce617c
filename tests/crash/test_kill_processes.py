"""Real processes, really killed: a small run of `integration/kill` (see its README.md).

The enumeration of crash points beside this file is complete, and plays them in one process; here
the operating system ends the process, so nothing of it can clean up.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clog_testing.killing import KillPoint

KILL = Path(__file__).parents[2] / "integration" / "kill"
IN_KILL = {**os.environ, "PYTHONPATH": str(KILL)}
POINTS = "C4 between|C6 after|between groups|in W3|in W5"
ARMED_LATE = """
import switch
from clog.storage import Log
from clog.storage.store import open_store
from clog.storage.store.opening import Reach

switch.arm()
Log.create({opened}, 1)
"""
PLAYED = """
import json, sys
import steps, switch, transacted, transactions, transactor
from world import World

class Died(BaseException):
    pass

def reached(place):
    told.append(place.rpartition(" ")[0])
    if place == "X3 home 2":
        raise Died

told = []
switch.reached = reached
steps.watch()
world = World(sys.argv[1], {}, sys.argv[1])
transacted.create(world)
logs = {log: transacted.opened(world, log) for log in ("source", *transacted.LOGS)}
try:
    for _ in range(2):
        transactor.one(logs, 3_600_000, is_aborted=False)
except Died:
    transacted.opened(world, "home").abort_transaction(transacted.JOB)
wanted = [f"{step.place} {step.log}" for step in transactions._steps() if step.place]
print(json.dumps([told, wanted]))
"""


@pytest.mark.parametrize(
    ("points", "random"),
    [("C4 between|in W3", 0), pytest.param(POINTS, 3, marks=pytest.mark.nightly)],
)
def test_nothing_is_lost_and_nothing_doubled(tmp_path, points, random):
    """Writer, cleaner and sweeper die in the middle of a commit, a pass and a sweep, and at random
    moments; every record is in the log once, the table is the fold, garbage is removed (COMMIT.md
    §3).
    """
    options = ["--only", "writer,cleaner,sweeper", "--match", points, "--rounds", "1"]
    options += ["--random", str(random), "--seed", "1", "--work", str(tmp_path)]
    assert ok_lines("run.py", options) >= len(points.split("|")) + random


@pytest.mark.nightly
def test_transactions_of_three_logs_are_whole(tmp_path):
    """The holder of an id dies after the home has decided, its successor dies when one of the
    others has been informed, and anybody dies at random: all logs agree (COMMIT.md §9, C15).
    """
    points = "holder: after X3|successor: after X4 for another in kept, decided"
    options = ["--match", points, "--random", "2", "--seed", "1", "--work", str(tmp_path)]
    assert ok_lines("transactions.py", options) >= 2 + 4 + 3


def test_every_step_of_a_point_is_reached(tmp_path):
    """A holder commits, and dies before it decides again; somebody else ends what it left."""
    told = subprocess.check_output([sys.executable, "-c", PLAYED, tmp_path], env=IN_KILL, text=True)
    steps, wanted = map(set, json.loads(told))
    assert wanted
    assert wanted <= steps


@pytest.mark.parametrize("opened", ["{url!r}", "open_store({url!r})", "Reach()({url!r})"])
def test_a_point_is_reached_however_its_log_is_opened(tmp_path, monkeypatch, opened):
    """By a URL, as transactions open theirs, by a store, and by a URL that another log names."""
    monkeypatch.syspath_prepend(KILL)
    point = KillPoint("before", "create", "_clog/*/commits/*")
    armed = importlib.import_module("switch").environment_of(point, tmp_path / "hits")
    program = ARMED_LATE.format(opened=opened.format(url=str(tmp_path / "log")))
    run = subprocess.run([sys.executable, "-c", program], env={**IN_KILL, **armed}, check=False)
    assert run.returncode == -signal.SIGKILL
    assert (tmp_path / "hits").exists()


def ok_lines(program, options):
    run = subprocess.run(
        [sys.executable, str(KILL / program), *options], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return sum(line.endswith("ok     │") for line in run.stdout.splitlines())
