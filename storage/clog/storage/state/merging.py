"""What a store shows: the rows of its file with what is not committed in their place."""

import heapq
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from clog.storage.state.cache import Cache, after_prefix
from clog.storage.state.uncommitted import Uncommitted


def merged_many(cache: Cache, changes: Uncommitted, asked: Sequence[Any]) -> dict[Any, Any]:
    """Returns the values of those keys that are there."""
    found, codec = cache.get_many(asked), changes.codec
    for change in map(changes.get, codec.keys(asked)):
        if change is None:
            continue
        if change[1] is None:
            found.pop(codec.key(change[0]), None)
        else:
            found[codec.key(change[0])] = codec.value(change[1])
    return found


def merged_scan(cache: Cache, changes: Uncommitted, prefix: Any) -> Iterator[tuple[Any, Any]]:
    """Returns keys and values in the order of the keys, those that begin with the prefix, as they
    are now.
    """
    low = changes.codec.prefix(prefix)
    high = after_prefix(low)
    codec = cache.codec
    stored = ((key, codec, value) for key, value in cache.between(low, high))
    newer = ((key, changes.codec, value) for key, value in changes.between(low, high))
    both = heapq.merge(newer, stored, key=_key)  # Of equal keys the change comes first.
    shown = (next(same) for _, same in groupby(both, _key))
    return ((by.key(key), by.value(value)) for key, by, value in shown if value is not None)


def _key(row: tuple[bytes, object, object]) -> bytes:
    return row[0]
