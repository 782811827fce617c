"""`clog consume --key`, of the log and of its table: records by their keys."""

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
    assert cli.lines("consume", url, "--table", "--key", "alice") == [b"alice\t3"]
    assert cli.lines("consume", url, "--table", "--print", "value", "--key", "alice") == [b"3"]
    assert cli.lines(
        "consume", url, "--table", "--base64", "--key", binary, "--key", "YWxpY2U="
    ) == [b"\xff\t\xfe", b"alice\t3"]
    assert cli.lines("consume", url, "--table", "--key", "alice", "--key", "alice") == [b"alice\t3"]


def test_it_prints_what_a_version_had(cli, url, log):
    """Time travel for a key."""
    assert cli.lines("consume", url, "--table", "--at", 1, "--key", "bob") == [b"bob\t2"]


def test_its_json_is_that_of_consume(cli, url, log):
    """A line for each record, with offset and partition."""
    (line,) = cli.lines("consume", url, "--table", "--json", "--key", "alice")
    (same,) = cli.lines("consume", url, "--table", "--key", "alice", "--json")
    assert line == same
    assert json.loads(line)["value"] == "3"


@pytest.mark.parametrize(
    ("keys", "missing"),
    [
        ("--key bob", "for the key 'bob'"),
        ("--key alice -k x", "for the key 'x'"),
        ("-k z -k alice -k y -k z", "for 2 keys: 'z', 'y'"),
        ("-k o -k p -k q -k r -k s -k t", "for 6 keys: 'o', 'p', 'q', 'r', 's' and 1 more"),
        ("--base64 -k YWxpY2U= -k eA==", "for the key 'eA=='"),
        ("--at 0 -k alice", "at version 0 for the key 'alice'"),
    ],
)
def test_a_key_without_a_value_is_named(cli, url, log, keys, missing):
    """As it was given, with exit code 1; what exists is printed all the same."""
    result = cli("consume", url, "--table", *keys.split(), code=1)
    assert missing in result.stderr
    is_there = {"alice", "YWxpY2U="} & {*keys.split()} and "--at" not in keys
    assert result.stdout == ("alice\t3\n" if is_there else "")


def test_the_value_with_the_latest_timestamp_counts(cli, url, log):
    """If writers put a key into several partitions, as `Table.get` does."""
    log.append([{"key": "k", "value": "new", "timestamp": T0 + 5}], partition=0)
    log.append([{"key": "k", "value": "old", "timestamp": T0 + 4}], partition=1)
    assert cli.lines("consume", url, "--table", "--key", "k") == [b"k\tnew"]


def test_what_is_no_base64_is_refused(cli, url, log):
    """Exit code 2, and the key is not repeated."""
    assert "no!" not in cli("consume", url, "--table", "--base64", "--key", "no!", code=2).stderr
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
    assert cli("consume", url, "--table", "--key", "alice").stderr == ""
    for _ in range(_UNINDEXED_MAX):
        log.append([{"key": "bob", "value": "1"}])
    told = cli("consume", url, "--table", "--key", "alice")
    assert told.stdout == "alice\t1\n"
    assert "103 objects" in told.stderr
    assert f"clog clean {log.url} --roll" in told.stderr
    cli("clean", url, "--roll", "--force")
    assert cli("consume", url, "--table", "--key", "alice").stderr == ""
