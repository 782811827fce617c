"""Reads a partition of a topic in pieces, and finds the keys of a log that its topic no longer has.

If a mirror stood still for so long that the source's cleaner may have removed tombstones before
they were read, only a comparison of all keys shows which deletes were missed:

R1. The stable ends of the topic are requested, then its keys are read up to there.
R2. A key whose last record in the log is a value, at or above both log start offsets, and of which
    the topic has no record, is *gone*. Below the topic's start nothing can be said: retention may
    have removed the record, which is no delete.
R3. For each of them the mirror appends a tombstone, in the commits of the records up to these ends
    (`Target`), each at a *free* offset: one that the topic has given, and for which it has no
    record any more. There are enough: a tombstone that was removed unread had such an offset, after
    all that the log had then. It comes after the key's records, and before any that are still to
    come, as none is below these ends.

The header `RECONCILED` tells such a tombstone from one of the topic. If a key is deleted while its
topic is read, the tombstone is above the ends, and is read later. Of both, only the last offset of
each key is kept in memory.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.bridge.decoding import Typed
from clog.bridge.target import RECONCILED, Target
from clog.bridge.topic import At, Cluster, Columns, Feed, Gathered
from clog.storage import Log, Records, SystemClock
from clog.storage.spi import key_bytes, of_headers, to_arrow, to_numpy

PIECE_BYTES: Final = 64 << 20
LASTS: Final = pa.schema([("key", pa.binary()), ("code", pa.int64())])
"""The last record of each key; the code is twice its offset, plus one for a tombstone."""


def pieces(
    cluster: Cluster,
    target: Target,
    partition: int,
    span: tuple[int, int],
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Columns | None, int]]:
    """Yields a topic's records of a range of offsets in pieces, each with the offset up to which it
    is complete.
    """
    start, end = span
    place = (target.topic.topic, partition)
    clock = SystemClock()
    feed = Feed(cluster, group="clog-mirror-verify")
    gathered = Gathered(needs_key=False)
    at, heard_ms = start, clock.monotonic_ms()
    try:
        feed.add({place: At(start)})
        while at < end and not should_stop():
            taken = feed.take()
            messages = [m for m in taken.messages.get(place[0], ()) if m.offset() < end]
            if messages:
                gathered.add(messages)
            if place in taken.lost:
                raise target.lost(cluster, [place[1]], {place[1]: At(at)})
            if place in taken.damaged:
                raise target.damaged(place[1], At(at), taken.damaged[place])
            moved = feed.positions([place])
            at = min(end, max(at, moved[place].offset)) if moved else at
            if messages or moved:
                heard_ms = clock.monotonic_ms()
            elif heard_ms + cluster.wait_ms < clock.monotonic_ms():
                raise cluster.unavailable(f"the records of topic {place[0]}")
            whole = gathered.size_bytes >= PIECE_BYTES
            if at > start and (whole or at == end):
                yield gathered.columns() if gathered.size_bytes else None, at
                gathered, start = Gathered(needs_key=False), at
    finally:
        feed.close()


def keyed(target: Target, records: Columns) -> Typed:
    """Returns records as tombstones in the log's columns: keys decode also where values do not."""
    assert target.decoder is not None
    rows = records.rows.drop_columns("value")
    rows = rows.append_column("value", pa.nulls(rows.num_rows, pa.binary()))
    where = records.partitions, records.offsets
    return target.decoder.decoded(Columns(rows, *where, 0, 0, 0), target.log)


def gone(
    cluster: Cluster,
    target: Target,
    ends: Mapping[int, int],
    now_ms: int,
    should_stop: Callable[[], bool],
) -> dict[int, pa.Table]:
    """Returns a tombstone for each key that is gone (R2), by partition, with the columns that the
    log takes; an empty table where there is none. Reads log and topic once, up to ``ends``.
    """
    found = {}
    for p, at in target.positions.items():
        start = _start(cluster, target, p)
        mine = _alive(target, p, start, at.offset)
        if mine.num_rows:
            theirs = _keys_of_topic(cluster, target, p, (start, ends[p]), should_stop)
            mine = mine.filter(pc.invert(pc.is_in(mine.column("key"), value_set=theirs)))
            mine = since(mine, _start(cluster, target, p))  # Retention may have gone on.
        found[p] = _tombstones(target, p, mine, now_ms)
    target.check(cluster)  # So all records that were read are from this topic.
    return found


