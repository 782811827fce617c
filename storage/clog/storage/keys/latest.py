"""The map of keys: of each key the offset of its last record, or of the one with the highest order
(S18, S19, S56). Tables, look-ups, masks and the cleaner's passes all use it (decision 0008).

It holds rows, and each row has a key's 128 bits (`hashing`: a hash or a fingerprint; the map never
sees a key) and an offset. A *ranked* map has a *rank* in each row, too: the order + 1, and in the
uppermost bit whether the record counts, which a suspect does not (`orders`). The row with the
highest rank wins, and of equals the one with the highest offset; without ranks the last one. Rows
are put into a room of fixed size, and *settled* when the map is queried or the room is full:

L1. Each row becomes one number: the upper bits of its key, and its index in the room. NumPy sorts
    numbers several times as fast as it looks up anything, and rows of one key become neighbours, in
    the order of their offsets.
L2. Of neighbours with the same 128 bits one wins; those with different upper bits are not compared.
    Where other keys with the same upper bits are in between, all bits are.
L3. The numbers of the winners are kept, sorted, as the index. A *directory* of about as many
    entries as keys says where those with the same uppermost bits begin; from there on their rows
    are compared one by one, always by all 128 bits. For few keys a *sieve* of at least 64 entries a
    key says which uppermost bits occur: of others nothing is compared.
L4. If the room is full, superseded rows leave it; if over 3/4 are left, it counts as full.

Once settled, threads may query it together.
"""

from typing import Final, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from clog.storage.keys.hashing import fingerprints_of
from clog.storage.numpy_arrays import Hashes, Mask, Offsets

ROW_BYTES: Final = 40
"""The most memory for a row, apart from what is returned, and from a sieve of at most 2 MiB."""
RANKED_ROW_BYTES: Final = 48
"""The same of a ranked map."""
ROWS_MAX: Final = (1 << 32) - 1

_Words = NDArray[np.uint64]
_Numbers = NDArray[np.int64]
Ranks = NDArray[np.uint64]
_WHOLE = np.dtype("V16")
_PART_ROWS: Final = 1 << 16
"""So many rows fit the processor's cache."""
_SIEVED_KEYS: Final = 1 << 14
_SIEVE_ENTRIES: Final = 64
_COUNTS: Final = np.uint64(1 << 63)
_ORDER: Final = np.uint64((1 << 63) - 1)
_NONE: Final = np.empty(0, np.uint64)
_NO_ROWS: Final = np.empty(0, np.uint32)


