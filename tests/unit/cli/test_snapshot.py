"""`clog snapshot`: naming, listing and dropping cuts (S74)."""

import pytest

from clog.storage import Log, snapshots


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
    assert said[0] == "named the cut month-end over 2 logs"
    (cut,) = snapshots(url)
    assert cut.until_ms == cut.time_ms + 30 * 86_400_000
    assert said[2:] == [f"  version {v} of {at}" for at, v in cut.logs.items()]
    told = cli.json("snapshot", url)
    assert told["cuts"] == [
        {
            "name": "month-end",
            "time_ms": cut.time_ms,
            "until_ms": cut.until_ms,
            "logs": {home.url: cut.logs[home.url], other.url: cut.logs[other.url]},
        }
    ]
    assert "month-end" in cli("describe", other.url).stdout
    assert cli("snapshot", url, "--drop", "month-end").stdout == "dropped the cut month-end\n"
    assert cli.json("snapshot", url)["cuts"] == []
    assert "month-end" not in cli("describe", other.url).stdout


@pytest.mark.parametrize(
    "given",
    [
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
