"""Messages become columns: what stays, what is moved, what is left out."""

import pytest

from clog.bridge.topic import TIMESTAMP_HEADER, Gathered, columns_of


class Message:
    """A message as Kafka's client returns it."""

    def __init__(self, offset, key, value, ms=5, headers=None, partition=0):
        self._facts = (offset, key, value, (1, ms), headers, partition)

    def offset(self):
        return self._facts[0]

    def key(self):
        return self._facts[1]

    def value(self):
        return self._facts[2]

    def timestamp(self):
        return self._facts[3]

    def headers(self):
        return self._facts[4]

    def partition(self):
        return self._facts[5]


def test_what_records_have_stays():
    """Null and empty keys and values differ; headers keep order, duplicate names and nulls."""
    odd = [("a", None), ("a", b""), ("é", b"\xff")]
    found = columns_of(
        [Message(3, None, b"", headers=odd), Message(9, b"", None, 7, partition=2)], needs_key=False
    )
    first, second = found.rows.to_pylist()
    assert (first["key"], first["value"], second["key"], second["value"]) == (None, b"", b"", None)
    assert [(h["key"], h["value"]) for h in first["headers"]] == odd
    assert second["headers"] is None
    assert found.rows.column("timestamp").cast("int64").to_pylist() == [5000, 7000]
    assert (found.offsets.tolist(), found.partitions.tolist()) == ([3, 9], [0, 2])
    assert +found.counts == {"records": 2, "size_bytes": found.size_bytes}


@pytest.mark.parametrize(("ms", "held"), [(-1, 0), (-(2**63), 0), (2**63 - 1, (2**63 - 1) // 1000)])
def test_times_that_cannot_be_are_moved_and_kept_in_a_header(ms, held):
    """H-B11: the header says what it was, after the existing ones."""
    found = columns_of([Message(0, b"k", b"v", ms, [("own", b"1")])], needs_key=False)
    times = found.rows.column("timestamp").cast("int64").to_pylist()
    assert times == [held * 1000]
    headers = found.rows.column("headers").to_pylist()[0]
    assert [(h["key"].encode(), h["value"]) for h in headers] == [
        (b"own", b"1"),
        (TIMESTAMP_HEADER, str(ms).encode()),
    ]
    assert found.clamped == 1


def test_records_without_a_key_are_left_out_where_keys_are_needed():
    """H-B13: and counted; an empty key is a key."""
    messages = [Message(0, None, b"x"), Message(1, b"", b"y"), Message(2, None, b"z")]
    found = columns_of(messages, needs_key=True)
    assert found.offsets.tolist() == [1]
    assert (found.keyless, found.rows.num_rows) == (2, 1)
    assert columns_of(messages[:1], needs_key=True).rows.num_rows == 0


def gathered_of(*messages, needs_key=False):
    gathered = Gathered(needs_key=needs_key)
    gathered.add(messages)
    return gathered


def test_parts_are_gathered_whether_they_have_headers_or_not():
    """A column that one part lacks is null there; counts are summed."""
    plain, headed = [Message(0, b"a", b"1")], [Message(1, b"b", b"2", -1), Message(2, b"c", b"3")]
    gathered = gathered_of(*plain)
    gathered.add(headed)
    found = gathered.columns()
    assert found.rows.column("key").to_pylist() == [b"a", b"b", b"c"]
    assert [row is None for row in found.rows.column("headers").to_pylist()] == [True, False, True]
    assert found.offsets.tolist() == [0, 1, 2]
    counts = [columns_of(part, needs_key=False).counts for part in (plain, headed)]
    assert found.counts == counts[0] + counts[1]


def test_nulls_stand_where_they_were_in_each_part():
    """In keys and in values, whatever the earlier parts had."""
    gathered = gathered_of(Message(0, b"a", b"1"), Message(1, None, b"2"))
    gathered.add([Message(2, b"c", None), Message(3, None, None), Message(4, b"", b"5")])
    rows = gathered.columns().rows
    assert rows.column("key").to_pylist() == [b"a", None, b"c", None, b""]
    assert rows.column("value").to_pylist() == [b"1", b"2", None, None, b"5"]


def test_memory_is_used_again_once_nobody_has_its_columns_any_more():
    """While anything of them is held, even a slice, it is left as it is; then nothing is left of
    what was gathered before, including the counts.
    """
    gathered = gathered_of(Message(0, None, b"1"), Message(1, b"b", b"22", -1), needs_key=True)
    held = gathered.columns().rows.column("value").slice(0, 1)
    assert not gathered.again(needs_key=False)
    assert held.to_pylist() == [b"22"]
    del held
    assert gathered.again(needs_key=False)
    assert gathered.size_bytes == 0
    gathered.add([Message(2, None, b"3")])
    found = gathered.columns()
    assert (
        found.rows.to_pylist()
        == columns_of([Message(2, None, b"3")], needs_key=False).rows.to_pylist()
    )
    assert +found.counts == {"records": 1, "size_bytes": found.size_bytes}
