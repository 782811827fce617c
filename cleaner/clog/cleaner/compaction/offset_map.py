"""Offset map: the last offset of every key in a range of the log, 24 bytes an entry (S18).

*Hash*: 128 bits of a key (`keys.hashing`), a row of two unsigned words (high, low). Keys are told
apart by their hash alone (S19); the map never sees a key. *Slot*: 24 bytes, three words: low half,
high half, last offset + 1. 24 zero bytes are an empty slot, so a fresh map is zeroed memory that
costs nothing until it is touched. *Place*: where a slot begins in the table.

An ordered hash table (Amble and Knuth, 1974): open addressing with double hashing in which every
hash that a search passes is larger than the one it looks for, low word first. A smaller one ends
the search as well as an empty slot does (which is smaller than all), so keys that are absent cost
no more than keys that are there; most rows of the clean part are absent. NumPy does each step for
all rows of a chunk together:

M1. Locate. Each row starts at its home slot and walks on while it sees larger hashes. Only rows
    that still walk take part in the next probe.
M2. Rows that stand at their own hash store their offset. Where rows share a slot the last one
    wins, and it has the largest offset.
M3. The others have new keys. All of them write their offset where they stand; the one that reads
    its own back has won the slot and writes its hash. Rows with the winner's hash are done, their
    offsets are smaller. A hash that was there before is evicted and starts again from its home,
    with its offset. Those that lost look again, at a slot that holds another hash now. M3
    repeats until nobody is left; slots only ever change to a larger hash, so it ends.

A put takes the steps twice. First slice by slice, at the home slots alone: most rows go no further,
and the slots of a slice stay in the cache from first look to last word. Then for what is left of
many slices, since a walk costs calls of NumPy for each probe, shared by all. What is left comes in
the order of offsets, and a slot keeps the larger: later rows of its key may have got there first.

All rows of one key make the same walk, hence stand at the same slot: no key enters twice.

The home comes from the upper half of ``high ^ low``, the step from the lower half. A caller that
maps only some hashes (the table view, by ranges) selects on one of the two words; the other one
still spreads the rest over all slots. Steps have no factor in common with the number of slots, so
each walk visits every slot.

Why this and not another way: million rows per second of CPU time, one thread, median of 5
interleaved runs, without slices; "full" is 0.9 of all slots, "absent" asks for other keys::

                                   4 M rows, 1 M keys      the same, map full
                                    put   get  absent       put   get  absent
    ordered double hashing         12.8  18.7    29.5       7.7  10.8    13.7
    double hashing, not ordered    12.8  19.0    19.3      11.0  14.6     3.9
    linear probing, not ordered    13.4  20.9    22.0       3.0   8.0     1.5
    one sorted run (two runs)       4.2   2.3     3.1      no load factor; 0.9 for 5 M keys

Order costs a third of put in a full map and makes the slowest operation three times as fast.
Linear probing needs up to hundreds of probes where slots cluster, and each is a round of NumPy
calls. A sorted run moves the whole map for each chunk, gets slower with its size and needs room
for a second one. Sorting all of a range at once takes 0.9 (each key once) to 2.4 times as long as
put, and asking for absent keys four times as long, with those sorted, too (1 to 3 M rows). An array
for each word is as fast. Slices spare a third of put: 95 instead of 150 ns a row, 4 M rows over 2 M
keys. ``benchmarks/parts/offset_map.py`` measures all that today's does.

Not here: hashing, reading keys, deciding what stays (``record_retention``).
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from clog.storage.errors import InvalidInputError
from clog.storage.numpy_arrays import Hashes, Mask, Offsets

_Words = npt.NDArray[np.uint64]
_Places = npt.NDArray[np.int64]
"""Where slots begin in the table: slot number times ``_SLOT_WORDS``."""
_Entries = tuple[_Words, _Words, Offsets]
"""High words, low words, and offsets + 1."""

SLOT_BYTES: Final = 24
_SLOT_WORDS: Final = 3

# Bounds the scratch memory of a search; smaller chunks pay more for calls than for rows.
_CHUNK_ROWS: Final = 1 << 17

# Of so many rows the home slots stay in the cache from the first look to the last word stored.
_SLICE_ROWS: Final = 1 << 14

# So many rows that found no place at home go on together: one long walk instead of many. Bounds
# the scratch memory of a put.
_LEFT_ROWS: Final = 1 << 16

# About so many steps to choose from: enough that two keys with the same home rarely share their
# walk, few enough to stay in the cache.
_STEPS: Final = 4096

# The home slot is computed in 64 bits: 32 of the hash times the number of slots.
_SLOTS_MAX: Final = (1 << 32) - 1
_HALF: Final = np.uint64(32)
_LOWER: Final = np.uint64((1 << 32) - 1)


class OffsetMap:
    """Key hash -> last offset, in a fixed amount of memory (S18).

    ``memory_bytes`` is the share of one cleaner thread: it gives ``memory_bytes // 24`` slots, of
    which the fraction ``load_factor`` is filled at most. While rows are put or got, up to 24 MiB of
    scratch memory come on top.

    Raises:
        InvalidInputError: the share cannot hold one entry, or has more than 2**32 - 1 slots; or
            ``load_factor`` is not between 0 and 1, both excluded.
    """

    __slots__ = ("_capacity", "_entries", "_latest_offset", "_slots", "_steps", "_table")

    def __init__(self, *, memory_bytes: int, load_factor: float = 0.9) -> None:
        # Below 1 at least one slot stays empty; it ends the search for a hash below all others.
        if not 0.0 < load_factor < 1.0:
            raise InvalidInputError(
                f"log.cleaner.io.buffer.load.factor={load_factor} is outside (0, 1); "
                "use the default 0.9"
            )
        slots = memory_bytes // SLOT_BYTES
        capacity = int(slots * load_factor)
        if capacity < 1:
            raise InvalidInputError(
                f"an offset map of {memory_bytes} bytes holds {capacity} entries of "
                f"{SLOT_BYTES} bytes at load factor {load_factor}, at least 1 is needed; "
                "increase log.cleaner.dedupe.buffer.size or decrease log.cleaner.threads"
            )
        if slots > _SLOTS_MAX:
            raise InvalidInputError(
                f"an offset map of {memory_bytes} bytes has {slots} slots, at most {_SLOTS_MAX} "
                "can be addressed; decrease log.cleaner.dedupe.buffer.size or increase "
                "log.cleaner.threads"
            )
        self._slots = slots
        self._capacity = capacity
        self._table = np.zeros(slots * _SLOT_WORDS, dtype=np.uint64)
        self._steps = _coprime_steps(slots) * _SLOT_WORDS
        self._entries = 0
        self._latest_offset = -1

    @property
    def slots(self) -> int:
        """Number of slots, filled or not."""
        return self._slots

    @property
    def capacity(self) -> int:
        """Number of keys that fit."""
        return self._capacity

    @property
    def entries(self) -> int:
        """Number of keys in the map."""
        return self._entries

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return self._table.nbytes

    @property
    def utilization(self) -> float:
        """Filled share of the slots; ``load_factor`` when the map is full."""
        return self._entries / self._slots

    @property
    def latest_offset(self) -> int:
        """Last offset that the map covers, -1 when it covers none."""
        return self._latest_offset

    def put(self, hashes: Hashes, offsets: Offsets) -> int:
        """Enters rows in order until the map is full, and returns the number of rows taken.

        The result is that of entering row by row: a row whose key is in the map already always
        fits; the first row whose new key does not fit stops (S20). ``offsets`` increase, also
        from one call to the next.
        """
        assert hashes.shape == (len(offsets), 2), "one hash of two words for each offset"
        taken = 0
        while taken < len(offsets):
            end = taken + self._fitting(hashes[taken:])
            if end == taken:
                break
            self._put(hashes[taken:end], offsets[taken:end])
            taken = end
        return taken

    def advance(self, offset: int) -> None:
        """Declares everything up to and including ``offset`` covered.

        For a range that was read completely: offsets that have no record must not hold up the
        first dirty offset.
        """
        self._latest_offset = max(self._latest_offset, offset)

    def get(self, hashes: Hashes) -> Offsets:
        """Returns the last offset of each key, -1 where the map does not have it."""
        found = np.full(len(hashes), -1, dtype=np.int64)
        if self._entries == 0:
            return found
        for start in range(0, len(hashes), _CHUNK_ROWS):
            end = start + _CHUNK_ROWS
            places, same = self._locate(*_halves(hashes[start:end]))
            following = self._following.take(places)
            following *= same
            np.subtract(following, 1, out=found[start:end])
        return found

    def last_offsets(self) -> Offsets:
        """Returns the last offset of each key, ascending; 8 bytes an entry."""
        following = self._following[::_SLOT_WORDS]
        last: Offsets = following[following > 0] - 1
        last.sort()
        return last

    def is_last(self, start: int, end: int) -> Mask:
        """Returns which offsets of ``[start, end)`` are the last one of a key; a byte each."""
        found = np.zeros(end - start, np.bool_)
        for first in range(0, len(self._table), _SLOT_WORDS * _CHUNK_ROWS):
            following = self._following[first : first + _SLOT_WORDS * _CHUNK_ROWS : _SLOT_WORDS]
            inside = following[(following > start) & (following <= end)]
            inside -= start + 1
            found[inside] = True
        return found

    def clear(self) -> None:
        """Forgets everything; the memory is kept."""
        self._table.fill(0)
        self._entries = 0
        self._latest_offset = -1

    # The three words of a slot, so that a place indexes each of them.

    @property
    def _low(self) -> _Words:
        return self._table

    @property
    def _high(self) -> _Words:
        return self._table[1:]

    @property
    def _following(self) -> Offsets:
        """One past the last offset of the key; 0 in an empty slot."""
        return self._table[2:].view(np.int64)

    def _fitting(self, hashes: Hashes) -> int:
        """Returns how many of the next rows fit for sure; 0 only when the first one does not."""
        room = self._capacity - self._entries
        if room >= min(len(hashes), _CHUNK_ROWS):
            return min(len(hashes), room)
        hashes = hashes[:_CHUNK_ROWS]
        _, known = self._locate(*_halves(hashes))
        new = np.flatnonzero(~known)
        # Some of these may share a key and leave room for more: the next call sees.
        return len(hashes) if len(new) <= room else int(new[room])

    def _put(self, hashes: Hashes, offsets: Offsets) -> None:
        """Takes all rows; there is room for them."""
        assert offsets[0] > self._latest_offset, "offsets increase from call to call"
        assert bool(np.all(offsets[1:] > offsets[:-1])), "offsets increase within a call"
        left: list[_Entries] = []
        for start in range(0, len(offsets), _SLICE_ROWS):
            end = start + _SLICE_ROWS
            left.extend(self._put_at_home(*_halves(hashes[start:end]), offsets[start:end] + 1))
            if end >= len(offsets) or sum(len(rows) for _, _, rows in left) >= _LEFT_ROWS:
                self._put_anywhere(*map(np.concatenate, zip(*left, strict=True)))
                left.clear()
        self._latest_offset = int(offsets[-1])

    def _put_at_home(self, high: _Words, low: _Words, following: Offsets) -> list[_Entries]:
        """Does M1 to M3 for a slice of rows, at their home slots alone; returns what is left
        over: rows and evicted entries.
        """
        places = self._homes_of(high, low)
        larger, same = self._compare(places, high, low)
        known = np.flatnonzero(same)
        self._following[places.take(known)] = following.take(known)
        new, walking = np.flatnonzero(~(larger | same)), np.flatnonzero(larger)
        entries = high.take(new), low.take(new), following.take(new)
        lost, evicted = self._claim(places.take(new), *entries)
        walking = np.concatenate((walking, new[lost]))
        return [(high.take(walking), low.take(walking), following.take(walking)), evicted]

    def _put_anywhere(self, high: _Words, low: _Words, following: Offsets) -> None:
        """Does M1 to M3 for entries in any order, of which the map may have later ones."""
        order = np.argsort(following)
        high, low, following = high.take(order), low.take(order), following.take(order)
        places, same = self._locate(high, low)
        known, new = np.flatnonzero(same), np.flatnonzero(~same)
        at = places.take(known)
        self._following[at] = np.maximum(self._following.take(at), following.take(known))
        self._enter(high.take(new), low.take(new), following.take(new), places.take(new))

    def _enter(self, high: _Words, low: _Words, following: Offsets, places: _Places) -> None:
        """Enters rows with new keys, each of which stands where its search ended (M3).

        Rows of one key stay in the order of their offsets, and always walk or stand together.
        """
        steps = self._steps_of(high, low)
        standing = np.arange(len(places))
        walking = standing[:0]
        while len(places):
            lost, (out_high, out_low, out_following) = self._claim(
                places.take(standing),
                high.take(standing),
                low.take(standing),
                following.take(standing),
            )
            stay = np.concatenate((walking, standing[lost]))
            high = np.concatenate((high.take(stay), out_high))
            low = np.concatenate((low.take(stay), out_low))
            following = np.concatenate((following.take(stay), out_following))
            places = np.concatenate((places.take(stay), self._homes_of(out_high, out_low)))
            steps = np.concatenate((steps.take(stay), self._steps_of(out_high, out_low)))
            larger, _ = self._compare(places, high, low)
            walking, standing = np.flatnonzero(larger), np.flatnonzero(~larger)
            places[walking] = self._next(places.take(walking), steps.take(walking))

    def _claim(
        self, places: _Places, high: _Words, low: _Words, following: Offsets
    ) -> tuple[npt.NDArray[np.intp], _Entries]:
        """Gives each place to one of the rows that stand there.

        Returns which rows lost to another key, and the entries that were evicted.
        """
        before = self._following.take(places)
        self._following[places] = following
        is_mine = self._following.take(places) == following
        won, others = np.flatnonzero(is_mine), np.flatnonzero(~is_mine)
        taken, before = places.take(won), before.take(won)
        occupied = np.flatnonzero(before)
        left = taken.take(occupied)
        evicted = self._high.take(left), self._low.take(left), before.take(occupied)
        self._high[taken] = high.take(won)
        self._low[taken] = low.take(won)
        self._entries += len(won) - len(occupied)
        there = places.take(others)
        lost = self._high.take(there) != high.take(others)
        lost |= self._low.take(there) != low.take(others)
        return others[lost], evicted

    def _locate(self, high: _Words, low: _Words) -> tuple[_Places, Mask]:
        """Returns where the search for each hash ends, and whether the same hash is there (step
        1).
        """
        places = self._homes_of(high, low)
        larger, same = self._compare(places, high, low)
        rows = np.flatnonzero(larger)
        current, high, low = places.take(rows), high.take(rows), low.take(rows)
        steps = self._steps_of(high, low)
        while len(rows):
            current = self._next(current, steps)
            larger, found = self._compare(current, high, low)
            done, going = np.flatnonzero(~larger), np.flatnonzero(larger)
            places[rows.take(done)] = current.take(done)
            same[rows.take(done)] = found.take(done)
            rows, current, steps = rows.take(going), current.take(going), steps.take(going)
            high, low = high.take(going), low.take(going)
        return places, same

    def _compare(self, places: _Places, high: _Words, low: _Words) -> tuple[Mask, Mask]:
        """Tells whether each place holds a larger hash, and whether it holds the same.

        The low words decide nearly always; high words are looked at only where those tie.
        """
        there = self._low.take(places)
        larger: Mask = there > low
        same: Mask = there == low
        tied = np.flatnonzero(same)
        there, here = self._high.take(places.take(tied)), high.take(tied)
        if (there != here).any():
            larger[tied] = there > here
            same[tied] = there == here
        if not low.all():  # A hash of zeros looks like an empty slot, except for the offset.
            same &= self._following.take(places) != 0
        return larger, same

    def _homes_of(self, high: _Words, low: _Words) -> _Places:
        return _scaled((high ^ low) >> _HALF, self._slots) * _SLOT_WORDS

    def _steps_of(self, high: _Words, low: _Words) -> _Places:
        return self._steps.take(_scaled((high ^ low) & _LOWER, len(self._steps)))

    def _next(self, places: _Places, steps: _Places) -> _Places:
        places = places + steps
        np.subtract(places, len(self._table), out=places, where=places >= len(self._table))
        return places


def _halves(hashes: Hashes) -> tuple[_Words, _Words]:
    return np.ascontiguousarray(hashes[:, 0]), np.ascontiguousarray(hashes[:, 1])


def _scaled(words: _Words, end: int) -> npt.NDArray[np.int64]:
    """Maps 32-bit words evenly onto ``[0, end)``; a product, because divisions are slow."""
    scaled: npt.NDArray[np.uint64] = (words * np.uint64(end)) >> _HALF
    return scaled.view(np.int64)


def _coprime_steps(slots: int) -> npt.NDArray[np.int64]:
    """Returns steps in ``[1, slots)``, evenly spread, with which a walk visits every slot."""
    steps = np.arange(1, slots, -(-slots // _STEPS), dtype=np.int64)
    coprime: npt.NDArray[np.int64] = steps[np.gcd(steps, slots) == 1]
    return coprime
