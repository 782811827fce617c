"""What a pass is to do, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from clog.cleaner.compaction.selection import Candidate
from clog.storage.config.log_config import LogConfig
from clog.storage.format.manifest import Manifest
from clog.storage.format.segments import Segment
from clog.storage.readers.holds import NOTHING_HELD, HeldTombstones


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring segments of a partition that is cleaned in parts (`stretches`): those that begin
    in ``[start, end)``. ``dirty_end`` is where the dirty part of all of them ends.
    """

    start: int
    end: int
    dirty_end: int


@dataclass(frozen=True, slots=True)
class PassPlan:
    """What to clean, as plain values.

    Args:
        manifest: at which it was planned.
        candidate: the partition and its bounds.
        config: what holds for the log.
        now_ms: the pass's start: what has expired by then may go.
        held: but for the tombstones that readers hold back.
        stretch: of what is cleaned in parts, the one of this pass; None: all is.
        gathered: by path, objects of ``manifest`` that are in memory alone (`gathering`): their
            rows lie elsewhere in the log.
    """

    manifest: Manifest
    candidate: Candidate
    config: LogConfig
    now_ms: int
    held: HeldTombstones = NOTHING_HELD
    stretch: Stretch | None = None
    gathered: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def partition(self) -> int:
        return self.candidate.partition

    @property
    def dirty(self) -> tuple[int, int]:
        """The cleanable range."""
        bounds = self.candidate.bounds
        end = bounds.first_uncleanable
        return bounds.first_dirty, end if self.stretch is None else min(end, self.stretch.dirty_end)

    @property
    def sealed(self) -> list[Segment]:
        """The sealed segments that the pass may clean; one that reaches beyond the cleanable range
        is none of them: its rest may not be cleaned yet (S11).
        """
        found = [s for s in self.manifest.segments[self.partition][:-1] if s.next <= self.dirty[1]]
        mine = self.stretch
        return found if mine is None else [s for s in found if mine.start <= s.base < mine.end]
