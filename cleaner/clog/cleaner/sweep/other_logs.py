"""What lies in ``_clog/`` beside the log's own folder.

A creator that died before it created ``_clog/log``, or lost that race, leaves a folder with a first
commit, or with the objects of a first write, and nothing else: it can never become a log while
another stands there, so it goes once it is old. So do temporary files of its writes, of
``_clog/log`` too. Any other folder held a log, which was deleted in part or is being restored: it
is named in a warning and left alone.
"""

import logging

from clog.storage.commit.handle import Handle
from clog.storage.deletion import OF_A_CREATION, OF_A_FIRST_WRITE
from clog.storage.format import paths
from clog.storage.store.base import StoredObject, is_temporary

_LOGGER = logging.getLogger(__name__)


def sweep_other_logs(handle: Handle, *, before_ms: int, dry_run: bool) -> list[StoredObject]:
    """Deletes what creators that died left before ``before_ms``, and returns it; names folders of
    other logs in a warning. One LIST of ``_clog/``, one of its temporary files, and one GET where
    there is something to delete.

    Raises:
        LogReplacedError: the handle's log is not the one that stands there.
    """
    root, mine = handle.standing.root, paths.folder_of(handle.standing.log_id)
    folders: dict[str, list[StoredObject]] = {}
    dead: list[StoredObject] = []
    for found in [*root.list(paths.FOLDERS), *root.list_temporary(paths.FOLDERS)]:
        log_id, _, rest = found.path.removeprefix(paths.FOLDERS).partition("/")
        if not rest and is_temporary(found.path) and found.modified_ms < before_ms:
            dead.append(found)
        elif rest and paths.is_log_id(log_id) and paths.folder_of(log_id) != mine:
            folders.setdefault(log_id, []).append(found)
    for log_id, files in sorted(folders.items()):
        skip = len(paths.folder_of(log_id)) + 1
        whole = {found.path[skip:] for found in files if not is_temporary(found.path)}
        if whole <= OF_A_CREATION or all(name.startswith(OF_A_FIRST_WRITE) for name in whole):
            if max(found.modified_ms for found in files) < before_ms:
                dead += files
            continue
        _LOGGER.warning(
            "%s/%s holds %d files of another log, which does not stand here; delete the folder if"
            " nobody needs it",
            *(root.url, paths.folder_of(log_id), len(files)),
        )
    if dead and not dry_run:
        handle.standing.check()
        for found in dead:
            root.delete(found.path)
    return dead
