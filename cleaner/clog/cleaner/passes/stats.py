"""What one pass read, dropped and wrote."""

from dataclasses import dataclass


@dataclass(slots=True)
class PassStats:
    """Counts of one pass over one partition. Sizes are record bytes.

    The records of the chunks that were replaced are all accounted for, and checked before each
    commit (`rewriter`)::

        records_read = records_written + records_superseded + tombstones_expired
                     + records_without_key + records_trimmed

    Attributes:
        maps: how many offset maps the pass filled; more than one where its keys did not fit.
        map_records: records read to fill them.
        map_entries: keys in them.
        map_utilization: how full the fullest was, from 0 to 1.
        records_read: live records of the chunks that were replaced.
        records_superseded: those that a later record of their key replaced.
        tombstones_expired: those past their delete horizon.
        tombstones_stamped: tombstones that got their delete horizon.
        records_without_key: dropped, as compaction needs keys.
        records_trimmed: those below the log start offset.
        records_written: those that stay.
        records_marked: records that died in chunks that stay, and are in none of the sums: a bitmap
            hides them, and their bytes go later.
        segments_before: segments that the pass looked at.
        segments_after: what is left of them.
        size_bytes_before: of these segments.
        size_bytes_after: of what is left of them.
        bytes_read: fetched from the store.
        bytes_written: sent to the store.
        groups_committed: groups of segments whose outcome was committed.
        chunks_untouched: left alone by their key indexes, without reading their keys.
        index_ms: time to fill the maps, and to find what all but the last of them found dead.
        clean_ms: time of all that came after.
    """

    maps: int = 0
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
    records_marked: int = 0
    segments_before: int = 0
    segments_after: int = 0
    size_bytes_before: int = 0
    size_bytes_after: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    groups_committed: int = 0
    chunks_untouched: int = 0
    index_ms: int = 0
    clean_ms: int = 0

    def add_records(self, other: "PassStats") -> None:
        """Adds the counts of records of ``other``, those of a group that was committed."""
        for name in _RECORDS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def records_removed(self) -> int:
        """What the pass removed, for whatever reason."""
        return (
            self.records_superseded
            + self.tombstones_expired
            + self.records_without_key
            + self.records_trimmed
        )


_RECORDS = (
    "records_read",
    "records_superseded",
    "tombstones_expired",
    "tombstones_stamped",
    "records_without_key",
    "records_trimmed",
    "records_written",
    "records_marked",
)


@dataclass(frozen=True, slots=True)
class PassResult:
    """One pass over one partition.

    Attributes:
        partition: which one.
        first_dirty_offset: where the dirty part began.
        next_dirty_offset: where it begins now: what lies between the two became clean. Equal in a
            pass for tombstones alone, and in one that is not complete.
        stats: what it read, dropped and wrote.
        complete: False if it stopped because its sources had changed or the cleaner was stopped.
            What it had committed stays.
    """

    partition: int
    first_dirty_offset: int
    next_dirty_offset: int
    stats: PassStats
    complete: bool = True
