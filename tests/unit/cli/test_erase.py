"""`clog erase` and the receipts of erasures: from the request to a receipt that others check."""

import json

import pytest
from click.testing import CliRunner

from clog.cleaner import Cleaner
from clog.cli.app import app
from clog.storage import Log, ManualClock

DAY_MS = 86_400_000


@pytest.fixture
def done(url):
    """A completed erasure, with its secret."""
    clock = ManualClock(now_ms=1_700_000_000_000)
    log = Log.create(url, 1, clock=clock)
    log.append([{"key": "alice", "value": "1"}, {"key": "bob", "value": "2"}])
    secret = log.erase(["alice"], notify=False).secret
    for _ in range(3):
        Cleaner(log).run_once()
        clock.advance(DAY_MS + 1)
    return secret


def test_a_request_and_what_it_waits_for(cli, url, tmp_path):
    """S59: keys on the command line and in a file; the secret is printed once."""
    Log.create(url, 1).append([{"key": key, "value": "1"} for key in ("a", "b", "c")])
    keys = tmp_path / "keys.txt"
    keys.write_text("b\nnobody\n")
    made = cli.json("erase", url, "a", "--file", keys)
    assert (len(made["secret"]), made["version"]) == (64, 2)
    (one,) = cli.json("describe", url, "erasures")["erasures"]
    assert (one["id"], one["state"], one["keys"]) == (made["id"], "pending", 3)
    assert made["secret"] not in json.dumps(one)
    shown = cli("describe", url, "erasures").stdout
    assert "3 keys, requested" in shown
    assert "pending: the cleaner's next round marks its records dead" in shown
    assert made["id"] in cli.json("describe", url)["erasures"]
    assert f"erasure {made['id'][:8]}" in cli("describe", url).stdout


def test_a_receipt_is_written_out_and_verified(cli, url, done, tmp_path, monkeypatch):
    """S60: with the script beside it; the secret comes from the environment."""
    folder = tmp_path / "receipts"
    (one,) = cli.json("describe", url, "erasures")["erasures"]
    assert cli.json("erase", url, "--receipts", folder)["receipts"] == [one["id"]]
    receipt = folder / f"{one['id']}.json"
    assert json.loads(receipt.read_text()) == one["receipt"]
    assert (folder / "verify_erasure.py").read_text().startswith('"""Verifies the receipt')
    assert (
        "records are not compared with the erased keys"
        in cli("verify", url, "--receipt", receipt).stderr
    )
    monkeypatch.setenv("CLOG_ERASURE_SECRET", done)
    assert "compared" not in cli("verify", url, "--receipt", receipt).stderr
    assert cli.json("verify", url, "--receipt", receipt)["problems"] == []
    (folder.parent / "log" / "notes.txt").write_text("x")
    found = json.loads(cli("verify", url, "--receipt", receipt, "--json", code=1).stdout)
    assert found["problems"] == ["notes.txt: a file of no kind that the format names"]


def test_keys_in_a_file_do_without_the_secret(cli, url, done, tmp_path):
    """S60: a later record of a key is counted."""
    (name,) = cli.json("erase", url, "--receipts", tmp_path)["receipts"]
    keys = tmp_path / "keys.txt"
    keys.write_text("alice\n")
    Log.open(url).append([{"key": "alice", "value": "again"}])
    shown = cli.json("verify", url, "--receipt", tmp_path / f"{name}.json", "--keys", keys)
    assert (shown["problems"], shown["later"]) == ([], 1)


def test_an_erasure_may_go_without_tombstones(cli, url):
    """S59: followers learn from them; with ``--no-notify`` none is appended."""
    log = Log.create(url, 1)
    log.append([{"key": key, "value": "1"} for key in ("a", "b")])
    cli("erase", url, "a", "--no-notify")
    assert Log.open(url).end_offsets() == {0: 2}
    cli("erase", url, "b")
    assert Log.open(url).end_offsets() == {0: 3}


def test_a_round_says_what_waits_for_more_of_them(cli, url):
    """S59: no partition is due, and an erasure is carried out all the same."""
    log = Log.create(url, 1)
    log.append([{"key": key, "value": "1"} for key in ("a", "b")])
    assert "erasure" not in cli("clean", url).stdout
    cli("erase", url, "a")
    assert f"1 erasure pending; clog describe {url} erasures" in cli("clean", url).stdout


@pytest.mark.parametrize("without", ["log_id", "keys", "ends", None])
def test_what_is_no_receipt_is_refused(cli, url, done, tmp_path, without):
    """Whatever is missing or nested in it: reported as unreadable, or as a problem of a file."""
    (one,) = cli.json("describe", url, "erasures")["erasures"]
    told = {name: value for name, value in one["receipt"].items() if name != without}
    receipt = tmp_path / "receipt.json"
    receipt.write_text(json.dumps(told) if without else "[" * 100_000)
    run = CliRunner().invoke(app, ["verify", url, "--receipt", str(receipt)])
    assert isinstance(run.exception, SystemExit)
    assert run.exit_code in (1, 2)
