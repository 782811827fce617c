"""P1: the offset map over the dirty sealed range, as far as its memory reaches (S18, S20), and what
it says about rows whose keys are not read again.

*Offset map*: the last offset of every key in a range of the log. *Hash*: 128 bits of a key
(`keys.hashing`), two unsigned words; keys are distinguished by it alone (S19). *Slot*: 24 bytes,
low half, high half, last offset + 1; zeros if it is empty. *Place*: where it begins in the table.

An ordered hash table with double hashing: every hash that a search passes is larger than the one it
looks for, so absent keys cost no more than present ones. For all rows of a chunk together:

M1. Locate: each row starts at its home slot and walks on while it sees larger hashes.
M2. Rows that ended at their own hash store their offset; the last one wins.
M3. The others have new keys: one wins each slot, and what it evicts starts again, until no row is
    left. Slots only ever change to a larger hash, so it ends.

*Mapped range*: the offsets that the map covers. A row there is superseded exactly if its offset is
not the last one of its key. *Found dead*: what the maps of one pass found, a bit for each row.

cleaner/PASS.md measures this against other maps, and says what becomes of freed memory.
"""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from clog.cleaner.selection import PassStats
from clog.cleaner.threads import ALONE, SLOT_BYTES, CleanerThreads, map_slots
from clog.storage.env import dataclass
from clog.storage.format.chunks import Chunk
from clog.storage.format.manifest import Manifest
from clog.storage.keys.hashing import hash_keys
from clog.storage.keys.latest import LatestKeys, Ranks, ranks_of
from clog.storage.numpy_arrays import Hashes, Mask, Offsets, to_numpy
from clog.storage.objects.orders import Ordering, Pairs, suspects
from clog.storage.read.scan import ReadPiece, plan_range, read_pieces
from clog.storage.store.contract import Store

if TYPE_CHECKING:
    from clog.cleaner.passes.judge import IndexFilter

_Words = npt.NDArray[np.uint64]
_Places = npt.NDArray[np.int64]
"""Where slots begin in the table: slot number times the words per slot."""
_Entries = tuple[_Words, _Words, Offsets]
"""High words, low words, offsets + 1."""

_WORDS_EACH: Final = 3
# Bounds the scratch memory of a search; smaller chunks pay more for calls than for rows.
_CHUNK_ROWS: Final = 1 << 17
# With this many rows the home slots stay in the cache from the first look to the last word.
_SLICE_ROWS: Final = 1 << 14
# This many rows that found no place at home walk together: one long walk, not many. Bounds
# the scratch memory of a put.
_LEFT_ROWS: Final = 1 << 16
# About this many steps to choose from: enough that two keys with the same home rarely share their
# walk, few enough to stay in the cache.
_STEPS: Final = 4096
_HALF: Final = np.uint64(32)
_LOWER: Final = np.uint64((1 << 32) - 1)


