"""Names of features: the registry, and the lists that contain them (FORMAT.md §0)."""

import re
from pathlib import Path

import pytest

from clog.storage.format.log_info import FEATURES, OF_EACH_LOG, FeatureNames, unknown

FORMAT = Path(__file__).parents[4] / "storage" / "FORMAT.md"


def test_the_document_lists_what_the_registry_has():
    """FORMAT.md §0: name, list and section, those of each log first, then the choices."""
    row = r"^\| `([a-z-]+)` \| `(read|write)` \|.*\| §(.*) \|$"
    found = re.findall(row, FORMAT.read_text(), re.MULTILINE)
    assert found == [
        (f.name, "read" if f.of_readers else "write", f.section)
        for f in sorted(FEATURES.values(), key=lambda f: f.is_choice)
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


def test_each_feature_is_of_each_log_or_a_choice():
    """FORMAT.md §0: at most seven are choices, and nothing else is left to a log."""
    choices = {f.name for f in FEATURES.values() if f.is_choice}
    assert len(choices) == 7
    assert {*OF_EACH_LOG.read, *OF_EACH_LOG.write} == FEATURES.keys() - choices
    assert all((name in OF_EACH_LOG.read) is FEATURES[name].of_readers for name in OF_EACH_LOG.read)


def test_names_of_earlier_releases_stay_known():
    """Whoever refused one would shut out its logs."""
    assert unknown(("ink", "row-texts", *FEATURES)) == ["ink"]
