"""Creating a log: its first version, then the file that makes it the log of its root (COMMIT)."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from clog.storage.clock import Clock
from clog.storage.commit.committer import Created, create_commit
from clog.storage.commit.identity import LogFile, create_log_file, read_log_file, store_of
from clog.storage.commit.store_clock import StoreClock
from clog.storage.config.log_config import LogConfig, parse_overrides
from clog.storage.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
)
from clog.storage.format import paths
from clog.storage.format.commits import Commit, EditRecord
from clog.storage.format.edit_json import edit_to_json
from clog.storage.format.edits import Edit, LogInfo
from clog.storage.format.features import (
    FEATURES,
    NEW_LOG_FEATURES,
    TYPED_COLUMNS,
    TYPED_KEYS,
    lists_of,
)
from clog.storage.format.head import first_head
from clog.storage.format.schema import LogSchema, has_typed_keys, key_columns_problem
from clog.storage.ids import Ids
from clog.storage.objects.arrow_types import schema_of
from clog.storage.publications.publish import check_publishable
from clog.storage.readers.holds import features_of_holds
from clog.storage.store.base import Store

PARTITIONS_MAX = 10_000
"""Tested limit: heads and commits hold columns over the partitions."""
PARTITIONS_DEFAULT = 4
_TYPED = lists_of([FEATURES[TYPED_COLUMNS]])
_TYPED_KEYS = lists_of([FEATURES[TYPED_KEYS]])


@dataclass(frozen=True, slots=True)
class NewLog:
    """A log that does not stand yet: its id, and what it is to be. ``config`` has only what was
    given.
    """

    log_id: str
    partitions: int
    config: Mapping[str, str]
    schema: LogSchema | None

    @property
    def settings(self) -> LogConfig:
        """The config in full."""
        return LogConfig.from_overrides(self.config)

    def create(self, root: Store, *, clock: Clock, ids: Ids) -> None:
        """Writes version 0 into a folder of its own, then ``_clog/log``, which makes it a log
        (S47). Objects may be there already (`connector.write`).

        Raises:
            as `create_log`.
        """
        try:
            read_log_file(root)
        except NotFoundError:
            pass
        else:
            raise _exists(root)
        now_ms = clock.now_ms()
        store = store_of(root, self.log_id)
        StoreClock(store, clock=clock, ids=ids).check(newest_ms=0)
        features = NEW_LOG_FEATURES.with_added(features_of_holds(self.settings))
        if self.schema is not None:
            features = features.with_added(_TYPED)
        if has_typed_keys(self.schema):
            features = features.with_added(_TYPED_KEYS)
        info = LogInfo(
            *(self.log_id, now_ms, self.partitions),
            partitioner=self.settings.partitioner,
            seed=f"{ids.seed():016x}",
            features=features,
            schema=self.schema,
        )
        edit = Edit(create=info, config=dict(self.config))
        record = EditRecord(0, ids.new_id(), now_ms, "create", {"edit": edit_to_json(edit)})
        commit = Commit(record, None, (), first_head(edit))
        created = create_commit(store, commit, clock=clock, ids=ids)
        assert created is Created.OURS, created  # The id is new, so the folder is.
        made = LogFile(self.log_id, now_ms)
        if create_log_file(root, made, clock).log_id != self.log_id:
            for path in (paths.commit_path(0), paths.block_path(0)):
                with suppress(StoreUnavailableError):
                    store.delete(path)
            raise _exists(root)


def new_log(
    partitions: int,
    config: Mapping[str, object],
    schema: Mapping[str, pa.DataType] | pa.Schema | None,
    *,
    ids: Ids,
) -> NewLog:
    """Returns a log to be created.

    Raises:
        InvalidInputError: as `create_log`.
    """
    _check_partitions(partitions)
    typed = None if schema is None else schema_of(schema)
    overrides = parse_overrides(config)
    if problem := key_columns_problem(typed, LogConfig.from_overrides(overrides).table_key_columns):
        raise InvalidInputError(f"{problem}; nothing was created")
    settings = LogConfig.from_overrides(overrides)
    for name in settings.published_formats:
        check_publishable(name, typed, settings, url="the log")
    return NewLog(ids.new_id(), partitions, overrides, typed)


def create_log(
    root: Store,
    partitions: int,
    config: Mapping[str, object],
    schema: Mapping[str, pa.DataType] | pa.Schema | None,
    *,
    clock: Clock,
    ids: Ids,
) -> None:
    """Creates a log.

    Raises:
        AlreadyExistsError: there is a log, or somebody made one at the same time.
        InvalidInputError: a config that is unknown or out of range, a number of partitions out of
            range, a schema that cannot be stored.
        CommitStateUnknownError: whether it was created cannot be found out now.
        ClockSkewError: this machine's clock is far ahead of the store's.
    """
    new_log(partitions, config, schema, ids=ids).create(root, clock=clock, ids=ids)


def _exists(root: Store) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"a log already exists at {root.url}; open it with Log.open, or use another URL"
    )


def _check_partitions(partitions: int) -> None:
    if type(partitions) is not int or not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidInputError(
            f"partitions={partitions!r} is out of range; allowed: 1 to {PARTITIONS_MAX}"
        )
