"""Why a captured table is loaded again, without the database (`docs/capture.md`)."""

from dataclasses import replace

import pytest

from clog.bridge.postgres.catalogue import Binding, SourceTable
from clog.bridge.postgres.tables import Column
from clog.storage import InvalidInputError

INT8, TEXT = 20, 25
ID = Column("id", 1, INT8, -1, not_null=True, in_key=True)
NAME = Column("name", 2, TEXT, -1, not_null=False, in_key=False)
TABLE = SourceTable(
    *(7, "public", "shop", "key", (ID, NAME), frozenset(), frozenset({"name"}), {1: 10}),
    width=3,
    file=10,
    stamps=(5, 5, 6),
    labels={"mood": "ok,sad"},
    published="9",
)
"""Its third column was dropped, or is not captured."""


def with_column(column, **more):
    return replace(TABLE, columns=(ID, NAME, column), **more)


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (TABLE, None),
        (replace(TABLE, rows=9, pages=9, toasted=frozenset(), width=4), None),
        (with_column(replace(NAME, name="city", attnum=4)), None),
        (with_column(replace(NAME, name="city", attnum=4), defaults=frozenset({4})), "a default"),
        (with_column(replace(NAME, name="city", attnum=3)), "renamed, or has been captured only"),
        (replace(TABLE, columns=(ID, replace(NAME, name="city"))), "city was renamed"),
        (replace(TABLE, columns=(ID, replace(NAME, attnum=4))), "dropped and added again"),
        (replace(TABLE, columns=(ID, replace(NAME, typmod=8))), "another type"),
        (replace(TABLE, leaves={1: 11}), "a partition was"),
        (replace(TABLE, file=11), None),
        (replace(TABLE, file=11, stamps=(5, 5, 8)), "its rows were rewritten"),
        (replace(TABLE, labels={"mood": "ok,bad"}), "written differently"),
        (replace(TABLE, labels={}), None),
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
