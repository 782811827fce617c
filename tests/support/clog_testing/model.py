"""A log that is obviously right: lists of records, whose index is the offset, and start offsets.

No files, no segments, no clock, no cleaning. Tests do the same to it and to a `Log`, and compare.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

Header = tuple[str, bytes | None]
Producer = tuple[str, int]
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Record:
    """One record. A null value is a tombstone, an empty one is not (S4)."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[Header, ...] = ()


Row = tuple[int, int, Record]
"""Partition, offset, record."""


class ModelLog:
    """The state of a log.

    Attributes:
        records: by partition all records ever appended; the index is the offset (S1).
        starts: by partition the log start offset.
        producers: by id the last sequence, its records and its answer.
    """

    def __init__(self, partitions: int) -> None:
        self.records: list[list[Record]] = [[] for _ in range(partitions)]
        self.starts = [0] * partitions
        self.producers: dict[str, tuple[int, list[tuple[int, Record]], dict[int, Range]]] = {}

    def append(
        self, records: Sequence[tuple[int, Record]], producer: Producer | None = None
    ) -> dict[int, Range]:
        """Appends (partition, record) in their order; returns half-open offsets by partition."""
        offsets: dict[int, Range] = {}
        for p, record in records:
            self.records[p].append(record)
            end = len(self.records[p])
            offsets[p] = (offsets.get(p, (end - 1, 0))[0], end)
        if producer is not None:
            self.producers[producer[0]] = (producer[1], list(records), offsets)
        return offsets

    def delete_records(self, before: Mapping[int, int]) -> dict[int, int]:
        """Raises log start offsets, -1 to the end (S36); returns them."""
        for p, offset in before.items():
            self.starts[p] = max(self.starts[p], self.end(p) if offset == -1 else offset)
        return {p: self.starts[p] for p in before}

    def end(self, p: int) -> int:
        """Returns the offset that the next record gets."""
        return len(self.records[p])

    def read(self, p: int, start: int | None = None, end: int | None = None) -> list[Row]:
        """Returns the records of ``[start, end)``, by default all from the log start on."""
        first = max(self.starts[p], self.starts[p] if start is None else start)
        last = self.end(p) if end is None else min(end, self.end(p))
        return [(p, offset, self.records[p][offset]) for offset in range(first, last)]

    def table(self, p: int) -> dict[bytes, Row]:
        """Returns the last record of each key, where it is no tombstone."""
        last = {row[2].key: row for row in self.read(p)}
        return {
            key: row for key, row in last.items() if key is not None and row[2].value is not None
        }

    def offset_for_time(self, p: int, time_ms: int) -> int | None:
        """Returns the first offset, in offset order, of a record that is not earlier (S39)."""
        return next((o for _, o, r in self.read(p) if r.timestamp_ms >= time_ms), None)


def rows_in(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """Returns what `Log.read` and `Table.to_batches` yield, as the model has it."""
    return [
        (
            row["partition"],
            row["offset"],
            Record(
                key=row["key"],
                value=row["value"],
                timestamp_ms=round(row["timestamp"].timestamp() * 1000),
                headers=tuple((h["key"], h["value"]) for h in row["headers"] or ()),
            ),
        )
        for batch in batches
        for row in batch.to_pylist()
    ]


def fields_of(record: Record) -> dict[str, object]:
    """Returns the record as `Log.append` takes it."""
    return {
        "key": record.key,
        "value": record.value,
        "timestamp": record.timestamp_ms,
        "headers": list(record.headers) or None,
    }
