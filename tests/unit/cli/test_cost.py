"""`clog cost`: what a day costs."""

import json
from pathlib import Path

import pytest

from clog.cli.cost import APPENDS, PRICES, bill, daily
from clog.storage import Log, ManualClock
from clog.storage.spi import Written

DAY_MS = 86_400_000
PAST = Written(
    span_ms=DAY_MS,
    commits=12,
    commit_bytes=12_000,
    appends=10,
    append_objects=30,
    append_bytes=5_000,
    other_objects=4,
    other_bytes=900,
    snapshots=3,
)


def by_name(lines):
    return {line.what: line for line in lines}


def test_requests_follow_from_the_protocol():
    """COMMIT.md §7 at a batch a minute: objects + 1 PUT, 1 GET, a hint for every fourth version."""
    lines = by_name(daily(PAST, trigger_ms=60_000, readers=2))
    batches, commits = 1440, 1442
    assert lines["objects of micro-batches"].puts == 3 * batches
    assert (lines["commits"].puts, lines["commits"].gets) == (commits, commits)
    assert lines["hints"].puts == commits / 4
    assert lines["snapshots and pages"].puts == 2 * commits * 3 / 12
    assert lines["objects of maintenance"].puts == 4
    assert lines["polls of readers"].gets == 2 * (batches + commits)
    assert lines["reads of readers"].gets == 2 * batches * 3 * 2


def test_commits_are_read_back_where_creates_are_probed(monkeypatch, url):
    """COMMIT.md §7: one GET more for each, with its bytes; the log's own store decides."""
    proven, probed = (
        by_name(daily(PAST._replace(reads_back=reads_back), trigger_ms=60_000, readers=2))
        for reads_back in (False, True)
    )
    assert probed["commits"].gets == 2 * proven["commits"].gets
    assert probed["commits"].bytes_in == probed["commits"].bytes_out > 0
    assert {**probed, "commits": 0} == {**proven, "commits": 0}
    log = Log.create(url)
    log.append([{"key": "a", "value": "1"}])

    def gets():
        (commits,) = [
            line
            for line in bill(log, PRICES["aws"], trigger_ms=1000, readers=1, commits=9).lines
            if line.what == "commits"
        ]
        return commits.gets

    once = gets()
    monkeypatch.setattr(type(log.handle.store), "create_is_proven", False)
    assert gets() == 2 * once


def test_bytes_are_those_of_the_past():
    """Whatever the trigger: the data is the same, and so is the number of commits."""
    for trigger_ms in (1000, 3_600_000):
        lines = by_name(daily(PAST, trigger_ms=trigger_ms, readers=1))
        assert lines["objects of micro-batches"].bytes_out == 5_000
        assert lines["reads of readers"].bytes_in == 5_000
    assert lines["commits"].bytes_out == 26 * 1000


def test_a_log_without_a_past_costs_its_protocol():
    """One object per batch is assumed; nothing is divided by zero."""
    nothing = Written(0, 0, 0, 0, 0, 0, 0, 0, 0)
    lines = by_name(daily(nothing, trigger_ms=DAY_MS, readers=0))
    assert lines["objects of micro-batches"].puts == 1
    assert lines["polls of readers"].gets == 0


def test_cost_reads_the_history(cli, url, monkeypatch):
    """Appends, their objects and bytes; the creation is not maintenance; the sum is printed."""
    clock = ManualClock(0)
    log = Log.create(url, partitions=2, clock=clock)
    for i in range(4):
        clock.advance(1000)
        log.append([{"key": "a", "value": str(i)}])
    told = cli.json("cost", url, "--trigger", "1min", "--prices", "gcs")
    past = told["past"]
    assert (past["appends"], past["commits"], past["append_objects"]) == (4, 4, 4)
    assert past["span_ms"] == 3000
    assert past["append_bytes"] == told["stored_bytes"] > 0
    assert told["prices"]["name"].startswith("Standard")
    monkeypatch.setenv("COLUMNS", "20")
    text = cli("cost", url).stdout
    assert "objects of micro-batches" in text
    assert "…" not in text, "a number that is cut is another number"
    assert "from 4 commits, 4 of them appends, over 3 s" in text


