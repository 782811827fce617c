"""Replays dead letters: those that can now be decoded go to the log that they were meant for.

A letter cannot return to its offset: a log is only appended to, and while it is a mirror, the
offsets after its end are the source's. So letters are replayed into a log that assigns its own
offsets: that of a mirror that was ended, or another with the same columns. (While the mirror runs,
`send` sends them to the topic, from which the mirror takes them at new offsets.)

L1. The id is claimed. Letters are read from the id's positions in the log, and decoded.
L2. In a compacted log that mirrored the letters' source, a letter is *superseded* if its key has a
    record with a later offset there: the older value must not return as the newest. A record that
    was replayed or sent keeps its old place in its headers, and counts as being at that offset.
L3. The others are appended, letters that still do not decode go to the end of the dead letters, and
    the position is moved, in one transaction. Crash before: L1 again; after: the next batch.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.bridge.access import Access
from clog.bridge.decoding import (
    OF_LETTERS,
    TIMEOUT_MS,
    Decoder,
    Decoding,
    Place,
    batches_of,
    check_letters,
    letters_of,
    place_of,
)
from clog.bridge.target import ID
from clog.bridge.topic import Columns
from clog.storage import Clock, Ids, InvalidInputError, Log, SystemClock, SystemIds
from clog.storage.spi import Inside, dataclass, key_bytes, of_headers, to_arrow, to_numpy


@dataclass(frozen=True, slots=True)
class Replayed:
    """How many dead letters were appended, superseded, or kept.

    Attributes:
        url: the log's URL.
        records: how many were appended to it.
        superseded: how many were left out because their keys have later records.
        dead_letters: how many still do not decode; they are at the end of the dead letters again.
    """

    url: str
    records: int = 0
    superseded: int = 0
    dead_letters: int = 0


def replay(
    dead_letters: str,
    url: str,
    *,
    decode: Decoding | str,
    storage_options: Mapping[str, object] | None = None,
    single_writer: bool = False,
    on_progress: Callable[[int], None] = lambda _: None,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> Replayed:
    """Decodes dead letters again, and appends those that now decode to a typed log, each once, even
    after a crash; the others become dead letters again. Stops at the current end.

    Args:
        dead_letters: the URL of their log.
        url: a typed log that assigns offsets: of a mirror that was ended, or any other.
        decode: see `mirror`.
        storage_options: options of the filesystem of both.
        single_writer: see `Log.create`.
        on_progress: called with how many more letters were read.
        clock: the source of times; None: the system's clock.
        ids: the source of random ids; None: the operating system.

    Raises:
        InvalidInputError: the log is one of bytes or mirrors a topic, or a record among the dead
            letters is not one.
        SourceUndecodableError: the letters have a schema that the log cannot follow.
        TransactionFencedError: another process replays these letters into the log.

    >>> replay("orders-dead", "orders", decode="json").records  # doctest: +SKIP
    1
    """
    access = Access(
        storage_options=storage_options,
        single_writer=single_writer,
        clock=clock or SystemClock(),
        ids=ids or SystemIds(),
    )
    decoding = Decoding(values=decode) if isinstance(decode, str) else decode
    return played(access.opened(dead_letters), access.opened(url), decoding, on_progress)


def played(
    letters: Log, log: Log, decoding: Decoding, on_progress: Callable[[int], None] = lambda _: None
) -> Replayed:
    """Replays the letters of one log into another; see `replay`."""
    check_letters(letters)
    if not Inside(log).is_typed:
        raise InvalidInputError(
            f"{log.url} is a log of bytes, which has no columns for decoded letters"
        )
    if Inside(log).takes_offsets:
        raise InvalidInputError(
            f"{log.url} mirrors a topic, and has its offsets; send the letters to that topic"
            f" (clog mirror {letters.url} kafka://…), end the mirror first (--end), or replay"
            " them into another log"
        )
    player = _Player(letters, log, Decoder(decoding, letters.url))
    return player.played(on_progress)


class _Player:
    """Replays letters of one log into another; a worker."""

    def __init__(self, letters: Log, log: Log, decoder: Decoder) -> None:
        self._letters = letters
        self._log = log
        self._decoder = decoder
        self._id = f"clog-replay-{letters.id}"
        self._mirrored = set(log.positions(ID))

    def played(self, on_progress: Callable[[int], None]) -> Replayed:
        """Replays all current letters."""
        with self._log.transaction(self._id, TIMEOUT_MS) as t:
            t.abort()  # Finishes what an earlier run left, and fences one that still runs.
        positions = self._log.positions(self._id).get(self._letters.id, {})
        counts = np.zeros(3, int)
        for p, end in self._letters.stable_offsets().items():
            start = positions.get(p)
            if start is None or start < end:
                for batch, position in batches_of(self._letters, p, start, end):
                    counts += self._play(batch, p, position)
                    on_progress(batch.num_rows)
        return Replayed(self._log.url, *counts.tolist())

    def _play(self, batch: pa.RecordBatch, p: int, position: int) -> tuple[int, int, int]:
        """Replays a batch (L2, L3); returns how many are appended, superseded, and kept."""
        places, rows = self._places(pa.Table.from_batches([batch]))
        partitions = np.array([one.partition for one in places], np.int32)
        offsets = np.array([one.offset for one in places], np.int64)
        found = self._decoder.decoded(Columns(rows, partitions, offsets, 0, 0, 0), self._log)
        mine = [places[i] for i in found.places]
        old = self._superseded(found.rows.column("key").combine_chunks(), mine)
        Inside(self._log).refresh()  # The log may have evolved while letters were decoded.
        new, kept = found.rows.filter(to_arrow(~old)), partitions[found.places[~old]]
        with self._log.transaction(self._id, TIMEOUT_MS) as t:
            if new.num_rows:
                fits = not kept.size or int(kept.max()) < self._log.partitions
                t.append(new, kept if fits else None)
            if found.reasons:
                letters = letters_of(rows, found.reasons, lambda i: places[i].headers)
                t.append(letters, p, log=self._letters)
            t.positions(self._letters, {p: position})
        return new.num_rows, int(old.sum()), len(found.reasons)

    def _places(self, batch: pa.Table) -> tuple[list[Place], pa.Table]:
        """Returns the old places of letters, and their records, whose headers keep the places."""
        places, headers = [], []
        for some, offset in zip(
            batch.column("headers").to_pylist(), batch.column("offset").to_pylist(), strict=True
        ):
            place = place_of(some)
            if place is None:
                raise InvalidInputError(
                    f"offset {offset} of {self._letters.url} is not a dead letter: its headers do"
                    " not say where it was"
                )
            places.append(place)
            own = [(h["key"].encode(), h["value"]) for h in some if h["key"] not in OF_LETTERS]
            headers.append([*own, *((n.encode(), v.encode()) for n, v in place.headers.items())])
        rows = batch.select(["key", "value", "timestamp"])
        return places, rows.append_column("headers", of_headers(headers))

    def _superseded(self, keys: pa.Array, places: list[Place]) -> np.ndarray[Any, Any]:
        """Returns which letters are superseded (L2): their keys have later records in the log."""
        old = np.zeros(len(places), bool)
        if not Inside(self._log).config.compact:
            return old
        of_mirror = np.array([one.source in self._mirrored for one in places], bool)
        partitions = np.array([one.partition for one in places], np.int64)
        offsets = np.array([one.offset for one in places], np.int64)
        there = of_mirror & (partitions < self._log.partitions)
        for p in np.unique(partitions[there]).tolist():
            mine = np.flatnonzero(of_mirror & (partitions == p))
            wanted = key_bytes(keys.take(to_arrow(mine)))
            last = self._last_offsets(p, pc.unique(wanted), int(offsets[mine].min()))
            at = to_numpy(pc.index_in(wanted, value_set=pc.unique(wanted)))
            old[mine] = last[at] >= offsets[mine]
        return old

    def _last_offsets(
        self, partition: int, wanted: pa.Array, after: int
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Returns the last offset of each key in a partition from an offset on; -1: none."""
        last = np.full(len(wanted), -1, np.int64)
        start = self._log.start_offsets()[partition]
        columns = ["key", "offset", "headers"]
        for batch in self._log.read(partition=partition, start=max(start, after), columns=columns):
            at = pc.index_in(key_bytes(batch.column("key")), value_set=wanted)
            hits = batch.filter(at.is_valid())
            if hits.num_rows:
                np.maximum.at(last, to_numpy(at.drop_null()), self._places_of(hits))
        return last

    def _places_of(self, batch: pa.RecordBatch) -> np.ndarray[Any, Any]:
        """Returns the offsets of records; for replayed letters, those that they had before."""
        offsets = to_numpy(batch.column("offset")).copy()
        if batch.column("headers").null_count < batch.num_rows:
            for i, some in enumerate(batch.column("headers").to_pylist()):
                place = place_of(some)
                if place is not None and place.source in self._mirrored:
                    offsets[i] = place.offset
        return offsets
