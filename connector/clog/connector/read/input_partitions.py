"""What the driver gives to a read task: plain data, complete, so that a task asks for objects and
nothing else.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from clog.connector.options.location import Location
from clog.connector.table_columns import TableColumns

if TYPE_CHECKING:
    from clog.storage.read.scan import ReadPiece
    from clog.storage.read.table_plan import TablePlan


@dataclass(frozen=True)
class LogPartition(InputPartition):
    """Pieces of the log with this id to be read in this order, planned at ``version``.

    ``seed`` is the log's, for its key indexes. ``follow``: an object that is gone meanwhile is
    looked for in the newest version (streams); else the version has expired (batch). ``keys``: only
    records with one of these; None: all.
    """

    location: Location
    log_id: str
    version: int
    seed: int
    pieces: tuple["ReadPiece", ...]
    follow: bool
    fail_on_data_loss: bool
    keys: tuple[bytes, ...] | None = field(default=None, repr=False)
    uncommitted: bool = False


@dataclass(frozen=True)
class TablePartition(InputPartition):
    """Slices of a view, each of one partition of the log with this id, of these keys or of all.
    ``table``: where rows are to be delivered, not records.
    """

    location: Location
    log_id: str
    plans: tuple["TablePlan", ...]
    keys: tuple[bytes, ...] | None = field(default=None, repr=False)
    table: TableColumns | None = None
