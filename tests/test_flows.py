"""How much of the house a reader meets who follows one flow: the files that it enters, counted."""

import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

import clog
from clog.cleaner import Cleaner
from clog.storage import Log

ROOTS = tuple(str(Path(path).resolve()) for path in clog.__path__)
FILES_MAX = {
    "append": 20,
    "open": 13,
    "refresh": 11,
    "read": 18,
    "table": 21,
    "get": 19,
    "transaction": 25,
    "pass": 38,
    "idle round": 24,
}
"""Ceilings, which are only ever lowered (STYLE.md, *Shape*)."""
CROSSINGS_MAX = {"append": 190, "table": 635, "pass": 2385, "idle round": 370}
"""Calls from one file into another; also only ever lowered."""
IDLE_CALLS_MAX = 560
"""How many calls of the product's functions a round may take that finds nothing to do: most of a
daemon's rounds are such.
"""


class Entered(Counter):
    """The product's files in which a call enters a function, in any thread, and how often;
    ``crossings``: how many of these calls come from another file.
    """

    crossings = 0


def entered(do) -> Entered:
    """What a flow enters."""
    files = Entered()

    def note(frame, event, _):
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(ROOTS):
            files[name] += 1
            before = frame.f_back
            files.crossings += before is not None and before.f_code.co_filename != name

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        do()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return files


@pytest.fixture(scope="module")
def flows(tmp_path_factory):
    """What each flow enters, on a log of a few commits."""
    url = str(tmp_path_factory.mktemp("flows") / "orders")
    rows = [{"key": f"k{i}", "value": "v"} for i in range(100)]
    log = Log.create(url, partitions=2, config={"cleanup.policy": "compact"})
    log.append(rows)
    found = {"append": entered(lambda: log.append(rows))}
    log.append(rows, producer=("p", 1))
    found["open"] = entered(lambda: Log.open(url))
    other, third = Log.open(url), Log.open(url)
    log.append(rows)
    found["refresh"] = entered(other.end_offsets)
    found["read"] = entered(lambda: [batch.num_rows for batch in third.read()])
    found["table"] = entered(lambda: log.table().to_arrow())
    found["get"] = entered(lambda: log.table().get("k1"))

    def transaction():
        with log.transaction("t1") as t:
            t.append(rows)

    found["transaction"] = entered(transaction)
    log.roll()
    found["pass"] = entered(lambda: Cleaner(log).run_once(force=True))
    cleaner = Cleaner(log)
    found["idle round"] = entered(cleaner.run_once)
    found["next idle round"] = entered(cleaner.run_once)
    return found


@pytest.mark.parametrize("flow", FILES_MAX)
def test_a_flow_stays_in_few_files(flows, flow):
    """Following a flow opens this many files, and no more than before."""
    entered_now = f"{len(flows[flow])} of at most {FILES_MAX[flow]}: {sorted(flows[flow])}"
    assert len(flows[flow]) <= FILES_MAX[flow], entered_now


@pytest.mark.parametrize("flow", CROSSINGS_MAX)
def test_a_flow_seldom_leaves_a_file(flows, flow):
    """Following a flow, a reader turns to another file this often, and no more than before."""
    assert flows[flow].crossings <= CROSSINGS_MAX[flow]


def test_an_idle_round_takes_few_calls(flows):
    """A cleaner that found nothing to do looks again with little work."""
    assert flows["next idle round"].total() <= IDLE_CALLS_MAX
