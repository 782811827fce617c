"""How far a pass is, for whoever watches it from another thread.

The pass alone writes it, and each value by itself is whole, so nothing is locked.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from clog.cleaner.compaction.judge import JudgedSegment
from clog.cleaner.compaction.stats import PassStats
from clog.cleaner.metered_store import MeteredStore

MAPPING = "mapping"
CLEANING = "cleaning"


@dataclass(slots=True)
class PassProgress:
    """One pass, under way.

    Attributes:
        stats: what it counted so far.
        phase: `MAPPING` the dirty keys, then `CLEANING` segment by segment.
        phase_began_ms: when, by the monotonic time of the pass's clock.
        records_total: records that the phase goes through.
    """

    stats: PassStats = field(default_factory=PassStats)
    phase: str = MAPPING
    phase_began_ms: int = 0
    records_total: int = 0
    _records_judged: int = 0
    _store: MeteredStore | None = None

    @property
    def records_done(self) -> int:
        """Of ``records_total``."""
        return self.stats.map_records if self.phase == MAPPING else self._records_judged

    @property
    def moved_ms(self) -> int | None:
        """When the pass last moved a byte, or began a phase; None where nobody knows: before it
        began, and where another process does it.
        """
        return max(self.phase_began_ms, self._store.moved_ms) if self._store else None

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written so far."""
        return self._store.bytes_read + self._store.bytes_written if self._store else 0

    def begin_mapping(self, store: MeteredStore, *, records_total: int, now_ms: int) -> None:
        """Begins P1; the bytes that the store counts from here on are this pass's."""
        self._store, self.records_total, self.phase_began_ms = store, records_total, now_ms

    def begin_cleaning(self, *, records_total: int, now_ms: int) -> None:
        """Begins P2, and with it P3 to P6."""
        self.phase, self.records_total, self.phase_began_ms = CLEANING, records_total, now_ms

    def counted(self, judged: Iterable[JudgedSegment]) -> Iterator[JudgedSegment]:
        """Yields the same segments; counts each when the next one is asked for."""
        for segment in judged:
            yield segment
            self._records_judged += segment.segment.rows
