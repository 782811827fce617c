"""A mirrored log compared with its topic, while both have cleaners of their own.

Two cleaners remove what they like when they like, so counts and hashes of records never agree. What
must agree, up to the end offsets that the log has at the beginning:

1. Every offset that both have is the same record, byte for byte.
2. The last value of each key is the same, deleted keys aside.
3. An offset that only one of them has is superseded by a later record of its key, or a tombstone,
   which a cleaner may remove in its time, or has no key and the log is compacted. What lies below
   either's log start offset, when all was read, is not compared.

A partition is read in pieces, of the topic first, then of the log at the same offsets; kept are the
last offset of each key, and the offsets that only one has. Nothing is written, and no mirror that
runs is disturbed.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.bridge.feed import PATIENCE_MS, At, Feed
from clog.bridge.records import columns_of, joined
from clog.bridge.target import LogSettings, Target, opened
from clog.bridge.topic import Cluster, address_of
from clog.storage import READ_SCHEMA, Log
from clog.storage.env import SystemClock, SystemIds, dataclass
from clog.storage.errors import InvalidInputError
from clog.storage.numpy_arrays import to_arrow, to_numpy
from clog.storage.types.columns import BYTES

_PIECE_BYTES: Final = 64 << 20
_SHOWN_MAX: Final = 10
_COLUMNS: Final = ("key", "value", "headers", "timestamp")
_LASTS: Final = pa.schema([("key", pa.binary()), ("code", pa.int64())])
"""The last record of each key: its offset, twice, and one more for a tombstone."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that must agree and does not.

    Attributes:
        partition: where.
        offset: at which offset.
        why: what is wrong; it names no key and no value.
    """

    partition: int
    offset: int
    why: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What a comparison found.

    Attributes:
        topic: its name.
        url: of the log.
        ends: by partition, up to where both were compared.
        same: how many offsets both have, with the same record.
        only_topic: how many only the topic has, as it may.
        only_log: how many only the log has, as it may.
        keys: how many keys have the same last value.
        differences: what must agree and does not, the first ten of each partition.
    """

    topic: str
    url: str
    ends: Mapping[int, int]
    same: int
    only_topic: int
    only_log: int
    keys: int
    differences: tuple[Difference, ...]


