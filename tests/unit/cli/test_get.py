"""`clog get` and `clog consume --key`: records by their keys."""

import base64
import json
import random

import pytest

from clog.cli.consume import _UNINDEXED_MAX
from clog.storage import Log, ManualClock

T0 = 1_769_860_800_000


@pytest.fixture
def log(url):
    """Two partitions; alice=1, 3 and bob=2, deleted; then a key that is not text."""
    log = Log.create(url, partitions=2, clock=ManualClock(T0))
    log.append([{"key": k, "value": v} for k, v in (("alice", "1"), ("bob", "2"), ("alice", "3"))])
    log.append([{"key": "bob", "value": None}, {"key": b"\xff", "value": b"\xfe"}])
    return log


def test_it_prints_the_latest_value(cli, url, log):
    """In the order of the requested keys, whichever partition they are in."""
    binary = base64.b64encode(b"\xff").decode()
    assert cli.lines("get", url, "alice") == [b"alice\t3"]
    assert cli.lines("get", url, "alice", "--values") == [b"3"]
    assert cli.lines("get", url, binary, "YWxpY2U=", "--base64") == [b"\xff\t\xfe", b"alice\t3"]
    assert cli.lines("get", url, "alice", "alice") == [b"alice\t3"]


def test_it_prints_what_a_version_had(cli, url, log):
    """Time travel for a key."""
    assert cli.lines("get", url, "bob", "--at", 1) == [b"bob\t2"]


def test_its_json_is_that_of_consume(cli, url, log):
    """A line for each record, with offset and partition."""
    (line,) = cli.lines("get", url, "alice", "--json")
    (same,) = cli.lines("consume", url, "--table", "--key", "alice", "--json")
    assert line == same
    assert json.loads(line)["value"] == "3"


@pytest.mark.parametrize(
    ("keys", "missing"),
    [
        (["bob"], "for the key 'bob'"),
        (["alice", "x"], "for the key 'x'"),
        (["z", "alice", "y", "z"], "for 2 keys: 'z', 'y'"),
        (list("opqrstu"), "for 7 keys: 'o', 'p', 'q', 'r', 's' and 2 more"),
        (["--base64", "YWxpY2U=", "eA=="], "for the key 'eA=='"),
        (["--at", "0", "alice"], "at version 0 for the key 'alice'"),
    ],
)
def test_a_key_without_a_value_is_named(cli, url, log, keys, missing):
    """As it was given, with exit code 1; what exists is printed all the same."""
    result = cli("get", url, *keys, code=1)
    assert missing in result.stderr
    is_there = {"alice", "YWxpY2U="} & {*keys} and "--at" not in keys
    assert result.stdout == ("alice\t3\n" if is_there else "")


def test_the_value_with_the_latest_timestamp_counts(cli, url, log):
    """If writers put a key into several partitions, as `Table.get` does."""
    log.append([{"key": "k", "value": "new", "timestamp": T0 + 5}], partition=0)
    log.append([{"key": "k", "value": "old", "timestamp": T0 + 4}], partition=1)
    assert cli.lines("get", url, "k") == [b"k\tnew"]


def test_what_is_no_base64_is_refused(cli, url, log):
    """Exit code 2, and the key is not repeated."""
    assert "no!" not in cli("get", url, "no!", "--base64", code=2).stderr
    cli("consume", url, "--key", "no!", "--base64", code=2)


def test_consume_shows_the_history_of_a_key(cli, url, log):
    """All its existing records, tombstones included, and no others."""
    assert cli.lines("consume", url, "--key", "bob") == [b"bob\t2", b"bob"]
    assert sorted(cli.lines("consume", url, "-k", "bob", "-k", "alice")) == [
        *(b"alice\t1", b"alice\t3"),
        *(b"bob", b"bob\t2"),
    ]
    assert cli.lines("consume", url, "--key", "nobody") == []
    assert cli.lines("consume", url, "--key", "alice", "--table") == [b"alice\t3"]
    assert cli.lines("consume", url, "--key", "alice", "-n", 1) == [b"alice\t1"]


def test_the_history_of_a_key_reads_only_where_it_may_be(url):
    """Objects whose key index does not have it are not read: fewer bytes than all of them."""
    from clog.storage.read.lookup import records_of_keys
    from clog_testing.counting import CountingStore

    log = Log.create(url, partitions=1)
    for i in range(4):
        noise = random.Random(i).randbytes
        log.append([{"key": f"{i}-{j}", "value": noise(700)} for j in range(3000)])
    manifest = log.handle.manifest()
    counting = CountingStore(log.handle.store)
    ranges = {0: (0, 12_000)}
    (batch,) = records_of_keys(counting, manifest, ranges, [b"2-7"])
    assert batch.column("offset").to_pylist() == [6007]
    assert counting.bytes_in < sum(manifest.files().values()) / 2


def test_many_small_objects_are_worth_a_note(cli, log, url):
    """Each costs a request, as long as nobody cleans: the note says how many there are, and what
    helps.
    """
    log.append([{"key": "alice", "value": "1"}])
    assert cli("get", url, "alice").stderr == ""
    for _ in range(_UNINDEXED_MAX):
        log.append([{"key": "bob", "value": "1"}])
    told = cli("get", url, "alice")
    assert told.stdout == "alice\t1\n"
    assert "103 objects" in told.stderr
    assert f"clog clean {log.url} --roll" in told.stderr
    cli("clean", url, "--roll", "--force")
    assert cli("get", url, "alice").stderr == ""
