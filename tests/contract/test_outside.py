"""Histories that checkers from outside judge (`integration/outside`): how they are recorded, and
that what is wrong in one is found.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clog.storage import Log
from clog.storage.store import open_store
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore

OUTSIDE = Path(__file__).parents[2] / "integration" / "outside"
sys.path.append(str(OUTSIDE))

import clients  # noqa: E402
import history  # noqa: E402
import isolation  # noqa: E402
import planted  # noqa: E402
import run  # noqa: E402

sys.path.remove(str(OUTSIDE))
for module in (clients, history, isolation, planted, run):
    del sys.modules[module.__name__]  # Others have modules of such names, too.

NEVER = history.NEVER


@pytest.fixture(scope="session")
def judge(tmp_path_factory):
    """The judge of one history: ``ok``, or what is wrong."""
    folder = tmp_path_factory.mktemp("judge")
    try:
        program = run.build_judge(folder)
    except run.NoGoError as e:
        pytest.skip(f"the judge cannot be built: {e}")

    def judged(ops):
        path = folder / "history.json"
        path.write_text(json.dumps(ops))
        return run.judged(program, [path])[path]

    return judged


def test_a_recorder_notes_what_happened_and_what_may_have(tmp_path):
    """What was answered has an end, what was refused is left out, what is in doubt or was
    interrupted may happen at any time; the next life goes on with the file.
    """
    first = history.Recorder(tmp_path / "a.jsonl")
    first.answer(first.call("open", ""), history.OK, log="x1")
    first.answer(first.call("append", "x1", {"n": 1}), history.FAILED)
    first.answer(first.call("append", "x1", {"n": 2}), history.UNKNOWN)
    first.call("append", "x1", {"n": 3})
    second = history.Recorder(tmp_path / "a.jsonl")
    second.answer(second.call("read", "x1", 0), history.OK, [[0, 0, "k", "v"]])
    other = history.Recorder(tmp_path / "b.jsonl")
    other.answer(other.call("read", "x1", 1), history.GONE)
    ops = history.operations(tmp_path.glob("*.jsonl"))
    told = [(op["client"], op["op"], op["log"], op["outcome"]) for op in ops]
    assert told == [
        (0, "open", "x1", "ok"),
        (0, "append", "x1", "unknown"),
        (0, "append", "x1", "unknown"),
        (0, "read", "x1", "ok"),
        (1, "read", "x1", "gone"),
    ]
    assert [op["return"] == NEVER for op in ops] == [False, True, True, False, False]
    assert all(op["call"] < op["return"] for op in ops)
    assert ops[3]["output"] == [[0, 0, "k", "v"]]
    assert len(history.operations(tmp_path.glob("*.jsonl"), failed=True)) == 6


def transaction(name, *into, outcome="ok", id_="own", reads=None, at=(0, 1)):
    given = {"name": name, "id": id_, "into": list(into)}
    return {
        "client": 0,
        "op": "transaction",
        "log": "",
        "input": given,
        "outcome": outcome,
        "output": {"reads": reads or {}},
        "call": at[0],
        "return": at[1],
    }


def look(op, output, log="", at=(90, 99)):
    return {"op": op, "log": log, "outcome": "ok", "output": output, "call": at[0], "return": at[1]}


def rows(*names, key="counter"):
    pairs = [(k, n) for n in names for k in (key, n)]
    return [[0, offset, k, n] for offset, (k, n) in enumerate(pairs)]


SOUND = {
    "ops": [
        transaction("a", "home", "left", id_="shared", reads={"home": None}),
        transaction("b", "home", "left", id_="shared", reads={"home": "a"}, at=(2, 3)),
        transaction("c", "home", outcome="failed", at=(4, 5)),
        look("list", rows("a"), "home", at=(2, 3)),
        look("list", rows("a", "b"), "home", at=(6, 7)),
        look("cut", {"home": ["a", "counter"], "left": ["a", "counter"]}),
    ],
    "final": {"home": rows("a", "b"), "left": rows("a", "b"), "right": []},
}


@pytest.mark.parametrize(
    ("more", "final", "found"),
    [
        ([], {}, None),
        ([transaction("d", "home")], {}, "lost: home has 0 records of d"),
        ([], {"left": rows("a")}, "lost: left has 0 records of b"),
        ([transaction("d", "home", "left", outcome="unknown")], {}, None),
        (
            [transaction("d", "home", "left", outcome="unknown")],
            {"home": rows("a", "b", "d")},
            "G1a: d is there in part",
        ),
        ([], {"home": rows("a", "b", "c")}, "G1a: home has the aborted c"),
        ([], {"home": rows("a", "b", "z")}, "home has z, which nobody wrote"),
        ([look("list", rows("a", "b")[:3], "home", at=(4, 5))], {}, "G1b: a read of home shows 1"),
        ([look("list", rows("a"), "home", at=(8, 9))], {}, "old read: one of home ends at 2"),
        ([look("list", rows("b"), "left")], {}, "old read: one of left with 2 records"),
        ([], {"left": [*rows("a")[:1], *rows("b"), *rows("a")[1:]]}, "G0: a is not in one piece"),
        ([], {"left": rows("b", "a")}, "crossing under one id: a and b"),
        ([], {"home": rows("b", "a")}, "G1c: b read of a, which comes after it in home"),
        (
            [transaction("d", "home", id_="shared", reads={"home": "a"})],
            {"home": rows("a", "b", "d")},
            "lost update: b and d both replaced a",
        ),
        ([look("cut", {"home": ["a"], "left": []})], {}, "fractured cut: a is in ['home'] of"),
        ([look("cut", {"home": ["c"], "left": []})], {}, "G1a: a cut shows the aborted c"),
    ],
)
def test_each_anomaly_is_told(more, final, found):
    """S48 to S51, S74: a sound history has none, and each of these changes makes one."""
    told = isolation.anomalies([*SOUND["ops"], *more], {**SOUND["final"], **final})
    assert any(t.startswith(found) for t in told) if found else told == [], told


def test_transactions_of_different_ids_may_cross():
    """docs/transactions.md, isolation: that is counted, and no anomaly."""
    ops = [transaction(name, "home", "left", id_=name) for name in "ab"]
    final = {"home": rows("a", "b"), "left": rows("b", "a")}
    assert isolation.anomalies(ops, final) == []
    assert isolation.crossings(final) == [("a", "b")]


def op(name, given, output, at, outcome="ok", log="x1"):
    return {
        "client": 0,
        "op": name,
        "log": log,
        "input": given,
        "outcome": outcome,
        "output": output,
        "call": at[0],
        "return": at[1],
    }


def append(value, offset, at, outcome="ok", *, repeat=False):
    given = {"rows": [[0, 0, "k", value]], "repeat": repeat}
    return op("append", given, offset and {"0": [offset - 1, offset]}, at, outcome)


def read(*values, at):
    return op("read", 0, [[0, i, "k", v] for i, v in enumerate(values)], at)


CREATED = op("create", None, None, (0, 1))
A, B = append("a", 1, (2, 3)), append("b", 2, (4, 5))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("ops", "is_right"),
    [
        ([CREATED, A, B, read("a", "b", at=(6, 7))], True),
        ([CREATED, A, B, op("read", 0, [[0, 1, "k", "b"]], (6, 7))], True),  # It was cleaned.
        ([CREATED, A, B, read("a", at=(6, 7))], False),  # An old value.
        ([CREATED, A, B, read("a", at=(4, 5))], True),
        ([CREATED, B, read("a", "b", at=(6, 7))], False),  # A record from nowhere.
        ([CREATED, A, append("b", 1, (4, 5))], False),  # An offset given twice.
        ([CREATED, A, op("table", None, {"k": "b"}, (3, 4))], False),
        ([CREATED, A, append("b", None, (4, NEVER), "unknown"), read("a", at=(6, 7))], True),
        ([CREATED, A, append("b", None, (4, NEVER), "unknown"), read("a", "b", at=(6, 7))], True),
        ([CREATED, A, A, read("a", at=(6, 7))], False),
        ([CREATED, *[append("a", 1, at, repeat=True) for at in ((2, 3), (4, 5))]], True),
        ([CREATED, A, op("ends", None, {"0": 2}, (6, 7))], False),
        ([CREATED, A, op("read", 0, None, (4, 5), "gone")], False),  # Nobody deleted it.
        ([CREATED, op("delete", None, None, (2, 3)), append("a", 1, (4, 5))], False),
        ([CREATED, op("delete", None, None, (2, 9)), append("a", 1, (4, 5))], True),
        # Those who still have a deleted log open may see what its author is told is gone.
        (
            [
                *(CREATED, op("delete", None, None, (2, 9)), append("a", None, (3, 8), "gone")),
                *(read("a", at=(4, 5)), read("a", at=(6, 7))),
            ],
            True,
        ),
        ([CREATED, append("a", None, (3, 8), "gone"), read("a", at=(4, 5))], False),
        ([CREATED, op("open", None, None, (2, 3), log="x2")], False),
        ([CREATED, op("open", None, None, (2, 3), "gone")], False),
        (
            [
                *(CREATED, op("delete", None, None, (2, 3))),
                *(op("create", None, None, (4, 5), log="x2"), op("open", None, None, (6, 7))),
            ],
            False,
        ),
    ],
)
def test_the_judge_tells_right_from_wrong(judge, ops, is_right):
    """S1, S2, S47, S78, by a checker that nobody here wrote."""
    assert (judge(ops) == "ok") == is_right


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [FaultKind.FAIL_AFTER, FaultKind.REPEAT])
@pytest.mark.parametrize(
    ("how", "is_found"), [("plain", True), ("numbered", False), ("transaction", False)]
)
def test_an_own_commit_taken_for_anothers(judge, tmp_path, monkeypatch, kind, how, is_found):
    """K4, S78: planted, it doubles a plain append, and the judge tells. Under a sequence, or in a
    transaction, an append that is prepared again finds itself in the log.
    """
    monkeypatch.setattr(planted.committer, "_create", planted.committer._create)
    url = str(tmp_path / "log")
    Log.create(url, clients.PARTITIONS)
    place = clients.Place(url, {}, tmp_path, run.partitions_of_keys())
    planted.own_commit_taken_for_anothers()
    client = clients.Client(place, "c", 7)
    rules = Faults(Fault(kind, "create", "*/commits/*", nth=2))
    client.log = Log.open(FaultyStore(open_store(url), rules))
    created = {**CREATED, "log": client.log.id}
    monkeypatch.setattr(client.random, "choice", lambda of: how if "plain" in of else of[0])
    for _ in range(3):
        client.append()
    client.look_at_all()
    ops = [created, *history.operations([client.recorder.path])]
    assert [o["outcome"] for o in ops if o["op"] == "append"] == ["ok"] * 3
    assert (judge(ops) != "ok") == is_found
    lost = next(o for o in ops if o["op"] == "append")
    assert judge([o for o in ops if o is not lost]) != "ok"


@pytest.mark.nightly
def test_histories_of_processes_are_what_is_promised(judge):
    """Four processes or more, killed on the way, with lost replies: a log, one that is deleted and
    created again, and transactions over three.
    """
    done = subprocess.run(
        [sys.executable, str(OUTSIDE / "run.py"), "--histories", "4"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 histories, 0 not as promised" in done.stdout
