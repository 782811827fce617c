"""`clog diff`: what changed in a table, as lines, JSON and counts."""

import json

import pytest

from clog.storage import Log, snapshot

ROWS = [{"id": i, "city": "Riga", "n": i} for i in range(4)]


@pytest.fixture
def orders(url):
    log = Log.create(url, 1, key="id", like=ROWS)
    log.append(ROWS)
    snapshot(url, "start")
    log.append([{"id": 1, "city": "Oslo", "n": 50}, {"id": 9, "city": None, "n": 9}])
    log.delete([3])
    return log


def test_lines_of_a_table(cli, orders, url):
    """Only the columns that differ, by version, cut and time."""
    wanted = [
        '~ id=1  city: "Riga" → "Oslo", n: 1 → 50',
        "+ id=9 city=null n=9",
        '- id=3 city="Riga" n=3',
        "1 deleted, 1 inserted, 1 updated",
    ]
    then = next(c.time_ms for c in orders.history() if c.version == 1)
    for where in ("1", "start", f"{url}#start", f"@{then}"):
        assert cli("diff", url, "--from", where).stdout.splitlines() == wanted
    assert (
        cli("diff", url, "--from", "1", "--to", "start").stdout
        == "0 deleted, 0 inserted, 0 updated\n"
    )


def test_json_has_the_rows_before_and_after(cli, orders, url):
    lines = cli("diff", url, "--from", "1", "--each", "--json").stdout.splitlines()
    first, second, third = map(json.loads, lines)
    assert (first["before"], first["after"]) == (ROWS[1], {"id": 1, "city": "Oslo", "n": 50})
    assert (second["before"], second["change"], third["after"]) == (None, "inserted", None)
    assert first["version"] < third["version"]
    assert cli.json("diff", url, "--from", "1", "--stat") == {
        "deleted": 1,
        "inserted": 1,
        "updated": 1,
        "columns": {"city": 1, "n": 1},
    }


def test_records_of_bytes(cli, url):
    """Offsets and times always differ, and say nothing."""
    log = Log.create(url, 1)
    log.append([{"key": "a", "value": "1"}, {"key": b"\xff", "value": "2"}])
    log.append([{"key": "a", "value": "2"}])
    log.delete([b"\xff"])
    lines = cli("diff", url, "--from", "1").stdout.splitlines()
    assert lines[:2] == ['~ key="a"  value: "1" → "2"', '- key_b64="/w==" value="2"']
