"""The last offset of each key of a run of records, by sorting: what the table view asks.

It takes rows, each the hash of a key (`key_hash`) and its offset, into a room of so many rows, and
*settles* them when it is asked or the room is full:

1. Each row becomes one word: the upper bits of its hash, and its number in the room. NumPy sorts
   words several times as fast as it looks anything up, and rows of one key come to lie side by
   side, in the order of their offsets.
2. Of neighbours with the same 128 bits the first is superseded. Where other keys share the upper
   bits and lie in between, which is rare, these few rows are compared by all their bits.
3. What is left moves to the front of the room, in the order of the words.

Hashes that are asked for are sorted in the same way, so that each step goes through memory once. A
*directory* of about as many places as keys says where the hashes with the same uppermost bits
begin; from there on they are looked at one by one. Whole hashes decide, always (S19).

Beside `offset_map`, which a pass of the cleaner fills: that one holds 24 bytes a key whatever the
number of rows, and a key that is there already always fits (S18, S20). This one needs 40 bytes a
row, and 20 more for a moment, and is filled twice as fast (``benchmarks/offset_map.py``; decision
0008). A room that is still three quarters full when it was settled counts as full: it would do
nothing else.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from clog.storage.offset_map import Hashes, Mask, Offsets

ROW_BYTES: Final = 40
"""Memory for a row of room; while it settles half of it again."""

_Words = npt.NDArray[np.uint64]
_Rows = npt.NDArray[np.int64]
_WHOLE = np.dtype("V16")
_CHUNK_ROWS: Final = 1 << 17


class LatestKeys:
    """Key hash -> last offset, of a bounded number of rows.

    Attributes:
        latest_offset: the last offset that was put, -1 where none was.
    """

    __slots__ = (
        "_directory",
        "_hashes",
        "_mask",
        "_offsets",
        "_rows",
        "_settled",
        "latest_offset",
    )

    def __init__(self, room: int) -> None:
        """``room``: rows, at least 1."""
        assert room >= 1
        self._hashes = np.empty((room, 2), np.uint64)
        self._offsets = np.empty(room, np.int64)
        self._mask = _row_mask(room)
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self._rows = self._settled = 0
        self._directory: _Rows | None = None
        self.latest_offset = -1

    def put(self, hashes: Hashes, offsets: Offsets) -> int:
        """Takes rows in order until there is no room, and returns how many it took; offsets
        increase, also from one call to the next.
        """
        room, taken = len(self._offsets), 0
        while taken < len(offsets):
            if self._rows == room:
                self._settle()
                if 4 * self._rows > 3 * room:
                    break
            more = min(len(offsets) - taken, room - self._rows)
            self._hashes[self._rows : self._rows + more] = hashes[taken : taken + more]
            self._offsets[self._rows : self._rows + more] = offsets[taken : taken + more]
            self._rows, taken = self._rows + more, taken + more
            self.latest_offset = int(offsets[taken - 1])
        return taken

    def last_offsets(self) -> Offsets:
        """The last offset of each key, ascending."""
        self._settle()
        return np.sort(self._offsets[: self._rows])

    def get(self, hashes: Hashes) -> Offsets:
        """The last offset of each key, -1 where it is not known."""
        found = np.full(len(hashes), -1, np.int64)
        self._settle()
        if self._rows:
            for start in range(0, len(hashes), _CHUNK_ROWS):
                end = start + _CHUNK_ROWS
                self._find(hashes[start:end], found[start:end])
        return found

    def _settle(self) -> None:
        """Steps 1 to 3; nothing where no row came since."""
        if self._settled == self._rows:
            return
        words = _sorted_words(self._hashes[: self._rows], self._mask)
        rows = (words & self._mask).view(np.int64)
        tied = (words[1:] ^ words[:-1]) <= self._mask
        del words
        hashes = _take(self._hashes, rows)
        last = _last_of_key(hashes, tied)
        self._rows = self._settled = int(np.count_nonzero(last))
        self._offsets[: self._rows] = self._offsets.take(rows[last])
        np.compress(last, hashes, axis=0, out=self._hashes[: self._rows])
        self._directory = None

    def _find(self, hashes: Hashes, found: Offsets) -> None:
        """Enters into ``found`` the offsets of the hashes that are known."""
        if self._directory is None:
            self._directory = _directory(self._hashes[: self._rows, 0])
        mask = _row_mask(len(hashes))
        rows = (_sorted_words(hashes, mask) & mask).view(np.int64)
        asked = _take(hashes, rows)
        at = self._directory.take(_bucket(asked[:, 0], len(self._directory)))
        while len(rows):
            there = _take(self._hashes[: self._rows], at)
            same = _equal(there, asked)
            known = np.flatnonzero(same)
            found[rows.take(known)] = self._offsets.take(at.take(known))
            # Further on while the upper bits are not larger than those that are asked for.
            on = np.flatnonzero((there[:, 0] <= (asked[:, 0] | self._mask)) & ~same)
            on = on[at.take(on) + 1 < self._rows]
            rows, asked, at = rows.take(on), _take(asked, on), at.take(on) + 1


def _last_of_key(hashes: Hashes, tied: Mask) -> Mask:
    """Which of the rows, in the order of their words, are the last of their key; ``tied``: rows
    that share the upper bits with the next one.
    """
    last = np.ones(len(hashes), np.bool_)
    np.logical_not(_equal(hashes[1:], hashes[:-1]), out=last[:-1])
    mixed = tied & last[:-1]
    if mixed.any():
        group = np.concatenate(([0], np.cumsum(~tied)))
        some = np.flatnonzero(np.isin(group, group[:-1][mixed]))
        order = some[np.lexsort((some, hashes[some, 1], hashes[some, 0]))]
        last[order[:-1]] = ~_equal(hashes[order[1:]], hashes[order[:-1]])
        last[order[-1]] = True
    return last


def _directory(words: _Words) -> _Rows:
    """By uppermost bits, the first of the words that has them or larger ones."""
    buckets = 1 << len(words).bit_length()
    filled = np.bincount(_bucket(words, buckets), minlength=buckets)
    ends = np.cumsum(filled)
    ends -= filled
    return ends


def _bucket(words: _Words, buckets: int) -> _Rows:
    """The uppermost bits of the words; so many that there are ``buckets``, a power of two."""
    shifted: _Words = words >> np.uint64(65 - buckets.bit_length())
    return shifted.view(np.int64)


def _sorted_words(hashes: Hashes, mask: np.uint64) -> _Words:
    """Rows as words: in the bits of the mask the row's number, above them its hash."""
    words: _Words = hashes[:, 0] & ~mask
    words |= np.arange(len(hashes), dtype=np.uint64)
    words.sort()
    return words


def _row_mask(rows: int) -> np.uint64:
    """The bits that hold a row's number."""
    return np.uint64((1 << max(1, (rows - 1).bit_length())) - 1)


def _take(hashes: Hashes, rows: _Rows) -> Hashes:
    """The rows, each in one step; a number beyond the last one gives the last one."""
    whole = np.ascontiguousarray(hashes).view(_WHOLE).ravel()
    return whole.take(rows, mode="clip").view(np.uint64).reshape(-1, 2)


def _equal(some: Hashes, others: Hashes) -> Mask:
    equal: Mask = (some[:, 0] == others[:, 0]) & (some[:, 1] == others[:, 1])
    return equal
