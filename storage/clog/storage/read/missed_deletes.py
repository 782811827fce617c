"""Which deletes a reader can have missed (S41). Pure.

A reader that was at some offsets at some version, and comes back later, misses a delete when a
tombstone that it had not reached was removed since: it may know a value of that key, and nothing
tells it any more that the key is gone.
"""

from collections.abc import Mapping, Sequence


def missed_deletes(
    removed: Sequence[tuple[int, int, int]], starts: Mapping[int, int], since_version: int
) -> dict[int, int]:
    """Returns, by partition, the highest offset of a tombstone that was removed after
    ``since_version`` at or above ``starts``; ``removed`` is `Manifest.tombstones_removed`.
    """
    missed: dict[int, int] = {}
    for p, version, offset in removed:
        if version > since_version and p in starts and offset >= starts[p]:
            missed[p] = max(offset, missed.get(p, offset))
    return missed
