"""Keeps, members and cuts in edits and heads (FORMAT.md §20)."""

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
from clog.storage.format.cuts import (
    CutEntry,
    CutLog,
    CutLogsAt,
    Keep,
    read_logs,
    stored_logs,
)
from clog.storage.format.log_info import NAMED_CUTS, FeatureNames
from clog_testing.crash import discard, memory_store
from clog_testing.histories import fresh_manifest

HEAD = fresh_manifest().head
A, B, C = "a" * 32, "b" * 32, "c" * 32
FEATURE = FeatureNames(write=(NAMED_CUTS,))
LOG = CutLog(A, "memory://a", 7, B)
KEEP = Keep(3, "month-end", A, "memory://a", 5, -1)
GIVEN = Edit(
    features=FEATURE,
    kept={C: KEEP},
    members={B: "memory://b"},
    cuts={"month-end": CutEntry(C, 5, 9, (LOG,))},
)
JSON = {
    "kept": {
        C: {
            "version": 3,
            "name": "month-end",
            "home": A,
            "home_url": "memory://a",
            "time_ms": 5,
            "until_ms": -1,
        }
    },
    "members": {B: "memory://b"},
    "cuts": {
        "month-end": {"id": C, "time_ms": 5, "until_ms": 9, "logs": [[A, "memory://a", 7, B]]}
    },
}


def test_they_are_carried_from_head_to_head():
    """Null removes one; what is kept limits what may expire."""
    head = advance(HEAD, GIVEN, version=8, time_ms=9)
    head = advance(head, Edit(members={A: "memory://c"}), version=9, time_ms=9)
    assert (head.members, head.lowest_needed()) == ({B: "memory://b", A: "memory://c"}, 3)
    assert head_from_json(head_to_json(head), where="a test") == head
    gone = Edit(kept={C: None}, members={A: None, B: None}, cuts={"month-end": None})
    head = advance(head, gone, version=10, time_ms=9)
    assert (head.kept, head.members, head.cuts, head.lowest_needed()) == ({}, {}, {}, None)
    assert not {"kept", "members", "cuts"} & head_to_json(head).keys()


def test_an_edit_is_read_back():
    value = edit_to_json(GIVEN)
    assert {name: value[name] for name in JSON} == JSON
    assert edit_from_json(value, version=8) == GIVEN
    gone = Edit(kept={C: None}, cuts={"month-end": None})
    assert edit_from_json(edit_to_json(gone), version=8) == gone


def test_a_cut_of_others_is_kept_by_nobody():
    """A writer that copies another system names what it wrote in the same commit."""
    entry = CutEntry(None, 5, -1, (LOG,))
    edit = Edit(cuts={"newest": entry})
    assert edit_to_json(edit)["cuts"]["newest"]["id"] is None
    assert edit_from_json(edit_to_json(edit), version=8) == edit


def test_many_logs_are_a_document():
    store = memory_store()
    try:
        many = tuple(replace(LOG, version=n) for n in range(40))
        assert stored_logs(store, (LOG,), new_id=lambda: C) == (LOG,)
        at = stored_logs(store, many, new_id=lambda: C)
        assert isinstance(at, CutLogsAt)
        assert (at.path, read_logs(store, at), read_logs(store, many)) == (
            f"pages/{C}.json",
            many,
            many,
        )
        entry = CutEntry(C, 5, -1, at)
        edit = Edit(cuts={"c": entry})
        assert edit_from_json(edit_to_json(edit), version=8) == edit
    finally:
        discard(store)


@pytest.mark.parametrize(
    "broken",
    [
        {"kept": {C: {**JSON["kept"][C], "version": -1}}},
        {"kept": {"c": JSON["kept"][C]}},
        {"kept": {C: {"version": 3}}},
        {"members": {B: 5, "x": "memory://b"}},
        {"members": []},
        {"cuts": {"c": {"id": "x", "time_ms": 5, "until_ms": 9, "logs": []}}},
        {"cuts": {"c": {"id": C, "time_ms": 5, "until_ms": 9}}},
        {"cuts": {"c": {"id": C, "time_ms": 5, "until_ms": 9, "logs": [[A, "memory://a", 7]]}}},
        {"cuts": {"c": {"id": C, "time_ms": 5, "until_ms": 9, "logs_at": {"path": "../x"}}}},
    ],
)
def test_what_is_none_is_damage(broken):
    with pytest.raises(CorruptionError, match="violates the format"):
        edit_from_json(broken, version=8)
