"""What is on disk, by `clog describe`, and whether it is sound, by `clog verify`."""

import json

import pytest

from clog.storage import Log
from clog.storage.format.documents import commit_path
from clog_testing.undecided import append_undecided


@pytest.fixture
def log(url):
    log = Log.create(url, partitions=2)
    log.append([{"key": "secret-key", "value": "secret-value"}] * 2, partition=0)
    log.append([{"key": "b", "value": None}], partition=1)
    log.delete_records({0: 1})
    return log


def rows(cli, *arguments):
    return [json.loads(line) for line in cli("describe", *arguments, "--json").stdout.splitlines()]


def test_the_newest_commit_is_shown(cli, url, log):
    """Its edit and its head, without the seed of the log's filters (S19), and no data."""
    found = cli.json("describe", url, "commit")
    assert (found["version"], found["operation"]) == (3, "delete-records")
    assert found["edit"] == {"start": {"0": 1}}
    assert found["head"]["partitions"]["end"] == [2, 1]
    assert found["carries"] == []
    assert "seed" not in found["head"]["log"]
    text = cli("describe", url, "commit").stdout
    assert text.startswith("version 3: delete-records at ")
    assert '"end": [ 2, 1 ]' in text


def test_a_commit_is_shown_by_its_version(cli, url, log):
    """Version 0 creates the log; a missing one is an error that says how to find others."""
    first = cli.json("describe", url, "commit", "--at", 0)
    assert first["edit"]["create"]["partitions"] == 2
    assert "seed" not in json.dumps(first)
    assert (
        f"clog describe {url} history" in cli("describe", url, "commit", "--at", 9, code=1).stderr
    )


def test_commits_are_listed(cli, url, log):
    """Oldest first: what each did, to which partitions."""
    found = rows(cli, url, "history")
    assert [
        (r["version"], r["operation"], r["appended_records"], r["partitions"]) for r in found
    ] == [
        (0, "create", 0, []),
        (1, "append", 2, [0]),
        (2, "append", 1, [1]),
        (3, "delete-records", 0, [0]),
    ]
    lines = cli("describe", url, "history").stdout.splitlines()
    assert lines[1].startswith("version 1  ")
    assert "appended records 2  partitions 0" in lines[1]


def test_objects_are_listed(cli, url, log, folder):
    """Live ones with their partitions, and what is in no manifest, or missing."""
    live = rows(cli, url, "objects")
    assert [(r["state"], r["live_rows"], r["partitions"]) for r in live] == [
        ("live", 2, [0]),
        ("live", 1, [1]),
    ]
    (folder / "data" / f"{0:020d}-{'f' * 32}.parquet").write_bytes(b"orphan")
    (folder / live[1]["path"]).unlink()
    assert sorted(r["state"] for r in rows(cli, url, "objects")) == [
        *("in no manifest", "live", "missing"),
    ]
    assert "in no manifest  data/" in cli("describe", url, "objects").stdout


def test_nothing_on_disk_shows_data(cli, url, log):
    """Keys and values are left out."""
    for what in (["commit"], ["commit", "--at", 1], ["history"], ["objects"], ["markers"]):
        for form in ([], ["--json"]):
            assert "secret" not in cli("describe", url, *what, *form).stdout


def test_a_sound_log_verifies(cli, url, log):
    """Exit code 0, and what was checked."""
    text = cli("verify", url).stdout
    assert text.startswith(f"{url} is sound: version 3, 4 commits, 2 objects of ")
    found = cli.json("verify", url)
    assert (found["version"], found["records"], found["findings"]) == (3, 3, [])
    assert cli.json("verify", url, "--quick")["findings"] == []


def test_a_broken_history_is_repaired_into_a_copy(cli, url, folder, tmp_path):
    """What was left out and rebuilt is printed, and the copy is verified."""
    (folder / commit_path(1)).write_bytes(b"torn")
    place = str(tmp_path / "copy")
    lines = cli("verify", url, "--repair", place).stdout.splitlines()
    assert lines[:2] == [
        "left out: commit 1 (cannot be read)",
        "rebuilt: commit 1, from other commits",
    ]
    assert lines[2] == f"{place} has version 3 of {url}, which is unchanged"
    assert lines[3].startswith(f"{place} is sound: version 3, 4 commits")
    assert cli("verify", url, code=1)
    found = cli.json("verify", url, "--repair", f"{place}2")
    assert (found["version"], found["rebuilt"]) == (3, [1])
    refused = cli("verify", place, "--repair", f"{place}3", code=1)
    assert "is sound: nothing to repair" in refused.stderr


def test_a_damaged_log_does_not_verify(cli, url, folder):
    """Exit code 1, a line for each finding; the same as JSON."""
    objects = [r["path"] for r in rows(cli, url, "objects")]
    (folder / objects[0]).unlink()
    (folder / objects[1]).write_bytes(b"")
    result = cli("verify", url, code=1)
    missing, damaged, total = result.stdout.splitlines()
    assert missing.startswith(f"object-missing: {objects[0]}: is missing; it holds [0, 2)")
    assert damaged.startswith(f"object: {objects[1]}: has 0 bytes, but the manifest says ")
    assert total.startswith("2 findings in ")
    found = cli.json("verify", url, code=1)["findings"]
    assert [finding["where"] for finding in found] == objects


def test_transactions_are_listed(cli, url, log):
    """What is undecided, from which offset and in which objects; the markers of what has ended."""
    append_undecided(log, [{"key": "k", "value": "v"}], partition=1)
    log.abort_transaction("job")
    append_undecided(log, [{"key": "k", "value": "v"}], partition=1, number=1)
    log.append([{"key": "k", "value": "later"}], partition=1)
    (undecided, marker) = rows(cli, url, "markers")
    (path,) = undecided.pop("objects")
    assert {k: v for k, v in undecided.items() if k != "time_ms"} == {
        "state": "open",
        "id": "job",
        "epoch": 0,
        "number": 1,
        "home": None,
        "partition": 1,
        "offset": 3,
        "stable_offset": 3,
    }
    assert marker == {
        "state": "marker",
        "id": "job",
        "epoch": 0,
        "number": 0,
        "outcome": "aborted",
        "partition": 1,
        "offset": 2,
        "horizon_ms": None,
    }
    assert path in {row["path"] for row in rows(cli, url, "objects") if row["state"] == "live"}
    text = cli("describe", url, "markers").stdout
    assert text.startswith("open  job  epoch 0  number 1  partition 1  offset 3  stable offset 3")


def test_describe_shows_what_is_undecided(cli, url, log):
    """Where readers stop, since when, and how many markers there are; none if all have ended."""
    assert "stable" not in cli("describe", url).stdout
    append_undecided(log, [{"key": "k", "value": "v"}], partition=1)
    log.abort_transaction("job")
    append_undecided(log, [{"key": "k", "value": "v"}], partition=1, number=1)
    text = " ".join(cli("describe", url).stdout.split())
    assert "active 0, stable 3, end 4, dirty ratio 0.00, 1 marker next:" in text
    assert "Transactions that have not ended 'job', epoch 0, number 1: open since 20" in text
    assert "undecided in partitions 1 from 3" in text
    found = cli.json("describe", url)
    (transaction,) = found["transactions"]
    assert (transaction["id"], transaction["first_offsets"]) == ("job", {"1": 3})
    assert [d["markers"] for d in found["partition_details"]] == [0, 1]
