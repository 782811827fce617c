"""What one pass read, dropped and wrote."""

from dataclasses import dataclass


@dataclass(slots=True)
class PassStats:
    """Counts of one pass over one partition.

    The records of the chunks that were replaced are all accounted for, and checked before each
    commit (`rewriting`)::

        records_read = records_written + records_superseded + tombstones_expired
                     + records_without_key + records_trimmed

    ``records_marked`` died in chunks that stay, for whatever reason: they are invisible and in none
    of the sums, their bytes go later (`marking`). Trimmed are records below the log start (S37).
    ``map_records`` are records read to fill the map, ``map_entries`` the keys in it.
    ``size_bytes_before`` and ``size_bytes_after`` are record bytes of the segments that the pass
    looked at; ``bytes_read`` and ``bytes_written`` went from and to the store. ``index_ms`` is the
    time of the map, ``clean_ms`` that of all after it.
    ``chunks_untouched`` were left alone by their key indexes, without reading their keys.
    Of several ``maps`` (S20) records and entries are the sums, utilization is that of the fullest;
    ``index_ms`` covers what each but the last found dead.
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
        """Adds the counts of records that another has, of a group that was committed."""
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
    """One pass.

    ``[first_dirty_offset, next_dirty_offset)`` is what became clean: empty in a pass for
    tombstones alone, and in one that was not ``complete``: it stopped because what it worked on had
    changed, or because the cleaner was to stop. What it had committed stays.
    """

    partition: int
    first_dirty_offset: int
    next_dirty_offset: int
    stats: PassStats
    complete: bool = True