def verify(
    source: str,
    url: str,
    *,
    storage_options: Mapping[str, object] | None = None,
    kafka_options: Mapping[str, object] | None = None,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Verified:
    """Compares a mirrored log with its topic: every offset that both have, and the last value of
    each key. Reads all of both.

    Args:
        source: ``kafka://HOST:PORT/TOPIC``.
        url: the log that mirrors it.
        storage_options: of the log's filesystem.
        kafka_options: of librdkafka.
        on_progress: told how many more offsets were compared.

    Raises:
        SourceError: the topic is not the one that the log mirrors.
        InvalidInputError: a pattern, or a log that mirrors nothing.
    """
    address = address_of(source)
    if address.is_pattern:
        raise InvalidInputError(f"{address} may be several topics; compare one at a time")
    settings = LogSettings(
        config={}, storage_options=storage_options, clock=SystemClock(), ids=SystemIds()
    )
    cluster = Cluster(address.brokers, kafka_options or {})
    log = opened(url, settings)
    if log.schema != BYTES:
        raise InvalidInputError(
            f"{log.url} has columns, and a topic bytes; to compare them, mirror the topic into a"
            " log of bytes, too"
        )
    target = Target(log, cluster.topic(address.topic), address, settings)
    target.know()
    ends = {p: at.offset for p, at in target.positions.items()}
    found = [_Comparison(cluster, target, p, end).result(on_progress) for p, end in ends.items()]
    target.check(cluster)  # All that was read came from this topic.
    return Verified(
        address.topic,
        target.log.url,
        ends,
        sum(one.same for one in found),
        sum(one.only_topic for one in found),
        sum(one.only_log for one in found),
        sum(one.keys for one in found),
        tuple(difference for one in found for difference in one.differences),
    )


@dataclass(frozen=True, slots=True)
class _Found:
    same: int
    only_topic: int
    only_log: int
    keys: int
    differences: list[Difference]


class _Comparison:
    """One partition; a worker."""

    def __init__(self, cluster: Cluster, target: Target, partition: int, end: int) -> None:
        self._cluster = cluster
        self._target = target
        self._partition = partition
        self._end = end
        policy = cluster.configs(target.topic.topic).get("cleanup.policy")
        is_compacted = policy is not None and "compact" in policy.value
        self._keyless_go = target.needs_key or is_compacted
        self._same = 0
        self._differences: list[Difference] = []
        self._lasts = [_LASTS.empty_table(), _LASTS.empty_table()]
        self._singles: list[list[pa.Table]] = [[], []]

    def result(self, on_progress: Callable[[int], None]) -> _Found:
        """Reads and compares all of it."""
        at = self._start()
        for theirs, upto in self._pieces(at):
            mine = _log_rows(self._target.log, self._partition, at, upto)
            self._compare(theirs, mine)
            on_progress(upto - at)
            at = upto
        return self._judged(self._start())

    def _start(self) -> int:
        topic, log = self._target.topic.topic, self._target.log
        theirs = self._cluster.starts(topic, [self._partition])[self._partition]
        return min(self._end, max(theirs, log.start_offsets()[self._partition]))

    def _pieces(self, start: int) -> Iterator[tuple[pa.Table, int]]:
        """Yields the topic's records, and the offset up to which these are all."""
        place = (self._target.topic.topic, self._partition)
        clock = SystemClock()
        feed = Feed(self._cluster, group="clog-mirror-verify")
        parts: list[Any] = []
        at, heard_ms = start, clock.monotonic_ms()
        try:
            feed.add({place: At(start)})
            while at < self._end:
                taken = feed.take()
                messages = [m for m in taken.messages.get(place[0], ()) if m.offset() < self._end]
                if messages:
                    parts.append(columns_of(messages, needs_key=False))
                if place in taken.lost:
                    raise self._target.lost(self._cluster, [place[1]], {place[1]: At(at)})
                if place in taken.damaged:
                    raise self._target.damaged(place[1], At(at), taken.damaged[place])
                moved = feed.positions([place])
                at = min(self._end, max(at, moved[place].offset)) if moved else at
                if messages or moved:
                    heard_ms = clock.monotonic_ms()
                elif heard_ms + PATIENCE_MS < clock.monotonic_ms():
                    raise self._cluster.unavailable(f"the records of topic {place[0]}")
                whole = sum(part.size_bytes for part in parts) >= _PIECE_BYTES
                if at > start and (whole or at == self._end):
                    yield _topic_rows(parts), at
                    parts, start = [], at
        finally:
            feed.close()

    def _compare(self, theirs: pa.Table, mine: pa.Table) -> None:
        """Compares the records of a range of offsets."""
        sides = (theirs, mine)
        offsets = [to_numpy(side.column("offset")) for side in sides]
        both, *at = np.intersect1d(offsets[0], offsets[1], True, True)  # noqa: FBT003 - NumPy's
        pair = [side.take(to_arrow(index)) for side, index in zip(sides, at, strict=True)]
        if differ := _unequal(*pair):
            self._tell(both[differ], "is another record in the topic than in the log")
        self._same += len(both) - len(differ)
        for i, side in enumerate(sides):
            self._lasts[i] = _merged(self._lasts[i], _coded(side))
            single = ~np.isin(offsets[i], both, assume_unique=True)
            self._singles[i].append(_coded(side.filter(to_arrow(single))))

    def _judged(self, start: int) -> _Found:
        """Returns what was found, of offsets from where both begin by now."""
        known = _merged(*self._lasts)
        counts = []
        for i, owner in enumerate(("topic", "log")):
            singles = _from(pa.concat_tables([_LASTS.empty_table(), *self._singles[i]]), start)
            counts.append(singles.num_rows)
            self._tell(
                self._unexplained(singles, known),
                f"is in the {owner} alone, and nothing supersedes it",
            )
        alive = [_alive(_from(lasts, start)) for lasts in self._lasts]
        both = pa.concat_tables(alive).group_by("key").aggregate([("code", "min"), ("code", "max")])
        equal = pc.equal(both.column("code_min"), both.column("code_max"))
        in_both = alive[0].num_rows + alive[1].num_rows - both.num_rows
        unequal = both.filter(pc.invert(equal)).num_rows
        lone = [_without(alive[0], alive[1]), _without(alive[1], alive[0])]
        for i, owner in enumerate(("topic", "log")):
            self._tell(
                to_numpy(lone[i].column("code")) // 2,
                f"is the last value of its key in the {owner} alone",
            )
        told = {one.offset: one for one in reversed(self._differences)}
        first = [told[offset] for offset in sorted(told)][:_SHOWN_MAX]
        return _Found(self._same, counts[0], counts[1], in_both - unequal, first)

    def _unexplained(self, singles: pa.Table, known: pa.Table) -> np.ndarray[Any, Any]:
        """Returns the offsets of those that neither may have removed."""
        codes = to_numpy(singles.column("code"))
        at = pc.index_in(singles.column("key"), value_set=known.column("key").combine_chunks())
        last = to_numpy(known.column("code"))
        places = to_numpy(pc.fill_null(at, -1))
        keyless = places < 0
        superseded = np.zeros(len(codes), bool)
        superseded[~keyless] = last[places[~keyless]] // 2 > codes[~keyless] // 2
        explained = superseded | (codes % 2 == 1) | (keyless & self._keyless_go)
        return np.asarray(codes[~explained] // 2)

    def _tell(self, offsets: np.ndarray[Any, Any], why: str) -> None:
        made = (Difference(self._partition, int(offset), why) for offset in offsets[:_SHOWN_MAX])
        self._differences += made


def _topic_rows(parts: list[Any]) -> pa.Table:
    empty = pa.table({name: pa.nulls(0, READ_SCHEMA.field(name).type) for name in _COLUMNS})
    if not parts:
        return empty.append_column("offset", pa.nulls(0, pa.int64()))
    found = joined(parts)
    rows = pa.concat_tables([empty, found.rows], promote_options="default")
    return rows.select(_COLUMNS).append_column("offset", to_arrow(found.offsets))


def _log_rows(log: Log, partition: int, start: int, end: int) -> pa.Table:
    first = max(start, log.start_offsets()[partition])  # It may have risen meanwhile.
    batches = list(log.read(partition=partition, start=first, end=max(first, end)))
    return pa.Table.from_batches(batches, READ_SCHEMA).select([*_COLUMNS, "offset"])


def _unequal(theirs: pa.Table, mine: pa.Table) -> list[int]:
    """Returns which rows of two tables differ; by row only where a column does."""
    found: set[int] = set()
    for name in _COLUMNS:
        one, other = theirs.column(name), mine.column(name)
        if not one.equals(other):
            pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
            found |= {i for i, (a, b) in enumerate(pairs) if a != b}
    return sorted(found)


def _coded(rows: pa.Table) -> pa.Table:
    """Returns key and code of records."""
    tombstones = to_numpy(rows.column("value").is_null())
    codes = 2 * to_numpy(rows.column("offset")) + tombstones
    return pa.table([rows.column("key"), to_arrow(codes)], schema=_LASTS)


def _merged(one: pa.Table, other: pa.Table) -> pa.Table:
    """Returns the last record of each key; those without a key have none."""
    rows = pa.concat_tables([one, other])
    rows = rows.filter(rows.column("key").is_valid())
    last = rows.group_by("key").aggregate([("code", "max")])
    return pa.table([last.column("key"), last.column("code_max")], schema=_LASTS)


def _from(rows: pa.Table, start: int) -> pa.Table:
    return rows.filter(pc.greater_equal(rows.column("code"), 2 * start))


def _alive(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.equal(pc.bit_wise_and(rows.column("code"), 1), 0))


def _without(rows: pa.Table, others: pa.Table) -> pa.Table:
    """Returns those whose key is not the other's with the same last record."""
    at = pc.index_in(rows.column("key"), value_set=others.column("key").combine_chunks())
    theirs = pc.fill_null(others.column("code").take(at), -1)
    return rows.filter(pc.not_equal(rows.column("code"), theirs))
