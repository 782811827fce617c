"""The version of a moment: the newest one that was committed by then.

Times of commits never go back from one version to the next (FORMAT.md §3.1), so a binary search
finds it: one GET a step.
"""

from clog.storage.commit.versions import commit_missing, try_read
from clog.storage.errors import InvalidInputError, VersionExpiredError
from clog.storage.format.commits import Commit
from clog.storage.store.base import Store


def version_asked(store: Store, tip: Commit, at: int | None, at_time_ms: int | None) -> int:
    """Returns the version that a caller names by number or by time; the tip when by neither.

    Raises:
        InvalidInputError: by both, or by something that is no integer.
        VersionExpiredError: as `version_at_time`. Whether ``at`` is readable shows when it is read.
    """
    if at is not None and at_time_ms is not None:
        raise InvalidInputError(
            f"at={at} and at_time_ms={at_time_ms} both select a version of {store.url}; give one"
        )
    for name, number in (("at", at), ("at_time_ms", at_time_ms)):
        if number is not None and type(number) is not int:
            raise InvalidInputError(f"{name}={number!r} is not an integer")
    if at_time_ms is not None:
        return version_at_time(store, at_time_ms, tip)
    return tip.version if at is None else at


def version_at_time(store: Store, time_ms: int, tip: Commit) -> int:
    """Returns the newest version not newer than ``tip`` whose commit is not later than the time, in
    ms since 1970; the tip for every later time.

    Raises:
        VersionExpiredError: the oldest readable version is later than the time.
    """
    low, high = tip.head.oldest_readable, tip.version
    if tip.record.time_ms <= time_ms:
        return high
    oldest_ms = _time_ms(store, low, tip)
    if oldest_ms > time_ms:
        raise VersionExpiredError(
            f"{store.url} cannot be read as of time_ms={time_ms}: its oldest readable version"
            f" {low} was committed at time_ms={oldest_ms}; ask for that time or a later one"
        )
    # The version searched lies in [low, high): low is early enough, high is too late.
    while high - low > 1:
        middle = (low + high) // 2
        if _time_ms(store, middle, tip) <= time_ms:
            low = middle
        else:
            high = middle
    return low


def _time_ms(store: Store, version: int, tip: Commit) -> int:
    commit = tip if version == tip.version else try_read(store, version)
    if commit is None:
        raise commit_missing(store, version, why=" while it was searched")
    return commit.record.time_ms
