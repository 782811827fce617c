"""Pins in edits and heads (FORMAT.md §14)."""

import pytest

from clog.storage.errors import CorruptionError
from clog.storage.format.commits import (
    Edit,
    Pin,
    advance,
    edit_from_json,
    edit_to_json,
    head_from_json,
    head_to_json,
)
from clog.storage.format.log_info import PUBLICATIONS, FeatureNames
from clog_testing.histories import fresh_manifest

HEAD = fresh_manifest().head
FEATURE = FeatureNames(write=(PUBLICATIONS,))
PINNED = Edit(features=FEATURE, pins={"delta": (Pin(0, 3, 5), Pin(1, 7, 9))})


def test_pins_are_carried_from_head_to_head():
    """In place of all of the same format; those of others stay."""
    head = advance(HEAD, PINNED, version=8, time_ms=9)
    head = advance(head, Edit(pins={"iceberg": (Pin(0, 2, 9),)}), version=9, time_ms=9)
    head = advance(head, Edit(config={}), version=10, time_ms=9)
    assert (sorted(head.pins), head.lowest_needed()) == (["delta", "iceberg"], 2)
    assert head_from_json(head_to_json(head), where="a test") == head
    gone = advance(head, Edit(pins={"iceberg": (), "delta": ()}), version=11, time_ms=9)
    assert (gone.pins, "pins" in head_to_json(gone), gone.lowest_needed()) == ({}, False, None)


def test_an_edit_with_pins_is_read_back():
    value = edit_to_json(PINNED)
    assert value["pins"] == {"delta": [[0, 3, 5], [1, 7, 9]]}
    assert edit_from_json(value, version=8) == PINNED


@pytest.mark.parametrize("views", [(1, 0), (1, 1)])
def test_pins_ascend(views):
    pins = tuple(Pin(view, 3, 5) for view in views)
    with pytest.raises(CorruptionError, match="do not ascend"):
        advance(HEAD, Edit(features=FEATURE, pins={"delta": pins}), version=8, time_ms=9)


@pytest.mark.parametrize("pins", [{"delta": [[0, -1, 5]]}, {"delta": [[0, 1]]}, [], {"delta": [1]}])
def test_pins_that_are_none_are_damage(pins):
    with pytest.raises(CorruptionError, match="violates the format"):
        edit_from_json({"pins": pins}, version=8)
