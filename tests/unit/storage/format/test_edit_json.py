"""Edits as JSON: every shape is restored, and what contradicts FORMAT.md §3.2 is corruption."""

import copy
import json
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given

from clog.storage.errors import CorruptionError
from clog.storage.format.chunks import CHUNKS, OBJECTS
from clog.storage.format.columns import COLUMNS
from clog.storage.format.commits import PARTS, Edit, Head, edit_from_json, edit_to_json
from clog.storage.format.documents import body_json
from clog_testing.histories import (
    any_edits,
    append_edit,
    applied,
    clean_edit,
    fresh_manifest,
    log_info,
)


@given(any_edits())
def test_an_edit_comes_back(edit):
    """Through JSON text, unchanged; the version of writer and chunks is the commit's."""
    assert edit_from_json(json.loads(body_json(edit_to_json(edit))), version=7) == edit


def test_the_creation_comes_back():
    """Version 0, config included."""
    edit = Edit(create=log_info(3), config={"cleanup.policy": "compact"})
    assert edit_from_json(edit_to_json(edit), version=0) == edit


def test_an_empty_edit_is_an_empty_object():
    """Absent parts take no bytes."""
    assert edit_to_json(Edit()) == {}
    assert edit_from_json({}, version=1) == Edit()


def test_unknown_keys_are_ignored():
    """FORMAT.md §2: what a reader must not ignore is announced in the features."""
    value = {"colour": {"red": 1}, "orphan_floor": 3}
    assert edit_from_json(value, version=1) == Edit(orphan_floor=3)


def _full() -> dict:
    """The JSON of an edit with an append, its writers and a replacement."""
    manifest = fresh_manifest()
    for n in range(3):
        manifest = applied(manifest, append_edit(manifest, {0: 2, 1: 3}, f"{n:032x}", rolls=True))
    add = edit_to_json(append_edit(manifest, {0: 2, 1: 3}, "a" * 32))
    state = {
        "epoch": 3,
        "number": 0,
        "committed": [2, 1, 5],
        "positions": {"c" * 32: {"p": [0, 2], "offset": [7, 8], "version": [1, 1]}},
        "foreign": {"kafka:c/t": {"p": [0, 2], "offset": [7, 8], "mark": ["e", None]}},
    }
    writers = [
        ["w", "producer", None, 7, "ab", 0, 1],
        ["t", "transaction", None, -1, None, 1, 1, state],
    ]
    name = {"home": "d" * 32, "id": "t", "epoch": 3, "number": 1}
    undecided = {
        "marked": [[0, 1, 9]],
        "unmarked": [[0, 2]],
        "ends": [{**name, "outcome": "aborted", "forced": True}],
        "unended": [
            {
                **name,
                "home_url": "s3://b/home",
                "state": "prepared",
                "timeout_ms": 60,
                "participants": [["e" * 32, "s3://b/other"]],
                "objects": [0, 1],
            }
        ],
    }
    full = {**edit_to_json(clean_edit(manifest, 0, "b" * 32)), **add, "writers": writers}
    full |= undecided
    return copy.deepcopy(full)


def test_the_full_edit_is_sound():
    """What the tests below damage is valid before."""
    edit = edit_from_json(_full(), version=9)
    assert edit.add is not None
    assert edit.replace


def _places(value: object, at: tuple = ()) -> list[tuple]:
    """Paths to every value inside nested JSON."""
    children = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for name, child in children:
        found.append((*at, name))
        if isinstance(child, (dict, list)):
            found += _places(child, (*at, name))
    return found


def _at(value, place):
    for name in place[:-1]:
        value = value[name]
    return value


