"""The benchmarks' harness: it runs, and its tables show what was measured. Nothing is
timed here.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def harness(monkeypatch):
    """The modules of `benchmarks/`, importable for one test."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in [
        n for n in sys.modules if n.partition(".")[0] in ("harness", "parts", "peers", "scenarios")
    ]:
        monkeypatch.delitem(sys.modules, name)


def row(who, values, *, what="sink, 100 B", lower=False):
    return {"what": what, "who": who, "unit": "u", "values": values, "lower": lower, "note": ""}


def result(rows, lines=()):
    machine = {"cpu": "c", "cores": "2", "memory": "m", "system": "s", "load": "0"}
    about = {"title": "T", "machine": machine, "size": {"name": "full", "rows": 1}, "seconds": 1}
    found = {"rows": rows, "lines": list(lines), "notes": [], "versions": {}}
    return {"scenario": "spark_streams", **about, **found}


@pytest.mark.nightly
def test_one_command_runs_a_scenario_and_prints_its_table(tmp_path):
    """`run.py` in its smallest form: a file of results, and a ratio for each peer."""
    command = [sys.executable, str(BENCHMARKS / "run.py"), "--smallest", "--only", "limits"]
    command += ["--set", "rows=500", "--set", "rows_1k=100", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + (tmp_path / "limits.log").read_text()
    found = json.loads((tmp_path / "limits.json").read_text())
    assert found["size"]["rows"] == 500
    compared = {r["what"] for r in found["rows"]}
    assert {"append, 100 B", "read, 100 B", "table, 1024 B", "clean, 1024 B"} <= compared
    for what in compared:
        assert f"| {what}, thousand records/s | clog |" in done.stdout


def test_every_scenario_has_what_the_harness_asks_of_it(harness):
    """A scenario is a module with a title, an environment, three sizes and `run`."""
    import importlib

    import run
    from peers.environments import ENVIRONMENTS

    found = {path.stem for path in (BENCHMARKS / "scenarios").glob("[a-z]*.py")}
    assert set(run.SCENARIOS) == found
    for name in run.SCENARIOS:
        text = (BENCHMARKS / "scenarios" / f"{name}.py").read_text()
        assert all(f"{word} = " in text for word in ("TITLE", "ENVIRONMENT", "ENGINE", "SIZES"))
        scenario = importlib.import_module(f"scenarios.{name}")
        assert {*scenario.SIZES} == {"smallest", "quick", "full"}
        assert scenario.ENVIRONMENT in {"own", *ENVIRONMENTS}


def test_a_ratio_is_taken_within_each_round(harness):
    """Twice as fast in each round is 2, even if rounds differ; less time is better."""
    from harness.results import ratios

    faster = row("clog", [10, 100, 1000])
    assert ratios(row("peer", [5, 50, 500]), faster) == [2, 2, 2]
    quicker = row("clog", [1, 2], lower=True)
    assert ratios(row("peer", [10, 40], lower=True), quicker) == [10, 20]


def test_a_call_of_ours_is_compared_by_name(harness):
    """As in the README's table if a faster call than `format("clog")` exists; if that was not
    measured there is no ratio, not another row's.
    """
    from harness.results import pair

    rows = [row("clog", [1]), row("clog, read_log", [2]), row("Parquet (floor)", [4])]
    found = {"spark_streams": result(rows)}
    asked = ("spark_streams", "sink, 100 B", "Parquet (floor)")
    ours = [pair(found, *asked)[0]["who"], pair(found, *asked, "clog, read_log")[0]["who"]]
    assert ours == ["clog", "clog, read_log"]
    assert pair(found, *asked, "clog, count_table") is None


def test_what_fell_since_the_last_release(harness):
    """A ratio that is more than a tenth lower than before; a new or removed row is none."""
    from harness.results import fallen

    def of(sink, clean):
        rows = [row("clog", [10]), row("peer", [10 / sink]), row("clog", [10], what="clean")]
        return {"spark_streams": result([*rows, row("peer", [10 / clean], what="clean")])}

    (found,) = fallen(of(0.89, 0.91), of(1, 1))
    assert found == ("spark_streams", "sink, 100 B", "peer", 1, pytest.approx(0.89))
    assert fallen(of(2, 2), of(1, 1)) == fallen(of(1, 1), {}) == fallen({}, of(1, 1)) == []


@pytest.mark.parametrize(("peer", "verdict"), [([5, 5], "met"), ([20, 40], "**missed**")])
def test_the_report_says_which_target_was_missed(harness, tmp_path, peer, verdict):
    """A target is met by the median of the ratios."""
    from harness.report import report

    found = result([row("clog", [10, 20]), row("Apache Kafka", peer)])
    (tmp_path / "spark_streams.json").write_text(json.dumps(found))
    assert f"| {verdict} |" in report(tmp_path)


@pytest.mark.nightly
def test_pictures_are_the_same_for_the_same_results(harness, tmp_path):
    """A picture changes when results do, not when it is drawn again."""
    from harness.plots import draw

    line = {"what": "open", "who": "clog", "x": "commits", "unit": "ms", "points": [[1, 2], [8, 3]]}
    found = result([row("clog", [10]), row("Apache Kafka", [5])], [line])
    names = [name for name, _ in draw({"spark_streams": found}, tmp_path / "a")]
    assert names == ["ratios.svg", "open.svg"]
    draw({"spark_streams": found}, tmp_path / "b")
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_readme_has_the_table_of_the_results(harness):
    """Eight lines of it, the worst of all among them: no figure is edited by hand, or outdated."""
    from harness.readme import BEGIN, END, FIRST, table
    from harness.results import load

    shown = (BENCHMARKS.parent / "README.md").read_text().partition(BEGIN)[2].partition(END)[0]
    results = load(BENCHMARKS / "results")
    assert shown.strip() == table(results, FIRST)
    _, _, *first = shown.strip().splitlines()
    assert len(first) == len(FIRST) == 8
    _, _, *every = table(results).splitlines()
    assert min(every, key=lambda line: float(line.split("|")[-2])) in first
    assert "\n".join(every) in (BENCHMARKS.parent / "docs/benchmarks.md").read_text()


@pytest.mark.nightly
def test_the_page_of_benchmarks_is_the_one_of_the_results(harness, tmp_path):
    """`docs/benchmarks.md` and `results.md` have every current figure, remark and description."""
    from harness.report import write_docs

    for folder in ("docs", "benchmarks"):
        (tmp_path / folder).mkdir()
    write_docs(BENCHMARKS / "results", tmp_path)
    for page in ("docs/benchmarks.md", "benchmarks/results.md"):
        assert (tmp_path / page).read_text() == (BENCHMARKS.parent / page).read_text()


def test_the_index_names_every_scenario_and_every_part(harness):
    """What is not in a table of `benchmarks/README.md` is not found."""
    import run

    index = (BENCHMARKS / "README.md").read_text()
    for name in run.SCENARIOS:
        assert f"| `{name}` |" in index
    for path in (BENCHMARKS / "parts").glob("[a-z]*.py"):
        assert f"| `python benchmarks/parts/{path.name}` |" in index


def test_writers_who_combine_share_a_log_in_virtual_time(harness):
    """Sixteen get half as much again as racing, nobody waits for long; the same seed gives the same
    run.
    """
    from harness.crowd import Crowd, measure

    combining = measure(Crowd(16, 5))
    assert combining.unfair < 5
    assert combining.rate > 1.5 * measure(Crowd(16, 5, combine=False)).rate
    assert measure(Crowd(16, 5)).took == combining.took


@pytest.mark.nightly
def test_a_pass_is_let_in_beside_two_hundred_writers(harness):
    """A pass of a cleaner whose requests take twice as long as theirs commits within ten versions
    or five seconds.
    """
    from harness.crowd import Crowd, measure

    found = measure(Crowd(200, 6, busy=True, warm_ms=3_000, cleaner_ms=lambda _: 200.0))
    beside = {operation: (took, others) for operation, took, others in found.commits if others}
    took_ms, others = beside["clean"]
    assert others <= 10 or took_ms <= 5_000


def test_who_is_far_away_is_not_kept_out_where_versions_come_fast(harness):
    """COMMIT.md §14: of 25 versions a second eight pass in each request of a slow author, which
    is taken along all the same; and one in each of a cleaner, which is let in for as long as it
    needs.
    """
    from harness.crowd import Crowd, measure

    def near_ms(dice):
        return dice.uniform(4, 6.5)

    crowd = Crowd(5, 7, busy=True, warm_ms=3_000, writers_ms=near_ms, pause_ms=60, slow_ms=300)
    found = measure(replace(crowd, cleaner_ms=lambda _: 30.0))
    assert len(found.slow) > 1
    assert max(found.slow) <= 10 * 300
    assert len(found.commits) > 1
    assert max(took for _, took, _ in found.commits) <= 50 * 30


def test_beside_a_cleaner_and_a_slow_author_nobody_waits_for_long(harness):
    """A writer whose requests take a second waits for only some of them; a round of the cleaner
    ends, though more is posted than it deletes one by one.
    """
    from harness.crowd import Crowd, measure

    found = measure(Crowd(12, 16, busy=True))
    assert len(found.slow) >= 2
    assert max(found.slow) <= 14_500
    assert found.unfair < 5
    assert len(found.rounds) >= 3
    assert max(found.rounds) <= 10_000
