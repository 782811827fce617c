"""What keeps a log in order besides cleaning: sealing idle segments (S8), retention and the start offset rule (S31-S35).

Each is one commit for all partitions, prepared from the manifest at the tip, and none when nothing is due.
"""

from clog.cleaner.retention import Cut, cut
from clog.storage.administration import roll
from clog.storage.chunks import NONE
from clog.storage.commit import Answer
from clog.storage.commits import Commit
from clog.storage.config import LogConfig
from clog.storage.edits import Edit
from clog.storage.handle import Handle
from clog.storage.rolling import new_jitter_ms


def seal_idle(handle: Handle, *, now_ms: int) -> list[int]:
    """Seals active segments that are older, by the wall clock since their first commit, than the effective ``segment.ms`` (S8)."""
    head = handle.tip.head
    config = LogConfig.from_overrides(head.config)
    columns = head.partitions
    idle = [
        p
        for p in range(head.log.partitions)
        if columns.created_ms[p] != NONE
        and now_ms - columns.created_ms[p] > config.effective_segment_ms - columns.jitter_ms[p]
    ]
    return roll(handle, idle, operation="seal") if idle else []


def apply_retention(handle: Handle, *, now_ms: int) -> list[Cut]:
    """Moves log starts and drops segments that have had their time, in one commit; returns what was cut."""
    cuts: list[Cut] = []

    def prepare(tip: Commit, _: int) -> Edit:
        manifest = handle.manifest()
        config = LogConfig.from_overrides(tip.head.config)
        found = (cut(manifest, p, config, now_ms=now_ms) for p in range(tip.head.log.partitions))
        cuts[:] = [c for c in found if c is not None]
        if not cuts:
            raise Answer(None)
        return Edit(
            # The start moves before the objects go (S35): they are released by this commit, deleted later.
            start={c.partition: c.start for c in cuts if c.start is not None},
            seal=tuple(
                (c.partition, new_jitter_ms(config, uniform=handle.ids.uniform))
                for c in cuts
                if c.seal
            ),
            drop={c.partition: c.drop for c in cuts},
        )

    try:
        handle.commit(prepare, operation="retention")
    except Answer:
        pass
    return cuts
