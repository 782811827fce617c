"""Logs as a release wrote them that did not give each log the same features (FORMAT.md §0)."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from clog.storage.format.log_info import NO_FEATURES, FeatureNames

_NAMES = ("clog.storage.administration.OF_EACH_LOG", "clog.storage.format.commits.OF_EACH_LOG")


@contextmanager
def as_before(features: FeatureNames = NO_FEATURES) -> Iterator[None]:
    """Creates logs with only these features inside the block, and commits without adding others."""
    first, second = _NAMES
    with patch(first, features), patch(second, features):
        yield
