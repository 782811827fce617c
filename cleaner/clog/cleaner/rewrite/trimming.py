"""Trimming: records below the low watermark in a segment that is kept become physically absent.

Under every policy and within one round (S37; Kafka leaves them, and copies them).

Only the chunk in which the log start lies is rewritten, and those of its segment before it go
without being read. The active segment waits until it is sealed, which S8 bounds.
"""

from clog.cleaner.rewrite.relayout import Run, bounded, relayout_all
from clog.storage.commit.handle import Handle
from clog.storage.format.manifest import Manifest
from clog.storage.store.base import Store


def trim(handle: Handle, store: Store) -> list[Run]:
    """Trims what is due; returns the runs that were replaced.

    Raises:
        CorruptionError: as `relayout`.
    """
    return relayout_all(handle, store, lambda m: bounded(due_runs(m)), operation="trim")


def due_runs(manifest: Manifest) -> list[Run]:
    """Returns, by partition, the chunks below the log start in the sealed segment that holds it.
    Pure.
    """
    runs = []
    for p, segments in enumerate(manifest.segments):
        start = manifest.head.partitions.start[p]
        holding = (s for s in segments[:-1] if s.base < start < s.next)
        below = tuple(c for s in holding for c in s.chunks if c.base < start)
        if below and not any(c.undecided for c in below):
            runs.append(Run(p, below, start))
    return runs
