"""`clog consume`: where it starts, what it prints, when it ends."""

import json

import pytest

from clog.cli.options import Given
from clog.storage import Log, ManualClock

T0 = 1_769_860_800_000  # 2026-01-31T12:00:00Z


@pytest.fixture
def log(url):
    """One partition: a=0 … d=3, then a=4, a tombstone of b; a record a minute."""
    log = Log.create(url, partitions=1, clock=ManualClock(T0 + 3_600_000))
    keys = ["a", "b", "c", "d", "a", "b"]
    log.append(
        [
            {"key": k, "value": None if i == 5 else str(i), "timestamp": T0 + 60_000 * i}
            for i, k in enumerate(keys)
        ]
    )
    return log


ALL = [b"a\t0", b"b\t1", b"c\t2", b"d\t3", b"a\t4", b"b"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ALL),
        (["--from", "earliest"], ALL),
        (["--from", "latest"], []),
        (["--from", "4"], ALL[4:]),
        (["--from", "6"], []),
        (["--from", f"@{T0 + 60_001}"], ALL[2:]),
        (["--from", "@2026-01-31T12:03:00Z"], ALL[3:]),
        (["--from", "@2026-02-01"], []),
        (["--max", "2"], ALL[:2]),
        (["--max", "0"], []),
        (["--from", "3", "-n", "2", "-p", "0"], ALL[3:5]),
    ],
)
def test_where_it_starts_and_ends(cli, url, log, arguments, expected):
    """Earliest, latest, an offset, a time: the first record that is not older, or the end (S38,
    S39).
    """
    assert cli.lines("consume", url, *arguments) == expected


def test_it_starts_at_the_log_start(cli, url, log):
    """Earliest is the log start offset; an offset below it is out of range (S38)."""
    log.delete_records({0: 4})
    assert cli.lines("consume", url) == ALL[4:]
    result = cli("consume", url, "--from", "3", code=1)
    assert "offset 3 of partition 0 is below the log start offset 4" in result.stderr
    assert "clog describe URL offsets" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [["--from", "soon"], ["--from", "@soon"], ["--at", "1"], ["--table", "--from", "latest"]],
)
def test_what_makes_no_sense_is_a_usage_error(cli, url, log, arguments):
    """Exit code 2, before anything is printed."""
    assert cli("consume", url, *arguments, code=2).stdout == ""


def test_the_table_has_the_latest_value_of_each_key(cli, url, log):
    """Deleted keys are absent; at a version the table is as it was at that version."""
    assert sorted(cli.lines("consume", url, "--table")) == [b"a\t4", b"c\t2", b"d\t3"]
    log.append([{"key": "c", "value": "9", "timestamp": T0}])
    assert b"c\t9" in cli.lines("consume", url, "--table")
    assert b"c\t2" in cli.lines("consume", url, "--table", "--at", log.version - 1)


def test_offsets_come_before_the_record(cli, url, log):
    """Partition, offset, timestamp."""
    line = cli.lines("consume", url, "--print", "partition,offset,timestamp,key,value", "-n", 1)[0]
    assert line == b"0\t0\t2026-01-31T12:00:00.000000Z\ta\t0"


def test_json_lines_go_back_without_loss(cli, url, log, tmp_path):
    """What consume prints as JSON lines produce appends again unchanged."""
    log.append([{"key": b"\xff", "value": b"", "headers": [("h", b"\xfe")], "timestamp": T0 + 1}])
    copy = str(tmp_path / "copy")
    Log.create(copy, partitions=1)
    text = cli("consume", url, "--json").stdout
    assert text == cli("consume", url, "--format", "jsonl").stdout
    cli("produce", copy, "--format", "jsonl", stdin=text)
    assert cli("consume", copy, "--json").stdout == text
    assert len(text.splitlines()) == 7


def test_partitions_come_one_after_the_other(cli, tmp_path):
    """All of partition 0, then all of 1; or one alone."""
    url = str(tmp_path / "two")
    log = Log.create(url, partitions=2)
    for p, value in ((1, "x"), (0, "y"), (1, "z")):
        log.append([{"key": "k", "value": value}], partition=p)
    assert cli.lines("consume", url) == [b"k\ty", b"k\tx", b"k\tz"]
    assert cli.lines("consume", url, "-p", 1) == [b"k\tx", b"k\tz"]
    assert "partition 2 does not exist" in cli("consume", url, "-p", 2, code=1).stderr


class AppendingClock(ManualClock):
    """A clock during whose sleeps records are appended."""

    def __init__(self, log, values):
        super().__init__()
        self.log, self.values, self.slept_ms = log, list(values), []

    def sleep_ms(self, ms):
        self.slept_ms.append(ms)
        if self.values:
            self.log.append([{"key": "k", "value": self.values.pop(0), "timestamp": T0}])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--from", "5", "-n", "3"], [b"b", b"k\tx", b"k\ty"]),
        (["--from", "latest", "-n", "2"], [b"k\tx", b"k\ty"]),
        (["--table", "-n", "5"], [b"a\t4", b"c\t2", b"d\t3", b"k\tx", b"k\ty"]),
    ],
)
def test_it_follows_the_log(cli, url, log, monkeypatch, arguments, expected):
    """At the end it looks again every --poll ms; a table continues with what came after it."""
    clock = AppendingClock(log, ["x", "y"])
    follower = Log.open(url, clock=clock)
    monkeypatch.setattr(Given, "open", lambda *_: follower)
    found = cli.lines("consume", url, "--follow", "--poll", 250, *arguments)
    assert [*sorted(found[:-2]), *found[-2:]] == expected
    assert clock.slept_ms == [100, 100, 50], "one wait, in parts: Ctrl-C ends it at once"


def test_ctrl_c_ends_following(cli, url, log, monkeypatch):
    """This is how one stops it: no traceback, the exit code of an interrupt."""

    class InterruptingClock(ManualClock):
        def sleep_ms(self, ms):
            raise KeyboardInterrupt

    follower = Log.open(url, clock=InterruptingClock())
    monkeypatch.setattr(Given, "open", lambda *_: follower)
    result = cli("consume", url, "--follow", code=130)
    assert result.stdout_bytes.splitlines() == ALL
    assert result.stderr == ""


def test_headers_are_shown_when_asked(cli, url, log):
    """Before the key, empty where there are none."""
    log.append([{"key": "h", "value": "v", "headers": [("x", "1")], "timestamp": T0}])
    assert cli.lines("consume", url, "--print", "headers,key,value", "--from", "5") == [
        b"\tb",
        b"x=1\th\tv",
    ]
    records = [json.loads(line) for line in cli.lines("consume", url, "--json", "--from", "5")]
    assert [record.get("headers") for record in records] == [None, [{"key": "x", "value": "1"}]]


def test_a_version_of_the_future_is_told_as_one(cli, url, log):
    """It does not exist yet, rather than having expired; the error lists the existing versions."""
    told = cli("consume", url, "--table", "--at", 99, code=1).stderr
    assert f"version 99 of {url} does not exist yet: the newest is 1; ask for 0 to 1" in told