def test_cost_of_many_partitions(cli, url, monkeypatch):
    """Columns in documents, and snapshots, are as frequent and as large as they were; a log of few
    partitions has no such line.
    """
    monkeypatch.setattr("clog.storage.format.columns.INLINE_PARTITIONS_MAX", 8)
    monkeypatch.setattr("clog.storage.commit.committer.SNAPSHOT_EDIT_BYTES_MIN", 10)
    clock = ManualClock(0)
    log = Log.create(url, partitions=24, clock=clock)
    refs = set()
    for i in range(20):
        clock.advance(1000)
        log.append([{"key": "a", "value": str(i)}], partition=i % 5)
        refs.add(log.handle.tip.head.partitions.ref)
    told = cli.json("cost", url, "--trigger", "1s")
    past, lines = told["past"], {line["what"]: line for line in told["daily"]}
    assert past["columns"] == len(refs) > 1
    assert past["columns_bytes"] == sum(ref.size_bytes for ref in refs)
    columns, snapshots = lines["columns of partitions"], lines["snapshots and pages"]
    assert columns["puts"] == pytest.approx(86_400 * len(refs) / 20)
    assert columns["bytes_out"] == pytest.approx(86_400 * past["columns_bytes"] / 20)
    assert past["snapshot_bytes"] > 0
    assert snapshots["bytes_out"] == pytest.approx(snapshots["puts"] / 2 * past["snapshot_bytes"])
    assert "columns of partitions" not in by_name(daily(PAST, trigger_ms=1000, readers=0))


OWN = {"name": "ours", "as_of": "2031-02", "put_1000": 1000, "get_1000": 0.5} | {
    "list_1000": 0,
    "gb_month": 0,
}


def test_prices_of_ones_own(cli, url, tmp_path):
    """The output says whose prices, of what date, and where today's are; a contract's prices come
    from a file.
    """
    Log.create(url)
    path = tmp_path / "prices.json"
    path.write_text(json.dumps(OWN))
    told = cli.json("cost", url, "--trigger", "24h", "--readers", "0", "--prices", path)
    assert told["prices"] == {**OWN, "source": str(path)}
    by_line = {line["what"]: line["dollars"] for line in told["daily"]}
    assert by_line["objects of micro-batches"] == 1.0
    text = cli("cost", url, "--prices", "azure").stdout
    assert "list prices of 2025-01" in text
    assert "azure.microsoft.com/pricing" in text
    assert "--prices FILE" in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ibm", "neither one of aws, aws-express, gcs, azure nor a file"),
        ("[1]", "does not contain a JSON object of name"),
        (json.dumps({**OWN, "put_1000": "1"}), "put_1000='1'"),
        (json.dumps({**OWN, "gb_month": -1}), "gb_month=-1"),
        (json.dumps({**OWN, "egress": 1}), "does not contain"),
    ],
)
def test_wrong_prices_are_refused(cli, url, tmp_path, text, said):
    """With the existing names, or what is wrong in the file."""
    Log.create(url)
    if text != "ibm":
        path = tmp_path / "prices.json"
        path.write_text(text)
        text = str(path)
    stderr = cli("cost", url, "--prices", text, code=2).stderr
    assert said in " ".join(stderr.replace("│", " ").split())


@pytest.mark.parametrize("trigger", ["", "10", "0s", "ten", "-1s"])
def test_a_wrong_trigger_is_refused(cli, url, trigger):
    """With examples of valid ones."""
    Log.create(url)
    assert "10s" in cli("cost", url, f"--trigger={trigger}", code=2).stderr


def test_many_writers_cost_what_was_measured(cli, url):
    """A million appends, by how many append at once, from the requests that the benchmark
    counted.
    """
    results = Path(__file__).parents[3] / "benchmarks/results/many_writers.json"
    rows = json.loads(results.read_text())["rows"]
    for writers, each in APPENDS.items():
        what = f"{writers} writers: appends"
        note = next(r["note"] for r in rows if (r["what"], r["who"]) == (what, "clog"))
        found = {
            kind: float(number) for number, kind in (one.split(" ") for one in note.split(", "))
        }
        assert (each.puts, each.gets) == (found["PUT"], found["GET"])
        assert each.lists == found.get("LIST", 0)
    Log.create(url)
    told = cli.json("cost", url, "--prices", "aws-express")["million_appends"]
    assert {*told} == {"1", "8", "200"}
    each = APPENDS[200]
    assert told["200"] == pytest.approx(1.13 * (each.puts + each.lists) + 0.03 * each.gets)