def _start(cluster: Cluster, target: Target, partition: int) -> int:
    theirs = cluster.starts(target.topic.topic, [partition])[partition]
    return max(theirs, target.log.start_offsets()[partition])


def _alive(target: Target, partition: int, start: int, end: int) -> pa.Table:
    """Returns the keys of a partition of the log whose last record is a value (`LASTS`)."""
    last = LASTS.empty_table()
    if start < end:
        for batch in log_rows(target.log, partition, start, end, ["key", "value", "offset"]):
            last = merged(last, coded(pa.Table.from_batches([batch])))
    return alive(last)


def log_rows(log: Log, partition: int, start: int, end: int, columns: list[str]) -> Records:
    """Reads a span of a log's partition, of which the log start may have taken all or a part."""
    first = max(start, log.start_offsets()[partition])
    return log.read(partition=partition, start=first, end=max(first, end), columns=columns)


def _keys_of_topic(
    cluster: Cluster,
    target: Target,
    partition: int,
    span: tuple[int, int],
    should_stop: Callable[[], bool],
) -> pa.Array:
    """Returns each key of which a partition of the topic has a record."""
    known = pa.array([], pa.binary())
    for found, _ in pieces(cluster, target, partition, span, should_stop):
        if found is None:
            continue
        keys = found.rows.column("key")
        if target.decoder is not None:
            keys = keyed(target, found).rows.column("key")
        mine = [key_bytes(chunk) for chunk in keys.drop_null().chunks]
        known = pc.unique(pa.chunked_array([known, *mine], pa.binary()))
    return known


def _tombstones(target: Target, partition: int, gone: pa.Table, now_ms: int) -> pa.Table:
    """Returns a tombstone for each of these last records of their keys (`LASTS`)."""
    offsets = np.sort(to_numpy(gone.column("code")) // 2)
    first, end = (int(offsets[0]), int(offsets[-1]) + 1) if len(offsets) else (0, 0)
    there = log_rows(target.log, partition, first, end, ["key", "value", "offset"]).to_arrow()
    there = there.filter(pc.is_in(there.column("offset"), value_set=to_arrow(offsets)))
    count = there.num_rows
    return pa.table(
        {
            "key": there.column("key"),
            "value": pa.nulls(count, there.schema.field("value").type),
            "timestamp": to_arrow(np.full(count, 1000 * now_ms), pa.timestamp("us", "UTC")),
            "headers": of_headers([[(RECONCILED.encode(), None)]] * count),
        }
    )


def coded(rows: pa.Table) -> pa.Table:
    """Returns the keys and codes of records (`LASTS`)."""
    tombstones = to_numpy(rows.column("value").is_null())
    codes = 2 * to_numpy(rows.column("offset")) + tombstones
    keys = [key_bytes(chunk) for chunk in rows.column("key").chunks]
    return pa.table([pa.chunked_array(keys, pa.binary()), to_arrow(codes)], schema=LASTS)


def merged(one: pa.Table, other: pa.Table) -> pa.Table:
    """Returns the last record of each key; records without a key are left out."""
    rows = pa.concat_tables([one, other])
    rows = rows.filter(rows.column("key").is_valid())
    last = rows.group_by("key").aggregate([("code", "max")])
    return pa.table([last.column("key"), last.column("code_max")], schema=LASTS)


def since(rows: pa.Table, start: int) -> pa.Table:
    """Returns those at or above an offset."""
    return rows.filter(pc.greater_equal(rows.column("code"), 2 * start))


def alive(rows: pa.Table) -> pa.Table:
    """Returns those that are values."""
    return rows.filter(pc.equal(pc.bit_wise_and(rows.column("code"), 1), 0))
