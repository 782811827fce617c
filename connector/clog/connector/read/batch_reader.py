"""The batch read: a plan at one version, made once and valid until its objects are swept.

Spark plans a DataFrame at its first action and keeps that plan, so a plan is exact at its
version, and fails when that version has expired rather than mix two versions.

There is no ``pushFilters``: Spark 4.1 to 4.3 stores the filtered plan where other uses of the same
DataFrame find it, and returns wrong rows without an error (SPARK-58551). Options prune instead.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from clog.connector.opened_logs import (
    Loaded,
    check_log_id,
    opened_if_typed,
    readable,
    table_shown,
    types_at,
    types_of,
)
from clog.connector.options import ReadOptions
from clog.connector.positions import EARLIEST, LATEST, Position, Since, Times
from clog.connector.read.plan import (
    LogPartition,
    Losses,
    TablePartition,
    log_partitions,
    offset_bounds,
    partitions_read,
    pieces_of,
    positions,
    view_partitions,
)
from clog.connector.schema import (
    TableColumns,
    asked_schema,
    shallow,
    shallow_iterator,
)
from clog.storage.env import dataclass
from clog.storage.errors import InvalidInputError, OptionError, VersionExpiredError

if TYPE_CHECKING:
    import pyarrow as pa

    from clog.storage.commit.handle import Handle
    from clog.storage.format.manifest import Manifest
    from clog.storage.read.scan import ReadPiece
    from clog.storage.read.table import TablePlan


class ClogReader(DataSourceReader):
    """Reads records or the table view, in Arrow batches."""

    def __init__(
        self, options: ReadOptions, schema: StructType, loaded: Loaded | None = None
    ) -> None:
        check_batch(options)
        self._handle = opened_if_typed(options, schema)
        if self._handle is not None:
            BatchRead.of(self._handle, options, schema, loaded)
        self._options = options
        self._schema = schema
        self._loaded = loaded

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state that tasks need, which open nothing."""
        return {**self.__dict__, "_handle": None}

    @shallow
    def partitions(self) -> Sequence[InputPartition]:
        """Returns the plan, at the newest version."""
        read = BatchRead.of(self._opened(), self._options, self._schema, self._loaded)
        check_log_id(read.handle, self._options.log_id)
        return read.partitions()

    @shallow_iterator
    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yields batches of one partition, which is None in Spark's task for an empty plan."""
        from clog.connector.read.task_read import log_batches, table_slice_batches

        if isinstance(partition, LogPartition):
            yield from log_batches(partition, self._schema)
        elif isinstance(partition, TablePartition):
            yield from table_slice_batches(partition, self._schema)

    def _opened(self) -> "Handle":
        """Returns the log as it is now, which is the one the columns were checked with."""
        from clog.storage.log import Log

        if self._handle is not None:
            self._handle.refresh()
            return self._handle
        return Log.open(self._options.location.store()).handle


def is_pinned(options: ReadOptions) -> bool:
    """Returns whether a read names a version, whose columns may be those of an earlier schema."""
    return {options.as_of_version, options.as_of_ms, options.as_of_cut} != {None}


def pinned(handle: "Handle", options: ReadOptions) -> "Manifest":
    """Returns the manifest at the version that a read names."""
    from clog.storage.commit.versions import version_asked

    if options.as_of_cut is not None:
        from clog.storage.cuts import cut_named, manifest_of

        return manifest_of(handle, cut_named(handle, *options.as_of_cut))
    asked = options.as_of_version, options.as_of_ms
    return handle.manifest_at(version_asked(handle.store, handle.tip, *asked))


def columns_of(handle: "Handle | None", options: ReadOptions) -> tuple[StructType, Loaded | None]:
    """Returns the columns of a read without ``.schema(…)``, and what their names mean: those of
    the version that it names, else of the newest one.
    """
    head = None if handle is None else handle.tip.head
    evolved = head is not None and head.log.schema is not None and head.log.schema.id > 0
    if handle is not None and evolved and is_pinned(options):
        with suppress(VersionExpiredError, InvalidInputError):  # The reader raises it.
            head = pinned(handle, options).head
    types = None if head is None else types_at(head)
    schema = asked_schema(
        types,
        options.columns,
        include_headers=options.include_headers,
        is_table=options.is_table,
    )
    return schema, None if head is None else Loaded.of(head)


