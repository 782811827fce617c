"""Simulated worlds (`integration/simulation`): a short run, and that it finds planted bugs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "integration" / "simulation" / "run.py"
PART = 150


def run(*options, hash_seed="0"):
    """Runs the command; its exit code and output."""
    done = subprocess.run(
        [sys.executable, str(RUN), *map(str, options)],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONHASHSEED": hash_seed, "PATH": "/usr/bin:/bin"},
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("first", "seeds"),
    [
        (0, 20),
        *(pytest.param(PART * i, PART, marks=pytest.mark.nightly) for i in range(4)),
    ],
)
def test_worlds_keep_the_promises(first, seeds):
    """What the oracle checks at each change of the disk (C1-C7, B1, B2, W1-W6, S1, S10, S12,
    S21-S27, S41, S48-S54). The points of the commit protocol are hit on the way: before, after and
    by a lost reply, if many worlds run.
    """
    code, output = run("--seeds", seeds, "--first", first)
    assert code == 0, output
    assert f"{seeds} seeds, 0 failed" in output
    lines = {line[:28].strip(): line[28:].split() for line in output.splitlines()}
    for point in ("C1", "C5/C6", "C7", "commit of clean", "interrupted, and lives on"):
        hits = [int(times) for times in lines[point]]
        assert (min(hits) if seeds == PART else sum(hits)) > 0, output


@pytest.mark.parametrize("kind", ["ordered", "erasures"])
@pytest.mark.nightly
def test_worlds_of_a_kind_keep_the_promises(kind):
    """S56, S57, S59, E1 to E7: which record wins, and what is erased, after each commit. Worlds
    that are made for orders are among those that compare them.
    """
    code, output = run("--seeds", 1000, "--only", kind)
    assert code == 0, output
    assert " 0 failed" in output


def test_the_same_seed_makes_the_same_calls(tmp_path):
    """In another process, whatever the order of its sets: otherwise a failure could not be
    replayed.
    """
    for name in ("1", "2"):
        code, output = run(
            "--first", 12, "--seeds", 2, "--requests", tmp_path / name, hash_seed=name
        )
        assert code == 0, output
    first, again = ([path.read_text() for path in sorted((tmp_path / n).iterdir())] for n in "12")
    assert first == again
    assert min(calls.count("\n") for calls in first) > 200
    assert first[0] != first[1]


def test_a_run_goes_on_where_it_stopped(tmp_path):
    """A state file keeps seeds and marks; one that is done runs nothing."""
    state = tmp_path / "state"
    assert "\n2 seeds" in "\n" + run("--seeds", 2, "--state", state)[1]
    more = run("--seeds", 3, "--state", state)
    assert "\n3 seeds" in "\n" + more[1]
    assert run("--seeds", 3, "--state", state) == more


# Each takes one safeguard away. These are found soon, or by the seeds from the given one on; the
# others by `run.py --planted`, which says for each how many seeds it takes.
BUGS = {
    "delete before commit": 0,
    "sweep ignores delay": 0,
    "conflict not read back": 0,
    "own commit taken for another's": 0,
    "exists-then-write": 0,
    "abort deletes": 0,
    "map end off by one": 0,
    "cleaner ignores changed sources": 0,
    "epoch not compared": 300,
    "abort in doubt without a look": 0,
    "home forgets an abort": 0,
    "horizon recomputed": 0,
    "outcome guessed where the home cannot be read": 500,
    "new writers' page drops the older page": 0,
    "older page's entry beats the head's": 0,
    "mask hides a row too many": 0,
    "mask not renewed after a pass": 90,
    "store skips what others wrote": 0,
    "store keeps what it rolled back": 0,
    "tip is seen in two steps": 0,
    "mirror's end left behind": 0,
    "plain append in a mirror": 0,
    "mirror's start comes later": 0,
    "cut at the newest versions": 0,
    "sweep in another log's folder": 0,
    "proposals live on after forgetting": 0,
    "retry known by its name": 0,
    "lower numbers are taken": 0,
    "no answer is proof": 0,
    "applied again after forgetting": 390,
    "posted and committed otherwise": 0,
    "one author's id for all": 0,
    "zombies wake": 0,
    "nothing is owed": 390,
    "a sequence ends nothing": 470,
    "withdrawn without a look": 150,
    "data swept with proposals": 70,
    "floor not checked of proposals": 70,
    "fenced proposal is taken": 230,
    "withdrawals live on": 390,
    "given up by deleting": 390,
    "answers of an unsettled tip": 70,
    "aborted record supersedes": 520,
    "idle handle trusts a probe": 310,
    "deleted log is asked for itself alone": 350,
    "table compares offsets": 0,
    "pass compares offsets": 0,
    "clean part is not asked": 0,
    "tombstone goes before its losers": 0,
    "reader shows late records": 0,
    "tombstone is not asked for again": 400,
    "removed order is not kept": 0,
    "newest pair counts alone": 900,
    "late record dropped under keep": 0,
    "late records shield one another": 500,
    "pass of the old strategy": 2200,
    "erasure does not wait for transactions": 270,
    "dead rows of erased keys are not found": 290,
    "erased while old objects are there": 134,
    "erased while orphans are there": 0,
    "erased rows stay in their objects": 0,
    "erasure kills later records": 0,
    "erasure kills neighbours": 0,
    "followers not told of an erasure": 0,
    "erasure's tombstones go at once": 0,
    "requests of erasures swept": 0,
    "copy from before the kill": 0,
    "second receipt": 0,
    "erasure kills one row of an object": 68,
    "slow request is committed": 474,
}


AT_ONCE = {
    *("sweep ignores delay", "horizon recomputed"),
}
"""A sweeper's and a cleaner's; a writer's is found by the test below."""


@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, marks=[pytest.mark.nightly] * (bug not in AT_ONCE)) for bug in BUGS],
)
def test_planted_bugs_are_found(bug):
    """The oracle notices; otherwise what it does not find would prove nothing."""
    code, output = run("--planted", bug, "--first", BUGS[bug], "--seeds", 750, "--enough", 1)
    assert code == 0, output
    assert output.count("python integration/simulation/run.py --seed") == 0
    assert output.splitlines()[1].startswith(bug)
    assert "NOT FOUND" not in output


def test_every_bug_can_be_planted():
    """Each replaces something that the product still has."""
    code = "from planted import BUGS, planted\nfor bug in BUGS:\n with planted(bug): print(bug)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=RUN.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {*BUGS} <= {*done.stdout.splitlines()}


def test_a_failure_says_how_to_see_it_again():
    """Its seed in one command, and what was broken."""
    _, found = run("--planted", "delete before commit", "--seeds", 50, "--enough", 1)
    seed = re.search(r" (\d+): AssertionError", found)[1]
    code, output = run("--seed", seed, "--planted", "delete before commit")
    assert code == 1, output
    assert f"python integration/simulation/run.py --seed {seed} --trace\n" in output
    assert "deleted, version" in output
