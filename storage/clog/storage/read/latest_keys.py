"""The last offset of each key of a run of records, by sorting: what reading a table asks.

It takes rows, each the fingerprint of a key (`hashing`) and its offset, into a room of so many
rows, and *settles* them when it is asked or the room is full:

L1. Each row becomes one number: the upper bits of its fingerprint, and its place in the room. NumPy
    sorts numbers several times as fast as it looks anything up, and rows of one key come to lie
    side by side, in the order of their offsets.
L2. Of neighbours with the same 128 bits the first is superseded. Where other keys share the upper
    bits and lie in between, which is rare, these few rows are compared by all their bits.
L3. The numbers of the others stay, sorted: they are the index. A *directory* of about as many
    places as keys says where those with the same uppermost bits begin; from there on their rows are
    looked at one by one. All 128 bits decide, always.
L4. If the room is full, rows that are superseded leave it, and the others close up, in their order.

Beside `offset_map`, which a pass of the cleaner fills: that one holds 24 bytes a key whatever the
number of rows, and a key that is there already always fits (S18, S20). This one needs 40 bytes a
row, and 20 more for a moment, and is filled twice as fast (``benchmarks/parts/offset_map.py``;
decision 0008). A room that is still three quarters full when it was settled counts as full: it
would do nothing else.
"""

from typing import Final, Self

import numpy as np
import numpy.typing as npt

from clog.storage.keys.hashing import Fingerprints
from clog.storage.numpy_arrays import Mask, Offsets

ROW_BYTES: Final = 40
"""Memory for a row of room; while it settles half of it again."""

_Numbers = npt.NDArray[np.uint64]
_Places = npt.NDArray[np.int64]
_WHOLE = np.dtype("V16")
_PART_ROWS: Final = 1 << 16


