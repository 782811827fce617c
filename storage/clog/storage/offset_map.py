"""Offset map: the last offset of every key in a range of the log, 24 bytes an entry (S18).

*Hash*: 128 bits of a key (``key_hash``), a row of two unsigned words (high, low). Keys are told
apart by their hash alone (S19); the map never sees a key. *Slot*: 24 bytes, three words: low half,
high half, last offset + 1. 24 zero bytes are an empty slot, so a fresh map is zeroed memory that
costs nothing until it is touched.

Open addressing, a chunk of rows at a time. NumPy does each step for all rows of the chunk:

1. Locate. Every row starts at its home slot and goes on until it stands at its own hash or at an
   empty slot. Only the rows that stand at neither take part in the next probe.
2. Rows at their own hash store their offset. Where rows share a slot the last one wins, and it
   has the largest offset.
3. Rows at an empty slot have a new key. All of them write their offset there; the one that reads
   its own offset back has won the slot and writes its hash. Rows with the winner's hash are done,
   their offsets are smaller. The others locate again, past the slot that is taken now.

All rows of one key meet the same slots in the same order, hence stop at the same slot: a key can
never be entered twice. Nothing is ever deleted, so an empty slot ends a search.

The probe is double hashing: the home comes from the upper half of ``high ^ low``, the step from the
lower half. A caller that maps only some hashes (the table view, by ranges) selects on one of the
two words; the other one still spreads what is left over all slots. A step that shares a factor
with the number of slots would never visit some of them, so late probes go slot by slot.

Why this and not another way: measured on 2 cores of an EPYC with one thread, in million rows a
second; "full" is 0.9 of all slots, "absent" asks for keys that are not there::

                                    4 M rows, 1 M keys    the same, map full
                                    put   get  absent     put   get  absent
    double hashing, 3 words a slot   @     @     @         @     @     @
    the same, one array a word       @     @     @         @     @     @
    linear probing, 3 words a slot   @     @     @         @     @     @
    one sorted run, merged by chunk  @     @     @      does not depend on the load

Linear probing needs up to hundreds of probes where slots cluster, and each is a round of NumPy
calls. A sorted run moves the whole map for every chunk (1 M rows/s and less with 5 M keys) and
needs room for a second one. Three words side by side cost one cache miss, three arrays three.
``benchmarks/offset_map.py`` measures the first row beside what the machine allows.

Not here: hashing, reading keys, deciding what stays (``survivors``).
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from clog.storage.errors import InvalidInputError

Hashes = npt.NDArray[np.uint64]
"""Shape (n, 2): high and low word of each key's hash."""

Offsets = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]
_Places = npt.NDArray[np.int64]
"""Where slots begin in the table: slot number times ``_SLOT_WORDS``."""

SLOT_BYTES: Final = 24
_SLOT_WORDS: Final = 3

# Bounds the scratch memory to a few MiB; larger chunks fall out of the cache, smaller ones
# pay more for calls than for rows.
_CHUNK_ROWS: Final = 1 << 16

# 0.9 ** 64: one search in a thousand gets here even in a full map.
_DOUBLE_HASHED_PROBES: Final = 64

# The home slot is computed in 64 bits: 32 of the hash times the number of slots.
_SLOTS_MAX: Final = (1 << 32) - 1
_HALF: Final = np.uint64(32)
_LOWER: Final = np.uint64((1 << 32) - 1)


