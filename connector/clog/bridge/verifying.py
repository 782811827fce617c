"""A mirrored log compared with its topic, while both have cleaners of their own.

Two cleaners remove what they like when they like, so counts and hashes of records never agree. What
must agree, up to the end offsets that the log has at the beginning:

1. Every offset that both have is the same record, byte for byte.
2. The last value of each key is the same, deleted keys aside.
3. An offset that only one of them has is superseded by a later record of its key, or a tombstone,
   which a cleaner may remove in its time, or has no key and the log is compacted. What lies below
   either's log start offset, when all was read, is not compared.
4. Of a log of columns, the topic's records are decoded as the mirror does, and compared as columns.
   One that does not decode is a gap in the log, and among the dead letters, where these are given;
   in the topic it supersedes those of its key, in the log none.

A partition is read in pieces, of the topic first, then of the log at the same offsets; kept are the
last offset of each key, and the offsets that only one has. Nothing is written, and no mirror that
runs is disturbed.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.bridge.decoding import Decoder, Decoding, letter_offsets
from clog.bridge.target import LogSettings, Target
from clog.bridge.topic import WAIT_MS, At, Cluster, Columns, Feed, Gathered, address_of
from clog.storage import Log
from clog.storage.env import SystemClock, dataclass
from clog.storage.errors import InvalidInputError
from clog.storage.keys.hashing import key_bytes
from clog.storage.numpy_arrays import to_arrow, to_numpy

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
        undecodable: how many offsets of the topic do not decode, so that the log lacks them.
        differences: what must agree and does not, the first ten of each partition.
    """

    topic: str
    url: str
    ends: Mapping[int, int]
    same: int
    only_topic: int
    only_log: int
    keys: int
    undecodable: int
    differences: tuple[Difference, ...]