class LatestKeys:
    """Fingerprints of a key -> last offset, of a bounded number of rows.

    Attributes:
        latest_offset: the last offset that was put, -1 where none was.
    """

    __slots__ = (
        "_directory",
        "_index",
        "_mask",
        "_offsets",
        "_rows",
        "_settled",
        "_words",
        "latest_offset",
    )

    def __init__(self, room: int) -> None:
        """Makes an empty map with room for so many rows, at least 1."""
        assert 1 <= room < 1 << 32
        self._words = np.empty((room, 2), np.uint64)
        self._offsets = np.empty(room, np.int64)
        self._mask = np.uint64((1 << max(1, (room - 1).bit_length())) - 1)
        self.clear()

    @classmethod
    def within(cls, memory_bytes: int, *, rows: int) -> Self:
        """Makes a map for so many rows, or for as many as the memory has room for."""
        return cls(max(1, min(memory_bytes // ROW_BYTES, rows)))

    def clear(self) -> None:
        """Forgets everything."""
        self._rows = self._settled = 0
        self._index = np.empty(0, np.uint64)
        self._directory: npt.NDArray[np.uint32] | None = None
        self.latest_offset = -1

    def put(self, words: Fingerprints, offsets: Offsets) -> int:
        """Takes rows in order until there is no room, and returns how many it took; offsets
        increase, also from one call to the next.
        """
        room, taken = len(self._offsets), 0
        while taken < len(offsets):
            if self._rows == room:
                self._settle()
                if 4 * len(self._index) > 3 * room:
                    break
                self._close_up()
            more = min(len(offsets) - taken, room - self._rows)
            self._words[self._rows : self._rows + more] = words[taken : taken + more]
            self._offsets[self._rows : self._rows + more] = offsets[taken : taken + more]
            self._rows, taken = self._rows + more, taken + more
            self.latest_offset = int(offsets[taken - 1])
        return taken

    def last_offsets(self) -> Offsets:
        """Returns the last offset of each key, ascending."""
        self._settle()
        return self._offsets[: self._rows].compress(self._is_last())

    def last_rows(self) -> _Places:
        """Returns which of the rows that were put those of `last_offsets` are, as long as none left
        the room.
        """
        self._settle()
        return np.flatnonzero(self._is_last())

    def get(self, words: Fingerprints) -> Offsets:
        """Returns the last offset of each key, -1 where it is not known."""
        rows, known = self._find(words)
        return np.where(known, self._offsets.take(rows), -1)

    def knows(self, words: Fingerprints) -> Mask:
        """Tells whether each key is known."""
        return self._find(words)[1]

    def _settle(self) -> None:
        """Does L1 to L3; nothing where no row came since."""
        if self._settled == self._rows:
            return
        self._directory = None
        index, mask, kept, start = self._numbers(), self._mask, 0, 0
        while start < len(index):
            # Parts that stay in the processor's cache; none ends between rows that may be a key's.
            edge = index[min(start + _PART_ROWS, len(index)) - 1]
            end = int(np.searchsorted(index, edge | mask, side="right"))
            part = index[start:end]
            tied = (part[1:] ^ part[:-1]) <= mask
            part = part.compress(_last_of_key(_take(self._words, part & mask), tied))
            index[kept : kept + len(part)] = part
            kept, start = kept + len(part), end
        self._index, self._settled = index[:kept], self._rows

    def _numbers(self) -> _Numbers:
        """Returns the rows as sorted numbers: their place in the bits of the mask, their key's bits
        above.
        """
        numbers: _Numbers = self._words[: self._rows, 0] & ~self._mask
        numbers |= np.arange(self._rows, dtype=np.uint64)
        numbers.sort()
        return numbers

    def _is_last(self) -> Mask:
        """Tells whether each row is the last of its key, where all are settled."""
        last = np.zeros(self._rows, np.bool_)
        last[(self._index & self._mask).view(np.int64)] = True
        return last

    def _close_up(self) -> None:
        """Does L4, where all rows are settled."""
        last, rows = self._is_last(), 0
        for start in range(0, self._rows, _PART_ROWS):
            part = slice(start, min(start + _PART_ROWS, self._rows))
            some = np.flatnonzero(last[part])
            end = rows + len(some)
            self._words[rows:end] = _take(self._words[part], some)
            self._offsets[rows:end] = self._offsets[part].take(some)
            rows = end
        self._rows, self._settled = rows, 0

    def _find(self, words: Fingerprints) -> tuple[_Places, Mask]:
        """Returns the row of each key's last offset, any row where the key is not known, and
        whether it is.
        """
        self._settle()
        rows, known = np.zeros(len(words), np.int64), np.zeros(len(words), np.bool_)
        if len(self._index):
            for start in range(0, len(words), _PART_ROWS):
                part = slice(start, start + _PART_ROWS)
                rows[part], known[part] = self._look_up(words[part])
        return rows, known

    def _look_up(self, words: Fingerprints) -> tuple[_Places, Mask]:
        """Does for a part what `_find` does for all."""
        if self._directory is None:
            self._directory = _directory(self._index)
        first = np.ascontiguousarray(words[:, 0])
        at = self._directory.take(_bucket(first, len(self._directory))).astype(np.int64)
        rows, known, further = self._compare(at, first, words)
        at = at.take(further) + 1
        while len(further):
            rows[further], known[further], on = self._compare(
                at, first.take(further), _take(words, further)
            )
            further, at = further.take(on), at.take(on) + 1
        return rows, known

    def _compare(
        self, at: _Places, first: _Numbers, words: Fingerprints
    ) -> tuple[_Places, Mask, _Places]:
        """Returns the rows at these places of the index, whether they are those of the words, and
        which are not and may be further on.
        """
        there = self._index.take(at)
        rows = (there & self._mask).view(np.int64)
        same = _equal(_take(self._words, rows), words)
        # Further on while the upper bits are not larger than those that are asked for.
        may_follow = (there <= (first | self._mask)) & (at < len(self._index) - 1)
        may_follow &= ~same
        return rows, same, np.flatnonzero(may_follow)


def _last_of_key(words: Fingerprints, tied: Mask) -> Mask:
    """Returns which of the rows, in the order of their numbers, are the last of their key;
    ``tied``: rows that share the upper bits with the next one.
    """
    last = np.ones(len(words), np.bool_)
    np.logical_not(_equal(words[1:], words[:-1]), out=last[:-1])
    mixed = tied & last[:-1]
    if mixed.any():
        group = np.concatenate(([0], np.cumsum(~tied)))
        some = np.flatnonzero(np.isin(group, group[:-1][mixed]))
        order = some[np.lexsort((some, words[some, 1], words[some, 0]))]
        last[order[:-1]] = ~_equal(words[order[1:]], words[order[:-1]])
        last[order[-1]] = True
    return last


def _directory(numbers: _Numbers) -> npt.NDArray[np.uint32]:
    """Returns, by uppermost bits, the first of the sorted numbers that has them or larger ones; the
    last one where none has.
    """
    buckets = 1 << len(numbers).bit_length()
    filled = np.bincount(_bucket(numbers, buckets), minlength=buckets)
    first = np.empty(buckets, np.uint32)
    np.cumsum(filled, dtype=np.uint32, out=first)
    np.subtract(first, filled, out=first, casting="unsafe")
    return np.minimum(first, np.uint32(len(numbers) - 1), out=first)


def _bucket(numbers: _Numbers, buckets: int) -> _Places:
    """Returns the uppermost bits of each; so many that there are ``buckets``, a power of two."""
    shifted: _Numbers = numbers >> np.uint64(65 - buckets.bit_length())
    return shifted.view(np.int64)


def _take(words: Fingerprints, rows: npt.NDArray[np.integer]) -> Fingerprints:
    """Returns the rows, each in one step."""
    whole = np.ascontiguousarray(words).view(_WHOLE).ravel()
    return whole.take(rows.view(np.int64), mode="clip").view(np.uint64).reshape(-1, 2)


def _equal(some: Fingerprints, others: Fingerprints) -> Mask:
    equal: Mask = (some[:, 0] == others[:, 0]) & (some[:, 1] == others[:, 1])
    return equal
