"""The recheck: whether each row that goes may go, found once more from the rows themselves.

Judging works with masks, row numbers and chunks. A fault there could drop a row that lives while
every sum is right. So rows that are about to be left out are checked again, as they were read, and
by nothing of judging but the map. Each must

- lie below the log start (S37), or
- lie in the range of the last map and not be the last of its key, by its own offset: the map knows
  all last offsets of its range (`mapped_range`), or
- have no key, or have one for which the map has a higher offset (S21); an earlier map of the pass
  may have had it, and that one's finding is believed, or
- be a tombstone whose delete horizon has come (S23), and which no reader holds (S64).

The second needs no hash, so it does not show that the row's key is in the map at all. That is shown
by two sums and by a sample. As many rows with a key as the map took of the segments that are judged
must be judged in its range, and as many of them must stay, or be such tombstones, as it has entries
that lie there. The first `ALL_ROWS` rows
that go by their offsets are looked up by their keys, too, and of those after them one of `ONE_OF`.

Where one of it does not hold nothing is committed, and the partition is uncleanable (S28).

Costs: a look at a byte for each row of the range that goes; a hash and a look-up for each one below
it, and for the sample; and the keys of rewritten chunks of which nothing is left.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.cleaner.compaction.build_map import KeyHasher
from clog.cleaner.compaction.mapped_range import MappedRange
from clog.cleaner.compaction.offset_map import OffsetMap
from clog.storage.errors import CorruptionError
from clog.storage.numpy_arrays import Mask, Offsets, scalar, to_arrow, to_numpy
from clog.storage.read.scan import DELETE_HORIZON
from clog.storage.readers.holds import NOTHING_HELD, HeldTombstones

ALL_ROWS = 4096
ONE_OF = 32
_ASKED_ROWS = 1 << 14
"""So many keys are looked up together: a call costs more than a few of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Unexplained:
    """Rows that go, and whose reason only their keys can show."""

    offsets: Offsets
    keys: pa.Array


