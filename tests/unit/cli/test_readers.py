"""`clog describe URL readers`, and `clog consume --reader`: named readers in the shell (S64)."""

import json

import pytest

from clog.cli import consume
from clog.storage import Log, ManualClock
from clog.storage.read.following import offsets_after

T0 = 1_769_860_800_000


@pytest.fixture
def log(url):
    log = Log.create(url, partitions=2, clock=ManualClock(T0))
    log.append([{"key": k, "value": "1"} for k in "abcd"], partition=[0, 0, 1, 1])
    return log


def test_a_reader_goes_on_where_it_stopped(cli, url, log):
    """S64: each record once, over several calls."""
    assert cli.lines("consume", url, "--reader", "billing", "--max", "3") == [
        *(b"a\t1", b"b\t1", b"c\t1")
    ]
    assert cli.lines("consume", url, "--reader", "billing") == [b"d\t1"]
    assert cli.lines("consume", url, "--reader", "billing") == []
    log.append([{"key": "e", "value": "1"}], partition=0)
    assert cli.lines("consume", url, "--reader", "billing") == [b"e\t1"]
    assert cli.lines("consume", url, "--reader", "late", "--from", "1") == [
        *(b"b\t1", b"e\t1", b"d\t1")
    ]
    assert {r.name: dict(r.position) for r in log.readers()} == {
        "billing": {0: 3, 1: 2},
        "late": {0: 3, 1: 2},
    }


def test_where_a_new_reader_begins(cli, url, log):
    """At --from, in all partitions, also if it reads nothing yet or stops in the first of them;
    what comes between its first call and the next is not skipped.
    """
    assert cli.lines("consume", url, "--reader", "late", "--from", "latest") == []
    assert log.reader("late").position == {0: 2, 1: 2}
    log.append([{"key": "e", "value": "1"}] * 2, partition=[0, 1])
    assert cli.lines("consume", url, "--reader", "late", "--max", "1") == [b"e\t1"]
    assert log.reader("late").position == {0: 3, 1: 2}
    assert cli.lines("consume", url, "--reader", "some", "--from", "1", "--max", "1") == [b"b\t1"]
    assert log.reader("some").position == {0: 2, 1: 1}
    log.delete_records({0: 1})
    wrong = cli("consume", url, "--reader", "none", "--from", "0", code=1).stderr
    assert "offset 0 of partition 0 is below the log start offset 1" in wrong
    assert "beyond the end" in cli("consume", url, "--reader", "none", "--from", "9", code=1).stderr
    assert [r.name for r in log.readers()] == ["late", "some"]


@pytest.mark.parametrize("where", ["earliest", "latest", "0", "@0"])
def test_a_reader_with_a_position_goes_on_there(cli, url, log, where):
    """--from is for a new reader: a note on standard error says so."""
    assert cli.lines("consume", url, "--reader", "r", "--max", "3")[-1] == b"c\t1"
    told = cli("consume", url, "--reader", "r", "--from", where)
    assert told.stdout == "d\t1\n"
    assert (
        f"reader r continues where it stopped: --from {where} is only for a new reader"
        in told.stderr
    )
    assert f"clog alter {url} --forget r" in told.stderr
    cli("alter", url, "--forget", "r")
    assert "continues" not in cli("consume", url, "--reader", "r", "--from", "earliest").stderr


def test_a_reader_that_was_overtaken_is_told_the_way_out(cli, url, log):
    """Its position takes precedence over --from, so the way is to forget the reader."""
    log.reader("behind").commit({0: 1})
    log.delete_records({0: 2})
    told = cli("consume", url, "--reader", "behind", "--from", "earliest", code=1).stderr
    assert "reader behind cannot continue where it stopped, at {0: 1, 1: 0}: offset 1 of" in told
    assert f"clog alter {url} --forget behind, and use --from" in told
    cli("alter", url, "--forget", "behind")
    assert cli.lines("consume", url, "--reader", "behind") == [b"c\t1", b"d\t1"]


