"""What keeps a log in order besides cleaning: sealing idle segments (S8), retention and the start
offset rule (S31-S35).

Each is one commit for all partitions, prepared from the state at the tip, and none when nothing is
due.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from clog.cleaner.retention.rules import Cut, cut
from clog.storage.commit.committer import NothingToCommit
from clog.storage.commit.handle import Handle
from clog.storage.config.log_config import NO_DEFAULTS, LogConfig, with_defaults
from clog.storage.format.chunks import NONE
from clog.storage.format.commits import Commit
from clog.storage.format.edits import Edit
from clog.storage.format.head import Head
from clog.storage.format.manifest import Manifest
from clog.storage.format.rolling import new_jitter_ms


@dataclass(frozen=True, slots=True)
class Expired:
    """Whole segments of a partition that went, or would, by retention or since the log starts
    behind them: ``records``, of ``size_bytes`` together. What is left starts at ``start_offset``.
    """

    partition: int
    start_offset: int
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """What sealing and retention did to a log: ``sealed`` are partitions, ``expired`` what went,
    ``published`` how many versions of views were made, ``withdrawn`` how many views, ``refused``
    how many that could not be kept up.
    """

    sealed: Sequence[int] = ()
    expired: Sequence[Expired] = ()
    published: int = 0
    withdrawn: int = 0
    refused: int = 0

    def __bool__(self) -> bool:
        """Tells whether there was anything to do."""
        return bool(self.sealed or self.expired)


def idle_partitions(
    head: Head, *, now_ms: int, defaults: Mapping[str, str] = NO_DEFAULTS
) -> list[int]:
    """Returns the partitions whose active segment is older, by the wall clock since its first
    commit, than the effective ``segment.ms`` (S8). ``defaults`` are the process's (S45).
    """
    config = with_defaults(head.config, defaults)
    columns = head.partitions
    return [
        p
        for p in range(head.log.partitions)
        if columns.created_ms[p] != NONE
        and now_ms - columns.created_ms[p] > config.effective_segment_ms - columns.jitter_ms[p]
    ]


def seal_idle(
    handle: Handle, *, now_ms: int, defaults: Mapping[str, str] = NO_DEFAULTS
) -> list[int]:
    """Seals the active segments of `idle_partitions`; returns these."""
    sealed: list[int] = []

    def prepare(tip: Commit, _: int) -> Edit | NothingToCommit:
        sealed[:] = idle_partitions(tip.head, now_ms=now_ms, defaults=defaults)
        if not sealed:
            return NothingToCommit()
        config = with_defaults(tip.head.config, defaults)
        return Edit(seal=tuple((p, _new_jitter_ms(handle, config)) for p in sealed))

    handle.commit(prepare, operation="seal")
    return sealed


def apply_retention(
    handle: Handle, *, now_ms: int, defaults: Mapping[str, str] = NO_DEFAULTS
) -> list[Cut]:
    """Moves log starts and drops segments that have had their time; returns what was cut."""
    cuts: list[Cut] = []

    def prepare(tip: Commit, _: int) -> Edit | NothingToCommit:
        config = with_defaults(tip.head.config, defaults)
        cuts[:] = due_cuts(handle.manifest(), config, now_ms=now_ms)
        if not cuts:
            return NothingToCommit()
        return edit_of(cuts, jitter_ms=lambda: _new_jitter_ms(handle, config))

    handle.commit(prepare, operation="retention")
    return cuts


def due_cuts(manifest: Manifest, config: LogConfig, *, now_ms: int) -> list[Cut]:
    """Returns what retention and the start offset rule take now. Pure."""
    partitions = range(manifest.head.log.partitions)
    found = (cut(manifest, p, config, now_ms=now_ms) for p in partitions)
    return [c for c in found if c is not None]


def expired(cuts: Sequence[Cut]) -> list[Expired]:
    """Returns what cuts take away."""
    return [Expired(c.partition, c.drop, c.records, c.size_bytes) for c in cuts]


def edit_of(cuts: Sequence[Cut], *, jitter_ms: Callable[[], int]) -> Edit:
    """Returns the cuts as one change. The start moves before the objects go (S35): these are
    released now, deleted later.
    """
    return Edit(
        start={c.partition: c.start for c in cuts if c.start is not None},
        seal=tuple((c.partition, jitter_ms()) for c in cuts if c.seal),
        drop={c.partition: c.drop for c in cuts},
    )


def _new_jitter_ms(handle: Handle, config: LogConfig) -> int:
    return new_jitter_ms(config, uniform=handle.ids.uniform)