class Recheck:
    """The recheck of one pass, for all threads that work on it.

    Args:
        offset_map: the last of the pass.
        mapped: the range that it covers.
        hasher: makes the hashes of all.
        log_start: below it all is dead (S37).
        now_ms: the pass's start.
        held: tombstones that readers hold back.
    """

    def __init__(
        self,
        offset_map: OffsetMap,
        mapped: MappedRange,
        hasher: KeyHasher,
        *,
        log_start: int,
        now_ms: int,
        held: HeldTombstones = NOTHING_HELD,
    ) -> None:
        self._map = offset_map
        self._mapped = mapped
        self._hasher = hasher
        self._log_start = log_start
        self._now_ms = now_ms
        self._held = held
        self._lock = threading.Lock()
        self._by_offset = 0
        self._seen = 0
        self._latest = 0

    def unexplained(
        self, rows: pa.RecordBatch, gone: Mask, found: Mask | None = None
    ) -> Unexplained:
        """Returns those of the rows that go for which their keys are to be asked: all that their
        offsets, values and horizons do not explain, and the sample.
        """
        places, by_offset = self._without_keys(rows, gone, found)
        places = np.concatenate((self._sample(by_offset), places))
        offsets = to_numpy(rows.column("offset")).take(places)
        return Unexplained(offsets, rows.column("key").take(to_arrow(places)))

    def check_unread(self, partition: int, rows: pa.RecordBatch, gone: Mask) -> None:
        """Checks rows of the range that go, of which no key was read; else as `check`."""
        places, _ = self._without_keys(rows, gone, None)
        if places.size:
            raise _alive(partition, rows.column("offset")[int(places[0])].as_py())

    def check_keys(self, partition: int, rows: Sequence[Unexplained]) -> None:
        """Checks that the map has a higher offset for each key that there is.

        Raises:
            CorruptionError: it has none.
        """
        if not rows:
            return
        offsets = np.concatenate([some.offsets for some in rows])
        keys = pa.concat_arrays([some.keys for some in rows])
        if keys.null_count:
            offsets, keys = offsets[to_numpy(keys.is_valid())], keys.drop_null()
        dead = self._map.get(self._hasher(keys)) > offsets
        if not dead.all():
            raise _alive(partition, int(offsets[~dead].min()))

    def count(self, offsets: Offsets, key_valid: Mask, latest: Mask) -> None:
        """Counts rows that have a key, and those of them that the map has as the latest of theirs;
        those outside its range left out.
        """
        in_range = (self._mapped.start <= offsets) & (offsets < self._mapped.end)
        self.count_chunk(
            int(np.count_nonzero(key_valid & in_range)), int(np.count_nonzero(latest & in_range))
        )

    def count_chunk(self, rows: int, latest: int) -> None:
        """Counts such rows of a chunk that lies in the range."""
        with self._lock:
            self._seen += rows
            self._latest += latest

    def check_range(self, partition: int) -> None:
        """Compares what was counted with the map, after all of its range was judged.

        Raises:
            CorruptionError: they differ.
        """
        where = f"[{self._mapped.start}, {self._mapped.end}) of partition {partition}"
        if self._seen != self._mapped.records:
            raise CorruptionError(
                f"{self._seen} records with a key were judged in {where}, but the map was made of"
                f" {self._mapped.records}; the pass stops here"
            )
        if self._latest != (latest := self._mapped.latest_judged()):
            raise CorruptionError(
                f"there are {latest} keys in {where}, but {self._latest} of their"
                " records would have been kept; the pass stops here"
            )

    def _without_keys(
        self, rows: pa.RecordBatch, gone: Mask, found: Mask | None
    ) -> tuple[Offsets, Offsets]:
        """Returns which rows go without a reason but what their keys may tell, and which go by
        their offsets.
        """
        places = np.flatnonzero(gone if found is None else gone & ~found)
        offsets = to_numpy(rows.column("offset")).take(places)
        if offsets.size and offsets[0] < self._log_start:
            below = int(np.searchsorted(offsets, self._log_start))
            places, offsets = places[below:], offsets[below:]
        outdated = self._mapped.is_outdated(offsets)
        if outdated.all():
            return places[:0], places
        by_offset, places = places.compress(outdated), places.compress(~outdated)
        if DELETE_HORIZON in rows.schema.names and places.size:
            horizon = to_numpy(
                pc.fill_null(rows.column(DELETE_HORIZON), scalar(self._now_ms + 1, pa.int64()))
            )
            expired = to_numpy(rows.column("value").is_null()) & (horizon <= self._now_ms)
            if self._held != NOTHING_HELD:
                expired = expired & ~self._held.mask(to_numpy(rows.column("offset")), horizon)
            places = places[~expired.take(places)]
        return places, by_offset

    def _sample(self, by_offset: Offsets) -> Offsets:
        """Returns which of the rows that go by their offsets are looked up, too."""
        with self._lock:
            before, self._by_offset = self._by_offset, self._by_offset + len(by_offset)
        all_of = max(0, ALL_ROWS - before)
        return np.concatenate((by_offset[:all_of], by_offset[all_of::ONE_OF]))


class GroupRecheck:
    """The recheck of the rows that go from one group, for all threads that work on it.

    Args:
        recheck: the pass's.
        partition: theirs.
    """

    def __init__(self, recheck: Recheck, partition: int) -> None:
        self._recheck = recheck
        self._partition = partition
        self._lock = threading.Lock()
        self._waiting: list[Unexplained] = []

    def check(self, rows: pa.RecordBatch, gone: Mask, found: Mask | None = None) -> None:
        """Checks rows that go, some of them only when `finish` is called: offset and key, value
        and `DELETE_HORIZON` where tombstones may go.

        Args:
            rows: in the order of their offsets.
            gone: which of them go.
            found: which of them an earlier map of the pass found superseded.

        Raises:
            CorruptionError: a row has no reason to go.
        """
        some = self._recheck.unexplained(rows, gone, found)
        with self._lock:
            self._waiting.append(some)
            if sum(len(waiting.offsets) for waiting in self._waiting) < _ASKED_ROWS:
                return
            asked, self._waiting = self._waiting, []
        self._recheck.check_keys(self._partition, asked)

    def finish(self) -> None:
        """Checks what `check` left; to be called before the group is committed, when all threads
        are done with it.

        Raises:
            CorruptionError: a row has no reason to go.
        """
        asked, self._waiting = self._waiting, []
        self._recheck.check_keys(self._partition, asked)


def _alive(partition: int, offset: int) -> CorruptionError:
    return CorruptionError(
        f"the record at offset {offset} of partition {partition} would have been removed, but"
        " nothing shows that it is dead; nothing was changed"
    )
