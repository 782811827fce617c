"""Appends with given offsets, as a mirror of a topic needs them (FORMAT.md §16, COMMIT.md §13).

A log *takes* offsets until it is switched to assigning them itself. While it takes them, each
record comes with its offset, and the end of each partition is the position in the source up to
which the log is complete.

Given offsets leave no choice: if the head is beyond them, the append is refused. Each chunk begins
at its first record and ends after its last one, or where the next chunk begins; the offsets before
and after all chunks are *reached* by the edit itself. So objects whose offsets have no gaps need no
column for them, and readers that miss no record can tell.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from clog.storage.env import dataclass
from clog.storage.errors import InvalidInputError
from clog.storage.format.commits import Head
from clog.storage.format.documents import NONE
from clog.storage.format.log_info import GIVEN_OFFSETS
from clog.storage.objects.writer import DataObject, partition_order

_Ints = np.ndarray[Any, Any]
ENDS_MAX: Final = 1 << 62
"""The highest end that may be given; as many offsets are left for the log to assign later."""


@dataclass(frozen=True, slots=True)
class Covered:
    """Up to which offsets an append covers partitions, and where their source begins."""

    ends: Mapping[int, int]
    starts: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Bound:
    """What an append does to a head: the range of each chunk, in order; by partition, the offsets
    reached before and after the chunks, and new log start offsets.
    """

    ranges: tuple[tuple[int, int], ...]
    reached: Mapping[int, int]
    reached_after: Mapping[int, int]
    starts: Mapping[int, int]


def refused(head: Head, *, given: bool, url: str) -> InvalidInputError:
    """Returns the error for a log that does not take the ``given`` offsets, or that takes offsets
    although none are given.
    """
    if given and GIVEN_OFFSETS not in head.log.features:
        return InvalidInputError(
            f"{url} assigns offsets itself and takes none from others; only a log created with"
            f' Log.create(…, features=["{GIVEN_OFFSETS}"]) does; nothing was appended'
        )
    if given:
        return InvalidInputError(
            f"{url} has assigned offsets itself since version {head.gives_offsets}, and no longer"
            " takes them from others; nothing was appended"
        )
    return InvalidInputError(
        f"{url} takes its offsets from its source: a record without one, a tombstone of an erasure"
        " or a marker of a transaction would use an offset of the source; append at the source, or"
        " end the mirror first (Log.give_offsets, clog mirror --end); nothing was appended"
    )


def checked_offsets(
    offsets: object, partition: _Ints, before: Mapping[int, int], *, url: str
) -> _Ints:
    """Returns the checked offsets of records, given the partition of each: in each partition they
    ascend, starting at ``before`` if that names it.
    """
    try:
        given = np.asarray(offsets)
    except (TypeError, ValueError):
        given = np.empty(0)
    if given.shape != partition.shape or given.dtype.kind not in "iu":
        raise InvalidInputError(
            f"{offsets!r:.80} are not offsets of {len(partition)} records; give an array of"
            " integers, one for each record"
        )
    if int(given.min()) < 0 or int(given.max()) >= ENDS_MAX:
        raise InvalidInputError(
            f"offsets from {given.min()} to {given.max()} are out of range; allowed: 0 to 2^62 - 1"
        )
    made = given.astype(np.int64)
    order = partition_order(partition)
    parts, ordered = (partition, made) if order is None else (partition[order], made[order])
    falls = np.flatnonzero((np.diff(parts) == 0) & (np.diff(ordered) <= 0))
    if falls.size:
        row, after = int(falls[0] + 1), int(ordered[falls[0]])
        row = row if order is None else int(order[row])
        raise InvalidInputError(
            f"record {row} of partition {int(partition[row])} has offset {int(made[row])}, after"
            f" {after}; in each partition offsets ascend; nothing was appended to {url}"
        )
    firsts = np.flatnonzero(np.diff(parts, prepend=NONE))
    for p, first in zip(parts[firsts].tolist(), ordered[firsts].tolist(), strict=True):
        if first < before.get(p, 0):
            raise InvalidInputError(
                f"offset {first} of partition {p} comes after {before[p] - 1} in one transaction;"
                f" in each partition offsets ascend; nothing was appended to {url}"
            )
    return made


def bind_given(
    objects: Sequence[DataObject], covered: Covered | None, head: Head, *, url: str
) -> Bound:
    """Returns what an append does to the head. Raises InvalidInputError if the head is beyond the
    given offsets.
    """
    ends, starts = head.partitions.end, head.partitions.start
    covered = covered or Covered({}, {})
    chunks = [stats for obj in objects for stats in obj.chunks]
    mine: dict[int, list[int]] = {}
    for i, stats in enumerate(chunks):
        mine.setdefault(stats.partition, []).append(i)
    first = {p: chunks[at[0]].first_offset for p, at in mine.items()}
    nexts = [stats.last_offset + 1 for stats in chunks]
    last = {p: nexts[at[-1]] for p, at in mine.items()}
    for i, after in (pair for at in mine.values() for pair in pairwise(at)):
        nexts[i] = chunks[after].first_offset
    for p, offset in {**covered.ends, **first}.items():
        if offset < ends[p]:
            raise _is_behind(p, offset, ends[p], url=url)
    reached = {**covered.ends, **first}
    raised = {p: start for p, start in covered.starts.items() if start > starts[p]}
    for p, start in raised.items():
        if start > max(ends[p], reached.get(p, 0)):
            raise InvalidInputError(
                f"partition {p} of {url} cannot start at {start}: only offsets below"
                f" {max(ends[p], reached.get(p, 0))} are covered; nothing was appended"
            )
    return Bound(
        tuple((s.first_offset, end) for s, end in zip(chunks, nexts, strict=True)),
        {p: offset for p, offset in reached.items() if offset > ends[p]},
        {p: end for p, end in covered.ends.items() if p in last and end > last[p]},
        raised,
    )


def _is_behind(p: int, offset: int, end: int, *, url: str) -> InvalidInputError:
    return InvalidInputError(
        f"offset {offset} of partition {p} of {url} is already taken: its end offset is {end};"
        " another process has mirrored it in the meantime, or it was retried under another id;"
        " continue from end_offsets(); nothing was appended"
    )
