"""`clog delete`, `clog ls`, `clog alter --roll`."""

import json
from pathlib import Path

import pytest

from clog.storage import Log


@pytest.fixture
def log(url):
    log = Log.create(url, partitions=2)
    log.append([{"key": f"k{i}", "value": "v"} for i in range(10)])
    return log


def test_delete_leaves_nothing(cli, url, log):
    """Neither files nor folders; afterwards there is no log."""
    said = cli("delete", url, "--yes").stdout
    assert said.startswith(f"deleted the log at {url}: ")
    assert not Path(url).exists()
    assert "no log at" in cli("delete", url, "--yes", code=1).stderr


def test_delete_leaves_files_of_others(cli, url, log):
    """What clog did not write is kept."""
    Path(url, "notes.txt").write_text("mine")
    cli("delete", url, "--yes")
    assert [p.name for p in Path(url).iterdir()] == ["notes.txt"]


def test_delete_takes_the_published_table_along(cli, url, log):
    """In both formats; the table of a deleted log would name deleted objects."""
    for name in ("delta", "iceberg"):
        cli("publish", url, "--format", name)
    assert {p.name for p in Path(url).iterdir()} == {"_clog", "_delta_log", "metadata"}
    cli("delete", url, "--yes")
    assert not Path(url).exists()


def test_delete_asks_first(cli, url, log):
    """If nobody can be prompted, it needs --yes; a dry run deletes nothing."""
    assert "--yes" in cli("delete", url, code=2).stderr
    shown = cli.json("delete", url, "--dry-run")
    assert (shown["dry_run"], shown["log_id"]) == (True, log.handle.standing.log_id)
    assert cli.lines("consume", url, "-n", 1)
    assert cli.json("delete", url, "-y")["files"] == shown["files"]


def test_a_writer_of_a_deleted_log_is_told(cli, url, log):
    """Nothing of it appears again (S47)."""
    from clog.storage import NotFoundError

    cli("delete", url, "-y")
    with pytest.raises(NotFoundError):
        log.append([{"key": "k", "value": "v"}])
    assert not [p for p in Path(url).rglob("*.json") if p.is_file()]


def test_ls_lists_logs(cli, tmp_path):
    """Below a folder, sorted; --long says what they are, or why one cannot be opened."""
    for name in ("b", "sub/a"):
        Log.create(str(tmp_path / name), partitions=3).append([{"key": "k", "value": "v"}])
    (tmp_path / "broken/_clog").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    urls = [f"{tmp_path}/{name}" for name in ("b", "broken", "sub/a")]
    assert cli("ls", tmp_path).stdout.splitlines() == urls
    rows = cli.json("ls", tmp_path, "--long")["logs"]
    assert [row["url"] for row in rows] == urls
    assert (rows[0]["partitions"], rows[0]["records"], rows[0]["version"]) == (3, 1, 1)
    assert "no log at" in rows[1]["error"]
    table = cli("ls", tmp_path, "-l").stdout
    assert "compact" in table
    assert "no log at" in table
    assert json.loads(cli("ls", tmp_path / "other", "--json").stdout)["logs"] == []
    assert cli("ls", tmp_path / "other").stderr == f"no logs below {tmp_path}/other\n"


def test_ls_beside_a_folder_that_cannot_be_listed(cli, tmp_path, forbidden):
    """Everything else is listed, and the exit code says that something may be missing."""
    log = Log.create(str(tmp_path / "a"), partitions=1)
    (tmp_path / "private").mkdir()
    forbidden.add(str(tmp_path / "private"))
    done = cli("ls", tmp_path, code=1)
    assert done.stdout.splitlines() == [log.url]
    assert f"logs below {tmp_path}/private cannot be listed: " in done.stderr


def test_ls_of_nothing_says_so(cli, tmp_path):
    """A misspelt folder is not a folder without logs."""
    told = json.loads(cli("ls", tmp_path / "wrong", "--json", code=1).stderr)["error"]
    assert told["message"] == f"there is no folder {tmp_path}/wrong; correct the URL"


def test_ls_finds_a_log_inside_of_a_log(cli, tmp_path):
    """Nobody else would: neither a user who looks for it nor the cleaner (--discover)."""
    urls = [str(tmp_path / name) for name in ("a", "a/b", "a/b/c")]
    for url in urls:
        log = Log.create(url, partitions=1)
        log.append([{"key": "k", "value": "v"}])
        log.publish("iceberg")
    assert cli("ls", tmp_path).stdout.splitlines() == urls


def test_roll_seals(cli, url, log):
    """All partitions, or one; the second time there is nothing to do."""
    assert cli.json("alter", url, "--roll", 1)["sealed"] == [1]
    assert cli("alter", url, "--roll", "all").stdout == "sealed the active segment of partition 0\n"
    assert (
        cli("alter", url, "--roll", "all").stdout == "nothing to seal: active segments are empty\n"
    )
    assert [len(log.segments(p)) for p in (0, 1)] == [2, 2]


def test_clean_says_why_there_is_nothing_to_clean(cli, url, log):
    """It does not recommend --roll if nothing is left to seal."""
    assert "--roll" in cli("clean", url, "--force").stdout
    cli("clean", url, "--roll", "--force")
    assert "all of it is clean" in cli("clean", url, "--force").stdout
    log.alter({"min.compaction.lag.ms": "1d"})
    log.append([{"key": "k", "value": "v"}])
    log.roll()
    assert "records cannot be cleaned yet" in cli("clean", url, "--force").stdout
    log.alter({"cleanup.policy": "delete"})
    assert 'no "compact"' in cli("clean", url, "--force").stdout


def test_clean_rolls_first(cli, url, log):
    """So that everything can be cleaned (S10); a dry run refuses to change the log."""
    log.append([{"key": "k1", "value": "w"}])
    assert cli.json("clean", url, "--force")["passes"] == []
    assert "--roll" in cli("clean", url, "--force").stdout
    assert "leave one out" in cli("clean", url, "--roll", "--dry-run", code=2).stderr
    done = cli.json("clean", url, "--force", "--roll")
    assert done["rolled"] == [0, 1]
    assert sum(each["stats"]["records_removed"] for each in done["passes"]) == 1
    assert "nothing to seal" in cli("clean", url, "--roll").stdout
