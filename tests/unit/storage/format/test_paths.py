"""Names below a log's root: made, parsed, and kept inside (FORMAT.md §1)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clog.storage.errors import CorruptionError
from clog.storage.format import documents
from clog.storage.format.documents import PATH, reading

VERSIONS = st.integers(0, 10**20 - 1)


def test_the_names_of_the_format():
    """As FORMAT.md §1 lists them."""
    assert documents.commit_path(7) == "commits/00000000000000000007.json"
    assert documents.snapshot_path(7) == "snapshots/00000000000000000007.json"
    assert documents.page_path("ab") == "pages/ab.json"
    assert documents.edit_path("ab") == "edits/ab.json"
    assert documents.block_path(1500) == "blocks/00000000000000001024.json"
    assert documents.data_path(7, "ab") == "data/00000000000000000007-ab.parquet"
    assert documents.LATEST == "latest"


@given(VERSIONS, VERSIONS)
def test_names_sort_as_versions(one, other):
    """20 digits: a listing is in the order of versions."""
    assert (documents.commit_path(one) < documents.commit_path(other)) == (one < other)


@given(VERSIONS)
def test_versions_and_stamps_are_read_from_names(version):
    """And only from names of the valid form."""
    assert documents.version_of(documents.commit_path(version)) == version
    assert documents.version_of(documents.snapshot_path(version)) == version
    assert documents.stamp_of(documents.data_path(version, "0" * 32)) == version
    assert documents.stamp_of(documents.commit_path(version)) is None


@pytest.mark.parametrize(
    "path",
    [
        *("latest", "commits/7.json", "commits/0000000000000000000x.json"),
        *("commits/00000000000000000007.json.tmp", "", "00000000000000000007.json"),
        *("commits/kept/00000000000000000007.json", "kept/commits/00000000000000000007.json"),
        *("commits/" + "\u0661" * 20 + ".json", "pages/00000000000000000007.json"),
    ],
)
def test_other_names_have_no_version(path):
    """A stray file is not a commit."""
    assert documents.version_of(path) is None


@pytest.mark.parametrize(
    "path",
    [
        *("data/7-ab.parquet", "data/00000000000000000007-" + "0" * 31 + ".parquet"),
        *("x/data/00000000000000000007-" + "0" * 32 + ".parquet", "data/"),
        *("data/00000000000000000007-" + "G" * 32 + ".parquet",),
        *("data/00000000000000000007-" + "0" * 32 + ".parquet\n",),
    ],
)
def test_other_names_have_no_stamp(path):
    """The sweep takes nothing for a data object that is not one."""
    assert documents.stamp_of(path) is None


@pytest.mark.parametrize(
    ("version", "first"), [(0, 0), (1023, 0), (1024, 1024), (2047, 1024), (2048, 2048)]
)
def test_a_block_is_named_by_its_first_version(version, first):
    """FORMAT.md §7: 1024 versions."""
    assert documents.block_of(version) == first
    assert documents.block_path(version) == f"blocks/{first:020d}.json"


@pytest.mark.parametrize("path", ["data/x", "pages/x.json", "a", "a/b/c", "..a/b", "a./..b"])
def test_paths_under_the_root_pass(path):
    """Dots within a name do not leave the root."""
    assert PATH.read(path) == path


@pytest.mark.parametrize(
    "path",
    [
        *("/etc/passwd", "../up", "data/../../up", "data/..", "./data", "data//x", "data/", ""),
        *("data/./x", "C:/x", "s3://b/x", "file:x", "data\\..\\x", "data/x\0", None, 7, ["data"]),
    ],
)
def test_paths_that_leave_the_root_are_corruption(path):
    """FORMAT.md §1; and other systems' separators, drives and schemes."""
    with (
        pytest.raises(CorruptionError, match=r"here violates .* not a path in the log's folder"),
        reading("here"),
    ):
        PATH.read(path)