def test_a_reader_of_one_partition(cli, url, log):
    assert cli.lines("consume", url, "--reader", "r", "-p", "1") == [b"c\t1", b"d\t1"]
    assert log.reader("r").position == {0: 0, 1: 2}
    assert cli.lines("consume", url, "--reader", "r") == [b"a\t1", b"b\t1"]


def test_a_reader_that_is_waited_for(cli, url):
    """S64: --hold is the Spark option readerHold, as far as the log allows."""
    log = Log.create(url, 1, config={"reader.hold.max.ms": "9 days"})
    log.append([{"key": "a", "value": "1"}])
    cli("consume", url, "--reader", "weekly", "--hold", "8d")
    (reader,) = log.readers()
    assert reader.hold_ms == 8 * 86_400_000
    assert reader.held_until_ms - reader.committed_ms > 7 * 86_400_000
    assert reader.expires_ms - reader.committed_ms == reader.hold_ms
    cli("consume", url, "--reader", "weekly")
    assert log.readers()[0].hold_ms == 8 * 86_400_000, "it had no reason to say anything"


def test_who_waits_for_records_is_waited_for(url, monkeypatch):
    """S64: --follow reports its position again before its hold is over, even if nothing comes; the
    version is the newest, so that it holds no objects back.
    """
    clock = ManualClock(T0)
    log = Log.create(url, 1, config={"reader.hold.max.ms": "1 h"}, clock=clock)
    log.append([{"key": "a", "value": "1"}])
    reader = log.reader("r", hold_ms=3_600_000)
    polls = consume._read_on(log, {0: 0}, 600_000, None, reader)
    reader.commit(offsets_after(next(polls)))
    log.alter({"retention.ms": "7 days"})
    told, began_ms = [], clock.now_ms()

    def wait(_, ms):
        clock.advance(ms)
        if (clock.now_ms() - began_ms) % 600_000:
            return  # It waits in parts, and looks again after the last.
        told.append((log.readers()[0].committed_ms - T0, log.readers()[0].version))
        if len(told) == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr(ManualClock, "sleep_ms", wait)
    with pytest.raises(KeyboardInterrupt):
        next(polls)
    assert [ms // 600_000 for ms, _ in told] == [0, 0, 0, 3, 3, 3, 6]
    assert told[-1][1] == log.version


def test_what_a_reader_cannot_do(cli, url, log):
    for wrong in (["--table"], ["--key", "a"]):
        result = cli("consume", url, "--reader", "r", *wrong, code=2)
        assert "--reader reads all records" in result.stderr
    assert "--hold needs --reader" in cli("consume", url, "--hold", "1d", code=2).stderr
    assert (
        "is not a duration" in cli("consume", url, "--reader", "r", "--hold", "soon", code=2).stderr
    )
    assert "not a valid reader name" in cli("consume", url, "--reader", "a/b", code=2).stderr
    log.reader("behind").commit({0: 1})
    log.delete_records({0: 2})
    result = cli("consume", url, "--reader", "behind", code=1)
    assert "offset 1 of partition 0 is below the log start offset 2" in result.stderr


def test_readers_are_listed_and_forgotten(cli, url, log):
    """Lag, and what is about to overtake each; --json has all of it."""
    assert "no named readers" in cli("describe", url, "readers").stdout
    log.reader("billing").commit({0: 1, 1: 2})
    log.handle.store.put("readers/odd.json", b"nothing")
    page = cli("describe", url, "readers").stdout
    assert "billing" in page
    assert "ignored: " in page
    shown = json.loads(cli("describe", url, "readers", "--json").stdout)
    billing, odd = shown["readers"]
    assert (billing["name"], billing["lag_records"]) == ("billing", 1)
    assert billing["position"] == {"0": 1, "1": 2}
    assert billing["until_tombstone_ms"] is None
    assert odd["damage"]
    unknown = cli("alter", url, "--forget", "billing", "--forget", "biling", code=1).stderr
    assert "has no reader 'biling'; no reader was forgotten; the log has: billing, odd" in unknown
    cli("alter", url, "--forget", "billing", "--forget", "odd")
    assert log.readers() == []
