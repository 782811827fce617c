"""`clog snapshot`: naming, listing and dropping cuts (S74)."""

import pytest

from clog.storage import Log, snapshots
from clog.storage.config.units import moment


@pytest.fixture
def logs(url, tmp_path):
    home = Log.create(url, partitions=1)
    other = Log.create(str(tmp_path / "stock"), partitions=1)
    with home.transaction("job") as t:
        t.append([{"key": "k", "value": "a"}])
        t.append([{"key": "k", "value": "b"}], log=other)
    return home, other


def test_a_cut_is_named_listed_and_dropped(cli, url, logs):
    home, other = logs
    assert cli("snapshot", url).stdout == "no named cuts\n"
    said = cli("snapshot", url, "month-end", "--keep", "30d").stdout.splitlines()
    assert said[0] == "created the cut month-end over 2 logs"
    (cut,) = snapshots(url)
    assert cut.until_ms == cut.time_ms + 30 * 86_400_000
    assert said[2:] == [f"  version {v} of {at}" for at, v in cut.logs.items()]
    told = cli.json("snapshot", url)
    assert told["cuts"] == [
        {
            "name": "month-end",
            "time_ms": cut.time_ms,
            "time": moment(cut.time_ms),
            "until_ms": cut.until_ms,
            "until": moment(cut.until_ms),
            "logs": {home.url: cut.logs[home.url], other.url: cut.logs[other.url]},
        }
    ]
    assert "month-end" in cli("describe", other.url).stdout
    assert cli("snapshot", url, "--drop", "month-end").stdout == "dropped the cut month-end\n"
    assert cli.json("snapshot", url)["cuts"] == []
    assert "month-end" not in cli("describe", other.url).stdout


def test_a_cut_is_published(cli, url, logs):
    """Each log's line says which version of its table shows the cut; as JSON by URL."""
    pytest.importorskip("fastavro")
    _, other = logs
    other.publish("delta")
    said = cli("snapshot", url, "c", "--publish", "delta", "--publish", "iceberg").stdout
    (cut,) = snapshots(url)
    assert [line for line in said.splitlines() if line.startswith("  ")] == [
        f"  version {v} of {at}, version 0 of its delta table, version 1 of its iceberg table"
        for at, v in cut.logs.items()
    ]
    views = {log.url: {"delta": 0} for log in logs}
    assert cli.json("snapshot", url, "d", "--publish", "delta")["views"] == views


@pytest.mark.parametrize(
    "given",
    [
        ["--publish", "delta"],
        ["c", "--publish", "hudi"],
        ["month-end", "--drop", "month-end"],
        ["--force"],
        ["--keep", "3d"],
        ["--without", "x"],
        ["month-end", "--keep", "soon"],
    ],
)
def test_a_wrong_command_line(cli, url, logs, given):
    cli("snapshot", url, *given, code=2)


def test_what_there_is_not(cli, url, logs):
    said = cli("snapshot", url, "--drop", "nothing", code=1).stderr
    assert "has no cut 'nothing'" in said