@dataclass(frozen=True, slots=True)
class BatchRead:
    """A batch read of a log, with checked columns; ``table`` is set if rows of the table are shown
    instead of records. ``options`` have keys as the log compares them.
    """

    handle: "Handle"
    options: ReadOptions
    schema: StructType
    table: TableColumns | None
    loaded: Loaded | None = None

    @classmethod
    def of(
        cls,
        handle: "Handle",
        options: ReadOptions,
        schema: StructType | None = None,
        loaded: Loaded | None = None,
    ) -> "BatchRead":
        """Returns the read with these options; ``schema`` is the user's, or that which was
        ``loaded``, None for all columns.
        """
        is_table = options.view == "table"
        if schema is None:
            schema, loaded = columns_of(handle, options)
        read = cls(handle, of_the_logs_keys(handle, options), schema, None, loaded)
        try:
            table = table_shown(handle, schema, loaded, is_table=is_table)
        except InvalidInputError:
            if not read.is_pinned:
                raise
            _, table = read._pinned()
        return replace(read, table=table)

    @property
    def is_pinned(self) -> bool:
        """Whether a version is named, whose columns may be those of an earlier schema."""
        return is_pinned(self.options)

    def manifest(self) -> "Manifest":
        """Returns the manifest at the version that is shown."""
        return self._pinned()[0] if self.is_pinned else self.handle.manifest()

    def _pinned(self) -> "tuple[Manifest, TableColumns | None]":
        """Returns the manifest at a named version, to be read for these columns, and the table."""
        manifest, is_table = pinned(self.handle, self.options), self.options.view == "table"
        return readable(self.handle, manifest, self.schema, self.loaded, is_table=is_table)

    def partitions(self) -> Sequence[InputPartition]:
        """Returns the tasks."""
        if self.options.view != "log":
            log_id = self.handle.standing.log_id
            return view_partitions(self.plans(), self.options, log_id, self.table)
        ranges = self.ranges()
        return log_partitions(self.handle.manifest(), ranges, self.options, follow=False)

    def pieces(self, ranges: Mapping[int, tuple[int, int]] | None = None) -> "list[ReadPiece]":
        """Returns the pieces to read; in view `log` those in these ranges, or in its own."""
        if self.options.view != "log":
            return [piece for plan in self.plans() for piece in (*plan.clean, *plan.dirty)]
        found = pieces_of(
            self.handle.manifest(),
            self.ranges() if ranges is None else ranges,
            uncommitted=self.options.uncommitted,
        )
        return [piece for pieces in found.values() for piece in pieces]

    def ranges(self) -> dict[int, tuple[int, int]]:
        """Returns the half-open ranges of offsets of view `log`, by partition. Missing offsets, or
        undecided records at an end, raise, or are skipped with a warning.
        """
        options, url, head = self.options, self.handle.store.url, self.handle.manifest().head
        is_dirty, losses = options.uncommitted, Losses(url, options.fail_on_data_loss)
        parts = partitions_read(head, options.partitions, url=url)
        lows, highs = head.partitions.start, head.partitions.end
        starting = options.starting or "earliest"
        assert not isinstance(starting, Since), "a batch read of the log itself refuses it"
        starts = positions(self.handle, parts, starting, option="starting")
        ending = options.ending or "latest"
        ends = positions(self.handle, parts, ending, option="ending", uncommitted=is_dirty)
        ranges = {}
        for p in parts:
            low, high = lows[p], highs[p]
            stable = high if is_dirty else head.stable_offset(p)
            if ends[p] == stable:
                # A start beyond it is a valid position: what is there is not decided yet (S51).
                ends[p] = max(ends[p], min(starts[p], high))
            elif (decided := max(stable, starts[p])) < ends[p] <= high:
                ends[p] = losses.decided_end(p, ends[p], low, decided)
            # A start at the log start may be the default: then it is the end that names deleted
            # records.
            if ends[p] < starts[p] != low:
                raise OptionError(
                    f"the read of partition {p} of {url} starts at offset {starts[p]} and ends at"
                    f" {ends[p]}: the range is empty; give a start (startingOffsets, timestamps)"
                    " that is not after the end (endingOffsets, timestamps)"
                )
            start = losses.start(p, starts[p], low, high)
            ranges[p] = (start, losses.end(p, ends[p], low, high))
        return ranges

    def plans(self) -> list["TablePlan"]:
        """Returns the plan of each partition's view: of `table` at its version; of `latest` after
        its start, where lost offsets or tombstones raise, or are logged as warnings.
        """
        from clog.storage.read.table import plan_latest, plan_table

        options, handle, url = self.options, self.handle, self.handle.store.url
        newest = handle.tip.head
        if options.view == "table":
            manifest = self.manifest()
            parts = partitions_read(newest, options.partitions, url=url)
            # Not the old version's starts: what was deleted since then is gone (S36).
            lows, _ = offset_bounds(newest, parts)
            return [plan_table(manifest, p, low) for p, low in lows.items()]
        manifest, losses = handle.manifest(), Losses(url, options.fail_on_data_loss)
        parts = partitions_read(newest, options.partitions, url=url)
        position = options.starting or "earliest"
        starts = positions(handle, parts, position, option="starting")
        lows, highs = offset_bounds(newest, parts)
        starts = {p: losses.start(p, starts[p], lows[p], highs[p]) for p in parts}
        # An offset alone does not say when its reader began, so every tombstone removed at or above
        # it counts. A reader at the log start has no state in which a key could be left over.
        losses.check_deletes(
            manifest,
            {p: start for p, start in starts.items() if start > lows[p]},
            since_version=position.version if isinstance(position, Since) else 0,
        )
        return [plan_latest(manifest, p, start, url=url) for p, start in starts.items()]


