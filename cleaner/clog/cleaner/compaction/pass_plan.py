"""What a pass is to do, as plain values."""

from dataclasses import dataclass, replace

from clog.cleaner.compaction.selection import Candidate
from clog.storage.config.log_config import LogConfig
from clog.storage.format.manifest import Manifest
from clog.storage.readers.holds import NOTHING_HELD, HeldTombstones


@dataclass(frozen=True, slots=True)
class PassPlan:
    """What to clean, as plain values: it can be executed where there is no handle.

    Args:
        manifest: at which it was planned.
        candidate: the partition and its bounds.
        config: what holds for the log.
        now_ms: the pass's start: what has expired by then may go.
        held: but for the tombstones that readers hold back.
    """

    manifest: Manifest
    candidate: Candidate
    config: LogConfig
    now_ms: int
    held: HeldTombstones = NOTHING_HELD

    @property
    def partition(self) -> int:
        return self.candidate.partition

    @property
    def dirty(self) -> tuple[int, int]:
        """The cleanable range."""
        bounds = self.candidate.bounds
        return bounds.first_dirty, bounds.first_uncleanable

    def for_partition(self) -> "PassPlan":
        """Returns the same plan without what is of other partitions, to be sent elsewhere."""
        segments = (s if p == self.partition else () for p, s in enumerate(self.manifest.segments))
        manifest = replace(
            self.manifest, segments=tuple(segments), released=(), tombstones_removed=()
        )
        return replace(self, manifest=manifest)
