"""`clog publish`, and `--withdraw`."""

import json
from pathlib import Path

import pytest

from clog.storage import Log


@pytest.fixture
def log(url):
    log = Log.create(url, partitions=2)
    log.append([{"key": f"k{i}", "value": "v"} for i in range(10)])
    return log


def test_a_view_is_taken_back(cli, url, log):
    """S69: all existing ones, or those that are named; the second time changes nothing."""
    cli("publish", url)
    assert "needs version 1" in cli("describe", url).stdout
    said = cli("publish", url, "--withdraw").stdout
    assert said.startswith("withdrew the delta table; its version 1 is empty; files of its older")
    assert cli.json("publish", url, "--withdraw")["views"] == [
        {
            "format": "delta",
            "table_version": 1,
            "withdrawn": False,
            "kept": True,
            "given_up": False,
        }
    ]
    versions = [p.name for p in Path(url, "_delta_log").glob("*.json")]
    assert versions == [f"{1:020d}.json"]
    assert "CLOG WITHDRAW" in Path(url, "_delta_log", versions[0]).read_text()


def test_without_a_view_there_is_nothing_to_take_back(cli, url, log):
    """S68: and nothing is written."""
    version = log.version
    assert (
        "there is no iceberg view"
        in cli("publish", url, "--withdraw", "--format", "iceberg").stdout
    )
    assert log.version == version
    assert not Path(url, "metadata").exists()
    assert "--force requires --withdraw" in cli("publish", url, "--force", code=2).stderr


def test_the_cleaner_publishes_again_what_is_configured(cli, url, log):
    """S69: the output says so."""
    log.alter({"table.publish": "delta"})
    cli("publish", url)
    said = cli("publish", url, "--withdraw").stdout
    assert "table.publish still names delta: the cleaner will publish it again" in said
    assert json.loads(cli("publish", url, "--json").stdout)["views"][0]["table_version"] == 2
