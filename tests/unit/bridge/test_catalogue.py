"""Why a captured table is loaded again, without the database (`docs/guests/databases.md`)."""

from dataclasses import replace

import pytest

from clog.bridge.capturing.tables import Binding, Column, Relation, RelationColumn, SourceTable
from clog.storage import InvalidInputError

INT8, TEXT = 20, 25
ID = Column("id", 1, INT8, -1, not_null=True, in_key=True)
NAME = Column("name", 2, TEXT, -1, not_null=False, in_key=False)
TABLE = SourceTable(
    *(7, "public", "shop", "key", (ID, NAME), frozenset(), frozenset({"name"}), {1: 10}),
    width=3,
    file=10,
    stamps={1: 5, 2: 5},
    sent=(("id", INT8, -1), ("name", TEXT, -1)),
    live=frozenset({1, 2}),
    entries={"e7": "5", "p": "6"},
    published="9",
)
"""Its third column was dropped, or is not captured."""


CITY = replace(NAME, name="city", attnum=4)


def with_column(column, **more):
    live = TABLE.live | {column.attnum}
    return replace(TABLE, **{"columns": (ID, NAME, column), "width": 4, "live": live, **more})


def without_name(**more):
    return replace(TABLE, columns=(ID,), live=frozenset({1}), sent=TABLE.sent[:1], **more)


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (TABLE, None),
        (replace(TABLE, rows=9, pages=9, toasted=frozenset()), None),
        (with_column(CITY), None),
        (with_column(CITY, defaults=frozenset({4})), "a default"),
        (with_column(replace(CITY, attnum=3)), "renamed, or has been captured only"),
        (with_column(CITY, width=5), "added, and dropped"),
        (with_column(CITY, columns=(ID, CITY), live=frozenset({1, 4})), "added, and dropped"),
        (with_column(CITY, entries={**TABLE.entries, "c9": "7"}), "whose type has labels"),
        (without_name(), None),
        (without_name(stamps={1: 6}), "dropped, and others changed"),
        (replace(TABLE, columns=(ID, replace(NAME, name="city"))), "city was renamed"),
        (replace(TABLE, columns=(ID, replace(NAME, attnum=4))), "dropped and added again"),
        (replace(TABLE, columns=(ID, replace(NAME, typmod=8))), "another type"),
        (replace(TABLE, leaves={1: 11}), "a partition was"),
        (replace(TABLE, file=11), None),
        (replace(TABLE, stamps={1: 5, 2: 8}), None),
        (replace(TABLE, file=11, stamps={1: 5, 2: 8}), "its rows were rewritten"),
        (replace(TABLE, entries={"e7": "6", "p": "6"}), "written differently"),
        (replace(TABLE, entries={"e7": "5", "p": "7"}), "another for some time"),
        (replace(TABLE, entries={"e7": "5", "e8": "6", "p": "6"}), None),
        (replace(TABLE, entries={}), None),
        (replace(TABLE, published="8"), "was not published"),
    ],
)
def test_why_a_table_is_loaded_again(now, why):
    """H-C9, H-C10: its rows may differ from the log's without a message that says so."""
    found = Binding.read(TABLE.binding("public.shop")).why_reload(now)
    assert (found is None) if why is None else (why in found)


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (replace(TABLE, identity="events"), "the replica identity or its key changed"),
        (replace(TABLE, columns=(ID, replace(NAME, in_key=True))), r"the key .* cannot change"),
    ],
)
def test_what_a_log_cannot_follow(now, why):
    """A log has its key for ever."""
    with pytest.raises(InvalidInputError, match=why):
        Binding.read(TABLE.binding("public.shop")).why_reload(now)


def test_a_column_that_is_added_long_after_it_was_dropped():
    """H-C9: the log still has the values of the one that was dropped, whatever was seen between."""
    bound = Binding.read(TABLE.binding("public.shop"))
    bound = Binding.read(bound.followed_by(without_name()).binding("public.shop"))
    bound = Binding.read(bound.followed_by(without_name()).binding("public.shop"))
    assert bound.why_reload(without_name()) is None
    again = with_column(replace(NAME, attnum=4), columns=(ID, replace(NAME, attnum=4)))
    assert "name was dropped, and added again" in bound.why_reload(again)


@pytest.mark.parametrize(
    ("sent", "has"),
    [
        ("id name city", True),
        ("id name", True),
        ("id", False),
        ("id city", False),
        ("name id city", False),
        ("id name city zip", False),
        ("id name town", False),
    ],
)
def test_rows_that_have_what_the_log_needs(sent, has):
    """H-C9: only the last columns may be missing: those that had not been added yet."""
    now = with_column(CITY, sent=(*TABLE.sent, ("city", TEXT, -1)))
    kinds = {"id": INT8}
    columns = (RelationColumn(n, kinds.get(n, TEXT), -1, n == "id") for n in sent.split())
    relation = Relation(7, "public", "shop", "d", tuple(columns))
    assert Binding.read(TABLE.binding("public.shop")).has(relation, now) == has
    moved = replace(relation, columns=tuple(replace(c, in_key=True) for c in relation.columns))
    assert not Binding.read(TABLE.binding("public.shop")).has(moved, now)
