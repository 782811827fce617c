"""The settings of captures, one value for each kind of run, and what captures report.

`TableSettings` are those of all that works on the tables of a database, also of a comparison;
captures add `CaptureSettings`, and those of PostgreSQL `PostgresSettings`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from clog.bridge.access import Access
from clog.storage.spi import dataclass

INTERVAL_MS: Final = 250
"""The longest that changes wait for others while nothing else is being committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings(Access):
    """Which tables of a database are captured or compared, and how their logs are opened.

    Attributes:
        tables: patterns of ``schema.table``, or ``database.table``; empty: all.
        exclude: patterns of tables to leave out.
        on_progress: called with the progress, after each commit and every few seconds; in a
            comparison with the name of each table, before it is read.
        storage_options: options of the logs' filesystem.
        single_writer: see `Log.create`.
        clock: the source of times.
        ids: the source of random ids.
    """

    tables: Sequence[str] = ()
    exclude: Sequence[str] = ()
    on_progress: Callable[[Any], object] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSettings(TableSettings):
    """How a database is captured; which of its tables, and the rest, as in `TableSettings`.

    Attributes:
        once: stop when all that the source has now is captured; otherwise the source is followed.
        masks: by ``schema.table.column``: ``drop``, ``hash`` or ``text`` (not in MySQL).
        reload: load all tables again, in PostgreSQL with a new slot, or there only those named.
        partitions: of new logs.
        config: of new logs.
        should_stop: called several times a second; true ends the run once all it read is committed.
    """

    once: bool = False
    masks: Mapping[str, str] = field(default_factory=dict)
    reload: bool | Sequence[str] = False
    partitions: int = 1
    config: Mapping[str, str] = field(default_factory=dict)
    should_stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSettings(CaptureSettings):
    """How a database of PostgreSQL is captured: `CaptureSettings`, and what only it has.

    Attributes:
        events: take inserts of tables without a usable key as events; otherwise they are an error.
        publication: an existing publication; None: the capture makes its own.
        slot_bytes_max: drop the slot if it makes the source keep more than this.
        interval_ms: the longest that a few changes wait for a commit.
    """

    events: bool = False
    publication: str | None = None
    slot_bytes_max: int | None = None
    interval_ms: int = INTERVAL_MS


@dataclass(frozen=True, slots=True)
class CapturedTable:
    """How far a table is captured.

    Attributes:
        url: the URL of its log.
        version: the log's version.
        loaded: the number of rows loaded from a snapshot in this run.
        expected: about how many rows it has.
        is_loading: whether it is being loaded.
        rows: the number of rows taken in this run.
        left: columns that are not captured, and why.
        notes: by column, what differs from the source.
    """

    url: str
    version: int
    loaded: int = 0
    expected: int = 0
    is_loading: bool = False
    rows: int = 0
    left: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Captured:
    """The progress of a capture.

    Attributes:
        url: the home's URL.
        tables: by name.
        position: the LSN of the newest cut; None: there is no cut yet.
        lag_bytes: how much write-ahead log the source has after it.
        lag_ms: how long ago the newest transaction of the cut was committed, if there are later.
        slot_bytes: how much write-ahead log the slot makes the source keep.
        transactions: the number of transactions taken in this run.
        events: tables of which only inserts are taken.
        filters: by table, the condition on published rows.
    """

    url: str
    tables: Mapping[str, CapturedTable]
    position: str | None
    lag_bytes: int = 0
    lag_ms: int = 0
    slot_bytes: int = 0
    transactions: int = 0
    events: Sequence[str] = ()
    filters: Mapping[str, str] = field(default_factory=dict)

    @property
    def logs(self) -> dict[str, int]:
        """The version of each table's log, by URL; `snapshot` finds versions that fit together."""
        return {table.url: table.version for table in self.tables.values()}

    @property
    def rows(self) -> int:
        """The number of rows taken in this run, including tombstones."""
        return sum(table.rows for table in self.tables.values())