class OffsetMap:
    """Key hash -> last offset, in a fixed amount of memory (S18).

    ``memory_bytes`` is the share of one cleaner thread: it gives ``memory_bytes // 24`` slots, of
    which at most the fraction ``load_factor`` is filled. While rows are put or looked up, up to 24
    MiB of scratch memory are added.
    """

    __slots__ = ("_capacity", "_entries", "_latest_offset", "_slots", "_steps", "_table")
    row_bytes: Final = SLOT_BYTES

    def __init__(self, *, memory_bytes: int, load_factor: float = 0.9) -> None:
        slots = self._slots = map_slots(memory_bytes, load_factor)
        self._capacity = int(slots * load_factor)
        self._table = np.zeros(slots * _WORDS_EACH, dtype=np.uint64)
        self._steps = _coprime_steps(slots) * _WORDS_EACH
        self._entries = 0
        self._latest_offset = -1

    @property
    def slots(self) -> int:
        """The number of slots, filled or not."""
        return self._slots

    @property
    def capacity(self) -> int:
        """The number of keys that fit."""
        return self._capacity

    def __len__(self) -> int:
        """Returns the number of keys in the map."""
        return self._entries

    @property
    def nbytes(self) -> int:
        """The size of the table in bytes."""
        return self._table.nbytes

    @property
    def latest_offset(self) -> int:
        """The last offset that the map covers, -1 if it covers none."""
        return self._latest_offset

    def put(self, hashes: Hashes, offsets: Offsets) -> int:
        """Enters rows in order until the map is full, and returns the number of rows taken.

        The result is that of entering row by row: a row whose key is already in the map always
        fits; the first row whose new key does not fit stops it (S20). ``offsets`` increase, also
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

        For a range that was read completely: offsets without a record must not hold up the first
        dirty offset.
        """
        self._latest_offset = max(self._latest_offset, offset)

    def get(self, hashes: Hashes) -> Offsets:
        """Returns the last offset of each key, -1 if the map does not have it."""
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

    def superseded(self, hashes: Hashes, offsets: Offsets) -> Mask:
        """Returns which rows are not the last of their keys, as far as the map has these."""
        lost: Mask = self.get(hashes) > offsets
        return lost

    def last_offsets(self) -> Offsets:
        """Returns the last offset of each key, ascending; 8 bytes an entry."""
        following = self._following[::_WORDS_EACH]
        last: Offsets = following[following > 0] - 1
        last.sort()
        return last

    def is_last(self, start: int, end: int) -> Mask:
        """Returns which offsets of ``[start, end)`` are the last one of a key; one byte each."""
        found = np.zeros(end - start, np.bool_)
        words = _WORDS_EACH * _CHUNK_ROWS
        for first in range(0, len(self._table), words):
            following = self._following[first : first + words : _WORDS_EACH]
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
        """Returns how many of the next rows are sure to fit; 0 only if the first one does not."""
        room = self._capacity - self._entries
        if room >= min(len(hashes), _CHUNK_ROWS):
            return min(len(hashes), room)
        hashes = hashes[:_CHUNK_ROWS]
        _, known = self._locate(*_halves(hashes))
        new = np.flatnonzero(~known)
        # Some of these may share a key and leave room for more: the next call finds out.
        return len(hashes) if len(new) <= room else int(new[room])

    def _put(self, hashes: Hashes, offsets: Offsets) -> None:
        """Enters all rows; there is room for them."""
        assert offsets[0] > self._latest_offset, "offsets increase from call to call"
        assert bool(np.all(offsets[1:] > offsets[:-1])), "offsets increase within a call"
        left: list[_Entries] = []
        for start in range(0, len(offsets), _SLICE_ROWS):
            end = start + _SLICE_ROWS
            entries = *_halves(hashes[start:end]), offsets[start:end] + 1
            left.extend(self._put_at_home(*entries))
            if end >= len(offsets) or sum(len(rows) for _, _, rows in left) >= _LEFT_ROWS:
                self._put_anywhere(*map(np.concatenate, zip(*left, strict=True)))
                left.clear()
        self._latest_offset = int(offsets[-1])

    def _put_at_home(self, high: _Words, low: _Words, following: Offsets) -> list[_Entries]:
        """Does M1 to M3 at home slots alone; returns what is left: rows and evicted entries."""
        places = self._homes_of(high, low)
        larger, same = self._compare(places, high, low)
        known = np.flatnonzero(same)
        self._following[places.take(known)] = following.take(known)
        new, walking = np.flatnonzero(~(larger | same)), np.flatnonzero(larger)
        entries = _taken((high, low, following), new)
        lost, evicted = self._claim(places.take(new), *entries)
        walking = np.concatenate((walking, new[lost]))
        return [_taken((high, low, following), walking), evicted]

    def _put_anywhere(self, high: _Words, low: _Words, following: Offsets) -> None:
        """Does M1 to M3 for entries in any order, of whose keys the map may have later ones."""
        order = np.argsort(following)
        entries = high, low, following = _taken((high, low, following), order)
        places, same = self._locate(high, low)
        known, new = np.flatnonzero(same), np.flatnonzero(~same)
        at = places.take(known)
        self._following[at] = np.maximum(self._following.take(at), following.take(known))
        self._enter(*_taken(entries, new), places.take(new))

    def _enter(self, high: _Words, low: _Words, following: Offsets, places: _Places) -> None:
        """Enters rows with new keys, each of which is where its search ended (M3).

        Rows of one key stay in offset order, and always walk or wait together.
        """
        steps = self._steps_of(high, low)
        standing = np.arange(len(places))
        walking = standing[:0]
        while len(places):
            entries = high, low, following
            lost, out = self._claim(places.take(standing), *_taken(entries, standing))
            stay = np.concatenate((walking, standing[lost]))
            out_high, out_low, _ = out
            joined = zip(_taken(entries, stay), out, strict=True)
            high, low, following = (np.concatenate(both) for both in joined)
            places = np.concatenate((places.take(stay), self._homes_of(out_high, out_low)))
            steps = np.concatenate((steps.take(stay), self._steps_of(out_high, out_low)))
            larger, _ = self._compare(places, high, low)
            walking, standing = np.flatnonzero(larger), np.flatnonzero(~larger)
            places[walking] = self._next(places.take(walking), steps.take(walking))

    def _claim(
        self, places: _Places, high: _Words, low: _Words, following: Offsets
    ) -> tuple[npt.NDArray[np.intp], _Entries]:
        """Gives each place to one of the rows that ended there.

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
        """Returns where the search for each hash ends, and whether the hash is there (step 1)."""
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
        """Returns whether each place holds a larger hash, and whether it holds the same one.

        The low words nearly always decide; high words are looked at only where these are equal.
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
        return _scaled((high ^ low) >> _HALF, self._slots) * _WORDS_EACH

    def _steps_of(self, high: _Words, low: _Words) -> _Places:
        return self._steps.take(_scaled((high ^ low) & _LOWER, len(self._steps)))

    def _next(self, places: _Places, steps: _Places) -> _Places:
        places = places + steps
        np.subtract(places, len(self._table), out=places, where=places >= len(self._table))
        return places


