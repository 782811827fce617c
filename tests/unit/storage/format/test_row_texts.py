"""Rules of texts in edits and heads (FORMAT.md §19)."""

from dataclasses import replace

import pytest

from clog.storage.errors import CorruptionError
from clog.storage.format.commits import (
    Edit,
    advance,
    edit_from_json,
    edit_to_json,
    head_from_json,
    head_to_json,
)
from clog.storage.format.log_info import ROW_TEXTS, FeatureNames, RowTexts
from clog_testing.histories import fresh_manifest

HEAD = fresh_manifest().head
FIRST = RowTexts(1, "Europe/Berlin", (("Id", "region"),))
GIVEN = Edit(features=FeatureNames(write=(ROW_TEXTS,)), row_texts=FIRST)


def test_rules_are_carried_from_head_to_head():
    """Sets of names are added, and nothing else changes."""
    head = advance(HEAD, GIVEN, version=8, time_ms=9)
    head = advance(head, Edit(config={}), version=9, time_ms=9)
    assert head.row_texts == FIRST
    more = replace(FIRST, keys=(*FIRST.keys, ("a", "b")))
    head = advance(head, Edit(row_texts=more), version=10, time_ms=9)
    assert head.row_texts == more
    assert head_from_json(head_to_json(head), where="a test") == head
    assert "row_texts" not in head_to_json(HEAD)


def test_an_edit_with_rules_is_read_back():
    value = edit_to_json(GIVEN)
    told = {"encoding": 1, "time_zone": "Europe/Berlin", "keys": [["Id", "region"]]}
    assert value["row_texts"] == told
    assert edit_from_json(value, version=8) == GIVEN


def test_a_log_without_the_feature_has_none():
    with pytest.raises(CorruptionError, match="lacks feature 'row-texts'"):
        advance(HEAD, replace(GIVEN, features=None), version=8, time_ms=9)


@pytest.mark.parametrize(
    "other",
    [RowTexts(2, None, FIRST.keys), replace(FIRST, time_zone="UTC"), replace(FIRST, keys=())],
)
def test_rules_do_not_change(other):
    head = advance(HEAD, GIVEN, version=8, time_ms=9)
    with pytest.raises(CorruptionError, match="rules of texts change"):
        advance(head, Edit(row_texts=other), version=9, time_ms=9)


@pytest.mark.parametrize(
    "rules", [{}, {"encoding": -1, "keys": []}, {"encoding": 2, "keys": [[1]]}, [], {"keys": []}]
)
def test_rules_that_are_none_are_damage(rules):
    with pytest.raises(CorruptionError, match="violates the format"):
        edit_from_json({"row_texts": rules}, version=8)


def test_names_are_found_whatever_their_case_and_order():
    assert FIRST.spelled(["REGION", "id"]) == ("Id", "region")
    assert FIRST.spelled(["id"]) is None
