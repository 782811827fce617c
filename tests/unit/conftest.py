"""What unit tests of all packages share."""

import pytest


@pytest.fixture
def url(tmp_path):
    """Where a log may be made."""
    return str(tmp_path / "log")
