"""What DELETE, UPDATE and MERGE leave of the rows of a table: one append, or none.

The catalog (``connector/jvm``) reads the table at one version, and gives the sink a row for each
key that the statement changes, with one more column, the last: whether the key is deleted.

V1. Tasks write the rows as objects, those of deleted keys as tombstones.
V2. The driver looks among the records appended since that version for one with a key of these
    objects, also among those of transactions that have not ended. If there is one, the statement
    has not seen it, and would undo it: it is refused.
V3. It appends the objects unless the log has more records than it looked at; else V2 again, from
    there.

So the result is that of the statement at its version, followed by the appends of others, whose keys
are other ones. What it has read, but not changed, may have been changed by others (snapshot
isolation). Deleted records and erasures since the version refuse it, too: the rows that it
writes may be made of what is to be forgotten.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from clog.connector.opened_logs import opened, types_of
from clog.connector.options import WriteOptions
from clog.connector.schema import nullable_schema, shallow, table_schema
from clog.connector.write.write_task import Answers
from clog.connector.write.writers import ClogWriter
from clog.storage.commit.committer import NothingToCommit
from clog.storage.errors import CommitConflictError, InvalidInputError

if TYPE_CHECKING:
    from clog.storage.format.commits import Commit, Edit, Head
    from clog.storage.format.manifest import Manifest
    from clog.storage.log import Log
    from clog.storage.objects.writer import DataObject

_FINER = ("timestamp(ns)", "timestamp(ns,utc)")
"""Kinds of values that Spark reads, but cannot give back."""
READ_AT = "__read_at"
"""The option with the version that the statement has read."""


class ChangedRowsWriter(ClogWriter):
    """Appends what a statement leaves of the keys that it changes."""

    def __init__(self, options: WriteOptions, schema: StructType, read_at: int) -> None:
        rows = StructType(schema.fields[:-1])
        handle = opened(options.location).handle
        head = handle.refresh().head
        _check_order(head, handle.store.url)
        types, schema_now = types_of(handle), head.log.schema
        fine = [] if schema_now is None else [p for p, f in schema_now.walk() if f.kind in _FINER]
        if fine:
            raise InvalidInputError(
                f"{fine[0]} of {handle.store.url} has nanoseconds, and Spark reads microseconds: a"
                " changed row would lose the rest; DELETE by key, or append rows with Log.append;"
                " nothing was written"
            )
        whole = None if types is None else table_schema(types, None)
        if whole is None or nullable_schema(rows) != nullable_schema(whole):
            raise InvalidInputError(
                f"{handle.store.url} has columns that this table does not show, and a changed row"
                " would lose their values; give the table all columns, and run the statement"
                " again; nothing was written"
            )
        super().__init__(options, rows, overwrite=False)
        self._plan = replace(self._plan, has_deletes=True)
        self._read_at = read_at

    @shallow
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Does V2 and V3."""
        answers = Answers.of(messages)
        if answers.objects:
            log = answers.log(self._plan.location)
            log.handle.refresh()
            while not _appended(log, answers.objects, self._read_at):
                pass  # Each time, others have appended since, as in every loop of commits.


def _appended(log: "Log", objects: "Sequence[DataObject]", read_at: int) -> bool:
    """Does V2 and V3; returns whether nobody has appended in between."""
    from clog.storage.append import committing
    from clog.storage.commit.appends import Appended, AppendRequest, Proposed

    handle = log.handle
    with committing(handle, objects):
        seen = handle.manifest()
        _check_unchanged(log, objects, handle.manifest_at(read_at), seen)
        request = AppendRequest(Proposed(tuple(objects)), handle.writer_pages, handle.ids)
        looked_at = _bounds(seen.head)

        def prepare(tip: "Commit", time_ms: int) -> "Edit | NothingToCommit":
            if _bounds(tip.head) != looked_at:
                return NothingToCommit()
            _check_order(tip.head, log.url)
            return request.prepare(tip, time_ms)

        return isinstance(handle.append(prepare, None), Appended)


def _bounds(head: "Head") -> tuple[list[int], list[int]]:
    return list(head.partitions.start), list(head.partitions.end)


def _check_unchanged(
    log: "Log", objects: "Sequence[DataObject]", before: "Manifest", now: "Manifest"
) -> None:
    """Raises if others have changed what the statement changes since it read the table."""
    starts, ends = _bounds(now.head)
    since = f"since version {before.version} of {log.url}, which this statement has read"
    again = "nothing was written; run it again"
    if starts != _bounds(before.head)[0]:
        raise CommitConflictError(f"records were deleted {since}; {again}")
    if now.erasures.keys() - before.erasures.keys():
        raise CommitConflictError(f"keys were erased {since}; {again}")
    ranges = {p: (before.head.stable_offset(p), end) for p, end in enumerate(ends)}
    if not any(start < end for start, end in ranges.values()):
        return
    changed = _keys_among(log, objects, now, ranges)
    if changed:
        raise CommitConflictError(
            f"others have written {changed} of the keys that it changes {since}; {again}"
        )


def _keys_among(
    log: "Log",
    objects: "Sequence[DataObject]",
    manifest: "Manifest",
    ranges: Mapping[int, tuple[int, int]],
) -> int:
    """Returns how many keys of the objects have records in these ranges of offsets."""
    from clog.storage.commit.versions import reading
    from clog.storage.keys.hashing import key_bytes
    from clog.storage.numpy_arrays import of_bytes
    from clog.storage.objects.reader import read_rows
    from clog.storage.read.lookup import of_keys, pieces_of_keys
    from clog.storage.read.scan import Isolation, plan_range, read_pieces

    store, info = log.handle.store, manifest.head.log
    keys = {
        key
        for obj in objects
        for batch in read_rows(
            store, obj.ref, 0, obj.ref.rows, columns=("key",), schema=info.schema
        )
        for key in key_bytes(batch.column("key")).to_pylist()
    }
    wanted, found = list(keys), set()
    with reading(store, manifest.version, why=" while it was read", remedy="run it again"):
        for p, (start, end) in ranges.items():
            pieces = plan_range(manifest, p, start, end, isolation=Isolation.UNCOMMITTED)
            narrowed = list(pieces_of_keys(store, pieces, wanted, info.key_seed))
            for batch in read_pieces(store, narrowed, columns=("offset", "key")):
                found |= set(key_bytes(of_keys(batch, of_bytes(wanted)).column("key")).to_pylist())
    return len(found)


def _check_order(head: "Head", url: str) -> None:
    """Raises unless the last record of a key is its row."""
    from clog.storage.config.log_config import LogConfig

    config = LogConfig.from_overrides(head.config)
    if config.is_ordered:
        raise InvalidInputError(
            f"{url} has compaction.strategy={config.compaction_strategy}, so a row that is appended"
            " need not replace that of its key; DELETE by key, or append records in their order;"
            " nothing was written"
        )
