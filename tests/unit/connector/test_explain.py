"""What options exclude, reported without reading it."""

import random

import pytest

from clog.connector import explain
from clog.storage import OptionError
from clog.storage.log import Log


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Partition 0: a sealed segment of a large object (1 s), an active one of a small object (2 s);
    partition 1: a small object (2 s).
    """
    log = Log.create(str(tmp_path_factory.mktemp("logs") / "orders"), partitions=2)
    noise = random.Random(1).randbytes
    large = [{"key": f"k{i}", "value": noise(2000), "timestamp": 1000} for i in range(2000)]
    log.append(large, partition=0)
    log.roll(0)
    for p in (0, 1):
        log.append([{"key": "a", "value": "x", "timestamp": 2000}], partition=p)
    return log


def counts(explanation):
    e = explanation
    return [(s.read, s.total) for s in (e.partitions, e.segments, e.objects)]


def test_without_options_all_is_read(log):
    """Every byte, once."""
    e = explain(log.url)
    assert counts(e) == [(2, 2), (3, 3), (3, 3)]
    assert e.size_bytes.read == e.size_bytes.total > 3_900_000
    assert e.row_groups.read == e.row_groups.total >= 3


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"partitions": 1}, [(1, 2), (1, 3), (1, 3)]),
        ({"startingTimestamp": 2000}, [(2, 2), (2, 3), (2, 3)]),
        ({"endingTimestamp": 2000}, [(1, 2), (1, 3), (1, 3)]),
        ({"startingOffsets": '{"0": 2000, "1": 1}'}, [(1, 2), (1, 3), (1, 3)]),
        ({"startingOffsets": {0: 2000, 1: 1}}, [(1, 2), (1, 3), (1, 3)]),
        ({"keys": '["a"]'}, [(2, 2), (2, 3), (2, 3)]),
        ({"keys": '["k1"]', "partitions": 0}, [(1, 2), (2, 3), (2, 3)]),
        ({"view": "table", "partitions": 1}, [(1, 2), (1, 3), (1, 3)]),
    ],
)
def test_options_prune(log, options, expected):
    """Partitions, segments, objects: what the read needs, out of the existing ones."""
    assert counts(explain(log.url, **options)) == expected


def test_columns_and_keys_spare_bytes(log):
    """For a large object only the columns; its values not at all if it lacks the key."""
    whole = explain(log.url).size_bytes.read
    assert explain(log.url, columns="key,offset").size_bytes.read < whole / 20
    assert explain({"path": log.url, "keys": '["nobody"]'}).size_bytes.read < whole / 20


def test_it_prints_as_a_table(log):
    """For people."""
    lines = str(explain(log.url, partitions=1)).splitlines()
    assert lines[0].endswith("/orders at version 4 reads")
    assert lines[1].split() == ["partitions", "1", "of", "2"]


def test_what_the_read_refuses_it_refuses(log):
    """With the same words."""
    with pytest.raises(OptionError, match="startingOffsets"):
        explain(log.url, startingOffset="earliest")
    with pytest.raises(OptionError, match="cannot be latest"):
        explain(log.url, startingOffsets="latest")
