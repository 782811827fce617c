"""Compares a mirrored log with its topic, although each has its own cleaner.

The two cleaners remove different records at different times, so counts and hashes never agree. The
following must agree, up to the log's end offsets at the beginning:

1. Every offset that both have holds the same record, byte for byte.
2. The last value of each key is the same, except for deleted keys.
3. A record that only one of them has is superseded by a later one of its key, or is a tombstone,
   which a cleaner may remove in time, or has no key and the log is compacted. Offsets below either
   log start offset, as of the end of the read, are not compared.
4. If the log has columns, the topic's records are decoded as the mirror does, and compared as
   columns. An undecodable one is a gap in the log, and among the dead letters if these are given;
   in the topic it supersedes earlier records of its key, in the log it does not.

A partition is read in pieces, first from the topic, then from the log at the same offsets; only the
last offset of each key and the offsets that one side lacks are kept. Nothing is written, and a
running mirror is not disturbed.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.bridge.comparing import (
    LASTS,
    alive,
    coded,
    keyed,
    log_rows,
    merged,
    pieces,
    since,
)
from clog.bridge.decoding import Decoder, Decoding, letter_offsets
from clog.bridge.target import MirrorSettings, Target, is_reconciled
from clog.bridge.topic import WAIT_MS, Cluster, Columns, address_of
from clog.storage import InvalidInputError
from clog.storage.spi import dataclass, to_arrow, to_numpy

_SHOWN_MAX: Final = 10
_COLUMNS: Final = ("key", "value", "headers", "timestamp")


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that must agree but does not.

    Attributes:
        partition: the partition where it is.
        offset: the offset where it is.
        why: what is wrong, without keys or values.
    """

    partition: int
    offset: int
    why: str


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a comparison.

    Attributes:
        topic: the topic's name.
        url: the log's URL.
        ends: by partition, the offset up to which both were compared.
        same: how many offsets both have, with the same record.
        only_topic: how many offsets only the topic has, which is allowed.
        only_log: how many offsets only the log has, which is allowed.
        keys: how many keys have the same last value.
        undecodable: how many of the topic's records do not decode, so that the log lacks them.
        differences: what must agree but does not, the first ten of each partition.
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
        decode: for a log of columns, the same as for its mirror.
        dead_letters: the URL of the log that must have the undecodable records; None: not checked.
        storage_options: options of the logs' filesystem.
        kafka_options: librdkafka's.
        wait_ms: see `mirror`.
        on_progress: called with how many more offsets were compared.

    Raises:
        SourceError: the topic is not the one that the log mirrors, or has another schema.
        InvalidInputError: the source is a pattern, the log is not a mirror, or it has columns and
            ``decode`` is missing.

    >>> verify("kafka://localhost:9092/orders", "orders").differences  # doctest: +SKIP
    ()
    """
    address = address_of(source)
    if address.is_pattern:
        raise InvalidInputError(f"{address} may be several topics; compare one at a time")
    settings = MirrorSettings(storage_options=storage_options)
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
    target.check(cluster)  # So all records read are from this topic.
    names = ("same", "only_topic", "only_log", "keys", "undecodable")
    counted = {name: counts[name] for name in names}
    return Verified(address.topic, log.url, ends, **counted, differences=tuple(differences))


class _Comparison:
    """Compares one partition; a worker."""

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
        self._lasts = [LASTS.empty_table(), LASTS.empty_table()]
        self._singles: list[list[pa.Table]] = [[], []]
        self._undecodable: list[int] = []
        self._hidden = LASTS.empty_table()

    def differences(self, on_progress: Callable[[int], None]) -> list[Difference]:
        """Reads and compares all of it; then `counts` has the numbers."""
        at = self._start()
        place = self._cluster, self._target, self._partition
        for found, upto in pieces(*place, (at, self._end)):
            mine = log_rows(
                self._target.log, self._partition, at, upto, [*_COLUMNS, "offset"]
            ).to_arrow()
            self._compare(self._topic_rows(found, mine.schema), mine)
            on_progress(upto - at)
            at = upto
        return self._judged(self._start())

    def _start(self) -> int:
        topic, log = self._target.topic.topic, self._target.log
        theirs = self._cluster.starts(topic, [self._partition])[self._partition]
        return min(self._end, max(theirs, log.start_offsets()[self._partition]))

    def _topic_rows(self, found: Columns | None, schema: pa.Schema) -> pa.Table:
        """Returns the topic's records as the log would have them; notes undecodable ones."""
        if found is None:
            return schema.empty_table()
        decoder, log = self._target.decoder, self._target.log
        rows, offsets = found.rows, found.offsets
        if decoder is not None:
            made = decoder.decoded(found, log)
            bad = np.array(sorted(made.reasons), np.int64)
            self._undecodable += offsets[bad].tolist()
            # Its key may decode without the value; the topic's cleaner uses that key.
            lost = Columns(rows.take(to_arrow(bad)), found.partitions[bad], offsets[bad], 0, 0, 0)
            known = keyed(self._target, lost)
            hidden = known.rows.append_column("offset", to_arrow(offsets[bad][known.places]))
            self._hidden = merged(self._hidden, coded(hidden))
            rows, offsets = made.stored(schema.field("value")), offsets[made.places]
        rows = pa.concat_tables([schema.empty_table(), rows], promote_options="default")
        return rows.select(_COLUMNS).append_column("offset", to_arrow(offsets))

    def _compare(self, theirs: pa.Table, mine: pa.Table) -> None:
        """Compares the records of a range of offsets."""
        sides = (theirs, mine)
        offsets = [to_numpy(side.column("offset")) for side in sides]
        both, *at = np.intersect1d(offsets[0], offsets[1], True, True)  # noqa: FBT003 - NumPy's
        pair = [side.take(to_arrow(index)) for side, index in zip(sides, at, strict=True)]
        # A mirror's own tombstone is at an offset of which another replica may still have a record.
        if differ := [i for i in _unequal(*pair) if not is_reconciled(pair[1][i : i + 1])[0]]:
            self._add_differences(
                both[differ], "is a different record in the topic than in the log"
            )
        self.counts["same"] += len(both) - len(differ)
        for i, side in enumerate(sides):
            self._lasts[i] = merged(self._lasts[i], coded(side))
            single = ~np.isin(offsets[i], both, assume_unique=True)
            self._singles[i].append(coded(side.filter(to_arrow(single))))

    def _judged(self, start: int) -> list[Difference]:
        """Returns the differences from the offset on where both now begin."""
        self._judge_undecodable(start)  # First, as its reasons are more precise.
        known = merged(merged(*self._lasts), self._hidden)
        for i, owner in enumerate(("topic", "log")):
            singles = since(pa.concat_tables([LASTS.empty_table(), *self._singles[i]]), start)
            self.counts[f"only_{owner}"] = singles.num_rows
            self._add_differences(
                self._unexplained(singles, known),
                f"is only in the {owner}, and nothing supersedes it",
            )
        lasts = [alive(since(last, start)) for last in self._lasts]
        both = pa.concat_tables(lasts).group_by("key").aggregate([("code", "min"), ("code", "max")])
        equal = pc.equal(both.column("code_min"), both.column("code_max"))
        in_both = lasts[0].num_rows + lasts[1].num_rows - both.num_rows
        unequal = both.filter(pc.invert(equal)).num_rows
        lone = [_without(lasts[0], lasts[1]), _without(lasts[1], lasts[0])]
        lone[1] = _newer(lone[1], self._hidden)
        for i, owner in enumerate(("topic", "log")):
            self._add_differences(
                to_numpy(lone[i].column("code")) // 2,
                f"is the last value of its key only in the {owner}",
            )
        self.counts["keys"] = in_both - unequal
        first = {one.offset: one for one in reversed(self._differences)}
        return [first[offset] for offset in sorted(first)][:_SHOWN_MAX]

    def _judge_undecodable(self, start: int) -> None:
        """Compares undecodable records with the log, and with the dead letters, if given."""
        found = np.array([offset for offset in self._undecodable if offset >= start], np.int64)
        self.counts["undecodable"] = len(found)
        mine = [to_numpy(rows.column("code")) // 2 for rows in self._singles[1]]
        there = np.isin(found, np.concatenate([found[:0], *mine]))
        self._add_differences(
            found[there], "cannot be decoded in the topic, but is a record of the log"
        )
        if len(found) and self._target.letters is not None:
            place = self._target.topic.source, self._partition
            kept = np.isin(found, letter_offsets(self._target.letters, *place))
            self._add_differences(
                found[~kept], "cannot be decoded, but is not among the dead letters"
            )

    def _unexplained(self, singles: pa.Table, known: pa.Table) -> np.ndarray[Any, Any]:
        """Returns the offsets of those that neither cleaner may have removed."""
        codes = to_numpy(singles.column("code"))
        at = pc.index_in(singles.column("key"), value_set=known.column("key").combine_chunks())
        last = to_numpy(known.column("code"))
        places = to_numpy(pc.fill_null(at, -1))
        keyless = places < 0
        superseded = np.zeros(len(codes), bool)
        superseded[~keyless] = last[places[~keyless]] // 2 > codes[~keyless] // 2
        explained = superseded | (codes % 2 == 1) | (keyless & self._keyless_go)
        return np.asarray(codes[~explained] // 2)

    def _add_differences(self, offsets: np.ndarray[Any, Any], why: str) -> None:
        made = (Difference(self._partition, int(offset), why) for offset in offsets[:_SHOWN_MAX])
        self._differences += made


def _unequal(theirs: pa.Table, mine: pa.Table) -> list[int]:
    """Returns which rows of two tables differ; compares row by row only columns that differ."""
    found: set[int] = set()
    for name in _COLUMNS:
        one, other = theirs.column(name), mine.column(name)
        if not one.equals(other):
            pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
            # NaN does not equal NaN, but is the same value.
            found |= {i for i, (a, b) in enumerate(pairs) if a != b and repr(a) != repr(b)}
    return sorted(found)


def _without(rows: pa.Table, others: pa.Table) -> pa.Table:
    """Returns the rows whose key has another last record, or none, among the others."""
    return rows.filter(pc.not_equal(rows.column("code"), _codes(rows, others)))


def _newer(rows: pa.Table, others: pa.Table) -> pa.Table:
    """Returns the rows whose key has no later record among the others."""
    return rows.filter(pc.greater(rows.column("code"), _codes(rows, others)))


def _codes(rows: pa.Table, others: pa.Table) -> pa.ChunkedArray:
    """Returns the others' codes for the rows' keys; -1 if there is none."""
    at = pc.index_in(rows.column("key"), value_set=others.column("key").combine_chunks())
    return pc.fill_null(others.column("code").take(at), -1)
