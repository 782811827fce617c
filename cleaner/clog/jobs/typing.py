"""A log of bytes copied into a typed one, each record exactly once, by as many calls as one likes:
each call copies what was appended since the last one. Records are decoded by the bridge
(`clog.bridge.decoding`).

Partition by partition, in batches:

D1. Records are read from the offset that the target's positions of the id give, and decoded.
D2. Records that cannot be decoded, or do not fit the target's schema, are appended unchanged to the
    dead-letter log, in one transaction with its position there. After a crash: D1 again; letters
    below that position exist already, and are left out.
D3. The others are appended to the target in one transaction with the position. After a crash before
    it: D1 again; after it: the next batch.

Tombstones stay tombstones. Records are placed by their keys, whose hash as a number may differ from
that as text; those of one key keep their order, as they are in one partition of the source. Without
a dead-letter log the first bad record ends the copy; the batches before it stay.
"""

from collections.abc import Callable

import pyarrow as pa

from clog.bridge.decoding import (
    LOG_ID,
    OFFSET,
    PARTITION,
    TIMEOUT_MS,
    Typed,
    batches_of,
    check_letters,
    letters_of,
    typed,
)
from clog.bridge.values import Decode, json_values, plain_keys
from clog.storage import Log
from clog.storage.env import dataclass
from clog.storage.errors import InvalidInputError
from clog.storage.numpy_arrays import to_numpy
from clog.storage.read.ordered import late_keys, without_keys
from clog.storage.spi import Inside
from clog.storage.types.columns import BYTES


@dataclass(frozen=True, slots=True)
class Converted:
    """What one call did.

    Attributes:
        records: appended to the target, including tombstones.
        tombstones: those of them without a value.
        dead_letters: appended to the dead-letter log.
    """

    records: int = 0
    tombstones: int = 0
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class _Copy:
    source: Log
    target: Log
    values: Decode
    keys: Decode
    dead_letters: Log | None
    id: str


def convert(
    source: Log,
    target: Log,
    *,
    values: Decode = json_values,
    keys: Decode = plain_keys,
    dead_letters: Log | None = None,
    id: str | None = None,
    more: Callable[[int], None] = lambda _: None,
) -> Converted:
    """Appends to a typed log the records of a log of bytes that it does not have yet.

    Args:
        source: the log of bytes.
        target: the typed log.
        values: how values are decoded: `json_values`, or what `avro_values` returns.
        keys: how keys are decoded; by default text and binary stay as they are, the rest is JSON.
        dead_letters: a log for records that cannot be decoded or do not fit, with the reason in
            their headers; None: such a record is an error.
        id: under which the target remembers how far the copy has come; None: derived from the
            source.
        more: called with the number of records done so far.

    Raises:
        InvalidInputError: a log is of the wrong kind; or, without ``dead_letters``, a record does
            not fit: the message says which and why.
        TransactionFencedError: another process is making the same copy.
        OffsetOutOfRangeError, NotFoundError: the source has removed records or tombstones that the
            target does not have: copy into a new log.

    >>> source = Log.create("memory://help-of-convert", partitions=1)
    >>> _ = source.append([{"key": "tea", "value": '{"price": 3}'}])
    >>> schema = {"key": "string", "value": {"price": "int64"}}
    >>> prices = Log.create("memory://help-of-convert-prices", schema=schema)
    >>> convert(source, prices).records
    1
    >>> prices.table().get("tea")
    {'price': 3}
    """
    _check_logs(source, target, dead_letters)
    copy = _Copy(source, target, values, keys, dead_letters, id or f"convert-{source.id}")
    positions = target.positions(copy.id).get(source.id, {})
    written = {} if dead_letters is None else dead_letters.positions(copy.id).get(source.id, {})
    done = Converted()
    ends = source.stable_offsets()
    late = late_keys(source.handle.store, source.handle.manifest())
    for p, end in ends.items():
        start = positions.get(p)
        if start is not None and start >= end:
            continue
        for batch, position in batches_of(source, p, start, end):
            new = _converted(copy, without_keys(batch, late.get(p)), p, position, written.get(p, 0))
            done = Converted(
                done.records + new.records,
                done.tombstones + new.tombstones,
                done.dead_letters + new.dead_letters,
            )
            more(batch.num_rows)
    return done


def _check_logs(source: Log, target: Log, dead_letters: Log | None) -> None:
    if source.schema != BYTES:
        raise InvalidInputError(
            f"{source.url} is already typed: clog copy copies it, evolve changes its schema"
        )
    if target.schema == BYTES:
        raise InvalidInputError(f"{target.url} is a log of bytes; create one with a schema")
    if dead_letters is not None:
        check_letters(dead_letters)


def _converted(
    copy: _Copy, batch: pa.RecordBatch, p: int, position: int, written: int
) -> Converted:
    """Does one batch (D1 to D3); dead letters below ``written`` exist already."""
    found = _typed(copy, batch)
    rows, reasons = found.rows, found.reasons
    offsets = to_numpy(batch.column("offset"))
    letters = {i: why for i, why in reasons.items() if offsets[i] >= written}
    if reasons and copy.dead_letters is None:
        at = min(reasons)
        raise InvalidInputError(
            f"offset {offsets[at]} of partition {p} of {copy.source.url} {reasons[at]}; nothing"
            " from that offset on was appended; give a dead-letter log for such records"
        )
    if letters and copy.dead_letters is not None:
        with copy.dead_letters.transaction(copy.id, TIMEOUT_MS) as t:
            said = {LOG_ID: copy.source.id, PARTITION: p}
            records = pa.Table.from_batches([batch])
            t.append(letters_of(records, letters, lambda i: {**said, OFFSET: offsets[i]}))
            t.positions(copy.source, {p: position})
    with copy.target.transaction(copy.id, TIMEOUT_MS) as t:
        if rows.num_rows:
            t.append(rows)
        t.positions(copy.source, {p: position})
    return Converted(rows.num_rows, rows.column("value").null_count, len(letters))


def _typed(copy: _Copy, batch: pa.RecordBatch) -> Typed:
    """Returns the records as the target has them, and why the others do not fit."""
    copy.target.handle.refresh()
    inside = Inside(copy.target)
    decoders = {"key": copy.keys, "value": copy.values}
    return typed(pa.Table.from_batches([batch]), decoders, inside.schema.field, inside.config)
