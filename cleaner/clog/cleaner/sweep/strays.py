"""What other writers of a published view left at the log's root when they were refused.

Delta's Spark learns that it may not write when it commits, after its work: its rows and deletion
vectors stay at the root, a whole table of them where each night's OPTIMIZE is refused. Delta's own
VACUUM would take them, and cannot be let in. They go a day after they were written, where nothing
else can be meant:

- the newest version of the Delta view is clog's, of this log, and demands the feature that keeps
  others out;
- the name is one that Delta's writers give, at the root itself;
- it was written since the view was first published: what stood there before is somebody's;
- no version that is left names it.

All else is told, and left: also rows of Iceberg in ``data/``, as a catalog elsewhere may name them
in a table of its own.
"""

import logging
from collections.abc import Sequence

from clog.storage.commit.handle import Handle
from clog.storage.errors import CorruptionError
from clog.storage.publications.delta.view import DeltaView
from clog.storage.store.base import Store, StoredObject

_LOGGER = logging.getLogger(__name__)
_BEGINNINGS = ("part-", "deletion_vector_", "data/", "metadata/snap-")
"""How names of such files begin: rows and deletion vectors of Delta, rows of Iceberg, and what it
writes with each commit.
"""


def sweep_strays(handle: Handle, *, before_ms: int, dry_run: bool) -> list[StoredObject]:
    """Deletes what refused writers of Delta left before ``before_ms``, and returns it; names it,
    and what else others left, in warnings. Only in a log that was published four LISTs, and where
    anything of Delta's is old those of the view.

    Raises:
        LogReplacedError: the handle's log is not the one that stands there.
    """
    if not handle.tip.head.pins:
        return []
    root = handle.standing.root
    strays = [found for begin in _BEGINNINGS for found in root.list(begin)]
    dead = _dead(handle, [found for found in strays if found.modified_ms < before_ms])
    if dead:
        handle.standing.check()
        dead += _checksums(root, dead)
    gone = set(dead)
    _tell(root, dead, "refused writers of its view", "they are swept")
    _tell(
        root,
        [found for found in strays if found not in gone],
        "another writer of its view",
        "no reader sees them; a day after they were written the sweep takes what can only be"
        " a refused writer's of Delta; delete the others if nobody needs them",
    )
    for found in dead if not dry_run else ():
        root.delete(found.path)
    return dead


def _dead(handle: Handle, old: Sequence[StoredObject]) -> list[StoredObject]:
    if not old or DeltaView.format not in handle.tip.head.pins:
        return []
    view = DeltaView(handle.standing)
    try:
        return view.left_by_refused(view.look(), old)
    except CorruptionError as e:
        _LOGGER.warning("nothing at %s is told from its view's: %s", handle.standing.root.url, e)
        return []


def _checksums(root: Store, dead: Sequence[StoredObject]) -> list[StoredObject]:
    """Returns the files that Hadoop keeps beside others on local filesystems."""
    names = {f".{found.path}.crc" for found in dead}
    begins = [f".{begin}" for begin in _BEGINNINGS if "/" not in begin]
    return [found for begin in begins for found in root.list(begin) if found.path in names]


def _tell(root: Store, files: Sequence[StoredObject], whose: str, then: str) -> None:
    if files:
        _LOGGER.warning(
            "%s has %d files of %d bytes that %s left, such as %s; %s",
            *(root.url, len(files), sum(f.size_bytes for f in files), whose, files[0].path, then),
        )
