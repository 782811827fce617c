"""The position of a state table's file at a version of its log."""

from clog.storage.format.commits import Commit
from clog.storage.format.manifest import Manifest
from clog.storage.state.sqlite_file import Position


def position_of(at: Manifest | Commit) -> Position:
    """Returns the position of a file that shows this version: up to where it is decided."""
    log, starts = at.head.log, dict(enumerate(at.head.partitions.start))
    commit_id = at.record.commit_id if isinstance(at, Commit) else at.commit_id
    offsets = {p: at.head.stable_offset(p) for p in starts}
    return Position(log.log_id, at.version, commit_id, offsets, starts, log.schema)


def is_of(before: Position, now: Position) -> bool:
    """Tells whether rows may be added to those of before: the log and its schema are the same."""
    return before.log_id == now.log_id and before.schema == now.schema
