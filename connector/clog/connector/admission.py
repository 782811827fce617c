"""How much of what there is goes into the next batch. Pure."""

from collections.abc import Mapping


def limited(
    starts: Mapping[int, int], ends: Mapping[int, int], max_offsets: int | None
) -> dict[int, int]:
    """Ends of a batch of at most about ``max_offsets`` offsets, by partition; all of ``ends`` for
    None.

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