class OffsetMap:
    """Key hash -> last offset, in a fixed amount of memory (S18).

    ``memory_bytes`` is the share of one cleaner thread: it gives ``memory_bytes // 24`` slots, of
    which the fraction ``load_factor`` is filled at most. Scratch memory of a few MiB comes on top.

    Raises:
        InvalidInputError: the share cannot hold one entry, or has more than 2**32 - 1 slots; or
            ``load_factor`` is not between 0 and 1, both excluded.
    """

    __slots__ = ("_capacity", "_entries", "_latest_offset", "_slots", "_table")

    def __init__(self, *, memory_bytes: int, load_factor: float = 0.9) -> None:
        # One slot is always empty, because the factor is below 1: it ends every search.
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
            end = taken + _CHUNK_ROWS
            rows = self._put_chunk(hashes[taken:end], offsets[taken:end])
            if rows == 0:
                break
            taken += rows
        return taken

    def advance(self, offset: int) -> None:
        """Declares everything up to and including ``offset`` covered.

        For a range that was read completely: offsets that have no record must not hold up the
        first dirty offset.
        """
        self._latest_offset = max(self._latest_offset, offset)

    def get(self, hashes: Hashes) -> Offsets:
        """Last offset of each key, -1 where the map does not have it."""
        found = np.full(len(hashes), -1, dtype=np.int64)
        if self._entries == 0:
            return found
        for start in range(0, len(hashes), _CHUNK_ROWS):
            end = start + _CHUNK_ROWS
            places = self._locate(*_halves(hashes[start:end]))
            np.subtract(self._following.take(places), 1, out=found[start:end])
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

    def _put_chunk(self, hashes: Hashes, offsets: Offsets) -> int:
        """Takes at least one row, unless the first one does not fit."""
        assert offsets[0] > self._latest_offset, "offsets increase from call to call"
        assert bool(np.all(offsets[1:] > offsets[:-1])), "offsets increase within a call"
        high, low = _halves(hashes)
        following = offsets + 1
        places = self._locate(high, low)
        new = np.flatnonzero(self._following.take(places) == 0)
        room = self._capacity - self._entries
        rows = len(offsets)
        if len(new) > room:
            # So many rows with new keys fit for sure. Some may share a key and leave room for
            # more: the next call sees.
            rows = int(new[room])
            new = new[:room]
        if rows == 0:
            return 0
        self._following[places[:rows]] = following[:rows]
        places = places.take(new)
        while len(new):
            high, low, following = high.take(new), low.take(new), following.take(new)
            new = self._claim(places, high, low, following)
            places = self._locate(high.take(new), low.take(new))
            self._following[places] = following.take(new)
        self._latest_offset = int(offsets[rows - 1])
        return rows

    def _claim(
        self, places: _Places, high: _Words, low: _Words, following: Offsets
    ) -> npt.NDArray[np.intp]:
        """Enters one new key at each place; returns the rows that lost to another key.

        Step 3: the rows have written ``following`` there already.
        """
        won = np.flatnonzero(self._following.take(places) == following)
        self._high[places.take(won)] = high.take(won)
        self._low[places.take(won)] = low.take(won)
        self._entries += len(won)
        lost = self._high.take(places) != high
        lost |= self._low.take(places) != low
        return np.flatnonzero(lost)

    def _locate(self, high: _Words, low: _Words) -> _Places:
        """The place of each hash, or the empty place where it would be entered (step 1)."""
        mixed = high ^ low
        places = _scaled(mixed >> _HALF, self._slots)
        rows = np.flatnonzero(~self._at_end(places, high, low))
        if len(rows) == 0:
            return places
        steps = _scaled(mixed.take(rows) & _LOWER, self._slots - 1)
        steps += _SLOT_WORDS
        current, high, low = places.take(rows), high.take(rows), low.take(rows)
        probes = 1
        while len(rows):
            current += steps if probes < _DOUBLE_HASHED_PROBES else _SLOT_WORDS
            np.subtract(current, len(self._table), out=current, where=current >= len(self._table))
            probes += 1
            at_end = self._at_end(current, high, low)
            done = np.flatnonzero(at_end)
            places[rows.take(done)] = current.take(done)
            going = np.flatnonzero(~at_end)
            rows, current, steps = rows.take(going), current.take(going), steps.take(going)
            high, low = high.take(going), low.take(going)
        return places

    def _at_end(self, places: _Places, high: _Words, low: _Words) -> npt.NDArray[np.bool_]:
        """Whether each hash stands at itself or at an empty slot.

        The low words decide for nearly all rows; only where they allow an end is more of the slot
        looked at. A hash of zeros may take an empty slot for itself, which is an end as well.
        """
        seen = self._low.take(places)
        at_end: npt.NDArray[np.bool_] = seen == low
        same = np.flatnonzero(at_end)
        at_end[same] = self._high.take(places.take(same)) == high.take(same)
        zero = np.flatnonzero(seen == 0)
        at_end[zero] |= self._following.take(places.take(zero)) == 0
        return at_end


def _halves(hashes: Hashes) -> tuple[_Words, _Words]:
    return np.ascontiguousarray(hashes[:, 0]), np.ascontiguousarray(hashes[:, 1])


def _scaled(words: _Words, slots: int) -> _Places:
    """Maps 32-bit words evenly onto the places of ``slots`` slots; a product, no division."""
    words *= np.uint64(slots)
    words >>= _HALF
    words *= np.uint64(_SLOT_WORDS)
    return words.view(np.int64)