def _taken(entries: _Entries, rows: npt.NDArray[np.intp]) -> _Entries:
    high, low, following = entries
    return high.take(rows), low.take(rows), following.take(rows)


def _halves(hashes: Hashes) -> tuple[_Words, _Words]:
    return np.ascontiguousarray(hashes[:, 0]), np.ascontiguousarray(hashes[:, 1])


def _scaled(words: _Words, end: int) -> npt.NDArray[np.int64]:
    """Maps 32-bit words evenly onto ``[0, end)``; by a product, because divisions are slow."""
    scaled: npt.NDArray[np.uint64] = (words * np.uint64(end)) >> _HALF
    return scaled.view(np.int64)


def _coprime_steps(slots: int) -> npt.NDArray[np.int64]:
    """Returns steps in ``[1, slots)``, evenly spread, with which a walk visits every slot."""
    steps = np.arange(1, slots, -(-slots // _STEPS), dtype=np.int64)
    coprime: npt.NDArray[np.int64] = steps[np.gcd(steps, slots) == 1]
    return coprime


KeyMap = OffsetMap | LatestKeys
"""The map of a pass; a `LatestKeys` if it is ranked."""
WINDOW_OFFSETS = 1 << 24
"""How many offsets of the mapped range are unfolded together, one byte each."""
FOUND_BYTES_MAX = 32 << 20
"""With this many bytes of bits for dead rows, a pass begins no further map."""


class MappedRange:
    """The range ``[start, end)`` of a map.

    Args:
        offset_map: the map, a `LatestKeys` if it is ranked.
        keyless: the first and the last offset of a record without a key, which the map does not
            know; None if there is none.
        records: how many records with a key the map took of ``judged``.
        judged: the range of the segments that are judged with it; None: all of it.
        suspects: the hashes and offsets of the rows of a ranked map that are suspects.
    """

    def __init__(
        self,
        offset_map: KeyMap,
        start: int,
        end: int,
        keyless: tuple[int, int] | None,
        *,
        records: int,
        judged: tuple[int, int] | None = None,
        suspects: Sequence[tuple[Hashes, Offsets]] = (),
    ) -> None:
        self.start = start
        self.end = end
        self.records = records
        self.suspects = suspects
        self.offset_map = offset_map
        self._keyless = keyless
        self._judged = judged or (start, end)
        # One value, since several threads may look and unfold.
        self._window = (0, 0, np.zeros(0, np.bool_))

    def latest_judged(self) -> int:
        """Returns how many keys have their last offset in the range that is judged."""
        low, high = max(self._judged[0], self.start), min(self._judged[1], self.end)
        if (low, high) == (self.start, self.end) and isinstance(self.offset_map, OffsetMap):
            return len(self.offset_map)
        steps = range(low, high, WINDOW_OFFSETS)
        spans = ((at, min(at + WINDOW_OFFSETS, high)) for at in steps)
        return sum(int(np.count_nonzero(self.offset_map.is_last(*span))) for span in spans)

    def decides(self, chunk: Chunk) -> bool:
        """Returns whether the chunk's rows are judged by their offsets alone: all are in the range,
        have a key, and have an offset that need not be read.
        """
        end = chunk.base + chunk.rows
        inside = self.start <= chunk.base and end <= self.end
        plain = chunk.object.dense and chunk.dead is None
        first, last = self._keyless or (end, end)
        return inside and plain and (last < chunk.base or end <= first)

    def superseded(self, chunk: Chunk) -> Mask:
        """Returns which rows of a chunk that it decides are not the last of their key."""
        return ~self._is_last_in(chunk.base, chunk.base + chunk.rows)

    def is_outdated(self, offsets: Offsets) -> Mask:
        """Returns which of the ascending offsets are in the range and not the last of a key; none
        of those that are too far apart to be unfolded together.
        """
        outdated = np.zeros(len(offsets), np.bool_)
        first, behind = np.searchsorted(offsets, [self.start, self.end])
        inside = offsets[first:behind]
        if inside.size and inside[-1] - inside[0] < WINDOW_OFFSETS:
            base = int(inside[0])
            is_last = self._is_last_in(base, int(inside[-1]) + 1).take(inside - base)
            np.logical_not(is_last, out=outdated[first:behind])
        return outdated

    def _is_last_in(self, start: int, end: int) -> Mask:
        low, high, is_last = self._window
        if start < low or end > high:
            low, high = start, max(end, min(start + WINDOW_OFFSETS, self.end))
            is_last = self.offset_map.is_last(low, high)
            self._window = low, high, is_last
        return is_last[start - low : end - low]


class FoundDead:
    """Superseded rows by chunk, as bits."""

    def __init__(self) -> None:
        self._bits: dict[tuple[str, int], npt.NDArray[np.uint8]] = {}
        self.size_bytes = 0

    def add(self, chunk: Chunk, superseded: Mask) -> None:
        """Adds what one map found in a chunk."""
        if not superseded.any():
            return
        bits = np.packbits(superseded)
        before = self._bits.get(chunk.identity)
        if before is None:
            self.size_bytes += bits.nbytes
        self._bits[chunk.identity] = bits if before is None else bits | before

    def of(self, chunk: Chunk) -> Mask | None:
        """Returns the rows of a chunk that are dead; None if none is."""
        bits = self._bits.get(chunk.identity)
        if bits is None:
            return None
        return np.unpackbits(bits, count=chunk.live_rows).view(np.bool_)


EVERY_BYTES = 64 << 20
_BLOCK_BYTES = 1 << 20
"""Blocks of this size or more are given back one by one."""
# Names and numbers as in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def give_back() -> None:
    """Returns freed memory to the system, as far as the allocators can do that."""
    pa.default_memory_pool().release_unused()
    _call("malloc_trim", 0)


def save_memory() -> None:
    """Makes both allocators keep little in the whole process; so no library should call it."""
    pa.set_memory_pool(pa.system_memory_pool())
    _call("mallopt", _M_MMAP_THRESHOLD, _BLOCK_BYTES)
    _call("mallopt", _M_TRIM_THRESHOLD, _BLOCK_BYTES)


def _call(name: str, *numbers: int) -> None:
    """Calls a function of the C library if it has it: only glibc does."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return
    function(*numbers)


_PUT_ROWS = 1 << 18
"""About this many rows are put into the map together, with 24 bytes each until then. What a call
costs in addition to its rows is small then (`offset_map`).
"""
PORTION_ROWS = 1 << 18
"""This many rows, or those of an object, are hashed together by one of several threads."""
_HASHED_BYTES = 32
"""About what a row takes then."""


@dataclass(frozen=True, slots=True)
class KeyHasher:
    """How keys become map entries: each pass has its own seed, so that collisions cannot be
    prepared (S19).

    ``width_bits`` below 128 exists for the test that shows what the width is needed for.
    """

    seed: int
    algorithm: str = "xxh3_128"
    width_bits: int = 128

    def __call__(self, keys: pa.Array) -> Hashes:
        return hash_keys(keys, seed=self.seed, width_bits=self.width_bits, algorithm=self.algorithm)


def empty_map(
    manifest: Manifest,
    partition: int,
    dirty: tuple[int, int],
    share_bytes: int,
    *,
    is_ranked: bool = False,
) -> KeyMap:
    """Makes the map of a range: no larger than a thread's share, and no larger than its records can
    use. Touching the pages of a large map that stays almost empty takes longer than filling it.
    """
    records = sum(piece.rows for piece in plan_range(manifest, partition, *dirty))
    if is_ranked:
        return LatestKeys.within(share_bytes, rows=records, is_ranked=True)
    # Half full is as fast as empty, 0.9 is not.
    return OffsetMap(memory_bytes=min(share_bytes, (2 * records + 2) * SLOT_BYTES))


SUSPECTS_MAX = 1 << 20
"""The most suspects that a pass decides on, with 24 bytes each until then."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """How records of a key are compared if the last one need not win: by ``order``, with the
    partition's ``pairs`` that identify suspects. ``stops``: at the first suspect, as whether it is
    late is decided before.
    """

    order: Ordering
    pairs: Pairs
    stops: bool

    def columns(self, *others: str) -> list[str]:
        """Returns the columns to be read for it, together with others."""
        return [*others, *{self.order.column} - {*others}]

    def of(self, rows: pa.RecordBatch) -> tuple[Ranks, Mask]:
        """Returns the ranks of rows, and which rows are suspects."""
        orders, offsets = self.order.values(rows), to_numpy(rows.column("offset"))
        suspect = suspects(orders, offsets, self.pairs)
        return ranks_of(orders, ~suspect), suspect


def build_map(
    store: Store,
    manifest: Manifest,
    partition: int,
    dirty: tuple[int, int],
    *,
    offset_map: KeyMap,
    hasher: KeyHasher,
    stats: PassStats,
    index_filter: "IndexFilter | None" = None,
    threads: CleanerThreads = ALONE,
    judged: tuple[int, int] | None = None,
    ranking: Ranking | None = None,
) -> MappedRange:
    """Fills the map with the last offset of each key in the range ``dirty``; returns the part of it
    that the map covers.

    That is all of it, or less if the map is full: up to the offset of the first record whose key
    did not fit. Only keys are read, and noted for ``index_filter``; ``threads`` hash those of the
    next objects ahead. ``judged`` is the range of the segments that will be judged with the map, if
    not all are; all keys are in the map even so. A ranked map has a ``ranking``.
    """
    start, end = dirty
    waiting = _Waiting(offset_map, judged or dirty)
    suspected = _Suspects(0 if ranking is not None and ranking.stops else SUSPECTS_MAX)
    stopped: int | None = None
    keyless: tuple[int, int] | None = None
    pieces = plan_range(manifest, partition, start, end)
    calls = (
        (partial(_hashed, store, some, hasher, index_filter, ranking), _HASHED_BYTES * rows)
        for some, rows in _portions(pieces, PORTION_ROWS if threads.count > 1 else None)
    )
    with threads.in_turn(calls, settled=lambda hashed: [*hashed]) as turns:
        for hashed in chain.from_iterable(turn() for turn in turns):
            stats.map_records += hashed.rows
            if hashed.keyless is not None:
                first, last = hashed.keyless
                keyless = (first if keyless is None else keyless[0], last)
            undecided = suspected.first_beyond(hashed)
            stopped = waiting.add(hashed if undecided is None else hashed.below(undecided))
            if stopped is None and undecided is not None:
                stopped = waiting.put()
                stopped = undecided if stopped is None else stopped
            if stopped is not None:
                break
        else:
            stopped = waiting.put()
    covered = end if stopped is None else stopped
    # Gaps and records without a key at the end are covered, too: else a pass over only those
    # would never end (KAFKA-8764).
    offset_map.advance(covered - 1)
    stats.maps += 1
    stats.map_entries += len(offset_map)
    return MappedRange(
        *(offset_map, start, covered, keyless),
        records=waiting.taken,
        judged=judged,
        suspects=suspected.parts,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Hashed:
    """Rows of the range: their number, the hashes and offsets of those with a key, the first and
    the last offset of those without one; for a ranked map their ranks, else none, and which are
    suspects.
    """

    rows: int
    hashes: Hashes
    offsets: Offsets
    keyless: tuple[int, int] | None
    ranks: tuple[Ranks, ...] = ()
    suspect: Mask | None = None

    def below(self, offset: int) -> "_Hashed":
        """Returns the rows below an offset."""
        some = slice(0, int(np.searchsorted(self.offsets, offset)))
        kept = self.hashes[some], self.offsets[some]
        return _Hashed(self.rows, *kept, self.keyless, tuple(r[some] for r in self.ranks))


@dataclass(slots=True)
class _Suspects:
    """Suspects that were found, and ``room`` for that many more."""

    room: int
    parts: list[tuple[Hashes, Offsets]] = field(default_factory=list)

    def first_beyond(self, hashed: _Hashed) -> int | None:
        """Adds the suspects among rows; returns the offset of the first without room, if any."""
        rows = np.zeros(0, np.int64) if hashed.suspect is None else np.flatnonzero(hashed.suspect)
        if not rows.size:
            return None
        some, left = rows[: self.room], rows[self.room :]
        self.parts.append((hashed.hashes[some], hashed.offsets[some]))
        self.room -= len(some)
        return int(hashed.offsets[left[0]]) if left.size else None


def _portions(
    pieces: Sequence[ReadPiece], rows_min: int | None
) -> Iterator[tuple[list[ReadPiece], int]]:
    """Yields the pieces in portions of at least that many rows, with their rows; None: all."""
    some: list[ReadPiece] = []
    rows = 0
    for piece in pieces:
        some.append(piece)
        rows += piece.rows
        if rows_min is not None and rows >= rows_min:
            yield some, rows
            some, rows = [], 0
    if some:
        yield some, rows


def _hashed(
    store: Store,
    pieces: Sequence[ReadPiece],
    hasher: KeyHasher,
    index_filter: "IndexFilter | None",
    ranking: Ranking | None,
) -> Iterator[_Hashed]:
    columns = ["offset", "key"] if ranking is None else ranking.columns("offset", "key")
    for batch in read_pieces(store, pieces, columns=columns):
        keys, offsets = batch.column("key"), batch.column("offset")
        keyless: tuple[int, int] | None = None
        if keys.null_count:
            valid = keys.is_valid()
            without = offsets.filter(pc.invert(valid))
            keyless = without[0].as_py(), without[-1].as_py()
            keys, offsets = keys.filter(valid), offsets.filter(valid)
        if index_filter is not None:
            index_filter.note(keys)
        entries = batch.num_rows, hasher(keys), to_numpy(offsets), keyless
        if ranking is None:
            yield _Hashed(*entries)
        else:
            ranks, suspect = ranking.of(batch.filter(batch.column("key").is_valid()))
            yield _Hashed(*entries, (ranks,), suspect)


@dataclass(slots=True)
class _Waiting:
    """Rows on their way into a map, enough for a put; ``taken`` of those to be judged are in it."""

    offset_map: KeyMap
    judged: tuple[int, int]
    parts: list[tuple[npt.NDArray[Any], ...]] = field(default_factory=list)
    rows: int = 0
    taken: int = 0

    def add(self, hashed: _Hashed) -> int | None:
        """Adds rows; returns the offset of the first that did not fit, None if all did so far."""
        self.parts.append((hashed.hashes, hashed.offsets, *hashed.ranks))
        self.rows += len(hashed.offsets)
        return self.put() if self.rows >= _PUT_ROWS else None

    def put(self) -> int | None:
        """Puts the waiting rows into the map; returns the same as `add`."""
        if not self.rows:
            return None
        hashes, offsets, *ranks = map(np.concatenate, zip(*self.parts, strict=True))
        self.parts, self.rows = [], 0
        taken = self.offset_map.put(hashes, offsets, *ranks)
        first, behind = np.searchsorted(offsets[:taken], self.judged)
        self.taken += int(behind - first)
        return int(offsets[taken]) if taken < len(offsets) else None
