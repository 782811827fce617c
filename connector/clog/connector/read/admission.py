"""How much of what there is goes into the next batch. Pure."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clog.storage.format.manifest import Manifest


def limited(
    starts: Mapping[int, int], ends: Mapping[int, int], max_offsets: int | None
) -> dict[int, int]:
    """Returns the ends of a batch of at most about ``max_offsets`` offsets, by partition; all of
    ``ends`` for None.

    The limit is shared in proportion to what each partition has. Each that has anything gets at
    least 1, so that none starves; with more such partitions than the limit allows, the batch is
    larger than the limit. An end below its start (data that is gone) stays as it is.

    >>> limited({0: 0, 1: 0, 2: 5}, {0: 90, 1: 1, 2: 5}, 10)
    {0: 9, 1: 1, 2: 5}
    """
    backlog = {p: max(0, end - starts[p]) for p, end in ends.items()}
    total = sum(backlog.values())
    if max_offsets is None or total <= max_offsets:
        return dict(ends)
    return {
        p: starts[p] + max(1, backlog[p] * max_offsets // total) if backlog[p] else end
        for p, end in ends.items()
    }


def limited_bytes(
    manifest: "Manifest", starts: Mapping[int, int], ends: Mapping[int, int], max_bytes: int
) -> dict[int, int]:
    """Returns the ends of a batch of about ``max_bytes`` bytes of records, not beyond ``ends``.

    Chunks go in by the order of their commits, so that no partition starves, the last one in part:
    as many of its offsets as its bytes promise. At least one offset goes in.
    """
    waiting = sorted(
        (chunk.version, p, max(chunk.base, starts[p]), min(chunk.next, end), chunk)
        for p, end in ends.items()
        for segment in manifest.segments[p]
        if segment.next > starts[p] and segment.base < end
        for chunk in segment.chunks
        if chunk.next > starts[p] and chunk.base < end
    )
    at = {p: min(starts[p], end) for p, end in ends.items()}
    room = max_bytes
    for _, p, first, until, chunk in waiting:
        span = chunk.next - chunk.base
        size = chunk.size_bytes * (until - first) // span
        if size > room:
            part = room * span // max(1, chunk.size_bytes)
            if room == max_bytes:
                part = max(1, part)
            if part:
                at[p] = first + part
            return at
        at[p] = until
        room -= size
    return dict(ends)
