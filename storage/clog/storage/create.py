"""Creating a log: version 0, created if absent like any other (COMMIT.md)."""

from collections.abc import Mapping

from clog.storage.clock import Clock
from clog.storage.commit import create_commit
from clog.storage.commits import Commit, EditRecord
from clog.storage.config import LogConfig, parse_overrides
from clog.storage.dead_rows import DEAD_ROWS
from clog.storage.edit_json import edit_to_json
from clog.storage.edits import Edit, LogInfo
from clog.storage.errors import AlreadyExistsError, NotFoundError
from clog.storage.head import first_head
from clog.storage.ids import Ids
from clog.storage.store.base import Store
from clog.storage.timeline import find_newest

NEW_LOG_FEATURES = (DEAD_ROWS,)
"""What a new log demands of its readers, from the start: it cannot be demanded later."""


def create_log(
    store: Store, *, partitions: int, config: Mapping[str, object], clock: Clock, ids: Ids
) -> None:
    """Writes version 0.

    Raises:
        AlreadyExistsError: there is a log, or somebody made one at the same time.
        InvalidInputError: a config that is unknown or out of range.
        CommitStateUnknownError: whether it was created cannot be found out now.
    """
    overrides = parse_overrides(config)
    settings = LogConfig.from_overrides(overrides)
    # Version 0 may have been deleted with its block: only the search tells whether there is a log.
    try:
        find_newest(store)
    except NotFoundError:
        pass
    else:
        raise _exists(store)
    now_ms = clock.now_ms()
    info = LogInfo(
        log_id=ids.new_id(),
        created_ms=now_ms,
        partitions=partitions,
        partitioner=settings.partitioner,
        seed=f"{ids.seed():016x}",
        read_features=NEW_LOG_FEATURES,
    )
    edit = Edit(create=info, config=overrides)
    record = EditRecord(0, ids.new_id(), now_ms, "create", {"edit": edit_to_json(edit)})
    commit = Commit(record, None, (), first_head(edit))
    if create_commit(store, commit, clock=clock, ids=ids) is not None:
        raise _exists(store)


def _exists(store: Store) -> AlreadyExistsError:
    return AlreadyExistsError(f"there is a log at {store.url} already; open it, or use another URL")
