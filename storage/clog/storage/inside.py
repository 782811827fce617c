"""`Inside`: an open log as a guest sees it, which is a program on top of clog that is not clog.

It has what `Log` does not tell users, in terms of the log and not of its files: what this process
knows without a request, positions that prove that no delete was missed, and cuts by their writer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from clog.storage.append import partitions_of
from clog.storage.commit.tip import try_read
from clog.storage.config.log_config import LogConfig
from clog.storage.cuts import logs_by_writer
from clog.storage.diagnostics.describe import (
    CommitEffect,
    CommitInfo,
    CommitWalk,
    LogDescription,
    Written,
    describe,
)
from clog.storage.format.commits import Head
from clog.storage.format.documents import NONE
from clog.storage.format.log_info import COLUMNS_BY_ID
from clog.storage.format.transactions import Position
from clog.storage.log import Log
from clog.storage.read.lookup import records_of_keys
from clog.storage.read.scan import partitions_named, ranges
from clog.storage.store.contract import together as begun_together
from clog.storage.transactions.ids import state_of, taken_by_another
from clog.storage.transactions.transaction import check_missed
from clog.storage.types.columns import arrow_schema
from clog.storage.types.evolve import evolution_to

_T = TypeVar("_T")
Version = tuple[int, str]
"""A version, and the id of the commit that made it: the same number has another id in a log that
was restored from a copy.
"""
Place = tuple[int, int]
"""An offset, and the version at which the records before it were read."""


class Inside:
    """What lies behind the methods of a `Log`; costs no request unless it says so, and is as of the
    newest version that this process knows.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._handle = log.handle

    def refresh(self) -> None:
        """Looks for newer versions; one GET."""
        self._handle.refresh()

    @property
    def version(self) -> int:
        return self._handle.tip.version

    @property
    def read_version(self) -> int:
        """The version at which the log was last read."""
        return self._handle.planned[0]

    @property
    def config(self) -> LogConfig:
        return LogConfig.from_overrides(self._handle.tip.head.config)

    @property
    def schema(self) -> pa.Schema:
        """The types of key and value."""
        return arrow_schema(self._handle.tip.head.log.schema)

    @property
    def is_typed(self) -> bool:
        """Whether it has a schema of its own; a log of bytes has none."""
        return self._handle.tip.head.log.schema is not None

    @property
    def fields(self) -> dict[int, str]:
        """The paths of the schema's fields, by their ids."""
        return _paths(self._handle.tip.head)

    def renamed_since(self, version: Version) -> bool:
        """Returns whether fields that it had at a version of its history are gone, have another
        name, or may have; one GET if any field was ever renamed or dropped.
        """
        head = self._handle.tip.head
        if COLUMNS_BY_ID not in head.log.features:
            return False
        then = try_read(self._handle.store, version[0])
        return then is None or not _paths(then.head).items() <= _paths(head).items()

    def evolution_to(self, wanted: pa.Schema) -> dict[str, Any]:
        """Returns the arguments of `Log.evolve` that lead to a schema; empty if none do."""
        return evolution_to(self._handle.tip.head.log.schema, wanted)

    @property
    def takes_offsets(self) -> bool:
        """Whether its records come with their offsets; looks for newer versions if so."""
        head = self._handle.tip.head
        return head.takes_offsets and self._handle.refresh().head.takes_offsets

    @property
    def assigns_offsets_since(self) -> int | None:
        """The version from which on a log that took offsets assigns them, if there is one."""
        since = self._handle.tip.head.gives_offsets
        return None if since == NONE else since

    def partition_of_each(self, records: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Returns the partition of each record, by its key."""
        table = pa.Table.from_batches([records])
        return partitions_of(table, None, self._handle.tip.head, url=self._log.url)

    def partitions(self, partition: int | None) -> tuple[int, ...]:
        """Returns the partition, or all for None; raises if there is no such partition."""
        return partitions_named(self._handle.tip.head, partition, url=self._log.url)

    def records_of(self, keys: list[Any]) -> Iterator[pa.RecordBatch]:
        """Yields the remaining records of keys, found by the indexes of objects."""
        self._handle.refresh()
        manifest = self._handle.manifest()
        everything = ranges(manifest.head, None, None, None, url=self._log.url)
        return records_of_keys(self._handle.store, manifest, everything, keys)

    def check_missed(
        self, before: Mapping[int, Place], now: Mapping[int, Place], *, remedy: str
    ) -> None:
        """Raises if tombstones that a reader had not read were removed before it read on (S41)."""
        then, later = (
            {p: Position(offset, version) for p, (offset, version) in places.items()}
            for places in (before, now)
        )
        check_missed(self._log, then, later, remedy=remedy)

    def has(self, version: Version) -> bool:
        """Returns whether its history has this version; at most 2 GET."""
        return self._handle.has_committed(*version)

    def has_cut_of(self, writer: str) -> bool:
        """Returns whether the writer named a cut in this log."""
        return writer in self._handle.tip.head.cuts

    def cut_of(self, writer: str) -> dict[str, Version]:
        """Returns the version of each log, by its id, in the cut that a writer named in this log;
        a GET or two.
        """
        logs = logs_by_writer(self._handle, writer)
        return {log_id: (log.version, log.commit_id) for log_id, log in logs.items()}

    @property
    def members(self) -> frozenset[str]:
        """The ids of the logs that its cuts name."""
        return frozenset(self._handle.tip.head.members)

    def check_held(self, writer: str, epoch: int) -> None:
        """Raises if another holder has claimed the id since this epoch; one GET."""
        state = state_of(self._handle.writer_pages, self._handle.refresh().head, writer)
        if state is None or state.epoch != epoch:
            raise taken_by_another(self._handle, writer, epoch)

    def described(self, *, waits: bool = False) -> LogDescription:
        """Returns what `Log.describe` does, without the GET that finds a log gone all of which is
        known already.
        """
        return describe(self._handle, waits=waits)

    def commits_from(
        self, version: int
    ) -> Callable[[], Iterator[tuple[CommitInfo, CommitEffect | None]]]:
        """Returns a function that yields the commits from a version on that it has not yielded yet,
        with their effects; a GET each, and the first time those of a manifest.
        """
        return CommitWalk(self._handle, version).new

    def written(self, commits: int) -> Written:
        """Returns what so many of the newest commits wrote; a GET for each, and a LIST."""
        return Written.by(self._handle, commits)

    @property
    def writers(self) -> list[dict[str, Any]]:
        """The last writers, newest first, with their kind, sequence and version."""
        return [
            {"id": w.writer_id, "kind": w.kind, "sequence": w.sequence, "version": w.version}
            for w in reversed(self._handle.tip.head.writers)
        ]


def _paths(head: Head) -> dict[int, str]:
    schema = head.log.schema
    return {} if schema is None else {field.id: path for path, field in schema.walk()}


def together(calls: Iterable[tuple[Log, Callable[[], _T]]]) -> list[_T]:
    """Calls functions for different logs at the same time, and returns their results; raises the
    first of their errors after all have ended.
    """
    done = begun_together([(log.handle.store, call) for log, call in calls])
    for one in done:
        if isinstance(one, Exception):
            raise one
    return [one for one in done if not isinstance(one, Exception)]