def verify(
    source: str,
    url: str,
    *,
    decode: Decoding | str | None = None,
    dead_letters: str | None = None,
    storage_options: Mapping[str, object] | None = None,
    kafka_options: Mapping[str, object] | None = None,
    wait_ms: int = WAIT_MS,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Verified:
    """Compares a mirrored log with its topic: every offset that both have, and the last value of
    each key. Reads all of both.

    Args:
        source: ``kafka://HOST:PORT/TOPIC``.
        url: the log that mirrors it.
        decode: of a log of columns, as the mirror has it.
        dead_letters: the URL of the log that must have what does not decode; None: not asked.
        storage_options: of the filesystem of the logs.
        kafka_options: of librdkafka.
        wait_ms: as of `mirror`.
        on_progress: called with how many more offsets were compared.

    Raises:
        SourceError: the topic is not the one that the log mirrors, or has another schema.
        InvalidInputError: a pattern, a log that mirrors nothing, or one of columns without
            ``decode``.

    >>> verify("kafka://localhost:9092/orders", "orders").differences  # doctest: +SKIP
    ()
    """
    address = address_of(source)
    if address.is_pattern:
        raise InvalidInputError(f"{address} may be several topics; compare one at a time")
    settings = LogSettings(storage_options=storage_options)
    cluster = Cluster(address.brokers, kafka_options or {}, wait_ms)
    decoding = Decoding(values=decode) if isinstance(decode, str) else decode
    decoder = None if decoding is None else Decoder(decoding, address.topic, evolves=False)
    letters = None if dead_letters is None else settings.opened(dead_letters)
    log, topic = settings.opened(url), cluster.topic(address.topic)
    target = Target(log, topic, address, settings, decoder=decoder, letters=letters)
    target.know()
    ends = {p: at.offset for p, at in target.positions.items()}
    counts, differences = Counter[str](), list[Difference]()
    for p, end in ends.items():
        comparison = _Comparison(cluster, target, p, end)
        differences += comparison.differences(on_progress)
        counts += comparison.counts
    target.check(cluster)  # All that was read came from this topic.
    names = ("same", "only_topic", "only_log", "keys", "undecodable")
    told = {name: counts[name] for name in names}
    return Verified(address.topic, log.url, ends, **told, differences=tuple(differences))


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
        self.counts = Counter[str]()
        self._differences: list[Difference] = []
        self._lasts = [_LASTS.empty_table(), _LASTS.empty_table()]
        self._singles: list[list[pa.Table]] = [[], []]
        self._undecodable: list[int] = []
        self._hidden = _LASTS.empty_table()

    def differences(self, on_progress: Callable[[int], None]) -> list[Difference]:
        """Reads and compares all of it; what it counted is in `counts` then."""
        at = self._start()
        for found, upto in self._pieces(at):
            mine = _log_rows(self._target.log, self._partition, at, upto)
            self._compare(self._topic_rows(found, mine.schema), mine)
            on_progress(upto - at)
            at = upto
        return self._judged(self._start())

    def _start(self) -> int:
        topic, log = self._target.topic.topic, self._target.log
        theirs = self._cluster.starts(topic, [self._partition])[self._partition]
        return min(self._end, max(theirs, log.start_offsets()[self._partition]))

    def _pieces(self, start: int) -> Iterator[tuple[Columns | None, int]]:
        """Yields the topic's records, and the offset up to which these are all."""
        place = (self._target.topic.topic, self._partition)
        clock = SystemClock()
        feed = Feed(self._cluster, group="clog-mirror-verify")
        gathered = Gathered(needs_key=False)
        at, heard_ms = start, clock.monotonic_ms()
        try:
            feed.add({place: At(start)})
            while at < self._end:
                taken = feed.take()
                messages = [m for m in taken.messages.get(place[0], ()) if m.offset() < self._end]
                if messages:
                    gathered.add(messages)
                if place in taken.lost:
                    raise self._target.lost(self._cluster, [place[1]], {place[1]: At(at)})
                if place in taken.damaged:
                    raise self._target.damaged(place[1], At(at), taken.damaged[place])
                moved = feed.positions([place])
                at = min(self._end, max(at, moved[place].offset)) if moved else at
                if messages or moved:
                    heard_ms = clock.monotonic_ms()
                elif heard_ms + self._cluster.wait_ms < clock.monotonic_ms():
                    raise self._cluster.unavailable(f"the records of topic {place[0]}")
                whole = gathered.size_bytes >= _PIECE_BYTES
                if at > start and (whole or at == self._end):
                    yield gathered.columns() if gathered.size_bytes else None, at
                    gathered, start = Gathered(needs_key=False), at
        finally:
            feed.close()

    def _topic_rows(self, found: Columns | None, schema: pa.Schema) -> pa.Table:
        """Returns the topic's records as the log would have them; notes the undecodable."""
        if found is None:
            return schema.empty_table()
        decoder, log = self._target.decoder, self._target.log
        rows, offsets = found.rows, found.offsets
        if decoder is not None:
            made = decoder.decoded(found, log)
            bad = np.array(sorted(made.reasons), np.int64)
            self._undecodable += offsets[bad].tolist()
            # Without a value it may have a key, by which the topic's cleaner goes.
            lost = rows.take(to_arrow(bad)).drop_columns("value")
            lost = lost.append_column("value", pa.nulls(len(bad), pa.binary()))
            where = (found.partitions[bad], offsets[bad])
            keyed = decoder.decoded(Columns(lost, *where, 0, 0, 0), log)
            hidden = keyed.rows.append_column("offset", to_arrow(offsets[bad][keyed.places]))
            self._hidden = _merged(self._hidden, _coded(hidden))
            rows, offsets = made.rows, offsets[made.places]
        rows = pa.concat_tables([schema.empty_table(), rows], promote_options="default")
        return rows.select(_COLUMNS).append_column("offset", to_arrow(offsets))

    def _compare(self, theirs: pa.Table, mine: pa.Table) -> None:
        """Compares the records of a range of offsets."""
        sides = (theirs, mine)
        offsets = [to_numpy(side.column("offset")) for side in sides]
        both, *at = np.intersect1d(offsets[0], offsets[1], True, True)  # noqa: FBT003 - NumPy's
        pair = [side.take(to_arrow(index)) for side, index in zip(sides, at, strict=True)]
        if differ := _unequal(*pair):
            self._tell(both[differ], "is another record in the topic than in the log")
        self.counts["same"] += len(both) - len(differ)
        for i, side in enumerate(sides):
            self._lasts[i] = _merged(self._lasts[i], _coded(side))
            single = ~np.isin(offsets[i], both, assume_unique=True)
            self._singles[i].append(_coded(side.filter(to_arrow(single))))

    def _judged(self, start: int) -> list[Difference]:
        """Returns the differences, of offsets from where both begin by now."""
        self._judge_undecodable(start)  # The more exact words come first.
        known = _merged(_merged(*self._lasts), self._hidden)
        for i, owner in enumerate(("topic", "log")):
            singles = _from(pa.concat_tables([_LASTS.empty_table(), *self._singles[i]]), start)
            self.counts[f"only_{owner}"] = singles.num_rows
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
        lone[1] = _newer(lone[1], self._hidden)
        for i, owner in enumerate(("topic", "log")):
            self._tell(
                to_numpy(lone[i].column("code")) // 2,
                f"is the last value of its key in the {owner} alone",
            )
        self.counts["keys"] = in_both - unequal
        told = {one.offset: one for one in reversed(self._differences)}
        return [told[offset] for offset in sorted(told)][:_SHOWN_MAX]

    def _judge_undecodable(self, start: int) -> None:
        """Compares what does not decode with the log, and with the dead letters, if given."""
        found = np.array([offset for offset in self._undecodable if offset >= start], np.int64)
        self.counts["undecodable"] = len(found)
        mine = [to_numpy(rows.column("code")) // 2 for rows in self._singles[1]]
        there = np.isin(found, np.concatenate([found[:0], *mine]))
        self._tell(found[there], "does not decode in the topic, and is a record of the log")
        if len(found) and self._target.letters is not None:
            place = self._target.topic.source, self._partition
            kept = np.isin(found, letter_offsets(self._target.letters, *place))
            self._tell(found[~kept], "does not decode, and is not among the dead letters")

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


def _log_rows(log: Log, partition: int, start: int, end: int) -> pa.Table:
    first = max(start, log.start_offsets()[partition])  # It may have risen meanwhile.
    columns = [*_COLUMNS, "offset"]
    return log.read(
        partition=partition, start=first, end=max(first, end), columns=columns
    ).to_arrow()


def _unequal(theirs: pa.Table, mine: pa.Table) -> list[int]:
    """Returns which rows of two tables differ; by row only where a column does."""
    found: set[int] = set()
    for name in _COLUMNS:
        one, other = theirs.column(name), mine.column(name)
        if not one.equals(other):
            pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
            # What is no number equals nothing, and is the same all the same.
            found |= {i for i, (a, b) in enumerate(pairs) if a != b and repr(a) != repr(b)}
    return sorted(found)


def _coded(rows: pa.Table) -> pa.Table:
    """Returns key and code of records."""
    tombstones = to_numpy(rows.column("value").is_null())
    codes = 2 * to_numpy(rows.column("offset")) + tombstones
    keys = [key_bytes(chunk) for chunk in rows.column("key").chunks]
    return pa.table([pa.chunked_array(keys, pa.binary()), to_arrow(codes)], schema=_LASTS)


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
    return rows.filter(pc.not_equal(rows.column("code"), _codes(rows, others)))


def _newer(rows: pa.Table, others: pa.Table) -> pa.Table:
    """Returns those whose key has no later record among the others."""
    return rows.filter(pc.greater(rows.column("code"), _codes(rows, others)))


def _codes(rows: pa.Table, others: pa.Table) -> pa.ChunkedArray:
    """Returns the codes that the others have for the rows' keys; -1 where they have none."""
    at = pc.index_in(rows.column("key"), value_set=others.column("key").combine_chunks())
    return pc.fill_null(others.column("code").take(at), -1)
