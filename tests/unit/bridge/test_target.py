"""Where a mirror begins, without a broker."""

import pytest

from clog.bridge.target import MirrorSettings, Target
from clog.bridge.topic import Address, At, Topic
from clog.storage import SourcePurgedError


class Starts:
    """A cluster that knows where partitions start."""

    def __init__(self, *starts):
        self._starts = starts

    def starts(self, topic, partitions):
        assert topic == "orders"
        return {p: self._starts[p] for p in partitions}


def target(log, **settings):
    topic = Topic("cluster", "orders", "id", 3)
    return Target(log, topic, Address("broker:9092", "orders"), MirrorSettings(**settings))


def test_a_partition_that_was_added_is_mirrored_from_its_first_offset(make_log):
    """S73: what was purged of it before the mirror sees it, be it one record, is no silent gap."""
    added = Starts(4, 0, 1)
    log = make_log(3, features=["given-offsets"])
    mirror = target(log)
    assert mirror.new_partitions(added, {0: At(9), 1: At(0), 2: At(1)}) == {}
    assert mirror.new_partitions(Starts(4, 0, 0), {0: At(9)}) == {1: At(0), 2: At(0)}
    with pytest.raises(SourcePurgedError, match=r"1 offsets of partition 2 .* begins at 1"):
        mirror.new_partitions(added, {0: At(9)})
    skipping = target(log, skip_purged=True)
    assert skipping.new_partitions(added, {0: At(9)}) == {1: At(0), 2: At(1)}
