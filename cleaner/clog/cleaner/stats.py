"""What one pass read, dropped and wrote."""

from dataclasses import dataclass


@dataclass(slots=True)
class PassStats:
    """Counts of one pass over one partition. Sizes ending in ``_bytes`` of records are record bytes; ``bytes_read`` and ``bytes_written`` are
    those that went to and from the store.

    ``records_superseded + tombstones_expired + records_without_key + records_trimmed`` is what the pass removed:
    `records_removed`.
    """

    map_records: int = 0
    map_entries: int = 0
    map_utilization: float = 0.0
    records_read: int = 0
    records_superseded: int = 0
    tombstones_expired: int = 0
    tombstones_stamped: int = 0
    records_without_key: int = 0
    records_trimmed: int = 0
    records_written: int = 0
    segments_before: int = 0
    segments_after: int = 0
    size_bytes_before: int = 0
    size_bytes_after: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    groups_committed: int = 0
    index_ms: int = 0
    clean_ms: int = 0

    @property
    def records_removed(self) -> int:
        return (
            self.records_superseded
            + self.tombstones_expired
            + self.records_without_key
            + self.records_trimmed
        )


@dataclass(frozen=True, slots=True)
class PassResult:
    """One pass: ``[first_dirty_offset, next_dirty_offset)`` is what became clean (empty in a tombstone pass)."""

    partition: int
    first_dirty_offset: int
    next_dirty_offset: int
    stats: PassStats