def test_a_missing_value_is_corruption_unless_it_is_a_whole_part():
    """Within a part nothing is optional but `segments`, `append_time_ms`, `index`, `forced`,
    `participants`, positions, whose fields are logs and names, and `mark`.
    """
    optional = {"segments", "append_time_ms", "index", "positions", "c" * 32}
    optional |= {"foreign", "kafka:c/t", "mark"}
    optional |= {"forced", "participants"}
    fields = [
        place
        for place in _places(_full())
        if len(place) > 1 and isinstance(place[-1], str) and place[-1] not in optional
    ]
    for place in fields:
        if place[0] in ("first_dirty", "tombstones_removed"):
            continue  # Their fields are partitions.
        value = _full()
        del _at(value, place)[place[-1]]
        with pytest.raises(CorruptionError):
            edit_from_json(value, version=9)


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "data/../../x", "data//x", "", "s3://other/x", 7, None]
)
def test_paths_that_leave_the_root_are_corruption(path):
    """FORMAT.md §1, in every place of an edit that contains a path."""
    value = _full()
    at_path = {
        "epoch": 0,
        "number": 0,
        "committed": None,
        "positions_at": {"path": path, "bytes": 1},
    }
    for damaged in (
        {"add": {**value["add"], "objects": [{**value["add"]["objects"][0], "path": path}]}},
        {"replace": [{**value["replace"][0], "sources": [[path, 0]]}]},
        {"horizons": [[0, path, 0, 1, 1]]},
        {"older_writers": {"path": path, "bytes": 1, "count": 1, "level": 0, "left": [0]}},
        {"forget": [path]},
        {"writers": [[*value["writers"][1][:7], at_path]]},
    ):
        with pytest.raises(CorruptionError):
            edit_from_json(damaged, version=9)


@pytest.mark.parametrize(
    "damage", [{"left": [1, 1]}, {"left": [2, 1]}, {"left": [-1]}, {"level": 9}, {"level": -1}]
)
def test_pages_of_writers_that_cannot_be(damage):
    """FORMAT.md §3.2, §4: places ascend, a tree has 8 levels above the lowest."""
    value = {"path": "pages/x.json", "bytes": 9, "count": 2, "level": 8, "left": [0, 3]}
    assert edit_from_json({"older_writers": value}, version=9).older_writers.left == (0, 3)
    with pytest.raises(CorruptionError, match=r"places|level|0 or above"):
        edit_from_json({"older_writers": value | damage}, version=9)


def test_columns_of_different_lengths_are_corruption():
    """FORMAT.md §2: entry i of each column describes thing i."""
    value = _full()
    value["add"]["objects"][0]["chunks"]["rows"].append(1)
    with pytest.raises(CorruptionError, match="different lengths"):
        edit_from_json(value, version=9)


def test_chunks_that_do_not_add_up_to_their_object_are_corruption():
    """FORMAT.md §3.3: they are consecutive, all its rows are in them."""
    value = _full()
    value["add"]["objects"][0]["rows"] += 1
    with pytest.raises(CorruptionError, match="the object 6"):
        edit_from_json(value, version=9)


def test_a_chunk_that_reaches_beyond_its_object_is_corruption():
    """A replacement may refer to part of an object, but not to more than all of it."""
    value = _full()
    value["replace"][0]["objects"][0]["chunks"]["row"][0] += 1
    with pytest.raises(CorruptionError, match="rows"):
        edit_from_json(value, version=9)


def test_a_large_edit_keeps_integers_exact():
    """FORMAT.md §2: 64 bits, no floats."""
    edit = Edit(start={0: 2**63 - 1}, orphan_floor=2**53 + 1)
    assert edit_from_json(json.loads(body_json(edit_to_json(edit))), version=1) == edit


def test_the_format_names_each_field():
    """FORMAT.md §3.2 to §3.4, §4: a reader without this code needs the stored names."""
    text = (Path(__file__).parents[4] / "storage" / "FORMAT.md").read_text()
    heads = {f.name for f in fields(Head)} - {"extra"}
    columns = {*CHUNKS.write([]), *OBJECTS.write([]), *COLUMNS}
    names = {*PARTS, *heads, *columns}
    assert sorted(name for name in names if f"`{name}`" not in text) == []
