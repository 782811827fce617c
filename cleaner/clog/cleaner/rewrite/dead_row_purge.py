"""Purging dead rows: chunks whose dead rows have waited ``dead.rows.delay.ms`` are rewritten
without them, so that their bytes go in bounded time (S46).

Under every policy: a log that was compacted once may hold bitmaps. Most chunks never come here: a
pass rewrites them when enough of their rows are dead, coalescing and trimming when they touch them.
"""

from collections.abc import Mapping

from clog.cleaner.compaction.rewrite_policy import is_due
from clog.cleaner.rewrite.relayout import Run, bounded, relayout_all, runs_of
from clog.storage.commit.handle import Handle
from clog.storage.config.log_config import NO_DEFAULTS, LogConfig, with_defaults
from clog.storage.format.manifest import Manifest
from clog.storage.store.base import Store


def purge_dead_rows(
    handle: Handle, store: Store, *, now_ms: int, defaults: Mapping[str, str] = NO_DEFAULTS
) -> list[Run]:
    """Rewrites what is due; returns the runs that were replaced. No request where nothing is due.
    ``defaults`` are the process's (S45).

    Raises:
        CorruptionError: as `relayout`.
    """

    def due(manifest: Manifest) -> list[Run]:
        config = with_defaults(manifest.head.config, defaults)
        return bounded(due_runs(manifest, config, now_ms=now_ms))

    return relayout_all(handle, store, due, operation="clean")


def due_runs(manifest: Manifest, config: LogConfig, *, now_ms: int) -> list[Run]:
    """Returns the runs of neighbouring chunks whose dead rows are due. Pure."""
    return [
        Run(p, run, 0)
        for p, segments in enumerate(manifest.segments)
        for segment in segments
        for run in runs_of(
            segment.chunks, [is_due(c, config, now_ms=now_ms) for c in segment.chunks]
        )
    ]
