"""Names of features: the registry, and the lists that contain them (FORMAT.md §0)."""

import re
from pathlib import Path

import pytest

from clog.storage.format.log_info import FEATURES, NEW_LOG_FEATURES, FeatureNames, lists_of, unknown

FORMAT = Path(__file__).parents[4] / "storage" / "FORMAT.md"


def test_the_document_lists_what_the_registry_has():
    """FORMAT.md §0: name, list, section and whether it is built."""
    row = r"^\| `([a-z-]+)` \| `(read|write)` \|.*\| §(.*) \| (yes|no)"
    found = re.findall(row, FORMAT.read_text(), re.MULTILINE)
    words = {True: "yes", False: "no"}
    assert found == [
        (f.name, "read" if f.of_readers else "write", f.section, words[f.is_built])
        for f in FEATURES.values()
    ]


def test_each_section_is_there():
    """A name leads to a heading of the document."""
    headings = set(re.findall(r"^##+ ([0-9.]+?)\.? ", FORMAT.read_text(), re.MULTILINE))
    assert {f.section for f in FEATURES.values()} <= headings


@pytest.mark.parametrize(
    ("more", "both"),
    [
        (FeatureNames(), FeatureNames(("a", "b"), ("c",))),
        (FeatureNames(("d", "a"), ("e",)), FeatureNames(("a", "b", "d"), ("c", "e"))),
        (FeatureNames(("c",), ("b",)), FeatureNames(("a", "b"), ("c",))),
    ],
)
def test_a_name_is_added_once_and_never_moves(more, both):
    """In the order of the edit, whichever list already contains it."""
    assert FeatureNames(("a", "b"), ("c",)).with_added(more) == both


def test_new_logs_have_only_what_is_built():
    """Nobody could read them otherwise."""
    assert "dead-rows" in NEW_LOG_FEATURES.read
    assert unknown((*NEW_LOG_FEATURES.read, *NEW_LOG_FEATURES.write)) == []


def test_what_is_not_built_is_not_known():
    """FORMAT.md §0: specified is not enough."""
    names = tuple(FEATURES)
    assert set(unknown(names)) == {f.name for f in FEATURES.values() if not f.is_built}
    assert unknown(("ink", *names)) == sorted({"ink", *unknown(names)})
    lists = lists_of(list(FEATURES.values()))
    assert all((name in lists.read) is FEATURES[name].of_readers for name in names)
    assert len(lists.read) + len(lists.write) == len(names)