class LatestKeys:
    """A map from a key's 128 bits to the offset that wins, for a bounded number of rows.

    Attributes:
        latest_offset: up to where it has all rows, -1 if it has none.
        row_bytes: the memory of a row.
    """

    __slots__ = (
        "_directory",
        "_index",
        "_left_ties",
        "_lost",
        "_mask",
        "_offsets",
        "_ranks",
        "_rows",
        "_settled",
        "_sieve",
        "_ties",
        "_words",
        "latest_offset",
        "row_bytes",
    )

    def __init__(self, room: int, *, is_ranked: bool = False) -> None:
        """Makes an empty map with room for this many rows, at least 1."""
        assert 1 <= room <= ROWS_MAX
        self._words = np.empty((room, 2), np.uint64)
        self._offsets = np.empty(room, np.int64)
        self._ranks = np.empty(room, np.uint64) if is_ranked else None
        self._mask = np.uint64((1 << max(1, (room - 1).bit_length())) - 1)
        self.row_bytes = RANKED_ROW_BYTES if is_ranked else ROW_BYTES
        self.clear()

    @classmethod
    def within(cls, memory_bytes: int, *, rows: int, is_ranked: bool = False) -> Self:
        """Makes a map for this many rows, or for as many as fit the memory."""
        row_bytes = RANKED_ROW_BYTES if is_ranked else ROW_BYTES
        return cls(max(1, min(memory_bytes // row_bytes, rows)), is_ranked=is_ranked)

    def clear(self) -> None:
        """Forgets everything; the memory is kept."""
        self._rows = self._settled = self._ties = self._left_ties = 0
        self._index, self._lost = _NONE, _NO_ROWS
        self._directory: NDArray[np.uint32] | None = None
        self._sieve: Mask | None = None
        self.latest_offset = -1

    def put(self, words: Hashes, offsets: Offsets, ranks: Ranks = _NONE) -> int:
        """Adds rows in order while there is room, and returns how many it added. Offsets must
        increase, also from call to call, unless there are ``ranks``.
        """
        self._check(offsets)
        room, taken = len(self._offsets), 0
        while taken < len(offsets):
            if self._rows == room:
                self._settle()
                if 4 * len(self._index) > 3 * room:
                    break
                self._close_up()
            some = slice(taken, min(len(offsets), taken + room - self._rows))
            here = slice(self._rows, self._rows + some.stop - taken)
            self._words[here], self._offsets[here] = words[some], offsets[some]
            if self._ranks is not None:
                self._ranks[here] = ranks[some]
            self._rows, taken = here.stop, some.stop
            self.latest_offset = max(self.latest_offset, int(offsets[taken - 1]))
        return taken

    def advance(self, offset: int) -> None:
        """Declares everything up to ``offset`` covered, whether records are there or not."""
        self.latest_offset = max(self.latest_offset, offset)

    def compare(self, words: Hashes, offsets: Offsets, ranks: Ranks) -> None:
        """Gives a ranked map rows from elsewhere, of any keys, which may win over its own. After
        that nothing can be put until it is cleared.
        """
        assert self._ranks is not None, "else the last row wins"
        at, known = self._find(words)
        order = np.lexsort((offsets, ranks & _ORDER))
        order = order.compress(known.take(order))  # The highest rank is written last.
        at, offsets, ranks = at.take(order), offsets.take(order), ranks.take(order)
        self._ranks[at[counted(ranks)]] |= _COUNTS
        had = self._ranks.take(at)
        mine, theirs = had & _ORDER, ranks & _ORDER
        is_tied = theirs == mine
        wins = (theirs > mine) | (is_tied & (offsets > self._offsets.take(at)))
        self._left_ties += int(np.count_nonzero(is_tied & (theirs > 0)))
        self._offsets[at[wins]] = offsets[wins]
        self._ranks[at[wins]] = theirs[wins] | (had[wins] & _COUNTS)

    def __len__(self) -> int:
        """Returns the number of keys."""
        self._settle()
        return len(self._index)

    @property
    def ties(self) -> int:
        """How many rows of a ranked map have the order of another row of their key."""
        self._settle()
        return self._left_ties + self._ties

    def last_offsets(self) -> Offsets:
        """Returns the winning offset of each key, ascending."""
        return self._in_order(self._is_last())

    def counted_offsets(self) -> Offsets:
        """Returns the winning offset of each key that has a row which counts, ascending."""
        last = self._is_last()
        return self._in_order(
            last if self._ranks is None else last & counted(self._ranks[: self._rows])
        )

    def is_last(self, start: int, end: int) -> Mask:
        """Returns which offsets of ``[start, end)`` win; one byte each."""
        found = np.zeros(end - start, np.bool_)
        last = self.last_offsets()
        low, high = np.searchsorted(last, (start, end))
        found[last[low:high] - start] = True
        return found

    def get(self, words: Hashes) -> Offsets:
        """Returns the winning offset of each key, -1 for unknown keys."""
        rows, known = self._find(words)
        return np.where(known, self._offsets.take(rows), -1)

    def knows(self, words: Hashes) -> Mask:
        """Returns whether each key is known."""
        return self._find(words)[1]

    def counts(self, words: Hashes) -> Mask:
        """Returns which keys a ranked map has with a row that counts."""
        assert self._ranks is not None, "else all count"
        rows, known = self._find(words)
        found: Mask = known & counted(self._ranks.take(rows))
        return found

    def superseded(self, words: Hashes, offsets: Offsets) -> Mask:
        """Returns which rows do not win among those of their keys, as far as the map has these. A
        ranked map has got all rows of its keys up to `latest_offset`.
        """
        winners = self.get(words)
        lost: Mask = winners > offsets
        if self._ranks is not None:
            lost = (winners >= 0) & (winners != offsets) & (offsets <= self.latest_offset)
        return lost

    def _check(self, offsets: Offsets) -> None:
        if self._ranks is None and len(offsets):
            assert offsets[0] > self.latest_offset, "offsets increase from call to call"
            assert bool(np.all(offsets[1:] > offsets[:-1])), "offsets increase within a call"

    def _in_order(self, which: Mask) -> Offsets:
        found: Offsets = self._offsets[: self._rows].compress(which)
        if self._ranks is not None:
            found.sort()
        return found

    def _settle(self) -> None:
        """Does L1 to L3; nothing if no row was added since the last time."""
        if self._settled == self._rows:
            return
        self._index, self._directory, self._sieve, self._ties = _NONE, None, None, 0
        index, mask, kept, start = self._numbers(), self._mask, 0, 0
        lost: list[NDArray[np.uint32]] = []
        while start < len(index):
            # Parts that do not end between rows of one key.
            edge = index[min(start + _PART_ROWS, len(index)) - 1]
            end = int(np.searchsorted(index, edge | mask, side="right"))
            part = index[start:end]
            tied = (part[1:] ^ part[:-1]) <= mask
            if tied.any():
                wins = self._wins(part, tied)
                lost.append((part.compress(~wins) & mask).astype(np.uint32))
                part = part.compress(wins)
            index[kept : kept + len(part)] = part
            kept, start = kept + len(part), end
        self._index, self._settled = index[:kept], self._rows
        self._lost = np.concatenate(lost) if lost else _NO_ROWS

    def _numbers(self) -> _Words:
        """Returns the rows as sorted numbers: index in the mask's bits, the key's bits above it."""
        numbers: _Words = self._words[: self._rows, 0] & ~self._mask
        for start in range(0, self._rows, _PART_ROWS):
            part = numbers[start : start + _PART_ROWS]
            part |= np.arange(start, start + len(part), dtype=np.uint64)
        numbers.sort()
        return numbers

    def _wins(self, part: _Words, tied: Mask) -> Mask:
        """Returns whether each row wins in its key; ``tied``: same upper bits as the next row."""
        near = np.append(tied, False)
        near[1:] |= tied
        some, wins = np.flatnonzero(near), np.ones(len(part), np.bool_)
        rows = (part.take(some) & self._mask).view(np.int64)
        words = _take(self._words, rows)
        tied = tied.take(some[:-1])
        if self._ranks is None:
            wins[some] = _last_of_key(words, tied)
        else:
            wins[some] = self._best_of_key(self._ranks, words, rows, tied)
        return wins

    def _best_of_key(self, ranks: Ranks, words: Hashes, rows: _Numbers, tied: Mask) -> Mask:
        """Returns which rows are the best of their keys; these count if one of the key does."""
        here, offsets = ranks.take(rows), self._offsets.take(rows)
        again, orders, order = _equal(words[1:], words[:-1]), here & _ORDER, np.arange(len(rows))
        rises = orders[1:] > orders[:-1]
        rises |= (orders[1:] == orders[:-1]) & (offsets[1:] > offsets[:-1])
        if (tied & ~(again & rises)).any():  # Else they are in order, as most timestamps are.
            order = np.lexsort((offsets, orders, words[:, 1], words[:, 0]))
            here, orders, words = here.take(order), orders.take(order), _take(words, order)
            again = _equal(words[1:], words[:-1])
        best, firsts = np.append(~again, True), np.flatnonzero(np.append(True, ~again))
        ranks[rows.take(order.compress(best))] |= np.maximum.reduceat(here & _COUNTS, firsts)
        again &= (orders[1:] == orders[:-1]) & (orders[1:] > 0)
        self._ties += int(np.count_nonzero(again))
        wins = np.empty(len(rows), np.bool_)
        wins[order] = best
        return wins

    def _is_last(self) -> Mask:
        """Returns whether each row wins."""
        self._settle()
        last = np.ones(self._rows, np.bool_)
        last[self._lost] = False
        return last

    def _close_up(self) -> None:
        """Does L4; all rows must be settled."""
        last, rows = self._is_last(), 0
        for start in range(0, self._rows, _PART_ROWS):
            part = slice(start, min(start + _PART_ROWS, self._rows))
            some = np.flatnonzero(last[part])
            end = rows + len(some)
            self._words[rows:end] = _take(self._words[part], some)
            self._offsets[rows:end] = self._offsets[part].take(some)
            if self._ranks is not None:
                self._ranks[rows:end] = self._ranks[part].take(some)
            rows = end
        self._left_ties += self._ties
        self._rows, self._settled, self._ties = rows, 0, 0

    def _find(self, words: Hashes) -> tuple[_Numbers, Mask]:
        """Returns the winning row of each key, any for unknown keys, and which are known."""
        self._settle()
        rows, known = np.zeros(len(words), np.int64), np.zeros(len(words), np.bool_)
        if len(self._index):
            for start in range(0, len(words), _PART_ROWS):
                part = slice(start, start + _PART_ROWS)
                if len(self._index) > _SIEVED_KEYS:
                    rows[part], known[part] = self._look_up(words[part])
                elif len(some := self._sifted(words[part])):
                    some += start
                    rows[some], known[some] = self._look_up(_take(words, some))
        return rows, known

    def _sifted(self, words: Hashes) -> _Numbers:
        """Returns which of the keys may be known."""
        if self._sieve is None:
            sieve = np.zeros(_SIEVE_ENTRIES << len(self._index).bit_length(), np.bool_)
            sieve[_bucket(self._index, len(sieve))] = True
            self._sieve = sieve  # Complete, as threads may query together.
        return np.flatnonzero(self._sieve.take(_bucket(words[:, 0], len(self._sieve))))

    def _look_up(self, words: Hashes) -> tuple[_Numbers, Mask]:
        """Does the work of `_find` for a part of the keys."""
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
        self, at: _Numbers, first: _Words, words: Hashes
    ) -> tuple[_Numbers, Mask, _Numbers]:
        """Returns the rows at these indexes, which of them match, and which may match later."""
        there = self._index.take(at)
        rows = (there & self._mask).view(np.int64)
        same = _equal(_take(self._words, rows), words)
        # Further on while the upper bits are not larger than the wanted ones.
        may_follow = (there <= (first | self._mask)) & (at < len(self._index) - 1)
        may_follow &= ~same
        return rows, same, np.flatnonzero(may_follow)


def last_rows(keys: pa.Array, *, seed: int) -> _Numbers:
    """Returns the rows in which each of the keys, none of them null, occurs last, ascending."""
    latest = LatestKeys(max(1, len(keys)))
    latest.put(fingerprints_of(keys, seed=seed), np.arange(len(keys)))
    return latest.last_offsets()


def ranks_of(orders: Offsets, counts: Mask) -> Ranks:
    """Returns the ranks of rows with these orders, given which of them count."""
    ranks: Ranks = (orders + 1).view(np.uint64) | np.where(counts, _COUNTS, np.uint64(0))
    return ranks


def counted(ranks: Ranks) -> Mask:
    """Returns which rows count."""
    found: Mask = ranks >= _COUNTS
    return found


def _last_of_key(words: Hashes, tied: Mask) -> Mask:
    """Returns which rows are the last of their key; ``tied`` is as in `_wins`."""
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


def _directory(index: _Words) -> NDArray[np.uint32]:
    """Returns, by uppermost bits, the first number with these or larger ones; else the last."""
    buckets = 1 << len(index).bit_length()
    first = np.full(buckets, len(index) - 1, np.uint32)
    for start in reversed(range(0, len(index), _PART_ROWS)):
        part = _bucket(index[start : start + _PART_ROWS], buckets)
        heads = np.flatnonzero(np.append(True, part[1:] != part[:-1]))
        first[part.take(heads)] = start + heads
    backwards = first[::-1]
    np.minimum.accumulate(backwards, out=backwards)
    return first


def _bucket(numbers: _Words, buckets: int) -> _Numbers:
    """Returns the uppermost bits of each, as many as ``buckets``, a power of two, needs."""
    shifted: _Words = numbers >> np.uint64(65 - buckets.bit_length())
    return shifted.view(np.int64)


def _take(words: Hashes, rows: NDArray[np.integer]) -> Hashes:
    """Returns these rows; each is copied in one step."""
    whole = np.ascontiguousarray(words).view(_WHOLE).ravel()
    return whole.take(rows.view(np.int64), mode="clip").view(np.uint64).reshape(-1, 2)


def _equal(some: Hashes, others: Hashes) -> Mask:
    equal: Mask = (some[:, 0] == others[:, 0]) & (some[:, 1] == others[:, 1])
    return equal
