"""Which changes of a MySQL table stop its capture, with no server (docs/guests/databases.md)."""

import pytest

from clog.bridge.mysql.engine import why_reload


def described(**columns):
    """A table as the engine describes it; each column's type."""
    return {
        "primaryKeyColumnNames": ["id"],
        "columns": [
            {"name": name, "typeExpression": kind, "length": None, "scale": None}
            | {"enumValues": [], "optional": name != "id", "generated": False}
            for name, kind in {"id": "INT", **columns}.items()
        ],
    }


BEFORE = {
    "key": ["id"],
    "columns": {name: ["INT", None, None, []] for name in ("id", "v")},
    "gone": ["w"],
}


@pytest.mark.parametrize(
    ("ddl", "columns", "why"),
    [
        ("add x int", {"v": "INT", "x": "INT"}, None),
        ("add x int, drop v", {"x": "INT"}, None),
        ("change v v int", {"v": "INT"}, None),
        ("CHANGE COLUMN `v` v int", {"v": "INT"}, None),
        ("rename index a to b", {"v": "INT"}, None),
        ("rename column v to x", {"x": "INT"}, "was renamed"),
        ("rename /* a */ column v to x", {"x": "INT"}, "was renamed"),
        ("rename column v to x, rename column x to v", {"v": "INT"}, "was renamed"),
        ("change `v` `x` int", {"x": "INT"}, "was renamed"),
        ("modify v text", {"v": "TEXT"}, "another type"),
        ("add w int", {"v": "INT", "w": "INT"}, "added again later"),
        ("drop v, add v int", {"v": "INT"}, "dropped and added again"),
        ("truncate partition p0", {"v": "INT"}, "with a partition"),
        ("exchange partition p0 with table u", {"v": "INT"}, "with a partition"),
        ("import tablespace", {"v": "INT"}, "tablespace"),
    ],
)
def test_what_stops_a_capture(ddl, columns, why):
    """H-C9, H-C10: rows may change without a message; and what is taken back later did, too."""
    change = {"type": "ALTER", "id": '"d"."t"', "previousId": None}
    found = why_reload(BEFORE, described(**columns), f"alter table t {ddl}", change)
    assert (found is None) if why is None else (why in found)