def of_the_logs_keys(handle: "Handle", options: ReadOptions) -> ReadOptions:
    """Returns the options with keys as the log compares them: each text in ``keys`` is parsed as
    the log's key type, as in ``clog consume --key``.
    """
    types = types_of(handle)
    if types is None or options.keys is None:
        return options
    import pyarrow as pa

    from clog.storage.read.lookup import asked_keys
    from clog.storage.types.conform import key_from_text

    kind = types.schema.field("key").type
    if pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_fixed_size_binary(kind):
        return options
    try:
        parsed = [key_from_text(text.decode(), kind) for text in options.keys]
        keys = asked_keys(parsed, handle.tip.head.log.schema)
    except (InvalidInputError, UnicodeDecodeError):
        raise OptionError(
            f'option "keys" has a key that is not a {kind}, the type in the log; write each as a'
            ' JSON text, ["7"], of a struct its object, ["{\\"id\\": 7}"]'
        ) from None
    return replace(options, keys=tuple(sorted(keys)))


def check_batch(options: ReadOptions) -> None:
    """Raises if a batch read refuses one of the options, as Spark's Kafka source does. Changes are
    read by `changes.ChangesReader` alone.
    """
    if options.view == "changes":
        raise OptionError('view "changes" is for spark.read and spark.readStream; leave it out')
    _refuse(options.starting, "latest", LATEST, option="startingOffsets", meaning="latest")
    _refuse(options.ending, "earliest", EARLIEST, option="endingOffsets", meaning="earliest")
    has_end = options.ending not in (None, "latest")
    if options.view == "table" and (options.starting is not None or has_end):
        raise OptionError(
            'view "table" shows the whole log at one version, without startingOffsets or'
            ' endingOffsets; to limit offsets, use view "log", or view "latest" with a start'
        )
    if options.view == "latest" and has_end:
        raise OptionError(
            'view "latest" always ends at the newest version, because records that were the latest'
            " before it may be cleaned by now; omit endingOffsets and endingTimestamp"
        )
    if options.view == "log" and isinstance(options.starting, Since):
        raise OptionError(
            'option "sinceVersion" is for streams and for view "latest"; a batch read of view "log"'
            " takes startingOffsets"
        )
    as_of = (options.as_of_version, options.as_of_ms, options.as_of_cut)
    given = sum(one is not None for one in as_of)
    if options.view != "table" and given:
        raise OptionError(
            'options "asOfVersion", "asOfTimestamp" and "asOfCut" are for view "table", not'
            f' "{options.view}"'
        )
    if given > 1:
        raise OptionError(
            'more than one of the options "asOfVersion", "asOfTimestamp" and "asOfCut" is given;'
            " give one"
        )


def _refuse(
    position: Position | Times | Since | None, word: str, number: int, *, option: str, meaning: str
) -> None:
    numbers = position.values() if isinstance(position, Mapping) else ()
    if position == word or number in numbers:
        raise OptionError(
            f'option "{option}" cannot be {meaning} ({number}) in a batch read: nothing would be'
            " read; give offsets"
        )
