"""Offsets in a checkpoint: Spark compares them as strings, so there is one way to write each."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clog.connector.positions import Planned, StreamOffsets, initial_json, parse_offsets, resolve
from clog.storage.errors import InvalidInputError, OptionError

BY_PARTITION = st.dictionaries(st.integers(0, 2000), st.integers(0, 2**62), min_size=1)


PLANNED = st.builds(Planned, st.text(), st.text(), st.integers(0, 2**62), st.text())


@given(BY_PARTITION, st.integers(0, 2**62), st.booleans(), st.none() | PLANNED)
def test_offsets_survive_a_checkpoint(offsets, version, first, planned):
    """What is read back is what was written, and writes the same string again; also those of an
    older clog, which do not say where they were planned.
    """
    before = StreamOffsets(offsets, version, dict(offsets) if first else None, planned)
    text = json.dumps(before.to_json())
    after = parse_offsets(json.loads(text))
    assert after == before
    assert json.dumps(after.to_json()) == text


def test_partitions_are_written_in_numeric_order():
    """Whatever their order: another order of keys would be another string, so a new batch."""
    one, other = StreamOffsets({10: 1, 2: 5}, 3), StreamOffsets({2: 5, 10: 1}, 3)
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())
    assert list(one.to_json()) == ["2", "10", "version"]
    whole = StreamOffsets({2: 5, 10: 1}, 3, {2: 5, 10: 0}, Planned("orders", "6f", 4, "b1"))
    named = ["commit", "from", "log", "log_id", "planned", "version"]
    assert list(whole.to_json()) == ["2", "10", *named]


def test_the_initial_offset_is_constant():
    """Spark asks for it several times before the first batch is durable."""
    assert initial_json("latest") == {"init": "latest"}
    assert json.dumps(initial_json({1: 5, 0: -2})) == '{"init": {"0": -2, "1": 5}}'
    assert parse_offsets({"init": "latest"}) is None


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"logOffset": 3},
        {"0": 1},
        {"0": "1", "version": 1},
        {"t": {"0": 1}, "version": 1},
        {"0": 1, "planned": 3, "version": 1},
    ],
)
def test_offsets_of_another_source_are_refused(value):
    """A checkpoint belongs to one source."""
    with pytest.raises(InvalidInputError, match="new checkpointLocation"):
        parse_offsets(value)


def test_positions_resolve_by_partition():
    """-2 is the log start, -1 the end, any other number is the offset itself (S39)."""
    starts, ends = {0: 5, 1: 6, 2: 7}, {0: 50, 1: 60, 2: 70}
    assert resolve("earliest", starts, ends, option="x") == starts
    assert resolve("latest", starts, ends, option="x") == ends
    assert resolve({0: -2, 1: -1, 2: 9}, starts, ends, option="x") == {0: 5, 1: 60, 2: 9}


@pytest.mark.parametrize(("position", "named"), [({0: 1}, "[1]"), ({0: 1, 1: 1, 7: 1}, "[7]")])
def test_offsets_name_every_partition_and_no_other(position, named):
    """As for Spark's Kafka source: a partition left out is a mistake."""
    with pytest.raises(OptionError) as caught:
        resolve(position, {0: 0, 1: 0}, {0: 9, 1: 9}, option="startingOffsets")
    assert named in str(caught.value)
    assert "startingOffsets" in str(caught.value)
