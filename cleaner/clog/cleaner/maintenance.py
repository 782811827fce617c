"""What keeps a log in order besides cleaning: sealing idle segments (S8), retention and the start
offset rule (S31-S35).

Each is one commit for all partitions, prepared from the state at the tip, and none when nothing is
due.
"""

from clog.cleaner.retention import Cut, cut
from clog.storage.chunks import NONE
from clog.storage.commit import Answer
from clog.storage.commits import Commit
from clog.storage.config import LogConfig
from clog.storage.edits import Edit
from clog.storage.handle import Handle
from clog.storage.head import Head
from clog.storage.rolling import new_jitter_ms


def idle_partitions(head: Head, *, now_ms: int) -> list[int]:
    """Partitions whose active segment is older, by the wall clock since its first commit, than the
    effective ``segment.ms`` (S8).
    """
    config = LogConfig.from_overrides(head.config)
    columns = head.partitions
    return [
        p
        for p in range(head.log.partitions)
        if columns.created_ms[p] != NONE
        and now_ms - columns.created_ms[p] > config.effective_segment_ms - columns.jitter_ms[p]
    ]


def seal_idle(handle: Handle, *, now_ms: int) -> list[int]:
    """Seals the active segments of `idle_partitions`; returns these."""
    sealed: list[int] = []

    def prepare(tip: Commit, _: int) -> Edit:
        sealed[:] = idle_partitions(tip.head, now_ms=now_ms)
        if not sealed:
            raise Answer(None)
        return Edit(seal=tuple((p, _new_jitter_ms(handle, tip.head)) for p in sealed))

    try:
        handle.commit(prepare, operation="seal")
    except Answer:
        pass
    return sealed


def apply_retention(handle: Handle, *, now_ms: int) -> list[Cut]:
    """Moves log starts and drops segments that have had their time; returns what was cut."""
    cuts: list[Cut] = []

    def prepare(tip: Commit, _: int) -> Edit:
        manifest = handle.manifest()
        config = LogConfig.from_overrides(tip.head.config)
        found = (cut(manifest, p, config, now_ms=now_ms) for p in range(tip.head.log.partitions))
        cuts[:] = [c for c in found if c is not None]
        if not cuts:
            raise Answer(None)
        return Edit(
            # The start moves before the objects go (S35): these are released now, deleted later.
            start={c.partition: c.start for c in cuts if c.start is not None},
            seal=tuple((c.partition, _new_jitter_ms(handle, tip.head)) for c in cuts if c.seal),
            drop={c.partition: c.drop for c in cuts},
        )

    try:
        handle.commit(prepare, operation="retention")
    except Answer:
        pass
    return cuts


def _new_jitter_ms(handle: Handle, head: Head) -> int:
    return new_jitter_ms(LogConfig.from_overrides(head.config), uniform=handle.ids.uniform)
